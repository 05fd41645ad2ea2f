/* SPDX-License-Identifier: Apache-2.0 */
/*
 * B in bf16 where it lies, by AVX-512: facts of its rows, and panels of pairs out of lines
 * along k, by squares of 16 by 16 pairs, 64 shuffles for 1 KiB. Behind gemm_lying.h.
 */
#ifndef NG_KERNELS_LYING512_H
#define NG_KERNELS_LYING512_H

#include "dp_note.h"
#include "ints512.h"

/* ---- Facts of rows. ---- */

/* Columns are whole panels. */
static void note(const struct gemm_job *g, const unsigned char *const *row, int64_t n,
                 int64_t columns, struct gemm_soon *soon, struct gemm_panel *head)
{
    struct codes_facts facts;
    struct note_bounds seen = { _mm512_set1_epi16(-1), _mm512_set1_epi16(-1) };
    struct soon_rows ahead = soon_over(soon, n, g->second);
    codes_facts_begin(&facts);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < columns; c += NOTE_VL)
            note_codes(&seen, _mm512_loadu_si512(row[i] + 2 * c));
        soon_step(&ahead);
    }
    soon_over_end(soon);
    if (!note_settle(&seen, &facts))
        lying_special(row, n, columns, &facts);
    lying_conclude(&facts, head);
}

/* ---- Panels. ---- */

/* 16 lines of 32 positions. `soon` or NULL, a constant: who does not ask pays nothing. Unrolled
 * because gcc would keep x on the stack. */
PACK_INLINE void turn_square(struct note_bounds *seen, const unsigned char *const line[VL],
                             int64_t k, struct soon_rows *soon, uint32_t *to)
{
    ivec x[VL];
    FMA_UNROLL
    for (int i = 0; i < VL; i++) {
        x[i] = _mm512_loadu_si512(line[i] + 2 * k);
        note_codes(seen, x[i]);
        x[i] = _mm512_rol_epi32(x[i], 16);
        if (soon && i % 4 == 3)
            soon_step(soon);
    }
    iv_transpose(x);
    for (int i = 0; i < VL; i++)
        iv_store(to + i * NR, x[i]);
}

PACK_INLINE void turn_lines(struct note_bounds *seen, const struct gemm_walk *w,
                            const unsigned char *const *row, int32_t lines,
                            struct soon_rows *soon, uint32_t *to)
{
    static const unsigned char zeros[2 * 256];
    for (int l = 0; l < NR; l += VL) {
        const unsigned char *line[VL];
        for (int i = 0; i < VL; i++)
            line[i] = l + i < lines ? row[l + i] : zeros;
        for (int64_t p = 0; p < w->used; p += NOTE_VL)
            turn_square(seen, line, w->k[p], soon, to + p / 2 * NR + l);
    }
}

static bool turn(const struct gemm_job *g, const struct gemm_walk *w,
                 const unsigned char *const *row, int32_t lines, struct gemm_soon *soon,
                 void *panel)
{
    struct gemm_panel *head = panel;
    uint32_t *to = (uint32_t *)((unsigned char *)panel + sizeof *head);
    struct codes_facts facts;
    struct note_bounds seen = { _mm512_set1_epi16(-1), _mm512_set1_epi16(-1) };
    if (!lies(g) || g->k > 256 || !pack_runs(w, NOTE_VL))
        return false;
    const int64_t squares = NR / VL * (w->used / NOTE_VL);
    struct soon_rows ahead = soon_over(soon, squares * (VL / 4), g->second);
    if (ahead.n)
        turn_lines(&seen, w, row, lines, &ahead, to);
    else
        turn_lines(&seen, w, row, lines, NULL, to);
    soon_over_end(soon);
    codes_facts_begin(&facts);
    if (!note_settle(&seen, &facts))
        return false;
    lying_conclude(&facts, head);
    return true;
}

/* ---- Panels out of positions whose columns adjoin. ---- */

/* Two positions' NR columns as pairs; `k` below 0: none, zeros. */
PACK_INLINE void adjoin_pairs(const struct gemm_operand *o, const uint16_t *first,
                              const int32_t k[2], struct note_bounds *seen, uint32_t *to)
{
    static const uint16_t zeros[NR];
    const uint16_t *row[2];
    for (int i = 0; i < 2; i++)
        row[i] = k[i] < 0 ? zeros : first + k[i] * o->k;
    FMA_UNROLL
    for (int c = 0; c < NR; c += NOTE_VL) {
        const ivec x = iv_load(row[0] + c), y = iv_load(row[1] + c);
        __m512i pairs[2];
        note_codes(seen, x);
        note_codes(seen, y);
        codes_pairs(x, y, pairs);
        iv_store(to + c, pairs[0]);
        iv_store(to + c + VL, pairs[1]);
    }
}

/* False: pack() takes it, whatever the panel holds now. */
static bool adjoin_pack(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                        int32_t lines, void *panel)
{
    const struct gemm_operand *o = &g->b;
    struct gemm_panel *head = panel;
    uint32_t *to = (uint32_t *)((unsigned char *)panel + sizeof *head);
    struct note_bounds seen = { _mm512_set1_epi16(-1), _mm512_set1_epi16(-1) };
    struct codes_facts facts;
    if (!lies(g) || o->line != 1 || lines != NR)
        return false;
    const uint16_t *first = (const uint16_t *)o->data + o->offset + line;
    for (int64_t p = 0; p < w->used; p += 2, to += NR)
        adjoin_pairs(o, first, w->k + p, &seen, to);
    codes_facts_begin(&facts);
    if (!note_settle(&seen, &facts))
        return false;
    lying_conclude(&facts, head);
    return true;
}

#endif
