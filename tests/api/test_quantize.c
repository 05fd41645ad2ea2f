/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix and its transpose in one pass, and quantising into panels: each equals the calls it
 * stands for, on every byte. */
#include <stdlib.h>

#include "api.h"

enum {
    MAX = 40000
};

static float source[MAX];
static uint8_t data[4][4 * MAX], scales[4][MAX];
static uint32_t words[MAX];

static ng_ctx *context(uint32_t mask)
{
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = mask };
    ng_ctx *ctx = NULL;
    CHECK(ng_ctx_create(&config, &ctx) == NG_OK);
    return ctx;
}

/* Wide ranges, zeros, now and then an Inf or a NaN. */
static void draw_source(int64_t n, uint64_t *s)
{
    for (int64_t i = 0; i < n; i++) {
        const uint64_t r = next(s);
        const uint32_t sign = (uint32_t)(r & 1) << 31, fraction = (uint32_t)(r >> 9) & 0x7FFFFF;
        uint32_t u = sign | (118 + (uint32_t)(r >> 40) % 18) << 23 | fraction;
        if (r >> 54 == 0)
            u = sign | 0x7F800000u | (r >> 40 & 1 ? fraction : 0);
        else if (r >> 54 == 1)
            u = sign | fraction;
        else if (r >> 58 == 2)
            u = sign;
        memcpy(&source[i], &u, sizeof u);
    }
}

struct shape {
    int64_t rows, cols, pad;
};

static void describe(ng_tensor *t, ng_format f, int at, int64_t rows, int64_t cols,
                     uint32_t block, ng_format scale)
{
    const int64_t dim[] = { rows, cols };
    CHECK(ng_tensor_init(t, f, data[at], 2, dim) == NG_OK);
    CHECK(ng_tensor_set_scale(t, scale, scales[at], block, 1, NG_LAYOUT_LINEAR) == NG_OK);
}

static void clear(void)
{
    memset(data, 0xAA, sizeof data);
    memset(scales, 0xAA, sizeof scales);
}

/* ng_quantize_both() on `mask` against ng_quantize() twice, by the reference. */
static void both(uint32_t mask, struct shape x, ng_format to, ng_format to_t,
                 const ng_quantize_op *op)
{
    const bool nv = op->rule >= NG_SCALE_NVFP4_TE;
    const ng_format scale = nv ? NG_UE4M3 : NG_E8M0;
    const uint32_t block = nv ? 16 : 32;
    const int64_t dim[] = { x.rows, x.cols };
    ng_tensor src, dst, dst_t, want, want_t, turned;
    CHECK(ng_tensor_init(&src, NG_F32, source, 2, dim) == NG_OK);
    src.stride[0] += x.pad;
    turned = src;
    for (int d = 0; d < 2; d++) {
        turned.dim[d] = src.dim[1 - d];
        turned.stride[d] = src.stride[1 - d];
    }
    clear();
    describe(&dst, to, 0, x.rows, x.cols, block, scale);
    describe(&dst_t, to_t, 1, x.cols, x.rows, block, scale);
    describe(&want, to, 2, x.rows, x.cols, block, scale);
    describe(&want_t, to_t, 3, x.cols, x.rows, block, scale);
    ng_ctx *ctx = context(mask), *ref = context(NG_ISA_REF);
    CHECK(ng_quantize_both(ctx, op, &src, &dst, &dst_t) == NG_OK);
    CHECK(ng_quantize(ref, op, &src, &want) == NG_OK);
    CHECK(ng_quantize(ref, op, &turned, &want_t) == NG_OK);
    for (int i = 0; i < 2; i++) {
        CHECK(memcmp(data[i], data[i + 2], sizeof data[0]) == 0);
        CHECK(memcmp(scales[i], scales[i + 2], sizeof scales[0]) == 0);
    }
    CHECK(dst.tensor_scale == want.tensor_scale && dst_t.tensor_scale == want_t.tensor_scale);
    ng_ctx_destroy(ctx);
    ng_ctx_destroy(ref);
}

static void test_both(void)
{
    static const struct shape shapes[] = { { 32, 32, 0 },   { 64, 256, 0 }, { 33, 65, 0 },
                                           { 100, 300, 4 }, { 1, 40, 0 },   { 40, 1, 0 },
                                           { 31, 257, 1 },  { 96, 264, 8 }, { 129, 289, 0 },
                                           { 65, 577, 0 },  { 64, 545, 31 } };
    uint64_t s = 5;
    draw_source(MAX, &s);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (ng_scale_rule rule = NG_SCALE_FLOOR; rule <= NG_SCALE_NVFP4_TE; rule++)
            for (ng_block_special special = 0; special < 3; special++) {
                const bool nv = rule == NG_SCALE_NVFP4_TE;
                if (nv && special == NG_BLOCK_SPECIAL_EXPONENT)
                    continue;
                const ng_quantize_op op = { .size = sizeof op,
                                            .rule = rule,
                                            .special = special };
                both(0, shapes[i], nv ? NG_E2M1 : NG_E4M3FN, nv ? NG_E2M1 : NG_E5M2, &op);
                if (!nv)
                    both(0, shapes[i], NG_E2M1, NG_E2M1, &op);
            }
}

/* Random words belong to each result's own elements. */
static void test_both_words(void)
{
    uint64_t s = 6;
    draw_source(MAX, &s);
    for (int i = 0; i < MAX; i++)
        words[i] = (uint32_t)next(&s);
    const ng_quantize_op op = {
        .size = sizeof op,
        .cast = { .round = NG_ROUND_STOCHASTIC,
                  .random = { .kind = NG_RANDOM_EXTERNAL, .word = words, .count = MAX } }
    };
    both(0, (struct shape){ 64, 96, 0 }, NG_E4M3FN, NG_E2M1, &op);
}

static void test_both_refuses(void)
{
    const int64_t dim[] = { 64, 64 };
    ng_tensor src, dst, dst_t;
    ng_ctx *ctx = context(0);
    const ng_quantize_op op = { .size = sizeof op };
    CHECK(ng_tensor_init(&src, NG_F32, source, 2, dim) == NG_OK);
    clear();
    describe(&dst, NG_E4M3FN, 0, 64, 64, 32, NG_E8M0);
    describe(&dst_t, NG_E4M3FN, 0, 64, 64, 32, NG_E8M0);
    CHECK(ng_quantize_both(ctx, &op, &src, &dst, &dst_t) == NG_ERR_LAYOUT);
    CHECK(strstr(ng_ctx_message(ctx), "dst_t"));
    describe(&dst_t, NG_E4M3FN, 1, 64, 32, 32, NG_E8M0);
    CHECK(ng_quantize_both(ctx, &op, &src, &dst, &dst_t) == NG_ERR_SHAPE);
    CHECK(strstr(ng_ctx_message(ctx), "dst_t"));
    describe(&dst_t, NG_BF16, 1, 64, 64, 32, NG_E8M0);
    CHECK(ng_quantize_both(ctx, &op, &src, &dst, &dst_t) == NG_ERR_FORMAT);
    src.rank = 1;
    CHECK(ng_quantize_both(ctx, &op, &src, &dst, &dst_t) == NG_ERR_SHAPE);
    src.rank = 2;
    CHECK(ng_quantize_both(ctx, NULL, &src, &dst, &dst_t) == NG_ERR_ARGUMENT);
    for (size_t i = 0; i < 4096; i++)
        if (data[0][i] != 0xAA || data[1][i] != 0xAA) {
            check_at(__FILE__, __LINE__, false, "outputs untouched");
            break;
        }
    ng_ctx_destroy(ctx);
}

/* Weights into panels: the multiply's bits are those of codes that were quantised first. */
static void test_pack_quantized(void)
{
    enum {
        M = 24,
        K = 128,
        N = 40
    };
    static float d[2][M * N];
    const int64_t da[] = { M, K }, db[] = { K, N }, dd[] = { M, N };
    uint64_t s = 7;
    draw_source(K * N, &s);
    ng_tensor src, a, b, out,
        like = {
            .format = NG_E2M1, .scale_format = NG_E8M0, .block = 32, .layout = NG_LAYOUT_LINEAR
        };
    clear();
    CHECK(ng_tensor_init(&src, NG_F32, source, 2, db) == NG_OK);
    CHECK(ng_tensor_init(&a, NG_E4M3FN, data[0], 2, da) == NG_OK);
    fill_tensor(&a, &s);
    memset(scales[0], 127, M * K / 32);
    CHECK(ng_tensor_set_scale(&a, NG_E8M0, scales[0], 32, 1, NG_LAYOUT_LINEAR) == NG_OK);
    CHECK(ng_tensor_init(&b, NG_E2M1, data[1], 2, db) == NG_OK);
    CHECK(ng_tensor_set_scale(&b, NG_E8M0, scales[1], 32, 0, NG_LAYOUT_LINEAR) == NG_OK);
    const ng_quantize_op quantize = { .size = sizeof quantize, .rule = NG_SCALE_FLOOR_UP1 };
    const ng_gemm_op op = { .size = sizeof op, .profile = ng_profile_find("trn3") };
    ng_ctx *ctx = context(0);
    ng_packed *packed = NULL;
    CHECK(ng_quantize(ctx, &quantize, &src, &b) == NG_OK);
    CHECK(ng_tensor_init(&out, NG_F32, d[0], 2, dd) == NG_OK);
    CHECK(ng_gemm(ctx, &op, &a, &b, NULL, &out) == NG_OK);
    CHECK(ng_pack_quantized(ctx, &op, &quantize, &src, &like, NG_E4M3FN, &packed) == NG_OK);
    CHECK(ng_tensor_init(&out, NG_F32, d[1], 2, dd) == NG_OK);
    CHECK(packed && ng_gemm_packed(ctx, &op, &a, packed, NULL, &out) == NG_OK);
    CHECK(memcmp(d[0], d[1], sizeof d[0]) == 0);
    ng_packed_destroy(packed);

    packed = NULL;
    CHECK(ng_pack_quantized(ctx, &op, &quantize, NULL, &like, NG_E4M3FN, &packed) ==
          NG_ERR_ARGUMENT);
    like.block = 0;
    CHECK(ng_pack_quantized(ctx, &op, &quantize, &src, &like, NG_E4M3FN, &packed) ==
          NG_ERR_SHAPE);
    like.block = 32;
    like.format = NG_F32;
    CHECK(ng_pack_quantized(ctx, &op, &quantize, &src, &like, NG_E4M3FN, &packed) ==
          NG_ERR_FORMAT);
    CHECK(!packed);
    ng_ctx_destroy(ctx);
}

static void test_evidence(void)
{
    CHECK(ng_scale_rule_evidence(NG_SCALE_FLOOR_UP1) == NG_EVIDENCE_DOCUMENTED);
    CHECK(ng_scale_rule_evidence(NG_SCALE_RCEIL) == NG_EVIDENCE_BACKED);
    CHECK(ng_scale_rule_evidence((ng_scale_rule)7) == NG_EVIDENCE_ASSUMED);
    CHECK(ng_block_special_evidence(NG_BLOCK_SPECIAL_EXPONENT) == NG_EVIDENCE_BACKED);
    CHECK(ng_block_special_evidence(NG_BLOCK_SPECIAL_ELEMENT) == NG_EVIDENCE_ASSUMED);
}

int main(void)
{
    test_evidence();
    test_both();
    test_both_words();
    test_both_refuses();
    test_pack_quantized();
    return report("test_quantize");
}
