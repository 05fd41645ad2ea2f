/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge kernels: which kernels there are, and which of them takes a case and why. */
#include <string.h>

#include "case.h"

static const char help[] =
    "usage: ngauge kernels                  the kernels of this build, by ISA\n"
    "       ngauge kernels --explain CASE   which of them multiplies CASE, and why not the\n"
    "                                       others; then how its tiles came by their bits\n\n"
    "CASE is what ngauge verify and ngauge run read; its output may be missing.\n"
    "--isa LIST leaves the other ISAs out, --threads N shares the work: neither changes a "
    "bit.\n"
    "and the options of every command: ngauge --help\n";

enum {
    MAX_KERNELS = 64
};

struct kernels {
    ng_kernel_info item[MAX_KERNELS];
    size_t n;
};

static ng_status ask(const struct cli *cli, const ng_gemm_op *op, const ng_tensor *a,
                     const ng_tensor *b, const ng_tensor *c, const ng_tensor *d,
                     struct kernels *k)
{
    k->n = 0;
    const ng_status s = ng_gemm_kernels(cli->ctx, op, a, b, c, d, k->item, MAX_KERNELS, &k->n);
    if (k->n > MAX_KERNELS)
        k->n = MAX_KERNELS;
    return s;
}

static uint32_t isa_bit(const char *name)
{
    for (uint32_t bit = 1; bit; bit <<= 1)
        if (ng_isa_name(bit) && strcmp(ng_isa_name(bit), name) == 0)
            return bit;
    return 0;
}

/* ---- Without a case. ---- */

/* The library names its kernels for a multiply only; any will do. */
static ng_status all_kernels(const struct cli *cli, struct kernels *k)
{
    enum {
        SIDE = 16
    };
    static uint16_t ab[SIDE * SIDE];
    static uint32_t out[SIDE * SIDE];
    const int64_t dim[2] = { SIDE, SIDE };
    const ng_gemm_op op = { .size = sizeof op, .profile = ng_profile_find("fma-f32") };
    ng_tensor a, d;
    ng_status s = ng_tensor_init(&a, NG_BF16, ab, 2, dim);
    if (!s)
        s = ng_tensor_init(&d, NG_F32, out, 2, dim);
    return s ? s : ask(cli, &op, &a, &a, NULL, &d, k);
}

static const char *presence(const char *isa, bool *here)
{
    *here = ng_isa_available() & isa_bit(isa);
    return *here ? "on this CPU" : "not on this CPU";
}

static json_t *isa_json(const struct kernels *k, size_t first, size_t *end)
{
    const char *isa = k->item[first].isa;
    json_t *names = json_array();
    bool here;
    (void)presence(isa, &here);
    for (*end = first; *end < k->n && strcmp(k->item[*end].isa, isa) == 0; (*end)++)
        json_array_append_new(names, json_string(k->item[*end].name));
    return json_pack("{s:s,s:b,s:o}", "isa", isa, "here", here, "kernels", names);
}

static int list_kernels(const struct cli *cli)
{
    struct kernels k;
    const ng_status s = all_kernels(cli, &k);
    if (s)
        return cli_refused(cli, s, "kernels");
    if (cli->json) {
        json_t *list = json_array();
        for (size_t i = 0; i < k.n;)
            json_array_append_new(list, isa_json(&k, i, &i));
        return cli_print_json(json_pack("{s:s,s:s,s:o}", "schema", "ng.report/1", "version",
                                        ng_version(), "isas", list));
    }
    printf("%-12s %-17s kernels, in the order in which they are asked\n", "isa", "");
    for (size_t i = 0; i < k.n; i++) {
        const bool first = i == 0 || strcmp(k.item[i].isa, k.item[i - 1].isa) != 0;
        bool here;
        printf("%-12s %-17s %s\n", first ? k.item[i].isa : "",
               first ? presence(k.item[i].isa, &here) : "", k.item[i].name);
    }
    return EXIT_EQUAL;
}

/* ---- With one. ---- */

struct run {
    bool asked; /* kernels were: it is a matrix multiply */
    struct kernels kernels;
    const char *kernel; /* that ran */
    ng_tiles tiles;
    double seconds;
};

static ng_status explain_multiply(const struct cli *cli, struct one_case *c,
                                  struct operand *out, struct run *r)
{
    ng_status s = NG_OK;
    r->asked = c->op == OP_GEMM;
    if (r->asked)
        s = ask(cli, &c->gemm, &c->a.view, &c->b.view, c->c.present ? &c->c.view : NULL,
                &out->view, &r->kernels);
    const double start = seconds_now();
    if (!s)
        s = case_compute(cli, cli->ctx, c, out, false); /* in one call: tiles are a call's */
    r->seconds = seconds_now() - start;
    r->kernel = ng_ctx_kernel(cli->ctx);
    r->tiles = ng_ctx_tiles(cli->ctx);
    return s;
}

static void print_tiles(const struct run *r)
{
    const ng_tiles *t = &r->tiles;
    if (strcmp(r->kernel, "ref") == 0) {
        printf("  %llu elements, each by the reference (%.3f s)\n",
               (unsigned long long)t->reference, r->seconds);
        return;
    }
    printf("  tiles of %s (%.3f s):\n", r->kernel, r->seconds);
    printf("  %10llu fast       FP32 operations that are the rule's, shown by the data's "
           "ranges\n",
           (unsigned long long)t->fast);
    printf("  %10llu exact      in whole or in part by the slow path: ranges or spreads too "
           "wide\n",
           (unsigned long long)t->exact);
    printf("  %10llu reference  element by element: the kernel left them\n",
           (unsigned long long)t->reference);
}

static void print_run(const struct cli *cli, const struct one_case *c, const struct run *r)
{
    char line[1024], what[400];
    const ng_rule *rule = ng_gemm_rule(cli->ctx, &c->gemm, &c->a.view, &c->b.view);
    case_describe(c, what, sizeof what);
    printf("%s%s%s\n", c->name, c->name[0] ? ": " : "", what);
    if (rule && !cli->quiet && ng_rule_print(c->profile, rule, line, sizeof line))
        printf("  profile %s\n", line);
    for (size_t i = 0; i < r->kernels.n; i++) {
        const ng_kernel_info *k = &r->kernels.item[i];
        printf("%c %-30s %s\n", k->chosen ? '>' : ' ', k->name,
               k->chosen ? "chosen" : k->refuses);
    }
    if (!r->asked)
        printf("  dot: each element is a multiply of its own, too small for a kernel\n");
    print_tiles(r);
}

static json_t *run_json(const char *path, const struct one_case *c, const struct run *r)
{
    char what[400];
    json_t *list = json_array();
    for (size_t i = 0; i < r->kernels.n; i++) {
        const ng_kernel_info *k = &r->kernels.item[i];
        json_array_append_new(list, json_pack("{s:s,s:s,s:b,s:s?}", "kernel", k->name, "isa",
                                              k->isa, "chosen", k->chosen, "why_not",
                                              k->chosen ? NULL : k->refuses));
    }
    case_describe(c, what, sizeof what);
    return json_pack("{s:o,s:o,s:s,s:s,s:s,s:o,s:s,s:{s:I,s:I,s:I},s:f}", "case",
                     text_json(path), "name", text_json(c->name), "op", op_text(c->op), "what",
                     what, "profile", c->profile->name, "kernels", list, "kernel", r->kernel,
                     "tiles", "fast", (json_int_t)r->tiles.fast, "exact",
                     (json_int_t)r->tiles.exact, "reference", (json_int_t)r->tiles.reference,
                     "seconds", r->seconds);
}

static int explain_case(const struct cli *cli, const char *path, struct one_case *c,
                        json_t *report)
{
    struct operand out = { .present = false };
    struct run r = { .asked = false };
    if (c->op > OP_GEMM)
        return cli_fail(EXIT_REFUSED,
                        "%s: op is %s; wanted: gemm or dot, only they have kernels", path,
                        op_text(c->op));
    int code = case_shape_output(c);
    if (code)
        return code;
    if (!operand_alloc_like(&out, case_output(c), 0))
        return cli_fail(EXIT_INTERNAL, "out of memory");
    const ng_status s = explain_multiply(cli, c, &out, &r);
    if (s)
        code = cli_refused(cli, s, path);
    else if (report)
        json_array_append_new(report, run_json(path, c, &r));
    else
        print_run(cli, c, &r);
    operand_free(&out);
    return code;
}

static int explain_path(const struct cli *cli, const char *path)
{
    struct case_list list;
    json_t *report = cli->json ? json_array() : NULL;
    int code = case_read(path, false, &list);
    for (size_t i = 0; i < list.n && !code; i++)
        code = explain_case(cli, path, &list.item[i], report);
    case_free(&list);
    if (code) {
        json_decref(report);
        return code;
    }
    return report ? cli_print_json(json_pack("{s:s,s:s,s:o}", "schema", "ng.report/1",
                                             "version", ng_version(), "cases", report))
                  : EXIT_EQUAL;
}

int cmd_kernels(int argc, char **argv)
{
    enum {
        OPT_EXPLAIN = OPT_OWN
    };
    static const struct option long_options[] = {
        CLI_OPTIONS, { "explain", required_argument, NULL, OPT_EXPLAIN }, { 0 }
    };
    struct cli cli = { .threads = 1 };
    const char *path = NULL;
    bool bad;
    for (int o; (o = getopt_long(argc, argv, CLI_SHORT, long_options, NULL)) != -1;) {
        if (cli_option(&cli, o, optarg, &bad)) {
            if (bad)
                return EXIT_USAGE;
        } else if (o == OPT_EXPLAIN) {
            path = optarg;
        } else {
            if (o == 'h')
                fputs(help, stdout);
            return o == 'h' ? EXIT_EQUAL : EXIT_USAGE;
        }
    }
    if (argc > optind)
        return cli_fail(EXIT_USAGE, "kernels takes no arguments; a case follows --explain");
    int code = cli_open(&cli);
    if (!code)
        code = path ? explain_path(&cli, path) : list_kernels(&cli);
    cli_close(&cli);
    return code;
}
