/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "bench.h"

enum {
    HUGE_PAGE = 2 << 20
};

/* splitmix64 */
static uint64_t next(uint64_t *s)
{
    uint64_t z = *s += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* Huge pages where there are some, as the library's own memory has them: what is read beside it
 * would be slower without. */
void *bench_alloc(size_t bytes)
{
    const size_t align = bytes < HUGE_PAGE ? 64 : HUGE_PAGE,
                 rounded = (bytes + align - 1) / align * align;
    void *p = aligned_alloc(align, rounded);
#ifdef MADV_HUGEPAGE
    if (p && bytes >= HUGE_PAGE)
        (void)madvise(p, rounded, MADV_HUGEPAGE);
#endif
    if (!p) {
        (void)fprintf(stderr, "ng-bench: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return p;
}

static ng_tensor matrix(ng_format f, int64_t rows, int64_t cols)
{
    const int64_t dim[2] = { rows, cols };
    ng_tensor t;
    (void)ng_tensor_init(&t, f, bench_alloc(ng_tensor_bytes(f, 2, dim)), 2, dim);
    return t;
}

void bench_free(ng_tensor *t)
{
    free(t->data);
    free(t->scale);
    *t = (ng_tensor){ .data = NULL };
}

/* ---- Magnitudes of a range, for conversions. ---- */

/* A real number of 24 random bits, so that sums of products do round. */
static uint32_t draw(ng_format f, struct spread s, uint64_t *seed)
{
    const ng_cast cast = { .overflow = NG_OVERFLOW_SATURATE };
    const uint64_t r = next(seed);
    const int window = s.high - s.low + 1;
    const ng_value v = { .sig = (r & 0x7FFFFFu) | 0x800000u,
                         .exp = s.low + (int)(r >> 32 & 0xFFFFu) % window - 23,
                         .cls = NG_CLASS_FINITE,
                         .neg = r >> 63 };
    uint32_t code = 0;
    (void)ng_encode(f, &cast, &v, 0, &code);
    return code;
}

ng_tensor bench_matrix(ng_format f, int64_t rows, int64_t cols, struct spread s, uint64_t seed)
{
    enum {
        POOL = 4096 /* encoding each element would take longer than the case */
    };
    static uint32_t pool[POOL];
    for (int i = 0; i < POOL; i++)
        pool[i] = draw(f, s, &seed);
    ng_tensor t = matrix(f, rows, cols);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            ng_tensor_set(&t, (const int64_t[]){ i, j }, pool[next(&seed) % POOL]);
    return t;
}

/* ---- Operands of multiplies, from a pool of blocks. ---- */

enum {
    BLOCK = 32,
    BLOCKS = 4096 /* of the pool: converting or quantising every element would take minutes */
};

struct pool {
    uint32_t code[BLOCKS][BLOCK];
    uint8_t scale[BLOCKS];
};

static float gaussian(uint64_t *seed)
{
    const double u = ((double)(next(seed) >> 11) + 0.5) * 0x1p-53,
                 v = (double)(next(seed) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v));
}

static void fail(const char *what)
{
    (void)fprintf(stderr, "ng-bench: cannot %s\n", what);
    exit(2);
}

/* The library rounds and quantises: what it gives is the format's own Gaussian. */
static void pool_gaussian(ng_format f, bool mx, uint64_t *seed, struct pool *pool)
{
    const ng_convert_op convert = { .size = sizeof convert,
                                    .cast = { .overflow = NG_OVERFLOW_SATURATE } };
    const ng_quantize_op quantize = { .size = sizeof quantize, .rule = NG_SCALE_FLOOR_UP1 };
    ng_tensor src = matrix(NG_F32, BLOCKS, BLOCK), dst = matrix(f, BLOCKS, BLOCK);
    float *x = src.data;
    ng_ctx *ctx = NULL;
    for (int i = 0; i < BLOCKS * BLOCK; i++)
        x[i] = gaussian(seed);
    if (ng_ctx_create(NULL, &ctx))
        fail("make a context");
    if (mx)
        (void)ng_tensor_set_scale(&dst, NG_E8M0, pool->scale, BLOCK, 1, NG_LAYOUT_LINEAR);
    if (mx ? ng_quantize(ctx, &quantize, &src, &dst) : ng_convert(ctx, &convert, &src, &dst))
        fail("make the data");
    for (int64_t i = 0; i < BLOCKS; i++)
        for (int64_t j = 0; j < BLOCK; j++)
            pool->code[i][j] = ng_tensor_get(&dst, (int64_t[]){ i, j });
    dst.scale = NULL; /* the pool's */
    bench_free(&src);
    bench_free(&dst);
    ng_ctx_destroy(ctx);
}

/*
 * Of four neighbours one is in the top binade, one the least subnormal, one anything, one in
 * between, in any order; odd significands where there are any, so that no low bit is zero.
 */
static void pool_wide(ng_format f, uint64_t *seed, struct pool *pool)
{
    const ng_format_spec *spec = ng_format_info(f);
    const uint32_t sign = 1u << (spec->bits - 1), max = spec->max_code;
    for (int i = 0; i < BLOCKS; i++) {
        pool->scale[i] = (uint8_t)(124 + next(seed) % 7);
        for (int j = 0; j < BLOCK; j += 4) {
            const uint64_t r = next(seed);
            const uint32_t quad[4] = { (max - 1) | 1u, 1u, (uint32_t)(r >> 8) % (max + 1),
                                       (max / 2) | 1u };
            for (int q = 0; q < 4; q++)
                pool->code[i][j + q] =
                    quad[(q + (int)(r & 3)) % 4] ^ (r >> (4 + q) & 1 ? sign : 0);
        }
    }
}

/* Elements [k, k + n) of a line := the first n of a block of the pool. */
static void put_block(const ng_tensor *t, uint32_t axis, int64_t line, int64_t k, int64_t n,
                      const uint32_t *code)
{
    const size_t bytes = ng_format_info(t->format)->store_bits / 8;
    int64_t at[2] = { line, line };
    if (!bytes) {
        for (int64_t i = 0; i < n; i++) {
            at[axis] = k + i;
            ng_tensor_set(t, at, code[i]);
        }
        return;
    }
    const int64_t step = t->stride[axis] * (int64_t)bytes;
    unsigned char *p =
        (unsigned char *)t->data + line * t->stride[1 - axis] * (int64_t)bytes + k * step;
    for (int64_t i = 0; i < n; i++)
        memcpy(p + i * step, &code[i], bytes); /* little-endian: the low bytes */
}

static void nv_scales(ng_tensor *t, uint32_t axis, uint64_t seed)
{
    const int64_t n = (t->dim[axis] + 15) / 16 * t->dim[1 - axis];
    uint8_t *scale = bench_alloc((size_t)n);
    for (int64_t i = 0; i < n; i++)
        scale[i] = (uint8_t)(52 + next(&seed) % 8);
    (void)ng_tensor_set_scale(t, NG_UE4M3, scale, 16, axis, NG_LAYOUT_LINEAR);
}

ng_tensor bench_operand(ng_format f, int64_t rows, int64_t cols, uint32_t axis, enum fill fill,
                        uint64_t seed)
{
    struct pool *pool = bench_alloc(sizeof *pool);
    ng_tensor t = matrix(f, rows, cols);
    const int64_t depth = t.dim[axis], lines = t.dim[1 - axis],
                  blocks = (depth + BLOCK - 1) / BLOCK;
    uint8_t *scale =
        fill == FILL_GAUSSIAN || fill == FILL_NV ? NULL : bench_alloc((size_t)(blocks * lines));
    if (fill == FILL_WIDE)
        pool_wide(f, &seed, pool);
    else
        pool_gaussian(f, fill != FILL_GAUSSIAN, &seed, pool);
    for (int i = 0; fill == FILL_FAR && i < BLOCKS; i++)
        pool->scale[i] = (uint8_t)(115 + next(&seed) % 25);
    for (int64_t b = 0; b < blocks; b++) /* all lines of a block: B's rows stay in the cache */
        for (int64_t line = 0; line < lines; line++) {
            const uint64_t x = next(&seed) % BLOCKS;
            const int64_t k = b * BLOCK, n = depth - k < BLOCK ? depth - k : BLOCK;
            put_block(&t, axis, line, k, n, pool->code[x]);
            if (scale)
                scale[axis ? line * blocks + b : b * lines + line] = pool->scale[x];
        }
    if (scale)
        (void)ng_tensor_set_scale(&t, NG_E8M0, scale, BLOCK, axis, NG_LAYOUT_LINEAR);
    if (fill == FILL_NV)
        nv_scales(&t, axis, seed);
    free(pool);
    return t;
}

/* ---- 2:4. ---- */

/* Where the two largest of four magnitudes are, in ascending order. */
static void largest_two(const uint32_t v[4], uint32_t sign, uint8_t at[2])
{
    int best = 0, second = -1;
    for (int i = 1; i < 4; i++)
        if ((v[i] & ~sign) > (v[best] & ~sign))
            best = i;
    for (int i = 0; i < 4; i++)
        if (i != best && (second < 0 || (v[i] & ~sign) > (v[second] & ~sign)))
            second = i;
    at[0] = (uint8_t)(best < second ? best : second);
    at[1] = (uint8_t)(best < second ? second : best);
}

void bench_prune(const ng_tensor *dense, struct bench_sparse *out)
{
    const int64_t k = dense->dim[0], n = dense->dim[1], line = (k / 2 + 3) / 4 * 2;
    const uint32_t sign = 1u << (ng_format_info(dense->format)->bits - 1);
    out->t = matrix(dense->format, k / 2, n);
    out->tags = bench_alloc((size_t)(n * line));
    memset(out->tags, 0, (size_t)(n * line));
    for (int64_t g = 0; g < k / 4; g++)
        for (int64_t j = 0; j < n; j++) {
            uint32_t v[4];
            uint8_t at[2];
            for (int i = 0; i < 4; i++)
                v[i] = ng_tensor_get(dense, (int64_t[]){ 4 * g + i, j });
            largest_two(v, sign, at);
            for (int i = 0; i < 2; i++)
                ng_tensor_set(&out->t, (int64_t[]){ 2 * g + i, j }, v[at[i]]);
            out->tags[j * line + g] = (uint8_t)(at[0] | at[1] << 4);
        }
    out->sparse = (ng_sparse){ .kept = 2, .group = 4, .store = NG_TAG_TRN, .tags = out->tags };
    out->t.sparse = &out->sparse;
}

void bench_free_sparse(struct bench_sparse *s)
{
    bench_free(&s->t);
    free(s->tags);
    s->tags = NULL;
}
