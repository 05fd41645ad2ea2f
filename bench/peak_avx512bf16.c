/* SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "peak_read.h"

/* VDPBF16PS: two products and two sums a lane. It takes six cycles, and some cores start two a
 * cycle: twelve sums would just do; twice as many still fit 32 registers. */
enum {
    LANES = 16,
    SUMS = 24
};

/*
 * 1 * 1/2 - 1 * 1/2: a sum stays what it was, which only the CPU knows. Nothing is subnormal:
 * such operands count as zero, and might be had for less.
 */
static float loop(uint32_t rounds)
{
    const __m512bh one = (__m512bh)_mm512_set1_epi32(0x3F803F80),
                   half = (__m512bh)_mm512_set1_epi32((int)0xBF003F00u);
    __m512 sum[SUMS];
    PEAK_UNROLL
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm512_set1_ps((float)(rounds + (uint32_t)i));
    for (uint32_t r = 0; r < rounds; r++) {
        PEAK_UNROLL
        for (int i = 0; i < SUMS; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], one, half);
    }
    PEAK_UNROLL
    for (int i = 1; i < SUMS; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    return _mm_cvtss_f32(_mm512_castps512_ps128(sum[0]));
}

extern const struct peak peak_avx512bf16;
const struct peak peak_avx512bf16 = { .flops = 4.0 * LANES * SUMS,
                                      .loop = loop,
                                      .read = peak_read };
