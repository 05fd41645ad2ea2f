/* SPDX-License-Identifier: Apache-2.0 */
/* Block scales and elements. Numerics: docs/numerics.md, section 3 and 11.5. */
#include "ref.h"

static int clamp_exponent(int e)
{
    return e < -127 ? -127 : e > 127 ? 127 : e;
}

static bool is_power_of_two(ng_value a)
{
    return (a.sig & (a.sig - 1)) == 0;
}

/* The exponent of a + half a unit in the last of `man` mantissa bits, at a's own exponent. */
static int exponent_half_up(ng_value a, int man)
{
    const uint64_t sig = a.sig << __builtin_clzll(a.sig); /* 1.xxx with 63 fraction bits */
    const uint64_t half = (uint64_t)1 << (62 - man);
    return ng_num_exponent(a) + (sig + half < sig); /* the sum carried out of bit 63 */
}

/* ceil(log2(a / max)): the least s with a <= max * 2^s. */
static int exponent_to_fit(ng_value a, ng_value max)
{
    const int s = ng_num_exponent(a) - ng_num_exponent(max);
    ng_value bound = max;
    bound.exp += s;
    return ng_num_compare_magnitude(a, bound) > 0 ? s + 1 : s;
}

uint32_t ng_ref_mx_scale(ng_scale_rule rule, const ng_format_spec *element, ng_value a)
{
    if (!a.sig)
        return 0;
    const ng_value max = ng_num_decode(element, element->max_code);
    const int emax = ng_num_exponent(max);
    int e = 0;
    switch (rule) {
    case NG_SCALE_FLOOR: e = ng_num_exponent(a) - emax; break;
    case NG_SCALE_FLOOR_UP1: e = ng_num_exponent(a) - (emax - 1); break;
    case NG_SCALE_CEIL: e = ng_num_exponent(a) + !is_power_of_two(a) - emax; break;
    case NG_SCALE_EVEN: e = exponent_half_up(a, (int)element->man_bits) - emax; break;
    case NG_SCALE_RCEIL: e = exponent_to_fit(a, max); break;
    case NG_SCALE_NVFP4_TE:
    case NG_SCALE_NVFP4_EXACT: break; /* not e8m0: ng_ref_nvfp4_scale() */
    }
    return (uint32_t)(clamp_exponent(e) + 127);
}

static uint32_t encode_sat(const ng_format_spec *f, const ng_cast *cast, ng_value v,
                           uint32_t word)
{
    ng_cast c = *cast;
    uint32_t code = 0;
    c.overflow = NG_OVERFLOW_SATURATE;
    (void)ng_num_encode(f, &c, v, word, &code); /* the caller has checked the cast */
    return code;
}

uint32_t ng_ref_mx_element(const ng_format_spec *element, const ng_cast *cast, uint32_t scale,
                           ng_value v, uint32_t word)
{
    v.exp -= (int)scale - 127; /* exact; no effect on zero, Inf and NaN */
    return encode_sat(element, cast, v, word);
}

/* ---- NVFP4: chains of FP32 operations, each rounded to nearest even. ---- */

static const ng_cast plain = { .round = NG_ROUND_TIES_TO_EVEN };

static ng_value mul32(ng_value a, ng_value b)
{
    return ng_num_round_f32(ng_num_mul(a, b), NG_ROUND_TIES_TO_EVEN);
}

/* min(RN(a / b), FLT_MAX) for a > 0, b >= 0. */
static ng_value div32_capped(ng_value a, ng_value b)
{
    const ng_value max = ng_num_f32(0x7F7FFFFFu);
    if (!b.sig)
        return max;
    const ng_value q = ng_num_round_f32(ng_num_div(a, b), NG_ROUND_TIES_TO_EVEN);
    return ng_num_is_inf(q) ? max : q;
}

static ng_value integer(uint64_t n)
{
    return (ng_value){ .sig = n };
}

struct ng_nvfp4 ng_ref_nvfp4(ng_scale_rule rule, ng_value amax)
{
    struct ng_nvfp4 t = { .rule = rule };
    const ng_value g = ng_num_round_f32(amax, NG_ROUND_TIES_TO_EVEN), one = integer(1);
    if (rule == NG_SCALE_NVFP4_EXACT) {
        const ng_value s =
            ng_num_round_f32(ng_num_div(g, integer(2688)), NG_ROUND_TIES_TO_EVEN);
        t.tensor_scale = ng_num_f32_code(s.sig ? s : one);
        return t;
    }
    t.encode = g.sig ? div32_capped(integer(2688), g) : one; /* 2688 = 448 * 6 */
    if (!t.encode.sig)
        t.encode = one;
    t.tensor_scale = ng_num_f32_code(div32_capped(one, t.encode));
    return t;
}

uint32_t ng_ref_nvfp4_scale(const struct ng_nvfp4 *t, ng_value a)
{
    const ng_format_spec *f = ng_format_info(NG_UE4M3);
    a.neg = false;
    if (t->rule == NG_SCALE_NVFP4_EXACT) {
        const ng_value six_s = ng_num_mul(integer(6), ng_num_f32(t->tensor_scale));
        return encode_sat(f, &plain, ng_num_div(a, six_s), 0);
    }
    const ng_value sixth =
        ng_num_round_f32(ng_num_div(integer(1), integer(6)), NG_ROUND_TIES_TO_EVEN);
    return encode_sat(f, &plain, mul32(a, mul32(t->encode, sixth)), 0);
}

uint32_t ng_ref_nvfp4_element(const struct ng_nvfp4 *t, const ng_cast *cast, uint32_t scale,
                              ng_value v, uint32_t word)
{
    const ng_format_spec *f = ng_format_info(NG_E2M1);
    const ng_value q = ng_num_decode(ng_format_info(NG_UE4M3), scale);
    if (!q.sig)
        return encode_sat(f, cast, ng_num_zero(v.neg), word);
    if (ng_num_is_inf(v))
        return encode_sat(f, cast, v, word);
    const ng_value decode = ng_num_f32(t->tensor_scale);
    if (t->rule == NG_SCALE_NVFP4_EXACT)
        return encode_sat(f, cast, ng_num_div(v, ng_num_mul(q, decode)), word);
    const ng_value encode = div32_capped(integer(1), mul32(q, decode));
    return encode_sat(f, cast, mul32(v, encode), word);
}
