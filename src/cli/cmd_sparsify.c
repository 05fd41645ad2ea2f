/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge sparsify: prune, compress, expand and check operands of structured sparsity. */
#include <stdlib.h>
#include <string.h>

#include "case.h"

static const char help[] =
    "usage: ngauge sparsify prune    [OPTIONS] IN=FORMAT OUT\n"
    "       ngauge sparsify compress [OPTIONS] [--prune] --tags TAGS IN=FORMAT OUT\n"
    "       ngauge sparsify expand   [OPTIONS] --tags TAGS IN=FORMAT OUT\n"
    "       ngauge sparsify check    [OPTIONS] IN=FORMAT\n"
    "       ngauge sparsify tags     [OPTIONS] [--slots N] TAGS [OUT --to STORE]\n\n"
    "prune keeps the largest magnitudes of every group; compress makes slots and tags, expand\n"
    "the dense tensor of them; check tells whether a tensor satisfies the pattern (exit code "
    "1\n"
    "if not), tags whether tags are ones that a multiply takes, and moves them to another "
    "store.\n"
    "  --pattern M:N        M kept of N, default 2:4\n"
    "  --axis N             K: the last dimension (default) or the one before it\n"
    "  --store trn|nv24     how the tags are packed, default trn\n"
    "  --tags TAGS          plain uint16 (trn) or uint8 (nv24), a line per row or column\n"
    "  --tensor NAME        of IN, where that is a .safetensors with several\n"
    "IN is .npy, .safetensors or raw with a spec: in.bin=bf16:512x1024. TAGS likewise\n"
    "(tags.bin=u16:512x128).\n"
    "and the options of every command: ngauge --help\n";

enum {
    OPT_PATTERN = OPT_OWN,
    OPT_AXIS,
    OPT_STORE,
    OPT_TAGS,
    OPT_PRUNE,
    OPT_TENSOR,
    OPT_SLOTS,
    OPT_TO
};

/* What the command line asks. */
struct request {
    struct cli cli;
    ng_sparse_op op;
    bool has_axis, has_to;
    ng_tag_store to;
    int64_t slots; /* 0: not given */
    const char *tags, *tensor, *verb, *in, *out;
    uint64_t seen; /* options of its own */
    struct io_array src, dst, tag, moved;
    double start;
};

static const char *store_text(ng_tag_store store)
{
    return store == NG_TAG_TRN ? "trn" : "nv24";
}

static bool name_store(const char *text, ng_tag_store *store)
{
    *store = strcmp(text, "nv24") == 0 ? NG_TAG_NV24 : NG_TAG_TRN;
    return strcmp(text, store_text(*store)) == 0;
}

/* ---- Options. ---- */

static int set_pattern(struct request *r, const char *text)
{
    char kept[24];
    uint64_t m, n;
    const char *colon = strchr(text, ':');
    const size_t length = colon ? (size_t)(colon - text) : sizeof kept;
    if (length < sizeof kept)
        snprintf(kept, sizeof kept, "%.*s", (int)length, text);
    if (length >= sizeof kept || !parse_u64(kept, &m) || !parse_u64(colon + 1, &n) || m > 999 ||
        n > 999)
        return cli_fail(EXIT_USAGE, "'%s' is no pattern; wanted: M:N, such as 2:4", text);
    r->op.kept = (uint32_t)m;
    r->op.group = (uint32_t)n;
    return 0;
}

static int set_store(const char *option, const char *text, ng_tag_store *store)
{
    return name_store(text, store)
               ? 0
               : cli_fail(EXIT_USAGE, "--%s is '%s'; wanted: trn or nv24", option, text);
}

static int take(void *to, int o, const char *v)
{
    struct request *const r = to;
    uint64_t n = 0;
    r->seen |= BIT(o);
    switch (o) {
    case OPT_PATTERN: return set_pattern(r, v);
    case OPT_STORE: return set_store("store", v, &r->op.store);
    case OPT_TO: r->has_to = true; return set_store("to", v, &r->to);
    case OPT_TAGS: r->tags = v; return 0;
    case OPT_TENSOR: r->tensor = v; return 0;
    case OPT_PRUNE: r->op.prune = true; return 0;
    case OPT_AXIS:
        if (!parse_u64(v, &n) || n >= NG_MAX_RANK)
            return cli_fail(EXIT_USAGE, "'%s' is no dimension for --axis", v);
        r->op.axis = (uint32_t)n;
        r->has_axis = true;
        return 0;
    case OPT_SLOTS:
        if (!parse_u64(v, &n) || n < 1 || n > (uint64_t)1 << 47)
            return cli_fail(EXIT_USAGE, "'%s' is no number for --slots", v);
        r->slots = (int64_t)n;
        return 0;
    default: return EXIT_USAGE;
    }
}

/* ---- Files. ---- */

static int view(const struct io_array *a, const char *name, ng_tensor *t)
{
    if (!a->rank || ng_tensor_init(t, a->format, a->data, a->rank, a->dim))
        return cli_fail(EXIT_REFUSED, "%s has shape %s; wanted: rank 1 to %d", name,
                        io_shape(a->rank, a->dim).text, NG_MAX_RANK);
    return 0;
}

static int allocate(struct io_array *a)
{
    a->bytes = io_array_size(a->format, a->item_bits, a->rank, a->dim);
    a->data = a->bytes ? calloc(1, a->bytes) : NULL;
    return a->data ? 0 : cli_fail(EXIT_INTERNAL, "out of memory");
}

/* An output like the source, with K elements along the axis. */
static int output_like(struct request *r, int64_t k, ng_tensor *t)
{
    r->dst = r->src;
    r->dst.data = NULL;
    r->dst.dim[r->op.axis] = k;
    const int code = allocate(&r->dst);
    return code ? code : view(&r->dst, "OUT", t);
}

static int64_t lines_of(const struct request *r)
{
    int64_t n = 1;
    for (uint32_t d = 0; d < r->src.rank; d++)
        n *= d == r->op.axis ? 1 : r->src.dim[d];
    return n;
}

/* Tags as a file has them: a line per line of the operand. */
static struct io_array tags_array(ng_tag_store store, int64_t lines, int64_t slots)
{
    const bool trn = store == NG_TAG_TRN;
    struct io_array a = { .item_bits = trn ? 16 : 8, .rank = 2 };
    a.dim[0] = lines;
    a.dim[1] = (int64_t)ng_tags_bytes(store, slots) / (trn ? 2 : 1);
    return a;
}

/* ---- Reports. ---- */

static json_t *report(const struct request *r, const char *what)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:s,s:f}", "schema", "ng.report/1", "version",
                     NG_CLI_VERSION, "op", r->verb, "what", what, "kernel",
                     ng_ctx_kernel(r->cli.ctx), "seconds", seconds_now() - r->start);
}

static int say_written(const struct request *r, const char *tags)
{
    char what[300];
    snprintf(what, sizeof what, "%s %u:%u along dimension %u: %s %s to %s", r->verb, r->op.kept,
             r->op.group, r->op.axis, io_type_name(r->src.format, 0),
             io_shape(r->src.rank, r->src.dim).text, io_shape(r->dst.rank, r->dst.dim).text);
    if (r->cli.json) {
        json_t *j = report(r, what);
        json_object_set_new(j, "written", text_json(r->out));
        if (tags)
            json_object_set_new(j, "tags", text_json(tags));
        return cli_print_json(j);
    }
    if (!r->cli.quiet)
        printf("%s\nwritten to %s%s%s (%s, %.2f s)\n", what, r->out, tags ? ", tags to " : "",
               tags ? tags : "", ng_ctx_kernel(r->cli.ctx), seconds_now() - r->start);
    return 0;
}

/* ---- Verbs. ---- */

static int open_source(struct request *r, ng_tensor *t)
{
    int code = array_load(r->in, r->tensor, false, &r->src);
    if (!code)
        code = view(&r->src, "IN", t);
    if (!code && !r->has_axis)
        r->op.axis = r->src.rank - 1;
    if (!code && r->op.axis >= r->src.rank)
        code =
            cli_fail(EXIT_REFUSED, "--axis is %u, but IN has rank %u", r->op.axis, r->src.rank);
    return code;
}

static int prune(struct request *r)
{
    ng_tensor src, dst;
    int code = open_source(r, &src);
    if (!code)
        code = output_like(r, r->src.dim[r->op.axis], &dst);
    if (code)
        return code;
    const ng_status s = ng_prune(r->cli.ctx, &r->op, &src, &dst);
    code = s ? cli_refused(&r->cli, s, "") : array_write(r->out, "dst", &r->dst);
    return code ? code : say_written(r, NULL);
}

/* M * (K / N), or a length that the library will refuse. */
static int64_t slots_of(const struct request *r)
{
    const int64_t groups = r->op.group ? r->src.dim[r->op.axis] / r->op.group : 0;
    return groups && r->op.kept ? groups * r->op.kept : 1;
}

static int compress(struct request *r)
{
    ng_tensor src, dst;
    struct io_files files = { .n = 0 };
    int code = r->tags ? open_source(r, &src) : cli_fail(EXIT_USAGE, "compress wants --tags");
    if (!code)
        code = output_like(r, slots_of(r), &dst);
    if (!code)
        code = check_writable((const char *[]){ r->out, r->tags }, 2);
    if (code)
        return code;
    r->tag = tags_array(r->op.store, lines_of(r), slots_of(r));
    code = allocate(&r->tag);
    if (code)
        return code;
    const ng_status s = ng_compress(r->cli.ctx, &r->op, &src, &dst, r->tag.data);
    if (s)
        return cli_refused(&r->cli, s, "");
    code = array_stage(&files, r->out, "dst", &r->dst);
    if (!code)
        code = array_stage(&files, r->tags, "tags", &r->tag);
    code = files_close(&files, code);
    return code ? code : say_written(r, r->tags);
}

static int expand(struct request *r)
{
    ng_tensor src, dst;
    int code = r->tags ? open_source(r, &src) : cli_fail(EXIT_USAGE, "expand wants --tags");
    if (!code)
        code = array_load(r->tags, NULL, true, &r->tag);
    if (code)
        return code;
    const int64_t slots = r->src.dim[r->op.axis], lines = lines_of(r),
                  line = (int64_t)ng_tags_bytes(r->op.store, slots);
    if ((int64_t)r->tag.bytes != lines * line)
        return cli_fail(EXIT_REFUSED,
                        "--tags: wanted %lld lines of %lld bytes, the file has %zu bytes",
                        (long long)lines, (long long)line, r->tag.bytes);
    if (!r->op.kept || slots % r->op.kept)
        return cli_fail(EXIT_REFUSED,
                        "dimension %u of IN is %lld; %u:%u wants a multiple of %u", r->op.axis,
                        (long long)slots, r->op.kept, r->op.group, r->op.kept);
    const ng_sparse sparse = {
        .kept = r->op.kept, .group = r->op.group, .store = r->op.store, .tags = r->tag.data
    };
    src.sparse = &sparse;
    code = output_like(r, r->op.group ? slots / r->op.kept * r->op.group : 1, &dst);
    if (code)
        return code;
    const ng_status s = ng_expand(r->cli.ctx, &src, r->op.axis, &dst);
    code = s ? cli_refused(&r->cli, s, "") : array_write(r->out, "dst", &r->dst);
    return code ? code : say_written(r, NULL);
}

static int check(struct request *r)
{
    ng_tensor src;
    ng_sparse_report found;
    const int code = open_source(r, &src);
    if (code)
        return code;
    const ng_status s = ng_sparse_check(r->cli.ctx, &r->op, &src, &found);
    if (s)
        return cli_refused(&r->cli, s, "");
    char what[200];
    snprintf(what, sizeof what, "%u:%u along dimension %u of %s %s", r->op.kept, r->op.group,
             r->op.axis, io_type_name(r->src.format, 0),
             io_shape(r->src.rank, r->src.dim).text);
    if (r->cli.json) {
        json_t *j = report(r, what);
        json_object_set_new(j, "groups", json_integer(found.groups));
        json_object_set_new(j, "broken", json_integer(found.broken));
        json_object_set_new(
            j, "first",
            found.broken ? json_pack("{s:I,s:I,s:I,s:i}", "matrix", (json_int_t)found.matrix,
                                     "line", (json_int_t)found.line, "group",
                                     (json_int_t)found.group, "nonzeros", (int)found.nonzeros)
                         : json_null());
        json_object_set_new(j, "verdict", json_string(found.broken ? "broken" : "holds"));
        const int printed = cli_print_json(j);
        return printed ? printed : found.broken ? EXIT_DIFFERS : EXIT_EQUAL;
    }
    if (!found.broken)
        printf("%s: holds in all %lld groups\n", what, (long long)found.groups);
    else
        printf("%s: broken in %lld of %lld groups; first: group %lld of line %lld of matrix "
               "%lld has %u non-zeros\n",
               what, (long long)found.broken, (long long)found.groups, (long long)found.group,
               (long long)found.line, (long long)found.matrix, found.nonzeros);
    return found.broken ? EXIT_DIFFERS : EXIT_EQUAL;
}

static int say_tags(const struct request *r, int64_t lines, int64_t slots, bool ascend)
{
    char what[200];
    snprintf(what, sizeof what, "%lld lines of %lld tags (%s), groups of %u: %s",
             (long long)lines, (long long)slots, store_text(r->op.store), r->op.group,
             ascend ? "ascending" : "not ascending in every group");
    if (r->cli.json) {
        json_t *j = report(r, what);
        json_object_set_new(j, "lines", json_integer(lines));
        json_object_set_new(j, "slots", json_integer(slots));
        json_object_set_new(j, "ascend", json_boolean(ascend));
        if (r->out)
            json_object_set_new(j, "written", text_json(r->out));
        return cli_print_json(j);
    }
    if (!r->cli.quiet)
        printf("%s\n", what);
    if (!r->cli.quiet && r->out)
        printf("written to %s (%s)\n", r->out, store_text(r->to));
    return 0;
}

static int tags(struct request *r)
{
    int code = array_load(r->in, r->tensor, true, &r->tag);
    if (!code && !r->out != !r->has_to)
        code = cli_fail(EXIT_USAGE, "OUT and --to go together");
    if (code)
        return code;
    const uint32_t rank = r->tag.rank;
    const int64_t row = rank ? r->tag.dim[rank - 1] * (r->tag.item_bits / 8) : 0,
                  lines = row ? (int64_t)r->tag.bytes / row : 0,
                  all = r->op.store == NG_TAG_TRN ? row / 2 * 4 : row * 4,
                  slots = r->slots ? r->slots : all;
    if (!lines || (int64_t)ng_tags_bytes(r->op.store, slots) != row)
        return cli_fail(EXIT_REFUSED,
                        "TAGS has lines of %lld bytes; %lld tags in store %s take %zu",
                        (long long)row, (long long)slots, store_text(r->op.store),
                        ng_tags_bytes(r->op.store, slots));
    const ng_sparse sparse = {
        .kept = r->op.kept, .group = r->op.group, .store = r->op.store, .tags = r->tag.data
    };
    bool ascend = false;
    ng_status s = ng_tags_check(r->cli.ctx, &sparse, lines, slots, &ascend);
    if (s || !r->out)
        return s ? cli_refused(&r->cli, s, "") : say_tags(r, lines, slots, ascend);
    r->moved = tags_array(r->to, lines, slots);
    code = allocate(&r->moved);
    if (code)
        return code;
    s = ng_tags_move(r->cli.ctx, &sparse, r->to, r->moved.data, 0, lines, slots);
    code = s ? cli_refused(&r->cli, s, "") : array_write(r->out, "tags", &r->moved);
    return code ? code : say_tags(r, lines, slots, ascend);
}

/* ---- The command. ---- */

static const struct option long_options[] = { CLI_OPTIONS,
                                              { "pattern", required_argument, NULL,
                                                OPT_PATTERN },
                                              { "axis", required_argument, NULL, OPT_AXIS },
                                              { "store", required_argument, NULL, OPT_STORE },
                                              { "tags", required_argument, NULL, OPT_TAGS },
                                              { "prune", no_argument, NULL, OPT_PRUNE },
                                              { "tensor", required_argument, NULL, OPT_TENSOR },
                                              { "slots", required_argument, NULL, OPT_SLOTS },
                                              { "to", required_argument, NULL, OPT_TO },
                                              { 0 } };

enum {
    PRUNE,
    COMPRESS,
    EXPAND,
    CHECK,
    TAGS
};
static const struct cli_verb verbs[] = {
    [PRUNE] = { "prune", 2, 2, "IN and OUT" },
    [COMPRESS] = { "compress", 2, 2, "IN and OUT" },
    [EXPAND] = { "expand", 2, 2, "IN and OUT" },
    [CHECK] = { "check", 1, 1, "one IN" },
    [TAGS] = { "tags", 1, 2, "TAGS, or TAGS and OUT" },
    { NULL, 0, 0, NULL },
};
/* Their functions, and options beside --pattern, --axis and --tensor. */
static const struct action {
    int (*run)(struct request *r);
    uint64_t takes;
} actions[] = {
    [PRUNE] = { prune, 0 },
    [COMPRESS] = { compress, BIT(OPT_STORE) | BIT(OPT_TAGS) | BIT(OPT_PRUNE) },
    [EXPAND] = { expand, BIT(OPT_STORE) | BIT(OPT_TAGS) },
    [CHECK] = { check, 0 },
    [TAGS] = { tags, BIT(OPT_STORE) | BIT(OPT_SLOTS) | BIT(OPT_TO) },
};

static int run_verb(struct request *r, int argc, char **argv)
{
    const int v = cli_verb(argc, argv, verbs);
    if (v < 0)
        return EXIT_USAGE;
    r->verb = verbs[v].name;
    r->in = argv[optind + 1];
    r->out = argc - optind > 2 ? argv[optind + 2] : NULL;
    int code = cli_stray(long_options, r->seen,
                         actions[v].takes | BIT(OPT_PATTERN) | BIT(OPT_AXIS) | BIT(OPT_TENSOR),
                         "sparsify", r->verb);
    if (!code)
        code = cli_open(&r->cli);
    r->start = seconds_now();
    if (!code)
        code = actions[v].run(r);
    cli_close(&r->cli);
    io_array_free(&r->src);
    io_array_free(&r->dst);
    io_array_free(&r->tag);
    io_array_free(&r->moved);
    return code;
}

int cmd_sparsify(int argc, char **argv)
{
    struct request r = { .cli = { .threads = 1 },
                         .op = { .size = sizeof r.op, .kept = 2, .group = 4 } };
    int code;
    if (cli_options(&r.cli, argc, argv,
                    &(struct cli_options){ CLI_SHORT, long_options, help, take, &r }, &code))
        code = run_verb(&r, argc, argv);
    return code;
}
