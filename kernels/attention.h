/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of attention between its two multiplies, in vectors. Numerics: docs/numerics.md,
 * section 11.9; the numbers in parentheses are its items. An ISA's attention.c includes its
 * integer vectors and SLEEF functions, then this.
 *
 * Scores lie as the multiply left them: position p of row r, in panels of nr columns, at
 * (p / nr * mr + r) * nr + p % nr. A vector is VL keys of one row; only the denominator's order
 * runs along the keys, and there the rows of a panel are the independent chains.
 *
 * Every exponential costs a dozen operations in FP64 (`cr`) beside the 2 d multiplications of
 * its score and its column of v; all else here is a load, an operation and a store.
 */
#ifndef NG_KERNELS_ATTENTION_H
#define NG_KERNELS_ATTENTION_H

#include "bf16.h"
#include "elementary.h"

enum {
    GROUP_VECTORS = ATTENTION_GROUP / VL
};

static int32_t attention_param(const struct attention_job *g, ng_attention_param p)
{
    return g->set[p].value;
}

static const char *refuses(const struct attention_job *g)
{
    if (g->exp.kind == NG_FUNCTION_TABLE || g->reciprocal.kind == NG_FUNCTION_TABLE ||
        (g->op->softcap && g->tanh.kind == NG_FUNCTION_TABLE))
        return "functions from tables";
    if (attention_param(g, NG_ATTENTION_SUM_ORDER) == NG_SUM_TREE)
        return "denominators by a tree";
    return NULL;
}

static float *attention_at(const struct attention_rows *a, float *x, int64_t p, int r)
{
    return x + (p / a->nr * a->mr + r) * a->nr + p % a->nr;
}

/* Which of positions p .. p + VL - 1 row r sees. */
FUNCTION_INLINE imask attention_sees(const struct attention_rows *a, int64_t p, int r)
{
    static const uint32_t iota[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    const ivec at = iv_add(iv_load(iota), iv_all((uint32_t)p));
    return im_and(iv_gt(at, iv_all((uint32_t)(a->begin[r] - 1))),
                  iv_gt(iv_all((uint32_t)a->end[r]), at));
}

/* ---- Scores (64). ---- */

/* To bf16 in the upper half, ties to even; the lower one is left over. Inf and the canonical
 * NaN stay, other NaNs may not. */
FUNCTION_INLINE ivec attention_nearest(ivec u)
{
    const ivec odd = iv_and(iv_srl_by(u, 16), iv_all(1));
    return iv_add(iv_add(u, iv_all(0x7FFF)), odd);
}

/* To bf16, ties to even; Inf and NaN stay. */
FUNCTION_INLINE ivec attention_bf16(ivec u)
{
    const ivec up = iv_and(attention_nearest(u), iv_all(0xFFFF0000u)),
               size = iv_and(u, iv_all(0x7FFFFFFFu));
    return iv_pick(iv_gt(iv_all(0x7F800000u), size), up, u);
}

struct attention_scoring {
    vec scale, cap, over; /* over: 1 / c */
    bool bf16, scaled, capped, divide;
    ng_function_kind tanh;
};

static struct attention_scoring attention_scoring(const struct attention_job *g)
{
    const float scale = as_float(g->op->scale), cap = as_float(g->op->softcap);
    return (struct attention_scoring){
        .scale = vec_all(&scale),
        .cap = vec_all(&cap),
        .over = vec_div(function_constant(1), vec_all(&cap)),
        .bf16 = attention_param(g, NG_ATTENTION_SCORE_FORMAT) == NG_BF16,
        .scaled =
            g->op->scale && attention_param(g, NG_ATTENTION_SCALE_PLACE) == NG_PLACE_SCORES,
        .capped = g->op->softcap != 0,
        .divide = attention_param(g, NG_ATTENTION_CAP_ARGUMENT) == NG_DIVISION_DIVIDE,
        .tanh = g->tanh.kind
    };
}

/* Under a cap *y is its tanh. */
static vec attention_score(const struct attention_scoring *s, vec x, vec *y)
{
    if (s->bf16)
        x = iv_float(attention_bf16(iv_bits(x)));
    if (s->scaled)
        x = vec_mul(x, s->scale);
    if (!s->capped)
        return x;
    const vec t = s->divide ? vec_div(x, s->cap) : vec_mul(x, s->over);
    *y = s->tanh == NG_FUNCTION_SLEEF ? function_sleef(t, NG_FN_TANH)
                                      : function_cr(t, NG_FN_TANH);
    return vec_mul(s->cap, *y);
}

static float attention_largest(vec best)
{
    float lane[VL];
    vec_store(lane, best);
    for (int i = 1; i < VL; i++)
        lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
    return lane[0];
}

/* Of a row's visible scores: the largest; and of magnitudes, as integers, so NaNs too. */
struct attention_seen {
    vec most;
    ivec size;
};

/* VL positions from p on; `whole`: all of them are visible. */
FUNCTION_INLINE void attention_scores_at(const struct attention_scoring *s,
                                         const struct attention_rows *a, int64_t p, int r,
                                         const bool whole, float *at,
                                         struct attention_seen *seen)
{
    vec tanh;
    const vec y = attention_score(s, vec_load(at), &tanh);
    ivec size = iv_and(iv_bits(y), iv_all(0x7FFFFFFFu));
    vec_store(at, y);
    if (whole) {
        seen->most = vec_max(seen->most, y);
    } else {
        const imask sees = attention_sees(a, p, r);
        seen->most =
            vec_max(seen->most, iv_float(iv_pick(sees, iv_bits(y), iv_bits(seen->most))));
        size = iv_where(sees, size);
    }
    seen->size = iv_max(seen->size, size);
}

/* Is a group of positions from p on visible as a whole? */
static bool attention_whole(const struct attention_rows *a, int64_t p, int r)
{
    return a->begin[r] <= p && p + ATTENTION_GROUP <= a->end[r];
}

/* The group with position p; and behind the last that row r sees. */
static int64_t attention_group_of(int64_t p)
{
    return p / ATTENTION_GROUP * ATTENTION_GROUP;
}

static uint32_t scores(const struct attention_job *g, const struct attention_rows *a, float *x,
                       float *best)
{
    const struct attention_scoring s = attention_scoring(g);
    uint32_t special = 0;
    for (int r = 0; r < a->rows; r++) {
        struct attention_seen seen = { function_constant(-__builtin_inff()), iv_all(0) };
        for (int64_t p = attention_group_of(a->begin[r]); p < a->end[r]; p += ATTENTION_GROUP) {
            float *at = attention_at(a, x, p, r);
            const bool whole = attention_whole(a, p, r);
            for (int q = 0; q < ATTENTION_GROUP; q += VL)
                if (whole)
                    attention_scores_at(&s, a, p + q, r, true, at + q, &seen);
                else
                    attention_scores_at(&s, a, p + q, r, false, at + q, &seen);
        }
        best[r] = attention_largest(seen.most);
        special |= (uint32_t)im_any(iv_gt(seen.size, iv_all(0x7F7FFFFFu))) << r;
    }
    return special;
}

/* ---- Exponentials (68) and P (69). ---- */

/* E(x; m), m the same for all lanes or not. */
struct attention_exp {
    vec c; /* scale_place exp: what the score is multiplied by */
    bool inside, two;
};

static struct attention_exp attention_exp(const struct attention_job *g)
{
    const vec log2_e = function_constant(0x1.715476p+0F); /* RN(log2 e) */
    const float scale = g->op->scale ? as_float(g->op->scale) : 1;
    const bool two = attention_param(g, NG_ATTENTION_EXP_BASE) == NG_EXP_BASE_2,
               inside = attention_param(g, NG_ATTENTION_SCALE_PLACE) == NG_PLACE_EXP;
    const vec c = vec_all(&scale);
    return (struct attention_exp){ .c = !inside ? log2_e
                                        : two   ? vec_mul(c, log2_e)
                                                : c,
                                   .inside = inside,
                                   .two = two };
}

/* What the function is taken of. */
FUNCTION_INLINE vec attention_below(const struct attention_exp *e, const ng_function f, vec x,
                                    vec m)
{
    vec d;
    if (e->inside)
        d = vec_fma(x, e->c, vec_sub(vec_zero(), vec_mul(m, e->c)));
    else if (f == NG_FN_EXP2)
        d = vec_mul(vec_sub(x, m), e->c);
    else
        d = vec_sub(x, m);
    return d;
}

FUNCTION_INLINE vec attention_e(const struct attention_exp *e, const ng_function_kind kind,
                                const ng_function f, vec x, vec m)
{
    return function_vector(kind, f, attention_below(e, f, x, m));
}

/* ATTENTION_GROUP positions: scores become exponentials, in place, and bf16 codes. A NaN
 * among them is the canonical one. `whole`: row r sees all of them. */
FUNCTION_INLINE void attention_group(const struct attention_exp *e, const ng_function_kind kind,
                                     const ng_function f, const struct attention_rows *a,
                                     int64_t p, int r, vec m, float *at, uint16_t *code,
                                     const bool sum_p, const bool whole)
{
    ivec rounded[GROUP_VECTORS];
    vec d[GROUP_VECTORS], y[GROUP_VECTORS];
    for (int q = 0; q < GROUP_VECTORS; q++)
        d[q] = attention_below(e, f, vec_load(at + q * VL), m);
    function_vectors(kind, f, d, GROUP_VECTORS, y);
    for (int q = 0; q < GROUP_VECTORS; q++) {
        ivec u = iv_bits(y[q]);
        if (!whole)
            u = iv_where(attention_sees(a, p + q * VL, r), u);
        const ivec b = attention_nearest(u);
        rounded[q] = iv_srl_by(b, 16);
        vec_store(at + q * VL, iv_float(sum_p ? iv_and(b, iv_all(0xFFFF0000u)) : u));
    }
    if (code)
        iv_store16(code, rounded, 0);
}

/* A group that row r does not see. */
static void attention_nothing(float *at, uint16_t *code)
{
    memset(at, 0, ATTENTION_GROUP * sizeof *at);
    if (code)
        memset(code, 0, ATTENTION_GROUP * sizeof *code);
}

FUNCTION_INLINE void attention_rows_of(const struct attention_exp *e,
                                       const ng_function_kind kind, const ng_function f,
                                       const struct attention_rows *a, const float *m, float *x,
                                       uint16_t *code, int64_t line, bool sum_p)
{
    for (int r = 0; r < a->rows; r++)
        for (int64_t p = 0; p < a->keys; p += ATTENTION_GROUP) {
            float *at = attention_at(a, x, p, r);
            uint16_t *to = code ? code + r * line + p : NULL;
            if (attention_whole(a, p, r))
                attention_group(e, kind, f, a, p, r, vec_all(&m[r]), at, to, sum_p, true);
            else if (p < a->end[r] && a->begin[r] < p + ATTENTION_GROUP)
                attention_group(e, kind, f, a, p, r, vec_all(&m[r]), at, to, sum_p, false);
            else
                attention_nothing(at, to);
        }
}

static void exponentials(const struct attention_job *g, const struct attention_rows *a,
                         const float *m, float *x, uint16_t *code, int64_t line)
{
    const struct attention_exp e = attention_exp(g);
    const bool sum_p = attention_param(g, NG_ATTENTION_SUM_SOURCE) == NG_SUM_OF_P &&
                       g->pv.a->format == NG_BF16;
    const bool sleef = g->exp.kind == NG_FUNCTION_SLEEF;
    if (sleef && e.two)
        attention_rows_of(&e, NG_FUNCTION_SLEEF, NG_FN_EXP2, a, m, x, code, line, sum_p);
    else if (sleef)
        attention_rows_of(&e, NG_FUNCTION_SLEEF, NG_FN_EXP, a, m, x, code, line, sum_p);
    else if (e.two)
        attention_rows_of(&e, NG_FUNCTION_CR, NG_FN_EXP2, a, m, x, code, line, sum_p);
    else
        attention_rows_of(&e, NG_FUNCTION_CR, NG_FN_EXP, a, m, x, code, line, sum_p);
}

static void factors(const struct attention_job *g, int n, const float *x, const float *m,
                    float *y)
{
    const struct attention_exp e = attention_exp(g);
    const bool sleef = g->exp.kind == NG_FUNCTION_SLEEF;
    float from[VL] = { 0 }, less[VL] = { 0 }, to[VL];
    for (int i = 0; i < n; i += VL) {
        const size_t some = (size_t)(n - i < VL ? n - i : VL) * sizeof *x;
        memcpy(from, x + i, some);
        memcpy(less, m + i, some);
        const vec u = vec_load(from), w = vec_load(less);
        if (e.two)
            vec_store(to, sleef ? attention_e(&e, NG_FUNCTION_SLEEF, NG_FN_EXP2, u, w)
                                : attention_e(&e, NG_FUNCTION_CR, NG_FN_EXP2, u, w));
        else
            vec_store(to, sleef ? attention_e(&e, NG_FUNCTION_SLEEF, NG_FN_EXP, u, w)
                                : attention_e(&e, NG_FUNCTION_CR, NG_FN_EXP, u, w));
        memcpy(y + i, to, some);
    }
}

/* ---- The denominator (69): sums along keys. ---- */

/* Positions [from, to) of every row, one after another. */
static void attention_piece(const struct attention_rows *a, const float *x, int64_t from,
                            int64_t to, float sum[ATTENTION_ROWS])
{
    for (int r = 0; r < a->rows; r++)
        sum[r] = 0; /* summands are +0 or more: +0 first changes none */
    for (int64_t p = from; p < to;) {
        const int64_t left = a->nr - p % a->nr, n = to - p < left ? to - p : left;
        const float *at = x + p / a->nr * a->mr * a->nr + p % a->nr;
        for (int64_t i = 0; i < n; i++)
            for (int r = 0; r < a->rows; r++)
                sum[r] += at[r * a->nr + i];
        p += n;
    }
}

/* Lanes: `rows` (1, 2, 4, 8) rows of each of some pieces. */
struct attention_lanes {
    const struct attention_rows *a;
    const float *x;
    int64_t piece, end; /* keys of a piece; positions that x has */
    int rows;
};

/* VL positions of each lane's piece: those of the first piece from p on, of the next ones
 * `piece` further; lane l of v[k] becomes position k. */
FUNCTION_INLINE void attention_lanes_load(const struct attention_lanes *l, int64_t p,
                                          ivec v[VL])
{
    for (int i = 0; i < VL; i += l->rows, p += l->piece) {
        const bool there = p >= 0 && p < l->end;
        const uint32_t nr = (uint32_t)l->a->nr, at = there ? (uint32_t)p : 0;
        const float *first = l->x + (int64_t)(at / nr) * l->a->mr * nr + at % nr;
        for (int r = 0; r < l->rows; r++)
            v[i + r] = there && r < l->a->rows ? iv_load(first + (int64_t)r * nr) : iv_all(0);
    }
    iv_transpose(v);
}

/*
 * `turns` times VL / rows pieces, from the one that begins at position p on, to
 * sum[][ATTENTION_ROWS]: as many as can wait for an addition at once. Zeros stand where a piece
 * has no position.
 */
FUNCTION_INLINE void attention_pieces(const struct attention_lanes *l, int64_t p, int64_t n,
                                      const int turns, float *sum)
{
    const int64_t each = VL / l->rows;
    float out[2 * VL];
    vec s[2] = { vec_zero(), vec_zero() };
    for (int64_t i = 0; i < l->piece; i += VL)
        for (int t = 0; t < turns; t++) {
            ivec v[VL];
            attention_lanes_load(l, p + t * each * l->piece + i, v);
            for (int k = 0; k < VL; k++)
                s[t] = vec_add(s[t], iv_float(v[k]));
        }
    for (int t = 0; t < turns; t++)
        vec_store(out + t * VL, s[t]);
    for (int64_t i = 0; i < turns * each && i < n; i++)
        memcpy(sum + i * ATTENTION_ROWS, out + i * l->rows, (size_t)l->rows * sizeof *sum);
}

static void sums(const struct attention_rows *a, int64_t piece, int64_t first, const float *x,
                 float *sum)
{
    const int64_t begin = -(first % piece),
                  groups = attention_group_of(a->keys + ATTENTION_GROUP - 1),
                  n = (a->keys - begin + piece - 1) / piece;
    struct attention_lanes l = { .a = a, .x = x, .piece = piece, .end = groups, .rows = 1 };
    while (l.rows < a->rows)
        l.rows *= 2;
    if (piece % VL == 0 && first % VL == 0) {
        const int64_t each = VL / l.rows;
        for (int64_t i = 0; i < n; i += 2 * each)
            if (n - i > each)
                attention_pieces(&l, begin + i * piece, n - i, 2, sum + i * ATTENTION_ROWS);
            else
                attention_pieces(&l, begin + i * piece, n - i, 1, sum + i * ATTENTION_ROWS);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = begin + i * piece, to = from + piece;
        attention_piece(a, x, from > 0 ? from : 0, to < a->keys ? to : a->keys,
                        sum + i * ATTENTION_ROWS);
    }
}

/* ---- Backward: e and ds (79). ---- */

struct attention_gradient {
    struct attention_scoring score;
    struct attention_exp exp;
    bool weighted; /* statistics max_sum */
};

/* ATTENTION_GROUP positions: products become e and ds, in place, and bf16 codes. Inf and NaN
 * pass as in scalars: a quiet NaN keeps its bit in bf16. */
FUNCTION_INLINE void attention_gradient_group(const struct attention_gradient *how,
                                              const ng_function_kind kind, const ng_function f,
                                              const struct attention_rows *a,
                                              const struct attention_terms *t, int64_t p, int r,
                                              float *x, float *y)
{
    const vec one = function_constant(1), m = vec_all(&t->m[r]), by = vec_all(&t->by[r]),
              sum = vec_all(&t->d[r]);
    ivec e_code[GROUP_VECTORS], ds_code[GROUP_VECTORS];
    float *at_x = attention_at(a, x, p, r), *at_y = attention_at(a, y, p, r);
    for (int q = 0; q < GROUP_VECTORS; q++) {
        const imask sees = attention_sees(a, p + q * VL, r);
        vec tanh = vec_zero();
        const vec s = attention_score(&how->score, vec_load(at_x + q * VL), &tanh);
        vec e = attention_e(&how->exp, kind, f, s, m);
        if (how->weighted)
            e = vec_mul(e, by);
        vec ds = vec_mul(e, vec_sub(vec_load(at_y + q * VL), sum));
        if (how->score.capped)
            ds = vec_mul(ds, vec_sub(one, vec_mul(tanh, tanh)));
        const ivec u = iv_where(sees, iv_bits(e)), w = iv_where(sees, iv_bits(ds));
        e_code[q] = iv_srl_by(attention_bf16(u), 16);
        ds_code[q] = iv_srl_by(attention_bf16(w), 16);
        vec_store(at_x + q * VL, iv_float(u));
        vec_store(at_y + q * VL, iv_float(w));
    }
    if (t->e) {
        iv_store16(t->e + r * t->line + p, e_code, 0);
        iv_store16(t->ds + r * t->line + p, ds_code, 0);
    }
}

FUNCTION_INLINE void attention_gradients_of(const struct attention_gradient *how,
                                            const ng_function_kind kind, const ng_function f,
                                            const struct attention_rows *a,
                                            const struct attention_terms *t, float *x, float *y)
{
    for (int r = 0; r < a->rows; r++)
        for (int64_t p = 0; p < a->keys; p += ATTENTION_GROUP)
            attention_gradient_group(how, kind, f, a, t, p, r, x, y);
}

static void gradients(const struct attention_job *g, const struct attention_rows *a,
                      const struct attention_terms *t, float *x, float *y)
{
    const struct attention_gradient how = {
        .score = attention_scoring(g),
        .exp = attention_exp(g),
        .weighted = attention_param(g, NG_ATTENTION_STATISTICS) == NG_STATISTICS_MAX_SUM
    };
    const bool sleef = g->exp.kind == NG_FUNCTION_SLEEF;
    if (sleef && how.exp.two)
        attention_gradients_of(&how, NG_FUNCTION_SLEEF, NG_FN_EXP2, a, t, x, y);
    else if (sleef)
        attention_gradients_of(&how, NG_FUNCTION_SLEEF, NG_FN_EXP, a, t, x, y);
    else if (how.exp.two)
        attention_gradients_of(&how, NG_FUNCTION_CR, NG_FN_EXP2, a, t, x, y);
    else
        attention_gradients_of(&how, NG_FUNCTION_CR, NG_FN_EXP, a, t, x, y);
}

/* ---- The running output (71, 73). ---- */

static void combine(attention_combine how, int64_t n, float by, const float *w, float *o)
{
    const vec f = vec_all(&by);
    for (int64_t i = 0; i < n; i += VL) {
        const vec x = vec_load(o + i);
        switch (how) {
        case ATTENTION_ADD: vec_store(o + i, vec_add(x, vec_load(w + i))); break;
        case ATTENTION_TWO: vec_store(o + i, vec_add(vec_mul(x, f), vec_load(w + i))); break;
        case ATTENTION_FMA: vec_store(o + i, vec_fma(x, f, vec_load(w + i))); break;
        case ATTENTION_TIMES: vec_store(o + i, vec_mul(x, f)); break;
        case ATTENTION_OVER: vec_store(o + i, vec_div(x, f)); break;
        }
    }
}

#define ATTENTION_KERNEL(kernel)                                                               \
    extern const struct ng_attention_kernel ng_##kernel;                                       \
    const struct ng_attention_kernel ng_##kernel = { .name = #kernel,                          \
                                                     .refuses = refuses,                       \
                                                     .scores = scores,                         \
                                                     .exponentials = exponentials,             \
                                                     .factors = factors,                       \
                                                     .sums = sums,                             \
                                                     .gradients = gradients,                   \
                                                     .combine = combine }

#endif
