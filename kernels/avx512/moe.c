/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture of experts; everything is in moe.h. */
#include "../sleef512.h"

#include "../moe.h"

extern const struct ng_moe_kernel ng_moe__avx512;

const struct ng_moe_kernel ng_moe__avx512 = MOE_KERNEL("avx512");
