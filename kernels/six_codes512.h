/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of A of six lines along k of codes of at most 8 bits, plain or under e8m0 scales, as
 * packing.h makes them in FP32, 32 positions at a time: decoded by dp_codes.h, and, where rows
 * sum two or four lanes exactly, the spreads of these along the line, before lines are turned.
 * Behind gemm_fma.h.
 */
#ifndef NG_KERNELS_SIX_CODES512_H
#define NG_KERNELS_SIX_CODES512_H

#include "dp_codes.h"
#include "six512.h"

enum {
    SIX_STEPS = 8 /* whose bytes are written together */
};

/* The spread bytes of a line's steps of `step` positions: the sum is that of packing.h, in its
 * order. */
PACK_INLINE __m128i six_spread(const int step, ivec x)
{
    const ivec size = iv_and(x, iv_all(0x7FFF7FFF)), even = iv_sll_by(size, 16),
               odd = iv_and(size, iv_all(0xFFFF0000u));
    ivec low = blocks_lowest(size);
    vec sum = vec_add(iv_float(even), iv_float(odd));
    low = _mm512_min_epi16(low, iv_srl_by(low, 16));
    if (step == 4) {
        sum = vec_add(sum, iv_float(_mm512_srli_epi64(even, 32)));
        sum = vec_add(sum, iv_float(_mm512_srli_epi64(odd, 32)));
        low = _mm512_min_epi16(low, _mm512_srli_epi64(low, 32));
    }
    const ivec log2_up =
        iv_srl_by(iv_add(iv_bits(sum), iv_all(SPREAD_UP + ((7 * SPREAD_UNIT) << 20))), 20);
    ivec bytes = iv_sub(log2_up, iv_sll_by(low, 3));
    bytes = iv_min(iv_max(bytes, iv_all(0)), iv_all(SPREAD_MAX));
    return step == 4 ? _mm256_cvtepi32_epi8(_mm512_cvtepi64_epi32(bytes))
                     : _mm512_cvtepi32_epi8(bytes);
}

/* Of SIX_STEPS steps six lines' bytes, which lie line by line, to rows of steps. */
PACK_INLINE void six_put_spreads(const __m128i line[MR], uint8_t *spread, uint8_t *most)
{
    static const uint16_t in_turn[32] = { 0, 8,  16, 1, 9,  17, 2, 10, 18, 3, 11, 19,
                                          4, 12, 20, 5, 13, 21, 6, 14, 22, 7, 15, 23 };
    const __m128i all = _mm_max_epu8(_mm_max_epu8(_mm_max_epu8(line[0], line[1]), line[2]),
                                     _mm_max_epu8(_mm_max_epu8(line[3], line[4]), line[5]));
    ivec x = _mm512_castsi128_si512(_mm_unpacklo_epi8(line[0], line[1]));
    x = _mm512_inserti32x4(x, _mm_unpacklo_epi8(line[2], line[3]), 1);
    x = _mm512_inserti32x4(x, _mm_unpacklo_epi8(line[4], line[5]), 2);
    x = _mm512_permutexvar_epi16(iv_load(in_turn), x);
    _mm256_storeu_si256((__m256i *)(void *)spread, _mm512_castsi512_si256(x));
    _mm_storeu_si128((__m128i *)(void *)(spread + 32), _mm512_extracti32x4_epi32(x, 2));
    _mm_storel_epi64((__m128i *)(void *)most, all);
}

/* 32 positions from p on; step 0: rows have no spreads. */
PACK_INLINE void six_codes_square(struct blocks *b, __m128i *widest, const struct rows_panel *t,
                                  const int32_t lines, const int step, const enum rows_lie lie,
                                  int64_t p)
{
    const int64_t k = t->w->k[p], apart = t->w->k[p + 1] - k;
    const uint8_t *scale = t->scales ? t->scales + (int64_t)t->w->block[p] * MR : NULL;
    ivec x[2][MR];
    __m128i spread[MR];
    FMA_UNROLL
    for (int i = 0; i < MR; i++) {
        ivec y = iv_all(0);
        if (i < lines) {
            const short by = (short)(scale ? (scale[i] - 127) * 128 : 0);
            pack_ask(t->line[i] + rows_bytes(lie, k), t->next);
            y = blocks_decode(b, rows_codes(lie, t->line[i], k, apart), _mm512_set1_epi16(by));
        }
        spread[i] = step ? six_spread(step, y) : _mm_setzero_si128();
        *widest = _mm_max_epu8(*widest, spread[i]);
        x[0][i] = iv_sll_by(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(y)), 16);
        x[1][i] = iv_sll_by(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(y, 1)), 16);
    }
    six_turn(x[0], t->elements + p * MR);
    six_turn(x[1], t->elements + (p + VL) * MR);
    if (!step)
        return;
    six_put_spreads(spread, t->spread + p / step * MR, t->most + p / step);
    if (step == 4)
        return;
    FMA_UNROLL
    for (int i = 0; i < MR; i++)
        spread[i] = _mm_unpackhi_epi64(spread[i], spread[i]);
    six_put_spreads(spread, t->spread + (p / step + SIX_STEPS) * MR,
                    t->most + p / step + SIX_STEPS);
}

PACK_INLINE int six_codes_squares(struct blocks *b, const struct rows_panel *t, const int step,
                                  const enum rows_lie lie)
{
    struct blocks seen = *b; /* in registers */
    __m128i widest = _mm_setzero_si128();
    if (t->lines == MR)
        for (int64_t p = 0; p < t->w->used; p += ROWS_VL)
            six_codes_square(&seen, &widest, t, MR, step, lie, p);
    else
        for (int64_t p = 0; p < t->w->used; p += ROWS_VL)
            six_codes_square(&seen, &widest, t, t->lines, step, lie, p);
    *b = seen;
    return pack_largest_byte(widest);
}

static int six_codes_of(struct blocks *b, const struct rows_panel *t, const int step,
                        enum rows_lie lie)
{
    if (lie == ROWS_NIBBLES)
        return six_codes_squares(b, t, step, ROWS_NIBBLES);
    if (lie == ROWS_SPLIT)
        return six_codes_squares(b, t, step, ROWS_SPLIT);
    return six_codes_squares(b, t, step, ROWS_BYTES);
}

/* False: pack() takes it, whatever the panel holds now. */
static bool six_codes_pack(const struct gemm_job *g, const struct gemm_walk *w, int64_t first,
                           int32_t lines, void *panel)
{
    const struct gemm_operand *o = &g->a;
    const struct panel_parts parts = panel_parts(g, w, MR, false);
    unsigned char *const base = panel;
    const bool sums = rule_step_of(g) == STEP_SUM;
    enum rows_lie lie;
    const struct pack_source s = { .g = g, .o = o, .line = first, .lines = lines };
    if (!(sums ? rows_takes(g, w, &lie) : rows_runs(g, w, &lie)) ||
        (w->blocks && !blocks_scales(&s, w, MR, base + parts.scales)))
        return false;
    const struct rows_panel t = rows_panel_of(g, w, lie, first, lines, &parts, base);
    struct blocks b = blocks_begin(w->widen[GEMM_A]);
    const int widest = !sums          ? six_codes_of(&b, &t, 0, lie)
                       : w->step == 2 ? six_codes_of(&b, &t, 2, lie)
                                      : six_codes_of(&b, &t, 4, lie);
    return blocks_conclude(&b, g, o, widest, panel);
}

#endif
