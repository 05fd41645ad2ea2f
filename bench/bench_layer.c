/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of ng/layer.h on rows of bf16, against a copy that moves as many bytes. */
#include <string.h>

#include "yardstick.h"

enum way {
    NORM,
    HALVES,
    ADJACENT,
    ADD
};
static const char *const ways[] = { "norm", "rope-halves", "rope-adjacent", "add" };

enum {
    HEAD = 64 /* elements */
};

struct between {
    enum way way;
    uint32_t isa;
    const ng_executor *executor;
    int64_t rows, cols;
    char kernel[40];

    ng_ctx *ctx;
    ng_tensor x, other, gain, cosine, sine, out;
};

static bool turns(const struct between *x)
{
    return x->way == HALVES || x->way == ADJACENT;
}

static ng_status call(struct between *x)
{
    const ng_rms_norm_op norm = { .size = sizeof norm, .eps = NG_RMS_NORM_EPS };
    const ng_rope_op rope = { .size = sizeof rope,
                              .pairs = x->way == ADJACENT ? NG_ROPE_ADJACENT : NG_ROPE_HALVES,
                              .product = NG_BF16 };
    if (turns(x))
        return ng_rope(x->ctx, &rope, &x->x, &x->cosine, &x->sine, &x->out);
    return x->way == NORM ? ng_rms_norm(x->ctx, &norm, &x->x, &x->gain, &x->out)
                          : ng_add(x->ctx, &x->x, &x->other, &x->out);
}

static void release(void *arg)
{
    struct between *x = arg;
    bench_free(&x->x);
    bench_free(&x->other);
    bench_free(&x->gain);
    bench_free(&x->cosine);
    bench_free(&x->sine);
    bench_free(&x->out);
    ng_ctx_destroy(x->ctx);
}

/* Operands; then one call, so that memory and caches are what the timed ones meet. */
static bool prepare(void *arg)
{
    struct between *x = arg;
    ng_ctx_config config = { .size = sizeof config, .isa_mask = x->isa };
    if (x->executor)
        config.executor = *x->executor;
    if (ng_ctx_create(&config, &x->ctx))
        return false;
    x->x = bench_operand(NG_BF16, x->rows, x->cols, 1, FILL_GAUSSIAN, 1);
    x->other = bench_operand(NG_BF16, x->rows, x->cols, 1, FILL_GAUSSIAN, 2);
    x->out = bench_operand(NG_BF16, x->rows, x->cols, 1, FILL_GAUSSIAN, 3);
    x->cosine = bench_operand(NG_BF16, x->rows, HEAD / 2, 1, FILL_GAUSSIAN, 4);
    x->sine = bench_operand(NG_BF16, x->rows, HEAD / 2, 1, FILL_GAUSSIAN, 5);
    x->gain = bench_operand(NG_BF16, 1, x->cols, 1, FILL_GAUSSIAN, 6);
    ng_status s = ng_tensor_init(&x->gain, NG_BF16, x->gain.data, 1, &x->cols);
    if (!s)
        s = call(x);
    (void)snprintf(x->kernel, sizeof x->kernel, "%s", ng_ctx_kernel(x->ctx));
    return s == NG_OK;
}

static void run_call(void *state)
{
    (void)call(state);
}

/* All that a call writes, of a few rows, against the reference's. */
static bool same_as_reference(const struct between *what)
{
    struct between got = *what, want = *what;
    got.rows = want.rows = 11;
    got.cols = want.cols = turns(what) ? 2 * HEAD : 75;
    want.isa = NG_ISA_REF;
    want.executor = NULL;
    bool same = prepare(&got);
    same = prepare(&want) && same;
    same = same &&
           memcmp(got.out.data, want.out.data, ng_tensor_bytes(NG_BF16, 2, got.out.dim)) == 0;
    release(&got);
    release(&want);
    return same;
}

/* In and out, each byte once. */
static size_t bytes_moved(const struct between *x)
{
    const int64_t rows = x->way == ADD ? 3 * x->rows : 2 * x->rows,
                  rest = x->way == NORM ? x->cols
                         : turns(x)     ? x->rows * HEAD
                                        : 0;
    return 2 * (size_t)(rows * x->cols + rest);
}

static void one(struct bench *run, const struct between *what)
{
    struct between x = *what;
    char name[120], label[64];
    const char *isa = ng_isa_name(x.isa);
    x.executor = run->executor;
    (void)snprintf(name, sizeof name, "layer/%s/%s/bf16/%lldx%lld", isa, ways[x.way],
                   (long long)x.rows, (long long)x.cols);
    if (!bench_wants(run, name) || run->list)
        return;
    if (!same_as_reference(&x)) {
        bench_refuse(run, name, "differs from the reference");
        return;
    }
    (void)snprintf(label, sizeof label, "%s %s", isa, ways[x.way]);
    bench_beside_copy(run, name,
                      &(struct bench_subject){
                          .arg = &x, .prepare = prepare, .call = run_call, .release = release },
                      bytes_moved(&x),
                      (struct row){ .label = label,
                                    .kernel = x.kernel,
                                    .profile = "",
                                    .a = "bf16",
                                    .b = "",
                                    .m = x.rows,
                                    .n = x.cols });
}

void bench_layer(struct bench *run)
{
    for (uint32_t isa = NG_ISA_REF; isa && isa <= NG_ISA_AVX512; isa <<= 1)
        for (enum way way = NORM; (isa & ng_isa_available()) && way <= ADD; way++)
            one(run, &(struct between){ .way = way,
                                        .isa = isa,
                                        .rows = isa == NG_ISA_REF ? 4 : 1024,
                                        .cols = way == HALVES || way == ADJACENT ? 64 * HEAD
                                                                                 : 2880 });
}
