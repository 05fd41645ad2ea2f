/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward of mixtures of experts: one element behind a multiply, one token's routing.
 * Numerics: docs/numerics.md, section 11.10, items 110 to 118. Numbers are FP32 patterns.
 */
#include "ref.h"

#define ONE  0x3F800000u
#define SIGN 0x80000000u

static uint32_t add(uint32_t a, uint32_t b)
{
    return ng_num_f32_add(a, b);
}

static uint32_t sub(uint32_t a, uint32_t b)
{
    return ng_num_f32_add(a, b ^ SIGN);
}

static uint32_t mul(uint32_t a, uint32_t b)
{
    return ng_num_f32_mul(a, b);
}

/* ---- Expert MLP. ---- */

uint32_t ng_ref_moe_dot(int64_t n, const uint32_t *a, const uint32_t *b)
{
    uint32_t s = mul(a[0], b[0]);
    for (int64_t i = 1; i < n; i++)
        s = add(s, mul(a[i], b[i]));
    return s;
}

static uint32_t sigmoid(const ng_moe_act_op *op, uint32_t x)
{
    return ng_ref_function(NG_FN_SIGMOID, &op->sigmoid, x);
}

uint32_t ng_ref_moe_up_back(const ng_moe_act_op *op, uint32_t gate, uint32_t dmiddle)
{
    return mul(dmiddle, mul(gate, sigmoid(op, gate)));
}

uint32_t ng_ref_moe_gate_back(const ng_moe_act_op *op, uint32_t gate, uint32_t up,
                              uint32_t dmiddle)
{
    const uint32_t s = sigmoid(op, gate), slope = mul(s, add(ONE, mul(gate, sub(ONE, s))));
    return mul(mul(dmiddle, up), slope);
}

/* ---- Routing. ---- */

/* A token's kept entries, in rank order; [k] each. */
struct entries {
    int64_t n;
    uint32_t *place; /* in the set of scores */
    uint32_t *score, *grad, *share;
};

/* The scores of the set that `order` names: all experts, or the k chosen in rank order. */
static void find_scores(const struct route_job *j, const uint32_t *logit, const int32_t *index,
                        uint32_t *score)
{
    const ng_route_op *op = j->op;
    const bool chosen = op->order == NG_ROUTE_TOPK_THEN_ACT;
    const int32_t n = chosen ? (int32_t)op->k : j->experts;
    for (int32_t i = 0; i < n; i++)
        score[i] = logit[chosen ? index[i] : i];
    ng_ref_route_scores(op, n, score);
}

/* dw becomes dp: item 117. */
static void weights_back(const ng_route_op *op, const struct entries *e)
{
    bool floored;
    for (int64_t i = 0; op->scale && i < e->n; i++)
        e->grad[i] = mul(e->grad[i], op->scale);
    if (!op->normalise)
        return;
    const uint32_t s = ng_ref_route_divisor(op, e->n, e->score, &floored);
    if (!floored) {
        for (int64_t i = 0; i < e->n; i++)
            e->share[i] = e->score[i];
        ng_ref_route_divide(op->normalise_by, &op->reciprocal, e->n, s, e->share);
        const uint32_t d = ng_ref_moe_dot(e->n, e->grad, e->share);
        for (int64_t i = 0; i < e->n; i++)
            e->grad[i] = sub(e->grad[i], d);
    }
    ng_ref_route_divide(op->normalise_by, &op->reciprocal, e->n, s, e->grad);
}

/* dp of place i of the set: +0 where no entry was kept. */
static uint32_t score_grad(const struct entries *e, uint32_t place)
{
    for (int64_t i = 0; i < e->n; i++)
        if (e->place[i] == place)
            return e->grad[i];
    return 0;
}

void ng_ref_route_back(const struct route_job *j, const uint32_t *logit, const int32_t *index,
                       const int32_t *slot, const uint32_t *dweight, uint32_t *work,
                       uint32_t *dlogit)
{
    const ng_route_op *op = j->op;
    const bool chosen = op->order == NG_ROUTE_TOPK_THEN_ACT;
    uint32_t *score = work, *own = work + j->experts;
    struct entries e = { 0, own, own + op->k, own + 2 * op->k, own + 3 * op->k };
    find_scores(j, logit, index, score);
    for (uint32_t r = 0; r < op->k; r++) {
        if (slot && slot[r] < 0)
            continue;
        e.place[e.n] = chosen ? r : (uint32_t)index[r];
        e.score[e.n] = score[e.place[e.n]];
        e.grad[e.n++] = dweight[r];
    }
    for (int32_t i = 0; i < j->experts; i++)
        dlogit[i] = 0;
    if (!e.n)
        return;
    weights_back(op, &e);
    if (op->act == NG_ROUTE_SIGMOID) {
        for (int64_t i = 0; i < e.n; i++)
            dlogit[chosen ? (uint32_t)index[e.place[i]] : e.place[i]] =
                mul(e.grad[i], mul(e.score[i], sub(ONE, e.score[i])));
        return;
    }
    const uint32_t d = ng_ref_moe_dot(e.n, e.grad, e.score),
                   set = chosen ? op->k : (uint32_t)j->experts;
    for (uint32_t i = 0; i < set; i++)
        dlogit[chosen ? (uint32_t)index[i] : i] = mul(score[i], sub(score_grad(&e, i), d));
}
