/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chains of single products (lanes = 1, lane_sum = chain), FP32 in pieces: 6 rows of A by 64
 * columns of B. 24 accumulators and 4 vectors of B: 28 of 32 registers, A broadcast from
 * memory. A position is 10 loads to 24 FMAs, which is 12 cycles of two FMA ports.
 */
#include "../ints512.h"

enum {
    MR = 6,
    NV = 4,
    SUMS = 24,
    KEPT_SUMS = 16, /* gemm_kept.h */
    A_PAIRS = 0
};
#define FMA_NEAR 128 /* 32 KiB of B in the first cache */
/* However many: growing takes longer. */
#define KEPT_PANELS INT64_MAX
#define FMA_EACH    FMA_EACH_6
#define FMA_PACK    pack_or_adjoin
#define SINGLE_512  /* lying512.h */

#include "../gemm_single.h"

#include "six_words.h"

static void pack_or_adjoin(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                           int64_t line, int32_t lines, void *panel)
{
    if (side == GEMM_A || !adjoin_pack(g, w, line, lines, panel))
        pack_or_six(g, w, side, line, lines, panel);
    kept_turn(g, w, side, lines, panel);
}

FMA_KERNEL(gemm_fma_6x64__avx512);
