/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by kernels. */
#ifndef NG_ATTENTION_FAST_H
#define NG_ATTENTION_FAST_H

#include "attention_run.h"

/*
 * Rows by kernels, and by the reference those whose data no kernel takes. NG_OK with `taken`
 * false: nothing is done, the reference has all rows. `row` computes one by the reference.
 */
typedef void attention_row(const struct attention_job *g, int64_t row, void *scratch);
ng_status ng_attention_fast(ng_ctx *ctx, const struct attention_job *g, attention_row *row,
                            bool *taken);
/* Scratch memory that it may want. */
ng_status ng_attention_fast_bytes(ng_ctx *ctx, const struct attention_job *g, size_t *bytes);

#endif
