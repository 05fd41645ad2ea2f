/* SPDX-License-Identifier: Apache-2.0 */
/* ng_route, ng_route_weights, ng_router. Numerics: docs/numerics.md, section 11.10, items 90 to
 * 97. */
#include <string.h>

#include "../ref/ref.h"
#include "moe_run.h"

struct route_call {
    struct route_job job;
    const struct ng_moe_kernel *kernel; /* NULL: the reference */
    struct moe_rows logits, correction, weights;
    int32_t *index;
    uint32_t *work; /* of worker 0 */
    int64_t work_words;
};

/* ---- ng_route. ---- */

static void route_rows(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct route_call *c = arg;
    const int64_t e = c->job.experts, k = c->job.op->k;
    uint32_t *work = c->work + (int64_t)worker * c->work_words;
    const struct route_rows r = { .tokens = to - from,
                                  .logit = c->logits.data + from * c->logits.stride,
                                  .logit_stride = c->logits.stride,
                                  .correction = c->correction.data,
                                  .index = c->index + from * k,
                                  .weight = c->weights.data + from * c->weights.stride,
                                  .weight_stride = c->weights.stride };
    if (c->kernel) {
        const uint32_t saved = ng_fp_enter();
        c->kernel->route(&c->job, &r, work);
        ng_fp_leave(saved);
        return;
    }
    for (int64_t t = 0; t < r.tokens; t++)
        ng_ref_route(&c->job, r.logit + t * r.logit_stride, r.correction, work, work + e,
                     r.index + t * k, r.weight + t * r.weight_stride);
}

static void count_experts(const int32_t *index, int64_t n, int64_t experts, int64_t *counts)
{
    memset(counts, 0, (size_t)experts * sizeof *counts);
    for (int64_t i = 0; i < n; i++)
        counts[index[i]]++;
}

static ng_status check_route(ng_ctx *ctx, const ng_route_op *op, const ng_tensor *logits,
                             const ng_tensor *correction, int32_t *indices,
                             const ng_tensor *weights, int64_t *counts)
{
    struct ng_extent extent;
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "route: op is NULL or op.size is not %zu",
                       sizeof *op);
    if (!indices)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "route: indices is NULL");
    ng_status s = ng_check_tensor(ctx, "route", "logits", logits, false, &extent);
    if (!s)
        s = ng_moe_check(ctx, "route", "logits", logits, false, 2, logits->dim);
    if (s)
        return s;
    const int64_t tokens = logits->dim[0], experts = logits->dim[1];
    s = ng_moe_check_route(ctx, "route", op, experts);
    if (!s && correction)
        s = ng_moe_check(ctx, "route", "correction", correction, false, 1, &experts);
    if (!s)
        s = ng_moe_check(ctx, "route", "weights", weights, true, 2,
                         (const int64_t[]){ tokens, op->k });
    if (s)
        return s;
    const struct moe_bytes bytes[] = {
        ng_moe_bytes("logits", logits, false),
        ng_moe_bytes("correction", correction, false),
        ng_moe_bytes("weights", weights, true),
        ng_moe_words("indices", indices, tokens * op->k * (int64_t)sizeof *indices, true),
        ng_moe_words("counts", counts, experts * (int64_t)sizeof *counts, true),
    };
    return ng_moe_apart(ctx, "route", bytes, sizeof bytes / sizeof bytes[0]);
}

ng_status ng_route(ng_ctx *ctx, const ng_route_op *op, const ng_tensor *logits,
                   const ng_tensor *correction, int32_t *indices, const ng_tensor *weights,
                   int64_t *counts)
{
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_route(ctx, op, logits, correction, indices, weights, counts);
    if (s)
        return s;
    const int64_t tokens = logits->dim[0], experts = logits->dim[1];
    const int64_t copied = ng_moe_copy_words(logits), corrected = ng_moe_copy_words(correction),
                  weighed = ng_moe_copy_words(weights);
    struct route_call c = { .job = { .op = op, .experts = (int32_t)experts },
                            .index = indices };
    c.kernel = ng_pick_moe(ng_ctx_isas(ctx));
    if (c.kernel && c.kernel->route_refuses(&c.job))
        c.kernel = NULL;
    ng_tell_route(ctx, &c.job, c.kernel);
    c.work_words = ((c.kernel ? c.kernel->route_words(&c.job) : 2 * experts) + 15) / 16 * 16;
    void *memory;
    s = ng_arena_claim(
        ctx,
        (size_t)(copied + corrected + weighed + c.work_words * (int64_t)ng_workers(ctx)) *
            sizeof(uint32_t),
        &memory);
    if (s)
        return s;
    uint32_t *word = memory;
    c.logits = ng_moe_open(ctx, logits, word, true);
    c.correction = ng_moe_open(ctx, correction, word + copied, true);
    c.weights = ng_moe_open(ctx, weights, word + copied + corrected, false);
    c.work = word + copied + corrected + weighed;
    ng_moe_rows(ctx, tokens, experts, &c, route_rows);
    ng_moe_close(ctx, &c.weights, weights);
    if (counts)
        count_experts(indices, tokens * op->k, experts, counts);
    ng_ctx_note_kernel(ctx, c.kernel ? c.kernel->name : "ref", (ng_tiles){ 0 });
    return NG_OK;
}

/* ---- ng_route_weights. ---- */

struct weights_call {
    const ng_route_op *op;
    const int32_t *slot;
    struct moe_rows weights;
    int64_t k;
    uint32_t *work;
};

static void weights_rows(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct weights_call *c = arg;
    uint32_t *kept = c->work + (int64_t)worker * c->k;
    for (int64_t t = from; t < to; t++) {
        uint32_t *w = c->weights.data + t * c->weights.stride;
        const int32_t *slot = c->slot + t * c->k;
        int64_t n = 0;
        for (int64_t r = 0; r < c->k; r++)
            if (slot[r] >= 0)
                kept[n++] = w[r];
        if (n)
            ng_ref_route_weights(c->op, n, kept);
        n = 0;
        for (int64_t r = 0; r < c->k; r++)
            w[r] = slot[r] >= 0 ? kept[n++] : 0;
    }
}

ng_status ng_route_weights(ng_ctx *ctx, const ng_route_op *op, const int32_t *slot,
                           const ng_tensor *weights)
{
    const char *call = "route_weights";
    struct ng_extent extent;
    ng_status s = ng_begin(ctx);
    if (s)
        return s;
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op is NULL or op.size is not %zu", call,
                       sizeof *op);
    if (!slot)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: slot is NULL", call);
    s = ng_check_tensor(ctx, call, "weights", weights, true, &extent);
    if (!s)
        s = ng_moe_check(ctx, call, "weights", weights, true, 2, weights->dim);
    if (!s && weights->dim[1] != op->k)
        s = ng_fail(ctx, NG_ERR_SHAPE,
                    "%s: dimension 1 of weights is %lld; wanted: %u, route.k", call,
                    (long long)weights->dim[1], op->k);
    if (!s) {
        ng_route_op plain = *op;
        plain.groups = 0;
        s = ng_moe_check_route(ctx, call, &plain, NG_ROUTE_MAX_EXPERTS);
    }
    const int64_t tokens = s ? 0 : weights->dim[0], k = s ? 0 : weights->dim[1];
    if (!s) {
        const struct moe_bytes bytes[] = {
            ng_moe_bytes("weights", weights, true),
            ng_moe_words("slot", slot, tokens * k * (int64_t)sizeof *slot, false),
        };
        s = ng_moe_apart(ctx, call, bytes, 2);
    }
    if (s)
        return s;
    struct weights_call c = { .op = op, .slot = slot, .k = k };
    const int64_t copied = ng_moe_copy_words(weights);
    void *memory;
    s = ng_arena_claim(ctx, (size_t)(copied + k * (int64_t)ng_workers(ctx)) * sizeof(uint32_t),
                       &memory);
    if (s)
        return s;
    c.weights = ng_moe_open(ctx, weights, memory, true);
    c.work = (uint32_t *)memory + copied;
    ng_moe_rows(ctx, tokens, k, &c, weights_rows);
    ng_moe_close(ctx, &c.weights, weights);
    return NG_OK;
}

/* ---- ng_router: item 90. ---- */

/* Logits as FP32, in memory of the context's allocator. */
static ng_status make_logits(ng_ctx *ctx, const ng_gemm_op *gemm, const ng_tensor *x,
                             const ng_tensor *w, const ng_tensor *b, const ng_tensor *logits,
                             uint32_t *memory)
{
    const int64_t tokens = logits->dim[0], experts = logits->dim[1];
    ng_gemm_op op = *gemm;
    ng_tensor f;
    op.out = (ng_cast){ 0 };
    op.out_scale = 0;
    (void)ng_tensor_init(&f, NG_F32, memory, 2, logits->dim);
    const ng_status s = ng_gemm(ctx, &op, x, w, NULL, &f);
    if (s || !b)
        return s;
    const struct moe_rows bias = ng_moe_open(ctx, b, memory + tokens * experts, true);
    const struct settle_job job = { .bias = bias.data };
    ng_moe_settle(ctx, &job, NULL, tokens, experts, memory);
    return NG_OK;
}

/* x * w has the shape of logits; K of compressed operands is ng_gemm()'s to check. */
static ng_status check_product(ng_ctx *ctx, const ng_tensor *x, const ng_tensor *w,
                               const ng_tensor *logits)
{
    if (x->rank != 2 || w->rank != 2)
        return ng_fail(ctx, NG_ERR_SHAPE, "router: %s has rank %u; wanted: 2",
                       x->rank != 2 ? "x" : "w", x->rank != 2 ? x->rank : w->rank);
    if (x->dim[0] != logits->dim[0])
        return ng_fail(ctx, NG_ERR_SHAPE, "router: dimension 0 of x is %lld; wanted: %lld",
                       (long long)x->dim[0], (long long)logits->dim[0]);
    if (w->dim[1] != logits->dim[1])
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "router: dimension 1 of w is %lld; wanted: %lld, as of logits",
                       (long long)w->dim[1], (long long)logits->dim[1]);
    if (w->dim[0] != x->dim[1] && !w->sparse && !x->sparse)
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "router: dimension 0 of w is %lld; wanted: %lld, dimension 1 of x",
                       (long long)w->dim[0], (long long)x->dim[1]);
    return NG_OK;
}

static ng_status check_router(ng_ctx *ctx, const ng_gemm_op *gemm, const ng_route_op *op,
                              const ng_tensor *x, const ng_tensor *w, const ng_tensor *b,
                              const ng_tensor *logits, const ng_tensor *correction,
                              int32_t *indices, const ng_tensor *weights, int64_t *counts)
{
    const char *call = "router";
    struct ng_extent extent;
    if (!gemm || gemm->size != sizeof *gemm)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: gemm is NULL or gemm.size is not %zu", call,
                       sizeof *gemm);
    ng_status s = check_route(ctx, op, logits, correction, indices, weights, counts);
    if (!s)
        s = ng_moe_check(ctx, call, "logits", logits, true, 2, logits->dim);
    if (!s)
        s = ng_check_tensor(ctx, call, "x", x, false, &extent);
    if (!s)
        s = ng_check_tensor(ctx, call, "w", w, false, &extent);
    if (!s)
        s = check_product(ctx, x, w, logits);
    if (!s && b)
        s = ng_moe_check(ctx, call, "b", b, false, 1, &logits->dim[1]);
    if (s)
        return s;
    const int64_t n = logits->dim[0] * op->k;
    const struct moe_bytes bytes[] = {
        ng_moe_bytes("x", x, false),
        ng_moe_bytes("w", w, false),
        ng_moe_bytes("b", b, false),
        ng_moe_bytes("correction", correction, false), /* the others meet it in check_route */
        ng_moe_bytes("logits", logits, true),
    };
    const struct moe_bytes out[] = {
        ng_moe_bytes("weights", weights, true),
        ng_moe_words("indices", indices, n * (int64_t)sizeof *indices, true),
        ng_moe_words("counts", counts, logits->dim[1] * (int64_t)sizeof *counts, true),
    };
    s = ng_moe_apart(ctx, call, bytes, sizeof bytes / sizeof bytes[0]);
    for (size_t i = 0; !s && i < sizeof out / sizeof out[0]; i++)
        for (size_t k = 0; !s && k < 3; k++)
            s = ng_moe_apart(ctx, call, (const struct moe_bytes[]){ bytes[k], out[i] }, 2);
    return s;
}

ng_status ng_router(ng_ctx *ctx, const ng_gemm_op *gemm, const ng_route_op *op,
                    const ng_tensor *x, const ng_tensor *w, const ng_tensor *b,
                    const ng_tensor *logits, const ng_tensor *correction, int32_t *indices,
                    const ng_tensor *weights, int64_t *counts)
{
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_router(ctx, gemm, op, x, w, b, logits, correction, indices, weights, counts);
    if (s)
        return s;
    const ng_allocator a = ng_ctx_allocator(ctx);
    const int64_t experts = logits->dim[1];
    uint32_t *memory =
        a.alloc(a.user, 64, (size_t)(ng_count(logits) + experts) * sizeof *memory);
    if (!memory)
        return ng_fail(ctx, NG_ERR_MEMORY, "router: the allocator has no room for logits");
    ng_ctx_stage(ctx, "logits");
    s = make_logits(ctx, gemm, x, w, b, logits, memory);
    if (!s) {
        ng_tensor f;
        const ng_convert_op nearest = { .size = sizeof nearest };
        (void)ng_tensor_init(&f, NG_F32, memory, 2, logits->dim);
        s = ng_convert(ctx, &nearest, &f, logits);
    }
    ng_ctx_stage(ctx, NULL);
    a.free(a.user, memory);
    return s ? s : ng_route(ctx, op, logits, correction, indices, weights, counts);
}
