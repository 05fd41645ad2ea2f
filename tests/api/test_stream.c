/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors so large that results are stored past the caches, against the same in slices that are
 * not. Beginnings of dst off every boundary, ends with tails, and what lies around dst.
 */
#include <stdlib.h>

#include "api.h"

enum {
    ROOM = 128 << 20, /* of src and each dst */
    SLICE = 1 << 18,  /* elements */
    AROUND = 256
};

static uint8_t *src_memory, *dst_memory[2], *scale_memory[2];

static size_t bytes(ng_format f, int64_t n)
{
    return (size_t)(n * ng_format_info(f)->store_bits / 8);
}

/* Elements that move 48 MiB and a little, in whole blocks and then a tail. */
static int64_t length(ng_format from, ng_format to, int tail)
{
    const int64_t bits = ng_format_info(from)->store_bits + ng_format_info(to)->store_bits;
    return (((int64_t)50 << 20) * 8 / bits) / 64 * 64 + tail;
}

static bool equal(size_t offset, size_t n)
{
    return memcmp(dst_memory[0], dst_memory[1], offset + n + AROUND) == 0;
}

static void clear(size_t n)
{
    for (int i = 0; i < 2; i++)
        memset(dst_memory[i], 0xAA, n + 2 * (size_t)AROUND);
}

static void convert(ng_ctx *ctx, ng_format from, ng_format to, ng_round round, size_t offset,
                    int tail)
{
    const int64_t n = length(from, to, tail);
    const ng_convert_op op = { .size = sizeof op,
                               .cast = { .round = round, .overflow = NG_OVERFLOW_SATURATE } };
    clear(offset + bytes(to, n));
    for (int sliced = 0; sliced < 2; sliced++) {
        const int64_t step = sliced ? SLICE : n;
        for (int64_t i = 0; i < n; i += step) {
            const int64_t m = n - i < step ? n - i : step;
            const ng_tensor s = vector(from, src_memory + bytes(from, i), m),
                            d = vector(to, dst_memory[sliced] + offset + bytes(to, i), m);
            if (!CHECK(ng_convert(ctx, &op, &s, &d) == NG_OK))
                return;
        }
    }
    if (!CHECK(equal(offset, bytes(to, n))))
        printf("  %s to %s, round %d, dst + %zu, tail %d\n", ng_format_info(from)->text,
               ng_format_info(to)->text, round, offset, tail);
}

/* Blocks of 32 along a row. */
static void scaled(ng_ctx *ctx, bool quantize, ng_format from, ng_format to, size_t offset)
{
    const int64_t n = length(from, to, 0);
    const ng_convert_op op = { .size = sizeof op };
    const ng_quantize_op q = { .size = sizeof q, .rule = NG_SCALE_RCEIL };
    clear(offset + bytes(to, n));
    for (int sliced = 0; sliced < 2; sliced++) {
        const int64_t step = sliced ? SLICE : n;
        for (int64_t i = 0; i < n; i += step) {
            const int64_t m = n - i < step ? n - i : step;
            ng_tensor s = vector(from, src_memory + bytes(from, i), m),
                      d = vector(to, dst_memory[sliced] + offset + bytes(to, i), m);
            CHECK(ng_tensor_set_scale(quantize ? &d : &s, NG_E8M0,
                                      scale_memory[quantize ? sliced : 0] + i / 32, 32, 0,
                                      NG_LAYOUT_LINEAR) == NG_OK);
            const ng_status status =
                quantize ? ng_quantize(ctx, &q, &s, &d) : ng_dequantize(ctx, &op, &s, &d);
            if (!CHECK(status == NG_OK))
                return;
        }
    }
    const bool same = equal(offset, bytes(to, n)) &&
                      memcmp(scale_memory[0], scale_memory[1], (size_t)(n / 32)) == 0;
    if (!CHECK(same))
        printf("  %s, %s to %s, dst + %zu\n", quantize ? "quantize" : "dequantize",
               ng_format_info(from)->text, ng_format_info(to)->text, offset);
}

/* Blocks of 32 rows of as many columns. */
static void columns(ng_ctx *ctx, ng_format from, ng_format to)
{
    const int64_t cols = 4096, rows = length(from, to, 0) / cols / 32 * 32,
                  dim[2] = { rows, cols };
    const ng_quantize_op q = { .size = sizeof q, .rule = NG_SCALE_RCEIL };
    clear(bytes(to, rows * cols));
    for (int sliced = 0; sliced < 2; sliced++) {
        const int64_t step = sliced ? 32 : rows, some[2] = { step, cols };
        for (int64_t i = 0; i < rows; i += step) {
            ng_tensor s, d;
            ng_tensor_init(&s, from, src_memory + bytes(from, i * cols), 2,
                           sliced ? some : dim);
            ng_tensor_init(&d, to, dst_memory[sliced] + bytes(to, i * cols), 2,
                           sliced ? some : dim);
            CHECK(ng_tensor_set_scale(&d, NG_E8M0, scale_memory[sliced] + i / 32 * cols, 32, 0,
                                      NG_LAYOUT_LINEAR) == NG_OK);
            if (!CHECK(ng_quantize(ctx, &q, &s, &d) == NG_OK))
                return;
        }
    }
    const bool same = equal(0, bytes(to, rows * cols)) &&
                      memcmp(scale_memory[0], scale_memory[1], (size_t)(rows / 32 * cols)) == 0;
    if (!CHECK(same))
        printf("  quantize along columns, %s to %s\n", ng_format_info(from)->text,
               ng_format_info(to)->text);
}

/* A matrix and its transpose, behind each other; slices are strips of rows. */
static void both(ng_ctx *ctx, ng_format from, ng_format to)
{
    const int64_t cols = 4160, rows = length(from, to, 0) / cols / 64 * 64, n = rows * cols;
    const ng_quantize_op q = { .size = sizeof q, .rule = NG_SCALE_FLOOR_UP1 };
    clear(2 * bytes(to, n));
    for (int sliced = 0; sliced < 2; sliced++) {
        const int64_t step = sliced ? 64 : rows, dim[2] = { step, cols },
                      turned[2] = { cols, step };
        for (int64_t i = 0; i < rows; i += step) {
            ng_tensor s, d, t;
            uint8_t *const dst = dst_memory[sliced], *const scale = scale_memory[sliced];
            ng_tensor_init(&s, from, src_memory + bytes(from, i * cols), 2, dim);
            ng_tensor_init(&d, to, dst + bytes(to, i * cols), 2, dim);
            ng_tensor_init(&t, to, dst + bytes(to, n + i), 2, turned);
            CHECK(ng_tensor_set_scale(&d, NG_E8M0, scale + i * cols / 32, 32, 1,
                                      NG_LAYOUT_LINEAR) == NG_OK &&
                  ng_tensor_set_scale(&t, NG_E8M0, scale + (n + i) / 32, 32, 1,
                                      NG_LAYOUT_LINEAR) == NG_OK);
            t.stride[0] = rows;
            t.scale_stride[0] = rows / 32;
            t.scale_stride[1] = 1;
            if (!CHECK(ng_quantize_both(ctx, &q, &s, &d, &t) == NG_OK))
                return;
        }
    }
    if (!CHECK(equal(0, 2 * bytes(to, n)) &&
               memcmp(scale_memory[0], scale_memory[1], (size_t)(2 * n / 32)) == 0))
        printf("  quantize a matrix and its transpose, %s to %s\n", ng_format_info(from)->text,
               ng_format_info(to)->text);
}

/* Numbers of some binades around 1, as FP32 and as bf16: loops of their own. */
static void fill_calm(void)
{
    uint64_t s = 5;
    for (size_t i = 0; i < ROOM; i += 8) {
        const uint64_t exponents = next(&s) % 8 * UINT64_C(0x0080008000800080),
                       r = (next(&s) & UINT64_C(0x807F807F807F807F)) +
                           UINT64_C(0x3D803D803D803D80) + exponents;
        memcpy(src_memory + i, &r, sizeof r);
    }
}

/* FP32 numbers of every sort; as codes of other formats, codes of every sort. */
static void fill(void)
{
    uint64_t s = 3;
    for (size_t i = 0; i < ROOM; i += 8) {
        const uint64_t r = next(&s);
        const uint32_t u[2] = { (uint32_t)(r & 0x807FFFFF) | (120 + (uint32_t)(r >> 40) % 16)
                                                                 << 23,
                                r >> 58 ? (uint32_t)(r >> 32) % 0x80000000u : 0x80000000u };
        memcpy(src_memory + i, u, sizeof u);
    }
    for (size_t i = 0; i < ROOM / 32; i++)
        scale_memory[0][i] = scale_memory[1][i] = (uint8_t)(120 + next(&s) % 16);
}

int main(void)
{
    static const ng_format pairs[][2] = {
        { NG_F32, NG_E4M3FN }, { NG_F32, NG_E2M1 },  { NG_F32, NG_BF16 },
        { NG_F32, NG_TF32 },   { NG_E2M1, NG_F32 },  { NG_E2M1, NG_E4M3FN },
        { NG_E2M1, NG_BF16 },  { NG_BF16, NG_E5M2 }, { NG_E5M2, NG_F32 },
        { NG_F16, NG_BF16 },
    };
    static const size_t offsets[] = { 0, 1, 4, 12, 63, 64 };
    src_memory = malloc(ROOM);
    for (int i = 0; i < 2; i++) {
        dst_memory[i] = aligned_alloc(64, ROOM); /* a line of memory */
        scale_memory[i] = malloc(ROOM / 32);
    }
    ng_ctx *ctx = NULL;
    if (!src_memory || !dst_memory[0] || !dst_memory[1] || !scale_memory[0] ||
        !scale_memory[1] || ng_ctx_create(NULL, &ctx)) {
        printf("FAIL: no memory\n");
        return 1;
    }
    if (!(ng_isa_available() & ~NG_ISA_REF)) {
        printf("skipped: no kernels here, and the reference stores in one way only\n");
        return 77;
    }
    fill();
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        convert(ctx, pairs[i][0], pairs[i][1],
                i % 2 ? NG_ROUND_TOWARD_ZERO : NG_ROUND_TIES_TO_EVEN, offsets[i % 6],
                (int)(i * 7 % 33));
    /* a head of odd length before a boundary, of a source with two codes a byte */
    convert(ctx, NG_E2M1, NG_E4M3FN, NG_ROUND_TIES_TO_EVEN, 1, 0);
    convert(ctx, NG_E2M1, NG_F32, NG_ROUND_TIES_TO_EVEN, 4, 0);
    convert(ctx, NG_F32, NG_BF16, NG_ROUND_TIES_TO_EVEN, 1, 5);
    for (size_t i = 0; i < 2; i++) {
        scaled(ctx, true, NG_F32, i ? NG_E2M1 : NG_E4M3FN, 0);
        scaled(ctx, true, NG_BF16, NG_E4M3FN, 32 * i);
        scaled(ctx, false, i ? NG_E2M1 : NG_E4M3FN, NG_F32, 0);
        scaled(ctx, false, NG_E4M3FN, NG_BF16, 16 * i);
    }
    columns(ctx, NG_F32, NG_E4M3FN);
    fill_calm();
    for (size_t i = 0; i < 2; i++) {
        scaled(ctx, true, i ? NG_BF16 : NG_F32, NG_E4M3FN, 0);
        scaled(ctx, true, i ? NG_BF16 : NG_F32, NG_E2M1, 0);
        columns(ctx, i ? NG_BF16 : NG_F32, NG_E4M3FN);
    }
    columns(ctx, NG_F32, NG_E2M1);
    both(ctx, NG_F32, NG_E4M3FN);
    both(ctx, NG_BF16, NG_E2M1);
    ng_ctx_destroy(ctx);
    return report("test_stream");
}
