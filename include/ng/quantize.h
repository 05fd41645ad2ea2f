/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_QUANTIZE_H
#define NG_QUANTIZE_H

#include "ng/convert.h"
#include "ng/profile.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How a block's scale follows from its largest magnitude; docs/numerics.md, section 3. */
typedef enum ng_scale_rule {
    NG_SCALE_FLOOR = 0,      /**< "floor": floor(log2 a) - Emax. OCP MX 1.0 */
    NG_SCALE_FLOOR_UP1 = 1,  /**< "floor_up1": one more. Trainium3 quantize_mx */
    NG_SCALE_CEIL = 2,       /**< "ceil": ceil(log2 a) - Emax. torchao */
    NG_SCALE_EVEN = 3,       /**< "even": exponent of a + half an element ulp, - Emax */
    NG_SCALE_RCEIL = 4,      /**< "rceil": ceil(log2(a / max)). cuBLAS, TransformerEngine */
    NG_SCALE_NVFP4_TE = 5,   /**< "nvfp4_te": TransformerEngine's chain of FP32 operations */
    NG_SCALE_NVFP4_EXACT = 6 /**< "nvfp4_exact": the same, each quotient exact */
} ng_scale_rule;

/** What a NaN or Inf does to its block. */
typedef enum ng_block_special {
    NG_BLOCK_SPECIAL_ELEMENT = 0,   /**< "element": specials do not enter the maximum */
    NG_BLOCK_SPECIAL_NAN_BLOCK = 1, /**< "nan_block": scale NaN, elements 0 */
    NG_BLOCK_SPECIAL_EXPONENT = 2   /**< "from_exponent": exponent field 255 enters the rule */
} ng_block_special;

/** What a rule, or a way with specials, rests on (docs/numerics.md, sections 3.1 and 11.5);
 *  NG_EVIDENCE_ASSUMED for a number that is none. */
NG_API ng_evidence ng_scale_rule_evidence(ng_scale_rule rule);
NG_API ng_evidence ng_block_special_evidence(ng_block_special special);

typedef struct ng_quantize_op {
    size_t size; /**< sizeof(ng_quantize_op) */
    ng_scale_rule rule;
    ng_block_special special;
    ng_cast cast; /**< of the elements; `overflow` is not read: always SATURATE */
    uint32_t
        tensor_amax; /**< NVFP4: FP32 pattern of the tensor's largest magnitude; 0: found */
} ng_quantize_op;

/**
 * Quantise `src` into elements and block scales.
 *
 * @param src  any shape and strides; f32, bf16, f16 or any other element format, no scales.
 * @param dst  the same shape, with `scale`, `scale_format`, `block`, `block_axis`, `layout`
 *             set: written. e8m0 scales with the MX rules (block 32 in OCP MX; any block from
 *             1 is taken); ue4m3 scales, e2m1 elements and block 16 with the NVFP4 rules, which
 *             also write dst->tensor_scale (the MX rules set it to 0: none).
 *
 * @retval NG_ERR_SHAPE   shapes differ; the axis is not a whole number of blocks under
 *                        TRN_WRAP (under LINEAR the last block may be short).
 * @retval NG_ERR_FORMAT  the rule does not go with the element or scale format.
 *
 * On any error both `dst` and its scales are unchanged. Numerics: docs/numerics.md, section 3.
 */
NG_API ng_status ng_quantize(ng_ctx *ctx, const ng_quantize_op *op, const ng_tensor *src,
                             ng_tensor *dst);

/**
 * ng_quantize() of a matrix and of its transpose in one pass over it: training multiplies with
 * both, and their blocks run along different dimensions.
 *
 * @param src    [R, C].
 * @param dst    [R, C], written as ng_quantize(ctx, op, src, dst) would.
 * @param dst_t  [C, R], written as ng_quantize() of src's transpose would: random words belong
 * to its own elements. Formats, blocks and layouts may differ from dst's.
 *
 * Statuses as ng_quantize(); NG_ERR_SHAPE also if `src` has not rank 2, NG_ERR_LAYOUT if the
 * two results overlap.
 */
NG_API ng_status ng_quantize_both(ng_ctx *ctx, const ng_quantize_op *op, const ng_tensor *src,
                                  ng_tensor *dst, ng_tensor *dst_t);

/**
 * The values of a scaled tensor: scale * element (* tensor_scale), exact, then one conversion
 * to `dst`'s format by op->cast. A NaN scale makes its whole block NaN. Statuses as for
 * ng_convert(). Numerics: docs/numerics.md, section 3.
 */
NG_API ng_status ng_dequantize(ng_ctx *ctx, const ng_convert_op *op, const ng_tensor *src,
                               const ng_tensor *dst);

/** Bytes of `lines` x `blocks` one-byte scales in a storage order, padding included; 0 if they
 *  overflow. `tile_rows`: TRN_SBUF only, rows of a K tile (a multiple of 8, at most 128). */
NG_API size_t ng_scale_bytes(ng_scale_store store, int64_t lines, int64_t blocks,
                             uint32_t tile_rows);
/**
 * Move one-byte scales between storage orders; no byte changes its value. Padding is written as
 * 0.
 *
 * @param lines      rows of A or columns of B.
 * @param blocks     scales per line, in block order along K.
 * @param tile_rows  TRN_SBUF: rows P of a K tile; 0 means 128.
 * @param offset     TRN_SBUF: 0, 4, 8 or 12, added to the partition inside its quadrant.
 */
NG_API ng_status ng_scale_move(ng_ctx *ctx, ng_scale_store from, const void *src,
                               ng_scale_store to, void *dst, int64_t lines, int64_t blocks,
                               uint32_t tile_rows, uint32_t offset);

#ifdef __cplusplus
}
#endif
#endif
