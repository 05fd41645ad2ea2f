/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chains of single products of bf16 and narrower values: 6 rows of A by 64 columns of B, two
 * positions an instruction. 24 accumulators cover its latency of 6 at two a cycle; 4 vectors of
 * B; A is a broadcast operand. Per pair: 10 loads to 24 VDPBF16PS, which is 12 cycles. The
 * additions that end a chain run on other ports than the products.
 *
 * Where a value or a sum may be subnormal the FMA of gemm_fma.h takes the tile, on the same
 * panels; past FP32's range exact.h.
 */
#include "dp.h"

enum {
    MR = 6,
    NV = 4,
    SUMS = 24,
    A_PAIRS = 1
};
#define FMA_EACH FMA_EACH_6
#define FMA_PACK pack_or_six

#include "dp_lying.h"

#include "dp_six.h"

static const char *refuses(const struct gemm_job *g)
{
    return fma_refuses(g, false);
}

/* What else comes nearer while they run. */
enum dp_wish {
    DP_NOTHING,
    DP_B,   /* B's next words: it comes from memory, or its next panel does */
    DP_SOON /* rows that are wanted soon */
};

PACK_INLINE void dp_chain(struct fma *f, const int rows, const enum dp_wish wish,
                          const struct chain *c)
{
    const uint32_t *a = f->a + c->from / 2 * MR, *b = f->b + c->from / 2 * NR;
    struct dp_soon soon = { 0 };
    int64_t ahead[NV];
    if (wish == DP_SOON)
        soon = dp_begin(f, c);
    for (int q = 0; wish == DP_B && q < NV; q++)
        ahead[q] = fma_ahead(f, q);
    struct block acc;
    fma_begin(f, rows, NV, 0, &acc);
    for (int64_t p = 0; p < c->n; p += 2, a += MR, b += NR) {
        vec y[NV];
        FMA_UNROLL
        for (int q = 0; q < NV; q++) {
            y[q] = dp_load(b + q * VL);
            if (wish == DP_B)
                __builtin_prefetch(b + q * VL + ahead[q]);
        }
        dp_step(rows, a, y, &acc);
        if (wish == DP_SOON)
            dp_ask(&soon);
    }
    fma_end(f, rows, NV, 0, c, &acc);
    if (wish == DP_SOON)
        dp_end(f, &soon);
}

#define DP_RUNNERS(name, wish)                                                                 \
    PACK_INLINE void name##_run(struct fma *f, const int rows, const struct chain *c)          \
    {                                                                                          \
        dp_chain(f, rows, wish, c);                                                            \
    }                                                                                          \
    FMA_INSTANCES(name)
DP_RUNNERS(dp, DP_NOTHING)
DP_RUNNERS(dp_b, DP_B)
DP_RUNNERS(dp_soon, DP_SOON)

FMA_RUNNERS(chain, true, WAY_FMA)

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const gemm_runners[4][MR] = { FMA_LINE(dp), FMA_LINE(dp_b),
                                                     FMA_LINE(dp_soon), FMA_LINE(chain) };
    const bool soon = f->soon && f->soon->lines && f->soon->rows > 0;
    const enum dp_wish wish = soon ? DP_SOON : fma_asks(f) ? DP_B : DP_NOTHING;
    return gemm_runners[never_subnormal(t->a, t->b) ? wish : DP_SOON + 1][t->rows - 1];
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    if (!t->soon)
        return fma_tile(g, w, t, pick, true);
    struct gemm_soon soon = dp_take(t, never_subnormal(t->a, t->b) && !t->fresh && !t->next);
    struct gemm_tile own = *t;
    own.soon = &soon;
    const gemm_way way = fma_tile(g, w, &own, pick, true);
    dp_give(t, &soon);
    return way;
}

static bool tiles(const struct gemm_job *g, const struct gemm_walk *w,
                  const struct gemm_tile *t, const struct gemm_run *b)
{
    return fma_panels(g, w, t, b, pick);
}

FMA_KERNEL(gemm_bf16_6x64__avx512bf16);
