/* SPDX-License-Identifier: Apache-2.0 */
/* ng_moe_activation and ng_moe_combine. Numerics: docs/numerics.md, section 11.10, items 100 to
 * 107.
 */
#include <string.h>

#include "../ref/ref.h"
#include "moe_run.h"

/* ---- What lies behind a multiply: scales, biases. ---- */

static const struct ng_moe_kernel *settles(ng_ctx *ctx, const struct settle_job *j)
{
    const struct ng_moe_kernel *k = ng_pick_moe(ng_ctx_isas(ctx));
    return k && !k->settle_refuses(j) ? k : NULL;
}

static void settle(const struct ng_moe_kernel *kernel, const struct settle_job *j,
                   uint32_t row_scale, int64_t first, int64_t n, const uint32_t *v,
                   uint32_t *out)
{
    if (kernel) {
        kernel->settle(j, row_scale, first, n, v, out);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = ng_ref_settle(j, v[i], row_scale, first + i);
}

struct settle_call {
    const struct settle_job *job;
    const struct ng_moe_kernel *kernel;
    const uint32_t *row_scale;
    int64_t columns;
    uint32_t *v;
};

static void settle_rows(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct settle_call *c = arg;
    const uint32_t saved = ng_fp_enter();
    (void)worker;
    for (int64_t r = from; r < to; r++)
        settle(c->kernel, c->job, c->row_scale ? c->row_scale[r] : 0, 0, c->columns,
               c->v + r * c->columns, c->v + r * c->columns);
    ng_fp_leave(saved);
}

void ng_moe_settle(ng_ctx *ctx, const struct settle_job *j, const uint32_t *row_scale,
                   int64_t rows, int64_t columns, uint32_t *v)
{
    struct settle_call c = { j, settles(ctx, j), row_scale, columns, v };
    ng_tell_settle(ctx, "settle", j, c.kernel);
    ng_moe_rows(ctx, rows, columns, &c, settle_rows);
}

/* ---- Activation. ---- */

struct act_rows {
    const struct moe_act_call *call;
    const struct ng_moe_kernel *gate, *up, *act; /* NULL: the reference */
};

/* Columns [first, first + n) of row r, n at most NG_MOE_ACT_MOST. */
static void act_part(const struct act_rows *a, int64_t r, int64_t first, int64_t n)
{
    const struct moe_act_call *c = a->call;
    const uint32_t row_scale = c->row_scale ? c->row_scale[r] : 0,
                   *affinity = c->affinity ? c->affinity + r : NULL;
    uint32_t g[NG_MOE_ACT_MOST], u[NG_MOE_ACT_MOST] = { 0 },
                                 *dst = c->dst.data + r * c->dst.stride + first;
    settle(a->gate, &c->settle_gate, row_scale, first, n,
           c->gate.data + r * c->gate.stride + first, g);
    if (c->gated)
        settle(a->up, &c->settle_up, row_scale, first, n, c->up.data + r * c->up.stride + first,
               u);
    if (a->act) {
        a->act->act(c->op, n, g, c->gated ? u : NULL, affinity, dst);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const uint32_t v = ng_ref_moe_act(c->op, c->gated, g[i], u[i]);
        dst[i] = affinity ? ng_num_f32_mul(v, *affinity) : v;
    }
}

static void act_rows(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct act_rows *a = arg;
    const int64_t columns = a->call->columns;
    const uint32_t saved = ng_fp_enter();
    (void)worker;
    for (int64_t r = from; r < to; r++)
        for (int64_t n = 0; n < columns; n += NG_MOE_ACT_MOST)
            act_part(a, r, n, columns - n < NG_MOE_ACT_MOST ? columns - n : NG_MOE_ACT_MOST);
    ng_fp_leave(saved);
}

void ng_moe_act_run(ng_ctx *ctx, const struct moe_act_call *c)
{
    struct act_rows a = { .call = c,
                          .gate = settles(ctx, &c->settle_gate),
                          .up = settles(ctx, &c->settle_up),
                          .act = ng_pick_moe(ng_ctx_isas(ctx)) };
    ng_tell_settle(ctx, "gate", &c->settle_gate, a.gate);
    if (c->gated)
        ng_tell_settle(ctx, "up", &c->settle_up, a.up);
    ng_tell_moe(ctx, "activation", a.act);
    ng_moe_rows(ctx, c->rows, c->columns, &a, act_rows);
    ng_ctx_note_kernel(ctx, a.act ? a.act->name : "ref", (ng_tiles){ 0 });
}

static ng_status check_activation(ng_ctx *ctx, const ng_moe_act_op *op, const ng_tensor *gate,
                                  const ng_tensor *gate_bias, const ng_tensor *up,
                                  const ng_tensor *up_bias, const ng_tensor *dst)
{
    const char *call = "moe_activation";
    struct ng_extent extent;
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op is NULL or op.size is not %zu", call,
                       sizeof *op);
    if (up_bias && !up)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: up is NULL but up_bias is not", call);
    ng_status s = ng_moe_check_act(ctx, call, op, up != NULL);
    if (!s)
        s = ng_check_tensor(ctx, call, "gate", gate, false, &extent);
    if (!s)
        s = ng_moe_check(ctx, call, "gate", gate, false, 2, gate->dim);
    if (!s && up)
        s = ng_moe_check(ctx, call, "up", up, false, 2, gate->dim);
    if (!s && gate_bias)
        s = ng_moe_check(ctx, call, "gate_bias", gate_bias, false, 1, &gate->dim[1]);
    if (!s && up_bias)
        s = ng_moe_check(ctx, call, "up_bias", up_bias, false, 1, &gate->dim[1]);
    if (!s)
        s = ng_moe_check(ctx, call, "dst", dst, true, 2, gate->dim);
    if (s)
        return s;
    const struct moe_bytes bytes[] = {
        ng_moe_bytes("gate", ng_same_view(gate, dst) ? NULL : gate, false),
        ng_moe_bytes("gate_bias", gate_bias, false),
        ng_moe_bytes("up", up, false),
        ng_moe_bytes("up_bias", up_bias, false),
        ng_moe_bytes("dst", dst, true),
    };
    return ng_moe_apart(ctx, call, bytes, sizeof bytes / sizeof bytes[0]);
}

ng_status ng_moe_activation(ng_ctx *ctx, const ng_moe_act_op *op, const ng_tensor *gate,
                            const ng_tensor *gate_bias, const ng_tensor *up,
                            const ng_tensor *up_bias, const ng_tensor *dst)
{
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_activation(ctx, op, gate, gate_bias, up, up_bias, dst);
    if (s)
        return s;
    const ng_tensor *t[] = { gate, up, gate_bias, up_bias, dst };
    struct moe_rows r[5];
    int64_t words = 0;
    for (int i = 0; i < 5; i++)
        words += ng_moe_copy_words(t[i]);
    void *memory;
    s = ng_arena_claim(ctx, (size_t)words * sizeof(uint32_t), &memory);
    if (s)
        return s;
    uint32_t *room = memory;
    for (int i = 0; i < 5; i++) {
        r[i] = ng_moe_open(ctx, t[i], room, i < 4);
        room = ng_moe_behind(room, t[i]);
    }
    const struct moe_act_call c = {
        .op = op,
        .gated = up != NULL,
        .rows = gate->dim[0],
        .columns = gate->dim[1],
        .gate = r[0],
        .up = r[1],
        .dst = r[4],
        .settle_gate = { .bias = r[2].data, .biased = op->biased },
        .settle_up = { .bias = r[3].data, .biased = op->biased },
    };
    ng_moe_act_run(ctx, &c);
    const char *kernel = ng_ctx_kernel(ctx);
    ng_moe_close(ctx, &c.dst, dst);
    ng_ctx_note_kernel(ctx, kernel, (ng_tiles){ 0 });
    return NG_OK;
}

/* ---- Combine. ---- */

struct combine_call {
    const ng_moe_combine_op *op;
    const struct ng_moe_kernel *kernel; /* NULL: the reference */
    const int32_t *slot;
    struct moe_rows o, weights, c, y;
    int64_t k, columns;
    /* Of worker 0; k of each a worker. */
    const uint32_t **row;
    uint32_t *rank, *weight, *part;
};

/* Ranks of a token's entries in the order of the sum, those without a row left out. */
static int64_t put_in_order(const struct combine_call *c, const int32_t *slot, uint32_t *rank)
{
    int64_t n = 0;
    for (int64_t r = 0; r < c->k; r++) {
        if (slot[r] < 0)
            continue;
        int64_t at = n++;
        for (; c->op->order == NG_MOE_COMBINE_EXPERT && at > 0 && slot[rank[at - 1]] > slot[r];
             at--)
            rank[at] = rank[at - 1];
        rank[at] = (uint32_t)r;
    }
    return n;
}

static void combine_columns(const struct combine_call *c, const struct combine_row *r,
                            uint32_t *o)
{
    for (int64_t h = 0; h < r->columns; h++) {
        for (int64_t i = 0; i < r->entries; i++)
            o[i] = r->o[i][h];
        r->y[h] =
            ng_ref_moe_combine(c->op, r->entries, r->weight, o, r->begin ? r->begin[h] : 0);
    }
}

static void combine_rows(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct combine_call *c = arg;
    const int64_t mine = (int64_t)worker * c->k;
    uint32_t *rank = c->rank + mine, *weight = c->weight + mine;
    const uint32_t **row = c->row + mine, saved = ng_fp_enter();
    for (int64_t t = from; t < to; t++) {
        const int32_t *slot = c->slot + t * c->k;
        const struct combine_row r = { .entries = put_in_order(c, slot, rank),
                                       .columns = c->columns,
                                       .weight = c->weights.data ? weight : NULL,
                                       .begin = c->c.data ? c->c.data + t * c->c.stride : NULL,
                                       .o = row,
                                       .y = c->y.data + t * c->y.stride };
        for (int64_t i = 0; i < r.entries; i++) {
            row[i] = c->o.data + slot[rank[i]] * c->o.stride;
            weight[i] = r.weight ? c->weights.data[t * c->weights.stride + rank[i]] : 0;
        }
        if (c->kernel)
            c->kernel->combine(c->op, &r);
        else
            combine_columns(c, &r, c->part + mine);
    }
    ng_fp_leave(saved);
}

static ng_status check_combine(ng_ctx *ctx, const ng_moe_combine_op *op, const ng_tensor *o,
                               const int32_t *slot, int64_t k, const ng_tensor *weights,
                               const ng_tensor *c, const ng_tensor *y)
{
    struct ng_extent extent;
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "combine: op is NULL or op.size is not %zu",
                       sizeof *op);
    if (!slot)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "combine: slot is NULL");
    if (k < 1 || k > NG_ROUTE_MAX_EXPERTS)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "combine: k is %lld; wanted: 1 to %d",
                       (long long)k, NG_ROUTE_MAX_EXPERTS);
    ng_status s = ng_moe_check_combine(ctx, "combine", op);
    if (!s)
        s = ng_check_tensor(ctx, "combine", "o", o, false, &extent);
    if (!s)
        s = ng_moe_check(ctx, "combine", "o", o, false, 2, o->dim);
    if (!s)
        s = ng_check_tensor(ctx, "combine", "y", y, true, &extent);
    if (s)
        return s;
    const int64_t tokens = y->dim[0];
    s = ng_moe_check(ctx, "combine", "y", y, true, 2, (const int64_t[]){ tokens, o->dim[1] });
    if (!s && weights)
        s = ng_moe_check(ctx, "combine", "weights", weights, false, 2,
                         (const int64_t[]){ tokens, k });
    if (!s && c)
        s = ng_moe_check(ctx, "combine", "c", c, false, 2, y->dim);
    for (int64_t i = 0; !s && i < tokens * k; i++)
        if (slot[i] < -1 || slot[i] >= o->dim[0])
            s = ng_fail(ctx, NG_ERR_ARGUMENT,
                        "combine: slot %lld of token %lld is %d; wanted: -1 to %lld, rows of o",
                        (long long)(i % k), (long long)(i / k), slot[i],
                        (long long)(o->dim[0] - 1));
    if (s)
        return s;
    const struct moe_bytes bytes[] = {
        ng_moe_bytes("o", o, false),
        ng_moe_bytes("weights", weights, false),
        ng_moe_bytes("c", c && ng_same_view(c, y) ? NULL : c, false),
        ng_moe_bytes("y", y, true),
        ng_moe_words("slot", slot, tokens * k * (int64_t)sizeof *slot, false),
    };
    return ng_moe_apart(ctx, "combine", bytes, sizeof bytes / sizeof bytes[0]);
}

ng_status ng_moe_combine(ng_ctx *ctx, const ng_moe_combine_op *op, const ng_tensor *o,
                         const int32_t *slot, int64_t k, const ng_tensor *weights,
                         const ng_tensor *c, const ng_tensor *y)
{
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_combine(ctx, op, o, slot, k, weights, c, y);
    if (s)
        return s;
    const ng_tensor *t[] = { o, weights, c, y };
    struct moe_rows r[4];
    const int64_t each = k * (int64_t)ng_workers(ctx),
                  row_bytes = each * (int64_t)sizeof(void *);
    int64_t words = 3 * each;
    for (int i = 0; i < 4; i++)
        words += ng_moe_copy_words(t[i]);
    void *memory;
    s = ng_arena_claim(ctx, (size_t)words * sizeof(uint32_t) + (size_t)row_bytes, &memory);
    if (s)
        return s;
    uint32_t *room = memory;
    for (int i = 0; i < 4; i++) {
        r[i] = ng_moe_open(ctx, t[i], room, i < 3);
        room = ng_moe_behind(room, t[i]);
    }
    struct combine_call call = { .op = op,
                                 .kernel = ng_pick_moe(ng_ctx_isas(ctx)),
                                 .slot = slot,
                                 .o = r[0],
                                 .weights = r[1],
                                 .c = r[2],
                                 .y = r[3],
                                 .k = k,
                                 .columns = o->dim[1],
                                 .row = (const uint32_t **)(void *)room };
    call.rank = (uint32_t *)(void *)(call.row + each);
    call.weight = call.rank + each;
    call.part = call.weight + each;
    if (call.kernel && call.kernel->combine_refuses(op))
        call.kernel = NULL;
    ng_tell_combine(ctx, op, call.kernel);
    ng_moe_rows(ctx, y->dim[0], k * o->dim[1], &call, combine_rows);
    ng_moe_close(ctx, &call.y, y);
    ng_ctx_note_kernel(ctx, call.kernel ? call.kernel->name : "ref", (ng_tiles){ 0 });
    return NG_OK;
}
