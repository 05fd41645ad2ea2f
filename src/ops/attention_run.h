/* SPDX-License-Identifier: Apache-2.0 */
/* A checked attention call. */
#ifndef NG_ATTENTION_RUN_H
#define NG_ATTENTION_RUN_H

#include "../internal.h"
#include "../profile/profile_internal.h"
#include "../ref/ref_attention.h"

struct attention_views {
    const ng_tensor *q, *k, *v, *o;
};

struct attention_call {
    struct attention_job job; /* points at `words`: a call is not copied */
    struct ng_stream words;
};

/* Room 1: all checks. `writes`: o's memory will be written; else its data may be NULL. */
ng_status ng_attention_check(ng_ctx *ctx, const ng_attention_op *op,
                             const struct attention_views *v, const ng_attention_saved *saved,
                             bool writes, struct attention_call *c);

/* ---- Checks that forward and backward share. ---- */

#define CALL "attention"

/* A piece of memory that is read or written. */
struct attention_piece {
    const char *name;
    const void *data;
    struct ng_extent extent;
};

/* A tensor that is read: its piece, and its scales', go behind the n there are. */
ng_status ng_attention_check_input(ng_ctx *ctx, const char *name, const ng_tensor *t,
                                   struct attention_piece *in, size_t *n);
/* One that is written: it meets no input and no other output. */
ng_status ng_attention_check_output(ng_ctx *ctx, const char *name, const ng_tensor *t,
                                    const struct attention_piece *in, size_t n_in,
                                    struct attention_piece *out, size_t *n);
/* What is read beside the tensors. */
size_t ng_attention_side_inputs(const struct attention_job *g, struct attention_piece *in,
                                size_t n);
/* The rule of one multiply. `what`: "q k^T". */
ng_status ng_attention_find_rule(ng_ctx *ctx, const ng_profile *profile, const char *what,
                                 struct attention_multiply *m, bool a_blocks, bool b_blocks);
/* nan_to "error" is refused where the format has no NaN. */
ng_status ng_attention_check_nan(ng_ctx *ctx, const ng_cast *out, ng_format format);
/* An f32 tensor [B, Hq, Sq]. */
ng_status ng_attention_check_statistic(ng_ctx *ctx, const struct attention_job *g,
                                       const char *name, const ng_tensor *t);

#endif
