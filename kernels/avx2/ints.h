/* SPDX-License-Identifier: Apache-2.0 */
/* What cast.h, quantize.h and nvfp4.h ask of an ISA: words in vectors. Here 8 lanes of AVX2. */
#ifndef NG_AVX2_INTS_H
#define NG_AVX2_INTS_H

#include <string.h>

#include "../order.h"
#include "vec.h"

#define IV_INLINE static inline __attribute__((always_inline))
#define IV_UNROLL ORDER_UNROLL

typedef __m256i ivec;
typedef __m256i imask; /* lanes of all ones or zero */

static inline ivec iv_all(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}
static inline ivec iv_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
static inline void iv_store(void *p, ivec x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}
/* Past the caches; p is a multiple of the vector's size. */
static inline void iv_stream(void *p, ivec x)
{
    _mm256_stream_si256((__m256i *)p, x);
}
/* VL codes of 4, 8, 16 bits, to words. */
static inline ivec iv_load4(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return _mm256_and_si256(
        _mm256_srlv_epi32(iv_all(w), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
        iv_all(15));
}
static inline ivec iv_load8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
static inline ivec iv_load16(const uint8_t *p)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline ivec iv_and(ivec x, ivec y)
{
    return _mm256_and_si256(x, y);
}
static inline ivec iv_or(ivec x, ivec y)
{
    return _mm256_or_si256(x, y);
}
static inline ivec iv_xor(ivec x, ivec y)
{
    return _mm256_xor_si256(x, y);
}
/* Lanes 0 and 1 change places, 2 and 3, ... */
static inline ivec iv_swap(ivec x)
{
    return _mm256_shuffle_epi32(x, 0xB1);
}
static inline ivec iv_add(ivec x, ivec y)
{
    return _mm256_add_epi32(x, y);
}
static inline ivec iv_sub(ivec x, ivec y)
{
    return _mm256_sub_epi32(x, y);
}
/* Each 16-bit half: 0 where x is below y. */
static inline ivec iv_less16(ivec x, ivec y)
{
    return _mm256_subs_epu16(x, y);
}
/* x | (y & mask) */
static inline ivec iv_or_some(ivec x, ivec y, ivec mask)
{
    return _mm256_or_si256(x, _mm256_and_si256(y, mask));
}
/* Counts of a lane each; from 32 on (or negative) nothing is left. */
static inline ivec iv_srl(ivec x, ivec n)
{
    return _mm256_srlv_epi32(x, n);
}
static inline ivec iv_sll(ivec x, ivec n)
{
    return _mm256_sllv_epi32(x, n);
}
#define iv_srl_by(x, n) _mm256_srli_epi32(x, n)
#define iv_sll_by(x, n) _mm256_slli_epi32(x, n)
#define iv_sra_by(x, n) _mm256_srai_epi32(x, n)
static inline ivec iv_min_u(ivec x, ivec y)
{
    return _mm256_min_epu32(x, y);
}
static inline ivec iv_max_u(ivec x, ivec y)
{
    return _mm256_max_epu32(x, y);
}
static inline ivec iv_min(ivec x, ivec y)
{
    return _mm256_min_epi32(x, y);
}
static inline ivec iv_max(ivec x, ivec y)
{
    return _mm256_max_epi32(x, y);
}
/* Signed. */
static inline imask iv_gt(ivec x, ivec y)
{
    return _mm256_cmpgt_epi32(x, y);
}
static inline imask iv_eq(ivec x, ivec y)
{
    return _mm256_cmpeq_epi32(x, y);
}
static inline imask im_and(imask x, imask y)
{
    return _mm256_and_si256(x, y);
}
/* Of y those not in x. */
static inline imask im_andnot(imask x, imask y)
{
    return _mm256_andnot_si256(x, y);
}
static inline imask im_or(imask x, imask y)
{
    return _mm256_or_si256(x, y);
}
static inline int im_any(imask x)
{
    return !_mm256_testz_si256(x, x);
}
/* The lowest lane of a mask that has one. */
static inline int im_lowest(imask x)
{
    return __builtin_ctz((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(x)));
}
/* x where m, else y. */
static inline ivec iv_pick(imask m, ivec x, ivec y)
{
    return _mm256_blendv_epi8(y, x, m);
}
/* x where m, else 0. */
static inline ivec iv_where(imask m, ivec x)
{
    return _mm256_and_si256(x, m);
}
/* x where a byte of the mask is ones, y where it is zeros. */
static inline ivec iv_select(ivec mask, ivec x, ivec y)
{
    return _mm256_blendv_epi8(y, x, mask);
}
/* c + 1 where x > y, signed; else c. */
static inline ivec iv_count(ivec c, ivec x, ivec y)
{
    return _mm256_sub_epi32(c, _mm256_cmpgt_epi32(x, y));
}
/* ---- Bytes. ---- */

/* 16 values, and those that the bytes of `at`, 0 to 15, choose. */
static inline ivec iv_sixteen(const uint8_t *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
}
static inline ivec iv_look_up(ivec sixteen, ivec at)
{
    return _mm256_shuffle_epi8(sixteen, at);
}
/* Sums of two products, of unsigned bytes of x and signed ones of y, in 16 bits; of two of
 * these in words. */
static inline ivec iv_dot_bytes(ivec x, ivec y)
{
    return _mm256_maddubs_epi16(x, y);
}
static inline ivec iv_add8(ivec x, ivec y)
{
    return _mm256_add_epi8(x, y);
}
static inline ivec iv_sum_halves(ivec x)
{
    return _mm256_madd_epi16(x, _mm256_set1_epi16(1));
}
static inline ivec iv_all16(uint32_t x)
{
    return _mm256_set1_epi16((short)x);
}
static inline ivec iv_add16(ivec x, ivec y)
{
    return _mm256_add_epi16(x, y);
}

static inline vec iv_float(ivec x)
{
    return _mm256_castsi256_ps(x);
}
static inline ivec iv_bits(vec x)
{
    return _mm256_castps_si256(x);
}
static inline vec iv_to_float(ivec x)
{
    return _mm256_cvtepi32_ps(x);
}
/* Toward zero. */
static inline ivec iv_cut(vec x)
{
    return _mm256_cvttps_epi32(x);
}
/* x at `at` of a table of 16 FP32 patterns, `at` below 16. */
static inline ivec iv_at(const uint32_t table[16], ivec at)
{
    const ivec low = _mm256_permutevar8x32_epi32(iv_load(table), at),
               high = _mm256_permutevar8x32_epi32(iv_load(table + 8), at);
    /* by each lane's sign, to where bit 3 goes */
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(low),
                                                _mm256_castsi256_ps(high),
                                                _mm256_castsi256_ps(iv_sll_by(at, 28))));
}
/* Lane i: the largest of x[i]'s. */
static inline ivec iv_most_of(const ivec x[VL])
{
    ivec s[2];
    for (int i = 0; i < 2; i++) {
        const ivec *y = x + 4 * i;
        const ivec a = iv_max_u(_mm256_unpacklo_epi32(y[0], y[1]),
                                _mm256_unpackhi_epi32(y[0], y[1])),
                   b = iv_max_u(_mm256_unpacklo_epi32(y[2], y[3]),
                                _mm256_unpackhi_epi32(y[2], y[3]));
        s[i] = iv_max_u(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    }
    return iv_max_u(_mm256_permute2x128_si256(s[0], s[1], 0x20),
                    _mm256_permute2x128_si256(s[0], s[1], 0x31));
}
/* Lane i of x[k] and lane k of x[i] change places. */
IV_INLINE void iv_transpose(ivec x[VL])
{
    IV_UNROLL
    for (int i = 0; i < VL; i += 4) { /* squares of 4 by 4, one in each half */
        const ivec a = _mm256_unpacklo_epi32(x[i], x[i + 1]),
                   b = _mm256_unpackhi_epi32(x[i], x[i + 1]),
                   c = _mm256_unpacklo_epi32(x[i + 2], x[i + 3]),
                   d = _mm256_unpackhi_epi32(x[i + 2], x[i + 3]);
        x[i] = _mm256_unpacklo_epi64(a, c);
        x[i + 1] = _mm256_unpackhi_epi64(a, c);
        x[i + 2] = _mm256_unpacklo_epi64(b, d);
        x[i + 3] = _mm256_unpackhi_epi64(b, d);
    }
    IV_UNROLL
    for (int i = 0; i < 4; i++) {
        const ivec a = x[i], b = x[i + 4];
        x[i] = _mm256_permute2x128_si256(a, b, 0x20);
        x[i + 4] = _mm256_permute2x128_si256(a, b, 0x31);
    }
}
/* Doubles of two words: half of the lanes each, in an order that low_words() and high_words()
 * of both halves undo. */
static inline vec64 vec64_of_words(ivec low, ivec high, int half)
{
    return _mm256_castsi256_pd(half ? _mm256_unpackhi_epi32(low, high)
                                    : _mm256_unpacklo_epi32(low, high));
}
static inline ivec iv_low_words(vec64 a, vec64 b)
{
    return iv_bits(_mm256_shuffle_ps(_mm256_castpd_ps(a), _mm256_castpd_ps(b), 0x88));
}
static inline ivec iv_high_words(vec64 a, vec64 b)
{
    return iv_bits(_mm256_shuffle_ps(_mm256_castpd_ps(a), _mm256_castpd_ps(b), 0xDD));
}
/* Signed lanes of 16 bits. */
static inline ivec iv_max16(ivec x, ivec y)
{
    return _mm256_max_epi16(x, y);
}
/* Lanes of 16 bits, none of them negative, to words: the first or the last VL. */
static inline ivec iv_wide16(ivec x, int upper)
{
    return _mm256_cvtepu16_epi32(upper ? _mm256_extracti128_si256(x, 1)
                                       : _mm256_castsi256_si128(x));
}
/* 2^x of the lower or the upper half, x a normal exponent. */
static inline vec64 vec64_power(ivec x, int upper)
{
    const __m256i wide = _mm256_cvtepi32_epi64(upper ? _mm256_extracti128_si256(x, 1)
                                                     : _mm256_castsi256_si128(x));
    return _mm256_castsi256_pd(
        _mm256_slli_epi64(_mm256_add_epi64(wide, _mm256_set1_epi64x(1023)), 52));
}
static inline uint32_t iv_most_u(ivec x)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* ---- 32 words of at most 4, 8, 16 bits become codes. ---- */

enum {
    IV_GROUP = 32,
    IV_GROUP_VECTORS = IV_GROUP / VL
};

static inline void iv_store16(void *p, const ivec *x, const int stream)
{
    for (int i = 0; i < 2; i++) {
        const ivec y =
            _mm256_permute4x64_epi64(_mm256_packus_epi32(x[2 * i], x[2 * i + 1]), 0xD8);
        if (stream)
            iv_stream((char *)p + 32 * i, y);
        else
            iv_store((char *)p + 32 * i, y);
    }
}
/* The upper halves. */
static inline void iv_store_upper(void *p, const ivec *x)
{
    ivec y[4];
    for (int i = 0; i < 4; i++)
        y[i] = iv_srl_by(x[i], 16);
    iv_store16(p, y, 0);
}
static inline ivec iv_bytes(const ivec *x)
{
    const ivec y =
        _mm256_packus_epi16(_mm256_packus_epi32(x[0], x[1]), _mm256_packus_epi32(x[2], x[3]));
    return _mm256_permutevar8x32_epi32(y, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
static inline void iv_store8(void *p, const ivec *x, const int stream)
{
    if (stream)
        iv_stream(p, iv_bytes(x));
    else
        iv_store(p, iv_bytes(x));
}
static inline void iv_store4(void *p, const ivec *x, const int stream)
{
    /* even + 16 * odd, then the 16-bit sums' low bytes together */
    const ivec pairs = _mm256_maddubs_epi16(iv_bytes(x), _mm256_set1_epi16(0x1001));
    const __m128i y =
        _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    if (stream)
        _mm_stream_si128((__m128i *)p, y);
    else
        _mm_storeu_si128((__m128i *)p, y);
}

#endif
