/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows against a slim panel of 8-bit codes, or of a sparse B's values (slim.h): they become
 * pairs of bf16 in registers, as in gemm_slim.h, whose argument for chains without B's block
 * scales holds here too. What differs: rows of single products, and of two lanes; and rows of
 * lanes whose sum FP32 does not hold, which are told by spreads, as always, and whose pairs
 * then go to memory.
 *
 * For an ISA's gemm_*.c behind gemm_slim.h. It defines BYTES_SINGLE(), two positions' products
 * of one vector of columns added to all rows' chains, or SLIM_SUM().
 */
#ifndef NG_KERNELS_GEMM_BYTES_H
#define NG_KERNELS_GEMM_BYTES_H

#include "gemm_slim.h"

#ifdef VEC_BYTES

/* What becomes of rows of lanes whose sum FP32 does not hold. */
enum bytes_way {
    BYTES_ALL,   /* there are none */
    BYTES_WATCH, /* fma_fix_row() */
    BYTES_NEAR,  /* the file's BYTES_EXACT(), which wants FP64 to hold it, where BYTES_WANTED()
                  * is not 0; what that has of four lanes begins in a BYTES_AHEAD_INSTANCE() */
    BYTES_KEPT   /* there are none, and no bytes: what a sparse B keeps (slim.h) */
};

/* Bits of a position. */
PACK_INLINE int bytes_bits(const enum bytes_way way)
{
    return way == BYTES_KEPT ? SLIM_KEPT : 8;
}

/* The words of the four positions that p is among. */
PACK_INLINE const uint8_t *bytes_at(const struct fma *f, int64_t p)
{
    return f->codes + (int64_t)((uint64_t)p / VEC_BYTES) * NR * VEC_BYTES;
}

/* The lines so far ahead of four positions, of nv vectors from q on, come nearer; from `last`
 * on they are the next panel's. Masks of a sparse B come with the last words before them. */
PACK_INLINE void bytes_nearer(const struct fma *f, const int rows, const enum bytes_way way,
                              int64_t p, int q, const int nv, int64_t far, int64_t last)
{
    const bool kept = way == BYTES_KEPT;
    const int64_t at = (kept ? slim_kept_words(p, NR) : p * NR) + q * VL * VEC_BYTES,
                  skip = at >= last ? f->next : 0;
    slim_bring(f, rows, f->codes + at, far, skip, nv * VL * VEC_BYTES);
    if (kept && p % SLIM_DEEP && q + nv == NV)
        slim_bring(f, rows, f->codes + at + nv * VL * VEC_BYTES, far, skip, NR);
}

/* Of four positions and 16 columns from vector q on the pairs of the first two, of the others.
 */
PACK_INLINE void bytes_decode(const struct fma *f, const enum bytes_way way,
                              const struct vec_bytes *table, int64_t p, int q, vec_pairs y[2])
{
    if (way == BYTES_KEPT)
        slim_kept_pairs(f->codes, NR, p, q * VL, y);
    else
        vec_bytes_decode(table, bytes_at(f, p) + q * VL * VEC_BYTES, y);
}

#ifdef SLIM_FOUR
/* So many rows have SLIM_TWO() and SLIM_FOUR(). */
enum {
    BYTES_TWO_LEAST = 3,
    BYTES_FOUR_LEAST = 5
};
#endif

/* Which of four positions. */
enum bytes_part {
    BYTES_FOUR,
    BYTES_FIRST, /* two of them */
    BYTES_LAST
};

#ifdef BYTES_SINGLE
/* acc += products, one after another, of NV vectors of columns. */
PACK_INLINE void bytes_take(struct fma *f, const int rows, const enum bytes_way way,
                            const int step, const enum bytes_part part,
                            const struct vec_bytes *table, int64_t p, const uint32_t *a,
                            struct block *acc)
{
    (void)step;
    FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        vec_pairs y[2];
        bytes_decode(f, way, table, p, q, y);
        BYTES_SINGLE(rows, q, a, y[part == BYTES_LAST], acc);
        if (part == BYTES_FOUR)
            BYTES_SINGLE(rows, q, a + fma_words(A_PAIRS, MR, 2), y[1], acc);
    }
}
#else
PACK_INLINE void bytes_put(const int words, vec_pairs y[][NV], uint32_t pairs[2 * NR])
{
    FMA_UNROLL
    for (int i = 0; i < words; i++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++)
        vec_pairs_store(pairs + i * NR + q * VL, y[i][q]);
}

/* A row of lanes, number `number`: `words` pairs of positions, from y on. */
PACK_INLINE void bytes_lanes(struct fma *f, const int rows, const enum bytes_way way,
                             const int words, const uint32_t *a, vec_pairs y[][NV],
                             int64_t number, struct block *acc)
{
    uint32_t pairs[2 * NR];
#ifdef BYTES_EXACT
    const uint32_t wanted = way == BYTES_NEAR ? BYTES_WANTED(f, rows, words, number) : 0;
    if (__builtin_expect(wanted != 0, 0)) {
        bytes_put(words, y, pairs);
        f->redone = true;
        BYTES_EXACT(f, rows, words, wanted, a, pairs, acc);
        return;
    }
#endif
#ifdef SLIM_FOUR
    if (way != BYTES_WATCH && rows >= (words == 1 ? BYTES_TWO_LEAST : BYTES_FOUR_LEAST)) {
        if (words == 2)
            SLIM_FOUR(0, rows, a, y[0], y[1], acc);
        else
            SLIM_TWO(rows, a, y[0], acc);
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
            fma_fix_apart(f, r, a, pairs, number, acc->v[r], t.v[0]);
        }
        FMA_UNROLL
        for (int q = 0; q < NV; q++)
            acc->v[r][q] = vec_add(acc->v[r][q], t.v[0][q]);
    }
}

/* Four positions' pairs. */
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

/* acc += the sums of rows of `step` lanes, of NV vectors of columns. */
PACK_INLINE void bytes_take(struct fma *f, const int rows, const enum bytes_way way,
                            const int step, const enum bytes_part part,
                            const struct vec_bytes *table, int64_t p, const uint32_t *a,
                            struct block *acc)
{
    vec_pairs y[2][NV];
    bytes_pairs(table, bytes_at(f, p), y);
    bytes_lanes(f, rows, way, step / 2, a, y + (part == BYTES_LAST), p / step, acc);
    if (part == BYTES_FOUR && step == 2)
        bytes_lanes(f, rows, way, 1, a + fma_words(A_PAIRS, MR, 2), y + 1, p / step + 1, acc);
}

#ifdef SLIM_TWO
/* bytes_take() of two rows of two lanes, whose pairs are in y; those of the four positions at
 * `next` are decoded between them, and then there. See slim_block_amid(). */
PACK_INLINE void bytes_amid(struct fma *f, const int rows, const enum bytes_way way,
                            const struct vec_bytes *table, int64_t number, const uint32_t *a,
                            const uint8_t *next, vec_pairs y[2][NV], struct block *acc)
{
    vec_pairs z[2][NV];
    bytes_lanes(f, rows, way, 1, a, y, number, acc);
    bytes_pairs(table, next, z);
    bytes_lanes(f, rows, way, 1, a + fma_words(A_PAIRS, MR, 2), y + 1, number + 1, acc);
    memcpy(y, z, sizeof z);
}
#endif
#endif

/* A chain, or a piece of one; `step` positions have one scale. */
PACK_INLINE void bytes_chain(struct fma *f, const int rows, const enum bytes_way way,
                             const int step, const struct chain *c)
{
    const struct gemm_walk *w = f->w;
    const struct vec_bytes table = *(const struct vec_bytes *)f->own;
    const bool scaled = way != BYTES_KEPT && w->blocks > 0;
    const int bits = bytes_bits(way);
    const int64_t to = c->from + c->n, far = slim_ahead(bits, rows),
                  last = slim_code_bytes(bits, w, NR) - far;
    const uint32_t *a = f->a + fma_words(A_PAIRS, MR, c->from);
    struct slim_held held = { slim_ones, -1 };
    struct block acc;
    fma_begin(f, rows, NV, 0, &acc);
    int64_t p = c->from;
#ifdef SLIM_TWO
    if (step == 2 && !scaled && rows >= BYTES_TWO_LEAST && way != BYTES_WATCH &&
        p % VEC_BYTES == 0 && p + VEC_BYTES <= to) {
        const uint8_t *const end = f->codes + slim_code_bytes(8, w, NR);
        vec_pairs y[2][NV];
        bytes_pairs(&table, bytes_at(f, p), y);
        for (; p + VEC_BYTES <= to; p += VEC_BYTES, a += fma_words(A_PAIRS, MR, VEC_BYTES)) {
            const uint8_t *const next = bytes_at(f, p + VEC_BYTES);
            bytes_nearer(f, rows, way, p, 0, NV, far, last);
            bytes_amid(f, rows, way, &table, p / 2, a, next < end ? next : f->codes, y, &acc);
        }
    }
#endif
    for (int64_t n; p < to; p += n, a += fma_words(A_PAIRS, MR, n)) {
        n = step;
        if (scaled && !slim_at(f, rows, NV, 0, p, step, &held, &acc))
            continue;
        if (step == 2 && p % VEC_BYTES) {
            bytes_take(f, rows, way, step, BYTES_LAST, &table, p, a, &acc);
            continue;
        }
        bytes_nearer(f, rows, way, p, 0, NV, far, last);
        if (step == 2 && (p + VEC_BYTES > to || (scaled && w->block[p + 2] != held.block))) {
            bytes_take(f, rows, way, step, BYTES_FIRST, &table, p, a, &acc);
            continue;
        }
        n = VEC_BYTES;
        bytes_take(f, rows, way, step, BYTES_FOUR, &table, p, a, &acc);
    }
    if (scaled)
        slim_hold(rows, NV, held.scales, slim_ones, &acc);
    fma_end(f, rows, NV, 0, c, &acc);
}

#define BYTES_RUNNERS(name, way, step)                                                         \
    PACK_INLINE void name##_run(struct fma *f, const int rows, const struct chain *c)          \
    {                                                                                          \
        bytes_chain(f, rows, way, step, c);                                                    \
    }                                                                                          \
    FMA_INSTANCES(name)
#ifdef BYTES_SINGLE
BYTES_RUNNERS(bytes, BYTES_ALL, 2)
#ifdef SLIM_PLACES /* whose sparse B has runners of its own: gemm_kept.h */
#define BYTES_KEPT_LINE
#else
BYTES_RUNNERS(bytes_kept, BYTES_KEPT, 2)
#define BYTES_KEPT_LINE , FMA_LINE(bytes_kept)
#endif

static fma_runner *const *bytes_pick(const struct gemm_job *g, const struct gemm_walk *w,
                                     const struct gemm_tile *t)
{
    static fma_runner *const bytes_runners[2][MR] = { FMA_LINE(bytes) BYTES_KEPT_LINE };
    (void)w;
    (void)t;
    return bytes_runners[g->b.sparse != NULL];
}
#else
BYTES_RUNNERS(bytes_two, BYTES_ALL, 2)
BYTES_RUNNERS(bytes_two_watch, BYTES_WATCH, 2)
BYTES_RUNNERS(bytes_four, BYTES_ALL, 4)
BYTES_RUNNERS(bytes_four_watch, BYTES_WATCH, 4)
#ifdef BYTES_EXACT
BYTES_RUNNERS(bytes_two_near, BYTES_NEAR, 2)
BYTES_RUNNERS(bytes_four_near, BYTES_NEAR, 4)
FMA_EACH(BYTES_AHEAD_INSTANCE, bytes_four_near)
#define BYTES_NEAR_LINE(name) , FMA_LINE(name)
#else
#define BYTES_NEAR_LINE(name)
#endif

static enum bytes_way bytes_way_of(const struct gemm_job *g, const struct gemm_panel *a,
                                   const struct gemm_panel *b)
{
    if (!fma_watches(g, a, b))
        return BYTES_ALL;
#ifdef BYTES_EXACT
    if (fma_short(a, b) && rule_param(g, NG_PARAM_LANE_SUM) != NG_LANE_SUM_PRESUM)
        return BYTES_NEAR;
#endif
    return BYTES_WATCH;
}

static fma_runner *const *bytes_pick(const struct gemm_job *g, const struct gemm_walk *w,
                                     const struct gemm_tile *t)
{
    static fma_runner *const bytes_runners[2][3][MR] = {
        { FMA_LINE(bytes_two), FMA_LINE(bytes_two_watch) BYTES_NEAR_LINE(bytes_two_near) },
        { FMA_LINE(bytes_four),
          FMA_LINE(bytes_four_watch) BYTES_NEAR_LINE(bytes_four_near_ahead) }
    };
    return bytes_runners[w->step == 4][bytes_way_of(g, t->a, t->b)];
}
#endif

/* None of a sparse B. */
static struct vec_bytes bytes_table(const struct gemm_job *g, const struct gemm_walk *w)
{
    return g->b.sparse ? (struct vec_bytes){ 0 }
                       : vec_bytes_table(w->widen[GEMM_B], (int)g->b.spec->man_bits);
}

static gemm_way tile_bytes(const struct gemm_job *g, const struct gemm_walk *w,
                           const struct gemm_tile *t)
{
    const struct vec_bytes table = bytes_table(g, w);
    return slim_tile(g, w, t, bytes_pick(g, w, t), &table);
}
#endif

static gemm_way tile_slim_any(const struct gemm_job *g, const struct gemm_walk *w,
                              const struct gemm_tile *t)
{
#ifdef VEC_BYTES
    if (slim_bits(g) != 4)
        return tile_bytes(g, w, t);
#endif
#ifdef BYTES_SINGLE
    return GEMM_LEFT;
#else
    return tile_slim(g, w, t);
#endif
}

#endif
