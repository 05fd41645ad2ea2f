/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that sum their lanes (lane_sum fused, presum, tree), of formats so narrow that FP32
 * holds every sum of a row's products, e4m3fn times e2m1 among them: 16 rows of A by 32 columns
 * of B, by TDPBF16PS, which adds such a sum to the chain with one rounding (tiles.h). Two
 * registers of sums, one of A, two of B.
 *
 * What limits it: an instruction takes 17.6 cycles for 16 rows, so four lanes of 16 x 32
 * elements 35, 116 operations a cycle; FMAs have 51 with the additions. Loading 16 + 4 rows of
 * registers and asking for memory takes some 12, other ports' work. A chain's sums go by memory
 * to the foot: 32 stores and 32 to 64 additions for 16 rows by 32 columns (README.md, "What AMX
 * is good for").
 */
#include "../dp.h"
#include "tiles.h"

enum {
    MR = TILE_ROWS,
    NV = 2,
    SUMS = 8, /* that registers hold beside as many integers (quad_ints.h) */
    A_PAIRS = 1
};
#define FMA_EACH FMA_EACH_4

#define FMA_MORE        .tile_slim = tile_few, .tiles = tiles, .slim_panels = 2
#define FMA_WOVEN(w)    ((w)->step / 2)
#define SLIM_FAST(a, b) never_subnormal(a, b)
#define SLIM_SUM        tile_slim_sum
#define SLIM_ROWS       0
#define SLIM_RUNNERS    ints
#define SLIM_AHEAD      3072 /* 8192: 22 % less from memory */
#define SLIM_A(a, r)    ((a) + 2 * (r))
#define FMA_PACK        pack_tiles
#define FMA_PANEL       panel_tiles
#include "../gemm_fma.h"

/* Rows of lanes that are no integers of 16 bits (quad_ints.h). */
PACK_INLINE void tile_slim_sum(const int rows, const int nv, const int i, const uint32_t *a,
                               const vec_pairs y[NV], struct block *t)
{
    FMA_UNROLL
    for (int r = 0; r < rows; r++) {
        const vec_pairs x = iv_all(a[2 * r + i]);
        const vec first = vec_pairs_upper(x), second = vec_pairs_lower(x);
        FMA_UNROLL
        for (int q = 0; q < nv; q++) {
            const vec upper = vec_pairs_upper(y[q]);
            vec *const sum = &t->v[r][q];
            *sum = i ? vec_fma(first, upper, *sum) : vec_mul(first, upper);
            *sum = vec_fma(second, vec_pairs_lower(y[q]), *sum);
        }
    }
}

#include "../gemm_slim.h"

#include "tile_rows.h"

static size_t panel_tiles(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side)
{
    return side == GEMM_A ? ints_parts(g, w).bytes : panel_bytes(g, w, side);
}

static const char *refuses(const struct gemm_job *g)
{
    const char *const why = fma_refuses(g, true);
    const int32_t lanes = rule_param(g, NG_PARAM_LANES);
    if (why)
        return why;
    if (lanes > 2 * ROWS_MOST_WORDS)
        return "more than 32 lanes";
    if (g->a.spec->store_bits == 4 && g->b.spec->store_bits == 4)
        return "two operands of 4 bits";
    return rule_watches(g) ? "sums of lanes that may not fit 24 bits" : NULL;
}

/* What comes nearer with a row of lanes of b: the distances, then the asking. */
enum {
    AHEADS = 4
};

PACK_INLINE void tile_nearer(const int64_t ahead[AHEADS], const int words, const uint32_t *b)
{
    for (int i = 0; i < words * NR; i += VL)
        __builtin_prefetch(b + i + ahead[i / VL % AHEADS]);
}

/* A chain whose sums wait in memory for the foot: rows from `row` on. */
struct tile_rest {
    struct chain c;
    const float *sums;
    int32_t row;
};

/* v = add + v, a row. */
PACK_INLINE void tile_add(const float *add, vec v[NV])
{
    FMA_UNROLL
    for (int q = 0; q < NV; q++)
        v[q] = vec_add(vec_load(add + q * VL), v[q]);
}

/* fma_end() of one of them. */
PACK_INLINE void tile_row(const struct fma *f, struct tile_rest *rest)
{
    const struct chain *c = &rest->c;
    const int64_t at = (int64_t)rest->row * NR;
    vec v[NV];
    FMA_UNROLL
    for (int q = 0; q < NV; q++)
        v[q] = vec_load(rest->sums + at + q * VL);
    const float *level = f->level + at;
    for (uint32_t foot = c->foot; foot; foot >>= 1, level += MR * NR)
        if (foot & 1)
            tile_add(level, v);
    if (c->add)
        tile_add(c->add + at, v);
    FMA_UNROLL
    for (int q = 0; q < NV; q++)
        if (c->out)
            vec_store(c->out + at + q * VL, v[q]);
        else
            iv_store(f->write->d + rest->row * f->write->d_row + 4 * q * VL,
                     psum_result(iv_bits(v[q]), iv_all(f->write->nan)));
    rest->row++;
}

static void tile_rest(const struct fma *f, struct tile_rest *rest)
{
    while (rest->row < f->rows)
        tile_row(f, rest);
}

/*
 * Pairs of a slim B for one panel of A: they grow some rows of lanes before they are
 * multiplied, which takes ports that the tiles leave idle, into a ring in the first cache.
 */
enum {
    RING = 64, /* positions; a row of lanes divides it */
    RING_AHEAD = 16
};
/* Eight codes grow together, up to six positions more than are wanted. */
_Static_assert(2 * ROWS_MOST_WORDS + RING_AHEAD + SLIM_DEEP - 2 <= RING,
               "what is read is not yet overwritten");

struct tile_grown {
    struct slim_scales scales;
    uint32_t *ring;
    int64_t at, to; /* it has grown to here; the chain's end */
    int64_t last;   /* byte of the codes from which on the next panel's are asked for */
};

PACK_INLINE void tile_begin_growing(const struct fma *f, const struct chain *c,
                                    struct tile_grown *g)
{
    *g = (struct tile_grown){ .scales = slim_no_scales(NR),
                              .ring = (uint32_t *)(void *)fma_level(f, LEVELS + 2),
                              .at = c->from,
                              .to = c->from + c->n,
                              .last = slim_code_bytes(4, f->w, NR) - SLIM_AHEAD };
}

/* The pairs of the row of lanes at p. */
PACK_INLINE const uint32_t *tile_grow(const struct fma *f, int64_t p, struct tile_grown *g)
{
    const int64_t want = p + f->w->step + RING_AHEAD, to = want < g->to ? want : g->to;
    while (g->at < to) {
        if (g->at % SLIM_DEEP == 0)
            slim_nearer(f, MR, f->codes + slim_before(4, g->at, NR), SLIM_AHEAD, g->last);
        g->at += slim_grow_next(&f->table, f->w, NR, true, g->at, g->to, f->codes, f->scales,
                                &g->scales, g->ring + g->at % RING / 2 * NR);
    }
    return g->ring + p % RING / 2 * NR;
}

/*
 * The sums of positions [c->from, c->from + c->n), from +0 or f->carry on, to `sums`; while
 * they run the chain before goes through the foot, a row with each row of lanes.
 */
PACK_INLINE void tile_chain(const struct fma *f, const bool grows, const struct chain *c,
                            struct tile_rest *rest, float *sums)
{
    const int words = f->w->step / 2;
    const uint32_t *a = f->a + c->from / 2 * MR, *b = grows ? NULL : f->b + c->from / 2 * NR;
    const bool asks = !grows && fma_asks(f);
    struct tile_grown g;
    if (grows)
        tile_begin_growing(f, c, &g);
    int64_t ahead[AHEADS];
    for (int i = 0; i < AHEADS; i++)
        ahead[i] = fma_ahead(f, i);
    if (f->carry) {
        TILE_LOAD(TILE_C0, f->carry, sizeof(float) * NR);
        TILE_LOAD(TILE_C1, f->carry + VL, sizeof(float) * NR);
    } else {
        TILE_ZERO(TILE_C0);
        TILE_ZERO(TILE_C1);
    }
    for (int64_t p = 0; p < c->n; p += f->w->step, a += words * MR) {
        if (grows)
            b = tile_grow(f, c->from + p, &g);
        TILE_LOAD(TILE_A, a, sizeof *a * (size_t)words);
        TILE_LOAD(TILE_B0, b, sizeof *b * NR);
        TILE_LOAD(TILE_B1, b + VL, sizeof *b * NR);
        TILE_MULTIPLY(TILE_C0, TILE_A, TILE_B0);
        TILE_MULTIPLY(TILE_C1, TILE_A, TILE_B1);
        if (asks)
            tile_nearer(ahead, words, b);
        fma_ask_a(a);
        fma_ask_a(a + VL);
        if (rest->row < f->rows)
            tile_row(f, rest);
        b = grows ? NULL : b + words * NR;
    }
    tile_rest(f, rest);
    TILE_STORE(TILE_C0, sums, sizeof(float) * NR);
    TILE_STORE(TILE_C1, sums + VL, sizeof(float) * NR);
}

/* Two blocks of sums and the ring behind the foot's stack, which has a level more than 64
 * chains want: the rest is in the slow path's memory. */
_Static_assert((MR + RING / 2) * (NR * sizeof(float)) <= EXACT_SCRATCH,
               "the second block and the ring");

PACK_INLINE void tile_chains(struct fma *f, const bool grows, int64_t from, int64_t to,
                             const float *add, float *out)
{
    struct fma_course s = fma_begin_course(f, from, to, add, out);
    struct tile_rest rest = { .row = f->rows };
    int now = 0;
    if (f->held != f->rows)
        tiles_begin(f->rows, f->w->step / 2);
    f->held = f->rows;
    for (struct chain c; fma_next(f, &s, &c);) {
        const bool waits = c.foot || c.add || !c.out;
        float *const sums = waits ? fma_level(f, LEVELS + now) : c.out;
        tile_chain(f, grows, &c, &rest, sums);
        if (waits) {
            rest = (struct tile_rest){ c, sums, 0 };
            now ^= 1;
        }
    }
    tile_rest(f, &rest);
}

static void tile_run(struct fma *f, int64_t from, int64_t to, const float *add, float *out)
{
    tile_chains(f, false, from, to, add, out);
}

static void tile_grow_run(struct fma *f, int64_t from, int64_t to, const float *add, float *out)
{
    tile_chains(f, true, from, to, add, out);
}

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    (void)f;
    (void)t;
    return tile_run;
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    const gemm_way way = fma_tile(g, w, t, pick, never_subnormal(t->a, t->b));
    tiles_end();
    return way;
}

static bool tiles(const struct gemm_job *g, const struct gemm_walk *w,
                  const struct gemm_tile *t, const struct gemm_run *run)
{
    const bool done = fma_tiles(g, w, t, run, pick, never_subnormal);
    tiles_end();
    return done;
}

/* Scales that stand apart, or NaN among them, or rows of lanes that do not divide the ring: B
 * grows as a whole. */
static gemm_way tile_growing(const struct gemm_job *g, const struct gemm_walk *w,
                             const struct gemm_tile *t)
{
    const struct gemm_panel *b = t->b;
    const struct panel_parts full = panel_parts(g, w, NR, true),
                             part = slim_parts(g, w, NR, &full);
    if (slim_bits(g) != 4 || !w->blocks || b->unfolded || b->plain || RING % w->step ||
        fma_leaves(g, t->a, b) || !fma_stays_in_range(g, t->a, b) || !never_subnormal(t->a, b))
        return GEMM_LEFT;
    struct fma f = fma_of(g, w, t);
    f.codes = (const uint8_t *)t->b + sizeof *b;
    f.scales = (const uint8_t *)t->b + part.scales;
    f.table = vec_code_table(w->widen[GEMM_B]);
    f.next = t->parts ? t->next - slim_code_bytes(4, w, NR) : 0;
    fma_nearer(&f, t);
    fma_writes(&f, tile_grow_run, t);
    tiles_end();
    if (f.write)
        t->write->done = true;
    return GEMM_FAST;
}

static gemm_way tile_few(const struct gemm_job *g, const struct gemm_walk *w,
                         const struct gemm_tile *t)
{
    const struct gemm_panel *const a = t->a;
    return a->ints ? tile_ints(g, w, t) : tile_growing(g, w, t);
}

FMA_KERNEL(gemm_tilesum_16x32__amxbf16);
