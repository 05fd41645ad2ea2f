/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the FMA instructions of an ISA can do on this core, right now: a loop without memory.
 * One file an ISA (peak_<isa>.c), compiled with that ISA's flags.
 */
#ifndef NG_BENCH_PEAK_H
#define NG_BENCH_PEAK_H

#include <stdint.h>

/*
 * An FMA has a latency of four or five cycles and cores start two a cycle, so ten sums that do
 * not wait for one another keep both ports busy. Twelve leave room in AVX2's 16 registers.
 */
enum {
    PEAK_SUMS = 12
};

struct peak {
    double flops; /* of one round, an FMA for each sum: two per lane */
    float (*loop)(uint32_t rounds);
};

/* The loop of one ISA by its bit (NG_ISA_*), or NULL. */
const struct peak *peak_of(uint32_t isa_bit);

#endif
