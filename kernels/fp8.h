/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP8 elements under FP32 scales, of rows or of blocks along a row: what experts multiply.
 * Numerics: docs/numerics.md, section 11.10, item 101. An ISA's cast.c includes its ints.h,
 * then this.
 *
 * A scale is a handful of FP32 operations as the page writes them. An element is one more, a
 * product or a quotient, and the conversion of cast.h. Codes are decoded twice, 512 at a time:
 * a row is looked at before its first element is written.
 */
#ifndef NG_KERNELS_FP8_H
#define NG_KERNELS_FP8_H

#include "cast.h"

struct fp8 {
    struct cast_from from;
    struct cast_to to;
    bool divides;
    float max, least; /* the largest code's value; what no scale is below */
    int64_t block;
};

static inline void fp8_make(struct fp8 *f, const struct fp8_job *j)
{
    static const ng_cast saturate = { .round = NG_ROUND_TIES_TO_EVEN,
                                      .overflow = NG_OVERFLOW_SATURATE };
    cast_from_make(&f->from, j->from, true);
    if (f->from.shape == CAST_UPPER)
        f->from.shape = CAST_RAW; /* the encoder replaces NaNs */
    cast_to_make(&f->to, j->to, &saturate);
    f->divides = j->by == NG_DIVIDE_TRUE;
    f->max = as_float(f->to.most);
    f->least = as_float(j->least);
    f->block = j->block;
}

/* n <= CAST_PIECE elements as patterns, zeros behind to a multiple of 32. */
CAST_INLINE int64_t fp8_decode(const struct fp8 *f, const uint8_t *src, int64_t i, int64_t n,
                               uint32_t *u)
{
    const int64_t m = n - i < CAST_PIECE ? n - i : CAST_PIECE;
    if (m % IV_GROUP)
        memset(u + m / IV_GROUP * IV_GROUP, 0, sizeof *u * IV_GROUP);
    cast_decode(&f->from, src + cast_bytes(f->from.store_bits, i), m, u, 0);
    return m;
}

/* The largest finite magnitude's pattern. */
CAST_INLINE ivec fp8_largest(const uint32_t *u, int64_t n, ivec most)
{
    for (int64_t i = 0; i < n; i += VL) {
        const ivec mag = iv_and(iv_load(u + i), iv_all(0x7FFFFFFFu));
        most = iv_max_u(most, iv_where(iv_gt(iv_all(CAST_INF), mag), mag));
    }
    return most;
}

static inline float fp8_scale(const struct fp8 *f, uint32_t largest)
{
    const float a = as_float(largest), s = f->divides ? a / f->max : a * (1.0F / f->max);
    return s > f->least ? s : f->least;
}

/* By the scale, or its reciprocal; n <= CAST_PIECE, u[n ..] zeros to a multiple of 32. */
CAST_INLINE void fp8_elements(const struct fp8 *f, const uint32_t *u, int64_t n, float by,
                              uint8_t *dst, const int divides, const int plain)
{
    const struct cast_to t = f->to; /* no store can change it */
    const struct cast_grid g = cast_grid(&t, iv_all(0));
    const vec s = iv_float(iv_all(as_pattern(by)));
    for (int64_t i = 0; i < n; i += IV_GROUP) {
        ivec x[IV_GROUP_VECTORS];
        for (int v = 0; v < IV_GROUP_VECTORS; v++) {
            const vec w = iv_float(iv_load(u + i + VL * v));
            const ivec y = iv_bits(divides ? vec_div(w, s) : vec_mul(w, s));
            x[v] = cast_encode_words(&t, &g, y, iv_all(0), NG_ROUND_TIES_TO_EVEN, NG_SR_A,
                                     plain, 0, 0);
        }
        if (n - i >= IV_GROUP) {
            iv_store8(dst + i, x, 0);
        } else {
            uint8_t codes[IV_GROUP];
            iv_store8(codes, x, 0);
            memcpy(dst + i, codes, (size_t)(n - i));
        }
    }
}

static __attribute__((noinline)) void fp8_put(const struct fp8 *f, const uint32_t *u, int64_t n,
                                              float scale, uint8_t *dst)
{
    const float by = f->divides ? scale : 1.0F / scale;
    if (f->to.plain && !f->divides)
        fp8_elements(f, u, n, by, dst, 0, 1);
    else if (f->to.plain)
        fp8_elements(f, u, n, by, dst, 1, 1);
    else
        fp8_elements(f, u, n, by, dst, f->divides, 0);
}

/* One block of n elements: its scale. */
static inline float fp8_block(const struct fp8 *f, const uint8_t *src, int64_t n, uint8_t *dst)
{
    uint32_t u[CAST_PIECE];
    ivec most = iv_all(0);
    int64_t m = 0;
    for (int64_t i = 0; i < n; i += m) {
        m = fp8_decode(f, src, i, n, u);
        most = fp8_largest(u, m, most);
    }
    const float scale = fp8_scale(f, iv_most_u(most));
    if (m == n) { /* all of it is there */
        fp8_put(f, u, n, scale, dst);
        return scale;
    }
    for (int64_t i = 0; i < n; i += m) {
        m = fp8_decode(f, src, i, n, u);
        fp8_put(f, u, m, scale, dst + i);
    }
    return scale;
}

static void fp8_row(const struct fp8_job *j, const void *src, int64_t n, uint8_t *code,
                    uint32_t *scale)
{
    struct fp8 f;
    fp8_make(&f, j);
    for (int64_t i = 0; i < n; i += f.block) {
        const int64_t m = n - i < f.block ? n - i : f.block;
        const uint8_t *from = (const uint8_t *)src + cast_bytes(f.from.store_bits, i);
        *scale++ = as_pattern(fp8_block(&f, from, m, code + i));
    }
}

#endif
