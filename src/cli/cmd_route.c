/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge route: the options become a case of op route. docs/cli.md; docs/numerics.md, section
 * 11.10. */
#include <stdlib.h>
#include <string.h>

#include "block.h"

static const char help[] =
    "usage: ngauge route --preset MODEL [OPTIONS] LOGITS[=FORMAT]\n"
    "       ngauge route --k K [OPTIONS] LOGITS[=FORMAT]\n"
    "       ngauge route ... --x FILE=F --router FILE=F --profile P [--router-bias FILE=F]\n\n"
    "Which experts every token of LOGITS [tokens, experts] gets, and their weights.\n"
    "  --preset gpt-oss-20b|gpt-oss-120b|mixtral-8x7b|qwen3-moe|deepseek-v3\n"
    "  --order topk_then_act|act_then_topk|act_all    --act softmax|sigmoid\n"
    "  --score f32|bf16|f16   --softmax-by reciprocal|division\n"
    "  --normalise no|yes     --normalise-by reciprocal|division\n"
    "  --eps X  --eps-how add|floor  --scale X\n"
    "  --groups N  --top-groups N  --group-top N\n"
    "  --mask zero|minus_inf  of the groups that are not kept\n"
    "  --logits F  --accumulate F     of the multiply of --x and --router: f32, bf16, f16\n"
    "  --exp --sigmoid --reciprocal cr|sleef|table\n"
    "  --exp-table --sigmoid-table --reciprocal-table FILE=bf16\n"
    "  --correction FILE[=FORMAT]     [experts], for the choice only\n"
    "  --to f32|bf16|f16      of the weights (f32)\n"
    "  -o OUT                 the weights: .npy or raw; .safetensors: the whole case\n"
    "  --experts-out OUT      the experts\n"
    "  --experts FILE --weights FILE[=FORMAT]   a dump's: compared on every bit, and if they\n"
    "                         differ, which other rule explains them\n"
    "and the options of every command: ngauge --help\n";

/* What becomes a key of "router", by how its value is written. */
enum option_type {
    TYPE_NAME,
    TYPE_BOOL,
    TYPE_COUNT,
    TYPE_REAL
};
static const struct {
    const char *key;
    enum option_type type;
} router_options[] = {
    { "k", TYPE_COUNT },        { "order", TYPE_NAME },        { "act", TYPE_NAME },
    { "score", TYPE_NAME },     { "softmax_by", TYPE_NAME },   { "normalise", TYPE_BOOL },
    { "eps", TYPE_REAL },       { "normalise_by", TYPE_NAME }, { "eps_how", TYPE_NAME },
    { "scale", TYPE_REAL },     { "groups", TYPE_COUNT },      { "top_groups", TYPE_COUNT },
    { "mask", TYPE_NAME },      { "group_top", TYPE_COUNT },   { "exp", TYPE_NAME },
    { "sigmoid", TYPE_NAME },   { "reciprocal", TYPE_NAME },   { "logits", TYPE_NAME },
    { "accumulate", TYPE_NAME }
};
enum {
    N_OPTIONS = sizeof router_options / sizeof router_options[0],
    OPT_ROUTER = OPT_PRESET + 1, /* and those that follow, by their number */
    OPT_TENSOR = OPT_ROUTER + N_OPTIONS,
    OPT_EXPERTS_OUT = OPT_TENSOR + BLOCK_TENSORS
};

struct request {
    struct cli cli;
    struct builder b;
    json_t *router;
    const char *preset, *to, *out, *experts_out;
    const char *tensor[BLOCK_TENSORS];
};

/* ---- Options. ---- */

static int set_key(struct request *r, int i, const char *v)
{
    const char *key = router_options[i].key;
    uint64_t n;
    char *end;
    json_t *value = NULL;
    switch (router_options[i].type) {
    case TYPE_NAME: value = text_json(v); break;
    case TYPE_BOOL:
        if (strcmp(v, "yes") == 0 || strcmp(v, "no") == 0)
            value = json_boolean(strcmp(v, "yes") == 0);
        break;
    case TYPE_COUNT:
        if (parse_u64(v, &n) && n <= UINT32_MAX)
            value = json_integer((json_int_t)n);
        break;
    case TYPE_REAL:
        if (strncmp(v, "0x", 2) == 0)
            value = text_json(v);
        else if (strtod(v, &end), end != v && !*end)
            value = json_real(strtod(v, NULL));
        break;
    }
    if (!value)
        return cli_fail(EXIT_USAGE, "'%.40s' is no value for --%s; see ngauge route --help", v,
                        key);
    json_object_set_new(r->router, key, value);
    return 0;
}

static int take(void *to, int o, const char *v)
{
    struct request *r = to;
    if (o >= OPT_ROUTER && o < OPT_TENSOR)
        return set_key(r, o - OPT_ROUTER, v);
    if (o >= OPT_TENSOR && o < OPT_EXPERTS_OUT) {
        r->tensor[o - OPT_TENSOR] = v;
        return 0;
    }
    switch (o) {
    case OPT_PRESET: r->preset = v; return 0;
    case OPT_TO: r->to = v; return 0;
    case OPT_EXPERTS_OUT: r->experts_out = v; return 0;
    case 'o': r->out = v; return 0;
    case OPT_PROFILE: return builder_option(&r->b, o, v);
    default: return EXIT_USAGE;
    }
}

/* ---- The case. ---- */

/* A dump is compared; without one, both results are computed. */
static bool is_dump(const struct request *r)
{
    return r->tensor[ROUTE_EXPERTS] || r->tensor[ROUTE_WEIGHTS];
}

static int build(struct request *r, const char *logits)
{
    int code = 0;
    const char *to = r->to ? r->to : "f32";
    if (place_in("f32 bf16 f16", to) < 0)
        return cli_fail(EXIT_USAGE, "--to is %.40s; wanted: f32, bf16 or f16", to);
    if (!r->preset && !json_object_get(r->router, "k"))
        return cli_fail(EXIT_USAGE, "route wants either --preset MODEL or --k K");
    r->tensor[ROUTE_LOGITS] = logits;
    for (size_t i = 0; i < route_kind.n && !code; i++) {
        const char *name = route_kind.tensor[i].name;
        if (r->tensor[i])
            code = route_kind.tensor[i].integers ? builder_integers(&r->b, name, r->tensor[i])
                                                 : builder_tensor(&r->b, name, r->tensor[i]);
    }
    if (!is_dump(r)) {
        json_object_set_new(r->b.tensors, "experts", json_object());
        json_object_set_new(r->b.tensors, "weights", json_pack("{s:s}", "format", to));
    }
    if (r->preset)
        json_object_set_new(r->b.one, "preset", text_json(r->preset));
    json_object_set(r->b.one, "router", r->router);
    return code;
}

/* ---- Tokens on the terminal. ---- */

static void print_row(const struct operand *out, int64_t token)
{
    const int64_t k = out[ROUTE_EXPERTS].data.dim[1];
    printf("  %-7lld", (long long)token);
    for (int64_t i = token * k; i < (token + 1) * k; i++)
        printf(" %d %s", (int)block_code(&out[ROUTE_EXPERTS], i),
               code_text(out[ROUTE_WEIGHTS].data.format,
                         (uint32_t)block_code(&out[ROUTE_WEIGHTS], i))
                   .text);
    printf("\n");
}

static int show_tokens(const struct cli *cli, struct one_case *c)
{
    struct operand out[BLOCK_TENSORS];
    int code = block_alloc(c, out);
    if (code)
        return code;
    const ng_status s = route_kind.compute(cli->ctx, c, out);
    const int64_t tokens = out[ROUTE_EXPERTS].data.dim[0], k = out[ROUTE_EXPERTS].data.dim[1];
    if (s) {
        code = cli_refused(cli, s, "");
    } else if (cli->json) {
        json_t *list = json_array();
        char line[4096];
        for (int64_t i = 0; i < tokens * k; i++)
            json_array_append_new(list, json_integer((int)block_code(&out[ROUTE_EXPERTS], i)));
        block_line(c, line, sizeof line);
        code = cli_print_json(json_pack("{s:s,s:s,s:I,s:I,s:o}", "schema", "ng.report/1",
                                        "parameters", line, "tokens", (json_int_t)tokens, "k",
                                        (json_int_t)k, "experts", list));
    } else {
        if (!cli->quiet)
            block_print_head(cli, c);
        for (int64_t t = 0; t < tokens; t++)
            print_row(out, t);
    }
    block_free_results(out);
    return code;
}

static int run(struct request *r, const char *logits)
{
    struct case_list list = { NULL, 0 };
    struct block_files files = { { NULL } };
    int code = build(r, logits);
    if (code)
        return code;
    json_t *root = builder_case(&r->b, "route", "out");
    code = case_from_json(root, is_dump(r), NULL, &list);
    json_decref(root);
    const char *whole = r->out && is_safetensors(r->out) ? r->out : NULL;
    files.path[ROUTE_WEIGHTS] = whole ? NULL : r->out;
    files.path[ROUTE_EXPERTS] = r->experts_out;
    if (!code && is_dump(r) && (r->out || r->experts_out))
        code = cli_fail(EXIT_USAGE, "a dump is compared, nothing is written: no -o here");
    if (!code)
        code = cli_open(&r->cli);
    if (!code)
        code = is_dump(r) ? block_verify_alone(&r->cli, &list.item[0])
               : r->out || r->experts_out
                   ? block_run(&r->cli, &list.item[0], &files, whole, NULL)
                   : show_tokens(&r->cli, &list.item[0]);
    cli_close(&r->cli);
    case_free(&list);
    return code;
}

int cmd_route(int argc, char **argv)
{
    static const struct option long_options[] = {
        CLI_OPTIONS,
        { "k", required_argument, NULL, OPT_ROUTER },
        { "order", required_argument, NULL, OPT_ROUTER + 1 },
        { "act", required_argument, NULL, OPT_ROUTER + 2 },
        { "score", required_argument, NULL, OPT_ROUTER + 3 },
        { "softmax-by", required_argument, NULL, OPT_ROUTER + 4 },
        { "normalise", required_argument, NULL, OPT_ROUTER + 5 },
        { "eps", required_argument, NULL, OPT_ROUTER + 6 },
        { "normalise-by", required_argument, NULL, OPT_ROUTER + 7 },
        { "eps-how", required_argument, NULL, OPT_ROUTER + 8 },
        { "scale", required_argument, NULL, OPT_ROUTER + 9 },
        { "groups", required_argument, NULL, OPT_ROUTER + 10 },
        { "top-groups", required_argument, NULL, OPT_ROUTER + 11 },
        { "mask", required_argument, NULL, OPT_ROUTER + 12 },
        { "group-top", required_argument, NULL, OPT_ROUTER + 13 },
        { "exp", required_argument, NULL, OPT_ROUTER + 14 },
        { "sigmoid", required_argument, NULL, OPT_ROUTER + 15 },
        { "reciprocal", required_argument, NULL, OPT_ROUTER + 16 },
        { "logits", required_argument, NULL, OPT_ROUTER + 17 },
        { "accumulate", required_argument, NULL, OPT_ROUTER + 18 },
        { "preset", required_argument, NULL, OPT_PRESET },
        { "profile", required_argument, NULL, OPT_PROFILE },
        { "x", required_argument, NULL, OPT_TENSOR + ROUTE_X },
        { "router", required_argument, NULL, OPT_TENSOR + ROUTE_W },
        { "router-bias", required_argument, NULL, OPT_TENSOR + ROUTE_B },
        { "correction", required_argument, NULL, OPT_TENSOR + ROUTE_CORRECTION },
        { "exp-table", required_argument, NULL, OPT_TENSOR + ROUTE_EXP },
        { "sigmoid-table", required_argument, NULL, OPT_TENSOR + ROUTE_SIGMOID },
        { "reciprocal-table", required_argument, NULL, OPT_TENSOR + ROUTE_RECIPROCAL },
        { "to", required_argument, NULL, OPT_TO },
        { "experts-out", required_argument, NULL, OPT_EXPERTS_OUT },
        { "experts", required_argument, NULL, OPT_TENSOR + ROUTE_EXPERTS },
        { "weights", required_argument, NULL, OPT_TENSOR + ROUTE_WEIGHTS },
        { 0 }
    };
    struct request r = { .cli = { .threads = 1, .max_report = 5 }, .b = builder_open() };
    int code;
    r.router = json_object();
    if (cli_options(&r.cli, argc, argv,
                    &(struct cli_options){ CLI_SHORT "o:", long_options, help, take, &r },
                    &code)) {
        const int files = r.tensor[ROUTE_X] ? 0 : 1;
        code = cli_words("route", argv + optind, files, files,
                         "one file of logits, or --x and --router");
        if (!code)
            code = run(&r, files ? argv[optind] : NULL);
    }
    json_decref(r.router);
    builder_close(&r.b);
    return code;
}
