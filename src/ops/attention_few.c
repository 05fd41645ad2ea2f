/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P times v for a few rows (decode): v is read where it lies, a K tile after another, for all
 * rows and columns while the first cache has it. A panel of v would cost more than its use. In
 * another format than bf16 a K tile's rows are converted first.
 */
#include <string.h>

#include "attention_plan.h"

/* Columns of all panels. */
static int64_t wide(const struct attention_product *x)
{
    return x->panels * x->kernel->nr;
}

/* Positions that are multiplied together, at most. */
static int64_t stretch(const struct attention_product *x)
{
    return x->full.whole ? 2 * GEMM_GRAIN : x->tile + x->full.chains;
}

void ng_attention_lay_lying(struct attention_layout *l, const struct attention_plan *p,
                            struct attention_desk *d)
{
    const struct attention_product *x = &p->lying;
    if (!p->lies)
        return;
    const int64_t rows = stretch(x);
    const size_t row = sizeof(uint32_t) * (size_t)wide(x);
    for (int i = 0; i < 2; i++)
        d->lying_row[i] = ng_attention_part(l, sizeof *d->lying_row[i] * (size_t)rows, 1);
    d->v_room = ng_attention_lay_room(l, x, wide(x), rows);
    d->lying_zeros = ng_attention_part(l, row, 1);
    d->lying_code = ng_attention_part(l, row, 1);
}

/* Does v lie as the kernel reads it? */
static bool lies_there(const struct attention_plan *p)
{
    return p->lying.given == p->lying.b && ng_attention_in_rows(&p->lying, &p->g->v) &&
           p->lying.columns == wide(&p->lying);
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

/* Rows of positions [from, to) of the walk, where they lie as given. */
static void find_rows(const struct attention_lying *y, int64_t from, int64_t to,
                      const unsigned char **row)
{
    const struct attention_plan *p = y->w->p;
    const ng_tensor *v = &p->g->v;
    const bool paged = p->g->op->page_table != NULL;
    const int64_t step = v->stride[2] * (int64_t)(p->lying.given->store_bits / 8);
    const unsigned char *first;
    ng_attention_rows(p, v, y->b, y->kv_head, y->begin, 1, &first);
    if (!paged && step_rows(y->walk->k + from, to - from, first, step, row))
        return;
    for (int64_t i = 0; i < to - from; i++) {
        const int32_t k = y->walk->k[from + i];
        if (k < 0)
            row[i] = y->d->lying_zeros;
        else if (paged)
            ng_attention_rows(p, v, y->b, y->kv_head, y->begin + k, 1, &row[i]);
        else
            row[i] = first + k * step;
    }
}

/* Codes one by one: rows of positions [from, to) as they are read. */
static void read_rows(const struct attention_lying *y, int64_t from, int64_t to,
                      const unsigned char **row)
{
    const struct attention_plan *p = y->w->p;
    const struct attention_product *x = &p->lying;
    const size_t line = sizeof(uint16_t) * (size_t)wide(x);
    unsigned char *own = y->d->v_room.rows;
    for (int64_t i = from; i < to; i++, own += line) {
        const int32_t k = y->walk->k[i];
        int64_t index[NG_MAX_RANK];
        memset(own, 0, line);
        row[i - from] = own;
        if (k < 0)
            continue;
        ng_ref_attention_locate(p->g, y->b, y->kv_head * p->group, y->begin + k, index);
        index[3] = 0;
        ng_attention_take_codes(p, x, &p->g->v, ng_offset_at(&p->g->v, index), x->columns,
                                y->d->lying_code, own);
    }
}

/* Has the kernel pairs of positions out of v's codes of 8 bits? */
static bool widens_pairs(const struct attention_product *x)
{
    return x->widens && x->kernel->widen_pairs;
}

/* Rows of n positions become what they are converted to: pairs of positions, where the kernel
 * has that, or rows. Are their facts known? */
static bool convert_stretch(const struct attention_lying *y, int64_t n,
                            const unsigned char **row, struct gemm_soon *soon,
                            struct gemm_lying *b, struct gemm_panel *head)
{
    const struct attention_plan *p = y->w->p;
    const struct attention_product *x = &p->lying;
    const struct attention_room *room = &y->d->v_room;
    b->pairs = widens_pairs(x) &&
               x->kernel->widen_pairs(&x->job, x->given, x->value, row, n, x->columns, wide(x),
                                      soon, (uint16_t *)(void *)room->rows, head);
    if (!b->pairs)
        return ng_attention_take_rows(p, x, x->columns, wide(x), n, room, row, head);
    for (int64_t i = 0; i < n; i++)
        row[i] = room->rows + sizeof(uint16_t) * (size_t)(i * wide(x));
    return true;
}

/* Rows of n positions, as additions [t.from, t.to) to the accumulate memory; the first is
 * b.first. `head`: their facts, where `known`. */
static bool take_stretch(const struct attention_lying *y, struct gemm_lying b, int64_t n,
                         struct gemm_panel head, bool known, struct gemm_tile t)
{
    const struct attention_product *x = &y->w->p->lying;
    const struct ng_gemm_kernel *kernel = x->kernel;
    const struct gemm_job g = ng_attention_product(x, y->n);
    if (!known)
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
                  bytes = x->columns * (int64_t)(x->given->store_bits / 8);
    int64_t rows = 0;
    for (int32_t i = 0; i < y->panels; i++)
        rows += y->rows[i];
    const bool pairs = widens_pairs(x),
               adjoin = (pairs || x->given == x->b) && attention_adjoin(row, n, bytes);
    int64_t early = 0;
    if (adjoin && pairs)
        early = attention_early(n, WIDEN_ROWS, LOAD_ROWS + rows);
    else if (adjoin && !x->second)
        early = attention_early(n, NOTE_ROWS, PAIR_ROWS + rows);
    else if (adjoin && rows < BUSY_ROWS)
        return (struct gemm_soon){ 0 }; /* note() meets them in order */
    return (struct gemm_soon){
        .row = row, .rows = n, .bytes = bytes, .step = div_up(n - early, chains), .early = early
    };
}

bool ng_attention_multiply_lying(const struct attention_lying *y)
{
    const struct attention_plan *p = y->w->p;
    const struct attention_product *x = &p->lying;
    const struct gemm_walk *w = y->walk;
    const bool there = lies_there(p), in_rows = ng_attention_in_rows(x, &p->g->v);
    const int64_t step = w->whole ? 2 * GEMM_GRAIN : 1;
    const unsigned char **row = y->d->lying_row[0], **after = y->d->lying_row[1];
    int64_t from = position(w, y->from), to = position(w, min64(y->from + step, y->to));
    memset(y->d->lying_zeros, 0, sizeof(uint32_t) * (size_t)wide(x));
    if (in_rows)
        find_rows(y, from, to, row);
    for (int64_t at = y->from; at < y->to; at += step) {
        const int64_t end = min64(at + step, y->to),
                      next = position(w, min64(end + step, y->to));
        struct gemm_soon soon = { 0 };
        struct gemm_panel head = { 0 };
        bool known = false;
        if (in_rows) {
            find_rows(y, to, next, after);
            soon = rows_soon(y, after, next - to);
        }
        struct gemm_lying b = { .row = row, .first = from };
        if (!in_rows)
            read_rows(y, from, to, row);
        else if (!there)
            known = convert_stretch(y, to - from, row, &soon, &b, &head);
        const struct gemm_tile t = {
            .from = at, .to = end, .begun = y->begun || at > y->from, .soon = &soon
        };
        if (!take_stretch(y, b, to - from, head, known, t))
            return false;
        from = to;
        to = next;
        const unsigned char **used = row;
        row = after;
        after = used;
    }
    return true;
}
