/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Terms of a reduction over ranks, a vector of elements at a time. Numerics: docs/numerics.md,
 * section 11.12, whose items are named here. Lanes are elements, never terms.
 *
 * The limit is memory: a term of bf16 is two bytes that are read once. Adding and rounding it
 * is ten operations a vector, on four ports, so 16 lanes take some 3 cycles for 32 bytes;
 * partial sums stay in the first cache.
 */
#ifndef NG_KERNELS_REDUCE_H
#define NG_KERNELS_REDUCE_H

#include "kernel.h"
#include "widen.h"

#define REDUCE_INLINE static inline __attribute__((always_inline))

/* n words from p, the first VL of them; lanes past n are 0. */
REDUCE_INLINE ivec reduce_get(const void *p, int64_t n)
{
    if (n >= VL)
        return iv_load(p);
    uint32_t rest[VL] = { 0 };
    memcpy(rest, p, (size_t)n * sizeof *rest);
    return iv_load(rest);
}

/* The same of bf16 codes, as FP32. */
REDUCE_INLINE ivec reduce_get_bf16(const void *p, int64_t n)
{
    uint16_t rest[VL] = { 0 };
    if (n < VL)
        p = memcpy(rest, p, (size_t)n * sizeof *rest);
    return iv_sll_by(iv_load16(p), 16);
}

REDUCE_INLINE void reduce_put(uint32_t *p, int64_t n, ivec x)
{
    if (n >= VL) {
        iv_store(p, x);
        return;
    }
    uint32_t rest[VL];
    iv_store(rest, x);
    memcpy(p, rest, (size_t)n * sizeof *p);
}

REDUCE_INLINE imask reduce_is_nan(ivec x)
{
    return iv_gt(iv_and(x, iv_all(0x7FFFFFFFu)), iv_all(WIDEN_INF));
}

/* Item 141. The canonical NaN stays itself when it is rounded. */
REDUCE_INLINE ivec reduce_sum(ivec a, ivec b, const bool to_bf16)
{
    const ivec s = iv_bits(vec_add(iv_float(a), iv_float(b))),
               u = iv_pick(reduce_is_nan(s), iv_all(WIDEN_NAN), s);
    if (!to_bf16)
        return u;
    const ivec half = iv_add(iv_and(iv_srl_by(u, 16), iv_all(1)), iv_all(0x7FFF));
    return iv_and(iv_add(u, half), iv_all(0xFFFF0000u));
}

REDUCE_INLINE void reduce_sums(const bool bf16, const bool to_bf16, int64_t n,
                               const uint32_t *a, const void *b, uint32_t *y)
{
    const unsigned char *term = b;
    for (int64_t i = 0; i < n; i += VL) {
        const ivec t =
            bf16 ? reduce_get_bf16(term + 2 * i, n - i) : reduce_get(term + 4 * i, n - i);
        reduce_put(y + i, n - i, reduce_sum(reduce_get(a + i, n - i), t, to_bf16));
    }
}

static void reduce_add(bool bf16, bool to_bf16, int64_t n, const uint32_t *a, const void *b,
                       uint32_t *y)
{
    if (bf16 && to_bf16)
        reduce_sums(true, true, n, a, b, y);
    else if (bf16)
        reduce_sums(true, false, n, a, b, y);
    else if (to_bf16)
        reduce_sums(false, true, n, a, b, y);
    else
        reduce_sums(false, false, n, a, b, y);
}

/* Signed integers in the order of the numbers, -0 below +0. */
REDUCE_INLINE ivec reduce_rank(ivec x)
{
    return iv_xor(x, iv_srl_by(iv_sra_by(x, 31), 1));
}

static void reduce_least(bool most, bool number, int64_t n, const uint32_t *a,
                         const uint32_t *b, uint32_t *y)
{
    const ivec nan = iv_all(WIDEN_NAN);
    for (int64_t i = 0; i < n; i += VL) {
        const ivec s = reduce_get(a + i, n - i), t = reduce_get(b + i, n - i);
        const imask above = iv_gt(reduce_rank(s), reduce_rank(t)), s_nan = reduce_is_nan(s),
                    t_nan = reduce_is_nan(t);
        ivec x = most ? iv_pick(above, s, t) : iv_pick(above, t, s);
        x = iv_pick(s_nan, number ? t : nan, x);
        x = iv_pick(t_nan, number ? s : nan, x);
        reduce_put(y + i, n - i, iv_pick(im_and(s_nan, t_nan), nan, x));
    }
}

#endif
