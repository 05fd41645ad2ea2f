/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_GEMM_H
#define NG_GEMM_H

#include "ng/profile.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One intermediate of one output element, as the reference computes it. */
typedef enum ng_trace_kind {
    NG_TRACE_CHAIN = 0,    /**< array: a chain's sum at its end */
    NG_TRACE_FOOT = 1,     /**< array: what a tile hands to the accumulate memory */
    NG_TRACE_PSUM = 2,     /**< array: the accumulate memory after the addition */
    NG_TRACE_STEP = 3,     /**< fused: the accumulator after a step */
    NG_TRACE_PROMOTED = 4, /**< fused: the FP32 register after a promotion */
    NG_TRACE_OUT = 5       /**< the code written to D */
} ng_trace_kind;

typedef struct ng_trace_step {
    ng_trace_kind kind;
    int64_t index;  /**< of the chain, tile, step or promotion */
    int64_t k0, k1; /**< the k it has seen since the previous one of its kind */
    ng_value value;
} ng_trace_step;

typedef struct ng_trace {
    void (*step)(void *user, const ng_trace_step *step);
    void *user;
} ng_trace;

typedef struct ng_gemm_op {
    size_t size;               /**< sizeof(ng_gemm_op) */
    const ng_profile *profile; /**< the arithmetic; outlives the call */
    bool double_row;           /**< ask for NG_MODE_DOUBLE_ROW */
    ng_format accumulate; /**< NONE: f32; f16 under a fused rule if D is f16 and C is f16 or
                               absent. Array: f32 or bf16. Fused: f32 or f16 */
    ng_cast psum;         /**< bf16 accumulate memory: rne, or sr with a word for every
                               (tile, element), tile-major. Nothing else is read */
    ng_cast out;          /**< from the accumulator to D; sr takes a word per element of D */
    uint32_t out_scale;   /**< FP32 pattern multiplied in before `out`, one rounding; 0: none */
    const uint8_t
        *fp4_map;         /**< array, e2m1 operands: 16 codes of `fp4_format`, or NULL: E2M1 */
    ng_format fp4_format; /**< e4m3fn or e5m2 */
} ng_gemm_op;

/**
 * Multiply two matrices and add a third: D = A * B + C, bit for bit as the device that
 * `op->profile` describes.
 *
 * @param ctx  Not used by two threads at once.
 * @param op   See ng_gemm_op.
 * @param a    [M, K], or [batch.., M, K]; block scales along K; may be sparse along K.
 * @param b    [K, N], or [batch.., K, N], likewise; column-major by its strides. At most one
 *             of A and B is sparse; its K is then the compressed one, K * kept / group.
 * @param c    [M, N] or [batch.., M, N], or NULL for none (the first tile writes). Any format
 *             whose every value the accumulator holds.
 * @param d    [M, N] or [batch.., M, N], written, any format. May be `c`; may not overlap
 *             `a` or `b`.
 *
 * Rank 2 to 4, the same for all; a batch stride of 0 repeats an operand.
 *
 * @retval NG_OK              every element of D is written.
 * @retval NG_ERR_SHAPE       M, N, K or a batch size differ between operands, one is 0 or
 *                            negative, or a size overflows.
 * @retval NG_ERR_FORMAT      C or D cannot be had from this accumulator, or see ng_encode().
 * @retval NG_ERR_LAYOUT      a 4-bit row does not start on a byte, operands overlap D, blocks
 * of A and B do not agree, or block scales do not run along K.
 * @retval NG_ERR_PROFILE     the profile has no rule for this pair of formats and scales.
 * @retval NG_ERR_ARGUMENT    a NULL, an enum out of range, too few random words.
 *
 * D does not depend on the CPU, on `isa_mask` or on the executor. On any error D is
 * unchanged and ng_ctx_message() says which operand and which dimension.
 *
 * Numerics: docs/numerics.md, section 4. Source: the profile's rows.
 */
NG_API ng_status ng_gemm(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                         const ng_tensor *b, const ng_tensor *c, const ng_tensor *d);

/** Scratch memory that ng_gemm(), or ng_gemm_packed(), may want for operands of these shapes
 *  and formats, whatever their values; for ng_ctx_config.scratch. */
NG_API ng_status ng_gemm_scratch(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                                 const ng_tensor *b, const ng_tensor *c, const ng_tensor *d,
                                 size_t *bytes);

/**
 * B packed once, to be multiplied many times: weights. It holds a kernel's panels of B,
 * decoded and block scales multiplied in but for codes, and what their values are like:
 *
 *   e2m1 (MXFP4); by an FP4 table that has +0   1/2 byte an element: its codes
 *   FP8, MXFP8, by a kernel of AVX-512          1 byte: its codes
 *   sparse, 2:4 or fewer (1:4, 2:8), of 8 significant bits
 *                                               9/8 bytes a place of the dense matrix
 *   other values of 8 significant bits          2 bytes (bf16, FP6; FP8 by AVX2, ...)
 *   f16, tf32, f32                              4 bytes; f32 in two pieces 8
 *
 * and 1/4 (1/2) byte more where 4 (2) lanes are summed exactly, with N rounded up to the
 * kernel's columns, and a few bytes a row and block more. An operand that no kernel takes, or
 * that is sparse, is held as a copy of its codes (too). Read only: any number of threads may
 * share it.
 */
typedef struct ng_packed ng_packed;
struct ng_quantize_op;

/**
 * Pack B for ng_gemm_packed().
 *
 * @param op        as for the multiply: profile, double_row, accumulate, FP4 table.
 * @param b         [K, N], as for ng_gemm(); not needed any more when the call returns.
 * @param a_format  of the operand that it will meet, with block scales if `b` has them.
 *
 * Statuses as ng_gemm(); NG_ERR_MEMORY. `packed` is freed by ng_packed_destroy(), before the
 * context's allocator goes.
 */
NG_API ng_status ng_pack(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *b,
                         ng_format a_format, ng_packed **packed);
/**
 * ng_quantize() of B and ng_pack() of the result: from trained weights to panels. The codes
 * exist only in between, in the context's memory.
 *
 * @param quantize  the scale rule and the rounding of the elements.
 * @param src       [K, N], as for ng_quantize().
 * @param like      what to make of it: `format`, `scale_format`, `block`, `layout` are read.
 * Blocks run along K.
 *
 * The bits are those of the two calls. Statuses as theirs.
 */
NG_API ng_status ng_pack_quantized(ng_ctx *ctx, const ng_gemm_op *op,
                                   const struct ng_quantize_op *quantize, const ng_tensor *src,
                                   const ng_tensor *like, ng_format a_format,
                                   ng_packed **packed);
NG_API void ng_packed_destroy(ng_packed *packed);
/** Memory that it takes, all in all. */
NG_API size_t ng_packed_bytes(const ng_packed *packed);
/** The kernel it is packed for, or "ref". */
NG_API const char *ng_packed_kernel(const ng_packed *packed);

/**
 * ng_gemm() with a packed B: the same bits.
 *
 * @param a  [M, K], of the format B was packed for; not sparse.
 *
 * Statuses as ng_gemm(). NG_ERR_PROFILE also if `op` or `a` ask for another rule, format or FP4
 * table than B was packed for, or `isa_mask` excludes its kernel; the message names both.
 */
NG_API ng_status ng_gemm_packed(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                                const ng_packed *b, const ng_tensor *c, const ng_tensor *d);

/**
 * The kernels that ng_gemm() would ask for these operands, in its order; the reference last.
 *
 * @param info   room for `room` of them; `count` says how many there are.
 *
 * Statuses as ng_gemm().
 */
NG_API ng_status ng_gemm_kernels(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                                 const ng_tensor *b, const ng_tensor *c, const ng_tensor *d,
                                 ng_kernel_info *info, size_t room, size_t *count);

/**
 * One dot product a row: d[r] = sum over k of a[r, k] * b[r, k], + c[r].
 *
 * @param a,b  [rows, K]; block scales along K; `a` may be sparse.
 * @param c,d  [rows]; `c` or NULL.
 *
 * Everything else as ng_gemm(). A call of many rows is much sooner done than many calls. With
 * ng_ctx_config.scratch, kernels are used where a worker's share of it has room for three
 * panels of K, else the reference.
 */
NG_API ng_status ng_dot(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                        const ng_tensor *b, const ng_tensor *c, const ng_tensor *d);

/**
 * One element of D by the reference, whatever the ISA mask, with every intermediate.
 *
 * @param dot    the operands are those of ng_dot(), and `index` has one entry.
 * @param index  of the element in D, as many entries as D has dimensions.
 * @param trace  or NULL.
 * @param code   the element of D; D itself is not written, its `data` may be NULL.
 *
 * Statuses as ng_gemm(); NG_ERR_ARGUMENT also for an index outside D.
 */
NG_API ng_status ng_gemm_element(ng_ctx *ctx, const ng_gemm_op *op, bool dot,
                                 const ng_tensor *a, const ng_tensor *b, const ng_tensor *c,
                                 const ng_tensor *d, const int64_t *index,
                                 const ng_trace *trace, uint32_t *code);

/** The real number that element of A * B + C is: no rounding anywhere (64 leading bits, then
 *  `sticky`), out_scale not applied. NaN and Inf as the real products and sums give them. */
NG_API ng_status ng_gemm_exact(ng_ctx *ctx, const ng_gemm_op *op, bool dot, const ng_tensor *a,
                               const ng_tensor *b, const ng_tensor *c, const ng_tensor *d,
                               const int64_t *index, ng_value *exact);

/** The rule that these operands would use, for reports; NULL with a message when there is none.
 */
NG_API const ng_rule *ng_gemm_rule(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                                   const ng_tensor *b);

#ifdef __cplusplus
}
#endif
#endif
