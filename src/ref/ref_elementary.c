/* SPDX-License-Identifier: Apache-2.0 */
/* One value of an elementary function. Numerics: docs/numerics.md, sections 8 and 11.8. */
#include "../internal.h"
#include "../num/elementary.h"
#include "ref.h"

static ng_value rn(ng_value v)
{
    return ng_num_round_f32(v, NG_ROUND_TIES_TO_EVEN);
}

static ng_value one(void)
{
    return (ng_value){ .sig = 1 };
}

/* RN(1 / v); v has at most 24 significand bits. */
static ng_value inverse(ng_value v)
{
    if (ng_num_is_nan(v))
        return v;
    if (ng_num_is_inf(v))
        return ng_num_zero(v.neg);
    return ng_num_is_zero(v) ? ng_num_inf(v.neg) : rn(ng_num_div(one(), v));
}

/* What SLEEF has no function for: chains of its functions and of FP32 operations. */
static uint32_t sleef_chain(ng_function f, uint32_t x)
{
    switch (f) {
    case NG_FN_SIGMOID: {
        const ng_value e = ng_num_f32(ng_sleef(NG_FN_EXP, x ^ 0x80000000u));
        return ng_num_f32_code(inverse(rn(ng_num_add(one(), e))));
    }
    case NG_FN_RSQRT: {
        const ng_value v = ng_num_f32(x);
        if (v.neg && !ng_num_is_zero(v))
            return ng_num_f32_code(ng_num_nan());
        return ng_num_f32_code(inverse(ng_num_sqrt_f32(v)));
    }
    case NG_FN_RECIPROCAL: return ng_num_f32_code(inverse(ng_num_f32(x)));
    case NG_FN_EXP:
    case NG_FN_EXP2:
    case NG_FN_LOG:
    case NG_FN_TANH: break;
    }
    /* A NaN's payload and sign are not SLEEF's promise: decoded and encoded it is canonical. */
    return ng_num_f32_code(ng_num_f32(ng_sleef(f, x)));
}

static uint32_t look_up(const uint16_t *table, uint32_t x)
{
    const ng_cast rne = { .round = NG_ROUND_TIES_TO_EVEN };
    uint32_t code = 0;
    (void)ng_num_encode(ng_format_info(NG_BF16), &rne, ng_num_f32(x), 0, &code); /* total */
    return (uint32_t)table[code] << 16;
}

uint32_t ng_ref_function(ng_function f, const ng_function_choice *how, uint32_t x)
{
    switch (how->kind) {
    case NG_FUNCTION_SLEEF: return sleef_chain(f, x);
    case NG_FUNCTION_TABLE: return look_up(how->table, x);
    case NG_FUNCTION_CR: break;
    }
    return ng_num_function(f, x);
}
