/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the multiplies of a layer, behind moe.h: RMSNorm's elements, the rotary embedding.
 * Numerics: docs/numerics.md, section 11.11, whose items are named here. Lanes are columns.
 */
#ifndef NG_KERNELS_LAYER_H
#define NG_KERNELS_LAYER_H

/* Item 130: y = RN(RN(x * r) * gain). */
static void layer_norm(uint32_t r, int64_t n, const uint32_t *x, const uint32_t *gain,
                       uint32_t *y)
{
    const vec by = moe_all(r);
    for (int64_t i = 0; i < n; i += VL) {
        vec v = vec_mul(moe_get(x + i, n - i), by);
        if (gain)
            v = vec_mul(v, moe_get(gain + i, n - i));
        moe_put(y + i, n - i, iv_bits(function_quiet(v)));
    }
}

static const char *layer_rope_refuses(const ng_rope_op *op)
{
    return moe_is_f16(op->product) ? "products in f16" : NULL;
}

/* Item 133: n pairs of every head, half a head apart. */
MOE_INLINE void layer_halves(const ng_format product, const struct rope_row *r, int64_t e,
                             int64_t n)
{
    const int64_t d = r->d, apart = d / 2;
    const vec c = moe_get(r->cosine + e, n), s = moe_get(r->sine + e, n);
    for (int64_t at = e; at < r->heads * d; at += d) {
        const vec a = moe_get(r->x + at, n), b = moe_get(r->x + at + apart, n);
        const vec ac = moe_to(product, vec_mul(a, c)), bs = moe_to(product, vec_mul(b, s)),
                  bc = moe_to(product, vec_mul(b, c)), as = moe_to(product, vec_mul(a, s));
        moe_put(r->y + at, n, iv_bits(function_quiet(vec_sub(ac, bs))));
        moe_put(r->y + at + apart, n, iv_bits(function_quiet(vec_add(bc, as))));
    }
}

/* Of neighbours: n columns, an even number, a and b in turn; c and s serve both. */
MOE_INLINE void layer_adjacent(const ng_format product, const struct rope_row *r, int64_t e,
                               int64_t n)
{
    uint32_t both[2][VL] = { { 0 } }, minus[VL];
    for (int i = 0; i < VL; i++)
        minus[i] = i % 2 ? 0 : 0x80000000u;
    for (int64_t i = 0; i < n; i++) {
        both[0][i] = r->cosine[(e + i) / 2];
        both[1][i] = r->sine[(e + i) / 2];
    }
    const vec c = iv_float(iv_load(both[0])), s = iv_float(iv_load(both[1]));
    const ivec sign = iv_load(minus);
    for (int64_t at = e; at < r->heads * r->d; at += r->d) {
        const vec x = moe_get(r->x + at, n), other = iv_float(iv_swap(iv_bits(x)));
        const vec straight = moe_to(product, vec_mul(x, c)),
                  across = moe_to(product, vec_mul(other, s));
        const vec turned = iv_float(iv_xor(iv_bits(across), sign));
        moe_put(r->y + at, n, iv_bits(function_quiet(vec_add(straight, turned))));
    }
}

MOE_INLINE void layer_rope_as(const ng_format product, const ng_rope_pairs pairs,
                              const struct rope_row *row)
{
    const struct rope_row r = *row; /* no store can change it */
    const int64_t columns = pairs == NG_ROPE_HALVES ? r.d / 2 : r.d;
    for (int64_t e = 0; e < columns; e += VL) {
        const int64_t n = columns - e < VL ? columns - e : VL;
        if (pairs == NG_ROPE_HALVES)
            layer_halves(product, &r, e, n);
        else
            layer_adjacent(product, &r, e, n);
    }
}

static void layer_rope(const ng_rope_op *op, const struct rope_row *r)
{
    if (op->product == NG_BF16 && op->pairs == NG_ROPE_HALVES)
        layer_rope_as(NG_BF16, NG_ROPE_HALVES, r);
    else if (op->product == NG_BF16)
        layer_rope_as(NG_BF16, NG_ROPE_ADJACENT, r);
    else if (op->pairs == NG_ROPE_HALVES)
        layer_rope_as(NG_F32, NG_ROPE_HALVES, r);
    else
        layer_rope_as(NG_F32, NG_ROPE_ADJACENT, r);
}

#endif
