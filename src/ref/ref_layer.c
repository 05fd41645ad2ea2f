/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the multiplies of a layer: a row of RMSNorm, a pair of the rotary embedding.
 * Numerics: docs/numerics.md, section 11.11, whose items are named here. Numbers are FP32
 * patterns.
 */
#include "ref.h"

#define ONE  0x3F800000u
#define SIGN 0x80000000u

/* Item 130: what a row's n elements are multiplied by, s the sum of their squares. */
uint32_t ng_ref_rms_scale(const ng_rms_norm_op *op, int64_t n, uint32_t s)
{
    const ng_value count = { .sig = (uint64_t)n };
    const uint32_t share = ng_num_f32_code(ng_num_div(ng_num_f32(ONE), count)),
                   mean = ng_num_f32_mul(s, share);
    return ng_ref_function(NG_FN_RSQRT, &op->rsqrt, ng_num_f32_add(mean, op->eps));
}

uint32_t ng_ref_rms_element(uint32_t x, uint32_t scale, const uint32_t *gain)
{
    const uint32_t y = ng_num_f32_mul(x, scale);
    return gain ? ng_num_f32_mul(y, *gain) : y;
}

/* Item 133. */
void ng_ref_rope_pair(ng_format product, uint32_t cosine, uint32_t sine, uint32_t *a,
                      uint32_t *b)
{
    const uint32_t ac = ng_ref_to_format(product, ng_num_f32_mul(*a, cosine)),
                   bs = ng_ref_to_format(product, ng_num_f32_mul(*b, sine)),
                   bc = ng_ref_to_format(product, ng_num_f32_mul(*b, cosine)),
                   as = ng_ref_to_format(product, ng_num_f32_mul(*a, sine));
    *a = ng_num_f32_add(ac, bs ^ SIGN);
    *b = ng_num_f32_add(bc, as);
}
