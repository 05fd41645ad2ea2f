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
    const struct section *section; /* of the rows to come */
    bool headed;                   /* its heading is printed */
    int rows, refused;
};

/* A table: what it is, and the names of the columns that differ between tables. */
struct section {
    const char *title, *rate, *peak;
    bool multiply; /* its rows have a struct multiply_row */
};

/* What only multiplies have. */
struct multiply_row {
    bool packed;        /* B was, beforehand */
    double dense;       /* items a second of the same work by a dense B; sparse rows only */
    double bytes;       /* of the packed B */
    double bytes_moved; /* a second; 0: not a row that memory limits */
    double read;        /* bytes a second that a plain sum reads */
    ng_tiles tiles;
};

/* One line of a table; a number that is 0 was not measured. */
struct row {
    const char *name;  /* what --filter sees */
    const char *label; /* the table's first column */
    const char *kernel, *profile, *tag, *a, *b;
    int64_t m, n, k;
    const char *unit;
    double scale;                     /* from items a second to the unit */
    double rate, peak, openblas, ref; /* items a second */
    double spread;
    const struct multiply_row *multiply; /* or NULL */
};

bool bench_wants(struct bench *run, const char *name);
/* The same, but asks only: --list prints nothing. */
bool bench_would_want(const struct bench *run, const char *name);
void bench_row(struct bench *run, const struct row *r);
/* A result that differs from the reference's: said aloud, and the exit status is 1. */
void bench_refuse(struct bench *run, const char *name, const char *why);

/* May start the program again, with OpenBLAS told what this CPU is; else returns. */
void bench_fair_openblas(char **argv);
void bench_print_openblas(size_t threads);

void bench_gemm(struct bench *run);
void bench_reference(struct bench *run);
void bench_calls(struct bench *run);
void bench_convert(struct bench *run);
void bench_random(struct bench *run);
void bench_sparse(struct bench *run);
void bench_elementary(struct bench *run);
void bench_prefill(struct bench *run);
void bench_decode(struct bench *run);
void bench_moe(struct bench *run);
void bench_layer(struct bench *run);
void bench_pack(struct bench *run);
void bench_collective(struct bench *run);

/* ---- Data (data.c). ---- */

/* Memory that the process cannot go on without: aligned to 64 bytes, or exit(2). */
void *bench_alloc(size_t bytes);

struct spread {
    int low, high; /* floor(log2 |v|), before rounding to the format */
};
/* A packed rank-2 tensor of its own memory, filled by the seed; freed by bench_free(). */
ng_tensor bench_matrix(ng_format f, int64_t rows, int64_t cols, struct spread s, uint64_t seed);
void bench_free(ng_tensor *t);

/* How an operand of a multiply is filled. */
enum fill {
    FILL_GAUSSIAN, /* mean 0, deviation 1, rounded to nearest */
    FILL_MX,       /* the same, quantised: e8m0 scales, blocks of 32, rule floor_up1 */
    FILL_WIDE,     /* MX codes of which any four neighbours along K span the format's range */
    FILL_FAR,      /* FILL_MX, but of scales up to 2^24 apart */
    FILL_NV        /* FILL_MX's elements, ue4m3 scales from 0.75 to 1.375, blocks of 16 */
};
/* A matrix of whole blocks of 32 elements along `axis`, drawn from a pool of them. */
ng_tensor bench_operand(ng_format f, int64_t rows, int64_t cols, uint32_t axis, enum fill fill,
                        uint64_t seed);

/* B [K, N] pruned 2:4 along K: of four the two of largest magnitude stay. */
struct bench_sparse {
    ng_tensor t; /* [K / 2, N]; `sparse` points into this struct */
    ng_sparse sparse;
    uint8_t *tags;
};
void bench_prune(const ng_tensor *dense, struct bench_sparse *out);
void bench_free_sparse(struct bench_sparse *s);

#endif
