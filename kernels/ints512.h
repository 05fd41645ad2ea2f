/* SPDX-License-Identifier: Apache-2.0 */
/* What cast.h, quantize.h and nvfp4.h ask of an ISA: words in vectors. Here 16 lanes of
 * AVX-512. */
#ifndef NG_KERNELS_INTS512_H
#define NG_KERNELS_INTS512_H

#include "order.h"
#include "vec512.h"

#define IV_INLINE static inline __attribute__((always_inline))
#define IV_UNROLL ORDER_UNROLL

typedef __m512i ivec;
typedef __mmask16 imask;

static inline ivec iv_all(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}
static inline ivec iv_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
static inline void iv_store(void *p, ivec x)
{
    _mm512_storeu_si512(p, x);
}
/* Past the caches; p is a multiple of the vector's size. */
static inline void iv_stream(void *p, ivec x)
{
    _mm512_stream_si512((__m512i *)p, x);
}
static inline void iv_write(void *p, ivec x, const int stream)
{
    if (stream)
        iv_stream(p, x);
    else
        iv_store(p, x);
}
/* VL codes of 4, 8, 16 bits, to words. */
static inline ivec iv_load4(const uint8_t *p)
{
    const __m512i half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                  down = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24,
                                           28);
    const __m512i w = _mm512_permutexvar_epi32(
        half, _mm512_castsi128_si512(_mm_loadl_epi64((const __m128i *)p)));
    return _mm512_and_si512(_mm512_srlv_epi32(w, down), _mm512_set1_epi32(15));
}
static inline ivec iv_load8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline ivec iv_load16(const uint8_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}
static inline ivec iv_and(ivec x, ivec y)
{
    return _mm512_and_si512(x, y);
}
static inline ivec iv_or(ivec x, ivec y)
{
    return _mm512_or_si512(x, y);
}
static inline ivec iv_xor(ivec x, ivec y)
{
    return _mm512_xor_si512(x, y);
}
/* Lanes 0 and 1 change places, 2 and 3, ... */
static inline ivec iv_swap(ivec x)
{
    return _mm512_shuffle_epi32(x, _MM_PERM_CDAB);
}
static inline ivec iv_add(ivec x, ivec y)
{
    return _mm512_add_epi32(x, y);
}
static inline ivec iv_sub(ivec x, ivec y)
{
    return _mm512_sub_epi32(x, y);
}
/* Each 16-bit half: 0 where x is below y. */
static inline ivec iv_less16(ivec x, ivec y)
{
    return _mm512_subs_epu16(x, y);
}
/* x | (y & mask) */
static inline ivec iv_or_some(ivec x, ivec y, ivec mask)
{
    return _mm512_ternarylogic_epi32(x, y, mask, 0xF8);
}
/* Counts of a lane each; from 32 on (or negative) nothing is left. */
static inline ivec iv_srl(ivec x, ivec n)
{
    return _mm512_srlv_epi32(x, n);
}
static inline ivec iv_sll(ivec x, ivec n)
{
    return _mm512_sllv_epi32(x, n);
}
#define iv_srl_by(x, n) _mm512_srli_epi32(x, (unsigned)(n))
#define iv_sll_by(x, n) _mm512_slli_epi32(x, (unsigned)(n))
#define iv_sra_by(x, n) _mm512_srai_epi32(x, (unsigned)(n))
static inline ivec iv_min_u(ivec x, ivec y)
{
    return _mm512_min_epu32(x, y);
}
static inline ivec iv_max_u(ivec x, ivec y)
{
    return _mm512_max_epu32(x, y);
}
static inline ivec iv_min(ivec x, ivec y)
{
    return _mm512_min_epi32(x, y);
}
static inline ivec iv_max(ivec x, ivec y)
{
    return _mm512_max_epi32(x, y);
}
/* Signed. */
static inline imask iv_gt(ivec x, ivec y)
{
    return _mm512_cmpgt_epi32_mask(x, y);
}
static inline imask iv_eq(ivec x, ivec y)
{
    return _mm512_cmpeq_epi32_mask(x, y);
}
static inline imask im_and(imask x, imask y)
{
    return (imask)(x & y);
}
/* Of y those not in x. */
static inline imask im_andnot(imask x, imask y)
{
    return (imask)(~x & y);
}
static inline imask im_or(imask x, imask y)
{
    return (imask)(x | y);
}
static inline int im_any(imask x)
{
    return x != 0;
}
/* The lowest lane of a mask that has one. */
static inline int im_lowest(imask x)
{
    return __builtin_ctz(x);
}
/* x where m, else y. */
static inline ivec iv_pick(imask m, ivec x, ivec y)
{
    return _mm512_mask_blend_epi32(m, y, x);
}
/* x where m, else 0. */
static inline ivec iv_where(imask m, ivec x)
{
    return _mm512_maskz_mov_epi32(m, x);
}
/* x where a bit of the mask is 1, else y. */
static inline ivec iv_select(ivec mask, ivec x, ivec y)
{
    return _mm512_ternarylogic_epi32(mask, x, y, 0xCA);
}
/* c + 1 where x > y, signed; else c. */
static inline ivec iv_count(ivec c, ivec x, ivec y)
{
    return _mm512_mask_add_epi32(c, _mm512_cmpgt_epi32_mask(x, y), c, _mm512_set1_epi32(1));
}
static inline vec iv_float(ivec x)
{
    return _mm512_castsi512_ps(x);
}
static inline ivec iv_bits(vec x)
{
    return _mm512_castps_si512(x);
}
static inline vec iv_to_float(ivec x)
{
    return _mm512_cvtepi32_ps(x);
}
/* Toward zero. */
static inline ivec iv_cut(vec x)
{
    return _mm512_cvttps_epi32(x);
}
/* x at `at` of a table of 16 FP32 patterns, `at` below 16. */
static inline ivec iv_at(const uint32_t table[16], ivec at)
{
    return _mm512_permutexvar_epi32(at, iv_load(table));
}
/* Unsigned; halves: of 16-bit lanes. */
static inline ivec iv_larger(ivec x, ivec y, const int halves)
{
    return halves ? _mm512_max_epu16(x, y) : _mm512_max_epu32(x, y);
}
/* Lane i: the largest of x[i]'s; halves: of its lower and of its upper halves. */
static inline ivec iv_most_as(const ivec x[VL], const int halves)
{
    ivec s[4];
    for (int i = 0; i < 4; i++) {
        const ivec *y = x + 4 * i;
        const ivec a = iv_larger(_mm512_unpacklo_epi32(y[0], y[1]),
                                 _mm512_unpackhi_epi32(y[0], y[1]), halves),
                   b = iv_larger(_mm512_unpacklo_epi32(y[2], y[3]),
                                 _mm512_unpackhi_epi32(y[2], y[3]), halves);
        s[i] = iv_larger(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b), halves);
    }
    const ivec a = iv_larger(_mm512_shuffle_i32x4(s[0], s[1], 0x44),
                             _mm512_shuffle_i32x4(s[0], s[1], 0xEE), halves),
               b = iv_larger(_mm512_shuffle_i32x4(s[2], s[3], 0x44),
                             _mm512_shuffle_i32x4(s[2], s[3], 0xEE), halves);
    return iv_larger(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD),
                     halves);
}
static inline ivec iv_most_of(const ivec x[VL])
{
    return iv_most_as(x, 0);
}
/* Quarters: of x[0], x[by], x[2 by], x[3 by] the first, the second, ... */
IV_INLINE void iv_turn_quarters(ivec *x, int by)
{
    const ivec a = _mm512_shuffle_i32x4(x[0], x[by], 0x44),
               b = _mm512_shuffle_i32x4(x[0], x[by], 0xEE),
               c = _mm512_shuffle_i32x4(x[2 * by], x[3 * by], 0x44),
               d = _mm512_shuffle_i32x4(x[2 * by], x[3 * by], 0xEE);
    x[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    x[by] = _mm512_shuffle_i32x4(a, c, 0xDD);
    x[2 * by] = _mm512_shuffle_i32x4(b, d, 0x88);
    x[3 * by] = _mm512_shuffle_i32x4(b, d, 0xDD);
}
/* Squares of 4 by 4 words, one in each quarter. */
IV_INLINE void iv_turn_squares(ivec x[4])
{
    const ivec a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]),
               c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi64(a, c);
    x[1] = _mm512_unpackhi_epi64(a, c);
    x[2] = _mm512_unpacklo_epi64(b, d);
    x[3] = _mm512_unpackhi_epi64(b, d);
}
/* Lane i of x[k] and lane k of x[i] change places. */
IV_INLINE void iv_transpose(ivec x[VL])
{
    IV_UNROLL
    for (int i = 0; i < VL; i += 4)
        iv_turn_squares(x + i);
    IV_UNROLL
    for (int i = 0; i < 4; i++)
        iv_turn_quarters(x + i, 4);
}
/* Doubles of two words: half of the lanes each, in an order that low_words() and high_words()
 * of both halves undo. */
static inline vec64 vec64_of_words(ivec low, ivec high, int half)
{
    return _mm512_castsi512_pd(half ? _mm512_unpackhi_epi32(low, high)
                                    : _mm512_unpacklo_epi32(low, high));
}
static inline ivec iv_low_words(vec64 a, vec64 b)
{
    return _mm512_castps_si512(
        _mm512_shuffle_ps(_mm512_castpd_ps(a), _mm512_castpd_ps(b), 0x88));
}
static inline ivec iv_high_words(vec64 a, vec64 b)
{
    return _mm512_castps_si512(
        _mm512_shuffle_ps(_mm512_castpd_ps(a), _mm512_castpd_ps(b), 0xDD));
}
/* Signed lanes of 16 bits. */
static inline ivec iv_max16(ivec x, ivec y)
{
    return _mm512_max_epi16(x, y);
}
/* Lanes of 16 bits, none of them negative, to words: the first or the last VL. */
static inline ivec iv_wide16(ivec x, int upper)
{
    return _mm512_cvtepu16_epi32(upper ? _mm512_extracti64x4_epi64(x, 1)
                                       : _mm512_castsi512_si256(x));
}
/* 2^x of the lower or the upper half, x a normal exponent. */
static inline vec64 vec64_power(ivec x, int upper)
{
    const __m512i wide = _mm512_cvtepi32_epi64(upper ? _mm512_extracti64x4_epi64(x, 1)
                                                     : _mm512_castsi512_si256(x));
    return _mm512_castsi512_pd(
        _mm512_slli_epi64(_mm512_add_epi64(wide, _mm512_set1_epi64(1023)), 52));
}
static inline uint32_t iv_most_u(ivec x)
{
    return _mm512_reduce_max_epu32(x);
}
/* The low bytes of VL words. */
static inline void iv_put_bytes(uint8_t *p, ivec x)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x));
}

/* ---- 32 halves of words: what halves512.h and quant_rows512.h do beyond the above. ---- */

#define IV_HALVES 1

/* x, but no farther from 0 than y, no nearer to 0 than y: its sign stays. No NaNs. */
static inline vec vec_no_farther(vec x, vec y)
{
    return _mm512_range_ps(x, y, 0x2);
}
static inline vec vec_no_nearer(vec x, vec y)
{
    return _mm512_range_ps(x, y, 0x3);
}
static inline ivec iv_all16(uint32_t x)
{
    return _mm512_set1_epi16((short)x);
}
static inline ivec iv_add16(ivec x, ivec y)
{
    return _mm512_add_epi16(x, y);
}
static inline ivec iv_srl16(ivec x, ivec n)
{
    return _mm512_srlv_epi16(x, n);
}
/* ---- Bytes. ---- */

/* 16 values, and those that the bytes of `at`, 0 to 15, choose. */
static inline ivec iv_sixteen(const uint8_t *p)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
}
static inline ivec iv_look_up(ivec sixteen, ivec at)
{
    return _mm512_shuffle_epi8(sixteen, at);
}
/* Sums of two products, of unsigned bytes of x and signed ones of y, in 16 bits; of two of
 * these in words. */
static inline ivec iv_dot_bytes(ivec x, ivec y)
{
    return _mm512_maddubs_epi16(x, y);
}
static inline ivec iv_add8(ivec x, ivec y)
{
    return _mm512_add_epi8(x, y);
}
static inline ivec iv_sum_halves(ivec x)
{
    return _mm512_madd_epi16(x, _mm512_set1_epi16(1));
}
/* The upper, the lower halves of words: those of x, then those of y; or in turn. */
static inline ivec iv_halves(ivec x, ivec y, int upper, int in_turn)
{
    uint16_t at[32];
    for (int i = 0; i < 32; i++)
        at[i] = (uint16_t)(in_turn ? i / 2 * 2 + i % 2 * 32 + upper : 2 * i + upper);
    return _mm512_permutex2var_epi16(x, iv_load(at), y);
}

/* ---- 32 words of at most 4, 8, 16 bits become codes. ---- */

enum {
    IV_GROUP = 32,
    IV_GROUP_VECTORS = IV_GROUP / VL
};

static inline void iv_put(void *p, __m256i x, const int stream)
{
    if (stream)
        _mm256_stream_si256((__m256i *)p, x);
    else
        _mm256_storeu_si256((__m256i *)p, x);
}
static inline void iv_store16(void *p, const ivec *x, const int stream)
{
    iv_put(p, _mm512_cvtepi32_epi16(x[0]), stream);
    iv_put((char *)p + 32, _mm512_cvtepi32_epi16(x[1]), stream);
}
/* The upper halves. */
static inline void iv_store_upper(void *p, const ivec *x)
{
    _mm512_storeu_si512(p, iv_halves(x[0], x[1], 1, 0));
}
static inline __m256i iv_bytes(const ivec *x)
{
    const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    return _mm256_permutevar8x32_epi32(_mm512_cvtepi16_epi8(_mm512_packus_epi32(x[0], x[1])),
                                       order);
}
static inline void iv_store8(void *p, const ivec *x, const int stream)
{
    iv_put(p, iv_bytes(x), stream);
}
static inline void iv_store4(void *p, const ivec *x, const int stream)
{
    /* even + 16 * odd, then the 16-bit sums' low bytes together */
    const __m256i pairs = _mm256_maddubs_epi16(iv_bytes(x), _mm256_set1_epi16(0x1001));
    const __m128i y =
        _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    if (stream)
        _mm_stream_si128((__m128i *)p, y);
    else
        _mm_storeu_si128((__m128i *)p, y);
}
/* 64 halves of at most 8, 4 bits. */
static inline void iv_store8_of(void *p, ivec x, ivec y, const int stream)
{
    const ivec z = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                                            _mm512_packus_epi16(x, y));
    iv_write(p, z, stream);
}
static inline void iv_store4_of(void *p, ivec x, ivec y, const int stream)
{
    /* even + 16 * odd; of each 16 bytes the first half is x's */
    const ivec pairs =
        _mm512_maddubs_epi16(_mm512_packus_epi16(x, y), _mm512_set1_epi16(0x1001));
    const ivec z = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), pairs);
    iv_put(p, _mm512_cvtepi16_epi8(z), stream);
}

#endif
