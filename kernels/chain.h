/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the gemm_chain kernels of all ISAs have in common: which jobs an FP32 fused multiply-add
 * computes exactly as docs/numerics.md 4.1 says, and how their rows fall into chains.
 */
#ifndef NG_KERNELS_CHAIN_H
#define NG_KERNELS_CHAIN_H

#include "kernel.h"
#include "widen.h"

/* Chains whose sums a tile keeps on its stack. */
enum {
    CHAIN_MAX = 8
};

static inline int32_t chain_param(const struct gemm_job *g, ng_param p)
{
    return g->rule->set[p].value;
}

static inline int64_t chain_count(const struct gemm_job *g)
{
    const int32_t rows = chain_param(g, NG_PARAM_ROWS),
                  chain = chain_param(g, NG_PARAM_CHAIN_ROWS);
    return rows && chain ? rows / chain : 1;
}

/* The s-th row of chain c is first + s * step (step 4). */
struct chain_rows {
    int64_t first, step, count;
};

static inline struct chain_rows chain_rows_of(const struct gemm_job *g, int64_t c,
                                              int64_t tile_k)
{
    const int64_t n = chain_count(g),
                  len = n == 1 ? tile_k : chain_param(g, NG_PARAM_CHAIN_ROWS);
    if (n == 1)
        return (struct chain_rows){ 0, 1, tile_k };
    switch ((ng_chain_map)chain_param(g, NG_PARAM_CHAIN_MAP)) {
    case NG_CHAIN_BLOCK: return (struct chain_rows){ c * len, 1, len };
    case NG_CHAIN_PARITY: return (struct chain_rows){ c / 2 * 2 * len + c % 2, 2, len };
    case NG_CHAIN_INTERLEAVE: return (struct chain_rows){ c, n, len };
    }
    return (struct chain_rows){ 0, 1, 0 };
}

/* How many of a chain's rows lie below the used depth of a tile. */
static inline int64_t chain_used(struct chain_rows r, int64_t depth)
{
    if (depth <= r.first)
        return 0;
    const int64_t n = (depth - r.first + r.step - 1) / r.step;
    return n < r.count ? n : r.count;
}

static inline int chain_log2_ceil(int64_t n)
{
    int bits = 0;
    while (((int64_t)1 << bits) < n)
        bits++;
    return bits;
}

static inline bool chain_takes_format(const struct gemm_operand *o)
{
    const ng_kind k = o->spec->kind;
    return k != NG_KIND_SCALE && k != NG_KIND_UFN && o->spec->format != NG_TF32 && !o->scale &&
           !o->sparse;
}

/*
 * An FMA is R(acc + x) where FP32's range is not left. All partial sums are multiples of the
 * least product unit, 2^(lsb_a + lsb_b), and below 2^(msb_a + msb_b + 2) * K in magnitude. So
 *   unit >= 2^-149 and bound <= 2^127   makes wide and f32 the same, without -0 from underflow;
 *   unit >= 2^-126                      rules out subnormal sums too, so f32_ftz is the same.
 */
static inline bool chain_stays_in_range(const struct gemm_job *g)
{
    const int unit = g->a.lsb_min + g->b.lsb_min;
    const int bound = g->a.msb_max + g->b.msb_max + 2 + chain_log2_ceil(g->k);
    const bool ftz = chain_param(g, NG_PARAM_ACC_RANGE) == NG_RANGE_F32_FTZ;
    return g->scanned && g->a.finite && g->b.finite && bound <= 127 &&
           unit >= (ftz ? -126 : -149);
}

static inline bool chain_accepts(const struct gemm_job *g)
{
    return chain_param(g, NG_PARAM_FAMILY) == NG_FAMILY_ARRAY &&
           chain_param(g, NG_PARAM_LANES) == 1 && chain_param(g, NG_PARAM_PIECES) == 1 &&
           chain_param(g, NG_PARAM_ACC_BITS) == 24 &&
           chain_param(g, NG_PARAM_ACC_ROUND) == NG_ROUND_TIES_TO_EVEN &&
           chain_param(g, NG_PARAM_PSUM_ADD) == NG_ROUND_TIES_TO_EVEN &&
           chain_count(g) <= CHAIN_MAX && g->acc == NG_F32 && !g->op->fp4_map &&
           !g->op->out_scale && g->d.spec->format == NG_F32 &&
           g->op->out.overflow == NG_OVERFLOW_INF &&
           (!g->c.data || g->c.spec->format == NG_F32) && chain_takes_format(&g->a) &&
           chain_takes_format(&g->b) && chain_stays_in_range(g);
}

/* ---- Prepared operands: A widened row by row, then B in panels [K][nr], both to FP32. ---- */

static inline size_t chain_prepared_bytes(const struct gemm_job *g, int64_t nr)
{
    const int64_t panels = (g->n + nr - 1) / nr;
    return (size_t)((g->m + panels * nr) * g->k) * sizeof(uint32_t);
}

static inline uint32_t chain_widened(const struct gemm_operand *o, int64_t line, int64_t k)
{
    return widen(o->spec, load_code(o->data, o->spec->store_bits,
                                    o->offset + line * o->line + k * o->k));
}

/* Columns past N are +0: their lanes are computed and never stored. */
static inline void chain_prepare(const struct gemm_job *g, void *prepared, int64_t nr)
{
    uint32_t *a = prepared, *b = a + g->m * g->k;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t k = 0; k < g->k; k++)
            *a++ = chain_widened(&g->a, i, k);
    for (int64_t j0 = 0; j0 < g->n; j0 += nr)
        for (int64_t k = 0; k < g->k; k++)
            for (int64_t j = j0; j < j0 + nr; j++)
                *b++ = j < g->n ? chain_widened(&g->b, j, k) : 0;
}

/* ---- Rows of C and D, any strides. ---- */

static inline void chain_load_row(const struct gemm_matrix *c, int64_t i, int64_t j,
                                  int64_t cols, float *line)
{
    for (int64_t q = 0; q < cols; q++)
        line[q] = as_float(load_code(c->data, 32, c->offset + i * c->row + (j + q) * c->col));
}

static inline void chain_store_row(const struct gemm_matrix *d, int64_t i, int64_t j,
                                   int64_t cols, const float *line)
{
    unsigned char *p = d->data;
    for (int64_t q = 0; q < cols; q++)
        memcpy(p + 4 * (d->offset + i * d->row + (j + q) * d->col), &line[q], sizeof *line);
}

#endif
