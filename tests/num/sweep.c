/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP32 inputs through ng_convert, each compared with docs/numerics.md section 2; and the
 * digests of all 2^32 outputs as the judge alone gives them.
 *
 *   sweep [CASES] [--isa LIST] [--share k/n] [--part N] [--steps] [--judge N]
 *         [--threads T] [-v]
 *   sweep [CASES] --judge-digests [--check] [--threads T]
 *
 *   CASES        --target F, --round R, --overflow O; each left out: all. --nan-sign keep
 *   --share k/n  every n-th chunk of every case, from the k-th on; other ones in each case
 *   --part N     of each of those only N inputs, the place drawn by a fixed seed
 *   --steps      also the inputs around the values of the target and around their midpoints:
 * all of them for targets of at most 8 bits, a fixed sample for others
 *   --judge N    also ask the judge itself about every N-th input
 *
 * Rounding is monotone, so a conversion is a staircase over the FP32 patterns of one sign. The
 * MPFR judge finds every step by bisection: the smallest pattern that gets the next code.
 * Between two steps the code is constant, so the steps are the judge's answer for all inputs,
 * and comparing with it is as fast as memcmp. That it is monotone, --judge N does not suppose.
 *
 * Digest: XXH3-128 of the XXH3-128 values (canonical, 16 bytes) of the chunks' output bytes, in
 * chunk order; a chunk is 2^20 inputs. src/cli/sweeps.inc publishes them: --judge-digests
 * prints that table, with no part of the library in it, and --check compares instead.
 */
#include "judge.h"
#include "report.h"

#if defined(__has_include)
#if __has_include(<xxhash.h>)
#define SWEEP_HAVE_XXHASH 1
#endif
#endif

#if !defined(JUDGE_HAVE_MPFR)
int main(void)
{
    printf("skipped: built without mpfr.h\n");
    return REPORT_SKIP;
}
#elif !defined(SWEEP_HAVE_XXHASH)
int main(void)
{
    printf("skipped: built without xxhash.h\n");
    return REPORT_SKIP;
}
#else

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ng/ng.h"

#define CHUNK                              (UINT32_C(1) << 20)
#define CHUNKS                             4096u
#define INF                                UINT32_C(0x7F800000)
#define ISAS                               4u
/* Inputs that any kernel would take. */
#define PROBE                              4096
/* Around a value or midpoint: this many patterns on either side. */
#define NEAR                               32u
/* Values of a wide target that --steps visits. */
#define SOME                               128u

static const ng_round library_round[JUDGE_ROUNDS] = {
    NG_ROUND_TIES_TO_EVEN,    NG_ROUND_TIES_TO_AWAY,    NG_ROUND_TOWARD_ZERO,
    NG_ROUND_TOWARD_POSITIVE, NG_ROUND_TOWARD_NEGATIVE, NG_ROUND_TO_ODD,
    NG_ROUND_STOCHASTIC
};
static const ng_overflow library_overflow[JUDGE_OVERFLOWS] = { NG_OVERFLOW_INF,
                                                               NG_OVERFLOW_SATURATE,
                                                               NG_OVERFLOW_SATURATE_KEEP_INF };

typedef struct published {
    const char *to, *round, *overflow, *digest;
} published;

static const published table[] = {
#define SWEEP(to, round, overflow, digest) { to, round, overflow, digest },
#include "sweeps.inc"
#undef SWEEP
    { NULL, NULL, NULL, NULL }
};

typedef struct options {
    const char *target, *round, *overflow;
    bool nan_keep, steps, judge_digests, check, verbose;
    uint32_t isas;
    uint32_t share, shares;
    uint32_t part;        /* of a chunk */
    uint32_t judge_every; /* 0: never */
    unsigned threads;
} options;

/* One conversion rule, and what was found about it. */
typedef struct sweep {
    const options *o;
    const judge_format *f;
    judge_rule rule;
    uint32_t first;           /* chunk; then every o->shares-th */
    uint32_t used;            /* ISAs that have a kernel for it, and the reference */
    XXH128_canonical_t *hash; /* of the judge's bytes, by chunk */
    uint64_t inputs, judged, bad;
    bool failed;
} sweep;

/* The judge with a number to ask about. */
typedef struct asker {
    judge *j;
    judge_num x;
    const judge_format *f32;
    const judge_format *to;
    const judge_rule *rule;
} asker;

typedef struct worker {
    sweep *s;
    unsigned id;
    pthread_t thread;
    asker a;
    ng_ctx *ctx[ISAS];
    uint32_t *in;
    uint8_t *out, *want;
    size_t bytes;
    uint32_t constant; /* the code of the last chunk that had only one, and its hash */
    XXH128_canonical_t constant_hash;
    uint64_t inputs, judged, bad;
    uint32_t used;
    uint64_t seed;
    char first_bad[200];
    char error[200];
} worker;

static void *need(size_t count, size_t size)
{
    void *p = calloc(count == 0 ? 1 : count, size);

    if (p == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return p;
}

static double seconds(void)
{
    struct timespec t;

    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the staircase ---- */

static uint32_t ask(asker *a, uint64_t pattern)
{
    uint32_t code = 0;

    judge_decode(a->f32, (uint32_t)pattern, &a->x);
    if (!judge_encode(a->j, a->to, &a->x, a->rule, &code)) {
        fprintf(stderr, "judge: refused 0x%X\n", (unsigned)pattern);
        exit(2);
    }
    return code;
}

static void asker_make(asker *a, const judge_format *to, const judge_rule *rule)
{
    a->j = judge_new();
    judge_num_init(&a->x);
    a->f32 = judge_find("f32");
    a->to = to;
    a->rule = rule;
}

static void asker_free(asker *a)
{
    judge_num_clear(&a->x);
    judge_free(a->j);
    mpfr_free_cache();
}

/* All NaNs of a sign must get one code: the staircase asks about one of them. */
static void check_nans(asker *a)
{
    static const uint32_t nans[] = { 0x7F800001, 0x7FA00000, 0x7FC00000, 0x7FFFFFFF };

    for (uint32_t sign = 0; sign < 2; sign++) {
        for (size_t i = 1; i < sizeof nans / sizeof nans[0]; i++) {
            if (ask(a, nans[i] | sign << 31) != ask(a, nans[0] | sign << 31)) {
                fprintf(stderr, "judge: NaNs differ\n");
                exit(2);
            }
        }
    }
}

/* The first pattern after `at` whose code is not `code`, that of `at`; `high` has another.
 * Finite patterns of one sign. Neighbouring steps are mostly of one length: `length` is tried
 * first. */
static uint64_t step_end(asker *a, uint64_t at, uint64_t high, uint32_t code, uint64_t length)
{
    uint64_t low = at;

    if (length > 1 && at + length <= high) {
        if (ask(a, at + length - 1) == code) {
            low = at + length - 1;
            if (at + length == high || ask(a, at + length) != code) {
                return at + length;
            }
        } else {
            high = at + length - 1;
        }
    }
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        if (ask(a, middle) == code) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return high;
}

/* Write `code` to the elements [from, to). */
static void fill(const judge_format *f, uint8_t *bytes, size_t from, size_t to, uint32_t code)
{
    switch (f->word_bits) {
    case 4:
        for (; from < to && (from % 2 != 0 || to - from < 2); from++) {
            uint32_t keep = from % 2 == 0 ? 0xF0 : 0x0F;

            bytes[from / 2] = (uint8_t)((bytes[from / 2] & keep) | code << from % 2 * 4);
        }
        memset(bytes + from / 2, (int)(code | code << 4), (to - from) / 2);
        if (from < to && to % 2 != 0) {
            bytes[to / 2] = (uint8_t)((bytes[to / 2] & 0xF0) | code);
        }
        break;
    case 8: memset(bytes + from, (int)code, to - from); break;
    case 16:
        for (; from < to; from++) {
            ((uint16_t *)(void *)bytes)[from] = (uint16_t)code;
        }
        break;
    default:
        for (; from < to; from++) {
            ((uint32_t *)(void *)bytes)[from] = code;
        }
        break;
    }
}

/* The codes of the patterns [base, base + count), one sign, as elements from `to` on. Returns
 * the number of steps. */
static uint32_t expect(asker *a, uint32_t base, uint32_t count, uint8_t *bytes, size_t to)
{
    const uint64_t inf = (base & UINT32_C(0x80000000)) + (uint64_t)INF;
    const uint64_t end = (uint64_t)base + count;
    const uint64_t finite = end < inf ? end : inf;
    uint64_t at = base, next, length = 0;
    uint32_t steps = 0, code;

    if (at < finite) {
        uint32_t last = ask(a, finite - 1);

        for (; at < finite; at = next, steps++) {
            code = ask(a, at);
            next = code == last ? finite : step_end(a, at, finite - 1, code, length);
            length = next - at;
            fill(a->to, bytes, to + (at - base), to + (next - base), code);
        }
    }
    for (; at < end; at = next, steps++) {
        next = at == inf ? at + 1 : end;
        fill(a->to, bytes, to + (at - base), to + (next - base), ask(a, at));
    }
    return steps;
}

static uint32_t element(const judge_format *f, const uint8_t *bytes, size_t i)
{
    switch (f->word_bits) {
    case 4: return (uint32_t)bytes[i / 2] >> (i % 2 * 4) & 0xF;
    case 8: return bytes[i];
    case 16: return ((const uint16_t *)(const void *)bytes)[i];
    default: return ((const uint32_t *)(const void *)bytes)[i];
    }
}

/* ---- the library against it ---- */

static void note(worker *w, uint32_t pattern, uint32_t got, uint32_t want, const char *by)
{
    w->bad++;
    if (w->first_bad[0] == '\0') {
        snprintf(w->first_bad, sizeof w->first_bad,
                 "FP32 0x%08X -> %s %s %s: 0x%X, want 0x%X (%s)", (unsigned)pattern,
                 w->s->f->name, judge_round_name[w->s->rule.round],
                 judge_overflow_name[w->s->rule.overflow], (unsigned)got, (unsigned)want, by);
    }
}

static ng_status convert(worker *w, ng_ctx *ctx, int64_t n)
{
    ng_convert_op op = { sizeof op, { 0 } };
    ng_tensor src, dst;
    ng_status status = ng_tensor_init(&src, NG_F32, w->in, 1, &n);

    op.cast.round = library_round[w->s->rule.round];
    op.cast.overflow = library_overflow[w->s->rule.overflow];
    op.cast.nan_sign = w->s->rule.nan_keep ? NG_NAN_SIGN_KEEP : NG_NAN_SIGN_CLEAR;
    if (status == NG_OK) {
        status = ng_tensor_init(&dst, ng_format_find(w->s->f->name), w->out, 1, &n);
    }
    if (status == NG_OK) {
        status = ng_convert(ctx, &op, &src, &dst);
    }
    if (status != NG_OK) {
        snprintf(w->error, sizeof w->error, "%s: %.150s", ng_status_name(status),
                 ng_ctx_message(ctx));
    }
    return status;
}

/* in[0..n) by every ISA against want; n is even. */
static void compare(worker *w, uint32_t n)
{
    const judge_format *f = w->s->f;
    size_t bytes = (size_t)n / 8 * f->word_bits;

    for (unsigned i = 0; i < ISAS; i++) {
        if (w->ctx[i] == NULL) {
            continue;
        }
        memset(w->out, 0xA5, bytes);
        if (convert(w, w->ctx[i], n) != NG_OK) {
            return;
        }
        w->inputs += n;
        for (uint32_t e = 0; memcmp(w->out, w->want, bytes) != 0 && e < n; e++) {
            if (element(f, w->out, e) != element(f, w->want, e)) {
                note(w, w->in[e], element(f, w->out, e), element(f, w->want, e),
                     ng_isa_name(UINT32_C(1) << i));
                if (w->bad > 1000) {
                    return;
                }
            }
        }
    }
}

/* The judge itself, where it does not rely on the steps. */
static void ask_some(worker *w, uint32_t n)
{
    uint32_t every = w->s->o->judge_every;

    for (uint32_t e = 0; every != 0 && e < n; e++) {
        if (w->in[e] % every == 0) {
            uint32_t code = ask(&w->a, w->in[e]);

            w->judged++;
            if (element(w->s->f, w->want, e) != code) {
                note(w, w->in[e], element(w->s->f, w->want, e), code, "the judge's own steps");
            }
        }
    }
}

static void add_window(worker *w, uint32_t *n, mpfr_srcptr centre)
{
    uint32_t p, from;

    if (!judge_f32_pattern(w->a.j, centre, &p)) {
        return; /* 2^128, or below FP32's grid */
    }
    from = p < NEAR ? 0 : p - NEAR;
    for (uint32_t sign = 0; sign < 2; sign++) {
        uint32_t base = from | sign << 31;

        for (uint32_t i = 0; i < 2 * NEAR; i++) {
            w->in[*n + i] = base + i;
        }
        (void)expect(&w->a, base, 2 * NEAR, w->want, *n);
        *n += 2 * NEAR;
    }
}

/* Around the target's values and midpoints, the first one past the maximum too. */
static void steps(worker *w)
{
    uint64_t most = judge_max_index(w->s->f), state = 1;
    bool all = most < 2 * SOME;
    uint32_t n = 0;
    mpfr_t at, next;

    mpfr_init2(at, 64);
    mpfr_init2(next, 64);
    for (uint64_t i = 0; i <= (all ? most + 1 : SOME); i++) {
        uint64_t index = all ? i : i < 3 ? most + 1 - i : report_random(&state) % (most + 1);

        judge_index_value(w->s->f, index, at);
        judge_index_value(w->s->f, index + 1, next);
        add_window(w, &n, at);
        mpfr_add(at, at, next, MPFR_RNDN);
        mpfr_div_2ui(at, at, 1, MPFR_RNDN);
        add_window(w, &n, at);
    }
    mpfr_clear(at);
    mpfr_clear(next);
    ask_some(w, n);
    compare(w, n);
}

/* A context for each ISA that was asked for and has a kernel here; the reference always has. */
static void open_contexts(worker *w)
{
    for (unsigned i = 0; i < ISAS; i++) {
        uint32_t bit = UINT32_C(1) << i;
        ng_ctx_config config = { sizeof config, bit };

        if ((w->s->o->isas & bit) == 0 || w->error[0] != '\0') {
            continue;
        }
        if (ng_ctx_create(&config, &w->ctx[i]) != NG_OK) {
            snprintf(w->error, sizeof w->error, "no context");
        } else if (convert(w, w->ctx[i], PROBE) == NG_OK) {
            if (bit != NG_ISA_REF && strcmp(ng_ctx_kernel(w->ctx[i]), "ref") == 0) {
                ng_ctx_destroy(w->ctx[i]);
                w->ctx[i] = NULL;
            } else {
                w->used |= bit;
            }
        }
    }
}

static void take_chunk(worker *w, uint32_t c)
{
    const judge_format *f = w->s->f;
    bool judge_only = w->s->o->judge_digests;
    uint32_t part = w->s->o->part;
    uint32_t base = c * CHUNK;
    uint32_t code = ask(&w->a, base);

    /* Most chunks of a narrow target are one code: the same bytes as the last such chunk's. */
    if (judge_only && c % (CHUNKS / 2) < INF / CHUNK && code == ask(&w->a, base + CHUNK - 1)) {
        if (code != w->constant) {
            fill(f, w->want, 0, CHUNK, code);
            w->constant = code;
            XXH128_canonicalFromHash(&w->constant_hash, XXH3_128bits(w->want, w->bytes));
        }
        w->s->hash[c] = w->constant_hash;
        return;
    }
    base += (uint32_t)(report_random(&w->seed) % (CHUNK - part + 1)) & ~1u;
    (void)expect(&w->a, base, part, w->want, 0);
    if (!judge_only) {
        for (uint32_t i = 0; i < part; i++) {
            w->in[i] = base + i;
        }
        ask_some(w, part);
        compare(w, part);
    }
    if (w->s->hash != NULL) {
        XXH128_canonicalFromHash(&w->s->hash[c], XXH3_128bits(w->want, w->bytes));
    }
}

static void *work(void *arg)
{
    worker *w = arg;
    const options *o = w->s->o;

    w->bytes = (size_t)CHUNK / 8 * w->s->f->word_bits;
    w->in = need(CHUNK, sizeof *w->in);
    w->out = need(w->bytes, 1);
    w->want = need(w->bytes, 1);
    w->constant = UINT32_MAX;
    w->seed = w->s->first;
    asker_make(&w->a, w->s->f, &w->s->rule);
    if (!o->judge_digests) {
        open_contexts(w);
    }
    if (o->steps && w->id + 1 == o->threads && w->error[0] == '\0') {
        steps(w);
    }
    for (uint32_t c = w->s->first + w->id * o->shares; c < CHUNKS && w->error[0] == '\0';
         c += o->threads * o->shares) {
        take_chunk(w, c);
    }
    for (unsigned i = 0; i < ISAS; i++) {
        ng_ctx_destroy(w->ctx[i]);
    }
    asker_free(&w->a);
    free(w->in);
    free(w->out);
    free(w->want);
    return NULL;
}

static void gather(sweep *s, const worker *w)
{
    s->bad += w->bad;
    s->judged += w->judged;
    s->inputs += w->inputs;
    s->used |= w->used;
    if (w->first_bad[0] != '\0') {
        printf("  MISMATCH %s\n", w->first_bad);
    }
    if (w->error[0] != '\0') {
        printf("  ERROR %s -> %s\n", w->s->f->name, w->error);
        s->failed = true;
    }
}

static void run_workers(sweep *s)
{
    worker *w = need(s->o->threads, sizeof *w);
    asker a;

    asker_make(&a, s->f, &s->rule);
    check_nans(&a);
    asker_free(&a);
    for (unsigned t = 0; t < s->o->threads; t++) {
        w[t].s = s;
        w[t].id = t;
        if (t + 1 == s->o->threads) {
            (void)work(&w[t]); /* the calling thread is the last one */
        } else if (pthread_create(&w[t].thread, NULL, work, &w[t]) != 0) {
            fprintf(stderr, "pthread_create failed\n");
            exit(2);
        }
    }
    for (unsigned t = 0; t < s->o->threads; t++) {
        if (t + 1 < s->o->threads) {
            (void)pthread_join(w[t].thread, NULL);
        }
        gather(s, &w[t]);
    }
    free(w);
}

/* ---- cases ---- */

static void digest_text(const XXH128_canonical_t *hash, char text[33])
{
    XXH128_canonical_t whole;

    XXH128_canonicalFromHash(&whole, XXH3_128bits(hash, CHUNKS * sizeof *hash));
    for (size_t i = 0; i < sizeof whole.digest; i++) {
        snprintf(text + 2 * i, 3, "%02x", whole.digest[i]);
    }
}

static const char *published_digest(const sweep *s)
{
    for (const published *p = table; p->to != NULL; p++) {
        if (!s->rule.nan_keep && strcmp(p->to, s->f->name) == 0 &&
            strcmp(p->round, judge_round_name[s->rule.round]) == 0 &&
            strcmp(p->overflow, judge_overflow_name[s->rule.overflow]) == 0) {
            return p->digest;
        }
    }
    return "none";
}

/* A digest against the published one, or into the table. Returns whether it is wrong. */
static bool report_digest(const sweep *s)
{
    char digest[33];
    bool same;

    digest_text(s->hash, digest);
    same = strcmp(digest, published_digest(s)) == 0;
    if (s->o->judge_digests && !s->o->check) {
        printf("SWEEP(\"%s\", \"%s\", \"%s\", \"%s\")\n", s->f->name,
               judge_round_name[s->rule.round], judge_overflow_name[s->rule.overflow], digest);
        return false;
    }
    if (!same && (s->o->check || !s->rule.nan_keep)) {
        printf("  MISMATCH digest of %s %s %s: %s, published %s\n", s->f->name,
               judge_round_name[s->rule.round], judge_overflow_name[s->rule.overflow], digest,
               published_digest(s));
        return true;
    }
    return false;
}

static void print_isas(uint32_t mask)
{
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
        if ((mask & bit) != 0) {
            printf(" %s", ng_isa_name(bit));
        }
    }
}

static bool run_case(sweep *s)
{
    double begin = seconds();
    bool wrong;

    if (s->o->judge_digests || (s->o->shares == 1 && s->o->part == CHUNK)) {
        s->hash = need(CHUNKS, sizeof *s->hash);
    }
    run_workers(s);
    wrong = s->bad != 0 || s->failed;
    if (s->hash != NULL && !wrong) {
        wrong = report_digest(s);
    }
    if (s->o->verbose) {
        printf("%s %s %s%s:", s->f->name, judge_round_name[s->rule.round],
               judge_overflow_name[s->rule.overflow], s->rule.nan_keep ? " keep" : "");
        print_isas(s->used);
        printf(", %llu inputs, %llu judged, %llu mismatches, %.1f s\n",
               (unsigned long long)s->inputs, (unsigned long long)s->judged,
               (unsigned long long)s->bad, seconds() - begin);
    }
    fflush(stdout);
    free(s->hash);
    s->hash = NULL;
    return wrong;
}

static bool wanted(const char *asked, const char *name)
{
    return asked == NULL || strcmp(asked, name) == 0;
}

/* Every case that the options leave. */
static int run_cases(const options *o)
{
    uint64_t inputs = 0, judged = 0;
    uint32_t used = 0;
    unsigned cases = 0, wrong = 0, number = 0;

    for (size_t i = 0; i < JUDGE_FORMATS; i++) {
        for (unsigned r = 0; r < JUDGE_SR; r++) {
            for (unsigned v = 0; v < JUDGE_OVERFLOWS; v++) {
                const judge_format *f = &judge_formats[i];
                sweep s = { .o = o, .f = f };

                s.rule = (judge_rule){ (judge_round)r, (judge_overflow)v, o->nan_keep,
                                       JUDGE_NAN_MAX };
                s.first = (o->share + number++ * 997) % o->shares;
                /* f32: every input is a step of its own. inf is refused without Inf and NaN. */
                if (f->man_bits == 23 || (v == JUDGE_OVERFLOW_INF && !judge_has_nan(f)) ||
                    !wanted(o->target, f->name) || !wanted(o->round, judge_round_name[r]) ||
                    !wanted(o->overflow, judge_overflow_name[v])) {
                    continue;
                }
                cases++;
                wrong += run_case(&s) ? 1 : 0;
                inputs += s.inputs;
                judged += s.judged;
                used |= s.used;
            }
        }
    }
    if (cases == 0) {
        fprintf(stderr, "sweep: no such case\n");
        return 2;
    }
    if (o->judge_digests && !o->check) {
        return wrong != 0;
    }
    if (!o->judge_digests && used == 0 && wrong == 0) {
        printf("skipped: the ISAs asked for have no kernel for these conversions\n");
        return REPORT_SKIP;
    }
    printf("sweep: %u cases, %u wrong", cases, wrong);
    if (o->judge_digests) {
        printf(": the judge's digests against the published ones\n");
    } else {
        printf(", %llu inputs, %llu of them asked one by one, by", (unsigned long long)inputs,
               (unsigned long long)judged);
        print_isas(used);
        printf("\n");
    }
    return wrong != 0;
}

/* ---- command line ---- */

static bool parse_isas(const char *list, uint32_t *mask)
{
    char text[100];

    *mask = 0;
    snprintf(text, sizeof text, "%s", list);
    for (char *name = strtok(text, ","); name != NULL; name = strtok(NULL, ",")) {
        uint32_t bit = 1;

        while (bit != 0 && (ng_isa_name(bit) == NULL || strcmp(ng_isa_name(bit), name) != 0)) {
            bit <<= 1;
        }
        if (bit == 0) {
            return false;
        }
        *mask |= bit;
    }
    return *mask != 0;
}

static bool parse_flag(options *o, const char *name)
{
    if (strcmp(name, "--judge-digests") == 0) {
        o->judge_digests = true;
    } else if (strcmp(name, "--check") == 0) {
        o->check = true;
    } else if (strcmp(name, "--steps") == 0) {
        o->steps = true;
    } else if (strcmp(name, "-v") == 0) {
        o->verbose = true;
    } else {
        return false;
    }
    return true;
}

static bool parse_value(options *o, const char *name, const char *value)
{
    if (strcmp(name, "--target") == 0) {
        o->target = value;
    } else if (strcmp(name, "--round") == 0) {
        o->round = value;
    } else if (strcmp(name, "--overflow") == 0) {
        o->overflow = value;
    } else if (strcmp(name, "--nan-sign") == 0) {
        o->nan_keep = strcmp(value, "keep") == 0;
        return o->nan_keep || strcmp(value, "clear") == 0;
    } else if (strcmp(name, "--isa") == 0) {
        return parse_isas(value, &o->isas);
    } else if (strcmp(name, "--share") == 0) {
        return sscanf(value, "%u/%u", &o->share, &o->shares) == 2 && o->shares != 0 &&
               o->shares <= CHUNKS && o->share < o->shares;
    } else if (strcmp(name, "--part") == 0) {
        o->part = (uint32_t)strtoul(value, NULL, 10);
        return o->part >= 2 && o->part <= CHUNK && o->part % 2 == 0;
    } else if (strcmp(name, "--threads") == 0) {
        o->threads = (unsigned)strtoul(value, NULL, 10);
        return o->threads != 0 && o->threads <= 1024;
    } else if (strcmp(name, "--judge") == 0) {
        o->judge_every = (uint32_t)strtoul(value, NULL, 10);
    } else {
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    const char *wrong = judge_self_test();
    options o = { .isas = UINT32_MAX, .shares = 1, .part = CHUNK, .threads = 1 };

    if (wrong != NULL) {
        printf("judge: %s\n", wrong);
        return 1;
    }
    for (int i = 1; i < argc; i++) {
        if (parse_flag(&o, argv[i])) {
            continue;
        }
        if (i + 1 >= argc || !parse_value(&o, argv[i], argv[i + 1])) {
            fprintf(stderr, "sweep: %s: unknown, or without its value\n", argv[i]);
            return 2;
        }
        i++;
    }
    o.isas &= ng_isa_available();
    if (o.isas == 0) {
        printf("skipped: the ISAs asked for are not here\n");
        return REPORT_SKIP;
    }
    if (o.judge_digests) {
        o.share = 0;
        o.shares = 1;
        o.part = CHUNK;
    }
    return run_cases(&o);
}

#endif
