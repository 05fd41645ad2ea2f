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

/*
 * acc[q] += dp(+0, x[q], *p), two vectors. Left alone, gcc puts the additions off until the
 * sums of all rows are under way, and there are no registers for so many.
 */
static inline void dp_pair(vec acc[2], const ivec x[2], const uint32_t *p)
{
#ifdef NG_EMULATE_AVX512
    for (int q = 0; q < 2; q++)
        acc[q] = _mm512_add_ps(acc[q], dp_at(_mm512_setzero_ps(), iv_float(x[q]), p));
#else
    vec t, u;
    __asm__("vxorps %x[t], %x[t], %x[t]\n\t"
            "vxorps %x[u], %x[u], %x[u]\n\t"
            "vdpbf16ps %[p]%{1to16%}, %[x0], %[t]\n\t"
            "vdpbf16ps %[p]%{1to16%}, %[x1], %[u]\n\t"
            "vaddps %[t], %[acc0], %[acc0]\n\t"
            "vaddps %[u], %[acc1], %[acc1]"
            : [acc0] "+v"(acc[0]), [acc1] "+v"(acc[1]), [t] "=&v"(t), [u] "=&v"(u)
            : [x0] "v"(x[0]), [x1] "v"(x[1]), [p] "m"(*p));
#endif
}

/* acc[q] += dp(dp(+0, x[q], *p), y[q], *next). */
static inline void dp_four(vec acc[2], const ivec x[2], const ivec y[2], const uint32_t *p,
                           const uint32_t *next)
{
#ifdef NG_EMULATE_AVX512
    for (int q = 0; q < 2; q++)
        acc[q] = _mm512_add_ps(acc[q], dp(dp_at(_mm512_setzero_ps(), iv_float(x[q]), p),
                                          iv_float(y[q]), dp_all(next)));
#else
    vec t, u, all;
    __asm__(
        "vxorps %x[t], %x[t], %x[t]\n\t"
        "vxorps %x[u], %x[u], %x[u]\n\t"
        "vdpbf16ps %[p]%{1to16%}, %[x0], %[t]\n\t"
        "vdpbf16ps %[p]%{1to16%}, %[x1], %[u]\n\t"
        "vpbroadcastd %[next], %[all]\n\t"
        "vdpbf16ps %[all], %[y0], %[t]\n\t"
        "vdpbf16ps %[all], %[y1], %[u]\n\t"
        "vaddps %[t], %[acc0], %[acc0]\n\t"
        "vaddps %[u], %[acc1], %[acc1]"
        : [acc0] "+v"(acc[0]), [acc1] "+v"(acc[1]), [t] "=&v"(t), [u] "=&v"(u), [all] "=&v"(all)
        : [x0] "v"(x[0]), [x1] "v"(x[1]), [y0] "v"(y[0]), [y1] "v"(y[1]), [p] "m"(*p),
          [next] "m"(*next));
#endif
}

/* bf16 codes, to nearest even, of numbers that are normal or zero: those of x, then of y (Intel
 * SDM, VCVTNE2PS2BF16; proved.c looks at the CPU). */
static inline ivec dp_codes(vec x, vec y)
{
    return (ivec)_mm512_cvtne2ps_pbh(y, x);
}

static inline vec dp_load(const uint32_t *p)
{
    return _mm512_loadu_ps((const float *)p);
}

#endif
