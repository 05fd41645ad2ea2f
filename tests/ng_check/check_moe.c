/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels for mixtures of experts, and between a layer's multiplies, against the reference:
 * every option, numbers with ties and specials, operands of every length around the vectors'
 * between unreadable pages.
 */
#include "ngc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/internal.h"
#include "../../src/ref/ref.h"

enum {
    MOST = 600, /* words of an operand */
    ROOM = 4 * MOST + 4096,
    TOKENS = 19,
    EXPERTS = MOST / TOKENS,
    ENTRIES = 5,
    WORK = 1 << 14
};

typedef enum part {
    ROUTE,
    SETTLE,
    ACT,
    COMBINE,
    ROUTE_BACK,
    ACT_BACK,
    DOTS,
    BLOCK,
    FP8,
    NORM,
    ROPE,
    PARTS
} part;
static const char *const part_name[PARTS] = { "route",      "settle",   "act",  "combine",
                                              "route_back", "act_back", "dots", "block",
                                              "fp8",        "norm",     "rope" };

struct kase {
    const struct ng_moe_kernel *kernel;
    part part;
    ng_function_kind kind;
    char name[120];
};

/* Inputs, the result, and a second one (a routing's indices, another gradient); each lies
 * between unreadable pages. */
static struct {
    struct ngc_mem in[ENTRIES], out, other;
    uint16_t *table;
    uint32_t *work;
} mem;

struct round {
    const struct kase *kase;
    struct ngc_rng rng;
    bool few;   /* values: many are equal */
    bool below; /* none has a clear sign: the largest may be -0 */
    int64_t n, k, tokens;
    ng_route_op route;
    ng_moe_act_op act;
    ng_moe_combine_op combine;
    struct settle_job settle;
    ng_moe_block_op block;
    struct fp8_job fp8;
    ng_rope_op rope;
    bool second, third; /* operands that may be left out */
    int32_t chosen[MOST], slot[MOST];
    uint32_t scalar, weight[ENTRIES], want[MOST];
    int32_t want_other[MOST];
    uint8_t want_code[2 * MOST];
    int64_t words, others; /* of the results */
    const char *wrong;
    int64_t at;
};

/* ---- Drawing. ---- */

static uint32_t draw_any(struct round *r)
{
    static const uint32_t corners[] = { 0,          0x80000000, 0x7F800000, 0xFF800000,
                                        0x7FC00000, 0xFFC00001, 0x7F800001, 1,
                                        0x007FFFFF, 0x7F7FFFFF, 0x40E00000, 0xC0E00000 };
    static const uint32_t equal[] = { 0x3F800000, 0xBF800000, 0x40000000, 0, 0x80000000 };
    const uint32_t sign = ngc_one_in(&r->rng, 2) ? 0x80000000u : 0;
    if (ngc_one_in(&r->rng, 40))
        return corners[ngc_below(&r->rng, (uint32_t)(sizeof corners / sizeof corners[0]))];
    if (r->few)
        return equal[ngc_below(&r->rng, (uint32_t)(sizeof equal / sizeof equal[0]))];
    return ((uint32_t)ngc_next(&r->rng) & 0x03FFFFFFu) + 0x3E000000u + sign;
}

static uint32_t draw_one(struct round *r)
{
    return draw_any(r) | (r->below ? 0x80000000u : 0);
}

static uint32_t *place(struct round *r, struct ngc_mem *m, int64_t n, bool drawn)
{
    if (!ngc_mem_place(m, (size_t)n * 4, 4, !ngc_one_in(&r->rng, 4)))
        return NULL;
    for (int64_t i = 0; drawn && i < n; i++)
        ngc_store(m->data, 32, i, draw_one(r));
    return (uint32_t *)(void *)m->data;
}

static ng_format draw_format(struct round *r)
{
    static const ng_format formats[] = { NG_FORMAT_NONE, NG_F32, NG_BF16 };
    return formats[ngc_below(&r->rng, 3)];
}

static void draw_route(struct round *r, const ng_function_choice *f)
{
    struct ngc_rng *rng = &r->rng;
    r->n = 1 + ngc_below(rng, EXPERTS);
    r->tokens = 1 + ngc_below(rng, TOKENS);
    r->k = 1 + ngc_below(rng, (uint32_t)r->n);
    r->second = ngc_one_in(rng, 2);
    r->route = (ng_route_op){ .size = sizeof r->route,
                              .k = (uint32_t)r->k,
                              .order = (ng_route_order)ngc_below(rng, 3),
                              .act = (ng_route_act)ngc_below(rng, 2),
                              .score = draw_format(r),
                              .exp = *f,
                              .sigmoid = *f,
                              .reciprocal = *f,
                              .softmax_by = (ng_divide)ngc_below(rng, 2),
                              .normalise = ngc_one_in(rng, 2),
                              .normalise_by = (ng_divide)ngc_below(rng, 2),
                              .eps = ngc_one_in(rng, 2) ? 0x3E000000u : 0,
                              .eps_how = (ng_eps)ngc_below(rng, 2),
                              .scale = ngc_one_in(rng, 2) ? 0x40200000u : 0,
                              .mask = (ng_group_mask)ngc_below(rng, 2) };
    const int64_t groups = 1 + ngc_below(rng, 8);
    if (r->n % groups == 0 && r->n / groups >= 2 && !ngc_one_in(rng, 4)) {
        r->route.groups = (uint32_t)groups;
        r->route.top_groups = 1 + ngc_below(rng, (uint32_t)groups);
        r->route.group_top = ngc_below(rng, (uint32_t)(r->n / groups) + 1);
    }
    r->words = r->others = r->tokens * r->k;
}

/* What the backward of a routing is told: k experts of a token, none twice, and what was
 * dropped. */
static void draw_choice(struct round *r)
{
    r->words = r->tokens * r->n;
    r->others = 0;
    for (int64_t t = 0; t < r->tokens; t++) {
        int32_t all[EXPERTS];
        for (int32_t e = 0; e < r->n; e++)
            all[e] = e;
        for (int64_t i = 0; i < r->k; i++) {
            const int64_t at = i + ngc_below(&r->rng, (uint32_t)(r->n - i));
            r->chosen[t * r->k + i] = all[at];
            all[at] = all[i];
        }
    }
    const bool none = ngc_one_in(&r->rng, 8); /* of a token's entries is left */
    for (int64_t i = 0; i < r->tokens * r->k; i++)
        r->slot[i] = none || ngc_one_in(&r->rng, 3) ? -1 : (int32_t)i;
}

/* Rows of a tile: `in` 0 psums, 1 scales of columns, 2 sums, 3 scales of rows. */
static void draw_tile(struct round *r)
{
    r->tokens = 1 + ngc_below(&r->rng, TOKENS);
    r->n = 1 + ngc_below(&r->rng, EXPERTS);
    r->words = r->tokens * r->n;
}

/* A row that becomes FP8: codes of any format that it may have, some of them from far apart. */
static void draw_fp8(struct round *r)
{
    static const ng_format from[] = { NG_F32, NG_F32, NG_F32, NG_BF16, NG_F16, NG_E4M3FN };
    static const ng_format to[] = { NG_E4M3FN, NG_E4M3,     NG_E5M2,
                                    NG_E3M4,   NG_E4M3FNUZ, NG_E5M2FNUZ };
    static const uint32_t least[] = { 0x00800000, 0x3F800000, 0x7E800000, 0x2EDBE6FF };
    struct ngc_rng *rng = &r->rng;
    r->n = 1 + ngc_below(rng, ngc_one_in(rng, 2) ? 2 * MOST : 160);
    r->fp8 = (struct fp8_job){ .from = ng_format_info(from[ngc_below(rng, 6)]),
                               .to = ng_format_info(to[ngc_below(rng, 6)]),
                               .by = (ng_divide)ngc_below(rng, 2),
                               .least = least[ngc_one_in(rng, 3) ? ngc_below(rng, 4) : 0],
                               .block = ngc_one_in(rng, 2)   ? r->n
                                        : ngc_one_in(rng, 2) ? NG_MOE_BLOCK
                                                             : 1 + ngc_below(rng, 200) };
    r->words = (r->n + r->fp8.block - 1) / r->fp8.block; /* scales */
    r->others = 0;                                       /* codes: bytes */
}

/* An element that lies half way between two codes under a scale of `scale`, or the largest that
 * has this scale: a quotient is a tie, a product with the reciprocal is none. */
static uint32_t draw_tie(struct round *r, uint32_t scale, bool largest)
{
    const uint32_t max = ng_num_f32_code(ng_num_decode(r->fp8.to, r->fp8.to->max_code));
    float v = (float)(scale * (2 * ngc_below(&r->rng, 32) + 1)) /
              (float)(1u << ngc_below(&r->rng, 6));
    if (largest) {
        memcpy(&v, &max, sizeof v);
        v *= (float)scale;
    }
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

/* Magnitudes of one scale's elements around one exponent, which may be FP32's least or largest;
 * now and then nothing but zeros, or ties. */
static bool place_fp8(struct round *r)
{
    const struct fp8_job *j = &r->fp8;
    const uint32_t bits = j->from->store_bits;
    if (!ngc_mem_place(&mem.in[0], (size_t)(r->n * bits / 8), bits / 8,
                       !ngc_one_in(&r->rng, 4)) ||
        !ngc_mem_place(&mem.out, (size_t)r->words * 4, 4, !ngc_one_in(&r->rng, 4)) ||
        !ngc_mem_place(&mem.other, (size_t)r->n, 1, !ngc_one_in(&r->rng, 4)))
        return false;
    uint32_t around = 0, kind = 0, scale = 0;
    for (int64_t i = 0; i < r->n; i++) {
        if (i % j->block == 0) {
            around = ngc_below(&r->rng, 256);
            kind = ngc_below(&r->rng, 14);
            scale = 2 * ngc_below(&r->rng, 64) + 3;
        }
        uint32_t u = (uint32_t)ngc_next(&r->rng);
        if (bits == 32 || j->from->format == NG_BF16) { /* fields up to 15 below */
            const uint32_t under = ngc_below(&r->rng, 16);
            u = (u & 0x807FFFFFu) | (around > under ? around - under : 0) << 23;
            if (kind < 5 && (u & 0x7F800000u) == 0x7F800000u)
                u &= ~0x40000000u; /* finite */
            if (kind == 7)
                u &= 0x80000000u;
            if (kind == 6 && ngc_one_in(&r->rng, 3)) /* a few bits: ties */
                u &= 0xFFF00000u;
            if (kind >= 8)
                u = draw_tie(r, scale, i % j->block == 0);
            u >>= 32 - bits;
        }
        ngc_store(mem.in[0].data, bits, i, u & (bits == 32 ? ~0u : (1u << bits) - 1u));
    }
    return true;
}

/* Rows of both operands of the dots. */
static void draw_lines(struct round *r)
{
    r->tokens = r->words = 1 + ngc_below(&r->rng, TOKENS);
    r->n = 1 + ngc_below(&r->rng, EXPERTS);
}

/* Heads of `n` columns, `tokens` of them. */
static void draw_heads(struct round *r)
{
    r->n = 2 * (1 + ngc_below(&r->rng, ngc_one_in(&r->rng, 4) ? MOST / 2 : 40));
    r->tokens = 1 + ngc_below(&r->rng, (uint32_t)(MOST / r->n));
    r->words = r->n * r->tokens;
    r->rope = (ng_rope_op){ .pairs = (ng_rope_pairs)ngc_below(&r->rng, 2),
                            .product = draw_format(r) };
}

/* Words of every input but the first. */
static int64_t rest_of(const struct round *r)
{
    switch (r->kase->part) {
    case ROUTE_BACK: return r->tokens * r->k;
    case DOTS:
    case BLOCK: return r->n * r->tokens;
    case ROPE: return r->n / 2;
    default: return r->n;
    }
}

static bool draw(struct round *r)
{
    const ng_function_choice f = { r->kase->kind, mem.table };
    struct ngc_rng *rng = &r->rng;
    r->few = ngc_one_in(rng, 3);
    r->below = ngc_one_in(rng, 4);
    r->n = r->words = 1 + ngc_below(rng, ngc_one_in(rng, 2) ? 40 : NG_MOE_ACT_MOST);
    r->k = ngc_below(rng, ENTRIES - 1);
    r->tokens = 1;
    r->second = ngc_one_in(rng, 2);
    r->third = ngc_one_in(rng, 2);
    r->scalar = draw_one(r);
    for (int i = 0; i < ENTRIES; i++)
        r->weight[i] = draw_one(r);
    r->act = (ng_moe_act_op){ .size = sizeof r->act,
                              .act = (ng_moe_act)ngc_below(rng, r->second ? 5 : 3),
                              .sigmoid = f,
                              .tanh = f,
                              .alpha = ngc_one_in(rng, 2) ? 0x3F000000u : 0,
                              .limit = ngc_one_in(rng, 2) ? 0x3F800000u : 0 };
    r->combine = (ng_moe_combine_op){ .fused = ngc_one_in(rng, 3),
                                      .product = draw_format(r),
                                      .sum = draw_format(r) };
    r->settle = (struct settle_job){ .row_scaled = ngc_one_in(rng, 2),
                                     .hidden = draw_format(r),
                                     .biased = draw_format(r) };
    r->block = (ng_moe_block_op){ .order = (ng_moe_block_order)ngc_below(rng, 2),
                                  .fused = ngc_one_in(rng, 2) };
    if (r->kase->part == ROUTE || r->kase->part == ROUTE_BACK)
        draw_route(r, &f);
    if (r->kase->part == ROUTE_BACK)
        draw_choice(r);
    if (r->kase->part == ACT_BACK)
        r->others = r->n;
    if (r->kase->part == DOTS)
        draw_lines(r);
    if (r->kase->part == BLOCK)
        draw_tile(r);
    if (r->kase->part == FP8) {
        draw_fp8(r);
        return place_fp8(r);
    }
    if (r->kase->part == ROPE)
        draw_heads(r);
    for (int i = 0; i < ENTRIES; i++)
        if (!place(r, &mem.in[i], i ? rest_of(r) : r->n * r->tokens, true))
            return false;
    return place(r, &mem.out, r->words, false) &&
           (!r->others || place(r, &mem.other, r->others, false));
}

static const uint32_t *input(int i)
{
    return (const uint32_t *)(const void *)mem.in[i].data;
}

/* ---- What the reference says. ---- */

static void expect_tile(struct round *r)
{
    for (int64_t i = 0; i < r->words; i++)
        r->want[i] = ng_ref_moe_block(&r->block, input(0)[i], input(3)[i / r->n],
                                      input(1)[i % r->n], input(2)[i]);
}

static void expect_fp8(struct round *r)
{
    const struct fp8_job *j = &r->fp8;
    static uint32_t v[2 * MOST];
    for (int64_t i = 0; i < r->n; i++)
        v[i] = ng_num_f32_code(
            ng_num_decode(j->from, ngc_load(mem.in[0].data, j->from->store_bits, i)));
    for (int64_t b = 0; b < r->words; b++) {
        const int64_t at = b * j->block, left = r->n - at,
                      n = left < j->block ? left : j->block;
        r->want[b] = ng_ref_fp8_row_scale(j->to, j->by, j->least, n, v + at);
        for (int64_t i = at; i < at + n; i++)
            r->want_code[i] = (uint8_t)ng_ref_fp8_row_element(j->to, j->by, r->want[b], v[i]);
    }
}

static void expect_heads(struct round *r)
{
    const int64_t half = r->n / 2;
    const bool halves = r->rope.pairs == NG_ROPE_HALVES;
    memcpy(r->want, input(0), (size_t)r->words * sizeof *r->want);
    for (int64_t t = 0; t < r->tokens; t++)
        for (int64_t e = 0; e < half; e++) {
            uint32_t *a = r->want + t * r->n + (halves ? e : 2 * e);
            ng_ref_rope_pair(r->rope.product, input(1)[e], input(2)[e], a,
                             a + (halves ? half : 1));
        }
}

static void expect(struct round *r)
{
    const uint32_t *a = input(0), *b = r->second ? input(1) : NULL;
    if (r->kase->part == BLOCK) {
        expect_tile(r);
        return;
    }
    if (r->kase->part == FP8) {
        expect_fp8(r);
        return;
    }
    if (r->kase->part == ROPE) {
        expect_heads(r);
        return;
    }
    if (r->kase->part == ROUTE) {
        const struct route_job j = { &r->route, (int32_t)r->n };
        for (int64_t t = 0; t < r->tokens; t++)
            ng_ref_route(&j, a + t * r->n, b, mem.work, mem.work + r->n,
                         r->want_other + t * r->k, r->want + t * r->k);
        return;
    }
    if (r->kase->part == ROUTE_BACK) {
        const struct route_job j = { &r->route, (int32_t)r->n };
        for (int64_t t = 0; t < r->tokens; t++)
            ng_ref_route_back(&j, a + t * r->n, r->chosen + t * r->k,
                              r->third ? r->slot + t * r->k : NULL, input(1) + t * r->k,
                              mem.work, r->want + t * r->n);
        return;
    }
    for (int64_t t = 0; r->kase->part == DOTS && t < r->tokens; t++)
        r->want[t] = ng_ref_moe_dot(r->n, a + t * r->n, input(1) + t * r->n);
    r->settle.scale = b;
    r->settle.bias = r->third ? input(2) : NULL;
    for (int64_t i = 0; i < r->n; i++) {
        uint32_t o[ENTRIES];
        for (int e = 0; e < r->k; e++)
            o[e] = input(1 + e)[i];
        switch (r->kase->part) {
        case SETTLE: r->want[i] = ng_ref_settle(&r->settle, a[i], r->scalar, i); break;
        case ACT:
            r->want[i] = ng_ref_moe_act(&r->act, b != NULL, a[i], b ? b[i] : 0);
            if (r->third)
                r->want[i] = ng_num_f32_mul(r->want[i], r->scalar);
            break;
        case COMBINE:
            r->want[i] = ng_ref_moe_combine(&r->combine, r->k, r->second ? r->weight : NULL, o,
                                            r->third ? a[i] : 0);
            break;
        case NORM: r->want[i] = ng_ref_rms_element(a[i], r->scalar, b ? b + i : NULL); break;
        case ACT_BACK:
            r->want[i] = ng_ref_moe_gate_back(&r->act, a[i], input(1)[i], input(2)[i]);
            r->want_other[i] = (int32_t)ng_ref_moe_up_back(&r->act, a[i], input(2)[i]);
            break;
        default: break;
        }
    }
}

/* ---- What the kernel says; runs under ngc_catch(). ---- */

/* Of a layer: `third`: in place. */
static void run_layer(const struct round *r, uint32_t *out)
{
    const struct ng_moe_kernel *k = r->kase->kernel;
    const uint32_t *x = input(0);
    if (r->third)
        x = memcpy(out, x, (size_t)r->words * sizeof *out);
    const struct rope_row row = {
        .heads = r->tokens, .d = r->n, .cosine = input(1), .sine = input(2), .x = x, .y = out
    };
    if (r->kase->part == NORM)
        k->norm(r->scalar, r->n, x, r->second ? input(1) : NULL, out);
    else
        k->rope(&r->rope, &row);
}

static void run_kernel(void *arg)
{
    struct round *r = arg;
    const struct ng_moe_kernel *k = r->kase->kernel;
    const uint32_t *a = input(0), *b = r->second ? input(1) : NULL,
                   *o[ENTRIES] = { input(1), input(2), input(3), input(4) };
    uint32_t *out = (uint32_t *)(void *)mem.out.data;
    const uint32_t saved = ng_fp_enter();
    if (r->kase->part == ROUTE) {
        const struct route_job j = { &r->route, (int32_t)r->n };
        const struct route_rows rows = { .tokens = r->tokens,
                                         .logit = a,
                                         .correction = b,
                                         .index = (int32_t *)(void *)mem.other.data,
                                         .weight = out,
                                         .logit_stride = r->n,
                                         .weight_stride = r->k };
        if (k->route_words(&j) > WORK)
            r->wrong = "wants more work memory than expected";
        else
            k->route(&j, &rows, mem.work);
    } else if (r->kase->part == ROUTE_BACK) {
        const struct route_job j = { &r->route, (int32_t)r->n };
        const struct route_back_rows rows = { .tokens = r->tokens,
                                              .logit = a,
                                              .dweight = input(1),
                                              .index = r->chosen,
                                              .slot = r->third ? r->slot : NULL,
                                              .dlogit = out,
                                              .logit_stride = r->n,
                                              .dweight_stride = r->k,
                                              .dlogit_stride = r->n };
        if (k->route_words(&j) > WORK)
            r->wrong = "wants more work memory than expected";
        else
            k->route_back(&j, &rows, mem.work);
    } else if (r->kase->part == ACT_BACK) {
        k->act_back(&r->act, r->n, a, input(1), input(2), out,
                    (uint32_t *)(void *)mem.other.data);
    } else if (r->kase->part == BLOCK) {
        const struct block_tile t = { .rows = r->tokens,
                                      .columns = r->n,
                                      .psum = a,
                                      .row_scale = input(3),
                                      .scale = input(1),
                                      .sum = out,
                                      .psum_step = r->n,
                                      .row_scale_step = 1,
                                      .sum_step = r->n };
        memcpy(out, input(2), (size_t)r->words * sizeof *out);
        k->block(&r->block, &t);
    } else if (r->kase->part == NORM || r->kase->part == ROPE) {
        run_layer(r, out);
    } else if (r->kase->part == FP8) {
        k->fp8(&r->fp8, a, r->n, mem.other.data, out);
    } else if (r->kase->part == DOTS) {
        const uint32_t *x[TOKENS], *y[TOKENS];
        for (int64_t t = 0; t < r->tokens; t++) {
            x[t] = a + t * r->n;
            y[t] = input(1) + t * r->n;
        }
        k->dots(r->tokens, r->n, x, y, out);
    } else if (r->kase->part == SETTLE) {
        /* in two parts: the second begins at a column of its own */
        const int64_t first = r->n / 3;
        if (first)
            k->settle(&r->settle, r->scalar, 0, first, a, out);
        k->settle(&r->settle, r->scalar, first, r->n - first, a + first, out + first);
    } else if (r->kase->part == ACT) {
        k->act(&r->act, r->n, a, b, r->third ? &r->scalar : NULL, out);
    } else {
        const struct combine_row row = { .entries = r->k,
                                         .columns = r->n,
                                         .weight = r->second ? r->weight : NULL,
                                         .begin = r->third ? a : NULL,
                                         .o = o,
                                         .y = out };
        k->combine(&r->combine, &row);
    }
    ng_fp_leave(saved);
}

static void compare(struct round *r, const struct ngc_mem *m, const void *want, int64_t n,
                    uint32_t bits)
{
    for (int64_t i = 0; i < n && !r->wrong; i++)
        if (ngc_load(m->data, bits, i) != ngc_load(want, bits, i)) {
            r->wrong = m == &mem.other ? "differs in its second result" : "differs";
            r->at = i;
        }
    for (size_t i = 1; i <= m->before && !r->wrong; i++)
        if (m->data[-(ptrdiff_t)i] != 0xAA)
            r->wrong = "writes before its result";
    for (size_t i = 0; i < m->after && !r->wrong; i++)
        if (m->data[(size_t)n * bits / 8 + i] != 0xAA)
            r->wrong = "writes past its result";
}

static bool judge(const struct ngc *run, struct round *r, uint32_t round)
{
    for (int i = 0; i < ENTRIES; i++)
        ngc_mem_keep(&mem.in[i]);
    expect(r);
    const int signal = ngc_catch(run_kernel, r);
    if (!signal && r->others)
        compare(r, &mem.other, r->want_other, r->others, 32);
    if (!signal && r->kase->part == FP8)
        compare(r, &mem.other, r->want_code, r->n, 8);
    if (!signal)
        compare(r, &mem.out, r->want, r->words, 32);
    for (int i = 0; i < ENTRIES && !r->wrong; i++)
        if (!ngc_mem_kept(&mem.in[i]))
            r->wrong = "writes to its source";
    if (!signal && !r->wrong)
        return true;
    printf("FAIL %s: n %lld, k %lld, tokens %lld, round %u: %s (element %lld)\n     again: "
           "ng-check --seed %llu --rounds %u '%s'\n",
           r->kase->name, (long long)r->n, (long long)r->k, (long long)r->tokens, round,
           signal ? ngc_signal_text(signal) : r->wrong, (long long)r->at,
           (unsigned long long)run->seed, run->rounds, r->kase->name);
    return false;
}

/* ---- The walk. ---- */

static void run_case(struct ngc *run, const struct kase *c)
{
    static struct round r;
    /* a row, and formats, weights and fused at once: one round in twenty draws a given three */
    const uint32_t rounds = run->rounds * (c->part == COMBINE ? 4 : 1);
    for (uint32_t i = 0; i < rounds; i++) {
        r = (struct round){ .kase = c,
                            .rng = { ngc_hash(c->name, run->seed) + i * UINT64_C(0x51ED27) } };
        run->rounds_run++;
        if (!draw(&r) || !judge(run, &r, i)) {
            run->failed++;
            return;
        }
    }
}

static bool has_functions(part p)
{
    return p == ROUTE || p == ACT || p == ROUTE_BACK || p == ACT_BACK;
}

static void walk_kernel(struct ngc *run, const struct ng_isa *isa)
{
    static const char *const kinds[] = { "cr", "sleef", "table" };
    const struct ngc_walk walk = ngc_begin_walk(run);
    for (int p = 0; p < PARTS; p++)
        for (int k = 0; k < (has_functions((part)p) ? 3 : 1); k++) {
            struct kase c = { .kernel = isa->kernels->moe,
                              .part = (part)p,
                              .kind = (ng_function_kind)k };
            (void)snprintf(c.name, sizeof c.name, "%s/%s/%s", c.kernel->name, part_name[p],
                           kinds[k]);
            if (ngc_begin_case(run, c.name))
                run_case(run, &c);
        }
    if (ngc_walked(run, &walk))
        printf("%s: %u cases\n", isa->kernels->moe->name, ngc_walked(run, &walk));
    ngc_end_walk(run, &walk, isa->kernels->moe->name,
                 ng_pick_moe(isa->bit) == isa->kernels->moe);
}

static bool open_memory(void)
{
    struct ngc_rng rng = { 9 };
    mem.table = malloc(65536 * sizeof *mem.table);
    mem.work = malloc(WORK * sizeof *mem.work);
    if (!mem.table || !mem.work)
        return false;
    for (int i = 0; i < 65536; i++)
        mem.table[i] = (uint16_t)ngc_next(&rng);
    for (int i = 0; i < ENTRIES; i++)
        if (!ngc_mem_open(&mem.in[i], ROOM))
            return false;
    return ngc_mem_open(&mem.out, ROOM) && ngc_mem_open(&mem.other, ROOM);
}

void ngc_check_moe(struct ngc *run)
{
    if (!open_memory()) {
        printf("FAIL: no memory for mixtures of experts\n");
        run->failed++;
        return;
    }
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        if (isa.kernels->moe && ngc_begin_kernel(run, &isa, isa.kernels->moe->name))
            walk_kernel(run, &isa);
    }
    free(mem.table);
    free(mem.work);
}
