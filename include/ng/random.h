/* SPDX-License-Identifier: Apache-2.0 */
/* Random words by themselves: what a stochastic rounding with the same source would draw. */
#ifndef NG_RANDOM_H
#define NG_RANDOM_H

#include "ng/convert.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Words [first, first + count) of a source, counted from source->first.
 *
 * @param columns  length of a row: the last dimension of the tensor whose words these are.
 * PHILOX and EXTERNAL do not depend on it.
 * @param first    number of the first element wanted, at least 0.
 * @param count    at least 1.
 * @param words    [count], written.
 *
 * @retval NG_ERR_ARGUMENT  a NULL; a kind, lanes, states, poly or steps that cannot be; an
 *                          all-zero state (the message names the lane); too few external words;
 *                          the stream would end past 2^63.
 * @retval NG_ERR_SHAPE     columns or count below 1, first below 0.
 * @retval NG_ERR_LAYOUT    `words` overlaps the source's memory.
 *
 * Any split into calls, threads and ISAs gives the same words. Numerics: docs/numerics.md,
 * sections 7 and 11.7.
 */
NG_API ng_status ng_random_words(ng_ctx *ctx, const ng_random *source, int64_t columns,
                                 int64_t first, int64_t count, uint32_t *words);

/**
 * The same as uniform numbers in [0, 1): ((w >> 9) | 0x3F800000) - 1, an FP32 number of 23 bits
 * and exact. Written as FP32 patterns. Statuses as ng_random_words().
 */
NG_API ng_status ng_random_uniform(ng_ctx *ctx, const ng_random *source, int64_t columns,
                                   int64_t first, int64_t count, uint32_t *patterns);

/**
 * States for XORWOW or LFSR32 from one seed. A convenience of this library, no device's: word k
 * of the array is word k of the philox stream whose key is (seed mod 2^32, seed div 2^32); a
 * state that would be all zero (the first five words of XORWOW's) gets 1 as its first word.
 *
 * @param lanes   0 means 128.
 * @param states  XORWOW: 1 or 4, 0 means 1; LFSR32: 0 or 1.
 * @param state   [lanes][states][6] or [lanes], written.
 *
 * @retval NG_ERR_ARGUMENT  another kind, other states, a NULL.
 */
NG_API ng_status ng_random_states(ng_random_kind kind, uint64_t seed, uint32_t lanes,
                                  uint32_t states, uint32_t *state);

#ifdef __cplusplus
}
#endif
#endif
