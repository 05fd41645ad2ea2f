/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_attention: the front door makes a job of checked operands; rows are tasks. Numerics:
 * docs/numerics.md, sections 5 and 11.9.
 */
#include "attention_fast.h"

/* Item 78: no other parameter is read, and no profile. */
static bool is_real(const ng_setting *set)
{
    return set[NG_ATTENTION_ARITHMETIC].value == NG_ARITHMETIC_REAL;
}

/* ---- Front door: shapes. ---- */

static ng_status check_ranks(ng_ctx *ctx, const struct attention_views *v)
{
    const ng_tensor *const t[] = { v->q, v->k, v->v, v->o };
    const char *const name[] = { "q", "k", "v", "o" };
    for (size_t i = 0; i < 4; i++)
        if (t[i]->rank != 4)
            return ng_fail(ctx, NG_ERR_SHAPE, "%s: %s has rank %u; wanted: 4", CALL, name[i],
                           t[i]->rank);
    return NG_OK;
}

static ng_status check_equal(ng_ctx *ctx, const char *what, const char *x, int64_t xv,
                             const char *y, int64_t yv)
{
    return xv == yv ? NG_OK
                    : ng_fail(ctx, NG_ERR_SHAPE, "%s: %s is %lld in %s but %lld in %s", CALL,
                              what, (long long)xv, x, (long long)yv, y);
}

/* Keys of a sequence: those of k, or of all pages. */
static ng_status count_keys(ng_ctx *ctx, struct attention_job *g, const ng_attention_op *op,
                            const struct attention_views *v)
{
    g->page_rows = v->k->dim[2];
    g->keys = v->k->dim[2];
    if (!op->page_table) {
        if (op->pages)
            return ng_fail(ctx, NG_ERR_ARGUMENT,
                           "%s: op.pages is %lld without a page_table; wanted: 0", CALL,
                           (long long)op->pages);
        return check_equal(ctx, "B", "q", g->batch, "k", v->k->dim[0]);
    }
    const int64_t rows = INT64_MAX / g->page_rows, /* that can be counted; entries likewise */
        entries = INT64_MAX / (int64_t)sizeof *op->page_table / g->batch,
                  most = rows < entries ? rows : entries;
    if (op->pages < 1 || op->pages > most)
        return ng_fail(ctx, NG_ERR_SHAPE, "%s: op.pages is %lld; wanted: 1 to %lld", CALL,
                       (long long)op->pages, (long long)most);
    g->keys = op->pages * g->page_rows;
    return NG_OK;
}

static ng_status check_shapes(ng_ctx *ctx, struct attention_job *g, const ng_attention_op *op,
                              const struct attention_views *v)
{
    g->batch = v->q->dim[0];
    g->heads = v->q->dim[1];
    g->queries = v->q->dim[2];
    g->d = v->q->dim[3];
    g->kv_heads = v->k->dim[1];
    g->dv = v->v->dim[3];
    ng_status s = count_keys(ctx, g, op, v);
    if (!s)
        s = check_equal(ctx, "d", "q", g->d, "k", v->k->dim[3]);
    if (!s)
        s = check_equal(ctx, op->page_table ? "the number of blocks" : "B", "k", v->k->dim[0],
                        "v", v->v->dim[0]);
    if (!s)
        s = check_equal(ctx, "Hkv", "k", g->kv_heads, "v", v->v->dim[1]);
    if (!s)
        s = check_equal(ctx, op->page_table ? "rows of a page" : "Skv", "k", v->k->dim[2], "v",
                        v->v->dim[2]);
    if (!s)
        s = check_equal(ctx, "B", "q", g->batch, "o", v->o->dim[0]);
    if (!s)
        s = check_equal(ctx, "Hq", "q", g->heads, "o", v->o->dim[1]);
    if (!s)
        s = check_equal(ctx, "Sq", "q", g->queries, "o", v->o->dim[2]);
    if (!s)
        s = check_equal(ctx, "dv", "v", g->dv, "o", v->o->dim[3]);
    if (s)
        return s;
    if (g->heads % g->kv_heads)
        return ng_fail(ctx, NG_ERR_SHAPE, "%s: Hq is %lld; wanted: a multiple of Hkv = %lld",
                       CALL, (long long)g->heads, (long long)g->kv_heads);
    if (g->d > NG_REF_MAX_HEAD || g->dv > NG_REF_MAX_HEAD)
        return ng_fail(ctx, NG_ERR_SHAPE, "%s: %s is %lld; wanted: at most %d", CALL,
                       g->d > NG_REF_MAX_HEAD ? "d" : "dv",
                       (long long)(g->d > NG_REF_MAX_HEAD ? g->d : g->dv), NG_REF_MAX_HEAD);
    return NG_OK;
}

/* ---- Front door: lengths and pages. ---- */

static ng_status check_lengths(ng_ctx *ctx, const struct attention_job *g)
{
    const int64_t *length = g->op->kv_length;
    for (int64_t b = 0; length && b < g->batch; b++)
        if (length[b] < 0 || length[b] > g->keys)
            return ng_fail(ctx, NG_ERR_SHAPE, "%s: kv_length[%lld] is %lld; wanted: 0 to %lld",
                           CALL, (long long)b, (long long)length[b], (long long)g->keys);
    return NG_OK;
}

static ng_status check_pages(ng_ctx *ctx, const struct attention_job *g)
{
    const int64_t *table = g->op->page_table;
    for (int64_t b = 0; table && b < g->batch; b++)
        for (int64_t p = 0; p * g->page_rows < ng_ref_keys(g, b); p++) {
            const int64_t block = table[b * g->op->pages + p];
            if (block < 0 || block >= g->k.dim[0])
                return ng_fail(
                    ctx, NG_ERR_ARGUMENT,
                    "%s: page_table[%lld][%lld] is %lld; wanted: a block of k, 0 to %lld", CALL,
                    (long long)b, (long long)p, (long long)block, (long long)g->k.dim[0] - 1);
        }
    return NG_OK;
}

/* ---- Front door: formats, block scales and rules. ---- */

static ng_status check_blocks(ng_ctx *ctx, const char *name, const ng_tensor *t, uint32_t axis)
{
    if (t->tensor_scale || t->sparse)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: %s has %s; wanted: none", CALL, name,
                       t->sparse ? "tags" : "a tensor_scale");
    if (!t->scale)
        return NG_OK;
    if (t->scale_format != NG_E8M0 || t->block != 32)
        return ng_fail(ctx, NG_ERR_FORMAT,
                       "%s: %s has blocks of %u with %s scales; wanted: 32 with e8m0", CALL,
                       name, t->block, ng_format_info(t->scale_format)->text);
    if (t->block_axis != axis)
        return ng_fail(ctx, NG_ERR_LAYOUT,
                       "%s: blocks of %s run along dimension %u; wanted: %u", CALL, name,
                       t->block_axis, axis);
    if (t->layout == NG_LAYOUT_TRN_WRAP)
        return ng_fail(ctx, NG_ERR_LAYOUT,
                       "%s: %s has layout trn_wrap; wanted: linear or trn_1x32", CALL, name);
    return NG_OK;
}

static const ng_format_spec *format_or(int32_t wanted, bool scaled, ng_format given)
{
    return ng_format_info(wanted == NG_FORMAT_NONE || scaled ? given : (ng_format)wanted);
}

/* The rule of one multiply. `what`: "q k^T". */
ng_status ng_attention_find_rule(ng_ctx *ctx, const ng_profile *profile, const char *what,
                                 struct attention_multiply *m, bool a_blocks, bool b_blocks)
{
    char message[400];
    if (a_blocks != b_blocks)
        return ng_fail(ctx, NG_ERR_FORMAT,
                       "%s: %s: %s has block scales but %s has none (q_block, p_block)", CALL,
                       what, a_blocks ? "the first" : "the second",
                       a_blocks ? "the second" : "the first");
    m->mode = a_blocks ? NG_MODE_MX : NG_MODE_PLAIN;
    m->rule =
        ng_profile_rule(profile, m->a->format, m->b->format, m->mode, message, sizeof message);
    if (!m->rule || ng_rule_check(m->rule, message, sizeof message))
        return ng_fail(ctx, NG_ERR_PROFILE, "%s: %s: %s", CALL, what, message);
    if (m->rule->block && a_blocks && m->rule->block != 32)
        return ng_fail(ctx, NG_ERR_PROFILE, "%s: %s: rule %s/%s wants blocks of %u, not 32",
                       CALL, what, profile->name, m->rule->name, m->rule->block);
    const ng_setting *set = m->rule->set;
    if (set[NG_PARAM_FAMILY].value == NG_FAMILY_ARRAY &&
        set[NG_PARAM_PSUM].value == NG_PSUM_BF16)
        return ng_fail(ctx, NG_ERR_PROFILE, "%s: %s: rule %s/%s has no f32 accumulator", CALL,
                       what, profile->name, m->rule->name);
    return NG_OK;
}

static ng_status find_rules(ng_ctx *ctx, struct attention_job *g)
{
    const bool mx_q = g->q.scale || g->set[NG_ATTENTION_Q_BLOCK].value,
               mx_p = g->set[NG_ATTENTION_P_BLOCK].value != 0;
    const int32_t kv = g->set[NG_ATTENTION_KV_FORMAT].value;
    g->scores.a = format_or(g->set[NG_ATTENTION_Q_FORMAT].value, g->q.scale, g->q.format);
    g->scores.b = format_or(kv, g->k.scale, g->k.format);
    g->pv.a = ng_format_info((ng_format)g->set[NG_ATTENTION_P_FORMAT].value);
    g->pv.b = format_or(kv, g->v.scale, g->v.format);
    g->ones.a = g->ones.b = g->pv.a;
    ng_status s =
        ng_attention_find_rule(ctx, g->op->profile, "q k^T", &g->scores, mx_q, g->k.scale);
    if (!s)
        s = ng_attention_find_rule(ctx, g->op->profile, "p v", &g->pv, mx_p, g->v.scale);
    if (!s && g->set[NG_ATTENTION_SUM_ORDER].value == NG_SUM_ONES)
        s = ng_attention_find_rule(ctx, g->op->profile, "p 1", &g->ones, mx_p, mx_p);
    return s;
}

static ng_status check_formats(ng_ctx *ctx, struct attention_job *g)
{
    ng_status s = check_blocks(ctx, "q", &g->q, 3);
    if (!s)
        s = check_blocks(ctx, "k", &g->k, 3);
    if (!s)
        s = check_blocks(ctx, "v", &g->v, 2);
    if (s)
        return s;
    if (g->o.scale || g->o.tensor_scale || g->o.sparse)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: o takes neither scales nor tags", CALL);
    if (g->v.scale && g->op->page_table && g->page_rows % 32)
        return ng_fail(ctx, NG_ERR_LAYOUT,
                       "%s: a page has %lld rows; wanted: a multiple of 32, as v has blocks",
                       CALL, (long long)g->page_rows);
    if (is_real(g->set))
        return NG_OK;
    if (g->q.scale && g->set[NG_ATTENTION_Q_BLOCK].value)
        return ng_fail(ctx, NG_ERR_FORMAT,
                       "%s: q has block scales but q_block is 32; wanted: 0", CALL);
    if (g->q.scale && g->op->scale && g->set[NG_ATTENTION_SCALE_PLACE].value == NG_PLACE_Q)
        return ng_fail(ctx, NG_ERR_FORMAT,
                       "%s: q has block scales but scale_place is q; wanted: scores or exp",
                       CALL);
    if (g->set[NG_ATTENTION_O_FORMAT].value == NG_OUTPUT_AS_Q && g->q.format != NG_F32 &&
        g->q.format != NG_BF16 && g->q.format != NG_F16)
        return ng_fail(ctx, NG_ERR_FORMAT,
                       "%s: o_format is q, which is %s; wanted: f32, bf16 or f16", CALL,
                       ng_format_info(g->q.format)->text);
    return find_rules(ctx, g);
}

/* ---- Front door: options. ---- */

static ng_status check_number(ng_ctx *ctx, const char *name, uint32_t pattern, bool positive)
{
    const ng_value v = ng_num_f32(pattern);
    if (v.cls != NG_CLASS_FINITE || (positive && (v.neg || !v.sig)))
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op.%s is 0x%08X; wanted: finite%s", CALL,
                       name, pattern, positive ? " and positive" : "");
    return NG_OK;
}

static ng_status check_place_exp(ng_ctx *ctx, const ng_attention_op *op)
{
    if (op->sink || op->softcap)
        return ng_fail(ctx, NG_ERR_PROFILE,
                       "%s: scale_place exp takes no op.%s; wanted: scale_place q or scores",
                       CALL, op->sink ? "sink" : "softcap");
    return op->scale ? check_number(ctx, "scale", op->scale, true) : NG_OK;
}

static ng_status check_options(ng_ctx *ctx, const struct attention_job *g)
{
    const ng_attention_op *op = g->op;
    if ((unsigned)op->align > NG_ALIGN_TOP_LEFT || (unsigned)op->masked_rows > NG_MASKED_ZERO)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op.%s is out of range", CALL,
                       (unsigned)op->align > NG_ALIGN_TOP_LEFT ? "align" : "masked_rows");
    if (op->window < 0)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op.window is %lld; wanted: 0 or more", CALL,
                       (long long)op->window);
    ng_status s = check_number(ctx, "scale", op->scale, false);
    if (!s && op->softcap)
        s = check_number(ctx, "softcap", op->softcap, true);
    if (!s && !is_real(g->set) && g->set[NG_ATTENTION_SCALE_PLACE].value == NG_PLACE_EXP)
        s = check_place_exp(ctx, op);
    return s;
}

static ng_status check_sink(ng_ctx *ctx, const struct attention_job *g)
{
    const ng_tensor *t = g->op->sink;
    struct ng_extent extent;
    if (!t)
        return NG_OK;
    const ng_status s = ng_check_tensor(ctx, CALL, "op.sink", t, false, &extent);
    if (s)
        return s;
    if (t->rank != 1 || t->dim[0] != g->heads)
        return ng_fail(
            ctx, NG_ERR_SHAPE,
            "%s: op.sink has rank %u and %lld elements; wanted: rank 1 and Hq = %lld", CALL,
            t->rank, (long long)t->dim[0], (long long)g->heads);
    if (t->scale || t->tensor_scale || t->sparse)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: op.sink takes neither scales nor tags", CALL);
    return NG_OK;
}

static ng_status choose_function(ng_ctx *ctx, const struct attention_job *g,
                                 ng_attention_param p, const uint16_t *table,
                                 ng_function_choice *choice)
{
    const char *name = ng_attention_param_key(p);
    *choice = (ng_function_choice){ (ng_function_kind)g->set[p].value, table };
    if (choice->kind == NG_FUNCTION_TABLE && !table)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op.%s_table is NULL, but %s is table", CALL,
                       name, name);
    if (choice->kind == NG_FUNCTION_SLEEF && !ng_sleef_available())
        return ng_fail(ctx, NG_ERR_UNSUPPORTED, "%s: %s is sleef, which wants AVX2 and FMA",
                       CALL, name);
    return NG_OK;
}

static ng_status choose_functions(ng_ctx *ctx, struct attention_job *g)
{
    if (is_real(g->set))
        return NG_OK;
    ng_status s = choose_function(ctx, g, NG_ATTENTION_EXP, g->op->exp_table, &g->exp);
    if (!s)
        s = choose_function(ctx, g, NG_ATTENTION_TANH, g->op->tanh_table, &g->tanh);
    if (!s)
        s = choose_function(ctx, g, NG_ATTENTION_RECIPROCAL, g->op->reciprocal_table,
                            &g->reciprocal);
    return s;
}

static ng_status check_schedule(ng_ctx *ctx, const ng_attention_op *op)
{
    char message[200];
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op is NULL or op.size is not %zu", CALL,
                       sizeof *op);
    if (!op->schedule || (!op->profile && !is_real(op->schedule->set)))
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op.%s is NULL", CALL,
                       op->schedule ? "profile" : "schedule");
    if (ng_attention_schedule_check(op->schedule, message, sizeof message))
        return ng_fail(ctx, NG_ERR_PROFILE, "%s: schedule %s: %s", CALL,
                       op->schedule->name ? op->schedule->name : "", message);
    return NG_OK;
}

/* ---- Front door: memory. ---- */

ng_status ng_attention_check_input(ng_ctx *ctx, const char *name, const ng_tensor *t,
                                   struct attention_piece *in, size_t *n)
{
    if (!t)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s is NULL", CALL, name);
    in[*n] = (struct attention_piece){ name, t->data, { 0, 0 } };
    ng_status s = ng_check_tensor(ctx, CALL, name, t, false, &in[(*n)++].extent);
    if (s || !t->scale)
        return s;
    in[*n] = (struct attention_piece){ name, t->scale, { 0, 0 } };
    return ng_check_scale(ctx, CALL, name, t, false, &in[(*n)++].extent);
}

ng_status ng_attention_check_output(ng_ctx *ctx, const char *name, const ng_tensor *t,
                                    const struct attention_piece *in, size_t n_in,
                                    struct attention_piece *out, size_t *n)
{
    struct attention_piece p = { name, t->data, { 0, 0 } };
    const ng_status s = ng_check_tensor(ctx, CALL, name, t, true, &p.extent);
    if (s)
        return s;
    for (size_t i = 0; i < n_in; i++)
        if (ng_overlap(in[i].data, in[i].extent, p.data, p.extent))
            return ng_fail(ctx, NG_ERR_LAYOUT, "%s: %s overlaps %s", CALL, name, in[i].name);
    for (size_t i = 0; i < *n; i++)
        if (ng_overlap(out[i].data, out[i].extent, p.data, p.extent))
            return ng_fail(ctx, NG_ERR_LAYOUT, "%s: %s overlaps %s", CALL, name, out[i].name);
    out[(*n)++] = p;
    return NG_OK;
}

/* What is read beside the tensors. */
size_t ng_attention_side_inputs(const struct attention_job *g, struct attention_piece *in,
                                size_t n)
{
    const ng_attention_op *op = g->op;
    const int64_t table = 65536 * (int64_t)sizeof(uint16_t),
                  length = g->batch * (int64_t)sizeof(int64_t);
    if (op->sink) {
        const ng_format_spec *f = ng_format_info(op->sink->format);
        const int64_t last = (g->heads - 1) * op->sink->stride[0],
                      bytes = (int64_t)(f->store_bits + 7) / 8;
        in[n++] =
            (struct attention_piece){ "op.sink", op->sink->data,
                                      last < 0 ? (struct ng_extent){ last * bytes, bytes }
                                               : (struct ng_extent){ 0, (last + 1) * bytes } };
    }
    if (op->kv_length)
        in[n++] = (struct attention_piece){ "op.kv_length", op->kv_length, { 0, length } };
    if (op->page_table)
        in[n++] = (struct attention_piece){ "op.page_table",
                                            op->page_table,
                                            { 0, length * op->pages } };
    if (g->exp.kind == NG_FUNCTION_TABLE)
        in[n++] = (struct attention_piece){ "op.exp_table", g->exp.table, { 0, table } };
    if (g->tanh.kind == NG_FUNCTION_TABLE)
        in[n++] = (struct attention_piece){ "op.tanh_table", g->tanh.table, { 0, table } };
    if (g->reciprocal.kind == NG_FUNCTION_TABLE)
        in[n++] = (struct attention_piece){ "op.reciprocal_table",
                                            g->reciprocal.table,
                                            { 0, table } };
    return n;
}

ng_status ng_attention_check_statistic(ng_ctx *ctx, const struct attention_job *g,
                                       const char *name, const ng_tensor *t)
{
    if (t->format != NG_F32 || t->scale || t->tensor_scale || t->sparse)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: %s is %s; wanted: f32 without scales", CALL,
                       name, ng_format_info(t->format)->text);
    if (t->rank != 3 || t->dim[0] != g->batch || t->dim[1] != g->heads ||
        t->dim[2] != g->queries)
        return ng_fail(ctx, NG_ERR_SHAPE, "%s: %s is not [B, Hq, Sq] = [%lld, %lld, %lld]",
                       CALL, name, (long long)g->batch, (long long)g->heads,
                       (long long)g->queries);
    return NG_OK;
}

static ng_status check_saved(ng_ctx *ctx, struct attention_call *c,
                             const ng_attention_saved *saved, const struct attention_piece *in,
                             size_t n_in, struct attention_piece *out, size_t *n)
{
    struct attention_job *g = &c->job;
    const ng_tensor *const t[] = { saved->lse, saved->max, saved->sum };
    ng_tensor *const to[] = { &g->lse, &g->max, &g->sum };
    static const char *const name[] = { "saved.lse", "saved.max", "saved.sum" };
    for (size_t i = 0; i < 3; i++) {
        if (!t[i])
            continue;
        ng_status s = ng_attention_check_output(ctx, name[i], t[i], in, n_in, out, n);
        if (!s)
            s = ng_attention_check_statistic(ctx, g, name[i], t[i]);
        if (s)
            return s;
        *to[i] = *t[i];
    }
    return NG_OK;
}

ng_status ng_attention_check_nan(ng_ctx *ctx, const ng_cast *out, ng_format format)
{
    if (out->nan_to != NG_NAN_TO_ERROR || ng_format_info(format)->has_nan)
        return NG_OK;
    return ng_fail(ctx, NG_ERR_ARGUMENT,
                   "%s: nan_to \"error\" is for conversions; attention cannot know before it "
                   "writes",
                   CALL);
}

static ng_status check_cast(ng_ctx *ctx, struct attention_call *c,
                            const struct attention_piece *out, size_t n)
{
    struct attention_job *g = &c->job;
    const ng_format_spec *f = ng_format_info(g->o.format);
    ng_status s = ng_attention_check_nan(ctx, &g->op->out, g->o.format);
    if (!s)
        s = ng_check_cast(ctx, CALL, "op.out", &g->op->out, f, g->dv, ng_count(&g->o),
                          &c->words);
    for (size_t i = 0; !s && i < n; i++)
        if (ng_stream_overlaps(&c->words, out[i].data, out[i].extent))
            return ng_fail(ctx, NG_ERR_LAYOUT, "%s: %s overlaps the random words of op.out",
                           CALL, out[i].name);
    g->out_words = &c->words;
    return s;
}

/* All of room 1 but what writes memory. */
static ng_status check_job(ng_ctx *ctx, struct attention_job *g)
{
    ng_status s = check_lengths(ctx, g);
    if (!s)
        s = check_pages(ctx, g);
    if (!s)
        s = check_options(ctx, g);
    if (!s)
        s = check_formats(ctx, g);
    if (!s)
        s = check_sink(ctx, g);
    if (!s)
        s = choose_functions(ctx, g);
    return s;
}

ng_status ng_attention_check(ng_ctx *ctx, const ng_attention_op *op,
                             const struct attention_views *v, const ng_attention_saved *saved,
                             bool writes, struct attention_call *c)
{
    struct attention_piece in[14], out[4];
    size_t n_in = 0, n_out = 0;
    *c = (struct attention_call){ 0 };
    struct attention_job *g = &c->job;
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_schedule(ctx, op);
    if (!s)
        s = ng_attention_check_input(ctx, "q", v->q, in, &n_in);
    if (!s)
        s = ng_attention_check_input(ctx, "k", v->k, in, &n_in);
    if (!s)
        s = ng_attention_check_input(ctx, "v", v->v, in, &n_in);
    if (!s && !v->o)
        s = ng_fail(ctx, NG_ERR_ARGUMENT, "%s: o is NULL", CALL);
    if (s)
        return s;
    g->op = op;
    g->set = op->schedule->set;
    g->q = *v->q;
    g->k = *v->k;
    g->v = *v->v;
    g->o = *v->o;
    if (!writes && !g->o.data)
        g->o.data = c; /* anywhere: only its shape and format matter */
    s = ng_attention_check_output(ctx, "o", &g->o, in, writes ? n_in : 0, out, &n_out);
    if (!s)
        s = check_ranks(ctx, v);
    if (!s)
        s = check_shapes(ctx, g, op, v);
    if (!s)
        s = check_job(ctx, g);
    if (s)
        return s;
    const size_t sides = ng_attention_side_inputs(g, in, n_in);
    n_out = 0;
    s = ng_attention_check_output(ctx, "o", &g->o, in, writes ? sides : 0, out, &n_out);
    if (!s && saved)
        s = check_saved(ctx, c, saved, in, sides, out, &n_out);
    if (!s)
        s = check_cast(ctx, c, out, writes ? n_out : 0);
    if (!writes)
        g->o.data = NULL;
    return s;
}

/* ---- Rows. ---- */

struct run {
    const struct attention_job *g;
    unsigned char *scratch;
    size_t each; /* bytes of a worker */
};

static void store(const ng_tensor *t, const int64_t *index, uint32_t code)
{
    if (t->data)
        ng_store_code(t->data, ng_format_info(t->format)->store_bits, ng_offset_at(t, index),
                      code);
}

static void reference_row(const struct attention_job *g, int64_t row, void *scratch)
{
    struct ng_ref_attention_scratch s;
    struct ng_ref_attention_result result;
    int64_t index[NG_MAX_RANK] = { row / g->queries / g->heads, row / g->queries % g->heads,
                                   row % g->queries, 0 };
    (void)ng_ref_attention_scratch(g, scratch, &s);
    ng_ref_attention_row(g, index[0], index[1], index[2], &s, NULL, &result);
    store(&g->lse, index, result.lse);
    store(&g->max, index, result.max);
    store(&g->sum, index, result.sum);
    for (; index[3] < g->dv; index[3]++)
        store(&g->o, index, result.code[index[3]]);
}

static void run_row(void *arg, size_t task, size_t worker)
{
    const struct run *r = arg;
    reference_row(r->g, (int64_t)task, r->scratch + worker * r->each);
}

/* Rows of 4-bit elements may share bytes: those run in one thread. */
static bool is_serial(const struct attention_job *g)
{
    return ng_format_info(g->o.format)->store_bits == 4;
}

static ng_status scratch_bytes(ng_ctx *ctx, const struct attention_job *g, size_t *each,
                               size_t *all)
{
    const size_t workers = is_serial(g) ? 1 : ng_workers(ctx);
    *each = ng_ref_attention_scratch(g, NULL, NULL);
    if (__builtin_mul_overflow(*each, workers, all))
        return ng_fail(ctx, NG_ERR_SHAPE, "%s: scratch memory overflows a size", CALL);
    return NG_OK;
}

ng_status ng_attention(ng_ctx *ctx, const ng_attention_op *op, const ng_tensor *q,
                       const ng_tensor *k, const ng_tensor *v, const ng_tensor *o,
                       const ng_attention_saved *saved)
{
    struct attention_call c;
    ng_status s =
        ng_attention_check(ctx, op, &(struct attention_views){ q, k, v, o }, saved, true, &c);
    bool taken = false;
    if (!s)
        s = ng_attention_fast(ctx, &c.job, reference_row, &taken);
    if (s || taken)
        return s;
    struct run r = { .g = &c.job };
    size_t all;
    void *block;
    s = scratch_bytes(ctx, &c.job, &r.each, &all);
    if (!s)
        s = ng_arena_claim(ctx, all, &block);
    if (s)
        return s;
    r.scratch = block;
    const size_t rows = (size_t)(c.job.batch * c.job.heads * c.job.queries);
    ng_ctx_note_kernel(ctx, "ref", (ng_tiles){ .reference = rows });
    if (!is_serial(&c.job)) {
        ng_parallel(ctx, rows, run_row, &r);
        return NG_OK;
    }
    for (size_t i = 0; i < rows; i++)
        run_row(&r, i, 0);
    return NG_OK;
}

ng_status ng_attention_scratch(ng_ctx *ctx, const ng_attention_op *op, const ng_tensor *q,
                               const ng_tensor *k, const ng_tensor *v, const ng_tensor *o,
                               size_t *bytes)
{
    struct attention_call c;
    size_t each, fast;
    ng_status s =
        ng_attention_check(ctx, op, &(struct attention_views){ q, k, v, o }, NULL, false, &c);
    if (s)
        return s;
    if (!bytes)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "attention_scratch: bytes is NULL");
    s = ng_attention_fast_bytes(ctx, &c.job, &fast);
    if (!s)
        s = scratch_bytes(ctx, &c.job, &each, bytes);
    if (!s && fast)
        *bytes = fast;
    return s;
}

ng_status ng_attention_row(ng_ctx *ctx, const ng_attention_op *op, const ng_tensor *q,
                           const ng_tensor *k, const ng_tensor *v, const ng_tensor *o,
                           const int64_t index[3], const ng_attention_trace *trace,
                           uint32_t *code)
{
    struct attention_call c;
    struct ng_ref_attention_scratch scratch;
    struct ng_ref_attention_result result;
    ng_status s =
        ng_attention_check(ctx, op, &(struct attention_views){ q, k, v, o }, NULL, false, &c);
    if (s)
        return s;
    if (!index || !code || (trace && !trace->step))
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "attention_row: index, code or trace.step is NULL");
    for (uint32_t d = 0; d < 3; d++)
        if (index[d] < 0 || index[d] >= o->dim[d])
            return ng_fail(ctx, NG_ERR_ARGUMENT, "attention_row: index[%u] is %lld; o has %lld",
                           d, (long long)index[d], (long long)o->dim[d]);
    void *block;
    s = ng_arena_claim(ctx, ng_ref_attention_scratch(&c.job, NULL, NULL), &block);
    if (s)
        return s;
    (void)ng_ref_attention_scratch(&c.job, block, &scratch);
    ng_ref_attention_row(&c.job, index[0], index[1], index[2], &scratch, trace, &result);
    for (int64_t e = 0; e < c.job.dv; e++)
        code[e] = result.code[e];
    return NG_OK;
}
