/* SPDX-License-Identifier: Apache-2.0 */
/* AMX's registers, TDPBF16PS and TDPBSSD in plain C, for CPUs without them
 * (kernels/amxbf16/tiles.h). */
#ifndef NG_TESTS_AMX_H
#define NG_TESTS_AMX_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

struct ng_emu_tiles {
    uint16_t row_bytes[8];
    uint8_t rows[8];
    unsigned char row[8][16][64];
};

static inline struct ng_emu_tiles *ng_emu_tiles(void)
{
    static _Thread_local struct ng_emu_tiles t;
    return &t;
}

static inline void ng_emu_tile_config(const uint16_t *row_bytes, const uint8_t *rows)
{
    struct ng_emu_tiles *t = ng_emu_tiles();
    memset(t, 0, sizeof *t);
    memcpy(t->row_bytes, row_bytes, sizeof t->row_bytes);
    memcpy(t->rows, rows, sizeof t->rows);
}

static inline void ng_emu_tile_release(void)
{
    memset(ng_emu_tiles(), 0, sizeof(struct ng_emu_tiles));
}

static inline void ng_emu_tile_zero(int tile)
{
    struct ng_emu_tiles *t = ng_emu_tiles();
    memset(t->row[tile], 0, sizeof t->row[tile]);
}

static inline void ng_emu_tile_load(int tile, const void *from, int64_t step)
{
    struct ng_emu_tiles *t = ng_emu_tiles();
    ng_emu_tile_zero(tile);
    for (int r = 0; r < t->rows[tile]; r++)
        memcpy(t->row[tile][r], (const unsigned char *)from + r * step, t->row_bytes[tile]);
}

static inline void ng_emu_tile_store(int tile, void *to, int64_t step)
{
    const struct ng_emu_tiles *t = ng_emu_tiles();
    for (int r = 0; r < t->rows[tile]; r++)
        memcpy((unsigned char *)to + r * step, t->row[tile][r], t->row_bytes[tile]);
}

/* even += a.even * b.even and odd likewise, of 16 columns; under the control word of
 * ng_emu_tile_multiply(). */
static __attribute__((noinline, unused)) void ng_emu_tile_step(uint32_t a, const uint32_t *b,
                                                               float *even, float *odd)
{
    const uint32_t low = a << 16, high = a & 0xFFFF0000u;
    float x[2];
    memcpy(x, &low, sizeof low);
    memcpy(x + 1, &high, sizeof high);
    for (int c = 0; c < 16; c++) {
        const uint32_t y_low = b[c] << 16, y_high = b[c] & 0xFFFF0000u;
        float y[2];
        memcpy(y, &y_low, sizeof y_low);
        memcpy(y + 1, &y_high, sizeof y_high);
        even[c] = fmaf(x[0], y[0], even[c]);
        odd[c] = fmaf(x[1], y[1], odd[c]);
    }
}

static __attribute__((noinline, unused)) void ng_emu_tile_join(const float *even,
                                                               const float *odd, float *sum)
{
    for (int c = 0; c < 16; c++)
        sum[c] += even[c] + odd[c];
}

static inline void ng_emu_tile_multiply(int sums, int a, int b)
{
    struct ng_emu_tiles *t = ng_emu_tiles();
    const unsigned keep = _mm_getcsr();
    _mm_setcsr(0x9FC0); /* FTZ, DAZ, nearest, exceptions masked */
    for (int r = 0; r < t->rows[sums]; r++) {
        float even[16] = { 0 }, odd[16] = { 0 }, sum[16];
        for (int k = 0; k < t->row_bytes[a] / 4; k++) {
            uint32_t x, y[16];
            memcpy(&x, t->row[a][r] + (size_t)4 * (size_t)k, sizeof x);
            memcpy(y, t->row[b][k], sizeof y);
            ng_emu_tile_step(x, y, even, odd);
        }
        memcpy(sum, t->row[sums][r], sizeof sum);
        ng_emu_tile_join(even, odd, sum);
        memcpy(t->row[sums][r], sum, sizeof sum);
    }
    _mm_setcsr(keep);
}

static inline void ng_emu_tile_multiply_bytes(int sums, int a, int b)
{
    struct ng_emu_tiles *t = ng_emu_tiles();
    for (int r = 0; r < t->rows[sums]; r++)
        for (int c = 0; c < 16; c++) {
            uint32_t sum; /* that goes round */
            memcpy(&sum, t->row[sums][r] + 4 * c, sizeof sum);
            for (int k = 0; k < t->row_bytes[a]; k++)
                sum += (uint32_t)((int8_t)t->row[a][r][k] *
                                  (int8_t)t->row[b][k / 4][4 * c + k % 4]);
            memcpy(t->row[sums][r] + 4 * c, &sum, sizeof sum);
        }
}

#endif
