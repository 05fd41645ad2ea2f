/* SPDX-License-Identifier: Apache-2.0 */
/* ng_elementary. Numerics: docs/numerics.md, sections 8 and 11.8. */
#include "../ref/ref.h"
#include "flat.h"

/* A call: const but for what a dry run finds. */
struct elementary_run {
    struct elementary_job job;
    const struct ng_elementary_kernel *kernel; /* NULL: the reference */
    struct flat_in in;
    struct flat_out out;
};

/* ---- A task: arguments, function, conversion. ---- */

static void evaluate(const struct elementary_run *r, const uint32_t *x, int64_t n, uint32_t *y)
{
    if (r->kernel)
        r->kernel->run(&r->job, x, n, y);
    for (int64_t i = 0; !r->kernel && i < n; i++)
        y[i] = ng_ref_function(r->job.f, &r->job.choice, x[i]);
}

/* Where results are dst's codes as they are; a table's NaN may be any. */
static uint32_t *place_of(const struct elementary_run *r, int64_t first)
{
    return r->job.choice.kind == NG_FUNCTION_TABLE ? NULL : ng_flat_place(&r->out, first);
}

static void elementary_task(void *arg, size_t task, size_t worker)
{
    const struct elementary_run *r = arg;
    (void)worker;
    const int64_t first = (int64_t)task * FLAT_RUN, left = ng_count(r->out.t) - first,
                  n = left < FLAT_RUN ? left : FLAT_RUN;
    uint32_t x[FLAT_RUN], y[FLAT_RUN], *place = place_of(r, first);
    const uint32_t saved = ng_fp_enter();
    const uint32_t *in = ng_flat_read(&r->in, 0, first, n, x);
    evaluate(r, in, n, place ? place : y);
    if (!place)
        ng_flat_write(&r->out, first, n, y);
    ng_fp_leave(saved);
}

static void run_all(ng_ctx *ctx, struct elementary_run *r)
{
    const size_t tasks = (size_t)((ng_count(r->out.t) + FLAT_RUN - 1) / FLAT_RUN);
    if (!r->out.dry && !ng_flat_shares_bytes(&r->out)) {
        ng_parallel(ctx, tasks, elementary_task, r);
        return;
    }
    for (size_t t = 0; t < tasks; t++)
        elementary_task(r, t, 0);
}

/* ---- Front door. ---- */

static ng_status check_choice(ng_ctx *ctx, const ng_elementary_op *op)
{
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "elementary: op is NULL or op.size is not %zu",
                       sizeof *op);
    if (!ng_function_name(op->function))
        return ng_fail(ctx, NG_ERR_ARGUMENT, "elementary: op.function is %u, no ng_function",
                       (unsigned)op->function);
    switch (op->choice.kind) {
    case NG_FUNCTION_CR: return NG_OK;
    case NG_FUNCTION_SLEEF:
        return ng_sleef_available()
                   ? NG_OK
                   : ng_fail(ctx, NG_ERR_UNSUPPORTED,
                             "elementary: op.choice is \"sleef\", which needs a CPU with AVX2 "
                             "and FMA");
    case NG_FUNCTION_TABLE:
        return op->choice.table
                   ? NG_OK
                   : ng_fail(ctx, NG_ERR_ARGUMENT,
                             "elementary: op.choice is \"table\" and its table is NULL; "
                             "wanted: 65536 bf16 codes");
    }
    return ng_fail(ctx, NG_ERR_ARGUMENT,
                   "elementary: op.choice.kind is %u, no ng_function_kind",
                   (unsigned)op->choice.kind);
}

static ng_status check_tensors(ng_ctx *ctx, const ng_tensor *src, const ng_tensor *dst,
                               struct ng_extent *ed)
{
    struct ng_extent es;
    ng_status s = ng_check_tensor(ctx, "elementary", "src", src, false, &es);
    if (!s)
        s = ng_check_tensor(ctx, "elementary", "dst", dst, true, ed);
    if (!s)
        s = ng_check_same_shape(ctx, "elementary", "src", src, "dst", dst);
    if (s)
        return s;
    if (src->scale || dst->scale || src->sparse || dst->sparse)
        return ng_fail(ctx, NG_ERR_FORMAT,
                       "elementary: takes no block scales and no sparse operand; use "
                       "ng_dequantize or ng_expand first");
    if (!ng_same_view(src, dst) && ng_overlap(src->data, es, dst->data, *ed))
        return ng_fail(ctx, NG_ERR_LAYOUT,
                       "elementary: dst overlaps src without being the same view");
    return NG_OK;
}

/* No NaN may come out where there is no code for it: found before anything is written. */
static ng_status find_nans(ng_ctx *ctx, struct elementary_run *r)
{
    ng_status found = NG_OK;
    if (!ng_flat_may_fail(&r->out))
        return NG_OK;
    r->out.dry = true;
    r->out.found = &found;
    run_all(ctx, r);
    r->out.dry = false;
    r->out.found = NULL;
    if (!found)
        return NG_OK;
    return ng_fail(
        ctx, found,
        "elementary: %s of src has a NaN (or an Inf that overflows to one), which %s "
        "cannot hold, and nan_to is \"error\"",
        ng_function_name(r->job.f), r->out.job.to->text);
}

ng_status ng_elementary(ng_ctx *ctx, const ng_elementary_op *op, const ng_tensor *src,
                        const ng_tensor *dst)
{
    struct ng_extent ed;
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_choice(ctx, op);
    if (!s)
        s = check_tensors(ctx, src, dst, &ed);
    if (s)
        return s;
    struct elementary_run r = { .job = { .f = op->function, .choice = op->choice },
                                .kernel = ng_pick_elementary(ng_ctx_isas(ctx)),
                                .in = ng_flat_in(ctx, src) };
    s = ng_flat_out(ctx, "elementary", "op.cast", dst, "dst", &op->cast, ed, &r.out);
    if (s)
        return s;
    s = find_nans(ctx, &r);
    if (s)
        return s;
    ng_ctx_note_kernel(ctx, r.kernel ? r.kernel->name : "ref", (ng_tiles){ 0 });
    run_all(ctx, &r);
    return NG_OK;
}
