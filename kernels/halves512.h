/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What cast.h does 32 elements at a time where codes of at most 8 bits and bf16 meet: 16-bit
 * lanes of AVX-512 BW. Numerics: docs/numerics.md, section 2. cast.h includes this in its
 * middle.
 *
 * Decode: a value of such a format is a bf16 number, so it is a word in a table of 128, two
 * look-ups of 64 and a choice; the sign is put on. FP32 patterns are the words with zeros
 * below. 9 operations for 32 elements, where arithmetic in FP32's lanes takes some 34.
 *
 * Encode: a bf16 number has 8 bits of significand, so shift and rounding are a function of its
 * exponent alone, looked up; e2m1 is looked up whole.
 */
#ifndef NG_KERNELS_HALVES512_H
#define NG_KERNELS_HALVES512_H

enum {
    HALVES = 32,
    HALF_WORTH = 256, /* elements for which tables are made */
    HALF_AHEAD = 8192 /* bytes: codes come nearer; the CPU's own fetching ends at every page */
};

/* Words 0 .. 31, and `first` more each. */
static inline ivec half_count(uint32_t first)
{
    static const uint16_t count[HALVES] = { 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                            11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                            22, 23, 24, 25, 26, 27, 28, 29, 30, 31 };
    return iv_add16(iv_load(count), iv_all16(first));
}

/* x where m, else y. */
static inline ivec half_pick(__mmask32 m, ivec x, ivec y)
{
    return _mm512_mask_blend_epi16(m, y, x);
}

/* ---- Decode. ---- */

/* The words of a format's codes without the uppermost bit, which is the sign: for as many
 * elements as are worth it. */
static void cast_prepare(struct cast_from *f, int64_t n, struct cast_halves *room)
{
    const bool small = f->shape == CAST_TABLE, signs = f->spec->kind != NG_KIND_UFN;
    if (n < HALF_WORTH || !(small || f->shape == CAST_IEEE || f->shape == CAST_FINITE ||
                            (f->shape == CAST_FN && signs)))
        return;
    f->halves = room;
    ivec x = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int i = 0; i < 4; i++) { /* 4 bits: the same 16 again and again */
        ivec w[2];
        for (int k = 0; k < 2; k++) {
            w[k] = small                   ? cast_decode_words(f, x, CAST_TABLE)
                   : f->shape == CAST_IEEE ? cast_decode_words(f, x, CAST_IEEE)
                   : f->shape == CAST_FN   ? cast_decode_words(f, x, CAST_FN)
                                           : cast_decode_words(f, x, CAST_FINITE);
            if (!small)
                x = iv_add(x, iv_all(VL));
        }
        iv_store(room->half + HALVES * i, iv_halves(w[0], w[1], 1, 0));
    }
    /* the least number becomes 2^-126; the largest one's binade becomes the last */
    const uint32_t from = 128 - (f->least >> 23),
                   to = 381 - (widen(f->spec, f->spec->max_code) >> 23);
    room->plain_from = from << 23;
    room->plain_range = ((to < 254 ? to : 254) - from) << 23;
}

struct half_table {
    ivec part[4];
    ivec sign;
    ivec most;           /* words above become the NaN */
    __mmask32 finite[4]; /* and not zero */
};

CAST_INLINE struct half_table half_table(const struct cast_from *f)
{
    struct half_table t;
    for (int i = 0; i < 4; i++) {
        const ivec less = iv_all16(0x7FFF), x = iv_load(f->halves->half + HALVES * i);
        t.part[i] = x;
        t.finite[i] = _mm512_mask_cmpgt_epu16_mask(_mm512_test_epi16_mask(x, less),
                                                   iv_all16(CAST_INF >> 16), iv_and(x, less));
    }
    t.sign = iv_all16(f->spec->bits == 8 ? 0x8000 : 0);
    t.most = iv_all16(f->nan_keep ? 0xFFFF : 0xFF80);
    return t;
}

/*
 * 32 codes to words. mixed: in the order that half_low() and half_high() undo: of each 128 bits
 * the lower half are of elements 0 to 15, the upper of 16 to 31.
 */
CAST_INLINE ivec half_words(const struct half_table *t, const uint8_t *p,
                            const cast_shape shape, const int mixed)
{
    if (shape == CAST_TABLE) {
        static const uint16_t at[2][HALVES] = {
            { 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3,
              4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7 },
            { 0, 0, 0, 0, 4, 4, 4, 4, 1, 1, 1, 1, 5, 5, 5, 5,
              2, 2, 2, 2, 6, 6, 6, 6, 3, 3, 3, 3, 7, 7, 7, 7 },
        };
        const ivec down = _mm512_set1_epi64(0x000C000800040000),
                   x = _mm512_permutexvar_epi16(
                       iv_load(at[mixed]),
                       _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p)));
        /* the index is its five lowest bits: the table stands there twice */
        return _mm512_permutexvar_epi16(iv_srl16(x, down), t->part[0]);
    }
    __m256i bytes = _mm256_loadu_si256((const __m256i *)p);
    if (mixed)
        bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const ivec x = _mm512_cvtepi8_epi16(bytes);
    /* indices are six bits: the seventh chooses, the eighth, and all above, are the sign */
    const ivec v = half_pick(_mm512_test_epi16_mask(x, iv_all16(0x40)),
                             _mm512_permutex2var_epi16(t->part[2], x, t->part[3]),
                             _mm512_permutex2var_epi16(t->part[0], x, t->part[1]));
    const ivec w = iv_or_some(v, x, t->sign);
    if (shape == CAST_FINITE)
        return w;
    return half_pick(_mm512_cmpgt_epu16_mask(w, t->most), iv_all16(WIDEN_NAN >> 16), w);
}

/* Patterns of elements 0 to 15, and of 16 to 31, from mixed words. */
static inline ivec half_low(ivec w)
{
    return _mm512_unpacklo_epi16(_mm512_setzero_si512(), w);
}
static inline ivec half_high(ivec w)
{
    return _mm512_unpackhi_epi16(_mm512_setzero_si512(), w);
}

/* n codes, a multiple of 32, to words or to patterns. */
CAST_INLINE void half_decode_as(const struct cast_from *from, const uint8_t *src, int64_t n,
                                uint8_t *out, int stream, const cast_shape shape,
                                const uint32_t bits, const int wide)
{
    const struct half_table t = half_table(from);
#pragma GCC unroll 4
    for (int64_t i = 0; i < n; i += HALVES, src += cast_bytes(bits, HALVES)) {
        const ivec w = half_words(&t, src, shape, wide);
        if (wide) {
            iv_write(out, half_low(w), stream);
            iv_write(out + 64, half_high(w), stream);
            out += 128;
        } else {
            iv_write(out, w, stream);
            out += 64;
        }
    }
}

#define HALF_DECODE(name, wide)                                                                \
    static __attribute__((noinline)) void name(const struct cast_from *f, const uint8_t *src,  \
                                               int64_t n, uint8_t *out, int stream)            \
    {                                                                                          \
        if (f->shape == CAST_TABLE)                                                            \
            half_decode_as(f, src, n, out, stream, CAST_TABLE, 4, wide);                       \
        else if (f->shape == CAST_FINITE)                                                      \
            half_decode_as(f, src, n, out, stream, CAST_FINITE, 8, wide);                      \
        else                                                                                   \
            half_decode_as(f, src, n, out, stream, CAST_IEEE, 8, wide);                        \
    }
HALF_DECODE(half_to_bf16, 0)
HALF_DECODE(half_to_f32, 1)

/* Groups of 32 codes times a power of two each, an exact product in FP32 or, not wide, bf16.
 * Plain factors leave all numbers normal: their exponents are added, to the table. */
CAST_INLINE void half_scale_as(const struct cast_from *from, const uint8_t *src,
                               const uint32_t *factor, int64_t groups, uint8_t *out, int stream,
                               const cast_shape shape, const uint32_t bits, const int wide)
{
    const struct half_table t = half_table(from);
    const uint32_t plain = from->halves->plain_from, range = from->halves->plain_range;
    ivec less[4]; /* by 2^127 */
    for (int i = 0; i < 4; i++)
        less[i] = _mm512_mask_sub_epi16(t.part[i], t.finite[i], t.part[i], iv_all16(127 << 7));
    for (int64_t b = 0; b < groups; b++, src += cast_bytes(bits, HALVES)) {
        __builtin_prefetch(src + HALF_AHEAD);
        if (!wide && factor[b] - plain <= range) {
            struct half_table scaled = t;
            uint16_t up;
            memcpy(&up, (const char *)(factor + b) + 2, sizeof up);
            const ivec power = iv_all16(up);
            for (int i = 0; i < (shape == CAST_TABLE ? 1 : 4); i++)
                scaled.part[i] = _mm512_mask_add_epi16(t.part[i], t.finite[i], less[i], power);
            iv_write(out, half_words(&scaled, src, shape, 0), stream);
            out += 64;
            continue;
        }
        const vec times = iv_float(iv_all(factor[b]));
        const ivec w = half_words(&t, src, shape, 1);
        const ivec low = iv_bits(vec_mul(iv_float(half_low(w)), times)),
                   high = iv_bits(vec_mul(iv_float(half_high(w)), times));
        if (wide) {
            iv_write(out, low, stream);
            iv_write(out + 64, high, stream);
            out += 128;
        } else {
            iv_write(out, iv_halves(low, high, 1, 0), stream);
            out += 64;
        }
    }
}

#define HALF_SCALE(name, wide)                                                                 \
    static __attribute__((noinline)) void name(const struct cast_from *f, const uint8_t *src,  \
                                               const uint32_t *factor, int64_t groups,         \
                                               uint8_t *out, int stream)                       \
    {                                                                                          \
        if (f->shape == CAST_TABLE && stream)                                                  \
            half_scale_as(f, src, factor, groups, out, 1, CAST_TABLE, 4, wide);                \
        else if (f->shape == CAST_TABLE)                                                       \
            half_scale_as(f, src, factor, groups, out, 0, CAST_TABLE, 4, wide);                \
        else if (f->shape == CAST_FINITE)                                                      \
            half_scale_as(f, src, factor, groups, out, stream, CAST_FINITE, 8, wide);          \
        else if (stream)                                                                       \
            half_scale_as(f, src, factor, groups, out, 1, CAST_IEEE, 8, wide);                 \
        else                                                                                   \
            half_scale_as(f, src, factor, groups, out, 0, CAST_IEEE, 8, wide);                 \
    }
HALF_SCALE(half_scale_bf16, 0)
HALF_SCALE(half_scale_f32, 1)

/* Of n codes, how many from the first on are decoded. */
static inline int64_t cast_decode_quick(const struct cast_from *f, const uint8_t *src,
                                        int64_t n, uint32_t *out, int stream)
{
    if (!f->halves)
        return 0;
    const int64_t whole = n - n % HALVES;
    half_to_f32(f, src, whole, (uint8_t *)out, stream);
    return whole;
}

/* cast_scale() done, to patterns or to bf16. */
static inline bool cast_scale_quick(const struct cast_from *f, const uint8_t *src,
                                    const uint32_t *factor, int64_t groups, uint8_t *out,
                                    int stream, bool to_bf16)
{
    if (!f->halves)
        return false;
    if (to_bf16)
        half_scale_bf16(f, src, factor, groups, out, stream);
    else
        half_scale_f32(f, src, factor, groups, out, stream);
    return true;
}

#endif
