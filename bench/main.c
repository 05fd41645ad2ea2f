/* SPDX-License-Identifier: Apache-2.0 */
/* ng-bench: options, the tables, and the same rows as JSON. See bench/README.md. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static int usage(FILE *out)
{
    (void)fputs(
        "usage: ng-bench [--quick] [--filter REGEX] [--list] [--json FILE]\n"
        "                [--threads N] [--repetitions N] [--seconds S]\n"
        "Time every kernel with B packed beforehand and in the call, beside the peak of its\n"
        "ISA's instruction, OpenBLAS, memory and the reference. REGEX (extended) is looked\n"
        "for in a case's name, KERNEL/PROFILE/[TAG-]AxB/MxNxK/packed (or /fly), ref/...,\n"
        "pack/..., convert/..., random/..., sparsity/..., moe/... or layer/...; --list prints\n"
        "the names. --quick: two shapes, 20 s.\n"
        "Medians of N repetitions (7; long runs 5) of at least S s (0.05).\n",
        out);
    return out == stderr ? 2 : 0;
}

bool bench_would_want(const struct bench *run, const char *name)
{
    return !run->filter || regexec(run->filter, name, 0, NULL, 0) == 0;
}

bool bench_wants(struct bench *run, const char *name)
{
    const bool wanted = bench_would_want(run, name);
    if (wanted && run->list) {
        printf("%s\n", name);
        run->rows++;
    }
    return wanted;
}

void bench_refuse(struct bench *run, const char *name, const char *why)
{
    printf("REFUSED %s: %s\n", name, why);
    run->refused++;
}

/* ---- Rows. ---- */

/* A number, or a dash for what was not measured. */
static const char *cell(char text[16], double x, int digits)
{
    if (x > 0)
        (void)snprintf(text, 16, "%.*f", digits, x);
    else
        (void)snprintf(text, 16, "-");
    return text;
}

static double quotient(double x, double y)
{
    return y > 0 ? x / y : 0;
}

static void json_number(FILE *f, const char *key, double x)
{
    if (x > 0)
        (void)fprintf(f, ", \"%s\": %.6g", key, x);
    else
        (void)fprintf(f, ", \"%s\": null", key);
}

static void json_multiply(FILE *f, const struct row *r)
{
    const struct multiply_row *x = r->multiply;
    (void)fprintf(f, ", \"tag\": \"%s\", \"packed\": %s", r->tag, x->packed ? "true" : "false");
    json_number(f, "packed_bytes", x->bytes);
    json_number(f, "bandwidth", x->bytes_moved * 1e-9);
    json_number(f, "read_bandwidth", x->read * 1e-9);
    json_number(f, "bandwidth_ratio", quotient(x->bytes_moved, x->read));
    json_number(f, "vs_dense", quotient(r->rate, x->dense));
    (void)fprintf(f, ", \"tiles\": {\"fast\": %llu, \"exact\": %llu, \"reference\": %llu}",
                  (unsigned long long)x->tiles.fast, (unsigned long long)x->tiles.exact,
                  (unsigned long long)x->tiles.reference);
}

static void json_row(const struct bench *run, const struct row *r)
{
    FILE *f = run->json;
    (void)fprintf(f,
                  "%s\n  {\"name\": \"%s\", \"profile\": \"%s\", \"a\": \"%s\", \"b\": \"%s\", "
                  "\"m\": %lld, \"n\": %lld, \"k\": %lld, \"threads\": %zu, \"unit\": \"%s\"",
                  run->rows ? "," : "", r->name, r->profile, r->a, r->b, (long long)r->m,
                  (long long)r->n, (long long)r->k, run->threads, r->unit);
    json_number(f, "rate", r->rate * r->scale);
    json_number(f, "peak", r->peak * r->scale);
    json_number(f, "ratio", quotient(r->rate, r->peak));
    (void)fprintf(f, ", \"kernel\": \"%s\"", r->kernel);
    json_number(f, "vs_openblas", quotient(r->rate, r->openblas));
    json_number(f, "vs_ref", quotient(r->rate, r->ref));
    json_number(f, "spread", r->spread);
    if (r->multiply)
        json_multiply(f, r);
    (void)fputc('}', f);
}

static void heading(struct bench *run)
{
    const struct section *s = run->section;
    if (run->headed)
        return;
    run->headed = true;
    printf("\n%s\n", s->title);
    printf("%-30s %-20s %-26s %5s %5s %5s ", "kernel", "profile", "operands", "M", "N", "K");
    if (!s->multiply) {
        printf("%9s %9s %7s %6s\n", s->rate, s->peak, "ratio", "spread");
        return;
    }
    printf("%-6s %8s %7s %6s %7s %7s %8s %6s %7s %5s %6s\n", "B", s->rate, s->peak, "ratio",
           "vs_blas", "vs_ref", "vs_dense", "GB/s", "of_read", "slow", "spread");
}

/* The share of tiles that were not fast, of all; "0.00" is a measurement here. */
static const char *slow_cell(char text[16], const ng_tiles *t)
{
    const uint64_t slow = t->exact + t->reference, all = slow + t->fast;
    (void)snprintf(text, 16, all ? "%.2f" : "-", all ? (double)slow / (double)all : 0.0);
    return text;
}

static void print_multiply(const struct row *r)
{
    const struct multiply_row *x = r->multiply;
    char rate[16], peak[16], ratio[16], blas[16], ref[16], dense[16], moved[16], part[16],
        slow[16], spread[16];
    printf("%-6s %8s %7s %6s %7s %7s %8s %6s %7s %5s %6s\n", x->packed ? "packed" : "fly",
           cell(rate, r->rate * r->scale, 2), cell(peak, r->peak * r->scale, 1),
           cell(ratio, quotient(r->rate, r->peak), 3),
           cell(blas, quotient(r->rate, r->openblas), 3),
           cell(ref, quotient(r->rate, r->ref), 0), cell(dense, quotient(r->rate, x->dense), 2),
           cell(moved, x->bytes_moved * 1e-9, 1),
           cell(part, quotient(x->bytes_moved, x->read), 3), slow_cell(slow, &x->tiles),
           cell(spread, r->spread, 2));
}

void bench_row(struct bench *run, const struct row *r)
{
    char operands[48], rate[16], peak[16], ratio[16], spread[16];
    heading(run);
    (void)snprintf(operands, sizeof operands, "%s%s%s %s", r->tag, r->tag[0] ? " " : "", r->a,
                   r->b);
    printf("%-30s %-20s %-26s %5lld %5lld %5lld ", r->label, r->profile, operands,
           (long long)r->m, (long long)r->n, (long long)r->k);
    if (r->multiply)
        print_multiply(r);
    else
        printf("%9s %9s %7s %6s\n", cell(rate, r->rate * r->scale, 2),
               cell(peak, r->peak * r->scale, 1), cell(ratio, quotient(r->rate, r->peak), 4),
               cell(spread, r->spread, 2));
    if (run->json)
        json_row(run, r);
    run->rows++;
}

/* ---- What was measured, for whoever reads the paste. ---- */

static void print_machine(const struct bench *run)
{
    char line[256], cpu[256] = "unknown CPU";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strstr(line, ": ");
        if (strncmp(line, "model name", 10) == 0 && value) {
            (void)snprintf(cpu, sizeof cpu, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
            break;
        }
    }
    if (f)
        (void)fclose(f);
    printf("narrowgauge %s; %s; compiler %s\n", ng_version(), cpu, __VERSION__);
    printf("%zu thread%s, %s time, medians of %d repetitions\n", run->threads,
           run->threads == 1 ? "" : "s", run->options.wall ? "elapsed" : "CPU",
           run->options.repetitions);
    bench_print_openblas(run->threads);
}

/* ---- Options. ---- */

struct arguments {
    const char *filter, *json;
    double threads, repetitions, seconds;
};

static bool positive(const char *text, double most, double *value)
{
    char *end;
    if (!text || text[0] < '0' || text[0] > '9')
        return false;
    *value = strtod(text, &end);
    return *end == '\0' && *value > 0 && *value <= most;
}

/* False: they are not understood. */
static bool read_arguments(int argc, char **argv, struct bench *run, struct arguments *args,
                           bool *help)
{
    for (int i = 1; i < argc; i++) {
        const char *value = argv[i + 1]; /* argv ends with a NULL */
        if (strcmp(argv[i], "--quick") == 0) {
            run->quick = true;
            continue;
        }
        if (strcmp(argv[i], "--list") == 0) {
            run->list = true;
            continue;
        }
        if (strcmp(argv[i], "--help") == 0) {
            *help = true;
            return true;
        }
        if (strcmp(argv[i], "--filter") == 0 && value)
            args->filter = value;
        else if (strcmp(argv[i], "--json") == 0 && value)
            args->json = value;
        else if (!(strcmp(argv[i], "--threads") == 0 &&
                   positive(value, 1024, &args->threads)) &&
                 !(strcmp(argv[i], "--repetitions") == 0 &&
                   positive(value, 1000, &args->repetitions)) &&
                 !(strcmp(argv[i], "--seconds") == 0 && positive(value, 60, &args->seconds)))
            return false;
        i++;
    }
    return true;
}

static void run_section(struct bench *run, const struct section *s,
                        void (*rows)(struct bench *run))
{
    run->section = s;
    run->headed = false;
    rows(run);
}

static int run_all(struct bench *run)
{
    static const struct section
        kernels = { "Kernels (peak: the multiplying instruction of the kernel's ISA, this run)",
                    "GFLOP/s", "peak", true },
        reference = { "The reference (million multiply-accumulates a second)", "MMAC/s", "-",
                      false },
        calls = { "Small calls (million multiply-accumulates a second; the reference's of the "
                  "same call)",
                  "MMAC/s", "ref", false },
        conversions = { "Conversions (memcpy that moves as many bytes)", "GB/s", "memcpy",
                        false },
        random = { "Random words (memset of the same memory)", "Gwords/s", "memset", false },
        sparsity = { "Structured sparsity 2:4 (memcpy that moves as many bytes)", "GB/s",
                     "memcpy", false },
        functions = { "Elementary functions (a bare loop over SLEEF's u10 expf)", "Gvalues/s",
                      "expf", false },
        prefill = { "Attention, prefill (flops of live pairs; the multiplying instruction)",
                    "GFLOP/s", "peak", false },
        decode = { "Attention, decode (bytes of k and v; a sum over as many)", "GB/s", "read",
                   false },
        moe = { "Mixture of experts (units by row; beside route and activation a bare expf "
                "of each logit or value, beside combine a sum over its entries, beside mlp the "
                "same multiplies by one expert's packed weights, of few rows an expert, "
                "other ones' in each call, a sum over all experts' weights)",
                "rate", "peak", false },
        packing = { "Packing of weights (memcpy that moves as many bytes)", "GB/s", "memcpy",
                    false },
        layer = { "Between a layer's multiplies (memcpy that moves as many bytes)", "GB/s",
                  "memcpy", false },
        collectives = { "Reductions over ranks (bytes of all buffers; a sum over as many)",
                        "GB/s", "read", false };
    if (!run->list)
        print_machine(run);
    run_section(run, &kernels, bench_gemm);
    run_section(run, &reference, bench_reference);
    run_section(run, &calls, bench_calls);
    run_section(run, &packing, bench_pack);
    run_section(run, &conversions, bench_convert);
    run_section(run, &random, bench_random);
    run_section(run, &sparsity, bench_sparse);
    run_section(run, &functions, bench_elementary);
    run_section(run, &prefill, bench_prefill);
    run_section(run, &decode, bench_decode);
    run_section(run, &moe, bench_moe);
    run_section(run, &layer, bench_layer);
    run_section(run, &collectives, bench_collective);
    if (run->refused)
        printf("\nng-bench: %d refused\n", run->refused);
    if (!run->rows && !run->refused) {
        (void)fprintf(stderr, "ng-bench: no case has that in its name (--list)\n");
        return 2;
    }
    return run->refused ? 1 : 0;
}

int main(int argc, char **argv)
{
    struct bench run = { .threads = 1 };
    struct arguments args = { .threads = 1 };
    bool help = false;
    regex_t filter;
    ng_pool *pool = NULL;
    ng_executor executor;
    if (!read_arguments(argc, argv, &run, &args, &help))
        return usage(stderr);
    if (help)
        return usage(stdout);
    bench_fair_openblas(argv);
    run.options.repetitions =
        args.repetitions >= 1 ? (int)args.repetitions : (run.quick ? 5 : 7);
    run.options.seconds = args.seconds > 0 ? args.seconds : (run.quick ? 0.004 : 0.05);
    if (args.filter) {
        if (regcomp(&filter, args.filter, REG_EXTENDED | REG_NOSUB)) {
            (void)fprintf(stderr, "ng-bench: '%s' is no extended regular expression\n",
                          args.filter);
            return 2;
        }
        run.filter = &filter;
    }
    run.threads = (size_t)args.threads;
    run.options.wall = run.threads > 1; /* the threads' CPU times do not add up to a rate */
    if (run.threads > 1) {
        const ng_status s = ng_pool_create(run.threads, &pool, &executor);
        if (s) {
            (void)fprintf(stderr, "ng-bench: --threads: %s\n", ng_status_name(s));
            return 2;
        }
        run.executor = &executor;
    }
    if (args.json && !run.list) {
        run.json = fopen(args.json, "w");
        if (!run.json) {
            perror(args.json);
            return 2;
        }
        (void)fputc('[', run.json);
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = run_all(&run);
    if (run.json) {
        (void)fputs("\n]\n", run.json);
        const bool bad = ferror(run.json) != 0;
        if (fclose(run.json) || bad) {
            (void)fprintf(stderr, "ng-bench: %s: not written\n", args.json);
            rc = 2;
        }
    }
    ng_pool_destroy(pool);
    if (run.filter)
        regfree(&filter);
    return rc;
}
