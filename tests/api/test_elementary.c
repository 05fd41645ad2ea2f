/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elementary functions over tensors: the same bytes as element by element through the public
 * calls for FP32, for every pair of formats, layouts, ISAs, threads and control words; in
 * place; drawn rounding; bad input.
 */
#include <stdlib.h>

#include "api.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    COUNT = 10007, /* three tasks, the last one odd */
    BYTES = 8 * COUNT,
    FUNCTIONS = NG_FN_RSQRT + 1
};

static unsigned char src_data[BYTES], dst_data[BYTES], want_data[BYTES];
static uint32_t words[COUNT], argument[COUNT], result[COUNT];
static uint16_t table[65536];
static uint64_t seed = 7;

static ng_ctx *context(uint32_t isa, const ng_executor *e)
{
    ng_ctx_config config = { .size = sizeof config, .isa_mask = isa };
    ng_ctx *ctx = NULL;
    if (e)
        config.executor = *e;
    CHECK(ng_ctx_create(&config, &ctx) == NG_OK);
    return ctx;
}

static ng_elementary_op operation(int f, ng_function_kind kind)
{
    return (ng_elementary_op){ .size = sizeof(ng_elementary_op),
                               .function = (ng_function)f,
                               .choice = { .kind = kind, .table = table } };
}

static void hostile(void)
{
#if defined(__x86_64__)
    _mm_setcsr(0xFF40u); /* flush, zeros for subnormals, toward zero; underflow unmasked */
#endif
}

static void friendly(void)
{
#if defined(__x86_64__)
    _mm_setcsr(0x1F80u);
#endif
}

/* A call under a control word that breaks naive code. */
static ng_status call(ng_ctx *ctx, const ng_elementary_op *op, const ng_tensor *src,
                      const ng_tensor *dst)
{
    hostile();
    const ng_status s = ng_elementary(ctx, op, src, dst);
    friendly();
    return s;
}

/* ---- What the result must be: exact value, FP32 function, ng_encode. ---- */

/* The FP32 patterns of src, and the function of them by the reference, all as FP32. */
static void by_parts(const ng_tensor *src, const ng_elementary_op *op)
{
    static const ng_cast rne = { .round = NG_ROUND_TIES_TO_EVEN };
    ng_elementary_op plain = *op;
    int64_t index[NG_MAX_RANK] = { 0 }, n = 0;
    ng_tensor x, y;
    plain.cast = rne;
    plain.cast.nan_sign = op->cast.nan_sign;
    do {
        ng_value v;
        CHECK(ng_decode(src->format, ng_tensor_get(src, index), &v) == NG_OK);
        CHECK(ng_encode(NG_F32, &rne, &v, 0, &argument[n++]) == NG_OK);
    } while (next_index(src, index));
    CHECK(ng_tensor_init(&x, NG_F32, argument, 1, &n) == NG_OK);
    CHECK(ng_tensor_init(&y, NG_F32, result, 1, &n) == NG_OK);
    ng_ctx *ref = context(NG_ISA_REF, NULL);
    CHECK(ng_elementary(ref, &plain, &x, &y) == NG_OK);
    CHECK(strcmp(ng_ctx_kernel(ref), "ref") == 0);
    ng_ctx_destroy(ref);
}

static void expect(const ng_tensor *dst, const ng_elementary_op *op)
{
    int64_t index[NG_MAX_RANK] = { 0 }, n = 0;
    do {
        ng_value v;
        uint32_t code = 0;
        CHECK(ng_decode(NG_F32, result[n], &v) == NG_OK);
        CHECK(ng_encode(dst->format, &op->cast, &v, words[n], &code) == NG_OK);
        ng_tensor_set(dst, index, code);
        n++;
    } while (next_index(dst, index));
}

/* By every ISA, on threads, backwards: bytes between the elements too. */
static void check_all(const ng_elementary_op *op, const ng_tensor *src, ng_tensor dst)
{
    ng_pool *pool = NULL;
    ng_executor on_pool, reversed = { .parallel_for = backwards, .workers = 1 };
    CHECK(ng_pool_create(3, &pool, &on_pool) == NG_OK);
    by_parts(src, op);
    memset(want_data, 0xA5, BYTES);
    dst.data = want_data;
    expect(&dst, op);
    dst.data = dst_data;
    for (uint32_t isa = 1; isa; isa <<= 1) {
        const ng_executor *executors[] = { NULL, &on_pool, &reversed };
        for (int e = 0; ng_isa_name(isa) && isa & ng_isa_available() && e < 3; e++) {
            ng_ctx *ctx = context(isa, executors[e]);
            memset(dst_data, 0xA5, BYTES);
            CHECK(call(ctx, op, src, &dst) == NG_OK);
            if (!CHECK(memcmp(dst_data, want_data, BYTES) == 0))
                printf("  %s, %s to %s by %s\n", ng_function_name(op->function),
                       ng_format_info(src->format)->text, ng_format_info(dst.format)->text,
                       ng_isa_name(isa));
            ng_ctx_destroy(ctx);
        }
    }
    ng_pool_destroy(pool);
}

/* ---- Formats, kinds, layouts. ---- */

static void fill(const ng_tensor *t)
{
    int64_t index[NG_MAX_RANK] = { 0 };
    const ng_format_spec *f = ng_format_info(t->format);
    do {
        const uint32_t any = (uint32_t)(next(&seed) & (0xFFFFFFFFu >> (32 - f->bits)));
        ng_tensor_set(t, index,
                      next(&seed) % 4 ? some_code(f, &seed)
                                      : any >> f->low_bits << f->low_bits);
    } while (next_index(t, index));
}

static bool is_element(const ng_format_spec *f)
{
    return f->kind != NG_KIND_SCALE && f->kind != NG_KIND_UFN;
}

static ng_overflow overflow_of(const ng_format_spec *f)
{
    return f->has_inf || f->has_nan ? NG_OVERFLOW_INF : NG_OVERFLOW_SATURATE;
}

static void test_formats(void)
{
    const int64_t n = 5003; /* two tasks, the second one odd */
    int f = 0;              /* of the next pair */
    for (size_t i = 0; ng_format_at(i); i++)
        for (size_t k = 0; ng_format_at(k); k++) {
            const ng_format_spec *from = ng_format_at(i), *to = ng_format_at(k);
            ng_tensor src, dst;
            if (!is_element(from) || !is_element(to) || (i + k) % 3)
                continue;
            ng_elementary_op op =
                operation(f % FUNCTIONS, (ng_function_kind)(f % 7 ? 0 : 1 + f % 2));
            op.cast.overflow = overflow_of(to);
            CHECK(ng_tensor_init(&src, from->format, src_data, 1, &n) == NG_OK);
            CHECK(ng_tensor_init(&dst, to->format, dst_data, 1, &n) == NG_OK);
            fill(&src);
            check_all(&op, &src, dst);
            f++;
        }
}

static void test_layouts(void)
{
    static const ng_format formats[] = { NG_F32, NG_BF16, NG_E2M1 };
    const int64_t dim[3] = { 6, 21, 30 };
    for (int i = 0; i < 3; i++)
        for (int turned = 0; turned < 3; turned++) {
            ng_elementary_op op = operation(i + turned, NG_FUNCTION_CR);
            ng_tensor src, dst;
            CHECK(ng_tensor_init(&src, NG_F16, src_data, 3, dim) == NG_OK);
            CHECK(ng_tensor_init(&dst, formats[i], dst_data, 3, dim) == NG_OK);
            op.cast.overflow = overflow_of(ng_format_info(formats[i]));
            if (turned == 1) { /* src by columns, dst with gaps */
                src.stride[0] = 1, src.stride[1] = 6, src.stride[2] = 6 * 21;
                dst.stride[0] = 21 * 40, dst.stride[1] = 40;
            } else if (turned == 2) { /* src repeats its rows */
                src.stride[1] = 0;
            }
            fill(&src);
            check_all(&op, &src, dst);
        }
}

/* FP32 off its alignment, and results that the conversion changes all the same. */
static void test_bytes(void)
{
    const int64_t n = 5003;
    for (int i = 0; i < 4; i++) {
        ng_elementary_op op = operation(i, i == 3 ? NG_FUNCTION_TABLE : NG_FUNCTION_CR);
        ng_tensor src, dst;
        CHECK(ng_tensor_init(&src, NG_F32, src_data + (i & 1), 1, &n) == NG_OK);
        CHECK(ng_tensor_init(&dst, NG_F32, dst_data, 1, &n) == NG_OK);
        op.cast.overflow = i == 2 ? NG_OVERFLOW_SATURATE : NG_OVERFLOW_INF;
        op.cast.nan_sign = i == 3 ? NG_NAN_SIGN_KEEP : NG_NAN_SIGN_CLEAR;
        fill(&src);
        check_all(&op, &src, dst);
    }
}

/* Words go to elements by number, whatever the layout. */
static void test_drawn(void)
{
    const int64_t dim[2] = { 100, 100 };
    ng_tensor src, dst;
    ng_elementary_op op = operation(NG_FN_SIGMOID, NG_FUNCTION_CR);
    for (int i = 0; i < COUNT; i++)
        words[i] = (uint32_t)next(&seed);
    op.cast.round = NG_ROUND_STOCHASTIC;
    op.cast.random = (ng_random){ .kind = NG_RANDOM_EXTERNAL, .word = words, .count = COUNT };
    CHECK(ng_tensor_init(&src, NG_F32, src_data, 2, dim) == NG_OK);
    CHECK(ng_tensor_init(&dst, NG_E4M3FN, dst_data, 2, dim) == NG_OK);
    fill(&src);
    check_all(&op, &src, dst);
    src.stride[0] = 1, src.stride[1] = 100;
    check_all(&op, &src, dst);
    op.cast.random.count = 9999;
    ng_ctx *ctx = context(0, NULL);
    CHECK(ng_elementary(ctx, &op, &src, &dst) == NG_ERR_ARGUMENT);
    op.cast.random.count = COUNT;
    op.cast.random.word = (const uint32_t *)(const void *)dst_data;
    CHECK(ng_elementary(ctx, &op, &src, &dst) == NG_ERR_LAYOUT);
    ng_ctx_destroy(ctx);
    memset(words, 0, sizeof words);
}

static void test_in_place(void)
{
    const int64_t n = COUNT;
    ng_tensor t;
    ng_ctx *ctx = context(0, NULL);
    const ng_elementary_op op = operation(NG_FN_EXP2, NG_FUNCTION_CR);
    CHECK(ng_tensor_init(&t, NG_F32, src_data, 1, &n) == NG_OK);
    fill(&t);
    by_parts(&t, &op);
    CHECK(call(ctx, &op, &t, &t) == NG_OK);
    CHECK(memcmp(src_data, result, sizeof result) == 0);
    ng_ctx_destroy(ctx);
}

/* ---- Refusals leave dst alone. ---- */

static void refused(ng_ctx *ctx, const ng_elementary_op *op, const ng_tensor *src,
                    const ng_tensor *dst, ng_status want, const char *words_of_message)
{
    memset(dst_data, 0x5A, BYTES);
    CHECK(ng_elementary(ctx, op, src, dst) == want);
    if (!CHECK(strstr(ng_ctx_message(ctx), words_of_message) != NULL))
        printf("  message: %s\n", ng_ctx_message(ctx));
    size_t untouched = 0;
    while (untouched < BYTES && dst_data[untouched] == 0x5A)
        untouched++;
    CHECK(untouched == BYTES);
}

static void test_refusals(void)
{
    const int64_t n = 5000, less = 4999;
    ng_ctx *ctx = context(0, NULL);
    ng_tensor src, dst, other;
    ng_elementary_op op = operation(NG_FN_LOG, NG_FUNCTION_CR);
    CHECK(ng_tensor_init(&src, NG_F32, src_data, 1, &n) == NG_OK);
    CHECK(ng_tensor_init(&dst, NG_F32, dst_data, 1, &n) == NG_OK);
    memset(src_data, 0, sizeof src_data);
    refused(ctx, NULL, &src, &dst, NG_ERR_ARGUMENT, "op is NULL");
    op.size--;
    refused(ctx, &op, &src, &dst, NG_ERR_ARGUMENT, "op.size");
    op = operation(FUNCTIONS, NG_FUNCTION_CR);
    refused(ctx, &op, &src, &dst, NG_ERR_ARGUMENT, "op.function is 7");
    op = operation(NG_FN_LOG, (ng_function_kind)3);
    refused(ctx, &op, &src, &dst, NG_ERR_ARGUMENT, "op.choice.kind is 3");
    op = operation(NG_FN_LOG, NG_FUNCTION_TABLE);
    op.choice.table = NULL;
    refused(ctx, &op, &src, &dst, NG_ERR_ARGUMENT, "table is NULL");
    op = operation(NG_FN_LOG, NG_FUNCTION_CR);
    refused(ctx, &op, NULL, &dst, NG_ERR_ARGUMENT, "src");
    refused(ctx, &op, &src, NULL, NG_ERR_ARGUMENT, "dst");
    CHECK(ng_tensor_init(&other, NG_F32, src_data, 1, &less) == NG_OK);
    refused(ctx, &op, &other, &dst, NG_ERR_SHAPE, "src");
    other = dst;
    other.data = dst_data + 4;
    refused(ctx, &op, &other, &dst, NG_ERR_LAYOUT, "overlaps src");
    other = src;
    other.scale = src_data;
    refused(ctx, &op, &other, &dst, NG_ERR_FORMAT, "block scales");
    op.cast.round = (ng_round)99;
    refused(ctx, &op, &src, &dst, NG_ERR_ARGUMENT, "round");

    /* A NaN that only the last element gives: log(-1) into a format without NaN. */
    op = operation(NG_FN_LOG, NG_FUNCTION_CR);
    op.cast.nan_to = NG_NAN_TO_ERROR;
    op.cast.overflow = NG_OVERFLOW_SATURATE;
    CHECK(ng_tensor_init(&other, NG_E2M1, dst_data, 1, &n) == NG_OK);
    const int64_t last = n - 1;
    ng_tensor_set(&src, &last, 0xBF800000u);
    refused(ctx, &op, &src, &other, NG_ERR_FORMAT, "log of src has a NaN");
    ng_tensor_set(&src, &last, 0x3F800000u);
    CHECK(ng_elementary(ctx, &op, &src, &other) == NG_OK);
    CHECK(ng_elementary(NULL, &op, &src, &other) == NG_ERR_ARGUMENT);
    ng_ctx_destroy(ctx);
}

int main(void)
{
    for (uint32_t i = 0; i < 65536; i++)
        table[i] = (uint16_t)(i * 40503u + 7);
    test_formats();
    test_layouts();
    test_bytes();
    test_drawn();
    test_in_place();
    test_refusals();
    return report("elementary");
}
