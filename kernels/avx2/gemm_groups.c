/* SPDX-License-Identifier: Apache-2.0 */
/* Exact groups of 16 FP4 products: 8 rows of A by 8 columns of B; as the one of AVX-512. */
#include "ints.h"

enum {
    MR = 8,
    NV = 1
};

/* Toward zero: to an integer, to 24 bits. */
static inline vec64 groups_cut(vec64 x)
{
    return _mm256_round_pd(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
static inline vec64 groups_24_bits(vec64 x)
{
    return _mm256_and_pd(x, _mm256_castsi256_pd(_mm256_set1_epi64x(-(1LL << 29))));
}

#include "../gemm_groups.h"

ALIGN_KERNEL(gemm_groups_8x8__avx2);
