/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of A of six lines of FP32 or bf16 along k, as packing.h makes them, 16 positions at a
 * time. Behind gemm_fma.h. */
#ifndef NG_AVX512_SIX_WORDS_H
#define NG_AVX512_SIX_WORDS_H

#include "../six512.h"

static bool six_takes(const struct gemm_job *g, const struct gemm_walk *w)
{
    const struct gemm_operand *o = &g->a;
    return (o->spec->format == NG_F32 || o->spec->format == NG_BF16) && o->k == 1 &&
           !o->sparse && !w->blocks && !rule_pieces(g) && pack_runs(w, VL);
}

/* 16 values as FP32. */
PACK_INLINE ivec six_values(const bool bf16, const unsigned char *at)
{
    return bf16 ? iv_bits(vec_bf16(at)) : iv_load(at);
}

PACK_INLINE void six_squares(const bool bf16, const unsigned char *const line[MR],
                             const int32_t lines, const struct gemm_walk *w, int64_t next,
                             struct pack_facts *facts, uint32_t *to)
{
    const int64_t each = bf16 ? 2 : 4;
    for (int64_t p = 0; p < w->used; p += VL, to += VL * MR) {
        ivec x[MR];
        FMA_UNROLL
        for (int i = 0; i < MR; i++) {
            x[i] = i < lines ? six_values(bf16, line[i] + each * w->k[p]) : iv_all(0);
            if (i < lines)
                pack_ask(line[i] + each * w->k[p], next);
        }
        six_turn(x, to);
        pack_note(facts, to, VL * MR);
    }
}

PACK_INLINE void six_lines(const bool bf16, const unsigned char *const line[MR], int32_t lines,
                           const struct gemm_walk *w, int64_t next, struct pack_facts *facts,
                           uint32_t *to)
{
    if (lines == MR)
        six_squares(bf16, line, MR, w, next, facts, to);
    else
        six_squares(bf16, line, lines, w, next, facts, to);
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
    const bool bf16 = o->spec->format == NG_BF16;
    const int64_t each = bf16 ? 2 : 4, next = each * o->line * pack_next(g, first, lines);
    for (int i = 0; i < lines; i++)
        line[i] = (const unsigned char *)o->data + each * (o->offset + (first + i) * o->line);
    *head = (struct gemm_panel){ 0 };
    pack_facts_begin(&facts);
    if (bf16)
        six_lines(true, line, lines, w, next, &facts, to);
    else
        six_lines(false, line, lines, w, next, &facts, to);
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
