/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on tensors of any rank and layout, with every source of random words: multiplies of
 * batches, conversions, quantising, functions, sparsity, what a layer has between its
 * multiplies, reductions over ranks.
 */
#include <stdio.h>
#include <string.h>

#include "calls.h"
#include "ng/collective.h"
#include "ng/gemm.h"
#include "ng/layer.h"
#include "ng/quantize.h"
#include "ng/random.h"
#include "ng/sparse.h"

enum {
    MAX_ELEMENTS = 4000,
    MAX_PRODUCTS = 60000,
    MAX_STATES = 200,
    MAX_PLACES = 12 /* elements that are looked at */
};

static struct {
    ng_gemm_op gemm;
    ng_convert_op convert;
    ng_quantize_op quantize;
    ng_elementary_op function;
    ng_sparse_op sparse;
    ng_sparse tags;
    ng_rms_norm_op norm;
    ng_rope_op rope;
    ng_collective collective;
    ng_all_reduce_op reduce;
    char order[80];
    int64_t element[MAX_ELEMENTS];
    ng_random source;
    ng_tensor a, b, c, d, e;
    ng_tensor scale[2]; /* outputs of quantising */
    bool has_c, in_place;
    int bytes; /* number of an output */
    int64_t columns, first, count;
    ng_packed *packed;
    ng_tensor wide; /* of which an operand is made */
    bool of_b;
    uint8_t fp4[16];
    int64_t place[MAX_PLACES][NG_MAX_RANK];
} now;

/* ---- Drawing. ---- */

/* Words for `n` elements in rows of `columns`: there, or drawn on the way. */
static bool draw_source(struct calls *c, int64_t n, ng_random *source)
{
    struct ngc_rng *rng = &c->rng;
    const uint32_t lanes = ngc_one_in(rng, 3) ? 128 : 1 + ngc_below(rng, MAX_STATES);
    *source = (ng_random){ .kind = (ng_random_kind)(1 + ngc_below(rng, 4)),
                           .first = ngc_one_in(rng, 3) ? ngc_below(rng, 5000) : 0,
                           .key = { (uint32_t)ngc_next(rng), (uint32_t)ngc_next(rng) },
                           .lanes = lanes == 128 && ngc_one_in(rng, 2) ? 0 : lanes,
                           .states = ngc_one_in(rng, 2) ? 4 : ngc_below(rng, 2),
                           .poly = (uint32_t)ngc_next(rng) | 0x80000000u,
                           .steps = ngc_below(rng, 33) };
    const bool xorwow = source->kind == NG_RANDOM_XORWOW;
    if (source->kind == NG_RANDOM_PHILOX)
        return true;
    if (source->kind == NG_RANDOM_LFSR32)
        source->states = 0;
    const int64_t words =
        source->kind == NG_RANDOM_EXTERNAL
            ? n + (int64_t)source->first
            : (int64_t)lanes * (xorwow ? 6 * (source->states ? source->states : 1) : 1);
    uint32_t *word = calls_bytes(c, (size_t)words * 4, 4);
    for (int64_t i = 0; word && i < words; i++)
        word[i] = (uint32_t)ngc_next(rng) | (source->kind != NG_RANDOM_EXTERNAL);
    if (!word)
        return false;
    calls_filled(c);
    *(source->kind == NG_RANDOM_EXTERNAL ? &source->word : &source->state) = word;
    source->count = source->kind == NG_RANDOM_EXTERNAL ? words : 0;
    return true;
}

static bool draw_cast(struct calls *c, int64_t n, ng_cast *cast)
{
    struct ngc_rng *rng = &c->rng;
    *cast = (ng_cast){ .round = ngc_one_in(rng, 2) ? NG_ROUND_TIES_TO_EVEN
                                                   : (ng_round)ngc_below(rng, 7),
                       .overflow = (ng_overflow)ngc_below(rng, 3),
                       .nan_sign = (ng_nan_sign)ngc_below(rng, 2),
                       .nan_to = (ng_nan_to)(ngc_one_in(rng, 12) ? 2 : ngc_below(rng, 2)),
                       .sr = (ng_sr)ngc_below(rng, 3),
                       .sr_bits = ngc_one_in(rng, 2) ? 0 : 1 + ngc_below(rng, 32),
                       .sr_take = (ng_sr_take)ngc_below(rng, 2) };
    return cast->round != NG_ROUND_STOCHASTIC || draw_source(c, n, &cast->random);
}

/* Dimensions, mostly one that is long. */
static int64_t draw_dims(struct calls *c, uint32_t rank, int64_t *dim)
{
    int64_t n = 1;
    for (uint32_t d = 0; d < rank; d++) {
        const int64_t most = MAX_ELEMENTS / n;
        dim[d] = 1 + ngc_below(&c->rng, (uint32_t)(ngc_one_in(&c->rng, 3) && most < 600 ? most
                                                   : most < 40                          ? most
                                                                                        : 40));
        n *= dim[d];
    }
    return n;
}

/* The output d and what it is made from: `a`, or d itself. */
static bool place_both(struct calls *c, ng_format from, ng_format to, uint32_t rank,
                       const int64_t *dim)
{
    now.in_place = from == to && ngc_one_in(&c->rng, 2);
    if (!calls_output(c, to, rank, dim, &now.d))
        return false;
    if (now.in_place)
        calls_begin(c, &now.d);
    return now.in_place ||
           calls_values(c, from, rank, dim, ngc_between(&c->rng, -8, 8), &now.a);
}

static const ng_tensor *source_of(const ng_tensor *d)
{
    return now.in_place ? d : &now.a;
}

/* ---- Conversions. ---- */

static bool draw_convert(struct calls *c)
{
    memset(&now, 0, sizeof now);
    int64_t dim[NG_MAX_RANK];
    const uint32_t rank = 1 + ngc_below(&c->rng, NG_MAX_RANK);
    const int64_t n = draw_dims(c, rank, dim);
    const ng_format from = ngc_element_format(&c->rng)->format,
                    to = ngc_one_in(&c->rng, 4) ? from : ngc_element_format(&c->rng)->format;
    now.convert.size = sizeof now.convert;
    now.function.size = sizeof now.function;
    return draw_cast(c, n, &now.convert.cast) && place_both(c, from, to, rank, dim);
}

static ng_status run_convert(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor d = calls_on(c, &now.d);
    return ng_convert(ctx, &now.convert, source_of(&d), &d);
}

static bool draw_function(struct calls *c)
{
    const bool ok = draw_convert(c);
    uint32_t functions = 0;
    while (ng_function_name((ng_function)functions))
        functions++;
    now.function.function = (ng_function)ngc_below(&c->rng, functions);
    now.function.choice.kind = (ng_function_kind)ngc_below(&c->rng, 2);
    now.function.cast = now.convert.cast;
    return ok;
}

static ng_status run_function(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor d = calls_on(c, &now.d);
    return ng_elementary(ctx, &now.function, source_of(&d), &d);
}

static uint32_t draw_block(struct ngc_rng *rng, bool nv)
{
    return nv && !ngc_one_in(rng, 12) ? 16 : ngc_one_in(rng, 2) ? 32 : 1 + ngc_below(rng, 70);
}

/* Scales of an output. */
static bool place_scales(struct calls *c, bool nv, ng_tensor *t, ng_tensor *scale)
{
    struct ngc_rng *rng = &c->rng;
    const uint32_t block = draw_block(rng, nv), axis = ngc_below(rng, t->rank);
    const ng_layout layout =
        block == 32 && t->dim[axis] % 32 == 0 ? (ng_layout)ngc_below(rng, 3) : NG_LAYOUT_LINEAR;
    int64_t dim[NG_MAX_RANK];
    for (uint32_t d = 0; d < t->rank; d++)
        dim[d] = d == axis ? (t->dim[d] + block - 1) / block : t->dim[d];
    if (!calls_output(c, NG_E4M3, t->rank, dim, scale) ||
        ng_tensor_set_scale(t, nv ? NG_UE4M3 : NG_E8M0, scale->data, block, axis, layout))
        return false;
    memcpy(t->scale_stride, scale->stride, sizeof t->scale_stride);
    return true;
}

static ng_format quantized_format(struct calls *c, bool nv)
{
    return nv && !ngc_one_in(&c->rng, 12) ? NG_E2M1 : ngc_element_format(&c->rng)->format;
}

/* For n elements. */
static bool draw_quantize_op(struct calls *c, bool nv, int64_t n)
{
    struct ngc_rng *rng = &c->rng;
    now.quantize = (ng_quantize_op){ .size = sizeof now.quantize,
                                     .rule = (ng_scale_rule)(nv ? 5 + ngc_below(rng, 2)
                                                                : ngc_below(rng, 5)),
                                     .special = (ng_block_special)ngc_below(rng, nv ? 2 : 3) };
    if (nv && ngc_one_in(rng, 3)) /* below what there is, above it */
        now.quantize.tensor_amax = 0x3C000000u + ngc_below(rng, 0x08000000u);
    return draw_cast(c, n, &now.quantize.cast);
}

static bool draw_quantize(struct calls *c, uint32_t rank, bool both)
{
    memset(&now, 0, sizeof now);
    struct ngc_rng *rng = &c->rng;
    int64_t dim[NG_MAX_RANK];
    int64_t n = draw_dims(c, rank, dim);
    if (both || ngc_one_in(rng, 3)) { /* whole blocks */
        const uint32_t d = ngc_below(rng, rank);
        n = n / dim[d] * ((dim[d] + 31) / 32 * 32);
        dim[d] = (dim[d] + 31) / 32 * 32;
    }
    const int64_t turned[] = { dim[1], dim[0] };
    const bool nv = ngc_one_in(rng, 3);
    return draw_quantize_op(c, nv, n) &&
           calls_values(c, ngc_element_format(&c->rng)->format, rank, dim,
                        ngc_between(rng, -8, 8), &now.a) &&
           calls_output(c, quantized_format(c, nv), rank, dim, &now.d) &&
           place_scales(c, nv, &now.d, &now.scale[0]) &&
           calls_output_bytes(c, 2 * sizeof(uint32_t), 4, &now.bytes) &&
           (!both || (calls_output(c, quantized_format(c, nv), 2, turned, &now.e) &&
                      place_scales(c, nv, &now.e, &now.scale[1])));
}

static bool draw_one_quantize(struct calls *c)
{
    return draw_quantize(c, 1 + ngc_below(&c->rng, NG_MAX_RANK), false);
}

static bool draw_both_quantize(struct calls *c)
{
    return draw_quantize(c, 2, true);
}

static ng_tensor scaled_on(const struct calls *c, const ng_tensor *t, const ng_tensor *scale)
{
    ng_tensor d = calls_on(c, t);
    d.scale = calls_on(c, scale).data;
    return d;
}

/* The scales of tensors, which are outputs too. */
static ng_status quantized(const struct calls *c, ng_status s, const ng_tensor *d,
                           const ng_tensor *e)
{
    uint32_t *to = calls_place(c, now.bytes);
    to[0] = d->tensor_scale;
    to[1] = e ? e->tensor_scale : 0;
    return s;
}

static ng_status run_quantize(struct calls *c, ng_ctx *ctx)
{
    ng_tensor d = scaled_on(c, &now.d, &now.scale[0]);
    return quantized(c, ng_quantize(ctx, &now.quantize, &now.a, &d), &d, NULL);
}

static ng_status run_quantize_both(struct calls *c, ng_ctx *ctx)
{
    ng_tensor d = scaled_on(c, &now.d, &now.scale[0]), e = scaled_on(c, &now.e, &now.scale[1]);
    return quantized(c, ng_quantize_both(ctx, &now.quantize, &now.a, &d, &e), &d, &e);
}

static uint32_t draw_tensor_scale(struct ngc_rng *rng)
{
    return ngc_one_in(rng, 2) ? 0
                              : 0x3E000000u + ngc_below(rng, 0x04000000u) +
                                    (ngc_one_in(rng, 8) ? 0x80000000u : 0);
}

static bool draw_dequantize(struct calls *c)
{
    memset(&now, 0, sizeof now);
    struct ngc_rng *rng = &c->rng;
    int64_t dim[NG_MAX_RANK];
    const uint32_t rank = 1 + ngc_below(rng, NG_MAX_RANK), axis = ngc_below(rng, rank);
    int64_t n = draw_dims(c, rank, dim);
    if (ngc_one_in(rng, 3)) { /* whole blocks */
        n = n / dim[axis] * ((dim[axis] + 31) / 32 * 32);
        dim[axis] = (dim[axis] + 31) / 32 * 32;
    }
    const bool nv = ngc_one_in(rng, 3);
    const uint32_t block = draw_block(rng, nv);
    now.convert.size = sizeof now.convert;
    if (!draw_cast(c, n, &now.convert.cast) ||
        !calls_values(c, quantized_format(c, nv), rank, dim, ngc_between(rng, -4, 8), &now.a) ||
        !calls_scales(c, nv ? NG_UE4M3 : NG_E8M0, block, axis, &now.a))
        return false;
    if (block == 32 && dim[axis] % 32 == 0)
        now.a.layout = (ng_layout)ngc_below(rng, 3);
    if (nv)
        now.a.tensor_scale = draw_tensor_scale(rng);
    return calls_output(c, ngc_element_format(&c->rng)->format, rank, dim, &now.d);
}

static ng_status run_dequantize(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor d = calls_on(c, &now.d);
    return ng_dequantize(ctx, &now.convert, &now.a, &d);
}

/* ---- Random words. ---- */

static bool draw_words(struct calls *c)
{
    memset(&now, 0, sizeof now);
    now.columns = 1 + ngc_below(&c->rng, 700);
    now.first = ngc_below(&c->rng, 3000);
    now.count = 1 + ngc_below(&c->rng, MAX_ELEMENTS);
    return draw_source(c, now.first + now.count, &now.source) &&
           calls_output_bytes(c, (size_t)now.count * 4, 4, &now.bytes);
}

static ng_status run_words(struct calls *c, ng_ctx *ctx)
{
    return (now.columns & 1 ? ng_random_words : ng_random_uniform)(
        ctx, &now.source, now.columns, now.first, now.count, calls_place(c, now.bytes));
}

/* ---- Sparsity. ---- */

static bool draw_sparse(struct calls *c)
{
    memset(&now, 0, sizeof now);
    struct ngc_rng *rng = &c->rng;
    const uint32_t rank = 1 + ngc_below(rng, NG_MAX_RANK),
                   back = rank > 1 && ngc_one_in(rng, 2), axis = rank - 1 - back,
                   group = ngc_one_in(rng, 2) ? 4 : 1 + ngc_below(rng, 16);
    int64_t dim[NG_MAX_RANK];
    (void)draw_dims(c, rank, dim);
    dim[axis] = (dim[axis] / group + 1) * group;
    now.sparse =
        (ng_sparse_op){ .size = sizeof now.sparse,
                        .kept =
                            group == 4 && !ngc_one_in(rng, 4) ? 2 : 1 + ngc_below(rng, group),
                        .group = group,
                        .axis = axis,
                        .store = (ng_tag_store)ngc_below(rng, 2),
                        .prune = !ngc_one_in(rng, 4) };
    const ng_format f = ngc_element_format(&c->rng)->format;
    return place_both(c, f, f, rank, dim);
}

static ng_status run_prune(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor d = calls_on(c, &now.d);
    return ng_prune(ctx, &now.sparse, source_of(&d), &d);
}

static int64_t lines_of(const ng_tensor *t, uint32_t axis)
{
    int64_t n = 1;
    for (uint32_t d = 0; d < t->rank; d++)
        n *= d == axis ? 1 : t->dim[d];
    return n;
}

static bool draw_compress(struct calls *c)
{
    if (!draw_sparse(c))
        return false;
    const ng_sparse_op *op = &now.sparse;
    int64_t dim[NG_MAX_RANK];
    memcpy(dim, now.d.dim, sizeof dim);
    dim[op->axis] = dim[op->axis] / op->group * op->kept;
    const int64_t line = (int64_t)ng_tags_bytes(op->store, dim[op->axis]);
    now.sparse.tag_stride = ngc_one_in(&c->rng, 3) ? line + 2 * ngc_below(&c->rng, 5) : 0;
    const int64_t step = now.sparse.tag_stride ? now.sparse.tag_stride : line;
    now.in_place = false; /* the first output is there, and nothing writes to it */
    return calls_values(c, now.d.format, now.d.rank, now.d.dim, 3, &now.a) &&
           calls_output(c, now.d.format, now.d.rank, dim, &now.e) &&
           calls_output_bytes(c, (size_t)(lines_of(&now.d, op->axis) * step), 2, &now.bytes);
}

static ng_status run_compress(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor e = calls_on(c, &now.e);
    return ng_compress(ctx, &now.sparse, &now.a, &e, calls_place(c, now.bytes));
}

/* Compressed and expanded again, into the first output. */
static ng_status run_expand(struct calls *c, ng_ctx *ctx)
{
    const ng_sparse_op *op = &now.sparse;
    ng_tensor e = calls_on(c, &now.e);
    const ng_tensor d = calls_on(c, &now.d);
    const ng_status s = ng_compress(ctx, op, &now.a, &e, calls_place(c, now.bytes));
    const ng_sparse tags = { .kept = (uint8_t)op->kept,
                             .group = (uint8_t)op->group,
                             .store = op->store,
                             .tags = calls_place(c, now.bytes),
                             .tag_stride = op->tag_stride };
    if (s)
        return s;
    e.sparse = &tags;
    return ng_expand(ctx, &e, op->axis, &d);
}

static bool draw_sparse_check(struct calls *c)
{
    return draw_sparse(c) && calls_values(c, now.d.format, now.d.rank, now.d.dim, 3, &now.a) &&
           calls_output_bytes(c, sizeof(ng_sparse_report), 8, &now.bytes);
}

static ng_status run_sparse_check(struct calls *c, ng_ctx *ctx)
{
    ng_sparse_report report = { 0 };
    const ng_status s = ng_sparse_check(ctx, &now.sparse, &now.a, &report);
    int64_t *to = calls_place(c, now.bytes);
    to[0] = report.groups;
    to[1] = report.broken;
    to[2] = report.matrix;
    to[3] = report.line;
    to[4] = report.group;
    return s;
}

/* ---- A layer's rows. ---- */

static bool draw_rows(struct calls *c, bool heads)
{
    memset(&now, 0, sizeof now);
    struct ngc_rng *rng = &c->rng;
    const int64_t d = 2 * (1 + ngc_below(rng, 60)), n = heads ? 1 + ngc_below(rng, 4) : 1,
                  columns = heads ? n * d : 1 + ngc_below(rng, 300),
                  rows = 1 + ngc_below(rng, 20), dim[] = { rows, columns },
                  pairs[] = { rows, d / 2 };
    now.norm =
        (ng_rms_norm_op){ .size = sizeof now.norm,
                          .eps =
                              ngc_one_in(rng, 3) ? 0 : 0x30000000u + ngc_below(rng, 1u << 27),
                          .rsqrt = { .kind = (ng_function_kind)ngc_below(rng, 2) } };
    now.rope = (ng_rope_op){ .size = sizeof now.rope,
                             .pairs = (ng_rope_pairs)ngc_below(rng, 2),
                             .product = calls_wide(c, true) };
    now.has_c = ngc_one_in(rng, 2);
    const ng_format from = calls_wide(c, false),
                    to = ngc_one_in(rng, 2) ? from : calls_wide(c, false);
    return place_both(c, from, to, 2, dim) &&
           (heads ? calls_values(c, calls_wide(c, false), 2, pairs, 0, &now.b) &&
                        calls_values(c, calls_wide(c, false), 2, pairs, 0, &now.c)
                  : calls_values(c, calls_wide(c, false), now.has_c ? 2 : 1,
                                 now.has_c ? dim : dim + 1, 2, &now.b));
}

static bool draw_norm(struct calls *c)
{
    const bool ok = draw_rows(c, false);
    return ok && calls_values(c, calls_wide(c, false), 1, now.d.dim + 1, 1, &now.c);
}

static ng_status run_norm(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor d = calls_on(c, &now.d);
    return ng_rms_norm(ctx, &now.norm, source_of(&d), now.has_c ? &now.c : NULL, &d);
}

static bool draw_add(struct calls *c)
{
    return draw_rows(c, false);
}

static ng_status run_add(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor d = calls_on(c, &now.d);
    return ng_add(ctx, source_of(&d), &now.b, &d);
}

static bool draw_rope(struct calls *c)
{
    return draw_rows(c, true);
}

static ng_status run_rope(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor d = calls_on(c, &now.d);
    return ng_rope(ctx, &now.rope, source_of(&d), &now.b, &now.c, &d);
}

/* ---- Reductions over ranks. ---- */

/* How many ranks the algorithm can have. */
static int64_t draw_ranks(struct ngc_rng *rng, int32_t algorithm, int32_t chip)
{
    switch ((ng_collective_algorithm)algorithm) {
    case NG_ALGORITHM_KANGA_RING: return 2 * (1 + ngc_below(rng, 4));
    case NG_ALGORITHM_MESH: return chip * (1 + (int64_t)ngc_below(rng, 4));
    case NG_ALGORITHM_RDH: return (int64_t)chip << ngc_below(rng, 4);
    default: return 1 + ngc_below(rng, 9);
    }
}

/* Every parameter; the number of ranks. */
static int64_t draw_collective(struct calls *c)
{
    static const ng_format wires[] = { NG_FORMAT_NONE, NG_FORMAT_NONE, NG_F32,
                                       NG_BF16,        NG_F16,         NG_E5M2 };
    struct ngc_rng *rng = &c->rng;
    ng_setting *set = now.collective.set;
    now.collective = *ng_collective_at(ngc_below(rng, 7));
    if (ngc_one_in(rng, 2)) {
        set[NG_COLLECTIVE_ALGORITHM].value = (int32_t)ngc_below(rng, NG_ALGORITHM_REAL + 1);
        set[NG_COLLECTIVE_CHIP].value = 1 + (int32_t)ngc_below(rng, 4);
        set[NG_COLLECTIVE_START].value = (int32_t)ngc_below(rng, 2);
        set[NG_COLLECTIVE_HALVING].value = (int32_t)ngc_below(rng, 2);
        set[NG_COLLECTIVE_RECEIVED].value = (int32_t)ngc_below(rng, 2);
        set[NG_COLLECTIVE_SUM].value = (int32_t)ngc_below(rng, 2);
        set[NG_COLLECTIVE_NAN].value = (int32_t)ngc_below(rng, 2);
        set[NG_COLLECTIVE_CHUNK].value =
            ngc_one_in(rng, 2) ? 0 : 1 + (int32_t)ngc_below(rng, 3000);
    }
    set[NG_COLLECTIVE_WIRE].value = (int32_t)wires[ngc_below(rng, 6)];
    if (ngc_one_in(rng, 6)) /* mostly what kernels do */
        set[NG_COLLECTIVE_ROUND].value = (int32_t)ngc_below(rng, NG_ROUND_STOCHASTIC);
    if (ngc_one_in(rng, 2))
        set[NG_COLLECTIVE_OVERFLOW].value = (int32_t)ngc_below(rng, 3);
    const int32_t algorithm = set[NG_COLLECTIVE_ALGORITHM].value;
    const int64_t ranks = draw_ranks(rng, algorithm, set[NG_COLLECTIVE_CHIP].value);
    if (algorithm >= NG_ALGORITHM_EXPLICIT || !ngc_one_in(rng, 4))
        return ranks;
    set[NG_COLLECTIVE_NODE].value = (int32_t)ranks;
    set[NG_COLLECTIVE_BETWEEN].value = (int32_t)ngc_below(rng, NG_ALGORITHM_EXPLICIT);
    return ranks * draw_ranks(rng, set[NG_COLLECTIVE_BETWEEN].value, 1);
}

static bool draw_reduce(struct calls *c)
{
    memset(&now, 0, sizeof now);
    struct ngc_rng *rng = &c->rng;
    const uint32_t rank = 1 + ngc_below(rng, NG_MAX_RANK - 1);
    int64_t dim[NG_MAX_RANK];
    dim[0] = draw_collective(c);
    const int64_t n = draw_dims(c, rank, dim + 1);
    const int32_t algorithm = now.collective.set[NG_COLLECTIVE_ALGORITHM].value;
    now.reduce =
        (ng_all_reduce_op){ .size = sizeof now.reduce,
                            .collective = &now.collective,
                            .reduction = ngc_one_in(rng, 3) ? (ng_reduction)ngc_below(rng, 3)
                                                            : NG_REDUCTION_SUM };
    for (int64_t i = 0, at = 0; algorithm == NG_ALGORITHM_EXPLICIT && i < dim[0]; i++)
        at += snprintf(now.order + at, sizeof now.order - (size_t)at, "+%d ",
                       (int)(dim[0] % 3 ? 3 * i % dim[0] : i));
    now.reduce.order = algorithm == NG_ALGORITHM_EXPLICIT ? now.order : NULL;
    if (ngc_one_in(rng, 4)) { /* some of a larger buffer, neighbours now and then */
        now.reduce.elements = 2 * MAX_ELEMENTS;
        now.reduce.element = now.element;
        for (int64_t i = 0; i < n; i++)
            now.element[i] =
                i && !ngc_one_in(rng, 3) && now.element[i - 1] + 1 < 2 * MAX_ELEMENTS
                    ? now.element[i - 1] + 1
                    : ngc_below(rng, 2 * MAX_ELEMENTS);
    }
    const ng_format from = ngc_one_in(rng, 2) ? NG_BF16 : ngc_element_format(rng)->format,
                    to = ngc_one_in(rng, 3) ? ngc_element_format(rng)->format : from;
    return draw_cast(c, n, &now.reduce.out) &&
           calls_values(c, from, rank + 1, dim, ngc_between(rng, -8, 8), &now.a) &&
           calls_output(c, to, rank, dim + 1, &now.d);
}

static ng_status run_reduce(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor d = calls_on(c, &now.d);
    return ng_all_reduce(ctx, &now.reduce, &now.a, &d);
}

/* ---- Multiplies of batches. ---- */

/* Formats that a profile multiplies, mostly without scales. */
static void draw_rule(struct calls *c, ng_mode *mode, ng_format *a, ng_format *b)
{
    const ng_profile *p;
    const bool nv = ngc_one_in(&c->rng, 6), trn = ngc_one_in(&c->rng, 2);
    do {
        *a = quantized_format(c, nv);
        *b = ngc_one_in(&c->rng, 2) ? *a : quantized_format(c, nv);
        p = ng_profile_at(ngc_below(&c->rng, 32));
        if (trn && !nv)
            p = ng_profile_find(ngc_one_in(&c->rng, 2) ? "trn3" : "trn2");
        *mode = nv ? NG_MODE_NV : (ng_mode)ngc_below(&c->rng, 4);
    } while (!p || !ng_profile_rule(p, *a, *b, *mode, NULL, 0));
    now.gemm = (ng_gemm_op){ .size = sizeof now.gemm,
                             .profile = p,
                             .double_row = *mode == NG_MODE_DOUBLE_ROW };
    if ((*a != NG_E2M1 && *b != NG_E2M1) || *mode == NG_MODE_NV || !ngc_one_in(&c->rng, 4))
        return;
    for (int i = 0; i < 16; i++)
        now.fp4[i] = (uint8_t)ngc_below(&c->rng, ngc_one_in(&c->rng, 40) ? 256 : 0x78);
    now.gemm.fp4_map = now.fp4;
    now.gemm.fp4_format = ngc_one_in(&c->rng, 2) ? NG_E4M3FN : NG_E5M2;
}

/* What the mode wants of an operand. */
static bool place_blocks(struct calls *c, ng_mode mode, uint32_t axis, ng_tensor *t)
{
    const bool nv = mode == NG_MODE_NV;
    if (mode != NG_MODE_MX && !nv)
        return true;
    if (nv && ngc_one_in(&c->rng, 40)) /* which a multiply refuses */
        t->tensor_scale = 0x40000000u;
    return calls_scales(c, nv ? NG_UE4M3 : NG_E8M0, nv ? 16 : 32, axis, t);
}

/* The same operand in every matrix of a dimension of the batch. */
static void repeat(struct calls *c, ng_tensor *t)
{
    for (uint32_t d = 0; d + 2 < t->rank; d++)
        if (ngc_one_in(&c->rng, 6)) {
            t->stride[d] = 0;
            t->scale_stride[d] = 0;
        }
}

/* What an op says beside its rule, of so many elements of D; and whether there is a C. */
static bool draw_op(struct calls *c, int64_t elements, int64_t k)
{
    struct ngc_rng *rng = &c->rng;
    if (ngc_one_in(rng, 4))
        now.gemm.accumulate = ngc_one_in(rng, 2) ? NG_BF16 : NG_F16;
    if (ngc_one_in(rng, 4))
        now.gemm.out_scale = 0x3E000000u + ngc_below(rng, 0x04000000u);
    now.has_c = ngc_one_in(rng, 3);
    const bool ok = draw_cast(c, elements, &now.gemm.out);
    if (!ok || !ngc_one_in(rng, 4))
        return ok;
    now.gemm.psum.round = NG_ROUND_STOCHASTIC; /* a word for every write of every element */
    now.gemm.psum.sr_bits = ngc_below(rng, 33);
    return draw_source(c, elements * (k + 1) * 4, &now.gemm.psum.random);
}

static bool draw_c(struct calls *c, uint32_t rank, const int64_t *dim)
{
    return !now.has_c || calls_values(c, now.gemm.accumulate ? now.gemm.accumulate : NG_F32,
                                      rank, dim, ngc_between(&c->rng, -6, 6), &now.c);
}

static bool draw_product(struct calls *c, const uint32_t rank)
{
    memset(&now, 0, sizeof now);
    struct ngc_rng *rng = &c->rng;
    const uint32_t e = rank - 2;
    ng_mode mode;
    ng_format a, b;
    draw_rule(c, &mode, &a, &b);
    int64_t dim_a[4], dim_b[4], dim_d[4], m, n, k, batch = 1;
    for (uint32_t i = 0; i < e; i++)
        batch *= dim_a[i] = dim_b[i] = dim_d[i] = 1 + ngc_below(rng, 3);
    do {
        m = 1 + ngc_below(rng, 40);
        n = 1 + ngc_below(rng, 90);
        k = 1 + ngc_below(rng, 300);
    } while (batch * m * n * k > MAX_PRODUCTS);
    if ((mode == NG_MODE_MX || mode == NG_MODE_NV) && !ngc_one_in(rng, 4))
        k = (k + 31) / 32 * 32;
    dim_a[e] = dim_d[e] = m;
    dim_a[e + 1] = dim_b[e] = k;
    dim_b[e + 1] = dim_d[e + 1] = n;
    const ng_format d =
        ngc_one_in(rng, 3) ? ngc_element_format(&c->rng)->format : calls_wide(c, false);
    const bool ok = draw_op(c, batch * m * n, k) &&
                    calls_values(c, a, rank, dim_a, ngc_between(rng, -6, 6), &now.a) &&
                    calls_values(c, b, rank, dim_b, ngc_between(rng, -6, 6), &now.b) &&
                    place_blocks(c, mode, rank - 1, &now.a) &&
                    place_blocks(c, mode, rank - 2, &now.b);
    repeat(c, &now.a);
    repeat(c, &now.b);
    return ok && calls_output(c, d, rank, dim_d, &now.d) && draw_c(c, rank, dim_d);
}

static bool draw_gemm(struct calls *c)
{
    return draw_product(c, 2 + ngc_below(&c->rng, 3));
}

static ng_status run_gemm(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor d = calls_on(c, &now.d);
    return ng_gemm(ctx, &now.gemm, &now.a, &now.b, now.has_c ? &now.c : NULL, &d);
}

/* Some of D's elements, which the reference is asked for one by one. */
static bool draw_element(struct calls *c)
{
    if (!draw_gemm(c))
        return false;
    for (int i = 0; i < MAX_PLACES; i++)
        for (uint32_t d = 0; d < now.d.rank; d++)
            now.place[i][d] = ngc_below(&c->rng, (uint32_t)now.d.dim[d]);
    return calls_output_bytes(c, MAX_PLACES * sizeof(uint32_t), 4, &now.bytes);
}

static ng_status run_element(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor d = calls_on(c, &now.d), *const from = now.has_c ? &now.c : NULL;
    uint32_t *code = calls_place(c, now.bytes);
    ng_status s = run_gemm(c, ctx);
    for (int i = 0; !s && i < MAX_PLACES; i++)
        if (c->side == CALLS_KERNELS)
            code[i] = ng_tensor_get(&d, now.place[i]);
        else
            s = ng_gemm_element(ctx, &now.gemm, false, &now.a, &now.b, from, &d, now.place[i],
                                NULL, code + i);
    return s;
}

/* B packed by the side's own context. */
static bool draw_packed(struct calls *c)
{
    return draw_product(c, 2);
}

static ng_status run_packed(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor d = calls_on(c, &now.d);
    const ng_status s = ng_pack(ctx, &now.gemm, &now.b, now.a.format, &now.packed);
    return s ? s
             : ng_gemm_packed(ctx, &now.gemm, &now.a, now.packed, now.has_c ? &now.c : NULL,
                              &d);
}

/* B quantised and packed; and in two calls, with the reference. */
static bool draw_pack_quantized(struct calls *c)
{
    struct ngc_rng *rng = &c->rng;
    if (!draw_product(c, 2) || !now.b.scale)
        return false;
    const bool nv = now.b.scale_format == NG_UE4M3;
    const int64_t *dim = now.b.dim,
                  scales[] = { (dim[0] + now.b.block - 1) / now.b.block, dim[1] };
    return draw_quantize_op(c, nv, dim[0] * dim[1]) &&
           calls_output(c, now.b.format, 2, dim, &now.e) &&
           calls_output(c, NG_E4M3, 2, scales, &now.scale[0]) &&
           calls_values(c, ngc_element_format(rng)->format, 2, dim, ngc_between(rng, -6, 6),
                        &now.wide);
}

static ng_status run_pack_quantized(struct calls *c, ng_ctx *ctx)
{
    ng_tensor e = calls_on(c, &now.e);
    const ng_tensor scale = calls_on(c, &now.scale[0]), d = calls_on(c, &now.d);
    ng_status s =
        ng_tensor_set_scale(&e, now.b.scale_format, scale.data, now.b.block, 0, now.b.layout);
    memcpy(e.scale_stride, scale.stride, sizeof e.scale_stride);
    if (!s)
        s = ng_quantize(ctx, &now.quantize, &now.wide, &e); /* both: e is an output */
    if (!s && c->side == CALLS_KERNELS)
        s = ng_pack_quantized(ctx, &now.gemm, &now.quantize, &now.wide, &now.b, now.a.format,
                              &now.packed);
    else if (!s)
        s = ng_pack(ctx, &now.gemm, &e, now.a.format, &now.packed);
    return s ? s
             : ng_gemm_packed(ctx, &now.gemm, &now.a, now.packed, now.has_c ? &now.c : NULL,
                              &d);
}

static void close_packed(struct calls *c)
{
    (void)c;
    ng_packed_destroy(now.packed);
    now.packed = NULL;
}

/* One operand compressed first, its tags one line behind the other; K is an operand's last
 * dimension, but B's last but one in a product. */
static bool compress_one(struct calls *c, bool dot)
{
    struct ngc_rng *rng = &c->rng;
    const bool of_b = ngc_one_in(rng, 2);
    ng_tensor *t = of_b ? &now.b : &now.a, *other = of_b ? &now.a : &now.b;
    const uint32_t axis = t->rank - 1 - (of_b && !dot), group = ngc_one_in(rng, 3) ? 8 : 4,
                   kept = group == 4 && !ngc_one_in(rng, 3) ? 2 : 1 + ngc_below(rng, group);
    int64_t dim[NG_MAX_RANK], dense[NG_MAX_RANK];
    memcpy(dim, t->dim, sizeof dim);
    memcpy(dense, t->dim, sizeof dense);
    const int64_t groups = dim[axis] / group;
    if (groups == 0 || t->scale)
        return false;
    dense[axis] = groups * group;
    dim[axis] = groups * kept;
    now.sparse =
        (ng_sparse_op){ .size = sizeof now.sparse,
                        .kept = kept,
                        .group = group,
                        .axis = axis,
                        .store = group > 4 ? NG_TAG_TRN : (ng_tag_store)ngc_below(rng, 2),
                        .prune = true };
    /* the other operand's K, from its beginning */
    other->dim[other->rank - 1 - (!of_b && !dot)] = dense[axis];
    const int64_t line = (int64_t)ng_tags_bytes(now.sparse.store, dim[axis]);
    now.of_b = of_b;
    return calls_values(c, t->format, t->rank, dense, 3, &now.wide) &&
           calls_output(c, t->format, t->rank, dim, &now.e) &&
           calls_output_bytes(c, (size_t)(lines_of(&now.wide, axis) * line), 2, &now.bytes);
}

static bool draw_sparse_gemm(struct calls *c)
{
    return draw_product(c, 2 + ngc_below(&c->rng, 2)) && compress_one(c, false);
}

typedef ng_status multiply_call(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                                const ng_tensor *b, const ng_tensor *c, const ng_tensor *d);

static ng_status run_sparse(struct calls *c, ng_ctx *ctx, multiply_call *multiply)
{
    const ng_sparse_op *op = &now.sparse;
    ng_tensor e = calls_on(c, &now.e);
    const ng_tensor d = calls_on(c, &now.d);
    const ng_status s = ng_compress(ctx, op, &now.wide, &e, calls_place(c, now.bytes));
    const ng_sparse tags = { .kept = op->kept,
                             .group = op->group,
                             .store = op->store,
                             .tags = calls_place(c, now.bytes) };
    e.sparse = &tags;
    return s ? s
             : multiply(ctx, &now.gemm, now.of_b ? &now.a : &e, now.of_b ? &e : &now.b,
                        now.has_c ? &now.c : NULL, &d);
}

static ng_status run_sparse_gemm(struct calls *c, ng_ctx *ctx)
{
    return run_sparse(c, ctx, ng_gemm);
}

static bool draw_dot(struct calls *c)
{
    memset(&now, 0, sizeof now);
    struct ngc_rng *rng = &c->rng;
    ng_mode mode;
    ng_format a, b;
    draw_rule(c, &mode, &a, &b);
    const int64_t dim[] = { 1 + ngc_below(rng, ngc_one_in(rng, 3) ? 200 : 20),
                            1 + ngc_below(rng, 500) };
    const ng_format d =
        ngc_one_in(rng, 3) ? ngc_element_format(&c->rng)->format : calls_wide(c, false);
    const bool ok = draw_op(c, dim[0], dim[1]) &&
                    calls_values(c, a, 2, dim, ngc_between(rng, -6, 6), &now.a) &&
                    calls_values(c, b, 2, dim, ngc_between(rng, -6, 6), &now.b) &&
                    place_blocks(c, mode, 1, &now.a) && place_blocks(c, mode, 1, &now.b);
    for (int i = 0; i < 2; i++)
        if (ngc_one_in(rng, 8)) { /* the same in every row */
            ng_tensor *t = i ? &now.b : &now.a;
            t->stride[0] = 0;
            t->scale_stride[0] = 0;
        }
    return ok && calls_output(c, d, 1, dim, &now.d) && draw_c(c, 1, dim);
}

static ng_status run_dot(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor d = calls_on(c, &now.d);
    return ng_dot(ctx, &now.gemm, &now.a, &now.b, now.has_c ? &now.c : NULL, &d);
}

static bool draw_sparse_dot(struct calls *c)
{
    return draw_dot(c) && compress_one(c, true);
}

static ng_status run_sparse_dot(struct calls *c, ng_ctx *ctx)
{
    return run_sparse(c, ctx, ng_dot);
}

/* ---- Reports. ---- */

static void print_tensor(const char *name, const ng_tensor *t)
{
    if (!t->data)
        return;
    printf("     %s %s", name, ng_format_info(t->format)->text);
    for (uint32_t d = 0; d < t->rank; d++)
        printf(" %lld(%lld)", (long long)t->dim[d], (long long)t->stride[d]);
    if (t->scale)
        printf(", blocks of %u along %u", t->block, t->block_axis);
    printf("\n");
}

static void print_cast(const ng_cast *cast)
{
    printf("     round %d overflow %d nan %d/%d sr %d/%u/%d words %d, first %llu, lanes %u, "
           "states %u\n",
           (int)cast->round, (int)cast->overflow, (int)cast->nan_sign, (int)cast->nan_to,
           (int)cast->sr, cast->sr_bits, (int)cast->sr_take, (int)cast->random.kind,
           (unsigned long long)cast->random.first, cast->random.lanes, cast->random.states);
}

static void print_all(void)
{
    print_tensor("a", &now.a);
    print_tensor("b", &now.b);
    print_tensor("c", &now.c);
    print_tensor("d", &now.d);
    print_tensor("e", &now.e);
    print_tensor("wide", &now.wide);
    if (now.convert.size)
        print_cast(&now.convert.cast);
    if (now.quantize.size)
        print_cast(&now.quantize.cast);
    if (now.sparse.size)
        printf("     %u of %u along %u, store %d\n", now.sparse.kept, now.sparse.group,
               now.sparse.axis, (int)now.sparse.store);
    if (now.reduce.size) {
        char line[512];
        (void)ng_collective_print(&now.collective, line, sizeof line);
        print_cast(&now.reduce.out);
        printf("     reduction %d order %s of %s\n", (int)now.reduce.reduction, now.order,
               line);
    }
    if (!now.gemm.size)
        return;
    print_cast(&now.gemm.out);
    print_cast(&now.gemm.psum);
    printf("     %s, double row %d, accumulate %d, out_scale 0x%08X\n", now.gemm.profile->name,
           now.gemm.double_row, (int)now.gemm.accumulate, now.gemm.out_scale);
}

void ngc_check_calls(struct ngc *run)
{
    static const struct calls_case cases[] = {
        { "gemm", draw_gemm, run_gemm, NULL, print_all },
        { "element", draw_element, run_element, NULL, print_all },
        { "packed", draw_packed, run_packed, close_packed, print_all },
        { "pack_quantized", draw_pack_quantized, run_pack_quantized, close_packed, print_all },
        { "sparse_gemm", draw_sparse_gemm, run_sparse_gemm, NULL, print_all },
        { "dot", draw_dot, run_dot, NULL, print_all },
        { "sparse_dot", draw_sparse_dot, run_sparse_dot, NULL, print_all },
        { "convert", draw_convert, run_convert, NULL, print_all },
        { "function", draw_function, run_function, NULL, print_all },
        { "quantize", draw_one_quantize, run_quantize, NULL, print_all },
        { "quantize_both", draw_both_quantize, run_quantize_both, NULL, print_all },
        { "dequantize", draw_dequantize, run_dequantize, NULL, print_all },
        { "words", draw_words, run_words, NULL, print_all },
        { "prune", draw_sparse, run_prune, NULL, print_all },
        { "compress", draw_compress, run_compress, NULL, print_all },
        { "expand", draw_compress, run_expand, NULL, print_all },
        { "sparse_check", draw_sparse_check, run_sparse_check, NULL, print_all },
        { "norm", draw_norm, run_norm, NULL, print_all },
        { "add", draw_add, run_add, NULL, print_all },
        { "rope", draw_rope, run_rope, NULL, print_all },
        { "reduce", draw_reduce, run_reduce, NULL, print_all },
    };
    calls_walk(run, "tensor", cases, sizeof cases / sizeof cases[0]);
}
