/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rooms 2 to 5 of a multiply (docs/architecture.md): pick a kernel, claim memory, pack, run the
 * tiles, write D. Nothing here can fail once memory is claimed.
 *
 * K order is fixed by the page, so blocks of K carry psum in FP32; M, N and threads are free.
 */
#include <stdatomic.h>
#include <string.h>

#include "../../kernels/bf16.h"
#include "../../kernels/rule.h"
#include "../ref/ref.h"
#include "gemm_run.h"

enum {
    BLOCK_ROWS = 192,  /* of an item */
    BLOCK_LEAST = 96,  /* where K is deep: B's panels, from farther off, are to serve many */
    BLOCK_DEEP = 4096, /* positions: psum goes to memory and comes back once a block */
    BLOCK_BYTES = 896 << 10, /* of an item's A panels, one block of K deep: they stay in L2 */
    BLOCK_COLS = 512,        /* of an item: so that A's block is read often */
    SLAB_SUMS = 65536,       /* 256 KiB */
    ITEMS = 6,               /* per worker, for an even load */
    STRAIGHT_PANELS = 2,     /* of A: so few read B once or twice */
    HERE_PANELS = 8,         /* of A, that read a panel of B where it was made, */
    HERE_ROWS = 64,
    HERE_BYTES = 1 << 20,   /* if it has no more than these, which are a second cache's */
    LEAST_PRODUCTS = 32,    /* of a matrix, or of all rows of ng_dot(): others want no panels */
    LEAST_FUSED = 4,        /* elements of a fused rule, likewise */
    LEAST_ELEMENTS = 16,    /* of a matrix: fewer are had sooner by the reference than by a
                               kernel's slow path for a whole tile */
    DOTS_AGAIN = 16,        /* k of a row that is worth being packed twice */
    DOTS_BYTES = 256 << 20, /* of panels; ng_dot() of longer rows is the reference's */
    MAX_COLS = 64,          /* the widest kernel's */
    MAX_ROWS = 32           /* the tallest's */
};

struct gemm_job ng_gemm_matrix(const struct gemm_call *q, int64_t matrix)
{
    struct gemm_job g = q->job;
    int64_t rest = matrix;
    for (uint32_t i = q->n_batch; i-- > 0;) {
        const int64_t x = rest % q->batch[i];
        rest /= q->batch[i];
        g.a.offset += x * q->a_step[i];
        g.b.offset += x * q->b_step[i];
        g.c.offset += x * q->c_step[i];
        g.d.offset += x * q->d_step[i];
        g.a.scale_offset += x * q->as_step[i];
        g.b.scale_offset += x * q->bs_step[i];
    }
    g.first = matrix * g.m * g.n;
    g.a.tag_line = matrix * g.m;
    g.b.tag_line = matrix * g.n;
    return g;
}

/* ---- Desk. ---- */

struct work {
    const struct gemm_call *q;
    const struct ng_gemm_kernel *kernel;
    struct gemm_walk walk;
    int64_t panels_m, panels_n, matrices_a, matrices_b; /* 1 where all of a batch share it */
    size_t a_bytes, b_bytes;                            /* of a panel */
    size_t b_step;                                      /* from one of B's to the next */
    bool slim;    /* they grow before they are multiplied */
    bool here;    /* each is made in the memory of the worker that reads it at once */
    bool sparing; /* so few elements that no slow path is worth it, and B is here */
    unsigned char *a, *worker;
    const unsigned char *b;
    size_t worker_bytes;
    int64_t block_m, block_n, blocks_m, blocks_n; /* panels of an item; items of a matrix */
    int64_t deep;                                 /* tiles (whole: positions) of a K block */
    struct gemm_walk last;                        /* of a group in slabs: the last one's */
    int64_t panels_a;                             /* of one of its slabs */
    const struct gemm_group *group;               /* or NULL: a batch */
    int64_t *first_panel, *first_item;            /* of a group's parts; then all */
    atomic_ullong tiles[3];
};

static size_t up_64(size_t n)
{
    return (n + 63) / 64 * 64;
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

int64_t ng_gemm_panels(int64_t lines, int64_t width)
{
    return div_up(lines, width);
}

/* Panels of A are of equal height, so that none is left with a row or two: m rows in `panels`.
 */
static int64_t panel_row(int64_t m, int64_t panels, int64_t panel)
{
    return panel * m / panels;
}

/* A handful of products is not worth a panel, nor are one to three sums of aligned terms. */
static bool small(const struct gemm_call *q)
{
    const struct gemm_job *g = &q->job;
    const int64_t rows = q->dot ? q->n_matrices : g->m, least = rule_fused(g) ? LEAST_FUSED : 1;
    if (rows >= LEAST_PRODUCTS || g->n >= LEAST_PRODUCTS)
        return false;
    return rows * g->n < least || rows * g->n * min64(g->k, LEAST_PRODUCTS) < LEAST_PRODUCTS;
}

const struct ng_gemm_kernel *ng_gemm_run_kernel(ng_ctx *ctx, const struct gemm_call *q)
{
    if (small(q) || !ng_walk_bytes(&q->job))
        return NULL;
    return ng_pick_gemm(&q->job, ng_ctx_isas(ctx), ng_ctx_slow(ctx));
}

static bool shared(const struct gemm_call *q, const int64_t *step, const int64_t *scale_step,
                   const struct gemm_operand *o)
{
    for (uint32_t i = 0; i < q->n_batch; i++)
        if (step[i] || (o->scale && scale_step[i]))
            return false;
    return !o->sparse; /* every matrix has tags of its own */
}

static int64_t part_panels(const struct work *w, int64_t part)
{
    return ng_gemm_panels(w->group->part[part].rows, w->kernel->mr);
}

/* Blocks of rows, of all matrices. */
static int64_t row_blocks(const struct work *w)
{
    int64_t n = 0;
    if (!w->group)
        return div_up(w->panels_m, w->block_m) * w->q->n_matrices;
    for (int64_t p = 0; p < w->group->parts; p++)
        n += div_up(part_panels(w, p), w->block_m);
    return n;
}

/* Rows and K of a block. */
static void cut_blocks(struct work *w)
{
    const struct gemm_walk *walk = &w->walk;
    const struct gemm_block *block = &w->kernel->block;
    const int64_t units = walk->whole ? div_up(walk->depth, GEMM_GRAIN) : walk->tiles,
                  most = w->panels_m, mr = w->kernel->mr;
    w->block_m = max64(1, min64(most, (block->rows ? block->rows : BLOCK_ROWS) / mr));
    w->deep = max64(1, walk->whole ? walk->depth : walk->tiles);
    if (units == 0)
        return;
    const int64_t most_deep = block->deep ? block->deep : BLOCK_DEEP,
                  unit = max64(1, (int64_t)w->a_bytes / units),
                  deepest = max64(1, most_deep * units / walk->depth),
                  depth = min64(units, deepest);
    if (most > w->block_m && w->block_m * unit * depth > BLOCK_BYTES)
        w->block_m = max64(BLOCK_LEAST / mr, BLOCK_BYTES / (unit * depth));
    const int64_t fits = max64(1, BLOCK_BYTES / (w->block_m * unit)),
                  blocks = div_up(units, min64(fits, deepest));
    w->deep = div_up(units, blocks) * (walk->whole ? GEMM_GRAIN : 1);
}

/* Of an item. Slabs are read one after another, each where it lies: few rows, which wait for
 * memory, go over as much of one as the second cache has room for the sums of. */
static int64_t cols_of_item(const struct work *w)
{
    const int64_t rows = w->block_m * w->kernel->mr;
    return w->group && w->group->slabs ? max64(BLOCK_COLS, SLAB_SUMS / rows) : BLOCK_COLS;
}

/* Where a slim panel grows in a worker's memory: behind what else an item has there. */
static size_t grown_at(const struct work *w)
{
    const struct ng_gemm_kernel *k = w->kernel;
    return up_64(k->scratch_bytes) + up_64((size_t)(w->block_m * w->block_n)) +
           up_64((size_t)(w->block_m * w->block_n * k->mr * k->nr) * 4);
}

/* Items: enough for every worker, but of whole blocks where there is plenty. */
static void cut_items(struct work *w, size_t workers)
{
    const struct ng_gemm_kernel *k = w->kernel;
    const int64_t want = (int64_t)(workers > 1 ? workers * ITEMS : 1);
    cut_blocks(w);
    w->here = w->here && w->panels_m <= w->block_m;
    w->block_n = min64(w->panels_n, cols_of_item(w) / k->nr);
    while (w->block_n > 1 && row_blocks(w) * div_up(w->panels_n, w->block_n) < want)
        w->block_n = (w->block_n + 1) / 2;
    w->blocks_m = div_up(w->panels_m, w->block_m);
    w->blocks_n = div_up(w->panels_n, w->block_n);
    w->worker_bytes =
        grown_at(w) + (w->slim ? up_64(w->b_bytes) : 0) + (w->here ? up_64(w->b_step) : 0);
}

struct memory {
    size_t walk, last, a, b, worker, all;
};

static bool add_to(size_t *sum, size_t n, int64_t times, size_t *at)
{
    size_t bytes;
    *at = *sum;
    return !__builtin_mul_overflow(n, (size_t)times, &bytes) &&
           !__builtin_add_overflow(*sum, bytes, sum);
}

/* So few elements that a slow path for a whole tile is not worth it? */
static bool spares(const struct gemm_call *q)
{
    return q->job.m * q->job.n < LEAST_ELEMENTS;
}

/* So many panels of A read a slim B as it is. */
static int64_t slim_most(const struct ng_gemm_kernel *k, const struct gemm_job *g)
{
    if (g->b.sparse)
        return k->kept_panels;
    return g->b.spec->store_bits == 8 ? k->byte_panels : k->slim_panels;
}

/* Does B come in codes that so few panels of A read as they are, and that cost less to make
 * than panels of their own? */
static bool slims(const struct work *w)
{
    const struct ng_gemm_kernel *k = w->kernel;
    const struct gemm_job *g = &w->q->job;
    return !spares(w->q) && k->tile_slim && w->panels_m <= slim_most(k, g) && k->slims &&
           k->slims(g, &w->walk);
}

/* Are B's panels, of which so few rows of A read each, best made one at a time? Not where a
 * batch shares them, nor where workers would want more memory than all of them. */
static bool few_read(const struct work *w, size_t workers)
{
    const bool shares = w->matrices_b < w->q->n_matrices,
               many = w->panels_n * w->matrices_b >= (int64_t)workers;
    return !shares && many && w->panels_m <= HERE_PANELS && w->q->job.m <= HERE_ROWS &&
           (w->panels_m <= STRAIGHT_PANELS || w->b_step <= HERE_BYTES);
}

/* Numbers only: what memory is wanted, and how the work is cut. */
static ng_status plan(ng_ctx *ctx, struct work *w, const struct gemm_packed *packed,
                      struct memory *m)
{
    const struct gemm_call *q = w->q;
    const struct gemm_job *g = &q->job;
    const size_t workers = ng_workers(ctx);
    *m = (struct memory){ 0 };
    ng_walk_build(g, NULL, &w->walk);
    w->panels_m = ng_gemm_panels(g->m, w->kernel->mr);
    w->panels_n = ng_gemm_panels(g->n, w->kernel->nr);
    w->matrices_a = shared(q, q->a_step, q->as_step, &g->a) ? 1 : q->n_matrices;
    w->matrices_b = shared(q, q->b_step, q->bs_step, &g->b) ? 1 : q->n_matrices;
    w->a_bytes = w->kernel->panel_bytes(g, &w->walk, GEMM_A);
    w->b_bytes = w->kernel->panel_bytes(g, &w->walk, GEMM_B);
    w->slim = packed ? packed->slim : slims(w);
    w->b_step = packed    ? packed->panel_bytes
                : w->slim ? w->kernel->slim_bytes(g, &w->walk)
                          : w->b_bytes;
    w->here = !packed && few_read(w, workers);
    cut_items(w, workers);
    bool fits = add_to(&m->all, up_64(ng_walk_bytes(g)), 1, &m->walk);
    fits = fits && add_to(&m->all, w->a_bytes, w->panels_m * w->matrices_a, &m->a);
    /* no less than what a packed B wants, which grows a panel a worker if it is slim */
    const int64_t grown = w->kernel->slim_bytes(g, &w->walk) ? (int64_t)workers : 0,
                  panels = w->panels_n * w->matrices_b;
    fits = fits && add_to(&m->all, w->slim ? w->b_step : w->b_bytes,
                          packed || w->here ? 0
                          : panels > grown  ? panels
                                            : grown,
                          &m->b);
    fits = fits && add_to(&m->all, w->worker_bytes, (int64_t)workers, &m->worker);
    return fits ? NG_OK
                : ng_fail(ctx, NG_ERR_SHAPE, "%s: packed operands overflow size_t", q->name);
}

/* ---- Pantry. ---- */

struct packing {
    struct work *w;
    unsigned char *a, *b;
    int64_t all_a;
    unsigned char *full; /* a panel a worker, */
    size_t full_step;    /* so far apart; NULL: B's stay as they are */
};

/* A panel of B from `line` on. `full`: memory for one to make a slim one from, or NULL. */
static void make_b(const struct work *w, const struct gemm_job *g, int64_t line,
                   unsigned char *full, unsigned char *panel)
{
    const int32_t lines = (int32_t)min64(w->kernel->nr, g->n - line);
    if (full && w->kernel->slim(g, &w->walk, line, lines, NULL, panel))
        return;
    w->kernel->pack(g, &w->walk, GEMM_B, line, lines, full ? full : panel);
    if (full)
        (void)w->kernel->slim(g, &w->walk, line, lines, full, panel);
}

static void pack_one(void *arg, size_t item, size_t worker)
{
    const struct packing *p = arg;
    const struct work *w = p->w;
    const bool is_a = (int64_t)item < p->all_a;
    const int64_t i = is_a ? (int64_t)item : (int64_t)item - p->all_a,
                  panels = is_a ? w->panels_m : w->panels_n, at = i % panels;
    const struct gemm_job g = ng_gemm_matrix(w->q, i / panels);
    const uint32_t saved = ng_fp_enter();
    if (is_a) {
        const int64_t line = panel_row(g.m, w->panels_m, at),
                      end = panel_row(g.m, w->panels_m, at + 1);
        w->kernel->pack(&g, &w->walk, GEMM_A, line, (int32_t)(end - line),
                        p->a + (size_t)i * w->a_bytes);
    } else {
        make_b(w, &g, at * w->kernel->nr, p->full ? p->full + worker * p->full_step : NULL,
               p->b + (size_t)i * w->b_step);
    }
    ng_fp_leave(saved);
}

/* ---- Pantry of a group: lines of A that rows name are brought together a panel at a time.
 * ---- */

/* All of K: of a group in slabs, all slabs. */
static size_t line_bytes(const struct work *w)
{
    const struct gemm_operand *a = &w->q->job.a;
    const struct gemm_slabs *slabs = w->group->slabs;
    const int64_t before = slabs ? (slabs->slabs - 1) * slabs->depth : 0,
                  depth = before + (slabs ? slabs->last->job.a.depth : a->depth);
    return ((size_t)depth * a->spec->store_bits + 7) / 8;
}

/* Codes, then scales, of a panel's lines: what gather() fills. */
static size_t gather_bytes(const struct work *w)
{
    const struct gemm_operand *a = &w->q->job.a;
    const size_t blocks = a->scale ? (size_t)w->walk.blocks : 0;
    return w->group->line ? up_64((size_t)w->kernel->mr * up_64(line_bytes(w))) +
                                up_64((size_t)w->kernel->mr * blocks)
                          : 0;
}

/* `lines` lines of A, one behind the other in `room`; the operand that they are. */
static struct gemm_operand gather(const struct work *w, const int32_t *line, int64_t lines,
                                  unsigned char *room)
{
    struct gemm_operand a = w->q->job.a;
    const size_t bytes = line_bytes(w), step = up_64(bytes);
    const int64_t blocks = a.scale ? w->walk.blocks : 0;
    uint8_t *scale = room + up_64((size_t)w->kernel->mr * step);
    for (int64_t l = 0; l < lines; l++) {
        const int64_t at = (a.offset + line[l] * a.line) * (int64_t)a.spec->store_bits / 8;
        memcpy(room + (size_t)l * step, (const unsigned char *)a.data + at, bytes);
        for (int64_t b = 0; b < blocks; b++)
            scale[l * blocks + b] =
                a.scale[a.scale_offset + line[l] * a.scale_line + b * a.scale_block];
    }
    a.data = room;
    a.offset = 0;
    a.line = (int64_t)(step * 8 / a.spec->store_bits);
    if (blocks) {
        a.scale = scale;
        a.scale_offset = 0;
        a.scale_line = blocks;
        a.scale_block = 1;
    }
    return a;
}

/* The part that `at` is of: first[part] <= at < first[part + 1]. */
static int64_t part_of(const int64_t *first, int64_t parts, int64_t at)
{
    int64_t low = 0, high = parts;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        *(first[middle] <= at ? &low : &high) = middle;
    }
    return low;
}

static void pack_part(void *arg, size_t item, size_t worker)
{
    const struct work *w = arg;
    const struct gemm_group *group = w->group;
    const int64_t p = part_of(w->first_panel, group->parts, (int64_t)item),
                  panel = (int64_t)item - w->first_panel[p], panels = part_panels(w, p);
    const struct gemm_part *part = &group->part[p];
    struct gemm_job g = w->q->job;
    int64_t row = part->a_row + panel_row(part->rows, panels, panel);
    const int64_t rows = part->a_row + panel_row(part->rows, panels, panel + 1) - row;
    if (group->line) {
        g.a = gather(w, group->line + row, rows, w->worker + worker * w->worker_bytes);
        row = 0;
    }
    const struct gemm_slabs *slabs = group->slabs;
    const uint32_t saved = ng_fp_enter();
    for (int64_t s = 0, all = slabs ? slabs->slabs : 1; s < all; s++) {
        const bool last = slabs && s == all - 1;
        struct gemm_job one = last ? slabs->last->job : g;
        one.a = g.a;
        if (slabs) {
            one.a.depth = one.k;
            one.a.offset += s * slabs->depth * g.a.k;
        }
        w->kernel->pack(&one, last ? &w->last : &w->walk, GEMM_A, row, (int32_t)rows,
                        w->a + ((size_t)(s * w->panels_a) + item) * w->a_bytes);
    }
    ng_fp_leave(saved);
}

/* ---- Workshop: psum of a tile, in FP32. ---- */

/* An item's tiles: psum and what became of each. */
struct bench {
    const struct work *w;
    const struct gemm_walk *walk;
    struct gemm_job g;
    void *scratch;
    uint8_t *way;
    float *psum;
    const unsigned char *a, *b;
    size_t b_step; /* from one of B's panels to the next */
    bool near;     /* a psum for each of A's panels; another panel of B takes them again */
    int64_t after; /* of a slab: bytes from B's panel to what is wanted next, or 0 */
    bool one_psum; /* all tiles use the same place, one after another */
    bool brought;  /* two panels of A have read B's, which is near since: see twos() */
    bool as_is, at_once;    /* D takes psum as it is; as soon as it is there */
    struct gemm_soon *soon; /* or NULL */
    unsigned char *grown;   /* the panel of B under way, if they are slim, */
    bool grew;              /* if it has been needed: see want_grown() */
    unsigned char *made;    /* where B's panels are made one at a time, */
    int64_t made_n;         /* and which one is there */
    int64_t grow_from, grow_to;
    int64_t panels_m; /* of the matrix */
    int64_t panel_m, panel_n, count_m, count_n;
    int64_t row[BLOCK_ROWS + 1]; /* where each of count_m panels begins; and behind the last */
    unsigned long long tiles[3];
};

static int64_t row_of(const struct bench *x, int64_t i)
{
    return x->row[i];
}

static int64_t rows_of(const struct bench *x, int64_t i)
{
    return x->row[i + 1] - x->row[i];
}

static int64_t cols_of(const struct bench *x, int64_t j)
{
    const int64_t nr = x->w->kernel->nr;
    return min64(nr, x->g.n - (x->panel_n + j) * nr);
}

static float *psum_of(const struct bench *x, int64_t i, int64_t j)
{
    const int64_t tile = x->one_psum ? 0 : x->near ? i : j * x->count_m + i;
    return x->psum + tile * x->w->kernel->mr * x->w->kernel->nr;
}

static uint32_t c_pattern(const struct gemm_job *g, int64_t i, int64_t j)
{
    return widen(g->c.spec, load_code(g->c.data, g->c.spec->store_bits,
                                      g->c.offset + i * g->c.row + j * g->c.col));
}

/* psum = C, or C added to it. */
static void take_c(const struct bench *x, int64_t i, int64_t j, bool add)
{
    const int64_t row = row_of(x, i), nr = x->w->kernel->nr, col = (x->panel_n + j) * nr;
    float *psum = psum_of(x, i, j);
    for (int64_t r = 0; r < rows_of(x, i); r++)
        for (int64_t l = 0; l < nr; l++) {
            const float c =
                l < cols_of(x, j) ? as_float(c_pattern(&x->g, row + r, col + l)) : 0;
            psum[r * nr + l] = add ? c + psum[r * nr + l] : c;
        }
}

/* ---- bf16 accumulate memory (6): every write is rounded. ---- */

static void round_psum_sr(const struct bench *x, int64_t i, int64_t j, int64_t write)
{
    const struct gemm_job *g = &x->g;
    const ng_cast *cast = &g->op->psum;
    const int64_t row = row_of(x, i), nr = x->w->kernel->nr, col = (x->panel_n + j) * nr;
    float *psum = psum_of(x, i, j);
    for (int64_t r = 0; r < rows_of(x, i); r++) {
        uint32_t word[MAX_COLS];
        ng_stream_words(g->psum_words, write * g->elements + g->first + (row + r) * g->n + col,
                        cols_of(x, j), word);
        for (int64_t l = 0; l < cols_of(x, j); l++) {
            uint32_t u = as_pattern(psum[r * nr + l]);
            if ((u & 0x7F800000u) == 0x7F800000u)
                continue;
            if (bf16_stochastic_up(u & 0xFFFFu, word[l], cast))
                u += 0x10000u;
            psum[r * nr + l] = as_float(u & 0xFFFF0000u);
        }
    }
}

static void round_psum(const struct bench *x, int64_t i, int64_t j, int64_t write)
{
    if (x->g.op->psum.round == NG_ROUND_STOCHASTIC) {
        round_psum_sr(x, i, j, write);
        return;
    }
    const int64_t n = rows_of(x, i) * x->w->kernel->nr;
    float *psum = psum_of(x, i, j);
    for (int64_t l = 0; l < n; l++)
        psum[l] = as_float(bf16_nearest(as_pattern(psum[l])));
}

/* ---- Back door of a D that takes psum as it is. ---- */

static bool plain(const struct gemm_job *g)
{
    return !g->op->out_scale && g->op->out.overflow == NG_OVERFLOW_INF;
}

/* FP32 of FP32 sums. */
static bool takes_psum(const struct gemm_job *g)
{
    return plain(g) && g->d.spec->format == NG_F32 && g->acc == NG_F32;
}

static struct gemm_write way_out(const struct bench *x, int64_t i, int64_t j)
{
    const struct gemm_matrix *d = &x->g.d;
    return (struct gemm_write){
        .psum = psum_of(x, i, j),
        .d = (unsigned char *)d->data + 4 * (d->offset + row_of(x, i) * d->row +
                                             (x->panel_n + j) * x->w->kernel->nr * d->col),
        .rows = rows_of(x, i),
        .columns = cols_of(x, j),
        .d_row = 4 * d->row,
        .d_col = 4 * d->col,
        .nan = (uint32_t)x->g.rule->set[NG_PARAM_NAN_F32].value,
    };
}

static void write_as_is(const struct bench *x, int64_t i, int64_t j)
{
    const struct gemm_write w = way_out(x, i, j);
    x->w->kernel->write(&w);
}

/* ---- Workshop: tiles. ---- */

static const unsigned char *panel_b(struct bench *x, int64_t j)
{
    const struct work *w = x->w;
    if (w->here && x->made_n != x->panel_n + j)
        make_b(w, &x->g, (x->panel_n + j) * w->kernel->nr, w->slim ? x->grown : NULL, x->made);
    x->made_n = x->panel_n + j;
    if (w->here)
        return x->made;
    return x->b + (size_t)(x->panel_n + j) * x->b_step;
}

/* K tiles [t0, t1), or positions of a whole chain, of a panel of B come next. */
static void begin_panel(struct bench *x, int64_t t0, int64_t t1)
{
    x->grow_from = t0;
    x->grow_to = t1;
    x->grew = false;
    x->brought = false;
}

/* The stretch under way of a slim panel, once. */
static void want_grown(struct bench *x, int64_t j)
{
    const struct work *w = x->w;
    const int64_t *start = x->walk->start;
    const bool whole = x->walk->whole;
    if (!x->grew)
        w->kernel->grow(&x->g, x->walk, whole ? x->grow_from : start[x->grow_from],
                        whole ? x->grow_to : start[x->grow_to], panel_b(x, j),
                        j + 1 < x->count_n && !w->here ? (int64_t)x->b_step : 0, x->grown);
    x->grew = true;
}

static const unsigned char *panel_a(const struct bench *x, int64_t i)
{
    return x->a + (size_t)(x->panel_m + i) * x->w->a_bytes;
}

/* So few panels of A would wait for each of B's: the last ones multiplied by one bring the next
 * one nearer, a part each. */
enum {
    NEXT_PANELS = 8,
    NEXT_ROWS = 64,
    NEXT_PARTS = 4,
    TWOS_DEEPER = 4, /* twos(): blocks of K are so many times as deep */
    TWOS_WAIT = 10   /* rows that two panels wait for memory with */
};

/* Codes of B as they are, while no tile finds that it cannot. */
static bool reads_slim(const struct bench *x)
{
    const struct ng_gemm_kernel *k = x->w->kernel;
    return x->w->slim && k->tile_slim && x->count_m <= slim_most(k, &x->g);
}

/* Is B's panel a grown one, in the worker's memory? */
static bool reads_grown(const struct bench *x)
{
    return x->w->slim && !reads_slim(x);
}

static bool brings_next(const struct bench *x, int64_t j)
{
    return x->count_m <= NEXT_PANELS && x->count_m * x->w->kernel->mr <= NEXT_ROWS &&
           j + 1 < x->count_n && !reads_grown(x) && !x->w->here;
}

/* B comes from memory all the time, a block of K of each of its panels while the one before it
 * is read as often as there are panels of A. (What `soon` asks for comes by itself.) */
static bool few(const struct bench *x)
{
    const struct gemm_few *of = &x->w->kernel->few;
    return of->deep && !x->soon && x->g.m > of->rows && x->panels_m <= of->panels;
}

/* Many panels of A by one call, a stretch of K of B after the other. */
static bool near(const struct bench *x)
{
    const struct ng_gemm_kernel *k = x->w->kernel;
    return k->near && k->near(&x->g, x->walk, x->count_m);
}

/* One or two panels wait for memory anyway: all of K at once. */
static bool straight(const struct bench *x)
{
    return x->panels_m <= STRAIGHT_PANELS && !few(x);
}

/* Is there something to do to psum between its additions, or before them? */
static bool changes(const struct bench *x)
{
    return !x->walk->whole && (x->g.acc != NG_F32 || x->g.c.data);
}

/* 8-bit codes as they are, or what a sparse B keeps? */
static bool reads_bytes(const struct bench *x)
{
    return reads_slim(x) && (x->g.b.spec->store_bits == 8 || x->g.b.sparse) && !x->walk->blocks;
}

/* Two panels, or several, and a kernel that reads B once for two. */
static bool both(const struct bench *x)
{
    const bool several = reads_bytes(x) || (few(x) && !x->w->slim);
    return x->w->kernel->both && (straight(x) ? x->count_m == 2 : several && x->count_m > 1) &&
           !x->soon && !reads_grown(x) && !x->w->here && !changes(x);
}

/* The first two bring what all of them read, codes two after two. */
static bool twos(const struct bench *x)
{
    return both(x) && !straight(x);
}

/* Do the first two wait for memory? Then the third asks for a part of the next panel. */
static bool twos_wait(const struct bench *x, int64_t j)
{
    return twos(x) && !x->w->slim && x->row[2] - x->row[0] <= TWOS_WAIT && brings_next(x, j);
}

/* Bits of gemm_tile.parts: all parts by as many tiles as there are, or one each by the last. */
static uint8_t parts_of(const struct bench *x, int64_t i)
{
    const int64_t n = min64(x->count_m, NEXT_PARTS), at = i - (x->count_m - n);
    if (at < 0)
        return 0;
    const int64_t from = at * NEXT_PARTS / n, to = (at + 1) * NEXT_PARTS / n;
    return (uint8_t)((1u << to) - (1u << from));
}

/* The same of a tile by itself. */
static uint8_t parts_of_one(const struct bench *x, int64_t i, int64_t j)
{
    if (!x->brought)
        return brings_next(x, j) ? parts_of(x, i) : 0;
    return i == 2 && twos_wait(x, j) ? 1 : 0;
}

static gemm_way run_tile(struct bench *x, int64_t i, int64_t j, int64_t from, int64_t to,
                         bool begun, struct gemm_write *write)
{
    const struct work *w = x->w;
    struct gemm_tile t = { .a = panel_a(x, i),
                           .b = panel_b(x, j),
                           .rows = (int32_t)rows_of(x, i),
                           .from = from,
                           .to = to,
                           .begun = begun,
                           .psum = psum_of(x, i, j),
                           .scratch = x->scratch,
                           .soon = x->soon,
                           .fresh = !w->here && (straight(x) || (i == 0 && !(few(x) && j > 0))),
                           .once = x->count_m == 1,
                           .sparing = x->w->sparing,
                           .parts = parts_of_one(x, i, j),
                           .next = (int64_t)x->b_step,
                           .write = write };
    if (reads_slim(x)) {
        const gemm_way way = w->kernel->tile_slim(&x->g, x->walk, &t);
        if (way != GEMM_LEFT)
            return way;
    }
    if (w->slim) {
        want_grown(x, j);
        t.b = x->grown;
        t.fresh = false;
        t.parts = 0;
    }
    return w->kernel->tile(&x->g, x->walk, &t);
}

/* One tile over K tiles [t0, t1), or positions of a whole chain. `write`, or NULL: of a tile
 * that is then over. */
static gemm_way run_block(struct bench *x, int64_t i, int64_t j, int64_t t0, int64_t t1,
                          struct gemm_write *write)
{
    const struct gemm_walk *walk = x->walk;
    const bool c = x->g.c.data && !walk->whole;
    const int64_t writes = walk->whole ? 1 : walk->writes;
    if (t0 == 0 && c)
        take_c(x, i, j, false);
    if (walk->whole || x->g.acc != NG_BF16)
        return run_tile(x, i, j, t0 * writes, t1 * writes, t0 > 0 || c, write);
    gemm_way way = GEMM_FAST;
    for (int64_t u = t0 * writes; u < t1 * writes; u++) {
        const gemm_way one = run_tile(x, i, j, u, u + 1, u > 0 || c, NULL);
        if (one == GEMM_LEFT)
            return one;
        way = one > way ? one : way;
        round_psum(x, i, j, u);
    }
    return way;
}

/* Panels of A from i on with panel j of B, which is near, by one call of the kernel: how many.
 * Those that ask for the next panel of B are not among them. */
static int64_t run_column(struct bench *x, int64_t i, int64_t j, int64_t t0, int64_t t1,
                          bool done)
{
    const struct work *w = x->w;
    const struct gemm_walk *walk = x->walk;
    const bool slim = reads_slim(x), two = both(x) && (slim || i == 0);
    const int64_t writes = walk->whole ? 1 : walk->writes,
                  end = two ? min64(i + 2, x->count_m)
                            : x->count_m - (brings_next(x, j) && !x->brought ? NEXT_PARTS : 0);
    if (!w->kernel->tiles || (slim && !both(x)) || end - i < 2 || changes(x))
        return 0;
    for (int64_t l = i; l < end; l++)
        if (x->way[l * x->count_n + j] >= GEMM_LEFT)
            return 0;
    if (reads_grown(x))
        want_grown(x, j);
    struct gemm_write write = way_out(x, i, j);
    const struct gemm_tile t = { .a = panel_a(x, i),
                                 .b = reads_grown(x) ? x->grown : panel_b(x, j),
                                 .rows = (int32_t)rows_of(x, i),
                                 .from = t0 * writes,
                                 .to = t1 * writes,
                                 .begun = t0 > 0,
                                 .psum = psum_of(x, i, j),
                                 .scratch = x->scratch,
                                 .fresh = i == 0 && both(x),
                                 .parts = slim && (x->after || brings_next(x, j))
                                              ? parts_of(x, i)
                                              : 0,
                                 .next = x->after ? x->after : (int64_t)x->b_step,
                                 .write = done ? &write : NULL };
    const struct gemm_run run = { .panels = end - i,
                                  .a_step = (int64_t)w->a_bytes,
                                  .psum_step = psum_of(x, i + 1, j) - psum_of(x, i, j),
                                  .row = x->row + i,
                                  .way = x->way + i * x->count_n + j,
                                  .way_step = x->count_n,
                                  .slim = slim };
    return w->kernel->tiles(&x->g, walk, &t, &run) ? end - i : 0;
}

/* The same two after two, if that is how they go, or two and then the others. */
static int64_t run_columns(struct bench *x, int64_t i, int64_t j, int64_t t0, int64_t t1,
                           bool done)
{
    int64_t all = 0, ran;
    do {
        ran = run_column(x, i + all, j, t0, t1, done);
        all += ran;
        x->brought = all && twos(x);
    } while (ran && both(x) && !twos_wait(x, j));
    return all;
}

static void run_block_of_k(struct bench *x, int64_t t0, int64_t t1, bool last)
{
    const bool done = last && x->at_once;
    for (int64_t j = 0; j < x->count_n; j++) {
        begin_panel(x, t0, t1);
        for (int64_t i = 0; i < x->count_m; i++) {
            const bool first = reads_grown(x) || x->near || both(x) || x->w->here;
            if (i == (first ? 0 : 1)) /* B comes from memory */
                i += run_columns(x, i, j, t0, t1, done);
            if (i == x->count_m)
                break;
            uint8_t *way = &x->way[i * x->count_n + j];
            if (*way >= GEMM_LEFT)
                continue;
            struct gemm_write write = way_out(x, i, j);
            const gemm_way one = run_block(x, i, j, t0, t1, done ? &write : NULL);
            *way = one > *way ? (uint8_t)one : *way;
            if (done && !write.done && *way < GEMM_LEFT)
                x->w->kernel->write(&write);
        }
    }
}

/* ---- Back door: section 4.1 item 7, 11.2 item 17. ---- */

static void write_bf16(const struct bench *x, int64_t row, int64_t col, int64_t cols,
                       const float *psum)
{
    const struct gemm_matrix *d = &x->g.d;
    unsigned char *p = (unsigned char *)d->data + 2 * (d->offset + row * d->row + col * d->col);
    for (int64_t l = 0; l < cols; l++) {
        const uint32_t u = as_pattern(psum[l]);
        const uint16_t h =
            (u & 0x7FFFFFFFu) > WIDEN_INF ? 0x7FC0 : (uint16_t)(bf16_nearest(u) >> 16);
        memcpy(p + 2 * l * d->col, &h, sizeof h);
    }
}

/* `word`: the row's random words from `col` on, or NULL: no sr. */
static void write_row(const struct bench *x, int64_t row, int64_t col, int64_t cols,
                      const float *psum, const uint32_t *word)
{
    const struct gemm_job *g = &x->g;
    const ng_cast *out = &g->op->out;
    if (plain(g) && g->d.spec->format == NG_BF16 && out->round == NG_ROUND_TIES_TO_EVEN &&
        out->nan_sign == NG_NAN_SIGN_CLEAR) {
        write_bf16(x, row, col, cols, psum);
    } else {
        for (int64_t l = 0; l < cols; l++) {
            const uint32_t u = as_pattern(psum[l]); /* a NaN's sign is the CPU's: cleared */
            const ng_value v = ng_num_f32((u & 0x7FFFFFFFu) > WIDEN_INF ? WIDEN_NAN : u);
            ng_ref_gemm_store(g, row, col + l,
                              ng_ref_gemm_output(g, row, col + l, v, word ? word[l] : 0, NULL));
        }
    }
}

static void write_tile_row(struct bench *x, int64_t i, int64_t j, int64_t r,
                           const uint32_t *word)
{
    const int64_t row = row_of(x, i) + r, nr = x->w->kernel->nr, col = (x->panel_n + j) * nr,
                  cols = cols_of(x, j);
    if (x->way[i * x->count_n + j] != GEMM_LEFT) {
        write_row(x, row, col, cols, psum_of(x, i, j) + r * nr, word);
        return;
    }
    for (int64_t l = 0; l < cols; l++)
        ng_ref_gemm_store(&x->g, row, col + l, ng_ref_gemm_element(&x->g, row, col + l, NULL));
}

/* Row by row over the item's columns: a row's random words are one run of the stream. */
static void write_tiles(struct bench *x, int64_t i)
{
    const struct gemm_job *g = &x->g;
    const int64_t row = row_of(x, i), nr = x->w->kernel->nr, col = x->panel_n * nr;
    const bool sr = g->op->out.round == NG_ROUND_STOCHASTIC;
    uint32_t word[BLOCK_COLS];
    for (int64_t r = 0; r < rows_of(x, i); r++) {
        if (sr)
            ng_stream_words(g->out_words, g->first + (row + r) * g->n + col,
                            min64(g->n - col, x->count_n * nr), word);
        for (int64_t j = 0; j < x->count_n; j++)
            if (!x->as_is || x->way[i * x->count_n + j] == GEMM_LEFT)
                write_tile_row(x, i, j, r, sr ? word + j * nr : NULL);
    }
    for (int64_t j = 0; j < x->count_n; j++) {
        const uint8_t way = x->way[i * x->count_n + j];
        if (x->as_is && !x->at_once && way != GEMM_LEFT)
            write_as_is(x, i, j);
        x->tiles[way == GEMM_FAST ? 0 : way == GEMM_LEFT ? 2 : 1]++;
    }
}

/* A whole chain ends: all of K for tiles that asked for it, then C, then the memory's format.
 */
static void end_chains(struct bench *x)
{
    for (int64_t i = 0; i < x->count_m; i++)
        for (int64_t j = 0; j < x->count_n; j++) {
            uint8_t *way = &x->way[i * x->count_n + j];
            if (*way == GEMM_WHOLE) {
                begin_panel(x, 0, x->walk->depth);
                *way = (uint8_t)run_tile(x, i, j, 0, x->walk->depth, false, NULL);
                if (x->at_once && *way != GEMM_LEFT)
                    write_as_is(x, i, j);
            }
            if (*way == GEMM_LEFT)
                continue;
            if (x->g.c.data)
                take_c(x, i, j, true);
            if (x->g.acc == NG_BF16)
                round_psum(x, i, j, 0);
        }
}

/* An item's blocks: the n-th of a matrix. */
static void place_blocks(struct bench *x, int64_t n, int64_t blocks_m)
{
    const struct work *w = x->w;
    x->panel_m = n % blocks_m * w->block_m;
    x->panel_n = n / blocks_m * w->block_n;
    x->count_m = min64(w->block_m, x->panels_m - x->panel_m);
    x->count_n = min64(w->block_n, w->panels_n - x->panel_n);
    for (int64_t i = 0; i <= x->count_m; i++)
        x->row[i] = panel_row(x->g.m, x->panels_m, x->panel_m + i);
}

static struct bench matrix_item(const struct work *w, int64_t item)
{
    const int64_t per_matrix = w->blocks_m * w->blocks_n, matrix = item / per_matrix;
    struct bench x = { .w = w,
                       .walk = &w->walk,
                       .g = ng_gemm_matrix(w->q, matrix),
                       .b_step = w->b_step,
                       .panels_m = w->panels_m };
    place_blocks(&x, item % per_matrix, w->blocks_m);
    x.a = w->a + (size_t)(w->matrices_a > 1 ? matrix * w->panels_m : 0) * w->a_bytes;
    x.b = w->b + (size_t)(w->matrices_b > 1 ? matrix * w->panels_n : 0) * w->b_step;
    return x;
}

static struct bench part_item(const struct work *w, int64_t item)
{
    const struct gemm_group *group = w->group;
    const int64_t p = part_of(w->first_item, group->parts, item);
    const struct gemm_part *part = &group->part[p];
    struct bench x = { .w = w,
                       .walk = &w->walk,
                       .g = w->q->job,
                       .b_step = w->b_step,
                       .panels_m = part_panels(w, p) };
    x.g.m = part->rows;
    x.g.d.offset += part->d_row * x.g.d.row;
    place_blocks(&x, item - w->first_item[p], div_up(x.panels_m, w->block_m));
    x.a = w->a + (size_t)w->first_panel[p] * w->a_bytes;
    x.b = part->panels;
    return x;
}

/* The worker's room. */
static void place_room(struct bench *x, size_t worker)
{
    const struct work *w = x->w;
    unsigned char *mine = w->worker + worker * w->worker_bytes;
    x->scratch = mine;
    x->way = mine + up_64(w->kernel->scratch_bytes);
    x->psum = (float *)(x->way + up_64((size_t)(w->block_m * w->block_n)));
    x->grown = mine + grown_at(w);
    x->made = x->grown + (w->slim ? up_64(w->b_bytes) : 0);
    x->made_n = -1;
    memset(x->way, 0, (size_t)(x->count_m * x->count_n));
}

static void count_tiles(struct work *w, const struct bench *x)
{
    for (int n = 0; n < 3; n++)
        if (x->tiles[n])
            atomic_fetch_add(&w->tiles[n], x->tiles[n]);
}

/* K tiles (whole: positions) of a block where few() is true. */
static int64_t few_deep(const struct bench *x)
{
    const struct work *w = x->w;
    const struct gemm_walk *walk = &w->walk;
    const int64_t unit = walk->whole ? 1 : max64(1, walk->depth / max64(1, walk->tiles)),
                  deep = w->kernel->few.deep * (twos(x) ? TWOS_DEEPER : 1);
    return min64(w->deep, max64(1, deep / unit));
}

static void run_item(void *arg, size_t item, size_t worker)
{
    struct work *w = arg;
    const struct gemm_walk *walk = &w->walk;
    struct bench x = w->group ? part_item(w, (int64_t)item) : matrix_item(w, (int64_t)item);
    place_room(&x, worker);

    const uint32_t saved = ng_fp_enter();
    const int64_t end = walk->whole ? walk->depth : walk->tiles;
    /* Few panels of A read B once or twice: straight through, not in blocks. */
    const int64_t deep = w->here || straight(&x) ? end : few(&x) ? few_deep(&x) : w->deep;
    /* Tiles are written while psum is in the first cache; those of few rows, which wait for
     * memory anyway, together, as D's lines then come one after another. */
    x.as_is = takes_psum(&x.g);
    x.at_once =
        x.as_is && x.panels_m > STRAIGHT_PANELS && !both(&x) && !(walk->whole && x.g.c.data);
    x.near = x.at_once && deep >= end && near(&x);
    x.one_psum = x.at_once && deep >= end && !x.near;
    for (int64_t t = 0; t < end; t += deep)
        run_block_of_k(&x, t, min64(end, t + deep), end - t <= deep);
    if (walk->whole)
        end_chains(&x);
    for (int64_t i = 0; i < x.count_m; i++)
        write_tiles(&x, i);
    ng_fp_leave(saved);
    count_tiles(w, &x);
}

/* ---- K in slabs. ---- */

/* A tile's rows of D, which begin as +0. */
static void clear_tile(const struct bench *x, int64_t i)
{
    const struct gemm_matrix *d = &x->g.d;
    const int64_t nr = x->w->kernel->nr, col = x->panel_n * nr,
                  cols = min64(x->g.n - col, x->count_n * nr);
    for (int64_t r = 0; r < rows_of(x, i); r++)
        memset((uint32_t *)d->data + d->offset + (row_of(x, i) + r) * d->row + col, 0,
               4 * (size_t)cols);
}

/* Of the columns of panel j, from a slab's. */
static void slab_scales(const struct bench *x, int64_t j, const uint32_t *from, uint32_t *scale)
{
    const struct gemm_slabs *slabs = x->w->group->slabs;
    const int64_t col = (x->panel_n + j) * x->w->kernel->nr, end = col + cols_of(x, j);
    for (int64_t c = col; c < end;) {
        const int64_t at = c / slabs->across, next = min64(end, (at + 1) * slabs->across);
        const uint32_t one = from[at * slabs->scale_column];
        for (; c < next; c++)
            scale[c - col] = one;
    }
}

/* psum of a tile of slab s into D. */
static void add_tile(const struct bench *x, const struct gemm_part *part, int64_t s, int64_t i,
                     int64_t j, const uint32_t *scale)
{
    const struct gemm_group *group = x->w->group;
    const struct gemm_slabs *slabs = group->slabs;
    const struct gemm_matrix *d = &x->g.d;
    const int64_t nr = x->w->kernel->nr, row = row_of(x, i), rows = rows_of(x, i);
    uint32_t row_scale[MAX_ROWS];
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = part->a_row + row + r, line = group->line ? group->line[at] : at;
        row_scale[r] = slabs->row_scale[line * slabs->slabs + s];
    }
    const struct block_tile t = {
        .rows = rows,
        .columns = cols_of(x, j),
        .psum = (const uint32_t *)(const void *)psum_of(x, i, j),
        .row_scale = row_scale,
        .scale = scale,
        .sum = (uint32_t *)d->data + d->offset + row * d->row + (x->panel_n + j) * nr,
        .psum_step = nr,
        .row_scale_step = 1,
        .sum_step = d->row,
    };
    slabs->moe->block(slabs->op, &t);
}

enum {
    SOON_ROWS = 32, /* of a panel that is wanted next */
    FEW_ROWS = 2    /* so few that nothing but memory is waited for: it comes by itself */
};

/* The panel after j in the item's slab s, or the first of the next slab; or NULL. */
static const unsigned char *panel_after(struct bench *x, const struct gemm_part *part,
                                        int64_t s, int64_t j, size_t *bytes)
{
    *bytes = x->b_step;
    if (j + 1 < x->count_n)
        return panel_b(x, j + 1);
    if (s + 1 == x->w->group->slabs->slabs)
        return NULL;
    const struct gemm_packed *b = ng_packed_panels(ng_packed_slab(part->packed, s + 1));
    *bytes = b->panel_bytes;
    return b->panels + (size_t)x->panel_n * b->panel_bytes;
}

/* It is asked for: panels are short, so memory would be waited for at each. (Codes that are
 * read as they are bring the slab's next.) */
static struct gemm_soon soon_after(const struct bench *x, int64_t j, const unsigned char *next,
                                   size_t bytes, const unsigned char **row)
{
    const struct gemm_walk *walk = x->walk;
    const int64_t chains = walk->whole ? 1 : walk->tiles * walk->writes * walk->chains,
                  calls = x->count_m * chains;
    if (!next || (reads_slim(x) ? j + 1 < x->count_n : x->g.m <= FEW_ROWS))
        return (struct gemm_soon){ 0 };
    const size_t line = up_64(bytes / SOON_ROWS), rows = bytes / line;
    for (size_t r = 0; r < rows; r++)
        row[r] = next + r * line;
    return (struct gemm_soon){ .row = row,
                               .rows = (int64_t)rows,
                               .bytes = (int64_t)line,
                               .step = div_up((int64_t)rows, calls) };
}

/* All tiles of an item: each is added as soon as it is there. */
static void run_slab(struct bench *x, const struct gemm_part *part, int64_t s)
{
    const unsigned char *row[SOON_ROWS];
    const struct gemm_slabs *slabs = x->w->group->slabs;
    const struct gemm_walk *walk = x->walk;
    const int64_t end = walk->whole ? walk->depth : walk->tiles;
    const bool two = both(x); /* their codes bring what comes after them */
    x->one_psum = !two;
    x->near = two;
    for (int64_t j = 0; j < x->count_n; j++) {
        uint32_t scale[MAX_COLS];
        size_t bytes;
        const unsigned char *const next = panel_after(x, part, s, j, &bytes);
        struct gemm_soon soon = { 0 };
        if (!two)
            soon = soon_after(x, j, next, bytes, row);
        x->after = next ? (intptr_t)next - (intptr_t)panel_b(x, j) : 0;
        slab_scales(x, j, part->scale + s * slabs->scale_slab, scale);
        begin_panel(x, 0, end);
        const int64_t ran = two ? run_columns(x, 0, j, 0, end, false) : 0;
        x->soon = two ? NULL : &soon;
        for (int64_t i = 0; i < x->count_m; i++) {
            const gemm_way way = i < ran ? GEMM_FAST : run_block(x, i, j, 0, end, NULL);
            if (walk->whole && x->g.acc == NG_BF16)
                round_psum(x, i, j, 0);
            add_tile(x, part, s, i, j, scale);
            x->tiles[way == GEMM_FAST ? 0 : 1]++;
        }
        x->soon = NULL;
    }
    x->after = 0;
}

/* Nothing is left to the reference or asks for all of K: operands are dense, and a slab is run
 * at once. */
static void run_slabs_item(void *arg, size_t item, size_t worker)
{
    struct work *w = arg;
    const struct gemm_slabs *slabs = w->group->slabs;
    const struct gemm_part *part =
        &w->group->part[part_of(w->first_item, w->group->parts, (int64_t)item)];
    struct bench x = part_item(w, (int64_t)item);
    const unsigned char *a = x.a;
    const struct gemm_matrix d = x.g.d;
    const int64_t m = x.g.m;
    place_room(&x, worker);
    const uint32_t saved = ng_fp_enter();
    for (int64_t i = 0; i < x.count_m; i++)
        clear_tile(&x, i);
    for (int64_t s = 0; s < slabs->slabs; s++) {
        const struct gemm_packed *b = ng_packed_panels(ng_packed_slab(part->packed, s));
        const bool last = s == slabs->slabs - 1;
        x.walk = last ? &w->last : &w->walk;
        x.g = last ? slabs->last->job : w->q->job;
        x.g.m = m;
        x.g.d = d;
        x.a = a + (size_t)(s * w->panels_a) * w->a_bytes;
        x.b = b->panels;
        x.b_step = b->panel_bytes;
        run_slab(&x, part, s);
    }
    ng_fp_leave(saved);
    count_tiles(w, &x);
}

/* ---- The reference, element by element. ---- */

struct by_reference {
    const struct gemm_call *q;
    int64_t run;
};

static void run_elements(void *arg, size_t item, size_t worker)
{
    const struct by_reference *w = arg;
    const struct gemm_call *q = w->q;
    const int64_t per_matrix = q->job.m * q->job.n, all = per_matrix * q->n_matrices;
    (void)worker;
    int64_t matrix = -1;
    struct gemm_job g = q->job;
    for (int64_t e = (int64_t)item * w->run; e < min64(all, ((int64_t)item + 1) * w->run);
         e++) {
        if (e / per_matrix != matrix) {
            matrix = e / per_matrix;
            g = ng_gemm_matrix(q, matrix);
        }
        const int64_t i = e % per_matrix / g.n, j = e % g.n;
        ng_ref_gemm_store(&g, i, j, ng_ref_gemm_element(&g, i, j, NULL));
    }
}

static void run_reference(ng_ctx *ctx, const struct gemm_call *q)
{
    const int64_t all = q->job.elements;
    /* Runs hide the executor's cost; a 4-bit D shares bytes between elements: one run. */
    struct by_reference w = { q, q->job.d.spec->store_bits == 4 ? all : all / 256 + 1 };
    ng_parallel(ctx, (size_t)div_up(all, w.run), run_elements, &w);
    ng_ctx_note_kernel(ctx, "ref", (ng_tiles){ .reference = (uint64_t)all });
}

/* ---- ng_dot: rows of A and of B meet one to one. A panel of B has rows of B, panels of A the
 * same rows of A; of their tiles only the diagonal is wanted. Where one row's values keep a
 * tile from its fast path, its rows are multiplied one by one; what is left is the
 * reference's. ---- */

struct dots {
    struct bench x;      /* the item's rows as one matrix */
    struct bench one;    /* one of them, psum in `psum` */
    unsigned char *a;    /* panels: of a tile's rows, */
    unsigned char *b[2]; /* of all of the item's, of one row */
    int64_t first;       /* row that the item begins with */
    int64_t from, rows;  /* of a tile, counted from there */
    int64_t col;         /* of B's panel, of the first of them */
    int64_t won, lost;   /* rows of tiles that were left, one by one */
    float psum[MAX_COLS];
};

static void dots_take_c(const struct bench *one, int64_t add)
{
    take_c(one, 0, 0, add);
}

static void dots_round(const struct bench *one, int64_t write)
{
    round_psum(one, 0, 0, write);
}

/* `act` on the psum of each of a tile's rows. */
static void dots_each(struct dots *d, void (*act)(const struct bench *one, int64_t arg),
                      int64_t arg)
{
    const int64_t nr = d->x.w->kernel->nr;
    for (int64_t r = 0; r < d->rows; r++) {
        float *psum = d->x.psum + r * nr + d->col + r;
        d->one.g = ng_gemm_matrix(d->x.w->q, d->first + d->from + r);
        d->psum[0] = *psum;
        act(&d->one, arg);
        *psum = d->psum[0];
    }
}

static gemm_way dots_tile(const struct dots *d, int64_t from, int64_t to, bool begun)
{
    const struct bench *x = &d->x;
    const struct gemm_tile t = { .a = x->a,
                                 .b = x->b,
                                 .rows = (int32_t)d->rows,
                                 .from = from,
                                 .to = to,
                                 .begun = begun,
                                 .psum = x->psum,
                                 .scratch = x->scratch,
                                 .once = true,
                                 .sparing = true };
    return x->w->kernel->tile(&x->g, x->walk, &t);
}

/* All of K. */
static gemm_way dots_sum(struct dots *d)
{
    const struct gemm_walk *walk = d->x.walk;
    const struct gemm_job *g = &d->x.g;
    const bool c = g->c.data;
    gemm_way way = GEMM_FAST;
    if (c && !walk->whole)
        dots_each(d, dots_take_c, false);
    if (walk->whole) {
        way = dots_tile(d, 0, walk->depth, false);
        if (way != GEMM_LEFT && c)
            dots_each(d, dots_take_c, true);
        if (way != GEMM_LEFT && g->acc == NG_BF16)
            dots_each(d, dots_round, 0);
        return way;
    }
    const int64_t writes = walk->tiles * walk->writes, step = g->acc == NG_BF16 ? 1 : writes;
    for (int64_t u = 0; u < writes; u += step) {
        const gemm_way now = dots_tile(d, u, u + step, u > 0 || c);
        if (now == GEMM_LEFT)
            return now;
        way = now > way ? now : way;
        if (g->acc == NG_BF16)
            dots_each(d, dots_round, u);
    }
    return way;
}

static void dots_write(struct dots *d, gemm_way way)
{
    const int64_t nr = d->x.w->kernel->nr;
    struct bench *one = &d->one;
    for (int64_t r = 0; r < d->rows; r++) {
        one->g = ng_gemm_matrix(d->x.w->q, d->first + d->from + r);
        if (way == GEMM_LEFT) {
            ng_ref_gemm_store(&one->g, 0, 0, ng_ref_gemm_element(&one->g, 0, 0, NULL));
            continue;
        }
        uint32_t word = 0;
        const bool sr = one->g.op->out.round == NG_ROUND_STOCHASTIC;
        if (sr)
            ng_stream_words(one->g.out_words, one->g.first, 1, &word);
        write_row(one, 0, 0, 1, d->x.psum + r * nr + d->col + r, sr ? &word : NULL);
    }
    d->x.tiles[way == GEMM_FAST ? 0 : way == GEMM_LEFT ? 2 : 1]++;
}

/* Is a row of a tile that was left worth a try of its own? Not where most before it were not.
 */
static bool dots_hopes(const struct dots *d)
{
    return d->x.g.k >= DOTS_AGAIN && d->lost <= 1 + 2 * d->won;
}

/* A tile's rows; its B is the item's. */
static void dots_rows(struct dots *d, int64_t from, int64_t rows, bool again)
{
    const struct work *w = d->x.w;
    d->from = from;
    d->rows = rows;
    d->col = from;
    d->x.b = d->b[0];
    w->kernel->pack(&d->x.g, &w->walk, GEMM_A, from, (int32_t)rows, d->a);
    const gemm_way way = dots_sum(d);
    if (way != GEMM_LEFT || !again || !dots_hopes(d)) {
        dots_write(d, way);
        return;
    }
    d->col = 0;
    d->rows = 1;
    d->x.b = d->b[1];
    for (; d->from < from + rows; d->from++) {
        gemm_way one = GEMM_LEFT;
        if (dots_hopes(d)) {
            w->kernel->pack(&d->x.g, &w->walk, GEMM_A, d->from, 1, d->a);
            w->kernel->pack(&d->x.g, &w->walk, GEMM_B, d->from, 1, d->b[1]);
            one = dots_sum(d);
            *(one == GEMM_LEFT ? &d->lost : &d->won) += 1;
        }
        dots_write(d, one);
    }
}

static void run_dots(void *arg, size_t item, size_t worker)
{
    struct work *w = arg;
    const struct gemm_call *q = w->q;
    const struct ng_gemm_kernel *kernel = w->kernel;
    const int64_t first = (int64_t)item * kernel->nr,
                  rows = min64(kernel->nr, q->n_matrices - first);
    struct dots d = { .x = { .w = w,
                             .walk = &w->walk,
                             .g = ng_gemm_matrix(q, first),
                             .count_m = 1,
                             .count_n = 1 },
                      .one = { .w = w, .walk = &w->walk, .count_m = 1, .row = { 0, 1 } },
                      .first = first };
    struct gemm_job *g = &d.x.g;
    g->m = g->n = rows;
    g->a.line = q->a_step[0];
    g->a.scale_line = q->as_step[0];
    g->b.line = q->b_step[0];
    g->b.scale_line = q->bs_step[0];
    place_room(&d.x, worker);
    d.one.psum = d.psum;
    d.x.a = d.a = d.x.grown;
    d.b[0] = d.a + w->a_bytes;
    d.b[1] = d.b[0] + w->b_bytes;

    const uint32_t saved = ng_fp_enter();
    kernel->pack(g, &w->walk, GEMM_B, 0, (int32_t)rows, d.b[0]);
    for (int64_t r = 0; r < rows; r += kernel->mr)
        dots_rows(&d, r, min64(kernel->mr, rows - r), rows > 1);
    ng_fp_leave(saved);
    count_tiles(w, &d.x);
}

/* What plan() says of them: a tile and its panels for each worker. False: the caller's scratch
 * has no room for them, or K is too long; the reference needs none. */
static bool plan_dots(ng_ctx *ctx, struct work *w, struct memory *m)
{
    const struct gemm_job *g = &w->q->job;
    *m = (struct memory){ 0 };
    ng_walk_build(g, NULL, &w->walk);
    w->a_bytes = up_64(w->kernel->panel_bytes(g, &w->walk, GEMM_A));
    w->b_bytes = up_64(w->kernel->panel_bytes(g, &w->walk, GEMM_B));
    w->block_m = w->block_n = 1;
    w->worker_bytes = grown_at(w) + w->a_bytes + 2 * w->b_bytes;
    return add_to(&m->all, up_64(ng_walk_bytes(g)), 1, &m->walk) &&
           add_to(&m->all, w->worker_bytes, (int64_t)ng_workers(ctx), &m->worker) &&
           m->all <= DOTS_BYTES && ng_arena_may_hold(ctx, m->all);
}

static void note_tiles(ng_ctx *ctx, struct work *w)
{
    ng_ctx_note_kernel(ctx, w->kernel->name,
                       (ng_tiles){ .fast = atomic_load(&w->tiles[0]),
                                   .exact = atomic_load(&w->tiles[1]),
                                   .reference = atomic_load(&w->tiles[2]) });
}

static ng_status run_all_dots(ng_ctx *ctx, struct work *w, const struct memory *m)
{
    const struct gemm_call *q = w->q;
    void *block;
    const ng_status s = ng_arena_claim(ctx, m->all, &block);
    if (s)
        return s;
    unsigned char *memory = block;
    ng_walk_build(&q->job, memory + m->walk, &w->walk);
    w->worker = memory + m->worker;
    const size_t items = (size_t)div_up(q->n_matrices, w->kernel->nr);
    if (q->job.d.spec->store_bits == 4) /* elements share bytes */
        for (size_t i = 0; i < items; i++)
            run_dots(w, i, 0);
    else
        ng_parallel(ctx, items, run_dots, w);
    note_tiles(ctx, w);
    return NG_OK;
}

/* ---- All rooms. ---- */

ng_status ng_gemm_run_bytes(ng_ctx *ctx, const struct gemm_call *q, size_t *bytes)
{
    struct work w = { .q = q, .kernel = ng_gemm_run_kernel(ctx, q) };
    struct memory m = { 0 };
    const ng_status s = w.kernel ? plan(ctx, &w, NULL, &m) : NG_OK;
    if (!s)
        *bytes = m.all;
    return s;
}

ng_status ng_gemm_run(ng_ctx *ctx, const struct gemm_call *q, const struct gemm_packed *packed)
{
    struct work w = { .q = q, .kernel = packed ? packed->kernel : ng_gemm_run_kernel(ctx, q) };
    struct memory m;
    void *block = NULL;
    const char *why_not = "too few products";
    if (q->dot && w.kernel && !plan_dots(ctx, &w, &m)) {
        w.kernel = NULL;
        why_not = "no room for panels";
    }
    if (!packed)
        ng_tell_gemm(ctx, q->name, &q->job, w.kernel, why_not);
    if (!w.kernel) {
        run_reference(ctx, q);
        return NG_OK;
    }
    if (q->dot)
        return run_all_dots(ctx, &w, &m);
    ng_status s = plan(ctx, &w, packed, &m);
    if (!s)
        s = ng_arena_claim(ctx, m.all, &block);
    if (s)
        return s;
    unsigned char *memory = block;
    ng_walk_build(&q->job, memory + m.walk, &w.walk);
    w.sparing = !packed && spares(q);
    w.a = memory + m.a;
    w.b = packed ? packed->panels : memory + m.b;
    w.worker = memory + m.worker;

    struct packing p = {
        .w = &w, .a = w.a, .b = memory + m.b, .all_a = w.panels_m * w.matrices_a
    };
    if (w.slim && !packed) {
        p.full = w.worker + grown_at(&w);
        p.full_step = w.worker_bytes;
    }
    const int64_t all_b = packed || w.here ? 0 : w.panels_n * w.matrices_b;
    ng_parallel(ctx, (size_t)(p.all_a + all_b), pack_one, &p);
    const size_t items = (size_t)(w.blocks_m * w.blocks_n * q->n_matrices);
    if (q->job.d.spec->store_bits == 4) /* elements share bytes, even two matrices of a batch */
        for (size_t i = 0; i < items; i++)
            run_item(&w, i, 0);
    else
        ng_parallel(ctx, items, run_item, &w);
    note_tiles(ctx, &w);
    return NG_OK;
}

/* Of the largest part what cut_items() asks for; where each part's panels and items begin. */
static ng_status plan_group(ng_ctx *ctx, struct work *w, struct memory *m)
{
    const struct gemm_group *group = w->group;
    const struct gemm_job *g = &w->q->job;
    const size_t workers = ng_workers(ctx);
    int64_t panels = 0;
    *m = (struct memory){ 0 };
    ng_walk_build(g, NULL, &w->walk);
    for (int64_t p = 0; p < group->parts; p++) {
        const int64_t here = part_panels(w, p);
        panels += here;
        w->panels_m = here > w->panels_m ? here : w->panels_m;
    }
    w->panels_n = ng_gemm_panels(g->n, w->kernel->nr);
    w->a_bytes = w->kernel->panel_bytes(g, &w->walk, GEMM_A);
    w->b_bytes = w->kernel->panel_bytes(g, &w->walk, GEMM_B);
    w->b_step = group->like->panel_bytes;
    w->slim = group->like->slim;
    cut_items(w, workers);
    if (gather_bytes(w) > w->worker_bytes)
        w->worker_bytes = gather_bytes(w);
    const int64_t parts = (2 * (group->parts + 1) + 7) / 8 * 8; /* whole cache lines */
    const int64_t slabs = group->slabs ? group->slabs->slabs : 1;
    w->panels_a = panels;
    bool fits = add_to(&m->all, up_64(ng_walk_bytes(g)), 1, &m->walk);
    fits = fits &&
           add_to(&m->all, group->slabs ? up_64(ng_walk_bytes(&group->slabs->last->job)) : 0, 1,
                  &m->last);
    fits = fits && add_to(&m->all, sizeof *w->first_item, parts, &m->b);
    fits = fits && !__builtin_mul_overflow(panels, slabs, &panels);
    fits = fits && add_to(&m->all, w->a_bytes, panels, &m->a);
    fits = fits && add_to(&m->all, w->worker_bytes, (int64_t)workers, &m->worker);
    return fits ? NG_OK
                : ng_fail(ctx, NG_ERR_SHAPE, "%s: packed operands overflow size_t", w->q->name);
}

ng_status ng_gemm_run_group(ng_ctx *ctx, const struct gemm_group *group)
{
    struct work w = { .q = group->q, .kernel = group->like->kernel, .group = group };
    struct memory m;
    void *block = NULL;
    ng_status s = plan_group(ctx, &w, &m);
    if (!s)
        s = ng_arena_claim(ctx, m.all, &block);
    if (s)
        return s;
    unsigned char *memory = block;
    ng_walk_build(&w.q->job, memory + m.walk, &w.walk);
    if (group->slabs)
        ng_walk_build(&group->slabs->last->job, memory + m.last, &w.last);
    w.first_panel = (int64_t *)(void *)(memory + m.b);
    w.first_item = w.first_panel + group->parts + 1;
    w.a = memory + m.a;
    w.worker = memory + m.worker;
    w.first_panel[0] = w.first_item[0] = 0;
    for (int64_t p = 0; p < group->parts; p++) {
        const int64_t panels = part_panels(&w, p);
        w.first_panel[p + 1] = w.first_panel[p] + panels;
        w.first_item[p + 1] = w.first_item[p] + div_up(panels, w.block_m) * w.blocks_n;
    }
    ng_parallel(ctx, (size_t)w.first_panel[group->parts], pack_part, &w);
    ng_parallel(ctx, (size_t)w.first_item[group->parts],
                group->slabs ? run_slabs_item : run_item, &w);
    note_tiles(ctx, &w);
    return NG_OK;
}

void ng_gemm_plan_b(const struct gemm_call *q, struct gemm_packed *b)
{
    struct gemm_walk walk;
    ng_walk_build(&q->job, NULL, &walk);
    b->panel_bytes = b->kernel->slim_bytes(&q->job, &walk);
    b->slim = b->panel_bytes > 0;
    if (!b->slim)
        b->panel_bytes = b->kernel->panel_bytes(&q->job, &walk, GEMM_B);
}

ng_status ng_gemm_pack_b(ng_ctx *ctx, const struct gemm_call *q, const struct gemm_packed *b,
                         unsigned char *panels)
{
    struct work w = { .q = q, .kernel = b->kernel, .b_step = b->panel_bytes };
    const size_t walk = up_64(ng_walk_bytes(&q->job));
    void *block = NULL;
    ng_walk_build(&q->job, NULL, &w.walk);
    w.b_bytes = up_64(w.kernel->panel_bytes(&q->job, &w.walk, GEMM_B));
    const ng_status s =
        ng_arena_claim(ctx, walk + (b->slim ? ng_workers(ctx) * w.b_bytes : 0), &block);
    if (s)
        return s;
    ng_walk_build(&q->job, block, &w.walk);
    w.panels_n = ng_gemm_panels(q->job.n, b->kernel->nr);
    struct packing p = { .w = &w,
                         .b = panels,
                         .full = b->slim ? (unsigned char *)block + walk : NULL,
                         .full_step = w.b_bytes };
    ng_parallel(ctx, (size_t)w.panels_n, pack_one, &p);
    return NG_OK;
}
