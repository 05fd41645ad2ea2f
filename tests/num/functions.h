/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of elementary functions share: FP32 patterns, and `sleef` in plain C. */
#ifndef NG_TESTS_NUM_FUNCTIONS_H
#define NG_TESTS_NUM_FUNCTIONS_H

#include <math.h>
#include <string.h>

#include "../../src/internal.h"

#define FUNCTIONS 7u
#define NAN_CODE  UINT32_C(0x7FC00000)

static inline float number(uint32_t pattern)
{
    float v;

    memcpy(&v, &pattern, sizeof v);
    return v;
}

/* Every NaN becomes the canonical one. */
static inline uint32_t pattern(float v)
{
    uint32_t u;

    memcpy(&u, &v, sizeof u);
    return (u & UINT32_C(0x7FFFFFFF)) > UINT32_C(0x7F800000) ? NAN_CODE : u;
}

/* docs/numerics.md, section 11.8 items 50 and 51: SLEEF's scalar functions, FP32 operations. */
static inline uint32_t by_sleef(ng_function f, uint32_t p)
{
    float x = number(p);

    switch (f) {
    case NG_FN_SIGMOID: return pattern(1 / (1 + number(ng_sleef(NG_FN_EXP, pattern(-x)))));
    case NG_FN_RECIPROCAL: return pattern(1 / x);
    case NG_FN_RSQRT: return pattern(1 / sqrtf(x));
    case NG_FN_EXP:
    case NG_FN_EXP2:
    case NG_FN_LOG:
    case NG_FN_TANH: break;
    }
    return pattern(number(ng_sleef(f, p)));
}

#endif
