/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that sum their lanes before the chain takes them (lane_sum fused, presum, tree), of bf16
 * and narrower values: 8 rows of A by 32 columns of B. A row's sum starts from zero, one
 * VDPBF16PS for two lanes, and joins the chain by an addition on another port. 16 accumulators,
 * 2 or 4 vectors of B, two sums under way. Two lanes: 18 loads to 16 products, 9 cycles; four:
 * 28 to 32, 16 cycles (README.md, "What rows that sum two lanes cost").
 *
 * Spreads too wide for an exact FP32 sum are told from a byte a row and column: those vectors
 * take FP64 (dp_sum64.h), where presum or more than 53 bits ask for it fma_redo().
 */
#include "../dp.h"

enum {
    MR = 8,
    NV = 2,
    SUMS = 16,
    A_PAIRS = 1
};
#define FMA_EACH FMA_EACH_8

/* Few rows read a slim B as it is; its codes and A's times them are no subnormals. */
#define FMA_MORE                                                                               \
    .tile_slim = tile_slim_any, .tiles = tiles, .block = { 384, 2048 }, .slim_panels = 3,      \
    .byte_panels = 3, .behind = behind
#define SLIM_FAST(a, b)      never_subnormal(a, b)
#define SLIM_SUM             dp_slim
#define SLIM_ROWS            1
#define SLIM_FOUR            dp_fours
#define SLIM_TWO             dp_twos
#define SLIM_FOUR_LEAST      3
#define SLIM_AHEAD_2         12288
#define SLIM_PASSES(rows)    ((rows) == 1)
#define BYTES_AHEAD_1        12288
#define SLIM_IN_BLOCKS(rows) true
#define FMA_PACK             pack_or_codes
#include "../gemm_fma.h"

#include "dp_rows.h"
#include "dp_sum64.h"

PACK_INLINE void dp_slim(const int rows, const int nv, const int i, const uint32_t *a,
                         const vec_pairs y[NV], struct block *t)
{
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < nv; q++)
        t->v[r][q] = i ? dp(t->v[r][q], iv_float(y[q]), dp_all(a + MR + r))
                       : dp_at(vec_zero(), iv_float(y[q]), a + r);
}

/* acc += the sums of rows of four or two lanes, none of which FP32 does not hold; of the rows
 * of A from `from` on. */
PACK_INLINE void dp_fours(const int from, const int to, const uint32_t *a,
                          const vec_pairs y[NV], const vec_pairs z[NV], struct block *acc)
{
    FMA_UNROLL
    for (int r = from; r < to; r++)
        dp_four(acc->v[r], y, z, a + r, a + MR + r);
}

PACK_INLINE void dp_twos(const int rows, const uint32_t *a, const vec_pairs y[NV],
                         struct block *acc)
{
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        dp_pair(acc->v[r], y, a + r);
}

/* The sum of a row's lanes for one row of A; `tree`: R(R(x_0 + x_1) + R(x_2 + x_3)). */
PACK_INLINE void dp_row(const int step, const bool tree, const uint32_t *a, const uint32_t *b,
                        vec t[NV])
{
    FMA_UNROLL
    for (int q = 0; q < NV; q++)
        t[q] = dp_at(vec_zero(), dp_load(b + q * VL), a);
    for (int k = 1; k < step / 2; k++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        const vec y = dp_load(b + k * NR + q * VL);
        t[q] = tree ? vec_add(t[q], dp_at(vec_zero(), y, a + k * MR))
                    : dp(t[q], y, dp_all(a + k * MR));
    }
}

/* A step's vectors, each as it needs. */
PACK_INLINE void dp_near_step(const int rows, const int step, const uint32_t *a,
                              const uint32_t *b, bool held, const uint32_t wanted,
                              struct block *acc)
{
    FMA_UNROLL
    for (int r = 0; r < rows; r++) {
        vec t[NV];
        dp_row(step, false, a + r, b, t);
        FMA_UNROLL
        for (int q = 0; q < NV; q++)
            if (__builtin_expect(wanted >> (8 * q + r) & 1, 0))
                acc->v[r][q] = sum64_vector(step, a + r, b + q * VL, held, acc->v[r][q]);
            else
                acc->v[r][q] = vec_add(acc->v[r][q], t[q]);
    }
}

/* All vectors of a step in FP64. */
static __attribute__((noinline)) void dp_sum64(int rows, int step, const uint32_t *a,
                                               const uint32_t *b, bool held, float acc[MR][NR])
{
    if (step == 2)
        sum64_step(rows, 2, a, b, held, acc);
    else
        sum64_step(rows, 4, a, b, held, acc);
}

static inline bool dp_many(uint32_t wanted)
{
    return __builtin_popcount(wanted) >= SUM64_MANY;
}

PACK_INLINE void dp_put(const int rows, const struct block *acc, float all[MR][NR])
{
    FMA_UNROLL
    for (int v = 0; v < rows * NV; v++)
        vec_store(all[v / NV] + v % NV * VL, acc->v[v / NV][v % NV]);
}

PACK_INLINE void dp_get(const int rows, float all[MR][NR], struct block *acc)
{
    FMA_UNROLL
    for (int v = 0; v < rows * NV; v++)
        acc->v[v / NV][v % NV] = vec_load(all[v / NV] + v % NV * VL);
}

/* A step of which some vectors want FP64. */
PACK_INLINE void dp_exact(const struct fma *f, const int rows, const int words, uint32_t wanted,
                          const uint32_t *a, const uint32_t *b, struct block *acc)
{
    if (!dp_many(wanted)) {
        dp_near_step(rows, 2 * words, a, b, f->doubles, wanted, acc);
        return;
    }
    float all[MR][NR];
    dp_put(rows, acc, all);
    dp_sum64(rows, 2 * words, a, b, f->doubles, all);
    dp_get(rows, all, acc);
}

/* sum64_wanted() of a row of lanes, `words` pairs. */
PACK_INLINE uint32_t dp_due(const struct fma *f, const int rows, const int words,
                            int64_t number)
{
    return sum64_looks(rows, 2 * words) ? sum64_due(f, number) : sum64_wanted(f, number);
}

#define BYTES_EXACT          dp_exact
#define BYTES_WANTED         dp_due
#define BYTES_AHEAD_INSTANCE SUM64_INSTANCE
#include "../gemm_bytes.h"

static const char *refuses(const struct gemm_job *g)
{
    return fma_refuses(g, true);
}

/* What comes nearer with a step's words of b. */
PACK_INLINE void dp_nearer(const struct fma_far *ahead, const int step, const uint32_t *b)
{
    for (int i = 0; i < step / 2 * NR; i += VL)
        near_ask(b + i + ahead->by[i / VL % 4], ahead->second);
}

PACK_INLINE void dp_sum(struct fma *f, const int rows, const enum fma_way way, const int step,
                        const uint32_t *a, const uint32_t *b, int64_t n, int64_t number,
                        struct block *acc)
{
    const bool asks = fma_asks(f);
    const struct fma_far ahead = fma_far_of(f, 0);
    for (int64_t p = 0; p < n; p += step, number++, a += step / 2 * MR, b += step / 2 * NR) {
        if (asks)
            dp_nearer(&ahead, step, b);
        else
            fma_ask_a(a);
        if (way == WAY_SUM && (step == 2 || step == 4)) {
            const vec_pairs y[NV] = { iv_load(b), iv_load(b + VL) };
            if (step == 4)
                dp_fours(0, rows, a, y,
                         (const vec_pairs[NV]){ iv_load(b + NR), iv_load(b + NR + VL) }, acc);
            else
                dp_twos(rows, a, y, acc);
            continue;
        }
        FMA_UNROLL
        for (int r = 0; r < rows; r++) {
            vec t[NV];
            dp_row(step, way == WAY_TREE, a + r, b, t);
            if (way == WAY_WATCH && __builtin_expect(!fma_exact_row(f, r, number, 0, NR), 0))
                fma_fix_apart(f, r, a, b, number, acc->v[r], t);
            FMA_UNROLL
            for (int q = 0; q < NV; q++)
                acc->v[r][q] = vec_add(acc->v[r][q], t[q]);
        }
    }
}

/* What is known of a chain's steps from `number` on: bit i, step number + i may have vectors
 * that want FP64. */
struct dp_wants {
    int64_t number;
    uint32_t maybe;
    const uint16_t *wanted; /* NULL: sum64_wanted() tells */
};

/* Of *n steps at most, which becomes how many. */
PACK_INLINE struct dp_wants dp_wants(const struct fma *f, const int rows, const int step,
                                     int64_t number, int64_t *n)
{
    struct sum64_ahead *const ahead = f->ahead;
    if (!sum64_looks(rows, step)) {
        *n = *n < SUM64_STEPS ? *n : SUM64_STEPS;
        return (struct dp_wants){ number, sum64_steps(f, number, *n), NULL };
    }
    int64_t i;
    const int half = sum64_half(f, ahead, number, &i);
    *n = *n < SUM64_STEPS - i ? *n : SUM64_STEPS - i;
    return (struct dp_wants){ number,
                              ahead->any[half] >> i & (uint32_t)(((uint64_t)1 << *n) - 1),
                              ahead->wanted[half] + i };
}

PACK_INLINE uint32_t dp_wanted(const struct fma *f, const struct dp_wants *t, int64_t i)
{
    return t->wanted ? t->wanted[i] : sum64_wanted(f, t->number + i);
}

/* Step i of n, of which some vectors want FP64; of which many do, those behind it with as many
 * too. How many it took. */
PACK_INLINE int64_t dp_some(struct fma *f, const int rows, const int step, const uint32_t *a,
                            const uint32_t *b, const struct dp_wants *t, int64_t i, int64_t n,
                            struct block *acc)
{
    const uint32_t wanted = dp_wanted(f, t, i);
    f->redone |= wanted != 0;
    if (!dp_many(wanted)) {
        dp_near_step(rows, step, a, b, f->doubles, wanted, acc);
        return 1;
    }
    float all[MR][NR];
    int64_t done = 0;
    dp_put(rows, acc, all);
    for (; done < n - i && dp_many(dp_wanted(f, t, i + done)); done++)
        dp_sum64(rows, step, a + done * (step / 2 * MR), b + done * (step / 2 * NR), f->doubles,
                 all);
    dp_get(rows, all, acc);
    return done;
}

/* dp_sum() where every step's exact sums fit 53 bits. */
PACK_INLINE void dp_near(struct fma *f, const int rows, const int step, const uint32_t *a,
                         const uint32_t *b, int64_t n, int64_t number, struct block *acc)
{
    const int64_t steps = n / step, a_step = step / 2 * MR, b_step = step / 2 * NR;
    for (int64_t from = 0, some; from < steps; from += some) {
        some = steps - from;
        const struct dp_wants t = dp_wants(f, rows, step, number + from, &some);
        const uint32_t *const x = a + from * a_step, *const y = b + from * b_step;
        for (int64_t i = 0; i < some;) {
            const uint32_t rest = t.maybe >> i;
            const int64_t plain = rest ? __builtin_ctz(rest) : some - i;
            dp_sum(f, rows, WAY_SUM, step, x + i * a_step, y + i * b_step, plain * step,
                   t.number + i, acc);
            i += plain;
            if (rest)
                i += dp_some(f, rows, step, x + i * a_step, y + i * b_step, &t, i, some, acc);
        }
    }
}

/* A chain of rows of `step` lanes. */
PACK_INLINE void dp_steps(struct fma *f, const int rows, const enum fma_way way, const int step,
                          const struct chain *c)
{
    const uint32_t *a = f->a + c->from / 2 * MR, *b = f->b + c->from / 2 * NR;
    struct block acc;
    fma_begin(f, rows, NV, 0, &acc);
    if (way == WAY_NEAR)
        dp_near(f, rows, step, a, b, c->n, c->from / step, &acc);
    else
        dp_sum(f, rows, way, step, a, b, c->n, c->from / step, &acc);
    fma_end(f, rows, NV, 0, c, &acc);
}

PACK_INLINE void dp_sums(struct fma *f, const int rows, const enum fma_way way,
                         const struct chain *c)
{
    const int step = f->w->step;
    if (step == 4)
        dp_steps(f, rows, way, 4, c);
    else if (step == 2)
        dp_steps(f, rows, way, 2, c);
    else if (way != WAY_NEAR)
        dp_steps(f, rows, way, step, c);
}

#define DP_QUAD(name, way, step)                                                               \
    PACK_INLINE void name##_pair(struct fma *f, const int rows, const struct chain *first,     \
                                 const struct chain *second)                                   \
    {                                                                                          \
        dp_steps(f, rows, way, step, first);                                                   \
        dp_steps(f, rows, way, step, second);                                                  \
    }                                                                                          \
    FMA_QUAD_INSTANCE(name, 8)
DP_QUAD(quad_twos, WAY_SUM, 2)
DP_QUAD(quad_fours, WAY_SUM, 4)
DP_QUAD(quad_near_twos, WAY_NEAR, 2)

#define DP_RUNNERS(name, way)                                                                  \
    PACK_INLINE void name##_run(struct fma *f, const int rows, const struct chain *c)          \
    {                                                                                          \
        dp_sums(f, rows, way, c);                                                              \
    }                                                                                          \
    FMA_INSTANCES(name)
DP_RUNNERS(tree, WAY_TREE)
DP_RUNNERS(sum, WAY_SUM)
DP_RUNNERS(watch, WAY_WATCH)
DP_RUNNERS(near, WAY_NEAR)

FMA_EACH(SUM64_INSTANCE, near)

/* The one for t's way and rows, or NULL. */
static fma_runner *pick_quad(const struct fma *f, const struct gemm_tile *t, int way)
{
    const int step = f->w->step;
    if (t->rows < MR || f->soon || !fma_has_quads(f, t))
        return NULL;
    if (way == WAY_SUM)
        return step == 2 ? quad_twos_8 : step == 4 ? quad_fours_8 : NULL;
    return way == WAY_NEAR && step == 2 ? quad_near_twos_8 : NULL;
}

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const gemm_runners[5][MR] = { FMA_LINE(tree), FMA_LINE(sum),
                                                     FMA_LINE(watch), FMA_LINE(near),
                                                     FMA_LINE(near_ahead) };
    const int step = f->w->step;
    int way = WAY_TREE + fma_lanes_way(f, t);
    if (way == WAY_WATCH && f->short_ && !f->presum && (step == 2 || step == 4))
        way = WAY_NEAR;
    fma_runner *const quad = pick_quad(f, t, way);
    return quad ? quad
                : gemm_runners[way - WAY_TREE + (way == WAY_NEAR && step == 4)][t->rows - 1];
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    return fma_tile(g, w, t, pick, never_subnormal(t->a, t->b));
}

static bool tiles(const struct gemm_job *g, const struct gemm_walk *w,
                  const struct gemm_tile *t, const struct gemm_run *run)
{
    return fma_tiles(g, w, t, run, pick, never_subnormal);
}

/* By FMA two lanes have 1.3 of its rate on such a CPU, MXFP4 weights 1.3 (one row 0.9); MXFP8
 * has 1.0, and 0.3 where no sum is exact. */
static bool behind(const struct gemm_job *g)
{
    return rule_param(g, NG_PARAM_LANES) == 2 || g->b.spec->format == NG_E2M1;
}

FMA_KERNEL(gemm_bf16sum_8x32__avx512bf16);
