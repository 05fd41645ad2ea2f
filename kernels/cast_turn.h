/* SPDX-License-Identifier: Apache-2.0 */
/* Codes that were quantised in columns, in rows of bytes, become lines; by vectors of 256 bits,
 * which all ISAs here have. */
#ifndef NG_KERNELS_CAST_TURN_H
#define NG_KERNELS_CAST_TURN_H

#include "codes.h"

enum {
    TURN_SIDE = 32, /* rows and columns of a square */
    TURN_LINE = 64  /* bytes: what is stored past the caches is whole lines of memory */
};

/* 32 codes of row q of a square; `halves`: of rows 2q and 2q + 1, the earlier one in a byte's
 * lower half. */
CODES_INLINE __m256i turn_row(const uint8_t *codes, int64_t step, int q, const bool halves)
{
    const uint8_t *const row = codes + q * (halves ? 2 : 1) * step;
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)row);
    if (!halves)
        return x;
    const __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)(row + step));
    return _mm256_or_si256(x, _mm256_slli_epi16(y, 4));
}

/* A square's columns to `to`, TURN_LINE bytes apart. */
CODES_INLINE void turn_square(const uint8_t *codes, int64_t step, const bool halves,
                              uint8_t *to)
{
    __m256i x[2][16];
    ORDER_UNROLL
    for (int q = 0; q < 16; q++) {
        const __m256i upper = turn_row(codes, step, q, halves),
                      lower = turn_row(codes, step, q + 16, halves);
        x[0][q] = _mm256_permute2x128_si256(upper, lower, 0x20);
        x[1][q] = _mm256_permute2x128_si256(upper, lower, 0x31);
    }
    for (int h = 0; h < 2; h++) {
        codes_turn_bytes(x[h]);
        ORDER_UNROLL
        for (int i = 0; i < 16; i++)
            _mm256_storeu_si256((__m256i *)(void *)(to + (16 * h + i) * TURN_LINE), x[h][i]);
    }
}

/* A line of n bytes, at most TURN_LINE; `half`: of the last byte only its lower half. */
static inline void turn_put(uint8_t *to, const uint8_t *line, size_t n, bool half, bool stream)
{
    if (stream) {
        for (int i = 0; i < TURN_LINE; i += 32)
            _mm256_stream_si256((__m256i *)(void *)(to + i),
                                _mm256_load_si256((const __m256i *)(const void *)(line + i)));
        return;
    }
    memcpy(to, line, n - half);
    if (half)
        to[n - 1] = (uint8_t)((to[n - 1] & 0xF0) | (line[n - 1] & 0x0F));
}

CODES_INLINE void turn_all(const struct cast_turn *t, const bool halves)
{
    const size_t n = (size_t)(halves ? (t->rows + 1) / 2 : t->rows);
    const bool half = halves && t->rows % 2, stream = t->stream && n == TURN_LINE &&
                                                      t->step_to % TURN_LINE == 0 &&
                                                      ((uintptr_t)t->to & (TURN_LINE - 1)) == 0;
    for (int64_t c = 0; c < t->n; c += TURN_SIDE) {
        _Alignas(TURN_LINE) uint8_t line[TURN_SIDE * TURN_LINE];
        for (int64_t q = 0; q < (int64_t)n; q += TURN_SIDE)
            turn_square(t->codes + q * (halves ? 2 : 1) * t->step + c, t->step, halves,
                        line + q);
        for (int64_t i = 0; i < TURN_SIDE && c + i < t->n; i++)
            turn_put(t->to + (c + i) * t->step_to, line + i * TURN_LINE, n, half, stream);
    }
    if (stream)
        _mm_sfence();
}

static void turn_codes(const struct cast_turn *t)
{
    if (t->halves)
        turn_all(t, true);
    else
        turn_all(t, false);
}

#endif
