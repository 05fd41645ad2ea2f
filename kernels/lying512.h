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
static void note(const unsigned char *const *row, int64_t n, int64_t columns,
                 struct gemm_panel *head)
{
    struct codes_facts facts;
    struct note_bounds seen = { _mm512_set1_epi16(-1), _mm512_set1_epi16(-1) };
    codes_facts_begin(&facts);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < columns; c += NOTE_VL)
            note_codes(&seen, _mm512_loadu_si512(row[i] + 2 * c));
    if (!note_settle(&seen, &facts))
        lying_special(row, n, columns, &facts);
    lying_conclude(&facts, head);
}

/* ---- Panels. ---- */

/* 16 lines of 32 positions. */
PACK_INLINE void turn_square(struct note_bounds *seen, const unsigned char *const line[VL],
                             int64_t k, uint32_t *to)
{
    ivec x[VL];
    for (int i = 0; i < VL; i++) {
        x[i] = _mm512_loadu_si512(line[i] + 2 * k);
        note_codes(seen, x[i]);
        x[i] = _mm512_rol_epi32(x[i], 16);
    }
    iv_transpose(x);
    for (int i = 0; i < VL; i++)
        iv_store(to + i * NR, x[i]);
}

static bool turn(const struct gemm_job *g, const struct gemm_walk *w,
                 const unsigned char *const *row, int32_t lines, void *panel)
{
    static const unsigned char zeros[2 * 256];
    struct gemm_panel *head = panel;
    uint32_t *to = (uint32_t *)((unsigned char *)panel + sizeof *head);
    struct codes_facts facts;
    struct note_bounds seen = { _mm512_set1_epi16(-1), _mm512_set1_epi16(-1) };
    if (!lies(g) || g->k > 256 || !pack_runs(w, NOTE_VL))
        return false;
    for (int l = 0; l < NR; l += VL) {
        const unsigned char *line[VL];
        for (int i = 0; i < VL; i++)
            line[i] = l + i < lines ? row[l + i] : zeros;
        for (int64_t p = 0; p < w->used; p += NOTE_VL)
            turn_square(&seen, line, w->k[p], to + p / 2 * NR + l);
    }
    codes_facts_begin(&facts);
    if (!note_settle(&seen, &facts))
        return false;
    lying_conclude(&facts, head);
    return true;
}

#endif
