/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elementary functions of one FP32 number in pairs of doubles (h + l, |l| at most half of h's
 * last place: Dekker 1971), for the few arguments that elementary.h cannot decide in one
 * double. A pair's +, *, / is wrong by less than 2^-100 of its result (Joldes, Muller, Popescu:
 * Tight and rigorous error bounds for basic building blocks of double-word arithmetic, 2017,
 * has bounds below 10 * 2^-106).
 *
 * What every function promises: an error below 2^-70 of the result. No FP32 argument's result
 * comes that close to a tie without being one (tests/num/functions.c looks at all 2^32), so the
 * one rounding at the end is the page's. Plain C, with FMA: compiled into every ISA.
 */
#ifndef NG_KERNELS_ELEMENTARY_EXACT_H
#define NG_KERNELS_ELEMENTARY_EXACT_H

#include "doubles.h"
#include "ng/elementary.h"

struct pair {
    double h, l;
};

/* a + b of |a| >= |b|, or a = 0, exactly. */
static inline struct pair pair_fast(double a, double b)
{
    const double s = a + b;
    return (struct pair){ s, b - (s - a) };
}

static inline struct pair pair_sum(double a, double b)
{
    double rest;
    const double s = exact_two_sum(a, b, &rest);
    return (struct pair){ s, rest };
}

/* a * b, exactly. */
static inline struct pair pair_product(double a, double b)
{
    const double p = a * b;
    return (struct pair){ p, __builtin_fma(a, b, -p) };
}

static inline struct pair pair_add(struct pair a, struct pair b)
{
    const struct pair s = pair_sum(a.h, b.h), t = pair_sum(a.l, b.l),
                      u = pair_fast(s.h, s.l + t.h);
    return pair_fast(u.h, t.l + u.l);
}

static inline struct pair pair_mul(struct pair a, struct pair b)
{
    const struct pair p = pair_product(a.h, b.h);
    return pair_fast(p.h, p.l + __builtin_fma(a.h, b.l, a.l * b.h));
}

static inline struct pair pair_negate(struct pair a)
{
    return (struct pair){ -a.h, -a.l };
}

/* Two steps of long division: the rest of each is exact. */
static inline struct pair pair_div(struct pair a, struct pair b)
{
    const double q = a.h / b.h;
    const struct pair rest = pair_add(a, pair_negate(pair_mul((struct pair){ q, 0 }, b)));
    return pair_fast(q, rest.h / b.h);
}

static inline double power_of_two(int n) /* a normal number's */
{
    return exact_double((uint64_t)(n + 1023) << 52);
}

/* The integer nearest to |x| < 2^30: FP64 has no places below 1 beside 3 * 2^51. */
static inline double nearest_integer(double x)
{
    return x + 0x1.8p52 - 0x1.8p52;
}

/*
 * e^r 2^n for |r| < 0.36, by Taylor's series for r / 64, whose terms from the 13th on are below
 * 2^-115, and six squarings, each of which doubles the error: below 2^-92 of the result.
 */
static inline struct pair pair_exp_reduced(struct pair r, int n)
{
    enum {
        TERMS = 13,
        SQUARES = 6
    };
    const struct pair one = { 1, 0 }, s = { r.h / (1 << SQUARES), r.l / (1 << SQUARES) };
    struct pair e = one;
    for (int k = TERMS; k > 0; k--)
        e = pair_add(one, pair_div(pair_mul(s, e), (struct pair){ k, 0 }));
    for (int i = 0; i < SQUARES; i++)
        e = pair_mul(e, e);
    return (struct pair){ e.h * power_of_two(n), e.l * power_of_two(n) };
}

/* e^x, |x| < 700: x - n ln 2 with ln 2 in three parts, the first of so few bits that n times it
 * and the difference are exact; the parts together are wrong by less than 2^-150. */
static inline struct pair pair_exp(double x)
{
    const double n = nearest_integer(x * 0x1.71547652b82fep+0);
    const struct pair middle = pair_product(-n, 0x1.ef35793c76730p-45);
    struct pair r = pair_sum(__builtin_fma(-n, 0x1.62e42fefa3800p-1, x), middle.h);
    r = pair_fast(r.h, r.l + (middle.l - n * 0x1.f97b57a079a19p-103));
    return pair_exp_reduced(r, (int)n);
}

/* 2^x, |x| < 1000: x - n is exact. */
static inline struct pair pair_exp2(double x)
{
    const double n = nearest_integer(x);
    const struct pair log2 = { 0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56 };
    return pair_exp_reduced(pair_mul((struct pair){ x - n, 0 }, log2), (int)n);
}

/*
 * log x = y + log(1 + z), z = x e^-y - 1, where y is already right to 2^-40 of itself or more:
 * then |z| < 2^-33 and z - z^2 / 2 + z^3 / 3 leaves out less than 2^-134. z is wrong by less
 * than 2^-95; the least |log x| is above 2^-24.01.
 */
static inline struct pair pair_log(double x, double y)
{
    const struct pair e = pair_mul((struct pair){ x, 0 }, pair_exp(-y)),
                      z = pair_fast(e.h - 1, e.l);
    const struct pair square = pair_mul(z, z);
    const double cube = z.h * z.h * z.h / 3;
    const struct pair small = pair_add(z, (struct pair){ -square.h / 2 + cube, -square.l / 2 });
    return pair_add((struct pair){ y, 0 }, small);
}

/* (1 - t) / (1 + t), t = e^-2|x|: 1 - t loses the bits that |x| is below 1, 13 where
 * elementary.h leaves something undecided (below, tanh x is x and hardly less). */
static inline struct pair pair_tanh(double x)
{
    const struct pair one = { 1, 0 }, t = pair_exp(x < 0 ? 2 * x : -2 * x);
    const struct pair y = pair_div(pair_add(one, pair_negate(t)), pair_add(one, t));
    return x < 0 ? pair_negate(y) : y;
}

/* 1 / (1 + t) or t / (1 + t), t = e^-|x|. */
static inline struct pair pair_sigmoid(double x)
{
    const struct pair one = { 1, 0 }, t = pair_exp(x < 0 ? x : -x);
    return pair_div(x < 0 ? t : one, pair_add(one, t));
}

/* y + y (1 - x y^2) / 2 for y close to 1 / sqrt(x): a step of Newton's. */
static inline struct pair pair_rsqrt(double x, double y)
{
    const struct pair one = { 1, 0 };
    const struct pair e = pair_mul((struct pair){ x, 0 },
                                   pair_product(y, y)), /* 1 and a little */
        rest = pair_add(one, pair_negate(e));
    return pair_fast(y, y * rest.h / 2);
}

/* f(x), rounded once; y: the value in one double, right to 2^-40. */
static inline float function_exact(ng_function f, double x, double y)
{
    struct pair v = { y, 0 };
    switch (f) {
    case NG_FN_EXP: v = pair_exp(x); break;
    case NG_FN_EXP2: v = pair_exp2(x); break;
    case NG_FN_LOG: v = pair_log(x, y); break;
    case NG_FN_TANH: v = pair_tanh(x); break;
    case NG_FN_SIGMOID: v = pair_sigmoid(x); break;
    case NG_FN_RSQRT: v = pair_rsqrt(x, y); break;
    case NG_FN_RECIPROCAL: break; /* a division: never undecided */
    }
    return (float)exact_odd(v.h, v.l);
}

#endif
