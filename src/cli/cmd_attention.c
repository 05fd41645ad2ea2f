/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge attention: the options become a case of attention or of its gradients. docs/cli.md. */
#include <stdlib.h>
#include <string.h>

#include "block.h"

static const char help[] =
    "usage: ngauge attention run    OPTIONS -o OUT [--lse FILE] [--max FILE] [--sum FILE]\n"
    "       ngauge attention verify OPTIONS --dump FILE[=FORMAT] [--lse FILE] ...\n"
    "       ngauge attention run    OPTIONS --dout FILE=F --o FILE=F --lse FILE --dq FILE ...\n"
    "       ngauge attention show   [SCHEDULE]\n"
    "       ngauge attention keys\n\n"
    "run computes softmax(scale q k^T) v as a schedule orders it; verify compares a chip's o\n"
    "with that and tries every other value of every parameter of the schedule on what "
    "differs;\n"
    "show prints schedules with the evidence for each value, keys every parameter and its "
    "values. With\n--dout it is the gradients.\n"
    "  --schedule S           trn-prefill, trn-decode, trn-mx-decode, flash, exact\n"
    "  --set KEY=VALUE        change a parameter of it; may be repeated\n"
    "  --profile P            the array that multiplies (not for exact)\n"
    "  --q --k --v FILE=F     [B, Hq, Sq, d], [B, Hkv, Skv, d], [B, Hkv, Skv, dv]\n"
    "  --q-scale --k-scale --v-scale FILE   e8m0 scales of 32, along d, d and the keys\n"
    "  --scale X              a number, an FP32 pattern 0x.., or none; default 1/sqrt(d)\n"
    "  --softcap X            c of c tanh(s / c)\n"
    "  --causal  --top-left  --window N  --zero-rows\n"
    "  --sink FILE=F          [Hq] logits\n"
    "  --kv-length N,N,...    keys of each sequence\n"
    "  --page-table FILE      [B, pages] block numbers; k and v are then [blocks, Hkv, rows, "
    "d]\n"
    "  --exp-table --tanh-table --reciprocal-table FILE=bf16   functions of kind table\n"
    "  --lse --max --sum FILE    statistics: written, compared; read where --dout is\n"
    "  --dout --o FILE=F      operands of the backward; --dq --dk --dv --dsink its results\n"
    "  --to F --round R --overflow O --nan-sign S --nan-to T --words W    of o or gradients\n"
    "                         (verify takes F from the dump)\n"
    "FILE is .npy, .safetensors or raw with a spec: q.bin=bf16:1x8x128x64. An OUT that ends "
    "in\n"
    ".safetensors is the whole case. The same in a case file: ngauge run, ngauge verify.\n"
    "and the options of every command: ngauge --help\n";

enum {
    OPT_SCHEDULE = OPT_PRESET + 1,
    OPT_SET,
    OPT_Q_SCALE,
    OPT_K_SCALE,
    OPT_V_SCALE,
    OPT_FACTOR,
    OPT_SOFTCAP,
    OPT_CAUSAL,
    OPT_TOP_LEFT,
    OPT_WINDOW,
    OPT_ZERO_ROWS,
    OPT_KV_LENGTH,
    OPT_DUMP,
    OPT_TENSOR /* and those that follow, by their place in the table */
};

struct request {
    struct cli cli;
    struct builder b;
    json_t *set;
    const char *tensor[BLOCK_TENSORS]; /* FILE=FORMAT of each */
    const char *scale[3];              /* of q, k, v */
    bool dump, o;                      /* which option said what o is */
};

/* ---- Options. ---- */

/* A number, or a pattern, which stays text; `key` is that of the case and the option's name. */
static int set_number(struct request *r, const char *key, const char *text)
{
    char *end;
    const double x = strtod(text, &end);
    if (strncmp(text, "0x", 2) == 0 || strcmp(text, "none") == 0)
        json_object_set_new(r->b.one, key, text_json(text));
    else if (end == text || *end || json_object_set_new(r->b.one, key, json_real(x)))
        return cli_fail(EXIT_USAGE, "--%s is '%s'; wanted: a number or 0xPATTERN", key, text);
    return 0;
}

static int set_lengths(struct request *r, const char *text)
{
    json_t *list = json_array();
    for (const char *at = text;;) {
        char *end;
        const long long n = strtoll(at, &end, 10);
        if (end == at || (*end && *end != ',')) {
            json_decref(list);
            return cli_fail(EXIT_USAGE, "--kv-length '%s' is no list of numbers", text);
        }
        json_array_append_new(list, json_integer(n));
        if (!*end)
            break;
        at = end + 1;
    }
    json_object_set_new(r->b.one, "kv_length", list);
    return 0;
}

static int take(void *to, int o, const char *v)
{
    struct request *r = to;
    json_t *one = r->b.one;
    uint64_t n;
    if (o >= OPT_TENSOR) {
        r->o |= o == OPT_TENSOR + ATTENTION_O;
        r->tensor[o - OPT_TENSOR] = v;
        return 0;
    }
    switch (o) {
    case OPT_DUMP:
        r->dump = true;
        r->tensor[ATTENTION_O] = v;
        return 0;
    case OPT_SCHEDULE: json_object_set_new(one, "schedule", text_json(v)); return 0;
    case OPT_SET: return settings_option(r->set, v);
    case OPT_Q_SCALE:
    case OPT_K_SCALE:
    case OPT_V_SCALE: r->scale[o - OPT_Q_SCALE] = v; return 0;
    case OPT_FACTOR: return set_number(r, "scale", v);
    case OPT_SOFTCAP: return set_number(r, "softcap", v);
    case OPT_CAUSAL: json_object_set_new(one, "causal", json_true()); return 0;
    case OPT_TOP_LEFT: json_object_set_new(one, "align", json_string("top_left")); return 0;
    case OPT_ZERO_ROWS: json_object_set_new(one, "masked_rows", json_string("zero")); return 0;
    case OPT_WINDOW:
        if (!parse_u64(v, &n) || n > INT64_MAX)
            return cli_fail(EXIT_USAGE, "'%s' is no number for --window", v);
        json_object_set_new(one, "window", json_integer((json_int_t)n));
        return 0;
    case OPT_KV_LENGTH: return set_lengths(r, v);
    default: return builder_option(&r->b, o, v);
    }
}

/* ---- The case. ---- */

static int add_scale(struct request *r, size_t place, const char *name)
{
    const char *text = place < 3 ? r->scale[place] : NULL;
    return text ? builder_scale(&r->b, name, text) : 0;
}

static int add_result(struct request *r, size_t place, const char *name, bool run)
{
    const bool statistics = place >= ATTENTION_LSE && place <= ATTENTION_SUM;
    if (!run)
        return builder_tensor(&r->b, name, r->tensor[place]);
    json_t *to = json_object_get(r->b.root, "to");
    if (!to && !statistics)
        return cli_fail(EXIT_USAGE, "attention run wants --to FORMAT");
    json_object_set_new(r->b.tensors, name,
                        statistics ? json_pack("{s:s}", "format", "f32")
                                   : json_pack("{s:O}", "format", to));
    return 0;
}

static int build(struct request *r, const struct block_kind *k, bool run,
                 struct block_files *files)
{
    int code = 0;
    for (size_t i = 0; i < BLOCK_TENSORS && !code; i++) {
        const bool here = i < k->n && k->tensor[i].name;
        if (!r->tensor[i])
            continue;
        if (!here)
            return cli_fail(EXIT_USAGE, "--%s is of the backward: wanted with it: --dout",
                            attention_backward_kind.tensor[i].name);
        const char *name = k->tensor[i].name;
        if (block_is_result(k, i)) {
            code = add_result(r, i, name, run);
            files->path[i] = run ? r->tensor[i] : NULL;
        } else if (k->tensor[i].integers) {
            code = builder_integers(&r->b, name, r->tensor[i]);
        } else {
            code = builder_tensor(&r->b, name, r->tensor[i]);
        }
        if (!code)
            code = add_scale(r, i, name);
    }
    if (json_object_size(r->set))
        json_object_set(r->b.one, "set", r->set);
    return code;
}

static int check_verb(const struct request *r, bool run, bool backward)
{
    if (run && !r->b.out && !backward)
        return cli_fail(EXIT_USAGE, "attention run wants --to FORMAT and -o OUT");
    if (r->dump && (run || backward))
        return cli_fail(EXIT_USAGE, "--dump is the o of attention verify without --dout");
    if (r->o && !backward)
        return cli_fail(EXIT_USAGE, "--o is an operand of the gradients: wanted with it: "
                                    "--dout; what attention verify compares is --dump");
    if (!run && json_object_get(r->b.root, "to"))
        return cli_fail(EXIT_USAGE, "--to is of attention run: verify has it from the dump");
    if (!run && r->b.out)
        return cli_fail(EXIT_USAGE, "attention verify writes nothing: -o is of run");
    if (!run && !backward && !r->tensor[ATTENTION_O])
        return cli_fail(EXIT_USAGE, "attention verify wants --dump FILE");
    if (run && backward && r->b.out && !is_safetensors(r->b.out))
        return cli_fail(EXIT_USAGE,
                        "gradients go to --dq, --dk, --dv and --dsink; -o is a case, "
                        ".safetensors");
    return 0;
}

static int dispatch(struct request *r, bool run)
{
    const bool backward = r->tensor[ATTENTION_DOUT] != NULL,
               whole = r->b.out && is_safetensors(r->b.out);
    const struct block_kind *k = backward ? &attention_backward_kind : &attention_kind;
    struct block_files files = { { NULL } };
    struct case_list list = { NULL, 0 };
    int code = check_verb(r, run, backward);
    if (!code && run && !backward)
        r->tensor[ATTENTION_O] = r->b.out;
    if (!code)
        code = build(r, k, run, &files);
    if (code)
        return code;
    if (whole)
        files.path[ATTENTION_O] = NULL;
    json_t *root =
        builder_case(&r->b, op_text(backward ? OP_ATTENTION_BACKWARD : OP_ATTENTION), "out");
    code = case_from_json(root, !run, NULL, &list);
    json_decref(root);
    if (!code)
        code = cli_open(&r->cli);
    if (!code)
        code = run ? block_run(&r->cli, &list.item[0], &files, whole ? r->b.out : NULL, NULL)
                   : block_verify_alone(&r->cli, &list.item[0]);
    cli_close(&r->cli);
    case_free(&list);
    return code;
}

/* ---- The command. ---- */

static int words_of(struct request *r, int argc, char **argv)
{
    enum {
        RUN,
        VERIFY,
        SHOW,
        KEYS
    };
    static const struct cli_verb verbs[] = {
        [RUN] = { "run", 0, 0, "its files by options, not" },
        [VERIFY] = { "verify", 0, 0, "its files by options, not" },
        [SHOW] = { "show", 0, 1, "one SCHEDULE or none" },
        [KEYS] = { "keys", 0, 0, NULL },
        { NULL, 0, 0, NULL },
    };
    const int v = cli_verb(argc, argv, verbs);
    switch (v) {
    case RUN:
    case VERIFY: return dispatch(r, v == RUN);
    case SHOW:
        return settings_show(&r->cli, &schedule_settings,
                             argc - optind > 1 ? argv[optind + 1] : NULL);
    case KEYS: return settings_keys(&r->cli, &schedule_settings);
    default: return EXIT_USAGE;
    }
}

int cmd_attention(int argc, char **argv)
{
    static const struct option long_options[] = {
        CLI_OPTIONS,
        CAST_OPTIONS,
        { "profile", required_argument, NULL, OPT_PROFILE },
        { "schedule", required_argument, NULL, OPT_SCHEDULE },
        { "set", required_argument, NULL, OPT_SET },
        { "q-scale", required_argument, NULL, OPT_Q_SCALE },
        { "k-scale", required_argument, NULL, OPT_K_SCALE },
        { "v-scale", required_argument, NULL, OPT_V_SCALE },
        { "scale", required_argument, NULL, OPT_FACTOR },
        { "softcap", required_argument, NULL, OPT_SOFTCAP },
        { "causal", no_argument, NULL, OPT_CAUSAL },
        { "top-left", no_argument, NULL, OPT_TOP_LEFT },
        { "window", required_argument, NULL, OPT_WINDOW },
        { "zero-rows", no_argument, NULL, OPT_ZERO_ROWS },
        { "kv-length", required_argument, NULL, OPT_KV_LENGTH },
        { "q", required_argument, NULL, OPT_TENSOR + ATTENTION_Q },
        { "k", required_argument, NULL, OPT_TENSOR + ATTENTION_K },
        { "v", required_argument, NULL, OPT_TENSOR + ATTENTION_V },
        { "sink", required_argument, NULL, OPT_TENSOR + ATTENTION_SINK },
        { "page-table", required_argument, NULL, OPT_TENSOR + ATTENTION_PAGES },
        { "exp-table", required_argument, NULL, OPT_TENSOR + ATTENTION_EXP },
        { "tanh-table", required_argument, NULL, OPT_TENSOR + ATTENTION_TANH },
        { "reciprocal-table", required_argument, NULL, OPT_TENSOR + ATTENTION_RECIPROCAL },
        { "o", required_argument, NULL, OPT_TENSOR + ATTENTION_O },
        { "dump", required_argument, NULL, OPT_DUMP },
        { "lse", required_argument, NULL, OPT_TENSOR + ATTENTION_LSE },
        { "max", required_argument, NULL, OPT_TENSOR + ATTENTION_MAX },
        { "sum", required_argument, NULL, OPT_TENSOR + ATTENTION_SUM },
        { "dout", required_argument, NULL, OPT_TENSOR + ATTENTION_DOUT },
        { "dq", required_argument, NULL, OPT_TENSOR + ATTENTION_DQ },
        { "dk", required_argument, NULL, OPT_TENSOR + ATTENTION_DK },
        { "dv", required_argument, NULL, OPT_TENSOR + ATTENTION_DV },
        { "dsink", required_argument, NULL, OPT_TENSOR + ATTENTION_DSINK },
        { 0 }
    };
    struct request r = { .cli = { .threads = 1, .max_report = 5 }, .b = builder_open() };
    int code;
    r.set = json_object();
    if (cli_options(&r.cli, argc, argv,
                    &(struct cli_options){ CLI_SHORT "o:", long_options, help, take, &r },
                    &code))
        code = words_of(&r, argc, argv);
    json_decref(r.set);
    builder_close(&r.b);
    return code;
}
