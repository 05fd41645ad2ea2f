/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of this ISA take VDPBF16PS for, asked of the CPU at hand: two fused
 * multiply-adds, the upper halves first, ties to even, whatever MXCSR says. The cases are such
 * that another order, a rounded product sum, one rounding for both, or another mode shows in a
 * bit. And VCVTNE2PS2BF16 for: ties to even, whatever MXCSR says, the second operand's lanes
 * first. Subnormals are no part of either: kernels keep away from them.
 */
#include "proved.h"
#include "../dp.h"
#include "../widen.h"

enum {
    CASES = 4096
};

static uint32_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* A bf16 of either sign with an exponent within `reach` of 1. */
static uint32_t any_bf16(uint64_t *state, uint32_t reach)
{
    const uint32_t w = next(state);
    return (w & 0x807Fu) | (127u - reach / 2 + (w >> 8 & 0xFFu) % (reach + 1)) << 7;
}

/* RN(acc + x * y), by FP64: the product is exact, the sum rounded to odd before FP32. */
static float fused(float acc, uint32_t x, uint32_t y)
{
    const double p = (double)as_float(x << 16) * (double)as_float(y << 16), a = (double)acc;
    const double s = p + a, b = s - p, rest = (p - (s - b)) + (a - b);
    uint64_t u;
    memcpy(&u, &s, sizeof u);
    if (rest != 0 && !(u & 1)) {
        uint64_t r;
        memcpy(&r, &rest, sizeof r);
        u = (r ^ u) >> 63 ? u - 1 : u + 1;
    }
    double odd;
    memcpy(&odd, &u, sizeof odd);
    return (float)odd;
}

/* 16 lanes at a time, under a word with another rounding and with flushes. */
static bool agrees(const float acc[16], const uint32_t x[16], const uint32_t y[16])
{
    float got[16];
    const unsigned keep = _mm_getcsr();
    vec s = vec_load(acc);
    __asm__ volatile("" : "+m"(s)); /* the instruction stays between the control words */
    _mm_setcsr(0xFFC0u);
    s = dp(s, dp_load(x), dp_load(y));
    __asm__ volatile("" : "+m"(s));
    _mm_setcsr(keep);
    vec_store(got, s);
    for (int l = 0; l < 16; l++) {
        const float want =
            fused(fused(acc[l], x[l] >> 16, y[l] >> 16), x[l] & 0xFFFFu, y[l] & 0xFFFFu);
        if (as_pattern(want) != as_pattern(got[l]))
            return false;
    }
    return true;
}

/* 32 normal numbers or zeros to bf16; one in four a tie, one in four just beside one. */
static bool rounds(uint64_t *state)
{
    uint32_t u[32];
    uint16_t got[32];
    for (int l = 0; l < 32; l++) {
        u[l] = (next(state) & 0x807FFFFFu) | (1u + next(state) % 253u) << 23;
        if (l % 4 == 1)
            u[l] = (u[l] & 0xFFFF0000u) | 0x8000u;
        else if (l % 4 == 2)
            u[l] = (u[l] & 0xFFFF0000u) | (0x7FFFu + (uint32_t)l % 8 / 4 * 2);
        else if (l % 16 == 3)
            u[l] &= 0x80000000u;
    }
    const unsigned keep = _mm_getcsr();
    ivec low = iv_load(u), high = iv_load(u + 16);
    __asm__ volatile("" : "+m"(low), "+m"(high));
    _mm_setcsr(0xFFC0u);
    ivec y = dp_codes(iv_float(low), iv_float(high));
    __asm__ volatile("" : "+m"(y));
    _mm_setcsr(keep);
    iv_store(got, y);
    for (int l = 0; l < 32; l++)
        if (got[l] != (u[l] + 0x7FFFu + (u[l] >> 16 & 1u)) >> 16)
            return false;
    return true;
}

bool ng_kernels_avx512bf16_proved(void)
{
    uint64_t state = 20;
    for (int i = 0; i < CASES / 32; i++)
        if (!rounds(&state))
            return false;
    for (int i = 0; i < CASES / 16; i++) {
        float acc[16];
        uint32_t x[16], y[16];
        const uint32_t reach = 1u + (uint32_t)i % 28u;
        for (int l = 0; l < 16; l++) {
            x[l] = any_bf16(&state, reach) << 16 | any_bf16(&state, reach);
            y[l] = any_bf16(&state, reach) << 16 | any_bf16(&state, reach);
            acc[l] = as_float((next(&state) & 0x807FFFFFu) |
                              (127u - reach / 2 + next(&state) % (reach + 1)) << 23);
            if (l % 4 == 1) /* the lower pair takes away what the upper one brought */
                x[l] = x[l] >> 16 | (x[l] & 0xFFFF0000u),
                y[l] = (y[l] ^ 0x80000000u) >> 16 | (y[l] & 0xFFFF0000u);
        }
        if (!agrees(acc, x, y))
            return false;
    }
    return true;
}

#ifdef NG_EMULATE_AVX512
bool ng_kernels_avx512bf16_slow(void)
{
    return false; /* there is no such instruction whose time could be taken */
}
#else
enum {
    SUMS = 12, /* six cycles, two a cycle, and no more registers than there are */
    ROUNDS = 32,
    TRIES = 32
};

#define EACH_SUM(i) IV_UNROLL for (int i = 0; i < SUMS; i++)

/* Of many tries the shortest: what else runs on this core only adds. */
static uint64_t shorter(uint64_t least, uint64_t from)
{
    const uint64_t ticks = __rdtsc() - from;
    return ticks < least ? ticks : least;
}

/*
 * VDPBF16PS is twice the work of an FMA. Zen 4 and 5 start as many of either; Xeons with
 * AVX512_FP16 start a VDPBF16PS every other cycle and two FMAs a cycle (measured: 120 and 240
 * GFLOP/s), and there products by FMA take two thirds of the time. Kernels reach 0.93 of the
 * peak by VDPBF16PS and 0.66 or more by FMA on such, so they are even at 2.8 times an FMA's
 * time. No CPU is between 1 and 4; but a neighbour on the core takes FMA's ports rather than
 * VDPBF16PS's one, and then 4 looks like 2.3 now and then: so the line is drawn at 2.
 */
bool ng_kernels_avx512bf16_slow(void)
{
    const ivec pair = iv_all(0x3F803F80u);
    const vec one = iv_float(iv_all(0x3F800000u));
    uint64_t dp_least = UINT64_MAX, fma_least = UINT64_MAX;
    for (int t = 0; t < TRIES; t++) {
        vec s[SUMS];
        EACH_SUM(i)
        s[i] = one;
        uint64_t from = __rdtsc();
        for (int r = 0; r < ROUNDS; r++) {
            EACH_SUM(i)
            {
                s[i] = dp(s[i], iv_float(pair), iv_float(pair));
                __asm__ volatile("" : "+v"(s[i]));
            }
        }
        dp_least = shorter(dp_least, from);
        from = __rdtsc();
        for (int r = 0; r < ROUNDS; r++) {
            EACH_SUM(i)
            {
                s[i] = vec_fma(one, one, s[i]);
                __asm__ volatile("" : "+v"(s[i]));
            }
        }
        fma_least = shorter(fma_least, from);
    }
    return dp_least > 2 * fma_least;
}
#endif
