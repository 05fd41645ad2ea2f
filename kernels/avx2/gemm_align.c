/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of aligned terms: 8 rows of A by 32 columns of B; as the one of AVX-512. */
#include "ints.h"

enum {
    MR = 8,
    NV = 4
};

/* Toward zero. Without the upper eight bits' copies in the lower ones half a last place is 0:
 * the conversion, whatever else is below, rounds down. */
static inline vec align_float(ivec x)
{
    const ivec mag = _mm256_abs_epi32(x),
               sign = _mm256_and_si256(x, _mm256_set1_epi32((int)0x80000000u));
    const vec f = _mm256_cvtepi32_ps(_mm256_andnot_si256(_mm256_srli_epi32(mag, 24), mag));
    return _mm256_or_ps(f, _mm256_castsi256_ps(sign));
}
/* Negative where x + y, which came out as sum, left 32 bits. */
static inline ivec align_over(ivec x, ivec y, ivec sum)
{
    return _mm256_and_si256(_mm256_xor_si256(x, sum), _mm256_xor_si256(y, sum));
}
static inline int align_negative(ivec x)
{
    return _mm256_movemask_ps(_mm256_castsi256_ps(x)) != 0;
}

#include "../gemm_align.h"

ALIGN_KERNEL(gemm_align_8x32__avx2);
