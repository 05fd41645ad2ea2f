/* SPDX-License-Identifier: Apache-2.0 */
/* See judge.h. Section numbers are those of docs/numerics.md. */
#include "judge.h"

#ifdef JUDGE_HAVE_MPFR

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Enough for a 64-bit significand, a sticky half and every difference that is formed here. */
#define JUDGE_PRECISION 160

const char *const judge_round_name[JUDGE_ROUNDS] = { "rne", "rna", "rtz", "rup",
                                                     "rdn", "rto", "sr" };
const char *const judge_sr_name[JUDGE_SRS] = { "sr_a", "sr_b", "sr_c" };
const char *const judge_overflow_name[JUDGE_OVERFLOWS] = { "inf", "sat", "sat_keep_inf" };
const char *const judge_nan_to_name[JUDGE_NAN_TOS] = { "max", "zero", "error" };

#define NO JUDGE_NO_CODE
/* Section 1, typed from the page; canonical NaN codes from section 2. e3m2, e2m3 and mxint8
 * name no maximal code there: all magnitude bits are one. The NaN codes of the IEEE-like rows
 * that the page leaves at "yes" are those above Inf. */
/* clang-format off */
const judge_format judge_formats[JUDGE_FORMATS] = {
    /* name     bits word S  E  M low bias  max              max_code    min   inf          NaN from, to, canonical         NaN sign, -0, 0, 2's */
    { "f32",      32, 32, 1, 8, 23,  0, 127, 0x1.fffffep127, 0x7F7FFFFF, -149, 0x7F800000, 0x7F800001, 0x7FFFFFFF, 0x7FC00000, true,  true,  true,  false },
    { "tf32",     32, 32, 1, 8, 10, 13, 127, 0x1.ffcp127,    0x7F7FE000, -136, 0x7F800000, 0x7F800001, 0x7FFFFFFF, 0x7FC00000, true,  true,  true,  false },
    { "bf16",     16, 16, 1, 8,  7,  0, 127, 0x1.fep127,     0x7F7F,     -133, 0x7F80,     0x7F81,     0x7FFF,     0x7FC0,     true,  true,  true,  false },
    { "f16",      16, 16, 1, 5, 10,  0,  15, 65504,          0x7BFF,      -24, 0x7C00,     0x7C01,     0x7FFF,     0x7E00,     true,  true,  true,  false },
    { "e5m2",      8,  8, 1, 5,  2,  0,  15, 57344,          0x7B,        -16, 0x7C,       0x7D,       0x7F,       0x7E,       true,  true,  true,  false },
    { "e4m3fn",    8,  8, 1, 4,  3,  0,   7, 448,            0x7E,         -9, NO,         0x7F,       0x7F,       0x7F,       true,  true,  true,  false },
    { "e4m3",      8,  8, 1, 4,  3,  0,   7, 240,            0x77,         -9, 0x78,       0x79,       0x7F,       0x7C,       true,  true,  true,  false },
    { "e3m4",      8,  8, 1, 3,  4,  0,   3, 15.5,           0x6F,         -6, 0x70,       0x71,       0x7F,       0x78,       true,  true,  true,  false },
    { "e4m3fnuz",  8,  8, 1, 4,  3,  0,   8, 240,            0x7F,        -10, NO,         0x80,       0x80,       0x80,       false, false, true,  false },
    { "e5m2fnuz",  8,  8, 1, 5,  2,  0,  16, 57344,          0x7F,        -17, NO,         0x80,       0x80,       0x80,       false, false, true,  false },
    { "e3m2",      6,  8, 1, 3,  2,  0,   3, 28,             0x1F,         -4, NO,         NO,         NO,         NO,         false, true,  true,  false },
    { "e2m3",      6,  8, 1, 2,  3,  0,   1, 7.5,            0x1F,         -3, NO,         NO,         NO,         NO,         false, true,  true,  false },
    { "e2m1",      4,  4, 1, 2,  1,  0,   1, 6,              0x7,          -1, NO,         NO,         NO,         NO,         false, true,  true,  false },
    { "e8m0",      8,  8, 0, 8,  0,  0, 127, 0x1p127,        0xFE,       -127, NO,         0xFF,       0xFF,       0xFF,       false, false, false, false },
    { "ue4m3",     8,  8, 0, 4,  3,  0,   7, 448,            0x7E,         -9, NO,         0x7F,       0x7F,       0x7F,       false, false, true,  false },
    { "mxint8",    8,  8, 1, 1,  6,  0,   1, 127.0 / 64,     0x7F,         -6, NO,         NO,         NO,         NO,         false, false, true,  true  },
};
/* clang-format on */
#undef NO

struct judge {
    mpfr_t low;  /* the grid magnitude at and below the number placed */
    mpfr_t high; /* the next one */
    mpfr_t v;    /* (number - low) / (high - low) */
    mpfr_t work;
};

/* Every operation of the judge is exact; one that was not is a bug of the judge. */
static void exactly(int ternary)
{
    if (ternary != 0) {
        fprintf(stderr, "judge: an operation was inexact\n");
        abort();
    }
}

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "judge: %s\n", what);
        abort();
    }
}

judge *judge_new(void)
{
    judge *j = malloc(sizeof *j);

    must(j != NULL, "out of memory");
    /* The exponent of an ng_value is any int32; MPFR's default range, a setting of the thread,
     * is half of that. */
    must(mpfr_set_emin(mpfr_get_emin_min()) == 0 && mpfr_set_emax(mpfr_get_emax_max()) == 0,
         "exponent range");
    mpfr_inits2(JUDGE_PRECISION, j->low, j->high, j->v, j->work, (mpfr_ptr)0);
    mpfr_set_zero(j->v, 1);
    return j;
}

void judge_free(judge *j)
{
    if (j != NULL) {
        mpfr_clears(j->low, j->high, j->v, j->work, (mpfr_ptr)0);
        free(j);
    }
}

void judge_num_init(judge_num *n)
{
    mpfr_init2(n->mag, JUDGE_PRECISION);
    mpfr_set_zero(n->mag, 1);
    n->cls = JUDGE_FINITE;
    n->neg = false;
}

void judge_num_clear(judge_num *n)
{
    mpfr_clear(n->mag);
}

const judge_format *judge_find(const char *name)
{
    for (size_t i = 0; i < JUDGE_FORMATS; i++) {
        if (strcmp(judge_formats[i].name, name) == 0) {
            return &judge_formats[i];
        }
    }
    return NULL;
}

bool judge_has_nan(const judge_format *f)
{
    return f->nan_code != JUDGE_NO_CODE;
}

bool judge_has_inf(const judge_format *f)
{
    return f->inf_code != JUDGE_NO_CODE;
}

uint64_t judge_max_index(const judge_format *f)
{
    return f->max_code >> f->low_bits;
}

void judge_index_value(const judge_format *f, uint64_t index, mpfr_ptr out)
{
    uint64_t binade = index >> f->man_bits;
    uint64_t hidden = UINT64_C(1) << f->man_bits;
    uint64_t fraction = index & (hidden - 1);

    if (!f->has_zero) {
        /* e8m0: code c is 2^(c - 127), code 0 too; there is no subnormal binade. */
        exactly(mpfr_set_ui_2exp(out, 1, f->min_exp + (mpfr_exp_t)index, MPFR_RNDZ));
    } else if (binade == 0) {
        exactly(mpfr_set_ui_2exp(out, fraction, f->min_exp, MPFR_RNDZ));
    } else {
        exactly(mpfr_set_ui_2exp(out, hidden + fraction, f->min_exp + (mpfr_exp_t)binade - 1,
                                 MPFR_RNDZ));
    }
}

void judge_decode(const judge_format *f, uint32_t code, judge_num *out)
{
    /* 11.1.1: a tf32 word is read as the FP32 value that it is. */
    const judge_format *row = f->low_bits != 0 ? judge_find("f32") : f;
    uint32_t all = row->bits == 32 ? UINT32_MAX : (UINT32_C(1) << row->bits) - 1;
    uint32_t sign = row->exp_bits + row->man_bits == row->bits ? 0 : (all >> 1) + 1;
    uint32_t mag;

    code &= all;
    out->cls = JUDGE_FINITE;
    if (row->complement) {
        /* 11.1.3: 2^-6 times the two's complement integer; 0x80 reads as -2. */
        long integer = code >= sign ? (long)code - 2 * (long)sign : (long)code;

        out->neg = integer < 0;
        exactly(mpfr_set_si_2exp(out->mag, labs(integer), row->min_exp, MPFR_RNDZ));
        return;
    }
    mag = code & ~sign;
    out->neg = row->sign_bits != 0 && (code & sign) != 0;
    if (judge_has_nan(row)) {
        /* fnuz: the code of -0 and no other; elsewhere the sign bit does not matter. */
        uint32_t probe = row->nan_first == sign ? code : mag;

        if (probe >= row->nan_first && probe <= row->nan_last) {
            out->cls = JUDGE_NAN;
            out->neg = out->neg && row->nan_signed;
            mpfr_set_zero(out->mag, 1);
            return;
        }
    }
    if (judge_has_inf(row) && mag == row->inf_code) {
        out->cls = JUDGE_INF;
        mpfr_set_zero(out->mag, 1);
        return;
    }
    judge_index_value(row, mag, out->mag);
}

void judge_dyadic(judge_num *out, bool neg, uint64_t sig, long exp, bool sticky)
{
    out->cls = JUDGE_FINITE;
    out->neg = neg;
    exactly(mpfr_set_ui_2exp(out->mag, sig, 0, MPFR_RNDZ));
    if (sticky) {
        mpfr_t half;

        mpfr_init2(half, 8);
        exactly(mpfr_set_ui_2exp(half, 1, -1, MPFR_RNDZ));
        exactly(mpfr_add(out->mag, out->mag, half, MPFR_RNDZ));
        mpfr_clear(half);
    }
    exactly(mpfr_mul_2si(out->mag, out->mag, exp, MPFR_RNDZ));
}

/* The greatest integer not above x / 2^unit. */
static uint64_t count_units(judge *j, mpfr_srcptr x, long unit)
{
    exactly(mpfr_mul_2si(j->work, x, -unit, MPFR_RNDZ));
    mpfr_rint_floor(j->work, j->work, MPFR_RNDZ);
    must(mpfr_fits_ulong_p(j->work, MPFR_RNDZ) != 0, "too many units");
    return mpfr_get_ui(j->work, MPFR_RNDZ);
}

void judge_place(judge *j, const judge_format *f, const judge_num *x, judge_spot *spot)
{
    long lead, least_normal;

    spot->cls = x->cls;
    spot->neg = x->neg;
    spot->index = 0;
    spot->side = JUDGE_EXACT;
    spot->zero = x->cls == JUDGE_FINITE && mpfr_zero_p(x->mag) != 0;
    mpfr_set_zero(j->v, 1);
    if (x->cls != JUDGE_FINITE || spot->zero) {
        return;
    }
    lead = mpfr_get_exp(x->mag) - 1;
    least_normal = f->min_exp + (long)f->man_bits;
    if (!f->has_zero && lead < f->min_exp) {
        return; /* 11.1.2: everything below 2^-127 becomes code 0 */
    }
    /* The index is found by counting grid units in the number's binade ... */
    if (lead < least_normal) {
        spot->index = count_units(j, x->mag, f->min_exp);
    } else {
        uint64_t whole = UINT64_C(1) << f->man_bits;
        uint64_t units = count_units(j, x->mag, lead - (long)f->man_bits) - whole;
        uint64_t first = f->has_zero ? 1 : 0;

        spot->index = ((uint64_t)(lead - least_normal) + first) * whole + units;
    }
    /* ... and accepted only if it has the property that defines it. */
    judge_index_value(f, spot->index, j->low);
    judge_index_value(f, spot->index + 1, j->high);
    must(mpfr_lessequal_p(j->low, x->mag) != 0 && mpfr_less_p(x->mag, j->high) != 0,
         "not between its neighbours");
    exactly(mpfr_sub(j->v, x->mag, j->low, MPFR_RNDZ));
    exactly(mpfr_sub(j->work, j->high, j->low, MPFR_RNDZ));
    exactly(mpfr_div(j->v, j->v, j->work, MPFR_RNDZ));
    if (mpfr_zero_p(j->v) == 0) {
        int order = mpfr_cmp_ui_2exp(j->v, 1, -1);

        spot->side = order < 0 ? JUDGE_BELOW_HALF : order > 0 ? JUDGE_ABOVE_HALF : JUDGE_HALF;
    }
}

uint64_t judge_pick(const judge_format *f, const judge_spot *spot, judge_round round)
{
    /* Parity of the significand. One with no stored bit is always 1 (11.1.2). */
    bool odd = f->man_bits == 0 || (spot->index & 1) != 0;
    bool up = false;

    if (spot->cls != JUDGE_FINITE || spot->side == JUDGE_EXACT) {
        return spot->index;
    }
    switch (round) {
    case JUDGE_RNE:
        up = spot->side == JUDGE_ABOVE_HALF || (spot->side == JUDGE_HALF && odd);
        break;
    case JUDGE_RNA: up = spot->side != JUDGE_BELOW_HALF; break;
    case JUDGE_RTZ: up = false; break;
    case JUDGE_RUP: up = !spot->neg; break;
    case JUDGE_RDN: up = spot->neg; break;
    case JUDGE_RTO: up = !odd; break; /* 11.1.6 */
    default: must(false, "sr has its own call"); break;
    }
    return spot->index + (up ? 1 : 0);
}

uint64_t judge_sr_scaled(judge *j, judge_sr sr, unsigned n)
{
    exactly(mpfr_mul_2si(j->work, j->v, (long)n + (sr == JUDGE_SR_B ? 1 : 0), MPFR_RNDZ));
    if (sr == JUDGE_SR_C) {
        mpfr_rint_roundeven(j->work, j->work, MPFR_RNDZ);
    } else {
        mpfr_rint_floor(j->work, j->work, MPFR_RNDZ);
    }
    return mpfr_get_ui(j->work, MPFR_RNDZ);
}

uint64_t judge_sr_count(judge_sr sr, uint64_t scaled)
{
    /* The r in [0, 2^n) with s + r >= 2^n are s of them; with s + 2r + 1 >= 2^(n+1) they are
     * those with 2r >= 2^(n+1) - 1 - s, which is floor((s + 1) / 2). */
    return sr == JUDGE_SR_B ? (scaled + 1) / 2 : scaled;
}

bool judge_sr_up(judge_sr sr, unsigned n, uint64_t scaled, uint32_t r)
{
    if (sr == JUDGE_SR_B) {
        return scaled + 2 * (uint64_t)r + 1 >= UINT64_C(1) << (n + 1);
    }
    return scaled + r >= UINT64_C(1) << n;
}

uint32_t judge_sr_take(uint32_t word, unsigned n, bool high)
{
    return (uint32_t)(high ? (uint64_t)word >> (32 - n) : word % (UINT64_C(1) << n));
}

static uint32_t sign_bit(const judge_format *f)
{
    return f->sign_bits == 0 ? 0 : UINT32_C(1) << (f->bits - 1);
}

/* A finite index, at most max_index, as a code. */
static uint32_t index_code(const judge_format *f, bool neg, uint64_t index)
{
    uint32_t mag = (uint32_t)index << f->low_bits;

    if (f->complement) {
        return neg ? (uint32_t)(256 - index) & 0xFF : mag;
    }
    if (neg && (index != 0 || f->minus_zero)) {
        mag |= sign_bit(f);
    }
    return mag;
}

static bool nan_out(const judge_format *f, bool neg, const judge_rule *rule, uint32_t *code)
{
    if (judge_has_nan(f)) {
        *code = f->nan_code | (neg && rule->nan_keep && f->nan_signed ? sign_bit(f) : 0);
        return true;
    }
    switch (rule->nan_to) { /* 11.1.7 */
    case JUDGE_NAN_MAX: *code = index_code(f, false, judge_max_index(f)); return true;
    case JUDGE_NAN_ZERO: *code = 0; return true;
    default: return false;
    }
}

static bool inf_out(const judge_format *f, bool neg, const judge_rule *rule, uint32_t *code)
{
    if (judge_has_inf(f)) {
        *code = f->inf_code | (neg ? sign_bit(f) : 0);
        return true;
    }
    return nan_out(f, neg, rule, code);
}

bool judge_finish(const judge_format *f, const judge_spot *spot, uint64_t rounded,
                  const judge_rule *rule, uint32_t *code)
{
    uint64_t most = judge_max_index(f);
    uint32_t max_code = index_code(f, spot->neg, most);

    /* Neither Inf nor NaN: `inf` is refused whatever the value. */
    if (rule->overflow == JUDGE_OVERFLOW_INF && !judge_has_nan(f)) {
        return false;
    }
    /* 11.1.2: a negative non-zero value takes the NaN rule where there is no sign; -Inf is
     * one. */
    if (spot->cls == JUDGE_NAN || (f->sign_bits == 0 && spot->neg && !spot->zero)) {
        return nan_out(f, spot->neg, rule, code);
    }
    if (spot->cls == JUDGE_FINITE && rounded <= most) {
        *code = index_code(f, spot->neg, rounded);
        return true;
    }
    switch (rule->overflow) {
    case JUDGE_OVERFLOW_SAT: *code = max_code; return true;
    case JUDGE_OVERFLOW_KEEP_INF:
        if (spot->cls == JUDGE_INF) {
            return inf_out(f, spot->neg, rule, code);
        }
        *code = max_code;
        return true;
    default: break;
    }
    /* 11.1.5 */
    if (spot->cls == JUDGE_FINITE) {
        bool to_max = rule->round == JUDGE_RTZ || rule->round == JUDGE_RTO ||
                      (rule->round == JUDGE_RUP && spot->neg) ||
                      (rule->round == JUDGE_RDN && !spot->neg);

        if (to_max) {
            *code = max_code;
            return true;
        }
    }
    return inf_out(f, spot->neg, rule, code);
}

bool judge_encode(judge *j, const judge_format *f, const judge_num *x, const judge_rule *rule,
                  uint32_t *code)
{
    judge_spot spot;

    judge_place(j, f, x, &spot);
    return judge_finish(f, &spot, judge_pick(f, &spot, rule->round), rule, code);
}

bool judge_encode_sr(judge *j, const judge_format *f, const judge_num *x,
                     const judge_rule *rule, judge_sr sr, unsigned n, bool high, uint32_t word,
                     uint32_t *code)
{
    judge_spot spot;
    uint64_t rounded;

    judge_place(j, f, x, &spot);
    rounded = spot.index;
    if (judge_sr_up(sr, n, judge_sr_scaled(j, sr, n), judge_sr_take(word, n, high))) {
        rounded++;
    }
    return judge_finish(f, &spot, rounded, rule, code);
}

bool judge_f32_pattern(judge *j, mpfr_srcptr mag, uint32_t *pattern)
{
    const judge_format *f = judge_find("f32");
    judge_num x;
    judge_spot spot;

    judge_num_init(&x);
    exactly(mpfr_set(x.mag, mag, MPFR_RNDZ));
    judge_place(j, f, &x, &spot);
    judge_num_clear(&x);
    if (spot.side != JUDGE_EXACT || spot.index > judge_max_index(f)) {
        return false;
    }
    *pattern = (uint32_t)spot.index;
    return true;
}

/* Section 2's check points, all under rne. `code` is the code of the positive value. */
typedef struct check_point {
    const char *format;
    double x;
    judge_overflow overflow;
    uint32_t code;
} check_point;

static const check_point check_points[] = {
    { "e4m3fn", 464, JUDGE_OVERFLOW_INF, 0x7E },
    { "e4m3fn", 0x1.d00002p8, JUDGE_OVERFLOW_INF, 0x7F },
    { "e4m3fn", 0x1.d00002p8, JUDGE_OVERFLOW_SAT, 0x7E },
    { "e4m3fn", 1e30, JUDGE_OVERFLOW_KEEP_INF, 0x7E },
    { "e5m2", 61439.99, JUDGE_OVERFLOW_INF, 0x7B },
    { "e5m2", 61440, JUDGE_OVERFLOW_INF, 0x7C },
    { "e5m2", 61440, JUDGE_OVERFLOW_KEEP_INF, 0x7B },
    { "e4m3", 247.99, JUDGE_OVERFLOW_INF, 0x77 },
    { "e4m3", 248, JUDGE_OVERFLOW_INF, 0x78 },
    { "e3m4", 15.749, JUDGE_OVERFLOW_INF, 0x6F },
    { "e3m4", 15.75, JUDGE_OVERFLOW_INF, 0x70 },
    { "f16", 65519.99, JUDGE_OVERFLOW_INF, 0x7BFF },
    { "f16", 65520, JUDGE_OVERFLOW_INF, 0x7C00 },
    { "e2m1", .25, JUDGE_OVERFLOW_SAT, 0 },
    { "e2m1", .75, JUDGE_OVERFLOW_SAT, 2 },
    { "e2m1", 1.25, JUDGE_OVERFLOW_SAT, 2 },
    { "e2m1", 1.75, JUDGE_OVERFLOW_SAT, 4 },
    { "e2m1", 2.5, JUDGE_OVERFLOW_SAT, 4 },
    { "e2m1", 3.5, JUDGE_OVERFLOW_SAT, 6 },
    { "e2m1", 5, JUDGE_OVERFLOW_SAT, 6 },
    { "e8m0", 1.5, JUDGE_OVERFLOW_INF, 128 },
    { "e8m0", 3, JUDGE_OVERFLOW_INF, 129 },
    { "e8m0", 6, JUDGE_OVERFLOW_INF, 130 },
    { "e8m0", 0, JUDGE_OVERFLOW_INF, 0 },
    { "e8m0", 0x1.8p127, JUDGE_OVERFLOW_INF, 0xFF },
    { "e8m0", 0x1.8p127, JUDGE_OVERFLOW_SAT, 0xFE },
    { "mxint8", 2, JUDGE_OVERFLOW_SAT, 0x7F },
};

const char *judge_self_test(void)
{
    static char wrong[160];
    judge *j = judge_new();
    judge_num x;
    uint32_t code;

    judge_num_init(&x);
    wrong[0] = '\0';
    for (size_t i = 0; i < JUDGE_FORMATS && wrong[0] == '\0'; i++) {
        const judge_format *f = &judge_formats[i];

        /* The columns of section 1 must agree with each other: the maximum with its code, the
         * least value with bias and width, the canonical NaN with the NaN codes. */
        judge_decode(f, f->max_code, &x);
        if (x.cls != JUDGE_FINITE || mpfr_cmp_d(x.mag, f->max) != 0) {
            snprintf(wrong, sizeof wrong, "%s: maximum and its code differ", f->name);
        }
        if (f->min_exp != (f->has_zero ? 1 : 0) - f->bias - (int)f->man_bits) {
            snprintf(wrong, sizeof wrong, "%s: bias and least value differ", f->name);
        }
        if (judge_has_nan(f) && (f->nan_code < f->nan_first || f->nan_code > f->nan_last)) {
            snprintf(wrong, sizeof wrong, "%s: canonical NaN is no NaN", f->name);
        }
        if (judge_has_inf(f) && f->inf_code != f->max_code + (UINT32_C(1) << f->low_bits)) {
            snprintf(wrong, sizeof wrong, "%s: Inf does not follow the maximum", f->name);
        }
    }
    for (size_t i = 0; i < sizeof check_points / sizeof check_points[0] && wrong[0] == '\0';
         i++) {
        const check_point *p = &check_points[i];
        judge_rule rule = { JUDGE_RNE, p->overflow, false, JUDGE_NAN_MAX };

        exactly(mpfr_set_d(x.mag, p->x, MPFR_RNDZ));
        x.cls = JUDGE_FINITE;
        x.neg = false;
        if (!judge_encode(j, judge_find(p->format), &x, &rule, &code) || code != p->code) {
            snprintf(wrong, sizeof wrong, "check point %s of %.9g: 0x%X, want 0x%X", p->format,
                     p->x, (unsigned)code, (unsigned)p->code);
        }
    }
    judge_num_clear(&x);
    judge_free(j);
    return wrong[0] == '\0' ? NULL : wrong;
}

#endif
