/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that sum their lanes before the chain takes them (lane_sum fused, presum, tree), of bf16
 * and narrower values: 8 rows of A by 32 columns of B. A row's sum starts from zero, one
 * VDPBF16PS for two lanes, and joins the chain by an addition on another port. 16 accumulators,
 * 4 vectors of B, two sums under way; for four lanes 20 loads to 32 products, 16 cycles.
 *
 * Spreads too wide for an exact FP32 sum are told from a byte a row and column; those steps,
 * vector by vector, go to fma_redo().
 */
#include "dp.h"

enum {
    MR = 8,
    NV = 2,
    SUMS = 16,
    A_PAIRS = 1
};

#include "../gemm_fma.h"

static const char *refuses(const struct gemm_job *g)
{
    const char *why = rule_refuses(g);
    if (why)
        return why;
    if (rule_step_of(g) == STEP_FMA)
        return "rows of single products";
    return pack_fits_bf16(g, &g->a) && pack_fits_bf16(g, &g->b)
               ? NULL
               : "values of more than 8 significant bits";
}

/* The sum of a row's lanes for one row of A; `tree`: R(R(x_0 + x_1) + R(x_2 + x_3)). */
PACK_INLINE void dp_row(const int step, const bool tree, const uint32_t *a, const uint32_t *b,
                        vec t[NV])
{
    FMA_UNROLL
    for (int q = 0; q < NV; q++)
        t[q] = dp(vec_zero(), dp_load(b + q * VL), dp_all(a));
    for (int k = 1; k < step / 2; k++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        const vec y = dp_load(b + k * NR + q * VL), x = dp_all(a + k * MR);
        t[q] = tree ? vec_add(t[q], dp(vec_zero(), y, x)) : dp(t[q], y, x);
    }
}

/* fma_fix() for one row, on copies, so that the sums stay in registers. */
PACK_INLINE void dp_fix(struct fma *f, const int r, const uint32_t *a, const uint32_t *b,
                        int64_t number, vec acc[NV], vec t[NV])
{
    struct block old, sum;
    FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        old.v[r][q] = acc[q];
        sum.v[r][q] = t[q];
    }
    fma_fix_row(f, r, NV, 0, true, a, b, number, &old, &sum);
    FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        acc[q] = old.v[r][q];
        t[q] = sum.v[r][q];
    }
}

PACK_INLINE void dp_sum(struct fma *f, const int rows, const enum fma_way way, const int step,
                        const uint32_t *a, const uint32_t *b, int64_t n, int64_t number,
                        struct block *acc)
{
    for (int64_t p = 0; p < n; p += step, number++, a += step / 2 * MR, b += step / 2 * NR) {
        FMA_UNROLL
        for (int r = 0; r < rows; r++) {
            vec t[NV];
            dp_row(step, way == WAY_TREE, a + r, b, t);
            if (way == WAY_WATCH && __builtin_expect(!fma_exact_row(f, r, number, 0, NR), 0))
                dp_fix(f, r, a, b, number, acc->v[r], t);
            FMA_UNROLL
            for (int q = 0; q < NV; q++)
                acc->v[r][q] = vec_add(acc->v[r][q], t[q]);
        }
    }
}

PACK_INLINE void dp_run(struct fma *f, const int rows, const enum fma_way way,
                        const struct chain *c)
{
    const int step = f->w->step;
    const uint32_t *a = f->a + c->from / 2 * MR, *b = f->b + c->from / 2 * NR;
    struct block acc;
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++)
        acc.v[r][q] = c->carry ? vec_load(c->carry + r * NR + q * VL) : vec_zero();
    if (step == 4)
        dp_sum(f, rows, way, 4, a, b, c->n, c->from / 4, &acc);
    else if (step == 2)
        dp_sum(f, rows, way, 2, a, b, c->n, c->from / 2, &acc);
    else
        dp_sum(f, rows, way, step, a, b, c->n, c->from / step, &acc);
    for (int i = 0; i < c->adds; i++)
        FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++)
        acc.v[r][q] = vec_add(vec_load(c->add[i] + r * NR + q * VL), acc.v[r][q]);
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++)
        vec_store(c->out + r * NR + q * VL, acc.v[r][q]);
}

#define DP_RUNNER(name, rows, way)                                                             \
    static __attribute__((noinline)) void name##_##rows(struct fma *f, const struct chain *c)  \
    {                                                                                          \
        dp_run(f, rows, way, c);                                                               \
    }
#define RUNNERS(rows)                                                                          \
    DP_RUNNER(tree, rows, WAY_TREE)                                                            \
    DP_RUNNER(sum, rows, WAY_SUM)                                                              \
    DP_RUNNER(watch, rows, WAY_WATCH)
RUNNERS(1)
RUNNERS(2)
RUNNERS(3)
RUNNERS(4)
RUNNERS(5)
RUNNERS(6)
RUNNERS(7)
RUNNERS(8)

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const gemm_runners[3][MR] = {
        { tree_1, tree_2, tree_3, tree_4, tree_5, tree_6, tree_7, tree_8 },
        { sum_1, sum_2, sum_3, sum_4, sum_5, sum_6, sum_7, sum_8 },
        { watch_1, watch_2, watch_3, watch_4, watch_5, watch_6, watch_7, watch_8 }
    };
    const struct gemm_panel *a = t->a, *b = t->b;
    const int way = rule_step_of(f->g) == STEP_TREE         ? 0
                    : a->spread + b->spread <= SPREAD_LIMIT ? 1
                                                            : 2;
    return gemm_runners[way][t->rows - 1];
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    return fma_tile(g, w, t, pick, never_subnormal(t->a, t->b));
}

extern const struct ng_gemm_kernel ng_gemm_bf16sum_8x32__avx512bf16;
const struct ng_gemm_kernel ng_gemm_bf16sum_8x32__avx512bf16 = {
    .name = "gemm_bf16sum_8x32__avx512bf16",
    .mr = MR,
    .nr = NR,
    .deep = 512,
    .scratch_bytes = FMA_SCRATCH,
    .refuses = refuses,
    .panel_bytes = panel_bytes,
    .pack = pack,
    .tile = tile
};
