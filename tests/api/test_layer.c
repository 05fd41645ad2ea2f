/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RMSNorm, rotary embedding and sums of rows over the public header: what can be said by hand,
 * kernels beside the reference, bad input, and memory that runs out. The bits are judged by
 * tests/model/judge_layer.py.
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

/* ---- Kernels and the reference. ---- */

enum {
    ROWS = 11,
    WIDE = 44, /* heads of 2, 4, 22 and 44 */
    CALLS = 8
};

/* Operands of them, tables as wide as a head of 44 wants. */
struct rows {
    ng_tensor x, z, gain, y;
    uint32_t *table[2];
};

/* The i-th call; `product` of the rotary ones. */
static ng_status layer_call(ng_ctx *c, int i, ng_format product, const struct rows *r)
{
    static const int half[] = { 1, 2, 11, 22, 22 };
    const ng_rms_norm_op norm = { .size = sizeof norm, .eps = i ? NG_RMS_NORM_EPS : 0 };
    if (i < 2)
        return ng_rms_norm(c, &norm, &r->x, i ? &r->gain : NULL, &r->y);
    if (i == 2)
        return ng_add(c, &r->x, &r->z, &r->y);
    const ng_rope_op rope = { .size = sizeof rope,
                              .pairs = i % 2 ? NG_ROPE_ADJACENT : NG_ROPE_HALVES,
                              .product = product };
    const ng_tensor cosines = view(NG_F32, r->table[0], ROWS, half[i - 3]),
                    sines = view(NG_F32, r->table[1], ROWS, half[i - 3]);
    return ng_rope(c, &rope, &r->x, &cosines, &sines, &r->y);
}

/* A call under a control word that flushes and rounds down. */
static ng_status hostile_call(ng_ctx *c, int i, ng_format product, const struct rows *r)
{
#if defined(__x86_64__)
    const unsigned was = _mm_getcsr(), hostile = was | 0x8040u | 0x2000u;
    _mm_setcsr(hostile);
    const ng_status s = layer_call(c, i, product, r);
    CHECK(_mm_getcsr() == hostile);
    _mm_setcsr(was);
    return s;
#else
    return layer_call(c, i, product, r);
#endif
}

static void fill_rows(uint32_t *p, int n, uint64_t *seed)
{
    for (int i = 0; i < n; i++) { /* a third of them subnormal, squares of others */
        const uint32_t mask = i % 3 == 0 ? 0x807FFFFFu : i % 3 == 1 ? 0x81FFFFFFu : 0x9FFFFFFFu;
        p[i] = ((uint32_t)next(seed) & mask) | (i % 3 == 2 ? 0x20000000u : 0);
    }
}

/* The same bits as the reference's, and by a kernel where the CPU has one; f16 has none. */
static void kernels(ng_format format, ng_format product)
{
    static uint32_t x_code[ROWS * WIDE], z_code[ROWS * WIDE], gain_code[WIDE],
        table[2][ROWS * WIDE], got[ROWS * WIDE], want[ROWS * WIDE];
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    const size_t bytes = sizeof got / (format == NG_F32 ? 1 : 2);
    struct rows r = { .x = view(format, x_code, ROWS, WIDE),
                      .z = view(format, z_code, ROWS, WIDE),
                      .gain = vector(NG_F32, gain_code, WIDE),
                      .table = { table[0], table[1] } };
    uint64_t seed = 9;
    ng_ctx *ref;
    fill_rows(x_code, ROWS * WIDE, &seed);
    fill_rows(z_code, ROWS * WIDE, &seed);
    fill_rows(gain_code, WIDE, &seed);
    fill_rows(table[0], 2 * ROWS * WIDE, &seed);
    CHECK(ng_ctx_create(&config, &ref) == NG_OK);
    for (int i = 0; i < CALLS; i++) {
        const bool has_none = ng_isa_available() == NG_ISA_REF || (i > 2 && product == NG_F16);
        r.y = view(format, want, ROWS, WIDE);
        CHECK(layer_call(ref, i, product, &r) == NG_OK);
        CHECK(strcmp(ng_ctx_kernel(ref), "ref") == 0);
        r.y = view(format, got, ROWS, WIDE);
        if (!CHECK(hostile_call(ctx, i, product, &r) == NG_OK) ||
            !CHECK(memcmp(got, want, bytes) == 0) ||
            !CHECK((strcmp(ng_ctx_kernel(ctx), "ref") == 0) == has_none))
            printf("  call %d, format %d, product %d: %s\n", i, (int)format, (int)product,
                   ng_ctx_kernel(ctx));
    }
    ng_ctx_destroy(ref);
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
    kernels(NG_F32, NG_F32);
    kernels(NG_F32, NG_BF16);
    kernels(NG_BF16, NG_BF16);
    kernels(NG_BF16, NG_F16);
    no_memory();
    parameters();
    ng_ctx_destroy(ctx);
    return report("layer");
}
