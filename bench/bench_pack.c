/* SPDX-License-Identifier: Apache-2.0 */
/* ng_pack() of weights, whose codes lie along k or across it, against a copy that moves as many
 * bytes as are read and packed. */
#include <string.h>

#include "yardstick.h"

struct packing {
    const char *profile;
    ng_format a, b;
    const char *tag; /* "mx": in blocks; "double-row"; or NULL */
    bool along;      /* a column's codes lie one after another */
    uint32_t isa;
    const ng_executor *executor;
    int64_t k, n;
    char kernel[40];

    ng_ctx *ctx;
    ng_tensor weights;
    size_t bytes; /* read and packed */
};
static const struct packing packings[] = {
    { "trn2", NG_BF16, NG_BF16, NULL, false },
    { "trn2", NG_BF16, NG_BF16, NULL, true },
    { "trn2", NG_E4M3, NG_E4M3, NULL, false },
    { "trn2", NG_E4M3, NG_E4M3, NULL, true },
    { "trn2", NG_E4M3, NG_E4M3, "double-row", false },
    { "trn2", NG_E4M3, NG_E4M3, "double-row", true },
    { "trn3", NG_E4M3FN, NG_E4M3FN, "mx", false },
    { "trn3", NG_E4M3FN, NG_E4M3FN, "mx", true },
    { "trn3", NG_E4M3FN, NG_E2M1, "mx", false },
    { "trn3", NG_E4M3FN, NG_E2M1, "mx", true },
    { "fma-f32", NG_F32, NG_F32, NULL, false },
    { "fma-f32", NG_F32, NG_F32, NULL, true },
};

static bool is(const struct packing *x, const char *tag)
{
    return x->tag && strcmp(x->tag, tag) == 0;
}

static ng_gemm_op op_of(const struct packing *x)
{
    return (ng_gemm_op){ .size = sizeof(ng_gemm_op),
                         .profile = ng_profile_find(x->profile),
                         .double_row = is(x, "double-row") };
}

/* [K, N]: the rows in memory are K's, or N's. */
static ng_tensor weights_of(const struct packing *x)
{
    const bool blocks = is(x, "mx");
    const enum fill fill = blocks ? FILL_MX : FILL_GAUSSIAN;
    if (!x->along)
        return bench_operand(x->b, x->k, x->n, 0, fill, 1);
    ng_tensor t = bench_operand(x->b, x->n, x->k, 1, fill, 1);
    t.dim[0] = x->k;
    t.dim[1] = x->n;
    t.stride[1] = t.stride[0];
    t.stride[0] = 1;
    t.block_axis = 0;
    if (blocks) {
        t.scale_stride[0] = 1;
        t.scale_stride[1] = x->k / (int64_t)t.block;
    }
    return t;
}

static ng_status call(struct packing *x)
{
    const ng_gemm_op op = op_of(x);
    ng_packed *packed = NULL;
    const ng_status s = ng_pack(x->ctx, &op, &x->weights, x->a, &packed);
    if (!s)
        x->bytes = ng_packed_bytes(packed);
    ng_packed_destroy(packed);
    return s;
}

static void release(void *arg)
{
    struct packing *x = arg;
    bench_free(&x->weights);
    ng_ctx_destroy(x->ctx);
    x->ctx = NULL;
}

static bool prepare(void *arg)
{
    struct packing *x = arg;
    ng_ctx_config config = { .size = sizeof config, .isa_mask = isas_of(x->isa) };
    if (x->executor)
        config.executor = *x->executor;
    if (ng_ctx_create(&config, &x->ctx))
        return false;
    x->weights = weights_of(x);
    return call(x) == NG_OK;
}

static void run_call(void *state)
{
    (void)call(state);
}

/* A product with packed weights against the reference's with the weights as they are. */
static bool same_as_reference(const struct packing *what, char kernel[40])
{
    enum {
        ROWS = 29,
        COLUMNS = 70
    };
    struct packing x = *what;
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    const ng_gemm_op op = op_of(&x);
    ng_packed *packed = NULL;
    ng_ctx *ref = NULL;
    x.k = 96;
    x.n = COLUMNS;
    x.executor = NULL;
    bool same = prepare(&x) && ng_ctx_create(&config, &ref) == NG_OK;
    ng_tensor a = bench_operand(x.a, ROWS, x.k, 1, is(&x, "mx") ? FILL_MX : FILL_GAUSSIAN, 2),
              got = bench_matrix(NG_F32, ROWS, x.n, (struct spread){ 0, 0 }, 3),
              want = bench_matrix(NG_F32, ROWS, x.n, (struct spread){ 0, 0 }, 4);
    same = same && ng_pack(x.ctx, &op, &x.weights, x.a, &packed) == NG_OK &&
           ng_gemm_packed(x.ctx, &op, &a, packed, NULL, &got) == NG_OK &&
           ng_gemm(ref, &op, &a, &x.weights, NULL, &want) == NG_OK &&
           memcmp(got.data, want.data, (size_t)(ROWS * x.n) * 4) == 0;
    (void)snprintf(kernel, 40, "%s", ng_ctx_kernel(x.ctx));
    ng_packed_destroy(packed);
    ng_ctx_destroy(ref);
    bench_free(&a);
    bench_free(&got);
    bench_free(&want);
    release(&x);
    return same;
}

static void one(struct bench *run, const struct packing *what)
{
    struct packing x = *what;
    char name[120], label[64];
    const char *a = ng_format_info(x.a)->text, *b = ng_format_info(x.b)->text,
               *isa = ng_isa_name(x.isa);
    x.executor = run->executor;
    (void)snprintf(name, sizeof name, "pack/%s/%s/%s%s%sx%s/%s/%lldx%lld", isa, x.profile,
                   x.tag ? x.tag : "", x.tag ? "-" : "", a, b, x.along ? "along" : "across",
                   (long long)x.k, (long long)x.n);
    if (!bench_wants(run, name) || run->list)
        return;
    if (!same_as_reference(&x, x.kernel)) {
        bench_refuse(run, name, "differs from the reference");
        return;
    }
    if (!prepare(&x)) {
        bench_refuse(run, name, "the call failed");
        release(&x);
        return;
    }
    const int64_t numbers = x.k * x.n;
    const size_t moved = x.bytes + (size_t)numbers * ng_format_info(x.b)->store_bits / 8 +
                         (is(&x, "mx") ? (size_t)numbers / 32 : 0);
    release(&x);
    (void)snprintf(label, sizeof label, "%s pack %s", isa, x.along ? "along" : "across");
    bench_beside_copy(run, name,
                      &(struct bench_subject){
                          .arg = &x, .prepare = prepare, .call = run_call, .release = release },
                      moved,
                      (struct row){ .label = label,
                                    .kernel = x.kernel,
                                    .profile = x.profile,
                                    .tag = x.tag,
                                    .a = a,
                                    .b = b,
                                    .m = x.k,
                                    .n = x.n });
}

void bench_pack(struct bench *run)
{
    const int64_t size = run->quick ? 1024 : 4096;
    for (uint32_t isa = NG_ISA_REF << 1; isa; isa <<= 1)
        for (size_t i = 0; isa & ng_isa_available() && i < sizeof packings / sizeof *packings;
             i++) {
            struct packing x = packings[i];
            x.isa = isa;
            x.k = x.n = size;
            one(run, &x);
        }
}
