/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chains of single products (lanes = 1, lane_sum = chain), FP32 in pieces: 6 rows of A by 16
 * of the 32 columns of a panel of B. 12 accumulators, 2 vectors of B and a broadcast: 15 of 16
 * registers. A position is 8 loads to 12 FMAs, which is 6 cycles of two FMA ports.
 */
#include "ints.h"

enum {
    MR = 6,
    NV = 4,
    SUMS = 11,
    KEPT_SUMS = 10, /* gemm_kept.h */
    A_PAIRS = 0
};
#define FMA_NEAR 128 /* 16 KiB of B in the first cache */
/* More rows are as soon multiplied by panels that have grown. */
#define KEPT_PANELS 12
#define FMA_EACH    FMA_EACH_6
#define FMA_PACK    pack_kept

#include "../gemm_single.h"

static void pack_kept(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                      int64_t line, int32_t lines, void *panel)
{
    pack(g, w, side, line, lines, panel);
    kept_turn(g, w, side, lines, panel);
}

FMA_KERNEL(gemm_fma_6x32__avx2);
