/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of A of six FP32 lines along k, as packing.h makes them, 16 positions at a time.
 * Behind gemm_fma.h. */
#ifndef NG_AVX512_SIX_WORDS_H
#define NG_AVX512_SIX_WORDS_H

#include "../six512.h"

static bool six_takes(const struct gemm_job *g, const struct gemm_walk *w)
{
    const struct gemm_operand *o = &g->a;
    return o->spec->format == NG_F32 && rule_values(g, o) == o->spec && o->k == 1 &&
           !o->sparse && !w->blocks && !rule_pieces(g) && pack_runs(w, VL);
}

PACK_INLINE void six_squares(const unsigned char *const line[MR], const int32_t lines,
                             const struct gemm_walk *w, int64_t next, struct pack_facts *facts,
                             uint32_t *to)
{
    for (int64_t p = 0; p < w->used; p += VL, to += VL * MR) {
        ivec x[MR];
        FMA_UNROLL
        for (int i = 0; i < MR; i++) {
            x[i] = i < lines ? iv_load(line[i] + 4 * (int64_t)w->k[p]) : iv_all(0);
            if (i < lines)
                pack_ask(line[i] + 4 * (int64_t)w->k[p], next);
        }
        six_turn(x, to);
        pack_note(facts, to, VL * MR);
    }
}

/* False: pack() takes it. */
static bool six_pack(const struct gemm_job *g, const struct gemm_walk *w, int64_t first,
                     int32_t lines, void *panel)
{
    const struct gemm_operand *o = &g->a;
    struct gemm_panel *head = panel;
    uint32_t *to = (uint32_t *)((unsigned char *)panel + sizeof *head);
    const unsigned char *line[MR] = { NULL };
    struct pack_facts facts;
    if (!six_takes(g, w))
        return false;
    for (int i = 0; i < lines; i++)
        line[i] = (const unsigned char *)o->data + 4 * (o->offset + (first + i) * o->line);
    const int64_t next = 4 * o->line * pack_next(g, first, lines);
    *head = (struct gemm_panel){ 0 };
    pack_facts_begin(&facts);
    if (lines == MR)
        six_squares(line, MR, w, next, &facts, to);
    else
        six_squares(line, lines, w, next, &facts, to);
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
