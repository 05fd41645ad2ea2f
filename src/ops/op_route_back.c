/* SPDX-License-Identifier: Apache-2.0 */
/* ng_route_backward. Numerics: docs/numerics.md, section 11.10, items 117 and 118. */
#include <string.h>

#include "../ref/ref.h"
#include "moe_run.h"

#define CALL "route_backward"

struct route_back_call {
    struct route_job job;
    const struct ng_moe_kernel *kernel; /* NULL: the reference */
    struct moe_rows logits, dweights, dlogits;
    const int32_t *index, *slot;
    uint32_t *work; /* of worker 0 */
    int64_t work_words;
};

static void route_back_rows(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct route_back_call *c = arg;
    const int64_t k = c->job.op->k;
    uint32_t *work = c->work + (int64_t)worker * c->work_words;
    const struct route_back_rows r = { .tokens = to - from,
                                       .logit = c->logits.data + from * c->logits.stride,
                                       .logit_stride = c->logits.stride,
                                       .index = c->index + from * k,
                                       .slot = c->slot ? c->slot + from * k : NULL,
                                       .dweight = c->dweights.data + from * c->dweights.stride,
                                       .dweight_stride = c->dweights.stride,
                                       .dlogit = c->dlogits.data + from * c->dlogits.stride,
                                       .dlogit_stride = c->dlogits.stride };
    if (c->kernel) {
        const uint32_t saved = ng_fp_enter();
        c->kernel->route_back(&c->job, &r, work);
        ng_fp_leave(saved);
        return;
    }
    for (int64_t t = 0; t < r.tokens; t++)
        ng_ref_route_back(&c->job, r.logit + t * r.logit_stride, r.index + t * k,
                          r.slot ? r.slot + t * k : NULL, r.dweight + t * r.dweight_stride,
                          work, r.dlogit + t * r.dlogit_stride);
}

/* Every index an expert, none twice in a token. `seen`: [experts], 0. */
static ng_status check_indices(ng_ctx *ctx, const int32_t *index, int64_t tokens, int64_t k,
                               int64_t experts, uint32_t *seen)
{
    for (int64_t i = 0; i < tokens * k; i++) {
        const uint32_t token = (uint32_t)(i / k) + 1;
        const bool known = index[i] >= 0 && index[i] < experts;
        if (!known || seen[index[i]] == token)
            return ng_fail(ctx, NG_ERR_ARGUMENT,
                           CALL ": entry %lld of token %lld is expert %d%s; wanted: 0 to %lld, "
                                "none twice",
                           (long long)(i % k), (long long)(i / k), index[i],
                           known ? " again" : "", (long long)(experts - 1));
        seen[index[i]] = token;
    }
    return NG_OK;
}

static ng_status check_route_back(ng_ctx *ctx, const ng_route_op *op, const ng_tensor *logits,
                                  const int32_t *indices, const int32_t *slot,
                                  const ng_tensor *dweights, const ng_tensor *dlogits)
{
    struct ng_extent extent;
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, CALL ": op is NULL or op.size is not %zu",
                       sizeof *op);
    if (!indices)
        return ng_fail(ctx, NG_ERR_ARGUMENT, CALL ": indices is NULL");
    ng_status s = ng_check_tensor(ctx, CALL, "logits", logits, false, &extent);
    if (!s)
        s = ng_moe_check(ctx, CALL, "logits", logits, false, 2, logits->dim);
    if (s)
        return s;
    const int64_t tokens = logits->dim[0], experts = logits->dim[1];
    ng_route_op plain = *op;
    plain.groups = 0;
    s = ng_moe_check_route(ctx, CALL, &plain, experts);
    if (!s)
        s = ng_moe_check(ctx, CALL, "dweights", dweights, false, 2,
                         (const int64_t[]){ tokens, op->k });
    if (!s)
        s = ng_moe_check(ctx, CALL, "dlogits", dlogits, true, 2, logits->dim);
    if (!s && tokens > INT32_MAX / experts)
        s = ng_fail(ctx, NG_ERR_SHAPE, CALL ": %lld tokens; wanted: fewer than 2^31 logits",
                    (long long)tokens);
    if (s)
        return s;
    const int64_t bytes_of = tokens * op->k * (int64_t)sizeof *indices;
    const struct moe_bytes bytes[] = {
        ng_moe_bytes("logits", logits, false),
        ng_moe_bytes("dweights", dweights, false),
        ng_moe_words("indices", indices, bytes_of, false),
        ng_moe_words("slot", slot, bytes_of, false),
        ng_moe_bytes("dlogits", dlogits, true),
    };
    return ng_moe_apart(ctx, CALL, bytes, sizeof bytes / sizeof bytes[0]);
}

/* Words that a worker needs; at least those of check_indices(). */
static int64_t work_words(const struct route_back_call *c)
{
    const int64_t own = c->kernel ? c->kernel->route_words(&c->job)
                                  : c->job.experts + 4 * (int64_t)c->job.op->k;
    return (own + 15) / 16 * 16;
}

ng_status ng_route_backward(ng_ctx *ctx, const ng_route_op *op, const ng_tensor *logits,
                            const int32_t *indices, const int32_t *slot,
                            const ng_tensor *dweights, const ng_tensor *dlogits)
{
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_route_back(ctx, op, logits, indices, slot, dweights, dlogits);
    if (s)
        return s;
    const int64_t tokens = logits->dim[0], experts = logits->dim[1];
    const ng_tensor *t[] = { logits, dweights, dlogits };
    struct route_back_call c = { .job = { .op = op, .experts = (int32_t)experts },
                                 .kernel = ng_pick_moe(ng_ctx_isas(ctx)),
                                 .index = indices,
                                 .slot = slot };
    if (c.kernel && c.kernel->route_refuses(&c.job))
        c.kernel = NULL;
    c.work_words = work_words(&c);
    int64_t words = c.work_words * (int64_t)ng_workers(ctx);
    for (int i = 0; i < 3; i++)
        words += ng_moe_copy_words(t[i]);
    void *memory;
    s = ng_arena_claim(ctx, (size_t)words * sizeof(uint32_t), &memory);
    if (s)
        return s;
    c.work = memory;
    memset(c.work, 0, (size_t)experts * sizeof *c.work);
    s = check_indices(ctx, indices, tokens, op->k, experts, c.work);
    if (s)
        return s;
    struct moe_rows *rows[] = { &c.logits, &c.dweights, &c.dlogits };
    uint32_t *room = c.work + c.work_words * (int64_t)ng_workers(ctx);
    for (int i = 0; i < 3; i++) {
        *rows[i] = ng_moe_open(ctx, t[i], room, i < 2);
        room = ng_moe_behind(room, t[i]);
    }
    ng_moe_rows(ctx, tokens, experts, &c, route_back_rows);
    ng_moe_close(ctx, &c.dlogits, dlogits);
    ng_ctx_note_kernel(ctx, c.kernel ? c.kernel->name : "ref", (ng_tiles){ 0 });
    return NG_OK;
}
