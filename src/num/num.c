/* SPDX-License-Identifier: Apache-2.0 */
#include "num.h"

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

static uint64_t low_mask(int n)
{
    return n >= 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
}

/* ---- Decode: section 1. ---- */

/* Bits that carry the magnitude: exponent and mantissa, in place. */
static uint32_t magnitude_of(const ng_format_spec *f, uint32_t code)
{
    return code & (uint32_t)low_mask((int)(f->exp_bits + f->man_bits + f->low_bits));
}

static bool has_sign(const ng_format_spec *f)
{
    return f->kind != NG_KIND_SCALE && f->kind != NG_KIND_UFN;
}

static bool sign_of(const ng_format_spec *f, uint32_t code)
{
    return has_sign(f) && (code >> (f->bits - 1) & 1) != 0;
}

/* sig * 2^exp from the two fields; the exponent of a subnormal is that of field 1. */
static ng_value from_fields(const ng_format_spec *f, bool neg, uint32_t mag)
{
    const int man = (int)(f->man_bits + f->low_bits);
    const uint32_t field = mag >> man;
    uint64_t sig = mag & (uint32_t)low_mask(man);
    if (field)
        sig |= (uint64_t)1 << man;
    return (ng_value){ .sig = sig, .exp = max_int((int)field, 1) - f->bias - man, .neg = neg };
}

/* A NaN's sign survives conversion with nan_sign = keep; arithmetic drops it. */
static ng_value nan_with_sign(bool neg)
{
    return (ng_value){ .cls = NG_CLASS_NAN, .neg = neg };
}

ng_value ng_num_decode(const ng_format_spec *f, uint32_t code)
{
    code &= (uint32_t)low_mask((int)f->bits);
    const bool neg = sign_of(f, code);
    const uint32_t mag = magnitude_of(f, code);
    const uint32_t inf = ((1u << f->exp_bits) - 1u) << (f->man_bits + f->low_bits);

    switch (f->kind) {
    case NG_KIND_IEEE:
        if (mag >= inf)
            return mag == inf ? ng_num_inf(neg) : nan_with_sign(neg);
        break;
    case NG_KIND_FN:
    case NG_KIND_UFN:
        if (mag == f->max_code + 1)
            return nan_with_sign(neg);
        break;
    case NG_KIND_FNUZ:
        if (neg && mag == 0)
            return ng_num_nan();
        break;
    case NG_KIND_SCALE: /* a power of two; there is no zero and no subnormal */
        return code == f->nan_code ? ng_num_nan()
                                   : (ng_value){ .sig = 1, .exp = (int)code - f->bias };
    case NG_KIND_INT: /* two's complement, so -128 is there to be read */
        return (ng_value){ .sig = neg ? 256u - code : code,
                           .exp = 1 - f->bias - (int)f->man_bits,
                           .neg = neg };
    case NG_KIND_FINITE: break;
    }
    return from_fields(f, neg, mag);
}

/* ---- Exact products. ---- */

ng_value ng_num_mul(ng_value a, ng_value b)
{
    const bool neg = a.neg != b.neg;
    if (ng_num_is_nan(a) || ng_num_is_nan(b))
        return ng_num_nan();
    if (ng_num_is_inf(a) || ng_num_is_inf(b))
        return ng_num_is_zero(a) || ng_num_is_zero(b) ? ng_num_nan() : ng_num_inf(neg);
    return (ng_value){ .sig = a.sig * b.sig, .exp = a.exp + b.exp, .neg = neg };
}

int ng_num_compare_magnitude(ng_value a, ng_value b)
{
    if (!a.sig || !b.sig)
        return (a.sig != 0) - (b.sig != 0);
    const int ea = ng_num_exponent(a), eb = ng_num_exponent(b);
    if (ea != eb)
        return ea > eb ? 1 : -1;
    const uint64_t sa = a.sig << __builtin_clzll(a.sig), sb = b.sig << __builtin_clzll(b.sig);
    return (sa > sb) - (sa < sb);
}

ng_value ng_num_div(ng_value a, ng_value b)
{
    ng_value q = { .neg = a.neg != b.neg };
    if (!a.sig)
        return q;
    /* Long division, bit by bit: 64 quotient bits of (a.sig normalised) / (b.sig normalised).
     */
    const int za = __builtin_clzll(a.sig), zb = __builtin_clzll(b.sig);
    const uint64_t n = a.sig << za, d = b.sig << zb;
    uint64_t rest = n >= d ? n - d : n, sig = n >= d;
    int exp = (a.exp - za) - (b.exp - zb);
    while (!(sig >> 63)) {
        const bool carry = rest >> 63;
        rest <<= 1;
        sig <<= 1;
        exp--;
        if (carry || rest >= d) {
            rest -= d;
            sig |= 1;
        }
    }
    q.sig = sig;
    q.exp = exp;
    q.sticky = rest != 0;
    return q;
}

/* ---- Rounding: section 2. ---- */

/* The part of v below 2^(v.exp + shift), against half of that unit. */
struct dropped {
    bool any;
    int against_half; /* -1, 0, 1 */
};

static struct dropped what_is_dropped(ng_value v, int shift)
{
    if (shift <= 0)
        return (struct dropped){ .any = v.sticky, .against_half = -1 };
    if (shift > 64) /* below half, however many bits */
        return (struct dropped){ .any = v.sig || v.sticky, .against_half = -1 };
    const uint64_t half = (uint64_t)1 << (shift - 1);
    const uint64_t rest = v.sig & low_mask(shift);
    int cmp = (rest > half) - (rest < half);
    if (cmp == 0 && v.sticky)
        cmp = 1;
    return (struct dropped){ .any = rest || v.sticky, .against_half = cmp };
}

/* floor(fraction * 2^n), the fraction being what lies below 2^(v.exp + shift). n <= 33. */
static uint64_t fraction_bits(ng_value v, int shift, int n)
{
    if (shift <= 0)
        return 0;
    const uint64_t rest = v.sig & low_mask(shift);
    if (shift <= n)
        return rest << (n - shift);
    return shift - n >= 64 ? 0 : rest >> (shift - n);
}

/* Section 2.1: round away from zero? */
static bool stochastic_up(ng_value v, int shift, const struct ng_rounding *how)
{
    const int n = (int)how->sr_bits;
    const uint64_t r = how->take == NG_SR_TAKE_HIGH ? (uint64_t)how->word >> (32 - n)
                                                    : how->word & low_mask(n);
    switch (how->sr) {
    case NG_SR_A: return fraction_bits(v, shift, n) + r >= (uint64_t)1 << n;
    case NG_SR_B: return fraction_bits(v, shift, n + 1) + 2 * r + 1 >= (uint64_t)1 << (n + 1);
    case NG_SR_C: {
        /* rne(fraction * 2^n): the kept bits are fraction_bits, the rest decides. */
        uint64_t f = fraction_bits(v, shift, n);
        const struct dropped d = what_is_dropped(v, shift - n);
        if (d.any && (d.against_half > 0 || (d.against_half == 0 && (f & 1))))
            f++;
        return f + r >= (uint64_t)1 << n;
    }
    }
    return false;
}

static bool rounds_up(ng_value v, int shift, uint64_t kept, const struct ng_rounding *how)
{
    const struct dropped d = what_is_dropped(v, shift);
    if (!d.any)
        return false;
    switch (how->round) {
    case NG_ROUND_TIES_TO_EVEN:
        return d.against_half > 0 || (d.against_half == 0 && (kept & 1));
    case NG_ROUND_TIES_TO_AWAY: return d.against_half >= 0;
    case NG_ROUND_TOWARD_ZERO: return false;
    case NG_ROUND_TOWARD_NEGATIVE: return v.neg;
    case NG_ROUND_TOWARD_POSITIVE: return !v.neg;
    case NG_ROUND_TO_ODD: return (kept & 1) == 0;
    case NG_ROUND_STOCHASTIC: return stochastic_up(v, shift, how);
    }
    return false;
}

ng_value ng_num_round(ng_value v, struct ng_grid grid, struct ng_rounding how)
{
    if (!v.sig)
        return v;
    const int unit = max_int(ng_num_exponent(v) - (grid.bits - 1), grid.least);
    const int shift = unit - v.exp;
    if (shift <= 0 && !v.sticky)
        return v; /* already on the grid */
    uint64_t kept = shift <= 0 ? v.sig << -shift : shift >= 64 ? 0 : v.sig >> shift;
    if (rounds_up(v, shift, kept, &how))
        kept++;
    return (ng_value){ .sig = kept, .exp = unit, .neg = v.neg };
}

bool ng_num_stops_at_max(ng_round round, bool neg)
{
    switch (round) {
    case NG_ROUND_TOWARD_ZERO:
    case NG_ROUND_TO_ODD: return true;
    case NG_ROUND_TOWARD_NEGATIVE: return !neg;
    case NG_ROUND_TOWARD_POSITIVE: return neg;
    case NG_ROUND_TIES_TO_EVEN:
    case NG_ROUND_TIES_TO_AWAY:
    case NG_ROUND_STOCHASTIC: return false;
    }
    return false;
}

ng_value ng_num_round_f32(ng_value v, ng_round round)
{
    if (v.cls != NG_CLASS_FINITE || !v.sig)
        return v;
    const ng_value r =
        ng_num_round(v, (struct ng_grid){ .bits = 24, .least = -149 }, ng_rounding_of(round));
    if (!r.sig || ng_num_exponent(r) <= 127)
        return r;
    if (ng_num_stops_at_max(round, v.neg))
        return (ng_value){ .sig = 0xFFFFFF, .exp = 104, .neg = v.neg };
    return ng_num_inf(v.neg);
}

/* ---- Encode: section 2, steps (1) to (4). ---- */

static uint32_t with_sign(const ng_format_spec *f, uint32_t mag, bool neg)
{
    if (!neg || !has_sign(f))
        return mag;
    if (f->kind == NG_KIND_INT) /* no -0 */
        return (256u - mag) & 0xFFu;
    if (f->kind == NG_KIND_FNUZ && mag == 0) /* that code is the NaN */
        return 0;
    return mag | 1u << (f->bits - 1);
}

static ng_status encode_nan(const ng_format_spec *f, const ng_cast *cast, bool neg,
                            uint32_t *code)
{
    if (!f->has_nan) {
        if (cast->nan_to == NG_NAN_TO_ERROR)
            return NG_ERR_FORMAT;
        *code = cast->nan_to == NG_NAN_TO_ZERO ? 0 : f->max_code;
        return NG_OK;
    }
    const bool keep = neg && cast->nan_sign == NG_NAN_SIGN_KEEP && f->kind != NG_KIND_FNUZ;
    *code = with_sign(f, f->nan_code, keep);
    return NG_OK;
}

/* Past the maximum by rounding (`infinite` false) or because the input is Inf. */
static ng_status encode_overflow(const ng_format_spec *f, const ng_cast *cast, bool neg,
                                 bool infinite, uint32_t *code)
{
    const bool to_max = cast->overflow == NG_OVERFLOW_SATURATE ||
                        (cast->overflow == NG_OVERFLOW_SATURATE_KEEP_INF && !infinite) ||
                        (cast->overflow == NG_OVERFLOW_INF && !infinite &&
                         ng_num_stops_at_max(cast->round, neg));
    if (to_max) {
        *code = with_sign(f, f->max_code, neg);
        return NG_OK;
    }
    if (!f->has_inf)
        return encode_nan(f, cast, neg, code);
    *code = with_sign(f, f->max_code + (1u << f->low_bits), neg);
    return NG_OK;
}

const char *ng_num_cast_error(const ng_format_spec *f, const ng_cast *cast)
{
    if ((unsigned)cast->round > NG_ROUND_STOCHASTIC)
        return "cast.round is no ng_round";
    if ((unsigned)cast->overflow > NG_OVERFLOW_SATURATE_KEEP_INF)
        return "cast.overflow is no ng_overflow";
    if ((unsigned)cast->nan_sign > NG_NAN_SIGN_KEEP)
        return "cast.nan_sign is no ng_nan_sign";
    if ((unsigned)cast->nan_to > NG_NAN_TO_ERROR)
        return "cast.nan_to is no ng_nan_to";
    if ((unsigned)cast->sr > NG_SR_C || (unsigned)cast->sr_take > NG_SR_TAKE_HIGH)
        return "cast.sr or cast.sr_take is out of range";
    if (cast->sr_bits > 32)
        return "cast.sr_bits is more than 32";
    if (cast->overflow == NG_OVERFLOW_INF && !f->has_inf && !f->has_nan)
        return "overflow \"inf\" needs a format with Inf or NaN; use \"sat\"";
    return NULL;
}

/* The code of n * 2^unit, magnitude only: codes are consecutive along the grid. */
static uint64_t grid_code(const ng_format_spec *f, ng_value r, int least)
{
    if (f->kind == NG_KIND_SCALE) /* no zero: what rounds to zero becomes 2^-127, code 0 */
        return r.sig ? (uint64_t)(ng_num_exponent(r) - least) : 0;
    if (!r.sig)
        return 0;
    /* r.sig may be anything with the right value: bring it to the grid's unit. */
    const int unit = max_int(ng_num_exponent(r) - (int)f->man_bits, least);
    const int shift = r.exp - unit;
    const uint64_t n = shift >= 0 ? r.sig << shift : r.sig >> -shift;
    return ((uint64_t)(unit - least) << f->man_bits) + n;
}

ng_status ng_num_encode(const ng_format_spec *f, const ng_cast *cast, ng_value v, uint32_t word,
                        uint32_t *code)
{
    const char *error = ng_num_cast_error(f, cast);
    if (error)
        return cast->overflow == NG_OVERFLOW_INF && !f->has_inf && !f->has_nan
                   ? NG_ERR_FORMAT
                   : NG_ERR_ARGUMENT;
    if (ng_num_is_nan(v)) /* (1) */
        return encode_nan(f, cast, v.neg, code);
    if (!has_sign(f) && v.neg && !ng_num_is_zero(v))
        return encode_nan(f, cast, v.neg, code);
    if (ng_num_is_inf(v)) /* (3) */
        return encode_overflow(f, cast, v.neg, true, code);

    const int man = (int)f->man_bits;
    const int least = f->kind == NG_KIND_SCALE ? -f->bias : 1 - f->bias - man;
    const struct ng_rounding how = { .round = cast->round,
                                     .sr = cast->sr,
                                     .sr_bits = cast->sr_bits ? cast->sr_bits : 32,
                                     .take = cast->sr_take,
                                     .word = word };
    const ng_value r =
        ng_num_round(v, (struct ng_grid){ .bits = man + 1, .least = least }, how);
    const uint64_t mag = grid_code(f, r, least) << f->low_bits; /* (2) */
    if (mag > f->max_code)
        return encode_overflow(f, cast, v.neg, false, code); /* (3) */
    *code = with_sign(f, (uint32_t)mag, v.neg);              /* (4) */
    return NG_OK;
}

ng_value ng_num_f32(uint32_t pattern)
{
    return ng_num_decode(ng_format_info(NG_F32), pattern);
}

uint32_t ng_num_f32_code(ng_value v)
{
    uint32_t code = 0;
    const ng_cast cast = { .round = NG_ROUND_TIES_TO_EVEN };
    (void)ng_num_encode(ng_format_info(NG_F32), &cast, v, 0,
                        &code); /* FP32 takes every value */
    return code;
}

uint32_t ng_num_f32_add(uint32_t a, uint32_t b)
{
    return ng_num_f32_code(ng_num_add(ng_num_f32(a), ng_num_f32(b)));
}

uint32_t ng_num_f32_mul(uint32_t a, uint32_t b)
{
    return ng_num_f32_code(ng_num_mul(ng_num_f32(a), ng_num_f32(b)));
}

uint32_t ng_num_f32_fma(uint32_t a, uint32_t b, uint32_t c)
{
    const ng_value product = ng_num_mul(ng_num_f32(a), ng_num_f32(b));
    return ng_num_f32_code(ng_num_add(product, ng_num_f32(c)));
}

uint32_t ng_num_f32_div(uint32_t a, uint32_t b)
{
    const ng_value x = ng_num_f32(a), y = ng_num_f32(b);
    const bool neg = x.neg != y.neg;
    if (ng_num_is_nan(x) || ng_num_is_nan(y) || (ng_num_is_inf(x) && ng_num_is_inf(y)) ||
        (ng_num_is_zero(x) && ng_num_is_zero(y)))
        return ng_num_f32_code(ng_num_nan());
    if (ng_num_is_inf(x) || ng_num_is_zero(y))
        return ng_num_f32_code(ng_num_inf(neg));
    if (ng_num_is_inf(y) || ng_num_is_zero(x))
        return ng_num_f32_code(ng_num_zero(neg));
    return ng_num_f32_code(ng_num_div(x, y));
}

ng_status ng_decode(ng_format format, uint32_t code, ng_value *value)
{
    const ng_format_spec *f = ng_format_info(format);
    if (!value)
        return NG_ERR_ARGUMENT;
    if (!f)
        return NG_ERR_FORMAT;
    *value = ng_num_decode(f, code);
    return NG_OK;
}

enum {
    FAR_EXPONENT = 100000
};

ng_status ng_encode(ng_format to, const ng_cast *cast, const ng_value *value, uint32_t word,
                    uint32_t *code)
{
    const ng_format_spec *f = ng_format_info(to);
    if (!cast || !value || !code)
        return NG_ERR_ARGUMENT;
    if (!f)
        return NG_ERR_FORMAT;
    if ((unsigned)value->cls > NG_CLASS_NAN)
        return NG_ERR_ARGUMENT;
    ng_value v = *value;
    v.sticky = v.sticky && v.sig;
    /* Beyond every format's range: the same result, and exponents that cannot overflow an int.
     */
    if (v.exp > FAR_EXPONENT || v.exp < -FAR_EXPONENT)
        v.exp = v.exp < 0 ? -FAR_EXPONENT : FAR_EXPONENT;
    return ng_num_encode(f, cast, v, word, code);
}
