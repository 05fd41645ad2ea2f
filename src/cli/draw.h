/* SPDX-License-Identifier: Apache-2.0 */
/* Pseudo-random data that is the same everywhere: SplitMix64 (Steele, Lea, Flood 2014). */
#ifndef NG_CLI_DRAW_H
#define NG_CLI_DRAW_H

#include <stdint.h>

static inline uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* Uniform in [0, n). */
static inline uint32_t draw_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((draw(state) >> 32) * n >> 32);
}

#endif
