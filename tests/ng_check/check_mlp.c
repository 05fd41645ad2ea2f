/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of mixtures of experts: every option, weights as they are and packed, in any
 * layout, any number of experts.
 */
#include <stdio.h>
#include <string.h>

#include "calls.h"
#include "ng/moe.h"

enum {
    MAX_EXPERTS = 6,
    MAX_K = 4,
    MAX_TOKENS = 40,
    MAX_WIDTH = 300,
    MAX_PRODUCTS =
        200000, /* of a round: what the reference does in a few hundredths of a second */
    ROUTE_NUMBERS = 12000,
    PROJECTIONS = 3
};

/* Of one projection: gate, up, down. */
struct linear {
    ng_moe_linear given;
    ng_tensor weights[MAX_EXPERTS], scale, bias;
    ng_packed *packed[MAX_EXPERTS];
    ng_format format;
    bool blocks, pack;
};

static struct {
    const ng_profile *profile;
    ng_moe_op op;
    ng_route_op route;
    int64_t tokens, h, i, k, experts; /* experts: of this rank */
    ng_tensor x, weights, c, y, other;
    ng_moe_router router;
    ng_tensor router_w, router_b, correction;
    const int32_t *index, *slot;
    bool weighed, gated, has_c, in_place, packs;
    struct linear linear[PROJECTIONS];
    ng_tensor grad[2], grad_w[PROJECTIONS][MAX_EXPERTS];
    ng_tensor bias[2];
    int indices, counts; /* outputs */
} now;

/* ---- Operands of the MLP. ---- */

static ng_format weight_format(struct calls *c, const ng_moe_quant *q, ng_format given)
{
    static const ng_format mx[] = { NG_E2M1, NG_E2M1, NG_E4M3FN, NG_E5M2 },
                           eight[] = { NG_E4M3, NG_E4M3FN, NG_E5M2, NG_E3M4 };
    if (now.op.weights_as || q->how == NG_MOE_MX)
        return calls_one(c, mx, 4);
    if (q->how != NG_MOE_AS_IS)
        return ngc_one_in(&c->rng, 3) ? calls_one(c, eight, 4) : q->format;
    return ngc_one_in(&c->rng, 6) ? calls_wide(c, false) : given;
}

/* `q`, `given`: what is multiplied by it. */
static bool place_linear(struct calls *c, struct linear *l, const ng_moe_quant *q,
                         ng_format given, int64_t k, int64_t n)
{
    struct ngc_rng *rng = &c->rng;
    const bool blocked = q->how == NG_MOE_FP8_BLOCK;
    const int64_t dim[] = { k, n }, experts = now.experts;
    const bool nv = now.op.weights_as && ngc_one_in(rng, 3);
    bool ok = true;
    *l = (struct linear){ .format = weight_format(c, q, given),
                          .blocks =
                              q->how == NG_MOE_MX || (now.op.weights_as && ngc_one_in(rng, 2)),
                          .pack = now.packs && !ngc_one_in(rng, 8) };
    for (int64_t e = 0; e < experts; e++) {
        const ng_format f = ngc_one_in(rng, 12) ? weight_format(c, q, given) : l->format;
        ok = ok && calls_values(c, f, 2, dim, ngc_between(rng, -3, 1), &l->weights[e]) &&
             (!l->blocks ||
              calls_scales(c, nv ? NG_UE4M3 : NG_E8M0, nv ? 16 : 32, 0, &l->weights[e]));
        if (l->blocks && nv && ngc_one_in(rng, 2))
            l->weights[e].tensor_scale = 0x3E000000u + ngc_below(rng, 0x04000000u);
    }
    if (blocked || ngc_one_in(rng, q->how == NG_MOE_FP8_ROW ? 2 : 4)) {
        const int64_t all[] = { experts, blocked ? (k + 127) / 128 : n, (n + 127) / 128 };
        const uint32_t rank = blocked ? 3 : 1 + ngc_below(rng, 2);
        ok = ok && calls_values(c, NG_F32, rank, all, ngc_between(rng, -4, 4), &l->scale);
        l->given.scale = &l->scale;
    }
    if (ngc_one_in(rng, 2)) {
        const int64_t all[] = { experts, n };
        ok = ok && calls_values(c, calls_wide(c, false), 2, all, 0, &l->bias);
        l->given.bias = &l->bias;
    }
    return ok;
}

/* Experts of every token, some none, some twice. */
static bool place_indices(struct calls *c)
{
    const int64_t n = now.tokens * now.k;
    int32_t *index = calls_bytes(c, (size_t)n * sizeof *index, sizeof *index);
    for (int64_t i = 0; index && i < n; i++)
        index[i] =
            ngc_one_in(&c->rng, 12) ? -1 : (int32_t)ngc_below(&c->rng, now.op.dispatch.experts);
    if (index)
        calls_filled(c);
    now.index = index;
    return index != NULL;
}

/* ---- Options of the MLP. ---- */

static void draw_quant(struct calls *c, ng_moe_quant *q)
{
    static const ng_format eight[] = { NG_E4M3, NG_E4M3FN, NG_E5M2, NG_E3M4 },
                           mx[] = { NG_E4M3FN, NG_E4M3FN, NG_E5M2, NG_E2M1 };
    struct ngc_rng *rng = &c->rng;
    *q = (ng_moe_quant){ .how = (ng_moe_operand)ngc_below(rng, 4),
                         .rule = (ng_scale_rule)ngc_below(rng, 5),
                         .special = (ng_block_special)ngc_below(rng, 2),
                         .by = (ng_divide)ngc_below(rng, 2) };
    q->format = calls_one(c, q->how == NG_MOE_MX ? mx : eight, 4);
    if (ngc_one_in(rng, 4))
        q->scale_min = 0x3C000000u + ngc_below(rng, 0x04000000u);
    if (now.op.weights_as && !ngc_one_in(rng, 8))
        q->how = NG_MOE_AS_IS;
}

static void draw_dispatch(struct calls *c)
{
    struct ngc_rng *rng = &c->rng;
    const uint32_t ranks = 1 + ngc_one_in(rng, 6), local = 1 + ngc_below(rng, MAX_EXPERTS);
    ng_dispatch_op *d = &now.op.dispatch;
    now.experts = local;
    *d = (ng_dispatch_op){ .size = sizeof *d,
                           .experts = local * ranks,
                           .k = (uint32_t)now.k,
                           .block = ngc_one_in(rng, 3) ? 1 + ngc_below(rng, 20) : 0,
                           .ranks = ranks,
                           .rank = ngc_below(rng, ranks) };
    if (!ngc_one_in(rng, 4))
        return;
    d->mode = NG_DISPATCH_CAPACITY;
    d->block = 0;
    if (ngc_one_in(rng, 2))
        d->capacity = 1 + ngc_below(rng, (uint32_t)now.tokens);
    else
        d->factor = 0x3E800000u + ngc_below(rng, 0x02000000u);
}

static void draw_act(struct calls *c, ng_moe_act_op *act)
{
    struct ngc_rng *rng = &c->rng;
    *act = (ng_moe_act_op){
        .size = sizeof *act,
        .act = (ng_moe_act)ngc_below(rng, now.gated ? 5 : 3),
        .alpha = ngc_one_in(rng, 4) ? 0x3F000000u + ngc_below(rng, 0x01800000u) : 0,
        .limit = ngc_one_in(rng, 4) ? 0x3F000000u + ngc_below(rng, 0x02800000u) : 0,
        .biased = calls_wide(c, true)
    };
    if (ngc_one_in(rng, 4))
        act->sigmoid.kind = act->tanh.kind = NG_FUNCTION_SLEEF;
}

static void draw_combine(struct calls *c, ng_moe_combine_op *op)
{
    *op = (ng_moe_combine_op){ .size = sizeof *op,
                               .order = (ng_moe_combine_order)ngc_below(&c->rng, 2),
                               .fused = ngc_one_in(&c->rng, 3),
                               .product = calls_wide(c, true),
                               .sum = calls_wide(c, true) };
    if (op->fused && !ngc_one_in(&c->rng, 8))
        op->product = NG_FORMAT_NONE;
}

static void draw_op(struct calls *c)
{
    struct ngc_rng *rng = &c->rng;
    ng_moe_op *op = &now.op;
    *op =
        (ng_moe_op){ .size = sizeof *op,
                     .gemm = { .size = sizeof op->gemm,
                               .profile = now.profile,
                               .double_row = ngc_one_in(rng, 8),
                               .accumulate = ngc_one_in(rng, 8) ? NG_BF16 : NG_F32 },
                     .weights_as = ngc_one_in(rng, 6) ? calls_wide(c, false) : NG_FORMAT_NONE,
                     .hidden = calls_wide(c, true),
                     .middle = calls_wide(c, true),
                     .expert_out = calls_wide(c, true),
                     .affinity = (ng_moe_affinity)(ngc_one_in(rng, 2) ? 0 : ngc_below(rng, 3)),
                     .blocks = { .order = (ng_moe_block_order)ngc_below(rng, 2),
                                 .fused = ngc_one_in(rng, 2) } };
    draw_act(c, &op->act);
    draw_combine(c, &op->combine);
    draw_quant(c, &op->x);
    draw_quant(c, &op->quant);
}

static void draw_profile(struct calls *c)
{
    do {
        now.profile = ng_profile_at(ngc_below(&c->rng, 32));
    } while (!now.profile);
    if (ngc_one_in(&c->rng, 2)) /* they have most kernels */
        now.profile = ng_profile_find(ngc_one_in(&c->rng, 2) ? "trn3" : "trn2");
}

/* About a seam of vectors, panels and blocks, or any width. */
static int64_t draw_width(struct ngc_rng *rng, bool mx)
{
    static const int64_t seams[] = { 1, 16, 31, 32, 33, 64, 96, 127, 128, 129, 160, 256, 257 };
    const int64_t w =
        ngc_one_in(rng, 2) ? seams[ngc_below(rng, 13)] : 1 + ngc_below(rng, MAX_WIDTH);
    return mx && !ngc_one_in(rng, 6) ? (w + 31) / 32 * 32 : w;
}

static void draw_shape(struct calls *c, int64_t products)
{
    const bool mx = now.op.x.how == NG_MOE_MX || now.op.quant.how == NG_MOE_MX;
    do {
        now.h = draw_width(&c->rng, mx);
        now.i = draw_width(&c->rng, mx);
    } while (now.h * now.i * PROJECTIONS * MAX_K > products);
    while (now.tokens > 1 && now.tokens * now.k * now.h * now.i * PROJECTIONS > products)
        now.tokens /= 2;
    if (now.op.dispatch.capacity > now.tokens)
        now.op.dispatch.capacity = now.tokens;
}

static ng_format middle_format(void)
{
    return now.op.middle ? now.op.middle : NG_BF16;
}

static bool place_tokens(struct calls *c, ng_format from)
{
    const int64_t dim[] = { now.tokens, now.h }, dim_w[] = { now.tokens, now.k };
    struct ngc_rng *rng = &c->rng;
    now.weighed = now.op.affinity != NG_MOE_AFFINITY_AFTER || !ngc_one_in(rng, 4);
    return calls_values(c, from, 2, dim, ngc_between(rng, -4, 3), &now.x) &&
           calls_values(c, calls_wide(c, false), 2, dim_w, -1, &now.weights) &&
           place_indices(c);
}

/* y, and what its sums begin with: nothing, another matrix, or y itself. */
static bool place_sums(struct calls *c, const int64_t *dim)
{
    bool ok = calls_output(c, calls_wide(c, false), 2, dim, &now.y);
    now.has_c = ngc_one_in(&c->rng, 3);
    now.in_place = now.has_c && ngc_one_in(&c->rng, 2);
    if (ok && now.has_c && !now.in_place)
        ok = calls_values(c, calls_wide(c, false), 2, dim, 0, &now.c);
    if (ok && now.in_place)
        calls_begin(c, &now.y);
    return ok;
}

/* What place_sums() drew. */
static const ng_tensor *sums_from(const ng_tensor *y)
{
    return now.in_place ? y : now.has_c ? &now.c : NULL;
}

static bool draw_mlp(struct calls *c)
{
    struct ngc_rng *rng = &c->rng;
    memset(&now, 0, sizeof now);
    now.gated = !ngc_one_in(rng, 4);
    now.packs = ngc_one_in(rng, 2);
    draw_profile(c);
    now.tokens = ngc_one_in(rng, 3) ? 1 : 1 + ngc_below(rng, MAX_TOKENS);
    now.k = 1 + ngc_below(rng, MAX_K);
    draw_op(c);
    draw_dispatch(c);
    draw_shape(c, MAX_PRODUCTS);
    const ng_format from = calls_wide(c, false);
    struct linear *l = now.linear;
    return place_tokens(c, from) && place_linear(c, &l[0], &now.op.x, from, now.h, now.i) &&
           (!now.gated || place_linear(c, &l[1], &now.op.x, from, now.h, now.i)) &&
           place_linear(c, &l[2], &now.op.quant, middle_format(), now.i, now.h) &&
           place_sums(c, now.x.dim);
}

/* ---- Running the MLP. ---- */

/* The projection as this side has it: packed by its own context. */
static ng_status open_side(ng_ctx *ctx, struct linear *l, const ng_moe_quant *q,
                           ng_format given)
{
    const ng_format a = q->how == NG_MOE_AS_IS ? given : q->format;
    ng_status s = NG_OK;
    l->given.weights = l->pack ? NULL : l->weights;
    l->given.packed = l->pack ? (const ng_packed *const *)l->packed : NULL;
    for (int64_t e = 0; !s && l->pack && e < now.experts; e++)
        s = q->how == NG_MOE_FP8_BLOCK
                ? ng_moe_pack_blocks(ctx, &now.op.gemm, &l->weights[e], a, &l->packed[e])
                : ng_pack(ctx, &now.op.gemm, &l->weights[e], a, &l->packed[e]);
    return s;
}

/* All projections. */
static ng_status open_sides(ng_ctx *ctx, ng_moe_experts *all)
{
    struct linear *l = now.linear;
    ng_status s = open_side(ctx, &l[0], &now.op.x, now.x.format);
    if (!s && now.gated)
        s = open_side(ctx, &l[1], &now.op.x, now.x.format);
    if (!s)
        s = open_side(ctx, &l[2], &now.op.quant, middle_format());
    *all = (ng_moe_experts){ l[0].given, l[1].given, l[2].given };
    return s;
}

static ng_status run_mlp(struct calls *c, ng_ctx *ctx)
{
    ng_moe_experts all;
    const ng_tensor y = calls_on(c, &now.y);
    const ng_status s = open_sides(ctx, &all);
    return s ? s
             : ng_moe_mlp(ctx, &now.op, &all, &now.x, now.index,
                          now.weighed ? &now.weights : NULL, sums_from(&y), &y);
}

static void close_mlp(struct calls *c)
{
    (void)c;
    for (int i = 0; i < PROJECTIONS; i++)
        for (int e = 0; e < MAX_EXPERTS; e++) {
            ng_packed_destroy(now.linear[i].packed[e]);
            now.linear[i].packed[e] = NULL;
        }
}

static void print_mlp(void)
{
    const ng_moe_op *op = &now.op;
    printf("     %s: tokens %lld h %lld i %lld k %lld experts %u, x %s by %d, middle by %d, "
           "double row %d, accumulate %s, act %d, affinity %d\n",
           now.profile->name, (long long)now.tokens, (long long)now.h, (long long)now.i,
           (long long)now.k, op->dispatch.experts, ng_format_info(now.x.format)->text,
           (int)op->x.how, (int)op->quant.how, op->gemm.double_row,
           ng_format_info(op->gemm.accumulate)->text, (int)op->act.act, (int)op->affinity);
    for (int i = 0; i < PROJECTIONS; i++) {
        const struct linear *l = &now.linear[i];
        if (l->format)
            printf("     %d: weights %s%s%s%s%s\n", i, ng_format_info(l->format)->text,
                   l->blocks ? " in blocks" : "", l->pack ? ", packed" : "",
                   l->given.scale ? ", scaled" : "", l->given.bias ? ", biased" : "");
    }
}

/* ---- Its backward. ---- */

static bool draw_mlp_back(struct calls *c)
{
    struct ngc_rng *rng = &c->rng;
    memset(&now, 0, sizeof now);
    now.gated = true;
    draw_profile(c);
    now.tokens = 1 + ngc_below(rng, MAX_TOKENS / 2);
    now.k = 1 + ngc_below(rng, MAX_K);
    draw_op(c);
    ng_moe_op *op = &now.op;
    if (!ngc_one_in(rng, 12)) { /* what has a backward */
        op->act.act = NG_MOE_SWIGLU;
        op->affinity = NG_MOE_AFFINITY_AFTER;
        op->x.how = op->quant.how = NG_MOE_AS_IS;
        op->weights_as = NG_FORMAT_NONE;
        op->gemm.double_row = false;
    }
    draw_dispatch(c);
    draw_shape(c, MAX_PRODUCTS / 8);
    const ng_format from = calls_wide(c, false);
    const int64_t dim[] = { now.tokens, now.h }, dim_w[] = { now.tokens, now.k };
    bool ok = place_tokens(c, from) &&
              calls_values(c, calls_wide(c, false), 2, dim, ngc_between(rng, -4, 3), &now.c) &&
              calls_output(c, calls_wide(c, false), 2, dim, &now.grad[0]) &&
              calls_output(c, calls_wide(c, false), 2, dim_w, &now.grad[1]);
    for (int i = 0; i < PROJECTIONS; i++) {
        const int64_t all[] = { i < 2 ? now.h : now.i, i < 2 ? now.i : now.h };
        const ng_format f = i < 2 ? from : middle_format();
        for (int64_t e = 0; e < now.experts; e++)
            ok = ok &&
                 calls_values(c, f, 2, all, ngc_between(rng, -3, 1), &now.linear[i].weights[e]);
        /* one of them at a time: outputs are few */
        for (int64_t e = 0; i == (int)(now.h % PROJECTIONS) && e < now.experts; e++)
            ok = ok && calls_output(c, calls_wide(c, false), 2, all, &now.grad_w[i][e]);
        now.linear[i].given.weights = now.linear[i].weights;
    }
    return ok;
}

static ng_status run_mlp_back(struct calls *c, ng_ctx *ctx)
{
    const struct linear *l = now.linear;
    const int wanted = (int)(now.h % PROJECTIONS);
    ng_tensor grad[2], grad_w[MAX_EXPERTS];
    for (int i = 0; i < 2; i++)
        grad[i] = calls_on(c, &now.grad[i]);
    for (int64_t e = 0; e < now.experts; e++)
        grad_w[e] = calls_on(c, &now.grad_w[wanted][e]);
    const ng_moe_experts all = { l[0].given, l[1].given, l[2].given };
    const ng_moe_gradients to = { &grad[0], now.weighed ? &grad[1] : NULL,
                                  wanted == 0 ? grad_w : NULL, wanted == 1 ? grad_w : NULL,
                                  wanted == 2 ? grad_w : NULL };
    return ng_moe_mlp_backward(ctx, &now.op, &all, &now.x, now.index,
                               now.weighed ? &now.weights : NULL, &now.c, &to);
}

/* ---- Routing: from a vector of experts to what a kernel takes and more. ---- */

/* Of now.experts, now.k of them. */
static void draw_route_op(struct calls *c, int64_t e)
{
    struct ngc_rng *rng = &c->rng;
    ng_route_op *op = &now.route;
    *op = (ng_route_op){ .size = sizeof *op,
                         .k = (uint32_t)now.k,
                         .order = (ng_route_order)ngc_below(rng, 3),
                         .act = (ng_route_act)ngc_below(rng, 2),
                         .score = calls_wide(c, true),
                         .softmax_by = (ng_divide)ngc_below(rng, 2),
                         .normalise = ngc_one_in(rng, 2),
                         .normalise_by = (ng_divide)ngc_below(rng, 2),
                         .eps_how = (ng_eps)ngc_below(rng, 2),
                         .mask = (ng_group_mask)ngc_below(rng, 2) };
    if (ngc_one_in(rng, 3))
        op->eps = 1 + ngc_below(rng, 0x7F7FFFFF);
    if (ngc_one_in(rng, 3))
        op->scale =
            0x3E000000u + ngc_below(rng, 0x04000000u) + (ngc_one_in(rng, 4) ? 0x80000000u : 0);
    if (ngc_one_in(rng, 4))
        op->exp.kind = op->sigmoid.kind = op->reciprocal.kind = NG_FUNCTION_SLEEF;
    const int64_t groups = 1 + ngc_below(rng, 64);
    if (e % groups == 0 && ngc_one_in(rng, 2)) {
        op->groups = (uint32_t)groups;
        op->top_groups = 1 + ngc_below(rng, (uint32_t)groups);
        op->group_top = 1 + ngc_below(rng, (uint32_t)(e / groups));
    }
}

/* A token's indices and weights, an expert's count. */
static bool place_routed(struct calls *c)
{
    const int64_t dim[] = { now.tokens, now.k };
    return calls_output(c, calls_wide(c, false), 2, dim, &now.y) &&
           calls_output_bytes(c, (size_t)(now.tokens * now.k) * 4, 4, &now.indices) &&
           calls_output_bytes(c, (size_t)now.experts * 8, 8, &now.counts);
}

static bool draw_route(struct calls *c)
{
    struct ngc_rng *rng = &c->rng;
    memset(&now, 0, sizeof now);
    const int64_t e = ngc_one_in(rng, 3) ? 1 + ngc_below(rng, 40) : 1 + ngc_below(rng, 1100),
                  most = ROUTE_NUMBERS / e;
    now.experts = e;
    now.tokens = 1 + ngc_below(rng, (uint32_t)(most < MAX_TOKENS ? most : MAX_TOKENS));
    const uint32_t few = e < 16 ? (uint32_t)e : 16;
    now.k = 1 + ngc_below(rng, ngc_one_in(rng, 6) ? (uint32_t)e : few);
    draw_route_op(c, e);
    const int64_t dim[] = { now.tokens, e };
    now.has_c = ngc_one_in(rng, 3); /* a correction */
    return calls_values(c, calls_wide(c, false), 2, dim, ngc_between(rng, -4, 7), &now.x) &&
           (!now.has_c || calls_values(c, calls_wide(c, false), 1, dim + 1, -1, &now.c)) &&
           place_routed(c);
}

static ng_status run_route(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor y = calls_on(c, &now.y);
    return ng_route(ctx, &now.route, &now.x, now.has_c ? &now.c : NULL,
                    calls_place(c, now.indices), &y, calls_place(c, now.counts));
}

/* ---- The router: logits, then routing. ---- */

/* Of now.tokens tokens of now.h, `e` experts: what multiplies them. */
static bool place_router(struct calls *c, int64_t e)
{
    struct ngc_rng *rng = &c->rng;
    ng_moe_router *r = &now.router;
    const int64_t dim[] = { now.h, e };
    *r = (ng_moe_router){ .gemm = { .size = sizeof r->gemm,
                                    .profile = now.profile,
                                    .accumulate = ngc_one_in(rng, 8) ? NG_BF16 : NG_F32 },
                          .route = now.route,
                          .logits = calls_wide(c, true),
                          .weights = calls_wide(c, true),
                          .w = &now.router_w,
                          .b = ngc_one_in(rng, 2) ? &now.router_b : NULL,
                          .correction = ngc_one_in(rng, 3) ? &now.correction : NULL };
    const ng_format w = ngc_one_in(rng, 4) ? calls_wide(c, false) : now.x.format;
    return calls_values(c, w, 2, dim, ngc_between(rng, -4, 1), &now.router_w) &&
           calls_values(c, calls_wide(c, false), 1, dim + 1, 0, &now.router_b) &&
           calls_values(c, calls_wide(c, false), 1, dim + 1, -1, &now.correction);
}

static bool draw_router(struct calls *c)
{
    struct ngc_rng *rng = &c->rng;
    memset(&now, 0, sizeof now);
    draw_profile(c);
    const int64_t e = 1 + ngc_below(rng, ngc_one_in(rng, 4) ? 600 : 64),
                  most = ROUTE_NUMBERS / e;
    now.experts = e;
    now.tokens = 1 + ngc_below(rng, (uint32_t)(most < MAX_TOKENS ? most : MAX_TOKENS));
    now.k = 1 + ngc_below(rng, e < 16 ? (uint32_t)e : 16);
    now.h = draw_width(rng, false);
    while (now.tokens > 1 && now.tokens * now.h * e > MAX_PRODUCTS)
        now.tokens /= 2;
    draw_route_op(c, e);
    const int64_t dim[] = { now.tokens, now.h }, dim_l[] = { now.tokens, e };
    return calls_values(c, calls_wide(c, false), 2, dim, ngc_between(rng, -4, 3), &now.x) &&
           place_router(c, e) && calls_output(c, calls_wide(c, false), 2, dim_l, &now.other) &&
           place_routed(c);
}

static ng_status run_router(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor y = calls_on(c, &now.y), logits = calls_on(c, &now.other);
    const ng_moe_router *r = &now.router;
    return ng_router(ctx, &r->gemm, &r->route, &now.x, r->w, r->b, &logits, r->correction,
                     calls_place(c, now.indices), &y, calls_place(c, now.counts));
}

/* ---- All of it. ---- */

static bool draw_moe(struct calls *c)
{
    if (!draw_mlp(c))
        return false;
    const int64_t e = now.op.dispatch.experts;
    if (now.k > e) /* a router chooses none twice */
        now.op.dispatch.k = (uint32_t)(now.k = e);
    draw_route_op(c, e);
    return place_router(c, e);
}

static ng_status run_moe(struct calls *c, ng_ctx *ctx)
{
    ng_moe_experts all;
    const ng_tensor y = calls_on(c, &now.y);
    const ng_status s = open_sides(ctx, &all);
    return s ? s : ng_moe(ctx, &now.op, &now.router, &all, &now.x, sums_from(&y), &y);
}

/* k experts of every token, none twice; some entries dropped. */
static bool place_choice(struct calls *c)
{
    const int64_t n = now.tokens * now.k, e = now.experts;
    int32_t *index = calls_bytes(c, (size_t)n * 4, 4);
    for (int64_t i = 0; index && i < n;
         i++) { /* steps that meet all experts before one again */
        const int64_t first = i / now.k * now.k;
        index[i] = i == first ? (int32_t)ngc_below(&c->rng, (uint32_t)e)
                              : (int32_t)((index[i - 1] + 1) % e);
    }
    if (!index)
        return false;
    calls_filled(c);
    int32_t *slot = calls_bytes(c, (size_t)n * 4, 4);
    for (int64_t i = 0; slot && i < n; i++)
        slot[i] = ngc_one_in(&c->rng, 4) ? -1 : (int32_t)i;
    if (!slot)
        return false;
    calls_filled(c);
    now.index = index;
    now.slot = ngc_one_in(&c->rng, 2) ? slot : NULL;
    return true;
}

static bool draw_route_back(struct calls *c)
{
    if (!draw_route(c))
        return false;
    const int64_t dim[] = { now.tokens, now.experts }, dim_w[] = { now.tokens, now.k };
    return place_choice(c) &&
           calls_values(c, calls_wide(c, false), 2, dim_w, 0, &now.weights) &&
           calls_output(c, calls_wide(c, false), 2, dim, &now.other);
}

static ng_status run_route_back(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor to = calls_on(c, &now.other);
    return ng_route_backward(ctx, &now.route, &now.x, now.index, now.slot, &now.weights, &to);
}

static bool draw_route_weights(struct calls *c)
{
    if (!draw_route(c))
        return false;
    const bool ok = place_choice(c);
    now.route.normalise = now.route.normalise || !ngc_one_in(&c->rng, 4);
    calls_begin(c, &now.y);
    return ok && now.slot;
}

static ng_status run_route_weights(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor y = calls_on(c, &now.y);
    return ng_route_weights(ctx, &now.route, now.slot, &y);
}

static void print_route(void)
{
    printf("     tokens %lld, experts %lld, k %lld, order %d act %d score %d groups %u\n",
           (long long)now.tokens, (long long)now.experts, (long long)now.k,
           (int)now.route.order, (int)now.route.act, (int)now.route.score, now.route.groups);
}

/* ---- Activation and combine. ---- */

static bool draw_activation(struct calls *c)
{
    struct ngc_rng *rng = &c->rng;
    memset(&now, 0, sizeof now);
    now.gated = !ngc_one_in(rng, 4);
    now.tokens = 1 + ngc_below(rng, MAX_TOKENS);
    now.i = draw_width(rng, false);
    draw_act(c, &now.op.act);
    const int64_t dim[] = { now.tokens, now.i };
    bool ok = calls_values(c, calls_wide(c, false), 2, dim, ngc_between(rng, -4, 6), &now.x) &&
              calls_values(c, calls_wide(c, false), 2, dim, ngc_between(rng, -4, 6), &now.c);
    for (int i = 0; i < 2; i++)
        ok = ok && calls_values(c, calls_wide(c, false), 1, dim + 1, 0, &now.bias[i]);
    now.has_c = ngc_one_in(rng, 2);
    now.weighed = ngc_one_in(rng, 2);
    return ok && calls_output(c, calls_wide(c, false), 2, dim, &now.y);
}

static ng_status run_activation(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor y = calls_on(c, &now.y);
    return ng_moe_activation(ctx, &now.op.act, &now.x, now.has_c ? &now.bias[0] : NULL,
                             now.gated ? &now.c : NULL,
                             now.gated && now.weighed ? &now.bias[1] : NULL, &y);
}

static bool draw_combination(struct calls *c)
{
    struct ngc_rng *rng = &c->rng;
    memset(&now, 0, sizeof now);
    now.tokens = 1 + ngc_below(rng, MAX_TOKENS);
    now.h = draw_width(rng, false);
    now.k = 1 + ngc_below(rng, ngc_one_in(rng, 4) ? 20 : MAX_K);
    draw_combine(c, &now.op.combine);
    const int64_t rows = 1 + ngc_below(rng, 100), n = now.tokens * now.k,
                  dim[] = { rows, now.h }, dim_w[] = { now.tokens, now.k },
                  dim_y[] = { now.tokens, now.h };
    int32_t *slot = calls_bytes(c, (size_t)n * 4, 4);
    for (int64_t i = 0; slot && i < n; i++)
        slot[i] = ngc_one_in(rng, 5) ? -1 : (int32_t)ngc_below(rng, (uint32_t)rows);
    if (!slot)
        return false;
    calls_filled(c);
    now.slot = slot;
    now.weighed = !ngc_one_in(rng, 4);
    return calls_values(c, calls_wide(c, false), 2, dim, ngc_between(rng, -4, 4), &now.x) &&
           calls_values(c, calls_wide(c, false), 2, dim_w, 0, &now.weights) &&
           place_sums(c, dim_y);
}

static ng_status run_combination(struct calls *c, ng_ctx *ctx)
{
    const ng_tensor y = calls_on(c, &now.y);
    return ng_moe_combine(ctx, &now.op.combine, &now.x, now.slot, now.k,
                          now.weighed ? &now.weights : NULL, sums_from(&y), &y);
}

static void print_rows(void)
{
    printf("     tokens %lld, columns %lld, k %lld, %s\n", (long long)now.tokens,
           (long long)(now.h ? now.h : now.i), (long long)now.k,
           ng_format_info(now.x.format)->text);
}

void ngc_check_mlp(struct ngc *run)
{
    static const struct calls_case cases[] = {
        { "mlp", draw_mlp, run_mlp, close_mlp, print_mlp },
        { "moe", draw_moe, run_moe, close_mlp, print_mlp },
        { "mlp_backward", draw_mlp_back, run_mlp_back, NULL, print_mlp },
        { "route", draw_route, run_route, NULL, print_route },
        { "router", draw_router, run_router, NULL, print_route },
        { "route_weights", draw_route_weights, run_route_weights, NULL, print_route },
        { "route_backward", draw_route_back, run_route_back, NULL, print_route },
        { "activation", draw_activation, run_activation, NULL, print_rows },
        { "combine", draw_combination, run_combination, NULL, print_rows },
    };
    calls_walk(run, "moe", cases, sizeof cases / sizeof cases[0]);
}
