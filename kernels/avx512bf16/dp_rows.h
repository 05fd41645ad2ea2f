/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of A whose rows sum two or four lanes: lines along k in codes of at most 8 bits, plain
 * or in blocks of 32 under e8m0 scales, as packing.h makes them. Eight lines by 32 positions at
 * a time: decoded by dp_codes.h, squares of 4 by 4 pairs turned, and between the two
 * shuffles of that the spreads of 16 words, which need no other order than they then have.
 * Behind gemm_fma.h.
 */
#ifndef NG_AVX512BF16_DP_ROWS_H
#define NG_AVX512BF16_DP_ROWS_H

#include "../dp_blocks.h"

_Static_assert(MR == 8, "lines of a square");

enum {
    ROWS_HALF = MR / 2
};

/* The spread bytes of 16 words of a step, its first and, of four lanes, second pair; in words,
 * negative: 0, too large: 255. VDPBF16PS with ones is the sum in the order of packing.h. */
PACK_INLINE ivec rows_spread(const int step, ivec p0, ivec p1)
{
    const ivec magnitude = iv_all(0x7FFF7FFF), m0 = iv_and(p0, magnitude),
               m1 = iv_and(p1, magnitude);
    const vec ones = iv_float(iv_all(0x3F803F80));
    vec sum = dp(vec_zero(), iv_float(m0), ones);
    ivec lows = blocks_lowest(m0);
    if (step == 4) {
        sum = dp(sum, iv_float(m1), ones);
        lows = _mm512_min_epi16(lows, blocks_lowest(m1));
    }
    const ivec low = _mm512_min_epi16(lows, _mm512_srli_epi32(lows, 16)),
               log2_up = _mm512_srli_epi32(
                   iv_add(iv_bits(sum), iv_all(SPREAD_UP + ((7 * SPREAD_UNIT) << 20))), 20);
    return iv_sub(log2_up, _mm512_slli_epi32(low, 3));
}

/* 64 bytes, eight steps of eight lines; their largest too. */
PACK_INLINE void rows_put(struct blocks *b, ivec bytes, uint8_t *spread, uint8_t *most)
{
    ivec x = _mm512_max_epu8(bytes, _mm512_srli_epi64(bytes, 32));
    x = _mm512_max_epu8(x, _mm512_srli_epi64(x, 16));
    x = _mm512_max_epu8(x, _mm512_srli_epi64(x, 8));
    iv_store(spread, bytes);
    _mm_storel_epi64((__m128i *)(void *)most, _mm256_cvtepi32_epi8(_mm512_cvtepi64_epi32(x)));
    b->spread = _mm512_max_epu8(b->spread, bytes);
}

/* y[h][j]: in quarter q pair 4q + j of lines 4h .. 4h + 3. */
PACK_INLINE void rows_spreads(struct blocks *b, const int step, const ivec y[2][4],
                              uint8_t *spread, uint8_t *most)
{
    ivec x[4]; /* of all lines, 16 bits each */
    FMA_UNROLL
    for (int j = 0; j < 8 / step; j++) {
        const int at = j * step / 2;
        x[j] = _mm512_packus_epi32(rows_spread(step, y[0][at], y[0][at + step / 2 - 1]),
                                   rows_spread(step, y[1][at], y[1][at + step / 2 - 1]));
    }
    const ivec first = _mm512_packus_epi16(x[0], x[1]);
    if (step == 4) {
        rows_put(b, first, spread, most);
        return;
    }
    const ivec second = _mm512_packus_epi16(x[2], x[3]),
               low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
               high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    rows_put(b, _mm512_permutex2var_epi64(first, low, second), spread, most);
    rows_put(b, _mm512_permutex2var_epi64(first, high, second), spread + 64, most + 8);
}

/* 32 positions from p on. */
PACK_INLINE void rows_square(struct blocks *b, const struct rows_panel *t, const int step,
                             const enum rows_lie lie, int64_t p)
{
    const int64_t k = t->w->k[p], apart = t->w->k[p + 1] - k;
    const uint8_t *scale = t->scales ? t->scales + (int64_t)t->w->block[p] * MR : NULL;
    ivec y[2][ROWS_HALF];
    FMA_UNROLL
    for (int i = 0; i < MR; i++) {
        ivec x = iv_all(0);
        if (i < t->lines) {
            const short by = (short)(scale ? (scale[i] - 127) * 128 : 0);
            pack_ask(t->line[i] + rows_bytes(lie, k), t->next);
            x = blocks_decode(b, rows_codes(lie, t->line[i], k, apart), _mm512_set1_epi16(by));
        }
        y[i / ROWS_HALF][i % ROWS_HALF] = _mm512_rol_epi32(x, 16);
    }
    FMA_UNROLL
    for (int h = 0; h < 2; h++)
        iv_turn_squares(y[h]);
    rows_spreads(b, step, (const ivec(*)[4])y, t->spread + p / step * MR, t->most + p / step);
    FMA_UNROLL
    for (int j = 0; j < 4; j += 2) {
        ivec z[4] = { y[0][j], y[1][j], y[0][j + 1], y[1][j + 1] };
        iv_turn_quarters(z, 1);
        FMA_UNROLL
        for (int q = 0; q < 4; q++)
            iv_store(t->elements + (p / 2 + 4 * q + j) * MR, z[q]);
    }
}

PACK_INLINE void rows_squares(struct blocks *b, const struct rows_panel *t, const int step,
                              const enum rows_lie lie)
{
    struct blocks seen = *b; /* in registers */
    for (int64_t p = 0; p < t->w->used; p += ROWS_VL)
        rows_square(&seen, t, step, lie, p);
    *b = seen;
}

/* False: pack() takes it, whatever the panel holds now. */
static bool rows_pack(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                      int32_t lines, void *panel)
{
    const struct gemm_operand *o = &g->a;
    const struct panel_parts parts = panel_parts(g, w, MR, true);
    unsigned char *const base = panel;
    enum rows_lie lie;
    const struct pack_source s = { .g = g, .o = o, .line = line, .lines = lines };
    if (!rows_takes(g, w, &lie) ||
        (w->blocks && !blocks_scales(&s, w, MR, base + parts.scales)))
        return false;
    const struct rows_panel t = rows_panel_of(g, w, lie, line, lines, &parts, base);
    struct blocks b = blocks_begin(w->widen[GEMM_A]);
    if (w->step == 2)
        rows_squares(&b, &t, 2, lie);
    else
        rows_squares(&b, &t, 4, lie);
    return blocks_conclude(&b, g, o, blocks_widest(&b), panel);
}

static void pack_or_codes(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                          int64_t line, int32_t lines, void *panel)
{
    if (side == GEMM_A ? !rows_pack(g, w, line, lines, panel)
                       : !blocks_pack(g, w, line, lines, panel))
        pack(g, w, side, line, lines, panel);
}

#endif
