/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture of experts; everything is in moe.h. */
#include "sleef.h"

#include "../moe.h"

extern const struct ng_moe_kernel ng_moe__avx2;
extern fp8_rows ng_moe_fp8__avx2; /* in cast.c */

const struct ng_moe_kernel ng_moe__avx2 = MOE_KERNEL("avx2", ng_moe_fp8__avx2);
