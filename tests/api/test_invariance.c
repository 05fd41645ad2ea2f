/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What decides the speed decides no bit: ISA mask, executor, threads, scratch memory, strides,
 * batches, the caller's control word. And the calls that compute the same thing agree.
 */
#include <stdlib.h>

#include "api.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    ROOM = 1 << 18
};

static uint64_t seed = 42;

/* A multiply with all that can belong to it. */
struct job {
    const char *name;
    unsigned char a[ROOM], b[ROOM], c[ROOM], d[ROOM], want[ROOM];
    unsigned char scale_a[ROOM / 8], scale_b[ROOM / 8], tags[ROOM / 8];
    uint32_t words[1 << 14], psum_words[1 << 15];
    ng_tensor ta, tb, tc, td;
    ng_sparse sparse;
    ng_gemm_op op;
    bool with_c;
    size_t d_bytes;
};

enum features {
    WITH_C = 1,
    SCALED = 2,
    SR_OUT = 4,
    SR_PSUM = 8,
    SPARSE = 16,
    DOUBLE_ROW = 32,
    BATCHED = 64
};

struct recipe {
    const char *profile;
    ng_format a, b, d;
    int64_t m, n, k;
    unsigned features;
};

static const struct recipe recipes[] = {
    { "trn2", NG_BF16, NG_BF16, NG_F32, 13, 37, 200, WITH_C },
    { "trn2", NG_BF16, NG_F16, NG_F32, 9, 70, 130, BATCHED },
    { "trn3", NG_E4M3FN, NG_E5M2, NG_BF16, 7, 33, 160, WITH_C },
    { "trn3", NG_E4M3FN, NG_E2M1, NG_F32, 8, 20, 192, SCALED },
    { "trn3", NG_BF16, NG_BF16, NG_BF16, 9, 17, 300, SR_PSUM | SR_OUT },
    { "trn3", NG_BF16, NG_BF16, NG_F32, 9, 17, 64, SPARSE },
    { "trn2", NG_E4M3, NG_E3M4, NG_F32, 5, 18, 260, DOUBLE_ROW | WITH_C },
    { "trn2", NG_F32, NG_F32, NG_F32, 5, 11, 140, 0 },
    { "trn1", NG_TF32, NG_TF32, NG_F32, 5, 11, 70, WITH_C },
    { "fma-f32", NG_F32, NG_F32, NG_F32, 21, 67, 64, WITH_C | BATCHED },
    { "fma-f32", NG_E2M1, NG_MXINT8, NG_F32, 6, 34, 99, WITH_C },
    { "fma-f32", NG_F16, NG_E5M2, NG_E4M3FN, 6, 34, 50, SR_OUT | BATCHED },
    { "ocp-mx", NG_E4M3FN, NG_E4M3FN, NG_E2M1, 6, 18, 96, SCALED | SR_OUT | BATCHED },
    { "nv-hopper", NG_F16, NG_F16, NG_F16, 7, 19, 64, 0 },
    { "nv-ada", NG_E4M3FN, NG_E5M2, NG_F32, 7, 19, 96, WITH_C },
    { "nv-hopper", NG_F16, NG_F16, NG_F32, 7, 19, 48, SPARSE | WITH_C },
    { "amd-cdna2", NG_BF16, NG_BF16, NG_F32, 9, 35, 50, WITH_C },
    { "amd-cdna3", NG_BF16, NG_BF16, NG_F32, 7, 19, 48, WITH_C },
    { "amd-cdna3", NG_E5M2FNUZ, NG_E4M3FNUZ, NG_F32, 9, 35, 72, WITH_C },
};
#define N_RECIPES (sizeof recipes / sizeof recipes[0])

static struct job *cook(const struct recipe *r)
{
    static struct job j;
    memset(&j, 0, sizeof j);
    const bool batched = r->features & BATCHED, sparse = r->features & SPARSE;
    const uint32_t rank = batched ? 3 : 2, x = rank - 2;
    const int64_t first = batched ? 3 : 1;
    int64_t da[] = { first, first, 0, 0 }, db[] = { first, first, 0, 0 },
            dd[] = { first, first, 0, 0 };
    da[x] = r->m;
    da[x + 1] = r->k;
    db[x] = sparse ? 2 * r->k : r->k;
    db[x + 1] = r->n;
    dd[x] = r->m;
    dd[x + 1] = r->n;
    j.name = r->profile;
    CHECK(ng_tensor_init(&j.ta, r->a, j.a, rank, da) == NG_OK);
    CHECK(ng_tensor_init(&j.tb, r->b, j.b, rank, db) == NG_OK);
    CHECK(ng_tensor_init(&j.td, r->d, j.d, rank, dd) == NG_OK);
    CHECK(ng_tensor_init(&j.tc, NG_F32, j.c, rank, dd) == NG_OK);
    j.d_bytes = ng_tensor_bytes(r->d, rank, dd);
    j.with_c = r->features & WITH_C;
    fill_tensor(&j.ta, &seed);
    fill_tensor(&j.tb, &seed);
    fill_tensor(&j.tc, &seed);
    j.op = (ng_gemm_op){ .size = sizeof j.op,
                         .profile = ng_profile_find(r->profile),
                         .double_row = (r->features & DOUBLE_ROW) != 0 };
    if (!ng_format_info(r->d)->has_nan)
        j.op.out.overflow = NG_OVERFLOW_SATURATE;
    for (size_t i = 0; i < sizeof j.words / 4; i++)
        j.words[i] = (uint32_t)next(&seed);
    for (size_t i = 0; i < sizeof j.psum_words / 4; i++)
        j.psum_words[i] = (uint32_t)next(&seed);
    if (r->features & SCALED) {
        CHECK(ng_tensor_set_scale(&j.ta, NG_E8M0, j.scale_a, 32, x + 1, NG_LAYOUT_LINEAR) ==
              NG_OK);
        CHECK(ng_tensor_set_scale(&j.tb, NG_E8M0, j.scale_b, 32, x, NG_LAYOUT_LINEAR) == NG_OK);
        for (size_t i = 0; i < sizeof j.scale_a; i++) {
            j.scale_a[i] = (unsigned char)(123 + (next(&seed) & 7));
            j.scale_b[i] = (unsigned char)(123 + (next(&seed) & 7));
        }
    }
    if (sparse) {
        for (size_t i = 0; i < sizeof j.tags; i++)
            j.tags[i] = (unsigned char)(next(&seed) & 0x33u);
        j.sparse = (ng_sparse){ .kept = 2, .group = 4, .tags = j.tags };
        j.ta.sparse = &j.sparse;
    }
    if (r->features & SR_OUT) {
        j.op.out.round = NG_ROUND_STOCHASTIC;
        j.op.out.random =
            (ng_random){ NG_RANDOM_EXTERNAL, j.words, (int64_t)(sizeof j.words / 4) };
    }
    if (r->features & SR_PSUM) {
        j.op.accumulate = NG_BF16;
        j.op.psum.round = NG_ROUND_STOCHASTIC;
        j.op.psum.random =
            (ng_random){ NG_RANDOM_EXTERNAL, j.psum_words, (int64_t)(sizeof j.psum_words / 4) };
    }
    return &j;
}

static ng_status multiply(ng_ctx *ctx, struct job *j)
{
    memset(j->d, 0xEE, sizeof j->d);
    return ng_gemm(ctx, &j->op, &j->ta, &j->tb, j->with_c ? &j->tc : NULL, &j->td);
}

/* The same job under a configuration gives the bytes in `want`. */
static void same(int line, struct job *j, const ng_ctx_config *config, const char *what)
{
    ng_ctx *ctx = NULL;
    checks++;
    ng_status s = ng_ctx_create(config, &ctx);
    if (!s)
        s = multiply(ctx, j);
    if (s || memcmp(j->d, j->want, j->d_bytes) != 0) {
        failures++;
        printf("FAIL %s:%d: %s: %s gives %s %s\n", __FILE__, line, j->name, what,
               s ? ng_status_name(s) : "other bits", s && ctx ? ng_ctx_message(ctx) : "");
    }
    ng_ctx_destroy(ctx);
}

static bool reference(struct job *j)
{
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    ng_ctx *ctx = NULL;
    const bool ok = ng_ctx_create(&config, &ctx) == NG_OK && multiply(ctx, j) == NG_OK;
    if (!CHECK(ok) && ctx)
        printf("     %s: %s\n", j->name, ng_ctx_message(ctx));
    memcpy(j->want, j->d, sizeof j->want);
    ng_ctx_destroy(ctx);
    return ok;
}

/* ---- Executors. ---- */

static void masks(struct job *j)
{
    char what[64];
    for (uint32_t mask = 0; mask < 8; mask++) {
        const ng_ctx_config config = { .size = sizeof config, .isa_mask = mask };
        (void)snprintf(what, sizeof what, "isa_mask %u", mask);
        same(__LINE__, j, &config, what);
    }
    const ng_ctx_config unknown = { .size = sizeof unknown, .isa_mask = 0x80000000u };
    same(__LINE__, j, &unknown, "an isa_mask of no known ISA");
}

static void executors(struct job *j)
{
    char what[64];
    const ng_ctx_config back = { .size = sizeof back, .executor = { backwards, NULL, 1 } };
    same(__LINE__, j, &back, "a backwards executor");
    for (size_t threads = 1; threads <= 8; threads++) {
        ng_pool *pool = NULL;
        ng_ctx_config config = { .size = sizeof config };
        const ng_status s = ng_pool_create(threads, &pool, &config.executor);
        if (s == NG_ERR_UNSUPPORTED)
            return;
        if (!CHECK(s == NG_OK && config.executor.workers == threads))
            return;
        (void)snprintf(what, sizeof what, "%zu threads", threads);
        same(__LINE__, j, &config, what);
        config.isa_mask = NG_ISA_REF;
        same(__LINE__, j, &config, what);
        ng_pool_destroy(pool);
    }
}

static void scratch(struct job *j)
{
    size_t bytes = 0;
    ng_ctx *ctx = NULL;
    if (!CHECK(ng_ctx_create(NULL, &ctx) == NG_OK))
        return;
    CHECK(ng_gemm_scratch(ctx, &j->op, &j->ta, &j->tb, j->with_c ? &j->tc : NULL, &j->td,
                          &bytes) == NG_OK);
    ng_ctx_destroy(ctx);
    unsigned char *room = aligned_alloc(64, (bytes + 64 + 63) / 64 * 64);
    if (!CHECK(room != NULL))
        return;
    memset(room, 0xCC, bytes + 64);
    const ng_ctx_config config = { .size = sizeof config,
                                   .scratch = room,
                                   .scratch_bytes = bytes };
    same(__LINE__, j, &config, "the caller's scratch memory");
    bool kept = true;
    for (size_t i = 0; i < 64; i++)
        kept = kept && room[bytes + i] == 0xCC;
    CHECK(kept);
    free(room);
}

/* ---- The caller's control word. ---- */

static void control_words(struct job *j)
{
#if defined(__x86_64__)
    char what[64];
    const unsigned before = _mm_getcsr();
    /* Rounding modes times FTZ and DAZ; then everything unmasked. */
    for (unsigned i = 0; i < 17; i++) {
        const unsigned word =
            i == 16 ? 0x8040u
                    : 0x1F80u | (i & 3) << 13 | (i & 4 ? 0x8000u : 0) | (i & 8 ? 0x0040u : 0);
        (void)snprintf(what, sizeof what, "control word 0x%04X", word);
        _mm_setcsr(word);
        same(__LINE__, j, NULL, what);
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        CHECK(after == word);
    }
#else
    (void)j;
#endif
}

/* ---- Views. ---- */

/* The same tensor in other memory: dimensions in another order of strides, gaps between. */
static ng_tensor moved(const ng_tensor *t, unsigned char *room, bool flip)
{
    ng_tensor m = *t;
    const uint32_t bits = ng_format_info(t->format)->store_bits;
    int64_t stride = 1;
    m.data = room;
    for (uint32_t i = 0; i < t->rank; i++) {
        const uint32_t d = flip ? i : t->rank - 1 - i;
        m.stride[d] = stride;
        stride *= t->dim[d];
        stride += (int64_t)(next(&seed) % 5);
        if (bits == 4)
            stride += stride & 1;
    }
    return m;
}

static void copy(const ng_tensor *to, const ng_tensor *from)
{
    int64_t index[NG_MAX_RANK] = { 0 };
    do
        ng_tensor_set(to, index, ng_tensor_get(from, index));
    while (next_index(to, index));
}

static void views(struct job *j, uint32_t mask)
{
    static unsigned char ra[ROOM], rb[ROOM], rc[ROOM], rd[ROOM];
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = mask };
    ng_ctx *ctx = NULL;
    if (!CHECK(ng_ctx_create(&config, &ctx) == NG_OK))
        return;
    for (unsigned i = 0; i < 8; i++) {
        const ng_tensor a = moved(&j->ta, ra, i & 1), b = moved(&j->tb, rb, i & 2),
                        c = moved(&j->tc, rc, i & 4), d = moved(&j->td, rd, i & 1);
        copy(&a, &j->ta);
        copy(&b, &j->tb);
        copy(&c, &j->tc);
        memset(rd, 0xEE, sizeof rd);
        const ng_status s = ng_gemm(ctx, &j->op, &a, &b, j->with_c ? &c : NULL, &d);
        memset(j->d, 0xEE, sizeof j->d);
        copy(&j->td, &d);
        if (!CHECK(s == NG_OK && memcmp(j->d, j->want, j->d_bytes) == 0))
            printf("     %s: view %u: %s\n", j->name, i, ng_ctx_message(ctx));
    }
    ng_ctx_destroy(ctx);
}

/* ---- Calls that must agree. ---- */

/* A batch equals its matrices one by one; random words go with the elements of the whole. */
static void one_by_one(struct job *j)
{
    ng_ctx *ctx = NULL;
    if (j->td.rank != 3 || !CHECK(ng_ctx_create(NULL, &ctx) == NG_OK))
        return;
    memset(j->d, 0xEE, sizeof j->d);
    for (int64_t x = 0; x < j->td.dim[0]; x++) {
        ng_tensor v[4] = { j->ta, j->tb, j->tc, j->td };
        for (int i = 0; i < 4; i++) {
            const int64_t bits = ng_format_info(v[i].format)->store_bits;
            v[i].data = (unsigned char *)v[i].data + x * v[i].stride[0] * bits / 8;
            if (v[i].scale) {
                const int64_t lines = i == 0 ? v[i].dim[1] : v[i].dim[2],
                              k = i == 0 ? v[i].dim[2] : v[i].dim[1];
                v[i].scale = (unsigned char *)v[i].scale + x * lines * ((k + 31) / 32);
                v[i].block_axis--;
            }
            v[i].rank = 2;
            for (int d = 0; d < 2; d++) {
                v[i].dim[d] = v[i].dim[d + 1];
                v[i].stride[d] = v[i].stride[d + 1];
            }
        }
        ng_gemm_op op = j->op;
        const int64_t elements = v[3].dim[0] * v[3].dim[1];
        if (op.out.random.word) {
            op.out.random.word += x * elements;
            op.out.random.count = elements;
        }
        if (!CHECK(ng_gemm(ctx, &op, &v[0], &v[1], j->with_c ? &v[2] : NULL, &v[3]) == NG_OK))
            printf("     %s: matrix %d: %s\n", j->name, (int)x, ng_ctx_message(ctx));
    }
    CHECK(memcmp(j->d, j->want, j->d_bytes) == 0);
    ng_ctx_destroy(ctx);
}

/* A batch stride of 0 repeats an operand. */
static void repeated(struct job *j)
{
    static unsigned char all[ROOM];
    ng_ctx *ctx = NULL;
    if (j->td.rank != 3 || j->ta.scale || !CHECK(ng_ctx_create(NULL, &ctx) == NG_OK))
        return;
    ng_tensor once = j->tb, many = j->tb;
    once.stride[0] = 0;
    many.data = all;
    copy(&many, &once);
    const ng_tensor *c = j->with_c ? &j->tc : NULL;
    CHECK(ng_gemm(ctx, &j->op, &j->ta, &many, c, &j->td) == NG_OK);
    static unsigned char first[ROOM];
    memcpy(first, j->d, j->d_bytes);
    memset(j->d, 0xEE, sizeof j->d);
    CHECK(ng_gemm(ctx, &j->op, &j->ta, &once, c, &j->td) == NG_OK);
    CHECK(memcmp(first, j->d, j->d_bytes) == 0);
    ng_ctx_destroy(ctx);
}

static void element_by_element(struct job *j)
{
    ng_ctx *ctx = NULL;
    if (!CHECK(ng_ctx_create(NULL, &ctx) == NG_OK))
        return;
    int64_t index[3] = { 0 };
    const uint32_t x = j->td.rank - 2;
    ng_tensor want = j->td;
    want.data = j->want;
    bool equal = true;
    for (index[0] = 0; x == 0 || index[0] < j->td.dim[0]; index[0]++) {
        for (int64_t i = 0; i < j->td.dim[x]; i++)
            for (int64_t q = 0; q < j->td.dim[x + 1]; q += 3) {
                uint32_t code = 0;
                index[x] = i;
                index[x + 1] = q;
                const ng_status s =
                    ng_gemm_element(ctx, &j->op, false, &j->ta, &j->tb,
                                    j->with_c ? &j->tc : NULL, &j->td, index, NULL, &code);
                equal = equal && s == NG_OK && code == ng_tensor_get(&want, index);
            }
        if (x == 0)
            break;
    }
    CHECK(equal);
    ng_ctx_destroy(ctx);
}

/* Row r of ng_dot equals element (r, r) of ng_gemm with B's rows as columns. */
static void dots(const struct recipe *r)
{
    struct job *j = cook(r);
    ng_ctx *ctx = NULL;
    if (j->td.rank != 2 || j->ta.scale || j->ta.sparse || r->features & (SR_OUT | SR_PSUM))
        return;
    if (!CHECK(ng_ctx_create(NULL, &ctx) == NG_OK))
        return;
    const int64_t rows = r->m, db[] = { rows, r->k }, dd[] = { rows };
    ng_tensor b, c, d, square = j->td, column, sc;
    CHECK(ng_tensor_init(&b, r->b, j->b, 2, db) == NG_OK);
    CHECK(ng_tensor_init(&c, NG_F32, j->c, 1, dd) == NG_OK);
    CHECK(ng_tensor_init(&d, r->d, j->want, 1, dd) == NG_OK);
    CHECK(ng_dot(ctx, &j->op, &j->ta, &b, j->with_c ? &c : NULL, &d) == NG_OK);
    if (ng_format_info(r->b)->store_bits != 4) {
        column = b;
        column.dim[0] = b.dim[1];
        column.dim[1] = b.dim[0];
        column.stride[0] = b.stride[1];
        column.stride[1] = b.stride[0];
        square.dim[1] = rows;
        sc = square; /* C(i, j) = c[j]: what row j of the dot adds, on the diagonal */
        sc.format = NG_F32;
        sc.data = j->c;
        sc.stride[0] = 0;
        sc.stride[1] = 1;
        CHECK(ng_gemm(ctx, &j->op, &j->ta, &column, j->with_c ? &sc : NULL, &square) == NG_OK);
        bool equal = true;
        for (int64_t i = 0; i < rows; i++)
            equal = equal &&
                    ng_tensor_get(&d, &i) == ng_tensor_get(&square, (const int64_t[]){ i, i });
        CHECK(equal);
    }
    ng_ctx_destroy(ctx);
}

/* Many rows by any context: a kernel's where it has room for panels, else the reference's. */
static void dots_anywhere(const char *profile, ng_format f, ng_format accumulate)
{
    enum {
        ROWS = 203,
        K = 96
    };
    static unsigned char a[4 * ROWS * K], b[4 * ROWS * K],
        room[1 << 20] __attribute__((aligned(64)));
    static uint32_t c[ROWS], d[ROWS], want[ROWS];
    const int64_t dim[] = { ROWS, K }, rows = ROWS;
    const ng_gemm_op op = { .size = sizeof op,
                            .profile = ng_profile_find(profile),
                            .accumulate = accumulate };
    ng_tensor ta, tb, tc, td;
    CHECK(ng_tensor_init(&ta, f, a, 2, dim) == NG_OK);
    CHECK(ng_tensor_init(&tb, f, b, 2, dim) == NG_OK);
    CHECK(ng_tensor_init(&tc, accumulate, c, 1, &rows) == NG_OK);
    CHECK(ng_tensor_init(&td, NG_F32, d, 1, &rows) == NG_OK);
    fill_tensor(&ta, &seed);
    fill_tensor(&tb, &seed);
    fill_tensor(&tc, &seed);
    for (int64_t r = 5; r < ROWS; r += 40) /* beside rows that the fast path takes */
        ng_tensor_set(&tb, (const int64_t[]){ r, r % K }, ng_format_info(f)->nan_code);
    const struct {
        uint32_t mask;
        size_t threads, scratch;
        bool kernels; /* or the reference */
    } ways[] = { { NG_ISA_REF, 0, 0, false }, { 0, 0, 0, true },
                 { NG_ISA_AVX2, 0, 0, true }, { NG_ISA_AVX512, 0, 0, true },
                 { 0, 2, 0, true },           { 0, 3, 0, true },
                 { 0, 0, 64, false },         { 0, 0, sizeof room, true } };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        ng_pool *pool = NULL;
        ng_ctx *ctx = NULL;
        ng_ctx_config config = { .size = sizeof config, .isa_mask = ways[i].mask };
        if (ways[i].threads)
            CHECK(ng_pool_create(ways[i].threads, &pool, &config.executor) == NG_OK);
        if (ways[i].scratch) {
            config.scratch = room;
            config.scratch_bytes = ways[i].scratch;
        }
        memset(d, 0xEE, sizeof d);
        CHECK(ng_ctx_create(&config, &ctx) == NG_OK);
        CHECK(ng_dot(ctx, &op, &ta, &tb, &tc, &td) == NG_OK);
        if (i == 0)
            memcpy(want, d, sizeof want);
        CHECK(memcmp(want, d, sizeof want) == 0);
        const uint32_t mask = ways[i].mask ? ways[i].mask : UINT32_MAX;
        const bool by_kernel = ways[i].kernels && (mask & ng_isa_available() & ~NG_ISA_REF);
        CHECK((strcmp(ng_ctx_kernel(ctx), "ref") != 0) == by_kernel);
        ng_ctx_destroy(ctx);
        ng_pool_destroy(pool);
    }
}

/* ---- Conversions. ---- */

static void conversions(void)
{
    static unsigned char src[ROOM], dst[ROOM], want[ROOM], scale[ROOM / 16],
        want_scale[ROOM / 16];
    static uint32_t words[20000];
    const int64_t dim[] = { 100, 200 };
    ng_tensor s, d;
    for (size_t i = 0; i < 20000; i++) {
        const uint64_t x = next(&seed);
        const uint32_t code = i % 50 == 0 ? 0x7F800000u + (uint32_t)(x & 0xFF) : (uint32_t)x;
        memcpy(src + 4 * i, &code, 4);
        words[i] = (uint32_t)(x >> 32);
    }
    static const ng_format to[] = { NG_BF16, NG_E4M3FN, NG_E2M1 };
    for (int pass = 0; pass < 3; pass++)
        for (int how = 0; how < 6; how++) {
            ng_pool *pool = NULL;
            ng_ctx_config config = { .size = sizeof config };
            ng_ctx *ctx = NULL;
            if (how == 1)
                config.executor = (ng_executor){ backwards, NULL, 1 };
            if (how >= 2 && ng_pool_create((size_t)how, &pool, &config.executor) != NG_OK)
                continue;
            CHECK(ng_ctx_create(&config, &ctx) == NG_OK);
#if defined(__x86_64__)
            const unsigned before = _mm_getcsr();
            _mm_setcsr(how ? 0x8040u : before); /* flush, nothing masked */
#endif
            const ng_cast cast = { .round = NG_ROUND_STOCHASTIC,
                                   .overflow = NG_OVERFLOW_SATURATE,
                                   .random = { NG_RANDOM_EXTERNAL, words, 20000 } };
            const ng_convert_op op = { .size = sizeof op, .cast = cast };
            const ng_quantize_op qop = { .size = sizeof qop,
                                         .rule = NG_SCALE_FLOOR_UP1,
                                         .cast = cast };
            memset(dst, 0xEE, sizeof dst);
            memset(scale, 0xEE, sizeof scale);
            CHECK(ng_tensor_init(&s, NG_F32, src, 2, dim) == NG_OK);
            CHECK(ng_tensor_init(&d, to[pass], dst, 2, dim) == NG_OK);
            const size_t half = sizeof dst / 2;
            CHECK(ng_convert(ctx, &op, &s, &d) == NG_OK);
            if (pass > 0) {
                d.data = dst + half;
                CHECK(ng_tensor_set_scale(&d, NG_E8M0, scale, 32, 1, NG_LAYOUT_LINEAR) ==
                      NG_OK);
                CHECK(ng_quantize(ctx, &qop, &s, &d) == NG_OK);
            }
#if defined(__x86_64__)
            CHECK(_mm_getcsr() == (how ? 0x8040u : before));
            _mm_setcsr(before);
#endif
            if (how == 0) {
                memcpy(want, dst, sizeof want);
                memcpy(want_scale, scale, sizeof want_scale);
            }
            CHECK(memcmp(want, dst, sizeof want) == 0);
            CHECK(memcmp(want_scale, scale, sizeof want_scale) == 0);
            ng_ctx_destroy(ctx);
            ng_pool_destroy(pool);
        }
}

/* Two contexts share a pool but not a thread at a time: one after the other. */
static void pool_reused(void)
{
    ng_pool *pool = NULL;
    ng_ctx_config config = { .size = sizeof config };
    if (ng_pool_create(4, &pool, &config.executor) != NG_OK)
        return;
    for (size_t i = 0; i < 4; i++) {
        struct job *j = cook(&recipes[i]);
        if (reference(j))
            for (int n = 0; n < 20; n++)
                same(__LINE__, j, &config, "a pool used before");
    }
    ng_pool_destroy(pool);
}

int main(void)
{
    for (size_t i = 0; i < N_RECIPES; i++) {
        struct job *j = cook(&recipes[i]);
        if (!reference(j))
            continue;
        masks(j);
        executors(j);
        scratch(j);
        control_words(j);
        views(j, 0);
        views(j, NG_ISA_REF);
        element_by_element(j);
        if (!(recipes[i].features & SR_PSUM))
            one_by_one(j);
        repeated(j);
        dots(&recipes[i]);
    }
    dots_anywhere("trn2", NG_E4M3, NG_F32);
    dots_anywhere("trn3", NG_BF16, NG_BF16);
    dots_anywhere("fma-f32", NG_F32, NG_F32);
    dots_anywhere("nv-hopper", NG_F16, NG_F32);
    dots_anywhere("amd-cdna3", NG_BF16, NG_F32);
    conversions();
    pool_reused();
    return report("test_invariance");
}
