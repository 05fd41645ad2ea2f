/* SPDX-License-Identifier: Apache-2.0 */
/* What packers of B for rows of lanes share: which operands they take. Behind packing.h. */
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
    return o->spec->format == NG_E2M1 && o->offset % 2 == 0 &&
           (o->k == 1 ? o->line : o->k) % 2 == 0;
}

/* Codes of a sign and a magnitude in a byte, whose values BLOCKS_LEAST speaks of? */
static inline bool blocks_bytes(const ng_format_spec *f)
{
    return f->store_bits == 8 && f->exp_bits <= 5 && f->man_bits <= 4 &&
           (f->kind == NG_KIND_IEEE || f->kind == NG_KIND_FN);
}

/* Rows of four lanes in blocks, and of two lanes without. */
static inline bool blocks_takes(const struct gemm_job *g, const struct gemm_walk *w)
{
    const struct gemm_operand *o = &g->b;
    const bool four = w->blocks > 0 && o->block == BLOCKS_VL && w->step == BLOCKS_STEP &&
                      (o->spec->format == NG_E4M3FN || o->spec->format == NG_E5M2 ||
                       blocks_halves(g)),
               two = w->blocks == 0 && w->step == 2 && blocks_bytes(o->spec);
    return (four || two) && w->lanes == w->step && !o->sparse && !g->a.sparse &&
           rule_step_of(g) == STEP_SUM && rule_values(g, o) == o->spec && w->used % 4 == 0;
}

/* Whole blocks, their positions one after another? */
static inline bool blocks_follow(const struct gemm_walk *w)
{
    bool all = w->used % BLOCKS_VL == 0 && w->used <= w->in_runs;
    for (int64_t p = 0; all && w->blocks && p < w->used; p += BLOCKS_VL)
        all = w->k[p] % BLOCKS_VL == 0;
    return all;
}

/* Rows of two lanes, each lane's positions one after another? */
static inline bool blocks_split(const struct gemm_walk *w)
{
    bool all = w->used % BLOCKS_VL == 0 && w->step == 2;
    for (int64_t p = 0; all && p < w->used; p += BLOCKS_VL)
        all = pack_in_turn(w->k + p, BLOCKS_VL);
    return all;
}

/* Is none of n scales too far to be an addition to exponents? */
static inline bool blocks_near(const uint8_t *scale, int64_t n)
{
    int wrong = 0;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m256i above =
            _mm256_sub_epi8(_mm256_loadu_si256((const __m256i *)(const void *)(scale + i)),
                            _mm256_set1_epi8(BLOCKS_LEAST));
        wrong |= ~_mm256_movemask_epi8(_mm256_cmpeq_epi8(
            above,
            _mm256_min_epu8(above, _mm256_set1_epi8((char)(BLOCKS_MOST - BLOCKS_LEAST)))));
    }
    for (; i < n; i++)
        wrong |= scale[i] < BLOCKS_LEAST || scale[i] > BLOCKS_MOST;
    return !wrong;
}

#endif
