/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's rows, with P's bf16 codes by an instruction; everything else is in attention.h.
 */
#include "../dp.h"
#include "../sleef512.h"

#define ATTENTION_SHORT 1
static inline void attention_short(uint16_t *code, const vec *y)
{
    iv_store(code, dp_codes(y[0], y[1]));
}

#include "../attention.h"

ATTENTION_KERNEL(attention__avx512bf16);
