/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge quantize and ngauge dequantize: what run does under these names, of files. */
#include <stdlib.h>
#include <string.h>

#include "make_case.h"

static const char quantize_help[] =
    "usage: ngauge quantize --preset NAME [OPTIONS] IN[=FORMAT] OUT\n"
    "       ngauge quantize --to FORMAT --rule R [OPTIONS] IN[=FORMAT] OUT\n\n"
    "Elements to OUT, block scales to --scale-out FILE. An OUT that ends in .safetensors is\n"
    "the whole case (source, elements, linear scales), replayable by ngauge verify; it needs\n"
    "no --scale-out. IN is .npy, .safetensors or raw with a spec: in.bin=f32:512x1024.\n"
    "  --tensor NAME        of IN, where that is a .safetensors with several\n"
    "  --preset mxfp8|mxfp6|mxfp4|mxint8|trn3|nvfp4   elements, rule, block, scale format;\n"
    "                       --to chooses where there are several elements (docs/cli.md)\n"
    "  --rule floor|floor_up1|ceil|even|rceil|nvfp4_te|nvfp4_exact\n"
    "  --special element|nan_block|from_exponent      default element\n"
    "  --scale-format e8m0|ue4m3  --block N  --axis N    default e8m0, 32, the last\n"
    "  --layout linear|trn_wrap|trn_1x32              which elements form a block\n"
    "  --scale-store linear|trn_sbuf|swizzle_128x4    the order in the --scale-out FILE\n"
    "  --tile-rows P  --offset 0|4|8|12               of trn_sbuf; default 128 and 0\n"
    "  --tensor-amax 0xPATTERN                        NVFP4: FP32; default: found\n"
    "  --round R  --nan-sign clear|keep  --words FILE|JSON (for sr)\n"
    "  --transpose FILE --transpose-scale-out FILE    of the transposed matrix too, in one\n"
    "                                                 pass, with the same options\n"
    "and the options of every command: ngauge --help\n";

static const char dequantize_help[] =
    "usage: ngauge dequantize --to FORMAT --scale FILE [OPTIONS] IN[=FORMAT] OUT\n"
    "       ngauge dequantize --to FORMAT [OPTIONS] CASE.safetensors OUT\n\n"
    "The values of elements and block scales, in FORMAT. CASE is what ngauge quantize wrote;\n"
    "it says everything about its scales. OUT that ends in .safetensors is the whole case.\n"
    "  --scale FILE         .npy, .safetensors (FILE:NAME of several) or raw\n"
    "  --tensor NAME        of IN, where that is a .safetensors with several\n"
    "  --scale-format e8m0|ue4m3  --block N  --axis N    default e8m0, 32, the last\n"
    "  --layout linear|trn_wrap|trn_1x32              which elements form a block\n"
    "  --scale-store linear|trn_sbuf|swizzle_128x4    the order in the --scale FILE\n"
    "  --tile-rows P  --offset 0|4|8|12               of trn_sbuf; default 128 and 0\n"
    "  --tensor-scale 0xPATTERN                       NVFP4: FP32; default 1.0\n"
    "  --round R  --overflow O  --nan-sign S  --nan-to T  --words FILE|JSON (for sr)\n"
    "and the options of every command: ngauge --help\n";

/* ---- Presets. Elements: those that the source names; the first is meant without --to. ---- */

static const struct preset {
    const char *name, *to[3], *rule, *block, *scale_format;
    bool choose; /* no element format stands for the name alone */
} presets[] = {
    /* OCP Microscaling Formats (MX) 1.0, table 1 and section 6.3 */
    { "mxfp8", { "e4m3fn", "e5m2" }, "floor", "32", "e8m0", false },
    { "mxfp6", { "e3m2", "e2m3" }, "floor", "32", "e8m0", true },
    { "mxfp4", { "e2m1" }, "floor", "32", "e8m0", false },
    { "mxint8", { "mxint8" }, "floor", "32", "e8m0", false },
    /* docs/numerics.md, section 3.1: what quantize_mx writes */
    { "trn3", { "e4m3fn", "e5m2" }, "floor_up1", "32", "e8m0", false },
    /* docs/numerics.md, sections 3.2 and 11.5 */
    { "nvfp4", { "e2m1" }, "nvfp4_te", "16", "ue4m3", false },
};

static const struct preset *find_preset(const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    return NULL;
}

static int set_elements(struct builder *b, const struct preset *p)
{
    const char *to = json_string_value(json_object_get(b->root, "to"));
    for (int i = 0; to && p->to[i]; i++)
        if (strcmp(to, p->to[i]) == 0)
            return 0;
    if (to || p->choose)
        return cli_fail(EXIT_USAGE, "preset %s has --to %s%s%s, not %s", p->name, p->to[0],
                        p->to[1] ? " or " : "", p->to[1] ? p->to[1] : "",
                        to ? to : "one alone");
    return builder_option(b, OPT_TO, p->to[0]);
}

/* One of a preset's values; an option may repeat it, not contradict. */
static int set_default(struct builder *b, const struct preset *p, int option, const char *name,
                       json_t *given, const char *value)
{
    char text[32] = "";
    if (!given)
        return builder_option(b, option, value);
    if (json_is_integer(given))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(given));
    else
        snprintf(text, sizeof text, "%s", json_string_value(given));
    return strcmp(text, value) == 0 ? 0
                                    : cli_fail(EXIT_USAGE, "preset %s means --%s %s, not %s",
                                               p->name, name, value, text);
}

static int set_preset(struct builder *b, const char *name)
{
    const struct preset *p = find_preset(name);
    if (!p)
        return cli_fail(EXIT_USAGE,
                        "'%.40s' is no preset; wanted: mxfp8, mxfp6, mxfp4, mxint8, trn3 or "
                        "nvfp4",
                        name);
    int code = set_elements(b, p);
    if (!code)
        code = set_default(b, p, OPT_RULE, "rule", json_object_get(b->one, "rule"), p->rule);
    if (!code)
        code =
            set_default(b, p, OPT_BLOCK, "block", json_object_get(b->scale, "block"), p->block);
    if (!code)
        code = set_default(b, p, OPT_SCALE_FORMAT, "scale-format",
                           json_object_get(b->scale, "format"), p->scale_format);
    return code;
}

/* ---- The two commands. ---- */

/* Options by themselves, before a file is read. */
static int check_quantize(const struct builder *b, const char *out)
{
    const json_t *store = json_object_get(b->scale, "store");
    if (!json_object_get(b->root, "to"))
        return cli_fail(EXIT_USAGE, "quantize wants --to FORMAT, or --preset NAME");
    if (!b->scale_out && !is_safetensors(out))
        return cli_fail(EXIT_USAGE, "quantize has scales too: give --scale-out FILE, or an OUT "
                                    "that ends in .safetensors");
    if (!b->scale_out && store && strcmp(json_string_value(store), "linear"))
        return cli_fail(EXIT_USAGE,
                        "--scale-store is the order in the file of --scale-out, which is not "
                        "given; a case in %s has linear scales",
                        out);
    if (!b->transpose != !b->transpose_scale)
        return cli_fail(EXIT_USAGE, "--transpose FILE and --transpose-scale-out FILE go "
                                    "together");
    return 0;
}

static int run_case(struct cli *cli, struct builder *b, const char *op, const char *out)
{
    struct case_list list = { NULL, 0 };
    json_t *root = builder_json(b, op);
    int code = case_from_json(root, false, NULL, &list);
    json_decref(root);
    if (!code && list.item[0].op == OP_QUANTIZE && b->seen & BIT(OPT_TENSOR_AMAX) &&
        list.item[0].quantize.rule < NG_SCALE_NVFP4_TE)
        code = cli_fail(EXIT_USAGE, "--tensor-amax says nothing to rule %s",
                        scale_rule_text(list.item[0].quantize.rule));
    if (!code)
        code = cli_open(cli);
    if (!code)
        code = compute_and_write(cli, &list.item[0],
                                 &(struct outputs){ .path = out,
                                                    .scale = b->scale_out,
                                                    .transpose = b->transpose,
                                                    .transpose_scale = b->transpose_scale,
                                                    .whole = is_safetensors(out) });
    cli_close(cli);
    case_free(&list);
    return code;
}

static int quantize(struct cli *cli, struct builder *b, const char *preset, const char *in,
                    const char *out)
{
    int code = preset ? set_preset(b, preset) : 0;
    if (!code)
        code = check_quantize(b, out);
    if (!code)
        code = builder_tensor(b, "src", in);
    return code ? code : run_case(cli, b, "quantize", out);
}

/* The result of a case of quantize as the source of this one; *found tells whether there is
 * such a case. */
static int source_of_case(struct builder *b, const char *path, bool *found)
{
    struct io_error e;
    struct st_file st;
    if (!st_read(path, &st, &e))
        return cli_file_error(&e);
    const char *text = st_meta_get(&st, "ng.case");
    json_t *root = text ? io_json(text, strlen(text), path, "metadata ng.case", &e) : NULL;
    json_t *cases = json_object_get(root, "cases");
    json_t *one = json_array_size(cases) == 1 ? json_array_get(cases, 0) : NULL;
    const char *op = json_string_value(json_object_get(one, "op"));
    json_t *dst = json_deep_copy(json_object_get(json_object_get(one, "tensors"), "dst"));
    json_t *scale = json_object_get(dst, "scale");
    *found = op && strcmp(op, "quantize") == 0 && json_is_object(scale);
    if (*found) {
        json_object_set_new(dst, "file", json_string(path));
        json_object_set_new(scale, "file", json_string(path));
        json_object_set(b->tensors, "src", dst);
    }
    json_decref(dst);
    json_decref(root);
    st_free(&st);
    return text && !root ? cli_file_error(&e) : 0;
}

static int dequantize(struct cli *cli, struct builder *b, const char *in, const char *out)
{
    const uint64_t said =
        b->seen & (BIT(OPT_SCALE) | BIT(OPT_TENSOR_SCALE) | BIT(OPT_SCALE_FORMAT) |
                   BIT(OPT_BLOCK) | BIT(OPT_AXIS) | BIT(OPT_LAYOUT) | BIT(OPT_SCALE_STORE) |
                   BIT(OPT_TILE_ROWS) | BIT(OPT_OFFSET));
    bool found = false;
    int code = json_object_get(b->root, "to")
                   ? 0
                   : cli_fail(EXIT_USAGE, "dequantize wants --to FORMAT");
    if (!code && !b->tensor && !strchr(in, '=') && is_safetensors(in))
        code = source_of_case(b, in, &found);
    if (!code && found && said)
        code = cli_fail(EXIT_USAGE,
                        "%s is a case and says everything about its scales; options for them "
                        "say nothing here",
                        in);
    if (!code && !found && !(said & BIT(OPT_SCALE)))
        code = cli_fail(EXIT_USAGE, "dequantize wants --scale FILE, or an IN that ngauge "
                                    "quantize wrote as a case");
    if (!code && !found)
        code = builder_tensor(b, "src", in);
    return code ? code : run_case(cli, b, "dequantize", out);
}

/* ---- Options. ---- */

struct wanted {
    struct builder b;
    const char *preset;
};

static int take(void *to, int o, const char *v)
{
    struct wanted *w = to;
    if (o != OPT_PRESET)
        return builder_option(&w->b, o, v);
    w->preset = v;
    return 0;
}

static int command(int argc, char **argv, const struct option *options, const char *usage,
                   bool back)
{
    struct cli cli = { .threads = 1, .max_report = 5 };
    struct wanted w = { .b = builder_open() };
    int code;
    if (cli_options(&cli, argc, argv,
                    &(struct cli_options){ CLI_SHORT, options, usage, take, &w }, &code)) {
        code = cli_words(argv[0], argv + optind, 2, 2, "two files, IN and OUT");
        if (!code)
            code = back ? dequantize(&cli, &w.b, argv[optind], argv[optind + 1])
                        : quantize(&cli, &w.b, w.preset, argv[optind], argv[optind + 1]);
    }
    builder_close(&w.b);
    return code;
}

int cmd_quantize(int argc, char **argv)
{
    static const struct option options[] = {
        CLI_OPTIONS,
        SCALE_OPTIONS,
        TENSOR_OPTION,
        { "to", required_argument, NULL, OPT_TO },
        { "round", required_argument, NULL, OPT_ROUND },
        { "nan-sign", required_argument, NULL, OPT_NAN_SIGN },
        { "words", required_argument, NULL, OPT_WORDS },
        { "rule", required_argument, NULL, OPT_RULE },
        { "special", required_argument, NULL, OPT_SPECIAL },
        { "preset", required_argument, NULL, OPT_PRESET },
        { "tensor-amax", required_argument, NULL, OPT_TENSOR_AMAX },
        { "scale-out", required_argument, NULL, OPT_SCALE_OUT },
        { "transpose", required_argument, NULL, OPT_TRANSPOSE },
        { "transpose-scale-out", required_argument, NULL, OPT_TRANSPOSE_SCALE_OUT },
        { 0 }
    };
    return command(argc, argv, options, quantize_help, false);
}

int cmd_dequantize(int argc, char **argv)
{
    static const struct option options[] = { CLI_OPTIONS,
                                             CAST_OPTIONS,
                                             SCALE_OPTIONS,
                                             TENSOR_OPTION,
                                             { "scale", required_argument, NULL, OPT_SCALE },
                                             { "tensor-scale", required_argument, NULL,
                                               OPT_TENSOR_SCALE },
                                             { 0 } };
    return command(argc, argv, options, dequantize_help, true);
}
