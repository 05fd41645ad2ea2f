/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of aligned terms that C joins late: 8 rows of A by 32 columns of B. A product is what
 * it is in gemm_align.c, five instructions of 32 columns two a cycle; what ends a step is some
 * 40 of 16 columns, most of them FP64's: as much as its products where they are 8.
 */
#include "../ints512.h"

enum {
    MR = 8,
    NV = 2
};

/* Words of the lower or the upper half. */
static inline vec64 late_words(ivec x, int upper)
{
    return _mm512_cvtepi32_pd(upper ? _mm512_extracti64x4_epi64(x, 1)
                                    : _mm512_castsi512_si256(x));
}
static inline vec64 late_floor(vec64 x)
{
    return _mm512_roundscale_pd(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
/* x * 2^-n rounded down, n of a lane each. */
static inline ivec late_down(ivec x, ivec n)
{
    return _mm512_srav_epi32(x, n);
}

#include "../gemm_late.h"

ALIGN_KERNEL(gemm_late_8x32__avx512);
