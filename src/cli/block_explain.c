/* SPDX-License-Identifier: Apache-2.0 */
/* What explains the differences of a block, and what its data would notice. block.h, search.h.
 */
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "report.h"

/* The rows that are looked at, and the first of them alone. */
enum {
    ALL,
    FEW,
    PARTS
};

struct trial {
    const struct cli *cli;
    const struct block_kind *kind;
    struct block_looked looked; /* what the report compared: */
    const struct one_case *all; /* all results of this */
    bool some;                  /* of which not all are looked at */
    struct one_case c;          /* the case, without results that are not looked at */
    struct block b;
    struct search search;
    struct sample sample;
    int64_t *row;     /* of the case; differing ones first */
    int64_t *place;   /* where `want` has them */
    int64_t n, n_few; /* n 0: rows cannot be computed alone; n_few 0: no second part */
    size_t few;       /* differing elements of the first rows */
    bool whole;       /* rows: all that there are */
    struct block_part part[PARTS];
    const struct one_case *of[PARTS]; /* what is computed */
    struct operand made[PARTS][BLOCK_TENSORS], want[BLOCK_TENSORS];
    int64_t first[BLOCK_TENSORS + 1]; /* number of each result's first element */
};

/* ---- Which rows. ---- */

/* Marks rows of `want` that differ from the dump's; how many. */
static int64_t mark_bad(const struct trial *t, const struct operand *want, const int64_t *row,
                        int64_t n, char *bad)
{
    int64_t all = 0, n_bad = 0;
    const char *why;
    all = t->kind->rows(&t->c, &why);
    for (size_t i = 0; i < t->kind->n; i++) {
        const struct operand *dump = &t->b.t[i];
        if (!block_is_result(t->kind, i) || !dump->present)
            continue;
        const int64_t width = block_width(dump, all);
        for (int64_t k = 0; k < n * width; k++) {
            const int64_t at = k / width;
            if (!bad[at] && block_code(&want[i], k) !=
                                block_code(dump, (row ? row[at] : at) * width + k % width)) {
                bad[at] = 1;
                n_bad++;
            }
        }
    }
    return n_bad;
}

/*
 * Rows that differ, evenly, then as many that do not. `have`: the n rows of the case that
 * `want` holds; NULL: all. `differing`: false, where all rows are taken for equal.
 */
static bool choose(struct trial *t, const struct operand *want, const int64_t *have, int64_t n,
                   bool differing)
{
    int64_t room = t->kind->room(&t->c);
    char *bad = calloc((size_t)n, 1);
    if (!differing)
        room *= 4; /* every rule is tried once, and no pairs */
    t->row = calloc((size_t)(2 * room), sizeof *t->row);
    t->place = calloc((size_t)(2 * room), sizeof *t->place);
    const bool ok = bad && t->row && t->place;
    const int64_t n_bad = ok && differing ? mark_bad(t, want, have, n, bad) : 0;
    for (int wrong = 1; ok && wrong >= 0; wrong--) {
        const int64_t all = wrong ? n_bad : n - n_bad, wanted = all < room ? all : room;
        for (int64_t i = 0, seen = 0, taken = 0; i < n && taken < wanted; i++)
            if (bad[i] == wrong && seen++ * wanted / all == taken) {
                t->place[t->n] = i;
                t->row[t->n++] = have ? have[i] : i;
                taken++;
            }
        if (wrong && wanted)
            t->n_few = 1 + wanted / 8;
    }
    t->whole = !have && t->n == n;
    free(bad);
    return ok;
}

/* ---- Their elements. ---- */

static uint32_t code_of(const struct trial *t, const struct operand *o, int64_t number)
{
    size_t i = 0;
    while (number >= t->first[i + 1])
        i++;
    return (uint32_t)block_code(&o[i], number - t->first[i]);
}

static void take_element(struct trial *t, int64_t number, bool differing)
{
    struct sample *s = &t->sample;
    const uint32_t want = code_of(t, t->want, number),
                   got = differing ? code_of(t, t->of[ALL]->block->t, number) : want;
    const size_t at = s->differ + s->equal;
    s->number[at] = number;
    s->got[at] = got;
    s->want[at] = want;
}

/* Row by row, so that the first elements are those of the first rows. */
static bool take_elements(struct trial *t, bool differing)
{
    const int64_t rows = t->n ? t->n : 1;
    struct sample *s = &t->sample;
    for (size_t i = 0; i < t->kind->n; i++)
        t->first[i + 1] = t->first[i] + (t->want[i].present ? block_elements(&t->want[i]) : 0);
    if (!sample_alloc(s, (size_t)t->first[t->kind->n]))
        return false;
    for (int wrong = 1; wrong >= 0; wrong--)
        for (int64_t r = 0; r < rows; r++) {
            for (size_t i = 0; i < t->kind->n; i++) {
                const int64_t width = (t->first[i + 1] - t->first[i]) / rows;
                for (int64_t k = t->first[i] + r * width; k < t->first[i] + (r + 1) * width;
                     k++) {
                    take_element(t, k, differing);
                    const size_t at = s->differ + s->equal;
                    if ((s->got[at] != s->want[at]) == wrong)
                        *(wrong ? &s->differ : &s->equal) += 1;
                }
            }
            if (wrong && r < t->n_few)
                t->few = s->differ;
        }
    s->all = (!t->n || t->whole) && !t->some;
    return true;
}

/* ---- Hypotheses. ---- */

static bool evaluate(void *of, const struct hypothesis *h, const int64_t *number, size_t n,
                     uint32_t *code)
{
    struct trial *t = of;
    const int part = t->n_few && n <= t->few ? FEW : ALL;
    struct one_case v = *t->of[part];
    struct block b = *v.block;
    v.block = &b;
    for (int i = 0; i < h->n; i++)
        if (!t->kind->apply(&v, h->edit[i]))
            return false;
    if (t->kind->compute(t->cli->ctx, &v, t->made[part]))
        return false;
    for (size_t i = 0; i < n; i++)
        code[i] = code_of(t, t->made[part], number[i]);
    return true;
}

/* ---- A hypothesis on all that the report compared. ---- */

/* Elements of result i; `want` and `made` have the rows that `c` computes, one after another.
 */
static void count_result(const struct trial *t, const struct one_case *c, size_t i,
                         const struct operand *made, struct finding *f)
{
    const struct operand *dump = &c->block->t[i], *want = &t->looked.want[i];
    const int64_t n = block_elements(want),
                  width = t->looked.row ? block_width(want, t->looked.n) : 0;
    for (int64_t k = 0; k < n; k++) {
        const uint64_t got = block_code(dump, k), code = block_code(made, k);
        char at[128];
        if (!finding_count(f, got, block_code(want, k), code))
            continue;
        const int64_t number = width ? t->looked.row[k / width] * width + k % width : k;
        block_place_text(&t->b.t[i], number, at, sizeof at);
        if (dump->data.format)
            snprintf(f->left, sizeof f->left, "%s %s got %s, under the rule %s",
                     t->kind->tensor[i].name, at,
                     code_text(dump->data.format, (uint32_t)got).text,
                     code_text(dump->data.format, (uint32_t)code).text);
        else
            snprintf(f->left, sizeof f->left, "%s %s got %d, under the rule %d",
                     t->kind->tensor[i].name, at, (int)(int32_t)got, (int)(int32_t)code);
    }
}

static bool confirm(void *of, const struct hypothesis *h, struct finding *f)
{
    const struct trial *t = of;
    const char *why;
    struct block_part p = { .n = 0 };
    struct operand made[BLOCK_TENSORS] = { 0 };
    if (t->looked.row && !block_part_open(&p, t->cli, t->all, t->looked.row, t->looked.n,
                                          t->kind->rows(t->all, &why)))
        return false;
    struct one_case v = t->looked.row ? p.c : *t->all;
    struct block b = *v.block;
    const struct one_case dump = v;
    bool ok = block_alloc(&v, made) == 0;
    v.block = &b;
    for (int i = 0; ok && i < h->n; i++)
        ok = t->kind->apply(&v, h->edit[i]);
    ok = ok && t->kind->compute(t->cli->ctx, &v, made) == NG_OK;
    for (size_t i = 0; ok && i < t->kind->n; i++)
        if (made[i].present)
            count_result(t, &dump, i, &made[i], f);
    block_free_results(made);
    block_part_close(&p);
    return ok;
}

/* Elements of the main result are rows there. */
static void divergence(void *of, const struct hypothesis *h, int64_t number, char *text,
                       size_t bytes)
{
    const struct trial *t = of;
    struct one_case v = *t->all;
    struct block b = *v.block;
    const int64_t at = number - t->first[t->kind->main_result];
    bool ok = true;
    v.block = &b;
    for (int i = 0; ok && i < h->n; i++)
        ok = t->kind->apply(&v, h->edit[i]);
    text[0] = 0;
    if (ok)
        t->kind->parts(t->cli, t->all, &v, t->n ? t->row[at] : at, text, bytes);
}

static void trial_close(struct trial *t)
{
    for (int i = 0; i < PARTS; i++) {
        block_part_close(&t->part[i]);
        block_free_results(t->made[i]);
    }
    if (t->n)
        block_free_results(t->want);
    sample_free(&t->sample);
    free(t->row);
    free(t->place);
    free(t);
}

/* What is computed, and the oracle's results of it. */
static bool open_parts(struct trial *t, const struct operand *want, int64_t n_want)
{
    const char *why;
    const int64_t rows = t->n ? t->kind->rows(&t->c, &why) : 0;
    if (!t->n) {
        t->of[ALL] = &t->c;
        memcpy(t->want, want, sizeof t->want);
        for (size_t i = 0; i < t->kind->n; i++)
            t->want[i].present = t->want[i].present && t->b.t[i].present;
        return block_alloc(&t->c, t->made[ALL]) == 0;
    }
    for (int i = 0; i < PARTS; i++) {
        t->of[i] = &t->part[i].c;
        if ((i == ALL || t->n_few) && (!block_part_open(&t->part[i], t->cli, &t->c, t->row,
                                                        i == ALL ? t->n : t->n_few, rows) ||
                                       block_alloc(t->of[i], t->made[i])))
            return false;
    }
    return block_gather(t->of[ALL], want, t->place, t->n, n_want, t->want);
}

/* `differing`: the dump is looked at, too. */
static struct trial *trial_open(const struct cli *cli, const struct one_case *c,
                                const struct block_looked *l, bool differing)
{
    struct trial *t = calloc(1, sizeof *t);
    const char *why;
    if (!t)
        return NULL;
    t->cli = cli;
    t->kind = c->block->kind;
    t->looked = *l;
    t->all = c;
    t->c = *c;
    t->b = *c->block;
    t->c.block = &t->b;
    if (l->only)
        for (size_t i = 0; i < t->kind->n; i++)
            if (block_is_result(t->kind, i) && i != l->only) {
                t->some |= t->b.t[i].present;
                t->b.t[i].present = false;
            }
    const int64_t rows = t->kind->rows(&t->c, &why), n_want = l->row ? l->n : rows;
    bool ok = !rows || choose(t, l->want, l->row, n_want, differing);
    ok = ok && open_parts(t, l->want, n_want) && take_elements(t, differing);
    t->search = (struct search){ .cli = cli,
                                 .of = t,
                                 .evaluate = evaluate,
                                 .confirm = confirm,
                                 .divergence = t->kind->parts ? divergence : NULL,
                                 .hides_others = t->kind->hides_others,
                                 .hide_always = t->kind->cheap,
                                 .first_look = SIZE_MAX,
                                 .pair_look = t->n_few ? t->few : SIZE_MAX };
    t->kind->edits(&t->c, &t->search);
    if (ok)
        return t;
    trial_close(t);
    return NULL;
}

int block_explain(const struct cli *cli, const struct one_case *c, const struct block_looked *l,
                  struct findings *out)
{
    struct trial *t = trial_open(cli, c, l, true);
    *out = (struct findings){ .n = 0 };
    const bool ok = t && search_explain(&t->search, &t->sample, out);
    if (t)
        trial_close(t);
    return ok ? 0 : cli_fail(EXIT_INTERNAL, "out of memory");
}

int block_notice(const struct cli *cli, const struct one_case *c, const struct block_looked *l,
                 struct findings *out)
{
    struct trial *t = trial_open(cli, c, l, false);
    *out = (struct findings){ .n = 0 };
    const bool ok = t && search_notice(&t->search, &t->sample, out);
    if (t)
        trial_close(t);
    return ok ? 0 : cli_fail(EXIT_INTERNAL, "out of memory");
}
