/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of elementary functions, each alone, on random arguments:
 *   - every width of the reference gives what MPFR gives, or says that it cannot decide;
 *   - the kernels' pairs of doubles (kernels/elementary_exact.h), which in a whole sweep decide
 *     a few hundred results only, give the reference's on all arguments;
 *   - `sleef`: SLEEF's scalar functions have the bits of its functions for AVX2 (and AVX-512),
 *     and the chains on them those of FP32 operations;
 *   - `table`, and special arguments one by one.
 *
 *   test_functions [N]    N arguments of each function; 20000
 */
#include "report.h"

#if defined(__has_include)
#if __has_include(<mpfr.h>)
#define HAVE_MPFR 1
#endif
#endif

#ifndef HAVE_MPFR
int main(void)
{
    printf("skipped: built without mpfr.h\n");
    return REPORT_SKIP;
}
#else

#include <math.h>
#include <mpfr.h>
#include <stdlib.h>

#include "../../kernels/elementary_exact.h"
#include "../../src/dispatch.h"
#include "../../src/num/elementary.h"
#include "../../src/ref/ref.h"
#include "functions.h"

/* Half of them of any exponent, half between 2^-7 and 2^8. */
static uint32_t draw(uint64_t *seed)
{
    uint64_t r = report_random(seed);
    uint32_t x = (uint32_t)(r >> 32);

    return r % 2 == 0 ? x : (x & UINT32_C(0x87FFFFFF)) + UINT32_C(0x3C000000);
}

/* ---- the reference's widths ---- */

static uint32_t by_mpfr(ng_function f, uint32_t x, mpfr_t t, mpfr_t y)
{
    mpfr_set_flt(t, number(x), MPFR_RNDN);
    switch (f) {
    case NG_FN_EXP: mpfr_exp(y, t, MPFR_RNDN); break;
    case NG_FN_EXP2: mpfr_exp2(y, t, MPFR_RNDN); break;
    case NG_FN_LOG: mpfr_log(y, t, MPFR_RNDN); break;
    case NG_FN_TANH: mpfr_tanh(y, t, MPFR_RNDN); break;
    case NG_FN_SIGMOID:
        mpfr_neg(y, t, MPFR_RNDN);
        mpfr_exp(y, y, MPFR_RNDN);
        mpfr_add_ui(y, y, 1, MPFR_RNDN);
        mpfr_ui_div(y, 1, y, MPFR_RNDN);
        break;
    case NG_FN_RECIPROCAL: mpfr_ui_div(y, 1, t, MPFR_RNDN); break;
    case NG_FN_RSQRT: mpfr_rec_sqrt(y, t, MPFR_RNDN); break;
    }
    if (f == NG_FN_RSQRT && x == UINT32_C(0x80000000)) {
        return UINT32_C(0xFF800000); /* MPFR has +Inf; IEEE 754-2019, 9.2.1 */
    }
    return pattern(mpfr_get_flt(y, MPFR_RNDN));
}

static void check_widths(report *r, ng_function f, uint64_t n)
{
    uint64_t seed = f, decided = 0;
    mpfr_t t, y;

    mpfr_init2(t, 24);
    mpfr_init2(y, 400);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t x = draw(&seed), want = by_mpfr(f, x, t, y), got;

        for (int limbs = 1; limbs <= NG_FUNCTION_LIMBS; limbs++) {
            bool sure = ng_num_function_try(f, x, limbs, &got);

            r->cases++;
            decided += sure;
            if (sure ? got != want : limbs > 1) {
                report_bad(r, "%s(0x%08X), %d words: 0x%08X%s, want 0x%08X",
                           ng_function_name(f), (unsigned)x, limbs, (unsigned)got,
                           sure ? "" : " (undecided)", (unsigned)want);
            }
        }
    }
    report_check(r, decided > n * NG_FUNCTION_LIMBS - n / 100, "too often undecided",
                 ng_function_name(f));
    mpfr_clear(t);
    mpfr_clear(y);
}

/* ---- the kernels' pairs ---- */

static double rough(ng_function f, double x)
{
    switch (f) {
    case NG_FN_LOG: return log(x);
    case NG_FN_RSQRT: return 1 / sqrt(x);
    case NG_FN_EXP:
    case NG_FN_EXP2:
    case NG_FN_TANH:
    case NG_FN_SIGMOID:
    case NG_FN_RECIPROCAL: break;
    }
    return 0; /* not looked at */
}

/* Where a kernel may be undecided: finite, of no use outside these ranges. */
static bool in_range(ng_function f, float x)
{
    float size = fabsf(x);

    switch (f) {
    case NG_FN_EXP:
    case NG_FN_EXP2: return size <= 160;
    case NG_FN_SIGMOID: return size <= 160;
    case NG_FN_TANH: return size >= 0x1p-13f && size <= 16;
    case NG_FN_LOG: return x > 0 && size < INFINITY && x != 1;
    case NG_FN_RSQRT: return x > 0 && size < INFINITY;
    case NG_FN_RECIPROCAL: break;
    }
    return false;
}

static void check_pairs(report *r, ng_function f, uint64_t n)
{
    uint64_t seed = 100 + (uint64_t)f;

    for (uint64_t i = 0; i < n; i++) {
        uint32_t p = draw(&seed), want, got;
        float x = number(p);
        double y;

        if (!in_range(f, x)) {
            continue;
        }
        /* as wrong as elementary_exact.h allows */
        y = rough(f, (double)x) * (1 + (i % 2 == 0 ? 0x1p-41 : -0x1p-41));
        want = ng_num_function(f, p);
        got = pattern(function_exact(f, (double)x, y));
        r->cases++;
        if (got != want) {
            report_bad(r, "%s(0x%08X) in pairs: 0x%08X, want 0x%08X", ng_function_name(f),
                       (unsigned)p, (unsigned)got, (unsigned)want);
        }
    }
}

/* ---- sleef ---- */

/* Every kernel here against the reference, which calls the scalar functions. */
static void check_sleef(report *r, ng_function f, uint64_t n)
{
    enum {
        BATCH = 1024
    };
    const struct elementary_job j = { .f = f, .choice = { .kind = NG_FUNCTION_SLEEF } };
    uint64_t seed = 200 + (uint64_t)f;
    uint32_t x[BATCH], y[BATCH];

    for (uint64_t done = 0; done < n; done += BATCH) {
        for (int i = 0; i < BATCH; i++) {
            x[i] = draw(&seed);
            if (ng_ref_function(f, &j.choice, x[i]) != by_sleef(f, x[i])) {
                report_bad(r, "sleef %s(0x%08X): the reference is not the chain of the page",
                           ng_function_name(f), (unsigned)x[i]);
            }
        }
        for (size_t k = 0; ng_isa_at(k).name != NULL; k++) {
            const struct ng_isa isa = ng_isa_at(k);

            if ((isa.bit & ng_isa_available()) == 0 || isa.kernels->elementary == NULL) {
                continue;
            }
            isa.kernels->elementary->run(&j, x, BATCH, y);
            for (int i = 0; i < BATCH; i++) {
                r->cases++;
                if (y[i] != ng_ref_function(f, &j.choice, x[i])) {
                    report_bad(r, "sleef %s(0x%08X): 0x%08X by %s, scalar 0x%08X",
                               ng_function_name(f), (unsigned)x[i], (unsigned)y[i],
                               isa.kernels->elementary->name,
                               (unsigned)ng_ref_function(f, &j.choice, x[i]));
                }
            }
        }
    }
}

/* ---- special arguments, tables: section 11.8, items 49 and 52 ---- */

static void check_specials(report *r)
{
    enum {
        ZERO = 0,
        ONE = 0x3F800000,
        HALF = 0x3F000000,
        INF = 0x7F800000
    };
    const uint32_t minus = UINT32_C(0x80000000), nan = NAN_CODE;
    /* of +0, -0, +Inf, -Inf, NaN with a payload, -1 */
    const uint32_t want[FUNCTIONS][6] = {
        [NG_FN_EXP] = { ONE, ONE, INF, ZERO, nan, 0x3EBC5AB2 },
        [NG_FN_EXP2] = { ONE, ONE, INF, ZERO, nan, HALF },
        [NG_FN_LOG] = { INF | minus, INF | minus, INF, nan, nan, nan },
        [NG_FN_TANH] = { ZERO, minus, ONE, ONE | minus, nan, 0xBF42F7D6 },
        [NG_FN_SIGMOID] = { HALF, HALF, ONE, ZERO, nan, 0x3E89B2B1 },
        [NG_FN_RECIPROCAL] = { INF, INF | minus, ZERO, minus, nan, ONE | minus },
        [NG_FN_RSQRT] = { INF, INF | minus, ZERO, nan, nan, nan },
    };
    const uint32_t arguments[6] = { ZERO, minus, INF, INF | minus, 0xFF812345, ONE | minus };
    const ng_function_choice cr = { .kind = NG_FUNCTION_CR },
                             sleef = { .kind = NG_FUNCTION_SLEEF };

    for (unsigned f = 0; f < FUNCTIONS; f++) {
        for (unsigned i = 0; i < 6; i++) {
            const char *name = ng_function_name((ng_function)f);

            report_check(r, ng_ref_function((ng_function)f, &cr, arguments[i]) == want[f][i],
                         "special argument", name);
            report_check(r,
                         i == 5 || !ng_sleef_available() ||
                             ng_ref_function((ng_function)f, &sleef, arguments[i]) ==
                                 want[f][i],
                         "special argument of sleef", name);
        }
    }
    report_check(r, ng_function_name((ng_function)FUNCTIONS) == NULL, "a name too many",
                 "names");
}

static void check_table(report *r)
{
    static uint16_t table[65536];
    const ng_function_choice how = { .kind = NG_FUNCTION_TABLE, .table = table };
    static const struct {
        uint32_t x, code;
    } rows[] = {
        { 0x3F800000, 0x3F80 }, { 0x3F808000, 0x3F80 }, { 0x3F818000, 0x3F82 },
        { 0x3F808001, 0x3F81 }, { 0x7F7FFFFF, 0x7F80 }, { 0xFF7F8000, 0xFF80 },
        { 0xFFC12345, 0x7FC0 }, { 0x7F800001, 0x7FC0 }, { 0x00008000, 0x0000 },
        { 0x80018000, 0x8002 },
    };

    for (uint32_t i = 0; i < 65536; i++) {
        table[i] = (uint16_t)(i * 40503u + 7);
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        report_check(r,
                     ng_ref_function(NG_FN_EXP, &how, rows[i].x) ==
                         (uint32_t)table[rows[i].code] << 16,
                     "wrong entry", "table");
    }
}

int main(int argc, char **argv)
{
    uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000;
    report r = { 0 };

    for (unsigned f = 0; f < FUNCTIONS; f++) {
        check_widths(&r, (ng_function)f, n / 4);
        check_pairs(&r, (ng_function)f, n);
        if (ng_sleef_available()) {
            check_sleef(&r, (ng_function)f, n);
        }
    }
    check_specials(&r);
    check_table(&r);
    mpfr_free_cache();
    if (!ng_sleef_available()) {
        printf("skipped: sleef: this CPU has not both AVX2 and FMA\n");
    }
    printf("functions: %llu cases, %llu wrong\n", (unsigned long long)r.cases,
           (unsigned long long)r.bad);
    return r.bad != 0;
}

#endif
