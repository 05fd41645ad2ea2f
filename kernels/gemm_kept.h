/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of single products against what a sparse B keeps (kept.h), in FP32: two multiplications
 * for four positions. What each column's values meet of A is picked from a row's four values,
 * an operation that other ports take than FMAs do. Zero products never change a sum (README.md,
 * "Sparse"), so that leaving them out leaves all bits as they are.
 *
 * For an ISA's gemm_fma.c behind gemm_slim.h; A's panels are FP32.
 */
#ifndef NG_KERNELS_GEMM_KEPT_H
#define NG_KERNELS_GEMM_KEPT_H

#include "gemm_slim.h"

enum {
    KEPT_GROUP = VEC_PICKS, /* positions of A that a vector picks from */
    KEPT_A = MR * VL        /* numbers of all rows' vectors of as many positions */
};

/* ---- What of A's panel is behind the rest of it: [position / KEPT_GROUP][MR] vectors. ---- */

static inline bool kept_has(const struct gemm_job *g)
{
    return g->b.sparse && slim_takes(g, NR);
}

static inline int64_t kept_groups(const struct gemm_walk *w)
{
    return (w->depth + KEPT_GROUP - 1) / KEPT_GROUP;
}

/* Bytes from a panel of A to them. */
static inline size_t kept_at(const struct gemm_job *g, const struct gemm_walk *w)
{
    return panel_up(panel_bytes(g, w, GEMM_A));
}

static size_t kept_panel_bytes(const struct gemm_job *g, const struct gemm_walk *w,
                               gemm_side side)
{
    const size_t bytes = panel_bytes(g, w, side);
    if (side != GEMM_A || !kept_has(g))
        return bytes;
    return kept_at(g, w) + (size_t)kept_groups(w) * KEPT_A * sizeof(float);
}

/* Behind a panel that pack() made, if it is A's: its rows once more, their positions side by
 * side, with zeros where the last vector has none. */
static void kept_turn(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                      int32_t rows, void *panel)
{
    if (side != GEMM_A || !kept_has(g))
        return;
    const float *a =
        (const float *)(const void *)((unsigned char *)panel + sizeof(struct gemm_panel));
    float *to = (float *)(void *)((unsigned char *)panel + kept_at(g, w));
    for (int64_t p = 0; p < w->depth; p += KEPT_GROUP, a += KEPT_GROUP * MR, to += KEPT_A)
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < VL; i++) {
                const int at = i % KEPT_GROUP;
                to[r * VL + i] = p + at < w->depth ? a[at * MR + r] : 0;
            }
}

/* ---- Products. ---- */

/* acc += a value of each of VL columns times what it meets of A. */
PACK_INLINE void kept_meet(const int rows, const int q, ivec at, vec value, const float *x,
                           struct block *acc)
{
    ORDER_APART(x); /* else compilers hold all rows' vectors, and have no registers for sums */
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        vec_fma_to(&acc->v[r][q], vec_pick(vec_load(x + r * VL), at), value);
}

/* The same of four positions, the second of eight or the first, and nv vectors of columns. x:
 * A's first row; `up`: see vec_pick_at(). */
PACK_INLINE void kept_four(const int rows, const int nv, const uint8_t *words,
                           const uint8_t *places, const int second, ivec up, const float *x,
                           struct block *acc)
{
    FMA_UNROLL
    for (int q = 0; q < nv; q++) {
        const ivec at = kept_places(places + q * VL, second);
        const uint32_t *const word = (const uint32_t *)(const void *)(words + 4 * VL * q);
        kept_meet(rows, q, vec_pick_at(at, up), vec_upper(word), x, acc);
        kept_meet(rows, q, vec_pick_at(vec_next_place(at), up), vec_lower(word), x, acc);
    }
}

/* A chain, or a piece of one, of nv vectors from column `col` on. */
PACK_INLINE void kept_part(const struct fma *f, const int rows, const int nv, const int col,
                           const struct chain *c)
{
    enum {
        WORDS = KEPT_PLACES * NR, /* bytes of four positions */
        ALL = SLIM_KEPT * NR,     /* of eight, with their places */
        FOURS = KEPT_GROUP / KEPT_PLACES
    };
    const int64_t far = slim_ahead(SLIM_KEPT, rows),
                  last = slim_code_bytes(SLIM_KEPT, f->w, NR) - far;
    const uint8_t *codes = f->codes + slim_before(SLIM_KEPT, c->from, NR),
                  *words = codes + KEPT_PLACES * col, *places = codes + SLIM_DEEP * NR + col;
    int64_t four = c->from / KEPT_PLACES;
    const int64_t to = four + c->n / KEPT_PLACES;
    const float *const a = f->own;
    struct block acc;
    fma_begin(f, rows, nv, col, &acc);
    if (four % 2 && four < to) {
        kept_four(rows, nv, words + WORDS, places, 1, vec_up(four), a + four / FOURS * KEPT_A,
                  &acc);
        four++;
        words += ALL;
        places += ALL;
        codes += ALL;
    }
    for (; four + 2 <= to; four += 2, words += ALL, places += ALL, codes += ALL) {
        if (col == 0) /* more rows gain by it too: 6 of them a tenth */
            slim_bring(f, SLIM_FEW, codes, far, codes - f->codes >= last ? f->next : 0, ALL);
        kept_four(rows, nv, words, places, 0, vec_up(four), a + four / FOURS * KEPT_A, &acc);
        kept_four(rows, nv, words + WORDS, places, 1, vec_up(four + 1),
                  a + (four + 1) / FOURS * KEPT_A, &acc);
    }
    if (four < to)
        kept_four(rows, nv, words, places, 0, vec_up(four), a + four / FOURS * KEPT_A, &acc);
    fma_end(f, rows, nv, col, c, &acc);
}

/* As many vectors at a time as registers hold the sums of, beside some for what they meet and,
 * with 32 of them, what gcc spills of more. */
PACK_INLINE void kept_run(struct fma *f, const int rows, const struct chain *c)
{
    const int nv = rows * NV <= KEPT_SUMS ? NV : rows * NV / 2 <= KEPT_SUMS ? NV / 2 : NV / 4;
    for (int col = 0; col < NR; col += nv * VL)
        kept_part(f, rows, nv, col, c);
}

FMA_INSTANCES(kept)

static gemm_way tile_kept(const struct gemm_job *g, const struct gemm_walk *w,
                          const struct gemm_tile *t)
{
    static fma_runner *const kept_runners[] = FMA_LINE(kept);
    return slim_tile(g, w, t, kept_runners, (const unsigned char *)t->a + kept_at(g, w));
}

#endif
