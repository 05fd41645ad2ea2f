/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_COLLECTIVE_H
#define NG_COLLECTIVE_H

#include "ng/convert.h"
#include "ng/profile.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Reductions over ranks, rounding by rounding: what an all-reduce leaves on every rank, and a
 * reduce-scatter on the one that owns a chunk. What decides the bits is a collective: the order
 * of the additions and the format between them, as data.
 * Numerics: docs/numerics.md, sections 9 and 11.12; item numbers below are of it.
 */

/** The parameters: the rows of collective.def. */
typedef enum ng_collective_param {
#define NG_COLLECTIVE_PARAM(name, key, type, meaning) NG_COLLECTIVE_##name,
#include "ng/collective.def"
#undef NG_COLLECTIVE_PARAM
    NG_COLLECTIVE_PARAM_COUNT
} ng_collective_param;

/* Values of the enumerated parameters; text names stand beside each. FORMAT parameters hold an
 * ng_format, NG_FORMAT_NONE for "given"; `round` an ng_round, `overflow` an ng_overflow. */
typedef enum ng_collective_algorithm {
    NG_ALGORITHM_RING = 0,        /**< "ring" */
    NG_ALGORITHM_KANGA_RING = 1,  /**< "kanga_ring": two ranks a hop, an even number of ranks */
    NG_ALGORITHM_MESH = 2,        /**< "mesh": chips, then their sums */
    NG_ALGORITHM_RDH = 3,         /**< "rdh": chips, then halving; 2^i chips */
    NG_ALGORITHM_TREE = 4,        /**< "tree": halves of the ranks */
    NG_ALGORITHM_SINGLE_STEP = 5, /**< "single_step": one sum of all */
    NG_ALGORITHM_EXPLICIT = 6,    /**< "explicit": as `order` says */
    NG_ALGORITHM_REAL = 7         /**< "real": the real number, rounded once */
} ng_collective_algorithm;
typedef enum ng_collective_start { /* zero owner own */
    NG_START_ZERO = 0,
    NG_START_OWNER = 1,
    NG_START_OWN = 2
} ng_collective_start;
typedef enum ng_collective_halving { /* near far */
    NG_HALVING_NEAR = 0,
    NG_HALVING_FAR = 1
} ng_collective_halving;
typedef enum ng_collective_received { /* first last */
    NG_RECEIVED_FIRST = 0,
    NG_RECEIVED_LAST = 1
} ng_collective_received;
typedef enum ng_collective_sum { /* once pairs */
    NG_COLLECTIVE_ONCE = 0,
    NG_COLLECTIVE_PAIRS = 1
} ng_collective_sum;
typedef enum ng_collective_nan { /* propagate number */
    NG_COLLECTIVE_NAN_PROPAGATE = 0,
    NG_COLLECTIVE_NAN_NUMBER = 1
} ng_collective_nan;

/** A collective: every parameter with its value, the evidence for it and its source. */
typedef struct ng_collective {
    const char *name;  /**< "trn-ring" */
    const char *about; /**< one line for a person */
    ng_setting set[NG_COLLECTIVE_PARAM_COUNT];
} ng_collective;

/** A preset: trn-ring, trn-kanga-ring, trn-mesh, trn-rdh, trn-single-step, nccl-ring,
 *  nccl-symmetric, tree, exact; or NULL. Static storage. */
NG_API const ng_collective *ng_collective_find(const char *name);
/** The i-th preset, i from 0; NULL past the end. */
NG_API const ng_collective *ng_collective_at(size_t i);
/** Set one parameter of the caller's copy by its text form: ng_collective_set(&c, "wire",
 *  "f32"). Its evidence becomes `assumed`.
 *  @retval NG_ERR_PROFILE   no such key, or a value that is none.
 *  @retval NG_ERR_ARGUMENT  a NULL. */
NG_API ng_status ng_collective_set(ng_collective *collective, const char *key,
                                   const char *value);
/** Check that the parameters go together.
 *  @retval NG_ERR_PROFILE  `message` names key, value found and value wanted. */
NG_API ng_status ng_collective_check(const ng_collective *collective, char *message,
                                     size_t message_bytes);
/** The collective in one line, every parameter with its evidence, as reports carry it. Returns
 *  its length without the NUL, as snprintf does; writes at most `bytes`. */
NG_API size_t ng_collective_print(const ng_collective *collective, char *buffer, size_t bytes);
/** Key and meaning of a parameter; NULL for what is none. */
NG_API const char *ng_collective_param_key(ng_collective_param param);
NG_API const char *ng_collective_param_meaning(ng_collective_param param);
/** A parameter's value as text ("ring", "4", "bf16"). Length as snprintf. */
NG_API size_t ng_collective_param_print(ng_collective_param param, int32_t value, char *buffer,
                                        size_t bytes);
/** What values it may have. Length as snprintf. */
NG_API size_t ng_collective_param_values(ng_collective_param param, char *buffer, size_t bytes);
/** Can no value of it change a bit, by what the others are? `between` without nodes, ...
 *  @param sums  the reduction is a sum, not a minimum or maximum. */
NG_API bool ng_collective_param_is_idle(const ng_collective *collective,
                                        ng_collective_param param, bool sums);

/** What becomes of the ranks' elements. */
typedef enum ng_reduction {
    NG_REDUCTION_SUM = 0, /**< "sum" */
    NG_REDUCTION_MIN = 1, /**< "min" */
    NG_REDUCTION_MAX = 2  /**< "max" */
} ng_reduction;

#define NG_MAX_RANKS 1024 /**< ranks of a reduction, a limit of ours */

typedef struct ng_all_reduce_op {
    size_t size;                     /**< sizeof(ng_all_reduce_op) */
    const ng_collective *collective; /**< outlives the call */
    ng_reduction reduction;
    const char *order;      /**< algorithm `explicit`: the order of item 145, "((+1 +2) +3) +0";
                                 else NULL */
    int64_t rank;           /**< start `own`: whose result d is; else 0 */
    ng_cast out;            /**< from the result to d; sr takes a word per element of d */
    int64_t elements;       /**< with `element`: of the whole buffer; else 0 */
    const int64_t *element; /**< x and d hold only some elements: the number of each in the
                               whole buffer, row-major, one per element of d; or NULL: all */
} ng_all_reduce_op;

/**
 * What an all-reduce leaves, and, chunk for chunk, a reduce-scatter.
 *
 * @param x  [n, ...]: the buffers of n ranks, 1 <= n <= NG_MAX_RANKS, any element format
 *           without block scales.
 * @param d  the dimensions of x without the first: written. Any element format.
 *
 * @retval NG_ERR_ARGUMENT  a NULL, op->size, op->rank, op->order where it is not read or is no
 *                          order of n ranks; a rounding that is none; an element's
 *                          number outside the buffer.
 * @retval NG_ERR_PROFILE   ng_collective_check(); an algorithm that does not do n ranks.
 * @retval NG_ERR_SHAPE     ranks or dimensions.
 * @retval NG_ERR_FORMAT    block scales or tags; d's format is a scale; a NaN in a format that
 *                          has none, with nan_to "error".
 * @retval NG_ERR_LAYOUT    d overlaps x or the random words.
 * @retval NG_ERR_MEMORY, NG_ERR_SCRATCH  no room for the plan and partial sums.
 *
 * On error nothing is written. Numerics: docs/numerics.md, section 11.12.
 */
NG_API ng_status ng_all_reduce(ng_ctx *ctx, const ng_all_reduce_op *op, const ng_tensor *x,
                               const ng_tensor *d);

/** One sum of an element's plan, as it is done. */
typedef struct ng_reduce_step {
    int64_t terms;  /**< that it adds: ranks and sums before it */
    int64_t ranks;  /**< that have a part in it */
    int64_t rank;   /**< the last of them to come in, or -1: only sums do */
    uint32_t value; /**< FP32 pattern of the sum of the terms */
    uint32_t wire;  /**< FP32 pattern of what is sent: `value` in the wire's format */
} ng_reduce_step;

/**
 * One element of d with all its sums, by the reference.
 *
 * @param d      its format and shape; nothing is written.
 * @param index  of the element, as many numbers as d has dimensions.
 * @param step   room for `room` sums, in the order in which they are done; or NULL.
 * @param steps  how many there are (fewer than n), or NULL.
 * @param code   of the element.
 *
 * @retval  as ng_all_reduce(); NG_ERR_ARGUMENT: index is outside d. `real` has no sums.
 */
NG_API ng_status ng_all_reduce_element(ng_ctx *ctx, const ng_all_reduce_op *op,
                                       const ng_tensor *x, const ng_tensor *d,
                                       const int64_t *index, ng_reduce_step *step, size_t room,
                                       size_t *steps, uint32_t *code);

/**
 * The order of a chunk's sums as text, item 145: "((1 2) 3) 0". Ranks are numbers; parentheses
 * are sums that are done, rounded and sent before.
 *
 * @param ranks   n.
 * @param chunk   0 <= chunk < n.
 * @param length  of the text without the NUL; at most `bytes` of it are written.
 *
 * @retval NG_ERR_ARGUMENT, NG_ERR_PROFILE  as ng_all_reduce(); `real` has no order.
 */
NG_API ng_status ng_all_reduce_order(ng_ctx *ctx, const ng_all_reduce_op *op, int64_t ranks,
                                     int64_t chunk, char *buffer, size_t bytes, size_t *length);

#ifdef __cplusplus
}
#endif
#endif
