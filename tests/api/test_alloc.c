/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allocator that fails at its n-th call, for every n: the call says so, nothing leaks, no
 * output is touched, and the context works again afterwards.
 */
#include <stdlib.h>

#include "api.h"

struct counted {
    long until_failure; /* calls that still succeed; negative: all */
    long calls, live;
    bool aligned;
};

static void *counted_alloc(void *user, size_t align, size_t bytes)
{
    struct counted *c = user;
    c->calls++;
    if (c->until_failure == 0)
        return NULL;
    if (c->until_failure > 0)
        c->until_failure--;
    void *p = aligned_alloc(align, (bytes + align - 1) / align * align);
    c->aligned = c->aligned && align >= 64 && (uintptr_t)p % align == 0;
    c->live += p != NULL;
    return p;
}

static void counted_free(void *user, void *ptr)
{
    struct counted *c = user;
    c->live -= ptr != NULL;
    free(ptr);
}

enum {
    M = 8,
    N = 40,
    K = 70
};

struct work {
    uint16_t a[M * K], b[K * N], big_b[2 * K * N], narrow[M * N];
    float d[M * N];
    uint8_t q[M * 64], scale[M * 2];
};

/* A context and calls of every kind; the first status that is not NG_OK. */
static ng_status session(struct counted *c, struct work *w, uint32_t mask)
{
    const ng_ctx_config config = { .size = sizeof config,
                                   .isa_mask = mask,
                                   .allocator = { counted_alloc, counted_free, c } };
    ng_ctx *ctx = NULL;
    ng_status s = ng_ctx_create(&config, &ctx);
    if (s)
        return s;
    const int64_t da[] = { M, K }, db[] = { K, N }, dd[] = { M, N }, dq[] = { M, 64 };
    ng_tensor a, b, d, e, f, q;
    (void)ng_tensor_init(&a, NG_BF16, w->a, 2, da);
    (void)ng_tensor_init(&b, NG_BF16, w->b, 2, db);
    (void)ng_tensor_init(&d, NG_F32, w->d, 2, dd);
    (void)ng_tensor_init(&e, NG_BF16, w->narrow, 2, dd);
    (void)ng_tensor_init(&f, NG_BF16, w->a, 2, dq);
    (void)ng_tensor_init(&q, NG_E4M3FN, w->q, 2, dq);
    (void)ng_tensor_set_scale(&q, NG_E8M0, w->scale, 32, 1, NG_LAYOUT_LINEAR);
    const ng_gemm_op op = { .size = sizeof op, .profile = ng_profile_find("trn2") };
    const ng_convert_op convert = { .size = sizeof convert };
    const ng_quantize_op quantize = { .size = sizeof quantize };

    s = ng_gemm(ctx, &op, &a, &b, NULL, &d);
    if (s) { /* D is as it was, and the same call succeeds once there is memory */
        bool untouched = true;
        for (size_t i = 0; i < M * N; i++)
            untouched = untouched && w->d[i] == -1.0f;
        CHECK(untouched);
        CHECK(strstr(ng_ctx_message(ctx), "allocator") != NULL);
        const long left = c->until_failure;
        c->until_failure = -1;
        CHECK(ng_gemm(ctx, &op, &a, &b, NULL, &d) == NG_OK);
        c->until_failure = left;
    }
    if (!s)
        s = ng_convert(ctx, &convert, &d, &e);
    if (!s)
        s = ng_quantize(ctx, &quantize, &f, &q);
    if (!s) { /* a wider multiply: the arena must grow */
        const int64_t wide[] = { K, 2 * N }, wide_d[] = { M, 2 * N };
        static float room[M * 2 * N];
        ng_tensor b2, d2;
        (void)ng_tensor_init(&b2, NG_BF16, w->big_b, 2, wide);
        (void)ng_tensor_init(&d2, NG_F32, room, 2, wide_d);
        s = ng_gemm(ctx, &op, &a, &b2, NULL, &d2);
    }
    if (!s) { /* partial sums take room of their own */
        static uint16_t sum[K];
        const ng_collective *tree = ng_collective_find("tree");
        const ng_all_reduce_op reduce = { .size = sizeof reduce, .collective = tree };
        const int64_t row[] = { K };
        ng_tensor total;
        (void)ng_tensor_init(&total, NG_BF16, sum, 1, row);
        s = ng_all_reduce(ctx, &reduce, &a, &total);
    }
    ng_ctx_destroy(ctx);
    return s;
}

static void prepare(struct work *w)
{
    uint64_t seed = 7;
    memset(w, 0, sizeof *w);
    for (size_t i = 0; i < M * K; i++)
        w->a[i] = (uint16_t)(0x3F80u | (next(&seed) & 0x807Fu));
    for (size_t i = 0; i < K * N; i++)
        w->b[i] = (uint16_t)(0x3F80u | (next(&seed) & 0x807Fu));
    for (size_t i = 0; i < M * N; i++)
        w->d[i] = -1.0f;
}

int main(void)
{
    static struct work w, good;
    static const uint32_t masks[] = { 0, NG_ISA_REF, NG_ISA_AVX2 };
    for (size_t m = 0; m < sizeof masks / sizeof masks[0]; m++) {
        struct counted all = { .until_failure = -1, .aligned = true };
        prepare(&good);
        CHECK(session(&all, &good, masks[m]) == NG_OK && all.live == 0 && all.aligned);
        CHECK(all.calls >= 1);
        for (long n = 0; n < all.calls; n++) {
            struct counted c = { .until_failure = n, .aligned = true };
            prepare(&w);
            CHECK(session(&c, &w, masks[m]) == NG_ERR_MEMORY);
            CHECK(c.live == 0 && c.aligned);
            if (n > 0) /* the context was made, and its first multiply ran in the end */
                CHECK(memcmp(w.d, good.d, sizeof w.d) == 0);
        }
    }
    /* With scratch memory of the caller's the library asks for the context only. */
    _Alignas(64) static unsigned char scratch[1 << 17];
    struct counted c = { .until_failure = 1, .aligned = true };
    const ng_ctx_config config = { .size = sizeof config,
                                   .allocator = { counted_alloc, counted_free, &c },
                                   .scratch = scratch,
                                   .scratch_bytes = sizeof scratch };
    ng_ctx *ctx = NULL;
    CHECK(ng_ctx_create(&config, &ctx) == NG_OK);
    const int64_t da[] = { M, K }, db[] = { K, N }, dd[] = { M, N };
    ng_tensor a, b, d;
    prepare(&w);
    (void)ng_tensor_init(&a, NG_BF16, w.a, 2, da);
    (void)ng_tensor_init(&b, NG_BF16, w.b, 2, db);
    (void)ng_tensor_init(&d, NG_F32, w.d, 2, dd);
    const ng_gemm_op op = { .size = sizeof op, .profile = ng_profile_find("trn2") };
    CHECK(ng_gemm(ctx, &op, &a, &b, NULL, &d) == NG_OK && c.calls == 1);
    CHECK(memcmp(w.d, good.d, sizeof w.d) == 0);
    ng_ctx_destroy(ctx);
    CHECK(c.live == 0);
    return report("test_alloc");
}
