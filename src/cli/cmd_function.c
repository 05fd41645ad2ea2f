/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge function: an elementary function of a tensor, or of one number. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char help[] =
    "usage: ngauge function NAME [OPTIONS] IN=FORMAT OUT\n"
    "       ngauge function NAME --of X [OPTIONS]\n\n"
    "NAME is exp, exp2, log, tanh, sigmoid, reciprocal or rsqrt. Each element of IN as FP32,\n"
    "the function, and one conversion of the FP32 result to OUT's format; or the same of one\n"
    "FP32 number X (decimal or 0xPATTERN), with the FP32 numbers beside the result.\n"
    "  --choice cr|sleef|table  whose bits: correctly rounded (default), SLEEF's "
    "deterministic\n"
    "                       functions, or --table's\n"
    "  --table FILE         65536 bf16 codes: the result for each bf16 argument. .npy,\n"
    "                       .safetensors or raw (table.bin=bf16:65536)\n"
    "  --to FORMAT          of OUT; default: IN's\n"
    "  --round R  --overflow O  --nan-sign clear|keep  --nan-to max|zero|error\n"
    "                       of the conversion; default rne inf (sat where there is no Inf and\n"
    "                       no NaN) clear max\n"
    "  --tensor NAME        of IN, where that is a .safetensors with several\n"
    "What a chip's tables hold is not public: the evidence of every choice but a measured "
    "table\n"
    "is `assumed` (docs/numerics.md, section 8).\n"
    "and the options of every command: ngauge --help\n";

enum {
    OPT_OF = OPT_OWN,
    OPT_CHOICE,
    OPT_TABLE,
    OPT_TO,
    OPT_ROUND,
    OPT_OVERFLOW,
    OPT_NAN_SIGN,
    OPT_NAN_TO,
    OPT_TENSOR
};

static const char *const kinds[] = { "cr", "sleef", "table" };

/* What the command line asks. */
struct request {
    struct cli cli;
    ng_elementary_op op;
    bool has_overflow;
    const char *of_tensors; /* an option that says nothing to one number, or NULL */
    ng_format to;           /* NONE: the source's */
    const char *of, *table_file, *tensor, *in, *out;
    struct io_array src, dst, table;
    double start;
};

/* ---- Options. ---- */

/* The place of `text` among n names, or -1. */
static int one_of(const char *text, const char *const *names, int n)
{
    while (n-- > 0 && strcmp(text, names[n]) != 0)
        ;
    return n;
}

/* One number is FP32 before and after. */
static void note_option(struct request *r, int o)
{
    static const char *const names[] = { "to",       "round",  "overflow",
                                         "nan-sign", "nan-to", "tensor" };
    if (o >= OPT_TO && o <= OPT_TENSOR)
        r->of_tensors = names[o - OPT_TO];
}

static bool take_value(struct request *r, int o, const char *v)
{
    static const char *const signs[] = { "clear", "keep" }, *const targets[] = { "max", "zero",
                                                                                 "error" };
    int i = 0;
    note_option(r, o);
    switch (o) {
    case OPT_OF: r->of = v; return true;
    case OPT_TABLE: r->table_file = v; return true;
    case OPT_TENSOR: r->tensor = v; return true;
    case OPT_TO: r->to = ng_format_find(v); return r->to != NG_FORMAT_NONE;
    case OPT_ROUND:
        return name_round(v, &r->op.cast.round) && r->op.cast.round != NG_ROUND_STOCHASTIC;
    case OPT_OVERFLOW: r->has_overflow = true; return name_overflow(v, &r->op.cast.overflow);
    case OPT_CHOICE:
        i = one_of(v, kinds, 3);
        r->op.choice.kind = (ng_function_kind)i;
        return i >= 0;
    case OPT_NAN_SIGN:
        i = one_of(v, signs, 2);
        r->op.cast.nan_sign = (ng_nan_sign)i;
        return i >= 0;
    case OPT_NAN_TO:
        i = one_of(v, targets, 3);
        r->op.cast.nan_to = (ng_nan_to)i;
        return i >= 0;
    default: return false;
    }
}

static const char *wanted_of(int o)
{
    switch (o) {
    case OPT_TO: return "a format that ngauge info lists";
    case OPT_ROUND: return "rne, rna, rtz, rdn, rup or rto";
    case OPT_OVERFLOW: return "inf, sat or sat_keep_inf";
    case OPT_CHOICE: return "cr, sleef or table";
    case OPT_NAN_SIGN: return "clear or keep";
    default: return "max, zero or error";
    }
}

static bool find_function(const char *name, ng_function *f)
{
    for (int i = 0; ng_function_name((ng_function)i); i++)
        if (strcmp(name, ng_function_name((ng_function)i)) == 0) {
            *f = (ng_function)i;
            return true;
        }
    return false;
}

static int load_table(struct request *r)
{
    const bool wanted = r->op.choice.kind == NG_FUNCTION_TABLE;
    if (wanted != (r->table_file != NULL))
        return cli_fail(EXIT_USAGE, "--choice table and --table FILE go together");
    if (!wanted)
        return 0;
    const int code = array_load(r->table_file, NULL, false, &r->table);
    if (code)
        return code;
    if (r->table.format != NG_BF16 || r->table.bytes != 65536 * sizeof(uint16_t))
        return cli_fail(EXIT_FILE, "--table holds %s %s; wanted: 65536 bf16 codes",
                        io_type_name(r->table.format, r->table.item_bits),
                        io_shape(r->table.rank, r->table.dim).text);
    r->op.choice.table = r->table.data;
    return 0;
}

/* ---- One number. ---- */

/* The next FP32 number, up or down; beyond an Inf there is none and it stays. */
static uint32_t beside(uint32_t x, bool up)
{
    const uint32_t inf = up ? 0x7F800000u : 0xFF800000u;
    if (x == inf || (x & 0x7FFFFFFFu) > 0x7F800000u)
        return x;
    if (!(x & 0x7FFFFFFFu))
        return up ? 1 : 0x80000001u;
    return (x >> 31 != 0) == up ? x - 1 : x + 1;
}

static bool parse_number(const char *text, uint32_t *pattern)
{
    uint64_t n;
    char *end;
    if (strncmp(text, "0x", 2) == 0) {
        if (!parse_u64(text, &n) || n > UINT32_MAX)
            return false;
        *pattern = (uint32_t)n;
        return true;
    }
    const float x = strtof(text, &end); /* rounds to nearest */
    memcpy(pattern, &x, sizeof x);
    return *text && !*end;
}

static int one_number(struct request *r)
{
    const int64_t one = 1;
    uint32_t x, y = 0;
    ng_tensor src, dst;
    if (!parse_number(r->of, &x))
        return cli_fail(EXIT_USAGE, "--of is '%s'; wanted: a number or 0xPATTERN of FP32",
                        r->of);
    (void)ng_tensor_init(&src, NG_F32, &x, 1, &one);
    (void)ng_tensor_init(&dst, NG_F32, &y, 1, &one);
    const ng_status s = ng_elementary(r->cli.ctx, &r->op, &src, &dst);
    if (s)
        return cli_refused(&r->cli, s, "");
    const char *name = ng_function_name(r->op.function), *kind = kinds[r->op.choice.kind];
    const struct code_text argument = code_text(NG_F32, x), result = code_text(NG_F32, y),
                           below = code_text(NG_F32, beside(y, false)),
                           above = code_text(NG_F32, beside(y, true));
    if (r->cli.json)
        return cli_print_json(
            json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "schema", "ng.report/1", "function",
                      name, "choice", kind, "evidence", "assumed", "argument", argument.text,
                      "result", result.text, "below", below.text, "above", above.text));
    printf("%s of %s, %s (assumed)\n  %s\nbeside it in FP32:\n  %s\n  %s\n", name,
           argument.text, kind, result.text, below.text, above.text);
    return 0;
}

/* ---- A tensor. ---- */

static int say_written(const struct request *r)
{
    const char *name = ng_function_name(r->op.function), *kind = kinds[r->op.choice.kind];
    const double seconds = seconds_now() - r->start;
    if (r->cli.json)
        return cli_print_json(json_pack(
            "{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:f,s:o}", "schema", "ng.report/1", "version",
            NG_CLI_VERSION, "function", name, "choice", kind, "evidence", "assumed", "from",
            io_type_name(r->src.format, 0), "to", io_type_name(r->dst.format, 0), "kernel",
            ng_ctx_kernel(r->cli.ctx), "seconds", seconds, "written", text_json(r->out)));
    if (!r->cli.quiet)
        printf("%s, %s (assumed), of %s %s to %s\nwritten to %s (%s, %.2f s)\n", name, kind,
               io_type_name(r->src.format, 0), io_shape(r->src.rank, r->src.dim).text,
               io_type_name(r->dst.format, 0), r->out, ng_ctx_kernel(r->cli.ctx), seconds);
    return 0;
}

static int make_output(struct request *r)
{
    r->dst = r->src;
    r->dst.format = r->to ? r->to : r->src.format;
    r->dst.item_bits = ng_format_info(r->dst.format)->store_bits;
    r->dst.bytes = io_array_size(r->dst.format, r->dst.item_bits, r->dst.rank, r->dst.dim);
    r->dst.data = r->dst.bytes ? calloc(1, r->dst.bytes) : NULL;
    const ng_format_spec *f = ng_format_info(r->dst.format);
    if (!r->has_overflow && !f->has_inf && !f->has_nan)
        r->op.cast.overflow = NG_OVERFLOW_SATURATE;
    return r->dst.data ? 0 : cli_fail(EXIT_INTERNAL, "out of memory");
}

static int whole_tensor(struct request *r)
{
    ng_tensor src, dst;
    int code = array_load(r->in, r->tensor, false, &r->src);
    if (!code)
        code = make_output(r);
    if (code)
        return code;
    if (!r->src.rank ||
        ng_tensor_init(&src, r->src.format, r->src.data, r->src.rank, r->src.dim) ||
        ng_tensor_init(&dst, r->dst.format, r->dst.data, r->dst.rank, r->dst.dim))
        return cli_fail(EXIT_REFUSED, "IN has shape %s; wanted: rank 1 to %d",
                        io_shape(r->src.rank, r->src.dim).text, NG_MAX_RANK);
    const ng_status s = ng_elementary(r->cli.ctx, &r->op, &src, &dst);
    if (s)
        return cli_refused(&r->cli, s, "");
    code = array_write(r->out, "dst", &r->dst);
    return code ? code : say_written(r);
}

static int run(struct request *r, int argc, char **argv)
{
    const int wanted = r->of ? 1 : 3;
    if (argc != wanted)
        return cli_fail(EXIT_USAGE,
                        "function wants NAME IN OUT, or NAME and --of X; see ngauge "
                        "function --help");
    if (r->of && r->of_tensors)
        return cli_fail(EXIT_USAGE, "--%s says nothing to --of: its result is FP32",
                        r->of_tensors);
    if (!find_function(argv[0], &r->op.function))
        return cli_fail(EXIT_USAGE,
                        "'%s' is no function; wanted: exp exp2 log tanh sigmoid reciprocal "
                        "rsqrt",
                        argv[0]);
    r->in = r->of ? NULL : argv[1];
    r->out = r->of ? NULL : argv[2];
    r->start = seconds_now();
    int code = load_table(r);
    if (!code)
        code = cli_open(&r->cli);
    if (!code)
        code = r->of ? one_number(r) : whole_tensor(r);
    cli_close(&r->cli);
    io_array_free(&r->src);
    io_array_free(&r->dst);
    io_array_free(&r->table);
    return code;
}

static const struct option long_options[] = {
    CLI_OPTIONS,
    { "of", required_argument, NULL, OPT_OF },
    { "choice", required_argument, NULL, OPT_CHOICE },
    { "table", required_argument, NULL, OPT_TABLE },
    { "to", required_argument, NULL, OPT_TO },
    { "round", required_argument, NULL, OPT_ROUND },
    { "overflow", required_argument, NULL, OPT_OVERFLOW },
    { "nan-sign", required_argument, NULL, OPT_NAN_SIGN },
    { "nan-to", required_argument, NULL, OPT_NAN_TO },
    { "tensor", required_argument, NULL, OPT_TENSOR },
    { 0 }
};

static int take(void *to, int o, const char *v)
{
    return take_value(to, o, v) ? 0 : cli_bad_value(long_options, o, v, wanted_of(o));
}

int cmd_function(int argc, char **argv)
{
    struct request r = { .cli = { .threads = 1 }, .op = { .size = sizeof r.op } };
    int code;
    if (!cli_options(&r.cli, argc, argv,
                     &(struct cli_options){ CLI_SHORT, long_options, help, take, &r }, &code))
        return code;
    return run(&r, argc - optind, argv + optind);
}
