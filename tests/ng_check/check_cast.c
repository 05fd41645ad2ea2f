/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversion kernels against the reference, through ng_convert(), ng_quantize() and
 * ng_dequantize() on a context that has only the kernel's ISA. Each round draws formats, rules,
 * a shape at the kernel's seams, strides, block layouts and data; operands end at unreadable
 * pages, and the bytes around and between outputs must stay.
 */
#include "../../src/internal.h"
#include "ngc.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_ELEMENTS = 6000
};

typedef enum what {
    CONVERT,
    QUANTIZE,
    DEQUANTIZE,
    WHATS
} what;
static const char *const what_names[WHATS] = { "convert", "quantize", "dequantize" };

struct kase {
    const struct ng_isa *isa;
    const struct ng_cast_kernel *kernel;
    what op;
    const ng_format_spec *from, *to;
    char name[160];
};

struct round {
    const struct kase *kase;
    struct ngc_rng rng;
    ng_quantize_op quantize;
    ng_convert_op convert;
    ng_tensor src, dst;
    bool ties, calm; /* values near ties; none that is subnormal in the target */
    uint32_t want_tensor_scale;
    ng_ctx *ctx; /* of the run that goes on */
    ng_status status;
    char message[600], kernel[80];
};

static struct {
    struct ngc_mem src, dst, scale, words, want, want_scale;
    bool open;
} mem;

static bool open_memory(void)
{
    const size_t size = (size_t)1 << 20;
    if (!mem.open)
        mem.open = ngc_mem_open(&mem.src, size) && ngc_mem_open(&mem.dst, size) &&
                   ngc_mem_open(&mem.scale, size) && ngc_mem_open(&mem.words, size) &&
                   ngc_mem_open(&mem.want, size) && ngc_mem_open(&mem.want_scale, size);
    return mem.open;
}

/* ---- What is asked for. ---- */

static void draw_cast(struct round *r)
{
    struct ngc_rng *g = &r->rng;
    ng_cast *c = &r->convert.cast;
    const ng_format_spec *to = r->kase->to;
    *c = (ng_cast){ .round = ngc_below(g, 7),
                    .overflow = ngc_below(g, 3),
                    .nan_sign = ngc_below(g, 2),
                    .nan_to = ngc_one_in(g, 8) ? NG_NAN_TO_ERROR : ngc_below(g, 2),
                    .sr = ngc_below(g, 3),
                    .sr_bits = ngc_one_in(g, 3) ? 0 : 1 + ngc_below(g, 32),
                    .sr_take = ngc_below(g, 2) };
    if (ngc_one_in(g, 3)) /* what most calls are */
        *c = (ng_cast){ .round = ngc_below(g, 2) ? NG_ROUND_TIES_TO_EVEN : NG_ROUND_TOWARD_ZERO,
                        .overflow = NG_OVERFLOW_SATURATE };
    if (!to->has_inf && !to->has_nan && c->overflow == NG_OVERFLOW_INF)
        c->overflow = NG_OVERFLOW_SATURATE;
}

/* Dimensions at the seams of 8, 16, 32, 512; sometimes many rows, sometimes one. */
static int64_t draw_length(struct ngc_rng *g)
{
    static const int16_t seams[] = { 1,  2,  7,  8,   15,  16,  17,  31,  32,   33,  63,
                                     64, 65, 96, 128, 511, 512, 513, 544, 1024, 1055 };
    return ngc_one_in(g, 2) ? ngc_between(g, 1, 80)
                            : seams[ngc_below(g, sizeof seams / sizeof seams[0])];
}

static void draw_shape(struct round *r)
{
    struct ngc_rng *g = &r->rng;
    ng_tensor *s = &r->src;
    s->rank = 1 + ngc_below(g, NG_MAX_RANK);
    int64_t n = 1;
    for (uint32_t d = 0; d < s->rank; d++) {
        s->dim[d] = draw_length(g);
        while (n * s->dim[d] > MAX_ELEMENTS)
            s->dim[d] = (s->dim[d] + 1) / 2;
        if (n * s->dim[d] > MAX_ELEMENTS)
            s->dim[d] = 1;
        n *= s->dim[d];
    }
    r->dst.rank = s->rank;
    memcpy(r->dst.dim, s->dim, sizeof s->dim);
}

/* Only a kernel of NVFP4 looks for a tensor's largest magnitude. */
static bool is_nv(const struct kase *k)
{
    return k->kernel->largest != NULL;
}

/* An FP32 pattern of a tensor's scale or maximum: usual, a power of two (many ties), anywhere
 * (subnormals too), at an end. */
static uint32_t draw_constant(struct ngc_rng *g, uint32_t significand)
{
    static const uint32_t ends[] = { 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F000000 };
    switch (ngc_below(g, 5)) {
    case 0: return ends[ngc_below(g, sizeof ends / sizeof ends[0])];
    case 1: return ngc_below(g, 0x7F800000);
    case 2: return (112u + ngc_below(g, 30)) << 23 | ngc_below(g, 0x800000);
    default: return (112u + ngc_below(g, 30)) << 23 | significand;
    }
}

/* A tensor scale under which the product with some scale and element comes as near to a point
 * half way between two of the target's numbers as FP32 allows. */
static uint32_t draw_halfway(struct ngc_rng *g, const ng_format_spec *to)
{
    const uint32_t bits = to->man_bits < 11 ? to->man_bits + 2u : 12u;
    const double point = (double)(1u << (bits - 1) | ngc_below(g, 1u << (bits - 1)) | 1u);
    const float x =
        (float)(point / (double)((8u + ngc_below(g, 8)) * (1u + 2u * ngc_below(g, 2))));
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u - ((bits - 1) << 23);
}

static void draw_nv(struct round *r, ng_tensor *t)
{
    struct ngc_rng *g = &r->rng;
    const bool quantize = r->kase->op == QUANTIZE;
    t->scale_format = NG_UE4M3;
    if (quantize || ngc_one_in(g, 2))
        t->block = 16;
    if (quantize || t->layout == NG_LAYOUT_TRN_WRAP) {
        t->layout = NG_LAYOUT_LINEAR;
        t->block_axis = ngc_below(g, t->rank);
    }
    r->quantize.rule = NG_SCALE_NVFP4_TE + ngc_below(g, 2);
    r->quantize.special = ngc_one_in(g, 20) ? NG_BLOCK_SPECIAL_EXPONENT : ngc_below(g, 2);
    if (quantize && ngc_one_in(g, 2))
        r->quantize.tensor_amax = draw_constant(g, 0x00280000); /* of 2688: 1.3125 */
    if (!quantize && ngc_one_in(g, 8))
        t->scale_format = NG_E8M0;
    if (!quantize && !ngc_one_in(g, 8))
        t->tensor_scale = draw_constant(g, 0) | (ngc_one_in(g, 8) ? 0x80000000u : 0);
    if (!quantize && ngc_one_in(g, 3))
        t->tensor_scale = draw_halfway(g, r->kase->to);
    if (!quantize && ngc_one_in(g, 50))
        t->tensor_scale = ngc_one_in(g, 2) ? 0x7F800000u : 0x80000000u;
}

static void draw_blocks(struct round *r)
{
    static const uint8_t blocks[] = { 32, 32, 32, 32, 16, 64, 1, 3, 10, 128 };
    struct ngc_rng *g = &r->rng;
    ng_tensor *t = r->kase->op == QUANTIZE ? &r->dst : &r->src;
    t->block = ngc_one_in(g, 6) ? 1 + ngc_below(g, 200) : blocks[ngc_below(g, sizeof blocks)];
    t->block_axis = ngc_below(g, t->rank);
    t->scale_format = NG_E8M0;
    t->layout = NG_LAYOUT_LINEAR;
    if (ngc_one_in(g, 4)) {
        t->layout = NG_LAYOUT_TRN_WRAP;
        t->block = 32;
        r->src.dim[t->block_axis] = r->dst.dim[t->block_axis] = 32 * (1 + ngc_below(g, 18));
        for (uint32_t d = 0; d < t->rank; d++)
            if (d != t->block_axis && r->src.dim[d] > 40)
                r->src.dim[d] = r->dst.dim[d] = 40;
    }
    r->quantize.rule = ngc_below(g, 5);
    r->quantize.special = ngc_below(g, 3);
    if (is_nv(r->kase))
        draw_nv(r, t);
}

/* Long runs by the commonest rules, of values near ties: loops of their own in kernels. */
static void draw_long_run(struct round *r)
{
    struct ngc_rng *g = &r->rng;
    const uint32_t last = ngc_below(g, 2);
    r->src.rank = r->dst.rank = last + 1;
    r->src.dim[0] = ngc_between(g, 1, 3);
    r->src.dim[last] = ngc_between(g, 256, 1500);
    memcpy(r->dst.dim, r->src.dim, sizeof r->dst.dim);
    r->convert.cast =
        (ng_cast){ .round = ngc_one_in(g, 4) ? NG_ROUND_TOWARD_ZERO : NG_ROUND_TIES_TO_EVEN,
                   .overflow = NG_OVERFLOW_SATURATE };
    r->ties = true;
    r->calm = ngc_one_in(g, 2);
}

/* Rows of many blocks, as most calls are: loops of their own in kernels. */
static void draw_long_rows(struct round *r)
{
    struct ngc_rng *g = &r->rng;
    const uint32_t last = ngc_below(g, 2);
    r->src.rank = r->dst.rank = last + 1;
    r->src.dim[0] = ngc_between(g, 1, 3);
    r->src.dim[last] = 32 * ngc_between(g, 14, 52);
    if (ngc_one_in(g, 4))
        r->src.dim[last] += ngc_between(g, 1, 31);
    memcpy(r->dst.dim, r->src.dim, sizeof r->dst.dim);
    r->dst.block = 32;
    r->dst.block_axis = last;
    r->dst.layout = NG_LAYOUT_LINEAR;
    r->convert.cast.round = NG_ROUND_TIES_TO_EVEN;
    r->convert.cast.overflow = NG_OVERFLOW_SATURATE;
}

/* Blocks in many columns: loops of their own too. */
static void draw_wide_columns(struct round *r)
{
    struct ngc_rng *g = &r->rng;
    r->src.rank = r->dst.rank = 2;
    r->src.dim[0] = ngc_between(g, 1, 40);
    r->src.dim[1] = 64 * ngc_between(g, 1, 3);
    if (ngc_one_in(g, 4))
        r->src.dim[1] += ngc_between(g, 1, 63);
    memcpy(r->dst.dim, r->src.dim, sizeof r->dst.dim);
    if (ngc_one_in(g, 2))
        r->dst.block = 32;
    r->dst.block_axis = 0;
    r->dst.layout = NG_LAYOUT_LINEAR;
    r->convert.cast.round = NG_ROUND_TIES_TO_EVEN;
    r->convert.cast.overflow = NG_OVERFLOW_SATURATE;
    r->ties = true;
    r->calm = ngc_one_in(g, 2);
}

/* Strides: packed, padded, or with the dimensions in another order. */
static int64_t draw_strides(struct round *r, ng_tensor *t, const ng_format_spec *f, bool packed)
{
    struct ngc_rng *g = &r->rng;
    uint32_t order[NG_MAX_RANK] = { 0, 1, 2, 3 };
    for (uint32_t d = 0; !packed && d < t->rank; d++) {
        const uint32_t e = d + ngc_below(g, t->rank - d), keep = order[d];
        order[d] = order[e];
        order[e] = keep;
    }
    int64_t step = !packed && f->store_bits != 4 && ngc_one_in(g, 4) ? 2 : 1;
    for (uint32_t i = t->rank; i-- > 0;) {
        const uint32_t d = order[i];
        t->stride[d] = step;
        step *= t->dim[d];
        if (!packed && ngc_one_in(g, 3))
            step += ngc_below(g, 5);
        if (f->store_bits == 4)
            step += step & 1;
    }
    return step;
}

/* Some dimensions backwards, from the last place that they had. */
static void turn_back(struct round *r, ng_tensor *t, const ng_format_spec *f)
{
    for (uint32_t d = 0; d < t->rank && f->store_bits >= 8; d++)
        if (ngc_one_in(&r->rng, 12)) {
            const int64_t last = (t->dim[d] - 1) * t->stride[d];
            t->data = (unsigned char *)t->data + last * (f->store_bits / 8);
            t->stride[d] = -t->stride[d];
        }
}

/* Places that the scales reach over, the first of them *at places from their beginning. */
static int64_t draw_scale_strides(struct round *r, ng_tensor *t, int64_t *at)
{
    ng_tensor scales = { .rank = t->rank };
    int64_t n = 1;
    *at = 0;
    for (uint32_t d = 0; d < t->rank; d++)
        n *= scales.dim[d] = d == t->block_axis ? ng_n_blocks(t) : t->dim[d];
    if (!ngc_one_in(&r->rng, 3))
        return n;
    ngc_draw_strides(&r->rng, &scales, 8, at, &n);
    memcpy(t->scale_stride, scales.stride, sizeof t->scale_stride);
    return n;
}

static struct ngc_mood draw_mood(struct round *r)
{
    struct ngc_rng *g = &r->rng;
    const ng_format_spec *f = r->kase->from, *to = r->kase->to;
    struct ngc_mood m = { .spec = f,
                          .zeros = ngc_one_in(g, 2) ? 20 : 0,
                          .special = ngc_one_in(g, 3) ? 30 + ngc_below(g, 300) : 0,
                          .any_code = ngc_one_in(g, 3) };
    const int low = ngc_exp_least(f), high = ngc_exp_most(f);
    int a = ngc_between(g, low, high), b = ngc_between(g, low, high);
    if (ngc_one_in(g, 2)) { /* around what the target can hold */
        a = ngc_exp_least(to) - 3;
        b = ngc_exp_most(to) + 2;
    }
    if (r->calm) { /* normal numbers of the target */
        m.zeros = m.special = 0;
        m.any_code = false;
        a = ngc_exp_normal(to);
        b = ngc_exp_most(to);
    }
    m.low = a < b ? a : b;
    m.high = a < b ? b : a;
    m.low = m.low < low ? low : m.low > high ? high : m.low;
    m.high = m.high > high ? high : m.high < m.low ? m.low : m.high;
    return m;
}

/* Three of four codes half way between two of the target's, or next to that; most binades. */
static uint32_t near_tie(struct ngc_rng *g, const ng_format_spec *f, const ng_format_spec *to,
                         uint32_t code)
{
    if (f->kind == NG_KIND_INT || to->kind == NG_KIND_INT || f->man_bits <= to->man_bits ||
        ngc_one_in(g, 4))
        return code;
    const uint32_t cut = f->man_bits - to->man_bits, half = 1u << (cut - 1);
    const uint32_t low = half + (ngc_one_in(g, 3) ? 1 : 0) - (ngc_one_in(g, 3) ? 1 : 0);
    return (code & ~(((1u << cut) - 1u) << f->low_bits)) | low << f->low_bits;
}

static bool place_data(struct round *r)
{
    struct ngc_rng *g = &r->rng;
    const ng_format_spec *f = r->kase->from, *to = r->kase->to;
    const bool packed = ngc_one_in(g, 2);
    const int64_t ns = draw_strides(r, &r->src, f, packed),
                  nd = draw_strides(r, &r->dst, to, packed || ngc_one_in(g, 2));
    const bool at_end = ngc_one_in(g, 2);
    if (!ngc_mem_place(&mem.src, (size_t)(ns * f->store_bits + 7) / 8, 1, at_end) ||
        !ngc_mem_place(&mem.dst, (size_t)(nd * to->store_bits + 7) / 8, 1, !at_end) ||
        !ngc_mem_place(&mem.want, mem.dst.bytes, 1, !at_end))
        return false;
    r->src.data = mem.src.data;
    r->src.format = f->format;
    r->dst.data = mem.dst.data;
    r->dst.format = to->format;
    turn_back(r, &r->src, f);
    turn_back(r, &r->dst, to);
    const struct ngc_mood mood = draw_mood(r);
    for (int64_t i = 0; i < ns; i++) {
        const uint32_t code =
            mood.any_code && ngc_one_in(g, 2) ? ngc_any_code(g, f) : ngc_code(g, &mood);
        ngc_store(mem.src.data, f->store_bits, i, r->ties ? near_tie(g, f, to, code) : code);
    }
    return true;
}

static bool place_words(struct round *r)
{
    const int64_t n = ng_count(&r->dst);
    if (!ngc_mem_place(&mem.words, 4 * (size_t)n, 4, true))
        return false;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t edge = ngc_below(&r->rng, 8);
        ngc_store(mem.words.data, 32, i,
                  edge == 0   ? 0
                  : edge == 1 ? ~0u
                              : (uint32_t)ngc_next(&r->rng));
    }
    if (ngc_one_in(&r->rng, 3)) { /* drawn in pieces, instead of lying there */
        r->convert.cast.random =
            (ng_random){ .kind = NG_RANDOM_PHILOX,
                         .key = { (uint32_t)ngc_next(&r->rng), (uint32_t)ngc_next(&r->rng) },
                         .first = ngc_below(&r->rng, 1000) };
        return true;
    }
    r->convert.cast.random = (ng_random){ .kind = NG_RANDOM_EXTERNAL,
                                          .word = (const uint32_t *)(void *)mem.words.data,
                                          .count = n };
    return true;
}

static bool place_scales(struct round *r)
{
    struct ngc_rng *g = &r->rng;
    ng_tensor *t = r->kase->op == QUANTIZE ? &r->dst : &r->src;
    int64_t at = 0;
    const size_t n = (size_t)draw_scale_strides(r, t, &at);
    if (!ngc_mem_place(&mem.scale, n, 1, true) || !ngc_mem_place(&mem.want_scale, n, 1, true))
        return false;
    t->scale = mem.scale.data + at;
    const int mood = ngc_between(g, 0, 3);
    for (size_t i = 0; r->kase->op == DEQUANTIZE && i < n; i++)
        mem.scale.data[i] = (uint8_t)(mood == 0           ? ngc_below(g, 256)
                                      : mood == 1         ? 120 + ngc_below(g, 16)
                                      : ngc_one_in(g, 50) ? 0xFF
                                      : mood == 2         ? ngc_below(g, 40)
                                                          : 215 + ngc_below(g, 40));
    return true;
}

/* ---- One round. ---- */

static void call(void *arg)
{
    struct round *r = arg;
    if (r->kase->op == CONVERT)
        r->status = ng_convert(r->ctx, &r->convert, &r->src, &r->dst);
    else if (r->kase->op == DEQUANTIZE)
        r->status = ng_dequantize(r->ctx, &r->convert, &r->src, &r->dst);
    else
        r->status = ng_quantize(r->ctx, &r->quantize, &r->src, &r->dst);
}

/* Runs on the ISAs of `mask`; a signal, or 0. */
static int run_on(struct round *r, uint32_t mask, ng_pool *pool, const ng_executor *executor)
{
    ng_ctx_config config = { .size = sizeof config, .isa_mask = mask };
    if (pool)
        config.executor = *executor;
    if (ng_ctx_create(&config, &r->ctx))
        return -1;
    const uint32_t saved = ngc_fp_get(), hostile = ngc_fp_hostile();
    ngc_fp_set(hostile);
    int signal = ngc_catch(call, r);
    if (!signal && ngc_fp_control(ngc_fp_get()) != ngc_fp_control(hostile))
        signal = -2;
    ngc_fp_set(saved);
    (void)snprintf(r->message, sizeof r->message, "%s", ng_ctx_message(r->ctx));
    (void)snprintf(r->kernel, sizeof r->kernel, "%s", ng_ctx_kernel(r->ctx));
    ng_ctx_destroy(r->ctx);
    return signal;
}

static bool draw(struct round *r)
{
    const what op = r->kase->op;
    r->src = r->dst = (ng_tensor){ 0 };
    r->quantize = (ng_quantize_op){ .size = sizeof r->quantize };
    r->convert = (ng_convert_op){ .size = sizeof r->convert };
    draw_cast(r);
    draw_shape(r);
    if (op != CONVERT)
        draw_blocks(r);
    r->ties = r->calm = false;
    if (op == CONVERT && ngc_one_in(&r->rng, 2))
        draw_long_run(r);
    if (op == QUANTIZE && !is_nv(r->kase) && ngc_one_in(&r->rng, 3))
        draw_long_rows(r);
    else if (op == QUANTIZE && !is_nv(r->kase) && ngc_one_in(&r->rng, 4))
        draw_wide_columns(r);
    if (!place_data(r) || (op != CONVERT && !place_scales(r)) || !place_words(r))
        return false;
    r->quantize.cast = r->convert.cast;
    return true;
}

static void describe(const struct round *r, const struct ngc *run, uint32_t number)
{
    const ng_cast *c = &r->convert.cast;
    const ng_tensor *t = r->kase->op == QUANTIZE ? &r->dst : &r->src;
    printf("  %s  round=%d overflow=%d nan=%d/%d sr=%d/%u/%d rank=%u", r->kase->name, c->round,
           c->overflow, c->nan_sign, c->nan_to, c->sr, c->sr_bits, c->sr_take, r->src.rank);
    for (uint32_t d = 0; d < r->src.rank; d++)
        printf(" %lld(%lld,%lld)", (long long)r->src.dim[d], (long long)r->src.stride[d],
               (long long)r->dst.stride[d]);
    printf(" block=%u axis=%u layout=%d rule=%d special=%d amax=0x%08X scales=%d "
           "tensor_scale=0x%08X\n",
           t->block, t->block_axis, t->layout, r->quantize.rule, r->quantize.special,
           r->quantize.tensor_amax, t->scale_format, t->tensor_scale);
    printf("  again: ng-check --seed %llu --rounds %u -x %s\n", (unsigned long long)run->seed,
           4 * number + 4, r->kase->name);
}

static void show_first(const struct round *r)
{
    int64_t index[NG_MAX_RANK] = { 0 };
    char src[64], got[64], want[64];
    const ng_format_spec *f = r->kase->from, *to = r->kase->to;
    do {
        const int64_t d = ng_offset_at(&r->dst, index);
        const int64_t at = ((unsigned char *)r->dst.data - mem.dst.data) * 8 / to->store_bits;
        const uint32_t x = ngc_load(mem.dst.data, to->store_bits, at + d),
                       y = ngc_load(mem.want.data, to->store_bits, at + d);
        if (x != y) {
            printf("  [%lld %lld %lld %lld] src %s: got %s, want %s\n", (long long)index[0],
                   (long long)index[1], (long long)index[2], (long long)index[3],
                   ngc_text(f,
                            ngc_load(r->src.data, f->store_bits, ng_offset_at(&r->src, index)),
                            src),
                   ngc_text(to, x, got), ngc_text(to, y, want));
            return;
        }
    } while (ng_next_index(&r->dst, index));
}

/* What a run left in dst and its scales becomes what the next must equal; both empty again. */
static void keep_as_wanted(struct round *r)
{
    memcpy(mem.want.data, mem.dst.data, mem.dst.bytes);
    memset(mem.dst.data, 0xAA, mem.dst.bytes);
    if (r->kase->op == QUANTIZE) {
        r->want_tensor_scale = r->dst.tensor_scale;
        r->dst.tensor_scale = 0x12345678;
        memcpy(mem.want_scale.data, mem.scale.data, mem.scale.bytes);
        memset(mem.scale.data, 0xAA, mem.scale.bytes);
    }
}

static const char *fault(struct round *r, ng_pool *pool, const ng_executor *executor)
{
    if (run_on(r, NG_ISA_REF, NULL, NULL))
        return "the reference crashed";
    const ng_status want = r->status;
    keep_as_wanted(r);
    ngc_mem_keep(&mem.src);
    if (run_on(r, r->kase->isa->bit | NG_ISA_REF, pool, executor))
        return "a crash, or a control word that was not given back";
    if (r->status != want)
        return "another status";
    if (!ngc_mem_kept(&mem.src))
        return "src was written to";
    if (!ngc_mem_equal(&mem.dst, &mem.want))
        return "dst, or what lies around it, differs";
    if (r->kase->op == QUANTIZE && !ngc_mem_equal(&mem.scale, &mem.want_scale))
        return "the scales, or what lies around them, differ";
    if (r->kase->op == QUANTIZE && !want && r->dst.tensor_scale != r->want_tensor_scale)
        return "the tensor's scale differs";
    return NULL;
}

static uint32_t run_case(struct ngc *run, const struct kase *c, ng_pool *pool,
                         const ng_executor *executor)
{
    /* there are many cases, and each round is another call */
    const uint32_t rounds = run->rounds / 4 + 1;
    uint32_t took = 0;
    for (uint32_t i = 0; i < rounds; i++) {
        struct round r = { .kase = c, .rng = { ngc_hash(c->name, run->seed + i) } };
        if (!draw(&r))
            continue;
        const char *wrong = fault(&r, ngc_one_in(&r.rng, 4) ? pool : NULL, executor);
        took += strcmp(r.kernel, c->kernel->name) == 0 && !r.status;
        if (!wrong)
            continue;
        printf("FAIL %s: %s (%s)\n", c->name, wrong, r.message);
        describe(&r, run, i);
        show_first(&r);
        run->failed++;
        break;
    }
    run->rounds_run += took;
    return took;
}

/* Conversions without scales, and other elements than e2m1, are not drawn for NVFP4. */
static bool nv_may_take(const struct kase *c)
{
    return c->op == QUANTIZE ? c->to->format == NG_E2M1
                             : c->op == DEQUANTIZE && c->from->store_bits <= 8;
}

static void walk_kernel(struct ngc *run, const struct ng_isa *isa,
                        const struct ng_cast_kernel *k, ng_pool *pool,
                        const ng_executor *executor)
{
    uint64_t took = 0;
    const struct ngc_walk walk = ngc_begin_walk(run);
    for (what op = CONVERT; op < WHATS; op++)
        for (size_t a = 0; ng_format_at(a); a++)
            for (size_t b = 0; ng_format_at(b); b++) {
                struct kase c = { isa, k, op, ng_format_at(a), ng_format_at(b), "" };
                if (is_nv(&c) && !nv_may_take(&c))
                    continue;
                (void)snprintf(c.name, sizeof c.name, "%s/%s/%s/%s", k->name, what_names[op],
                               c.from->text, c.to->text);
                if (ngc_begin_case(run, c.name))
                    took += run_case(run, &c, pool, executor);
            }
    ngc_end_walk(run, &walk, k->name, took > 0);
}

void ngc_check_cast(struct ngc *run)
{
    if (!open_memory()) {
        printf("FAIL: no memory for operands\n");
        run->failed++;
        return;
    }
    ng_pool *pool = NULL;
    ng_executor executor = { 0 };
    if (ng_pool_create(3, &pool, &executor))
        pool = NULL; /* built without threads */
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        if (isa.bit == NG_ISA_REF || !(isa.bit & ng_isa_available()) ||
            !ngc_isa_allowed(run->isas, isa.name))
            continue; /* ngc_check_gemm() has said so */
        for (const struct ng_cast_kernel *const *k = isa.kernels->cast; *k; k++)
            walk_kernel(run, &isa, *k, pool, &executor);
    }
    ng_pool_destroy(pool);
}
