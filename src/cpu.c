/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* clang 14's __builtin_cpu_supports has no name for it. Its registers are AVX-512F's. */
static bool has_avx512bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

/*
 * AMX's registers are 8 KiB a thread, which Linux (5.16 and later) saves for processes that
 * have asked; asking again changes nothing. It refuses where a thread's signal stack is too
 * small for them.
 */
static bool may_use_tiles(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum {
        ARCH_REQ_XCOMP_PERM = 0x1023, /* Linux, arch/x86/include/uapi/asm/prctl.h */
        XFEATURE_XTILE_DATA = 18
    };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) == 0;
#else
    return false;
#endif
}

/* CPUID 7.0, EDX: AMX-BF16, AMX-TILE, AMX-INT8 (Intel SDM). Linux grants what XCR0 has. */
static bool has_amxbf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) &&
           (d >> 25 & 1) && may_use_tiles();
}

uint32_t ng_cpu_features(uint32_t wanted)
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
    if (wanted & NG_CPU_AMXBF16 && has_amxbf16())
        f |= NG_CPU_AMXBF16;
#ifdef NG_EMULATE_AVX512
    /* The kernels for AVX-512 and AMX were compiled to AVX2 and FMA, and to nothing more. */
    if ((f & NG_CPU_AVX2) && (f & NG_CPU_FMA))
        f |= NG_CPU_EMULATED;
    else
        f &= ~(uint32_t)NG_CPU_EMULATED;
#endif
    return f;
}

/* CPUID 0, 1 (AMD64 Architecture Programmer's Manual, volume 3, appendix E): family 19h are
 * Zen 3 and 4, of which the latter have AVX-512. Measured on a Zen 4 only; a Zen 5 lost. */
bool ng_cpu_asks_second(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || d != signature_AMD_edx ||
        c != signature_AMD_ecx || !__get_cpuid(1, &a, &b, &c, &d))
        return false;
    const unsigned family = (a >> 8 & 0xF) + (a >> 20 & 0xFF);
    __builtin_cpu_init();
    return family == 0x19 && __builtin_cpu_supports("avx512f");
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

uint32_t ng_cpu_features(uint32_t wanted)
{
    (void)wanted;
    return 0;
}

bool ng_cpu_asks_second(void)
{
    return false;
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
