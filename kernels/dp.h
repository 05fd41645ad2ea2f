/* SPDX-License-Identifier: Apache-2.0 */
/*
 * VDPBF16PS as two steps of a chain. For each 32-bit lane it computes acc = RN(acc + hi * hi),
 * then acc = RN(acc + lo * lo), each a fused multiply-add, ties to even whatever MXCSR says;
 * subnormal inputs and results count as zero (Intel SDM, VDPBF16PS; proved.c looks at the CPU).
 * Packed words hold the earlier of two positions in the upper half: so it is the page's
 * acc = R(acc + x) twice, wherever no input and no sum is subnormal or past FP32's range.
 */
#ifndef NG_KERNELS_DP_H
#define NG_KERNELS_DP_H

#define VEC_VBMI /* these ISAs have VPERMI2B */
#include "ints512.h"
#include "kernel.h"

/* No subnormal value or sum: sums are multiples of the least product's unit. */
static inline bool never_subnormal(const struct gemm_panel *a, const struct gemm_panel *b)
{
    return a->msb_min >= -126 && b->msb_min >= -126 && a->lsb_min + b->lsb_min >= -126;
}

static inline vec dp(vec acc, vec x, vec y)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)y);
}

static inline vec dp_all(const uint32_t *p)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32((int)*p));
}

/*
 * dp(acc, x, dp_all(p)), the broadcast as the instruction's own operand, which a compiler makes
 * a register where two products share it. A load of its own is one of four operations a cycle
 * that Zen 5 has for vectors; where additions take as many as products, that is what they wait
 * for.
 */
static inline vec dp_at(vec acc, vec x, const uint32_t *p)
{
#ifdef NG_EMULATE_AVX512
    return dp(acc, x, dp_all(p));
#else
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(x), "m"(*p));
    return acc;
#endif
}

static inline vec dp_load(const uint32_t *p)
{
    return _mm512_loadu_ps((const float *)p);
}

#endif
