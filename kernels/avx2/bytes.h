/* SPDX-License-Identifier: Apache-2.0 */
/* What sparse.h asks of an ISA: vectors of bytes. Here 32 of AVX2; a shuffle and a narrowing
 * stay within 16. */
#ifndef NG_AVX2_BYTES_H
#define NG_AVX2_BYTES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum {
    VB = 32
};
typedef __m256i vb;

static inline vb vb_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
static inline void vb_store(uint8_t *p, vb x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}
static inline vb vb_zero(void)
{
    return _mm256_setzero_si256();
}
static inline vb vb_all8(int x)
{
    return _mm256_set1_epi8((char)x);
}
static inline vb vb_all16(int x)
{
    return _mm256_set1_epi16((short)x);
}
/* The same 16 bytes, aligned, again and again. */
static inline vb vb_sixteen(const uint8_t *p)
{
    return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)p));
}
static inline vb vb_and(vb x, vb y)
{
    return _mm256_and_si256(x, y);
}
static inline vb vb_or(vb x, vb y)
{
    return _mm256_or_si256(x, y);
}
/* y without the bits of x. */
static inline vb vb_and_not(vb x, vb y)
{
    return _mm256_andnot_si256(x, y);
}
static inline vb vb_shuffle(vb x, vb from)
{
    return _mm256_shuffle_epi8(x, from);
}
/* Signed comparison; all ones where it holds. */
static inline vb vb_above8(vb x, vb y)
{
    return _mm256_cmpgt_epi8(x, y);
}
static inline vb vb_above16(vb x, vb y)
{
    return _mm256_cmpgt_epi16(x, y);
}
static inline vb vb_equal8(vb x, vb y)
{
    return _mm256_cmpeq_epi8(x, y);
}
static inline vb vb_equal16(vb x, vb y)
{
    return _mm256_cmpeq_epi16(x, y);
}
static inline vb vb_add8(vb x, vb y)
{
    return _mm256_add_epi8(x, y);
}
static inline vb vb_add16(vb x, vb y)
{
    return _mm256_add_epi16(x, y);
}
static inline vb vb_sub8(vb x, vb y)
{
    return _mm256_sub_epi8(x, y);
}
static inline vb vb_sub16(vb x, vb y)
{
    return _mm256_sub_epi16(x, y);
}
/* Unsigned. */
static inline vb vb_min8(vb x, vb y)
{
    return _mm256_min_epu8(x, y);
}
static inline vb vb_min16(vb x, vb y)
{
    return _mm256_min_epu16(x, y);
}
static inline vb vb_abs8(vb x)
{
    return _mm256_abs_epi8(x);
}
/* Sums of two neighbouring products: unsigned x times signed y; signed. */
static inline vb vb_dot8(vb x, vb y)
{
    return _mm256_maddubs_epi16(x, y);
}
static inline vb vb_dot16(vb x, vb y)
{
    return _mm256_madd_epi16(x, y);
}
/* Bytes below 16 times 16. */
static inline vb vb_shl4(vb x)
{
    return _mm256_slli_epi16(x, 4);
}
/* The lower halves of each 16 bytes: those of x, then those of y. */
static inline vb vb_halves(vb x, vb y)
{
    return _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(x, y), 0xD8);
}
/* 16-bit masks to bytes: those of x, then those of y. */
static inline vb vb_narrow(vb x, vb y)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi16(x, y), 0xD8);
}
/* A bit a byte: its highest. VB / 8 bytes are written. */
static inline void vb_bits(uint8_t *p, vb x)
{
    const uint32_t bits = (uint32_t)_mm256_movemask_epi8(x);
    memcpy(p, &bits, sizeof bits);
}
static inline int vb_any(vb x)
{
    return !_mm256_testz_si256(x, x);
}
/* Each of VB / 8 bytes, VB / 4 bytes, VB / 8 words, VB / 4 halves, in as wide a lane. */
static inline vb vb_bytes_to_64(const uint8_t *p)
{
    int x;
    memcpy(&x, p, sizeof x);
    return _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(x));
}
static inline vb vb_bytes_to_32(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
static inline vb vb_32_to_64(const uint8_t *p)
{
    return _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)p));
}
static inline vb vb_16_to_32(const uint8_t *p)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}

#endif
