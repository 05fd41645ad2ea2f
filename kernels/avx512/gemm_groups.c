/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exact groups of 16 FP4 products: 8 rows of A by 16 columns of B. A group of 16 columns, 256
 * products, is four multiplications of bytes, five additions, three of FP32, three for
 * exponents and eight in FP64: 24 instructions, of which two ports take two a cycle.
 */
#include "../ints512.h"

enum {
    MR = 8,
    NV = 1
};

/* Toward zero: to an integer, to 24 bits. */
static inline vec64 groups_cut(vec64 x)
{
    return _mm512_roundscale_pd(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
static inline vec64 groups_24_bits(vec64 x)
{
    return _mm512_castsi512_pd(
        _mm512_and_si512(_mm512_castpd_si512(x), _mm512_set1_epi64(-(1LL << 29))));
}

#include "../gemm_groups.h"

ALIGN_KERNEL(gemm_groups_8x16__avx512);
