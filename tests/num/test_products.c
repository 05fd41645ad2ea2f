/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products, all of them, against exact ones (docs/numerics.md sections 1 and 4.1):
 *
 *   pairs  every code times every code, of each pair of the formats of at most 8 bits: K = 1 on
 *          fma-f32, into f32 and into e5m2, by ng_gemm and ng_dot. The judge multiplies the two
 *          MPFR numbers and rounds once
 *   quads  MXFP4, one group of four lanes: all 16^4 quads of e2m1 codes in A against a set of
 *          quads in B, with block scales. Such a sum is exact in 24 bits whatever the order and
 *          wherever the roundings are, so every MX profile and every lane_sum must give it
 *
 *   test_products [--full] [PART ...]
 *
 * B's quads: 16 in which every lane meets each code (so all 256 products in each lane); --full
 * adds 256 in which every pair of lanes meets each pair of codes, an orthogonal array over
 * GF(16): with all of A, every pair of products in every pair of lanes. All 2^32 would take
 * hours. Without --full, pairs are those of each format with itself, with the next one and with
 * e2m1, and the profiles other than trn3 see one quad of B for each of A.
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

#define ISAS 4u

typedef struct bench {
    bool full;
    judge *j;
    judge_num x;
    ng_ctx *ctx[ISAS];
    uint32_t used; /* ISAs whose kernels took something */
    report report;
} bench;

static void *need(size_t count, size_t size)
{
    void *p = calloc(count == 0 ? 1 : count, size);

    if (p == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return p;
}

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

/* Multiply; false, and a failure, if it was refused. */
static bool multiply(bench *b, unsigned isa, const ng_profile *profile, bool dot,
                     const ng_tensor *x, const ng_tensor *y, const ng_tensor *d)
{
    ng_gemm_op op = { .size = sizeof op, .profile = profile };
    ng_status status = dot ? ng_dot(b->ctx[isa], &op, x, y, NULL, d)
                           : ng_gemm(b->ctx[isa], &op, x, y, NULL, d);

    if (status != NG_OK) {
        report_bad(&b->report, "%s", ng_ctx_message(b->ctx[isa]));
        return false;
    }
    if (isa == 0 || strcmp(ng_ctx_kernel(b->ctx[isa]), "ref") != 0) {
        b->used |= UINT32_C(1) << isa;
    }
    return true;
}

static bool init(bench *b, ng_tensor *t, ng_format format, void *data, uint32_t rank,
                 int64_t rows, int64_t columns)
{
    const int64_t dim[2] = { rows, columns };

    if (ng_tensor_init(t, format, data, rank, dim) != NG_OK) {
        report_bad(&b->report, "ng_tensor_init");
        return false;
    }
    return true;
}

/* ---- pairs ---- */

#define OPERANDS 10u
#define CODES    256u

static const char *const operand_names[OPERANDS] = { "e5m2",     "e4m3fn",   "e4m3", "e3m4",
                                                     "e4m3fnuz", "e5m2fnuz", "e3m2", "e2m3",
                                                     "e2m1",     "mxint8" };
static const char *const result_names[] = { "f32", "e5m2" };

typedef struct pair {
    const judge_format *a, *b, *d;
    uint32_t want[CODES * CODES]; /* row-major, as many columns as b has codes */
    uint8_t x[CODES * CODES], y[CODES * CODES];
    uint32_t out[CODES * CODES];
} pair;

static uint32_t codes_of(const judge_format *f)
{
    return UINT32_C(1) << f->bits;
}

/* The exact product of two codes, rounded once. A chain begins with +0, so no zero is -0. */
static uint32_t judge_product(bench *b, const pair *p, const judge_num *x, const judge_num *y)
{
    static const judge_rule rule = { JUDGE_RNE, JUDGE_OVERFLOW_INF, false, JUDGE_NAN_MAX };
    bool zero = (x->cls == JUDGE_FINITE && mpfr_zero_p(x->mag) != 0) ||
                (y->cls == JUDGE_FINITE && mpfr_zero_p(y->mag) != 0);
    uint32_t code = 0;

    b->x.neg = x->neg != y->neg;
    b->x.cls = x->cls > y->cls ? x->cls : y->cls; /* FINITE, INF, NAN rise */
    if (zero && b->x.cls == JUDGE_INF) {
        b->x.cls = JUDGE_NAN;
    }
    if (b->x.cls == JUDGE_FINITE) {
        mpfr_mul(b->x.mag, x->mag, y->mag, MPFR_RNDN); /* 16 bits at most: exact */
        b->x.neg = b->x.neg && !zero;
    }
    if (!judge_encode(b->j, p->d, &b->x, &rule, &code)) {
        fprintf(stderr, "judge: refused a product\n");
        exit(2);
    }
    return code;
}

static void judge_pair(bench *b, pair *p)
{
    judge_num x, y;

    judge_num_init(&x);
    judge_num_init(&y);
    for (uint32_t i = 0; i < codes_of(p->a); i++) {
        judge_decode(p->a, i, &x);
        for (uint32_t k = 0; k < codes_of(p->b); k++) {
            judge_decode(p->b, k, &y);
            p->want[i * codes_of(p->b) + k] = judge_product(b, p, &x, &y);
        }
    }
    judge_num_clear(&x);
    judge_num_clear(&y);
}

static void check_pair(bench *b, unsigned isa, bool dot, const pair *p)
{
    uint32_t columns = codes_of(p->b);

    for (uint32_t i = 0; i < codes_of(p->a) * columns; i++) {
        uint32_t got = p->d->word_bits == 8 ? ((const uint8_t *)p->out)[i] : p->out[i];

        b->report.cases++;
        if (got != p->want[i]) {
            report_bad(&b->report, "%s 0x%02X * %s 0x%02X -> %s: 0x%X, want 0x%X (%s, %s)",
                       p->a->name, (unsigned)(i / columns), p->b->name, (unsigned)(i % columns),
                       p->d->name, (unsigned)got, (unsigned)p->want[i], dot ? "dot" : "gemm",
                       ng_isa_name(UINT32_C(1) << isa));
        }
    }
}

/* The outer product of all codes: [codes, 1] times [1, codes]. */
static void outer_product(bench *b, unsigned isa, pair *p)
{
    const int64_t m = codes_of(p->a), n = codes_of(p->b);
    ng_tensor x, y, d;

    if (!init(b, &x, ng_format_find(p->a->name), p->x, 2, m, 1) ||
        !init(b, &y, ng_format_find(p->b->name), p->y, 2, 1, n) ||
        !init(b, &d, ng_format_find(p->d->name), p->out, 2, m, n)) {
        return;
    }
    for (int64_t i = 0; i < m; i++) {
        ng_tensor_set(&x, (const int64_t[]){ i, 0 }, (uint32_t)i);
    }
    for (int64_t i = 0; i < n; i++) {
        ng_tensor_set(&y, (const int64_t[]){ 0, i }, (uint32_t)i);
    }
    if (multiply(b, isa, ng_profile_find("fma-f32"), false, &x, &y, &d)) {
        check_pair(b, isa, false, p);
    }
}

/* The same as rows of one element. */
static void row_products(bench *b, unsigned isa, pair *p)
{
    const int64_t rows = (int64_t)codes_of(p->a) * codes_of(p->b);
    ng_tensor x, y, d;

    if (!init(b, &x, ng_format_find(p->a->name), p->x, 2, rows, 1) ||
        !init(b, &y, ng_format_find(p->b->name), p->y, 2, rows, 1) ||
        !init(b, &d, ng_format_find(p->d->name), p->out, 1, rows, 0)) {
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        ng_tensor_set(&x, (const int64_t[]){ i, 0 }, (uint32_t)(i / codes_of(p->b)));
        ng_tensor_set(&y, (const int64_t[]){ i, 0 }, (uint32_t)(i % codes_of(p->b)));
    }
    if (multiply(b, isa, ng_profile_find("fma-f32"), true, &x, &y, &d)) {
        check_pair(b, isa, true, p);
    }
}

static void part_pairs(bench *b)
{
    pair *p = need(1, sizeof *p);

    for (unsigned i = 0; i < OPERANDS; i++) {
        for (unsigned k = 0; k < OPERANDS; k++) {
            if (!b->full && k != i && k != (i + 1) % OPERANDS &&
                strcmp(operand_names[k], "e2m1") != 0) {
                continue;
            }
            p->a = judge_find(operand_names[i]);
            p->b = judge_find(operand_names[k]);
            for (unsigned r = 0; r < (b->full || i == k ? 2u : 1u); r++) {
                p->d = judge_find(result_names[r]);
                judge_pair(b, p);
                for (unsigned isa = 0; isa < ISAS; isa++) {
                    if (b->ctx[isa] != NULL) {
                        outer_product(b, isa, p);
                    }
                }
                if (b->full || i == k) {
                    row_products(b, 0, p);
                }
            }
        }
    }
    free(p);
}

/* ---- quads ---- */

#define QUADS   65536
#define COLUMNS 16
#define MOST    576 /* the largest sum of four products, in quarters */
#define SPREAD  8   /* exponents of the scales' product: -SPREAD to SPREAD */

typedef struct quads {
    int twice[16]; /* the values of e2m1, doubled */
    uint32_t sum[2 * SPREAD + 1][2 * MOST + 1];
    uint8_t a[QUADS * 2], a_scale[QUADS]; /* row q is the bits of q, low nibble first */
    uint8_t b[QUADS * 2], b_scale[QUADS];
    uint32_t out[QUADS * COLUMNS];
    uint32_t column[COLUMNS]; /* B's quads */
} quads;

static void judge_sums(bench *b, quads *q)
{
    for (uint32_t c = 0; c < 16; c++) {
        judge_decode(judge_find("e2m1"), c, &b->x);
        mpfr_mul_2ui(b->x.mag, b->x.mag, 1, MPFR_RNDN);
        q->twice[c] = (int)mpfr_get_si(b->x.mag, MPFR_RNDN) * (b->x.neg ? -1 : 1);
    }
    for (int e = -SPREAD; e <= SPREAD; e++) {
        for (int s = -MOST; s <= MOST; s++) {
            uint32_t *pattern = &q->sum[e + SPREAD][s + MOST];

            mpfr_set_ui_2exp(b->x.mag, (unsigned long)abs(s), e - 2, MPFR_RNDN);
            if (!judge_f32_pattern(b->j, b->x.mag, pattern)) {
                fprintf(stderr, "judge: a sum is not exact in FP32\n");
                exit(2);
            }
            *pattern |= s < 0 ? UINT32_C(0x80000000) : 0;
        }
    }
}

static uint32_t want_sum(const quads *q, uint32_t a, uint32_t b, uint32_t a_scale,
                         uint32_t b_scale)
{
    int sum = 0;

    for (unsigned k = 0; k < 4; k++) {
        sum += q->twice[a >> 4 * k & 15] * q->twice[b >> 4 * k & 15];
    }
    return q->sum[(int)(a_scale + b_scale) - 254 + SPREAD][sum + MOST];
}

static void check_sum(bench *b, unsigned isa, const char *what, const quads *q, uint32_t a,
                      uint32_t bq, uint32_t b_scale, uint32_t got)
{
    uint32_t want = want_sum(q, a, bq, q->a_scale[a], b_scale);

    b->report.cases++;
    if (got != want) {
        report_bad(&b->report, "%s: e2m1 quads 0x%04X, 0x%04X: 0x%08X, want 0x%08X (%s)", what,
                   (unsigned)a, (unsigned)bq, (unsigned)got, (unsigned)want,
                   ng_isa_name(UINT32_C(1) << isa));
    }
}

/* x times 2 in GF(16), by x^4 + x + 1. */
static uint32_t times_two(uint32_t x)
{
    return (x << 1 ^ (x & 8 ? 0x13u : 0u)) & 15;
}

/* Quad n of the orthogonal array: lanes i, j, i + j, i + 2j. Any two of them determine i, j. */
static uint32_t array_quad(uint32_t n)
{
    uint32_t i = n & 15, j = n >> 4 & 15;

    return i | j << 4 | (i ^ j) << 8 | (i ^ times_two(j)) << 12;
}

/* All quads of A against sixteen of B: the first set, or a sixteenth of the array. */
static void quads_gemm(bench *b, unsigned isa, const ng_profile *profile, const char *what,
                       quads *q, unsigned set)
{
    uint8_t codes[4 * COLUMNS / 2];
    ng_tensor x, y, d;

    if (!init(b, &x, NG_E2M1, q->a, 2, QUADS, 4) ||
        !init(b, &y, NG_E2M1, codes, 2, 4, COLUMNS) ||
        !init(b, &d, NG_F32, q->out, 2, QUADS, COLUMNS) ||
        ng_tensor_set_scale(&x, NG_E8M0, q->a_scale, 32, 1, NG_LAYOUT_LINEAR) != NG_OK ||
        ng_tensor_set_scale(&y, NG_E8M0, q->b_scale, 32, 0, NG_LAYOUT_LINEAR) != NG_OK) {
        return;
    }
    for (uint32_t c = 0; c < COLUMNS; c++) {
        q->column[c] = set != 0 ? array_quad((set - 1) * COLUMNS + c)
                                : c | (c ^ 5) << 4 | (c ^ 10) << 8 | (15 - c) << 12;
        for (uint32_t k = 0; k < 4; k++) {
            ng_tensor_set(&y, (const int64_t[]){ k, c }, q->column[c] >> 4 * k & 15);
        }
    }
    if (!multiply(b, isa, profile, false, &x, &y, &d)) {
        return;
    }
    for (uint32_t r = 0; r < QUADS; r++) {
        for (uint32_t c = 0; c < COLUMNS; c++) {
            check_sum(b, isa, what, q, r, q->column[c], q->b_scale[c], q->out[r * COLUMNS + c]);
        }
    }
}

/* Each quad of A against one of the array. */
static void quads_dot(bench *b, const ng_profile *profile, const char *what, quads *q)
{
    ng_tensor x, y, d;

    if (!init(b, &x, NG_E2M1, q->a, 2, QUADS, 4) || !init(b, &y, NG_E2M1, q->b, 2, QUADS, 4) ||
        !init(b, &d, NG_F32, q->out, 1, QUADS, 0) ||
        ng_tensor_set_scale(&x, NG_E8M0, q->a_scale, 32, 1, NG_LAYOUT_LINEAR) != NG_OK ||
        ng_tensor_set_scale(&y, NG_E8M0, q->b_scale, 32, 1, NG_LAYOUT_LINEAR) != NG_OK ||
        !multiply(b, 0, profile, true, &x, &y, &d)) {
        return;
    }
    for (uint32_t r = 0; r < QUADS; r++) {
        uint32_t bq = (uint32_t)q->b[2 * r] | (uint32_t)q->b[2 * r + 1] << 8;

        check_sum(b, 0, what, q, r, bq, q->b_scale[r], q->out[r]);
    }
}

static void quads_profile(bench *b, const ng_profile *profile, const char *what, quads *q,
                          unsigned sets)
{
    quads_dot(b, profile, what, q);
    for (unsigned isa = 0; isa < ISAS; isa++) {
        for (unsigned set = 0; b->ctx[isa] != NULL && set < sets; set++) {
            quads_gemm(b, isa, profile, what, q, set);
        }
    }
}

static void part_quads(bench *b)
{
    static const char *const names[] = { "trn3", "trn4-preview", "ocp-mx",
                                         "nv-blackwell-tcgen05" };
    static const char *const sums[] = { "chain", "presum", "tree" };
    quads *q = need(1, sizeof *q);

    judge_sums(b, q);
    for (uint32_t r = 0; r < QUADS; r++) {
        uint32_t bq = array_quad(r * 7 + (r >> 8) * 5);

        q->a[2 * r] = (uint8_t)r;
        q->a[2 * r + 1] = (uint8_t)(r >> 8);
        q->a_scale[r] = (uint8_t)(124 + r % 7);
        q->b[2 * r] = (uint8_t)bq;
        q->b[2 * r + 1] = (uint8_t)(bq >> 8);
        q->b_scale[r] = (uint8_t)(125 + r % 5);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        quads_profile(b, ng_profile_find(names[i]), names[i], q, b->full ? 17 : i == 0 ? 1 : 0);
    }
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        ng_profile *p = ng_profile_copy(ng_profile_find("trn3"));

        if (p == NULL || ng_profile_set(p, "mx", "lane_sum", sums[i]) != NG_OK) {
            report_bad(&b->report, "trn3 with lane_sum=%s", sums[i]);
        } else {
            quads_profile(b, p, sums[i], q, b->full ? 1 : 0);
        }
        ng_profile_free(p);
    }
    free(q);
}

/* ---- all of it ---- */

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(bench *b);
    } parts[] = { { "pairs", part_pairs }, { "quads", part_quads } };
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
    open_contexts(&b);
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        bool wanted = named == argc;

        for (int i = named; i < argc; i++) {
            wanted = wanted || strcmp(argv[i], parts[p].name) == 0;
        }
        if (wanted) {
            memset(&b.report, 0, sizeof b.report);
            b.used = 0;
            parts[p].run(&b);
            printf("%s: %llu cases, %llu mismatches, by", parts[p].name,
                   (unsigned long long)b.report.cases, (unsigned long long)b.report.bad);
            for (unsigned i = 0; i < ISAS; i++) {
                if ((b.used >> i & 1) != 0) {
                    printf(" %s", ng_isa_name(UINT32_C(1) << i));
                }
            }
            printf("\n");
            fflush(stdout);
            report_add(&total, &b.report);
        }
    }
    for (unsigned i = 0; i < ISAS; i++) {
        ng_ctx_destroy(b.ctx[i]);
    }
    judge_num_clear(&b.x);
    judge_free(b.j);
    mpfr_free_cache();
    return total.bad != 0 || total.cases == 0;
}

#endif
