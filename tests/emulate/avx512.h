/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512 in AVX2 and FMA, so that its kernels run where the CPU has none. Intrinsic _mm512_x
 * is the function ng_emu_mm512_x here (and _mm256_x, _mm_x, _kx likewise); avx512_names.h then
 * puts these in the place of the compiler's. What is not here fails to compile, because AVX-512
 * is not among the flags: add it, and its row in test_emulate.c.
 *
 * Where AVX2 has the instruction, it is used on both halves: same rounding, same NaN, same
 * MXCSR. The rest is done lane by lane from the pseudocode of Intel's Software Developer's
 * Manual (SDM).
 */
#ifndef NG_EMULATE_AVX512_H
#define NG_EMULATE_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if !defined(__AVX2__) || !defined(__FMA__)
#error "the emulation stands on AVX2 and FMA"
#endif

/* ---- A register, seen in every way. ---- */

#define EMU_REGISTER(m, bytes, t_ps, t_pd, t_si, h_ps, h_pd, h_si)                             \
    typedef int8_t emu_##m##_i8 __attribute__((vector_size(bytes)));                           \
    typedef int16_t emu_##m##_i16 __attribute__((vector_size(bytes)));                         \
    typedef int32_t emu_##m##_i32 __attribute__((vector_size(bytes)));                         \
    typedef int64_t emu_##m##_i64 __attribute__((vector_size(bytes)));                         \
    typedef uint8_t emu_##m##_u8 __attribute__((vector_size(bytes)));                          \
    typedef uint16_t emu_##m##_u16 __attribute__((vector_size(bytes)));                        \
    typedef uint32_t emu_##m##_u32 __attribute__((vector_size(bytes)));                        \
    typedef uint64_t emu_##m##_u64 __attribute__((vector_size(bytes)));                        \
    typedef t_ps emu_##m##_ps;                                                                 \
    typedef t_pd emu_##m##_pd;                                                                 \
    typedef t_si emu_##m##_si;                                                                 \
    typedef union {                                                                            \
        t_ps ps;                                                                               \
        t_pd pd;                                                                               \
        t_si si;                                                                               \
        emu_##m##_i8 i8;                                                                       \
        emu_##m##_i16 i16;                                                                     \
        emu_##m##_i32 i32;                                                                     \
        emu_##m##_i64 i64;                                                                     \
        emu_##m##_u8 u8;                                                                       \
        emu_##m##_u16 u16;                                                                     \
        emu_##m##_u32 u32;                                                                     \
        emu_##m##_u64 u64;                                                                     \
        float f32[(bytes) / 4];                                                                \
        double f64[(bytes) / 8];                                                               \
        __m128 quarter_ps[(bytes) / 16];                                                       \
        __m128i quarter_si[(bytes) / 16];                                                      \
        h_ps half_ps[(bytes) / sizeof(h_ps)];                                                  \
        h_pd half_pd[(bytes) / sizeof(h_pd)];                                                  \
        h_si half_si[(bytes) / sizeof(h_si)];                                                  \
    } emu_##m
EMU_REGISTER(mm512, 64, __m512, __m512d, __m512i, __m256, __m256d, __m256i);
EMU_REGISTER(mm256, 32, __m256, __m256d, __m256i, __m256, __m256d, __m256i);
EMU_REGISTER(mm, 16, __m128, __m128d, __m128i, __m128, __m128d, __m128i);
_Static_assert(sizeof(emu_mm512) == 64 && sizeof(emu_mm256) == 32 && sizeof(emu_mm) == 16, "");

#define EMU_LANES(x) (sizeof(x) / sizeof((x)[0]))

/* By an intrinsic's suffix: the kind of register, the lane, and the mask at each width. */
#define EMU_KIND_ps     ps
#define EMU_KIND_pd     pd
#define EMU_KIND_epi8   si
#define EMU_KIND_epi16  si
#define EMU_KIND_epi32  si
#define EMU_KIND_epi64  si
#define EMU_LANE_ps     f32
#define EMU_LANE_pd     f64
#define EMU_LANE_epi8   i8
#define EMU_LANE_epi16  i16
#define EMU_LANE_epi32  i32
#define EMU_LANE_epi64  i64
#define EMU_K_mm512_i8  __mmask64
#define EMU_K_mm512_i16 __mmask32
#define EMU_K_mm512_i32 __mmask16
#define EMU_K_mm512_i64 __mmask8
#define EMU_K_mm512_f32 __mmask16
#define EMU_K_mm512_f64 __mmask8
#define EMU_K_mm256_i8  __mmask32
#define EMU_K_mm256_i16 __mmask16
#define EMU_K_mm256_i32 __mmask8
#define EMU_K_mm256_i64 __mmask8
#define EMU_K_mm256_f32 __mmask8
#define EMU_K_mm256_f64 __mmask8
#define EMU_K_mm_i8     __mmask16
#define EMU_K_mm_i16    __mmask8
#define EMU_K_mm_i32    __mmask8
#define EMU_K_mm_i64    __mmask8
#define EMU_K_mm_f32    __mmask8
#define EMU_K_mm_f64    __mmask8
/* Expanded before pasted. */
#define EMU_JOIN2(a, b) a##b
#define EMU_JOIN(a, b)  EMU_JOIN2(a, b)
#define EMU_KIND(e)     EMU_JOIN(EMU_KIND_, e)
#define EMU_LANE(e)     EMU_JOIN(EMU_LANE_, e)
#define EMU_V(m, e)     EMU_JOIN(emu_##m##_, EMU_KIND(e))
#define EMU_K(m, e)     EMU_JOIN(EMU_K_##m##_, EMU_LANE(e))

/* ---- Ways to define a function. ---- */

/* Both halves by an AVX2 intrinsic. */
#define EMU_HALVES1(name, kind, op)                                                            \
    static inline emu_mm512_##kind ng_emu_mm512_##name(emu_mm512_##kind a)                     \
    {                                                                                          \
        const emu_mm512 x = { .kind = a };                                                     \
        const emu_mm512 r = { .half_##kind = { op(x.half_##kind[0]), op(x.half_##kind[1]) } }; \
        return r.kind;                                                                         \
    }
#define EMU_HALVES2(name, kind, op)                                                            \
    static inline emu_mm512_##kind ng_emu_mm512_##name(emu_mm512_##kind a, emu_mm512_##kind b) \
    {                                                                                          \
        const emu_mm512 x = { .kind = a }, y = { .kind = b };                                  \
        const emu_mm512 r = { .half_##kind = { op(x.half_##kind[0], y.half_##kind[0]),         \
                                               op(x.half_##kind[1], y.half_##kind[1]) } };     \
        return r.kind;                                                                         \
    }
#define EMU_HALVES3(name, kind, op)                                                            \
    static inline emu_mm512_##kind ng_emu_mm512_##name(emu_mm512_##kind a, emu_mm512_##kind b, \
                                                       emu_mm512_##kind c)                     \
    {                                                                                          \
        const emu_mm512 x = { .kind = a }, y = { .kind = b }, z = { .kind = c };               \
        const emu_mm512 r = {                                                                  \
            .half_##kind = { op(x.half_##kind[0], y.half_##kind[0], z.half_##kind[0]),         \
                             op(x.half_##kind[1], y.half_##kind[1], z.half_##kind[1]) }        \
        };                                                                                     \
        return r.kind;                                                                         \
    }
/* A shift by a count; the instruction has 8 bits for it, and AVX2's then shifts out all. */
#define EMU_SHIFT(name, op)                                                                    \
    static inline __m512i ng_emu_mm512_##name(__m512i a, unsigned n)                           \
    {                                                                                          \
        const emu_mm512 x = { .si = a };                                                       \
        const int c = (int)(n & 0xFFu);                                                        \
        const emu_mm512 r = { .half_si = { op(x.half_si[0], c), op(x.half_si[1], c) } };       \
        return r.si;                                                                           \
    }

/* Lane by lane: x, y, z are the operands' lanes, p, q, s the operands, i the lane's number. */
#define EMU_LANES1(m, name, kind, lane, expr)                                                  \
    static inline emu_##m##_##kind ng_emu_##m##_##name(emu_##m##_##kind a)                     \
    {                                                                                          \
        const emu_##m p = { .kind = a };                                                       \
        emu_##m r;                                                                             \
        for (unsigned i = 0; i < EMU_LANES(r.lane); i++) {                                     \
            const __typeof__(r.lane[0]) x = p.lane[i];                                         \
            r.lane[i] = (__typeof__(r.lane[0]))(expr);                                         \
        }                                                                                      \
        return r.kind;                                                                         \
    }
#define EMU_LANES2(m, name, kind, lane, expr)                                                  \
    static inline emu_##m##_##kind ng_emu_##m##_##name(emu_##m##_##kind a, emu_##m##_##kind b) \
    {                                                                                          \
        const emu_##m p = { .kind = a }, q = { .kind = b };                                    \
        emu_##m r;                                                                             \
        for (unsigned i = 0; i < EMU_LANES(r.lane); i++) {                                     \
            const __typeof__(r.lane[0]) x = p.lane[i], y = q.lane[i];                          \
            r.lane[i] = (__typeof__(r.lane[0]))(expr);                                         \
        }                                                                                      \
        return r.kind;                                                                         \
    }

/* The masked forms of a function: lanes whose bit is 0 keep src (mask), or become 0 (maskz). */
#define EMU_MASKED1(m, op, e)                                                                  \
    static inline EMU_V(m, e)                                                                  \
        ng_emu_##m##_mask_##op##_##e(EMU_V(m, e) src, EMU_K(m, e) k, EMU_V(m, e) a)            \
    {                                                                                          \
        return ng_emu_##m##_mask_mov_##e(src, k, ng_emu_##m##_##op##_##e(a));                  \
    }                                                                                          \
    static inline EMU_V(m, e) ng_emu_##m##_maskz_##op##_##e(EMU_K(m, e) k, EMU_V(m, e) a)      \
    {                                                                                          \
        return ng_emu_##m##_maskz_mov_##e(k, ng_emu_##m##_##op##_##e(a));                      \
    }
#define EMU_MASKED2(m, op, e)                                                                  \
    static inline EMU_V(m, e) ng_emu_##m##_mask_##op##_##e(EMU_V(m, e) src, EMU_K(m, e) k,     \
                                                           EMU_V(m, e) a, EMU_V(m, e) b)       \
    {                                                                                          \
        return ng_emu_##m##_mask_mov_##e(src, k, ng_emu_##m##_##op##_##e(a, b));               \
    }                                                                                          \
    static inline EMU_V(m, e)                                                                  \
        ng_emu_##m##_maskz_##op##_##e(EMU_K(m, e) k, EMU_V(m, e) a, EMU_V(m, e) b)             \
    {                                                                                          \
        return ng_emu_##m##_maskz_mov_##e(k, ng_emu_##m##_##op##_##e(a, b));                   \
    }
#define EMU_MASKED_SHIFT(op, e)                                                                \
    static inline __m512i ng_emu_mm512_mask_##op##_##e(__m512i src, EMU_K(mm512, e) k,         \
                                                       __m512i a, unsigned n)                  \
    {                                                                                          \
        return ng_emu_mm512_mask_mov_##e(src, k, ng_emu_mm512_##op##_##e(a, n));               \
    }                                                                                          \
    static inline __m512i ng_emu_mm512_maskz_##op##_##e(EMU_K(mm512, e) k, __m512i a,          \
                                                        unsigned n)                            \
    {                                                                                          \
        return ng_emu_mm512_maskz_mov_##e(k, ng_emu_mm512_##op##_##e(a, n));                   \
    }
/* Of a multiply-add: mask keeps the first factor, mask3 the addend. */
#define EMU_MASKED_FMA(op, e)                                                                  \
    static inline EMU_V(mm512, e) ng_emu_mm512_mask_##op##_##e(                                \
        EMU_V(mm512, e) a, EMU_K(mm512, e) k, EMU_V(mm512, e) b, EMU_V(mm512, e) c)            \
    {                                                                                          \
        return ng_emu_mm512_mask_mov_##e(a, k, ng_emu_mm512_##op##_##e(a, b, c));              \
    }                                                                                          \
    static inline EMU_V(mm512, e) ng_emu_mm512_mask3_##op##_##e(                               \
        EMU_V(mm512, e) a, EMU_V(mm512, e) b, EMU_V(mm512, e) c, EMU_K(mm512, e) k)            \
    {                                                                                          \
        return ng_emu_mm512_mask_mov_##e(c, k, ng_emu_mm512_##op##_##e(a, b, c));              \
    }                                                                                          \
    static inline EMU_V(mm512, e) ng_emu_mm512_maskz_##op##_##e(                               \
        EMU_K(mm512, e) k, EMU_V(mm512, e) a, EMU_V(mm512, e) b, EMU_V(mm512, e) c)            \
    {                                                                                          \
        return ng_emu_mm512_maskz_mov_##e(k, ng_emu_mm512_##op##_##e(a, b, c));                \
    }

/* ---- Constants. ---- */

static inline __m512 ng_emu_mm512_setzero_ps(void)
{
    return (__m512){ 0 };
}
static inline __m512d ng_emu_mm512_setzero_pd(void)
{
    return (__m512d){ 0 };
}
static inline __m512i ng_emu_mm512_setzero_si512(void)
{
    return (__m512i){ 0 };
}

#define EMU_SET1(suffix, kind, lane, type)                                                     \
    static inline emu_mm512_##kind ng_emu_mm512_set1_##suffix(type a)                          \
    {                                                                                          \
        emu_mm512 r;                                                                           \
        for (unsigned i = 0; i < EMU_LANES(r.lane); i++)                                       \
            r.lane[i] = a;                                                                     \
        return r.kind;                                                                         \
    }
EMU_SET1(ps, ps, f32, float)
EMU_SET1(pd, pd, f64, double)
EMU_SET1(epi8, si, i8, int8_t)
EMU_SET1(epi16, si, i16, int16_t)
EMU_SET1(epi32, si, i32, int32_t)
EMU_SET1(epi64, si, i64, int64_t)

#define ng_emu_mm512_setr_ps(...)    ((__m512){ __VA_ARGS__ })
#define ng_emu_mm512_setr_pd(...)    ((__m512d){ __VA_ARGS__ })
#define ng_emu_mm512_setr_epi32(...) ((__m512i)(emu_mm512_i32){ __VA_ARGS__ })
#define ng_emu_mm512_setr_epi64(...) ((__m512i)(emu_mm512_i64){ __VA_ARGS__ })

/* ---- Casts: the same bits. The part that a longer register gains is 0 here, and undefined.
 * ---- */

#define EMU_CAST(name, from, fk, to, tk)                                                       \
    static inline emu_##to##_##tk ng_emu_mm512_##name(emu_##from##_##fk a)                     \
    {                                                                                          \
        emu_mm512 x = { .si = { 0 } };                                                         \
        emu_##to##_##tk r;                                                                     \
        memcpy(&x, &a, sizeof a);                                                              \
        memcpy(&r, &x, sizeof r);                                                              \
        return r;                                                                              \
    }
EMU_CAST(castps_pd, mm512, ps, mm512, pd)
EMU_CAST(castps_si512, mm512, ps, mm512, si)
EMU_CAST(castpd_ps, mm512, pd, mm512, ps)
EMU_CAST(castpd_si512, mm512, pd, mm512, si)
EMU_CAST(castsi512_ps, mm512, si, mm512, ps)
EMU_CAST(castsi512_pd, mm512, si, mm512, pd)
EMU_CAST(castps512_ps256, mm512, ps, mm256, ps)
EMU_CAST(castps512_ps128, mm512, ps, mm, ps)
EMU_CAST(castpd512_pd256, mm512, pd, mm256, pd)
EMU_CAST(castpd512_pd128, mm512, pd, mm, pd)
EMU_CAST(castsi512_si256, mm512, si, mm256, si)
EMU_CAST(castsi512_si128, mm512, si, mm, si)
EMU_CAST(castps256_ps512, mm256, ps, mm512, ps)
EMU_CAST(castps128_ps512, mm, ps, mm512, ps)
EMU_CAST(castpd256_pd512, mm256, pd, mm512, pd)
EMU_CAST(castsi256_si512, mm256, si, mm512, si)
EMU_CAST(castsi128_si512, mm, si, mm512, si)
EMU_CAST(zextps256_ps512, mm256, ps, mm512, ps)
EMU_CAST(zextps128_ps512, mm, ps, mm512, ps)
EMU_CAST(zextsi256_si512, mm256, si, mm512, si)
EMU_CAST(zextsi128_si512, mm, si, mm512, si)

static inline float ng_emu_mm512_cvtss_f32(__m512 a)
{
    return a[0];
}
static inline int32_t ng_emu_mm512_cvtsi512_si32(__m512i a)
{
    const emu_mm512 x = { .si = a };
    return x.i32[0];
}

/* ---- Masks as numbers. ---- */

#define EMU_MASKS(bits)                                                                        \
    static inline __mmask##bits ng_emu_kand_mask##bits(__mmask##bits a, __mmask##bits b)       \
    {                                                                                          \
        return (__mmask##bits)(a & b);                                                         \
    }                                                                                          \
    static inline __mmask##bits ng_emu_kandn_mask##bits(__mmask##bits a, __mmask##bits b)      \
    {                                                                                          \
        return (__mmask##bits)(~a & b);                                                        \
    }                                                                                          \
    static inline __mmask##bits ng_emu_kor_mask##bits(__mmask##bits a, __mmask##bits b)        \
    {                                                                                          \
        return (__mmask##bits)(a | b);                                                         \
    }                                                                                          \
    static inline __mmask##bits ng_emu_kxor_mask##bits(__mmask##bits a, __mmask##bits b)       \
    {                                                                                          \
        return (__mmask##bits)(a ^ b);                                                         \
    }                                                                                          \
    static inline __mmask##bits ng_emu_kxnor_mask##bits(__mmask##bits a, __mmask##bits b)      \
    {                                                                                          \
        return (__mmask##bits) ~(a ^ b);                                                       \
    }                                                                                          \
    static inline __mmask##bits ng_emu_knot_mask##bits(__mmask##bits a)                        \
    {                                                                                          \
        return (__mmask##bits) ~a;                                                             \
    }                                                                                          \
    static inline unsigned char ng_emu_kortestz_mask##bits##_u8(__mmask##bits a,               \
                                                                __mmask##bits b)               \
    {                                                                                          \
        return (__mmask##bits)(a | b) == 0;                                                    \
    }                                                                                          \
    static inline unsigned char ng_emu_kortestc_mask##bits##_u8(__mmask##bits a,               \
                                                                __mmask##bits b)               \
    {                                                                                          \
        return (__mmask##bits)(a | b) == (__mmask##bits) ~(__mmask##bits)0;                    \
    }                                                                                          \
    static inline unsigned char ng_emu_kortest_mask##bits##_u8(                                \
        __mmask##bits a, __mmask##bits b, unsigned char *all_ones)                             \
    {                                                                                          \
        *all_ones = ng_emu_kortestc_mask##bits##_u8(a, b);                                     \
        return ng_emu_kortestz_mask##bits##_u8(a, b);                                          \
    }                                                                                          \
    static inline __mmask##bits ng_emu_kshiftli_mask##bits(__mmask##bits a, unsigned n)        \
    {                                                                                          \
        return n < bits ? (__mmask##bits)((uint64_t)a << n) : 0;                               \
    }                                                                                          \
    static inline __mmask##bits ng_emu_kshiftri_mask##bits(__mmask##bits a, unsigned n)        \
    {                                                                                          \
        return n < bits ? (__mmask##bits)(a >> n) : 0;                                         \
    }
EMU_MASKS(8)
EMU_MASKS(16)
EMU_MASKS(32)
EMU_MASKS(64)

static inline __mmask16 ng_emu_mm512_kand(__mmask16 a, __mmask16 b)
{
    return a & b;
}
static inline __mmask16 ng_emu_mm512_kandn(__mmask16 a, __mmask16 b)
{
    return ng_emu_kandn_mask16(a, b);
}
static inline __mmask16 ng_emu_mm512_kor(__mmask16 a, __mmask16 b)
{
    return a | b;
}
static inline __mmask16 ng_emu_mm512_kxor(__mmask16 a, __mmask16 b)
{
    return a ^ b;
}
static inline __mmask16 ng_emu_mm512_knot(__mmask16 a)
{
    return ng_emu_knot_mask16(a);
}
static inline int ng_emu_mm512_kortestz(__mmask16 a, __mmask16 b)
{
    return ng_emu_kortestz_mask16_u8(a, b);
}
static inline int ng_emu_mm512_kortestc(__mmask16 a, __mmask16 b)
{
    return ng_emu_kortestc_mask16_u8(a, b);
}
static inline __mmask16 ng_emu_mm512_kunpackb(__mmask16 high, __mmask16 low)
{
    return (__mmask16)((high & 0xFF) << 8 | (low & 0xFF));
}

/* ---- Choice by mask. ---- */

#define EMU_MOV(m, e)                                                                          \
    static inline EMU_V(m, e)                                                                  \
        ng_emu_##m##_mask_mov_##e(EMU_V(m, e) src, EMU_K(m, e) k, EMU_V(m, e) a)               \
    {                                                                                          \
        const emu_##m x = { .EMU_KIND(e) = a };                                                \
        emu_##m r = { .EMU_KIND(e) = src };                                                    \
        for (unsigned i = 0; i < EMU_LANES(r.EMU_LANE(e)); i++)                                \
            r.EMU_LANE(e)[i] = k >> i & 1 ? x.EMU_LANE(e)[i] : r.EMU_LANE(e)[i];               \
        return r.EMU_KIND(e);                                                                  \
    }                                                                                          \
    static inline EMU_V(m, e) ng_emu_##m##_maskz_mov_##e(EMU_K(m, e) k, EMU_V(m, e) a)         \
    {                                                                                          \
        return ng_emu_##m##_mask_mov_##e((EMU_V(m, e)){ 0 }, k, a);                            \
    }                                                                                          \
    static inline EMU_V(m, e)                                                                  \
        ng_emu_##m##_mask_blend_##e(EMU_K(m, e) k, EMU_V(m, e) a, EMU_V(m, e) b)               \
    {                                                                                          \
        return ng_emu_##m##_mask_mov_##e(a, k, b);                                             \
    }
#define EMU_ALL_SUFFIXES(define, m)                                                            \
    define(m, ps) define(m, pd) define(m, epi8) define(m, epi16) define(m, epi32)              \
        define(m, epi64)
EMU_ALL_SUFFIXES(EMU_MOV, mm512)
EMU_ALL_SUFFIXES(EMU_MOV, mm256)
EMU_ALL_SUFFIXES(EMU_MOV, mm)

#define EMU_MASK_SET1(e, type)                                                                 \
    static inline __m512i ng_emu_mm512_mask_set1_##e(__m512i src, EMU_K(mm512, e) k, type a)   \
    {                                                                                          \
        return ng_emu_mm512_mask_mov_##e(src, k, ng_emu_mm512_set1_##e(a));                    \
    }                                                                                          \
    static inline __m512i ng_emu_mm512_maskz_set1_##e(EMU_K(mm512, e) k, type a)               \
    {                                                                                          \
        return ng_emu_mm512_maskz_mov_##e(k, ng_emu_mm512_set1_##e(a));                        \
    }
EMU_MASK_SET1(epi8, int8_t)
EMU_MASK_SET1(epi16, int16_t)
EMU_MASK_SET1(epi32, int32_t)
EMU_MASK_SET1(epi64, int64_t)

/* ---- Memory. ---- */

#define EMU_MEMORY(suffix, kind)                                                               \
    static inline emu_mm512_##kind ng_emu_mm512_loadu_##suffix(const void *p)                  \
    {                                                                                          \
        emu_mm512_##kind r;                                                                    \
        memcpy(&r, p, sizeof r);                                                               \
        return r;                                                                              \
    }                                                                                          \
    static inline void ng_emu_mm512_storeu_##suffix(void *p, emu_mm512_##kind a)               \
    {                                                                                          \
        memcpy(p, &a, sizeof a);                                                               \
    }
#define EMU_ALIGNED_MEMORY(suffix, kind)                                                       \
    static inline emu_mm512_##kind ng_emu_mm512_load_##suffix(const void *p)                   \
    {                                                                                          \
        emu_aligned(p);                                                                        \
        return ng_emu_mm512_loadu_##suffix(p);                                                 \
    }                                                                                          \
    static inline void ng_emu_mm512_store_##suffix(void *p, emu_mm512_##kind a)                \
    {                                                                                          \
        emu_aligned(p);                                                                        \
        ng_emu_mm512_storeu_##suffix(p, a);                                                    \
    }
EMU_MEMORY(ps, ps)
EMU_MEMORY(pd, pd)
EMU_MEMORY(si512, si)
EMU_MEMORY(epi8, si)
EMU_MEMORY(epi16, si)
EMU_MEMORY(epi32, si)
EMU_MEMORY(epi64, si)

/* The instructions for aligned memory fault on other addresses; AVX2's would on half as many.
 */
static inline void emu_aligned(const void *p)
{
    if ((uintptr_t)p % 64 != 0)
        __builtin_trap();
}
EMU_ALIGNED_MEMORY(ps, ps)
EMU_ALIGNED_MEMORY(pd, pd)
EMU_ALIGNED_MEMORY(si512, si)
EMU_ALIGNED_MEMORY(epi32, si)
EMU_ALIGNED_MEMORY(epi64, si)

/* Past the caches: a program sees a store. */
static inline void ng_emu_mm512_stream_si512(void *p, emu_mm512_si a)
{
    ng_emu_mm512_store_si512(p, a);
}

/* A masked-off lane's memory is not touched: the access is under the condition, lane by lane.
 */
#define EMU_MASKED_MEMORY(m, e)                                                                \
    static inline EMU_V(m, e)                                                                  \
        ng_emu_##m##_mask_loadu_##e(EMU_V(m, e) src, EMU_K(m, e) k, const void *p)             \
    {                                                                                          \
        emu_##m r = { .EMU_KIND(e) = src };                                                    \
        const size_t size = sizeof r.EMU_LANE(e)[0];                                           \
        for (unsigned i = 0; i < EMU_LANES(r.EMU_LANE(e)); i++)                                \
            if (k >> i & 1)                                                                    \
                memcpy((char *)&r + i * size, (const char *)p + i * size, size);               \
        return r.EMU_KIND(e);                                                                  \
    }                                                                                          \
    static inline EMU_V(m, e) ng_emu_##m##_maskz_loadu_##e(EMU_K(m, e) k, const void *p)       \
    {                                                                                          \
        return ng_emu_##m##_mask_loadu_##e((EMU_V(m, e)){ 0 }, k, p);                          \
    }                                                                                          \
    static inline void ng_emu_##m##_mask_storeu_##e(void *p, EMU_K(m, e) k, EMU_V(m, e) a)     \
    {                                                                                          \
        const emu_##m x = { .EMU_KIND(e) = a };                                                \
        const size_t size = sizeof x.EMU_LANE(e)[0];                                           \
        for (unsigned i = 0; i < EMU_LANES(x.EMU_LANE(e)); i++)                                \
            if (k >> i & 1)                                                                    \
                memcpy((char *)p + i * size, (const char *)&x + i * size, size);               \
    }
EMU_ALL_SUFFIXES(EMU_MASKED_MEMORY, mm512)
EMU_ALL_SUFFIXES(EMU_MASKED_MEMORY, mm256)
EMU_ALL_SUFFIXES(EMU_MASKED_MEMORY, mm)

static inline __m512i ng_emu_mm512_i32gather_epi32(__m512i at, const void *base, int scale)
{
    const emu_mm512 x = { .si = at };
    emu_mm512 r;
    for (unsigned i = 0; i < 16; i++) {
        int32_t lane;
        memcpy(&lane, (const char *)base + (int64_t)x.i32[i] * scale, sizeof lane);
        r.i32[i] = lane;
    }
    return r.si;
}
static inline __m512 ng_emu_mm512_i32gather_ps(__m512i at, const void *base, int scale)
{
    return (__m512)ng_emu_mm512_i32gather_epi32(at, base, scale);
}

/* ---- Floating point. ---- */

EMU_HALVES2(add_ps, ps, _mm256_add_ps)
EMU_HALVES2(sub_ps, ps, _mm256_sub_ps)
EMU_HALVES2(mul_ps, ps, _mm256_mul_ps)
EMU_HALVES2(div_ps, ps, _mm256_div_ps)
EMU_HALVES2(min_ps, ps, _mm256_min_ps)
EMU_HALVES2(max_ps, ps, _mm256_max_ps)
EMU_HALVES1(sqrt_ps, ps, _mm256_sqrt_ps)
/* By magnitude alone: the nearer to 0 (imm 2), the farther (imm 3), with a's sign. */
static inline uint32_t emu_range(uint32_t a, uint32_t b, int imm)
{
    const uint32_t inf = 0x7F800000u, quiet = 0x00400000u, x = a & 0x7FFFFFFFu,
                   y = b & 0x7FFFFFFFu;
    if (x > inf && !(x & quiet))
        return a | quiet;
    if (y > inf && !(y & quiet))
        return b | quiet;
    const int first = y > inf || (x <= inf && (imm == 2 ? x < y : x > y));
    return (a & 0x80000000u) | (first ? x : y);
}
static inline __m512 ng_emu_mm512_range_ps(__m512 a, __m512 b, int imm)
{
    const emu_mm512 x = { .ps = a }, y = { .ps = b };
    emu_mm512 r;
    for (int i = 0; i < 16; i++)
        r.u32[i] = emu_range(x.u32[i], y.u32[i], imm);
    return r.ps;
}
EMU_HALVES3(fmadd_ps, ps, _mm256_fmadd_ps)
EMU_HALVES3(fmsub_ps, ps, _mm256_fmsub_ps)
EMU_HALVES3(fnmadd_ps, ps, _mm256_fnmadd_ps)
EMU_HALVES3(fnmsub_ps, ps, _mm256_fnmsub_ps)
EMU_HALVES2(and_ps, ps, _mm256_and_ps)
EMU_HALVES2(or_ps, ps, _mm256_or_ps)
EMU_HALVES2(xor_ps, ps, _mm256_xor_ps)
EMU_HALVES2(andnot_ps, ps, _mm256_andnot_ps)
EMU_HALVES2(add_pd, pd, _mm256_add_pd)
EMU_HALVES2(sub_pd, pd, _mm256_sub_pd)
EMU_HALVES2(mul_pd, pd, _mm256_mul_pd)
EMU_HALVES2(div_pd, pd, _mm256_div_pd)
EMU_HALVES2(min_pd, pd, _mm256_min_pd)
EMU_HALVES2(max_pd, pd, _mm256_max_pd)
EMU_HALVES1(sqrt_pd, pd, _mm256_sqrt_pd)
EMU_HALVES3(fmadd_pd, pd, _mm256_fmadd_pd)
EMU_HALVES3(fmsub_pd, pd, _mm256_fmsub_pd)
EMU_HALVES3(fnmadd_pd, pd, _mm256_fnmadd_pd)
EMU_HALVES3(fnmsub_pd, pd, _mm256_fnmsub_pd)

static inline __m512 ng_emu_mm512_abs_ps(__m512 a)
{
    emu_mm512 x = { .ps = a };
    x.u32 &= 0x7FFFFFFFu;
    return x.ps;
}

#define EMU_MASKED_FP(e)                                                                       \
    EMU_MASKED2(mm512, add, e)                                                                 \
    EMU_MASKED2(mm512, sub, e)                                                                 \
    EMU_MASKED2(mm512, mul, e)                                                                 \
    EMU_MASKED2(mm512, min, e)                                                                 \
    EMU_MASKED2(mm512, max, e)                                                                 \
    EMU_MASKED_FMA(fmadd, e)                                                                   \
    EMU_MASKED_FMA(fmsub, e)                                                                   \
    EMU_MASKED_FMA(fnmadd, e)                                                                  \
    EMU_MASKED_FMA(fnmsub, e)
EMU_MASKED_FP(ps)
EMU_MASKED_FP(pd)

/* ---- Comparisons. ---- */

/* The lanes' signs as a mask. */
static inline __mmask64 emu_mm512_signs_i8(emu_mm512 x)
{
    const uint32_t low = (uint32_t)_mm256_movemask_epi8(x.half_si[0]);
    return (uint64_t)(uint32_t)_mm256_movemask_epi8(x.half_si[1]) << 32 | low;
}
static inline __mmask32 emu_mm512_signs_i16(emu_mm512 x)
{
    /* Packing goes by 128 bits: quarters 0 2 1 3. */
    const __m256i bytes = _mm256_packs_epi16(x.half_si[0], x.half_si[1]);
    return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(bytes, 0xD8));
}
static inline __mmask16 emu_mm512_signs_i32(emu_mm512 x)
{
    return (__mmask16)(_mm256_movemask_ps(x.half_ps[0]) | _mm256_movemask_ps(x.half_ps[1])
                                                              << 8);
}
static inline __mmask8 emu_mm512_signs_i64(emu_mm512 x)
{
    return (__mmask8)(_mm256_movemask_pd(x.half_pd[0]) | _mm256_movemask_pd(x.half_pd[1]) << 4);
}
static inline __mmask32 emu_mm256_signs_i8(emu_mm256 x)
{
    return (uint32_t)_mm256_movemask_epi8(x.si);
}
static inline __mmask16 emu_mm256_signs_i16(emu_mm256 x)
{
    return (__mmask16)_mm_movemask_epi8(_mm_packs_epi16(x.quarter_si[0], x.quarter_si[1]));
}
static inline __mmask8 emu_mm256_signs_i32(emu_mm256 x)
{
    return (__mmask8)_mm256_movemask_ps(x.ps);
}
static inline __mmask8 emu_mm256_signs_i64(emu_mm256 x)
{
    return (__mmask8)_mm256_movemask_pd(x.pd);
}
static inline __mmask16 emu_mm_signs_i8(emu_mm x)
{
    return (__mmask16)_mm_movemask_epi8(x.si);
}
static inline __mmask8 emu_mm_signs_i16(emu_mm x)
{
    return (__mmask8)_mm_movemask_epi8(_mm_packs_epi16(x.si, _mm_setzero_si128()));
}
static inline __mmask8 emu_mm_signs_i32(emu_mm x)
{
    return (__mmask8)_mm_movemask_ps(x.ps);
}
static inline __mmask8 emu_mm_signs_i64(emu_mm x)
{
    return (__mmask8)_mm_movemask_pd(x.pd);
}

#define EMU_COMPARE_TO(m, rel, suffix, lane, signs, op)                                        \
    static inline EMU_K_##m##_##signs ng_emu_##m##_cmp##rel##_##suffix##_mask(emu_##m##_si a,  \
                                                                              emu_##m##_si b)  \
    {                                                                                          \
        const emu_##m x = { .si = a }, y = { .si = b };                                        \
        emu_##m r;                                                                             \
        r.signs = (__typeof__(r.signs))(x.lane op y.lane);                                     \
        return emu_##m##_signs_##signs(r);                                                     \
    }                                                                                          \
    static inline EMU_K_##m##_##signs ng_emu_##m##_mask_cmp##rel##_##suffix##_mask(            \
        EMU_K_##m##_##signs k, emu_##m##_si a, emu_##m##_si b)                                 \
    {                                                                                          \
        return k & ng_emu_##m##_cmp##rel##_##suffix##_mask(a, b);                              \
    }
#define EMU_COMPARE(m, suffix, lane, signs)                                                    \
    EMU_COMPARE_TO(m, eq, suffix, lane, signs, ==)                                             \
    EMU_COMPARE_TO(m, neq, suffix, lane, signs, !=)                                            \
    EMU_COMPARE_TO(m, lt, suffix, lane, signs, <)                                              \
    EMU_COMPARE_TO(m, le, suffix, lane, signs, <=)                                             \
    EMU_COMPARE_TO(m, gt, suffix, lane, signs, >)                                              \
    EMU_COMPARE_TO(m, ge, suffix, lane, signs, >=)                                             \
    static inline EMU_K_##m##_##signs ng_emu_##m##_cmp_##suffix##_mask(                        \
        emu_##m##_si a, emu_##m##_si b, int imm)                                               \
    {                                                                                          \
        switch (imm & 7) {                                                                     \
        case 0: return ng_emu_##m##_cmpeq_##suffix##_mask(a, b);                               \
        case 1: return ng_emu_##m##_cmplt_##suffix##_mask(a, b);                               \
        case 2: return ng_emu_##m##_cmple_##suffix##_mask(a, b);                               \
        case 3: return 0;                                                                      \
        case 4: return ng_emu_##m##_cmpneq_##suffix##_mask(a, b);                              \
        case 5: return ng_emu_##m##_cmpge_##suffix##_mask(a, b);                               \
        case 6: return ng_emu_##m##_cmpgt_##suffix##_mask(a, b);                               \
        default: return ng_emu_##m##_cmpeq_##suffix##_mask(a, a);                              \
        }                                                                                      \
    }
#define EMU_COMPARE_ALL(m)                                                                     \
    EMU_COMPARE(m, epi8, i8, i8)                                                               \
    EMU_COMPARE(m, epu8, u8, i8)                                                               \
    EMU_COMPARE(m, epi16, i16, i16)                                                            \
    EMU_COMPARE(m, epu16, u16, i16)                                                            \
    EMU_COMPARE(m, epi32, i32, i32)                                                            \
    EMU_COMPARE(m, epu32, u32, i32)                                                            \
    EMU_COMPARE(m, epi64, i64, i64)                                                            \
    EMU_COMPARE(m, epu64, u64, i64)
EMU_COMPARE_ALL(mm512)
EMU_COMPARE_ALL(mm256)
EMU_COMPARE_ALL(mm)

#define EMU_TEST(e, signs)                                                                     \
    static inline EMU_K_mm512_##signs ng_emu_mm512_test_##e##_mask(__m512i a, __m512i b)       \
    {                                                                                          \
        return ng_emu_mm512_cmpneq_##e##_mask(a & b, (__m512i){ 0 });                          \
    }                                                                                          \
    static inline EMU_K_mm512_##signs ng_emu_mm512_testn_##e##_mask(__m512i a, __m512i b)      \
    {                                                                                          \
        return ng_emu_mm512_cmpeq_##e##_mask(a & b, (__m512i){ 0 });                           \
    }                                                                                          \
    static inline EMU_K_mm512_##signs ng_emu_mm512_mask_test_##e##_mask(EMU_K_mm512_##signs k, \
                                                                        __m512i a, __m512i b)  \
    {                                                                                          \
        return k & ng_emu_mm512_test_##e##_mask(a, b);                                         \
    }                                                                                          \
    static inline EMU_K_mm512_##signs ng_emu_mm512_mask_testn_##e##_mask(                      \
        EMU_K_mm512_##signs k, __m512i a, __m512i b)                                           \
    {                                                                                          \
        return k & ng_emu_mm512_testn_##e##_mask(a, b);                                        \
    }
EMU_TEST(epi8, i8)
EMU_TEST(epi16, i16)
EMU_TEST(epi32, i32)
EMU_TEST(epi64, i64)

/* Sign bits to a mask, and a mask to lanes of all ones. */
#define EMU_MASK_AND_VECTOR(e, bits, signs)                                                    \
    static inline __mmask##bits ng_emu_mm512_mov##e##_mask(__m512i a)                          \
    {                                                                                          \
        const emu_mm512 x = { .si = a };                                                       \
        return ng_emu_mm512_cmplt_##e##_mask(x.si, (__m512i){ 0 });                            \
    }                                                                                          \
    static inline __m512i ng_emu_mm512_movm_##e(__mmask##bits k)                               \
    {                                                                                          \
        return ng_emu_mm512_maskz_mov_##e(k, ~(__m512i){ 0 });                                 \
    }
EMU_MASK_AND_VECTOR(epi8, 64, i8)
EMU_MASK_AND_VECTOR(epi16, 32, i16)
EMU_MASK_AND_VECTOR(epi32, 16, i32)
EMU_MASK_AND_VECTOR(epi64, 8, i64)

/* Predicates 16 to 31 are 0 to 15 but for which NaN raises a flag. */
#define EMU_COMPARE_FP(m, name, kind, signs, cmp)                                              \
    static inline EMU_K_##m##_##signs ng_emu_##m##_##name(emu_##m##_##kind a,                  \
                                                          emu_##m##_##kind b, int imm)         \
    {                                                                                          \
        const emu_##m x = { .kind = a }, y = { .kind = b };                                    \
        emu_##m r;                                                                             \
        for (unsigned h = 0; h < EMU_LANES(r.half_##kind); h++)                                \
            switch (imm & 15) {                                                                \
            case 0: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 0); break;      \
            case 1: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 1); break;      \
            case 2: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 2); break;      \
            case 3: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 3); break;      \
            case 4: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 4); break;      \
            case 5: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 5); break;      \
            case 6: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 6); break;      \
            case 7: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 7); break;      \
            case 8: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 8); break;      \
            case 9: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 9); break;      \
            case 10: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 10); break;    \
            case 11: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 11); break;    \
            case 12: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 12); break;    \
            case 13: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 13); break;    \
            case 14: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 14); break;    \
            default: r.half_##kind[h] = cmp(x.half_##kind[h], y.half_##kind[h], 15); break;    \
            }                                                                                  \
        return emu_##m##_signs_##signs(r);                                                     \
    }                                                                                          \
    static inline EMU_K_##m##_##signs ng_emu_##m##_mask_##name(                                \
        EMU_K_##m##_##signs k, emu_##m##_##kind a, emu_##m##_##kind b, int imm)                \
    {                                                                                          \
        return k & ng_emu_##m##_##name(a, b, imm);                                             \
    }
EMU_COMPARE_FP(mm512, cmp_ps_mask, ps, i32, _mm256_cmp_ps)
EMU_COMPARE_FP(mm512, cmp_pd_mask, pd, i64, _mm256_cmp_pd)
EMU_COMPARE_FP(mm256, cmp_ps_mask, ps, i32, _mm256_cmp_ps)
EMU_COMPARE_FP(mm256, cmp_pd_mask, pd, i64, _mm256_cmp_pd)

/* ---- Integers. ---- */

EMU_HALVES2(add_epi8, si, _mm256_add_epi8)
EMU_HALVES2(add_epi16, si, _mm256_add_epi16)
EMU_HALVES2(add_epi32, si, _mm256_add_epi32)
EMU_HALVES2(add_epi64, si, _mm256_add_epi64)
EMU_HALVES2(sub_epi8, si, _mm256_sub_epi8)
EMU_HALVES2(sub_epi16, si, _mm256_sub_epi16)
EMU_HALVES2(sub_epi32, si, _mm256_sub_epi32)
EMU_HALVES2(sub_epi64, si, _mm256_sub_epi64)
EMU_HALVES2(adds_epu8, si, _mm256_adds_epu8)
EMU_HALVES2(subs_epu8, si, _mm256_subs_epu8)
EMU_HALVES2(adds_epi16, si, _mm256_adds_epi16)
EMU_HALVES2(subs_epi16, si, _mm256_subs_epi16)
EMU_HALVES2(subs_epu16, si, _mm256_subs_epu16)
EMU_HALVES2(avg_epu16, si, _mm256_avg_epu16)
EMU_HALVES2(mullo_epi16, si, _mm256_mullo_epi16)
EMU_HALVES2(mullo_epi32, si, _mm256_mullo_epi32)
EMU_HALVES2(mulhi_epi16, si, _mm256_mulhi_epi16)
EMU_HALVES2(mulhi_epu16, si, _mm256_mulhi_epu16)
EMU_HALVES2(mul_epi32, si, _mm256_mul_epi32)
EMU_HALVES2(mul_epu32, si, _mm256_mul_epu32)
EMU_HALVES2(madd_epi16, si, _mm256_madd_epi16)
EMU_HALVES2(maddubs_epi16, si, _mm256_maddubs_epi16)
EMU_LANES2(mm512, mullo_epi64, si, u64, x *y)
EMU_HALVES2(min_epi8, si, _mm256_min_epi8)
EMU_HALVES2(min_epu8, si, _mm256_min_epu8)
EMU_HALVES2(min_epi16, si, _mm256_min_epi16)
EMU_HALVES2(min_epu16, si, _mm256_min_epu16)
EMU_HALVES2(min_epi32, si, _mm256_min_epi32)
EMU_HALVES2(min_epu32, si, _mm256_min_epu32)
EMU_LANES2(mm512, min_epi64, si, i64, x < y ? x : y)
EMU_LANES2(mm512, min_epu64, si, u64, x < y ? x : y)
EMU_HALVES2(max_epi8, si, _mm256_max_epi8)
EMU_HALVES2(max_epu8, si, _mm256_max_epu8)
EMU_HALVES2(max_epi16, si, _mm256_max_epi16)
EMU_HALVES2(max_epu16, si, _mm256_max_epu16)
EMU_HALVES2(max_epi32, si, _mm256_max_epi32)
EMU_HALVES2(max_epu32, si, _mm256_max_epu32)
EMU_LANES2(mm512, max_epi64, si, i64, x > y ? x : y)
EMU_LANES2(mm512, max_epu64, si, u64, x > y ? x : y)
EMU_HALVES1(abs_epi8, si, _mm256_abs_epi8)
EMU_HALVES1(abs_epi16, si, _mm256_abs_epi16)
EMU_HALVES1(abs_epi32, si, _mm256_abs_epi32)
EMU_LANES1(mm512, abs_epi64, si, u64, x >> 63 ? 0 - x : x)
EMU_LANES1(mm512, lzcnt_epi32, si, u32, x ? __builtin_clz(x) : 32)
EMU_LANES1(mm512, lzcnt_epi64, si, u64, x ? __builtin_clzll(x) : 64)

#define EMU_LOGIC(suffix)                                                                      \
    EMU_HALVES2(and_##suffix, si, _mm256_and_si256)                                            \
    EMU_HALVES2(or_##suffix, si, _mm256_or_si256)                                              \
    EMU_HALVES2(xor_##suffix, si, _mm256_xor_si256)                                            \
    EMU_HALVES2(andnot_##suffix, si, _mm256_andnot_si256)
EMU_LOGIC(si512)
EMU_LOGIC(epi32)
EMU_LOGIC(epi64)

/* Bit 4a + 2b + c of imm is the result where the operands' bits are a, b, c. */
static inline __m512i ng_emu_mm512_ternarylogic_epi64(__m512i a, __m512i b, __m512i c, int imm)
{
    __m512i r = { 0 };
    for (int row = 0; row < 8; row++)
        if (imm >> row & 1)
            r |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    return r;
}
static inline __m512i ng_emu_mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int imm)
{
    return ng_emu_mm512_ternarylogic_epi64(a, b, c, imm);
}

EMU_SHIFT(slli_epi16, _mm256_slli_epi16)
EMU_SHIFT(slli_epi32, _mm256_slli_epi32)
EMU_SHIFT(slli_epi64, _mm256_slli_epi64)
EMU_SHIFT(srli_epi16, _mm256_srli_epi16)
EMU_SHIFT(srli_epi32, _mm256_srli_epi32)
EMU_SHIFT(srli_epi64, _mm256_srli_epi64)
EMU_SHIFT(srai_epi16, _mm256_srai_epi16)
EMU_SHIFT(srai_epi32, _mm256_srai_epi32)
static inline __m512i ng_emu_mm512_srai_epi64(__m512i a, unsigned n)
{
    const unsigned c = n & 0xFFu;
    emu_mm512 x = { .si = a };
    x.i64 >>= c > 63 ? 63 : c;
    return x.si;
}
EMU_HALVES2(sllv_epi32, si, _mm256_sllv_epi32)
EMU_HALVES2(sllv_epi64, si, _mm256_sllv_epi64)
EMU_LANES2(mm512, sllv_epi16, si, u16, y < 16 ? x << y : 0)
EMU_HALVES2(srlv_epi32, si, _mm256_srlv_epi32)
EMU_HALVES2(srlv_epi64, si, _mm256_srlv_epi64)
EMU_LANES2(mm512, srlv_epi16, si, u16, y < 16 ? x >> y : 0)
EMU_HALVES2(srav_epi32, si, _mm256_srav_epi32)
EMU_LANES2(mm512, srav_epi64, si, i64, x >> ((uint64_t)y < 64 ? y : 63))
EMU_LANES2(mm512, srav_epi16, si, i16, x >> ((uint16_t)y < 16 ? y : 15))
static inline __m512i ng_emu_mm512_rol_epi32(__m512i a, int n)
{
    return ng_emu_mm512_slli_epi32(a, (unsigned)n & 31) |
           ng_emu_mm512_srli_epi32(a, 32 - ((unsigned)n & 31));
}
static inline __m512i ng_emu_mm512_ror_epi32(__m512i a, int n)
{
    return ng_emu_mm512_rol_epi32(a, -n);
}

#define EMU_MASKED_INT(e)                                                                      \
    EMU_MASKED2(mm512, add, e)                                                                 \
    EMU_MASKED2(mm512, sub, e)
EMU_MASKED_INT(epi8)
EMU_MASKED_INT(epi16)
EMU_MASKED_INT(epi32)
EMU_MASKED_INT(epi64)
#define EMU_MASKED_WIDE(e)                                                                     \
    EMU_MASKED2(mm512, and, e)                                                                 \
    EMU_MASKED2(mm512, or, e)                                                                  \
    EMU_MASKED2(mm512, xor, e)                                                                 \
    EMU_MASKED2(mm512, andnot, e)                                                              \
    EMU_MASKED2(mm512, min, e)                                                                 \
    EMU_MASKED2(mm512, max, e)                                                                 \
    EMU_MASKED2(mm512, sllv, e)                                                                \
    EMU_MASKED2(mm512, srlv, e)                                                                \
    EMU_MASKED2(mm512, srav, e)                                                                \
    EMU_MASKED_SHIFT(slli, e)                                                                  \
    EMU_MASKED_SHIFT(srli, e)                                                                  \
    EMU_MASKED_SHIFT(srai, e)
EMU_MASKED_WIDE(epi32)
EMU_MASKED_WIDE(epi64)
EMU_MASKED_SHIFT(slli, epi16)
EMU_MASKED_SHIFT(srli, epi16)
EMU_MASKED_SHIFT(srai, epi16)
EMU_MASKED2(mm512, mullo, epi16)
EMU_MASKED2(mm512, mullo, epi32)
EMU_MASKED1(mm512, abs, epi32)

/* ---- Conversions. ---- */

/* The smaller number of lanes counts; lanes left over are 0. x is the lane. */
#define EMU_CONVERT(name, from, from_lane, to, to_lane, expr)                                  \
    static inline emu_##to##_si ng_emu_##name(emu_##from##_si a)                               \
    {                                                                                          \
        const emu_##from p = { .si = a };                                                      \
        emu_##to r = { .si = { 0 } };                                                          \
        for (unsigned i = 0; i < EMU_LANES(p.from_lane) && i < EMU_LANES(r.to_lane); i++) {    \
            const __typeof__(p.from_lane[0]) x = p.from_lane[i];                               \
            r.to_lane[i] = (__typeof__(r.to_lane[0]))(expr);                                   \
        }                                                                                      \
        return r.si;                                                                           \
    }
EMU_CONVERT(mm512_cvtepu8_epi16, mm256, u8, mm512, i16, x)
EMU_CONVERT(mm512_cvtepi8_epi16, mm256, i8, mm512, i16, x)
EMU_CONVERT(mm512_cvtepu8_epi32, mm, u8, mm512, i32, x)
EMU_CONVERT(mm512_cvtepi8_epi32, mm, i8, mm512, i32, x)
EMU_CONVERT(mm512_cvtepu8_epi64, mm, u8, mm512, i64, x)
EMU_CONVERT(mm512_cvtepi8_epi64, mm, i8, mm512, i64, x)
EMU_CONVERT(mm512_cvtepu16_epi32, mm256, u16, mm512, i32, x)
EMU_CONVERT(mm512_cvtepi16_epi32, mm256, i16, mm512, i32, x)
EMU_CONVERT(mm512_cvtepu32_epi64, mm256, u32, mm512, i64, x)
EMU_CONVERT(mm512_cvtepi32_epi64, mm256, i32, mm512, i64, x)
EMU_CONVERT(mm512_cvtepi16_epi8, mm512, i16, mm256, i8, x)
EMU_CONVERT(mm512_cvtepi32_epi8, mm512, i32, mm, i8, x)
EMU_CONVERT(mm512_cvtepi32_epi16, mm512, i32, mm256, i16, x)
EMU_CONVERT(mm512_cvtepi64_epi32, mm512, i64, mm256, i32, x)
EMU_CONVERT(mm256_cvtepi16_epi8, mm256, i16, mm, i8, x)
EMU_CONVERT(mm256_cvtepi32_epi8, mm256, i32, mm, i8, x)
EMU_CONVERT(mm256_cvtepi32_epi16, mm256, i32, mm, i16, x)
EMU_CONVERT(mm512_cvtsepi16_epi8, mm512, i16, mm256, i8, x<-128 ? -128 : x> 127 ? 127 : x)
EMU_CONVERT(mm512_cvtsepi32_epi8, mm512, i32, mm, i8, x<-128 ? -128 : x> 127 ? 127 : x)
EMU_CONVERT(mm512_cvtsepi32_epi16, mm512, i32, mm256, i16,
            x<-32768 ? -32768 : x> 32767 ? 32767 : x)
EMU_CONVERT(mm512_cvtusepi16_epi8, mm512, u16, mm256, u8, x > 255 ? 255 : x)
EMU_CONVERT(mm512_cvtusepi32_epi8, mm512, u32, mm, u8, x > 255 ? 255 : x)
EMU_CONVERT(mm512_cvtusepi32_epi16, mm512, u32, mm256, u16, x > 65535 ? 65535 : x)

#define EMU_MASKED_STORE(name, m, e_from, e_to, to)                                            \
    static inline void ng_emu_##m##_mask_##name##_storeu_##e_to(void *p, EMU_K(m, e_from) k,   \
                                                                emu_##m##_si a)                \
    {                                                                                          \
        ng_emu_##to##_mask_storeu_##e_to(p, k, ng_emu_##m##_##name##_##e_to(a));               \
    }
EMU_MASKED_STORE(cvtepi16, mm512, epi16, epi8, mm256)
EMU_MASKED_STORE(cvtepi32, mm512, epi32, epi8, mm)
EMU_MASKED_STORE(cvtepi32, mm512, epi32, epi16, mm256)

#define EMU_CONVERT_FP(name, from, part, in, to, out, op)                                      \
    static inline emu_##to ng_emu_mm512_##name(emu_##from a)                                   \
    {                                                                                          \
        emu_mm512 x = { .si = { 0 } }, r;                                                      \
        memcpy(&x, &a, sizeof a);                                                              \
        r.si = x.si;                                                                           \
        for (int h = 0; h < 2; h++)                                                            \
            r.out[h] = op(x.in[h]);                                                            \
        emu_##to part;                                                                         \
        memcpy(&part, &r, sizeof part);                                                        \
        return part;                                                                           \
    }
EMU_CONVERT_FP(cvtepi32_ps, mm512_si, all, half_si, mm512_ps, half_ps, _mm256_cvtepi32_ps)
EMU_CONVERT_FP(cvtps_epi32, mm512_ps, all, half_ps, mm512_si, half_si, _mm256_cvtps_epi32)
EMU_CONVERT_FP(cvttps_epi32, mm512_ps, all, half_ps, mm512_si, half_si, _mm256_cvttps_epi32)
EMU_CONVERT_FP(cvtps_pd, mm256_ps, all, quarter_ps, mm512_pd, half_pd, _mm256_cvtps_pd)
EMU_CONVERT_FP(cvtpd_ps, mm512_pd, low, half_pd, mm256_ps, quarter_ps, _mm256_cvtpd_ps)
EMU_CONVERT_FP(cvtepi32_pd, mm256_si, all, quarter_si, mm512_pd, half_pd, _mm256_cvtepi32_pd)
EMU_CONVERT_FP(cvtpd_epi32, mm512_pd, low, half_pd, mm256_si, quarter_si, _mm256_cvtpd_epi32)

/* ---- Parts. ---- */

#define EMU_PART(extract, insert, part, kind, m)                                               \
    static inline emu_##m##_##kind ng_emu_mm512_##extract(emu_mm512_##kind a, int at)          \
    {                                                                                          \
        const emu_mm512 x = { .kind = a };                                                     \
        return x.part[(unsigned)at % EMU_LANES(x.part)];                                       \
    }                                                                                          \
    static inline emu_mm512_##kind ng_emu_mm512_##insert(emu_mm512_##kind a,                   \
                                                         emu_##m##_##kind b, int at)           \
    {                                                                                          \
        emu_mm512 x = { .kind = a };                                                           \
        x.part[(unsigned)at % EMU_LANES(x.part)] = b;                                          \
        return x.kind;                                                                         \
    }
EMU_PART(extracti64x4_epi64, inserti64x4, half_si, si, mm256)
EMU_PART(extracti32x8_epi32, inserti32x8, half_si, si, mm256)
EMU_PART(extractf32x8_ps, insertf32x8, half_ps, ps, mm256)
EMU_PART(extractf64x4_pd, insertf64x4, half_pd, pd, mm256)
EMU_PART(extracti32x4_epi32, inserti32x4, quarter_si, si, mm)
EMU_PART(extractf32x4_ps, insertf32x4, quarter_ps, ps, mm)

#define EMU_BROADCAST(name, from, from_lane, kind, lane, parts)                                \
    static inline emu_mm512_##kind ng_emu_mm512_##name(emu_##from a)                           \
    {                                                                                          \
        emu_mm512 r;                                                                           \
        for (unsigned i = 0; i < 64 / sizeof a; i++)                                           \
            memcpy((char *)&r + i * sizeof a, &a, sizeof a);                                   \
        for (unsigned i = parts; i < EMU_LANES(r.lane); i++)                                   \
            r.lane[i] = r.lane[i % (parts)];                                                   \
        return r.kind;                                                                         \
    }
EMU_BROADCAST(broadcast_i32x4, mm_si, i32, si, i32, 4)
EMU_BROADCAST(broadcast_f32x4, mm_ps, f32, ps, f32, 4)
EMU_BROADCAST(broadcast_i64x4, mm256_si, i64, si, i64, 4)
EMU_BROADCAST(broadcastb_epi8, mm_si, i8, si, i8, 1)
EMU_BROADCAST(broadcastw_epi16, mm_si, i16, si, i16, 1)
EMU_BROADCAST(broadcastd_epi32, mm_si, i32, si, i32, 1)
EMU_BROADCAST(broadcastq_epi64, mm_si, i64, si, i64, 1)
EMU_BROADCAST(broadcastss_ps, mm_ps, f32, ps, f32, 1)

/* ---- Permutations. ---- */

EMU_HALVES2(unpacklo_epi8, si, _mm256_unpacklo_epi8)
EMU_HALVES2(unpackhi_epi8, si, _mm256_unpackhi_epi8)
EMU_HALVES2(unpacklo_epi16, si, _mm256_unpacklo_epi16)
EMU_HALVES2(unpackhi_epi16, si, _mm256_unpackhi_epi16)
EMU_HALVES2(unpacklo_epi32, si, _mm256_unpacklo_epi32)
EMU_HALVES2(unpackhi_epi32, si, _mm256_unpackhi_epi32)
EMU_HALVES2(unpacklo_epi64, si, _mm256_unpacklo_epi64)
EMU_HALVES2(unpackhi_epi64, si, _mm256_unpackhi_epi64)
EMU_HALVES2(unpacklo_ps, ps, _mm256_unpacklo_ps)
EMU_HALVES2(unpackhi_ps, ps, _mm256_unpackhi_ps)
EMU_HALVES2(packs_epi16, si, _mm256_packs_epi16)
EMU_HALVES2(packs_epi32, si, _mm256_packs_epi32)
EMU_HALVES2(packus_epi16, si, _mm256_packus_epi16)
EMU_HALVES2(packus_epi32, si, _mm256_packus_epi32)
EMU_HALVES2(shuffle_epi8, si, _mm256_shuffle_epi8)
EMU_MASKED2(mm512, shuffle, epi8)

/* The first operand is the index. */
EMU_LANES2(mm512, permutexvar_epi8, si, i8, ((void)y, q.i8[x & 63]))
EMU_LANES2(mm512, permutexvar_epi16, si, i16, ((void)y, q.i16[x & 31]))
EMU_LANES2(mm512, permutexvar_epi32, si, i32, ((void)y, q.i32[x & 15]))
EMU_LANES2(mm512, permutexvar_epi64, si, i64, ((void)y, q.i64[x & 7]))
EMU_LANES2(mm256, permutexvar_epi8, si, i8, ((void)y, q.i8[x & 31]))
EMU_LANES2(mm256, permutexvar_epi16, si, i16, ((void)y, q.i16[x & 15]))
EMU_MASKED2(mm512, permutexvar, epi8)
EMU_MASKED2(mm512, permutexvar, epi16)
EMU_MASKED2(mm512, permutexvar, epi32)
static inline __m512 ng_emu_mm512_permutexvar_ps(__m512i at, __m512 a)
{
    return (__m512)ng_emu_mm512_permutexvar_epi32(at, (__m512i)a);
}
static inline __m512d ng_emu_mm512_permutexvar_pd(__m512i at, __m512d a)
{
    return (__m512d)ng_emu_mm512_permutexvar_epi64(at, (__m512i)a);
}

/* The index's bit above the lane's number chooses b. */
#define EMU_PERMUTE2(suffix, type, lane)                                                       \
    static inline type ng_emu_mm512_permutex2var_##suffix(type a, __m512i at, type b)          \
    {                                                                                          \
        const emu_mm512 x = { .si = (__m512i)a }, y = { .si = (__m512i)b }, p = { .si = at };  \
        const unsigned n = EMU_LANES(p.lane);                                                  \
        emu_mm512 r;                                                                           \
        for (unsigned i = 0; i < n; i++)                                                       \
            r.lane[i] = (p.lane[i] & n ? y : x).lane[p.lane[i] & (n - 1)];                     \
        return (type)r.si;                                                                     \
    }
EMU_PERMUTE2(epi8, __m512i, u8)
EMU_PERMUTE2(epi16, __m512i, u16)
EMU_PERMUTE2(epi32, __m512i, u32)
EMU_PERMUTE2(epi64, __m512i, u64)
EMU_PERMUTE2(ps, __m512, u32)
EMU_PERMUTE2(pd, __m512d, u64)

static inline __m512i ng_emu_mm512_shuffle_epi32(__m512i a, int imm)
{
    const emu_mm512 x = { .si = a };
    emu_mm512 r;
    for (int i = 0; i < 16; i++)
        r.i32[i] = x.i32[(i & ~3) + (imm >> 2 * (i & 3) & 3)];
    return r.si;
}
/* In each quarter two of a, then two of b. */
static inline __m512 ng_emu_mm512_shuffle_ps(__m512 a, __m512 b, int imm)
{
    const emu_mm512 x = { .ps = a }, y = { .ps = b };
    emu_mm512 r;
    for (int i = 0; i < 16; i++)
        r.u32[i] = (i & 2 ? y : x).u32[(i & ~3) + (imm >> 2 * (i & 3) & 3)];
    return r.ps;
}
/* Quarters: two of a, then two of b. */
static inline __m512i ng_emu_mm512_shuffle_i32x4(__m512i a, __m512i b, int imm)
{
    const emu_mm512 x = { .si = a }, y = { .si = b };
    const emu_mm512 r = { .quarter_si = { x.quarter_si[imm & 3], x.quarter_si[imm >> 2 & 3],
                                          y.quarter_si[imm >> 4 & 3],
                                          y.quarter_si[imm >> 6 & 3] } };
    return r.si;
}
static inline __m512i ng_emu_mm512_shuffle_i64x2(__m512i a, __m512i b, int imm)
{
    return ng_emu_mm512_shuffle_i32x4(a, b, imm);
}
static inline __m512 ng_emu_mm512_shuffle_f32x4(__m512 a, __m512 b, int imm)
{
    return (__m512)ng_emu_mm512_shuffle_i32x4((__m512i)a, (__m512i)b, imm);
}
/* Of each 128 bits of a:b, a high, what lies `bytes` above the bottom. */
static inline __m512i ng_emu_mm512_alignr_epi8(__m512i a, __m512i b, int bytes)
{
    const emu_mm512 x = { .si = a }, y = { .si = b };
    emu_mm512 r;
    for (int i = 0; i < 64; i++) {
        const int at = (i & 15) + (bytes & 0xFF), lane = i & ~15;
        r.i8[i] = (int8_t)(at < 16 ? y.i8[lane + at] : at < 32 ? x.i8[lane + at - 16] : 0);
    }
    return r.si;
}
static inline __m512i ng_emu_mm512_alignr_epi32(__m512i a, __m512i b, int lanes)
{
    const emu_mm512 x = { .si = a }, y = { .si = b };
    emu_mm512 r;
    for (int i = 0; i < 16; i++) {
        const int at = i + (lanes & 15);
        r.i32[i] = at < 16 ? y.i32[at] : x.i32[at - 16];
    }
    return r.si;
}

/* ---- Reductions: no instruction, but gcc's and clang's order: halve, halve, until one. ----
 */

#define EMU_REDUCE(name, kind, lane, type, expr)                                               \
    static inline type ng_emu_mm512_reduce_##name(emu_mm512_##kind a)                          \
    {                                                                                          \
        emu_mm512 r = { .kind = a };                                                           \
        for (unsigned n = EMU_LANES(r.lane) / 2; n; n /= 2)                                    \
            for (unsigned i = 0; i < n; i++) {                                                 \
                const type x = r.lane[i + n], y = r.lane[i];                                   \
                r.lane[i] = (type)(expr);                                                      \
            }                                                                                  \
        return r.lane[0];                                                                      \
    }
EMU_REDUCE(add_ps, ps, f32, float, x + y)
EMU_REDUCE(min_ps, ps, f32, float, x < y ? x : y)
EMU_REDUCE(max_ps, ps, f32, float, x > y ? x : y)
EMU_REDUCE(add_pd, pd, f64, double, x + y)
EMU_REDUCE(min_pd, pd, f64, double, x < y ? x : y)
EMU_REDUCE(max_pd, pd, f64, double, x > y ? x : y)
EMU_REDUCE(add_epi32, si, i32, int32_t, (uint32_t)x + (uint32_t)y)
EMU_REDUCE(min_epi32, si, i32, int32_t, x < y ? x : y)
EMU_REDUCE(max_epi32, si, i32, int32_t, x > y ? x : y)
EMU_REDUCE(min_epu32, si, u32, uint32_t, x < y ? x : y)
EMU_REDUCE(max_epu32, si, u32, uint32_t, x > y ? x : y)
EMU_REDUCE(and_epi32, si, i32, int32_t, x &y)
EMU_REDUCE(or_epi32, si, i32, int32_t, x | y)
EMU_REDUCE(add_epi64, si, i64, int64_t, (uint64_t)x + (uint64_t)y)
EMU_REDUCE(min_epi64, si, i64, int64_t, x < y ? x : y)
EMU_REDUCE(max_epi64, si, i64, int64_t, x > y ? x : y)

/* ---- Dot products of integers (VNNI); sums wrap. ---- */

#define EMU_DOT(m)                                                                             \
    static inline emu_##m##_si ng_emu_##m##_dpbusd_epi32(emu_##m##_si acc, emu_##m##_si a,     \
                                                         emu_##m##_si b)                       \
    {                                                                                          \
        const emu_##m x = { .si = a }, y = { .si = b };                                        \
        emu_##m r = { .si = acc };                                                             \
        for (unsigned i = 0; i < EMU_LANES(r.u32); i++)                                        \
            r.u32[i] +=                                                                        \
                (uint32_t)(x.u8[4 * i] * y.i8[4 * i] + x.u8[4 * i + 1] * y.i8[4 * i + 1] +     \
                           x.u8[4 * i + 2] * y.i8[4 * i + 2] +                                 \
                           x.u8[4 * i + 3] * y.i8[4 * i + 3]);                                 \
        return r.si;                                                                           \
    }                                                                                          \
    static inline emu_##m##_si ng_emu_##m##_dpwssd_epi32(emu_##m##_si acc, emu_##m##_si a,     \
                                                         emu_##m##_si b)                       \
    {                                                                                          \
        const emu_##m x = { .si = a }, y = { .si = b };                                        \
        emu_##m r = { .si = acc };                                                             \
        for (unsigned i = 0; i < EMU_LANES(r.u32); i++)                                        \
            r.u32[i] += (uint32_t)(x.i16[2 * i] * y.i16[2 * i]) +                              \
                        (uint32_t)(x.i16[2 * i + 1] * y.i16[2 * i + 1]);                       \
        return r.si;                                                                           \
    }
EMU_DOT(mm512)
EMU_DOT(mm256)

/* ---- BF16 (AVX512_BF16). ---- */

/*
 * SDM, VDPBF16PS: "DAZ, FTZ and RNE", MXCSR neither consulted nor updated:
 *     srcdest.fp32[i] += make_fp32(src1.bf16[2i+1]) * make_fp32(src2.bf16[2i+1])
 *     srcdest.fp32[i] += make_fp32(src1.bf16[2i])   * make_fp32(src2.bf16[2i])
 * each a fused multiply-add. So it is AVX2's FMA under a control word of its own: flushed is
 * what is tiny after rounding to 24 bits. One asm, because a compiler moves arithmetic across
 * the change of that word, and swaps factors, which decides whose NaN comes out: that of src1,
 * then src2, then srcdest, the lower pair's before the upper's.
 */
static inline __m256 emu_dpbf16(__m256 acc, __m256i a, __m256i b)
{
    const __m256i upper = _mm256_set1_epi32((int32_t)0xFFFF0000u);
    const __m256i a1 = _mm256_and_si256(a, upper), b1 = _mm256_and_si256(b, upper);
    const __m256i a0 = _mm256_slli_epi32(a, 16), b0 = _mm256_slli_epi32(b, 16);
    const uint32_t own = 0x9FC0; /* FTZ, DAZ, nearest, exceptions masked */
    uint32_t saved;
    __asm__("vstmxcsr %[saved]\n\t"
            "vldmxcsr %[own]\n\t"
            "vfmadd231ps %[b1], %[a1], %[acc]\n\t"
            "vfmadd231ps %[b0], %[a0], %[acc]\n\t"
            "vldmxcsr %[saved]"
            : [acc] "+&x"(acc), [saved] "=&m"(saved)
            : [own] "m"(own), [a1] "x"(a1), [b1] "x"(b1), [a0] "x"(a0), [b0] "x"(b0));
    return acc;
}
static inline __m512 ng_emu_mm512_dpbf16_ps(__m512 acc, __m512bh a, __m512bh b)
{
    emu_mm512 r = { .ps = acc };
    const emu_mm512 x = { .si = (__m512i)a }, y = { .si = (__m512i)b };
    for (int h = 0; h < 2; h++)
        r.half_ps[h] = emu_dpbf16(r.half_ps[h], x.half_si[h], y.half_si[h]);
    return r.ps;
}
/* Its masked forms are not here: GCC 12 takes their mask for one of 8 lanes. */

/* SDM, VCVTNEPS2BF16: nearest even, subnormal operands are zeros, MXCSR is not consulted. */
static inline __m256bh ng_emu_mm512_cvtneps_pbh(__m512 a)
{
    const emu_mm512 x = { .ps = a };
    emu_mm256 r;
    for (int i = 0; i < 16; i++) {
        const uint32_t u = x.u32[i], mag = u & 0x7FFFFFFFu;
        if (mag > 0x7F800000u)
            r.u16[i] = (uint16_t)(u >> 16 | 0x40);
        else if (mag < 0x00800000u)
            r.u16[i] = (uint16_t)(u >> 16 & 0x8000);
        else
            r.u16[i] = (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
    }
    return (__m256bh)r.si;
}

/* SDM, VCVTNE2PS2BF16: the same, b's lanes first. */
static inline __m512bh ng_emu_mm512_cvtne2ps_pbh(__m512 a, __m512 b)
{
    emu_mm512 r;
    r.half_si[0] = (__m256i)ng_emu_mm512_cvtneps_pbh(b);
    r.half_si[1] = (__m256i)ng_emu_mm512_cvtneps_pbh(a);
    return (__m512bh)r.si;
}

/* ---- Exponents. ---- */

/* MXCSR: subnormal operands are zeros. */
static inline int emu_daz(void)
{
    return (_mm_getcsr() & 0x40) != 0;
}

/* The significand in [1, 2) of a finite x != 0, and its exponent. */
static inline double emu_frexp(double x, int *exp)
{
    emu_mm r = { .f64 = { x, 0 } };
    int e = (int)(r.u64[0] >> 52 & 0x7FF) - 1023;
    const uint64_t field = r.u64[0] & 0xFFFFFFFFFFFFFu, sign = r.u64[0] & (uint64_t)1 << 63;
    uint64_t sig = field | (uint64_t)1 << 52;
    if (e == -1023) {
        const int up = __builtin_clzll(field) - 11;
        sig = field << up;
        e = -1022 - up;
    }
    *exp = e;
    r.u64[0] = sign | (uint64_t)1023 << 52 | (sig & 0xFFFFFFFFFFFFFu);
    return r.f64[0];
}
/* 2^e for a normal number. */
static inline double emu_exp2(int e)
{
    const emu_mm r = { .u64 = { (uint64_t)(e + 1023) << 52, 0 } };
    return r.f64[0];
}

/* SDM, VGETEXP: floor(log2 |x|) as a number; zero gives -Inf, Inf gives +Inf. */
static inline double emu_getexp(double x, int subnormal)
{
    if (x != x)
        return x + x;
    if (x == 0 || (subnormal && emu_daz()))
        return -__builtin_inf();
    if (x - x != 0)
        return __builtin_inf();
    int e;
    (void)emu_frexp(x, &e);
    return e;
}
static inline __m512 ng_emu_mm512_getexp_ps(__m512 a)
{
    const emu_mm512 x = { .ps = a };
    emu_mm512 r;
    for (int i = 0; i < 16; i++)
        r.f32[i] = (float)emu_getexp((double)x.f32[i], !(x.u32[i] & 0x7F800000u));
    return r.ps;
}
static inline __m512d ng_emu_mm512_getexp_pd(__m512d a)
{
    const emu_mm512 x = { .pd = a };
    emu_mm512 r;
    for (int i = 0; i < 8; i++)
        r.f64[i] = emu_getexp(x.f64[i], !(x.u64[i] & (uint64_t)0x7FF << 52));
    return r.pd;
}

/*
 * SDM, VSCALEF: x * 2^floor(y), rounded once by MXCSR. A quiet NaN x with an infinite y is that
 * infinity, or +0. The result here is a double that needs no more than `least` as its exponent,
 * so that rounding it further, to FP32, is the only rounding.
 */
static inline double emu_scalef(double x, double y, int quiet, int least)
{
    if (x != x && !(quiet && y - y != 0 && y == y))
        return x + x;
    if (y != y)
        return y + y;
    if (x != x)
        return y > 0 ? y : 0.0;
    if (y - y != 0) {
        if (y > 0 ? x == 0 : x - x != 0)
            return __builtin_copysign(__builtin_nan(""), -1.0);
        return __builtin_copysign(y > 0 ? __builtin_inf() : 0.0, x);
    }
    if (x == 0 || x - x != 0)
        return x;
    int e;
    const double sig = emu_frexp(x, &e);
    const double up = y > 5000 ? 5000 : y < -5000 ? -5000 : y;
    int n = (int)up;
    n -= (double)n > up;
    e += n;
    if (e > 1023) /* overflow, as the rounding mode has it */
        return sig * emu_exp2(1023) * 2.0;
    if (e >= least)
        return sig * emu_exp2(e);
    return sig * emu_exp2(least) * emu_exp2(e < least - 100 ? -100 : e - least);
}
static inline __m512 ng_emu_mm512_scalef_ps(__m512 a, __m512 b)
{
    const emu_mm512 x = { .ps = a }, y = { .ps = b };
    emu_mm512 r;
    for (int i = 0; i < 16; i++) /* DAZ acts where a lane becomes a double */
        r.f32[i] = (float)emu_scalef((double)x.f32[i], (double)y.f32[i],
                                     (x.u32[i] & 0x400000u) != 0, -1000);
    return r.ps;
}
static inline __m512d ng_emu_mm512_scalef_pd(__m512d a, __m512d b)
{
    const emu_mm512 x = { .pd = a }, y = { .pd = b };
    const int daz = emu_daz();
    emu_mm512 r;
    for (int i = 0; i < 8; i++) {
        double p = x.f64[i], q = y.f64[i];
        if (daz && !(x.u64[i] & (uint64_t)0x7FF << 52))
            p = __builtin_copysign(0.0, p);
        if (daz && !(y.u64[i] & (uint64_t)0x7FF << 52))
            q = 0;
        r.f64[i] = emu_scalef(p, q, (x.u64[i] >> 51 & 1) != 0, -1022);
    }
    return r.pd;
}

/* SDM, VRNDSCALE: to a multiple of 2^-(imm >> 4), by imm's two low bits or MXCSR. */
static inline double emu_roundscale(double x, int imm, double integers)
{
    if (!(__builtin_fabs(x) < integers)) /* a multiple already, Inf, or NaN, which gets quiet */
        return x != x ? x + x : x;
    const __m128d scaled = _mm_set_sd(x * emu_exp2(imm >> 4 & 15));
    __m128d r;
    switch (imm & 7) {
    case 0: r = _mm_round_pd(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); break;
    case 1: r = _mm_round_pd(scaled, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); break;
    case 2: r = _mm_round_pd(scaled, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); break;
    case 3: r = _mm_round_pd(scaled, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); break;
    default: r = _mm_round_pd(scaled, _MM_FROUND_CUR_DIRECTION | _MM_FROUND_NO_EXC); break;
    }
    return _mm_cvtsd_f64(r) * emu_exp2(-(imm >> 4 & 15));
}
static inline __m512 ng_emu_mm512_roundscale_ps(__m512 a, int imm)
{
    const emu_mm512 x = { .ps = a };
    emu_mm512 r;
    for (int i = 0; i < 16; i++)
        r.f32[i] = (float)emu_roundscale((double)x.f32[i], imm, 0x1p23);
    return r.ps;
}
static inline __m512d ng_emu_mm512_roundscale_pd(__m512d a, int imm)
{
    const emu_mm512 x = { .pd = a };
    emu_mm512 r;
    for (int i = 0; i < 8; i++)
        r.f64[i] = emu_roundscale(x.f64[i], imm, 0x1p52);
    return r.pd;
}
/* SDM, EVEX.b with registers: rounding by `mode`'s two low bits, whatever MXCSR says. */
static inline double emu_add_toward(double x, double y, int mode)
{
    const unsigned csr = _mm_getcsr(), way = (unsigned)mode & 3;
    _mm_setcsr((csr & ~0x6000u) | way << 13 | 0x1F80u);
    __asm__ volatile("" : "+x"(x), "+x"(y)); /* the sum stays between the control words */
    double sum = x + y;
    __asm__ volatile("" : "+x"(sum));
    _mm_setcsr(csr);
    return sum;
}
static inline __m512d ng_emu_mm512_add_round_pd(__m512d a, __m512d b, int mode)
{
    const emu_mm512 x = { .pd = a }, y = { .pd = b };
    emu_mm512 r;
    for (int i = 0; i < 8; i++)
        r.f64[i] = emu_add_toward(x.f64[i], y.f64[i], mode);
    return r.pd;
}
static inline float emu_float_toward(int32_t x, int mode)
{
    const unsigned csr = _mm_getcsr(), way = (unsigned)mode & 3;
    _mm_setcsr((csr & ~0x6000u) | way << 13 | 0x1F80u);
    __asm__ volatile("" : "+r"(x)); /* the conversion stays between the control words */
    float f = (float)x;
    __asm__ volatile("" : "+x"(f));
    _mm_setcsr(csr);
    return f;
}
static inline __m512 ng_emu_mm512_cvt_roundepi32_ps(__m512i a, int mode)
{
    const emu_mm512 x = { .si = a };
    emu_mm512 r;
    for (int i = 0; i < 16; i++)
        r.f32[i] = emu_float_toward(x.i32[i], mode);
    return r.ps;
}
EMU_MASKED1(mm512, getexp, ps)
EMU_MASKED1(mm512, getexp, pd)
EMU_MASKED2(mm512, scalef, ps)
EMU_MASKED2(mm512, scalef, pd)

#include "avx512_names.h"

#endif
