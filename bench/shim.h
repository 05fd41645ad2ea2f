/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C cases handed to Google Benchmark. The cases of one call are rivals: their repetitions are
 * interleaved in random order, so that a slow minute of the machine falls on all of them and
 * their ratios stand when their rates do not.
 */
#ifndef NG_BENCH_SHIM_H
#define NG_BENCH_SHIM_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ng_bench {
    const char *name;
    void *(*setup)(void *arg); /* once, before any case is timed; NULL: leave this case out */
    void (*run)(void *state);  /* what is timed */
    void (*done)(void *state);
    void *arg;
    double items; /* what one run gets done */

    /* Found by ng_bench_run(); all 0 when the case was left out. */
    double seconds; /* of one run: median over the repetitions */
    double rate;    /* items / seconds */
    double spread;  /* (slowest - fastest) / median */
};

struct ng_bench_options {
    int repetitions;
    double seconds; /* least time of a repetition */
    bool wall;      /* elapsed time; else CPU time of the calling thread, which does not grow
                       when another process takes the core */
};

void ng_bench_run(struct ng_bench *bench, size_t n, const struct ng_bench_options *options);

#ifdef __cplusplus
}
#endif
#endif
