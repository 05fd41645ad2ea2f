/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_all_reduce: all ranks' buffers are read once, so the yardstick is a sum over as many
 * bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "yardstick.h"

struct reduction {
    const char *collective;
    ng_format format;
    uint32_t isa;
    const ng_executor *executor;
    int64_t ranks, elements;
    struct reader *reader; /* to be told how much is read */
    char kernel[40];
    bool failed, differs;

    ng_ctx *ctx;
    ng_all_reduce_op op;
    ng_tensor x, d;
};

static ng_status call(const struct reduction *x, ng_ctx *ctx, const ng_tensor *d)
{
    return ng_all_reduce(ctx, &x->op, &x->x, d);
}

/* Some elements, by the reference. */
static bool equals_reference(const struct reduction *x)
{
    enum {
        FEW = 500
    };
    for (int64_t i = 0; i < FEW; i++) {
        const int64_t index[1] = { i * (x->elements - 1) / (FEW - 1) };
        uint32_t want;
        if (ng_all_reduce_element(x->ctx, &x->op, &x->x, &x->d, index, NULL, 0, NULL, &want) ||
            ng_tensor_get(&x->d, index) != want)
            return false;
    }
    return true;
}

static void done_reduction(void *state)
{
    struct reduction *x = state;
    bench_free(&x->x);
    bench_free(&x->d);
    ng_ctx_destroy(x->ctx);
}

static void *setup_reduction(void *arg)
{
    struct reduction *x = arg;
    ng_ctx_config config = { .size = sizeof config, .isa_mask = x->isa | NG_ISA_REF };
    if (x->executor)
        config.executor = *x->executor;
    x->failed = ng_ctx_create(&config, &x->ctx) != NG_OK;
    if (x->failed)
        return NULL;
    x->op = (ng_all_reduce_op){ .size = sizeof x->op,
                                .collective = ng_collective_find(x->collective) };
    x->x = bench_matrix(x->format, x->ranks, x->elements, (struct spread){ -3, 1 }, 7);
    x->d = bench_matrix(x->format, 1, x->elements, (struct spread){ 0, 0 }, 8);
    x->d.rank = 1;
    x->d.dim[0] = x->elements;
    x->d.stride[0] = 1;
    x->failed = call(x, x->ctx, &x->d) != NG_OK;
    (void)snprintf(x->kernel, sizeof x->kernel, "%s", ng_ctx_kernel(x->ctx));
    x->differs = !x->failed && !equals_reference(x);
    x->reader->like = ng_tensor_bytes(x->format, 2, x->x.dim);
    if (!x->failed && !x->differs)
        return x;
    done_reduction(x);
    return NULL;
}

static void run_reduction(void *state)
{
    struct reduction *x = state;
    (void)call(x, x->ctx, &x->d);
}

static void one(struct bench *run, const struct reduction *what)
{
    const char *isa = ng_isa_name(what->isa), *format = ng_format_info(what->format)->text;
    struct reader reader = { .peak = peak_of(what->isa == NG_ISA_REF ? NG_ISA_AVX2 : what->isa),
                             .executor = run->executor,
                             .threads = run->threads };
    struct reduction x = *what;
    char name[100], label[60];
    x.executor = run->executor;
    x.reader = &reader;
    (void)snprintf(name, sizeof name, "collective/%s/%s/%s/%lldx%lld", isa, x.collective,
                   format, (long long)x.ranks, (long long)x.elements);
    (void)snprintf(label, sizeof label, "%s %s", isa, x.collective);
    if (!bench_wants(run, name) || run->list)
        return;
    struct ng_bench bench[2] = { { .name = name,
                                   .setup = setup_reduction,
                                   .run = run_reduction,
                                   .done = done_reduction,
                                   .arg = &x,
                                   .items = (double)ng_tensor_bytes(
                                       x.format, 2, (int64_t[]){ x.ranks, x.elements }) },
                                 yard_read(&reader) };
    ng_bench_run(bench, 2, &run->options);
    if (x.failed || x.differs) {
        bench_refuse(run, name, x.failed ? "the call failed" : "differs from the reference");
        return;
    }
    bench_row(run, &(struct row){ .name = name,
                                  .label = label,
                                  .kernel = x.kernel,
                                  .profile = x.collective,
                                  .tag = "",
                                  .a = format,
                                  .b = "",
                                  .m = x.ranks,
                                  .n = x.elements,
                                  .unit = "GB/s",
                                  .scale = 1e-9,
                                  .rate = bench[0].rate,
                                  .peak = yard_read_rate(&reader, &bench[1]),
                                  .spread = bench[0].spread });
}

void bench_collective(struct bench *run)
{
    static const struct {
        const char *collective;
        ng_format format;
        int64_t ranks, elements;
    } cases[] = {
        { "trn-ring", NG_BF16, 64, 1 << 21 },        { "trn-mesh", NG_BF16, 64, 1 << 21 },
        { "trn-rdh", NG_BF16, 64, 1 << 21 },         { "trn-kanga-ring", NG_BF16, 64, 1 << 21 },
        { "trn-single-step", NG_BF16, 64, 1 << 21 }, { "nccl-ring", NG_BF16, 8, 1 << 24 },
        { "nccl-ring", NG_F16, 8, 1 << 24 },         { "nccl-ring", NG_F32, 8, 1 << 23 },
        { "trn-ring", NG_E5M2, 64, 1 << 21 },
    };
    for (uint32_t isa = NG_ISA_REF; isa; isa <<= 1) {
        if (!(isa & ng_isa_available()) || isa >= NG_ISA_AVX512BF16)
            continue; /* those have AVX-512's additions */
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            one(run, &(struct reduction){ .collective = cases[i].collective,
                                          .format = cases[i].format,
                                          .isa = isa,
                                          .ranks = cases[i].ranks,
                                          .elements = isa == NG_ISA_REF ? 4096
                                                      : run->quick      ? 1 << 16
                                                                        : cases[i].elements });
    }
}
