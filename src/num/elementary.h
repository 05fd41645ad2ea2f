/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions, correctly rounded. Numerics: docs/numerics.md, sections 8 and 11.8. */
#ifndef NG_NUM_ELEMENTARY_H
#define NG_NUM_ELEMENTARY_H

#include "ng/elementary.h"
#include "num.h"

/* Words of the widest fixed-point numbers. */
#define NG_FUNCTION_LIMBS 4

/*
 * RN(f(x)) of FP32 patterns, computed with `limbs` words of fraction (1..NG_FUNCTION_LIMBS).
 * False: the bound of the error cannot tell which neighbour is nearest, and *y is one of them.
 */
bool ng_num_function_try(ng_function f, uint32_t x, int limbs, uint32_t *y);
/* The same, as wide as it takes. */
uint32_t ng_num_function(ng_function f, uint32_t x);

/* RN(sqrt(v)) of a finite v >= 0 that is an FP32 value. */
ng_value ng_num_sqrt_f32(ng_value v);

#endif
