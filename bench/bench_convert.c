/* SPDX-License-Identifier: Apache-2.0 */
/* ng_convert() and ng_quantize(), which are the reference's, against a copy of as many bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

struct conversion {
    const char *name; /* of the call */
    ng_format to;
    bool mx; /* ng_quantize() with e8m0 scales, blocks of 32 */
    const ng_executor *executor;
    int64_t rows, cols;
    bool failed;

    ng_ctx *ctx;
    ng_tensor src, dst;
};

static const struct conversion conversions[] = {
    { .name = "convert", .to = NG_E4M3FN },
    { .name = "convert", .to = NG_BF16 },
    { .name = "quantize", .to = NG_E4M3FN, .mx = true },
};

static bool convert(struct conversion *x)
{
    const ng_cast cast = { .overflow = NG_OVERFLOW_SATURATE };
    if (x->mx) {
        const ng_quantize_op op = { .size = sizeof op, .rule = NG_SCALE_FLOOR, .cast = cast };
        return ng_quantize(x->ctx, &op, &x->src, &x->dst) == NG_OK;
    }
    const ng_convert_op op = { .size = sizeof op, .cast = cast };
    return ng_convert(x->ctx, &op, &x->src, &x->dst) == NG_OK;
}

static void done_convert(void *state)
{
    struct conversion *x = state;
    bench_free(&x->src);
    bench_free(&x->dst);
    ng_ctx_destroy(x->ctx);
}

static void *setup_convert(void *arg)
{
    struct conversion *x = arg;
    ng_ctx_config config = { .size = sizeof config };
    if (x->executor)
        config.executor = *x->executor;
    x->failed = ng_ctx_create(&config, &x->ctx) != NG_OK;
    if (x->failed)
        return NULL;
    /* Past e4m3fn's maximum and below its least subnormal too: all paths of the rounding. */
    x->src = bench_matrix(NG_F32, x->rows, x->cols, (struct spread){ -14, 10 }, 1);
    x->dst = bench_matrix(x->to, x->rows, x->cols, (struct spread){ 0, 0 }, 2);
    if (x->mx)
        bench_scales(&x->dst, 1, 3);
    x->failed = !convert(x);
    if (!x->failed)
        return x;
    done_convert(x);
    return NULL;
}

static void run_convert(void *state)
{
    (void)convert(state);
}

struct copy {
    size_t bytes;
    unsigned char *from, *to;
};

static void run_copy(void *state)
{
    const struct copy *x = state;
    memcpy(x->to, x->from, x->bytes);
}

static void *setup_copy(void *arg)
{
    struct copy *x = arg;
    x->from = bench_alloc(x->bytes);
    x->to = bench_alloc(x->bytes);
    memset(x->from, 1, x->bytes);
    memset(x->to, 2, x->bytes);
    return x;
}

static void done_copy(void *state)
{
    struct copy *x = state;
    free(x->from);
    free(x->to);
}

static void one(struct bench *run, const struct conversion *what)
{
    struct conversion x = *what;
    x.executor = run->executor;
    x.rows = run->quick ? 64 : 1024;
    x.cols = 1024;
    const double elements = (double)(x.rows * x.cols);
    const uint32_t bits = ng_format_info(x.to)->store_bits;
    const char *to = ng_format_info(x.to)->text;
    char name[80];
    (void)snprintf(name, sizeof name, "%s/f32/%s%s", x.name, x.mx ? "mx-" : "", to);
    if (!bench_wants(run, name) || run->list)
        return;

    /* A copy of n bytes moves 2n: half of what the call reads and writes. */
    const size_t moved = (size_t)(x.rows * x.cols) * (32 + bits) / 8 +
                         (x.mx ? (size_t)(x.rows * x.cols) / 32 : 0);
    struct copy copy = { .bytes = moved / 2 };
    struct ng_bench bench[2] = { { .name = name,
                                   .setup = setup_convert,
                                   .run = run_convert,
                                   .done = done_convert,
                                   .arg = &x,
                                   .items = elements },
                                 { .name = "memcpy",
                                   .setup = setup_copy,
                                   .run = run_copy,
                                   .done = done_copy,
                                   .arg = &copy,
                                   .items = elements } };
    ng_bench_run(bench, 2, &run->options);
    if (x.failed) {
        bench_refuse(run, name, "the call failed");
        return;
    }
    bench_row(run, &(struct row){ .name = name,
                                  .label = x.mx ? "ng_quantize mx" : "ng_convert",
                                  .kernel = "ref",
                                  .profile = "",
                                  .tag = "",
                                  .a = "f32",
                                  .b = to,
                                  .m = x.rows,
                                  .n = x.cols,
                                  .k = 1,
                                  .unit = "Melem/s",
                                  .scale = 1e-6,
                                  .rate = bench[0].rate,
                                  .peak = bench[1].rate,
                                  .spread = bench[0].spread });
}

void bench_convert(struct bench *run)
{
    for (size_t i = 0; i < sizeof conversions / sizeof conversions[0]; i++)
        one(run, &conversions[i]);
}
