/* SPDX-License-Identifier: Apache-2.0 */
/* A checked multiply, and the rooms behind the front door. */
#ifndef NG_GEMM_RUN_H
#define NG_GEMM_RUN_H

#include "../dispatch.h"
#include "../internal.h"

/* A checked call: the job of the first matrix of the batch, and how the others differ. */
struct gemm_call {
    const char *name;
    bool dot; /* ng_dot()'s: each matrix is an element */
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

/* Rows of a group: some of A's and of D's, which meet a B of their own. */
struct gemm_part {
    int64_t a_row, d_row, rows;
    const unsigned char *panels;
    const struct ng_packed *packed; /* instead, of a group in slabs */
    const uint32_t *scale;          /* likewise: of its slabs and columns */
};

/* K in slabs, each a multiply of its own whose psum goes into D, FP32, under scales: item 101
 * of section 11.10. */
struct gemm_slabs {
    int64_t slabs, depth;         /* k of each; the last one may have less */
    const struct gemm_call *last; /* checked; the group's own is the first slab's */
    const ng_moe_block_op *op;
    const struct ng_moe_kernel *moe;
    const uint32_t *row_scale;        /* [line of A][slab] */
    int64_t across;                   /* columns that share a scale */
    int64_t scale_slab, scale_column; /* strides of a part's */
};

/* Multiplies with the same K and N, formats, rule and kernel, as one. */
struct gemm_group {
    const struct gemm_call *q; /* one of them, checked; its A and D are those of all parts */
    const struct gemm_packed *like; /* how all their B's are kept */
    const struct gemm_part *part;
    int64_t parts;
    const int32_t *line; /* [rows of all parts] which line of A a row is; NULL: its own */
    const struct gemm_slabs *slabs; /* or NULL: K is one */
};

/* Every part of a group, which has neither C, sparse operands nor random words; tiles of all
 * parts are one loop of tasks. */
ng_status ng_gemm_run_group(ng_ctx *ctx, const struct gemm_group *group);
/* Scratch memory that ng_gemm_run(ctx, q, NULL) would claim. */
ng_status ng_gemm_run_bytes(ng_ctx *ctx, const struct gemm_call *q, size_t *bytes);
/* The kernel it would use; NULL for the reference. */
const struct ng_gemm_kernel *ng_gemm_run_kernel(ng_ctx *ctx, const struct gemm_call *q);
/* How b->kernel keeps B's panels; packs all of B (a matrix of rank 2) into `panels`. */
void ng_gemm_plan_b(const struct gemm_call *q, struct gemm_packed *b);
ng_status ng_gemm_pack_b(ng_ctx *ctx, const struct gemm_call *q, const struct gemm_packed *b,
                         unsigned char *panels);
/* Shape and format of what is packed: [K, N]. NULL for NULL. */
struct ng_packed;
const ng_tensor *ng_packed_view(const struct ng_packed *packed);
/* Room 1 of ng_gemm_packed(): its checks. `writes`: D's memory will be written. */
ng_status ng_packed_check(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                          const struct ng_packed *b, const ng_tensor *c, const ng_tensor *d,
                          bool writes, struct gemm_call *q);
const struct gemm_packed *ng_packed_panels(const struct ng_packed *packed);

/* B in slabs of `depth` along K, each packed on its own: ng_gemm_packed() refuses the whole,
 * whose view and panels say what all slabs are like (no kernel: they differ). */
ng_status ng_pack_slabs(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *b,
                        ng_format a_format, int64_t depth, struct ng_packed **packed);
/* Its slabs; of one that is not in slabs 0. */
int64_t ng_packed_slabs(const struct ng_packed *packed);
const struct ng_packed *ng_packed_slab(const struct ng_packed *packed, int64_t i);
int64_t ng_gemm_panels(int64_t lines, int64_t width);

#endif
