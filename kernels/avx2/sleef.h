/* SPDX-License-Identifier: Apache-2.0 */
/* What elementary.h asks of an ISA beside ints.h: SLEEF's functions, roots, bounds. */
#ifndef NG_AVX2_SLEEF_H
#define NG_AVX2_SLEEF_H

#include <sleef.h>

#include "ints.h"

/* The functions of section 11.8 item 50. */
static inline vec vec_exp(vec x)
{
    return Sleef_finz_expf8_u10avx2(x);
}
static inline vec vec_exp2(vec x)
{
    return Sleef_finz_exp2f8_u10avx2(x);
}
static inline vec vec_log(vec x)
{
    return Sleef_finz_logf8_u10avx2(x);
}
static inline vec vec_tanh(vec x)
{
    return Sleef_finz_tanhf8_u10avx2(x);
}
/* Doubles: within 3.5 units of the last place. */
static inline vec64 vec64_log(vec64 x)
{
    return Sleef_finz_logd4_u35avx2(x);
}
static inline vec64 vec64_tanh(vec64 x)
{
    return Sleef_finz_tanhd4_u35avx2(x);
}
/* x times 2^n, both normal; n in the lowest 12 bits of `shifted`. */
static inline vec64 vec64_times_power(vec64 x, vec64 shifted)
{
    const __m256i n = _mm256_slli_epi64(_mm256_castpd_si256(shifted), 52);
    return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(x), n));
}
/* Of the lanes `in` those with |x| <= most, no NaN; those with any of `bits`. */
static inline imask im_all(void)
{
    return _mm256_set1_epi32(-1);
}
static inline imask im_within(imask in, vec x, vec most)
{
    const vec size = _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x);
    return _mm256_and_si256(in, _mm256_castps_si256(_mm256_cmp_ps(size, most, _CMP_LE_OQ)));
}
static inline imask im_least(imask in, vec x, vec least)
{
    return _mm256_and_si256(in, _mm256_castps_si256(_mm256_cmp_ps(x, least, _CMP_GE_OQ)));
}
static inline imask im_test(imask in, ivec x, ivec bits)
{
    const ivec none = _mm256_cmpeq_epi32(_mm256_and_si256(x, bits), _mm256_setzero_si256());
    return _mm256_andnot_si256(none, in);
}
static inline int im_every(imask x)
{
    return _mm256_testc_si256(x, im_all());
}
static inline vec vec_sqrt(vec x)
{
    return _mm256_sqrt_ps(x);
}
static inline vec64 vec64_sqrt(vec64 x)
{
    return _mm256_sqrt_pd(x);
}
/* y where one of them is a NaN. */
static inline vec vec_min(vec x, vec y)
{
    return _mm256_min_ps(x, y);
}
static inline vec vec_max(vec x, vec y)
{
    return _mm256_max_ps(x, y);
}
static inline vec64 vec64_all(double x)
{
    return _mm256_set1_pd(x);
}
static inline vec64 vec64_min(vec64 x, vec64 y)
{
    return _mm256_min_pd(x, y);
}
static inline vec64 vec64_max(vec64 x, vec64 y)
{
    return _mm256_max_pd(x, y);
}
/* x where it is below y, else -Inf. */
static inline vec64 vec64_below(vec64 x, vec64 y)
{
    return _mm256_blendv_pd(vec64_all(-__builtin_inf()), x, _mm256_cmp_pd(x, y, _CMP_LT_OQ));
}
static inline void vec64_store(double *p, vec64 x)
{
    _mm256_storeu_pd(p, x);
}
static inline int im_differs(ivec x, ivec y)
{
    const ivec d = _mm256_xor_si256(x, y);
    return !_mm256_testz_si256(d, d);
}

#endif
