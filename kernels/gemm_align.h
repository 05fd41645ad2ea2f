/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Family `fused` with `sum = align` (docs/numerics.md 4.2): every NVIDIA tensor core's f16,
 * bf16, tf32 and FP8. An ISA's gemm_align.c includes its ints.h and defines MR, NV and the
 * few vector operations named align_* that ints.h has not.
 *
 * Lanes are columns. Of a step's products FP32 holds each exactly, and with E the largest
 * exponent
 *
 *     cut(a * b * 2^(F - E))
 *
 * by the instruction that converts toward zero is the aligned term; terms add up in 32-bit
 * integers. README.md says for which panels that is so; align_exact.h has the others.
 */
#ifndef NG_KERNELS_GEMM_ALIGN_H
#define NG_KERNELS_GEMM_ALIGN_H

#include "align_panel.h"

enum {
    ALIGN_SPANS = 4 /* parts of a step whose sums 32 bits hold, at most */
};

/* ---- Which jobs. ---- */

/* Parts of a step whose sums are below 2^31 each. */
static inline int align_spans(const struct gemm_job *g, int64_t positions)
{
    int n = 1;
    while (n <= ALIGN_SPANS && align_most(g, positions / n) >= 2147483648.0)
        n *= 2;
    return positions % (4 * n) ? ALIGN_SPANS + 1 : n;
}

static const char *refuses(const struct gemm_job *g)
{
    const char *why = align_refuses(g);
    why = why ? why : align_refuses_products(g);
    if (why)
        return why;
    if (rule_param(g, NG_PARAM_PRODUCT_INF))
        return "products that become Inf";
    return align_spans(g, rule_positions(g)) > ALIGN_SPANS ? "sums that 32 bits do not hold"
                                                           : NULL;
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

/* The sum of n vectors ALIGN_NV apart where 32 bits may not hold it. */
static __attribute__((noinline)) vec align_again(const ivec *part, int n, ivec unit, bool f16)
{
    int32_t v[ALIGN_SPANS + 1][VL];
    uint32_t u[VL];
    float out[VL];
    for (int i = 0; i < n; i++)
        iv_store(v[i], part[i * ALIGN_NV]);
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

/* One step of one row and ALIGN_NV vectors of columns. */
PACK_INLINE void align_step(const struct align *x, const int spans, const bool checked,
                            const bool f16, const float *a, const uint32_t *ea, const float *b,
                            const unsigned char *eb, const bool begun, float *acc)
{
    const int64_t n = x->positions, each = n / spans;
    ivec e = x->e_min;
    for (int64_t p = 0; p < n; p += 4)
        ALIGN_UNROLL
    for (int i = 0; i < 4; i++)
        e = iv_max16(e, iv_add16(iv_load(eb + (p + i) * NR * 2), iv_all(ea[(p + i) * MR])));

    ivec unit[ALIGN_NV], sum[ALIGN_SPANS + 1][ALIGN_NV];
    vec c[ALIGN_NV], scale[ALIGN_NV];
    ALIGN_UNROLL
    for (int q = 0; q < ALIGN_NV; q++) {
        c[q] = begun ? vec_load(acc + q * VL) : vec_zero();
        const ivec field =
            iv_max(iv_sll_by(iv_wide16(e, q), 23), align_field(iv_bits(c[q]), f16));
        scale[q] = iv_float(iv_sub(x->scale_from, field));
        unit[q] = iv_sub(field, x->unit_from);
    }
    ALIGN_UNROLL
    for (int s = 0; s < spans; s++) {
        ALIGN_UNROLL
        for (int q = 0; q < ALIGN_NV; q++)
            sum[s][q] = iv_all(0);
        for (int64_t p = s * each; p < (s + 1) * each; p += 4)
            ALIGN_UNROLL
        for (int i = 0; i < 4; i++) {
            const vec one = vec_all(a + (p + i) * MR);
            ALIGN_UNROLL
            for (int q = 0; q < ALIGN_NV; q++)
                sum[s][q] = iv_add(
                    sum[s][q], iv_cut(vec_mul(vec_mul(one, vec_load(b + (p + i) * NR + q * VL)),
                                              scale[q])));
        }
    }
    ivec all[ALIGN_NV], over = iv_all(0);
    ALIGN_UNROLL
    for (int q = 0; q < ALIGN_NV; q++) {
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
    for (int q = 0; q < ALIGN_NV; q++) {
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

PACK_INLINE void align_run(const struct align *x, const int spans, const bool checked,
                           const bool f16, int64_t at, int64_t n, bool begun, float *acc)
{
    const float *a = align_elements(x->a) + at * MR, *b = align_elements(x->b) + at * NR;
    const uint32_t *ea = align_doubled(x) + at * MR;
    const unsigned char *eb = x->b + x->more_b + at * NR * 2;
    for (int64_t s = 0; s < n; s++) {
        for (int32_t r = 0; r < x->rows; r++)
            for (int l = 0; l < NR; l += ALIGN_COLUMNS)
                align_step(x, spans, checked, f16, a + r, ea + r, b + l, eb + 2 * l,
                           begun || s > 0, acc + r * NR + l);
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

static uint32_t align_one(const struct align *x, int64_t at, int row, int column, uint32_t c)
{
    const struct align_line a = align_line_of(x, GEMM_A, at, row),
                            b = align_line_of(x, GEMM_B, at, column);
    struct align_terms s = { .n = 0 };
    align_take_c(&s, &x->rule, c);
    for (int64_t i = 0; i < x->positions; i++)
        align_take_places(&s, &a, &b, i);
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

static struct align align_begin(const struct gemm_job *g, const struct gemm_walk *w,
                                const struct gemm_tile *t)
{
    struct align x = align_of_panels(g, w, t);
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
    if (align_leaves(g, t->a, t->b))
        return GEMM_LEFT;
    return align_steps(&x, t, align_stays_in_range(t->a, t->b, rule_log2_ceil(g->k)),
                       align_pick(&x), align_one);
}

#endif
