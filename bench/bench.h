/* SPDX-License-Identifier: Apache-2.0 */
/* One run of ng-bench: its options, its rows, and the data that the cases share. */
#ifndef NG_BENCH_H
#define NG_BENCH_H

#include <regex.h>
#include <stdio.h>

#include "ng/ng.h"
#include "shim.h"

struct bench {
    struct ng_bench_options options;
    bool quick;
    bool list; /* names only, nothing is timed */
    const regex_t *filter;
    size_t threads;
    const ng_executor *executor;   /* NULL: one thread */
    FILE *json;                    /* or NULL */
    const struct section *section; /* whose heading is not printed yet, or NULL */
    int rows, refused;
};

/* A table: what it is, and the names of the columns that differ between tables. */
struct section {
    const char *title, *rate, *peak;
};

/* One line of a table; a number that is 0 was not measured. */
struct row {
    const char *name;  /* what --filter sees */
    const char *label; /* the table's first column */
    const char *kernel, *profile, *a, *b;
    int64_t m, n, k;
    const char *unit;
    double scale;                     /* from items a second to the unit */
    double rate, peak, openblas, ref; /* items a second */
    double spread;
};

bool bench_wants(struct bench *run, const char *name);
void bench_row(struct bench *run, const struct row *r);
/* A result that differs from the reference's: said aloud, and the exit status is 1. */
void bench_refuse(struct bench *run, const char *name, const char *why);

/* May start the program again, with OpenBLAS told what this CPU is; else returns. */
void bench_fair_openblas(char **argv);
void bench_print_openblas(size_t threads);

void bench_gemm(struct bench *run);
void bench_reference(struct bench *run);
void bench_convert(struct bench *run);

/* ---- Data (data.c). ---- */

/* Memory that the process cannot go on without: aligned to 64 bytes, or exit(2). */
void *bench_alloc(size_t bytes);

struct spread {
    int low, high; /* floor(log2 |v|), before rounding to the format */
};
/* A packed rank-2 tensor of its own memory, filled by the seed; freed by bench_free(). */
ng_tensor bench_matrix(ng_format f, int64_t rows, int64_t cols, struct spread s, uint64_t seed);
/* Give it e8m0 scales near 1, a block of 32 elements along the axis. */
void bench_scales(ng_tensor *t, uint32_t axis, uint64_t seed);
void bench_free(ng_tensor *t);

#endif
