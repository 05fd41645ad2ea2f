/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP32 patterns to bf16, as the accumulate memory and the way out round them: the fast twin of
 * src/num for the two casts that large products end in. ng-check holds it to the reference.
 */
#ifndef NG_KERNELS_BF16_H
#define NG_KERNELS_BF16_H

#include "widen.h"

/* Ties to even; the upper half is the code. Inf and NaN stay as they are. */
static inline uint32_t bf16_nearest(uint32_t u)
{
    const uint32_t up = u + 0x7FFFu + (u >> 16 & 1u);
    return (u & 0x7F800000u) == 0x7F800000u ? u : up & 0xFFFF0000u;
}

/* Round away from zero? `low`: the 16 discarded bits of an FP32 pattern (section 2.1). */
static inline bool bf16_stochastic_up(uint32_t low, uint32_t word, const ng_cast *cast)
{
    const uint32_t n = cast->sr_bits ? cast->sr_bits : 32;
    const uint64_t one = (uint64_t)1 << n, v = low;
    const uint64_t r = n == 32                            ? word
                       : cast->sr_take == NG_SR_TAKE_HIGH ? word >> (32 - n)
                                                          : word & (uint32_t)(one - 1);
    switch (cast->sr) {
    case NG_SR_A: return (v << n >> 16) + r >= one;
    case NG_SR_B: return (v << (n + 1) >> 16) + 2 * r + 1 >= 2 * one;
    case NG_SR_C: break;
    }
    const uint64_t exact = v << n, whole = exact >> 16, rest = exact & 0xFFFF;
    const uint64_t nearest = whole + (rest > 0x8000 || (rest == 0x8000 && (whole & 1)));
    return nearest + r >= one;
}

#endif
