/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_elementary() of FP32 in the second-level cache: every function, `cr` and `sleef`, each
 * ISA, against a bare loop over SLEEF's u10 expf on the same memory. The reference's own
 * functions on fewer elements.
 */
#include <stdlib.h>
#include <string.h>

#include "yardstick.h"

enum {
    ELEMENTS = 65536,
    FEW = 256, /* of the reference */
    FUNCTIONS = NG_FN_RSQRT + 1
};

struct function {
    ng_elementary_op op;
    uint32_t isa;
    const ng_executor *executor;
    int64_t n;
    bool failed, differs;

    ng_ctx *ctx;
    ng_tensor src, dst;
};

static const char *const kinds[] = { "cr", "sleef" };

static bool call(const struct function *x, ng_ctx *ctx, const ng_tensor *dst)
{
    return ng_elementary(ctx, &x->op, &x->src, dst) == NG_OK;
}

static bool equals_reference(const struct function *x)
{
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    const int64_t few = FEW;
    struct function y = *x;
    ng_tensor want;
    uint32_t out[FEW];
    ng_ctx *ctx = NULL;
    (void)ng_tensor_init(&y.src, NG_F32, x->src.data, 1, &few);
    (void)ng_tensor_init(&want, NG_F32, out, 1, &few);
    const bool same = ng_ctx_create(&config, &ctx) == NG_OK && call(&y, ctx, &want) &&
                      memcmp(out, x->dst.data, sizeof out) == 0;
    ng_ctx_destroy(ctx);
    return same;
}

static void done_function(void *state)
{
    struct function *x = state;
    bench_free(&x->src);
    bench_free(&x->dst);
    ng_ctx_destroy(x->ctx);
}

/* Arguments between 2^-6 and 2^3 of either sign; those of log and rsqrt positive. */
static void fill(const struct function *x)
{
    const bool positive = x->op.function == NG_FN_LOG || x->op.function == NG_FN_RSQRT;
    uint32_t *p = x->src.data;
    for (int64_t i = 0; positive && i < x->n; i++)
        p[i] &= 0x7FFFFFFFu;
}

static void *setup_function(void *arg)
{
    struct function *x = arg;
    ng_ctx_config config = { .size = sizeof config, .isa_mask = isas_of(x->isa) };
    if (x->executor)
        config.executor = *x->executor;
    x->failed = ng_ctx_create(&config, &x->ctx) != NG_OK;
    if (x->failed)
        return NULL;
    x->src = bench_matrix(NG_F32, 1, x->n, (struct spread){ -6, 2 }, 5);
    x->dst = bench_matrix(NG_F32, 1, x->n, (struct spread){ 0, 0 }, 6);
    fill(x);
    x->failed = !call(x, x->ctx, &x->dst);
    x->differs = !x->failed && !equals_reference(x);
    if (!x->failed && !x->differs)
        return x;
    done_function(x);
    return NULL;
}

static void run_function(void *state)
{
    struct function *x = state;
    (void)call(x, x->ctx, &x->dst);
}

/* ---- Rows. ---- */

static void one(struct bench *run, const char *isa, uint32_t bit, int f, int kind)
{
    struct function x = { .op = { .size = sizeof x.op,
                                  .function = (ng_function)f,
                                  .choice = { .kind = (ng_function_kind)kind } },
                          .isa = bit,
                          .executor = run->executor,
                          .n = bit == NG_ISA_REF ? FEW : ELEMENTS };
    struct expf_loop bare = { .isa = bit, .n = x.n };
    const char *function = ng_function_name((ng_function)f);
    char name[80], label[60];
    (void)snprintf(name, sizeof name, "elementary/%s/%s/%s/%lld", isa, function, kinds[kind],
                   (long long)x.n);
    (void)snprintf(label, sizeof label, "%s %s %s", isa, function, kinds[kind]);
    if (!bench_wants(run, name) || run->list)
        return;
    struct ng_bench bench[2] = { { .name = name,
                                   .setup = setup_function,
                                   .run = run_function,
                                   .done = done_function,
                                   .arg = &x,
                                   .items = (double)x.n },
                                 yard_expf(&bare) };
    ng_bench_run(bench, 2, &run->options);
    if (x.failed || x.differs) {
        bench_refuse(run, name, x.failed ? "the call failed" : "differs from the reference");
        return;
    }
    bench_row(run, &(struct row){ .name = name,
                                  .label = label,
                                  .kernel = isa,
                                  .profile = "",
                                  .tag = kinds[kind],
                                  .a = function,
                                  .b = "f32",
                                  .m = 1,
                                  .n = x.n,
                                  .k = 1,
                                  .unit = "Gvalues/s",
                                  .scale = 1e-9,
                                  .rate = bench[0].rate,
                                  .peak = bench[1].rate,
                                  .spread = bench[0].spread });
}

void bench_elementary(struct bench *run)
{
    for (uint32_t bit = 1; bit; bit <<= 1) {
        const char *isa = ng_isa_name(bit);
        if (!isa || !(ng_isa_available() & bit) || bit >= NG_ISA_AVX512BF16)
            continue; /* those have AVX-512's functions */
        for (int f = 0; f < FUNCTIONS; f++)
            for (int kind = NG_FUNCTION_CR; kind <= NG_FUNCTION_SLEEF; kind++)
                one(run, isa, bit, f, kind);
    }
}
