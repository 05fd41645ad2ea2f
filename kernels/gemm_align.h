/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Family `fused` with `sum = align` (docs/numerics.md 4.2): every NVIDIA tensor core's f16,
 * bf16, tf32 and FP8. An ISA's gemm_align.c includes its ints.h and defines MR, NV = 2 and the
 * few vector operations named align_* that ints.h has not.
 *
 * Lanes are columns. Of a step's products FP32 holds each exactly, and with E the largest
 * exponent
 *
 *     cut(a * b * 2^(F - E))
 *
 * by the instruction that converts toward zero is the aligned term; terms add up in 32-bit
 * integers. README.md says for which panels that is so; align_exact.h has the others.
 *
 * A panel is packing.h's, its elements FP32, and behind it 16-bit exponents of the elements, as
 * unnormalised products have them: [position][width], A's twice, in both halves of a word.
 */
#ifndef NG_KERNELS_GEMM_ALIGN_H
#define NG_KERNELS_GEMM_ALIGN_H

#include "align_tile.h"

enum {
    ALIGN_SPANS = 4,      /* parts of a step whose sums 32 bits hold, at most */
    ALIGN_FRAC_MAX = 26,  /* cut() gives a term in 32 bits */
    ALIGN_BIAS = 127,     /* of A's exponents in a panel, so that a product's is FP32's field */
    ALIGN_NO_EXP = -2000, /* exponent of a zero operand: below any that a product has */
    ALIGN_TWICE = 2       /* A's exponents are there twice, in both halves of a word */
};

/* ---- Which jobs. ---- */

/* A step's sum of `terms` products at its largest, in units of 2^(E - F). */
static inline double align_most(const struct gemm_job *g, int64_t terms)
{
    const double a = 2 - 1.0 / (1 << g->a.spec->man_bits),
                 b = 2 - 1.0 / (1 << g->b.spec->man_bits);
    return (double)terms * a * b * (double)(1 << rule_param(g, NG_PARAM_FRAC));
}

/* Parts of a step whose sums are below 2^31 each. */
static inline int align_spans(const struct gemm_job *g, int64_t positions)
{
    int n = 1;
    while (n <= ALIGN_SPANS && align_most(g, positions / n) >= 2147483648.0)
        n *= 2;
    return positions % (4 * n) ? ALIGN_SPANS + 1 : n;
}

static inline const char *align_refuses_operand(const struct gemm_operand *o)
{
    if (o->spec->kind == NG_KIND_SCALE || o->spec->kind == NG_KIND_UFN ||
        o->spec->kind == NG_KIND_INT)
        return "an operand that is not a floating-point number";
    return o->spec->man_bits > 10 ? "products that FP32 does not hold" : NULL;
}

static const char *refuses(const struct gemm_job *g)
{
    const ng_round tf32 = (ng_round)rule_param(g, NG_PARAM_TF32_IN);
    const bool has_tf32 = g->a.spec->format == NG_TF32 || g->b.spec->format == NG_TF32;
    const char *why = align_refuses(g);
    if (why)
        return why;
    if (rule_param(g, NG_PARAM_EXACT_GROUP) != 1)
        return "exact groups of products";
    if (rule_param(g, NG_PARAM_PRODUCT_NORM) != NG_NORM_KEEP ||
        rule_param(g, NG_PARAM_PRODUCT_INF))
        return "products' exponents other than their operands' sums";
    if (g->a.scale && g->mode != NG_MODE_MX)
        return "block scales other than e8m0";
    if (has_tf32 && tf32 != NG_ROUND_TIES_TO_EVEN && tf32 != NG_ROUND_TOWARD_ZERO)
        return "tf32_in other than rne or rtz";
    why = align_refuses_operand(&g->a);
    why = why ? why : align_refuses_operand(&g->b);
    if (why)
        return why;
    const int64_t frac = rule_param(g, NG_PARAM_FRAC), terms = rule_steps(g).terms;
    if (frac < 1 || frac > ALIGN_FRAC_MAX || terms > 64 ||
        align_spans(g, (terms + 3) / 4 * 4) > ALIGN_SPANS)
        return "sums that 32 bits do not hold";
    return NULL;
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

/* ---- Steps. ---- */

/* The accumulator's exponent as FP32's field, not below its least; of zero below all. */
PACK_INLINE ivec align_field(ivec c, const bool f16)
{
    const ivec field = iv_and(c, iv_all(0x7F800000u));
    return f16 ? iv_pick(iv_eq(field, iv_all(0)), field, iv_max(field, iv_all(113u << 23)))
               : field;
}

/* sum * unit, toward zero at 24 bits; to odd where f16 comes of it. */
PACK_INLINE vec align_number_of(ivec sum, ivec unit, const bool f16)
{
    vec f = align_float(sum);
    if (f16)
        f = iv_float(iv_or(iv_bits(f), iv_pick(iv_eq(iv_cut(f), sum), iv_all(0), iv_all(1))));
    return vec_mul(f, iv_float(unit));
}

/* The sum of n vectors NV apart where 32 bits may not hold it. */
static __attribute__((noinline)) vec align_again(const ivec *part, int n, ivec unit, bool f16)
{
    int32_t v[ALIGN_SPANS + 1][VL];
    uint32_t u[VL];
    float out[VL];
    for (int i = 0; i < n; i++)
        iv_store(v[i], part[i * NV]);
    iv_store(u, unit);
    for (int l = 0; l < VL; l++) {
        int64_t sum = 0;
        for (int i = 0; i < n; i++)
            sum += v[i][l];
        uint64_t mag = sum < 0 ? 0 - (uint64_t)sum : (uint64_t)sum, lost = 0;
        int up = 0;
        for (; mag >> 24; mag >>= 1, up++)
            lost |= mag & 1;
        mag |= f16 && lost;
        const float x = (float)mag * as_float((uint32_t)(up + 127) << 23) * as_float(u[l]);
        out[l] = sum < 0 ? -x : x;
    }
    return vec_load(out);
}

/* One step of one row. */
PACK_INLINE void align_step(const struct align *x, const int spans, const bool checked,
                            const bool f16, const float *a, const uint32_t *ea, const float *b,
                            const unsigned char *eb, const bool begun, float *acc)
{
    const int64_t n = x->positions, each = n / spans;
    ivec e = x->e_min;
    for (int64_t p = 0; p < n; p += 4)
        ALIGN_UNROLL
    for (int i = 0; i < 4; i++)
        e = align_max16(e, iv_add16(iv_load(eb + (p + i) * NR * 2), iv_all(ea[(p + i) * MR])));

    ivec unit[NV], sum[ALIGN_SPANS + 1][NV];
    vec c[NV], scale[NV];
    ALIGN_UNROLL
    for (int q = 0; q < NV; q++) {
        c[q] = begun ? vec_load(acc + q * VL) : vec_zero();
        const ivec field =
            iv_max(iv_sll_by(align_wide(e, q), 23), align_field(iv_bits(c[q]), f16));
        scale[q] = iv_float(iv_sub(x->scale_from, field));
        unit[q] = iv_sub(field, x->unit_from);
    }
    ALIGN_UNROLL
    for (int s = 0; s < spans; s++) {
        ALIGN_UNROLL
        for (int q = 0; q < NV; q++)
            sum[s][q] = iv_all(0);
        for (int64_t p = s * each; p < (s + 1) * each; p += 4)
            ALIGN_UNROLL
        for (int i = 0; i < 4; i++) {
            const vec one = vec_all(a + (p + i) * MR);
            ALIGN_UNROLL
            for (int q = 0; q < NV; q++)
                sum[s][q] = iv_add(
                    sum[s][q], iv_cut(vec_mul(vec_mul(one, vec_load(b + (p + i) * NR + q * VL)),
                                              scale[q])));
        }
    }
    ivec all[NV], over = iv_all(0);
    ALIGN_UNROLL
    for (int q = 0; q < NV; q++) {
        sum[spans][q] = all[q] = iv_cut(vec_mul(c[q], scale[q]));
        ALIGN_UNROLL
        for (int i = 0; i < spans; i++) {
            const ivec more = iv_add(all[q], sum[i][q]);
            if (checked)
                over = iv_or(over, align_over(all[q], sum[i][q], more));
            all[q] = more;
        }
    }
    const bool past = checked && align_negative(over);
    ALIGN_UNROLL
    for (int q = 0; q < NV; q++) {
        vec r = align_number_of(all[q], unit[q], f16);
        if (past)
            r = align_again(&sum[0][q], spans + 1, unit[q], f16);
        if (f16) { /* an Inf stays, and so does a NaN */
            const ivec old = iv_bits(c[q]), mag = iv_and(old, iv_all(0x7FFFFFFFu));
            r = iv_float(
                iv_pick(iv_gt(iv_all(WIDEN_INF), mag), iv_bits(align_halves(r, x->zero)), old));
        } else {
            r = iv_float(iv_and(iv_bits(r), x->kept));
        }
        vec_store(acc + q * VL, r);
    }
}

static inline const float *align_elements(const unsigned char *panel)
{
    return (const float *)(const void *)(panel + sizeof(struct gemm_panel));
}

static inline const uint32_t *align_doubled(const struct align *x)
{
    return (const uint32_t *)(const void *)(x->a + x->more_a);
}

PACK_INLINE void align_run(const struct align *x, const int spans, const bool checked,
                           const bool f16, int64_t at, int64_t n, bool begun, float *acc)
{
    const float *a = align_elements(x->a) + at * MR, *b = align_elements(x->b) + at * NR;
    const uint32_t *ea = align_doubled(x) + at * MR;
    const unsigned char *eb = x->b + x->more_b + at * NR * 2;
    for (int64_t s = 0; s < n; s++) {
        for (int32_t r = 0; r < x->rows; r++)
            align_step(x, spans, checked, f16, a + r, ea + r, b, eb, begun || s > 0,
                       acc + r * NR);
        a += x->positions * MR;
        ea += x->positions * MR;
        b += x->positions * NR;
        eb += x->positions * NR * 2;
    }
}

#define ALIGN_RUNNER(name, spans, checked, f16)                                                \
    static __attribute__((noinline)) void name(const struct align *x, int64_t at, int64_t n,   \
                                               bool begun, float *acc)                         \
    {                                                                                          \
        align_run(x, spans, checked, f16, at, n, begun, acc);                                  \
    }
ALIGN_RUNNER(align_plain, 1, false, false)
ALIGN_RUNNER(align_plain_f16, 1, false, true)
ALIGN_RUNNER(align_1, 1, true, false)
ALIGN_RUNNER(align_1_f16, 1, true, true)
ALIGN_RUNNER(align_2, 2, true, false)
ALIGN_RUNNER(align_2_f16, 2, true, true)
ALIGN_RUNNER(align_4, 4, true, false)
ALIGN_RUNNER(align_4_f16, 4, true, true)

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

static uint32_t align_one(const struct align *x, int64_t at, int row, int column, uint32_t c)
{
    const struct align_line a = align_line_of(x, GEMM_A, at, row),
                            b = align_line_of(x, GEMM_B, at, column);
    struct align_terms s = { .n = 0 };
    align_take_c(&s, &x->rule, c);
    for (int64_t i = 0; i < x->positions; i++) {
        const int ea = a.e[i * a.e_step] - a.bias, eb = b.e[i * b.e_step] - b.bias;
        align_take_product(&s, a.v[i * a.step], b.v[i * b.step], ea + eb,
                           align_more(&a, i, ea) + align_more(&b, i, eb));
    }
    return align_exact(&x->rule, &s);
}

/* ---- A tile. ---- */

static align_runner *align_pick(const struct align *x)
{
    static align_runner *const runners[4][2] = { { align_plain, align_plain_f16 },
                                                 { align_1, align_1_f16 },
                                                 { align_2, align_2_f16 },
                                                 { align_4, align_4_f16 } };
    const int spans = align_spans(x->g, x->positions);
    const double c = 2.0 * (double)(1 << x->rule.frac);
    const bool checked = align_most(x->g, x->positions) + c >= 2147483648.0;
    return runners[spans == 4 ? 3 : spans == 2 ? 2 : checked][x->rule.f16];
}

/* README.md, "Why FP32 operations align": what that asks of two panels. */
static bool align_stays_in_range(const struct gemm_job *g, const struct gemm_panel *a,
                                 const struct gemm_panel *b)
{
    return !a->special && !b->special && !a->unfolded && !b->unfolded &&
           a->lsb_min + b->lsb_min >= ALIGN_LSB_MIN &&
           a->msb_max + b->msb_max + 2 + rule_log2_ceil(g->k) <= ALIGN_MSB_MAX;
}

static struct align align_begin(const struct gemm_job *g, const struct gemm_walk *w,
                                const struct gemm_tile *t)
{
    struct align x = { .g = g,
                       .w = w,
                       .rule = align_rule_of(g),
                       .of = rule_steps(g),
                       .a = t->a,
                       .b = t->b,
                       .more_a = align_exponents(g, w, MR),
                       .more_b = align_exponents(g, w, NR),
                       .positions = w->step,
                       .rows = t->rows };
    const int frac = x.rule.frac, least = frac - 126;
    x.e_min = iv_all16((uint32_t)((x.rule.floor > least ? x.rule.floor : least) + 127));
    /* 2^(F - E) and 2^(E - F) from E's field */
    x.scale_from = iv_all((uint32_t)(frac + 254) << 23);
    x.unit_from = iv_all((uint32_t)frac << 23);
    x.kept = iv_all(UINT32_MAX << (23 - x.rule.out_bits));
    x.zero = iv_all(x.rule.plus ? 0x7FFFFFFFu : UINT32_MAX);
    return x;
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    const struct align x = align_begin(g, w, t);
    return align_steps(&x, t, align_stays_in_range(g, t->a, t->b), align_pick(&x), align_one);
}

#endif
