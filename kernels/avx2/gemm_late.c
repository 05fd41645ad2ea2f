/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of aligned terms that C joins late: 8 rows of A by 32 columns of B; as the one of
 * AVX-512.
 */
#include "ints.h"

enum {
    MR = 8,
    NV = 4
};

/* Words of the lower or the upper half. */
static inline vec64 late_words(ivec x, int upper)
{
    return _mm256_cvtepi32_pd(upper ? _mm256_extracti128_si256(x, 1)
                                    : _mm256_castsi256_si128(x));
}
static inline vec64 late_floor(vec64 x)
{
    return _mm256_floor_pd(x);
}
/* x * 2^-n rounded down, n of a lane each. */
static inline ivec late_down(ivec x, ivec n)
{
    return _mm256_srav_epi32(x, n);
}

#include "../gemm_late.h"

ALIGN_KERNEL(gemm_late_8x32__avx2);
