/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge verify: a chip's dump against the oracle, or two dumps against each other. */
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "neighbours.h"
#include "report.h"

struct options {
    struct verify_options how;
    ng_format as;
    bool dumps;
    json_t *set; /* in the cases' profiles; NULL: nothing */
};

static const char help[] =
    "usage: ngauge verify CASE [CASE ...]        a dump against the oracle\n"
    "       ngauge verify --dumps [--as FORMAT] GOT[=F] WANT[=F]   two dumps against each "
    "other\n\n"
    "CASE is a folder with a case.json, a .json file, or a .safetensors file with metadata\n"
    "ng.case (schema ng.case/1, docs/cli.md). GOT and WANT are .npy, .safetensors or raw,\n"
    "FILE or FILE=FORMAT (d.bin=bf16:64x64), FILE.safetensors:NAME for one of several "
    "tensors.\n"
    "A file of one tensor is compared with that of its name, or with a case's result.\n\n"
    "  --set RULE.KEY=VALUE   as if the case's profile said it (fp8.promote_every=4)\n"
    "  --no-explain      do not look for the rule that explains a difference\n"
    "  --sensitivity     how many elements would notice each neighbouring rule\n"
    "  --sample N        look at N elements of a multiply's output only, at N rows of\n"
    "                    attention's, at N tokens of a route or moe (--seed draws them)\n"
    "  --as FORMAT       element format of .npy dumps without a sidecar\n"
    "and the options of every command: ngauge --help\n";

/* ---- One mismatch. ---- */

/*
 * The codes of a (or b), or of its scales, that enter an element of D: the first few along K.
 * False: there are none.
 */
static bool slice_text(const struct one_case *c, const struct operand *o, bool is_b,
                       bool scales, int64_t number, char *text, size_t bytes)
{
    enum {
        SHOWN = 8
    };
    ng_tensor t = o->view;
    int64_t at[NG_MAX_RANK], out[NG_MAX_RANK];
    const uint32_t k_axis = is_b && c->op == OP_GEMM ? t.rank - 2 : t.rank - 1;
    if (scales) {
        int64_t dim[NG_MAX_RANK];
        if (!o->scale.data)
            return false;
        memcpy(dim, t.dim, sizeof dim);
        dim[k_axis] = (dim[k_axis] + t.block - 1) / t.block;
        if (ng_tensor_init(&t, o->view.scale_format, o->scale.data, o->view.rank, dim))
            return false;
    }
    index_of(&c->d.view, number, out);
    for (uint32_t d = 0; d < t.rank; d++)
        at[d] = d < c->d.view.rank ? out[d] : 0;
    if (is_b && c->op == OP_GEMM)
        at[t.rank - 1] = out[t.rank - 1];
    const int64_t k = t.dim[k_axis];
    const int digits = (int)(ng_format_info(t.format)->bits + 3) / 4;
    size_t n = 0;
    for (int64_t i = 0; i < k && i < SHOWN && n < bytes; i++) {
        at[k_axis] = i;
        n += (size_t)snprintf(text + n, bytes - n, "%s%0*x", i ? " " : "", digits,
                              (unsigned)ng_tensor_get(&t, at));
    }
    if (k > SHOWN && n < bytes)
        snprintf(text + n, bytes - n, " ... (%lld)", (long long)k);
    return true;
}

/* The real number that the element stands for, where there is one number to tell. */
static bool exact_value(const struct cli *cli, const struct one_case *c, int64_t number,
                        ng_value *v)
{
    int64_t index[NG_MAX_RANK];
    if (c->op <= OP_GEMM) {
        index_of(&c->d.view, number, index);
        return ng_gemm_exact(cli->ctx, &c->gemm, c->op == OP_DOT, &c->a.view, &c->b.view,
                             c->c.present ? &c->c.view : NULL, &c->d.view, index, v) == NG_OK;
    }
    if (c->op == OP_DEQUANTIZE || !c->src.data.data)
        return false;
    index_of(&c->src.view, number, index);
    return ng_decode(c->src.view.format, ng_tensor_get(&c->src.view, index), v) == NG_OK;
}

static void print_mismatch(const struct cli *cli, const struct one_case *c, const ng_tensor *t,
                           const struct diff *d)
{
    char text[256];
    ng_value exact;
    index_text(t, d->index, text, sizeof text);
    printf("  %-12s got %s  want %s", text, code_text(t->format, d->got).text,
           code_text(t->format, d->want).text);
    printf("  bits 0x%x", (unsigned)(d->got ^ d->want));
    print_distance(d);
    if (exact_value(cli, c, d->index, &exact))
        printf("  %-12s %s %s\n", "", c->op == OP_QUANTIZE ? "source" : "exact result",
               value_text(&exact).text);
    if (c->op > OP_GEMM)
        return;
    if (!c->b.view.sparse && slice_text(c, &c->a, false, false, d->index, text, sizeof text))
        printf("  %-12s a = %s\n", "", text);
    if (slice_text(c, &c->a, false, true, d->index, text, sizeof text))
        printf("  %-12s a scales = %s\n", "", text);
    if (!c->a.view.sparse && slice_text(c, &c->b, true, false, d->index, text, sizeof text))
        printf("  %-12s b = %s\n", "", text);
    if (slice_text(c, &c->b, true, true, d->index, text, sizeof text))
        printf("  %-12s b scales = %s\n", "", text);
}

static json_t *mismatch_json(const struct cli *cli, const struct one_case *c,
                             const ng_tensor *t, const struct diff *d)
{
    char text[256];
    ng_value exact;
    json_t *j = json_object();
    json_object_set_new(j, "index", index_json(t, d->index));
    json_object_set_new(j, "got", code_json(t->format, d->got));
    json_object_set_new(j, "want", code_json(t->format, d->want));
    snprintf(text, sizeof text, "0x%x", (unsigned)(d->got ^ d->want));
    json_object_set_new(j, "bits", json_string(text));
    json_object_set_new(j, "class", json_string(diff_class_text(d->cls)));
    json_object_set_new(j, "codes",
                        d->distance == INT64_MAX ? json_null() : json_integer(d->distance));
    if (exact_value(cli, c, d->index, &exact))
        json_object_set_new(j, c->op == OP_QUANTIZE ? "source" : "exact",
                            json_string(value_text(&exact).text));
    if (c->op <= OP_GEMM) {
        if (!c->b.view.sparse &&
            slice_text(c, &c->a, false, false, d->index, text, sizeof text))
            json_object_set_new(j, "a", json_string(text));
        if (slice_text(c, &c->a, false, true, d->index, text, sizeof text))
            json_object_set_new(j, "a_scales", json_string(text));
        if (!c->a.view.sparse && slice_text(c, &c->b, true, false, d->index, text, sizeof text))
            json_object_set_new(j, "b", json_string(text));
        if (slice_text(c, &c->b, true, true, d->index, text, sizeof text))
            json_object_set_new(j, "b_scales", json_string(text));
    }
    return j;
}

/* ---- A case. ---- */

/* The rule line of a multiply, and the weakest evidence among its parameters. */
static void rule_text(const struct cli *cli, const struct one_case *c, char *line, size_t bytes,
                      char *weak, size_t weak_bytes)
{
    line[0] = weak[0] = '\0';
    if (c->op > OP_GEMM)
        return;
    const ng_rule *r = ng_gemm_rule(cli->ctx, &c->gemm, &c->a.view, &c->b.view);
    if (!r)
        return;
    ng_rule_print(c->profile, r, line, bytes);
    int worst = 0;
    for (int p = 0; p < NG_PARAM_COUNT; p++)
        if (!param_is_idle(r, (ng_param)p, c) && (int)r->set[p].evidence > worst)
            worst = (int)r->set[p].evidence;
    size_t n = (size_t)snprintf(weak, weak_bytes, "weakest evidence: %s (",
                                ng_evidence_name((ng_evidence)worst));
    const char *comma = "";
    for (int p = 0; p < NG_PARAM_COUNT && n < weak_bytes; p++)
        if (!param_is_idle(r, (ng_param)p, c) && (int)r->set[p].evidence == worst) {
            n += (size_t)snprintf(weak + n, weak_bytes - n, "%s%s", comma,
                                  ng_param_key((ng_param)p));
            comma = " ";
        }
    if (n < weak_bytes)
        snprintf(weak + n, weak_bytes - n, ")");
}

struct outcome {
    struct comparison elements, scales;
    bool has_scales, tensor_scale_differs;
    struct findings found, notice;
    bool explained, has_notice;
    double seconds;
};

static ng_tensor scale_view(const struct operand *o)
{
    ng_tensor t;
    (void)ng_tensor_init(&t, o->view.scale_format, o->scale.data, 1,
                         &(int64_t){ (int64_t)o->scale.bytes });
    return t;
}

/* Conversions are cheap: all of them is looked at. */
static bool is_sampled(const struct options *opt, const struct one_case *c)
{
    return opt->how.sample && c->op <= OP_GEMM && opt->how.sample < count_of(&c->d.view);
}

static ng_status check_sample(const struct cli *cli, const struct options *opt,
                              struct one_case *c, struct comparison *r, bool *ok)
{
    const int64_t all = count_of(&c->d.view), n = opt->how.sample;
    int64_t *number = draw_sample(cli->seed, all, n);
    uint32_t *want = malloc((size_t)n * sizeof *want);
    ng_status s = NG_OK;
    *ok = number && want;
    if (*ok)
        s = evaluate_sample(cli, c, number, n, want);
    if (*ok && !s)
        *ok = compare_sample(&c->d.view, number, want, n, r);
    else
        free(number);
    free(want);
    return s;
}

static int compare_case(const struct cli *cli, const struct options *opt, const char *where,
                        struct one_case *c, struct operand *want, struct outcome *r)
{
    struct operand *got = case_output(c);
    const double start = seconds_now();
    ng_status s = NG_OK;
    bool ok = true;
    if (is_sampled(opt, c)) {
        s = check_sample(cli, opt, c, &r->elements, &ok);
        *want =
            (struct operand){ .view = got->view }; /* where they are equal it is the oracle's */
    } else {
        ok = operand_alloc_like(want, got, 0);
        s = ok ? case_compute(cli, cli->ctx, c, want, true) : NG_OK;
        ok = ok && (s || compare_tensors(&got->view, &want->view, &r->elements));
    }
    if (s)
        return cli_refused(cli, s, where);
    r->seconds = seconds_now() - start;
    r->has_scales = c->op == OP_QUANTIZE;
    if (ok && r->has_scales) {
        const ng_tensor gs = scale_view(got), ws = scale_view(want);
        ok = compare_tensors(&gs, &ws, &r->scales);
        r->tensor_scale_differs =
            got->view.tensor_scale && got->view.tensor_scale != want->view.tensor_scale;
    }
    if (!ok)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    int code = 0;
    if (opt->how.explain && r->elements.differ + r->scales.differ) {
        code =
            explain(cli, c, want, &r->elements, r->has_scales ? &r->scales : NULL, &r->found);
        r->explained = code == 0;
    }
    if (!code && opt->how.sensitivity) {
        code = sensitivity(cli, c, want, &r->elements, &r->notice);
        r->has_notice = code == 0;
    }
    return code;
}

/* Where a scale stands: its index among the scales, as the tensor's with blocks for elements.
 */
static ng_tensor scale_grid(const struct one_case *c)
{
    ng_tensor t = c->dst.view;
    t.dim[t.block_axis] = (t.dim[t.block_axis] + t.block - 1) / t.block;
    return t;
}

static json_t *scale_json(const struct one_case *c, const ng_tensor *scales,
                          const struct diff *d)
{
    const ng_tensor grid = scale_grid(c);
    return json_pack("{s:o,s:o,s:o}", "index", index_json(&grid, d->index), "got",
                     code_json(scales->format, d->got), "want",
                     code_json(scales->format, d->want));
}

static void print_case(const struct cli *cli, struct one_case *c, const struct outcome *r)
{
    char line[1024], weak[600], what[400];
    const struct operand *got = case_output(c);
    case_describe(c, what, sizeof what);
    rule_text(cli, c, line, sizeof line, weak, sizeof weak);
    printf("%s%s%s\n", c->name, c->name[0] ? ": " : "", what);
    if (line[0] && !cli->quiet)
        printf("  profile %s\n  %s\n", line, weak);
    conversion_line(c, line, sizeof line);
    if (line[0] && !cli->quiet)
        printf("  %s\n", line);
    print_counts("elements", &r->elements);
    if (r->has_scales)
        print_counts("scales", &r->scales);
    if (r->tensor_scale_differs)
        printf("  the tensor scale differs\n");
    for (int64_t i = 0; i < r->elements.differ && i < cli->max_report; i++)
        print_mismatch(cli, c, &got->view, &r->elements.diff[i]);
    if (r->elements.differ > cli->max_report)
        printf("  ... and %lld more\n", (long long)(r->elements.differ - cli->max_report));
    const ng_tensor ss = r->has_scales ? scale_view(got) : (ng_tensor){ 0 };
    for (int64_t i = 0; i < r->scales.differ && i < cli->max_report; i++) {
        const struct diff *d = &r->scales.diff[i];
        char text[128];
        const ng_tensor grid = scale_grid(c);
        index_text(&grid, d->index, text, sizeof text);
        printf("  scale %-9s got %s  want %s", text, code_text(ss.format, d->got).text,
               code_text(ss.format, d->want).text);
        print_distance(d);
    }
    if (r->explained)
        print_findings(cli, &r->found);
    if (r->has_notice)
        print_sensitivity(&r->notice);
}

static json_t *case_report(const struct cli *cli, const char *where, struct one_case *c,
                           const struct outcome *r)
{
    char line[1024], weak[600], what[400], hash[16];
    const struct operand *got = case_output(c);
    case_describe(c, what, sizeof what);
    rule_text(cli, c, line, sizeof line, weak, sizeof weak);
    json_t *j =
        json_pack("{s:o,s:o,s:s,s:s,s:f}", "case", text_json(where), "name", text_json(c->name),
                  "op", op_text(c->op), "what", what, "seconds", r->seconds);
    if (line[0]) {
        snprintf(hash, sizeof hash, "%08x", ng_profile_hash(c->profile));
        json_object_set_new(j, "profile", json_string(c->profile->name));
        json_object_set_new(j, "profile_line", json_string(line));
        json_object_set_new(j, "profile_hash", json_string(hash));
        json_object_set_new(j, "evidence", json_string(weak));
    }
    conversion_line(c, line, sizeof line);
    if (line[0])
        json_object_set_new(j, "parameters", json_string(line));
    json_object_set_new(j, "elements", counts_json(&r->elements));
    if (r->has_scales) {
        const ng_tensor ss = scale_view(got);
        json_t *bad = json_array();
        for (int64_t i = 0; i < r->scales.differ && i < cli->max_report; i++)
            json_array_append_new(bad, scale_json(c, &ss, &r->scales.diff[i]));
        json_object_set_new(j, "scales", counts_json(&r->scales));
        json_object_set_new(j, "scale_mismatches", bad);
        json_object_set_new(j, "tensor_scale_differs", json_boolean(r->tensor_scale_differs));
    }
    json_t *list = json_array();
    for (int64_t i = 0; i < r->elements.differ && i < cli->max_report; i++)
        json_array_append_new(list, mismatch_json(cli, c, &got->view, &r->elements.diff[i]));
    json_object_set_new(j, "mismatches", list);
    if (r->explained)
        json_object_set_new(j, "explain", findings_json(&r->found));
    if (r->has_notice)
        json_object_set_new(j, "sensitivity", sensitivity_json(&r->notice));
    return j;
}

struct totals {
    int64_t cases, elements, differ;
    double seconds;
};

static int verify_block(const struct cli *cli, const struct options *opt, const char *where,
                        struct one_case *c, json_t *report, struct totals *t)
{
    int64_t elements = 0, differ = 0;
    double seconds = 0;
    const int code =
        block_verify(cli, &opt->how, c, where, report, &elements, &differ, &seconds);
    t->cases += !code;
    t->elements += elements;
    t->differ += differ;
    t->seconds += seconds;
    return code;
}

static int verify_one(const struct cli *cli, const struct options *opt, const char *where,
                      struct one_case *c, json_t *report, struct totals *t)
{
    struct operand want = { .present = false };
    struct outcome r = { .explained = false };
    if (c->op > OP_CONVERT)
        return verify_block(cli, opt, where, c, report, t);
    const int code = compare_case(cli, opt, where, c, &want, &r);
    if (!code) {
        if (report)
            json_array_append_new(report, case_report(cli, where, c, &r));
        else
            print_case(cli, c, &r);
        t->cases++;
        t->elements += r.elements.n + r.scales.n;
        t->differ += r.elements.differ + r.scales.differ + r.tensor_scale_differs;
        t->seconds += r.seconds;
    }
    findings_free(&r.found);
    findings_free(&r.notice);
    comparison_free(&r.elements);
    comparison_free(&r.scales);
    operand_free(&want);
    return code;
}

static int verify_path(const struct cli *cli, const struct options *opt, const char *path,
                       json_t *report, struct totals *t)
{
    struct case_list list;
    char where[1100];
    int code = case_read(path, true, opt->set, &list);
    for (size_t i = 0; i < list.n && !code; i++) {
        if (list.n > 1)
            snprintf(where, sizeof where, "%.1000s, case %zu of %zu", path, i + 1, list.n);
        else
            snprintf(where, sizeof where, "%.1000s", path);
        if (!report)
            printf("%s\n", where);
        code = verify_one(cli, opt, where, &list.item[i], report, t);
    }
    case_free(&list);
    return code;
}

/* The report of the cases before the one that could not be verified. */
static void print_stopped(json_t *report, const struct totals *t, const char *path, int code)
{
    (void)cli_print_json(json_pack(
        "{s:s,s:s,s:o,s:I,s:I,s:I,s:f,s:s,s:{s:o,s:i}}", "schema", "ng.report/1", "version",
        ng_version(), "cases", report, "n_cases", (json_int_t)t->cases, "elements",
        (json_int_t)t->elements, "differ", (json_int_t)t->differ, "seconds", t->seconds,
        "verdict", "error", "error", "case", text_json(path), "exit_code", code));
}

static int verify_cases(const struct cli *cli, const struct options *opt, int n, char **path)
{
    struct totals t = { 0 };
    json_t *report = cli->json ? json_array() : NULL;
    int code = 0, i = 0;
    while (i < n && !code)
        code = verify_path(cli, opt, path[i++], report, &t);
    if (code && report)
        print_stopped(report, &t, path[i - 1], code);
    if (code)
        return code;
    return verify_total(cli, report, t.cases, t.elements, t.differ, t.seconds);
}

/* ---- Two dumps. ---- */

/* Integers are told from elements by the type of the command line, or by the sidecar. */
static bool holds_integers(const struct file_name *f)
{
    struct io_error e;
    struct npy_side side = { .format = NG_F32 };
    ng_format format = NG_F32;
    uint32_t bits;
    char name[64];
    void *data;
    size_t n;
    if (f->type) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(f->type, ":"), f->type);
        return io_type_find(name, &format, &bits) && !format;
    }
    const size_t bytes = strlen(f->path) + sizeof ".json";
    char *path = malloc(bytes);
    if (!path)
        return false;
    snprintf(path, bytes, "%s.json", f->path);
    if (io_read_file(path, 4096, &data, &n, &e)) {
        if (!npy_side_parse(data, n, path, &side, &e))
            side.format = NG_F32; /* reading the file says what is wrong */
        free(data);
    }
    free(path);
    return !side.format;
}

/* One tensor, FILE or FILE=TYPE; --as is of a .npy that says no format. */
static int read_one_dump(const char *text, const struct file_name *f, ng_format as,
                         struct st_file *st)
{
    struct io_error e;
    const bool npy = ends_in(f->path, ".npy");
    if (as && f->type && ng_format_find(f->type) != as)
        return cli_fail(EXIT_USAGE, "--as %s contradicts %s", ng_format_info(as)->text, text);
    *st = (struct st_file){ .array = calloc(1, sizeof *st->array), .n_arrays = 1 };
    if (!st->array)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    if (!npy || f->type || !as)
        return array_load(text, NULL, holds_integers(f), &st->array[0]);
    return npy_read(f->path, as, false, &st->array[0], &e) ? 0 : cli_file_error(&e);
}

/* All tensors of a safetensors file, or the one that is named, whatever it holds. */
static int read_tensors(const struct file_name *f, struct st_file *st)
{
    struct io_error e;
    if (!st_read(f->path, st, &e))
        return cli_file_error(&e);
    const struct io_array *a = f->tensor ? st_find(st, f->tensor) : NULL;
    const char *why = a ? NULL : st_why(st, f->tensor);
    if (why || (f->tensor && !a))
        return cli_fail(EXIT_FILE, "%s%s tensor '%.60s'%s%s", f->path,
                        a || why ? ":" : " has no", f->tensor ? f->tensor : st->idle[0].name,
                        why ? ": " : "", why ? why : "");
    if (!f->tensor)
        return 0;
    const struct io_array kept = *a;
    st->array[a - st->array] = st->array[0];
    st->array[0] = kept;
    for (size_t i = 1; i < st->n_arrays; i++)
        io_array_free(&st->array[i]);
    st->n_arrays = 1;
    return 0;
}

/* The caller frees `st`. */
static int read_dump(const char *text, ng_format as, struct st_file *st)
{
    struct file_name f;
    *st = (struct st_file){ .n_arrays = 0 };
    int code = file_name_open(text, &f);
    if (!code)
        code = f.type || !is_safetensors(f.path) ? read_one_dump(text, &f, as, st)
                                                 : read_tensors(&f, st);
    file_name_close(&f);
    return code;
}

/* Both sides of a comparison must be the same kind of tensor. */
static int check_alike(const struct io_array *got, const struct io_array *want)
{
    const char *name = want->name[0] ? want->name : "tensor";
    if (got->format == want->format && got->item_bits == want->item_bits &&
        got->rank == want->rank &&
        memcmp(got->dim, want->dim, want->rank * sizeof *want->dim) == 0)
        return 0;
    return cli_fail(
        EXIT_REFUSED, "%s is %s %s in one file and %s %s in the other", name,
        io_type_name(got->format, got->item_bits), io_shape(got->rank, got->dim).text,
        io_type_name(want->format, want->item_bits), io_shape(want->rank, want->dim).text);
}

static uint64_t integer_at(const struct io_array *a, int64_t i)
{
    const size_t bytes = a->item_bits / 8;
    uint64_t v = 0;
    memcpy(&v, (const unsigned char *)a->data + (size_t)i * bytes, bytes);
    return v;
}

/* Plain integers differ or do not; there are no classes of that. */
static int compare_plain(const struct cli *cli, const struct io_array *got,
                         const struct io_array *want, const char *name, json_t *report,
                         int64_t *differ)
{
    const int64_t n = (int64_t)(want->bytes / (want->item_bits / 8));
    int64_t wrong = 0;
    ng_tensor t = { .rank = want->rank };
    json_t *list = json_array();
    char text[200];
    memcpy(t.dim, want->dim, sizeof t.dim);
    for (int64_t i = 0; i < n; i++)
        wrong += integer_at(got, i) != integer_at(want, i);
    if (!report && wrong)
        printf("%s: plain integers that differ, %lld of %lld\n", name, (long long)wrong,
               (long long)n);
    else if (!report)
        printf("%s: equal\n", name);
    for (int64_t i = 0, shown = 0; i < n && shown < wrong && shown < cli->max_report; i++) {
        const uint64_t g = integer_at(got, i), w = integer_at(want, i);
        if (g == w)
            continue;
        shown++;
        index_text(&t, i, text, sizeof text);
        if (!report)
            printf("  %-12s got %llu  want %llu\n", text, (unsigned long long)g,
                   (unsigned long long)w);
        json_array_append_new(list, json_pack("{s:o,s:I,s:I}", "index", index_json(&t, i),
                                              "got", (json_int_t)g, "want", (json_int_t)w));
    }
    *differ += wrong;
    if (report)
        json_array_append_new(report, json_pack("{s:o,s:b,s:I,s:I,s:O}", "name",
                                                text_json(name), "plain_integers_equal", !wrong,
                                                "elements", (json_int_t)n, "differ",
                                                (json_int_t)wrong, "mismatches", list));
    json_decref(list);
    return 0;
}

static int compare_arrays(const struct cli *cli, const struct io_array *got,
                          const struct io_array *want, json_t *report, int64_t *differ)
{
    ng_tensor g, w;
    struct comparison r;
    const char *name = want->name[0] ? want->name : got->name[0] ? got->name : "tensor";
    const int64_t one = 1;
    if (!want->format)
        return compare_plain(cli, got, want, name, report, differ);
    const uint32_t rank = want->rank ? want->rank : 1;
    if (ng_tensor_init(&g, got->format, got->data, rank, want->rank ? got->dim : &one) ||
        ng_tensor_init(&w, want->format, want->data, rank, want->rank ? want->dim : &one) ||
        !compare_tensors(&g, &w, &r))
        return cli_fail(EXIT_INTERNAL, "out of memory");
    *differ += r.differ;
    const struct one_case none = { .op = OP_QUANTIZE };
    if (report) {
        json_t *list = json_array(), *j = counts_json(&r);
        for (int64_t i = 0; i < r.differ && i < cli->max_report; i++)
            json_array_append_new(list, mismatch_json(cli, &none, &w, &r.diff[i]));
        json_object_set_new(j, "name", text_json(name));
        json_object_set_new(j, "mismatches", list);
        json_array_append_new(report, j);
    } else {
        printf("%s %s %s\n", name, io_type_name(want->format, want->item_bits),
               io_shape(want->rank, want->dim).text);
        print_counts("elements", &r);
        for (int64_t i = 0; i < r.differ && i < cli->max_report; i++)
            print_mismatch(cli, &none, &w, &r.diff[i]);
    }
    comparison_free(&r);
    return 0;
}

/* What one tensor of a file's several is compared with: that of its name, or a case's result.
 */
static const struct io_array *result_of(const struct st_file *st, const char *name)
{
    static const struct {
        const char *op, *result;
    } results[] = { { "dot", "d" },          { "gemm", "d" },      { "quantize", "dst" },
                    { "dequantize", "dst" }, { "convert", "dst" }, { "attention", "o" },
                    { "moe", "y" } };
    const char *op = st_meta_get(st, "ng.op");
    const struct io_array *a = name[0] ? st_find(st, name) : NULL;
    for (size_t i = 0; op && !a && i < sizeof results / sizeof results[0]; i++)
        if (strcmp(op, results[i].op) == 0)
            a = st_find(st, results[i].result);
    return a;
}

struct pair {
    const struct io_array *got, *want;
};

/* One tensor, and what it is compared with. */
static int pair_one(const struct st_file *got, const struct st_file *want, char **path,
                    struct pair *p)
{
    const bool one = got->n_arrays == 1;
    const struct st_file *other = one ? want : got;
    const struct io_array *a = one ? &got->array[0] : &want->array[0],
                          *b = other->n_arrays == 1 ? &other->array[0]
                                                    : result_of(other, a->name);
    if (!b)
        return cli_fail(EXIT_REFUSED,
                        "%s has 1 tensor but %s has %zu (%s); wanted: the name of one, "
                        "FILE.safetensors:NAME",
                        path[!one], path[one], other->n_arrays, st_names(other).text);
    *p = (struct pair){ one ? a : b, one ? b : a };
    return check_alike(p->got, p->want);
}

/* Each tensor by its name; p has room for all. */
static int pair_all(const struct st_file *got, const struct st_file *want, char **path,
                    struct pair *p)
{
    if (got->n_arrays != want->n_arrays)
        return cli_fail(EXIT_REFUSED, "%s has %zu tensors but %s has %zu", path[0],
                        got->n_arrays, path[1], want->n_arrays);
    int code = 0;
    for (size_t i = 0; i < want->n_arrays && !code; i++) {
        p[i] = (struct pair){ st_find(got, want->array[i].name), &want->array[i] };
        code = p[i].got ? check_alike(p[i].got, p[i].want)
                        : cli_fail(EXIT_REFUSED, "%s has no tensor '%s'", path[0],
                                   want->array[i].name);
    }
    return code;
}

/* The pairs are all found before anything is printed. */
static int compare_dumps(const struct cli *cli, const struct st_file *got,
                         const struct st_file *want, char **path, json_t *report,
                         int64_t *differ)
{
    const bool one =
        (got->n_arrays == 1 && want->n_arrays) || (want->n_arrays == 1 && got->n_arrays);
    const size_t n = one ? 1 : want->n_arrays;
    struct pair *p = calloc(n + 1, sizeof *p);
    if (!p)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    int code = one ? pair_one(got, want, path, p) : pair_all(got, want, path, p);
    for (size_t i = 0; i < n && !code; i++)
        code = compare_arrays(cli, p[i].got, p[i].want, report, differ);
    free(p);
    return code;
}

static int verify_dumps(const struct cli *cli, const struct options *opt, char **path)
{
    struct st_file got, want = { .n_arrays = 0 };
    int64_t differ = 0;
    json_t *report = cli->json ? json_array() : NULL;
    int code = read_dump(path[0], opt->as, &got);
    if (!code)
        code = read_dump(path[1], opt->as, &want);
    if (!code)
        code = compare_dumps(cli, &got, &want, path, report, &differ);
    st_free(&got);
    st_free(&want);
    if (code) {
        json_decref(report);
        return code;
    }
    if (cli->json)
        code = cli_print_json(json_pack("{s:s,s:o,s:I,s:s}", "schema", "ng.report/1", "tensors",
                                        report, "differ", (json_int_t)differ, "verdict",
                                        differ ? "differs" : "equal"));
    else
        printf("%s\n", differ ? "DIFFERS" : "EQUAL");
    return code ? code : differ ? EXIT_DIFFERS : EXIT_EQUAL;
}

enum {
    OPT_NO_EXPLAIN = OPT_OWN,
    OPT_SENSITIVITY,
    OPT_DUMPS,
    OPT_AS,
    OPT_SAMPLE,
    OPT_VERIFY_SET
};
static const struct option long_options[] = {
    CLI_OPTIONS,
    { "no-explain", no_argument, NULL, OPT_NO_EXPLAIN },
    { "sensitivity", no_argument, NULL, OPT_SENSITIVITY },
    { "dumps", no_argument, NULL, OPT_DUMPS },
    { "as", required_argument, NULL, OPT_AS },
    { "sample", required_argument, NULL, OPT_SAMPLE },
    { "set", required_argument, NULL, OPT_VERIFY_SET },
    { 0 }
};

static int take(void *to, int o, const char *v)
{
    struct options *const opt = to;
    uint64_t n = 0;
    switch (o) {
    case OPT_NO_EXPLAIN: opt->how.explain = false; return 0;
    case OPT_SENSITIVITY: opt->how.sensitivity = true; return 0;
    case OPT_DUMPS: opt->dumps = true; return 0;
    case OPT_VERIFY_SET: return settings_add(&opt->set, v);
    case OPT_SAMPLE:
        if (!parse_u64(v, &n) || n < 1 || n > 1 << 30)
            return cli_bad_value(long_options, o, v, "a number from 1 to 2^30");
        opt->how.sample = (int64_t)n;
        return 0;
    default:
        opt->as = ng_format_find(v);
        return opt->as ? 0
                       : cli_bad_value(long_options, o, v, "a format; ngauge info lists them");
    }
}

static int verify(struct cli *cli, int argc, char **argv, struct options *opt)
{
    const bool dumps = opt->dumps;
    if (!dumps && argc - optind == 2 && ends_in(argv[optind], ".npy") &&
        ends_in(argv[optind + 1], ".npy"))
        return cli_fail(EXIT_USAGE,
                        "two plain dumps are compared with --dumps: ngauge verify "
                        "--dumps %s %s",
                        argv[optind], argv[optind + 1]);
    if (opt->as && !dumps)
        return cli_fail(EXIT_USAGE, "--as says nothing to a case, which has its formats; it is "
                                    "of --dumps");
    if (dumps && (opt->how.sensitivity || opt->how.sample || !opt->how.explain))
        return cli_fail(EXIT_USAGE, "--%s says nothing to --dumps: no oracle is asked",
                        opt->how.sensitivity ? "sensitivity"
                        : opt->how.sample    ? "sample"
                                             : "no-explain");
    if (dumps && opt->set)
        return cli_fail(EXIT_USAGE, "--set says nothing to --dumps, which has no profile");
    if (dumps && argc - optind != 2)
        return cli_fail(EXIT_USAGE, "verify --dumps wants two files, GOT and WANT, not %d",
                        argc - optind);
    if (argc == optind)
        return cli_fail(EXIT_USAGE, "verify wants a CASE; see ngauge verify --help");
    int code = cli_open(cli);
    if (!code)
        code = dumps ? verify_dumps(cli, opt, argv + optind)
                     : verify_cases(cli, opt, argc - optind, argv + optind);
    cli_close(cli);
    return code;
}

int cmd_verify(int argc, char **argv)
{
    struct options opt = { .how = { .explain = true } };
    struct cli cli = { .threads = 1, .max_report = 5 };
    int code;
    if (cli_options(&cli, argc, argv,
                    &(struct cli_options){ CLI_SHORT, long_options, help, take, &opt }, &code))
        code = verify(&cli, argc, argv, &opt);
    json_decref(opt.set);
    return code;
}
