/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every documented misuse gives its status and a message that names operand, value found and
 * value wanted, and leaves the outputs as they were.
 */
#include <stdlib.h>

#include "api.h"

enum {
    BYTES = 8192,
    PATTERN = 0x5A
};

static ng_ctx *ctx;

/* What a refusal must say: parts of the message, ended by NULL. */
static void refused(int line, ng_status got, ng_status want, const char *const *parts)
{
    checks++;
    const char *message = ng_ctx_message(ctx);
    bool ok = got == want;
    for (; ok && *parts; parts++)
        ok = strstr(message, *parts) != NULL;
    if (ok)
        return;
    failures++;
    printf("FAIL %s:%d: %s, wanted %s%s%s: \"%s\"\n", __FILE__, line, ng_status_name(got),
           ng_status_name(want), *parts ? " with " : "", *parts ? *parts : "", message);
}
#define PARTS(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* ---- Multiply. ---- */

/* A good multiply, which each test spoils in one place. */
struct multiply {
    unsigned char a[BYTES], b[BYTES], c[BYTES], d[BYTES], scale_a[BYTES], scale_b[BYTES];
    unsigned char tags[BYTES];
    uint32_t words[64];
    ng_tensor ta, tb, tc, td;
    ng_sparse sparse;
    ng_gemm_op op;
    bool dot, with_c;
};

static void fill(unsigned char *p)
{
    memset(p, PATTERN, BYTES);
}

static bool untouched(const unsigned char *p)
{
    for (size_t i = 0; i < BYTES; i++)
        if (p[i] != PATTERN)
            return false;
    return true;
}

static struct multiply *fresh(const char *profile, ng_format a, ng_format b, ng_format d)
{
    static struct multiply f;
    memset(&f, 0, sizeof f);
    fill(f.d);
    const int64_t da[] = { 4, 64 }, db[] = { 64, 6 }, dd[] = { 4, 6 };
    CHECK(ng_tensor_init(&f.ta, a, f.a, 2, da) == NG_OK);
    CHECK(ng_tensor_init(&f.tb, b, f.b, 2, db) == NG_OK);
    CHECK(ng_tensor_init(&f.tc, NG_F32, f.c, 2, dd) == NG_OK);
    CHECK(ng_tensor_init(&f.td, d, f.d, 2, dd) == NG_OK);
    f.op = (ng_gemm_op){ .size = sizeof f.op, .profile = ng_profile_find(profile) };
    f.with_c = true;
    return &f;
}

static struct multiply *plain(void)
{
    return fresh("trn3", NG_BF16, NG_BF16, NG_F32);
}

static struct multiply *scaled(const char *profile, ng_format a, ng_format b)
{
    struct multiply *f = fresh(profile, a, b, NG_F32);
    CHECK(ng_tensor_set_scale(&f->ta, NG_E8M0, f->scale_a, 32, 1, NG_LAYOUT_LINEAR) == NG_OK);
    CHECK(ng_tensor_set_scale(&f->tb, NG_E8M0, f->scale_b, 32, 0, NG_LAYOUT_LINEAR) == NG_OK);
    return f;
}

static struct multiply *sparse(uint32_t kept, uint32_t group)
{
    struct multiply *f = plain();
    f->sparse = (ng_sparse){ .kept = kept, .group = group, .tags = f->tags };
    f->ta.sparse = &f->sparse;
    f->ta.dim[1] = 32;
    f->ta.stride[0] = 32;
    return f;
}

static ng_status call(struct multiply *f)
{
    const ng_tensor *c = f->with_c ? &f->tc : NULL;
    return f->dot ? ng_dot(ctx, &f->op, &f->ta, &f->tb, c, &f->td)
                  : ng_gemm(ctx, &f->op, &f->ta, &f->tb, c, &f->td);
}

/* The call, and what asks the same front door: all refuse alike, and none writes. */
static void refuse(int line, struct multiply *f, ng_status want, const char *const *parts)
{
    const ng_tensor *c = f->with_c ? &f->tc : NULL;
    refused(line, call(f), want, parts);
    if (!f->dot) {
        size_t bytes = 12345;
        refused(line, ng_gemm_scratch(ctx, &f->op, &f->ta, &f->tb, c, &f->td, &bytes), want,
                parts);
        check_at(__FILE__, line, bytes == 12345, "bytes is untouched");
    }
    check_at(__FILE__, line, untouched(f->d), "d is untouched");
}
#define REFUSE(f, want, ...) refuse(__LINE__, f, want, PARTS(__VA_ARGS__))

static void good_calls(void)
{
    struct multiply *f = plain();
    CHECK(call(f) == NG_OK && ng_ctx_message(ctx)[0] == '\0' && !untouched(f->d));
    f = scaled("trn3", NG_E4M3FN, NG_E2M1);
    CHECK(call(f) == NG_OK && !untouched(f->d));
    f = scaled("ocp-mx", NG_E4M3FN, NG_E5M2);
    CHECK(call(f) == NG_OK && !untouched(f->d));
    f = sparse(2, 4);
    CHECK(call(f) == NG_OK && !untouched(f->d));
    f = plain();
    f->op.accumulate = NG_BF16;
    f->with_c = false;
    CHECK(call(f) == NG_OK && !untouched(f->d));
    f = fresh("nv-hopper", NG_F16, NG_F16, NG_F32);
    CHECK(call(f) == NG_OK && !untouched(f->d));
    f = plain(); /* D in C's place */
    f->tc = f->td;
    memset(f->d, 0, sizeof f->d);
    CHECK(call(f) == NG_OK);
}

static void null_arguments(void)
{
    struct multiply *f = plain();
    CHECK(ng_gemm(NULL, &f->op, &f->ta, &f->tb, NULL, &f->td) == NG_ERR_ARGUMENT);
    CHECK(ng_dot(NULL, &f->op, &f->ta, &f->tb, NULL, &f->td) == NG_ERR_ARGUMENT);
    refused(__LINE__, ng_gemm(ctx, NULL, &f->ta, &f->tb, NULL, &f->td), NG_ERR_ARGUMENT,
            PARTS("gemm", "op"));
    refused(__LINE__, ng_gemm(ctx, &f->op, NULL, &f->tb, NULL, &f->td), NG_ERR_ARGUMENT,
            PARTS("gemm", "a is NULL"));
    refused(__LINE__, ng_gemm(ctx, &f->op, &f->ta, NULL, NULL, &f->td), NG_ERR_ARGUMENT,
            PARTS("gemm", "b is NULL"));
    refused(__LINE__, ng_gemm(ctx, &f->op, &f->ta, &f->tb, NULL, NULL), NG_ERR_ARGUMENT,
            PARTS("gemm", "d is NULL"));
    refused(__LINE__, ng_dot(ctx, &f->op, NULL, &f->tb, NULL, &f->td), NG_ERR_ARGUMENT,
            PARTS("dot", "a is NULL"));
    refused(__LINE__, ng_gemm_scratch(ctx, &f->op, &f->ta, &f->tb, NULL, &f->td, NULL),
            NG_ERR_ARGUMENT, PARTS("bytes"));
    for (int wrong = -1; wrong <= 1; wrong += 2) {
        f = plain();
        f->op.size += (size_t)wrong;
        REFUSE(f, NG_ERR_ARGUMENT, "op.size");
    }
    f = plain();
    f->op.profile = NULL;
    REFUSE(f, NG_ERR_ARGUMENT, "profile");
    f = plain();
    f->ta.data = NULL;
    REFUSE(f, NG_ERR_ARGUMENT, "a has no data");
    f = plain();
    f->tb.data = NULL;
    REFUSE(f, NG_ERR_ARGUMENT, "b has no data");
    f = plain();
    f->tc.data = NULL;
    REFUSE(f, NG_ERR_ARGUMENT, "c has no data");
    f = plain();
    f->td.data = NULL;
    REFUSE(f, NG_ERR_ARGUMENT, "d has no data");
}

static void shapes(void)
{
    struct multiply *f = plain();
    f->ta.dim[1] = 63;
    REFUSE(f, NG_ERR_SHAPE, "K", "63 in a", "64 in b");
    f = plain();
    f->td.dim[0] = 3;
    REFUSE(f, NG_ERR_SHAPE, "M", "4 in a", "3 in d");
    f = plain();
    f->td.dim[1] = 5;
    REFUSE(f, NG_ERR_SHAPE, "N", "6 in b", "5 in d");
    f = plain();
    f->tc.dim[0] = 3;
    REFUSE(f, NG_ERR_SHAPE, "M", "4 in a", "3 in c");
    f = plain();
    f->tc.dim[1] = 5;
    REFUSE(f, NG_ERR_SHAPE, "N", "6 in b", "5 in c");
    for (int64_t n = 0; n >= -1; n--) {
        f = plain();
        f->ta.dim[0] = n;
        REFUSE(f, NG_ERR_SHAPE, "dimension 0 of a", n ? "-1" : "0", "at least 1");
        f = plain();
        f->td.dim[1] = n;
        REFUSE(f, NG_ERR_SHAPE, "dimension 1 of d", n ? "-1" : "0", "at least 1");
    }
    f = plain();
    f->ta.rank = 5;
    REFUSE(f, NG_ERR_SHAPE, "a has rank 5");
    f = plain();
    f->ta.rank = 0;
    REFUSE(f, NG_ERR_SHAPE, "a has rank 0");
    f = plain();
    f->ta.rank = 1;
    REFUSE(f, NG_ERR_SHAPE, "a has rank 1", "2 to 4");
    f = plain();
    f->tb.rank = 3;
    f->tb.dim[2] = 1;
    REFUSE(f, NG_ERR_SHAPE, "b has rank 3");
    f = plain();
    f->td.rank = 1;
    REFUSE(f, NG_ERR_SHAPE, "d has rank 1");
    f = plain();
    f->tc.rank = 1;
    REFUSE(f, NG_ERR_SHAPE, "c has rank 1");
    f = plain();
    f->ta.dim[0] = INT64_MAX;
    REFUSE(f, NG_ERR_SHAPE, "a");
    f = plain();
    f->ta.dim[0] = (int64_t)1 << 40;
    f->ta.dim[1] = (int64_t)1 << 40;
    REFUSE(f, NG_ERR_SHAPE, "a", "2^47");
    f = plain();
    f->ta.stride[0] = INT64_MAX;
    REFUSE(f, NG_ERR_SHAPE, "stride", "a", "overflows");
    f = plain();
    f->tb.stride[1] = INT64_MIN;
    REFUSE(f, NG_ERR_SHAPE, "stride", "b", "overflows");
    f = plain();
    f->td.stride[0] = (int64_t)1 << 62;
    REFUSE(f, NG_ERR_SHAPE, "stride", "d", "overflows");
}

static void batches(void)
{
    struct multiply *f = plain();
    const int64_t da[] = { 2, 4, 16 }, db[] = { 2, 16, 6 }, dd[] = { 2, 4, 6 };
    for (int spoil = 0; spoil < 4; spoil++) {
        f = plain();
        ng_tensor *const t[] = { &f->ta, &f->tb, &f->tc, &f->td };
        static const char *const who[] = { "a", "in b", "in c", "in d" };
        CHECK(ng_tensor_init(&f->ta, NG_BF16, f->a, 3, da) == NG_OK);
        CHECK(ng_tensor_init(&f->tb, NG_BF16, f->b, 3, db) == NG_OK);
        CHECK(ng_tensor_init(&f->tc, NG_F32, f->c, 3, dd) == NG_OK);
        CHECK(ng_tensor_init(&f->td, NG_F32, f->d, 3, dd) == NG_OK);
        t[spoil]->dim[0] = 3;
        REFUSE(f, NG_ERR_SHAPE, "batch", who[spoil], "3", "2");
    }
}

static void formats(void)
{
    struct multiply *f = plain();
    f->ta.format = NG_FORMAT_NONE;
    REFUSE(f, NG_ERR_FORMAT, "a has format number 0");
    f = plain();
    f->tb.format = (ng_format)0xFE;
    REFUSE(f, NG_ERR_FORMAT, "b has format number 254");
    f = plain();
    f->td.format = NG_FORMAT_LIMIT;
    REFUSE(f, NG_ERR_FORMAT, "d has format number 255");

    REFUSE(fresh("trn3", NG_E4M3, NG_E4M3FN, NG_F32), NG_ERR_PROFILE, "trn3", "e4m3", "e4m3fn",
           "never");
    REFUSE(fresh("trn3", NG_E4M3FN, NG_E4M3, NG_F32), NG_ERR_PROFILE, "trn3", "e4m3fn",
           "never");
    REFUSE(fresh("trn2", NG_E4M3FN, NG_E4M3FN, NG_F32), NG_ERR_PROFILE, "trn2", "e4m3fn");
    REFUSE(fresh("trn2", NG_F32, NG_BF16, NG_F32), NG_ERR_PROFILE, "trn2", "f32", "bf16");
    REFUSE(fresh("trn2", NG_BF16, NG_F32, NG_F32), NG_ERR_PROFILE, "trn2", "f32", "bf16");
    REFUSE(fresh("trn2", NG_F32, NG_TF32, NG_F32), NG_ERR_PROFILE, "trn2", "f32", "tf32");
    REFUSE(fresh("nv-hopper", NG_F16, NG_BF16, NG_F32), NG_ERR_PROFILE, "nv-hopper", "bf16");
    REFUSE(fresh("nv-volta", NG_BF16, NG_BF16, NG_F32), NG_ERR_PROFILE, "nv-volta", "bf16");
    REFUSE(fresh("trn3", NG_E8M0, NG_BF16, NG_F32), NG_ERR_PROFILE, "trn3", "e8m0");
    REFUSE(scaled("trn2", NG_E5M2, NG_E5M2), NG_ERR_PROFILE, "trn2", "mx");
    REFUSE(scaled("trn1", NG_E5M2, NG_E5M2), NG_ERR_PROFILE, "trn1", "mx");
    REFUSE(scaled("trn3", NG_BF16, NG_BF16), NG_ERR_PROFILE, "trn3", "bf16");
    f = fresh("trn1", NG_E5M2, NG_E5M2, NG_F32);
    f->op.double_row = true;
    REFUSE(f, NG_ERR_PROFILE, "trn1", "double_row");
    f = plain();
    f->op.double_row = true;
    REFUSE(f, NG_ERR_PROFILE, "trn3", "bf16", "double_row");
    f = scaled("trn3", NG_E5M2, NG_E5M2);
    f->op.double_row = true;
    REFUSE(f, NG_ERR_PROFILE, "double_row");

    f = fresh("trn2", NG_BF16, NG_BF16, NG_F32);
    f->op.accumulate = NG_BF16;
    f->with_c = false;
    REFUSE(f, NG_ERR_FORMAT, "trn2", "bf16", "accumulator");
    f = plain();
    f->op.accumulate = NG_F16;
    REFUSE(f, NG_ERR_FORMAT, "f16", "accumulator");
    f = plain();
    f->op.accumulate = (ng_format)99;
    REFUSE(f, NG_ERR_FORMAT, "accumulator");
    f = fresh("nv-hopper", NG_BF16, NG_BF16, NG_F16);
    f->op.accumulate = NG_F16;
    f->with_c = false;
    REFUSE(f, NG_ERR_FORMAT, "nv-hopper", "f16", "accumulator");
    f = plain();
    f->op.accumulate = NG_BF16; /* and C is f32 */
    REFUSE(f, NG_ERR_FORMAT, "c is f32", "bf16");
    f = plain();
    f->tc.scale = f->scale_a;
    REFUSE(f, NG_ERR_FORMAT, "c and d");
    f = plain();
    f->td.scale = f->scale_a;
    REFUSE(f, NG_ERR_FORMAT, "c and d");
    f = plain();
    f->td.sparse = &f->sparse;
    REFUSE(f, NG_ERR_FORMAT, "c and d");
}

static void block_scales(void)
{
    struct multiply *f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->tb.scale = NULL;
    REFUSE(f, NG_ERR_FORMAT, "a has block scales", "b has none");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.scale = NULL;
    REFUSE(f, NG_ERR_FORMAT, "b has block scales", "a has none");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.scale_format = NG_BF16;
    REFUSE(f, NG_ERR_FORMAT, "a", "bf16", "e8m0");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->tb.scale_format = NG_UE4M3;
    REFUSE(f, NG_ERR_FORMAT, "e8m0", "ue4m3");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.block = 0;
    REFUSE(f, NG_ERR_SHAPE, "a has block 0");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.block_axis = 7;
    REFUSE(f, NG_ERR_SHAPE, "a", "7");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.block_axis = 0;
    REFUSE(f, NG_ERR_LAYOUT, "blocks of a", "dimension 0", "wanted: 1");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->tb.block_axis = 1;
    REFUSE(f, NG_ERR_LAYOUT, "blocks of b", "dimension 1", "wanted: 0");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.block = 16;
    REFUSE(f, NG_ERR_LAYOUT, "16", "32");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.block = f->tb.block = 16;
    REFUSE(f, NG_ERR_PROFILE, "16", "trn3/mx", "32");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.layout = (ng_layout)9;
    REFUSE(f, NG_ERR_ARGUMENT, "layout 9", "a");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.layout = NG_LAYOUT_TRN_WRAP;
    REFUSE(f, NG_ERR_LAYOUT, "trn_wrap");
    f = scaled("ocp-mx", NG_E4M3FN, NG_E4M3FN);
    f->ta.layout = f->tb.layout = NG_LAYOUT_TRN_WRAP;
    REFUSE(f, NG_ERR_LAYOUT, "trn_wrap");
    f = scaled("nv-blackwell-tcgen05", NG_E4M3FN, NG_E4M3FN);
    f->ta.layout = f->tb.layout = NG_LAYOUT_TRN_WRAP;
    REFUSE(f, NG_ERR_LAYOUT, "trn_wrap");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.layout = f->tb.layout = NG_LAYOUT_TRN_WRAP;
    f->ta.dim[1] = f->tb.dim[0] = 48;
    REFUSE(f, NG_ERR_SHAPE, "48", "multiple of 32");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.layout = NG_LAYOUT_TRN_WRAP;
    f->ta.block = 16;
    REFUSE(f, NG_ERR_LAYOUT, "a has block 16", "32");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.tensor_scale = 0x3F800000u;
    REFUSE(f, NG_ERR_FORMAT, "tensor_scale", "out_scale");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.scale_stride[0] = INT64_MAX;
    REFUSE(f, NG_ERR_SHAPE, "a", "overflows");
}

static void layouts(void)
{
    struct multiply *f = scaled("trn3", NG_E2M1, NG_E2M1);
    f->ta.stride[0] = 65;
    REFUSE(f, NG_ERR_LAYOUT, "stride 65 of dimension 0 of a", "e2m1", "byte");
    f = scaled("trn3", NG_E2M1, NG_E2M1);
    f->tb.stride[1] = 3;
    REFUSE(f, NG_ERR_LAYOUT, "stride 3", "of b", "byte");
    f = fresh("trn3", NG_BF16, NG_BF16, NG_E2M1);
    f->op.out.overflow = NG_OVERFLOW_SATURATE;
    f->td.stride[0] = 7;
    REFUSE(f, NG_ERR_LAYOUT, "stride 7", "of d", "byte");

    f = plain();
    f->td.data = f->d + 16;
    f->ta.data = f->d;
    REFUSE(f, NG_ERR_LAYOUT, "d overlaps a");
    f = plain();
    f->tb.data = f->d;
    REFUSE(f, NG_ERR_LAYOUT, "d overlaps b");
    f = plain();
    f->tc.data = f->d + 4;
    REFUSE(f, NG_ERR_LAYOUT, "d overlaps c");
    f = plain();
    f->tc.data = f->d;
    f->tc.stride[0] = 8;
    REFUSE(f, NG_ERR_LAYOUT, "d overlaps c");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->ta.scale = f->d + 20;
    REFUSE(f, NG_ERR_LAYOUT, "d overlaps the scales of a");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->tb.scale = f->d;
    REFUSE(f, NG_ERR_LAYOUT, "d overlaps the scales of b");
    f = plain();
    f->td.stride[0] = 0;
    REFUSE(f, NG_ERR_LAYOUT, "d share memory");
    f = plain();
    f->td.stride[0] = 5;
    REFUSE(f, NG_ERR_LAYOUT, "d share memory");
    f = plain(); /* backwards, ending inside A */
    f->td.data = f->a + 64;
    f->td.stride[0] = -6;
    REFUSE(f, NG_ERR_LAYOUT, "d overlaps a");
}

static void casts(void)
{
    struct multiply *f = plain();
    f->op.out.round = (ng_round)7;
    REFUSE(f, NG_ERR_ARGUMENT, "op.out", "round");
    f = plain();
    f->op.out.round = (ng_round)-1;
    REFUSE(f, NG_ERR_ARGUMENT, "op.out", "round");
    f = plain();
    f->op.out.overflow = (ng_overflow)3;
    REFUSE(f, NG_ERR_ARGUMENT, "op.out", "overflow");
    f = plain();
    f->op.out.nan_sign = (ng_nan_sign)2;
    REFUSE(f, NG_ERR_ARGUMENT, "op.out", "nan_sign");
    f = plain();
    f->op.out.nan_to = (ng_nan_to)3;
    REFUSE(f, NG_ERR_ARGUMENT, "op.out", "nan_to");
    f = plain();
    f->op.out.sr = (ng_sr)3;
    REFUSE(f, NG_ERR_ARGUMENT, "op.out", "sr");
    f = plain();
    f->op.out.sr_take = (ng_sr_take)2;
    REFUSE(f, NG_ERR_ARGUMENT, "op.out", "sr_take");
    f = plain();
    f->op.out.sr_bits = 33;
    REFUSE(f, NG_ERR_ARGUMENT, "op.out", "sr_bits");
    REFUSE(fresh("trn3", NG_BF16, NG_BF16, NG_E2M1), NG_ERR_FORMAT, "op.out", "e2m1", "sat");
    f = fresh("trn3", NG_BF16, NG_BF16, NG_E2M1);
    f->op.out = (ng_cast){ .overflow = NG_OVERFLOW_SATURATE, .nan_to = NG_NAN_TO_ERROR };
    REFUSE(f, NG_ERR_ARGUMENT, "nan_to");

    f = plain();
    f->op.out.round = NG_ROUND_STOCHASTIC;
    REFUSE(f, NG_ERR_ARGUMENT, "op.out", "no random words");
    f = plain();
    f->op.out.round = NG_ROUND_STOCHASTIC;
    f->op.out.random = (ng_random){ NG_RANDOM_EXTERNAL, NULL, 24 };
    REFUSE(f, NG_ERR_ARGUMENT, "op.out", "no random words");
    f = plain();
    f->op.out.round = NG_ROUND_STOCHASTIC;
    f->op.out.random = (ng_random){ NG_RANDOM_EXTERNAL, f->words, 23 };
    REFUSE(f, NG_ERR_ARGUMENT, "op.out", "23", "24");
    f = plain();
    f->op.accumulate = NG_BF16;
    f->with_c = false;
    f->op.psum.round = NG_ROUND_TOWARD_ZERO;
    REFUSE(f, NG_ERR_PROFILE, "op.psum", "trn3");
    f->op.psum.round = NG_ROUND_STOCHASTIC;
    REFUSE(f, NG_ERR_ARGUMENT, "op.psum", "no random words");
    f->op.psum.random = (ng_random){ NG_RANDOM_EXTERNAL, f->words, 23 };
    REFUSE(f, NG_ERR_ARGUMENT, "op.psum", "23", "24");

    f = plain();
    f->op.out_scale = 0x7F800000u;
    REFUSE(f, NG_ERR_ARGUMENT, "out_scale", "0x7F800000", "finite");
    f = plain();
    f->op.out_scale = 0x7FC00000u;
    REFUSE(f, NG_ERR_ARGUMENT, "out_scale", "0x7FC00000", "finite");
    static const uint8_t map[16];
    f = scaled("trn3", NG_E2M1, NG_E2M1);
    f->op.fp4_map = map;
    f->op.fp4_format = NG_BF16;
    REFUSE(f, NG_ERR_FORMAT, "fp4_format");
    f = scaled("nv-blackwell-tcgen05", NG_E2M1, NG_E2M1);
    f->op.fp4_map = map;
    f->op.fp4_format = NG_E4M3FN;
    REFUSE(f, NG_ERR_PROFILE, "FP4 table");
}

static void sparsity(void)
{
    struct multiply *f = sparse(2, 4);
    f->tb.sparse = &f->sparse;
    REFUSE(f, NG_ERR_LAYOUT, "both a and b are sparse");
    REFUSE(sparse(2, 17), NG_ERR_ARGUMENT, "a", "2:17", "16");
    REFUSE(sparse(0, 4), NG_ERR_ARGUMENT, "a", "0:4");
    REFUSE(sparse(5, 4), NG_ERR_ARGUMENT, "a", "5:4");
    REFUSE(sparse(2, 0), NG_ERR_ARGUMENT, "a", "2:0");
    f = sparse(2, 4);
    f->sparse.tags = NULL;
    REFUSE(f, NG_ERR_ARGUMENT, "a", "without tags");
    f = sparse(2, 4);
    f->sparse.store = (ng_tag_store)2;
    REFUSE(f, NG_ERR_LAYOUT, "tags of a", "store 2");
    f = sparse(4, 8);
    f->sparse.store = NG_TAG_NV24;
    REFUSE(f, NG_ERR_LAYOUT, "tags of a", "8");
    f = sparse(2, 4);
    f->tb.dim[0] = 62;
    REFUSE(f, NG_ERR_SHAPE, "a", "2:4", "64", "62");
    f = sparse(2, 4);
    f->ta.dim[1] = 31;
    REFUSE(f, NG_ERR_SHAPE, "a", "31");
    f = sparse(2, 4);
    f->tags[5] = 0x40;
    REFUSE(f, NG_ERR_ARGUMENT, "tag 11 of line 0 of a is 4", "4");
    f = sparse(2, 4);
    f->sparse.tag_stride = 15;
    REFUSE(f, NG_ERR_LAYOUT, "tag_stride of a", "15", "16");
    f = fresh("trn3", NG_E5M2, NG_E5M2, NG_F32);
    f->sparse = (ng_sparse){ .kept = 2, .group = 4, .tags = f->tags };
    f->ta.sparse = &f->sparse;
    f->ta.dim[1] = 32;
    f->op.double_row = true;
    REFUSE(f, NG_ERR_PROFILE, "double_row", "sparse");
    f = scaled("trn3", NG_E4M3FN, NG_E4M3FN);
    f->sparse = (ng_sparse){ .kept = 2, .group = 4, .tags = f->tags };
    f->ta.sparse = &f->sparse;
    f->ta.dim[1] = 32;
    REFUSE(f, NG_ERR_PROFILE, "sparse", "scales");
}

static void own_profiles(void)
{
    struct multiply *f = plain();
    ng_profile *p = ng_profile_copy(ng_profile_find("trn3"));
    if (!CHECK(p != NULL))
        return;
    f->op.profile = p;
    CHECK(ng_profile_set(p, "plain", "chain_rows", "33") == NG_OK);
    REFUSE(f, NG_ERR_PROFILE, "trn3", "plain", "chain_rows is 33", "divisor of rows");
    CHECK(ng_profile_set(p, "plain", "chain_rows", "32") == NG_OK);
    CHECK(ng_profile_set(p, "plain", "acc_bits", "54") == NG_OK);
    REFUSE(f, NG_ERR_PROFILE, "acc_bits is 54", "2 to 53");
    CHECK(ng_profile_set(p, "plain", "acc_bits", "24") == NG_OK);
    CHECK(call(f) == NG_OK);
    ng_profile_free(p);

    /* A struct that no parser saw: every number must be looked at. */
    ng_rule rule = ng_profile_find("trn3")->rules[0];
    const ng_profile own = { .name = "own", .about = "", .n_rules = 1, .rules = &rule };
    static const ng_param named[] = { NG_PARAM_CHAIN_MAP, NG_PARAM_COMBINE, NG_PARAM_ACC_RANGE,
                                      NG_PARAM_LANE_SUM,  NG_PARAM_PSUM,    NG_PARAM_ACC_ROUND,
                                      NG_PARAM_K_MAP,     NG_PARAM_FAMILY };
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        f = plain();
        f->op.profile = &own;
        rule = ng_profile_find("trn3")->rules[0];
        rule.set[named[i]].value = 77;
        REFUSE(f, NG_ERR_PROFILE, ng_param_key(named[i]), "77");
    }
    f = plain();
    f->op.profile = &own;
    rule = ng_profile_find("trn3")->rules[0];
    rule.set[NG_PARAM_LANES].value = 65;
    REFUSE(f, NG_ERR_PROFILE, "lanes is 65");
}

static void scratch(void)
{
    ng_ctx *const shared = ctx;
    _Alignas(64) static unsigned char room[1 << 18];
    struct multiply *f = plain();
    size_t bytes = 0;
    const ng_tensor *c = &f->tc;
    CHECK(ng_gemm_scratch(ctx, &f->op, &f->ta, &f->tb, c, &f->td, &bytes) == NG_OK);
    CHECK(bytes <= sizeof room);
    if (bytes > 0 && bytes <= sizeof room) { /* 0 where no kernel is built */
        char found[32], wanted[32];
        ng_ctx_config config = { .size = sizeof config,
                                 .scratch = room,
                                 .scratch_bytes = bytes - 1 };
        (void)snprintf(found, sizeof found, "%zu", bytes - 1);
        (void)snprintf(wanted, sizeof wanted, "%zu", bytes);
        CHECK(ng_ctx_create(&config, &ctx) == NG_OK);
        refused(__LINE__, call(f), NG_ERR_SCRATCH, PARTS("scratch", found, wanted));
        CHECK(untouched(f->d));
        ng_ctx_destroy(ctx);
        config.scratch_bytes = bytes;
        CHECK(ng_ctx_create(&config, &ctx) == NG_OK);
        CHECK(call(f) == NG_OK);
        ng_ctx_destroy(ctx);
    }
    ctx = shared;
}

static void dots(void)
{
    const int64_t da[] = { 4, 64 }, dd[] = { 4 };
    for (int spoil = 0; spoil < 8; spoil++) {
        struct multiply *f = plain();
        f->dot = true;
        CHECK(ng_tensor_init(&f->tb, NG_BF16, f->b, 2, da) == NG_OK);
        CHECK(ng_tensor_init(&f->tc, NG_F32, f->c, 1, dd) == NG_OK);
        CHECK(ng_tensor_init(&f->td, NG_F32, f->d, 1, dd) == NG_OK);
        switch (spoil) {
        case 0: CHECK(call(f) == NG_OK); break;
        case 1:
            f->ta.rank = 1;
            REFUSE(f, NG_ERR_SHAPE, "dot", "a has rank 1", "2");
            break;
        case 2:
            f->tb.rank = 1;
            REFUSE(f, NG_ERR_SHAPE, "dot", "b has rank 1");
            break;
        case 3:
            f->td.rank = 2;
            f->td.dim[1] = 1;
            REFUSE(f, NG_ERR_SHAPE, "dot", "d has rank 2", "1");
            break;
        case 4:
            f->tb.dim[0] = 3;
            REFUSE(f, NG_ERR_SHAPE, "dot", "number of rows", "4 in a", "3 in b");
            break;
        case 5:
            f->tc.dim[0] = 3;
            REFUSE(f, NG_ERR_SHAPE, "dot", "number of rows", "4 in a", "3 in c");
            break;
        case 6:
            f->tb.dim[1] = 63;
            REFUSE(f, NG_ERR_SHAPE, "dot", "K", "64 in a", "63 in b");
            break;
        default:
            f->td.dim[0] = 5;
            REFUSE(f, NG_ERR_SHAPE, "dot", "number of rows", "4 in a", "5 in d");
            break;
        }
    }
}

static void elements(void)
{
    struct multiply *f = plain();
    int64_t at[] = { 1, 1 };
    uint32_t code = 0xABCD;
    ng_value exact = { .sig = 77 };
    const ng_trace no_step = { NULL, NULL };
    const ng_tensor *c = &f->tc;
#define ELEMENT(index, trace, out)                                                             \
    ng_gemm_element(ctx, &f->op, false, &f->ta, &f->tb, c, &f->td, index, trace, out)
    CHECK(ELEMENT(at, NULL, &code) == NG_OK && code == 0 && untouched(f->d));
    code = 0xABCD;
    refused(__LINE__, ELEMENT(NULL, NULL, &code), NG_ERR_ARGUMENT, PARTS("index"));
    refused(__LINE__, ELEMENT(at, NULL, NULL), NG_ERR_ARGUMENT, PARTS("code"));
    refused(__LINE__, ELEMENT(at, &no_step, &code), NG_ERR_ARGUMENT, PARTS("trace"));
    at[1] = 6;
    refused(__LINE__, ELEMENT(at, NULL, &code), NG_ERR_ARGUMENT, PARTS("index[1] is 6", "6"));
    at[1] = 0;
    at[0] = -1;
    refused(__LINE__, ELEMENT(at, NULL, &code), NG_ERR_ARGUMENT, PARTS("index[0] is -1", "4"));
    at[0] = 0;
    f->td.data = NULL; /* not written, so not needed */
    CHECK(code == 0xABCD && ELEMENT(at, NULL, &code) == NG_OK);
    refused(__LINE__, ng_gemm_exact(ctx, &f->op, false, &f->ta, &f->tb, c, &f->td, at, NULL),
            NG_ERR_ARGUMENT, PARTS("exact"));
    CHECK(ng_gemm_exact(ctx, &f->op, false, &f->ta, &f->tb, c, &f->td, at, &exact) == NG_OK);
    CHECK(exact.sig == 0);
    f->tb.dim[0] = 63;
    code = 0xABCD;
    refused(__LINE__, ELEMENT(at, NULL, &code), NG_ERR_SHAPE, PARTS("K", "64 in a", "63 in b"));
    CHECK(code == 0xABCD);
    f = plain();
    CHECK(ng_gemm_rule(ctx, &f->op, &f->ta, &f->tb) == &f->op.profile->rules[0]);
    CHECK(!ng_gemm_rule(NULL, &f->op, &f->ta, &f->tb));
    CHECK(!ng_gemm_rule(ctx, NULL, &f->ta, &f->tb));
    CHECK(!ng_gemm_rule(ctx, &f->op, NULL, &f->tb));
    f->tb.format = NG_F32;
    CHECK(!ng_gemm_rule(ctx, &f->op, &f->ta, &f->tb) && strstr(ng_ctx_message(ctx), "f32"));
}

/* ---- Convert, quantise, dequantise. ---- */

struct convert {
    unsigned char src[BYTES], dst[BYTES], src_scale[BYTES], dst_scale[BYTES];
    ng_tensor from, to;
    ng_convert_op op;
    ng_quantize_op quantize;
};

enum which {
    CONVERT,
    DEQUANTIZE,
    QUANTIZE
};

static struct convert *fresh_convert(enum which which, ng_format from, ng_format to)
{
    static struct convert f;
    const int64_t dim[] = { 4, 64 };
    const bool nv = to == NG_E2M1;
    memset(&f, 0, sizeof f);
    fill(f.dst);
    fill(f.dst_scale);
    CHECK(ng_tensor_init(&f.from, from, f.src, 2, dim) == NG_OK);
    CHECK(ng_tensor_init(&f.to, to, f.dst, 2, dim) == NG_OK);
    if (which == DEQUANTIZE)
        CHECK(ng_tensor_set_scale(&f.from, NG_E8M0, f.src_scale, 32, 1, NG_LAYOUT_LINEAR) ==
              NG_OK);
    if (which == QUANTIZE)
        CHECK(ng_tensor_set_scale(&f.to, nv ? NG_UE4M3 : NG_E8M0, f.dst_scale, nv ? 16 : 32, 1,
                                  NG_LAYOUT_LINEAR) == NG_OK);
    f.op.size = sizeof f.op;
    f.quantize = (ng_quantize_op){ .size = sizeof f.quantize,
                                   .rule = nv ? NG_SCALE_NVFP4_TE : NG_SCALE_FLOOR };
    f.to.tensor_scale = which == QUANTIZE ? 0x12345678u : 0;
    return &f;
}

static void refuse_convert(int line, enum which which, struct convert *f, ng_status want,
                           const char *const *parts)
{
    const uint32_t scale = f->to.tensor_scale;
    const ng_status s = which == CONVERT ? ng_convert(ctx, &f->op, &f->from, &f->to)
                        : which == DEQUANTIZE
                            ? ng_dequantize(ctx, &f->op, &f->from, &f->to)
                            : ng_quantize(ctx, &f->quantize, &f->from, &f->to);
    refused(line, s, want, parts);
    check_at(__FILE__, line,
             untouched(f->dst) && untouched(f->dst_scale) && f->to.tensor_scale == scale,
             "dst and its scales are untouched");
}
#define REFUSE_CONVERT(which, f, want, ...)                                                    \
    refuse_convert(__LINE__, which, f, want, PARTS(__VA_ARGS__))

/* What convert and dequantise have in common. */
static void both_converts(enum which w)
{
    const char *const name = w == CONVERT ? "convert" : "dequantize";
    const ng_format from = w == CONVERT ? NG_F32 : NG_E4M3FN;
    struct convert *f = fresh_convert(w, from, NG_BF16);
    CHECK((w == CONVERT ? ng_convert : ng_dequantize)(NULL, &f->op, &f->from, &f->to) ==
          NG_ERR_ARGUMENT);
    CHECK((w == CONVERT ? ng_convert : ng_dequantize)(ctx, NULL, &f->from, &f->to) ==
          NG_ERR_ARGUMENT);
    CHECK((w == CONVERT ? ng_convert : ng_dequantize)(ctx, &f->op, NULL, &f->to) ==
          NG_ERR_ARGUMENT);
    CHECK(strstr(ng_ctx_message(ctx), "src") && strstr(ng_ctx_message(ctx), name));
    CHECK((w == CONVERT ? ng_convert : ng_dequantize)(ctx, &f->op, &f->from, NULL) ==
          NG_ERR_ARGUMENT);
    CHECK(strstr(ng_ctx_message(ctx), "dst") != NULL);
    f->op.size--;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, name, "op.size");
    f = fresh_convert(w, from, NG_BF16);
    f->from.data = NULL;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "src has no data");
    f = fresh_convert(w, from, NG_BF16);
    f->to.data = NULL;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "dst has no data");
    f = fresh_convert(w, from, NG_BF16);
    f->from.format = (ng_format)0x77;
    REFUSE_CONVERT(w, f, NG_ERR_FORMAT, "src has format number 119");
    f = fresh_convert(w, from, NG_BF16);
    f->to.format = NG_FORMAT_NONE;
    REFUSE_CONVERT(w, f, NG_ERR_FORMAT, "dst has format number 0");
    f = fresh_convert(w, from, NG_BF16);
    f->to.dim[0] = 3;
    REFUSE_CONVERT(w, f, NG_ERR_SHAPE, "dimension 0", "4", "3");
    f = fresh_convert(w, from, NG_BF16);
    f->to.rank = 1;
    REFUSE_CONVERT(w, f, NG_ERR_SHAPE, "rank 2", "rank 1");
    f = fresh_convert(w, from, NG_BF16);
    f->from.dim[1] = -5;
    REFUSE_CONVERT(w, f, NG_ERR_SHAPE, "dimension 1 of src", "-5");
    f = fresh_convert(w, from, NG_BF16);
    f->from.dim[0] = f->to.dim[0] = (int64_t)1 << 45;
    REFUSE_CONVERT(w, f, NG_ERR_SHAPE, "src", "2^47");
    f = fresh_convert(w, from, NG_BF16);
    f->to.stride[0] = INT64_MIN;
    REFUSE_CONVERT(w, f, NG_ERR_SHAPE, "stride", "dst", "overflows");
    f = fresh_convert(w, from, NG_BF16);
    f->to.stride[0] = 63;
    REFUSE_CONVERT(w, f, NG_ERR_LAYOUT, "dst share memory");
    f = fresh_convert(w, from, NG_BF16);
    f->from.data = f->dst + 2;
    REFUSE_CONVERT(w, f, NG_ERR_LAYOUT, "dst overlaps src");
    f = fresh_convert(w, from, NG_E2M1);
    f->op.cast.overflow = NG_OVERFLOW_SATURATE;
    f->to.stride[0] = 65;
    REFUSE_CONVERT(w, f, NG_ERR_LAYOUT, "stride 65", "dst", "byte");
    REFUSE_CONVERT(w, fresh_convert(w, from, NG_E2M1), NG_ERR_FORMAT, "e2m1", "sat");
    f = fresh_convert(w, from, NG_BF16);
    f->to.scale = f->dst_scale;
    REFUSE_CONVERT(w, f, NG_ERR_FORMAT, "dst");
    const ng_sparse sp = { .kept = 2, .group = 4 };
    f = fresh_convert(w, from, NG_BF16);
    f->from.sparse = &sp;
    REFUSE_CONVERT(w, f, NG_ERR_FORMAT, "sparse");
    f = fresh_convert(w, from, NG_BF16);
    f->op.cast.round = (ng_round)7;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "round");
    f = fresh_convert(w, from, NG_BF16);
    f->op.cast.overflow = (ng_overflow)-1;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "overflow");
    f = fresh_convert(w, from, NG_BF16);
    f->op.cast.sr_bits = 33;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "sr_bits");
    static const uint32_t words[255];
    f = fresh_convert(w, from, NG_BF16);
    f->op.cast.round = NG_ROUND_STOCHASTIC;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "no random words");
    f->op.cast.random = (ng_random){ NG_RANDOM_EXTERNAL, words, 255 };
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "255", "256");
    f->op.cast.random.kind = (ng_random_kind)5;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "random");
}

static void converts(void)
{
    both_converts(CONVERT);
    both_converts(DEQUANTIZE);
    struct convert *f = fresh_convert(CONVERT, NG_F32, NG_BF16);
    CHECK(ng_convert(ctx, &f->op, &f->from, &f->to) == NG_OK && !untouched(f->dst));
    f->from.scale = f->src_scale;
    fill(f->dst);
    REFUSE_CONVERT(CONVERT, f, NG_ERR_FORMAT, "src has block scales", "ng_dequantize");
    f = fresh_convert(CONVERT, NG_F32, NG_E2M1); /* the NaN is the last element of all */
    f->op.cast = (ng_cast){ .overflow = NG_OVERFLOW_SATURATE, .nan_to = NG_NAN_TO_ERROR };
    f->src[4 * 255 + 2] = 0xC0;
    f->src[4 * 255 + 3] = 0x7F;
    REFUSE_CONVERT(CONVERT, f, NG_ERR_FORMAT, "NaN", "e2m1", "error");

    f = fresh_convert(DEQUANTIZE, NG_E4M3FN, NG_BF16);
    CHECK(ng_dequantize(ctx, &f->op, &f->from, &f->to) == NG_OK && !untouched(f->dst));
    f = fresh_convert(DEQUANTIZE, NG_E4M3FN, NG_BF16);
    f->from.scale = NULL;
    REFUSE_CONVERT(DEQUANTIZE, f, NG_ERR_ARGUMENT, "src has no scales");
    f = fresh_convert(DEQUANTIZE, NG_E4M3FN, NG_BF16);
    f->from.scale_format = NG_F32;
    REFUSE_CONVERT(DEQUANTIZE, f, NG_ERR_FORMAT, "src", "f32", "e8m0");
    f = fresh_convert(DEQUANTIZE, NG_E4M3FN, NG_BF16);
    f->from.block = 0;
    REFUSE_CONVERT(DEQUANTIZE, f, NG_ERR_SHAPE, "src has block 0");
    f = fresh_convert(DEQUANTIZE, NG_E4M3FN, NG_BF16);
    f->from.layout = (ng_layout)3;
    REFUSE_CONVERT(DEQUANTIZE, f, NG_ERR_ARGUMENT, "layout 3");
    f = fresh_convert(DEQUANTIZE, NG_E4M3FN, NG_BF16);
    f->from.scale = f->dst + 8;
    REFUSE_CONVERT(DEQUANTIZE, f, NG_ERR_LAYOUT, "dst overlaps the scales");
}

static void quantizes(void)
{
    const enum which w = QUANTIZE;
    struct convert *f = fresh_convert(w, NG_F32, NG_E4M3FN);
    CHECK(ng_quantize(NULL, &f->quantize, &f->from, &f->to) == NG_ERR_ARGUMENT);
    CHECK(ng_quantize(ctx, NULL, &f->from, &f->to) == NG_ERR_ARGUMENT);
    CHECK(ng_quantize(ctx, &f->quantize, NULL, &f->to) == NG_ERR_ARGUMENT);
    CHECK(ng_quantize(ctx, &f->quantize, &f->from, NULL) == NG_ERR_ARGUMENT);
    CHECK(ng_quantize(ctx, &f->quantize, &f->from, &f->to) == NG_OK && !untouched(f->dst));
    f = fresh_convert(w, NG_F32, NG_E2M1);
    CHECK(ng_quantize(ctx, &f->quantize, &f->from, &f->to) == NG_OK && !untouched(f->dst));
    CHECK(f->to.tensor_scale == 0x3F800000u); /* G = 0 */

    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->quantize.size = 0;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "quantize", "op.size");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->to.scale = NULL;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "dst has no scales");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->quantize.rule = (ng_scale_rule)7;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "rule 7");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->quantize.special = (ng_block_special)3;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "special 3");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->to.scale_format = NG_UE4M3;
    REFUSE_CONVERT(w, f, NG_ERR_FORMAT, "ue4m3", "e8m0");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->quantize.rule = NG_SCALE_NVFP4_EXACT;
    REFUSE_CONVERT(w, f, NG_ERR_FORMAT, "e8m0", "ue4m3");
    REFUSE_CONVERT(w, fresh_convert(w, NG_F32, NG_BF16), NG_ERR_FORMAT, "bf16", "8 bits");
    REFUSE_CONVERT(w, fresh_convert(w, NG_E8M0, NG_E4M3FN), NG_ERR_FORMAT, "src", "e8m0");
    f = fresh_convert(w, NG_F32, NG_E2M1);
    f->to.block = 32;
    REFUSE_CONVERT(w, f, NG_ERR_FORMAT, "NVFP4", "16", "32");
    f = fresh_convert(w, NG_F32, NG_E2M1);
    f->quantize.special = NG_BLOCK_SPECIAL_EXPONENT;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "from_exponent");
    f = fresh_convert(w, NG_F32, NG_E2M1);
    f->quantize.tensor_amax = 0x7F800000u;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "tensor_amax", "0x7F800000", "finite");
    f->quantize.tensor_amax = 0xBF800000u;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "tensor_amax", "0xBF800000");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->quantize.cast.round = (ng_round)8;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "round");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->quantize.cast.round = NG_ROUND_STOCHASTIC;
    REFUSE_CONVERT(w, f, NG_ERR_ARGUMENT, "no random words");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->to.dim[1] = 32;
    REFUSE_CONVERT(w, f, NG_ERR_SHAPE, "dimension 1", "64", "32");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->to.layout = NG_LAYOUT_TRN_WRAP;
    f->from.dim[1] = f->to.dim[1] = 40;
    REFUSE_CONVERT(w, f, NG_ERR_SHAPE, "40", "multiple of 32");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->from.data = f->dst + 4;
    REFUSE_CONVERT(w, f, NG_ERR_LAYOUT, "dst overlaps src");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->from.data = f->dst_scale;
    REFUSE_CONVERT(w, f, NG_ERR_LAYOUT, "scales of dst overlap src");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->to.scale = f->dst + 10;
    REFUSE_CONVERT(w, f, NG_ERR_LAYOUT, "scales of dst overlap its elements");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->to.scale_stride[0] = 1;
    f->to.scale_stride[1] = 1;
    REFUSE_CONVERT(w, f, NG_ERR_LAYOUT, "scales of dst share memory");
    f = fresh_convert(w, NG_F32, NG_E4M3FN);
    f->from.scale = f->src_scale;
    REFUSE_CONVERT(w, f, NG_ERR_FORMAT, "src has scales");
}

static void scale_moves(void)
{
    static unsigned char src[BYTES], dst[BYTES];
    fill(dst);
    const ng_scale_store lin = NG_SCALE_LINEAR, sbuf = NG_SCALE_TRN_SBUF;
    CHECK(ng_scale_move(NULL, lin, src, sbuf, dst, 4, 4, 0, 0) == NG_ERR_ARGUMENT);
    refused(__LINE__, ng_scale_move(ctx, lin, NULL, sbuf, dst, 4, 4, 0, 0), NG_ERR_ARGUMENT,
            PARTS("src is NULL"));
    refused(__LINE__, ng_scale_move(ctx, lin, src, sbuf, NULL, 4, 4, 0, 0), NG_ERR_ARGUMENT,
            PARTS("dst is NULL"));
    refused(__LINE__, ng_scale_move(ctx, lin, src, sbuf, dst, 4, 4, 0, 5), NG_ERR_ARGUMENT,
            PARTS("offset is 5", "12"));
    refused(__LINE__, ng_scale_move(ctx, lin, src, sbuf, dst, 4, 4, 0, 16), NG_ERR_ARGUMENT,
            PARTS("offset is 16", "12"));
    refused(__LINE__, ng_scale_move(ctx, lin, src, sbuf, dst, 0, 4, 0, 0), NG_ERR_SHAPE,
            PARTS("0 lines"));
    refused(__LINE__, ng_scale_move(ctx, lin, src, sbuf, dst, 4, -1, 0, 0), NG_ERR_SHAPE,
            PARTS("-1 blocks"));
    refused(__LINE__, ng_scale_move(ctx, lin, src, sbuf, dst, 4, 4, 12, 0), NG_ERR_SHAPE,
            PARTS("tile_rows 12", "multiple of 8"));
    refused(__LINE__, ng_scale_move(ctx, lin, src, sbuf, dst, INT64_MAX, INT64_MAX, 0, 0),
            NG_ERR_SHAPE, PARTS("lines"));
    refused(__LINE__, ng_scale_move(ctx, lin, src, sbuf, src, 4, 4, 0, 0), NG_ERR_LAYOUT,
            PARTS("dst overlaps src"));
    CHECK(ng_scale_move(ctx, (ng_scale_store)3, src, lin, dst, 4, 4, 0, 0) != NG_OK);
    CHECK(ng_scale_move(ctx, lin, src, (ng_scale_store)-1, dst, 4, 4, 0, 0) != NG_OK);
    CHECK(untouched(dst));
    CHECK(ng_scale_bytes((ng_scale_store)3, 4, 4, 0) == 0 && ng_scale_bytes(lin, 0, 4, 0) == 0);
    CHECK(ng_scale_bytes(lin, INT64_MAX, 2, 0) == 0 && ng_scale_bytes(lin, 3, 5, 0) == 15);
    CHECK(ng_scale_bytes(sbuf, 2, 16, 0) == 256 && ng_scale_bytes(sbuf, 2, 17, 136) == 0);
    CHECK(ng_scale_bytes(NG_SCALE_SWIZZLE_128X4, 1, 1, 0) == 512);
    CHECK(ng_scale_move(ctx, lin, src, sbuf, dst, 4, 4, 0, 12) == NG_OK && !untouched(dst));
}

/* ---- The small calls. ---- */

static void tensors(void)
{
    ng_tensor t, was;
    const int64_t dim[] = { 3, 5, 7, 9, 11 }, bad[] = { 3, 0 },
                  huge[] = { (int64_t)1 << 40, (int64_t)1 << 40 };
    memset(&t, PATTERN, sizeof t);
    memcpy(&was, &t, sizeof t);
    CHECK(ng_tensor_init(NULL, NG_F32, &t, 2, dim) == NG_ERR_ARGUMENT);
    CHECK(ng_tensor_init(&t, NG_F32, &t, 2, NULL) == NG_ERR_ARGUMENT);
    CHECK(ng_tensor_init(&t, NG_F32, &t, 0, dim) == NG_ERR_ARGUMENT);
    CHECK(ng_tensor_init(&t, NG_F32, &t, 5, dim) == NG_ERR_ARGUMENT);
    CHECK(ng_tensor_init(&t, NG_FORMAT_NONE, &t, 2, dim) == NG_ERR_FORMAT);
    CHECK(ng_tensor_init(&t, NG_F32, &t, 2, bad) == NG_ERR_SHAPE);
    CHECK(ng_tensor_init(&t, NG_F32, &t, 2, huge) == NG_ERR_SHAPE);
    CHECK(memcmp(&t, &was, sizeof t) == 0);
    CHECK(ng_tensor_init(&t, NG_E2M1, NULL, 2, dim) == NG_OK && t.stride[0] == 6);
    CHECK(ng_tensor_bytes(NG_E2M1, 2, dim) == 9 && ng_tensor_bytes(NG_F32, 2, dim) == 60);
    CHECK(ng_tensor_bytes(NG_F32, 2, huge) == 0 && ng_tensor_bytes(NG_F32, 2, NULL) == 0);
    CHECK(ng_tensor_bytes(NG_F32, 5, dim) == 0 && ng_tensor_bytes((ng_format)9, 2, dim) == 0);
    memcpy(&was, &t, sizeof t);
    CHECK(ng_tensor_set_scale(NULL, NG_E8M0, &t, 32, 1, NG_LAYOUT_LINEAR) == NG_ERR_ARGUMENT);
    CHECK(ng_tensor_set_scale(&t, NG_E8M0, &t, 32, 2, NG_LAYOUT_LINEAR) == NG_ERR_ARGUMENT);
    CHECK(ng_tensor_set_scale(&t, NG_E8M0, &t, 0, 1, NG_LAYOUT_LINEAR) == NG_ERR_ARGUMENT);
    CHECK(ng_tensor_set_scale(&t, NG_F32, &t, 32, 1, NG_LAYOUT_LINEAR) == NG_ERR_FORMAT);
    CHECK(memcmp(&t, &was, sizeof t) == 0);
}

static void codes(void)
{
    ng_value v = { .sig = 77 };
    uint32_t code = 77;
    ng_cast cast = { .round = NG_ROUND_TIES_TO_EVEN };
    CHECK(ng_decode(NG_FORMAT_NONE, 0, &v) == NG_ERR_FORMAT && v.sig == 77);
    CHECK(ng_decode((ng_format)0xAB, 0, &v) == NG_ERR_FORMAT && v.sig == 77);
    CHECK(ng_decode(NG_F32, 0, NULL) == NG_ERR_ARGUMENT);
    CHECK(ng_encode(NG_FORMAT_NONE, &cast, &v, 0, &code) == NG_ERR_FORMAT);
    CHECK(ng_encode(NG_E2M1, &cast, &v, 0, &code) == NG_ERR_FORMAT);
    CHECK(ng_encode(NG_F32, NULL, &v, 0, &code) == NG_ERR_ARGUMENT);
    CHECK(ng_encode(NG_F32, &cast, NULL, 0, &code) == NG_ERR_ARGUMENT);
    CHECK(ng_encode(NG_F32, &cast, &v, 0, NULL) == NG_ERR_ARGUMENT);
    cast.round = (ng_round)7;
    CHECK(ng_encode(NG_F32, &cast, &v, 0, &code) == NG_ERR_ARGUMENT);
    cast = (ng_cast){ .overflow = (ng_overflow)3 };
    CHECK(ng_encode(NG_F32, &cast, &v, 0, &code) == NG_ERR_ARGUMENT);
    cast = (ng_cast){ .overflow = NG_OVERFLOW_SATURATE, .nan_to = NG_NAN_TO_ERROR };
    v.cls = NG_CLASS_NAN;
    CHECK(ng_encode(NG_E2M1, &cast, &v, 0, &code) == NG_ERR_FORMAT && code == 77);
    CHECK(!ng_format_info(NG_FORMAT_NONE) && !ng_format_info((ng_format)-1));
    CHECK(!ng_format_info(NG_FORMAT_LIMIT) && !ng_format_at(1000) && !ng_format_at(SIZE_MAX));
    CHECK(ng_format_find("e4m3") == NG_E4M3 && ng_format_find("e4m3fn") == NG_E4M3FN);
    CHECK(!ng_format_find("E4M3") && !ng_format_find("") && !ng_format_find(NULL));
    for (int s = NG_OK; s <= NG_ERR_INTERNAL; s++)
        CHECK(strncmp(ng_status_name((ng_status)s), "NG_", 3) == 0 &&
              strcmp(ng_status_name((ng_status)s), "NG_ERR_?") != 0);
    CHECK(strcmp(ng_status_name((ng_status)10), "NG_ERR_?") == 0);
    CHECK(strcmp(ng_status_name((ng_status)-1), "NG_ERR_?") == 0);
    CHECK(strcmp(ng_version(), "0.1.0") == 0);
}

static void *some_alloc(void *user, size_t align, size_t bytes)
{
    (void)user;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void some_free(void *user, void *ptr)
{
    (void)user;
    free(ptr);
}

static void some_executor(void *user, size_t n,
                          void (*body)(void *arg, size_t i, size_t worker), void *arg)
{
    (void)user;
    for (size_t i = 0; i < n; i++)
        body(arg, i, 0);
}

static void contexts(void)
{
    ng_ctx *const nobody = (ng_ctx *)(void *)&checks;
    ng_ctx *c = nobody;
    _Alignas(64) static unsigned char room[128];
    ng_ctx_config config = { .size = sizeof config };
    CHECK(ng_ctx_create(NULL, NULL) == NG_ERR_ARGUMENT);
    config.size--;
    CHECK(ng_ctx_create(&config, &c) == NG_ERR_ARGUMENT);
    config = (ng_ctx_config){ .size = sizeof config, .allocator = { .alloc = some_alloc } };
    CHECK(ng_ctx_create(&config, &c) == NG_ERR_ARGUMENT);
    config = (ng_ctx_config){ .size = sizeof config, .allocator = { .free = some_free } };
    CHECK(ng_ctx_create(&config, &c) == NG_ERR_ARGUMENT);
    config = (ng_ctx_config){ .size = sizeof config, .executor = { some_executor, NULL, 0 } };
    CHECK(ng_ctx_create(&config, &c) == NG_ERR_ARGUMENT);
    config =
        (ng_ctx_config){ .size = sizeof config, .scratch = room + 32, .scratch_bytes = 64 };
    CHECK(ng_ctx_create(&config, &c) == NG_ERR_ARGUMENT && c == nobody);
    config = (ng_ctx_config){ .size = sizeof config, .scratch = room, .scratch_bytes = 128 };
    CHECK(ng_ctx_create(&config, &c) == NG_OK);
    CHECK(ng_ctx_message(c)[0] == '\0' && ng_ctx_kernel(c)[0] == '\0');
    ng_ctx_destroy(c);
    ng_ctx_destroy(NULL);
    CHECK(ng_ctx_message(NULL) != NULL && ng_ctx_kernel(NULL) != NULL);

    ng_pool *pool = NULL;
    ng_executor ex = { NULL, NULL, 0 };
    CHECK(ng_pool_create(2, NULL, &ex) == NG_ERR_ARGUMENT);
    CHECK(ng_pool_create(2, &pool, NULL) == NG_ERR_ARGUMENT && !pool);
    CHECK(ng_pool_create(SIZE_MAX, &pool, &ex) != NG_OK && !pool && !ex.parallel_for);
    const ng_status s = ng_pool_create(0, &pool, &ex);
    CHECK(s == NG_ERR_UNSUPPORTED || (s == NG_OK && ex.workers >= 1 && ex.parallel_for));
    if (s == NG_OK)
        ng_pool_destroy(pool);
    ng_pool_destroy(NULL);

    CHECK(ng_isa_available() & NG_ISA_REF);
    CHECK(strcmp(ng_isa_name(NG_ISA_REF), "ref") == 0 && !ng_isa_name(0) && !ng_isa_name(3));
}

static void parse_errors(void)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        { "", "no 'profile' line" },
        { "profile x\n", "no 'revision' line" },
        { "profile x y\nrevision 1\n", "x y" },
        { "profile x\nrevision -1\n", "revision" },
        { "profile x\nrevision 1\n", "no rules" },
        { "profile x\nprofile y\n", "line 2" },
        { "profile x\nrevision 1\nlanes = 1\n", "before any rule" },
        { "profile x\nrevision 1\nrule r mode=plain a=bf16 b=bf17\n", "bf17" },
        { "profile x\nrevision 1\nrule r mode=odd a=bf16 b=bf16\n", "mode" },
        { "profile x\nrevision 1\nrule r mode=plain\n", "takes no formats" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16 c=3\n", "'c'" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16 block=9999\n", "block" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16 same=maybe\n", "same" },
        { "profile x\nrevision 1\nrule \n", "needs a name" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16\nlanes = 1\nlanes = 2\n", "twice" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16\nlanes = two\n", "lanes is 'two'" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16\nlanes = 99999999999\n", "lanes" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16\nlane = 1\n", "'lane'" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16\nlanes = 1 # sure: me\n", "evidence" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16\nlanes = 0\n",
          "line 4: rule r: lanes is 0" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16\nrule r a=f16 b=f16\n",
          "line 4: two rules" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16\nrows = 1073741824\n\nrule s a=f16 "
          "b=f16\n",
          "line 4: rule r: rows is 1073741824" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16\nrows = 20\n",
          "line 3: rule r: chain_rows is 32" },
        { "profile x\nrevision 1\nrevision 1\n", "line 3: a second 'revision'" },
        { "profile x\nabout y\nabout y\n", "line 3: a second 'about'" },
        { "profile x\nrevision 1\nrule r block=32 block=16\n", "line 3: block is there twice" },
        { "profile x\nrevision 1\nrule r a=bf16 a=f16\n", "line 3: a is there twice" },
        { "profile x\nrevision 1\nrule mode=mx a=bf16 b=bf16\n",
          "line 3: a rule needs a name" },
        { "profile x\nrevision 1\nrule r a=bf16 b=bf16\nnan_f32 = 0x7F800000\n",
          "line 4: rule r: nan_f32 is 0x7F800000; wanted: a NaN" },
        { "profile x\nrevision 1\nrule r a=f16 b=f16\nnan_f32 = 5\n",
          "line 4: rule r: nan_f32" },
        { "profile x\nrevision 1\nrule r a=f16 b=f16\nfamily = fused\nnan_f16 = 0x7C00\n",
          "line 5: rule r: nan_f16" },
        { "profile x\nabout caf\xE9\n", "line 2: byte 10 is 0xE9" },
        { "profile x\n# \xC0\xAF\n", "line 2: byte 3 is 0xC0" },
        { "profile \xED\xA0\x80\n", "line 1: byte 9" },
        { "profile x\nabout \xF4\x90\x80\x80\n", "line 2: byte 7" },
        { "profile x\nabout \xE2\x82\n", "line 2: byte 7" },
        /* what is UTF-8 is not the reason */
        { "profile x\nabout \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\n", "'revision'" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ng_profile *p = NULL;
        char message[300] = "";
        const ng_status s =
            ng_profile_parse(bad[i].text, strlen(bad[i].text), &p, message, sizeof message);
        const bool ok = s == NG_ERR_PROFILE && !p && strstr(message, bad[i].part);
        if (!CHECK(ok))
            printf("     text %zu: %s, \"%s\", wanted \"%s\"\n", i, ng_status_name(s), message,
                   bad[i].part);
    }
}

static void profiles(void)
{
    char text[64] = "", message[200] = "";
    ng_profile *p = NULL;
    parse_errors();
    CHECK(ng_profile_parse(NULL, 0, &p, message, sizeof message) != NG_OK && !p);
    CHECK(ng_profile_parse("x", 1, NULL, NULL, 0) != NG_OK);
    CHECK(ng_profile_parse("x", 1, &p, NULL, 0) == NG_ERR_PROFILE && !p);
    CHECK(!ng_profile_find("trn9") && !ng_profile_find(NULL) && !ng_profile_find(""));
    CHECK(!ng_profile_at(1000) && ng_profile_at(0));
    CHECK(ng_profile_print(NULL, text, sizeof text) == 0 && !ng_profile_copy(NULL));
    CHECK(ng_profile_hash(NULL) == 0 && ng_profile_check(NULL, message, 200) != NG_OK);
    ng_profile_free(NULL);

    for (size_t i = 0; ng_profile_at(i); i++) {
        const ng_profile *q = ng_profile_at(i);
        CHECK(ng_profile_check(q, message, sizeof message) == NG_OK);
        CHECK(ng_profile_find(q->name) == q);
        const size_t n = ng_profile_print(q, NULL, 0);
        char *whole = malloc(n + 1), *again = malloc(n + 1);
        p = NULL;
        if (CHECK(whole && again && ng_profile_print(q, whole, n + 1) == n) &&
            CHECK(ng_profile_parse(whole, n, &p, message, sizeof message) == NG_OK)) {
            CHECK(ng_profile_print(p, again, n + 1) == n && memcmp(whole, again, n + 1) == 0);
            CHECK(ng_profile_hash(p) == ng_profile_hash(q));
            CHECK(ng_profile_print(p, again, 10) == n && strlen(again) == 9);
        }
        ng_profile_free(p);
        free(whole);
        free(again);
    }
    p = ng_profile_copy(ng_profile_find("trn2"));
    if (!CHECK(p != NULL))
        return;
    const uint32_t hash = ng_profile_hash(p);
    CHECK(ng_profile_set(NULL, "plain", "lanes", "1") == NG_ERR_ARGUMENT);
    CHECK(ng_profile_set(p, NULL, "lanes", "1") == NG_ERR_ARGUMENT);
    CHECK(ng_profile_set(p, "plain", NULL, "1") == NG_ERR_ARGUMENT);
    CHECK(ng_profile_set(p, "plain", "lanes", NULL) == NG_ERR_ARGUMENT);
    CHECK(ng_profile_set(p, "plane", "lanes", "1") == NG_ERR_PROFILE);
    CHECK(ng_profile_set(p, "plain", "lane", "1") == NG_ERR_PROFILE);
    CHECK(ng_profile_set(p, "plain", "lanes", "one") == NG_ERR_PROFILE);
    CHECK(ng_profile_set(p, "plain", "combine", "treee") == NG_ERR_PROFILE);
    CHECK(ng_profile_set(p, "plain", "lanes", "") == NG_ERR_PROFILE);
    CHECK(ng_profile_hash(p) == hash);
    CHECK(ng_profile_set(p, "plain", "combine", "sequential") == NG_OK);
    CHECK(ng_profile_hash(p) != hash);
    CHECK(p->rules[0].set[NG_PARAM_COMBINE].evidence == NG_EVIDENCE_ASSUMED);
    ng_profile_free(p);

    p = NULL;
    const ng_profile *trn2 = ng_profile_find("trn2");
    CHECK(!ng_profile_rule(NULL, NG_BF16, NG_BF16, NG_MODE_PLAIN, message, sizeof message));
    CHECK(!ng_profile_rule(trn2, (ng_format)9, NG_BF16, NG_MODE_PLAIN, NULL, 0));
    CHECK(!ng_profile_rule(trn2, NG_BF16, NG_BF16, (ng_mode)4, NULL, 0));
    CHECK(!ng_profile_rule(trn2, NG_BF16, NG_BF16, NG_MODE_MX, message, sizeof message));
    CHECK(strstr(message, "trn2") && strstr(message, "mx"));
    CHECK(ng_rule_print(NULL, NULL, text, sizeof text) == 0);
    CHECK(ng_rule_print(trn2, &trn2->rules[0], text, sizeof text) > sizeof text &&
          strlen(text) == sizeof text - 1);
    CHECK(!ng_param_key(NG_PARAM_COUNT) && !ng_param_meaning((ng_param)-1));
    CHECK(!ng_evidence_name((ng_evidence)5) && ng_evidence_name(NG_EVIDENCE_BACKED));
}

/* Every kernel of the build, by ISA; the reference is last. */
static void test_kernel_list(void)
{
    ng_kernel_entry e = { NULL, NULL, 0 };
    size_t n = 0;
    for (; ng_kernel_at(n, &e); n++) {
        const char *isa = ng_isa_name(e.isa), *end = strstr(e.name, "__");
        CHECK(isa && e.does[0]);
        CHECK(e.isa == NG_ISA_REF ? strcmp(e.name, "ref") == 0
                                  : end && strcmp(end + 2, isa) == 0);
        CHECK(ng_kernel_at(n, NULL));
    }
    CHECK(n > 0 && e.isa == NG_ISA_REF && strcmp(e.does, "everything") == 0);
    e.name = "untouched";
    CHECK(!ng_kernel_at(n, &e) && strcmp(e.name, "untouched") == 0);
}

int main(void)
{
    if (ng_ctx_create(NULL, &ctx) != NG_OK)
        return 1;
    test_kernel_list();
    good_calls();
    null_arguments();
    shapes();
    batches();
    formats();
    block_scales();
    layouts();
    casts();
    sparsity();
    own_profiles();
    scratch();
    dots();
    elements();
    converts();
    quantizes();
    scale_moves();
    tensors();
    codes();
    contexts();
    profiles();
    ng_ctx_destroy(ctx);
    return report("test_api");
}
