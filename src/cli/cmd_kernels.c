/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge kernels: which kernels there are, and which of them takes a case and why. */
#include <stdlib.h>
#include <string.h>

#include "block.h"

static const char help[] =
    "usage: ngauge kernels                  the kernels of this build, by ISA\n"
    "       ngauge kernels --explain CASE   which of them computes CASE, or each stage of it,\n"
    "                                       and why not the others; then how a multiply's\n"
    "                                       tiles came by their bits\n\n"
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

/* A stage of the call: the choices for it that were the same, as often as they were made. */
struct stage {
    const char *name, *does;
    struct kernels kernels;
    int64_t times;
};

struct run {
    struct kernels kernels;
    const char *kernel; /* that ran */
    ng_tiles tiles;
    double seconds;
    struct stage *stage; /* of all but a gemm */
    size_t n_stages;
    bool failed; /* no memory for one more */
};

static bool same_kernels(const struct kernels *a, const ng_kernel_choice *c)
{
    if (a->n != c->count)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const ng_kernel_info *x = &a->item[i], *y = &c->info[i];
        if (x->chosen != y->chosen || !x->refuses != !y->refuses ||
            (x->refuses && strcmp(x->refuses, y->refuses) != 0))
            return false;
    }
    return true;
}

static void keep_choice(void *user, const ng_kernel_choice *c)
{
    struct run *r = user;
    for (size_t i = 0; i < r->n_stages; i++)
        if (strcmp(r->stage[i].name, c->stage) == 0 && strcmp(r->stage[i].does, c->does) == 0 &&
            same_kernels(&r->stage[i].kernels, c)) {
            r->stage[i].times++;
            return;
        }
    struct stage *more = realloc(r->stage, (r->n_stages + 1) * sizeof *more);
    r->failed = r->failed || !more || c->count > MAX_KERNELS;
    if (!more)
        return;
    r->stage = more;
    if (r->failed)
        return;
    r->stage[r->n_stages] = (struct stage){
        .name = c->stage, .does = c->does, .kernels = { .n = c->count }, .times = 1
    };
    memcpy(r->stage[r->n_stages++].kernels.item, c->info, c->count * sizeof *c->info);
}

static void watch(const struct cli *cli, struct run *r)
{
    ng_ctx_watch(cli->ctx, r ? &(ng_kernel_watch){ keep_choice, r } : NULL);
}

static ng_status explain_one(const struct cli *cli, struct one_case *c, struct operand *out,
                             struct run *r)
{
    ng_status s = NG_OK;
    if (c->op == OP_GEMM)
        s = ask(cli, &c->gemm, &c->a.view, &c->b.view, c->c.present ? &c->c.view : NULL,
                &out->view, &r->kernels);
    else
        watch(cli, r);
    const double start = seconds_now();
    if (!s)
        s = case_compute(cli, cli->ctx, c, out, false); /* in one call: tiles are a call's */
    watch(cli, NULL);
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
    if ((c->op == OP_ATTENTION || c->op == OP_ATTENTION_BACKWARD) &&
        strcmp(r->kernel, "ref") != 0)
        printf("  %llu rows%s by it, %llu by the reference, for their data\n",
               (unsigned long long)r->tiles.fast,
               c->op == OP_ATTENTION_BACKWARD ? " and keys" : "",
               (unsigned long long)r->tiles.reference);
    printf("  %.3f s\n", r->seconds);
}

static void describe(const struct one_case *c, char *text, size_t bytes)
{
    if (c->op > OP_CONVERT)
        block_describe(c, text, bytes);
    else
        case_describe(c, text, bytes);
}

static void print_kernels(const struct kernels *of)
{
    for (size_t i = 0; i < of->n; i++) {
        const ng_kernel_info *k = &of->item[i];
        printf("%c %-30s %s\n", k->chosen ? '>' : ' ', k->name,
               k->chosen ? "chosen" : k->refuses);
    }
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
    print_kernels(&r->kernels);
    for (size_t i = 0; i < r->n_stages; i++) {
        const struct stage *t = &r->stage[i];
        printf("  %s: %s", t->name, t->does);
        if (t->times > 1)
            printf(", %lld times", (long long)t->times);
        printf("\n");
        print_kernels(&t->kernels);
    }
    if (c->op <= OP_GEMM)
        print_tiles(r);
    else
        print_share(c, r);
}

static json_t *kernels_json(const struct kernels *of)
{
    json_t *list = json_array();
    for (size_t i = 0; i < of->n; i++) {
        const ng_kernel_info *k = &of->item[i];
        json_array_append_new(list, json_pack("{s:s,s:s,s:b,s:s?}", "kernel", k->name, "isa",
                                              k->isa, "chosen", k->chosen, "why_not",
                                              k->chosen ? NULL : k->refuses));
    }
    return list;
}

/* Those of the call as a whole: a multiply's, a conversion's, those of attention's rows. */
static const struct kernels *main_kernels(const struct run *r)
{
    const bool has =
        r->n_stages == 1 || (r->n_stages && strcmp(r->stage[0].does, "attention") == 0);
    return has ? &r->stage[0].kernels : &r->kernels;
}

static json_t *run_json(const char *path, const struct one_case *c, const struct run *r)
{
    char what[1200];
    json_t *stages = json_array();
    for (size_t i = 0; i < r->n_stages; i++)
        json_array_append_new(stages, json_pack("{s:s,s:s,s:I,s:o}", "stage", r->stage[i].name,
                                                "does", r->stage[i].does, "times",
                                                (json_int_t)r->stage[i].times, "kernels",
                                                kernels_json(&r->stage[i].kernels)));
    describe(c, what, sizeof what);
    json_t *j =
        json_pack("{s:o,s:o,s:s,s:s,s:s?,s:o,s:s,s:{s:I,s:I,s:I},s:f}", "case", text_json(path),
                  "name", text_json(c->name), "op", op_text(c->op), "what", what, "profile",
                  c->profile ? c->profile->name : NULL, "kernels",
                  kernels_json(main_kernels(r)), "kernel", r->kernel, "tiles", "fast",
                  (json_int_t)r->tiles.fast, "exact", (json_int_t)r->tiles.exact, "reference",
                  (json_int_t)r->tiles.reference, "seconds", r->seconds);
    if (c->op > OP_GEMM)
        json_object_set_new(j, "stages", stages);
    else
        json_decref(stages);
    return j;
}

static void report_run(const struct cli *cli, const char *path, const struct one_case *c,
                       const struct run *r, json_t *report)
{
    if (report)
        json_array_append_new(report, run_json(path, c, r));
    else
        print_run(cli, c, r);
}

/* A case of many tensors: computed as run would. */
static ng_status explain_block(const struct cli *cli, struct one_case *c, struct operand *out,
                               struct run *r)
{
    watch(cli, r);
    const double start = seconds_now();
    const ng_status s = c->block->kind->compute(cli->ctx, c, out);
    watch(cli, NULL);
    r->seconds = seconds_now() - start;
    r->kernel = ng_ctx_kernel(cli->ctx);
    r->tiles = ng_ctx_tiles(cli->ctx);
    return s;
}

static int explain_case(const struct cli *cli, const char *path, struct one_case *c,
                        json_t *report)
{
    struct operand out = { .present = false }, all[BLOCK_TENSORS] = { { .present = false } };
    struct run r = { .failed = false };
    const bool block = c->op > OP_CONVERT;
    int code = block ? block_alloc(c, all) : case_shape_output(c);
    if (code)
        return code;
    if (!block && !operand_alloc_like(&out, case_output(c), 0))
        return cli_fail(EXIT_INTERNAL, "out of memory");
    const ng_status s = block ? explain_block(cli, c, all, &r) : explain_one(cli, c, &out, &r);
    if (s)
        code = cli_refused(cli, s, path);
    else if (r.failed)
        code = cli_fail(EXIT_INTERNAL, "out of memory");
    else
        report_run(cli, path, c, &r, report);
    operand_free(&out);
    block_free_results(all);
    free(r.stage);
    return code;
}

static int explain_path(const struct cli *cli, const char *path)
{
    struct case_list list;
    json_t *report = cli->json ? json_array() : NULL;
    int code = case_read(path, false, NULL, &list);
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
    int code;
    if (!cli_options(
            &cli, argc, argv,
            &(struct cli_options){ CLI_SHORT, long_options, help, cli_take_text, &path },
            &code))
        return code;
    if (argc > optind)
        return cli_fail(EXIT_USAGE, "kernels takes no '%s'; a case follows --explain",
                        argv[optind]);
    code = cli_open(&cli);
    if (!code)
        code = path ? explain_path(&cli, path) : list_kernels(&cli);
    cli_close(&cli);
    return code;
}
