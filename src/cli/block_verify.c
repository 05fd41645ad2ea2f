/* SPDX-License-Identifier: Apache-2.0 */
/* Results of many against their dumps: comparing, reporting. block.h. */
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "report.h"

/* All results with their differences. */
struct outcome {
    struct operand want[BLOCK_TENSORS];
    struct comparison of[BLOCK_TENSORS];
    struct findings found, notice;
    bool explained, has_notice;
    int64_t *row, rows; /* of a sample; NULL: all */
    const char *whole;  /* why no sample was taken that was asked for, or NULL */
    int64_t elements, differ;
    double seconds;
};

/* Integers differ or do not; there are no classes of that. Elements number[0..n), or all that
 * there are, and what is wanted of them, one after another. */
static bool compare_integers(const struct operand *got, const struct operand *want,
                             int64_t *number, struct comparison *r)
{
    *r = (struct comparison){ .n = block_elements(want), .number = number };
    r->diff = calloc((size_t)r->n, sizeof *r->diff);
    for (int64_t i = 0; r->diff && i < r->n; i++) {
        const int64_t at = number ? number[i] : i;
        const uint64_t g = block_code(got, at), w = block_code(want, i);
        if (g == w)
            continue;
        r->diff[r->differ++] = (struct diff){ .index = at,
                                              .got = (uint32_t)g,
                                              .want = (uint32_t)w,
                                              .cls = DIFF_FAR,
                                              .distance = INT64_MAX };
        r->by_class[DIFF_FAR]++;
    }
    return r->diff != NULL;
}

/* Result i, of which `want` holds the rows of a sample. */
static bool compare_rows(const struct one_case *c, size_t i, const struct operand *want,
                         const struct outcome *o, struct comparison *r)
{
    const struct operand *got = &c->block->t[i];
    const int64_t n = block_elements(want), width = block_width(want, o->rows);
    int64_t *number = malloc((size_t)n * sizeof *number);
    uint32_t *code = malloc((size_t)n * sizeof *code);
    bool ok = number && code;
    for (int64_t k = 0; ok && k < n; k++) {
        number[k] = o->row[k / width] * width + k % width;
        code[k] = (uint32_t)block_code(want, k);
    }
    if (!ok)
        free(number);
    else if (c->block->kind->tensor[i].integers)
        ok = compare_integers(got, want, number, r);
    else
        ok = compare_sample(&got->view, number, code, n, r);
    free(code);
    return ok;
}

static bool compare_result(const struct one_case *c, size_t i, struct outcome *r)
{
    const struct operand *got = &c->block->t[i], *want = &r->want[i];
    if (r->row)
        return compare_rows(c, i, want, r, &r->of[i]);
    return c->block->kind->tensor[i].integers
               ? compare_integers(got, want, NULL, &r->of[i])
               : compare_tensors(&got->view, &want->view, &r->of[i]);
}

/* The rows of a sample, if one is asked for and can be had. False: out of memory. */
static bool draw_rows(const struct cli *cli, const struct verify_options *opt,
                      const struct one_case *c, struct outcome *r)
{
    const char *why;
    const int64_t rows = opt->sample ? c->block->kind->rows(c, &why) : 0;
    if (opt->sample && !rows)
        r->whole = why;
    if (opt->sample >= rows)
        return true;
    r->rows = opt->sample;
    r->row = draw_sample(cli->seed, rows, opt->sample);
    return r->row != NULL;
}

/* The oracle's results: of all, or of a sample's rows. */
static int compute_results(const struct cli *cli, const struct one_case *c, const char *where,
                           struct outcome *r)
{
    const char *why;
    struct block_part p = { .n = 0 };
    const struct one_case *what = r->row ? &p.c : c;
    struct operand all[BLOCK_TENSORS];
    int code = r->row ? block_alloc(c, all) : 0; /* the dump's shapes */
    if (!code && r->row) {
        block_free_results(all);
        if (!block_part_open(&p, cli, c, r->row, r->rows, c->block->kind->rows(c, &why)))
            code = cli_fail(EXIT_INTERNAL, "out of memory");
    }
    if (!code)
        code = block_alloc(what, r->want);
    const ng_status s = code ? NG_OK : c->block->kind->compute(cli->ctx, what, r->want);
    block_part_close(&p);
    return s ? cli_refused(cli, s, where) : code;
}

static int compare_results(const struct cli *cli, const struct verify_options *opt,
                           struct one_case *c, const char *where, struct outcome *r)
{
    const double start = seconds_now();
    if (!draw_rows(cli, opt, c, r))
        return cli_fail(EXIT_INTERNAL, "out of memory");
    const int code = compute_results(cli, c, where, r);
    if (code)
        return code;
    r->seconds = seconds_now() - start;
    for (size_t i = 0; i < c->block->kind->n; i++) {
        if (!r->want[i].present)
            continue;
        if (!compare_result(c, i, r))
            return cli_fail(EXIT_INTERNAL, "out of memory");
        r->elements += r->of[i].n;
        r->differ += r->of[i].differ;
    }
    return 0;
}

static ng_tensor shape_of(const struct operand *o)
{
    ng_tensor t = { .rank = o->data.rank };
    memcpy(t.dim, o->data.dim, sizeof t.dim);
    return t;
}

void block_place_text(const struct operand *o, int64_t number, char *text, size_t bytes)
{
    const ng_tensor t = shape_of(o);
    index_text(&t, number, text, bytes);
}

/* The row of the main result that was computed last. */
struct truth {
    int64_t row, work; /* work: done for all rows so far */
    bool looked, there;
    uint32_t f32[BLOCK_ROW];
};

/* The real number behind element `number` of result i, as text: rounded once, to FP32. */
static bool exact_text(const struct cli *cli, const struct one_case *c, size_t i,
                       int64_t number, struct truth *t, struct code_text *text)
{
    const struct block_kind *kind = c->block->kind;
    const struct io_array *a = &c->block->t[i].data;
    ng_value v;
    if (!kind->exact || i != kind->main_result || !a->rank)
        return false;
    const int64_t width = kind->alone ? 1 : a->dim[a->rank - 1], row = number / width;
    if (width > BLOCK_ROW)
        return false;
    if (!t->looked || t->row != row) {
        t->there = kind->exact(cli, c, row, &t->work, t->f32);
        t->looked = true;
        t->row = row;
    }
    if (!t->there || ng_decode(NG_F32, t->f32[number % width], &v))
        return false;
    *text = value_text(&v);
    return true;
}

static void print_difference(const struct cli *cli, const struct one_case *c, size_t i,
                             const struct diff *d, struct truth *truth)
{
    const struct operand *o = &c->block->t[i];
    struct code_text exact;
    char at[128];
    block_place_text(o, d->index, at, sizeof at);
    if (!o->data.format) {
        printf("    %-14s got %d  want %d\n", at, (int)(int32_t)d->got, (int)(int32_t)d->want);
        return;
    }
    printf("    %-14s got %s  want %s", at, code_text(o->data.format, d->got).text,
           code_text(o->data.format, d->want).text);
    print_distance(d);
    if (exact_text(cli, c, i, d->index, truth, &exact))
        printf("    %-14s exact result %s, to FP32\n", "", exact.text);
}

static json_t *difference_json(const struct cli *cli, const struct one_case *c, size_t i,
                               const struct diff *d, struct truth *truth)
{
    const struct operand *o = &c->block->t[i];
    const ng_tensor t = shape_of(o);
    struct code_text exact;
    json_t *at = index_json(&t, d->index);
    if (!o->data.format)
        return json_pack("{s:o,s:I,s:I}", "index", at, "got", (json_int_t)(int32_t)d->got,
                         "want", (json_int_t)(int32_t)d->want);
    json_t *j = json_pack(
        "{s:o,s:o,s:o,s:s,s:o}", "index", at, "got", code_json(o->data.format, d->got), "want",
        code_json(o->data.format, d->want), "class", diff_class_text(d->cls), "codes",
        d->distance == INT64_MAX ? json_null() : json_integer(d->distance));
    if (exact_text(cli, c, i, d->index, truth, &exact))
        json_object_set_new(j, "exact", json_string(exact.text));
    return j;
}

static void print_outcome(const struct cli *cli, const struct one_case *c,
                          const struct outcome *r)
{
    struct truth truth = { .looked = false };
    printf("%s%s", c->name, c->name[0] ? ": " : "");
    block_print_head(cli, c);
    if (r->whole)
        printf("  no sample, all was computed: %s\n", r->whole);
    for (size_t i = 0; i < c->block->kind->n; i++) {
        char what[80];
        if (!r->want[i].present)
            continue;
        snprintf(what, sizeof what, "elements of %s", c->block->kind->tensor[i].name);
        print_counts(what, &r->of[i]);
        for (int64_t k = 0; k < r->of[i].differ && k < cli->max_report; k++)
            print_difference(cli, c, i, &r->of[i].diff[k], &truth);
    }
    if (r->explained)
        print_findings(cli, &r->found);
    if (r->has_notice)
        print_sensitivity(&r->notice);
}

static json_t *outcome_json(const struct cli *cli, const char *where, const struct one_case *c,
                            const struct outcome *r)
{
    char text[4096], what[1200], hash[16];
    struct truth truth = { .looked = false };
    json_t *results = json_object();
    block_describe(c, what, sizeof what);
    block_line(c, text, sizeof text);
    json_t *j = json_pack("{s:o,s:o,s:s,s:s,s:s,s:f}", "case", text_json(where), "name",
                          text_json(c->name), "op", op_text(c->op), "what", what, "parameters",
                          text, "seconds", r->seconds);
    block_weakest(c, text, sizeof text);
    json_object_set_new(j, "evidence", json_string(text));
    if (c->profile) {
        snprintf(hash, sizeof hash, "%08x", (unsigned)ng_profile_hash(c->profile));
        json_object_set_new(j, "profile", json_string(c->profile->name));
        json_object_set_new(j, "profile_hash", json_string(hash));
    }
    for (size_t i = 0; i < c->block->kind->n; i++) {
        if (!r->want[i].present)
            continue;
        json_t *one = counts_json(&r->of[i]), *list = json_array();
        for (int64_t k = 0; k < r->of[i].differ && k < cli->max_report; k++)
            json_array_append_new(list, difference_json(cli, c, i, &r->of[i].diff[k], &truth));
        json_object_set_new(one, "mismatches", list);
        json_object_set_new(results, c->block->kind->tensor[i].name, one);
    }
    json_object_set_new(j, "results", results);
    if (r->whole)
        json_object_set_new(j, "no_sample", json_string(r->whole));
    if (r->explained)
        json_object_set_new(j, "explain", findings_json(&r->found));
    if (r->has_notice)
        json_object_set_new(j, "sensitivity", sensitivity_json(&r->notice));
    return j;
}

/* What the options ask of the differences and of the data. */
static int look_closer(const struct cli *cli, const struct verify_options *opt,
                       const struct one_case *c, struct outcome *r)
{
    struct block_looked l = { .want = r->want, .row = r->row, .n = r->rows };
    const size_t main_result = c->block->kind->main_result;
    int code = 0;
    if (r->differ && opt->explain) {
        l.only = main_result && r->of[main_result].differ ? main_result : 0;
        code = block_explain(cli, c, &l, &r->found);
        r->explained = !code;
    }
    if (!code && opt->sensitivity) {
        l.only = main_result;
        code = block_notice(cli, c, &l, &r->notice);
        r->has_notice = !code;
    }
    return code;
}

int block_verify(const struct cli *cli, const struct verify_options *opt, struct one_case *c,
                 const char *where, json_t *report, int64_t *elements, int64_t *differ,
                 double *seconds)
{
    struct outcome *r = calloc(1, sizeof *r);
    if (!r)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    int code = compare_results(cli, opt, c, where, r);
    if (!code)
        code = look_closer(cli, opt, c, r);
    if (!code && report)
        json_array_append_new(report, outcome_json(cli, where, c, r));
    else if (!code)
        print_outcome(cli, c, r);
    *elements += r->elements;
    *differ += r->differ;
    *seconds += r->seconds;
    for (size_t i = 0; i < BLOCK_TENSORS; i++)
        comparison_free(&r->of[i]);
    block_free_results(r->want);
    findings_free(&r->found);
    findings_free(&r->notice);
    free(r->row);
    free(r);
    return code;
}

int block_verify_alone(const struct cli *cli, struct one_case *c)
{
    const struct verify_options opt = { .explain = true };
    json_t *report = cli->json ? json_array() : NULL;
    int64_t elements = 0, differ = 0;
    double seconds = 0;
    int code = block_verify(cli, &opt, c, "command line", report, &elements, &differ, &seconds);
    if (!code)
        code = verify_total(cli, report, 1, elements, differ, seconds);
    else
        json_decref(report);
    return code;
}
