/* SPDX-License-Identifier: Apache-2.0 */
/* What packers of B in MX blocks share: which operands they take. Behind packing.h. */
#ifndef NG_KERNELS_BLOCKS_H
#define NG_KERNELS_BLOCKS_H

#include "packing.h"

enum {
    BLOCKS_VL = 32,  /* codes of a block */
    BLOCKS_STEP = 4, /* lanes of a row */
    /* scales under which all values of these formats, 2^-16 to below 2^16, are normal, and sums
       of four finite */
    BLOCKS_LEAST = 127 - 110,
    BLOCKS_MOST = 127 + 109
};

/* Two codes a byte, and each run of them from a byte's first on? */
static inline bool blocks_halves(const struct gemm_job *g)
{
    const struct gemm_operand *o = &g->b;
    return o->spec->format == NG_E2M1 && !g->fp4 && o->offset % 2 == 0 &&
           (o->k == 1 ? o->line : o->k) % 2 == 0;
}

static inline bool blocks_takes(const struct gemm_job *g, const struct gemm_walk *w)
{
    const struct gemm_operand *o = &g->b;
    return (o->spec->format == NG_E4M3FN || o->spec->format == NG_E5M2 || blocks_halves(g)) &&
           w->blocks > 0 && o->block == BLOCKS_VL && !o->sparse && !g->a.sparse &&
           rule_step_of(g) == STEP_SUM && w->lanes == BLOCKS_STEP && w->step == BLOCKS_STEP &&
           w->used % BLOCKS_STEP == 0;
}

/* Whole blocks, their positions one after another? */
static inline bool blocks_follow(const struct gemm_walk *w)
{
    bool all = w->used % BLOCKS_VL == 0;
    for (int64_t p = 0; all && p < w->used; p += BLOCKS_VL)
        all = pack_consecutive(w->k + p, BLOCKS_VL) && w->k[p] % BLOCKS_VL == 0;
    return all;
}

/* Is none of n scales too far to be an addition to exponents? */
static inline bool blocks_near(const uint8_t *scale, int64_t n)
{
    int least = 255, most = 0;
    for (int64_t i = 0; i < n; i++) {
        least = scale[i] < least ? scale[i] : least;
        most = scale[i] > most ? scale[i] : most;
    }
    return least >= BLOCKS_LEAST && most <= BLOCKS_MOST;
}

#endif
