/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions against the judge: docs/numerics.md sections 2, 2.1 and 11.1, through ng_encode
 * (one value) and ng_convert (whole tensors).
 *
 *   test_convert [--quick | --long] [--isa NAME] [format ...]
 *
 * Inputs of every target: every f16 and every bf16 code; every code of every narrower format;
 * in FP32 the boundary set of every format of at most 8 bits, and of the target itself: grid
 * points, one step past the maximum, midpoints, their neighbours at 1 and 2 ulp, both signs;
 * zeros, extremes, Inf, NaNs with payloads. For f16, bf16 and tf32 the boundary set is the one
 * around every exponent (--long: around every code of f16 and bf16).
 *
 * ng_convert takes all inputs under every rule. NaN rules only concern some inputs, so the
 * combinations of nan_sign and nan_to beyond the default go through ng_encode on a thinned set
 * that keeps every special input (--quick: through ng_convert too, for instrumented builds;
 * --long: everything through both). --isa ref, avx2 or avx512 restricts ng_convert's context.
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
#include <time.h>

#include "ng/ng.h"

static const ng_round library_round[JUDGE_ROUNDS] = {
    NG_ROUND_TIES_TO_EVEN,    NG_ROUND_TIES_TO_AWAY,    NG_ROUND_TOWARD_ZERO,
    NG_ROUND_TOWARD_POSITIVE, NG_ROUND_TOWARD_NEGATIVE, NG_ROUND_TO_ODD,
    NG_ROUND_STOCHASTIC
};
static const ng_overflow library_overflow[JUDGE_OVERFLOWS] = { NG_OVERFLOW_INF,
                                                               NG_OVERFLOW_SATURATE,
                                                               NG_OVERFLOW_SATURATE_KEEP_INF };
static const ng_nan_to library_nan_to[JUDGE_NAN_TOS] = { NG_NAN_TO_MAX, NG_NAN_TO_ZERO,
                                                         NG_NAN_TO_ERROR };
static const ng_sr library_sr[JUDGE_SRS] = { NG_SR_A, NG_SR_B, NG_SR_C };

static bool long_run, quick_run;
static judge *the_judge;
static ng_ctx *the_ctx;
static const judge_format *f32_row;
static char last_kernel[64];
static uint64_t far_refused; /* ng_encode refused an exponent beyond 100000 either way */

static void *need(size_t count, size_t size)
{
    void *p = calloc(count == 0 ? 1 : count, size);

    if (p == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return p;
}

/* ---- lists of FP32 patterns ---- */

typedef struct list {
    uint32_t *at;
    size_t n;
    size_t room;
} list;

static void list_add(list *l, uint32_t x)
{
    if (l->n == l->room) {
        l->room = l->room == 0 ? 1024 : 2 * l->room;
        l->at = realloc(l->at, l->room * sizeof *l->at);
        if (l->at == NULL) {
            fprintf(stderr, "out of memory\n");
            exit(2);
        }
    }
    l->at[l->n++] = x;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void list_unique(list *l)
{
    size_t n = 0;

    qsort(l->at, l->n, sizeof *l->at, by_number);
    for (size_t i = 0; i < l->n; i++) {
        if (n == 0 || l->at[n - 1] != l->at[i]) {
            l->at[n++] = l->at[i];
        }
    }
    l->n = n;
}

static size_t list_find(const list *l, uint32_t x)
{
    const uint32_t *p = bsearch(&x, l->at, l->n, sizeof *l->at, by_number);

    if (p == NULL) {
        fprintf(stderr, "input 0x%X is not in the set\n", (unsigned)x);
        exit(2);
    }
    return (size_t)(p - l->at);
}

/* A magnitude, if FP32 has it, and its FP32 neighbours at 1 and 2 ulp; both signs. */
static void add_around(list *l, mpfr_srcptr mag)
{
    uint32_t pattern;

    if (!judge_f32_pattern(the_judge, mag, &pattern)) {
        return;
    }
    for (int64_t d = -2; d <= 2; d++) {
        int64_t p = (int64_t)pattern + d;

        if (p >= 0 && p <= 0x7F800000) {
            list_add(l, (uint32_t)p);
            list_add(l, (uint32_t)p | 0x80000000);
        }
    }
}

/* A grid point and the midpoint above it. */
static void add_index(list *l, const judge_format *f, uint64_t index)
{
    mpfr_t low, high;

    mpfr_inits2(160, low, high, (mpfr_ptr)0);
    judge_index_value(f, index, low);
    judge_index_value(f, index + 1, high);
    add_around(l, low);
    mpfr_add(high, high, low, MPFR_RNDN);
    mpfr_div_2ui(high, high, 1, MPFR_RNDN);
    add_around(l, high);
    mpfr_clears(low, high, (mpfr_ptr)0);
}

static void add_boundaries(list *l, const judge_format *f)
{
    uint64_t most = judge_max_index(f);
    uint64_t count = UINT64_C(1) << f->man_bits;

    if (f->bits <= 8 || (long_run && f->bits == 16)) {
        for (uint64_t i = 0; i <= most + 1; i++) {
            add_index(l, f, i);
        }
        return;
    }
    for (uint64_t base = 0; base <= most; base += count) {
        const uint64_t at[] = {
            0, 1, 2, 3, count / 2 - 1, count / 2, count / 2 + 1, count - 3, count - 2, count - 1
        };

        for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
            add_index(l, f, base + at[i]);
        }
    }
    for (uint64_t i = 7; i <= most; i += f->bits == 16 ? 61 : long_run ? 13 : 997) {
        add_index(l, f, i);
    }
    add_index(l, f, most + 1);
}

static void add_specials(list *l)
{
    static const uint32_t special[] = {
        0,          1,          2,          0x007FFFFF, 0x00800000, 0x00800001, 0x3F800000,
        0x7F7FFFFF, 0x7F7FFFFE, 0x7F800000, 0x7F800001, 0x7F801FFF, 0x7F802000, 0x7F80FFFF,
        0x7FA00000, 0x7FBFFFFF, 0x7FC00000, 0x7FC00001, 0x7FD55555, 0x7FFFE000, 0x7FFFFFFF
    };

    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) {
        list_add(l, special[i]);
        list_add(l, special[i] | 0x80000000);
    }
}

/* ---- sources: arrays of codes, each element knowing its value ---- */

typedef struct source {
    const judge_format *f;
    ng_format format;
    uint32_t *code;
    uint32_t *value; /* the FP32 pattern, a NaN as 0x7FC00000 with its sign; then its place
                      * in the sorted values */
    size_t n;
} source;

static uint32_t value_of(const judge_format *f, uint32_t code)
{
    judge_num x;
    uint32_t pattern = 0;

    judge_num_init(&x);
    judge_decode(f, code, &x);
    if (x.cls == JUDGE_NAN) {
        pattern = 0x7FC00000;
    } else if (x.cls == JUDGE_INF) {
        pattern = 0x7F800000;
    } else if (!judge_f32_pattern(the_judge, x.mag, &pattern)) {
        fprintf(stderr, "%s 0x%X is no FP32 number\n", f->name, (unsigned)code);
        exit(2);
    }
    pattern |= x.neg ? 0x80000000 : 0;
    judge_num_clear(&x);
    return pattern;
}

static source source_make(const judge_format *f, const uint32_t *code, size_t n)
{
    source s = { f, ng_format_find(f->name), NULL, NULL, n };

    s.code = need(n, sizeof *s.code);
    s.value = need(n, sizeof *s.value);
    for (size_t i = 0; i < n; i++) {
        s.code[i] = code == NULL ? (uint32_t)i : code[i];
        s.value[i] = value_of(f, s.code[i]);
    }
    return s;
}

static void source_free(source *s)
{
    free(s->code);
    free(s->value);
}

/* Section 1: element i of a 4-bit row in the low nibble first. */
static void pack(const judge_format *f, const uint32_t *code, size_t n, void *memory)
{
    uint8_t *byte = memory;

    for (size_t i = 0; i < n; i++) {
        switch (f->word_bits) {
        case 4:
            byte[i / 2] = (uint8_t)(i % 2 == 0 ? code[i] : byte[i / 2] | code[i] << 4);
            break;
        case 8: byte[i] = (uint8_t)code[i]; break;
        case 16: ((uint16_t *)memory)[i] = (uint16_t)code[i]; break;
        default: ((uint32_t *)memory)[i] = code[i]; break;
        }
    }
}

static uint32_t element(const judge_format *f, const void *memory, size_t i)
{
    const uint8_t *byte = memory;

    switch (f->word_bits) {
    case 4: return (uint32_t)byte[i / 2] >> (i % 2 * 4) & 0xF;
    case 8: return byte[i];
    case 16: return ((const uint16_t *)memory)[i];
    default: return ((const uint32_t *)memory)[i];
    }
}

static size_t memory_bytes(const judge_format *f, size_t n)
{
    return (n * f->word_bits + 7) / 8;
}

/* ---- one target ---- */

typedef struct target {
    const judge_format *f;
    ng_format format;
    source *source;
    size_t sources;
    list values;       /* all inputs, as FP32 patterns, sorted */
    judge_spot *spot;  /* of each value */
    judge_num *number; /* of each value */
    ng_value *given;   /* of each value, for ng_encode */
    uint32_t *word;    /* random word of each value */
    uint64_t *rounded; /* index of each value under the rounding at hand */
    uint32_t *want;    /* its code under the rule at hand */
    bool *refused;     /* no code: the conversion is an error */
    bool *keep;        /* in the thinned set */
    uint8_t *in, *out; /* tensor memory */
    uint32_t *out_word;
    uint32_t *picked; /* elements of the source that the call at hand takes */
    report report;
} target;

/* The value as the API's struct, written apart from the judge: fields of an FP32 pattern, at
 * some shift, since any (sig, exp) of the same number must do. */
static ng_value value_struct(uint32_t pattern)
{
    ng_value v = { 0 };
    uint32_t e = pattern >> 23 & 0xFF;
    uint32_t m = pattern & 0x7FFFFF;
    unsigned shift = (pattern * 2654435761u) >> 27; /* 0..31, and 24 + 31 < 64 */

    v.neg = pattern >> 31 != 0;
    if (e == 0xFF) {
        v.cls = m == 0 ? NG_CLASS_INF : NG_CLASS_NAN;
        return v;
    }
    v.cls = NG_CLASS_FINITE;
    v.sig = e == 0 ? m : m | 0x800000;
    v.exp = e == 0 ? -149 : (int32_t)e - 150;
    if (v.sig != 0) {
        v.sig <<= shift;
        v.exp -= (int32_t)shift;
    }
    return v;
}

static const char *rule_text(const judge_rule *rule)
{
    static char text[96];

    snprintf(text, sizeof text, "%s %s nan_sign=%s nan_to=%s", judge_round_name[rule->round],
             judge_overflow_name[rule->overflow], rule->nan_keep ? "keep" : "clear",
             judge_nan_to_name[rule->nan_to]);
    return text;
}

static ng_cast library_cast(const judge_rule *rule)
{
    ng_cast cast = { 0 };

    cast.round = library_round[rule->round];
    cast.overflow = library_overflow[rule->overflow];
    cast.nan_sign = rule->nan_keep ? NG_NAN_SIGN_KEEP : NG_NAN_SIGN_CLEAR;
    cast.nan_to = library_nan_to[rule->nan_to];
    return cast;
}

/* ng_convert of n packed elements. */
static ng_status convert(const ng_cast *cast, ng_format from, void *in, ng_format to, void *out,
                         size_t n)
{
    ng_convert_op op = { sizeof op, *cast };
    int64_t dim = (int64_t)n;
    ng_tensor src, dst;
    ng_status status = ng_tensor_init(&src, from, in, 1, &dim);

    if (status == NG_OK) {
        status = ng_tensor_init(&dst, to, out, 1, &dim);
    }
    if (status == NG_OK) {
        status = ng_convert(the_ctx, &op, &src, &dst);
        if (status == NG_OK) {
            snprintf(last_kernel, sizeof last_kernel, "%s", ng_ctx_kernel(the_ctx));
        }
    }
    return status;
}

static bool all_bytes(const uint8_t *p, size_t n, uint8_t value)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] != value) {
            return false;
        }
    }
    return true;
}

/* The elements of one source, under one rule, through ng_convert. Inputs that must be refused
 * first go in with the others (an error that writes nothing), then are left out. */
static void check_tensor(target *t, const source *s, const judge_rule *rule, bool thin)
{
    ng_cast cast = library_cast(rule);
    const uint8_t fill = 0xA5;
    size_t bytes, n = 0;
    bool any_refused = false;
    ng_status status;

    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (size_t i = 0; i < s->n; i++) {
            uint32_t v = s->value[i];

            if (thin && !t->keep[v]) {
                continue;
            }
            if (t->refused[v]) {
                any_refused = true;
                if (pass == 1) {
                    continue;
                }
            }
            t->picked[n] = (uint32_t)i;
            n++;
        }
        if (pass == 0 && !any_refused) {
            break;
        }
        if (pass == 0) {
            for (size_t i = 0; i < n; i++) {
                t->out_word[i] = s->code[t->picked[i]];
            }
            pack(s->f, t->out_word, n, t->in);
            bytes = memory_bytes(t->f, n);
            memset(t->out, fill, bytes);
            for (size_t i = 0; i < n; i++) {
                t->out_word[i] = t->word[s->value[t->picked[i]]];
            }
            cast.random =
                (ng_random){ rule->round == JUDGE_SR ? NG_RANDOM_EXTERNAL : NG_RANDOM_NONE,
                             rule->round == JUDGE_SR ? t->out_word : NULL,
                             rule->round == JUDGE_SR ? (int64_t)n : 0 };
            status = convert(&cast, s->format, t->in, t->format, t->out, n);
            t->report.cases++;
            if (status != NG_ERR_FORMAT || !all_bytes(t->out, bytes, fill)) {
                report_bad(&t->report, "%s -> %s, %s: %s, want NG_ERR_FORMAT, %s", s->f->name,
                           t->f->name, rule_text(rule), ng_status_name(status),
                           all_bytes(t->out, bytes, fill) ? "nothing written"
                                                          : "output written");
            }
        }
    }
    if (n == 0) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        t->out_word[i] = s->code[t->picked[i]];
    }
    pack(s->f, t->out_word, n, t->in);
    if (rule->round == JUDGE_SR) {
        for (size_t i = 0; i < n; i++) {
            t->out_word[i] = t->word[s->value[t->picked[i]]];
        }
    }
    cast.random = (ng_random){ rule->round == JUDGE_SR ? NG_RANDOM_EXTERNAL : NG_RANDOM_NONE,
                               rule->round == JUDGE_SR ? t->out_word : NULL,
                               rule->round == JUDGE_SR ? (int64_t)n : 0 };
    bytes = memory_bytes(t->f, n);
    memset(t->out, fill, bytes + 16);
    status = convert(&cast, s->format, t->in, t->format, t->out, n);
    t->report.cases += n;
    if (status != NG_OK) {
        t->report.bad += n - 1;
        report_bad(&t->report, "%s -> %s, %s: %s (%s)", s->f->name, t->f->name, rule_text(rule),
                   ng_status_name(status), ng_ctx_message(the_ctx));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t got = element(t->f, t->out, i);
        uint32_t v = s->value[t->picked[i]];

        if (got != t->want[v]) {
            report_bad(&t->report, "%s 0x%X (FP32 0x%08X) -> %s, %s%s: 0x%X, want 0x%X",
                       s->f->name, (unsigned)s->code[t->picked[i]], (unsigned)t->values.at[v],
                       t->f->name, rule_text(rule), " [ng_convert]", (unsigned)got,
                       (unsigned)t->want[v]);
        }
    }
    if (!all_bytes(t->out + bytes, 16, fill)) {
        report_bad(&t->report, "%s -> %s, %s: written past the end", s->f->name, t->f->name,
                   rule_text(rule));
    }
}

static void check_values(target *t, const judge_rule *rule, bool thin)
{
    ng_cast cast = library_cast(rule);

    for (size_t i = 0; i < t->values.n; i++) {
        uint32_t got = 0xDEADBEEF;
        ng_status status;

        if (thin && !t->keep[i]) {
            continue;
        }
        status = ng_encode(t->format, &cast, &t->given[i], t->word[i], &got);
        t->report.cases++;
        if (t->refused[i] ? status != NG_ERR_FORMAT || got != 0xDEADBEEF
                          : status != NG_OK || got != t->want[i]) {
            report_bad(&t->report, "FP32 0x%08X -> %s, %s [ng_encode]: %s 0x%X, want %s 0x%X",
                       (unsigned)t->values.at[i], t->f->name, rule_text(rule),
                       ng_status_name(status), (unsigned)got,
                       t->refused[i] ? "NG_ERR_FORMAT" : "NG_OK", (unsigned)t->want[i]);
        }
    }
}

static void check_rules(target *t)
{
    for (unsigned round = 0; round < JUDGE_ROUNDS; round++) {
        for (size_t i = 0; i < t->values.n; i++) {
            if (round == JUDGE_SR) { /* the default: variant A, 32 bits */
                judge_spot again;

                judge_place(the_judge, t->f, &t->number[i], &again);
                t->rounded[i] =
                    again.index +
                    (judge_sr_up(JUDGE_SR_A, 32, judge_sr_scaled(the_judge, JUDGE_SR_A, 32),
                                 t->word[i])
                         ? 1
                         : 0);
            } else {
                t->rounded[i] = judge_pick(t->f, &t->spot[i], (judge_round)round);
            }
        }
        for (unsigned rest = 0; rest < JUDGE_OVERFLOWS * 2 * JUDGE_NAN_TOS; rest++) {
            judge_rule rule = { (judge_round)round, (judge_overflow)(rest % JUDGE_OVERFLOWS),
                                rest / JUDGE_OVERFLOWS % 2 != 0,
                                (judge_nan_to)(rest / JUDGE_OVERFLOWS / 2) };
            bool other = rule.nan_keep || rule.nan_to != JUDGE_NAN_MAX;
            bool thin = quick_run && other;

            for (size_t i = 0; i < t->values.n; i++) {
                if (thin && !t->keep[i]) {
                    continue;
                }
                t->refused[i] =
                    !judge_finish(t->f, &t->spot[i], t->rounded[i], &rule, &t->want[i]);
            }
            for (size_t i = 0; i < t->sources; i++) {
                check_tensor(t, &t->source[i], &rule, thin);
            }
            check_values(t, &rule, !long_run && other);
        }
    }
}

/* ---- values that FP32 cannot hold: 64-bit significands, sticky, any exponent ---- */

static void check_wide_values(target *t)
{
    size_t tries = long_run ? 400000 : 20000;
    uint64_t state = 0x5EED ^ (uint64_t)t->format;
    int span = (int)((judge_max_index(t->f) >> t->f->man_bits) + t->f->man_bits) + 80;
    judge_num x;

    judge_num_init(&x);
    for (size_t i = 0; i < tries; i++) {
        static const int far[] = { INT32_MIN, INT32_MIN + 1, -100000, 100000, INT32_MAX };
        uint64_t bits = report_random(&state);
        unsigned keep_bits = (unsigned)(report_random(&state) % 64);
        uint64_t tail = keep_bits == 0 ? UINT64_MAX : UINT64_MAX >> keep_bits;
        ng_value v = { 0 };
        ng_cast cast = { 0 };
        uint32_t word = (uint32_t)report_random(&state);
        judge_spot spot;

        /* Below a random place: nothing, a half, just under a half, anything. */
        switch (report_random(&state) % 5) {
        case 0: bits &= ~tail; break;
        case 1: bits = (bits & ~tail) | (tail / 2 + 1); break;
        case 2: bits = (bits & ~tail) | tail / 2; break;
        case 3: bits |= tail; break;
        default: break;
        }
        v.sig = bits | UINT64_C(1) << 63; /* so that a sticky bit lies below every target */
        v.exp = t->f->min_exp - 64 - 4 + (int32_t)(report_random(&state) % (uint64_t)span);
        if (report_random(&state) % 200 == 0) {
            v.exp = far[report_random(&state) % 5];
        }
        v.neg = report_random(&state) % 2 != 0;
        v.sticky = report_random(&state) % 3 == 0;
        judge_dyadic(&x, v.neg, v.sig, v.exp, v.sticky);
        judge_place(the_judge, t->f, &x, &spot);
        for (unsigned round = 0; round < JUDGE_ROUNDS; round++) {
            judge_sr sr = (judge_sr)(i % JUDGE_SRS);
            unsigned n = 1 + (unsigned)(i / 3 % 32);
            uint64_t rounded;

            if (round == JUDGE_SR) {
                rounded = spot.index + (judge_sr_up(sr, n, judge_sr_scaled(the_judge, sr, n),
                                                    judge_sr_take(word, n, false))
                                            ? 1
                                            : 0);
            } else {
                rounded = judge_pick(t->f, &spot, (judge_round)round);
            }
            for (unsigned o = 0; o < JUDGE_OVERFLOWS; o++) {
                judge_rule rule = { (judge_round)round, (judge_overflow)o, i % 2 == 0,
                                    JUDGE_NAN_MAX };
                uint32_t got = 0xDEADBEEF, want = 0xDEADBEEF;
                ng_status status;
                bool ok = judge_finish(t->f, &spot, rounded, &rule, &want);

                cast = library_cast(&rule);
                cast.sr = library_sr[sr];
                cast.sr_bits = n;
                status = ng_encode(t->format, &cast, &v, word, &got);
                t->report.cases++;
                /* The headers bound no exponent. Far from every format's range a refusal is
                 * let pass, and reported, as long as nothing is written; a wrong code is not.
                 */
                if (status == NG_ERR_ARGUMENT && got == 0xDEADBEEF &&
                    (v.exp > 100000 || v.exp < -100000)) {
                    far_refused++;
                    continue;
                }
                if (status != (ok ? NG_OK : NG_ERR_FORMAT) || got != want) {
                    report_bad(&t->report,
                               "%c0x%llX * 2^%d%s -> %s, %s (%s n=%u word 0x%X): %s 0x%X, "
                               "want 0x%X",
                               v.neg ? '-' : '+', (unsigned long long)v.sig, (int)v.exp,
                               v.sticky ? " sticky" : "", t->f->name, rule_text(&rule),
                               judge_sr_name[sr], n, (unsigned)word, ng_status_name(status),
                               (unsigned)got, (unsigned)want);
                }
            }
        }
    }
    judge_num_clear(&x);
}

/* ---- stochastic rounding ---- */

static const unsigned sr_ns[] = { 1, 2, 3, 5, 8, 13, 16, 32 };
#define SR_NS (sizeof sr_ns / sizeof sr_ns[0])

/* Some inputs of the target: mostly inexact ones, spread over all of them. */
static size_t sr_sample(const target *t, size_t want, uint32_t *sample)
{
    uint64_t state = 77 + (uint64_t)t->format;
    size_t n = 0;

    for (size_t tries = 0; n < want && tries < 200 * want; tries++) {
        size_t i = (size_t)(report_random(&state) % t->values.n);
        const judge_spot *s = &t->spot[i];
        bool plain = s->cls == JUDGE_FINITE && s->side != JUDGE_EXACT &&
                     s->index <= judge_max_index(t->f) && (!s->neg || t->f->sign_bits != 0);

        if (plain || tries % 16 == 0) {
            sample[n++] = (uint32_t)i;
        }
    }
    return n;
}

#define SR_WORDS 24u

static void check_sr_words(target *t)
{
    size_t most = long_run ? 4000 : 240;
    uint32_t *sample = need(most, sizeof *sample);
    size_t inputs = sr_sample(t, most, sample);
    size_t n = inputs * SR_WORDS;
    uint32_t *code = need(n, sizeof *code);
    uint32_t *word = need(n, sizeof *word);
    uint32_t *want = need(n, sizeof *want);
    uint32_t *in = need(n, sizeof *in);
    uint8_t *out = need(memory_bytes(t->f, n) + 1, 1);
    uint64_t state = 99;

    for (size_t k = 0; k < SR_NS; k++) {
        for (unsigned sr = 0; sr < JUDGE_SRS; sr++) {
            unsigned bits = sr_ns[k];

            for (unsigned high = 0; high < 2; high++) {
                ng_cast cast = { 0 };
                judge_rule rule = { JUDGE_SR,
                                    judge_has_nan(t->f) ? (judge_overflow)(k % 3)
                                                        : JUDGE_OVERFLOW_SAT,
                                    false, JUDGE_NAN_MAX };
                ng_status status;

                for (size_t i = 0; i < inputs; i++) {
                    judge_spot spot;
                    uint64_t scaled, edge;

                    judge_place(the_judge, t->f, &t->number[sample[i]], &spot);
                    scaled = judge_sr_scaled(the_judge, (judge_sr)sr, bits);
                    /* The least r that moves, if any: 2^n less their number. */
                    edge = (UINT64_C(1) << bits) - judge_sr_count((judge_sr)sr, scaled);
                    for (unsigned w = 0; w < SR_WORDS; w++) {
                        size_t e = i * SR_WORDS + w;
                        uint32_t noise = (uint32_t)report_random(&state);
                        uint64_t near = edge + w % 4 - 2;
                        uint32_t r;

                        switch (w / 4) {
                        case 0: /* around the edge, the unused bits being noise */
                            if (bits < 32) {
                                near &= (UINT64_C(1) << bits) - 1;
                                noise = high != 0
                                            ? (uint32_t)near << (32 - bits) | noise >> bits
                                            : (uint32_t)near | noise << bits;
                            } else {
                                noise = (uint32_t)near;
                            }
                            break;
                        case 1: noise = w % 2 == 0 ? 0 : UINT32_MAX; break;
                        case 2: noise = UINT32_C(1) << (noise % 32); break;
                        case 3: noise = ~(UINT32_C(1) << (noise % 32)); break;
                        default: break;
                        }
                        word[e] = noise;
                        code[e] = t->values.at[sample[i]];
                        r = judge_sr_take(noise, bits, high != 0);
                        if (!judge_finish(
                                t->f, &spot,
                                spot.index +
                                    (judge_sr_up((judge_sr)sr, bits, scaled, r) ? 1 : 0),
                                &rule, &want[e])) {
                            printf("judge: sr refused\n");
                            exit(2);
                        }
                    }
                }
                cast = library_cast(&rule);
                cast.sr = library_sr[sr];
                cast.sr_bits = bits == 32 && high != 0 ? 0 : bits; /* 0 means 32 */
                cast.sr_take = high != 0 ? NG_SR_TAKE_HIGH : NG_SR_TAKE_LOW;
                for (size_t e = 0; e < n; e++) {
                    const ng_value *v = &t->given[sample[e / SR_WORDS]];
                    uint32_t got = 0xDEADBEEF;

                    status = ng_encode(t->format, &cast, v, word[e], &got);
                    t->report.cases++;
                    if (status != NG_OK || got != want[e]) {
                        report_bad(&t->report,
                                   "FP32 0x%08X -> %s, %s n=%u %s word 0x%08X %s [ng_encode]: "
                                   "%s 0x%X, want 0x%X",
                                   (unsigned)code[e], t->f->name, judge_sr_name[sr], bits,
                                   high != 0 ? "high" : "low", (unsigned)word[e],
                                   rule_text(&rule), ng_status_name(status), (unsigned)got,
                                   (unsigned)want[e]);
                    }
                }
                memcpy(in, code, n * sizeof *in);
                cast.random = (ng_random){ NG_RANDOM_EXTERNAL, word, (int64_t)n };
                status = convert(&cast, ng_format_find("f32"), in, t->format, out, n);
                for (size_t e = 0; e < n; e++) {
                    uint32_t got = element(t->f, out, e);

                    t->report.cases++;
                    if (status != NG_OK || got != want[e]) {
                        report_bad(&t->report,
                                   "FP32 0x%08X -> %s, %s n=%u %s word 0x%08X %s "
                                   "[ng_convert]: %s 0x%X, want 0x%X",
                                   (unsigned)code[e], t->f->name, judge_sr_name[sr], bits,
                                   high != 0 ? "high" : "low", (unsigned)word[e],
                                   rule_text(&rule), ng_status_name(status), (unsigned)got,
                                   (unsigned)want[e]);
                    }
                }
            }
        }
    }
    free(sample);
    free(code);
    free(word);
    free(want);
    free(in);
    free(out);
}

/* All r of n <= 8 bits: the number that move is the formula's, they are the largest r, and
 * exact values never move. */
static void check_sr_all(target *t)
{
    size_t most = long_run ? 1000 : 64;
    uint32_t *sample = need(most, sizeof *sample);
    size_t inputs = sr_sample(t, most, sample);

    for (size_t i = 0; i < inputs; i++) {
        const judge_num *x = &t->number[sample[i]];
        judge_rule rule = { JUDGE_SR, JUDGE_OVERFLOW_SAT, false, JUDGE_NAN_MAX };
        judge_spot spot;

        judge_place(the_judge, t->f, x, &spot);
        for (unsigned n = 1; n <= 8; n++) {
            for (unsigned sr = 0; sr < JUDGE_SRS; sr++) {
                uint64_t scaled = judge_sr_scaled(the_judge, (judge_sr)sr, n);
                uint64_t count = judge_sr_count((judge_sr)sr, scaled);
                uint64_t moved = 0;
                bool rising = true, was = false, known = true;
                ng_cast cast = library_cast(&rule);
                uint32_t low = 0, high = 0;

                cast.sr = library_sr[sr];
                cast.sr_bits = n;
                (void)judge_finish(t->f, &spot, spot.index, &rule, &low);
                (void)judge_finish(t->f, &spot, spot.index + 1, &rule, &high);
                if (spot.side == JUDGE_EXACT || spot.cls != JUDGE_FINITE) {
                    high = low;
                    count = 0;
                }
                if (high == low) {
                    count = 0; /* saturated, or no number: nothing to be seen */
                }
                for (uint32_t r = 0; r < UINT32_C(1) << n; r++) {
                    uint32_t got = 0xDEADBEEF;
                    ng_status status =
                        ng_encode(t->format, &cast, &t->given[sample[i]], r, &got);
                    bool up = got == high && high != low;

                    known = known && status == NG_OK && (got == low || got == high);
                    rising = rising && (up || !was);
                    was = up;
                    moved += up ? 1 : 0;
                }
                t->report.cases += UINT64_C(1) << n;
                if (!known || !rising || moved != count) {
                    report_bad(&t->report,
                               "FP32 0x%08X -> %s, %s n=%u: %llu of %u r move, want %llu%s%s",
                               (unsigned)t->values.at[sample[i]], t->f->name, judge_sr_name[sr],
                               n, (unsigned long long)moved, 1u << n, (unsigned long long)count,
                               rising ? "" : ", not monotone", known ? "" : ", foreign code");
                }
            }
        }
    }
    free(sample);
}

/* Word i belongs to element i in row-major logical order, whatever the strides. */
static void check_sr_order(target *t)
{
    enum {
        rows = 5,
        columns = 7,
        pitch = 16
    };
    uint32_t in[columns][rows]; /* transposed: stride 1 along the rows */
    uint32_t word[rows * columns];
    _Alignas(64) uint8_t out[rows * pitch * 4];
    int64_t dim[2] = { rows, columns };
    uint64_t state = 5;
    ng_tensor src, dst;
    ng_convert_op op = { sizeof op, { 0 } };
    ng_status status;
    uint32_t sample[rows * columns];
    size_t n = sr_sample(t, (size_t)rows * columns, sample);

    for (size_t e = 0; e < (size_t)rows * columns; e++) {
        word[e] = (uint32_t)report_random(&state);
        in[e % columns][e / columns] = t->values.at[sample[e % n]];
    }
    memset(out, 0xA5, sizeof out);
    op.cast.round = NG_ROUND_STOCHASTIC;
    op.cast.overflow = NG_OVERFLOW_SATURATE;
    op.cast.random = (ng_random){ NG_RANDOM_EXTERNAL, word, (int64_t)rows * (int64_t)columns };
    status = ng_tensor_init(&src, ng_format_find("f32"), in, 2, dim);
    src.stride[0] = 1;
    src.stride[1] = rows;
    if (status == NG_OK) {
        status = ng_tensor_init(&dst, t->format, out, 2, dim);
        dst.stride[0] = pitch;
    }
    if (status == NG_OK) {
        status = ng_convert(the_ctx, &op, &src, &dst);
    }
    for (size_t e = 0; e < (size_t)rows * columns; e++) {
        judge_rule rule = { JUDGE_SR, JUDGE_OVERFLOW_SAT, false, JUDGE_NAN_MAX };
        uint32_t want = 0;
        uint32_t got = element(t->f, out, e / columns * pitch + e % columns);

        (void)judge_encode_sr(the_judge, t->f, &t->number[sample[e % n]], &rule, JUDGE_SR_A, 32,
                              false, word[e], &want);
        t->report.cases++;
        if (status != NG_OK || got != want) {
            report_bad(&t->report,
                       "strided FP32 0x%08X -> %s, sr, element %u: %s 0x%X, want 0x%X",
                       (unsigned)t->values.at[sample[e % n]], t->f->name, (unsigned)e,
                       ng_status_name(status), (unsigned)got, (unsigned)want);
        }
    }
    /* One word too few, and none at all, are refused. */
    memset(out, 0xA5, sizeof out);
    op.cast.random.count--;
    status = ng_convert(the_ctx, &op, &src, &dst);
    report_check(&t->report, status == NG_ERR_ARGUMENT && all_bytes(out, sizeof out, 0xA5),
                 "a random word too few", t->f->name);
    op.cast.random = (ng_random){ NG_RANDOM_NONE, NULL, 0 };
    status = ng_convert(the_ctx, &op, &src, &dst);
    report_check(&t->report, status == NG_ERR_ARGUMENT && all_bytes(out, sizeof out, 0xA5),
                 "sr without random words", t->f->name);
}

/* ---- errors that do not depend on the data ---- */

static void check_errors(target *t)
{
    ng_value one = { 1, 0, NG_CLASS_FINITE, false, false };
    uint32_t in[3] = { 0x3F800000, 0, 0x7FC00000 };
    _Alignas(64) uint8_t out[16];
    uint32_t code = 0xDEADBEEF;
    ng_cast cast = { 0 };
    ng_status status;

    memset(out, 0xA5, sizeof out);
    if (!judge_has_nan(t->f)) {
        /* Refused for the format, whatever the values. */
        status = ng_encode(t->format, &cast, &one, 0, &code);
        report_check(&t->report, status == NG_ERR_FORMAT && code == 0xDEADBEEF,
                     "overflow=inf through ng_encode", t->f->name);
        status = convert(&cast, NG_F32, in, t->format, out, 2);
        report_check(&t->report, status == NG_ERR_FORMAT && all_bytes(out, sizeof out, 0xA5),
                     "overflow=inf through ng_convert", t->f->name);
        cast.overflow = NG_OVERFLOW_SATURATE;
        cast.nan_to = NG_NAN_TO_ERROR;
        status = convert(&cast, NG_F32, in, t->format, out, 3);
        report_check(&t->report, status == NG_ERR_FORMAT && all_bytes(out, sizeof out, 0xA5),
                     "nan_to=error with a last NaN", t->f->name);
        status = convert(&cast, NG_F32, in, t->format, out, 2);
        report_check(&t->report, status == NG_OK, "nan_to=error without a NaN", t->f->name);
    } else {
        cast.nan_to = NG_NAN_TO_ERROR;
        status = convert(&cast, NG_F32, in, t->format, out, 3);
        report_check(&t->report, status == NG_OK, "nan_to=error into a format with NaN",
                     t->f->name);
    }
    for (unsigned which = 0; which < 7; which++) {
        ng_cast bad = { 0 };

        bad.overflow = NG_OVERFLOW_SATURATE;
        switch (which) {
        case 0: bad.round = (ng_round)7; break;
        case 1: bad.overflow = (ng_overflow)3; break;
        case 2: bad.nan_sign = (ng_nan_sign)2; break;
        case 3: bad.nan_to = (ng_nan_to)3; break;
        case 4: bad.sr = (ng_sr)3; break;
        case 5: bad.sr_take = (ng_sr_take)2; break;
        default: bad.sr_bits = 33; break;
        }
        if (which >= 4) {
            bad.round = NG_ROUND_STOCHASTIC;
        }
        code = 0xDEADBEEF;
        status = ng_encode(t->format, &bad, &one, 0, &code);
        t->report.cases++;
        if (status != NG_ERR_ARGUMENT || code != 0xDEADBEEF) {
            report_bad(&t->report, "%s: bad cast %u through ng_encode: %s", t->f->name, which,
                       ng_status_name(status));
        }
        bad.random = (ng_random){ NG_RANDOM_EXTERNAL, in, 3 };
        memset(out, 0xA5, sizeof out);
        status = convert(&bad, NG_F32, in, t->format, out, 2);
        t->report.cases++;
        if (status != NG_ERR_ARGUMENT || !all_bytes(out, sizeof out, 0xA5)) {
            report_bad(&t->report, "%s: bad cast %u through ng_convert: %s", t->f->name, which,
                       ng_status_name(status));
        }
    }
}

/* The check points that section 2 lists, through the library; the judge has its own run. */
static void check_points(report *r)
{
    static const struct {
        const char *name;
        float x;
        ng_overflow overflow;
        uint32_t code;
    } point[] = {
        { "e4m3fn", 464.0f, NG_OVERFLOW_INF, 0x7E },
        { "e4m3fn", 0x1.d00002p8f, NG_OVERFLOW_INF, 0x7F },
        { "e4m3fn", 0x1.d00002p8f, NG_OVERFLOW_SATURATE, 0x7E },
        { "e5m2", 0x1.dffffep15f, NG_OVERFLOW_INF, 0x7B },
        { "e5m2", 61440.0f, NG_OVERFLOW_INF, 0x7C },
        { "e4m3", 0x1.effffep7f, NG_OVERFLOW_INF, 0x77 },
        { "e4m3", 248.0f, NG_OVERFLOW_INF, 0x78 },
        { "e3m4", 0x1.f7fffep3f, NG_OVERFLOW_INF, 0x6F },
        { "e3m4", 15.75f, NG_OVERFLOW_INF, 0x70 },
        { "f16", 0x1.ffdffep15f, NG_OVERFLOW_INF, 0x7BFF },
        { "f16", 65520.0f, NG_OVERFLOW_INF, 0x7C00 },
        { "e2m1", .25f, NG_OVERFLOW_SATURATE, 0 },
        { "e2m1", .75f, NG_OVERFLOW_SATURATE, 2 },
        { "e2m1", 1.25f, NG_OVERFLOW_SATURATE, 2 },
        { "e2m1", 1.75f, NG_OVERFLOW_SATURATE, 4 },
        { "e2m1", 2.5f, NG_OVERFLOW_SATURATE, 4 },
        { "e2m1", 3.5f, NG_OVERFLOW_SATURATE, 6 },
        { "e2m1", 5.0f, NG_OVERFLOW_SATURATE, 6 },
        { "e8m0", 1.5f, NG_OVERFLOW_INF, 128 },
        { "e8m0", 3.0f, NG_OVERFLOW_INF, 129 },
        { "e8m0", 6.0f, NG_OVERFLOW_INF, 130 },
        { "e8m0", 0.0f, NG_OVERFLOW_INF, 0 },
        { "e8m0", 0x1.8p127f, NG_OVERFLOW_SATURATE, 0xFE },
        { "e8m0", 0x1.8p127f, NG_OVERFLOW_INF, 0xFF },
        { "mxint8", -2.0f, NG_OVERFLOW_SATURATE, 0x81 },
        { "mxint8", -0.0f, NG_OVERFLOW_SATURATE, 0 },
    };

    for (size_t i = 0; i < sizeof point / sizeof point[0]; i++) {
        ng_cast cast = { 0 };
        float x = point[i].x;
        _Alignas(64) uint8_t out[16] = { 0 };
        uint32_t got;
        ng_status status;

        cast.overflow = point[i].overflow;
        status = convert(&cast, NG_F32, &x, ng_format_find(point[i].name), out, 1);
        got = element(judge_find(point[i].name), out, 0);
        r->cases++;
        if (status != NG_OK || got != point[i].code) {
            report_bad(r, "check point %s of %.9g: %s 0x%X, want 0x%X", point[i].name,
                       (double)x, ng_status_name(status), (unsigned)got,
                       (unsigned)point[i].code);
        }
    }
}

/* ---- putting a target together ---- */

static void target_make(target *t, const judge_format *f, const list *common)
{
    list f32 = { 0 };
    size_t most = 0;

    memset(t, 0, sizeof *t);
    t->f = f;
    t->format = ng_format_find(f->name);
    for (size_t i = 0; i < common->n; i++) {
        list_add(&f32, common->at[i]);
    }
    if (f->bits == 32 && f->low_bits == 0) { /* every FP32 value is exact: some of them */
        uint64_t state = 3;

        for (size_t i = 0; i < 30000; i++) {
            list_add(&f32, (uint32_t)report_random(&state));
        }
    } else if (f->bits > 8) {
        add_boundaries(&f32, f);
    }
    list_unique(&f32);

    t->source = need(JUDGE_FORMATS, sizeof *t->source);
    for (size_t i = 0; i < JUDGE_FORMATS; i++) {
        const judge_format *from = &judge_formats[i];

        if (from->bits <= 16) {
            t->source[t->sources] = source_make(from, NULL, (size_t)1 << from->bits);
        } else if (from->low_bits != 0) { /* tf32 words, low bits set or not: a part */
            t->source[t->sources] =
                source_make(from, common->at, common->n < 8000 ? common->n : 8000);
        } else {
            t->source[t->sources] = source_make(from, f32.at, f32.n);
        }
        t->sources++;
    }
    free(f32.at);
    for (size_t i = 0; i < t->sources; i++) {
        for (size_t e = 0; e < t->source[i].n; e++) {
            list_add(&t->values, t->source[i].value[e]);
        }
        most = t->source[i].n > most ? t->source[i].n : most;
    }
    list_unique(&t->values);
    for (size_t i = 0; i < t->sources; i++) {
        for (size_t e = 0; e < t->source[i].n; e++) {
            t->source[i].value[e] = (uint32_t)list_find(&t->values, t->source[i].value[e]);
        }
    }
    t->spot = need(t->values.n, sizeof *t->spot);
    t->number = need(t->values.n, sizeof *t->number);
    t->given = need(t->values.n, sizeof *t->given);
    t->word = need(t->values.n, sizeof *t->word);
    t->rounded = need(t->values.n, sizeof *t->rounded);
    t->want = need(t->values.n, sizeof *t->want);
    t->refused = need(t->values.n, sizeof *t->refused);
    t->keep = need(t->values.n, sizeof *t->keep);
    t->in = need(4 * most + 64, 1);
    t->out = need(4 * most + 64, 1);
    t->out_word = need(most, sizeof *t->out_word);
    t->picked = need(most, sizeof *t->picked);
    for (size_t i = 0; i < t->values.n; i++) {
        const uint64_t edge = judge_max_index(f);
        uint64_t state = t->values.at[i];
        uint64_t draw = report_random(&state);
        const judge_spot *s = &t->spot[i];

        judge_num_init(&t->number[i]);
        judge_decode(f32_row, t->values.at[i], &t->number[i]);
        judge_place(the_judge, f, &t->number[i], &t->spot[i]);
        t->given[i] = value_struct(t->values.at[i]);
        t->word[i] = (uint32_t)(draw >> 32);
        t->keep[i] = s->cls != JUDGE_FINITE || s->zero || s->index == edge ||
                     s->index == edge + 1 || draw % 32 == 0;
    }
}

static void target_free(target *t)
{
    for (size_t i = 0; i < t->values.n; i++) {
        judge_num_clear(&t->number[i]);
    }
    for (size_t i = 0; i < t->sources; i++) {
        source_free(&t->source[i]);
    }
    free(t->source);
    free(t->values.at);
    free(t->spot);
    free(t->number);
    free(t->given);
    free(t->word);
    free(t->rounded);
    free(t->want);
    free(t->refused);
    free(t->keep);
    free(t->in);
    free(t->out);
    free(t->out_word);
    free(t->picked);
}

int main(int argc, char **argv)
{
    const char *wrong = judge_self_test();
    report total = { 0 };
    list common = { 0 };
    ng_ctx_config config = { 0 };
    int names = 0;

    config.size = sizeof config;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc) {
            const char *isa = argv[++i];

            for (uint32_t bit = 1; bit != 0; bit <<= 1) {
                const char *name = ng_isa_name(bit);

                if (name != NULL && strcmp(name, isa) == 0) {
                    config.isa_mask = bit;
                }
            }
            if ((config.isa_mask & ng_isa_available()) == 0) {
                printf("skipped: no ISA %s here\n", isa);
                return REPORT_SKIP;
            }
        } else if (strcmp(argv[i], "--long") == 0) {
            long_run = true;
        } else if (strcmp(argv[i], "--quick") == 0) {
            quick_run = true;
        } else if (judge_find(argv[i]) != NULL) {
            names++;
        } else {
            fprintf(stderr, "usage: %s [--quick | --long] [--isa NAME] [format ...]\n",
                    argv[0]);
            return 2;
        }
    }
    if (wrong != NULL) {
        printf("judge: %s\n", wrong);
        return 1;
    }
    the_judge = judge_new();
    f32_row = judge_find("f32");
    if (ng_ctx_create(&config, &the_ctx) != NG_OK) {
        printf("ng_ctx_create failed\n");
        return 1;
    }
    add_specials(&common);
    for (size_t i = 0; i < JUDGE_FORMATS; i++) {
        if (judge_formats[i].bits <= 8) {
            add_boundaries(&common, &judge_formats[i]);
        }
    }
    list_unique(&common);
    check_points(&total);
    for (size_t i = 0; i < JUDGE_FORMATS; i++) {
        const judge_format *f = &judge_formats[i];
        bool chosen = names == 0;
        clock_t begin = clock();
        target t;

        for (int a = 1; a < argc; a++) {
            chosen = chosen || strcmp(argv[a], f->name) == 0;
        }
        if (!chosen) {
            continue;
        }
        target_make(&t, f, &common);
        check_errors(&t);
        check_rules(&t);
        check_wide_values(&t);
        check_sr_words(&t);
        check_sr_all(&t);
        check_sr_order(&t);
        printf("%-9s %7zu inputs, %10llu cases, %llu mismatches, %.1f s\n", f->name, t.values.n,
               (unsigned long long)t.report.cases, (unsigned long long)t.report.bad,
               (double)(clock() - begin) / CLOCKS_PER_SEC);
        fflush(stdout);
        report_add(&total, &t.report);
        target_free(&t);
    }
    if (far_refused != 0) {
        printf("note: %llu times ng_encode refused |exp| > 100000 (NG_ERR_ARGUMENT)\n",
               (unsigned long long)far_refused);
    }
    printf("kernel: %s\n", last_kernel[0] != '\0' ? last_kernel : "not named");
    printf("convert: %llu cases, %llu mismatches\n", (unsigned long long)total.cases,
           (unsigned long long)total.bad);
    free(common.at);
    ng_ctx_destroy(the_ctx);
    judge_free(the_judge);
    mpfr_free_cache();
    return total.bad != 0;
}

#endif
