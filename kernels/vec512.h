/* SPDX-License-Identifier: Apache-2.0 */
/* What gemm_fma.h asks of an ISA: FP32 vectors. Here 16 lanes of AVX-512. */
#ifndef NG_KERNELS_VEC512_H
#define NG_KERNELS_VEC512_H

#include "intrin.h"
#include <stdint.h>

enum {
    VL = 16
};
typedef __m512 vec;

static inline vec vec_zero(void)
{
    return _mm512_setzero_ps();
}
static inline vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void vec_store(float *p, vec x)
{
    _mm512_storeu_ps(p, x);
}
static inline vec vec_all(const float *p)
{
    return _mm512_set1_ps(*p);
}
static inline vec vec_add(vec x, vec y)
{
    return _mm512_add_ps(x, y);
}
static inline vec vec_sub(vec x, vec y)
{
    return _mm512_sub_ps(x, y);
}
static inline vec vec_mul(vec x, vec y)
{
    return _mm512_mul_ps(x, y);
}
static inline vec vec_div(vec x, vec y)
{
    return _mm512_div_ps(x, y);
}
static inline vec vec_fma(vec x, vec y, vec z)
{
    return _mm512_fmadd_ps(x, y, z);
}
/* *acc = x * y + *acc where it is: a compiler takes any of the three for the result, and then
 * moves a loop's sums from register to register, some to the stack. */
static inline void vec_fma_to(vec *acc, vec x, vec y)
{
#ifdef NG_EMULATE_AVX512
    *acc = vec_fma(x, y, *acc);
#else
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(*acc) : "v"(x), "v"(y));
#endif
}
/* The same with one number in all lanes of x, the instruction's own operand: compilers keep
 * what several of them share in a register, and where there is none on the stack. */
static inline void vec_fma_at(vec *acc, const float *x, vec y)
{
#ifdef NG_EMULATE_AVX512
    *acc = vec_fma(vec_all(x), y, *acc);
#else
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(*acc) : "v"(y), "m"(*x));
#endif
}
/* The bf16 in the upper, the lower halves of words, as FP32. */
static inline vec vec_upper(const uint32_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(-0x10000)));
}
static inline vec vec_lower(const uint32_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
/* VL codes of bf16, as FP32. */
static inline vec vec_bf16(const void *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
/* Of a vector's VEC_PICKS values those at places of two bits, in the lowest bits of words, of
 * the `four`-th four positions. */
enum {
    VEC_PICKS = 16
};
static inline __m512i vec_up(int64_t four)
{
    return _mm512_set1_epi32((int)(four % 4) * 4);
}
static inline __m512i vec_pick_at(__m512i places, __m512i up)
{
    /* 0xEA: the first and the second, or the third */
    return _mm512_ternarylogic_epi32(places, _mm512_set1_epi32(3), up, 0xEA);
}
static inline vec vec_pick(vec x, __m512i at)
{
    return _mm512_permutexvar_ps(at, x);
}
static inline __m512i vec_next_place(__m512i at)
{
    return _mm512_srli_epi32(at, 2);
}
static inline vec vec_all_upper(const uint32_t *p)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32((int)(*p & 0xFFFF0000u)));
}
static inline vec vec_all_lower(const uint32_t *p)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32((int)(*p << 16)));
}
/* Is one of VL bytes greater than `limit`? */
static inline int vec_any_above(const uint8_t *p, int limit)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)p),
                  over = _mm_subs_epu8(x, _mm_set1_epi8((char)limit));
    return !_mm_testz_si128(over, over);
}

/* ---- 4-bit codes as slim.h keeps them, to pairs of bf16. ---- */

typedef __m512i vec_pairs;

/* 16 codes' bf16, twice, so that an index's fifth bit says nothing. */
struct vec_codes {
    __m512i value;
};

static inline struct vec_codes vec_code_table(const uint32_t *widen)
{
    uint16_t value[32];
    for (int i = 0; i < 32; i++)
        value[i] = (uint16_t)(widen[i % 16] >> 16);
    return (struct vec_codes){ _mm512_loadu_si512(value) };
}

/* Of eight positions of `width` columns, the byte and the bit where column l's code at position
 * `at` begins: a column is a word, the earlier positions of pairs in its upper half. */
static inline int vec_code_byte(int width, int at, int l)
{
    (void)width;
    return 4 * l + (at % 2 ? 0 : 2) + at / 4;
}
static inline int vec_code_shift(int at, int l)
{
    (void)l;
    return at / 2 % 2 * 4;
}

/* The eight positions of `width` columns, from a byte a code, positions `row` apart. */
static inline void vec_code_put(uint8_t *codes, int width, const uint8_t *code, int row)
{
    for (int l = 0; l < width; l += 16) {
        __m512i word = _mm512_setzero_si512();
        for (int at = 0; at < 8; at++) {
            const int bit = 8 * vec_code_byte(width, at, 0) + vec_code_shift(at, 0);
            const __m128i bytes =
                _mm_loadu_si128((const __m128i *)(const void *)(code + at * row + l));
            word = _mm512_or_si512(
                word, _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), (unsigned)bit));
        }
        _mm512_storeu_si512(codes + vec_code_byte(width, 1, l), word);
    }
}

/* The same from words, of a column each: its codes in order, the first one lowest. */
static inline void vec_code_put_words(uint8_t *codes, int width, const uint32_t *word)
{
    const __m512i low = _mm512_set1_epi8(0xF), weights = _mm512_set1_epi16(0x1001),
                  order = _mm512_broadcast_i32x4(
                      _mm_setr_epi8(1, 3, 0, 2, 5, 7, 4, 6, 9, 11, 8, 10, 13, 15, 12, 14));
    for (int l = 0; l < width; l += 16) {
        const __m512i x = _mm512_loadu_si512(word + l), y = _mm512_srli_epi16(x, 4),
                      even = _mm512_maddubs_epi16(_mm512_and_si512(x, low), weights),
                      odd = _mm512_maddubs_epi16(_mm512_and_si512(y, low), weights),
                      both = _mm512_or_si512(even, _mm512_slli_epi16(odd, 8));
        _mm512_storeu_si512(codes + vec_code_byte(width, 1, l),
                            _mm512_shuffle_epi8(both, order));
    }
}

/* Positions `at`, which is even, and at + 1 of 16 columns from l on. */
static inline void vec_decode(const struct vec_codes *t, const uint8_t *codes, int width,
                              int at, int l, vec_pairs *y)
{
    const __m512i c = _mm512_loadu_si512(codes + vec_code_byte(width, 1, l));
    y[0] = _mm512_permutexvar_epi16(at == 0   ? c
                                    : at == 2 ? _mm512_srli_epi16(c, 4)
                                    : at == 4 ? _mm512_srli_epi16(c, 8)
                                              : _mm512_srli_epi16(c, 12),
                                    t->value);
}

/* Of 16 columns' codes without their uppermost bit the largest, and the least less 1, so that a
 * zero is the largest. */
struct vec_seen {
    __m512i most, less;
};

static inline struct vec_seen vec_unseen(void)
{
    return (struct vec_seen){ _mm512_setzero_si512(), _mm512_set1_epi8(-1) };
}

/* Eight positions of the columns from l on. */
static inline void vec_see(struct vec_seen *s, const uint8_t *codes, int width, int l)
{
    const __m512i x = _mm512_loadu_si512(codes + vec_code_byte(width, 1, l)),
                  three = _mm512_set1_epi8(7), one = _mm512_set1_epi8(1),
                  low = _mm512_and_si512(x, three),
                  high = _mm512_and_si512(_mm512_srli_epi16(x, 4), three);
    s->most = _mm512_max_epu8(s->most, _mm512_max_epu8(low, high));
    s->less = _mm512_min_epu8(
        s->less, _mm512_min_epu8(_mm512_sub_epi8(low, one), _mm512_sub_epi8(high, one)));
}

/* A byte a column. */
static inline void vec_seen_columns(const struct vec_seen *s, __m128i *most, __m128i *less)
{
    __m512i x = _mm512_max_epu8(s->most, _mm512_srli_epi32(s->most, 16)),
            y = _mm512_min_epu8(s->less, _mm512_srli_epi32(s->less, 16));
    x = _mm512_max_epu8(x, _mm512_srli_epi32(x, 8));
    y = _mm512_min_epu8(y, _mm512_srli_epi32(y, 8));
    *most = _mm512_cvtepi32_epi8(x);
    *less = _mm512_cvtepi32_epi8(y);
}

/* ---- Codes of 8 bits, a sign and a magnitude, four positions together. ---- */

#define VEC_BYTES 4

/* Among VEC_BYTES positions' bytes, that of column l at position `at`: 16 have four columns,
 * the first two positions in their lower half, in the order in which unpacking gives pairs. */
static inline int vec_byte(int l, int at)
{
    return l / 4 * 16 + at / 2 * 8 + l % 4 * 2 + (at % 2 ? 0 : 1);
}

/* The same bytes from words that have them in the order of memory. */
static inline __m512i vec_bytes_order(__m512i words)
{
    return _mm512_shuffle_epi8(words,
                               _mm512_broadcast_i32x4(_mm_setr_epi8(1, 0, 5, 4, 9, 8, 13, 12, 3,
                                                                    2, 7, 6, 11, 10, 15, 14)));
}

/* Four positions of `width` columns, from a byte a code, positions `row` apart. */
static inline void vec_bytes_put(uint8_t *codes, int width, const uint8_t *code, int row)
{
    for (int l = 0; l < width; l += VL) {
        __m512i words = _mm512_setzero_si512();
        for (int at = 0; at < VEC_BYTES; at++) {
            const __m128i bytes =
                _mm_loadu_si128((const __m128i *)(const void *)(code + at * row + l));
            words = _mm512_or_si512(
                words, _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), (unsigned)(8 * at)));
        }
        _mm512_storeu_si512(codes + VEC_BYTES * l, vec_bytes_order(words));
    }
}

/* Four positions of 16 columns, from words that have them in the order of memory. */
static inline void vec_bytes_put_words(uint8_t *codes, const uint32_t *word)
{
    _mm512_storeu_si512(codes, vec_bytes_order(_mm512_loadu_si512(word)));
}

/* The upper and the lower bytes of the codes' bf16 without signs. */
#ifdef VEC_VBMI
struct vec_bytes {
    __m512i upper[2], lower[2]; /* of 128 magnitudes */
};

static inline struct vec_bytes vec_bytes_table(const uint32_t *widen, int man_bits)
{
    (void)man_bits;
    uint8_t upper[128], lower[128];
    for (int i = 0; i < 128; i++) {
        upper[i] = (uint8_t)(widen[i] >> 24);
        lower[i] = (uint8_t)(widen[i] >> 16);
    }
    return (struct vec_bytes){
        { _mm512_loadu_si512(upper), _mm512_loadu_si512(upper + 64) },
        { _mm512_loadu_si512(lower), _mm512_loadu_si512(lower + 64) },
    };
}

static inline void vec_bytes_look_up(const struct vec_bytes *t, __m512i c, __m512i *upper,
                                     __m512i *lower)
{
    *upper = _mm512_permutex2var_epi8(t->upper[0], c, t->upper[1]);
    *lower = _mm512_permutex2var_epi8(t->lower[0], c, t->lower[1]);
}
#else
/*
 * Of formats with 4 bits of fraction at most all subnormals are among the first 16 magnitudes,
 * which have tables. In all others the fraction's bits, moved, are the lower byte, of which the
 * exponent's last one is on top; and the code's upper four bits tell the upper one.
 */
struct vec_bytes {
    __m512i first_upper, first_lower; /* of the first 16 magnitudes */
    __m512i upper;                    /* of the others, by their upper four bits */
    __m512i move, kept;               /* times a power of two; what is kept of it */
};

static inline __m512i vec_bytes_16(const uint8_t *byte)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)byte));
}

static inline struct vec_bytes vec_bytes_table(const uint32_t *widen, int man_bits)
{
    const int moved = 7 - man_bits;
    uint8_t upper[16], lower[16], others[16];
    for (int i = 0; i < 16; i++) {
        upper[i] = (uint8_t)(widen[i] >> 24);
        lower[i] = (uint8_t)(widen[i] >> 16);
        others[i] = (uint8_t)(widen[8 * i] >> 24);
    }
    return (struct vec_bytes){ vec_bytes_16(upper), vec_bytes_16(lower), vec_bytes_16(others),
                               _mm512_set1_epi16((short)(1 << moved)),
                               _mm512_set1_epi8((char)(0xFF << moved)) };
}

static inline void vec_bytes_look_up(const struct vec_bytes *t, __m512i c, __m512i *upper,
                                     __m512i *lower)
{
    const __m512i four = _mm512_set1_epi8(15), low = _mm512_and_si512(c, four);
    const __mmask64 first = _mm512_testn_epi8_mask(c, _mm512_set1_epi8(0x70));
    *upper = _mm512_shuffle_epi8(t->upper, _mm512_and_si512(_mm512_srli_epi16(c, 3), four));
    *upper = _mm512_mask_shuffle_epi8(*upper, first, t->first_upper, low);
    *lower = _mm512_and_si512(_mm512_mullo_epi16(c, t->move), t->kept);
    *lower = _mm512_mask_shuffle_epi8(*lower, first, t->first_lower, low);
}
#endif

/* Four positions of 16 columns: the pairs of the first two, of the others. */
static inline void vec_bytes_pairs(const struct vec_bytes *t, __m512i c, vec_pairs y[2])
{
    __m512i upper, lower;
    vec_bytes_look_up(t, c, &upper, &lower);
    upper = _mm512_ternarylogic_epi32(upper, c, _mm512_set1_epi8((char)0x80), 0xF8);
    y[0] = _mm512_unpacklo_epi8(lower, upper);
    y[1] = _mm512_unpackhi_epi8(lower, upper);
}

static inline void vec_bytes_decode(const struct vec_bytes *t, const uint8_t *codes,
                                    vec_pairs y[2])
{
    vec_bytes_pairs(t, _mm512_loadu_si512(codes), y);
}

/*
 * Four positions of 16 columns, at most two words of each column's not 0: `words` has these,
 * and keep[i] a bit for each word of y[i] that is one of them. A word is where it is in y;
 * where both want one place, y[1]'s is in the other.
 */
static inline void vec_kept_decode(const uint8_t *words, const uint32_t keep[2], vec_pairs y[2])
{
    const __m512i x = _mm512_loadu_si512(words);
    const __mmask32 first = keep[0], second = keep[1];
    y[0] = _mm512_maskz_mov_epi16(first, x);
    y[1] = _mm512_mask_mov_epi16(_mm512_maskz_mov_epi16(second, _mm512_rol_epi32(x, 16)),
                                 second & ~first, x);
}

static inline void vec_kept_put(const vec_pairs y[2], uint8_t *words, uint32_t keep[2])
{
    const __mmask32 first = _mm512_test_epi16_mask(y[0], y[0]),
                    second = _mm512_test_epi16_mask(y[1], y[1]);
    const __m512i free = _mm512_maskz_mov_epi16(second & ~first, y[1]),
                  taken = _mm512_maskz_mov_epi16(second & first, y[1]);
    _mm512_storeu_si512(
        words, _mm512_or_si512(_mm512_or_si512(y[0], free), _mm512_rol_epi32(taken, 16)));
    keep[0] = first;
    keep[1] = second;
}

static inline vec_pairs vec_pairs_zero(void)
{
    return _mm512_setzero_si512();
}
static inline vec_pairs vec_pairs_load(const uint32_t *p)
{
    return _mm512_loadu_si512(p);
}
static inline void vec_pairs_store(uint32_t *p, vec_pairs x)
{
    _mm512_storeu_si512(p, x);
}
/* 2^(scale - 127) of VL scales, 1 to 254. */
static inline vec vec_power(const uint8_t *scale)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)scale)), 23));
}
/* 2^(from - to) of VL scales, no more than 126 apart. */
static inline vec vec_power_between(const uint8_t *from, const uint8_t *to)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_sub_epi32(_mm512_castps_si512(vec_power(from)),
                                          _mm512_castps_si512(vec_power(to))),
                         _mm512_set1_epi32(127 << 23)));
}
/* What the scales of the first and of the second position add to bf16 patterns. */
static inline vec_pairs vec_pairs_step(const uint8_t *first, const uint8_t *second)
{
    const __m512i one = _mm512_set1_epi32(127 << 23);
    return _mm512_or_si512(
        _mm512_sub_epi32(_mm512_castps_si512(vec_power(first)), one),
        _mm512_srli_epi32(_mm512_sub_epi32(_mm512_castps_si512(vec_power(second)), one), 16));
}
/* Zeros stay zeros. */
static inline vec_pairs vec_pairs_fold(vec_pairs x, vec_pairs step)
{
    const __mmask32 there = _mm512_test_epi16_mask(x, _mm512_set1_epi16(0x7FFF));
    return _mm512_mask_add_epi16(x, there, x, step);
}

static inline vec vec_pairs_upper(vec_pairs x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-0x10000)));
}
static inline vec vec_pairs_lower(vec_pairs x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

/* ---- The two halves of a vector in FP64: exact.h's step, in registers. ---- */

typedef __m512d vec64;

static inline vec64 vec64_half(vec x, int upper)
{
    const __m512d d = _mm512_castps_pd(x);
    return _mm512_cvtps_pd(
        _mm256_castpd_ps(upper ? _mm512_extractf64x4_pd(d, 1) : _mm512_castpd512_pd256(d)));
}
static inline vec64 vec64_add(vec64 x, vec64 y)
{
    return _mm512_add_pd(x, y);
}
static inline vec64 vec64_sub(vec64 x, vec64 y)
{
    return _mm512_sub_pd(x, y);
}
static inline vec64 vec64_mul(vec64 x, vec64 y)
{
    return _mm512_mul_pd(x, y);
}
static inline vec64 vec64_div(vec64 x, vec64 y)
{
    return _mm512_div_pd(x, y);
}
static inline vec64 vec64_fma(vec64 x, vec64 y, vec64 z)
{
    return _mm512_fmadd_pd(x, y, z);
}
/* exact_odd(); a rest that is NaN beside an Inf or NaN moves nothing. */
static inline vec64 vec64_odd(vec64 h, vec64 rest)
{
    const __m512i u = _mm512_castpd_si512(h), one = _mm512_set1_epi64(1);
    const __mmask8 there = _mm512_cmp_pd_mask(rest, _mm512_setzero_pd(), _CMP_NEQ_OQ),
                   odd = _mm512_test_epi64_mask(u, one);
    const __m512i apart = _mm512_srai_epi64(_mm512_xor_si512(u, _mm512_castpd_si512(rest)), 63);
    return _mm512_castsi512_pd(
        _mm512_mask_add_epi64(u, (__mmask8)(there & ~odd), u, _mm512_or_si512(apart, one)));
}
static inline vec vec_of_halves(vec64 lower, vec64 upper)
{
    const __m512d low = _mm512_castpd256_pd512(_mm256_castps_pd(_mm512_cvtpd_ps(lower)));
    return _mm512_castpd_ps(
        _mm512_insertf64x4(low, _mm256_castps_pd(_mm512_cvtpd_ps(upper)), 1));
}

#endif
