/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The array family in FP32 fused multiply-adds. An ISA's gemm_*.c includes its vec.h, defines
 * MR, NV (vectors of a row), SUMS (that fit its registers), A_PAIRS and FMA_EACH, and includes
 * this, or one of the files on top of it.
 *
 * Lanes are columns, so no sum crosses lanes and each takes the very steps of docs/numerics.md
 * 4.1: (4) chains from +0, (5) the foot, (6) the accumulate memory. Packed panels hold the rows
 * and lanes in the order in which they are taken. README.md says when FP32 operations are the
 * page's R(); where they are not, exact.h takes the tile, or a row's step of it.
 *
 * A panels are FP32 [position][MR], or with A_PAIRS bf16 pairs; B panels FP32, or bf16 pairs
 * where its values fit.
 */
#ifndef NG_KERNELS_GEMM_FMA_H
#define NG_KERNELS_GEMM_FMA_H

#include "exact.h"
#include "near.h"
#include "order.h"
#include "psum.h"
#include "slim_straight.h"

/* Positions of gemm_near.h. */
#ifndef FMA_NEAR
#define FMA_NEAR 0
#endif

enum {
    GROUPS = (NR + SPREAD_GROUP - 1) / SPREAD_GROUP,
    SPREAD_LIMIT = 24 * SPREAD_UNIT
};

#define FMA_UNROLL ORDER_UNROLL

struct block {
    vec v[MR][NV];
};

/* Operands of a tile, with what its steps need. */
struct fma {
    const struct gemm_job *g;
    const struct gemm_walk *w;
    const uint32_t *a, *b;
    const struct gemm_lying *lying; /* instead of b */
    const uint8_t *codes, *scales;  /* instead of b: a slim panel's */
    struct vec_codes table;         /* of `codes` */
    int64_t lo_a, lo_b;             /* from an element to its lower piece */
    int64_t piece_a, piece_b;       /* to the one that is taken: 0, or these */
    const uint8_t *spread_a, *spread_b, *most_a, *most_b;
    int32_t rows;
    int32_t first_row; /* of a panel of A of more rows than MR */
    int32_t held;      /* rows that the ISA's registers are set for; 0: not */
    bool short_;       /* exact sums of a row fit 53 bits */
    bool doubles;      /* exact sums of a chain and a row do */
    bool presum, redone;
    struct gemm_soon *soon;
    const struct gemm_write *write; /* NULL: sums go to psum */
    const float *carry; /* NULL: chains begin at +0; else what this one goes on from */
    float *level;       /* the foot's stack: [LEVELS + 1][MR][NR] */
    bool one;           /* positions that a runner is given are one chain */
    bool wide;          /* b is FP32 although its panel has pairs: gemm_near.h */
    bool fresh;         /* b comes from memory */
    bool second;        /* gemm_job's */
    uint8_t parts;
    bool once;
    int64_t next;  /* words from b to the panel after it; of codes bytes, from their end to the
                    * next one's first */
    int64_t far_a; /* words from a to those that come nearer with it */
    const uint32_t *behind; /* comes nearer while a run's panels are multiplied; or NULL */
    const void *own;        /* a runner's */
    void *ahead;            /* one's too: what it has looked up of steps to come */
};

/*
 * A B that comes from memory comes nearer, so many words of its panel before it is multiplied:
 * what the CPU fetches by itself ends at every page. Where the caches have it, that would only
 * drive out what is wanted next.
 */
enum {
    AHEAD = 2048
};

/*
 * So many words of A's panel before they are multiplied: B's panel passes through the first
 * cache with each of A's and leaves nothing there, and a panel of A is too short for what the
 * CPU fetches by itself. Behind its end is the next one.
 */
enum {
    A_AHEAD = 384
};

PACK_INLINE void fma_ask_a(const uint32_t *a)
{
    __builtin_prefetch(a + A_AHEAD);
}

/* How far behind the q-th of every four vectors of b lie the words that come nearer with it; 0
 * where none do: asking for what is read anyway costs nothing. */
static inline int64_t fma_ahead(const struct fma *f, int q)
{
    return f->fresh ? AHEAD : f->parts >> q & 1 ? f->next : 0;
}

/* The same of the columns from `col` on, and into which cache they come. */
struct fma_far {
    int64_t by[4];
    bool second;
};

static inline struct fma_far fma_far_of(const struct fma *f, int col)
{
    struct fma_far x = { .second = f->second };
    for (int q = 0; q < 4; q++)
        x.by[q] = fma_ahead(f, col / VL + q);
    return x;
}

/* Does B itself want lines nearer? */
static inline bool fma_asks(const struct fma *f)
{
    return f->fresh || f->parts;
}

#define FMA_STACK   (((LEVELS + 1) * MR * NR * sizeof(float) + EXACT_SCRATCH + 63) / 64 * 64)
#define FMA_SCRATCH (FMA_STACK + FMA_NEAR * NR * sizeof(float))

static bool fma_pairs(const struct gemm_job *g)
{
    return !rule_pieces(g) && pack_fits_bf16(g, &g->b);
}

/* ---- Rows that are wanted soon, line by line. ---- */

/*
 * All that a chain asks for at once is more than the first cache can wait for, and the products
 * would wait with it: so some lines with each pair of positions. What a chain asks for, in
 * registers.
 */
struct soon_lines {
    const unsigned char *const *row;
    int64_t rows, at, bytes, each; /* each: lines a pair of positions */
    bool second;
};

/* `lines`: whoever runs goes by lines; else each chain asks for rows as it begins. */
static inline struct gemm_soon soon_take(const struct gemm_tile *t, bool lines)
{
    struct gemm_soon s = *t->soon;
    if (lines) {
        s.lines = s.step * ((s.bytes + 63) / 64);
        s.step = 0;
    }
    return s;
}

static inline void soon_give(const struct gemm_tile *t, const struct gemm_soon *s)
{
    t->soon->row = s->row;
    t->soon->rows = s->rows;
    t->soon->at = s->at;
}

static inline bool soon_has_lines(const struct fma *f)
{
    return f->soon && f->soon->lines && f->soon->rows > 0;
}

/* Of a chain of n positions that is gone through `passes` times. */
PACK_INLINE struct soon_lines soon_begin(const struct fma *f, int64_t n, int passes)
{
    const struct gemm_soon *s = f->soon;
    if (!soon_has_lines(f) || n == 0)
        return (struct soon_lines){ 0 };
    return (struct soon_lines){ .row = s->row,
                                .rows = s->rows,
                                .at = s->at,
                                .bytes = s->bytes,
                                .each = (2 * s->lines + passes * n - 1) / (passes * n),
                                .second = f->second };
}

PACK_INLINE void soon_ask(struct soon_lines *s)
{
    for (int64_t i = 0; i < s->each; i++) {
        near_ask(*s->row + s->at, s->second);
        s->at += 64;
        if (s->at >= s->bytes) {
            s->at = 0;
            s->row++;
            if (--s->rows == 0)
                s->each = 0;
        }
    }
}

PACK_INLINE void soon_end(const struct fma *f, const struct soon_lines *s)
{
    if (!s->row)
        return;
    f->soon->row = s->row;
    f->soon->rows = s->rows;
    f->soon->at = s->at;
}

/* What turn() and note() ask for while they go over all of B once: whole rows, evenly. */
struct soon_rows {
    const unsigned char *const *row;
    int64_t bytes, n, of, at; /* n rows in `of` steps */
    bool second;
};

PACK_INLINE struct soon_rows soon_over(const struct gemm_soon *s, int64_t steps, bool second)
{
    if (!s)
        return (struct soon_rows){ .of = 1 };
    return (struct soon_rows){
        .row = s->row, .bytes = s->bytes, .n = s->early, .of = steps, .second = second
    };
}

PACK_INLINE void soon_step(struct soon_rows *s)
{
    for (s->at += s->n; s->at >= s->of; s->at -= s->of, s->row++)
        for (int64_t at = 0; at < s->bytes; at += 64)
            near_ask(*s->row + at, s->second);
}

static inline void soon_over_end(struct gemm_soon *s)
{
    if (!s)
        return;
    s->row += s->early;
    s->rows -= s->early;
    s->early = 0;
}

/* ---- Rows of a chain (4). ---- */

PACK_INLINE void fma_zero(const int rows, const int nv, struct block *acc)
{
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < nv; q++)
        acc->v[r][q] = vec_zero();
}

PACK_INLINE void fma_copy(const int rows, const int nv, const struct block *from,
                          struct block *to)
{
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < nv; q++)
        to->v[r][q] = from->v[r][q];
}

/* A's element of row r at position p of `a`, in all lanes. */
PACK_INLINE vec fma_a(const uint32_t *a, int p, int r)
{
    if (!A_PAIRS)
        return vec_all((const float *)a + p * MR + r);
    return p % 2 ? vec_all_lower(a + p / 2 * MR + r) : vec_all_upper(a + p / 2 * MR + r);
}

/* Words from one position to the n-th after it. */
PACK_INLINE int64_t fma_words(const bool pairs, int width, int64_t n)
{
    return (pairs ? n / 2 : n) * width;
}

PACK_INLINE void fma_one(const int rows, const int nv, const uint32_t *a, const int p,
                         vec b[NV], struct block *acc)
{
    FMA_UNROLL
    for (int r = 0; r < rows; r++) {
        const vec x = fma_a(a, p, r);
        FMA_UNROLL
        for (int q = 0; q < nv; q++)
            vec_fma_to(&acc->v[r][q], x, b[q]);
    }
}

/* The lines `ahead` of nv vectors of b. */
PACK_INLINE void fma_ask_b(const int nv, const uint32_t *b, const struct fma_far *ahead)
{
    FMA_UNROLL
    for (int q = 0; q < nv; q += 16 / VL)
        near_ask(b + q * VL + ahead->by[q], ahead->second);
}

/* The same of a row's positions; `ahead` NULL: A's next words. */
PACK_INLINE void fma_ask(const int rows, const int nv, const bool pairs, const int step,
                         const uint32_t *a, const uint32_t *b, const struct fma_far *ahead)
{
    if (ahead)
        for (int i = 0; i < (pairs ? step / 2 : step); i++)
            fma_ask_b(nv, b + i * NR, ahead);
    else if (rows > MR / 2)
        fma_ask_a(a);
}

/* acc = R(acc + a * b), position after position; n is even. `ahead`: B comes from memory; or
 * NULL. `soon`: other rows do; or NULL. If neither, A's words so far behind do. */
PACK_INLINE void fma_chain(const int rows, const int nv, const bool pairs, const uint32_t *a,
                           const uint32_t *b, int64_t n, const struct fma_far *ahead,
                           struct soon_lines *soon, int64_t far, struct block *acc)
{
    vec y[NV];
    for (int64_t p = 0; p < n; p += 2, a += fma_words(A_PAIRS, MR, 2)) {
        if (ahead)
            fma_ask_b(nv, b, ahead);
        FMA_UNROLL
        for (int q = 0; q < nv; q++)
            y[q] = pairs ? vec_upper(b + q * VL) : vec_load((const float *)b + q * VL);
        fma_one(rows, nv, a, 0, y, acc);
        b += pairs ? 0 : NR;
        if (ahead && !pairs)
            fma_ask_b(nv, b, ahead);
        FMA_UNROLL
        for (int q = 0; q < nv; q++)
            y[q] = pairs ? vec_lower(b + q * VL) : vec_load((const float *)b + q * VL);
        fma_one(rows, nv, a, 1, y, acc);
        b += NR;
        if (soon)
            soon_ask(soon);
        else if (!ahead && rows > MR / 2)
            __builtin_prefetch(a + far);
    }
}

/* Of pairs that begin at `at` those of the earlier positions, or of the later ones. */
PACK_INLINE vec fma_of_pairs(const void *at, const bool later)
{
    return later ? vec_lower(at) : vec_upper(at);
}

/* The same, B where it lies: a pointer for each position, or for each pair of them. */
PACK_INLINE void fma_lying(const int rows, const int nv, const int col, const bool pairs,
                           const uint32_t *a, const struct gemm_lying *b, int64_t from,
                           int64_t n, struct soon_lines *soon, struct block *acc)
{
    const unsigned char *const *row = b->row + (from - b->first);
    const int64_t at = b->column + col;
    vec y[NV];
    for (int64_t p = 0; p < n; p += 2, a += fma_words(A_PAIRS, MR, 2)) {
        FMA_UNROLL
        for (int i = 0; i < 2; i++) {
            FMA_UNROLL
            for (int q = 0; q < nv; q++)
                y[q] = pairs ? fma_of_pairs(row[p] + 4 * (at + q * VL), i)
                             : vec_bf16(row[p + i] + 2 * (at + q * VL));
            fma_one(rows, nv, a, i, y, acc);
        }
        soon_ask(soon);
    }
}

/* The FP32 at position q of a panel's column. */
PACK_INLINE float fma_value(const uint32_t *at, const bool pairs, int width, int q)
{
    const uint32_t w = at[fma_words(pairs, width, q)];
    return as_float(!pairs ? w : q % 2 ? w << 16 : w & 0xFFFF0000u);
}

/* R(acc + s), s exact, of half a vector: TwoSum, then one rounding. */
PACK_INLINE vec64 fma_round_odd(vec64 acc, vec64 s)
{
    const vec64 h = vec64_add(acc, s), bb = vec64_sub(h, acc);
    return vec64_odd(h, vec64_add(vec64_sub(acc, vec64_sub(h, bb)), vec64_sub(s, bb)));
}

/* fma_redo() where a row's exact sum fits 53 bits, as that of most formats always does. */
PACK_INLINE vec fma_redo_short(const struct fma *f, const uint32_t *a, const uint32_t *b,
                               const bool pairs, vec acc)
{
    const int n = f->w->step;
    vec y = pairs ? vec_upper(b) : vec_load((const float *)b);
    vec x = fma_a(a, 0, 0);
    vec64 lower = vec64_mul(vec64_half(x, 0), vec64_half(y, 0)),
          upper = vec64_mul(vec64_half(x, 0), vec64_half(y, 1));
    for (int q = 1; q < n; q++) {
        const uint32_t *at = b + fma_words(pairs, NR, q);
        y = !pairs ? vec_load((const float *)at) : q % 2 ? vec_lower(at) : vec_upper(at);
        x = fma_a(a, q, 0);
        lower = vec64_fma(vec64_half(x, 0), vec64_half(y, 0), lower);
        upper = vec64_fma(vec64_half(x, 0), vec64_half(y, 1), upper);
    }
    if (f->presum)
        return vec_add(acc, vec_of_halves(lower, upper));
    return vec_of_halves(fma_round_odd(vec64_half(acc, 0), lower),
                         fma_round_odd(vec64_half(acc, 1), upper));
}

/* acc = R(acc + x_0 + ...) of VL columns, whatever the exponents. */
static vec fma_redo(const struct fma *f, const uint32_t *a, const uint32_t *b, bool pairs,
                    vec before)
{
    if (f->short_)
        return pairs ? fma_redo_short(f, a, b, true, before)
                     : fma_redo_short(f, a, b, false, before);
    float acc[VL];
    vec_store(acc, before);
    double s[VL], c[VL];
    const int n = f->w->step;
    for (int q = 0; q < n; q++) {
        const double x = (double)fma_value(a, A_PAIRS, MR, q);
        for (int l = 0; l < VL; l++) {
            const double y = x * (double)fma_value(b + l, pairs, NR, q);
            if (q == 0) {
                s[l] = y;
                c[l] = 0;
            } else {
                double rest;
                s[l] = exact_two_sum(s[l], y, &rest);
                c[l] += rest;
            }
        }
    }
    for (int l = 0; l < VL; l++) {
        const double old = (double)acc[l];
        if (f->presum)
            acc[l] = acc[l] + (float)exact_round_2(s[l], c[l], NG_RANGE_F32);
        else
            acc[l] = (float)exact_add_2(old, s[l], c[l], NG_RANGE_F32);
    }
    return vec_load(acc);
}

PACK_INLINE vec fma_b(const bool pairs, const uint32_t *b, int q, int col)
{
    if (!pairs)
        return vec_load((const float *)b + q * NR + col);
    return q % 2 ? vec_lower(b + q / 2 * NR + col) : vec_upper(b + q / 2 * NR + col);
}

PACK_INLINE int fma_most(const struct fma *f, int64_t step, int col, int cols)
{
    const uint8_t *b = f->most_b + step * GROUPS + col / SPREAD_GROUP;
    int most = b[0];
    for (int i = 1; i < (cols + SPREAD_GROUP - 1) / SPREAD_GROUP; i++)
        most = b[i] > most ? b[i] : most;
    return most;
}

/* Is the step's sum exact in FP32 for row r and these columns? */
PACK_INLINE bool fma_exact_row(const struct fma *f, int r, int64_t step, int col, int cols)
{
    const int most = fma_most(f, step, col, cols);
    return f->spread_a[step * MR + r] + most <= SPREAD_LIMIT;
}

/* Is the step's sum exact in FP32 for all rows and columns of the panels? */
PACK_INLINE bool fma_exact_sums(const struct fma *f, int64_t step, int col, int cols)
{
    const int most = fma_most(f, step, col, cols);
    return f->most_a[step] + most <= SPREAD_LIMIT;
}

/*
 * A step in which some row and column's spreads are too wide: those vectors take the exact step
 * here, and their sum t becomes -0, which adds nothing. Vectors from column `col` on.
 */
static __attribute__((noinline)) void fma_fix_row(struct fma *f, int r, int nv, int col,
                                                  bool pairs, const uint32_t *a,
                                                  const uint32_t *b, int64_t step,
                                                  struct block *acc, struct block *t)
{
    const float minus_zero = -0.0f;
    const int left = SPREAD_LIMIT - f->spread_a[step * MR + r];
    for (int q = 0; q < nv; q++) {
        if (left >= 0 && !vec_any_above(f->spread_b + step * NR + col + q * VL, left))
            continue;
        acc->v[r][q] = fma_redo(f, a + r, b + q * VL, pairs, acc->v[r][q]);
        t->v[r][q] = vec_all(&minus_zero);
        f->redone = true;
    }
}

/* The same of one row's sums and of a whole panel of pairs, on copies, so that acc and t stay
 * in registers. */
PACK_INLINE void fma_fix_apart(struct fma *f, const int r, const uint32_t *a, const uint32_t *b,
                               int64_t step, vec acc[NV], vec t[NV])
{
    struct block old, sum;
    FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        old.v[r][q] = acc[q];
        sum.v[r][q] = t[q];
    }
    fma_fix_row(f, r, NV, 0, true, a, b, step, &old, &sum);
    FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        acc[q] = old.v[r][q];
        t[q] = sum.v[r][q];
    }
}

static inline void fma_fix(struct fma *f, int rows, int nv, int col, bool pairs,
                           const uint32_t *a, const uint32_t *b, int64_t step,
                           struct block *acc, struct block *t)
{
    for (int r = 0; r < rows; r++)
        if (!fma_exact_row(f, r, step, col, nv * VL))
            fma_fix_row(f, r, nv, col, pairs, a, b, step, acc, t);
}

/* acc = R(acc + x_0 + ...): the row's sum is exact in FP32, or fma_fix() looks after it. */
PACK_INLINE void fma_sum(struct fma *f, const int rows, const int nv, const int col,
                         const bool pairs, const bool watch, const int step, const uint32_t *a,
                         const uint32_t *b, int64_t n, int64_t number,
                         const struct fma_far *ahead, struct block *acc)
{
    for (int64_t p = 0; p < n; p += step, number++, a += fma_words(A_PAIRS, MR, step),
                 b += fma_words(pairs, NR, step)) {
        struct block t;
        int k = 0;
        fma_ask(rows, nv, pairs, step, a, b, ahead);
        fma_zero(rows, nv, &t);
        do {
            vec y[NV];
            FMA_UNROLL
            for (int q = 0; q < nv; q++)
                y[q] = fma_b(pairs, b, k, q * VL);
            FMA_UNROLL
            for (int r = 0; r < rows; r++) {
                const vec x = fma_a(a, k, r);
                FMA_UNROLL
                for (int q = 0; q < nv; q++)
                    t.v[r][q] = k ? vec_fma(x, y[q], t.v[r][q]) : vec_mul(x, y[q]);
            }
        } while (++k < step);
        if (watch && __builtin_expect(!fma_exact_sums(f, number, col, nv * VL), 0)) {
            struct block old, sum; /* copies: acc and t stay in registers */
            fma_copy(rows, nv, acc, &old);
            fma_copy(rows, nv, &t, &sum);
            fma_fix(f, rows, nv, col, pairs, a, b, number, &old, &sum);
            fma_copy(rows, nv, &old, acc);
            fma_copy(rows, nv, &sum, &t);
        }
        FMA_UNROLL
        for (int r = 0; r < rows; r++)
            FMA_UNROLL
        for (int q = 0; q < nv; q++)
            acc->v[r][q] = vec_add(acc->v[r][q], t.v[r][q]);
    }
}

/* acc = R(acc + R(R(x_0 + x_1) + R(x_2 + x_3))), or of two lanes. */
PACK_INLINE void fma_tree(const int rows, const int nv, const bool pairs, const int step,
                          const uint32_t *a, const uint32_t *b, int64_t n,
                          const struct fma_far *ahead, struct block *acc)
{
    for (int64_t p = 0; p < n;
         p += step, a += fma_words(A_PAIRS, MR, step), b += fma_words(pairs, NR, step)) {
        struct block t;
        fma_ask(rows, nv, pairs, step, a, b, ahead);
        fma_zero(rows, nv, &t);
        FMA_UNROLL
        for (int k = 0; k < step; k += 2)
            FMA_UNROLL
        for (int q = 0; q < nv; q++) {
            const vec y0 = fma_b(pairs, b, k, q * VL), y1 = fma_b(pairs, b, k + 1, q * VL);
            FMA_UNROLL
            for (int r = 0; r < rows; r++) {
                const vec x = vec_fma(fma_a(a, k + 1, r), y1, vec_mul(fma_a(a, k, r), y0));
                t.v[r][q] = k ? vec_add(t.v[r][q], x) : x;
            }
        }
        FMA_UNROLL
        for (int r = 0; r < rows; r++)
            FMA_UNROLL
        for (int q = 0; q < nv; q++)
            acc->v[r][q] = vec_add(acc->v[r][q], t.v[r][q]);
    }
}

/* ---- A chain, or a piece of one, with the additions that follow it. ---- */

/* How the rows of a chain are summed. */
enum fma_way {
    WAY_FMA,
    WAY_SOON, /* the same, while other rows come nearer line by line */
    WAY_LYING,
    WAY_TREE,
    WAY_SUM,
    WAY_WATCH,
    WAY_NEAR /* the same where a row's exact sum fits 53 bits */
};

struct chain {
    int64_t from, n;  /* positions */
    uint32_t foot;    /* bit i: then add level i of the foot's stack, in order */
    const float *add; /* NULL, or what is added last */
    float *out;       /* where the sum goes; NULL: to D. All of these are [MR][NR] */
};

static inline float *fma_level(const struct fma *f, int level)
{
    return f->level + level * MR * NR;
}

PACK_INLINE void fma_begin(const struct fma *f, const int rows, const int nv, const int col,
                           struct block *acc)
{
    const float *const carry = f->carry;
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < nv; q++)
        acc->v[r][q] = carry ? vec_load(carry + r * NR + col + q * VL) : vec_zero();
}

/* acc = add + acc. */
PACK_INLINE void fma_add(const int rows, const int nv, const float *add, struct block *acc)
{
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < nv; q++)
        acc->v[r][q] = vec_add(vec_load(add + r * NR + q * VL), acc->v[r][q]);
}

PACK_INLINE void fma_deliver(const struct gemm_write *w, const int rows, const int nv,
                             const int col, const struct block *acc)
{
    const ivec nan = iv_all(w->nan);
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < nv; q++)
        iv_store(w->d + r * w->d_row + 4 * (col + q * VL),
                 psum_result(iv_bits(acc->v[r][q]), nan));
}

PACK_INLINE void fma_add_levels(const struct fma *f, const int rows, const int nv,
                                const int col, uint32_t foot, struct block *acc)
{
    const float *level = f->level + col;
    for (; foot; foot >>= 1, level += MR * NR)
        if (foot & 1)
            fma_add(rows, nv, level, acc);
}

PACK_INLINE void fma_end(const struct fma *f, const int rows, const int nv, const int col,
                         const struct chain *c, struct block *acc)
{
    fma_add_levels(f, rows, nv, col, c->foot, acc);
    if (c->add)
        fma_add(rows, nv, c->add + col, acc);
    if (!c->out) {
        fma_deliver(f->write, rows, nv, col, acc);
        return;
    }
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < nv; q++)
        vec_store(c->out + r * NR + col + q * VL, acc->v[r][q]);
}

/* fma_end() of two chains, if fma_joins() says so: the first one's sums never leave registers.
 */
PACK_INLINE void fma_join(const struct fma *f, const int rows, const int nv, const int col,
                          const struct chain *first, const struct chain *second,
                          struct block acc[2])
{
    struct chain rest = *second;
    rest.foot &= ~1u;
    fma_add_levels(f, rows, nv, col, first->foot, &acc[0]);
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < nv; q++)
        acc[1].v[r][q] = vec_add(acc[0].v[r][q], acc[1].v[r][q]);
    fma_end(f, rows, nv, col, &rest, &acc[1]);
}

/* Sums of `nv` vectors from column `col` on, in registers from the first product to the store.
 */
PACK_INLINE void fma_part(struct fma *f, const int rows, const int nv, const int col,
                          const bool pairs, const enum fma_way way, const struct chain *c)
{
    const int step = f->w->step;
    const uint32_t *a = f->a + f->piece_a + fma_words(A_PAIRS, MR, c->from);
    const uint32_t *b =
        way == WAY_LYING ? NULL : f->b + (f->piece_b + fma_words(pairs, NR, c->from) + col);
    struct block acc;
    /* One panel of A reads B line after line, if it takes all columns at once: the CPU's own
     * fetching keeps up with that, and asking was up to 10 % slower. */
    const bool asks = fma_asks(f) && !(f->once && rows * NV <= SUMS);
    const struct fma_far far = fma_far_of(f, col), *const ahead = asks ? &far : NULL;
    struct soon_lines soon = { 0 };
    if (way == WAY_LYING || way == WAY_SOON)
        soon = soon_begin(f, c->n, NV / nv);
    fma_begin(f, rows, nv, col, &acc);
    if (way == WAY_LYING && VL == 16 && f->lying->pairs)
        fma_lying(rows, nv, col, true, a, f->lying, c->from, c->n, &soon, &acc);
    else if (way == WAY_LYING)
        fma_lying(rows, nv, col, false, a, f->lying, c->from, c->n, &soon, &acc);
    else if (way == WAY_SOON)
        fma_chain(rows, nv, pairs, a, b, c->n, NULL, &soon, 0, &acc);
    else if (way == WAY_FMA && asks)
        fma_chain(rows, nv, pairs, a, b, c->n, &far, NULL, 0, &acc);
    else if (way == WAY_FMA)
        fma_chain(rows, nv, pairs, a, b, c->n, NULL, NULL, f->far_a, &acc);
    else if (way == WAY_TREE && step == 4)
        fma_tree(rows, nv, pairs, 4, a, b, c->n, ahead, &acc);
    else if (way == WAY_TREE)
        fma_tree(rows, nv, pairs, 2, a, b, c->n, ahead, &acc);
    else if (step == 4)
        fma_sum(f, rows, nv, col, pairs, way == WAY_WATCH, 4, a, b, c->n, c->from / 4, ahead,
                &acc);
    else if (step == 2)
        fma_sum(f, rows, nv, col, pairs, way == WAY_WATCH, 2, a, b, c->n, c->from / 2, ahead,
                &acc);
    else
        fma_sum(f, rows, nv, col, pairs, way == WAY_WATCH, step, a, b, c->n, c->from / step,
                ahead, &acc);
    fma_end(f, rows, nv, col, c, &acc);
    if (way == WAY_LYING || way == WAY_SOON)
        soon_end(f, &soon);
}

/*
 * Panels are NV vectors wide. As many of them go side by side as there are registers for, but
 * no fewer than a memory-bound run of one row wants for its latency.
 */
PACK_INLINE void fma_run(struct fma *f, const int rows, const bool pairs,
                         const enum fma_way way, const struct chain *c)
{
    const int nv = rows * NV <= SUMS ? NV : NV / 2;
    for (int col = 0; col < NR; col += nv * VL)
        fma_part(f, rows, nv, col, pairs, way, c);
}

/* ---- K tiles. ---- */

/* Some of them: as many as the first cache can wait for while a chain runs. */
static void fma_soon(struct gemm_soon *s, bool second)
{
    for (int64_t i = 0; i < s->step && s->rows; i++, s->row++, s->rows--)
        for (int64_t at = 0; at < s->bytes; at += 64)
            near_ask(*s->row + at, second);
}

/*
 * The foot (5). Level i of its stack holds a sum of 2^i chains; where they are added one by
 * one, level 0 holds all so far. These levels are added to a tile's chain i as a bit each:
 * those that it completes, and to the last one all that there are.
 */
static inline uint32_t fma_foot(bool tree, uint32_t i, bool last)
{
    const uint32_t completes = (i ^ (i + 1)) >> 1;
    return !tree ? i > 0 : last ? i : completes;
}

/* K tiles [from, to), chain by chain. `add` (or NULL) is added to the first one's sum, which
 * goes to `out`, and that to the next one's; the last one's to D where f->write says so. */
struct fma_course {
    int64_t at, to, position, whole; /* whole: the chain's length where there is just one */
    const int32_t *length;
    const float *add;
    float *out;
    int32_t chain, chains;
    bool tree;
};

/* Are all of t's K tiles four chains each, added as a tree? */
static inline bool fma_has_quads(const struct fma *f, const struct gemm_tile *t)
{
    return t->to <= f->w->quads && rule_param(f->g, NG_PARAM_COMBINE) == NG_COMBINE_TREE;
}

/* f->one: positions [from, to) instead. */
PACK_INLINE struct fma_course fma_begin_course(const struct fma *f, int64_t from, int64_t to,
                                               const float *add, float *out)
{
    const struct gemm_walk *const w = f->w;
    const bool one = f->one;
    return (struct fma_course){ .at = one ? 0 : from,
                                .to = one ? 1 : to,
                                .position = one ? from : w->start[from],
                                .whole = to - from,
                                .length = one ? NULL : w->run + from * w->chains,
                                .add = add,
                                .out = out,
                                .chains = one ? 1 : w->chains,
                                .tree = rule_param(f->g, NG_PARAM_COMBINE) == NG_COMBINE_TREE };
}

/* The next chain; false: there is none. */
PACK_INLINE bool fma_next(struct fma *f, struct fma_course *s, struct chain *c)
{
    if (s->at == s->to)
        return false;
    if (f->soon)
        fma_soon(f->soon, f->second);
    const bool last = s->chain == s->chains - 1;
    const int64_t n = s->length ? *s->length++ : s->whole;
    const uint32_t foot = fma_foot(s->tree, (uint32_t)s->chain, last);
    *c = (struct chain){ .from = s->position, .n = n, .foot = foot };
    s->position += n;
    s->chain++;
    if (!last) {
        c->out = fma_level(f, s->tree ? __builtin_popcount(foot) : 0);
        return true;
    }
    s->at++;
    c->add = s->add;
    c->out = f->write && s->at == s->to ? NULL : s->out;
    s->add = s->out;
    s->chain = 0;
    return true;
}

/* Is the chain behind c, which fma_next() just gave, as long, and is c's sum, level 0 of the
 * stack, what it adds first? */
PACK_INLINE bool fma_joins(const struct fma_course *s, const struct chain *c)
{
    return s->chain != 0 && *s->length == c->n && (!s->tree || s->chain % 2 == 1);
}

/* An instance by its rows, pairs and way; a kernel's pick() has the table. */
typedef void fma_runner(struct fma *f, int64_t from, int64_t to, const float *add, float *out);

#define FMA_INSTANCE(name, rows)                                                               \
    static __attribute__((noinline)) void name##_##rows(                                       \
        struct fma *f, int64_t from, int64_t to, const float *add, float *out)                 \
    {                                                                                          \
        struct fma_course s = fma_begin_course(f, from, to, add, out);                         \
        for (struct chain c; fma_next(f, &s, &c);)                                             \
            name##_run(f, rows, &c);                                                           \
    }
/* The same, of two chains at once where they join: by name_two_run(). */
#define FMA_TWO_INSTANCE(name, rows)                                                           \
    static __attribute__((noinline)) void name##_##rows(                                       \
        struct fma *f, int64_t from, int64_t to, const float *add, float *out)                 \
    {                                                                                          \
        struct fma_course s = fma_begin_course(f, from, to, add, out);                         \
        for (struct chain c, next; fma_next(f, &s, &c);)                                       \
            if (fma_joins(&s, &c) && fma_next(f, &s, &next)) /* there is one */                \
                name##_two_run(f, rows, &c, &next);                                            \
            else                                                                               \
                name##_run(f, rows, &c);                                                       \
    }
/*
 * K tiles of four chains each, added as a tree (fma_has_quads()), two by two by name_pair():
 * nothing is looked up between them, and each has branches of its own, so that CPUs foretell
 * them. Where the last two have no product their sum, +0, is left out: none that begins at +0
 * is -0. The foot is a constant each time, so it is no loop.
 */
#define FMA_QUAD_INSTANCE(name, rows)                                                          \
    static __attribute__((noinline)) void name##_##rows(                                       \
        struct fma *f, int64_t from, int64_t to, const float *add, float *out)                 \
    {                                                                                          \
        const int64_t n = f->w->quad;                                                          \
        float *const level = fma_level(f, 0), *const half = fma_level(f, 1);                   \
        int64_t p = f->w->start[from];                                                         \
        for (int64_t t = from; t < to; t++, p += 2 * n, add = out) {                           \
            float *const end = f->write && t + 1 == to ? NULL : out;                           \
            struct chain first = { .from = p, .n = n, .out = level };                          \
            if (f->w->run[4 * t + 2] == 0) {                                                   \
                const struct chain last = {                                                    \
                    .from = p + n, .n = n, .foot = 1, .add = add, .out = end                   \
                };                                                                             \
                name##_pair(f, rows, &first, &last);                                           \
                continue;                                                                      \
            }                                                                                  \
            const struct chain second = { .from = p + n, .n = n, .foot = 1, .out = half };     \
            name##_pair(f, rows, &first, &second);                                             \
            p += 2 * n;                                                                        \
            first.from = p;                                                                    \
            const struct chain last = {                                                        \
                .from = p + n, .n = n, .foot = 3, .add = add, .out = end                       \
            };                                                                                 \
            name##_pair(f, rows, &first, &last);                                               \
        }                                                                                      \
    }
/* FMA_EACH is the one of these for the kernel's MR. */
#define FMA_EACH_3(what, name) what(name, 1) what(name, 2) what(name, 3)
#define FMA_EACH_4(what, name) FMA_EACH_3(what, name) what(name, 4)
#define FMA_EACH_6(what, name) FMA_EACH_4(what, name) what(name, 5) what(name, 6)
#define FMA_EACH_8(what, name) FMA_EACH_6(what, name) what(name, 7) what(name, 8)
/* name_1, name_2, ... by name_run(); and the line of a table with them. */
#define FMA_INSTANCES(name)     FMA_EACH(FMA_INSTANCE, name)
#define FMA_TWO_INSTANCES(name) FMA_EACH(FMA_TWO_INSTANCE, name)
#define FMA_NAME(name, rows)    name##_##rows,
#define FMA_LINE(name)                                                                         \
    {                                                                                          \
        FMA_EACH(FMA_NAME, name)                                                               \
    }
/* The same by fma_run(). */
#define FMA_RUNNERS(name, pairs, way)                                                          \
    PACK_INLINE void name##_run(struct fma *f, const int rows, const struct chain *c)          \
    {                                                                                          \
        fma_run(f, rows, pairs, way, c);                                                       \
    }                                                                                          \
    FMA_INSTANCES(name)

/* ---- Writes to the accumulate memory. ---- */

/* FP32 in pieces: two instructions a tile, each of both pieces of the inner operand. */
static void fma_pieces(struct fma *f, fma_runner *run, int64_t u, int32_t rows, bool begun,
                       float *psum)
{
    const int32_t writes = f->w->writes;
    const bool a_outer = rule_param(f->g, NG_PARAM_PIECE_OUTER) == NG_OPERAND_A;
    const int lo_first = rule_param(f->g, NG_PARAM_PIECE_ORDER) == NG_ORDER_LO_FIRST;
    const int o = (int)(u % writes), n = writes == 4 ? 1 : 2;
    float *first = fma_level(f, LEVELS - 1), *second = fma_level(f, LEVELS);
    for (int i = 0; i < n; i++) {
        const int outer = (writes == 4 ? o / 2 : o) ^ lo_first,
                  inner = (writes == 4 ? o % 2 : i) ^ lo_first;
        f->piece_a = (a_outer ? outer : inner) ? f->lo_a : 0;
        f->piece_b = (a_outer ? inner : outer) ? f->lo_b : 0;
        if (n == 1)
            run(f, u / writes, u / writes + 1, begun ? psum : NULL, psum);
        else
            run(f, u / writes, u / writes + 1, i ? first : NULL, i ? second : first);
    }
    for (int l = 0; n == 2 && l < rows * NR; l++)
        psum[l] = begun ? psum[l] + second[l] : second[l];
}

static void fma_writes(struct fma *f, fma_runner *run, const struct gemm_tile *t)
{
    const float *const begun = t->begun ? t->psum : NULL;
    if (f->w->whole) { /* one chain over all of K, carried from call to call */
        f->carry = begun;
        f->one = true;
        run(f, t->from, t->to, NULL, t->psum);
        return;
    }
    if (!rule_pieces(f->g)) {
        run(f, t->from, t->to, begun, t->psum); /* (6) */
        return;
    }
    for (int64_t u = t->from; u < t->to; u++)
        fma_pieces(f, run, u, t->rows, u > t->from || t->begun, t->psum);
}

/* ---- Which way a tile goes. ---- */

/* Sums of two panels' products are multiples of 2^fma_unit(), */
static inline int fma_unit(const struct gemm_panel *a, const struct gemm_panel *b)
{
    return a->lsb_min + b->lsb_min;
}
/* and below 2^fma_bound(), as are those of their magnitudes. */
static inline int fma_bound(const struct gemm_job *g, const struct gemm_panel *a,
                            const struct gemm_panel *b)
{
    return a->msb_max + b->msb_max + 2 + rule_log2_ceil(g->k);
}

/*
 * README.md, "Why an FMA is the page's R(acc + x)": no sum of these panels leaves FP32's normal
 * range, or the range in which the profile's and FP32's rules agree.
 */
static bool fma_stays_in_range(const struct gemm_job *g, const struct gemm_panel *a,
                               const struct gemm_panel *b)
{
    const int unit = fma_unit(a, b), bound = fma_bound(g, a, b);
    const bool ftz = rule_param(g, NG_PARAM_ACC_RANGE) == NG_RANGE_F32_FTZ;
    return !a->unfolded && !b->unfolded && bound <= 127 && unit >= (ftz ? -126 : -149) &&
           !(rule_pieces(g) && (a->special || b->special));
}

/* Words of a row of lanes that lie side by side in a panel of A, line after line; 1: all
 * lines' first words, then their second ones, ... */
#ifndef FMA_WOVEN
#define FMA_WOVEN(w) 1
#endif

/* What a tile's writes are, by the slow path. */
static void fma_exact_writes(const struct exact *e, const struct gemm_tile *t)
{
    const int64_t from = e->w->whole ? 0 : t->from, to = e->w->whole ? 1 : t->to;
    for (int64_t u = from; u < to; u++)
        for (int r = 0; r < t->rows; r++) {
            float v[NR], *psum = t->psum + r * NR;
            exact_write(e, u, r, NR, v);
            for (int l = 0; l < NR; l++)
                psum[l] = u > from || t->begun ? psum[l] + v[l] : v[l];
        }
}

static inline struct exact fma_exact_of(const struct gemm_job *g, const struct gemm_walk *w,
                                        const struct gemm_tile *t)
{
    return (struct exact){ .g = g,
                           .w = w,
                           .range = (ng_range)rule_param(g, NG_PARAM_ACC_RANGE),
                           .step = rule_step_of(g),
                           .presum = rule_param(g, NG_PARAM_LANE_SUM) == NG_LANE_SUM_PRESUM,
                           .array = (double(*)[EXACT_WIDTH])((unsigned char *)t->scratch +
                                                             FMA_SCRATCH - EXACT_SCRATCH) };
}

static inline void fma_exact(const struct gemm_job *g, const struct gemm_walk *w,
                             const struct gemm_tile *t)
{
    const struct gemm_panel *ha = t->a, *hb = t->b;
    const bool pairs = fma_pairs(g);
    struct exact e = fma_exact_of(g, w, t);
    e.a = (struct exact_side){ .panel = t->a,
                               .parts = panel_parts(g, w, MR, A_PAIRS),
                               .width = MR,
                               .woven = FMA_WOVEN(w),
                               .pairs = A_PAIRS,
                               .unfolded = ha->unfolded };
    e.b = (struct exact_side){ .panel = t->b,
                               .parts = panel_parts(g, w, NR, pairs),
                               .width = NR,
                               .woven = 1,
                               .pairs = pairs,
                               .unfolded = hb->unfolded };
    fma_exact_writes(&e, t);
}

/* All of a tile's columns, in whole vectors. */
static const struct gemm_write *fma_delivers(const struct gemm_job *g,
                                             const struct gemm_tile *t)
{
    const struct gemm_write *w = t->write;
    return w && w->columns == NR && w->d_col == sizeof(float) && t->from < t->to &&
                   !rule_pieces(g)
               ? w
               : NULL;
}

/* Do exact sums of a row fit 53 bits? */
static inline bool fma_short(const struct gemm_panel *a, const struct gemm_panel *b)
{
    return a->spread < SPREAD_MAX && b->spread < SPREAD_MAX &&
           a->spread + b->spread <= 53 * SPREAD_UNIT;
}

/* Is a row's exact sum and what a chain had before it a double? They are multiples of the unit
 * and below twice the bound, which a chain's own roundings may pass by little. */
static inline bool fma_doubles(const struct gemm_job *g, const struct gemm_panel *a,
                               const struct gemm_panel *b)
{
    return fma_bound(g, a, b) + 1 - fma_unit(a, b) <= 53;
}

static inline struct fma fma_of(const struct gemm_job *g, const struct gemm_walk *w,
                                const struct gemm_tile *t)
{
    const struct panel_parts pa = panel_parts(g, w, MR, A_PAIRS),
                             pb = panel_parts(g, w, NR, fma_pairs(g));
    const unsigned char *a = t->a, *b = t->b;
    const struct gemm_panel *ha = t->a, *hb = t->b;
    return (struct fma){ .g = g,
                         .w = w,
                         .a = (const uint32_t *)(a + sizeof *ha),
                         .b = (const uint32_t *)(b + sizeof *hb),
                         .lo_a = (int64_t)(pa.lo - sizeof *ha) / 4,
                         .lo_b = (int64_t)(pb.lo - sizeof *hb) / 4,
                         .spread_a = a + pa.spread,
                         .spread_b = b + pb.spread,
                         .most_a = a + pa.most,
                         .most_b = b + pb.most,
                         .rows = t->rows,
                         .short_ = fma_short(ha, hb),
                         .doubles = fma_doubles(g, ha, hb),
                         .presum = rule_param(g, NG_PARAM_LANE_SUM) == NG_LANE_SUM_PRESUM,
                         .level = t->scratch,
                         .soon = t->soon,
                         .write = fma_delivers(g, t),
                         .fresh = t->fresh,
                         .second = g->second,
                         .parts = t->parts,
                         .once = t->once,
                         .next = t->next / 4,
                         .far_a = A_AHEAD };
}

/* To the panels so many bytes behind. */
static inline void fma_move(struct fma *f, int64_t a, int64_t b)
{
    f->a += a / (int64_t)sizeof *f->a;
    f->b += b / (int64_t)sizeof *f->b;
    f->spread_a += a;
    f->most_a += a;
    f->spread_b += b;
    f->most_b += b;
}

/* ---- The kernel's functions. ---- */

static inline size_t panel_bytes(const struct gemm_job *g, const struct gemm_walk *w,
                                 gemm_side side)
{
    return side == GEMM_A ? panel_parts(g, w, MR, A_PAIRS).bytes
                          : panel_parts(g, w, NR, fma_pairs(g)).bytes;
}

static inline void pack(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                        int64_t line, int32_t lines, void *panel)
{
    if (side == GEMM_A)
        pack_panel(g, w, side, line, lines, MR, A_PAIRS, panel);
    else if (fma_pairs(g) && slim_full(g, w, line, lines, NR, panel))
        return;
    else if (fma_pairs(g))
        pack_panel(g, w, side, line, lines, NR, true, panel);
    else
        pack_panel(g, w, side, line, lines, NR, false, panel);
}

static inline size_t panel_slim_bytes(const struct gemm_job *g, const struct gemm_walk *w)
{
    return slim_bytes(g, w, NR);
}

static inline bool panel_slim(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                              int32_t lines, const void *panel, void *slim)
{
    if (!panel)
        return slim_straight(g, w, line, lines, NR, slim);
    slim_make(g, w, line, lines, NR, panel, slim);
    return true;
}

static inline bool panel_slims(const struct gemm_job *g, const struct gemm_walk *w)
{
    return slim_tells(g, w, NR);
}

static inline void panel_grow(const struct gemm_job *g, const struct gemm_walk *w, int64_t from,
                              int64_t to, const void *slim, int64_t next, void *panel)
{
    slim_grow(g, w, NR, from, to, slim, next, panel);
}

/* Where a sparse operand is zero because nothing was kept, a NaN or Inf must not meet it. */
static inline bool fma_leaves(const struct gemm_job *g, const struct gemm_panel *a,
                              const struct gemm_panel *b)
{
    return (g->a.sparse || g->b.sparse) &&
           (a->special || b->special || !fma_stays_in_range(g, a, b));
}

/* Does FP32 not hold some sum of a row's lanes? */
static inline bool fma_watches(const struct gemm_job *g, const struct gemm_panel *a,
                               const struct gemm_panel *b)
{
    return a->spread + b->spread > SPREAD_LIMIT && rule_watches(g);
}

/* Rows that sum their lanes: 0 as a tree, 1 in FP32, 2 the same, watching spreads. */
static inline int fma_lanes_way(const struct fma *f, const struct gemm_tile *t)
{
    return rule_step_of(f->g) == STEP_TREE ? 0 : fma_watches(f->g, t->a, t->b) ? 2 : 1;
}

static inline const char *fma_refuses(const struct gemm_job *g, bool lanes)
{
    const char *why = rule_refuses(g);
    if (why)
        return why;
    if ((rule_step_of(g) != STEP_FMA) != lanes)
        return lanes ? "rows of single products" : "rows that sum their lanes first";
    return !A_PAIRS || (pack_fits_bf16(g, &g->a) && pack_fits_bf16(g, &g->b))
               ? NULL
               : "values of more than 8 significant bits";
}

/* D's lines come nearer while the sums run. */
static inline void fma_nearer(const struct fma *f, const struct gemm_tile *t)
{
    for (int32_t r = 0; f->write && r < t->rows; r++)
        for (int64_t i = 0; i < (int64_t)sizeof(float) * NR; i += 64)
            __builtin_prefetch(f->write->d + r * f->write->d_row + i, 1);
}

/* `fast`: what else the kernel's runners ask for holds. */
static inline gemm_way
fma_tile(const struct gemm_job *g, const struct gemm_walk *w, const struct gemm_tile *t,
         fma_runner *(*pick)(const struct fma *f, const struct gemm_tile *t), bool fast)
{
    if (fma_leaves(g, t->a, t->b))
        return GEMM_LEFT;
    if (!fast || !fma_stays_in_range(g, t->a, t->b)) {
        if (t->sparing)
            return GEMM_LEFT;
        if (w->whole && (t->from > 0 || t->to < w->depth))
            return GEMM_WHOLE;
        fma_exact(g, w, t);
        return GEMM_EXACT;
    }
    struct fma f = fma_of(g, w, t);
    fma_nearer(&f, t);
    fma_writes(&f, pick(&f, t), t);
    if (f.write)
        t->write->done = true;
    return f.redone ? GEMM_EXACT : GEMM_FAST;
}

/* The same while rows are wanted soon; `lines`: the runner that pick() gives asks for them line
 * by line. */
static inline gemm_way
fma_tile_soon(const struct gemm_job *g, const struct gemm_walk *w, const struct gemm_tile *t,
              fma_runner *(*pick)(const struct fma *f, const struct gemm_tile *t), bool lines)
{
    if (!t->soon)
        return fma_tile(g, w, t, pick, true);
    struct gemm_soon soon = soon_take(t, lines);
    struct gemm_tile own = *t;
    own.soon = &soon;
    const gemm_way way = fma_tile(g, w, &own, pick, true);
    soon_give(t, &soon);
    return way;
}

/* What fma_tile() asks before it takes the fast path; `fast`: what else the runners ask for. */
typedef bool fma_fast(const struct gemm_panel *a, const struct gemm_panel *b);

static inline bool fma_all_fast(const struct gemm_job *g, const struct gemm_tile *t,
                                const struct gemm_run *run, fma_fast *fast)
{
    const unsigned char *a = t->a, *b = t->b;
    for (int64_t i = 0; i < run->panels; i++, a += run->a_step, b += run->b_step) {
        const struct gemm_panel *ha = (const void *)a, *hb = (const void *)b;
        if (!fma_stays_in_range(g, ha, hb) || (fast && !fast(ha, hb)))
            return false;
    }
    return !g->a.sparse && !g->b.sparse && (!t->write || fma_delivers(g, t));
}

/* The i-th of n parts of the lines that are to come nearer. */
static inline void fma_ask_part(const uint32_t *behind, int64_t i, int64_t n, bool second)
{
    const int64_t lines = FMA_NEAR / 2 * NR / 16; /* of pairs */
    for (int64_t l = i * lines / n; l < (i + 1) * lines / n; l++)
        near_ask(behind + l * 16, second);
}

/* fma_tile() of all of a run, if fma_all_fast(), of K tiles [from, to) of t's. */
static inline void
fma_column(struct fma f, const struct gemm_tile *t, const struct gemm_run *run,
           fma_runner *(*pick)(const struct fma *f, const struct gemm_tile *t), int64_t from,
           int64_t to)
{
    struct gemm_tile one = *t;
    struct gemm_write write;
    one.begun = t->begun || from > t->from;
    one.from = from;
    one.to = to;
    if (to < t->to) {
        f.write = NULL;
    } else if (f.write) {
        write = *t->write;
        f.write = &write;
    }
    for (int64_t i = 0; i < run->panels; i++) {
        if (run->row)
            one.rows = (int32_t)(run->row[i + 1] - run->row[i]);
        f.rows = one.rows;
        f.short_ = fma_short(one.a, one.b);
        f.doubles = fma_doubles(f.g, one.a, one.b);
        f.redone = false;
        fma_nearer(&f, &one);
        if (f.behind)
            fma_ask_part(f.behind, i, run->panels, f.second);
        fma_writes(&f, pick(&f, &one), &one);
        if (run->way && f.redone)
            run->way[i * run->way_step] = GEMM_EXACT;
        fma_move(&f, run->a_step, run->b_step);
        one.a = (const unsigned char *)one.a + run->a_step;
        one.b = (const unsigned char *)one.b + run->b_step;
        one.psum += run->psum_step;
        if (f.write)
            write.d += one.rows * write.d_row;
    }
}

/* fma_tile() of several tiles: what a call costs beside its products is paid once. */
static inline bool
fma_tiles(const struct gemm_job *g, const struct gemm_walk *w, const struct gemm_tile *t,
          const struct gemm_run *run,
          fma_runner *(*pick)(const struct fma *f, const struct gemm_tile *t), fma_fast *fast)
{
    if (!fma_all_fast(g, t, run, fast))
        return false;
    fma_column(fma_of(g, w, t), t, run, pick, t->from, t->to);
    return true;
}

/* The row of the ISA's table; the kernel's file has refuses() and tile(), and defines FMA_MORE
 * where it has more. */
#ifndef FMA_MORE
#define FMA_MORE
#endif
/* pack(), or what the file has in front of it. */
#ifndef FMA_PACK
#define FMA_PACK pack
#endif
#ifndef FMA_PANEL
#define FMA_PANEL panel_bytes
#endif
#define FMA_KERNEL(kernel)                                                                     \
    extern const struct ng_gemm_kernel ng_##kernel;                                            \
    const struct ng_gemm_kernel ng_##kernel = { .name = #kernel,                               \
                                                .mr = MR,                                      \
                                                .nr = NR,                                      \
                                                .scratch_bytes = FMA_SCRATCH,                  \
                                                .refuses = refuses,                            \
                                                .panel_bytes = FMA_PANEL,                      \
                                                .pack = FMA_PACK,                              \
                                                .tile = tile,                                  \
                                                .write = write_psum,                           \
                                                .slim_bytes = panel_slim_bytes,                \
                                                .slim = panel_slim,                            \
                                                .slims = panel_slims,                          \
                                                .grow = panel_grow,                            \
                                                FMA_MORE }

#endif
