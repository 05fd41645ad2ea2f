/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small calls, as a simulator makes them: a matrix unit's tile (ng_gemm), dot products one by
 * one and many at once (ng_dot), each ISA, beside the reference on the same operands.
 */
#include <string.h>

#include "yardstick.h"

struct small_call {
    const char *profile;
    ng_format a, b;
    bool blocks;
};
static const struct small_call calls[] = {
    { "trn2", NG_BF16, NG_BF16, false },      { "trn2", NG_E4M3, NG_E4M3, false },
    { "trn3", NG_E4M3FN, NG_E4M3FN, true },   { "fma-f32", NG_F32, NG_F32, false },
    { "nv-hopper", NG_F16, NG_F16, false },   { "nv-hopper", NG_E4M3FN, NG_E4M3FN, false },
    { "amd-cdna3", NG_BF16, NG_BF16, false },
};

struct small_shape {
    bool dot;   /* m rows; else [m, n] */
    bool quick; /* in the quick tier too */
    int64_t m, n, k;
};
static const struct small_shape shapes[] = {
    { false, true, 16, 16, 32 }, { false, false, 16, 16, 128 }, { true, false, 1, 1, 128 },
    { true, true, 1000, 1, 32 }, { true, false, 1000, 1, 128 },
};

/* One context's side of it. */
struct side {
    const struct small_call *what;
    const struct small_shape *shape;
    ng_ctx *ctx;
    const ng_tensor *a, *b;
    ng_tensor d;
};

static ng_status call(struct side *x)
{
    const ng_gemm_op op = { .size = sizeof op, .profile = ng_profile_find(x->what->profile) };
    return x->shape->dot ? ng_dot(x->ctx, &op, x->a, x->b, NULL, &x->d)
                         : ng_gemm(x->ctx, &op, x->a, x->b, NULL, &x->d);
}

static void *setup(void *arg)
{
    struct side *x = arg;
    return call(x) == NG_OK ? x : NULL;
}

static void run_call(void *state)
{
    (void)call(state);
}

static void done(void *state)
{
    (void)state;
}

static bool open_side(struct side *x, uint32_t isa, const ng_executor *executor)
{
    ng_ctx_config config = { .size = sizeof config, .isa_mask = isa };
    const struct small_shape *s = x->shape;
    if (executor)
        config.executor = *executor;
    x->d = bench_matrix(NG_F32, s->m, s->n, (struct spread){ 0, 0 }, 3);
    if (s->dot)
        x->d.rank = 1;
    return ng_ctx_create(&config, &x->ctx) == NG_OK && call(x) == NG_OK;
}

static void close_side(struct side *x)
{
    bench_free(&x->d);
    ng_ctx_destroy(x->ctx);
}

static void time_both(struct bench *run, struct side *x, struct side *ref, const char *name,
                      uint32_t isa)
{
    const struct small_shape *s = x->shape;
    const double products = (double)s->m * (double)s->n * (double)s->k;
    struct ng_bench bench[2];
    char label[32];
    for (int i = 0; i < 2; i++)
        bench[i] = (struct ng_bench){ .name = i ? "ref" : name,
                                      .setup = setup,
                                      .run = run_call,
                                      .done = done,
                                      .arg = i ? ref : x,
                                      .items = products };
    ng_bench_run(bench, 2, &run->options);
    (void)snprintf(label, sizeof label, "%s %s", ng_isa_name(isa), s->dot ? "dot" : "gemm");
    bench_row(run, &(struct row){ .name = name,
                                  .label = label,
                                  .kernel = ng_ctx_kernel(x->ctx),
                                  .profile = x->what->profile,
                                  .tag = "",
                                  .a = ng_format_info(x->what->a)->text,
                                  .b = ng_format_info(x->what->b)->text,
                                  .m = s->m,
                                  .n = s->n,
                                  .k = s->k,
                                  .unit = "MMAC/s",
                                  .scale = 1e-6,
                                  .rate = bench[0].rate,
                                  .peak = bench[1].rate,
                                  .spread = bench[0].spread });
}

static void one(struct bench *run, const struct small_call *what, const struct small_shape *s,
                uint32_t isa)
{
    const enum fill fill = what->blocks ? FILL_MX : FILL_GAUSSIAN;
    struct side x = { .what = what, .shape = s }, ref = x;
    char name[120];
    (void)snprintf(name, sizeof name, "calls/%s/%s/%s/%s%sx%s/%lldx%lldx%lld", ng_isa_name(isa),
                   s->dot ? "dot" : "gemm", what->profile, what->blocks ? "mx-" : "",
                   ng_format_info(what->a)->text, ng_format_info(what->b)->text,
                   (long long)s->m, (long long)s->n, (long long)s->k);
    if (!bench_wants(run, name) || run->list)
        return;
    ng_tensor a = bench_operand(what->a, s->m, s->k, 1, fill, 1),
              b = s->dot ? bench_operand(what->b, s->m, s->k, 1, fill, 2)
                         : bench_operand(what->b, s->k, s->n, 0, fill, 2);
    x.a = ref.a = &a;
    x.b = ref.b = &b;
    const bool opened = open_side(&x, isas_of(isa), run->executor),
               both = open_side(&ref, NG_ISA_REF, run->executor) && opened;
    if (!both)
        bench_refuse(run, name, "the call failed");
    else if (memcmp(x.d.data, ref.d.data, (size_t)(s->m * s->n) * 4) != 0)
        bench_refuse(run, name, "differs from the reference");
    else
        time_both(run, &x, &ref, name, isa);
    close_side(&x);
    close_side(&ref);
    bench_free(&a);
    bench_free(&b);
}

void bench_calls(struct bench *run)
{
    for (uint32_t isa = NG_ISA_REF << 1; isa; isa <<= 1)
        for (size_t i = 0; isa & ng_isa_available() && i < sizeof calls / sizeof *calls; i++)
            for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
                if (shapes[k].quick || !run->quick)
                    one(run, &calls[i], &shapes[k], isa);
}
