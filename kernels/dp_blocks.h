/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of B whose rows sum two or four lanes, as packing.h makes them: 8-bit codes, or
 * e4m3fn, e5m2 or e2m1 in blocks of 32 under e8m0 scales (blocks_takes()). Behind gemm_fma.h;
 * dp_rows.h has A's.
 *
 * A quad is four positions' codes of 16 lines: a word of each line, a byte of each code. Eight
 * of them, a block, are taken at a time. What one asks of a code is one VPERMI2B among its 128
 * magnitudes (the index's sign counts for nothing): the halves of its bf16; its lowest bit; of
 * a step's largest its logarithm. A step has one scale, so its spread does not. Spreads are
 * found where positions, not lines, stand in halves of a vector: there a step's largest is a
 * maximum of vectors. A block's scale is added to exponents, but not to those of zeros, which
 * are so rare in formats of eight bits that eight positions' codes are asked for them together.
 */
#ifndef NG_KERNELS_DP_BLOCKS_H
#define NG_KERNELS_DP_BLOCKS_H

#include "dp_codes.h"

_Static_assert((int)NR == (int)BLOCKS_VL,
               "what follows has as many lines as a block has positions");

enum {
    BLOCKS_AHEAD = 96, /* positions; 64 and 128 are as fast */
    BLOCKS_TURN = 64,  /* blocks of lines along k, turned at once; of 4 or 16 ng_pack() reads
                          memory a tenth slower */
    BLOCKS_QUAD = 4,   /* positions */
    BLOCKS_QUADS = BLOCKS_VL / BLOCKS_QUAD, /* of a block */
    /* The exponent field of the least bit of these formats' values, e5m2's 2^-16. With it the
     * logarithms below are bytes, 0 to 255. */
    QUAD_LEAST = 127 - 16
};

/* ---- Tables. ---- */

/* Of 128 magnitudes, 64 each. */
struct quad_tables {
    __m512i high[2], low[2]; /* halves of their bf16 */
    __m512i bit[2];          /* their lowest bit, 8 log2; zero: 255 */
    __m512i top[2];          /* 8 log2 of themselves, up, as SPREAD_UP has it; zero: 0 */
    __m512i exponent[2];     /* theirs, to be added to a scale's code */
    int special;             /* the least of an Inf or a NaN */
};

/* Which bytes of a code's bf16 stand where in words of pairs, low halves in the first operand,
 * high ones in the second; in the order of two 32-bit words: codes 0 and 1, 2 and 3. */
static const uint8_t quad_pairs[2][64] = {
#define QUAD_PAIR(l, first)                                                                    \
    4 * (l) + (first) + 1, 64 + 4 * (l) + (first) + 1, 4 * (l) + (first), 64 + 4 * (l) + (first)
#define QUAD_FOUR(l, first)                                                                    \
    QUAD_PAIR(l, first), QUAD_PAIR(l + 1, first), QUAD_PAIR(l + 2, first),                     \
        QUAD_PAIR(l + 3, first)
#define QUAD_LINES(first)                                                                      \
    {                                                                                          \
        QUAD_FOUR(0, first), QUAD_FOUR(4, first), QUAD_FOUR(8, first), QUAD_FOUR(12, first)    \
    }
    QUAD_LINES(0), QUAD_LINES(2)
#undef QUAD_LINES
#undef QUAD_FOUR
#undef QUAD_PAIR
};

/* 64 words' low bytes, from one vector of 32 and another. */
PACK_INLINE __m512i quad_bytes(__m512i first, __m512i second, const int byte)
{
    uint8_t at[64];
    FMA_UNROLL
    for (int i = 0; i < 64; i++)
        at[i] = (uint8_t)(2 * i + byte);
    return _mm512_permutex2var_epi8(first, _mm512_loadu_si512(at), second);
}

/* 8 log2 above QUAD_LEAST of bf16 with few bits, as a byte. */
PACK_INLINE __m512i quad_logarithm(__m512i size)
{
    const __m512i up = _mm512_set1_epi16(SPREAD_UP >> 16),
                  x = _mm512_sub_epi16(_mm512_srli_epi16(_mm512_add_epi16(size, up), 4),
                                       _mm512_set1_epi16(8 * QUAD_LEAST));
    return _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(size, size), x);
}

PACK_INLINE __m512i quad_lowest(__m512i size)
{
    const __m512i x = _mm512_slli_epi16(
        _mm512_sub_epi16(blocks_lowest(size), _mm512_set1_epi16(QUAD_LEAST + 7)), 3);
    return _mm512_mask_mov_epi16(_mm512_set1_epi16(255), _mm512_test_epi16_mask(size, size), x);
}

static inline struct quad_tables quad_tables(const ng_format_spec *spec, const uint32_t *widen)
{
    const struct blocks_table t = blocks_table(widen);
    struct quad_tables q = { .special = (int)spec->max_code + 1 };
    FMA_UNROLL
    for (int h = 0; h < 2; h++) {
        const __m512i a = t.part[2 * h], b = t.part[2 * h + 1], bias = _mm512_set1_epi16(127);
        q.high[h] = quad_bytes(a, b, 1);
        q.low[h] = quad_bytes(a, b, 0);
        q.bit[h] = quad_bytes(quad_lowest(a), quad_lowest(b), 0);
        q.top[h] = quad_bytes(quad_logarithm(a), quad_logarithm(b), 0);
        q.exponent[h] = quad_bytes(_mm512_sub_epi16(_mm512_srli_epi16(a, 7), bias),
                                   _mm512_sub_epi16(_mm512_srli_epi16(b, 7), bias), 0);
    }
    return q;
}

PACK_INLINE __m512i quad_look_up(const __m512i table[2], __m512i codes)
{
    return _mm512_permutex2var_epi8(table[0], codes, table[1]);
}

/* ---- Quads. ---- */

/* What each has loops of its own for. */
struct blocks_way {
    int step;    /* 2: no scales; or 4 */
    bool halves; /* codes of four bits */
    bool split;  /* lines along k, the two lanes of a row from places apart */
};

/* Where the parts of the panel are. */
struct blocks_panel {
    const struct gemm_operand *o;
    const struct gemm_walk *w;
    int64_t line;
    int32_t lines;
    bool second; /* gemm_job's */
    uint32_t *elements;
    uint8_t *spread, *most;
    const uint8_t *scales;
};

static const struct blocks_way blocks_two = { .step = 2 },
                               blocks_two_split = { .step = 2, .split = true },
                               blocks_four = { .step = 4 },
                               blocks_four_halves = { .step = 4, .halves = true };

/* A block's scales; those of position p. */
PACK_INLINE const uint8_t *blocks_by(const struct blocks_panel *t, int64_t block)
{
    return t->scales ? t->scales + block * NR : NULL;
}

PACK_INLINE const uint8_t *blocks_at(const struct blocks_panel *t, int64_t p)
{
    return t->scales ? blocks_by(t, t->w->block[p]) : NULL;
}

/* A quad's pairs. */
PACK_INLINE void quad_decode(const struct quad_tables *t, __m512i codes, __m512i y[2])
{
    const __m512i low = quad_look_up(t->low, codes),
                  high = _mm512_ternarylogic_epi32(quad_look_up(t->high, codes), codes,
                                                   _mm512_set1_epi8((char)0x80), 0xF8);
    FMA_UNROLL
    for (int i = 0; i < 2; i++)
        y[i] = _mm512_permutex2var_epi8(low, _mm512_loadu_si512(quad_pairs[i]), high);
}

/* Times 2^(step / 128): zeros stay zeros, where there may be any. */
PACK_INLINE __m512i quad_scale(const bool zeros, __m512i pairs, __m512i step)
{
    if (!zeros)
        return _mm512_add_epi16(pairs, step);
    return _mm512_mask_add_epi16(
        pairs, _mm512_test_epi16_mask(pairs, _mm512_set1_epi16(0x7FFF)), pairs, step);
}

/* Where a step's parts are, and those of the steps behind it. */
struct quad_place {
    uint32_t *elements;
    uint8_t *spread, *most;
};

static inline struct quad_place quad_place(const struct blocks_panel *t, const int step,
                                           int64_t p)
{
    const int64_t number = p / step;
    return (struct quad_place){ t->elements + p / 2 * NR, t->spread + number * NR,
                                t->most + number * GROUPS };
}

/* What is known of a panel. */
struct quad_facts {
    __m512i spread;  /* its largest bytes */
    __m512i largest; /* magnitudes, without their scales */
    __m512i most;    /* exponent fields, */
    __m512i less;    /* and their negatives, of which a zero's is the least */
};

static inline struct quad_facts quad_none(void)
{
    const __m512i zero = _mm512_setzero_si512();
    return (struct quad_facts){ zero, zero, zero, zero };
}

/* A block's bounds, of each of 32 columns in both halves: the largest magnitude, and the
 * largest of their negatives, which a zero's is not. */
struct quad_seen {
    __m512i most, less;
};

PACK_INLINE struct quad_seen quad_begin(void)
{
    const __m512i zero = _mm512_setzero_si512();
    return (struct quad_seen){ zero, zero };
}

PACK_INLINE __m512i quad_minus(__m512i x)
{
    return _mm512_sub_epi8(_mm512_setzero_si512(), x);
}

/* The halves of x, the lower ones and the upper ones of two vectors. */
PACK_INLINE __m512i quad_lower(__m512i x, __m512i y)
{
    return _mm512_shuffle_i64x2(x, y, 0x44);
}

PACK_INLINE __m512i quad_upper(__m512i x, __m512i y)
{
    return _mm512_shuffle_i64x2(x, y, 0xEE);
}

/*
 * x: codes of eight positions, two in each vector, a half with 32 columns each. The spread
 * bytes of their steps: two of four lanes in s[0], the first one's columns in its lower half;
 * or four of two lanes in s[0] and s[1]. Returns the least magnitudes, zeros among them.
 */
PACK_INLINE __m512i quad_spreads(struct quad_facts *f, const struct quad_tables *q,
                                 const int step, const __m512i x[4], struct quad_seen *seen,
                                 __m512i s[2])
{
    __m512i top[4], bit[4];
    FMA_UNROLL
    for (int i = 0; i < 4; i++) {
        const __m512i y = step == 4 ? x[i]
                          : i % 2   ? quad_upper(x[i - 1], x[i])
                                    : quad_lower(x[i], x[i + 1]);
        top[i] = _mm512_and_si512(y, _mm512_set1_epi8(0x7F));
        bit[i] = quad_look_up(q->bit, y);
    }
    const __m512i least =
        _mm512_min_epu8(_mm512_min_epu8(top[0], top[1]), _mm512_min_epu8(top[2], top[3]));
    FMA_UNROLL
    for (int i = 0; i < 2; i++) {
        top[i] = _mm512_max_epu8(top[2 * i], top[2 * i + 1]);
        bit[i] = _mm512_min_epu8(bit[2 * i], bit[2 * i + 1]);
    }
    if (step == 4) {
        top[0] = _mm512_max_epu8(quad_lower(top[0], top[1]), quad_upper(top[0], top[1]));
        bit[0] = _mm512_min_epu8(quad_lower(bit[0], bit[1]), quad_upper(bit[0], bit[1]));
    }
    FMA_UNROLL
    for (int i = 0; i < 4 / step; i++) {
        seen->most = _mm512_max_epu8(seen->most, top[i]);
        s[i] = _mm512_subs_epu8(quad_look_up(q->top, top[i]), bit[i]);
        f->spread = _mm512_max_epu8(f->spread, s[i]);
    }
    return least;
}

/* `least` of quad_spreads(); `zeros`: some of x are. */
PACK_INLINE void quad_least(struct quad_seen *seen, const bool zeros, const __m512i x[4],
                            __m512i least)
{
    if (!zeros)
        seen->less = _mm512_max_epu8(seen->less, quad_minus(least));
    FMA_UNROLL
    for (int i = 0; zeros && i < 4; i++)
        seen->less = _mm512_max_epu8(
            seen->less, quad_minus(_mm512_and_si512(x[i], _mm512_set1_epi8(0x7F))));
}

/* No zero? Formats of eight bits have few of them. */
PACK_INLINE bool quad_full(const struct blocks_way way, __m512i least)
{
    return way.step == 4 && !way.halves && !_mm512_testn_epi8_mask(least, least);
}

/* The largest byte of each quarter of four vectors: that of quarter l of s[i] is byte 4 i + l.
 */
PACK_INLINE __m128i quad_largest(const __m512i s[4])
{
    const __m128i turn = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i y[2];
    FMA_UNROLL
    for (int i = 0; i < 2; i++)
        y[i] = _mm512_max_epu8(_mm512_unpacklo_epi64(s[2 * i], s[2 * i + 1]),
                               _mm512_unpackhi_epi64(s[2 * i], s[2 * i + 1]));
    const __m512 low = _mm512_castsi512_ps(y[0]), high = _mm512_castsi512_ps(y[1]);
    __m512i x = _mm512_max_epu8(_mm512_castps_si512(_mm512_shuffle_ps(low, high, 0x88)),
                                _mm512_castps_si512(_mm512_shuffle_ps(low, high, 0xDD)));
    x = _mm512_max_epu8(x, _mm512_srli_epi32(x, 16));
    x = _mm512_max_epu8(x, _mm512_srli_epi32(x, 8));
    return _mm_shuffle_epi8(_mm512_cvtepi32_epi8(x), turn); /* words 4 l + i until here */
}

/* The largest byte of each group of columns in n steps' spread bytes; n: a multiple of eight.
 */
PACK_INLINE void blocks_most(const uint8_t *spread, int64_t n, uint8_t *most)
{
    for (int64_t i = 0; i < n; i += 8, spread += 8 * NR, most += 8 * GROUPS) {
        __m512i s[4];
        FMA_UNROLL
        for (int j = 0; j < 4; j++)
            s[j] = iv_load(spread + j * 2 * NR);
        _mm_storeu_si128((__m128i *)(void *)most, quad_largest(s));
    }
}

/* A block's bounds and its columns' scales. */
PACK_INLINE void quad_note(struct quad_facts *f, const struct quad_tables *q,
                           const struct quad_seen *seen, const uint8_t *scales)
{
    const __m256i by = scales ? _mm256_loadu_si256((const __m256i *)(const void *)scales)
                              : _mm256_set1_epi8(127);
    const __m512i both = _mm512_max_epu8(quad_lower(seen->most, seen->less),
                                         quad_upper(seen->most, seen->less)),
                  size = _mm512_mask_sub_epi8(both, UINT64_MAX << 32, _mm512_setzero_si512(),
                                              both),
                  field = _mm512_maskz_add_epi8(_mm512_test_epi8_mask(size, size),
                                                quad_look_up(q->exponent, size),
                                                _mm512_broadcast_i64x4(by));
    f->largest = _mm512_max_epu8(f->largest, size);
    f->most = _mm512_max_epu8(f->most, field);
    f->less = _mm512_max_epu8(f->less, quad_minus(field));
}

PACK_INLINE int quad_most(__m512i x)
{
    const __m256i y =
        _mm256_max_epu8(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    return pack_largest_byte(
        _mm_max_epu8(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1)));
}

/* The panel's head; false: a NaN or an Inf is among the values. */
static bool quad_conclude(const struct quad_facts *f, const struct quad_tables *q,
                          const struct gemm_job *g, struct gemm_panel *head)
{
    struct pack_facts facts;
    pack_facts_begin(&facts);
    if (quad_most(f->largest) >= q->special)
        return false;
    const int most = quad_most(f->most), least = 256 - quad_most(f->less);
    facts.high[0] = (uint32_t)most;
    facts.low[0] = most ? (uint32_t)least : 255;
    *head = (struct gemm_panel){ .spread = quad_most(f->spread) };
    pack_conclude(&facts, (int)rule_values(g, &g->b)->man_bits, head);
    return true;
}

/* What 16 scales add to pairs. */
PACK_INLINE __m512i quad_step(const uint8_t *scales)
{
    const __m512i scale = _mm512_cvtepu8_epi32(
                      _mm_loadu_si128((const __m128i *)(const void *)scales)),
                  both = _mm512_or_si512(scale, _mm512_slli_epi32(scale, 16));
    return _mm512_slli_epi16(_mm512_sub_epi16(both, _mm512_set1_epi16(127)), 7);
}

/* Quads' pairs to where they go; without scales, which rows of two lanes do not have. */
PACK_INLINE void quads_put(const struct quad_tables *q, const int step, const bool zeros,
                           __m512i x[2][2], const __m512i by[2], uint32_t *to)
{
    FMA_UNROLL
    for (int i = 0; i < 4; i++, to += i % 2 ? VL : 2 * NR - VL) {
        __m512i y[2];
        quad_decode(q, x[i / 2][i % 2], y);
        FMA_UNROLL
        for (int j = 0; j < 2; j++)
            iv_store(to + j * NR, step == 4 ? quad_scale(zeros, y[j], by[i % 2]) : y[j]);
    }
}

/*
 * Eight positions of 32 columns under a block's scales: x their quads of 16 columns, y two
 * positions in each vector, a half with 32 columns.
 */
PACK_INLINE void blocks_8(struct quad_facts *f, const struct quad_tables *q,
                          const struct blocks_way way, __m512i x[2][2], const __m512i y[4],
                          const __m512i by[2], struct quad_seen *seen, struct quad_place to)
{
    __m512i s[2];
    const __m512i least = quad_spreads(f, q, way.step, y, seen, s);
    if (quad_full(way, least)) {
        quad_least(seen, false, y, least);
        quads_put(q, way.step, false, x, by, to.elements);
    } else {
        quad_least(seen, true, y, least);
        quads_put(q, way.step, true, x, by, to.elements);
    }
    FMA_UNROLL
    for (int j = 0; j < 4 / way.step; j++)
        iv_store(to.spread + j * 2 * NR, s[j]);
}

/* The places of the eight positions behind. */
PACK_INLINE struct quad_place blocks_next(struct quad_place to, const int step)
{
    return (struct quad_place){ to.elements + 4 * NR, to.spread + 8 / step * NR,
                                to.most + 8 / step * GROUPS };
}

/* ---- Lines along k. ---- */

PACK_INLINE __m512i quad_two(const unsigned char *low, const unsigned char *high)
{
    return _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)low)),
        _mm256_loadu_si256((const __m256i *)(const void *)high), 1);
}

/* The same of 32 codes of four bits each, the earlier one in a byte's lower bits; they become
 * bytes whose highest bit is their sign. */
PACK_INLINE __m512i quad_two_halves(const unsigned char *low, const unsigned char *high)
{
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(
                      0, 1, 2, 3, 4, 5, 6, 7, -128, -127, -126, -125, -124, -123, -122, -121)),
                  x = _mm512_cvtepu8_epi16(codes_half_lines(low, high)),
                  codes = _mm512_ternarylogic_epi32(x, _mm512_slli_epi16(x, 4),
                                                    _mm512_set1_epi8(0xF), 0xA8);
    return _mm512_shuffle_epi8(bytes, codes);
}

PACK_INLINE __m512i quad_load(const bool halves, const unsigned char *low,
                              const unsigned char *high)
{
    return halves ? quad_two_halves(low, high) : quad_two(low, high);
}

/* The same where 16 of a line lie there and 16 so far from them, in turn. */
PACK_INLINE __m512i quad_two_split(const unsigned char *const line[2], int64_t apart)
{
    uint8_t at[64];
    FMA_UNROLL
    for (int i = 0; i < 64; i++)
        at[i] = (uint8_t)(i / 32 * 32 + i % 2 * 16 + i % 32 / 2);
    const __m256i x = codes_half_lines(line[0], line[0] + apart),
                  y = codes_half_lines(line[1], line[1] + apart);
    return _mm512_permutexvar_epi8(iv_load(at),
                                   _mm512_inserti64x4(_mm512_castsi256_si512(x), y, 1));
}

/* Where 32 positions of 32 lines are; `split`: the second lane's are so far from the first
 * one's. */
struct blocks_lines {
    const unsigned char *first;
    int64_t step, apart; /* bytes */
};

static struct blocks_lines blocks_lines(const struct blocks_panel *t,
                                        const struct blocks_way way, int64_t p)
{
    const struct gemm_operand *o = t->o;
    const int64_t each = way.halves ? 2 : 1; /* codes of a byte */
    return (struct blocks_lines){ .first = (const unsigned char *)o->data +
                                           (o->offset + t->line * o->line + t->w->k[p]) / each,
                                  .step = o->line / each,
                                  .apart = way.split ? t->w->k[p + 1] - t->w->k[p] : 0 };
}

/* The same where a panel has fewer lines: zeros follow them. */
static __attribute__((noinline)) struct blocks_lines
blocks_some_lines(const struct blocks_panel *t, const struct blocks_way *way, int64_t p,
                  unsigned char row[NR][BLOCKS_VL])
{
    const struct blocks_lines there = blocks_lines(t, *way, p);
    const size_t bytes = (size_t)BLOCKS_VL / (way->halves || way->split ? 2 : 1);
    memset(row, 0, (size_t)NR * BLOCKS_VL);
    for (int32_t i = 0; i < t->lines; i++) {
        memcpy(row[i], there.first + i * there.step, bytes);
        if (way->split)
            memcpy(row[i] + bytes, there.first + i * there.step + there.apart, bytes);
    }
    return (struct blocks_lines){ row[0], BLOCKS_VL, (int64_t)bytes };
}

/*
 * Where quads of a block wait until they are decoded: in the upper half of what they become,
 * eight positions' of both halves of the lines together, each read before its place is written.
 * (Memory of their own, at a bad distance modulo 4 KiB, made it a third slower on a Zen 4.)
 */
PACK_INLINE uint32_t *square_quad(uint32_t *elements, int i, int h)
{
    return elements + BLOCKS_QUADS * NR + (i * 2 + h) * VL;
}

/* 32 positions of 16 lines, two lines a vector, turned into quads. */
PACK_INLINE void square_turn(const struct blocks_lines *b, const struct blocks_way way, int h,
                             uint32_t *elements)
{
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13),
                  high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    const unsigned char *first = b->first + h * VL * b->step;
    __m512i z[8];
    FMA_UNROLL
    for (int i = 0; i < 8; i++) {
        const unsigned char *const line[2] = { first + i * b->step, first + (8 + i) * b->step };
        z[i] = way.split ? quad_two_split(line, b->apart)
                         : quad_load(way.halves, line[0], line[1]);
    }
    FMA_UNROLL
    for (int i = 0; i < 8; i += 4) /* lines i .. i + 3: quad j in quarter 0, 4 + j in 1 */
        iv_turn_squares(z + i);
    FMA_UNROLL
    for (int i = 0; i < 4; i++) {
        iv_store(square_quad(elements, i, h), _mm512_permutex2var_epi64(z[i], low, z[4 + i]));
        iv_store(square_quad(elements, 4 + i, h),
                 _mm512_permutex2var_epi64(z[i], high, z[4 + i]));
    }
}

/* A block of 32 lines, of the quads that wait there. */
PACK_INLINE void square_put(struct quad_facts *f, const struct quad_tables *q,
                            const struct blocks_way way, const uint8_t *scales,
                            struct quad_place to)
{
    uint8_t columns[2][64];
    uint32_t *const elements = to.elements;
    struct quad_seen seen = quad_begin();
    __m512i by[2];
    FMA_UNROLL
    for (int i = 0; i < 64; i++) { /* two positions of 32 columns, then two more */
        columns[0][i] = (uint8_t)(i % 32 / 16 * 64 + i % 16 * 4 + i / 32);
        columns[1][i] = (uint8_t)(columns[0][i] + 2);
    }
    for (int h = 0; h < 2; h++)
        by[h] = scales ? quad_step(scales + h * VL) : iv_all(0);
    FMA_UNROLL
    for (int i = 0; i < BLOCKS_QUADS; i += 2, to = blocks_next(to, way.step)) {
        __m512i x[2][2], y[4];
        FMA_UNROLL
        for (int j = 0; j < 4; j++)
            x[j / 2][j % 2] = iv_load(square_quad(elements, i + j / 2, j % 2));
        FMA_UNROLL
        for (int j = 0; j < 4; j++)
            y[j] = _mm512_permutex2var_epi8(x[j / 2][0], iv_load(columns[j % 2]), x[j / 2][1]);
        blocks_8(f, q, way, x, y, by, &seen, to);
    }
    quad_note(f, q, &seen, scales);
}

/*
 * Some blocks from position p on, of 32 lines: how many. Half the lines at a time: 32 that are
 * a power of two apart have too few places in a cache, and are too many to be fetched in
 * advance.
 */
PACK_INLINE int64_t blocks_square(struct quad_facts *f, const struct quad_tables *q,
                                  const struct blocks_panel *t, const struct blocks_way way,
                                  int64_t p)
{
    unsigned char row[NR][BLOCKS_VL];
    const bool some = t->lines < NR;
    int64_t n = (t->w->used - p) / BLOCKS_VL;
    n = some ? 1 : n < BLOCKS_TURN ? n : BLOCKS_TURN;
    const struct blocks_lines own =
        some ? blocks_some_lines(t, &way, p, row) : (struct blocks_lines){ 0 };
    for (int h = 0; h < 2; h++)
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = p + i * BLOCKS_VL;
            const struct blocks_lines lines = some ? own : blocks_lines(t, way, at);
            square_turn(&lines, way, h, quad_place(t, way.step, at).elements);
        }
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = p + i * BLOCKS_VL;
        square_put(f, q, way, blocks_at(t, at), quad_place(t, way.step, at));
    }
    return n;
}

/* ---- Lines that are neighbours. ---- */

/* Rows of 32 codes, those of even positions and of odd ones, each one after another; and those
 * that come nearer meanwhile. */
struct blocks_rows {
    const unsigned char *row[2];
    int64_t step, ahead[2]; /* bytes; ahead 0: nothing is asked for */
    bool second;            /* gemm_job's */
};

/* 32 positions, under scales of one block. */
PACK_INLINE void blocks_rows_32(struct quad_facts *f, const struct quad_tables *q,
                                const struct blocks_rows *r, const struct blocks_way way,
                                const bool asks, const uint8_t *scales, struct quad_place to)
{
    uint8_t place[2][64];
    const unsigned char *row[2] = { r->row[0], r->row[1] };
    const struct quad_place first = to;
    struct quad_seen seen = quad_begin();
    __m512i by[2];
    FMA_UNROLL
    for (int i = 0; i < 64; i++) { /* rows 0 and 1 are one vector, 2 and 3 the other */
        place[0][i] = (uint8_t)(i % 4 * BLOCKS_VL + i / 4);
        place[1][i] = (uint8_t)(place[0][i] + VL);
    }
    for (int h = 0; h < 2; h++)
        by[h] = scales ? quad_step(scales + h * VL) : iv_all(0);
    for (int i = 0; i < 4; i++, to = blocks_next(to, way.step)) {
        __m512i x[2][2], y[4];
        FMA_UNROLL
        for (int j = 0; j < 4; j++) {
            y[j] = quad_load(way.halves, row[0], row[1]);
            for (int h = 0; h < 2; h++) {
                if (asks)
                    near_ask(row[h] + r->ahead[h], r->second);
                row[h] += r->step;
            }
        }
        FMA_UNROLL
        for (int j = 0; j < 4; j++)
            x[j / 2][j % 2] =
                _mm512_permutex2var_epi8(y[j / 2 * 2], iv_load(place[j % 2]), y[j / 2 * 2 + 1]);
        blocks_8(f, q, way, x, y, by, &seen, to);
    }
    blocks_most(first.spread, BLOCKS_VL / way.step, first.most);
    quad_note(f, q, &seen, scales);
}

/* Quads of a block that are not all there, or not as blocks_rows_32() wants them. */
struct blocks_some {
    unsigned char row[BLOCKS_VL][BLOCKS_VL];
    uint32_t elements[BLOCKS_VL / 2 * NR];
    uint8_t spread[BLOCKS_VL / 2 * NR], most[BLOCKS_VL / 2 * GROUPS];
};

static struct blocks_rows blocks_collect(const struct blocks_panel *t, bool halves, int64_t p,
                                         int64_t quads, struct blocks_some *some)
{
    const struct gemm_operand *o = t->o;
    const int64_t each = halves ? 2 : 1;
    const unsigned char *first = (const unsigned char *)o->data + (o->offset + t->line) / each;
    memset(some->row, 0, sizeof some->row);
    for (int64_t i = 0; i < quads * BLOCKS_QUAD; i++) {
        if (t->w->k[p + i] < 0)
            continue;
        memcpy(some->row[i], first + t->w->k[p + i] * o->k / each,
               (size_t)((t->lines + each - 1) / each));
        if (t->lines % each) /* the upper half is another panel's line, or nobody's */
            some->row[i][t->lines / each] &= 0xF;
    }
    return (struct blocks_rows){ .row = { some->row[0], some->row[1] }, .step = 2 * BLOCKS_VL };
}

static void blocks_hand_out(const struct blocks_some *some, int64_t quads, int step,
                            struct quad_place to)
{
    const size_t steps = (size_t)(quads * BLOCKS_QUAD / step);
    memcpy(to.elements, some->elements,
           (size_t)quads * BLOCKS_QUAD / 2 * NR * sizeof(uint32_t));
    memcpy(to.spread, some->spread, steps * NR);
    memcpy(to.most, some->most, steps * GROUPS);
}

/*
 * Rows where they lie. They are short pieces far apart, which the CPU's own fetching does not
 * follow: those some positions behind come nearer. Every second panel finds what the one before
 * it asked for.
 */
PACK_INLINE struct blocks_rows blocks_there(const struct blocks_panel *t, const bool halves,
                                            int64_t p)
{
    const struct gemm_operand *o = t->o;
    const int64_t each = halves ? 2 : 1, line = o->k / each;
    const unsigned char *at = (const unsigned char *)o->data + (o->offset + t->line) / each;
    const int32_t *k = t->w->k + p;
    struct blocks_rows r = { .row = { at + k[0] * line, at + k[1] * line },
                             .step = (k[2] - k[0]) * line,
                             .second = t->second };
    const bool begins = ((uintptr_t)r.row[0] & 63) < BLOCKS_VL / (uintptr_t)each;
    for (int i = 0; begins && p + BLOCKS_AHEAD + 1 < t->w->used && i < 2; i++)
        r.ahead[i] = (k[BLOCKS_AHEAD + i] - k[i]) * line;
    return r;
}

/* The quads from position p on that one block has, at most BLOCKS_QUADS, and its number; 0: the
 * first row's lanes have several. */
static int64_t blocks_count(const struct gemm_walk *w, int64_t p, int32_t *block)
{
    const int64_t left = (w->used - p) / BLOCKS_QUAD;
    int64_t quads = 0;
    *block = 0;
    if (!w->blocks)
        return left < BLOCKS_QUADS ? left : BLOCKS_QUADS;
    *block = w->block[p];
    if (left >= BLOCKS_QUADS && *block >= 0) {
        const ivec one = iv_all((uint32_t)*block);
        if (!_mm512_cmpneq_epi32_mask(iv_load(w->block + p), one) &&
            !_mm512_cmpneq_epi32_mask(iv_load(w->block + p + VL), one))
            return BLOCKS_QUADS;
    }
    for (*block = -1; quads < left && quads < BLOCKS_QUADS; quads++) {
        const int32_t now = slim_block(w, p + quads * BLOCKS_QUAD, BLOCKS_QUAD);
        if (now == -2 || (now >= 0 && *block >= 0 && now != *block))
            break;
        *block = now >= 0 ? now : *block;
    }
    *block = *block < 0 ? 0 : *block; /* zeros, whatever their scale */
    return quads;
}

/* Positions p to p + 31: a block, whose rows follow each other in memory? */
PACK_INLINE bool blocks_whole(const struct blocks_panel *t, const int step, int64_t p)
{
    const struct gemm_walk *w = t->w;
    const int64_t end = p + BLOCKS_VL;
    if (end > w->used || t->lines < NR)
        return false;
    return end <= w->in_runs && p % BLOCKS_VL == 0
               ? !w->blocks || w->k[p] % BLOCKS_VL == 0
               : step == 2 && pack_in_turn(w->k + p, BLOCKS_VL);
}

/* The quads from position p on that one block has, some of whose rows may be anywhere: how many
 * there were; 0: some of it wants another packer. */
static __attribute__((noinline)) int64_t blocks_quads(struct quad_facts *f,
                                                      const struct quad_tables *q,
                                                      const struct blocks_panel *t,
                                                      const struct blocks_way *way, int64_t p)
{
    int32_t block;
    const int64_t quads = blocks_count(t->w, p, &block);
    struct blocks_some some;
    const struct quad_place own = { some.elements, some.spread, some.most };
    if (!quads)
        return 0;
    const struct blocks_rows r = blocks_collect(t, way->halves, p, quads, &some);
    const uint8_t *const scales = blocks_by(t, block);
    if (way->step == 2)
        blocks_rows_32(f, q, &r, blocks_two, false, scales, own);
    else if (way->halves)
        blocks_rows_32(f, q, &r, blocks_four_halves, false, scales, own);
    else
        blocks_rows_32(f, q, &r, blocks_four, false, scales, own);
    blocks_hand_out(&some, quads, way->step, quad_place(t, way->step, p));
    return quads;
}

PACK_INLINE bool blocks_across(struct quad_facts *f, const struct quad_tables *q,
                               const struct blocks_panel *t, const struct blocks_way way)
{
    struct quad_facts seen = *f; /* in registers */
    int64_t quads = BLOCKS_QUADS;
    for (int64_t p = 0; p < t->w->used && quads; p += quads * BLOCKS_QUAD) {
        quads = BLOCKS_QUADS;
        if (blocks_whole(t, way.step, p)) {
            const struct blocks_rows r = blocks_there(t, way.halves, p);
            const uint8_t *const scales = blocks_at(t, p);
            const struct quad_place place = quad_place(t, way.step, p);
            if (r.ahead[0])
                blocks_rows_32(&seen, q, &r, way, true, scales, place);
            else
                blocks_rows_32(&seen, q, &r, way, false, scales, place);
        } else {
            struct quad_facts more = seen;
            quads = blocks_quads(&more, q, t, &way, p);
            seen = more;
        }
    }
    *f = seen;
    return quads > 0;
}

PACK_INLINE bool blocks_squares(struct quad_facts *f, const struct quad_tables *q,
                                const struct blocks_panel *t, const struct blocks_way way)
{
    struct quad_facts seen = *f; /* in registers */
    for (int64_t p = 0; p < t->w->used;)
        p += blocks_square(&seen, q, t, way, p) * BLOCKS_VL;
    blocks_most(t->spread, t->w->used / way.step, t->most);
    *f = seen;
    return true;
}

/* False: some of it wants another packer. */
static bool blocks_read(struct quad_facts *f, const struct quad_tables *q,
                        const struct blocks_panel *t, const struct blocks_way *way, bool along)
{
    if (way->step == 2)
        return !along       ? blocks_across(f, q, t, blocks_two)
               : way->split ? blocks_squares(f, q, t, blocks_two_split)
                            : blocks_squares(f, q, t, blocks_two);
    if (way->halves)
        return along ? blocks_squares(f, q, t, blocks_four_halves)
                     : blocks_across(f, q, t, blocks_four_halves);
    return along ? blocks_squares(f, q, t, blocks_four) : blocks_across(f, q, t, blocks_four);
}

/* False: pack() takes it, whatever the panel holds now. */
static bool blocks_pack(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                        int32_t lines, void *panel)
{
    if (!blocks_takes(g, w))
        return false;
    const struct panel_parts parts = panel_parts(g, w, NR, true);
    unsigned char *const base = panel;
    const struct pack_source s = { .g = g, .o = &g->b, .line = line, .lines = lines };
    const bool along = g->b.k == 1, follow = along && blocks_follow(w);
    const struct blocks_way way = { .step = w->step,
                                    .halves = blocks_halves(g),
                                    .split = along && !follow };
    const struct blocks_panel t = { .o = &g->b,
                                    .w = w,
                                    .line = line,
                                    .lines = lines,
                                    .second = g->second,
                                    .elements = (uint32_t *)(base + sizeof(struct gemm_panel)),
                                    .spread = base + parts.spread,
                                    .most = base + parts.most,
                                    .scales = w->blocks ? base + parts.scales : NULL };
    if (!(along ? follow || blocks_split(w) : g->b.line == 1) ||
        (w->blocks && !blocks_scales(&s, w, NR, base + parts.scales)))
        return false;
    const struct quad_tables q = quad_tables(g->b.spec, w->widen[GEMM_B]);
    struct quad_facts f = quad_none();
    return blocks_read(&f, &q, &t, &way, along) && quad_conclude(&f, &q, g, panel);
}

#endif
