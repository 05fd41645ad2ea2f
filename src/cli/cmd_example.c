/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge example: an MXFP8 multiply on trn3 as a dump, right or with a known fault. */
#include <stdlib.h>
#include <string.h>

#include "case.h"
#include "draw.h"

static const char help_head[] =
    "usage: ngauge example [--fault NAME] OUT\n\n"
    "Writes an MXFP8 (e4m3fn, e8m0 scales of 32) multiply on trn3, [48, 1024] x [1024, 48], as "
    "a\n"
    "folder, or as one file if OUT ends in .safetensors. ngauge verify OUT reads it.\n"
    "Faults that the chip's output can be given:\n";

enum {
    M = 48,
    N = 48,
    K = 1024,
    BLOCK = 32
};

static bool set_rule(struct one_case *c, const char *key, const char *value)
{
    c->owned = ng_profile_copy(ng_profile_find("trn3"));
    c->profile = c->gemm.profile = c->owned;
    return c->owned && ng_profile_set(c->owned, "mx", key, value) == NG_OK;
}

static bool fault_rtz(struct one_case *c)
{
    c->gemm.out.round = NG_ROUND_TOWARD_ZERO;
    return true;
}

static bool fault_lanes(struct one_case *c)
{
    return set_rule(c, "lane_sum", "chain");
}

static bool fault_adder(struct one_case *c)
{
    return set_rule(c, "acc_round", "rtz");
}

static bool fault_psum(struct one_case *c)
{
    c->gemm.accumulate = NG_BF16;
    return true;
}

static bool fault_swap(struct one_case *c)
{
    void *s = c->a.view.scale;
    c->a.view.scale = c->b.view.scale;
    c->b.view.scale = s;
    return true;
}

static bool no_fault(struct one_case *c)
{
    (void)c;
    return true;
}

static const struct fault {
    const char *name;
    bool (*apply)(struct one_case *c);
    ng_format to;
    const char *about;
} faults[] = {
    { "none", no_fault, NG_F32, "the oracle's own output, FP32" },
    { "rtz", fault_rtz, NG_BF16, "a bf16 output is truncated instead of rounded to nearest" },
    { "lanes", fault_lanes, NG_F32, "the four lanes are added one after another, not fused" },
    { "adder", fault_adder, NG_F32, "the array's adders truncate" },
    { "psum", fault_psum, NG_F32, "the accumulate memory is bf16 where FP32 was meant" },
    { "swap", fault_swap, NG_BF16, "the scales of A and B are swapped" },
    { "bit", no_fault, NG_F32, "one bit of one element is flipped: no rule explains that" },
};

/* What --help prints: the faults have their texts above. */
static const char *help(char text[1024])
{
    size_t used = (size_t)snprintf(text, 1024, "%s", help_head);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0] && used < 1024; i++)
        used += (size_t)snprintf(text + used, 1024 - used, "  %-6s %s\n", faults[i].name,
                                 faults[i].about);
    return text;
}

/* Elements of any exponent, no NaN; scales near 1. */
static bool fill(struct operand *o, int64_t rows, int64_t cols, uint32_t axis, uint64_t *state)
{
    struct operand like = { .present = true };
    if (ng_tensor_init(&like.view, NG_E4M3FN, NULL, 2, (int64_t[]){ rows, cols }))
        return false;
    like.view.block = BLOCK;
    like.view.block_axis = axis;
    like.view.scale_format = NG_E8M0;
    if (!operand_alloc_like(o, &like, 0))
        return false;
    unsigned char *x = o->data.data, *s = o->scale.data;
    for (size_t i = 0; i < o->data.bytes; i++)
        x[i] = (unsigned char)(draw_below(state, 0x7F) | draw_below(state, 2) << 7);
    for (size_t i = 0; i < o->scale.bytes; i++)
        s[i] = (unsigned char)(124 + draw_below(state, 7));
    return true;
}

static int make(const struct cli *cli, const struct fault *fault, struct one_case *c)
{
    uint64_t state = cli->seed;
    struct operand like = { .present = true };
    c->op = OP_GEMM;
    c->profile = ng_profile_find("trn3");
    c->gemm = (ng_gemm_op){ .size = sizeof c->gemm, .profile = c->profile };
    if (!fill(&c->a, M, K, 1, &state) || !fill(&c->b, K, N, 0, &state) ||
        ng_tensor_init(&like.view, fault->to, NULL, 2, (int64_t[]){ M, N }) ||
        !operand_alloc_like(&c->d, &like, 0))
        return cli_fail(EXIT_INTERNAL, "out of memory");

    struct one_case faulty = *c;
    faulty.owned = NULL;
    ng_status s = fault->apply(&faulty) ? NG_OK : NG_ERR_INTERNAL;
    if (!s)
        s = case_compute(cli, cli->ctx, &faulty, &c->d, false);
    ng_profile_free(faulty.owned);
    if (s)
        return cli_refused(cli, s, "");
    if (strcmp(fault->name, "bit") == 0)
        ((unsigned char *)c->d.data.data)[4 * (17 * N + 5)] ^= 0x10;
    return 0;
}

static int say(const struct cli *cli, const struct fault *fault, const char *path)
{
    const char *to = ng_format_info(fault->to)->text;
    if (cli->json)
        return cli_print_json(json_pack("{s:s,s:s,s:s,s:s,s:s,s:I,s:o}", "schema",
                                        "ng.report/1", "version", NG_CLI_VERSION, "fault",
                                        fault->name, "about", fault->about, "to", to, "seed",
                                        (json_int_t)cli->seed, "written", text_json(path)));
    if (!cli->quiet)
        printf("wrote %s: MXFP8 [48, 1024] x [1024, 48] on trn3 into %s; fault: %s\n", path, to,
               fault->about);
    return EXIT_EQUAL;
}

static int write_example(const struct cli *cli, const struct fault *fault, const char *path)
{
    struct one_case *c = calloc(1, sizeof *c);
    struct case_list list = { c, 1 };
    struct io_files files = { .n = 0 };
    if (!c)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    snprintf(c->name, sizeof c->name, "MXFP8 on trn3, fault: %s", fault->name);
    int code = make(cli, fault, c);
    if (!code)
        code = ends_in(path, ".safetensors")
                   ? files_close(&files, case_stage_st(&files, path, c))
                   : case_write_folder(path, c);
    if (!code)
        code = say(cli, fault, path);
    case_free(&list);
    return code;
}

/* --fault, its only one. */
static int take(void *to, int o, const char *v)
{
    (void)o;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        if (strcmp(faults[i].name, v) == 0) {
            *(const struct fault **)to = &faults[i];
            return 0;
        }
    return cli_fail(EXIT_USAGE, "'%s' is no fault; see ngauge example --help", v);
}

int cmd_example(int argc, char **argv)
{
    enum {
        OPT_FAULT = OPT_OWN
    };
    static const struct option long_options[] = {
        CLI_OPTIONS, { "fault", required_argument, NULL, OPT_FAULT }, { 0 }
    };
    struct cli cli = { .threads = 1, .seed = 1 };
    const struct fault *fault = &faults[0];
    char text[1024];
    int code;
    if (!cli_options(&cli, argc, argv,
                     &(struct cli_options){ CLI_SHORT, long_options, help(text), take, &fault },
                     &code))
        return code;
    code = cli_words("example", argv + optind, 1, 1, "one OUT");
    if (!code)
        code = cli_open(&cli);
    if (!code)
        code = write_example(&cli, fault, argv[optind]);
    cli_close(&cli);
    return code;
}
