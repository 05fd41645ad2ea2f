/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture of experts: one token's routing, one element of an expert's activation, of the
 * combine. Numerics: docs/numerics.md, section 11.10, whose items are named here. Numbers are
 * FP32 patterns.
 */
#include "ref.h"

#define ONE       0x3F800000u
#define HALF      0x3F000000u
#define MINUS_INF 0xFF800000u
#define SIGN      0x80000000u

static uint32_t add(uint32_t a, uint32_t b)
{
    return ng_num_f32_add(a, b);
}

static uint32_t mul(uint32_t a, uint32_t b)
{
    return ng_num_f32_mul(a, b);
}

uint32_t ng_ref_to_format(ng_format format, uint32_t x)
{
    const ng_cast cast = { .round = NG_ROUND_TIES_TO_EVEN };
    const ng_format_spec *f = ng_format_info(format ? format : NG_F32);
    uint32_t code = 0;
    (void)ng_num_encode(f, &cast, ng_num_f32(x), 0, &code); /* f32, bf16, f16: takes all */
    return ng_num_f32_code(ng_num_decode(f, code));
}

/* ---- Order: item 92. ---- */

/* Grows with the value: every NaN highest, both zeros alike. */
static int64_t height(uint32_t x)
{
    const int64_t mag = x & ~SIGN, inf = 0x7F800000;
    if (mag > inf)
        return inf + 1;
    return x & SIGN ? -mag : mag;
}

static bool comes_before(const uint32_t *v, int32_t a, int32_t b)
{
    const int64_t ha = height(v[a]), hb = height(v[b]);
    return ha > hb || (ha == hb && a < b);
}

/* The first in the order of those that `last` comes before; of all for -1. */
static int32_t next_best(const uint32_t *v, int32_t n, int32_t last)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if ((last < 0 || comes_before(v, last, i)) && (best < 0 || comes_before(v, i, best)))
            best = i;
    return best;
}

static void top_k(const uint32_t *v, int32_t n, uint32_t k, int32_t *index)
{
    int32_t last = -1;
    for (uint32_t r = 0; r < k; r++)
        index[r] = last = next_best(v, n, last);
}

/* ---- Activation of scores: items 93 and 94. ---- */

void ng_ref_route_divide(ng_divide how, const ng_function_choice *reciprocal, int64_t n,
                         uint32_t s, uint32_t *p)
{
    const uint32_t r =
        how == NG_DIVIDE_RECIPROCAL ? ng_ref_function(NG_FN_RECIPROCAL, reciprocal, s) : 0;
    for (int64_t i = 0; i < n; i++)
        p[i] = how == NG_DIVIDE_RECIPROCAL ? mul(p[i], r) : ng_num_f32_div(p[i], s);
}

static uint32_t sum(int64_t n, const uint32_t *p)
{
    uint32_t s = p[0];
    for (int64_t i = 1; i < n; i++)
        s = add(s, p[i]);
    return s;
}

static void softmax(const ng_route_op *op, int64_t n, uint32_t *p)
{
    uint32_t max = p[0];
    for (int64_t i = 1; i < n; i++)
        if (height(p[i]) > height(max))
            max = p[i];
    if (height(max) == 0) /* of either sign: item 93 */
        max = 0;
    for (int64_t i = 0; i < n; i++)
        p[i] = ng_ref_function(NG_FN_EXP, &op->exp, add(p[i], max ^ SIGN));
    ng_ref_route_divide(op->softmax_by, &op->reciprocal, n, sum(n, p), p);
}

void ng_ref_route_scores(const ng_route_op *op, int64_t n, uint32_t *p)
{
    if (op->act == NG_ROUTE_SOFTMAX)
        softmax(op, n, p);
    else
        for (int64_t i = 0; i < n; i++)
            p[i] = ng_ref_function(NG_FN_SIGMOID, &op->sigmoid, p[i]);
    for (int64_t i = 0; i < n; i++)
        p[i] = ng_ref_to_format(op->score, p[i]);
}

/* ---- Groups: item 95. ---- */

static uint32_t group_value(const uint32_t *choice, int32_t size, uint32_t top)
{
    int32_t i = next_best(choice, size, -1);
    uint32_t s = choice[i];
    for (uint32_t r = 1; r < top; r++) {
        i = next_best(choice, size, i);
        s = add(s, choice[i]);
    }
    return s;
}

static void mask_groups(const struct route_job *j, uint32_t *choice)
{
    const ng_route_op *op = j->op;
    const int32_t groups = (int32_t)op->groups, size = j->experts / groups;
    uint32_t value[NG_ROUTE_MAX_GROUPS];
    bool kept[NG_ROUTE_MAX_GROUPS] = { false };
    for (int32_t g = 0; g < groups; g++)
        value[g] = group_value(choice + g * size, size, op->group_top ? op->group_top : 2);
    int32_t last = -1;
    for (uint32_t r = 0; r < op->top_groups; r++) {
        last = next_best(value, groups, last);
        kept[last] = true;
    }
    for (int32_t e = 0; e < j->experts; e++)
        if (!kept[e / size])
            choice[e] = op->mask == NG_GROUP_MASK_ZERO ? 0 : MINUS_INF;
}

/* ---- Weights: item 96. ---- */

uint32_t ng_ref_route_divisor(const ng_route_op *op, int64_t n, const uint32_t *weight,
                              bool *floored)
{
    const uint32_t s = sum(n, weight);
    *floored = op->eps && op->eps_how == NG_EPS_FLOOR && height(s) < height(op->eps);
    if (op->eps && op->eps_how == NG_EPS_ADD)
        return add(s, op->eps);
    return *floored ? op->eps : s;
}

void ng_ref_route_weights(const ng_route_op *op, int64_t n, uint32_t *weight)
{
    bool floored;
    if (op->normalise)
        ng_ref_route_divide(op->normalise_by, &op->reciprocal, n,
                            ng_ref_route_divisor(op, n, weight, &floored), weight);
    for (int64_t i = 0; i < n; i++)
        weight[i] = op->scale ? mul(weight[i], op->scale) : ng_ref_to_format(NG_F32, weight[i]);
}

void ng_ref_route(const struct route_job *j, const uint32_t *logit, const uint32_t *correction,
                  uint32_t *score, uint32_t *choice, int32_t *index, uint32_t *weight)
{
    const ng_route_op *op = j->op;
    for (int32_t e = 0; e < j->experts; e++)
        score[e] = logit[e];
    if (op->order != NG_ROUTE_TOPK_THEN_ACT)
        ng_ref_route_scores(op, j->experts, score);

    const bool by_score = op->order == NG_ROUTE_ACT_THEN_TOPK;
    for (int32_t e = 0; e < j->experts; e++) {
        choice[e] = by_score ? score[e] : logit[e];
        if (correction)
            choice[e] = add(choice[e], correction[e]);
        if (correction && by_score)
            choice[e] = ng_ref_to_format(op->score, choice[e]);
    }
    if (op->groups)
        mask_groups(j, choice);
    top_k(choice, j->experts, op->k, index);

    for (uint32_t r = 0; r < op->k; r++)
        weight[r] = score[index[r]];
    if (op->order == NG_ROUTE_TOPK_THEN_ACT)
        ng_ref_route_scores(op, op->k, weight);
    ng_ref_route_weights(op, op->k, weight);
}

/* ---- The expert MLP: items 100 to 103. ---- */

uint32_t ng_ref_settle(const struct settle_job *j, uint32_t psum, uint32_t row_scale, int64_t n)
{
    uint32_t v = psum;
    if (j->scale)
        v = mul(v, j->scale[n]);
    if (j->row_scaled)
        v = mul(v, row_scale);
    v = ng_ref_to_format(j->hidden, v);
    return j->bias ? ng_ref_to_format(j->biased, add(v, j->bias[n])) : v;
}

static uint32_t at_most(uint32_t x, uint32_t bound)
{
    const bool nan = (x & ~SIGN) > 0x7F800000u;
    return !nan && height(x) > height(bound) ? bound : x;
}

static uint32_t at_least(uint32_t x, uint32_t bound)
{
    return height(x) < height(bound) ? bound : x;
}

/* x * sigmoid(a * x); a = 0 stands for 1, without the multiplication. */
static uint32_t swish(const ng_moe_act_op *op, uint32_t alpha, uint32_t x)
{
    const uint32_t at = alpha ? mul(alpha, x) : x;
    return mul(x, ng_ref_function(NG_FN_SIGMOID, &op->sigmoid, at));
}

static uint32_t gelu(const ng_moe_act_op *op, uint32_t x)
{
    const uint32_t cubic = 0x3D372713u,   /* 0.044715 */
        root = 0x3F4C422Au,               /* sqrt(2 / pi) */
        cube = mul(mul(x, x), x),         /* x^3 */
        inner = add(x, mul(cubic, cube)), /* the argument over sqrt(2 / pi) */
        t = ng_ref_function(NG_FN_TANH, &op->tanh, mul(root, inner));
    return mul(mul(x, HALF), add(ONE, t));
}

uint32_t ng_ref_moe_act(const ng_moe_act_op *op, bool gated, uint32_t gate, uint32_t up)
{
    const uint32_t alpha = op->alpha ? op->alpha : NG_MOE_ALPHA,
                   limit = op->limit ? op->limit : NG_MOE_LIMIT;
    uint32_t v;
    switch (op->act) {
    case NG_MOE_SWIGLU: v = swish(op, 0, gate); break;
    case NG_MOE_SWISH: v = swish(op, alpha, gate); break;
    case NG_MOE_GELU: v = gelu(op, gate); break;
    case NG_MOE_GPT_OSS:
        v = swish(op, alpha, at_most(gate, limit));
        up = add(at_least(at_most(up, limit), limit ^ SIGN), ONE);
        break;
    case NG_MOE_GPT_OSS_FOLDED:
        v = swish(op, alpha, at_most(gate, limit));
        up = at_least(at_most(up, add(ONE, limit)), add(ONE, limit ^ SIGN));
        break;
    default: return gate;
    }
    return gated ? mul(v, up) : v;
}

uint32_t ng_ref_moe_block(const ng_moe_block_op *op, uint32_t psum, uint32_t row_scale,
                          uint32_t scale, uint32_t sum)
{
    uint32_t v = psum, by = mul(row_scale, scale);
    if (op->order == NG_MOE_BLOCK_IN_TURN) {
        v = mul(psum, row_scale);
        by = scale;
    }
    return op->fused ? ng_num_f32_fma(v, by, sum) : add(sum, mul(v, by));
}

uint32_t ng_ref_fp8_row_scale(const ng_format_spec *f, ng_divide by, uint32_t least, int64_t n,
                              const uint32_t *v)
{
    uint32_t a = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t mag = v[i] & ~SIGN;
        if (mag < 0x7F800000u && mag > a)
            a = mag;
    }
    const uint32_t max = ng_num_f32_code(ng_num_decode(f, f->max_code)),
                   s = by == NG_DIVIDE_TRUE ? ng_num_f32_div(a, max)
                                            : mul(a, ng_num_f32_div(ONE, max));
    return s > least ? s : least; /* both positive: patterns are in order */
}

uint32_t ng_ref_fp8_row_element(const ng_format_spec *f, ng_divide by, uint32_t scale,
                                uint32_t v)
{
    const ng_cast cast = { .round = NG_ROUND_TIES_TO_EVEN, .overflow = NG_OVERFLOW_SATURATE };
    const uint32_t x =
        by == NG_DIVIDE_TRUE ? ng_num_f32_div(v, scale) : mul(v, ng_num_f32_div(ONE, scale));
    uint32_t code = 0;
    (void)ng_num_encode(f, &cast, ng_num_f32(x), 0, &code); /* with a NaN: takes all */
    return code;
}

/* ---- Combine: items 106 and 107. ---- */

uint32_t ng_ref_moe_combine(const ng_moe_combine_op *op, int64_t n, const uint32_t *weight,
                            const uint32_t *o, uint32_t y)
{
    y = ng_ref_to_format(NG_F32, y); /* C's NaN has one code, even where nothing is added */
    for (int64_t i = 0; i < n; i++) {
        if (weight && op->fused)
            y = ng_num_f32_fma(weight[i], o[i], y);
        else if (weight)
            y = add(y, ng_ref_to_format(op->product, mul(weight[i], o[i])));
        else
            y = add(y, o[i]);
        y = ng_ref_to_format(op->sum, y);
    }
    return y;
}
