/* SPDX-License-Identifier: Apache-2.0 */
/* What elementary.h asks of an ISA beside ints512.h: SLEEF's functions, roots, bounds. */
#ifndef NG_KERNELS_SLEEF512_H
#define NG_KERNELS_SLEEF512_H

#include "ints512.h"

#include <sleef.h>

/* NAME of a whole register. SLEEF's own code cannot be emulated; its functions for AVX2 have
 * the same bits (section 11.8 item 50), so they stand in for both halves. */
#ifdef NG_EMULATE_AVX512
#define SLEEF512(ours, type, part, name, half)                                                 \
    static inline type ours(type x)                                                            \
    {                                                                                          \
        emu_mm512 r;                                                                           \
        memcpy(&r, &x, sizeof r);                                                              \
        for (int i = 0; i < 2; i++)                                                            \
            r.part[i] = half(r.part[i]);                                                       \
        memcpy(&x, &r, sizeof x);                                                              \
        return x;                                                                              \
    }
#else
#define SLEEF512(ours, type, part, name, half)                                                 \
    static inline type ours(type x)                                                            \
    {                                                                                          \
        return name(x);                                                                        \
    }
#endif

/* The functions of section 11.8 item 50. */
SLEEF512(vec_exp, vec, half_ps, Sleef_finz_expf16_u10avx512f, Sleef_finz_expf8_u10avx2)
SLEEF512(vec_exp2, vec, half_ps, Sleef_finz_exp2f16_u10avx512f, Sleef_finz_exp2f8_u10avx2)
SLEEF512(vec_log, vec, half_ps, Sleef_finz_logf16_u10avx512f, Sleef_finz_logf8_u10avx2)
SLEEF512(vec_tanh, vec, half_ps, Sleef_finz_tanhf16_u10avx512f, Sleef_finz_tanhf8_u10avx2)
/* Doubles: within 3.5 units of the last place. */
SLEEF512(vec64_log, vec64, half_pd, Sleef_finz_logd8_u35avx512f, Sleef_finz_logd4_u35avx2)
SLEEF512(vec64_tanh, vec64, half_pd, Sleef_finz_tanhd8_u35avx512f, Sleef_finz_tanhd4_u35avx2)
#undef SLEEF512

/* x times 2^n, both normal; n in the lowest 12 bits of `shifted`. */
static inline vec64 vec64_times_power(vec64 x, vec64 shifted)
{
    const __m512i n = _mm512_slli_epi64(_mm512_castpd_si512(shifted), 52);
    return _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(x), n));
}
/* 2^(n / 16), n in the lowest 16 bits of `shifted`: the entries are 2^(j / 16) less j units of
 * what n adds there. */
#define VEC64_SIXTEENTHS 1
static inline vec64 vec64_sixteenths(vec64 shifted)
{
    static const uint64_t table[16] = {
        0x3FF0000000000000, 0x3FEFB5586CF9890F, 0x3FEF72B83C7D517B, 0x3FEF387A6E756238,
        0x3FEF06FE0A31B715, 0x3FEEDEA64C123422, 0x3FEEBFDAD5362A27, 0x3FEEAB07DD485429,
        0x3FEEA09E667F3BCD, 0x3FEEA11473EB0187, 0x3FEEACE5422AA0DB, 0x3FEEC49182A3F090,
        0x3FEEE89F995AD3AD, 0x3FEF199BDD85529C, 0x3FEF5818DCFBA487, 0x3FEFA4AFA2A490DA
    };
    const __m512i n = _mm512_castpd_si512(shifted),
                  entry = _mm512_permutex2var_epi64(_mm512_loadu_si512(table), n,
                                                    _mm512_loadu_si512(table + 8));
    return _mm512_castsi512_pd(_mm512_add_epi64(entry, _mm512_slli_epi64(n, 48)));
}
/*
 * 2^(j / 32), j in the lowest five bits of n, rounded to nearest; *rest is what the logarithm
 * of that number lacks: j / 32 ln 2 less it; and less 1.25 2^-35 over that number.
 */
#define VEC_THIRTYSECONDS 1
static inline vec vec_thirtyseconds(ivec n, vec *rest)
{
    static const uint32_t table[2][32] = {
        { 0x3F800000, 0x3F82CD87, 0x3F85AAC3, 0x3F88980F, 0x3F8B95C2, 0x3F8EA43A, 0x3F91C3D3,
          0x3F94F4F0, 0x3F9837F0, 0x3F9B8D3A, 0x3F9EF532, 0x3FA27043, 0x3FA5FED7, 0x3FA9A15B,
          0x3FAD583F, 0x3FB123F6, 0x3FB504F3, 0x3FB8FBAF, 0x3FBD08A4, 0x3FC12C4D, 0x3FC5672A,
          0x3FC9B9BE, 0x3FCE248C, 0x3FD2A81E, 0x3FD744FD, 0x3FDBFBB8, 0x3FE0CCDF, 0x3FE5B907,
          0x3FEAC0C7, 0x3FEFE4BA, 0x3FF5257D, 0x3FFA83B3 },
        { 0xAE200000, 0xB34A612F, 0x3346A51C, 0xB36EF6FA, 0xB24E98C9, 0xB351A1BF, 0x334B0161,
          0xB315A93D, 0x3309065E, 0xB2E7363C, 0x331B65BC, 0x3095C651, 0xB3053981, 0xB2E2DD38,
          0xB200E27B, 0xB3367629, 0x3292CA1D, 0x32C55E81, 0xB30300B8, 0xB28E45A3, 0x31B30167,
          0xB31A608D, 0x31D1143F, 0xB305D7B2, 0xB27D40A5, 0xB2F292CF, 0xB1B5670F, 0xB1DB3CDC,
          0xB1D33F3A, 0xB2D5E348, 0x31AFFA31, 0xB215BCBC }
    };
    *rest = iv_float(_mm512_permutex2var_epi32(iv_load(table[1]), n, iv_load(table[1] + 16)));
    return iv_float(_mm512_permutex2var_epi32(iv_load(table[0]), n, iv_load(table[0] + 16)));
}
/* Of the lanes `in` those with |x| <= most, no NaN; those with any of `bits`. */
static inline imask im_all(void)
{
    return 0xFFFF;
}
static inline imask im_within(imask in, vec x, vec most)
{
    return _mm512_mask_cmp_ps_mask(in, _mm512_abs_ps(x), most, _CMP_LE_OQ);
}
/* Those with x >= least. */
static inline imask im_least(imask in, vec x, vec least)
{
    return _mm512_mask_cmp_ps_mask(in, x, least, _CMP_GE_OQ);
}
static inline imask im_test(imask in, ivec x, ivec bits)
{
    return _mm512_mask_test_epi32_mask(in, x, bits);
}
/* Those where x and y are the same. */
static inline imask im_same(imask in, vec x, vec y)
{
    return _mm512_mask_cmpeq_epi32_mask(in, iv_bits(x), iv_bits(y));
}
static inline int im_every(imask x)
{
    return x == im_all();
}
static inline vec vec_sqrt(vec x)
{
    return _mm512_sqrt_ps(x);
}
static inline vec64 vec64_sqrt(vec64 x)
{
    return _mm512_sqrt_pd(x);
}
/* y where one of them is a NaN. */
static inline vec vec_min(vec x, vec y)
{
    return _mm512_min_ps(x, y);
}
static inline vec vec_max(vec x, vec y)
{
    return _mm512_max_ps(x, y);
}
static inline vec64 vec64_all(double x)
{
    return _mm512_set1_pd(x);
}
static inline vec64 vec64_min(vec64 x, vec64 y)
{
    return _mm512_min_pd(x, y);
}
static inline vec64 vec64_max(vec64 x, vec64 y)
{
    return _mm512_max_pd(x, y);
}
/* x where it is below y, else -Inf. */
static inline vec64 vec64_below(vec64 x, vec64 y)
{
    return _mm512_mask_blend_pd(_mm512_cmp_pd_mask(x, y, _CMP_LT_OQ),
                                vec64_all(-__builtin_inf()), x);
}
static inline void vec64_store(double *p, vec64 x)
{
    _mm512_storeu_pd(p, x);
}
static inline int im_differs(ivec x, ivec y)
{
    return _mm512_cmpneq_epi32_mask(x, y) != 0;
}

#endif
