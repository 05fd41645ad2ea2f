/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge rng: the words of a random source. docs/cli.md; docs/numerics.md, 7 and 11.7. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "words.h"

static const char help[] =
    "usage: ngauge rng --source philox|xorwow|lfsr32 [--count N] [-o OUT]\n\n"
    "  --key K0,K1            philox: the two key words (default 0,0)\n"
    "  --state FILE           xorwow: uint32 [lanes, states, 6], x y z w v d; lfsr32: "
    "[lanes].\n"
    "                         Without it the states follow from --seed (docs/numerics.md "
    "11.7)\n"
    "  --lanes N --states N   128; 1 or 4\n"
    "  --poly P --steps N     lfsr32: the polynomial; shifts a word (32)\n"
    "  --first N --count N    words [first, first + count) of the stream (0, 16)\n"
    "  --columns N            elements of a row, for the lanes (default: count)\n"
    "  --uniform              FP32 in [0, 1) instead of words\n"
    "  -o OUT                 .npy, .safetensors (tensor \"words\") or raw; else text\n"
    "and the options of every command: ngauge --help\n";

enum {
    OPT_SOURCE = OPT_OWN,
    OPT_KEY,
    OPT_STATE,
    OPT_LANES,
    OPT_STATES,
    OPT_POLY,
    OPT_STEPS,
    OPT_FIRST,
    OPT_COUNT,
    OPT_COLUMNS,
    OPT_UNIFORM
};

struct rng {
    const char *source, *state, *out, *key;
    uint64_t lanes, states, poly, steps, first, count, columns;
    bool uniform;
    uint64_t seen; /* options of its own */
};

static int number(const char *text, const char *name, uint64_t least, uint64_t most,
                  uint64_t *value)
{
    if (parse_u64(text, value) && *value >= least && *value <= most)
        return 0;
    return cli_fail(EXIT_USAGE, "--%s is '%s'; wanted: %llu to %llu", name, text,
                    (unsigned long long)least, (unsigned long long)most);
}

static int take(void *to, int o, const char *v)
{
    struct rng *g = to;
    g->seen |= o >= OPT_OWN ? BIT(o) : 0;
    switch (o) {
    case OPT_SOURCE: g->source = v; return 0;
    case OPT_KEY: g->key = v; return 0;
    case OPT_STATE: g->state = v; return 0;
    case OPT_LANES: return number(v, "lanes", 1, UINT32_MAX, &g->lanes);
    case OPT_STATES: return number(v, "states", 1, UINT32_MAX, &g->states);
    case OPT_POLY: return number(v, "poly", 1, UINT32_MAX, &g->poly);
    case OPT_STEPS: return number(v, "steps", 1, UINT32_MAX, &g->steps);
    case OPT_FIRST: return number(v, "first", 0, INT64_MAX, &g->first);
    case OPT_COUNT: return number(v, "count", 0, (uint64_t)1 << 40, &g->count);
    case OPT_COLUMNS: return number(v, "columns", 1, INT64_MAX, &g->columns);
    case OPT_UNIFORM: g->uniform = true; return 0;
    case 'o': g->out = v; return 0;
    default: return EXIT_USAGE;
    }
}

static int set_key(const char *text, ng_random *r)
{
    char first[32];
    uint64_t k0 = 0, k1 = 0;
    const char *comma = strchr(text, ',');
    if (comma && (size_t)(comma - text) < sizeof first) {
        snprintf(first, sizeof first, "%.*s", (int)(comma - text), text);
        if (parse_u64(first, &k0) && parse_u64(comma + 1, &k1) && k0 <= UINT32_MAX &&
            k1 <= UINT32_MAX) {
            r->key[0] = (uint32_t)k0;
            r->key[1] = (uint32_t)k1;
            return 0;
        }
    }
    return cli_fail(EXIT_USAGE, "'%s' is no key; wanted: two words, 0x1,0x2", text);
}

/* The states from a file, or from the seed. */
static int set_state(const struct cli *cli, const struct rng *g, ng_random *r,
                     struct io_array *state)
{
    struct io_error e;
    if (g->state) {
        if (!npy_read(g->state, NG_FORMAT_NONE, true, state, &e))
            return cli_file_error(&e);
        const char *why = words_state(r, state);
        return why ? cli_fail(EXIT_FILE, "%s: %s", g->state, why) : 0;
    }
    if (r->lanes > 1u << 24)
        return cli_fail(EXIT_USAGE, "--lanes is %u; wanted: at most 2^24", r->lanes);
    *state = (struct io_array){ .item_bits = 32, .bytes = words_of_state(r) * 4 };
    state->data = malloc(state->bytes);
    if (!state->data)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    if (ng_random_states(r->kind, cli->seed, r->lanes, r->states, state->data))
        return cli_fail(EXIT_USAGE, "--states is %u; wanted: 1 or, of xorwow, 4", r->states);
    r->state = state->data;
    return 0;
}

static int print_words(const struct cli *cli, const struct rng *g, const uint32_t *w)
{
    json_t *list = cli->json ? json_array() : NULL;
    for (uint64_t i = 0; i < g->count; i++) {
        float x;
        memcpy(&x, &w[i], sizeof x);
        char text[40];
        if (g->uniform)
            snprintf(text, sizeof text, "%.9g", (double)x);
        else
            snprintf(text, sizeof text, "0x%08x", (unsigned)w[i]);
        if (list)
            json_array_append_new(list, g->uniform ? json_real((double)x) : json_string(text));
        else
            printf("%s\n", text);
    }
    if (!list)
        return 0;
    return cli_print_json(json_pack("{s:s,s:s,s:I,s:I,s:o}", "schema", "ng.report/1", "source",
                                    g->source, "first", (json_int_t)g->first, "count",
                                    (json_int_t)g->count, "words", list));
}

static int write_words(const struct cli *cli, const struct rng *g, const struct io_array *words)
{
    const int code = array_write(g->out, "words", words);
    if (code || !cli->json)
        return code;
    return cli_print_json(json_pack("{s:s,s:s,s:I,s:I,s:o}", "schema", "ng.report/1", "source",
                                    g->source, "first", (json_int_t)g->first, "count",
                                    (json_int_t)g->count, "written", text_json(g->out)));
}

static int compute(const struct cli *cli, const struct rng *g, const ng_random *r)
{
    struct io_array out = { .format = g->uniform ? NG_F32 : NG_FORMAT_NONE,
                            .item_bits = 32,
                            .rank = 1,
                            .dim = { (int64_t)g->count },
                            .bytes = (size_t)g->count * 4 };
    const int64_t columns = (int64_t)(g->columns ? g->columns : g->count),
                  count = (int64_t)g->count;
    out.data = malloc(out.bytes ? out.bytes : 1);
    if (!out.data)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    const ng_status s = g->uniform ? ng_random_uniform(cli->ctx, r, columns, 0, count, out.data)
                                   : ng_random_words(cli->ctx, r, columns, 0, count, out.data);
    int code = s ? cli_refused(cli, s, "") : 0;
    if (!code)
        code = g->out ? write_words(cli, g, &out) : print_words(cli, g, out.data);
    free(out.data);
    return code;
}

static const struct option options[] = { CLI_OPTIONS,
                                         { "source", required_argument, NULL, OPT_SOURCE },
                                         { "key", required_argument, NULL, OPT_KEY },
                                         { "state", required_argument, NULL, OPT_STATE },
                                         { "lanes", required_argument, NULL, OPT_LANES },
                                         { "states", required_argument, NULL, OPT_STATES },
                                         { "poly", required_argument, NULL, OPT_POLY },
                                         { "steps", required_argument, NULL, OPT_STEPS },
                                         { "first", required_argument, NULL, OPT_FIRST },
                                         { "count", required_argument, NULL, OPT_COUNT },
                                         { "columns", required_argument, NULL, OPT_COLUMNS },
                                         { "uniform", no_argument, NULL, OPT_UNIFORM },
                                         { 0 } };

static int run(struct cli *cli, const struct rng *g)
{
    ng_random r = { .first = g->first,
                    .lanes = (uint32_t)g->lanes,
                    .states = (uint32_t)g->states,
                    .poly = (uint32_t)g->poly,
                    .steps = (uint32_t)g->steps };
    struct io_array state = { .data = NULL };
    if (!g->source || !words_kind(g->source, &r.kind))
        return cli_fail(EXIT_USAGE, "--source is %s; wanted: philox, xorwow or lfsr32",
                        g->source ? g->source : "missing");
    const bool philox = r.kind == NG_RANDOM_PHILOX, lfsr = r.kind == NG_RANDOM_LFSR32;
    const uint64_t of_all = BIT(OPT_SOURCE) | BIT(OPT_FIRST) | BIT(OPT_COUNT) |
                            BIT(OPT_COLUMNS) | BIT(OPT_UNIFORM),
                   of_state = BIT(OPT_STATE) | BIT(OPT_LANES) | BIT(OPT_STATES),
                   of_lfsr = BIT(OPT_POLY) | BIT(OPT_STEPS);
    int code = cli_stray(options, g->seen,
                         of_all | (philox ? BIT(OPT_KEY) : of_state) | (lfsr ? of_lfsr : 0),
                         "rng --source", g->source);
    if (code)
        return code;
    if (lfsr && !g->poly)
        return cli_fail(EXIT_USAGE, "--poly is missing; wanted with --source lfsr32: the "
                                    "polynomial, such as 0x80200003");
    code = g->key ? set_key(g->key, &r) : 0;
    if (!code && !philox)
        code = set_state(cli, g, &r, &state);
    if (!code)
        code = cli_open(cli);
    if (!code)
        code = compute(cli, g, &r);
    cli_close(cli);
    io_array_free(&state);
    return code;
}

int cmd_rng(int argc, char **argv)
{
    struct cli cli = { .threads = 1 };
    struct rng g = { .count = 16 };
    int code;
    if (!cli_options(&cli, argc, argv,
                     &(struct cli_options){ CLI_SHORT "o:", options, help, take, &g }, &code))
        return code;
    code = cli_words("rng", argv + optind, 0, 0, NULL);
    return code ? code : run(&cli, &g);
}
