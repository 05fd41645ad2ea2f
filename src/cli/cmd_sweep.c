/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ngauge sweep: all 2^32 FP32 patterns to a format, in chunks of 2^20, as one digest: XXH3-128
 * of the XXH3-128 values (canonical, 16 bytes) of the chunks' output bytes, in chunk order.
 * sweeps.inc publishes digests that a judge outside the library made. The same of elementary
 * functions, FP32 to FP32: functions.inc. docs/cli.md.
 */
#define XXH_INLINE_ALL
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "cli.h"

static const char help[] =
    "usage: ngauge sweep --to F|all [--round R|all] [--overflow O|all] [OPTIONS]\n"
    "       ngauge sweep --function F|all [--choice cr|sleef] [OPTIONS]\n"
    "       ngauge sweep --merge STATE ...   the digest of shards that were swept apart\n"
    "       ngauge sweep --list              the published digests\n\n"
    "Converts all 2^32 FP32 patterns, or computes a function of each, and prints the digest "
    "of\n"
    "the codes.\n\n"
    "  --to F           target format; all: every one but f32\n"
    "  --round R        rne (default) rna rtz rup rdn rto sr; all: all but sr\n"
    "  --overflow O     inf sat sat_keep_inf; default sat up to 8 bits, inf above; all: those\n"
    "                   that the format allows\n"
    "  --nan-sign S     clear (default) or keep\n"
    "  --nan-to T       max (default) or zero: what a NaN becomes where there is none\n"
    "  --word W         sr: the random word of every element\n"
    "  --sr V, --sr-bits N, --sr-take low|high\n"
    "                   sr: variant a (default) b c; bits used (32), and which of the word\n"
    "  --function F     exp exp2 log tanh sigmoid reciprocal rsqrt, or all\n"
    "  --choice C       cr (default) or sleef: whose bits\n"
    "  --check          compare with the published digest; 1 if it differs\n"
    "  --both           compare with the reference too, and name the first input that differs\n"
    "  --chunks A:B     only the chunks A to B - 1 of the 4096\n"
    "  --shard I/N      only the I-th (from 0) of N equal parts of them\n"
    "  --state FILE     keep the chunks' digests in FILE, and go on from what it holds; with\n"
    "                   several cases, one file a case: FILE.F-R-O\n"
    "and the options of every command: ngauge --help\n";

enum {
    CHUNK = 1 << 20,
    CHUNKS = 4096,
    BATCH = 4 /* chunks per worker between two looks at the clock and the state */
};

struct published {
    const char *to, *round, *overflow, *digest;
};
static const struct published published[] = {
#define SWEEP(to, round, overflow, digest) { to, round, overflow, digest },
#include "sweeps.inc"
#undef SWEEP
};

struct published_function {
    const char *function, *choice, *digest;
};
static const struct published_function published_functions[] = {
#define FUNCTION(name, choice, digest) { name, choice, digest },
#include "functions.inc"
#undef FUNCTION
};

struct options {
    struct cli cli;
    const char *to, *round, *overflow, *state, *function;
    ng_function_kind choice;
    ng_cast cast; /* without round and overflow */
    uint32_t word;
    bool has_choice, has_word, has_sr, check, both, merge, list;
    uint32_t first, last; /* chunks */
    uint32_t shard, shards;
};

/* What one worker needs. */
struct lane {
    ng_ctx *ctx, *ref;
    uint32_t *in;
    unsigned char *out, *want;
    bool failed;
};

/* One case. */
struct sweep {
    const struct options *o;
    const ng_format_spec *to;
    ng_convert_op op;
    ng_elementary_op elementary; /* size 0: a conversion */
    char key[200];               /* the case as text: what a state belongs to */
    const uint32_t *words;
    XXH128_canonical_t hash[CHUNKS];
    bool done[CHUNKS];
    uint32_t batch[4096 * BATCH];
    struct lane *lane;
    size_t lanes;
    bool differs; /* --both: where and how, the lowest input of those found */
    uint32_t input, got, want;
    char text[33];
    char kernel[64];
    uint32_t resumed;
    double seconds;
};

/* ---- Cases as text. ---- */

static const char *choice_text(ng_function_kind kind)
{
    return kind == NG_FUNCTION_SLEEF ? "sleef" : "cr";
}

static void function_key(const char *function, const char *choice, char *key, size_t bytes)
{
    snprintf(key, bytes, "function=%s choice=%s", function, choice);
}

static void make_key(struct sweep *s)
{
    if (s->elementary.size) {
        function_key(ng_function_name(s->elementary.function),
                     choice_text(s->elementary.choice.kind), s->key, sizeof s->key);
        return;
    }
    const ng_cast *c = &s->op.cast;
    const int n =
        snprintf(s->key, sizeof s->key, "to=%s round=%s overflow=%s nan_sign=%s nan_to=%s",
                 s->to->text, round_text(c->round), overflow_text(c->overflow),
                 c->nan_sign ? "keep" : "clear", c->nan_to ? "zero" : "max");
    if (c->round == NG_ROUND_STOCHASTIC)
        snprintf(s->key + n, sizeof s->key - (size_t)n,
                 " sr=%c sr_bits=%u sr_take=%s word=0x%08x", "abc"[c->sr],
                 (unsigned)c -> sr_bits, c -> sr_take ? "high" : "low", (unsigned)s->o->word);
}

/* Who computed: the second line of a state. */
static void make_by(const struct options *o, char *text, size_t bytes)
{
    size_t n = (size_t)snprintf(text, bytes, "by%s", o->both ? " both ref and" : "");
    for (uint32_t bit = 1; bit; bit <<= 1)
        if (ng_isa_name(bit) && (o->cli.isa_mask ? o->cli.isa_mask : UINT32_MAX) & bit &&
            ng_isa_available() & bit && n < bytes)
            n += (size_t)snprintf(text + n, bytes - n, " %s", ng_isa_name(bit));
}

static const char *find_published(const char *key)
{
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        const struct published *p = &published[i];
        char text[200];
        snprintf(text, sizeof text, "to=%s round=%s overflow=%s nan_sign=clear nan_to=max",
                 p->to, p->round, p->overflow);
        if (strcmp(text, key) == 0)
            return p->digest;
    }
    for (size_t i = 0; i < sizeof published_functions / sizeof published_functions[0]; i++) {
        const struct published_function *p = &published_functions[i];
        char text[200];
        function_key(p->function, p->choice, text, sizeof text);
        if (strcmp(text, key) == 0)
            return p->digest;
    }
    return NULL;
}

static void hash_text(const XXH128_canonical_t *h, char text[33])
{
    for (size_t i = 0; i < sizeof h->digest; i++)
        snprintf(text + 2 * i, 3, "%02x", h->digest[i]);
}

static bool parse_hash(const char *text, XXH128_canonical_t *h)
{
    if (strspn(text, "0123456789abcdef") != 2 * sizeof h->digest)
        return false;
    for (size_t i = 0; i < sizeof h->digest; i++) {
        const char two[3] = { text[2 * i], text[2 * i + 1], '\0' };
        h->digest[i] = (unsigned char)strtoul(two, NULL, 16);
    }
    return true;
}

/* The digest of the chunks [first, last). */
static void whole_text(const struct sweep *s, uint32_t first, uint32_t last, char text[33])
{
    XXH128_canonical_t whole;
    XXH128_canonicalFromHash(&whole,
                             XXH3_128bits(&s->hash[first], (last - first) * sizeof s->hash[0]));
    hash_text(&whole, text);
}

/* ---- States: two lines that name the case and who computed, then "CHUNK DIGEST" lines. ----
 */

struct state_head {
    char key[256], by[128];
};

static const char magic[] = "ng.sweep/1 version=";

static bool read_line(FILE *f, char *line, size_t bytes, bool *torn)
{
    *torn = false;
    if (!fgets(line, (int)bytes, f))
        return false;
    char *end = strchr(line, '\n');
    *torn = !end;
    if (end)
        *end = '\0';
    return true;
}

/* Read what a state holds into hash and done. *good: bytes up to the last whole line; 0: it is
 * empty. A last line without its end is what a killed process leaves: it does not count. */
static int state_read(FILE *f, const char *path, struct sweep *s, struct state_head *head,
                      long *good)
{
    char line[300], expected[64];
    bool torn;
    *good = 0;
    if (!read_line(f, line, sizeof line, &torn))
        return ferror(f) ? cli_fail(EXIT_FILE, "%s: %s", path, strerror(errno)) : 0;
    const int n = snprintf(expected, sizeof expected, "%s%s ", magic, ng_version());
    if (torn || strncmp(line, magic, sizeof magic - 1) != 0)
        return cli_fail(EXIT_FILE, "%s: is no state of ngauge sweep; wanted: first line %s...",
                        path, magic);
    if (strncmp(line, expected, (size_t)n) != 0)
        return cli_fail(EXIT_FILE, "%s: is of %.*s; wanted: version=%s", path,
                        (int)strcspn(line + 11, " "), line + 11, ng_version());
    snprintf(head->key, sizeof head->key, "%.255s", line + n);
    if (!read_line(f, line, sizeof line, &torn) || torn || strncmp(line, "by ", 3) != 0)
        return cli_fail(EXIT_FILE, "%s: line 2 does not say by whom", path);
    snprintf(head->by, sizeof head->by, "%.127s", line);
    *good = ftell(f);
    for (int at = 3; read_line(f, line, sizeof line, &torn) && !torn; at++) {
        XXH128_canonical_t h;
        char *end;
        const unsigned long c = strtoul(line, &end, 10);
        if (line[0] < '0' || line[0] > '9' || c >= CHUNKS || *end != ' ' ||
            !parse_hash(end + 1, &h) || end[33])
            return cli_fail(EXIT_FILE,
                            "%s: line %d is '%.60s'; wanted: a chunk below %d and its digest",
                            path, at, line, CHUNKS);
        if (s->done[c] && memcmp(&s->hash[c], &h, sizeof h) != 0)
            return cli_fail(EXIT_DIFFERS, "%s: line %d: chunk %lu has another digest before it",
                            path, at, c);
        s->hash[c] = h;
        s->done[c] = true;
        *good = ftell(f);
    }
    return 0;
}

/* A state as a stream; `make`: a new one where there is none. */
static int open_regular(const char *path, bool make, FILE **file)
{
    struct io_error e;
    const bool fresh = make && access(path, F_OK) && errno == ENOENT;
    if (!fresh && !io_regular(path, &e))
        return cli_file_error(&e);
    *file = fopen(path, fresh ? "w+b" : make ? "r+b" : "rb");
    return *file ? 0 : cli_fail(EXIT_FILE, "%s: cannot be opened: %s", path, strerror(errno));
}

/* Open a case's state, take over what it holds, and leave it ready for more. */
static int state_open(struct sweep *s, const char *path, FILE **file)
{
    struct state_head head;
    char by[128];
    long good = 0;
    make_by(s->o, by, sizeof by);
    int code = open_regular(path, true, file);
    if (code)
        return code;
    code = state_read(*file, path, s, &head, &good);
    if (!code && good && strcmp(head.key, s->key) != 0)
        code = cli_fail(EXIT_FILE, "%s: is a sweep %s; wanted: %s", path, head.key, s->key);
    if (!code && good && strcmp(head.by, by) != 0)
        code = cli_fail(EXIT_FILE, "%s: is '%s'; wanted: '%s'", path, head.by, by);
    if (!code &&
        (fflush(*file) || ftruncate(fileno(*file), good) || fseek(*file, good, SEEK_SET) ||
         (!good && fprintf(*file, "%s%s %s\n%s\n", magic, ng_version(), s->key, by) < 0) ||
         fflush(*file)))
        code = cli_fail(EXIT_FILE, "%s: %s", path, strerror(errno));
    for (uint32_t c = s->o->first; c < s->o->last && !code; c++)
        s->resumed += s->done[c];
    return code;
}

/* ---- Chunks. ---- */

static uint32_t code_at(const ng_format_spec *f, const unsigned char *bytes, size_t i)
{
    uint16_t h;
    uint32_t w;
    switch (f->store_bits) {
    case 4: return (uint32_t)bytes[i / 2] >> (i % 2 * 4) & 15;
    case 8: return bytes[i];
    case 16: memcpy(&h, bytes + 2 * i, sizeof h); return h;
    default: memcpy(&w, bytes + 4 * i, sizeof w); return w;
    }
}

static ng_status convert(const struct sweep *s, ng_ctx *ctx, uint32_t *in, unsigned char *out,
                         int64_t n)
{
    ng_tensor src, dst;
    ng_status status = ng_tensor_init(&src, NG_F32, in, 1, &n);
    if (!status)
        status = ng_tensor_init(&dst, s->to->format, out, 1, &n);
    if (status)
        return status;
    return s->elementary.size ? ng_elementary(ctx, &s->elementary, &src, &dst)
                              : ng_convert(ctx, &s->op, &src, &dst);
}

static size_t chunk_bytes(const struct sweep *s)
{
    return (size_t)CHUNK / 8 * s->to->store_bits;
}

/* The first of a chunk's inputs that a kernel and the reference take differently. Chunks of
 * one batch may differ at once, on several threads; each has its place in `found`. */
struct found {
    bool differs;
    uint32_t input, got, want;
};

struct batch {
    struct sweep *s;
    struct found found[4096 * BATCH];
};

static void one_chunk(void *arg, size_t i, size_t worker)
{
    struct batch *b = arg;
    struct sweep *s = b->s;
    struct lane *l = &s->lane[worker];
    const uint32_t c = s->batch[i];
    const size_t bytes = chunk_bytes(s);
    for (uint32_t e = 0; e < CHUNK; e++)
        l->in[e] = c * (uint32_t)CHUNK + e;
    l->failed |= convert(s, l->ctx, l->in, l->out, CHUNK) != NG_OK;
    XXH128_canonicalFromHash(&s->hash[c], XXH3_128bits(l->out, bytes));
    if (!s->o->both)
        return;
    l->failed |= convert(s, l->ref, l->in, l->want, CHUNK) != NG_OK;
    if (memcmp(l->out, l->want, bytes) == 0)
        return;
    uint32_t e = 0;
    while (code_at(s->to, l->out, e) == code_at(s->to, l->want, e))
        e++;
    b->found[i] =
        (struct found){ true, l->in[e], code_at(s->to, l->out, e), code_at(s->to, l->want, e) };
}

/* One batch: convert, look for differences, keep the digests. */
static int run_batch(struct sweep *s, struct batch *b, size_t n, FILE *state, const char *path)
{
    memset(b->found, 0, n * sizeof b->found[0]);
    cli_for_all(&s->o->cli, n, one_chunk, b);
    for (size_t i = 0; i < s->lanes; i++)
        if (s->lane[i].failed)
            return cli_fail(EXIT_INTERNAL, "%s: %s", s->key, ng_ctx_message(s->lane[i].ctx));
    for (size_t i = 0; i < n; i++) {
        const uint32_t c = s->batch[i];
        char text[33];
        if (b->found[i].differs) { /* chunks rise: the first found has the lowest input */
            s->differs = true;
            s->input = b->found[i].input;
            s->got = b->found[i].got;
            s->want = b->found[i].want;
            break;
        }
        s->done[c] = true;
        hash_text(&s->hash[c], text);
        if (state && fprintf(state, "%u %s\n", (unsigned)c, text) < 0)
            return cli_fail(EXIT_FILE, "%s: %s", path, strerror(errno));
    }
    return state && fflush(state) ? cli_fail(EXIT_FILE, "%s: %s", path, strerror(errno)) : 0;
}

static int run_chunks(struct sweep *s, FILE *state, const char *path)
{
    const size_t most = BATCH * s->lanes;
    struct batch *b = calloc(1, sizeof *b);
    struct progress progress;
    int code = b ? 0 : cli_fail(EXIT_INTERNAL, "out of memory");
    if (code)
        return code;
    b->s = s;
    progress_begin(&progress, &s->o->cli, s->to->text, (int64_t)s->o->last - s->o->first);
    for (uint32_t c = s->o->first; c < s->o->last && !code && !s->differs;) {
        size_t n = 0;
        for (; c < s->o->last && n < most; c++)
            if (!s->done[c])
                s->batch[n++] = c;
        if (n)
            code = run_batch(s, b, n, state, path);
        progress_at(&progress, (int64_t)c - s->o->first);
    }
    progress_end(&progress);
    free(b);
    return code;
}

/* ---- A case. ---- */

static void close_lanes(struct sweep *s)
{
    for (size_t i = 0; s->lane && i < s->lanes; i++) {
        ng_ctx_destroy(s->lane[i].ctx);
        ng_ctx_destroy(s->lane[i].ref);
        free(s->lane[i].in);
        free(s->lane[i].out);
        free(s->lane[i].want);
    }
    free(s->lane);
    s->lane = NULL;
}

static bool open_lanes(struct sweep *s)
{
    ng_ctx_config all = { .size = sizeof all, .isa_mask = s->o->cli.isa_mask };
    ng_ctx_config ref = { .size = sizeof ref, .isa_mask = NG_ISA_REF };
    s->lanes = s->o->cli.executor.parallel_for ? s->o->cli.executor.workers : 1;
    s->lane = calloc(s->lanes, sizeof *s->lane);
    for (size_t i = 0; s->lane && i < s->lanes; i++) {
        struct lane *l = &s->lane[i];
        l->in = malloc((size_t)CHUNK * sizeof *l->in);
        l->out = malloc(chunk_bytes(s));
        l->want = s->o->both ? malloc(chunk_bytes(s)) : NULL;
        if (!l->in || !l->out || (s->o->both && !l->want) || ng_ctx_create(&all, &l->ctx) ||
            ng_ctx_create(&ref, &l->ref))
            return false;
    }
    return s->lane != NULL;
}

static void case_path(const struct sweep *s, bool many, char *path, size_t bytes)
{
    if (many && s->elementary.size)
        snprintf(path, bytes, "%s.%s-%s", s->o->state, ng_function_name(s->elementary.function),
                 choice_text(s->elementary.choice.kind));
    else if (many)
        snprintf(path, bytes, "%s.%s-%s-%s", s->o->state, s->to->text,
                 round_text(s->op.cast.round), overflow_text(s->op.cast.overflow));
    else
        snprintf(path, bytes, "%s", s->o->state);
}

/* Does the library take the case at all? Asked of a few inputs, so that its message is seen. */
static int try_case(struct sweep *s)
{
    uint32_t in[2] = { 0, 0 };
    unsigned char out[sizeof in];
    const ng_status status = convert(s, s->o->cli.ctx, in, out, 2);
    return status ? cli_refused(&s->o->cli, status, "sweep") : 0;
}

static int compute(struct sweep *s, bool many)
{
    char path[4096] = "";
    FILE *state = NULL;
    const double begin = seconds_now();
    int code = try_case(s);
    if (!code && s->o->state) {
        case_path(s, many, path, sizeof path);
        code = state_open(s, path, &state);
    }
    if (!code && !open_lanes(s))
        code = cli_fail(EXIT_INTERNAL, "out of memory");
    if (!code)
        code = run_chunks(s, state, path);
    if (!code)
        snprintf(s->kernel, sizeof s->kernel, "%s", ng_ctx_kernel(s->lane[0].ctx));
    close_lanes(s);
    if (state && fclose(state) && !code)
        code = cli_fail(EXIT_FILE, "%s: %s", path, strerror(errno));
    s->seconds = seconds_now() - begin;
    if (!code && !s->differs)
        whole_text(s, s->o->first, s->o->last, s->text);
    return code;
}

static json_t *case_json(const struct sweep *s, const char *want)
{
    json_t *j =
        json_pack("{s:s,s:[i,i],s:s,s:s?,s:i,s:f,s:s?,s:s?,s:o}", "case", s->key, "chunks",
                  (int)s->o->first, (int)s->o->last, "kernel", s->kernel, "compared_with",
                  s->o->both ? "ref" : NULL, "resumed", (int)s->resumed, "seconds", s->seconds,
                  "digest", s->differs ? NULL : s->text, "published", want, "same",
                  want && !s->differs ? json_boolean(strcmp(want, s->text) == 0) : json_null());
    char input[16], got[16], wanted[16];
    if (s->differs) {
        snprintf(input, sizeof input, "0x%08x", (unsigned)s->input);
        snprintf(got, sizeof got, "0x%x", (unsigned)s->got);
        snprintf(wanted, sizeof wanted, "0x%x", (unsigned)s->want);
        json_object_set_new(
            j, "difference",
            json_pack("{s:s,s:s,s:s}", "input", input, "got", got, "want", wanted));
    }
    return j;
}

static void print_case(const struct sweep *s, const char *want, bool wrong)
{
    printf("%s, chunks %u:%u: ", s->key, (unsigned)s->o->first, (unsigned)s->o->last);
    if (s->differs) {
        const struct code_text input = code_text(NG_F32, s->input);
        const struct code_text got = code_text(s->to->format, s->got);
        const struct code_text ref = code_text(s->to->format, s->want);
        printf("FIRST DIFFERENCE at FP32 %s: %s gives %s, ref %s\n", input.text, s->kernel,
               got.text, ref.text);
        return;
    }
    printf("%s", s->text);
    if (want)
        printf("%s%s", wrong ? " DIFFERS from the published " : " as published",
               wrong ? want : "");
    if (s->o->both)
        printf(", equal to ref");
    if (s->kernel[0])
        printf(" (%s, %.1f s", s->kernel, s->seconds);
    if (s->resumed)
        printf("%s%u chunks from the state", s->kernel[0] ? ", " : " (", (unsigned)s->resumed);
    printf("%s\n", s->kernel[0] || s->resumed ? ")" : "");
    fflush(stdout);
}

/* Report a case; EXIT_DIFFERS if it is wrong. */
static int report(const struct sweep *s, json_t *list)
{
    const char *want = s->o->check ? find_published(s->key) : NULL;
    const bool wrong = s->differs || (want && strcmp(want, s->text) != 0);
    if (list)
        json_array_append_new(list, case_json(s, want));
    else
        print_case(s, want, wrong);
    return wrong ? EXIT_DIFFERS : EXIT_EQUAL;
}

/* ---- All cases. ---- */

static bool is_all(const char *text)
{
    return text && strcmp(text, "all") == 0;
}

static bool takes(const ng_format_spec *f, ng_overflow o)
{
    return o != NG_OVERFLOW_INF || f->has_inf || f->has_nan;
}

static struct sweep *new_case(const struct options *o, const ng_format_spec *to)
{
    struct sweep *s = calloc(1, sizeof *s);
    if (s) {
        s->o = o;
        s->to = to;
    } else {
        (void)cli_fail(EXIT_INTERNAL, "out of memory");
    }
    return s;
}

/* Compute, report and free a case that says what it is. */
static int run_case(struct sweep *s, bool many, json_t *list)
{
    make_key(s);
    int code = 0;
    if (s->o->check && !find_published(s->key))
        code =
            cli_fail(EXIT_USAGE, "--check: no digest is published for %s; see --list", s->key);
    if (!code)
        code = compute(s, many);
    if (!code)
        code = report(s, list);
    free(s);
    return code;
}

static int one_case(const struct options *o, const ng_format_spec *f, ng_round r, ng_overflow v,
                    const uint32_t *words, bool many, json_t *list)
{
    struct sweep *s = new_case(o, f);
    if (!s)
        return EXIT_INTERNAL;
    s->op = (ng_convert_op){ .size = sizeof s->op, .cast = o->cast };
    s->op.cast.round = r;
    s->op.cast.overflow = v;
    if (words)
        s->op.cast.random = (ng_random){ NG_RANDOM_EXTERNAL, words, CHUNK };
    return run_case(s, many, list);
}

/* Functions, FP32 to FP32. Any error ends it; a difference does not. */
static int function_cases(const struct options *o, json_t *list)
{
    int worst = 0;
    for (int i = 0; ng_function_name((ng_function)i); i++) {
        if (!is_all(o->function) && strcmp(o->function, ng_function_name((ng_function)i)) != 0)
            continue;
        struct sweep *s = new_case(o, ng_format_info(NG_F32));
        if (!s)
            return EXIT_INTERNAL;
        s->elementary = (ng_elementary_op){ .size = sizeof s->elementary,
                                            .function = (ng_function)i,
                                            .choice = { .kind = o->choice } };
        const int code = run_case(s, is_all(o->function), list);
        if (code > EXIT_DIFFERS)
            return code;
        worst |= code;
    }
    return worst;
}

/* The overflow rules of one format. Any error ends it; a difference does not. */
static int overflow_cases(const struct options *o, const ng_format_spec *f, ng_round r,
                          const uint32_t *words, json_t *list)
{
    const bool many = is_all(o->to) || is_all(o->round) || is_all(o->overflow);
    int worst = 0;
    for (int v = NG_OVERFLOW_INF; v <= NG_OVERFLOW_SATURATE_KEEP_INF; v++) {
        ng_overflow one = f->bits <= 8 ? NG_OVERFLOW_SATURATE : NG_OVERFLOW_INF;
        if (o->overflow && !is_all(o->overflow))
            (void)name_overflow(o->overflow, &one);
        if (is_all(o->overflow) ? !takes(f, (ng_overflow)v)
                                : v != (int)one || (is_all(o->to) && !takes(f, one)))
            continue;
        const int code = one_case(o, f, r, (ng_overflow)v, words, many, list);
        if (code > EXIT_DIFFERS)
            return code;
        worst |= code;
    }
    return worst;
}

static int all_cases(const struct options *o, const uint32_t *words, json_t *list)
{
    int worst = 0;
    if (o->function)
        return function_cases(o, list);
    for (size_t i = 0; ng_format_at(i); i++) {
        const ng_format_spec *f = ng_format_at(i);
        if (is_all(o->to) ? f->format == NG_F32 : strcmp(o->to, f->text) != 0)
            continue;
        for (int r = NG_ROUND_TIES_TO_EVEN; r <= NG_ROUND_STOCHASTIC; r++) {
            ng_round one = NG_ROUND_TIES_TO_EVEN;
            if (o->round && !is_all(o->round))
                (void)name_round(o->round, &one);
            if (is_all(o->round) ? r == NG_ROUND_STOCHASTIC : r != (int)one)
                continue;
            const int code = overflow_cases(o, f, (ng_round)r, words, list);
            if (code > EXIT_DIFFERS)
                return code;
            worst |= code;
        }
    }
    return worst;
}

static int finish(json_t *list, int code)
{
    if (!list || code > EXIT_DIFFERS) {
        json_decref(list);
        return code;
    }
    const int printed = cli_print_json(json_pack("{s:s,s:s,s:o}", "schema", "ng.report/1",
                                                 "version", ng_version(), "sweeps", list));
    return printed ? printed : code;
}

static int sweep_cases(struct options *o)
{
    uint32_t *words = NULL;
    int code = cli_open(&o->cli);
    if (!code && o->has_word) {
        words = malloc((size_t)CHUNK * sizeof *words);
        if (!words)
            code = cli_fail(EXIT_INTERNAL, "out of memory");
        for (size_t i = 0; words && i < CHUNK; i++)
            words[i] = o->word;
    }
    if (!code) {
        json_t *list = o->cli.json ? json_array() : NULL;
        code = finish(list, all_cases(o, words, list));
    }
    free(words);
    cli_close(&o->cli);
    return code;
}

/* ---- Merging. ---- */

static int merge_one(struct sweep *s, const char *path)
{
    struct state_head head = { "", "" };
    long good;
    FILE *f = NULL;
    int code = open_regular(path, false, &f);
    if (code)
        return code;
    code = state_read(f, path, s, &head, &good);
    fclose(f);
    if (!code && !good)
        code = cli_fail(EXIT_FILE, "%s: is empty; wanted: a state of ngauge sweep", path);
    if (!code && s->key[0] && strcmp(s->key, head.key) != 0)
        code = cli_fail(EXIT_FILE, "%s: is a sweep %s; wanted: %s, as the first", path,
                        head.key, s->key);
    if (!code)
        snprintf(s->key, sizeof s->key, "%.199s", head.key);
    return code;
}

static int merge_into(struct sweep *s, int n, char **path)
{
    const struct options *o = s->o;
    int code = 0;
    for (int i = 0; i < n && !code; i++)
        code = merge_one(s, path[i]);
    for (uint32_t c = o->first; c < o->last && !code; c++)
        if (!s->done[c])
            code =
                cli_fail(EXIT_FILE, "--merge: chunk %u is in none of the states", (unsigned)c);
    if (!code && o->check && !find_published(s->key))
        code =
            cli_fail(EXIT_USAGE, "--check: no digest is published for %s; see --list", s->key);
    return code;
}

static int merge(const struct options *o, int n, char **path)
{
    struct sweep *s = calloc(1, sizeof *s);
    json_t *list = o->cli.json ? json_array() : NULL;
    if (!s)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    s->o = o;
    int code = merge_into(s, n, path);
    if (!code) {
        whole_text(s, o->first, o->last, s->text);
        code = report(s, list);
    }
    free(s);
    return finish(list, code);
}

static int list_published(const struct options *o)
{
    json_t *list = o->cli.json ? json_array() : NULL;
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        const struct published *p = &published[i];
        if (list)
            json_array_append_new(list,
                                  json_pack("{s:s,s:s,s:s,s:s}", "to", p->to, "round", p->round,
                                            "overflow", p->overflow, "digest", p->digest));
        else
            printf("%-9s %-4s %-13s %s\n", p->to, p->round, p->overflow, p->digest);
    }
    for (size_t i = 0; i < sizeof published_functions / sizeof published_functions[0]; i++) {
        const struct published_function *p = &published_functions[i];
        if (list)
            json_array_append_new(list, json_pack("{s:s,s:s,s:s}", "function", p->function,
                                                  "choice", p->choice, "digest", p->digest));
        else
            printf("%-14s %-13s %s\n", p->function, p->choice, p->digest);
    }
    return list ? cli_print_json(list) : EXIT_EQUAL;
}

/* ---- The command line. ---- */

enum {
    OPT_TO = OPT_OWN,
    OPT_ROUND,
    OPT_OVERFLOW,
    OPT_NAN_SIGN,
    OPT_NAN_TO,
    OPT_WORD,
    OPT_SR,
    OPT_SR_BITS,
    OPT_SR_TAKE,
    OPT_FUNCTION,
    OPT_CHOICE,
    OPT_CHECK,
    OPT_BOTH,
    OPT_CHUNKS,
    OPT_SHARD,
    OPT_STATE,
    OPT_MERGE,
    OPT_LIST
};

/* "A:B" or "A/B". */
static bool parse_pair(const char *text, char between, uint32_t *a, uint32_t *b)
{
    char first[16];
    uint64_t x, y;
    const char *at = strchr(text, between);
    if (!at || (size_t)(at - text) >= sizeof first)
        return false;
    memcpy(first, text, (size_t)(at - text));
    first[at - text] = '\0';
    if (!parse_u64(first, &x) || !parse_u64(at + 1, &y) || x > CHUNKS || y > CHUNKS)
        return false;
    *a = (uint32_t)x;
    *b = (uint32_t)y;
    return true;
}

/* One of two names; false if it is neither. */
static bool second_of(const char *text, const char *first, const char *second, bool *is_second)
{
    *is_second = strcmp(text, second) == 0;
    return *is_second || strcmp(text, first) == 0;
}

static bool is_function(const char *text)
{
    for (int i = 0; ng_function_name((ng_function)i); i++)
        if (strcmp(text, ng_function_name((ng_function)i)) == 0)
            return true;
    return false;
}

static bool own_value(struct options *o, int opt, const char *value)
{
    ng_round round;
    ng_overflow overflow;
    uint64_t n;
    bool second, ok;
    switch (opt) {
    case OPT_TO: o->to = value; return is_all(value) || ng_format_find(value) != NG_FORMAT_NONE;
    case OPT_ROUND: o->round = value; return is_all(value) || name_round(value, &round);
    case OPT_OVERFLOW:
        o->overflow = value;
        return is_all(value) || name_overflow(value, &overflow);
    case OPT_NAN_SIGN:
        ok = second_of(value, "clear", "keep", &second);
        o->cast.nan_sign = second ? NG_NAN_SIGN_KEEP : NG_NAN_SIGN_CLEAR;
        return ok;
    case OPT_NAN_TO:
        ok = second_of(value, "max", "zero", &second);
        o->cast.nan_to = second ? NG_NAN_TO_ZERO : NG_NAN_TO_MAX;
        return ok;
    case OPT_WORD:
        ok = parse_u64(value, &n) && n <= UINT32_MAX;
        o->word = (uint32_t)n;
        o->has_word = true;
        return ok;
    case OPT_SR:
        o->has_sr = true;
        o->cast.sr = (ng_sr)(value[0] - 'a');
        return value[0] >= 'a' && value[0] <= 'c' && !value[1];
    case OPT_SR_BITS:
        ok = parse_u64(value, &n) && n >= 1 && n <= 32;
        o->has_sr = true;
        o->cast.sr_bits = (uint32_t)n;
        return ok;
    case OPT_SR_TAKE:
        ok = second_of(value, "low", "high", &second);
        o->has_sr = true;
        o->cast.sr_take = second ? NG_SR_TAKE_HIGH : NG_SR_TAKE_LOW;
        return ok;
    case OPT_CHUNKS: return parse_pair(value, ':', &o->first, &o->last) && o->first < o->last;
    case OPT_SHARD:
        return parse_pair(value, '/', &o->shard, &o->shards) && o->shard < o->shards;
    case OPT_FUNCTION: o->function = value; return is_all(value) || is_function(value);
    case OPT_CHOICE:
        ok = second_of(value, "cr", "sleef", &second);
        o->choice = second ? NG_FUNCTION_SLEEF : NG_FUNCTION_CR;
        o->has_choice = true;
        return ok;
    case OPT_STATE: o->state = value; return *value != '\0';
    default: return false;
    }
}

static const char *wanted_of(int opt)
{
    switch (opt) {
    case OPT_TO: return "a format that ngauge info lists, or all";
    case OPT_ROUND: return "rne, rna, rtz, rdn, rup, rto, sr or all";
    case OPT_OVERFLOW: return "inf, sat, sat_keep_inf or all";
    case OPT_NAN_SIGN: return "clear or keep";
    case OPT_NAN_TO: return "max or zero";
    case OPT_WORD: return "a number below 2^32";
    case OPT_SR: return "a, b or c";
    case OPT_SR_BITS: return "1 to 32";
    case OPT_SR_TAKE: return "low or high";
    case OPT_CHUNKS: return "A:B, with A below B and B at most 4096";
    case OPT_SHARD: return "I/N, with I from 0 and below N, and N at most 4096";
    case OPT_FUNCTION: return "exp, exp2, log, tanh, sigmoid, reciprocal, rsqrt or all";
    case OPT_CHOICE: return "cr or sleef";
    default: return "a file";
    }
}

/* Options that do not go together. */
static int check_options(const struct options *o, int paths)
{
    const bool sr = o->round && strcmp(o->round, "sr") == 0;
    const bool part = o->first != 0 || o->last != CHUNKS || o->shards != 1;
    if (o->merge && (o->to || o->round || o->overflow || o->state || o->both || o->shards != 1))
        return cli_fail(EXIT_USAGE, "--merge takes the case from the states; only --chunks, "
                                    "--check and --json go with it");
    if (o->merge && !paths)
        return cli_fail(EXIT_USAGE, "--merge wants the states of the shards");
    if (!o->merge && paths)
        return cli_fail(EXIT_USAGE, "sweep takes no arguments without --merge");
    if (o->function &&
        (o->to || o->round || o->overflow || o->merge || o->cast.nan_sign || o->cast.nan_to))
        return cli_fail(EXIT_USAGE, "--function sweeps FP32 to FP32; of the others only "
                                    "--choice says what is computed");
    if (!o->function && o->has_choice)
        return cli_fail(EXIT_USAGE, "--choice goes with --function");
    if (!o->merge && !o->to && !o->function)
        return cli_fail(EXIT_USAGE,
                        "sweep wants --to F or --function F; ngauge info lists the formats");
    if (sr != o->has_word)
        return cli_fail(EXIT_USAGE,
                        sr ? "--round sr wants --word W, the random word of every element"
                           : "--word goes with --round sr");
    if (o->has_sr && !sr)
        return cli_fail(EXIT_USAGE, "--sr, --sr-bits and --sr-take go with --round sr");
    if (o->check && part)
        return cli_fail(EXIT_USAGE,
                        "--check wants all %d chunks: published digests are of the "
                        "whole; merge the shards first",
                        CHUNKS);
    if ((uint64_t)(o->last - o->first) < o->shards)
        return cli_fail(EXIT_USAGE, "--shard: %u shards of %u chunks", (unsigned)o->shards,
                        (unsigned)(o->last - o->first));
    return 0;
}

static const struct option long_options[] = {
    CLI_OPTIONS,
    { "to", required_argument, NULL, OPT_TO },
    { "round", required_argument, NULL, OPT_ROUND },
    { "overflow", required_argument, NULL, OPT_OVERFLOW },
    { "nan-sign", required_argument, NULL, OPT_NAN_SIGN },
    { "nan-to", required_argument, NULL, OPT_NAN_TO },
    { "word", required_argument, NULL, OPT_WORD },
    { "sr", required_argument, NULL, OPT_SR },
    { "sr-bits", required_argument, NULL, OPT_SR_BITS },
    { "sr-take", required_argument, NULL, OPT_SR_TAKE },
    { "function", required_argument, NULL, OPT_FUNCTION },
    { "choice", required_argument, NULL, OPT_CHOICE },
    { "check", no_argument, NULL, OPT_CHECK },
    { "both", no_argument, NULL, OPT_BOTH },
    { "chunks", required_argument, NULL, OPT_CHUNKS },
    { "shard", required_argument, NULL, OPT_SHARD },
    { "state", required_argument, NULL, OPT_STATE },
    { "merge", no_argument, NULL, OPT_MERGE },
    { "list", no_argument, NULL, OPT_LIST },
    { 0 }
};

static int take(void *to, int opt, const char *value)
{
    struct options *const o = to;
    switch (opt) {
    case OPT_CHECK: o->check = true; return 0;
    case OPT_BOTH: o->both = true; return 0;
    case OPT_MERGE: o->merge = true; return 0;
    case OPT_LIST: o->list = true; return 0;
    default:
        return own_value(o, opt, value)
                   ? 0
                   : cli_bad_value(long_options, opt, value, wanted_of(opt));
    }
}

int cmd_sweep(int argc, char **argv)
{
    struct options o = { .cli = { .threads = 1 }, .last = CHUNKS, .shards = 1 };
    int code;
    o.cast.sr_bits = 32;
    if (!cli_options(&o.cli, argc, argv,
                     &(struct cli_options){ CLI_SHORT, long_options, help, take, &o }, &code))
        return code;
    if (o.list && argc > optind)
        return cli_fail(EXIT_USAGE, "--list prints all digests: '%s' says nothing to it",
                        argv[optind]);
    if (o.list)
        return list_published(&o);
    code = check_options(&o, argc - optind);
    if (code)
        return code;
    const uint64_t n = o.last - o.first, first = o.first;
    o.first = (uint32_t)(first + n * o.shard / o.shards);
    o.last = (uint32_t)(first + n * (o.shard + 1) / o.shards);
    return o.merge ? merge(&o, argc - optind, argv + optind) : sweep_cases(&o);
}
