/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows against a slim panel of 8-bit codes (slim.h): they become pairs of bf16 in
 * registers, as in gemm_slim.h, whose argument for chains without B's block scales holds here
 * too. What differs: rows of single products, and of two lanes; and rows of lanes whose sum
 * FP32 does not hold, which are told by spreads, as always, and whose pairs then go to memory.
 *
 * For an ISA's gemm_*.c behind gemm_slim.h. It defines BYTES_SINGLE(), two positions' products
 * of one vector of columns added to all rows' chains, or SLIM_SUM().
 */
#ifndef NG_KERNELS_GEMM_BYTES_H
#define NG_KERNELS_GEMM_BYTES_H

#include "gemm_slim.h"

#ifdef VEC_BYTES

#ifndef BYTES_AHEAD
#define BYTES_AHEAD 8192
#endif

/* The words of the four positions that p is among. */
PACK_INLINE const uint8_t *bytes_at(const struct fma *f, int64_t p)
{
    return f->codes + (int64_t)((uint64_t)p / VEC_BYTES) * NR * VEC_BYTES;
}

/* The lines that lie ahead of four positions come nearer; behind the last ones those of the
 * next panel. */
PACK_INLINE void bytes_nearer(const struct fma *f, int64_t p, int64_t last)
{
    const int64_t at = p * NR;
    const uint8_t *const ahead = f->codes + at + BYTES_AHEAD + (at >= last ? f->next : 0);
    for (int i = 0; i < VEC_BYTES * NR; i += 64)
        __builtin_prefetch(ahead + i);
}

#ifdef BYTES_SINGLE
/* acc += products, one after another, of NV vectors: of the four positions at `codes`, or of
 * the first two, or the last two. */
PACK_INLINE void bytes_step(const struct vec_bytes *table, const int rows, const bool four,
                            const bool last, const uint32_t *a, const uint8_t *codes,
                            struct block *acc)
{
    FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        vec_pairs y[2];
        vec_bytes_decode(table, codes + q * VL * VEC_BYTES, y);
        BYTES_SINGLE(rows, q, a, y[last], acc);
        if (four)
            BYTES_SINGLE(rows, q, a + fma_words(A_PAIRS, MR, 2), y[1], acc);
    }
}

PACK_INLINE void bytes_run(struct fma *f, const int rows, const struct chain *c)
{
    const struct gemm_walk *w = f->w;
    const struct vec_bytes table = *(const struct vec_bytes *)f->own;
    const bool scaled = w->blocks > 0;
    const int64_t to = c->from + c->n, last = slim_code_bytes(8, w, NR) - BYTES_AHEAD;
    const uint32_t *a = f->a + fma_words(A_PAIRS, MR, c->from);
    struct slim_held held = { slim_ones, -1 };
    struct block acc;
    fma_begin(f, rows, NV, 0, &acc);
    for (int64_t p = c->from; p < to; p += 2, a += fma_words(A_PAIRS, MR, 2)) {
        if (scaled && !slim_at(f, rows, NV, 0, p, 2, &held, &acc))
            continue;
        const uint8_t *codes = bytes_at(f, p);
        if (p % VEC_BYTES) {
            bytes_step(&table, rows, false, true, a, codes, &acc);
            continue;
        }
        bytes_nearer(f, p, last);
        if (p + VEC_BYTES > to || (scaled && w->block[p + 2] != held.block)) {
            bytes_step(&table, rows, false, false, a, codes, &acc);
            continue;
        }
        bytes_step(&table, rows, true, false, a, codes, &acc);
        p += 2;
        a += fma_words(A_PAIRS, MR, 2);
    }
    if (scaled)
        slim_hold(rows, NV, held.scales, slim_ones, &acc);
    fma_end(f, rows, NV, 0, c, &acc);
}

FMA_INSTANCES(bytes)

static gemm_way tile_bytes(const struct gemm_job *g, const struct gemm_walk *w,
                           const struct gemm_tile *t)
{
    static fma_runner *const bytes_runners[] = FMA_LINE(bytes);
    const struct vec_bytes table = vec_bytes_table(w->widen[GEMM_B], (int)g->b.spec->man_bits);
    return slim_tile(g, w, t, bytes_runners, &table);
}
#else

/* What becomes of rows of lanes whose sum FP32 does not hold. */
enum bytes_way {
    BYTES_ALL,   /* there are none */
    BYTES_WATCH, /* fma_fix_row() */
    BYTES_NEAR   /* the file's BYTES_EXACT(), which wants FP64 to hold it */
};

/* acc takes the exact step in some of the columns, t is -0 there. */
static __attribute__((noinline)) void bytes_fix(struct fma *f, int r, const uint32_t *a,
                                                const uint32_t *pairs, int64_t number,
                                                vec acc[NV], vec t[NV])
{
    struct block old, sum;
    for (int q = 0; q < NV; q++) {
        old.v[r][q] = acc[q];
        sum.v[r][q] = t[q];
    }
    fma_fix_row(f, r, NV, 0, true, a, pairs, number, &old, &sum);
    for (int q = 0; q < NV; q++) {
        acc[q] = old.v[r][q];
        t[q] = sum.v[r][q];
    }
}

/* The same of copies, so that the sums stay in registers. */
PACK_INLINE void bytes_fix_row(struct fma *f, const int r, const uint32_t *a,
                               const uint32_t *pairs, int64_t number, struct block *acc,
                               struct block *t)
{
    vec old[NV], sum[NV];
    FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        old[q] = acc->v[r][q];
        sum[q] = t->v[0][q];
    }
    bytes_fix(f, r, a, pairs, number, old, sum);
    FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        acc->v[r][q] = old[q];
        t->v[0][q] = sum[q];
    }
}

PACK_INLINE void bytes_put(const int words, vec_pairs y[][NV], uint32_t pairs[2 * NR])
{
    FMA_UNROLL
    for (int i = 0; i < words; i++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++)
        vec_pairs_store(pairs + i * NR + q * VL, y[i][q]);
}

/* A row of lanes, `words` pairs of positions, from y on. */
PACK_INLINE void bytes_lanes(struct fma *f, const int rows, const enum bytes_way way,
                             const int words, const uint32_t *a, vec_pairs y[][NV],
                             int64_t number, struct block *acc)
{
    uint32_t pairs[2 * NR];
#ifdef BYTES_EXACT
    if (way == BYTES_NEAR && __builtin_expect(BYTES_WANTED(f, number) != 0, 0)) {
        bytes_put(words, y, pairs);
        f->redone = true;
        BYTES_EXACT(rows, words, BYTES_WANTED(f, number), a, pairs, acc);
        return;
    }
#endif
    FMA_UNROLL
    for (int r = 0; r < rows; r++) {
        struct block t;
        fma_zero(1, NV, &t);
        FMA_UNROLL
        for (int i = 0; i < words; i++)
            SLIM_SUM(1, NV, i, SLIM_A(a, r), y[i], &t);
        if (way == BYTES_WATCH && __builtin_expect(!fma_exact_row(f, r, number, 0, NR), 0)) {
            bytes_put(words, y, pairs);
            bytes_fix_row(f, r, a, pairs, number, acc, &t);
        }
        FMA_UNROLL
        for (int q = 0; q < NV; q++)
            acc->v[r][q] = vec_add(acc->v[r][q], t.v[0][q]);
    }
}

/* The pairs of NV vectors' four positions at `codes`, of the first two and of the others. */
PACK_INLINE void bytes_pairs(const struct vec_bytes *table, const uint8_t *codes,
                             vec_pairs y[2][NV])
{
    FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        vec_pairs both[2];
        vec_bytes_decode(table, codes + q * VL * VEC_BYTES, both);
        y[0][q] = both[0];
        y[1][q] = both[1];
    }
}

PACK_INLINE void bytes_sum(struct fma *f, const int rows, const enum bytes_way way,
                           const int step, const struct chain *c)
{
    const struct gemm_walk *w = f->w;
    const struct vec_bytes table = *(const struct vec_bytes *)f->own;
    const bool scaled = w->blocks > 0;
    const int64_t to = c->from + c->n, last = slim_code_bytes(8, w, NR) - BYTES_AHEAD;
    const uint32_t *a = f->a + fma_words(A_PAIRS, MR, c->from);
    struct slim_held held = { slim_ones, -1 };
    struct block acc;
    fma_begin(f, rows, NV, 0, &acc);
    for (int64_t p = c->from; p < to; p += step, a += fma_words(A_PAIRS, MR, step)) {
        vec_pairs y[2][NV];
        if (scaled && !slim_at(f, rows, NV, 0, p, step, &held, &acc))
            continue;
        bytes_pairs(&table, bytes_at(f, p), y);
        if (step == 2 && p % VEC_BYTES) {
            bytes_lanes(f, rows, way, 1, a, y + 1, p / step, &acc);
            continue;
        }
        bytes_nearer(f, p, last);
        bytes_lanes(f, rows, way, step / 2, a, y, p / step, &acc);
        if (step == 4 || p + VEC_BYTES > to || (scaled && w->block[p + 2] != held.block))
            continue;
        p += step;
        a += fma_words(A_PAIRS, MR, step);
        bytes_lanes(f, rows, way, 1, a, y + 1, p / step, &acc);
    }
    if (scaled)
        slim_hold(rows, NV, held.scales, slim_ones, &acc);
    fma_end(f, rows, NV, 0, c, &acc);
}

#define BYTES_RUNNERS(name, way, step)                                                         \
    PACK_INLINE void name##_run(struct fma *f, const int rows, const struct chain *c)          \
    {                                                                                          \
        bytes_sum(f, rows, way, step, c);                                                      \
    }                                                                                          \
    FMA_INSTANCES(name)
BYTES_RUNNERS(bytes_two, BYTES_ALL, 2)
BYTES_RUNNERS(bytes_two_watch, BYTES_WATCH, 2)
BYTES_RUNNERS(bytes_four, BYTES_ALL, 4)
BYTES_RUNNERS(bytes_four_watch, BYTES_WATCH, 4)
#ifdef BYTES_EXACT
BYTES_RUNNERS(bytes_two_near, BYTES_NEAR, 2)
BYTES_RUNNERS(bytes_four_near, BYTES_NEAR, 4)
#define BYTES_NEAR_LINE(name) , FMA_LINE(name)
#else
#define BYTES_NEAR_LINE(name)
#endif

static enum bytes_way bytes_way_of(const struct gemm_job *g, const struct gemm_panel *a,
                                   const struct gemm_panel *b)
{
    if (a->spread + b->spread <= SPREAD_LIMIT)
        return BYTES_ALL;
#ifdef BYTES_EXACT
    if (fma_short(a, b) && rule_param(g, NG_PARAM_LANE_SUM) != NG_LANE_SUM_PRESUM)
        return BYTES_NEAR;
#endif
    (void)g;
    return BYTES_WATCH;
}

static gemm_way tile_bytes(const struct gemm_job *g, const struct gemm_walk *w,
                           const struct gemm_tile *t)
{
    static fma_runner *const bytes_runners[2][3][MR] = {
        { FMA_LINE(bytes_two), FMA_LINE(bytes_two_watch) BYTES_NEAR_LINE(bytes_two_near) },
        { FMA_LINE(bytes_four), FMA_LINE(bytes_four_watch) BYTES_NEAR_LINE(bytes_four_near) }
    };
    const struct vec_bytes table = vec_bytes_table(w->widen[GEMM_B], (int)g->b.spec->man_bits);
    return slim_tile(g, w, t, bytes_runners[w->step == 4][bytes_way_of(g, t->a, t->b)], &table);
}
#endif
#endif

static gemm_way tile_slim_any(const struct gemm_job *g, const struct gemm_walk *w,
                              const struct gemm_tile *t)
{
#ifdef VEC_BYTES
    if (slim_bits(g) == 8)
        return tile_bytes(g, w, t);
#endif
#ifdef BYTES_SINGLE
    return GEMM_LEFT;
#else
    return tile_slim(g, w, t);
#endif
}

#endif
