/* SPDX-License-Identifier: Apache-2.0 */
#include "proved.h"

extern const struct ng_gemm_kernel ng_gemm_e2m1_32x32__amxbf16, ng_gemm_tilesum_16x32__amxbf16;

static const struct ng_gemm_kernel *const gemm[] = { &ng_gemm_e2m1_32x32__amxbf16,
                                                     &ng_gemm_tilesum_16x32__amxbf16, NULL };

static const struct ng_cast_kernel *const cast[] = { NULL }; /* the next ISA's */

const struct ng_kernel_set ng_kernels_amxbf16 = { .gemm = gemm,
                                                  .cast = cast,
                                                  .proved = ng_kernels_amxbf16_proved };
