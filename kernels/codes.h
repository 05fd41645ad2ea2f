/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sixteen elements at a time: bytes and halves of them become bf16 patterns, which hold the
 * values of all formats of 8 bits; f16 codes stay what they are until they are written. What
 * the codes say about a panel, and lines turned into columns. In vectors of 256 bits, which all
 * ISAs here have: wider ones would wait for memory.
 */
#ifndef NG_KERNELS_CODES_H
#define NG_KERNELS_CODES_H

#include <immintrin.h>

#include "order.h"
#include "widen.h"

#define CODES_INLINE static inline __attribute__((always_inline))

enum {
    CODES = 16,     /* of a vector */
    CODES_LINES = 8 /* lines that are turned together: words of a vector */
};

/* Each kind gets a loop of its own. */
typedef enum codes_kind {
    CODES_NONE, /* not read here */
    CODES_BF16,
    CODES_F16,
    CODES_FLOAT8, /* sign, exponent, fraction in a byte */
    CODES_INT8,
    CODES_HALVES /* of a byte, the earlier one in its lower half */
} codes_kind;

struct codes {
    codes_kind kind;
    __m128i sign_up, man_up;               /* shifts to bf16's places */
    int16_t mag_mask, rebias, normal_from; /* magnitudes from here on are normal */
    int16_t inf, last;                     /* magnitude of Inf; the last that is no NaN */
    int16_t nan;                           /* pattern that stands for a NaN */
    __m256i low, high; /* bytes of the first 16 patterns: all subnormals', or all */
    float unit;        /* CODES_INT8 */
};

/* A 16-bit code that no magnitude and no value of such a format has. */
#define CODES_NEVER (-1)

static inline codes_kind codes_kind_of(const ng_format_spec *f)
{
    if (f->format == NG_BF16)
        return CODES_BF16;
    if (f->format == NG_F16)
        return CODES_F16;
    if (f->store_bits == 4)
        return CODES_HALVES;
    if (f->store_bits != 8 || f->kind == NG_KIND_SCALE || f->kind == NG_KIND_UFN)
        return CODES_NONE;
    return f->kind == NG_KIND_INT ? CODES_INT8 : CODES_FLOAT8;
}

/* widen: FP32 patterns of a format of at most 8 bits. */
static inline struct codes codes_of(const ng_format_spec *f, const uint32_t *widen)
{
    struct codes c = { .kind = codes_kind_of(f) };
    if (c.kind == CODES_INT8)
        c.unit = as_float((uint32_t)(128 - f->bias - (int)f->man_bits) << 23);
    if (c.kind != CODES_FLOAT8 && c.kind != CODES_HALVES)
        return c;
    uint8_t low[16], high[16];
    for (int i = 0; i < 16; i++) {
        low[i] = (uint8_t)(widen[i] >> 16);
        high[i] = (uint8_t)(widen[i] >> 24);
    }
    c.low = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)low));
    c.high = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)high));
    if (c.kind == CODES_HALVES)
        return c;
    const bool ieee = f->kind == NG_KIND_IEEE;
    c.sign_up = _mm_cvtsi32_si128(16 - (int)f->bits);
    c.man_up = _mm_cvtsi32_si128(7 - (int)f->man_bits);
    c.mag_mask = (int16_t)((1 << (f->exp_bits + f->man_bits)) - 1);
    c.rebias = (int16_t)((127 - f->bias) << 7);
    c.normal_from = (int16_t)(1 << f->man_bits);
    c.inf = ieee ? (int16_t)(f->max_code + 1) : CODES_NEVER;
    c.last = (int16_t)(f->max_code + ieee);
    c.nan = f->kind == NG_KIND_FNUZ ? (int16_t)0x8000 : CODES_NEVER; /* -0's code */
    return c;
}

/* Bytes of n codes. */
CODES_INLINE int64_t codes_bytes(const codes_kind kind, int64_t n)
{
    return kind == CODES_BF16 || kind == CODES_F16 ? 2 * n : kind == CODES_HALVES ? n / 2 : n;
}

/* ---- Reading. ---- */

CODES_INLINE __m256i codes_float(const struct codes *c, __m256i x)
{
    const __m256i mag = _mm256_and_si256(x, _mm256_set1_epi16(c->mag_mask));
    const __m256i sign =
        _mm256_and_si256(_mm256_sll_epi16(x, c->sign_up), _mm256_set1_epi16((int16_t)0x8000));
    /* The upper byte of mag is 0, and so is the lower one of the pattern of zero. */
    const __m256i low =
        _mm256_or_si256(_mm256_shuffle_epi8(c->low, mag),
                        _mm256_slli_epi16(_mm256_shuffle_epi8(c->high, mag), 8));
    const __m256i normal =
        _mm256_add_epi16(_mm256_sll_epi16(mag, c->man_up), _mm256_set1_epi16(c->rebias));
    __m256i v = _mm256_blendv_epi8(normal, low,
                                   _mm256_cmpgt_epi16(_mm256_set1_epi16(c->normal_from), mag));
    v = _mm256_blendv_epi8(v, _mm256_set1_epi16((int16_t)(WIDEN_INF >> 16)),
                           _mm256_cmpeq_epi16(mag, _mm256_set1_epi16(c->inf)));
    v = _mm256_or_si256(v, sign);
    const __m256i nan = _mm256_or_si256(_mm256_cmpgt_epi16(mag, _mm256_set1_epi16(c->last)),
                                        _mm256_cmpeq_epi16(v, _mm256_set1_epi16(c->nan)));
    return _mm256_blendv_epi8(v, _mm256_set1_epi16((int16_t)(WIDEN_NAN >> 16)), nan);
}

/* Eight of two's complement: an FP32 number of at most 8 bits. */
CODES_INLINE __m256i codes_int(const struct codes *c, __m128i x)
{
    const __m256 v =
        _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_set1_ps(c->unit));
    return _mm256_srli_epi32(_mm256_castps_si256(v), 16);
}

/* 16 codes of half a byte in the lower eight bytes, a byte each. */
CODES_INLINE __m128i codes_apart(__m128i x)
{
    const __m128i four = _mm_set1_epi8(15);
    return _mm_unpacklo_epi8(_mm_and_si128(x, four), _mm_and_si128(_mm_srli_epi16(x, 4), four));
}

/* 16 codes of a byte, or in one each. */
CODES_INLINE __m256i codes_widen(const codes_kind kind, const struct codes *c, __m128i x)
{
    if (kind == CODES_FLOAT8)
        return codes_float(c, _mm256_cvtepu8_epi16(x));
    if (kind == CODES_HALVES) {
        const __m128i low = _mm_shuffle_epi8(_mm256_castsi256_si128(c->low), x),
                      high = _mm_shuffle_epi8(_mm256_castsi256_si128(c->high), x);
        return _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
    }
    const __m256i halves =
        _mm256_packus_epi32(codes_int(c, x), codes_int(c, _mm_unpackhi_epi64(x, x)));
    return _mm256_permute4x64_epi64(halves, 0xD8);
}

/* 16 codes at p, as f16 or else bf16. */
CODES_INLINE __m256i codes_load(const codes_kind kind, const struct codes *c, const void *p)
{
    if (kind == CODES_BF16 || kind == CODES_F16)
        return _mm256_loadu_si256(p);
    if (kind == CODES_HALVES)
        return codes_widen(kind, c, codes_apart(_mm_loadl_epi64(p)));
    return codes_widen(kind, c, _mm_loadu_si128(p));
}

/* Eight at p and eight at q, in turn. */
CODES_INLINE __m256i codes_load_two(const codes_kind kind, const struct codes *c, const void *p,
                                    const void *q)
{
    if (kind == CODES_BF16 || kind == CODES_F16) {
        const __m128i x = _mm_loadu_si128(p), y = _mm_loadu_si128(q);
        return _mm256_set_m128i(_mm_unpackhi_epi16(x, y), _mm_unpacklo_epi16(x, y));
    }
    if (kind == CODES_HALVES) {
        int32_t x, y;
        memcpy(&x, p, sizeof x);
        memcpy(&y, q, sizeof y);
        return codes_widen(kind, c,
                           _mm_unpacklo_epi8(codes_apart(_mm_cvtsi32_si128(x)),
                                             codes_apart(_mm_cvtsi32_si128(y))));
    }
    return codes_widen(kind, c, _mm_unpacklo_epi8(_mm_loadl_epi64(p), _mm_loadl_epi64(q)));
}

/* ---- Facts. ---- */

/* Magnitude of infinity. */
CODES_INLINE int codes_inf(const codes_kind kind)
{
    return kind == CODES_F16 ? 0x7C00 : WIDEN_INF >> 16;
}

/* Over magnitudes, in lanes of their own. */
struct codes_facts {
    __m256i least;   /* less 1, so that a zero is the largest */
    __m256i most;    /* of the finite ones */
    __m256i special; /* not zero: there was one */
};

CODES_INLINE void codes_facts_begin(struct codes_facts *f)
{
    f->least = _mm256_set1_epi16(-1);
    f->most = _mm256_setzero_si256();
    f->special = _mm256_setzero_si256();
}

CODES_INLINE void codes_note(const codes_kind kind, struct codes_facts *f, __m256i x)
{
    const __m256i mag = _mm256_and_si256(x, _mm256_set1_epi16(0x7FFF));
    const __m256i special =
        _mm256_cmpgt_epi16(mag, _mm256_set1_epi16((int16_t)(codes_inf(kind) - 1)));
    f->least = _mm256_min_epu16(f->least, _mm256_sub_epi16(mag, _mm256_set1_epi16(1)));
    f->most = _mm256_max_epi16(f->most, _mm256_andnot_si256(special, mag));
    f->special = _mm256_or_si256(f->special, special);
}

/* The same of bf16 in fewer operations, as long as nothing is special: of magnitudes less 1,
 * where a zero is the largest unsigned and the least signed. */
struct codes_bounds {
    __m256i least, most;
};

CODES_INLINE void codes_bounds_begin(struct codes_bounds *b)
{
    b->least = b->most = _mm256_set1_epi16(-1);
}

CODES_INLINE void codes_bound(struct codes_bounds *b, __m256i x)
{
    const __m256i mag = _mm256_and_si256(x, _mm256_set1_epi16(0x7FFF)),
                  less = _mm256_sub_epi16(mag, _mm256_set1_epi16(1));
    b->least = _mm256_min_epu16(b->least, less);
    b->most = _mm256_max_epi16(b->most, less);
}

/* False: something was special, and the facts of the others are not known. */
CODES_INLINE bool codes_settle(const struct codes_bounds *b, struct codes_facts *f)
{
    const __m256i most = _mm256_add_epi16(b->most, _mm256_set1_epi16(1)),
                  special = _mm256_cmpgt_epi16(
                      most, _mm256_set1_epi16((int16_t)(codes_inf(CODES_BF16) - 1)));
    f->least = b->least;
    f->most = most;
    return _mm256_testz_si256(special, special);
}

/* FP32's exponent field of a magnitude. */
static inline uint32_t codes_exponent(const ng_format_spec *f, uint32_t mag)
{
    return f->format == NG_F16 ? widen(f, mag) >> 23 : mag >> 7;
}

/* ---- Words of two codes: the earlier one in the upper half. ---- */

/* From the order of memory. */
CODES_INLINE __m256i codes_swap(__m256i x)
{
    return _mm256_or_si256(_mm256_slli_epi32(x, 16), _mm256_srli_epi32(x, 16));
}

CODES_INLINE __m256i codes_half_lines(const void *low, const void *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)),
                                   _mm_loadu_si128(high), 1);
}

/* Bytes: 16 at p and 16 `apart` from there, in turn. */
CODES_INLINE __m256i codes_two_runs(const unsigned char *p, int64_t apart)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p),
                  y = _mm_loadu_si128((const __m128i *)(const void *)(p + apart));
    return _mm256_set_m128i(_mm_unpackhi_epi8(x, y), _mm_unpacklo_epi8(x, y));
}

/* Four words each of lines i and i + 4: word j of line i becomes word i of x[j]. */
CODES_INLINE void codes_turn_half(__m256i x[4])
{
    const __m256i a = _mm256_unpacklo_epi32(x[0], x[1]), b = _mm256_unpackhi_epi32(x[0], x[1]),
                  c = _mm256_unpacklo_epi32(x[2], x[3]), d = _mm256_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm256_unpacklo_epi64(a, c);
    x[1] = _mm256_unpackhi_epi64(a, c);
    x[2] = _mm256_unpacklo_epi64(b, d);
    x[3] = _mm256_unpackhi_epi64(b, d);
}

/* Word j of line i becomes word i of x[j]. */
CODES_INLINE void codes_turn(__m256i x[CODES_LINES])
{
    __m256i y[CODES_LINES];
    for (int i = 0; i < 4; i++) {
        y[2 * i] = _mm256_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
        y[2 * i + 1] = _mm256_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int q = 0; q < 2; q++) {
            x[4 * i + 2 * q] = _mm256_unpacklo_epi64(y[4 * i + q], y[4 * i + 2 + q]);
            x[4 * i + 2 * q + 1] = _mm256_unpackhi_epi64(y[4 * i + q], y[4 * i + 2 + q]);
        }
    for (int i = 0; i < 4; i++) {
        y[i] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x20);
        y[i + 4] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x31);
    }
    for (int i = 0; i < CODES_LINES; i++)
        x[i] = y[i];
}

/* 16 by 16 bytes turned in each half of 16 vectors: four times first and ninth, second and
 * tenth, ... in turn. */
CODES_INLINE void codes_turn_bytes(__m256i x[16])
{
    __m256i y[16];
    ORDER_UNROLL
    for (int round = 0; round < 4; round++) {
        __m256i *const from = round % 2 ? y : x, *const to = round % 2 ? x : y;
        ORDER_UNROLL
        for (int i = 0; i < 8; i++) {
            to[2 * i] = _mm256_unpacklo_epi8(from[i], from[i + 8]);
            to[2 * i + 1] = _mm256_unpackhi_epi8(from[i], from[i + 8]);
        }
    }
}

/* The first n words of x, and not a byte more. */
CODES_INLINE void codes_put(uint32_t *to, __m256i x, const int n)
{
    if (n >= 8) {
        _mm256_storeu_si256((__m256i *)to, x);
        return;
    }
    __m128i y = _mm256_castsi256_si128(x);
    if (n & 4) {
        _mm_storeu_si128((__m128i *)to, y);
        y = _mm256_extracti128_si256(x, 1);
    }
    if (n & 2) {
        _mm_storel_epi64((__m128i *)(to + (n & 4)), y);
        y = _mm_unpackhi_epi64(y, y);
    }
    if (n & 1) {
        const int w = _mm_cvtsi128_si32(y);
        memcpy(to + (n & 6), &w, sizeof w);
    }
}

/* f16 codes in words, to FP32 patterns. */
CODES_INLINE __m256i codes_f16(__m256i x)
{
    const __m256i mag = _mm256_and_si256(x, _mm256_set1_epi32(0x7FFF)),
                  sign = _mm256_slli_epi32(_mm256_xor_si256(x, mag), 16);
    const __m256i normal =
        _mm256_add_epi32(_mm256_slli_epi32(mag, 13), _mm256_set1_epi32((127 - 15) << 23));
    const __m256i low = _mm256_castps_si256(
        _mm256_mul_ps(_mm256_cvtepi32_ps(mag), _mm256_set1_ps(0x1p-24f))); /* exact */
    __m256i v =
        _mm256_blendv_epi8(normal, low, _mm256_cmpgt_epi32(_mm256_set1_epi32(0x400), mag));
    v = _mm256_blendv_epi8(v, _mm256_set1_epi32(WIDEN_INF),
                           _mm256_cmpeq_epi32(mag, _mm256_set1_epi32(0x7C00)));
    return _mm256_blendv_epi8(_mm256_or_si256(v, sign), _mm256_set1_epi32(WIDEN_NAN),
                              _mm256_cmpgt_epi32(mag, _mm256_set1_epi32(0x7C00)));
}

/* n words of two positions, to panels of words, or of FP32: a row of `width` each. */
CODES_INLINE void codes_write(const codes_kind kind, uint32_t *to, __m256i x, const int n,
                              const int width, const bool pairs)
{
    if (pairs) {
        codes_put(to, x, n);
    } else if (kind == CODES_F16) {
        codes_put(to, codes_f16(_mm256_srli_epi32(x, 16)), n);
        codes_put(to + width, codes_f16(_mm256_and_si256(x, _mm256_set1_epi32(0xFFFF))), n);
    } else {
        codes_put(to, _mm256_and_si256(x, _mm256_set1_epi32(-0x10000)), n);
        codes_put(to + width, _mm256_slli_epi32(x, 16), n);
    }
}

#endif
