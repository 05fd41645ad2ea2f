/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by kernels: the multiplies by those of GEMM on packed panels, the rows between them
 * by ng_attention_kernel. Numerics: docs/numerics.md, section 11.9.
 *
 * An item is a few panels of query rows that share a head of k and v. Of each section it
 * computes all scores, then exponentials, then P times v. Keys behind the last that any of its
 * rows sees are left out where item 76 allows it. What no kernel takes (a score that is not
 * finite, a masked exponential that is not +0) sends its row to the reference afterwards.
 *
 * Heads with many rows are packed once and shared by all items; those with few (decode) are
 * packed panel by panel into the worker's memory, so that k and v are read from memory once.
 * Many rows in a plain order, k and v in bf16 or converted to it, are attention_wide.c's.
 */
#include <math.h>
#include <string.h>

#include "../../kernels/bf16.h"
#include "attention_section.h"

/* ---- An item. ---- */

struct rows {
    int64_t first; /* of the rows of a head of k: query by query, in it head by head */
    int32_t n;
    uint32_t lost; /* bit r: the reference has row r */
    struct range sees[ATTENTION_ROWS];
    float m[ATTENTION_ROWS], l[ATTENTION_ROWS], alpha[ATTENTION_ROWS], sink[ATTENTION_ROWS];
};

struct item {
    const struct attention_work *w;
    const struct attention_plan *p;
    struct attention_desk d;
    int64_t b, kv_head, keys;
    struct range computed;
    int32_t panels;
    struct rows rows[ITEM_PANELS];
    bool begun, may_drop;
};

static unsigned char *panel_of(unsigned char *first, size_t bytes, int32_t i)
{
    return first + (size_t)i * up_64(bytes);
}

static float *floats_of(float *first, int64_t n, int32_t i)
{
    return first + i * (int64_t)(up_64((size_t)n * sizeof(float)) / sizeof(float));
}

static float *scores_of(const struct item *x, int32_t i)
{
    return floats_of(x->d.x, x->p->positions * x->p->scores.kernel->mr, i);
}

static int64_t output_size(const struct attention_plan *p)
{
    return p->pv.panels * p->pv.kernel->nr * p->pv.kernel->mr;
}

static unsigned char *codes_of(const struct item *x, int32_t i)
{
    return panel_of(x->d.p_codes,
                    (size_t)(x->p->mr * ng_attention_p_line(x->p)) * x->p->p_bytes, i);
}

static uint8_t *scales_of(const struct item *x, int32_t i)
{
    return panel_of(x->d.p_scales, (size_t)(x->p->mr * ng_attention_p_blocks(x->p)), i);
}

static struct attention_head whose(const struct item *x)
{
    return (
        struct attention_head){ .w = x->w, .b = x->b, .kv_head = x->kv_head, .keys = x->keys };
}

/* Scales of A, if it has any: of each line `blocks`, from its `first` on. */
static void set_scales(struct gemm_operand *o, const uint8_t *scale, int64_t first,
                       int64_t blocks)
{
    if (!o->scale)
        return;
    o->scale = scale;
    o->scale_offset = first;
    o->scale_line = blocks;
    o->scale_block = 1;
}

/* Rows of q as the multiply takes them (63), and packed. */
static void take_q(struct item *x, int32_t panel)
{
    const struct attention_plan *p = x->p;
    struct rows *r = &x->rows[panel];
    const size_t line = (size_t)p->g->d * (p->g->scores.a->store_bits / 8);
    const int64_t blocks = div_up(p->g->d, BLOCK);
    const struct attention_head h = whose(x);
    for (int i = 0; i < r->n; i++) {
        struct ng_ref_line to = { .code = x->d.q_codes + (size_t)i * line,
                                  .scale = x->d.q_scales + i * blocks };
        ng_attention_take_query(&h, &x->d, r->first + i, &to);
    }
    struct gemm_job g = ng_attention_product(&p->scores, p->g->d);
    g.a.data = x->d.q_codes;
    g.a.line = p->g->d;
    set_scales(&g.a, x->d.q_scales, 0, blocks);
    p->scores.kernel->pack(&g, &p->scores.full, GEMM_A, 0, r->n,
                           panel_of(x->d.q, p->scores.a_bytes, panel));
}

static bool run_tile(const struct item *x, const struct attention_product *m,
                     const struct gemm_job *g, const struct gemm_walk *w, const void *a,
                     const void *b, int32_t rows, int64_t from, int64_t to, bool begun,
                     float *psum)
{
    struct gemm_tile t = { .a = a,
                           .b = b,
                           .rows = rows,
                           .from = from,
                           .to = to,
                           .begun = begun,
                           .psum = psum,
                           .scratch = x->d.gemm };
    return ng_attention_tile(m, g, w, &t);
}

/* Keys of panel j of k; 0: there is none. */
static int64_t keys_of_panel(const struct item *x, int64_t j)
{
    const int64_t nr = x->p->scores.kernel->nr;
    return max64(min64(x->computed.end - j * nr, nr), 0);
}

/* Where rows of panel j of k lie. */
static void find_panel(const struct item *x, int64_t j, const unsigned char **row)
{
    const struct attention_plan *p = x->p;
    ng_attention_rows(p, &p->g->k, x->b, x->kv_head, j * p->scores.kernel->nr,
                      keys_of_panel(x, j), row);
}

static int64_t all_rows(const struct item *x)
{
    int64_t n = 0;
    for (int32_t i = 0; i < x->panels; i++)
        n += x->rows[i].n;
    return n;
}

/* Chains of q k^T that have products: those that memory is asked for in. */
static int64_t chains_of(const struct attention_product *m)
{
    int64_t n = 0;
    for (int32_t i = 0; !m->full.whole && i < m->full.chains * m->full.tiles; i++)
        n += m->full.run[i] > 0;
    return max64(n, 1);
}

/* Has the kernel panels of k out of its codes of 8 bits? */
static bool turns_codes(const struct attention_product *m)
{
    return m->widens && m->kernel->turn_codes;
}

/* What is asked for while panel j - 1 of k is used: panel j, whose rows go to `row`. */
static struct gemm_soon panel_soon(const struct item *x, int64_t j, const unsigned char **row)
{
    const struct attention_plan *p = x->p;
    const struct attention_product *m = &p->scores;
    const int64_t keys = keys_of_panel(x, j), bytes = p->g->d * m->given->store_bits / 8;
    if (p->g->k.stride[3] != 1 || keys == 0)
        return (struct gemm_soon){ 0 };
    find_panel(x, j, row);
    const bool turns = p->turns && (m->given == m->b || turns_codes(m)) &&
                       attention_adjoin(row, keys, bytes) &&
                       !(m->second && all_rows(x) >= BUSY_ROWS);
    const int64_t early = turns ? attention_early(keys, TURN_ROWS, all_rows(x)) : 0;
    return (struct gemm_soon){ .row = row,
                               .rows = keys,
                               .bytes = bytes,
                               .step = div_up(keys - early, x->panels * chains_of(m)),
                               .early = early };
}

/* A panel of n keys out of their rows; false: it wants another way. */
static bool panel_of_rows(const struct item *x, const struct gemm_job *g, int64_t n,
                          const unsigned char **row, struct gemm_soon *soon)
{
    const struct attention_plan *p = x->p;
    const struct attention_product *m = &p->scores;
    const bool converts = m->b != m->given;
    const int64_t line = attention_whole(p->g->d);
    struct gemm_panel head;
    struct gemm_job own = *g;
    if (turns_codes(m) &&
        m->kernel->turn_codes(g, &m->full, m->given, m->value, row, (int32_t)n, soon, x->d.k))
        return true;
    const bool known =
        converts && ng_attention_take_rows(p, m, p->g->d, line, n, &x->d.k_room, row, &head);
    if (m->kernel->turn &&
        m->kernel->turn(g, &m->full, row, (int32_t)n, known ? &head : NULL, soon, x->d.k))
        return true;
    if (!converts)
        return false;
    own.b.data = x->d.k_room.rows;
    own.b.line = line;
    m->kernel->pack(&own, &m->full, GEMM_B, 0, (int32_t)n, x->d.k);
    return true;
}

/* Panel j of k packed here, from its rows, d.k_row[0], if they can be turned where they lie or
 * are converted. Keys past the computed ones are zeros. The next panel's are d.k_row[0] then.
 */
static const unsigned char *own_panel_of_k(struct item *x, const struct gemm_job *g, int64_t j,
                                           struct gemm_soon *soon)
{
    const unsigned char **row = x->d.k_row[0];
    *soon = panel_soon(x, j + 1, x->d.k_row[1]);
    if (!x->p->turns || !panel_of_rows(x, g, keys_of_panel(x, j), row, soon))
        ng_attention_pack_k(x->w, x->b, x->kv_head, j, &x->d, x->d.k);
    x->d.k_row[0] = x->d.k_row[1];
    x->d.k_row[1] = row;
    return x->d.k;
}

/* q k^T of row panel i and panels of k from number `panel` on, at k. */
static struct gemm_tile score_tile(const struct item *x, int32_t i, const unsigned char *k,
                                   int64_t panel)
{
    const struct attention_product *m = &x->p->scores;
    return (struct gemm_tile){ .a = panel_of(x->d.q, m->a_bytes, i),
                               .b = k,
                               .rows = x->rows[i].n,
                               .to = m->full.whole ? m->full.depth : m->full.tiles,
                               .psum = scores_of(x, i) + panel * m->kernel->mr * m->kernel->nr,
                               .scratch = x->d.gemm };
}

/* Each panel of k is used as soon as it is there. */
static void find_few_products(struct item *x, int64_t from, int64_t to)
{
    const struct attention_product *m = &x->p->scores;
    const int64_t nr = m->kernel->nr;
    struct gemm_soon soon;
    if (x->p->turns)
        find_panel(x, from / nr, x->d.k_row[0]);
    for (int64_t j = from / nr; j * nr < to; j++) {
        const unsigned char *k = own_panel_of_k(x, &m->job, j, &soon);
        for (int32_t i = 0; i < x->panels; i++) {
            struct gemm_tile t = score_tile(x, i, k, j - from / nr);
            t.soon = soon.rows > 0 ? &soon : NULL;
            if (!ng_attention_tile(m, &m->job, &m->full, &t))
                x->rows[i].lost = ~0u;
        }
    }
}

/* q k^T of keys [from, to), which begin with a panel. */
static void find_products(struct item *x, int64_t from, int64_t to)
{
    const struct attention_product *m = &x->p->scores;
    const int64_t nr = m->kernel->nr;
    if (x->p->few) {
        find_few_products(x, from, to);
        return;
    }
    const int64_t first = from / nr, end = div_up(to, nr), many = NEAR_KEYS / nr;
    for (int64_t j = first; j < end; j += many)
        for (int32_t i = 0; i < x->panels; i++) {
            const unsigned char *k = x->w->k + (size_t)j * up_64(m->b_bytes);
            const struct gemm_tile t = score_tile(x, i, k, j - first);
            if (!ng_attention_tiles(m, &m->job, &m->full, &t, min64(many, end - j)))
                x->rows[i].lost = ~0u;
        }
}

/* ---- An item's section: between the multiplies. ---- */

static struct attention_rows rows_in(const struct item *x, const struct rows *r,
                                     const struct section *s)
{
    struct attention_rows a = { .rows = r->n,
                                .mr = x->p->scores.kernel->mr,
                                .nr = x->p->scores.kernel->nr,
                                .keys = s->to - s->from };
    for (int i = 0; i < r->n; i++)
        attention_visible(s, r->sees[i], &a.begin[i], &a.end[i]);
    return a;
}

/* P in a format other than bf16, or in blocks (69). Blocks are of computed keys, so they begin
 * where sections do. */
static void convert_p(const struct item *x, const struct attention_rows *a, const float *e,
                      unsigned char *codes, uint8_t *scales)
{
    const struct attention_plan *p = x->p;
    const bool input = p->p_cast.from->format == NG_BF16; /* rows; else e as it lies */
    const int64_t run = input ? a->keys : a->nr;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t at = 0; at < a->keys; at += run) {
            const int64_t n = min64(run, a->keys - at), to = r * ng_attention_p_line(p) + at;
            const struct cast_rows c = {
                .src = input ? (const void *)(x->d.p_input + to)
                             : (const void *)(e + (at / a->nr * a->mr + r) * a->nr),
                .dst = codes + (size_t)to * p->p_bytes,
                .scale = scales + r * ng_attention_p_blocks(p) + at / BLOCK,
                .rows = 1,
                .n = n,
                .scale_step = 1
            };
            if (p->p_cast.quantize)
                p->cast->quantize(&p->p_cast, CAST_ALONG, &c);
            else
                p->cast->convert(&p->p_cast, c.src, NULL, n, c.dst);
        }
}

/* The sums of a panel's pieces. */
static float *sums_of_pieces(const struct item *x, int32_t panel)
{
    return floats_of(x->d.piece, ng_attention_pieces(x->p) * ATTENTION_ROWS, panel);
}

/* Pieces of one panel more; panels are summed together until their lanes are enough. */
static void sum_pieces(const struct item *x, const struct section *s, int32_t panel,
                       struct attention_addends *t)
{
    const int64_t piece = attention_piece(x->p);
    int64_t rows = 0;
    t->x[t->panels] = scores_of(x, panel);
    t->sum[t->panels++] = sums_of_pieces(x, panel);
    for (int32_t i = 0; i < t->panels; i++)
        rows += t->a[i].rows;
    if (panel + 1 < x->panels && rows * attention_pieces_in(s, piece) < SUM_LANES)
        return;
    x->p->kernel->sums(t, piece, s->from);
    t->panels = 0;
}

/* Sums of P by a multiply with ones, tile by tile. */
static void sum_by_ones(struct item *x, int32_t panel, const struct section *s, float *sum)
{
    const struct attention_plan *p = x->p;
    const struct attention_product *m = &p->ones;
    struct rows *r = &x->rows[panel];
    for (int64_t t = s->from / m->length; t * m->length < s->to; t++) {
        int64_t n;
        const struct gemm_walk *w =
            ng_attention_walk(m, &x->w->tail[x->b].ones, t, x->keys, &n);
        const int64_t begin = t * m->length, from = max64(begin, s->from) - begin,
                      to = min64(s->to, begin + n) - begin;
        struct gemm_job g = ng_attention_product(m, n);
        g.a.data = codes_of(x, panel);
        g.a.offset = begin - s->base;
        g.a.line = ng_attention_p_line(p);
        const struct gemm_walk some = ng_attention_walk_to(w, div_up(to, m->tile));
        set_scales(&g.a, scales_of(x, panel), g.a.offset / BLOCK, ng_attention_p_blocks(p));
        m->kernel->pack(&g, &some, GEMM_A, 0, r->n, x->d.ones);
        const unsigned char *b =
            x->w->ones_panels + (n == m->length ? 0 : (size_t)(x->b + 1)) * up_64(m->b_bytes);
        if (!run_tile(x, m, &g, w, x->d.ones, b, r->n, from / m->tile,
                      w->whole ? w->depth : div_up(to, m->tile), false, x->d.sum))
            r->lost = ~0u;
        for (int i = 0; i < r->n; i++) {
            const float one = x->d.sum[i * m->kernel->nr];
            sum[i] = t * m->length > s->from ? sum[i] + one : one;
        }
    }
}

static float combined(const struct attention_plan *p, attention_combine how, float o, float by,
                      float w)
{
    float from[ATTENTION_GROUP] = { w }, to[ATTENTION_GROUP] = { o };
    if (how == ATTENTION_TWO)
        return o * by + w; /* two roundings: nothing here is contracted */
    p->kernel->combine(how, ATTENTION_GROUP, by, from, to);
    return to[0];
}

/* The denominator (69 and 71). */
static void find_sums(struct item *x, int32_t panel, const struct section *s)
{
    const struct attention_plan *p = x->p;
    struct rows *r = &x->rows[panel];
    float sum[ATTENTION_ROWS] = { 0 }, e[ATTENTION_ROWS];
    if (attention_piece(p))
        ng_attention_sum(p, s, sums_of_pieces(x, panel), ATTENTION_ROWS, sum);
    else
        sum_by_ones(x, panel, s, sum);
    const bool sink = !x->begun && p->g->op->sink &&
                      attention_setting(p, NG_ATTENTION_SINK_PLACE) == NG_SINK_FIRST;
    if (sink)
        p->kernel->factors(p->g, r->n, r->sink, r->m, e);
    for (int i = 0; i < r->n; i++) {
        if (sink)
            sum[i] += e[i];
        r->l[i] =
            x->begun ? combined(p, attention_update(p), r->l[i], r->alpha[i], sum[i]) : sum[i];
    }
}

/* Lines of P before and behind the section's keys, as far as multiplies read them, or their
 * packers in whole vectors. */
static void clear_around(const struct attention_plan *p, const struct section *s, int32_t rows,
                         unsigned char *codes)
{
    const int64_t line = ng_attention_p_line(p), before = s->from - s->base,
                  keys = s->to - s->from, end = ng_attention_read_end(p, s);
    for (int r = 0; r < rows; r++) {
        unsigned char *at = codes + (size_t)(r * line) * p->p_bytes;
        memset(at, 0, (size_t)before * p->p_bytes);
        memset(at + (size_t)(before + keys) * p->p_bytes, 0,
               (size_t)(end - s->to) * p->p_bytes);
    }
}

/* Exponentials and P; `a`: its rows in the section. */
static void find_p(struct item *x, int32_t panel, const struct section *s,
                   const struct attention_rows *a)
{
    const struct attention_plan *p = x->p;
    struct rows *r = &x->rows[panel];
    const bool bf16 = p->g->pv.a->format == NG_BF16;
    const int64_t line = ng_attention_p_line(p), blocks = ng_attention_p_blocks(p);
    unsigned char *codes = codes_of(x, panel),
                  *here = codes + (size_t)(s->from - s->base) * p->p_bytes;
    uint16_t *code = bf16                                ? (uint16_t *)(void *)here
                     : p->p_cast.from->format == NG_BF16 ? x->d.p_input
                                                         : NULL;
    uint8_t *scales = scales_of(x, panel);
    float *e = scores_of(x, panel), best[ATTENTION_ROWS];
    r->lost |= p->kernel->scores(p->g, a, e, best);
    r->lost |= (uint32_t)ng_attention_maxima(p, s, r->n, a->begin, a->end, best, x->begun, r->m,
                                             r->alpha);
    clear_around(p, s, r->n, codes);
    memset(scales, 0, (size_t)(r->n * blocks));
    p->kernel->exponentials(p->g, a, r->m, e, code, line);
    if (!bf16)
        convert_p(x, a, e, here, scales + (s->from - s->base) / BLOCK);
}

static void find_all_p(struct item *x, const struct section *s)
{
    struct attention_addends t;
    t.panels = 0;
    for (int32_t i = 0; i < x->panels; i++) {
        t.a[t.panels] = rows_in(x, &x->rows[i], s);
        find_p(x, i, s, &t.a[t.panels]);
        if (attention_piece(x->p))
            sum_pieces(x, s, i, &t);
    }
    for (int32_t i = 0; i < x->panels; i++)
        find_sums(x, i, s);
}

/* ---- P times v (70), and the running output (71). ---- */

/* `update` accumulator: a later section's product is added to RN(o * alpha), where it is summed
 * (71). */
static bool accumulates(const struct item *x)
{
    return x->begun && attention_setting(x->p, NG_ATTENTION_UPDATE) == NG_UPDATE_ACCUMULATOR;
}

/* The rows of `to` go on with their alpha, and with w's rows if it is there. */
static void combine_rows(const struct item *x, int32_t panel, attention_combine how,
                         const float *w, float *to)
{
    const struct attention_plan *p = x->p;
    const int64_t nr = p->pv.kernel->nr, mr = p->pv.kernel->mr;
    for (int64_t j = 0; j < p->pv.panels; j++)
        for (int i = 0; i < x->rows[panel].n; i++)
            p->kernel->combine(how, nr, x->rows[panel].alpha[i],
                               w ? w + (j * mr + i) * nr : NULL, to + (j * mr + i) * nr);
}

static void begin_accumulator(const struct item *x, int32_t panel)
{
    const int64_t size = output_size(x->p);
    float *w = floats_of(x->d.w, size, panel);
    memcpy(w, floats_of(x->d.o, size, panel), (size_t)size * sizeof *w);
    combine_rows(x, panel, ATTENTION_TIMES, NULL, w);
}

/* P of n keys from code `first` of its lines on. */
static void pack_p(const struct item *x, const struct gemm_walk *w, int64_t n, int64_t first)
{
    const struct attention_product *m = &x->p->pv;
    struct gemm_job g = ng_attention_product(m, n);
    g.a.offset = first;
    g.a.line = ng_attention_p_line(x->p);
    for (int32_t i = 0; i < x->panels; i++) {
        g.a.data = codes_of(x, i);
        set_scales(&g.a, scales_of(x, i), first / BLOCK, ng_attention_p_blocks(x->p));
        m->kernel->pack(&g, w, GEMM_A, 0, x->rows[i].n, panel_of(x->d.p, m->a_bytes, i));
    }
}

static const unsigned char *panel_of_v(const struct item *x, int64_t group, int64_t j)
{
    const struct attention_product *m = &x->p->pv;
    if (!x->p->few)
        return x->w->v + (size_t)(group * m->panels + j) * up_64(m->b_bytes);
    ng_attention_pack_v(x->w, x->b, x->kv_head, group, j, &x->d, x->d.v);
    return x->d.v;
}

/* A section's product: the first one is the output. */
static float *product_of(const struct item *x, int32_t i)
{
    return floats_of(x->begun ? x->d.w : x->d.o, output_size(x->p), i);
}

static float *sums_of(const struct item *x, const struct group *g, int32_t i)
{
    return g->apart ? floats_of(x->d.more, output_size(x->p), i) : product_of(x, i);
}

/* v where it lies; false: the group is to be multiplied in panels. */
static bool multiply_lying(struct item *x, const struct group *g)
{
    const struct attention_product *m = &x->p->pv;
    struct attention_lying y = { .w = x->w,
                                 .d = &x->d,
                                 .b = x->b,
                                 .kv_head = x->kv_head,
                                 .walk = g->walk,
                                 .n = g->n,
                                 .begin = g->begin,
                                 .from = g->from / m->tile,
                                 .to = g->end,
                                 .begun = g->inside,
                                 .finite = g->partial,
                                 .panels = x->panels };
    for (int32_t i = 0; i < x->panels; i++) {
        y.rows[i] = x->rows[i].n;
        y.a[i] = panel_of(x->d.p, m->a_bytes, i);
        y.psum[i] = sums_of(x, g, i);
    }
    return ng_attention_multiply_lying(&y);
}

static void multiply_panels(struct item *x, const struct group *g, int64_t number)
{
    const struct attention_product *m = &x->p->pv;
    struct gemm_job shorter;
    const struct gemm_job *product = &m->job;
    if (g->n != m->length) {
        shorter = ng_attention_product(m, g->n);
        product = &shorter;
    }
    for (int64_t j = 0; j < m->panels; j++) {
        const unsigned char *v = panel_of_v(x, number, j);
        const bool spoilt = g->partial && attention_is_special(v);
        for (int32_t i = 0; i < x->panels; i++)
            if (!run_tile(x, m, product, g->walk, panel_of(x->d.p, m->a_bytes, i), v,
                          x->rows[i].n, g->from / m->tile, g->end, g->inside,
                          sums_of(x, g, i) + j * m->kernel->mr * m->kernel->nr) ||
                spoilt)
                x->rows[i].lost = ~0u;
    }
}

static void multiply_group(struct item *x, const struct section *s, int64_t number)
{
    const struct attention_plan *p = x->p;
    const struct attention_head h = whose(x);
    const struct group g = ng_attention_group(&h, s, number, accumulates(x));
    const struct gemm_walk some = ng_attention_walk_to(g.walk, div_up(g.to, p->pv.tile));
    pack_p(x, &some, g.n, g.begin - s->base);
    if (!p->lies || !multiply_lying(x, &g)) {
        for (int32_t i = 0; p->lies && g.inside && i < x->panels; i++)
            begin_accumulator(x, i); /* once more */
        multiply_panels(x, &g, number);
    }
    for (int32_t i = 0; g.apart && i < x->panels; i++)
        p->kernel->combine(ATTENTION_ADD, output_size(p), 0, sums_of(x, &g, i),
                           product_of(x, i));
}

static void update_output(struct item *x, int32_t panel, const struct section *s)
{
    const struct attention_plan *p = x->p;
    const int64_t size = output_size(p);
    float *o = floats_of(x->d.o, size, panel), *w = product_of(x, panel);
    const bool drops = ng_attention_drops_tiles(p, s);
    for (int64_t c = 0; drops && c < size; c++)
        w[c] += 0.0F; /* each of them adds +0 */
    if (accumulates(x))
        memcpy(o, w, (size_t)size * sizeof *o);
    else if (x->begun)
        combine_rows(x, panel, attention_update(p), w, o);
    if (!s->last && attention_setting(p, NG_ATTENTION_O_FORMAT) == NG_OUTPUT_AS_Q)
        ng_attention_store_output(p, o, size);
}

/* Up to which key anything has to be evaluated. */
static int64_t evaluated_end(const struct item *x, int64_t from, int64_t end)
{
    const int64_t nr = x->p->scores.kernel->nr;
    int64_t to = from + nr;
    for (int32_t i = 0; i < x->panels; i++)
        for (int r = 0; r < x->rows[i].n; r++)
            to = max64(to, x->rows[i].sees[r].end);
    return x->may_drop ? min64(end, div_up(to, nr) * nr) : end;
}

/* And from which: a panel's first. */
static int64_t evaluated_begin(const struct item *x, int64_t begin, int64_t to)
{
    const int64_t nr = x->p->scores.kernel->nr;
    int64_t from = to - 1;
    for (int32_t i = 0; i < x->panels; i++)
        for (int r = 0; r < x->rows[i].n; r++)
            from = min64(from, x->rows[i].sees[r].begin);
    return x->may_drop ? max64(begin, from / nr * nr) : begin;
}

static void take_section(struct item *x, int64_t begin, int64_t end, bool last)
{
    const struct attention_plan *p = x->p;
    const int64_t group = p->pv.length, to = evaluated_end(x, begin, end),
                  from = evaluated_begin(x, begin, to);
    const struct section s = ng_attention_section(p, begin, end, from, to, last);
    find_products(x, s.from, s.to);
    find_all_p(x, &s);
    for (int32_t i = 0; accumulates(x) && i < x->panels; i++)
        begin_accumulator(x, i);
    for (int64_t n = s.from / group; n * group < s.to; n++)
        multiply_group(x, &s, n);
    for (int32_t i = 0; i < x->panels; i++)
        update_output(x, i, &s);
    x->begun = true;
}

/* ---- Results (72, 73, 75). ---- */

static void take_late_sink(struct item *x, int32_t panel)
{
    const struct attention_plan *p = x->p;
    struct rows *r = &x->rows[panel];
    float m[ATTENTION_ROWS] = { 0 }, e[ATTENTION_ROWS];
    if (!p->g->op->sink || attention_setting(p, NG_ATTENTION_SINK_PLACE) != NG_SINK_LAST)
        return;
    for (int i = 0; i < r->n; i++)
        m[i] = r->sink[i] > r->m[i] ? r->sink[i] : r->m[i];
    p->kernel->factors(p->g, r->n, r->m, m, r->alpha);
    p->kernel->factors(p->g, r->n, r->sink, m, e);
    for (int i = 0; i < r->n; i++)
        r->l[i] = combined(p, ATTENTION_TWO, r->l[i], r->alpha[i], e[i]);
    combine_rows(x, panel, ATTENTION_TIMES, NULL, floats_of(x->d.o, output_size(p), panel));
    memcpy(r->m, m, sizeof m);
}

/* Row i of the output over its denominator. */
static void normalise(const struct item *x, int32_t panel, int i, float *line)
{
    const struct attention_plan *p = x->p;
    const int64_t nr = p->pv.kernel->nr, mr = p->pv.kernel->mr;
    const float *o = floats_of(x->d.o, output_size(p), panel), l = x->rows[panel].l[i];
    for (int64_t j = 0; j < p->pv.panels; j++)
        memcpy(line + j * nr, o + (j * mr + i) * nr, (size_t)nr * sizeof *o);
    const bool over = attention_setting(p, NG_ATTENTION_NORMALISE) == NG_DIVISION_DIVIDE;
    p->kernel->combine(over ? ATTENTION_OVER : ATTENTION_TIMES, p->pv.panels * nr,
                       over ? l : 1 / l, NULL, line);
}

static void finish(struct item *x)
{
    const struct attention_plan *p = x->p;
    const struct attention_head h = whose(x);
    const int64_t wide = p->pv.panels * p->pv.kernel->nr;
    for (int32_t panel = 0; panel < x->panels; panel++) {
        const struct rows *r = &x->rows[panel];
        if (x->begun)
            take_late_sink(x, panel);
        for (int i = 0; x->begun && i < r->n; i++)
            normalise(x, panel, i, x->d.line + i * wide);
        ng_attention_store_rows(&h, &x->d, r->first, r->n, r->lost, x->begun ? x->d.line : NULL,
                                wide, r->m, r->l);
    }
}

/* ---- Items. ---- */

static void begin_rows(struct item *x, struct rows *r, int64_t first, int64_t n)
{
    const struct attention_head h = whose(x);
    *r = (struct rows){ .first = first, .n = (int32_t)n };
    for (int i = 0; i < r->n; i++)
        if (!ng_attention_begin_row(&h, first + i, &r->sees[i], &r->m[i], &r->sink[i]))
            r->lost |= 1u << i;
}

static void run_rows(const struct attention_work *w, size_t worker, int64_t b, int64_t kv_head,
                     const struct attention_item *item)
{
    const struct attention_plan *p = w->p;
    struct item x = { .w = w,
                      .p = p,
                      .b = b,
                      .kv_head = kv_head,
                      .keys = ng_ref_keys(p->g, b),
                      .panels = (int32_t)div_up(item->rows, p->mr),
                      .may_drop = !p->few && !p->fused && !w->special && !p->pv.full.whole };
    (void)ng_attention_lay_desk(p, w->desks + worker * w->desk_bytes, &x.d);
    const uint32_t saved = ng_fp_enter();
    x.computed = ng_attention_computed(p, x.keys, item->i0, item->i1);
    for (int32_t i = 0; i < x.panels; i++) {
        const int64_t from = item->rows * i / x.panels, to = item->rows * (i + 1) / x.panels;
        begin_rows(&x, &x.rows[i], item->first + from, to - from);
        take_q(&x, i);
    }
    for (int64_t s = x.computed.begin / p->section; s * p->section < x.computed.end; s++)
        take_section(&x, max64(s * p->section, x.computed.begin),
                     min64((s + 1) * p->section, x.computed.end),
                     (s + 1) * p->section >= x.computed.end);
    finish(&x);
    ng_fp_leave(saved);
}

static void run_few(void *arg, size_t task, size_t worker)
{
    const struct attention_work *w = arg;
    const struct attention_job *g = w->p->g;
    const struct attention_item all = { .rows = w->p->rows, .i1 = g->queries };
    run_rows(w, worker, (int64_t)task / g->kv_heads, (int64_t)task % g->kv_heads, &all);
}

static void run_shared(void *arg, size_t task, size_t worker)
{
    const struct attention_work *w = arg;
    struct attention_item item;
    if (ng_attention_item(w->p, w->p->mr, w->p->item_panels, task, &item))
        run_rows(w, worker, w->b, w->kv_head, &item);
}

static void pack_shared(void *arg, size_t task, size_t worker)
{
    struct attention_work *w = arg;
    const struct attention_plan *p = w->p;
    const int64_t keys = ng_ref_keys(p->g, w->b), of_k = div_up(keys, p->scores.kernel->nr),
                  i = (int64_t)task;
    struct attention_desk d;
    (void)ng_attention_lay_desk(p, w->desks + worker * w->desk_bytes, &d);
    const uint32_t saved = ng_fp_enter();
    if (i < of_k)
        ng_attention_pack_k(w, w->b, w->kv_head, i, &d,
                            w->k + (size_t)i * up_64(p->scores.b_bytes));
    else
        ng_attention_pack_v(w, w->b, w->kv_head, (i - of_k) / p->pv.panels,
                            (i - of_k) % p->pv.panels, &d,
                            w->v + (size_t)(i - of_k) * up_64(p->pv.b_bytes));
    ng_fp_leave(saved);
}

static void run_head(ng_ctx *ctx, struct attention_work *w)
{
    const struct attention_plan *p = w->p;
    if (p->wide) {
        ng_attention_wide_head(ctx, w);
        return;
    }
    const int64_t keys = ng_ref_keys(p->g, w->b),
                  of_v = attention_groups(&p->pv, keys) * p->pv.panels;
    ng_parallel(ctx, (size_t)(div_up(keys, p->scores.kernel->nr) + of_v), pack_shared, w);
    w->special = false;
    for (int64_t i = 0; i < of_v; i++)
        w->special |= attention_is_special(w->v + (size_t)i * up_64(p->pv.b_bytes));
    ng_parallel(ctx, (size_t)ng_attention_items(p, p->mr, p->item_panels), run_shared, w);
}

/* ---- All rooms. ---- */

static size_t all_bytes(ng_ctx *ctx, struct attention_plan *p, struct attention_work *w)
{
    struct attention_desk d;
    w->desk_bytes = ng_attention_lay_desk(p, NULL, &d);
    return ng_attention_lay_work(p, NULL, w) + w->desk_bytes * ng_workers(ctx);
}

static bool plan(ng_ctx *ctx, const struct attention_job *g, struct attention_plan *p)
{
    if (!ng_attention_plan(ctx, g, p))
        return false;
    ng_attention_plan_items(ctx, p);
    return true;
}

ng_status ng_attention_fast_bytes(ng_ctx *ctx, const struct attention_job *g, size_t *bytes)
{
    struct attention_plan p;
    struct attention_work w = { .p = &p };
    *bytes = plan(ctx, g, &p) ? all_bytes(ctx, &p, &w) : 0;
    return NG_OK;
}

static void take_sinks(const struct attention_work *w)
{
    const ng_tensor *t = w->p->g->op->sink;
    for (int64_t head = 0; t && head < w->p->g->heads; head++) {
        const ng_format_spec *f = ng_format_info(t->format);
        w->sink[head] = as_float(ng_num_f32_code(
            ng_num_decode(f, ng_load_code(t->data, f->store_bits, ng_offset_at(t, &head)))));
    }
}

ng_status ng_attention_fast(ng_ctx *ctx, const struct attention_job *g, attention_row *row,
                            bool *taken)
{
    struct attention_plan p;
    struct attention_work w = { .p = &p, .row = row };
    void *block;
    *taken = plan(ctx, g, &p);
    ng_attention_tell(ctx, &p);
    if (!*taken)
        return NG_OK;
    const ng_status s = ng_arena_claim(ctx, all_bytes(ctx, &p, &w), &block);
    if (s)
        return s;
    (void)ng_attention_lay_work(&p, block, &w);
    ng_attention_pack_ones(&w);
    take_sinks(&w);
    if (p.few)
        ng_parallel(ctx, (size_t)(g->batch * g->kv_heads), run_few, &w);
    else
        for (w.b = 0; w.b < g->batch; w.b++)
            for (w.kv_head = 0; w.kv_head < g->kv_heads; w.kv_head++)
                run_head(ctx, &w);
    ng_ctx_note_kernel(
        ctx, p.kernel->name,
        (ng_tiles){ .fast = atomic_load(&w.rows[0]), .reference = atomic_load(&w.rows[1]) });
    return NG_OK;
}
