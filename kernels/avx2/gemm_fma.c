/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chains of single products (lanes = 1, lane_sum = chain), FP32 in pieces: 6 rows of A by 16
 * of the 32 columns of a panel of B. 12 accumulators, 2 vectors of B and a broadcast: 15 of 16
 * registers. A position is 8 loads to 12 FMAs, which is 6 cycles of two FMA ports.
 */
#include "vec.h"

enum {
    MR = 6,
    NV = 4,
    SUMS = 11,
    A_PAIRS = 0
};

#include "../gemm_fma.h"

static const char *refuses(const struct gemm_job *g)
{
    const char *why = rule_refuses(g);
    return why ? why : rule_step_of(g) != STEP_FMA ? "rows that sum their lanes first" : NULL;
}

#define RUNNERS(rows)                                                                          \
    FMA_RUNNER(pairs, rows, true, WAY_FMA)                                                     \
    FMA_RUNNER(words, rows, false, WAY_FMA)
RUNNERS(1)
RUNNERS(2)
RUNNERS(3)
RUNNERS(4)
RUNNERS(5)
RUNNERS(6)

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const gemm_runners[2][MR] = {
        { words_1, words_2, words_3, words_4, words_5, words_6 },
        { pairs_1, pairs_2, pairs_3, pairs_4, pairs_5, pairs_6 }
    };
    return gemm_runners[fma_pairs(f->g)][t->rows - 1];
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    return fma_tile(g, w, t, pick, true);
}

extern const struct ng_gemm_kernel ng_gemm_fma_6x32__avx2;
const struct ng_gemm_kernel ng_gemm_fma_6x32__avx2 = { .name = "gemm_fma_6x32__avx2",
                                                       .mr = MR,
                                                       .nr = NR,
                                                       .deep = 256,
                                                       .scratch_bytes = FMA_SCRATCH,
                                                       .refuses = refuses,
                                                       .panel_bytes = panel_bytes,
                                                       .pack = pack,
                                                       .tile = tile };
