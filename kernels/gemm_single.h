/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of single products (lanes = 1, lane_sum = chain) by gemm_fma.h. */
#ifndef NG_KERNELS_GEMM_SINGLE_H
#define NG_KERNELS_GEMM_SINGLE_H

#include "gemm_fma.h"

static const char *refuses(const struct gemm_job *g)
{
    return fma_refuses(g, false);
}

FMA_RUNNERS(words, false, WAY_FMA)
FMA_RUNNERS(pairs, true, WAY_FMA)

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const gemm_runners[2][MR] = { FMA_LINE(words), FMA_LINE(pairs) };
    return gemm_runners[fma_pairs(f->g)][t->rows - 1];
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    return fma_tile(g, w, t, pick, true);
}

#endif
