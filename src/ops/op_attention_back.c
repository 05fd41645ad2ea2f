/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_attention_backward: the forward call's front door, then its own. Rows of dq, keys of dk
 * and dv and heads of dsink are tasks. Numerics: docs/numerics.md, section 11.9, items 79
 * to 82.
 */
#include "../dispatch.h"
#include "attention_back_fast.h"

/* ---- Front door. ---- */

static ng_status refuse(ng_ctx *ctx, const char *what, const char *wanted)
{
    return ng_fail(ctx, NG_ERR_PROFILE, "%s: the backward takes no %s; wanted: %s", CALL, what,
                   wanted);
}

static ng_status check_schedule(ng_ctx *ctx, const struct attention_job *f)
{
    const ng_setting *set = f->set;
    if (set[NG_ATTENTION_ARITHMETIC].value != NG_ARITHMETIC_STEPS)
        return refuse(ctx, "arithmetic real", "steps");
    if (set[NG_ATTENTION_Q_BLOCK].value || set[NG_ATTENTION_P_BLOCK].value || f->q.scale)
        return refuse(ctx, "block scales", "q_block and p_block 0, q without scales");
    if (f->op->page_table)
        return refuse(ctx, "page_table", "k and v in one piece");
    if (f->op->out.round == NG_ROUND_STOCHASTIC)
        return refuse(ctx, "stochastic op.out", "another rounding");
    return NG_OK;
}

static const ng_format_spec *converted(int32_t wanted, ng_format given)
{
    return ng_format_info(wanted == NG_FORMAT_NONE ? given : (ng_format)wanted);
}

static ng_status find_rules(ng_ctx *ctx, struct attention_grad_job *g)
{
    const struct attention_job *f = &g->forward;
    const ng_profile *profile = f->op->profile;
    const ng_format_spec *dout = converted(f->set[NG_ATTENTION_Q_FORMAT].value, g->dout.format);
    g->dp = (struct attention_multiply){ .a = dout, .b = f->pv.b };
    g->dq_sum = (struct attention_multiply){ .a = f->pv.a, .b = f->scores.b };
    g->dk_sum = (struct attention_multiply){ .a = f->pv.a, .b = f->scores.a };
    g->dv_sum = (struct attention_multiply){ .a = f->pv.a, .b = dout };
    ng_status s = ng_attention_find_rule(ctx, profile, "dout v^T", &g->dp, false, false);
    if (!s)
        s = ng_attention_find_rule(ctx, profile, "ds k", &g->dq_sum, false, false);
    if (!s)
        s = ng_attention_find_rule(ctx, profile, "ds^T q", &g->dk_sum, false, false);
    if (!s)
        s = ng_attention_find_rule(ctx, profile, "p^T dout", &g->dv_sum, false, false);
    return s;
}

static ng_status check_shape(ng_ctx *ctx, const char *name, const ng_tensor *t,
                             const char *like_name, const ng_tensor *like)
{
    if (t->scale || t->tensor_scale || t->sparse)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: %s takes neither scales nor tags", CALL, name);
    return ng_check_same_shape(ctx, CALL, name, t, like_name, like);
}

static ng_status take_statistic(ng_ctx *ctx, struct attention_job *f, const char *name,
                                const ng_tensor *t, ng_tensor *to, struct attention_piece *in,
                                size_t *n)
{
    ng_status s = ng_attention_check_input(ctx, name, t, in, n);
    if (!s)
        s = ng_attention_check_statistic(ctx, f, name, t);
    if (!s)
        *to = *t;
    return s;
}

static ng_status take_statistics(ng_ctx *ctx, struct attention_job *f,
                                 const ng_attention_saved *saved, struct attention_piece *in,
                                 size_t *n)
{
    if (!saved)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: saved is NULL", CALL);
    if (f->set[NG_ATTENTION_STATISTICS].value == NG_STATISTICS_LSE)
        return take_statistic(ctx, f, "saved.lse", saved->lse, &f->lse, in, n);
    const ng_status s = take_statistic(ctx, f, "saved.max", saved->max, &f->max, in, n);
    return s ? s : take_statistic(ctx, f, "saved.sum", saved->sum, &f->sum, in, n);
}

static ng_status take_gradients(ng_ctx *ctx, struct attention_grad_job *g,
                                const ng_attention_gradients *grad,
                                const struct attention_piece *in, size_t n_in)
{
    enum {
        N = 4
    };
    struct attention_piece out[N];
    size_t n = 0;
    if (!grad)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: grad is NULL", CALL);
    if (grad->sink && !g->forward.op->sink)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: grad.sink is given but op.sink is NULL",
                       CALL);
    const ng_tensor *const from[N] = { grad->q, grad->k, grad->v, grad->sink };
    const ng_tensor *const like[N] = { &g->forward.q, &g->forward.k, &g->forward.v,
                                       g->forward.op->sink };
    ng_tensor *const to[N] = { &g->dq, &g->dk, &g->dv, &g->dsink };
    static const char *const name[N] = { "grad.q", "grad.k", "grad.v", "grad.sink" };
    static const char *const like_name[N] = { "q", "k", "v", "op.sink" };
    for (size_t i = 0; i < N; i++) {
        if (!from[i])
            continue;
        ng_status s = ng_attention_check_output(ctx, name[i], from[i], in, n_in, out, &n);
        if (!s)
            s = check_shape(ctx, name[i], from[i], like_name[i], like[i]);
        if (!s)
            s = ng_attention_check_nan(ctx, &g->forward.op->out, from[i]->format);
        const char *why =
            s ? NULL : ng_num_cast_error(ng_format_info(from[i]->format), &g->forward.op->out);
        if (why)
            s = ng_fail(ctx, NG_ERR_FORMAT, "%s: op.out for %s: %s", CALL, name[i], why);
        if (s)
            return s;
        *to[i] = *from[i];
    }
    return NG_OK;
}

static ng_status check(ng_ctx *ctx, const ng_attention_op *op, const struct attention_views *v,
                       const ng_attention_saved *saved, const ng_tensor *dout,
                       const ng_attention_gradients *grad, struct attention_call *c,
                       struct attention_grad_job *g)
{
    struct attention_piece in[20];
    size_t n = 0;
    ng_status s = ng_attention_check(ctx, op, v, NULL, false, c);
    if (s)
        return s;
    *g = (struct attention_grad_job){ .forward = c->job };
    struct attention_job *f = &g->forward;
    f->o = *v->o;
    s = check_schedule(ctx, f);
    if (!s)
        s = ng_attention_check_input(ctx, "q", v->q, in, &n);
    if (!s)
        s = ng_attention_check_input(ctx, "k", v->k, in, &n);
    if (!s)
        s = ng_attention_check_input(ctx, "v", v->v, in, &n);
    if (!s)
        s = ng_attention_check_input(ctx, "o", v->o, in, &n);
    if (!s)
        s = ng_attention_check_input(ctx, "dout", dout, in, &n);
    if (!s)
        s = check_shape(ctx, "dout", dout, "o", v->o);
    if (!s)
        s = take_statistics(ctx, f, saved, in, &n);
    if (s)
        return s;
    g->dout = *dout;
    n = ng_attention_side_inputs(f, in, n);
    s = find_rules(ctx, g);
    return s ? s : take_gradients(ctx, g, grad, in, n);
}

/* ---- Tasks. ---- */

struct run {
    const struct attention_grad_job *g;
    const struct ng_attention_kernel *kernel; /* of dsink; NULL: the reference */
    unsigned char *scratch;
    size_t each;
};

static void store(const ng_tensor *t, int64_t *index, const uint32_t *code)
{
    if (!t->data)
        return;
    for (index[3] = 0; index[3] < t->dim[3]; index[3]++)
        ng_store_code(t->data, ng_format_info(t->format)->store_bits, ng_offset_at(t, index),
                      code[index[3]]);
}

static void reference_query(const struct attention_grad_job *g, int64_t row, void *scratch)
{
    struct ng_ref_gradient_scratch s;
    uint32_t code[NG_REF_MAX_HEAD];
    int64_t index[NG_MAX_RANK];
    ng_tensor rows = g->forward.q;
    rows.dim[3] = 1;
    ng_unravel(&rows, row, index);
    (void)ng_ref_gradient_scratch(g, scratch, &s);
    ng_ref_attention_dq(g, index[0], index[1], index[2], &s, code);
    store(&g->dq, index, code);
}

static void reference_key(const struct attention_grad_job *g, int64_t key, void *scratch)
{
    struct ng_ref_gradient_scratch s;
    uint32_t dk[NG_REF_MAX_HEAD], dv[NG_REF_MAX_HEAD];
    int64_t index[NG_MAX_RANK];
    ng_tensor rows = g->forward.k;
    rows.dim[3] = 1;
    ng_unravel(&rows, key, index);
    (void)ng_ref_gradient_scratch(g, scratch, &s);
    ng_ref_attention_dkv(g, index[0], index[1], index[2], &s, dk, dv);
    store(&g->dk, index, dk);
    store(&g->dv, index, dv);
}

static void run_query(void *arg, size_t task, size_t worker)
{
    const struct run *r = arg;
    reference_query(r->g, (int64_t)task, r->scratch + worker * r->each);
}

static void run_key(void *arg, size_t task, size_t worker)
{
    const struct run *r = arg;
    reference_key(r->g, (int64_t)task, r->scratch + worker * r->each);
}

/* 4-bit results share bytes: those in one thread. */
static void run_tasks(ng_ctx *ctx, struct run *r, size_t n, bool serial,
                      void (*body)(void *arg, size_t i, size_t worker))
{
    if (!serial) {
        ng_parallel(ctx, n, body, r);
        return;
    }
    for (size_t i = 0; i < n; i++)
        body(r, i, 0);
}

static bool is_serial(const ng_tensor *t)
{
    return t->data && ng_format_info(t->format)->store_bits == 4;
}

static void run_sink(void *arg, size_t task, size_t worker)
{
    const struct run *r = arg;
    const ng_tensor *t = &r->g->dsink;
    const int64_t head = (int64_t)task;
    (void)worker;
    ng_tensor_set(t, &head,
                  r->kernel ? ng_attention_back_sink(r->g, r->kernel, head)
                            : ng_ref_attention_dsink(r->g, head));
}

static void run_sinks(ng_ctx *ctx, const struct attention_grad_job *g)
{
    const struct attention_job *f = &g->forward;
    struct run heads = { .g = g, .kernel = ng_pick_attention(f, ng_ctx_isas(ctx)) };
    ng_tell_attention(ctx, "dsink", f, heads.kernel, NULL);
    run_tasks(ctx, &heads, (size_t)f->heads, is_serial(&g->dsink), run_sink);
}

/* dq, dk and dv by the reference. */
static ng_status run_reference(ng_ctx *ctx, const struct attention_grad_job *g)
{
    const struct attention_job *f = &g->forward;
    const size_t queries = (size_t)(f->batch * f->heads * f->queries),
                 keys = (size_t)(f->batch * f->kv_heads * f->keys);
    struct run r = { .g = g, .each = ng_ref_gradient_scratch(g, NULL, NULL) };
    void *block;
    const ng_status s = ng_arena_claim(ctx, r.each * ng_workers(ctx), &block);
    if (s)
        return s;
    r.scratch = block;
    ng_ctx_note_kernel(ctx, "ref", (ng_tiles){ .reference = queries + keys });
    if (g->dq.data)
        run_tasks(ctx, &r, queries, is_serial(&g->dq), run_query);
    if (g->dk.data || g->dv.data)
        run_tasks(ctx, &r, keys, is_serial(&g->dk) || is_serial(&g->dv), run_key);
    return NG_OK;
}

ng_status ng_attention_backward(ng_ctx *ctx, const ng_attention_op *op, const ng_tensor *q,
                                const ng_tensor *k, const ng_tensor *v, const ng_tensor *o,
                                const ng_attention_saved *saved, const ng_tensor *dout,
                                const ng_attention_gradients *grad)
{
    static const struct gradient_reference reference = { reference_query, reference_key };
    struct attention_call c;
    struct attention_grad_job g;
    bool taken = false;
    ng_status s =
        check(ctx, op, &(struct attention_views){ q, k, v, o }, saved, dout, grad, &c, &g);
    if (!s)
        s = ng_attention_back_fast(ctx, &g, &reference, &taken);
    if (!s && !taken)
        s = run_reference(ctx, &g);
    if (!s && g.dsink.data) /* last: from here on nothing fails */
        run_sinks(ctx, &g);
    return s;
}
