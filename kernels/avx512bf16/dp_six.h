/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of A of six bf16 lines along k, as packing.h makes them, 32 positions at a time: words
 * of two lines are joined to doublewords, and those of three such pairs of lines taken in turn.
 * 18 shuffles for six vectors. Behind gemm_fma.h.
 */
#ifndef NG_AVX512BF16_DP_SIX_H
#define NG_AVX512BF16_DP_SIX_H

#include "dp_note.h"

_Static_assert(MR == 6, "lines of a panel");

/* 16 pairs of each line, from k on. */
PACK_INLINE void six_square(struct note_bounds *seen, const unsigned char *const line[MR],
                            const int32_t lines, int64_t k, uint32_t *to)
{
    static const int32_t join[2][VL] = {
        { 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23 },
        { 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31 }
    };
    static const int64_t two[3][VL / 2] = { { 0, 8, 0, 1, 9, 0, 2, 10 },
                                            { 0, 3, 11, 0, 4, 12, 0, 5 },
                                            { 13, 0, 6, 14, 0, 7, 15, 0 } },
                                     three[3][VL / 2] = { { 0, 1, 8, 3, 4, 9, 6, 7 },
                                                          { 10, 1, 2, 11, 4, 5, 12, 7 },
                                                          { 0, 13, 2, 3, 14, 5, 6, 15 } };
    ivec x[MR];
    FMA_UNROLL
    for (int i = 0; i < MR; i++) {
        x[i] = i < lines ? iv_load(line[i] + 2 * k) : iv_all(0);
        note_codes(seen, x[i]);
        x[i] = _mm512_rol_epi32(x[i], 16);
    }
    FMA_UNROLL
    for (int h = 0; h < 2; h++) {
        ivec y[3];
        FMA_UNROLL
        for (int i = 0; i < 3; i++)
            y[i] = _mm512_permutex2var_epi32(x[2 * i], iv_load(join[h]), x[2 * i + 1]);
        FMA_UNROLL
        for (int v = 0; v < 3; v++) {
            const ivec z = _mm512_permutex2var_epi64(y[0], iv_load(two[v]), y[1]);
            iv_store(to + (3 * h + v) * VL,
                     _mm512_permutex2var_epi64(z, iv_load(three[v]), y[2]));
        }
    }
}

/* False: pack() takes it, whatever the panel holds now. */
static bool six_pack(const struct gemm_job *g, const struct gemm_walk *w, int64_t first,
                     int32_t lines, void *panel)
{
    const struct gemm_operand *o = &g->a;
    struct gemm_panel *head = panel;
    uint32_t *to = (uint32_t *)((unsigned char *)panel + sizeof *head);
    const unsigned char *line[MR] = { NULL };
    struct note_bounds seen = { _mm512_set1_epi16(-1), _mm512_set1_epi16(-1) };
    struct pack_facts facts;
    if (o->spec->format != NG_BF16 || o->k != 1 || o->sparse || w->blocks || !note_runs(w))
        return false;
    for (int i = 0; i < lines; i++)
        line[i] = (const unsigned char *)o->data + 2 * (o->offset + (first + i) * o->line);
    if (lines == MR)
        for (int64_t p = 0; p < w->used; p += NOTE_VL)
            six_square(&seen, line, MR, w->k[p], to + p / 2 * MR);
    else
        for (int64_t p = 0; p < w->used; p += NOTE_VL)
            six_square(&seen, line, lines, w->k[p], to + p / 2 * MR);
    pack_facts_begin(&facts);
    if (!note_settle(&seen, &facts.codes))
        return false;
    *head = (struct gemm_panel){ 0 };
    pack_join(&facts, o->spec);
    pack_conclude(&facts, (int)o->spec->man_bits, head);
    return true;
}

static void pack_or_six(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                        int64_t line, int32_t lines, void *panel)
{
    if (side == GEMM_B || !six_pack(g, w, line, lines, panel))
        pack(g, w, side, line, lines, panel);
}

#endif
