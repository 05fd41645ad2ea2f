/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fma.h for the kernels of single products that multiply by VDPBF16PS, and B where it
 * lies: two positions' columns become pairs in registers, one VPERMT2W for 16 of them.
 */
#ifndef NG_AVX512BF16_DP_LYING_H
#define NG_AVX512BF16_DP_LYING_H

#include "../dp.h"
#include "../ints512.h"

#define FMA_MORE                                                                               \
    .turn = turn, .turn_codes = turn_codes, .lies = lies, .note = note,                        \
    .tile_lying = tile_lying, .widen = widen_rows, .widen_pairs = widen_pairs, .tiles = tiles, \
    .few = { 1024, 12, 8 }, .block = { 384, 2048 }, .tile_slim = tile_slim_any,                \
    .byte_panels = 6, .kept_panels = 6, .both = true, .behind = behind
#include "../gemm_fma.h"
#include "../gemm_lying.h"
#include "../lying512.h"

/* ---- Tiles. ---- */

/* Two positions, of A at `a`. */
PACK_INLINE void dp_step(const int rows, const int nv, const uint32_t *a, const vec y[NV],
                         struct block *acc)
{
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < nv; q++)
        acc->v[r][q] = dp(acc->v[r][q], y[q], dp_all(a + r));
}

/* As pairs; `at` the first column. */
PACK_INLINE void dp_lying_columns(const bool pairs, const unsigned char *const *row, int64_t at,
                                  vec y[NV])
{
    __m512i x[NV];
    FMA_UNROLL
    for (int q = 0; q < NV; q += 2) {
        const int64_t column = at + q * VL;
        if (pairs) {
            x[q] = _mm512_loadu_si512(row[0] + 4 * column);
            x[q + 1] = _mm512_loadu_si512(row[0] + 4 * (column + VL));
        } else {
            codes_pairs(_mm512_loadu_si512(row[0] + 2 * column),
                        _mm512_loadu_si512(row[1] + 2 * column), x + q);
        }
    }
    FMA_UNROLL
    for (int q = 0; q < NV; q++)
        y[q] = iv_float(x[q]);
}

PACK_INLINE void dp_lying_run(struct fma *f, const int rows, const bool pairs,
                              const struct chain *c)
{
    const uint32_t *a = f->a + c->from / 2 * MR;
    const unsigned char *const *row = f->lying->row + (c->from - f->lying->first);
    const int64_t at = f->lying->column;
    struct soon_lines soon = soon_begin(f, c->n, 1);
    struct block acc;
    fma_begin(f, rows, NV, 0, &acc);
    for (int64_t p = 0; p < c->n; p += 2, a += MR, row += 2) {
        vec y[NV];
        dp_lying_columns(pairs, row, at, y);
        dp_step(rows, NV, a, y, &acc);
        soon_ask(&soon);
    }
    soon_end(f, &soon);
    fma_end(f, rows, NV, 0, c, &acc);
}

PACK_INLINE void dp_rows_run(struct fma *f, const int rows, const struct chain *c)
{
    dp_lying_run(f, rows, false, c);
}

PACK_INLINE void dp_pairs_run(struct fma *f, const int rows, const struct chain *c)
{
    dp_lying_run(f, rows, true, c);
}

FMA_RUNNERS(lying, false, WAY_LYING)
FMA_INSTANCES(dp_rows)
FMA_INSTANCES(dp_pairs)

static gemm_way tile_lying(const struct gemm_job *g, const struct gemm_walk *w,
                           const struct gemm_tile *t, const struct gemm_lying *b)
{
    static fma_runner *const lying_runners[3][MR] = { FMA_LINE(lying), FMA_LINE(dp_rows),
                                                      FMA_LINE(dp_pairs) };
    const bool fast = never_subnormal(t->a, b->head);
    return lying_soon(g, w, t, b, lying_runners[fast ? 1 + b->pairs : 0], fast);
}

#endif
