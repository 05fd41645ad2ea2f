/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes to FP32 patterns, exactly: what a kernel's prepare() does with operands of at most 16
 * bits. The kernels' own decode; it shares nothing with src/num but the rows of formats.def.
 */
#ifndef NG_KERNELS_WIDEN_H
#define NG_KERNELS_WIDEN_H

#include <stdint.h>
#include <string.h>

#include "kernel.h"

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

/*
 * The FP32 pattern of a finite code. Every finite value of the formats that kernels take is an
 * FP32 number; those with a narrower exponent than FP32 are normal ones or zero.
 */
static inline uint32_t widen(const ng_format_spec *f, uint32_t code)
{
    const uint32_t sign = f->kind == NG_KIND_INT ? code >> 7 & 1u : code >> (f->bits - 1) & 1u;
    if (f->exp_bits == 8) /* f32, bf16: the upper bits of FP32 itself */
        return code << (32 - f->bits);
    uint32_t mag = code & ((1u << (f->exp_bits + f->man_bits)) - 1u);
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

static inline float as_float(uint32_t pattern)
{
    float x;
    memcpy(&x, &pattern, sizeof x);
    return x;
}

#endif
