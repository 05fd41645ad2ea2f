/* SPDX-License-Identifier: Apache-2.0 */
#include "peak_read.h"

/* TDPBF16PS of 16 rows and two words, which is four lanes: what the kernel sums rows of lanes
 * by. It takes as long for 16 words. */
enum {
    ROWS = 16,
    COLUMNS = 16,
    LANES = 4,
    SUMS = 4
};

struct config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Registers 0, 1, 4, 5 are sums that begin as `sum`, 2 has A's rows of `words` words, 3 B's. */
static void set(int words, const void *sum, const void *a, const void *b)
{
    struct config c = { .palette = 1 };
    const int64_t row = 4 * COLUMNS;
    for (int t = 0; t < 6; t++) {
        c.rows[t] = (uint8_t)(t == 3 ? words : ROWS);
        c.row_bytes[t] = (uint16_t)(4 * (t == 2 ? words : COLUMNS));
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c));
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm0\n\ttileloadd (%0,%1,1), %%tmm1\n\t"
                     "tileloadd (%0,%1,1), %%tmm4\n\ttileloadd (%0,%1,1), %%tmm5" ::"r"(sum),
                     "r"(row)
                     : "memory");
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm2" ::"r"(a), "r"((int64_t)(4 * words))
                     : "memory");
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm3" ::"r"(b), "r"(row) : "memory");
}

static void done(void *sum)
{
    __asm__ volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(sum), "r"((int64_t)(4 * COLUMNS))
                     : "memory");
    __asm__ volatile("tilerelease" ::);
}

#define EACH_SUM(multiply)                                                                     \
    __asm__ volatile(                                                                          \
        multiply " %%tmm3, %%tmm2, %%tmm0\n\t" multiply " %%tmm3, %%tmm2, %%tmm1\n\t" multiply \
                 " %%tmm3, %%tmm2, %%tmm4\n\t" multiply " %%tmm3, %%tmm2, %%tmm5" ::)

/* 1 * 1/2 - 1 * 1/2 in each pair of words: a sum stays what it was, which only the CPU knows.
 */
static float loop(uint32_t rounds)
{
    static const uint32_t one[ROWS][LANES / 2] = { { 0x3F803F80u, 0x3F803F80u } },
                                            half[LANES / 2][COLUMNS] = { { 0x3F003F00u },
                                                                         { 0xBF00BF00u } };
    float sum[ROWS][COLUMNS] = { { (float)rounds } };
    set(LANES / 2, sum, one, half);
    for (uint32_t r = 0; r < rounds; r++)
        EACH_SUM("tdpbf16ps");
    done(sum);
    return sum[0][0];
}

/* TDPBSSD of 16 words: 64 products of bytes an element, 1 - 1 + 1 - 1 among them. */
enum {
    BYTES = 4 * COLUMNS
};

static float loop_bytes(uint32_t rounds)
{
    static const int8_t ones[ROWS][BYTES] = { { 1, 1, 1, 1 } },
                        pairs[COLUMNS][BYTES] = { { 1, -1, 1, -1 } };
    int32_t sum[ROWS][COLUMNS] = { { (int32_t)rounds } };
    set(COLUMNS, sum, ones, pairs);
    for (uint32_t r = 0; r < rounds; r++)
        EACH_SUM("tdpbssd");
    done(sum);
    return (float)sum[0][0];
}

static const struct peak bytes = { .flops = 2.0 * ROWS * COLUMNS * BYTES * SUMS,
                                   .loop = loop_bytes };

extern const struct peak peak_amxbf16;
const struct peak peak_amxbf16 = {
    .flops = 2.0 * ROWS * COLUMNS * LANES * SUMS, .loop = loop, .read = peak_read, .fp4 = &bytes
};
