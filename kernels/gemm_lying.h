/* SPDX-License-Identifier: Apache-2.0 */
/* B where it lies, in bf16: what the kernels of single products share; behind gemm_fma.h. */
#ifndef NG_KERNELS_GEMM_LYING_H
#define NG_KERNELS_GEMM_LYING_H

static bool lies(const struct gemm_job *g)
{
    return !rule_pieces(g) && rule_step_of(g) == STEP_FMA && g->mode != NG_MODE_MX &&
           g->b.spec->format == NG_BF16 && !g->a.sparse && !g->b.sparse;
}

/* Facts of rows that hold an Inf or a NaN. */
static void lying_special(const unsigned char *const *row, int64_t n, int64_t columns,
                          struct codes_facts *facts)
{
    codes_facts_begin(facts);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < columns; c += CODES)
            codes_note(CODES_BF16, facts, codes_load(CODES_BF16, NULL, row[i] + 2 * c));
}

static void lying_conclude(const struct codes_facts *codes, struct gemm_panel *head)
{
    static const ng_format_spec bf16 = { .format = NG_BF16 }; /* all that pack_join() asks */
    struct pack_facts facts;
    pack_facts_begin(&facts);
    facts.codes = *codes;
    *head = (struct gemm_panel){ 0 };
    pack_join(&facts, &bf16);
    pack_conclude(&facts, 7, head);
}

/* `runners`: by rows of A, less one. */
static gemm_way lying_tile(const struct gemm_job *g, const struct gemm_walk *w,
                           const struct gemm_tile *t, const struct gemm_lying *b,
                           fma_runner *const runners[MR])
{
    if (!fma_stays_in_range(g, t->a, b->head))
        return GEMM_LEFT;
    struct fma f = { .g = g,
                     .w = w,
                     .a = (const uint32_t *)t->a + sizeof(struct gemm_panel) / 4,
                     .lying = b,
                     .level = t->scratch,
                     .soon = t->soon };
    fma_writes(&f, runners[t->rows - 1], t);
    return GEMM_FAST;
}

/* The same; `lines`: the runners ask for rows that are wanted soon line by line. */
static gemm_way lying_soon(const struct gemm_job *g, const struct gemm_walk *w,
                           const struct gemm_tile *t, const struct gemm_lying *b,
                           fma_runner *const runners[MR], bool lines)
{
    if (!t->soon)
        return lying_tile(g, w, t, b, runners);
    struct gemm_soon soon = soon_take(t, lines);
    struct gemm_tile own = *t;
    own.soon = &soon;
    const gemm_way way = lying_tile(g, w, &own, b, runners);
    soon_give(t, &soon);
    return way;
}

#endif
