/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of family `fused` share (docs/numerics.md 4.2): the steps of a tile, C,
 * results that come after it, promotion. Behind an ISA's ints.h, MR and NV.
 */
#ifndef NG_KERNELS_ALIGN_TILE_H
#define NG_KERNELS_ALIGN_TILE_H

#include "align_exact.h"
#include "order.h"
#include "packing.h"
#include "psum.h"

#define ALIGN_UNROLL ORDER_UNROLL

enum {
    ALIGN_LSB_MIN = -100, /* of products, and of C */
    ALIGN_MSB_MAX = 120,  /* sums of products, and C, are below 2^this */
    ALIGN_SCRATCH = 2 * MR * NR * (int)sizeof(float)
};

/* ---- Which jobs. ---- */

static inline const char *align_refuses_operand(const struct gemm_operand *o)
{
    if (o->spec->kind == NG_KIND_SCALE || o->spec->kind == NG_KIND_UFN ||
        o->spec->kind == NG_KIND_INT)
        return "an operand that is not a floating-point number";
    return o->spec->man_bits > 10 ? "products that FP32 does not hold" : NULL;
}

/* Of operands: products that FP32 holds, read as packing.h reads them. */
static inline const char *align_refuses_operands(const struct gemm_job *g)
{
    const ng_round tf32 = (ng_round)rule_param(g, NG_PARAM_TF32_IN);
    const bool has_tf32 = g->a.spec->format == NG_TF32 || g->b.spec->format == NG_TF32;
    if (g->a.scale && g->mode != NG_MODE_MX)
        return "block scales other than e8m0";
    if (has_tf32 && tf32 != NG_ROUND_TIES_TO_EVEN && tf32 != NG_ROUND_TOWARD_ZERO)
        return "tf32_in other than rne or rtz";
    const char *why = align_refuses_operand(&g->a);
    return why ? why : align_refuses_operand(&g->b);
}

/* What all kernels of aligned terms ask for. */
static inline const char *align_refuses_terms(const struct gemm_job *g)
{
    if (!rule_fused(g))
        return "family array";
    if (rule_param(g, NG_PARAM_SUM) != NG_SUM_ALIGN)
        return "sums other than of aligned terms";
    if (rule_param(g, NG_PARAM_ZERO_EXP) != NG_ZERO_SKIP)
        return "zeros that have exponents";
    if (rule_param(g, NG_PARAM_FLUSH_IN) != NG_FLUSH_NONE ||
        rule_param(g, NG_PARAM_FLUSH_OUT) != NG_FLUSH_NONE)
        return "subnormals that are flushed";
    if (rule_sparse(g) && !(g->a.sparse ? &g->a : &g->b)->tags_ascend)
        return "sparse tags that repeat or descend inside a group";
    return g->fp4 ? "an FP4 table" : NULL;
}

/* And those where C is a term or comes after them. */
static inline const char *align_refuses(const struct gemm_job *g)
{
    const char *why = align_refuses_terms(g);
    if (why)
        return why;
    if (rule_param(g, NG_PARAM_C_PLACE) == NG_C_LATE)
        return "C added late, below the products' sum";
    if (rule_param(g, NG_PARAM_ALIGN_ROUND) != NG_ROUND_TOWARD_ZERO)
        return "align_round other than rtz";
    if (g->acc == NG_F32 && (rule_param(g, NG_PARAM_OUT_ROUND) != NG_ROUND_TOWARD_ZERO ||
                             rule_param(g, NG_PARAM_OUT_BITS) > 23))
        return "an FP32 result that is not cut";
    if (g->acc == NG_F16 && rule_param(g, NG_PARAM_OUT_F16) != NG_F16_ACC_RNE)
        return "an f16 result that is not to nearest even";
    return NULL;
}

/* ---- A tile under way. ---- */

struct align {
    const struct gemm_job *g;
    const struct gemm_walk *w;
    struct align_rule rule;
    struct rule_steps of;
    const unsigned char *a, *b; /* panels */
    size_t more_a, more_b;      /* from a panel to what stands behind its elements */
    int64_t positions;          /* of a step */
    int32_t rows;
    ivec e_min, kept; /* the kernel's: largest exponents begin there; bits of a result */
    ivec scale_from, unit_from, zero; /* gemm_align.h: align_begin() */
};

static inline const float *align_elements(const unsigned char *panel)
{
    return (const float *)(const void *)(panel + sizeof(struct gemm_panel));
}

static inline struct align align_of(const struct gemm_job *g, const struct gemm_walk *w,
                                    const struct gemm_tile *t)
{
    return (struct align){ .g = g,
                           .w = w,
                           .rule = align_rule_of(g),
                           .of = rule_steps(g),
                           .a = t->a,
                           .b = t->b,
                           .positions = w->step,
                           .rows = t->rows };
}

/* Steps `n` of them from position `at` on; `begun`: `acc` holds what the first one adds to. */
typedef void align_runner(const struct align *x, int64_t at, int64_t n, bool begun, float *acc);

/* The step at a position of one element, in integers: from the accumulator's pattern to it. */
typedef uint32_t align_element(const struct align *x, int64_t at, int row, int column,
                               uint32_t c);

static void align_by_integers(const struct align *x, align_element *one, int64_t at, int64_t n,
                              bool begun, float *acc)
{
    for (int64_t s = 0; s < n; s++, at += x->positions)
        for (int32_t r = 0; r < x->rows; r++)
            for (int l = 0; l < NR; l++) {
                float *c = acc + r * NR + l;
                *c = as_float(one(x, at, r, l, begun || s > 0 ? as_pattern(*c) : 0));
            }
}

/* Who computes a tile's steps: `run`, or where that is NULL integers. */
struct align_way {
    align_runner *run;
    align_element *one;
};

static void align_run_steps(const struct align *x, const struct align_way *way, int64_t at,
                            int64_t n, bool begun, float *acc)
{
    if (way->run)
        way->run(x, at, n, begun, acc);
    else
        align_by_integers(x, way->one, at, n, begun, acc);
}

/* To f16, to nearest even, of FP32 numbers that are exact or rounded to odd. */
PACK_INLINE vec align_halves(vec x, ivec zero)
{
    const ivec sign = iv_and(iv_bits(x), iv_all(0x80000000u)),
               mag = iv_and(iv_bits(x), iv_all(0x7FFFFFFFu)),
               field = iv_and(mag, iv_all(0x7F800000u)), least = iv_all(113u << 23);
    /* 2^23 of the last place that is kept: the addition rounds there */
    const vec big = iv_float(iv_add(iv_max(field, least), iv_all(13u << 23)));
    const ivec y = iv_bits(vec_sub(vec_add(iv_float(mag), big), big));
    const ivec out = iv_pick(iv_gt(y, iv_all(0x477FFFFFu)), iv_all(WIDEN_INF), y),
               kept = iv_pick(iv_gt(iv_all(WIDEN_INF), mag), out, mag);
    /* zero: all ones but the sign where a zero has none */
    const ivec signs = iv_pick(iv_eq(kept, iv_all(0)), iv_and(sign, zero), sign);
    return iv_float(iv_or(kept, signs));
}

/* Is each of n accumulators 0, or a number whose exponent field is from `low` to `high`? */
static inline bool align_takes(const float *psum, int64_t n, uint32_t low, uint32_t high)
{
    uint32_t wrong = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = as_pattern(psum[i]), field = u >> 23 & 0xFFu;
        wrong |= (uint32_t)((u << 1) != 0) & (uint32_t)(field - low > high - low);
    }
    return !wrong;
}

/* to = R(to + by), or `by` where nothing was there (24, 25). */
static void align_add(const struct align *x, bool begun, bool f16, const float *by, float *to)
{
    for (int64_t i = 0; i < (int64_t)x->rows * NR; i += VL) {
        vec y = vec_load(by + i);
        if (begun)
            y = vec_add(vec_load(to + i), y);
        vec_store(to + i, begun && f16 ? align_halves(y, iv_all(UINT32_MAX)) : y);
    }
}

/* The steps of one tile of the walk, of several instructions where they are promoted. */
static void align_tile(const struct align *x, const struct align_way *way, int64_t t,
                       bool begun, float *psum, float *scratch)
{
    const struct gemm_walk *const w = x->w;
    const bool promote = rule_param(x->g, NG_PARAM_PROMOTE) > 0;
    const int64_t steps = w->run[t] / x->positions;
    float *const acc = promote ? scratch : psum, *const one = scratch + MR * NR;
    bool some = !promote && begun;
    for (int64_t s = 0; s < steps; s += x->of.steps) {
        const int64_t n = steps - s < x->of.steps ? steps - s : x->of.steps,
                      at = w->start[t] + s * x->positions;
        align_run_steps(x, way, at, n, !x->of.after && some, x->of.after ? one : acc);
        if (x->of.after)
            align_add(x, some, x->rule.f16, one, acc);
        some = true;
    }
    if (promote)
        align_add(x, begun, false, acc, psum);
}

/* Is psum a term of the steps, from one to the next? */
static bool align_carries(const struct align *x)
{
    return !x->of.after && !rule_param(x->g, NG_PARAM_PROMOTE);
}

/* The tile's steps. */
static void align_all(const struct align *x, const struct gemm_tile *t,
                      const struct align_way *way)
{
    const int64_t *const start = x->w->start;
    const bool carries = align_carries(x);
    if (carries && t->from < t->to)
        align_run_steps(x, way, start[t->from], (start[t->to] - start[t->from]) / x->positions,
                        t->begun, t->psum);
    for (int64_t u = t->from; u < t->to && !carries; u++)
        align_tile(x, way, u, t->begun || u > t->from, t->psum, t->scratch);
}

/* The same: `fast` in vectors by `run`, where psum is what README.md, "Why FP32 operations
 * align", asks of a tile that goes on from it; else by `one`. */
static inline gemm_way align_steps(const struct align *x, const struct gemm_tile *t, bool fast,
                                   align_runner *run, align_element *one)
{
    fast = fast && (!align_carries(x) || !t->begun ||
                    align_takes(t->psum, (int64_t)t->rows * NR, 127 + ALIGN_LSB_MIN,
                                127 + ALIGN_MSB_MAX));
    if (!fast && t->sparing)
        return GEMM_LEFT;
    const struct align_way way = { fast ? run : NULL, one };
    align_all(x, t, &way);
    return fast ? GEMM_FAST : GEMM_EXACT;
}

/* ---- B is kept as it is multiplied. ---- */

static size_t slim_bytes(const struct gemm_job *g, const struct gemm_walk *w)
{
    (void)g;
    (void)w;
    return 0;
}

#define ALIGN_KERNEL(kernel)                                                                   \
    extern const struct ng_gemm_kernel ng_##kernel;                                            \
    const struct ng_gemm_kernel ng_##kernel = { .name = #kernel,                               \
                                                .mr = MR,                                      \
                                                .nr = NR,                                      \
                                                .scratch_bytes = ALIGN_SCRATCH,                \
                                                .refuses = refuses,                            \
                                                .panel_bytes = panel_bytes,                    \
                                                .pack = pack,                                  \
                                                .tile = tile,                                  \
                                                .write = write_psum,                           \
                                                .slim_bytes = slim_bytes }

#endif
