/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of aligned terms: 8 rows of A by 32 columns of B. 16 products are two multiplications,
 * a conversion and an addition, half of an addition and a maximum of exponents: five
 * instructions, of which two ports take two a cycle.
 */
#include "../ints512.h"

enum {
    MR = 8,
    NV = 2
};

/* Toward zero. */
static inline vec align_float(ivec x)
{
    return _mm512_cvt_roundepi32_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
/* Negative where x + y, which came out as sum, left 32 bits. */
static inline ivec align_over(ivec x, ivec y, ivec sum)
{
    return _mm512_ternarylogic_epi32(x, y, sum, 0x42); /* (x ^ sum) & (y ^ sum) */
}
static inline int align_negative(ivec x)
{
    return _mm512_movepi32_mask(x) != 0;
}

#include "../gemm_align.h"

ALIGN_KERNEL(gemm_align_8x32__avx512);
