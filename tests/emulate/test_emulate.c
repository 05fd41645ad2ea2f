/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every intrinsic of avx512.h against its meaning for one lane, in scalar C, on random and
 * special operands. Compiled twice: with the emulation, and with AVX-512's own flags, where the
 * CPU's instructions are held to the same meanings. So emulation and CPU are compared without
 * meeting. Results are equal bit by bit; of floating-point arithmetic any NaN equals any other,
 * because a compiler may swap the operands that decide which NaN comes out.
 */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../kernels/intrin.h"

enum {
    ROUNDS = 300
};

#ifdef NG_EMULATE_AVX512
static const bool ng_test_is_emulation = true;
#else
static const bool ng_test_is_emulation = false;
#endif

extern int ng_test_intrinsics(void);

/* A register as plain arrays. */
union reg {
    uint8_t u8[64];
    int8_t i8[64];
    uint16_t u16[32];
    int16_t i16[32];
    uint32_t u32[16];
    int32_t i32[16];
    uint64_t u64[8];
    int64_t i64[8];
    float f32[16];
    double f64[8];
} __attribute__((aligned(64)));

/* The operands of the row under test, its mask, what came and what should have. */
static union reg a, b, c, src, got, want;
static uint64_t k;
static int failures, intrinsics;

/* ---- Operands. ---- */

static uint64_t state = 0x243F6A8885A308D3u;
static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545F4914F6CDD1Du;
}

static uint32_t draw_f32(void)
{
    static const uint32_t special[] = {
        0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x3F800000, 0x3F7FFFFF,
        0x3F000000, 0x3FC00000, 0x40200000, 0x40600000, 0x4B000000, 0x4AFFFFFF, 0x4F000000,
        0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7FA00001, 0x7FC12345, 0x43150000, 0xFF800000,
    };
    const uint64_t r = draw();
    const uint32_t bits = (uint32_t)(r >> 32);
    switch (r & 3) {
    case 0: return special[(r >> 2 & 0xFFFF) % (sizeof special / 4)] ^ (bits & 0x80000000u);
    case 1: return bits;
    case 2: return (bits & 0x83FFFFFFu) | 0x3C000000u; /* near 1, where sums cancel */
    default: return (bits & 0x80FFFFFFu) | (bits & 0x0F000000u) >> 1; /* near the bottom */
    }
}

static uint64_t draw_f64(void)
{
    static const uint64_t special[] = {
        0x0000000000000000, 0x0000000000000001, 0x000FFFFFFFFFFFFF, 0x0010000000000000,
        0x3FF0000000000000, 0x3FE0000000000000, 0x3FF8000000000000, 0x3FEFFFFFFFFFFFFF,
        0x36A0000000000000, 0x3690000000000000, 0x3690000000000001, 0x380FFFFFFFFFFFFF,
        0x47EFFFFFEFFFFFFF, 0x47EFFFFFF0000000, 0x4330000000000000, 0x7FEFFFFFFFFFFFFF,
        0x7FF0000000000000, 0x7FF8000000000000, 0x7FF4000000000001, 0x4090000000000000,
    };
    const uint64_t r = draw(), bits = draw(), sign = bits & (uint64_t)1 << 63;
    switch (r & 3) {
    case 0: return special[(r >> 2 & 0xFFFF) % (sizeof special / 8)] ^ sign;
    case 1: return bits;
    case 2: return (bits & 0x807FFFFFFFFFFFFFu) | 0x3F80000000000000u;
    default: return (bits & 0x801FFFFFFFFFFFFFu) | 0x3600000000000000u; /* FP32's bottom */
    }
}

static uint64_t draw_int(unsigned bytes)
{
    const uint64_t r = draw(), top = (uint64_t)1 << (8 * bytes - 1);
    switch (r & 7) {
    case 0: return 0;
    case 1: return ~(uint64_t)0;
    case 2: return top;
    case 3: return top - 1;
    case 4: return r >> 3 & 0x7F;
    default: return draw();
    }
}

enum kind {
    KIND_i8 = 1,
    KIND_u8 = 1,
    KIND_i16 = 2,
    KIND_u16 = 2,
    KIND_i32 = 4,
    KIND_u32 = 4,
    KIND_i64 = 8,
    KIND_u64 = 8,
    KIND_f32 = 32,
    KIND_f64 = 64
};

static void fill(union reg *r, enum kind kind)
{
    for (unsigned i = 0; i < 64; i++)
        if (kind == KIND_f32 && i < 16)
            r->u32[i] = draw_f32();
        else if (kind == KIND_f64 && i < 8)
            r->u64[i] = draw_f64();
        else if (kind == KIND_u8)
            r->u8[i] = (uint8_t)draw_int(1);
        else if (kind == KIND_u16 && i < 32)
            r->u16[i] = (uint16_t)draw_int(2);
        else if (kind == KIND_u32 && i < 16)
            r->u32[i] = (uint32_t)draw_int(4);
        else if (kind == KIND_u64 && i < 8)
            r->u64[i] = draw_int(8);
    if (draw() % 4 == 0 && r != &a) /* equal operands, for comparisons */
        *r = a;
}

static void operands(enum kind kind)
{
    fill(&a, kind);
    fill(&b, kind);
    fill(&c, kind);
    fill(&src, kind);
    const uint64_t r = draw();
    k = r % 8 == 0 ? 0 : r % 8 == 1 ? ~(uint64_t)0 : r % 8 == 2 ? (uint64_t)1 << (r >> 58) : r;
    memset(&got, 0, sizeof got);
    memset(&want, 0, sizeof want);
}

/* ---- The verdict. ---- */

static void fail(const char *name, unsigned at, const union reg *x, const union reg *y)
{
    if (failures++ < 40)
        printf("FAIL: %s, bytes %u: got %016llx want %016llx\n", name, at * 8,
               (unsigned long long)x->u64[at], (unsigned long long)y->u64[at]);
}

static void check(const char *name, enum kind kind)
{
    if (kind == KIND_f32)
        for (unsigned i = 0; i < 16; i++)
            if ((got.u32[i] & 0x7FFFFFFFu) > 0x7F800000u &&
                (want.u32[i] & 0x7FFFFFFFu) > 0x7F800000u)
                got.u32[i] = want.u32[i];
    if (kind == KIND_f64)
        for (unsigned i = 0; i < 8; i++)
            if (isnan(got.f64[i]) && isnan(want.f64[i]))
                got.u64[i] = want.u64[i];
    for (unsigned i = 0; i < 8; i++)
        if (got.u64[i] != want.u64[i]) {
            fail(name, i, &got, &want);
            return;
        }
}

/* ---- Rows. In a row's expression x, y, z are lane i of a, b, c. ---- */

#define T_mm512_i8  __m512i
#define T_mm512_u8  __m512i
#define T_mm512_i16 __m512i
#define T_mm512_u16 __m512i
#define T_mm512_i32 __m512i
#define T_mm512_u32 __m512i
#define T_mm512_i64 __m512i
#define T_mm512_u64 __m512i
#define T_mm512_f32 __m512
#define T_mm512_f64 __m512d
#define T_mm256_i8  __m256i
#define T_mm256_u8  __m256i
#define T_mm256_i16 __m256i
#define T_mm256_u16 __m256i
#define T_mm256_i32 __m256i
#define T_mm256_u32 __m256i
#define T_mm256_i64 __m256i
#define T_mm256_u64 __m256i
#define T_mm256_f32 __m256
#define T_mm256_f64 __m256d
#define T_mm_i8     __m128i
#define T_mm_u8     __m128i
#define T_mm_i16    __m128i
#define T_mm_u16    __m128i
#define T_mm_i32    __m128i
#define T_mm_u32    __m128i
#define T_mm_i64    __m128i
#define T_mm_u64    __m128i
#define T_mm_f32    __m128
#define T_mm_f64    __m128d

#define K_mm512_i8  __mmask64
#define K_mm512_i16 __mmask32
#define K_mm512_i32 __mmask16
#define K_mm512_i64 __mmask8
#define K_mm512_u8  __mmask64
#define K_mm512_u16 __mmask32
#define K_mm512_u32 __mmask16
#define K_mm512_u64 __mmask8
#define K_mm512_f32 __mmask16
#define K_mm512_f64 __mmask8
#define K_mm256_i8  __mmask32
#define K_mm256_i16 __mmask16
#define K_mm256_i32 __mmask8
#define K_mm256_i64 __mmask8
#define K_mm256_u8  __mmask32
#define K_mm256_u16 __mmask16
#define K_mm256_u32 __mmask8
#define K_mm256_u64 __mmask8
#define K_mm256_f32 __mmask8
#define K_mm256_f64 __mmask8
#define K_mm_i8     __mmask16
#define K_mm_i16    __mmask8
#define K_mm_i32    __mmask8
#define K_mm_i64    __mmask8
#define K_mm_u8     __mmask16
#define K_mm_u16    __mmask8
#define K_mm_u32    __mmask8
#define K_mm_u64    __mmask8
#define K_mm_f32    __mmask8
#define K_mm_f64    __mmask8

#define LANES(r, lane) (sizeof(r) / sizeof want.lane[0])
#define TEXT2(x)       #x
#define TEXT(x)        TEXT2(x)
#define AS(m, lane, r) (*(const T_##m##_##lane *)&(r)) /* vector types may alias */

/* One intrinsic: operands drawn as `in`; the lanes `out` of what it returns are expr each. */
#define ROW(name, in, out, call, expr)                                                         \
    intrinsics++;                                                                              \
    for (int round_ = 0; round_ < ROUNDS; round_++) {                                          \
        operands(KIND_##in);                                                                   \
        const __typeof__(call) r_ = call;                                                      \
        memcpy(&got, &r_, sizeof r_);                                                          \
        for (unsigned i = 0; i < LANES(r_, out); i++) {                                        \
            const unsigned j_ = i % (unsigned)LANES(a, in);                                    \
            const __typeof__(want.in[0]) x = a.in[j_], y = b.in[j_], z = c.in[j_];             \
            (void)x, (void)y, (void)z;                                                         \
            want.out[i] = (__typeof__(want.out[0]))(expr);                                     \
        }                                                                                      \
        check(TEXT(name), KIND_##out);                                                         \
    }
#define ROW1(m, op, in, expr) ROW(_##m##_##op, in, in, _##m##_##op(AS(m, in, a)), expr)
#define ROW2(m, op, in, expr)                                                                  \
    ROW(_##m##_##op, in, in, _##m##_##op(AS(m, in, a), AS(m, in, b)), expr)
#define ROW3(m, op, in, expr)                                                                  \
    ROW(_##m##_##op, in, in, _##m##_##op(AS(m, in, a), AS(m, in, b), AS(m, in, c)), expr)
#define ROWN(m, op, n, in, expr) ROW(_##m##_##op, in, in, _##m##_##op(AS(m, in, a), n), expr)

/* With the masked forms. */
#define BIT(mask) ((mask) >> i & 1)
#define MASKED1(m, op, in, expr)                                                               \
    ROW1(m, op, in, expr)                                                                      \
    ROW(_##m##_mask_##op, in, in,                                                              \
        _##m##_mask_##op(AS(m, in, src), (K_##m##_##in)k, AS(m, in, a)),                       \
        BIT(k) ? (__typeof__(x))(expr) : src.in[i])                                            \
    ROW(_##m##_maskz_##op, in, in, _##m##_maskz_##op((K_##m##_##in)k, AS(m, in, a)),           \
        BIT(k) ? (__typeof__(x))(expr) : 0)
#define MASKED2(m, op, in, expr)                                                               \
    ROW2(m, op, in, expr)                                                                      \
    ROW(_##m##_mask_##op, in, in,                                                              \
        _##m##_mask_##op(AS(m, in, src), (K_##m##_##in)k, AS(m, in, a), AS(m, in, b)),         \
        BIT(k) ? (__typeof__(x))(expr) : src.in[i])                                            \
    ROW(_##m##_maskz_##op, in, in,                                                             \
        _##m##_maskz_##op((K_##m##_##in)k, AS(m, in, a), AS(m, in, b)),                        \
        BIT(k) ? (__typeof__(x))(expr) : 0)
#define MASKED_FMA(op, in, expr)                                                               \
    ROW3(mm512, op, in, expr)                                                                  \
    ROW(_mm512_mask_##op, in, in,                                                              \
        _mm512_mask_##op(AS(mm512, in, a), (K_mm512_##in)k, AS(mm512, in, b),                  \
                         AS(mm512, in, c)),                                                    \
        BIT(k) ? (expr) : x)                                                                   \
    ROW(_mm512_mask3_##op, in, in,                                                             \
        _mm512_mask3_##op(AS(mm512, in, a), AS(mm512, in, b), AS(mm512, in, c),                \
                          (K_mm512_##in)k),                                                    \
        BIT(k) ? (expr) : z)                                                                   \
    ROW(_mm512_maskz_##op, in, in,                                                             \
        _mm512_maskz_##op((K_mm512_##in)k, AS(mm512, in, a), AS(mm512, in, b),                 \
                          AS(mm512, in, c)),                                                   \
        BIT(k) ? (expr) : 0)
#define SHIFTN(op, n, in, expr)                                                                \
    ROWN(mm512, op, n, in, expr)                                                               \
    ROW(_mm512_mask_##op, in, in,                                                              \
        _mm512_mask_##op(AS(mm512, in, src), (K_mm512_##in)k, AS(mm512, in, a), n),            \
        BIT(k) ? (__typeof__(x))(expr) : src.in[i])                                            \
    ROW(_mm512_maskz_##op, in, in, _mm512_maskz_##op((K_mm512_##in)k, AS(mm512, in, a), n),    \
        BIT(k) ? (__typeof__(x))(expr) : 0)

/* A mask from lanes. */
#define ROWK(name, m, in, call, expr)                                                          \
    intrinsics++;                                                                              \
    for (int round_ = 0; round_ < ROUNDS; round_++) {                                          \
        operands(KIND_##in);                                                                   \
        got.u64[0] = call;                                                                     \
        for (unsigned i = 0; i < LANES(T_##m##_##in, in); i++) {                               \
            const __typeof__(want.in[0]) x = a.in[i], y = b.in[i];                             \
            (void)x, (void)y;                                                                  \
            want.u64[0] |= (uint64_t)((expr) != 0) << i;                                       \
        }                                                                                      \
        check(TEXT(name), KIND_u64);                                                           \
    }

/* ---- Floating point. ---- */

static void floating(void)
{
#define FP(s, in, fma, root)                                                                   \
    MASKED2(mm512, add_##s, in, x + y)                                                         \
    MASKED2(mm512, sub_##s, in, x - y)                                                         \
    MASKED2(mm512, mul_##s, in, x *y)                                                          \
    MASKED2(mm512, min_##s, in, x < y ? x : y)                                                 \
    MASKED2(mm512, max_##s, in, x > y ? x : y)                                                 \
    ROW2(mm512, div_##s, in, x / y)                                                            \
    ROW1(mm512, sqrt_##s, in, root(x))                                                         \
    MASKED_FMA(fmadd_##s, in, fma(x, y, z))                                                    \
    MASKED_FMA(fmsub_##s, in, fma(x, y, -z))                                                   \
    MASKED_FMA(fnmadd_##s, in, fma(-x, y, z))                                                  \
    MASKED_FMA(fnmsub_##s, in, fma(-x, y, -z))
    FP(ps, f32, fmaf, sqrtf)
    FP(pd, f64, fma, sqrt)
#define SIGNALS(r) (isnan((r).f32[i]) && !((r).u32[i] >> 22 & 1))
#define RANGE(imm, expr)                                                                       \
    ROW(_mm512_range_ps, f32, f32, _mm512_range_ps(AS(mm512, f32, a), AS(mm512, f32, b), imm), \
        SIGNALS(a) || SIGNALS(b) ? NAN : copysignf(expr, x))
    RANGE(2, fminf(fabsf(x), fabsf(y)))
    RANGE(3, fmaxf(fabsf(x), fabsf(y)))
    ROW(_mm512_abs_ps, f32, u32, _mm512_abs_ps(AS(mm512, f32, a)), a.u32[i] & 0x7FFFFFFFu)
#define BITS(op, expr)                                                                         \
    ROW(_mm512_##op, f32, u32, _mm512_##op(AS(mm512, f32, a), AS(mm512, f32, b)), expr)
    BITS(and_ps, a.u32[i] & b.u32[i])
    BITS(or_ps, a.u32[i] | b.u32[i])
    BITS(xor_ps, a.u32[i] ^ b.u32[i])
    BITS(andnot_ps, ~a.u32[i] & b.u32[i])
}

/* ---- Comparisons. ---- */

static bool compare_fp(double x, double y, int imm)
{
    const bool lt = isless(x, y), eq = !islessgreater(x, y) && !isunordered(x, y),
               un = isunordered(x, y), gt = isgreater(x, y);
    switch (imm & 15) {
    case _CMP_EQ_OQ: return eq;
    case _CMP_LT_OS: return lt;
    case _CMP_LE_OS: return lt || eq;
    case _CMP_UNORD_Q: return un;
    case _CMP_NEQ_UQ: return !eq;
    case _CMP_NLT_US: return gt || eq || un;
    case _CMP_NLE_US: return gt || un;
    case _CMP_ORD_Q: return !un;
    case _CMP_EQ_UQ: return eq || un;
    case _CMP_NGE_US: return lt || un;
    case _CMP_NGT_US: return lt || eq || un;
    case _CMP_FALSE_OQ: return false;
    case _CMP_NEQ_OQ: return lt || gt;
    case _CMP_GE_OS: return gt || eq;
    case _CMP_GT_OS: return gt;
    default: return true;
    }
}

static void comparisons_fp(void){
#define CMP(m, s, in, n)                                                                       \
    ROWK(_##m##_cmp_##s##_mask, m, in, _##m##_cmp_##s##_mask(AS(m, in, a), AS(m, in, b), n),   \
         compare_fp((double)x, (double)y, n))                                                  \
    ROWK(_##m##_mask_cmp_##s##_mask, m, in,                                                    \
         _##m##_mask_cmp_##s##_mask((K_##m##_##in)k, AS(m, in, a), AS(m, in, b), n),           \
         BIT(k) && compare_fp((double)x, (double)y, n))
#define CMP_ALL(n) CMP(mm512, ps, f32, n) CMP(mm512, pd, f64, n)
#define CMP_8(n)                                                                               \
    CMP_ALL(n)                                                                                 \
    CMP_ALL(n + 1)                                                                             \
    CMP_ALL(n + 2) CMP_ALL(n + 3) CMP_ALL(n + 4) CMP_ALL(n + 5) CMP_ALL(n + 6) CMP_ALL(n + 7)
    CMP_8(0) CMP_8(8) CMP_8(16) CMP_8(24) CMP(mm256, ps, f32, _CMP_LT_OQ)
        CMP(mm256, ps, f32, _CMP_UNORD_Q) CMP(mm256, pd, f64, _CMP_LT_OQ)
            CMP(mm256, pd, f64, _CMP_UNORD_Q)
}

#define COMPARE(m, s, in)                                                                      \
    COMPARE_BY(m, eq, s, in, x == y)                                                           \
    COMPARE_BY(m, neq, s, in, x != y)                                                          \
    COMPARE_BY(m, lt, s, in, x < y)                                                            \
    COMPARE_BY(m, le, s, in, x <= y)                                                           \
    COMPARE_BY(m, gt, s, in, x > y)                                                            \
    COMPARE_BY(m, ge, s, in, x >= y)                                                           \
    COMPARE_TO(m, s, in, 0, x == y)                                                            \
    COMPARE_TO(m, s, in, 1, x < y)                                                             \
    COMPARE_TO(m, s, in, 2, x <= y)                                                            \
    COMPARE_TO(m, s, in, 3, 0)                                                                 \
    COMPARE_TO(m, s, in, 4, x != y)                                                            \
    COMPARE_TO(m, s, in, 5, x >= y)                                                            \
    COMPARE_TO(m, s, in, 6, x > y)                                                             \
    COMPARE_TO(m, s, in, 7, 1)
#define COMPARE_BY(m, rel, s, in, expr)                                                        \
    ROWK(_##m##_cmp##rel##_##s##_mask, m, in,                                                  \
         _##m##_cmp##rel##_##s##_mask(AS(m, in, a), AS(m, in, b)), expr)                       \
    ROWK(_##m##_mask_cmp##rel##_##s##_mask, m, in,                                             \
         _##m##_mask_cmp##rel##_##s##_mask((K_##m##_##in)k, AS(m, in, a), AS(m, in, b)),       \
         BIT(k) && (expr))
#define COMPARE_TO(m, s, in, n, expr)                                                          \
    ROWK(_##m##_cmp_##s##_mask, m, in, _##m##_cmp_##s##_mask(AS(m, in, a), AS(m, in, b), n),   \
         expr)
#define COMPARE_WIDTH(name, m)                                                                 \
    static void name(void)                                                                     \
    {                                                                                          \
        COMPARE(m, epi8, i8)                                                                   \
        COMPARE(m, epu8, u8)                                                                   \
        COMPARE(m, epi16, i16)                                                                 \
        COMPARE(m, epu16, u16)                                                                 \
        COMPARE(m, epi32, i32)                                                                 \
        COMPARE(m, epu32, u32)                                                                 \
        COMPARE(m, epi64, i64)                                                                 \
        COMPARE(m, epu64, u64)                                                                 \
    }
COMPARE_WIDTH(comparisons_512, mm512) COMPARE_WIDTH(comparisons_256, mm256)
    COMPARE_WIDTH(comparisons_128, mm)

        static void tests_and_movm(void)
{
#define TESTS(s, in)                                                                           \
    ROWK(_mm512_test_##s##_mask, mm512, in,                                                    \
         _mm512_test_##s##_mask(AS(mm512, in, a), AS(mm512, in, b)), x &y)                     \
    ROWK(_mm512_testn_##s##_mask, mm512, in,                                                   \
         _mm512_testn_##s##_mask(AS(mm512, in, a), AS(mm512, in, b)), !(x & y))                \
    ROWK(_mm512_mask_test_##s##_mask, mm512, in,                                               \
         _mm512_mask_test_##s##_mask((K_mm512_##in)k, AS(mm512, in, a), AS(mm512, in, b)),     \
         BIT(k) && (x & y))                                                                    \
    ROWK(_mm512_mask_testn_##s##_mask, mm512, in,                                              \
         _mm512_mask_testn_##s##_mask((K_mm512_##in)k, AS(mm512, in, a), AS(mm512, in, b)),    \
         BIT(k) && !(x & y))                                                                   \
    ROWK(_mm512_mov##s##_mask, mm512, in, _mm512_mov##s##_mask(AS(mm512, in, a)), x < 0)       \
    ROW(_mm512_movm_##s, in, in, _mm512_movm_##s((K_mm512_##in)k), BIT(k) ? -1 : 0)
    TESTS(epi8, i8)
    TESTS(epi16, i16)
    TESTS(epi32, i32)
    TESTS(epi64, i64)
}

/* ---- Integers. ---- */

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}
/* Arithmetic shift down by division towards -Inf; n is cut to the width. */
static int64_t shift_down(int64_t x, uint64_t n, unsigned width)
{
    for (uint64_t s = n < width ? n : width; s; s--)
        x = (x - (x & 1)) / 2;
    return x;
}

static void integers(void)
{
#define SUMS(s, u)                                                                             \
    MASKED2(mm512, add_##s, u, x + y)                                                          \
    MASKED2(mm512, sub_##s, u, x - y)
    SUMS(epi8, u8)
    SUMS(epi16, u16)
    SUMS(epi32, u32)
    SUMS(epi64, u64)
    ROW2(mm512, adds_epu8, u8, clamp(x + y, 0, 255))
    ROW2(mm512, subs_epu8, u8, clamp(x - y, 0, 255))
    ROW2(mm512, subs_epu16, u16, clamp(x - y, 0, 65535))
    ROW2(mm512, avg_epu16, u16, (x + y + 1) >> 1)
    ROW2(mm512, adds_epi16, i16, clamp(x + y, -32768, 32767))
    ROW2(mm512, subs_epi16, i16, clamp(x - y, -32768, 32767))
    MASKED2(mm512, mullo_epi16, u16, (uint32_t)x * y)
    MASKED2(mm512, mullo_epi32, u32, x * y)
    ROW2(mm512, mullo_epi64, u64, x * y)
    ROW2(mm512, mulhi_epi16, i16, shift_down((int64_t)x * y, 16, 64))
    ROW2(mm512, mulhi_epu16, u16, (uint32_t)x * y / 65536)
    ROW2(mm512, mul_epi32, i64, (int64_t)a.i32[2 * i] * b.i32[2 * i])
    ROW2(mm512, mul_epu32, u64, (uint64_t)a.u32[2 * i] * b.u32[2 * i])
    ROW(_mm512_madd_epi16, u16, u32, _mm512_madd_epi16(AS(mm512, u16, a), AS(mm512, u16, b)),
        (int64_t)a.i16[2 * i] * b.i16[2 * i] + (int64_t)a.i16[2 * i + 1] * b.i16[2 * i + 1])
    ROW(_mm512_maddubs_epi16, u8, i16, _mm512_maddubs_epi16(AS(mm512, u8, a), AS(mm512, u8, b)),
        clamp(a.u8[2 * i] * b.i8[2 * i] + a.u8[2 * i + 1] * b.i8[2 * i + 1], -32768, 32767))
    ROW2(mm512, min_epi8, i8, x < y ? x : y)
    ROW2(mm512, min_epu8, u8, x < y ? x : y)
    ROW2(mm512, min_epi16, i16, x < y ? x : y)
    ROW2(mm512, min_epu16, u16, x < y ? x : y)
    MASKED2(mm512, min_epi32, i32, x < y ? x : y)
    ROW2(mm512, min_epu32, u32, x < y ? x : y)
    MASKED2(mm512, min_epi64, i64, x < y ? x : y)
    ROW2(mm512, min_epu64, u64, x < y ? x : y)
    ROW2(mm512, max_epi8, i8, x > y ? x : y)
    ROW2(mm512, max_epu8, u8, x > y ? x : y)
    ROW2(mm512, max_epi16, i16, x > y ? x : y)
    ROW2(mm512, max_epu16, u16, x > y ? x : y)
    MASKED2(mm512, max_epi32, i32, x > y ? x : y)
    ROW2(mm512, max_epu32, u32, x > y ? x : y)
    MASKED2(mm512, max_epi64, i64, x > y ? x : y)
    ROW2(mm512, max_epu64, u64, x > y ? x : y)
    ROW1(mm512, abs_epi8, i8, x < 0 ? -(int64_t)x : x)
    ROW1(mm512, abs_epi16, i16, x < 0 ? -(int64_t)x : x)
    MASKED1(mm512, abs_epi32, i32, x < 0 ? -(int64_t)x : x)
    ROW1(mm512, abs_epi64, u64, x >> 63 ? 0 - x : x)
    ROW1(mm512, lzcnt_epi32, u32, 31 - (x ? ilogb((double)x) : -1))
    ROW1(mm512, lzcnt_epi64, u64,
         x >> 32 ? 31 - ilogb((double)(x >> 32)) : 63 - (x ? ilogb((double)x) : -1))
}

static void logic(void)
{
    ROW2(mm512, and_si512, u64, x & y)
    ROW2(mm512, or_si512, u64, x | y)
    ROW2(mm512, xor_si512, u64, x ^ y)
    ROW2(mm512, andnot_si512, u64, ~x & y)
    MASKED2(mm512, and_epi32, u32, x & y)
    MASKED2(mm512, or_epi32, u32, x | y)
    MASKED2(mm512, xor_epi32, u32, x ^ y)
    MASKED2(mm512, andnot_epi32, u32, ~x & y)
    MASKED2(mm512, and_epi64, u64, x & y)
    MASKED2(mm512, or_epi64, u64, x | y)
    MASKED2(mm512, xor_epi64, u64, x ^ y)
    MASKED2(mm512, andnot_epi64, u64, ~x & y)
#define TERNARY(n, expr)                                                                       \
    ROW(_mm512_ternarylogic_epi32, u32, u32,                                                   \
        _mm512_ternarylogic_epi32(AS(mm512, u32, a), AS(mm512, u32, b), AS(mm512, u32, c), n), \
        expr)                                                                                  \
    ROW(_mm512_ternarylogic_epi64, u64, u64,                                                   \
        _mm512_ternarylogic_epi64(AS(mm512, u64, a), AS(mm512, u64, b), AS(mm512, u64, c), n), \
        expr)
    TERNARY(0x00, 0)
    TERNARY(0x01, ~(x | y | z))
    TERNARY(0x02, ~x & ~y & z)
    TERNARY(0x04, ~x & y & ~z)
    TERNARY(0x08, ~x & y & z)
    TERNARY(0x10, x & ~y & ~z)
    TERNARY(0x20, x & ~y & z)
    TERNARY(0x40, x & y & ~z)
    TERNARY(0x80, x & y & z)
    TERNARY(0x96, x ^ y ^ z)
    TERNARY(0xCA, (x & y) | (~x & z))
    TERNARY(0xE8, (x & y) | (x & z) | (y & z))
    TERNARY(0xF8, x | (y & z))
    TERNARY(0xFF, ~(x & 0))
}

static void shifts(void)
{
#define COUNT(n)                                                                               \
    SHIFTN(slli_epi16, n, u16, n < 16 ? (uint64_t)x << (n & 15) : 0)                           \
    SHIFTN(srli_epi16, n, u16, n < 16 ? x >> (n & 15) : 0)                                     \
    SHIFTN(srai_epi16, n, i16, shift_down(x, n, 16))                                           \
    SHIFTN(slli_epi32, n, u32, n < 32 ? (uint64_t)x << (n & 31) : 0)                           \
    SHIFTN(srli_epi32, n, u32, n < 32 ? x >> (n & 31) : 0)                                     \
    SHIFTN(srai_epi32, n, i32, shift_down(x, n, 32))                                           \
    SHIFTN(slli_epi64, n, u64, n < 64 ? x << (n & 63) : 0)                                     \
    SHIFTN(srli_epi64, n, u64, n < 64 ? x >> (n & 63) : 0)                                     \
    SHIFTN(srai_epi64, n, i64, shift_down(x, n, 64))                                           \
    ROWN(mm512, rol_epi32, n, u32, (uint64_t)x << (n & 31) | x >> (31 - (n & 31)) >> 1)        \
    ROWN(mm512, ror_epi32, n, u32, x >> (n & 31) | (uint64_t)x << (31 - (n & 31)) << 1)
    COUNT(0)
    COUNT(1)
    COUNT(7)
    COUNT(15)
    COUNT(16)
    COUNT(23)
    COUNT(31)
    COUNT(32)
    COUNT(63)
    COUNT(64)
    COUNT(255)
}

static void shifts_by_lane(void)
{
    /* Counts of all sizes: operands() draws many that are small, at once or as the high byte.
     */
    MASKED2(mm512, sllv_epi32, u32, y < 32 ? (uint64_t)x << y : 0)
    MASKED2(mm512, srlv_epi32, u32, y < 32 ? x >> y : 0)
    MASKED2(mm512, srav_epi32, i32, shift_down(x, (uint32_t)y, 32))
    MASKED2(mm512, sllv_epi64, u64, y < 64 ? x << y : 0)
    MASKED2(mm512, srlv_epi64, u64, y < 64 ? x >> y : 0)
    MASKED2(mm512, srav_epi64, i64, shift_down(x, (uint64_t)y, 64))
    ROW2(mm512, sllv_epi16, u16, y < 16 ? (uint64_t)x << y : 0)
    ROW2(mm512, srlv_epi16, u16, y < 16 ? x >> y : 0)
    ROW2(mm512, srav_epi16, i16, shift_down(x, (uint16_t)y, 16))
}

/* ---- Choice, constants, casts, parts. ---- */

static void choice(void)
{
#define MOV(m, s, in)                                                                          \
    ROW(_##m##_mask_mov_##s, in, in,                                                           \
        _##m##_mask_mov_##s(AS(m, in, src), (K_##m##_##in)k, AS(m, in, a)),                    \
        BIT(k) ? x : src.in[i])                                                                \
    ROW(_##m##_maskz_mov_##s, in, in, _##m##_maskz_mov_##s((K_##m##_##in)k, AS(m, in, a)),     \
        BIT(k) ? x : 0)                                                                        \
    ROW(_##m##_mask_blend_##s, in, in,                                                         \
        _##m##_mask_blend_##s((K_##m##_##in)k, AS(m, in, a), AS(m, in, b)), BIT(k) ? y : x)
#define MOV_ALL(m)                                                                             \
    MOV(m, epi8, i8)                                                                           \
    MOV(m, epi16, i16)                                                                         \
    MOV(m, epi32, i32)                                                                         \
    MOV(m, epi64, i64)                                                                         \
    MOV(m, ps, f32)                                                                            \
    MOV(m, pd, f64)
    MOV_ALL(mm512)
    MOV_ALL(mm256)
    MOV_ALL(mm)
}

static void constants(void)
{
    ROW(_mm512_setzero_ps, u32, u32, _mm512_setzero_ps(), 0)
    ROW(_mm512_setzero_pd, u32, u32, _mm512_setzero_pd(), 0)
    ROW(_mm512_setzero_si512, u32, u32, _mm512_setzero_si512(), 0)
    ROW(_mm512_set1_ps, f32, f32, _mm512_set1_ps(a.f32[0]), a.f32[0])
    ROW(_mm512_set1_pd, f64, f64, _mm512_set1_pd(a.f64[0]), a.f64[0])
#define SET1(s, in, type)                                                                      \
    ROW(_mm512_set1_##s, in, in, _mm512_set1_##s((type)a.in[0]), a.in[0])                      \
    ROW(_mm512_mask_set1_##s, in, in,                                                          \
        _mm512_mask_set1_##s(AS(mm512, in, src), (K_mm512_##in)k, (type)a.in[0]),              \
        BIT(k) ? a.in[0] : src.in[i])                                                          \
    ROW(_mm512_maskz_set1_##s, in, in, _mm512_maskz_set1_##s((K_mm512_##in)k, (type)a.in[0]),  \
        BIT(k) ? a.in[0] : 0)
    SET1(epi8, i8, char)
    SET1(epi16, i16, int16_t)
    SET1(epi32, i32, int32_t)
    SET1(epi64, i64, long long)
/* Natively these are macros: their arguments are counted before FOUR is expanded. */
#define CALL(f, ...) f(__VA_ARGS__)
#define FOUR(v, at)  v[at], v[at + 1], v[at + 2], v[at + 3]
    ROW(_mm512_setr_ps, f32, f32,
        CALL(_mm512_setr_ps, FOUR(a.f32, 0), FOUR(a.f32, 4), FOUR(a.f32, 8), FOUR(a.f32, 12)),
        x)
    ROW(_mm512_setr_pd, f64, f64, CALL(_mm512_setr_pd, FOUR(a.f64, 0), FOUR(a.f64, 4)), x)
    ROW(_mm512_setr_epi32, i32, i32,
        CALL(_mm512_setr_epi32, FOUR(a.i32, 0), FOUR(a.i32, 4), FOUR(a.i32, 8),
             FOUR(a.i32, 12)),
        x)
    ROW(_mm512_setr_epi64, i64, i64, CALL(_mm512_setr_epi64, FOUR(a.i64, 0), FOUR(a.i64, 4)), x)
}

static void casts(void)
{
#define CAST(name, m, lane) ROW(_mm512_##name, u32, u32, _mm512_##name(AS(m, lane, a)), x)
    CAST(castps_pd, mm512, f32)
    CAST(castps_si512, mm512, f32)
    CAST(castpd_ps, mm512, f64)
    CAST(castpd_si512, mm512, f64)
    CAST(castsi512_ps, mm512, u32)
    CAST(castsi512_pd, mm512, u32)
    CAST(castps512_ps256, mm512, f32)
    CAST(castps512_ps128, mm512, f32)
    CAST(castpd512_pd256, mm512, f64)
    CAST(castpd512_pd128, mm512, f64)
    CAST(castsi512_si256, mm512, u32)
    CAST(castsi512_si128, mm512, u32)
/* Only the lower part is defined. */
#define CAST_UP(name, m, lane, back)                                                           \
    ROW(_mm512_##name, u32, u32, _mm512_##back(_mm512_##name(AS(m, lane, a))), x)
    CAST_UP(castps256_ps512, mm256, f32, castps512_ps256)
    CAST_UP(castps128_ps512, mm, f32, castps512_ps128)
    CAST_UP(castpd256_pd512, mm256, f64, castpd512_pd256)
    CAST_UP(castsi256_si512, mm256, u32, castsi512_si256)
    CAST_UP(castsi128_si512, mm, u32, castsi512_si128)
#define ZEXT(name, m, lane)                                                                    \
    ROW(_mm512_##name, u32, u32, _mm512_##name(AS(m, lane, a)),                                \
        i < LANES(T_##m##_##lane, u32) ? x : 0)
    ZEXT(zextps256_ps512, mm256, f32)
    ZEXT(zextps128_ps512, mm, f32)
    ZEXT(zextsi256_si512, mm256, u32)
    ZEXT(zextsi128_si512, mm, u32)
    ROW(_mm512_cvtss_f32, f32, f32, _mm512_cvtss_f32(AS(mm512, f32, a)), x)
    ROW(_mm512_cvtsi512_si32, i32, i32, _mm512_cvtsi512_si32(AS(mm512, i32, a)), x)
}

static void parts(void)
{
#define PART(extract, insert, m, lane, at)                                                     \
    ROW(_mm512_##extract, u32, u32, _mm512_##extract(AS(mm512, lane, a), at),                  \
        a.u32[(at)*LANES(T_##m##_##lane, u32) + i])                                            \
    ROW(_mm512_##insert, u32, u32, _mm512_##insert(AS(mm512, lane, a), AS(m, lane, b), at),    \
        i / LANES(T_##m##_##lane, u32) == at ? b.u32[i % LANES(T_##m##_##lane, u32)] : x)
#define HALF(extract, insert, lane)                                                            \
    PART(extract, insert, mm256, lane, 0) PART(extract, insert, mm256, lane, 1)
    HALF(extracti64x4_epi64, inserti64x4, u64)
    HALF(extracti32x8_epi32, inserti32x8, u32)
    HALF(extractf32x8_ps, insertf32x8, f32)
    HALF(extractf64x4_pd, insertf64x4, f64)
#define QUARTER(extract, insert, lane)                                                         \
    PART(extract, insert, mm, lane, 0)                                                         \
    PART(extract, insert, mm, lane, 1)                                                         \
    PART(extract, insert, mm, lane, 2)                                                         \
    PART(extract, insert, mm, lane, 3)
    QUARTER(extracti32x4_epi32, inserti32x4, u32)
    QUARTER(extractf32x4_ps, insertf32x4, f32)
    ROW(_mm512_broadcast_i32x4, u32, u32, _mm512_broadcast_i32x4(AS(mm, u32, a)), a.u32[i % 4])
    ROW(_mm512_broadcast_f32x4, u32, u32, _mm512_broadcast_f32x4(AS(mm, f32, a)), a.u32[i % 4])
    ROW(_mm512_broadcast_i64x4, u64, u64, _mm512_broadcast_i64x4(AS(mm256, u64, a)),
        a.u64[i % 4])
    ROW(_mm512_broadcastb_epi8, u8, u8, _mm512_broadcastb_epi8(AS(mm, u8, a)), a.u8[0])
    ROW(_mm512_broadcastw_epi16, u16, u16, _mm512_broadcastw_epi16(AS(mm, u16, a)), a.u16[0])
    ROW(_mm512_broadcastd_epi32, u32, u32, _mm512_broadcastd_epi32(AS(mm, u32, a)), a.u32[0])
    ROW(_mm512_broadcastq_epi64, u64, u64, _mm512_broadcastq_epi64(AS(mm, u64, a)), a.u64[0])
    ROW(_mm512_broadcastss_ps, f32, u32, _mm512_broadcastss_ps(AS(mm, f32, a)), a.u32[0])
}

/* ---- Conversions. ---- */

static void conversions(void)
{
#define CVT(name, m, in, out, expr) ROW(_##name, in, out, _##name(AS(m, in, a)), expr)
    CVT(mm512_cvtepu8_epi16, mm256, u8, i16, a.u8[i])
    CVT(mm512_cvtepi8_epi16, mm256, i8, i16, a.i8[i])
    CVT(mm512_cvtepu8_epi32, mm, u8, i32, a.u8[i])
    CVT(mm512_cvtepi8_epi32, mm, i8, i32, a.i8[i])
    CVT(mm512_cvtepu8_epi64, mm, u8, i64, a.u8[i])
    CVT(mm512_cvtepi8_epi64, mm, i8, i64, a.i8[i])
    CVT(mm512_cvtepu16_epi32, mm256, u16, i32, a.u16[i])
    CVT(mm512_cvtepi16_epi32, mm256, i16, i32, a.i16[i])
    CVT(mm512_cvtepu32_epi64, mm256, u32, i64, a.u32[i])
    CVT(mm512_cvtepi32_epi64, mm256, i32, i64, a.i32[i])
    CVT(mm512_cvtepi16_epi8, mm512, u16, u8, a.u16[i] % 256)
    CVT(mm512_cvtepi32_epi8, mm512, u32, u8, a.u32[i] % 256)
    CVT(mm512_cvtepi32_epi16, mm512, u32, u16, a.u32[i] % 65536)
    CVT(mm512_cvtepi64_epi32, mm512, u64, u32, a.u64[i] % 0x100000000)
    /* A part of the register: above it is zero. */
    CVT(mm256_cvtepi16_epi8, mm256, u16, u8, i < 16 ? a.u16[i] % 256 : 0)
    CVT(mm256_cvtepi32_epi8, mm256, u32, u8, i < 8 ? a.u32[i] % 256 : 0)
    CVT(mm256_cvtepi32_epi16, mm256, u32, u16, i < 8 ? a.u32[i] % 65536 : 0)
    CVT(mm512_cvtsepi16_epi8, mm512, i16, i8, clamp(a.i16[i], -128, 127))
    CVT(mm512_cvtsepi32_epi8, mm512, i32, i8, clamp(a.i32[i], -128, 127))
    CVT(mm512_cvtsepi32_epi16, mm512, i32, i16, clamp(a.i32[i], -32768, 32767))
    CVT(mm512_cvtusepi16_epi8, mm512, u16, u8, clamp(a.u16[i], 0, 255))
    CVT(mm512_cvtusepi32_epi8, mm512, u32, u8, clamp(a.u32[i], 0, 255))
    CVT(mm512_cvtusepi32_epi16, mm512, u32, u16, clamp(a.u32[i], 0, 65535))
    CVT(mm512_cvtepi32_ps, mm512, i32, f32, x)
    CVT(mm512_cvtepi32_pd, mm256, i32, f64, a.i32[i])
    CVT(mm512_cvtps_pd, mm256, f32, f64, a.f32[i])
    CVT(mm512_cvtpd_ps, mm512, f64, f32, x)
#define IN_RANGE(v) ((v) >= -0x1p31 && (v) < 0x1p31)
    CVT(mm512_cvtps_epi32, mm512, f32, i32, IN_RANGE((double)x) ? lrintf(x) : INT32_MIN)
    CVT(mm512_cvttps_epi32, mm512, f32, i32, IN_RANGE((double)x) ? (int32_t)x : INT32_MIN)
    CVT(mm512_cvtpd_epi32, mm512, f64, i32, IN_RANGE(rint(x)) ? lrint(x) : INT32_MIN)
}

/* ---- Permutations. ---- */

static void permutations(void)
{
/* Lane i of the result within its 128 bits of n lanes. */
#define IN_QUARTER(n, at) (i / (n) * (n) + (at))
#define UNPACK(s, in, n)                                                                       \
    ROW2(mm512, unpacklo_##s, in, (i % 2 ? b : a).in[IN_QUARTER(n, i % (n) / 2)])              \
    ROW2(mm512, unpackhi_##s, in, (i % 2 ? b : a).in[IN_QUARTER(n, (n) / 2 + i % (n) / 2)])
    UNPACK(epi8, u8, 16)
    UNPACK(epi16, u16, 8)
    UNPACK(epi32, u32, 4)
    UNPACK(epi64, u64, 2)
    ROW(_mm512_unpacklo_ps, f32, u32, _mm512_unpacklo_ps(AS(mm512, f32, a), AS(mm512, f32, b)),
        (i % 2 ? b : a).u32[IN_QUARTER(4, i % 4 / 2)])
    ROW(_mm512_unpackhi_ps, f32, u32, _mm512_unpackhi_ps(AS(mm512, f32, a), AS(mm512, f32, b)),
        (i % 2 ? b : a).u32[IN_QUARTER(4, 2 + i % 4 / 2)])
#define PACK(name, in, out, n, low, high)                                                      \
    ROW(_mm512_##name, in, out, _mm512_##name(AS(mm512, in, a), AS(mm512, in, b)),             \
        clamp((i % (n) < (n) / 2 ? a : b).in[i / (n) * ((n) / 2) + i % ((n) / 2)], low, high))
    PACK(packs_epi16, i16, i8, 16, -128, 127)
    PACK(packus_epi16, i16, u8, 16, 0, 255)
    PACK(packs_epi32, i32, i16, 8, -32768, 32767)
    PACK(packus_epi32, i32, u16, 8, 0, 65535)
    MASKED2(mm512, shuffle_epi8, u8, y & 0x80 ? 0 : a.u8[IN_QUARTER(16, y & 15)])
#define PERMUTE(s, in, n)                                                                      \
    ROW2(mm512, permutexvar_##s, in, b.in[x % (n)])                                            \
    ROW3(mm512, permutex2var_##s, in, (y % (2 * (n)) < (n) ? a : c).in[y % (n)])
    PERMUTE(epi8, u8, 64)
    PERMUTE(epi16, u16, 32)
    PERMUTE(epi32, u32, 16)
    PERMUTE(epi64, u64, 8)
    MASKED2(mm512, permutexvar_epi8, u8, b.u8[x % 64])
    MASKED2(mm512, permutexvar_epi16, u16, b.u16[x % 32])
    MASKED2(mm512, permutexvar_epi32, u32, b.u32[x % 16])
    ROW2(mm256, permutexvar_epi8, u8, b.u8[x % 32])
    ROW2(mm256, permutexvar_epi16, u16, b.u16[x % 16])
    ROW(_mm512_permutexvar_ps, u32, u32,
        _mm512_permutexvar_ps(AS(mm512, u32, a), AS(mm512, f32, b)), b.u32[x % 16])
    ROW(_mm512_permutexvar_pd, u64, u64,
        _mm512_permutexvar_pd(AS(mm512, u64, a), AS(mm512, f64, b)), b.u64[x % 8])
    ROW(_mm512_permutex2var_ps, u32, u32,
        _mm512_permutex2var_ps(AS(mm512, f32, a), AS(mm512, u32, b), AS(mm512, f32, c)),
        (y % 32 < 16 ? a : c).u32[y % 16])
    ROW(_mm512_permutex2var_pd, u64, u64,
        _mm512_permutex2var_pd(AS(mm512, f64, a), AS(mm512, u64, b), AS(mm512, f64, c)),
        (y % 16 < 8 ? a : c).u64[y % 8])
#define SHUFFLE(n)                                                                             \
    ROW(_mm512_shuffle_epi32, u32, u32,                                                        \
        _mm512_shuffle_epi32(AS(mm512, u32, a), (_MM_PERM_ENUM)(n)),                           \
        a.u32[IN_QUARTER(4, (n) >> 2 * (i % 4) & 3)])                                          \
    ROW(_mm512_shuffle_i32x4, u32, u32,                                                        \
        _mm512_shuffle_i32x4(AS(mm512, u32, a), AS(mm512, u32, b), n),                         \
        (i < 8 ? a : b).u32[((n) >> 2 * (i / 4) & 3) * 4 + i % 4])                             \
    ROW(_mm512_shuffle_i64x2, u32, u32,                                                        \
        _mm512_shuffle_i64x2(AS(mm512, u32, a), AS(mm512, u32, b), n),                         \
        (i < 8 ? a : b).u32[((n) >> 2 * (i / 4) & 3) * 4 + i % 4])                             \
    ROW(_mm512_shuffle_f32x4, u32, u32,                                                        \
        _mm512_shuffle_f32x4(AS(mm512, f32, a), AS(mm512, f32, b), n),                         \
        (i < 8 ? a : b).u32[((n) >> 2 * (i / 4) & 3) * 4 + i % 4])                             \
    ROW(_mm512_shuffle_ps, u32, u32,                                                           \
        _mm512_shuffle_ps(AS(mm512, f32, a), AS(mm512, f32, b), n),                            \
        (i % 4 < 2 ? a : b).u32[IN_QUARTER(4, (n) >> 2 * (i % 4) & 3)])
    SHUFFLE(0x00)
    SHUFFLE(0x1B)
    SHUFFLE(0x4E)
    SHUFFLE(0x88)
    SHUFFLE(0xDD)
    SHUFFLE(0xB1)
#define ALIGN(n)                                                                               \
    ROW(_mm512_alignr_epi8, u8, u8, _mm512_alignr_epi8(AS(mm512, u8, a), AS(mm512, u8, b), n), \
        i % 16 + (n) < 16   ? b.u8[i + (n)]                                                    \
        : i % 16 + (n) < 32 ? a.u8[(i + (n)-16) % 64]                                          \
                            : 0)                                                               \
    ROW(_mm512_alignr_epi32, u32, u32,                                                         \
        _mm512_alignr_epi32(AS(mm512, u32, a), AS(mm512, u32, b), n),                          \
        i + (n) % 16 < 16 ? b.u32[(i + (n)) % 16] : a.u32[(i + (n)) % 16])
    ALIGN(0)
    ALIGN(1)
    ALIGN(8)
    ALIGN(15)
    ALIGN(16)
    ALIGN(19)
    ALIGN(32)
}

/* ---- Reductions: x + y of the halves, of the quarters, and so on. ---- */

static float tree_f32(const float *x, unsigned n, unsigned step)
{
    return n == 1 ? x[0] : tree_f32(x, n / 2, 2 * step) + tree_f32(x + step, n / 2, 2 * step);
}
static double tree_f64(const double *x, unsigned n, unsigned step)
{
    return n == 1 ? x[0] : tree_f64(x, n / 2, 2 * step) + tree_f64(x + step, n / 2, 2 * step);
}

static void reductions(void)
{
    ROW(_mm512_reduce_add_ps, f32, f32, _mm512_reduce_add_ps(AS(mm512, f32, a)),
        tree_f32(a.f32, 16, 1))
    ROW(_mm512_reduce_add_pd, f64, f64, _mm512_reduce_add_pd(AS(mm512, f64, a)),
        tree_f64(a.f64, 8, 1))
#define REDUCE(name, in, type, start, step)                                                    \
    intrinsics++;                                                                              \
    for (int round_ = 0; round_ < ROUNDS; round_++) {                                          \
        operands(KIND_##in);                                                                   \
        if (KIND_##in >= KIND_f32) /* of NaN and -0 compilers make different things */         \
            for (unsigned i = 0; i < LANES(a, in); i++)                                        \
                a.in[i] = (type)((double)(int32_t)(draw() >> 32) + 0.5);                       \
        const type r_ = (type)_mm512_reduce_##name(AS(mm512, in, a));                          \
        memcpy(&got, &r_, sizeof r_);                                                          \
        type r = start;                                                                        \
        for (unsigned i = 0; i < LANES(a, in); i++) {                                          \
            const type x = a.in[i];                                                            \
            r = (type)(step);                                                                  \
        }                                                                                      \
        want.in[0] = r;                                                                        \
        check(TEXT(name), KIND_##in);                                                          \
    }
    REDUCE(min_ps, f32, float, INFINITY, x < r ? x : r)
    REDUCE(max_ps, f32, float, -INFINITY, x > r ? x : r)
    REDUCE(min_pd, f64, double, (double)INFINITY, x < r ? x : r)
    REDUCE(max_pd, f64, double, (double)-INFINITY, x > r ? x : r)
    REDUCE(add_epi32, u32, uint32_t, 0, r + x)
    REDUCE(and_epi32, u32, uint32_t, ~0u, r & x)
    REDUCE(or_epi32, u32, uint32_t, 0, r | x)
    REDUCE(min_epi32, i32, int32_t, INT32_MAX, x < r ? x : r)
    REDUCE(max_epi32, i32, int32_t, INT32_MIN, x > r ? x : r)
    REDUCE(min_epu32, u32, uint32_t, UINT32_MAX, x < r ? x : r)
    REDUCE(max_epu32, u32, uint32_t, 0, x > r ? x : r)
    REDUCE(add_epi64, u64, uint64_t, 0, r + x)
    REDUCE(min_epi64, i64, int64_t, INT64_MAX, x < r ? x : r)
    REDUCE(max_epi64, i64, int64_t, INT64_MIN, x > r ? x : r)
}

/* ---- Dot products. ---- */

static void dots(void)
{
#define DOT(m)                                                                                 \
    ROW(_##m##_dpbusd_epi32, u8, u32,                                                          \
        _##m##_dpbusd_epi32(AS(m, u32, a), AS(m, u8, b), AS(m, u8, c)),                        \
        a.u32[i] + (uint32_t)(b.u8[4 * i] * c.i8[4 * i]) +                                     \
            (uint32_t)(b.u8[4 * i + 1] * c.i8[4 * i + 1]) +                                    \
            (uint32_t)(b.u8[4 * i + 2] * c.i8[4 * i + 2]) +                                    \
            (uint32_t)(b.u8[4 * i + 3] * c.i8[4 * i + 3]))                                     \
    ROW(_##m##_dpwssd_epi32, u16, u32,                                                         \
        _##m##_dpwssd_epi32(AS(m, u32, a), AS(m, u16, b), AS(m, u16, c)),                      \
        a.u32[i] + (uint64_t)((int64_t)b.i16[2 * i] * c.i16[2 * i] +                           \
                              (int64_t)b.i16[2 * i + 1] * c.i16[2 * i + 1]))
    DOT(mm512)
    DOT(mm256)
}

/* ---- BF16: VDPBF16PS in integers. ---- */

static bool is_nan(uint32_t x)
{
    return (x & 0x7FFFFFFFu) > 0x7F800000u;
}

__extension__ typedef __int128 wide;
__extension__ typedef unsigned __int128 uwide;

/* a * b + c with one rounding to nearest even; subnormal operands and results are zeros. */
static uint32_t fma_flushed(uint32_t p, uint32_t q, uint32_t s)
{
    const uint32_t inf = 0x7F800000u, sign_pq = (p ^ q) & 0x80000000u, sign_s = s & 0x80000000u;
    if (is_nan(p) || is_nan(q) || is_nan(s))
        return (is_nan(p) ? p : is_nan(q) ? q : s) | 0x00400000u;
    p &= 0x7FFFFFFFu, q &= 0x7FFFFFFFu, s &= 0x7FFFFFFFu;
    p = p < 0x00800000u ? 0 : p, q = q < 0x00800000u ? 0 : q, s = s < 0x00800000u ? 0 : s;
    if (p == inf || q == inf) {
        if (p == 0 || q == 0 || (s == inf && sign_s != sign_pq))
            return 0xFFC00000u;
        return sign_pq | inf;
    }
    if (s == inf)
        return sign_s | inf;
    if (p == 0 || q == 0)
        return s ? sign_s | s : sign_s & sign_pq;
    /* Both in units of 2^(e - 64), the larger exponent e; what lies below stays as one bit. */
    const uint64_t sig_pq =
        (uint64_t)((p & 0x7FFFFFu) | 0x800000u) * ((q & 0x7FFFFFu) | 0x800000u);
    const uint64_t sig_s = s ? (s & 0x7FFFFFu) | 0x800000u : 0;
    const int exp_pq = (int)(p >> 23) + (int)(q >> 23) - 300,
              exp_s = s ? (int)(s >> 23) - 150 : exp_pq;
    const int e = exp_pq > exp_s ? exp_pq : exp_s;
    wide sum = 0;
    for (int part = 0; part < 2; part++) {
        const uint64_t sig = part ? sig_s : sig_pq;
        const int down = e - (part ? exp_s : exp_pq);
        wide x = (wide)sig << 64;
        if (down > 120)
            x = sig != 0;
        else if (x & (((wide)1 << down) - 1))
            x = x >> down | 1;
        else
            x >>= down;
        sum += (part ? sign_s : sign_pq) ? -x : x;
    }
    if (sum == 0)
        return 0;
    const uint32_t sign = sum < 0 ? 0x80000000u : 0;
    uwide mag = (uwide)(sum < 0 ? -sum : sum);
    int top = 127;
    while (!(mag >> top))
        top--;
    int exp = e - 64 + top; /* of the leading bit */
    uint32_t sig;
    if (top <= 23) {
        sig = (uint32_t)(mag << (23 - top));
    } else {
        const uwide unit = (uwide)1 << (top - 23), rest = mag & (unit - 1);
        sig = (uint32_t)(mag >> (top - 23));
        if (rest > unit / 2 || (rest == unit / 2 && (sig & 1)))
            sig++;
        if (sig >> 24)
            sig >>= 1, exp++;
    }
    if (exp < -126)
        return sign;
    if (exp > 127)
        return sign | inf;
    return sign | (uint32_t)(exp + 127) << 23 | (sig & 0x7FFFFFu);
}

static uint32_t dpbf16(unsigned i)
{
    const uint32_t upper = fma_flushed((uint32_t)b.u16[2 * i + 1] << 16,
                                       (uint32_t)c.u16[2 * i + 1] << 16, a.u32[i]);
    return fma_flushed((uint32_t)b.u16[2 * i] << 16, (uint32_t)c.u16[2 * i] << 16, upper);
}

static uint32_t to_bf16(uint32_t x)
{
    if (is_nan(x))
        return x >> 16 | 0x40;
    if ((x & 0x7FFFFFFFu) < 0x00800000u)
        return x >> 16 & 0x8000;
    const uint32_t rest = x & 0xFFFF;
    return (x >> 16) + (rest > 0x8000 || (rest == 0x8000 && (x >> 16 & 1)));
}

/* Pairs near and below FP32's least normal number, and pairs that cancel the sum. */
static void aim_bf16(void)
{
    for (unsigned i = 0; i < 16; i++) {
        const uint64_t r = draw();
        if (r & 1)
            continue;
        const uint32_t half = 100 + (uint32_t)(r >> 8 & 63);
        b.u16[2 * i] = (uint16_t)((r >> 16 & 0x807F) | half << 7);
        c.u16[2 * i] =
            (uint16_t)((r >> 32 & 0x807F) | (127 + (uint32_t)(r >> 2 & 3) - half) << 7);
        if (r & 2) { /* products near 2^-126 with a sum of the same size */
            c.u16[2 * i] = (uint16_t)((r >> 32 & 0x807F) | (r >> 2 & 31) << 7);
            a.u32[i] = (uint32_t)(r >> 24 & 0x807FFFFF) | (uint32_t)(r >> 2 & 3) << 23;
        }
    }
}

#define ROW_BF16(name, out, call, expr)                                                        \
    intrinsics++;                                                                              \
    for (int round_ = 0; round_ < 40 * ROUNDS; round_++) {                                     \
        operands(KIND_f32);                                                                    \
        aim_bf16();                                                                            \
        _mm_setcsr(0x1F80u | (uint32_t)(draw() & 0xE040));                                     \
        const __typeof__(call) r_ = call;                                                      \
        memcpy(&got, &r_, sizeof r_);                                                          \
        flags |= _mm_getcsr() & 0x3F;                                                          \
        _mm_setcsr(0x1F80);                                                                    \
        for (unsigned i = 0; i < LANES(r_, out); i++)                                          \
            want.out[i] = (__typeof__(want.out[0]))(expr);                                     \
        check(TEXT(name), KIND_u32);                                                           \
    }

static void bf16(void)
{
    uint32_t flags = 0;
#define BH(r) ((__m512bh)AS(mm512, u32, r))
    ROW_BF16(_mm512_dpbf16_ps, u32, _mm512_dpbf16_ps(AS(mm512, f32, a), BH(b), BH(c)),
             dpbf16(i))
    ROW_BF16(_mm512_cvtneps_pbh, u16, _mm512_cvtneps_pbh(AS(mm512, f32, a)), to_bf16(a.u32[i]))
    ROW_BF16(_mm512_cvtne2ps_pbh, u16,
             _mm512_cvtne2ps_pbh(AS(mm512, f32, b), AS(mm512, f32, a)),
             to_bf16(i < 16 ? a.u32[i] : b.u32[i - 16]))
    if (flags) {
        printf("FAIL: BF16 raised exceptions %02x\n", flags);
        failures++;
    }
}

/* ---- Exponents, by long double: a wider significand and exponent than both formats have. ----
 */

static long double scalef(long double x, long double y, bool quiet)
{
    if (isnan(x))
        return quiet && isinf(y) ? (y > 0 ? y : 0.0L) : x;
    if (isnan(y))
        return y;
    if (isinf(y))
        return y > 0      ? x * (long double)INFINITY
               : isinf(x) ? (long double)NAN
                          : copysignl(0.0L, x);
    const long double n = floorl(y);
    return ldexpl(x, n > 6000 ? 6000 : n < -6000 ? -6000 : (int)n);
}

/* To a multiple of 2^-m by way 0 (nearest even), 1 (down), 2 (up), 3 (to zero). */
static long double roundscale(long double x, int m, int way)
{
    const long double scaled = ldexpl(x, m);
    const long double r = way == 1   ? floorl(scaled)
                          : way == 2 ? ceill(scaled)
                          : way == 3 ? truncl(scaled)
                                     : nearbyintl(scaled);
    return ldexpl(r, -m);
}

/* x + y by way 0 (nearest even), 1 (down), 2 (up), 3 (to zero), from the nearest sum and what
 * it left over. */
static double add_toward(double x, double y, int way)
{
    const double s = x + y;
    if (way == 0 || !isfinite(x) || !isfinite(y))
        return s;
    const bool down = way == 1 || (way == 3 && s > 0);
    if (isinf(s))
        return (s > 0) == down ? copysign(DBL_MAX, s) : s;
    if (s == 0)
        return signbit(x) == signbit(y) ? x : way == 1 ? -0.0 : 0.0;
    const double moved = s - x, rest = (x - (s - moved)) + (y - moved);
    return rest < 0 && down    ? nextafter(s, -INFINITY)
           : rest > 0 && !down ? nextafter(s, INFINITY)
                               : s;
}

static float float_toward(int32_t x, int way)
{
    const float f = (float)x;
    const bool down = way == 1 || (way == 3 && x > 0), up = way == 2 || (way == 3 && x < 0);
    return down && (double)f > x ? nextafterf(f, -INFINITY)
           : up && (double)f < x ? nextafterf(f, INFINITY)
                                 : f;
}

static void exponents(void)
{
#define ADD_TOWARD(way)                                                                        \
    ROW(_mm512_add_round_pd, f64, f64,                                                         \
        _mm512_add_round_pd(AS(mm512, f64, a), AS(mm512, f64, b), (way) | _MM_FROUND_NO_EXC),  \
        add_toward(x, y, way))
    ADD_TOWARD(0)
    ADD_TOWARD(1)
    ADD_TOWARD(2)
    ADD_TOWARD(3)
#define FLOAT_TOWARD(way)                                                                      \
    ROW(_mm512_cvt_roundepi32_ps, i32, f32,                                                    \
        _mm512_cvt_roundepi32_ps(AS(mm512, i32, a), (way) | _MM_FROUND_NO_EXC),                \
        float_toward(a.i32[i], way))
    FLOAT_TOWARD(0)
    FLOAT_TOWARD(1)
    FLOAT_TOWARD(2)
    FLOAT_TOWARD(3)
    MASKED1(mm512, getexp_ps, f32, logbf(x))
    MASKED1(mm512, getexp_pd, f64, logb(x))
#define QUIET32(r) ((r).u32[i] >> 22 & 1)
#define QUIET64(r) ((r).u64[i] >> 51 & 1)
    MASKED2(mm512, scalef_ps, f32, scalef((long double)x, (long double)y, QUIET32(a)))
    MASKED2(mm512, scalef_pd, f64, scalef((long double)x, (long double)y, QUIET64(a)))
#define ROUND(m, way)                                                                          \
    ROWN(mm512, roundscale_ps, (m) << 4 | (way), f32, roundscale((long double)x, m, way))      \
    ROWN(mm512, roundscale_pd, (m) << 4 | (way), f64, roundscale((long double)x, m, way))
#define ROUND_ALL(m) ROUND(m, 0) ROUND(m, 1) ROUND(m, 2) ROUND(m, 3) ROUND(m, 4)
    ROUND_ALL(0)
    ROUND_ALL(1)
    ROUND_ALL(7)
    ROUND_ALL(15)
}

/* ---- Masks as numbers. ---- */

static void masks(void)
{
#define KROW(name, call, expr)                                                                 \
    intrinsics++;                                                                              \
    for (int round_ = 0; round_ < ROUNDS; round_++) {                                          \
        operands(KIND_u64);                                                                    \
        const uint64_t x = a.u64[0], y = b.u64[0];                                             \
        (void)x, (void)y;                                                                      \
        got.u64[0] = (uint64_t)(call);                                                         \
        want.u64[0] = (uint64_t)(expr);                                                        \
        check(TEXT(name), KIND_u64);                                                           \
    }
#define K2(n, op, expr)                                                                        \
    KROW(_k##op##_mask##n, _k##op##_mask##n((__mmask##n)x, (__mmask##n)y), (__mmask##n)(expr))
#define KS(n, count)                                                                           \
    KROW(_kshiftli_mask##n, _kshiftli_mask##n((__mmask##n)x, count),                           \
         count < n ? (__mmask##n)(x << (count & 63)) : 0)                                      \
    KROW(_kshiftri_mask##n, _kshiftri_mask##n((__mmask##n)x, count),                           \
         count < n ? (__mmask##n)x >> (count & 63) : 0)
#define KALL(n)                                                                                \
    K2(n, and, x &y)                                                                           \
    K2(n, andn, ~x &y)                                                                         \
    K2(n, or, x | y)                                                                           \
    K2(n, xor, x ^ y)                                                                          \
    K2(n, xnor, ~(x ^ y))                                                                      \
    KROW(_knot_mask##n, _knot_mask##n((__mmask##n)x), (__mmask##n) ~x)                         \
    KROW(_kortestz_mask##n##_u8, _kortestz_mask##n##_u8((__mmask##n)x, (__mmask##n)y),         \
         (__mmask##n)x == 0 && (__mmask##n)y == 0)                                             \
    KROW(_kortestc_mask##n##_u8, _kortestc_mask##n##_u8((__mmask##n)x, (__mmask##n)y),         \
         (__mmask##n) ~(x | y) == 0)                                                           \
    KROW(_kortest_mask##n##_u8,                                                                \
         (all = 2, _kortest_mask##n##_u8((__mmask##n)x, (__mmask##n)y, &all) + 2 * all),       \
         ((__mmask##n)(x | y) == 0) + 2 * ((__mmask##n) ~(x | y) == 0))                        \
    KS(n, 0) KS(n, 1) KS(n, 7) KS(n, 8) KS(n, 31) KS(n, 63) KS(n, 64)
    unsigned char all;
    KALL(8)
    KALL(16)
    KALL(32)
    KALL(64)
#define M(v) ((__mmask16)(v))
    KROW(_mm512_kand, _mm512_kand(M(x), M(y)), M(x & y))
    KROW(_mm512_kandn, _mm512_kandn(M(x), M(y)), M(~x & y))
    KROW(_mm512_kor, _mm512_kor(M(x), M(y)), M(x | y))
    KROW(_mm512_kxor, _mm512_kxor(M(x), M(y)), M(x ^ y))
    KROW(_mm512_knot, _mm512_knot(M(x)), M(~x))
    KROW(_mm512_kortestz, _mm512_kortestz(M(x), M(y)), M(x | y) == 0)
    KROW(_mm512_kortestc, _mm512_kortestc(M(x), M(y)), M(~(x | y)) == 0)
    KROW(_mm512_kunpackb, _mm512_kunpackb(M(x), M(y)), x % 256 * 256 + y % 256)
}

/* ---- Memory, between two unreadable pages. ---- */

static unsigned char *room; /* one page that can be used */
static size_t page;

static void make_room(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *p = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + page, page, PROT_READ | PROT_WRITE) != 0) {
        perror("mmap");
        exit(1);
    }
    room = p + page;
}

/* The lanes first to last - 1 lie at the room's edge, and no others are in the mask. */
#define MASKED_MEMORY(m, s, in)                                                                \
    intrinsics += 3;                                                                           \
    for (unsigned first_ = 0; first_ <= LANES(T_##m##_##in, in); first_++)                     \
        for (unsigned last_ = first_; last_ <= LANES(T_##m##_##in, in); last_++) {             \
            operands(KIND_u8);                                                                 \
            const size_t size_ = sizeof want.in[0];                                            \
            const uint64_t lanes_ = (last_ < 64 ? (uint64_t)1 << last_ : 0) - 1;               \
            const bool low_ = draw() & 1;                                                      \
            const uint64_t from_ = first_ < 64 ? ~(uint64_t)0 << first_ : 0;                   \
            k = lanes_ & from_ & (draw() & 1 ? k : ~(uint64_t)0);                              \
            unsigned char *p_ = low_ ? room - first_ * size_ : room + page - last_ * size_;    \
            for (unsigned i = first_; i < last_; i++)                                          \
                memcpy(p_ + i * size_, &a.in[i], size_);                                       \
            const T_##m##_##in l_ =                                                            \
                _##m##_mask_loadu_##s(AS(m, in, src), (K_##m##_##in)k, p_);                    \
            const T_##m##_##in z_ = _##m##_maskz_loadu_##s((K_##m##_##in)k, p_);               \
            for (unsigned i = 0; i < LANES(l_, in); i++)                                       \
                memcpy(&want.in[i], BIT(k) ? &a.in[i] : &src.in[i], size_);                    \
            memcpy(&got, &l_, sizeof l_);                                                      \
            check(TEXT(_##m##_mask_loadu_##s), KIND_u8);                                       \
            memset(&want, 0, sizeof want);                                                     \
            for (unsigned i = 0; i < LANES(l_, in); i++)                                       \
                if (BIT(k))                                                                    \
                    memcpy(&want.in[i], &a.in[i], size_);                                      \
            memcpy(&got, &z_, sizeof z_);                                                      \
            check(TEXT(_##m##_maskz_loadu_##s), KIND_u8);                                      \
            _##m##_mask_storeu_##s(p_, (K_##m##_##in)k, AS(m, in, b));                         \
            for (unsigned i = first_; i < last_; i++) {                                        \
                memcpy(&got, p_ + i * size_, size_);                                           \
                memcpy(&want, BIT(k) ? &b.in[i] : &a.in[i], size_);                            \
                check(TEXT(_##m##_mask_storeu_##s), KIND_u8);                                  \
            }                                                                                  \
        }
#define MASKED_MEMORY_ALL(m)                                                                   \
    MASKED_MEMORY(m, epi8, u8)                                                                 \
    MASKED_MEMORY(m, epi16, u16)                                                               \
    MASKED_MEMORY(m, epi32, u32)                                                               \
    MASKED_MEMORY(m, epi64, u64)                                                               \
    MASKED_MEMORY(m, ps, f32)                                                                  \
    MASKED_MEMORY(m, pd, f64)

/* Does fn end the process? */
static bool faults(void (*fn)(void *), void *p)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit none = { 0, 0 };
        setrlimit(RLIMIT_CORE, &none);
        fclose(stderr);
        fn(p);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status != 0;
}

#define MEMORY(s, in)                                                                          \
    intrinsics += 2;                                                                           \
    for (int round_ = 0; round_ < ROUNDS; round_++) {                                          \
        operands(KIND_u8);                                                                     \
        unsigned char *p_ = room + page - 64;                                                  \
        memcpy(p_, &a, 64);                                                                    \
        const T_mm512_##in r_ = _mm512_loadu_##s(p_);                                          \
        memcpy(&got, &r_, 64);                                                                 \
        want = a;                                                                              \
        check(TEXT(_mm512_loadu_##s), KIND_u8);                                                \
        p_ = room + draw() % 64;                                                               \
        _mm512_storeu_##s(p_, AS(mm512, in, b));                                               \
        memcpy(&got, p_, 64);                                                                  \
        want = b;                                                                              \
        check(TEXT(_mm512_storeu_##s), KIND_u8);                                               \
    }
#define ALIGNED_MEMORY(s, in)                                                                  \
    static void load_##s(void *p)                                                              \
    {                                                                                          \
        const T_mm512_##in r_ = _mm512_load_##s(p);                                            \
        memcpy(&got, &r_, 64);                                                                 \
    }                                                                                          \
    static void store_##s(void *p)                                                             \
    {                                                                                          \
        _mm512_store_##s(p, AS(mm512, in, b));                                                 \
    }
ALIGNED_MEMORY(ps, f32)
ALIGNED_MEMORY(pd, f64)
ALIGNED_MEMORY(si512, u64)
ALIGNED_MEMORY(epi32, u32)
ALIGNED_MEMORY(epi64, u64)

static void stream_si512(void *p)
{
    _mm512_stream_si512(p, AS(mm512, u64, b));
}

static void aligned(const char *name, void (*load)(void *), void (*store)(void *))
{
    intrinsics += 2;
    operands(KIND_u8);
    memcpy(room, &a, 64);
    load(room);
    want = a;
    check(name, KIND_u8);
    store(room);
    memcpy(&got, room, 64);
    want = b;
    check(name, KIND_u8);
    /* A CPU's compiler may load without alignment; the emulation is the strict one. */
    if (ng_test_is_emulation && (!faults(load, room + 32) || !faults(store, room + 32))) {
        printf("FAIL: %s takes 32 bytes of alignment\n", name);
        failures++;
    }
}

static void memory(void)
{
    make_room();
    MEMORY(ps, f32)
    MEMORY(pd, f64)
    MEMORY(si512, u64)
    MEMORY(epi8, u8)
    MEMORY(epi16, u16)
    MEMORY(epi32, u32)
    MEMORY(epi64, u64)
    aligned("_mm512_load_ps, store_ps", load_ps, store_ps);
    aligned("_mm512_load_pd, store_pd", load_pd, store_pd);
    aligned("_mm512_load_si512, store_si512", load_si512, store_si512);
    aligned("_mm512_load_epi32, store_epi32", load_epi32, store_epi32);
    aligned("_mm512_load_epi64, store_epi64", load_epi64, store_epi64);
    aligned("_mm512_stream_si512", load_si512, stream_si512);
}

static void masked_memory(void)
{
    MASKED_MEMORY_ALL(mm512)
    MASKED_MEMORY_ALL(mm256)
    MASKED_MEMORY_ALL(mm)
#define NARROW_STORE(name, in, out)                                                            \
    intrinsics++;                                                                              \
    for (unsigned n_ = 0; n_ <= LANES(__m512i, in); n_++) {                                    \
        operands(KIND_##in);                                                                   \
        k &= (n_ < 64 ? (uint64_t)1 << n_ : 0) - 1;                                            \
        unsigned char *p_ = room + page - n_ * sizeof want.out[0];                             \
        memcpy(p_, &src, n_ * sizeof want.out[0]);                                             \
        name(p_, (K_mm512_##in)k, AS(mm512, in, a));                                           \
        memcpy(&got, p_, n_ * sizeof want.out[0]);                                             \
        for (unsigned i = 0; i < n_; i++)                                                      \
            want.out[i] = BIT(k) ? (__typeof__(want.out[0]))a.in[i] : src.out[i];              \
        check(TEXT(name), KIND_u8);                                                            \
    }
    NARROW_STORE(_mm512_mask_cvtepi16_storeu_epi8, u16, u8)
    NARROW_STORE(_mm512_mask_cvtepi32_storeu_epi8, u32, u8)
    NARROW_STORE(_mm512_mask_cvtepi32_storeu_epi16, u32, u16)
    static int32_t table[64];
    for (int i = 0; i < 64; i++)
        table[i] = (int32_t)draw();
#define AT(v) ((uint32_t)(v) % 64)
    ROW(_mm512_i32gather_epi32, u32, u32,
        _mm512_i32gather_epi32(AS(mm512, u32, a) & _mm512_set1_epi64(0x0000003F0000003F), table,
                               4),
        table[AT(x)])
    ROW(_mm512_i32gather_ps, u32, u32,
        _mm512_i32gather_ps(AS(mm512, u32, a) & _mm512_set1_epi64(0x0000003F0000003F), table,
                            4),
        table[AT(x)])
}

int ng_test_intrinsics(void)
{
    floating();
    comparisons_fp();
    comparisons_512();
    comparisons_256();
    comparisons_128();
    tests_and_movm();
    integers();
    logic();
    shifts();
    shifts_by_lane();
    choice();
    constants();
    casts();
    parts();
    conversions();
    permutations();
    reductions();
    dots();
    bf16();
    exponents();
    masks();
    memory();
    masked_memory();
    printf("%d rows, %d failed\n", intrinsics, failures);
    return failures != 0;
}
