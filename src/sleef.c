/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SLEEF's deterministic functions with FMA ("finz"), one number at a time. Their definition is
 * SLEEF's code, which is floating point; so it stands outside the reference, and only FP32
 * patterns cross the border. Numerics: docs/numerics.md, section 11.8.
 */
#include "dispatch.h"
#include "internal.h"

/* sleef.h declares the functions with FMA for compilers that have it; calling needs none. */
#define FP_FAST_FMA
#define FP_FAST_FMAF
#include <sleef.h>
#include <string.h>

bool ng_sleef_available(void)
{
#if defined(__x86_64__) /* SLEEF compiles these functions with AVX2 and FMA */
    const uint32_t wants = NG_CPU_AVX2 | NG_CPU_FMA;
    return (ng_cpu_features(0) & wants) == wants;
#else
    return true;
#endif
}

static float call(ng_function f, float x)
{
    switch (f) {
    case NG_FN_EXP: return Sleef_finz_expf1_u10purecfma(x);
    case NG_FN_EXP2: return Sleef_finz_exp2f1_u10purecfma(x);
    case NG_FN_LOG: return Sleef_finz_logf1_u10purecfma(x);
    case NG_FN_TANH: return Sleef_finz_tanhf1_u10purecfma(x);
    case NG_FN_SIGMOID: /* chains of the reference */
    case NG_FN_RECIPROCAL:
    case NG_FN_RSQRT: break;
    }
    return x;
}

uint32_t ng_sleef(ng_function f, uint32_t x)
{
    float v;
    memcpy(&v, &x, sizeof v);
    const uint32_t saved = ng_fp_enter();
    v = call(f, v);
    ng_fp_leave(saved);
    memcpy(&x, &v, sizeof x);
    return x;
}
