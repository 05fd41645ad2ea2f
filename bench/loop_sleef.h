/* SPDX-License-Identifier: Apache-2.0 */
/* What elementary functions race against: y = expf(x) by SLEEF, nothing else. */
#ifndef NG_BENCH_LOOP_SLEEF_H
#define NG_BENCH_LOOP_SLEEF_H

#include <stddef.h>
#include <stdint.h>

/* With the ISA's vectors (AVX2's for all that there are, so that rows compare); n is a multiple
 * of 8. NULL for the reference, which has no vectors. */
typedef void loop_sleef_exp(const float *x, float *y, size_t n);
loop_sleef_exp *loop_sleef(uint32_t isa_bit);

#endif
