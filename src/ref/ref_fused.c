/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fused sums: NVIDIA tensor cores, AMD matrix cores. Numerics: docs/numerics.md, sections 4.2
 * and 11.3; the numbers in parentheses are items of 11.3.
 *
 * One step takes L exact products, and with C in the step also C: (a) the largest exponent,
 * (b) every term as an integer with F bits below it, the rest dropped, (c) the integer sum,
 * which no order can change, (d) one rounding. Sources: the profiles' rows.
 */
#include "ref.h"

/* Products of one step: 32 of 16-term exact groups at most; profile.c checks the bound. */
enum {
    MAX_TERMS = 64
};

/* A term: sig * 2^lsb, whose exponent for alignment is `exp`: not normalised (23). */
struct term {
    uint64_t sig;
    int lsb, exp;
    bool neg;
};

struct step {
    struct term term[MAX_TERMS];
    int64_t n;
    bool nan, pos_inf, neg_inf;
};

static void step_begin(struct step *s)
{
    s->n = 0;
    s->nan = s->pos_inf = s->neg_inf = false;
}

/* ---- Terms. ---- */

/* The exponent of a code's leading place: that of the least normal number for a subnormal. */
static int exponent_of(ng_value v, const ng_format_spec *f)
{
    return v.exp + (int)(f->man_bits + f->low_bits);
}

/* The same of an operand that is not zero, as the unit has it (23). */
static int operand_exponent(const struct gemm_job *g, ng_value v, const ng_format_spec *f)
{
    enum {
        F16_EMIN = -14
    };
    if (ng_ref_param(g, NG_PARAM_OPERAND_EXP) == NG_OPERAND_EXP_OWN)
        return exponent_of(v, f);
    return ng_num_exponent(v) > F16_EMIN ? ng_num_exponent(v) : F16_EMIN;
}

static void note_special(struct step *s, ng_value v)
{
    if (ng_num_is_nan(v))
        s->nan = true;
    else if (ng_num_is_inf(v))
        *(v.neg ? &s->neg_inf : &s->pos_inf) = true;
}

/* 1.0 stands for "no scale": exponent 0. ue4m3's significand has three fraction bits. */
static int scale_exponent(ng_value scale, const struct gemm_operand *o)
{
    return o->scale && o->scale_spec->format == NG_UE4M3 ? exponent_of(scale, o->scale_spec)
                                                         : scale.exp;
}

/* The sum of both scales' exponents. */
static int scales_exponent(const struct gemm_job *g, const struct ng_pair *p)
{
    return scale_exponent(p->scale_a, &g->a) + scale_exponent(p->scale_b, &g->b);
}

static void add_term(const struct gemm_job *g, struct step *s, uint64_t sig, int lsb, int exp,
                     bool neg)
{
    if (!sig) {
        if (ng_ref_param(g, NG_PARAM_ZERO_EXP) == NG_ZERO_SKIP)
            return;
        exp = lsb = -126;
    }
    s->term[s->n++] = (struct term){ .sig = sig, .lsb = lsb, .exp = exp, .neg = neg };
}

static void add_product(const struct gemm_job *g, struct step *s, int64_t i, int64_t j,
                        int64_t k)
{
    const struct ng_pair p = ng_ref_pair(g, i, j, k);
    const ng_value x = ng_ref_product(&p);
    if (x.cls != NG_CLASS_FINITE) {
        note_special(s, x);
        return;
    }
    if (x.sig && ng_ref_param(g, NG_PARAM_PRODUCT_INF) && ng_num_exponent(x) >= 128) {
        note_special(s, ng_num_inf(x.neg));
        return;
    }
    /* A zero operand's product has the other's exponent only through zero_exp = emin. */
    const int za = p.a.sig ? operand_exponent(g, p.a, g->a.spec) : -126;
    const int zb = p.b.sig ? operand_exponent(g, p.b, g->b.spec) : -126;
    if (!x.sig && ng_ref_param(g, NG_PARAM_ZERO_EXP) == NG_ZERO_EMIN) {
        s->term[s->n++] = (struct term){ .exp = za + zb + scales_exponent(g, &p) };
        return;
    }
    int exp = za + zb + scales_exponent(g, &p);
    if (x.sig && ng_ref_param(g, NG_PARAM_PRODUCT_NORM) == NG_NORM_RENORM)
        exp = ng_num_exponent(x);
    add_term(g, s, x.sig, x.exp, exp, x.neg);
}

/* A run of products summed exactly into one term under the scales' exponents (26). */
static void add_group(const struct gemm_job *g, struct step *s, int64_t i, int64_t j,
                      int64_t k0, int64_t k1)
{
    struct ng_sum sum;
    ng_sum_begin(&sum);
    int exp = 0;
    for (int64_t k = k0; k < k1; k++) {
        const struct ng_pair p = ng_ref_pair(g, i, j, k);
        const ng_value x = ng_ref_product(&p);
        note_special(s, x);
        if (x.cls == NG_CLASS_FINITE)
            ng_sum_add(&sum, x);
        if (k == k0 && p.scale_a.cls == NG_CLASS_FINITE && p.scale_b.cls == NG_CLASS_FINITE)
            exp = scales_exponent(g, &p);
    }
    /* FP4 products times two ue4m3 significands: at most 18 bits, so sig holds all of it. */
    const ng_value v = ng_sum_end(&sum);
    const int zeros = v.sig ? __builtin_ctzll(v.sig) : 0;
    add_term(g, s, v.sig >> zeros, v.exp + zeros, exp, v.neg);
}

/* ---- Integer sums. ---- */

static int largest_exponent(const struct step *s, int floor)
{
    int e = floor;
    for (int64_t i = 0; i < s->n; i++)
        if (s->term[i].exp > e)
            e = s->term[i].exp;
    return e;
}

/* The term in units of 2^unit, what lies below dropped by `round`: (b). */
static int64_t aligned(struct term t, int unit, ng_round round)
{
    const ng_value v = { .sig = t.sig, .exp = t.lsb, .neg = t.neg };
    const int shift = t.lsb - unit;
    uint64_t mag;
    if (!t.sig)
        return 0;
    if (shift >= 0) {
        mag = t.sig << shift; /* below 2^(F + 2): profile.c bounds F */
    } else {
        /* 63 bits above `unit` are more than a term has: only the unit matters here. */
        const ng_value r = ng_num_round(v, (struct ng_grid){ .bits = 63, .least = unit },
                                        ng_rounding_of(round));
        mag = r.sig << (r.exp - unit);
    }
    return t.neg ? -(int64_t)mag : (int64_t)mag;
}

static int64_t aligned_sum(const struct step *s, int unit, ng_round round)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < s->n; i++)
        sum += aligned(s->term[i], unit, round);
    return sum;
}

static ng_value from_integer(int64_t sum, int unit)
{
    const uint64_t mag = sum < 0 ? 0 - (uint64_t)sum : (uint64_t)sum;
    return (ng_value){ .sig = mag, .exp = unit, .neg = sum < 0 };
}

/* ---- Rounding into the accumulator: (19), (21), (22). ---- */

static ng_value round_into(ng_value v, int frac_bits, int emin, int emax, ng_round round)
{
    if (v.cls != NG_CLASS_FINITE || !v.sig)
        return v;
    const ng_value r =
        ng_num_round(v, (struct ng_grid){ .bits = frac_bits + 1, .least = emin - frac_bits },
                     ng_rounding_of(round));
    return r.sig && ng_num_exponent(r) > emax ? ng_num_inf(r.neg) : r;
}

static ng_value flush_result(const struct gemm_job *g, ng_value v)
{
    const int32_t flush = ng_ref_param(g, NG_PARAM_FLUSH_OUT);
    if (flush == NG_FLUSH_NONE || v.cls != NG_CLASS_FINITE || !v.sig ||
        ng_num_exponent(v) >= -126)
        return v;
    return ng_num_zero(flush == NG_FLUSH_SIGNED && v.neg);
}

static ng_value rounded_step(const struct gemm_job *g, ng_value v)
{
    if (g->acc == NG_F16) {
        const bool rtz = ng_ref_param(g, NG_PARAM_OUT_F16) == NG_F16_ACC_RTZ;
        return round_into(v, 10, -14, 15, rtz ? NG_ROUND_TOWARD_ZERO : NG_ROUND_TIES_TO_EVEN);
    }
    return round_into(v, ng_ref_param(g, NG_PARAM_OUT_BITS), -126, 127,
                      (ng_round)ng_ref_param(g, NG_PARAM_OUT_ROUND));
}

/* A step's result, as the unit writes it. */
static ng_value round_step(const struct gemm_job *g, ng_value v)
{
    const ng_value r = rounded_step(g, v);
    if (r.cls == NG_CLASS_FINITE && !r.sig && v.sig &&
        ng_ref_param(g, NG_PARAM_OUT_ZERO) == NG_OUT_ZERO_PLUS)
        return ng_num_zero(false);
    return g->acc == NG_F16 ? r : flush_result(g, r);
}

/* An ordinary addition in the accumulator's format, RN. */
static ng_value rounded_add(const struct gemm_job *g, ng_value a, ng_value b)
{
    const ng_value sum = ng_num_add(a, b);
    if (g->acc == NG_F16)
        return round_into(sum, 10, -14, 15, NG_ROUND_TIES_TO_EVEN);
    return flush_result(g, ng_num_round_f32(sum, NG_ROUND_TIES_TO_EVEN));
}

/* ---- One step. ---- */

static bool special_result(const struct step *s, ng_value *result)
{
    if (s->nan || (s->pos_inf && s->neg_inf))
        *result = ng_num_nan();
    else if (s->pos_inf || s->neg_inf)
        *result = ng_num_inf(s->neg_inf);
    else
        return false;
    return true;
}

/* C as one more term; its leading place is the accumulator's. */
static struct term c_term(const struct gemm_job *g, ng_value c)
{
    const int emin = g->acc == NG_F16 ? -14 : -126;
    const int exp = ng_num_exponent(c) > emin ? ng_num_exponent(c) : emin;
    return (struct term){ .sig = c.sig, .lsb = c.exp, .exp = exp, .neg = c.neg };
}

static int exponent_floor(const struct gemm_job *g)
{
    return ng_ref_param(g, g->acc == NG_F16 ? NG_PARAM_FLOOR_F16 : NG_PARAM_FLOOR_F32);
}

/* sum = align, C in the step (or none): NVIDIA. */
static ng_value align_step(const struct gemm_job *g, struct step *s, const ng_value *c)
{
    if (c) {
        note_special(s, *c);
        if (c->cls == NG_CLASS_FINITE && c->sig)
            s->term[s->n++] = c_term(g, *c);
        else if (ng_ref_param(g, NG_PARAM_ZERO_EXP) == NG_ZERO_EMIN)
            add_term(g, s, 0, 0, 0, false);
    }
    ng_value r;
    if (special_result(s, &r))
        return r;
    if (!s->n)
        return ng_num_zero(false);
    const int unit = largest_exponent(s, exponent_floor(g)) - ng_ref_param(g, NG_PARAM_FRAC);
    const int64_t sum = aligned_sum(s, unit, (ng_round)ng_ref_param(g, NG_PARAM_ALIGN_ROUND));
    return round_step(g, from_integer(sum, unit));
}

/* v * 2^vunit in units of 2^unit, rounded down: (27). */
static int64_t rounded_down(int64_t v, int vunit, int unit)
{
    const int64_t mag = v < 0 ? -v : v;
    return aligned((struct term){ .sig = (uint64_t)mag, .lsb = vunit, .neg = v < 0 }, unit,
                   NG_ROUND_TOWARD_NEGATIVE);
}

/* The products' sum, and the exponent that it hangs from. */
struct fixed {
    int64_t sum;
    int exp;
};

static struct fixed products_fixed(const struct gemm_job *g, const struct step *s)
{
    const int frac = ng_ref_param(g, NG_PARAM_FRAC);
    const int exp = s->n ? largest_exponent(s, NG_FLOOR_NONE) : -252;
    return (struct fixed){ aligned_sum(s, exp - frac, NG_ROUND_TOWARD_ZERO), exp };
}

/* Even and odd products apart, then merged at the larger exponent, each rounded down. */
static struct fixed merged_fixed(const struct gemm_job *g, const struct step *even,
                                 const struct step *odd)
{
    const int frac = ng_ref_param(g, NG_PARAM_FRAC);
    const struct fixed e = products_fixed(g, even), o = products_fixed(g, odd);
    const int exp = e.exp > o.exp ? e.exp : o.exp;
    return (struct fixed){ rounded_down(e.sum, e.exp - frac, exp - frac) +
                               rounded_down(o.sum, o.exp - frac, exp - frac),
                           exp };
}

/* sum = align, C late: CDNA3. `half` holds the even and the odd products, or all in the first.
 */
static ng_value late_step(const struct gemm_job *g, struct step *half, const ng_value *c)
{
    const bool two = ng_ref_param(g, NG_PARAM_SUBGROUPS) == 2;
    const ng_value none = ng_num_zero(false), cv = c ? *c : none;
    ng_value r;
    half[0].nan = half[0].nan || (two && half[1].nan);
    half[0].pos_inf = half[0].pos_inf || (two && half[1].pos_inf);
    half[0].neg_inf = half[0].neg_inf || (two && half[1].neg_inf);
    note_special(&half[0], cv);
    if (special_result(&half[0], &r))
        return r;

    const struct fixed p =
        two ? merged_fixed(g, &half[0], &half[1]) : products_fixed(g, &half[0]);
    const int frac = ng_ref_param(g, NG_PARAM_FRAC);
    const int sum_frac = ng_ref_param(g, NG_PARAM_SUM_FRAC),
              c_frac = ng_ref_param(g, NG_PARAM_C_FRAC);
    const struct term ct = cv.sig ? c_term(g, cv) : (struct term){ .exp = -126 };
    const int exp = p.exp > ct.exp ? p.exp : ct.exp;
    const int drop = ng_ref_param(g, NG_PARAM_C_DROP);
    const int64_t sum = rounded_down(p.sum, p.exp - frac, exp - sum_frac);
    int64_t c_int = aligned(ct, exp - c_frac, NG_ROUND_TOWARD_NEGATIVE);
    if (drop && exp - ct.exp > drop)
        c_int = 0;
    return round_step(
        g, ng_num_add(from_integer(sum, exp - sum_frac), from_integer(c_int, exp - c_frac)));
}

/* sum = exact: products and C, one rounding. */
static ng_value exact_step(const struct gemm_job *g, int64_t i, int64_t j, int64_t k0,
                           int64_t k1, const ng_value *c)
{
    struct ng_sum s;
    ng_sum_begin(&s);
    for (int64_t k = k0; k < k1; k++) {
        const struct ng_pair p = ng_ref_pair(g, i, j, k);
        ng_sum_add(&s, ng_ref_product(&p));
    }
    if (c)
        ng_sum_add(&s, *c);
    return round_step(g, ng_sum_end(&s));
}

/* sum = pairwise: rounded products, a binary tree, then C: (28). */
static ng_value pairwise_step(const struct gemm_job *g, int64_t i, int64_t j, int64_t k0,
                              int64_t k1, const ng_value *c)
{
    ng_value level[MAX_TERMS];
    int64_t n = ng_ref_param(g, NG_PARAM_GROUP);
    for (int64_t q = 0; q < n; q++) {
        level[q] = ng_num_zero(false);
        if (k0 + q < k1) {
            const struct ng_pair p = ng_ref_pair(g, i, j, k0 + q);
            level[q] =
                flush_result(g, ng_num_round_f32(ng_ref_product(&p), NG_ROUND_TIES_TO_EVEN));
        }
    }
    for (; n > 1; n = (n + 1) / 2) {
        for (int64_t q = 0; q < n / 2; q++)
            level[q] = rounded_add(g, level[2 * q], level[2 * q + 1]);
        if (n % 2)
            level[n / 2] = level[n - 1];
    }
    return c ? rounded_add(g, *c, level[0]) : level[0];
}

/* ---- Steps along K. ---- */

/* A step: some of the k in [k0, k1). Under mod4 those with k mod 4 in {0, 1}, or in {2, 3}. */
struct walk {
    int64_t i, j;
    int64_t k0, k1;
    int64_t half; /* mod4: 0 or 1 */
};

static bool in_step(const struct gemm_job *g, const struct walk *w, int64_t k)
{
    return ng_ref_param(g, NG_PARAM_K_PERM) == NG_PERM_LINEAR || (k - w->k0) % 4 / 2 == w->half;
}

static ng_value one_step(const struct gemm_job *g, const struct walk *w, const ng_value *c)
{
    const int32_t kind = ng_ref_param(g, NG_PARAM_SUM);
    if (kind == NG_SUM_EXACT)
        return exact_step(g, w->i, w->j, w->k0, w->k1, c);
    if (kind == NG_SUM_PAIRWISE)
        return pairwise_step(g, w->i, w->j, w->k0, w->k1, c);

    struct step s[2];
    step_begin(&s[0]);
    step_begin(&s[1]);
    const int64_t run = ng_ref_param(g, NG_PARAM_EXACT_GROUP);
    const bool late = ng_ref_param(g, NG_PARAM_C_PLACE) == NG_C_LATE;
    const bool two = late && ng_ref_param(g, NG_PARAM_SUBGROUPS) == 2;
    for (int64_t k = w->k0; k < w->k1; k += run) {
        if (run > 1)
            add_group(g, &s[0], w->i, w->j, k, k + run < w->k1 ? k + run : w->k1);
        else if (in_step(g, w, k))
            add_product(g, &s[two ? (k - w->k0) % 2 : 0], w->i, w->j, k);
    }
    return late ? late_step(g, s, c) : align_step(g, &s[0], c);
}

/* The accumulator of a run of steps; `started` is false until it holds something. */
struct acc {
    ng_value value;
    bool started;
};

/* Of `k` k the products that a sparse operand keeps, where steps are counted in dense k (29).
 */
static int64_t kept_of(const struct gemm_job *g, int64_t k)
{
    const ng_sparse *s = g->a.sparse ? g->a.sparse : g->b.sparse;
    if (!s || ng_ref_param(g, NG_PARAM_SPARSE_K) == NG_SPARSE_K_COMPRESSED)
        return k;
    const int64_t kept = k * s->kept / s->group;
    return kept > 0 ? kept : 1;
}

/* k of one step when steps are consecutive. */
static int64_t step_k(const struct gemm_job *g)
{
    return kept_of(g, (int64_t)ng_ref_param(g, NG_PARAM_GROUP) *
                          ng_ref_param(g, NG_PARAM_EXACT_GROUP));
}

/* The steps of [k0, k1), chained. */
static void chain_steps(const struct gemm_job *g, struct walk *w, int64_t k0, int64_t k1,
                        struct acc *acc)
{
    const bool mod4 = ng_ref_param(g, NG_PARAM_K_PERM) == NG_PERM_MOD4;
    const int64_t deep = mod4 ? k1 - k0 : step_k(g);
    for (w->half = 0; w->half < (mod4 ? 2 : 1); w->half++)
        for (w->k0 = k0; w->k0 < k1; w->k0 += deep) {
            w->k1 = w->k0 + deep < k1 ? w->k0 + deep : k1;
            acc->value = one_step(g, w, acc->started ? &acc->value : NULL);
            acc->started = true;
        }
}

/* One instruction: C is a term of its first step, or is added after its last (24). */
static void instruction(const struct gemm_job *g, struct walk *w, int64_t k0, int64_t k1,
                        struct acc *acc)
{
    const bool after = ng_ref_param(g, NG_PARAM_C_PLACE) == NG_C_AFTER;
    struct acc run = after ? (struct acc){ .started = false } : *acc;
    chain_steps(g, w, k0, k1, &run);
    if (after && acc->started)
        run.value = rounded_add(g, acc->value, run.value);
    *acc = run;
}

/* What matters of an instruction's depth: without a permutation or a late C it is its steps'.
 */
static int64_t instruction_k(const struct gemm_job *g)
{
    const bool whole = ng_ref_param(g, NG_PARAM_K_PERM) == NG_PERM_MOD4 ||
                       ng_ref_param(g, NG_PARAM_C_PLACE) == NG_C_AFTER;
    return whole ? kept_of(g, ng_ref_param(g, NG_PARAM_K_INSTR)) : step_k(g);
}

ng_value ng_ref_fused(const struct gemm_job *g, int64_t i, int64_t j, const ng_trace *trace)
{
    const int64_t deep = instruction_k(g);
    const int64_t promote = ng_ref_param(g, NG_PARAM_PROMOTE);

    struct acc acc = { .started = false }, outer = { .started = false };
    if (g->c.data) {
        *(promote ? &outer : &acc) =
            (struct acc){ .value = ng_ref_c(g, i, j), .started = true };
    }
    struct walk w = { .i = i, .j = j };
    int64_t steps = 0, promoted_from = 0;
    for (int64_t k0 = 0; k0 < g->k; k0 += deep) {
        const int64_t k1 = k0 + deep < g->k ? k0 + deep : g->k;
        instruction(g, &w, k0, k1, &acc);
        ng_ref_trace(trace, NG_TRACE_STEP, steps, k0, k1, acc.value);
        steps++;
        if (promote && (steps % promote == 0 || k1 == g->k)) { /* (25) */
            outer.value = outer.started ? ng_num_round_f32(ng_num_add(outer.value, acc.value),
                                                           NG_ROUND_TIES_TO_EVEN)
                                        : acc.value;
            outer.started = true;
            acc.started = false;
            ng_ref_trace(trace, NG_TRACE_PROMOTED, steps / promote, promoted_from, k1,
                         outer.value);
            promoted_from = k1;
        }
    }
    return promote ? outer.value : acc.value;
}
