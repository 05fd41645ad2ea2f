/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of A for TDPBF16PS: of each row's lanes a line's words lie side by side, line after
 * line, where other panels have word after word of all lines. Codes of at most 8 bits along k,
 * four lanes a row, plain or in blocks of 32 under e8m0 scales: eight lines by 32 positions at
 * a time, decoded by dp_codes.h and turned by two words. Others are packed as everywhere and
 * their words moved. Sums are exact whatever the data: the spread bytes are nobody's.
 */
#ifndef NG_AMXBF16_TILE_ROWS_H
#define NG_AMXBF16_TILE_ROWS_H

#include "../dp_blocks.h"
#include "quad_ints.h"

enum {
    ROWS_STEP = 4,
    ROWS_LINES = 8,
    ROWS_MOST_WORDS = 16 /* of a row of lanes */
};

/* x[i], line i's two words of eight rows of lanes, become row i's of eight lines. */
PACK_INLINE void rows_turn(ivec x[ROWS_LINES])
{
    ivec y[ROWS_LINES];
    FMA_UNROLL
    for (int i = 0; i < ROWS_LINES; i += 2) {
        y[i] = _mm512_unpacklo_epi64(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi64(x[i], x[i + 1]);
    }
    FMA_UNROLL
    for (int i = 0; i < 2; i++)
        iv_turn_quarters(y + i, 2);
    FMA_UNROLL
    for (int i = 0; i < ROWS_LINES; i++)
        x[i] = y[i];
}

/* 32 positions from p on of eight lines from `first` on. */
PACK_INLINE void rows_square(struct blocks *b, const struct rows_panel *t,
                             const enum rows_lie lie, int64_t p, const int first)
{
    const int64_t k = t->w->k[p];
    const uint8_t *scale = t->scales ? t->scales + (int64_t)t->w->block[p] * MR : NULL;
    ivec x[ROWS_LINES];
    FMA_UNROLL
    for (int i = 0; i < ROWS_LINES; i++) {
        x[i] = iv_all(0);
        if (first + i < t->lines) {
            const unsigned char *line = t->line[first + i];
            const short by = (short)(scale ? (scale[first + i] - 127) * 128 : 0);
            pack_ask(line + rows_bytes(lie, k), t->next);
            x[i] = blocks_decode(b, rows_codes(lie, line, k, 0), _mm512_set1_epi16(by));
        }
        x[i] = _mm512_rol_epi32(x[i], 16);
    }
    rows_turn(x);
    FMA_UNROLL
    for (int i = 0; i < ROWS_LINES; i++)
        iv_store(t->elements + p / 2 * MR + i * (ROWS_STEP / 2) * MR + first * (ROWS_STEP / 2),
                 x[i]);
}

PACK_INLINE void rows_squares(struct blocks *b, const struct rows_panel *t,
                              const enum rows_lie lie)
{
    struct blocks seen = *b; /* in registers */
    for (int64_t p = 0; p < t->w->used; p += ROWS_VL)
        FMA_UNROLL
    for (int first = 0; first < MR; first += ROWS_LINES)
        rows_square(&seen, t, lie, p, first);
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
    if (!rows_narrow(g, &lie) || w->lanes != ROWS_STEP || w->step != ROWS_STEP ||
        (w->blocks && o->block != ROWS_VL) || !rows_follow(w, false) ||
        (w->blocks && !blocks_scales(&s, w, MR, base + parts.scales)))
        return false;
    const struct rows_panel t = rows_panel_of(g, w, lie, line, lines, &parts, base);
    struct blocks b = blocks_begin(w->widen[GEMM_A]);
    rows_squares(&b, &t, lie);
    return blocks_conclude(&b, g, o, 0, panel);
}

/* From word after word of all lines to line after line, in each row of lanes. */
static void rows_weave(const struct gemm_walk *w, void *panel)
{
    uint32_t *to = (uint32_t *)((unsigned char *)panel + sizeof(struct gemm_panel));
    const int words = w->step / 2;
    uint32_t row[ROWS_MOST_WORDS][MR];
    for (int64_t p = 0; p < w->used; p += w->step, to += words * MR) {
        memcpy(row, to, (size_t)words * sizeof *row);
        for (int l = 0; l < MR; l++)
            for (int i = 0; i < words; i++)
                to[l * words + i] = row[i][l];
    }
}

static void pack_tiles(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                       int64_t line, int32_t lines, void *panel)
{
    if (side == GEMM_B) {
        if (!blocks_pack(g, w, line, lines, panel))
            pack(g, w, side, line, lines, panel);
        return;
    }
    if (!rows_pack(g, w, line, lines, panel)) {
        pack(g, w, side, line, lines, panel);
        rows_weave(w, panel);
    }
    ints_pack(g, w, lines, panel);
}

#endif
