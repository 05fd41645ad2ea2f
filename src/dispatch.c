/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch.h"
#include "ref/ref.h"

static const struct ng_gemm_kernel *const ref_gemm[] = { &ng_gemm_ref, NULL };
static const struct ng_kernel_set ref_kernels = { .gemm = ref_gemm };

static const struct ng_isa isas[] = {
#define NG_ISA(name, bit, features) { #name, bit, features, &ng_kernels_##name },
#include "../kernels/isa.def"
#undef NG_ISA
    { "ref", NG_ISA_REF, 0, &ref_kernels }, /* last, and it accepts everything */
};

#define N_ISAS (sizeof isas / sizeof isas[0])

struct ng_isa ng_isa_at(size_t i)
{
    return i < N_ISAS ? isas[i] : (struct ng_isa){ NULL, 0, 0, NULL };
}

uint32_t ng_isa_available(void)
{
    const uint32_t has = ng_cpu_features();
    uint32_t mask = 0;
    for (size_t i = 0; i < N_ISAS; i++)
        if ((isas[i].features & ~has) == 0)
            mask |= isas[i].bit;
    return mask;
}

const char *ng_isa_name(uint32_t bit)
{
    switch (bit) {
    case NG_ISA_REF: return "ref";
    case NG_ISA_AVX2: return "avx2";
    case NG_ISA_AVX512: return "avx512";
    default: return NULL;
    }
}

const struct ng_gemm_kernel *ng_pick_gemm(const struct gemm_job *g, uint32_t mask)
{
    mask &= ng_isa_available();
    for (size_t i = 0; i < N_ISAS; i++)
        if (isas[i].bit & mask)
            for (const struct ng_gemm_kernel *const *k = isas[i].kernels->gemm; *k; k++)
                if ((*k)->accepts(g))
                    return *k;
    return &ng_gemm_ref;
}

size_t ng_most_prepared(const struct gemm_job *g, uint32_t mask)
{
    size_t most = 0;
    mask &= ng_isa_available();
    for (size_t i = 0; i < N_ISAS; i++)
        if (isas[i].bit & mask)
            for (const struct ng_gemm_kernel *const *k = isas[i].kernels->gemm; *k; k++) {
                const size_t bytes = (*k)->prepared_bytes(g);
                most = bytes > most ? bytes : most;
            }
    return most;
}
