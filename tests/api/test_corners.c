/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Corners that once were wrong: each names what a caller may rely on. Statuses and messages of
 * the ordinary misuses are in test_api.c.
 */
#include <pthread.h>
#include <stdlib.h>

#include "api.h"

static void check(bool ok, const char *what)
{
    check_at("corners", 0, ok, what);
}

static ng_tensor tensor(ng_format f, void *data, int64_t rows, int64_t cols)
{
    ng_tensor t;
    if (ng_tensor_init(&t, f, data, 2, (int64_t[]){ rows, cols }))
        abort();
    return t;
}

/* ---- Tags are an input like any other. ---- */

static void sparse_inputs(ng_ctx *ctx)
{
    uint16_t a[8] = { 0 }, b[64] = { 0 };
    unsigned char memory[64] = { 0 };
    ng_gemm_op op = { .size = sizeof op, .profile = ng_profile_find("trn2") };
    ng_tensor ta = tensor(NG_BF16, a, 2, 4), tb = tensor(NG_BF16, b, 8, 2);
    ng_tensor td = tensor(NG_F32, memory, 2, 2);
    ng_sparse sparse = { .kept = 2, .group = 4, .store = NG_TAG_TRN, .tags = memory + 8 };
    ta.sparse = &sparse;
    check(ng_gemm(ctx, &op, &ta, &tb, NULL, &td) == NG_ERR_LAYOUT &&
              strstr(ng_ctx_message(ctx), "tags"),
          "D over the tags of A is an overlap");
    sparse.tags = memory + 32;
    check(ng_gemm(ctx, &op, &ta, &tb, NULL, &td) == NG_OK, "D beside the tags is not");
    sparse.tag_stride = INT64_MAX;
    check(ng_gemm(ctx, &op, &ta, &tb, NULL, &td) == NG_ERR_LAYOUT,
          "a tag_stride that overflows");
}

static void words_are_inputs(ng_ctx *ctx)
{
    uint16_t a[4] = { 0 }, b[4] = { 0 };
    uint32_t memory[8] = { 0 };
    ng_gemm_op op = { .size = sizeof op, .profile = ng_profile_find("trn2") };
    op.out.round = NG_ROUND_STOCHASTIC;
    op.out.random = (ng_random){ NG_RANDOM_EXTERNAL, memory + 2, 4 };
    ng_tensor ta = tensor(NG_BF16, a, 2, 2), tb = tensor(NG_BF16, b, 2, 2);
    ng_tensor td = tensor(NG_F32, memory, 2, 2);
    check(ng_gemm(ctx, &op, &ta, &tb, NULL, &td) == NG_ERR_LAYOUT &&
              strstr(ng_ctx_message(ctx), "random words"),
          "D over the random words is an overlap");

    const ng_tensor from = tensor(NG_BF16, a, 2, 2);
    ng_tensor to = tensor(NG_F16, memory, 2, 2);
    ng_convert_op convert = { .size = sizeof convert, .cast = op.out };
    convert.cast.random.word = memory;
    check(ng_convert(ctx, &convert, &from, &to) == NG_ERR_LAYOUT &&
              strstr(ng_ctx_message(ctx), "random words"),
          "dst of a conversion over the random words is an overlap");
    ng_quantize_op quantize = { .size = sizeof quantize, .cast = convert.cast };
    to = tensor(NG_E4M3FN, memory, 2, 2);
    uint8_t scale[2] = { 9, 9 };
    check(ng_tensor_set_scale(&to, NG_E8M0, scale, 32, 1, NG_LAYOUT_LINEAR) == NG_OK &&
              ng_quantize(ctx, &quantize, &from, &to) == NG_ERR_LAYOUT &&
              strstr(ng_ctx_message(ctx), "random words"),
          "elements of a quantisation over the random words are an overlap");
    to.data = b;
    to.scale = (uint8_t *)memory + 6;
    check(ng_quantize(ctx, &quantize, &from, &to) == NG_ERR_LAYOUT &&
              strstr(ng_ctx_message(ctx), "random words"),
          "scales over the random words are an overlap");
    for (int i = 0; i < 8; i++)
        check(memory[i] == 0, "refused, yet written");
}

/* ---- Scratch is sized by shapes, not by values. ---- */

static void scratch_for_any_data(ng_ctx *ctx)
{
    enum {
        N = 64
    };
    static uint16_t a[N * N], b[N * N];
    static uint32_t d[N * N];
    const ng_gemm_op op = { .size = sizeof op, .profile = ng_profile_find("trn2") };
    ng_tensor ta = tensor(NG_BF16, a, N, N), tb = tensor(NG_BF16, b, N, N);
    ng_tensor td = tensor(NG_F32, d, N, N);
    size_t finite = 1, special = 2;
    check(ng_gemm_scratch(ctx, &op, &ta, &tb, NULL, &td, &finite) == NG_OK, "scratch");
    a[5] = 0x7F80;
    check(ng_gemm_scratch(ctx, &op, &ta, &tb, NULL, &td, &special) == NG_OK,
          "scratch with Inf");
    check(finite == special, "scratch does not depend on values");
}

/* ---- Block scaling. ---- */

static void quantize_corners(ng_ctx *ctx)
{
    uint32_t x[4] = { 0x3F800000, 0x40000000, 0, 0x3F000000 };
    unsigned char codes[4], scale[1];
    ng_tensor src = tensor(NG_F32, x, 1, 4), dst = tensor(NG_E4M3FN, codes, 1, 4);
    const ng_quantize_op op = { .size = sizeof op, .rule = NG_SCALE_FLOOR };
    check(ng_tensor_set_scale(&dst, NG_E8M0, scale, UINT32_MAX, 1, NG_LAYOUT_LINEAR) == NG_OK,
          "set_scale");
    dst.tensor_scale = 0x40000000;
    check(ng_quantize(ctx, &op, &src, &dst) == NG_OK, "a block longer than the axis is short");
    check(dst.tensor_scale == 0, "the MX rules have no tensor scale");
}

static void scale_move_names_the_store(ng_ctx *ctx)
{
    unsigned char from[4] = { 0 }, to[4];
    check(ng_scale_move(ctx, (ng_scale_store)9, from, NG_SCALE_LINEAR, to, 1, 4, 0, 0) ==
                  NG_ERR_ARGUMENT &&
              strstr(ng_ctx_message(ctx), "from"),
          "scale_move names a store that is none");
}

/* ---- Profiles. ---- */

static void profile_corners(void)
{
    char text[64], message[300];
    ng_profile *p = ng_profile_copy(ng_profile_find("nv-hopper"));
    check(p != NULL, "copy");
    check(ng_param_print(NG_PARAM_COUNT, 0, text, sizeof text) == 0,
          "no such parameter prints");
    check(ng_profile_parse(NULL, 0, &p, message, sizeof message) == NG_ERR_ARGUMENT,
          "parsing NULL is a wrong argument");
    check(ng_profile_set(p, "bf16", "exact_group", "14") == NG_OK &&
              ng_profile_check(p, message, sizeof message) == NG_ERR_PROFILE &&
              strstr(message, "e2m1"),
          "exact groups want FP4 operands");
    ng_profile_free(p);

    p = ng_profile_copy(ng_profile_find("fma-f32"));
    check(ng_profile_set(p, "plain", "rows", "128") == NG_OK &&
              ng_profile_set(p, "plain", "chain_map", "parity") == NG_OK &&
              ng_profile_check(p, message, sizeof message) == NG_OK,
          "chain_rows = 0 is one chain of all rows");
    ng_profile_free(p);

    p = ng_profile_copy(ng_profile_find("nv-hopper"));
    check(ng_profile_set(p, "fp8", "group", "-2147483648") == NG_OK &&
              ng_profile_check(p, message, sizeof message) == NG_ERR_PROFILE,
          "a negative group is refused, not computed with");
    ng_profile_free(p);
}

/* ---- Two threads, two contexts, one pool. ---- */

struct job {
    ng_executor executor;
    uint32_t d[32 * 32];
    bool ok;
};

static void *multiply_often(void *arg)
{
    struct job *j = arg;
    static uint16_t a[32 * 32], b[32 * 32]; /* zeros: only the schedule is of interest */
    const ng_ctx_config config = { .size = sizeof config, .executor = j->executor };
    const ng_gemm_op op = { .size = sizeof op, .profile = ng_profile_find("trn2") };
    ng_tensor ta = tensor(NG_BF16, a, 32, 32), tb = tensor(NG_BF16, b, 32, 32);
    ng_tensor td = tensor(NG_F32, j->d, 32, 32);
    ng_ctx *ctx;
    j->ok = ng_ctx_create(&config, &ctx) == NG_OK;
    for (int i = 0; i < 500 && j->ok; i++)
        j->ok = ng_gemm(ctx, &op, &ta, &tb, NULL, &td) == NG_OK;
    ng_ctx_destroy(ctx);
    return NULL;
}

static void shared_pool(void)
{
    ng_pool *pool = NULL;
    static struct job job[2];
    pthread_t thread[2];
    ng_executor e;
    if (ng_pool_create(3, &pool, &e) == NG_ERR_UNSUPPORTED) {
        printf("skipped: shared pool: built without threads\n");
        return;
    }
    for (int i = 0; i < 2; i++) {
        job[i].executor = e;
        check(pthread_create(&thread[i], NULL, multiply_often, &job[i]) == 0, "thread");
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        check(job[i].ok, "two contexts share a pool");
    }
    ng_pool_destroy(pool);
}

/* Operands in blocks of 32 along k under e8m0 scales, and room for two results. */
struct scaled {
    const char *profile;
    ng_format format;
    int64_t m, n, k;
    uint8_t *a, *b, *a_scale, *b_scale;
    float *d;
};

/* By NG_ISA_REF, whose result d keeps, and by one ISA after another with it. */
static void as_the_reference(const struct scaled *x, const char *what)
{
    float *const next = x->d + x->m * x->n;
    for (int i = 0; i < 4; i++) {
        const ng_ctx_config config = { .size = sizeof config, .isa_mask = (2u << i) - 1u };
        const ng_gemm_op op = { .size = sizeof op, .profile = ng_profile_find(x->profile) };
        ng_ctx *ctx;
        ng_tensor ta = tensor(x->format, x->a, x->m, x->k),
                  tb = tensor(x->format, x->b, x->k, x->n),
                  td = tensor(NG_F32, i ? next : x->d, x->m, x->n);
        check(ng_ctx_create(&config, &ctx) == NG_OK, "a context");
        check(ng_tensor_set_scale(&ta, NG_E8M0, x->a_scale, 32, 1, NG_LAYOUT_LINEAR) == NG_OK &&
                  ng_tensor_set_scale(&tb, NG_E8M0, x->b_scale, 32, 0, NG_LAYOUT_LINEAR) ==
                      NG_OK &&
                  ng_gemm(ctx, &op, &ta, &tb, NULL, &td) == NG_OK,
              what);
        check(!i || memcmp(next, x->d, (size_t)(x->m * x->n) * sizeof *next) == 0, what);
        ng_ctx_destroy(ctx);
    }
}

/*
 * Four lanes of A whose magnitudes sum past 2^128, products that are small again: a row whose
 * sum FP32 does not hold must show as one. Row i has its lanes 1, 8 or 16 elements apart, as
 * profiles may have them.
 */
static void sums_past_the_range(void)
{
    enum {
        M = 8,
        N = 64,
        K = 64
    };
    static const int apart[] = { 1, 8, 16 };
    uint8_t a[M * K] = { 0 }, b[K * N], a_scale[M * K / 32], b_scale[K / 32 * N];
    const uint8_t large = 0x7B, tiny = 0x20; /* e5m2: 1.75 2^15, 2^-7 */
    for (int i = 0; i < M; i++) {
        const int step = apart[i % 3], next = step == 1 ? 4 : 1;
        for (int l = 0; l < 3; l++) {
            a[i * K + l * step] = large | 0x80;
            a[i * K + next + l * step] = large;
        }
        a[i * K + next + 3 * step] = tiny;
    }
    memset(b, 0x3C, sizeof b);                  /* e5m2: 1 */
    memset(a_scale, 127 + 112, sizeof a_scale); /* 2^127 and more */
    memset(b_scale, 127 - 40, sizeof b_scale);
    float d[2][M * N];
    as_the_reference(&(struct scaled){ "trn3", NG_E5M2, M, N, K, a, b, a_scale, b_scale, d[0] },
                     "sums past the range");
}

/*
 * 1 + 2^-23, then 2^-24 - 2^-54 of one row of lanes: a little below the middle, where FP64
 * would put it. `far`: so many elements of zeros between the two. Lanes as above. Where the
 * second comes in a K tile of its own, 2^-24 is what FP32 leaves of it: the middle.
 */
static void sums_near_the_middle(const char *profile, int far, float want)
{
    enum {
        M = 9,
        N = 33,
        FAR = 4096
    };
    static const int apart[] = { 1, 8, 16 };
    static uint8_t a[M * (FAR + 64)], b[(FAR + 64) * N], a_scale[M * (FAR / 32 + 2)],
        b_scale[(FAR / 32 + 2) * N];
    static float d[2][M * N];
    const uint8_t up8 = 0x78, up6 = 0x68, one = 0x38, down9 = 0x01; /* e4m3fn: 2^8 ... */
    const int k = far + 64, last = far + 32;
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    for (int i = 0; i < M; i++) {
        const int step = apart[i % 3];
        a[i * k] = up8;
        a[i * k + step] = down9;
        a[i * k + last] = up6;
        a[i * k + last + step] = 0x80 | down9;
    }
    for (int j = 0; j < N; j++)
        for (int l = 0; l < 32; l++) {
            b[l * N + j] = l ? one : up6;
            b[(last + l) * N + j] = l ? down9 : up6;
        }
    memset(b_scale, 127, sizeof b_scale);
    for (int i = 0; i < M * k / 32; i++)
        a_scale[i] = i % (k / 32) == last / 32 ? 127 - 36 : 127 - 14;
    as_the_reference(
        &(struct scaled){ profile, NG_E4M3FN, M, N, k, a, b, a_scale, b_scale, d[0] },
        "sums near the middle");
    check(d[0][0] == want, "the first row's lanes are one row's");
}

/* Where results are flushed, a C with bits below 2^-126 may leave nothing but these. */
static void flushed_rest_of_c(void)
{
    enum {
        M = 16,
        N = 32
    };
    static uint16_t a[M], b[N];
    static float c[M * N], d[4][M * N];
    for (int i = 0; i < M; i++)
        a[i] = 0x2380; /* bf16: 2^-56 */
    for (int i = 0; i < N; i++)
        b[i] = 0xA380; /* -2^-56 */
    for (int i = 0; i < M * N; i++)
        c[i] = 0x1.000002p-112f; /* and 2^-135 is left */
    for (int i = 0; i < 4; i++) {
        const ng_ctx_config config = { .size = sizeof config, .isa_mask = (2u << i) - 1u };
        const ng_gemm_op op = { .size = sizeof op, .profile = ng_profile_find("amd-cdna2") };
        ng_ctx *ctx;
        ng_tensor ta = tensor(NG_BF16, a, M, 1), tb = tensor(NG_BF16, b, 1, N),
                  tc = tensor(NG_F32, c, M, N), td = tensor(NG_F32, d[i], M, N);
        bool zeros = ng_ctx_create(&config, &ctx) == NG_OK &&
                     ng_gemm(ctx, &op, &ta, &tb, &tc, &td) == NG_OK;
        for (int j = 0; j < M * N; j++)
            zeros = zeros && d[i][j] == 0;
        check(zeros, "a rest of 2^-135 is flushed");
        ng_ctx_destroy(ctx);
    }
}

/* K of more than one block of the runner's: psum and a whole chain go on from block to block.
 */
static void blocks_of_k(void)
{
    enum {
        M = 20,
        N = 20,
        K = 9000
    };
    static const char *const profiles[] = { "trn2", "fma-f32", "nv-hopper", "amd-cdna2",
                                            "amd-cdna3" };
    static uint16_t a[M * K], b[K * N];
    static float d[4][M * N];
    uint32_t seed = 7;
    for (int i = 0; i < M * K; i++) { /* bf16 of either sign, 2^-3 to 2^4 */
        seed = seed * 1664525u + 1013904223u;
        a[i] = (uint16_t)((seed >> 31) << 15 | (0x3E00 + (seed >> 8) % 0x400));
        b[i] = (uint16_t)((seed >> 30) << 15 | (0x3E00 + (seed >> 12) % 0x400));
    }
    for (size_t p = 0; p < sizeof profiles / sizeof profiles[0]; p++)
        for (int i = 0; i < 4; i++) {
            const ng_ctx_config config = { .size = sizeof config, .isa_mask = (2u << i) - 1u };
            const ng_gemm_op op = { .size = sizeof op,
                                    .profile = ng_profile_find(profiles[p]) };
            ng_ctx *ctx;
            ng_tensor ta = tensor(NG_BF16, a, M, K), tb = tensor(NG_BF16, b, K, N),
                      td = tensor(NG_F32, d[i], M, N);
            check(ng_ctx_create(&config, &ctx) == NG_OK, "a context");
            check(ng_gemm(ctx, &op, &ta, &tb, NULL, &td) == NG_OK, "blocks of K");
            check(memcmp(d[i], d[0], sizeof d[0]) == 0,
                  "blocks of K as the reference has them");
            ng_ctx_destroy(ctx);
        }
}

int main(void)
{
    ng_ctx *ctx;
    if (ng_ctx_create(NULL, &ctx))
        return 1;
    sparse_inputs(ctx);
    words_are_inputs(ctx);
    scratch_for_any_data(ctx);
    quantize_corners(ctx);
    scale_move_names_the_store(ctx);
    profile_corners();
    shared_pool();
    sums_past_the_range();
    sums_near_the_middle("trn3", 0, 0x1.000002p0f);
    sums_near_the_middle("trn3", 4096, 0x1.000004p0f);
    sums_near_the_middle("ocp-mx", 4096, 0x1.000002p0f);
    flushed_rest_of_c();
    blocks_of_k();
    ng_ctx_destroy(ctx);
    return report("corners");
}
