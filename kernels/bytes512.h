/* SPDX-License-Identifier: Apache-2.0 */
/* What sparse.h asks of an ISA: vectors of bytes. Here 64 of AVX-512; a shuffle and a narrowing
 * stay within 16. */
#ifndef NG_KERNELS_BYTES512_H
#define NG_KERNELS_BYTES512_H

#include "intrin.h"
#include <stdint.h>
#include <string.h>

enum {
    VB = 64
};
typedef __m512i vb;

static inline vb vb_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}
static inline void vb_store(uint8_t *p, vb x)
{
    _mm512_storeu_si512(p, x);
}
static inline vb vb_zero(void)
{
    return _mm512_setzero_si512();
}
static inline vb vb_all8(int x)
{
    return _mm512_set1_epi8((char)x);
}
static inline vb vb_all16(int x)
{
    return _mm512_set1_epi16((short)x);
}
/* The same 16 bytes, aligned, again and again. */
static inline vb vb_sixteen(const uint8_t *p)
{
    return _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)p));
}
static inline vb vb_and(vb x, vb y)
{
    return _mm512_and_si512(x, y);
}
static inline vb vb_or(vb x, vb y)
{
    return _mm512_or_si512(x, y);
}
/* y without the bits of x. */
static inline vb vb_and_not(vb x, vb y)
{
    return _mm512_andnot_si512(x, y);
}
static inline vb vb_shuffle(vb x, vb from)
{
    return _mm512_shuffle_epi8(x, from);
}
/* Signed comparison; all ones where it holds. */
static inline vb vb_above8(vb x, vb y)
{
    return _mm512_movm_epi8(_mm512_cmpgt_epi8_mask(x, y));
}
static inline vb vb_above16(vb x, vb y)
{
    return _mm512_movm_epi16(_mm512_cmpgt_epi16_mask(x, y));
}
static inline vb vb_equal8(vb x, vb y)
{
    return _mm512_movm_epi8(_mm512_cmpeq_epi8_mask(x, y));
}
static inline vb vb_equal16(vb x, vb y)
{
    return _mm512_movm_epi16(_mm512_cmpeq_epi16_mask(x, y));
}
static inline vb vb_add8(vb x, vb y)
{
    return _mm512_add_epi8(x, y);
}
static inline vb vb_add16(vb x, vb y)
{
    return _mm512_add_epi16(x, y);
}
static inline vb vb_sub8(vb x, vb y)
{
    return _mm512_sub_epi8(x, y);
}
static inline vb vb_sub16(vb x, vb y)
{
    return _mm512_sub_epi16(x, y);
}
/* Unsigned. */
static inline vb vb_min8(vb x, vb y)
{
    return _mm512_min_epu8(x, y);
}
static inline vb vb_min16(vb x, vb y)
{
    return _mm512_min_epu16(x, y);
}
static inline vb vb_abs8(vb x)
{
    return _mm512_abs_epi8(x);
}
/* Sums of two neighbouring products: unsigned x times signed y; signed. */
static inline vb vb_dot8(vb x, vb y)
{
    return _mm512_maddubs_epi16(x, y);
}
static inline vb vb_dot16(vb x, vb y)
{
    return _mm512_madd_epi16(x, y);
}
/* Bytes below 16 times 16. */
static inline vb vb_shl4(vb x)
{
    return _mm512_slli_epi16(x, 4);
}
/* The 64-bit lanes of even number, then those of odd number. */
static inline vb vb_even_odd(vb x)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), x);
}
/* The lower halves of each 16 bytes: those of x, then those of y. */
static inline vb vb_halves(vb x, vb y)
{
    return vb_even_odd(_mm512_unpacklo_epi64(x, y));
}
/* 16-bit masks to bytes: those of x, then those of y. */
static inline vb vb_narrow(vb x, vb y)
{
    return vb_even_odd(_mm512_packs_epi16(x, y));
}
/* A bit a byte: its highest. VB / 8 bytes are written. */
static inline void vb_bits(uint8_t *p, vb x)
{
    const uint64_t bits = _mm512_movepi8_mask(x);
    memcpy(p, &bits, sizeof bits);
}
static inline int vb_any(vb x)
{
    return _mm512_test_epi8_mask(x, x) != 0;
}
/* Each of VB / 8 bytes, VB / 4 bytes, VB / 8 words, VB / 4 halves, in as wide a lane. */
static inline vb vb_bytes_to_64(const uint8_t *p)
{
    return _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)p));
}
static inline vb vb_bytes_to_32(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline vb vb_32_to_64(const uint8_t *p)
{
    return _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i *)p));
}
static inline vb vb_16_to_32(const uint8_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}

#endif
