/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of ng_dpi.sv as a simulator calls them, against the library's own calls: dot
 * products, matrices, intermediates, conversions, quantising, bad input.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/bindings/dpi/ng_dpi.h"
#include "ng/gemm.h"
#include "ng/quantize.h"

enum {
    WORDS = NG_DPI_BITS / 32,
    SCALE_WORDS = NG_DPI_SCALE_BITS / 32,
    MAX_SIDE = 9,
    MAX_K = 200
};

static int checks, failed;

#define CHECK(ok, ...)                                                                         \
    do {                                                                                       \
        checks++;                                                                              \
        if (!(ok)) {                                                                           \
            failed++;                                                                          \
            printf("FAIL line %d: ", __LINE__);                                                \
            printf(__VA_ARGS__);                                                               \
            printf("\n");                                                                      \
        }                                                                                      \
    } while (0)

static uint64_t state = 1;

/* splitmix64 */
static uint32_t draw(uint32_t n)
{
    uint64_t z = state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((z ^ z >> 31) >> 32) % n;
}

static uint32_t any_word(void)
{
    return draw(1u << 16) << 16 | draw(1u << 16);
}

/* A code about 1: exponents near the bias, any fraction. */
static uint32_t draw_code(ng_format format)
{
    const ng_format_spec *f = ng_format_info(format);
    if (f->bits <= 6)
        return draw(1u << f->bits);
    const uint32_t exp = (uint32_t)f->bias - 2 + draw(f->bias > 3 ? 5 : 3),
                   sign = f->kind == NG_KIND_UFN || f->kind == NG_KIND_SCALE ? 0 : draw(2);
    const uint32_t man = any_word() & ((1u << (f->man_bits + f->low_bits)) - 1u);
    return sign << (f->bits - 1) | exp << (f->man_bits + f->low_bits) |
           (f->low_bits ? man & ~((1u << f->low_bits) - 1u) : man);
}

static void set_bits(uint32_t *v, uint32_t width, int i, uint32_t code)
{
    for (uint32_t j = 0; j < width; j++) {
        const uint32_t at = (uint32_t)i * width + j;
        v[at / 32] = (v[at / 32] & ~(1u << at % 32)) | (code >> j & 1u) << at % 32;
    }
}

/* ---- One multiply, by both. ---- */

struct product {
    const char *profile;
    ng_format a, b, scale, c, d;
    int block;
    bool double_row;
};

static const struct product products[] = {
    { "trn2", NG_BF16, NG_BF16, NG_FORMAT_NONE, NG_FORMAT_NONE, NG_F32, 0, false },
    { "trn2", NG_E4M3, NG_E5M2, NG_FORMAT_NONE, NG_F32, NG_BF16, 0, false },
    { "trn3", NG_E4M3FN, NG_E4M3FN, NG_FORMAT_NONE, NG_FORMAT_NONE, NG_F32, 0, true },
    { "trn3", NG_E4M3FN, NG_E2M1, NG_E8M0, NG_F32, NG_F32, 32, false },
    { "ocp-mx", NG_E2M1, NG_E2M1, NG_E8M0, NG_FORMAT_NONE, NG_F32, 32, false },
    { "ocp-mx", NG_E3M2, NG_E2M3, NG_E8M0, NG_FORMAT_NONE, NG_F32, 32, false },
    { "fma-f32", NG_F32, NG_F32, NG_FORMAT_NONE, NG_F32, NG_F16, 0, false },
    { "nv-hopper", NG_TF32, NG_TF32, NG_FORMAT_NONE, NG_F32, NG_F32, 0, false },
    { "nv-hopper-wgmma", NG_E4M3FN, NG_E5M2, NG_FORMAT_NONE, NG_F32, NG_F32, 0, false },
    { "nv-blackwell-tcgen05", NG_E2M1, NG_E2M1, NG_UE4M3, NG_F32, NG_F32, 16, false },
    { "amd-cdna3", NG_F16, NG_F16, NG_FORMAT_NONE, NG_F32, NG_F32, 0, false },
};
enum {
    PRODUCTS = sizeof products / sizeof products[0]
};

/* Operands as plain codes, and what the library makes of them. */
struct operands {
    int m, n, k;
    uint32_t a[MAX_SIDE][MAX_K], b[MAX_SIDE][MAX_K], c[MAX_SIDE][MAX_SIDE];
    uint8_t scale_a[MAX_SIDE][MAX_K], scale_b[MAX_SIDE][MAX_K];
    uint32_t d[MAX_SIDE][MAX_SIDE], words[MAX_SIDE * MAX_SIDE];
};

static void draw_operands(const struct product *p, int m, int n, int k, struct operands *x)
{
    x->m = m;
    x->n = n;
    x->k = k;
    for (int i = 0; i < MAX_SIDE; i++)
        for (int q = 0; q < k; q++) {
            x->a[i][q] = draw_code(p->a);
            x->b[i][q] = draw_code(p->b);
            x->scale_a[i][q] = (uint8_t)(p->scale == NG_E8M0 ? 124 + draw(6) : 0x30 + draw(16));
            x->scale_b[i][q] = (uint8_t)(p->scale == NG_E8M0 ? 124 + draw(6) : 0x30 + draw(16));
        }
    for (int i = 0; i < MAX_SIDE * MAX_SIDE; i++) {
        x->c[i / MAX_SIDE][i % MAX_SIDE] = p->c ? draw_code(p->c) : 0;
        x->words[i] = any_word();
    }
}

/* [lines, length] or, of B, [length, lines]. */
static ng_tensor tensor(ng_format f, int lines, int length, bool columns, void *memory)
{
    ng_tensor t = { .data = memory, .format = f, .rank = 2 };
    const int at = columns ? 0 : 1;
    t.dim[at] = length;
    t.dim[1 - at] = lines;
    t.stride[at] = 1;
    t.stride[1 - at] = (length + 1) / 2 * 2;
    return t;
}

static ng_status expect(ng_ctx *ctx, const struct product *p, ng_gemm_op *op,
                        struct operands *x)
{
    static uint32_t a[MAX_SIDE * (MAX_K + 1)], b[MAX_SIDE * (MAX_K + 1)],
        c[MAX_SIDE * (MAX_SIDE + 1)], d[MAX_SIDE * (MAX_SIDE + 1)];
    ng_tensor ta = tensor(p->a, x->m, x->k, false, a), tb = tensor(p->b, x->n, x->k, true, b),
              tc = tensor(p->c, x->m, x->n, false, c), td = tensor(p->d, x->m, x->n, false, d);
    for (int q = 0; q < x->k; q++) {
        for (int i = 0; i < x->m; i++)
            ng_tensor_set(&ta, (int64_t[]){ i, q }, x->a[i][q]);
        for (int j = 0; j < x->n; j++)
            ng_tensor_set(&tb, (int64_t[]){ q, j }, x->b[j][q]);
    }
    if (p->scale) {
        ng_tensor_set_scale(&ta, p->scale, x->scale_a, (uint32_t)p->block, 1, NG_LAYOUT_LINEAR);
        ng_tensor_set_scale(&tb, p->scale, x->scale_b, (uint32_t)p->block, 0, NG_LAYOUT_LINEAR);
        ta.scale_stride[0] = tb.scale_stride[1] = MAX_K;
        ta.scale_stride[1] = tb.scale_stride[0] = 1;
    }
    for (int i = 0; i < x->m; i++)
        for (int j = 0; j < x->n && p->c; j++)
            ng_tensor_set(&tc, (int64_t[]){ i, j }, x->c[i][j]);
    if (op->out.round == NG_ROUND_STOCHASTIC)
        op->out.random = (ng_random){ .kind = NG_RANDOM_EXTERNAL,
                                      .word = x->words,
                                      .count = (int64_t)x->m * x->n };
    const ng_status s = ng_gemm(ctx, op, &ta, &tb, p->c ? &tc : NULL, &td);
    for (int i = 0; !s && i < x->m; i++)
        for (int j = 0; j < x->n; j++)
            x->d[i][j] = ng_tensor_get(&td, (int64_t[]){ i, j });
    return s;
}

/* The operation, and an oracle that is told the same. */
static void open_both(const struct product *p, ng_gemm_op *op, void **oracle)
{
    *op = (ng_gemm_op){ .size = sizeof *op,
                        .profile = ng_profile_find(p->profile),
                        .double_row = p->double_row };
    const bool narrow = p->d != NG_F32;
    op->out.round = narrow ? (ng_round)draw(7) : NG_ROUND_TIES_TO_EVEN;
    op->out.overflow = (ng_overflow)draw(3);
    *oracle = ng_dpi_open(p->profile);
    CHECK(*oracle && ng_dpi_status(*oracle) == NG_OK, "open %s", p->profile);
    CHECK(ng_dpi_output(*oracle, (int)op->out.round, (int)op->out.overflow) == NG_OK, "output");
    CHECK(ng_dpi_double_row(*oracle, p->double_row) == NG_OK, "double_row");
}

/* The last step of a trace is the output. */
static void check_trace(void *oracle, const struct product *p, int row, int column,
                        uint32_t code)
{
    const int n = ng_dpi_trace(oracle, row, column);
    int kind = -1, index, k0, k1;
    double value = 0;
    CHECK(n > 0, "%s: trace: %d, %s", p->profile, n, ng_dpi_message(oracle));
    CHECK(ng_dpi_step(oracle, n - 1, &kind, &index, &k0, &k1, &value) == NG_OK, "step");
    const double wanted = ng_dpi_real((int)p->d, code);
    CHECK(kind == NG_TRACE_OUT && (value == wanted || (isnan(value) && isnan(wanted))),
          "%s: the last step is %d, %a; wanted %a", p->profile, kind, value, wanted);
    CHECK(strstr(ng_dpi_step_text(oracle, n - 1), "output"), "text of a step");
    CHECK(ng_dpi_step(oracle, n, &kind, &index, &k0, &k1, &value) == NG_ERR_ARGUMENT &&
              strstr(ng_dpi_message(oracle), "step"),
          "a step too far: %s", ng_dpi_message(oracle));
}

static void check_matrices(ng_ctx *ctx, const struct product *p)
{
    static struct operands x;
    ng_gemm_op op;
    void *o;
    const int m = 1 + (int)draw(MAX_SIDE), n = 1 + (int)draw(MAX_SIDE),
              k = p->block ? 64 + 32 * (int)draw(3) : 1 + (int)draw(100);
    draw_operands(p, m, n, k, &x);
    open_both(p, &op, &o);
    const ng_status s = expect(ctx, p, &op, &x);
    CHECK(s == NG_OK, "%s: %s", p->profile, ng_ctx_message(ctx));
    CHECK(ng_dpi_matrices(o, m, n, k, (int)p->a, (int)p->b, (int)p->scale, p->block, (int)p->c,
                          (int)p->d) == NG_OK,
          "matrices: %s", ng_dpi_message(o));
    const uint32_t wa = ng_format_info(p->a)->store_bits;
    const int half = k / 2, room = NG_DPI_BITS / (int)wa;
    for (int i = 0; i < m; i++) { /* A in two pieces of a line */
        for (int from = 0; from < k;) {
            uint32_t bits[WORDS] = { 0 };
            int count = from < half ? half - from : k - from;
            count = count > room ? room : count;
            for (int q = 0; q < count; q++)
                set_bits(bits, wa, q, x.a[i][from + q]);
            CHECK(ng_dpi_put_line(o, NG_DPI_A, i, from, count, bits) == NG_OK, "put_line: %s",
                  ng_dpi_message(o));
            from += count;
        }
    }
    for (int j = 0; j < n; j++)
        for (int q = 0; q < k; q++)
            CHECK(ng_dpi_put(o, NG_DPI_B, q, j, x.b[j][q]) == NG_OK, "put");
    for (int q = 0; p->scale && q < (k + p->block - 1) / p->block; q++) {
        for (int i = 0; i < m; i++)
            CHECK(ng_dpi_put_scale(o, NG_DPI_A, i, q, x.scale_a[i][q]) == NG_OK, "scale of a");
        for (int j = 0; j < n; j++)
            CHECK(ng_dpi_put_scale(o, NG_DPI_B, j, q, x.scale_b[j][q]) == NG_OK, "scale of b");
    }
    for (int i = 0; i < m * n && p->c; i++)
        CHECK(ng_dpi_put(o, NG_DPI_C, i / n, i % n, x.c[i / n][i % n]) == NG_OK, "put c");
    for (int i = 0; i < m * n && op.out.round == NG_ROUND_STOCHASTIC; i++)
        CHECK(ng_dpi_word(o, i, x.words[i]) == NG_OK, "word");
    CHECK(ng_dpi_multiply(o) == NG_OK, "multiply: %s", ng_dpi_message(o));
    for (int i = 0; i < m * n; i++)
        CHECK(ng_dpi_get(o, i / n, i % n) == x.d[i / n][i % n], "%s: d[%d, %d] is %x, not %x",
              p->profile, i / n, i % n, ng_dpi_get(o, i / n, i % n), x.d[i / n][i % n]);
    check_trace(o, p, m - 1, n - 1, x.d[m - 1][n - 1]);
    ng_dpi_close(o);
}

static void check_dot(ng_ctx *ctx, const struct product *p)
{
    static struct operands x;
    uint32_t a[WORDS] = { 0 }, b[WORDS] = { 0 }, sa[SCALE_WORDS] = { 0 },
             sb[SCALE_WORDS] = { 0 };
    const uint32_t wa = ng_format_info(p->a)->store_bits, wb = ng_format_info(p->b)->store_bits;
    const int room = NG_DPI_BITS / (int)(wa > wb ? wa : wb), most = room < MAX_K ? room : MAX_K,
              k = p->block ? 32 * (1 + (int)draw(5)) : 1 + (int)draw((uint32_t)most);
    ng_gemm_op op;
    void *o;
    unsigned d = 0;
    draw_operands(p, 1, 1, k, &x);
    open_both(p, &op, &o);
    CHECK(expect(ctx, p, &op, &x) == NG_OK, "%s: %s", p->profile, ng_ctx_message(ctx));
    for (int q = 0; q < k; q++) {
        set_bits(a, wa, q, x.a[0][q]);
        set_bits(b, wb, q, x.b[0][q]);
    }
    for (int q = 0; p->scale && q < (k + p->block - 1) / p->block; q++) {
        set_bits(sa, 8, q, x.scale_a[0][q]);
        set_bits(sb, 8, q, x.scale_b[0][q]);
    }
    ng_dpi_word(o, 0, x.words[0]);
    CHECK(ng_dpi_dot(o, k, (int)p->a, a, (int)p->b, b, (int)p->scale, p->block, sa, sb,
                     (int)p->c, x.c[0][0], (int)p->d, &d) == NG_OK,
          "dot: %s", ng_dpi_message(o));
    CHECK(d == x.d[0][0], "%s: dot of %d is %x, not %x", p->profile, k, d, x.d[0][0]);
    check_trace(o, p, 0, 0, x.d[0][0]);
    ng_dpi_close(o);
}

/* ---- Conversions. ---- */

static void check_conversions(void)
{
    void *o = ng_dpi_open("trn3");
    for (int i = 0; i < 20000; i++) {
        const ng_format_spec *from, *to;
        do
            from = ng_format_at(draw(20));
        while (!from);
        do
            to = ng_format_at(draw(20));
        while (!to);
        const uint32_t code = from->bits == 32 ? any_word() : draw(1u << from->bits);
        const ng_cast cast = { .round = (ng_round)draw(7), .overflow = (ng_overflow)draw(3) };
        const uint32_t word = any_word();
        ng_value v;
        uint32_t want = 0;
        unsigned got = 1;
        ng_dpi_output(o, (int)cast.round, (int)cast.overflow);
        ng_dpi_word(o, 0, word);
        const ng_status s = ng_decode(from->format, code, &v)
                                ? NG_ERR_FORMAT
                                : ng_encode(to->format, &cast, &v, word, &want);
        CHECK(ng_dpi_convert(o, (int)from->format, code, (int)to->format, &got) == (int)s &&
                  got == (s ? 0 : want),
              "%s %x to %s: %x, not %x (%s)", from->text, code, to->text, got, want,
              ng_dpi_message(o));
    }
    CHECK(ng_dpi_real(NG_E4M3FN, 0x38) == 1 && ng_dpi_real(NG_E2M1, 0xF) == -6 &&
              ng_dpi_real(NG_F32, 1) == 0x1p-149 && ng_dpi_real(NG_E5M2, 0x7C) == HUGE_VAL &&
              isnan(ng_dpi_real(NG_E8M0, 255)) && isnan(ng_dpi_real(77, 0)) &&
              signbit(ng_dpi_real(NG_BF16, 0x8000)),
          "ng_dpi_real");
    ng_dpi_close(o);
}

static void check_quantize(ng_ctx *ctx, bool nv)
{
    void *o = ng_dpi_open("trn3");
    const ng_format from = draw(2) ? NG_F32 : NG_BF16, to = nv || draw(2) ? NG_E2M1 : NG_E4M3FN;
    const uint32_t wide = ng_format_info(from)->store_bits;
    const int block = nv ? 16 : 32, n = block * (1 + (int)draw(3)), blocks = n / block;
    uint32_t src[WORDS] = { 0 }, dst[WORDS], scale[SCALE_WORDS], plain[128] = { 0 };
    unsigned char codes[128] = { 0 }, scales[16] = { 0 };
    unsigned tensor_scale = 1;
    const ng_quantize_op op = { .size = sizeof op,
                                .rule = (ng_scale_rule)(nv ? 5 + draw(2) : draw(5)),
                                .tensor_amax = nv && draw(2) ? 0x41000000u : 0 };
    ng_tensor x, y;
    ng_tensor_init(&x, from, plain, 1, (int64_t[]){ n });
    ng_tensor_init(&y, to, codes, 1, (int64_t[]){ n });
    ng_tensor_set_scale(&y, nv ? NG_UE4M3 : NG_E8M0, scales, (uint32_t)block, 0,
                        NG_LAYOUT_LINEAR);
    for (int i = 0; i < n; i++) {
        const uint32_t code = draw_code(from);
        ng_tensor_set(&x, (int64_t[]){ i }, code);
        set_bits(src, wide, i, code);
    }
    CHECK(ng_quantize(ctx, &op, &x, &y) == NG_OK, "%s", ng_ctx_message(ctx));
    CHECK(ng_dpi_quantize(o, n, (int)from, src, (int)to, nv ? NG_UE4M3 : NG_E8M0, block,
                          (int)op.rule, 0, op.tensor_amax, dst, scale, &tensor_scale) == NG_OK,
          "quantize: %s", ng_dpi_message(o));
    uint32_t want[WORDS] = { 0 }, want_scale[SCALE_WORDS] = { 0 };
    for (int i = 0; i < n; i++)
        set_bits(want, ng_format_info(to)->store_bits, i, ng_tensor_get(&y, (int64_t[]){ i }));
    for (int i = 0; i < blocks; i++)
        set_bits(want_scale, 8, i, scales[i]);
    CHECK(memcmp(dst, want, sizeof want) == 0 && tensor_scale == y.tensor_scale &&
              memcmp(scale, want_scale, sizeof want_scale) == 0,
          "quantize: other codes or scales (rule %d)", (int)op.rule);
    ng_dpi_close(o);
}

/* ---- Profiles, and bad input. ---- */

static void check_profiles(void)
{
    static const char text[] = "profile mine\nrevision 1\nabout a test\n"
                               "rule r mode=plain a=bf16 b=bf16\n chain_rows = 0\n";
    char path[] = "ng-dpi-profile-XXXXXX";
    const int fd = mkstemp(path);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    CHECK(file, "a file for a profile");
    if (!file)
        return;
    fputs(text, file);
    fclose(file);
    void *o = ng_dpi_open(path);
    CHECK(ng_dpi_status(o) == NG_OK, "a profile's file: %s", ng_dpi_message(o));
    uint32_t a[WORDS] = { 0x40003F80 }, none[SCALE_WORDS] = { 0 };
    unsigned d;
    CHECK(ng_dpi_dot(o, 2, NG_BF16, a, NG_BF16, a, 0, 0, none, none, 0, 0, NG_F32, &d) == 0 &&
              d == 0x40A00000,
          "1 * 1 + 2 * 2 is %x", d);
    CHECK(ng_dpi_set(o, "r", "acc_bits", "2") == NG_OK, "set: %s", ng_dpi_message(o));
    CHECK(ng_dpi_dot(o, 2, NG_BF16, a, NG_BF16, a, 0, 0, none, none, 0, 0, NG_F32, &d) == 0 &&
              d == 0x40800000,
          "of two bits 5 is %x", d);
    ng_dpi_close(o);
    remove(path);

    o = ng_dpi_open("no such profile");
    CHECK(o && ng_dpi_status(o) == NG_ERR_PROFILE &&
              strstr(ng_dpi_message(o), "no such profile"),
          "unknown profile: %s", ng_dpi_message(o));
    CHECK(ng_dpi_multiply(o) == NG_ERR_PROFILE && ng_dpi_output(o, 0, 0) == NG_ERR_PROFILE &&
              ng_dpi_get(o, 0, 0) == 0 && ng_dpi_trace(o, 0, 0) == -1 &&
              strstr(ng_dpi_message(o), "no such profile"),
          "calls on it: %s", ng_dpi_message(o));
    ng_dpi_close(o);
    o = ng_dpi_open(NULL);
    CHECK(ng_dpi_status(o) == NG_ERR_PROFILE, "no name");
    ng_dpi_close(o);
    ng_dpi_close(NULL);
    CHECK(ng_dpi_status(NULL) == NG_ERR_MEMORY && ng_dpi_message(NULL)[0] &&
              ng_dpi_multiply(NULL) == NG_ERR_MEMORY && ng_dpi_get(NULL, 0, 0) == 0,
          "no oracle");
}

/* A call that must fail, and words of its message. */
#define REFUSES(o, call, wanted, words)                                                        \
    CHECK((call) == (wanted) && ng_dpi_status(o) == (wanted) &&                                \
              strstr(ng_dpi_message(o), words),                                                \
          "%s: %d, '%s'", #call, ng_dpi_status(o), ng_dpi_message(o))

static void check_bad_input(void)
{
    void *o = ng_dpi_open("trn3");
    uint32_t a[WORDS] = { 0 }, s[SCALE_WORDS] = { 0 }, dst[WORDS], scale[SCALE_WORDS];
    unsigned d = 7;
    REFUSES(o, ng_dpi_multiply(o), NG_ERR_ARGUMENT, "ng_dpi_matrices() first");
    REFUSES(o, ng_dpi_put(o, NG_DPI_A, 0, 0, 1), NG_ERR_ARGUMENT, "no operand");
    REFUSES(o, ng_dpi_matrices(o, 0, 1, 1, NG_BF16, NG_BF16, 0, 0, 0, NG_F32), NG_ERR_SHAPE,
            "m 0");
    REFUSES(o, ng_dpi_matrices(o, 1, 1, 1, 99, NG_BF16, 0, 0, 0, NG_F32), NG_ERR_FORMAT,
            "a 99");
    REFUSES(o, ng_dpi_matrices(o, 2, 3, 4, NG_E4M3FN, NG_E4M3FN, NG_E8M0, 0, 0, NG_F32),
            NG_ERR_SHAPE, "block 0");
    CHECK(ng_dpi_matrices(o, 2, 3, 64, NG_E4M3FN, NG_E4M3FN, NG_E8M0, 32, 0, NG_F32) == NG_OK,
          "%s", ng_dpi_message(o));
    REFUSES(o, ng_dpi_matrices(o, 2, 3, 4, NG_E4M3FN, 99, 0, 0, 0, NG_F32), NG_ERR_FORMAT,
            "b 99");
    CHECK(ng_dpi_put(o, NG_DPI_A, 1, 63, 1) == NG_OK, "a refused call took operands away");
    REFUSES(o, ng_dpi_put(o, NG_DPI_C, 0, 0, 1), NG_ERR_ARGUMENT, "2 is no operand");
    REFUSES(o, ng_dpi_put(o, NG_DPI_A, 2, 0, 1), NG_ERR_SHAPE, "element 2, 0 of 2 x 64");
    REFUSES(o, ng_dpi_put(o, NG_DPI_B, 64, 0, 1), NG_ERR_SHAPE, "64, 0 of 64 x 3");
    REFUSES(o, ng_dpi_put_scale(o, NG_DPI_B, 0, 2, 1), NG_ERR_SHAPE, "block 2 of line 0");
    REFUSES(o, ng_dpi_put_line(o, NG_DPI_A, 0, 60, 5, a), NG_ERR_SHAPE, "5 elements from 60");
    REFUSES(o, ng_dpi_put_line(o, NG_DPI_A, 0, 0, -1, a), NG_ERR_SHAPE, "-1 elements");
    REFUSES(o, ng_dpi_output(o, 7, 0), NG_ERR_ARGUMENT, "round 7");
    REFUSES(o, ng_dpi_word(o, -1, 0), NG_ERR_ARGUMENT, "element -1");
    REFUSES(o, ng_dpi_accumulate(o, 99), NG_ERR_FORMAT, "99 is no format");
    REFUSES(o, ng_dpi_set(o, "mx", "lane_sum", "none"), NG_ERR_PROFILE,
            "fused chain presum tree");
    REFUSES(o, ng_dpi_set(o, "mx", "acc_bits", "99"), NG_ERR_PROFILE, "acc_bits");
    REFUSES(o, ng_dpi_set(o, "mxx", "acc_bits", "9"), NG_ERR_PROFILE, "mxx");
    REFUSES(o, ng_dpi_set(o, NULL, NULL, NULL), NG_ERR_ARGUMENT, "wanted");
    REFUSES(o, ng_dpi_trace(o, 5, 0) + 1 + NG_ERR_SHAPE, NG_ERR_SHAPE, "element 5, 0");
    REFUSES(o,
            ng_dpi_dot(o, 65, NG_E4M3FN, a, NG_E4M3FN, a, NG_E8M0, 1, s, s, 0, 0, NG_F32, &d),
            NG_ERR_SHAPE, "65 blocks");
    CHECK(d == 0, "a failed dot product gives %x", d);
    REFUSES(o, ng_dpi_dot(o, 513, NG_E4M3FN, a, NG_E4M3FN, a, 0, 0, s, s, 0, 0, NG_F32, &d),
            NG_ERR_SHAPE, "at most 512");
    REFUSES(o,
            ng_dpi_dot(o, -1, NG_E4M3FN, a, NG_E4M3FN, a, NG_E8M0, 1, s, s, 0, 0, NG_F32, &d),
            NG_ERR_SHAPE, "k -1");
    REFUSES(o, ng_dpi_dot(o, 4, NG_E4M3FN, a, NG_F32, a, 0, 0, s, s, 0, 0, NG_F32, &d),
            NG_ERR_PROFILE, "trn3");
    ng_dpi_output(o, NG_ROUND_STOCHASTIC, 0);
    REFUSES(o, ng_dpi_dot(o, 4, NG_E4M3FN, a, NG_E4M3FN, a, 0, 0, s, s, 0, 0, NG_BF16, &d),
            NG_ERR_ARGUMENT, "word");
    REFUSES(o,
            ng_dpi_quantize(o, 600, NG_F32, a, NG_E4M3FN, NG_E8M0, 32, 0, 0, 0, dst, scale, &d),
            NG_ERR_SHAPE, "600 elements");
    REFUSES(o,
            ng_dpi_quantize(o, 32, NG_F32, a, NG_E4M3FN, NG_F32, 32, 0, 0, 0, dst, scale, &d),
            NG_ERR_FORMAT, "one is none");
    ng_dpi_output(o, 0, 0);
    REFUSES(o,
            ng_dpi_quantize(o, 32, NG_F32, a, NG_E4M3FN, NG_E8M0, 32, 9, 0, 0, dst, scale, &d),
            NG_ERR_ARGUMENT, "rule");
    ng_dpi_close(o);
}

int main(void)
{
    ng_ctx *ctx;
    if (ng_ctx_create(NULL, &ctx))
        return 1;
    for (int round = 0; round < 30; round++)
        for (int i = 0; i < PRODUCTS; i++) {
            check_matrices(ctx, &products[i]);
            check_dot(ctx, &products[i]);
        }
    for (int i = 0; i < 200; i++)
        check_quantize(ctx, i % 2);
    check_conversions();
    check_profiles();
    check_bad_input();
    ng_ctx_destroy(ctx);
    printf("dpi: %d checks, %d failed\n", checks, failed);
    return failed > 0;
}
