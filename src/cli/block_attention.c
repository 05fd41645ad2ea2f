/* SPDX-License-Identifier: Apache-2.0 */
/* Attention and its gradients as cases: keys, shapes, the call. docs/cli.md. */
#include <math.h>
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
    ATTENTION_VALUES = sizeof attention_value / sizeof attention_value[0]
};

/* ---- Keys. ---- */

static int parameter_of(const char *key)
{
    for (int p = 0; p < NG_ATTENTION_PARAM_COUNT; p++)
        if (strcmp(ng_attention_param_key((ng_attention_param)p), key) == 0)
            return p;
    return -1;
}

/* A parameter's values by name, or its meaning where they are numbers. */
static bool bad_value(struct reader *r, const struct block *b, const char *key,
                      const char *value)
{
    char wanted[300] = "";
    size_t n = 0;
    const int p = parameter_of(key);
    if (p < 0)
        return reader_fail(r,
                           "set: '%.40s' is no parameter of a schedule; see ngauge attention "
                           "show %s",
                           key, b->attention.schedule.name);
    for (size_t i = 0; i < ATTENTION_VALUES && n < sizeof wanted; i++) {
        ng_attention_schedule s = b->attention.schedule;
        if (ng_attention_set(&s, key, attention_value[i]) == NG_OK)
            n += (size_t)snprintf(wanted + n, sizeof wanted - n, " %s", attention_value[i]);
    }
    return reader_fail(r,
                       "set: %s=%.40s is no value of that parameter (%s); wanted, for "
                       "example:%s",
                       key, value, ng_attention_param_meaning((ng_attention_param)p), wanted);
}

static bool read_set(struct reader *r, json_t *root, struct block *b)
{
    json_t *set = json_object_get(root, "set"), *v;
    const char *key;
    if (set && !json_is_object(set))
        return reader_fail(r, "set is not an object");
    json_object_foreach(set, key, v)
    {
        char text[64];
        if (json_is_integer(v))
            snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
        else
            snprintf(text, sizeof text, "%.60s",
                     json_is_string(v) ? json_string_value(v) : "(no string)");
        if (ng_attention_set(&b->attention.schedule, key, text))
            return bad_value(r, b, key, text);
    }
    return true;
}

static bool read_schedule(struct reader *r, json_t *root, struct block *b)
{
    const char *name;
    if (!reader_string(r, root, "schedule", &name))
        return false;
    const ng_attention_schedule *s = name ? ng_attention_find(name) : NULL;
    if (!s) {
        char known[200] = "";
        for (size_t i = 0, n = 0; ng_attention_at(i) && n < sizeof known; i++)
            n += (size_t)snprintf(known + n, sizeof known - n, " %s", ng_attention_at(i)->name);
        return reader_fail(r, "schedule is '%.40s'; wanted: one of%s", name ? name : "(absent)",
                           known);
    }
    b->attention.schedule = *s;
    return read_set(r, root, b);
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
           reader_real(r, root, "scale", &b->attention.op.scale);
}

static bool read_lengths(struct reader *r, json_t *root, struct block *b)
{
    json_t *list = json_object_get(root, "kv_length");
    const int64_t n = b->t[ATTENTION_Q].view.dim[0];
    if (!list)
        return true;
    if (!json_is_array(list) || (int64_t)json_array_size(list) != n)
        return reader_fail(r, "kv_length is not a list of %lld numbers, one a sequence",
                           (long long)n);
    int64_t *length = calloc((size_t)n, sizeof *length);
    b->attention.kv_length = length;
    for (int64_t i = 0; length && i < n; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (!json_is_integer(v))
            return reader_fail(r, "kv_length is not a list of %lld numbers, one a sequence",
                               (long long)n);
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

static bool read_attention(struct reader *r, json_t *root, struct one_case *c)
{
    struct block *b = c->block;
    ng_attention_op *op = &b->attention.op;
    int align = 0, masked = 0;
    *op = (ng_attention_op){ .size = sizeof *op };
    if (!read_schedule(r, root, b) ||
        (json_object_get(root, "profile") && !reader_profile(r, root, c)) ||
        !reader_real(r, root, "softcap", &op->softcap) || !read_scale(r, root, b) ||
        !reader_bool(r, root, "causal", &op->causal) ||
        !reader_choice(r, root, "align", "bottom_right top_left", &align) ||
        !reader_choice(r, root, "masked_rows", "as_scheduled zero", &masked) ||
        !reader_number(r, root, "window", 0, INT64_MAX, &op->window) ||
        !reader_cast(r, json_object_get(root, "out"), "out", &op->out, &b->words) ||
        !read_lengths(r, root, b) || !read_pages(r, b) || !read_tables(r, b))
        return false;
    op->align = (ng_attention_align)align;
    op->masked_rows = (ng_masked_rows)masked;
    return true;
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

static ng_status forward(ng_ctx *ctx, const struct one_case *c, struct operand *out)
{
    const struct operand *t = c->block->t;
    const ng_attention_op op = op_of(c);
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

static size_t parameters(const struct one_case *c, struct block_param *out)
{
    const ng_attention_schedule *s = &c->block->attention.schedule;
    for (int i = 0; i < NG_ATTENTION_PARAM_COUNT; i++) {
        const ng_attention_param p = (ng_attention_param)i;
        snprintf(out[i].key, sizeof out[i].key, "%s", ng_attention_param_key(p));
        (void)ng_attention_param_print(p, s->set[i].value, out[i].value, sizeof out[i].value);
        out[i].evidence = s->set[i].evidence;
    }
    return NG_ATTENTION_PARAM_COUNT;
}

/* ---- Explaining. ---- */

static void try_parameters(struct block_trial *t, struct one_case *v)
{
    struct block *b = v->block;
    const ng_attention_schedule was = b->attention.schedule;
    for (int p = 0; p < NG_ATTENTION_PARAM_COUNT; p++)
        for (size_t i = 0; i < ATTENTION_VALUES; i++) {
            const char *key = ng_attention_param_key((ng_attention_param)p);
            char label[96], why[200];
            b->attention.schedule = was;
            if (p == NG_ATTENTION_ARITHMETIC || /* real: no device's, and slow */
                ng_attention_set(&b->attention.schedule, key, attention_value[i]) ||
                b->attention.schedule.set[p].value == was.set[p].value ||
                ng_attention_schedule_check(&b->attention.schedule, why, sizeof why))
                continue;
            snprintf(label, sizeof label, "%s=%s", key, attention_value[i]);
            block_try(t, v, label);
        }
    b->attention.schedule = was;
}

/* What may be wrong of the options. */
static void try_options(struct block_trial *t, struct one_case *v)
{
    struct block *b = v->block;
    ng_attention_op *op = &b->attention.op;
    const ng_attention_op was = *op;
    const bool sink = b->t[ATTENTION_SINK].present;
    op->causal = !was.causal;
    block_try(t, v, "causal the other way");
    *op = was;
    op->align = was.align == NG_ALIGN_TOP_LEFT ? NG_ALIGN_BOTTOM_RIGHT : NG_ALIGN_TOP_LEFT;
    block_try(t, v, "aligned the other way");
    *op = was;
    op->scale = 0;
    block_try(t, v, "no scale");
    *op = was;
    op->masked_rows =
        was.masked_rows == NG_MASKED_ZERO ? NG_MASKED_AS_SCHEDULED : NG_MASKED_ZERO;
    block_try(t, v, "rows that see nothing the other way");
    *op = was;
    op->softcap = 0;
    if (was.softcap)
        block_try(t, v, "no cap");
    *op = was;
    op->kv_length = NULL;
    if (was.kv_length)
        block_try(t, v, "no lengths");
    *op = was;
    op->window += 1;
    if (was.window)
        block_try(t, v, "a window one key wider");
    *op = was;
    b->t[ATTENTION_SINK].present = false;
    if (sink && !b->t[ATTENTION_DSINK].present)
        block_try(t, v, "no sink");
    b->t[ATTENTION_SINK].present = sink;
}

static void try_all(struct block_trial *t, struct one_case *v)
{
    try_parameters(t, v);
    try_options(t, v);
}

/* ---- Some rows of o: what hypotheses about a forward dump are tried on. ---- */

static int rows_shape(const struct one_case *c, size_t i, uint32_t *rank, int64_t *dim)
{
    const int code = forward_shape(c, i, rank, dim);
    dim[0] = dim[1] = 1;
    dim[2] = c->block->attention.n_rows;
    return code;
}

static ng_status some_rows(ng_ctx *ctx, const struct one_case *c, struct operand *out)
{
    const struct block *b = c->block;
    const ng_tensor *q = &b->t[ATTENTION_Q].view;
    const ng_attention_op op = op_of(c);
    ng_tensor o;
    const int64_t heads = q->dim[1], queries = q->dim[2], dv = b->t[ATTENTION_V].view.dim[3],
                  dim[] = { q->dim[0], heads, queries, dv };
    ng_status s = ng_tensor_init(&o, out[ATTENTION_O].view.format, NULL, 4, dim);
    for (int64_t n = 0; n < b->attention.n_rows && !s; n++) {
        const int64_t row = b->attention.row[n],
                      index[] = { row / queries / heads, row / queries % heads, row % queries };
        uint32_t code[256];
        s = ng_attention_row(ctx, &op, q, &b->t[ATTENTION_K].view, &b->t[ATTENTION_V].view, &o,
                             index, NULL, code);
        for (int64_t e = 0; e < dv && !s; e++)
            ng_tensor_set(&out[ATTENTION_O].view, (const int64_t[]){ 0, 0, n, e }, code[e]);
    }
    return s;
}

static const struct block_kind rows_kind = { .tensor = forward_tensors,
                                             .n = ATTENTION_O + 1,
                                             .keys = keys,
                                             .read = read_attention,
                                             .shape = rows_shape,
                                             .compute = some_rows,
                                             .title = title,
                                             .parameters = parameters };

/* About half a second's work for a hypothesis, at most 16 rows. */
static int64_t rows_of_work(const struct block *b)
{
    const ng_tensor *k = &b->t[ATTENTION_K].view, *v = &b->t[ATTENTION_V].view;
    const int64_t pages = b->attention.op.page_table ? b->attention.op.pages : 1,
                  work = pages * k->dim[2] * (k->dim[3] + v->dim[3]), room = 200000 / work;
    return room < 1 ? 1 : room > 16 ? 16 : room;
}

/* Rows that differ, evenly, then as many that do not; n_bad: rows that differ. False: out of
 * memory. */
static bool choose_rows(struct block *b, const struct operand *want, int64_t **row,
                        int64_t *n_bad)
{
    const ng_tensor *o = &want[ATTENTION_O].view;
    const int64_t dv = o->dim[3], rows = o->dim[0] * o->dim[1] * o->dim[2],
                  room = rows_of_work(b);
    unsigned char *bad = calloc((size_t)rows, 1);
    *row = calloc((size_t)(2 * room), sizeof **row);
    for (int64_t i = 0; bad && i < rows * dv; i++)
        if (!bad[i / dv] &&
            block_code(&b->t[ATTENTION_O], i) != block_code(&want[ATTENTION_O], i)) {
            bad[i / dv] = 1;
            *n_bad += 1;
        }
    for (int wrong = 1; bad && *row && wrong >= 0; wrong--) {
        const int64_t all = wrong ? *n_bad : rows - *n_bad, wanted = all < room ? all : room;
        for (int64_t i = 0, seen = 0, taken = 0; i < rows && taken < wanted; i++)
            if (bad[i] == wrong && seen++ * wanted / all == taken) {
                (*row)[b->attention.n_rows++] = i;
                taken++;
            }
    }
    free(bad);
    b->attention.row = *row;
    return bad && *row;
}

/* The chosen rows of an o, as [1, 1, rows, dv]. */
static bool gather_rows(const struct block *b, const struct operand *from, struct operand *to)
{
    struct operand like = { .present = true };
    const int64_t dv = from->data.dim[3], dim[] = { 1, 1, b->attention.n_rows, dv };
    if (ng_tensor_init(&like.view, from->data.format, NULL, 4, dim) ||
        !operand_alloc_like(to, &like, 0))
        return false;
    for (int64_t i = 0; i < dim[2] * dv; i++)
        ng_tensor_set(&to->view, (const int64_t[]){ 0, 0, i / dv, i % dv },
                      code_at(&from->view, b->attention.row[i / dv] * dv + i % dv));
    return true;
}

static int explain_forward(const struct cli *cli, struct one_case *c,
                           const struct operand *want, struct findings *out)
{
    struct operand chosen[BLOCK_TENSORS] = { { .present = false } };
    struct block b = *c->block;
    struct one_case some = *c;
    int64_t *row = NULL, n_bad = 0;
    int code = EXIT_INTERNAL;
    some.block = &b;
    b.kind = &rows_kind;
    b.t[ATTENTION_O] = (struct operand){ .present = false };
    if (!choose_rows(c->block, want, &row, &n_bad)) {
        code = cli_fail(EXIT_INTERNAL, "out of memory");
    } else if (!n_bad) { /* statistics differ */
        out->all = true;
        code = block_explain(cli, c, want, out, try_all);
    } else {
        b.attention = c->block->attention;
        code = gather_rows(&b, &c->block->t[ATTENTION_O], &b.t[ATTENTION_O]) &&
                       gather_rows(&b, &want[ATTENTION_O], &chosen[ATTENTION_O])
                   ? block_explain(cli, &some, chosen, out, try_all)
                   : cli_fail(EXIT_INTERNAL, "out of memory");
    }
    operand_free(&b.t[ATTENTION_O]);
    operand_free(&chosen[ATTENTION_O]);
    c->block->attention.row = NULL;
    c->block->attention.n_rows = 0;
    free(row);
    return code;
}

static int explain_backward(const struct cli *cli, struct one_case *c,
                            const struct operand *want, struct findings *out)
{
    out->all = true;
    return block_explain(cli, c, want, out, try_all);
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
                                           .explain = explain_forward };
const struct block_kind attention_backward_kind = { .tensor = backward_tensors,
                                                    .n = sizeof backward_tensors /
                                                         sizeof backward_tensors[0],
                                                    .keys = keys,
                                                    .read = read_backward,
                                                    .shape = backward_shape,
                                                    .compute = backward,
                                                    .title = title,
                                                    .parameters = parameters,
                                                    .explain = explain_backward };
