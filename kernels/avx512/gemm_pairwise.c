/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of rounded products: 8 rows of A by 32 columns of B. Of a step of four a row and a
 * vector have two multiplications, two multiply-adds and two additions, where two ports take
 * two a cycle, or four with additions on ports of their own; A's numbers are the instructions'
 * own operands. 16 sums, 4 vectors of B and 2 pairs in 32 registers.
 */
#include "../ints512.h"

enum {
    MR = 8,
    NV = 2
};

#include "../gemm_pairwise.h"

ALIGN_KERNEL(gemm_pairwise_8x32__avx512);
