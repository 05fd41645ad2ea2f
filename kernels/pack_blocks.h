/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of B whose rows sum two or four lanes: 8-bit codes, or e4m3fn, e5m2 or e2m1 in whole
 * blocks of 32 under e8m0 scales (blocks_takes()), for kernels without VPERMI2B: the very bytes
 * that packing.h makes of them, a block of 32 lines at a time, by vectors of 256 bits. Behind
 * gemm_fma.h.
 *
 * A row of a block is 32 codes of one position, a byte each: a sign and a magnitude of which
 * the upper bits are the exponent. What is asked of it:
 *   bf16          a magnitude's bits moved, and an addition; subnormals come out of a table
 *   scale         another addition, except to zeros
 *   lowest bit    8 log2 of it: eight times the exponent, and of the mantissa a table
 *   logarithm     8 log2 of a step's largest: its own bits; subnormals by a table
 * The last two are of codes under one scale, so their difference, the spread, has none.
 */
#ifndef NG_KERNELS_PACK_BLOCKS_H
#define NG_KERNELS_PACK_BLOCKS_H

#include "blocks.h"

/* Of a format, in all lanes. */
struct block_tables {
    __m256i value;         /* 16 bits: bf16 of the 8 least magnitudes */
    __m256i rebias;        /* 16 bits: what a normal magnitude's moved bits lack */
    __m256i normal;        /* 16 bits: the least normal magnitude, less 1 */
    __m256i normal8;       /* the same of bytes */
    __m256i exponent;      /* bytes: its bits of a magnitude */
    __m256i bit, top;      /* bytes: 8 log2 of the lowest bit by the mantissa; see above */
    __m256i above;         /* bytes: between what the two begin at, rounded up (SPREAD_UP) */
    __m128i to_bf16, to_8; /* shifts of a magnitude: to bf16, to eighths */
    int special;           /* the least magnitude of an Inf or a NaN */
};

/* `widen`: FP32 patterns of codes. */
static inline struct block_tables block_tables(const ng_format_spec *f, const uint32_t *widen)
{
    const int man = (int)f->man_bits, normal = 1 << man;
    uint16_t value[8] = { 0 };
    uint8_t bit[16], top[16] = { 0 };
    for (int i = 0; i < normal; i++)
        value[i] = (uint16_t)(widen[i] >> 16);
    for (int i = 0; i < 16; i++) {
        const int m = i & (normal - 1);
        bit[i] = (uint8_t)(8 * (m ? __builtin_ctz((unsigned)m) : man));
    }
    for (int m = 1; m < normal; m++) {
        const int log2 = 31 - __builtin_clz((unsigned)m);
        top[m] = (uint8_t)(8 * log2 + (8 * m >> log2) - 8 + 1);
    }
    int special = 0;
    while (special < 128 && widen[special] < WIDEN_INF)
        special++;
    return (struct block_tables){
        .value = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(void *)value)),
        .rebias = _mm256_set1_epi16((int16_t)((widen[normal] >> 16) - (1u << 7))),
        .normal = _mm256_set1_epi16((int16_t)(normal - 1)),
        .normal8 = _mm256_set1_epi8((char)(normal - 1)),
        .exponent = _mm256_set1_epi8((char)(0x7F & -normal)),
        .bit = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(void *)bit)),
        .top = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(void *)top)),
        .above = _mm256_set1_epi8((char)(1 + 8 * (man - 1))),
        .to_bf16 = _mm_cvtsi32_si128(7 - man),
        .to_8 = _mm_cvtsi32_si128(3 - man),
        .special = special
    };
}

/* 16 codes as bf16; `scaled`: times 2^(step / 128). */
PACK_INLINE __m256i block_decode(const struct block_tables *t, __m128i codes, const bool scaled,
                                 __m256i step)
{
    const __m256i x = _mm256_cvtepu8_epi16(codes),
                  size = _mm256_and_si256(x, _mm256_set1_epi16(0x7F)),
                  moved = _mm256_add_epi16(_mm256_sll_epi16(size, t->to_bf16), t->rebias),
                  at = _mm256_add_epi16(_mm256_mullo_epi16(size, _mm256_set1_epi16(0x0202)),
                                        _mm256_set1_epi16(0x0100)),
                  value = _mm256_blendv_epi8(_mm256_shuffle_epi8(t->value, at), moved,
                                             _mm256_cmpgt_epi16(size, t->normal)),
                  zero = _mm256_cmpeq_epi16(size, _mm256_setzero_si256()),
                  sign = _mm256_slli_epi16(_mm256_srli_epi16(x, 7), 15);
    return _mm256_or_si256(
        scaled ? _mm256_add_epi16(value, _mm256_andnot_si256(zero, step)) : value, sign);
}

/* 8 log2 of the lowest bits of 32 magnitudes, from where they begin; of zeros 255. */
PACK_INLINE __m256i block_bits(const struct block_tables *t, __m256i size)
{
    const __m256i e = _mm256_sll_epi16(_mm256_and_si256(size, t->exponent), t->to_8),
                  x = _mm256_add_epi8(
                      _mm256_subs_epu8(e, _mm256_set1_epi8(8)),
                      _mm256_shuffle_epi8(t->bit,
                                          _mm256_and_si256(size, _mm256_set1_epi8(15))));
    return _mm256_or_si256(x, _mm256_cmpeq_epi8(size, _mm256_setzero_si256()));
}

/* 8 log2 of magnitudes, rounded up; of zeros 0. */
PACK_INLINE __m256i block_tops(const struct block_tables *t, __m256i size)
{
    const __m256i x = _mm256_add_epi8(_mm256_sll_epi16(size, t->to_8), t->above),
                  small =
                      _mm256_shuffle_epi8(t->top, _mm256_and_si256(size, _mm256_set1_epi8(15)));
    return _mm256_blendv_epi8(small, x, _mm256_cmpgt_epi8(size, t->normal8));
}

/* Where a panel's next block goes, and what is known of those before it. */
struct block_panel {
    uint32_t *elements;
    uint8_t *spread, *most;
    struct codes_bounds seen;
    __m256i largest; /* magnitude */
    __m256i widest;  /* spread byte */
};

/* Rows of 32 codes, those of even positions and of odd ones, each `step` bytes behind the one
 * before. */
struct block_lying {
    const uint8_t *row[2];
    int64_t step;
};

PACK_INLINE const uint8_t *block_row(const struct block_lying *y, int position)
{
    return y->row[position % 2] + position / 2 * y->step;
}

/* Two positions' codes to words of pairs. */
PACK_INLINE void block_pair(const struct block_tables *t, const uint8_t *first,
                            const uint8_t *second, const bool scaled, const __m256i by[2],
                            uint32_t *to)
{
    FMA_UNROLL
    for (int h = 0; h < 2; h++) {
        const __m128i *const p = (const __m128i *)(const void *)(first + 16 * h),
                             *const q = (const __m128i *)(const void *)(second + 16 * h);
        const __m256i x = block_decode(t, _mm_loadu_si128(p), scaled, by[h]),
                      y = block_decode(t, _mm_loadu_si128(q), scaled, by[h]),
                      low = _mm256_unpacklo_epi16(y, x), high = _mm256_unpackhi_epi16(y, x);
        _mm256_storeu_si256((__m256i *)(void *)(to + 16 * h),
                            _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(to + 16 * h + 8),
                            _mm256_permute2x128_si256(low, high, 0x31));
    }
}

/* What the scales of 16 lines add to bf16. */
PACK_INLINE __m256i block_scale(const uint8_t *scale)
{
    const __m256i x =
        _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)scale));
    return _mm256_slli_epi16(_mm256_sub_epi16(x, _mm256_set1_epi16(127)), 7);
}

/* 32 rows of 32 codes; those of two lanes (step 2) have no scales. */
PACK_INLINE void block_rows(const struct block_tables *t, const struct block_lying *y,
                            const int step, const uint8_t *scale, struct block_panel *b)
{
    const bool scaled = step == BLOCKS_STEP;
    const __m256i zero = _mm256_setzero_si256(), all = _mm256_set1_epi8(0x7F),
                  one = _mm256_set1_epi8(1),
                  by[2] = { scaled ? block_scale(scale) : zero,
                            scaled ? block_scale(scale + 16) : zero };
    __m256i most = zero, least = _mm256_set1_epi8(-1);
    const int64_t next = y->step;
    const uint8_t *even = y->row[0], *odd = y->row[1];
    for (int p = 0; p < BLOCKS_VL; p += step, even += step / 2 * next, odd += step / 2 * next) {
        __m256i top = zero, bit = _mm256_set1_epi8(-1);
        FMA_UNROLL
        for (int i = 0; i < step; i++) {
            const uint8_t *const row = (i % 2 ? odd : even) + i / 2 * next;
            const __m256i size =
                _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)row), all);
            top = _mm256_max_epu8(top, size);
            least = _mm256_min_epu8(least, _mm256_sub_epi8(size, one));
            bit = _mm256_min_epu8(bit, block_bits(t, size));
        }
        most = _mm256_max_epu8(most, top);
        FMA_UNROLL
        for (int i = 0; i < step; i += 2, b->elements += NR)
            block_pair(t, even + i / 2 * next, odd + i / 2 * next, scaled, by, b->elements);
        const __m256i spread = _mm256_subs_epu8(block_tops(t, top), bit);
        _mm256_storeu_si256((__m256i *)(void *)b->spread, spread);
        *b->most++ = (uint8_t)pack_largest_byte(_mm256_castsi256_si128(spread));
        *b->most++ = (uint8_t)pack_largest_byte(_mm256_extracti128_si256(spread, 1));
        b->widest = _mm256_max_epu8(b->widest, spread);
        b->spread += NR;
    }
    b->largest = _mm256_max_epu8(b->largest, most);
    const __m256i lowest = _mm256_and_si256(_mm256_add_epi8(least, one), all);
    FMA_UNROLL
    for (int i = 0; i < 2; i++) {
        const __m256i x = i ? lowest : most;
        codes_bound(&b->seen, block_decode(t, _mm256_castsi256_si128(x), scaled, by[0]));
        codes_bound(&b->seen, block_decode(t, _mm256_extracti128_si256(x, 1), scaled, by[1]));
    }
}

/* ---- Reading. ---- */

/* 32 codes of four bits, the earlier one in a byte's lower half, as bytes. */
PACK_INLINE __m256i block_halves(__m128i x)
{
    const __m128i low = _mm_set1_epi8(15),
                  sign = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -128, -127, -126, -125, -124,
                                       -123, -122, -121),
                  first = _mm_shuffle_epi8(sign, _mm_and_si128(x, low)),
                  second = _mm_shuffle_epi8(sign, _mm_and_si128(_mm_srli_epi16(x, 4), low));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi8(first, second)),
                                   _mm_unpackhi_epi8(first, second), 1);
}

/* 32 codes from p on. */
PACK_INLINE __m256i block_load(const bool halves, const unsigned char *p)
{
    return halves ? block_halves(_mm_loadu_si128((const __m128i *)(const void *)p))
                  : _mm256_loadu_si256((const __m256i *)(const void *)p);
}

struct block_source {
    const struct gemm_operand *o;
    int64_t line, each; /* each: codes of a byte */
    int32_t lines;
    bool second; /* gemm_job's */
    bool split;  /* lines along k, as blocks_split() has them */
};

/* Lines along k, 32 positions from number p on of each, turned. */
PACK_INLINE void block_along(const struct block_source *s, const struct gemm_walk *w,
                             const bool halves, const bool split, int64_t p,
                             uint8_t to[BLOCKS_VL * BLOCKS_VL])
{
    static const unsigned char zeros[BLOCKS_VL];
    const struct gemm_operand *o = s->o;
    const int64_t step = o->line / s->each, apart = w->k[p + 1] - w->k[p];
    const unsigned char *first =
        (const unsigned char *)o->data + (o->offset + s->line * o->line + w->k[p]) / s->each;
    __m256i x[2][16];
    for (int l = 0; l < 16; l++) {
        __m256i y[2];
        FMA_UNROLL
        for (int h = 0; h < 2; h++) {
            const bool there = l + 16 * h < s->lines;
            const unsigned char *const at = there ? first + (l + 16 * h) * step : zeros;
            y[h] = split ? codes_two_runs(at, there ? apart : 0) : block_load(halves, at);
        }
        x[0][l] = _mm256_permute2x128_si256(y[0], y[1], 0x20);
        x[1][l] = _mm256_permute2x128_si256(y[0], y[1], 0x31);
    }
    for (int h = 0; h < 2; h++) {
        codes_turn_bytes(x[h]);
        for (int i = 0; i < 16; i++)
            _mm256_storeu_si256((__m256i *)(void *)(to + (16 * h + i) * BLOCKS_VL), x[h][i]);
    }
}

/* Lines that are neighbours, some of the panel's or of half a byte. */
static inline void block_across(const struct block_source *s, const bool halves,
                                const struct block_lying *y, uint8_t to[BLOCKS_VL * BLOCKS_VL])
{
    const size_t bytes = (size_t)((s->lines + s->each - 1) / s->each);
    for (int i = 0; i < BLOCKS_VL; i++) {
        unsigned char some[BLOCKS_VL] = { 0 };
        memcpy(some, block_row(y, i), bytes);
        if (s->lines % s->each) /* the upper half is another panel's line, or nobody's */
            some[bytes - 1] &= 15;
        _mm256_storeu_si256((__m256i *)(void *)(to + i * BLOCKS_VL), block_load(halves, some));
    }
}

/* Rows where they lie, 32 codes each, or copied to `turned`, each behind the one before. */
PACK_INLINE void block_rows_of(const struct block_tables *t, const int step,
                               const struct block_lying *there, const uint8_t *turned,
                               const uint8_t *scale, struct block_panel *b)
{
    const struct block_lying copied = { .row = { turned, turned + BLOCKS_VL },
                                        .step = 2 * BLOCKS_VL };
    if (there)
        block_rows(t, there, step, scale, b);
    else
        block_rows(t, &copied, step, scale, b);
}

/* The block at position p of the walk. */
static inline void block_take(const struct block_source *s, const struct block_tables *t,
                              const struct gemm_walk *w, const bool halves, int64_t p,
                              const uint8_t *scales, struct block_panel *b)
{
    const struct gemm_operand *o = s->o;
    const struct block_lying *there = NULL;
    uint8_t turned[BLOCKS_VL * BLOCKS_VL];
    const int64_t step = o->k / s->each;
    const unsigned char *row = (const unsigned char *)o->data + (o->offset + s->line) / s->each;
    const struct block_lying lying = { .row = { row + w->k[p] * step,
                                                row + w->k[p + 1] * step },
                                       .step = (w->k[p + 2] - w->k[p]) * step };
    if (s->split) {
        block_along(s, w, false, true, p, turned);
    } else if (o->k == 1) {
        block_along(s, w, halves, false, p, turned);
    } else {
        if (p + 2 * BLOCKS_VL < w->used) /* two blocks on: short pieces far apart */
            for (int i = 0; i < BLOCKS_VL; i++)
                near_ask(block_row(&lying, i) + BLOCKS_VL * lying.step, s->second);
        if (!halves && s->lines == BLOCKS_VL)
            there = &lying;
        else
            block_across(s, halves, &lying, turned);
    }
    if (w->blocks)
        block_rows_of(t, 4, there, turned, scales + (int64_t)w->block[p] * NR, b);
    else
        block_rows_of(t, 2, there, turned, NULL, b);
}

PACK_INLINE void block_all(const struct block_source *s, const struct block_tables *t,
                           const struct gemm_walk *w, const bool halves, const uint8_t *scales,
                           struct block_panel *b)
{
    for (int64_t p = 0; p < w->used; p += BLOCKS_VL)
        block_take(s, t, w, halves, p, scales, b);
}

/* False: pack() takes it, whatever the panel holds now. */
static bool block_pack(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                       int32_t lines, void *panel)
{
    _Static_assert((int)NR == (int)BLOCKS_VL, "a row of a block is a row of the panel");
    const struct gemm_operand *o = &g->b;
    const bool tabled = o->spec->man_bits <= 3; /* block_tables.value */
    if (!blocks_takes(g, w) || !tabled || !fma_pairs(g) || !(o->k == 1 || o->line == 1))
        return false;
    const bool follow = blocks_follow(w);
    if (!follow && !blocks_split(w))
        return false;
    const struct panel_parts parts = panel_parts(g, w, NR, true);
    unsigned char *const base = panel;
    const struct pack_source source = { .g = g, .o = o, .line = line, .lines = lines };
    if (w->blocks)
        pack_scales(&source, w, NR, base + parts.scales);
    if (!blocks_near(base + parts.scales, w->blocks * NR))
        return false;
    const struct block_tables t = block_tables(o->spec, w->widen[GEMM_B]);
    const bool halves = blocks_halves(g);
    const struct block_source s = { .o = o,
                                    .line = line,
                                    .each = halves ? 2 : 1,
                                    .lines = lines,
                                    .second = g->second,
                                    .split = !follow && o->k == 1 };
    struct block_panel b = { .elements = (uint32_t *)(void *)(base + sizeof(struct gemm_panel)),
                             .spread = base + parts.spread,
                             .most = base + parts.most,
                             .largest = _mm256_setzero_si256(),
                             .widest = _mm256_setzero_si256() };
    codes_bounds_begin(&b.seen);
    if (halves)
        block_all(&s, &t, w, true, base + parts.scales, &b);
    else
        block_all(&s, &t, w, false, base + parts.scales, &b);
    uint8_t bytes[2][BLOCKS_VL];
    int largest = 0, widest = 0;
    _mm256_storeu_si256((__m256i *)(void *)bytes[0], b.largest);
    _mm256_storeu_si256((__m256i *)(void *)bytes[1], b.widest);
    for (int i = 0; i < BLOCKS_VL; i++) {
        largest = bytes[0][i] > largest ? bytes[0][i] : largest;
        widest = bytes[1][i] > widest ? bytes[1][i] : widest;
    }
    struct pack_facts facts;
    pack_facts_begin(&facts);
    if (largest >= t.special || !codes_settle(&b.seen, &facts.codes))
        return false;
    struct gemm_panel *head = panel;
    *head = (struct gemm_panel){ .spread = widest };
    pack_join(&facts, o->spec);
    pack_conclude(&facts, (int)rule_values(g, o)->man_bits, head);
    return true;
}

#endif
