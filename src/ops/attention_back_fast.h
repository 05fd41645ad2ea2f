/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's gradients by kernels. */
#ifndef NG_ATTENTION_BACK_FAST_H
#define NG_ATTENTION_BACK_FAST_H

#include "attention_run.h"

/* One row of dq, one key of dk and dv by the reference: row-major numbers. */
struct gradient_reference {
    void (*query)(const struct attention_grad_job *g, int64_t row, void *scratch);
    void (*key)(const struct attention_grad_job *g, int64_t key, void *scratch);
};

/* As ng_attention_fast(): NG_OK with `taken` false: nothing is done. */
ng_status ng_attention_back_fast(ng_ctx *ctx, const struct attention_grad_job *g,
                                 const struct gradient_reference *reference, bool *taken);

/* A head's dsink as a code of its format, by a kernel that takes the forward's job. */
uint32_t ng_attention_back_sink(const struct attention_grad_job *g,
                                const struct ng_attention_kernel *kernel, int64_t head);

#endif
