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

#include "../gemm_fma.h"

static const char *refuses(const struct gemm_job *g)
{
    const char *why = rule_refuses(g);
    if (why)
        return why;
    if (rule_step_of(g) != STEP_FMA)
        return "rows that sum their lanes first";
    return pack_fits_bf16(g, &g->a) && pack_fits_bf16(g, &g->b)
               ? NULL
               : "values of more than 8 significant bits";
}

PACK_INLINE void dp_run(const struct fma *f, const int rows, const struct chain *c)
{
    const uint32_t *a = f->a + c->from / 2 * MR, *b = f->b + c->from / 2 * NR;
    struct block acc;
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++)
        acc.v[r][q] = c->carry ? vec_load(c->carry + r * NR + q * VL) : vec_zero();
    for (int64_t p = 0; p < c->n; p += 2, a += MR, b += NR) {
        vec y[NV];
        FMA_UNROLL
        for (int q = 0; q < NV; q++)
            y[q] = dp_load(b + q * VL);
        FMA_UNROLL
        for (int r = 0; r < rows; r++)
            FMA_UNROLL
        for (int q = 0; q < NV; q++)
            acc.v[r][q] = dp(acc.v[r][q], y[q], dp_all(a + r));
    }
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

#define RUNNERS(rows)                                                                          \
    FMA_RUNNER(fma, rows, true, WAY_FMA)                                                       \
    static __attribute__((noinline)) void dp_##rows(struct fma *f, const struct chain *c)      \
    {                                                                                          \
        dp_run(f, rows, c);                                                                    \
    }
RUNNERS(1)
RUNNERS(2)
RUNNERS(3)
RUNNERS(4)
RUNNERS(5)
RUNNERS(6)

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const gemm_runners[2][MR] = {
        { fma_1, fma_2, fma_3, fma_4, fma_5, fma_6 }, { dp_1, dp_2, dp_3, dp_4, dp_5, dp_6 }
    };
    (void)f;
    return gemm_runners[never_subnormal(t->a, t->b)][t->rows - 1];
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    return fma_tile(g, w, t, pick, true);
}

extern const struct ng_gemm_kernel ng_gemm_bf16_6x64__avx512bf16;
const struct ng_gemm_kernel ng_gemm_bf16_6x64__avx512bf16 = { .name =
                                                                  "gemm_bf16_6x64__avx512bf16",
                                                              .mr = MR,
                                                              .nr = NR,
                                                              .deep = 384,
                                                              .scratch_bytes = FMA_SCRATCH,
                                                              .refuses = refuses,
                                                              .panel_bytes = panel_bytes,
                                                              .pack = pack,
                                                              .tile = tile };
