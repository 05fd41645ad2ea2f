/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that sum their lanes before the chain takes them (lane_sum fused, presum, tree): 3 rows
 * of A by 16 of the 32 columns of a panel of B. Six accumulators, six sums under way, 2 vectors
 * of B and a broadcast: 15 of 16 registers; the adds into the accumulators are one in (lanes +
 * 1) operations.
 */
#include "ints.h"

enum {
    MR = 3,
    NV = 4,
    SUMS = 6,
    A_PAIRS = 0
};
#define FMA_NEAR 128 /* 16 KiB of B in the first cache */
#define FMA_EACH FMA_EACH_3

#include "../gemm_lanes.h"

FMA_KERNEL(gemm_sum_3x32__avx2);
