/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that sum their lanes before the chain takes them (lane_sum fused, presum, tree): 6 rows
 * of A by 32 columns of B. Twelve accumulators, twelve sums under way, 2 vectors of B: 26 of 32
 * registers; the adds into the accumulators are one in (lanes + 1) operations.
 */
#include "../vec512.h"

enum {
    MR = 6,
    NV = 2,
    SUMS = 12,
    A_PAIRS = 0
};

#include "../gemm_fma.h"

static const char *refuses(const struct gemm_job *g)
{
    const char *why = rule_refuses(g);
    return why ? why : rule_step_of(g) == STEP_FMA ? "rows of single products" : NULL;
}

#define RUNNERS(rows)                                                                          \
    FMA_RUNNER(words_tree, rows, false, WAY_TREE)                                              \
    FMA_RUNNER(words_sum, rows, false, WAY_SUM)                                                \
    FMA_RUNNER(words_watch, rows, false, WAY_WATCH)                                            \
    FMA_RUNNER(pairs_tree, rows, true, WAY_TREE)                                               \
    FMA_RUNNER(pairs_sum, rows, true, WAY_SUM)                                                 \
    FMA_RUNNER(pairs_watch, rows, true, WAY_WATCH)
RUNNERS(1)
RUNNERS(2)
RUNNERS(3)
RUNNERS(4)
RUNNERS(5)
RUNNERS(6)

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const gemm_runners[2][3][MR] = {
        { { words_tree_1, words_tree_2, words_tree_3, words_tree_4, words_tree_5,
            words_tree_6 },
          { words_sum_1, words_sum_2, words_sum_3, words_sum_4, words_sum_5, words_sum_6 },
          { words_watch_1, words_watch_2, words_watch_3, words_watch_4, words_watch_5,
            words_watch_6 } },
        { { pairs_tree_1, pairs_tree_2, pairs_tree_3, pairs_tree_4, pairs_tree_5,
            pairs_tree_6 },
          { pairs_sum_1, pairs_sum_2, pairs_sum_3, pairs_sum_4, pairs_sum_5, pairs_sum_6 },
          { pairs_watch_1, pairs_watch_2, pairs_watch_3, pairs_watch_4, pairs_watch_5,
            pairs_watch_6 } },
    };
    const struct gemm_panel *a = t->a, *b = t->b;
    const int way = rule_step_of(f->g) == STEP_TREE         ? 0
                    : a->spread + b->spread <= SPREAD_LIMIT ? 1
                                                            : 2;
    return gemm_runners[fma_pairs(f->g)][way][t->rows - 1];
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    return fma_tile(g, w, t, pick, true);
}

extern const struct ng_gemm_kernel ng_gemm_sum_6x32__avx512;
const struct ng_gemm_kernel ng_gemm_sum_6x32__avx512 = { .name = "gemm_sum_6x32__avx512",
                                                         .mr = MR,
                                                         .nr = NR,
                                                         .deep = 384,
                                                         .scratch_bytes = FMA_SCRATCH,
                                                         .refuses = refuses,
                                                         .panel_bytes = panel_bytes,
                                                         .pack = pack,
                                                         .tile = tile };
