/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_moe_mlp_backward: expert by expert the forward call's steps again, then back through them;
 * what multiplies rows with rows comes last, when nothing can fail any more, and writes to the
 * caller. Numerics: docs/numerics.md, section 11.10, items 110 to 116.
 */
#include <stdio.h>
#include <string.h>

#include "../ref/ref.h"
#include "moe_mlp.h"

#define CALL "moe_backward"

/* A call. Rows are the dispatch's; [rows] of them, an expert's begin at its offset. */
struct back {
    struct moe_mlp m;
    const ng_moe_gradients *grad;
    struct moe_rows dy;                 /* FP32, [T, H] */
    void *middle, *dout;                /* codes of m and do: [rows, I], [rows, H] */
    void *dgate, *dup;                  /* codes of dg and du: [rows, I] */
    uint32_t *dmiddle, *part;           /* FP32 rows of one expert: [most, I], [most, H] */
    uint32_t *dweight, *dentry, *dx;    /* FP32: [rows], [T, k], [T, H] */
    const uint32_t **dy_row, **o_row;   /* [most] */
    int32_t *each;                      /* [most]: 0, 1, ... */
    const struct ng_moe_kernel *kernel; /* NULL: the reference */
};

/* ---- Front door. ---- */

static ng_status refuse(ng_ctx *ctx, const char *what, const char *wanted)
{
    return ng_fail(ctx, NG_ERR_ARGUMENT, CALL ": %s has no backward; wanted: %s", what, wanted);
}

static ng_status check_linear(ng_ctx *ctx, const struct moe_linear *l)
{
    char name[40];
    if (l->given->packed || l->given->scale || l->given->bias) {
        (void)snprintf(name, sizeof name, "%s.%s", l->name,
                       l->given->packed  ? "packed"
                       : l->given->scale ? "scale"
                                         : "bias");
        return refuse(ctx, name, "weights alone");
    }
    return NG_OK;
}

/* Every expert's matrix is one of values: [k, n]. */
static ng_status check_matrices(struct back *b, const char *what, const struct moe_linear *l,
                                const ng_tensor *t, bool output)
{
    char name[40];
    ng_status s = NG_OK;
    for (int64_t e = 0; t && !s && e < b->m.local; e++) {
        (void)snprintf(name, sizeof name, "%s%s[%lld]", what, l->name, (long long)e);
        s = ng_moe_check(b->m.ctx, CALL, name, &t[e], output, 2,
                         (const int64_t[]){ l->k, l->n });
        if (!s)
            s = ng_moe_check_format(b->m.ctx, CALL, name, t[e].format);
    }
    return s;
}

static ng_status check_options(struct back *b)
{
    const struct moe_mlp *m = &b->m;
    if (m->op.act.act != NG_MOE_SWIGLU)
        return refuse(m->ctx, "op.act.act", "swiglu");
    if (!m->gated)
        return refuse(m->ctx, "an up that is NULL", "swiglu with a gate");
    if (m->op.affinity != NG_MOE_AFFINITY_AFTER)
        return refuse(m->ctx, "op.affinity", "after");
    if (m->op.x.how != NG_MOE_AS_IS || m->op.quant.how != NG_MOE_AS_IS)
        return refuse(m->ctx, m->op.x.how ? "op.x.how" : "op.quant.how", "as_is");
    if (m->op.weights_as)
        return refuse(m->ctx, "op.weights_as", "none");
    const struct moe_linear *const part[] = { &m->gate, &m->up, &m->down };
    ng_status s = ng_moe_check_format(m->ctx, CALL, "x", m->tokens->format);
    for (int i = 0; !s && i < 3; i++)
        s = check_linear(m->ctx, part[i]);
    for (int i = 0; !s && i < 3; i++)
        s = check_matrices(b, "", part[i], part[i]->given->weights, false);
    return s;
}

static ng_status check_gradients(struct back *b, const ng_tensor *dy)
{
    const struct moe_mlp *m = &b->m;
    const ng_moe_gradients *g = b->grad;
    const int64_t tokens = m->tokens->dim[0], k = m->op.dispatch.k;
    if (!g)
        return ng_fail(m->ctx, NG_ERR_ARGUMENT, CALL ": grad is NULL");
    ng_status s = ng_moe_check(m->ctx, CALL, "dy", dy, false, 2, m->tokens->dim);
    if (!s && g->x)
        s = ng_moe_check(m->ctx, CALL, "grad.x", g->x, true, 2, m->tokens->dim);
    if (!s && g->weights)
        s = ng_moe_check(m->ctx, CALL, "grad.weights", g->weights, true, 2,
                         (const int64_t[]){ tokens, k });
    if (!s)
        s = check_matrices(b, "grad.", &m->gate, g->gate, true);
    if (!s)
        s = check_matrices(b, "grad.", &m->up, g->up, true);
    return s ? s : check_matrices(b, "grad.", &m->down, g->down, true);
}

/* The matrices of a projection, into `bytes`; how many. */
static size_t list_matrices(const char *name, const ng_tensor *t, int64_t n, bool written,
                            struct moe_bytes *bytes)
{
    for (int64_t e = 0; t && e < n; e++)
        bytes[e] = ng_moe_bytes(name, &t[e], written);
    return t ? (size_t)n : 0;
}

static ng_status check_apart(struct back *b, const int32_t *indices, const ng_tensor *weights,
                             const ng_tensor *dy)
{
    struct moe_mlp *m = &b->m;
    const ng_moe_gradients *g = b->grad;
    struct moe_bytes *bytes = ng_moe_take(&m->memory, 6 + 6 * m->local, sizeof *bytes);
    size_t n = 0;
    if (!bytes)
        return ng_fail(m->ctx, NG_ERR_MEMORY, CALL ": the allocator has no room");
    bytes[n++] = ng_moe_bytes("x", m->tokens, false);
    bytes[n++] = ng_moe_bytes("weights", weights, false);
    bytes[n++] = ng_moe_bytes("dy", dy, false);
    bytes[n++] = ng_moe_words(
        "indices", indices,
        m->tokens->dim[0] * (int64_t)m->op.dispatch.k * (int64_t)sizeof *indices, false);
    bytes[n++] = ng_moe_bytes("grad.x", g->x, true);
    bytes[n++] = ng_moe_bytes("grad.weights", g->weights, true);
    n += list_matrices("gate", m->gate.given->weights, m->local, false, bytes + n);
    n += list_matrices("up", m->up.given->weights, m->local, false, bytes + n);
    n += list_matrices("down", m->down.given->weights, m->local, false, bytes + n);
    n += list_matrices("grad.gate", g->gate, m->local, true, bytes + n);
    n += list_matrices("grad.up", g->up, m->local, true, bytes + n);
    n += list_matrices("grad.down", g->down, m->local, true, bytes + n);
    return ng_moe_apart(m->ctx, CALL, bytes, n);
}

/* ---- Memory. ---- */

static ng_status make_room(struct back *b, const int32_t *indices, const ng_tensor *weights,
                           const ng_tensor *dy)
{
    struct moe_mlp *m = &b->m;
    struct moe_memory *mem = &m->memory;
    ng_status s = ng_moe_make_room(m, indices, weights);
    if (s)
        return s;
    const int64_t rows = m->offset[m->local], tokens = m->tokens->dim[0];
    const size_t middle = ng_moe_bytes_of(m->op.middle),
                 hidden = ng_moe_bytes_of(m->tokens->format);
    b->dy = ng_moe_room_rows(m, dy);
    b->middle = ng_moe_take(mem, rows * m->i, middle);
    b->dout = ng_moe_take(mem, rows * m->h, middle);
    b->dgate = ng_moe_take(mem, rows * m->i, hidden);
    b->dup = ng_moe_take(mem, rows * m->i, hidden);
    b->dmiddle = ng_moe_take(mem, m->most * m->i, sizeof *b->dmiddle);
    b->part = ng_moe_take(mem, m->most * m->h, sizeof *b->part);
    b->dweight = ng_moe_take(mem, rows, sizeof *b->dweight);
    b->dentry = ng_moe_take(mem, tokens * m->op.dispatch.k, sizeof *b->dentry);
    b->dx = ng_moe_take(mem, tokens * m->h, sizeof *b->dx);
    b->dy_row = ng_moe_take(mem, 2 * m->most, sizeof *b->dy_row);
    b->each = ng_moe_take(mem, m->most, sizeof *b->each);
    if (mem->failed)
        return ng_fail(m->ctx, NG_ERR_MEMORY, CALL ": the allocator has no room");
    b->o_row = b->dy_row + m->most;
    for (int64_t r = 0; r < m->most; r++)
        b->each[r] = (int32_t)r;
    b->kernel = ng_pick_moe(ng_ctx_isas(m->ctx));
    return NG_OK;
}

/* ---- Steps of one expert. ---- */

/* Rows [first, first + rows) of codes. */
static ng_tensor rows_of(ng_format f, void *codes, int64_t first, int64_t rows, int64_t columns)
{
    unsigned char *at = codes;
    return ng_moe_matrix(f, at + (size_t)(first * columns) * ng_moe_bytes_of(f), rows, columns);
}

static ng_tensor transposed(const ng_tensor *t)
{
    ng_tensor turned = *t;
    turned.dim[0] = t->dim[1];
    turned.dim[1] = t->dim[0];
    turned.stride[0] = t->stride[1];
    turned.stride[1] = t->stride[0];
    return turned;
}

/* Item 111: g, u and the codes of m. */
static ng_status forward(struct back *b, int64_t e, int64_t rows)
{
    struct moe_mlp *m = &b->m;
    const int64_t first = m->offset[e];
    const struct settle_job hidden = { .hidden = m->op.hidden };
    ng_status s = ng_moe_gather(m, first, rows);
    const ng_tensor x = ng_moe_matrix(m->x.from, m->x.codes, rows, m->h);
    if (!s)
        s = ng_moe_multiply(m, &m->gate, e, &x, m->g);
    if (!s)
        s = ng_moe_multiply(m, &m->up, e, &x, m->u);
    if (s)
        return s;
    ng_moe_settle(m->ctx, &hidden, NULL, rows, m->i, m->g);
    ng_moe_settle(m->ctx, &hidden, NULL, rows, m->i, m->u);
    const struct moe_act_call c = { .op = &m->op.act,
                                    .gated = true,
                                    .rows = rows,
                                    .columns = m->i,
                                    .gate = { m->g, m->i },
                                    .up = { m->u, m->i },
                                    .dst = { b->dmiddle, m->i } };
    ng_moe_act_run(m->ctx, &c);
    const ng_tensor wide = ng_moe_matrix(NG_F32, b->dmiddle, rows, m->i),
                    codes = rows_of(m->op.middle, b->middle, first, rows, m->i);
    return ng_moe_convert(m->ctx, &wide, &codes);
}

static void dots(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct back *b = arg;
    const uint32_t saved = ng_fp_enter();
    (void)worker;
    if (b->kernel)
        b->kernel->dots(to - from, b->m.h, b->dy_row + from, b->o_row + from,
                        b->dweight + from);
    else
        for (int64_t r = from; r < to; r++)
            b->dweight[r] = ng_ref_moe_dot(b->m.h, b->dy_row[r], b->o_row[r]);
    ng_fp_leave(saved);
}

/* Item 113: what dy and o give, kept for the entries of the rows. */
static ng_status weights_back(struct back *b, int64_t e, int64_t rows)
{
    struct moe_mlp *m = &b->m;
    const struct settle_job out = { .hidden = m->op.expert_out };
    const ng_tensor middle = rows_of(m->op.middle, b->middle, m->offset[e], rows, m->i);
    const ng_status s = ng_moe_multiply(m, &m->down, e, &middle, b->part);
    if (s)
        return s;
    ng_moe_settle(m->ctx, &out, NULL, rows, m->h, b->part);
    for (int64_t r = 0; r < rows; r++)
        b->o_row[r] = b->part + r * m->h;
    ng_moe_rows(m->ctx, rows, m->h, b, dots);
    for (int64_t r = 0; r < rows; r++)
        b->dentry[m->row[m->offset[e] + r]] = b->dweight[r];
    return NG_OK;
}

/* Item 112. */
static ng_status output_back(struct back *b, int64_t e, int64_t rows)
{
    struct moe_mlp *m = &b->m;
    const struct settle_job weighted = { .row_scaled = true };
    for (int64_t r = 0; r < rows; r++)
        memcpy(b->part + r * m->h, b->dy_row[r], (size_t)m->h * sizeof *b->part);
    if (m->weights.data)
        ng_moe_settle(m->ctx, &weighted, m->affinity, rows, m->h, b->part);
    const ng_tensor wide = ng_moe_matrix(NG_F32, b->part, rows, m->h),
                    codes = rows_of(m->op.middle, b->dout, m->offset[e], rows, m->h);
    return ng_moe_convert(m->ctx, &wide, &codes);
}

/* a times an expert's weights, turned; FP32. */
static ng_status multiply_back(struct back *b, const struct moe_linear *l, int64_t e,
                               const ng_tensor *a, uint32_t *psum)
{
    struct moe_mlp *m = &b->m;
    const ng_tensor w = transposed(&l->given->weights[e]),
                    d = ng_moe_matrix(NG_F32, psum, a->dim[0], l->k);
    const ng_status s = ng_gemm(m->ctx, &m->op.gemm, a, &w, NULL, &d);
    return s ? ng_moe_failed_at(m, s, l->name, e) : s;
}

static void act_rows(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct back *b = arg;
    const struct moe_mlp *m = &b->m;
    const uint32_t saved = ng_fp_enter();
    (void)worker;
    for (int64_t at = from * m->i, end = to * m->i; at < end; at += NG_MOE_ACT_MOST) {
        const int64_t n = end - at < NG_MOE_ACT_MOST ? end - at : NG_MOE_ACT_MOST;
        uint32_t *g = m->g + at, *u = m->u + at;
        const uint32_t *dm = b->dmiddle + at;
        if (b->kernel)
            b->kernel->act_back(&m->op.act, n, g, u, dm, g, u);
        for (int64_t i = 0; !b->kernel && i < n; i++) {
            const uint32_t gate = g[i];
            g[i] = ng_ref_moe_gate_back(&m->op.act, gate, u[i], dm[i]);
            u[i] = ng_ref_moe_up_back(&m->op.act, gate, dm[i]);
        }
    }
    ng_fp_leave(saved);
}

/* Items 114 and 115: the codes of dg and du. */
static ng_status hidden_back(struct back *b, int64_t e, int64_t rows)
{
    struct moe_mlp *m = &b->m;
    const int64_t first = m->offset[e];
    const struct settle_job hidden = { .hidden = m->op.hidden };
    const ng_tensor dout = rows_of(m->op.middle, b->dout, first, rows, m->h);
    ng_status s = multiply_back(b, &m->down, e, &dout, b->dmiddle);
    if (s)
        return s;
    ng_moe_settle(m->ctx, &hidden, NULL, rows, m->i, b->dmiddle);
    ng_moe_rows(m->ctx, rows, m->i, b, act_rows);
    const ng_tensor g = ng_moe_matrix(NG_F32, m->g, rows, m->i),
                    u = ng_moe_matrix(NG_F32, m->u, rows, m->i),
                    dg = rows_of(m->x.from, b->dgate, first, rows, m->i),
                    du = rows_of(m->x.from, b->dup, first, rows, m->i);
    s = ng_moe_convert(m->ctx, &g, &dg);
    return s ? s : ng_moe_convert(m->ctx, &u, &du);
}

/* Item 116: rows of dx, in m->o. */
static ng_status input_back(struct back *b, int64_t e, int64_t rows)
{
    struct moe_mlp *m = &b->m;
    const int64_t first = m->offset[e];
    const ng_moe_combine_op add = { .size = sizeof add, .sum = m->op.expert_out };
    const ng_tensor dg = rows_of(m->x.from, b->dgate, first, rows, m->i),
                    du = rows_of(m->x.from, b->dup, first, rows, m->i),
                    q = rows_of(NG_F32, m->o, first, rows, m->h),
                    part = ng_moe_matrix(NG_F32, b->part, rows, m->h);
    ng_status s = multiply_back(b, &m->gate, e, &dg, q.data);
    if (!s)
        s = multiply_back(b, &m->up, e, &du, b->part);
    return s ? s : ng_moe_combine(m->ctx, &add, &part, b->each, 1, NULL, &q, &q);
}

static ng_status run_expert(struct back *b, int64_t e)
{
    struct moe_mlp *m = &b->m;
    const ng_moe_gradients *g = b->grad;
    const int64_t first = m->offset[e], rows = ng_moe_expert_rows(m, e);
    if (!rows)
        return NG_OK;
    for (int64_t r = 0; r < rows; r++)
        b->dy_row[r] =
            b->dy.data + m->row[first + r] / (int64_t)m->op.dispatch.k * b->dy.stride;
    ng_status s = forward(b, e, rows);
    if (!s && g->weights)
        s = weights_back(b, e, rows);
    if (!s)
        s = output_back(b, e, rows);
    if (!s && (g->x || g->gate || g->up))
        s = hidden_back(b, e, rows);
    return s || !g->x ? s : input_back(b, e, rows);
}

/* ---- Gradients of weights: rows times rows. ---- */

/* One projection's: a^T d, over an expert's rows. */
struct outer {
    const struct moe_linear *linear;
    const ng_tensor *grad; /* NULL: not wanted */
    ng_format a_format, d_format;
    void *a, *d; /* codes of rows; a NULL: x */
};

static void find_outer(const struct back *b, struct outer o[3])
{
    const struct moe_mlp *m = &b->m;
    const ng_format x = m->x.from, middle = m->op.middle;
    o[0] = (struct outer){ &m->gate, b->grad->gate, x, x, NULL, b->dgate };
    o[1] = (struct outer){ &m->up, b->grad->up, x, x, NULL, b->dup };
    o[2] = (struct outer){ &m->down, b->grad->down, middle, middle, b->middle, b->dout };
}

/* Its operands. The rows of x lie where ng_moe_gather() puts them. */
static void outer_operands(const struct back *b, const struct outer *o, int64_t e, int64_t rows,
                           ng_tensor *a, ng_tensor *d)
{
    const struct moe_mlp *m = &b->m;
    const int64_t first = m->offset[e];
    const ng_tensor lines = o->a ? rows_of(o->a_format, o->a, first, rows, o->linear->k)
                                 : ng_moe_matrix(o->a_format, m->x.codes, rows, o->linear->k);
    *a = transposed(&lines);
    *d = rows_of(o->d_format, o->d, first, rows, o->linear->n);
}

/* Every multiply of the gradients is one that ng_gemm() takes, and has its memory. */
static ng_status reserve(struct back *b, const struct outer o[3])
{
    struct moe_mlp *m = &b->m;
    size_t most = 0;
    void *block;
    for (int64_t e = 0; e < m->local; e++) {
        const int64_t rows = ng_moe_expert_rows(m, e);
        for (int i = 0; rows && i < 3; i++) {
            ng_tensor a, d;
            size_t bytes;
            if (!o[i].grad)
                continue;
            outer_operands(b, &o[i], e, rows, &a, &d);
            const ng_status s =
                ng_gemm_scratch(m->ctx, &m->op.gemm, &a, &d, NULL, &o[i].grad[e], &bytes);
            if (s)
                return ng_moe_failed_at(m, s, o[i].linear->name, e);
            most = bytes > most ? bytes : most;
        }
    }
    return ng_arena_claim(m->ctx, most, &block);
}

static void fill_zero(const ng_tensor *t)
{
    const size_t bytes = ng_moe_bytes_of(t->format);
    for (int64_t k = 0; k < t->dim[0]; k++)
        for (int64_t n = 0; n < t->dim[1]; n++)
            memset((unsigned char *)t->data +
                       (k * t->stride[0] + n * t->stride[1]) * (int64_t)bytes,
                   0, bytes);
}

/* Cannot fail: see reserve(). */
static void write_outer(struct back *b, const struct outer o[3])
{
    struct moe_mlp *m = &b->m;
    for (int64_t e = 0; e < m->local; e++) {
        const int64_t rows = ng_moe_expert_rows(m, e);
        if (rows && (o[0].grad || o[1].grad))
            (void)ng_moe_gather(m, m->offset[e], rows);
        for (int i = 0; i < 3; i++) {
            ng_tensor a, d;
            if (!o[i].grad)
                continue;
            if (!rows) {
                fill_zero(&o[i].grad[e]);
                continue;
            }
            outer_operands(b, &o[i], e, rows, &a, &d);
            (void)ng_gemm(m->ctx, &m->op.gemm, &a, &d, NULL, &o[i].grad[e]);
        }
    }
}

/* ---- The call. ---- */

/* dx of all tokens, as FP32. */
static ng_status sum_rows(struct back *b)
{
    const struct moe_mlp *m = &b->m;
    const int64_t rows = m->offset[m->local];
    const ng_moe_combine_op op = { .size = sizeof op,
                                   .order = m->op.combine.order,
                                   .sum = m->op.combine.sum };
    const ng_tensor q = ng_moe_matrix(NG_F32, m->o, rows < 1 ? 1 : rows, m->h),
                    dx = ng_moe_matrix(NG_F32, b->dx, m->tokens->dim[0], m->h);
    return ng_moe_combine(m->ctx, &op, &q, m->slot, m->op.dispatch.k, NULL, NULL, &dx);
}

static ng_status run(struct back *b)
{
    struct moe_mlp *m = &b->m;
    const ng_moe_gradients *g = b->grad;
    const int64_t tokens = m->tokens->dim[0], k = m->op.dispatch.k;
    struct outer o[3];
    ng_status s = NG_OK;
    memset(b->dentry, 0, (size_t)(tokens * k) * sizeof *b->dentry);
    for (int64_t e = 0; !s && e < m->local; e++)
        s = run_expert(b, e);
    if (!s && g->x)
        s = sum_rows(b);
    find_outer(b, o);
    if (!s)
        s = reserve(b, o);
    if (s)
        return s;
    write_outer(b, o);
    const ng_tensor dx = ng_moe_matrix(NG_F32, b->dx, tokens, m->h),
                    dw = ng_moe_matrix(NG_F32, b->dentry, tokens, k);
    if (g->x)
        (void)ng_moe_convert(m->ctx, &dx, g->x); /* an output's format takes every value */
    if (g->weights)
        (void)ng_moe_convert(m->ctx, &dw, g->weights);
    return NG_OK;
}

ng_status ng_moe_mlp_backward(ng_ctx *ctx, const ng_moe_op *op, const ng_moe_experts *experts,
                              const ng_tensor *x, const int32_t *indices,
                              const ng_tensor *weights, const ng_tensor *dy,
                              const ng_moe_gradients *grad)
{
    struct back b = { .m = { .ctx = ctx }, .grad = grad };
    ng_status s = ng_begin(ctx);
    if (!s)
        s = ng_moe_open_mlp(&b.m, op, experts, x, indices, weights);
    if (!s)
        s = check_options(&b);
    if (!s)
        s = check_gradients(&b, dy);
    if (s)
        return s;
    b.m.memory = (struct moe_memory){ .ctx = ctx, .used = NG_MOE_FIRST_PIECES };
    s = check_apart(&b, indices, weights, dy);
    if (!s)
        s = make_room(&b, indices, weights, dy);
    if (!s)
        s = run(&b);
    ng_ctx_stage(ctx, NULL);
    ng_pieces_keep(ctx, b.m.memory.used);
    if (!s)
        ng_ctx_note_kernel(ctx, b.kernel ? b.kernel->name : "ref", (ng_tiles){ 0 });
    return s;
}
