/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_moe_mlp and ng_moe: the rows of each expert are gathered, multiplied by ng_gemm(),
 * activated and multiplied again; then all are combined. Packed experts of one kind go
 * together, each projection one loop of tasks. Only the combine writes to the caller's memory.
 * Numerics: docs/numerics.md, section 11.10.
 */
#include <stdio.h>
#include <string.h>

#include "../ref/ref.h"
#include "gemm_run.h"
#include "moe_mlp.h"

/* What the sums go to, and what they begin with. */
static ng_status check_sums(ng_ctx *ctx, const ng_tensor *x, const int32_t *indices, int64_t k,
                            const ng_tensor *weights, const ng_tensor *c, const ng_tensor *y)
{
    ng_status s = c ? ng_moe_check(ctx, "moe", "c", c, false, 2, x->dim) : NG_OK;
    if (!s)
        s = ng_moe_check(ctx, "moe", "y", y, true, 2, x->dim);
    if (s)
        return s;
    const struct moe_bytes bytes[] = {
        ng_moe_bytes("x", x, false),
        ng_moe_bytes("weights", weights, false),
        ng_moe_bytes("c", c && ng_same_view(c, y) ? NULL : c, false),
        ng_moe_bytes("y", y, true),
        ng_moe_words("indices", indices, x->dim[0] * k * (int64_t)sizeof *indices, false),
    };
    return ng_moe_apart(ctx, "moe", bytes, sizeof bytes / sizeof bytes[0]);
}

/* y against what a projection reads; packed weights are the library's own memory. */
static ng_status check_linear_apart(struct moe_mlp *m, const struct moe_linear *l,
                                    const struct moe_bytes *y)
{
    const ng_moe_linear *g = l->given;
    char name[48];
    ng_status s = NG_OK;
    for (int64_t e = 0; !s && g->weights && e < m->local; e++) {
        (void)snprintf(name, sizeof name, "%s.weights[%lld]", l->name, (long long)e);
        s = ng_moe_operand_apart(m->ctx, "moe", name, &g->weights[e], y);
    }
    (void)snprintf(name, sizeof name, "%s.scale", l->name);
    if (!s && g->scale)
        s = ng_moe_operand_apart(m->ctx, "moe", name, g->scale, y);
    (void)snprintf(name, sizeof name, "%s.bias", l->name);
    return s || !g->bias ? s : ng_moe_operand_apart(m->ctx, "moe", name, g->bias, y);
}

static ng_status check_experts_apart(struct moe_mlp *m, const ng_tensor *y)
{
    const struct moe_bytes out = ng_moe_bytes("y", y, true);
    ng_status s = check_linear_apart(m, &m->gate, &out);
    if (!s && m->gated)
        s = check_linear_apart(m, &m->up, &out);
    return s ? s : check_linear_apart(m, &m->down, &out);
}

/* ---- One expert. ---- */

ng_status ng_moe_failed_at(struct moe_mlp *m, ng_status s, const char *what, int64_t e)
{
    char inner[400];
    (void)snprintf(inner, sizeof inner, "%s", ng_ctx_message(m->ctx));
    return ng_fail(m->ctx, s, "moe: %s of expert %lld: %s", what, (long long)e, inner);
}

ng_tensor ng_moe_matrix(ng_format f, void *data, int64_t rows, int64_t columns)
{
    ng_tensor t;
    (void)ng_tensor_init(&t, f, data, 2, (const int64_t[]){ rows, columns });
    return t;
}

ng_status ng_moe_convert(ng_ctx *ctx, const ng_tensor *from, const ng_tensor *to)
{
    const ng_convert_op nearest = { .size = sizeof nearest,
                                    .cast = { .overflow = NG_OVERFLOW_INF } };
    return ng_convert(ctx, &nearest, from, to);
}

/* Rows of FP8 under FP32 scales. */
struct scaled_rows {
    const struct ng_moe_kernel *kernel; /* NULL: the reference, of `wide` */
    struct fp8_job job;
    const unsigned char *src;
    const uint32_t *wide;
    uint8_t *code;
    uint32_t *scale;
    int64_t k, step; /* elements; bytes from row to row of src */
};

/* One block of the reference. */
static uint32_t scaled_block(const struct fp8_job *j, int64_t n, const uint32_t *v,
                             uint8_t *code)
{
    const uint32_t s = ng_ref_fp8_row_scale(j->to, j->by, j->least, n, v);
    for (int64_t i = 0; i < n; i++)
        code[i] = (uint8_t)ng_ref_fp8_row_element(j->to, j->by, s, v[i]);
    return s;
}

static void scaled_rows(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct scaled_rows *c = arg;
    const int64_t block = c->job.block, blocks = (c->k + block - 1) / block;
    const uint32_t saved = ng_fp_enter();
    (void)worker;
    for (int64_t r = from; r < to; r++) {
        uint8_t *code = c->code + r * c->k;
        uint32_t *scale = c->scale + r * blocks;
        if (c->kernel)
            c->kernel->fp8(&c->job, c->src + r * c->step, c->k, code, scale);
        for (int64_t b = 0; !c->kernel && b < blocks; b++) {
            const int64_t at = b * block, left = c->k - at;
            scale[b] = scaled_block(&c->job, left < block ? left : block,
                                    c->wide + r * c->k + at, code + at);
        }
    }
    ng_fp_leave(saved);
}

/* FP8_ROW and FP8_BLOCK. */
static ng_status quantise_fp8(struct moe_mlp *m, const struct moe_operand *o,
                              const ng_tensor *src)
{
    const int64_t rows = src->dim[0];
    const ng_tensor wide = ng_moe_matrix(NG_F32, o->wide, rows, o->k);
    struct scaled_rows c = {
        .kernel = ng_pick_moe(ng_ctx_isas(m->ctx)),
        .job = { .from = ng_format_info(src->format),
                 .to = ng_format_info(o->quant->format),
                 .by = o->quant->by,
                 .least = o->quant->scale_min ? o->quant->scale_min : 0x00800000u,
                 .block = o->quant->how == NG_MOE_FP8_ROW ? o->k : NG_MOE_BLOCK },
        .src = src->data,
        .wide = o->wide,
        .code = o->quantised,
        .scale = o->row_scale,
        .k = o->k,
        .step = src->stride[0] * (int64_t)ng_moe_bytes_of(src->format),
    };
    const ng_status s = c.kernel ? NG_OK : ng_moe_convert(m->ctx, src, &wide);
    if (!s)
        ng_moe_rows(m->ctx, rows, o->k, &c, scaled_rows);
    return s;
}

/* Rows of `src`, quantised as asked for: what is multiplied. */
static ng_status quantised(struct moe_mlp *m, const struct moe_operand *o, const ng_tensor *src,
                           ng_tensor *t)
{
    const int64_t rows = src->dim[0];
    if (o->quant->how == NG_MOE_AS_IS) {
        *t = *src;
        return NG_OK;
    }
    *t = ng_moe_matrix(o->quant->format, o->quantised, rows, o->k);
    if (o->quant->how == NG_MOE_MX) {
        const ng_quantize_op op = { .size = sizeof op,
                                    .rule = o->quant->rule,
                                    .special = o->quant->special };
        (void)ng_tensor_set_scale(t, NG_E8M0, o->scales, NG_MOE_MX_BLOCK, 1, o->quant->layout);
        return ng_quantize(m->ctx, &op, src, t);
    }
    return quantise_fp8(m, o, src);
}

/* The same of o->codes. */
static ng_status prepare(struct moe_mlp *m, const struct moe_operand *o, int64_t rows,
                         ng_tensor *t)
{
    const ng_tensor src = ng_moe_matrix(o->from, o->codes, rows, o->k);
    return quantised(m, o, &src, t);
}

/* Affinities of an expert's rows. */
static void gather_weights(struct moe_mlp *m, int64_t first, int64_t rows, uint32_t *affinity)
{
    const int64_t k = m->op.dispatch.k;
    for (int64_t r = 0; m->weights.data && r < rows; r++) {
        const int64_t entry = m->row[first + r];
        affinity[r] = m->weights.data[entry / k * m->weights.stride + entry % k];
    }
}

/* The tokens of an expert's rows. */
static void gather_tokens(struct moe_mlp *m, int64_t first, int64_t rows, unsigned char *codes)
{
    const size_t bytes = ng_moe_bytes_of(m->x.from), line = (size_t)m->h * bytes;
    for (int64_t r = 0; r < rows; r++)
        memcpy(codes + (size_t)r * line,
               (const unsigned char *)m->tokens->data +
                   m->row[first + r] / (int64_t)m->op.dispatch.k * m->tokens->stride[0] *
                       (int64_t)bytes,
               line);
}

/* Rows of x.codes times their affinities: affinity `before`. */
static ng_status weigh_tokens(struct moe_mlp *m, int64_t rows)
{
    const ng_tensor codes = ng_moe_matrix(m->x.from, m->x.codes, rows, m->h),
                    wide = ng_moe_matrix(NG_F32, m->x.wide, rows, m->h);
    const ng_status s = ng_moe_convert(m->ctx, &codes, &wide);
    if (s)
        return s;
    for (int64_t i = 0; i < rows * m->h; i++)
        m->x.wide[i] = ng_num_f32_mul(m->x.wide[i], m->affinity[i / m->h]);
    return ng_moe_convert(m->ctx, &wide, &codes);
}

ng_status ng_moe_gather(struct moe_mlp *m, int64_t first, int64_t rows)
{
    gather_tokens(m, first, rows, m->x.codes);
    gather_weights(m, first, rows, m->affinity);
    return m->op.affinity == NG_MOE_AFFINITY_BEFORE ? weigh_tokens(m, rows) : NG_OK;
}

/* A block of K: what its multiply gave goes into the sums. */
struct block_rows {
    const ng_moe_block_op *op;
    const struct ng_moe_kernel *kernel; /* NULL: the reference */
    struct block_tile all;
};

static void block_rows(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct block_rows *c = arg;
    struct block_tile t = c->all;
    (void)worker;
    t.rows = to - from;
    t.psum += from * t.psum_step;
    t.row_scale += from * t.row_scale_step;
    t.sum += from * t.sum_step;
    ng_moe_block(c->kernel, c->op, &t);
}

/* The scales of block b of K, for every column. */
static void block_columns(const struct moe_linear *l, int64_t e, int64_t b)
{
    const ng_tensor *t = l->given->scale;
    const uint32_t *scale = (const uint32_t *)t->data + e * t->stride[0] + b * t->stride[1];
    for (int64_t n = 0; n < l->n; n++)
        l->columns[n] = scale[n / NG_MOE_BLOCK * t->stride[2]];
}

/* Columns [first, first + n) of dimension d of a matrix of bytes. */
static ng_tensor cut(const ng_tensor *t, int d, int64_t first, int64_t n)
{
    ng_tensor part = *t;
    part.data = (unsigned char *)t->data + first * t->stride[d];
    part.dim[d] = n;
    return part;
}

static ng_status multiply_blocks(struct moe_mlp *m, const struct moe_linear *l, int64_t e,
                                 const ng_tensor *a, uint32_t *sum)
{
    const int64_t rows = a->dim[0], blocks = ng_moe_blocks(l->k);
    const ng_tensor part = ng_moe_matrix(NG_F32, m->block, rows, l->n);
    struct block_rows c = { .op = &m->op.blocks,
                            .kernel = ng_pick_moe(ng_ctx_isas(m->ctx)),
                            .all = { .columns = l->n,
                                     .psum = m->block,
                                     .scale = l->columns,
                                     .sum = sum,
                                     .psum_step = l->n,
                                     .row_scale_step = blocks,
                                     .sum_step = l->n } };
    ng_tell_moe(m->ctx, l->name, c.kernel);
    memset(sum, 0, (size_t)(rows * l->n) * sizeof *sum);
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t first = b * NG_MOE_BLOCK, left = l->k - first,
                      n = left < NG_MOE_BLOCK ? left : NG_MOE_BLOCK;
        const ng_tensor x = cut(a, 1, first, n);
        ng_status s;
        if (l->given->packed) {
            s = ng_gemm_packed(m->ctx, &m->op.gemm, &x, ng_packed_slab(l->given->packed[e], b),
                               NULL, &part);
        } else {
            const ng_tensor w = cut(&l->given->weights[e], 0, first, n);
            s = ng_gemm(m->ctx, &m->op.gemm, &x, &w, NULL, &part);
        }
        if (s)
            return ng_moe_failed_at(m, s, l->name, e);
        block_columns(l, e, b);
        c.all.row_scale = l->operand->row_scale + b;
        ng_moe_rows(m->ctx, rows, l->n, &c, block_rows);
    }
    return NG_OK;
}

ng_status ng_moe_multiply(struct moe_mlp *m, struct moe_linear *l, int64_t e,
                          const ng_tensor *a, uint32_t *psum)
{
    const ng_tensor d = ng_moe_matrix(NG_F32, psum, a->dim[0], l->n);
    ng_status s = NG_OK;
    ng_ctx_stage(m->ctx, l->name);
    if (l->blocked)
        return multiply_blocks(m, l, e, a, psum);
    if (l->given->packed) {
        s = ng_gemm_packed(m->ctx, &m->op.gemm, a, l->given->packed[e], NULL, &d);
        return s ? ng_moe_failed_at(m, s, l->name, e) : s;
    }
    ng_tensor w = l->given->weights[e];
    if (m->op.weights_as) {
        const ng_tensor plain = ng_moe_matrix(m->op.weights_as, l->weights, l->k, l->n);
        const ng_convert_op nearest = { .size = sizeof nearest };
        s = w.scale ? ng_dequantize(m->ctx, &nearest, &w, &plain)
                    : ng_moe_convert(m->ctx, &w, &plain);
        w = plain;
    }
    if (!s)
        s = ng_gemm(m->ctx, &m->op.gemm, a, &w, NULL, &d);
    return s ? ng_moe_failed_at(m, s, l->name, e) : s;
}

static struct settle_job settle_of(const struct moe_linear *l, int64_t e, bool row_scaled,
                                   ng_format hidden, ng_format biased)
{
    struct settle_job j = { .row_scaled = row_scaled, .hidden = hidden, .biased = biased };
    if (l->bias.data)
        j.bias = l->bias.data + e * l->bias.stride;
    if (l->scale.data && !l->one_scale)
        j.scale = l->scale.data + e * l->scale.stride;
    if (l->scale.data && l->one_scale) {
        for (int64_t n = 0; n < l->n; n++)
            l->columns[n] = l->scale.data[e];
        j.scale = l->columns;
    }
    return j;
}

/* From the sums of gate and up of rows from `row` on to the codes of the middle. */
static ng_status middle(struct moe_mlp *m, int64_t e, int64_t row, int64_t rows,
                        const uint32_t *row_scale)
{
    const bool scaled = m->op.x.how == NG_MOE_FP8_ROW;
    const struct moe_rows g = { m->g + row * m->i, m->i },
                          u = { m->gated ? m->u + row * m->i : NULL, m->i };
    const struct moe_act_call c = {
        .op = &m->op.act,
        .gated = m->gated,
        .rows = rows,
        .columns = m->i,
        .gate = g,
        .up = u,
        .dst = g,
        .settle_gate = settle_of(&m->gate, e, scaled, m->op.hidden, m->op.act.biased),
        .settle_up = m->gated ? settle_of(&m->up, e, scaled, m->op.hidden, m->op.act.biased)
                              : (struct settle_job){ 0 },
        .row_scale = scaled ? row_scale + row : NULL,
        .affinity = m->op.affinity == NG_MOE_AFFINITY_INSIDE ? m->affinity + row : NULL,
    };
    ng_ctx_stage(m->ctx, NULL);
    ng_moe_act_run(m->ctx, &c);
    ng_ctx_stage(m->ctx, "middle");
    unsigned char *place =
        (unsigned char *)m->middle.codes + (size_t)(row * m->i) * ng_moe_bytes_of(m->op.middle);
    const ng_tensor wide = ng_moe_matrix(NG_F32, g.data, rows, m->i),
                    codes = ng_moe_matrix(m->op.middle, place, rows, m->i);
    return ng_moe_convert(m->ctx, &wide, &codes);
}

/* From the sums of down, o, to the expert's result; their scales begin at `row`. */
static void settle_out(struct moe_mlp *m, int64_t e, int64_t row, int64_t rows, uint32_t *o)
{
    const bool scaled = m->op.quant.how == NG_MOE_FP8_ROW;
    ng_ctx_stage(m->ctx, "down");
    const struct settle_job job =
        settle_of(&m->down, e, scaled, m->op.expert_out, m->op.expert_out);
    ng_moe_settle(m->ctx, &job, scaled ? m->middle.row_scale + row : NULL, rows, m->h, o);
}

int64_t ng_moe_expert_rows(const struct moe_mlp *m, int64_t e)
{
    const int64_t first = m->offset[e];
    int64_t rows = m->offset[e + 1] - first;
    while (rows > 0 && m->row[first + rows - 1] < 0) /* padding is behind an expert's tokens */
        rows--;
    return rows;
}

static ng_status run_expert(struct moe_mlp *m, int64_t e)
{
    const int64_t first = m->offset[e], rows = ng_moe_expert_rows(m, e);
    if (!rows)
        return NG_OK;
    ng_tensor a;
    ng_ctx_stage(m->ctx, "x");
    ng_status s = ng_moe_gather(m, first, rows);
    if (!s)
        s = prepare(m, &m->x, rows, &a);
    if (s)
        return ng_moe_failed_at(m, s, "x", e);
    s = ng_moe_multiply(m, &m->gate, e, &a, m->g);
    if (!s && m->gated)
        s = ng_moe_multiply(m, &m->up, e, &a, m->u);
    if (s)
        return s;
    s = middle(m, e, 0, rows, m->x.row_scale);
    if (!s)
        s = prepare(m, &m->middle, rows, &a);
    if (s)
        return ng_moe_failed_at(m, s, "the middle", e);
    uint32_t *o = m->o + first * m->h;
    s = ng_moe_multiply(m, &m->down, e, &a, o);
    if (!s)
        settle_out(m, e, 0, rows, o);
    return s;
}

/* ---- Experts together, in waves. ---- */

/* Parts as the multiply of `l` sees them, all of them checked; `padded`: D's rows have the
 * dispatch's places. */
static ng_status lay_parts(struct moe_mlp *m, const struct moe_wave *w,
                           const struct moe_linear *l, const ng_tensor *a, bool padded,
                           struct gemm_part *part, struct gemm_call *q)
{
    for (int64_t i = 0; i < w->parts; i++) {
        const struct moe_part *p = &w->part[i];
        const ng_packed *packed = l->given->packed[p->expert];
        ng_tensor mine = *a, d = ng_moe_matrix(NG_F32, NULL, p->rows, l->n);
        mine.dim[0] = p->rows;
        const ng_status s =
            ng_packed_check(m->ctx, &m->op.gemm, &mine, packed, NULL, &d, false, q);
        if (s)
            return ng_moe_failed_at(m, s, l->name, p->expert);
        part[i] = (struct gemm_part){ .a_row = p->row,
                                      .d_row = padded ? p->d_row : p->row,
                                      .rows = p->rows,
                                      .panels = ng_packed_panels(packed)->panels };
    }
    return NG_OK;
}

/* The same of weights in slabs: q of their first ones, and the last ones. All the slabs of an
 * expert were packed alike. */
static ng_status lay_slabs(struct moe_mlp *m, const struct moe_wave *w,
                           const struct moe_linear *l, const ng_tensor *a, bool padded,
                           struct gemm_part *part, struct gemm_call *first,
                           struct gemm_call *last)
{
    const ng_tensor *scale = l->given->scale;
    const int64_t blocks = ng_moe_blocks(l->k), at = (blocks - 1) * NG_MOE_BLOCK;
    for (int64_t i = 0; i < w->parts; i++) {
        const struct moe_part *p = &w->part[i];
        const ng_packed *packed = l->given->packed[p->expert];
        const ng_tensor d = ng_moe_matrix(NG_F32, NULL, p->rows, l->n);
        ng_tensor begin = cut(a, 1, 0, at ? NG_MOE_BLOCK : l->k),
                  end = cut(a, 1, at, l->k - at);
        begin.dim[0] = end.dim[0] = p->rows;
        ng_status s = ng_packed_check(m->ctx, &m->op.gemm, &begin, ng_packed_slab(packed, 0),
                                      NULL, &d, false, first);
        if (!s)
            s = ng_packed_check(m->ctx, &m->op.gemm, &end, ng_packed_slab(packed, blocks - 1),
                                NULL, &d, false, last);
        if (s)
            return ng_moe_failed_at(m, s, l->name, p->expert);
        part[i] = (struct gemm_part){ .a_row = p->row,
                                      .d_row = padded ? p->d_row : p->row,
                                      .rows = p->rows,
                                      .packed = packed,
                                      .scale = (const uint32_t *)scale->data +
                                               p->expert * scale->stride[0] };
    }
    return NG_OK;
}

/* psum of rows of a, or of the lines that they name, times the weights of their experts. */
static ng_status multiply_wave(struct moe_mlp *m, const struct moe_wave *w,
                               const struct moe_linear *l, const ng_tensor *a,
                               const int32_t *line, bool padded, uint32_t *psum)
{
    struct gemm_call q, last;
    struct gemm_slabs slabs;
    const struct gemm_group group = {
        .q = &q,
        .like = ng_packed_panels(l->blocked ? ng_packed_slab(l->given->packed[0], 0)
                                            : l->given->packed[0]),
        .part = m->gemm_part,
        .parts = w->parts,
        .line = line,
        .slabs = l->blocked ? &slabs : NULL,
    };
    if (l->blocked)
        slabs = (struct gemm_slabs){ .slabs = ng_moe_blocks(l->k),
                                     .depth = NG_MOE_BLOCK,
                                     .last = &last,
                                     .op = &m->op.blocks,
                                     .moe = ng_pick_moe(ng_ctx_isas(m->ctx)),
                                     .row_scale = l->operand->row_scale,
                                     .across = NG_MOE_BLOCK,
                                     .scale_slab = l->given->scale->stride[1],
                                     .scale_column = l->given->scale->stride[2] };
    const ng_status s = l->blocked ? lay_slabs(m, w, l, a, padded, m->gemm_part, &q, &last)
                                   : lay_parts(m, w, l, a, padded, m->gemm_part, &q);
    if (s)
        return s;
    q.job.d.data = psum;
    return ng_gemm_run_group(m->ctx, &group);
}

/* A wave's rows, weighed: affinity `before`. */
static ng_status prepare_wave(struct moe_mlp *m, const struct moe_wave *w, ng_tensor *a)
{
    const size_t line = (size_t)m->h * ng_moe_bytes_of(m->x.from);
    for (int64_t i = 0; i < w->parts; i++)
        gather_tokens(m, w->part[i].d_row, w->part[i].rows,
                      (unsigned char *)m->x.codes + (size_t)w->part[i].row * line);
    const ng_status s = weigh_tokens(m, w->rows);
    return s ? s : prepare(m, &m->x, w->rows, a);
}

/* The scales of a wave's rows; those of tokens belong to the rows that name them. */
static const uint32_t *wave_scales(struct moe_mlp *m, const struct moe_wave *w)
{
    if (m->op.x.how != NG_MOE_FP8_ROW || !ng_moe_shares_tokens(m))
        return m->x.row_scale;
    for (int64_t r = 0; r < w->rows; r++)
        m->wave_scale[r] = m->x.row_scale[w->line[r]];
    return m->wave_scale;
}

/* `tokens`: all of them, ready to be multiplied, if they are shared. */
static ng_status run_wave(struct moe_mlp *m, const struct moe_wave *w, const ng_tensor *tokens)
{
    const int32_t *line = ng_moe_shares_tokens(m) ? w->line : NULL;
    ng_tensor a = *tokens;
    ng_status s = NG_OK;
    for (int64_t i = 0; i < w->parts; i++)
        gather_weights(m, w->part[i].d_row, w->part[i].rows, m->affinity + w->part[i].row);
    if (!line)
        s = prepare_wave(m, w, &a);
    if (!s)
        s = multiply_wave(m, w, &m->gate, &a, line, false, m->g);
    if (!s && m->gated)
        s = multiply_wave(m, w, &m->up, &a, line, false, m->u);
    const uint32_t *scale = wave_scales(m, w);
    for (int64_t i = 0; !s && i < w->parts; i++)
        s = middle(m, w->part[i].expert, w->part[i].row, w->part[i].rows, scale);
    if (!s)
        s = prepare(m, &m->middle, w->rows, &a);
    if (!s)
        s = multiply_wave(m, w, &m->down, &a, NULL, true, m->o);
    for (int64_t i = 0; !s && i < w->parts; i++)
        settle_out(m, w->part[i].expert, w->part[i].row, w->part[i].rows,
                   m->o + w->part[i].d_row * m->h);
    return s;
}

static ng_status run_waves(struct moe_mlp *m)
{
    ng_tensor tokens = *m->tokens;
    const int32_t *line = m->line;
    ng_ctx_stage(m->ctx, "x");
    ng_status s = ng_moe_shares_tokens(m) ? quantised(m, &m->x, m->tokens, &tokens) : NG_OK;
    for (int64_t first = 0; !s && first < m->parts;) {
        const struct moe_wave w = ng_moe_wave_from(m, first, line);
        s = run_wave(m, &w, &tokens);
        first += w.parts;
        line += w.rows;
    }
    return s;
}

ng_status ng_moe_mlp(ng_ctx *ctx, const ng_moe_op *op, const ng_moe_experts *experts,
                     const ng_tensor *x, const int32_t *indices, const ng_tensor *weights,
                     const ng_tensor *c, const ng_tensor *y)
{
    struct moe_mlp m = { .ctx = ctx };
    ng_status s = ng_begin(ctx);
    if (!s)
        s = ng_moe_open_mlp(&m, op, experts, x, indices, weights);
    if (!s)
        s = check_sums(ctx, x, indices, op->dispatch.k, weights, c, y);
    if (!s)
        s = check_experts_apart(&m, y);
    if (s)
        return s;
    m.memory = (struct moe_memory){ .ctx = ctx, .used = NG_MOE_FIRST_PIECES };
    s = ng_moe_make_room(&m, indices, weights);
    if (!s && m.together)
        s = run_waves(&m);
    for (int64_t e = 0; !s && !m.together && e < m.local; e++)
        s = run_expert(&m, e);
    ng_ctx_stage(ctx, NULL);
    if (!s) {
        const int64_t rows = m.offset[m.local];
        const ng_tensor o = ng_moe_matrix(NG_F32, m.o, rows < 1 ? 1 : rows, m.h);
        s = ng_moe_combine(ctx, &m.op.combine, &o, m.slot, m.op.dispatch.k,
                           op->affinity == NG_MOE_AFFINITY_AFTER ? weights : NULL, c, y);
    }
    ng_pieces_keep(ctx, m.memory.used);
    return s;
}

/* ---- The whole block. ---- */

/* The router's operands: of this many experts, and apart from y. */
static ng_status check_router(ng_ctx *ctx, const ng_moe_op *op, const ng_moe_router *r,
                              const ng_tensor *x, const ng_tensor *y)
{
    const int64_t experts = op->dispatch.experts;
    ng_status s = ng_moe_check(ctx, "moe", "y", y, true, 2, x->dim);
    if (s)
        return s;
    const struct moe_bytes out = ng_moe_bytes("y", y, true);
    s = ng_moe_operand_apart(ctx, "moe", "router.w", r->w, &out);
    if (!s && (r->w->rank != 2 || r->w->dim[1] != experts))
        s = ng_fail(ctx, NG_ERR_SHAPE,
                    "moe: router.w has rank %u and %lld columns; wanted: rank 2 and "
                    "op.dispatch.experts = %lld",
                    r->w->rank, (long long)r->w->dim[r->w->rank - 1], (long long)experts);
    if (!s && r->b)
        s = ng_moe_check(ctx, "moe", "router.b", r->b, false, 1, &experts);
    if (!s && r->b)
        s = ng_moe_operand_apart(ctx, "moe", "router.b", r->b, &out);
    if (!s && r->correction)
        s = ng_moe_check(ctx, "moe", "router.correction", r->correction, false, 1, &experts);
    if (!s && r->correction)
        s = ng_moe_operand_apart(ctx, "moe", "router.correction", r->correction, &out);
    return s;
}

/* Router, and with a capacity its normalising after the drops: item 97. */
static ng_status route(ng_ctx *ctx, const ng_moe_op *op, const ng_moe_router *r,
                       const ng_tensor *x, const ng_tensor *logits, int32_t *indices,
                       int32_t *slot, const ng_tensor *weights)
{
    const bool late = op->dispatch.mode == NG_DISPATCH_CAPACITY;
    ng_route_op first = r->route;
    if (late) {
        first.normalise = false;
        first.eps = first.scale = 0;
    }
    ng_status s = ng_router(ctx, &r->gemm, &first, x, r->w, r->b, logits, r->correction,
                            indices, weights, NULL);
    if (s || !late)
        return s;
    ng_dispatch_op all = op->dispatch; /* a rank must not see the others' entries as dropped */
    all.ranks = all.rank = 0;
    ng_dispatch_plan plan = { .slot = slot };
    s = ng_dispatch(ctx, &all, indices, x->dim[0], &plan);
    return s ? s : ng_route_weights(ctx, &r->route, slot, weights);
}

ng_status ng_moe(ng_ctx *ctx, const ng_moe_op *op, const ng_moe_router *router,
                 const ng_moe_experts *experts, const ng_tensor *x, const ng_tensor *c,
                 const ng_tensor *y)
{
    struct ng_extent extent;
    ng_status s = ng_begin(ctx);
    if (!s)
        s = ng_moe_check_op(ctx, op);
    if (!s)
        s = ng_check_tensor(ctx, "moe", "x", x, false, &extent);
    if (!s)
        s = ng_moe_check(ctx, "moe", "x", x, false, 2, x->dim);
    if (!s && !router)
        s = ng_fail(ctx, NG_ERR_ARGUMENT, "moe: router is NULL");
    if (!s)
        s = ng_moe_check_format(ctx, "moe", "router.logits", router->logits);
    if (!s)
        s = ng_moe_check_format(ctx, "moe", "router.weights", router->weights);
    if (!s && router->route.k != op->dispatch.k)
        s = ng_fail(ctx, NG_ERR_ARGUMENT, "moe: op.dispatch.k is %u; wanted: %u, route.k",
                    op->dispatch.k, router->route.k);
    if (!s)
        s = check_router(ctx, op, router, x, y);
    if (s)
        return s;
    const int64_t tokens = x->dim[0], e = op->dispatch.experts, k = op->dispatch.k;
    struct moe_memory m = { .ctx = ctx };
    void *logits = ng_moe_take(&m, tokens * e, sizeof(uint32_t)),
         *weights = ng_moe_take(&m, tokens * k, sizeof(uint32_t));
    int32_t *indices = ng_moe_take(&m, tokens * k, sizeof *indices),
            *slot = ng_moe_take(&m, tokens * k, sizeof *slot);
    if (m.failed) {
        s = ng_fail(ctx, NG_ERR_MEMORY, "moe: the allocator has no room");
    } else {
        const ng_tensor l = ng_moe_matrix(router->logits ? router->logits : NG_F32, logits,
                                          tokens, e),
                        w = ng_moe_matrix(router->weights ? router->weights : NG_F32, weights,
                                          tokens, k);
        s = route(ctx, op, router, x, &l, indices, slot, &w);
        if (!s)
            s = ng_moe_mlp(ctx, op, experts, x, indices, &w, c, y);
    }
    return s;
}
