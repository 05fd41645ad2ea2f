/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_CONVERT_H
#define NG_CONVERT_H

#include "ng/ctx.h"
#include "ng/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Rounding rules, by the names of IEEE 754-2019 section 4.3 and IEEE P3109. */
typedef enum ng_round {
    NG_ROUND_TIES_TO_EVEN = 0,    /**< "rne" */
    NG_ROUND_TIES_TO_AWAY = 1,    /**< "rna" */
    NG_ROUND_TOWARD_ZERO = 2,     /**< "rtz" */
    NG_ROUND_TOWARD_NEGATIVE = 3, /**< "rdn" */
    NG_ROUND_TOWARD_POSITIVE = 4, /**< "rup" */
    NG_ROUND_TO_ODD = 5,          /**< "rto" */
    NG_ROUND_STOCHASTIC = 6       /**< "sr": needs random words */
} ng_round;

/** What happens past the largest finite value. */
typedef enum ng_overflow {
    NG_OVERFLOW_INF = 0,              /**< "inf": as IEEE 754; NaN where there is no Inf */
    NG_OVERFLOW_SATURATE = 1,         /**< "sat": finite and infinite inputs give the maximum */
    NG_OVERFLOW_SATURATE_KEEP_INF = 2 /**< "sat_keep_inf": Inf stays Inf, else NaN */
} ng_overflow;

typedef enum ng_nan_sign {
    NG_NAN_SIGN_CLEAR = 0,
    NG_NAN_SIGN_KEEP = 1
} ng_nan_sign;

/** What a NaN becomes in a format that has none. */
typedef enum ng_nan_to {
    NG_NAN_TO_MAX = 0,
    NG_NAN_TO_ZERO = 1,
    NG_NAN_TO_ERROR = 2
} ng_nan_to;

/** Stochastic rounding variants A, B, C of IEEE P3109. */
typedef enum ng_sr {
    NG_SR_A = 0,
    NG_SR_B = 1,
    NG_SR_C = 2
} ng_sr;
typedef enum ng_sr_take {
    NG_SR_TAKE_LOW = 0,
    NG_SR_TAKE_HIGH = 1
} ng_sr_take;

/** Where random words come from. Word i belongs to element i in row-major logical order.
 *  Numerics: docs/numerics.md, sections 7 and 11.7. */
typedef enum ng_random_kind {
    NG_RANDOM_NONE = 0,
    NG_RANDOM_EXTERNAL = 1, /**< the caller's array */
    NG_RANDOM_XORWOW = 2,   /**< Marsaglia 2003; a state per lane, or four */
    NG_RANDOM_LFSR32 = 3,   /**< Galois, right shift; a state per lane */
    NG_RANDOM_PHILOX = 4    /**< philox4x32, 10 rounds: any word from its index */
} ng_random_kind;

/**
 * A source of random words: an operand, never changed by a call. A call that goes on where
 * another ended says so with `first`.
 *
 * The rows of XORWOW and LFSR32 are those of the tensor that is rounded: its last dimension is
 * a row's length (GEMM: N of D, for both of its casts); row r, `first` counted in, draws from
 * lane r mod `lanes`.
 */
typedef struct ng_random {
    ng_random_kind kind;
    const uint32_t *word;  /**< EXTERNAL */
    int64_t count;         /**< EXTERNAL: words there are; fewer than first + elements is an
                                error */
    uint64_t first;        /**< place in the stream of element 0 (EXTERNAL: in `word`);
                                first + elements is below 2^63 */
    uint32_t key[2];       /**< PHILOX */
    const uint32_t *state; /**< XORWOW: [lanes][states][6], words x y z w v d; LFSR32: [lanes].
                                As they are before the stream's first word */
    uint32_t lanes;        /**< XORWOW, LFSR32: 0 means 128 */
    uint32_t states;       /**< XORWOW: 1 or 4 a lane, column j takes j mod states; 0 means 1 */
    uint32_t poly;         /**< LFSR32: xored in when the bit shifted out is 1 */
    uint32_t steps;        /**< LFSR32: shifts a word, 1..32; 0 means 32 */
} ng_random;

/** From a value to a code. All zero: ties to even, IEEE overflow, canonical positive NaN.
 *  Numerics: docs/numerics.md, section 2. */
typedef struct ng_cast {
    ng_round round;
    ng_overflow overflow;
    ng_nan_sign nan_sign;
    ng_nan_to nan_to;
    ng_sr sr;         /**< STOCHASTIC only, as the three below */
    uint32_t sr_bits; /**< random bits used, 1..32; 0 means 32 */
    ng_sr_take sr_take;
    ng_random random;
} ng_cast;

/**
 * Convert one value: round on the format's grid continued past its maximum, then apply the
 * overflow rule. For testbenches (DPI) and tables; ng_convert() does tensors.
 *
 * @param word  the random word, used by NG_ROUND_STOCHASTIC only; cast->random is not read.
 *
 * @retval NG_ERR_FORMAT    `to` is no format; or `overflow` is INF and `to` has neither Inf nor
 *                          NaN; or a NaN meets NG_NAN_TO_ERROR.
 * @retval NG_ERR_ARGUMENT  an enum of `cast` is out of range.
 *
 * On error `code` is untouched. Numerics: docs/numerics.md, section 2.
 */
NG_API ng_status ng_encode(ng_format to, const ng_cast *cast, const ng_value *value,
                           uint32_t word, uint32_t *code);

typedef struct ng_convert_op {
    size_t size; /**< sizeof(ng_convert_op) */
    ng_cast cast;
} ng_convert_op;

/**
 * Convert every element of `src` to `dst`'s format, in one rounding: never through another
 * format.
 *
 * @param src  any shape and strides, any format, no block scales (see ng_dequantize).
 * @param dst  the same shape, written. May be `src` if format and strides are the same too.
 *
 * @retval NG_OK            every element of `dst` is written.
 * @retval NG_ERR_SHAPE     the shapes differ, a dimension is negative, or the sizes overflow.
 * @retval NG_ERR_FORMAT    see ng_encode(); found before anything is written.
 * @retval NG_ERR_LAYOUT    operands overlap, or a 4-bit row does not start on a byte.
 * @retval NG_ERR_ARGUMENT  a NULL, an enum out of range, too few random words, a random source
 *                          that can give none (an all-zero state).
 *
 * Numerics: docs/numerics.md, section 2.
 */
NG_API ng_status ng_convert(ng_ctx *ctx, const ng_convert_op *op, const ng_tensor *src,
                            const ng_tensor *dst);

#ifdef __cplusplus
}
#endif
#endif
