/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two MXFP4 operands by VPMADDUBSW: 3 rows of A by 16 columns of B. 6 sums under way, 4 vectors
 * of B's bytes, a broadcast and a table; the chain's 6 are wanted once a block.
 */
#include "ints.h"

enum {
    MR = 3,
    NV = 2,
    SUMS = 6
};
#define FMA_EACH FMA_EACH_3

#include "../gemm_e2m1.h"

E2_KERNEL(gemm_e2m1_3x16__avx2);
