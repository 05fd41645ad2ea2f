/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ngauge bench: how fast this machine multiplies, for a person without the sources. The whole
 * table, with instruction peaks and rivals, is bench/ (Google Benchmark). What is wrong is not
 * timed: a small case is compared with the reference in full, the timed one in a sample.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"
#include "draw.h"

static const char help[] =
    "usage: ngauge bench [--list] [NAME ...]\n\n"
    "Times multiplies of Gaussian data, all of them or those named: B packed beforehand, and\n"
    "both operands packed in the call. Each is compared with the reference first. Rates are\n"
    "medians of elapsed time on --threads N. What the CPU's instructions could do at most is\n"
    "not measured here: ./dev bench in the source tree does.\n\n"
    "  --list       the names\n"
    "and the options of every command: ngauge --help\n";

enum subject_kind {
    PLAIN,
    DOUBLE_ROW,
    MX,
    SPARSE
};

static const struct subject {
    const char *name, *profile, *a, *b;
    enum subject_kind kind;
    const char *about;
} subjects[] = {
    { "bf16", "trn2", "bf16", "bf16", PLAIN, "bf16" },
    { "f16", "trn2", "f16", "f16", PLAIN, "f16" },
    { "fp8", "trn2", "e4m3", "e4m3", PLAIN, "FP8, one product a step" },
    { "double-row", "trn2", "e4m3", "e4m3", DOUBLE_ROW, "FP8, two products a step" },
    { "mxfp8", "trn3", "e4m3fn", "e4m3fn", MX, "MXFP8, four products a step" },
    { "mxfp8-mxfp4", "trn3", "e4m3fn", "e2m1", MX, "MXFP8 by MXFP4" },
    { "mxfp4", "trn3", "e2m1", "e2m1", MX, "MXFP4" },
    { "f32", "fma-f32", "f32", "f32", PLAIN, "FP32, one chain of FMAs" },
    { "f32-pieces", "trn2", "f32", "f32", PLAIN, "FP32 in two pieces" },
    { "sparse", "trn2", "bf16", "bf16", SPARSE, "bf16, B sparse 2:4 (work counted dense)" },
    { "hopper-f16", "nv-hopper", "f16", "f16", PLAIN, "f16, 16 aligned products a step" },
    { "wgmma-fp8", "nv-hopper-wgmma", "e4m3fn", "e4m3fn", PLAIN,
      "FP8, 32 aligned products a step" },
    { "tcgen05-mxf4", "nv-blackwell-tcgen05", "e2m1", "e2m1", MX,
      "MXFP4, four exact sums a step" },
};

#define COUNT(x) (sizeof(x) / sizeof(x)[0])

struct shape {
    int64_t m, n, k;
};

enum {
    SAMPLES = 16,
    RUNS = 7
};

/* Tails in M, N and the last K tile; all of it takes the reference some 0.05 s. */
static const struct shape small = { 29, 69, 200 };
static const struct shape timed = { 512, 512, 512 };

/* ---- Data. ---- */

static float gaussian(uint64_t *state)
{
    const double u = ((double)(draw(state) >> 11) + 0.5) * 0x1p-53,
                 v = (double)(draw(state) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v));
}

static bool allocate(struct operand *o, ng_format f, int64_t rows, int64_t cols, int k_axis,
                     bool mx)
{
    struct operand like = { .present = true };
    if (ng_tensor_init(&like.view, f, NULL, 2, (int64_t[]){ rows, cols }))
        return false;
    if (mx) {
        like.view.block = 32;
        like.view.block_axis = (uint32_t)k_axis;
        like.view.scale_format = NG_E8M0;
    }
    return operand_alloc_like(o, &like, 0);
}

/* An operand of Gaussian numbers, converted or quantised by the library. */
static ng_status fill(const struct cli *cli, const char *format, int64_t rows, int64_t cols,
                      int k_axis, bool mx, uint64_t *state, struct operand *o)
{
    const ng_cast cast = { .overflow = NG_OVERFLOW_SATURATE };
    const ng_convert_op convert = { .size = sizeof convert, .cast = cast };
    const ng_quantize_op quantize = { .size = sizeof quantize, .rule = NG_SCALE_FLOOR_UP1 };
    struct operand real = { .present = false };
    ng_status s = NG_ERR_MEMORY;
    if (allocate(&real, NG_F32, rows, cols, 0, false) &&
        allocate(o, ng_format_find(format), rows, cols, k_axis, mx)) {
        float *x = real.data.data;
        for (int64_t i = 0; i < rows * cols; i++)
            x[i] = gaussian(state);
        s = mx ? ng_quantize(cli->ctx, &quantize, &real.view, &o->view)
               : ng_convert(cli->ctx, &convert, &real.view, &o->view);
    }
    operand_free(&real);
    return s;
}

/* Where the two largest of four magnitudes are, in ascending order. */
static void largest_two(const uint32_t v[4], uint32_t sign, int at[2])
{
    int best = 0, next = -1;
    for (int i = 1; i < 4; i++)
        if ((v[i] & ~sign) > (v[best] & ~sign))
            best = i;
    for (int i = 0; i < 4; i++)
        if (i != best && (next < 0 || (v[i] & ~sign) > (v[next] & ~sign)))
            next = i;
    at[0] = best < next ? best : next;
    at[1] = best < next ? next : best;
}

/* B [K, N], pruned 2:4 along K; tags in the store `trn`, a line a column. */
static bool prune(struct operand *o)
{
    struct operand half = { .present = false };
    const ng_tensor *from = &o->view;
    const int64_t k = from->dim[0], n = from->dim[1], line = (k / 2 + 3) / 4 * 2;
    const uint32_t sign = 1u << (ng_format_info(from->format)->bits - 1);
    unsigned char *tags = calloc((size_t)(n * line), 1);
    if (!tags || !allocate(&half, from->format, k / 2, n, 0, false)) {
        free(tags);
        operand_free(&half);
        return false;
    }
    for (int64_t g = 0; g < k / 4; g++)
        for (int64_t j = 0; j < n; j++) {
            uint32_t v[4];
            int at[2];
            for (int i = 0; i < 4; i++)
                v[i] = ng_tensor_get(from, (int64_t[]){ 4 * g + i, j });
            largest_two(v, sign, at);
            for (int i = 0; i < 2; i++)
                ng_tensor_set(&half.view, (int64_t[]){ 2 * g + i, j }, v[at[i]]);
            tags[j * line + g] = (unsigned char)(at[0] | at[1] << 4);
        }
    operand_free(o);
    *o = half;
    o->tags = (struct io_array){ .data = tags, .bytes = (size_t)(n * line) };
    o->sparse = (ng_sparse){ .kept = 2, .group = 4, .store = NG_TAG_TRN, .tags = o->tags.data };
    o->view.sparse = &o->sparse;
    return true;
}

/* The case must not move afterwards: a sparse view points into it. */
static ng_status make(const struct cli *cli, const struct subject *x, struct shape s,
                      struct one_case *c)
{
    uint64_t state = cli->seed;
    const bool mx = x->kind == MX;
    c->op = OP_GEMM;
    c->profile = ng_profile_find(x->profile);
    c->gemm = (ng_gemm_op){ .size = sizeof c->gemm,
                            .profile = c->profile,
                            .double_row = x->kind == DOUBLE_ROW };
    ng_status status = fill(cli, x->a, s.m, s.k, 1, mx, &state, &c->a);
    if (!status)
        status = fill(cli, x->b, s.k, s.n, 0, mx, &state, &c->b);
    if (!status &&
        (!allocate(&c->d, NG_F32, s.m, s.n, 0, false) || (x->kind == SPARSE && !prune(&c->b))))
        status = NG_ERR_MEMORY;
    return status;
}

static void unmake(struct one_case *c)
{
    operand_free(&c->a);
    operand_free(&c->b);
    operand_free(&c->d);
}

/* ---- Checks. ---- */

struct result {
    const struct subject *subject;
    struct shape shape;
    const char *kernel;
    ng_tiles tiles;
    double rate, packed; /* flops a second; 0: not measured */
    double reference;    /* the same, on the small case */
    const char *wrong;
};

static double flops(struct shape s)
{
    return 2.0 * (double)s.m * (double)s.n * (double)s.k;
}

static ng_status multiply(ng_ctx *ctx, const struct one_case *c, const ng_packed *packed,
                          const ng_tensor *d)
{
    return packed ? ng_gemm_packed(ctx, &c->gemm, &c->a.view, packed, NULL, d)
                  : ng_gemm(ctx, &c->gemm, &c->a.view, &c->b.view, NULL, d);
}

/* D of the reference, and how fast it was. */
static ng_status ask_reference(const struct cli *cli, const struct one_case *c,
                               const ng_tensor *d, double *seconds)
{
    ng_ctx_config config = { .size = sizeof config,
                             .isa_mask = NG_ISA_REF,
                             .executor = cli->executor };
    ng_ctx *ctx;
    ng_status s = ng_ctx_create(&config, &ctx);
    if (s)
        return s;
    const double start = seconds_now();
    s = multiply(ctx, c, NULL, d);
    *seconds = seconds_now() - start;
    ng_ctx_destroy(ctx);
    return s;
}

/* All of the small case, both ways. */
static ng_status check_small(const struct cli *cli, const struct one_case *c, struct result *r)
{
    struct operand want = { .present = false };
    ng_packed *packed = NULL;
    double seconds = 0;
    ng_status s = NG_ERR_MEMORY;
    if (operand_alloc_like(&want, &c->d, 0))
        s = ask_reference(cli, c, &want.view, &seconds);
    if (!s)
        s = ng_pack(cli->ctx, &c->gemm, &c->b.view, c->a.view.format, &packed);
    for (int way = 0; way < 2 && !s; way++) {
        memset(c->d.data.data, 0xFF, c->d.data.bytes);
        s = multiply(cli->ctx, c, way ? packed : NULL, &c->d.view);
        if (!s && memcmp(c->d.data.data, want.data.data, want.data.bytes) != 0)
            r->wrong = "the small case differs from the reference";
    }
    r->kernel = ng_ctx_kernel(cli->ctx);
    r->tiles = ng_ctx_tiles(cli->ctx);
    if (seconds > 0)
        r->reference = flops(small) / seconds;
    ng_packed_destroy(packed);
    operand_free(&want);
    return s;
}

/* The corners of D and some elements between. */
static ng_status check_sample(const struct cli *cli, const struct one_case *c, struct result *r)
{
    ng_status s = NG_OK;
    for (int64_t i = 0; i < SAMPLES && !s; i++) {
        const int64_t at[2] = { i * (r->shape.m - 1) / (SAMPLES - 1),
                                i * 7 % SAMPLES * (r->shape.n - 1) / (SAMPLES - 1) };
        uint32_t code = 0;
        s = ng_gemm_element(cli->ctx, &c->gemm, false, &c->a.view, &c->b.view, NULL, &c->d.view,
                            at, NULL, &code);
        if (!s && code != ng_tensor_get(&c->d.view, at))
            r->wrong = "an element differs from the reference";
    }
    return s;
}

/* ---- Times. ---- */

static int compare_doubles(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *x)
{
    qsort(x, RUNS, sizeof *x, compare_doubles);
    return x[RUNS / 2];
}

/* Both ways by turns: a slow moment of the machine falls on both. */
static ng_status time_both(const struct cli *cli, const struct one_case *c,
                           const ng_packed *packed, struct result *r)
{
    double seconds[2][RUNS];
    ng_status s = NG_OK;
    for (int i = 0; i < RUNS && !s && !r->wrong; i++)
        for (int way = 0; way < 2 && !s; way++) {
            const double start = seconds_now();
            s = multiply(cli->ctx, c, way ? packed : NULL, &c->d.view);
            seconds[way][i] = seconds_now() - start;
        }
    if (s || r->wrong)
        return s;
    r->rate = flops(r->shape) / median(seconds[0]);
    r->packed = flops(r->shape) / median(seconds[1]);
    return s;
}

static ng_status measure(const struct cli *cli, const struct one_case *c, struct result *r)
{
    ng_packed *packed = NULL;
    ng_status s = ng_pack(cli->ctx, &c->gemm, &c->b.view, c->a.view.format, &packed);
    for (int way = 0; way < 2 && !s; way++) {
        s = multiply(cli->ctx, c, way ? packed : NULL, &c->d.view);
        r->kernel = ng_ctx_kernel(cli->ctx);
        r->tiles = ng_ctx_tiles(cli->ctx);
        if (!s)
            s = check_sample(cli, c, r);
    }
    if (!s)
        s = time_both(cli, c, packed, r);
    ng_packed_destroy(packed);
    return s;
}

static ng_status run_subject(const struct cli *cli, struct result *r)
{
    struct one_case c = { .op = OP_GEMM }, large = { .op = OP_GEMM };
    r->shape = small;
    ng_status s = make(cli, r->subject, small, &c);
    if (!s)
        s = check_small(cli, &c, r);
    unmake(&c);
    if (s || r->wrong)
        return s;
    if (strcmp(r->kernel, "ref") == 0) { /* more of it would take minutes */
        r->rate = r->reference;
        return s;
    }
    r->shape = timed;
    s = make(cli, r->subject, timed, &large);
    if (!s)
        s = measure(cli, &large, r);
    unmake(&large);
    return s;
}

/* ---- Reports. ---- */

static json_t *real_or_null(double x)
{
    return x > 0 ? json_real(x) : json_null();
}

static json_t *result_json(const struct result *r)
{
    const struct subject *x = r->subject;
    json_t *j = json_pack("{s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:s,s:s}", "name", x->name, "profile",
                          x->profile, "a", x->a, "b", x->b, "m", (json_int_t)r->shape.m, "n",
                          (json_int_t)r->shape.n, "k", (json_int_t)r->shape.k, "kernel",
                          r->kernel, "unit", "GFLOP/s");
    json_object_set_new(j, "rate", real_or_null(r->rate * 1e-9));
    json_object_set_new(j, "packed_rate", real_or_null(r->packed * 1e-9));
    json_object_set_new(j, "reference_rate", real_or_null(r->reference * 1e-9));
    json_object_set_new(j, "vs_ref",
                        real_or_null(r->reference > 0 ? r->packed / r->reference : 0));
    json_object_set_new(j, "tiles",
                        json_pack("{s:I,s:I,s:I}", "fast", (json_int_t)r->tiles.fast, "exact",
                                  (json_int_t)r->tiles.exact, "reference",
                                  (json_int_t)r->tiles.reference));
    json_object_set_new(j, "wrong", r->wrong ? json_string(r->wrong) : json_null());
    return j;
}

/* A number, or a dash for what was not measured. */
static struct code_text cell(double x)
{
    struct code_text t;
    snprintf(t.text, sizeof t.text, x > 0 ? "%.2f" : "-", x);
    return t;
}

static void print_result(const struct result *r)
{
    const struct subject *x = r->subject;
    char shape[64], formats[32];
    if (r->wrong) {
        printf("%-12s REFUSED: %s, by %s\n", x->name, r->wrong, r->kernel);
        return;
    }
    snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)r->shape.m,
             (long long)r->shape.n, (long long)r->shape.k);
    snprintf(formats, sizeof formats, "%s %s", x->a, x->b);
    printf("%-12s %-20s %-14s %-12s %-30s %8s %8s %7.0f %6llu %6llu\n", x->name, x->profile,
           formats, shape, r->kernel, cell(r->packed * 1e-9).text, cell(r->rate * 1e-9).text,
           r->packed > 0 ? r->packed / r->reference : 1.0, (unsigned long long)r->tiles.fast,
           (unsigned long long)(r->tiles.exact + r->tiles.reference));
}

static void print_head(void)
{
    printf("%-12s %-20s %-14s %-12s %-30s %8s %8s %7s %6s %6s\n", "name", "profile", "a b",
           "M x N x K", "kernel", "packed", "in call", "vs ref", "fast", "slow");
}

static void print_foot(const struct cli *cli)
{
    printf(
        "GFLOP/s, medians of %d: B packed beforehand, and in the call; vs ref: packed "
        "against the\nreference on as many threads (--threads %d); tiles by the kernel's fast "
        "path, and by a slower\none. The peak of this CPU's instructions is not measured "
        "here.\n",
        RUNS, cli->threads);
}

static bool is_named(const char *name, int n, char **names)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return n == 0;
}

static int run_bench(const struct cli *cli, int n, char **names)
{
    json_t *list = cli->json ? json_array() : NULL;
    int wrong = 0, code = 0;
    if (!list)
        print_head();
    for (size_t i = 0; i < COUNT(subjects) && !code; i++) {
        struct result r = { .subject = &subjects[i] };
        if (!is_named(subjects[i].name, n, names))
            continue;
        const ng_status s = run_subject(cli, &r);
        if (s) {
            code = cli_refused(cli, s, subjects[i].name);
            break;
        }
        wrong += r.wrong != NULL;
        if (list) {
            json_array_append_new(list, result_json(&r));
        } else {
            print_result(&r);
            fflush(stdout);
        }
    }
    if (code) {
        json_decref(list);
        return code;
    }
    if (list)
        code = cli_print_json(json_pack("{s:s,s:s,s:i,s:o}", "schema", "ng.report/1", "version",
                                        ng_version(), "threads", cli->threads, "rows", list));
    else if (!cli->quiet)
        print_foot(cli);
    return code ? code : wrong ? EXIT_DIFFERS : EXIT_EQUAL;
}

static int list_subjects(const struct cli *cli)
{
    json_t *list = cli->json ? json_array() : NULL;
    for (size_t i = 0; i < COUNT(subjects); i++) {
        const struct subject *x = &subjects[i];
        if (list)
            json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:s,s:s}", "name", x->name,
                                                  "profile", x->profile, "a", x->a, "b", x->b,
                                                  "about", x->about));
        else
            printf("%-12s %s: %s\n", x->name, x->profile, x->about);
    }
    return list ? cli_print_json(list) : EXIT_EQUAL;
}

static int check_names(int n, char **names)
{
    for (int i = 0; i < n; i++) {
        bool known = false;
        for (size_t k = 0; k < COUNT(subjects); k++)
            known = known || strcmp(names[i], subjects[k].name) == 0;
        if (!known)
            return cli_fail(EXIT_USAGE, "'%s' is no benchmark; ngauge bench --list", names[i]);
    }
    return 0;
}

int cmd_bench(int argc, char **argv)
{
    enum {
        OPT_LIST = OPT_OWN
    };
    static const struct option long_options[] = { CLI_OPTIONS,
                                                  { "list", no_argument, NULL, OPT_LIST },
                                                  { 0 } };
    struct cli cli = { .threads = 1, .seed = 1 };
    bool only_list = false;
    int code;
    if (!cli_options(
            &cli, argc, argv,
            &(struct cli_options){ CLI_SHORT, long_options, help, cli_take_flag, &only_list },
            &code))
        return code;
    if (only_list && argc > optind)
        return cli_fail(EXIT_USAGE, "--list prints all names: '%s' says nothing to it",
                        argv[optind]);
    if (only_list)
        return list_subjects(&cli);
    code = check_names(argc - optind, argv + optind);
    if (!code)
        code = cli_open(&cli);
    if (!code)
        code = run_bench(&cli, argc - optind, argv + optind);
    cli_close(&cli);
    return code;
}
