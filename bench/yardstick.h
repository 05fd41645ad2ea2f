/* SPDX-License-Identifier: Apache-2.0 */
/* What a multiply is measured against, as cases that run between its repetitions. */
#ifndef NG_BENCH_YARDSTICK_H
#define NG_BENCH_YARDSTICK_H

#include "bench.h"
#include "peak.h"

/* The multiplying instruction of an ISA; a rate in flops a second of one thread. */
struct ng_bench yard_peak(const struct peak *peak);

/* OpenBLAS's sgemm of this shape; the rate stays 0 where it was not found. */
struct sgemm {
    int64_t m, n, k;
    ng_tensor a, b, d;
};
struct ng_bench yard_sgemm(struct sgemm *x);
void yard_set_threads(size_t threads);

/* A sum over a buffer: what memory gives, on as many threads. */
struct reader {
    const struct peak *peak; /* whose read() it is */
    const ng_executor *executor;
    size_t threads;
    size_t like; /* bytes that the multiply reads; known when the setup runs */
    size_t bytes;
    unsigned char *buffer;
};
struct ng_bench yard_read(struct reader *x);
/* Bytes a second; the case has run. */
double yard_read_rate(const struct reader *x, const struct ng_bench *b);
/* The buffer's size for an operand of so many bytes: the same, but 256 MiB where that leaves
 * the caches. */
size_t yard_read_bytes(size_t like);

/* A bare loop over SLEEF's u10 expf, on n FP32 numbers in one thread: values a second. Left out
 * for ISAs that have none. */
struct expf_loop {
    uint32_t isa;
    int64_t n;
    ng_tensor src, dst;
};
struct ng_bench yard_expf(struct expf_loop *x);

/* Memory that the machine could still give, in bytes. */
size_t yard_memory(void);

/* What is timed: prepare() allocates and calls once, release() frees, also after a prepare()
 * that failed. */
struct bench_subject {
    void *arg;
    bool (*prepare)(void *arg);
    void (*call)(void *arg);
    void (*release)(void *arg);
};
/* Times it beside a copy that moves as many bytes as it reads and writes. The row has its
 * label, kernel (also later), operands and shape. */
void bench_beside_copy(struct bench *run, const char *name, const struct bench_subject *what,
                       size_t bytes, struct row row);

#endif
