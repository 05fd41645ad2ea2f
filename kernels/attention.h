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
 * its score and its column of v; all else here is a load, an operation and a store. Where a row
 * sees a panel whole, as it nearly always does, no position is looked at.
 */
#ifndef NG_KERNELS_ATTENTION_H
#define NG_KERNELS_ATTENTION_H

#include "bf16.h"
#include "elementary.h"

enum {
    GROUP_VECTORS = ATTENTION_GROUP / VL
};

/* attention_short() stores a group's bf16 codes, of FP32 numbers that are normal or zero, by an
 * instruction. */
#ifndef ATTENTION_SHORT
#define ATTENTION_SHORT 0
FUNCTION_INLINE void attention_short(uint16_t *code, const vec *y)
{
    (void)code;
    (void)y;
}
#endif

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

/* Are scores what is scaled? */
static bool attention_scales(const struct attention_job *g)
{
    return g->op->scale && attention_param(g, NG_ATTENTION_SCALE_PLACE) == NG_PLACE_SCORES;
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
        .scaled = attention_scales(g),
        .capped = g->op->softcap != 0,
        .divide = attention_param(g, NG_ATTENTION_CAP_ARGUMENT) == NG_DIVISION_DIVIDE,
        .tanh = g->tanh.kind
    };
}

/* Under a cap *y is its tanh. */
FUNCTION_INLINE vec attention_score(const struct attention_scoring *s, vec x, vec *y)
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

/* Groups that row r sees anything of. */
FUNCTION_INLINE void attention_row_scores(const struct attention_scoring *s,
                                          const struct attention_rows *a, int r, float *x,
                                          struct attention_seen *seen)
{
    const int64_t nr = a->nr, begin = a->begin[r], end = a->end[r];
    int64_t p = begin / nr * nr;
    float *at = attention_at(a, x, p, r);
    for (; p < end; p += nr, at += a->mr * nr) {
        if (begin <= p && p + nr <= end) {
            for (int64_t q = 0; q < nr; q += VL)
                attention_scores_at(s, a, p + q, r, true, at + q, seen);
            continue;
        }
        for (int64_t q = 0; q < nr; q += VL) {
            const int64_t group = p + q / ATTENTION_GROUP * ATTENTION_GROUP;
            if (group + ATTENTION_GROUP > begin && group < end)
                attention_scores_at(s, a, p + q, r, false, at + q, seen);
        }
    }
}

/*
 * FP32 products whose scale only exponentials() applies: a positive one leaves the largest
 * product the largest score, and one of at most 1 makes no Inf. So all that there is to do is
 * to look at them: no score is written twice.
 */
static bool attention_waits(const struct attention_job *g)
{
    const float scale = attention_scales(g) ? as_float(g->op->scale) : 1;
    return attention_param(g, NG_ATTENTION_SCORE_FORMAT) != NG_BF16 && g->op->softcap == 0 &&
           scale > 0 && scale <= 1;
}

/* Of a row's visible products: the largest; and 0 times each, summed: NaN if one is not finite.
 * As many of both as there are vectors at once, which do not wait for each other. */
struct attention_largest_of {
    vec most[FUNCTION_MANY], zero[FUNCTION_MANY];
};

static struct attention_largest_of attention_nothing_seen(void)
{
    struct attention_largest_of seen;
    for (int q = 0; q < FUNCTION_MANY; q++) {
        seen.most[q] = function_constant(-__builtin_inff());
        seen.zero[q] = vec_zero();
    }
    return seen;
}

/* One vector more; `whole`: all lanes are visible, not only those of `sees`. */
FUNCTION_INLINE void attention_look(struct attention_largest_of *seen, int q, vec x,
                                    const bool whole, imask sees)
{
    const vec most = seen->most[q];
    if (whole) {
        seen->most[q] = vec_max(most, x);
    } else {
        seen->most[q] = vec_max(most, iv_float(iv_pick(sees, iv_bits(x), iv_bits(most))));
        x = iv_float(iv_where(sees, iv_bits(x)));
    }
    seen->zero[q] = vec_fma(x, vec_zero(), seen->zero[q]);
}

FUNCTION_INLINE void attention_products_at(const struct attention_rows *a, int64_t p, int r,
                                           const int n, const bool whole, const float *at,
                                           struct attention_largest_of *seen)
{
    IV_UNROLL
    for (int q = 0; q < n; q++)
        attention_look(seen, q, vec_load(at + q * VL), whole,
                       whole ? im_all() : attention_sees(a, p + q * VL, r));
}

/* The largest product that row r sees, n vectors at a time. */
FUNCTION_INLINE float attention_row_products(const struct attention_rows *a, int r, const int n,
                                             const float *x, bool *special)
{
    const int64_t nr = a->nr, begin = a->begin[r], end = a->end[r];
    struct attention_largest_of seen = attention_nothing_seen();
    int64_t p = begin / nr * nr;
    const float *at = attention_at(a, (float *)x, p, r);
    for (; p < end; p += nr, at += a->mr * nr) {
        if (begin <= p && p + nr <= end)
            for (int64_t q = 0; q < nr; q += n * VL)
                attention_products_at(a, p + q, r, n, true, at + q, &seen);
        else
            for (int64_t q = 0; q < nr; q += ATTENTION_GROUP)
                if (p + q + ATTENTION_GROUP > begin && p + q < end)
                    attention_products_at(a, p + q, r, GROUP_VECTORS, false, at + q, &seen);
    }
    IV_UNROLL
    for (int q = 1; q < n; q++) {
        seen.most[0] = vec_max(seen.most[0], seen.most[q]);
        seen.zero[0] = vec_add(seen.zero[0], seen.zero[q]);
    }
    *special = im_differs(iv_bits(seen.zero[0]), iv_all(0));
    return attention_largest(seen.most[0]);
}

static uint32_t attention_products(const struct attention_job *g,
                                   const struct attention_rows *a, const float *x, float *best)
{
    const float scale = attention_scales(g) ? as_float(g->op->scale) : 1;
    uint32_t special = 0;
    for (int r = 0; r < a->rows; r++) {
        bool here;
        if (a->nr % (FUNCTION_MANY * VL))
            best[r] = attention_row_products(a, r, GROUP_VECTORS, x, &here) * scale;
        else
            best[r] = attention_row_products(a, r, FUNCTION_MANY, x, &here) * scale;
        special |= (uint32_t)here << r;
    }
    return special;
}

static uint32_t scores(const struct attention_job *g, const struct attention_rows *a, float *x,
                       float *best)
{
    if (attention_waits(g))
        return attention_products(g, a, x, best);
    const struct attention_scoring s = attention_scoring(g);
    uint32_t special = 0;
    for (int r = 0; r < a->rows; r++) {
        struct attention_seen seen = { function_constant(-__builtin_inff()), iv_all(0) };
        attention_row_scores(&s, a, r, x, &seen);
        best[r] = attention_largest(seen.most);
        special |= (uint32_t)im_any(iv_gt(seen.size, iv_all(0x7F7FFFFFu))) << r;
    }
    return special;
}

/* ---- Exponentials (68) and P (69). ---- */

#define ATTENTION_LOG2_E 0x1.715476p+0F /* RN(log2 e) */

/* E(x; m), m the same for all lanes or not. */
struct attention_exp {
    vec c, m; /* scale_place exp: what a score and m are multiplied by */
    bool inside, two;
};

static struct attention_exp attention_exp(const struct attention_job *g)
{
    const vec log2_e = function_constant(ATTENTION_LOG2_E);
    const float scale = g->op->scale ? as_float(g->op->scale) : 1;
    const bool two = attention_param(g, NG_ATTENTION_EXP_BASE) == NG_EXP_BASE_2,
               inside = attention_param(g, NG_ATTENTION_SCALE_PLACE) == NG_PLACE_EXP;
    const vec given = vec_all(&scale), c = !inside ? log2_e
                                           : two   ? vec_mul(given, log2_e)
                                                   : given;
    return (struct attention_exp){ .c = c, .m = c, .inside = inside, .two = two };
}

/* What of m is added to a score: -m, or -RN(m c). */
FUNCTION_INLINE vec attention_less(const struct attention_exp *e, vec m)
{
    const ivec x = iv_bits(e->inside ? vec_mul(m, e->m) : m);
    return iv_float(iv_xor(x, iv_all(0x80000000u)));
}

/* What the function is taken of. */
FUNCTION_INLINE vec attention_below(const struct attention_exp *e, const ng_function f, vec x,
                                    vec less)
{
    vec d;
    if (e->inside)
        d = vec_fma(x, e->c, less);
    else if (f == NG_FN_EXP2)
        d = vec_mul(vec_add(x, less), e->c);
    else
        d = vec_add(x, less);
    return d;
}

FUNCTION_INLINE vec attention_e(const struct attention_exp *e, const ng_function_kind kind,
                                const ng_function f, vec x, vec m)
{
    return function_vector(kind, f, attention_below(e, f, x, attention_less(e, m)));
}

/* Where exponentials go on, and where their codes go. */
struct attention_run {
    vec less[ATTENTION_ROWS], factor; /* factor: of scores that wait for it, or 1 */
    float *x;
    uint16_t *code;
    int64_t line;
    bool sum_p;
};

/*
 * `n` vectors of positions, whole groups: scores become exponentials, in place, and bf16 codes.
 * A NaN among them is the canonical one. `whole`: row r sees all of them.
 */
FUNCTION_INLINE void attention_group(const struct attention_exp *e, const ng_function_kind kind,
                                     const ng_function f, const struct attention_rows *a,
                                     int64_t p, int r, const struct attention_run *to,
                                     const int n, float *at, uint16_t *code, const bool whole)
{
    ivec rounded[FUNCTION_MANY];
    vec d[FUNCTION_MANY], y[FUNCTION_MANY];
    for (int q = 0; q < n; q++)
        d[q] = attention_below(e, f, vec_mul(vec_load(at + q * VL), to->factor), to->less[r]);
    /* a product of its own is rounded and may be somewhat above m */
    const bool normal = function_vectors(kind, f, !e->inside, d, n, y);
    for (int q = 0; !whole && q < n; q++)
        y[q] = iv_float(iv_where(attention_sees(a, p + q * VL, r), iv_bits(y[q])));
    if (normal && ATTENTION_SHORT && code && !to->sum_p) {
        for (int q = 0; q < n; q++)
            vec_store(at + q * VL, y[q]);
        for (int q = 0; q < n; q += IV_GROUP_VECTORS)
            attention_short(code + q * VL, y + q);
        return;
    }
    for (int q = 0; q < n; q++) {
        rounded[q] = attention_nearest(iv_bits(y[q]));
        vec_store(at + q * VL,
                  to->sum_p ? iv_float(iv_and(rounded[q], iv_all(0xFFFF0000u))) : y[q]);
    }
    for (int q = 0; code && q < n; q += IV_GROUP_VECTORS)
        iv_store_upper(code + q * VL, rounded + q);
}

/* A group that row r does not see. */
static void attention_nothing(float *at, uint16_t *code)
{
    memset(at, 0, ATTENTION_GROUP * sizeof *at);
    if (code)
        memset(code, 0, ATTENTION_GROUP * sizeof *code);
}

/* Does row r see all of the panel with position p? */
FUNCTION_INLINE bool attention_whole(const struct attention_rows *a, int64_t p, int r)
{
    return a->begin[r] <= p && p + a->nr <= a->end[r];
}

/* A panel's columns from position p on, up to `end`, of row r, which does not see all. */
FUNCTION_INLINE void attention_edge(const struct attention_exp *e, const ng_function_kind kind,
                                    const ng_function f, const struct attention_rows *a,
                                    int64_t p, int64_t end, int r,
                                    const struct attention_run *to)
{
    float *at = attention_at(a, to->x, p, r);
    for (; p < end; p += ATTENTION_GROUP, at += ATTENTION_GROUP) {
        uint16_t *code = to->code ? to->code + r * to->line + p : NULL;
        if (p < a->end[r] && a->begin[r] < p + ATTENTION_GROUP)
            attention_group(e, kind, f, a, p, r, to, GROUP_VECTORS, at, code, false);
        else
            attention_nothing(at, code);
    }
}

/* Panels that rows see whole, `n` vectors at a time. */
FUNCTION_INLINE void attention_inner(const struct attention_exp *e, const ng_function_kind kind,
                                     const ng_function f, const struct attention_rows *a,
                                     const struct attention_run *to, const int n)
{
    const int64_t nr = a->nr;
    for (int64_t p = 0; p < a->keys; p += n * VL) {
        const int64_t first = p / nr * nr;
        float *x = to->x + first * a->mr + p % nr;
        for (int r = 0; r < a->rows; r++)
            if (attention_whole(a, first, r))
                attention_group(e, kind, f, a, p, r, to, n, x + r * nr,
                                to->code ? to->code + r * to->line + p : NULL, true);
    }
}

/* `inside`: given->inside, or a constant. */
FUNCTION_INLINE void attention_rows_of(const struct attention_exp *given, const bool inside,
                                       const ng_function_kind kind, const ng_function f,
                                       const struct attention_rows *a, const float *m,
                                       struct attention_run *to)
{
    const int64_t nr = a->nr;
    struct attention_exp own = *given;
    const struct attention_exp *e = &own;
    own.inside = inside;
    for (int r = 0; r < a->rows; r++)
        to->less[r] = attention_less(e, vec_all(&m[r]));
    if (nr % (FUNCTION_MANY * VL))
        attention_inner(e, kind, f, a, to, GROUP_VECTORS);
    else
        attention_inner(e, kind, f, a, to, FUNCTION_MANY);
    for (int64_t p = 0; p < a->keys; p += nr)
        for (int r = 0; r < a->rows; r++)
            if (!attention_whole(a, p, r))
                attention_edge(e, kind, f, a, p, p + nr < a->keys ? p + nr : a->keys, r, to);
}

/* does(inside, kind, function): constants, but for SLEEF's `inside`. */
#define ATTENTION_KINDS(g, e, does)                                                            \
    do {                                                                                       \
        const bool sleef = (g)->exp.kind == NG_FUNCTION_SLEEF;                                 \
        if (sleef && (e).two)                                                                  \
            does((e).inside, NG_FUNCTION_SLEEF, NG_FN_EXP2);                                   \
        else if (sleef)                                                                        \
            does((e).inside, NG_FUNCTION_SLEEF, NG_FN_EXP);                                    \
        else if ((e).inside && (e).two)                                                        \
            does(true, NG_FUNCTION_CR, NG_FN_EXP2);                                            \
        else if ((e).inside)                                                                   \
            does(true, NG_FUNCTION_CR, NG_FN_EXP);                                             \
        else if ((e).two)                                                                      \
            does(false, NG_FUNCTION_CR, NG_FN_EXP2);                                           \
        else                                                                                   \
            does(false, NG_FUNCTION_CR, NG_FN_EXP);                                            \
    } while (0)

static void exponentials(const struct attention_job *g, const struct attention_rows *a,
                         const float *m, float *x, uint16_t *code, int64_t line)
{
    const struct attention_exp e = attention_exp(g);
    const float scale = attention_waits(g) && attention_scales(g) ? as_float(g->op->scale) : 1;
    struct attention_run to = { .factor = vec_all(&scale),
                                .x = x,
                                .code = code,
                                .line = line,
                                .sum_p = attention_param(g, NG_ATTENTION_SUM_SOURCE) ==
                                             NG_SUM_OF_P &&
                                         g->pv.a->format == NG_BF16 };
#define ROWS(inside, kind, f) attention_rows_of(&e, inside, kind, f, a, m, &to)
    ATTENTION_KINDS(g, e, ROWS);
#undef ROWS
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

/* Positions [from, to) of every row of a panel, one after another. */
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

/* Lanes: a row's piece each, the rows of a piece, of all panels, next to each other. All pieces
 * begin in the same place of a panel, or all lie inside one. */
struct attention_lanes {
    const struct attention_rows *a;
    const float *x[ATTENTION_ADDED]; /* rows */
    float *sum[ATTENTION_ADDED];     /* and the sums of their first pieces */
    int64_t rows;
    int64_t piece, begin; /* positions of a piece; where the first one begins */
    int64_t whole, rest;  /* lanes of whole pieces, of others only `rest` positions are there */
    const float *at[2 * VL];
    vec total[2];
};

/* VL positions of each of VL lanes, from position `i` of their pieces on, one by one. */
FUNCTION_INLINE vec attention_lanes_add(const struct attention_lanes *l, int set, int64_t i)
{
    const int64_t nr = l->a->nr, offset = i / nr * l->a->mr * nr + i % nr;
    vec s = l->total[set];
    ivec v[VL];
    IV_UNROLL
    for (int k = 0; k < VL; k++)
        v[k] = iv_load(l->at[set * VL + k] + offset);
    iv_transpose(v);
    IV_UNROLL
    for (int k = 0; k < VL; k++)
        s = vec_add(s, iv_float(v[k]));
    return s;
}

/* Positions [from, to) of all lanes, two sets of them if there are: while one waits for an
 * addition the other has its own. */
static void attention_lanes_run(struct attention_lanes *l, bool two, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i += VL) {
        l->total[0] = attention_lanes_add(l, 0, i);
        if (two)
            l->total[1] = attention_lanes_add(l, 1, i);
    }
}

/* Where the pieces of lanes [first, first + n) begin; lanes too many are the first one again.
 */
static void attention_lanes_find(struct attention_lanes *l, int64_t first, int64_t n)
{
    const int64_t nr = l->a->nr;
    int64_t r = first % l->rows, p = l->begin + first / l->rows * l->piece;
    for (int64_t i = 0; i < n; p += l->piece, r = 0) {
        const int64_t offset = p / nr * l->a->mr * nr + p % nr;
        for (; r < l->rows && i < n; r++)
            l->at[i++] = l->x[r] + offset;
    }
    for (int64_t i = n; i % VL; i++)
        l->at[i] = l->at[0];
}

/* What lanes [from, to) of those from `first` on have by now. */
static void attention_lanes_put(const struct attention_lanes *l, int64_t first, int64_t from,
                                int64_t to)
{
    float out[2 * VL];
    int64_t r = (first + from) % l->rows, piece = (first + from) / l->rows;
    vec_store(out, l->total[0]);
    vec_store(out + VL, l->total[1]);
    for (int64_t i = from; i < to; piece++, r = 0)
        for (; r < l->rows && i < to; r++)
            l->sum[r][piece * ATTENTION_ROWS] = out[i++];
}

/* Lanes [first, first + n), n at most 2 VL. */
static void attention_lanes_sum(struct attention_lanes *l, int64_t first, int64_t n)
{
    const int64_t here = l->whole - first,
                  whole = here < 0   ? 0
                          : here < n ? here
                                     : n,
                  rest = whole < n ? l->rest : 0;
    l->total[0] = l->total[1] = vec_zero(); /* summands are +0 or more: +0 first changes none */
    attention_lanes_find(l, first, n);
    attention_lanes_run(l, n > VL, 0, rest);
    attention_lanes_put(l, first, whole, n);
    if (!whole)
        return;
    for (int64_t i = whole; i < n; i++) /* their pieces have ended */
        l->at[i] = l->at[0];
    attention_lanes_run(l, n > VL, rest, l->piece);
    attention_lanes_put(l, first, 0, whole);
}

static void attention_lanes_all(struct attention_lanes *l, int64_t pieces)
{
    const int64_t n = pieces * l->rows;
    for (int64_t i = 0; i < n; i += 2 * VL)
        attention_lanes_sum(l, i, n - i < 2 * VL ? n - i : 2 * VL);
}

static void sums(const struct attention_addends *t, int64_t piece, int64_t first)
{
    const struct attention_rows *a = t->a;
    const int64_t begin = -(first % piece), nr = a->nr,
                  there = (a->keys + ATTENTION_GROUP - 1) / ATTENTION_GROUP * ATTENTION_GROUP,
                  n = (a->keys - begin + piece - 1) / piece;
    struct attention_lanes l = { .a = a, .piece = piece };
    if (piece % VL || first % nr || (piece % nr && nr % piece)) {
        for (int32_t p = 0; p < t->panels; p++)
            for (int64_t i = 0; i < n; i++) {
                const int64_t from = begin + i * piece, to = from + piece;
                attention_piece(&a[p], t->x[p], from > 0 ? from : 0,
                                to < a->keys ? to : a->keys, t->sum[p] + i * ATTENTION_ROWS);
            }
        return;
    }
    for (int32_t p = 0; p < t->panels; p++)
        for (int r = 0; r < a[p].rows; r++, l.rows++) {
            l.x[l.rows] = t->x[p] + r * nr;
            l.sum[l.rows] = t->sum[p] + r;
        }
    const int64_t cut = begin < 0; /* a first piece whose beginning is not there */
    if (cut) {
        l.rest = begin + piece < there ? begin + piece : there;
        attention_lanes_all(&l, 1);
        for (int64_t r = 0; r < l.rows; r++)
            l.sum[r] += ATTENTION_ROWS;
    }
    l.begin = begin + cut * piece;
    const int64_t left = n - cut, whole = (there - l.begin) / piece;
    l.whole = (whole < left ? whole : left) * l.rows;
    l.rest = there - l.begin - whole * piece;
    attention_lanes_all(&l, left);
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
    const vec one = function_constant(1), less = attention_less(&how->exp, vec_all(&t->m[r])),
              by = vec_all(&t->by[r]), sum = vec_all(&t->d[r]);
    vec tanh[GROUP_VECTORS], d[GROUP_VECTORS], e[GROUP_VECTORS];
    ivec e_code[GROUP_VECTORS], ds_code[GROUP_VECTORS];
    float *at_x = attention_at(a, x, p, r), *at_y = attention_at(a, y, p, r);
    for (int q = 0; q < GROUP_VECTORS; q++) {
        const vec s = attention_score(&how->score, vec_load(at_x + q * VL), &tanh[q]);
        d[q] = attention_below(&how->exp, f, s, less);
    }
    (void)function_vectors(kind, f, false, d, GROUP_VECTORS, e);
    for (int q = 0; q < GROUP_VECTORS; q++) {
        const imask sees = attention_sees(a, p + q * VL, r);
        if (how->weighted)
            e[q] = vec_mul(e[q], by);
        vec ds = vec_mul(e[q], vec_sub(vec_load(at_y + q * VL), sum));
        if (how->score.capped)
            ds = vec_mul(ds, vec_sub(one, vec_mul(tanh[q], tanh[q])));
        const ivec u = iv_where(sees, iv_bits(e[q])), w = iv_where(sees, iv_bits(ds));
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
    struct attention_gradient how = { .score = attention_scoring(g),
                                      .exp = attention_exp(g),
                                      .weighted = attention_param(g, NG_ATTENTION_STATISTICS) ==
                                                  NG_STATISTICS_MAX_SUM };
    if (!how.weighted) /* m is lse, of scaled scores */
        how.exp.m = function_constant(how.exp.two ? ATTENTION_LOG2_E : 1);
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

FUNCTION_INLINE vec attention_combined(attention_combine how, vec x, vec f, const float *w)
{
    switch (how) {
    case ATTENTION_ADD: return vec_add(x, vec_load(w));
    case ATTENTION_TWO: return vec_add(vec_mul(x, f), vec_load(w));
    case ATTENTION_FMA: return vec_fma(x, f, vec_load(w));
    case ATTENTION_TIMES: return vec_mul(x, f);
    case ATTENTION_OVER: break;
    }
    return vec_div(x, f);
}

static void combine(attention_combine how, int64_t n, float by, const float *w, float *o)
{
    const vec f = vec_all(&by);
    for (int64_t i = 0; i < n; i += VL)
        vec_store(o + i, attention_combined(how, vec_load(o + i), f, w ? w + i : NULL));
}

#include "attention_wide.h"

#define ATTENTION_KERNEL(kernel)                                                               \
    extern const struct ng_attention_kernel ng_##kernel;                                       \
    const struct ng_attention_kernel ng_##kernel = { .name = #kernel,                          \
                                                     .refuses = refuses,                       \
                                                     .scores = scores,                         \
                                                     .exponentials = exponentials,             \
                                                     .factors = factors,                       \
                                                     .sums = sums,                             \
                                                     .gradients = gradients,                   \
                                                     .combine = combine,                       \
                                                     .wide_takes = wide_takes,                 \
                                                     .wide_largest = wide_largest,             \
                                                     .wide_exponentials = wide_exponentials,   \
                                                     .wide_combine = wide_combine,             \
                                                     .wide_rows = wide_rows,                   \
                                                     .wide_turn = wide_turn }

#endif
