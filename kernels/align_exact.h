/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of family `fused` (docs/numerics.md 4.2 with `sum = align`) in integers, of any
 * operands and any C: what gemm_align.h does not leave to FP32 operations. It shares nothing
 * with src/ref.
 */
#ifndef NG_KERNELS_ALIGN_EXACT_H
#define NG_KERNELS_ALIGN_EXACT_H

#include "rule.h"
#include "widen.h"

enum {
    ALIGN_BIAS = 127,     /* of A's exponents in a panel, so that a product's is FP32's field */
    ALIGN_NO_EXP = -2000, /* exponent of a zero operand: below any that a product has */
    ALIGN_TWICE = 2       /* A's exponents are there twice, in both halves of a word */
};

/* The rule of a step, as the kernel reads it. */
struct align_rule {
    int frac;     /* F */
    int floor;    /* least value of the largest exponent, or NG_FLOOR_NONE */
    int out_bits; /* of an FP32 result's fraction */
    bool f16;     /* accumulator f16: to nearest even; else FP32: toward zero */
    bool plus;    /* what rounds to zero is +0 */
};

static inline struct align_rule align_rule_of(const struct gemm_job *g)
{
    const bool f16 = g->acc == NG_F16;
    return (struct align_rule){
        .frac = rule_param(g, NG_PARAM_FRAC),
        .floor = rule_param(g, f16 ? NG_PARAM_FLOOR_F16 : NG_PARAM_FLOOR_F32),
        .out_bits = f16 ? 10 : rule_param(g, NG_PARAM_OUT_BITS),
        .f16 = f16,
        .plus = rule_param(g, NG_PARAM_OUT_ZERO) == NG_OUT_ZERO_PLUS,
    };
}

/* Exponent of the accumulator's least normal number. */
static inline int align_emin(const struct align_rule *r)
{
    return r->f16 ? -14 : -126;
}

/* A row of A, or a column of B. */
struct align_line {
    const uint32_t *v;    /* FP32 patterns */
    const int16_t *e;     /* their exponents */
    int64_t step, e_step; /* from one position's to the next */
    int bias;             /* of the exponents */
    bool apart;           /* block scales are in the exponents alone, */
    int emin;             /* of elements whose least is this */
};

/* sig * 2^lsb */
struct align_number {
    uint64_t sig;
    int lsb;
};

static inline struct align_number align_number(uint32_t u)
{
    const uint32_t field = u >> 23 & 0xFFu, man = u & 0x7FFFFFu;
    return field ? (struct align_number){ man | 0x800000u, (int)field - 150 }
                 : (struct align_number){ man, -149 };
}

static inline int align_exp(const struct align_line *x, int64_t i)
{
    return x->e[i * x->e_step] - x->bias;
}

static inline struct align_number align_element(const struct align_line *x, int64_t i)
{
    const uint32_t u = x->v[i * x->step];
    const int field = (int)(u >> 23 & 0xFFu) - 127;
    struct align_number n = align_number(u);
    if (x->apart && n.sig)
        n.lsb += align_exp(x, i) - (field > x->emin ? field : x->emin);
    return n;
}

static inline bool align_is_special(uint32_t u)
{
    return (u & 0x7F800000u) == 0x7F800000u;
}

static inline bool align_is_nan(uint32_t u)
{
    return (u & 0x7FFFFFFFu) > 0x7F800000u;
}

/* NaN and Inf among a step's terms. */
struct align_seen {
    bool nan, plus, minus;
};

static inline void align_see(struct align_seen *s, uint32_t a, uint32_t b)
{
    if (align_is_nan(a) || align_is_nan(b))
        s->nan = true;
    else if (align_is_special(a) || align_is_special(b)) {
        s->nan |= !(a << 1) || !(b << 1);
        *((a ^ b) >> 31 ? &s->minus : &s->plus) = true;
    }
}

/* sig * 2^lsb in units of 2^unit, what is below cut. */
static inline uint64_t align_cut(uint64_t sig, int lsb, int unit)
{
    const int up = lsb - unit;
    return up >= 0 ? sig << up : up > -64 ? sig >> -up : 0;
}

/* mag * 2^unit with its bits below 2^least and those past `bits` gone. */
static inline struct align_number align_round(uint64_t mag, int unit, int bits, int least,
                                              bool nearest)
{
    const int top = 63 - __builtin_clzll(mag) + unit,
              lsb = top - bits + 1 > least ? top - bits + 1 : least, drop = lsb - unit;
    if (drop <= 0)
        return (struct align_number){ mag, unit };
    if (drop > 62)
        return (struct align_number){ 0, lsb };
    const uint64_t rest = mag & (((uint64_t)1 << drop) - 1), half = (uint64_t)1 << (drop - 1),
                   kept = mag >> drop;
    const bool up = nearest && (rest > half || (rest == half && kept & 1));
    return (struct align_number){ kept + up, lsb };
}

/* At most 24 bits that FP32 holds; past its range, or `emax`, Inf. */
static inline uint32_t align_pattern(struct align_number x, int emax)
{
    const int n = 64 - __builtin_clzll(x.sig), top = x.lsb + n - 1;
    if (top > emax)
        return 0x7F800000u;
    if (top < -126)
        return (uint32_t)(x.sig << (x.lsb + 149));
    const uint64_t sig = n <= 24 ? x.sig << (24 - n) : x.sig >> (n - 24);
    return (uint32_t)(top + 127) << 23 | ((uint32_t)sig & 0x7FFFFFu);
}

/* The sum, `negative` or not, as the accumulator takes it: items 3 of 4.2, 19, 21, 22 of 11.3.
 */
static inline uint32_t align_result(const struct align_rule *r, uint64_t mag, bool negative,
                                    int unit)
{
    const uint32_t sign = negative ? 0x80000000u : 0;
    if (!mag)
        return 0;
    const int emin = align_emin(r);
    const struct align_number x =
        align_round(mag, unit, r->out_bits + 1, emin - r->out_bits, r->f16);
    if (!x.sig)
        return r->plus ? 0 : sign;
    return sign | align_pattern(x, r->f16 ? 15 : 127);
}

/* The step of `terms` products from accumulator `c`, +0 where there is none. */
static inline uint32_t align_exact(const struct align_rule *r, const struct align_line *x,
                                   const struct align_line *y, int64_t terms, uint32_t c)
{
    struct align_seen seen = { false, false, false };
    const bool no_c = !(c << 1);
    int e = r->floor;
    if (align_is_special(c)) {
        seen.nan = align_is_nan(c);
        *(c >> 31 ? &seen.minus : &seen.plus) = true;
    } else if (!no_c) {
        const int field = (int)(c >> 23 & 0xFFu) - 127, emin = align_emin(r),
                  exp = field > emin ? field : emin;
        e = exp > e ? exp : e;
    }
    for (int64_t i = 0; i < terms; i++) {
        const uint32_t a = x->v[i * x->step], b = y->v[i * y->step];
        align_see(&seen, a, b);
        if (!(a << 1) || !(b << 1) || align_is_special(a) || align_is_special(b))
            continue;
        const int exp = align_exp(x, i) + align_exp(y, i);
        e = exp > e ? exp : e;
    }
    if (seen.nan || (seen.plus && seen.minus))
        return WIDEN_NAN;
    if (seen.plus || seen.minus)
        return seen.minus ? 0xFF800000u : 0x7F800000u;
    const int unit = e - r->frac;
    const struct align_number cn = align_number(c);
    int64_t sum = (int64_t)align_cut(cn.sig, cn.lsb, unit);
    sum = c >> 31 ? -sum : sum;
    for (int64_t i = 0; i < terms; i++) {
        const struct align_number a = align_element(x, i), b = align_element(y, i);
        const int64_t t = (int64_t)align_cut(a.sig * b.sig, a.lsb + b.lsb, unit);
        sum += (x->v[i * x->step] ^ y->v[i * y->step]) >> 31 ? -t : t;
    }
    return align_result(r, sum < 0 ? 0 - (uint64_t)sum : (uint64_t)sum, sum < 0, unit);
}

#endif
