/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions of FP32 numbers. Numerics: docs/numerics.md, sections 8 and 11.8. */
#ifndef NG_ELEMENTARY_H
#define NG_ELEMENTARY_H

#include "ng/convert.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ng_function {
    NG_FN_EXP = 0,        /**< "exp" */
    NG_FN_EXP2 = 1,       /**< "exp2" */
    NG_FN_LOG = 2,        /**< "log", natural */
    NG_FN_TANH = 3,       /**< "tanh" */
    NG_FN_SIGMOID = 4,    /**< "sigmoid": 1 / (1 + e^-x), one function */
    NG_FN_RECIPROCAL = 5, /**< "reciprocal": 1 / x */
    NG_FN_RSQRT = 6       /**< "rsqrt": 1 / sqrt(x), one function */
} ng_function;

/** "exp", ...; NULL for what is no function. */
NG_API const char *ng_function_name(ng_function f);

/** Whose bits a function has. What a chip's tables hold is not public: evidence `assumed`. */
typedef enum ng_function_kind {
    NG_FUNCTION_CR = 0,    /**< "cr": correctly rounded, ties to even */
    NG_FUNCTION_SLEEF = 1, /**< "sleef": SLEEF's deterministic u10 functions with FMA; the CPU
                                must have AVX2 and FMA */
    NG_FUNCTION_TABLE = 2  /**< "table": the caller's, one entry for each bf16 code */
} ng_function_kind;

/** All zero: correctly rounded. */
typedef struct ng_function_choice {
    ng_function_kind kind;
    const uint16_t *table; /**< TABLE: 65536 bf16 codes; entry c is the result for the argument
                                whose bf16 code, after ties to even, is c. Else not read */
} ng_function_choice;

typedef struct ng_elementary_op {
    size_t size; /**< sizeof(ng_elementary_op) */
    ng_function function;
    ng_function_choice choice;
    ng_cast cast; /**< of the FP32 result to dst's format */
} ng_elementary_op;

/**
 * A function of every element: its value as FP32 (exact in every format), the function, and one
 * conversion of the FP32 result to `dst`'s format. A function of functions is a sequence of
 * calls with FP32 between them.
 *
 * @param src  any shape and strides, any format, no block scales.
 * @param dst  the same shape, written. May be `src` if format and strides are the same too.
 *
 * @retval NG_ERR_ARGUMENT     a NULL (the table of "table" too), an enum out of range, random
 *                             words as for ng_convert().
 * @retval NG_ERR_UNSUPPORTED  "sleef" on a CPU without AVX2 and FMA.
 * @retval NG_ERR_SHAPE        the shapes differ.
 * @retval NG_ERR_FORMAT       block scales or tags; as for ng_convert(): a result that is NaN
 *                             meets NG_NAN_TO_ERROR.
 * @retval NG_ERR_LAYOUT       operands overlap.
 *
 * On error dst is unchanged. Numerics: docs/numerics.md, sections 8 and 11.8.
 */
NG_API ng_status ng_elementary(ng_ctx *ctx, const ng_elementary_op *op, const ng_tensor *src,
                               const ng_tensor *dst);

#ifdef __cplusplus
}
#endif
#endif
