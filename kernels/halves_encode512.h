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
 * cast_nearest_plain(). Where no result is subnormal shift and addend are constants: asked
 * only where cast_rarely_low().
 *
 * e2m1 has 20 quarters of binades between zero and its maximum, and all numbers inside one have
 * the same code: two look-ups, one for its first number, which may be a tie, one for the rest.
 *
 * And codes of 8 bits to others of 8 or 16, 64 at a time: a table of all of them.
 */
#ifndef NG_KERNELS_HALVES_ENCODE512_H
#define NG_KERNELS_HALVES_ENCODE512_H

#include <limits.h>

/* f to t by these loops: FP32 to 8 bits only where they take the shorter way. */
static inline bool half_encodes(const struct cast_from *f, const struct cast_to *t)
{
    return (f->spec->format == NG_BF16 ||
            (f->spec->format == NG_F32 && (t->store_bits == 4 || cast_rarely_low(t)))) &&
           t->plain && t->store_bits <= 8 && !t->low_bits && t->man_bits &&
           t->low_field > t->man_bits + 2 &&
           (t->spec->bits == 8 || t->spec->bits == 6 || t->spec->format == NG_E2M1) &&
           (t->round == NG_ROUND_TIES_TO_EVEN || t->round == NG_ROUND_TOWARD_ZERO);
}

/* Of a field e: e - first, at most 63, is looked up. */
struct half_grid {
    ivec first;
    ivec shift[2], add[2];
    ivec most, nan, sign;
    ivec low, drop, odd, normal; /* normal results: the addend, less the biases' difference */
};

static inline struct half_grid half_grid(const struct cast_to *t)
{
    /* the first field's numbers are below half of the least subnormal one */
    const uint32_t first = t->low_field - t->man_bits - 2, drop = 7 - t->man_bits;
    struct half_grid g = { .first = iv_all16(first),
                           .most = iv_all16(t->most >> 16),
                           .nan = iv_all16(t->nan[0]),
                           .sign = iv_all16(t->sign) };
    const uint32_t rebias = (t->low_field - 1u) << 7;
    const bool nearest = t->round == NG_ROUND_TIES_TO_EVEN;
    g.low = iv_all16(t->low_field << 7);
    g.drop = iv_all16(drop);
    g.odd = iv_all16(1u << drop);
    g.normal = iv_all16((nearest ? (1u << drop >> 1) - 1u : 0) - rebias);
    const ivec low = iv_all16(t->low_field), one = iv_all16(1);
    for (int i = 0; i < 2; i++) {
        const ivec field = half_count(first + HALVES * (uint32_t)i),
                   below = _mm512_subs_epu16(low, field),
                   offset =
                       _mm512_sllv_epi16(_mm512_subs_epu16(field, low), iv_all16(t->man_bits)),
                   shift = iv_add16(iv_all16(drop), below),
                   half = _mm512_sub_epi16(iv_srl16(_mm512_sllv_epi16(one, shift), one), one);
        g.shift[i] = shift;
        g.add[i] = _mm512_sllv_epi16(offset, shift);
        if (nearest)
            g.add[i] = iv_add16(g.add[i], half);
    }
    return g;
}

/* The magnitude's code. */
CAST_INLINE ivec half_any(const struct half_grid *g, ivec x, const int nearest)
{
    const ivec at = _mm512_subs_epu16(_mm512_srli_epi16(x, 7), g->first);
    const ivec shift = _mm512_permutex2var_epi16(g->shift[0], at, g->shift[1]),
               add = _mm512_permutex2var_epi16(g->add[0], at, g->add[1]);
    /* (x & 0x7F) | 0x80 */
    const ivec sig = _mm512_ternarylogic_epi32(x, iv_all16(0x7F), iv_all16(0x80), 0xEA);
    ivec sum = iv_add16(sig, add);
    if (nearest)
        sum = iv_add16(sum, iv_and(iv_srl16(sig, shift), iv_all16(1)));
    return iv_srl16(sum, shift);
}

/* The same of no subnormal code. */
CAST_INLINE ivec half_normal(const struct half_grid *g, ivec x, const int nearest)
{
    ivec sum = iv_add16(x, g->normal);
    if (nearest)
        sum = _mm512_mask_add_epi16(sum, _mm512_test_epi16_mask(x, g->odd), sum, iv_all16(1));
    return iv_srl16(sum, g->drop);
}

/* With its sign, or the NaN's. */
CAST_INLINE ivec half_finish(const struct half_grid *g, ivec u, ivec mag, ivec code,
                             const int byte)
{
    const ivec sign = byte ? _mm512_srli_epi16(u, 8) : _mm512_srli_epi16(u, 10);
    return half_pick(_mm512_cmpgt_epu16_mask(mag, iv_all16(CAST_INF >> 16)), g->nan,
                     iv_or_some(code, sign, g->sign));
}

/* 32 bf16 numbers; wide: from FP32, to odd. */
CAST_INLINE ivec half_read(const uint8_t *p, const int wide)
{
    if (!wide)
        return iv_load(p);
    const ivec x = iv_load(p), y = iv_load(p + 4 * VL);
    const ivec cut = _mm512_min_epu16(iv_halves(x, y, 0, 0), iv_all16(1));
    return iv_or(iv_halves(x, y, 1, 0), cut);
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
    int wait = cast_rarely_low(t) ? 0 : INT_MAX;
    for (int64_t i = 0; i < n; i += 2 * HALVES, src += 2 * bytes) {
        for (int k = 0; k < 2 * bytes; k += 64)
            __builtin_prefetch(src + HALF_AHEAD + k);
        ivec u[2], mag[2], x[2], code[2];
        for (int k = 0; k < 2; k++) {
            u[k] = half_read(src + k * bytes, wide);
            mag[k] = iv_and(u[k], iv_all16(0x7FFF));
            x[k] = _mm512_min_epu16(mag[k], g.most);
        }
        if (!wait && _mm512_cmpgt_epu16_mask(g.low, _mm512_min_epu16(x[0], x[1])))
            wait = CALM;
        for (int k = 0; k < 2; k++)
            code[k] = wait ? half_any(&g, x[k], nearest) : half_normal(&g, x[k], nearest);
        wait -= wait > 0;
        for (int k = 0; k < 2; k++)
            code[k] = half_finish(&g, u[k], mag[k], code[k], byte);
        iv_store8_of(dst + i, code[0], code[1], stream);
    }
}

/* The codes of quarters of binades from .. from + 31: of their first numbers, and of the rest.
 */
struct half_quarters {
    ivec from, first, rest;
    ivec nan;
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
    return (struct half_quarters){ .from = iv_all16(from),
                                   .first = iv_halves(code[0][0], code[0][1], 1, 0),
                                   .rest = iv_halves(code[1][0], code[1][1], 1, 0),
                                   .nan = iv_all16(t->nan[0]) };
}

/* 32 codes in their bytes' places: 16 bytes. */
CAST_INLINE __m128i half_code4(const struct half_quarters *q, ivec u, ivec most)
{
    const ivec mag = iv_and(u, iv_all16(0x7FFF)), x = _mm512_min_epu16(mag, most);
    const ivec at = _mm512_subs_epu16(_mm512_srli_epi16(x, 5), q->from);
    const ivec code = half_pick(_mm512_testn_epi16_mask(x, iv_all16(0x1F)),
                                _mm512_permutexvar_epi16(at, q->first),
                                _mm512_permutexvar_epi16(at, q->rest));
    const ivec whole = iv_or_some(code, _mm512_srli_epi16(u, 12), iv_all16(8)),
               c = half_pick(_mm512_cmpgt_epu16_mask(mag, iv_all16(CAST_INF >> 16)), q->nan,
                             whole);
    return _mm512_cvtepi32_epi8(iv_or(c, _mm512_srli_epi32(c, 12)));
}

CAST_INLINE void half_encode4_as(const struct cast_to *t, const uint8_t *src, int64_t n,
                                 uint8_t *dst, int stream, const int wide)
{
    const struct half_quarters q = half_quarters(t);
    const ivec most = iv_all16(t->most >> 16);
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
CAST_INLINE ivec half_narrow_words(const struct cast_to *t, ivec upper, ivec lower,
                                   const int nearest)
{
    const ivec one = iv_all16(1), mag = iv_and(upper, iv_all16(0x7FFF));
    const ivec nan = iv_or(mag, _mm512_min_epu16(lower, one));
    ivec x = mag;
    if (nearest) { /* the mean of (lower, c - 1) is (lower + c) / 2 in 17 bits */
        const ivec c = iv_add16(iv_and(upper, one), iv_all16(0x7FFE));
        x = iv_add16(x, _mm512_srli_epi16(_mm512_avg_epu16(lower, c), 15));
    }
    x = iv_or_some(_mm512_min_epu16(x, iv_all16(t->max)), upper, iv_all16(0x8000));
    return half_pick(_mm512_cmpgt_epu16_mask(nan, iv_all16(CAST_INF >> 16)),
                     iv_all16(t->nan[0]), x);
}

CAST_INLINE void half_narrow_as(const struct cast_to *to, const uint8_t *src, int64_t n,
                                uint8_t *dst, int stream, const int nearest)
{
    const struct cast_to t = *to;
#pragma GCC unroll 2
    for (int64_t i = 0; i < n; i += HALVES, src += 4 * HALVES, dst += 2 * HALVES) {
        const ivec x = iv_load(src), y = iv_load(src + 4 * VL);
        iv_write(dst,
                 half_narrow_words(&t, iv_halves(x, y, 1, 0), iv_halves(x, y, 0, 0), nearest),
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

/* ---- Codes of 8 bits to others of 8 or 16. ---- */

enum {
    LOOK_UP_WORTH = 512 /* elements for which the table is made */
};

static inline bool half_looks_up(const struct cast_from *f, const struct cast_to *t,
                                 struct cast_path path)
{
    return f->store_bits == 8 && (t->store_bits == 8 || t->store_bits == 16) && path.encode &&
           t->round != NG_ROUND_STOCHASTIC;
}

/* What 256 codes become, in words. */
struct half_codes {
    ivec part[8];
};

/* Nothing that is not random can depend on more than the code: each is converted once. */
static struct half_codes half_codes(const struct cast_from *f, const struct cast_to *t,
                                    struct cast_path path)
{
    enum {
        ALL = 256
    };
    uint8_t code[ALL], out[2 * ALL];
    uint32_t u[ALL];
    struct half_codes table;
    for (int i = 0; i < ALL; i++)
        code[i] = (uint8_t)i;
    cast_decode(f, code, ALL, u, 0);
    path.encode(t, u, NULL, ALL, out, 0);
    for (int i = 0; i < 8; i++)
        table.part[i] = t->store_bits == 8
                            ? _mm512_cvtepu8_epi16(_mm256_loadu_si256(
                                  (const __m256i *)(const void *)(out + HALVES * i)))
                            : iv_load(out + 2 * HALVES * i);
    return table;
}

/* 32 codes: six bits are an index, the upper two choose. */
CAST_INLINE ivec half_look(const struct half_codes *t, const uint8_t *src)
{
    const ivec x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)src));
    const __mmask32 odd = _mm512_test_epi16_mask(x, iv_all16(0x40)),
                    upper = _mm512_test_epi16_mask(x, iv_all16(0x80));
    ivec y[4];
    IV_UNROLL
    for (int i = 0; i < 4; i++)
        y[i] = _mm512_permutex2var_epi16(t->part[2 * i], x, t->part[2 * i + 1]);
    return half_pick(upper, half_pick(odd, y[3], y[2]), half_pick(odd, y[1], y[0]));
}

CAST_INLINE void half_look_up_as(const struct half_codes *table, const uint8_t *src, int64_t n,
                                 uint8_t *dst, int stream, const int bytes)
{
    const struct half_codes t = *table;
    for (int64_t i = 0; i < n; i += 2 * HALVES, src += 2 * HALVES, dst += 2 * HALVES * bytes) {
        __builtin_prefetch(src + HALF_AHEAD);
        const ivec x = half_look(&t, src), y = half_look(&t, src + HALVES);
        if (bytes == 1) {
            iv_write(dst,
                     _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(x)),
                                        _mm512_cvtepi16_epi8(y), 1),
                     stream);
        } else {
            iv_write(dst, x, stream);
            iv_write(dst + 64, y, stream);
        }
    }
}

/* n codes, a multiple of 64. */
static __attribute__((noinline)) void half_look_up(const struct cast_from *f,
                                                   const struct cast_to *t,
                                                   struct cast_path path, const uint8_t *src,
                                                   int64_t n, uint8_t *dst, int stream)
{
    const struct half_codes table = half_codes(f, t, path);
    if (t->store_bits == 8)
        half_look_up_as(&table, src, n, dst, stream, 1);
    else
        half_look_up_as(&table, src, n, dst, stream, 2);
}

/* Of n elements, how many from the first on are done. */
static int64_t cast_run_quick(const struct cast_from *f, const struct cast_to *t,
                              struct cast_path path, const uint8_t *src, int64_t n,
                              uint8_t *dst, int stream)
{
    const int64_t whole = n - n % HALVES, pairs = n - n % (2 * HALVES);
    if (half_encodes(f, t) && n >= HALF_WORTH) {
        half_encode(f, t, src, pairs, dst, stream);
        return pairs;
    }
    if (f->store_bits == 32 && half_narrows(t)) {
        half_narrow(t, src, whole, dst, stream);
        return whole;
    }
    if (f->halves && path.bare && path.encode) { /* to bf16 */
        half_to_bf16(f, src, whole, dst, stream);
        return whole;
    }
    if (half_looks_up(f, t, path) && n >= LOOK_UP_WORTH) {
        half_look_up(f, t, path, src, pairs, dst, stream);
        return pairs;
    }
    return 0;
}

#endif
