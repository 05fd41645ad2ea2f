/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows against a slim panel (slim.h): codes become pairs of bf16 in registers. S, the sum
 * of four products without B's block scale 2^e, is exact in FP32 (as it is with the scale).
 * Through a block the chain is held as acc 2^-e: while nothing leaves FP32's normal range,
 * R(acc 2^-e + S) 2^e = R(acc + 2^e S), the step of docs/numerics.md 4.1 (4), and an addition
 * needs no port that products want.
 *
 * For an ISA's gemm_*.c whose panels have SLIM_COLUMNS columns. It defines SLIM_SUM(), which
 * adds two positions' products to sums of `nv` vectors, and SLIM_ROWS, the rows whose sums are
 * under way at a time; 0: all. It may define SLIM_FOUR() and SLIM_TWO(), which add the sums of
 * rows of four and two lanes to the chains, where there are SLIM_FOUR_LEAST rows or more;
 * SLIM_FOUR() to those of rows of A from one to another.
 */
#ifndef NG_KERNELS_GEMM_SLIM_H
#define NG_KERNELS_GEMM_SLIM_H

#include "gemm_fma.h"

enum {
    SLIM_HALF = SLIM_COLUMNS / 2 / VL, /* vectors of 16 columns */
    SLIM_SCALES_AHEAD = 512,
    SLIM_NEAR = 1024, /* bytes: from the second cache */
    SLIM_FEW = 4      /* rows that leave registers for eight positions at a time */
};

/* Bytes; they come nearer, as the CPU's own fetching ends at every page: codes, behind the last
 * ones those of the next panel; and scales, as above. Of one or two rows, which are sooner
 * multiplied, from farther away. */
#ifndef SLIM_AHEAD
#define SLIM_AHEAD 8192
#endif
#ifndef SLIM_AHEAD_2
#define SLIM_AHEAD_2 SLIM_AHEAD
#endif
/* The same of gemm_bytes.h, and of its one row. */
#ifndef BYTES_AHEAD
#define BYTES_AHEAD 8192
#endif
#ifndef BYTES_AHEAD_1
#define BYTES_AHEAD_1 BYTES_AHEAD
#endif
/* Do codes come to the first cache alone, and leave the others to what is wanted again? */
#ifndef SLIM_PASSES
#define SLIM_PASSES(rows) false
#endif

/* Row r of a row of lanes at `a`. */
#ifndef SLIM_A
#define SLIM_A(a, r) ((a) + (r))
#endif

/* Does nothing leave the normal range when it is held without a block's scale, no product and
 * no sum of a chain? The facts are those of scaled values: without any scale these are
 * multiples of 2^(unit - most) and below 2^(bound - least). */
static bool slim_holds(const struct gemm_job *g, const struct gemm_panel *a,
                       const struct gemm_panel *b)
{
    const int most = b->scale_max - 127, least = b->scale_min - 127;
    return fma_unit(a, b) - most >= -126 && fma_bound(g, a, b) - least <= 127 &&
           most - least <= 126 && most <= 126; /* what vec_power_between() can say */
}

/* Sums without the scales `from` become sums without the scales `to`. */
PACK_INLINE void slim_hold(const int rows, const int nv, const uint8_t *from, const uint8_t *to,
                           struct block *acc)
{
    FMA_UNROLL
    for (int q = 0; q < nv; q++) {
        const vec power = vec_power_between(from + q * VL, to + q * VL);
        FMA_UNROLL
        for (int r = 0; r < rows; r++)
            acc->v[r][q] = vec_mul(acc->v[r][q], power);
    }
}

#define SLIM_ONES 127, 127, 127, 127, 127, 127, 127, 127
static const uint8_t slim_ones[SLIM_GROUPS * SLIM_COLUMNS] = { SLIM_ONES, SLIM_ONES, SLIM_ONES,
                                                               SLIM_ONES, SLIM_ONES, SLIM_ONES,
                                                               SLIM_ONES, SLIM_ONES };
#undef SLIM_ONES

/* So far ahead come codes of so many bits nearer. */
PACK_INLINE int64_t slim_ahead(const int bits, const int rows)
{
    if (bits != 4)
        return rows == 1 ? BYTES_AHEAD_1 : BYTES_AHEAD;
    return rows <= 2 ? SLIM_AHEAD_2 : SLIM_AHEAD;
}

/* n bytes that lie so far behind these codes, and `skip` more, come nearer; if to the second
 * cache, then those a little behind come from there. More rows than SLIM_FEW keep the CPU
 * longer than memory does, and lost by asking twice. */
PACK_INLINE void slim_bring(const struct fma *f, const int rows, const uint8_t *codes,
                            int64_t far, int64_t skip, int n)
{
    const uint8_t *const there = codes + far + skip;
    for (int i = 0; i < n; i += 64)
        if (rows <= SLIM_FEW && f->second) {
            near_ask(there + i, true);
            near_ask(codes + SLIM_NEAR + i, false);
        } else if (SLIM_PASSES(rows)) {
            __builtin_prefetch(there + i, 0, 0);
        } else {
            near_ask(there + i, false);
        }
}

/* The codes so far behind those of eight positions; from `last` on they are the next panel's.
 */
PACK_INLINE void slim_nearer(const struct fma *f, const int rows, const uint8_t *codes,
                             int64_t far, int64_t last)
{
    slim_bring(f, rows, codes, far, codes - f->codes >= last ? f->next : 0, SLIM_DEEP / 2 * NR);
}

/* The block whose scales sums are held without. */
struct slim_held {
    const uint8_t *scales;
    int32_t block;
};

/* Sums of columns from `col` on are held without the scales of block `now`. */
PACK_INLINE void slim_now(const struct fma *f, const int rows, const int nv, const int col,
                          int32_t now, struct slim_held *held, struct block *acc)
{
    const uint8_t *const scales = f->scales + (int64_t)now * NR + col;
    if (held->block >= 0 || f->carry) /* else they are all +0 */
        slim_hold(rows, nv, held->scales, scales, acc);
    __builtin_prefetch(scales + SLIM_SCALES_AHEAD);
    *held = (struct slim_held){ scales, now };
}

/* The same of the n positions from p on. False: their places are empty, -0, which adds nothing.
 */
PACK_INLINE bool slim_at(const struct fma *f, const int rows, const int nv, const int col,
                         int64_t p, const int n, struct slim_held *held, struct block *acc)
{
    const struct gemm_walk *w = f->w;
    const int32_t now = w->block[p] >= 0 ? w->block[p] : slim_block(w, p, n);
    if (now < 0)
        return false;
    if (now != held->block)
        slim_now(f, rows, nv, col, now, held, acc);
    return true;
}

#ifdef SLIM_SUM
_Static_assert((int)NR == (int)SLIM_COLUMNS, "a panel is one group of columns");

/* Two positions' pairs, of `halves` halves from `first` on. */
PACK_INLINE void slim_pairs(const struct fma *f, const int first, const int halves,
                            const uint8_t *codes, const int at, vec_pairs y[NV])
{
    FMA_UNROLL
    for (int h = 0; h < halves; h++)
        vec_decode(&f->table, codes, NR, at, (first + h) * SLIM_HALF * VL, y + h * SLIM_HALF);
}

/* Four positions, `at` of SLIM_DEEP. */
PACK_INLINE void slim_step(const struct fma *f, const int rows, const int first,
                           const int halves, const uint32_t *a, const uint8_t *codes,
                           const int at, struct block *acc)
{
    const int nv = halves * SLIM_HALF, together = SLIM_ROWS ? SLIM_ROWS : rows;
    vec_pairs y[2][NV];
    struct block t;
    for (int i = 0; SLIM_ROWS && i < 2; i++)
        slim_pairs(f, first, halves, codes, at + 2 * i, y[i]);
#ifdef SLIM_FOUR
    if (rows >= SLIM_FOUR_LEAST) {
        SLIM_FOUR(0, rows, a, y[0], y[1], acc);
        return;
    }
#endif
    FMA_UNROLL
    for (int from = 0; from < rows; from += together) {
        fma_zero(together, nv, &t);
        FMA_UNROLL
        for (int i = 0; i < 2; i++) {
            if (!SLIM_ROWS)
                slim_pairs(f, first, halves, codes, at + 2 * i, y[i]);
            SLIM_SUM(together, nv, i, SLIM_A(a, from), y[i], &t);
        }
        FMA_UNROLL
        for (int r = 0; r < together; r++)
            FMA_UNROLL
        for (int q = 0; q < nv; q++)
            acc->v[from + r][q] = vec_add(acc->v[from + r][q], t.v[r][q]);
    }
}

#ifndef SLIM_RUNNERS /* a file's own */
/* Which rows gain by a loop over whole blocks. */
#ifndef SLIM_IN_BLOCKS
#define SLIM_IN_BLOCKS(rows) (VL == 8 || (rows) == 4)
#endif

PACK_INLINE void slim_block_steps(const struct fma *f, const int rows, const int first,
                                  const int halves, const uint32_t *a, int64_t p, int64_t far,
                                  int64_t last, struct block *acc)
{
    const uint8_t *codes = f->codes + slim_before(4, p, NR);
    for (int i = 0; i < GEMM_BLOCK; i += SLIM_DEEP) {
        slim_nearer(f, rows, codes, far, last);
        slim_step(f, rows, first, halves, a, codes, 0, acc);
        a += fma_words(A_PAIRS, MR, 4);
        ORDER_APART(a);
        slim_step(f, rows, first, halves, a, codes, 4, acc);
        a += fma_words(A_PAIRS, MR, 4);
        codes += SLIM_DEEP / 2 * NR;
    }
}

#ifdef SLIM_FOUR
/*
 * slim_block_steps() of all columns, whose first four positions are in y. Each four's pairs are
 * decoded amid the rows of the four before: a CPU's scheduler does not hold the operations of
 * many more, and all rows wait for them. Then y has the first of the next block, if there is
 * one before `end`.
 */
PACK_INLINE void slim_block_amid(const struct fma *f, const int rows, const uint32_t *a,
                                 int64_t p, int64_t far, int64_t last, const uint8_t *end,
                                 vec_pairs y[2][NV], struct block *acc)
{
    const uint8_t *codes = f->codes + slim_before(4, p, NR);
    const int64_t skip = codes - f->codes >= last ? f->next : 0;
    for (int i = 0; i < GEMM_BLOCK; i += SLIM_DEEP) {
        vec_pairs z[2][NV];
        slim_bring(f, rows, codes, far, skip, SLIM_DEEP / 2 * NR);
        SLIM_FOUR(0, rows / 2, a, y[0], y[1], acc);
        for (int j = 0; j < 2; j++)
            slim_pairs(f, 0, 2, codes, 4 + 2 * j, z[j]);
        SLIM_FOUR(rows / 2, rows, a, y[0], y[1], acc);
        a += fma_words(A_PAIRS, MR, 4);
        ORDER_APART(a);
        SLIM_FOUR(0, rows / 2, a, z[0], z[1], acc);
        codes += SLIM_DEEP / 2 * NR;
        if (i + SLIM_DEEP == GEMM_BLOCK && codes == end)
            codes = f->codes;
        for (int j = 0; j < 2; j++)
            slim_pairs(f, 0, 2, codes, 2 * j, y[j]);
        SLIM_FOUR(rows / 2, rows, a, z[0], z[1], acc);
        a += fma_words(A_PAIRS, MR, 4);
    }
}
#endif

/* acc += products of `halves` halves of the columns, from half `first` on. */
PACK_INLINE void slim_part(struct fma *f, const int rows, const int first, const int halves,
                           const struct chain *c)
{
    const struct gemm_walk *w = f->w;
    const int col = first * SLIM_HALF * VL, nv = halves * SLIM_HALF;
    const uint32_t *a = f->a + fma_words(A_PAIRS, MR, c->from);
    const int64_t far = slim_ahead(4, rows), last = slim_code_bytes(4, w, NR) - far;
    struct slim_held held = { slim_ones, -1 };
    struct block acc;
    fma_begin(f, rows, nv, col, &acc);
    const int64_t to = c->from + c->n, in_blocks = to < w->in_blocks ? to : w->in_blocks;
    int64_t p = c->from, n = GEMM_BLOCK;
#ifdef SLIM_FOUR
    if (rows >= SLIM_FOUR_LEAST && p % GEMM_BLOCK == 0 && p + n <= in_blocks) {
        const uint8_t *const end = f->codes + slim_code_bytes(4, w, NR);
        vec_pairs y[2][NV];
        for (int j = 0; j < 2; j++)
            slim_pairs(f, 0, 2, f->codes + slim_before(4, p, NR), 2 * j, y[j]);
        for (; p + n <= in_blocks; p += n, a += fma_words(A_PAIRS, MR, n)) {
            slim_now(f, rows, nv, col, (int32_t)(p / n), &held, &acc);
            slim_block_amid(f, rows, a, p, far, last, end, y, &acc);
        }
    }
#endif
    if (SLIM_IN_BLOCKS(rows) && p % GEMM_BLOCK == 0)
        for (; p + n <= in_blocks; p += n, a += fma_words(A_PAIRS, MR, n)) {
            slim_now(f, rows, nv, col, (int32_t)(p / n), &held, &acc);
            slim_block_steps(f, rows, first, halves, a, p, far, last, &acc);
        }
    for (; p < to; p += n, a += fma_words(A_PAIRS, MR, n)) {
        n = SLIM_DEEP / 2;
        if (!slim_at(f, rows, nv, col, p, 4, &held, &acc))
            continue;
        const int at = (int)(p % SLIM_DEEP);
        const uint8_t *const codes = f->codes + slim_before(4, p, NR);
        if (at == 0)
            slim_nearer(f, rows, codes, far, last);
        if (at) {
            slim_step(f, rows, first, halves, a, codes, 4, &acc);
        } else if (rows <= SLIM_FEW && p + n < to && w->block[p + n] == held.block) {
            n = SLIM_DEEP;
            slim_step(f, rows, first, halves, a, codes, 0, &acc);
            slim_step(f, rows, first, halves, a + fma_words(A_PAIRS, MR, 4), codes, 4, &acc);
        } else {
            slim_step(f, rows, first, halves, a, codes, 0, &acc);
        }
    }
    slim_hold(rows, nv, held.scales, slim_ones, &acc);
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
#endif
#endif

/* What is read first of the next panel comes nearer: its head and the first scales. The codes
 * come behind this panel's. */
static inline void slim_next(const struct gemm_tile *t, size_t scales)
{
    const uint8_t *const next = (const uint8_t *)t->b + (t->parts ? t->next : 0);
    __builtin_prefetch(next);
    for (int i = 0; i < SLIM_SCALES_AHEAD; i += 64)
        __builtin_prefetch(next + scales + i);
}

/* Does such a tile go by codes as they are? */
static bool slim_goes(const struct gemm_job *g, const struct gemm_panel *a,
                      const struct gemm_panel *b)
{
    return b->direct && !fma_leaves(g, a, b) && fma_stays_in_range(g, a, b) &&
           slim_holds(g, a, b) && SLIM_FAST(a, b) &&
           (slim_bits(g) != 4 || !fma_watches(g, a, b));
}

/* What the runners of one that does want to know; `own` is what they have of their own. */
static struct fma slim_of(const struct gemm_job *g, const struct gemm_walk *w,
                          const struct gemm_tile *t, const void *own)
{
    const int bits = slim_bits(g);
    const int64_t codes = slim_code_bytes(bits, w, NR), ahead = slim_ahead(bits, t->rows);
    const struct panel_parts full = panel_parts(g, w, NR, true),
                             part = slim_parts(g, w, NR, &full);
    struct fma f = fma_of(g, w, t);
    f.codes = (const uint8_t *)t->b + sizeof(struct gemm_panel);
    f.scales = (const uint8_t *)t->b + part.scales;
    f.spread_b = (const uint8_t *)t->b + part.spread;
    f.most_b = (const uint8_t *)t->b + part.most;
    f.write = NULL;
    f.next = t->parts ? t->next - codes : 0;
    if (ahead > codes) /* no farther than the next panel */
        f.next -= ahead - codes;
    f.own = own;
    slim_next(t, part.scales);
    if (bits == 4)
        f.table = vec_code_table(w->widen[GEMM_B]);
    return f;
}

/* By one of these for each number of rows. Of bytes they watch spreads themselves. */
static gemm_way slim_tile(const struct gemm_job *g, const struct gemm_walk *w,
                          const struct gemm_tile *t, fma_runner *const *runners,
                          const void *own)
{
    if (!slim_goes(g, t->a, t->b))
        return GEMM_LEFT;
    struct fma f = slim_of(g, w, t, own);
    fma_writes(&f, runners[t->rows - 1], t);
    return f.redone ? GEMM_EXACT : GEMM_FAST;
}

#if defined SLIM_SUM && !defined SLIM_RUNNERS
static gemm_way tile_slim(const struct gemm_job *g, const struct gemm_walk *w,
                          const struct gemm_tile *t)
{
    static fma_runner *const slim_runners[] = FMA_LINE(slim);
    return slim_tile(g, w, t, slim_runners, NULL);
}
#endif

#endif
