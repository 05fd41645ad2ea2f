/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of B whose rows sum four lanes: e4m3fn, e5m2 or e2m1 in blocks of 32 under e8m0
 * scales, as packing.h makes them. Behind gemm_fma.h; dp_rows.h has A's.
 *
 * A quad is a step's four codes of 16 lines: a word of each line, a byte of each code. Eight of
 * them, a block, are taken at a time. What one asks of a code is one VPERMI2B among its 128
 * magnitudes (the index's sign counts for nothing): the halves of its bf16; its lowest bit; of
 * a step's largest its logarithm. A step has one scale, so its spread does not.
 */
#ifndef NG_KERNELS_DP_BLOCKS_H
#define NG_KERNELS_DP_BLOCKS_H

#include "dp_codes.h"

enum {
    BLOCKS_AHEAD = 96,                      /* rows; 64 and 128 are as fast */
    BLOCKS_STEPS = BLOCKS_VL / BLOCKS_STEP, /* of a block */
    /* The exponent field of the least bit of these formats' values, e5m2's 2^-16. With it the
     * logarithms below are bytes, 0 to 255. */
    QUAD_LEAST = 127 - 16
};

/* ---- Tables. ---- */

/* The exponent field of the lowest set bit, and 7 more, of bf16 with at most 4 bits behind the
 * point, none of them subnormal. */
PACK_INLINE __m512i blocks_lowest(__m512i size)
{
    const __m512i zeros = _mm512_broadcast_i32x4(
                      _mm_setr_epi8(7, 3, 4, 3, 5, 3, 4, 3, 6, 3, 4, 3, 5, 3, 4, 3)),
                  at = _mm512_or_si512(
                      _mm512_and_si512(_mm512_srli_epi16(size, 3), _mm512_set1_epi16(15)),
                      _mm512_set1_epi16((short)0x8000)),
                  bit = _mm512_add_epi16(_mm512_srli_epi16(size, 7),
                                         _mm512_shuffle_epi8(zeros, at));
    return _mm512_mask_mov_epi16(_mm512_set1_epi16(PANEL_NONE + 7),
                                 _mm512_test_epi16_mask(size, size), bit);
}

/* Of 128 magnitudes, 64 each. */
struct quad_tables {
    __m512i high[2], low[2]; /* halves of their bf16 */
    __m512i bit[2];          /* their lowest bit, 8 log2; zero: 255 */
    __m512i top[2];          /* 8 log2 of themselves, up, as SPREAD_UP has it; zero: 0 */
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

static inline struct quad_tables quad_tables(const struct blocks_table *t)
{
    struct quad_tables q;
    FMA_UNROLL
    for (int h = 0; h < 2; h++) {
        const __m512i a = t->part[2 * h], b = t->part[2 * h + 1];
        q.high[h] = quad_bytes(a, b, 1);
        q.low[h] = quad_bytes(a, b, 0);
        q.bit[h] = quad_bytes(quad_lowest(a), quad_lowest(b), 0);
        q.top[h] = quad_bytes(quad_logarithm(a), quad_logarithm(b), 0);
    }
    return q;
}

PACK_INLINE __m512i quad_look_up(const __m512i table[2], __m512i codes)
{
    return _mm512_permutex2var_epi8(table[0], codes, table[1]);
}

/* ---- Steps. ---- */

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

/* Times 2^(step / 128): zeros stay zeros. */
PACK_INLINE __m512i quad_scale(__m512i pairs, __m512i step)
{
    return _mm512_mask_add_epi16(
        pairs, _mm512_test_epi16_mask(pairs, _mm512_set1_epi16(0x7FFF)), pairs, step);
}

/* x[s]: four bytes of a line. Into byte s of the line the larger (`larger`; else the smaller)
 * of them. */
PACK_INLINE __m512i quad_reduce(const __m512i x[4], const bool larger)
{
    const __mmask32 upper = 0xAAAAAAAA;
    const __mmask64 odd = 0xAAAAAAAAAAAAAAAA;
    __m512i y[2];
    FMA_UNROLL
    for (int i = 0; i < 2; i++) { /* steps i and i + 2: halves of a word */
        const __m512i low =
                          _mm512_mask_blend_epi16(upper, x[i], _mm512_slli_epi32(x[i + 2], 16)),
                      high =
                          _mm512_mask_blend_epi16(upper, _mm512_srli_epi32(x[i], 16), x[i + 2]);
        y[i] = larger ? _mm512_max_epu8(low, high) : _mm512_min_epu8(low, high);
    }
    const __m512i low = _mm512_mask_blend_epi8(odd, y[0], _mm512_slli_epi16(y[1], 8)),
                  high = _mm512_mask_blend_epi8(odd, _mm512_srli_epi16(y[0], 8), y[1]);
    return larger ? _mm512_max_epu8(low, high) : _mm512_min_epu8(low, high);
}

/* Where a step's parts of 16 lines are, and those of the steps behind it. */
struct quad_place {
    uint32_t *elements;
    uint8_t *spread, *most;
};

static inline struct quad_place quad_place(const struct blocks_panel *t, int64_t p, int l)
{
    const int64_t step = p / BLOCKS_STEP;
    return (struct quad_place){ t->elements + p / 2 * NR + l, t->spread + step * NR + l,
                                t->most + step * GROUPS + l / VL };
}

/* Spread bytes of four steps; `top`: their largest codes, by quad_reduce(). */
PACK_INLINE void quad_spreads(struct blocks *b, const struct quad_tables *q,
                              const __m512i bit[4], __m512i top, struct quad_place to)
{
    const __m512i all = _mm512_subs_epu8(quad_look_up(q->top, top), quad_reduce(bit, false)),
                  bytes = blocks_turn_bytes(all);
    __m512i most = _mm512_max_epu8(bytes, _mm512_shuffle_epi32(bytes, _MM_PERM_BADC));
    most = _mm512_max_epu8(most, _mm512_shuffle_epi32(most, _MM_PERM_CDAB));
    most = _mm512_max_epu8(most, _mm512_srli_epi32(most, 16));
    most = _mm512_max_epu8(most, _mm512_srli_epi32(most, 8));
    b->spread = _mm512_max_epu8(b->spread, bytes);
    blocks_put_rows(bytes, to.spread, NR);
    uint8_t largest[64];
    iv_store(largest, most);
    FMA_UNROLL
    for (int s = 0; s < 4; s++)
        to.most[s * GROUPS] = largest[s * VL];
}

/* A block's bounds: of each line and each of four places the largest magnitude, and the least
 * that is not zero, less one. */
struct quad_seen {
    __m512i most, least;
};

PACK_INLINE struct quad_seen quad_begin(void)
{
    return (struct quad_seen){ _mm512_setzero_si512(), _mm512_set1_epi8(-1) };
}

PACK_INLINE void quad_note(struct blocks *b, const struct quad_tables *q,
                           const struct quad_seen *seen, __m512i by)
{
    __m512i y[2];
    quad_decode(q, seen->most, y);
    FMA_UNROLL
    for (int i = 0; i < 2; i++) {
        b->largest = _mm512_max_epi16(b->largest, y[i]);
        note_codes(&b->seen, quad_scale(y[i], by));
    }
    const __m512i least = _mm512_add_epi8(seen->least, _mm512_set1_epi8(1));
    quad_decode(q, _mm512_and_si512(least, _mm512_set1_epi8(0x7F)), y);
    FMA_UNROLL
    for (int i = 0; i < 2; i++)
        note_codes(&b->seen, quad_scale(y[i], by));
}

/* What 16 scales add to pairs. */
PACK_INLINE __m512i quad_step(const uint8_t *scales)
{
    const __m512i scale = _mm512_cvtepu8_epi32(
                      _mm_loadu_si128((const __m128i *)(const void *)scales)),
                  both = _mm512_or_si512(scale, _mm512_slli_epi32(scale, 16));
    return _mm512_slli_epi16(_mm512_sub_epi16(both, _mm512_set1_epi16(127)), 7);
}

/* Four steps of a block. */
PACK_INLINE void quad_four(struct blocks *b, const struct quad_tables *q,
                           struct quad_seen *seen, const __m512i codes[4], __m512i by,
                           struct quad_place to)
{
    __m512i size[4], bit[4];
    FMA_UNROLL
    for (int s = 0; s < 4; s++) {
        __m512i y[2];
        quad_decode(q, codes[s], y);
        FMA_UNROLL
        for (int i = 0; i < 2; i++)
            iv_store(to.elements + (2 * s + i) * NR, quad_scale(y[i], by));
        size[s] = _mm512_and_si512(codes[s], _mm512_set1_epi8(0x7F));
        seen->least =
            _mm512_min_epu8(seen->least, _mm512_sub_epi8(size[s], _mm512_set1_epi8(1)));
        bit[s] = quad_look_up(q->bit, codes[s]);
    }
    const __m512i top = quad_reduce(size, true);
    seen->most = _mm512_max_epu8(seen->most, top);
    quad_spreads(b, q, bit, top, to);
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

/* 32 positions from p on of 16 lines, a block of each: two lines a vector, turned. */
PACK_INLINE void blocks_square(struct blocks *b, const struct quad_tables *q,
                               const struct blocks_panel *t, const bool halves, int64_t p,
                               int l)
{
    static const unsigned char zeros[BLOCKS_VL];
    const struct gemm_operand *o = t->o;
    const int64_t each = halves ? 2 : 1; /* codes of a byte */
    const unsigned char *first = (const unsigned char *)o->data +
                                 (o->offset + (t->line + l) * o->line + t->w->k[p]) / each,
                        *line[VL];
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13),
                  high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15),
                  by = quad_step(t->scales + (int64_t)t->w->block[p] * NR + l);
    struct quad_seen seen = quad_begin();
    __m512i z[8], x[BLOCKS_STEPS];
    FMA_UNROLL
    for (int i = 0; i < VL; i++)
        line[i] = l + i < t->lines ? first + i * o->line / each : zeros;
    FMA_UNROLL
    for (int i = 0; i < 8; i++)
        z[i] = quad_load(halves, line[i], line[8 + i]);
    FMA_UNROLL
    for (int h = 0; h < 8; h += 4) /* lines h .. h + 3: step i in quarter 0, 4 + i in 1 */
        iv_turn_squares(z + h);
    FMA_UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = _mm512_permutex2var_epi64(z[i], low, z[4 + i]);
        x[4 + i] = _mm512_permutex2var_epi64(z[i], high, z[4 + i]);
    }
    FMA_UNROLL
    for (int i = 0; i < BLOCKS_STEPS; i += 4)
        quad_four(b, q, &seen, x + i, by, quad_place(t, p + i * BLOCKS_STEP, l));
    quad_note(b, q, &seen, by);
}

/* ---- Lines that are neighbours. ---- */

/* Rows of 32 codes, one after another; and those that come nearer meanwhile. */
struct blocks_rows {
    const unsigned char *row;
    int64_t step, ahead; /* bytes; ahead 0: what is read anyway, which costs nothing */
    bool second;         /* gemm_job's */
};

/* Four steps. */
PACK_INLINE void blocks_four(struct blocks *b, const struct quad_tables *q,
                             struct quad_seen seen[2], const struct blocks_rows *r,
                             const bool halves, const __m512i by[2], struct quad_place to)
{
    uint8_t at[2][64];
    __m512i x[2][4];
    const unsigned char *row = r->row;
    FMA_UNROLL
    for (int i = 0; i < 64; i++) { /* rows 0 and 1 are one vector, 2 and 3 the other */
        at[0][i] = (uint8_t)(i % 4 * BLOCKS_VL + i / 4);
        at[1][i] = (uint8_t)(i % 4 * BLOCKS_VL + i / 4 + VL);
    }
    FMA_UNROLL
    for (int s = 0; s < 4; s++, row += BLOCKS_STEP * r->step) {
        const __m512i first = quad_load(halves, row, row + r->step),
                      second = quad_load(halves, row + 2 * r->step, row + 3 * r->step);
        FMA_UNROLL
        for (int i = 0; i < BLOCKS_STEP; i++)
            near_ask(row + i * r->step + r->ahead, r->second);
        FMA_UNROLL
        for (int h = 0; h < 2; h++)
            x[h][s] = _mm512_permutex2var_epi8(first, iv_load(at[h]), second);
    }
    FMA_UNROLL
    for (int h = 0; h < 2; h++) {
        quad_four(b, q, &seen[h], x[h], by[h], to);
        to = (struct quad_place){ to.elements + VL, to.spread + VL, to.most + 1 };
    }
}

/* Eight steps under scales of one block. */
PACK_INLINE void blocks_eight(struct blocks *b, const struct quad_tables *q,
                              struct blocks_rows r, const bool halves, const uint8_t *scales,
                              struct quad_place to)
{
    struct quad_seen seen[2] = { quad_begin(), quad_begin() };
    const __m512i by[2] = { quad_step(scales), quad_step(scales + VL) };
    for (int i = 0; i < BLOCKS_STEPS; i += 4) {
        blocks_four(b, q, seen, &r, halves, by, to);
        r.row += 4 * BLOCKS_STEP * r.step;
        to.elements += 4 * BLOCKS_STEP / 2 * NR;
        to.spread += 4 * NR;
        to.most += 4 * GROUPS;
    }
    FMA_UNROLL
    for (int h = 0; h < 2; h++)
        quad_note(b, q, &seen[h], by[h]);
}

/* Steps of eight that are not all there, or not as blocks_eight() wants them. */
struct blocks_some {
    unsigned char row[BLOCKS_VL][BLOCKS_VL];
    uint32_t elements[BLOCKS_VL / 2 * NR];
    uint8_t spread[BLOCKS_STEPS * NR], most[BLOCKS_STEPS * GROUPS];
};

static struct blocks_rows blocks_collect(const struct blocks_panel *t, bool halves, int64_t p,
                                         int64_t steps, struct blocks_some *some)
{
    const struct gemm_operand *o = t->o;
    const int64_t each = halves ? 2 : 1;
    const unsigned char *first = (const unsigned char *)o->data + (o->offset + t->line) / each;
    memset(some->row, 0, sizeof some->row);
    for (int64_t i = 0; i < steps * BLOCKS_STEP; i++) {
        if (t->w->k[p + i] < 0)
            continue;
        memcpy(some->row[i], first + t->w->k[p + i] * o->k / each,
               (size_t)((t->lines + each - 1) / each));
        if (t->lines % each) /* the upper half is another panel's line, or nobody's */
            some->row[i][t->lines / each] &= 0xF;
    }
    return (struct blocks_rows){ .row = some->row[0], .step = BLOCKS_VL };
}

static void blocks_hand_out(const struct blocks_some *some, int64_t steps, struct quad_place to)
{
    memcpy(to.elements, some->elements,
           (size_t)steps * BLOCKS_STEP / 2 * NR * sizeof(uint32_t));
    memcpy(to.spread, some->spread, (size_t)steps * NR);
    memcpy(to.most, some->most, (size_t)steps * GROUPS);
}

/*
 * Rows where they lie. They are short pieces far apart, which the CPU's own fetching does not
 * follow: those some rows behind come nearer. Every second panel finds what the one before it
 * asked for.
 */
PACK_INLINE struct blocks_rows blocks_there(const struct blocks_panel *t, const bool halves,
                                            int64_t p)
{
    const struct gemm_operand *o = t->o;
    const int64_t each = halves ? 2 : 1, step = o->k / each;
    const unsigned char *row =
        (const unsigned char *)o->data + (o->offset + t->line) / each + t->w->k[p] * step;
    const bool begins = ((uintptr_t)row & 63) < BLOCKS_VL / (uintptr_t)each;
    return (struct blocks_rows){ row, step, begins ? BLOCKS_AHEAD * step : 0, t->second };
}

/* Steps of one block from position p on. */
PACK_INLINE void blocks_steps(struct blocks *b, const struct quad_tables *q,
                              const struct blocks_panel *t, const bool halves, int64_t p,
                              int64_t steps, int32_t block)
{
    const bool there = steps == BLOCKS_STEPS && t->lines == BLOCKS_VL &&
                       pack_consecutive(t->w->k + p, BLOCKS_VL);
    const struct quad_place place = quad_place(t, p, 0);
    struct blocks_some some;
    const struct blocks_rows r =
        there ? blocks_there(t, halves, p) : blocks_collect(t, halves, p, steps, &some);
    const struct quad_place own = { some.elements, some.spread, some.most };
    blocks_eight(b, q, r, halves, t->scales + (int64_t)block * NR, there ? place : own);
    if (!there)
        blocks_hand_out(&some, steps, place);
}

/* The steps from position p on that one block has, at most BLOCKS_STEPS, and its number; 0: the
 * first step's lanes have several. */
static int64_t blocks_count(const struct gemm_walk *w, int64_t p, int32_t *block)
{
    const int64_t left = (w->used - p) / BLOCKS_STEP;
    int64_t steps = 0;
    *block = w->block[p];
    if (left >= BLOCKS_STEPS && *block >= 0) {
        const ivec one = iv_all((uint32_t)*block);
        if (!_mm512_cmpneq_epi32_mask(iv_load(w->block + p), one) &&
            !_mm512_cmpneq_epi32_mask(iv_load(w->block + p + VL), one))
            return BLOCKS_STEPS;
    }
    for (*block = -1; steps < left && steps < BLOCKS_STEPS; steps++) {
        const int32_t now = slim_block(w, p + steps * BLOCKS_STEP, w->step);
        if (now == -2 || (now >= 0 && *block >= 0 && now != *block))
            break;
        *block = now >= 0 ? now : *block;
    }
    *block = *block < 0 ? 0 : *block; /* zeros, whatever their scale */
    return steps;
}

PACK_INLINE bool blocks_across(struct blocks *b, const struct quad_tables *q,
                               const struct blocks_panel *t, const bool halves)
{
    struct blocks seen = *b; /* in registers */
    int64_t steps = 0;
    for (int64_t p = 0; p < t->w->used; p += steps * BLOCKS_STEP) {
        int32_t block;
        steps = blocks_count(t->w, p, &block);
        if (!steps)
            return false;
        blocks_steps(&seen, q, t, halves, p, steps, block);
    }
    *b = seen;
    return true;
}

PACK_INLINE void blocks_squares(struct blocks *b, const struct quad_tables *q,
                                const struct blocks_panel *t, const bool halves)
{
    struct blocks seen = *b; /* in registers */
    for (int l = 0; l < NR; l += VL)
        for (int64_t p = 0; p < t->w->used; p += BLOCKS_VL)
            blocks_square(&seen, q, t, halves, p, l);
    *b = seen;
}

/* False: some of it wants another packer. */
PACK_INLINE bool blocks_read(struct blocks *b, const struct quad_tables *q,
                             const struct blocks_panel *t, const bool halves, bool along)
{
    if (!along)
        return blocks_across(b, q, t, halves);
    blocks_squares(b, q, t, halves);
    return true;
}

/* False: pack() takes it, whatever the panel holds now. */
static bool blocks_pack(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                        int32_t lines, void *panel)
{
    const struct panel_parts parts = panel_parts(g, w, NR, true);
    unsigned char *const base = panel;
    const struct pack_source s = { .g = g, .o = &g->b, .line = line, .lines = lines };
    const struct blocks_panel t = { .o = &g->b,
                                    .w = w,
                                    .line = line,
                                    .lines = lines,
                                    .second = g->second,
                                    .elements = (uint32_t *)(base + sizeof(struct gemm_panel)),
                                    .spread = base + parts.spread,
                                    .most = base + parts.most,
                                    .scales = base + parts.scales };
    const bool along = g->b.k == 1;
    if (!blocks_takes(g, w) || !(along ? blocks_follow(w) : g->b.line == 1) ||
        !blocks_scales(&s, w, NR, base + parts.scales))
        return false;
    struct blocks b = blocks_begin(w->widen[GEMM_B]);
    const struct quad_tables q = quad_tables(&b.table);
    const bool read = blocks_halves(g) ? blocks_read(&b, &q, &t, true, along)
                                       : blocks_read(&b, &q, &t, false, along);
    return read && blocks_conclude(&b, g, &g->b, blocks_widest(&b), panel);
}

#endif
