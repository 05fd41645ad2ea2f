/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stages of a layer, each timed and hashed: calls of the library and views between them.
 * Numerics: docs/numerics.md, section 11.11, items 135 and 136.
 */
#define XXH_INLINE_ALL
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "layer.h"

enum {
    BLOCK = 32,        /* elements of an MXFP4 block */
    SCALE = 0x3E000000 /* 1 / sqrt(64), exact: heads have 64 elements */
};

/* Everything between the stages. All rows are packed. */
struct work {
    const struct cli *cli;
    struct layer_run *run;
    ng_tensor x, normed, residual, sum; /* [tokens, hidden], bf16; sum: FP32, before a bias */
    ng_tensor q, k, v, mixed;           /* [tokens, heads * head_dim], bf16 */
    ng_tensor cosine, sine;             /* [tokens, head_dim / 2], bf16 */
    ng_tensor logits, weights;          /* [tokens, experts], [tokens, top], FP32 */
    int32_t *chosen;                    /* [tokens, top] */
    ng_tensor y;                        /* what the experts give */
    ng_tensor *gate, *up, *down;        /* [experts] */
    double began;
};

/* ---- Memory. ---- */

static bool make(ng_tensor *t, ng_format format, int64_t rows, int64_t columns)
{
    const int64_t dim[] = { rows, columns };
    const size_t bytes = ng_tensor_bytes(format, 2, dim);
    void *data = bytes ? calloc(1, bytes) : NULL;
    return data && !ng_tensor_init(t, format, data, 2, dim);
}

static bool make_all(struct work *w)
{
    const struct layer_shape *s = w->run->shape;
    const int64_t n = w->run->tokens, queries = s->heads * s->head_dim,
                  keys = s->kv_heads * s->head_dim,
                  wider = queries > s->hidden ? queries : s->hidden,
                  widest = wider > s->inner ? wider : s->inner;
    ng_tensor *const views[] = { w->gate = calloc((size_t)s->experts, sizeof *w->gate),
                                 w->up = calloc((size_t)s->experts, sizeof *w->up),
                                 w->down = calloc((size_t)s->experts, sizeof *w->down) };
    w->chosen = calloc((size_t)(n * s->top), sizeof *w->chosen);
    return views[0] && views[1] && views[2] && w->chosen &&
           make(&w->x, NG_BF16, n, s->hidden) && make(&w->normed, NG_BF16, n, s->hidden) &&
           make(&w->residual, NG_BF16, n, s->hidden) && make(&w->sum, NG_F32, n, widest) &&
           make(&w->q, NG_BF16, n, queries) && make(&w->k, NG_BF16, n, keys) &&
           make(&w->v, NG_BF16, n, keys) && make(&w->mixed, NG_BF16, n, queries) &&
           make(&w->cosine, NG_BF16, n, s->head_dim / 2) &&
           make(&w->sine, NG_BF16, n, s->head_dim / 2) &&
           make(&w->logits, NG_F32, n, s->experts) && make(&w->weights, NG_F32, n, s->top) &&
           make(&w->y, NG_BF16, n, s->hidden);
}

static void release(struct work *w)
{
    ng_tensor *const t[] = { &w->x,      &w->normed,  &w->residual, &w->sum,    &w->q,
                             &w->k,      &w->v,       &w->mixed,    &w->cosine, &w->sine,
                             &w->logits, &w->weights, &w->y };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        free(t[i]->data);
    free(w->chosen);
    free(w->gate);
    free(w->up);
    free(w->down);
}

/* ---- Views of weights. ---- */

static const struct io_array *array_of(const struct work *w, enum layer_tensor which)
{
    return &w->run->weights->array[which];
}

/* A tensor of the checkpoint as it is. */
static ng_tensor plain(const struct work *w, enum layer_tensor which)
{
    const struct io_array *a = array_of(w, which);
    ng_tensor t;
    (void)ng_tensor_init(&t, a->format, a->data, a->rank, a->dim); /* checked by its reader */
    return t;
}

/* [outputs, inputs] as B of a multiply: [inputs, outputs]. */
static ng_tensor turned(const struct work *w, enum layer_tensor which)
{
    const struct io_array *a = array_of(w, which);
    ng_tensor t;
    (void)ng_tensor_init(&t, a->format, a->data, 2, (const int64_t[]){ a->dim[1], a->dim[0] });
    t.stride[0] = 1;
    t.stride[1] = a->dim[1];
    return t;
}

/* Rows first, first + step, .. of an expert's matrix [rows, K] in blocks, as B: [K, n]. */
static ng_tensor expert_matrix(const struct work *w, enum layer_tensor blocks, int64_t expert,
                               int64_t first, int64_t step)
{
    const struct io_array *codes = array_of(w, blocks), *scales = array_of(w, blocks + 1);
    const int64_t rows = codes->dim[1], n_blocks = codes->dim[2], k = n_blocks * BLOCK,
                  row = expert * rows + first;
    ng_tensor t;
    (void)ng_tensor_init(&t, NG_E2M1, (unsigned char *)codes->data + row * k / 2, 2,
                         (const int64_t[]){ k, rows / step });
    t.stride[0] = 1;
    t.stride[1] = step * k;
    t.scale = (unsigned char *)scales->data + row * n_blocks;
    t.scale_format = NG_E8M0;
    t.block = BLOCK;
    t.block_axis = 0;
    t.layout = NG_LAYOUT_LINEAR;
    t.scale_stride[0] = 1;
    t.scale_stride[1] = step * n_blocks;
    return t;
}

/* [experts, inner]: gate's or up's half of their biases. */
static ng_tensor half_bias(const struct work *w, int64_t first)
{
    ng_tensor t = plain(w, LAYER_GATE_UP_BIAS);
    t.data = (uint16_t *)t.data + first;
    t.dim[1] /= 2;
    t.stride[1] = 2;
    return t;
}

/* Rows [tokens, heads * head_dim] as [1, heads, tokens, head_dim]. */
static ng_tensor by_head(const ng_tensor *rows, int64_t head_dim)
{
    ng_tensor t = *rows;
    const int64_t tokens = rows->dim[0], width = rows->dim[1];
    const int64_t dim[] = { 1, width / head_dim, tokens, head_dim },
                  stride[] = { tokens * width, head_dim, width, 1 };
    t.rank = 4;
    memcpy(t.dim, dim, sizeof dim);
    memcpy(t.stride, stride, sizeof stride);
    return t;
}

/* The first rows * columns elements of a packed tensor. */
static ng_tensor part_of(const ng_tensor *t, int64_t rows, int64_t columns)
{
    ng_tensor p;
    (void)ng_tensor_init(&p, t->format, t->data, 2, (const int64_t[]){ rows, columns });
    return p;
}

/* ---- Stages. ---- */

static void begin(struct work *w)
{
    w->began = seconds_now();
}

/* A stage is over: its time, and the hash of what it gave. */
static void end(struct work *w, const char *name, double operations, const char *kernel,
                const ng_tensor *const *given, size_t n)
{
    struct layer_stage *s = &w->run->stage[w->run->n_stages++];
    XXH3_state_t hash;
    s->seconds = seconds_now() - w->began;
    s->name = name;
    s->operations = operations;
    snprintf(s->kernel, sizeof s->kernel, "%s", kernel);
    XXH3_INITSTATE(&hash);
    XXH3_128bits_reset(&hash);
    for (size_t i = 0; i < n; i++)
        XXH3_128bits_update(&hash, given[i]->data,
                            ng_tensor_bytes(given[i]->format, given[i]->rank, given[i]->dim));
    const XXH128_hash_t d = XXH3_128bits_digest(&hash);
    snprintf(s->digest, sizeof s->digest, "%016llx%016llx", (unsigned long long)d.high64,
             (unsigned long long)d.low64);
}

static void end_one(struct work *w, const char *name, double operations, const ng_tensor *given)
{
    end(w, name, operations, ng_ctx_kernel(w->cli->ctx), &given, 1);
}

static ng_status norm(struct work *w, const char *name, const ng_tensor *x,
                      enum layer_tensor gain)
{
    const ng_rms_norm_op op = { .size = sizeof op, .eps = NG_RMS_NORM_EPS };
    const ng_tensor g = plain(w, gain);
    begin(w);
    const ng_status s = ng_rms_norm(w->cli->ctx, &op, x, &g, &w->normed);
    if (!s)
        end_one(w, name, 0, &w->normed);
    return s;
}

static ng_gemm_op multiply(const struct work *w)
{
    return (ng_gemm_op){ .size = sizeof(ng_gemm_op), .profile = w->run->profile };
}

/* Item 132: y = x * weight + bias. */
static ng_status project(struct work *w, const ng_tensor *x, enum layer_tensor weight,
                         const ng_tensor *y, char kernel[40])
{
    const ng_gemm_op op = multiply(w);
    const ng_tensor b = turned(w, weight), bias = plain(w, weight + 1),
                    sum = part_of(&w->sum, y->dim[0], y->dim[1]);
    const ng_status s = ng_gemm(w->cli->ctx, &op, x, &b, NULL, &sum);
    if (s)
        return s;
    snprintf(kernel, 40, "%s", ng_ctx_kernel(w->cli->ctx));
    return ng_add(w->cli->ctx, &sum, &bias, y);
}

static ng_status projections(struct work *w)
{
    const struct layer_shape *sh = w->run->shape;
    char kernel[40] = "";
    begin(w);
    ng_status s = project(w, &w->normed, LAYER_Q, &w->q, kernel);
    if (!s)
        s = project(w, &w->normed, LAYER_K, &w->k, kernel);
    if (!s)
        s = project(w, &w->normed, LAYER_V, &w->v, kernel);
    if (!s)
        end(w, "qkv",
            2.0 * (double)(w->run->tokens * sh->hidden * (w->q.dim[1] + 2 * w->k.dim[1])),
            kernel, (const ng_tensor *const[]){ &w->q, &w->k, &w->v }, 3);
    return s;
}

static ng_status rope(struct work *w)
{
    const ng_rope_op op = { .size = sizeof op, .product = NG_BF16 };
    begin(w);
    ng_status s = ng_rope(w->cli->ctx, &op, &w->q, &w->cosine, &w->sine, &w->q);
    if (!s)
        s = ng_rope(w->cli->ctx, &op, &w->k, &w->cosine, &w->sine, &w->k);
    if (!s)
        end(w, "rope", 0, ng_ctx_kernel(w->cli->ctx),
            (const ng_tensor *const[]){ &w->q, &w->k }, 2);
    return s;
}

/* Keys that queries see, over all of them. */
static double live_pairs(int64_t tokens, int64_t window)
{
    double pairs = 0;
    for (int64_t i = 0; i < tokens; i++)
        pairs += (double)(window && i + 1 > window ? window : i + 1);
    return pairs;
}

static ng_status attend(struct work *w)
{
    const struct layer_run *r = w->run;
    const int64_t d = r->shape->head_dim;
    const ng_tensor q = by_head(&w->q, d), k = by_head(&w->k, d), v = by_head(&w->v, d),
                    o = by_head(&w->mixed, d), sinks = plain(w, LAYER_SINKS);
    const ng_attention_op op = { .size = sizeof op,
                                 .profile = r->profile,
                                 .schedule = r->schedule,
                                 .scale = SCALE,
                                 .causal = true,
                                 .window = r->number % 2 ? 0 : r->shape->window,
                                 .sink = &sinks };
    begin(w);
    const ng_status s = ng_attention(w->cli->ctx, &op, &q, &k, &v, &o, NULL);
    if (!s)
        end_one(w, "attention",
                4.0 * (double)(d * r->shape->heads) * live_pairs(r->tokens, op.window),
                &w->mixed);
    return s;
}

static ng_status project_out(struct work *w)
{
    char kernel[40] = "";
    const ng_tensor *y = &w->y;
    begin(w);
    const ng_status s = project(w, &w->mixed, LAYER_O, y, kernel);
    if (!s)
        end(w, "o_proj", 2.0 * (double)(w->run->tokens * y->dim[1] * w->mixed.dim[1]), kernel,
            &y, 1);
    return s;
}

static ng_status add(struct work *w, const char *name, const ng_tensor *a, const ng_tensor *b,
                     const ng_tensor *y)
{
    begin(w);
    const ng_status s = ng_add(w->cli->ctx, a, b, y);
    if (!s)
        end_one(w, name, 0, y);
    return s;
}

static ng_status route(struct work *w)
{
    const struct layer_shape *sh = w->run->shape;
    const ng_gemm_op gemm = multiply(w);
    ng_route_op op = ng_moe_preset_find("gpt-oss-20b")->route;
    const ng_tensor m = turned(w, LAYER_ROUTER), bias = plain(w, LAYER_ROUTER_BIAS);
    op.k = (uint32_t)sh->top;
    begin(w);
    const ng_status s = ng_router(w->cli->ctx, &gemm, &op, &w->normed, &m, &bias, &w->logits,
                                  NULL, w->chosen, &w->weights, NULL);
    if (s)
        return s;
    ng_tensor chosen = w->weights; /* as many 32-bit words */
    chosen.data = w->chosen;
    end(w, "router", 2.0 * (double)(w->run->tokens * sh->hidden * sh->experts),
        ng_ctx_kernel(w->cli->ctx), (const ng_tensor *const[]){ &chosen, &w->weights }, 2);
    return s;
}

/* Item 136. */
static ng_moe_op expert_op(const struct work *w)
{
    const struct layer_shape *sh = w->run->shape;
    const ng_moe_quant mxfp8 = { .how = NG_MOE_MX,
                                 .format = NG_E4M3FN,
                                 .rule = NG_SCALE_FLOOR_UP1 };
    ng_moe_op op = { .size = sizeof op,
                     .gemm = multiply(w),
                     .act = ng_moe_preset_find("gpt-oss-20b")->act,
                     .combine = { .size = sizeof op.combine, .sum = NG_BF16 },
                     .dispatch = { .size = sizeof op.dispatch,
                                   .experts = (uint32_t)sh->experts,
                                   .k = (uint32_t)sh->top } };
    op.gemm.accumulate = w->run->expert_sums;
    op.act.biased = NG_BF16;
    if (w->run->mx)
        op.x = op.quant = mxfp8;
    else
        op.weights_as = NG_BF16;
    return op;
}

/* MX kernels of Trainium accumulate in bf16 where there is such a memory (items 100 and 136).
 */
static void choose_experts(struct layer_run *run)
{
    char why[400];
    const ng_rule *mx =
        ng_profile_rule(run->profile, NG_E4M3FN, NG_E2M1, NG_MODE_MX, why, sizeof why);
    const bool bf16 = mx && mx->set[NG_PARAM_FAMILY].value == NG_FAMILY_ARRAY &&
                      mx->set[NG_PARAM_PSUM].value == NG_PSUM_F32_OR_BF16;
    run->mx = mx;
    run->expert_sums = bf16 ? NG_BF16 : NG_F32;
}

/* The kernel that multiplies tokens by an expert's gate: operands that lie anywhere, as only
 * their formats and shapes are looked at. */
static void expert_kernel(const struct work *w, const ng_moe_op *op, char kernel[40])
{
    ng_tensor a = w->normed, b = w->gate[0];
    const ng_tensor d = part_of(&w->sum, a.dim[0], b.dim[1]);
    ng_kernel_info info[16];
    size_t n = 0;
    if (w->run->mx) {
        (void)ng_tensor_init(&a, NG_E4M3FN, a.data, 2, a.dim);
        (void)ng_tensor_set_scale(&a, NG_E8M0, w->x.data, BLOCK, 1, NG_LAYOUT_LINEAR);
    } else {
        (void)ng_tensor_init(&b, NG_BF16, b.data, 2, b.dim);
    }
    (void)ng_gemm_kernels(w->cli->ctx, &op->gemm, &a, &b, NULL, &d, info,
                          sizeof info / sizeof info[0], &n);
    for (size_t i = 0; i < n && i < sizeof info / sizeof info[0]; i++)
        if (info[i].chosen)
            snprintf(kernel, 40, "%s", info[i].name);
}

static ng_status experts(struct work *w)
{
    const struct layer_shape *sh = w->run->shape;
    const ng_tensor gate_bias = half_bias(w, 0), up_bias = half_bias(w, 1),
                    down_bias = plain(w, LAYER_DOWN_BIAS);
    const ng_moe_experts all = { .gate = { .weights = w->gate, .bias = &gate_bias },
                                 .up = { .weights = w->up, .bias = &up_bias },
                                 .down = { .weights = w->down, .bias = &down_bias } };
    const ng_moe_op op = expert_op(w);
    for (int64_t e = 0; e < sh->experts; e++) {
        w->gate[e] = expert_matrix(w, LAYER_GATE_UP, e, 0, 2);
        w->up[e] = expert_matrix(w, LAYER_GATE_UP, e, 1, 2);
        w->down[e] = expert_matrix(w, LAYER_DOWN, e, 0, 1);
    }
    begin(w);
    const ng_status s =
        ng_moe_mlp(w->cli->ctx, &op, &all, &w->normed, w->chosen, &w->weights, NULL, &w->y);
    if (s)
        return s;
    const ng_tensor *y = &w->y;
    end(w, "experts", 6.0 * (double)(w->run->tokens * sh->top * sh->hidden * sh->inner), "", &y,
        1);
    expert_kernel(w, &op, w->run->stage[w->run->n_stages - 1].kernel);
    return NG_OK;
}

/* ---- The layer. ---- */

/* x and the angles. */
static int prepare(struct work *w)
{
    const struct layer_run *r = w->run;
    memcpy(w->x.data, r->input.data, r->input.bytes);
    uint16_t *cosine = w->cosine.data, *sine = w->sine.data;
    for (int64_t t = 0; t < r->tokens; t++)
        for (int e = 0; e < LAYER_PAIRS; e++)
            if (!layer_angle(t, e, cosine + t * LAYER_PAIRS + e, sine + t * LAYER_PAIRS + e))
                return cli_fail(EXIT_INTERNAL,
                                "the angle of position %lld, pair %d, wants "
                                "more digits",
                                (long long)t, e);
    return 0;
}

static ng_status all_stages(struct work *w)
{
    ng_status s = norm(w, "norm 1", &w->x, LAYER_NORM_1);
    if (!s)
        s = projections(w);
    if (!s)
        s = rope(w);
    if (!s)
        s = attend(w);
    if (!s)
        s = project_out(w);
    if (!s)
        s = add(w, "residual 1", &w->x, &w->y, &w->residual);
    if (!s)
        s = norm(w, "norm 2", &w->residual, LAYER_NORM_2);
    if (!s)
        s = route(w);
    if (!s)
        s = experts(w);
    return s ? s : add(w, "residual 2", &w->residual, &w->y, &w->x);
}

int layer_run(const struct cli *cli, struct layer_run *run)
{
    struct work w = { .cli = cli, .run = run };
    run->n_stages = 0;
    choose_experts(run);
    int code = make_all(&w) ? prepare(&w) : cli_fail(EXIT_INTERNAL, "out of memory");
    if (!code) {
        const ng_status s = all_stages(&w);
        code = s ? cli_refused(cli, s, "run layer") : 0;
    }
    if (!code) {
        run->output = run->input;
        snprintf(run->output.name, sizeof run->output.name, "y");
        run->output.data = w.x.data; /* [tokens, hidden] in bf16, as the input */
        w.x.data = NULL;
    }
    release(&w);
    return code;
}
