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
    A_PAIRS = 0
};
#define FMA_NEAR 128 /* 16 KiB of B in the first cache */
#define FMA_EACH FMA_EACH_6

#include "../gemm_single.h"

FMA_KERNEL(gemm_fma_6x32__avx2);
