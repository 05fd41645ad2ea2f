/* SPDX-License-Identifier: Apache-2.0 */
/* ng_convert and ng_dequantize. Numerics: docs/numerics.md, sections 2, 3. */
#include <string.h>

#include "../internal.h"
#include "../num/num.h"
#include "cast_run.h"
#include "ng/quantize.h"

/* One task converts this many elements: enough to hide the executor, few enough to share out.
 */
#define RUN 4096

struct convert_job {
    const ng_cast *cast;
    const ng_tensor *src, *dst;
    const ng_format_spec *from, *to;
    bool scaled;
    const ng_format_spec *scale_spec;
    ng_value tensor_scale;
    struct ng_stream words; /* stochastic rounding's */
    bool dry;               /* encode, write nothing: to find errors first */
    ng_status *found;       /* dry: the first error of each task's elements */
};

static ng_value source_value(const struct convert_job *j, const int64_t *index)
{
    const ng_value v = ng_num_decode(
        j->from, ng_load_code(j->src->data, j->from->store_bits, ng_offset_at(j->src, index)));
    if (!j->scaled)
        return v;
    const ng_value s = ng_num_decode(
        j->scale_spec, ng_load_code(j->src->scale, 8, ng_scale_offset(j->src, index)));
    return ng_num_mul(ng_num_mul(v, s), j->tensor_scale);
}

/* The reference: the element at index, with its random word. */
static void convert_element(const struct convert_job *j, const int64_t *index, uint32_t word)
{
    uint32_t code = 0;
    const ng_status s = ng_num_encode(j->to, j->cast, source_value(j, index), word, &code);
    if (j->dry && s)
        *j->found = s;
    if (!j->dry && !s)
        ng_store_code(j->dst->data, j->to->store_bits, ng_offset_at(j->dst, index), code);
}

static void convert_run(void *arg, size_t task, size_t worker)
{
    const struct convert_job *j = arg;
    (void)worker;
    const int64_t first = (int64_t)task * RUN, n = ng_count(j->dst);
    const int64_t last = n - first < RUN ? n : first + RUN;
    uint32_t word[RUN] = { 0 };
    if (j->cast->round == NG_ROUND_STOCHASTIC)
        ng_stream_words(&j->words, first, last - first, word);

    int64_t index[NG_MAX_RANK];
    ng_unravel(j->dst, first, index);
    for (int64_t i = first; i < last; i++, ng_next_index(j->dst, index))
        convert_element(j, index, word[i - first]);
}

/* What a kernel leaves of a dequantise. */
static void convert_box(void *arg, const int64_t *first, const int64_t *dims)
{
    const struct convert_job *j = arg;
    ng_tensor box = *j->dst;
    memcpy(box.dim, dims, sizeof box.dim);
    int64_t at[NG_MAX_RANK] = { 0 };
    do {
        int64_t index[NG_MAX_RANK] = { 0 }, e = 0;
        for (uint32_t d = 0; d < box.rank; d++) {
            index[d] = first[d] + at[d];
            e = e * j->dst->dim[d] + index[d];
        }
        const bool random = j->cast->round == NG_ROUND_STOCHASTIC;
        convert_element(j, index, random ? ng_stream_word(&j->words, e) : 0);
    } while (ng_next_index(&box, at));
}

/* Two 4-bit elements share a byte, so tasks could meet in one: those run in one thread. */
static void run_all(ng_ctx *ctx, struct convert_job *j)
{
    const size_t tasks = (size_t)((ng_count(j->dst) + RUN - 1) / RUN);
    if (!j->dry && j->to->store_bits != 4) {
        ng_parallel(ctx, tasks, convert_run, j);
        return;
    }
    for (size_t t = 0; t < tasks; t++)
        convert_run(j, t, 0);
}

static ng_status convert(ng_ctx *ctx, const char *call, const ng_convert_op *op,
                         const ng_tensor *src, const ng_tensor *dst, bool scaled)
{
    struct ng_extent es, ed, ec = { 0, 0 };
    ng_status s = ng_begin(ctx);
    if (s)
        return s;
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op is NULL or op.size is not %zu", call,
                       sizeof *op);
    s = ng_check_tensor(ctx, call, "src", src, false, &es);
    if (!s)
        s = ng_check_tensor(ctx, call, "dst", dst, true, &ed);
    if (!s)
        s = ng_check_same_shape(ctx, call, "src", src, "dst", dst);
    if (!s && scaled)
        s = ng_check_scale(ctx, call, "src", src, false, &ec);
    if (s)
        return s;
    if (!scaled && src->scale)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: src has block scales; use ng_dequantize", call);
    if (src->sparse || dst->sparse || dst->scale)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: takes no sparse operand and no scaled dst",
                       call);
    const bool in_place = !scaled && ng_same_view(src, dst);
    if (!in_place && ng_overlap(src->data, es, dst->data, ed))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: dst overlaps src without being the same view",
                       call);
    if (scaled && ng_overlap(src->scale, ec, dst->data, ed))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: dst overlaps the scales of src", call);

    struct convert_job j = { .cast = &op->cast,
                             .src = src,
                             .dst = dst,
                             .from = ng_format_info(src->format),
                             .to = ng_format_info(dst->format),
                             .scaled = scaled };
    s = ng_check_cast(ctx, call, "op.cast", &op->cast, j.to, dst->dim[dst->rank - 1],
                      ng_count(dst), &j.words);
    if (s)
        return s;
    if (ng_stream_overlaps(&j.words, dst->data, ed))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: dst overlaps the random words of op.cast",
                       call);
    const uint32_t tensor_scale = src->tensor_scale ? src->tensor_scale : 0x3F800000u;
    if (scaled) {
        j.scale_spec = ng_format_info(src->scale_format);
        j.tensor_scale = ng_num_f32(tensor_scale);
    }
    if (op->cast.nan_to == NG_NAN_TO_ERROR && !j.to->has_nan) {
        ng_status found = NG_OK;
        j.dry = true;
        j.found = &found;
        run_all(ctx, &j);
        if (found)
            return ng_fail(ctx, found,
                           "%s: src holds a NaN (or an Inf that overflows to one), "
                           "which %s cannot hold, and nan_to is \"error\"",
                           call, j.to->text);
        j.dry = false;
    }
    const int64_t axis = scaled ? src->dim[src->block_axis] : 0,
                  block = scaled && src->block < axis ? src->block : axis;
    struct cast_plan plan = { .job = { .from = j.from,
                                       .to = j.to,
                                       .cast = &op->cast,
                                       .scale = j.scale_spec,
                                       .tensor_scale = tensor_scale,
                                       .block = (uint32_t)block },
                              .src = src,
                              .dst = dst,
                              .scaled = scaled ? src : NULL,
                              .words = op->cast.round == NG_ROUND_STOCHASTIC ? &j.words : NULL,
                              .reference = convert_box,
                              .arg = &j };
    ng_cast_pick(ctx, &plan);
    if (plan.kernel)
        ng_cast_run(ctx, &plan);
    else
        run_all(ctx, &j);
    return NG_OK;
}

ng_status ng_convert(ng_ctx *ctx, const ng_convert_op *op, const ng_tensor *src,
                     const ng_tensor *dst)
{
    return convert(ctx, "convert", op, src, dst, false);
}

ng_status ng_dequantize(ng_ctx *ctx, const ng_convert_op *op, const ng_tensor *src,
                        const ng_tensor *dst)
{
    return convert(ctx, "dequantize", op, src, dst, true);
}
