/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of single products (lanes = 1, lane_sum = chain) by gemm_fma.h. */
#ifndef NG_KERNELS_GEMM_SINGLE_H
#define NG_KERNELS_GEMM_SINGLE_H

/* B may lie where it is, and SINGLE_512 has its panels and facts by AVX-512. A block of a panel
 * and the next one's are 32 KiB, in the first cache; AVX2, which goes over a panel's columns in
 * two passes, is not quicker by it. */
#ifdef SINGLE_512
#define SINGLE_TURN                                                                            \
    .turn = turn, .turn_codes = turn_codes, .widen = widen_rows, .widen_pairs = widen_pairs
#define SINGLE_SLIM .tile_slim = tile_few, .byte_panels = 1, .kept_panels = KEPT_PANELS
#else
#define SINGLE_TURN .widen = widen_rows
#define SINGLE_SLIM .tile_slim = tile_few, .kept_panels = KEPT_PANELS
#endif
#define SLIM_PLACES
#define FMA_PANEL kept_panel_bytes
#define FMA_MORE                                                                               \
    .lies = lies, .note = note, .tile_lying = tile_lying, .tiles = tiles, .near = near_pays,   \
    .few = { VL == 16 ? 128 : 0, MR, 8 }, SINGLE_TURN, SINGLE_SLIM
#include "gemm_fma.h"
#include "gemm_lying.h"
#include "gemm_near.h"

#define SLIM_FAST(a, b) true
#ifdef SINGLE_512
/* Few rows read bytes as they are. */
PACK_INLINE void single_slim(const int rows, const int q, const uint32_t *a, vec_pairs y,
                             struct block *acc)
{
    const float *const x = (const float *)a;
    const vec upper = vec_pairs_upper(y), lower = vec_pairs_lower(y);
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        vec_fma_at(&acc->v[r][q], x + r, upper);
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        vec_fma_at(&acc->v[r][q], x + MR + r, lower);
}

#define BYTES_SINGLE single_slim
#include "gemm_bytes.h"
#endif
#include "gemm_kept.h"

static gemm_way tile_few(const struct gemm_job *g, const struct gemm_walk *w,
                         const struct gemm_tile *t)
{
    if (g->b.sparse)
        return tile_kept(g, w, t);
#ifdef SINGLE_512
    return tile_slim_any(g, w, t);
#else
    return GEMM_LEFT;
#endif
}

static const char *refuses(const struct gemm_job *g)
{
    return fma_refuses(g, false);
}

FMA_RUNNERS(words, false, WAY_FMA)
FMA_RUNNERS(pairs, true, WAY_FMA)
FMA_RUNNERS(pairs_soon, true, WAY_SOON)

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const gemm_runners[3][MR] = { FMA_LINE(words), FMA_LINE(pairs),
                                                     FMA_LINE(pairs_soon) };
    const bool pairs = fma_pairs(f->g) && !f->wide;
    return gemm_runners[pairs + (pairs && soon_has_lines(f))][t->rows - 1];
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    return fma_tile_soon(g, w, t, pick, fma_pairs(g));
}

static bool tiles(const struct gemm_job *g, const struct gemm_walk *w,
                  const struct gemm_tile *t, const struct gemm_run *run)
{
    return near_tiles(g, w, t, run, pick, NULL);
}

/* ---- B where it lies. ---- */

#ifdef SINGLE_512
#include "lying512.h"
#else
static void note(const struct gemm_job *g, const unsigned char *const *row, int64_t n,
                 int64_t columns, struct gemm_soon *soon, struct gemm_panel *head)
{
    struct codes_facts facts;
    struct codes_bounds seen;
    struct soon_rows ahead = soon_over(soon, n, g->second);
    codes_facts_begin(&facts);
    codes_bounds_begin(&seen);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < columns; c += CODES)
            codes_bound(&seen, codes_load(CODES_BF16, NULL, row[i] + 2 * c));
        soon_step(&ahead);
    }
    soon_over_end(soon);
    if (!codes_settle(&seen, &facts))
        lying_special(row, n, columns, &facts);
    lying_conclude(&facts, head);
}

static bool widen_rows(const ng_format_spec *from, const uint32_t value[256],
                       const unsigned char *const *row, int64_t n, int64_t columns,
                       int64_t wide, uint16_t *to, struct gemm_panel *head)
{
    const struct codes codes = codes_of(from, value);
    struct codes_bounds seen;
    struct codes_facts facts;
    if (codes.kind != CODES_FLOAT8)
        return false;
    codes_bounds_begin(&seen);
    for (int64_t i = 0; i < n; i++, to += wide)
        for (int64_t c = 0; c < wide; c += CODES) {
            uint8_t some[CODES] = { 0 };
            const int64_t left = columns - c;
            if (left > 0 && left < CODES)
                memcpy(some, row[i] + c, (size_t)left);
            const __m256i x =
                codes_load(CODES_FLOAT8, &codes, left >= CODES ? row[i] + c : some);
            codes_bound(&seen, x);
            _mm256_storeu_si256((__m256i *)(void *)(to + c), x);
        }
    codes_facts_begin(&facts);
    if (!codes_settle(&seen, &facts))
        return false;
    lying_conclude(&facts, head);
    return true;
}
#endif

FMA_RUNNERS(lying, false, WAY_LYING)

static gemm_way tile_lying(const struct gemm_job *g, const struct gemm_walk *w,
                           const struct gemm_tile *t, const struct gemm_lying *b)
{
    static fma_runner *const lying_runners[MR] = FMA_LINE(lying);
    return lying_soon(g, w, t, b, lying_runners, true);
}

#endif
