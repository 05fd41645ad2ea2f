/* SPDX-License-Identifier: Apache-2.0 */
/* What random.h asks of an ISA beside ints.h. Here AVX2. */
#ifndef NG_AVX2_WORDS_H
#define NG_AVX2_WORDS_H

#include "ints.h"

enum {
    TABLE_BITS = 3,  /* a table is a vector */
    WORDS_GROUPS = 5 /* of philox: more than the registers hold, and still the fastest */
};

static inline ivec words_xor3(ivec x, ivec y, ivec z)
{
    return _mm256_xor_si256(_mm256_xor_si256(y, z), x);
}
/* x is there, in a register, before what comes next: the order of instructions is ours. */
static inline void words_keep(ivec *x)
{
    __asm__("" : "+x"(*x));
}
/* sum, and x added where mask is ones. */
static inline ivec words_xor_some(ivec sum, ivec x, ivec mask)
{
    return _mm256_xor_si256(sum, _mm256_and_si256(x, mask));
}
/* A table of VL words, by the index's low TABLE_BITS bits. */
static inline ivec words_lookup(const uint32_t *table, ivec index)
{
    return _mm256_permutevar8x32_epi32(iv_load(table), index);
}

/* ---- In 64-bit lanes. ---- */

/* Lower halves' products. */
static inline ivec words_mul(ivec x, ivec y)
{
    return _mm256_mul_epu32(x, y);
}
/* Upper halves to the lower. */
static inline ivec words_high(ivec x)
{
    return _mm256_srli_epi64(x, 32);
}
/* Lower halves of both: x's stay, y's go up. */
static inline ivec words_pair(ivec x, ivec y)
{
    return _mm256_blend_epi32(x, _mm256_slli_epi64(y, 32), 0xAA);
}
/* Even lanes of both, odd lanes of both, in turn. */
static inline ivec words_unpack_low(ivec x, ivec y)
{
    return _mm256_unpacklo_epi64(x, y);
}
static inline ivec words_unpack_high(ivec x, ivec y)
{
    return _mm256_unpackhi_epi64(x, y);
}
/* first + i, even lanes the first half of them. */
static inline ivec words_blocks(uint64_t first)
{
    return _mm256_add_epi64(_mm256_set1_epi64x((long long)first),
                            _mm256_setr_epi64x(0, 2, 1, 3));
}

/* Columns of four words, in place: x[4 j ...] become the j-th. */
IV_INLINE void words_turn4(ivec x[VL])
{
    ivec y[VL];
    IV_UNROLL
    for (int i = 0; i < 4; i++) {
        y[i] = _mm256_permute2x128_si256(x[2 * i], x[2 * i + 1], 0x20);
        y[i + 4] = _mm256_permute2x128_si256(x[2 * i], x[2 * i + 1], 0x31);
    }
    IV_UNROLL
    for (int i = 0; i < VL; i++)
        x[i] = y[i];
}

#endif
