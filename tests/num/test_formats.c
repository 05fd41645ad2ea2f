/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats against the judge: docs/numerics.md sections 1 and 11.1. Every code of every format
 * of at most 16 bits, and a set around every exponent of f32 and tf32: ng_decode gives the
 * judge's number, and that number goes back to the same code. The table too.
 */
#include "judge.h"
#include "report.h"

#ifndef JUDGE_HAVE_MPFR
int main(void)
{
    printf("skipped: built without mpfr.h\n");
    return REPORT_SKIP;
}
#else

#include <stdlib.h>
#include <string.h>

#include "ng/ng.h"

static const ng_round library_round[JUDGE_ROUNDS] = {
    NG_ROUND_TIES_TO_EVEN,    NG_ROUND_TIES_TO_AWAY,    NG_ROUND_TOWARD_ZERO,
    NG_ROUND_TOWARD_POSITIVE, NG_ROUND_TOWARD_NEGATIVE, NG_ROUND_TO_ODD,
    NG_ROUND_STOCHASTIC
};

/* Section 1's table against ng_format_info, _find and _at. */
static void check_table(report *r)
{
    size_t rows = 0;

    while (rows < 1000 && ng_format_at(rows) != NULL) {
        const ng_format_spec *s = ng_format_at(rows);

        report_check(r, judge_find(s->text) != NULL, s->text,
                     "a format the page does not have");
        report_check(r, ng_format_info(s->format) == s, s->text, "ng_format_info");
        rows++;
    }
    report_check(r, rows == JUDGE_FORMATS, "number of formats", "ng_format_at");
    report_check(r, ng_format_info(NG_FORMAT_NONE) == NULL, "NG_FORMAT_NONE", "ng_format_info");
    report_check(r, ng_format_info(NG_FORMAT_LIMIT) == NULL, "NG_FORMAT_LIMIT",
                 "ng_format_info");
    report_check(r, ng_format_find("e4m3f") == NG_FORMAT_NONE, "e4m3f", "ng_format_find");
    report_check(r, ng_format_find("E4M3") == NG_FORMAT_NONE, "E4M3", "ng_format_find");
    report_check(r, ng_format_find("") == NG_FORMAT_NONE, "empty name", "ng_format_find");
    for (size_t i = 0; i < JUDGE_FORMATS; i++) {
        const judge_format *f = &judge_formats[i];
        ng_format format = ng_format_find(f->name);
        const ng_format_spec *s = ng_format_info(format);
        uint32_t nan = judge_has_nan(f) ? f->nan_code : 0;

        report_check(r, format != NG_FORMAT_NONE && s != NULL, "not found", f->name);
        if (s == NULL) {
            continue;
        }
        report_check(r, strcmp(s->text, f->name) == 0, "text", f->name);
        report_check(r, s->bits == f->bits, "bits", f->name);
        report_check(r, s->store_bits == f->word_bits, "store_bits", f->name);
        report_check(r, s->exp_bits == f->exp_bits, "exp_bits", f->name);
        report_check(r, s->man_bits == f->man_bits, "man_bits", f->name);
        report_check(r, s->low_bits == f->low_bits, "low_bits", f->name);
        report_check(r, s->bias == f->bias, "bias", f->name);
        report_check(r, s->max_code == f->max_code, "max_code", f->name);
        report_check(r, s->nan_code == nan, "nan_code", f->name);
        report_check(r, s->has_inf == judge_has_inf(f), "has_inf", f->name);
        report_check(r, s->has_nan == judge_has_nan(f), "has_nan", f->name);
    }
}

static bool same_number(const judge_format *f, const ng_value *got, const judge_num *want,
                        judge_num *work)
{
    static const ng_class library_class[] = { NG_CLASS_FINITE, NG_CLASS_INF, NG_CLASS_NAN };

    if (got->cls != library_class[want->cls]) {
        return false;
    }
    /* Section 1 gives fnuz one NaN, whose sign no rule names. */
    if (got->neg != want->neg && (want->cls != JUDGE_NAN || f->nan_signed)) {
        return false;
    }
    if (want->cls != JUDGE_FINITE) {
        return true;
    }
    judge_dyadic(work, got->neg, got->sig, got->sig == 0 ? 0 : got->exp, false);
    return !got->sticky && mpfr_equal_p(work->mag, want->mag) != 0;
}

/* The code that a value read from `code` must go back to. */
static uint32_t home(const judge_format *f, uint32_t code, const judge_num *x, bool keep)
{
    if (x->cls == JUDGE_NAN) {
        return f->nan_code |
               (keep && x->neg && f->nan_signed ? UINT32_C(1) << (f->bits - 1) : 0);
    }
    if (f->complement) {
        return code == 0x80 ? 0x81 : code; /* -128 is never written: section 1 */
    }
    if (f->sign_bits == 0 && f->has_zero) {
        return code & 0x7F; /* ue4m3: the sign is ignored */
    }
    if (f->low_bits != 0 && x->cls == JUDGE_FINITE) {
        return code & ~((UINT32_C(1) << f->low_bits) - 1);
    }
    return code;
}

static void check_code(report *r, const judge_format *f, ng_format format, uint32_t code)
{
    static judge_num want, work;
    static bool ready;
    ng_value value;
    ng_status status;
    uint32_t high = f->bits == 32 ? 0 : UINT32_C(0xA5C3F1E7) << f->bits;
    uint32_t got;

    if (!ready) {
        judge_num_init(&want);
        judge_num_init(&work);
        ready = true;
    }
    memset(&value, 0x5A, sizeof value);
    judge_decode(f, code, &want);
    status = ng_decode(format, code, &value);
    r->cases++;
    if (status != NG_OK || !same_number(f, &value, &want, &work)) {
        report_bad(r, "%s: decode 0x%X: %s, class %d neg %d sig 0x%llX exp %d sticky %d",
                   f->name, (unsigned)code, ng_status_name(status), (int)value.cls,
                   (int)value.neg, (unsigned long long)value.sig, (int)value.exp,
                   (int)value.sticky);
        return;
    }
    if (high != 0) {
        ng_value again;

        status = ng_decode(format, code | high, &again);
        r->cases++;
        if (status != NG_OK || !same_number(f, &again, &want, &work)) {
            report_bad(r, "%s: decode 0x%X with bits above the format", f->name,
                       (unsigned)(code | high));
        }
    }
    /* Back again, by every rule: an exact value moves under none. A tf32 word with low bits
     * is not on tf32's grid, so it is brought back by truncation only. */
    for (unsigned round = 0; round < JUDGE_ROUNDS; round++) {
        for (unsigned keep = 0; keep < 2; keep++) {
            ng_cast cast = { 0 };
            uint32_t to = home(f, code, &want, keep != 0);

            if (f->low_bits != 0 && round != JUDGE_RTZ && to != code) {
                continue;
            }
            cast.round = library_round[round];
            cast.overflow = judge_has_nan(f) ? NG_OVERFLOW_INF : NG_OVERFLOW_SATURATE;
            cast.nan_sign = keep != 0 ? NG_NAN_SIGN_KEEP : NG_NAN_SIGN_CLEAR;
            got = 0xDEADBEEF;
            status = ng_encode(format, &cast, &value, UINT32_MAX, &got);
            r->cases++;
            if (status != NG_OK || got != to) {
                report_bad(r, "%s: 0x%X decoded, encoded by %s%s: %s 0x%X, want 0x%X", f->name,
                           (unsigned)code, judge_round_name[round], keep != 0 ? " keep" : "",
                           ng_status_name(status), (unsigned)got, (unsigned)to);
            }
        }
    }
}

static void check_wide(report *r, const judge_format *f, ng_format format)
{
    uint64_t state = 1;

    for (uint32_t sign = 0; sign < 2; sign++) {
        for (uint32_t e = 0; e < 256; e++) {
            static const uint32_t at[] = { 0,        1,        2,        0x1FFF,   0x2000,
                                           0x2001,   0x3FFFFF, 0x400000, 0x400001, 0x7FC000,
                                           0x7FE000, 0x7FFFFE, 0x7FFFFF };

            for (size_t i = 0; i < sizeof at / sizeof at[0] + 40; i++) {
                uint32_t m = i < sizeof at / sizeof at[0]
                                 ? at[i]
                                 : (uint32_t)report_random(&state) & 0x7FFFFF;

                check_code(r, f, format, sign << 31 | e << 23 | m);
            }
        }
    }
}

static void check_unknown(report *r)
{
    static const int unknown[] = { 0, 0x05, 0x16, 0x51, 0xFF };
    ng_value value, before;
    ng_cast cast = { 0 };
    uint32_t code = 0x12345678;

    memset(&value, 0x5A, sizeof value);
    memcpy(&before, &value, sizeof value);
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        ng_value one = { 1, 0, NG_CLASS_FINITE, false, false };

        report_check(r, ng_decode((ng_format)unknown[i], 1, &value) == NG_ERR_FORMAT, "decode",
                     "no format");
        report_check(r, memcmp(&value, &before, sizeof value) == 0, "decode wrote a value",
                     "no format");
        report_check(r,
                     ng_encode((ng_format)unknown[i], &cast, &one, 0, &code) == NG_ERR_FORMAT,
                     "encode", "no format");
        report_check(r, code == 0x12345678, "encode wrote a code", "no format");
    }
}

int main(void)
{
    const char *wrong = judge_self_test();
    report total = { 0 };
    report part = { 0 };

    if (wrong != NULL) {
        printf("judge: %s\n", wrong);
        return 1;
    }
    check_table(&part);
    check_unknown(&part);
    printf("%-9s %8llu cases, %llu mismatches\n", "table", (unsigned long long)part.cases,
           (unsigned long long)part.bad);
    report_add(&total, &part);
    for (size_t i = 0; i < JUDGE_FORMATS; i++) {
        const judge_format *f = &judge_formats[i];
        ng_format format = ng_format_find(f->name);

        memset(&part, 0, sizeof part);
        if (f->bits > 16) {
            check_wide(&part, f, format);
        } else {
            for (uint32_t code = 0; code < UINT32_C(1) << f->bits; code++) {
                check_code(&part, f, format, code);
            }
        }
        printf("%-9s %8llu cases, %llu mismatches\n", f->name, (unsigned long long)part.cases,
               (unsigned long long)part.bad);
        report_add(&total, &part);
    }
    printf("formats: %llu cases, %llu mismatches\n", (unsigned long long)total.cases,
           (unsigned long long)total.bad);
    mpfr_free_cache();
    return total.bad != 0;
}

#endif
