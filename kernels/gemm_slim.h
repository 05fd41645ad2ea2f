/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows against a slim panel (slim.h): codes become pairs of bf16 in registers, and a row of
 * four lanes gets its block scale in the FMA that adds it to the chain. S, the sum of four
 * products without B's scale, is exact in FP32 (as it is with the scale: a power of two), so
 * fma(S, 2^e, acc) = R(acc + 2^e S), the step of docs/numerics.md 4.1 (4).
 *
 * For an ISA's gemm_*.c whose panels have SLIM_COLUMNS columns. It defines SLIM_SUM(), which
 * adds two positions' products to sums of `nv` vectors, and SLIM_ROWS, the rows whose sums are
 * under way at a time; 0: all.
 */
#ifndef NG_KERNELS_GEMM_SLIM_H
#define NG_KERNELS_GEMM_SLIM_H

#include "gemm_fma.h"

enum {
    SLIM_HALF = SLIM_COLUMNS / 2 / VL, /* vectors of columns in one half of the nibbles */
    /* Bytes; they come nearer, as the CPU's own fetching ends at every page: codes, behind the
     * last ones those of the next panel, and scales. */
    SLIM_AHEAD = 4096,
    SLIM_SCALES_AHEAD = 512
};
_Static_assert((int)NR == (int)SLIM_COLUMNS, "a panel is one group of columns");

/* S may be taken without B's scale: no bit of it below FP32's least, none above its largest. */
static bool slim_sums_fit(const struct gemm_panel *a, int least)
{
    const int lsb = -1, msb = 2, lanes = 2; /* e2m1: 0.5 to 6; four of them */
    return a->lsb_min + lsb >= least && a->msb_max + 1 + msb + lanes <= 127;
}

/* Two positions' pairs, of `halves` halves from `first` on. */
PACK_INLINE void slim_pairs(const struct fma *f, const int first, const int halves,
                            const uint8_t *codes, vec_pairs y[NV])
{
    FMA_UNROLL
    for (int h = 0; h < halves; h++)
        vec_decode(&f->table, codes, first + h, y + h * SLIM_HALF);
}

/* Four positions. `scale`: 2^e of these columns. */
PACK_INLINE void slim_step(const struct fma *f, const int rows, const int first,
                           const int halves, const uint32_t *a, const uint8_t *codes,
                           const float *scale, struct block *acc)
{
    const int nv = halves * SLIM_HALF, together = SLIM_ROWS ? SLIM_ROWS : rows;
    vec_pairs y[2][NV];
    struct block t;
    for (int i = 0; SLIM_ROWS && i < 2; i++)
        slim_pairs(f, first, halves, codes + i * NR, y[i]);
    FMA_UNROLL
    for (int from = 0; from < rows; from += together) {
        fma_zero(together, nv, &t);
        FMA_UNROLL
        for (int i = 0; i < 2; i++) {
            if (!SLIM_ROWS)
                slim_pairs(f, first, halves, codes + i * NR, y[i]);
            SLIM_SUM(together, nv, i, a + from, y[i], &t);
        }
        FMA_UNROLL
        for (int r = 0; r < together; r++)
            FMA_UNROLL
        for (int q = 0; q < nv; q++)
            acc->v[from + r][q] =
                vec_fma(t.v[r][q], vec_load(scale + q * VL), acc->v[from + r][q]);
    }
}

/* acc += products of `halves` halves of the columns, from half `first` on. */
PACK_INLINE void slim_part(struct fma *f, const int rows, const int first, const int halves,
                           const struct chain *c)
{
    const struct gemm_walk *w = f->w;
    const int col = first * SLIM_HALF * VL, nv = halves * SLIM_HALF;
    const uint32_t *a = f->a + fma_words(A_PAIRS, MR, c->from);
    const uint8_t *codes = f->codes + c->from / 2 * NR;
    const int64_t last = w->depth / 2 * NR - SLIM_AHEAD;
    float scale[NR] = { 0 };
    int32_t block = -1;
    struct block acc;
    fma_begin(f, rows, nv, col, &acc);
    for (int64_t p = c->from; p < c->from + c->n;
         p += 4, a += fma_words(A_PAIRS, MR, 4), codes += 2 * NR) {
        const int32_t now = w->block[p] >= 0 ? w->block[p] : slim_block(w, p);
        if (now < 0) /* empty places: -0, which adds nothing */
            continue;
        for (int l = 0; now != block && l < NR; l += VL)
            vec_store(scale + l, vec_power(f->scales + (int64_t)now * NR + l));
        if (now != block)
            __builtin_prefetch(f->scales + (int64_t)now * NR + SLIM_SCALES_AHEAD);
        block = now;
        __builtin_prefetch(codes + SLIM_AHEAD + (codes - f->codes >= last ? f->next : 0));
        slim_step(f, rows, first, halves, a, codes, scale + col, &acc);
    }
    fma_end(f, rows, nv, col, c, &acc);
}

PACK_INLINE void slim_run(struct fma *f, const int rows, const struct chain *c)
{
    if (rows * NV <= SUMS) {
        slim_part(f, rows, 0, 2, c);
        return;
    }
    slim_part(f, rows, 0, 1, c);
    slim_part(f, rows, 1, 1, c);
}

FMA_INSTANCES(slim)

static gemm_way tile_slim(const struct gemm_job *g, const struct gemm_walk *w,
                          const struct gemm_tile *t)
{
    static fma_runner *const slim_runners[MR] = FMA_LINE(slim);
    const struct gemm_panel *a = t->a, *b = t->b;
    if (!b->direct || !fma_stays_in_range(g, a, b) || a->spread + b->spread > SPREAD_LIMIT ||
        !slim_sums_fit(a, SLIM_LEAST) || !SLIM_FAST(a, b))
        return GEMM_LEFT;
    const struct panel_parts full = panel_parts(g, w, NR, true),
                             part = slim_parts(w, NR, &full);
    struct fma f = { .g = g,
                     .w = w,
                     .a = (const uint32_t *)t->a + sizeof *a / 4,
                     .codes = (const uint8_t *)t->b + sizeof *b,
                     .scales = (const uint8_t *)t->b + part.scales,
                     .table = vec_code_table(w->widen[GEMM_B]),
                     .level = t->scratch,
                     .soon = t->soon,
                     .next = t->part >= 0 ? t->next - (int64_t)w->depth / 2 * NR : 0 };
    fma_writes(&f, slim_runners[t->rows - 1], t);
    return GEMM_FAST;
}

#endif
