/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_convert, ng_quantize, ng_quantize_both and ng_dequantize against a copy that moves as many
 * bytes: tensors that stay in the second cache, and 256 MiB of input.
 */
#include <stdlib.h>
#include <string.h>

#include "yardstick.h"

enum call {
    CONVERT,
    QUANTIZE,   /* blocks along rows */
    COLUMNS,    /* blocks along columns */
    BOTH,       /* the matrix, and its transpose */
    DEQUANTIZE, /* blocks along rows */
};
static const char *const calls[] = { "convert", "quantize", "quantize-columns", "quantize-both",
                                     "dequantize" };

enum words {
    NO_WORDS,
    WORDS_EXTERNAL,
    WORDS_PHILOX,
    WORDS_XORWOW
};
static const char *const word_names[] = { "", "-words", "-philox", "-xorwow" };

struct conversion {
    enum call call;
    ng_format from, to;
    ng_round round;
    ng_scale_rule rule;
    enum words words;

    uint32_t isa;
    const ng_executor *executor;
    int64_t rows, cols;
    char kernel[40];

    ng_ctx *ctx;
    ng_tensor src, dst, turned;
    ng_cast cast;
    uint32_t *word;
};

static const struct conversion conversions[] = {
    { .call = CONVERT, .from = NG_F32, .to = NG_E4M3FN },
    { .call = CONVERT, .from = NG_F32, .to = NG_E5M2 },
    { .call = CONVERT, .from = NG_F32, .to = NG_BF16 },
    { .call = CONVERT, .from = NG_F32, .to = NG_F16 },
    { .call = CONVERT, .from = NG_F32, .to = NG_E2M1 },
    { .call = CONVERT, .from = NG_BF16, .to = NG_E4M3FN },
    { .call = CONVERT, .from = NG_BF16, .to = NG_E2M1 },
    { .call = CONVERT, .from = NG_BF16, .to = NG_E5M2 },
    { .call = CONVERT, .from = NG_BF16, .to = NG_F16 },
    { .call = CONVERT, .from = NG_E5M2, .to = NG_BF16 },
    { .call = CONVERT, .from = NG_E4M3FN, .to = NG_F16 },
    { .call = CONVERT, .from = NG_F32, .to = NG_E4M3FN, .round = NG_ROUND_TOWARD_ZERO },
    { .call = CONVERT, .from = NG_F32, .to = NG_BF16, .round = NG_ROUND_TOWARD_ZERO },
    { .call = CONVERT, .from = NG_E4M3FN, .to = NG_F32 },
    { .call = CONVERT, .from = NG_E5M2, .to = NG_F32 },
    { .call = CONVERT, .from = NG_E2M1, .to = NG_F32 },
    { .call = CONVERT, .from = NG_E4M3FN, .to = NG_BF16 },
    { .call = CONVERT, .from = NG_E2M1, .to = NG_BF16 },
    { .call = CONVERT, .from = NG_F32, .to = NG_BF16, .words = WORDS_EXTERNAL },
    { .call = CONVERT, .from = NG_F32, .to = NG_E5M2, .words = WORDS_EXTERNAL },
    { .call = CONVERT, .from = NG_F32, .to = NG_E5M2, .words = WORDS_PHILOX },
    { .call = CONVERT, .from = NG_F32, .to = NG_E5M2, .words = WORDS_XORWOW },
    { .call = QUANTIZE, .from = NG_F32, .to = NG_E4M3FN, .rule = NG_SCALE_FLOOR },
    { .call = QUANTIZE, .from = NG_F32, .to = NG_E4M3FN, .rule = NG_SCALE_FLOOR_UP1 },
    { .call = QUANTIZE, .from = NG_F32, .to = NG_E4M3FN, .rule = NG_SCALE_RCEIL },
    { .call = QUANTIZE, .from = NG_F32, .to = NG_E2M1, .rule = NG_SCALE_FLOOR },
    { .call = QUANTIZE, .from = NG_F32, .to = NG_E2M1, .rule = NG_SCALE_FLOOR_UP1 },
    { .call = QUANTIZE, .from = NG_F32, .to = NG_E2M1, .rule = NG_SCALE_RCEIL },
    { .call = QUANTIZE, .from = NG_F32, .to = NG_E2M3, .rule = NG_SCALE_FLOOR },
    { .call = QUANTIZE, .from = NG_BF16, .to = NG_E4M3FN, .rule = NG_SCALE_FLOOR },
    { .call = QUANTIZE, .from = NG_F32, .to = NG_E2M1, .rule = NG_SCALE_NVFP4_TE },
    { .call = COLUMNS, .from = NG_F32, .to = NG_E4M3FN, .rule = NG_SCALE_FLOOR },
    { .call = BOTH, .from = NG_F32, .to = NG_E4M3FN, .rule = NG_SCALE_FLOOR },
    { .call = DEQUANTIZE, .from = NG_E4M3FN, .to = NG_F32 },
    { .call = DEQUANTIZE, .from = NG_E2M1, .to = NG_F32 },
    { .call = DEQUANTIZE, .from = NG_E4M3FN, .to = NG_BF16 },
    { .call = DEQUANTIZE, .from = NG_E2M1, .to = NG_BF16 },
};

static bool is_nv(const struct conversion *x)
{
    return x->rule >= NG_SCALE_NVFP4_TE;
}

static bool quantizes(const struct conversion *x)
{
    return x->call == QUANTIZE || x->call == COLUMNS || x->call == BOTH;
}

static bool convert(struct conversion *x)
{
    const ng_convert_op op = { .size = sizeof op, .cast = x->cast };
    const ng_quantize_op q = { .size = sizeof q, .rule = x->rule, .cast = x->cast };
    switch (x->call) {
    case CONVERT: return ng_convert(x->ctx, &op, &x->src, &x->dst) == NG_OK;
    case DEQUANTIZE: return ng_dequantize(x->ctx, &op, &x->src, &x->dst) == NG_OK;
    case BOTH: return ng_quantize_both(x->ctx, &q, &x->src, &x->dst, &x->turned) == NG_OK;
    case QUANTIZE:
    case COLUMNS: break;
    }
    return ng_quantize(x->ctx, &q, &x->src, &x->dst) == NG_OK;
}

/* ---- One case. ---- */

static ng_tensor result(const struct conversion *x, bool turned)
{
    const int64_t dim[2] = { turned ? x->cols : x->rows, turned ? x->rows : x->cols };
    const size_t bytes = ng_tensor_bytes(x->to, 2, dim);
    ng_tensor t;
    (void)ng_tensor_init(&t, x->to, bench_alloc(bytes), 2, dim);
    memset(t.data, 1, bytes);
    if (!quantizes(x))
        return t;
    const uint32_t block = is_nv(x) ? 16 : 32, axis = x->call == COLUMNS ? 0 : 1;
    const int64_t blocks = (dim[axis] + block - 1) / block * dim[1 - axis];
    (void)ng_tensor_set_scale(&t, is_nv(x) ? NG_UE4M3 : NG_E8M0, bench_alloc((size_t)blocks),
                              block, axis, NG_LAYOUT_LINEAR);
    memset(t.scale, 1, (size_t)blocks);
    return t;
}

static void choose_words(struct conversion *x)
{
    const int64_t n = x->rows * x->cols;
    ng_random *r = &x->cast.random;
    if (x->words == NO_WORDS)
        return;
    x->cast.round = NG_ROUND_STOCHASTIC;
    if (x->words == WORDS_PHILOX) {
        *r = (ng_random){ .kind = NG_RANDOM_PHILOX, .key = { 1, 2 } };
        return;
    }
    const int64_t words = x->words == WORDS_EXTERNAL ? n : (int64_t)128 * 6;
    x->word = bench_alloc(4 * (size_t)words);
    if (x->words == WORDS_EXTERNAL) {
        const ng_random philox = { .kind = NG_RANDOM_PHILOX, .key = { 3, 4 } };
        (void)ng_random_words(x->ctx, &philox, x->cols, 0, n, x->word);
        *r = (ng_random){ .kind = NG_RANDOM_EXTERNAL, .word = x->word, .count = n };
    } else {
        (void)ng_random_states(NG_RANDOM_XORWOW, 5, 128, 1, x->word);
        *r = (ng_random){ .kind = NG_RANDOM_XORWOW, .state = x->word };
    }
}

static void release(void *arg)
{
    struct conversion *x = arg;
    bench_free(&x->src);
    bench_free(&x->dst);
    bench_free(&x->turned);
    free(x->word);
    x->word = NULL;
    ng_ctx_destroy(x->ctx);
}

/* Operands; then one call, so that all memory is there. */
static bool prepare(void *arg)
{
    struct conversion *x = arg;
    ng_ctx_config config = { .size = sizeof config, .isa_mask = x->isa };
    if (x->executor)
        config.executor = *x->executor;
    if (ng_ctx_create(&config, &x->ctx))
        return false;
    x->src = bench_operand(x->from, x->rows, x->cols, 1,
                           x->call == DEQUANTIZE ? FILL_MX : FILL_GAUSSIAN, 1);
    x->dst = result(x, false);
    x->turned = x->call == BOTH ? result(x, true) : (ng_tensor){ 0 };
    const bool narrow =
        quantizes(x) || (x->call == CONVERT && x->from == NG_F32) || x->from == NG_BF16;
    x->cast = (ng_cast){ .round = x->round,
                         .overflow = narrow ? NG_OVERFLOW_SATURATE : NG_OVERFLOW_INF };
    choose_words(x);
    const bool done = convert(x);
    (void)snprintf(x->kernel, sizeof x->kernel, "%s", ng_ctx_kernel(x->ctx));
    return done;
}

static void run_convert(void *state)
{
    (void)convert(state);
}

/* Codes and scales. */
static size_t bytes_of(const ng_tensor *t)
{
    size_t scales = 0;
    if (t->scale)
        scales = (size_t)((t->dim[t->block_axis] + t->block - 1) / t->block *
                          t->dim[1 - t->block_axis]);
    return (t->data ? ng_tensor_bytes(t->format, 2, t->dim) : 0) + scales;
}

static bool same(const ng_tensor *got, const ng_tensor *want)
{
    if (!got->data)
        return true;
    const size_t codes = ng_tensor_bytes(got->format, 2, got->dim);
    return memcmp(got->data, want->data, codes) == 0 &&
           (!got->scale || memcmp(got->scale, want->scale, bytes_of(got) - codes) == 0);
}

/* All that a call writes, on a small shape with tails, against the reference's. */
static bool same_as_reference(const struct conversion *what)
{
    struct conversion got = *what, want = *what;
    got.rows = want.rows = 64;
    got.cols = want.cols = 96;
    want.isa = NG_ISA_REF;
    want.executor = NULL;
    bool ok = prepare(&got);
    ok = prepare(&want) && ok;
    ok = ok && same(&got.dst, &want.dst) && same(&got.turned, &want.turned);
    release(&got);
    release(&want);
    return ok;
}

static const char *const rules[] = { "floor", "floor_up1", "ceil",       "even",
                                     "rceil", "nvfp4_te",  "nvfp4_exact" };
static const char *const rounds[] = { "rne", "rna", "rtz", "rdn", "rup", "rto", "sr" };

static ng_round round_of(const struct conversion *x)
{
    return x->words ? NG_ROUND_STOCHASTIC : x->round;
}

static void name_case(const struct conversion *x, char *name, size_t size)
{
    (void)snprintf(name, size, "convert/%s/%s/%s/%s%s%s-%s%s/%lldx%lld", ng_isa_name(x->isa),
                   calls[x->call], ng_format_info(x->from)->text, ng_format_info(x->to)->text,
                   quantizes(x) ? "-" : "", quantizes(x) ? rules[x->rule] : "",
                   rounds[round_of(x)], word_names[x->words], (long long)x->rows,
                   (long long)x->cols);
}

static void one(struct bench *run, const struct conversion *what)
{
    struct conversion x = *what;
    char name[140], label[64];
    name_case(&x, name, sizeof name);
    x.executor = run->executor;
    if (!bench_wants(run, name) || run->list)
        return;
    if (!same_as_reference(&x)) {
        bench_refuse(run, name, "differs from the reference");
        return;
    }
    const int64_t dim[2] = { x.rows, x.cols };
    const ng_tensor in = { .data = &x, .format = x.from, .rank = 2, .dim = { x.rows, x.cols } };
    const size_t n = (size_t)(x.rows * x.cols), out = ng_tensor_bytes(x.to, 2, dim),
                 scales = x.call == CONVERT ? 0 : n / (is_nv(&x) ? 16 : 32),
                 words = x.words == WORDS_EXTERNAL ? 4 * n : 0,
                 moved = bytes_of(&in) + (out + scales) * (x.call == BOTH ? 2 : 1) + words;
    (void)snprintf(label, sizeof label, "%s%s", calls[x.call], word_names[x.words]);
    bench_beside_copy(
        run, name,
        &(struct bench_subject){
            .arg = &x, .prepare = prepare, .call = run_convert, .release = release },
        moved,
        (struct row){ .label = label,
                      .kernel = x.kernel,
                      .profile = quantizes(&x) ? rules[x.rule] : rounds[round_of(&x)],
                      .a = ng_format_info(x.from)->text,
                      .b = ng_format_info(x.to)->text,
                      .m = x.rows,
                      .n = x.cols });
}

/* Every ISA that this CPU has and that has conversions of its own. */
void bench_convert(struct bench *run)
{
    static const uint32_t isas[] = { NG_ISA_AVX512, NG_ISA_AVX2 };
    for (size_t size = 0; size < (run->quick ? 1 : 2); size++)
        for (size_t a = 0; a < sizeof isas / sizeof isas[0]; a++)
            for (size_t i = 0; i < sizeof conversions / sizeof conversions[0]; i++) {
                struct conversion x = conversions[i];
                if (!(ng_isa_available() & isas[a]))
                    continue;
                x.isa = isas[a];
                const int64_t bits = ng_format_info(x.from)->store_bits;
                x.cols = 4096;
                x.rows = size ? ((int64_t)256 << 20) * 8 / bits / x.cols : 32;
                one(run, &x);
            }
}
