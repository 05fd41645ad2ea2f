/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of A of six lines of FP32, bf16 or f16 along k, as packing.h makes them, 16 positions
 * at a time; narrower ones by six_codes512.h. Behind gemm_fma.h. */
#ifndef NG_AVX512_SIX_WORDS_H
#define NG_AVX512_SIX_WORDS_H

#include "../six_codes512.h"

/* Codes of these. */
enum six_kind {
    SIX_F32,
    SIX_BF16,
    SIX_F16,
    SIX_NONE
};

static enum six_kind six_kind_of(const struct gemm_job *g, const struct gemm_walk *w)
{
    const struct gemm_operand *o = &g->a;
    if (o->k != 1 || o->sparse || w->blocks || rule_pieces(g) || !pack_runs(w, VL))
        return SIX_NONE;
    switch (o->spec->format) {
    case NG_F32: return SIX_F32;
    case NG_BF16: return SIX_BF16;
    case NG_F16: return SIX_F16;
    default: return SIX_NONE;
    }
}

/* f16's patterns in FP32, as widen() has them. */
PACK_INLINE ivec six_f16(ivec x)
{
    const ivec mag = iv_and(x, iv_all(0x7FFF)), sign = iv_sll_by(iv_xor(x, mag), 16),
               normal = iv_add(iv_sll_by(mag, 13), iv_all((127 - 15) << 23)),
               low = iv_bits(vec_mul(iv_to_float(mag), _mm512_set1_ps(0x1p-24f))), /* exact */
        inf = iv_all(0x7C00);
    ivec v = iv_pick(iv_gt(iv_all(0x400), mag), low, normal);
    v = iv_pick(iv_eq(mag, inf), iv_all(WIDEN_INF), v);
    return iv_pick(iv_gt(mag, inf), iv_all(WIDEN_NAN), iv_or(v, sign));
}

/* 16 values as FP32. */
PACK_INLINE ivec six_values(const enum six_kind kind, const unsigned char *at)
{
    return kind == SIX_F32    ? iv_load(at)
           : kind == SIX_BF16 ? iv_bits(vec_bf16(at))
                              : six_f16(iv_load16(at));
}

PACK_INLINE void six_squares(const enum six_kind kind, const unsigned char *const line[MR],
                             const int32_t lines, const struct gemm_walk *w, int64_t next,
                             struct pack_facts *facts, uint32_t *to)
{
    const int64_t each = kind == SIX_F32 ? 4 : 2;
    for (int64_t p = 0; p < w->used; p += VL, to += VL * MR) {
        ivec x[MR];
        FMA_UNROLL
        for (int i = 0; i < MR; i++) {
            x[i] = i < lines ? six_values(kind, line[i] + each * w->k[p]) : iv_all(0);
            if (i < lines)
                pack_ask(line[i] + each * w->k[p], next);
        }
        six_turn(x, to);
        pack_note(facts, to, VL * MR);
    }
}

PACK_INLINE void six_lines(const enum six_kind kind, const unsigned char *const line[MR],
                           int32_t lines, const struct gemm_walk *w, int64_t next,
                           struct pack_facts *facts, uint32_t *to)
{
    if (lines == MR)
        six_squares(kind, line, MR, w, next, facts, to);
    else
        six_squares(kind, line, lines, w, next, facts, to);
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
    const enum six_kind kind = six_kind_of(g, w);
    if (kind == SIX_NONE)
        return false;
    const int64_t each = kind == SIX_F32 ? 4 : 2,
                  next = each * o->line * pack_next(g, first, lines);
    for (int i = 0; i < lines; i++)
        line[i] = (const unsigned char *)o->data + each * (o->offset + (first + i) * o->line);
    *head = (struct gemm_panel){ 0 };
    pack_facts_begin(&facts);
    if (kind == SIX_F32)
        six_lines(SIX_F32, line, lines, w, next, &facts, to);
    else if (kind == SIX_BF16)
        six_lines(SIX_BF16, line, lines, w, next, &facts, to);
    else
        six_lines(SIX_F16, line, lines, w, next, &facts, to);
    pack_conclude(&facts, (int)o->spec->man_bits, head);
    return true;
}

static void pack_or_six(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                        int64_t line, int32_t lines, void *panel)
{
    if (side == GEMM_B ||
        (!six_pack(g, w, line, lines, panel) && !six_codes_pack(g, w, line, lines, panel)))
        pack(g, w, side, line, lines, panel);
}

#endif
