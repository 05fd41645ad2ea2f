/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exact arithmetic on codes, in integers only. Numerics: docs/numerics.md, sections 1 and 2.
 *
 * The number type is ng_value: (-1)^neg * sig * 2^exp. Products of two decoded codes fit its 64
 * bits exactly; sums go through ng_sum, which is exact too. Rounding happens in ng_num_round()
 * and nowhere else.
 */
#ifndef NG_NUM_H
#define NG_NUM_H

#include "ng/convert.h"
#include "ng/tensor.h"

/* Any exponent: no underflow. Far below all that a sum of products can reach. */
#define NG_NO_UNDERFLOW (-100000)

static inline ng_value ng_num_zero(bool neg)
{
    return (ng_value){ .neg = neg };
}

static inline ng_value ng_num_inf(bool neg)
{
    return (ng_value){ .cls = NG_CLASS_INF, .neg = neg };
}

static inline ng_value ng_num_nan(void)
{
    return (ng_value){ .cls = NG_CLASS_NAN };
}

static inline bool ng_num_is_zero(ng_value v)
{
    return v.cls == NG_CLASS_FINITE && v.sig == 0 && !v.sticky;
}

static inline bool ng_num_is_nan(ng_value v)
{
    return v.cls == NG_CLASS_NAN;
}

static inline bool ng_num_is_inf(ng_value v)
{
    return v.cls == NG_CLASS_INF;
}

/* floor(log2 |v|) of a finite value that is not zero. */
static inline int ng_num_exponent(ng_value v)
{
    return v.exp + 63 - __builtin_clzll(v.sig);
}

/* The value of a code. */
ng_value ng_num_decode(const ng_format_spec *spec, uint32_t code);

/* a * b, exact: both without sticky, significands of at most 32 bits each. 0 * Inf is NaN. */
ng_value ng_num_mul(ng_value a, ng_value b);

/* -1, 0, 1 as |a| <, =, > |b|; finite, without sticky. */
int ng_num_compare_magnitude(ng_value a, ng_value b);

/*
 * The grid that a value is rounded on: `bits` significand bits, and no unit below 2^least.
 * For FP32 bits = 24, least = -149.
 */
struct ng_grid {
    int bits;
    int least;
};

/* How to round, and the random word when it is stochastic. */
struct ng_rounding {
    ng_round round;
    ng_sr sr;
    uint32_t sr_bits; /* 1..32 */
    ng_sr_take take;
    uint32_t word;
};

static inline struct ng_rounding ng_rounding_of(ng_round round)
{
    return (struct ng_rounding){ .round = round, .sr_bits = 32 };
}

/*
 * Round a finite value on a grid that has no largest number. The result is sig * 2^exp with
 * sig <= 2^bits; zero keeps its sign. Numerics: sections 2 and 2.1.
 */
ng_value ng_num_round(ng_value v, struct ng_grid grid, struct ng_rounding how);

/* Does a rounding that passes the largest finite number stop there? Section 11.1, item 5. */
bool ng_num_stops_at_max(ng_round round, bool neg);

/* Round into FP32's significand and range: overflow as IEEE 754 says for the mode. NaN, Inf
 * pass. */
ng_value ng_num_round_f32(ng_value v, ng_round round);

/* From a value to a code; section 2. Statuses as ng_encode(). */
ng_status ng_num_encode(const ng_format_spec *spec, const ng_cast *cast, ng_value v,
                        uint32_t word, uint32_t *code);
/* What of a cast can be found wrong without a value: NULL, or why it is refused. */
const char *ng_num_cast_error(const ng_format_spec *spec, const ng_cast *cast);

/*
 * A sum of values, exactly: a fixed-point number wide enough for every product of this library
 * (FP32 subnormals squared under the smallest scales, up to FP32 squared under the largest),
 * and what IEEE 754 says of Inf, NaN and the sign of an exact zero.
 */
#define NG_EXACT_LEAST (-640) /* weight of the lowest bit */
#define NG_EXACT_LIMBS 20     /* 1280 bits: up to 2^639 */

struct ng_sum {
    uint64_t limb[NG_EXACT_LIMBS]; /* two's complement, lowest first */
    int first, last;               /* terms lie in these limbs; a sum reaches one more */
    bool any;                      /* a term was added */
    bool all_neg_zero;             /* and all of them were -0 */
    bool nan, pos_inf, neg_inf;
};

void ng_sum_begin(struct ng_sum *s);
void ng_sum_add(struct ng_sum *s, ng_value v); /* v without sticky */
ng_value ng_sum_end(const struct ng_sum *s);   /* no term at all: +0 */

/* a + b, exactly. */
ng_value ng_num_add(ng_value a, ng_value b);

/* a / b for finite a and finite b that is not zero: 64 leading bits, then sticky. */
ng_value ng_num_div(ng_value a, ng_value b);

/* The values of one FP32 pattern, and back (RN); for the chains of FP32 operations of
 * section 3.2. */
ng_value ng_num_f32(uint32_t pattern);
uint32_t ng_num_f32_code(ng_value v);

/* One FP32 operation on patterns, RN as IEEE 754 says; a NaN is the canonical one. fma:
 * a * b + c with one rounding. */
uint32_t ng_num_f32_add(uint32_t a, uint32_t b);
uint32_t ng_num_f32_mul(uint32_t a, uint32_t b);
uint32_t ng_num_f32_div(uint32_t a, uint32_t b);
uint32_t ng_num_f32_fma(uint32_t a, uint32_t b, uint32_t c);

#endif
