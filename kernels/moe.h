/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture of experts: routing of tokens, what happens behind an expert's multiplies, combine;
 * their backward is in moe_back.h. Numerics: docs/numerics.md, section 11.10, whose items are
 * named here. A file includes its ISA's integer vectors and SLEEF functions, then this.
 *
 * Lanes are tokens (routing: moe_route.h) or columns, never terms of a sum: those run in the
 * page's order. NaN flow through as they come and become the canonical one where a number is
 * stored. f16 is refused.
 */
#ifndef NG_KERNELS_MOE_H
#define NG_KERNELS_MOE_H

#include "elementary.h"
#include "tails.h"

#define MOE_INLINE static inline __attribute__((always_inline))

MOE_INLINE vec moe_get(const uint32_t *p, int64_t n)
{
    return iv_float(tail_load(p, n));
}

MOE_INLINE void moe_put(uint32_t *p, int64_t n, ivec x)
{
    tail_store(p, n, x);
}

/* A stored number: NaN canonical, rounded to bf16 if that is the format. */
MOE_INLINE vec moe_to(ng_format f, vec v)
{
    const ivec u = iv_bits(function_quiet(v));
    if (f != NG_BF16)
        return iv_float(u);
    const ivec half = iv_add(iv_and(iv_srl_by(u, 16), iv_all(1)), iv_all(0x7FFF));
    return iv_float(iv_and(iv_add(u, half), iv_all(0xFFFF0000u)));
}

MOE_INLINE vec moe_all(uint32_t pattern)
{
    return iv_float(iv_all(pattern));
}

/* ---- Functions of arrays, one copy of each. ---- */

MOE_INLINE void moe_function(const ng_function f, const ng_function_choice *c,
                             const uint32_t *x, int64_t n, uint32_t *y)
{
    switch (c->kind) {
    case NG_FUNCTION_CR: function_array(NG_FUNCTION_CR, f, x, n, y); return;
    case NG_FUNCTION_SLEEF: function_array(NG_FUNCTION_SLEEF, f, x, n, y); return;
    case NG_FUNCTION_TABLE:
        for (int64_t i = 0; i < n; i++)
            y[i] = (uint32_t)c->table[function_entry(x[i])] << 16;
        return;
    }
}

static __attribute__((noinline)) void moe_exp(const ng_function_choice *c, const uint32_t *x,
                                              int64_t n, uint32_t *y)
{
    moe_function(NG_FN_EXP, c, x, n, y);
}

static __attribute__((noinline)) void moe_sigmoid(const ng_function_choice *c,
                                                  const uint32_t *x, int64_t n, uint32_t *y)
{
    moe_function(NG_FN_SIGMOID, c, x, n, y);
}

static __attribute__((noinline)) void moe_tanh(const ng_function_choice *c, const uint32_t *x,
                                               int64_t n, uint32_t *y)
{
    moe_function(NG_FN_TANH, c, x, n, y);
}

static bool moe_is_f16(ng_format f)
{
    return f == NG_F16;
}

/* ---- Behind a multiply, activation: items 100 to 105. ---- */

static const char *moe_settle_refuses(const struct settle_job *j)
{
    return moe_is_f16(j->hidden) || moe_is_f16(j->biased) ? "values in f16" : NULL;
}

static void moe_settle(const struct settle_job *j, uint32_t row_scale, int64_t first, int64_t n,
                       const uint32_t *psum, uint32_t *out)
{
    const vec row = moe_all(row_scale);
    for (int64_t i = 0; i < n; i += VL) {
        vec v = moe_get(psum + i, n - i);
        if (j->scale)
            v = vec_mul(v, moe_get(j->scale + first + i, n - i));
        if (j->row_scaled)
            v = vec_mul(v, row);
        v = moe_to(j->hidden, v);
        if (j->bias)
            v = moe_to(j->biased, vec_add(v, moe_get(j->bias + first + i, n - i)));
        moe_put(out + i, n - i, iv_bits(v));
    }
}

/* Item 101, blocks of K: n columns from i on, n <= VL. */
MOE_INLINE void moe_block_columns(const struct block_tile *t, int64_t i, int64_t n,
                                  const int in_turn, const int fused)
{
    const uint32_t *psum = t->psum + i, *row_scale = t->row_scale;
    uint32_t *sum = t->sum + i;
    const vec s = moe_get(t->scale + i, n);
    for (int64_t r = 0; r < t->rows; r++) {
        const vec row = moe_all(*row_scale), y = moe_get(sum, n);
        vec v = moe_get(psum, n), by = s;
        if (in_turn)
            v = vec_mul(v, row);
        else
            by = vec_mul(row, s);
        v = fused ? vec_fma(v, by, y) : vec_add(y, vec_mul(v, by));
        moe_put(sum, n, iv_bits(function_quiet(v)));
        psum += t->psum_step;
        row_scale += t->row_scale_step;
        sum += t->sum_step;
    }
}

/* A loop for each way of rounding, and its end apart. */
MOE_INLINE void moe_block_as(const struct block_tile *tile, const int in_turn, const int fused)
{
    const struct block_tile t = *tile; /* no store can change it */
    int64_t i = 0;
    for (; i + VL <= t.columns; i += VL)
        moe_block_columns(&t, i, VL, in_turn, fused);
    if (i < t.columns)
        moe_block_columns(&t, i, t.columns - i, in_turn, fused);
}

static void moe_block(const ng_moe_block_op *op, const struct block_tile *t)
{
    const bool in_turn = op->order == NG_MOE_BLOCK_IN_TURN;
    if (in_turn && op->fused)
        moe_block_as(t, 1, 1);
    else if (in_turn)
        moe_block_as(t, 1, 0);
    else if (op->fused)
        moe_block_as(t, 0, 1);
    else
        moe_block_as(t, 0, 0);
}

/* The first clamp of gate, and the argument of the activation's function. */
MOE_INLINE vec moe_gate(const ng_moe_act_op *op, vec g, vec limit)
{
    return op->act >= NG_MOE_GPT_OSS ? vec_min(limit, g) : g; /* of a NaN, and of ±0: g */
}

MOE_INLINE vec moe_argument(const ng_moe_act_op *op, vec g, vec alpha)
{
    if (op->act == NG_MOE_SWIGLU)
        return g;
    if (op->act != NG_MOE_GELU)
        return vec_mul(alpha, g);
    const vec cube = vec_mul(vec_mul(g, g), g);
    return vec_mul(moe_all(0x3F4C422Au), vec_add(g, vec_mul(moe_all(0x3D372713u), cube)));
}

/* From a function's value to the gate's factor. */
MOE_INLINE vec moe_factor(const ng_moe_act_op *op, vec g, vec f)
{
    if (op->act == NG_MOE_GELU)
        return vec_mul(vec_mul(g, moe_all(0x3F000000u)), vec_add(moe_all(0x3F800000u), f));
    return vec_mul(g, f);
}

MOE_INLINE vec moe_up(const ng_moe_act_op *op, vec u, vec limit)
{
    const vec one = moe_all(0x3F800000u), minus = vec_sub(moe_all(0x80000000u), limit);
    if (op->act == NG_MOE_GPT_OSS)
        return vec_add(vec_max(minus, vec_min(limit, u)), one);
    if (op->act == NG_MOE_GPT_OSS_FOLDED)
        return vec_max(vec_add(one, minus), vec_min(vec_add(one, limit), u));
    return u;
}

/* At most NG_MOE_ACT_MOST columns. */
static void moe_act(const ng_moe_act_op *op, int64_t n, const uint32_t *gate,
                    const uint32_t *up, const uint32_t *affinity, uint32_t *dst)
{
    uint32_t f[NG_MOE_ACT_MOST];
    const vec limit = moe_all(op->limit ? op->limit : NG_MOE_LIMIT),
              alpha = moe_all(op->alpha ? op->alpha : NG_MOE_ALPHA);
    for (int64_t i = 0; i < n; i += VL) {
        const vec g = moe_gate(op, moe_get(gate + i, n - i), limit);
        moe_put(f + i, n - i, iv_bits(moe_argument(op, g, alpha)));
    }
    if (op->act == NG_MOE_GELU)
        moe_tanh(&op->tanh, f, n, f);
    else
        moe_sigmoid(&op->sigmoid, f, n, f);
    for (int64_t i = 0; i < n; i += VL) {
        const vec g = moe_gate(op, moe_get(gate + i, n - i), limit);
        vec v = moe_factor(op, g, moe_get(f + i, n - i));
        if (up)
            v = vec_mul(v, moe_up(op, moe_get(up + i, n - i), limit));
        if (affinity)
            v = vec_mul(v, moe_all(*affinity));
        moe_put(dst + i, n - i, iv_bits(function_quiet(v)));
    }
}

/* ---- Combine: items 106 and 107. ---- */

static const char *moe_combine_refuses(const ng_moe_combine_op *op)
{
    return moe_is_f16(op->product) || moe_is_f16(op->sum) ? "values in f16" : NULL;
}

static void moe_combine(const ng_moe_combine_op *op, const struct combine_row *r)
{
    for (int64_t i = 0; i < r->columns; i += VL) {
        const int64_t n = r->columns - i;
        vec y = r->begin ? function_quiet(moe_get(r->begin + i, n)) : moe_all(0);
        for (int64_t e = 0; e < r->entries; e++) {
            const vec o = moe_get(r->o[e] + i, n);
            if (r->weight && op->fused)
                y = vec_fma(moe_all(r->weight[e]), o, y);
            else if (r->weight)
                y = vec_add(y, moe_to(op->product, vec_mul(moe_all(r->weight[e]), o)));
            else
                y = vec_add(y, o);
            y = moe_to(op->sum, y);
        }
        moe_put(r->y + i, n, iv_bits(y));
    }
}

#include "moe_route.h"

#include "moe_back.h"

#include "layer.h"

/* fp8: of the ISA's cast.c; see fp8.h. */
#define MOE_KERNEL(isa, fp8_of_cast)                                                           \
    {                                                                                          \
        .name = "moe__" isa, .route_refuses = moe_route_refuses,                               \
        .route_words = moe_route_words, .route = moe_route,                                    \
        .settle_refuses = moe_settle_refuses, .settle = moe_settle, .act = moe_act,            \
        .block = moe_block, .fp8 = fp8_of_cast, .combine_refuses = moe_combine_refuses,        \
        .combine = moe_combine, .route_back = moe_route_back, .act_back = moe_act_back,        \
        .dots = moe_dots, .norm = layer_norm, .rope_refuses = layer_rope_refuses,              \
        .rope = layer_rope                                                                     \
    }

#endif
