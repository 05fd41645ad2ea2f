/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block scaling against docs/numerics.md section 3, on inputs that are complete in one sense or
 * another:
 *
 *   bf16   every bf16 pattern, NaN and Inf too, as a block's largest element, under every e8m0
 *          scale rule and element format: the scale; and the elements of a few companions
 *   f32    every FP32 significand as a block's largest element, in four binades: subnormals,
 * the least normals, 1 to 2, the greatest quads  every ordered quad of e2m1 codes: dequantised,
 * quantised again, dequantised again
 *
 *   test_blocks [--full] [PART ...]
 *
 * Without --full: of bf16 all scales, the elements of every 16th block, and other block
 * specials on every 16th block; of f32 a sample and the neighbourhood of every step. The judge
 * is MPFR (judge.h); scale rules are here a second time, in MPFR too. Every ISA that has a
 * kernel.
 */
#include "judge.h"
#include "report.h"

#if !defined(JUDGE_HAVE_MPFR)
int main(void)
{
    printf("skipped: built without mpfr.h\n");
    return REPORT_SKIP;
}
#else

#include <stdlib.h>
#include <string.h>

#include "ng/ng.h"

#define BLOCK   32
#define ISAS    4u
#define FORMATS 6u
#define RULES   5u

static const char *const format_names[FORMATS] = { "e4m3fn", "e5m2", "e3m2",
                                                   "e2m3",   "e2m1", "mxint8" };
static const char *const rule_names[RULES] = { "floor", "floor_up1", "ceil", "even", "rceil" };
static const char *const special_names[] = { "element", "nan_block", "from_exponent" };

typedef struct bench {
    bool full;
    judge *j;
    judge_num x;
    mpfr_t max, t;
    ng_ctx *ctx[ISAS];
    report report;
} bench;

/* One way of quantising. */
typedef struct how {
    const judge_format *f;
    ng_scale_rule rule;
    ng_block_special special;
    judge_round round;
} how;

static const ng_round library_round[JUDGE_ROUNDS] = {
    NG_ROUND_TIES_TO_EVEN,    NG_ROUND_TIES_TO_AWAY,    NG_ROUND_TOWARD_ZERO,
    NG_ROUND_TOWARD_POSITIVE, NG_ROUND_TOWARD_NEGATIVE, NG_ROUND_TO_ODD,
    NG_ROUND_STOCHASTIC
};

static void *need(size_t count, size_t size)
{
    void *p = calloc(count == 0 ? 1 : count, size);

    if (p == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return p;
}

/* ---- section 3.1, a second time ---- */

/* The scale code of a block whose largest magnitude is `a`. */
static uint32_t judge_scale(bench *b, const how *h, mpfr_srcptr a)
{
    long lead, emax, e = 0;

    if (mpfr_zero_p(a) != 0) {
        return 0;
    }
    lead = mpfr_get_exp(a) - 1;
    mpfr_set_d(b->max, h->f->max, MPFR_RNDN);
    emax = mpfr_get_exp(b->max) - 1;
    switch (h->rule) {
    case NG_SCALE_FLOOR: e = lead - emax; break;
    case NG_SCALE_FLOOR_UP1: e = lead - (emax - 1); break;
    case NG_SCALE_CEIL: e = lead + (mpfr_cmp_ui_2exp(a, 1, lead) > 0 ? 1 : 0) - emax; break;
    case NG_SCALE_EVEN:
        mpfr_set_ui_2exp(b->t, 1, lead - (long)h->f->man_bits - 1, MPFR_RNDN);
        mpfr_add(b->t, b->t, a, MPFR_RNDN); /* 160 bits: exact */
        e = mpfr_get_exp(b->t) - 1 - emax;
        break;
    default: /* rceil: the least e with a <= max * 2^e; this start is too low */
        e = lead - emax - 1;
        do {
            e++;
            mpfr_mul_2si(b->t, b->max, e, MPFR_RNDN);
        } while (mpfr_greater_p(a, b->t) != 0);
        break;
    }
    return (uint32_t)((e < -127 ? -127 : e > 127 ? 127 : e) + 127);
}

/* The element code of b->x under a scale code that is not NaN. */
static uint32_t judge_element(bench *b, const how *h, uint32_t scale)
{
    judge_rule rule = { h->round, JUDGE_OVERFLOW_SAT, false, JUDGE_NAN_MAX };
    uint32_t code = 0;

    if (b->x.cls == JUDGE_FINITE) {
        mpfr_mul_2si(b->x.mag, b->x.mag, 127 - (long)scale, MPFR_RNDN);
    }
    if (!judge_encode(b->j, h->f, &b->x, &rule, &code)) {
        fprintf(stderr, "judge: refused an element\n");
        exit(2);
    }
    return code;
}

/* ---- the library ---- */

static void open_contexts(bench *b)
{
    for (unsigned i = 0; i < ISAS; i++) {
        ng_ctx_config config = { sizeof config, UINT32_C(1) << i };

        if ((ng_isa_available() & config.isa_mask) != 0 &&
            ng_ctx_create(&config, &b->ctx[i]) != NG_OK) {
            fprintf(stderr, "no context\n");
            exit(2);
        }
    }
}

static uint32_t code_at(unsigned bits, const uint8_t *bytes, size_t i)
{
    return bits == 4 ? (uint32_t)bytes[i / 2] >> (i % 2 * 4) & 0xF : bytes[i];
}

static void quantise(bench *b, unsigned isa, const how *h, ng_format from, void *in,
                     int64_t rows, uint32_t block, uint8_t *out, uint8_t *scales)
{
    ng_quantize_op op = { .size = sizeof op, .rule = h->rule, .special = h->special };
    const int64_t dim[2] = { rows, block };
    ng_tensor src, dst;

    op.cast.round = library_round[h->round];
    memset(out, 0xA5, (size_t)rows * block * h->f->word_bits / 8);
    memset(scales, 0xA5, (size_t)rows);
    if (ng_tensor_init(&src, from, in, 2, dim) != NG_OK ||
        ng_tensor_init(&dst, ng_format_find(h->f->name), out, 2, dim) != NG_OK ||
        ng_tensor_set_scale(&dst, NG_E8M0, scales, block, 1, NG_LAYOUT_LINEAR) != NG_OK ||
        ng_quantize(b->ctx[isa], &op, &src, &dst) != NG_OK) {
        report_bad(&b->report, "quantize: %s", ng_ctx_message(b->ctx[isa]));
    }
}

/* Is this ISA here, with a kernel for blocks of this size? The reference always has one. */
static bool takes(bench *b, unsigned isa, const how *h, ng_format from, uint32_t block)
{
    static uint32_t in[64 * BLOCK];
    static uint8_t out[64 * BLOCK], scales[64];

    if (b->ctx[isa] == NULL) {
        return false;
    }
    quantise(b, isa, h, from, in, 64, block, out, scales);
    return isa == 0 || strcmp(ng_ctx_kernel(b->ctx[isa]), "ref") != 0;
}

static void wrong(bench *b, unsigned isa, const how *h, const char *what, uint32_t input,
                  uint32_t got, uint32_t want)
{
    report_bad(&b->report, "%s %s %s %s, largest 0x%X, %s: 0x%X, want 0x%X (%s)", h->f->name,
               rule_names[h->rule], special_names[h->special], judge_round_name[h->round],
               (unsigned)input, what, (unsigned)got, (unsigned)want,
               ng_isa_name(UINT32_C(1) << isa));
}

/* ---- bf16 ---- */

#define ALL_BF16   65536u
#define COMPANIONS 4u

/* x, the next smaller magnitude with the other sign, an eighth of x, any smaller one. */
static void companions(uint32_t x, uint32_t code[COMPANIONS])
{
    uint32_t mag = x & 0x7FFF, most = mag < 0x7F7F ? mag : 0x7F7F;
    uint64_t state = x;

    code[0] = x;
    code[1] = (mag == 0 ? x : x - 1) ^ 0x8000;
    code[2] = mag > (3 << 7) ? x - (3 << 7) : 0x8001;
    code[3] = (uint32_t)(report_random(&state) % (most + 1)) | (x >> 3 & 1) << 15;
}

/* The companion at element i of the block of x: x itself stands at every place in turn. */
static unsigned place(uint32_t x, unsigned i, uint32_t block)
{
    unsigned at = (i + x) % block;

    return at < COMPANIONS ? at : 1 + at % (COMPANIONS - 1);
}

/* What there is to know of the block of x: its largest magnitude as a bf16 pattern, specials
 * left out; and which specials it holds. */
typedef struct content {
    uint16_t largest;
    bool nan, inf;
} content;

static content *contents(bench *b)
{
    const judge_format *bf16 = judge_find("bf16");
    content *all = need(ALL_BF16, sizeof *all);

    for (uint32_t x = 0; x < ALL_BF16; x++) {
        uint32_t code[COMPANIONS];

        companions(x, code);
        mpfr_set_zero(b->t, 1);
        for (unsigned i = 0; i < COMPANIONS; i++) {
            judge_decode(bf16, code[i], &b->x);
            all[x].nan = all[x].nan || b->x.cls == JUDGE_NAN;
            all[x].inf = all[x].inf || b->x.cls == JUDGE_INF;
            if (b->x.cls == JUDGE_FINITE && mpfr_greater_p(b->x.mag, b->t) != 0) {
                mpfr_set(b->t, b->x.mag, MPFR_RNDN);
                all[x].largest = (uint16_t)(code[i] & 0x7FFF);
            }
        }
    }
    return all;
}

/* The scales of all largest magnitudes; the one after the finite ones is 2^128, as which
 * from_exponent counts a special. */
static void all_scales(bench *b, const how *h, uint8_t *scale)
{
    mpfr_t a;

    mpfr_init2(a, 64);
    for (uint32_t m = 0; m <= 0x7F80; m++) {
        judge_decode(judge_find("bf16"), m, &b->x);
        mpfr_set(a, b->x.mag, MPFR_RNDN);
        if (m == 0x7F80) {
            mpfr_set_ui_2exp(a, 1, 128, MPFR_RNDN);
        }
        scale[m] = (uint8_t)judge_scale(b, h, a);
    }
    mpfr_clear(a);
}

typedef struct bf16_work {
    content *content;
    uint16_t *in;
    uint8_t *out, *scales;
    uint8_t want[0x7F81];
} bf16_work;

/* Is the block NaN, its elements 0? Section 3.1; the last of it where a format has no NaN. */
static bool is_nan_block(const how *h, content c)
{
    return (h->special == NG_BLOCK_SPECIAL_NAN_BLOCK && (c.nan || c.inf)) ||
           (c.nan && !judge_has_nan(h->f));
}

static void check_elements(bench *b, unsigned isa, const how *h, const bf16_work *w, uint32_t x,
                           uint32_t first, uint32_t block, uint32_t scale)
{
    uint32_t code[COMPANIONS], want[COMPANIONS];

    companions(x, code);
    for (unsigned i = 0; i < COMPANIONS; i++) {
        judge_decode(judge_find("bf16"), code[i], &b->x);
        want[i] = scale == 0xFF ? 0 : judge_element(b, h, scale);
    }
    for (unsigned i = 0; i < block; i++) {
        uint32_t got = code_at(h->f->word_bits, w->out, (size_t)(x - first) * block + i);

        b->report.cases++;
        if (got != want[place(x, i, block)]) {
            wrong(b, isa, h, "element", x, got, want[place(x, i, block)]);
            return;
        }
    }
}

/* The blocks of x in [first, last): all scales, and the elements of every `every`-th. */
static void check_bf16(bench *b, unsigned isa, const how *h, bf16_work *w, uint32_t first,
                       uint32_t last, uint32_t block, uint32_t every)
{
    for (uint32_t x = first; x < last; x++) {
        uint32_t code[COMPANIONS];

        companions(x, code);
        for (unsigned i = 0; i < block; i++) {
            w->in[(x - first) * block + i] = (uint16_t)code[place(x, i, block)];
        }
    }
    quantise(b, isa, h, NG_BF16, w->in, last - first, block, w->out, w->scales);
    for (uint32_t x = first; x < last; x++) {
        content c = w->content[x];
        bool most = h->special == NG_BLOCK_SPECIAL_EXPONENT && (c.nan || c.inf);
        uint32_t want = is_nan_block(h, c) ? 0xFF : w->want[most ? 0x7F80 : c.largest];

        b->report.cases++;
        if (w->scales[x - first] != want) {
            wrong(b, isa, h, "scale", x, w->scales[x - first], want);
        } else if (x % every == ((unsigned)h->rule + h->f->man_bits) % every) {
            check_elements(b, isa, h, w, x, first, block, want);
        }
    }
}

static void bf16_how(bench *b, const how *h, bf16_work *w)
{
    bool specials = h->special != NG_BLOCK_SPECIAL_ELEMENT;

    all_scales(b, h, w->want);
    for (unsigned isa = 0; isa < ISAS; isa++) {
        uint32_t block = isa == 0 && !b->full ? COMPANIONS : BLOCK;

        if (!takes(b, isa, h, NG_BF16, block)) {
            continue;
        }
        if (b->full || !specials) {
            check_bf16(b, isa, h, w, 0, ALL_BF16, block, b->full ? 1 : 16);
        } else {
            check_bf16(b, isa, h, w, 0x7F00, 0x8100, block, 1);
            check_bf16(b, isa, h, w, 0xFF00, 0x10000, block, 1);
        }
    }
}

static void part_bf16(bench *b)
{
    bf16_work *w = need(1, sizeof *w);

    w->content = contents(b);
    w->in = need((size_t)ALL_BF16 * BLOCK, sizeof *w->in);
    w->out = need((size_t)ALL_BF16 * BLOCK, 1);
    w->scales = need(ALL_BF16, 1);
    for (unsigned f = 0; f < FORMATS; f++) {
        for (unsigned r = 0; r < RULES; r++) {
            how h = { judge_find(format_names[f]), (ng_scale_rule)r, NG_BLOCK_SPECIAL_ELEMENT,
                      JUDGE_RNE };

            bf16_how(b, &h, w);
            /* Directed rounding must see the sign; the scale has nothing to do with it. */
            h.round = (f + r) % 2 == 0 ? JUDGE_RUP : JUDGE_RTO;
            h.special = NG_BLOCK_SPECIAL_EXPONENT;
            bf16_how(b, &h, w);
            h.round = (f + r) % 2 == 0 ? JUDGE_RDN : JUDGE_RNA;
            h.special = NG_BLOCK_SPECIAL_NAN_BLOCK;
            bf16_how(b, &h, w);
        }
    }
    free(w->content);
    free(w->in);
    free(w->out);
    free(w->scales);
    free(w);
}

/* ---- f32 ---- */

#define BINADE (UINT32_C(1) << 23)
#define SLICE  (UINT32_C(1) << 16)

/* From this pattern on, up to the next step, scale and element are these. */
typedef struct step {
    uint32_t from;
    uint8_t scale, element;
} step;

static step ask_f32(bench *b, const how *h, uint32_t pattern)
{
    step s = { pattern, 0, 0 };
    mpfr_t a;

    mpfr_init2(a, 64);
    judge_decode(judge_find("f32"), pattern, &b->x);
    mpfr_set(a, b->x.mag, MPFR_RNDN);
    s.scale = (uint8_t)judge_scale(b, h, a);
    s.element = (uint8_t)judge_element(b, h, s.scale);
    mpfr_clear(a);
    return s;
}

static bool same_step(step x, step y)
{
    return x.scale == y.scale && x.element == y.element;
}

/* The steps of [from, to). The scale never falls, and while it stays the element never does; so
 * where two ends agree, all between them does. */
static size_t climb(bench *b, const how *h, uint32_t from, uint32_t to, step *out, size_t room)
{
    const step last = ask_f32(b, h, to - 1);
    size_t n = 0;
    uint32_t at = from;

    while (at < to) {
        step s = ask_f32(b, h, at);
        uint32_t low = at, high = to - 1;

        if (n == room) {
            fprintf(stderr, "too many steps\n");
            exit(2);
        }
        out[n++] = s;
        if (same_step(s, last)) {
            break;
        }
        while (high - low > 1) {
            uint32_t middle = low + (high - low) / 2;

            if (same_step(ask_f32(b, h, middle), s)) {
                low = middle;
            } else {
                high = middle;
            }
        }
        at = high;
    }
    return n;
}

/* The step that a pattern is on. */
static step find_step(const step *s, size_t n, uint32_t pattern)
{
    size_t low = 0, high = n;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (s[middle].from <= pattern) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return s[low];
}

typedef struct f32_work {
    uint32_t *pattern, *in;
    uint8_t *out, *scales;
} f32_work;

/* By the ISAs from the given one on: rows of one pattern each, at place (row mod block), zeros
 * of either sign around it. */
static void check_f32(bench *b, const how *h, const f32_work *w, uint32_t rows, uint32_t block,
                      unsigned first_isa, const step *steps, size_t n)
{
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < block; i++) {
            w->in[r * block + i] = i == r % block     ? w->pattern[r]
                                   : (r + i) % 2 == 0 ? 0
                                                      : UINT32_C(0x80000000);
        }
    }
    for (unsigned isa = first_isa; isa < ISAS; isa++) {
        if (!takes(b, isa, h, NG_F32, block)) {
            continue;
        }
        quantise(b, isa, h, NG_F32, w->in, rows, block, w->out, w->scales);
        for (uint32_t r = 0; r < rows; r++) {
            step want = find_step(steps, n, w->pattern[r]);
            /* 4-bit rows of odd length begin on a byte of their own. */
            size_t at = h->f->word_bits == 4 && block == 1 ? 2 * (size_t)r
                                                           : (size_t)r * block + r % block;
            uint32_t got = code_at(h->f->word_bits, w->out, at);

            b->report.cases++;
            if (w->scales[r] != want.scale) {
                wrong(b, isa, h, "scale", w->pattern[r], w->scales[r], want.scale);
            } else if (got != want.element) {
                wrong(b, isa, h, "element", w->pattern[r], got, want.element);
            }
        }
    }
}

/* All patterns of a binade: the reference by blocks of one element, the kernels by whole
 * blocks, and by those of one where they take them. */
static void whole_binade(bench *b, const how *h, const f32_work *w, uint32_t first,
                         const step *steps, size_t n)
{
    bool kernels = false;

    for (unsigned isa = 1; isa < ISAS; isa++) {
        kernels = kernels || takes(b, isa, h, NG_F32, BLOCK);
    }
    for (uint32_t at = first; at < first + BINADE; at += SLICE) {
        for (uint32_t r = 0; r < SLICE; r++) {
            w->pattern[r] = at + r;
        }
        check_f32(b, h, w, SLICE, 1, 0, steps, n);
        if (kernels) {
            check_f32(b, h, w, SLICE, BLOCK, 1, steps, n);
        }
    }
}

/* Three patterns on either side of each step, and a sample. */
static uint32_t some_patterns(uint32_t first, const step *steps, size_t n, uint32_t *pattern)
{
    uint32_t rows = 0;

    for (size_t i = 0; i < n; i++) {
        for (uint32_t p = steps[i].from - 3; p != steps[i].from + 3; p++) {
            if (p - first < BINADE) { /* unsigned: below the binade too */
                pattern[rows++] = p;
            }
        }
    }
    for (uint32_t p = 0; p < BINADE; p += 8191) {
        pattern[rows++] = first + p;
    }
    pattern[rows++] = first + BINADE - 1;
    return rows;
}

static void part_f32(bench *b)
{
    static const uint32_t exponents[] = { 0, 1, 127, 254 };
    static step steps[4096];
    f32_work w;

    w.pattern = need(SLICE, sizeof *w.pattern);
    w.in = need((size_t)SLICE * BLOCK, sizeof *w.in);
    w.out = need((size_t)SLICE * BLOCK, 1);
    w.scales = need(SLICE, 1);
    for (unsigned f = 0; f < FORMATS; f++) {
        for (unsigned r = 0; r < RULES; r++) {
            how h = { judge_find(format_names[f]), (ng_scale_rule)r, NG_BLOCK_SPECIAL_ELEMENT,
                      JUDGE_RNE };

            for (size_t e = 0; e < sizeof exponents / sizeof exponents[0]; e++) {
                uint32_t first = exponents[e] << 23;
                size_t n = climb(b, &h, first, first + BINADE, steps, 4096);

                check_f32(b, &h, &w, some_patterns(first, steps, n, w.pattern), BLOCK, 0, steps,
                          n);
                if (b->full) {
                    whole_binade(b, &h, &w, first, steps, n);
                }
            }
        }
    }
    free(w.pattern);
    free(w.in);
    free(w.out);
    free(w.scales);
}

/* ---- quads ---- */

#define QUADS 65536u

typedef struct quads {
    uint8_t codes[QUADS * 2]; /* quad q is the bits of q, low nibble first */
    uint8_t scales[QUADS];
    uint8_t out[QUADS * 2];
    uint8_t out_scales[QUADS];
    uint32_t values[QUADS * 4], back[QUADS * 4];
} quads;

static void dequantise(bench *b, unsigned isa, uint8_t *codes, uint8_t *scales, uint32_t block,
                       uint32_t *values)
{
    ng_convert_op op = { .size = sizeof op };
    const int64_t dim[2] = { QUADS * 4 / block, block };
    ng_tensor src, dst;

    if (ng_tensor_init(&src, NG_E2M1, codes, 2, dim) != NG_OK ||
        ng_tensor_set_scale(&src, NG_E8M0, scales, block, 1, NG_LAYOUT_LINEAR) != NG_OK ||
        ng_tensor_init(&dst, NG_F32, values, 2, dim) != NG_OK ||
        ng_dequantize(b->ctx[isa], &op, &src, &dst) != NG_OK) {
        report_bad(&b->report, "dequantize: %s", ng_ctx_message(b->ctx[isa]));
    }
}

/* FP32 patterns of the 16 codes times the scale, by the judge. */
static void code_values(bench *b, uint32_t scale, uint32_t value[16])
{
    static const judge_rule rule = { JUDGE_RNE, JUDGE_OVERFLOW_INF, false, JUDGE_NAN_MAX };

    for (uint32_t c = 0; c < 16; c++) {
        judge_decode(judge_find("e2m1"), c, &b->x);
        mpfr_mul_2si(b->x.mag, b->x.mag, (long)scale - 127, MPFR_RNDN);
        (void)judge_encode(b->j, judge_find("f32"), &b->x, &rule, &value[c]);
    }
}

/* What each code becomes in a block whose largest code is `top`: want[0..16), scale want[16].
 */
static void requantised(bench *b, const how *h, uint32_t scale, uint32_t top, uint32_t *want)
{
    mpfr_t a;

    mpfr_init2(a, 64);
    judge_decode(h->f, top, &b->x);
    mpfr_mul_2si(a, b->x.mag, (long)scale - 127, MPFR_RNDN);
    want[16] = judge_scale(b, h, a);
    mpfr_clear(a);
    for (uint32_t c = 0; c < 16; c++) {
        judge_decode(h->f, c, &b->x);
        mpfr_mul_2si(b->x.mag, b->x.mag, (long)scale - 127, MPFR_RNDN);
        want[c] = judge_element(b, h, want[16]);
    }
}

static void check_quads(bench *b, unsigned isa, const how *h, uint32_t scale, uint32_t block,
                        const quads *q)
{
    uint32_t want[8][17];

    for (uint32_t top = 0; top < 8; top++) {
        requantised(b, h, scale, top, want[top]);
    }
    for (uint32_t g = 0; g < QUADS * 4 / block; g++) {
        uint32_t top = 0;

        for (uint32_t i = g * block; i < (g + 1) * block; i++) {
            uint32_t mag = code_at(4, q->codes, i) & 7;

            top = mag > top ? mag : top;
        }
        b->report.cases += block;
        if (q->out_scales[g] != want[top][16]) {
            wrong(b, isa, h, "scale", top, q->out_scales[g], want[top][16]);
        }
        for (uint32_t i = g * block; i < (g + 1) * block; i++) {
            uint32_t code = code_at(4, q->codes, i);

            if (code_at(4, q->out, i) != want[top][code]) {
                wrong(b, isa, h, "element", top, code_at(4, q->out, i), want[top][code]);
            }
        }
    }
}

static void quads_scale(bench *b, unsigned isa, quads *q, uint32_t scale, uint32_t block)
{
    uint32_t value[16];

    memset(q->scales, (int)scale, sizeof q->scales);
    dequantise(b, isa, q->codes, q->scales, block, q->values);
    code_values(b, scale, value);
    for (uint32_t i = 0; i < QUADS * 4; i++) {
        b->report.cases++;
        if (q->values[i] != value[code_at(4, q->codes, i)]) {
            report_bad(&b->report, "dequantize e2m1 code %X, scale 0x%02X: 0x%08X, want 0x%08X",
                       (unsigned)code_at(4, q->codes, i), (unsigned)scale,
                       (unsigned)q->values[i], (unsigned)value[code_at(4, q->codes, i)]);
        }
    }
    for (unsigned r = 0; r < RULES; r++) {
        how h = { judge_find("e2m1"), (ng_scale_rule)r, NG_BLOCK_SPECIAL_ELEMENT, JUDGE_RNE };

        (void)quantise(b, isa, &h, NG_F32, q->values, QUADS * 4 / block, block, q->out,
                       q->out_scales);
        check_quads(b, isa, &h, scale, block, q);
        /* Values of e2m1 times a power of two are exact in a block of their own under the rules
         * that neither clip 6 nor give a scale bit away. */
        if (r == NG_SCALE_FLOOR || r == NG_SCALE_EVEN || r == NG_SCALE_RCEIL) {
            dequantise(b, isa, q->out, q->out_scales, block, q->back);
            b->report.cases++;
            if (memcmp(q->back, q->values, sizeof q->back) != 0) {
                wrong(b, isa, &h, "a quad did not come back, its scale", scale, 0, 0);
            }
        }
    }
}

static void part_quads(bench *b)
{
    static const uint8_t scales[] = { 0, 1, 3, 96, 127, 200, 252 }; /* 6 * 2^125 is in FP32 */
    const how plain = { judge_find("e2m1"), NG_SCALE_FLOOR, NG_BLOCK_SPECIAL_ELEMENT,
                        JUDGE_RNE };
    quads *q = need(1, sizeof *q);

    for (uint32_t i = 0; i < QUADS; i++) {
        q->codes[2 * i] = (uint8_t)i;
        q->codes[2 * i + 1] = (uint8_t)(i >> 8);
    }
    for (unsigned isa = 0; isa < ISAS; isa++) {
        for (size_t s = 0; s < sizeof scales; s++) {
            if (takes(b, isa, &plain, NG_F32, 4)) {
                quads_scale(b, isa, q, scales[s], 4);
            }
            if ((isa != 0 || b->full || s % 3 == 0) && takes(b, isa, &plain, NG_F32, BLOCK)) {
                quads_scale(b, isa, q, scales[s], BLOCK);
            }
        }
    }
    free(q);
}

/* ---- all of it ---- */

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(bench *b);
    } parts[] = { { "bf16", part_bf16 }, { "f32", part_f32 }, { "quads", part_quads } };
    const char *bad = judge_self_test();
    bench b = { .full = argc > 1 && strcmp(argv[1], "--full") == 0 };
    int named = b.full ? 2 : 1;
    report total = { 0, 0, 0 };

    if (bad != NULL) {
        printf("judge: %s\n", bad);
        return 1;
    }
    b.j = judge_new();
    judge_num_init(&b.x);
    mpfr_init2(b.max, 64);
    mpfr_init2(b.t, 160);
    open_contexts(&b);
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        bool wanted = named == argc;

        for (int i = named; i < argc; i++) {
            wanted = wanted || strcmp(argv[i], parts[p].name) == 0;
        }
        if (wanted) {
            memset(&b.report, 0, sizeof b.report);
            parts[p].run(&b);
            printf("%s: %llu cases, %llu mismatches\n", parts[p].name,
                   (unsigned long long)b.report.cases, (unsigned long long)b.report.bad);
            fflush(stdout);
            report_add(&total, &b.report);
        }
    }
    for (unsigned i = 0; i < ISAS; i++) {
        ng_ctx_destroy(b.ctx[i]);
    }
    mpfr_clear(b.max);
    mpfr_clear(b.t);
    judge_num_clear(&b.x);
    judge_free(b.j);
    mpfr_free_cache();
    return total.bad != 0 || total.cases == 0;
}

#endif
