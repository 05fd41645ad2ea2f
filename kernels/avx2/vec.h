/* SPDX-License-Identifier: Apache-2.0 */
/* What gemm_fma.h asks of an ISA: FP32 vectors. Here 8 lanes of AVX2 and FMA. */
#ifndef NG_AVX2_VEC_H
#define NG_AVX2_VEC_H

#include <immintrin.h>
#include <stdint.h>

#include "../codes.h"

enum {
    VL = 8
};
typedef __m256 vec;

static inline vec vec_zero(void)
{
    return _mm256_setzero_ps();
}
static inline vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void vec_store(float *p, vec x)
{
    _mm256_storeu_ps(p, x);
}
static inline vec vec_all(const float *p)
{
    return _mm256_broadcast_ss(p);
}
static inline vec vec_add(vec x, vec y)
{
    return _mm256_add_ps(x, y);
}
static inline vec vec_sub(vec x, vec y)
{
    return _mm256_sub_ps(x, y);
}
static inline vec vec_mul(vec x, vec y)
{
    return _mm256_mul_ps(x, y);
}
static inline vec vec_div(vec x, vec y)
{
    return _mm256_div_ps(x, y);
}
static inline vec vec_fma(vec x, vec y, vec z)
{
    return _mm256_fmadd_ps(x, y, z);
}
static inline void vec_fma_to(vec *acc, vec x, vec y)
{
    *acc = vec_fma(x, y, *acc);
}
/*
 * The bf16 in the upper, the lower halves of words, as FP32. Mask and words are operands in
 * memory: a tile has no register for them, and compilers, asked for an AND, find one by
 * spilling a sum.
 */
static inline vec vec_upper(const uint32_t *p)
{
    static const uint32_t mask[VL]
        __attribute__((aligned(32))) = { 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u,
                                         0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u };
    vec x;
    __asm__("vmovaps %1, %0\n\tvandps %2, %0, %0"
            : "=&x"(x)
            : "m"(mask), "m"(*(const uint32_t(*)[VL])p));
    return x;
}
static inline vec vec_lower(const uint32_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)p), 16));
}
/* VL codes of bf16, as FP32. */
static inline vec vec_bf16(const void *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
/* Of a vector's VEC_PICKS values, here four in each half, those at places of two bits, in the
 * lowest bits of words, of the `four`-th four positions. */
enum {
    VEC_PICKS = 4
};
static inline __m256i vec_up(int64_t four)
{
    (void)four;
    return _mm256_setzero_si256();
}
static inline __m256i vec_pick_at(__m256i places, __m256i up)
{
    (void)up;
    return places; /* no more than two bits are looked at */
}
static inline vec vec_pick(vec x, __m256i at)
{
    return _mm256_permutevar_ps(x, at);
}
static inline __m256i vec_next_place(__m256i at)
{
    return _mm256_srli_epi32(at, 2);
}
static inline vec vec_all_upper(const uint32_t *p)
{
    return _mm256_castsi256_ps(_mm256_set1_epi32((int)(*p & 0xFFFF0000u)));
}
static inline vec vec_all_lower(const uint32_t *p)
{
    return _mm256_castsi256_ps(_mm256_set1_epi32((int)(*p << 16)));
}
/* Is one of VL bytes greater than `limit`? */
static inline int vec_any_above(const uint8_t *p, int limit)
{
    const __m128i x = _mm_loadl_epi64((const __m128i *)p),
                  over = _mm_subs_epu8(x, _mm_set1_epi8((char)limit));
    return !_mm_testz_si128(over, over);
}

/* ---- 4-bit codes as slim.h keeps them, to pairs of bf16. ---- */

typedef __m256i vec_pairs;

/* The upper two bytes of 16 codes' FP32 patterns. */
struct vec_codes {
    __m256i low, high;
};

static inline struct vec_codes vec_code_table(const uint32_t *widen)
{
    uint8_t low[16], high[16];
    for (int i = 0; i < 16; i++) {
        low[i] = (uint8_t)(widen[i] >> 16);
        high[i] = (uint8_t)(widen[i] >> 24);
    }
    return (struct vec_codes){ _mm256_broadcastsi128_si256(_mm_loadu_si128((__m128i *)low)),
                               _mm256_broadcastsi128_si256(_mm_loadu_si128((__m128i *)high)) };
}

/*
 * Of eight positions of `width` columns, the byte and the bit where column l's code at position
 * `at` begins: 32 columns of two positions in as many bytes, the first 16 in their lower
 * halves, in the order in which unpacking them gives pairs.
 */
static inline int vec_code_byte(int width, int at, int l)
{
    return at / 2 * width + l / 32 * 32 + l / 4 % 2 * 16 + l / 8 % 2 * 8 + l % 4 * 2 +
           (at % 2 ? 0 : 1);
}
static inline int vec_code_shift(int at, int l)
{
    (void)at;
    return l % 32 < 16 ? 0 : 4;
}

/* Two positions of 32 columns, 16 beside 16 in a byte each. */
static inline void vec_code_put_two(uint8_t *codes, __m128i first, __m128i second)
{
    const __m128i low = _mm_unpacklo_epi8(second, first),
                  high = _mm_unpackhi_epi8(second, first);
    _mm_storeu_si128((__m128i *)codes, _mm_unpacklo_epi64(low, high));
    _mm_storeu_si128((__m128i *)codes + 1, _mm_unpackhi_epi64(low, high));
}

/* The eight positions of `width` columns, from a byte a code, positions `row` apart. */
static inline void vec_code_put(uint8_t *codes, int width, const uint8_t *code, int row)
{
    for (int at = 0; at < 8; at += 2)
        for (int l = 0; l < width; l += 32) {
            __m128i both[2];
            for (int i = 0; i < 2; i++) {
                const __m128i *from = (const __m128i *)(code + (at + i) * row + l);
                both[i] = _mm_or_si128(_mm_loadu_si128(from),
                                       _mm_slli_epi16(_mm_loadu_si128(from + 1), 4));
            }
            vec_code_put_two(codes + at / 2 * width + l, both[0], both[1]);
        }
}

/* The same from words, of a column each: its codes in order, the first one lowest. */
static inline void vec_code_put_words(uint8_t *codes, int width, const uint32_t *word)
{
    const __m256i by_byte = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m128i low = _mm_set1_epi8(0xF);
    for (int l = 0; l < width; l += 32) {
        __m256i x[4]; /* the i-th bytes of 16 columns, and of the 16 after them */
        for (int i = 0; i < 4; i++)
            x[i] = _mm256_shuffle_epi8(
                codes_half_lines(word + l + 4 * i, word + l + 16 + 4 * i), by_byte);
        codes_turn_half(x);
        for (int i = 0; i < 4; i++) {
            const __m128i a = _mm256_castsi256_si128(x[i]),
                          b = _mm256_extracti128_si256(x[i], 1);
            vec_code_put_two(
                codes + i * width + l,
                _mm_or_si128(_mm_and_si128(a, low), _mm_slli_epi16(_mm_and_si128(b, low), 4)),
                _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 4), low),
                             _mm_andnot_si128(low, b)));
        }
    }
}

/* Positions `at`, which is even, and at + 1 of 16 columns from l on. */
static inline void vec_decode(const struct vec_codes *t, const uint8_t *codes, int width,
                              int at, int l, vec_pairs *y)
{
    const __m256i x = _mm256_loadu_si256(
                      (const __m256i *)(codes + vec_code_byte(width, at + 1, l))),
                  c = _mm256_and_si256(vec_code_shift(at, l) ? _mm256_srli_epi16(x, 4) : x,
                                       _mm256_set1_epi8(0xF)),
                  low = _mm256_shuffle_epi8(t->low, c), high = _mm256_shuffle_epi8(t->high, c);
    y[0] = _mm256_unpacklo_epi8(low, high);
    y[1] = _mm256_unpackhi_epi8(low, high);
}

/* Of 16 columns' codes without their uppermost bit the largest, and the least less 1, so that a
 * zero is the largest. */
struct vec_seen {
    __m256i most, less;
};

static inline struct vec_seen vec_unseen(void)
{
    return (struct vec_seen){ _mm256_setzero_si256(), _mm256_set1_epi8(-1) };
}

/* Eight positions of the columns from l on. */
static inline void vec_see(struct vec_seen *s, const uint8_t *codes, int width, int l)
{
    for (int at = 0; at < 8; at += 2) {
        const __m256i x = _mm256_loadu_si256(
                          (const __m256i *)(codes + vec_code_byte(width, at + 1, l))),
                      c = _mm256_and_si256(vec_code_shift(at, l) ? _mm256_srli_epi16(x, 4) : x,
                                           _mm256_set1_epi8(7));
        s->most = _mm256_max_epu8(s->most, c);
        s->less = _mm256_min_epu8(s->less, _mm256_sub_epi8(c, _mm256_set1_epi8(1)));
    }
}

/* A byte a column. */
static inline void vec_seen_columns(const struct vec_seen *s, __m128i *most, __m128i *less)
{
    /* halves have columns 0 to 3 and 8 to 11, and the others: two bytes each */
    const __m256i even = _mm256_set1_epi16(0xFF),
                  x = _mm256_and_si256(_mm256_max_epu8(s->most, _mm256_srli_epi16(s->most, 8)),
                                       even),
                  y = _mm256_and_si256(_mm256_min_epu8(s->less, _mm256_srli_epi16(s->less, 8)),
                                       even);
    const __m128i order = _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15);
    *most = _mm_shuffle_epi8(
        _mm_packus_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)), order);
    *less = _mm_shuffle_epi8(
        _mm_packus_epi16(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1)), order);
}

static inline vec_pairs vec_pairs_zero(void)
{
    return _mm256_setzero_si256();
}
static inline vec_pairs vec_pairs_load(const uint32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
static inline void vec_pairs_store(uint32_t *p, vec_pairs x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}
/* 2^(scale - 127) of VL scales, 1 to 254. */
static inline vec vec_power(const uint8_t *scale)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)scale)), 23));
}
/* 2^(from - to) of VL scales, no more than 126 apart. */
static inline vec vec_power_between(const uint8_t *from, const uint8_t *to)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_sub_epi32(_mm256_castps_si256(vec_power(from)),
                                          _mm256_castps_si256(vec_power(to))),
                         _mm256_set1_epi32(127 << 23)));
}
/* What the scales of the first and of the second position add to bf16 patterns. */
static inline vec_pairs vec_pairs_step(const uint8_t *first, const uint8_t *second)
{
    const __m256i one = _mm256_set1_epi32(127 << 23);
    return _mm256_or_si256(
        _mm256_sub_epi32(_mm256_castps_si256(vec_power(first)), one),
        _mm256_srli_epi32(_mm256_sub_epi32(_mm256_castps_si256(vec_power(second)), one), 16));
}
/* Zeros stay zeros. */
static inline vec_pairs vec_pairs_fold(vec_pairs x, vec_pairs step)
{
    const __m256i zero = _mm256_cmpeq_epi16(_mm256_slli_epi16(x, 1), _mm256_setzero_si256());
    return _mm256_add_epi16(x, _mm256_andnot_si256(zero, step));
}

static inline vec vec_pairs_upper(vec_pairs x)
{
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-0x10000)));
}
static inline vec vec_pairs_lower(vec_pairs x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

/* ---- The two halves of a vector in FP64: exact.h's step, in registers. ---- */

typedef __m256d vec64;

static inline vec64 vec64_half(vec x, int upper)
{
    return _mm256_cvtps_pd(upper ? _mm256_extractf128_ps(x, 1) : _mm256_castps256_ps128(x));
}
static inline vec64 vec64_add(vec64 x, vec64 y)
{
    return _mm256_add_pd(x, y);
}
static inline vec64 vec64_sub(vec64 x, vec64 y)
{
    return _mm256_sub_pd(x, y);
}
static inline vec64 vec64_mul(vec64 x, vec64 y)
{
    return _mm256_mul_pd(x, y);
}
static inline vec64 vec64_div(vec64 x, vec64 y)
{
    return _mm256_div_pd(x, y);
}
static inline vec64 vec64_fma(vec64 x, vec64 y, vec64 z)
{
    return _mm256_fmadd_pd(x, y, z);
}
/* exact_odd(); a rest that is NaN beside an Inf or NaN moves nothing. */
static inline vec64 vec64_odd(vec64 h, vec64 rest)
{
    const __m256i u = _mm256_castpd_si256(h), one = _mm256_set1_epi64x(1),
                  zero = _mm256_setzero_si256();
    const __m256i even = _mm256_cmpeq_epi64(_mm256_and_si256(u, one), zero);
    const __m256i there =
        _mm256_castpd_si256(_mm256_cmp_pd(rest, _mm256_setzero_pd(), _CMP_NEQ_OQ));
    const __m256i apart =
        _mm256_cmpgt_epi64(zero, _mm256_xor_si256(u, _mm256_castpd_si256(rest)));
    const __m256i step =
        _mm256_and_si256(_mm256_or_si256(apart, one), _mm256_and_si256(even, there));
    return _mm256_castsi256_pd(_mm256_add_epi64(u, step));
}
static inline vec vec_of_halves(vec64 lower, vec64 upper)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(lower)),
                                _mm256_cvtpd_ps(upper), 1);
}

#endif
