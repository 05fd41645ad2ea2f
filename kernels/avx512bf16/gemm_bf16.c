/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chains of single products of bf16 and narrower values: 6 rows of A by 64 columns of B, two
 * positions an instruction. 24 accumulators cover its latency of 6 at two a cycle; 4 vectors of
 * B; A is a broadcast operand. Per pair: 10 loads to 24 VDPBF16PS, which is 12 cycles. The
 * additions that end a chain run on other ports than the products.
 *
 * Where a value or a sum may be subnormal the FMA of gemm_fma.h takes the tile, on the same
 * panels; past FP32's range exact.h.
 */
#include "../dp.h"

enum {
    MR = 6,
    NV = 4,
    SUMS = 24,
    A_PAIRS = 1
};
#define FMA_EACH FMA_EACH_6
#define FMA_PACK pack_or_adjoin

#include "dp_lying.h"

#include "dp_six.h"

static void pack_or_adjoin(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                           int64_t line, int32_t lines, void *panel)
{
    if (side == GEMM_A || !adjoin_pack(g, w, line, lines, panel))
        pack_or_six(g, w, side, line, lines, panel);
}

/* Few rows read bytes as they are. */
PACK_INLINE void dp_single(const int rows, const int q, const uint32_t *a, vec_pairs y,
                           struct block *acc)
{
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        acc->v[r][q] = dp_at(acc->v[r][q], iv_float(y), a + r);
}

#define SLIM_FAST(a, b)   never_subnormal(a, b)
#define SLIM_PASSES(rows) ((rows) == 1)
#define BYTES_AHEAD_1     12288
#define BYTES_SINGLE      dp_single
#include "../gemm_bytes.h"

static const char *refuses(const struct gemm_job *g)
{
    return fma_refuses(g, false);
}

/* What else comes nearer while they run. */
enum dp_wish {
    DP_NOTHING,
    DP_A,   /* A's next words: see fma_ask_a() */
    DP_B,   /* B's next words: it comes from memory, or its next panel does */
    DP_SOON /* rows that are wanted soon */
};

PACK_INLINE void dp_chain(struct fma *f, const int rows, const enum dp_wish wish,
                          const struct chain *c)
{
    const uint32_t *a = f->a + c->from / 2 * MR, *b = f->b + c->from / 2 * NR;
    struct soon_lines soon = { 0 };
    const struct fma_far ahead = wish == DP_B ? fma_far_of(f, 0) : (struct fma_far){ 0 };
    if (wish == DP_SOON)
        soon = soon_begin(f, c->n, 1);
    struct block acc;
    fma_begin(f, rows, NV, 0, &acc);
    for (int64_t p = 0; p < c->n; p += 2, a += MR, b += NR) {
        vec y[NV];
        FMA_UNROLL
        for (int q = 0; q < NV; q++) {
            y[q] = dp_load(b + q * VL);
            if (wish == DP_B)
                near_ask(b + q * VL + ahead.by[q], ahead.second);
        }
        dp_step(rows, NV, a, y, &acc);
        if (wish == DP_SOON)
            soon_ask(&soon);
        else if (wish == DP_A)
            fma_ask_a(a);
    }
    fma_end(f, rows, NV, 0, c, &acc);
    if (wish == DP_SOON)
        soon_end(f, &soon);
}

/* The sums of two chains of n positions, from a and b on, in nv vectors of columns. */
PACK_INLINE void dp_two(const int rows, const int nv, const bool asks, const uint32_t *a[2],
                        const uint32_t *b[2], int64_t n, struct block acc[2])
{
    ORDER_APART(a[1]);
    ORDER_APART(b[1]);
    fma_zero(rows, nv, &acc[0]);
    fma_zero(rows, nv, &acc[1]);
    for (int64_t p = 0; p < n; p += 2) {
        FMA_UNROLL
        for (int i = 0; i < 2; i++) {
            vec y[NV];
            FMA_UNROLL
            for (int q = 0; q < nv; q++)
                y[q] = dp_load(b[i] + q * VL);
            dp_step(rows, nv, a[i], y, &acc[i]);
            if (asks)
                fma_ask_a(a[i]);
            a[i] += MR;
            b[i] += NR;
        }
    }
}

/*
 * Two chains of the same length, the second one's sums added to the first one's, in as many
 * columns as registers hold twice: a store of each would keep the multiplying ports waiting
 * (README.md, "What a 32-row chain costs").
 */
PACK_INLINE void dp_two_chains(const struct fma *f, const int rows, const bool asks,
                               const struct chain *first, const struct chain *second)
{
    const int nv = 2 * rows * NV <= SUMS ? NV : NV / 2;
    for (int col = 0; col < NR; col += nv * VL) {
        const uint32_t *a[2] = { f->a + first->from / 2 * MR, f->a + second->from / 2 * MR },
                       *b[2] = { f->b + first->from / 2 * NR + col,
                                 f->b + second->from / 2 * NR + col };
        struct block acc[2];
        if (asks && col == 0)
            dp_two(rows, nv, true, a, b, first->n, acc);
        else
            dp_two(rows, nv, false, a, b, first->n, acc);
        fma_join(f, rows, nv, col, first, second, acc);
    }
}

PACK_INLINE void dp_two_run(struct fma *f, const int rows, const struct chain *first,
                            const struct chain *second)
{
    dp_two_chains(f, rows, true, first, second);
}

PACK_INLINE void quad_pair(struct fma *f, const int rows, const struct chain *first,
                           const struct chain *second)
{
    dp_two_chains(f, rows, true, first, second);
}

/* A is near. */
PACK_INLINE void quad_once_pair(struct fma *f, const int rows, const struct chain *first,
                                const struct chain *second)
{
    dp_two_chains(f, rows, false, first, second);
}
FMA_EACH(FMA_QUAD_INSTANCE, quad)
FMA_EACH(FMA_QUAD_INSTANCE, quad_once)

#define DP_RUNNERS(name, wish)                                                                 \
    PACK_INLINE void name##_run(struct fma *f, const int rows, const struct chain *c)          \
    {                                                                                          \
        dp_chain(f, rows, wish, c);                                                            \
    }
DP_RUNNERS(dp, DP_A)
DP_RUNNERS(dp_far, DP_A)
DP_RUNNERS(dp_once, DP_NOTHING)
DP_RUNNERS(dp_b, DP_B)
DP_RUNNERS(dp_soon, DP_SOON)
FMA_TWO_INSTANCES(dp)
FMA_INSTANCES(dp_far)
FMA_INSTANCES(dp_once)
FMA_INSTANCES(dp_b)
FMA_INSTANCES(dp_soon)

FMA_RUNNERS(chain, true, WAY_FMA)

enum {
    FAR = 2048 /* positions: 256 KiB of 64 columns */
};

/* A stretch of B that is more than a quarter of a second cache of 1 MiB, of which A's panels
 * have most, comes from farther off: in whole lines one after another, as dp_two_run() does not
 * ask. */
static bool dp_is_far(const struct gemm_walk *w, const struct gemm_tile *t)
{
    return (w->whole ? t->to - t->from : w->start[t->to] - w->start[t->from]) > FAR;
}

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const two[MR] = FMA_LINE(dp), *const far[MR] = FMA_LINE(dp_far);
    static fma_runner *const quad[MR] = FMA_LINE(quad), *const once[MR] = FMA_LINE(dp_once);
    static fma_runner *const quad_once[MR] = FMA_LINE(quad_once);
    static fma_runner *const from_b[MR] = FMA_LINE(dp_b), *const soon[MR] = FMA_LINE(dp_soon);
    static fma_runner *const single[MR] = FMA_LINE(chain);
    const bool asks = soon_has_lines(f), quads = fma_has_quads(f, t);
    fma_runner *const *run = quads ? quad : two;
    if (!never_subnormal(t->a, t->b))
        run = single;
    else if (asks)
        run = soon;
    else if (fma_asks(f))
        run = from_b;
    else if (f->once)
        run = quads ? quad_once : once;
    else if (dp_is_far(f->w, t))
        run = far;
    return run[t->rows - 1];
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    return fma_tile_soon(g, w, t, pick, never_subnormal(t->a, t->b) && !t->fresh && !t->next);
}

/* ---- Two panels of A, and B from memory. ---- */

enum {
    BOTH_LEAST = 7,    /* rows */
    BOTH_LEVELS = 3,   /* of the foot's stack, for four chains */
    BOTH_AHEAD = 3072, /* words: half as many again as AHEAD, for columns come in two halves */
    BOTH_STRETCH = 128 /* positions */
};

/*
 * One chain of both panels: half of B's columns at a time, each vector for the rows of both.
 * Alone the first panel would wait for memory, and memory then for the second one.
 */
PACK_INLINE void dp_both_run(const struct fma f[2], const int rows0, const int rows1,
                             const struct chain c[2])
{
    const int nv = NV / 2;
    const bool second = f->second;
    for (int col = 0; col < NR; col += nv * VL) {
        const uint32_t *a[2] = { f[0].a + c->from / 2 * MR, f[1].a + c->from / 2 * MR },
                       *b = f[0].b + c->from / 2 * NR + col;
        struct block acc[2];
        fma_begin(&f[0], rows0, nv, col, &acc[0]);
        fma_begin(&f[1], rows1, nv, col, &acc[1]);
        for (int64_t p = 0; p < c->n; p += 2, a[0] += MR, a[1] += MR, b += NR) {
            vec y[NV];
            FMA_UNROLL
            for (int q = 0; q < nv; q++) {
                y[q] = dp_load(b + q * VL);
                near_ask(b + q * VL + BOTH_AHEAD, second);
            }
            dp_step(rows0, nv, a[0], y, &acc[0]);
            dp_step(rows1, nv, a[1], y, &acc[1]);
        }
        fma_end(&f[0], rows0, nv, col, &c[0], &acc[0]);
        fma_end(&f[1], rows1, nv, col, &c[1], &acc[1]);
    }
}

/* The same of a slim panel of 8-bit codes without scales, or of a sparse B, which are decoded
 * once for both. Of four positions and columns from vector q on, as `part` says. */
PACK_INLINE void bytes_both_take(const struct fma *f, const int rows0, const int rows1,
                                 const enum bytes_way way, const enum bytes_part part,
                                 const struct vec_bytes *table, const uint8_t *codes, int64_t p,
                                 int first, const uint32_t *const a[2], struct block acc[2])
{
    FMA_UNROLL
    for (int q = 0; q < NV / 2; q++) {
        vec_pairs y[2];
        if (way == BYTES_KEPT)
            bytes_decode(f, way, table, p, first + q, y);
        else
            vec_bytes_decode(table, codes + q * VL * VEC_BYTES, y);
        dp_single(rows0, q, a[0], y[part == BYTES_LAST], &acc[0]);
        dp_single(rows1, q, a[1], y[part == BYTES_LAST], &acc[1]);
        if (part == BYTES_FOUR) {
            dp_single(rows0, q, a[0] + MR, y[1], &acc[0]);
            dp_single(rows1, q, a[1] + MR, y[1], &acc[1]);
        }
    }
}

struct bytes_both {
    struct vec_bytes table;
    int64_t far, last; /* bytes: what comes nearer; from there on it is the next panel's */
};

PACK_INLINE void bytes_both_run(struct fma f[2], const int rows0, const int rows1,
                                const enum bytes_way way, const struct chain c[2])
{
    const struct bytes_both *own = f->own;
    const struct vec_bytes table = own->table;
    const int64_t to = c->from + c->n, far = own->far, last = own->last;
    for (int col = 0; col < NR; col += NV / 2 * VL) {
        const uint32_t *a[2] = { f[0].a + c->from / 2 * MR, f[1].a + c->from / 2 * MR };
        const uint8_t *codes = bytes_at(f, c->from) + col * VEC_BYTES; /* no sparse B's */
        const int q = col / VL;
        struct block acc[2];
        fma_begin(&f[0], rows0, NV / 2, col, &acc[0]);
        fma_begin(&f[1], rows1, NV / 2, col, &acc[1]);
        int64_t p = c->from;
        if (p % VEC_BYTES && p < to) {
            bytes_both_take(f, rows0, rows1, way, BYTES_LAST, &table, codes, p, q, a, acc);
            p += 2;
            a[0] += MR;
            a[1] += MR;
            codes += NR * VEC_BYTES;
        }
        for (; p + VEC_BYTES <= to; p += VEC_BYTES) {
            if (way == BYTES_KEPT)
                bytes_nearer(f, MR, way, p, q, NV / 2, far, last);
            else
                slim_bring(f, MR, codes, far, p * NR >= last ? f->next : 0,
                           NV / 2 * VL * VEC_BYTES);
            bytes_both_take(f, rows0, rows1, way, BYTES_FOUR, &table, codes, p, q, a, acc);
            a[0] += 2 * MR;
            a[1] += 2 * MR;
            codes += NR * VEC_BYTES;
        }
        if (p < to)
            bytes_both_take(f, rows0, rows1, way, BYTES_FIRST, &table, codes, p, q, a, acc);
        fma_end(&f[0], rows0, NV / 2, col, &c[0], &acc[0]);
        fma_end(&f[1], rows1, NV / 2, col, &c[1], &acc[1]);
    }
}

/* What B's panel is. */
enum both_of {
    BOTH_PAIRS,
    BOTH_BYTES,
    BOTH_KEPT
};

PACK_INLINE void both_run(struct fma f[2], const int rows0, const int rows1,
                          const enum both_of of, const struct chain c[2])
{
    if (of == BOTH_PAIRS)
        dp_both_run(f, rows0, rows1, c);
    else
        bytes_both_run(f, rows0, rows1, of == BOTH_KEPT ? BYTES_KEPT : BYTES_ALL, c);
}

/* One chain over all of K, in stretches that the first cache has for the other half. */
PACK_INLINE void both_whole(struct fma f[2], const int rows0, const int rows1,
                            const enum both_of of, int64_t from, int64_t to, bool begun,
                            float *const psum[2])
{
    for (int64_t n; from < to; from += n, begun = true) {
        n = to - from < BOTH_STRETCH ? to - from : BOTH_STRETCH;
        struct chain c[2];
        for (int i = 0; i < 2; i++) {
            f[i].carry = begun ? psum[i] : NULL;
            c[i] = (struct chain){ .from = from, .n = n, .out = psum[i] };
        }
        both_run(f, rows0, rows1, of, c);
    }
}

PACK_INLINE void both(struct fma f[2], const int rows0, const int rows1, const enum both_of of,
                      const struct gemm_tile *t, float *const psum[2])
{
    if (f->w->whole) {
        both_whole(f, rows0, rows1, of, t->from, t->to, t->begun, psum);
        return;
    }
    struct fma_course s[2];
    for (int i = 0; i < 2; i++)
        s[i] = fma_begin_course(&f[i], t->from, t->to, t->begun ? psum[i] : NULL, psum[i]);
    for (struct chain c[2]; fma_next(&f[0], &s[0], &c[0]) && fma_next(&f[1], &s[1], &c[1]);)
        both_run(f, rows0, rows1, of, c);
}

typedef void both_runner(struct fma f[2], const struct gemm_tile *t, float *const psum[2]);

#define BOTH(name, of, rows0, rows1)                                                           \
    static __attribute__((noinline)) void name##_##rows0##_##rows1(                            \
        struct fma f[2], const struct gemm_tile *t, float *const psum[2])                      \
    {                                                                                          \
        both(f, rows0, rows1, of, t, psum);                                                    \
    }
/* As gemm_run.row cuts them: equal, or one longer by a row. */
#define BOTH_EACH(name, of)                                                                    \
    BOTH(name, of, 3, 4)                                                                       \
    BOTH(name, of, 4, 4)                                                                       \
    BOTH(name, of, 4, 5)                                                                       \
    BOTH(name, of, 5, 5)                                                                       \
    BOTH(name, of, 5, 6)                                                                       \
    BOTH(name, of, 6, 6)                                                                       \
    static both_runner *const name##_runners[] = { name##_3_4, name##_4_4, name##_4_5,         \
                                                   name##_5_5, name##_5_6, name##_6_6 };
BOTH_EACH(dp_both, BOTH_PAIRS)
BOTH_EACH(bytes_both, BOTH_BYTES)
BOTH_EACH(kept_both, BOTH_KEPT)

/* Are they two such panels? */
static bool are_both(const struct gemm_walk *w, const struct gemm_tile *t,
                     const struct gemm_run *run)
{
    if (t->write || run->panels != 2 || run->b_step || !run->psum_step || !run->row ||
        w->chains > 4)
        return false;
    const int64_t rows = run->row[2] - run->row[0], first = run->row[1] - run->row[0];
    return rows >= BOTH_LEAST && (first == rows / 2 || first == (rows + 1) / 2);
}

/* f[0] is the first one's, which comes second where it has a row more. */
static void take_both(struct fma f[2], both_runner *const *runners, const struct gemm_tile *t,
                      const struct gemm_run *run)
{
    const int64_t rows = run->row[2] - run->row[0];
    const bool turned = run->row[1] - run->row[0] > rows / 2;
    f[1] = f[0];
    fma_move(&f[!turned], run->a_step, 0);
    f[1].level += BOTH_LEVELS * MR * NR;
    float *const psum[2] = { t->psum + (turned ? run->psum_step : 0),
                             t->psum + (turned ? 0 : run->psum_step) };
    runners[rows - BOTH_LEAST](f, t, psum);
}

/* False: they are no such two, or not by VDPBF16PS. */
static bool dp_takes_both(const struct gemm_job *g, const struct gemm_walk *w,
                          const struct gemm_tile *t, const struct gemm_run *run)
{
    if (!t->fresh || !are_both(w, t, run) || !fma_all_fast(g, t, run, never_subnormal))
        return false;
    struct fma f[2] = { fma_of(g, w, t) };
    take_both(f, dp_both_runners, t, run);
    return true;
}

/* Position at which addition `at` begins. */
static int64_t both_position(const struct gemm_walk *w, int64_t at)
{
    return w->whole ? at : w->start[at / w->writes];
}

/* The same, of a slim B. A block of K of each panel's codes comes from memory with the first
 * two of A's panels; the next two find it there. */
static bool bytes_takes_both(const struct gemm_job *g, const struct gemm_walk *w,
                             const struct gemm_tile *t, const struct gemm_run *run)
{
    const int bits = slim_bits(g);
    if (bits == 4 || w->blocks || !are_both(w, t, run))
        return false;
    const void *const second = (const unsigned char *)t->a + run->a_step;
    if (!slim_goes(g, t->a, t->b) || !slim_goes(g, second, t->b))
        return false;
    struct bytes_both own = { .table = bytes_table(g, w) };
    struct fma f[2] = { slim_of(g, w, t, &own) };
    f->next = 0;
    if (t->fresh) {
        const int64_t from = slim_before(bits, both_position(w, t->from), NR),
                      to = slim_before(bits, both_position(w, t->to), NR);
        own.far = slim_ahead(bits, MR);
        own.last = to - own.far;
        f->next = t->parts ? t->next - (own.last > 0 ? to - from : own.far) : 0;
    }
    take_both(f, g->b.sparse ? kept_both_runners : bytes_both_runners, t, run);
    return true;
}

static bool tiles(const struct gemm_job *g, const struct gemm_walk *w,
                  const struct gemm_tile *t, const struct gemm_run *run)
{
    if (run->slim)
        return bytes_takes_both(g, w, t, run);
    return dp_takes_both(g, w, t, run) || (!t->fresh && fma_tiles(g, w, t, run, pick, NULL));
}

/* By FMA 1024^3 has 1.5 of its rate on such a CPU, 8 rows 1.3, one row the same. */
static bool behind(const struct gemm_job *g)
{
    (void)g;
    return true;
}

FMA_KERNEL(gemm_bf16_6x64__avx512bf16);
