/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of family `fused` (docs/numerics.md 4.2 with `sum = align`) in integers, of any
 * operands and any C: what gemm_align.h and gemm_groups.h do not leave to vectors. It shares
 * nothing with src/ref.
 */
#ifndef NG_KERNELS_ALIGN_EXACT_H
#define NG_KERNELS_ALIGN_EXACT_H

#include "rule.h"
#include "widen.h"

enum {
    ALIGN_TERMS = 65 /* of a step: 64, as packed, and C */
};

/* The rule of a step, as the kernel reads it. */
struct align_rule {
    int frac;     /* F */
    int floor;    /* least value of the largest exponent, or NG_FLOOR_NONE */
    int out_bits; /* of an FP32 result's fraction */
    bool f16;     /* accumulator f16; else FP32 */
    bool nearest; /* results to nearest even; else toward zero */
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
        .nearest = f16 || rule_param(g, NG_PARAM_OUT_ROUND) == NG_ROUND_TIES_TO_EVEN,
        .plus = rule_param(g, NG_PARAM_OUT_ZERO) == NG_OUT_ZERO_PLUS,
    };
}

/* Exponent of the accumulator's least normal number. */
static inline int align_emin(const struct align_rule *r)
{
    return r->f16 ? -14 : -126;
}

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

static inline bool align_is_special(uint32_t u)
{
    return (u & 0x7F800000u) == 0x7F800000u;
}

static inline bool align_is_nan(uint32_t u)
{
    return (u & 0x7FFFFFFFu) > 0x7F800000u;
}

/* A step's terms, zeros not among them. */
struct align_terms {
    struct align_term {
        struct align_number x;
        int exp; /* for alignment */
        bool neg;
    } term[ALIGN_TERMS];
    int n;
    bool nan, plus, minus; /* a NaN, an Inf of either sign was there */
};

static inline void align_take(struct align_terms *s, struct align_number x, int exp, bool neg)
{
    if (x.sig)
        s->term[s->n++] = (struct align_term){ x, exp, neg };
}

/* C, or what the step before gave; +0 where there is none. */
static inline void align_take_c(struct align_terms *s, const struct align_rule *r, uint32_t c)
{
    const int field = (int)(c >> 23 & 0xFFu) - 127, emin = align_emin(r);
    if (align_is_nan(c))
        s->nan = true;
    else if (align_is_special(c))
        *(c >> 31 ? &s->minus : &s->plus) = true;
    else
        align_take(s, align_number(c), field > emin ? field : emin, c >> 31);
}

/* a * b, `more` of the product's exponent being in block scales that stand apart. */
static inline void align_take_product(struct align_terms *s, uint32_t a, uint32_t b, int exp,
                                      int more)
{
    const bool neg = (a ^ b) >> 31;
    if (align_is_nan(a) || align_is_nan(b)) {
        s->nan = true;
    } else if (align_is_special(a) || align_is_special(b)) {
        s->nan |= !(a << 1) || !(b << 1);
        *(neg ? &s->minus : &s->plus) = true;
    } else {
        const struct align_number x = align_number(a), y = align_number(b);
        align_take(s, (struct align_number){ x.sig * y.sig, x.lsb + y.lsb + more }, exp, neg);
    }
}

/* sig * 2^lsb in units of 2^unit, what is below cut. */
static inline uint64_t align_cut(uint64_t sig, int lsb, int unit)
{
    const int zeros = __builtin_ctzll(sig), up = lsb + zeros - unit;
    sig >>= zeros;
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
    const int carry = (int)((kept + up) >> bits);
    return (struct align_number){ (kept + up) >> carry, lsb + carry };
}

/* At most 24 bits that FP32 holds; past its range, or `emax`, Inf. */
static inline uint32_t align_pattern(struct align_number x, int emax)
{
    const int n = 64 - __builtin_clzll(x.sig), top = x.lsb + n - 1;
    if (top > emax)
        return 0x7F800000u;
    if (top < -126)
        return (uint32_t)(x.sig << (x.lsb + 149));
    return (uint32_t)(top + 127) << 23 | ((uint32_t)(x.sig << (24 - n)) & 0x7FFFFFu);
}

/* sum * 2^unit as the accumulator takes it: items 3 of 4.2, 19, 21, 22 of 11.3. */
static inline uint32_t align_result(const struct align_rule *r, int64_t sum, int unit)
{
    const uint32_t sign = sum < 0 ? 0x80000000u : 0;
    const uint64_t mag = sum < 0 ? 0 - (uint64_t)sum : (uint64_t)sum;
    if (!mag)
        return 0;
    const int emin = align_emin(r);
    const struct align_number x =
        align_round(mag, unit, r->out_bits + 1, emin - r->out_bits, r->nearest);
    if (!x.sig)
        return r->plus ? 0 : sign;
    return sign | align_pattern(x, r->f16 ? 15 : 127);
}

/* Do specials decide the result (22)? */
static inline bool align_specials(bool nan, bool plus, bool minus, uint32_t *result)
{
    *result = nan || (plus && minus) ? WIDEN_NAN : minus ? 0xFF800000u : 0x7F800000u;
    return nan || plus || minus;
}

/* The largest exponent of the terms, at least `floor`. */
static inline int align_largest(const struct align_terms *s, int floor)
{
    int e = floor;
    for (int i = 0; i < s->n; i++)
        e = s->term[i].exp > e ? s->term[i].exp : e;
    return e;
}

/* Their sum in units of 2^unit, each cut there. */
static inline int64_t align_sum(const struct align_terms *s, int unit)
{
    int64_t sum = 0;
    for (int i = 0; i < s->n; i++) {
        const struct align_term *t = &s->term[i];
        const int64_t x = (int64_t)align_cut(t->x.sig, t->x.lsb, unit);
        sum += t->neg ? -x : x;
    }
    return sum;
}

/* The step's result. */
static inline uint32_t align_exact(const struct align_rule *r, const struct align_terms *s)
{
    uint32_t special;
    if (align_specials(s->nan, s->plus, s->minus, &special))
        return special;
    const int unit = align_largest(s, r->floor) - r->frac;
    return align_result(r, align_sum(s, unit), unit);
}

#endif
