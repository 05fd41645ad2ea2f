/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many panels of A with one of B, a stretch of K at a time: FMA_NEAR positions of B's pairs are
 * widened to FP32 once, lie in the first cache, and all of A's panels are multiplied by them.
 * Panel by panel B would come from the second cache as often as there are panels of A, and each
 * time be widened again: eight vector operations to 48 FMAs. Sums go to psum and come back,
 * once a stretch; it is of whole K tiles, so that the foot adds what it adds anyway. Behind
 * gemm_fma.h.
 */
#ifndef NG_KERNELS_GEMM_NEAR_H
#define NG_KERNELS_GEMM_NEAR_H

#include "gemm_fma.h"

/* Fewer panels of A do not pay for a stretch. */
enum {
    NEAR_PANELS = 8
};

/* ng_gemm_kernel.near. With AVX2, of which a tile takes two passes, psum's way there and back
 * is longer than what is saved where K tiles have no use for it. */
static bool near_pays(const struct gemm_job *g, const struct gemm_walk *w, int64_t panels)
{
    return panels > NEAR_PANELS && fma_pairs(g) && (VL == 16 || !w->whole);
}

/* The stretch that begins at `from`: its end, in K tiles, or positions of a whole chain. */
static inline int64_t near_end(const struct gemm_walk *w, int64_t from, int64_t end)
{
    if (w->whole)
        return end - from < FMA_NEAR ? end : from + FMA_NEAR;
    int64_t to = from + 1;
    while (to < end && w->start[to + 1] - w->start[from] <= FMA_NEAR)
        to++;
    return to;
}

/* Positions [first, last) of B are in scratch. */
static inline void near_widen(struct fma *f, unsigned char *scratch, int64_t first,
                              int64_t last)
{
    float *to = (float *)(scratch + FMA_STACK);
    const uint32_t *b = f->b + first / 2 * NR;
    f->b = (const uint32_t *)to;
    f->piece_b = -first * NR;
    f->behind = b + (last - first) / 2 * NR;
    f->wide = true;
    for (int64_t p = first; p < last; p += 2, b += NR, to += 2 * NR)
        FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        vec_store(to + q * VL, vec_upper(b + q * VL));
        vec_store(to + NR + q * VL, vec_lower(b + q * VL));
    }
}

/* fma_tiles(), near where it pays. */
static inline bool
near_tiles(const struct gemm_job *g, const struct gemm_walk *w, const struct gemm_tile *t,
           const struct gemm_run *run,
           fma_runner *(*pick)(const struct fma *f, const struct gemm_tile *t), fma_fast *fast)
{
    if (run->b_step || !run->psum_step || !near_pays(g, w, run->panels))
        return fma_tiles(g, w, t, run, pick, fast);
    if (!fma_all_fast(g, t, run, fast))
        return false;
    const struct fma f = fma_of(g, w, t);
    for (int64_t from = t->from, to; from < t->to; from = to) {
        to = near_end(w, from, t->to);
        const int64_t first = w->whole ? from : w->start[from],
                      last = w->whole ? to : w->start[to];
        struct fma near = f;
        near.far_a = run->a_step / (int64_t)sizeof *f.a;
        if (last - first <= FMA_NEAR) /* a single K tile may be longer */
            near_widen(&near, t->scratch, first, last);
        fma_column(near, t, run, pick, from, to);
    }
    return true;
}

#endif
