/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_gemm() at the speed of every kernel in the tables, and at the reference's. A kernel is
 * compared with the reference before it is timed: wrong and fast is not a result.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../src/dispatch.h"
#include "bench.h"
#include "peak.h"

#ifdef NG_BENCH_OPENBLAS
#include <cblas.h>
#endif

struct problem {
    const char *profile, *a, *b;
    bool mx; /* e8m0 scales on both operands */
};

struct shape {
    int64_t m, n, k;
    bool quick;
};

/* Every kernel is tried on each of these; a new kind of kernel adds the row that it takes. */
static const struct problem problems[] = {
    { "trn2", "bf16", "bf16", false },       { "trn2", "e4m3", "e4m3", false },
    { "trn2", "f16", "f16", false },         { "fma-f32", "f32", "f32", false },
    { "trn3", "e4m3fn", "e4m3fn", true },    { "nv-hopper", "f16", "f16", false },
    { "nv-ada", "e4m3fn", "e4m3fn", false },
};

/* The oracle's own speed, for both families. */
static const struct problem references[] = {
    { "trn2", "bf16", "bf16", false },
    { "trn3", "e4m3fn", "e4m3fn", true },
    { "nv-hopper", "f16", "f16", false },
    { "nv-ada", "e4m3fn", "e4m3fn", false },
};

/* The first is the small one: with tails in M, N and the last K tile, compared in full, and
 * the reference is timed on it. */
static const struct shape shapes[] = {
    { 29, 69, 200, true },       { 128, 128, 128, true },  { 512, 512, 512, false },
    { 1024, 1024, 1024, false }, { 1, 2048, 2048, false }, { 8, 2048, 2048, false },
};

#define COUNT(x) (sizeof(x) / sizeof(x)[0])

enum {
    MAX_RIVALS = 16,
    SAMPLES = 16
};

/*
 * Magnitudes in [1/8, 2]: products are multiples of 2^-52 and their sums, for every K here,
 * below 2^15, so the condition of kernels/chain.h holds by far in every format; and neighbours
 * differ enough in exponent for most additions to round.
 */
static const struct spread spread = { -3, 0 };

static double flops(struct shape s)
{
    return 2.0 * (double)s.m * (double)s.n * (double)s.k;
}

/* ---- One multiply. ---- */

struct multiply {
    const struct problem *problem;
    struct shape shape;
    uint32_t isa_mask;
    const ng_executor *executor;
    const char *kernel; /* that must take the job; NULL: any */
    const char *wrong;  /* why setup failed */

    ng_ctx *ctx;
    ng_gemm_op op;
    ng_tensor a, b, d;
};

static void close_multiply(struct multiply *x)
{
    bench_free(&x->a);
    bench_free(&x->b);
    bench_free(&x->d);
    ng_ctx_destroy(x->ctx);
    x->ctx = NULL;
}

static bool open_multiply(struct multiply *x)
{
    ng_ctx_config config = { .size = sizeof config, .isa_mask = x->isa_mask };
    if (x->executor)
        config.executor = *x->executor;
    if (ng_ctx_create(&config, &x->ctx)) {
        x->wrong = "no context";
        return false;
    }
    const struct shape s = x->shape;
    x->op =
        (ng_gemm_op){ .size = sizeof x->op, .profile = ng_profile_find(x->problem->profile) };
    x->a = bench_matrix(ng_format_find(x->problem->a), s.m, s.k, spread, 1);
    x->b = bench_matrix(ng_format_find(x->problem->b), s.k, s.n, spread, 2);
    x->d = bench_matrix(NG_F32, s.m, s.n, spread, 3);
    if (x->problem->mx) {
        bench_scales(&x->a, 1, 4);
        bench_scales(&x->b, 0, 5);
    }
    return true;
}

static bool multiply(struct multiply *x)
{
    return ng_gemm(x->ctx, &x->op, &x->a, &x->b, NULL, &x->d) == NG_OK;
}

/* ---- Is it right? ---- */

/* The reference's D on the operands of x, bit for bit. */
static bool equals_reference(struct multiply *x)
{
    struct multiply ref = *x;
    ref.isa_mask = NG_ISA_REF;
    if (!open_multiply(&ref))
        return false;
    const bool same = multiply(&ref) &&
                      memcmp(ref.d.data, x->d.data, ng_tensor_bytes(NG_F32, 2, x->d.dim)) == 0;
    close_multiply(&ref);
    return same;
}

/* The large ones would take the reference minutes: its corners and some elements between. */
static bool samples_equal_reference(struct multiply *x)
{
    const struct shape s = x->shape;
    for (int64_t i = 0; i < SAMPLES; i++) {
        const int64_t at[2] = { i * (s.m - 1) / (SAMPLES - 1),
                                i * 7 % SAMPLES * (s.n - 1) / (SAMPLES - 1) };
        uint32_t code = 0;
        if (ng_gemm_element(x->ctx, &x->op, false, &x->a, &x->b, NULL, &x->d, at, NULL,
                            &code) ||
            code != ng_tensor_get(&x->d, at))
            return false;
    }
    return true;
}

/* ---- As cases. The setups do the first run: caches are warm and it is the one checked. ----
 */

static void *setup_multiply(void *arg)
{
    struct multiply *x = arg;
    x->wrong = NULL;
    if (!open_multiply(x))
        return NULL;
    if (!multiply(x))
        x->wrong = "ng_gemm failed";
    else if (x->kernel && strcmp(ng_ctx_kernel(x->ctx), x->kernel) != 0)
        x->wrong = "another kernel took the job";
    else if (!samples_equal_reference(x))
        x->wrong = "D differs from the reference";
    if (!x->wrong)
        return x;
    close_multiply(x);
    return NULL;
}

static void run_multiply(void *state)
{
    (void)multiply(state);
}

static void done_multiply(void *state)
{
    close_multiply(state);
}

enum {
    PEAK_ROUNDS = 20000
};

static void *setup_peak(void *arg)
{
    return arg;
}

static volatile float sink; /* the sums have a reader */

static void run_peak(void *state)
{
    const struct peak *p = state;
    sink = p->loop(PEAK_ROUNDS);
}

static void done_peak(void *state)
{
    (void)state;
}

#ifdef NG_BENCH_OPENBLAS
/*
 * OpenBLAS takes a CPU newer than itself for a Prescott and then computes with SSE, at a fifth
 * of what it can do: no yardstick. It reads OPENBLAS_CORETYPE while it is loaded, so the only
 * cure is to start this program again.
 */
void bench_fair_openblas(char **argv)
{
    const uint32_t has = ng_cpu_features();
    const char *core = has & NG_CPU_AVX512VL ? "SkylakeX" : has & NG_CPU_FMA ? "Haswell" : NULL;
    if (!core || strcmp(openblas_get_corename(), "Prescott") != 0 ||
        getenv("OPENBLAS_CORETYPE") || setenv("OPENBLAS_CORETYPE", core, 0))
        return;
    (void)execv("/proc/self/exe", argv);
}

void bench_print_openblas(size_t threads)
{
    const char *version = openblas_get_config(); /* "OpenBLAS 0.3.21 ..." */
    printf("%.*s as %s, %zu thread%s\n", (int)(9 + strcspn(version + 9, " ")), version,
           openblas_get_corename(), threads, threads == 1 ? "" : "s");
}

struct sgemm {
    struct shape shape;
    ng_tensor a, b, d;
};

static void run_sgemm(void *state)
{
    struct sgemm *x = state;
    const int m = (int)x->shape.m, n = (int)x->shape.n, k = (int)x->shape.k;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.0f, x->a.data, k,
                x->b.data, n, 0.0f, x->d.data, n);
}

static void *setup_sgemm(void *arg)
{
    struct sgemm *x = arg;
    const struct shape s = x->shape;
    x->a = bench_matrix(NG_F32, s.m, s.k, spread, 1);
    x->b = bench_matrix(NG_F32, s.k, s.n, spread, 2);
    x->d = bench_matrix(NG_F32, s.m, s.n, spread, 3);
    run_sgemm(x);
    return x;
}

static void done_sgemm(void *state)
{
    struct sgemm *x = state;
    bench_free(&x->a);
    bench_free(&x->b);
    bench_free(&x->d);
}
#else
void bench_fair_openblas(char **argv)
{
    (void)argv;
}

void bench_print_openblas(size_t threads)
{
    (void)threads;
    printf("skipped: OpenBLAS not found\n");
}
#endif

/* ---- Kernels. ---- */

struct rival {
    struct ng_isa isa;
    const struct ng_gemm_kernel *kernel;
    bool reached; /* by some case */
    bool takes;   /* the problem at hand, rightly */
};

/* The kernels that this CPU runs, best first. */
static size_t find_rivals(struct rival *rivals)
{
    size_t n = 0;
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        if (isa.bit == NG_ISA_REF)
            continue;
        if (!(isa.bit & ng_isa_available())) {
            printf("skipped: %s: not on this CPU\n", isa.name);
            continue;
        }
        for (const struct ng_gemm_kernel *const *k = isa.kernels->gemm; *k; k++)
            if (n < MAX_RIVALS)
                rivals[n++] = (struct rival){ .isa = isa, .kernel = *k };
    }
    return n;
}

static void case_name(char *name, size_t bytes, const char *kernel, const struct problem *p,
                      struct shape s)
{
    (void)snprintf(name, bytes, "%s/%s/%s%sx%s/%lldx%lldx%lld", kernel, p->profile,
                   p->mx ? "mx-" : "", p->a, p->b, (long long)s.m, (long long)s.n,
                   (long long)s.k);
}

/* Does the kernel take the problem, and is it right on the small shape, in full? */
static void judge(struct bench *run, struct rival *r, const struct problem *p)
{
    struct multiply x = {
        .problem = p, .shape = shapes[0], .isa_mask = r->isa.bit, .executor = run->executor
    };
    char name[160];
    case_name(name, sizeof name, r->kernel->name, p, shapes[0]);
    r->takes = false;
    if (!open_multiply(&x))
        return;
    if (!multiply(&x)) {
        bench_refuse(run, name, ng_ctx_message(x.ctx));
    } else if (strcmp(ng_ctx_kernel(x.ctx), r->kernel->name) == 0) {
        r->reached = true;
        r->takes = run->list || equals_reference(&x);
        if (!r->takes)
            bench_refuse(run, name, "D differs from the reference");
    }
    close_multiply(&x);
}

/* The reference's multiply-adds, as flops a second, on the small shape. */
static double reference_rate(struct bench *run, const struct problem *p)
{
    struct multiply x = { .problem = p, .shape = shapes[0], .isa_mask = NG_ISA_REF };
    struct ng_bench b = { .name = "ref",
                          .setup = setup_multiply,
                          .run = run_multiply,
                          .done = done_multiply,
                          .arg = &x,
                          .items = flops(shapes[0]) };
    struct ng_bench_options one_thread = run->options;
    one_thread.wall = false;
    ng_bench_run(&b, 1, &one_thread);
    return b.rate;
}

/* All kernels that take the problem, their peaks and sgemm: one shape, repetitions mixed. */
static void race(struct bench *run, struct rival *rivals, size_t n, const struct problem *p,
                 struct shape s, double ref)
{
    struct multiply x[MAX_RIVALS];
    struct ng_bench bench[2 * MAX_RIVALS + 1];
    char name[MAX_RIVALS][160];
    size_t used = 0, who[MAX_RIVALS];
    for (size_t i = 0; i < n; i++) {
        case_name(name[used], sizeof name[used], rivals[i].kernel->name, p, s);
        if (!rivals[i].takes || !bench_wants(run, name[used]))
            continue;
        const struct peak *peak = peak_of(rivals[i].isa.bit);
        x[used] = (struct multiply){ .problem = p,
                                     .shape = s,
                                     .isa_mask = rivals[i].isa.bit,
                                     .executor = run->executor,
                                     .kernel = rivals[i].kernel->name };
        bench[2 * used] = (struct ng_bench){ .name = name[used],
                                             .setup = setup_multiply,
                                             .run = run_multiply,
                                             .done = done_multiply,
                                             .arg = &x[used],
                                             .items = flops(s) };
        bench[2 * used + 1] =
            (struct ng_bench){ .name = "peak",
                               .setup = setup_peak,
                               .run = run_peak,
                               .done = done_peak,
                               .arg = (void *)(uintptr_t)peak,
                               .items = peak ? peak->flops * PEAK_ROUNDS : 0 };
        who[used++] = i;
    }
    if (!used || run->list)
        return;
    size_t all = 2 * used;
    bench[all] = (struct ng_bench){ .rate = 0 };
#ifdef NG_BENCH_OPENBLAS
    struct sgemm blas = { .shape = s };
    bench[all++] = (struct ng_bench){ .name = "sgemm",
                                      .setup = setup_sgemm,
                                      .run = run_sgemm,
                                      .done = done_sgemm,
                                      .arg = &blas,
                                      .items = flops(s) };
#endif
    ng_bench_run(bench, all, &run->options);
    for (size_t i = 0; i < used; i++) {
        if (x[i].wrong) {
            bench_refuse(run, name[i], x[i].wrong);
            continue;
        }
        bench_row(run, &(struct row){ .name = name[i],
                                      .label = rivals[who[i]].kernel->name,
                                      .kernel = rivals[who[i]].kernel->name,
                                      .profile = p->profile,
                                      .a = p->a,
                                      .b = p->b,
                                      .m = s.m,
                                      .n = s.n,
                                      .k = s.k,
                                      .unit = "GFLOP/s",
                                      .scale = 1e-9,
                                      .rate = bench[2 * i].rate,
                                      .peak = bench[2 * i + 1].rate * (double)run->threads,
                                      .openblas = bench[2 * used].rate,
                                      .ref = ref,
                                      .spread = bench[2 * i].spread });
    }
}

static bool wants_any(struct bench *run, const struct rival *rivals, size_t n,
                      const struct problem *p)
{
    char name[160];
    const bool list = run->list;
    bool any = false;
    run->list = false; /* ask, do not print */
    for (size_t i = 0; i < n; i++)
        for (size_t s = 0; s < COUNT(shapes); s++) {
            case_name(name, sizeof name, rivals[i].kernel->name, p, shapes[s]);
            any = any || ((shapes[s].quick || !run->quick) && bench_wants(run, name));
        }
    run->list = list;
    return any;
}

void bench_gemm(struct bench *run)
{
#ifdef NG_BENCH_OPENBLAS
    openblas_set_num_threads((int)run->threads);
#endif
    struct rival rivals[MAX_RIVALS];
    const size_t n = find_rivals(rivals);
    bool asked_all = true;
    for (size_t p = 0; p < COUNT(problems); p++) {
        if (!wants_any(run, rivals, n, &problems[p])) {
            asked_all = false;
            continue;
        }
        bool taken = false;
        for (size_t i = 0; i < n; i++) {
            judge(run, &rivals[i], &problems[p]);
            taken = taken || rivals[i].takes;
        }
        const double ref = taken && !run->list ? reference_rate(run, &problems[p]) : 0;
        for (size_t s = 0; taken && s < COUNT(shapes); s++)
            if (shapes[s].quick || !run->quick)
                race(run, rivals, n, &problems[p], shapes[s], ref);
    }
    for (size_t i = 0; i < n && asked_all; i++)
        if (!rivals[i].reached)
            printf("skipped: %s: none of the cases here reaches it\n", rivals[i].kernel->name);
}

/* ---- The reference. ---- */

void bench_reference(struct bench *run)
{
    const struct shape s = { 16, 16, 512, true };
    for (size_t p = 0; p < COUNT(references); p++) {
        char name[160];
        case_name(name, sizeof name, "ref", &references[p], s);
        if (!bench_wants(run, name) || run->list)
            continue;
        struct multiply x = { .problem = &references[p],
                              .shape = s,
                              .isa_mask = NG_ISA_REF,
                              .executor = run->executor,
                              .kernel = "ref" };
        struct ng_bench b = { .name = name,
                              .setup = setup_multiply,
                              .run = run_multiply,
                              .done = done_multiply,
                              .arg = &x,
                              .items = flops(s) / 2 };
        ng_bench_run(&b, 1, &run->options);
        if (x.wrong) {
            bench_refuse(run, name, x.wrong);
            continue;
        }
        bench_row(run, &(struct row){ .name = name,
                                      .label = "ref",
                                      .kernel = "ref",
                                      .profile = x.problem->profile,
                                      .a = x.problem->a,
                                      .b = x.problem->b,
                                      .m = s.m,
                                      .n = s.n,
                                      .k = s.k,
                                      .unit = "MMAC/s",
                                      .scale = 1e-6,
                                      .rate = b.rate,
                                      .spread = b.spread });
    }
}
