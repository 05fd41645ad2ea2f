/* SPDX-License-Identifier: Apache-2.0 */
#include "../kernel.h"

extern const struct ng_gemm_kernel ng_gemm_late_8x32__avx2, ng_gemm_pairwise_4x32__avx2,
    ng_gemm_align_8x32__avx2, ng_gemm_groups_8x8__avx2, ng_gemm_e2m1_3x16__avx2,
    ng_gemm_fma_6x32__avx2, ng_gemm_sum_3x32__avx2;
extern const struct ng_cast_kernel ng_cast__avx2, ng_nvfp4__avx2;
extern const struct ng_attention_kernel ng_attention__avx2;
extern const struct ng_sparse_kernel ng_sparse_24__avx2;
extern const struct ng_elementary_kernel ng_elementary__avx2;
extern const struct ng_moe_kernel ng_moe__avx2;
extern const struct ng_reduce_kernel ng_reduce__avx2;

static const struct ng_gemm_kernel *const gemm[] = {
    &ng_gemm_e2m1_3x16__avx2,     &ng_gemm_fma_6x32__avx2,
    &ng_gemm_sum_3x32__avx2,      &ng_gemm_align_8x32__avx2,
    &ng_gemm_groups_8x8__avx2,    &ng_gemm_late_8x32__avx2,
    &ng_gemm_pairwise_4x32__avx2, NULL
};
static const struct ng_sparse_kernel *const sparse[] = { &ng_sparse_24__avx2, NULL };

extern const struct ng_random_kernel ng_random_philox__avx2, ng_random_xorwow__avx2,
    ng_random_lfsr32__avx2;

static const struct ng_cast_kernel *const cast[] = { &ng_cast__avx2, &ng_nvfp4__avx2, NULL };
static const struct ng_random_kernel *const generators[] = { &ng_random_philox__avx2,
                                                             &ng_random_xorwow__avx2,
                                                             &ng_random_lfsr32__avx2, NULL };

const struct ng_kernel_set ng_kernels_avx2 = { .gemm = gemm,
                                               .cast = cast,
                                               .sparse = sparse,
                                               .random = generators,
                                               .elementary = &ng_elementary__avx2,
                                               .attention = &ng_attention__avx2,
                                               .moe = &ng_moe__avx2,
                                               .reduce = &ng_reduce__avx2 };
