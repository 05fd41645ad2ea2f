/* SPDX-License-Identifier: Apache-2.0 */
#include "proved.h"

extern const struct ng_gemm_kernel ng_gemm_e2m1_8x32__avx512bf16, ng_gemm_bf16_6x64__avx512bf16,
    ng_gemm_bf16sum_8x32__avx512bf16;

static const struct ng_gemm_kernel *const gemm[] = { &ng_gemm_e2m1_8x32__avx512bf16,
                                                     &ng_gemm_bf16_6x64__avx512bf16,
                                                     &ng_gemm_bf16sum_8x32__avx512bf16, NULL };
extern const struct ng_attention_kernel ng_attention__avx512bf16;

static const struct ng_cast_kernel *const cast[] = { NULL }; /* the next ISA's */

const struct ng_kernel_set ng_kernels_avx512bf16 = { .gemm = gemm,
                                                     .cast = cast,
                                                     .attention = &ng_attention__avx512bf16,
                                                     .proved = ng_kernels_avx512bf16_proved,
                                                     .slow = ng_kernels_avx512bf16_slow };
