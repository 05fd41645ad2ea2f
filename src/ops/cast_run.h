/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a tensor's conversion is cut into rows for a kernel. Nothing here can fail; what no
 * kernel takes the caller computes by the reference.
 */
#ifndef NG_CAST_RUN_H
#define NG_CAST_RUN_H

#include "../dispatch.h"
#include "../internal.h"

/* One call's conversion; src and dst have been checked and have the same shape. */
struct cast_plan {
    struct cast_job job;
    const struct ng_cast_kernel *kernel; /* NULL: the reference's */
    const ng_tensor *src, *dst;
    const ng_tensor *scaled;       /* the one with block scales: dst of a quantise, src of a
                                      dequantise; else NULL */
    const struct ng_stream *words; /* by element number, or NULL */
    /* Dequantise: element by element, where a kernel could not. Elements of `box` from
     * `first` on: dims along each dimension. */
    void (*reference)(void *arg, const int64_t *first, const int64_t *dims);
    void *arg;
};

/* The kernel for the job, by the context's ISAs; notes which for ng_ctx_kernel(). */
void ng_cast_pick(ng_ctx *ctx, struct cast_plan *p);
/* The FP32 pattern of src's largest finite magnitude, by the plan's kernel. */
uint32_t ng_cast_largest(ng_ctx *ctx, const struct cast_plan *p);
/* Runs it on the context's executor. */
void ng_cast_run(ng_ctx *ctx, const struct cast_plan *p);
/* Two quantises of one matrix, `t` of its transpose, in one pass, if kernels take both and the
 * layouts allow; false: nothing is done. */
bool ng_cast_both(ng_ctx *ctx, struct cast_plan *p, struct cast_plan *t);

#endif
