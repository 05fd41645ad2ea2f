/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the multiplying instruction of an ISA can do on this core, right now: a loop without
 * memory; and how fast the ISA reads. One file an ISA (peak_<isa>.c), compiled with that ISA's
 * flags.
 */
#ifndef NG_BENCH_PEAK_H
#define NG_BENCH_PEAK_H

#include <stddef.h>
#include <stdint.h>

/*
 * An FMA has a latency of four or five cycles and cores start two a cycle, so ten sums that do
 * not wait for one another keep both ports busy. Twelve leave room in AVX2's 16 registers.
 */
enum {
    PEAK_SUMS = 12
};

/* Sums are names of registers: gcc unrolls the longer loops too late to see that. */
#define PEAK_UNROLL _Pragma("GCC unroll 32")

struct peak {
    double flops; /* of one round: an instruction for each sum */
    float (*loop)(uint32_t rounds);
    uint64_t (*read)(const void *data, size_t bytes); /* a sum; multiples of 512 bytes */
    const struct peak *fp4; /* two MXFP4 operands have an instruction of their own; or NULL */
};

/* The loops of one ISA by its bit (NG_ISA_*), or NULL. */
const struct peak *peak_of(uint32_t isa_bit);
/* What a caller whose CPU's best ISA this is runs: it, what it builds upon (NG_ISA_* grow so),
 * and the reference. An ISA with kernels of one sort only leans on the others. */
static inline uint32_t isas_of(uint32_t isa_bit)
{
    return isa_bit | (isa_bit - 1);
}

#endif
