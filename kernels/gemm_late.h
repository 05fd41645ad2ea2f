/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Family `fused` with `c_place = late` (docs/numerics.md 11.3 item 27): f16, bf16, xf32 and FP8
 * of AMD's CDNA3. An ISA's gemm_late.c includes its ints.h and defines MR, NV and the few
 * vector operations named late_* that ints.h has not.
 *
 * Lanes are columns. Terms are gemm_align.h's, and so are their sums in 32-bit integers, of
 * even and of odd k apart where the rule has two subgroups: a shift that rounds down merges
 * them. What C joins is FP64: both rounded down at their places, it holds their sum, and the
 * conversion to FP32 is the step's one rounding. Other panels are added in integers.
 */
#ifndef NG_KERNELS_GEMM_LATE_H
#define NG_KERNELS_GEMM_LATE_H

#include "align_panel.h"

enum {
    LATE_NONE = -1000, /* exponent where there is no product: below all that C has */
    LATE_PLACES = 40   /* of the sum, which is below 2^8 times 2^E, and of C: FP64 holds both */
};

/* ---- Which jobs. ---- */

static inline bool late_places(const struct gemm_job *g, ng_param p)
{
    return rule_param(g, p) >= 1 && rule_param(g, p) <= LATE_PLACES;
}

static const char *refuses(const struct gemm_job *g)
{
    const char *why = align_refuses_terms(g);
    why = why ? why : align_refuses_products(g);
    if (why)
        return why;
    if (rule_param(g, NG_PARAM_C_PLACE) != NG_C_LATE)
        return "C among the products, or after them";
    if (g->acc != NG_F32)
        return "an accumulator other than f32";
    if (rule_param(g, NG_PARAM_OUT_ROUND) != NG_ROUND_TIES_TO_EVEN ||
        rule_param(g, NG_PARAM_OUT_BITS) != 23)
        return "a result other than FP32 to nearest even";
    if (rule_sparse(g) && rule_param(g, NG_PARAM_SUBGROUPS) == 2)
        return "subgroups of a sparse operand";
    if (!late_places(g, NG_PARAM_SUM_FRAC) || !late_places(g, NG_PARAM_C_FRAC))
        return "places of the sum, or of C, that FP64 does not hold";
    return align_most(g, rule_positions(g)) >= 2147483648.0 ? "sums that 32 bits do not hold"
                                                            : NULL;
}

/* ---- Steps. ---- */

/* The rule, and what follows from it. */
struct late {
    ivec least;                /* field of the largest exponent that scales have at least */
    ivec scale_from;           /* less E's field: 2^(F - E) */
    ivec sum_places, c_places; /* exponents that the sum, C and */
    ivec result_places;        /* the result are multiplied by, before E's field has a say */
    ivec drop;                 /* C is nothing where its exponent is farther below */
    vec64 c_unit;              /* C's last place in the sum's */
};

static struct late late_of(const struct align *x)
{
    const struct gemm_job *g = x->g;
    const int frac = rule_param(g, NG_PARAM_FRAC), sum = rule_param(g, NG_PARAM_SUM_FRAC),
              c = rule_param(g, NG_PARAM_C_FRAC), drop = rule_param(g, NG_PARAM_C_DROP);
    return (struct late){ .least = iv_all((uint32_t)frac + 1),
                          .scale_from = iv_all((uint32_t)(frac + 254) << 23),
                          .sum_places = iv_all((uint32_t)(sum - frac)),
                          .c_places = iv_all((uint32_t)(c + 127)),
                          .result_places = iv_all((uint32_t)(-sum - 127)),
                          .drop = iv_all(drop ? (uint32_t)drop : 1000),
                          .c_unit = vec64_power(iv_all((uint32_t)(sum - c)), 0) };
}

/* The sum of products in units of 2^(top - F), C, the field of the larger exponent: the result.
 */
PACK_INLINE vec late_result(const struct late *y, ivec sum, ivec top, vec c)
{
    const ivec field = iv_max(iv_and(iv_srl_by(iv_bits(c), 23), iv_all(0xFF)), iv_all(1)),
               e = iv_max(top, field);
    const vec kept = iv_float(iv_pick(iv_gt(iv_sub(e, field), y->drop), iv_all(0), iv_bits(c)));
    vec64 half[2];
    ALIGN_UNROLL
    for (int h = 0; h < 2; h++) {
        const vec64 s = late_floor(
                        vec64_mul(late_words(sum, h),
                                  vec64_power(iv_sub(y->sum_places, iv_sub(e, top)), h))),
                    d = late_floor(
                        vec64_mul(vec64_half(kept, h), vec64_power(iv_sub(y->c_places, e), h)));
        half[h] =
            vec64_mul(vec64_fma(d, y->c_unit, s), vec64_power(iv_add(y->result_places, e), h));
    }
    return vec_of_halves(half[0], half[1]);
}

/* One step of one row and ALIGN_NV vectors of columns. */
PACK_INLINE void late_step(const struct late *y, const bool two, const int64_t n,
                           const float *a, const uint32_t *ea, const float *b,
                           const unsigned char *eb, const bool begun, float *acc)
{
    /* where there is nothing it is below all that C has */
    ivec e[2] = { iv_all(0), iv_all(0) };
    for (int64_t p = 0; p < n; p += 4)
        ALIGN_UNROLL
    for (int i = 0; i < 4; i++)
        e[two && i % 2] = iv_max16(e[two && i % 2], iv_add16(iv_load(eb + (p + i) * NR * 2),
                                                             iv_all(ea[(p + i) * MR])));

    ivec field[2][ALIGN_NV], sum[2][ALIGN_NV];
    vec scale[2][ALIGN_NV];
    ALIGN_UNROLL
    for (int s = 0; s < 1 + two; s++)
        ALIGN_UNROLL
    for (int q = 0; q < ALIGN_NV; q++) {
        field[s][q] = iv_wide16(e[s], q);
        scale[s][q] =
            iv_float(iv_sub(y->scale_from, iv_sll_by(iv_max(field[s][q], y->least), 23)));
        sum[s][q] = iv_all(0);
    }
    for (int64_t p = 0; p < n; p += 4)
        ALIGN_UNROLL
    for (int i = 0; i < 4; i++) {
        const int s = two && i % 2;
        const vec one = vec_all(a + (p + i) * MR);
        ALIGN_UNROLL
        for (int q = 0; q < ALIGN_NV; q++)
            sum[s][q] = iv_add(sum[s][q],
                               iv_cut(vec_mul(vec_mul(one, vec_load(b + (p + i) * NR + q * VL)),
                                              scale[s][q])));
    }
    ALIGN_UNROLL
    for (int q = 0; q < ALIGN_NV; q++) {
        ivec top = field[0][q], all = sum[0][q];
        if (two) {
            top = iv_max(top, field[1][q]);
            all = iv_add(late_down(all, iv_sub(top, field[0][q])),
                         late_down(sum[1][q], iv_sub(top, field[1][q])));
        }
        vec_store(acc + q * VL,
                  late_result(y, all, top, begun ? vec_load(acc + q * VL) : vec_zero()));
    }
}

PACK_INLINE void late_steps(const struct align *x, const bool two, int64_t at, int64_t n,
                            bool begun, float *acc)
{
    const struct late y = late_of(x);
    const float *a = align_elements(x->a) + at * MR, *b = align_elements(x->b) + at * NR;
    const uint32_t *ea = align_doubled(x) + at * MR;
    const unsigned char *eb = x->b + x->more_b + at * NR * 2;
    for (int64_t s = 0; s < n; s++) {
        for (int32_t r = 0; r < x->rows; r++)
            for (int l = 0; l < NR; l += ALIGN_COLUMNS)
                late_step(&y, two, x->positions, a + r, ea + r, b + l, eb + 2 * l,
                          begun || s > 0, acc + r * NR + l);
        a += x->positions * MR;
        ea += x->positions * MR;
        b += x->positions * NR;
        eb += x->positions * NR * 2;
    }
}

static void late_run(const struct align *x, int64_t at, int64_t n, bool begun, float *acc)
{
    late_steps(x, false, at, n, begun, acc);
}

static void late_run_two(const struct align *x, int64_t at, int64_t n, bool begun, float *acc)
{
    late_steps(x, true, at, n, begun, acc);
}

/* ---- In integers. ---- */

/* v * 2^n, rounded down. */
static int64_t late_shift(int64_t v, int n)
{
    return n >= 0 ? (int64_t)((uint64_t)v << n) : v >> (n < -63 ? 63 : -n);
}

/* A product of 2^128 or more is an Inf. */
static void late_look(struct align_terms *s)
{
    for (int i = 0; i < s->n; i++) {
        const struct align_term *t = &s->term[i];
        if (63 - __builtin_clzll(t->x.sig) + t->x.lsb >= 128)
            *(t->neg ? &s->minus : &s->plus) = true;
    }
}

/* The even and the odd products, or all of them in the first; C. */
static uint32_t late_joined(const struct align *x, const struct align_terms *half, uint32_t c)
{
    const struct gemm_job *g = x->g;
    const int frac = x->rule.frac, s_frac = rule_param(g, NG_PARAM_SUM_FRAC),
              c_frac = rule_param(g, NG_PARAM_C_FRAC), drop = rule_param(g, NG_PARAM_C_DROP),
              most = s_frac > c_frac ? s_frac : c_frac;
    const int even = align_largest(&half[0], LATE_NONE),
              odd = align_largest(&half[1], LATE_NONE), top = odd > even ? odd : even;
    const int64_t sum = late_shift(align_sum(&half[0], even - frac), even - top) +
                        late_shift(align_sum(&half[1], odd - frac), odd - top);
    const int field = (int)(c >> 23 & 0xFFu), c_exp = (field ? field : 1) - 127,
              e = c_exp > top ? c_exp : top;
    const struct align_number y = align_number(c);
    const int64_t sig = c >> 31 ? -(int64_t)y.sig : (int64_t)y.sig;
    int64_t all = late_shift(late_shift(sum, top - e + s_frac - frac), most - s_frac);
    if (!drop || e - c_exp <= drop)
        all += late_shift(late_shift(sig, y.lsb - e + c_frac), most - c_frac);
    return align_result(&x->rule, all, e - most);
}

static uint32_t late_one(const struct align *x, int64_t at, int row, int column, uint32_t c)
{
    const struct align_line a = align_line_of(x, GEMM_A, at, row),
                            b = align_line_of(x, GEMM_B, at, column);
    const bool two = rule_param(x->g, NG_PARAM_SUBGROUPS) == 2;
    struct align_terms half[2] = { { .n = 0 }, { .n = 0 } };
    for (int64_t i = 0; i < x->positions; i++)
        align_take_places(&half[two && i % 2], &a, &b, i);
    for (int i = 0; i < 2 && rule_param(x->g, NG_PARAM_PRODUCT_INF); i++)
        late_look(&half[i]);
    uint32_t special;
    if (align_specials(half[0].nan || half[1].nan || align_is_nan(c),
                       half[0].plus || half[1].plus || c == 0x7F800000u,
                       half[0].minus || half[1].minus || c == 0xFF800000u, &special))
        return special;
    return late_joined(x, half, c);
}

/* ---- A tile. ---- */

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    const struct align x = align_of_panels(g, w, t);
    const bool two = rule_param(g, NG_PARAM_SUBGROUPS) == 2,
               fast = align_stays_in_range(t->a, t->b, 0);
    const struct align_way way = { !fast ? NULL : two ? late_run_two : late_run, late_one };
    if (align_leaves(g, t->a, t->b) || (!fast && t->sparing))
        return GEMM_LEFT;
    align_all(&x, t, &way);
    return fast ? GEMM_FAST : GEMM_EXACT;
}

#endif
