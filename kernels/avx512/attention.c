/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's rows; everything is in attention.h. */
#include "../sleef512.h"

#include "../attention.h"

ATTENTION_KERNEL(attention__avx512);
