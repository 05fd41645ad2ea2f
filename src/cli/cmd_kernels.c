/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge kernels: which kernels there are, and which of them takes a case and why. */
#include <string.h>

#include "block.h"

static const char help[] =
    "usage: ngauge kernels                  the kernels of this build, by ISA\n"
    "       ngauge kernels --explain CASE   which of them computes CASE, and why not the\n"
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

/* ---- Without a case. ---- */

static const char *presence(uint32_t isa)
{
    return ng_isa_available() & isa ? "on this CPU" : "not on this CPU";
}

static json_t *isa_json(size_t first, size_t *end)
{
    ng_kernel_entry of, e;
    json_t *list = json_array();
    (void)ng_kernel_at(first, &of);
    for (*end = first; ng_kernel_at(*end, &e) && e.isa == of.isa; (*end)++)
        json_array_append_new(list, json_pack("{s:s,s:s}", "kernel", e.name, "does", e.does));
    return json_pack("{s:s,s:b,s:o}", "isa", ng_isa_name(of.isa), "here",
                     (ng_isa_available() & of.isa) != 0, "kernels", list);
}

static int list_kernels(const struct cli *cli)
{
    ng_kernel_entry e;
    if (cli->json) {
        json_t *list = json_array();
        for (size_t i = 0; ng_kernel_at(i, NULL);)
            json_array_append_new(list, isa_json(i, &i));
        return cli_print_json(json_pack("{s:s,s:s,s:o}", "schema", "ng.report/1", "version",
                                        ng_version(), "isas", list));
    }
    printf("%-12s %-17s %-12s kernels, in the order in which they are asked\n", "isa", "",
           "for");
    uint32_t last = 0;
    for (size_t i = 0; ng_kernel_at(i, &e); i++) {
        const bool first = e.isa != last;
        printf("%-12s %-17s %-12s %s\n", first ? ng_isa_name(e.isa) : "",
               first ? presence(e.isa) : "", e.does, e.name);
        last = e.isa;
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

/* Which of "convert" and "attention" an operation asks; NULL: none of its own. */
static const char *asks_for(enum op op)
{
    if (op == OP_ATTENTION || op == OP_ATTENTION_BACKWARD)
        return "attention";
    return op >= OP_QUANTIZE && op <= OP_CONVERT ? "convert" : NULL;
}

/* They are asked in order, so what stands before the one that ran did not take the case. */
static void list_asked(const struct cli *cli, const char *does, struct run *r)
{
    const uint32_t mask = cli->isa_mask ? cli->isa_mask | NG_ISA_REF : UINT32_MAX;
    ng_kernel_entry e;
    bool ran = false;
    for (size_t i = 0; ng_kernel_at(i, &e) && r->kernels.n < MAX_KERNELS; i++) {
        const bool chosen = !ran && strcmp(e.name, r->kernel) == 0;
        if (strcmp(e.does, does) != 0 && e.isa != NG_ISA_REF)
            continue;
        ran = ran || chosen;
        r->kernels.item[r->kernels.n++] =
            (ng_kernel_info){ .name = e.name,
                              .isa = ng_isa_name(e.isa),
                              .chosen = chosen,
                              .refuses = chosen                          ? NULL
                                         : !(ng_isa_available() & e.isa) ? "not on this CPU"
                                         : !(mask & e.isa) ? "excluded by isa_mask"
                                         : ran             ? "another takes it first"
                                                           : "does not take this case" };
    }
}

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

/* Attention counts rows (and keys); a conversion is whole. */
static void print_share(const struct one_case *c, const struct run *r)
{
    if (c->op > OP_CONVERT && strcmp(r->kernel, "ref") != 0)
        printf("  %llu rows%s by it, %llu by the reference, for their data\n",
               (unsigned long long)r->tiles.fast,
               c->op == OP_ATTENTION_BACKWARD ? " and keys" : "",
               (unsigned long long)r->tiles.reference);
    printf("  %s, %.3f s\n", r->kernel, r->seconds);
}

static void describe(const struct one_case *c, char *text, size_t bytes)
{
    if (c->op > OP_CONVERT)
        block_describe(c, text, bytes);
    else
        case_describe(c, text, bytes);
}

static void print_run(const struct cli *cli, const struct one_case *c, const struct run *r)
{
    char line[1024], what[1200];
    const ng_rule *rule =
        c->op <= OP_GEMM ? ng_gemm_rule(cli->ctx, &c->gemm, &c->a.view, &c->b.view) : NULL;
    describe(c, what, sizeof what);
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
    if (c->op <= OP_GEMM)
        print_tiles(r);
    else
        print_share(c, r);
}

static json_t *run_json(const char *path, const struct one_case *c, const struct run *r)
{
    char what[1200];
    json_t *list = json_array();
    for (size_t i = 0; i < r->kernels.n; i++) {
        const ng_kernel_info *k = &r->kernels.item[i];
        json_array_append_new(list, json_pack("{s:s,s:s,s:b,s:s?}", "kernel", k->name, "isa",
                                              k->isa, "chosen", k->chosen, "why_not",
                                              k->chosen ? NULL : k->refuses));
    }
    describe(c, what, sizeof what);
    return json_pack("{s:o,s:o,s:s,s:s,s:s?,s:o,s:s,s:{s:I,s:I,s:I},s:f}", "case",
                     text_json(path), "name", text_json(c->name), "op", op_text(c->op), "what",
                     what, "profile", c->profile ? c->profile->name : NULL, "kernels", list,
                     "kernel", r->kernel, "tiles", "fast", (json_int_t)r->tiles.fast, "exact",
                     (json_int_t)r->tiles.exact, "reference", (json_int_t)r->tiles.reference,
                     "seconds", r->seconds);
}

static void report_run(const struct cli *cli, const char *path, const struct one_case *c,
                       const struct run *r, json_t *report)
{
    if (report)
        json_array_append_new(report, run_json(path, c, r));
    else
        print_run(cli, c, r);
}

/* A case of attention: computed as run would. */
static int explain_block(const struct cli *cli, const char *path, struct one_case *c,
                         json_t *report)
{
    struct operand out[BLOCK_TENSORS];
    struct run r = { .asked = true };
    int code = block_alloc(c, out);
    if (code)
        return code;
    const double start = seconds_now();
    const ng_status s = c->block->kind->compute(cli->ctx, c, out);
    r.seconds = seconds_now() - start;
    r.kernel = ng_ctx_kernel(cli->ctx);
    r.tiles = ng_ctx_tiles(cli->ctx);
    list_asked(cli, asks_for(c->op), &r);
    if (s)
        code = cli_refused(cli, s, path);
    else
        report_run(cli, path, c, &r, report);
    block_free_results(out);
    return code;
}

static int explain_case(const struct cli *cli, const char *path, struct one_case *c,
                        json_t *report)
{
    struct operand out = { .present = false };
    struct run r = { .asked = false };
    if (c->op > OP_GEMM && !asks_for(c->op))
        return cli_fail(EXIT_REFUSED,
                        "%s: op is %s, which is calls of several; wanted: gemm, dot, quantize, "
                        "dequantize, convert, attention or attention_backward",
                        path, op_text(c->op));
    if (c->op > OP_CONVERT)
        return explain_block(cli, path, c, report);
    int code = case_shape_output(c);
    if (code)
        return code;
    if (!operand_alloc_like(&out, case_output(c), 0))
        return cli_fail(EXIT_INTERNAL, "out of memory");
    const ng_status s = explain_multiply(cli, c, &out, &r);
    if (!s && c->op > OP_GEMM) {
        r.asked = true;
        list_asked(cli, asks_for(c->op), &r);
    }
    if (s)
        code = cli_refused(cli, s, path);
    else
        report_run(cli, path, c, &r, report);
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
