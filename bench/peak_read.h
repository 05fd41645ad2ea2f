/* SPDX-License-Identifier: Apache-2.0 */
/* A sum of all words of a buffer, in the vectors of whatever ISA this is compiled for. */
#ifndef NG_BENCH_PEAK_READ_H
#define NG_BENCH_PEAK_READ_H

#include "peak.h"

#ifdef __AVX512F__
typedef uint64_t peak_words __attribute__((vector_size(64)));
#else
typedef uint64_t peak_words __attribute__((vector_size(32)));
#endif

/* Eight sums: additions never wait for one another, only for memory. */
static uint64_t peak_read(const void *data, size_t bytes)
{
    const peak_words *p = data;
    peak_words sum[8] = { { 0 } };
    for (size_t i = 0; i < bytes / sizeof *p; i += 8) {
        PEAK_UNROLL
        for (size_t j = 0; j < 8; j++)
            sum[j] += p[i + j];
    }
    PEAK_UNROLL
    for (size_t j = 1; j < 8; j++)
        sum[0] += sum[j];
    uint64_t all = 0;
    for (size_t j = 0; j < sizeof *p / sizeof all; j++)
        all += sum[0][j];
    return all;
}

#endif
