/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that sum their lanes before the chain takes them (lane_sum fused, presum, tree): 6 rows
 * of A by 32 columns of B. Twelve accumulators, twelve sums under way, 2 vectors of B: 26 of 32
 * registers; the adds into the accumulators are one in (lanes + 1) operations.
 */
#include "../ints512.h"

enum {
    MR = 6,
    NV = 2,
    SUMS = 12,
    A_PAIRS = 0
};
#define FMA_EACH  FMA_EACH_6
#define LANES_512 /* six_codes512.h */

#include "../gemm_lanes.h"

FMA_KERNEL(gemm_sum_6x32__avx512);
