/* SPDX-License-Identifier: Apache-2.0 */
/* What random.h asks of an ISA beside ints512.h. Here AVX-512. */
#ifndef NG_AVX512_WORDS_H
#define NG_AVX512_WORDS_H

#include "../ints512.h"

#define WORDS_INLINE static inline __attribute__((always_inline))
#define WORDS_UNROLL _Pragma("GCC unroll 16")

enum {
    TABLE_BITS = 4, /* a table is a vector */
    WORDS_GROUPS =
        8 /* of philox, four vectors each: some wait in memory, and still the fastest */
};

static inline ivec words_xor3(ivec x, ivec y, ivec z)
{
    return _mm512_ternarylogic_epi32(x, y, z, 0x96);
}
/* x is there, in a register, before what comes next: the order of instructions is ours. */
static inline void words_keep(ivec *x)
{
#ifndef NG_EMULATE_AVX512
    __asm__("" : "+v"(*x));
#else
    (void)x;
#endif
}
/* x where mask is ones, y where it is zeros. */
static inline ivec words_select(ivec mask, ivec x, ivec y)
{
    return _mm512_ternarylogic_epi32(mask, x, y, 0xCA);
}
/* sum, and x added where mask is ones. */
static inline ivec words_xor_some(ivec sum, ivec x, ivec mask)
{
    return _mm512_ternarylogic_epi32(sum, x, mask, 0x78);
}
/* A table of VL words, by the index's low TABLE_BITS bits. */
static inline ivec words_lookup(const uint32_t *table, ivec index)
{
    return _mm512_permutexvar_epi32(index, iv_load(table));
}

/* ---- In 64-bit lanes. ---- */

/* Lower halves' products. */
static inline ivec words_mul(ivec x, ivec y)
{
    return _mm512_mul_epu32(x, y);
}
/* Upper halves to the lower. */
static inline ivec words_high(ivec x)
{
    return _mm512_srli_epi64(x, 32);
}
/* Lower halves of both: x's stay, y's go up. */
static inline ivec words_pair(ivec x, ivec y)
{
    const ivec low = _mm512_set1_epi64(0xFFFFFFFF);
    return _mm512_ternarylogic_epi32(low, x, _mm512_slli_epi64(y, 32), 0xCA);
}
/* Even lanes of both, odd lanes of both, in turn. */
static inline ivec words_unpack_low(ivec x, ivec y)
{
    return _mm512_unpacklo_epi64(x, y);
}
static inline ivec words_unpack_high(ivec x, ivec y)
{
    return _mm512_unpackhi_epi64(x, y);
}
/* first + i, even lanes the first half of them. */
static inline ivec words_blocks(uint64_t first)
{
    return _mm512_add_epi64(_mm512_set1_epi64((long long)first),
                            _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
}

/* ---- Squares of VL by VL words, in place. ---- */

/* Quarters: of x[0], x[by], x[2 by], x[3 by] the first, the second, ... */
WORDS_INLINE void words_turn_quarters(ivec *x, int by)
{
    const ivec a = _mm512_shuffle_i32x4(x[0], x[by], 0x44),
               b = _mm512_shuffle_i32x4(x[0], x[by], 0xEE),
               c = _mm512_shuffle_i32x4(x[2 * by], x[3 * by], 0x44),
               d = _mm512_shuffle_i32x4(x[2 * by], x[3 * by], 0xEE);
    x[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    x[by] = _mm512_shuffle_i32x4(a, c, 0xDD);
    x[2 * by] = _mm512_shuffle_i32x4(b, d, 0x88);
    x[3 * by] = _mm512_shuffle_i32x4(b, d, 0xDD);
}
/* Columns: x[j] becomes the j-th. */
WORDS_INLINE void words_turn(ivec x[VL])
{
    WORDS_UNROLL
    for (int i = 0; i < VL; i += 4) { /* squares of 4 by 4, one in each quarter */
        const ivec a = _mm512_unpacklo_epi32(x[i], x[i + 1]),
                   b = _mm512_unpackhi_epi32(x[i], x[i + 1]),
                   c = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]),
                   d = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
        x[i] = _mm512_unpacklo_epi64(a, c);
        x[i + 1] = _mm512_unpackhi_epi64(a, c);
        x[i + 2] = _mm512_unpacklo_epi64(b, d);
        x[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    WORDS_UNROLL
    for (int i = 0; i < 4; i++)
        words_turn_quarters(x + i, 4);
}
/* Columns of four words: x[4 j ...] become the j-th. */
WORDS_INLINE void words_turn4(ivec x[VL])
{
    ivec y[VL];
    WORDS_UNROLL
    for (int i = 0; i < VL; i += 4) {
        words_turn_quarters(x + i, 1);
        WORDS_UNROLL
        for (int j = 0; j < 4; j++)
            y[4 * j + i / 4] = x[i + j];
    }
    WORDS_UNROLL
    for (int i = 0; i < VL; i++)
        x[i] = y[i];
}

#endif
