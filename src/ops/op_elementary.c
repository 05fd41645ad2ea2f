/* SPDX-License-Identifier: Apache-2.0 */
/* ng_elementary. Numerics: docs/numerics.md, sections 8 and 11.8. */
#include <string.h>

#include "../dispatch.h"
#include "../internal.h"
#include "../num/num.h"
#include "../ref/ref.h"

/* Elements of a task: enough to hide the executor; even, so that 4-bit codes in a row are cut
 * between bytes. */
#define RUN 4096

/* A call: const but for `found`. */
struct elementary_run {
    struct elementary_job job;
    const struct ng_elementary_kernel *kernel; /* NULL: the reference */
    const ng_tensor *src, *dst;
    bool as_it_is;           /* FP32 results are dst's codes */
    bool src_row, dst_row;   /* elements lie one after another in logical order */
    struct cast_job in, out; /* to FP32, and from it */
    const struct ng_cast_kernel *widen, *narrow; /* NULL: the reference */
    struct ng_stream words;                      /* stochastic rounding's */
    bool dry;                                    /* encode, write nothing */
    ng_status *found;                            /* dry: the first error */
};

static const ng_cast exact = { .round = NG_ROUND_TIES_TO_EVEN };

/* Row-major, without gaps. */
static bool in_a_row(const ng_tensor *t)
{
    int64_t step = 1;
    for (uint32_t d = t->rank; d-- > 0; step *= t->dim[d])
        if (t->dim[d] != 1 && t->stride[d] != step)
            return false;
    return true;
}

static bool aligned(const void *p)
{
    return (uintptr_t)p % sizeof(uint32_t) == 0;
}

static void *at_element(const ng_tensor *t, const ng_format_spec *f, int64_t i)
{
    return (unsigned char *)t->data + i * f->store_bits / 8;
}

/* ---- The three steps of a task: arguments, function, conversion. ---- */

static void gather(const ng_tensor *t, const ng_format_spec *f, int64_t first, int64_t n,
                   void *codes)
{
    int64_t index[NG_MAX_RANK];
    ng_unravel(t, first, index);
    for (int64_t i = 0; i < n; i++, ng_next_index(t, index))
        ng_store_code(codes, f->store_bits, i,
                      ng_load_code(t->data, f->store_bits, ng_offset_at(t, index)));
}

static void scatter(const ng_tensor *t, const ng_format_spec *f, int64_t first, int64_t n,
                    const void *codes)
{
    int64_t index[NG_MAX_RANK];
    ng_unravel(t, first, index);
    for (int64_t i = 0; i < n; i++, ng_next_index(t, index))
        ng_store_code(t->data, f->store_bits, ng_offset_at(t, index),
                      ng_load_code(codes, f->store_bits, i));
}

/* FP32 patterns of n elements from `first` on: where they lie, or in `buffer`. */
static const uint32_t *arguments(const struct elementary_run *r, int64_t first, int64_t n,
                                 uint32_t *buffer)
{
    const ng_format_spec *f = r->in.from;
    uint32_t codes[RUN];
    const void *in = codes;
    if (r->src_row)
        in = at_element(r->src, f, first);
    else
        gather(r->src, f, first, n, codes);
    if (f->format == NG_F32 && r->src_row && aligned(in))
        return in;
    if (r->widen)
        r->widen->convert(&r->in, in, NULL, n, buffer);
    for (int64_t i = 0; !r->widen && i < n; i++)
        buffer[i] = ng_num_f32_code(ng_num_decode(f, ng_load_code(in, f->store_bits, i)));
    return buffer;
}

static void evaluate(const struct elementary_run *r, const uint32_t *x, int64_t n, uint32_t *y)
{
    if (r->kernel)
        r->kernel->run(&r->job, x, n, y);
    for (int64_t i = 0; !r->kernel && i < n; i++)
        y[i] = ng_ref_function(r->job.f, &r->job.choice, x[i]);
}

/* By the reference, into codes one after another; the first error. */
static ng_status encode(const struct elementary_run *r, const uint32_t *y, const uint32_t *word,
                        int64_t n, void *codes)
{
    ng_status found = NG_OK;
    for (int64_t i = 0; i < n; i++) {
        uint32_t code = 0;
        const ng_status s =
            ng_num_encode(r->out.to, r->out.cast, ng_num_f32(y[i]), word[i], &code);
        found = found ? found : s;
        ng_store_code(codes, r->out.to->store_bits, i, code);
    }
    return found;
}

static void results(const struct elementary_run *r, int64_t first, int64_t n, const uint32_t *y)
{
    const ng_format_spec *f = r->out.to;
    const bool random = r->out.cast->round == NG_ROUND_STOCHASTIC;
    uint32_t word[RUN] = { 0 }, codes[RUN];
    if (random)
        ng_stream_words(&r->words, first, n, word);
    if (r->dry) {
        const ng_status s = encode(r, y, word, n, codes);
        *r->found = *r->found ? *r->found : s;
        return;
    }
    void *out = r->dst_row && r->narrow ? at_element(r->dst, f, first) : codes;
    if (r->narrow)
        r->narrow->convert(&r->out, y, random ? word : NULL, n, out);
    else
        (void)encode(r, y, word, n, codes); /* what can fail did so in the dry run */
    if (out == codes)
        scatter(r->dst, f, first, n, codes);
}

static void elementary_task(void *arg, size_t task, size_t worker)
{
    const struct elementary_run *r = arg;
    (void)worker;
    const int64_t first = (int64_t)task * RUN, left = ng_count(r->dst) - first,
                  n = left < RUN ? left : RUN;
    uint32_t x[RUN], y[RUN];
    const uint32_t saved = ng_fp_enter();
    const uint32_t *in = arguments(r, first, n, x);
    if (r->as_it_is) {
        evaluate(r, in, n, at_element(r->dst, r->out.to, first));
    } else {
        evaluate(r, in, n, y);
        results(r, first, n, y);
    }
    ng_fp_leave(saved);
}

/* Would the conversion into dst change nothing, and lies dst as a kernel writes? The functions'
 * NaN is the canonical one, a table's may be any. */
static bool stays_as_it_is(const struct elementary_run *r)
{
    return r->out.to->format == NG_F32 && r->out.cast->overflow != NG_OVERFLOW_SATURATE &&
           r->job.choice.kind != NG_FUNCTION_TABLE && r->dst_row && aligned(r->dst->data);
}

/* Elements of 4 bits that do not lie in a row share bytes between tasks: one thread then. */
static void run_all(ng_ctx *ctx, struct elementary_run *r)
{
    const size_t tasks = (size_t)((ng_count(r->dst) + RUN - 1) / RUN);
    if (!r->dry && (r->dst_row || r->out.to->store_bits != 4)) {
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
    if (r->out.cast->nan_to != NG_NAN_TO_ERROR || r->out.to->has_nan)
        return NG_OK;
    r->dry = true;
    r->found = &found;
    run_all(ctx, r);
    r->dry = false;
    r->found = NULL;
    if (!found)
        return NG_OK;
    return ng_fail(
        ctx, found,
        "elementary: %s of src has a NaN (or an Inf that overflows to one), which %s "
        "cannot hold, and nan_to is \"error\"",
        ng_function_name(r->job.f), r->out.to->text);
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
    const ng_format_spec *f32 = ng_format_info(NG_F32), *to = ng_format_info(dst->format);
    struct elementary_run r = {
        .job = { .f = op->function, .choice = op->choice },
        .kernel = ng_pick_elementary(ng_ctx_isas(ctx)),
        .src = src,
        .dst = dst,
        .src_row = in_a_row(src),
        .dst_row = in_a_row(dst),
        .in = { .from = ng_format_info(src->format), .to = f32, .cast = &exact },
        .out = { .from = f32, .to = to, .cast = &op->cast },
    };
    s = ng_check_cast(ctx, "elementary", "op.cast", &op->cast, to, dst->dim[dst->rank - 1],
                      ng_count(dst), &r.words);
    if (s)
        return s;
    if (ng_stream_overlaps(&r.words, dst->data, ed))
        return ng_fail(ctx, NG_ERR_LAYOUT,
                       "elementary: dst overlaps the random words of op.cast");
    r.widen = ng_pick_cast(&r.in, ng_ctx_isas(ctx));
    r.narrow = ng_pick_cast(&r.out, ng_ctx_isas(ctx));
    r.as_it_is = stays_as_it_is(&r);
    s = find_nans(ctx, &r);
    if (s)
        return s;
    ng_ctx_note_kernel(ctx, r.kernel ? r.kernel->name : "ref", (ng_tiles){ 0 });
    run_all(ctx, &r);
    return NG_OK;
}
