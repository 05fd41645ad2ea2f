/* SPDX-License-Identifier: Apache-2.0 */
/* Attention and its gradients as cases: keys, shapes, the call. docs/cli.md. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"

static const struct block_tensor forward_tensors[] = {
    [ATTENTION_Q] = { "q", BLOCK_OPERAND, false },
    [ATTENTION_K] = { "k", BLOCK_OPERAND, false },
    [ATTENTION_V] = { "v", BLOCK_OPERAND, false },
    [ATTENTION_SINK] = { "sink", BLOCK_OPTION, false },
    [ATTENTION_PAGES] = { "page_table", BLOCK_OPTION, true },
    [ATTENTION_EXP] = { "exp_table", BLOCK_OPTION, false },
    [ATTENTION_TANH] = { "tanh_table", BLOCK_OPTION, false },
    [ATTENTION_RECIPROCAL] = { "reciprocal_table", BLOCK_OPTION, false },
    [ATTENTION_O] = { "o", BLOCK_RESULT, false },
    [ATTENTION_LSE] = { "lse", BLOCK_EXTRA, false },
    [ATTENTION_MAX] = { "max", BLOCK_EXTRA, false },
    [ATTENTION_SUM] = { "sum", BLOCK_EXTRA, false },
};
static const struct block_tensor backward_tensors[] = {
    [ATTENTION_Q] = { "q", BLOCK_OPERAND, false },
    [ATTENTION_K] = { "k", BLOCK_OPERAND, false },
    [ATTENTION_V] = { "v", BLOCK_OPERAND, false },
    [ATTENTION_SINK] = { "sink", BLOCK_OPTION, false },
    [ATTENTION_PAGES] = { "page_table", BLOCK_OPTION, true },
    [ATTENTION_EXP] = { "exp_table", BLOCK_OPTION, false },
    [ATTENTION_TANH] = { "tanh_table", BLOCK_OPTION, false },
    [ATTENTION_RECIPROCAL] = { "reciprocal_table", BLOCK_OPTION, false },
    [ATTENTION_O] = { "o", BLOCK_OPERAND, false },
    [ATTENTION_LSE] = { "lse", BLOCK_OPTION, false },
    [ATTENTION_MAX] = { "max", BLOCK_OPTION, false },
    [ATTENTION_SUM] = { "sum", BLOCK_OPTION, false },
    [ATTENTION_DOUT] = { "dout", BLOCK_OPERAND, false },
    [ATTENTION_DQ] = { "dq", BLOCK_EXTRA, false },
    [ATTENTION_DK] = { "dk", BLOCK_EXTRA, false },
    [ATTENTION_DV] = { "dv", BLOCK_EXTRA, false },
    [ATTENTION_DSINK] = { "dsink", BLOCK_EXTRA, false },
};
static const char *const keys[] = { "profile",     "schedule",  "set",   "scale",
                                    "softcap",     "causal",    "align", "window",
                                    "masked_rows", "kv_length", "out",   NULL };

/* Every value that a parameter may be tried with; those that are none of its own are refused.
 */
static const char *const attention_value[] = {
    "0",           "1",          "2",          "16",
    "32",          "64",         "128",        "256",
    "512",         "1024",       "2048",       "4096",
    "8192",        "given",      "f32",        "bf16",
    "f16",         "e4m3",       "e4m3fn",     "e5m2",
    "0xFF800000",  "0xFF7FFFFF", "0xC77FE000", "0xC61C4000" /* -10000 */,
    "0xFE967699",  "q",          "scores",     "exp",
    "mask_scale",  "scale_mask", "divide",     "reciprocal",
    "e",           "floor",      "floor_up1",  "ceil",
    "even",        "rceil",      "p",          "sequential",
    "tree",        "ones",       "two",        "fma",
    "accumulator", "first",      "last",       "cr",
    "sleef",       "steps",      "real",       "lse",
    "max_sum"
};
enum {
    ATTENTION_VALUES = sizeof attention_value / sizeof attention_value[0],
    EXACT_WORK = 1 << 23 /* products of a report's rows by the schedule exact: some seconds */
};

/* ---- Schedules as settings. ---- */

static const char *key_of(int p)
{
    return ng_attention_param_key((ng_attention_param)p);
}

static const char *meaning_of(int p)
{
    return ng_attention_param_meaning((ng_attention_param)p);
}

static size_t print_value(int p, int32_t value, char *buffer, size_t bytes)
{
    return ng_attention_param_print((ng_attention_param)p, value, buffer, bytes);
}

static size_t values_of(int p, char *buffer, size_t bytes)
{
    return ng_attention_param_values((ng_attention_param)p, buffer, bytes);
}

static const char *schedule_at(size_t i, const char **about, const ng_setting **set)
{
    const ng_attention_schedule *s = ng_attention_at(i);
    if (!s)
        return NULL;
    *about = s->about;
    *set = s->set;
    return s->name;
}

const struct settings_kind schedule_settings = { .what = "schedule",
                                                 .command = "attention",
                                                 .n = NG_ATTENTION_PARAM_COUNT,
                                                 .key = key_of,
                                                 .meaning = meaning_of,
                                                 .print = print_value,
                                                 .values = values_of,
                                                 .at = schedule_at };

/* ---- Keys. ---- */

static ng_status change(void *schedule, const char *key, const char *value)
{
    return ng_attention_set(schedule, key, value);
}

static bool read_schedule(struct reader *r, json_t *root, struct block *b)
{
    const char *name;
    if (!reader_string(r, root, "schedule", &name))
        return false;
    const ng_attention_schedule *s = name ? ng_attention_find(name) : NULL;
    if (!s)
        return settings_unknown(r, &schedule_settings, name);
    b->attention.schedule = *s;
    return settings_read(r, root, &schedule_settings, &b->attention.schedule, change);
}

/* "none", a number, a pattern, or by default RN(1 / sqrt(d)). */
static bool read_scale(struct reader *r, json_t *root, struct block *b)
{
    const json_t *v = json_object_get(root, "scale");
    const ng_tensor *q = &b->t[ATTENTION_Q].view;
    const char *text = json_string_value(v);
    if (!v)
        return number_f32(1 / sqrt((double)q->dim[q->rank - 1]), &b->attention.op.scale);
    return (text && strcmp(text, "none") == 0) ||
           (reader_real(r, root, "scale", &b->attention.op.scale) &&
            reader_not_zero(r, root, "scale", b->attention.op.scale, "none"));
}

static bool read_lengths(struct reader *r, json_t *root, struct block *b)
{
    json_t *list = json_object_get(root, "kv_length");
    const int64_t n = b->t[ATTENTION_Q].view.dim[0];
    if (!list)
        return true;
    if (!json_is_array(list))
        return reader_fail(r, "kv_length is not a list; wanted: %lld numbers, one a sequence",
                           (long long)n);
    if ((int64_t)json_array_size(list) != n)
        return reader_fail(r, "kv_length has %zu numbers; wanted: %lld, one a sequence",
                           json_array_size(list), (long long)n);
    int64_t *length = calloc((size_t)n, sizeof *length);
    b->attention.kv_length = length;
    for (int64_t i = 0; length && i < n; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (!json_is_integer(v))
            return reader_fail(r, "number %lld of kv_length is no whole number", (long long)i);
        length[i] = json_integer_value(v);
    }
    b->attention.op.kv_length = length;
    return length || reader_fail(r, "out of memory");
}

static bool read_pages(struct reader *r, struct block *b)
{
    const struct operand *o = &b->t[ATTENTION_PAGES];
    const int64_t sequences = b->t[ATTENTION_Q].view.dim[0];
    if (!o->present)
        return true;
    if (o->data.rank != 2 || o->data.dim[0] != sequences)
        return reader_fail(r, "page_table has shape %s; wanted: [%lld, pages]",
                           io_shape(o->data.rank, o->data.dim).text, (long long)sequences);
    const int64_t n = sequences * o->data.dim[1];
    b->attention.page_table = calloc((size_t)n, sizeof(int64_t));
    for (int64_t i = 0; b->attention.page_table && i < n; i++)
        b->attention.page_table[i] = (int64_t)block_code(o, i);
    b->attention.op.page_table = b->attention.page_table;
    b->attention.op.pages = o->data.dim[1];
    return b->attention.page_table || reader_fail(r, "out of memory");
}

/* 65536 bf16 codes each. */
static bool read_tables(struct reader *r, struct block *b)
{
    static const int place[] = { ATTENTION_EXP, ATTENTION_TANH, ATTENTION_RECIPROCAL };
    const uint16_t **to[] = { &b->attention.op.exp_table, &b->attention.op.tanh_table,
                              &b->attention.op.reciprocal_table };
    for (int i = 0; i < 3; i++) {
        const struct io_array *a = &b->t[place[i]].data;
        if (a->data && (a->format != NG_BF16 || a->bytes != 65536 * sizeof(uint16_t)))
            return reader_fail(
                r, "%s holds %s %s; wanted: 65536 bf16 codes", b->kind->tensor[place[i]].name,
                io_type_name(a->format, a->item_bits), io_shape(a->rank, a->dim).text);
        *to[i] = a->data;
    }
    return true;
}

/* Keys that are of others which the case has not. */
static bool no_idle_keys(struct reader *r, const struct block *b)
{
    static const struct {
        int place;
        ng_attention_param function;
    } tables[] = { { ATTENTION_EXP, NG_ATTENTION_EXP },
                   { ATTENTION_TANH, NG_ATTENTION_TANH },
                   { ATTENTION_RECIPROCAL, NG_ATTENTION_RECIPROCAL } };
    const ng_attention_op *op = &b->attention.op;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        const char *key = ng_attention_param_key(tables[i].function);
        char value[40];
        const int32_t kind = b->attention.schedule.set[tables[i].function].value;
        if (!b->t[tables[i].place].present || kind == NG_FUNCTION_TABLE)
            continue;
        (void)ng_attention_param_print(tables[i].function, kind, value, sizeof value);
        return reader_fail(r, "%s says nothing to %s=%s; wanted with it: %s%s=table",
                           reader_name(r, b->kind->tensor[tables[i].place].name).text, key,
                           value, r->options ? "--set " : "set ", key);
    }
    return op->align != NG_ALIGN_TOP_LEFT || op->causal || op->window ||
           reader_fail(r, "%s says nothing without causal or window",
                       r->options ? "--top-left" : "align top_left");
}

static bool read_attention(struct reader *r, json_t *root, struct one_case *c)
{
    struct block *b = c->block;
    ng_attention_op *op = &b->attention.op;
    int align = 0, masked = 0;
    *op = (ng_attention_op){ .size = sizeof *op };
    if (!read_schedule(r, root, b) ||
        (json_object_get(root, "profile") && !reader_profile(r, root, c)) ||
        !reader_real(r, root, "softcap", &op->softcap) ||
        !reader_not_zero(r, root, "softcap", op->softcap, "no softcap for none") ||
        !read_scale(r, root, b) || !reader_bool(r, root, "causal", &op->causal) ||
        !reader_choice(r, root, "align", "bottom_right top_left", &align) ||
        !reader_choice(r, root, "masked_rows", "as_scheduled zero", &masked) ||
        !reader_number(r, root, "window", 0, INT64_MAX, &op->window) ||
        !reader_cast(r, json_object_get(root, "out"), "out", &op->out, &b->words) ||
        !read_lengths(r, root, b) || !read_pages(r, b) || !read_tables(r, b))
        return false;
    op->align = (ng_attention_align)align;
    op->masked_rows = (ng_masked_rows)masked;
    return no_idle_keys(r, b);
}

static bool read_backward(struct reader *r, json_t *root, struct one_case *c)
{
    const struct operand *t = c->block->t;
    if (!read_attention(r, root, c))
        return false;
    for (size_t i = ATTENTION_DQ; i < c->block->kind->n; i++)
        if (t[i].present)
            return true;
    return reader_fail(r, "tensors have none of dq, dk, dv, dsink: nothing is asked for");
}

/* ---- Shapes and calls. ---- */

static int forward_shape(const struct one_case *c, size_t i, uint32_t *rank, int64_t *dim)
{
    const ng_tensor *q = &c->block->t[ATTENTION_Q].view, *v = &c->block->t[ATTENTION_V].view;
    if (q->rank != 4 || v->rank != 4)
        return cli_fail(EXIT_REFUSED, "q and v have ranks %u and %u; wanted: 4", q->rank,
                        v->rank);
    memcpy(dim, q->dim, 3 * sizeof *dim);
    if (c->block->attention.row) { /* one after another */
        dim[0] = dim[1] = 1;
        dim[2] = c->block->attention.n_rows;
    }
    dim[3] = v->dim[3];
    *rank = i == ATTENTION_O ? 4 : 3;
    return 0;
}

static int backward_shape(const struct one_case *c, size_t i, uint32_t *rank, int64_t *dim)
{
    const size_t of = i == ATTENTION_DSINK ? ATTENTION_SINK : ATTENTION_Q + (i - ATTENTION_DQ);
    const ng_tensor *like = &c->block->t[of].view;
    if (!c->block->t[of].present)
        return cli_fail(EXIT_REFUSED, "dsink is asked for, but there is no sink");
    *rank = like->rank;
    memcpy(dim, like->dim, sizeof like->dim);
    return 0;
}

static ng_attention_op op_of(const struct one_case *c)
{
    ng_attention_op op = c->block->attention.op;
    op.profile = c->profile;
    op.schedule = &c->block->attention.schedule;
    op.sink = block_view(c->block->t, ATTENTION_SINK);
    return op;
}

/* The last step of a row's trace is its log-sum-exp. */
static void keep_lse(void *user, const ng_attention_step *step)
{
    const ng_cast nearest = { .round = NG_ROUND_TIES_TO_EVEN };
    if (step->kind == NG_ATTENTION_TRACE_LSE)
        (void)ng_encode(NG_F32, &nearest, &step->value, 0, user);
}

/* Rows of o by themselves, each by the reference. */
struct rows {
    const struct one_case *c;
    struct operand *out;
    ng_attention_op op;
    ng_tensor o; /* the whole one's shape */
    atomic_int status;
};

static ng_status one_row(ng_ctx *ctx, const struct rows *r, int64_t n)
{
    const struct block *b = r->c->block;
    const ng_tensor *q = &b->t[ATTENTION_Q].view;
    const int64_t heads = q->dim[1], queries = q->dim[2], row = b->attention.row[n],
                  index[] = { row / queries / heads, row / queries % heads, row % queries };
    uint32_t code[256], lse = 0;
    const bool has_lse = r->out[ATTENTION_LSE].present;
    const ng_attention_trace trace = { keep_lse, &lse };
    const ng_status s =
        ng_attention_row(ctx, &r->op, q, &b->t[ATTENTION_K].view, &b->t[ATTENTION_V].view,
                         &r->o, index, has_lse ? &trace : NULL, code);
    for (int64_t e = 0; e < r->o.dim[3] && !s; e++)
        ng_tensor_set(&r->out[ATTENTION_O].view, (const int64_t[]){ 0, 0, n, e }, code[e]);
    if (has_lse && !s)
        ng_tensor_set(&r->out[ATTENTION_LSE].view, (const int64_t[]){ 0, 0, n }, lse);
    return s;
}

/* A context is cheap beside a row. */
static void task(void *arg, size_t n, size_t worker)
{
    struct rows *r = arg;
    ng_ctx *ctx = NULL;
    ng_status s = ng_ctx_create(NULL, &ctx);
    (void)worker;
    if (!s)
        s = one_row(ctx, r, (int64_t)n);
    if (s)
        atomic_store(&r->status, (int)s);
    ng_ctx_destroy(ctx);
}

static ng_status some_rows(ng_ctx *ctx, const struct one_case *c, struct operand *out)
{
    const struct block *b = c->block;
    const ng_executor *x = &b->attention.executor;
    const ng_tensor *q = &b->t[ATTENTION_Q].view;
    struct rows r = { .c = c, .out = out, .op = op_of(c) };
    const int64_t dim[] = { q->dim[0], q->dim[1], q->dim[2], b->t[ATTENTION_V].view.dim[3] };
    ng_status s = ng_tensor_init(&r.o, out[ATTENTION_O].view.format, NULL, 4, dim);
    if (!s)
        s = one_row(ctx, &r, 0); /* for the message, where it is refused */
    if (s || !x->parallel_for) {
        for (int64_t n = 1; n < b->attention.n_rows && !s; n++)
            s = one_row(ctx, &r, n);
        return s;
    }
    x->parallel_for(x->user, (size_t)b->attention.n_rows, task, &r);
    return (ng_status)r.status;
}

static ng_status forward(ng_ctx *ctx, const struct one_case *c, struct operand *out)
{
    const struct operand *t = c->block->t;
    const ng_attention_op op = op_of(c);
    if (c->block->attention.row)
        return some_rows(ctx, c, out);
    const ng_attention_saved saved = { .lse = block_view(out, ATTENTION_LSE),
                                       .max = block_view(out, ATTENTION_MAX),
                                       .sum = block_view(out, ATTENTION_SUM) };
    return ng_attention(ctx, &op, &t[ATTENTION_Q].view, &t[ATTENTION_K].view,
                        &t[ATTENTION_V].view, &out[ATTENTION_O].view, &saved);
}

static ng_status backward(ng_ctx *ctx, const struct one_case *c, struct operand *out)
{
    const struct operand *t = c->block->t;
    const ng_attention_op op = op_of(c);
    const ng_attention_saved saved = { .lse = block_view(t, ATTENTION_LSE),
                                       .max = block_view(t, ATTENTION_MAX),
                                       .sum = block_view(t, ATTENTION_SUM) };
    const ng_attention_gradients grad = { .q = block_view(out, ATTENTION_DQ),
                                          .k = block_view(out, ATTENTION_DK),
                                          .v = block_view(out, ATTENTION_DV),
                                          .sink = block_view(out, ATTENTION_DSINK) };
    return ng_attention_backward(ctx, &op, &t[ATTENTION_Q].view, &t[ATTENTION_K].view,
                                 &t[ATTENTION_V].view, &t[ATTENTION_O].view, &saved,
                                 &t[ATTENTION_DOUT].view, &grad);
}

/* ---- Reports. ---- */

static const char *title(const struct one_case *c)
{
    return c->block->attention.schedule.name;
}

static int32_t value_of(const struct one_case *c, ng_attention_param p)
{
    return c->block->attention.schedule.set[p].value;
}

/* Only the forward call has these steps, and some only between two sections. */
static bool forward_is_idle(const struct one_case *c, ng_attention_param p)
{
    const struct block *b = c->block;
    const ng_tensor *k = &b->t[ATTENTION_K].view;
    const int64_t pages = b->attention.op.page_table ? b->attention.op.pages : 1,
                  keys_of = k->rank == 4 ? pages * k->dim[2] : 0,
                  section = value_of(c, NG_ATTENTION_SECTION);
    const bool one =
        !section || keys_of <= section || keys_of <= value_of(c, NG_ATTENTION_SECTION_FROM);
    switch (p) {
    case NG_ATTENTION_UPDATE:
    case NG_ATTENTION_O_FORMAT: return c->op == OP_ATTENTION_BACKWARD || one;
    case NG_ATTENTION_SINK_PLACE:
        return c->op == OP_ATTENTION_BACKWARD || !b->t[ATTENTION_SINK].present;
    case NG_ATTENTION_KEY_TILE:
    case NG_ATTENTION_MAX_INIT:
    case NG_ATTENTION_SUM_SOURCE:
    case NG_ATTENTION_SUM_ORDER:
    case NG_ATTENTION_NORMALISE: return c->op == OP_ATTENTION_BACKWARD;
    default: return false;
    }
}

/* Where nothing is masked, scaled or capped. */
static bool score_is_idle(const struct one_case *c, ng_attention_param p)
{
    const ng_attention_op *op = &c->block->attention.op;
    const bool masks = op->causal || op->window,
               scales = op->scale && value_of(c, NG_ATTENTION_SCALE_PLACE) == NG_PLACE_SCORES;
    switch (p) {
    case NG_ATTENTION_CAP_ARGUMENT:
    case NG_ATTENTION_TANH: return !op->softcap;
    case NG_ATTENTION_SCORE_ORDER: return !masks || !scales || op->softcap;
    case NG_ATTENTION_MASK:
    case NG_ATTENTION_SKIP_KEYS: return !masks;
    case NG_ATTENTION_SKIP_QUERIES: /* of the backward: queries of a sum, too */
        return c->op == OP_ATTENTION && (!masks || !value_of(c, NG_ATTENTION_SKIP_KEYS));
    default: return false;
    }
}

static bool is_idle(const struct one_case *c, ng_attention_param p)
{
    const struct operand *t = c->block->t;
    const bool backward = c->op == OP_ATTENTION_BACKWARD;
    if (value_of(c, NG_ATTENTION_ARITHMETIC) == NG_ARITHMETIC_REAL)
        return p != NG_ATTENTION_ARITHMETIC;
    switch (p) {
    case NG_ATTENTION_Q_FORMAT: return t[ATTENTION_Q].view.scale != NULL;
    case NG_ATTENTION_KV_FORMAT: return t[ATTENTION_K].view.scale && t[ATTENTION_V].view.scale;
    case NG_ATTENTION_SECTION_FROM: return !value_of(c, NG_ATTENTION_SECTION);
    case NG_ATTENTION_MX_RULE:
    case NG_ATTENTION_MX_INPUT:
        return !value_of(c, NG_ATTENTION_Q_BLOCK) && !value_of(c, NG_ATTENTION_P_BLOCK);
    case NG_ATTENTION_STATISTICS: return !backward;
    case NG_ATTENTION_RECIPROCAL:
        return backward ? value_of(c, NG_ATTENTION_STATISTICS) == NG_STATISTICS_LSE
                        : value_of(c, NG_ATTENTION_NORMALISE) == NG_DIVISION_DIVIDE;
    default: return forward_is_idle(c, p) || score_is_idle(c, p);
    }
}

static size_t parameters(const struct one_case *c, struct block_param *out)
{
    const ng_attention_schedule *s = &c->block->attention.schedule;
    for (int i = 0; i < NG_ATTENTION_PARAM_COUNT; i++) {
        const ng_attention_param p = (ng_attention_param)i;
        snprintf(out[i].key, sizeof out[i].key, "%s", ng_attention_param_key(p));
        (void)ng_attention_param_print(p, s->set[i].value, out[i].value, sizeof out[i].value);
        out[i].evidence = s->set[i].evidence;
        out[i].idle = is_idle(c, p);
    }
    return NG_ATTENTION_PARAM_COUNT;
}

/* ---- Rows. ---- */

static int64_t forward_rows(const struct one_case *c, const char **why)
{
    const struct operand *t = c->block->t;
    const ng_tensor *q = &t[ATTENTION_Q].view;
    *why = "max and sum are known of a whole call only";
    if (t[ATTENTION_MAX].present || t[ATTENTION_SUM].present || q->rank != 4)
        return 0;
    return q->dim[0] * q->dim[1] * q->dim[2];
}

static int64_t backward_rows(const struct one_case *c, const char **why)
{
    (void)c;
    *why = "a gradient is a sum over all rows";
    return 0;
}

static bool take_rows(const struct cli *cli, const struct one_case *c, struct block_part *p)
{
    (void)c;
    p->b.attention.executor = cli->executor;
    p->b.attention.row = p->row;
    p->b.attention.n_rows = p->n;
    return true;
}

/* About half a second's work for a hypothesis, at most 16 rows. */
static int64_t room(const struct one_case *c)
{
    const struct block *b = c->block;
    const ng_tensor *k = &b->t[ATTENTION_K].view, *v = &b->t[ATTENTION_V].view;
    const int64_t pages = b->attention.op.page_table ? b->attention.op.pages : 1,
                  work = pages * k->dim[2] * (k->dim[3] + v->dim[3]), n = 200000 / work;
    return n < 1 ? 1 : n > 16 ? 16 : n;
}

/* By the schedule exact, where it takes a few seconds at most. */
static bool exact_row(const struct cli *cli, const struct one_case *c, int64_t row,
                      int64_t *work, uint32_t *f32)
{
    const struct operand *t = c->block->t;
    const ng_tensor *q = &t[ATTENTION_Q].view, *k = &t[ATTENTION_K].view,
                    *v = &t[ATTENTION_V].view;
    ng_attention_op op = op_of(c);
    const int64_t pages = op.page_table ? op.pages : 1, heads = q->dim[1], queries = q->dim[2],
                  index[] = { row / queries / heads, row / queries % heads, row % queries, 0 },
                  dim[] = { q->dim[0], heads, queries, v->dim[3] };
    ng_tensor o;
    *work += pages * k->dim[2] * (k->dim[3] + v->dim[3]);
    if (*work > EXACT_WORK || ng_tensor_init(&o, NG_F32, NULL, 4, dim))
        return false;
    op.schedule = ng_attention_find("exact");
    op.out = (ng_cast){ .round = NG_ROUND_TIES_TO_EVEN };
    return ng_attention_row(cli->ctx, &op, q, k, v, &o, index, NULL, f32) == NG_OK;
}

/* ---- Explaining. ---- */

enum edit_kind {
    EDIT_PARAM, /* parameter `which` is attention_value[value] */
    EDIT_CAUSAL,
    EDIT_ALIGN,
    EDIT_NO_SCALE,
    EDIT_MASKED_ROWS,
    EDIT_NO_CAP,
    EDIT_NO_LENGTHS,
    EDIT_WINDOW, /* so many keys wider */
    EDIT_NO_WINDOW,
    EDIT_NO_SINK,
    EDIT_SCALE, /* another pattern */
    EDIT_ROUND  /* of o, of gradients */
};

static void add_parameters(const struct one_case *c, struct search *x)
{
    const ng_attention_schedule *was = &c->block->attention.schedule;
    for (int p = 0; p < NG_ATTENTION_PARAM_COUNT; p++)
        for (size_t i = 0; i < ATTENTION_VALUES; i++) {
            const char *key = ng_attention_param_key((ng_attention_param)p);
            ng_attention_schedule s = *was;
            if (p != NG_ATTENTION_ARITHMETIC && /* real: no device's, and slow */
                ng_attention_set(&s, key, attention_value[i]) == NG_OK &&
                s.set[p].value != was->set[p].value)
                search_add(x, EDIT_PARAM, p, (int64_t)i, "%s=%s", key, attention_value[i]);
        }
}

/* 1 / d for 1 / sqrt(d). */
static void add_scale(const struct one_case *c, struct search *x)
{
    const ng_tensor *q = &c->block->t[ATTENTION_Q].view;
    const float scale = 1.0F / (float)q->dim[q->rank - 1];
    uint32_t pattern;
    memcpy(&pattern, &scale, sizeof pattern);
    if (pattern != c->block->attention.op.scale)
        search_add(x, EDIT_SCALE, 0, pattern, "scale=1/d");
}

/* What may be wrong of the options. */
static void edits(const struct one_case *c, struct search *x)
{
    const struct block *b = c->block;
    const ng_attention_op *op = &b->attention.op;
    add_parameters(c, x);
    search_add(x, EDIT_CAUSAL, 0, 0, "causal the other way");
    search_add(x, EDIT_ALIGN, 0, 0, "aligned the other way");
    search_add(x, EDIT_NO_SCALE, 0, 0, "no scale");
    search_add(x, EDIT_MASKED_ROWS, 0, 0, "rows that see nothing the other way");
    if (op->softcap)
        search_add(x, EDIT_NO_CAP, 0, 0, "no cap");
    if (op->kv_length)
        search_add(x, EDIT_NO_LENGTHS, 0, 0, "no lengths");
    if (op->window) {
        search_add(x, EDIT_NO_WINDOW, 0, 0, "no window");
        search_add(x, EDIT_WINDOW, 0, 1, "a window one key wider");
    }
    if (op->window > 1)
        search_add(x, EDIT_WINDOW, 0, -1, "a window one key narrower");
    add_scale(c, x);
    for (int r = NG_ROUND_TIES_TO_EVEN; r <= NG_ROUND_TO_ODD; r++)
        if (op->out.round != (ng_round)r && op->out.round != NG_ROUND_STOCHASTIC)
            search_add(x, EDIT_ROUND, 0, r, "out round=%s", round_text((ng_round)r));
    if (b->t[ATTENTION_SINK].present && !b->t[ATTENTION_DSINK].present)
        search_add(x, EDIT_NO_SINK, 0, 0, "no sink");
}

static bool apply(struct one_case *v, const struct edit *e)
{
    struct block *b = v->block;
    ng_attention_op *op = &b->attention.op;
    switch ((enum edit_kind)e->kind) {
    case EDIT_PARAM:
        return ng_attention_set(&b->attention.schedule,
                                ng_attention_param_key((ng_attention_param)e->which),
                                attention_value[e->value]) == NG_OK;
    case EDIT_CAUSAL: op->causal = !op->causal; return true;
    case EDIT_ALIGN:
        op->align = op->align == NG_ALIGN_TOP_LEFT ? NG_ALIGN_BOTTOM_RIGHT : NG_ALIGN_TOP_LEFT;
        return true;
    case EDIT_NO_SCALE: op->scale = 0; return true;
    case EDIT_MASKED_ROWS:
        op->masked_rows =
            op->masked_rows == NG_MASKED_ZERO ? NG_MASKED_AS_SCHEDULED : NG_MASKED_ZERO;
        return true;
    case EDIT_NO_CAP: op->softcap = 0; return true;
    case EDIT_NO_LENGTHS: op->kv_length = NULL; return true;
    case EDIT_WINDOW: op->window += e->value; return true;
    case EDIT_NO_WINDOW: op->window = 0; return true;
    case EDIT_SCALE: op->scale = (uint32_t)e->value; return true;
    case EDIT_ROUND: op->out.round = (ng_round)e->value; return true;
    case EDIT_NO_SINK: b->t[ATTENTION_SINK].present = false; return true;
    }
    return false;
}

static bool hides_others(const struct edit *e)
{
    switch ((enum edit_kind)e->kind) {
    case EDIT_PARAM: /* formats that every number passes through */
        return e->which == NG_ATTENTION_SCORE_FORMAT || e->which == NG_ATTENTION_Q_FORMAT ||
               e->which == NG_ATTENTION_KV_FORMAT || e->which == NG_ATTENTION_P_FORMAT;
    case EDIT_MASKED_ROWS:
    case EDIT_ROUND: return false;
    default: return true;
    }
}

const struct block_kind attention_kind = { .tensor = forward_tensors,
                                           .n = sizeof forward_tensors /
                                                sizeof forward_tensors[0],
                                           .keys = keys,
                                           .read = read_attention,
                                           .shape = forward_shape,
                                           .compute = forward,
                                           .title = title,
                                           .parameters = parameters,
                                           .rows = forward_rows,
                                           .take = take_rows,
                                           .room = room,
                                           .main_result = ATTENTION_O,
                                           .exact = exact_row,
                                           .edits = edits,
                                           .apply = apply,
                                           .hides_others = hides_others };
const struct block_kind attention_backward_kind = { .tensor = backward_tensors,
                                                    .n = sizeof backward_tensors /
                                                         sizeof backward_tensors[0],
                                                    .keys = keys,
                                                    .read = read_backward,
                                                    .shape = backward_shape,
                                                    .compute = backward,
                                                    .title = title,
                                                    .parameters = parameters,
                                                    .rows = backward_rows,
                                                    .edits = edits,
                                                    .apply = apply,
                                                    .hides_others = hides_others };
