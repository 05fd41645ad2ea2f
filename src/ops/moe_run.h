/* SPDX-License-Identifier: Apache-2.0 */
/* What the calls of ng/moe.h share: checks of plain operands, FP32 copies of them. */
#ifndef NG_MOE_RUN_H
#define NG_MOE_RUN_H

#include "../dispatch.h"
#include "../internal.h"
#include "ng/moe.h"

/* An operand of values: no scales, no tags, of this shape. An output is f32, bf16 or f16. */
ng_status ng_moe_check(ng_ctx *ctx, const char *call, const char *name, const ng_tensor *t,
                       bool output, uint32_t rank, const int64_t *dim);
/* f32, bf16, f16, or NONE. */
ng_status ng_moe_check_format(ng_ctx *ctx, const char *call, const char *name, ng_format f);
ng_status ng_moe_check_function(ng_ctx *ctx, const char *call, const char *name,
                                const ng_function_choice *f);
ng_status ng_moe_check_act(ng_ctx *ctx, const char *call, const ng_moe_act_op *op, bool gated);
ng_status ng_moe_check_combine(ng_ctx *ctx, const char *call, const ng_moe_combine_op *op);
ng_status ng_moe_check_route(ng_ctx *ctx, const char *call, const ng_route_op *op,
                             int64_t experts);
ng_status ng_moe_check_dispatch(ng_ctx *ctx, const char *call, const ng_dispatch_op *op);

/* Memory that a call touches. */
struct moe_bytes {
    const char *name;
    const void *data;
    struct ng_extent extent;
    bool written;
};
struct moe_bytes ng_moe_bytes(const char *name, const ng_tensor *t, bool written);
struct moe_bytes ng_moe_words(const char *name, const void *data, int64_t bytes, bool written);
/* No written one may meet another. An entry without data is skipped. */
ng_status ng_moe_apart(ng_ctx *ctx, const char *call, const struct moe_bytes *b, size_t n);

/* What a multiply reads of `t`, its scales and tags too, does not meet `out`. Checks t. */
ng_status ng_moe_operand_apart(ng_ctx *ctx, const char *call, const char *name,
                               const ng_tensor *t, const struct moe_bytes *out);

/* Rows of FP32 patterns: a tensor's own, or a copy. */
struct moe_rows {
    uint32_t *data;
    int64_t stride;
};
/* Words of a copy that rows of `t` take; 0 where its own memory does. t: rank 1 or 2. */
int64_t ng_moe_copy_words(const ng_tensor *t);
/* What is left of `room` behind t's copy; there may be no memory where nothing is copied. */
static inline uint32_t *ng_moe_behind(uint32_t *room, const ng_tensor *t)
{
    const int64_t own = ng_moe_copy_words(t);
    return own ? room + own : room;
}
/* Its rows; `copy` is room for them, read == true: filled. */
struct moe_rows ng_moe_open(ng_ctx *ctx, const ng_tensor *t, uint32_t *copy, bool read);
/* An output's rows are there: write them where they are a copy. */
void ng_moe_close(ng_ctx *ctx, const struct moe_rows *r, const ng_tensor *t);

/* An activation's operands, all FP32; items 100 to 105. */
struct moe_act_call {
    const ng_moe_act_op *op;
    bool gated;
    int64_t rows, columns;
    struct moe_rows gate, up, dst;
    struct settle_job settle_gate, settle_up;
    const uint32_t *row_scale; /* [rows], or NULL; settle_* say so too */
    const uint32_t *affinity;  /* [rows], or NULL: multiplied in last */
};
void ng_moe_act_run(ng_ctx *ctx, const struct moe_act_call *c);

/* [rows, columns] of FP32 in place, by the kernel or the reference. */
void ng_moe_settle(ng_ctx *ctx, const struct settle_job *j, const uint32_t *row_scale,
                   int64_t rows, int64_t columns, uint32_t *v);

/* Item 101: psums of a block of K into sums. kernel NULL: the reference. */
void ng_moe_block(const struct ng_moe_kernel *kernel, const ng_moe_block_op *op,
                  const struct block_tile *t);

/* rows_of() over all rows, cut into tasks; `cost`: elements of a row. */
void ng_moe_rows(ng_ctx *ctx, int64_t rows, int64_t cost, void *arg,
                 void (*rows_of)(void *arg, int64_t from, int64_t to, size_t worker));

#endif
