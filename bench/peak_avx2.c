/* SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "peak_read.h"

enum {
    LANES = 8
};

/*
 * x -> x / 2 + 1 comes to 2: never subnormal, which would be slow on some cores. The start is
 * not a constant: a compiler that sees a sum stand still takes its FMA out of the loop.
 */
static float loop(uint32_t rounds)
{
    const __m256 half = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1.0f);
    __m256 sum[PEAK_SUMS];
    PEAK_UNROLL
    for (int i = 0; i < PEAK_SUMS; i++)
        sum[i] = _mm256_set1_ps((float)(rounds + (uint32_t)i));
    for (uint32_t r = 0; r < rounds; r++) {
        PEAK_UNROLL
        for (int i = 0; i < PEAK_SUMS; i++)
            sum[i] = _mm256_fmadd_ps(sum[i], half, one);
    }
    PEAK_UNROLL
    for (int i = 1; i < PEAK_SUMS; i++)
        sum[0] = _mm256_add_ps(sum[0], sum[i]);
    return _mm_cvtss_f32(_mm256_castps256_ps128(sum[0]));
}

extern const struct peak peak_avx2;
const struct peak peak_avx2 = { .flops = 2.0 * LANES * PEAK_SUMS,
                                .loop = loop,
                                .read = peak_read };
