/* SPDX-License-Identifier: Apache-2.0 */
/* What random.h asks of an ISA: vectors of 32-bit words. Here 8 lanes of AVX2. */
#ifndef NG_AVX2_WORDS_H
#define NG_AVX2_WORDS_H

#include <immintrin.h>
#include <stdint.h>

enum {
    VL = 8,
    TABLE_BITS = 3 /* a table is a vector */
};
typedef __m256i words;

static inline words words_load(const uint32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
static inline void words_store(uint32_t *p, words x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, x);
}
static inline words words_all(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}
static inline words words_xor(words x, words y)
{
    return _mm256_xor_si256(x, y);
}
static inline words words_xor3(words x, words y, words z)
{
    return _mm256_xor_si256(_mm256_xor_si256(y, z), x);
}
static inline words words_and(words x, words y)
{
    return _mm256_and_si256(x, y);
}
/* x where mask is ones, y where it is zeros. */
static inline words words_select(words mask, words x, words y)
{
    return _mm256_blendv_epi8(y, x, mask);
}
static inline words words_add(words x, words y)
{
    return _mm256_add_epi32(x, y);
}
static inline words words_shl(words x, int n)
{
    return _mm256_slli_epi32(x, n);
}
static inline words words_shr(words x, int n)
{
    return _mm256_srli_epi32(x, n);
}
/* A table of VL words, by the index's low TABLE_BITS bits. */
static inline words words_lookup(const uint32_t *table, words index)
{
    return _mm256_permutevar8x32_epi32(words_load(table), index);
}

/* ---- In 64-bit lanes. ---- */

/* Lower halves' products. */
static inline words words_mul(words x, words y)
{
    return _mm256_mul_epu32(x, y);
}
/* Upper halves to the lower. */
static inline words words_high(words x)
{
    return _mm256_srli_epi64(x, 32);
}
/* Lower halves of both: x's stay, y's go up. */
static inline words words_pair(words x, words y)
{
    return _mm256_blend_epi32(x, _mm256_slli_epi64(y, 32), 0xAA);
}
/* Even lanes of both, odd lanes of both, in turn. */
static inline words words_unpack_low(words x, words y)
{
    return _mm256_unpacklo_epi64(x, y);
}
static inline words words_unpack_high(words x, words y)
{
    return _mm256_unpackhi_epi64(x, y);
}
/* first + i, even lanes the first half of them. */
static inline words words_blocks(uint64_t first)
{
    return _mm256_add_epi64(_mm256_set1_epi64x((long long)first),
                            _mm256_setr_epi64x(0, 2, 1, 3));
}

#endif
