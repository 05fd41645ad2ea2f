/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two MXFP4 operands by TDPBSSD: 32 rows of A by 32 columns of B. Where no sum of the page's is
 * rounded (gemm_e2m1.h), products of bytes are summed in integers, as many blocks at a time as
 * the scales of both panels let be one run (e2m1_fold.h), and a run's integers join the sum by
 * one FMA. Everything else, and few rows, goes by VPDPBUSD on the same panels, eight rows at a
 * time.
 *
 * What limits it: four instructions of 17.6 cycles multiply 64 positions of 32 x 32 elements,
 * while four registers are loaded (32 cycles of other ports). A run's 64 vectors of sums go by
 * memory: 64 stores, 64 conversions, products of scales and FMAs each, done while the next
 * run's products are under way.
 */
#include "../ints512.h"

enum {
    MR = 8,
    NV = 2,
    SUMS = 16,
    FEW_ROWS = 12 /* that read B's codes as they are */
};
#define FMA_EACH FMA_EACH_8
#define E2_DOT   _mm512_dpbusd_epi32
#define E2_WOVEN 32

#include "../gemm_e2m1.h"

#include "e2m1_fold.h"
#include "tiles.h"

_Static_assert(E2_WOVEN == 2 * TILE_ROWS && NR == 2 * TILE_WORDS, "registers of sums");

/* Behind the slow path's and the foot's memory: integers of two runs, sums of one tile. */
struct byte_room {
    int32_t sums[2][E2_WOVEN][NR];
    float acc[E2_WOVEN][NR];
    float scale[2][NR]; /* of B's columns, in each run */
    float zero[NR];
};

/* Positions [from, to) of a tile, whose sums are exact. */
struct stretch {
    const struct gemm_tile *t;
    const struct gemm_write *write; /* NULL: to t->psum */
    int64_t from, to;
    const float *add; /* what is added to their sum, or NULL */
};

/* A run's rows that are left: integers that wait in memory, what they join, where to. */
struct byte_rest {
    const int32_t *sums;
    const float *scale_a, *scale_b, *before, *after; /* after: is added last; or NULL */
    unsigned char *out;
    int64_t before_step, out_step; /* numbers, bytes */
    uint32_t nan;                  /* what NaN becomes; 0: stays */
    int32_t rows;
};

struct bytes {
    const struct gemm_walk *w;
    struct byte_room *room;
    struct e2_parts a;
    struct fold_parts b;
    struct byte_rest rest;
    int now;         /* which half of the room is next */
    int rows, words; /* what registers are set for; 0: not */
};

/* ---- A run's integers become sums. ---- */

/* One row; both scales' product is a power of two: one rounding. */
PACK_INLINE void byte_row(struct byte_rest *x, vec scale[NV])
{
    const vec a = vec_all(x->scale_a);
    FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        vec v = vec_fma(iv_to_float(iv_load(x->sums + q * VL)), vec_mul(a, scale[q]),
                        vec_load(x->before + q * VL));
        if (x->after)
            v = vec_add(vec_load(x->after + q * VL), v);
        iv_store(x->out + 4 * q * VL,
                 x->nan ? psum_result(iv_bits(v), iv_all(x->nan)) : iv_bits(v));
    }
    x->sums += NR;
    x->scale_a++;
    x->before += x->before_step;
    x->after += x->after ? NR : 0;
    x->out += x->out_step;
    x->rows--;
}

PACK_INLINE void byte_scales(const struct byte_rest *x, vec scale[NV])
{
    FMA_UNROLL
    for (int q = 0; q < NV; q++)
        scale[q] = vec_load(x->scale_b + q * VL);
}

static void byte_rows(struct bytes *x)
{
    struct byte_rest rest = x->rest; /* in registers */
    vec scale[NV];
    if (rest.rows == 0)
        return;
    byte_scales(&rest, scale);
    while (rest.rows > 0)
        byte_row(&rest, scale);
    x->rest.rows = 0;
}

/* Of [p, end) of a stretch. What is added to a stretch's sum joins its only run at once, as one
 * FMA rounds that, too. */
static struct byte_rest byte_rest(struct bytes *x, const struct stretch *s, int64_t p,
                                  int64_t end)
{
    const bool first = p == s->from, last = end == s->to;
    const int64_t block = p / E2_BLOCK;
    const struct gemm_write *const write = last ? s->write : NULL;
    float *const acc = x->room->acc[0], *const scale = x->room->scale[x->now];
    const float *const scale_a =
        (const float *)(const void *)((const unsigned char *)s->t->a + x->a.notes);
    vec power[NV];
    e2_powers((const unsigned char *)s->t->b + x->b.powers + block * NR, true, power);
    FMA_UNROLL
    for (int q = 0; q < NV; q++)
        vec_store(scale + q * VL, power[q]);
    struct byte_rest rest = { .sums = x->room->sums[x->now][0],
                              .scale_a = scale_a + block * x->a.next_notes + E2_WOVEN,
                              .scale_b = scale,
                              .before = acc,
                              .before_step = NR,
                              .out = (unsigned char *)(last ? s->t->psum : acc),
                              .out_step = NR * sizeof(float),
                              .rows = s->t->rows };
    if (first) {
        rest.before = last && s->add ? s->add : x->room->zero;
        rest.before_step = last && s->add ? NR : 0;
    } else if (last) {
        rest.after = s->add;
    }
    if (write) {
        rest.out = write->d;
        rest.out_step = write->d_row;
        rest.nan = write->nan;
    }
    return rest;
}

/* ---- Products. ---- */

enum {
    A_ROW = 4 * E2_NEXT_ROW, /* bytes */
    B_ROW = 4 * NR,
    A_NEXT = A_ROW * E2_WOVEN, /* from 64 positions to the next */
    B_NEXT = B_ROW * 2 * E2_QUADS
};

/* n times a register's positions; meanwhile rows of the run before go on. */
PACK_INLINE void byte_products(struct bytes *x, const bool tall, const unsigned char *a,
                               const unsigned char *b, int64_t n)
{
    struct byte_rest rest = x->rest; /* in registers */
    vec scale[NV];
    byte_scales(&rest, scale);
    TILE_ZERO(TILE_C0);
    TILE_ZERO(TILE_C1);
    if (tall) {
        TILE_ZERO(TILE_C2);
        TILE_ZERO(TILE_C3);
    }
    for (int64_t left = n; left > 0; left--, a += A_NEXT, b += B_NEXT) {
        TILE_LOAD(TILE_A, a, A_ROW);
        TILE_LOAD(TILE_B0, b, B_ROW);
        TILE_MULTIPLY_BYTES(TILE_C0, TILE_A, TILE_B0);
        TILE_LOAD(TILE_B1, b + 4 * VL, B_ROW);
        TILE_MULTIPLY_BYTES(TILE_C1, TILE_A, TILE_B1);
        if (tall) {
            TILE_LOAD(TILE_A1, a + TILE_ROWS * A_ROW, A_ROW);
            TILE_MULTIPLY_BYTES(TILE_C2, TILE_A1, TILE_B0);
            TILE_MULTIPLY_BYTES(TILE_C3, TILE_A1, TILE_B1);
        }
        for (int32_t stay = (int32_t)(rest.rows * (left - 1) / left); rest.rows > stay;)
            byte_row(&rest, scale);
    }
    x->rest.rows = 0;
}

PACK_INLINE void byte_store(const bool tall, int32_t (*sums)[NR])
{
    TILE_STORE(TILE_C0, sums[0], sizeof *sums);
    TILE_STORE(TILE_C1, sums[0] + TILE_WORDS, sizeof *sums);
    if (tall) {
        TILE_STORE(TILE_C2, sums[TILE_ROWS], sizeof *sums);
        TILE_STORE(TILE_C3, sums[TILE_ROWS] + TILE_WORDS, sizeof *sums);
    }
}

/* Positions [p, end) of a run of both panels. */
static void byte_run(struct bytes *x, const struct stretch *s, int64_t p, int64_t end)
{
    const int64_t block = p / E2_BLOCK;
    const unsigned char *const a = (const unsigned char *)s->t->a + x->a.elements +
                                   4 * e2_before(block),
                               *const b = (const unsigned char *)s->t->b + x->b.elements +
                                          block * (E2_BLOCK * NR);
    const int words = end - p == E2_BLOCK ? E2_QUADS : 2 * E2_QUADS, rows = s->t->rows;
    const int64_t n = (end - p + 2 * E2_BLOCK - 1) / (2 * E2_BLOCK);
    if (x->rows != rows || x->words != words)
        tiles_begin(rows, words);
    x->rows = rows;
    x->words = words;
    if (rows > TILE_ROWS)
        byte_products(x, true, a, b, n);
    else
        byte_products(x, false, a, b, n);
    byte_store(rows > TILE_ROWS, x->room->sums[x->now]);
    x->rest = byte_rest(x, s, p, end);
    x->now ^= 1;
}

static void byte_stretch(struct bytes *x, const struct stretch *s)
{
    const struct gemm_panel *const a = s->t->a, *const b = s->t->b;
    const int64_t run = a->run < b->run ? a->run : b->run;
    for (int64_t p = s->from, end; p < s->to; p = end) {
        end = (p / run + 1) * run;
        end = end < s->to ? end : s->to;
        byte_run(x, s, p, end);
    }
}

/* ---- Tiles. ---- */

/* Do registers of 64 positions fit [from, to)? */
static bool byte_fits(const struct gemm_walk *w, int64_t from, int64_t to)
{
    return from % (2 * E2_BLOCK) == 0 && (to % (2 * E2_BLOCK) == 0 || to == w->depth);
}

/* Is each of a tile's stretches exact, and as registers want it? */
static bool byte_takes(const struct fma *f, const struct gemm_tile *t)
{
    const struct gemm_walk *const w = f->w;
    if (t->from >= t->to)
        return false;
    if (w->whole)
        return byte_fits(w, t->from, t->to) && e2_exact_at(f, e2_norm_of_chain(0));
    if (e2_is_one(f, t))
        return byte_fits(w, w->start[t->from], w->start[t->to]);
    for (int64_t i = t->from; i < t->to; i++)
        if (!byte_fits(w, w->start[i], w->start[i + 1]) || w->start[i] == w->start[i + 1] ||
            !e2_exact_at(f, e2_norm_of_tile(w, i)))
            return false;
    return true;
}

/* What e2_writes() does. */
static void byte_writes(struct bytes *x, const struct fma *f, const struct gemm_tile *t)
{
    const struct gemm_walk *const w = f->w;
    struct stretch s = { .t = t, .write = f->write, .add = t->begun ? t->psum : NULL };
    if (w->whole || e2_is_one(f, t)) {
        s.from = w->whole ? t->from : w->start[t->from];
        s.to = w->whole ? t->to : w->start[t->to];
        byte_stretch(x, &s);
        return;
    }
    for (int64_t i = t->from; i < t->to; i++, s.add = t->psum) {
        s.write = i == t->to - 1 ? f->write : NULL;
        s.from = w->start[i];
        s.to = w->start[i + 1];
        byte_stretch(x, &s);
    }
}

static struct bytes byte_begin(const struct gemm_walk *w, const struct gemm_tile *t)
{
    struct bytes x = { .w = w,
                       .room = (struct byte_room *)(void *)((unsigned char *)t->scratch +
                                                            FMA_SCRATCH),
                       .a = e2_parts(w, GEMM_A, E2_WOVEN),
                       .b = fold_parts(w) };
    memset(x.room->zero, 0, sizeof x.room->zero);
    x.rest.scale_b = x.room->zero;
    return x;
}

static void byte_end(struct bytes *x)
{
    byte_rows(x);
    if (x->rows)
        tiles_end();
}

/* By VPDPBUSD. */
static void tile_eights(const struct gemm_job *g, const struct gemm_walk *w,
                        const struct gemm_tile *t)
{
    bool done = t->write != NULL;
    if (t->rows <= MR) {
        e2_run(g, w, t, 0);
        return;
    }
    for (int32_t r = 0; r < t->rows; r += MR) {
        struct gemm_tile some = *t;
        struct gemm_write write;
        some.rows = t->rows - r < MR ? t->rows - r : MR;
        some.psum += r * NR;
        if (t->write) {
            write = *t->write;
            write.d += r * write.d_row;
            some.write = &write;
        }
        e2_run(g, w, &some, r);
        done = done && write.done;
    }
    if (done)
        t->write->done = true;
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    if (!e2_stays_in_range(g, t))
        return e2_slow(g, w, t);
    const struct fma f = e2_of(g, w, t, 0);
    if (!byte_takes(&f, t)) {
        tile_eights(g, w, t);
        return GEMM_FAST;
    }
    struct bytes x = byte_begin(w, t);
    fma_nearer(&f, t);
    byte_writes(&x, &f, t);
    byte_end(&x);
    if (f.write)
        t->write->done = true;
    return GEMM_FAST;
}

/* t of panel i of a run. */
static struct gemm_tile tile_at(const struct gemm_tile *t, const struct gemm_run *run,
                                int64_t i, struct gemm_write *write)
{
    struct gemm_tile one = *t;
    one.a = (const unsigned char *)t->a + i * run->a_step;
    one.b = (const unsigned char *)t->b + i * run->b_step;
    one.psum = t->psum + i * run->psum_step;
    one.rows = run->row ? (int32_t)(run->row[i + 1] - run->row[i]) : t->rows;
    if (t->write) {
        *write = *t->write;
        write->d += (run->row ? run->row[i] - run->row[0] : i * t->rows) * write->d_row;
        one.write = write;
    }
    return one;
}

static bool tiles(const struct gemm_job *g, const struct gemm_walk *w,
                  const struct gemm_tile *t, const struct gemm_run *run)
{
    struct gemm_write write;
    for (int64_t i = 0; i < run->panels; i++) {
        const struct gemm_tile one = tile_at(t, run, i, &write);
        const struct fma f = e2_of(g, w, &one, 0);
        if (!e2_stays_in_range(g, &one) || (t->write && !f.write))
            return false;
    }
    struct bytes x = byte_begin(w, t);
    for (int64_t i = 0; i < run->panels; i++) {
        const struct gemm_tile one = tile_at(t, run, i, &write);
        const struct fma f = e2_of(g, w, &one, 0);
        if (byte_takes(&f, &one)) {
            fma_nearer(&f, &one);
            byte_writes(&x, &f, &one);
        } else {
            byte_rows(&x);
            tile_eights(g, w, &one);
        }
    }
    byte_end(&x);
    return true;
}

/* ---- Panels. ---- */

static size_t byte_panel(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side)
{
    return side == GEMM_A ? e2_bytes(g, w, side) : fold_parts(w).bytes;
}

static void byte_pack(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                      int64_t line, int32_t lines, void *panel)
{
    e2_pack_panel(g, w, side, line, lines, panel);
    if (side == GEMM_A) {
        fold_a(w, panel);
        return;
    }
    struct gemm_panel *const head = panel;
    head->run = fold_longest(w, GEMM_B, panel);
    fold_b_grow(w, 0, w->depth / E2_BLOCK, head->run, panel, panel);
}

static size_t byte_slim_bytes(const struct gemm_job *g, const struct gemm_walk *w)
{
    (void)g;
    return e2_parts(w, GEMM_B, NR).bytes;
}

static bool byte_slim(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                      int32_t lines, const void *panel, void *slim)
{
    (void)line;
    (void)lines;
    if (!panel)
        return false;
    memcpy(slim, panel, byte_slim_bytes(g, w));
    return true;
}

static void byte_grow(const struct gemm_job *g, const struct gemm_walk *w, int64_t from,
                      int64_t to, const void *slim, int64_t next, void *panel)
{
    const struct e2_parts p = e2_parts(w, GEMM_B, NR);
    const struct gemm_panel *const head = slim;
    const int64_t first = from / E2_BLOCK, end = to / E2_BLOCK;
    const size_t scale = p.scales + (size_t)first * NR, n = (size_t)(end - first);
    (void)g;
    (void)next; /* what is behind comes by FOLD_AHEAD */
    memcpy(panel, slim, p.scales);
    memcpy((unsigned char *)panel + scale, (const unsigned char *)slim + scale, n * NR);
    fold_b_grow(w, first, end, head->run, slim, panel);
}

/* A panel of codes is the beginning of a whole one. */
static gemm_way tile_few(const struct gemm_job *g, const struct gemm_walk *w,
                         const struct gemm_tile *t)
{
    if (t->rows > FEW_ROWS || !e2_stays_in_range(g, t))
        return GEMM_LEFT;
    tile_eights(g, w, t);
    return GEMM_FAST;
}

extern const struct ng_gemm_kernel ng_gemm_e2m1_32x32__amxbf16;
const struct ng_gemm_kernel ng_gemm_e2m1_32x32__amxbf16 = {
    .name = "gemm_e2m1_32x32__amxbf16",
    .mr = E2_WOVEN,
    .nr = NR,
    .scratch_bytes = FMA_SCRATCH + sizeof(struct byte_room),
    .refuses = refuses,
    .panel_bytes = byte_panel,
    .pack = byte_pack,
    .tile = tile,
    .write = write_psum,
    .slim_bytes = byte_slim_bytes,
    .slim = byte_slim,
    .grow = byte_grow,
    .tile_slim = tile_few,
    .slim_panels = 1,
    .tiles = tiles,
    .block = { .rows = 768, .deep = 512 },
};
