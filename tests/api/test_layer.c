/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RMSNorm, rotary embedding and sums of rows over the public header: what can be said by hand,
 * bad input, and memory that runs out. The bits are judged by tests/model/judge_layer.py.
 */
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "api.h"

enum {
    T = 5,
    H = 12,
    D = 4, /* of a head */
    AROUND = 0xEE
};

static ng_ctx *ctx;
static float x[T * H], gain[H], cosine[T * D / 2], sine[T * D / 2], y[T * H];

static bool is_untouched(void)
{
    for (size_t i = 0; i < sizeof y; i++)
        if (((const unsigned char *)y)[i] != AROUND)
            return false;
    return true;
}

/* The call just made must have failed so, naming `word`, and have left y alone. */
static void refused(ng_status found, ng_status want, const char *word)
{
    if (!CHECK(found == want) || !CHECK(strstr(ng_ctx_message(ctx), word)) ||
        !CHECK(is_untouched()))
        printf("  %s: %d %s\n", word, (int)found, ng_ctx_message(ctx));
}

static void fill(void)
{
    for (int i = 0; i < T * H; i++)
        x[i] = (float)(i % 7 - 3);
    for (int i = 0; i < H; i++)
        gain[i] = i % 2 ? 0.5f : 2.0f;
    for (int i = 0; i < T * D / 2; i++) {
        cosine[i] = 0;
        sine[i] = 1;
    }
    memset(y, AROUND, sizeof y);
}

/* ---- By hand. ---- */

static bool equal(int n, const float *a, const float *b)
{
    for (int i = 0; i < n; i++)
        if (!(a[i] == b[i]))
            return false;
    return true;
}

static void norm_by_hand(void)
{
    float row[4] = { 2, -2, 2, 2 }, gains[4] = { 1, 2, -1, 0 }, out[4];
    ng_rms_norm_op op = { .size = sizeof op };
    const ng_tensor tx = view(NG_F32, row, 1, 4), tg = vector(NG_F32, gains, 4),
                    ty = view(NG_F32, out, 1, 4);
    CHECK(ng_rms_norm(ctx, &op, &tx, &tg, &ty) == NG_OK);
    CHECK(out[0] == 1 && out[1] == -2 && out[2] == -1 && out[3] == 0);
    CHECK(strcmp(ng_ctx_kernel(ctx), "ref") == 0);
    op.eps = 0x41400000u; /* 12: the root of 4 + 12 */
    CHECK(ng_rms_norm(ctx, &op, &tx, NULL, &ty) == NG_OK);
    CHECK(out[0] == 0.5f && out[1] == -0.5f);
    /* a row of zeros without eps: 0 * Inf */
    memset(row, 0, sizeof row);
    op.eps = 0;
    CHECK(ng_rms_norm(ctx, &op, &tx, NULL, &tx) == NG_OK);
    CHECK(row[0] != row[0]);
}

static void rope_by_hand(void)
{
    float row[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, c[2] = { 0, 1 }, s[2] = { 1, 0 }, out[8];
    const float halves[8] = { -3, 2, 1, 4, -7, 6, 5, 8 },
                adjacent[8] = { -2, 1, 3, 4, -6, 5, 7, 8 };
    ng_rope_op op = { .size = sizeof op };
    const ng_tensor tx = view(NG_F32, row, 1, 8), tc = view(NG_F32, c, 1, 2),
                    ts = view(NG_F32, s, 1, 2), ty = view(NG_F32, out, 1, 8);
    CHECK(ng_rope(ctx, &op, &tx, &tc, &ts, &ty) == NG_OK);
    CHECK(equal(8, out, halves));
    op.pairs = NG_ROPE_ADJACENT;
    CHECK(ng_rope(ctx, &op, &tx, &tc, &ts, &tx) == NG_OK);
    CHECK(equal(8, row, adjacent));
}

static void add_by_hand(void)
{
    float a[4] = { 1, 2, 3, 4 }, b[2] = { 10, 20 };
    const float want[4] = { 11, 22, 13, 24 };
    const ng_tensor ta = view(NG_F32, a, 2, 2), tb = vector(NG_F32, b, 2);
    CHECK(ng_add(ctx, &ta, &tb, &ta) == NG_OK);
    CHECK(equal(4, a, want));
    /* every byte of e2m1 [2, 2]: 1 1, 2 6 */
    const unsigned char codes[2] = { 0x22, 0x74 };
    const ng_tensor tc = view(NG_E2M1, (void *)codes, 2, 2);
    CHECK(ng_add(ctx, &ta, &tc, &ta) == NG_OK);
    CHECK(a[0] == 12 && a[1] == 23 && a[2] == 15 && a[3] == 30);
}

/* ---- Bad input. ---- */

static void bad_norms(void)
{
    const ng_rms_norm_op good = { .size = sizeof good, .eps = NG_RMS_NORM_EPS };
    ng_rms_norm_op op = good;
    const ng_tensor tx = view(NG_F32, x, T, H), tg = vector(NG_F32, gain, H),
                    ty = view(NG_F32, y, T, H), narrow = vector(NG_F32, gain, H - 1),
                    flat = vector(NG_F32, x, H), fp8 = view(NG_E4M3FN, y, T, H),
                    inside = view(NG_F32, x, T - 1, H), late = view(NG_F32, x + 1, T - 1, H);
    refused(ng_rms_norm(ctx, NULL, &tx, &tg, &ty), NG_ERR_ARGUMENT, "op is NULL");
    refused(ng_rms_norm(ctx, &good, NULL, &tg, &ty), NG_ERR_ARGUMENT, "x is NULL");
    refused(ng_rms_norm(ctx, &good, &tx, &tg, NULL), NG_ERR_ARGUMENT, "y is NULL");
    refused(ng_rms_norm(ctx, &good, &flat, &tg, &ty), NG_ERR_SHAPE, "x has rank 1; wanted: 2");
    refused(ng_rms_norm(ctx, &good, &tx, &narrow, &ty), NG_ERR_SHAPE,
            "dimension 0 of gain is 11; wanted: 12");
    refused(ng_rms_norm(ctx, &good, &inside, &tg, &ty), NG_ERR_SHAPE,
            "dimension 0 of y is 5; wanted: 4");
    refused(ng_rms_norm(ctx, &good, &tx, &tg, &fp8), NG_ERR_FORMAT, "y is e4m3fn");
    refused(ng_rms_norm(ctx, &good, &inside, &tg, &late), NG_ERR_LAYOUT, "y overlaps x");
    op.size = 8;
    refused(ng_rms_norm(ctx, &op, &tx, &tg, &ty), NG_ERR_ARGUMENT, "op.size");
    op = good;
    op.eps = 0x80000000u;
    refused(ng_rms_norm(ctx, &op, &tx, &tg, &ty), NG_ERR_ARGUMENT, "op.eps is 0x80000000");
    op.eps = 0x7F800000u;
    refused(ng_rms_norm(ctx, &op, &tx, &tg, &ty), NG_ERR_ARGUMENT, "op.eps is 0x7F800000");
    op = good;
    op.rsqrt.kind = (ng_function_kind)5;
    refused(ng_rms_norm(ctx, &op, &tx, &tg, &ty), NG_ERR_ARGUMENT, "op.rsqrt.kind is 5");
    op.rsqrt.kind = NG_FUNCTION_TABLE;
    refused(ng_rms_norm(ctx, &op, &tx, &tg, &ty), NG_ERR_ARGUMENT, "op.rsqrt.table is NULL");
}

static void bad_ropes(void)
{
    const ng_rope_op good = { .size = sizeof good };
    ng_rope_op op = good;
    const ng_tensor tx = view(NG_F32, x, T, H), tc = view(NG_F32, cosine, T, D / 2),
                    ts = view(NG_F32, sine, T, D / 2), ty = view(NG_F32, y, T, H),
                    odd = view(NG_F32, cosine, 1, 5), few = view(NG_F32, sine, T - 1, D / 2),
                    flat = vector(NG_F32, cosine, T);
    refused(ng_rope(ctx, &good, &tx, NULL, &ts, &ty), NG_ERR_ARGUMENT, "cosine is NULL");
    refused(ng_rope(ctx, &good, &tx, &tc, NULL, &ty), NG_ERR_ARGUMENT, "sine is NULL");
    refused(ng_rope(ctx, &good, &tx, &odd, &odd, &ty), NG_ERR_SHAPE,
            "dimension 1 of x is 12; wanted: a multiple of 10");
    refused(ng_rope(ctx, &good, &tx, &flat, &ts, &ty), NG_ERR_SHAPE, "cosine has rank 1");
    refused(ng_rope(ctx, &good, &tx, &few, &ts, &ty), NG_ERR_SHAPE,
            "dimension 0 of cosine is 4; wanted: 5");
    refused(ng_rope(ctx, &good, &tx, &tc, &few, &ty), NG_ERR_SHAPE,
            "dimension 0 of sine is 4; wanted: 5");
    op.pairs = (ng_rope_pairs)2;
    refused(ng_rope(ctx, &op, &tx, &tc, &ts, &ty), NG_ERR_ARGUMENT, "op.pairs is 2");
    op = good;
    op.product = NG_E5M2;
    refused(ng_rope(ctx, &op, &tx, &tc, &ts, &ty), NG_ERR_FORMAT, "op.product is e5m2");
}

static void bad_sums(void)
{
    ng_tensor tx = view(NG_F32, x, T, H);
    const ng_tensor ty = view(NG_F32, y, T, H), tg = vector(NG_F32, gain, H - 2);
    unsigned char scale = 127;
    refused(ng_add(ctx, &tx, NULL, &ty), NG_ERR_ARGUMENT, "b is NULL");
    refused(ng_add(ctx, &tx, &tg, &ty), NG_ERR_SHAPE, "dimension 0 of b is 10; wanted: 12");
    tx.scale = &scale;
    refused(ng_add(ctx, &tx, &ty, &ty), NG_ERR_FORMAT, "a has scales; wanted: none");
}

/* ---- Control word. ---- */

/* Sums by kernels under a control word that flushes and rounds down: the reference's. */
static void control_word(void)
{
#if defined(__x86_64__)
    static float a[T * H], b[T * H];
    static uint32_t got[T * H], want[T * H];
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    ng_ctx *ref;
    uint64_t seed = 9;
    const ng_tensor ta = view(NG_F32, a, T, H), tb = view(NG_F32, b, T, H),
                    tg = view(NG_F32, got, T, H), tw = view(NG_F32, want, T, H);
    for (int i = 0; i < T * H; i++) { /* a half of them subnormal */
        const uint32_t mask = i % 2 ? 0x807FFFFFu : 0x81FFFFFFu;
        const uint32_t p = (uint32_t)next(&seed) & mask, q = (uint32_t)next(&seed) & mask;
        memcpy(&a[i], &p, sizeof p);
        memcpy(&b[i], &q, sizeof q);
    }
    CHECK(ng_ctx_create(&config, &ref) == NG_OK);
    CHECK(ng_add(ref, &ta, &tb, &tw) == NG_OK && strcmp(ng_ctx_kernel(ref), "ref") == 0);
    const unsigned was = _mm_getcsr(), hostile = was | 0x8040u | 0x2000u;
    _mm_setcsr(hostile);
    const ng_status s = ng_add(ctx, &ta, &tb, &tg);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(was);
    CHECK(s == NG_OK && after == hostile && memcmp(got, want, sizeof got) == 0);
    CHECK((strcmp(ng_ctx_kernel(ctx), "ref") == 0) == (ng_isa_available() == NG_ISA_REF));
    ng_ctx_destroy(ref);
#endif
}

/* ---- Memory. ---- */

/* Scratch that is too small for copies of bf16 rows: an error, and nothing written. */
static void no_memory(void)
{
    static _Alignas(64) unsigned char scratch[64];
    ng_ctx *small, *was = ctx;
    const ng_ctx_config config = { .size = sizeof config,
                                   .scratch = scratch,
                                   .scratch_bytes = 64 };
    const ng_tensor tx = view(NG_BF16, x, T, H), tg = vector(NG_F32, gain, H),
                    ty = view(NG_BF16, y, T, H);
    const ng_rms_norm_op op = { .size = sizeof op };
    CHECK(ng_ctx_create(&config, &small) == NG_OK);
    ctx = small;
    refused(ng_rms_norm(ctx, &op, &tx, &tg, &ty), NG_ERR_SCRATCH, "scratch");
    ctx = was;
    ng_ctx_destroy(small);
}

static void parameters(void)
{
    size_t n = 0;
    for (; ng_layer_param_at(n); n++) {
        const ng_layer_param *p = ng_layer_param_at(n);
        CHECK(p->key[0] && p->values[0] && ng_evidence_name(p->evidence));
        CHECK(p->evidence == NG_EVIDENCE_ASSUMED || p->source[0]);
    }
    CHECK(n == 10);
}

int main(void)
{
    CHECK(ng_ctx_create(NULL, &ctx) == NG_OK);
    norm_by_hand();
    rope_by_hand();
    add_by_hand();
    fill();
    bad_norms();
    bad_ropes();
    bad_sums();
    control_word();
    no_memory();
    parameters();
    ng_ctx_destroy(ctx);
    return report("layer");
}
