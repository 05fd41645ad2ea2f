/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of B whose rows sum four lanes: e4m3fn or e5m2 in blocks of 32 under e8m0 scales, as
 * packing.h makes them, 32 codes at a time; a step's spreads are those of 16 lines at once.
 * Behind gemm_fma.h; dp_rows.h has A's.
 */
#ifndef NG_AVX512BF16_DP_BLOCKS_H
#define NG_AVX512BF16_DP_BLOCKS_H

#include "dp_codes.h"

enum {
    BLOCKS_STEP = 4
};

/* What pack_spread_note() and pack_spread_end() make of a step: two words of pairs of 16
 * lines. Values have at most 4 bits behind the point and are normal. */
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

PACK_INLINE void blocks_spread(struct blocks *b, __m512i p0, __m512i p1, uint8_t *out,
                               uint8_t *most)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7FFF), lower = iv_all(0xFFFF),
                  m0 = _mm512_and_si512(p0, magnitude), m1 = _mm512_and_si512(p1, magnitude),
                  tops = _mm512_max_epu16(m0, m1),
                  top = _mm512_slli_epi32(
                      iv_max(_mm512_srli_epi32(tops, 16), iv_and(tops, lower)), 16),
                  lows = _mm512_min_epi16(blocks_lowest(m0), blocks_lowest(m1)),
                  low = iv_min(_mm512_srli_epi32(lows, 16), iv_and(lows, lower)),
                  log2_up = _mm512_srli_epi32(iv_add(top, iv_all(SPREAD_UP)), 20),
                  x = iv_add(iv_sub(log2_up, _mm512_slli_epi32(low, 3)),
                             iv_all(7 * SPREAD_UNIT)),
                  byte = iv_where(iv_gt(top, iv_all(0)), iv_min(x, iv_all(SPREAD_MAX)));
    const __m128i bytes = _mm512_cvtepi32_epi8(byte);
    _mm_storeu_si128((__m128i *)(void *)out, bytes);
    *most = (uint8_t)pack_largest_byte(bytes);
    b->spread = iv_max(b->spread, byte);
}

/* Where the parts of the panel are. */
struct blocks_panel {
    const struct gemm_operand *o;
    const struct gemm_walk *w;
    int64_t line;
    int32_t lines;
    uint32_t *elements;
    uint8_t *spread, *most;
    const uint8_t *scales;
};

/* 32 positions from p on of 16 lines along k, a block of each. */
PACK_INLINE void blocks_square(struct blocks *b, const struct blocks_panel *t, int64_t p, int l)
{
    const struct gemm_operand *o = t->o;
    const unsigned char *first = (const unsigned char *)o->data + o->offset + t->w->k[p];
    const uint8_t *scale = t->scales + (int64_t)t->w->block[p] * NR + l;
    ivec x[VL];
    for (int i = 0; i < VL; i++) {
        const __m512i codes = l + i < t->lines
                                  ? blocks_codes(first + (t->line + l + i) * o->line)
                                  : _mm512_setzero_si512();
        const short step = (short)((scale[i] - 127) * 128);
        x[i] = _mm512_rol_epi32(blocks_decode(b, codes, _mm512_set1_epi16(step)), 16);
    }
    iv_transpose(x);
    for (int i = 0; i < VL; i += BLOCKS_STEP / 2) {
        const int64_t step = (p + 2 * i) / BLOCKS_STEP;
        iv_store(t->elements + (p / 2 + i) * NR + l, x[i]);
        iv_store(t->elements + (p / 2 + i + 1) * NR + l, x[i + 1]);
        blocks_spread(b, x[i], x[i + 1], t->spread + step * NR + l,
                      t->most + step * GROUPS + l / VL);
    }
}

/* Position p of 32 lines that are neighbours. */
PACK_INLINE __m512i blocks_row(struct blocks *b, const struct blocks_panel *t, int64_t p)
{
    const struct gemm_operand *o = t->o;
    const int64_t k = t->w->k[p];
    unsigned char some[BLOCKS_VL] = { 0 };
    if (k < 0)
        return _mm512_setzero_si512();
    const unsigned char *row = (const unsigned char *)o->data + o->offset + t->line + k * o->k;
    if (t->lines < BLOCKS_VL) {
        memcpy(some, row, (size_t)t->lines);
        row = some;
    }
    const __m512i scale = _mm512_cvtepu8_epi16(_mm256_loadu_si256(
                      (const __m256i *)(const void *)(t->scales +
                                                      (int64_t)t->w->block[p] * NR))),
                  step = _mm512_slli_epi16(_mm512_sub_epi16(scale, _mm512_set1_epi16(127)), 7);
    return blocks_decode(b, blocks_codes(row), step);
}

/* A step from position p on of 32 such lines. */
PACK_INLINE void blocks_step(struct blocks *b, const struct blocks_panel *t, int64_t p)
{
    const int64_t step = p / BLOCKS_STEP;
    __m512i x[BLOCKS_STEP];
    for (int i = 0; i < BLOCKS_STEP; i++)
        x[i] = blocks_row(b, t, p + i);
    __m512i first[2], second[2];
    codes_pairs(x[0], x[1], first);
    codes_pairs(x[2], x[3], second);
    for (int h = 0; h < 2; h++) {
        uint32_t *to = t->elements + p / 2 * NR + h * VL;
        iv_store(to, first[h]);
        iv_store(to + NR, second[h]);
        blocks_spread(b, first[h], second[h], t->spread + step * NR + h * VL,
                      t->most + step * GROUPS + h);
    }
}

static bool blocks_takes(const struct gemm_job *g, const struct gemm_walk *w)
{
    const struct gemm_operand *o = &g->b;
    return (o->spec->format == NG_E4M3FN || o->spec->format == NG_E5M2) && w->blocks > 0 &&
           o->block == BLOCKS_VL && !o->sparse && !g->a.sparse && rule_step_of(g) == STEP_SUM &&
           w->lanes == BLOCKS_STEP && w->step == BLOCKS_STEP && w->used % BLOCKS_STEP == 0;
}

/* Whole blocks, their positions one after another? */
static bool blocks_follow(const struct gemm_walk *w)
{
    bool all = w->used % BLOCKS_VL == 0;
    for (int64_t p = 0; all && p < w->used; p += BLOCKS_VL)
        all = pack_consecutive(w->k + p, BLOCKS_VL) && w->k[p] % BLOCKS_VL == 0;
    return all;
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
                                    .elements = (uint32_t *)(base + sizeof(struct gemm_panel)),
                                    .spread = base + parts.spread,
                                    .most = base + parts.most,
                                    .scales = base + parts.scales };
    const bool along = g->b.k == 1;
    if (!blocks_takes(g, w) || !(along ? blocks_follow(w) : g->b.line == 1) ||
        !blocks_scales(&s, w, NR, base + parts.scales))
        return false;
    struct blocks b = blocks_begin(w->widen[GEMM_B]);
    if (along)
        for (int l = 0; l < NR; l += VL)
            for (int64_t p = 0; p < w->used; p += BLOCKS_VL)
                blocks_square(&b, &t, p, l);
    else
        for (int64_t p = 0; p < w->used; p += BLOCKS_STEP)
            blocks_step(&b, &t, p);
    return blocks_conclude(&b, g, &g->b, (int)iv_most_u(b.spread), panel);
}

#endif
