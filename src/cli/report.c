/* SPDX-License-Identifier: Apache-2.0 */
/* What reports of differences share: counts by class, and findings. docs/cli.md. */
#include "report.h"

json_t *code_json(ng_format format, uint32_t code)
{
    char text[16];
    ng_value v;
    (void)ng_decode(format, code, &v);
    snprintf(text, sizeof text, "0x%0*x", (int)(ng_format_info(format)->bits + 3) / 4,
             (unsigned)code);
    return json_pack("{s:s,s:s}", "code", text, "value", value_text(&v).text);
}

void index_text(const ng_tensor *t, int64_t number, char *text, size_t bytes)
{
    int64_t index[NG_MAX_RANK];
    size_t n = 0;
    index_of(t, number, index);
    for (uint32_t d = 0; d < t->rank && n < bytes; d++)
        n += (size_t)snprintf(text + n, bytes - n, "%s%lld", d ? ", " : "[",
                              (long long)index[d]);
    if (n < bytes)
        snprintf(text + n, bytes - n, "]");
}

void print_distance(const struct diff *d)
{
    if (d->cls == DIFF_FEW || (d->cls == DIFF_FAR && d->distance != INT64_MAX))
        printf("  %lld codes apart\n", (long long)d->distance);
    else
        printf("  %s\n", diff_class_text(d->cls));
}

/* ---- Counts. ---- */

void print_counts(const char *what, const struct comparison *r)
{
    printf("  %lld %s%s, %lld equal, %lld differ", (long long)r->n, what,
           r->number ? " (a sample)" : "", (long long)(r->n - r->differ), (long long)r->differ);
    if (r->differ)
        printf(" (%.2f %%)", 100.0 * (double)r->differ / (double)r->n);
    printf("\n");
    const char *comma = "    ";
    for (int i = 0; i < DIFF_CLASSES; i++)
        if (r->by_class[i]) {
            printf("%s%lld %s", comma, (long long)r->by_class[i],
                   diff_class_text((enum diff_class)i));
            comma = ", ";
        }
    if (r->differ)
        printf("\n");
}

json_t *counts_json(const struct comparison *r)
{
    json_t *classes = json_object();
    for (int i = 0; i < DIFF_CLASSES; i++)
        if (r->by_class[i])
            json_object_set_new(classes, diff_class_text((enum diff_class)i),
                                json_integer(r->by_class[i]));
    return json_pack("{s:I,s:b,s:I,s:o}", "elements", (json_int_t)r->n, "sample",
                     r->number != NULL, "differ", (json_int_t)r->differ, "classes", classes);
}

/* ---- Findings. ---- */

bool finding_is_certain(const struct finding *f)
{
    return f->explains == f->of && !f->breaks;
}

/* A tenth: a rule that changes every bit hits some of the chip's codes by chance. */
bool finding_is_close(const struct finding *f)
{
    const double explains = (double)f->explains / (double)(f->of ? f->of : 1),
                 breaks = (double)f->breaks / (double)(f->against ? f->against : 1);
    return explains >= 0.1 && explains >= 2 * breaks;
}

size_t findings_certain(const struct findings *f)
{
    size_t n = 0;
    while (n < f->n && finding_is_certain(&f->item[n]))
        n++;
    return n;
}

static void print_finding(const struct findings *f, const struct finding *x)
{
    printf("  %-40s explains %lld/%lld, breaks %lld/%lld%s\n", x->label, (long long)x->explains,
           (long long)x->of, (long long)x->breaks, (long long)x->against,
           x->all && !f->all ? " (of all)" : "");
}

static void print_verdict(const struct findings *f)
{
    const size_t certain = findings_certain(f);
    const struct finding *best = f->item;
    bool all = !f->beyond || f->all;
    for (size_t i = 0; i < certain; i++)
        all &= best[i].all;
    if (certain == 1)
        printf("verdict: %s explains every difference%s and breaks nothing\n", best->label,
               all ? "" : " that was looked at");
    else if (certain)
        printf("verdict: %zu rules explain every difference%s; this data does not tell them "
               "apart\n",
               certain + f->beyond, all ? "" : " that was looked at");
    else if (f->n && finding_is_close(best))
        printf("verdict: no rule tried explains everything; the best is %s\n", best->label);
    else
        printf("verdict: no rule tried explains the difference\n");
}

void print_findings(const struct cli *cli, const struct findings *f)
{
    const size_t certain = findings_certain(f);
    const bool some = certain || (f->n && finding_is_close(&f->item[0]));
    size_t shown = certain ? certain : cli->verbose ? f->n : 5;
    if (shown > f->n)
        shown = f->n;
    if (shown > 6 && !cli->verbose)
        shown = 6;
    printf("explain: %lld rules tried (%lld do not apply) on %lld differing and %lld equal "
           "elements%s\n",
           (long long)f->tried, (long long)f->refused, (long long)f->differ,
           (long long)f->equal, f->all ? " (all of them)" : " (a sample)");
    for (size_t i = 0; i < shown; i++)
        print_finding(f, &f->item[i]);
    if (some && f->item[0].divergence[0])
        printf("  first difference under %s:\n    %s\n", f->item[0].label,
               f->item[0].divergence);
    if (some && f->item[0].left[0])
        printf("  first that %s leaves: %s\n", f->item[0].label, f->item[0].left);
    print_verdict(f);
}

json_t *findings_json(const struct findings *f)
{
    json_t *list = json_array();
    for (size_t i = 0; i < f->n; i++) {
        const struct finding *x = &f->item[i];
        json_t *j =
            json_pack("{s:s,s:I,s:I,s:I,s:I,s:b}", "rule", x->label, "explains",
                      (json_int_t)x->explains, "of", (json_int_t)x->of, "breaks",
                      (json_int_t)x->breaks, "against", (json_int_t)x->against, "all", x->all);
        if (x->left[0])
            json_object_set_new(j, "left", json_string(x->left));
        if (x->divergence[0])
            json_object_set_new(j, "divergence", json_string(x->divergence));
        json_array_append_new(list, j);
    }
    return json_pack("{s:I,s:I,s:b,s:I,s:o}", "tried", (json_int_t)f->tried, "refused",
                     (json_int_t)f->refused, "all", f->all, "certain",
                     (json_int_t)(findings_certain(f) + f->beyond), "findings", list);
}

void print_sensitivity(const struct findings *f)
{
    printf("sensitivity: elements of %lld%s that would notice a wrong rule\n",
           (long long)f->equal, f->all ? "" : " (a sample)");
    for (size_t i = 0; i < f->n; i++)
        printf("  %-40s %lld\n", f->item[i].label, (long long)f->item[i].explains);
}

json_t *sensitivity_json(const struct findings *f)
{
    json_t *j = json_object();
    for (size_t i = 0; i < f->n; i++)
        json_object_set_new(j, f->item[i].label, json_integer(f->item[i].explains));
    return json_pack("{s:I,s:b,s:o}", "elements", (json_int_t)f->equal, "all", f->all, "notice",
                     j);
}

int verify_total(const struct cli *cli, json_t *report, int64_t cases, int64_t elements,
                 int64_t differ, double seconds)
{
    const char *verdict = differ ? "differs" : "equal";
    int code = 0;
    if (cli->json)
        code = cli_print_json(json_pack("{s:s,s:s,s:o,s:I,s:I,s:I,s:f,s:s}", "schema",
                                        "ng.report/1", "version", ng_version(), "cases", report,
                                        "n_cases", (json_int_t)cases, "elements",
                                        (json_int_t)elements, "differ", (json_int_t)differ,
                                        "seconds", seconds, "verdict", verdict));
    else
        printf("%s: %lld case%s, %lld elements, %lld differ (oracle %.2f s)\n",
               differ ? "DIFFERS" : "EQUAL", (long long)cases, cases == 1 ? "" : "s",
               (long long)elements, (long long)differ, seconds);
    return code ? code : differ ? EXIT_DIFFERS : EXIT_EQUAL;
}
