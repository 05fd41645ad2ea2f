/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of rounded products: 4 rows of A by 32 columns of B; as the one of AVX-512. 8 sums, 4
 * vectors of B, 2 pairs and a number of A in 16 registers.
 */
#include "ints.h"

enum {
    MR = 4,
    NV = 4
};

#include "../gemm_pairwise.h"

ALIGN_KERNEL(gemm_pairwise_4x32__avx2);
