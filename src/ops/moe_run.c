/* SPDX-License-Identifier: Apache-2.0 */
/* Checks and copies that the calls of ng/moe.h share. */
#include "moe_run.h"

#include "../ref/ref.h"

/* ---- Checks. ---- */

static bool is_value_format(ng_format f)
{
    return f == NG_F32 || f == NG_BF16 || f == NG_F16;
}

ng_status ng_moe_check_format(ng_ctx *ctx, const char *call, const char *name, ng_format f)
{
    const ng_format_spec *spec = ng_format_info(f);
    if (!f || is_value_format(f))
        return NG_OK;
    return ng_fail(ctx, NG_ERR_FORMAT, "%s: %s is %s; wanted: f32, bf16 or f16", call, name,
                   spec ? spec->text : "no format");
}

ng_status ng_moe_check(ng_ctx *ctx, const char *call, const char *name, const ng_tensor *t,
                       bool output, uint32_t rank, const int64_t *dim)
{
    struct ng_extent extent;
    const ng_status s = ng_check_tensor(ctx, call, name, t, output, &extent);
    if (s)
        return s;
    if (t->scale || t->tensor_scale || t->sparse)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: %s has %s; wanted: none", call, name,
                       t->sparse ? "tags" : "scales");
    if (t->rank != rank)
        return ng_fail(ctx, NG_ERR_SHAPE, "%s: %s has rank %u; wanted: %u", call, name, t->rank,
                       rank);
    for (uint32_t d = 0; d < rank; d++)
        if (t->dim[d] != dim[d])
            return ng_fail(ctx, NG_ERR_SHAPE, "%s: dimension %u of %s is %lld; wanted: %lld",
                           call, d, name, (long long)t->dim[d], (long long)dim[d]);
    return output ? ng_moe_check_format(ctx, call, name, t->format) : NG_OK;
}

ng_status ng_moe_check_function(ng_ctx *ctx, const char *call, const char *name,
                                const ng_function_choice *f)
{
    if ((unsigned)f->kind > NG_FUNCTION_TABLE)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s.kind is %d, no ng_function_kind", call,
                       name, (int)f->kind);
    if (f->kind == NG_FUNCTION_TABLE && !f->table)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s.table is NULL", call, name);
    if (f->kind == NG_FUNCTION_SLEEF && !ng_sleef_available())
        return ng_fail(ctx, NG_ERR_UNSUPPORTED,
                       "%s: %s is sleef, which wants AVX2 and FMA of the CPU", call, name);
    return NG_OK;
}

static bool is_finite(uint32_t x)
{
    return (x & 0x7F800000u) != 0x7F800000u;
}

static bool is_positive(uint32_t x)
{
    return is_finite(x) && x && !(x >> 31);
}

static ng_status check_range(ng_ctx *ctx, const char *call, const char *name, int64_t found,
                             int64_t low, int64_t high)
{
    if (found >= low && found <= high)
        return NG_OK;
    return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s is %lld; wanted: %lld to %lld", call, name,
                   (long long)found, (long long)low, (long long)high);
}

ng_status ng_moe_check_act(ng_ctx *ctx, const char *call, const ng_moe_act_op *op, bool gated)
{
    ng_status s =
        check_range(ctx, call, "act.act", (int)op->act, NG_MOE_SWIGLU, NG_MOE_GPT_OSS_FOLDED);
    if (!s)
        s = ng_moe_check_function(ctx, call, "act.sigmoid", &op->sigmoid);
    if (!s)
        s = ng_moe_check_function(ctx, call, "act.tanh", &op->tanh);
    if (!s)
        s = ng_moe_check_format(ctx, call, "act.biased", op->biased);
    if (s)
        return s;
    if (!is_finite(op->alpha) || !is_finite(op->limit) || op->limit >> 31)
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "%s: act.alpha is 0x%08X and act.limit 0x%08X; wanted: finite FP32 "
                       "patterns, the limit not negative",
                       call, op->alpha, op->limit);
    if (!gated && op->act >= NG_MOE_GPT_OSS)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: up is NULL, but the activation is gpt_oss",
                       call);
    return NG_OK;
}

ng_status ng_moe_check_combine(ng_ctx *ctx, const char *call, const ng_moe_combine_op *op)
{
    ng_status s = check_range(ctx, call, "combine.order", (int)op->order, NG_MOE_COMBINE_EXPERT,
                              NG_MOE_COMBINE_RANK);
    if (!s)
        s = ng_moe_check_format(ctx, call, "combine.product", op->product);
    if (!s)
        s = ng_moe_check_format(ctx, call, "combine.sum", op->sum);
    if (!s && op->fused && op->product && op->product != NG_F32)
        s = ng_fail(ctx, NG_ERR_ARGUMENT,
                    "%s: combine.fused leaves no product to round; combine.product is %s", call,
                    ng_format_info(op->product)->text);
    return s;
}

static ng_status check_groups(ng_ctx *ctx, const char *call, const ng_route_op *op,
                              int64_t experts)
{
    if (!op->groups)
        return NG_OK;
    if (op->groups > NG_ROUTE_MAX_GROUPS || experts % op->groups)
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "%s: route.groups is %u; wanted: a divisor of %lld experts, at most %d",
                       call, op->groups, (long long)experts, NG_ROUTE_MAX_GROUPS);
    ng_status s = check_range(ctx, call, "route.top_groups", op->top_groups, 1, op->groups);
    if (!s)
        s = check_range(ctx, call, "route.group_top", op->group_top ? op->group_top : 2, 1,
                        experts / op->groups);
    return s ? s
             : check_range(ctx, call, "route.mask", (int)op->mask, NG_GROUP_MASK_ZERO,
                           NG_GROUP_MASK_MINUS_INF);
}

ng_status ng_moe_check_route(ng_ctx *ctx, const char *call, const ng_route_op *op,
                             int64_t experts)
{
    ng_status s =
        check_range(ctx, call, "the number of experts", experts, 1, NG_ROUTE_MAX_EXPERTS);
    if (!s)
        s = check_range(ctx, call, "route.k", op->k, 1, experts);
    if (!s)
        s = check_range(ctx, call, "route.order", (int)op->order, NG_ROUTE_TOPK_THEN_ACT,
                        NG_ROUTE_ACT_ALL);
    if (!s)
        s = check_range(ctx, call, "route.act", (int)op->act, NG_ROUTE_SOFTMAX,
                        NG_ROUTE_SIGMOID);
    if (!s)
        s = check_range(ctx, call, "route.softmax_by", (int)op->softmax_by,
                        NG_DIVIDE_RECIPROCAL, NG_DIVIDE_TRUE);
    if (!s)
        s = check_range(ctx, call, "route.normalise_by", (int)op->normalise_by,
                        NG_DIVIDE_RECIPROCAL, NG_DIVIDE_TRUE);
    if (!s)
        s = check_range(ctx, call, "route.eps_how", (int)op->eps_how, NG_EPS_ADD, NG_EPS_FLOOR);
    if (!s)
        s = ng_moe_check_format(ctx, call, "route.score", op->score);
    if (!s)
        s = ng_moe_check_function(ctx, call, "route.exp", &op->exp);
    if (!s)
        s = ng_moe_check_function(ctx, call, "route.sigmoid", &op->sigmoid);
    if (!s)
        s = ng_moe_check_function(ctx, call, "route.reciprocal", &op->reciprocal);
    if (s)
        return s;
    if ((op->eps && !is_positive(op->eps)) || !is_finite(op->scale))
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "%s: route.eps is 0x%08X and route.scale 0x%08X; wanted: finite FP32 "
                       "patterns, eps positive",
                       call, op->eps, op->scale);
    return check_groups(ctx, call, op, experts);
}

ng_status ng_moe_check_dispatch(ng_ctx *ctx, const char *call, const ng_dispatch_op *op)
{
    const int64_t ranks = op->ranks ? op->ranks : 1;
    ng_status s = check_range(ctx, call, "dispatch.mode", (int)op->mode, NG_DISPATCH_DROPLESS,
                              NG_DISPATCH_CAPACITY);
    if (!s)
        s = check_range(ctx, call, "dispatch.experts", op->experts, 1, NG_ROUTE_MAX_EXPERTS);
    if (!s)
        s = check_range(ctx, call, "dispatch.k", op->k, 1, NG_ROUTE_MAX_EXPERTS);
    if (!s)
        s = check_range(ctx, call, "dispatch.rank", op->rank, 0, ranks - 1);
    if (!s && op->experts % ranks)
        s = ng_fail(ctx, NG_ERR_ARGUMENT,
                    "%s: dispatch.ranks is %lld; wanted: a divisor of %u experts", call,
                    (long long)ranks, op->experts);
    if (s || op->mode == NG_DISPATCH_DROPLESS)
        return s ? s : check_range(ctx, call, "dispatch.block", op->block, 0, INT32_MAX);
    s = check_range(ctx, call, "dispatch.capacity", op->capacity, 0, INT32_MAX);
    if (!s && !op->capacity && !is_positive(op->factor))
        s = ng_fail(ctx, NG_ERR_ARGUMENT,
                    "%s: dispatch.factor is 0x%08X; wanted: an FP32 pattern, positive and "
                    "finite, or a capacity",
                    call, op->factor);
    return s;
}

/* ---- Memory. ---- */

struct moe_bytes ng_moe_bytes(const char *name, const ng_tensor *t, bool written)
{
    struct moe_bytes b = { .name = name, .written = written };
    if (!t)
        return b;
    const uint32_t bits = ng_format_info(t->format)->store_bits;
    int64_t low = 0, high = 0; /* in elements; checked not to overflow */
    for (uint32_t d = 0; d < t->rank; d++) {
        const int64_t reach = (t->dim[d] - 1) * t->stride[d];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    b.data = t->data;
    b.extent = (struct ng_extent){ low * bits / 8, ((high + 1) * bits + 7) / 8 };
    return b;
}

struct moe_bytes ng_moe_words(const char *name, const void *data, int64_t bytes, bool written)
{
    return (struct moe_bytes){ name, data, { 0, bytes }, written };
}

ng_status ng_moe_apart(ng_ctx *ctx, const char *call, const struct moe_bytes *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (b[i].data && b[k].data && (b[i].written || b[k].written) &&
                ng_overlap(b[i].data, b[i].extent, b[k].data, b[k].extent))
                return ng_fail(ctx, NG_ERR_LAYOUT, "%s: %s overlaps %s", call,
                               b[i].written ? b[i].name : b[k].name,
                               b[i].written ? b[k].name : b[i].name);
    return NG_OK;
}

static ng_status apart(ng_ctx *ctx, const char *call, const struct moe_bytes *read,
                       const struct moe_bytes *out)
{
    return ng_moe_apart(ctx, call, (const struct moe_bytes[]){ *read, *out }, 2);
}

ng_status ng_moe_operand_apart(ng_ctx *ctx, const char *call, const char *name,
                               const ng_tensor *t, const struct moe_bytes *out)
{
    struct moe_bytes read = { .name = name };
    ng_status s = ng_check_tensor(ctx, call, name, t, false, &read.extent);
    if (s)
        return s;
    read.data = t->data;
    s = apart(ctx, call, &read, out);
    if (!s && t->scale) {
        s = ng_check_scale(ctx, call, name, t, false, &read.extent);
        read.data = t->scale;
        s = s ? s : apart(ctx, call, &read, out);
    }
    if (!s && t->sparse && t->sparse->kept && t->rank == 2) {
        read = ng_moe_words(name, t->sparse->tags,
                            t->dim[1] * ng_tag_line_bytes(t->sparse, t->dim[0]), false);
        s = apart(ctx, call, &read, out);
    }
    return s;
}

/* ---- FP32 rows. ---- */

static bool is_plain(const ng_tensor *t)
{
    const uint32_t last = t->rank - 1;
    return t->format == NG_F32 && (t->dim[last] == 1 || t->stride[last] == 1) &&
           (uintptr_t)t->data % sizeof(uint32_t) == 0;
}

int64_t ng_moe_copy_words(const ng_tensor *t)
{
    return !t || is_plain(t) ? 0 : (ng_count(t) + 15) / 16 * 16; /* whole cache lines */
}

static ng_tensor packed_f32(const ng_tensor *t, uint32_t *data)
{
    ng_tensor f;
    (void)ng_tensor_init(&f, NG_F32, data, t->rank, t->dim); /* t is checked */
    return f;
}

static const ng_convert_op nearest = { .size = sizeof nearest };

struct moe_rows ng_moe_open(ng_ctx *ctx, const ng_tensor *t, uint32_t *copy, bool read)
{
    if (!t)
        return (struct moe_rows){ 0 };
    if (is_plain(t))
        return (struct moe_rows){ t->data, t->rank == 1 ? 0 : t->stride[0] };
    if (read) {
        const ng_tensor f = packed_f32(t, copy);
        (void)ng_convert(ctx, &nearest, t, &f); /* every format is in FP32 */
    }
    return (struct moe_rows){ copy, t->dim[t->rank - 1] };
}

void ng_moe_close(ng_ctx *ctx, const struct moe_rows *r, const ng_tensor *t)
{
    if (is_plain(t))
        return;
    const ng_tensor f = packed_f32(t, r->data);
    (void)ng_convert(ctx, &nearest, &f, t); /* an output's format takes every value */
}

/* ---- Blocks of K. ---- */

void ng_moe_block(const struct ng_moe_kernel *kernel, const ng_moe_block_op *op,
                  const struct block_tile *t)
{
    const uint32_t saved = ng_fp_enter();
    if (kernel)
        kernel->block(op, t);
    for (int64_t r = 0; !kernel && r < t->rows; r++) {
        const uint32_t *psum = t->psum + r * t->psum_step,
                       row = t->row_scale[r * t->row_scale_step];
        uint32_t *sum = t->sum + r * t->sum_step;
        for (int64_t n = 0; n < t->columns; n++)
            sum[n] = ng_ref_moe_block(op, psum[n], row, t->scale[n], sum[n]);
    }
    ng_fp_leave(saved);
}

/* ---- Tasks. ---- */

struct rows_call {
    int64_t rows, together;
    void *arg;
    void (*rows_of)(void *arg, int64_t from, int64_t to, size_t worker);
};

static void rows_task(void *arg, size_t task, size_t worker)
{
    const struct rows_call *c = arg;
    const int64_t from = (int64_t)task * c->together, to = from + c->together;
    c->rows_of(c->arg, from, to < c->rows ? to : c->rows, worker);
}

enum {
    TASK_COST = 1 << 15 /* elements of a task: enough to hide the executor */
};

void ng_moe_rows(ng_ctx *ctx, int64_t rows, int64_t cost, void *arg,
                 void (*rows_of)(void *arg, int64_t from, int64_t to, size_t worker))
{
    struct rows_call c = { .rows = rows, .arg = arg, .rows_of = rows_of };
    c.together = TASK_COST / cost < 16 ? (TASK_COST / cost < 1 ? 1 : TASK_COST / cost)
                                       : TASK_COST / cost / 16 * 16;
    ng_parallel(ctx, (size_t)((rows + c.together - 1) / c.together), rows_task, &c);
}
