/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes to FP32 patterns, exactly. The kernels' own decode; it shares nothing with src/num but
 * the rows of formats.def.
 */
#ifndef NG_KERNELS_WIDEN_H
#define NG_KERNELS_WIDEN_H

#include <stdint.h>
#include <string.h>

#include "kernel.h"

#define WIDEN_NAN 0x7FC00000u
#define WIDEN_INF 0x7F800000u

static inline uint32_t load_code(const void *data, uint32_t store_bits, int64_t at)
{
    const unsigned char *p = data;
    uint16_t h;
    uint32_t w;
    switch (store_bits) {
    case 4: return p[at >> 1] >> ((at & 1) * 4) & 0xFu;
    case 8: return p[at];
    case 16: memcpy(&h, p + 2 * at, sizeof h); return h;
    default: memcpy(&w, p + 4 * at, sizeof w); return w;
    }
}

/* The special code's pattern, or 0 for a finite one. `mag` is the code without its sign. */
static inline uint32_t widen_special(const ng_format_spec *f, uint32_t sign, uint32_t mag)
{
    const uint32_t top = (1u << f->exp_bits) - 1u, man = mag & ((1u << f->man_bits) - 1u);
    switch (f->kind) {
    case NG_KIND_IEEE:
        if (mag >> f->man_bits != top)
            return 0;
        return man ? WIDEN_NAN : sign << 31 | WIDEN_INF;
    case NG_KIND_FN:
        return mag == (top << f->man_bits | ((1u << f->man_bits) - 1u)) ? WIDEN_NAN : 0;
    case NG_KIND_FNUZ: return sign && !mag ? WIDEN_NAN : 0;
    default: return 0;
    }
}

/*
 * The FP32 pattern of a code. Every finite value of the formats that kernels take is an FP32
 * number; those with a narrower exponent than FP32 are normal ones or zero. All NaNs are one.
 */
static inline uint32_t widen(const ng_format_spec *f, uint32_t code)
{
    if (f->exp_bits == 8) { /* f32, tf32, bf16: the upper bits of FP32 itself */
        const uint32_t w = code << (32 - (f->store_bits == 32 ? 32 : f->bits));
        return (w & 0x7FFFFFFFu) > WIDEN_INF ? WIDEN_NAN : w;
    }
    const uint32_t sign = f->kind == NG_KIND_INT ? code >> 7 & 1u : code >> (f->bits - 1) & 1u;
    uint32_t mag = code & ((1u << (f->exp_bits + f->man_bits)) - 1u);
    const uint32_t special = widen_special(f, sign, mag);
    if (special)
        return special;
    if (f->kind == NG_KIND_INT && sign)
        mag = 256u - code;
    int exp = (int)(mag >> f->man_bits); /* field; value = sig * 2^(exp - bias - man) */
    uint32_t sig = mag & ((1u << f->man_bits) - 1u);
    if (f->kind == NG_KIND_INT) {
        sig = mag;
        exp = 1;
    } else if (exp) {
        sig |= 1u << f->man_bits;
    } else {
        exp = 1;
    }
    if (!sig)
        return sign << 31;
    const int top = 31 - __builtin_clz(sig);
    const uint32_t field = (uint32_t)(top + exp - f->bias - (int)f->man_bits + 127);
    return sign << 31 | field << 23 | (sig << (23 - top) & 0x7FFFFFu);
}

/* A tf32 operand's pattern from an FP32 one: to nearest even, or cut, at 10 bits of fraction; a
 * NaN is cut, maybe to an Inf, or stays. */
static inline uint32_t widen_tf32(uint32_t w, bool nearest, bool cut_nan)
{
    if ((w & 0x7F800000u) == WIDEN_INF)
        return cut_nan ? w & ~0x1FFFu : w;
    if (nearest)
        w += 0xFFFu + (w >> 13 & 1u);
    return w & ~0x1FFFu;
}

static inline float as_float(uint32_t pattern)
{
    float x;
    memcpy(&x, &pattern, sizeof x);
    return x;
}

static inline uint32_t as_pattern(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* A ue4m3 scale: three bits of fraction, least exponent -6, no sign (OCP's e4m3 without it). */
static inline float widen_ue4m3(uint32_t code)
{
    const uint32_t mag = code & 0x7Fu;
    return as_float(mag == 0x7F ? WIDEN_NAN : mag << 20) * 0x1p120f; /* biases 127 and 7 */
}

#endif
