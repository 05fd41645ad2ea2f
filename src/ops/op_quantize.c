/* SPDX-License-Identifier: Apache-2.0 */
/* ng_quantize, and the moves between scale storage orders. Numerics: docs/numerics.md,
 * section 3. */
#include <string.h>

#include "../internal.h"
#include "../ref/ref.h"
#include "cast_run.h"

struct quantize_job {
    const ng_quantize_op *op;
    const ng_tensor *src, *dst;
    const ng_format_spec *from, *to;
    ng_cast cast; /* the op's, saturating */
    ng_block_special special;
    bool nv;
    struct ng_nvfp4 nvfp4;
    struct ng_stream words;  /* stochastic rounding's */
    int64_t blocks, members; /* members: of a block, those past the axis' end left out */
};

static bool is_nv(ng_scale_rule rule)
{
    return rule == NG_SCALE_NVFP4_TE || rule == NG_SCALE_NVFP4_EXACT;
}

static ng_value source(const struct quantize_job *j, const int64_t *index)
{
    return ng_num_decode(
        j->from, ng_load_code(j->src->data, j->from->store_bits, ng_offset_at(j->src, index)));
}

/* The k of member m of block g, or -1 past the end of a short block; section 3.3. */
static int64_t member(const ng_tensor *t, int64_t g, int64_t m)
{
    const int64_t n = t->dim[t->block_axis];
    if (t->layout != NG_LAYOUT_TRN_WRAP) {
        const int64_t k = g * t->block + m;
        return k < n ? k : -1;
    }
    const int64_t tile = g / 16, left = n - tile * 512, rows = (left < 512 ? left : 512) / 4;
    return tile * 512 + m / 8 * rows + g % 16 * 8 + m % 8;
}

static ng_value larger(ng_value a, ng_value b)
{
    b.neg = false;
    return ng_num_compare_magnitude(b, a) > 0 ? b : a;
}

/* The largest magnitude of a block under the block_special rule. */
struct block_max {
    ng_value a;
    bool special; /* a NaN or Inf that must make the block NaN */
};

static struct block_max block_max(const struct quantize_job *j, int64_t *index, int64_t g)
{
    struct block_max r = { .a = ng_num_zero(false) };
    for (int64_t m = 0; m < j->members; m++) {
        const int64_t k = member(j->dst, g, m);
        if (k < 0)
            continue;
        index[j->dst->block_axis] = k;
        const ng_value v = source(j, index);
        if (v.cls == NG_CLASS_FINITE)
            r.a = larger(r.a, v);
        else if (j->special == NG_BLOCK_SPECIAL_EXPONENT)
            r.a = larger(r.a, (ng_value){ .sig = 1, .exp = 128 });
        if (v.cls != NG_CLASS_FINITE && j->special == NG_BLOCK_SPECIAL_NAN_BLOCK)
            r.special = true;
        if (ng_num_is_nan(v) && !j->to->has_nan) /* the format could not say so itself */
            r.special = true;
    }
    return r;
}

static void quantize_block(const struct quantize_job *j, int64_t *index, int64_t g)
{
    const ng_tensor *dst = j->dst;
    const struct block_max max = block_max(j, index, g);
    uint32_t scale;
    if (max.special)
        scale = j->nv ? ng_format_info(NG_UE4M3)->nan_code : ng_format_info(NG_E8M0)->nan_code;
    else
        scale = j->nv ? ng_ref_nvfp4_scale(&j->nvfp4, max.a)
                      : ng_ref_mx_scale(j->op->rule, j->to, max.a);

    for (int64_t m = 0; m < j->members; m++) {
        const int64_t k = member(dst, g, m);
        if (k < 0)
            continue;
        index[dst->block_axis] = k;
        uint32_t code = 0;
        if (!max.special) {
            int64_t e = 0; /* row-major number of the element: its random word */
            for (uint32_t d = 0; d < dst->rank; d++)
                e = e * dst->dim[d] + index[d];
            const uint32_t word =
                j->op->cast.round == NG_ROUND_STOCHASTIC ? ng_stream_word(&j->words, e) : 0;
            const ng_value v = source(j, index);
            code = j->nv ? ng_ref_nvfp4_element(&j->nvfp4, &j->op->cast, scale, v, word)
                         : ng_ref_mx_element(j->to, &j->op->cast, scale, v, word);
        }
        ng_store_code(dst->data, j->to->store_bits, ng_offset_at(dst, index), code);
        ng_store_code(dst->scale, 8, ng_scale_offset(dst, index), scale);
    }
}

/* A task is one line along the block axis. */
static void quantize_line(void *arg, size_t line, size_t worker)
{
    const struct quantize_job *j = arg;
    (void)worker;
    ng_tensor lines = *j->dst;
    lines.dim[lines.block_axis] = 1;
    int64_t index[NG_MAX_RANK];
    ng_unravel(&lines, (int64_t)line, index);
    for (int64_t g = 0; g < j->blocks; g++)
        quantize_block(j, index, g);
}

/* By the reference. */
static ng_value tensor_amax(const struct quantize_job *j)
{
    int64_t index[NG_MAX_RANK] = { 0 };
    ng_value a = ng_num_zero(false);
    do {
        const ng_value v = source(j, index);
        if (v.cls == NG_CLASS_FINITE)
            a = larger(a, v);
    } while (ng_next_index(j->src, index));
    return a;
}

static ng_status check_rule(ng_ctx *ctx, const char *call, struct quantize_job *j)
{
    const ng_quantize_op *op = j->op;
    const ng_tensor *dst = j->dst;
    if ((unsigned)op->rule > NG_SCALE_NVFP4_EXACT)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: rule %d is no ng_scale_rule", call,
                       (int)op->rule);
    if ((unsigned)op->special > NG_BLOCK_SPECIAL_EXPONENT)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: special %d is no ng_block_special", call,
                       (int)op->special);
    const ng_format want = j->nv ? NG_UE4M3 : NG_E8M0;
    if (dst->scale_format != want)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: dst has %s scales but this rule writes %s",
                       call, ng_format_info(dst->scale_format)->text,
                       ng_format_info(want)->text);
    if (j->to->bits > 8 || j->to->kind == NG_KIND_SCALE || j->to->kind == NG_KIND_UFN)
        return ng_fail(ctx, NG_ERR_FORMAT,
                       "%s: dst has %s elements; wanted: an element format of at most 8 bits",
                       call, j->to->text);
    if (j->from->kind == NG_KIND_SCALE || j->from->kind == NG_KIND_UFN)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: src has format %s, which is a scale", call,
                       j->from->text);
    if (j->nv && (j->to->format != NG_E2M1 || dst->block != 16))
        return ng_fail(ctx, NG_ERR_FORMAT,
                       "%s: NVFP4 rules want e2m1 elements in blocks of 16, not %s in %u", call,
                       j->to->text, dst->block);
    if (j->nv && op->special == NG_BLOCK_SPECIAL_EXPONENT)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: from_exponent has no meaning for NVFP4",
                       call);
    const ng_value amax = ng_num_f32(op->tensor_amax);
    if (amax.cls != NG_CLASS_FINITE || amax.neg)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: tensor_amax is 0x%08X; wanted: finite, >= 0",
                       call, op->tensor_amax);
    return ng_check_cast(ctx, call, "op.cast", &j->cast, j->to, dst->dim[dst->rank - 1],
                         ng_count(dst), &j->words);
}

static ng_status check_apart(ng_ctx *ctx, const char *call, const char *name,
                             const ng_tensor *src, struct ng_extent es, const ng_tensor *dst,
                             struct ng_extent ed, struct ng_extent ec)
{
    if (ng_overlap(src->data, es, dst->data, ed))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: %s overlaps src", call, name);
    if (ng_overlap(src->data, es, dst->scale, ec))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: the scales of %s overlap src", call, name);
    if (ng_overlap(dst->data, ed, dst->scale, ec))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: the scales of %s overlap its elements", call,
                       name);
    return NG_OK;
}

/* Checks a call and makes its job; writes nothing of the caller's. */
static ng_status prepare(ng_ctx *ctx, const char *call, const char *name,
                         const ng_quantize_op *op, const ng_tensor *src, const ng_tensor *dst,
                         struct quantize_job *j)
{
    struct ng_extent es, ed, ec;
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op is NULL or op.size is not %zu", call,
                       sizeof *op);
    ng_status s = ng_check_tensor(ctx, call, "src", src, false, &es);
    if (!s)
        s = ng_check_tensor(ctx, call, name, dst, true, &ed);
    if (!s)
        s = ng_check_same_shape(ctx, call, "src", src, name, dst);
    if (!s)
        s = ng_check_scale(ctx, call, name, dst, true, &ec);
    if (!s && (src->scale || src->sparse || dst->sparse))
        s = ng_fail(ctx, NG_ERR_FORMAT, "%s: src has scales, or an operand is sparse", call);
    if (!s)
        s = check_apart(ctx, call, name, src, es, dst, ed, ec);
    if (s)
        return s;
    *j = (struct quantize_job){ .op = op,
                                .src = src,
                                .dst = dst,
                                .from = ng_format_info(src->format),
                                .to = ng_format_info(dst->format),
                                .cast = op->cast,
                                .special = op->special,
                                .nv = is_nv(op->rule),
                                .blocks = ng_n_blocks(dst) };
    j->cast.overflow = NG_OVERFLOW_SATURATE;
    const int64_t axis = dst->dim[dst->block_axis];
    j->members = dst->block < axis ? dst->block : axis;
    s = check_rule(ctx, call, j);
    if (!s && (ng_stream_overlaps(&j->words, dst->data, ed) ||
               ng_stream_overlaps(&j->words, dst->scale, ec)))
        s = ng_fail(ctx, NG_ERR_LAYOUT,
                    "%s: %s or its scales overlap the random words of op.cast", call, name);
    return s;
}

static struct cast_plan plan_of(const struct quantize_job *j)
{
    return (struct cast_plan){
        .job = { .from = j->from,
                 .to = j->to,
                 .cast = &j->cast,
                 .scale = ng_format_info(j->dst->scale_format),
                 .tensor_scale = 0x3F800000u,
                 .block = (uint32_t)j->members,
                 .rule = j->op->rule,
                 .special = j->special,
                 .quantize = true },
        .src = j->src,
        .dst = j->dst,
        .scaled = j->dst,
        .words = j->cast.round == NG_ROUND_STOCHASTIC ? &j->words : NULL,
    };
}

/* The tensor's own constants, and tensor_scale of the result. */
static void tensor_constants(ng_ctx *ctx, struct quantize_job *j, ng_tensor *dst,
                             struct cast_plan *plan)
{
    ng_value amax;
    if (j->op->tensor_amax)
        amax = ng_num_f32(j->op->tensor_amax);
    else if (plan->kernel)
        amax = ng_num_f32(ng_cast_largest(ctx, plan));
    else
        amax = tensor_amax(j);
    j->nvfp4 = ng_ref_nvfp4(j->op->rule, amax);
    dst->tensor_scale = plan->job.tensor_scale = j->nvfp4.tensor_scale;
    if (j->op->rule == NG_SCALE_NVFP4_TE)
        plan->job.encode = ng_num_f32_code(j->nvfp4.encode);
}

/* Nothing can fail any more. */
static void run(ng_ctx *ctx, struct quantize_job *j, ng_tensor *dst)
{
    struct cast_plan plan = plan_of(j);
    ng_cast_pick(ctx, &plan);
    dst->tensor_scale = 0;
    if (j->nv)
        tensor_constants(ctx, j, dst, &plan);
    if (plan.kernel) {
        ng_cast_run(ctx, &plan);
        return;
    }
    const size_t lines = (size_t)(ng_count(dst) / dst->dim[dst->block_axis]);
    if (j->to->store_bits != 4) {
        ng_parallel(ctx, lines, quantize_line, j);
        return;
    }
    for (size_t i = 0; i < lines; i++) /* two lines may meet in one byte */
        quantize_line(j, i, 0);
}

ng_status ng_quantize(ng_ctx *ctx, const ng_quantize_op *op, const ng_tensor *src,
                      ng_tensor *dst)
{
    struct quantize_job j;
    ng_status s = ng_begin(ctx);
    if (!s)
        s = prepare(ctx, "quantize", "dst", op, src, dst, &j);
    if (!s)
        run(ctx, &j, dst);
    return s;
}

/* ---- A matrix and its transpose. ---- */

/* The four places that are written: none may meet another. */
static ng_status check_both_apart(ng_ctx *ctx, const char *call, const ng_tensor *dst,
                                  const ng_tensor *dst_t)
{
    const ng_tensor *t[] = { dst, dst_t };
    struct ng_extent data[2], scale[2];
    for (int i = 0; i < 2; i++) {
        ng_status s = ng_check_tensor(ctx, call, i ? "dst_t" : "dst", t[i], true, &data[i]);
        if (!s)
            s = ng_check_scale(ctx, call, i ? "dst_t" : "dst", t[i], true, &scale[i]);
        if (s)
            return s;
    }
    if (ng_overlap(dst->data, data[0], dst_t->data, data[1]) ||
        ng_overlap(dst->scale, scale[0], dst_t->scale, scale[1]) ||
        ng_overlap(dst->data, data[0], dst_t->scale, scale[1]) ||
        ng_overlap(dst->scale, scale[0], dst_t->data, data[1]))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: dst_t or its scales overlap dst or its scales",
                       call);
    return NG_OK;
}

ng_status ng_quantize_both(ng_ctx *ctx, const ng_quantize_op *op, const ng_tensor *src,
                           ng_tensor *dst, ng_tensor *dst_t)
{
    static const char *const call = "quantize_both";
    struct quantize_job j, jt;
    ng_status s = ng_begin(ctx);
    if (s)
        return s;
    if (src && src->rank != 2)
        return ng_fail(ctx, NG_ERR_SHAPE, "%s: src has rank %u; wanted: a matrix", call,
                       src->rank);
    s = prepare(ctx, call, "dst", op, src, dst, &j);
    if (s)
        return s;
    ng_tensor turned = *src;
    for (int d = 0; d < 2; d++) {
        turned.dim[d] = src->dim[1 - d];
        turned.stride[d] = src->stride[1 - d];
    }
    s = prepare(ctx, call, "dst_t", op, &turned, dst_t, &jt);
    if (!s)
        s = check_both_apart(ctx, call, dst, dst_t);
    if (s)
        return s;
    struct cast_plan p = plan_of(&j), pt = plan_of(&jt);
    if (ng_cast_both(ctx, &p, &pt)) {
        dst->tensor_scale = dst_t->tensor_scale = 0;
        return NG_OK;
    }
    run(ctx, &j, dst);
    run(ctx, &jt, dst_t);
    return NG_OK;
}

/* ---- Scale storage: section 3.3 and 11.5 item 35. Pure moves. ---- */

static int64_t scale_place(ng_scale_store store, int64_t lines, int64_t blocks, int64_t groups,
                           uint32_t offset, int64_t line, int64_t block)
{
    switch (store) {
    case NG_SCALE_LINEAR: return line * blocks + block;
    case NG_SCALE_TRN_SBUF: {
        const int64_t tile = block / groups, g = block % groups;
        return (tile * 128 + 32 * (g / 4) + offset + g % 4) * lines + line;
    }
    case NG_SCALE_SWIZZLE_128X4: {
        const int64_t across = (blocks + 3) / 4;
        return (line / 128 * across + block / 4) * 512 + line % 32 * 16 + line % 128 / 32 * 4 +
               block % 4;
    }
    }
    return 0;
}

static int64_t groups_of(uint32_t tile_rows)
{
    return (tile_rows ? tile_rows : 128) / 8;
}

size_t ng_scale_bytes(ng_scale_store store, int64_t lines, int64_t blocks, uint32_t tile_rows)
{
    const int64_t limit = (int64_t)1 << 40;
    if (lines < 1 || blocks < 1 || lines > limit || blocks > limit / lines || tile_rows > 128 ||
        tile_rows % 8)
        return 0;
    switch (store) {
    case NG_SCALE_LINEAR: return (size_t)(lines * blocks);
    case NG_SCALE_TRN_SBUF: {
        const int64_t groups = groups_of(tile_rows);
        return (size_t)((blocks + groups - 1) / groups * 128 * lines);
    }
    case NG_SCALE_SWIZZLE_128X4:
        return (size_t)((lines + 127) / 128 * ((blocks + 3) / 4) * 512);
    }
    return 0;
}

ng_status ng_scale_move(ng_ctx *ctx, ng_scale_store from, const void *src, ng_scale_store to,
                        void *dst, int64_t lines, int64_t blocks, uint32_t tile_rows,
                        uint32_t offset)
{
    const ng_status s = ng_begin(ctx);
    if (s)
        return s;
    if (!src || !dst)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "scale_move: %s is NULL", src ? "dst" : "src");
    if ((unsigned)from > NG_SCALE_SWIZZLE_128X4 || (unsigned)to > NG_SCALE_SWIZZLE_128X4)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "scale_move: %s is %d, which is no ng_scale_store",
                       (unsigned)from > NG_SCALE_SWIZZLE_128X4 ? "from" : "to",
                       (int)((unsigned)from > NG_SCALE_SWIZZLE_128X4 ? from : to));
    if (offset > 12 || offset % 4)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "scale_move: offset is %u, not 0, 4, 8 or 12",
                       offset);
    const size_t n_src = ng_scale_bytes(from, lines, blocks, tile_rows);
    const size_t n_dst = ng_scale_bytes(to, lines, blocks, tile_rows);
    if (!n_src || !n_dst)
        return ng_fail(
            ctx, NG_ERR_SHAPE,
            "scale_move: %lld lines of %lld blocks with tile_rows %u; wanted: at least 1 "
            "of each, tile_rows a multiple of 8 up to 128",
            (long long)lines, (long long)blocks, tile_rows);
    if (ng_overlap(src, (struct ng_extent){ 0, (int64_t)n_src }, dst,
                   (struct ng_extent){ 0, (int64_t)n_dst }))
        return ng_fail(ctx, NG_ERR_LAYOUT, "scale_move: dst overlaps src");
    const int64_t groups = groups_of(tile_rows);
    const unsigned char *in = src;
    unsigned char *out = dst;
    memset(out, 0, n_dst);
    for (int64_t line = 0; line < lines; line++)
        for (int64_t b = 0; b < blocks; b++)
            out[scale_place(to, lines, blocks, groups, offset, line, b)] =
                in[scale_place(from, lines, blocks, groups, offset, line, b)];
    return NG_OK;
}

/* ---- Evidence: docs/numerics.md 3.1 and 11.5 say who has which rule. ---- */

ng_evidence ng_scale_rule_evidence(ng_scale_rule rule)
{
    switch (rule) {
    case NG_SCALE_FLOOR:
    case NG_SCALE_FLOOR_UP1:
    case NG_SCALE_NVFP4_EXACT: return NG_EVIDENCE_DOCUMENTED; /* the last: that page's own */
    case NG_SCALE_CEIL:
    case NG_SCALE_EVEN:
    case NG_SCALE_RCEIL:
    case NG_SCALE_NVFP4_TE: return NG_EVIDENCE_BACKED;
    }
    return NG_EVIDENCE_ASSUMED;
}

ng_evidence ng_block_special_evidence(ng_block_special special)
{
    return special == NG_BLOCK_SPECIAL_EXPONENT ? NG_EVIDENCE_BACKED : NG_EVIDENCE_ASSUMED;
}
