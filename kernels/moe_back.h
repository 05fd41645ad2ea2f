/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward of mixture of experts; part of moe.h. Lanes are columns, or rows of a sum, or in
 * routing the tokens whose scores are found again (moe_route.h); what a token does with its few
 * entries is one number after another. Numerics: docs/numerics.md, section 11.10, items 113,
 * 115, 117 and 118.
 */
#ifndef NG_KERNELS_MOE_BACK_H
#define NG_KERNELS_MOE_BACK_H

static inline uint32_t moe_quiet(float x)
{
    return x != x ? 0x7FC00000u : as_pattern(x);
}

/* ---- The combine's weights and the activation: items 113 and 115. ---- */

enum {
    MOE_TOGETHER = 8 /* rows whose sums run side by side: an addition takes 4 cycles */
};

/* Lanes are columns of a product; the sums of rows run side by side. */
static void moe_dots(int64_t rows, int64_t n, const uint32_t *const *a,
                     const uint32_t *const *b, uint32_t *out)
{
    for (int64_t first = 0; first < rows; first += MOE_TOGETHER) {
        const int64_t left = rows - first, together = left < MOE_TOGETHER ? left : MOE_TOGETHER;
        float sum[MOE_TOGETHER];
        uint32_t product[MOE_TOGETHER][VL] = { { 0 } };
        for (int t = 0; t < MOE_TOGETHER; t++)
            sum[t] = -0.0f; /* which leaves the first term as it is */
        for (int64_t i = 0; i < n; i += VL) {
            const int64_t columns = n - i < VL ? n - i : VL;
            for (int64_t t = 0; t < together; t++)
                iv_store(product[t], iv_bits(vec_mul(moe_get(a[first + t] + i, n - i),
                                                     moe_get(b[first + t] + i, n - i))));
            for (int64_t c = 0; c < columns; c++)
                for (int t = 0; t < MOE_TOGETHER; t++)
                    sum[t] += as_float(product[t][c]);
        }
        for (int64_t t = 0; t < together; t++)
            out[first + t] = moe_quiet(sum[t]);
    }
}

/* At most NG_MOE_ACT_MOST columns. */
static void moe_act_back(const ng_moe_act_op *op, int64_t n, const uint32_t *gate,
                         const uint32_t *up, const uint32_t *dmiddle, uint32_t *dgate,
                         uint32_t *dup)
{
    uint32_t f[NG_MOE_ACT_MOST];
    const vec one = moe_all(0x3F800000u);
    moe_sigmoid(&op->sigmoid, gate, n, f);
    for (int64_t i = 0; i < n; i += VL) {
        const vec g = moe_get(gate + i, n - i), u = moe_get(up + i, n - i),
                  dm = moe_get(dmiddle + i, n - i), s = moe_get(f + i, n - i);
        const vec slope = vec_mul(s, vec_add(one, vec_mul(g, vec_sub(one, s))));
        moe_put(dup + i, n - i, iv_bits(function_quiet(vec_mul(dm, vec_mul(g, s)))));
        moe_put(dgate + i, n - i, iv_bits(function_quiet(vec_mul(vec_mul(dm, u), slope))));
    }
}

/* ---- Routing: items 117 and 118. ---- */

/* A few numbers over s, or times its reciprocal. */
static inline void moe_divide_few(ng_divide how, const ng_function_choice *c, float s,
                                  int64_t n, uint32_t *p)
{
    uint32_t r = as_pattern(s);
    if (how == NG_DIVIDE_RECIPROCAL)
        moe_function(NG_FN_RECIPROCAL, c, &r, 1, &r);
    for (int64_t i = 0; i < n; i++)
        p[i] = as_pattern(how == NG_DIVIDE_RECIPROCAL ? as_float(p[i]) * as_float(r)
                                                      : as_float(p[i]) / s);
}

/* What normalising divides n weights by; whether that is eps for their sum. */
static inline float moe_divisor(const ng_route_op *op, int64_t n, const uint32_t *w,
                                bool *floored)
{
    const float eps = as_float(op->eps);
    float s = as_float(w[0]);
    for (int64_t i = 1; i < n; i++)
        s += as_float(w[i]);
    *floored = op->eps && op->eps_how == NG_EPS_FLOOR && s < eps;
    if (op->eps && op->eps_how == NG_EPS_ADD)
        return s + eps;
    return *floored ? eps : s;
}

/* A token's entries that were not dropped, in rank order: places in the set of scores, those
 * scores, gradients; `share` is work. */
struct moe_entries {
    int64_t n;
    uint32_t *place, *score, *grad, *share;
};

static inline float moe_dot(int64_t n, const uint32_t *a, const uint32_t *b)
{
    float s = -0.0f;
    for (int64_t i = 0; i < n; i++)
        s += as_float(a[i]) * as_float(b[i]);
    return s;
}

/* Item 117: from the gradients of weights to those of scores. */
static inline void moe_weights_back(const ng_route_op *op, const struct moe_entries *e)
{
    const float scale = as_float(op->scale);
    bool floored;
    for (int64_t i = 0; op->scale && i < e->n; i++)
        e->grad[i] = as_pattern(as_float(e->grad[i]) * scale);
    if (!op->normalise)
        return;
    const float s = moe_divisor(op, e->n, e->score, &floored);
    if (!floored) {
        memcpy(e->share, e->score, (size_t)e->n * sizeof *e->share);
        moe_divide_few(op->normalise_by, &op->reciprocal, s, e->n, e->share);
        const float d = moe_dot(e->n, e->grad, e->share);
        for (int64_t i = 0; i < e->n; i++)
            e->grad[i] = as_pattern(as_float(e->grad[i]) - d);
    }
    moe_divide_few(op->normalise_by, &op->reciprocal, s, e->n, e->grad);
}

/* Item 118: `set` has the experts of p's places; NULL: all of them, in order. */
static inline void moe_logits_back(const struct route_job *j, const struct moe_entries *e,
                                   const uint32_t *p, const int32_t *set, uint32_t *dlogit)
{
    const int64_t experts = j->experts;
    const bool softmax = j->op->act == NG_ROUTE_SOFTMAX;
    const float d = softmax ? moe_dot(e->n, e->grad, e->score) : 0;
    const vec rest = moe_all(as_pattern(0.0f - d)); /* of the experts of no entry */
    memset(dlogit, 0, (size_t)experts * sizeof *dlogit);
    if (!e->n)
        return;
    for (int64_t i = 0; softmax && !set && i < experts; i += VL) {
        const vec v = vec_mul(moe_get(p + i, experts - i), rest);
        moe_put(dlogit + i, experts - i, iv_bits(function_quiet(v)));
    }
    for (uint32_t r = 0; softmax && set && r < j->op->k; r++)
        dlogit[set[r]] = moe_quiet(as_float(p[r]) * (0.0f - d));
    for (int64_t i = 0; i < e->n; i++) {
        const float score = as_float(e->score[i]), grad = as_float(e->grad[i]);
        dlogit[set ? (uint32_t)set[e->place[i]] : e->place[i]] =
            moe_quiet(softmax ? score * (grad - d) : grad * (score * (1.0f - score)));
    }
}

/* Scores of up to VL tokens, over the set that they were activated over: [set][VL]. */
static inline void moe_scores_again(const struct route_job *j, const struct route_back_rows *r,
                                    int64_t first, int64_t tokens, uint32_t *x)
{
    const int64_t k = j->op->k;
    const bool chosen = j->op->order == NG_ROUTE_TOPK_THEN_ACT;
    const struct route_rows rows = { .logit = r->logit, .logit_stride = r->logit_stride };
    if (!chosen)
        moe_read(&rows, first, tokens, j->experts, x);
    for (int64_t i = 0; chosen && i < k; i++)
        for (int64_t t = 0; t < VL; t++)
            x[i * VL + t] =
                t < tokens
                    ? r->logit[(first + t) * r->logit_stride + r->index[(first + t) * k + i]]
                    : 0;
    moe_activate(j->op, chosen ? k : j->experts, tokens, x);
}

/* Token t from its scores p. */
static inline void moe_token_back(const struct route_job *j, const struct route_back_rows *r,
                                  int64_t t, const uint32_t *p, struct moe_entries *e)
{
    const int64_t k = j->op->k;
    const bool chosen = j->op->order == NG_ROUTE_TOPK_THEN_ACT;
    const int32_t *index = r->index + t * k;
    e->n = 0;
    for (int64_t i = 0; i < k; i++) {
        if (r->slot && r->slot[t * k + i] < 0)
            continue;
        e->place[e->n] = chosen ? (uint32_t)i : (uint32_t)index[i];
        e->score[e->n] = p[e->place[e->n]];
        e->grad[e->n++] = r->dweight[t * r->dweight_stride + i];
    }
    if (e->n)
        moe_weights_back(j->op, e);
    moe_logits_back(j, e, p, chosen ? index : NULL, r->dlogit + t * r->dlogit_stride);
}

/* `work`: moe_route_words(); scores, a token's own, four rows of k. */
static void moe_route_back(const struct route_job *j, const struct route_back_rows *r,
                           uint32_t *work)
{
    const int64_t k = j->op->k, n = j->experts,
                  scores = j->op->order == NG_ROUTE_TOPK_THEN_ACT ? k : n;
    uint32_t *p = work + n * VL, *own = p + n;
    struct moe_entries e = { 0, own, own + k, own + 2 * k, own + 3 * k };
    for (int64_t first = 0; first < r->tokens; first += VL) {
        const int64_t left = r->tokens - first, tokens = left < VL ? left : VL;
        moe_scores_again(j, r, first, tokens, work);
        for (int64_t t = 0; t < tokens; t++) {
            for (int64_t i = 0; i < scores; i++)
                p[i] = work[i * VL + t];
            moe_token_back(j, r, first + t, p, &e);
        }
    }
}

#endif
