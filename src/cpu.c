/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

/* clang 14's __builtin_cpu_supports has no name for it. Its registers are AVX-512F's. */
static bool has_avx512bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

uint32_t ng_cpu_features(void)
{
    /* __builtin_cpu_supports also asks XGETBV whether the registers are saved. */
    uint32_t f = 0;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        f |= NG_CPU_AVX2;
    if (__builtin_cpu_supports("fma"))
        f |= NG_CPU_FMA;
    if (__builtin_cpu_supports("avx512f"))
        f |= NG_CPU_AVX512F;
    if (__builtin_cpu_supports("avx512bw"))
        f |= NG_CPU_AVX512BW;
    if (__builtin_cpu_supports("avx512dq"))
        f |= NG_CPU_AVX512DQ;
    if (__builtin_cpu_supports("avx512vl"))
        f |= NG_CPU_AVX512VL;
    if (__builtin_cpu_supports("avx512vbmi"))
        f |= NG_CPU_AVX512VBMI;
    if (__builtin_cpu_supports("avx512vnni"))
        f |= NG_CPU_AVX512VNNI;
    if (has_avx512bf16())
        f |= NG_CPU_AVX512BF16;
#ifdef NG_EMULATE_AVX512
    /* The kernels for AVX-512 were compiled to AVX2 and FMA, and to nothing more. */
    if ((f & NG_CPU_AVX2) && (f & NG_CPU_FMA))
        f |= NG_CPU_AVX512_ALL;
    else
        f &= ~(uint32_t)NG_CPU_AVX512_ALL;
#endif
    return f;
}

uint32_t ng_fp_enter(void)
{
    const uint32_t saved = _mm_getcsr();
    _mm_setcsr(0x1F80); /* power-on value: nearest, no FTZ, no DAZ, exceptions masked */
    return saved;
}

void ng_fp_leave(uint32_t saved)
{
    _mm_setcsr(saved);
}

#else

uint32_t ng_cpu_features(void)
{
    return 0;
}

uint32_t ng_fp_enter(void)
{
    return 0; /* no kernels that use floating point are built for this architecture */
}

void ng_fp_leave(uint32_t saved)
{
    (void)saved;
}

#endif
