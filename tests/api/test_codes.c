/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every code of every format of at most 16 bits, converted to every format by every rounding
 * and overflow rule, and every element under every scale of e8m0: by each ISA as by the
 * reference. The calls are long enough for loops that make tables first.
 */
#include <stdlib.h>

#include "api.h"

enum {
    CODES = 1 << 16,
    SCALES = 256,
    COLUMNS = 256,
    BLOCK = 32
};

static ng_ctx *reference, *by_isa[32];
static unsigned char src[2 * CODES], scale[SCALES * COLUMNS / BLOCK], want[4 * CODES + 64],
    got[4 * CODES + 64];

static void describe(char text[160], const char *what, const ng_ctx *ctx, ng_format from,
                     ng_format to, const ng_cast *c)
{
    (void)snprintf(text, 160, "%s %s to %s, round %d, overflow %d, nan_sign %d: %s", what,
                   ng_format_info(from)->text, ng_format_info(to)->text, (int)c->round,
                   (int)c->overflow, (int)c->nan_sign, ctx ? ng_ctx_message(ctx) : "");
}

typedef ng_status run_fn(ng_ctx *ctx, const ng_convert_op *op, const ng_tensor *s,
                         const ng_tensor *d);

/* One call by the reference and by each ISA. */
static void compare(const char *what, run_fn *run, const ng_cast *cast, const ng_tensor *s,
                    ng_format to)
{
    const ng_convert_op op = { .size = sizeof op, .cast = *cast };
    const ng_tensor d = view(to, want, s->dim[0], s->dim[1]);
    const size_t bytes = ng_tensor_bytes(to, d.rank, d.dim);
    memset(want, 0xEE, sizeof want);
    const ng_status expected = run(reference, &op, s, &d);
    for (int i = 0; i < 32; i++) {
        if (!by_isa[i])
            continue;
        ng_tensor e = d;
        e.data = got;
        memset(got, 0xEE, sizeof got);
        const ng_status status = run(by_isa[i], &op, s, &e);
        const bool equal = status == expected && memcmp(want, got, bytes + 64) == 0;
        checks++;
        if (equal)
            continue;
        char text[160];
        describe(text, what, by_isa[i], s->format, to, cast);
        check_at(__FILE__, __LINE__, false, text);
    }
}

/* Of at most `bits` bits, and no scale. */
static bool is_element(const ng_format_spec *f, uint32_t bits)
{
    return f->store_bits <= bits && f->kind != NG_KIND_SCALE;
}

static void fill_codes(const ng_format_spec *f, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (f->store_bits == 16) {
            const uint16_t code = (uint16_t)i;
            memcpy(src + 2 * i, &code, sizeof code);
        } else if (f->store_bits == 8) {
            src[i] = (unsigned char)i;
        } else if (i % 2 == 0) {
            src[i / 2] = (unsigned char)((i / 2 * 37) & 0xFF);
        }
    }
}

static void convert_all(const ng_format_spec *f)
{
    const int64_t n = f->store_bits == 16 ? CODES : 1024 - 2; /* and a tail */
    fill_codes(f, n);
    const ng_tensor s = view(f->format, src, 1, n);
    const ng_format_spec *to;
    for (size_t i = 0; (to = ng_format_at(i)); i++) {
        if (!is_element(to, 32))
            continue;
        for (int round = 0; round <= NG_ROUND_TO_ODD; round++)
            for (int overflow = 0; overflow <= NG_OVERFLOW_SATURATE_KEEP_INF; overflow++)
                for (int sign = 0; sign < 2; sign++) {
                    const ng_cast cast = { .round = (ng_round)round,
                                           .overflow = (ng_overflow)overflow,
                                           .nan_sign = (ng_nan_sign)sign };
                    compare("convert", ng_convert, &cast, &s, to->format);
                }
    }
}

static void dequantize_all(const ng_format_spec *f)
{
    static const ng_format to[] = { NG_F32, NG_BF16, NG_F16, NG_E4M3FN };
    fill_codes(f, (int64_t)SCALES * COLUMNS);
    ng_tensor s = view(f->format, src, SCALES, COLUMNS);
    for (int i = 0; i < SCALES * COLUMNS / BLOCK; i++)
        scale[i] = (unsigned char)(i / (COLUMNS / BLOCK) + i % (COLUMNS / BLOCK) / 3);
    CHECK(ng_tensor_set_scale(&s, NG_E8M0, scale, BLOCK, 1, NG_LAYOUT_LINEAR) == NG_OK);
    for (size_t i = 0; i < sizeof to / sizeof to[0]; i++) {
        const ng_cast cast = { .overflow = NG_OVERFLOW_SATURATE };
        compare("dequantize", ng_dequantize, &cast, &s, to[i]);
        ng_tensor usual = s; /* rows whose scales are all in range, and few */
        usual.dim[0] = 3;
        usual.scale = scale + 120 * (COLUMNS / BLOCK);
        compare("dequantize", ng_dequantize, &cast, &usual, to[i]);
    }
}

int main(void)
{
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    if (ng_ctx_create(&config, &reference))
        abort();
    int kernels = 0;
    for (int i = 1; i < 32; i++)
        if (ng_isa_available() >> i & 1u) { /* with what it builds upon */
            const ng_ctx_config one = { .size = sizeof one, .isa_mask = (2u << i) - 1u };
            kernels++;
            if (ng_ctx_create(&one, &by_isa[i]))
                abort();
        }
    if (!kernels) {
        puts("skipped: no kernels here");
        return 77;
    }
    const ng_format_spec *f;
    for (size_t i = 0; (f = ng_format_at(i)); i++) {
        if (is_element(f, 16))
            convert_all(f);
        if (is_element(f, 8))
            dequantize_all(f);
    }
    for (int i = 0; i < 32; i++)
        ng_ctx_destroy(by_isa[i]);
    ng_ctx_destroy(reference);
    return report("test_codes");
}
