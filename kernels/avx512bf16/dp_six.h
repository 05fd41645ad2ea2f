/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of A of six lines along k, as packing.h makes them, 32 positions at a time: bf16, and
 * codes of at most 8 bits decoded by dp_codes.h. Behind gemm_fma.h.
 */
#ifndef NG_AVX512BF16_DP_SIX_H
#define NG_AVX512BF16_DP_SIX_H

#include "../dp_codes.h"
#include "../six512.h"

/* Line i's values of 32 positions from p on. */
PACK_INLINE ivec six_values(struct blocks *b, const struct rows_panel *t,
                            const enum rows_lie lie, int i, int64_t p)
{
    const int64_t k = t->w->k[p];
    const unsigned char *at = t->line[i] + rows_bytes(lie, k);
    pack_ask(at, t->next);
    if (lie != ROWS_WORDS) {
        const int by = t->scales ? t->scales[(int64_t)t->w->block[p] * MR + i] - 127 : 0;
        return blocks_decode(b, rows_codes(lie, t->line[i], k, 0),
                             _mm512_set1_epi16((short)(by * 128)));
    }
    const ivec x = iv_load(at);
    note_codes(&b->seen, x);
    return x;
}

/* 16 pairs of each line, from position p on. */
PACK_INLINE void six_square(struct blocks *b, const struct rows_panel *t, const int32_t lines,
                            const enum rows_lie lie, int64_t p)
{
    ivec x[MR];
    FMA_UNROLL
    for (int i = 0; i < MR; i++) {
        x[i] = i < lines ? six_values(b, t, lie, i, p) : iv_all(0);
        x[i] = _mm512_rol_epi32(x[i], 16);
    }
    six_turn(x, t->elements + p / 2 * MR);
}

PACK_INLINE void six_squares(struct blocks *b, const struct rows_panel *t, const int32_t lines,
                             const enum rows_lie lie)
{
    struct blocks seen = *b; /* in registers */
    if (lines == MR)
        for (int64_t p = 0; p < t->w->used; p += NOTE_VL)
            six_square(&seen, t, MR, lie, p);
    else
        for (int64_t p = 0; p < t->w->used; p += NOTE_VL)
            six_square(&seen, t, lines, lie, p);
    *b = seen;
}

static bool six_takes(const struct gemm_job *g, const struct gemm_walk *w, enum rows_lie *lie)
{
    const struct gemm_operand *o = &g->a;
    *lie = ROWS_WORDS;
    if (o->spec->format == NG_BF16)
        return o->k == 1 && !o->sparse && !w->blocks && pack_runs(w, NOTE_VL);
    return rows_runs(g, w, lie);
}

/* False: pack() takes it, whatever the panel holds now. */
static bool six_pack(const struct gemm_job *g, const struct gemm_walk *w, int64_t first,
                     int32_t lines, void *panel)
{
    const struct panel_parts parts = panel_parts(g, w, MR, true);
    unsigned char *const base = panel;
    const struct pack_source s = { .g = g, .o = &g->a, .line = first, .lines = lines };
    enum rows_lie lie;
    if (!six_takes(g, w, &lie) || (w->blocks && !blocks_scales(&s, w, MR, base + parts.scales)))
        return false;
    const struct rows_panel t = rows_panel_of(g, w, lie, first, lines, &parts, base);
    struct blocks b = blocks_begin(w->widen[GEMM_A]);
    if (lie == ROWS_WORDS)
        six_squares(&b, &t, lines, ROWS_WORDS);
    else if (lie == ROWS_NIBBLES)
        six_squares(&b, &t, lines, ROWS_NIBBLES);
    else
        six_squares(&b, &t, lines, ROWS_BYTES);
    return blocks_conclude(&b, g, &g->a, 0, panel);
}

static void pack_or_six(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                        int64_t line, int32_t lines, void *panel)
{
    if (side == GEMM_B || !six_pack(g, w, line, lines, panel))
        pack(g, w, side, line, lines, panel);
}

#endif
