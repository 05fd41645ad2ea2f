/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture of experts; everything is in moe.h. */
#include "../sleef512.h"

#include "../moe.h"

extern const struct ng_moe_kernel ng_moe__avx512;
extern fp8_rows ng_moe_fp8__avx512; /* in cast.c */

const struct ng_moe_kernel ng_moe__avx512 = MOE_KERNEL("avx512", ng_moe_fp8__avx512);
