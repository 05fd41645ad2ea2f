/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row of attention: the softmax of one query. Numerics: docs/numerics.md, section 11.9; the
 * numbers in parentheses are its items.
 */
#include "ref_attention.h"

/* ---- FP32 operations, each one rounding to nearest even. ---- */

static ng_value rn(ng_value v)
{
    return ng_num_round_f32(v, NG_ROUND_TIES_TO_EVEN);
}

ng_value ng_ref_mul32(ng_value a, ng_value b)
{
    return rn(ng_num_mul(a, b));
}

ng_value ng_ref_add32(ng_value a, ng_value b)
{
    return rn(ng_num_add(a, b));
}

/* a * b + c */
static ng_value fma32(ng_value a, ng_value b, ng_value c)
{
    return rn(ng_num_add(ng_num_mul(a, b), c));
}

static ng_value negated(ng_value v)
{
    v.neg = !v.neg;
    return v;
}

ng_value ng_ref_sub32(ng_value a, ng_value b)
{
    return ng_ref_add32(a, negated(b));
}

static ng_value div32(ng_value a, ng_value b)
{
    const bool neg = a.neg != b.neg;
    if (ng_num_is_nan(a) || ng_num_is_nan(b))
        return ng_num_nan();
    if (ng_num_is_inf(a))
        return ng_num_is_inf(b) ? ng_num_nan() : ng_num_inf(neg);
    if (ng_num_is_inf(b))
        return ng_num_zero(neg);
    if (ng_num_is_zero(b))
        return ng_num_is_zero(a) ? ng_num_nan() : ng_num_inf(neg);
    return rn(ng_num_div(a, b));
}

ng_value ng_ref_function32(ng_function f, const ng_function_choice *how, ng_value x)
{
    return ng_num_f32(ng_ref_function(f, how, ng_num_f32_code(x)));
}

/* The larger; NaN if one is; +0 for any zero (67). */
static ng_value larger(ng_value a, ng_value b)
{
    if (ng_num_is_nan(a) || ng_num_is_nan(b))
        return ng_num_nan();
    const ng_value d = ng_ref_sub32(a, b); /* NaN for equal infinities */
    const ng_value m = d.neg && !ng_num_is_zero(d) ? b : a;
    return ng_num_is_zero(m) ? ng_num_zero(false) : m;
}

/* ---- Conversions of operands (63). ---- */

uint32_t ng_ref_convert(const ng_format_spec *to, ng_value v)
{
    const ng_cast cast = { .overflow = to->has_inf || to->has_nan ? NG_OVERFLOW_INF
                                                                  : NG_OVERFLOW_SATURATE };
    uint32_t code = 0;
    (void)ng_num_encode(to, &cast, v, 0, &code); /* rne; takes every value */
    return code;
}

static ng_value through(const ng_format_spec *f, ng_value v)
{
    return ng_num_decode(f, ng_ref_convert(f, v));
}

static ng_value through_param(const struct attention_job *g, ng_attention_param format,
                              ng_value v)
{
    return through(ng_format_info((ng_format)g->set[format].value), v);
}

/* One code more on a line. */
static void put(struct ng_ref_line *line, int64_t at, uint32_t code)
{
    ng_store_code(line->code, line->spec->store_bits, at, code);
}

ng_value ng_ref_line_value(const struct ng_ref_line *line, int64_t at)
{
    const ng_value v =
        ng_num_decode(line->spec, ng_load_code(line->code, line->spec->store_bits, at));
    return line->block ? ng_num_mul(v, ng_num_decode(ng_format_info(NG_E8M0),
                                                     line->scale[at / line->block]))
                       : v;
}

/* Section 3 with mx_rule, rne, block_special = element, over n values of `v`. */
static void put_blocks(const struct attention_job *g, struct ng_ref_line *line,
                       const ng_value *v, int64_t n)
{
    const ng_cast rne = { .overflow = NG_OVERFLOW_SATURATE };
    for (int64_t from = 0; from < n; from += line->block) {
        const int64_t to = from + line->block < n ? from + line->block : n;
        ng_value a = ng_num_zero(false);
        for (int64_t x = from; x < to; x++)
            if (v[x].cls == NG_CLASS_FINITE && ng_num_compare_magnitude(v[x], a) > 0)
                a = v[x];
        const uint32_t scale =
            ng_ref_mx_scale((ng_scale_rule)g->set[NG_ATTENTION_MX_RULE].value, line->spec, a);
        for (int64_t x = from; x < to; x++)
            put(line, x, ng_ref_mx_element(line->spec, &rne, scale, v[x], 0));
        line->scale[from / line->block] = (uint8_t)scale;
    }
}

/* The values to a line: plain, or in blocks if the line has them. */
static void fill_line(const struct attention_job *g, struct ng_ref_line *line,
                      const ng_value *v, int64_t n)
{
    ng_value input[NG_REF_MAX_HEAD];
    if (!line->block) {
        for (int64_t x = 0; x < n; x++)
            put(line, x, ng_ref_convert(line->spec, v[x]));
        return;
    }
    for (int64_t from = 0; from < n; from += NG_REF_MAX_HEAD) { /* whole blocks */
        const int64_t left = n - from < NG_REF_MAX_HEAD ? n - from : NG_REF_MAX_HEAD;
        struct ng_ref_line part = *line;
        part.code = (uint8_t *)line->code + from; /* blocked formats have a byte an element */
        part.scale = line->scale + from / line->block;
        for (int64_t x = 0; x < left; x++)
            input[x] = through_param(g, NG_ATTENTION_MX_INPUT, v[from + x]);
        put_blocks(g, &part, input, left);
    }
}

/* ---- Reading q, k and v. ---- */

void ng_ref_attention_locate(const struct attention_job *g, int64_t b, int64_t h, int64_t j,
                             int64_t *index)
{
    index[0] = b;
    index[1] = h / (g->heads / g->kv_heads);
    index[2] = j;
    if (g->op->page_table) {
        index[0] = g->op->page_table[b * g->op->pages + j / g->page_rows];
        index[2] = j % g->page_rows;
    }
}

static uint32_t code_at(const ng_tensor *t, const int64_t *index)
{
    return ng_load_code(t->data, ng_format_info(t->format)->store_bits, ng_offset_at(t, index));
}

static ng_value value_at(const ng_tensor *t, const int64_t *index)
{
    return ng_num_decode(ng_format_info(t->format), code_at(t, index));
}

ng_value ng_ref_attention_value(const ng_tensor *t, const int64_t *index)
{
    const ng_value v = value_at(t, index);
    if (!t->scale)
        return v;
    const uint8_t scale = ((const uint8_t *)t->scale)[ng_scale_offset(t, index)];
    return ng_num_mul(v, ng_num_decode(ng_format_info(NG_E8M0), scale));
}

/* An element as the multiply takes it: converted, or its code and scale as they are. */
static void copy_element(const ng_tensor *t, const int64_t *index, struct ng_ref_line *line,
                         int64_t at)
{
    put(line, at,
        line->spec->format == t->format ? code_at(t, index)
                                        : ng_ref_convert(line->spec, value_at(t, index)));
    if (t->scale)
        line->scale[at / line->block] = ((const uint8_t *)t->scale)[ng_scale_offset(t, index)];
}

void ng_ref_attention_q(const struct attention_job *g, int64_t b, int64_t h, int64_t i,
                        struct ng_ref_line *line)
{
    int64_t index[NG_MAX_RANK] = { b, h, i, 0 };
    const bool scaled = g->set[NG_ATTENTION_SCALE_PLACE].value == NG_PLACE_Q && g->op->scale;
    line->spec = g->scores.a;
    line->block = g->q.scale ? g->q.block : (uint32_t)g->set[NG_ATTENTION_Q_BLOCK].value;
    if (g->q.scale || (!scaled && !line->block)) {
        ng_ref_attention_copy(&g->q, index, g->scores.a, line);
        return;
    }
    ng_value v[NG_REF_MAX_HEAD];
    for (index[3] = 0; index[3] < g->d; index[3]++) {
        v[index[3]] = value_at(&g->q, index);
        if (scaled)
            v[index[3]] = ng_ref_mul32(v[index[3]], ng_num_f32(g->op->scale));
    }
    fill_line(g, line, v, g->d);
}

void ng_ref_attention_copy(const ng_tensor *t, int64_t *index, const ng_format_spec *spec,
                           struct ng_ref_line *line)
{
    line->spec = spec;
    line->block = t->scale ? t->block : 0;
    for (index[3] = 0; index[3] < t->dim[3]; index[3]++)
        copy_element(t, index, line, index[3]);
}

void ng_ref_attention_column(const struct attention_job *g, const ng_tensor *t,
                             const ng_format_spec *spec, int64_t b, int64_t h, int64_t c,
                             const int64_t *key, int64_t n, struct ng_ref_line *line)
{
    int64_t index[NG_MAX_RANK];
    line->spec = spec;
    line->block = t->scale ? t->block : 0;
    for (int64_t x = 0; x < n; x++) {
        ng_ref_attention_locate(g, b, h, key[x], index);
        index[3] = c;
        copy_element(t, index, line, x);
    }
}

/* ---- The multiply of section 4, one element. ---- */

static struct gemm_operand operand(const struct ng_ref_line *line, int64_t k)
{
    return (struct gemm_operand){ .data = line->code,
                                  .spec = line->spec,
                                  .k = 1,
                                  .scale = line->block ? line->scale : NULL,
                                  .scale_spec = ng_format_info(NG_E8M0),
                                  .scale_block = 1,
                                  .block = line->block,
                                  .depth = k };
}

/* c: what stands in the accumulate memory, or NULL. */
ng_value ng_ref_multiply(const struct attention_multiply *m, const struct ng_ref_line *a,
                         const struct ng_ref_line *b, int64_t k, const ng_value *c)
{
    const ng_gemm_op op = { .size = sizeof op };
    uint32_t c_code = c ? ng_num_f32_code(*c) : 0;
    const struct gemm_job job = { .op = &op,
                                  .rule = m->rule,
                                  .mode = m->mode,
                                  .acc = NG_F32,
                                  .a = operand(a, k),
                                  .b = operand(b, k),
                                  .c = { .data = c ? &c_code : NULL,
                                         .spec = ng_format_info(NG_F32) },
                                  .d = { .spec = ng_format_info(NG_F32) },
                                  .m = 1,
                                  .n = 1,
                                  .k = k,
                                  .elements = 1 };
    return ng_num_f32(ng_ref_gemm_element(&job, 0, 0, NULL));
}

/* ---- Which keys there are, are visible, are computed (60, 61, 65). ---- */

struct range ng_ref_visible(const struct attention_job *g, int64_t keys, int64_t i)
{
    const ng_attention_op *op = g->op;
    const int64_t self =
        i + (op->align == NG_ALIGN_BOTTOM_RIGHT ? keys - g->queries : 0); /* the last it sees */
    struct range r = { 0, keys };
    if (!op->causal && !op->window)
        return r;
    if (self < keys)
        r.end = self + 1;
    if (op->window && self - op->window + 1 > 0)
        r.begin = self - op->window + 1;
    if (r.end <= r.begin)
        r = (struct range){ 0, 0 };
    return r;
}

int64_t ng_ref_keys(const struct attention_job *g, int64_t b)
{
    return g->op->kv_length ? g->op->kv_length[b] : g->keys;
}

bool ng_ref_computed(const struct attention_job *g, int64_t keys, int64_t i, int64_t j)
{
    const int64_t width = g->set[NG_ATTENTION_SKIP_KEYS].value,
                  group = g->set[NG_ATTENTION_SKIP_QUERIES].value;
    if (!width)
        return true;
    const int64_t tile = j / width * width, first = group ? i / group * group : 0;
    const int64_t last =
        group && first + group < g->queries ? first + group : g->queries; /* one past */
    for (int64_t x = first; x < last; x++) {
        const struct range seen = ng_ref_visible(g, keys, x);
        if (seen.begin < seen.end && seen.begin < tile + width && seen.end > tile)
            return true;
    }
    return false;
}

/* ---- Scores (64). ---- */

/* tanh(s / c) */
static ng_value cap_tanh(const struct attention_job *g, ng_value s)
{
    const ng_value c = ng_num_f32(g->op->softcap);
    const ng_value one = { .sig = 1 };
    const ng_value t = g->set[NG_ATTENTION_CAP_ARGUMENT].value == NG_DIVISION_DIVIDE
                           ? div32(s, c)
                           : ng_ref_mul32(s, div32(one, c));
    return ng_ref_function32(NG_FN_TANH, &g->tanh, t);
}

ng_value ng_ref_score(const struct attention_job *g, ng_value x, bool masked, ng_value *y)
{
    const bool scaled =
        g->op->scale && g->set[NG_ATTENTION_SCALE_PLACE].value == NG_PLACE_SCORES;
    const bool mask_first =
        g->set[NG_ATTENTION_SCORE_ORDER].value == NG_SCORE_MASK_SCALE && !g->op->softcap;
    const ng_value fill = through_param(g, NG_ATTENTION_SCORE_FORMAT,
                                        ng_num_f32((uint32_t)g->set[NG_ATTENTION_MASK].value));
    if (masked && !mask_first)
        return fill;
    ng_value s = masked ? fill : through_param(g, NG_ATTENTION_SCORE_FORMAT, x);
    if (scaled)
        s = ng_ref_mul32(s, ng_num_f32(g->op->scale));
    if (!g->op->softcap)
        return s;
    *y = cap_tanh(g, s);
    return ng_ref_mul32(ng_num_f32(g->op->softcap), *y);
}

/* ---- Exponentials (68). ---- */

static bool base_two(const struct attention_job *g)
{
    return g->set[NG_ATTENTION_EXP_BASE].value == NG_EXP_BASE_2;
}

ng_value ng_ref_in_base(const struct attention_job *g, ng_value v)
{
    return base_two(g) ? ng_ref_mul32(v, ng_num_f32(0x3FB8AA3Bu /* RN(log2 e) */)) : v;
}

static ng_value power(const struct attention_job *g, ng_value d)
{
    return ng_ref_function32(base_two(g) ? NG_FN_EXP2 : NG_FN_EXP, &g->exp, d);
}

ng_value ng_ref_inner_scale(const struct attention_job *g)
{
    return ng_ref_in_base(g, g->op->scale ? ng_num_f32(g->op->scale) : (ng_value){ .sig = 1 });
}

/* E(x; m) */
ng_value ng_ref_exponential(const struct attention_job *g, ng_value x, ng_value m)
{
    if (g->set[NG_ATTENTION_SCALE_PLACE].value != NG_PLACE_EXP)
        return power(g, ng_ref_in_base(g, ng_ref_sub32(x, m)));
    const ng_value c = ng_ref_inner_scale(g);
    return power(g, fma32(x, c, negated(ng_ref_mul32(m, c))));
}

/* E(x; lse) of the backward (79) */
ng_value ng_ref_weight(const struct attention_job *g, ng_value x, ng_value lse)
{
    if (g->set[NG_ATTENTION_SCALE_PLACE].value != NG_PLACE_EXP)
        return ng_ref_exponential(g, x, lse);
    return power(g, fma32(x, ng_ref_inner_scale(g), negated(ng_ref_in_base(g, lse))));
}

/* ---- A row. ---- */

/* Its place, and what it carries from section to section. */
struct row {
    const struct attention_job *g;
    const ng_attention_trace *trace;
    int64_t b, h, i;
    int64_t keys; /* T */
    struct range visible;
    struct ng_ref_attention_scratch *s;
    const ng_value *sink; /* its logit, or NULL */
    ng_value m, l, *o;
    bool begun; /* a section has been */
};

static void tell(const struct row *r, ng_attention_trace_kind kind, int64_t index,
                 int64_t column, ng_value v)
{
    if (!r->trace)
        return;
    const ng_attention_step step = {
        .kind = kind, .index = index, .column = column, .value = v
    };
    r->trace->step(r->trace->user, &step);
}

static int32_t param(const struct row *r, ng_attention_param p)
{
    return r->g->set[p].value;
}

int64_t ng_ref_cut_end(const int64_t *key, int64_t n, int64_t at, int64_t start, int64_t width)
{
    if (!width)
        return n;
    const int64_t cut = (key[at] - start) / width;
    while (at < n && (key[at] - start) / width == cut)
        at++;
    return at;
}

int64_t ng_ref_list_keys(const struct attention_job *g, int64_t keys, int64_t i, int64_t from,
                         int64_t to, int64_t *key)
{
    const int64_t width = g->set[NG_ATTENTION_SKIP_KEYS].value;
    int64_t n = 0;
    bool computed = true;
    for (int64_t j = from; j < to && j < keys; j++) {
        if (j == from || (width && j % width == 0))
            computed = ng_ref_computed(g, keys, i, j);
        if (computed)
            key[n++] = j;
    }
    return n;
}

static void find_scores(struct row *r, const int64_t *key, int64_t n)
{
    for (int64_t x = 0; x < n; x++) {
        const bool masked = key[x] < r->visible.begin || key[x] >= r->visible.end;
        int64_t at[NG_MAX_RANK];
        ng_ref_attention_locate(r->g, r->b, r->h, key[x], at);
        ng_ref_attention_copy(&r->g->k, at, r->g->scores.b, &r->s->key_line);
        const ng_value product =
            ng_ref_multiply(&r->g->scores, &r->s->q_line, &r->s->key_line, r->g->d, NULL);
        ng_value y;
        r->s->e[x] = ng_ref_score(r->g, product, masked, &y);
        tell(r, NG_ATTENTION_TRACE_SCORE, key[x], 0, r->s->e[x]);
    }
}

/* m_new (67) */
static ng_value find_max(const struct row *r, int64_t n)
{
    ng_value m = r->begun ? r->m : ng_num_f32((uint32_t)param(r, NG_ATTENTION_MAX_INIT));
    for (int64_t x = 0; x < n; x++)
        m = larger(m, r->s->e[x]);
    if (!r->begun && r->sink && param(r, NG_ATTENTION_SINK_PLACE) == NG_SINK_FIRST)
        m = larger(m, *r->sink);
    return m;
}

/* Scores become exponentials, and P (68, 69). */
static void find_p(struct row *r, const int64_t *key, int64_t n)
{
    for (int64_t x = 0; x < n; x++) {
        r->s->e[x] = ng_ref_exponential(r->g, r->s->e[x], r->m);
        tell(r, NG_ATTENTION_TRACE_EXP, key[x], 0, r->s->e[x]);
    }
    fill_line(r->g, &r->s->p_line, r->s->e, n);
    for (int64_t x = 0; r->trace && x < n; x++)
        tell(r, NG_ATTENTION_TRACE_P, key[x], 0, ng_ref_line_value(&r->s->p_line, x));
}

/* ---- The denominator (69). ---- */

struct ng_ref_line ng_ref_line_from(const struct ng_ref_line *line, int64_t at)
{
    struct ng_ref_line rest = *line;
    rest.code = (uint8_t *)line->code + at * (int64_t)(line->spec->store_bits / 8);
    if (line->block)
        rest.scale += at / line->block;
    return rest;
}

static ng_value sequential_sum(const ng_value *v, int64_t n)
{
    ng_value a = v[0];
    for (int64_t x = 1; x < n; x++)
        a = ng_ref_add32(a, v[x]);
    return a;
}

/* In place. */
static ng_value tree_sum(ng_value *v, int64_t n)
{
    for (; n > 1; n = (n + 1) / 2) {
        for (int64_t x = 0; x < n / 2; x++)
            v[x] = ng_ref_add32(v[2 * x], v[2 * x + 1]);
        if (n % 2)
            v[n / 2] = v[n - 1];
    }
    return v[0];
}

static ng_value ones_sum(struct row *r, int64_t from, int64_t n)
{
    struct ng_ref_line *ones = &r->s->key_line;
    const struct ng_ref_line p = ng_ref_line_from(&r->s->p_line, from);
    const ng_value one = { .sig = 1 };
    ones->spec = p.spec;
    ones->block = p.block;
    for (int64_t x = 0; x < n; x++)
        put(ones, x, ng_ref_convert(ones->spec, one));
    for (int64_t x = 0; ones->block && x < n; x += ones->block)
        ones->scale[x / ones->block] = 127; /* 2^0 */
    return ng_ref_multiply(&r->g->ones, &p, ones, n, NULL);
}

static ng_value tile_sum(struct row *r, int64_t from, int64_t to)
{
    ng_value *v = r->s->summand;
    if (param(r, NG_ATTENTION_SUM_ORDER) == NG_SUM_ONES)
        return ones_sum(r, from, to - from);
    for (int64_t x = from; x < to; x++)
        v[x - from] = param(r, NG_ATTENTION_SUM_SOURCE) == NG_SUM_OF_EXP
                          ? r->s->e[x]
                          : ng_ref_line_value(&r->s->p_line, x);
    return param(r, NG_ATTENTION_SUM_ORDER) == NG_SUM_TREE ? tree_sum(v, to - from)
                                                           : sequential_sum(v, to - from);
}

/* lambda: keys is not empty, or the sink is there. */
static ng_value section_sum(struct row *r, const int64_t *key, int64_t n)
{
    const int64_t width = param(r, NG_ATTENTION_KEY_TILE);
    ng_value sum = ng_num_zero(false);
    for (int64_t from = 0, to; from < n; from = to) {
        to = ng_ref_cut_end(key, n, from, 0, width);
        const ng_value t = tile_sum(r, from, to);
        tell(r, NG_ATTENTION_TRACE_TILE_SUM, key[from] / width, 0, t);
        sum = from ? ng_ref_add32(sum, t) : t;
    }
    if (r->begun || !r->sink || param(r, NG_ATTENTION_SINK_PLACE) != NG_SINK_FIRST)
        return sum;
    const ng_value e = ng_ref_exponential(r->g, *r->sink, r->m);
    return n ? ng_ref_add32(sum, e) : e;
}

/* ---- P times v, and the running output (70, 71). ---- */

/* omega of column c; `start` of the accumulate memory, or NULL. */
static ng_value section_pv(struct row *r, int64_t c, const int64_t *key, int64_t n,
                           int64_t begin, const ng_value *start)
{
    ng_value sum = ng_num_zero(false);
    for (int64_t from = 0, to; from < n; from = to) {
        to = ng_ref_cut_end(key, n, from, begin, param(r, NG_ATTENTION_PV_KEYS));
        const struct ng_ref_line p = ng_ref_line_from(&r->s->p_line, from);
        ng_ref_attention_column(r->g, &r->g->v, r->g->pv.b, r->b, r->h, c, key + from,
                                to - from, &r->s->key_line);
        const ng_value part = ng_ref_multiply(&r->g->pv, &p, &r->s->key_line, to - from, start);
        sum = from ? ng_ref_add32(sum, part) : part;
    }
    return sum;
}

static void update_output(struct row *r, int64_t section, ng_value alpha, const int64_t *key,
                          int64_t n, int64_t begin)
{
    const int32_t update = param(r, NG_ATTENTION_UPDATE);
    for (int64_t c = 0; c < r->g->dv; c++) {
        const ng_value rescaled = r->begun ? ng_ref_mul32(r->o[c], alpha) : ng_num_zero(false);
        const bool inside = r->begun && update == NG_UPDATE_ACCUMULATOR;
        const ng_value w = section_pv(r, c, key, n, begin, inside ? &rescaled : NULL);
        tell(r, NG_ATTENTION_TRACE_PV, section, c, w);
        if (!r->begun || inside)
            r->o[c] = w;
        else
            r->o[c] =
                update == NG_UPDATE_FMA ? fma32(r->o[c], alpha, w) : ng_ref_add32(rescaled, w);
    }
}

static void tell_running(const struct row *r, int64_t section)
{
    tell(r, NG_ATTENTION_TRACE_SUM, section, 0, r->l);
    for (int64_t c = 0; r->trace && c < r->g->dv; c++)
        tell(r, NG_ATTENTION_TRACE_OUTPUT, section, c, r->o[c]);
}

/* One section: keys [begin, ...) of which n are computed. */
static void take_section(struct row *r, int64_t section, int64_t begin, const int64_t *key,
                         int64_t n, bool last)
{
    ng_value alpha = ng_num_zero(false);
    find_scores(r, key, n);
    const ng_value m = find_max(r, n);
    if (r->begun) {
        alpha = ng_ref_exponential(r->g, r->m, m);
        tell(r, NG_ATTENTION_TRACE_ALPHA, section, 0, alpha);
    }
    r->m = m;
    tell(r, NG_ATTENTION_TRACE_MAX, section, 0, m);
    find_p(r, key, n);
    const ng_value sum = section_sum(r, key, n);
    if (!r->begun)
        r->l = sum;
    else
        r->l = param(r, NG_ATTENTION_UPDATE) == NG_UPDATE_FMA
                   ? fma32(r->l, alpha, sum)
                   : ng_ref_add32(ng_ref_mul32(r->l, alpha), sum);
    update_output(r, section, alpha, key, n, begin);
    r->begun = true;
    if (!last && param(r, NG_ATTENTION_O_FORMAT) == NG_OUTPUT_AS_Q)
        for (int64_t c = 0; c < r->g->dv; c++)
            r->o[c] = through(ng_format_info(r->g->q.format), r->o[c]);
    tell_running(r, section);
}

/* (66) */
int64_t ng_ref_section(const struct attention_job *g)
{
    const int64_t width = g->set[NG_ATTENTION_SECTION].value;
    return width && g->keys > g->set[NG_ATTENTION_SECTION_FROM].value ? width : g->keys;
}

static void take_sections(struct row *r)
{
    const int64_t width = ng_ref_section(r->g);
    int64_t last = r->keys - 1; /* the last computed key */
    while (last >= 0 && !ng_ref_computed(r->g, r->keys, r->i, last))
        last--;
    for (int64_t n = 0; n * width <= last; n++) {
        const int64_t found =
            ng_ref_list_keys(r->g, r->keys, r->i, n * width, (n + 1) * width, r->s->key);
        if (found)
            take_section(r, n, n * width, r->s->key, found, n == last / width);
    }
    if (!r->begun && r->sink && param(r, NG_ATTENTION_SINK_PLACE) == NG_SINK_FIRST)
        take_section(r, 0, 0, r->s->key, 0, true);
}

/* (72) */
static void take_late_sink(struct row *r)
{
    if (!r->sink || param(r, NG_ATTENTION_SINK_PLACE) != NG_SINK_LAST)
        return;
    const ng_value m = larger(r->m, *r->sink);
    const ng_value alpha = ng_ref_exponential(r->g, r->m, m);
    r->l = ng_ref_add32(ng_ref_mul32(r->l, alpha), ng_ref_exponential(r->g, *r->sink, m));
    for (int64_t c = 0; c < r->g->dv; c++)
        r->o[c] = ng_ref_mul32(r->o[c], alpha);
    r->m = m;
}

/* masked_rows = zero (74). */
static void zero_row(struct row *r)
{
    r->m = r->sink ? *r->sink : ng_num_f32((uint32_t)param(r, NG_ATTENTION_MAX_INIT));
    r->l = r->sink ? (ng_value){ .sig = 1 } : ng_num_zero(false);
    for (int64_t c = 0; c < r->g->dv; c++)
        r->o[c] = ng_num_zero(false);
}

/* ---- Results (73, 75). ---- */

static ng_value normalised(const struct row *r, ng_value o)
{
    if (param(r, NG_ATTENTION_NORMALISE) == NG_DIVISION_DIVIDE)
        return div32(o, r->l);
    return ng_ref_mul32(o, ng_ref_function32(NG_FN_RECIPROCAL, &r->g->reciprocal, r->l));
}

static ng_value log_sum_exp(const struct row *r)
{
    const ng_function_choice cr = { .kind = NG_FUNCTION_CR };
    ng_value m = r->m;
    if (param(r, NG_ATTENTION_SCALE_PLACE) == NG_PLACE_EXP && r->g->op->scale)
        m = ng_ref_mul32(m, ng_num_f32(r->g->op->scale));
    return ng_ref_add32(m, ng_ref_function32(NG_FN_LOG, &cr, r->l));
}

void ng_ref_attention_write(const struct attention_job *g, int64_t b, int64_t h, int64_t i,
                            int64_t c, ng_value v, const ng_attention_trace *trace,
                            struct ng_ref_attention_result *out)
{
    const ng_format_spec *f = ng_format_info(g->o.format);
    const int64_t at = ((b * g->heads + h) * g->queries + i) * g->dv + c;
    const uint32_t word =
        g->op->out.round == NG_ROUND_STOCHASTIC ? ng_stream_word(g->out_words, at) : 0;
    (void)ng_num_encode(f, &g->op->out, v, word, &out->code[c]); /* checked */
    const struct row told = { .trace = trace };
    tell(&told, NG_ATTENTION_TRACE_RESULT, 0, c, ng_num_decode(f, out->code[c]));
}

static void write_result(struct row *r, bool zero, struct ng_ref_attention_result *out)
{
    for (int64_t c = 0; c < r->g->dv; c++)
        ng_ref_attention_write(r->g, r->b, r->h, r->i, c,
                               zero ? r->o[c] : normalised(r, r->o[c]), r->trace, out);
    const ng_value lse = log_sum_exp(r);
    tell(r, NG_ATTENTION_TRACE_LSE, 0, 0, lse);
    out->lse = ng_num_f32_code(lse);
    out->max = ng_num_f32_code(r->m);
    out->sum = ng_num_f32_code(r->l);
}

static ng_value sink_of(const struct attention_job *g, int64_t h)
{
    return value_at(g->op->sink, &h);
}

void ng_ref_attention_row(const struct attention_job *g, int64_t b, int64_t h, int64_t i,
                          struct ng_ref_attention_scratch *s, const ng_attention_trace *trace,
                          struct ng_ref_attention_result *out)
{
    if (g->set[NG_ATTENTION_ARITHMETIC].value == NG_ARITHMETIC_REAL) {
        ng_ref_attention_exact(g, b, h, i, s, trace, out);
        return;
    }
    const ng_value sink = g->op->sink ? sink_of(g, h) : ng_num_zero(false);
    ng_value o[NG_REF_MAX_HEAD] = { { 0 } };
    struct row r = { .g = g,
                     .trace = trace,
                     .b = b,
                     .h = h,
                     .i = i,
                     .keys = ng_ref_keys(g, b),
                     .s = s,
                     .sink = g->op->sink ? &sink : NULL,
                     .m = ng_num_f32((uint32_t)g->set[NG_ATTENTION_MAX_INIT].value),
                     .o = o };
    r.visible = ng_ref_visible(g, r.keys, i);
    const bool zero = g->op->masked_rows == NG_MASKED_ZERO && r.visible.begin == r.visible.end;
    if (zero) {
        zero_row(&r);
    } else {
        s->p_line.spec = g->pv.a;
        s->p_line.block = (uint32_t)g->set[NG_ATTENTION_P_BLOCK].value;
        ng_ref_attention_q(g, b, h, i, &s->q_line);
        take_sections(&r);
        take_late_sink(&r);
    }
    write_result(&r, zero, out);
}

/* ---- Scratch memory. ---- */

static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Lays the parts out behind `base`, or only counts where it is NULL. */
size_t ng_ref_attention_scratch(const struct attention_job *g, void *base,
                                struct ng_ref_attention_scratch *s)
{
    const size_t n = (size_t)(g->keys > NG_REF_MAX_HEAD ? g->keys : NG_REF_MAX_HEAD);
    const size_t values = aligned(n * sizeof(ng_value)), codes = aligned(n * sizeof(uint32_t)),
                 keys = aligned(n * sizeof(int64_t)), scales = aligned(n);
    const bool real = g->set[NG_ATTENTION_ARITHMETIC].value == NG_ARITHMETIC_REAL;
    const size_t all =
        real ? aligned(ng_ref_real_bytes(g)) : 2 * values + keys + 3 * (codes + scales);
    if (!base)
        return all;
    *s = (struct ng_ref_attention_scratch){ .real = base };
    if (real)
        return all;
    uint8_t *at = base;
    s->e = (ng_value *)(void *)at, at += values;
    s->summand = (ng_value *)(void *)at, at += values;
    s->key = (int64_t *)(void *)at, at += keys;
    struct ng_ref_line *const line[] = { &s->q_line, &s->key_line, &s->p_line };
    for (size_t i = 0; i < 3; i++) {
        line[i]->code = at, at += codes;
        line[i]->scale = at, at += scales;
    }
    return all;
}
