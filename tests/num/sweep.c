/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All 2^32 FP32 inputs through ng_convert, each compared with docs/numerics.md section 2.
 *
 *   sweep [--target F] [--round R] [--overflow O] [--nan-sign clear|keep] [--isa NAME]
 *         [--shard i/n] [--threads T] [--judge N] [--chunks FILE]
 *   sweep --merge FILE ...
 *
 * Rounding is monotone, so a conversion is a staircase over the FP32 patterns of one sign. The
 * MPFR judge finds every step by bisection: the smallest pattern that gets the next code.
 * Between two steps the code is constant, so the table of steps is the judge's answer for all
 * inputs, and comparing with it is as fast as memcmp. --judge N also asks the judge itself
 * about every N-th input.
 *
 * Digest: XXH3-128 of the XXH3-128 values (canonical, 16 bytes) of the chunks' output bytes, in
 * chunk order; a chunk is 2^20 inputs. --chunks writes a shard's 16-byte values to a file;
 * --merge takes such files in shard order and prints the digest of the whole.
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

#define CHUNK  (UINT32_C(1) << 20)
#define CHUNKS 4096u

static const ng_round library_round[JUDGE_ROUNDS] = {
    NG_ROUND_TIES_TO_EVEN,    NG_ROUND_TIES_TO_AWAY,    NG_ROUND_TOWARD_ZERO,
    NG_ROUND_TOWARD_POSITIVE, NG_ROUND_TOWARD_NEGATIVE, NG_ROUND_TO_ODD,
    NG_ROUND_STOCHASTIC
};
static const ng_overflow library_overflow[JUDGE_OVERFLOWS] = { NG_OVERFLOW_INF,
                                                               NG_OVERFLOW_SATURATE,
                                                               NG_OVERFLOW_SATURATE_KEEP_INF };

/* From this pattern up to the next step the result is `code`. */
typedef struct step {
    uint32_t from;
    uint32_t code;
} step;

typedef struct stairs {
    step *at;
    size_t n;
    size_t room;
} stairs;

typedef struct sweep {
    const judge_format *f;
    judge_rule rule;
    stairs stairs;
    uint32_t isa_mask;
    uint32_t first, last; /* chunks [first, last) */
    unsigned threads;
    uint32_t judge_every; /* 0: never */
    XXH128_canonical_t *hash;
} sweep;

typedef struct worker {
    const sweep *s;
    unsigned id;
    pthread_t thread;
    uint64_t bad;
    uint64_t judged;
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

typedef struct asker {
    judge *j;
    judge_num x;
    const judge_format *f32;
    const judge_format *to;
    const judge_rule *rule;
} asker;

static uint32_t ask(asker *a, uint32_t pattern)
{
    uint32_t code = 0;

    judge_decode(a->f32, pattern, &a->x);
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

static void add_step(stairs *s, uint32_t from, uint32_t code)
{
    if (s->n == s->room) {
        s->room = s->room == 0 ? 1024 : 2 * s->room;
        s->at = realloc(s->at, s->room * sizeof *s->at);
        if (s->at == NULL) {
            fprintf(stderr, "out of memory\n");
            exit(2);
        }
    }
    s->at[s->n++] = (step){ from, code };
}

/* The steps of the finite patterns of one sign, then Inf, then NaN. */
static void climb(asker *a, stairs *s, uint32_t sign)
{
    const uint64_t end = (uint64_t)sign + 0x7F800000; /* Inf */
    uint64_t at = sign;
    uint64_t length = 1;

    while (at < end) {
        uint32_t code = ask(a, (uint32_t)at);
        uint64_t low = at, high;
        uint64_t leap = length;

        add_step(s, (uint32_t)at, code);
        /* Leap while the code stays, then halve: low has the code, high has another. */
        for (;;) {
            high = low + leap;
            if (high >= end) {
                high = end;
                if (ask(a, (uint32_t)end - 1) == code) {
                    low = end - 1;
                }
                break;
            }
            if (ask(a, (uint32_t)high) != code) {
                break;
            }
            low = high;
            leap *= 2;
        }
        while (high - low > 1) {
            uint64_t middle = low + (high - low) / 2;

            if (ask(a, (uint32_t)middle) == code) {
                low = middle;
            } else {
                high = middle;
            }
        }
        length = high - at;
        at = high;
    }
    add_step(s, (uint32_t)end, ask(a, (uint32_t)end));
    add_step(s, (uint32_t)end + 1, ask(a, (uint32_t)end + 1));
    if (ask(a, (uint32_t)end + 1) != ask(a, sign | 0x7FFFFFFF) ||
        ask(a, (uint32_t)end + 1) != ask(a, sign | 0x7FC00000)) {
        fprintf(stderr, "judge: NaNs differ\n");
        exit(2);
    }
}

/* The bytes that a chunk must become. */
static void expect(const sweep *s, uint32_t chunk, uint8_t *bytes)
{
    uint32_t base = chunk * CHUNK;
    size_t low = 0, high = s->stairs.n;

    while (high - low > 1) { /* the last step that is not above the base */
        size_t middle = low + (high - low) / 2;

        if (s->stairs.at[middle].from <= base) {
            low = middle;
        } else {
            high = middle;
        }
    }
    for (uint32_t i = 0; i < CHUNK; low++) {
        uint32_t code = s->stairs.at[low].code;
        uint64_t until = low + 1 < s->stairs.n ? s->stairs.at[low + 1].from : UINT64_C(1) << 32;
        uint32_t stop = until - base < CHUNK ? (uint32_t)(until - base) : CHUNK;

        switch (s->f->word_bits) {
        case 4:
            for (; i < stop; i++) {
                bytes[i / 2] =
                    (uint8_t)(i % 2 == 0 ? code : (uint32_t)bytes[i / 2] | code << 4);
            }
            break;
        case 8:
            memset(bytes + i, (int)code, stop - i);
            i = stop;
            break;
        case 16:
            for (; i < stop; i++) {
                ((uint16_t *)(void *)bytes)[i] = (uint16_t)code;
            }
            break;
        default:
            for (; i < stop; i++) {
                ((uint32_t *)(void *)bytes)[i] = code;
            }
            break;
        }
    }
}

static uint32_t element(const judge_format *f, const uint8_t *bytes, uint32_t i)
{
    switch (f->word_bits) {
    case 4: return (uint32_t)bytes[i / 2] >> (i % 2 * 4) & 0xF;
    case 8: return bytes[i];
    case 16: return ((const uint16_t *)(const void *)bytes)[i];
    default: return ((const uint32_t *)(const void *)bytes)[i];
    }
}

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

static void *work(void *arg)
{
    worker *w = arg;
    const sweep *s = w->s;
    size_t bytes = (size_t)CHUNK / 8 * s->f->word_bits;
    uint32_t *in = need(CHUNK, sizeof *in);
    uint8_t *out = need(bytes, 1);
    uint8_t *want = need(bytes, 1);
    ng_ctx_config config = { 0 };
    ng_convert_op op = { sizeof op, { 0 } };
    int64_t dim = CHUNK;
    ng_ctx *ctx = NULL;
    ng_tensor src, dst;
    asker a;

    asker_make(&a, s->f, &s->rule);
    config.size = sizeof config;
    config.isa_mask = s->isa_mask;
    op.cast.round = library_round[s->rule.round];
    op.cast.overflow = library_overflow[s->rule.overflow];
    op.cast.nan_sign = s->rule.nan_keep ? NG_NAN_SIGN_KEEP : NG_NAN_SIGN_CLEAR;
    if (ng_ctx_create(&config, &ctx) != NG_OK ||
        ng_tensor_init(&src, NG_F32, in, 1, &dim) != NG_OK ||
        ng_tensor_init(&dst, ng_format_find(s->f->name), out, 1, &dim) != NG_OK) {
        snprintf(w->error, sizeof w->error, "no context or tensor");
    }
    for (uint32_t c = s->first + w->id; c < s->last && w->error[0] == '\0'; c += s->threads) {
        uint32_t base = c * CHUNK;
        ng_status status;

        for (uint32_t i = 0; i < CHUNK; i++) {
            in[i] = base + i;
        }
        memset(out, 0xA5, bytes);
        status = ng_convert(ctx, &op, &src, &dst);
        if (status != NG_OK) {
            snprintf(w->error, sizeof w->error, "%s: %.150s", ng_status_name(status),
                     ng_ctx_message(ctx));
            break;
        }
        XXH128_canonicalFromHash(&s->hash[c - s->first], XXH3_128bits(out, bytes));
        expect(s, c, want);
        if (memcmp(out, want, bytes) != 0) {
            for (uint32_t i = 0; i < CHUNK; i++) {
                if (element(s->f, out, i) != element(s->f, want, i)) {
                    note(w, base + i, element(s->f, out, i), element(s->f, want, i), "steps");
                }
            }
        }
        if (s->judge_every != 0) {
            uint32_t skip =
                (uint32_t)((s->judge_every - (uint64_t)base % s->judge_every) % s->judge_every);

            for (uint64_t i = skip; i < CHUNK; i += s->judge_every) {
                uint32_t code = ask(&a, base + (uint32_t)i);

                w->judged++;
                if (element(s->f, out, (uint32_t)i) != code) {
                    note(w, base + (uint32_t)i, element(s->f, out, (uint32_t)i), code, "judge");
                }
            }
        }
    }
    ng_ctx_destroy(ctx);
    asker_free(&a);
    free(in);
    free(out);
    free(want);
    return NULL;
}

static void print_digest(const XXH128_canonical_t *hash, size_t n)
{
    XXH128_canonical_t whole;

    XXH128_canonicalFromHash(&whole, XXH3_128bits(hash, n * sizeof *hash));
    for (size_t i = 0; i < sizeof whole.digest; i++) {
        printf("%02x", whole.digest[i]);
    }
}

static int run(sweep *s, const char *chunk_file)
{
    worker *w = need(s->threads, sizeof *w);
    size_t chunks = s->last - s->first;
    double begin = seconds();
    uint64_t bad = 0, judged = 0;
    bool failed = false;
    asker a;

    asker_make(&a, s->f, &s->rule);
    s->stairs.n = 0;
    climb(&a, &s->stairs, 0);
    climb(&a, &s->stairs, 0x80000000);
    asker_free(&a);
    s->hash = need(chunks, sizeof *s->hash);
    for (unsigned t = 0; t < s->threads; t++) {
        w[t].s = s;
        w[t].id = t;
        if (t + 1 == s->threads) {
            (void)work(&w[t]); /* the calling thread is the last one */
        } else if (pthread_create(&w[t].thread, NULL, work, &w[t]) != 0) {
            fprintf(stderr, "pthread_create failed\n");
            exit(2);
        }
    }
    for (unsigned t = 0; t < s->threads; t++) {
        if (t + 1 < s->threads) {
            (void)pthread_join(w[t].thread, NULL);
        }
        bad += w[t].bad;
        judged += w[t].judged;
        if (w[t].first_bad[0] != '\0') {
            printf("  MISMATCH %s\n", w[t].first_bad);
        }
        if (w[t].error[0] != '\0') {
            printf("  ERROR %s\n", w[t].error);
            failed = true;
        }
    }
    printf("sweep %s %s %s%s: %llu inputs, %llu mismatches, digest ", s->f->name,
           judge_round_name[s->rule.round], judge_overflow_name[s->rule.overflow],
           s->rule.nan_keep ? " keep" : "", (unsigned long long)chunks * CHUNK,
           (unsigned long long)bad);
    print_digest(s->hash, chunks);
    if (s->judge_every != 0) {
        printf(", %llu judged", (unsigned long long)judged);
    }
    printf(", %zu steps, %.1f s\n", s->stairs.n, seconds() - begin);
    fflush(stdout);
    if (chunk_file != NULL) {
        FILE *file = fopen(chunk_file, "wb");

        if (file == NULL || fwrite(s->hash, sizeof *s->hash, chunks, file) != chunks ||
            fclose(file) != 0) {
            fprintf(stderr, "cannot write %s\n", chunk_file);
            exit(2);
        }
    }
    free(s->hash);
    free(s->stairs.at);
    memset(&s->stairs, 0, sizeof s->stairs);
    free(w);
    return bad != 0 || failed;
}

static int merge(int n, char **name)
{
    XXH128_canonical_t *hash = need(CHUNKS + 1, sizeof *hash);
    size_t chunks = 0;

    for (int i = 0; i < n; i++) {
        FILE *file = fopen(name[i], "rb");

        if (file == NULL) {
            fprintf(stderr, "cannot read %s\n", name[i]);
            exit(2);
        }
        chunks += fread(hash + chunks, sizeof *hash, CHUNKS + 1 - chunks, file);
        fclose(file);
    }
    printf("merged: %llu inputs, digest ", (unsigned long long)chunks * CHUNK);
    print_digest(hash, chunks);
    printf("\n");
    free(hash);
    return chunks != CHUNKS;
}

static unsigned find_name(const char *const *names, unsigned n, const char *text)
{
    for (unsigned i = 0; i < n; i++) {
        if (strcmp(names[i], text) == 0) {
            return i;
        }
    }
    fprintf(stderr, "sweep: %s is not known\n", text);
    exit(2);
}

int main(int argc, char **argv)
{
    static const char *const defaults[] = { "e4m3fn", "e5m2", "e2m1", "bf16" };
    static const char *const signs[] = { "clear", "keep" };
    const char *target = NULL, *overflow = NULL, *chunk_file = NULL;
    const char *wrong = judge_self_test();
    unsigned shard = 0, shards = 1;
    sweep s = { 0 };
    int result = 0;

    s.threads = 1;
    if (wrong != NULL) {
        printf("judge: %s\n", wrong);
        return 1;
    }
    if (argc > 1 && strcmp(argv[1], "--merge") == 0) {
        return merge(argc - 2, argv + 2);
    }
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(argv[i], "--target") == 0) {
            target = value;
        } else if (strcmp(argv[i], "--round") == 0) {
            s.rule.round = (judge_round)find_name(judge_round_name, JUDGE_SR, value);
        } else if (strcmp(argv[i], "--overflow") == 0) {
            overflow = value;
        } else if (strcmp(argv[i], "--nan-sign") == 0) {
            s.rule.nan_keep = find_name(signs, 2, value) == 1;
        } else if (strcmp(argv[i], "--isa") == 0) {
            for (uint32_t bit = 1; bit != 0; bit <<= 1) {
                const char *name = ng_isa_name(bit);

                if (name != NULL && strcmp(name, value) == 0) {
                    s.isa_mask = bit;
                }
            }
            if (s.isa_mask == 0 || (s.isa_mask & ng_isa_available()) == 0) {
                printf("skipped: no ISA %s here\n", value);
                return REPORT_SKIP;
            }
        } else if (strcmp(argv[i], "--shard") == 0) {
            if (sscanf(value, "%u/%u", &shard, &shards) != 2 || shards == 0 ||
                shards > CHUNKS || shard >= shards) {
                fprintf(stderr, "sweep: --shard i/n, i from 0\n");
                return 2;
            }
        } else if (strcmp(argv[i], "--threads") == 0) {
            s.threads = (unsigned)strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--judge") == 0) {
            s.judge_every = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--chunks") == 0) {
            chunk_file = value;
        } else {
            fprintf(stderr, "sweep: unknown option %s\n", argv[i]);
            return 2;
        }
    }
    if (s.threads == 0 || s.threads > 1024) {
        s.threads = 1;
    }
    s.first = (uint32_t)((uint64_t)CHUNKS * shard / shards);
    s.last = (uint32_t)((uint64_t)CHUNKS * (shard + 1) / shards);
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++) {
        const char *name = target != NULL ? target : defaults[i];

        s.f = judge_find(name);
        if (s.f == NULL) {
            fprintf(stderr, "sweep: no format %s\n", name);
            return 2;
        }
        if (s.f->man_bits == 23) {
            printf("skipped: every FP32 input is a step of its own for f32\n");
            return REPORT_SKIP;
        }
        /* The narrow formats are used with sat; the wide ones as IEEE 754. */
        s.rule.overflow =
            overflow != NULL
                ? (judge_overflow)find_name(judge_overflow_name, JUDGE_OVERFLOWS, overflow)
            : s.f->bits <= 8 ? JUDGE_OVERFLOW_SAT
                             : JUDGE_OVERFLOW_INF;
        if (s.rule.overflow == JUDGE_OVERFLOW_INF && !judge_has_nan(s.f)) {
            printf("skipped: %s refuses overflow=inf\n", name);
            return REPORT_SKIP;
        }
        result |= run(&s, chunk_file);
        if (target != NULL) {
            break;
        }
    }
    return result;
}

#endif
