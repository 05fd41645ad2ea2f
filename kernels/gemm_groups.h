/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Family `fused` with exact groups of FP4 products (docs/numerics.md 11.3 item 26): mxf4 and
 * nvf4 of NVIDIA's tcgen05. An ISA's gemm_groups.c includes its ints.h, defines MR, NV = 1 and
 * the few vector operations named groups_* that ints.h has not.
 *
 * Lanes are columns. E2M1 values are doubled: integers of at most 12. Those of A lie raised by
 * 12, so that an instruction of unsigned by signed bytes takes four k of all columns; what is
 * too much, 12 times the sum of B's, stands in B's panel. A group's sum and both its scales'
 * significands have at most 20 bits, an FP32 number; the aligned terms and their sums are
 * FP64's, below 2^53.
 *
 * A panel:
 *   header   struct gemm_panel; lsb_min and msb_max: bounds of its scales' exponents
 *   codes    bytes [group][4][width][4], of A raised
 *   scales   FP32 [group][width]
 *   exps     words [group][width]: the scales' exponents (item 23)
 *   less     words [group][width], of B: -12 times the group's sum
 */
#ifndef NG_KERNELS_GEMM_GROUPS_H
#define NG_KERNELS_GEMM_GROUPS_H

#include "align_tile.h"

enum {
    GROUPS_K = 16,          /* products of a group */
    GROUPS_RAISED = 12,     /* the largest doubled value */
    GROUPS_BITS = 11,       /* a term is below 2^11 times its scales' exponents' */
    GROUPS_NO_EXP = -10000, /* of a scale that is zero */
    GROUPS_LEAST = -80,     /* of a term's exponent: results are then normal numbers */
    GROUPS_SUM_BITS = 52    /* of a step's sum, which FP64 holds */
};

/* ---- Which jobs. ---- */

static const char *refuses(const struct gemm_job *g)
{
    const char *why = align_refuses(g);
    if (why)
        return why;
    if (rule_sparse(g))
        return "a sparse operand";
    if (rule_param(g, NG_PARAM_EXACT_GROUP) != GROUPS_K)
        return "groups of other than 16 products";
    if (g->a.spec->format != NG_E2M1 || g->b.spec->format != NG_E2M1)
        return "operands other than e2m1";
    if (g->acc != NG_F32)
        return "an accumulator other than f32";
    if (g->a.scale && (g->a.block % GROUPS_K || g->b.block % GROUPS_K))
        return "blocks that end inside a group";
    if (rule_param(g, NG_PARAM_FRAC) + GROUPS_BITS +
            rule_log2_ceil(rule_param(g, NG_PARAM_GROUP) + 1) >
        GROUPS_SUM_BITS)
        return "sums that FP64 does not hold";
    return NULL;
}

/* ---- Panels. ---- */

struct groups_parts {
    size_t scales, exps, less, bytes;
};

static inline int64_t groups_of(const struct gemm_walk *w)
{
    return w->depth / GROUPS_K;
}

static inline struct groups_parts groups_parts(const struct gemm_walk *w, gemm_side side)
{
    const size_t width = side == GEMM_A ? MR : NR, n = (size_t)groups_of(w) * width;
    struct groups_parts p = { .scales = sizeof(struct gemm_panel) + panel_up(n * GROUPS_K) };
    p.exps = p.scales + panel_up(n * 4);
    p.less = p.exps + panel_up(n * 4);
    p.bytes = p.less + (side == GEMM_A ? 0 : panel_up(n * 4));
    return p;
}

static size_t panel_bytes(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side)
{
    (void)g;
    return groups_parts(w, side).bytes;
}

/* A block's scale: its value, and the exponent that its product's term hangs from. */
struct groups_scale {
    uint32_t value; /* FP32 pattern */
    int32_t exp;
};

static inline struct groups_scale groups_scale(const struct gemm_operand *o, uint32_t code)
{
    if (o->scale_spec->format == NG_E8M0) { /* 2^-127 is subnormal */
        const uint32_t power = code ? code << 23 : 1u << 22;
        return (struct groups_scale){ code == 255 ? WIDEN_NAN : power, (int32_t)code - 127 };
    }
    const int32_t mag = code & 0x7F, exp = (mag >> 3 ? mag >> 3 : 1) - 7;
    return (struct groups_scale){ as_pattern(widen_ue4m3(code)), mag ? exp : GROUPS_NO_EXP };
}

/* Doubled values of codes: OCP MX 1.0, 5.3.3. */
static const int8_t groups_value[16] = {
    0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12
};

/* A line's group that begins at position p: its bytes, a quad every `step`; their sum. */
static inline int groups_codes(const struct gemm_operand *o, const struct gemm_walk *w,
                               int64_t line, int64_t p, int raised, uint8_t *out, int64_t step)
{
    int sum = 0;
    for (int i = 0; i < GROUPS_K; i++) {
        const int32_t k = w->k[p + i];
        const int v =
            k < 0 ? 0
                  : groups_value[load_code(o->data, 4, o->offset + line * o->line + k * o->k)];
        out[i / 4 * step + i % 4] = (uint8_t)(v + raised);
        sum += v;
    }
    return sum;
}

static struct groups_scale groups_scale_at(const struct gemm_operand *o,
                                           const struct gemm_walk *w, int64_t line, int64_t p)
{
    if (!w->block)
        return (struct groups_scale){ 0x3F800000u, 0 };
    return groups_scale(
        o, o->scale[o->scale_offset + line * o->scale_line + w->block[p] * o->scale_block]);
}

static void pack(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                 int64_t line, int32_t lines, void *panel)
{
    const struct gemm_operand *o = side == GEMM_A ? &g->a : &g->b;
    const struct groups_parts parts = groups_parts(w, side);
    const int width = side == GEMM_A ? MR : NR, raised = side == GEMM_A ? GROUPS_RAISED : 0;
    unsigned char *at = panel;
    uint32_t *scale = (uint32_t *)(void *)(at + parts.scales);
    int32_t *exp = (int32_t *)(void *)(at + parts.exps);
    struct gemm_panel head = { .lsb_min = PANEL_NONE, .msb_max = -PANEL_NONE };
    for (int64_t q = 0; q < groups_of(w); q++)
        for (int l = 0; l < width; l++) {
            const int64_t n = q * width + l;
            uint8_t *out = at + sizeof head + q * GROUPS_K * width + 4 * l;
            const bool there = l < lines && w->k[q * GROUPS_K] >= 0;
            struct groups_scale s = { 0, GROUPS_NO_EXP };
            int sum = 0;
            if (there) {
                sum = groups_codes(o, w, line + l, q * GROUPS_K, raised, out, 4 * width);
                s = groups_scale_at(o, w, line + l, q * GROUPS_K);
            }
            for (int i = 0; i < GROUPS_K && !there; i++)
                out[i / 4 * 4 * width + i % 4] = (uint8_t)raised;
            scale[n] = s.value;
            exp[n] = s.exp;
            if (s.value << 1) {
                head.lsb_min = s.exp < head.lsb_min ? s.exp : head.lsb_min;
                head.msb_max = s.exp > head.msb_max ? s.exp : head.msb_max;
            }
            /* in the lower half, as the products' sums are halves first */
            if (side == GEMM_B)
                ((uint32_t *)(void *)(at + parts.less))[n] =
                    (uint16_t)(int16_t)(-GROUPS_RAISED * sum);
        }
    memcpy(panel, &head, sizeof head);
}

/* ---- Steps. ---- */

/* Pieces of both panels at a group. */
struct groups_at {
    const unsigned char *a, *b;
    const float *scale_a, *scale_b;
    const int32_t *exp_a, *exp_b;
    const uint32_t *less;
};

static inline struct groups_at groups_at(const struct align *x, const struct gemm_walk *w,
                                         int64_t position)
{
    const struct groups_parts pa = groups_parts(w, GEMM_A), pb = groups_parts(w, GEMM_B);
    const int64_t q = position / GROUPS_K;
    return (
        struct groups_at){ .a = x->a + sizeof(struct gemm_panel) + q * GROUPS_K * MR,
                           .b = x->b + sizeof(struct gemm_panel) + q * GROUPS_K * NR,
                           .scale_a = (const float *)(const void *)(x->a + pa.scales) + q * MR,
                           .scale_b = (const float *)(const void *)(x->b + pb.scales) + q * NR,
                           .exp_a = (const int32_t *)(const void *)(x->a + pa.exps) + q * MR,
                           .exp_b = (const int32_t *)(const void *)(x->b + pb.exps) + q * NR,
                           .less = (const uint32_t *)(const void *)(x->b + pb.less) + q * NR };
}

/* Four bytes in all lanes. */
PACK_INLINE ivec groups_quad(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return iv_all(four);
}

/* Sums of a group's products, doubled twice, of VL columns from l on. */
PACK_INLINE ivec groups_dot(const struct groups_at *p, int row, int l)
{
    ivec sum = iv_load(p->less + l);
    ALIGN_UNROLL
    for (int i = 0; i < GROUPS_K / 4; i++)
        sum = iv_add16(sum, iv_dot_bytes(groups_quad(p->a + (i * MR + row) * 4),
                                         iv_load(p->b + (i * NR + l) * 4)));
    return iv_sum_halves(sum);
}

/* A loop over groups: how many is a constant in one place only, and clang, which unrolls that
 * one by itself, refuses to be told so of the other. */
#ifdef __clang__
#define GROUPS_UNROLL
#else
#define GROUPS_UNROLL ALIGN_UNROLL
#endif

/* The step's terms are in `term` and their exponents' largest, C's among them, in e: the
 * result. */
PACK_INLINE vec groups_result(const struct align *x, const int64_t n, const vec *term, ivec e,
                              vec c)
{
    vec64 half[2];
    ALIGN_UNROLL
    for (int h = 0; h < 2; h++) {
        /* of sums that are doubled twice */
        const vec64 scale = vec64_power(iv_sub(iv_all((uint32_t)(x->rule.frac - 2)), e), h),
                    four = vec64_power(iv_all(2), 0);
        /* from +0 on: what is cut to nothing may be -0 */
        vec64 sum = vec64_add(vec64_half(vec_zero(), h),
                              groups_cut(vec64_mul(vec64_mul(vec64_half(c, h), four), scale)));
        GROUPS_UNROLL
        for (int64_t q = 0; q < n; q++)
            sum = vec64_add(sum, groups_cut(vec64_mul(vec64_half(term[q], h), scale)));
        half[h] = groups_24_bits(
            vec64_mul(sum, vec64_power(iv_sub(e, iv_all((uint32_t)x->rule.frac)), h)));
    }
    return iv_float(iv_and(iv_bits(vec_of_halves(half[0], half[1])), x->kept));
}

/* n: groups, a constant where it is 4. */
PACK_INLINE void groups_step(const struct align *x, const int64_t n, struct groups_at p,
                             int row, bool begun, float *acc)
{
    for (int l = 0; l < NR; l += VL) {
        const vec c = begun ? vec_load(acc + l) : vec_zero();
        const ivec field = iv_and(iv_srl_by(iv_bits(c), 23), iv_all(0xFF));
        ivec e = iv_max(x->e_min, iv_sub(field, iv_all(127)));
        struct groups_at at = p;
        vec term[ALIGN_TERMS];
        GROUPS_UNROLL
        for (int64_t q = 0; q < n; q++) {
            const ivec dot = groups_dot(&at, row, l),
                       exp = iv_add(iv_all((uint32_t)at.exp_a[row]), iv_load(at.exp_b + l));
            e = iv_max(e, iv_pick(iv_eq(dot, iv_all(0)), e, exp));
            term[q] = vec_mul(iv_to_float(dot),
                              vec_mul(vec_all(at.scale_a + row), vec_load(at.scale_b + l)));
            at.a += GROUPS_K * MR;
            at.b += GROUPS_K * NR;
            at.scale_a += MR;
            at.exp_a += MR;
            at.scale_b += NR;
            at.exp_b += NR;
            at.less += NR;
        }
        vec_store(acc + l, groups_result(x, n, term, e, c));
    }
}

PACK_INLINE void groups_steps(const struct align *x, const int64_t groups, int64_t at,
                              int64_t n, bool begun, float *acc)
{
    for (int64_t s = 0; s < n; s++, at += x->positions) {
        const struct groups_at p = groups_at(x, x->w, at);
        for (int32_t r = 0; r < x->rows; r++)
            groups_step(x, groups, p, r, begun || s > 0, acc + r * NR);
    }
}

static void groups_run(const struct align *x, int64_t at, int64_t n, bool begun, float *acc)
{
    groups_steps(x, x->positions / GROUPS_K, at, n, begun, acc);
}

/* The chip's step. */
static void groups_run_4(const struct align *x, int64_t at, int64_t n, bool begun, float *acc)
{
    groups_steps(x, 4, at, n, begun, acc);
}

/* ---- In integers. ---- */

static uint32_t groups_one(const struct align *x, int64_t at, int row, int column, uint32_t c)
{
    const struct groups_at p = groups_at(x, x->w, at);
    struct align_terms s = { .n = 0 };
    align_take_c(&s, &x->rule, c);
    for (int64_t q = 0; q < x->positions / GROUPS_K; q++) {
        const uint32_t a = as_pattern(p.scale_a[q * MR + row]),
                       b = as_pattern(p.scale_b[q * NR + column]);
        int dot = 0;
        for (int i = 0; i < GROUPS_K; i++) {
            const int64_t quad = q * (GROUPS_K / 4) + i / 4;
            dot += (p.a[(quad * MR + row) * 4 + i % 4] - GROUPS_RAISED) *
                   (int8_t)p.b[(quad * NR + column) * 4 + i % 4];
        }
        if (align_is_nan(a) || align_is_nan(b)) {
            s.nan = true;
            continue;
        }
        const struct align_number ya = align_number(a), yb = align_number(b);
        const uint64_t mag = (uint64_t)(dot < 0 ? -dot : dot);
        align_take(&s, (struct align_number){ mag * ya.sig * yb.sig, ya.lsb + yb.lsb - 2 },
                   p.exp_a[q * MR + row] + p.exp_b[q * NR + column], dot < 0);
    }
    return align_exact(&x->rule, &s);
}

/* ---- A tile. ---- */

/* README.md, "Why FP32 operations align": groups. A NaN scale makes its terms NaN here too. */
static bool groups_stay_in_range(const struct gemm_job *g, const struct gemm_panel *a,
                                 const struct gemm_panel *b)
{
    return a->lsb_min + b->lsb_min >= GROUPS_LEAST &&
           a->msb_max + b->msb_max + GROUPS_BITS + rule_log2_ceil(g->k) <= ALIGN_MSB_MAX;
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    struct align x = align_of(g, w, t);
    /* where there is nothing at all the exponent is C's field of zero */
    x.e_min = iv_all((uint32_t)(x.rule.floor > -127 ? x.rule.floor : -127));
    x.kept = iv_all(UINT32_MAX << (23 - x.rule.out_bits));
    return align_steps(&x, t, groups_stay_in_range(g, t->a, t->b),
                       x.positions == 4 * GROUPS_K ? groups_run_4 : groups_run, groups_one);
}

#endif
