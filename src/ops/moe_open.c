/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the expert MLP and its backward begin with: all operands checked, dispatch, memory.
 * Numerics: docs/numerics.md, section 11.10.
 */
#include <stdio.h>

#include "gemm_run.h"
#include "moe_mlp.h"

enum {
    WAVE_ROWS = 64 /* a worker: whose sums the caches hold, but enough for every worker */
};

/* ---- Front door. ---- */

static ng_status check_quant(ng_ctx *ctx, const char *name, const ng_moe_quant *q)
{
    const ng_format_spec *f = ng_format_info(q->format);
    if ((unsigned)q->how > NG_MOE_FP8_BLOCK)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "moe: %s.how is %d, no ng_moe_operand", name,
                       (int)q->how);
    if (q->how == NG_MOE_AS_IS)
        return NG_OK;
    if (!f || f->kind == NG_KIND_SCALE || f->kind == NG_KIND_UFN)
        return ng_fail(ctx, NG_ERR_FORMAT, "moe: %s.format is %s; wanted: an element format",
                       name, f ? f->text : "none");
    if (q->how == NG_MOE_MX)
        return NG_OK;
    if (f->bits != 8 || !f->has_nan)
        return ng_fail(ctx, NG_ERR_FORMAT, "moe: %s.format is %s; %s wants an FP8 format", name,
                       f->text, q->how == NG_MOE_FP8_ROW ? "fp8_row" : "fp8_block");
    if ((unsigned)q->by > NG_DIVIDE_TRUE)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "moe: %s.by is %d, no ng_divide", name,
                       (int)q->by);
    if (q->scale_min && (q->scale_min < 0x00800000u || q->scale_min > 0x7E800000u))
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "moe: %s.scale_min is 0x%08X; wanted: an FP32 pattern from 2^-126 to "
                       "2^126",
                       name, q->scale_min);
    return NG_OK;
}

static bool is_there(const ng_moe_linear *l)
{
    return l->weights || l->packed;
}

/* Every expert's matrix: [k, n]; where k or n is 0 the first one says it. */
static ng_status check_weights(struct moe_mlp *m, struct moe_linear *l)
{
    for (int64_t e = 0; e < m->local; e++) {
        const ng_tensor *w =
            l->given->packed ? ng_packed_view(l->given->packed[e]) : &l->given->weights[e];
        if (!w)
            return ng_fail(m->ctx, NG_ERR_ARGUMENT, "moe: %s.packed[%lld] is NULL", l->name,
                           (long long)e);
        if (w->rank != 2)
            return ng_fail(m->ctx, NG_ERR_SHAPE,
                           "moe: the weights of %s, expert %lld, have rank %u; wanted: 2",
                           l->name, (long long)e, w->rank);
        for (int d = 0; d < 2; d++) {
            int64_t *want = d ? &l->n : &l->k;
            if (!*want)
                *want = w->dim[d];
            if (w->dim[d] != *want || w->dim[d] < 1)
                return ng_fail(m->ctx, NG_ERR_SHAPE,
                               "moe: dimension %d of the weights of %s, expert %lld, is %lld; "
                               "wanted: %lld",
                               d, l->name, (long long)e, (long long)w->dim[d],
                               (long long)*want);
        }
    }
    return NG_OK;
}

/* A matrix whose slabs can be multiplied: 8 bits, no scales. */
static ng_status check_bytes(ng_ctx *ctx, const char *call, const char *name,
                             const ng_tensor *w)
{
    struct ng_extent extent;
    ng_status s = ng_check_tensor(ctx, call, name, w, false, &extent);
    if (!s)
        s = ng_moe_check(ctx, call, name, w, false, 2, w->dim);
    if (s)
        return s;
    const ng_format_spec *f = ng_format_info(w->format);
    return f->store_bits == 8
               ? NG_OK
               : ng_fail(ctx, NG_ERR_FORMAT, "%s: %s is %s; fp8_block wants 8 bits", call, name,
                         f->text);
}

/* In blocks of K where fp8_block is multiplied, in one piece elsewhere. */
static ng_status check_packed(struct moe_mlp *m, const struct moe_linear *l)
{
    for (int64_t e = 0; l->given->packed && e < m->local; e++)
        if ((ng_packed_slabs(l->given->packed[e]) > 0) != l->blocked)
            return ng_fail(m->ctx, NG_ERR_ARGUMENT,
                           "moe: %s.packed[%lld] is of %s, but what it multiplies is %s; "
                           "wanted: of %s",
                           l->name, (long long)e,
                           l->blocked ? "ng_pack()" : "ng_moe_pack_blocks()",
                           l->blocked ? "fp8_block" : "not fp8_block",
                           l->blocked ? "ng_moe_pack_blocks()" : "ng_pack()");
    return NG_OK;
}

/* What fp8_block multiplies: matrices whose rows can be cut, and a scale for each block. */
static ng_status check_blocked(struct moe_mlp *m, const struct moe_linear *l, const char *name)
{
    const ng_moe_linear *g = l->given;
    if (m->op.weights_as || !g->scale)
        return ng_fail(m->ctx, NG_ERR_ARGUMENT,
                       "moe: %s has %s, but what it multiplies is fp8_block; wanted: weights "
                       "as they are, with a scale for each block",
                       l->name, m->op.weights_as ? "op.weights_as" : "no scale");
    for (int64_t e = 0; !g->packed && e < m->local; e++) {
        char weights[48];
        (void)snprintf(weights, sizeof weights, "%s.weights[%lld]", l->name, (long long)e);
        const ng_status s = check_bytes(m->ctx, "moe", weights, &g->weights[e]);
        if (s)
            return s;
    }
    return ng_moe_check(
        m->ctx, "moe", name, g->scale, false, 3,
        (const int64_t[]){ m->local, ng_moe_blocks(l->k), ng_moe_blocks(l->n) });
}

static ng_status check_scale(struct moe_mlp *m, struct moe_linear *l)
{
    const ng_moe_linear *g = l->given;
    char name[32];
    (void)snprintf(name, sizeof name, "%s.scale", l->name);
    l->blocked = l->operand->quant->how == NG_MOE_FP8_BLOCK;
    ng_status s = check_packed(m, l);
    if (s || (!g->scale && !l->blocked))
        return s;
    l->one_scale = !l->blocked && g->scale->rank == 1;
    s = l->blocked ? check_blocked(m, l, name)
                   : ng_moe_check(m->ctx, "moe", name, g->scale, false, l->one_scale ? 1 : 2,
                                  (const int64_t[]){ m->local, l->n });
    if (!s && g->scale->format != NG_F32)
        s = ng_fail(m->ctx, NG_ERR_FORMAT, "moe: %s is %s; wanted: f32", name,
                    ng_format_info(g->scale->format)->text);
    return s;
}

static ng_status check_linear(struct moe_mlp *m, struct moe_linear *l)
{
    const ng_moe_linear *g = l->given;
    char name[32];
    if (!is_there(g) || (g->weights && g->packed))
        return ng_fail(m->ctx, NG_ERR_ARGUMENT, "moe: %s has %s; wanted: weights or packed",
                       l->name, g->weights ? "both weights and packed" : "no weights");
    if (g->packed && m->op.weights_as)
        return ng_fail(m->ctx, NG_ERR_ARGUMENT,
                       "moe: %s is packed, but op.weights_as is %s: dequantise before packing",
                       l->name, ng_format_info(m->op.weights_as)->text);
    ng_status s = check_weights(m, l);
    if (!s && g->bias) {
        (void)snprintf(name, sizeof name, "%s.bias", l->name);
        s = ng_moe_check(m->ctx, "moe", name, g->bias, false, 2,
                         (const int64_t[]){ m->local, l->n });
    }
    return s ? s : check_scale(m, l);
}

ng_status ng_moe_check_op(ng_ctx *ctx, const ng_moe_op *op)
{
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "moe: op is NULL or op.size is not %zu",
                       sizeof *op);
    const struct {
        const char *name;
        size_t found, wanted;
    } part[] = { { "gemm", op->gemm.size, sizeof op->gemm },
                 { "act", op->act.size, sizeof op->act },
                 { "combine", op->combine.size, sizeof op->combine },
                 { "dispatch", op->dispatch.size, sizeof op->dispatch } };
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++)
        if (part[i].found != part[i].wanted)
            return ng_fail(ctx, NG_ERR_ARGUMENT, "moe: op.%s.size is %zu; wanted: %zu",
                           part[i].name, part[i].found, part[i].wanted);
    if (op->gemm.psum.round != NG_ROUND_TIES_TO_EVEN)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "moe: op.gemm.psum.round is %d; wanted: rne",
                       (int)op->gemm.psum.round);
    if ((unsigned)op->affinity > NG_MOE_AFFINITY_INSIDE)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "moe: op.affinity is %d, no ng_moe_affinity",
                       (int)op->affinity);
    ng_status s = ng_moe_check_format(ctx, "moe", "op.hidden", op->hidden);
    if (!s)
        s = ng_moe_check_format(ctx, "moe", "op.middle", op->middle);
    if (!s)
        s = ng_moe_check_format(ctx, "moe", "op.expert_out", op->expert_out);
    if (!s)
        s = ng_moe_check_format(ctx, "moe", "op.weights_as", op->weights_as);
    if (!s)
        s = check_quant(ctx, "op.x", &op->x);
    if (!s)
        s = check_quant(ctx, "op.quant", &op->quant);
    if (!s && (unsigned)op->blocks.order > NG_MOE_BLOCK_PRODUCT)
        s = ng_fail(ctx, NG_ERR_ARGUMENT, "moe: op.blocks.order is %d, no ng_moe_block_order",
                    (int)op->blocks.order);
    if (!s)
        s = ng_moe_check_combine(ctx, "moe", &op->combine);
    return s ? s : ng_moe_check_dispatch(ctx, "moe", &op->dispatch);
}

static ng_status check_tokens(struct moe_mlp *m, const ng_tensor *x, const int32_t *indices,
                              const ng_tensor *weights)
{
    ng_ctx *ctx = m->ctx;
    struct ng_extent extent;
    const int64_t k = m->op.dispatch.k;
    if (!indices)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "moe: indices is NULL");
    ng_status s = ng_check_tensor(ctx, "moe", "x", x, false, &extent);
    if (!s)
        s = ng_moe_check(ctx, "moe", "x", x, false, 2, x->dim);
    if (s)
        return s;
    if (ng_format_info(x->format)->store_bits < 8 || (x->dim[1] > 1 && x->stride[1] != 1))
        return ng_fail(ctx, NG_ERR_LAYOUT,
                       "moe: x is %s with a stride of %lld along dimension 1; wanted: elements "
                       "of 8 bits or more, stride 1",
                       ng_format_info(x->format)->text, (long long)x->stride[1]);
    if (weights)
        s = ng_moe_check(ctx, "moe", "weights", weights, false, 2,
                         (const int64_t[]){ x->dim[0], k });
    else if (m->op.affinity != NG_MOE_AFFINITY_AFTER)
        s = ng_fail(ctx, NG_ERR_ARGUMENT, "moe: weights is NULL, but op.affinity uses them");
    return s;
}

static ng_status check_experts(struct moe_mlp *m, const ng_moe_experts *experts)
{
    if (!experts)
        return ng_fail(m->ctx, NG_ERR_ARGUMENT, "moe: experts is NULL");
    m->gated = is_there(&experts->up);
    m->x = (struct moe_operand){ .quant = &m->op.x, .from = m->tokens->format, .k = m->h };
    m->middle = (struct moe_operand){ .quant = &m->op.quant, .from = m->op.middle };
    if (!m->gated && (experts->up.scale || experts->up.bias))
        return ng_fail(m->ctx, NG_ERR_ARGUMENT, "moe: up has no weights, but up.%s is not NULL",
                       experts->up.scale ? "scale" : "bias");
    ng_status s = ng_moe_check_act(m->ctx, "moe", &m->op.act, m->gated);
    m->gate = (struct moe_linear){
        .name = "gate", .given = &experts->gate, .operand = &m->x, .k = m->h
    };
    if (!s)
        s = check_linear(m, &m->gate);
    m->i = m->middle.k = m->gate.n;
    m->up = (struct moe_linear){
        .name = "up", .given = &experts->up, .operand = &m->x, .k = m->h, .n = m->i
    };
    if (!s && m->gated)
        s = check_linear(m, &m->up);
    m->down = (struct moe_linear){
        .name = "down", .given = &experts->down, .operand = &m->middle, .k = m->i, .n = m->h
    };
    return s ? s : check_linear(m, &m->down);
}

/* Can the experts' multiplies be one group? */
static bool goes_together(const struct moe_mlp *m, const struct moe_linear *l)
{
    const ng_packed *const *packed = l->given->packed;
    if (!packed)
        return false;
    const struct gemm_packed *first = ng_packed_panels(packed[0]);
    const ng_tensor *like = ng_packed_view(packed[0]);
    bool same =
        first->kernel && !like->sparse && (!l->blocked || ng_pick_moe(ng_ctx_isas(m->ctx)));
    for (int64_t e = 1; same && e < m->local; e++) {
        const ng_tensor *view = ng_packed_view(packed[e]);
        const struct gemm_packed *mine = ng_packed_panels(packed[e]);
        same = mine->kernel == first->kernel && mine->slim == first->slim &&
               view->format == like->format && !view->sparse && !view->scale == !like->scale &&
               view->scale_format == like->scale_format && view->block == like->block &&
               view->layout == like->layout;
    }
    return same;
}

ng_status ng_moe_pack_blocks(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *w,
                             ng_format a_format, ng_packed **packed)
{
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_bytes(ctx, "moe_pack_blocks", "w", w);
    return s ? s : ng_pack_slabs(ctx, op, w, a_format, NG_MOE_BLOCK, packed);
}

ng_status ng_moe_open_mlp(struct moe_mlp *m, const ng_moe_op *op, const ng_moe_experts *experts,
                          const ng_tensor *x, const int32_t *indices, const ng_tensor *weights)
{
    ng_status s = ng_moe_check_op(m->ctx, op);
    if (s)
        return s;
    m->op = *op;
    m->op.gemm.out = (ng_cast){ 0 };
    m->op.gemm.out_scale = 0;
    m->op.middle = op->middle ? op->middle : NG_BF16;
    m->op.expert_out = op->expert_out ? op->expert_out : NG_BF16;
    s = check_tokens(m, x, indices, weights);
    if (s)
        return s;
    m->tokens = x;
    m->h = x->dim[1];
    m->local = op->dispatch.experts / (op->dispatch.ranks ? op->dispatch.ranks : 1);
    s = check_experts(m, experts);
    m->together = !s && goes_together(m, &m->gate) && goes_together(m, &m->down) &&
                  (!m->gated || goes_together(m, &m->up));
    return s;
}

/* ---- Memory. ---- */

void *ng_moe_take(struct moe_memory *m, int64_t count, size_t size)
{
    size_t bytes;
    void *p = NULL;
    if (m->used < NG_MOE_PIECES &&
        !__builtin_mul_overflow((size_t)(count < 1 ? 1 : count), size, &bytes))
        p = ng_piece(m->ctx, m->used, bytes);
    if (p)
        m->used++;
    else
        m->failed = true;
    return p;
}

size_t ng_moe_bytes_of(ng_format f)
{
    return (ng_format_info(f)->store_bits + 7) / 8;
}

struct moe_rows ng_moe_room_rows(struct moe_mlp *m, const ng_tensor *t)
{
    if (!t)
        return (struct moe_rows){ 0 };
    uint32_t *copy = ng_moe_take(&m->memory, ng_moe_copy_words(t), sizeof *copy);
    return copy ? ng_moe_open(m->ctx, t, copy, true) : (struct moe_rows){ 0 };
}

static void room_linear(struct moe_mlp *m, struct moe_linear *l)
{
    l->columns = ng_moe_take(&m->memory, l->n, sizeof(uint32_t));
    l->scale = ng_moe_room_rows(m, l->blocked ? NULL : l->given->scale);
    l->bias = ng_moe_room_rows(m, l->given->bias);
    if (m->op.weights_as)
        l->weights = ng_moe_take(&m->memory, l->k * l->n, ng_moe_bytes_of(m->op.weights_as));
}

static void room_operand(struct moe_mlp *m, struct moe_operand *o, int64_t rows)
{
    const int64_t n = rows * o->k;
    o->codes = ng_moe_take(&m->memory, n, ng_moe_bytes_of(o->from));
    const bool by_reference =
        o->quant->how >= NG_MOE_FP8_ROW && !ng_pick_moe(ng_ctx_isas(m->ctx));
    if (by_reference || m->op.affinity == NG_MOE_AFFINITY_BEFORE)
        o->wide = ng_moe_take(&m->memory, n, sizeof(uint32_t));
    if (o->quant->how == NG_MOE_AS_IS)
        return;
    o->quantised =
        ng_moe_take(&m->memory, n + rows, ng_moe_bytes_of(o->quant->format)); /* odd rows */
    o->scales =
        ng_moe_take(&m->memory, rows * ((o->k + NG_MOE_MX_BLOCK - 1) / NG_MOE_MX_BLOCK), 1);
    o->row_scale = ng_moe_take(&m->memory, rows * ng_moe_blocks(o->k), sizeof(uint32_t));
}

struct moe_wave ng_moe_wave_from(const struct moe_mlp *m, int64_t first, const int32_t *line)
{
    struct moe_wave w = { .part = m->part + first, .line = line };
    const int64_t enough = WAVE_ROWS * (int64_t)ng_workers(m->ctx);
    while (first + w.parts < m->parts && w.rows < enough)
        w.rows += w.part[w.parts++].rows;
    return w;
}

/* Everything together: all parts, the tokens of their rows. */
static bool find_parts(struct moe_mlp *m, int64_t rows)
{
    const int64_t k = m->op.dispatch.k;
    m->part = ng_moe_take(&m->memory, m->local, sizeof *m->part);
    m->gemm_part = ng_moe_take(&m->memory, m->local, sizeof *m->gemm_part);
    m->line = ng_moe_take(&m->memory, rows, sizeof *m->line);
    if (m->memory.failed)
        return false;
    for (int64_t e = 0, n = 0; e < m->local; e++) {
        const struct moe_part p = { .expert = e,
                                    .rows = ng_moe_expert_rows(m, e),
                                    .d_row = m->offset[e] };
        if (p.rows)
            m->part[m->parts++] = p;
        for (int64_t r = 0; r < p.rows; r++)
            m->line[n++] = (int32_t)(m->row[p.d_row + r] / k);
    }
    for (int64_t first = 0; first < m->parts;) {
        const struct moe_wave w = ng_moe_wave_from(m, first, NULL);
        for (int64_t i = 1; i < w.parts; i++)
            m->part[first + i].row = m->part[first + i - 1].row + w.part[i - 1].rows;
        m->most = w.rows > m->most ? w.rows : m->most;
        first += w.parts;
    }
    return true;
}

ng_status ng_moe_make_room(struct moe_mlp *m, const int32_t *indices, const ng_tensor *weights)
{
    struct moe_memory *mem = &m->memory;
    const int64_t tokens = m->tokens->dim[0], entries = tokens * m->op.dispatch.k,
                  rows = ng_dispatch_rows(&m->op.dispatch, tokens);
    m->slot = ng_moe_take(mem, entries, sizeof *m->slot);
    m->row = ng_moe_take(mem, rows, sizeof *m->row);
    m->offset = ng_moe_take(mem, m->local + 1, sizeof *m->offset);
    if (mem->failed)
        return ng_fail(m->ctx, NG_ERR_MEMORY, "moe: the allocator has no room");
    ng_dispatch_plan plan = { .slot = m->slot, .row = m->row, .offset = m->offset };
    const ng_status s = ng_dispatch(m->ctx, &m->op.dispatch, indices, tokens, &plan);
    if (s)
        return s;
    if (m->together && !find_parts(m, plan.rows))
        return ng_fail(m->ctx, NG_ERR_MEMORY, "moe: the allocator has no room");
    for (int64_t e = 0; !m->together && e < m->local; e++)
        if (m->offset[e + 1] - m->offset[e] > m->most)
            m->most = m->offset[e + 1] - m->offset[e];
    m->weights = ng_moe_room_rows(m, weights);
    m->affinity = ng_moe_take(mem, m->most, sizeof *m->affinity);
    m->g = ng_moe_take(mem, m->most * m->i, sizeof *m->g);
    m->u = m->gated ? ng_moe_take(mem, m->most * m->i, sizeof *m->u) : NULL;
    m->o = ng_moe_take(mem, plan.rows * m->h, sizeof *m->o);
    if (m->gate.blocked || m->down.blocked)
        m->block = ng_moe_take(mem, m->most * (m->i > m->h ? m->i : m->h), sizeof *m->block);
    room_operand(m, &m->x, ng_moe_shares_tokens(m) ? tokens : m->most);
    room_operand(m, &m->middle, m->most);
    if (m->together)
        m->wave_scale = ng_moe_take(mem, m->most, sizeof *m->wave_scale);
    room_linear(m, &m->gate);
    if (m->gated)
        room_linear(m, &m->up);
    room_linear(m, &m->down);
    return mem->failed ? ng_fail(m->ctx, NG_ERR_MEMORY, "moe: the allocator has no room")
                       : NG_OK;
}
