/* SPDX-License-Identifier: Apache-2.0 */
/* Doubles whose rounding error is known: plain C, for every ISA and for tests. */
#ifndef NG_KERNELS_DOUBLES_H
#define NG_KERNELS_DOUBLES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define DOUBLES_INLINE static inline __attribute__((always_inline))

DOUBLES_INLINE uint64_t exact_pattern(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

DOUBLES_INLINE double exact_double(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* h + f, rounded to odd, where h = RN(h + f) already and |f| is below h's last place. */
DOUBLES_INLINE double exact_odd(double h, double f)
{
    const uint64_t u = exact_pattern(h);
    /* toward f: one code up if f has h's sign, else one down; h is not zero where f is not */
    const bool move = f != 0 && !(u & 1) && h - h == 0;
    const bool away = (exact_pattern(f) ^ u) >> 63 == 0;
    return exact_double(move ? (away ? u + 1 : u - 1) : u);
}

/* a + b = *rest + result, exactly; a NaN or Inf leaves no rest. */
DOUBLES_INLINE double exact_two_sum(double a, double b, double *rest)
{
    const double s = a + b, bb = s - a, r = (a - (s - bb)) + (b - bb);
    *rest = s - s == 0 ? r : 0;
    return s;
}

#endif
