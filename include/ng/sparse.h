/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structured sparsity M:N: pruning, compressing, expanding, checking. What these calls make is
 * an operand of ng_gemm(): compressed values, and tags for struct ng_sparse.
 * Numerics: docs/numerics.md, sections 4.3 and 11.4.
 */
#ifndef NG_SPARSE_H
#define NG_SPARSE_H

#include "ng/ctx.h"
#include "ng/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A pattern, and the line that its groups lie on. Every `group` consecutive elements along
 *  `axis` form a group; a line is all of a row of A, or of a column of B. Lines are numbered
 *  row-major over the other dimensions, which is the order of their tags. */
typedef struct ng_sparse_op {
    size_t size;        /**< sizeof(ng_sparse_op) */
    uint32_t kept;      /**< M: 1 <= M <= N */
    uint32_t group;     /**< N: at most 16 */
    uint32_t axis;      /**< K: the last dimension (A [.., M, K]) or the one before it (B) */
    ng_tag_store store; /**< ng_compress: how the tags are packed */
    int64_t tag_stride; /**< ng_compress: bytes from one line of tags to the next; 0: packed */
    bool prune;         /**< ng_compress: prune first, in the same pass */
} ng_sparse_op;

/** What ng_sparse_check() found. */
typedef struct ng_sparse_report {
    int64_t groups; /**< of the tensor */
    int64_t broken; /**< groups with more than M non-zeros; 0: the pattern holds */
    /* Of the first of these in the order of lines; -1 without one. */
    int64_t matrix; /**< of the batch, row-major */
    int64_t line;   /**< row or column in that matrix */
    int64_t group;  /**< in that line */
    uint32_t nonzeros;
} ng_sparse_report;

/**
 * Magnitude pruning: of every group the M elements of largest |v| stay as they are, ties going
 * to the lower index; all others become +0. NaN is larger than Inf, and all NaN are alike; a
 * zero of either sign is never kept, so it becomes +0 too.
 *
 * @param op   kept, group, axis; the rest is not read.
 * @param src  any element format (not e8m0, ue4m3), rank 1 to 4, any strides, no block scales;
 *             dim[axis] a multiple of `group`.
 * @param dst  same format and shape: written. It may be the same view as src.
 *
 * @retval NG_ERR_ARGUMENT  op.size, kept or group.
 * @retval NG_ERR_SHAPE     the axis, or its length; shapes differ.
 * @retval NG_ERR_FORMAT    formats differ, or are none of elements; scales or tags.
 * @retval NG_ERR_LAYOUT    dst overlaps src without being the same view, or itself.
 *
 * On error dst is unchanged. Numerics: docs/numerics.md, sections 4.3 and 11.4.
 */
NG_API ng_status ng_prune(ng_ctx *ctx, const ng_sparse_op *op, const ng_tensor *src,
                          const ng_tensor *dst);

/**
 * Compress a dense tensor that satisfies M:N, or with op->prune any tensor, as if by ng_prune()
 * first. Slots s = M*g .. M*g + M-1 of a line are group g's: its non-zeros as they are, and
 * where there are fewer, +0 under the lowest tags that are left; tags ascend in every group.
 *
 * @param dst   format and shape of src, but dim[axis] = groups * M: written. `sparse` is NULL.
 * @param tags  ng_tags_bytes(op->store, dst's dim[axis]) bytes of every line, op->tag_stride
 *              apart: written, unused bits of a line's last word as 0. Bytes between lines
 *              are left alone. With ng_sparse = { kept, group, store, tags, tag_stride } dst is
 *              then an operand of ng_gemm().
 *
 * @retval NG_ERR_ARGUMENT  without op->prune: a group has more than M non-zeros; the message
 *                          names the first: matrix, line, group. And as for ng_prune().
 * @retval NG_ERR_LAYOUT    nv24 with groups of more than 4; tag_stride shorter than a line;
 * src, dst and tags overlap.
 *
 * On error neither dst nor tags have changed; other statuses as for ng_prune().
 */
NG_API ng_status ng_compress(ng_ctx *ctx, const ng_sparse_op *op, const ng_tensor *src,
                             const ng_tensor *dst, void *tags);

/**
 * The dense tensor of a compressed one: the value of slot s goes to element N*g + tag(s), all
 * other elements are +0. Tags need not ascend.
 *
 * @param src   compressed, with `sparse` set, as ng_gemm() takes it.
 * @param axis  K, as in ng_sparse_op.
 * @param dst   dense, same format, dim[axis] = slots / M * N: written.
 *
 * @retval NG_ERR_ARGUMENT  a tag is N or more; two tags of a group are the same, which no dense
 *                          tensor can say. The message names the first: matrix, line, group.
 *
 * On error dst is unchanged; other statuses as for ng_compress().
 */
NG_API ng_status ng_expand(ng_ctx *ctx, const ng_tensor *src, uint32_t axis,
                           const ng_tensor *dst);

/**
 * Does a dense tensor satisfy M:N? Zeros of either sign do not count. NG_OK either way:
 * report->broken tells. Arguments and statuses as for ng_prune(); on error the report is
 * unchanged.
 */
NG_API ng_status ng_sparse_check(ng_ctx *ctx, const ng_sparse_op *op, const ng_tensor *src,
                                 ng_sparse_report *report);

/** Bytes of one line of tags for `slots` compressed values, padding to its last uint16 (trn) or
 *  byte (nv24) included; 0 for a store that is none and for slots below 1 or above 2^47. */
NG_API size_t ng_tags_bytes(ng_tag_store store, int64_t slots);

/**
 * Are these tags ones that ng_gemm() takes?
 *
 * @param lines   rows of A or columns of B, over all matrices.
 * @param slots   compressed values of a line, a multiple of `kept`.
 * @param ascend  or NULL; whether the tags ascend in every group, as ng_compress() writes them.
 *
 * @retval NG_ERR_ARGUMENT  kept, group, or no tags; a tag is `group` or more: the message names
 *                          the first.
 * @retval NG_ERR_SHAPE     lines or slots below 1; slots are no multiple of kept.
 * @retval NG_ERR_LAYOUT    the store, or nv24 with groups of more than 4; tag_stride.
 */
NG_API ng_status ng_tags_check(ng_ctx *ctx, const ng_sparse *sparse, int64_t lines,
                               int64_t slots, bool *ascend);

/**
 * The same tags in another store; none changes its value. `dst` gets `lines` lines, dst_stride
 * bytes apart (0: packed), each ng_tags_bytes(to, slots) long, unused bits 0; it does not
 * overlap src's. Statuses as for ng_tags_check(); a group of more than 4 does not fit nv24
 * (NG_ERR_LAYOUT). On error dst is unchanged.
 */
NG_API ng_status ng_tags_move(ng_ctx *ctx, const ng_sparse *src, ng_tag_store to, void *dst,
                              int64_t dst_stride, int64_t lines, int64_t slots);

#ifdef __cplusplus
}
#endif
#endif
