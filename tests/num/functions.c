/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elementary functions, correctly rounded: FP32 inputs through ng_elementary, each compared
 * with a judge that shares nothing with the library; and the digests of all 2^32 results.
 *
 *   functions [--function F] [--share k/n] [--part N] [--seams] [--isa LIST] [--reference N]
 *             [--threads T] [--digests] [--sleef] [-v]
 *
 *   --function F   exp exp2 log tanh sigmoid reciprocal rsqrt; left out: all
 *   --share k/n    every n-th chunk of 2^20 inputs, from the k-th on
 *   --part N       of each of those only N inputs, the place drawn by a fixed seed
 *   --seams        also the neighbourhoods of special arguments and of the ends of ranges
 *   --reference N  ask the library's reference about every N-th input too (and about every
 * input that MPFR had to decide)
 *   --sleef        the functions of choice `sleef`, against SLEEF's scalar ones
 *   --digests      print the table of src/cli/functions.inc; all inputs
 *
 * The judge computes f(x) with the C library's double function, whose error the GNU C Library's
 * manual ("Known Maximum Errors in Math Functions", x86_64) puts at 2 units of the last place
 * or less, and a few operations: in all within 2^-50 of the value. If that times (1 - 2^-49)
 * and times (1 + 2^-49) round to the same FP32 number, it is the result; if not, MPFR computes
 * the result at 200 bits, which is then checked to be decided. The library's kernels use SLEEF,
 * its reference integers: three codes.
 *
 * Digest: XXH3-128 of the XXH3-128 values (canonical) of the chunks' results, in chunk order.
 */
#include "report.h"

#if defined(__has_include)
#if __has_include(<mpfr.h>) && __has_include(<xxhash.h>)
#define FUNCTIONS_HAVE_ALL 1
#endif
#endif

#ifndef FUNCTIONS_HAVE_ALL
int main(void)
{
    printf("skipped: built without mpfr.h or xxhash.h\n");
    return REPORT_SKIP;
}
#else

#include <mpfr.h>
#include <pthread.h>
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "../../src/num/elementary.h"
#include "functions.h"
#include "ng/ng.h"

#define CHUNK                          (UINT32_C(1) << 20)
#define CHUNKS                         4096u
#define FUNCTIONS                      7u
#define NAN_CODE                       UINT32_C(0x7FC00000)
/* Around a seam: this many patterns on either side. */
#define NEAR                           4096u

typedef struct published {
    const char *function, *choice, *digest;
} published;

static const published table[] = {
#define FUNCTION(name, choice, digest) { name, choice, digest },
#include "functions.inc"
#undef FUNCTION
    { NULL, NULL, NULL }
};

typedef struct options {
    const char *function;
    bool sleef, seams, digests, verbose;
    uint32_t isas, share, shares, part, reference;
    unsigned threads;
} options;

/* A function, and what was found. */
typedef struct sweep {
    const options *o;
    ng_function f;
    XXH128_canonical_t *hash;
} sweep;

typedef struct worker {
    const sweep *s;
    unsigned id;
    pthread_t thread;
    ng_ctx *ctx;
    uint32_t *in, *out;
    mpfr_t x, y;
    report r;
    uint64_t inputs, by_mpfr, by_reference, two_words;
    bool failed;
} worker;

/* ---- the judge ---- */

static double in_double(ng_function f, double x)
{
    switch (f) {
    case NG_FN_EXP: return exp(x);
    case NG_FN_EXP2: return exp2(x);
    case NG_FN_LOG: return log(x);
    case NG_FN_TANH: return tanh(x);
    case NG_FN_SIGMOID: return 1 / (1 + exp(-x));
    case NG_FN_RECIPROCAL: return 1 / x;
    case NG_FN_RSQRT: return 1 / sqrt(x);
    }
    return x;
}

/* MPFR's rounding is its own: mpfr_get_flt knows subnormals and overflow. */
static float in_mpfr(worker *w, ng_function f, mpfr_rnd_t round)
{
    switch (f) {
    case NG_FN_EXP: mpfr_exp(w->y, w->x, round); break;
    case NG_FN_EXP2: mpfr_exp2(w->y, w->x, round); break;
    case NG_FN_LOG: mpfr_log(w->y, w->x, round); break;
    case NG_FN_TANH: mpfr_tanh(w->y, w->x, round); break;
    case NG_FN_SIGMOID: /* falls with the exponential, and rises with x: opposite directions */
        mpfr_neg(w->y, w->x, MPFR_RNDN);
        mpfr_exp(w->y, w->y, round == MPFR_RNDD ? MPFR_RNDU : MPFR_RNDD);
        mpfr_add_ui(w->y, w->y, 1, round == MPFR_RNDD ? MPFR_RNDU : MPFR_RNDD);
        mpfr_ui_div(w->y, 1, w->y, round);
        break;
    case NG_FN_RECIPROCAL: mpfr_ui_div(w->y, 1, w->x, round); break;
    case NG_FN_RSQRT: mpfr_rec_sqrt(w->y, w->x, round); break;
    }
    return mpfr_get_flt(w->y, MPFR_RNDN);
}

static uint32_t ask_mpfr(worker *w, uint32_t argument)
{
    float low, high;

    mpfr_set_d(w->x, (double)number(argument), MPFR_RNDN);
    low = in_mpfr(w, w->s->f, MPFR_RNDD);
    high = in_mpfr(w, w->s->f, MPFR_RNDU);
    if (pattern(low) != pattern(high)) {
        report_bad(&w->r, "MPFR: 200 bits do not decide %s(0x%08X)", ng_function_name(w->s->f),
                   (unsigned)argument);
    }
    return pattern(low);
}

/* ---- the library against it ---- */

static void ask_reference(worker *w, uint32_t x, uint32_t want)
{
    uint32_t y = ng_num_function(w->s->f, x), one;

    w->by_reference++;
    if (y != want) {
        report_bad(&w->r, "%s(0x%08X) by the reference: 0x%08X, want 0x%08X",
                   ng_function_name(w->s->f), (unsigned)x, (unsigned)y, (unsigned)want);
    }
    if (!ng_num_function_try(w->s->f, x, 1, &one)) {
        w->two_words++;
        if (!ng_num_function_try(w->s->f, x, 2, &one)) {
            report_bad(&w->r, "%s(0x%08X): two words do not decide", ng_function_name(w->s->f),
                       (unsigned)x);
        }
    }
}

static void judge_sleef(worker *w, uint32_t x, uint32_t y)
{
    uint32_t want = by_sleef(w->s->f, x);

    if (y != want) {
        report_bad(&w->r, "sleef %s(0x%08X): 0x%08X, scalar 0x%08X", ng_function_name(w->s->f),
                   (unsigned)x, (unsigned)y, (unsigned)want);
    }
}

static void judge_one(worker *w, uint32_t x, uint32_t y)
{
    double d = in_double(w->s->f, (double)number(x));
    uint32_t want = pattern((float)(d * (1 - 0x1p-49)));
    bool hard = want != pattern((float)(d * (1 + 0x1p-49)));

    if (hard) {
        want = ask_mpfr(w, x);
        w->by_mpfr++;
    }
    if (y != want) {
        report_bad(&w->r, "%s(0x%08X): 0x%08X, want 0x%08X", ng_function_name(w->s->f),
                   (unsigned)x, (unsigned)y, (unsigned)want);
    }
    if (hard || (w->s->o->reference != 0 && x % w->s->o->reference == 0)) {
        ask_reference(w, x, want);
    }
}

/* Inputs [first, first + n) by a kernel, and by the judge. */
static void judge_range(worker *w, uint32_t first, uint32_t n)
{
    ng_elementary_op op = { .size = sizeof op, .function = w->s->f };

    ng_tensor src, dst;
    int64_t dim = n;

    if (w->s->o->sleef) {
        op.choice.kind = NG_FUNCTION_SLEEF;
    }

    for (uint32_t i = 0; i < n; i++) {
        w->in[i] = first + i;
    }
    if (ng_tensor_init(&src, NG_F32, w->in, 1, &dim) != NG_OK ||
        ng_tensor_init(&dst, NG_F32, w->out, 1, &dim) != NG_OK ||
        ng_elementary(w->ctx, &op, &src, &dst) != NG_OK) {
        report_bad(&w->r, "%s", ng_ctx_message(w->ctx));
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (w->s->o->sleef) {
            judge_sleef(w, w->in[i], w->out[i]);
        } else {
            judge_one(w, w->in[i], w->out[i]);
        }
    }
    w->inputs += n;
}

/* ---- shares ---- */

static void one_chunk(worker *w, uint32_t chunk)
{
    const options *o = w->s->o;
    uint64_t seed = ((uint64_t)w->s->f << 32) + chunk;
    uint32_t room = CHUNK - o->part;
    uint32_t from = room == 0 ? 0 : (uint32_t)(report_random(&seed) % (room + 1u));

    judge_range(w, chunk * CHUNK + from, o->part);
    if (w->s->hash != NULL) {
        XXH128_canonicalFromHash(&w->s->hash[chunk],
                                 XXH3_128bits(w->out, CHUNK * sizeof *w->out));
    }
}

/* Zeros, ones, ends of ranges: where a code has its branches. */
static void seams(worker *w)
{
    static const uint32_t at[] = { 0x00000000, 0x00800000, 0x31800000, 0x32800000, 0x33000000,
                                   0x33800000, 0x38800000, 0x39000000, 0x39800000, 0x3F000000,
                                   0x3F3504F3, 0x3F800000, 0x40000000, 0x41100000, 0x41800000,
                                   0x42000000, 0x42800000, 0x42AEAC50, 0x42B17218, 0x42CE8ED0,
                                   0x42CFF1B5, 0x42FC0000, 0x43000000, 0x43150000, 0x43160000,
                                   0x43200000, 0x43800000, 0x7E800000, 0x7F000000, 0x7F800000,
                                   0x7FC00000 };

    for (uint32_t sign = 0; sign < 2; sign++) {
        for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
            judge_range(w, (at[i] | sign << 31) - NEAR, 2 * NEAR); /* wraps at +0: -NaNs */
        }
    }
}

static void *work(void *arg)
{
    worker *w = arg;
    const options *o = w->s->o;
    ng_ctx_config config = { .size = sizeof config, .isa_mask = o->isas };

    mpfr_init2(w->x, 24);
    mpfr_init2(w->y, 200);
    w->in = malloc(CHUNK * sizeof *w->in);
    w->out = malloc(CHUNK * sizeof *w->out);
    if (w->in == NULL || w->out == NULL || ng_ctx_create(&config, &w->ctx) != NG_OK) {
        w->failed = true;
    } else {
        if (o->seams && w->id == 0) {
            seams(w);
        }
        for (uint32_t c = o->share + w->id * o->shares; c < CHUNKS;
             c += o->shares * o->threads) {
            one_chunk(w, c);
        }
    }
    ng_ctx_destroy(w->ctx);
    free(w->in);
    free(w->out);
    mpfr_clear(w->x);
    mpfr_clear(w->y);
    mpfr_free_cache();
    return NULL;
}

/* ---- digests ---- */

static const char *choice_of(const sweep *s)
{
    return s->o->sleef ? "sleef" : "cr";
}

static const char *published_digest(const char *function, const char *choice)
{
    for (const published *p = table; p->function != NULL; p++) {
        if (strcmp(p->function, function) == 0 && strcmp(p->choice, choice) == 0) {
            return p->digest;
        }
    }
    return "none";
}

/* True if it is not the published one. */
static bool report_digest(const sweep *s)
{
    const char *name = ng_function_name(s->f);
    XXH128_canonical_t whole;
    char text[33];

    XXH128_canonicalFromHash(&whole, XXH3_128bits(s->hash, CHUNKS * sizeof *s->hash));
    for (size_t i = 0; i < sizeof whole.digest; i++) {
        snprintf(text + 2 * i, 3, "%02x", whole.digest[i]);
    }
    if (s->o->digests) {
        printf("FUNCTION(\"%s\", \"%s\", \"%s\")\n", name, choice_of(s), text);
    } else if (strcmp(text, published_digest(name, choice_of(s))) != 0) {
        printf("  MISMATCH digest of %s: %s, published %s\n", name, text,
               published_digest(name, choice_of(s)));
        return true;
    }
    return false;
}

/* True if something is wrong. */
static bool run_function(const options *o, ng_function f, worker *sum)
{
    sweep s = { .o = o, .f = f };
    worker *w = calloc(o->threads, sizeof *w);
    worker here = { 0 };
    bool wrong = false;

    if (o->shares == 1 && o->part == CHUNK) {
        s.hash = calloc(CHUNKS, sizeof *s.hash);
    }
    for (unsigned t = 0; t < o->threads; t++) {
        w[t].s = &s;
        w[t].id = t;
        if (t + 1 == o->threads || pthread_create(&w[t].thread, NULL, work, &w[t]) != 0) {
            (void)work(&w[t]);
            w[t].thread = pthread_self();
        }
    }
    for (unsigned t = 0; t < o->threads; t++) {
        if (!pthread_equal(w[t].thread, pthread_self())) {
            (void)pthread_join(w[t].thread, NULL);
        }
        wrong |= w[t].failed || w[t].r.bad != 0;
        here.inputs += w[t].inputs;
        here.by_mpfr += w[t].by_mpfr;
        here.by_reference += w[t].by_reference;
        here.two_words += w[t].two_words;
    }
    if (s.hash != NULL && !wrong) {
        wrong = report_digest(&s);
    }
    if (o->verbose) {
        printf("%s: %llu inputs, %llu by MPFR, %llu also by the reference, %llu of them with "
               "two words%s\n",
               ng_function_name(f), (unsigned long long)here.inputs,
               (unsigned long long)here.by_mpfr, (unsigned long long)here.by_reference,
               (unsigned long long)here.two_words, wrong ? ": WRONG" : "");
        fflush(stdout);
    }
    sum->inputs += here.inputs;
    sum->by_mpfr += here.by_mpfr;
    sum->by_reference += here.by_reference;
    free(s.hash);
    free(w);
    return wrong;
}

/* ---- command line ---- */

static bool parse_isas(const char *list, uint32_t *mask)
{
    char text[100];

    *mask = 0;
    snprintf(text, sizeof text, "%s", list);
    for (char *name = strtok(text, ","); name != NULL; name = strtok(NULL, ",")) {
        for (uint32_t bit = 1; bit != 0; bit <<= 1) {
            if (ng_isa_name(bit) != NULL && strcmp(ng_isa_name(bit), name) == 0) {
                *mask |= bit;
            }
        }
    }
    return *mask != 0;
}

static bool parse_value(options *o, const char *name, const char *value)
{
    if (strcmp(name, "--function") == 0) {
        o->function = value;
    } else if (strcmp(name, "--share") == 0) {
        return sscanf(value, "%u/%u", &o->share, &o->shares) == 2 && o->shares != 0 &&
               o->shares <= CHUNKS && o->share < o->shares;
    } else if (strcmp(name, "--part") == 0) {
        o->part = (uint32_t)strtoul(value, NULL, 10);
        return o->part >= 1 && o->part <= CHUNK;
    } else if (strcmp(name, "--isa") == 0) {
        return parse_isas(value, &o->isas);
    } else if (strcmp(name, "--reference") == 0) {
        o->reference = (uint32_t)strtoul(value, NULL, 10);
    } else if (strcmp(name, "--threads") == 0) {
        o->threads = (unsigned)strtoul(value, NULL, 10);
        return o->threads != 0 && o->threads <= 1024;
    } else {
        return false;
    }
    return true;
}

static bool parse(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seams") == 0) {
            o->seams = true;
        } else if (strcmp(argv[i], "--sleef") == 0) {
            o->sleef = true;
        } else if (strcmp(argv[i], "--digests") == 0) {
            o->digests = true;
        } else if (strcmp(argv[i], "-v") == 0) {
            o->verbose = true;
        } else if (i + 1 >= argc || !parse_value(o, argv[i], argv[i + 1])) {
            fprintf(stderr, "functions: %s: unknown, or without its value\n", argv[i]);
            return false;
        } else {
            i++;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    options o = { .shares = 1, .part = CHUNK, .threads = 1 };
    unsigned tried = 0, wrong = 0;
    worker sum = { 0 };

    if (!parse(&o, argc, argv)) {
        return 2;
    }
    if (o.sleef && !ng_sleef_available()) {
        printf("skipped: this CPU has not both AVX2 and FMA\n");
        return REPORT_SKIP;
    }
    if (o.isas != 0 && (o.isas & ng_isa_available()) == 0) {
        printf("skipped: the ISAs asked for are not here\n");
        return REPORT_SKIP;
    }
    for (unsigned f = 0; f < FUNCTIONS; f++) {
        if (o.function == NULL || strcmp(o.function, ng_function_name((ng_function)f)) == 0) {
            tried++;
            wrong += run_function(&o, (ng_function)f, &sum) ? 1 : 0;
        }
    }
    if (tried == 0) {
        fprintf(stderr, "functions: no function '%s'\n", o.function);
        return 2;
    }
    if (!o.digests) {
        printf(
            "functions: %u functions, %u wrong, %llu inputs, %llu decided by MPFR, %llu also "
            "by the reference\n",
            tried, wrong, (unsigned long long)sum.inputs, (unsigned long long)sum.by_mpfr,
            (unsigned long long)sum.by_reference);
    }
    return wrong != 0;
}

#endif
