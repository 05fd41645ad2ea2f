/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of the kernels that align products one by one: gemm_align.h, gemm_late.h. Behind an
 * ISA's ints.h, MR and NV.
 *
 * A panel is packing.h's, its elements FP32, and behind it 16-bit exponents of the elements, as
 * unnormalised products have them: [position][width], A's twice, in both halves of a word.
 */
#ifndef NG_KERNELS_ALIGN_PANEL_H
#define NG_KERNELS_ALIGN_PANEL_H

#include "align_tile.h"

enum {
    ALIGN_NV = 2, /* vectors of columns at once: their exponents fill one, 16 bits each */
    ALIGN_COLUMNS = ALIGN_NV * VL,
    ALIGN_FRAC_MAX = 26,  /* cut() gives a term in 32 bits */
    ALIGN_BIAS = 127,     /* of A's exponents in a panel, so that a product's is FP32's field */
    ALIGN_NO_EXP = -2000, /* exponent of a zero operand: below any that a product has */
    ALIGN_TWICE = 2       /* A's exponents are there twice, in both halves of a word */
};

/* ---- Which jobs. ---- */

/* Of a step: terms that are products, one by one. */
static inline const char *align_refuses_products(const struct gemm_job *g)
{
    if (rule_param(g, NG_PARAM_EXACT_GROUP) != 1)
        return "exact groups of products";
    if (rule_param(g, NG_PARAM_PRODUCT_NORM) != NG_NORM_KEEP)
        return "products' exponents other than their operands' sums";
    if (rule_positions(g) > ALIGN_TERMS - 1)
        return "a step of more than 64 products, or places for them";
    const int32_t frac = rule_param(g, NG_PARAM_FRAC);
    if (frac < 1 || frac > ALIGN_FRAC_MAX)
        return "terms that 32 bits do not hold";
    return align_refuses_operands(g);
}

/* A step's sum of products at its largest, of so many positions, in units of 2^(E - F). Of a
 * sparse operand's groups only what is kept. */
static inline double align_most(const struct gemm_job *g, int64_t positions)
{
    const ng_sparse *s = rule_sparse(g);
    int64_t terms = positions;
    if (s) {
        const int64_t groups = positions / s->group + (positions % s->group ? 2 : 0);
        terms = groups * s->kept < positions ? groups * s->kept : positions;
    }
    const double a = 2 - 1.0 / (1 << g->a.spec->man_bits),
                 b = 2 - 1.0 / (1 << g->b.spec->man_bits);
    return (double)terms * a * b * (double)(1 << rule_param(g, NG_PARAM_FRAC));
}

/* ---- Panels. ---- */

static inline size_t align_exponents(const struct gemm_job *g, const struct gemm_walk *w,
                                     int width)
{
    return panel_parts(g, w, width, false).bytes;
}

static size_t panel_bytes(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side)
{
    const int width = side == GEMM_A ? MR : NR;
    const size_t each = sizeof(int16_t) * (side == GEMM_A ? ALIGN_TWICE : 1);
    return align_exponents(g, w, width) + panel_up((size_t)w->depth * (size_t)width * each);
}

/* The least exponent of an operand's elements, before block scales (23). */
static inline int align_least(const struct gemm_job *g, const struct gemm_operand *o)
{
    return rule_param(g, NG_PARAM_OPERAND_EXP) == NG_OPERAND_EXP_F16 ? -14 : 1 - o->spec->bias;
}

/* The exponents of one position's elements: theirs, not below `least`, and `more`. */
PACK_INLINE void align_note(const uint32_t *v, const int16_t *least, const int16_t *more,
                            const int width, int16_t *out)
{
    for (int l = 0; l < width; l++) {
        const int16_t e = (int16_t)((v[l] >> 23 & 0xFFu) - 127),
                      exp = (int16_t)((e > least[l] ? e : least[l]) + more[l]);
        out[l] = v[l] << 1 ? exp : ALIGN_NO_EXP;
    }
}

/* Block scales of a position, where they are not multiplied in: its exponents have them, and a
 * NaN is its element's. */
PACK_INLINE void align_apart(uint32_t *v, const uint8_t *scale, const int width, const int bias,
                             int16_t *more)
{
    for (int l = 0; l < width; l++) {
        more[l] = (int16_t)(bias + scale[l] - 127);
        v[l] = scale[l] == 255 ? WIDEN_NAN : v[l];
    }
}

/* What follows from the elements: their exponents, and those of their block scales. */
PACK_INLINE void align_pack(const struct gemm_job *g, const struct gemm_walk *w,
                            const struct gemm_operand *o, const int width, const bool is_a,
                            unsigned char *panel)
{
    const struct panel_parts parts = panel_parts(g, w, width, false);
    const bool apart = ((const struct gemm_panel *)(const void *)panel)->unfolded;
    const int emin = align_least(g, o), bias = is_a ? ALIGN_BIAS : 0;
    uint32_t *v = (uint32_t *)(void *)(panel + sizeof(struct gemm_panel));
    int16_t least[NR], more[NR], e[NR]; /* NR: of the wider panel */
    int16_t *out = (int16_t *)(void *)(panel + parts.bytes);
    for (int l = 0; l < width; l++) {
        least[l] = (int16_t)emin;
        more[l] = (int16_t)bias;
    }
    for (int64_t p = 0; p < w->depth; p++, v += width) {
        const bool scaled = w->block && w->k[p] >= 0;
        const uint8_t *scale =
            panel + parts.scales + (scaled ? w->block[p] : 0) * (int64_t)width;
        if (scaled && apart)
            align_apart(v, scale, width, bias, more);
        else if (scaled)
            for (int l = 0; l < width; l++)
                least[l] = (int16_t)(emin + scale[l] - 127);
        align_note(v, least, more, width, is_a ? e : out);
        for (int l = 0; is_a && l < width; l++)
            out[ALIGN_TWICE * l] = out[ALIGN_TWICE * l + 1] = e[l];
        out += is_a ? ALIGN_TWICE * width : width;
    }
}

static void pack(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                 int64_t line, int32_t lines, void *panel)
{
    if (side == GEMM_A) {
        pack_panel(g, w, side, line, lines, MR, false, panel);
        align_pack(g, w, &g->a, MR, true, panel);
    } else {
        pack_panel(g, w, side, line, lines, NR, false, panel);
        align_pack(g, w, &g->b, NR, false, panel);
    }
}

/* A tile's facts, and where its panels' exponents are. */
static struct align align_of_panels(const struct gemm_job *g, const struct gemm_walk *w,
                                    const struct gemm_tile *t)
{
    struct align x = align_of(g, w, t);
    x.more_a = align_exponents(g, w, MR);
    x.more_b = align_exponents(g, w, NR);
    return x;
}

static inline const uint32_t *align_doubled(const struct align *x)
{
    return (const uint32_t *)(const void *)(x->a + x->more_a);
}

/* Where a sparse operand is zero because nothing was kept, a NaN or Inf must not meet it. */
static bool align_leaves(const struct gemm_job *g, const struct gemm_panel *a,
                         const struct gemm_panel *b)
{
    return (g->a.sparse && b->special) || (g->b.sparse && a->special);
}

/*
 * README.md, "Why FP32 operations align": what that asks of two panels; `grow`: so many bits a
 * sum may have beyond a product.
 */
static bool align_stays_in_range(const struct gemm_panel *a, const struct gemm_panel *b,
                                 int grow)
{
    return !a->special && !b->special && !a->unfolded && !b->unfolded &&
           a->lsb_min + b->lsb_min >= ALIGN_LSB_MIN &&
           a->msb_max + b->msb_max + 2 + grow <= ALIGN_MSB_MAX;
}

/* ---- In integers. ---- */

/* A row of A, or a column of B, for integers. */
struct align_line {
    const uint32_t *v;    /* FP32 patterns */
    const int16_t *e;     /* their exponents */
    int64_t step, e_step; /* from one position's to the next */
    int bias;             /* of the exponents */
    bool apart;           /* block scales are in the exponents alone, */
    int emin;             /* of elements whose least is this */
};

static struct align_line align_line_of(const struct align *x, gemm_side side, int64_t at,
                                       int line)
{
    const bool is_a = side == GEMM_A;
    const unsigned char *panel = is_a ? x->a : x->b;
    const int64_t width = is_a ? MR : NR, twice = is_a ? ALIGN_TWICE : 1;
    return (struct align_line){
        .v = (const uint32_t *)(const void *)(panel + sizeof(struct gemm_panel)) + at * width +
             line,
        .e = (const int16_t *)(const void *)(panel + (is_a ? x->more_a : x->more_b)) +
             twice * (at * width + line),
        .step = width,
        .e_step = twice * width,
        .bias = is_a ? ALIGN_BIAS : 0,
        .apart = ((const struct gemm_panel *)(const void *)panel)->unfolded,
        .emin = align_least(x->g, is_a ? &x->g->a : &x->g->b)
    };
}

/* What block scales that stand apart add to the exponent of an element. */
static inline int align_more(const struct align_line *x, int64_t i, int exp)
{
    const int field = (int)(x->v[i * x->step] >> 23 & 0xFFu) - 127;
    return x->apart ? exp - (field > x->emin ? field : x->emin) : 0;
}

/* The product at position i. */
static inline void align_take_places(struct align_terms *s, const struct align_line *a,
                                     const struct align_line *b, int64_t i)
{
    const int ea = a->e[i * a->e_step] - a->bias, eb = b->e[i * b->e_step] - b->bias;
    align_take_product(s, a->v[i * a->step], b->v[i * b->step], ea + eb,
                       align_more(a, i, ea) + align_more(b, i, eb));
}

#endif
