/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by kernels, rows of q as columns: an item is as many rows as a panel of B has, q is
 * the first multiply's B, and P the second's. Numerics: docs/numerics.md, section 11.9.
 *
 * Of each section it computes all scores, one panel of a few keys after another, a key a line
 * of lanes; then maxima; then exponentials, which leave P's codes in the order of B and the
 * sums of pieces; then v's columns, which are panels of A, times P. So only the lanes of an
 * item lie idle where masks end, and of the keys a few.
 *
 * attention_fast.c has the calls that this does not take, and those of few rows.
 */
#include <math.h>
#include <string.h>

#include "attention_section.h"

enum {
    WIDE_SCORES = 5 << 19, /* bytes of an item's scores: 10240 keys of 64 rows, a section */
    WIDE_BEFORE = 512,     /* keys of a group before a window, which are packed as zeros */
    WIDE_FULL = 85,        /* percent of the lanes that have rows, at least */
    PACK_PANELS = 16,      /* of k, by one task */
    PACK_ROWS = 128,       /* of k or v, at most, that are converted together */
    PACK_COLUMNS = 48,     /* of v: whole panels of 1, 2, 3, 4, 6, 8 rows, and whole vectors */
    PACK_KEYS = 32         /* a line of turned v is whole groups of them */
};

/* ---- Desk. ---- */

static bool plain_product(const struct attention_product *x)
{
    return x->what->rule->set[NG_PARAM_FAMILY].value != NG_FAMILY_FUSED &&
           x->what->mode != NG_MODE_MX && x->what->a->format == NG_BF16 &&
           x->b->format == NG_BF16;
}

bool ng_attention_plan_wide(const struct attention_plan *p)
{
    const struct attention_job *g = p->g;
    const int64_t nr = p->pv.kernel->nr, mr = p->pv.kernel->mr,
                  rows = attention_together(p) * p->group;
    return plain_product(&p->scores) && plain_product(&p->pv) && p->scores.kernel->nr == nr &&
           PACK_COLUMNS % mr == 0 && PACK_PANELS * mr <= PACK_ROWS &&
           p->kernel->wide_takes(g, (int32_t)nr) && attention_piece(p) > 0 &&
           !g->op->page_table && g->dv % 16 == 0 &&
           (!g->op->window || p->pv.length <= WIDE_BEFORE) &&
           p->positions * nr * (int64_t)sizeof(float) <= WIDE_SCORES &&
           rows * 100 >= div_up(rows, nr) * nr * WIDE_FULL;
}

static int64_t panels_of_k(const struct attention_plan *p, int64_t keys)
{
    return div_up(keys, p->scores.kernel->mr);
}

/* Panels of v's columns. */
static int64_t panels_of_v(const struct attention_plan *p)
{
    return div_up(p->g->dv, p->pv.kernel->mr);
}

/* Numbers of an item's output, [panels of v][mr][nr]. */
static int64_t output_size(const struct attention_plan *p)
{
    return panels_of_v(p) * p->pv.kernel->mr * p->pv.kernel->nr;
}

void ng_attention_lay_wide_panels(struct attention_layout *l, const struct attention_plan *p,
                                  struct attention_work *w)
{
    w->k = ng_attention_part(l, p->scores.a_bytes, panels_of_k(p, p->g->keys));
    w->v = ng_attention_part(l, p->pv.a_bytes,
                             panels_of_v(p) * attention_groups(&p->pv, p->g->keys));
}

size_t ng_attention_lay_wide_desk(const struct attention_plan *p, unsigned char *base,
                                  struct attention_desk *d)
{
    const struct attention_job *g = p->g;
    const struct ng_gemm_kernel *ks = p->scores.kernel, *kp = p->pv.kernel;
    const size_t element = sizeof(float), code = sizeof(uint16_t), nr = (size_t)kp->nr,
                 size = element * (size_t)output_size(p);
    struct attention_layout l = { base, 0 };
    *d = (struct attention_desk){ 0 };
    d->gemm = ng_attention_part(
        &l, ks->scratch_bytes > kp->scratch_bytes ? ks->scratch_bytes : kp->scratch_bytes, 1);
    d->reference = ng_attention_part(&l, ng_ref_attention_scratch(g, NULL, NULL), 1);
    d->q_codes = ng_attention_part(&l, code * nr * (size_t)g->d, 1);
    d->q_line = ng_attention_part(&l, element * (size_t)attention_whole(g->d), 1);
    d->q = ng_attention_part(&l, p->scores.b_bytes, 1);
    d->x = ng_attention_part(&l, element * nr * (size_t)(p->positions + 2 * ks->mr), 1);
    d->p_codes = ng_attention_part(&l, code * nr * (size_t)ng_attention_p_line(p), 1);
    d->p = ng_attention_part(&l, p->pv.b_bytes, 1);
    d->piece = ng_attention_part(&l, element * nr * (size_t)ng_attention_pieces(p), 1);
    d->o = ng_attention_part(&l, size, 1);
    d->w = ng_attention_part(&l, size, 1);
    d->more = ng_attention_part(&l, size, 1);
    d->line = ng_attention_part(&l, element * nr * (size_t)g->dv, 1);
    d->word = ng_attention_part(&l, sizeof *d->word * (size_t)g->dv, 1);
    d->code = ng_attention_part(&l, sizeof(uint32_t) * nr * (size_t)g->dv, 1);
    const bool k_converts = p->scores.b != p->scores.given, v_converts = p->pv.b != p->pv.given;
    d->k_room = ng_attention_lay_room(&l, &p->scores, attention_whole(g->d),
                                      k_converts ? PACK_ROWS : 0);
    d->v_room = ng_attention_lay_room(&l, &p->pv, attention_whole(PACK_COLUMNS),
                                      v_converts ? PACK_ROWS : 0);
    d->k_row[0] =
        ng_attention_part(&l, sizeof *d->k_row[0] * PACK_ROWS, k_converts || v_converts);
    d->turned = ng_attention_part(
        &l, code * PACK_COLUMNS * (size_t)(div_up(p->pv.length, PACK_KEYS) * PACK_KEYS), 1);
    return l.at;
}

/* ---- Pantry: k and v as panels of A. ---- */

/* n rows of k or v, columns [column, column + columns), in bf16: the first, and how far from
 * row to row. */
static const uint16_t *take_rows(const struct attention_work *w,
                                 const struct attention_product *m, int64_t key, int64_t n,
                                 int64_t column, int64_t columns,
                                 const struct attention_desk *d, int64_t *step)
{
    const struct attention_plan *p = w->p;
    const bool of_k = m == &p->scores;
    const ng_tensor *t = of_k ? &p->g->k : &p->g->v;
    const unsigned char **row = d->k_row[0], *first;
    struct gemm_panel unused;
    if (m->b == m->given) {
        ng_attention_rows(p, t, w->b, w->kv_head, key, 1, &first);
        *step = t->stride[2];
        return (const uint16_t *)(const void *)first + column;
    }
    ng_attention_rows(p, t, w->b, w->kv_head, key, n, row);
    for (int64_t i = 0; i < n; i++)
        row[i] += column * (m->given->store_bits / 8);
    *step = attention_whole(columns);
    ng_attention_take_rows(p, m, columns, *step, n, of_k ? &d->k_room : &d->v_room, row,
                           &unused);
    return (const uint16_t *)(const void *)row[0];
}

static void pack_k(const struct attention_work *w, int64_t first, int64_t panels,
                   const struct attention_desk *d)
{
    const struct attention_plan *p = w->p;
    const struct attention_product *m = &p->scores;
    const int64_t mr = m->kernel->mr,
                  n = min64(panels * mr, ng_ref_keys(p->g, w->b) - first * mr);
    struct gemm_job g = ng_attention_product(m, p->g->d);
    g.a.data = take_rows(w, m, first * mr, n, 0, p->g->d, d, &g.a.line);
    for (int64_t i = 0; i < n; i += mr)
        m->kernel->pack(&g, &m->full, GEMM_A, i, (int32_t)min64(mr, n - i),
                        w->k + (size_t)(first + i / mr) * up_64(m->a_bytes));
}

/* Columns from `column` on of a group, turned. */
static void pack_v(const struct attention_work *w, int64_t group, int64_t column,
                   const struct attention_desk *d)
{
    const struct attention_plan *p = w->p;
    const struct attention_product *m = &p->pv;
    int64_t n;
    const struct gemm_walk *walk =
        ng_attention_walk(m, &w->tail[w->b].pv, group, ng_ref_keys(p->g, w->b), &n);
    const int64_t mr = m->kernel->mr, columns = min64(PACK_COLUMNS, p->g->dv - column),
                  line = div_up(n, PACK_KEYS) * PACK_KEYS;
    for (int64_t k = 0; k < n; k += PACK_ROWS) {
        const int64_t rows = min64(PACK_ROWS, n - k);
        int64_t step;
        const uint16_t *code =
            take_rows(w, m, group * m->length + k, rows, column, columns, d, &step);
        p->kernel->wide_turn(code, rows, step, columns, line, d->turned + k);
    }
    struct gemm_job g = ng_attention_product(m, n);
    g.a.data = d->turned;
    g.a.line = line;
    for (int64_t c = 0; c < columns; c += mr)
        m->kernel->pack(&g, walk, GEMM_A, c, (int32_t)min64(mr, columns - c),
                        w->v + (size_t)(group * panels_of_v(p) + (column + c) / mr) *
                                   up_64(m->a_bytes));
}

/* ---- An item. ---- */

struct wide {
    struct attention_head h;
    const struct attention_plan *p;
    struct attention_desk d;
    struct range computed;
    int64_t first, rows; /* of the rows of a head of k */
    uint64_t lost;       /* bit r: the reference has row r */
    bool begun, may_drop;
    struct range sees[ATTENTION_WIDE];
    float m[ATTENTION_WIDE], l[ATTENTION_WIDE], alpha[ATTENTION_WIDE], sink[ATTENTION_WIDE];
};

static bool accumulates(const struct wide *x)
{
    return x->begun && attention_setting(x->p, NG_ATTENTION_UPDATE) == NG_UPDATE_ACCUMULATOR;
}

static void begin_rows(struct wide *x)
{
    for (int64_t i = 0; i < x->rows; i++)
        if (!ng_attention_begin_row(&x->h, x->first + i, &x->sees[i], &x->m[i], &x->sink[i]))
            x->lost |= UINT64_C(1) << i;
}

/* Rows of q as the multiply takes them (63), and packed. */
static void take_q(struct wide *x)
{
    const struct attention_product *m = &x->p->scores;
    const int64_t d = x->p->g->d;
    for (int64_t i = 0; i < x->rows; i++) {
        struct ng_ref_line to = { .code = x->d.q_codes + (size_t)(i * d) * sizeof(uint16_t) };
        ng_attention_take_query(&x->h, &x->d, x->first + i, &to);
    }
    struct gemm_job g = ng_attention_product(m, d);
    g.b.data = x->d.q_codes;
    g.b.line = d;
    m->kernel->pack(&g, &m->full, GEMM_B, 0, (int32_t)x->rows, x->d.q);
}

/* q k^T of the section's keys; where the first of them has its line. */
static const float *find_products(struct wide *x, const struct section *s)
{
    const struct attention_product *m = &x->p->scores;
    const int64_t mr = m->kernel->mr, first = s->from / mr;
    const struct gemm_tile t = { .a = x->h.w->k + (size_t)first * up_64(m->a_bytes),
                                 .b = x->d.q,
                                 .rows = (int32_t)mr,
                                 .to = m->full.whole ? m->full.depth : m->full.tiles,
                                 .psum = x->d.x,
                                 .scratch = x->d.gemm };
    if (!ng_attention_tiles_down(m, &m->job, &m->full, &t, div_up(s->to, mr) - first))
        x->lost = UINT64_MAX;
    return x->d.x + (s->from - first * mr) * m->kernel->nr;
}

static struct attention_wide rows_in(const struct wide *x, const struct section *s)
{
    struct attention_wide a = { .keys = s->to - s->from };
    for (int64_t i = 0; i < ATTENTION_WIDE; i++) {
        if (i >= x->rows) {
            a.end[i] = INT32_MAX;
            continue;
        }
        attention_visible(s, x->sees[i], &a.begin[i], &a.end[i]);
    }
    return a;
}

/* The denominator (69 and 71). */
static void find_sums(struct wide *x, const struct section *s)
{
    const struct attention_plan *p = x->p;
    float sum[ATTENTION_WIDE] = { 0 }, e[ATTENTION_WIDE];
    ng_attention_sum(p, s, x->d.piece, p->pv.kernel->nr, sum);
    if (!x->begun && p->g->op->sink &&
        attention_setting(p, NG_ATTENTION_SINK_PLACE) == NG_SINK_FIRST) {
        p->kernel->factors(p->g, (int)x->rows, x->sink, x->m, e);
        for (int64_t i = 0; i < x->rows; i++)
            sum[i] += e[i];
    }
    if (x->begun)
        p->kernel->wide_combine(attention_update(p), 1, x->alpha, sum, x->l);
    else
        memcpy(x->l, sum, sizeof sum);
}

static void find_p(struct wide *x, const struct section *s, const float *products)
{
    const struct attention_plan *p = x->p;
    const struct attention_wide a = rows_in(x, s);
    const size_t line = (size_t)p->pv.kernel->nr * sizeof(uint16_t);
    unsigned char *codes = x->d.p_codes, *here = codes + (size_t)(s->from - s->base) * line,
                  *behind = codes + (size_t)(s->to - s->base) * line;
    float best[ATTENTION_WIDE];
    x->lost |= p->kernel->wide_largest(p->g, &a, products, best);
    x->lost |=
        ng_attention_maxima(p, s, (int)x->rows, a.begin, a.end, best, x->begun, x->m, x->alpha);
    memset(codes, 0, (size_t)(here - codes));
    memset(behind, 0, (size_t)(ng_attention_read_end(p, s) - s->to) * line);
    p->kernel->wide_exponentials(p->g, &a, x->m, products, attention_piece(p), s->from,
                                 (uint16_t *)(void *)here, x->d.piece);
    find_sums(x, s);
}

/* ---- P times v (70), and the running output (71). ---- */

/* A section's product: the first one is the output. */
static float *product_of(const struct wide *x)
{
    return x->begun ? x->d.w : x->d.o;
}

static void multiply_group(struct wide *x, const struct section *s, int64_t number)
{
    const struct attention_plan *p = x->p;
    const struct attention_product *m = &p->pv;
    const struct group g = ng_attention_group(&x->h, s, number, accumulates(x));
    const struct gemm_walk some = ng_attention_walk_to(g.walk, div_up(g.to, m->tile));
    struct gemm_job job = ng_attention_product(m, g.n);
    job.b.data = x->d.p_codes;
    job.b.offset = (g.begin - s->base) * m->kernel->nr;
    job.b.line = 1;
    job.b.k = m->kernel->nr;
    m->kernel->pack(&job, &some, GEMM_B, 0, m->kernel->nr, x->d.p);
    const struct gemm_tile t = { .a = x->h.w->v +
                                      (size_t)(number * panels_of_v(p)) * up_64(m->a_bytes),
                                 .b = x->d.p,
                                 .rows = m->kernel->mr,
                                 .from = g.from / m->tile,
                                 .to = g.end,
                                 .begun = g.inside,
                                 .psum = g.apart ? x->d.more : product_of(x),
                                 .scratch = x->d.gemm };
    const bool spoilt = g.partial && x->h.w->special;
    if (!ng_attention_tiles_down(m, &job, g.walk, &t, panels_of_v(p)) || spoilt)
        x->lost = UINT64_MAX;
    if (g.apart)
        p->kernel->combine(ATTENTION_ADD, output_size(p), 0, x->d.more, product_of(x));
}

static void update_output(struct wide *x, const struct section *s)
{
    const struct attention_plan *p = x->p;
    const int64_t size = output_size(p), lines = size / p->pv.kernel->nr;
    float *o = x->d.o, *w = product_of(x);
    const bool drops = ng_attention_drops_tiles(p, s);
    for (int64_t c = 0; drops && c < size; c++)
        w[c] += 0.0F; /* each of them adds +0 */
    if (accumulates(x))
        memcpy(o, w, (size_t)size * sizeof *o);
    else if (x->begun)
        p->kernel->wide_combine(attention_update(p), lines, x->alpha, w, o);
    if (!s->last && attention_setting(p, NG_ATTENTION_O_FORMAT) == NG_OUTPUT_AS_Q)
        ng_attention_store_output(p, o, size);
}

/* What of keys [begin, end) has to be evaluated, and how it lies in the section. */
static struct section section_of(const struct wide *x, int64_t begin, int64_t end, bool last)
{
    int64_t from = begin, to = end;
    if (x->may_drop) {
        to = begin + 1;
        for (int64_t i = 0; i < x->rows; i++)
            to = max64(to, min64(x->sees[i].end, end));
        from = to - 1;
        for (int64_t i = 0; i < x->rows; i++)
            from = min64(from, max64(x->sees[i].begin, begin));
    }
    return ng_attention_section(x->p, begin, end, from, to, last);
}

static void take_section(struct wide *x, int64_t begin, int64_t end, bool last)
{
    const struct attention_plan *p = x->p;
    const struct section s = section_of(x, begin, end, last);
    const int64_t group = p->pv.length, size = output_size(p);
    find_p(x, &s, find_products(x, &s));
    if (accumulates(x)) {
        memcpy(x->d.w, x->d.o, (size_t)size * sizeof *x->d.w);
        p->kernel->wide_combine(ATTENTION_TIMES, size / p->pv.kernel->nr, x->alpha, NULL,
                                x->d.w);
    }
    for (int64_t n = s.from / group; n * group < s.to; n++)
        multiply_group(x, &s, n);
    update_output(x, &s);
    x->begun = true;
}

/* ---- Results (72, 73, 75). ---- */

static void take_late_sink(struct wide *x)
{
    const struct attention_plan *p = x->p;
    float m[ATTENTION_WIDE] = { 0 }, e[ATTENTION_WIDE] = { 0 };
    if (!p->g->op->sink || attention_setting(p, NG_ATTENTION_SINK_PLACE) != NG_SINK_LAST)
        return;
    for (int64_t i = 0; i < x->rows; i++)
        m[i] = x->sink[i] > x->m[i] ? x->sink[i] : x->m[i];
    p->kernel->factors(p->g, (int)x->rows, x->m, m, x->alpha);
    p->kernel->factors(p->g, (int)x->rows, x->sink, m, e);
    p->kernel->wide_combine(ATTENTION_TWO, 1, x->alpha, e, x->l);
    p->kernel->wide_combine(ATTENTION_TIMES, output_size(p) / p->pv.kernel->nr, x->alpha, NULL,
                            x->d.o);
    memcpy(x->m, m, sizeof m);
}

static void finish(struct wide *x)
{
    const struct attention_plan *p = x->p;
    const int64_t dv = p->g->dv;
    float by[ATTENTION_WIDE];
    if (x->begun) {
        take_late_sink(x);
        const bool over = attention_setting(p, NG_ATTENTION_NORMALISE) == NG_DIVISION_DIVIDE;
        for (int64_t i = 0; i < ATTENTION_WIDE; i++)
            by[i] = over ? x->l[i] : 1 / x->l[i];
        p->kernel->wide_combine(over ? ATTENTION_OVER : ATTENTION_TIMES, dv, by, NULL, x->d.o);
        p->kernel->wide_rows(dv, x->d.o, dv, x->d.line);
    }
    ng_attention_store_rows(&x->h, &x->d, x->first, x->rows, x->lost,
                            x->begun ? x->d.line : NULL, dv, x->m, x->l);
}

/* ---- Items. ---- */

static void run_rows(const struct attention_work *w, size_t worker,
                     const struct attention_item *item)
{
    const struct attention_plan *p = w->p;
    struct wide x = {
        .h = { .w = w, .b = w->b, .kv_head = w->kv_head, .keys = ng_ref_keys(p->g, w->b) },
        .p = p,
        .first = item->first,
        .rows = item->rows,
        .may_drop = !w->special && !p->pv.full.whole
    };
    (void)ng_attention_lay_wide_desk(p, w->desks + worker * w->desk_bytes, &x.d);
    const uint32_t saved = ng_fp_enter();
    x.computed = ng_attention_computed(p, x.h.keys, item->i0, item->i1);
    begin_rows(&x);
    take_q(&x);
    for (int64_t s = x.computed.begin / p->section; s * p->section < x.computed.end; s++)
        take_section(&x, max64(s * p->section, x.computed.begin),
                     min64((s + 1) * p->section, x.computed.end),
                     (s + 1) * p->section >= x.computed.end);
    finish(&x);
    ng_fp_leave(saved);
}

static void run_item(void *arg, size_t task, size_t worker)
{
    const struct attention_work *w = arg;
    struct attention_item item;
    if (ng_attention_item(w->p, w->p->pv.kernel->nr, 1, task, &item))
        run_rows(w, worker, &item);
}

static int64_t tasks_of_k(const struct attention_plan *p, int64_t keys)
{
    return div_up(panels_of_k(p, keys), PACK_PANELS);
}

static void pack_item(void *arg, size_t task, size_t worker)
{
    const struct attention_work *w = arg;
    const struct attention_plan *p = w->p;
    const int64_t of_k = tasks_of_k(p, ng_ref_keys(p->g, w->b)), i = (int64_t)task - of_k,
                  columns = div_up(p->g->dv, PACK_COLUMNS);
    struct attention_desk d;
    (void)ng_attention_lay_wide_desk(p, w->desks + worker * w->desk_bytes, &d);
    const uint32_t saved = ng_fp_enter();
    if (i < 0)
        pack_k(w, (int64_t)task * PACK_PANELS, PACK_PANELS, &d);
    else
        pack_v(w, i / columns, i % columns * PACK_COLUMNS, &d);
    ng_fp_leave(saved);
}

void ng_attention_wide_head(ng_ctx *ctx, struct attention_work *w)
{
    const struct attention_plan *p = w->p;
    const int64_t keys = ng_ref_keys(p->g, w->b), groups = attention_groups(&p->pv, keys);
    ng_parallel(ctx, (size_t)(tasks_of_k(p, keys) + groups * div_up(p->g->dv, PACK_COLUMNS)),
                pack_item, w);
    w->special = false;
    for (int64_t i = 0; i < groups * panels_of_v(p); i++)
        w->special |= attention_is_special(w->v + (size_t)i * up_64(p->pv.a_bytes));
    ng_parallel(ctx, (size_t)ng_attention_items(p, p->pv.kernel->nr, 1), run_item, w);
}
