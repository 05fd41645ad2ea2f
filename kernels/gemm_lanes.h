/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that sum their lanes before the chain takes them (lane_sum fused, presum, tree) by
 * gemm_fma.h. */
#ifndef NG_KERNELS_GEMM_LANES_H
#define NG_KERNELS_GEMM_LANES_H

/* Few rows read a slim B as it is; more of them where a vector of codes takes one shuffle. */
/* AVX-512 is not quicker by it. */
#ifdef FMA_NEAR
#define LANES_NEAR  near_pays
#define LANES_TILES near_tiles
#else
#define LANES_NEAR  NULL
#define LANES_TILES fma_tiles
#endif
#define FMA_MORE                                                                               \
    .tile_slim = tile_slim_any, .tiles = tiles, .near = LANES_NEAR,                            \
    .slim_panels = VL == 16 ? 8 : 2, .byte_panels = 2
#define SLIM_FAST(a, b) true
#define SLIM_SUM        lanes_sum
#define SLIM_ROWS       0
#define FMA_PACK        pack_or_blocks
#include "gemm_fma.h"
#if FMA_NEAR > 0
#include "gemm_near.h"
#endif

#include "pack_blocks.h"
#ifdef LANES_512
#include "six_codes512.h"
#endif

static void pack_or_blocks(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                           int64_t line, int32_t lines, void *panel)
{
#ifdef LANES_512
    if (side == GEMM_A && six_codes_pack(g, w, line, lines, panel))
        return;
#endif
    if (side == GEMM_A || !block_pack(g, w, line, lines, panel))
        pack(g, w, side, line, lines, panel);
}

/* Positions 2i and 2i + 1 of four: the products of two positions more, or the first two. */
PACK_INLINE void lanes_sum(const int rows, const int nv, const int i, const uint32_t *a,
                           const vec_pairs y[NV], struct block *t)
{
    vec upper[NV], lower[NV];
    FMA_UNROLL
    for (int q = 0; q < nv; q++) {
        upper[q] = vec_pairs_upper(y[q]);
        lower[q] = vec_pairs_lower(y[q]);
    }
    FMA_UNROLL
    for (int r = 0; r < rows; r++) {
        const vec first = fma_a(a, 2 * i, r), second = fma_a(a, 2 * i + 1, r);
        FMA_UNROLL
        for (int q = 0; q < nv; q++) {
            t->v[r][q] = i ? vec_fma(first, upper[q], t->v[r][q]) : vec_mul(first, upper[q]);
            t->v[r][q] = vec_fma(second, lower[q], t->v[r][q]);
        }
    }
}

#include "gemm_bytes.h"

static const char *refuses(const struct gemm_job *g)
{
    return fma_refuses(g, true);
}

FMA_RUNNERS(words_tree, false, WAY_TREE)
FMA_RUNNERS(words_sum, false, WAY_SUM)
FMA_RUNNERS(words_watch, false, WAY_WATCH)
FMA_RUNNERS(pairs_tree, true, WAY_TREE)
FMA_RUNNERS(pairs_sum, true, WAY_SUM)
FMA_RUNNERS(pairs_watch, true, WAY_WATCH)

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const gemm_runners[2][3][MR] = {
        { FMA_LINE(words_tree), FMA_LINE(words_sum), FMA_LINE(words_watch) },
        { FMA_LINE(pairs_tree), FMA_LINE(pairs_sum), FMA_LINE(pairs_watch) }
    };
    return gemm_runners[fma_pairs(f->g) && !f->wide][fma_lanes_way(f, t)][t->rows - 1];
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    return fma_tile(g, w, t, pick, true);
}

static bool tiles(const struct gemm_job *g, const struct gemm_walk *w,
                  const struct gemm_tile *t, const struct gemm_run *run)
{
    return LANES_TILES(g, w, t, run, pick, NULL);
}

#endif
