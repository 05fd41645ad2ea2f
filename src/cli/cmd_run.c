/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge run and ngauge convert: compute an output and write it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "block.h"
#include "layer.h"

static const char run_help[] =
    "usage: ngauge run CASE -o OUT\n"
    "       ngauge run dot|gemm --profile P --a FILE=FORMAT --b FILE=FORMAT [--c FILE=FORMAT]\n"
    "                  --to FORMAT [--a-scale FILE --b-scale FILE] [MORE] -o OUT\n"
    "       ngauge run quantize|dequantize|convert --src FILE=FORMAT --to FORMAT [MORE] -o "
    "OUT\n"
    "       ngauge run layer --preset MODEL [MORE]   (ngauge run layer --help)\n"
    "       ngauge run attention|route OPTIONS ...   as ngauge attention run, ngauge route\n\n"
    "OUT ends in .safetensors (the whole case, replayable by ngauge verify), .npy or anything\n"
    "else (raw). FORMAT may be a raw spec, e4m3fn:512x1024[@OFFSET]; FILE.safetensors:NAME is\n"
    "one of several tensors. A CASE (docs/cli.md) can "
    "say\n"
    "everything; the options say the common part:\n\n"
    "  --round R --overflow O --words FILE    of the output; words: uint32 .npy for sr, or a\n"
    "                                         generator as in a case, '{\"philox\": {}}'\n"
    "  --set RULE.KEY=VALUE                   a parameter of the profile (dot, gemm, CASE)\n"
    "  --accumulate F  --double-row  --out-scale 0xPATTERN            (dot, gemm)\n"
    "  --fp4-map FORMAT:0xCODE,0xCODE,..   16 codes, of e4m3fn or e5m2, that stand for those\n"
    "                                      of e2m1 operands           (dot, gemm)\n"
    "  --scale-format F --block N --axis N --layout L   of scales (default e8m0, 32, last, "
    "linear)\n"
    "  --rule R --special S --scale-out FILE            (quantize)\n"
    "  --src-scale FILE                                 (dequantize)\n"
    "and the options of every command: ngauge --help\n"
    "ngauge quantize and ngauge dequantize are the same operations on files, with presets.\n";

static const char convert_help[] =
    "usage: ngauge convert --to FORMAT [--round R] [--overflow O] IN=FORMAT OUT\n\n"
    "IN is .npy, .safetensors or raw with a spec: in.bin=f32:512x1024. A .npy with a sidecar\n"
    "needs no =FORMAT, nor does a .safetensors.\n"
    "  --tensor NAME                        of IN, where that is a .safetensors with several\n"
    "  --round rne|rna|rtz|rdn|rup|rto|sr   default rne\n"
    "  --overflow inf|sat|sat_keep_inf      default inf\n"
    "  --nan-sign clear|keep   --nan-to max|zero|error   --words FILE|JSON (for sr)\n"
    "and the options of every command: ngauge --help\n";

static bool is_op(const char *text)
{
    for (int i = OP_DOT; i <= OP_CONVERT; i++)
        if (strcmp(text, op_text((enum op)i)) == 0)
            return true;
    return false;
}

enum {
    OPTION_NAMES = OPT_SETTING - OPT_OWN + 1
};

/* How scales are read says nothing where there are none. */
static uint64_t idle_scale_options(const struct builder *b, const char *what)
{
    const uint64_t scale =
        BIT(OPT_SCALE_FORMAT) | BIT(OPT_BLOCK) | BIT(OPT_AXIS) | BIT(OPT_LAYOUT);
    const bool multiply = strcmp(what, "dot") == 0 || strcmp(what, "gemm") == 0;
    return multiply && !b->n_scale_files ? b->seen & scale : 0;
}

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
               BIT(OPT_OUT_SCALE) | BIT(OPT_FP4_MAP) | BIT(OPT_SETTING);
    if (strcmp(what, "quantize") == 0)
        return (cast & ~BIT(OPT_OVERFLOW)) | scale | BIT(OPT_SRC) | BIT(OPT_RULE) |
               BIT(OPT_SPECIAL) | BIT(OPT_SCALE_OUT); /* its elements saturate */
    if (strcmp(what, "dequantize") == 0)
        return cast | scale | BIT(OPT_SRC) | BIT(OPT_SRC_SCALE);
    if (strcmp(what, "convert") == 0)
        return cast | BIT(OPT_SRC);
    return BIT(OPT_SCALE_OUT) | BIT(OPT_SETTING);
}

static int check_options(const struct builder *b, const char *what)
{
    static const char *const names[OPTION_NAMES] = {
        "profile",      "a",       "b",          "c",          "src",       "to",
        "a-scale",      "b-scale", "src-scale",  "round",      "overflow",  "nan-sign",
        "nan-to",       "words",   "accumulate", "double-row", "out-scale", "fp4-map",
        "scale-format", "block",   "axis",       "layout",     "rule",      "special",
        "scale-out",    "set"
    };
    const uint64_t idle = b->seen & ~options_of(what), scale = idle_scale_options(b, what);
    if (idle)
        return cli_fail(EXIT_USAGE, "--%s says nothing to run %s", names[__builtin_ctzll(idle)],
                        is_op(what) ? what : "with a case file, which says everything itself");
    if (scale)
        return cli_fail(EXIT_USAGE,
                        "--%s says nothing to run %s without scales: wanted with "
                        "it: --a-scale and --b-scale",
                        names[__builtin_ctzll(scale)], what);
    if (!b->out)
        return cli_fail(EXIT_USAGE, "run wants -o OUT");
    return 0;
}

static int run_block(const struct cli *cli, const struct builder *b, struct one_case *c,
                     bool whole)
{
    if (b->scale_out)
        return cli_fail(EXIT_USAGE, "--scale-out says nothing to run %s", op_text(c->op));
    return block_run(cli, c, &(struct block_files){ { NULL } }, whole ? b->out : NULL,
                     whole ? NULL : b->out);
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
        json_t *root = builder_json(b, what);
        code = case_from_json(root, false, b->set, &list);
        json_decref(root);
    } else if (!strpbrk(what, "./") && access(what, F_OK)) {
        code = cli_fail(EXIT_USAGE,
                        "'%s' is neither an operation (dot gemm quantize dequantize convert "
                        "attention route layer) nor a case",
                        what);
    } else {
        code = case_read(what, false, b->set, &list);
    }
    if (!code && list.n != 1)
        code = cli_fail(EXIT_USAGE, "%s holds %zu cases; run takes one", what, list.n);
    if (!code && list.item[0].op == OP_QUANTIZE && !b->scale_out && !is_safetensors(b->out))
        code =
            cli_fail(EXIT_USAGE, "a quantize has scales too: give --scale-out FILE, or an OUT "
                                 "that ends in .safetensors");
    if (!code)
        code = cli_open(cli);
    const bool whole = is_safetensors(b->out);
    if (!code && list.item[0].op > OP_CONVERT)
        code = run_block(cli, b, &list.item[0], whole);
    else if (!code)
        code = compute_and_write(
            cli, &list.item[0],
            &(struct outputs){ .path = b->out, .scale = b->scale_out, .whole = whole });
    cli_close(cli);
    case_free(&list);
    return code;
}

static int take(void *to, int o, const char *v)
{
    return builder_option(to, o, v);
}

int cmd_run(int argc, char **argv)
{
    static const struct option long_options[] = {
        CLI_OPTIONS,
        CAST_OPTIONS,
        { "profile", required_argument, NULL, OPT_PROFILE },
        { "set", required_argument, NULL, OPT_SETTING },
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
        { "fp4-map", required_argument, NULL, OPT_FP4_MAP },
        { "scale-format", required_argument, NULL, OPT_SCALE_FORMAT },
        { "block", required_argument, NULL, OPT_BLOCK },
        { "axis", required_argument, NULL, OPT_AXIS },
        { "layout", required_argument, NULL, OPT_LAYOUT },
        { "rule", required_argument, NULL, OPT_RULE },
        { "special", required_argument, NULL, OPT_SPECIAL },
        { "scale-out", required_argument, NULL, OPT_SCALE_OUT },
        { 0 }
    };
    if (argc > 1 && strcmp(argv[1], "layer") == 0) {
        argv[1] = (char *)"run layer"; /* its options are its own */
        return cmd_run_layer(argc - 1, argv + 1);
    }
    struct cli cli = { .threads = 1, .max_report = 5 };
    struct builder b = builder_open();
    int code;
    /* Their options are their own: the commands of that name take them. */
    if (argc > 1 && strcmp(argv[1], "attention") == 0) {
        builder_close(&b);
        argv[0] = argv[1];
        argv[1] = (char *)"run";
        return cmd_attention(argc, argv);
    }
    if (argc > 1 && strcmp(argv[1], "route") == 0) {
        builder_close(&b);
        return cmd_route(argc - 1, argv + 1);
    }
    if (cli_options(&cli, argc, argv,
                    &(struct cli_options){ CLI_SHORT "o:", long_options, run_help, take, &b },
                    &code)) {
        code = cli_words("run", argv + optind, 1, 1, "one operation or CASE");
        if (!code)
            code = run_what(&cli, &b, argv[optind]);
    }
    builder_close(&b);
    return code;
}

/* ---- ngauge convert. ---- */

static int convert_files(struct cli *cli, struct builder *b, const char *in, const char *out)
{
    struct case_list list = { NULL, 0 };
    int code = builder_tensor(b, "src", in);
    if (!code && !json_object_get(b->root, "to"))
        code = cli_fail(EXIT_USAGE, "convert wants --to FORMAT");
    if (code)
        return code;
    json_t *root = builder_json(b, "convert");
    code = case_from_json(root, false, NULL, &list);
    json_decref(root);
    if (!code)
        code = cli_open(cli);
    if (!code)
        code = compute_and_write(cli, &list.item[0], &(struct outputs){ .path = out });
    cli_close(cli);
    case_free(&list);
    return code;
}

int cmd_convert(int argc, char **argv)
{
    static const struct option long_options[] = {
        CLI_OPTIONS, CAST_OPTIONS, TENSOR_OPTION, { 0 }
    };
    struct cli cli = { .threads = 1, .max_report = 5 };
    struct builder b = builder_open();
    int code;
    if (cli_options(&cli, argc, argv,
                    &(struct cli_options){ CLI_SHORT, long_options, convert_help, take, &b },
                    &code)) {
        code = cli_words("convert", argv + optind, 2, 2, "two files, IN and OUT");
        if (!code)
            code = convert_files(&cli, &b, argv[optind], argv[optind + 1]);
    }
    builder_close(&b);
    return code;
}
