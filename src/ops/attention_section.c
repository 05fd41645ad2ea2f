/* SPDX-License-Identifier: Apache-2.0 */
#include "attention_section.h"

#include <math.h>
#include <string.h>

#include "../../kernels/bf16.h"

/* ---- Items. ---- */

static int64_t items_of(const struct attention_plan *p, int64_t queries, int64_t lines,
                        int64_t each)
{
    return div_up(div_up(queries * p->group, lines), each);
}

int64_t ng_attention_items(const struct attention_plan *p, int64_t lines, int64_t each)
{
    const int64_t together = attention_together(p);
    return div_up(p->g->queries, together) * items_of(p, together, lines, each);
}

bool ng_attention_item(const struct attention_plan *p, int64_t lines, int64_t each, size_t task,
                       struct attention_item *item)
{
    const int64_t together = attention_together(p), most = items_of(p, together, lines, each),
                  i0 = (int64_t)task / most * together,
                  i1 = min64(p->g->queries, i0 + together), rows = (i1 - i0) * p->group,
                  panels = div_up(rows, lines), items = items_of(p, i1 - i0, lines, each),
                  number = (int64_t)task % most;
    if (number >= items)
        return false;
    const int64_t from = rows * (panels * number / items) / panels,
                  to = rows * (panels * (number + 1) / items) / panels;
    *item = (struct attention_item){
        .first = i0 * p->group + from, .rows = to - from, .i0 = i0, .i1 = i1
    };
    return true;
}

/* ---- A row's beginning. ---- */

bool ng_attention_begin_row(const struct attention_head *h, int64_t row, struct range *sees,
                            float *m, float *sink)
{
    const struct attention_plan *p = h->w->p;
    const struct attention_job *g = p->g;
    const bool first = attention_setting(p, NG_ATTENTION_SINK_PLACE) == NG_SINK_FIRST;
    *sees = ng_ref_visible(g, h->keys, attention_query(p, row));
    *m = as_float((uint32_t)attention_setting(p, NG_ATTENTION_MAX_INIT));
    if (!g->op->sink)
        return sees->begin < sees->end;
    *sink = h->w->sink[attention_head_of(p, h->kv_head, row)];
    if (isfinite(*sink) && first && *sink > *m)
        *m = *sink;
    return isfinite(*sink) && sees->begin < sees->end;
}

static void convert_line(const struct attention_plan *p, const struct cast_job *j,
                         const void *from, void *to)
{
    if (j->from == j->to)
        memcpy(to, from, (size_t)p->g->d * (j->to->store_bits / 8));
    else
        p->cast->convert(j, from, NULL, p->g->d, to);
}

/* d numbers from `from` on as the multiply takes them (63). */
static void convert_query(const struct attention_plan *p, const struct attention_desk *desk,
                          const char *from, const struct ng_ref_line *to)
{
    const int64_t d = p->g->d, whole = attention_whole(d);
    const bool blocks = attention_setting(p, NG_ATTENTION_Q_BLOCK) != 0;
    float *line = desk->q_line;
    memset(line + whole - ATTENTION_GROUP, 0, ATTENTION_GROUP * sizeof *line);
    convert_line(p, &p->q_cast[0], from, line);
    if (p->g->op->scale && attention_setting(p, NG_ATTENTION_SCALE_PLACE) == NG_PLACE_Q)
        p->kernel->combine(ATTENTION_TIMES, whole, as_float(p->g->op->scale), NULL, line);
    convert_line(p, &p->q_cast[1], line, blocks ? desk->q_input : to->code);
    const struct cast_rows c = { .src = desk->q_input,
                                 .dst = to->code,
                                 .scale = to->scale,
                                 .rows = 1,
                                 .n = d,
                                 .scale_step = 1 };
    if (blocks)
        p->cast->quantize(&p->q_cast[2], CAST_ALONG, &c);
}

void ng_attention_take_query(const struct attention_head *h, const struct attention_desk *d,
                             int64_t row, struct ng_ref_line *to)
{
    const struct attention_plan *p = h->w->p;
    const int64_t at[NG_MAX_RANK] = { h->b, attention_head_of(p, h->kv_head, row),
                                      attention_query(p, row), 0 };
    const char *from = (const char *)p->g->q.data +
                       ng_offset_at(&p->g->q, at) * p->q_cast[0].from->store_bits / 8;
    if (ng_attention_plain_queries(p))
        memcpy(to->code, from, (size_t)p->g->d * (p->g->scores.a->store_bits / 8));
    else if (p->q_by_kernels)
        convert_query(p, d, from, to);
    else
        ng_ref_attention_q(p->g, at[0], at[1], at[2], to);
}

/* ---- A section. ---- */

struct section ng_attention_section(const struct attention_plan *p, int64_t begin, int64_t end,
                                    int64_t from, int64_t to, bool last)
{
    const int64_t group = p->pv.length, tile = p->ones.kernel ? p->ones.length : group;
    return (struct section){ .begin = begin,
                             .from = from,
                             .to = to,
                             .end = end,
                             .base = min64(from / group * group, from / tile * tile),
                             .last = last };
}

uint64_t ng_attention_maxima(const struct attention_plan *p, const struct section *s, int n,
                             const int32_t *begin, const int32_t *end, const float *best,
                             bool begun, float *m, float *alpha)
{
    float new[ATTENTION_WIDE];
    uint64_t lost = 0;
    for (int i = 0; i < n; i++) {
        new[i] = best[i] > m[i] ? best[i] : m[i];
        const bool masks = end[i] - begin[i] < s->end - s->begin;
        if (!isfinite(new[i]) || (masks && !ng_attention_fill_vanishes(p, new[i])))
            lost |= UINT64_C(1) << i;
    }
    if (begun)
        p->kernel->factors(p->g, n, m, new, alpha);
    memcpy(m, new, (size_t)n * sizeof *m);
    return lost;
}

static void add_lanes(const float *x, int64_t lanes, float *sum)
{
    for (int64_t r = 0; r < lanes; r++)
        sum[r] = sum[r] + x[r];
}

/* One after another, key tiles increasing. */
static void sum_in_order(int64_t pieces, const float *piece, int64_t lanes, float *sum)
{
    memcpy(sum, piece, (size_t)lanes * sizeof *sum);
    for (int64_t i = 1; i < pieces; i++)
        add_lanes(piece + i * lanes, lanes, sum);
}

/* The foot (4.1, step 5): `n` chains, in place; the first becomes the sum. */
static void add_chains(bool tree, int32_t n, int64_t lanes, float *chain)
{
    if (!tree)
        for (int32_t i = 1; i < n; i++)
            add_lanes(chain + i * lanes, lanes, chain);
    for (int32_t step = 1; tree && step < n; step *= 2)
        for (int32_t i = 0; i < n; i += 2 * step)
            add_lanes(chain + (i + step) * lanes, lanes, chain + i * lanes);
}

/* Chains of keys from `begin` on that end at `end`; +0 where the section has none of them. */
static void take_chains(const struct attention_plan *p, const struct section *s,
                        const float *piece, int64_t begin, int64_t end, int64_t lanes,
                        float *chain)
{
    const int64_t length = p->ones_chain;
    const size_t bytes = (size_t)lanes * sizeof *chain;
    for (int32_t i = 0; i < p->ones.full.chains; i++, begin += length, chain += lanes) {
        if (begin < end && begin < s->to && begin + length > s->from)
            memcpy(chain, piece + (begin / length - s->from / length) * lanes, bytes);
        else
            memset(chain, 0, bytes);
    }
}

/* The multiply by ones without a multiply: products are P itself, so its chains are sums of
 * neighbours, and zeros of what is left out change none. */
static void sum_chains(const struct attention_plan *p, const struct section *s,
                       const float *piece, int64_t lanes, float *sum)
{
    const struct attention_product *m = &p->ones;
    const bool tree = p->g->ones.rule->set[NG_PARAM_COMBINE].value == NG_COMBINE_TREE;
    float chain[ONES_CHAINS * ATTENTION_WIDE], memory[ATTENTION_WIDE];
    for (int64_t t = s->from / m->length; t * m->length < s->to; t++) {
        const int64_t end = (t + 1) * m->length;
        memset(memory, 0, sizeof memory);
        for (int64_t k = t * m->length; k < end; k += m->tile) {
            take_chains(p, s, piece, k, end, lanes, chain);
            add_chains(tree, m->full.chains, lanes, chain);
            add_lanes(chain, lanes, memory);
        }
        if (t * m->length <= s->from)
            memcpy(sum, memory, (size_t)lanes * sizeof *sum);
        else
            add_lanes(memory, lanes, sum);
    }
}

void ng_attention_sum(const struct attention_plan *p, const struct section *s,
                      const float *piece, int64_t lanes, float *sum)
{
    if (p->ones.kernel)
        sum_chains(p, s, piece, lanes, sum);
    else
        sum_in_order(attention_pieces_in(s, attention_piece(p)), piece, lanes, sum);
}

/* Of one of them, where keys end at `to`. */
static int64_t read_end(const struct attention_product *m, int64_t to)
{
    const int64_t group = (to - 1) / m->length * m->length,
                  unit = m->full.whole ? m->length : m->tile;
    return group + min64(m->length, div_up(to - group, unit) * unit);
}

int64_t ng_attention_read_end(const struct attention_plan *p, const struct section *s)
{
    const int64_t pv = read_end(&p->pv, s->to),
                  read = p->ones.kernel ? max64(pv, read_end(&p->ones, s->to)) : pv;
    return min64(read + SPARE, s->base + ng_attention_p_line(p));
}

bool ng_attention_drops_tiles(const struct attention_plan *p, const struct section *s)
{
    const int64_t first = s->from / p->pv.length * p->pv.length,
                  skipped = (s->from - first) / p->pv.tile * p->pv.tile,
                  group = s->to / p->pv.length * p->pv.length,
                  taken = div_up(s->to - group, p->pv.tile) * p->pv.tile;
    return first + skipped > s->begin || group + min64(taken, p->pv.length) < s->end;
}

void ng_attention_store_output(const struct attention_plan *p, float *o, int64_t n)
{
    const ng_format_spec *f = ng_format_info(p->g->q.format);
    for (int64_t c = 0; f->format != NG_F32 && c < n; c++) {
        const uint32_t u = as_pattern(o[c]);
        o[c] =
            as_float(f->format == NG_BF16
                         ? bf16_nearest(u)
                         : ng_num_f32_code(ng_num_decode(f, ng_ref_convert(f, ng_num_f32(u)))));
    }
}

/* ---- A group of keys in one accumulate memory. ---- */

struct gemm_walk ng_attention_walk_to(const struct gemm_walk *w, int64_t to)
{
    struct gemm_walk some = *w;
    if (!w->whole)
        some.used = w->start[to];
    return some;
}

struct group ng_attention_group(const struct attention_head *h, const struct section *s,
                                int64_t number, bool accumulates)
{
    const struct attention_product *m = &h->w->p->pv;
    struct group g = { .begin = number * m->length };
    g.walk = ng_attention_walk(m, &h->w->tail[h->b].pv, number, h->keys, &g.n);
    g.from = max64(g.begin, s->from) - g.begin;
    g.to = min64(s->to, g.begin + g.n) - g.begin;
    g.end = g.walk->whole ? g.walk->depth : div_up(g.to, m->tile);
    g.partial = g.walk->whole && (g.from > 0 || g.to < g.n);
    /* a whole chain ends before anything is added to it */
    g.inside = accumulates && !g.walk->whole;
    g.apart = !g.inside && (g.begin > s->from || accumulates);
    return g;
}

/* ---- Rows' ends (72, 73, 75). ---- */

static void store_statistic(const ng_tensor *t, const int64_t *index, uint32_t pattern)
{
    if (t->data)
        ng_store_code(t->data, 32, ng_offset_at(t, index), pattern);
}

/* Inf - Inf and 0 * Inf, where m times the scale, or an exponential under a scale, overflows:
 * a CPU's NaN has a sign. */
static uint32_t one_nan(float x)
{
    return isnan(x) ? 0x7FC00000u : as_pattern(x);
}

static void store_statistics(const struct attention_plan *p, const int64_t *index, float m,
                             float l)
{
    const struct attention_job *g = p->g;
    const ng_function_choice cr = { .kind = NG_FUNCTION_CR };
    float scaled = m;
    if (attention_setting(p, NG_ATTENTION_SCALE_PLACE) == NG_PLACE_EXP && g->op->scale)
        scaled = m * as_float(g->op->scale);
    store_statistic(&g->max, index, as_pattern(m + 0.0F)); /* a zero is +0 */
    store_statistic(&g->sum, index, one_nan(l));
    if (!g->lse.data)
        return;
    const float lse = scaled + as_float(ng_ref_function(NG_FN_LOG, &cr, as_pattern(l)));
    store_statistic(&g->lse, index, one_nan(lse));
}

/* To begin a conversion takes as long as a row's: rows share one, unless each has random words
 * or they do not follow each other. */
static void store_rows(const struct attention_head *h, const struct attention_desk *d,
                       int64_t first, int64_t n, uint64_t lost, float *line, int64_t step,
                       const float *m, const float *l)
{
    const struct attention_plan *p = h->w->p;
    const struct attention_job *g = p->g;
    const uint32_t bits = p->o_cast.to->store_bits;
    const bool sr = g->op->out.round == NG_ROUND_STOCHASTIC,
               together = !sr && step == g->dv && bits >= 8;
    for (int64_t c = 0; p->out.nan_sign == NG_NAN_SIGN_KEEP && c < n * step; c++)
        line[c] = as_float(one_nan(line[c]));
    if (together)
        p->cast->convert(&p->o_cast, line, NULL, n * step, d->code);
    for (int64_t i = 0; i < n; i++) {
        const int64_t index[NG_MAX_RANK] = { h->b, attention_head_of(p, h->kv_head, first + i),
                                             attention_query(p, first + i), 0 };
        if (lost >> i & 1)
            continue;
        if (sr)
            ng_stream_words(g->out_words,
                            ((index[0] * g->heads + index[1]) * g->queries + index[2]) * g->dv,
                            g->dv, d->word);
        if (together)
            ng_attention_put_codes(&g->o, bits, index,
                                   d->code + (size_t)(i * g->dv) * (bits / 8), g->dv);
        else
            ng_attention_put(p->cast, &p->o_cast, &g->o, index, line + i * step,
                             sr ? d->word : NULL, g->dv, d->code);
        store_statistics(p, index, m[i], l[i]);
    }
}

void ng_attention_store_rows(const struct attention_head *h, const struct attention_desk *d,
                             int64_t first, int64_t n, uint64_t lost, float *line, int64_t step,
                             const float *m, const float *l)
{
    struct attention_work *w = (struct attention_work *)h->w;
    const struct attention_plan *p = w->p;
    const struct attention_job *g = p->g;
    unsigned long long left = 0;
    if (line)
        store_rows(h, d, first, n, lost, line, step, m, l);
    for (int64_t i = 0; i < n; i++) {
        if (line && !(lost >> i & 1))
            continue;
        w->row(g,
               (h->b * g->heads + attention_head_of(p, h->kv_head, first + i)) * g->queries +
                   attention_query(p, first + i),
               d->reference);
        left++;
    }
    atomic_fetch_add(&w->rows[0], (unsigned long long)n - left);
    atomic_fetch_add(&w->rows[1], left);
}
