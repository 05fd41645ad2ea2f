/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of ng/sparse.h with 2:4, against a copy that moves as many bytes. */
#include <stdlib.h>
#include <string.h>

#include "yardstick.h"

enum way {
    PRUNE_COMPRESS, /* one pass */
    COMPRESS,       /* of what satisfies the pattern: a check, then the pass */
    PRUNE,
    EXPAND,
    CHECK
};
static const char *const ways[] = { "prune-compress", "compress", "prune", "expand", "check" };

struct sparsity {
    enum way way;
    ng_format format;
    ng_tag_store store;
    uint32_t isa;
    const ng_executor *executor;
    int64_t rows, cols;
    char kernel[40];

    ng_ctx *ctx;
    ng_sparse_op op;
    ng_tensor dense, out, slots;
    ng_sparse sparse;
    uint8_t *tags;
};

static ng_status call(struct sparsity *x)
{
    ng_sparse_report report;
    switch (x->way) {
    case PRUNE_COMPRESS:
    case COMPRESS: return ng_compress(x->ctx, &x->op, &x->dense, &x->slots, x->tags);
    case PRUNE: return ng_prune(x->ctx, &x->op, &x->dense, &x->out);
    case EXPAND: {
        ng_tensor slots = x->slots;
        slots.sparse = &x->sparse;
        return ng_expand(x->ctx, &slots, 1, &x->out);
    }
    case CHECK: break;
    }
    return ng_sparse_check(x->ctx, &x->op, &x->dense, &report);
}

static ng_tensor empty(const struct sparsity *x, int64_t cols)
{
    const int64_t dim[2] = { x->rows, cols };
    const size_t bytes = ng_tensor_bytes(x->format, 2, dim);
    ng_tensor t;
    (void)ng_tensor_init(&t, x->format, bench_alloc(bytes), 2, dim);
    memset(t.data, 1, bytes);
    return t;
}

static void release(void *arg)
{
    struct sparsity *x = arg;
    bench_free(&x->dense);
    bench_free(&x->out);
    bench_free(&x->slots);
    free(x->tags);
    x->tags = NULL;
    ng_ctx_destroy(x->ctx);
}

/* Operands; then one call, so that slots, tags and caches are what the timed ones meet. */
static bool prepare(void *arg)
{
    struct sparsity *x = arg;
    ng_ctx_config config = { .size = sizeof config, .isa_mask = x->isa };
    if (x->executor)
        config.executor = *x->executor;
    if (ng_ctx_create(&config, &x->ctx))
        return false;
    const size_t line = ng_tags_bytes(x->store, x->cols / 2);
    x->op = (ng_sparse_op){ .size = sizeof x->op,
                            .kept = 2,
                            .group = 4,
                            .axis = 1,
                            .store = x->store,
                            .prune = x->way != COMPRESS };
    x->dense = bench_operand(x->format, x->rows, x->cols, 1, FILL_GAUSSIAN, 1);
    x->out = empty(x, x->cols);
    x->slots = empty(x, x->cols / 2);
    x->tags = bench_alloc((size_t)x->rows * line);
    memset(x->tags, 0, (size_t)x->rows * line);
    x->sparse = (ng_sparse){ .kept = 2, .group = 4, .store = x->store, .tags = x->tags };
    ng_status s = NG_OK;
    if (x->way == COMPRESS || x->way == CHECK)
        s = ng_prune(x->ctx, &x->op, &x->dense, &x->dense);
    if (!s && x->way == EXPAND)
        s = ng_compress(x->ctx, &x->op, &x->dense, &x->slots, x->tags);
    if (!s)
        s = call(x);
    (void)snprintf(x->kernel, sizeof x->kernel, "%s", ng_ctx_kernel(x->ctx));
    return s == NG_OK;
}

static void run_call(void *state)
{
    (void)call(state);
}

static size_t bytes_of(const ng_tensor *t)
{
    return ng_tensor_bytes(t->format, 2, t->dim);
}

/* All that a call writes, on a small shape with tails, against the reference's. */
static bool same_as_reference(const struct sparsity *what)
{
    struct sparsity got = *what, want = *what;
    got.rows = want.rows = 3;
    got.cols = want.cols = 32 * 5; /* 40 groups: a block, and a part of one */
    want.isa = NG_ISA_REF;
    want.executor = NULL;
    bool same = prepare(&got);
    same = prepare(&want) && same;
    same = same && memcmp(got.out.data, want.out.data, bytes_of(&got.out)) == 0 &&
           memcmp(got.slots.data, want.slots.data, bytes_of(&got.slots)) == 0 &&
           memcmp(got.tags, want.tags, 3 * ng_tags_bytes(what->store, got.cols / 2)) == 0;
    release(&got);
    release(&want);
    return same;
}

/* In and out, each byte once. */
static size_t bytes_moved(const struct sparsity *x)
{
    const size_t dense =
                     (size_t)(x->rows * x->cols) * ng_format_info(x->format)->store_bits / 8,
                 tags = (size_t)x->rows * ng_tags_bytes(x->store, x->cols / 2);
    switch (x->way) {
    case PRUNE: return 2 * dense;
    case CHECK: return dense;
    case PRUNE_COMPRESS:
    case COMPRESS:
    case EXPAND: break;
    }
    return dense + dense / 2 + tags;
}

static void one(struct bench *run, const struct sparsity *what)
{
    struct sparsity x = *what;
    char name[120], label[64];
    const char *format = ng_format_info(x.format)->text, *isa = ng_isa_name(x.isa),
               *store = x.store == NG_TAG_TRN ? "trn" : "nv24";
    x.executor = run->executor;
    (void)snprintf(name, sizeof name, "sparsity/%s/%s/%s/%s/%lldx%lld", isa, ways[x.way],
                   format, store, (long long)x.rows, (long long)x.cols);
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
                                    .profile = "2:4",
                                    .a = format,
                                    .b = store,
                                    .m = x.rows,
                                    .n = x.cols });
}

/* Does the ISA have a kernel of its own, or is the reference timed once more? */
static bool has_kernel(uint32_t isa)
{
    struct sparsity x = { .format = NG_BF16, .isa = isa, .rows = 1, .cols = 32 };
    const bool ok = prepare(&x);
    release(&x);
    return ok && strcmp(x.kernel, "ref") != 0;
}

void bench_sparse(struct bench *run)
{
    static const struct {
        ng_format format;
        ng_tag_store store;
    } operands[] = { { NG_BF16, NG_TAG_TRN },
                     { NG_BF16, NG_TAG_NV24 },
                     { NG_E4M3FN, NG_TAG_TRN } };
    for (uint32_t isa = NG_ISA_REF; isa; isa <<= 1) {
        if (!(isa & ng_isa_available()) || (isa != NG_ISA_REF && !has_kernel(isa)))
            continue;
        /* 256 MiB of bf16; of the reference, which needs minutes for that, 1 MiB. */
        const bool small = run->quick || isa == NG_ISA_REF;
        for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
            for (enum way way = PRUNE_COMPRESS; way <= CHECK; way++)
                one(run, &(struct sparsity){ .way = way,
                                             .format = operands[i].format,
                                             .store = operands[i].store,
                                             .isa = isa,
                                             .rows = small ? 128 : 8192,
                                             .cols = small ? 4096 : 16384 });
    }
}
