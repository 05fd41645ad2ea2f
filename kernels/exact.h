/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow path of the chain kernels: the steps of docs/numerics.md 4.1 for any data, in double
 * precision, whose exponents no sum of these operands leaves. R(acc + x) is one rounding of an
 * exact sum: the sum is first rounded to odd at 53 bits, which keeps everything that a rounding
 * to at most 51 bits could depend on (Boldo, Melquiond: Emulation of FMA and correctly rounded
 * sums, 2008), then to FP32 or to 24 bits at any exponent.
 *
 * Lanes are columns, as in the fast paths. Plain C over arrays: compiled into every ISA with
 * its own flags, where compilers vectorise it.
 */
#ifndef NG_KERNELS_EXACT_H
#define NG_KERNELS_EXACT_H

#include "doubles.h"
#include "packing.h"

enum {
    EXACT_WIDTH = 64, /* most columns of a panel */
    EXACT_ARRAYS = LEVELS + 8
};

/* Bytes of scratch that exact_write() wants. */
#define EXACT_SCRATCH (EXACT_ARRAYS * EXACT_WIDTH * sizeof(double))

/* To 24 bits, ties to even, at any exponent: 29 of 53 bits go. */
PACK_INLINE double exact_round_wide(double x)
{
    uint64_t u = exact_pattern(x);
    if (x - x == 0)
        u = (u + 0x0FFFFFFFu + (u >> 29 & 1u)) & ~(uint64_t)0x1FFFFFFF;
    return exact_double(u);
}

/* R of a number that is exact or rounded to odd. */
PACK_INLINE double exact_round(double x, ng_range range)
{
    if (range == NG_RANGE_WIDE)
        return exact_round_wide(x);
    const float f = (float)x;
    if (range == NG_RANGE_F32_FTZ && (as_pattern(f) & 0x7F800000u) == 0)
        return (double)as_float(as_pattern(f) & 0x80000000u);
    return (double)f;
}

/* R(a + b) */
PACK_INLINE double exact_add(double a, double b, ng_range range)
{
    double rest;
    const double h = exact_two_sum(a, b, &rest);
    return exact_round(exact_odd(h, rest), range);
}

/* R(s + c) of such a pair; s keeps its zero's sign. */
PACK_INLINE double exact_round_2(double s, double c, ng_range range)
{
    return c == 0 ? exact_round(s, range) : exact_add(s, c, range);
}

/* R(a + s + c): s + c an exact sum in two parts, |c| within a few of s's last places. */
PACK_INLINE double exact_add_2(double a, double s, double c, ng_range range)
{
    double e, g, f2;
    const double h = exact_two_sum(a, s, &e);
    const double f = exact_two_sum(e, c, &g);
    if (f == 0)
        return exact_round(h, range);
    const double h2 = exact_two_sum(h, f, &f2);
    return exact_round(exact_odd(h2, f2 != 0 ? f2 : g), range);
}

/* ---- Panels. ---- */

struct exact_side {
    const unsigned char *panel;
    struct panel_parts parts;
    int width;
    int woven; /* words of a line that lie side by side: of pairs */
    bool pairs, unfolded;
    /* NULL; or the panel is another's: what stands for all of exact_element() */
    double (*value)(const unsigned char *panel, const struct gemm_walk *w, gemm_side side,
                    int width, int64_t p, int l);
    gemm_side side; /* with `value` */
};

struct exact {
    const struct gemm_job *g;
    const struct gemm_walk *w;
    struct exact_side a, b;
    ng_range range;
    rule_step step;
    bool presum;
    double (*array)[EXACT_WIDTH]; /* EXACT_ARRAYS of them */
};

static inline double exact_scale(uint8_t code)
{
    return code == 255 ? (double)as_float(WIDEN_NAN)
                       : exact_double((uint64_t)(code + 1023 - 127) << 52);
}

/* The element of line l at a position, its scale multiplied in; `piece` 1: the lower one. */
PACK_INLINE double exact_element(const struct exact_side *s, const struct gemm_walk *w,
                                 int64_t p, int l, int piece)
{
    if (s->value)
        return s->value(s->panel, w, s->side, s->width, p, l);
    const unsigned char *elements =
        s->panel + (piece ? s->parts.lo : sizeof(struct gemm_panel));
    uint32_t v;
    if (s->pairs) {
        const int64_t word = p / 2, n = s->woven,
                      at = n == 1 ? word * s->width + l
                                  : (word / n * s->width + l) * n + word % n;
        memcpy(&v, elements + 4 * at, sizeof v);
        v = p % 2 ? v << 16 : v & 0xFFFF0000u;
    } else {
        memcpy(&v, elements + 4 * (p * s->width + l), sizeof v);
    }
    const double x = (double)as_float(v);
    return s->unfolded && w->k[p] >= 0
               ? x * exact_scale(
                         s->panel[s->parts.scales + (size_t)(w->block[p] * s->width + l)])
               : x;
}

static inline bool exact_special(double x)
{
    return x - x != 0;
}

/*
 * The products of row r at a position. In pieces, a pair with a special operand stands, whole,
 * in the (hi, hi) pass and is absent (-0) in the others.
 */
static inline void exact_products(const struct exact *e, int64_t p, int r, const int piece[2],
                                  int cols, double *x)
{
    const double a = exact_element(&e->a, e->w, p, r, piece[0]);
    for (int l = 0; l < cols; l++)
        x[l] = a * exact_element(&e->b, e->w, p, l, piece[1]);
    if (!rule_pieces(e->g))
        return;
    const double whole_a =
        exact_element(&e->a, e->w, p, r, 0) + exact_element(&e->a, e->w, p, r, 1);
    for (int l = 0; l < cols; l++) {
        const double whole_b =
            exact_element(&e->b, e->w, p, l, 0) + exact_element(&e->b, e->w, p, l, 1);
        if (exact_special(whole_a) || exact_special(whole_b))
            x[l] = piece[0] || piece[1] ? -0.0 : whole_a * whole_b;
    }
}

/* One row's step of every column's chain (4). */
static inline void exact_row(const struct exact *e, int64_t p, int r, const int piece[2],
                             int cols, double *acc)
{
    double *x = e->array[LEVELS + 1], *s = e->array[LEVELS + 2], *c = e->array[LEVELS + 3],
           *y = e->array[LEVELS + 4];
    const int n = e->w->step;
    if (e->step == STEP_FMA) {
        for (int q = 0; q < n; q++) {
            exact_products(e, p + q, r, piece, cols, x);
            for (int l = 0; l < cols; l++)
                acc[l] = exact_add(acc[l], x[l], e->range);
        }
    } else if (e->step == STEP_TREE) {
        /* lanes past K are no terms: what would meet them passes on unrounded */
        for (int q = 0; q < n && e->w->k[p + q] >= 0; q += 2) {
            const bool pair = e->w->k[p + q + 1] >= 0;
            exact_products(e, p + q, r, piece, cols, x);
            exact_products(e, p + q + 1, r, piece, cols, y);
            for (int l = 0; l < cols; l++) {
                y[l] = pair ? exact_add(x[l], y[l], e->range) : x[l];
                s[l] = q ? exact_add(s[l], y[l], e->range) : y[l];
            }
        }
        for (int l = 0; l < cols; l++)
            acc[l] = exact_add(acc[l], s[l], e->range);
    } else {
        exact_products(e, p, r, piece, cols, s);
        for (int l = 0; l < cols; l++)
            c[l] = 0;
        for (int q = 1; q < n; q++) {
            exact_products(e, p + q, r, piece, cols, x);
            for (int l = 0; l < cols; l++) {
                double rest;
                s[l] = exact_two_sum(s[l], x[l], &rest);
                c[l] += rest;
            }
        }
        for (int l = 0; l < cols; l++)
            acc[l] = e->presum
                         ? exact_add(acc[l], exact_round_2(s[l], c[l], e->range), e->range)
                         : exact_add_2(acc[l], s[l], c[l], e->range);
    }
}

/* The foot's stack (5): level i holds a sum of 2^i chains. */
static inline void exact_foot(const struct exact *e, int32_t c, int cols, double *acc)
{
    const bool tree = rule_param(e->g, NG_PARAM_COMBINE) == NG_COMBINE_TREE;
    const int32_t n = e->w->chains;
    int level = 0;
    if (tree) {
        for (int32_t x = c; x & 1 || (c == n - 1 && x); x >>= 1, level++)
            if (x & 1)
                for (int l = 0; l < cols; l++)
                    acc[l] = exact_add(e->array[level][l], acc[l], e->range);
    } else if (c > 0) {
        for (int l = 0; l < cols; l++)
            acc[l] = exact_add(e->array[0][l], acc[l], e->range);
    }
    memcpy(e->array[level], acc, (size_t)cols * sizeof *acc);
}

/* A K tile's foot result for one row of the panel, one pair of pieces. */
static inline void exact_tile_sum(const struct exact *e, int64_t t, int r, const int piece[2],
                                  int cols, double *acc)
{
    int64_t p = e->w->start[t];
    for (int32_t c = 0; c < e->w->chains; c++) {
        const int64_t end = p + e->w->run[t * e->w->chains + c];
        for (int l = 0; l < cols; l++)
            acc[l] = 0;
        for (; p < end; p += e->w->step)
            exact_row(e, p, r, piece, cols, acc);
        exact_foot(e, c, cols, acc);
    }
}

/* What the u-th write brings to the accumulate memory (5, 6), as FP32. */
static inline void exact_write(const struct exact *e, int64_t u, int r, int cols, float *v)
{
    const int32_t writes = e->w->writes;
    const int64_t t = u / writes;
    double *acc = e->array[LEVELS], *first = e->array[LEVELS + 5];
    static const int whole[2] = { 0, 0 };
    if (!rule_pieces(e->g)) {
        exact_tile_sum(e, t, r, whole, cols, acc);
    } else {
        const bool a_outer = rule_param(e->g, NG_PARAM_PIECE_OUTER) == NG_OPERAND_A;
        const int lo_first = rule_param(e->g, NG_PARAM_PIECE_ORDER) == NG_ORDER_LO_FIRST;
        const int o = (int)(u % writes), n = writes == 4 ? 1 : 2;
        for (int i = 0; i < n; i++) {
            const int outer = writes == 4 ? o / 2 : o, inner = writes == 4 ? o % 2 : i;
            const int po = outer ^ lo_first, pi = inner ^ lo_first;
            const int piece[2] = { a_outer ? po : pi, a_outer ? pi : po };
            exact_tile_sum(e, t, r, piece, cols, acc);
            if (i == 0 && n == 2)
                memcpy(first, acc, (size_t)cols * sizeof *acc);
        }
        for (int l = 0; n == 2 && l < cols; l++)
            acc[l] = exact_add(first[l], acc[l], e->range);
    }
    for (int l = 0; l < cols; l++)
        v[l] = (float)acc[l];
}

#endif
