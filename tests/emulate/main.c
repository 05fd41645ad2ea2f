/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled without AVX-512's flags, so that nothing of it runs before the CPU was asked. */
#include <stdio.h>

extern int ng_test_intrinsics(void);

int main(void)
{
    __builtin_cpu_init();
#ifdef NG_EMULATE_AVX512
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        puts("skipped: no AVX2 or no FMA on this CPU");
        return 77;
    }
#else
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512vbmi") ||
        !__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512bf16")) {
        puts("skipped: no AVX-512 (with CD, VBMI, VNNI and BF16) on this CPU");
        return 77;
    }
#endif
    return ng_test_intrinsics();
}
