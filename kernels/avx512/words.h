/* SPDX-License-Identifier: Apache-2.0 */
/* What random.h asks of an ISA beside ints512.h. Here AVX-512. */
#ifndef NG_AVX512_WORDS_H
#define NG_AVX512_WORDS_H

#include "../ints512.h"

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

/* Columns of four words, in place: x[4 j ...] become the j-th. */
IV_INLINE void words_turn4(ivec x[VL])
{
    ivec y[VL];
    IV_UNROLL
    for (int i = 0; i < VL; i += 4) {
        iv_turn_quarters(x + i, 1);
        IV_UNROLL
        for (int j = 0; j < 4; j++)
            y[4 * j + i / 4] = x[i + j];
    }
    IV_UNROLL
    for (int i = 0; i < VL; i++)
        x[i] = y[i];
}

#endif
