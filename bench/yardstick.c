/* SPDX-License-Identifier: Apache-2.0 */
#include "yardstick.h"

#include "loop_sleef.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../src/dispatch.h"

#ifdef NG_BENCH_OPENBLAS
#include <cblas.h>
#endif

/* ---- Instructions. ---- */

enum {
    PEAK_ROUNDS = 20000
};

static volatile float float_sink; /* the sums have a reader */
static volatile uint64_t word_sink;

static void *setup_same(void *arg)
{
    return arg;
}

static void run_peak(void *state)
{
    const struct peak *p = state;
    float_sink = p->loop(PEAK_ROUNDS);
}

static void done_nothing(void *state)
{
    (void)state;
}

struct ng_bench yard_peak(const struct peak *peak)
{
    return (struct ng_bench){ .name = "peak",
                              .setup = setup_same,
                              .run = run_peak,
                              .done = done_nothing,
                              .arg = (void *)(uintptr_t)peak,
                              .items = peak ? peak->flops * PEAK_ROUNDS : 0 };
}

/* ---- OpenBLAS. ---- */

#ifdef NG_BENCH_OPENBLAS
/*
 * OpenBLAS takes a CPU newer than itself for a Prescott and then computes with SSE, at a fifth
 * of what it can do: no yardstick. It reads OPENBLAS_CORETYPE while it is loaded, so the only
 * cure is to start this program again.
 */
void bench_fair_openblas(char **argv)
{
    const uint32_t has = ng_cpu_features(0);
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

void yard_set_threads(size_t threads)
{
    openblas_set_num_threads((int)threads);
}

static void run_sgemm(void *state)
{
    struct sgemm *x = state;
    const int m = (int)x->m, n = (int)x->n, k = (int)x->k;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.0f, x->a.data, k,
                x->b.data, n, 0.0f, x->d.data, n);
}

static void *setup_sgemm(void *arg)
{
    struct sgemm *x = arg;
    x->a = bench_operand(NG_F32, x->m, x->k, 1, FILL_GAUSSIAN, 1);
    x->b = bench_operand(NG_F32, x->k, x->n, 0, FILL_GAUSSIAN, 2);
    x->d = bench_operand(NG_F32, x->m, x->n, 1, FILL_GAUSSIAN, 3);
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

void yard_set_threads(size_t threads)
{
    (void)threads;
}

static void run_sgemm(void *state)
{
    (void)state;
}

static void *setup_sgemm(void *arg)
{
    (void)arg;
    return NULL;
}

static void done_sgemm(void *state)
{
    (void)state;
}
#endif

struct ng_bench yard_sgemm(struct sgemm *x)
{
    return (struct ng_bench){ .name = "sgemm",
                              .setup = setup_sgemm,
                              .run = run_sgemm,
                              .done = done_sgemm,
                              .arg = x,
                              .items = 2.0 * (double)x->m * (double)x->n * (double)x->k };
}

/* ---- Memory. ---- */

enum {
    UNIT = 512 /* of peak->read() */
};

/* Bytes of the last-level cache; a guess where nobody tells. */
static size_t cache_bytes(void)
{
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    const long most = l3 > l2 ? l3 : l2;
    return most > 0 ? (size_t)most : (size_t)32 << 20;
}

size_t yard_read_bytes(size_t like)
{
    const size_t least = (size_t)256 << 20;
    size_t bytes = like > cache_bytes() && like < least ? least : like;
    return (bytes + UNIT - 1) / UNIT * UNIT;
}

static void read_part(void *arg, size_t i, size_t worker)
{
    const struct reader *x = arg;
    const size_t units = x->bytes / UNIT, from = units * i / x->threads,
                 to = units * (i + 1) / x->threads;
    (void)worker;
    word_sink = x->peak->read(x->buffer + from * UNIT, (to - from) * UNIT);
}

static void run_read(void *state)
{
    struct reader *x = state;
    if (x->executor)
        x->executor->parallel_for(x->executor->user, x->threads, read_part, x);
    else
        read_part(x, 0, 0);
}

static void *setup_read(void *arg)
{
    struct reader *x = arg;
    if (!x->like)
        return NULL;
    x->bytes = yard_read_bytes(x->like);
    x->buffer = bench_alloc(x->bytes);
    memset(x->buffer, 1, x->bytes);
    return x;
}

static void done_read(void *state)
{
    struct reader *x = state;
    free(x->buffer);
    x->buffer = NULL;
}

struct ng_bench yard_read(struct reader *x)
{
    return (struct ng_bench){
        .name = "read", .setup = setup_read, .run = run_read, .done = done_read, .arg = x
    };
}

double yard_read_rate(const struct reader *x, const struct ng_bench *b)
{
    return b->seconds > 0 ? (double)x->bytes / b->seconds : 0;
}

size_t yard_memory(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kib = 0;
    while (f && !kib && fgets(line, sizeof line, f))
        if (strncmp(line, "MemAvailable:", 13) == 0)
            kib = strtoull(line + 13, NULL, 10);
    if (f)
        (void)fclose(f);
    return kib ? (size_t)kib << 10 : SIZE_MAX;
}

/* ---- SLEEF's expf. ---- */

static void *setup_expf(void *arg)
{
    struct expf_loop *x = arg;
    if (!loop_sleef(x->isa))
        return NULL;
    x->src = bench_matrix(NG_F32, 1, x->n, (struct spread){ -6, 2 }, 5);
    x->dst = bench_matrix(NG_F32, 1, x->n, (struct spread){ 0, 0 }, 6);
    return x;
}

static void run_expf(void *state)
{
    struct expf_loop *x = state;
    loop_sleef(x->isa)(x->src.data, x->dst.data, (size_t)x->n);
}

static void done_expf(void *state)
{
    struct expf_loop *x = state;
    bench_free(&x->src);
    bench_free(&x->dst);
}

struct ng_bench yard_expf(struct expf_loop *x)
{
    return (struct ng_bench){ .name = "expf",
                              .setup = setup_expf,
                              .run = run_expf,
                              .done = done_expf,
                              .arg = x,
                              .items = (double)x->n };
}

/* ---- A copy. ---- */

struct copy {
    size_t bytes;
    unsigned char *from, *to;
};

static void copy_run(void *state)
{
    const struct copy *x = state;
    memcpy(x->to, x->from, x->bytes);
}

static void *copy_setup(void *arg)
{
    struct copy *x = arg;
    x->from = bench_alloc(x->bytes);
    x->to = bench_alloc(x->bytes);
    memset(x->from, 1, x->bytes);
    memset(x->to, 2, x->bytes);
    return x;
}

static void copy_done(void *state)
{
    const struct copy *x = state;
    free(x->from);
    free(x->to);
}

struct timed {
    const struct bench_subject *what;
    bool failed;
};

static void *timed_setup(void *arg)
{
    struct timed *x = arg;
    x->failed = !x->what->prepare(x->what->arg);
    if (!x->failed)
        return x;
    x->what->release(x->what->arg);
    return NULL;
}

static void timed_run(void *state)
{
    const struct timed *x = state;
    x->what->call(x->what->arg);
}

static void timed_done(void *state)
{
    const struct timed *x = state;
    x->what->release(x->what->arg);
}

void bench_beside_copy(struct bench *run, const char *name, const struct bench_subject *what,
                       size_t bytes, struct row row)
{
    struct timed timed = { .what = what };
    struct copy copy = { .bytes = bytes / 2 }; /* read and written */
    struct ng_bench bench[2] = { { .name = name,
                                   .setup = timed_setup,
                                   .run = timed_run,
                                   .done = timed_done,
                                   .arg = &timed,
                                   .items = (double)bytes },
                                 { .name = "memcpy",
                                   .setup = copy_setup,
                                   .run = copy_run,
                                   .done = copy_done,
                                   .arg = &copy,
                                   .items = (double)bytes } };
    ng_bench_run(bench, 2, &run->options);
    if (timed.failed) {
        bench_refuse(run, name, "the call failed");
        return;
    }
    row.name = name;
    row.tag = row.tag ? row.tag : "";
    row.k = 1;
    row.unit = "GB/s";
    row.scale = 1e-9;
    row.rate = bench[0].rate;
    row.peak = bench[1].rate;
    row.spread = bench[0].spread;
    bench_row(run, &row);
}
