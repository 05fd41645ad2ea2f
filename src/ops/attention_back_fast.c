/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention's gradients by kernels. Numerics: docs/numerics.md, section 11.9, items 79 to 82.
 *
 * A round is a block of queries of one head (81), in the page's order. Its rows come first:
 * panels of them, each a task, recompute q k^T and do v^T in strips of keys, leave the codes of
 * e and ds in memory that all share, and finish their dq. Then chunks of keys, each a task, add
 * the block's multiplies to the sums of dk and dv, which wait in FP32 until all heads of the
 * group have been. So each of the five multiplies is done once.
 *
 * Masked keys are left out as item 76 has it for the forward: here both weights of a masked key
 * are +0. A row of which that is not so (it sees nothing, its statistics are not finite), or
 * whose products no kernel takes, has its codes from the reference, and the multiplies go on
 * with them; a multiply of dq, dk or dv that no kernel takes leaves its rows or keys to the
 * reference. dsink stands apart: it wants of the rows nothing but D, statistics and one E.
 */
#include <math.h>
#include <string.h>

#include "../../kernels/bf16.h"
#include "attention_back_fast.h"
#include "attention_plan.h"

enum {
    MOST_QUERIES = 512, /* of a block: its codes are kept for all keys */
    STRIP = 512,        /* keys whose products a row panel has at a time, about */
    CHUNK = 128         /* keys of a task of dk and dv, where skipped tiles allow it */
};

/* ---- The plan. ---- */

/* Where a gradient goes. */
struct target {
    const ng_tensor *to; /* data NULL: not asked for */
    const struct ng_cast_kernel *kernel;
    struct cast_job cast;
};

struct back_plan {
    const struct attention_grad_job *g;
    struct attention_plan p;         /* the forward's: q k^T, cuts, P's format */
    struct attention_product dp, dq; /* do v^T, ds k; dq's kernel NULL: not asked for */
    struct attention_product dk, dv; /* ds^T q, p^T do, over a block's queries; likewise */
    struct target to_q, to_k, to_v;
    int32_t mr;                 /* rows of a panel of queries */
    int64_t block, chunk, line; /* queries; keys; codes from row to row */
    int64_t strip;              /* keys */
};

static bool plan_target(ng_ctx *ctx, const struct attention_grad_job *g, const ng_tensor *to,
                        struct target *t)
{
    *t = (struct target){ .to = to };
    if (!to->data)
        return true;
    t->cast = (struct cast_job){ .from = ng_format_info(NG_F32),
                                 .to = ng_format_info(to->format),
                                 .cast = &g->forward.op->out,
                                 .tensor_scale = 0x3F800000u };
    t->kernel = ng_pick_cast(&t->cast, ng_ctx_isas(ctx));
    return t->kernel && t->cast.to->store_bits >= 8;
}

static bool plan_products(ng_ctx *ctx, struct back_plan *b)
{
    const struct attention_grad_job *g = b->g;
    const struct attention_job *f = &g->forward;
    if (!ng_attention_plan_product(ctx, &g->dp, f->v.format, f->dv, f->keys, &b->dp))
        return false;
    if (g->dq.data &&
        !ng_attention_plan_product(ctx, &g->dq_sum, f->k.format, b->p.pv.length, f->d, &b->dq))
        return false;
    if (g->dk.data && !ng_attention_plan_product(ctx, &g->dk_sum, g->dk_sum.b->format, b->block,
                                                 f->d, &b->dk))
        return false;
    return !g->dv.data || ng_attention_plan_product(ctx, &g->dv_sum, g->dv_sum.b->format,
                                                    b->block, f->dv, &b->dv);
}

/* The forward's plan takes more: it converts k and v where packing them rounds. */
static bool read_where_they_lie(const struct attention_plan *p)
{
    return p->scores.given == p->scores.b && p->pv.given == p->pv.b &&
           attention_setting(p, NG_ATTENTION_UPDATE) != NG_UPDATE_ACCUMULATOR;
}

/* Why the reference has it all, or NULL. */
static const char *plan_back(ng_ctx *ctx, const struct attention_grad_job *g,
                             struct back_plan *b)
{
    const struct attention_job *f = &g->forward;
    const ng_value one = { .sig = 1 };
    *b = (struct back_plan){ .g = g };
    if (!ng_attention_plan(ctx, f, &b->p))
        return b->p.left;
    if (attention_setting(&b->p, NG_ATTENTION_STATISTICS) == NG_STATISTICS_LSE) {
        b->p.exp_scale = 1; /* lse is of scaled scores */
        if (b->p.exp_inner != 0)
            b->p.exp_inner = (double)as_float(ng_num_f32_code(ng_ref_in_base(f, one)));
    }
    if (!read_where_they_lie(&b->p))
        return "k or v is converted, or sums stay in the accumulator";
    if (f->op->out.nan_sign == NG_NAN_SIGN_KEEP) /* a CPU's own NaN has one */
        return "a NaN's sign is kept";
    b->block = min64(ng_ref_query_block(f), f->queries);
    if (b->block > MOST_QUERIES)
        return "too many queries skip together";
    if (f->scores.a->store_bits < 8 || g->dp.a->store_bits < 8)
        return "operands are half bytes";
    if (!plan_products(ctx, b))
        return "no kernel takes one of the multiplies";
    if (!plan_target(ctx, g, &g->dq, &b->to_q) || !plan_target(ctx, g, &g->dk, &b->to_k) ||
        !plan_target(ctx, g, &g->dv, &b->to_v))
        return "no kernel takes one of the conversions";
    const struct ng_gemm_kernel *scores = b->p.scores.kernel;
    b->mr = scores->mr;
    if (b->dq.kernel && b->dq.kernel->mr < b->mr)
        b->mr = b->dq.kernel->mr;
    b->line = div_up(f->keys, scores->nr) * scores->nr;
    b->strip = min64(div_up(STRIP, scores->nr) * scores->nr, b->line);
    b->chunk = CHUNK % scores->nr == 0 && b->p.skip % CHUNK == 0 ? CHUNK : scores->nr;
    /* both products lie alike; groups of computed keys begin and end with K tiles */
    if (b->dp.kernel->mr != scores->mr || b->dp.kernel->nr != scores->nr)
        return "q k^T and do v^T have other panels";
    return b->dq.kernel && !ng_attention_skips_tiles(&b->p, &b->dq)
               ? "skipped keys begin inside a K tile"
               : NULL;
}

static void tell_target(ng_ctx *ctx, const char *stage, const struct target *t,
                        const char *left)
{
    if (t->cast.to)
        ng_tell_cast(ctx, stage, &t->cast, left ? NULL : t->kernel, left);
}

/* What the forward call would do with P and o is not done here. */
static void tell_back(ng_ctx *ctx, const struct back_plan *b, const char *left)
{
    ng_tell_attention(ctx, "rows", b->p.g, left ? NULL : b->p.kernel, left);
    ng_attention_tell_product(ctx, "q k^T", &b->p.scores, left);
    ng_attention_tell_product(ctx, "do v^T", &b->dp, left);
    ng_attention_tell_product(ctx, "ds k", &b->dq, left);
    ng_attention_tell_product(ctx, "ds^T q", &b->dk, left);
    ng_attention_tell_product(ctx, "p^T do", &b->dv, left);
    tell_target(ctx, "dq", &b->to_q, left);
    tell_target(ctx, "dk", &b->to_k, left);
    tell_target(ctx, "dv", &b->to_v, left);
}

/* ---- Memory. ---- */

/* What the workers share. The second half is a round's. */
struct back_work {
    const struct back_plan *b;
    const struct gradient_reference *reference;
    struct gemm_walk *tail;                     /* of dq, for each sequence */
    unsigned char *k_rows, *v_rows, *k_columns; /* panels of one head */
    unsigned char *q_codes, *dout_codes;        /* a block's lines */
    unsigned char *e_codes, *ds_codes;          /* a row every `line` */
    unsigned char *q_columns, *dout_columns;    /* a block's panels */
    unsigned char *dk_walk, *dv_walk, *desks;
    float *dk, *dv;        /* sums: see sums_of() */
    uint8_t *begun, *lost; /* of each chunk; of each key */
    int64_t *query;
    size_t desk_bytes;
    int64_t batch, kv_head, head;
    bool special;                    /* k_columns hold an Inf or a NaN */
    atomic_ullong count[2];          /* by kernels, by the reference */
    int64_t n;                       /* queries */
    struct range computed, seen;     /* keys, by any of them */
    struct gemm_walk over_k, over_v; /* of dk and dv over n queries */
    bool special_q, special_dout;
    atomic_bool lost_rows; /* a row's codes are the reference's */
};

/* What a worker has for itself. */
struct back_desk {
    unsigned char *gemm, *reference, *a, *dout, *code;
    float *x, *y, *w, *more, *line;
};

static int64_t panel_floats(const struct attention_product *x)
{
    return x->kernel ? (int64_t)x->kernel->mr * x->kernel->nr : 0;
}

/* All columns of one panel of A. */
static int64_t sum_floats(const struct attention_product *x)
{
    return x->panels * panel_floats(x);
}

static int64_t panels_of_chunk(const struct back_plan *b, const struct attention_product *x)
{
    return x->kernel ? div_up(b->chunk, x->kernel->mr) : 0;
}

static int64_t chunks(const struct back_plan *b)
{
    return div_up(b->p.g->keys, b->chunk);
}

/* Panel a of chunk c: the sums of all columns, as the tiles leave them. */
static float *sums_of(const struct back_plan *b, const struct attention_product *x, float *sums,
                      int64_t c, int64_t a)
{
    return sums + (c * panels_of_chunk(b, x) + a) * sum_floats(x);
}

static void lay_head(struct back_plan *b, struct attention_layout *l, struct back_work *w)
{
    const struct attention_job *f = b->p.g;
    struct gemm_walk unused;
    struct attention_product *const full[] = { &b->p.scores, &b->dp, &b->dq };
    for (size_t i = 0; i < 3; i++)
        ng_attention_lay_walk(l, full[i], full[i]->length, l->base ? &full[i]->full : &unused);
    w->tail = ng_attention_part(l, sizeof *w->tail, f->batch);
    for (int64_t i = 0; i < f->batch; i++)
        ng_attention_lay_walk(l, &b->dq, b->dq.kernel ? ng_ref_keys(f, i) % b->dq.length : 0,
                              l->base ? &w->tail[i] : &unused);
    w->k_rows = ng_attention_part(l, b->p.scores.b_bytes, b->p.scores.panels);
    w->v_rows = ng_attention_part(l, b->dp.b_bytes, b->dp.panels);
    w->k_columns = ng_attention_part(
        l, b->dq.b_bytes, b->dq.kernel ? b->dq.panels * attention_groups(&b->dq, f->keys) : 0);
    w->dk = ng_attention_part(
        l,
        (size_t)(chunks(b) * panels_of_chunk(b, &b->dk) * sum_floats(&b->dk)) * sizeof(float),
        1);
    w->dv = ng_attention_part(
        l,
        (size_t)(chunks(b) * panels_of_chunk(b, &b->dv) * sum_floats(&b->dv)) * sizeof(float),
        1);
    w->begun = ng_attention_part(l, (size_t)chunks(b), 1);
    w->lost = ng_attention_part(l, (size_t)f->keys, 1);
}

static size_t walk_bytes(const struct attention_product *x)
{
    const struct gemm_job g = ng_attention_product(x, x->length);
    return ng_walk_bytes(&g);
}

static size_t lay_work(struct back_plan *b, unsigned char *base, struct back_work *w)
{
    const struct attention_job *f = b->p.g;
    struct attention_layout l = { base, 0 };
    lay_head(b, &l, w);
    const size_t codes = (size_t)(b->block * b->line) * b->p.p_bytes;
    w->q_codes = ng_attention_part(&l, (size_t)(b->block * f->d) * sizeof(uint32_t), 1);
    w->dout_codes = ng_attention_part(&l, (size_t)(b->block * f->dv) * sizeof(uint32_t), 1);
    w->e_codes = ng_attention_part(&l, codes, 1);
    w->ds_codes = ng_attention_part(&l, codes, 1);
    w->q_columns = ng_attention_part(&l, b->dk.b_bytes, b->dk.panels);
    w->dout_columns = ng_attention_part(&l, b->dv.b_bytes, b->dv.panels);
    w->dk_walk = ng_attention_part(&l, b->dk.kernel ? walk_bytes(&b->dk) : 0, 1);
    w->dv_walk = ng_attention_part(&l, b->dv.kernel ? walk_bytes(&b->dv) : 0, 1);
    w->query = ng_attention_part(&l, sizeof *w->query, b->block);
    w->desks = ng_attention_part(&l, 0, 0);
    return l.at;
}

static size_t largest(const size_t *v, size_t n)
{
    size_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = v[i] > most ? v[i] : most;
    return most;
}

static size_t lay_desk(const struct back_plan *b, unsigned char *base, struct back_desk *d)
{
    const struct attention_product *const all[] = { &b->p.scores, &b->dp, &b->dq, &b->dk,
                                                    &b->dv };
    size_t scratch[5], a[5], sum[5], columns[5];
    for (size_t i = 0; i < 5; i++) {
        const struct attention_product *x = all[i];
        scratch[i] = x->kernel ? x->kernel->scratch_bytes : 0;
        a[i] = x->a_bytes;
        sum[i] = i < 2 ? 0 : (size_t)sum_floats(x) * sizeof(float);
        columns[i] =
            i < 2 || !x->kernel ? 0 : (size_t)(x->panels * x->kernel->nr) * sizeof(float);
    }
    struct attention_layout l = { base, 0 };
    const size_t products = (size_t)(b->strip * b->p.scores.kernel->mr) * sizeof(float);
    d->gemm = ng_attention_part(&l, largest(scratch, 5), 1);
    d->reference = ng_attention_part(&l, ng_ref_gradient_scratch(b->g, NULL, NULL), 1);
    d->a = ng_attention_part(&l, largest(a, 5), 1);
    d->dout = ng_attention_part(&l, b->dp.a_bytes, 1);
    d->x = ng_attention_part(&l, products, 1);
    d->y = ng_attention_part(&l, products, 1);
    d->w = ng_attention_part(&l, largest(sum, 5), 1);
    d->more = ng_attention_part(&l, largest(sum, 5), 1);
    d->line = ng_attention_part(&l, largest(columns, 5), 1);
    d->code = ng_attention_part(&l, largest(columns, 5), 1);
    return l.at;
}

/* ---- A panel of rows: e and ds (79). ---- */

struct panel {
    const struct back_work *w;
    const struct back_plan *b;
    struct back_desk d;
    int64_t first, keys; /* first: number in the round */
    int32_t n;
    uint32_t lost, left; /* bit r: row r's codes, its dq are the reference's */
    struct range sees[ATTENTION_ROWS], seen;
    struct attention_terms terms;
};

static float number(const ng_tensor *t, int64_t at)
{
    const ng_format_spec *f = ng_format_info(t->format);
    const uint32_t code = ng_load_code(t->data, f->store_bits, at);
    if (f->format == NG_F32)
        return as_float(code);
    return as_float(f->format == NG_BF16 ? code << 16
                                         : ng_num_f32_code(ng_num_decode(f, code)));
}

/* n of a row. */
static void numbers(const ng_tensor *t, int64_t at, int64_t n, float *to)
{
    const unsigned char *data = t->data;
    const int64_t step = t->stride[3];
    if (t->format == NG_BF16)
        for (int64_t c = 0; c < n; c++) {
            uint16_t half;
            memcpy(&half, data + 2 * (at + c * step), sizeof half);
            to[c] = as_float((uint32_t)half << 16);
        }
    else
        for (int64_t c = 0; c < n; c++)
            to[c] = number(t, at + c * step);
}

/* D */
static float row_sum(const struct attention_grad_job *g, const int64_t *index)
{
    const ng_tensor *dout = &g->dout, *o = &g->forward.o;
    const int64_t n = g->forward.dv;
    float x[NG_REF_MAX_HEAD], y[NG_REF_MAX_HEAD], sum = 0;
    numbers(dout, ng_offset_at(dout, index), n, x);
    numbers(o, ng_offset_at(o, index), n, y);
    for (int64_t c = 0; c < n; c++)
        sum = c ? sum + x[c] * y[c] : x[c] * y[c];
    return sum;
}

/* A row's D, m and 1 / l. */
static void read_terms(const struct attention_grad_job *g, const int64_t *index, float *d,
                       float *m, float *by)
{
    const struct attention_job *f = &g->forward;
    const bool sum = f->set[NG_ATTENTION_STATISTICS].value == NG_STATISTICS_MAX_SUM;
    const ng_tensor *from = sum ? &f->max : &f->lse;
    *d = row_sum(g, index);
    *m = number(from, ng_offset_at(from, index));
    *by = sum ? 1 / number(&f->sum, ng_offset_at(&f->sum, index)) : 1;
}

/* False: a masked key's e is not +0, so the reference has the row. */
static bool take_statistics(const struct back_plan *b, const int64_t *index, bool masks, int r,
                            struct attention_terms *t)
{
    read_terms(b->g, index, &t->d[r], &t->m[r], &t->by[r]);
    return !masks || (isfinite(t->by[r]) && !signbit(t->by[r]) &&
                      ng_attention_fill_vanishes(&b->p, t->m[r]));
}

static void pack_lines(const struct attention_product *x, const unsigned char *codes,
                       int64_t first, int32_t n, unsigned char *to)
{
    struct gemm_job g = ng_attention_product(x, x->length);
    g.a.data = codes;
    g.a.offset = first * x->length;
    g.a.line = x->length;
    x->kernel->pack(&g, &x->full, GEMM_A, 0, n, to);
}

static const unsigned char *row_of(const ng_tensor *t, const int64_t *index)
{
    return (const unsigned char *)t->data +
           ng_offset_at(t, index) * ng_format_info(t->format)->store_bits / 8;
}

/* A row's lines of q and do, codes one after another. */
static void take_lines(const struct back_plan *b, const struct back_work *w, int64_t row,
                       int64_t *index)
{
    const struct attention_job *f = b->p.g;
    const ng_tensor *dout = &b->g->dout;
    const size_t q_bytes = (size_t)f->d * (f->scores.a->store_bits / 8),
                 dout_bytes = (size_t)f->dv * (b->g->dp.a->store_bits / 8);
    struct ng_ref_line q = { .code = w->q_codes + (size_t)row * q_bytes },
                       to = { .code = w->dout_codes + (size_t)row * dout_bytes };
    if (ng_attention_plain_queries(&b->p))
        memcpy(q.code, row_of(&f->q, index), q_bytes);
    else
        ng_ref_attention_q(f, index[0], index[1], index[2], &q);
    if (dout->format == b->g->dp.a->format && dout->stride[3] == 1)
        memcpy(to.code, row_of(dout, index), dout_bytes);
    else
        ng_ref_attention_copy(dout, index, b->g->dp.a, &to);
    index[3] = 0;
}

static void begin_panel(struct panel *x)
{
    const struct back_work *w = x->w;
    const struct back_plan *b = x->b;
    x->seen = (struct range){ x->keys, 0 };
    for (int r = 0; r < x->n; r++) {
        const int64_t row = x->first + r;
        int64_t index[NG_MAX_RANK] = { w->batch, w->head, w->query[row], 0 };
        const struct range v = ng_ref_visible(b->p.g, x->keys, index[2]);
        const bool masks = v.begin > w->computed.begin || v.end < w->computed.end;
        take_lines(b, w, row, index);
        if (!take_statistics(b, index, masks, r, &x->terms))
            x->lost |= 1u << r;
        x->sees[r] = v;
        if (v.begin < v.end) {
            x->seen.begin = min64(x->seen.begin, v.begin);
            x->seen.end = max64(x->seen.end, v.end);
        }
    }
    pack_lines(&b->p.scores, w->q_codes, x->first, x->n, x->d.a);
    pack_lines(&b->dp, w->dout_codes, x->first, x->n, x->d.dout);
}

/* Products of keys [from, to), which begin with a panel. */
static void find_products(struct panel *x, const struct attention_product *m, const void *a,
                          unsigned char *rows, int64_t from, int64_t to, float *products)
{
    const int64_t nr = m->kernel->nr;
    const struct gemm_job g = ng_attention_product(m, m->length);
    const struct gemm_tile t = { .a = a,
                                 .b = rows + (size_t)(from / nr) * up_64(m->b_bytes),
                                 .rows = x->n,
                                 .to = m->full.whole ? m->full.depth : m->full.tiles,
                                 .psum = products,
                                 .scratch = x->d.gemm };
    if (!ng_attention_tiles(m, &g, &m->full, &t, div_up(to - from, nr)))
        x->lost = ~0u;
}

static unsigned char *code_at(const struct back_work *w, unsigned char *codes, int64_t row,
                              int64_t key)
{
    return codes + (size_t)(row * w->b->line + key) * w->b->p.p_bytes;
}

/* A strip's numbers in P's format, where that is not bf16. */
static void convert_strip(const struct panel *x, const struct attention_rows *a,
                          const float *from, int64_t key, unsigned char *codes)
{
    const struct attention_plan *p = &x->b->p;
    for (int r = 0; r < a->rows; r++)
        for (int64_t at = 0; at < a->keys; at += a->nr)
            p->cast->convert(&p->p_cast, from + (at / a->nr * a->mr + r) * a->nr, NULL, a->nr,
                             code_at(x->w, codes, x->first + r, key + at));
}

/* Keys [from, to) of whole panels. */
static void find_strip(struct panel *x, int64_t from, int64_t to)
{
    const struct back_work *w = x->w;
    const struct attention_plan *p = &x->b->p;
    const bool bf16 = p->g->pv.a->format == NG_BF16;
    struct attention_rows a = {
        .rows = x->n, .mr = p->scores.kernel->mr, .nr = p->scores.kernel->nr, .keys = to - from
    };
    for (int r = 0; r < x->n; r++) {
        const int64_t begin = max64(x->sees[r].begin, from), end = min64(x->sees[r].end, to);
        a.begin[r] = (int32_t)(begin < end ? begin - from : 0);
        a.end[r] = (int32_t)(begin < end ? end - from : 0);
    }
    find_products(x, &p->scores, x->d.a, w->k_rows, from, to, x->d.x);
    find_products(x, &x->b->dp, x->d.dout, w->v_rows, from, to, x->d.y);
    if (bf16) {
        x->terms.e = (uint16_t *)(void *)code_at(w, w->e_codes, x->first, from);
        x->terms.ds = (uint16_t *)(void *)code_at(w, w->ds_codes, x->first, from);
        x->terms.line = x->b->line;
    }
    p->kernel->gradients(p->g, &a, &x->terms, x->d.x, x->d.y);
    if (!bf16) {
        convert_strip(x, &a, x->d.x, from, w->e_codes);
        convert_strip(x, &a, x->d.y, from, w->ds_codes);
    }
}

/* A lost row's codes. */
static void ask_weights(struct panel *x, int r)
{
    const struct back_work *w = x->w;
    const struct back_plan *b = x->b;
    const uint32_t bits = b->p.g->pv.a->store_bits;
    const int64_t row = x->first + r;
    struct ng_ref_gradient_scratch s;
    (void)ng_ref_gradient_scratch(b->g, x->d.reference, &s);
    const int64_t n = ng_ref_attention_weights(b->g, w->batch, w->head, w->query[row], &s);
    for (int64_t i = 0; i < n; i++) {
        ng_store_code(w->e_codes, bits, row * b->line + s.list[i], s.e[i]);
        ng_store_code(w->ds_codes, bits, row * b->line + s.list[i], s.ds[i]);
    }
}

static void find_weights(struct panel *x)
{
    struct back_work *w = (struct back_work *)x->w;
    const struct back_plan *b = x->b;
    const int64_t nr = b->p.scores.kernel->nr;
    const size_t bytes = (size_t)(x->n * b->line) * b->p.p_bytes;
    memset(code_at(w, w->e_codes, x->first, 0), 0, bytes);
    memset(code_at(w, w->ds_codes, x->first, 0), 0, bytes);
    const int64_t end = div_up(x->seen.end, nr) * nr;
    for (int64_t from = x->seen.begin / nr * nr; from < end; from += b->strip)
        find_strip(x, from, min64(end, from + b->strip));
    x->lost &= (1u << x->n) - 1;
    for (int r = 0; r < x->n; r++)
        if (x->lost >> r & 1)
            ask_weights(x, r);
    if (x->lost)
        atomic_store(&w->lost_rows, true);
}

/* ---- dq (80). ---- */

/* K tiles [from, to) of a group's keys in range r. */
static struct range tiles_of(const struct attention_product *m, struct range r, int64_t begin,
                             int64_t keys)
{
    const int64_t from = max64(r.begin, begin) - begin, to = min64(r.end, begin + keys) - begin;
    return from < to ? (struct range){ from / m->tile, div_up(to, m->tile) }
                     : (struct range){ 0, 0 };
}

/* One group into w, or behind its predecessors. */
static void multiply_group(struct panel *x, int64_t group, const struct gemm_walk *walk,
                           int64_t keys, struct range tiles, bool begun)
{
    const struct back_work *w = x->w;
    const struct attention_product *m = &x->b->dq;
    float *to = begun ? x->d.more : x->d.w;
    struct gemm_job g = ng_attention_product(m, keys);
    g.a.data = w->ds_codes;
    g.a.offset = x->first * x->b->line + group * m->length;
    g.a.line = x->b->line;
    m->kernel->pack(&g, walk, GEMM_A, 0, x->n, x->d.a);
    for (int64_t j = 0; j < m->panels; j++) {
        struct gemm_tile t = { .a = x->d.a,
                               .b = w->k_columns +
                                    (size_t)(group * m->panels + j) * up_64(m->b_bytes),
                               .rows = x->n,
                               .from = walk->whole ? 0 : tiles.begin,
                               .to = walk->whole ? walk->depth : tiles.end,
                               .psum = to + j * panel_floats(m),
                               .scratch = x->d.gemm };
        if (!ng_attention_tile(m, &g, walk, &t))
            x->left = ~0u;
    }
    if (begun)
        x->b->p.kernel->combine(ATTENTION_ADD, sum_floats(m), 0, x->d.more, x->d.w);
}

static void add_zero(float *sum, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += 0.0F; /* what was left out is +0 (76) */
}

static void find_dq(struct panel *x)
{
    const struct back_work *w = x->w;
    const struct attention_product *m = &x->b->dq;
    const bool all_of_it = x->lost || w->special || x->b->p.fused;
    const struct range wanted = all_of_it ? w->computed : x->seen;
    bool begun = false, dropped = false;
    memset(x->d.w, 0, (size_t)sum_floats(m) * sizeof *x->d.w);
    for (int64_t n = w->computed.begin / m->length; n * m->length < w->computed.end; n++) {
        int64_t keys;
        const struct gemm_walk *walk =
            ng_attention_walk(m, &w->tail[w->batch], n, x->keys, &keys);
        const struct range all = tiles_of(m, w->computed, n * m->length, keys),
                           some = tiles_of(m, wanted, n * m->length, keys);
        dropped |= all.begin != some.begin || all.end != some.end;
        if (some.begin == some.end)
            continue;
        multiply_group(x, n, walk, keys, some, begun);
        begun = true;
    }
    if (dropped)
        add_zero(x->d.w, sum_floats(m));
}

/* Row r of a panel's sums, scaled if there is a scale, to its place. */
static void put_row(const struct back_plan *b, const struct attention_product *m,
                    const struct target *to, const float *sums, int r, bool scale,
                    const int64_t *index, struct back_desk *d)
{
    const int64_t nr = m->kernel->nr, mr = m->kernel->mr;
    for (int64_t j = 0; j < m->panels; j++)
        memcpy(d->line + j * nr, sums + (j * mr + r) * nr, (size_t)nr * sizeof *sums);
    if (scale && b->p.g->op->scale)
        b->p.kernel->combine(ATTENTION_TIMES, m->panels * nr, as_float(b->p.g->op->scale), NULL,
                             d->line);
    ng_attention_put(to->kernel, &to->cast, to->to, index, d->line, NULL, m->columns, d->code);
}

static int64_t row_number(const struct back_work *w, int64_t query)
{
    const struct attention_job *f = w->b->p.g;
    return (w->batch * f->heads + w->head) * f->queries + query;
}

static void store_dq(struct panel *x)
{
    const struct back_work *w = x->w;
    const bool some = w->computed.begin < w->computed.end;
    for (int r = 0; r < x->n; r++) {
        const int64_t query = w->query[x->first + r],
                      index[NG_MAX_RANK] = { w->batch, w->head, query, 0 };
        if (x->left)
            w->reference->query(x->b->g, row_number(w, query), x->d.reference);
        else
            put_row(x->b, &x->b->dq, &x->b->to_q, x->d.w, r, some, index, &x->d);
    }
}

static void run_rows(void *arg, size_t task, size_t worker)
{
    struct back_work *w = arg;
    const struct back_plan *b = w->b;
    struct panel x = {
        .w = w, .b = b, .first = (int64_t)task * b->mr, .keys = ng_ref_keys(b->p.g, w->batch)
    };
    x.n = (int32_t)min64(b->mr, w->n - x.first);
    (void)lay_desk(b, w->desks + worker * w->desk_bytes, &x.d);
    const uint32_t saved = ng_fp_enter();
    begin_panel(&x);
    find_weights(&x);
    if (b->dq.kernel) {
        find_dq(&x);
        store_dq(&x);
    }
    ng_fp_leave(saved);
    const int lost = x.left ? x.n : __builtin_popcount(x.lost);
    atomic_fetch_add(&w->count[0], (unsigned long long)(x.n - lost));
    atomic_fetch_add(&w->count[1], (unsigned long long)lost);
}

/* ---- dk and dv (81). ---- */

/* A multiply of dk or dv in one round: weights, panels of q or do, where the sums are. */
struct addend {
    const struct attention_product *m;
    const struct gemm_walk *walk;
    const unsigned char *codes, *columns;
    float *sums;
    bool special;
};

/* Keys [key, key + n), panel a of its chunk. */
static void add_panel(struct back_work *w, const struct addend *x, struct back_desk *d,
                      int64_t key, int32_t n, bool begun, float *sums)
{
    const struct attention_product *m = x->m;
    struct gemm_job g = ng_attention_product(m, w->n);
    g.a.data = x->codes;
    g.a.offset = key;
    g.a.line = 1;
    g.a.k = w->b->line;
    m->kernel->pack(&g, x->walk, GEMM_A, 0, n, d->a);
    for (int64_t j = 0; j < m->panels; j++) {
        struct gemm_tile t = { .a = d->a,
                               .b = x->columns + (size_t)j * up_64(m->b_bytes),
                               .rows = n,
                               .to = x->walk->whole ? x->walk->depth : x->walk->tiles,
                               .psum = (begun ? d->more : sums) + j * panel_floats(m),
                               .scratch = d->gemm };
        if (!ng_attention_tile(m, &g, x->walk, &t))
            memset(w->lost + key, 1, (size_t)n);
    }
    if (begun)
        w->b->p.kernel->combine(ATTENTION_ADD, sum_floats(m), 0, d->more, sums);
}

static void add_chunk(struct back_work *w, const struct addend *x, struct back_desk *d,
                      int64_t chunk, int64_t end)
{
    const struct back_plan *b = w->b;
    const bool may_drop = !b->p.fused && !x->special && !atomic_load(&w->lost_rows);
    for (int64_t a = 0; a < panels_of_chunk(b, x->m); a++) {
        const int64_t key = chunk * b->chunk + a * x->m->kernel->mr,
                      n = min64(x->m->kernel->mr, min64(end, (chunk + 1) * b->chunk) - key);
        float *sums = sums_of(b, x->m, x->sums, chunk, a);
        if (n <= 0)
            return;
        if (!may_drop || (key < w->seen.end && key + n > w->seen.begin))
            add_panel(w, x, d, key, (int32_t)n, w->begun[chunk], sums);
        else if (w->begun[chunk])
            add_zero(sums, sum_floats(x->m));
        else
            memset(sums, 0, (size_t)sum_floats(x->m) * sizeof *sums);
    }
}

static void run_chunk(void *arg, size_t task, size_t worker)
{
    struct back_work *w = arg;
    const struct back_plan *b = w->b;
    const int64_t chunk = w->computed.begin / b->chunk + (int64_t)task;
    const struct addend
        k = { &b->dk, &w->over_k, w->ds_codes, w->q_columns, w->dk, w->special_q },
        v = { &b->dv, &w->over_v, w->e_codes, w->dout_columns, w->dv, w->special_dout };
    struct back_desk d;
    (void)lay_desk(b, w->desks + worker * w->desk_bytes, &d);
    const uint32_t saved = ng_fp_enter();
    if (b->dk.kernel)
        add_chunk(w, &k, &d, chunk, w->computed.end);
    if (b->dv.kernel)
        add_chunk(w, &v, &d, chunk, w->computed.end);
    w->begun[chunk] = 1;
    ng_fp_leave(saved);
}

/* A key's sums, or +0 where no query computes it, to its place. */
static void store_key(struct back_work *w, int64_t j, struct back_desk *d)
{
    const struct back_plan *b = w->b;
    const struct attention_job *f = b->p.g;
    const int64_t chunk = j / b->chunk, at = j % b->chunk,
                  index[NG_MAX_RANK] = { w->batch, w->kv_head, j, 0 };
    const bool some = w->begun[chunk] && j < ng_ref_keys(f, w->batch);
    const struct attention_product *const m[] = { &b->dk, &b->dv };
    const struct target *const to[] = { &b->to_k, &b->to_v };
    float *const sums[] = { w->dk, w->dv };
    for (int i = 0; i < 2; i++) {
        if (!m[i]->kernel)
            continue;
        const int64_t mr = m[i]->kernel->mr;
        const bool scale =
            i == 0 && attention_setting(&b->p, NG_ATTENTION_SCALE_PLACE) != NG_PLACE_Q;
        if (!some)
            memset(d->w, 0, (size_t)sum_floats(m[i]) * sizeof *d->w);
        put_row(b, m[i], to[i], some ? sums_of(b, m[i], sums[i], chunk, at / mr) : d->w,
                some ? (int)(at % mr) : 0, scale && some, index, d);
    }
}

static void finish_chunk(void *arg, size_t task, size_t worker)
{
    struct back_work *w = arg;
    const struct back_plan *b = w->b;
    const struct attention_job *f = b->p.g;
    const int64_t from = (int64_t)task * b->chunk, to = min64(f->keys, from + b->chunk);
    struct back_desk d;
    unsigned long long lost = 0;
    (void)lay_desk(b, w->desks + worker * w->desk_bytes, &d);
    const uint32_t saved = ng_fp_enter();
    for (int64_t j = from; j < to; j++)
        if (w->lost[j]) {
            w->reference->key(b->g, (w->batch * f->kv_heads + w->kv_head) * f->keys + j,
                              d.reference);
            lost++;
        } else {
            store_key(w, j, &d);
        }
    ng_fp_leave(saved);
    atomic_fetch_add(&w->count[0], (unsigned long long)(to - from) - lost);
    atomic_fetch_add(&w->count[1], lost);
}

/* ---- Panels of B. ---- */

static bool is_special(const unsigned char *panels, size_t bytes, int64_t n)
{
    bool special = false;
    for (int64_t i = 0; i < n; i++)
        special |=
            ((const struct gemm_panel *)(const void *)(panels + (size_t)i * up_64(bytes)))
                ->special != 0;
    return special;
}

/* Keys as columns of B: the panel-th of a head of k or v. */
static void pack_keys(const struct back_work *w, const struct attention_product *x,
                      const ng_tensor *t, int64_t panel, unsigned char *to)
{
    const int64_t nr = x->kernel->nr, from = panel * nr,
                  n = min64(nr, ng_ref_keys(w->b->p.g, w->batch) - from);
    struct gemm_job g = ng_attention_product(x, x->length);
    g.b = ng_attention_view(t, x->b, w->batch, w->kv_head, 2);
    g.b.offset += from * g.b.line;
    g.b.depth = g.k;
    x->kernel->pack(&g, &x->full, GEMM_B, 0, (int32_t)n,
                    to + (size_t)panel * up_64(x->b_bytes));
}

/* Columns of k over a group of keys. */
static void pack_group(const struct back_work *w, int64_t at)
{
    const struct attention_product *x = &w->b->dq;
    const int64_t group = at / x->panels, from = at % x->panels * x->kernel->nr;
    int64_t keys;
    const struct gemm_walk *walk = ng_attention_walk(x, &w->tail[w->batch], group,
                                                     ng_ref_keys(w->b->p.g, w->batch), &keys);
    struct gemm_job g = ng_attention_product(x, keys);
    g.b = ng_attention_view(&w->b->p.g->k, x->b, w->batch, w->kv_head, 3);
    g.b.offset += from * g.b.line + group * x->length * g.b.k;
    g.b.depth = keys;
    x->kernel->pack(&g, walk, GEMM_B, 0, (int32_t)min64(x->kernel->nr, x->columns - from),
                    w->k_columns + (size_t)at * up_64(x->b_bytes));
}

static void pack_head(void *arg, size_t task, size_t worker)
{
    const struct back_work *w = arg;
    const struct back_plan *b = w->b;
    const int64_t of_keys = div_up(ng_ref_keys(b->p.g, w->batch), b->p.scores.kernel->nr);
    const int64_t i = (int64_t)task;
    (void)worker;
    const uint32_t saved = ng_fp_enter();
    if (i < of_keys)
        pack_keys(w, &b->p.scores, &b->p.g->k, i, w->k_rows);
    else if (i < 2 * of_keys)
        pack_keys(w, &b->dp, &b->p.g->v, i - of_keys, w->v_rows);
    else
        pack_group(w, i - 2 * of_keys);
    ng_fp_leave(saved);
}

/* Columns of a block's lines, codes one after another, over its n queries. */
static void pack_columns(const struct attention_product *x, const struct gemm_walk *walk,
                         const unsigned char *codes, int64_t n, int64_t panel,
                         unsigned char *to)
{
    const int64_t from = panel * x->kernel->nr;
    struct gemm_job g = ng_attention_product(x, n);
    g.b.data = codes;
    g.b.offset = from;
    g.b.line = 1;
    g.b.k = x->columns;
    x->kernel->pack(&g, walk, GEMM_B, 0, (int32_t)min64(x->kernel->nr, x->columns - from),
                    to + (size_t)panel * up_64(x->b_bytes));
}

static void pack_block(void *arg, size_t task, size_t worker)
{
    const struct back_work *w = arg;
    const struct back_plan *b = w->b;
    const int64_t i = (int64_t)task;
    (void)worker;
    const uint32_t saved = ng_fp_enter();
    if (i < b->dk.panels)
        pack_columns(&b->dk, &w->over_k, w->q_codes, w->n, i, w->q_columns);
    else
        pack_columns(&b->dv, &w->over_v, w->dout_codes, w->n, i - b->dk.panels,
                     w->dout_columns);
    ng_fp_leave(saved);
}

/* ---- Rounds. ---- */

/* The block's queries, but for those that masked_rows zero took; what they see and compute. */
static void list_queries(struct back_work *w, int64_t i0, int64_t i1)
{
    const struct attention_plan *p = &w->b->p;
    const int64_t keys = ng_ref_keys(p->g, w->batch);
    const bool together = attention_setting(p, NG_ATTENTION_SKIP_QUERIES) != 0;
    struct back_desk d;
    (void)lay_desk(w->b, w->desks, &d);
    w->n = 0;
    w->seen = (struct range){ keys, 0 };
    w->computed =
        ng_attention_computed(p, keys, together ? i0 : 0, together ? i1 : p->g->queries);
    atomic_store(&w->lost_rows, false);
    for (int64_t i = i0; i < i1; i++) {
        const struct range v = ng_ref_visible(p->g, keys, i);
        if (v.begin < v.end) {
            w->seen.begin = min64(w->seen.begin, v.begin);
            w->seen.end = max64(w->seen.end, v.end);
        } else if (p->g->op->masked_rows == NG_MASKED_ZERO) {
            if (w->b->dq.kernel)
                w->reference->query(w->b->g, row_number(w, i), d.reference);
            continue;
        }
        w->query[w->n++] = i;
    }
}

static void build_walk(const struct attention_product *x, int64_t n, void *memory,
                       struct gemm_walk *walk)
{
    if (!x->kernel)
        return;
    const struct gemm_job g = ng_attention_product(x, n);
    ng_walk_build(&g, memory, walk);
}

static void add_block(ng_ctx *ctx, struct back_work *w)
{
    const struct back_plan *b = w->b;
    build_walk(&b->dk, w->n, w->dk_walk, &w->over_k);
    build_walk(&b->dv, w->n, w->dv_walk, &w->over_v);
    ng_parallel(ctx, (size_t)(b->dk.panels + b->dv.panels), pack_block, w);
    w->special_q = is_special(w->q_columns, b->dk.b_bytes, b->dk.panels);
    w->special_dout = is_special(w->dout_columns, b->dv.b_bytes, b->dv.panels);
    ng_parallel(ctx, (size_t)(div_up(w->computed.end, b->chunk) - w->computed.begin / b->chunk),
                run_chunk, w);
}

static void run_head(ng_ctx *ctx, struct back_work *w)
{
    const struct back_plan *b = w->b;
    const struct attention_job *f = b->p.g;
    const int64_t keys = ng_ref_keys(f, w->batch),
                  of_k = b->dq.kernel ? attention_groups(&b->dq, keys) * b->dq.panels : 0;
    const bool sums = b->dk.kernel || b->dv.kernel;
    memset(w->begun, 0, (size_t)chunks(b));
    memset(w->lost, 0, (size_t)f->keys);
    ng_parallel(ctx, (size_t)(2 * div_up(keys, b->p.scores.kernel->nr) + of_k), pack_head, w);
    w->special = is_special(w->k_columns, b->dq.b_bytes, of_k);
    for (w->head = w->kv_head * b->p.group; w->head < (w->kv_head + 1) * b->p.group; w->head++)
        for (int64_t i = 0; i < f->queries; i += b->block) {
            list_queries(w, i, min64(f->queries, i + b->block));
            ng_parallel(ctx, (size_t)div_up(w->n, b->mr), run_rows, w);
            if (sums && w->n && w->computed.begin < w->computed.end)
                add_block(ctx, w);
        }
    if (sums)
        ng_parallel(ctx, (size_t)chunks(b), finish_chunk, w);
}

ng_status ng_attention_back_fast(ng_ctx *ctx, const struct attention_grad_job *g,
                                 const struct gradient_reference *reference, bool *taken)
{
    struct back_plan b;
    struct back_work w = { .b = &b, .reference = reference };
    struct back_desk d;
    void *memory;
    const char *left = plan_back(ctx, g, &b);
    tell_back(ctx, &b, left);
    *taken = !left;
    if (left)
        return NG_OK;
    w.desk_bytes = lay_desk(&b, NULL, &d);
    const ng_status s =
        ng_arena_claim(ctx, lay_work(&b, NULL, &w) + w.desk_bytes * ng_workers(ctx), &memory);
    if (s)
        return s;
    (void)lay_work(&b, memory, &w);
    for (w.batch = 0; w.batch < g->forward.batch; w.batch++)
        for (w.kv_head = 0; w.kv_head < g->forward.kv_heads; w.kv_head++)
            run_head(ctx, &w);
    ng_ctx_note_kernel(
        ctx, b.p.kernel->name,
        (ng_tiles){ .fast = atomic_load(&w.count[0]), .reference = atomic_load(&w.count[1]) });
    return NG_OK;
}

/* ---- dsink (82). ---- */

enum {
    TERMS = 64 /* rows whose exponentials are had at once */
};

/* Of rows that are terms: D, statistics, the sink's logit. */
struct sink_terms {
    int n;
    float z[TERMS], d[TERMS], m[TERMS], by[TERMS];
};

/* Adds them to *sum, or begins it. */
static void add_terms(const struct attention_job *f, const struct ng_attention_kernel *kernel,
                      struct sink_terms *t, bool *begun, float *sum)
{
    const bool weighted = f->set[NG_ATTENTION_STATISTICS].value == NG_STATISTICS_MAX_SUM;
    float e[TERMS];
    kernel->factors(f, t->n, t->z, t->m, e);
    for (int i = 0; i < t->n; i++) {
        const float weight = weighted ? e[i] * t->by[i] : e[i], x = weight * (0 - t->d[i]);
        *sum = *begun ? *sum + x : x;
        *begun = true;
    }
    t->n = 0;
}

uint32_t ng_attention_back_sink(const struct attention_grad_job *g,
                                const struct ng_attention_kernel *kernel, int64_t head)
{
    const struct attention_job *f = &g->forward;
    const uint32_t saved = ng_fp_enter();
    const float z = number(f->op->sink, ng_offset_at(f->op->sink, &head));
    struct sink_terms t = { 0 };
    bool begun = false;
    float sum = 0;
    for (int64_t b = 0; b < f->batch; b++)
        for (int64_t i = 0; i < f->queries; i++) {
            const struct range v = ng_ref_visible(f, ng_ref_keys(f, b), i);
            if (v.begin == v.end && f->op->masked_rows == NG_MASKED_ZERO)
                continue;
            const int64_t index[NG_MAX_RANK] = { b, head, i, 0 };
            read_terms(g, index, &t.d[t.n], &t.m[t.n], &t.by[t.n]);
            t.z[t.n++] = z;
            if (t.n == TERMS)
                add_terms(f, kernel, &t, &begun, &sum);
        }
    add_terms(f, kernel, &t, &begun, &sum);
    ng_fp_leave(saved);
    uint32_t code = 0;
    ng_value v = ng_num_f32(as_pattern(sum));
    v.neg = v.neg && v.cls != NG_CLASS_NAN; /* arithmetic leaves a NaN no sign, CPUs do */
    (void)ng_num_encode(ng_format_info(g->dsink.format), &f->op->out, v, 0, &code);
    return code;
}
