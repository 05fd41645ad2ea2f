/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two MXFP4 operands by VPDPBUSD: 8 rows of A by 32 columns of B. 16 sums under way, 4 vectors
 * of B's bytes; the chain's 16 take what registers are left, as they are wanted once a block.
 * Of four ports two multiply: 128 products of bytes and 32 of scales a block of 8 rows, which
 * makes 205 operations a cycle, where VDPBF16PS has 128.
 */
#include "../ints512.h"

enum {
    MR = 8,
    NV = 2,
    SUMS = 16
};
#define FMA_EACH FMA_EACH_8
#define E2_DOT   _mm512_dpbusd_epi32

#include "../gemm_e2m1.h"

E2_KERNEL(gemm_e2m1_8x32__avx512bf16);
