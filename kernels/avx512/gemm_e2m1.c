/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two MXFP4 operands by VPMADDUBSW, on CPUs without VPDPBUSD: 8 rows of A by 32 columns of B.
 */
#include "../ints512.h"

enum {
    MR = 8,
    NV = 2,
    SUMS = 16
};
#define FMA_EACH FMA_EACH_8

#include "../gemm_e2m1.h"

E2_KERNEL(gemm_e2m1_8x32__avx512);
