/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture of experts: routing, dispatch, expert MLP, combine, each a sequence of roundings.
 * Numerics: docs/numerics.md, sections 6 and 11.10; item numbers below are of the latter.
 */
#ifndef NG_MOE_H
#define NG_MOE_H

#include "ng/elementary.h"
#include "ng/gemm.h"
#include "ng/quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Routing: items 90 to 97. ---- */

/** What is chosen by, and what is activated; item 91. */
typedef enum ng_route_order {
    NG_ROUTE_TOPK_THEN_ACT = 0, /**< "topk_then_act": by logits, then the k chosen */
    NG_ROUTE_ACT_THEN_TOPK = 1, /**< "act_then_topk": all experts, then by activated values */
    NG_ROUTE_ACT_ALL = 2        /**< "act_all": all experts, but chosen by logits */
} ng_route_order;

typedef enum ng_route_act {
    NG_ROUTE_SOFTMAX = 0, /**< "softmax" */
    NG_ROUTE_SIGMOID = 1  /**< "sigmoid" */
} ng_route_act;

/** How a sum divides; items 93 and 96. */
typedef enum ng_divide {
    NG_DIVIDE_RECIPROCAL = 0, /**< "reciprocal": times the reciprocal of the sum */
    NG_DIVIDE_TRUE = 1        /**< "division": correctly rounded quotients */
} ng_divide;

/** What `eps` does to the sum of the weights; item 96. */
typedef enum ng_eps {
    NG_EPS_ADD = 0,  /**< "add": RN(sum + eps) */
    NG_EPS_FLOOR = 1 /**< "floor": max(sum, eps) */
} ng_eps;

/** What the experts outside of the chosen groups have; item 95. */
typedef enum ng_group_mask {
    NG_GROUP_MASK_ZERO = 0,     /**< "zero": a choice value of +0 */
    NG_GROUP_MASK_MINUS_INF = 1 /**< "minus_inf" */
} ng_group_mask;

#define NG_ROUTE_MAX_EXPERTS 65536
#define NG_ROUTE_MAX_GROUPS  64

typedef struct ng_route_op {
    size_t size; /**< sizeof(ng_route_op) */
    uint32_t k;  /**< experts a token: 1 to E */
    ng_route_order order;
    ng_route_act act;
    ng_format score;                             /**< f32, bf16 or f16; NONE: f32 */
    ng_function_choice exp, sigmoid, reciprocal; /**< all zero: correctly rounded */
    ng_divide softmax_by;
    bool normalise; /**< L1 over the chosen */
    ng_divide normalise_by;
    uint32_t eps; /**< FP32 pattern, positive and finite; 0: none */
    ng_eps eps_how;
    uint32_t scale;      /**< FP32 pattern, finite: routed scaling factor; 0: none */
    uint32_t groups;     /**< 0: no groups; else a divisor of E, at most 64 */
    uint32_t top_groups; /**< groups that are kept: 1 to `groups` */
    uint32_t group_top;  /**< values that a group's value sums: 1 to E / groups; 0: 2 */
    ng_group_mask mask;
} ng_route_op;

/**
 * Choose k of E experts for every token, and their weights.
 *
 * @param logits      [T, E], any element format without block scales; E at most 65536.
 * @param correction  [E], added for the choice only; or NULL.
 * @param indices     [T, k], row-major: written, best expert first.
 * @param weights     [T, k], f32, bf16 or f16: written.
 * @param counts      [E]: written, the tokens of each expert; or NULL.
 *
 * @retval NG_ERR_ARGUMENT  a NULL, an enum out of range, k, groups, eps or scale.
 * @retval NG_ERR_SHAPE     ranks or dimensions.
 * @retval NG_ERR_FORMAT    `score`, or the weights' format; block scales or tags.
 * @retval NG_ERR_LAYOUT    outputs overlap each other or an input.
 * @retval NG_ERR_MEMORY    no room for FP32 copies of a token's numbers.
 *
 * On error nothing is written. Numerics: items 91 to 96.
 */
NG_API ng_status ng_route(ng_ctx *ctx, const ng_route_op *op, const ng_tensor *logits,
                          const ng_tensor *correction, int32_t *indices,
                          const ng_tensor *weights, int64_t *counts);

/**
 * Item 97: what a routing without `normalise`, `eps` and `scale` gave, normalised over the
 * entries that a dispatch kept, in place.
 *
 * @param slot     [T, k], as ng_dispatch() wrote them: -1 was dropped, its weight becomes +0.
 * @param weights  [T, k], read and written.
 */
NG_API ng_status ng_route_weights(ng_ctx *ctx, const ng_route_op *op, const int32_t *slot,
                                  const ng_tensor *weights);

/**
 * Item 90, then ng_route(): logits = x * w + b.
 *
 * @param gemm    the profile's multiply; its `out` and `out_scale` are not read.
 * @param x,w     [T, H] and [H, E], as for ng_gemm().
 * @param b       [E], any element format; or NULL.
 * @param logits  [T, E], f32, bf16 or f16: written, even where no caller wants them.
 */
NG_API ng_status ng_router(ng_ctx *ctx, const ng_gemm_op *gemm, const ng_route_op *op,
                           const ng_tensor *x, const ng_tensor *w, const ng_tensor *b,
                           const ng_tensor *logits, const ng_tensor *correction,
                           int32_t *indices, const ng_tensor *weights, int64_t *counts);

/* ---- Dispatch: items 98 and 99. Integers only. ---- */

typedef enum ng_dispatch_mode {
    NG_DISPATCH_DROPLESS = 0, /**< "dropless": experts in blocks, padded with -1 */
    NG_DISPATCH_CAPACITY = 1  /**< "capacity": a fixed number of rows an expert */
} ng_dispatch_mode;

typedef struct ng_dispatch_op {
    size_t size; /**< sizeof(ng_dispatch_op) */
    ng_dispatch_mode mode;
    uint32_t experts; /**< E, of all ranks */
    uint32_t k;       /**< entries a token */
    uint32_t block;   /**< DROPLESS: B; 0: 1, no padding */
    uint32_t factor;  /**< CAPACITY: cf, an FP32 pattern, positive and finite */
    int64_t capacity; /**< CAPACITY: C itself, at most T; 0: from cf */
    uint32_t ranks;   /**< R, a divisor of E; 0: 1 */
    uint32_t rank;    /**< whose rows these are */
} ng_dispatch_op;

/** Where tokens go. Every array is the caller's; NULL: not wanted. */
typedef struct ng_dispatch_plan {
    int32_t *slot;         /**< [T, k] an entry's row, or -1: dropped, or another rank's */
    int32_t *row;          /**< [rows] the entry t * k + rank of each row, or -1: padding */
    int64_t *offset;       /**< [E / R + 1] first row of each expert, then `rows` */
    int32_t *block_expert; /**< DROPLESS: [rows / B] each block's expert, counted in the rank */
    int64_t rows;          /**< written: of all experts, padding and all */
    int64_t dropped;       /**< written: entries behind a capacity */
} ng_dispatch_plan;

/** The most rows that a dispatch of `tokens` tokens can have: room for `row`; 0 for a bad
 *  op, and where they are more than an int32 can number. */
NG_API int64_t ng_dispatch_rows(const ng_dispatch_op *op, int64_t tokens);

/**
 * @param indices  [tokens, k]; -1 is an entry that is dropped already.
 *
 * @retval NG_ERR_ARGUMENT  an index outside of -1 .. E - 1 (the message names the entry), a
 *                          NULL, a field of `op`.
 * @retval NG_ERR_SHAPE     more rows than an int32 can number.
 * @retval NG_ERR_LAYOUT    arrays overlap.
 *
 * On error nothing is written.
 */
NG_API ng_status ng_dispatch(ng_ctx *ctx, const ng_dispatch_op *op, const int32_t *indices,
                             int64_t tokens, ng_dispatch_plan *plan);

/* ---- Activation: items 102 to 104. ---- */

typedef enum ng_moe_act {
    NG_MOE_SWIGLU = 0,        /**< "swiglu": silu(g) * u */
    NG_MOE_SWISH = 1,         /**< "swish": g * sigmoid(alpha * g) * u */
    NG_MOE_GELU = 2,          /**< "gelu": the tanh form, * u */
    NG_MOE_GPT_OSS = 3,       /**< "gpt_oss": clamps, swish(g) * (u + 1) */
    NG_MOE_GPT_OSS_FOLDED = 4 /**< "gpt_oss_folded": the 1 is in up's bias already */
} ng_moe_act;

#define NG_MOE_ALPHA 0x3FD9DB23u /**< 1.702 */
#define NG_MOE_LIMIT 0x40E00000u /**< 7 */

typedef struct ng_moe_act_op {
    size_t size; /**< sizeof(ng_moe_act_op) */
    ng_moe_act act;
    ng_function_choice sigmoid, tanh;
    uint32_t alpha;   /**< FP32 pattern; 0: 1.702 */
    uint32_t limit;   /**< L, FP32 pattern; 0: 7 */
    ng_format biased; /**< f32, bf16 or f16: of sums with a bias; NONE: f32 */
} ng_moe_act_op;

/**
 * Biases, clamps, activation of two halves.
 *
 * @param gate,up            [M, I], any element format without scales; interleaved halves are
 *                           views with a stride of 2. `up` NULL: no gate (not gpt_oss).
 * @param gate_bias,up_bias  [I], or NULL.
 * @param dst                [M, I], f32, bf16 or f16: written, one `rne`. May be `gate`.
 *
 * Statuses as ng_route().
 */
NG_API ng_status ng_moe_activation(ng_ctx *ctx, const ng_moe_act_op *op, const ng_tensor *gate,
                                   const ng_tensor *gate_bias, const ng_tensor *up,
                                   const ng_tensor *up_bias, const ng_tensor *dst);

/* ---- Combine: items 106 and 107. ---- */

typedef enum ng_moe_combine_order {
    NG_MOE_COMBINE_EXPERT = 0, /**< "expert": increasing rows, as blocks execute */
    NG_MOE_COMBINE_RANK = 1    /**< "rank": best expert first */
} ng_moe_combine_order;

typedef struct ng_moe_combine_op {
    size_t size; /**< sizeof(ng_moe_combine_op) */
    ng_moe_combine_order order;
    bool fused;        /**< RN(y + w * o) with one rounding */
    ng_format product; /**< f32, bf16 or f16: of w * o; NONE: f32 */
    ng_format sum;     /**< f32, bf16 or f16: y after every addition; NONE: f32 */
} ng_moe_combine_op;

/**
 * y[t] = (c[t] or 0) + the sum of the token's weighted expert rows.
 *
 * @param o        [rows, H], any element format without scales.
 * @param slot     [T, k] rows of `o`, or -1.
 * @param weights  [T, k], or NULL: each entry is added as it is.
 * @param c        [T, H], or NULL.
 * @param y        [T, H], f32, bf16 or f16: written, one `rne`. May be `c`.
 *
 * Statuses as ng_route(); NG_ERR_ARGUMENT also for a slot outside of `o`.
 */
NG_API ng_status ng_moe_combine(ng_ctx *ctx, const ng_moe_combine_op *op, const ng_tensor *o,
                                const int32_t *slot, int64_t k, const ng_tensor *weights,
                                const ng_tensor *c, const ng_tensor *y);

/* ---- Expert MLP: items 100, 101, 105. ---- */

/** What becomes of activations before they are multiplied. */
typedef enum ng_moe_operand {
    NG_MOE_AS_IS = 0,    /**< "as_is" */
    NG_MOE_MX = 1,       /**< "mx": quantised by section 3, blocks of 32 along a row */
    NG_MOE_FP8_ROW = 2,  /**< "fp8_row": a scale a row, item 101 */
    NG_MOE_FP8_BLOCK = 3 /**< "fp8_block": a scale for every NG_MOE_BLOCK of a row */
} ng_moe_operand;

#define NG_MOE_BLOCK 128 /**< along K, and along N of weights: one FP32 scale */

typedef struct ng_moe_quant {
    ng_moe_operand how;
    ng_format format;         /**< of the elements: any that section 4 multiplies */
    ng_scale_rule rule;       /**< MX */
    ng_layout layout;         /**< MX */
    ng_block_special special; /**< MX */
    uint32_t scale_min;       /**< FP8: FP32 pattern, positive; 0: 2^-126 */
    ng_divide by;             /**< FP8: by the largest code's value, and by the scale */
} ng_moe_quant;

/** How a block's two scales come to its multiply's result; item 101. */
typedef enum ng_moe_block_order {
    NG_MOE_BLOCK_IN_TURN = 0, /**< "in_turn": RN(psum * row's), then by the weights' */
    NG_MOE_BLOCK_PRODUCT = 1  /**< "product": by RN(row's * weights') */
} ng_moe_block_order;

typedef struct ng_moe_block_op {
    ng_moe_block_order order;
    bool fused; /**< the last product and the sum with one rounding */
} ng_moe_block_op;

typedef enum ng_moe_affinity {
    NG_MOE_AFFINITY_AFTER = 0,  /**< "after": in the combine */
    NG_MOE_AFFINITY_BEFORE = 1, /**< "before": on x */
    NG_MOE_AFFINITY_INSIDE = 2  /**< "inside": on what the activation gives */
} ng_moe_affinity;

typedef struct ng_moe_op {
    size_t size;     /**< sizeof(ng_moe_op) */
    ng_gemm_op gemm; /**< profile, double_row, accumulate, FP4 table of all three multiplies;
                          `out` and `out_scale` are not read; psum rounds by rne */
    ng_format weights_as; /**< weights are dequantised to it first; NONE: as they are */
    ng_moe_quant x;       /**< of the tokens */
    ng_format hidden;     /**< f32, bf16, f16: what gate and up leave as; NONE: f32 */
    ng_moe_act_op act;
    ng_format middle; /**< of the activation's result, before `quant`; NONE: bf16 */
    ng_moe_quant quant;
    ng_format expert_out; /**< f32, bf16, f16: of an expert's result; NONE: bf16 */
    ng_moe_affinity affinity;
    ng_moe_combine_op combine;
    ng_dispatch_op dispatch;
    ng_moe_block_op blocks; /**< where x, quant are FP8_BLOCK */
} ng_moe_op;

/** One projection of all experts of this rank (E / R of them). */
typedef struct ng_moe_linear {
    const ng_tensor *weights;       /**< an array of E / R matrices [K, N] */
    const ng_packed *const *packed; /**< or, instead, these; ng_pack() or, for what multiplies
                                         FP8_BLOCK, ng_moe_pack_blocks() */
    const ng_tensor *scale;         /**< [E / R] or [E / R, N], f32; or NULL. What multiplies
                                         FP8_BLOCK wants [E / R, K / 128, N / 128], rounded up,
                                         and 8-bit weights */
    const ng_tensor *bias;          /**< [E / R, N], any element format; or NULL */
} ng_moe_linear;

/**
 * One expert's weights for what multiplies FP8_BLOCK, packed: every NG_MOE_BLOCK of K on its
 * own, with the bits of the weights as they are.
 *
 * @param op        ng_moe_op.gemm of the calls to come.
 * @param w         [K, N], a format of 8 bits, no block scales; not needed any more when the
 *                  call returns. Scales stay ng_moe_linear.scale's.
 * @param a_format  of the activations: ng_moe_quant.format.
 *
 * Memory, all of it in ng_packed_bytes(): as ng_pack() says for each block of K, 1 byte an
 * element of FP8 (2 by AVX2) with N rounded up to the kernel's columns (which are 64 at most),
 * 64 bytes for each block and so many columns, and about 1 KiB a block. Where a block goes to
 * the reference, 1 byte an element.
 *
 * Freed by ng_packed_destroy(). Only ng_moe_mlp() and ng_moe() take it: ng_gemm_packed() does
 * not. Statuses as ng_pack(); NG_ERR_FORMAT also for block scales, or elements of other than 8
 * bits.
 */
NG_API ng_status ng_moe_pack_blocks(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *w,
                                    ng_format a_format, ng_packed **packed);

typedef struct ng_moe_experts {
    ng_moe_linear gate; /**< [H, I] */
    ng_moe_linear up;   /**< [H, I]; none of its four: no gated product */
    ng_moe_linear down; /**< [I, H] */
} ng_moe_experts;

/**
 * Dispatch, experts, combine: y of the tokens for which routing is known.
 *
 * @param x        [T, H], rows of consecutive elements of 8 bits or more, no block scales.
 * @param indices  [T, k]; -1: no expert.
 * @param weights  [T, k], or NULL: 1.
 * @param c        [T, H], or NULL: what the sums start with.
 * @param y        [T, H], f32, bf16 or f16: written. May be `c`.
 *
 * Every multiply is ng_gemm()'s, of one expert's rows; on an error in one the message says
 * which. Statuses as ng_route() and ng_gemm(); NG_ERR_LAYOUT also where y overlaps weights,
 * their scales or biases. On error y is unchanged.
 */
NG_API ng_status ng_moe_mlp(ng_ctx *ctx, const ng_moe_op *op, const ng_moe_experts *experts,
                            const ng_tensor *x, const int32_t *indices,
                            const ng_tensor *weights, const ng_tensor *c, const ng_tensor *y);

/* ---- Backward: items 110 to 118. ---- */

/** Where gradients go. Any may be NULL: not wanted. */
typedef struct ng_moe_gradients {
    const ng_tensor *x;       /**< [T, H] */
    const ng_tensor *weights; /**< [T, k]; +0 for entries without a row */
    const ng_tensor *gate;    /**< an array of E / R matrices [H, I] */
    const ng_tensor *up;      /**< likewise */
    const ng_tensor *down;    /**< an array of E / R matrices [I, H] */
} ng_moe_gradients;

/**
 * The gradients of ng_moe_mlp() from that of y. What the forward call rounded on its way is
 * computed again; nothing was saved. `c` has the gradient dy itself.
 *
 * @param op       as for the forward call: `swiglu`, affinity `after`, nothing quantised.
 * @param experts  as for the forward call, all three projections: f32, bf16 or f16 without
 *                 scales or biases, not packed.
 * @param x        [T, H], f32, bf16 or f16, rows of consecutive elements.
 * @param indices  [T, k]; -1: no expert.
 * @param weights  [T, k], or NULL: 1.
 * @param dy       [T, H], any element format without scales.
 * @param grad     f32, bf16 or f16 each: written, one `rne`.
 *
 * Every multiply is ng_gemm()'s. Statuses as ng_moe_mlp(); NG_ERR_ARGUMENT also names an option
 * that has no backward, NG_ERR_LAYOUT two outputs that overlap, or one and an input. On error
 * no gradient is touched.
 */
NG_API ng_status ng_moe_mlp_backward(ng_ctx *ctx, const ng_moe_op *op,
                                     const ng_moe_experts *experts, const ng_tensor *x,
                                     const int32_t *indices, const ng_tensor *weights,
                                     const ng_tensor *dy, const ng_moe_gradients *grad);

/**
 * The gradient of a routing's logits from that of its weights; what was chosen is taken as
 * given, whatever chose it. Of op, `groups` and `mask` are not read.
 *
 * @param logits    [T, E], as ng_route() read them.
 * @param indices   [T, k], as it wrote them: every one 0 to E - 1, none twice in a token.
 * @param slot      [T, k], as ng_route_weights() read it, -1: dropped; or NULL: none was.
 * @param dweights  [T, k], any element format without scales.
 * @param dlogits   [T, E], f32, bf16 or f16: written, one `rne`.
 *
 * Statuses as ng_route(); NG_ERR_ARGUMENT also for an index, naming its entry and token. On
 * error nothing is written. Numerics: items 117 and 118.
 */
NG_API ng_status ng_route_backward(ng_ctx *ctx, const ng_route_op *op, const ng_tensor *logits,
                                   const int32_t *indices, const int32_t *slot,
                                   const ng_tensor *dweights, const ng_tensor *dlogits);

/* ---- The whole block. ---- */

/** What the routing of ng_moe() reads. */
typedef struct ng_moe_router {
    ng_gemm_op gemm;             /**< of x * w */
    ng_route_op route;           /**< CAPACITY: its normalising follows the dispatch, item 97 */
    ng_format logits;            /**< f32, bf16 or f16; NONE: f32 */
    ng_format weights;           /**< f32, bf16 or f16; NONE: f32 */
    const ng_tensor *w;          /**< [H, E] */
    const ng_tensor *b;          /**< [E], or NULL */
    const ng_tensor *correction; /**< [E], or NULL */
} ng_moe_router;

/** ng_router() and ng_moe_mlp(): the whole block. Statuses as theirs; y overlaps nothing that
 *  is read but `c`. */
NG_API ng_status ng_moe(ng_ctx *ctx, const ng_moe_op *op, const ng_moe_router *router,
                        const ng_moe_experts *experts, const ng_tensor *x, const ng_tensor *c,
                        const ng_tensor *y);

/* ---- Models and parameters, for tools and reports. ---- */

/** A public model's routing and activation; item 109. */
typedef struct ng_moe_preset {
    const char *name;
    const char *source; /**< where the numbers are from */
    ng_evidence evidence;
    uint32_t experts, hidden, inner; /**< E, H, I */
    ng_route_op route;
    ng_moe_act_op act;
    ng_format weights; /**< as published: bf16, e4m3fn, or e2m1 with e8m0 scales */
    bool router_bias, expert_bias, correction;
} ng_moe_preset;
NG_API const ng_moe_preset *ng_moe_preset_find(const char *name);
/** The i-th preset, i from 0; NULL past the end. */
NG_API const ng_moe_preset *ng_moe_preset_at(size_t i);

/** One thing that decides bits here, and how well a value of it is known. Values that the
 *  evidence is not of are `assumed`. */
typedef struct ng_moe_param {
    const char *key;    /**< "order", "softmax_by", ... */
    const char *values; /**< "topk_then_act act_then_topk act_all": the default first */
    ng_evidence evidence;
    const char *source;
    const char *of; /**< the values that the evidence is of, or NULL: the default's. Of
                         `accumulate` it is f32 beside plain operands, bf16 beside MX ones */
} ng_moe_param;
/** The i-th parameter, i from 0; NULL past the end. */
NG_API const ng_moe_param *ng_moe_param_at(size_t i);

#ifdef __cplusplus
}
#endif
#endif
