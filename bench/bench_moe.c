/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture of experts: the routing of each preset and its backward, activation, combine, expert
 * MLPs of packed weights, whose experts have few tokens each, and one's backward.
 */
#include <stdlib.h>
#include <string.h>

#include "yardstick.h"

enum part {
    ROUTE,
    ACTIVATION,
    COMBINE,
    MLP,
    ROUTE_BACK,
    MLP_BACK
};
static const char *const parts[] = { "route", "activation", "combine",
                                     "mlp",   "route-back", "mlp-back" };

enum {
    MLP_K = 4,
    BACK_EXPERTS = 16,
    MOST_EXPERTS = 32
};

/* Experts of an MLP: width x inner, and inner x width. */
struct model {
    const char *what, *profile;
    int experts;
    int64_t width, inner;
    ng_format x, weights;
    ng_moe_operand how;
};
static const struct model models[] = {
    { "trn2-bf16", "trn2", 16, 1024, 1024, NG_BF16, NG_BF16, NG_MOE_AS_IS },
    { "trn3-mxfp4", "trn3", 32, 2880, 2880, NG_E4M3FN, NG_E2M1, NG_MOE_MX }, /* gpt-oss-20b's */
    /* eight of DeepSeek-V3's */
    { "trn3-fp8-block", "trn3", 8, 7168, 2048, NG_E4M3FN, NG_E4M3FN, NG_MOE_FP8_BLOCK },
};

/* All experts have the same numbers: their panels are memory of their own each. */
struct weights {
    ng_tensor matrix[3], scale[3]; /* scale: of FP8_BLOCK */
    ng_packed *whole[3];           /* FP8_BLOCK: for the dense multiply */
    ng_packed *packed[3][MOST_EXPERTS];
    const ng_packed *given[3][MOST_EXPERTS];
};

struct experts {
    enum part part;
    const char *what; /* of the name: a preset, a kind of functions, a model */
    ng_function_kind kind;
    const ng_moe_preset *preset; /* ROUTE */
    const struct model *model;   /* MLP */
    struct weights *weights_of;  /* MLP: the row's, or of all rows of the model */
    uint32_t isa;
    const ng_executor *executor;
    int64_t tokens, width, inner; /* inner: MLP */
    bool failed;
    char kernel[40];
    struct reader *reader; /* to be told the bytes of all weights, or NULL */
    double bytes;          /* of weights that a call reads, where there is a reader */

    ng_ctx *ctx;
    ng_tensor in[2], weights, out;
    int32_t *index;
    ng_tensor matrix[3]; /* MLP_BACK: all experts' weights, gradients of their own */
    ng_tensor weight[3][BACK_EXPERTS], grad[3];
    ng_tensor grad_part[3][BACK_EXPERTS];
};

static bool routes(const struct experts *x)
{
    return x->part == ROUTE || x->part == ROUTE_BACK;
}

static ng_function_choice choice(const struct experts *x)
{
    return (ng_function_choice){ .kind = x->kind };
}

static int64_t entries(const struct experts *x)
{
    return routes(x) ? (int64_t)x->preset->route.k : MLP_K;
}

static ng_gemm_op gemm_of(const struct model *m)
{
    return (ng_gemm_op){ .size = sizeof(ng_gemm_op), .profile = ng_profile_find(m->profile) };
}

/* So few rows that memory is the limit: at most two for each of their experts. */
static bool is_thin(const struct experts *x)
{
    const int64_t rows = x->tokens * MLP_K;
    return x->part == MLP && rows <= 2 * x->model->experts;
}

/* The next call reads other experts' weights, as a model's next layer does: all of them are
 * more than the caches have. */
static void turn(struct experts *x)
{
    for (int64_t i = 0; i < x->tokens * MLP_K; i++)
        x->index[i] = (x->index[i] + 1) % x->model->experts;
}

static ng_status call_mlp(struct experts *x)
{
    const struct model *m = x->model;
    const ng_moe_quant quant = { .how = m->how, .format = m->x };
    const bool blocks = m->how == NG_MOE_FP8_BLOCK;
    const ng_moe_op op = {
        .size = sizeof op,
        .gemm = gemm_of(m),
        .x = quant,
        .quant = quant,
        .act = { .size = sizeof op.act,
                 .act = blocks ? NG_MOE_SWIGLU : NG_MOE_GPT_OSS,
                 .sigmoid = choice(x) },
        .combine = { .size = sizeof op.combine, .sum = NG_BF16 },
        .dispatch = { .size = sizeof op.dispatch, .experts = (uint32_t)m->experts, .k = MLP_K }
    };
    const struct weights *w = x->weights_of;
    const ng_tensor *scale = blocks ? w->scale : NULL;
    const ng_moe_experts experts = {
        .gate = { .packed = w->given[0], .scale = scale },
        .up = { .packed = w->given[1], .scale = scale ? scale + 1 : NULL },
        .down = { .packed = w->given[2], .scale = scale ? scale + 2 : NULL }
    };
    if (is_thin(x))
        turn(x);
    return ng_moe_mlp(x->ctx, &op, &experts, &x->in[0], x->index, &x->weights, NULL, &x->out);
}

static ng_status call_mlp_back(struct experts *x)
{
    const ng_gemm_op gemm = { .size = sizeof gemm, .profile = ng_profile_find("trn2") };
    const ng_moe_op op = {
        .size = sizeof op,
        .gemm = gemm,
        .act = { .size = sizeof op.act, .sigmoid = choice(x) },
        .combine = { .size = sizeof op.combine },
        .dispatch = { .size = sizeof op.dispatch, .experts = BACK_EXPERTS, .k = MLP_K }
    };
    const ng_moe_experts experts = { .gate = { .weights = x->weight[0] },
                                     .up = { .weights = x->weight[1] },
                                     .down = { .weights = x->weight[2] } };
    const ng_moe_gradients grad = {
        .x = &x->out, .gate = x->grad_part[0], .up = x->grad_part[1], .down = x->grad_part[2]
    };
    return ng_moe_mlp_backward(x->ctx, &op, &experts, &x->in[0], x->index, &x->weights,
                               &x->in[1], &grad);
}

static ng_status call_route(struct experts *x, bool back)
{
    ng_route_op op = x->preset->route;
    op.exp = op.sigmoid = choice(x);
    return back
               ? ng_route_backward(x->ctx, &op, &x->in[0], x->index, NULL, &x->weights, &x->out)
               : ng_route(x->ctx, &op, &x->in[0], NULL, x->index, &x->weights, NULL);
}

static ng_status call(struct experts *x)
{
    switch (x->part) {
    case ROUTE:
    case ROUTE_BACK: return call_route(x, x->part == ROUTE_BACK);
    case MLP_BACK: return call_mlp_back(x);
    case ACTIVATION: {
        const ng_moe_act_op op = { .size = sizeof op,
                                   .act = NG_MOE_GPT_OSS,
                                   .sigmoid = choice(x) };
        return ng_moe_activation(x->ctx, &op, &x->in[0], NULL, &x->in[1], NULL, &x->out);
    }
    case COMBINE: {
        const ng_moe_combine_op op = { .size = sizeof op, .sum = NG_BF16 };
        return ng_moe_combine(x->ctx, &op, &x->in[0], x->index, MLP_K, &x->weights, NULL,
                              &x->out);
    }
    case MLP: break;
    }
    return call_mlp(x);
}

static void release(struct experts *x)
{
    for (int i = 0; i < 2; i++)
        bench_free(&x->in[i]);
    bench_free(&x->weights);
    bench_free(&x->out);
    free(x->index);
    x->index = NULL;
    for (int i = 0; i < 3; i++) {
        bench_free(&x->matrix[i]);
        bench_free(&x->grad[i]);
    }
    ng_ctx_destroy(x->ctx);
}

static void release_weights(struct weights *w)
{
    for (int i = 0; i < 3; i++) {
        bench_free(&w->matrix[i]);
        bench_free(&w->scale[i]);
        ng_packed_destroy(w->whole[i]);
        for (int e = 0; e < MOST_EXPERTS; e++)
            ng_packed_destroy(w->packed[i][e]);
    }
}

/* [E, K / 128, N / 128], rounded up. */
static ng_tensor block_scales(int64_t experts, int64_t k, int64_t n)
{
    const int64_t kb = (k + NG_MOE_BLOCK - 1) / NG_MOE_BLOCK,
                  nb = (n + NG_MOE_BLOCK - 1) / NG_MOE_BLOCK;
    ng_tensor t = bench_matrix(NG_F32, experts, kb * nb, (struct spread){ -9, -8 }, 4);
    (void)ng_tensor_init(&t, NG_F32, t.data, 3, (const int64_t[]){ experts, kb, nb });
    return t;
}

/* Once for all rows of a model. */
static ng_status pack(struct experts *x)
{
    const struct model *m = x->model;
    const ng_gemm_op op = gemm_of(m);
    struct weights *w = x->weights_of;
    ng_status s = NG_OK;
    for (int i = 0; i < 3 && !w->given[2][m->experts - 1]; i++) {
        const uint64_t seed = (uint64_t)i + 1;
        const int64_t k = i < 2 ? x->width : x->inner, n = i < 2 ? x->inner : x->width;
        const bool blocks = m->how == NG_MOE_FP8_BLOCK;
        w->matrix[i] = m->how == NG_MOE_MX
                           ? bench_operand(m->weights, k, n, 0, FILL_MX, seed)
                           : bench_matrix(m->weights, k, n, (struct spread){ -6, -4 }, seed);
        if (blocks) {
            w->scale[i] = block_scales(m->experts, k, n);
            s = ng_pack(x->ctx, &op, &w->matrix[i], m->x, &w->whole[i]);
        }
        for (int e = 0; e < m->experts && !s; e++) {
            s = blocks ? ng_moe_pack_blocks(x->ctx, &op, &w->matrix[i], m->x, &w->packed[i][e])
                       : ng_pack(x->ctx, &op, &w->matrix[i], m->x, &w->packed[i][e]);
            w->given[i][e] = w->packed[i][e];
        }
    }
    return s;
}

/* All experts have the same weights, and gradients of their own. */
static void make_gradients(struct experts *x)
{
    const int64_t w = x->width;
    for (int i = 0; i < 3; i++) {
        x->matrix[i] = bench_matrix(NG_BF16, w, w, (struct spread){ -6, -4 }, (uint64_t)i);
        x->grad[i] = bench_matrix(NG_BF16, BACK_EXPERTS * w, w, (struct spread){ 0, 0 }, 7);
        for (int e = 0; e < BACK_EXPERTS; e++) {
            x->weight[i][e] = x->grad_part[i][e] = x->matrix[i];
            x->grad_part[i][e].data = (uint16_t *)x->grad[i].data + e * w * w;
        }
    }
}

static int64_t experts_of(const struct experts *x)
{
    return x->part == MLP ? x->model->experts : BACK_EXPERTS;
}

/* Bytes of packed weights: those that a call reads; all. */
static void count_bytes(struct experts *x)
{
    bool active[MOST_EXPERTS] = { false };
    for (int64_t i = 0; i < x->tokens * MLP_K; i++)
        active[x->index[i]] = true;
    x->bytes = 0;
    x->reader->like = 0;
    for (int e = 0; e < x->model->experts; e++)
        for (int i = 0; i < 3; i++) {
            const size_t bytes = ng_packed_bytes(x->weights_of->packed[i][e]);
            x->bytes += active[e] ? (double)bytes : 0;
            x->reader->like += bytes;
        }
}

static bool prepare(struct experts *x)
{
    ng_ctx_config config = { .size = sizeof config, .isa_mask = isas_of(x->isa) };
    if (x->executor)
        config.executor = *x->executor;
    if (ng_ctx_create(&config, &x->ctx))
        return false;
    const int64_t k = entries(x), rows = x->part == COMBINE ? x->tokens * k : x->tokens;
    const bool mlp = x->part == MLP || x->part == MLP_BACK;
    const ng_format f = mlp ? NG_BF16 : NG_F32;
    for (int i = 0; i < 2; i++)
        x->in[i] = bench_matrix(f, rows, x->width, (struct spread){ -3, 1 }, 3 + (uint64_t)i);
    x->out = bench_matrix(routes(x) ? NG_F32 : NG_BF16, x->tokens, x->width,
                          (struct spread){ 0, 0 }, 5);
    x->weights = bench_matrix(NG_F32, x->tokens, k, (struct spread){ -3, 0 }, 6);
    x->index = bench_alloc((size_t)(x->tokens * k) * sizeof *x->index);
    for (int64_t i = 0; i < x->tokens * k; i++)
        x->index[i] = (int32_t)(x->part == COMBINE ? i * 7 % (x->tokens * k)
                                : mlp              ? (i / k * 5 + i % k * 3) % experts_of(x)
                                                   : 0);
    if (x->part == MLP_BACK)
        make_gradients(x);
    ng_status s = x->part == MLP          ? pack(x)
                  : x->part == ROUTE_BACK ? call_route(x, false)
                                          : NG_OK;
    if (!s)
        s = call(x);
    (void)snprintf(x->kernel, sizeof x->kernel, "%s", ng_ctx_kernel(x->ctx));
    return s == NG_OK;
}

static void *setup(void *arg)
{
    struct experts *x = arg;
    x->failed = !prepare(x);
    if (!x->failed) {
        if (x->reader)
            count_bytes(x);
        return x;
    }
    release(x);
    return NULL;
}

static void run_call(void *state)
{
    (void)call(state);
}

static void done(void *state)
{
    release(state);
}

/* What a call writes, of few tokens, against the reference's. */
static bool same_as_reference(const struct experts *what)
{
    struct experts got = *what, want = *what;
    struct weights w[2] = { 0 };
    got.weights_of = &w[0];
    want.weights_of = &w[1];
    got.tokens = want.tokens = 11;
    if (!routes(what))
        got.width = want.width = got.inner = want.inner = 96;
    if (what->part == MLP && what->model->how == NG_MOE_FP8_BLOCK)
        got.width = want.width = 160; /* two blocks, the last one short */
    want.isa = NG_ISA_REF;
    want.executor = NULL;
    bool same = prepare(&got);
    same = prepare(&want) && same;
    const int64_t n = 11 * entries(what);
    same = same && memcmp(got.index, want.index, (size_t)n * sizeof *got.index) == 0 &&
           memcmp(got.weights.data, want.weights.data, (size_t)n * 4) == 0 &&
           memcmp(got.out.data, want.out.data,
                  ng_tensor_bytes(got.out.format, 2, got.out.dim)) == 0;
    for (int i = 0; what->part == MLP_BACK && i < 3; i++)
        same = same && memcmp(got.grad[i].data, want.grad[i].data,
                              ng_tensor_bytes(NG_BF16, 2, got.grad[i].dim)) == 0;
    release(&got);
    release(&want);
    release_weights(&w[0]);
    release_weights(&w[1]);
    return same;
}

static double items_of(const struct experts *x)
{
    const double t = (double)x->tokens, w = (double)x->width;
    switch (x->part) {
    case ROUTE:
    case ROUTE_BACK: return t;
    case ACTIVATION: return t * w;
    case COMBINE: return t * w * MLP_K;
    case MLP:
    case MLP_BACK: break;
    }
    /* backward: gate and up again, three by turned weights, three of rows with rows */
    return 2 * (x->part == MLP ? 3 * (double)x->inner : 8 * w) * t * MLP_K * w;
}

/* The same multiplies by the weights of one expert, in three calls: as dense as they can be.
 * Of gate and up, and of down. */
struct dense {
    const struct experts *x;
    ng_ctx *ctx;
    ng_tensor a[2], d[2];
};

static void run_dense(void *state)
{
    struct dense *y = state;
    const ng_gemm_op op = gemm_of(y->x->model);
    const struct weights *w = y->x->weights_of;
    for (int i = 0; i < 3; i++)
        (void)ng_gemm_packed(y->ctx, &op, &y->a[i / 2],
                             w->whole[i] ? w->whole[i] : w->given[i][0], NULL, &y->d[i / 2]);
}

static void *setup_dense(void *arg)
{
    struct dense *y = arg;
    const struct experts *x = y->x;
    ng_ctx_config config = { .size = sizeof config, .isa_mask = isas_of(x->isa) };
    if (x->executor)
        config.executor = *x->executor;
    if (ng_ctx_create(&config, &y->ctx))
        return NULL;
    const int64_t rows = x->tokens * MLP_K;
    for (int i = 0; i < 2; i++) {
        const int64_t k = i ? x->inner : x->width, n = i ? x->width : x->inner;
        y->a[i] = x->model->how == NG_MOE_MX
                      ? bench_operand(x->model->x, rows, k, 1, FILL_MX, 9)
                      : bench_matrix(x->model->x, rows, k, (struct spread){ -3, 1 }, 9);
        y->d[i] = bench_matrix(NG_F32, rows, n, (struct spread){ 0, 0 }, 10);
    }
    return y;
}

static void done_dense(void *state)
{
    struct dense *y = state;
    for (int i = 0; i < 2; i++) {
        bench_free(&y->a[i]);
        bench_free(&y->d[i]);
    }
    ng_ctx_destroy(y->ctx);
}

/* What a part is measured against: see the table's heading. */
struct yardstick {
    struct reader reader;
    struct expf_loop expf;
    struct dense dense;
};

static struct ng_bench yardstick(struct experts *x, size_t threads, struct yardstick *y)
{
    y->reader =
        (struct reader){ .peak = peak_of(x->isa),
                         .executor = x->executor,
                         .threads = threads,
                         .like = (size_t)(x->tokens * MLP_K * x->width) * sizeof(float) };
    y->expf = (struct expf_loop){ .isa = x->isa, .n = 65536 };
    y->dense = (struct dense){ .x = x };
    if (x->part == MLP_BACK)
        return yard_peak(y->reader.peak);
    if (x->part == MLP && !is_thin(x))
        return (struct ng_bench){ .name = "dense",
                                  .setup = setup_dense,
                                  .run = run_dense,
                                  .done = done_dense,
                                  .arg = &y->dense,
                                  .items = items_of(x) };
    x->reader = x->part == MLP ? &y->reader : NULL;
    return x->part == COMBINE || x->part == MLP ? yard_read(&y->reader) : yard_expf(&y->expf);
}

/* In the part's own items a second. */
static double yardstick_rate(const struct experts *x, const struct yardstick *y,
                             const struct ng_bench *b)
{
    switch (x->part) {
    case ROUTE:
    case ROUTE_BACK: return b->rate / (double)x->width;
    case COMBINE: return yard_read_rate(&y->reader, b) / sizeof(float);
    case ACTIVATION: return b->rate;
    case MLP:
    case MLP_BACK: break;
    }
    if (is_thin(x))
        return yard_read_rate(&y->reader, b) * items_of(x) / x->bytes;
    return b->rate * (double)(x->part == MLP_BACK ? y->reader.threads : 1);
}

static void one(struct bench *run, const struct experts *what)
{
    static const struct {
        const char *unit;
        double scale;
    } units[] = { { "Mtoken/s", 1e-6 }, { "G/s", 1e-9 },      { "G/s", 1e-9 },
                  { "GFLOP/s", 1e-9 },  { "Mtoken/s", 1e-6 }, { "GFLOP/s", 1e-9 } };
    struct experts x = *what;
    char name[120], label[64];
    const char *isa = ng_isa_name(x.isa);
    x.executor = run->executor;
    (void)snprintf(name, sizeof name, "moe/%s/%s/%s/%s/%lldx%lld", isa, parts[x.part], x.what,
                   x.kind == NG_FUNCTION_CR ? "cr" : "sleef", (long long)x.tokens,
                   (long long)x.width);
    if (!bench_wants(run, name) || run->list)
        return;
    if (!same_as_reference(&x)) {
        bench_refuse(run, name, "differs from the reference");
        return;
    }
    struct yardstick y;
    struct ng_bench bench[2] = { { .name = name,
                                   .setup = setup,
                                   .run = run_call,
                                   .done = done,
                                   .arg = &x,
                                   .items = items_of(&x) } };
    const bool rival = peak_of(x.isa) != NULL; /* the reference has none */
    if (rival)
        bench[1] = yardstick(&x, run->threads, &y);
    ng_bench_run(bench, rival ? 2 : 1, &run->options);
    if (x.failed) {
        bench_refuse(run, name, "the call failed");
        return;
    }
    (void)snprintf(label, sizeof label, "%s %s", isa, parts[x.part]);
    bench_row(run, &(struct row){ .name = name,
                                  .label = label,
                                  .kernel = x.kernel,
                                  .profile = x.what,
                                  .tag = "",
                                  .a = x.kind == NG_FUNCTION_CR ? "cr" : "sleef",
                                  .b = units[x.part].unit,
                                  .m = x.tokens,
                                  .n = x.width,
                                  .k = entries(&x),
                                  .unit = units[x.part].unit,
                                  .scale = units[x.part].scale,
                                  .rate = bench[0].rate,
                                  .peak = rival ? yardstick_rate(&x, &y, &bench[1]) : 0,
                                  .spread = bench[0].spread });
}

static void mlp_rows(struct bench *run, uint32_t isa, const struct model *m)
{
    static const int64_t tokens[] = { 1, 8, 32, 128, 512 };
    /* At most four bytes a packed number. */
    const double need = 12.0 * m->experts * (double)(m->width * m->inner);
    struct weights w = { 0 };
    if (m->how && (run->quick || need > (double)yard_memory()))
        return;
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
        if (!run->quick || tokens[i] == 8)
            one(run, &(struct experts){ .part = MLP,
                                        .what = m->what,
                                        .model = m,
                                        .weights_of = &w,
                                        .isa = isa,
                                        .tokens = tokens[i],
                                        .width = m->width,
                                        .inner = m->inner });
    release_weights(&w);
}

static void multiplies(struct bench *run, uint32_t isa)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        mlp_rows(run, isa, &models[i]);
    one(run, &(struct experts){ .part = MLP_BACK,
                                .what = "trn2-bf16",
                                .isa = isa,
                                .tokens = run->quick ? 8 : 512,
                                .width = 512 });
}

static void all_parts(struct bench *run, uint32_t isa, ng_function_kind kind)
{
    const bool slow = isa == NG_ISA_REF;
    for (int back = 0; back < 2; back++)
        for (size_t i = 0; ng_moe_preset_at(i); i++)
            one(run, &(struct experts){ .part = back ? ROUTE_BACK : ROUTE,
                                        .what = ng_moe_preset_at(i)->name,
                                        .kind = kind,
                                        .preset = ng_moe_preset_at(i),
                                        .isa = isa,
                                        .tokens = slow ? 4 : 1024,
                                        .width = ng_moe_preset_at(i)->experts });
    one(run, &(struct experts){ .part = ACTIVATION,
                                .what = "gpt_oss",
                                .kind = kind,
                                .isa = isa,
                                .tokens = slow ? 2 : 64,
                                .width = 2880 });
    if (kind != NG_FUNCTION_CR)
        return;
    one(run, &(struct experts){ .part = COMBINE,
                                .what = "expert-bf16",
                                .isa = isa,
                                .tokens = slow ? 2 : 64,
                                .width = 2880 });
    if (!slow)
        multiplies(run, isa);
}

void bench_moe(struct bench *run)
{
    for (uint32_t isa = NG_ISA_REF; isa && isa <= NG_ISA_AVX512; isa <<= 1)
        for (int kind = NG_FUNCTION_CR; kind <= NG_FUNCTION_SLEEF; kind++)
            if (isa & ng_isa_available() && (isa != NG_ISA_REF || kind == NG_FUNCTION_CR))
                all_parts(run, isa, (ng_function_kind)kind);
    for (uint32_t isa = NG_ISA_AVX512BF16; isa <= NG_ISA_AMXBF16; isa <<= 1)
        if (ng_isa_available() & isa) /* they have kernels of multiplies only */
            multiplies(run, isa);
}
