/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ngauge selftest: does this build, on this CPU, give the bits that were published? Each
 * subject is computed from data that are the same everywhere, hashed with XXH3-128 and compared
 * with a value in the source. docs/numerics.md decides what is right; the suites under tests/
 * judge it.
 */
#define XXH_INLINE_ALL
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cli.h"
#include "draw.h"

struct subject {
    const char *name;
    bool (*run)(ng_ctx *ctx, const struct subject *s, XXH3_state_t *hash);
    const char *arg;
    const char *digest;
};

/* ---- Subjects. ---- */

static void hash_u32(XXH3_state_t *h, uint32_t v)
{
    const unsigned char b[4] = { (unsigned char)v, (unsigned char)(v >> 8),
                                 (unsigned char)(v >> 16), (unsigned char)(v >> 24) };
    XXH3_128bits_update(h, b, sizeof b);
}

/* Every code of every format of at most 16 bits. */
static bool run_decode(ng_ctx *ctx, const struct subject *s, XXH3_state_t *h)
{
    (void)ctx;
    (void)s;
    for (size_t i = 0; ng_format_at(i); i++) {
        const ng_format_spec *f = ng_format_at(i);
        for (uint32_t c = 0; f->bits <= 16 && c < 1u << f->bits; c++) {
            ng_value v;
            if (ng_decode(f->format, c, &v))
                return false;
            hash_u32(h, (uint32_t)v.sig);
            hash_u32(h, (uint32_t)v.exp);
            hash_u32(h, (uint32_t)v.cls << 1 | v.neg);
        }
    }
    return true;
}

/* FP32 patterns: uniform, and near the codes of the target's own size. */
static void fill_f32(uint32_t *x, size_t n)
{
    uint64_t state = 7;
    for (size_t i = 0; i < n; i++) {
        const uint32_t r = (uint32_t)draw(&state);
        const uint32_t kind = draw_below(&state, 4);
        x[i] = kind == 0   ? r
               : kind == 1 ? (r & 0x80FFFFFFu) + ((100u + draw_below(&state, 50)) << 23)
               : kind == 2 ? (r & 0xFFF00000u) + draw_below(&state, 3) - 1
                           : (r & 0xFFFF8000u) | (draw_below(&state, 2) << 14);
    }
}

enum {
    N_CONVERT = 1 << 14
};

static bool convert_all(ng_ctx *ctx, ng_format to, const uint32_t *x, const uint32_t *word,
                        uint32_t *out, XXH3_state_t *h)
{
    const int64_t dim = N_CONVERT;
    ng_tensor src, dst;
    const size_t bytes = ng_tensor_bytes(to, 1, &dim);
    if (ng_tensor_init(&src, NG_F32, (void *)x, 1, &dim) ||
        ng_tensor_init(&dst, to, out, 1, &dim))
        return false;
    for (int r = NG_ROUND_TIES_TO_EVEN; r <= NG_ROUND_STOCHASTIC; r++)
        for (int o = NG_OVERFLOW_INF; o <= NG_OVERFLOW_SATURATE_KEEP_INF; o++) {
            const ng_format_spec *f = ng_format_info(to);
            ng_convert_op op = { .size = sizeof op };
            op.cast = (ng_cast){ .round = (ng_round)r,
                                 .overflow = (ng_overflow)o,
                                 .random = { NG_RANDOM_EXTERNAL, word, N_CONVERT } };
            if (o == NG_OVERFLOW_INF && !f->has_inf && !f->has_nan)
                continue;
            memset(out, 0, bytes);
            if (ng_convert(ctx, &op, &src, &dst))
                return false;
            XXH3_128bits_update(h, out, bytes);
        }
    return true;
}

static bool run_convert(ng_ctx *ctx, const struct subject *s, XXH3_state_t *h)
{
    (void)s;
    uint32_t *buffer = malloc(3 * N_CONVERT * sizeof *buffer);
    bool ok = buffer != NULL;
    uint64_t state = 11;
    if (ok) {
        fill_f32(buffer, N_CONVERT);
        for (size_t i = 0; i < N_CONVERT; i++)
            buffer[N_CONVERT + i] = (uint32_t)draw(&state);
    }
    for (size_t i = 0; ok && ng_format_at(i); i++)
        ok = convert_all(ctx, ng_format_at(i)->format, buffer, buffer + N_CONVERT,
                         buffer + 2 * N_CONVERT, h);
    free(buffer);
    return ok;
}

/* All scale rules for all element formats that take them, and back. */
static bool run_quantize(ng_ctx *ctx, const struct subject *s, XXH3_state_t *h)
{
    (void)s;
    enum {
        ROWS = 16,
        COLS = 512
    };
    static const ng_format elements[] = { NG_E4M3FN, NG_E5M2, NG_E3M2,
                                          NG_E2M3,   NG_E2M1, NG_MXINT8 };
    static uint32_t x[ROWS * COLS], back[ROWS * COLS];
    static unsigned char out[ROWS * COLS], scale[ROWS * COLS / 16];
    const int64_t dim[2] = { ROWS, COLS };
    ng_tensor src, dst, f32;
    fill_f32(x, ROWS * COLS);
    for (size_t e = 0; e < sizeof elements / sizeof elements[0]; e++)
        for (int rule = NG_SCALE_FLOOR; rule <= NG_SCALE_NVFP4_EXACT; rule++) {
            const bool nv = rule >= NG_SCALE_NVFP4_TE;
            if (nv && elements[e] != NG_E2M1)
                continue;
            const ng_quantize_op op = { .size = sizeof op, .rule = (ng_scale_rule)rule };
            ng_convert_op to = { .size = sizeof to };
            memset(out, 0, sizeof out);
            if (ng_tensor_init(&src, NG_F32, x, 2, dim) ||
                ng_tensor_init(&dst, elements[e], out, 2, dim) ||
                ng_tensor_init(&f32, NG_F32, back, 2, dim) ||
                ng_tensor_set_scale(&dst, nv ? NG_UE4M3 : NG_E8M0, scale, nv ? 16 : 32, 1,
                                    rule == NG_SCALE_FLOOR_UP1 ? NG_LAYOUT_TRN_WRAP
                                                               : NG_LAYOUT_LINEAR) ||
                ng_quantize(ctx, &op, &src, &dst) || ng_dequantize(ctx, &to, &dst, &f32))
                return false;
            XXH3_128bits_update(h, out, ng_tensor_bytes(elements[e], 2, dim));
            XXH3_128bits_update(h, scale, (size_t)(ROWS * COLS / (nv ? 16 : 32)));
            XXH3_128bits_update(h, back, sizeof back);
        }
    return true;
}

/* ---- Multiplies: each rule of a profile with each format that it takes on both sides. ---- */

enum {
    MM = 6,
    NN = 20,
    KK = 300
};

static bool multiply(ng_ctx *ctx, const ng_profile *p, const ng_rule *r, ng_format f,
                     XXH3_state_t *h)
{
    static unsigned char a[MM * KK * 4], b[NN * KK * 4], sa[MM * 20], sb[NN * 20];
    static uint32_t d[MM * NN];
    uint64_t state = 3;
    ng_tensor ta, tb, td;
    ng_gemm_op op = { .size = sizeof op,
                      .profile = p,
                      .double_row = r->mode == NG_MODE_DOUBLE_ROW };
    const uint32_t bits = ng_format_info(f)->store_bits, mask = bits == 8 ? 0xBF : 0xFF;
    for (size_t i = 0; i < sizeof a; i++) /* exponents from the middle: few NaN and Inf */
        a[i] = (unsigned char)(draw(&state) & (bits == 32 && i % 4 == 3 ? 0xBF : mask));
    for (size_t i = 0; i < sizeof b; i++)
        b[i] = (unsigned char)(draw(&state) & (bits == 32 && i % 4 == 3 ? 0xBF : mask));
    for (size_t i = 0; i < sizeof sa; i++)
        sa[i] = (unsigned char)(r->mode == NG_MODE_NV ? draw_below(&state, 0x7F)
                                                      : 110 + draw_below(&state, 30));
    for (size_t i = 0; i < sizeof sb; i++)
        sb[i] = (unsigned char)(r->mode == NG_MODE_NV ? draw_below(&state, 0x7F)
                                                      : 110 + draw_below(&state, 30));
    const uint32_t block = r->mode == NG_MODE_NV ? 16 : 32;
    const ng_format scale = r->mode == NG_MODE_NV ? NG_UE4M3 : NG_E8M0;
    if (ng_tensor_init(&ta, f, a, 2, (int64_t[]){ MM, KK }) ||
        ng_tensor_init(&tb, f, b, 2, (int64_t[]){ KK, NN }) ||
        ng_tensor_init(&td, NG_F32, d, 2, (int64_t[]){ MM, NN }))
        return false;
    if (r->mode >= NG_MODE_MX &&
        (ng_tensor_set_scale(&ta, scale, sa, block, 1, NG_LAYOUT_LINEAR) ||
         ng_tensor_set_scale(&tb, scale, sb, block, 0, NG_LAYOUT_LINEAR)))
        return false;
    if (ng_gemm(ctx, &op, &ta, &tb, NULL, &td))
        return false;
    XXH3_128bits_update(h, d, sizeof d);
    return true;
}

static bool run_gemm(ng_ctx *ctx, const struct subject *s, XXH3_state_t *h)
{
    const ng_profile *p = ng_profile_find(s->arg);
    hash_u32(h, ng_profile_hash(p));
    for (uint32_t i = 0; i < p->n_rules; i++)
        for (size_t k = 0; ng_format_at(k); k++)
            if ((p->rules[i].a & p->rules[i].b) >> k & 1 &&
                !multiply(ctx, p, &p->rules[i], ng_format_at(k)->format, h))
                return false;
    return true;
}

/* Every collective, in formats with few exponents and with many. */
static bool run_reduce(ng_ctx *ctx, const struct subject *s, XXH3_state_t *h)
{
    (void)s;
    enum {
        RANKS = 16,
        COUNT = 300
    };
    static const ng_format formats[] = { NG_BF16, NG_F16, NG_F32, NG_E5M2 };
    static unsigned char x[RANKS * COUNT * 4];
    static uint32_t d[COUNT];
    const int64_t dim[] = { RANKS, COUNT };
    uint64_t state = 5;
    for (size_t i = 0; i < sizeof x; i++) /* few NaN and Inf, of either sign */
        x[i] = (unsigned char)(draw(&state) & (i % 2 ? 0xBF : 0xFF));
    for (size_t i = 0; ng_collective_at(i); i++)
        for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++)
            for (int r = NG_REDUCTION_SUM; r <= NG_REDUCTION_MAX; r++) {
                const ng_all_reduce_op op = { .size = sizeof op,
                                              .collective = ng_collective_at(i),
                                              .reduction = (ng_reduction)r };
                ng_tensor tx, td;
                if (r && strcmp(op.collective->name, "exact") == 0)
                    continue;
                if (ng_tensor_init(&tx, formats[f], x, 2, dim) ||
                    ng_tensor_init(&td, NG_F32, d, 1, dim + 1) ||
                    ng_all_reduce(ctx, &op, &tx, &td))
                    return false;
                XXH3_128bits_update(h, d, sizeof d);
            }
    return true;
}

#define GEMM(profile, digest)                                                                  \
    {                                                                                          \
        "gemm " profile, run_gemm, profile, digest                                             \
    }

static const struct subject subjects[] = {
#include "selftest.inc"
};

/* ---- Running. ---- */

static bool run_subject(uint32_t isa, const struct subject *s, char *digest, size_t bytes)
{
    XXH3_state_t *h = XXH3_createState();
    ng_ctx_config config = { .size = sizeof config, .isa_mask = isa };
    ng_ctx *ctx = NULL;
    bool ok = h && ng_ctx_create(&config, &ctx) == NG_OK;
    if (ok) {
        XXH3_128bits_reset(h);
        ok = s->run(ctx, s, h);
        const XXH128_hash_t d = XXH3_128bits_digest(h);
        snprintf(digest, bytes, "%016llx%016llx", (unsigned long long)d.high64,
                 (unsigned long long)d.low64);
    }
    ng_ctx_destroy(ctx);
    XXH3_freeState(h);
    return ok;
}

static int run_all(const struct cli *cli, bool print)
{
    json_t *list = cli->json ? json_array() : NULL;
    int passed = 0, failed = 0;
    const uint32_t available = ng_isa_available();
    for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++)
        for (uint32_t isa = NG_ISA_REF; isa <= NG_ISA_AMXBF16; isa <<= 1) {
            const struct subject *s = &subjects[i];
            char digest[40] = "";
            if (!(available & isa) || (cli->isa_mask && !(cli->isa_mask & isa)) ||
                (isa != NG_ISA_REF && (print || (s->run != run_gemm && s->run != run_reduce))))
                continue;
            const bool ok = run_subject(isa, s, digest, sizeof digest);
            const bool same = ok && strcmp(digest, s->digest) == 0;
            *(same ? &passed : &failed) += 1;
            if (print)
                printf("%-28s %s\n", s->name, digest);
            else if (list)
                json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:b}", "subject", s->name,
                                                      "isa", ng_isa_name(isa), "digest", digest,
                                                      "same", same));
            else if (!same || !cli->quiet)
                printf("%s %-28s %-7s %s%s%s\n", same ? "ok  " : "FAIL", s->name,
                       ng_isa_name(isa), digest, same ? "" : ", published ",
                       same ? "" : s->digest);
        }
    if (list && cli_print_json(json_pack("{s:o,s:i,s:i}", "subjects", list, "passed", passed,
                                         "failed", failed)))
        return EXIT_FILE;
    for (uint32_t isa = NG_ISA_AVX2; isa <= NG_ISA_AMXBF16 && !list; isa <<= 1)
        if (!(available & isa))
            printf("skipped: %s: not built, or not on this CPU\n", ng_isa_name(isa));
    if (!list && !print)
        printf("selftest: %d passed, %d failed%s\n", passed, failed,
               failed ? "" : ": this build gives the published bits");
    return failed && !print ? EXIT_DIFFERS : EXIT_EQUAL;
}

int cmd_selftest(int argc, char **argv)
{
    enum {
        OPT_PRINT = OPT_OWN
    };
    static const struct option long_options[] = { CLI_OPTIONS,
                                                  { "print", no_argument, NULL, OPT_PRINT },
                                                  { 0 } };
    struct cli cli = { .threads = 1 };
    bool print = false;
    int code;
    if (!cli_options(
            &cli, argc, argv,
            &(struct cli_options){ CLI_SHORT, long_options,
                                   "usage: ngauge selftest [--print] [--isa LIST] [--json]\n",
                                   cli_take_flag, &print },
            &code))
        return code;
    code = cli_words("selftest", argv + optind, 0, 0, NULL);
    return code ? code : run_all(&cli, print);
}
