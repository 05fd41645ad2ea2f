/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_gemm and ng_dot: the rooms of docs/architecture.md. The front door checks everything and
 * makes a job of one matrix; the desk picks a kernel and claims memory; tiles do the rest.
 */
#include <string.h>

#include "../dispatch.h"
#include "../internal.h"
#include "../profile/profile_internal.h"
#include "../ref/ref.h"
#include "gemm_run.h"

/* ---- Front door: shapes. Dimensions are named by their meaning: m, n, k. ---- */

static ng_status wrong_rank(ng_ctx *ctx, const char *call, const char *name, uint32_t found,
                            const char *wanted)
{
    return ng_fail(ctx, NG_ERR_SHAPE, "%s: %s has rank %u; wanted: %s", call, name, found,
                   wanted);
}

static ng_status check_ranks(ng_ctx *ctx, const struct gemm_call *q, const struct gemm_views *v)
{
    const uint32_t rank = v->dot ? 2 : v->a->rank, out = v->dot ? 1 : rank;
    if (v->a->rank != rank || (!v->dot && rank < 2))
        return wrong_rank(ctx, q->name, "a", v->a->rank, v->dot ? "2" : "2 to 4");
    if (v->b->rank != rank)
        return wrong_rank(ctx, q->name, "b", v->b->rank, "that of a");
    if (v->d->rank != out)
        return wrong_rank(ctx, q->name, "d", v->d->rank, v->dot ? "1" : "that of a");
    if (v->c && v->c->rank != out)
        return wrong_rank(ctx, q->name, "c", v->c->rank, "that of d");
    return NG_OK;
}

static ng_status unequal(ng_ctx *ctx, const struct gemm_call *q, const char *what,
                         const char *x, int64_t xv, const char *y, int64_t yv)
{
    return ng_fail(ctx, NG_ERR_SHAPE, "%s: %s is %lld in %s but %lld in %s", q->name, what,
                   (long long)xv, x, (long long)yv, y);
}

/* K of the accumulation and of both operands in memory; section 4.3. */
static ng_status check_k(ng_ctx *ctx, struct gemm_call *q, int64_t ka, int64_t kb)
{
    struct gemm_job *g = &q->job;
    const ng_sparse *sp = g->a.sparse ? g->a.sparse : g->b.sparse;
    g->a.depth = ka;
    g->b.depth = kb;
    if (!sp) {
        g->k = ka;
        return ka == kb ? NG_OK : unequal(ctx, q, "K", "a", ka, "b", kb);
    }
    const char *name = g->a.sparse ? "a" : "b";
    if (g->a.sparse && g->b.sparse)
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: both a and b are sparse; wanted: at most one",
                       q->name);
    const ng_status s = ng_check_sparse(ctx, q->name, name, sp);
    if (s)
        return s;
    const int64_t slots = g->a.sparse ? ka : kb, dense = g->a.sparse ? kb : ka;
    if (slots % sp->kept || slots / sp->kept * sp->group != dense)
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "%s: %s holds %lld compressed k, so %u:%u wants K = %lld of the other "
                       "operand, which has %lld",
                       q->name, name, (long long)slots, sp->kept, sp->group,
                       (long long)(slots / sp->kept * sp->group), (long long)dense);
    g->k = slots;
    return NG_OK;
}

/* Element strides of the dimensions; for ng_dot every row is a matrix of its own. */
static ng_status lay_out(ng_ctx *ctx, struct gemm_call *q, const struct gemm_views *v)
{
    struct gemm_job *g = &q->job;
    const uint32_t r = v->a->rank;
    ng_status s;
    q->n_batch = v->dot ? 1 : r - 2;
    g->m = v->dot ? 1 : v->a->dim[r - 2];
    g->n = v->dot ? 1 : v->b->dim[r - 1];
    for (uint32_t i = 0; i < q->n_batch; i++) {
        const char *what = v->dot ? "the number of rows" : "a batch size";
        q->batch[i] = v->a->dim[i];
        if (v->b->dim[i] != q->batch[i])
            return unequal(ctx, q, what, "a", q->batch[i], "b", v->b->dim[i]);
        if (v->d->dim[i] != q->batch[i])
            return unequal(ctx, q, what, "a", q->batch[i], "d", v->d->dim[i]);
        if (v->c && v->c->dim[i] != q->batch[i])
            return unequal(ctx, q, what, "a", q->batch[i], "c", v->c->dim[i]);
        q->a_step[i] = v->a->stride[i];
        q->b_step[i] = v->b->stride[i];
        q->d_step[i] = v->d->stride[i];
        q->c_step[i] = v->c ? v->c->stride[i] : 0;
    }
    s = check_k(ctx, q, v->a->dim[r - 1], v->b->dim[v->dot ? r - 1 : r - 2]);
    if (s || v->dot) {
        g->a.k = v->a->stride[1];
        g->b.k = v->b->stride[1];
        return s;
    }
    if (v->d->dim[r - 2] != g->m)
        return unequal(ctx, q, "M", "a", g->m, "d", v->d->dim[r - 2]);
    if (v->d->dim[r - 1] != g->n)
        return unequal(ctx, q, "N", "b", g->n, "d", v->d->dim[r - 1]);
    if (v->c && v->c->dim[r - 2] != g->m)
        return unequal(ctx, q, "M", "a", g->m, "c", v->c->dim[r - 2]);
    if (v->c && v->c->dim[r - 1] != g->n)
        return unequal(ctx, q, "N", "b", g->n, "c", v->c->dim[r - 1]);
    g->a.line = v->a->stride[r - 2];
    g->a.k = v->a->stride[r - 1];
    g->b.line = v->b->stride[r - 1];
    g->b.k = v->b->stride[r - 2];
    g->d.row = v->d->stride[r - 2];
    g->d.col = v->d->stride[r - 1];
    g->c.row = v->c ? v->c->stride[r - 2] : 0;
    g->c.col = v->c ? v->c->stride[r - 1] : 0;
    return NG_OK;
}

/* ---- Front door: scales. ---- */

static ng_status take_scales(ng_ctx *ctx, struct gemm_call *q, const struct gemm_views *v,
                             const ng_tensor *t, const char *name, struct gemm_operand *o,
                             int64_t *batch_step)
{
    struct ng_extent extent;
    const ng_status s = ng_check_scale(ctx, q->name, name, t, false, &extent);
    if (s)
        return s;
    const uint32_t r = t->rank, k_axis = t == v->a || v->dot ? r - 1 : r - 2;
    if (t->block_axis != k_axis)
        return ng_fail(ctx, NG_ERR_LAYOUT,
                       "%s: blocks of %s run along dimension %u; wanted: %u, which is K",
                       q->name, name, t->block_axis, k_axis);
    int64_t stride[NG_MAX_RANK];
    ng_scale_strides(t, stride);
    o->scale = t->scale;
    o->scale_spec = ng_format_info(t->scale_format);
    o->block = t->block;
    o->layout = t->layout;
    o->scale_block = stride[k_axis];
    o->scale_line = v->dot ? 0 : stride[t == v->a ? r - 2 : r - 1];
    for (uint32_t i = 0; i < q->n_batch; i++)
        batch_step[i] = stride[i];
    return NG_OK;
}

static ng_status check_mode(ng_ctx *ctx, struct gemm_call *q, const ng_gemm_op *op,
                            const struct gemm_views *v)
{
    struct gemm_job *g = &q->job;
    if (!v->a->scale != !v->b->scale)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: %s has block scales but %s has none", q->name,
                       v->a->scale ? "a" : "b", v->a->scale ? "b" : "a");
    if (v->a->tensor_scale || v->b->tensor_scale)
        return ng_fail(
            ctx, NG_ERR_FORMAT,
            "%s: tensor_scale is not applied by a multiply; pass the product of both "
            "as op.out_scale",
            q->name);
    g->mode = op->double_row ? NG_MODE_DOUBLE_ROW : NG_MODE_PLAIN;
    if (!v->a->scale)
        return NG_OK;
    if (op->double_row)
        return ng_fail(ctx, NG_ERR_PROFILE, "%s: double_row takes no block scales", q->name);
    ng_status s = take_scales(ctx, q, v, v->a, "a", &g->a, q->as_step);
    if (!s)
        s = take_scales(ctx, q, v, v->b, "b", &g->b, q->bs_step);
    if (s)
        return s;
    if (v->a->scale_format != v->b->scale_format)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: scales of a are %s but of b %s", q->name,
                       g->a.scale_spec->text, g->b.scale_spec->text);
    if (v->a->block != v->b->block)
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: blocks of a have %u elements but of b %u",
                       q->name, v->a->block, v->b->block);
    const bool wa = v->a->layout == NG_LAYOUT_TRN_WRAP, wb = v->b->layout == NG_LAYOUT_TRN_WRAP;
    if (wa != wb)
        return ng_fail(ctx, NG_ERR_LAYOUT,
                       "%s: one of a and b has layout trn_wrap, the other not", q->name);
    if (g->a.sparse || g->b.sparse)
        return ng_fail(ctx, NG_ERR_PROFILE, "%s: a sparse operand takes no block scales",
                       q->name);
    g->mode = v->a->scale_format == NG_E8M0 ? NG_MODE_MX : NG_MODE_NV;
    return NG_OK;
}

/* ---- Front door: the rule, and what it makes of accumulators. ---- */

static ng_status check_rule(ng_ctx *ctx, struct gemm_call *q, const ng_gemm_op *op)
{
    struct gemm_job *g = &q->job;
    char message[400];
    if (!op->profile)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op.profile is NULL", q->name);
    g->rule = ng_profile_rule(op->profile, g->a.spec->format, g->b.spec->format, g->mode,
                              message, sizeof message);
    if (!g->rule)
        return ng_fail(ctx, NG_ERR_PROFILE, "%s: %s", q->name, message);
    if (ng_rule_check(g->rule, message, sizeof message))
        return ng_fail(ctx, NG_ERR_PROFILE, "%s: profile %s: %s", q->name, op->profile->name,
                       message);
    if (g->rule->block && g->a.scale && g->rule->block != g->a.block)
        return ng_fail(ctx, NG_ERR_PROFILE, "%s: blocks have %u elements; rule %s/%s wants %u",
                       q->name, g->a.block, op->profile->name, g->rule->name, g->rule->block);
    if (op->double_row && (g->a.sparse || g->b.sparse))
        return ng_fail(ctx, NG_ERR_PROFILE, "%s: double_row takes no sparse operand", q->name);
    const int32_t rows = ng_ref_param(g, NG_PARAM_ROWS),
                  lanes = ng_ref_param(g, NG_PARAM_LANES);
    const bool array = ng_ref_param(g, NG_PARAM_FAMILY) == NG_FAMILY_ARRAY;
    if (g->a.scale && g->a.layout == NG_LAYOUT_TRN_WRAP && array && lanes != 1 &&
        (rows != 128 || lanes != 4))
        return ng_fail(
            ctx, NG_ERR_LAYOUT,
            "%s: trn_wrap wants rows = 128 and lanes = 4, or lanes = 1; rule %s has %d and %d",
            q->name, g->rule->name, (int)rows, (int)lanes);
    if (g->a.scale && g->a.layout == NG_LAYOUT_TRN_WRAP && !array)
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: rule %s does not know the layout trn_wrap",
                       q->name, g->rule->name);
    if (op->fp4_map && op->fp4_format != NG_E4M3FN && op->fp4_format != NG_E5M2)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: fp4_format is not e4m3fn or e5m2", q->name);
    if (op->fp4_map && ng_ref_param(g, NG_PARAM_FAMILY) == NG_FAMILY_FUSED)
        return ng_fail(ctx, NG_ERR_PROFILE, "%s: rule %s/%s has no FP4 table", q->name,
                       op->profile->name, g->rule->name);
    return NG_OK;
}

static ng_format default_accumulator(const struct gemm_call *q, const ng_gemm_op *op,
                                     const struct gemm_views *v)
{
    const struct gemm_job *g = &q->job;
    if (op->accumulate)
        return op->accumulate;
    if (ng_ref_param(g, NG_PARAM_FAMILY) == NG_FAMILY_ARRAY)
        return ng_ref_param(g, NG_PARAM_PSUM) == NG_PSUM_BF16 ? NG_BF16 : NG_F32;
    const bool f16 = g->d.spec->format == NG_F16 && (!v->c || v->c->format == NG_F16) &&
                     ng_ref_param(g, NG_PARAM_OUT_F16) != NG_F16_ACC_NONE;
    return f16 ? NG_F16 : NG_F32;
}

static bool has_accumulator(const struct gemm_job *g)
{
    if (ng_ref_param(g, NG_PARAM_FAMILY) == NG_FAMILY_FUSED)
        return g->acc == NG_F32 ||
               (g->acc == NG_F16 && ng_ref_param(g, NG_PARAM_OUT_F16) != NG_F16_ACC_NONE);
    const int32_t psum = ng_ref_param(g, NG_PARAM_PSUM);
    return (g->acc == NG_F32 && psum != NG_PSUM_BF16) ||
           (g->acc == NG_BF16 && psum != NG_PSUM_F32);
}

/* Does the accumulator hold every value of the format? */
static bool holds(const ng_format_spec *acc, const ng_format_spec *f)
{
    const int least = 1 - f->bias - (int)f->man_bits,
              acc_least = 1 - acc->bias - (int)acc->man_bits;
    return f->man_bits <= acc->man_bits && f->exp_bits <= acc->exp_bits && least >= acc_least;
}

static ng_status check_psum_cast(ng_ctx *ctx, struct gemm_call *q, const ng_gemm_op *op)
{
    const struct gemm_job *g = &q->job;
    if (g->acc != NG_BF16)
        return NG_OK;
    const int32_t has = ng_ref_param(g, NG_PARAM_PSUM_ROUND);
    const bool sr = op->psum.round == NG_ROUND_STOCHASTIC;
    if ((!sr && op->psum.round != NG_ROUND_TIES_TO_EVEN) || (sr && has == NG_PSUM_RNE) ||
        (!sr && has == NG_PSUM_SR))
        return ng_fail(
            ctx, NG_ERR_PROFILE,
            "%s: op.psum.round is %d, which the accumulate memory of rule %s/%s has not",
            q->name, (int)op->psum.round, op->profile->name, g->rule->name);
    const int64_t rows = ng_ref_param(g, NG_PARAM_ROWS),
                  lanes = ng_ref_param(g, NG_PARAM_LANES);
    const int64_t deep = rows ? rows * lanes : g->k;
    const int64_t adds =
        ng_ref_param(g, NG_PARAM_PIECES) == 2 ? ng_ref_param(g, NG_PARAM_PIECE_ADDS) : 1;
    int64_t words = 0;
    if (__builtin_mul_overflow((g->k + deep - 1) / deep * adds, g->elements, &words))
        return ng_fail(ctx, NG_ERR_SHAPE, "%s: more random words than 2^63", q->name);
    q->job.psum_words = &q->psum_words;
    return ng_check_cast(ctx, q->name, "op.psum", &op->psum, ng_format_info(NG_BF16), g->n,
                         words, &q->psum_words);
}

static ng_status check_formats(ng_ctx *ctx, struct gemm_call *q, const ng_gemm_op *op,
                               const struct gemm_views *v)
{
    struct gemm_job *g = &q->job;
    g->acc = default_accumulator(q, op, v);
    const ng_format_spec *acc = ng_format_info(g->acc);
    if (!acc || !has_accumulator(g))
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: rule %s/%s has no %s accumulator", q->name,
                       op->profile->name, g->rule->name, acc ? acc->text : "such");
    if (g->c.spec && !holds(acc, g->c.spec))
        return ng_fail(
            ctx, NG_ERR_FORMAT,
            "%s: c is %s, but the accumulator is %s and does not hold all of its values",
            q->name, g->c.spec->text, acc->text);
    if (ng_num_is_nan(ng_num_f32(op->out_scale)) || ng_num_is_inf(ng_num_f32(op->out_scale)))
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: out_scale is 0x%08X; wanted: finite", q->name,
                       op->out_scale);
    if (op->out.nan_to == NG_NAN_TO_ERROR && !g->d.spec->has_nan)
        return ng_fail(
            ctx, NG_ERR_ARGUMENT,
            "%s: nan_to \"error\" is for conversions; a multiply cannot know before it "
            "writes",
            q->name);
    const ng_status s = check_psum_cast(ctx, q, op);
    if (s)
        return s;
    g->out_words = &q->out_words;
    return ng_check_cast(ctx, q->name, "op.out", &op->out, g->d.spec, g->n, g->elements,
                         &q->out_words);
}

/* ---- Front door: memory. ---- */

static ng_status check_overlap(ng_ctx *ctx, const struct gemm_call *q, const ng_tensor *t,
                               const char *name, struct ng_extent e, const ng_tensor *d,
                               struct ng_extent ed)
{
    if (ng_overlap(t->data, e, d->data, ed))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: d overlaps %s", q->name, name);
    struct ng_extent es;
    if (t->scale && ng_check_scale(ctx, q->name, name, t, false, &es) == NG_OK &&
        ng_overlap(t->scale, es, d->data, ed))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: d overlaps the scales of %s", q->name, name);
    return NG_OK;
}

static ng_status check_memory(ng_ctx *ctx, const struct gemm_call *q,
                              const struct gemm_views *v, bool writes)
{
    struct ng_extent ea, eb, ec, ed;
    ng_tensor out = *v->d;
    unsigned char nowhere;
    if (!writes && !out.data)
        out.data = &nowhere; /* only its shape and format matter */
    ng_status s = ng_check_tensor(ctx, q->name, "a", v->a, false, &ea);
    if (!s)
        s = ng_check_tensor(ctx, q->name, "b", v->b, false, &eb);
    if (!s && v->c)
        s = ng_check_tensor(ctx, q->name, "c", v->c, false, &ec);
    if (!s)
        s = ng_check_tensor(ctx, q->name, "d", &out, writes, &ed);
    if (!s && (v->d->scale || v->d->sparse || (v->c && (v->c->scale || v->c->sparse))))
        s = ng_fail(ctx, NG_ERR_FORMAT, "%s: c and d take neither block scales nor tags",
                    q->name);
    if (!s && writes)
        s = check_overlap(ctx, q, v->a, "a", ea, v->d, ed);
    if (!s && writes)
        s = check_overlap(ctx, q, v->b, "b", eb, v->d, ed);
    if (!s && writes && v->c && !ng_same_view(v->c, v->d) &&
        ng_overlap(v->c->data, ec, v->d->data, ed))
        s = ng_fail(ctx, NG_ERR_LAYOUT, "%s: d overlaps c without being the same view",
                    q->name);
    return s;
}

/* What else is read while D is written: tags and random words. */
static ng_status check_side_inputs(ng_ctx *ctx, const struct gemm_call *q, const ng_tensor *d)
{
    struct ng_extent ed;
    const struct gemm_job *g = &q->job;
    const struct gemm_operand *o = g->a.sparse ? &g->a : &g->b;
    const struct ng_stream *streams[] = { &q->out_words, &q->psum_words };
    ng_status s = ng_check_tensor(ctx, q->name, "d", d, true, &ed);
    if (s)
        return s;
    if (o->sparse) {
        const int64_t lines = (g->a.sparse ? g->m : g->n) * q->n_matrices;
        const struct ng_extent tags = { 0, lines * ng_tag_line_bytes(o->sparse, o->depth) };
        if (ng_overlap(o->sparse->tags, tags, d->data, ed))
            return ng_fail(ctx, NG_ERR_LAYOUT, "%s: d overlaps the tags of %s", q->name,
                           g->a.sparse ? "a" : "b");
    }
    for (int i = 0; i < 2; i++)
        if (ng_stream_overlaps(streams[i], d->data, ed))
            return ng_fail(ctx, NG_ERR_LAYOUT, "%s: d overlaps the random words of op.%s",
                           q->name, i ? "psum" : "out");
    return NG_OK;
}

static ng_status check_sparse(ng_ctx *ctx, struct gemm_call *q, const struct gemm_views *v)
{
    struct gemm_job *g = &q->job;
    struct gemm_operand *o = g->a.sparse ? &g->a : &g->b;
    const int64_t lines = (g->a.sparse ? g->m : g->n) * q->n_matrices;
    if (!o->sparse)
        return NG_OK;
    if (o == &g->b && v->b_ascends) {
        o->tags_ascend = *v->b_ascends;
        return NG_OK;
    }
    const char *name = o == &g->a ? "a" : "b";
    const ng_status s = ng_check_tag_stride(ctx, q->name, name, o->sparse, lines, o->depth);
    return s ? s
             : ng_check_tags(ctx, q->name, name, o->sparse, lines, o->depth, &o->tags_ascend);
}

/* All of room 1. `writes`: D's memory will be written. */
ng_status ng_gemm_check(ng_ctx *ctx, const ng_gemm_op *op, const struct gemm_views *v,
                        bool writes, struct gemm_call *q)
{
    ng_status s = ng_begin(ctx);
    *q = (struct gemm_call){ .name = v->dot ? "dot" : "gemm", .dot = v->dot };
    if (s)
        return s;
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op is NULL or op.size is not %zu", q->name,
                       sizeof *op);
    if (!v->a || !v->b || !v->d)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s is NULL", q->name,
                       !v->a   ? "a"
                       : !v->b ? "b"
                               : "d");
    s = check_memory(ctx, q, v, writes);
    if (!s)
        s = check_ranks(ctx, q, v);
    if (s)
        return s;

    struct gemm_job *g = &q->job;
    g->op = op;
    g->second = ng_ctx_asks_second(ctx);
    g->fp4 = op->fp4_map ? ng_format_info(op->fp4_format) : NULL;
    g->a = (struct gemm_operand){ .data = v->a->data,
                                  .spec = ng_format_info(v->a->format),
                                  .sparse = v->a->sparse };
    g->b = (struct gemm_operand){ .data = v->b->data,
                                  .spec = ng_format_info(v->b->format),
                                  .sparse = v->b->sparse };
    g->d = (struct gemm_matrix){ .data = v->d->data, .spec = ng_format_info(v->d->format) };
    if (v->c)
        g->c = (struct gemm_matrix){ .data = v->c->data, .spec = ng_format_info(v->c->format) };
    s = lay_out(ctx, q, v);
    if (s)
        return s;
    q->n_matrices = 1;
    for (uint32_t i = 0; i < q->n_batch; i++)
        q->n_matrices *= q->batch[i];
    g->elements = q->n_matrices * g->m * g->n;
    s = check_mode(ctx, q, op, v);
    if (!s)
        s = check_rule(ctx, q, op);
    if (!s)
        s = check_formats(ctx, q, op, v);
    if (!s)
        s = check_sparse(ctx, q, v);
    return s || !writes ? s : check_side_inputs(ctx, q, v->d);
}

/* ---- Public. ---- */

static ng_status multiply(ng_ctx *ctx, const ng_gemm_op *op, const struct gemm_views *v)
{
    struct gemm_call q;
    const ng_status s = ng_gemm_check(ctx, op, v, true, &q);
    return s ? s : ng_gemm_run(ctx, &q, NULL);
}

ng_status ng_gemm(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a, const ng_tensor *b,
                  const ng_tensor *c, const ng_tensor *d)
{
    return multiply(ctx, op, &(struct gemm_views){ a, b, c, d, false, NULL });
}

ng_status ng_dot(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a, const ng_tensor *b,
                 const ng_tensor *c, const ng_tensor *d)
{
    return multiply(ctx, op, &(struct gemm_views){ a, b, c, d, true, NULL });
}

ng_status ng_gemm_scratch(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                          const ng_tensor *b, const ng_tensor *c, const ng_tensor *d,
                          size_t *bytes)
{
    struct gemm_call q;
    const ng_status s =
        ng_gemm_check(ctx, op, &(struct gemm_views){ a, b, c, d, false, NULL }, true, &q);
    if (s)
        return s;
    if (!bytes)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "gemm_scratch: bytes is NULL");
    return ng_gemm_run_bytes(ctx, &q, bytes);
}

ng_status ng_gemm_kernels(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                          const ng_tensor *b, const ng_tensor *c, const ng_tensor *d,
                          ng_kernel_info *info, size_t room, size_t *count)
{
    struct gemm_call q;
    const ng_status s =
        ng_gemm_check(ctx, op, &(struct gemm_views){ a, b, c, d, false, NULL }, false, &q);
    if (s)
        return s;
    if (!count || (room && !info))
        return ng_fail(ctx, NG_ERR_ARGUMENT, "gemm_kernels: info or count is NULL");
    *count =
        ng_list_gemm(ctx, &q.job, ng_gemm_run_kernel(ctx, &q), "too few products", info, room);
    return NG_OK;
}

/* The job of the matrix that D's element `index` is in, and the element's place there. */
static ng_status one_element(ng_ctx *ctx, const ng_gemm_op *op, const struct gemm_views *v,
                             const int64_t *index, struct gemm_call *q, struct gemm_job *g,
                             int64_t *i, int64_t *j)
{
    const ng_status s = ng_gemm_check(ctx, op, v, false, q);
    if (s)
        return s;
    if (!index)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: index is NULL", q->name);
    for (uint32_t d = 0; d < v->d->rank; d++)
        if (index[d] < 0 || index[d] >= v->d->dim[d])
            return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: index[%u] is %lld; d has %lld", q->name,
                           d, (long long)index[d], (long long)v->d->dim[d]);
    int64_t matrix = 0;
    for (uint32_t d = 0; d < q->n_batch; d++)
        matrix = matrix * q->batch[d] + index[d];
    *g = ng_gemm_matrix(q, matrix);
    *i = v->dot ? 0 : index[q->n_batch];
    *j = v->dot ? 0 : index[q->n_batch + 1];
    return NG_OK;
}

ng_status ng_gemm_element(ng_ctx *ctx, const ng_gemm_op *op, bool dot, const ng_tensor *a,
                          const ng_tensor *b, const ng_tensor *c, const ng_tensor *d,
                          const int64_t *index, const ng_trace *trace, uint32_t *code)
{
    struct gemm_call q;
    struct gemm_job g;
    int64_t i, j;
    const ng_status s = one_element(ctx, op, &(struct gemm_views){ a, b, c, d, dot, NULL },
                                    index, &q, &g, &i, &j);
    if (s)
        return s;
    if (!code || (trace && !trace->step))
        return ng_fail(ctx, NG_ERR_ARGUMENT, "gemm_element: code or trace.step is NULL");
    *code = ng_ref_gemm_element(&g, i, j, trace);
    return NG_OK;
}

ng_status ng_gemm_exact(ng_ctx *ctx, const ng_gemm_op *op, bool dot, const ng_tensor *a,
                        const ng_tensor *b, const ng_tensor *c, const ng_tensor *d,
                        const int64_t *index, ng_value *exact)
{
    struct gemm_call q;
    struct gemm_job g;
    int64_t i, j;
    const ng_status s = one_element(ctx, op, &(struct gemm_views){ a, b, c, d, dot, NULL },
                                    index, &q, &g, &i, &j);
    if (s)
        return s;
    if (!exact)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "gemm_exact: exact is NULL");
    *exact = ng_ref_gemm_exact(&g, i, j);
    return NG_OK;
}

const ng_rule *ng_gemm_rule(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                            const ng_tensor *b)
{
    char message[400];
    if (ng_begin(ctx) || !op || !a || !b)
        return NULL;
    const ng_mode mode = op->double_row                ? NG_MODE_DOUBLE_ROW
                         : !a->scale                   ? NG_MODE_PLAIN
                         : a->scale_format == NG_UE4M3 ? NG_MODE_NV
                                                       : NG_MODE_MX;
    const ng_rule *r =
        ng_profile_rule(op->profile, a->format, b->format, mode, message, sizeof message);
    if (!r)
        (void)ng_fail(ctx, NG_ERR_PROFILE, "%s", message);
    return r;
}
