/* SPDX-License-Identifier: Apache-2.0 */
/* A checked multiply, and the rooms behind the front door. */
#ifndef NG_GEMM_RUN_H
#define NG_GEMM_RUN_H

#include "../dispatch.h"
#include "../internal.h"

/* A checked call: the job of the first matrix of the batch, and how the others differ. */
struct gemm_call {
    const char *name;
    struct gemm_job job;
    uint32_t n_batch; /* dimensions of the batch: 0 to 2 */
    int64_t batch[2];
    int64_t a_step[2], b_step[2], c_step[2], d_step[2]; /* elements */
    int64_t as_step[2], bs_step[2];                     /* scales */
    int64_t n_matrices;
    struct ng_stream out_words, psum_words; /* job points here: a call is not copied */
};

/* A call's operands; `dot`: ng_dot()'s. */
struct gemm_views {
    const ng_tensor *a, *b, *c, *d;
    bool dot;
    const bool
        *b_ascends; /* B's tags were looked at before, and do or do not ascend; or NULL */
};

/* Room 1: all checks. `writes`: D's memory will be written. */
ng_status ng_gemm_check(ng_ctx *ctx, const ng_gemm_op *op, const struct gemm_views *v,
                        bool writes, struct gemm_call *q);

/* The job of one matrix of the batch. */
struct gemm_job ng_gemm_matrix(const struct gemm_call *q, int64_t matrix);

/* An operand B in a kernel's panels: what ng_pack() makes. */
struct gemm_packed {
    const struct ng_gemm_kernel *kernel; /* NULL: the reference's, nothing is packed */
    size_t panel_bytes;                  /* of what is kept of one */
    bool slim;                           /* kept slim: see kernels/slim.h */
    const unsigned char *panels;
};

/* Runs a checked call. `b`: B's panels, or NULL to pack them here. */
ng_status ng_gemm_run(ng_ctx *ctx, const struct gemm_call *q, const struct gemm_packed *b);
/* Scratch memory that ng_gemm_run(ctx, q, NULL) would claim. */
ng_status ng_gemm_run_bytes(ng_ctx *ctx, const struct gemm_call *q, size_t *bytes);
/* The kernel it would use; NULL for the reference. */
const struct ng_gemm_kernel *ng_gemm_run_kernel(ng_ctx *ctx, const struct gemm_call *q);
/* How b->kernel keeps B's panels; packs all of B (a matrix of rank 2) into `panels`. */
void ng_gemm_plan_b(const struct gemm_call *q, struct gemm_packed *b);
ng_status ng_gemm_pack_b(ng_ctx *ctx, const struct gemm_call *q, const struct gemm_packed *b,
                         unsigned char *panels);
int64_t ng_gemm_panels(int64_t lines, int64_t width);

#endif
