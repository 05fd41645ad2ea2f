/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over ranks as cases: keys, shapes, the call, what explains a dump. docs/cli.md. */
#include <stdlib.h>
#include <string.h>

#include "block.h"

static const struct block_tensor tensors[] = {
    [REDUCE_X] = { "x", BLOCK_OPERAND, false },
    [REDUCE_D] = { "d", BLOCK_RESULT, false },
};
static const char *const keys[] = { "collective", "set", "reduction", "order",
                                    "rank",       "out", NULL };

/* Every value that these parameters may be tried with; those that are none of its own are
 * refused. The algorithm, its chips and nodes go together. */
static const ng_collective_param tried_alone[] = {
    NG_COLLECTIVE_WIRE,  NG_COLLECTIVE_SUM,      NG_COLLECTIVE_NAN,
    NG_COLLECTIVE_ROUND, NG_COLLECTIVE_OVERFLOW, NG_COLLECTIVE_CHUNK
};
static const char *const value_tried[] = {
    "given",  "f32",    "bf16",      "f16",     "e4m3", "e4m3fn", "e5m2",  "rne",
    "rna",    "rtz",    "rdn",       "rup",     "rto",  "inf",    "sat",   "sat_keep_inf",
    "once",   "pairs",  "propagate", "number",  "0",    "64",     "128",   "256",
    "512",    "1024",   "2048",      "4096",    "8192", "16384",  "32768", "65536",
    "131072", "262144", "524288",    "1048576",
};
static const int32_t sizes_tried[] = { 1, 2, 4, 8, 16, 32, 64 }; /* of chips and nodes */

enum {
    VALUES = sizeof value_tried / sizeof value_tried[0],
    SIZES = sizeof sizes_tried / sizeof sizes_tried[0],
    LOOKED_AT = 4096, /* elements times ranks of a hypothesis */
    RANKS_LEFT_OUT = 64
};

/* ---- Collectives as settings. ---- */

static const char *key_of(int p)
{
    return ng_collective_param_key((ng_collective_param)p);
}

static const char *meaning_of(int p)
{
    return ng_collective_param_meaning((ng_collective_param)p);
}

static size_t print_value(int p, int32_t value, char *buffer, size_t bytes)
{
    return ng_collective_param_print((ng_collective_param)p, value, buffer, bytes);
}

static size_t values_of(int p, char *buffer, size_t bytes)
{
    return ng_collective_param_values((ng_collective_param)p, buffer, bytes);
}

static const char *collective_at(size_t i, const char **about, const ng_setting **set)
{
    const ng_collective *c = ng_collective_at(i);
    if (!c)
        return NULL;
    *about = c->about;
    *set = c->set;
    return c->name;
}

const struct settings_kind collective_settings = { .what = "collective",
                                                   .command = "collective",
                                                   .n = NG_COLLECTIVE_PARAM_COUNT,
                                                   .key = key_of,
                                                   .meaning = meaning_of,
                                                   .print = print_value,
                                                   .values = values_of,
                                                   .at = collective_at };

static ng_status change(void *collective, const char *key, const char *value)
{
    return ng_collective_set(collective, key, value);
}

/* ---- Keys. ---- */

static int32_t setting(const struct block *b, ng_collective_param p)
{
    return b->reduce.collective.set[p].value;
}

static bool is_explicit(const struct block *b)
{
    return setting(b, NG_COLLECTIVE_ALGORITHM) == NG_ALGORITHM_EXPLICIT;
}

static bool read_collective(struct reader *r, json_t *root, struct block *b)
{
    const char *name;
    if (!reader_string(r, root, "collective", &name))
        return false;
    const ng_collective *c = name ? ng_collective_find(name) : NULL;
    if (!c)
        return settings_unknown(r, &collective_settings, name);
    b->reduce.collective = *c;
    return settings_read(r, root, &collective_settings, &b->reduce.collective, change);
}

static bool read_order(struct reader *r, json_t *root, struct block *b)
{
    const char *order;
    if (!reader_string(r, root, "order", &order))
        return false;
    if (order && !is_explicit(b))
        return reader_fail(r,
                           "order says nothing to another algorithm than explicit; wanted "
                           "with it: %salgorithm=explicit",
                           r->options ? "--set " : "set ");
    if (order && strlen(order) >= sizeof b->reduce.order)
        return reader_fail(r, "order has %zu characters; wanted: fewer than %zu", strlen(order),
                           sizeof b->reduce.order);
    snprintf(b->reduce.order, sizeof b->reduce.order, "%s", order ? order : "");
    return true;
}

static bool starts_at_own(const struct block *b)
{
    return setting(b, NG_COLLECTIVE_START) == NG_START_OWN &&
           !ng_collective_param_is_idle(&b->reduce.collective, NG_COLLECTIVE_START, true);
}

static bool read_reduce(struct reader *r, json_t *root, struct one_case *c)
{
    struct block *b = c->block;
    int reduction = 0;
    b->reduce.op = (ng_all_reduce_op){ .size = sizeof b->reduce.op };
    b->reduce.left_out = -1;
    if (!read_collective(r, root, b) || !read_order(r, root, b) ||
        !reader_choice(r, root, "reduction", "sum min max", &reduction) ||
        !reader_number(r, root, "rank", 0, NG_MAX_RANKS - 1, &b->reduce.op.rank) ||
        !reader_cast(r, json_object_get(root, "out"), "out", &b->reduce.op.out, &b->words))
        return false;
    b->reduce.op.reduction = (ng_reduction)reduction;
    return !json_object_get(root, "rank") || starts_at_own(b) ||
           reader_fail(r,
                       "rank says nothing where no sum begins at a rank's own buffer; wanted "
                       "with it: %sstart=own",
                       r->options ? "--set " : "set ");
}

int reduce_from_keys(json_t *root, struct one_case *c)
{
    struct reader r = { .path = "command line", .op = OP_ALL_REDUCE, .options = true };
    *c = (struct one_case){ .op = OP_ALL_REDUCE, .block = calloc(1, sizeof *c->block) };
    if (!c->block)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    c->block->kind = &reduce_kind;
    return read_reduce(&r, root, c) ? 0 : r.code;
}

/* ---- The call. ---- */

static const ng_tensor *x_of(const struct one_case *c)
{
    return &c->block->t[REDUCE_X].view;
}

static int64_t ranks_of(const struct one_case *c)
{
    return x_of(c)->dim[0];
}

static int shape(const struct one_case *c, size_t i, uint32_t *rank, int64_t *dim)
{
    const ng_tensor *x = x_of(c);
    (void)i;
    if (x->rank < 2)
        return cli_fail(EXIT_REFUSED, "x has rank %u; wanted: 2 or more, the ranks first",
                        x->rank);
    *rank = x->rank - 1;
    memcpy(dim, x->dim + 1, *rank * sizeof *dim);
    return 0;
}

ng_all_reduce_op reduce_op(const struct one_case *c)
{
    const struct block *b = c->block;
    ng_all_reduce_op op = b->reduce.op;
    op.collective = &b->reduce.collective;
    op.order = is_explicit(b) ? b->reduce.order : NULL;
    return op;
}

/* x with one rank's buffer of zeros, in memory of its own. */
static bool without(const struct one_case *c, ng_tensor *x, void **memory)
{
    const struct operand *o = &c->block->t[REDUCE_X];
    const int64_t rank = c->block->reduce.left_out;
    *x = o->view;
    *memory = malloc(o->data.bytes ? o->data.bytes : 1);
    if (!*memory)
        return false;
    memcpy(*memory, o->data.data, o->data.bytes);
    x->data = *memory;
    const int64_t n = block_elements(o) / x->dim[0];
    for (int64_t i = 0; i < n; i++) {
        int64_t at[NG_MAX_RANK];
        index_of(x, rank * n + i, at);
        ng_tensor_set(x, at, 0);
    }
    return true;
}

static ng_status compute(ng_ctx *ctx, const struct one_case *c, struct operand *out)
{
    const ng_all_reduce_op op = reduce_op(c);
    ng_tensor x = *x_of(c);
    void *memory = NULL;
    if (c->block->reduce.left_out >= 0 && !without(c, &x, &memory))
        return NG_ERR_MEMORY;
    const ng_status s = ng_all_reduce(ctx, &op, &x, &out[REDUCE_D].view);
    free(memory);
    return s;
}

/* ---- Reports. ---- */

static const char *title(const struct one_case *c)
{
    return c->block->reduce.collective.name;
}

static size_t parameters(const struct one_case *c, struct block_param *out)
{
    const struct block *b = c->block;
    const ng_collective *s = &b->reduce.collective;
    for (int p = 0; p < NG_COLLECTIVE_PARAM_COUNT; p++) {
        snprintf(out[p].key, sizeof out[p].key, "%s", key_of(p));
        (void)print_value(p, s->set[p].value, out[p].value, sizeof out[p].value);
        out[p].evidence = s->set[p].evidence;
        out[p].idle = ng_collective_param_is_idle(s, (ng_collective_param)p,
                                                  b->reduce.op.reduction == NG_REDUCTION_SUM);
    }
    return NG_COLLECTIVE_PARAM_COUNT;
}

/* ---- Elements alone. ---- */

static int64_t rows(const struct one_case *c, const char **why)
{
    *why = "random words belong to all elements together";
    return c->block->reduce.op.out.round == NG_ROUND_STOCHASTIC || x_of(c)->rank < 2
               ? 0
               : block_elements(&c->block->t[REDUCE_X]) / ranks_of(c);
}

/* Columns of x, whose numbers are p->row. */
static bool take(const struct cli *cli, const struct one_case *c, struct block_part *p)
{
    const struct operand *from = &c->block->t[REDUCE_X];
    struct operand *to = &p->b.t[REDUCE_X];
    const int64_t n = ranks_of(c), elements = block_elements(from) / n, dim[] = { n, p->n };
    (void)cli;
    struct operand like = { .present = true };
    like.view.format = from->view.format;
    if (ng_tensor_init(&like.view, from->view.format, NULL, 2, dim) ||
        !operand_alloc_like(to, &like, 0))
        return false;
    p->owned[REDUCE_X] = to->data.data;
    to->present = true;
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < p->n; i++)
            ng_tensor_set(&to->view, (const int64_t[]){ r, i },
                          code_at(&from->view, r * elements + p->row[i]));
    p->b.reduce.op.elements = elements;
    p->b.reduce.op.element = p->row;
    return true;
}

static int64_t room(const struct one_case *c)
{
    const int64_t n = LOOKED_AT / ranks_of(c);
    return n < 16 ? 16 : n > 256 ? 256 : n;
}

static bool exact(const struct cli *cli, const struct one_case *c, int64_t row, int64_t *work,
                  uint32_t *f32)
{
    const ng_tensor *x = x_of(c);
    int64_t at[NG_MAX_RANK];
    unsigned char none[4] = { 0 };
    ng_all_reduce_op op = reduce_op(c);
    ng_tensor d;
    *work += ranks_of(c);
    op.collective = ng_collective_find("exact");
    op.order = NULL;
    op.rank = 0;
    op.out = (ng_cast){ .round = NG_ROUND_TIES_TO_EVEN };
    if (op.reduction != NG_REDUCTION_SUM ||
        ng_tensor_init(&d, NG_F32, none, x->rank - 1, x->dim + 1))
        return false;
    index_of(&d, row, at);
    return ng_all_reduce_element(cli->ctx, &op, x, &d, at, NULL, 0, NULL, f32) == NG_OK;
}

/* ---- Explaining. ---- */

enum edit_kind {
    EDIT_PLAN,  /* algorithm, start, halving, received in `which`, chip in `value` */
    EDIT_NODES, /* between in `which`, node in `value` */
    EDIT_RING,  /* another ring: ring_tried[which] */
    EDIT_PARAM, /* parameter `which` is value_tried[value] */
    EDIT_REDUCTION,
    EDIT_ROUND,   /* of d */
    EDIT_LEFT_OUT /* rank `which` brings zeros */
};

/* Orders that a ring may have instead: its first rank, and the way it goes. */
static const struct {
    int first, step;
    const char *label;
} ring_tried[] = { { -1, -1, "the ring the other way round" },
                   { 0, 1, "a ring that begins at the chunk's owner" },
                   { 2, 1, "a ring that begins two ranks behind the owner" } };

enum {
    RINGS = sizeof ring_tried / sizeof ring_tried[0]
};

static int plan_of(int32_t algorithm, int32_t start, int32_t halving, int32_t received)
{
    return algorithm | start << 4 | halving << 6 | received << 7;
}

static void add_key(char *text, size_t bytes, const struct block *b, ng_collective_param p,
                    int32_t value, bool always)
{
    const size_t n = strlen(text);
    char name[24];
    if (!always && setting(b, p) == value)
        return;
    (void)print_value((int)p, value, name, sizeof name);
    snprintf(text + n, bytes - n, "%s%s=%s", n ? " " : "", key_of((int)p), name);
}

static void add_plan(const struct one_case *c, struct search *x, int32_t algorithm,
                     int32_t chip, int32_t start, int32_t halving, int32_t received)
{
    const struct block *b = c->block;
    const int64_t m = setting(b, NG_COLLECTIVE_NODE), n = m ? m : ranks_of(c);
    char text[80] = "";
    if (n % chip)
        return;
    add_key(text, sizeof text, b, NG_COLLECTIVE_ALGORITHM, algorithm, false);
    add_key(text, sizeof text, b, NG_COLLECTIVE_CHIP, chip, false);
    add_key(text, sizeof text, b, NG_COLLECTIVE_START, start, false);
    add_key(text, sizeof text, b, NG_COLLECTIVE_HALVING, halving, false);
    add_key(text, sizeof text, b, NG_COLLECTIVE_RECEIVED, received, false);
    if (text[0])
        search_add(x, EDIT_PLAN, plan_of(algorithm, start, halving, received), chip, "%s",
                   text);
}

/* Every algorithm, with what it reads of the other parameters. */
static void add_plans(const struct one_case *c, struct search *x)
{
    const struct block *b = c->block;
    const int32_t chip = setting(b, NG_COLLECTIVE_CHIP),
                  start = setting(b, NG_COLLECTIVE_START) == NG_START_OWN
                              ? NG_START_ZERO
                              : setting(b, NG_COLLECTIVE_START),
                  halving = setting(b, NG_COLLECTIVE_HALVING),
                  received = setting(b, NG_COLLECTIVE_RECEIVED);
    add_plan(c, x, NG_ALGORITHM_RING, chip, start, halving, received);
    add_plan(c, x, NG_ALGORITHM_TREE, chip, start, halving, received);
    for (int32_t i = 0; i < 2; i++) {
        add_plan(c, x, NG_ALGORITHM_KANGA_RING, chip, start, halving, i);
        add_plan(c, x, NG_ALGORITHM_SINGLE_STEP, chip, i, halving, received);
        for (int k = 0; k < SIZES && sizes_tried[k] < ranks_of(c); k++) {
            add_plan(c, x, NG_ALGORITHM_MESH, sizes_tried[k], i, halving, received);
            add_plan(c, x, NG_ALGORITHM_RDH, sizes_tried[k], start, i, received);
        }
    }
}

static void add_nodes(const struct one_case *c, struct search *x)
{
    const struct block *b = c->block;
    if (setting(b, NG_COLLECTIVE_NODE))
        search_add(x, EDIT_NODES, setting(b, NG_COLLECTIVE_BETWEEN), 0, "node=0");
    for (int k = 1; k < SIZES && 2 * sizes_tried[k] <= ranks_of(c); k++)
        for (int32_t between = NG_ALGORITHM_RING; between < NG_ALGORITHM_EXPLICIT; between++) {
            char text[80] = "";
            add_key(text, sizeof text, b, NG_COLLECTIVE_NODE, sizes_tried[k], true);
            add_key(text, sizeof text, b, NG_COLLECTIVE_BETWEEN, between, true);
            if (ranks_of(c) % sizes_tried[k] == 0)
                search_add(x, EDIT_NODES, between, sizes_tried[k], "%s", text);
        }
}

static void add_values(const struct one_case *c, struct search *x)
{
    const struct block *b = c->block;
    const char *why;
    const int64_t elements = b->reduce.op.element ? b->reduce.op.elements : rows(c, &why);
    for (size_t i = 0; i < sizeof tried_alone / sizeof tried_alone[0]; i++)
        for (size_t v = 0; v < VALUES; v++) {
            const ng_collective_param p = tried_alone[i];
            ng_collective s = b->reduce.collective;
            if (ng_collective_set(&s, key_of((int)p), value_tried[v]) == NG_OK &&
                s.set[p].value != setting(b, p) &&
                (p != NG_COLLECTIVE_CHUNK || s.set[p].value < elements))
                search_add(x, EDIT_PARAM, (int)p, (int64_t)v, "%s=%s", key_of((int)p),
                           value_tried[v]);
        }
}

static void edits(const struct one_case *c, struct search *x)
{
    static const char *const names[] = { "sum", "min", "max" };
    const struct block *b = c->block;
    const int32_t algorithm = setting(b, NG_COLLECTIVE_ALGORITHM);
    const int64_t n = ranks_of(c);
    if (algorithm != NG_ALGORITHM_EXPLICIT && algorithm != NG_ALGORITHM_REAL) {
        add_plans(c, x);
        add_nodes(c, x);
    }
    for (int i = 0; i < RINGS && n > 2 && algorithm == NG_ALGORITHM_RING &&
                    !setting(b, NG_COLLECTIVE_NODE);
         i++)
        search_add(x, EDIT_RING, i, 0, "%s", ring_tried[i].label);
    add_values(c, x);
    for (int i = NG_REDUCTION_SUM; i <= NG_REDUCTION_MAX; i++)
        if (b->reduce.op.reduction != (ng_reduction)i)
            search_add(x, EDIT_REDUCTION, i, 0, "reduction=%s", names[i]);
    for (int i = NG_ROUND_TIES_TO_EVEN; i <= NG_ROUND_TO_ODD; i++)
        if (b->reduce.op.out.round != (ng_round)i &&
            b->reduce.op.out.round != NG_ROUND_STOCHASTIC)
            search_add(x, EDIT_ROUND, i, 0, "out round=%s", round_text((ng_round)i));
    for (int64_t r = 0; r < n && n <= RANKS_LEFT_OUT; r++)
        search_add(x, EDIT_LEFT_OUT, (int)r, 0, "rank %d brings zeros", (int)r);
}

static void set_value(struct block *b, ng_collective_param p, int64_t value)
{
    b->reduce.collective.set[p] = (ng_setting){ (int32_t)value, NG_EVIDENCE_ASSUMED, "" };
}

/* A ring as an order: ((.. first, first + step ..) .. */
static bool write_ring(struct block *b, int64_t n, int first, int step)
{
    char *to = b->reduce.order;
    size_t at = 0;
    for (int64_t i = 2; i < n; i++)
        to[at++] = '(';
    for (int64_t i = 0; i < n; i++) {
        const int64_t rank = ((first + step * i) % n + n) % n;
        const int wrote = snprintf(to + at, sizeof b->reduce.order - at, "%s+%d%s",
                                   i ? " " : "", (int)rank, i > 0 && i < n - 1 ? ")" : "");
        at += (size_t)wrote;
    }
    set_value(b, NG_COLLECTIVE_ALGORITHM, NG_ALGORITHM_EXPLICIT);
    return true;
}

static bool apply(struct one_case *v, const struct edit *e)
{
    struct block *b = v->block;
    switch ((enum edit_kind)e->kind) {
    case EDIT_PLAN:
        set_value(b, NG_COLLECTIVE_ALGORITHM, e->which & 15);
        set_value(b, NG_COLLECTIVE_START, e->which >> 4 & 3);
        set_value(b, NG_COLLECTIVE_HALVING, e->which >> 6 & 1);
        set_value(b, NG_COLLECTIVE_RECEIVED, e->which >> 7 & 1);
        set_value(b, NG_COLLECTIVE_CHIP, e->value);
        return true;
    case EDIT_NODES:
        set_value(b, NG_COLLECTIVE_BETWEEN, e->which);
        set_value(b, NG_COLLECTIVE_NODE, e->value);
        return true;
    case EDIT_RING:
        return write_ring(b, ranks_of(v), ring_tried[e->which].first,
                          ring_tried[e->which].step);
    case EDIT_PARAM:
        return ng_collective_set(&b->reduce.collective, key_of(e->which),
                                 value_tried[e->value]) == NG_OK;
    case EDIT_REDUCTION: b->reduce.op.reduction = (ng_reduction)e->which; return true;
    case EDIT_ROUND: b->reduce.op.out.round = (ng_round)e->which; return true;
    case EDIT_LEFT_OUT: b->reduce.left_out = e->which; return true;
    }
    return false;
}

/* Another order, another chunk or another format moves nearly every last bit. */
static bool hides_others(const struct edit *e)
{
    switch ((enum edit_kind)e->kind) {
    case EDIT_PARAM: return e->which == NG_COLLECTIVE_WIRE || e->which == NG_COLLECTIVE_CHUNK;
    case EDIT_ROUND: return false;
    default: return true;
    }
}

/* ---- Where an element parts ways. ---- */

struct sums {
    ng_reduce_step step[NG_MAX_RANKS];
    size_t n;
};

static bool sums_of(const struct cli *cli, const struct one_case *c, int64_t row,
                    struct sums *to)
{
    ng_all_reduce_op op = reduce_op(c);
    ng_tensor x = *x_of(c), d;
    unsigned char none[4] = { 0 };
    int64_t at[NG_MAX_RANK];
    void *memory = NULL;
    uint32_t code;
    if (ng_tensor_init(&d, NG_F32, none, x.rank - 1, x.dim + 1) ||
        (c->block->reduce.left_out >= 0 && !without(c, &x, &memory)))
        return false;
    op.out = (ng_cast){ .round = NG_ROUND_TIES_TO_EVEN };
    index_of(&d, row, at);
    const ng_status s =
        ng_all_reduce_element(cli->ctx, &op, &x, &d, at, to->step, NG_MAX_RANKS, &to->n, &code);
    free(memory);
    return s == NG_OK;
}

static void say_sum(const struct sums *a, const struct sums *b, size_t i, char *text,
                    size_t bytes)
{
    const ng_reduce_step *x = &a->step[i], *y = &b->step[i];
    const bool wire = x->value == y->value;
    char rank[64] = "";
    if (y->rank >= 0)
        snprintf(rank, sizeof rank, ", where rank %lld comes in", (long long)y->rank);
    snprintf(text, bytes, "%s %zu of %zu%s (%lld ranks in it): %s, not %s",
             wire ? "what is sent of sum" : "sum", i + 1, b->n, rank, (long long)y->ranks,
             code_text(NG_F32, wire ? y->wire : y->value).text,
             code_text(NG_F32, wire ? x->wire : x->value).text);
}

/* Of the case c and of what a hypothesis makes of it, v: an element's sums. */
static void parts(const struct cli *cli, const struct one_case *c, const struct one_case *v,
                  int64_t row, char *text, size_t bytes)
{
    struct sums *a = malloc(sizeof *a), *b = malloc(sizeof *b);
    text[0] = 0;
    if (a && b && sums_of(cli, c, row, a) && sums_of(cli, v, row, b)) {
        bool same = a->n == b->n;
        for (size_t i = 0; same && i < a->n; i++)
            same = a->step[i].terms == b->step[i].terms && a->step[i].rank == b->step[i].rank;
        for (size_t i = 0; same && i < a->n && !text[0]; i++)
            if (a->step[i].value != b->step[i].value || a->step[i].wire != b->step[i].wire)
                say_sum(a, b, i, text, bytes);
        if (!same)
            snprintf(text, bytes, "another order: sum 1 of %zu has %lld ranks and is %s", b->n,
                     (long long)(b->n ? b->step[0].ranks : 0),
                     code_text(NG_F32, b->n ? b->step[0].value : 0).text);
    }
    free(a);
    free(b);
}

const struct block_kind reduce_kind = { .tensor = tensors,
                                        .n = sizeof tensors / sizeof tensors[0],
                                        .keys = keys,
                                        .read = read_reduce,
                                        .shape = shape,
                                        .compute = compute,
                                        .title = title,
                                        .parameters = parameters,
                                        .rows = rows,
                                        .take = take,
                                        .room = room,
                                        .main_result = REDUCE_D,
                                        .exact = exact,
                                        .alone = true,
                                        .cheap = true,
                                        .parts = parts,
                                        .edits = edits,
                                        .apply = apply,
                                        .hides_others = hides_others };
