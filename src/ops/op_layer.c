/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_rms_norm, ng_rope, ng_add: rows of FP32 numbers, by the kernel for mixtures of experts.
 * Numerics: docs/numerics.md, section 11.11.
 */
#include "../num/num.h"
#include "../ref/ref.h"
#include "moe_run.h"
#include "ng/layer.h"

enum {
    MOST_INPUTS = 3,
    NORMS = 8 /* rows whose squares a kernel sums side by side */
};

/* A call: its inputs, the last one being [rows, columns] or [columns], and what it writes. */
struct layer_call {
    const char *name;
    const ng_rms_norm_op *norm;
    const ng_rope_op *rope;
    int n_inputs;
    const char *input_name[MOST_INPUTS];
    const ng_tensor *input[MOST_INPUTS], *y;
    int64_t rows, columns;
    struct moe_rows in[MOST_INPUTS], out;
    const struct ng_moe_kernel *kernel; /* NULL: the reference */
};

/* ---- Rows. ---- */

static const uint32_t *row_of(const struct moe_rows *r, int64_t i)
{
    return r->data + i * r->stride;
}

/* A row whose squares have the sum s. */
static void norm_row(const struct layer_call *c, int64_t i, uint32_t s)
{
    const uint32_t *x = row_of(&c->in[0], i), *gain = c->n_inputs > 1 ? c->in[1].data : NULL,
                   scale = ng_ref_rms_scale(c->norm, c->columns, s);
    uint32_t *y = c->out.data + i * c->out.stride;
    if (c->kernel)
        c->kernel->norm(scale, c->columns, x, gain, y);
    for (int64_t n = 0; !c->kernel && n < c->columns; n++)
        y[n] = ng_ref_rms_element(x[n], scale, gain ? gain + n : NULL);
}

static void norm_rows(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct layer_call *c = arg;
    const uint32_t saved = ng_fp_enter();
    (void)worker;
    for (int64_t i = from; i < to; i += NORMS) {
        const int64_t rows = to - i < NORMS ? to - i : NORMS;
        const uint32_t *x[NORMS];
        uint32_t sum[NORMS];
        for (int64_t r = 0; r < rows; r++)
            x[r] = row_of(&c->in[0], i + r);
        if (c->kernel)
            c->kernel->dots(rows, c->columns, x, x, sum);
        for (int64_t r = 0; !c->kernel && r < rows; r++)
            sum[r] = ng_ref_moe_dot(c->columns, x[r], x[r]);
        for (int64_t r = 0; r < rows; r++)
            norm_row(c, i + r, sum[r]);
    }
    ng_fp_leave(saved);
}

/* One head, turned in place. */
static void turn_head(const ng_rope_op *op, const struct rope_row *r, uint32_t *y)
{
    for (int64_t e = 0; e < r->d / 2; e++) {
        uint32_t *a = op->pairs == NG_ROPE_HALVES ? y + e : y + 2 * e,
                 *b = op->pairs == NG_ROPE_HALVES ? y + e + r->d / 2 : y + 2 * e + 1;
        ng_ref_rope_pair(op->product, r->cosine[e], r->sine[e], a, b);
    }
}

static void rope_rows(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct layer_call *c = arg;
    const int64_t d = 2 * c->input[1]->dim[1];
    const uint32_t saved = ng_fp_enter();
    (void)worker;
    for (int64_t i = from; i < to; i++) {
        const struct rope_row r = { .heads = c->columns / d,
                                    .d = d,
                                    .cosine = row_of(&c->in[1], i),
                                    .sine = row_of(&c->in[2], i),
                                    .x = row_of(&c->in[0], i),
                                    .y = c->out.data + i * c->out.stride };
        if (c->kernel) {
            c->kernel->rope(c->rope, &r);
            continue;
        }
        for (int64_t n = 0; n < c->columns; n++)
            r.y[n] = r.x[n];
        for (int64_t n = 0; n < c->columns; n += d)
            turn_head(c->rope, &r, r.y + n);
    }
    ng_fp_leave(saved);
}

static void add_rows(void *arg, int64_t from, int64_t to, size_t worker)
{
    const struct layer_call *c = arg;
    const uint32_t saved = ng_fp_enter();
    (void)worker;
    for (int64_t i = from; i < to; i++) {
        const uint32_t *a = row_of(&c->in[0], i), *b = row_of(&c->in[1], i);
        const struct settle_job sum = { .bias = b }; /* a bias behind a multiply */
        uint32_t *y = c->out.data + i * c->out.stride;
        if (c->kernel)
            c->kernel->settle(&sum, 0, 0, c->columns, a, y);
        for (int64_t n = 0; !c->kernel && n < c->columns; n++)
            y[n] = ng_num_f32_add(a[n], b[n]);
    }
    ng_fp_leave(saved);
}

/* ---- The way through the house. ---- */

/* x is there and has rank 2: it says how many rows and columns. */
static ng_status check_first(struct layer_call *c, ng_ctx *ctx)
{
    const ng_tensor *x = c->input[0];
    struct ng_extent extent;
    ng_status s = ng_check_tensor(ctx, c->name, c->input_name[0], x, false, &extent);
    if (!s)
        s = ng_moe_check(ctx, c->name, c->input_name[0], x, false, 2, x->dim);
    if (s)
        return s;
    c->rows = x->dim[0];
    c->columns = x->dim[1];
    return NG_OK;
}

static ng_status check_output(const struct layer_call *c, ng_ctx *ctx)
{
    const ng_status s = ng_moe_check(ctx, c->name, "y", c->y, true, 2,
                                     (const int64_t[]){ c->rows, c->columns });
    if (s)
        return s;
    struct moe_bytes bytes[MOST_INPUTS + 1] = { ng_moe_bytes("y", c->y, true) };
    for (int i = 0; i < c->n_inputs; i++)
        bytes[i + 1] = ng_moe_bytes(
            c->input_name[i], ng_same_view(c->input[i], c->y) ? NULL : c->input[i], false);
    return ng_moe_apart(ctx, c->name, bytes, (size_t)c->n_inputs + 1);
}

/* Everything is checked: FP32 rows, the work, the output. */
static ng_status run(struct layer_call *c, ng_ctx *ctx,
                     void (*rows_of)(void *arg, int64_t from, int64_t to, size_t worker))
{
    int64_t words = ng_moe_copy_words(c->y);
    void *memory;
    for (int i = 0; i < c->n_inputs; i++)
        words += ng_moe_copy_words(c->input[i]);
    const ng_status s = ng_arena_claim(ctx, (size_t)words * sizeof(uint32_t), &memory);
    if (s)
        return s;
    uint32_t *room = memory;
    for (int i = 0; i < c->n_inputs; i++) {
        c->in[i] = ng_moe_open(ctx, c->input[i], room, true);
        if (c->input[i]->rank == 1) /* every row's */
            c->in[i].stride = 0;
        room = ng_moe_behind(room, c->input[i]);
    }
    c->out = ng_moe_open(ctx, c->y, room, false);
    ng_moe_rows(ctx, c->rows, c->columns, c, rows_of);
    ng_moe_close(ctx, &c->out, c->y);
    ng_ctx_note_kernel(ctx, c->kernel ? c->kernel->name : "ref", (ng_tiles){ 0 });
    return NG_OK;
}

/* ---- Front doors. ---- */

static ng_status check_norm(ng_ctx *ctx, const ng_rms_norm_op *op)
{
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "rms_norm: op is NULL or op.size is not %zu",
                       sizeof *op);
    if (op->eps >= 0x7F800000u)
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "rms_norm: op.eps is 0x%08X; wanted: an FP32 pattern, finite and not "
                       "negative",
                       op->eps);
    return ng_moe_check_function(ctx, "rms_norm", "op.rsqrt", &op->rsqrt);
}

ng_status ng_rms_norm(ng_ctx *ctx, const ng_rms_norm_op *op, const ng_tensor *x,
                      const ng_tensor *gain, const ng_tensor *y)
{
    struct layer_call c = { .name = "rms_norm",
                            .norm = op,
                            .n_inputs = gain ? 2 : 1,
                            .input_name = { "x", "gain" },
                            .input = { x, gain },
                            .y = y };
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_norm(ctx, op);
    if (!s)
        s = check_first(&c, ctx);
    if (!s && gain)
        s = ng_moe_check(ctx, c.name, "gain", gain, false, 1, &c.columns);
    if (!s)
        s = check_output(&c, ctx);
    if (s)
        return s;
    c.kernel = ng_pick_moe(ng_ctx_isas(ctx)); /* which refuses no FP32 */
    return run(&c, ctx, norm_rows);
}

static ng_status check_rope(ng_ctx *ctx, const ng_rope_op *op)
{
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "rope: op is NULL or op.size is not %zu",
                       sizeof *op);
    if ((unsigned)op->pairs > NG_ROPE_ADJACENT)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "rope: op.pairs is %d, no ng_rope_pairs",
                       (int)op->pairs);
    return ng_moe_check_format(ctx, "rope", "op.product", op->product);
}

static ng_status check_tables(const struct layer_call *c, ng_ctx *ctx)
{
    struct ng_extent extent;
    const ng_tensor *cosine = c->input[1];
    ng_status s = ng_check_tensor(ctx, c->name, "cosine", cosine, false, &extent);
    if (s)
        return s;
    const int64_t half = cosine->rank == 2 ? cosine->dim[1] : 1;
    if (c->columns % (2 * half))
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "rope: dimension 1 of x is %lld; wanted: a multiple of %lld, twice "
                       "dimension 1 of cosine",
                       (long long)c->columns, (long long)(2 * half));
    const int64_t dim[] = { c->rows, half };
    s = ng_moe_check(ctx, c->name, "cosine", cosine, false, 2, dim);
    return s ? s : ng_moe_check(ctx, c->name, "sine", c->input[2], false, 2, dim);
}

ng_status ng_rope(ng_ctx *ctx, const ng_rope_op *op, const ng_tensor *x,
                  const ng_tensor *cosine, const ng_tensor *sine, const ng_tensor *y)
{
    struct layer_call c = { .name = "rope",
                            .rope = op,
                            .n_inputs = 3,
                            .input_name = { "x", "cosine", "sine" },
                            .input = { x, cosine, sine },
                            .y = y };
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_rope(ctx, op);
    if (!s)
        s = check_first(&c, ctx);
    if (!s)
        s = check_tables(&c, ctx);
    if (!s)
        s = check_output(&c, ctx);
    if (s)
        return s;
    c.kernel = ng_pick_moe(ng_ctx_isas(ctx));
    if (c.kernel && c.kernel->rope_refuses(op))
        c.kernel = NULL;
    return run(&c, ctx, rope_rows);
}

ng_status ng_add(ng_ctx *ctx, const ng_tensor *a, const ng_tensor *b, const ng_tensor *y)
{
    struct layer_call c = {
        .name = "add", .n_inputs = 2, .input_name = { "a", "b" }, .input = { a, b }, .y = y
    };
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_first(&c, ctx);
    if (s)
        return s;
    c.kernel = ng_pick_moe(ng_ctx_isas(ctx)); /* which refuses no FP32 */
    const bool row = b && b->rank == 1;
    s = ng_moe_check(ctx, c.name, "b", b, false, row ? 1 : 2, row ? &c.columns : a->dim);
    if (!s)
        s = check_output(&c, ctx);
    return s ? s : run(&c, ctx, add_rows);
}

/* ---- Parameters, for reports. ---- */

static const ng_layer_param params[] = {
    { "rms.squares", "f32", NG_EVIDENCE_BACKED, "NKL core/mlp/mlp_cte/mlp_cte_norm.py" },
    { "rms.sum", "sequential", NG_EVIDENCE_ASSUMED, "" },
    { "rms.mean", "times RN(1/H), then + eps, two roundings", NG_EVIDENCE_ASSUMED,
      "NKL core/mlp/mlp_cte/mlp_cte_norm.py has the operations, not the rounding" },
    { "rms.eps", "inside the root", NG_EVIDENCE_BACKED, "NKL core/rmsnorm/rmsnorm_quant.py" },
    { "rms.rsqrt", "cr sleef table", NG_EVIDENCE_ASSUMED, "" },
    { "rms.gain", "after the root, two roundings", NG_EVIDENCE_ASSUMED,
      "NKL core/rmsnorm/rmsnorm_quant.py has the order" },
    { "rope.pairs", "halves adjacent", NG_EVIDENCE_BACKED, "NKL core/embeddings/rope.py" },
    { "rope.product", "f32 bf16 f16", NG_EVIDENCE_BACKED, "NKL core/embeddings/rope.py" },
    { "bias", "after the accumulate memory", NG_EVIDENCE_ASSUMED, "" },
    { "residual", "f32, then one conversion", NG_EVIDENCE_ASSUMED, "" },
};

const ng_layer_param *ng_layer_param_at(size_t i)
{
    return i < sizeof params / sizeof params[0] ? &params[i] : NULL;
}
