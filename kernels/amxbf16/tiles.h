/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AMX: eight registers of up to 16 rows of 64 bytes, and what multiplies two of them into a
 * third. For an element of C and the n words of A's row and B's column, a word two bf16
 * numbers, TDPBF16PS computes (Intel SDM)
 *
 *     even = odd = +0;  n times: even = RN(even + a.even * b.even), odd likewise;
 *     C = RN(C + RN(even + odd))
 *
 * all ties to even whatever MXCSR says, subnormal inputs and results as zero. Where even, odd
 * and their sum are exact that is one rounding of C and the sum of 2 n products: a row of 2 n
 * lanes (docs/numerics.md 4.1, step 4). An instruction takes as long for one word as for 16.
 * TDPBSSD adds the products of four signed bytes a word to integers of 32 bits.
 *
 * Statements of assembly: gcc 12's intrinsics do not say that they read memory.
 */
#ifndef NG_AMXBF16_TILES_H
#define NG_AMXBF16_TILES_H

#include "../intrin.h"

#include <stdint.h>

enum {
    TILE_ROWS = 16,
    TILE_WORDS = 16
};

/* Registers: sums, A's rows, two of B's; then sums and A's rows from the 17th on. */
#define TILE_C0 0
#define TILE_C1 1
#define TILE_A  2
#define TILE_B0 3
#define TILE_B1 4
#define TILE_C2 5
#define TILE_C3 6
#define TILE_A1 7
enum {
    TILES = 8
};

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "what LDTILECFG reads");

#ifdef NG_EMULATE_AVX512

#define TILE_CONFIG(config)             ng_emu_tile_config((config)->row_bytes, (config)->rows)
#define TILE_RELEASE()                  ng_emu_tile_release()
#define TILE_ZERO(tile)                 ng_emu_tile_zero(tile)
#define TILE_LOAD(tile, from, step)     ng_emu_tile_load(tile, from, step)
#define TILE_STORE(tile, to, step)      ng_emu_tile_store(tile, to, step)
#define TILE_MULTIPLY(sums, a, b)       ng_emu_tile_multiply(sums, a, b)
#define TILE_MULTIPLY_BYTES(sums, a, b) ng_emu_tile_multiply_bytes(sums, a, b)

#else

#define TILE_CONFIG(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(config)))
#define TILE_RELEASE()      __asm__ volatile("tilerelease" ::)
#define TILE_NAME(tile)     "%%tmm" #tile
#define TILE_ZERO(tile)     __asm__ volatile("tilezero " TILE_NAME_OF(tile)::)
#define TILE_NAME_OF(tile)  TILE_NAME(tile)
/* Rows `step` bytes apart. */
#define TILE_LOAD(tile, from, step)                                                            \
    __asm__ volatile("tileloadd (%0,%1,1), " TILE_NAME_OF(tile)::"r"(from),                    \
                     "r"((int64_t)(step))                                                      \
                     : "memory")
#define TILE_STORE(tile, to, step)                                                             \
    __asm__ volatile("tilestored " TILE_NAME_OF(tile) ", (%0,%1,1)" ::"r"(to),                 \
                     "r"((int64_t)(step))                                                      \
                     : "memory")
#define TILE_MULTIPLY(sums, a, b)                                                              \
    __asm__ volatile(                                                                          \
        "tdpbf16ps " TILE_NAME_OF(b) ", " TILE_NAME_OF(a) ", " TILE_NAME_OF(sums)::)
#define TILE_MULTIPLY_BYTES(sums, a, b)                                                        \
    __asm__ volatile("tdpbssd " TILE_NAME_OF(b) ", " TILE_NAME_OF(a) ", " TILE_NAME_OF(sums)::)

#endif

/* `rows` of A and C, 1 to 32, rows of `words` words of A. */
static inline struct tile_config tiles_of(int rows, int words)
{
    struct tile_config c = { .palette = 1 };
    const int first = rows < TILE_ROWS ? rows : TILE_ROWS;
    for (int t = 0; t < TILES; t++) {
        c.rows[t] = (uint8_t)(t == TILE_B0 || t == TILE_B1 ? words
                              : t < TILE_B0                ? first
                                                           : rows - first);
        if (c.rows[t])
            c.row_bytes[t] = (uint16_t)(4 * (t == TILE_A || t == TILE_A1 ? words : TILE_WORDS));
    }
    return c;
}

static inline void tiles_begin(int rows, int words)
{
    const struct tile_config c = tiles_of(rows, words);
    TILE_CONFIG(&c);
}

/* The registers are nobody's again: what they held need not be saved with the thread. */
static inline void tiles_end(void)
{
    TILE_RELEASE();
}

#endif
