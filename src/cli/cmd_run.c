/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge run and ngauge convert: compute an output and write it. */
#include <stdlib.h>
#include <string.h>

#include "case.h"

static const char run_help[] =
    "usage: ngauge run CASE -o OUT\n"
    "       ngauge run dot|gemm --profile P --a FILE=FORMAT --b FILE=FORMAT [--c FILE=FORMAT]\n"
    "                  --to FORMAT [--a-scale FILE --b-scale FILE] [MORE] -o OUT\n"
    "       ngauge run quantize|dequantize|convert --src FILE=FORMAT --to FORMAT [MORE] -o "
    "OUT\n\n"
    "OUT ends in .safetensors (the whole case, replayable by ngauge verify), .npy or anything\n"
    "else (raw). FORMAT may be a raw spec, e4m3fn:512x1024[@OFFSET]. A CASE (docs/cli.md) can "
    "say\n"
    "everything; the options say the common part:\n\n"
    "  --round R --overflow O --words FILE    of the output; words: uint32 .npy for sr, or a\n"
    "                                         generator as in a case, '{\"philox\": {}}'\n"
    "  --accumulate F  --double-row  --out-scale 0xPATTERN            (dot, gemm)\n"
    "  --scale-format F --block N --axis N --layout L   of scales (default e8m0, 32, last, "
    "linear)\n"
    "  --rule R --special S --scale-out FILE            (quantize)\n"
    "  --src-scale FILE                                 (dequantize)\n"
    "and the options of every command: ngauge --help\n";

static const char convert_help[] =
    "usage: ngauge convert --to FORMAT [--round R] [--overflow O] IN=FORMAT OUT\n\n"
    "IN is .npy, .safetensors (one tensor) or raw with a spec: in.bin=f32:512x1024. A .npy "
    "with a\n"
    "sidecar needs no =FORMAT.\n"
    "  --round rne|rna|rtz|rdn|rup|rto|sr   default rne\n"
    "  --overflow inf|sat|sat_keep_inf      default inf\n"
    "  --nan-sign clear|keep   --nan-to max|zero|error   --words FILE|JSON (for sr)\n"
    "and the options of every command: ngauge --help\n";

/* The command line as the JSON of a case. */
struct builder {
    json_t *root, *one, *tensors, *cast, *scale;
    const char *out, *scale_out;
    struct {
        const char *tensor, *file;
    } scale_file[3];
    int n_scale_files;
    uint64_t seen; /* options of its own that the command line had: bit i for OPT_OWN + i */
};

/* FILE=FORMAT or FILE=FORMAT:DIMS[@OFFSET] */
static int set_tensor(struct builder *b, const char *name, const char *spec)
{
    const char *eq = strrchr(spec, '=');
    char file[1024], format[32];
    if (!eq || eq == spec || (size_t)(eq - spec) >= sizeof file)
        return cli_fail(EXIT_USAGE, "'%s' is not FILE=FORMAT: files are never typed by guess",
                        spec);
    snprintf(file, sizeof file, "%.*s", (int)(eq - spec), spec);
    snprintf(format, sizeof format, "%.*s", (int)strcspn(eq + 1, ":"), eq + 1);
    json_t *t = json_pack("{s:s,s:s}", "file", file, "format", format);
    if (strchr(eq + 1, ':'))
        json_object_set_new(t, "raw", json_string(eq + 1));
    json_object_set_new(b->tensors, name, t);
    return 0;
}

static void set_text(json_t *object, const char *key, const char *text)
{
    json_object_set_new(object, key, json_string(text));
}

static int set_integer(json_t *object, const char *key, const char *text)
{
    uint64_t v;
    if (!parse_u64(text, &v) || v > INT32_MAX)
        return cli_fail(EXIT_USAGE, "'%s' is no number for --%s", text, key);
    json_object_set_new(object, key, json_integer((json_int_t)v));
    return 0;
}

enum {
    OPT_PROFILE = OPT_OWN,
    OPT_A,
    OPT_B,
    OPT_C,
    OPT_SRC,
    OPT_TO,
    OPT_A_SCALE,
    OPT_B_SCALE,
    OPT_SRC_SCALE,
    OPT_ROUND,
    OPT_OVERFLOW,
    OPT_NAN_SIGN,
    OPT_NAN_TO,
    OPT_WORDS,
    OPT_ACCUMULATE,
    OPT_DOUBLE_ROW,
    OPT_OUT_SCALE,
    OPT_SCALE_FORMAT,
    OPT_BLOCK,
    OPT_AXIS,
    OPT_LAYOUT,
    OPT_RULE,
    OPT_SPECIAL,
    OPT_SCALE_OUT
};

/* Of an output's rounding: what every operation here has. */
#define CAST_OPTIONS                                                                           \
    { "to", required_argument, NULL, OPT_TO },                                                 \
        { "round", required_argument, NULL, OPT_ROUND },                                       \
        { "overflow", required_argument, NULL, OPT_OVERFLOW },                                 \
        { "nan-sign", required_argument, NULL, OPT_NAN_SIGN },                                 \
        { "nan-to", required_argument, NULL, OPT_NAN_TO },                                     \
    {                                                                                          \
        "words", required_argument, NULL, OPT_WORDS                                            \
    }

static void set_scale_file(struct builder *b, const char *tensor, const char *file)
{
    if (b->n_scale_files < 3) {
        b->scale_file[b->n_scale_files].tensor = tensor;
        b->scale_file[b->n_scale_files++].file = file;
    }
}

static void set_profile(struct builder *b, const char *name)
{
    if (ng_profile_find(name))
        set_text(b->one, "profile", name);
    else
        json_object_set_new(b->one, "profile", json_pack("{s:s}", "file", name));
}

/* A file, or a generator as in a case: {"philox": {"key": ["0x1", "0x2"]}} */
static int set_words(struct builder *b, const char *text)
{
    json_t *words =
        text[0] == '{' ? json_loads(text, 0, NULL) : json_pack("{s:s}", "file", text);
    if (!words)
        return cli_fail(EXIT_USAGE, "--words %s is no JSON", text);
    json_object_set_new(b->cast, "words", words);
    return 0;
}

static int take_option(struct builder *b, int o, const char *v)
{
    if (o >= OPT_OWN)
        b->seen |= (uint64_t)1 << (o - OPT_OWN);
    switch (o) {
    case OPT_PROFILE: set_profile(b, v); return 0;
    case OPT_A: return set_tensor(b, "a", v);
    case OPT_B: return set_tensor(b, "b", v);
    case OPT_C: return set_tensor(b, "c", v);
    case OPT_SRC: return set_tensor(b, "src", v);
    case OPT_TO: set_text(b->root, "to", v); return 0;
    case OPT_A_SCALE: set_scale_file(b, "a", v); return 0;
    case OPT_B_SCALE: set_scale_file(b, "b", v); return 0;
    case OPT_SRC_SCALE: set_scale_file(b, "src", v); return 0;
    case OPT_ROUND: set_text(b->cast, "round", v); return 0;
    case OPT_OVERFLOW: set_text(b->cast, "overflow", v); return 0;
    case OPT_NAN_SIGN: set_text(b->cast, "nan_sign", v); return 0;
    case OPT_NAN_TO: set_text(b->cast, "nan_to", v); return 0;
    case OPT_WORDS: return set_words(b, v);
    case OPT_ACCUMULATE: set_text(b->one, "accumulate", v); return 0;
    case OPT_DOUBLE_ROW: json_object_set_new(b->one, "double_row", json_true()); return 0;
    case OPT_OUT_SCALE: set_text(b->one, "out_scale", v); return 0;
    case OPT_SCALE_FORMAT: set_text(b->scale, "format", v); return 0;
    case OPT_BLOCK: return set_integer(b->scale, "block", v);
    case OPT_AXIS: return set_integer(b->scale, "axis", v);
    case OPT_LAYOUT: set_text(b->scale, "layout", v); return 0;
    case OPT_RULE: set_text(b->one, "rule", v); return 0;
    case OPT_SPECIAL: set_text(b->one, "special", v); return 0;
    case OPT_SCALE_OUT: b->scale_out = v; return 0;
    case 'o': b->out = v; return 0;
    default: return EXIT_USAGE;
    }
}

/* Without --axis the blocks run along K, or along the last dimension. */
static void finish_scales(struct builder *b)
{
    for (int i = 0; i < b->n_scale_files; i++) {
        json_t *t = json_object_get(b->tensors, b->scale_file[i].tensor);
        json_t *s = json_deep_copy(b->scale);
        set_text(s, "file", b->scale_file[i].file);
        json_object_set_new(t, "scale", s);
    }
}

static json_t *finish(struct builder *b, const char *op)
{
    const bool multiply = strcmp(op, "dot") == 0 || strcmp(op, "gemm") == 0;
    json_t *to = json_object_get(b->root, "to");
    json_t *out = json_pack("{s:O}", "format", to);
    if (strcmp(op, "quantize") == 0)
        json_object_set(out, "scale", b->scale);
    finish_scales(b);
    json_object_set_new(b->tensors, multiply ? "d" : "dst", out);
    set_text(b->one, "op", op);
    json_object_set(b->one, "tensors", b->tensors);
    if (json_object_size(b->cast))
        json_object_set(b->one, multiply ? "out" : "cast", b->cast);
    return json_pack("{s:s,s:[O]}", "schema", "ng.case/1", "cases", b->one);
}

static struct builder builder_open(void)
{
    return (struct builder){ .root = json_object(),
                             .one = json_object(),
                             .tensors = json_object(),
                             .cast = json_object(),
                             .scale = json_object() };
}

static void builder_close(struct builder *b)
{
    json_decref(b->root);
    json_decref(b->one);
    json_decref(b->tensors);
    json_decref(b->cast);
    json_decref(b->scale);
}

/* ---- Computing and writing. ---- */

static int write_result(struct one_case *c, struct operand *out, const char *path,
                        const char *scale_path, bool whole)
{
    struct operand *slot = case_output(c);
    if (!whole) {
        int code = array_write(path, c->op <= OP_GEMM ? "d" : "dst", &out->data);
        if (!code && out->scale.data && scale_path)
            code = array_write(scale_path, "scale", &out->scale);
        return code;
    }
    const struct operand keep = *slot; /* the shape without memory */
    *slot = *out;
    const int code = case_write_st(path, c);
    *slot = keep;
    return code;
}

static int compute_and_write(const struct cli *cli, struct one_case *c, const char *path,
                             const char *scale_path, bool whole)
{
    struct operand out = { .present = false };
    char what[400];
    int code = case_shape_output(c);
    if (code)
        return code;
    if (!operand_alloc_like(&out, case_output(c), 0))
        return cli_fail(EXIT_INTERNAL, "out of memory");
    const double start = seconds_now();
    const ng_status s = case_compute(cli, cli->ctx, c, &out, true);
    code = s ? cli_refused(cli, s, "") : write_result(c, &out, path, scale_path, whole);
    if (!code && out.view.tensor_scale && !whole && !cli->json)
        printf("tensor scale 0x%08x\n", (unsigned)out.view.tensor_scale);
    if (!code && (!cli->quiet || cli->json)) {
        case_describe(c, what, sizeof what);
        if (cli->json)
            code = cli_print_json(json_pack(
                "{s:s,s:s,s:o,s:i,s:s,s:f}", "schema", "ng.report/1", "what", what, "written",
                text_json(path), "tensor_scale", (int)out.view.tensor_scale, "kernel",
                ng_ctx_kernel(cli->ctx), "seconds", seconds_now() - start));
        else
            printf("%s\nwritten to %s (%s, %.2f s)\n", what, path, ng_ctx_kernel(cli->ctx),
                   seconds_now() - start);
    }
    operand_free(&out);
    return code;
}

static bool is_op(const char *text)
{
    for (int i = OP_DOT; i <= OP_CONVERT; i++)
        if (strcmp(text, op_text((enum op)i)) == 0)
            return true;
    return false;
}

static bool is_safetensors(const char *path)
{
    const size_t n = strlen(path);
    return n > 12 && strcmp(path + n - 12, ".safetensors") == 0;
}

#define BIT(option) ((uint64_t)1 << ((option)-OPT_OWN))
enum {
    OPTION_NAMES = OPT_SCALE_OUT - OPT_OWN + 1
};

/* Which options an operation reads; a case file says all of it itself. */
static uint64_t options_of(const char *what)
{
    const uint64_t cast = BIT(OPT_TO) | BIT(OPT_ROUND) | BIT(OPT_OVERFLOW) | BIT(OPT_NAN_SIGN) |
                          BIT(OPT_NAN_TO) | BIT(OPT_WORDS);
    const uint64_t scale =
        BIT(OPT_SCALE_FORMAT) | BIT(OPT_BLOCK) | BIT(OPT_AXIS) | BIT(OPT_LAYOUT);
    if (strcmp(what, "dot") == 0 || strcmp(what, "gemm") == 0)
        return cast | scale | BIT(OPT_PROFILE) | BIT(OPT_A) | BIT(OPT_B) | BIT(OPT_C) |
               BIT(OPT_A_SCALE) | BIT(OPT_B_SCALE) | BIT(OPT_ACCUMULATE) | BIT(OPT_DOUBLE_ROW) |
               BIT(OPT_OUT_SCALE);
    if (strcmp(what, "quantize") == 0)
        return cast | scale | BIT(OPT_SRC) | BIT(OPT_RULE) | BIT(OPT_SPECIAL) |
               BIT(OPT_SCALE_OUT);
    if (strcmp(what, "dequantize") == 0)
        return cast | scale | BIT(OPT_SRC) | BIT(OPT_SRC_SCALE);
    if (strcmp(what, "convert") == 0)
        return cast | BIT(OPT_SRC);
    return BIT(OPT_SCALE_OUT);
}

static int check_options(const struct builder *b, const char *what)
{
    static const char *const names[OPTION_NAMES] = {
        "profile", "a",       "b",          "c",          "src",       "to",
        "a-scale", "b-scale", "src-scale",  "round",      "overflow",  "nan-sign",
        "nan-to",  "words",   "accumulate", "double-row", "out-scale", "scale-format",
        "block",   "axis",    "layout",     "rule",       "special",   "scale-out"
    };
    const uint64_t idle = b->seen & ~options_of(what);
    if (idle)
        return cli_fail(EXIT_USAGE, "--%s says nothing to run %s", names[__builtin_ctzll(idle)],
                        is_op(what) ? what : "with a case file, which says everything itself");
    if (!b->out)
        return cli_fail(EXIT_USAGE, "run wants -o OUT");
    return 0;
}

static int run_what(struct cli *cli, struct builder *b, const char *what)
{
    struct case_list list = { NULL, 0 };
    int code = check_options(b, what);
    if (code)
        return code;
    if (is_op(what)) {
        if (!json_object_get(b->root, "to"))
            return cli_fail(EXIT_USAGE, "run %s wants --to FORMAT", what);
        json_t *root = finish(b, what);
        code = case_from_json(root, false, &list);
        json_decref(root);
    } else {
        code = case_read(what, false, &list);
    }
    if (!code && list.n != 1)
        code = cli_fail(EXIT_USAGE, "%s holds %zu cases; run takes one", what, list.n);
    if (!code && list.item[0].op == OP_QUANTIZE && !b->scale_out && !is_safetensors(b->out))
        code =
            cli_fail(EXIT_USAGE, "a quantize has scales too: give --scale-out FILE, or an OUT "
                                 "that ends in .safetensors");
    if (!code)
        code = cli_open(cli);
    if (!code)
        code =
            compute_and_write(cli, &list.item[0], b->out, b->scale_out, is_safetensors(b->out));
    cli_close(cli);
    case_free(&list);
    return code;
}

int cmd_run(int argc, char **argv)
{
    static const struct option long_options[] = {
        CLI_OPTIONS,
        CAST_OPTIONS,
        { "profile", required_argument, NULL, OPT_PROFILE },
        { "a", required_argument, NULL, OPT_A },
        { "b", required_argument, NULL, OPT_B },
        { "c", required_argument, NULL, OPT_C },
        { "src", required_argument, NULL, OPT_SRC },
        { "a-scale", required_argument, NULL, OPT_A_SCALE },
        { "b-scale", required_argument, NULL, OPT_B_SCALE },
        { "src-scale", required_argument, NULL, OPT_SRC_SCALE },
        { "accumulate", required_argument, NULL, OPT_ACCUMULATE },
        { "double-row", no_argument, NULL, OPT_DOUBLE_ROW },
        { "out-scale", required_argument, NULL, OPT_OUT_SCALE },
        { "scale-format", required_argument, NULL, OPT_SCALE_FORMAT },
        { "block", required_argument, NULL, OPT_BLOCK },
        { "axis", required_argument, NULL, OPT_AXIS },
        { "layout", required_argument, NULL, OPT_LAYOUT },
        { "rule", required_argument, NULL, OPT_RULE },
        { "special", required_argument, NULL, OPT_SPECIAL },
        { "scale-out", required_argument, NULL, OPT_SCALE_OUT },
        { 0 }
    };
    struct cli cli = { .threads = 1, .max_report = 5 };
    struct builder b = builder_open();
    int code = 0;
    bool bad, help = false;
    for (int o;
         !code && (o = getopt_long(argc, argv, CLI_SHORT "o:", long_options, NULL)) != -1;) {
        if (cli_option(&cli, o, optarg, &bad))
            code = bad ? EXIT_USAGE : 0;
        else if (o == 'h')
            help = true;
        else
            code = take_option(&b, o, optarg);
    }
    if (help)
        fputs(run_help, stdout);
    else if (!code && argc - optind != 1) {
        fputs(run_help, stderr);
        code = EXIT_USAGE;
    } else if (!code)
        code = run_what(&cli, &b, argv[optind]);
    builder_close(&b);
    return code;
}

/* ---- ngauge convert. ---- */

/* The input without a FORMAT: a .npy with a sidecar, or the one tensor of a safetensors file.
 */
static int untyped_source(struct builder *b, const char *path)
{
    struct io_error e;
    if (is_safetensors(path)) {
        struct st_file st;
        if (!st_read(path, &st, &e))
            return cli_fail(EXIT_FILE, "%s", e.text);
        int code = 0;
        if (st.n_arrays != 1 || !st.array[0].format)
            code = cli_fail(EXIT_FILE, "%s: wanted one tensor with an element format", path);
        else
            json_object_set_new(b->tensors, "src",
                                json_pack("{s:s,s:s,s:s}", "file", path, "tensor",
                                          st.array[0].name, "format",
                                          io_type_name(st.array[0].format, 0)));
        st_free(&st);
        return code;
    }
    struct io_array a;
    if (!npy_read(path, NG_FORMAT_NONE, false, &a, &e))
        return cli_fail(EXIT_FILE, "%s", e.text);
    json_object_set_new(
        b->tensors, "src",
        json_pack("{s:s,s:s}", "file", path, "format", io_type_name(a.format, 0)));
    io_array_free(&a);
    return 0;
}

static int convert_files(struct cli *cli, struct builder *b, const char *in, const char *out)
{
    struct case_list list = { NULL, 0 };
    int code = strchr(in, '=') ? set_tensor(b, "src", in) : untyped_source(b, in);
    if (!code && !json_object_get(b->root, "to"))
        code = cli_fail(EXIT_USAGE, "convert wants --to FORMAT");
    if (code)
        return code;
    json_t *root = finish(b, "convert");
    code = case_from_json(root, false, &list);
    json_decref(root);
    if (!code)
        code = cli_open(cli);
    if (!code)
        code = compute_and_write(cli, &list.item[0], out, NULL, false);
    cli_close(cli);
    case_free(&list);
    return code;
}

int cmd_convert(int argc, char **argv)
{
    static const struct option long_options[] = { CLI_OPTIONS, CAST_OPTIONS, { 0 } };
    struct cli cli = { .threads = 1, .max_report = 5 };
    struct builder b = builder_open();
    int code = 0;
    bool bad, help = false;
    for (int o; !code && (o = getopt_long(argc, argv, CLI_SHORT, long_options, NULL)) != -1;) {
        if (cli_option(&cli, o, optarg, &bad))
            code = bad ? EXIT_USAGE : 0;
        else if (o == 'h')
            help = true;
        else
            code = take_option(&b, o, optarg);
    }
    if (help)
        fputs(convert_help, stdout);
    else if (!code && argc - optind != 2) {
        fputs(convert_help, stderr);
        code = EXIT_USAGE;
    } else if (!code)
        code = convert_files(&cli, &b, argv[optind], argv[optind + 1]);
    builder_close(&b);
    return code;
}
