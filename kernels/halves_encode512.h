/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bf16 and FP32 to codes of at most 8 bits, 32 elements at a time (halves512.h): ties to even
 * or toward zero, saturating.
 *
 * An FP32 number is first cut to bf16, and its last bit set where something was cut (rounded to
 * odd): what follows keeps fewer bits, so it sees on which side of a tie the number lies.
 *
 * A bf16 number has 8 bits of significand, so how far it is shifted and what is added first are
 * functions of its exponent alone: two look-ups. The least bit of a code is the least one kept
 * (2^man is even), so ties to even is one more addition. Clamping first is right, as in
 * cast_nearest_plain(). Where no result is subnormal shift and addend are constants; that is
 * asked for formats with five bits of exponent only, whose subnormals are rare: a branch that
 * is often taken wrongly costs more than it saves.
 *
 * e2m1 has 20 quarters of binades between zero and its maximum, and all numbers inside one have
 * the same code: two look-ups, one for its first number, which may be a tie, one for the rest.
 */
#ifndef NG_KERNELS_HALVES_ENCODE512_H
#define NG_KERNELS_HALVES_ENCODE512_H

#include <limits.h>

static inline bool half_rarely_low(const struct cast_to *t)
{
    return t->low_field <= 127 - 14;
}

/* f to t by these loops: FP32 to 8 bits only where they take the shorter way. */
static inline bool half_encodes(const struct cast_from *f, const struct cast_to *t)
{
    return (f->spec->format == NG_BF16 ||
            (f->spec->format == NG_F32 && (t->store_bits == 4 || half_rarely_low(t)))) &&
           t->plain && t->store_bits <= 8 && !t->low_bits && t->man_bits &&
           t->low_field > t->man_bits + 2 &&
           (t->spec->bits == 8 || t->spec->bits == 6 || t->spec->format == NG_E2M1) &&
           (t->round == NG_ROUND_TIES_TO_EVEN || t->round == NG_ROUND_TOWARD_ZERO);
}

/* Of a field e: e - first, at most 63, is looked up. */
struct half_grid {
    hvec first;
    hvec shift[2], add[2];
    hvec most, nan, sign;
    hvec low, drop, odd, normal; /* normal results: the addend, less the biases' difference */
};

static inline struct half_grid half_grid(const struct cast_to *t)
{
    /* the first field's numbers are below half of the least subnormal one */
    const uint32_t first = t->low_field - t->man_bits - 2, drop = 7 - t->man_bits;
    struct half_grid g = { .first = half_all(first),
                           .most = half_all(t->most >> 16),
                           .nan = half_all(t->nan[0]),
                           .sign = half_all(t->sign) };
    const uint32_t rebias = (t->low_field - 1u) << 7;
    const bool nearest = t->round == NG_ROUND_TIES_TO_EVEN;
    g.low = half_all(t->low_field << 7);
    g.drop = half_all(drop);
    g.odd = half_all(1u << drop);
    g.normal = half_all((nearest ? (1u << drop >> 1) - 1u : 0) - rebias);
    const hvec low = half_all(t->low_field), one = half_all(1);
    for (int i = 0; i < 2; i++) {
        const hvec field = half_count(first + HALVES * (uint32_t)i),
                   below = _mm512_subs_epu16(low, field),
                   offset =
                       _mm512_sllv_epi16(_mm512_subs_epu16(field, low), half_all(t->man_bits)),
                   shift = _mm512_add_epi16(half_all(drop), below),
                   half = _mm512_sub_epi16(
                       _mm512_srlv_epi16(_mm512_sllv_epi16(one, shift), one), one);
        g.shift[i] = shift;
        g.add[i] = _mm512_sllv_epi16(offset, shift);
        if (nearest)
            g.add[i] = _mm512_add_epi16(g.add[i], half);
    }
    return g;
}

/* The magnitude's code. */
CAST_INLINE hvec half_any(const struct half_grid *g, hvec x, const int nearest)
{
    const hvec at = _mm512_subs_epu16(_mm512_srli_epi16(x, 7), g->first);
    const hvec shift = _mm512_permutex2var_epi16(g->shift[0], at, g->shift[1]),
               add = _mm512_permutex2var_epi16(g->add[0], at, g->add[1]);
    /* (x & 0x7F) | 0x80 */
    const hvec sig = _mm512_ternarylogic_epi32(x, half_all(0x7F), half_all(0x80), 0xEA);
    hvec sum = _mm512_add_epi16(sig, add);
    if (nearest)
        sum =
            _mm512_add_epi16(sum, _mm512_and_si512(_mm512_srlv_epi16(sig, shift), half_all(1)));
    return _mm512_srlv_epi16(sum, shift);
}

/* The same of no subnormal code. */
CAST_INLINE hvec half_normal(const struct half_grid *g, hvec x, const int nearest)
{
    hvec sum = _mm512_add_epi16(x, g->normal);
    if (nearest)
        sum = _mm512_mask_add_epi16(sum, _mm512_test_epi16_mask(x, g->odd), sum, half_all(1));
    return _mm512_srlv_epi16(sum, g->drop);
}

/* With its sign, or the NaN's. */
CAST_INLINE hvec half_finish(const struct half_grid *g, hvec u, hvec mag, hvec code,
                             const int byte)
{
    const hvec sign = byte ? _mm512_srli_epi16(u, 8) : _mm512_srli_epi16(u, 10);
    return half_pick(_mm512_cmpgt_epu16_mask(mag, half_all(CAST_INF >> 16)), g->nan,
                     iv_or_some(code, sign, g->sign));
}

/* 32 bf16 numbers; wide: from FP32, to odd. */
CAST_INLINE hvec half_read(const uint8_t *p, const int wide)
{
    if (!wide)
        return iv_load(p);
    const ivec x = iv_load(p), y = iv_load(p + 4 * VL);
    const hvec cut = _mm512_min_epu16(half_lower(x, y), half_all(1));
    return _mm512_or_si512(half_upper(x, y), cut);
}

/* 64 words of a byte each, to memory. */
static inline void half_put8(uint8_t *p, hvec x, hvec y, int stream)
{
    half_put(p,
             _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                                      _mm512_packus_epi16(x, y)),
             stream);
}

/* n numbers, a multiple of 64; byte: codes of 8 bits, else of 6. */
CAST_INLINE void half_encode8_as(const struct cast_to *t, const uint8_t *src, int64_t n,
                                 uint8_t *dst, int stream, const int byte, const int nearest,
                                 const int wide)
{
    const struct half_grid g = half_grid(t);
    const int bytes = wide ? 4 * HALVES : 2 * HALVES;
    enum {
        CALM = 16 /* turns after a subnormal number that take the long way unasked */
    };
    int wait = half_rarely_low(t) ? 0 : INT_MAX;
    for (int64_t i = 0; i < n; i += 2 * HALVES, src += 2 * bytes) {
        for (int k = 0; k < 2 * bytes; k += 64)
            __builtin_prefetch(src + HALF_AHEAD + k);
        hvec u[2], mag[2], x[2], code[2];
        for (int k = 0; k < 2; k++) {
            u[k] = half_read(src + k * bytes, wide);
            mag[k] = _mm512_and_si512(u[k], half_all(0x7FFF));
            x[k] = _mm512_min_epu16(mag[k], g.most);
        }
        if (!wait && _mm512_cmpgt_epu16_mask(g.low, _mm512_min_epu16(x[0], x[1])))
            wait = CALM;
        for (int k = 0; k < 2; k++)
            code[k] = wait ? half_any(&g, x[k], nearest) : half_normal(&g, x[k], nearest);
        wait -= wait > 0;
        for (int k = 0; k < 2; k++)
            code[k] = half_finish(&g, u[k], mag[k], code[k], byte);
        half_put8(dst + i, code[0], code[1], stream);
    }
}

/* The codes of quarters of binades from .. from + 31: of their first numbers, and of the rest.
 */
struct half_quarters {
    hvec from, first, rest;
    hvec nan;
};

static struct half_quarters half_quarters(const struct cast_to *t)
{
    const struct cast_grid g = cast_grid(t, iv_all(0));
    /* the first quarter is below half of the least number */
    const uint32_t from = (t->low_field - t->man_bits - 1) * 4 - 1;
    ivec code[2][2];
    for (uint32_t rest = 0; rest < 2; rest++)
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t u[VL];
            for (uint32_t l = 0; l < VL; l++)
                u[l] = (from + VL * i + l) << 21 | rest << 16;
            const ivec x = iv_load(u);
            code[rest][i] =
                t->round == NG_ROUND_TIES_TO_EVEN
                    ? cast_encode_words(t, &g, x, x, NG_ROUND_TIES_TO_EVEN, NG_SR_A, 1, 0, 1)
                    : cast_encode_words(t, &g, x, x, NG_ROUND_TOWARD_ZERO, NG_SR_A, 1, 0, 1);
            code[rest][i] = iv_sll_by(code[rest][i], 16);
        }
    return (struct half_quarters){ .from = half_all(from),
                                   .first = half_upper(code[0][0], code[0][1]),
                                   .rest = half_upper(code[1][0], code[1][1]),
                                   .nan = half_all(t->nan[0]) };
}

/* 32 codes in their bytes' places: 16 bytes. */
CAST_INLINE __m128i half_code4(const struct half_quarters *q, hvec u, hvec most)
{
    const hvec mag = _mm512_and_si512(u, half_all(0x7FFF)), x = _mm512_min_epu16(mag, most);
    const hvec at = _mm512_subs_epu16(_mm512_srli_epi16(x, 5), q->from);
    const hvec code = half_pick(_mm512_testn_epi16_mask(x, half_all(0x1F)),
                                _mm512_permutexvar_epi16(at, q->first),
                                _mm512_permutexvar_epi16(at, q->rest));
    const hvec whole = iv_or_some(code, _mm512_srli_epi16(u, 12), half_all(8)),
               c = half_pick(_mm512_cmpgt_epu16_mask(mag, half_all(CAST_INF >> 16)), q->nan,
                             whole);
    return _mm512_cvtepi32_epi8(_mm512_or_si512(c, _mm512_srli_epi32(c, 12)));
}

CAST_INLINE void half_encode4_as(const struct cast_to *t, const uint8_t *src, int64_t n,
                                 uint8_t *dst, int stream, const int wide)
{
    const struct half_quarters q = half_quarters(t);
    const hvec most = half_all(t->most >> 16);
    const int bytes = wide ? 4 * HALVES : 2 * HALVES;
    for (int64_t i = 0; i < n; i += 2 * HALVES, src += 2 * bytes, dst += HALVES) {
        for (int k = 0; k < 2 * bytes; k += 64)
            __builtin_prefetch(src + HALF_AHEAD + k);
        const __m128i low = half_code4(&q, half_read(src, wide), most),
                      high = half_code4(&q, half_read(src + bytes, wide), most);
        iv_put(dst, _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), stream);
    }
}

CAST_INLINE void half_encode_as(const struct cast_to *t, const uint8_t *src, int64_t n,
                                uint8_t *dst, int stream, const int wide)
{
    const int nearest = t->round == NG_ROUND_TIES_TO_EVEN;
    if (t->store_bits == 4)
        half_encode4_as(t, src, n, dst, stream, wide);
    else if (t->spec->bits == 8 && nearest)
        half_encode8_as(t, src, n, dst, stream, 1, 1, wide);
    else if (t->spec->bits == 8)
        half_encode8_as(t, src, n, dst, stream, 1, 0, wide);
    else if (nearest)
        half_encode8_as(t, src, n, dst, stream, 0, 1, wide);
    else
        half_encode8_as(t, src, n, dst, stream, 0, 0, wide);
}

/* n numbers, a multiple of 64. */
static __attribute__((noinline)) void half_encode(const struct cast_from *f,
                                                  const struct cast_to *t, const uint8_t *src,
                                                  int64_t n, uint8_t *dst, int stream)
{
    if (f->store_bits == 32)
        half_encode_as(t, src, n, dst, stream, 1);
    else
        half_encode_as(t, src, n, dst, stream, 0);
}

/* ---- FP32 to bf16. ---- */

static inline bool half_narrows(const struct cast_to *t)
{
    return t->spec->format == NG_BF16 && t->plain &&
           (t->round == NG_ROUND_TIES_TO_EVEN || t->round == NG_ROUND_TOWARD_ZERO);
}

/* The code is the upper half, and one more where lower + 0x7FFF + its last bit carries. */
CAST_INLINE hvec half_narrow_words(const struct cast_to *t, hvec upper, hvec lower,
                                   const int nearest)
{
    const hvec one = half_all(1), mag = _mm512_and_si512(upper, half_all(0x7FFF));
    const hvec nan = _mm512_or_si512(mag, _mm512_min_epu16(lower, one));
    hvec x = mag;
    if (nearest) { /* the mean of (lower, c - 1) is (lower + c) / 2 in 17 bits */
        const hvec c = _mm512_add_epi16(_mm512_and_si512(upper, one), half_all(0x7FFE));
        x = _mm512_add_epi16(x, _mm512_srli_epi16(_mm512_avg_epu16(lower, c), 15));
    }
    x = iv_or_some(_mm512_min_epu16(x, half_all(t->max)), upper, half_all(0x8000));
    return half_pick(_mm512_cmpgt_epu16_mask(nan, half_all(CAST_INF >> 16)),
                     half_all(t->nan[0]), x);
}

CAST_INLINE void half_narrow_as(const struct cast_to *to, const uint8_t *src, int64_t n,
                                uint8_t *dst, int stream, const int nearest)
{
    const struct cast_to t = *to;
#pragma GCC unroll 2
    for (int64_t i = 0; i < n; i += HALVES, src += 4 * HALVES, dst += 2 * HALVES) {
        const ivec x = iv_load(src), y = iv_load(src + 4 * VL);
        half_put(dst, half_narrow_words(&t, half_upper(x, y), half_lower(x, y), nearest),
                 stream);
    }
}

/* n FP32 numbers, a multiple of 32, saturating. */
static __attribute__((noinline)) void half_narrow(const struct cast_to *t, const uint8_t *src,
                                                  int64_t n, uint8_t *dst, int stream)
{
    if (t->round == NG_ROUND_TIES_TO_EVEN)
        half_narrow_as(t, src, n, dst, stream, 1);
    else
        half_narrow_as(t, src, n, dst, stream, 0);
}

#endif
