/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands of ngauge share: options, context, exit codes, text. docs/cli.md. */
#ifndef NG_CLI_H
#define NG_CLI_H

#include <getopt.h>
#include <jansson.h>

#include "io.h"
#include "ng/ng.h"

/* Exit codes; documented in docs/cli.md and pinned. */
enum {
    EXIT_EQUAL = 0,   /* done; or equal on every bit */
    EXIT_DIFFERS = 1, /* verify: at least one bit differs; selftest: a digest differs */
    EXIT_USAGE = 2,   /* the command line is wrong */
    EXIT_FILE = 3,    /* a file cannot be read, written, or is not what it should be */
    EXIT_REFUSED = 4, /* the library refuses the operands: shape, format, profile */
    EXIT_INTERNAL = 5 /* out of memory, or a bug */
};

/* Options that every command takes, and what follows from them. */
struct cli {
    bool json, quiet, verbose;
    int threads;
    uint64_t seed;
    int64_t max_report;
    uint32_t isa_mask;
    ng_pool *pool;
    ng_ctx *ctx;
    ng_executor executor;
};

/* The common options as getopt_long wants them; values above any char. */
enum {
    OPT_JSON = 256,
    OPT_THREADS,
    OPT_SEED,
    OPT_MAX_REPORT,
    OPT_ISA,
    OPT_OWN /* the first number that a command may use for its own */
};
#define CLI_OPTIONS                                                                            \
    { "json", no_argument, NULL, OPT_JSON }, { "quiet", no_argument, NULL, 'q' },              \
        { "verbose", no_argument, NULL, 'v' },                                                 \
        { "threads", required_argument, NULL, OPT_THREADS },                                   \
        { "seed", required_argument, NULL, OPT_SEED },                                         \
        { "max-report", required_argument, NULL, OPT_MAX_REPORT },                             \
        { "isa", required_argument, NULL, OPT_ISA },                                           \
    {                                                                                          \
        "help", no_argument, NULL, 'h'                                                         \
    }
#define CLI_SHORT ":hqv"

/* What a command takes: the common options, --help and its own. */
struct cli_options {
    const char *letters; /* CLI_SHORT, and its own */
    const struct option *all;
    const char *help; /* what --help prints */
    /* One of its own; an exit code, 0 to go on. NULL: it has none. */
    int (*take)(void *to, int opt, const char *value);
    void *to;
};
/* Take them until one is wrong, which is said in one sentence. True: go on; otherwise *code is
 * what the command ends with, 0 where it was asked for help. */
bool cli_options(struct cli *cli, int argc, char **argv, const struct cli_options *o,
                 int *code);
/* take() of a command with one option of its own: to a const char *, or to a bool. */
int cli_take_text(void *to, int opt, const char *value);
int cli_take_flag(void *to, int opt, const char *value);
/* Are the words behind `command` ("example", "probe make"), up to NULL, as many as it takes? An
 * exit code; `words` says which these are: "IN and OUT"; of none, what is instead: "its files
 * by options, not", or NULL. */
int cli_words(const char *command, char **word, int least, int most, const char *words);
/* A verb of a command, and the words behind it. */
struct cli_verb {
    const char *name;
    int least, most;
    const char *words;
};
/* The place in `verbs`, up to one without a name, of the first word behind the options; -1: it
 * is none of them, or has other words behind it, which is said in one sentence. */
int cli_verb(int argc, char **argv, const struct cli_verb *verbs);
/* An option of a command's own in a set of them. */
#define BIT(option) ((uint64_t)1 << ((option)-OPT_OWN))
/* Is there one in `seen` that the verb does not take? An exit code. */
int cli_stray(const struct option *all, uint64_t seen, uint64_t takes, const char *command,
              const char *verb);
/* A wrong value of an option that is in `options`, in one sentence; the exit code of that. */
int cli_bad_value(const struct option *options, int opt, const char *value, const char *wanted);
/* Make the pool and the context; an exit code, 0 for success. */
int cli_open(struct cli *cli);
/* task(arg, i, worker) for all i below n, by the pool's workers or one after another. */
void cli_for_all(const struct cli *cli, size_t n,
                 void (*task)(void *arg, size_t i, size_t worker), void *arg);
void cli_close(struct cli *cli);

/* Report to stderr as "ngauge: ..." and return the exit code. */
int cli_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Does a file's name end so? What it is is told by that. */
bool ends_in(const char *text, const char *end);
/* Why a file could not be read or written, and the exit code of that. */
int cli_file_error(const struct io_error *e);
/* The exit code of a library status, its message reported. */
int cli_refused(const struct cli *cli, ng_status status, const char *what);
/* A JSON string of text that may not be UTF-8: other bytes become '?'. */
json_t *text_json(const char *text);
/* Print JSON to stdout and free it. */
int cli_print_json(json_t *json);
/* A parameter and its values, into a list, or as text without one; `family` may be NULL. */
void cli_print_key(json_t *list, const char *key, const char *family, const char *values,
                   const char *meaning);

/* ---- Names of enums, as in files and options. ---- */

bool name_round(const char *text, ng_round *value);
bool name_overflow(const char *text, ng_overflow *value);
bool name_scale_rule(const char *text, ng_scale_rule *value);
bool name_block_special(const char *text, ng_block_special *value);
bool name_layout(const char *text, ng_layout *value);
bool name_scale_store(const char *text, ng_scale_store *value);
const char *round_text(ng_round value);
const char *overflow_text(ng_overflow value);
const char *scale_rule_text(ng_scale_rule value);
const char *block_special_text(ng_block_special value);
const char *layout_text(ng_layout value);
const char *scale_store_text(ng_scale_store value);

struct code_text {
    char text[96];
};

/* A non-negative number, decimal or 0x; false if it is anything else. */
bool parse_u64(const char *text, uint64_t *value);
/* A finite number as an FP32 pattern, in one rounding. */
bool number_f32(double x, uint32_t *pattern);
/* The place of `word` in a list that spaces part, "low high"; -1 where it is not in it. */
int place_in(const char *names, const char *word);
/* The word at a place of such a list; "" behind its end. */
struct code_text word_at(const char *names, int place);

/* ---- Values as text. ---- */

/* "0x3f800001 (1.00000012)": a code and its value, in as many digits as tell it from others. */
struct code_text code_text(ng_format format, uint32_t code);
/* "1.0000001192092896 (0x1.000002p+0)": an exact value, to 17 digits. */
struct code_text value_text(const ng_value *v);

/* ---- Progress on a terminal, at most ten times a second. ---- */

struct progress {
    const char *what;
    int64_t total;
    double next;
    bool on;
};
void progress_begin(struct progress *p, const struct cli *cli, const char *what, int64_t total);
void progress_at(struct progress *p, int64_t done);
void progress_end(struct progress *p);
double seconds_now(void);

/*
 * FILE, FILE=TYPE and FILE.safetensors:NAME of a command line taken apart. The last '=' parts
 * them, but none that has a
 * '/' or a '.' behind it: no type has one, and names such as layer=1/q.npy do.
 */
struct file_name {
    char *path;         /* malloc'ed */
    const char *tensor; /* in that memory; or NULL */
    const char *type;   /* in the text, behind the '='; or NULL */
};
/* An exit code. */
int file_name_open(const char *text, struct file_name *f);
void file_name_close(struct file_name *f);

/*
 * A tensor of the command line; an exit code. `plain`: integers, such as tags. Only a .npy with
 * a sidecar and a safetensors file say themselves what they hold; `tensor` is the --tensor that
 * names one of several in such a file, or NULL.
 */
int array_load(const char *text, const char *tensor, bool plain, struct io_array *out);

/* A built-in profile, or that of a file, which *owned then holds; NULL: *code is the exit code.
 */
const ng_profile *profile_load(const char *name, ng_profile **owned, int *code);

/* All files of a result, before it is computed: each can be written, sidecars too, and none
 * twice. NULL: no file. An exit code. */
int check_writable(const char *const *path, size_t n);
/* Write one array by the suffix of `path`: .npy, .safetensors (as tensor `name`) or raw; to its
 * place at once, or with others. */
int array_write(const char *path, const char *name, const struct io_array *a);
int array_stage(struct io_files *files, const char *path, const char *name,
                const struct io_array *a);
/* What was staged comes into place, or vanishes if there is a `code` already; an exit code. */
int files_close(struct io_files *files, int code);

/* ---- Commands: argv[0] is the command's name. ---- */

int cmd_verify(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_dequantize(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_profile(int argc, char **argv);
int cmd_selftest(int argc, char **argv);
int cmd_example(int argc, char **argv);
int cmd_probe(int argc, char **argv);
int cmd_kernels(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_rng(int argc, char **argv);
int cmd_route(int argc, char **argv);
int cmd_sparsify(int argc, char **argv);
int cmd_function(int argc, char **argv);
int cmd_sweep(int argc, char **argv);
int cmd_attention(int argc, char **argv);
int cmd_collective(int argc, char **argv);

#endif
