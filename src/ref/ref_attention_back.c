/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of attention: one row of dq, one key of dk and dv, one sink. Numerics:
 * docs/numerics.md, section 11.9, items 79 to 82, in parentheses.
 */
#include "ref_attention.h"

/* A query and what the forward call said of it. */
struct query {
    int64_t b, h, i, keys;
    struct range visible;
    bool gone;     /* masked_rows = zero took it */
    ng_value d;    /* D: the sum of dout * o */
    ng_value m, r; /* max_sum: m and 1 / l; lse: m is lse */
};

static int32_t param(const struct attention_grad_job *g, ng_attention_param p)
{
    return g->forward.set[p].value;
}

static ng_value element(const ng_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c)
{
    const int64_t index[NG_MAX_RANK] = { b, h, i, c };
    return ng_ref_attention_value(t, index);
}

/* D (79) */
static ng_value row_sum(const struct attention_grad_job *g, const struct query *q)
{
    ng_value sum = ng_num_zero(false);
    for (int64_t c = 0; c < g->forward.dv; c++) {
        const ng_value x = ng_ref_mul32(element(&g->dout, q->b, q->h, q->i, c),
                                        element(&g->forward.o, q->b, q->h, q->i, c));
        sum = c ? ng_ref_add32(sum, x) : x;
    }
    return sum;
}

/* What the forward call said of query (b, h, i), and D. */
static struct query find_query(const struct attention_grad_job *g, int64_t b, int64_t h,
                               int64_t i)
{
    const struct attention_job *f = &g->forward;
    struct query q = { .b = b, .h = h, .i = i, .keys = ng_ref_keys(f, b) };
    const int64_t index[NG_MAX_RANK] = { b, h, i, 0 };
    q.visible = ng_ref_visible(f, q.keys, i);
    q.gone = f->op->masked_rows == NG_MASKED_ZERO && q.visible.begin == q.visible.end;
    q.d = row_sum(g, &q);
    if (param(g, NG_ATTENTION_STATISTICS) == NG_STATISTICS_LSE) {
        q.m = ng_ref_attention_value(&f->lse, index);
    } else {
        q.m = ng_ref_attention_value(&f->max, index);
        q.r = ng_ref_function32(NG_FN_RECIPROCAL, &f->reciprocal,
                                ng_ref_attention_value(&f->sum, index));
    }
    return q;
}

/* The query, and its lines q' and dout. */
static struct query load_query(const struct attention_grad_job *g, int64_t b, int64_t h,
                               int64_t i, struct ng_ref_gradient_scratch *s)
{
    int64_t index[NG_MAX_RANK] = { b, h, i, 0 };
    ng_ref_attention_q(&g->forward, b, h, i, &s->q);
    ng_ref_attention_copy(&g->dout, index, g->dp.a, &s->dout);
    return find_query(g, b, h, i);
}

/* What a score weighs in its row (79). */
static ng_value weight_of(const struct attention_grad_job *g, const struct query *q,
                          ng_value score)
{
    if (param(g, NG_ATTENTION_STATISTICS) == NG_STATISTICS_LSE)
        return ng_ref_weight(&g->forward, score, q->m);
    return ng_ref_mul32(ng_ref_exponential(&g->forward, score, q->m), q->r);
}

/* ds_j, from e_j, dp_j and, under a cap, y_j (79). */
static ng_value score_gradient(const struct attention_grad_job *g, const struct query *q,
                               ng_value e, ng_value dp, ng_value y)
{
    const ng_value one = { .sig = 1 };
    const ng_value ds = ng_ref_mul32(e, ng_ref_sub32(dp, q->d));
    if (!g->forward.op->softcap)
        return ds;
    return ng_ref_mul32(ds, ng_ref_sub32(one, ng_ref_mul32(y, y)));
}

/* e_j and ds_j of a loaded query (79). */
static void find_pair(const struct attention_grad_job *g, const struct query *q, int64_t j,
                      struct ng_ref_gradient_scratch *s, ng_value *e, ng_value *ds)
{
    const struct attention_job *f = &g->forward;
    const bool masked = j < q->visible.begin || j >= q->visible.end;
    int64_t index[NG_MAX_RANK];
    ng_value y = ng_num_zero(false);
    ng_ref_attention_locate(f, q->b, q->h, j, index);
    ng_ref_attention_copy(&f->k, index, f->scores.b, &s->key);
    const ng_value x = ng_ref_multiply(&f->scores, &s->q, &s->key, f->d, NULL);
    *e = weight_of(g, q, ng_ref_score(f, x, masked, &y));
    ng_ref_attention_copy(&f->v, index, g->dp.b, &s->key);
    const ng_value dp = ng_ref_multiply(&g->dp, &s->dout, &s->key, f->dv, NULL);
    *ds = masked ? ng_num_zero(false) : score_gradient(g, q, *e, dp, y);
}

static void put(struct ng_ref_line *line, const ng_format_spec *spec, int64_t at, uint32_t code)
{
    line->spec = spec;
    line->block = 0;
    ng_store_code(line->code, spec->store_bits, at, code);
}

static ng_value scaled(const struct attention_grad_job *g, ng_value v)
{
    return g->forward.op->scale ? ng_ref_mul32(v, ng_num_f32(g->forward.op->scale)) : v;
}

static uint32_t result(const struct attention_grad_job *g, const ng_tensor *to, ng_value v)
{
    uint32_t code = 0;
    if (to->data)
        (void)ng_num_encode(ng_format_info(to->format), &g->forward.op->out, v, 0, &code);
    return code;
}

int64_t ng_ref_attention_weights(const struct attention_grad_job *g, int64_t b, int64_t h,
                                 int64_t i, struct ng_ref_gradient_scratch *s)
{
    const struct query q = load_query(g, b, h, i, s);
    const int64_t n = q.gone ? 0 : ng_ref_list_keys(&g->forward, q.keys, i, 0, q.keys, s->list);
    for (int64_t x = 0; x < n; x++) {
        ng_value e, ds;
        find_pair(g, &q, s->list[x], s, &e, &ds);
        s->e[x] = ng_ref_convert(g->dv_sum.a, e);
        s->ds[x] = ng_ref_convert(g->dk_sum.a, ds);
    }
    return n;
}

/* ---- dq (80). ---- */

/* The sum over the sections' groups for column c; ds is in s->weight at the keys' positions. */
static ng_value dq_column(const struct attention_grad_job *g, int64_t b, int64_t h, int64_t c,
                          int64_t n, struct ng_ref_gradient_scratch *s)
{
    const struct attention_job *f = &g->forward;
    const int64_t section = ng_ref_section(f);
    ng_value sum = ng_num_zero(false);
    for (int64_t from = 0, to; from < n; from = to) {
        const int64_t begin = s->list[from] / section * section;
        const int64_t end = ng_ref_cut_end(s->list, n, from, 0, section);
        to = ng_ref_cut_end(s->list, end, from, begin, param(g, NG_ATTENTION_PV_KEYS));
        const struct ng_ref_line ds = ng_ref_line_from(&s->weight, from);
        ng_ref_attention_column(f, &f->k, g->dq_sum.b, b, h, c, s->list + from, to - from,
                                &s->key);
        const ng_value part = ng_ref_multiply(&g->dq_sum, &ds, &s->key, to - from, NULL);
        sum = from ? ng_ref_add32(sum, part) : part;
    }
    return sum;
}

void ng_ref_attention_dq(const struct attention_grad_job *g, int64_t b, int64_t h, int64_t i,
                         struct ng_ref_gradient_scratch *s, uint32_t *code)
{
    const struct attention_job *f = &g->forward;
    const int64_t n = ng_ref_attention_weights(g, b, h, i, s);
    for (int64_t x = 0; x < n; x++)
        put(&s->weight, g->dq_sum.a, x, s->ds[x]);
    for (int64_t c = 0; c < f->d; c++)
        code[c] =
            result(g, &g->dq, n ? scaled(g, dq_column(g, b, h, c, n, s)) : ng_num_zero(false));
}

/* ---- dk and dv (81). ---- */

/* The codes of a query's line, kept as row `at` of a block. */
static void keep_line(uint32_t *row, const struct ng_ref_line *line, int64_t n)
{
    for (int64_t c = 0; c < n; c++)
        row[c] = ng_load_code(line->code, line->spec->store_bits, c);
}

/* One multiply: weights times column c of a block of n kept rows, added to *sum. */
static void add_block(const struct attention_multiply *m, const uint32_t *weight,
                      const uint32_t *rows, int64_t c, int64_t n, bool first,
                      struct ng_ref_gradient_scratch *s, ng_value *sum)
{
    for (int64_t x = 0; x < n; x++) {
        put(&s->weight, m->a, x, weight[x]);
        put(&s->key, m->b, x, rows[x * NG_REF_MAX_HEAD + c]);
    }
    const ng_value part = ng_ref_multiply(m, &s->weight, &s->key, n, NULL);
    *sum = first ? part : ng_ref_add32(*sum, part);
}

/* The queries [from, to) of head h for which key j is computed; how many. */
static int64_t load_block(const struct attention_grad_job *g, int64_t b, int64_t h, int64_t j,
                          int64_t from, int64_t to, struct ng_ref_gradient_scratch *s)
{
    const struct attention_job *f = &g->forward;
    int64_t n = 0;
    for (int64_t i = from; i < to; i++) {
        if (!ng_ref_computed(f, ng_ref_keys(f, b), i, j))
            continue;
        const struct query q = load_query(g, b, h, i, s);
        ng_value e, ds;
        if (q.gone)
            continue;
        find_pair(g, &q, j, s, &e, &ds);
        s->e[n] = ng_ref_convert(g->dv_sum.a, e);
        s->ds[n] = ng_ref_convert(g->dk_sum.a, ds);
        keep_line(s->q_rows + n * NG_REF_MAX_HEAD, &s->q, f->d);
        keep_line(s->dout_rows + n * NG_REF_MAX_HEAD, &s->dout, f->dv);
        n++;
    }
    return n;
}

int64_t ng_ref_query_block(const struct attention_job *g)
{
    enum {
        USUAL = 128 /* where skip_queries is 0 */
    };
    const int64_t block = g->set[NG_ATTENTION_SKIP_QUERIES].value;
    return block ? block < g->queries ? block : g->queries : USUAL;
}

void ng_ref_attention_dkv(const struct attention_grad_job *g, int64_t b, int64_t kv_head,
                          int64_t j, struct ng_ref_gradient_scratch *s, uint32_t *dk,
                          uint32_t *dv)
{
    const struct attention_job *f = &g->forward;
    const int64_t group = f->heads / f->kv_heads, block = ng_ref_query_block(f);
    ng_value k_sum[NG_REF_MAX_HEAD] = { { 0 } }, v_sum[NG_REF_MAX_HEAD] = { { 0 } };
    bool first = true;
    for (int64_t h = kv_head * group; j < ng_ref_keys(f, b) && h < (kv_head + 1) * group; h++)
        for (int64_t i = 0; i < f->queries; i += block) {
            const int64_t end = i + block < f->queries ? i + block : f->queries;
            const int64_t n = load_block(g, b, h, j, i, end, s);
            if (!n)
                continue;
            for (int64_t c = 0; g->dk.data && c < f->d; c++)
                add_block(&g->dk_sum, s->ds, s->q_rows, c, n, first, s, &k_sum[c]);
            for (int64_t c = 0; g->dv.data && c < f->dv; c++)
                add_block(&g->dv_sum, s->e, s->dout_rows, c, n, first, s, &v_sum[c]);
            first = false;
        }
    const bool scale = !first && param(g, NG_ATTENTION_SCALE_PLACE) != NG_PLACE_Q;
    for (int64_t c = 0; c < f->d; c++)
        dk[c] = result(g, &g->dk, scale ? scaled(g, k_sum[c]) : k_sum[c]);
    for (int64_t c = 0; c < f->dv; c++)
        dv[c] = result(g, &g->dv, v_sum[c]);
}

/* ---- The sink (82). ---- */

uint32_t ng_ref_attention_dsink(const struct attention_grad_job *g, int64_t h)
{
    const struct attention_job *f = &g->forward;
    const ng_value z = ng_ref_attention_value(f->op->sink, &h);
    ng_value sum = ng_num_zero(false);
    bool first = true;
    for (int64_t b = 0; b < f->batch; b++)
        for (int64_t i = 0; i < f->queries; i++) {
            const struct query q = find_query(g, b, h, i);
            if (q.gone)
                continue;
            const ng_value term =
                ng_ref_mul32(weight_of(g, &q, z), ng_ref_sub32(ng_num_zero(false), q.d));
            sum = first ? term : ng_ref_add32(sum, term);
            first = false;
        }
    return result(g, &g->dsink, sum);
}

/* ---- Scratch memory. ---- */

size_t ng_ref_gradient_scratch(const struct attention_grad_job *g, void *base,
                               struct ng_ref_gradient_scratch *s)
{
    const struct attention_job *f = &g->forward;
    const size_t block = (size_t)ng_ref_query_block(f);
    size_t n = (size_t)(f->keys > NG_REF_MAX_HEAD ? f->keys : NG_REF_MAX_HEAD);
    n = n > block ? n : block;
    const size_t codes = n * sizeof(uint32_t),
                 rows = block * NG_REF_MAX_HEAD * sizeof(uint32_t), list = n * sizeof(int64_t),
                 all = list + 4 * codes + 2 * codes + 2 * rows;
    if (!base)
        return (all + 63) / 64 * 64;
    uint8_t *at = base;
    s->list = (int64_t *)(void *)at, at += list;
    struct ng_ref_line *const line[] = { &s->q, &s->dout, &s->key, &s->weight };
    for (size_t i = 0; i < 4; i++) {
        *line[i] = (struct ng_ref_line){ .code = at };
        at += codes;
    }
    s->e = (uint32_t *)(void *)at, at += codes;
    s->ds = (uint32_t *)(void *)at, at += codes;
    s->q_rows = (uint32_t *)(void *)at, at += rows;
    s->dout_rows = (uint32_t *)(void *)at;
    return (all + 63) / 64 * 64;
}
