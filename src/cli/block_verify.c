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
    struct findings found;
    bool explained;
    int64_t elements, differ;
    double seconds;
};

/* Integers differ or do not; there are no classes of that. */
static bool compare_integers(const struct operand *got, const struct operand *want,
                             struct comparison *r)
{
    *r = (struct comparison){ .n = block_elements(want) };
    r->diff = calloc((size_t)r->n, sizeof *r->diff);
    for (int64_t i = 0; r->diff && i < r->n; i++) {
        const uint64_t g = block_code(got, i), w = block_code(want, i);
        if (g == w)
            continue;
        r->diff[r->differ++] = (struct diff){ .index = i,
                                              .got = (uint32_t)g,
                                              .want = (uint32_t)w,
                                              .cls = DIFF_FAR,
                                              .distance = INT64_MAX };
        r->by_class[DIFF_FAR]++;
    }
    return r->diff != NULL;
}

static int compare_results(const struct cli *cli, struct one_case *c, const char *where,
                           struct outcome *r)
{
    const struct block *b = c->block;
    const double start = seconds_now();
    int code = block_alloc(c, r->want);
    if (code)
        return code;
    const ng_status s = b->kind->compute(cli->ctx, c, r->want);
    if (s)
        return cli_refused(cli, s, where);
    r->seconds = seconds_now() - start;
    for (size_t i = 0; i < b->kind->n; i++) {
        if (!r->want[i].present)
            continue;
        if (!(b->kind->tensor[i].integers
                  ? compare_integers(&b->t[i], &r->want[i], &r->of[i])
                  : compare_tensors(&b->t[i].view, &r->want[i].view, &r->of[i])))
            return cli_fail(EXIT_INTERNAL, "out of memory");
        r->elements += r->of[i].n;
        r->differ += r->of[i].differ;
    }
    return 0;
}

static void place_of(const struct io_array *a, int64_t number, char *text, size_t bytes)
{
    ng_tensor t = { .rank = a->rank };
    memcpy(t.dim, a->dim, sizeof t.dim);
    index_text(&t, number, text, bytes);
}

static void print_difference(const struct operand *o, const struct diff *d)
{
    char at[128];
    place_of(&o->data, d->index, at, sizeof at);
    if (o->data.format)
        printf("    %-14s got %s  want %s  %s\n", at, code_text(o->data.format, d->got).text,
               code_text(o->data.format, d->want).text, diff_class_text(d->cls));
    else
        printf("    %-14s got %d  want %d\n", at, (int)(int32_t)d->got, (int)(int32_t)d->want);
}

static json_t *difference_json(const struct operand *o, const struct diff *d)
{
    char at[128];
    place_of(&o->data, d->index, at, sizeof at);
    if (!o->data.format)
        return json_pack("{s:s,s:I,s:I}", "index", at, "got", (json_int_t)(int32_t)d->got,
                         "want", (json_int_t)(int32_t)d->want);
    return json_pack("{s:s,s:o,s:o,s:s}", "index", at, "got", code_json(o->data.format, d->got),
                     "want", code_json(o->data.format, d->want), "class",
                     diff_class_text(d->cls));
}

static void print_outcome(const struct cli *cli, const struct one_case *c,
                          const struct outcome *r)
{
    printf("%s%s", c->name, c->name[0] ? ": " : "");
    block_print_head(c);
    for (size_t i = 0; i < c->block->kind->n; i++) {
        char what[80];
        if (!r->want[i].present)
            continue;
        snprintf(what, sizeof what, "elements of %s", c->block->kind->tensor[i].name);
        print_counts(what, &r->of[i]);
        for (int64_t k = 0; k < r->of[i].differ && k < cli->max_report; k++)
            print_difference(&r->want[i], &r->of[i].diff[k]);
    }
    if (r->explained)
        print_findings(cli, &r->found);
}

static json_t *outcome_json(const struct cli *cli, const char *where, const struct one_case *c,
                            const struct outcome *r)
{
    char text[4096], what[1200], hash[16];
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
            json_array_append_new(list, difference_json(&r->want[i], &r->of[i].diff[k]));
        json_object_set_new(one, "mismatches", list);
        json_object_set_new(results, c->block->kind->tensor[i].name, one);
    }
    json_object_set_new(j, "results", results);
    if (r->explained)
        json_object_set_new(j, "explain", findings_json(&r->found));
    return j;
}

static int by_merit(const void *x, const void *y)
{
    const struct finding *a = x, *b = y;
    if (a->explains - a->breaks != b->explains - b->breaks)
        return a->explains - a->breaks < b->explains - b->breaks ? 1 : -1;
    return strcmp(a->label, b->label);
}

/* Those that explain something, best first. */
static void rank(struct findings *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++)
        if (f->item[i].explains)
            f->item[n++] = f->item[i];
    f->n = n;
    qsort(f->item, n, sizeof *f->item, by_merit);
}

int block_verify(const struct cli *cli, struct one_case *c, bool explain, const char *where,
                 json_t *report, int64_t *elements, int64_t *differ, double *seconds)
{
    struct outcome *r = calloc(1, sizeof *r);
    if (!r)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    int code = compare_results(cli, c, where, r);
    if (!code && r->differ && explain) {
        code = c->block->kind->explain(cli, c, r->want, &r->found);
        r->explained = !code;
        rank(&r->found);
    }
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
    free(r);
    return code;
}

int block_verify_alone(const struct cli *cli, struct one_case *c)
{
    json_t *report = cli->json ? json_array() : NULL;
    int64_t elements = 0, differ = 0;
    double seconds = 0;
    int code = block_verify(cli, c, true, "command line", report, &elements, &differ, &seconds);
    if (!code)
        code = verify_total(cli, report, 1, elements, differ, seconds);
    else
        json_decref(report);
    return code;
}
