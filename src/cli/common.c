/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

int cli_fail(int code, const char *format, ...)
{
    va_list args;
    fflush(stdout);
    fputs("ngauge: ", stderr);
    char text[2048];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c; c++) /* names from files must not drive the terminal */
        if ((unsigned char)*c < 32 || *c == 127)
            *c = '?';
    fprintf(stderr, "%s\n", text);
    return code;
}

bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

int cli_file_error(const struct io_error *e)
{
    return cli_fail(e->memory ? EXIT_INTERNAL : EXIT_FILE, "%s", e->text);
}

/* What the user has said where the library's message names a field of a call. */
static const char *user_term(const char *message)
{
    static const struct {
        const char *field, *term;
    } terms[] = {
        { "saved.lse", "lse (--lse)" },
        { "saved.max", "max (--max)" },
        { "saved.sum", "sum (--sum)" },
        { "op.exp_table", "exp_table (--exp-table)" },
        { "op.tanh_table", "tanh_table (--tanh-table)" },
        { "op.reciprocal_table", "reciprocal_table (--reciprocal-table)" },
        { "op.profile", "profile (--profile)" },
        { "op.sink", "sink (--sink)" },
        { "op.window", "window (--window)" },
        { "op.pages", "page_table (--page-table)" },
        { "op.kv_length", "kv_length (--kv-length)" },
        { "op.psum", "psum" },
        { "op.gemm.psum", "psum" },
        { "op.out_scale", "out_scale (--out-scale)" },
        { "op.out", "out (--round and other options of the output)" },
        { "op.cast", "cast (--round and other options of the output)" },
        { "fp4_format", "fp4_map (--fp4-map)" },
        { "route.groups", "groups (--groups)" },
        { "route.top_groups", "top_groups (--top-groups)" },
        { "route.group_top", "group_top (--group-top)" },
        { "route.k ", "k (--k)" },
        { "route.eps ", "eps and scale (--eps, --scale)" },
    };
    for (size_t i = 0; i < sizeof terms / sizeof terms[0]; i++)
        if (strstr(message, terms[i].field))
            return terms[i].term;
    return NULL;
}

int cli_refused(const struct cli *cli, ng_status status, const char *what)
{
    const char *message = ng_ctx_message(cli->ctx);
    const char *term = user_term(message);
    cli_fail(0, "%s%s%s%s%s (%s)", what, what[0] ? ": " : "", term ? term : "",
             term ? ": " : "", message[0] ? message : "refused", ng_status_name(status));
    return status == NG_ERR_MEMORY || status == NG_ERR_INTERNAL ? EXIT_INTERNAL : EXIT_REFUSED;
}

json_t *text_json(const char *text)
{
    json_t *j = json_string(text);
    char plain[1200];
    if (j)
        return j;
    snprintf(plain, sizeof plain, "%s", text);
    for (char *c = plain; *c; c++)
        if ((unsigned char)*c > 126 || (unsigned char)*c < 32)
            *c = '?';
    return json_string(plain);
}

int cli_print_json(json_t *json)
{
    if (!json)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    const int failed = json_dumpf(json, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    fputc('\n', stdout);
    json_decref(json);
    return failed ? cli_fail(EXIT_FILE, "cannot write to standard output") : EXIT_EQUAL;
}

void cli_print_key(json_t *list, const char *key, const char *family, const char *values,
                   const char *meaning)
{
    if (!list) {
        printf("%-13s  %s%s%s\n%15s%s\n", key, family ? family : "", family ? "  " : "", values,
               "", meaning);
        return;
    }
    json_t *row = json_pack("{s:s,s:s,s:s}", "key", key, "values", values, "meaning", meaning);
    if (family)
        json_object_set_new(row, "family", json_string(family));
    json_array_append_new(list, row);
}

bool parse_u64(const char *text, uint64_t *value)
{
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    const unsigned long long v = strtoull(text, &end, 0);
    *value = v;
    return !*end && errno == 0;
}

bool number_f32(double x, uint32_t *pattern)
{
    int exp;
    if (!isfinite(x))
        return false;
    const double sig = frexp(fabs(x), &exp);
    const ng_value v = { .sig = (uint64_t)ldexp(sig, 53), .exp = exp - 53, .neg = x < 0 };
    const ng_cast rne = { .round = NG_ROUND_TIES_TO_EVEN };
    return ng_encode(NG_F32, &rne, &v, 0, pattern) == NG_OK;
}

int place_in(const char *names, const char *word)
{
    const size_t n = strlen(word);
    int place = 0;
    for (const char *at = names; *at; place++) {
        const size_t length = strcspn(at, " ");
        if (length == n && strncmp(at, word, n) == 0)
            return place;
        at += length + (at[length] == ' ');
    }
    return -1;
}

struct code_text word_at(const char *names, int place)
{
    struct code_text t;
    while (place-- > 0 && *names) {
        names += strcspn(names, " ");
        names += *names == ' ';
    }
    snprintf(t.text, sizeof t.text, "%.*s", (int)strcspn(names, " "), names);
    return t;
}

/* ---- Common options. ---- */

static bool parse_isa(const char *list, uint32_t *mask)
{
    *mask = 0;
    for (const char *at = list; *at;) {
        const size_t n = strcspn(at, ",");
        bool found = false;
        for (uint32_t bit = 1; bit; bit <<= 1) {
            const char *name = ng_isa_name(bit);
            if (name && strlen(name) == n && strncmp(name, at, n) == 0) {
                *mask |= bit;
                found = true;
            }
        }
        if (!found)
            return false;
        at += n + (at[n] == ',');
    }
    return *mask != 0;
}

#define ISA_LIST "a list of ref, avx2, avx512, avx512bf16, amxbf16, with commas"

/* True if `opt` is a common option; *bad: its value is wrong, which has been said. */
static bool common_option(struct cli *cli, int opt, const char *value, bool *bad)
{
    const char *wanted = "";
    uint64_t n = 0;
    *bad = false;
    switch (opt) {
    case OPT_JSON: cli->json = true; return true;
    case 'q': cli->quiet = true; return true;
    case 'v': cli->verbose = true; return true;
    case OPT_THREADS:
        *bad = !parse_u64(value, &n) || n > 4096;
        cli->threads = (int)n;
        wanted = "a number from 0 to 4096";
        break;
    case OPT_SEED:
        *bad = !parse_u64(value, &n);
        cli->seed = n;
        wanted = "a number below 2^64";
        break;
    case OPT_MAX_REPORT:
        *bad = !parse_u64(value, &n) || n > INT64_MAX;
        cli->max_report = (int64_t)n;
        wanted = "a number below 2^63";
        break;
    case OPT_ISA:
        *bad = !parse_isa(value, &cli->isa_mask);
        wanted = ISA_LIST;
        break;
    default: return false;
    }
    if (*bad)
        cli_bad_value((const struct option[]){ CLI_OPTIONS, { 0 } }, opt, value, wanted);
    return true;
}

/* The options that begin as `word` does, " or " between them. */
static struct code_text names_like(const struct option *all, const char *word)
{
    struct code_text t = { "" };
    const size_t n = strcspn(word, "=");
    for (size_t used = 0; n && all->name && used < sizeof t.text; all++)
        if (strncmp(all->name, word, n) == 0)
            used += (size_t)snprintf(t.text + used, sizeof t.text - used, "%s--%s",
                                     used ? " or " : "", all->name);
    return t;
}

/* What getopt_long() returned '?' or ':' for: an unknown letter is in optopt, a known option's
 * `val` too, and a word is argv[optind - 1]. */
static int bad_option(char **argv, const struct option *all, int found)
{
    const char *const word = argv[optind - 1], *const command = argv[0];
    if (found == ':')
        return cli_fail(EXIT_USAGE, "%s: %s wants a value; see ngauge %s --help", command, word,
                        command);
    for (const struct option *o = all; optopt && o->name; o++)
        if (o->val == optopt)
            return cli_fail(EXIT_USAGE, "%s: --%s takes no value, but here is '%s'", command,
                            o->name, word);
    if (optopt)
        return cli_fail(EXIT_USAGE, "%s: '-%c' is no option; see ngauge %s --help", command,
                        optopt, command);
    const struct code_text like = names_like(all, word + 2);
    if (like.text[0])
        return cli_fail(EXIT_USAGE, "%s: '%s' may be %s", command, word, like.text);
    return cli_fail(EXIT_USAGE, "%s: '%s' is no option; see ngauge %s --help", command, word,
                    command);
}

bool cli_options(struct cli *cli, int argc, char **argv, const struct cli_options *o, int *code)
{
    bool bad;
    opterr = 0; /* cli_fail() says it */
    *code = 0;
    for (int opt; (opt = getopt_long(argc, argv, o->letters, o->all, NULL)) != -1;) {
        if (opt == 'h') {
            fputs(o->help, stdout);
            return false;
        }
        if (opt == '?' || opt == ':')
            *code = bad_option(argv, o->all, opt);
        else if (common_option(cli, opt, optarg, &bad))
            *code = bad ? EXIT_USAGE : 0;
        else
            *code = o->take(o->to, opt, optarg);
        if (*code)
            return false;
    }
    return true;
}

int cli_take_text(void *to, int opt, const char *value)
{
    (void)opt;
    *(const char **)to = value;
    return 0;
}

int cli_take_flag(void *to, int opt, const char *value)
{
    (void)opt;
    (void)value;
    *(bool *)to = true;
    return 0;
}

int cli_words(const char *command, char **word, int least, int most, const char *words)
{
    int n = 0;
    while (word[n])
        n++;
    if (n >= least && n <= most)
        return 0;
    if (!most)
        return cli_fail(EXIT_USAGE, "%s takes %s '%s'; see ngauge %s --help", command,
                        words ? words : "no", word[0], command);
    return cli_fail(EXIT_USAGE, "%s wants %s, not %d word%s; see ngauge %s --help", command,
                    words, n, n == 1 ? "" : "s", command);
}

int cli_verb(int argc, char **argv, const struct cli_verb *verbs)
{
    const char *const word = optind < argc ? argv[optind] : "";
    char text[200];
    size_t used = 0;
    for (int v = 0; verbs[v].name && used < sizeof text; v++) {
        if (strcmp(word, verbs[v].name) == 0) {
            snprintf(text, sizeof text, "%s %s", argv[0], word);
            const int code = cli_words(text, argv + optind + 1, verbs[v].least, verbs[v].most,
                                       verbs[v].words);
            return code ? -1 : v;
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s",
                                 !v                  ? ""
                                 : verbs[v + 1].name ? ", "
                                                     : " or ",
                                 verbs[v].name);
    }
    cli_fail(EXIT_USAGE, "%s wants %s, not '%s'; see ngauge %s --help", argv[0], text, word,
             argv[0]);
    return -1;
}

int cli_stray(const struct option *all, uint64_t seen, uint64_t takes, const char *command,
              const char *verb)
{
    for (; all->name; all++)
        if (all->val >= OPT_OWN && seen & ~takes & BIT(all->val))
            return cli_fail(EXIT_USAGE, "--%s says nothing to %s %s", all->name, command, verb);
    return 0;
}

int cli_bad_value(const struct option *options, int opt, const char *value, const char *wanted)
{
    while (options->name && options->val != opt)
        options++;
    return cli_fail(EXIT_USAGE, "--%s is '%s'; wanted: %s", options->name ? options->name : "",
                    value, wanted);
}

int cli_open(struct cli *cli)
{
    ng_ctx_config config = { .size = sizeof config, .isa_mask = cli->isa_mask };
    const char *env = getenv("NG_ISA");
    if (!cli->isa_mask && env && *env && !parse_isa(env, &config.isa_mask))
        return cli_fail(EXIT_USAGE, "NG_ISA is '%s'; wanted: " ISA_LIST, env);
    cli->isa_mask = config.isa_mask; /* for the contexts that a command makes itself */
    if (cli->threads != 1) {
        const ng_status s = ng_pool_create((size_t)cli->threads, &cli->pool, &cli->executor);
        if (s == NG_ERR_UNSUPPORTED)
            cli_fail(0, "built without threads: using one");
        else if (s)
            return cli_fail(EXIT_INTERNAL, "cannot start %d threads", cli->threads);
        config.executor = cli->executor;
    }
    return ng_ctx_create(&config, &cli->ctx) ? cli_fail(EXIT_INTERNAL, "out of memory") : 0;
}

void cli_for_all(const struct cli *cli, size_t n,
                 void (*task)(void *arg, size_t i, size_t worker), void *arg)
{
    if (cli->executor.parallel_for)
        cli->executor.parallel_for(cli->executor.user, n, task, arg);
    else
        for (size_t i = 0; i < n; i++)
            task(arg, i, 0);
}

void cli_close(struct cli *cli)
{
    ng_ctx_destroy(cli->ctx);
    ng_pool_destroy(cli->pool);
    cli->ctx = NULL;
    cli->pool = NULL;
}

/* ---- Names. ---- */

static const char *const rounds[] = { "rne", "rna", "rtz", "rdn", "rup", "rto", "sr", NULL };
static const char *const overflows[] = { "inf", "sat", "sat_keep_inf", NULL };
static const char *const rules[] = { "floor", "floor_up1", "ceil",        "even",
                                     "rceil", "nvfp4_te",  "nvfp4_exact", NULL };
static const char *const specials[] = { "element", "nan_block", "from_exponent", NULL };
static const char *const layouts[] = { "linear", "trn_wrap", "trn_1x32", NULL };
static const char *const stores[] = { "linear", "trn_sbuf", "swizzle_128x4", NULL };

static bool find(const char *const *names, const char *text, int *value)
{
    for (int i = 0; text && names[i]; i++)
        if (strcmp(names[i], text) == 0) {
            *value = i;
            return true;
        }
    return false;
}

#define NAMES(function, text_function, type, names)                                            \
    bool function(const char *text, type *value)                                               \
    {                                                                                          \
        int i = 0;                                                                             \
        const bool ok = find(names, text, &i);                                                 \
        if (ok)                                                                                \
            *value = (type)i;                                                                  \
        return ok;                                                                             \
    }                                                                                          \
    const char *text_function(type value)                                                      \
    {                                                                                          \
        return names[value];                                                                   \
    }

NAMES(name_round, round_text, ng_round, rounds)
NAMES(name_overflow, overflow_text, ng_overflow, overflows)
NAMES(name_scale_rule, scale_rule_text, ng_scale_rule, rules)
NAMES(name_block_special, block_special_text, ng_block_special, specials)
NAMES(name_layout, layout_text, ng_layout, layouts)
NAMES(name_scale_store, scale_store_text, ng_scale_store, stores)

/* ---- Values. The tool may use floating point: it prints, it does not decide. ---- */

static double approximate(const ng_value *v)
{
    const double x = v->cls == NG_CLASS_NAN   ? (double)NAN
                     : v->cls == NG_CLASS_INF ? (double)INFINITY
                                              : ldexp((double)v->sig, v->exp);
    return v->neg ? -x : x;
}

struct code_text code_text(ng_format format, uint32_t code)
{
    struct code_text t;
    ng_value v = { 0 };
    const ng_format_spec *f = ng_format_info(format);
    (void)ng_decode(format, code, &v);
    const int digits = f->man_bits > 10 ? 9 : 6; /* enough to tell neighbours apart */
    snprintf(t.text, sizeof t.text, "0x%0*x (%.*g)", (int)(f->bits + 3) / 4, (unsigned)code,
             digits, approximate(&v));
    return t;
}

struct code_text value_text(const ng_value *v)
{
    struct code_text t;
    const double x = approximate(v);
    if (v->cls != NG_CLASS_FINITE || !v->sig) {
        snprintf(t.text, sizeof t.text, "%.17g", x);
        return t;
    }
    /* The hex form is exact: up to 64 significand bits, which a double may not hold. */
    const int zeros = __builtin_clzll(v->sig);
    char digits[20];
    int n = snprintf(digits, sizeof digits, "%016llx",
                     (unsigned long long)(zeros == 63 ? 0 : v->sig << (zeros + 1)));
    while (n > 1 && digits[n - 1] == '0')
        n--;
    snprintf(t.text, sizeof t.text, "%.17g (%s0x1.%.*sp%+d%s)", x, v->neg ? "-" : "", n, digits,
             v->exp + 63 - zeros, v->sticky ? ", and a little more" : "");
    return t;
}

/* ---- Progress. ---- */

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void progress_begin(struct progress *p, const struct cli *cli, const char *what, int64_t total)
{
    *p = (struct progress){ .what = what,
                            .total = total,
                            .next = seconds_now() + 0.5, /* short work stays silent */
                            .on = isatty(STDERR_FILENO) && !cli->quiet };
}

void progress_at(struct progress *p, int64_t done)
{
    if (!p->on || seconds_now() < p->next)
        return;
    p->next = seconds_now() + 0.1;
    fprintf(stderr, "\r%s: %3.0f %%", p->what, 100.0 * (double)done / (double)p->total);
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->on)
        fprintf(stderr, "\r%40s\r", "");
    p->on = false;
}
