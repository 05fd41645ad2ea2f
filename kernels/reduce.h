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
#include "near.h"
#include "tails.h"
#include "widen.h"

#define REDUCE_INLINE static inline __attribute__((always_inline))

/* tail_load() of bf16 codes, as FP32. */
REDUCE_INLINE ivec reduce_get_bf16(const void *p, int64_t n)
{
    uint16_t rest[VL] = { 0 };
    if (n < VL)
        p = memcpy(rest, p, (size_t)n * sizeof *rest);
    return iv_sll_by(iv_load16(p), 16);
}

REDUCE_INLINE imask reduce_is_nan(ivec x)
{
    return iv_gt(iv_and(x, iv_all(0x7FFFFFFFu)), iv_all(WIDEN_INF));
}

REDUCE_INLINE ivec reduce_quieted(ivec x)
{
    return iv_pick(reduce_is_nan(x), iv_all(WIDEN_NAN), x);
}

/* u to nearest even `drop` bits up; carries go into the exponent. */
REDUCE_INLINE ivec reduce_nearest(ivec u, ivec drop, ivec half, ivec mask)
{
    const ivec odd = iv_and(iv_srl(u, drop), iv_all(1));
    return iv_and(iv_add(u, iv_add(odd, half)), mask);
}

/* Constants of a grid, in vectors. */
struct reduce_grid {
    ivec drop, half, mask, normal, magic, most, past, inf;
};

REDUCE_INLINE struct reduce_grid reduce_grid_of(const struct reduce_rounding *r)
{
    return (struct reduce_grid){ .drop = iv_all(r->drop),
                                 .half = iv_all((1u << (r->drop - 1)) - 1u),
                                 .mask = iv_all(~((1u << r->drop) - 1u)),
                                 .normal = iv_all(r->normal),
                                 .magic = iv_all(r->magic),
                                 .most = iv_all(r->most),
                                 .past = iv_all(r->past),
                                 .inf = iv_all(r->inf) };
}

/*
 * On a grid with fewer exponents than FP32: magnitudes are positive integers, so all
 * comparisons are signed ones. Below the least normal number the units are those of the magic
 * one, whose addition and subtraction round there.
 */
REDUCE_INLINE ivec reduce_on_grid(const struct reduce_grid *g, ivec u)
{
    const ivec sign = iv_and(u, iv_all(0x80000000u)), mag = iv_xor(u, sign);
    const vec magic = iv_float(g->magic);
    const ivec small = iv_bits(vec_sub(vec_add(iv_float(mag), magic), magic));
    ivec x = reduce_nearest(mag, g->drop, g->half, g->mask);
    x = iv_pick(iv_gt(g->normal, mag), small, x);
    x = iv_pick(iv_gt(x, g->most), g->past, x);
    x = iv_pick(iv_eq(mag, iv_all(WIDEN_INF)), g->inf, x);
    return iv_pick(reduce_is_nan(u), u, iv_or(x, sign));
}

REDUCE_INLINE ivec reduce_rounded(const struct reduce_grid *g, const reduce_way way, ivec u)
{
    if (way == REDUCE_GRID)
        return reduce_on_grid(g, u);
    if (way == REDUCE_NOT)
        return u;
    const ivec odd = iv_and(iv_srl_by(u, 16), iv_all(1));
    return iv_and(iv_add(u, iv_add(odd, iv_all(0x7FFF))), iv_all(0xFFFF0000u));
}

REDUCE_INLINE void reduce_sums(const struct reduce_rounding *r, const reduce_way way,
                               const bool bf16, int64_t n, const uint32_t *a,
                               const struct reduce_terms *b, uint32_t *y)
{
    const unsigned char *term = b->data, *ahead = b->ahead;
    const int64_t bytes = bf16 ? 2 : 4, apart = b->apart;
    const bool second = b->second;
    struct reduce_grid g;
    if (way == REDUCE_GRID)
        g = reduce_grid_of(r);
    for (int64_t i = 0; i < n; i += VL) {
        const ivec t = bf16 ? reduce_get_bf16(term + bytes * i, n - i)
                            : tail_load(term + bytes * i, n - i);
        const vec s = vec_add(iv_float(tail_load(a + i, n - i)), iv_float(t));
        if (ahead && apart * i % 64 == 0)
            near_ask(ahead + apart * i, second);
        tail_store(y + i, n - i, reduce_rounded(&g, way, iv_bits(s)));
    }
}

static void reduce_add(const struct reduce_rounding *r, int64_t n, const uint32_t *a,
                       const struct reduce_terms *b, uint32_t *y)
{
    if (r->way == REDUCE_GRID && b->bf16)
        reduce_sums(r, REDUCE_GRID, true, n, a, b, y);
    else if (r->way == REDUCE_GRID)
        reduce_sums(r, REDUCE_GRID, false, n, a, b, y);
    else if (r->way == REDUCE_BF16 && b->bf16)
        reduce_sums(r, REDUCE_BF16, true, n, a, b, y);
    else if (r->way == REDUCE_BF16)
        reduce_sums(r, REDUCE_BF16, false, n, a, b, y);
    else if (b->bf16)
        reduce_sums(r, REDUCE_NOT, true, n, a, b, y);
    else
        reduce_sums(r, REDUCE_NOT, false, n, a, b, y);
}

static void reduce_round(const struct reduce_rounding *r, int64_t n, uint32_t *y)
{
    struct reduce_grid g;
    if (r->way == REDUCE_GRID)
        g = reduce_grid_of(r);
    for (int64_t i = 0; i < n; i += VL) {
        const ivec u = reduce_quieted(tail_load(y + i, n - i));
        tail_store(y + i, n - i,
                   r->way == REDUCE_GRID ? reduce_on_grid(&g, u)
                                         : reduce_rounded(NULL, REDUCE_BF16, u));
    }
}

static void reduce_quiet(int64_t n, uint32_t *y)
{
    for (int64_t i = 0; i < n; i += VL)
        tail_store(y + i, n - i, reduce_quieted(tail_load(y + i, n - i)));
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
        const ivec s = tail_load(a + i, n - i), t = tail_load(b + i, n - i);
        const imask above = iv_gt(reduce_rank(s), reduce_rank(t)), s_nan = reduce_is_nan(s),
                    t_nan = reduce_is_nan(t);
        ivec x = most ? iv_pick(above, s, t) : iv_pick(above, t, s);
        x = iv_pick(s_nan, number ? t : nan, x);
        x = iv_pick(t_nan, number ? s : nan, x);
        tail_store(y + i, n - i, iv_pick(im_and(s_nan, t_nan), nan, x));
    }
}

#endif
