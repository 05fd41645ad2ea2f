/* SPDX-License-Identifier: Apache-2.0 */
#include "loop_sleef.h"

#include <sleef.h>

#include "ng/ctx.h"

#if defined(__AVX2__)
static void loop(const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(y + i, Sleef_expf8_u10avx2(_mm256_loadu_ps(x + i)));
}

loop_sleef_exp *loop_sleef(uint32_t isa_bit)
{
    return isa_bit == NG_ISA_REF ? NULL : loop;
}
#else
loop_sleef_exp *loop_sleef(uint32_t isa_bit)
{
    (void)isa_bit;
    return NULL; /* no ISA of ours with vectors */
}
#endif
