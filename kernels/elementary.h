/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elementary functions of a vector of FP32 numbers. Numerics: docs/numerics.md, sections 8 and
 * 11.8. A file includes its ISA's integer vectors and SLEEF functions (avx2/ints.h and
 * avx2/sleef.h, or ints512.h and sleef512.h), then this; any kernel may: function_vector() with
 * constant `kind` and `f` is straight code.
 *
 * `cr`: the function in FP64. exp and exp2 are a polynomial, function_power(), within 2^-45 of
 * the value; log and tanh are SLEEF's, whose error is documented as at most 3.5 units of the
 * last place, and the operations around them add 2: within 2^-49. So the value lies well within
 * d (1 - b) and d (1 + b) of the double d, b = 2^-44 and 2^-48, both computed with a rounding
 * of 2^-53. Rounding to FP32 is monotonic: where these two round to the same number,
 * subnormals, zero and Inf included, so does the value. Of random arguments one in 2^19, 2^23
 * is left over, and goes to elementary_exact.h. AVX-512 has exp and exp2 in pairs of FP32
 * numbers before that, function_exps_short(). That these bounds hold is tested for every
 * argument (tests/num/functions.c).
 *
 * The control word is that of all kernels: to nearest, nothing flushed.
 */
#ifndef NG_KERNELS_ELEMENTARY_H
#define NG_KERNELS_ELEMENTARY_H

#include "elementary_exact.h"
#include "widen.h"

#define FUNCTION_INLINE static inline __attribute__((always_inline))

enum {
    FUNCTION_MANY = 4, /* vectors that are worth having at once, */
    FUNCTION_EXPS = 2  /* and that exponentials have registers for */
};

FUNCTION_INLINE vec function_constant(float x)
{
    return iv_float(iv_all(as_pattern(x)));
}

/* Every NaN becomes the canonical one. */
FUNCTION_INLINE vec function_quiet(vec y)
{
    const ivec u = iv_bits(y);
    const imask nan = iv_gt(iv_and(u, iv_all(0x7FFFFFFFu)), iv_all(WIDEN_INF));
    return iv_float(iv_pick(nan, iv_all(WIDEN_NAN), u));
}

/* ---- cr ---- */

/* Where results are 0 or Inf for long, arguments stop: e^±160, 2^±160 and their sums are plain
 * doubles. A NaN passes. */
FUNCTION_INLINE vec function_stop(vec x, const ng_function f)
{
    if (f != NG_FN_EXP && f != NG_FN_EXP2 && f != NG_FN_SIGMOID)
        return x;
    return vec_max(function_constant(-160), vec_min(function_constant(160), x));
}

/*
 * e^r 2^n for |r| <= ln 2 / 2, n in the lowest bits of `shifted`. The polynomial is the minimax
 * of the relative error in its degree (Remez's exchange in 200 bits), 2^-46.0 after its
 * coefficients are rounded. Pairs of terms, then pairs of pairs: four steps deep, so that a CPU
 * has other work while it waits for one. Roundings add less than 2^-50: the last two are 2^-53
 * of the result each, all others are of terms below 2 |r|. 2^n is added to the exponent field:
 * |n| < 256.
 */
static const double function_terms[] = { 0x1.0000000000039p+0,  0x1.ffffffffffc3ap-1,
                                         0x1.ffffffffe8295p-2,  0x1.55555555bb649p-3,
                                         0x1.555555879bbc2p-5,  0x1.1111105b5e365p-7,
                                         0x1.6c162d9251917p-10, 0x1.a01bc26f3227ep-13,
                                         0x1.a17c028ba7cabp-16, 0x1.70dc1507adbefp-19 };

FUNCTION_INLINE vec64 function_power(vec64 r, vec64 shifted)
{
    const double *c = function_terms;
    const vec64 r2 = vec64_mul(r, r), r4 = vec64_mul(r2, r2);
    vec64 p[5];
    for (int i = 0; i < 5; i++)
        p[i] = vec64_fma(vec64_all(c[2 * i + 1]), r, vec64_all(c[2 * i]));
    const vec64 low = vec64_fma(p[1], r2, p[0]), middle = vec64_fma(p[3], r2, p[2]);
    return vec64_times_power(vec64_fma(vec64_fma(p[4], r4, middle), r4, low), shifted);
}

/* x and the integer nearest to it, which stays in the lowest bits of `shifted`: FP64 has no
 * places below 1 beside 3 * 2^51. */
FUNCTION_INLINE vec64 function_nearest(vec64 x, vec64 *shifted)
{
    *shifted = vec64_add(x, vec64_all(0x1.8p52));
    return vec64_sub(*shifted, vec64_all(0x1.8p52));
}

/* |x| <= 160: |n| <= 231, and n times the rounding of ln 2, 2^-55.7, is 2^-47.9. */
FUNCTION_INLINE vec64 function_exp(vec64 x)
{
    vec64 shifted;
    const vec64 n = function_nearest(vec64_mul(x, vec64_all(0x1.71547652b82fep+0)), &shifted);
    return function_power(vec64_fma(n, vec64_all(-0x1.62e42fefa39efp-1), x), shifted);
}

/* x - n is exact. */
FUNCTION_INLINE vec64 function_exp2(vec64 x)
{
    vec64 shifted;
    const vec64 n = function_nearest(x, &shifted);
    return function_power(vec64_mul(vec64_sub(x, n), vec64_all(0x1.62e42fefa39efp-1)), shifted);
}

FUNCTION_INLINE vec64 function_wide(vec64 x, const ng_function f)
{
    const vec64 one = vec64_all(1);
    switch (f) {
    case NG_FN_EXP: return function_exp(x);
    case NG_FN_EXP2: return function_exp2(x);
    case NG_FN_LOG: return vec64_log(x);
    case NG_FN_TANH: return vec64_tanh(x);
    case NG_FN_SIGMOID:
        return vec64_div(one, vec64_add(one, function_exp(vec64_sub(vec64_all(0), x))));
    case NG_FN_RSQRT: return vec64_div(one, vec64_sqrt(x));
    case NG_FN_RECIPROCAL: break;
    }
    return vec64_div(one, x);
}

/* b of the head of this file. */
FUNCTION_INLINE double function_band(const ng_function f)
{
    return f == NG_FN_EXP || f == NG_FN_EXP2 || f == NG_FN_SIGMOID ? 0x1p-44 : 0x1p-48;
}

/* The lanes where low and high differ, one by one, into low. */
static __attribute__((noinline, cold)) vec function_undecided(ng_function f, vec x, vec low,
                                                              vec high, vec64 d0, vec64 d1)
{
    float in[VL], out[VL], other[VL];
    double wide[VL];
    vec_store(in, x);
    vec_store(out, low);
    vec_store(other, high);
    vec64_store(wide, d0);
    vec64_store(wide + VL / 2, d1);
    for (int i = 0; i < VL; i++)
        if (as_pattern(out[i]) != as_pattern(other[i]))
            out[i] = function_exact(f, (double)in[i], wide[i]);
    return vec_load(out);
}

FUNCTION_INLINE vec function_any(vec x, const ng_function f)
{
    if (f == NG_FN_RECIPROCAL)
        return function_quiet(vec_div(function_constant(1), x));
    x = function_stop(x, f);
    const vec64 below = vec64_all(1 - function_band(f)),
                above = vec64_all(1 + function_band(f));
    const vec64 d0 = function_wide(vec64_half(x, 0), f),
                d1 = function_wide(vec64_half(x, 1), f);
    vec low = vec_of_halves(vec64_mul(d0, below), vec64_mul(d1, below));
    const vec high = vec_of_halves(vec64_mul(d0, above), vec64_mul(d1, above));
    if (__builtin_expect(im_differs(iv_bits(low), iv_bits(high)), 0))
        low = function_undecided(f, x, low, high, d0, d1);
    return function_quiet(low);
}

/* ---- exp and exp2 of some vectors where results are normal numbers. ---- */

/*
 * Of a chain of a dozen dependent operations few would fit what the CPU looks ahead, so steps
 * are taken for all halves of vectors one by one, as far as registers go.
 */

/* r of a half and n, which stays in the lowest bits of `shifted`: n is the integer nearest to
 * x log2 e (exp2: x) in units of the last place of `shift`, 3 * 2^51 or less. */
FUNCTION_INLINE void function_reduce(const vec *x, const int halves, const ng_function f,
                                     vec64 shift, vec64 *r, vec64 *shifted)
{
    const vec64 log2_e = vec64_all(0x1.71547652b82fep+0), ln2 = vec64_all(0x1.62e42fefa39efp-1),
                minus = vec64_all(-0x1.62e42fefa39efp-1);
    vec64 d[2 * FUNCTION_EXPS];
    IV_UNROLL
    for (int h = 0; h < halves; h++)
        d[h] = vec64_half(x[h / 2], h % 2);
    IV_UNROLL
    for (int h = 0; h < halves; h++)
        shifted[h] = f == NG_FN_EXP ? vec64_fma(d[h], log2_e, shift) : vec64_add(d[h], shift);
    IV_UNROLL
    for (int h = 0; h < halves; h++)
        r[h] = vec64_sub(shifted[h], shift);
    IV_UNROLL
    for (int h = 0; h < halves; h++)
        r[h] = f == NG_FN_EXP ? vec64_fma(r[h], minus, d[h])
                              : vec64_mul(vec64_sub(d[h], r[h]), ln2);
}

#ifdef VEC64_SIXTEENTHS
/*
 * n counts sixteenths, so |r| <= ln 2 / 32 and e^r = 1 + r + r^2 P(r), P of degree 3: 2^-47.3
 * (minimax as function_power()'s). 2^(n / 16) comes out of a table; the rest adds less than
 * 2^-51. Behind r a half's operations do not wait for each other as long.
 */
FUNCTION_INLINE void function_powers(const vec *x, const int halves, const ng_function f,
                                     vec64 d[2 * FUNCTION_EXPS])
{
    static const double c[] = { 0x1.fffffffdc017ep-2, 0x1.555555576ac82p-3,
                                0x1.55573b738b36ep-5, 0x1.11108d1e9cf29p-7 };
    vec64 r[2 * FUNCTION_EXPS], shifted[2 * FUNCTION_EXPS];
    function_reduce(x, halves, f, vec64_all(0x1.8p48), r, shifted);
    IV_UNROLL
    for (int h = 0; h < halves; h++) {
        const vec64 power = vec64_sixteenths(shifted[h]), r2 = vec64_mul(r[h], r[h]),
                    low = vec64_fma(vec64_all(c[1]), r[h], vec64_all(c[0])),
                    high = vec64_fma(vec64_all(c[3]), r[h], vec64_all(c[2])),
                    p = vec64_fma(vec64_fma(high, r2, low), r2, r[h]);
        d[h] = vec64_fma(power, p, power);
    }
}
#else
/* function_power()'s polynomial, its terms of even and of odd degree apart: eight sums that do
 * not wait for each other, and fewer operations. */
FUNCTION_INLINE void function_powers(const vec *x, const int halves, const ng_function f,
                                     vec64 d[2 * FUNCTION_EXPS])
{
    vec64 r[2 * FUNCTION_EXPS], r2[2 * FUNCTION_EXPS], even[2 * FUNCTION_EXPS],
        odd[2 * FUNCTION_EXPS], shifted[2 * FUNCTION_EXPS];
    function_reduce(x, halves, f, vec64_all(0x1.8p52), r, shifted);
    IV_UNROLL
    for (int h = 0; h < halves; h++) {
        r2[h] = vec64_mul(r[h], r[h]);
        odd[h] = vec64_all(function_terms[9]);
        even[h] = vec64_all(function_terms[8]);
    }
    IV_UNROLL
    for (int i = 6; i >= 0; i -= 2) {
        IV_UNROLL
        for (int h = 0; h < halves; h++) {
            odd[h] = vec64_fma(odd[h], r2[h], vec64_all(function_terms[i + 1]));
            even[h] = vec64_fma(even[h], r2[h], vec64_all(function_terms[i]));
        }
    }
    IV_UNROLL
    for (int h = 0; h < halves; h++)
        d[h] = vec64_times_power(vec64_fma(odd[h], r[h], even[h]), shifted[h]);
}
#endif

static __attribute__((noinline, cold)) vec function_exp_rest(vec x)
{
    return function_any(x, NG_FN_EXP);
}

static __attribute__((noinline, cold)) vec function_exp2_rest(vec x)
{
    return function_any(x, NG_FN_EXP2);
}

/* Of the lanes `in` those whose results are normal numbers. `negative`, of this and what
 * follows: no x that counts is above 1. */
FUNCTION_INLINE imask function_normal(imask in, vec x, const ng_function f, const bool negative)
{
    const float most = f == NG_FN_EXP ? 87 : 125;
    return negative ? im_least(in, x, function_constant(-most))
                    : im_within(in, x, function_constant(most));
}

/*
 * A double d becomes FP32 by its lower 29 bits: 2^28 is a tie. The value is within 2^-45 of d,
 * 2^8 units of d's last place: farther than 2^9 units from a tie both round alike. Other lanes,
 * and those with results that are not normal numbers, send all n vectors to function_any().
 */
FUNCTION_INLINE bool function_exps_wide(const vec *x, const int n, const ng_function f,
                                        const bool negative, vec *y)
{
    enum {
        FROM = (1 << 28) - (1 << 9),
        BITS = (1 << 29) - (1 << 10) /* none of them is left within 2^10 from there on */
    };
    vec64 d[2 * FUNCTION_EXPS];
    imask good = function_normal(im_all(), x[0], f, negative);
    IV_UNROLL
    for (int i = 1; i < n; i++)
        good = function_normal(good, x[i], f, negative);
    function_powers(x, 2 * n, f, d);
    IV_UNROLL
    for (int i = 0; i < n; i++) {
        const ivec low = iv_low_words(d[2 * i], d[2 * i + 1]);
        good = im_test(good, iv_sub(low, iv_all(FROM)), iv_all(BITS));
        y[i] = vec_of_halves(d[2 * i], d[2 * i + 1]);
    }
    if (__builtin_expect(im_every(good), 1))
        return true;
    for (int i = 0; i < n; i++)
        y[i] = f == NG_FN_EXP ? function_exp_rest(x[i]) : function_exp2_rest(x[i]);
    return false;
}

#ifdef VEC_THIRTYSECONDS
static __attribute__((noinline)) vec function_exp_wide(vec x, ng_function f)
{
    vec y;
    if (f == NG_FN_EXP)
        (void)function_exps_wide(&x, 1, NG_FN_EXP, false, &y);
    else
        (void)function_exps_wide(&x, 1, NG_FN_EXP2, false, &y);
    return y;
}

/*
 * In pairs of FP32 numbers: e^x = T 2^m e^r, T one of 32 FP32 numbers from 1 to 2, r = r_0 +
 * r_1 with |r_0| < 2^-6.5 and |r_1| < 2^-21.
 *
 * exp: r = x - n ln 2 / 32 + rest of T. ln 2 / 32 is 0x162E 2^-18 + 0x43 2^-26 + a third part;
 * n has 13 bits, so the first two products and differences are exact: where n is not 0, x is a
 * multiple of 2^-30. exp2: x - n / 32 is exact, and so is the error of its product with RN(ln
 * 2).
 *
 * s = RN(T + T r_0), and what that lost is an FMA more. With e^r - 1 - r_0 = q = r_1 + r^2 (1/2
 * + r / 6 + r^2 / 24), whose next term is below 2^-39, the value is s + t, t = T q + what s
 * lost, |t| < 2^-13, before 2^m. Over all arguments s + t is within 2^-35.07 of it (exp:
 * 2^-35.13), so both ends of s + t +- 1.25 2^-35, each with t's rounding of at most 2^-38, lie
 * around it: if they round to one number, so does the value. Of random arguments one in 1600 is
 * left over. The lower end is what comes out: the table's rests of T are short of that much
 * over T.
 */
FUNCTION_INLINE void function_exps_short(const vec *x, const int n, const ng_function f,
                                         const bool negative, vec *y, imask good[FUNCTION_EXPS])
{
    const vec both = function_constant(0x1.4p-34F), /* bands */
        shift = function_constant(f == NG_FN_EXP ? 0x1.8p23F : 0x1.8p18F);
    vec shifted[FUNCTION_EXPS], r0[FUNCTION_EXPS], r1[FUNCTION_EXPS], r[FUNCTION_EXPS],
        power[FUNCTION_EXPS], s[FUNCTION_EXPS], t[FUNCTION_EXPS], q[FUNCTION_EXPS];
    IV_UNROLL
    for (int i = 0; i < n; i++)
        shifted[i] = f == NG_FN_EXP ? vec_fma(x[i], function_constant(0x1.715476p+5F), shift)
                                    : vec_add(x[i], shift);
    IV_UNROLL
    for (int i = 0; i < n; i++)
        power[i] = vec_thirtyseconds(iv_bits(shifted[i]), &r1[i]);
    IV_UNROLL
    for (int i = 0; i < n; i++) {
        const vec number = vec_sub(shifted[i], shift);
        if (f == NG_FN_EXP) {
            const vec first = vec_fma(number, function_constant(-0x1.62EP-6F), x[i]);
            r0[i] = vec_fma(number, function_constant(-0x1.0CP-20F), first);
            r1[i] = vec_fma(number, function_constant(0x1.05C61P-34F), r1[i]);
        } else {
            const vec d = vec_sub(x[i], number), ln2 = function_constant(0x1.62E43P-1F);
            r0[i] = vec_mul(d, ln2);
            r1[i] = vec_fma(d, function_constant(-0x1.05C61P-29F), r1[i]);
            r1[i] = vec_add(r1[i], vec_fma(d, ln2, vec_sub(vec_zero(), r0[i])));
        }
    }
    IV_UNROLL
    for (int i = 0; i < n; i++)
        r[i] = vec_add(r0[i], r1[i]);
    IV_UNROLL
    for (int i = 0; i < n; i++) {
        s[i] = vec_fma(power[i], r0[i], power[i]);
        q[i] =
            vec_fma(r[i], function_constant(0x1.555556P-5F), function_constant(0x1.555556P-3F));
    }
    IV_UNROLL
    for (int i = 0; i < n; i++) {
        const vec square = vec_mul(r[i], r[i]);
        t[i] = vec_fma(power[i], r0[i], vec_sub(power[i], s[i]));
        q[i] = vec_fma(r[i], q[i], function_constant(0.5F));
        q[i] = vec_fma(square, q[i], r1[i]);
    }
    IV_UNROLL
    for (int i = 0; i < n; i++) {
        t[i] = vec_fma(power[i], q[i], t[i]);
        const vec low = vec_add(s[i], t[i]), high = vec_add(s[i], vec_add(t[i], both));
        const ivec m = iv_sll_by(iv_and(iv_bits(shifted[i]), iv_all(~31u)), 18);
        good[i] = im_same(function_normal(im_all(), x[i], f, negative), low, high);
        y[i] = iv_float(iv_add(iv_bits(low), m));
    }
}
#endif

/* False: not all results are surely normal numbers. */
FUNCTION_INLINE bool function_exps(const vec *x, const int n, const ng_function f,
                                   const bool negative, vec *y)
{
#ifdef VEC_THIRTYSECONDS
    imask good[FUNCTION_EXPS];
    bool all = true;
    function_exps_short(x, n, f, negative, y, good);
    IV_UNROLL
    for (int i = 0; i < n; i++)
        if (__builtin_expect(!im_every(good[i]), 0)) {
            y[i] = function_exp_wide(x[i], f);
            all = false;
        }
    return all;
#else
    return function_exps_wide(x, n, f, negative, y);
#endif
}

FUNCTION_INLINE vec function_cr(vec x, const ng_function f)
{
    vec y;
    if (f != NG_FN_EXP && f != NG_FN_EXP2)
        return function_any(x, f);
    (void)function_exps(&x, 1, f, false, &y);
    return y;
}

/* ---- sleef ---- */

FUNCTION_INLINE vec function_sleef(vec x, const ng_function f)
{
    const vec one = function_constant(1);
    switch (f) {
    case NG_FN_EXP: return function_quiet(vec_exp(x));
    case NG_FN_EXP2: return function_quiet(vec_exp2(x));
    case NG_FN_LOG: return function_quiet(vec_log(x));
    case NG_FN_TANH: return function_quiet(vec_tanh(x));
    case NG_FN_SIGMOID: {
        const vec minus = iv_float(iv_xor(iv_bits(x), iv_all(0x80000000u)));
        return function_quiet(vec_div(one, vec_add(one, vec_exp(minus))));
    }
    case NG_FN_RSQRT: return function_quiet(vec_div(one, vec_sqrt(x)));
    case NG_FN_RECIPROCAL: break;
    }
    return function_quiet(vec_div(one, x));
}

/* VL values of a function; not for tables. */
FUNCTION_INLINE vec function_vector(const ng_function_kind kind, const ng_function f, vec x)
{
    return kind == NG_FUNCTION_SLEEF ? function_sleef(x, f) : function_cr(x, f);
}

/* The same of n vectors, n constant, at most FUNCTION_MANY; y is not x. False: not all results
 * are surely normal numbers. */
FUNCTION_INLINE bool function_vectors(const ng_function_kind kind, const ng_function f,
                                      const bool negative, const vec *x, const int n, vec *y)
{
    bool normal = true;
    if (kind == NG_FUNCTION_CR && (f == NG_FN_EXP || f == NG_FN_EXP2)) {
        for (int i = 0; i < n; i += FUNCTION_EXPS)
            normal &= function_exps(x + i, n - i < FUNCTION_EXPS ? n - i : FUNCTION_EXPS, f,
                                    negative, y + i);
        return normal;
    }
    for (int i = 0; i < n; i++)
        y[i] = function_vector(kind, f, x[i]);
    return false;
}

/* ---- Arrays: the kernel. ---- */

/* Whole vectors in place; of a last one only the elements there are. y may be x. */
FUNCTION_INLINE void function_array(const ng_function_kind kind, const ng_function f,
                                    const uint32_t *x, int64_t n, uint32_t *y)
{
    const int many = kind == NG_FUNCTION_CR ? FUNCTION_MANY : 1;
    int64_t i = 0;
    for (; i + many * VL <= n; i += many * VL) {
        vec from[FUNCTION_MANY], to[FUNCTION_MANY];
        for (int q = 0; q < many; q++)
            from[q] = iv_float(iv_load(x + i + q * VL));
        (void)function_vectors(kind, f, false, from, many, to);
        for (int q = 0; q < many; q++)
            iv_store(y + i + q * VL, iv_bits(to[q]));
    }
    for (; i + VL <= n; i += VL)
        iv_store(y + i, iv_bits(function_vector(kind, f, iv_float(iv_load(x + i)))));
    if (i == n)
        return;
    uint32_t rest[VL] = { 0 };
    memcpy(rest, x + i, (size_t)(n - i) * sizeof *x);
    iv_store(rest, iv_bits(function_vector(kind, f, iv_float(iv_load(rest)))));
    memcpy(y + i, rest, (size_t)(n - i) * sizeof *y);
}

FUNCTION_INLINE void function_of_kind(const ng_function_kind kind, ng_function f,
                                      const uint32_t *x, int64_t n, uint32_t *y)
{
    switch (f) {
    case NG_FN_EXP: function_array(kind, NG_FN_EXP, x, n, y); return;
    case NG_FN_EXP2: function_array(kind, NG_FN_EXP2, x, n, y); return;
    case NG_FN_LOG: function_array(kind, NG_FN_LOG, x, n, y); return;
    case NG_FN_TANH: function_array(kind, NG_FN_TANH, x, n, y); return;
    case NG_FN_SIGMOID: function_array(kind, NG_FN_SIGMOID, x, n, y); return;
    case NG_FN_RECIPROCAL: function_array(kind, NG_FN_RECIPROCAL, x, n, y); return;
    case NG_FN_RSQRT: function_array(kind, NG_FN_RSQRT, x, n, y); return;
    }
}

/* bf16 code of x, ties to even: its upper half after half a unit is added. */
static inline uint32_t function_entry(uint32_t x)
{
    if ((x & 0x7FFFFFFFu) > WIDEN_INF)
        return WIDEN_NAN >> 16;
    return (x + 0x7FFFu + (x >> 16 & 1u)) >> 16;
}

static inline void function_run(const struct elementary_job *j, const uint32_t *x, int64_t n,
                                uint32_t *y)
{
    switch (j->choice.kind) {
    case NG_FUNCTION_CR: function_of_kind(NG_FUNCTION_CR, j->f, x, n, y); return;
    case NG_FUNCTION_SLEEF: function_of_kind(NG_FUNCTION_SLEEF, j->f, x, n, y); return;
    case NG_FUNCTION_TABLE:
        for (int64_t i = 0; i < n; i++)
            y[i] = (uint32_t)j->choice.table[function_entry(x[i])] << 16;
        return;
    }
}

#endif
