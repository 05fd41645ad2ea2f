/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two MXFP4 operands. A block's 32 products are integers over one unit, and so is their sum:
 * 12 bits of an int32. Where a chain's unit and sums of magnitudes, from the panels' norms,
 * show that FP32 holds each of its sums in any order, none of the page's roundings changes
 * anything: the chain is its blocks' integers times their scales, one FMA each. That holds for
 * all lanes, lane sums and chain lengths; with chains of 128 products, for scales that differ
 * by hundreds. Where a row is a whole block, rounded once, as OCP's dot products are, it is
 * just what the page says. Elsewhere a row's lanes are summed in integers and join the chain as
 * the page says, rounded once; and what leaves FP32's normal range takes exact.h.
 *
 * An ISA's gemm_e2m1.c includes its vectors of words, defines MR, NV, SUMS, FMA_EACH and
 * E2_DOT where it has VPDPBUSD, and includes this.
 */
#ifndef NG_KERNELS_GEMM_E2M1_H
#define NG_KERNELS_GEMM_E2M1_H

enum {
    A_PAIRS = 0
};

#include "gemm_fma.h"
#include "panel_e2m1.h"

/* ---- Four products a word. ---- */

PACK_INLINE ivec e2_word(const uint32_t *p)
{
    return iv_all(*p);
}

/* Sums under way begin at an integer a row, take products of bytes (y unsigned, x signed), and
 * end as words. Without VPDPBUSD they are 16 bits wide, which a block's stay below 2^14 of. */
PACK_INLINE ivec e2_begin(ivec first)
{
#ifdef E2_DOT
    return first;
#else
    (void)first;
    return iv_all(0);
#endif
}

PACK_INLINE ivec e2_dot(ivec sum, ivec y, ivec x)
{
#ifdef E2_DOT
    return E2_DOT(sum, y, x);
#else
    return iv_add16(sum, iv_dot_bytes(y, x));
#endif
}

PACK_INLINE ivec e2_end(ivec sum, ivec first)
{
#ifdef E2_DOT
    (void)first;
    return sum;
#else
    return iv_add(iv_sum_halves(sum), first);
#endif
}

/* ---- Blocks of panels. ---- */

struct e2_tile {
    const uint32_t *a, *notes; /* the panel's, from its first row that is multiplied on */
    const uint32_t *b;         /* the chain's first block */
    const uint8_t *scales;
    int64_t next_notes;
    int64_t block, n; /* the chain's */
    int64_t ahead;    /* words behind those that are multiplied come nearer */
    bool asks, second, nan;
};

struct e2_tables {
    ivec values, four;
};

static inline struct e2_tables e2_tables(const uint8_t values[16])
{
    return (struct e2_tables){ iv_sixteen(values), iv_all(0x0F0F0F0F) };
}

static const uint8_t e2_shifted[16] = { E2_SHIFTED };
static const int8_t e2_values[16] = { E2_VALUES };

/* Quads 2 j and 2 j + 1 of NV vectors of columns. */
PACK_INLINE void e2_decode(const struct e2_tables *t, const uint32_t *b, ivec y[2][NV])
{
    FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        const ivec codes = iv_load(b + q * VL);
        y[0][q] = iv_look_up(t->values, iv_and(codes, t->four));
        y[1][q] = iv_look_up(t->values, iv_and(iv_srl_by(codes, 4), t->four));
    }
}

/* Columns' scales in FP32; `nan`: NaNs are among them. None is 2^-127. */
PACK_INLINE void e2_powers(const uint8_t *scales, const bool nan, vec s[NV])
{
    FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        const ivec code = iv_load8(scales + q * VL);
        const ivec bits = iv_sll_by(code, 23);
        s[q] = iv_float(nan ? iv_pick(iv_eq(code, iv_all(E2_NAN)), iv_all(WIDEN_NAN), bits)
                            : bits);
    }
}

PACK_INLINE void e2_nearer(const struct e2_tile *t, const uint32_t *b)
{
    for (int i = 0; t->asks && i < E2_BLOCK / 8 * NR; i += 16)
        near_ask(b + i + t->ahead, t->second);
}

/* acc += a block's sum, exactly. */
PACK_INLINE void e2_block_sum(const int rows, const struct e2_tables *tables,
                              const struct e2_tile *t, const uint32_t *a, const uint32_t *first,
                              const uint32_t *b, const uint8_t *scales, struct block *acc)
{
    const uint32_t *const scale = first + E2_A_HEIGHT;
    ivec sum[MR][NV];
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++)
        sum[r][q] = e2_begin(e2_word(first + r));
    FMA_UNROLL
    for (int j = 0; j < E2_QUADS / 2; j++) {
        ivec y[2][NV];
        e2_decode(tables, b + j * NR, y);
        FMA_UNROLL
        for (int h = 0; h < 2; h++)
            FMA_UNROLL
        for (int r = 0; r < rows; r++) {
            const ivec x = e2_word(a + (2 * j + h) * E2_NEXT_QUAD + r * E2_NEXT_ROW);
            FMA_UNROLL
            for (int q = 0; q < NV; q++) {
                sum[r][q] = e2_dot(sum[r][q], y[h][q], x);
                ORDER_AFTER(a, sum[r][q]);
            }
        }
        ORDER_AFTER(b, sum[0][0]);
    }
    vec s[NV];
    e2_powers(scales, t->nan, s);
    FMA_UNROLL
    for (int r = 0; r < rows; r++) {
        const vec by = vec_all((const float *)scale + r);
        FMA_UNROLL
        for (int q = 0; q < NV; q++)
            acc->v[r][q] = vec_fma(iv_to_float(e2_end(sum[r][q], e2_word(first + r))),
                                   vec_mul(s[q], by), acc->v[r][q]);
    }
}

PACK_INLINE void e2_blocks(const int rows, const struct e2_tile *t, struct block *acc)
{
    const struct e2_tables tables = e2_tables(e2_shifted);
    const uint32_t *b = t->b, *notes = t->notes + t->block * t->next_notes;
    const uint8_t *scales = t->scales;
    for (int64_t i = t->block; i < t->block + t->n; i++) {
        e2_nearer(t, b);
        e2_block_sum(rows, &tables, t, t->a + e2_before(i), notes, b, scales, acc);
        notes += t->next_notes;
        b += E2_BLOCK / 8 * NR;
        scales += NR;
    }
}

/* ---- The page's steps, where a chain's sums may be rounded. ---- */

/* Rows whose steps run together. */
enum {
    E2_STEP_ROWS = VL == 16 ? 4 : 2
};

/* The lanes of a step as bytes of a quad's word: all four, or two or one at a time. */
struct e2_lanes {
    int steps; /* of a quad */
    int bits;  /* from one step's to the next */
    uint32_t mask;
};

static inline struct e2_lanes e2_lanes(const struct gemm_job *g)
{
    const int lanes = rule_step_of(g) == STEP_FMA ? 1 : rule_param(g, NG_PARAM_LANES);
    return (struct e2_lanes){ 4 / lanes, 8 * lanes % 32, 0xFFFFFFFFu >> (32 - 8 * lanes) };
}

/* What A's bytes as unsigned ones are too large by, times the bytes of y under a mask. */
PACK_INLINE void e2_above(const ivec above, ivec y[NV], ivec first[NV])
{
    const ivec none = iv_all(0);
    FMA_UNROLL
    for (int q = 0; q < NV; q++)
        first[q] = iv_sub(none, e2_end(e2_dot(e2_begin(none), above, y[q]), none));
}

/* acc = R(acc + a quad's lanes under a mask): here A's bytes are unsigned, so that what they
 * are too large by is the same for all rows. */
PACK_INLINE void e2_step(const int rows, const ivec masks, const uint32_t *a, ivec y[NV],
                         vec by[MR][NV], struct block *acc)
{
    const ivec above = iv_and(masks, iv_all(E2_A_BIAS * 0x01010101u));
    ivec first[NV];
    e2_above(above, y, first);
    FMA_UNROLL
    for (int r = 0; r < rows; r++) {
        const ivec x = iv_add8(iv_and(masks, e2_word(a + r * E2_NEXT_ROW)), above);
        FMA_UNROLL
        for (int q = 0; q < NV; q++) {
            const ivec sum = e2_dot(e2_begin(first[q]), x, y[q]);
            acc->v[r][q] = vec_fma(iv_to_float(e2_end(sum, first[q])), by[r][q], acc->v[r][q]);
            ORDER_AFTER(a, acc->v[r][q]);
        }
    }
}

/* A quad's steps, one after another; `four`: it is one. */
PACK_INLINE void e2_quad_steps(const int rows, const bool four, const struct e2_lanes *lanes,
                               const uint32_t *a, ivec y[NV], vec by[MR][NV], struct block *acc)
{
    uint32_t mask = lanes->mask;
    if (four)
        e2_step(rows, iv_all(0xFFFFFFFFu), a, y, by, acc);
    for (int i = 0; !four && i < lanes->steps; i++, mask <<= lanes->bits)
        e2_step(rows, iv_all(mask), a, y, by, acc);
}

/* Rows [from, to): as many as leave registers for their scales. */
PACK_INLINE void e2_steps_of(const int from, const int to, const bool four,
                             const struct e2_lanes *lanes, const struct e2_tile *t,
                             struct block *all)
{
    const struct e2_tables tables = e2_tables((const uint8_t *)e2_values);
    const uint32_t *const rows_a = t->a + from * E2_NEXT_ROW, *b = t->b;
    const int rows = to - from;
    struct block acc;
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++)
        acc.v[r][q] = all->v[from + r][q];
    for (int64_t i = 0; i < t->n; i++, b += E2_BLOCK / 8 * NR) {
        const int64_t block = t->block + i;
        const uint32_t *const a = rows_a + e2_before(block);
        const float *const scale =
            (const float *)t->notes + block * t->next_notes + E2_A_HEIGHT + from;
        vec s[NV], by[MR][NV];
        if (from == 0)
            e2_nearer(t, b);
        e2_powers(t->scales + i * NR, t->nan, s);
        FMA_UNROLL
        for (int r = 0; r < rows; r++)
            FMA_UNROLL
        for (int q = 0; q < NV; q++)
            by[r][q] = vec_mul(s[q], vec_all(scale + r));
        for (int j = 0; j < E2_QUADS / 2; j++) {
            ivec y[2][NV];
            e2_decode(&tables, b + j * NR, y);
            e2_quad_steps(rows, four, lanes, a + 2 * j * E2_NEXT_QUAD, y[0], by, &acc);
            e2_quad_steps(rows, four, lanes, a + (2 * j + 1) * E2_NEXT_QUAD, y[1], by, &acc);
        }
    }
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++)
        all->v[from + r][q] = acc.v[r][q];
}

PACK_INLINE void e2_steps(const int rows, const struct gemm_job *g, const struct e2_tile *t,
                          struct block *acc)
{
    const struct e2_lanes lanes = e2_lanes(g);
    FMA_UNROLL
    for (int r = 0; r < rows; r += E2_STEP_ROWS) {
        const int end = r + E2_STEP_ROWS < rows ? r + E2_STEP_ROWS : rows;
        if (lanes.steps == 1)
            e2_steps_of(r, end, true, &lanes, t, acc);
        else
            e2_steps_of(r, end, false, &lanes, t, acc);
    }
}

/* ---- Chains, tiles. ---- */

/* struct fma's a and b are the panels' beginnings here. */
PACK_INLINE struct e2_tile e2_tile_of(const struct fma *f, const struct chain *c)
{
    const struct gemm_walk *const w = f->w;
    const unsigned char *const pa = (const unsigned char *)f->a;
    const unsigned char *const pb = (const unsigned char *)f->b;
    const struct e2_parts a = e2_parts(w, GEMM_A, E2_A_HEIGHT), b = e2_parts(w, GEMM_B, NR);
    const int64_t block = c->from / E2_BLOCK;
    return (struct e2_tile){
        .a = (const uint32_t *)(const void *)(pa + a.elements) + f->first_row * E2_NEXT_ROW,
        .notes = (const uint32_t *)(const void *)(pa + a.notes) + f->first_row,
        .next_notes = a.next_notes,
        .block = block,
        .b = (const uint32_t *)(const void *)(pb + b.elements) + block * (E2_BLOCK / 8) * NR,
        .scales = pb + b.scales + block * NR,
        .n = c->n / E2_BLOCK,
        .ahead = AHEAD,
        .asks = f->fresh,
        .second = f->second,
        .nan = ((const struct gemm_panel *)(const void *)pb)->nan_scale
    };
}

static inline bool e2_exact_at(const struct fma *f, int64_t norm)
{
    return e2_exact(e2_norms(f->a)[norm], e2_norms(f->b)[norm]);
}

/* Any number of blocks whose sums are exact. */
PACK_INLINE void e2_whole_run(struct fma *f, const int rows, const struct chain *c)
{
    const struct e2_tile t = e2_tile_of(f, c);
    struct block acc;
    fma_begin(f, rows, NV, 0, &acc);
    e2_blocks(rows, &t, &acc);
    fma_end(f, rows, NV, 0, c, &acc);
}
FMA_INSTANCES(e2_whole)

/* A chain, or a piece of the one that is all of K. */
PACK_INLINE void e2_chain_run(struct fma *f, const int rows, const struct chain *c)
{
    const struct e2_tile t = e2_tile_of(f, c);
    struct block acc;
    fma_begin(f, rows, NV, 0, &acc);
    const bool one = f->w->lanes == E2_BLOCK && rule_step_of(f->g) == STEP_SUM;
    if (one || e2_exact_at(f, e2_norm_of_chain(f->w->whole ? 0 : c->from)))
        e2_blocks(rows, &t, &acc);
    else
        e2_steps(rows, f->g, &t, &acc);
    fma_end(f, rows, NV, 0, c, &acc);
}
FMA_INSTANCES(e2_chain)

/*
 * A K tile whose sums are all exact is one chain, as no addition of the foot rounds either; and
 * where nothing but such sums was there before, so are all tiles of which that is true.
 */
static inline bool e2_is_one(const struct fma *f, const struct gemm_tile *t)
{
    const bool alone = t->from == 0 ? !t->begun : !f->g->c.data && f->g->acc == NG_F32;
    return alone && t->from < t->to && e2_exact_at(f, e2_norm_of_all(f->w));
}

/* fma_writes(). */
static void e2_writes(struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const whole[MR] = FMA_LINE(e2_whole);
    static fma_runner *const chain[MR] = FMA_LINE(e2_chain);
    const struct gemm_walk *const w = f->w;
    const struct gemm_write *const write = f->write;
    fma_runner *const run = whole[t->rows - 1];
    const float *add = t->begun ? t->psum : NULL;
    if (w->whole) {
        fma_writes(f, chain[t->rows - 1], t);
        return;
    }
    if (e2_is_one(f, t)) {
        f->one = true;
        run(f, w->start[t->from], w->start[t->to], add, t->psum);
        return;
    }
    for (int64_t i = t->from; i < t->to; i++, add = t->psum) {
        f->write = i == t->to - 1 ? write : NULL;
        f->one = e2_exact_at(f, e2_norm_of_tile(w, i));
        if (f->one)
            run(f, w->start[i], w->start[i + 1], add, t->psum);
        else
            chain[t->rows - 1](f, i, i + 1, add, t->psum);
    }
}

static const char *refuses(const struct gemm_job *g)
{
    return e2_refuses(g);
}

static size_t e2_bytes(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side)
{
    (void)g;
    return e2_parts(w, side, side == GEMM_A ? E2_A_HEIGHT : NR).bytes;
}

static void e2_pack_panel(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                          int64_t line, int32_t lines, void *panel)
{
    if (side == GEMM_A)
        e2_pack(g, w, side, line, lines, E2_A_HEIGHT, panel);
    else
        e2_pack(g, w, side, line, lines, NR, panel);
}

#ifndef E2_WOVEN
/* Panels of B are as small as their codes already. */
static size_t e2_slim_bytes(const struct gemm_job *g, const struct gemm_walk *w)
{
    (void)g;
    (void)w;
    return 0;
}
#endif

static inline bool e2_stays_in_range(const struct gemm_job *g, const struct gemm_tile *t)
{
    const struct gemm_panel *a = t->a, *b = t->b;
    return fma_stays_in_range(g, a, b) && b->lsb_min >= 1 - E2_ONE - 1; /* no scale of 2^-127 */
}

/* Tiles that do not. */
static gemm_way e2_slow(const struct gemm_job *g, const struct gemm_walk *w,
                        const struct gemm_tile *t)
{
    if (t->sparing)
        return GEMM_LEFT;
    if (w->whole && (t->from > 0 || t->to < w->depth))
        return GEMM_WHOLE;
    struct exact e = fma_exact_of(g, w, t);
    e.a = (struct exact_side){
        .panel = t->a, .width = E2_A_HEIGHT, .value = e2_value, .side = GEMM_A
    };
    e.b = (struct exact_side){ .panel = t->b, .width = NR, .value = e2_value, .side = GEMM_B };
    fma_exact_writes(&e, t);
    return GEMM_EXACT;
}

/* Rows from first_row of the panel on: t's. */
static inline struct fma e2_of(const struct gemm_job *g, const struct gemm_walk *w,
                               const struct gemm_tile *t, int32_t first_row)
{
    return (struct fma){ .g = g,
                         .w = w,
                         .a = t->a,
                         .b = t->b,
                         .first_row = first_row,
                         .level = t->scratch,
                         .soon = t->soon,
                         .write = fma_delivers(g, t),
                         .fresh = t->fresh,
                         .second = g->second };
}

static inline void e2_run(const struct gemm_job *g, const struct gemm_walk *w,
                          const struct gemm_tile *t, int32_t first_row)
{
    struct fma f = e2_of(g, w, t, first_row);
    fma_nearer(&f, t);
    e2_writes(&f, t);
    if (f.write)
        t->write->done = true;
}

#ifndef E2_WOVEN
static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    if (!e2_stays_in_range(g, t))
        return e2_slow(g, w, t);
    e2_run(g, w, t, 0);
    return GEMM_FAST;
}
#endif

#define E2_KERNEL(kernel)                                                                      \
    extern const struct ng_gemm_kernel ng_##kernel;                                            \
    const struct ng_gemm_kernel ng_##kernel = { .name = #kernel,                               \
                                                .mr = MR,                                      \
                                                .nr = NR,                                      \
                                                .scratch_bytes = FMA_SCRATCH,                  \
                                                .refuses = refuses,                            \
                                                .panel_bytes = e2_bytes,                       \
                                                .pack = e2_pack_panel,                         \
                                                .tile = tile,                                  \
                                                .write = write_psum,                           \
                                                .slim_bytes = e2_slim_bytes }

#endif
