/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests of large products. Each case is one multiply whose operands come from integers alone;
 * D's digest must be the published one however it is computed: any ISA, any number of threads,
 * in one call or cut by views, B packed or not, under a hostile control word, by any compiler.
 *
 *   small  about 2^24 multiply-accumulates, all of it compared with the reference
 *   quick  about 2^27, small first; sampled elements are compared with the reference
 *   long   over 2^32, likewise
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "ng/ng.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    SAMPLES = 300,
    GAUSS_BITS = 18 /* of a sum of four 16-bit numbers */
};

enum data {
    GAUSS, /* about normal, deviation about 1 */
    FAR    /* in one line of LINE: any finite codes, whatever their exponents */
};

enum features {
    WITH_C = 1,
    SCALED = 2,
    DOUBLE_ROW = 4,
    SPARSE_A = 8,
    SPARSE_B = 16,
    PSUM_RNE = 32,
    PSUM_SR = 64,
    WHOLE_BLOCKS = 128, /* K is a multiple of 32 */
    NEAR_SCALES = 256,  /* that differ by 8 at most */
    UE4M3 = 512         /* scales of 16 elements, not e8m0's of 32 */
};

struct kase {
    const char *name, *profile;
    ng_format a, b, d;
    enum data data;
    unsigned features;
};

static const struct kase cases[] = {
    { "bf16", "trn2", NG_BF16, NG_BF16, NG_F32, GAUSS, WITH_C },
    { "bf16-far", "trn2", NG_BF16, NG_BF16, NG_F32, FAR, 0 },
    { "f16", "trn2", NG_F16, NG_F16, NG_F32, GAUSS, 0 },
    { "f32-pieces", "trn2", NG_F32, NG_F32, NG_F32, GAUSS, 0 },
    { "f32-pieces-far", "trn2", NG_F32, NG_F32, NG_F32, FAR, WITH_C },
    { "f32-fma", "fma-f32", NG_F32, NG_F32, NG_F32, GAUSS, 0 },
    { "double-row", "trn2", NG_E4M3, NG_E4M3, NG_BF16, GAUSS, DOUBLE_ROW },
    { "double-row-far", "trn3", NG_E5M2, NG_E5M2, NG_F32, FAR, DOUBLE_ROW },
    { "mxfp8", "trn3", NG_E4M3FN, NG_E4M3FN, NG_F32, GAUSS, SCALED },
    { "mxfp8-far", "trn3", NG_E5M2, NG_E4M3FN, NG_F32, FAR, SCALED | WITH_C },
    { "mxfp4", "trn3", NG_E2M1, NG_E2M1, NG_F32, GAUSS, SCALED },
    { "mxfp4-blocks", "trn3", NG_E2M1, NG_E2M1, NG_F32, GAUSS,
      SCALED | WHOLE_BLOCKS | NEAR_SCALES },
    { "mxfp4-steps", "trn3", NG_E2M1, NG_E2M1, NG_F32, GAUSS, SCALED | WHOLE_BLOCKS },
    { "mxfp4-far", "trn3", NG_E2M1, NG_E2M1, NG_F32, FAR,
      SCALED | WHOLE_BLOCKS | NEAR_SCALES | WITH_C },
    { "mxfp4-ocp", "ocp-mx", NG_E2M1, NG_E2M1, NG_F32, GAUSS, SCALED | WHOLE_BLOCKS },
    { "mxfp8-mxfp4", "trn3", NG_E4M3FN, NG_E2M1, NG_F32, GAUSS, SCALED | WITH_C },
    { "mxfp8-mxfp4-far", "trn3", NG_E4M3FN, NG_E2M1, NG_BF16, FAR, SCALED | WHOLE_BLOCKS },
    { "sparse-a", "trn3", NG_BF16, NG_BF16, NG_F32, GAUSS, SPARSE_A },
    { "sparse-b", "trn3", NG_BF16, NG_E4M3FN, NG_F32, GAUSS, SPARSE_B | WITH_C },
    { "psum-bf16-rne", "trn3", NG_BF16, NG_BF16, NG_F32, GAUSS, PSUM_RNE },
    { "psum-bf16-sr", "trn3", NG_BF16, NG_E4M3FN, NG_BF16, GAUSS, PSUM_SR },
    { "ampere-tf32", "nv-ampere", NG_TF32, NG_TF32, NG_F32, GAUSS, WITH_C },
    { "hopper-f16", "nv-hopper", NG_F16, NG_F16, NG_F16, GAUSS, 0 },
    { "hopper-bf16-far", "nv-hopper", NG_BF16, NG_BF16, NG_F32, FAR, WITH_C },
    { "hopper-fp8", "nv-hopper", NG_E4M3FN, NG_E5M2, NG_BF16, FAR, 0 },
    { "wgmma-fp8", "nv-hopper-wgmma", NG_E4M3FN, NG_E4M3FN, NG_F32, GAUSS, WITH_C },
    { "tcgen05-mxfp8", "nv-blackwell-tcgen05", NG_E4M3FN, NG_E2M1, NG_F32, GAUSS,
      SCALED | WHOLE_BLOCKS },
    { "tcgen05-mxf4", "nv-blackwell-tcgen05", NG_E2M1, NG_E2M1, NG_F32, GAUSS,
      SCALED | WHOLE_BLOCKS | WITH_C },
    { "nvfp4-fma", "fma-f32", NG_E2M1, NG_E2M1, NG_F32, GAUSS, SCALED | UE4M3 | WITH_C },
    { "hopper-sparse-a", "nv-hopper", NG_F16, NG_F16, NG_F32, GAUSS, SPARSE_A | WITH_C },
    { "wgmma-sparse-b", "nv-hopper-wgmma", NG_E4M3FN, NG_E5M2, NG_F32, GAUSS, SPARSE_B },
    { "cdna1-bf16-far", "amd-cdna1", NG_BF16, NG_BF16, NG_F32, FAR, WITH_C },
    { "cdna2-f16", "amd-cdna2", NG_F16, NG_F16, NG_F32, GAUSS, WITH_C },
    { "cdna2-bf16-far", "amd-cdna2", NG_BF16, NG_BF16, NG_BF16, FAR, 0 },
    { "cdna3-f16", "amd-cdna3", NG_F16, NG_F16, NG_F32, GAUSS, WITH_C },
    { "cdna3-bf16-far", "amd-cdna3", NG_BF16, NG_BF16, NG_F32, FAR, WITH_C },
    { "cdna3-fp8", "amd-cdna3", NG_E4M3FNUZ, NG_E5M2FNUZ, NG_F32, GAUSS, WITH_C },
};
#define N_CASES (sizeof cases / sizeof cases[0])

struct tier {
    const char *name;
    int64_t m, n, k;
};

static const struct tier tiers[] = {
    { "small", 131, 143, 680 },
    { "quick", 523, 509, 520 },
    { "long", 2049, 2047, 1032 },
};

static struct {
    const char *table, *only;
    int tier; /* the highest */
    bool print, reference;
    ng_pool *pool[4];
    ng_executor executor[4]; /* by the number of threads; 0: none */
    unsigned checks, failures;
} run = { .tier = 1 };

/* ---- Data: pure functions of (what, number). ---- */

/* SplitMix64's output function: Steele, Lea, Flood. */
static uint64_t draw(uint64_t what, uint64_t number)
{
    uint64_t z = (what << 48 ^ number) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static int32_t gauss(uint64_t r)
{
    return (int32_t)((r & 0xFFFF) + (r >> 16 & 0xFFFF) + (r >> 32 & 0xFFFF) + (r >> 48)) -
           0x1FFFE;
}

/* The code next to x * 2^exp. */
static uint32_t code_of(ng_format f, int64_t x, int exp)
{
    const ng_cast cast = { .overflow = NG_OVERFLOW_SATURATE };
    const ng_value v = { .sig = (uint64_t)(x < 0 ? -x : x), .exp = exp, .neg = x < 0 };
    uint32_t code = 0;
    if (ng_encode(f, &cast, &v, 0, &code))
        abort();
    return code;
}

static void put(void *data, uint32_t bits, int64_t at, uint32_t code)
{
    unsigned char *p = data;
    const uint16_t half = (uint16_t)code;
    switch (bits) {
    case 4: p[at / 2] |= (unsigned char)(code << (at & 1) * 4); break;
    case 8: p[at] = (unsigned char)code; break;
    case 16: memcpy(p + 2 * at, &half, sizeof half); break;
    default: memcpy(p + 4 * at, &code, sizeof code); break;
    }
}

static uint32_t any_finite(const ng_format_spec *f, uint64_t r)
{
    const uint32_t mag = (uint32_t)((r >> 8) % ((uint64_t)f->max_code + 1));
    return mag | (uint32_t)(r & 1) << (f->bits - 1);
}

/* FP32's range squared would only overflow: exponents of 2^-70 to 2^40. */
static uint32_t far_code(const ng_format_spec *f, uint64_t r)
{
    if (f->exp_bits < 8)
        return any_finite(f, r);
    const uint32_t man = (uint32_t)(r >> 8) & ((1u << f->man_bits) - 1u);
    return (uint32_t)(r & 1) << (f->bits - 1) |
           (uint32_t)(57 + (r >> 40) % 111) << f->man_bits | man;
}

/* `line`: the dimension that is no K. */
static void fill(const ng_tensor *t, uint64_t what, enum data data, int line)
{
    enum {
        LINE = 256
    };
    const ng_format_spec *f = ng_format_info(t->format);
    uint32_t *near = malloc(sizeof *near << GAUSS_BITS);
    if (!near)
        abort();
    for (int32_t x = 0; x < 1 << GAUSS_BITS; x++)
        near[x] = code_of(t->format, x - 0x1FFFE, -15);
    int64_t at[2];
    for (at[0] = 0; at[0] < t->dim[0]; at[0]++)
        for (at[1] = 0; at[1] < t->dim[1]; at[1]++) {
            const int64_t number = at[0] * t->dim[1] + at[1];
            const uint64_t r = draw(what, (uint64_t)number);
            const bool far = data == FAR && at[line] % LINE == LINE / 2;
            const uint32_t code =
                far ? far_code(f, r)
                : f->man_bits > 16
                    ? code_of(t->format,
                              gauss(r) * INT64_C(4096) + (int64_t)(r * 0x9E3779B9u >> 52), -27)
                    : near[gauss(r) + 0x1FFFE];
            put(t->data, f->store_bits, at[0] * t->stride[0] + at[1] * t->stride[1], code);
        }
    free(near);
}

/* ---- A case's operands. ---- */

struct job {
    const struct kase *kase;
    const struct tier *tier;
    struct tier whole; /* of WHOLE_BLOCKS */
    ng_tensor a, b, c, d;
    ng_sparse sparse;
    ng_gemm_op op;
    void *room[8];
    int rooms;
    size_t d_bytes;
    XXH128_hash_t digest;
};

static void *room(struct job *j, size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        printf("digest: no memory\n");
        exit(1);
    }
    j->room[j->rooms++] = p;
    return p;
}

static ng_tensor matrix(struct job *j, ng_format f, int64_t rows, int64_t cols)
{
    ng_tensor t;
    const int64_t dim[] = { rows, cols };
    if (ng_tensor_init(&t, f, room(j, ng_tensor_bytes(f, 2, dim)), 2, dim))
        abort();
    return t;
}

static void scale(struct job *j, ng_tensor *t, uint64_t what, uint32_t axis)
{
    const bool ue4m3 = j->kase->features & UE4M3;
    const uint32_t block = ue4m3 ? 16 : 32;
    const int64_t lines = t->dim[1 - axis], blocks = (t->dim[axis] + block - 1) / block,
                  n = lines * blocks;
    unsigned char *s = room(j, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t r = draw(what, (uint64_t)i);
        const bool far =
            j->kase->data == FAR && r >> 32 & 1 && (axis ? i / blocks : i % lines) % 256 == 77;
        s[i] = (unsigned char)(ue4m3                             ? 40 + r % 24
                               : far                             ? r % 255
                               : j->kase->features & NEAR_SCALES ? 125 + r % 4
                                                                 : 120 + r % 15);
    }
    if (ng_tensor_set_scale(t, ue4m3 ? NG_UE4M3 : NG_E8M0, s, block, axis, NG_LAYOUT_LINEAR))
        abort();
}

static bool is_sparse(const struct job *j)
{
    return j->kase->features & (SPARSE_A | SPARSE_B);
}

/* Bytes of a line of tags: 4 bits a slot, four to 16 bits. */
static int64_t tag_bytes(const struct job *j)
{
    return (j->tier->k + 3) / 4 * 2;
}

/* 2 of 4, ascending: one of six pairs a group. */
static void tags(struct job *j)
{
    static const unsigned char pairs[] = { 0x10, 0x20, 0x30, 0x21, 0x31, 0x32 };
    const bool in_a = j->kase->features & SPARSE_A;
    const int64_t n = tag_bytes(j) * (in_a ? j->tier->m : j->tier->n);
    unsigned char *t = room(j, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        t[i] = pairs[draw(5, (uint64_t)i) % 6];
    j->sparse = (ng_sparse){ .kept = 2, .group = 4, .tags = t };
    *(in_a ? &j->a.sparse : &j->b.sparse) = &j->sparse;
}

static void cook(struct job *j, const struct kase *k, const struct tier *t)
{
    *j = (struct job){ .kase = k, .tier = t, .whole = *t };
    if (k->features & WHOLE_BLOCKS) {
        j->whole.k = t->k / 32 * 32;
        t = j->tier = &j->whole;
    }
    const bool bf16 = k->features & (PSUM_RNE | PSUM_SR);
    j->a = matrix(j, k->a, t->m, k->features & SPARSE_B ? 2 * t->k : t->k);
    j->b = matrix(j, k->b, k->features & SPARSE_A ? 2 * t->k : t->k, t->n);
    j->d = matrix(j, k->d, t->m, t->n);
    j->d_bytes = ng_tensor_bytes(k->d, 2, j->d.dim);
    fill(&j->a, 1, k->data, 0);
    fill(&j->b, 2, k->data, 1);
    if (k->features & WITH_C) {
        j->c = matrix(j, NG_F32, t->m, t->n);
        fill(&j->c, 3, GAUSS, 0);
    }
    if (k->features & SCALED) {
        scale(j, &j->a, 6, 1);
        scale(j, &j->b, 7, 0);
    }
    if (is_sparse(j))
        tags(j);
    j->op = (ng_gemm_op){ .size = sizeof j->op,
                          .profile = ng_profile_find(k->profile),
                          .double_row = (k->features & DOUBLE_ROW) != 0,
                          .accumulate = bf16 ? NG_BF16 : NG_FORMAT_NONE };
    if (k->features & PSUM_SR) {
        const int64_t n = (t->k + 127) / 128 * t->m * t->n;
        uint32_t *w = room(j, (size_t)n * 4);
        for (int64_t i = 0; i < n; i++)
            w[i] = (uint32_t)draw(4, (uint64_t)i);
        j->op.psum =
            (ng_cast){ .round = NG_ROUND_STOCHASTIC, .random = { NG_RANDOM_EXTERNAL, w, n } };
    }
}

static void drop(struct job *j)
{
    while (j->rooms > 0)
        free(j->room[--j->rooms]);
}

/* ---- Ways to compute D. ---- */

struct way {
    const char *name;
    uint32_t mask;
    size_t threads;
    bool packed, cut, hostile;
};

static void complain(const struct job *j, const char *what, const char *why)
{
    run.failures++;
    printf("FAIL %s/%s, %s: %s\n", j->tier->name, j->kase->name, what, why);
}

static const ng_tensor *c_of(const struct job *j)
{
    return j->c.data ? &j->c : NULL;
}

/* Rows or columns [from, to) of a matrix; `line` is the dimension that is cut. */
static ng_tensor part(const ng_tensor *t, int line, int64_t from, int64_t to)
{
    ng_tensor p = *t;
    p.data = (unsigned char *)t->data +
             from * t->stride[line] * ng_format_info(t->format)->store_bits / 8;
    p.dim[line] = to - from;
    if (t->scale) { /* row-major and packed: say so, for the whole's shape */
        const int64_t blocks = (t->dim[1 - line] + t->block - 1) / t->block;
        p.scale_stride[0] = line ? t->dim[1] : blocks;
        p.scale_stride[1] = 1;
        p.scale = (unsigned char *)t->scale + from * p.scale_stride[line];
    }
    return p;
}

/* Three calls down by two across, at places that no kernel's panels know. */
static ng_status in_parts(ng_ctx *ctx, struct job *j)
{
    const int64_t m = j->d.dim[0], n = j->d.dim[1], down[] = { 0, m / 3 + 1, m / 3 * 2 + 2, m },
                  across[] = { 0, n / 5 * 2 / 2 * 2, n };
    ng_status s = NG_OK;
    for (int x = 0; x < 3; x++)
        for (int y = 0; y < 2 && !s; y++) {
            ng_sparse sparse = j->sparse;
            ng_tensor a = part(&j->a, 0, down[x], down[x + 1]),
                      b = part(&j->b, 1, across[y], across[y + 1]), d, c = { 0 };
            d = part(&j->d, 0, down[x], down[x + 1]);
            d = part(&d, 1, across[y], across[y + 1]);
            if (c_of(j)) {
                c = part(&j->c, 0, down[x], down[x + 1]);
                c = part(&c, 1, across[y], across[y + 1]);
            }
            if (is_sparse(j)) {
                const int64_t line = a.sparse ? down[x] : across[y];
                sparse.tags = (const unsigned char *)sparse.tags + line * tag_bytes(j);
                *(a.sparse ? &a.sparse : &b.sparse) = &sparse;
            }
            s = ng_gemm(ctx, &j->op, &a, &b, c_of(j) ? &c : NULL, &d);
        }
    return s;
}

static ng_status compute(ng_ctx *ctx, struct job *j, const struct way *w)
{
    if (w->cut)
        return in_parts(ctx, j);
    if (!w->packed)
        return ng_gemm(ctx, &j->op, &j->a, &j->b, c_of(j), &j->d);
    ng_packed *p = NULL;
    ng_status s = ng_pack(ctx, &j->op, &j->b, j->a.format, &p);
    if (!s)
        s = ng_gemm_packed(ctx, &j->op, &j->a, p, c_of(j), &j->d);
    ng_packed_destroy(p);
    return s;
}

static bool multiply(struct job *j, const struct way *w)
{
    const ng_ctx_config config = { .size = sizeof config,
                                   .isa_mask = w->mask,
                                   .executor = run.executor[w->threads] };
    ng_ctx *ctx = NULL;
    memset(j->d.data, 0xEE, j->d_bytes);
    ng_status s = ng_ctx_create(&config, &ctx);
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();
    if (w->hostile)
        _mm_setcsr(0x1F80u | 0x8000u | 0x4000u | 0x0040u); /* FTZ, round up, DAZ */
#endif
    if (!s)
        s = compute(ctx, j, w);
#if defined(__x86_64__)
    _mm_setcsr(before);
#endif
    run.checks++;
    if (s)
        complain(j, w->name, ctx ? ng_ctx_message(ctx) : ng_status_name(s));
    j->digest = XXH3_128bits(j->d.data, j->d_bytes);
    ng_ctx_destroy(ctx);
    return s == NG_OK;
}

/* ---- The reference. ---- */

static void sample(struct job *j)
{
    ng_ctx *ctx = NULL;
    if (ng_ctx_create(NULL, &ctx))
        abort();
    for (int i = 0; i < SAMPLES; i++) {
        const uint64_t r = draw(8, (uint64_t)i);
        /* every tenth in a line that FAR spoils */
        const int64_t row = (int64_t)(r % (uint64_t)j->d.dim[0]),
                      at[] = { i % 10 || j->d.dim[0] < 129 ? row : 128,
                               (int64_t)((r >> 32) % (uint64_t)j->d.dim[1]) };
        uint32_t want = 0;
        const uint32_t got = ng_tensor_get(&j->d, at);
        run.checks++;
        if (ng_gemm_element(ctx, &j->op, false, &j->a, &j->b, c_of(j), &j->d, at, NULL,
                            &want) ||
            want != got) {
            char text[96];
            (void)snprintf(text, sizeof text, "d[%d,%d] is 0x%X; the reference says 0x%X",
                           (int)at[0], (int)at[1], got, want);
            complain(j, "sampled", text);
            break;
        }
    }
    ng_ctx_destroy(ctx);
}

static char *hex(XXH128_hash_t h, char text[33])
{
    (void)snprintf(text, 33, "%016llx%016llx", (unsigned long long)h.high64,
                   (unsigned long long)h.low64);
    return text;
}

static void against(struct job *j, const struct way *w, XXH128_hash_t want)
{
    char x[33], y[33], text[100];
    if (!multiply(j, w) || XXH128_isEqual(j->digest, want))
        return;
    (void)snprintf(text, sizeof text, "digest %s; wanted %s", hex(j->digest, x), hex(want, y));
    complain(j, w->name, text);
}

/* ---- The published table: lines "TIER CASE DIGEST". ---- */

static bool published(const struct job *j, char digest[33])
{
    char line[200], tier[32], name[64];
    FILE *f = run.table ? fopen(run.table, "r") : NULL;
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f))
        found = sscanf(line, "%31s %63s %32s", tier, name, digest) == 3 &&
                strcmp(tier, j->tier->name) == 0 && strcmp(name, j->kase->name) == 0;
    if (f)
        (void)fclose(f);
    return found;
}

/* ---- Cases. ---- */

static bool kernels_here(void)
{
    return (ng_isa_available() & ~NG_ISA_REF) != 0;
}

static void all_ways(struct job *j, XXH128_hash_t want)
{
    const bool sr = j->kase->features & PSUM_SR, /* words go with the elements of a call */
        dense = !(j->kase->features & SPARSE_A); /* a packed B wants that */
    const struct way ways[] = {
        { .name = "1 thread", .threads = 1 },
        { .name = "3 threads", .threads = 3 },
        { .name = "hostile control word", .threads = 0, .hostile = true },
        { .name = "cut by views", .threads = 2, .cut = true },
        { .name = "packed", .threads = 2, .packed = true },
        { .name = "packed, hostile control word",
          .threads = 3,
          .packed = true,
          .hostile = true },
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        if (!(ways[i].cut && sr) && !(ways[i].packed && !dense))
            against(j, &ways[i], want);
    for (uint32_t bit = 2; bit; bit <<= 1)
        if (ng_isa_available() & bit) {
            const struct way w = { .name = ng_isa_name(bit) ? ng_isa_name(bit) : "an ISA",
                                   .mask = 2 * bit - 1, /* and what it builds upon */
                                   .threads = 2 };
            against(j, &w, want);
        }
}

static void one_case(const struct kase *k, int tier)
{
    static const struct way first = { .name = "2 threads", .threads = 2 }, judge = {
        .name = "the reference", .mask = NG_ISA_REF, .threads = 2
    };
    struct job j;
    char found[33], listed[33];
    cook(&j, k, &tiers[tier]);
    if (multiply(&j, &first)) {
        const XXH128_hash_t want = j.digest;
        (void)hex(want, found);
        if (run.print) {
            printf("%-6s %-16s %s\n", j.tier->name, k->name, found);
        } else if (!published(&j, listed) || strcmp(listed, found) != 0) {
            char text[120];
            (void)snprintf(text, sizeof text, "digest %s is not the published one", found);
            complain(&j, first.name, text);
        }
        sample(&j);
        if (!run.print && kernels_here())
            all_ways(&j, want);
        if (kernels_here() && (tier == 0 || run.reference))
            against(&j, &judge, want);
    }
    drop(&j);
}

static int usage(void)
{
    (void)fputs("usage: digest [--tier small|quick|long] [--case NAME] [--reference] "
                "(TABLE | --print)\n"
                "Digests of large products against TABLE. --print: make the table.\n"
                "--reference: also the complete products by the reference; long takes hours.\n",
                stderr);
    return 2;
}

static bool options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tier") == 0 && argv[i + 1]) {
            i++;
            for (run.tier = 2; run.tier >= 0 && strcmp(argv[i], tiers[run.tier].name) != 0;)
                run.tier--;
            if (run.tier < 0)
                return false;
        } else if (strcmp(argv[i], "--case") == 0 && argv[i + 1]) {
            run.only = argv[++i];
        } else if (strcmp(argv[i], "--print") == 0) {
            run.print = true;
        } else if (strcmp(argv[i], "--reference") == 0) {
            run.reference = true;
        } else if (argv[i][0] != '-' && !run.table) {
            run.table = argv[i];
        } else {
            return false;
        }
    }
    return run.print != (run.table != NULL);
}

int main(int argc, char **argv)
{
    if (!options(argc, argv))
        return usage();
    for (size_t n = 2; n < 4; n++)
        if (ng_pool_create(n, &run.pool[n], &run.executor[n]))
            run.executor[n] = (ng_executor){ 0 };
    int last = run.tier;
    if (!kernels_here() && last > 0) {
        printf("skipped: no kernels here: small products only\n");
        last = 0;
    }
    /* printing makes all tiers up to the one asked for; the long one runs alone */
    for (int tier = run.print || last < 2 ? 0 : 2; tier <= last; tier++)
        for (size_t i = 0; i < N_CASES; i++)
            if (!run.only || strcmp(run.only, cases[i].name) == 0)
                one_case(&cases[i], tier);
    for (size_t n = 2; n < 4; n++)
        ng_pool_destroy(run.pool[n]);
    if (!run.print)
        printf("digest: %u checks, %u failed\n", run.checks, run.failures);
    if (!run.checks) {
        (void)fprintf(stderr, "digest: no such case\n");
        return 2;
    }
    return run.failures ? 1 : 0;
}
