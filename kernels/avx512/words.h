/* SPDX-License-Identifier: Apache-2.0 */
/* What random.h asks of an ISA: vectors of 32-bit words. Here 16 lanes of AVX-512. */
#ifndef NG_AVX512_WORDS_H
#define NG_AVX512_WORDS_H

#include <stdint.h>

#include "../intrin.h"

enum {
    VL = 16,
    TABLE_BITS = 4 /* a table is a vector */
};
typedef __m512i words;

static inline words words_load(const uint32_t *p)
{
    return _mm512_loadu_si512(p);
}
static inline void words_store(uint32_t *p, words x)
{
    _mm512_storeu_si512(p, x);
}
static inline words words_all(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}
static inline words words_xor(words x, words y)
{
    return _mm512_xor_si512(x, y);
}
static inline words words_xor3(words x, words y, words z)
{
    return _mm512_ternarylogic_epi32(x, y, z, 0x96);
}
static inline words words_and(words x, words y)
{
    return _mm512_and_si512(x, y);
}
/* x where mask is ones, y where it is zeros. */
static inline words words_select(words mask, words x, words y)
{
    return _mm512_ternarylogic_epi32(mask, x, y, 0xCA);
}
static inline words words_add(words x, words y)
{
    return _mm512_add_epi32(x, y);
}
static inline words words_shl(words x, int n)
{
    return _mm512_slli_epi32(x, (unsigned)n);
}
static inline words words_shr(words x, int n)
{
    return _mm512_srli_epi32(x, (unsigned)n);
}
/* A table of VL words, by the index's low TABLE_BITS bits. */
static inline words words_lookup(const uint32_t *table, words index)
{
    return _mm512_permutexvar_epi32(index, words_load(table));
}

/* ---- In 64-bit lanes. ---- */

/* Lower halves' products. */
static inline words words_mul(words x, words y)
{
    return _mm512_mul_epu32(x, y);
}
/* Upper halves to the lower. */
static inline words words_high(words x)
{
    return _mm512_srli_epi64(x, 32);
}
/* Lower halves of both: x's stay, y's go up. */
static inline words words_pair(words x, words y)
{
    const words low = _mm512_set1_epi64(0xFFFFFFFF);
    return _mm512_ternarylogic_epi32(low, x, _mm512_slli_epi64(y, 32), 0xCA);
}
/* Even lanes of both, odd lanes of both, in turn. */
static inline words words_unpack_low(words x, words y)
{
    return _mm512_unpacklo_epi64(x, y);
}
static inline words words_unpack_high(words x, words y)
{
    return _mm512_unpackhi_epi64(x, y);
}
/* first + i, even lanes the first half of them. */
static inline words words_blocks(uint64_t first)
{
    return _mm512_add_epi64(_mm512_set1_epi64((long long)first),
                            _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
}

#endif
