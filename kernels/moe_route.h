/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routing: VL tokens at once, a lane each, so that a number of all of them is a vector and
 * everything that the page orders (softmax's sum, the weights', ranks) runs down an array
 * [experts][VL]. Part of moe.h. Numerics: docs/numerics.md, section 11.10, items 91 to 96.
 *
 * Top-k: a key is a double whose upper word is the FP32 pattern and whose lower word breaks
 * ties (moe_list_rows), so the page's order is the order of doubles and no two are equal.
 * Sorting networks of minimum and maximum then keep the 4 or 8 best, without a branch: 70
 * operations for 8 experts of half a vector of tokens. More than 8 are found 8 at a time, each
 * time below the last.
 *
 * What limits it: two ports for minimum and maximum; for all of E activated, the exponential's
 * FMAs. kernels/README.md has the counts.
 */
#ifndef NG_KERNELS_MOE_ROUTE_H
#define NG_KERNELS_MOE_ROUTE_H

/* Upper words of keys. Their doubles are finite, those of every number's pattern (-Inf and Inf
 * too) likewise. */
#define MOE_NAN_WORD 0x7F800001u /* above Inf's */
#define MOE_NOTHING  0xFFE00000u /* below every number's: no expert */

enum {
    MOE_BEST = 8 /* that a pass over the keys finds */
};

/* ---- Sorting networks: the largest first. ---- */

MOE_INLINE void moe_order(vec64 *a, vec64 *b)
{
    const vec64 larger = vec64_max(*a, *b);
    *b = vec64_min(*a, *b);
    *a = larger;
}

MOE_INLINE void moe_sort_4(vec64 *v)
{
    moe_order(&v[0], &v[1]);
    moe_order(&v[2], &v[3]);
    moe_order(&v[0], &v[2]);
    moe_order(&v[1], &v[3]);
    moe_order(&v[1], &v[2]);
}

/* Batcher's: 19 comparisons. */
MOE_INLINE void moe_sort_8(vec64 *v)
{
    moe_sort_4(v);
    moe_sort_4(v + 4);
    moe_order(&v[0], &v[4]);
    moe_order(&v[1], &v[5]);
    moe_order(&v[2], &v[6]);
    moe_order(&v[3], &v[7]);
    moe_order(&v[2], &v[4]);
    moe_order(&v[3], &v[5]);
    moe_order(&v[1], &v[2]);
    moe_order(&v[3], &v[4]);
    moe_order(&v[5], &v[6]);
}

/* The larger half of two sorted lists, into `best`: a bitonic sequence, which three (two)
 * layers sort. */
MOE_INLINE void moe_merge_4(vec64 *best, const vec64 *v)
{
    vec64 x[4] = { vec64_max(best[0], v[3]), vec64_max(best[1], v[2]), vec64_max(best[2], v[1]),
                   vec64_max(best[3], v[0]) };
    moe_order(&x[0], &x[2]);
    moe_order(&x[1], &x[3]);
    moe_order(&x[0], &x[1]);
    moe_order(&x[2], &x[3]);
    best[0] = x[0];
    best[1] = x[1];
    best[2] = x[2];
    best[3] = x[3];
}

MOE_INLINE void moe_merge_8(vec64 *best, const vec64 *v)
{
    vec64 x[8] = { vec64_max(best[0], v[7]), vec64_max(best[1], v[6]), vec64_max(best[2], v[5]),
                   vec64_max(best[3], v[4]), vec64_max(best[4], v[3]), vec64_max(best[5], v[2]),
                   vec64_max(best[6], v[1]), vec64_max(best[7], v[0]) };
    moe_order(&x[0], &x[4]);
    moe_order(&x[1], &x[5]);
    moe_order(&x[2], &x[6]);
    moe_order(&x[3], &x[7]);
    moe_order(&x[0], &x[2]);
    moe_order(&x[1], &x[3]);
    moe_order(&x[4], &x[6]);
    moe_order(&x[5], &x[7]);
    for (int i = 0; i < 8; i += 2) {
        moe_order(&x[i], &x[i + 1]);
        best[i] = x[i];
        best[i + 1] = x[i + 1];
    }
}

/* ---- Top-k: item 92. ---- */

/* The best of each token so far; the two halves of the tokens apart. */
struct moe_list {
    vec64 of[2][MOE_BEST];
};

/*
 * `rows` of L experts from `first`, into the list. Numbers are clean (moe_clean): the double of
 * a positive one grows with its lower word, a negative's falls, so ~index and index make the
 * lower index the larger key. `below`: keys that are not below these are none.
 */
MOE_INLINE void moe_list_rows(const int L, const vec64 *below, const uint32_t *x, int64_t first,
                              const int rows, struct moe_list *best)
{
    ivec high[MOE_BEST], low[MOE_BEST];
    for (int i = 0; i < L; i++) {
        high[i] = i < rows ? iv_load(x + (first + i) * VL) : iv_all(MOE_NOTHING);
        low[i] = iv_xor(iv_all(~(uint32_t)(first + i)), iv_sra_by(high[i], 31));
    }
    for (int h = 0; h < 2; h++) {
        vec64 v[MOE_BEST];
        for (int i = 0; i < L; i++) {
            v[i] = vec64_of_words(low[i], high[i], h);
            if (below)
                v[i] = vec64_below(v[i], below[h]);
        }
        if (L == 4) {
            moe_sort_4(v);
            moe_merge_4(best->of[h], v);
        } else {
            moe_sort_8(v);
            moe_merge_8(best->of[h], v);
        }
    }
}

MOE_INLINE void moe_pass(const int L, const vec64 *below, const uint32_t *x, int64_t n,
                         struct moe_list *best)
{
    int64_t e = 0;
    for (int i = 0; i < L; i++)
        best->of[0][i] = best->of[1][i] = vec64_all(-__builtin_inf());
    for (; e + L <= n; e += L)
        moe_list_rows(L, below, x, e, L, best);
    if (e < n)
        moe_list_rows(L, below, x, e, (int)(n - e), best);
}

/* Indices of the k largest of each token's n numbers: [k][VL], the largest first. */
static __attribute__((noinline)) void moe_top(const uint32_t *x, int64_t n, int64_t k,
                                              uint32_t *index)
{
    struct moe_list best;
    for (int64_t found = 0; found < k; found += MOE_BEST) {
        if (k <= 4) {
            moe_pass(4, NULL, x, n, &best);
        } else if (!found) {
            moe_pass(MOE_BEST, NULL, x, n, &best);
        } else {
            const vec64 last[2] = { best.of[0][MOE_BEST - 1], best.of[1][MOE_BEST - 1] };
            moe_pass(MOE_BEST, last, x, n, &best);
        }
        for (int64_t i = 0; i < MOE_BEST && found + i < k; i++) {
            const vec64 a = best.of[0][i], b = best.of[1][i];
            const ivec sign = iv_sra_by(iv_high_words(a, b), 31);
            iv_store(index + (found + i) * VL,
                     iv_xor(iv_xor(iv_low_words(a, b), sign), iv_all(0xFFFFFFFFu)));
        }
    }
}

/* The words of `x` that indices [k][VL] name, lane by lane. */
static inline void moe_pick(const uint32_t *x, const uint32_t *index, int64_t k, uint32_t *w)
{
    for (int64_t i = 0; i < k * VL; i++)
        w[i] = x[(int64_t)index[i] * VL + i % VL];
}

/* A number that is compared: every NaN is one, and -0 is +0. */
MOE_INLINE ivec moe_clean(vec v)
{
    const ivec u = iv_bits(vec_add(v, vec_zero()));
    const imask nan = iv_gt(iv_and(u, iv_all(0x7FFFFFFFu)), iv_all(WIDEN_INF));
    return iv_pick(nan, iv_all(MOE_NAN_WORD), u);
}

/* ---- Scores: items 93 and 94. ---- */

/* A function of the tokens' n numbers: where few lanes live, of these side by side. */
static inline void
moe_apply(void (*f)(const ng_function_choice *c, const uint32_t *x, int64_t n, uint32_t *y),
          const ng_function_choice *c, int64_t n, int64_t tokens, uint32_t *x)
{
    if (2 * tokens > VL) {
        f(c, x, n * VL, x);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = 0; t < tokens; t++)
            x[i * tokens + t] = x[i * VL + t];
    f(c, x, n * tokens, x);
    for (int64_t i = n; i-- > 0;)
        for (int64_t t = tokens; t-- > 0;)
            x[i * VL + t] = x[i * tokens + t];
}

MOE_INLINE vec moe_row(const uint32_t *x, int64_t i)
{
    return iv_float(iv_load(x + i * VL));
}

/* The largest of each token: a NaN if there is one; a zero is +0. */
static inline vec moe_largest(const uint32_t *x, int64_t n)
{
    vec most = moe_row(x, 0);
    ivec magnitude = iv_all(0);
    for (int64_t i = 0; i < n; i++) {
        const vec v = moe_row(x, i);
        most = vec_max(most, v);
        magnitude = iv_max_u(magnitude, iv_and(iv_bits(v), iv_all(0x7FFFFFFFu)));
    }
    const imask nan = iv_gt(magnitude, iv_all(WIDEN_INF));
    return iv_float(iv_pick(nan, iv_all(WIDEN_NAN), iv_bits(vec_add(most, vec_zero()))));
}

static inline vec moe_sum(const uint32_t *x, int64_t n)
{
    vec s = moe_row(x, 0);
    for (int64_t i = 1; i < n; i++)
        s = vec_add(s, moe_row(x, i));
    return s;
}

/* n numbers over s, or times its reciprocal; then in the format. */
static inline void moe_divide(ng_divide how, const ng_function_choice *c, vec s, ng_format f,
                              int64_t n, uint32_t *x)
{
    uint32_t r[VL];
    if (how == NG_DIVIDE_TRUE) {
        for (int64_t i = 0; i < n; i++)
            iv_store(x + i * VL, iv_bits(moe_to(f, vec_div(moe_row(x, i), s))));
        return;
    }
    iv_store(r, iv_bits(s));
    moe_function(NG_FN_RECIPROCAL, c, r, VL, r);
    const vec by = iv_float(iv_load(r));
    for (int64_t i = 0; i < n; i++)
        iv_store(x + i * VL, iv_bits(moe_to(f, vec_mul(moe_row(x, i), by))));
}

/* n logits of each token become scores. */
static inline void moe_activate(const ng_route_op *op, int64_t n, int64_t tokens, uint32_t *x)
{
    if (op->act == NG_ROUTE_SIGMOID) {
        moe_apply(moe_sigmoid, &op->sigmoid, n, tokens, x);
        for (int64_t i = 0; i < n; i++)
            iv_store(x + i * VL, iv_bits(moe_to(op->score, moe_row(x, i))));
        return;
    }
    const vec most = moe_largest(x, n);
    for (int64_t i = 0; i < n; i++)
        iv_store(x + i * VL, iv_bits(vec_sub(moe_row(x, i), most)));
    moe_apply(moe_exp, &op->exp, n, tokens, x);
    moe_divide(op->softmax_by, &op->reciprocal, moe_sum(x, n), op->score, n, x);
}

/* ---- Choice, groups, weights: items 91, 95, 96. ---- */

static inline void moe_choices(const ng_route_op *op, int64_t n, const uint32_t *value,
                               const uint32_t *correction, uint32_t *choice)
{
    const bool rounded = correction && op->order == NG_ROUTE_ACT_THEN_TOPK;
    for (int64_t e = 0; e < n; e++) {
        vec v = moe_row(value, e);
        if (correction)
            v = vec_add(v, moe_all(correction[e]));
        if (rounded)
            v = moe_to(op->score, v);
        iv_store(choice + e * VL, moe_clean(v));
    }
}

/* Clean numbers as integers in their order; and back. */
MOE_INLINE ivec moe_ordered(ivec u)
{
    return iv_xor(u, iv_srl_by(iv_sra_by(u, 31), 1));
}

/* The sum of the two largest, or (`one`) the largest. */
static inline vec moe_two_best(const uint32_t *choice, int64_t n, bool one)
{
    ivec first = iv_all(0x80000000u), second = first; /* below every number's */
    for (int64_t i = 0; i < n; i++) {
        const ivec x = moe_ordered(iv_load(choice + i * VL));
        second = iv_max(second, iv_min(first, x));
        first = iv_max(first, x);
    }
    const vec best = iv_float(moe_ordered(first));
    return one ? best : vec_add(best, iv_float(moe_ordered(second)));
}

static inline vec moe_group_value(const ng_route_op *op, const uint32_t *choice, int64_t n,
                                  uint32_t *index)
{
    const uint32_t top = op->group_top ? op->group_top : 2;
    uint32_t w[VL];
    if (top <= 2)
        return moe_two_best(choice, n, top == 1);
    moe_top(choice, n, top, index);
    vec s = moe_all(0);
    for (uint32_t i = 0; i < top; i++) {
        moe_pick(choice, index + i * VL, 1, w);
        s = i ? vec_add(s, iv_float(iv_load(w))) : iv_float(iv_load(w));
    }
    return s;
}

/* Experts of groups that are not kept get the mask's choice. `room`: moe_group_words(). */
static inline void moe_mask_groups(const ng_route_op *op, int64_t n, uint32_t *choice,
                                   uint32_t *room)
{
    const int64_t groups = op->groups, size = n / groups, top = op->top_groups;
    const ivec masked = iv_all(op->mask == NG_GROUP_MASK_ZERO ? 0 : 0xFF800000u);
    uint32_t *value = room, *kept = value + groups * VL, *index = kept + groups * VL;
    for (int64_t g = 0; g < groups; g++) {
        iv_store(value + g * VL,
                 moe_clean(moe_group_value(op, choice + g * size * VL, size, index)));
        iv_store(kept + g * VL, iv_all(0));
    }
    moe_top(value, groups, top, index);
    for (int64_t i = 0; i < top * VL; i++)
        kept[(int64_t)index[i] * VL + i % VL] = 0xFFFFFFFFu;
    for (int64_t g = 0; g < groups; g++) {
        const ivec keep = iv_load(kept + g * VL);
        uint32_t *x = choice + g * size * VL;
        for (int64_t i = 0; i < size; i++)
            iv_store(x + i * VL,
                     iv_xor(masked, iv_and(iv_xor(iv_load(x + i * VL), masked), keep)));
    }
}

/* Two numbers a group; indices of groups, or of a group's experts. */
static int64_t moe_group_words(const struct route_job *j)
{
    return (2 * NG_ROUTE_MAX_GROUPS + (int64_t)j->experts) * VL;
}

static inline void moe_weights(const ng_route_op *op, uint32_t *w)
{
    const int64_t k = op->k;
    if (op->normalise) {
        const vec eps = moe_all(op->eps);
        vec s = moe_sum(w, k);
        if (op->eps && op->eps_how == NG_EPS_ADD)
            s = vec_add(s, eps);
        else if (op->eps)
            s = vec_max(eps, s); /* NaN stays */
        moe_divide(op->normalise_by, &op->reciprocal, s, NG_F32, k, w);
    }
    const vec scale = moe_all(op->scale ? op->scale : 0x3F800000u);
    for (int64_t i = 0; i < k; i++)
        iv_store(w + i * VL, iv_bits(function_quiet(vec_mul(moe_row(w, i), scale))));
}

/* ---- The call. ---- */

/* Logits of up to VL tokens as [experts][VL]; lanes without a token are 0. */
static inline void moe_read(const struct route_rows *r, int64_t first, int64_t tokens,
                            int64_t n, uint32_t *x)
{
    const uint32_t *row = r->logit + first * r->logit_stride;
    int64_t e = 0;
    for (; tokens == VL && e + VL <= n; e += VL) {
        ivec v[VL];
        for (int64_t t = 0; t < VL; t++)
            v[t] = iv_load(row + t * r->logit_stride + e);
        iv_transpose(v);
        for (int64_t i = 0; i < VL; i++)
            iv_store(x + (e + i) * VL, v[i]);
    }
    for (; e < n; e++)
        for (int64_t t = 0; t < VL; t++)
            x[e * VL + t] = t < tokens ? row[t * r->logit_stride + e] : 0;
}

static inline void moe_write(const struct route_rows *r, int64_t first, int64_t tokens,
                             int64_t k, const uint32_t *index, const uint32_t *w)
{
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < k; i++) {
            r->index[(first + t) * k + i] = (int32_t)index[i * VL + t];
            r->weight[(first + t) * r->weight_stride + i] = w[i * VL + t];
        }
}

static const char *moe_route_refuses(const struct route_job *j)
{
    return moe_is_f16(j->op->score) ? "scores in f16" : NULL;
}

/* Scores, choices, weights, indices; groups. */
static int64_t moe_route_words(const struct route_job *j)
{
    const int64_t k = j->op->k;
    return 2 * (j->experts + k) * VL + (j->op->groups ? moe_group_words(j) : 0);
}

static void moe_route(const struct route_job *j, const struct route_rows *r, uint32_t *work)
{
    const ng_route_op *op = j->op;
    const int64_t n = j->experts, k = op->k;
    uint32_t *x = work, *choice = x + n * VL, *weight = choice + n * VL,
             *index = weight + k * VL;
    for (int64_t first = 0; first < r->tokens; first += VL) {
        const int64_t left = r->tokens - first, tokens = left < VL ? left : VL;
        moe_read(r, first, tokens, n, x);
        const bool late = op->order == NG_ROUTE_TOPK_THEN_ACT,
                   by_logits = op->order == NG_ROUTE_ACT_ALL;
        if (by_logits)
            moe_choices(op, n, x, r->correction, choice);
        if (!late)
            moe_activate(op, n, tokens, x);
        if (!by_logits)
            moe_choices(op, n, x, r->correction, choice);
        if (op->groups)
            moe_mask_groups(op, n, choice, index + k * VL);
        moe_top(choice, n, k, index);
        moe_pick(x, index, k, weight);
        if (late)
            moe_activate(op, k, tokens, weight);
        moe_weights(op, weight);
        moe_write(r, first, tokens, k, index, weight);
    }
}

#endif
