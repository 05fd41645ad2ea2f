/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies between the multiplies of a transformer layer: RMSNorm, rotary embedding, sums of
 * rows. Numerics: docs/numerics.md, section 11.11; item numbers below are of it.
 */
#ifndef NG_LAYER_H
#define NG_LAYER_H

#include "ng/elementary.h"
#include "ng/profile.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NG_RMS_NORM_EPS 0x3727C5ACu /**< RN(1e-5) */

typedef struct ng_rms_norm_op {
    size_t size;              /**< sizeof(ng_rms_norm_op) */
    uint32_t eps;             /**< FP32 pattern, finite, not negative; 0: none */
    ng_function_choice rsqrt; /**< all zero: correctly rounded */
} ng_rms_norm_op;

/**
 * Every row over the root of its mean square, times a gain; item 130.
 *
 * @param x     [T, H], any element format without block scales.
 * @param gain  [H], any element format; or NULL: no multiplication.
 * @param y     [T, H], f32, bf16 or f16: written, one `rne`. May be `x`.
 *
 * @retval NG_ERR_ARGUMENT     a NULL, eps, a kind of function that is none.
 * @retval NG_ERR_UNSUPPORTED  "sleef" on a CPU without AVX2 and FMA.
 * @retval NG_ERR_SHAPE        ranks or dimensions.
 * @retval NG_ERR_FORMAT       the output's format; block scales or tags.
 * @retval NG_ERR_LAYOUT       y overlaps an input.
 * @retval NG_ERR_MEMORY       no room for FP32 copies.
 *
 * On error nothing is written. Source: NKL core/mlp, core/rmsnorm; GPT-OSS, torch/model.py.
 */
NG_API ng_status ng_rms_norm(ng_ctx *ctx, const ng_rms_norm_op *op, const ng_tensor *x,
                             const ng_tensor *gain, const ng_tensor *y);

/** Which two elements of a head are turned together; item 133. */
typedef enum ng_rope_pairs {
    NG_ROPE_HALVES = 0,  /**< "halves": e and e + d/2 */
    NG_ROPE_ADJACENT = 1 /**< "adjacent": 2e and 2e + 1 */
} ng_rope_pairs;

typedef struct ng_rope_op {
    size_t size; /**< sizeof(ng_rope_op) */
    ng_rope_pairs pairs;
    ng_format product; /**< f32, bf16 or f16: of each of the four products; NONE: f32 */
} ng_rope_op;

/**
 * Rotary position embedding: each pair (a, b) of a head becomes (a c - b s, b c + a s).
 *
 * @param x         [T, n * d]: n heads of d elements, any element format without block scales.
 * @param cosine    [T, d / 2], any element format: c of each token and pair.
 * @param sine      [T, d / 2], likewise: s.
 * @param y         [T, n * d], f32, bf16 or f16: written, one `rne`. May be `x`.
 *
 * How angles become c and s is the caller's: they are operands. Statuses as ng_rms_norm().
 * Source: NKL core/embeddings/rope.py.
 */
NG_API ng_status ng_rope(ng_ctx *ctx, const ng_rope_op *op, const ng_tensor *x,
                         const ng_tensor *cosine, const ng_tensor *sine, const ng_tensor *y);

/**
 * y = RN(a + b), then one `rne` to y's format: a residual, or a bias; item 131.
 *
 * @param a  [T, N], any element format without block scales.
 * @param b  [T, N] likewise, or [N]: added to every row.
 * @param y  [T, N], f32, bf16 or f16: written. May be `a` or `b`.
 *
 * Statuses as ng_rms_norm().
 */
NG_API ng_status ng_add(ng_ctx *ctx, const ng_tensor *a, const ng_tensor *b,
                        const ng_tensor *y);

/** One thing that decides bits here, and how well its default is known. */
typedef struct ng_layer_param {
    const char *key;    /**< "rms.sum", "rope.product", ... */
    const char *values; /**< the default first */
    ng_evidence evidence;
    const char *source;
} ng_layer_param;
/** The i-th parameter, i from 0; NULL past the end. */
NG_API const ng_layer_param *ng_layer_param_at(size_t i);

#ifdef __cplusplus
}
#endif
#endif
