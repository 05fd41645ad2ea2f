/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge collective: the options become a case of a reduction over ranks. docs/cli.md. */
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "collective_ask.h"

static const char help[] =
    "usage: ngauge collective run    OPTIONS --x FILE=F --to F -o OUT\n"
    "       ngauge collective verify OPTIONS --x FILE=F --dump FILE[=F]\n"
    "       ngauge collective order  OPTIONS --ranks N [--chunk C]\n"
    "       ngauge collective ask    --ranks N --format F [--elements N] -o OUT\n"
    "       ngauge collective read   --x FILE=F --dump FILE[=F]\n"
    "       ngauge collective show   [COLLECTIVE]\n"
    "       ngauge collective keys\n\n"
    "run computes what an all-reduce leaves, and, chunk for chunk, a reduce-scatter; verify\n"
    "compares a dump with that and tries other algorithms, formats and chunks on what "
    "differs;\n"
    "order prints which ranks are added up in which order. ask writes buffers whose sum tells\n"
    "the order in which a library adds, read tells it from the sum. show prints collectives "
    "with\n"
    "the evidence for each value, keys every parameter and its values.\n"
    "  --collective C       trn-ring, trn-kanga-ring, trn-mesh, trn-rdh, trn-single-step,\n"
    "                       nccl-ring, nccl-symmetric, tree, exact\n"
    "  --set KEY=VALUE      change a parameter of it; may be repeated\n"
    "  --reduction R        sum (default), min, max\n"
    "  --order TEXT         of algorithm=explicit: \"((+1 +2) +3) +0\"\n"
    "  --rank R             of start=own: whose result\n"
    "  --x FILE=F           [ranks, ...]: every rank's buffer\n"
    "  --to F --round R --overflow O --nan-sign S --nan-to T --words W    of the result\n"
    "                       (verify takes F from the dump)\n"
    "FILE is .npy, .safetensors or raw with a spec: x.bin=bf16:64x4096. An OUT that ends in\n"
    ".safetensors is the whole case. The same in a case file: ngauge run, ngauge verify.\n"
    "and the options of every command: ngauge --help\n";

enum {
    OPT_COLLECTIVE = OPT_PRESET + 1,
    OPT_SET,
    OPT_REDUCTION,
    OPT_ORDER,
    OPT_RANK,
    OPT_X,
    OPT_DUMP,
    OPT_RANKS,
    OPT_CHUNK,
    OPT_FORMAT,
    OPT_ELEMENTS
};

/* Options of one verb's. */
#define BITS_CASE                                                                              \
    (BIT(OPT_COLLECTIVE) | BIT(OPT_SET) | BIT(OPT_REDUCTION) | BIT(OPT_ORDER) | BIT(OPT_RANK))

#define BITS_CAST                                                                              \
    (BIT(OPT_TO) | BIT(OPT_ROUND) | BIT(OPT_OVERFLOW) | BIT(OPT_NAN_SIGN) | BIT(OPT_NAN_TO) |  \
     BIT(OPT_WORDS))

struct request {
    struct cli cli;
    struct builder b;
    json_t *set;
    const char *x, *dump;
    uint64_t ranks, chunk, elements;
    ng_format format;
    uint64_t seen;
};

/* ---- Options. ---- */

static int take_number(const char *option, const char *text, uint64_t most, uint64_t *n)
{
    return parse_u64(text, n) && *n <= most
               ? 0
               : cli_fail(EXIT_USAGE, "--%s is '%s'; wanted: a number up to %llu", option, text,
                          (unsigned long long)most);
}

static int take(void *to, int o, const char *v)
{
    struct request *r = to;
    json_t *one = r->b.one;
    uint64_t n = 0;
    int code;
    if (o >= OPT_OWN)
        r->seen |= BIT(o);
    switch (o) {
    case OPT_COLLECTIVE: json_object_set_new(one, "collective", text_json(v)); return 0;
    case OPT_SET: return settings_option(r->set, v);
    case OPT_REDUCTION: json_object_set_new(one, "reduction", text_json(v)); return 0;
    case OPT_ORDER: json_object_set_new(one, "order", text_json(v)); return 0;
    case OPT_RANK:
        code = take_number("rank", v, NG_MAX_RANKS - 1, &n);
        json_object_set_new(one, "rank", json_integer((json_int_t)n));
        return code;
    case OPT_X: r->x = v; return 0;
    case OPT_DUMP: r->dump = v; return 0;
    case OPT_RANKS: return take_number("ranks", v, NG_MAX_RANKS, &r->ranks);
    case OPT_CHUNK: return take_number("chunk", v, NG_MAX_RANKS - 1, &r->chunk);
    case OPT_ELEMENTS: return take_number("elements", v, INT32_MAX, &r->elements);
    case OPT_FORMAT:
        r->format = ng_format_find(v);
        return r->format ? 0
                         : cli_fail(EXIT_USAGE,
                                    "--format is '%s'; wanted: a format; see ngauge "
                                    "info",
                                    v);
    default: return builder_option(&r->b, o, v);
    }
}

/* ---- run and verify. ---- */

static int build(struct request *r, bool run)
{
    int code = builder_tensor(&r->b, "x", r->x);
    if (!code && run)
        json_object_set_new(r->b.tensors, "d",
                            json_pack("{s:O}", "format", json_object_get(r->b.root, "to")));
    else if (!code)
        code = builder_tensor(&r->b, "d", r->dump);
    if (json_object_size(r->set))
        json_object_set(r->b.one, "set", r->set);
    return code;
}

static int compute(struct request *r, bool run)
{
    const bool whole = r->b.out && is_safetensors(r->b.out);
    struct block_files files = { { NULL } };
    struct case_list list = { NULL, 0 };
    if (run && (!r->b.out || !json_object_get(r->b.root, "to")))
        return cli_fail(EXIT_USAGE, "collective run wants --to FORMAT and -o OUT");
    if (!run && json_object_get(r->b.root, "to"))
        return cli_fail(EXIT_USAGE, "--to is of collective run: verify has it from the dump");
    int code = build(r, run);
    if (code)
        return code;
    files.path[REDUCE_D] = whole ? NULL : r->b.out;
    json_t *root = builder_case(&r->b, op_text(OP_ALL_REDUCE), "out");
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

/* ---- order. ---- */

/* Of a chunk, by what a case with n ranks would read. */
static int print_order(struct request *r, const ng_all_reduce_op *op, int64_t chunk,
                       json_t *list)
{
    char *text = malloc(16 * NG_MAX_RANKS);
    size_t length;
    if (!text)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    const ng_status s = ng_all_reduce_order(r->cli.ctx, op, (int64_t)r->ranks, chunk, text,
                                            16 * NG_MAX_RANKS, &length);
    if (!s && list)
        json_array_append_new(
            list, json_pack("{s:I,s:s}", "chunk", (json_int_t)chunk, "order", text));
    else if (!s)
        printf("chunk %-4lld %s\n", (long long)chunk, text);
    free(text);
    return s ? cli_refused(&r->cli, s, "") : 0;
}

static int order(struct request *r)
{
    struct one_case c = { .op = OP_ALL_REDUCE };
    if (!r->ranks)
        return cli_fail(EXIT_USAGE, "collective order wants --ranks N");
    json_t *chunks = r->cli.json ? json_array() : NULL;
    if (json_object_size(r->set))
        json_object_set(r->b.one, "set", r->set);
    int code = reduce_from_keys(r->b.one, &c);
    if (!code)
        code = cli_open(&r->cli);
    const ng_all_reduce_op op = code ? (ng_all_reduce_op){ 0 } : reduce_op(&c);
    const bool one = r->seen & BIT(OPT_CHUNK),
               same = !code &&
                      ng_collective_param_is_idle(op.collective, NG_COLLECTIVE_CHUNK, true);
    const int64_t first = one ? (int64_t)r->chunk : 0,
                  end = one || same ? first + 1 : (int64_t)r->ranks;
    for (int64_t i = first; i < end && !code; i++)
        code = print_order(r, &op, i, chunks);
    if (!code && chunks)
        code = cli_print_json(json_pack("{s:s,s:b,s:O}", "schema", "ng.report/1",
                                        "same_for_all_chunks", same, "orders", chunks));
    else if (!code && same && !one)
        printf("and every other chunk the same\n");
    json_decref(chunks);
    cli_close(&r->cli);
    block_free(c.block);
    return code;
}

/* ---- ask and read. ---- */

static int ask(struct request *r)
{
    if (!r->ranks || !r->format || !r->b.out)
        return cli_fail(EXIT_USAGE, "collective ask wants --ranks N, --format F and -o OUT");
    return collective_ask(&r->cli, (int64_t)r->ranks, (int64_t)r->elements, r->format,
                          r->b.out);
}

static int read_answer(struct request *r)
{
    struct case_list list = { NULL, 0 };
    json_object_set_new(r->b.one, "collective", json_string("tree")); /* not looked at */
    int code = build(r, false);
    if (code)
        return code;
    json_t *root = builder_case(&r->b, op_text(OP_ALL_REDUCE), "out");
    code = case_from_json(root, true, NULL, &list);
    json_decref(root);
    if (!code)
        code = cli_open(&r->cli);
    if (!code)
        code = collective_read(&r->cli, &list.item[0]);
    cli_close(&r->cli);
    case_free(&list);
    return code;
}

/* ---- The command. ---- */

static const struct option long_options[] = {
    CLI_OPTIONS,
    CAST_OPTIONS,
    { "collective", required_argument, NULL, OPT_COLLECTIVE },
    { "set", required_argument, NULL, OPT_SET },
    { "reduction", required_argument, NULL, OPT_REDUCTION },
    { "order", required_argument, NULL, OPT_ORDER },
    { "rank", required_argument, NULL, OPT_RANK },
    { "x", required_argument, NULL, OPT_X },
    { "dump", required_argument, NULL, OPT_DUMP },
    { "ranks", required_argument, NULL, OPT_RANKS },
    { "chunk", required_argument, NULL, OPT_CHUNK },
    { "format", required_argument, NULL, OPT_FORMAT },
    { "elements", required_argument, NULL, OPT_ELEMENTS },
    { 0 }
};

/* The first option that says nothing to the verb. */
static int check_options(const struct request *r, const char *verb, uint64_t takes)
{
    const int code = cli_stray(long_options, r->seen, takes, "collective", verb);
    if (code)
        return code;
    if (r->b.out && strcmp(verb, "run") != 0 && strcmp(verb, "ask") != 0)
        return cli_fail(EXIT_USAGE, "-o says nothing to collective %s", verb);
    return 0;
}

static int words_of(struct request *r, int argc, char **argv)
{
    enum {
        RUN,
        VERIFY,
        ORDER,
        ASK,
        READ,
        SHOW,
        KEYS
    };
    static const struct cli_verb verbs[] = {
        [RUN] = { "run", 0, 0, "its files by options, not" },
        [VERIFY] = { "verify", 0, 0, "its files by options, not" },
        [ORDER] = { "order", 0, 0, NULL },
        [ASK] = { "ask", 0, 0, NULL },
        [READ] = { "read", 0, 0, "its files by options, not" },
        [SHOW] = { "show", 0, 1, "one COLLECTIVE or none" },
        [KEYS] = { "keys", 0, 0, NULL },
        { NULL, 0, 0, NULL },
    };
    static const uint64_t takes[] = {
        [RUN] = BITS_CASE | BIT(OPT_X) | BITS_CAST,
        [VERIFY] = BITS_CASE | BIT(OPT_X) | BIT(OPT_DUMP) | BITS_CAST,
        [ORDER] = BITS_CASE | BIT(OPT_RANKS) | BIT(OPT_CHUNK),
        [ASK] = BIT(OPT_RANKS) | BIT(OPT_FORMAT) | BIT(OPT_ELEMENTS),
        [READ] = BIT(OPT_X) | BIT(OPT_DUMP),
        [SHOW] = 0,
        [KEYS] = 0,
    };
    const int v = cli_verb(argc, argv, verbs);
    if (v < 0)
        return EXIT_USAGE;
    const char *const word = verbs[v].name;
    const int code = check_options(r, word, takes[v]);
    if (code)
        return code;
    if ((v == RUN || v == VERIFY || v == READ) && !r->x)
        return cli_fail(EXIT_USAGE, "collective %s wants --x FILE", word);
    if ((v == VERIFY || v == READ) && !r->dump)
        return cli_fail(EXIT_USAGE, "collective %s wants --dump FILE", word);
    switch (v) {
    case RUN:
    case VERIFY: return compute(r, v == RUN);
    case ORDER: return order(r);
    case ASK: return ask(r);
    case READ: return read_answer(r);
    case SHOW:
        return settings_show(&r->cli, &collective_settings,
                             argc - optind > 1 ? argv[optind + 1] : NULL);
    default: return settings_keys(&r->cli, &collective_settings);
    }
}

int cmd_collective(int argc, char **argv)
{
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
