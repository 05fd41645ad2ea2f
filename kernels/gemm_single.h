/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of single products (lanes = 1, lane_sum = chain) by gemm_fma.h. */
#ifndef NG_KERNELS_GEMM_SINGLE_H
#define NG_KERNELS_GEMM_SINGLE_H

/* B may lie where it is. */
#define FMA_MORE .lies = lies, .note = note, .tile_lying = tile_lying
#include "gemm_fma.h"

static const char *refuses(const struct gemm_job *g)
{
    return fma_refuses(g, false);
}

FMA_RUNNERS(words, false, WAY_FMA)
FMA_RUNNERS(pairs, true, WAY_FMA)

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const gemm_runners[2][MR] = { FMA_LINE(words), FMA_LINE(pairs) };
    return gemm_runners[fma_pairs(f->g)][t->rows - 1];
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    return fma_tile(g, w, t, pick, true);
}

/* ---- B where it lies. ---- */

static bool lies(const struct gemm_job *g)
{
    return !rule_pieces(g) && rule_step_of(g) == STEP_FMA && g->mode != NG_MODE_MX &&
           g->b.spec->format == NG_BF16 && !g->a.sparse && !g->b.sparse;
}

/* Facts of rows that hold an Inf or a NaN. */
static void note_special(const unsigned char *const *row, int64_t n, int64_t columns,
                         struct codes_facts *facts)
{
    codes_facts_begin(facts);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < columns; c += CODES)
            codes_note(CODES_BF16, facts, codes_load(CODES_BF16, NULL, row[i] + 2 * c));
}

static void note(const unsigned char *const *row, int64_t n, int64_t columns,
                 struct gemm_panel *head)
{
    static const ng_format_spec bf16 = { .format = NG_BF16 }; /* all that pack_join() asks */
    struct pack_facts facts;
    pack_facts_begin(&facts);
    struct codes_bounds seen;
    codes_bounds_begin(&seen);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < columns; c += CODES)
            codes_bound(&seen, codes_load(CODES_BF16, NULL, row[i] + 2 * c));
    if (!codes_settle(&seen, &facts.codes))
        note_special(row, n, columns, &facts.codes);
    *head = (struct gemm_panel){ 0 };
    pack_join(&facts, &bf16);
    pack_conclude(&facts, 7, head);
}

FMA_RUNNERS(lying, false, WAY_LYING)

static gemm_way tile_lying(const struct gemm_job *g, const struct gemm_walk *w,
                           const struct gemm_tile *t, const struct gemm_lying *b)
{
    static fma_runner *const lying_runners[MR] = FMA_LINE(lying);
    if (!fma_stays_in_range(g, t->a, b->head))
        return GEMM_LEFT;
    struct fma f = { .g = g,
                     .w = w,
                     .a = (const uint32_t *)t->a + sizeof(struct gemm_panel) / 4,
                     .lying = b,
                     .level = t->scratch,
                     .soon = t->soon };
    fma_writes(&f, lying_runners[t->rows - 1], t);
    return GEMM_FAST;
}

#endif
