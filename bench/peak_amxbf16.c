/* SPDX-License-Identifier: Apache-2.0 */
#include "peak_read.h"

/* TDPBF16PS of 16 rows and two words, which is four lanes: what the kernel sums rows of lanes
 * by. It takes as long for 16 words. */
enum {
    ROWS = 16,
    COLUMNS = 16,
    LANES = 4,
    SUMS = 2
};

struct config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* 1 * 1/2 - 1 * 1/2 in each pair of words: a sum stays what it was, which only the CPU knows.
 */
static float loop(uint32_t rounds)
{
    static const uint32_t one[ROWS][LANES / 2] = { { 0x3F803F80u, 0x3F803F80u } },
                                            half[LANES / 2][COLUMNS] = { { 0x3F003F00u },
                                                                         { 0xBF00BF00u } };
    struct config c = { .palette = 1 };
    float sum[ROWS][COLUMNS] = { { (float)rounds } };
    for (int t = 0; t < 4; t++) { /* sums, sums, A, B */
        c.rows[t] = t == 3 ? LANES / 2 : ROWS;
        c.row_bytes[t] = t == 2 ? 4 * (LANES / 2) : 4 * COLUMNS;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c));
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm0\n\ttileloadd (%0,%1,1), %%tmm1" ::"r"(sum),
                     "r"((int64_t)sizeof sum[0])
                     : "memory");
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm2" ::"r"(one), "r"((int64_t)sizeof one[0])
                     : "memory");
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm3" ::"r"(half), "r"((int64_t)sizeof half[0])
                     : "memory");
    for (uint32_t r = 0; r < rounds; r++)
        __asm__ volatile("tdpbf16ps %%tmm3, %%tmm2, %%tmm0\n\t"
                         "tdpbf16ps %%tmm3, %%tmm2, %%tmm1" ::);
    __asm__ volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(sum), "r"((int64_t)sizeof sum[0])
                     : "memory");
    __asm__ volatile("tilerelease" ::);
    return sum[0][0];
}

/* TDPBSSD of 16 rows and words: 64 products of bytes an element. */
static float loop_bytes(uint32_t rounds)
{
    static const int8_t ones[ROWS][4 * COLUMNS] = { { 1, 1, 1, 1 } }, /* the row, then A's */
        pairs[COLUMNS][4 * COLUMNS] = { { 1, -1, 1, -1 } };
    struct config c = { .palette = 1 };
    int32_t sum[ROWS][COLUMNS] = { { (int32_t)rounds } };
    for (int t = 0; t < 6; t++) {
        c.rows[t] = ROWS;
        c.row_bytes[t] = 4 * COLUMNS;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c));
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm0\n\ttileloadd (%0,%1,1), %%tmm1\n\t"
                     "tileloadd (%0,%1,1), %%tmm4\n\ttileloadd (%0,%1,1), %%tmm5" ::"r"(sum),
                     "r"((int64_t)sizeof sum[0])
                     : "memory");
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm2" ::"r"(ones), "r"((int64_t)sizeof ones[0])
                     : "memory");
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm3" ::"r"(pairs), "r"((int64_t)sizeof pairs[0])
                     : "memory");
    for (uint32_t r = 0; r < rounds; r++)
        __asm__ volatile("tdpbssd %%tmm3, %%tmm2, %%tmm0\n\t"
                         "tdpbssd %%tmm3, %%tmm2, %%tmm1\n\t"
                         "tdpbssd %%tmm3, %%tmm2, %%tmm4\n\t"
                         "tdpbssd %%tmm3, %%tmm2, %%tmm5" ::);
    __asm__ volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(sum), "r"((int64_t)sizeof sum[0])
                     : "memory");
    __asm__ volatile("tilerelease" ::);
    return (float)sum[0][0];
}

enum {
    BYTE_SUMS = 4,
    BYTE_PRODUCTS = 64
};

static const struct peak bytes = { .flops = 2.0 * ROWS * COLUMNS * BYTE_PRODUCTS * BYTE_SUMS,
                                   .loop = loop_bytes };

extern const struct peak peak_amxbf16;
const struct peak peak_amxbf16 = {
    .flops = 2.0 * ROWS * COLUMNS * LANES * SUMS, .loop = loop, .read = peak_read, .fp4 = &bytes
};
