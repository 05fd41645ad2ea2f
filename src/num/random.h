/* SPDX-License-Identifier: Apache-2.0 */
/* Generators of random words, any word from its index. Numerics: docs/numerics.md, 7 and 11.7.
 */
#ifndef NG_NUM_RANDOM_H
#define NG_NUM_RANDOM_H

#include "ng/convert.h"

/* A source's numbers with their defaults filled in. */
uint32_t ng_num_lanes(const ng_random *r);
uint32_t ng_num_states(const ng_random *r);
uint32_t ng_num_steps(const ng_random *r);

/* Philox4x32, 10 rounds: one block. */
void ng_num_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Six words x y z w v d. */
struct ng_xorwow {
    uint32_t word[6];
};
/* To the next state; its word. */
uint32_t ng_num_xorwow_next(struct ng_xorwow *s);
/* n steps at once. */
void ng_num_xorwow_jump(struct ng_xorwow *s, uint64_t n);

/* n shifts of a Galois register, one by one; n words of `steps` shifts at once. */
uint32_t ng_num_lfsr_shift(uint32_t state, uint32_t poly, uint32_t n);
uint32_t ng_num_lfsr_jump(uint32_t state, uint32_t poly, uint32_t steps, uint64_t n);

/* Word i of a checked source (source->first counted in) for rows of `columns` elements. */
uint32_t ng_num_random_word(const ng_random *r, int64_t columns, int64_t i);
/* Words [first, first + count). */
void ng_num_random_words(const ng_random *r, int64_t columns, int64_t first, int64_t count,
                         uint32_t *out);

/* FP32 pattern of ((w >> 9) | 0x3F800000) - 1. */
uint32_t ng_num_uniform(uint32_t word);

#endif
