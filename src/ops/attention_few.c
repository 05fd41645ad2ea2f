/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P times v for a few rows (decode): v is read where it lies, a K tile after another, for all
 * rows and columns while the first cache has it. A panel of v would cost more than its use.
 */
#include <string.h>

#include "attention_plan.h"

bool ng_attention_plan_lying(ng_ctx *ctx, struct attention_plan *p)
{
    struct attention_product *x = &p->lying;
    *x = p->pv;
    x->b = x->what->b;
    x->cast = ng_attention_conversion(x->given, x->b);
    const struct gemm_job g = ng_attention_product(x, x->length);
    return p->few && x->kernel->lies && x->kernel->lies(&g) &&
           (x->given == x->b || ng_pick_cast(&x->cast, ng_ctx_isas(ctx)) == p->cast);
}

/* Columns of all panels; bytes of a row that has them. */
static int64_t wide(const struct attention_product *x)
{
    return x->panels * x->kernel->nr;
}

static size_t line_bytes(const struct attention_product *x)
{
    return up_64(sizeof(uint16_t) * (size_t)wide(x));
}

/* Positions that are multiplied together, at most. */
static int64_t stretch(const struct attention_product *x)
{
    return x->full.whole ? 2 * GEMM_GRAIN : x->tile + x->full.chains;
}

void ng_attention_lay_lying(struct attention_layout *l, const struct attention_plan *p,
                            struct attention_desk *d)
{
    const int64_t rows = p->lies ? stretch(&p->lying) : 0;
    for (int i = 0; i < 2; i++)
        d->lying_row[i] = ng_attention_part(l, sizeof *d->lying_row[i] * (size_t)rows, 1);
    d->lying = ng_attention_part(l, line_bytes(&p->lying), rows);
    d->lying_code =
        ng_attention_part(l, p->lies ? sizeof(uint32_t) * (size_t)p->lying.columns : 0, 1);
}

/* Does v lie as the kernel reads it? */
static bool lies_there(const struct attention_plan *p)
{
    return p->lying.given == p->lying.b && p->g->v.stride[3] == 1 &&
           p->lying.columns == wide(&p->lying);
}

/* Row i of a stretch in the worker's memory: of a key, or of none. */
static const unsigned char *own_row(const struct attention_lying *y, int64_t i, int64_t key)
{
    const struct attention_plan *p = y->w->p;
    const struct attention_product *x = &p->lying;
    unsigned char *own = y->d->lying + (size_t)i * line_bytes(x);
    int64_t index[NG_MAX_RANK];
    memset(own, 0, line_bytes(x));
    if (key < 0)
        return own;
    ng_ref_attention_locate(p->g, y->b, y->kv_head * p->group, key, index);
    index[3] = 0;
    ng_attention_take_codes(p, x, &p->g->v, ng_offset_at(&p->g->v, index), x->columns,
                            y->d->lying_code, own);
    return own;
}

/* Rows a step apart; false: a position has no key. */
static bool step_rows(const int32_t *k, int64_t n, const unsigned char *first, int64_t step,
                      const unsigned char **row)
{
    int32_t any = 0;
    for (int64_t i = 0; i < n; i++) {
        any |= k[i];
        row[i] = first + k[i] * step;
    }
    return any >= 0;
}

/* Rows of positions [from, to) of the walk. */
static void find_rows(const struct attention_lying *y, int64_t from, int64_t to,
                      const unsigned char **row)
{
    const struct attention_plan *p = y->w->p;
    const ng_tensor *v = &p->g->v;
    const bool there = lies_there(p), paged = p->g->op->page_table != NULL;
    const int64_t step = v->stride[2] * (int64_t)sizeof(uint16_t);
    const unsigned char *first;
    ng_attention_rows(p, v, y->b, y->kv_head, y->begin, 1, &first);
    if (there && !paged && step_rows(y->walk->k + from, to - from, first, step, row))
        return;
    for (int64_t i = 0; i < to - from; i++) {
        const int32_t k = y->walk->k[from + i];
        if (!there || k < 0)
            row[i] = own_row(y, i, k < 0 ? -1 : y->begin + k);
        else if (paged)
            ng_attention_rows(p, v, y->b, y->kv_head, y->begin + k, 1, &row[i]);
        else
            row[i] = first + k * step;
    }
}

/* Rows of n positions, as additions [t.from, t.to) to the accumulate memory; the first is
 * b->first. */
static bool take_stretch(const struct attention_lying *y, struct gemm_lying b, int64_t n,
                         struct gemm_tile t)
{
    const struct attention_product *x = &y->w->p->lying;
    const struct ng_gemm_kernel *kernel = x->kernel;
    const struct gemm_job g = ng_attention_product(x, y->n);
    struct gemm_panel head;
    kernel->note(&g, b.row, n, wide(x), t.soon, &head);
    if (y->finite && head.special)
        return false;
    b.head = &head;
    t.scratch = y->d->gemm;
    for (int64_t j = 0; j < x->panels; j++, b.column += kernel->nr)
        for (int32_t i = 0; i < y->panels; i++) {
            t.a = y->a[i];
            t.rows = y->rows[i];
            t.psum = y->psum[i] + j * kernel->mr * kernel->nr;
            if (kernel->tile_lying(&g, y->walk, &t, &b) != GEMM_FAST)
                return false;
        }
    return true;
}

/* The position at which addition `at` begins. */
static int64_t position(const struct gemm_walk *w, int64_t at)
{
    return w->whole ? at : w->start[at];
}

/* What is asked for while the rows before these are noted and multiplied. */
static struct gemm_soon rows_soon(const struct attention_lying *y,
                                  const unsigned char *const *row, int64_t n)
{
    const struct attention_product *x = &y->w->p->lying;
    const struct gemm_walk *w = y->walk;
    const int64_t chains = x->panels * y->panels * (w->whole ? 1 : w->chains),
                  bytes = wide(x) * (int64_t)sizeof(uint16_t);
    int64_t rows = 0;
    for (int32_t i = 0; i < y->panels; i++)
        rows += y->rows[i];
    const bool adjoin = attention_adjoin(row, n, bytes);
    if (x->second && rows < BUSY_ROWS && adjoin)
        return (struct gemm_soon){ 0 }; /* note() meets them in order */
    const int64_t early =
        adjoin && !x->second ? attention_early(n, NOTE_ROWS, PAIR_ROWS + rows) : 0;
    return (struct gemm_soon){
        .row = row, .rows = n, .bytes = bytes, .step = div_up(n - early, chains), .early = early
    };
}

bool ng_attention_multiply_lying(const struct attention_lying *y)
{
    const struct gemm_walk *w = y->walk;
    const bool there = lies_there(y->w->p);
    const int64_t step = w->whole ? 2 * GEMM_GRAIN : 1;
    const unsigned char **row = y->d->lying_row[0], **after = y->d->lying_row[1];
    int64_t from = position(w, y->from), to = position(w, min64(y->from + step, y->to));
    find_rows(y, from, to, row);
    for (int64_t at = y->from; at < y->to; at += step) {
        const int64_t end = min64(at + step, y->to),
                      next = position(w, min64(end + step, y->to));
        if (there) /* else the worker's memory still holds this stretch's */
            find_rows(y, to, next, after);
        struct gemm_soon soon = { 0 };
        if (there)
            soon = rows_soon(y, after, next - to);
        const struct gemm_lying b = { .row = row, .first = from };
        const struct gemm_tile t = {
            .from = at, .to = end, .begun = y->begun || at > y->from, .soon = &soon
        };
        if (!take_stretch(y, b, to - from, t))
            return false;
        if (!there)
            find_rows(y, to, next, after);
        from = to;
        to = next;
        const unsigned char **used = row;
        row = after;
        after = used;
    }
    return true;
}
