/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Family `fused` with `sum = pairwise` (docs/numerics.md 11.3 item 28): f16 and bf16 of AMD's
 * CDNA1 and CDNA2. An ISA's gemm_pairwise.c includes its ints.h and defines MR and NV.
 *
 * Lanes are columns. FP32 holds each product, so that a sum of two is a multiplication and a
 * multiply-add, and a step of four
 *
 *     acc + ((a0 b0 + a1 b1) + (a2 b2 + a3 b3))
 *
 * four of these and two additions. NaN and Inf are as IEEE 754 has them. Where a product would
 * not be an FP32 number, or a result could be one that is flushed, elements go one by one.
 *
 * A panel is packing.h's, its elements FP32, those that the rule flushes being zeros.
 */
#ifndef NG_KERNELS_GEMM_PAIRWISE_H
#define NG_KERNELS_GEMM_PAIRWISE_H

#include "align_tile.h"

enum {
    PAIRWISE_NV = 2,         /* vectors of columns at once: their sums stay in registers */
    PAIRWISE_LSB = -149,     /* a product is a multiple of 2^this, */
    PAIRWISE_LSB_MIN = -126, /* or of this: then so are all sums, and none is subnormal */
    PAIRWISE_MSB_MAX = 128   /* and below 2^this */
};

/* ---- Which jobs. ---- */

static const char *refuses(const struct gemm_job *g)
{
    const int32_t group = rule_param(g, NG_PARAM_GROUP);
    if (!rule_fused(g))
        return "family array";
    if (rule_param(g, NG_PARAM_SUM) != NG_SUM_PAIRWISE)
        return "sums other than of rounded products";
    if (rule_param(g, NG_PARAM_EXACT_GROUP) != 1 || (group != 2 && group != 4))
        return "steps of other than 2 or 4 products";
    if (rule_param(g, NG_PARAM_C_PLACE) == NG_C_AFTER)
        return "C added after an instruction's steps";
    if (g->acc != NG_F32)
        return "an accumulator other than f32";
    if (rule_sparse(g))
        return "a sparse operand";
    if (g->a.scale)
        return "block scales";
    if (g->fp4)
        return "an FP4 table";
    return align_refuses_operands(g);
}

/* Is what is subnormal a zero, as an operand or as a result? */
static inline bool pairwise_flushes(const struct gemm_job *g)
{
    return rule_param(g, NG_PARAM_FLUSH_IN) != NG_FLUSH_NONE ||
           rule_param(g, NG_PARAM_FLUSH_OUT) != NG_FLUSH_NONE;
}

/* ---- Panels. ---- */

static size_t panel_bytes(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side)
{
    return panel_parts(g, w, side == GEMM_A ? MR : NR, false).bytes;
}

/* Subnormals of the operand's format become zeros, and have no say in the least bit. */
static void pairwise_flush(const struct gemm_job *g, const struct gemm_operand *o, uint32_t *v,
                           int64_t n, struct gemm_panel *head)
{
    const int32_t flush = rule_param(g, NG_PARAM_FLUSH_IN);
    const uint32_t normal = (uint32_t)(1 - o->spec->bias + 127) << 23,
                   sign = flush == NG_FLUSH_SIGNED ? 0x80000000u : 0;
    uint32_t least = UINT32_MAX;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t mag = v[i] & 0x7FFFFFFFu, tiny = mag - 1; /* of 0 the largest */
        v[i] = tiny < normal - 1 ? v[i] & sign : v[i];
        least = tiny >= normal - 1 && tiny < least ? tiny : least;
    }
    head->lsb_min = least < WIDEN_INF - 1
                        ? (int)((least + 1) >> 23) - 127 - (int)o->spec->man_bits
                        : PANEL_NONE;
}

static void pack(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                 int64_t line, int32_t lines, void *panel)
{
    const bool is_a = side == GEMM_A;
    const int width = is_a ? MR : NR;
    uint32_t *v = (uint32_t *)(void *)((unsigned char *)panel + sizeof(struct gemm_panel));
    if (is_a)
        pack_panel(g, w, side, line, lines, MR, false, panel);
    else
        pack_panel(g, w, side, line, lines, NR, false, panel);
    /* an absent product, of the last step, is +0 here (28) */
    for (int64_t p = w->depth; is_a && p > 0 && w->k[p - 1] < 0; p--)
        memset(v + (p - 1) * width, 0, (size_t)width * sizeof *v);
    if (rule_param(g, NG_PARAM_FLUSH_IN) != NG_FLUSH_NONE)
        pairwise_flush(g, is_a ? &g->a : &g->b, v, w->depth * width, panel);
}

/* ---- Steps. ---- */

/* `rows` rows and PAIRWISE_NV vectors of columns, `terms` products a step: constants. */
PACK_INLINE void pairwise_rows(const int rows, const int terms, const float *a, const float *b,
                               int64_t n, bool begun, float *acc)
{
    const vec nothing = iv_float(iv_all(0x80000000u)); /* -0, which changes no sum */
    vec sum[MR][PAIRWISE_NV];
    ALIGN_UNROLL
    for (int r = 0; r < rows; r++)
        ALIGN_UNROLL
    for (int q = 0; q < PAIRWISE_NV; q++)
        sum[r][q] = begun ? vec_load(acc + r * NR + q * VL) : nothing;
    for (int64_t s = 0; s < n; s++, a += terms * MR, b += terms * NR)
        ALIGN_UNROLL
    for (int q = 0; q < PAIRWISE_NV; q++) {
        vec column[4];
        ALIGN_UNROLL
        for (int i = 0; i < terms; i++)
            column[i] = vec_load(b + i * NR + q * VL);
        ALIGN_UNROLL
        for (int r = 0; r < rows; r++) {
            vec pair[2];
            ALIGN_UNROLL
            for (int i = 0; i < terms; i += 2)
                pair[i / 2] = vec_fma(vec_all(a + (i + 1) * MR + r), column[i + 1],
                                      vec_mul(vec_all(a + i * MR + r), column[i]));
            sum[r][q] = vec_add(sum[r][q], terms == 4 ? vec_add(pair[0], pair[1]) : pair[0]);
        }
    }
    ALIGN_UNROLL
    for (int r = 0; r < rows; r++)
        ALIGN_UNROLL
    for (int q = 0; q < PAIRWISE_NV; q++)
        vec_store(acc + r * NR + q * VL, sum[r][q]);
}

#define PAIRWISE_ROWS(name, rows, terms)                                                       \
    static __attribute__((noinline)) void pairwise_##name##_##terms(                           \
        const float *a, const float *b, int64_t n, bool begun, float *acc)                     \
    {                                                                                          \
        pairwise_rows(rows, terms, a, b, n, begun, acc);                                       \
    }
PAIRWISE_ROWS(all, MR, 2)
PAIRWISE_ROWS(all, MR, 4)
PAIRWISE_ROWS(row, 1, 2)
PAIRWISE_ROWS(row, 1, 4)

static void pairwise_run(const struct align *x, int64_t at, int64_t n, bool begun, float *acc)
{
    const float *a = align_elements(x->a) + at * MR, *b = align_elements(x->b) + at * NR;
    const bool two = x->positions == 2;
    for (int l = 0; l < NR; l += PAIRWISE_NV * VL) {
        if (x->rows == MR)
            (two ? pairwise_all_2 : pairwise_all_4)(a, b + l, n, begun, acc + l);
        for (int32_t r = 0; r < x->rows && x->rows < MR; r++)
            (two ? pairwise_row_2 : pairwise_row_4)(a + r, b + l, n, begun, acc + r * NR + l);
    }
}

/* ---- One by one. ---- */

static inline float pairwise_flushed(const struct gemm_job *g, ng_param when, float x)
{
    const int32_t flush = rule_param(g, when);
    const uint32_t u = as_pattern(x);
    if (flush == NG_FLUSH_NONE || u & 0x7F800000u || !(u << 1))
        return x;
    return as_float(flush == NG_FLUSH_SIGNED ? u & 0x80000000u : 0);
}

static float pairwise_added(const struct gemm_job *g, float x, float y)
{
    return pairwise_flushed(g, NG_PARAM_FLUSH_OUT, x + y);
}

/* FP64 holds a product, and its conversion to FP32 is the one rounding. */
static float pairwise_product(const struct gemm_job *g, float a, float b)
{
    return pairwise_flushed(g, NG_PARAM_FLUSH_OUT, (float)((double)a * (double)b));
}

static void pairwise_one_by_one(const struct align *x, int64_t at, int64_t n, bool begun,
                                float *acc)
{
    const struct gemm_job *g = x->g;
    const int terms = (int)x->positions;
    const float *a = align_elements(x->a) + at * MR, *b = align_elements(x->b) + at * NR;
    for (int64_t s = 0; s < n; s++, a += terms * MR, b += terms * NR)
        for (int32_t r = 0; r < x->rows; r++)
            for (int l = 0; l < NR; l++) {
                float pair[2] = { 0 }, *sum = acc + r * NR + l;
                for (int i = 0; i < terms; i += 2)
                    pair[i / 2] = pairwise_added(
                        g, pairwise_product(g, a[i * MR + r], b[i * NR + l]),
                        pairwise_product(g, a[(i + 1) * MR + r], b[(i + 1) * NR + l]));
                const float all = terms == 4 ? pairwise_added(g, pair[0], pair[1]) : pair[0];
                *sum = begun || s > 0 ? pairwise_added(g, *sum, all) : all;
            }
}

/* ---- A tile. ---- */

static bool pairwise_fits(const struct gemm_job *g, const struct gemm_panel *a,
                          const struct gemm_panel *b)
{
    const int least = pairwise_flushes(g) ? PAIRWISE_LSB_MIN : PAIRWISE_LSB;
    return !a->unfolded && !b->unfolded && a->lsb_min + b->lsb_min >= least &&
           a->msb_max + b->msb_max + 2 <= PAIRWISE_MSB_MAX;
}

/* C is flushed before it is added (28). */
static void pairwise_flush_c(const struct gemm_job *g, int64_t n, float *psum)
{
    for (int64_t i = 0; i < n; i++)
        psum[i] = pairwise_flushed(g, NG_PARAM_FLUSH_IN, psum[i]);
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    const struct align x = align_of(g, w, t);
    const int64_t n = (int64_t)t->rows * NR;
    if (t->begun && t->from == 0)
        pairwise_flush_c(g, n, t->psum);
    /* of C no bit is below 2^PAIRWISE_LSB_MIN; NaN and Inf may be */
    const bool fast =
        pairwise_fits(g, t->a, t->b) && (!pairwise_flushes(g) || !t->begun ||
                                         align_takes(t->psum, n, 150 + PAIRWISE_LSB_MIN, 255));
    if (!fast && t->sparing)
        return GEMM_LEFT;
    const struct align_way way = { .run = fast ? pairwise_run : pairwise_one_by_one };
    align_all(&x, t, &way);
    return fast ? GEMM_FAST : GEMM_EXACT;
}

#endif
