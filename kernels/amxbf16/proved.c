/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of this ISA take TDPBF16PS and TDPBSSD for, asked of the CPU at hand. The
 * one: C = RN(C + s), s
 * the exact sum of a row's products, ties to even whatever MXCSR says. C's exponents lie above,
 * among and below those of s, so that a sum of the products one by one, another rounding, or a
 * word or an element in the wrong place shows in a bit. The other: integers.
 */
#include "proved.h"

#include "../widen.h"
#include "tiles.h"

enum {
    ROUNDS = 8,
    MOST_WORDS = 16
};

static uint32_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* -15 to 15, times 1 or 2^-4; as FP32, whose lower half is zero. */
static float any_value(uint64_t *state)
{
    const uint32_t w = next(state);
    const float x = (float)(int32_t)(w & 15u);
    return (w & 16u ? -x : x) * (w & 32u ? 1.0F : 0.0625F);
}

static uint32_t pair(float even, float odd)
{
    return as_pattern(odd) | as_pattern(even) >> 16;
}

struct operands {
    float c[TILE_ROWS][TILE_WORDS], got[TILE_ROWS][TILE_WORDS];
    float a[TILE_ROWS][2 * MOST_WORDS], b[2 * MOST_WORDS][TILE_WORDS];
    uint32_t row[TILE_ROWS][MOST_WORDS], column[MOST_WORDS][TILE_WORDS];
};

static void draw(struct operands *x, uint64_t *state, int words)
{
    for (int w = 0; w < words; w++)
        for (int i = 0; i < TILE_ROWS; i++) {
            for (int h = 0; h < 2; h++) {
                x->a[i][2 * w + h] = any_value(state);
                x->b[2 * w + h][i] = any_value(state);
            }
            x->row[i][w] = pair(x->a[i][2 * w], x->a[i][2 * w + 1]);
            x->column[w][i] = pair(x->b[2 * w][i], x->b[2 * w + 1][i]);
        }
    for (int r = 0; r < TILE_ROWS; r++)
        for (int c = 0; c < TILE_WORDS; c++) /* 2^-16 to 2^32 */
            x->c[r][c] =
                as_float((next(state) & 0x807FFFFFu) | (111u + next(state) % 48u) << 23);
}

/* `rows` rows; the others of x->got stay. */
static void multiply(struct operands *x, int rows, int words)
{
    const unsigned keep = _mm_getcsr();
    _mm_setcsr(0xFFC0u); /* another rounding, and flushes */
    tiles_begin(rows, words);
    TILE_LOAD(TILE_C0, x->c, sizeof x->c[0]);
    TILE_LOAD(TILE_A, x->row, sizeof x->row[0]);
    TILE_LOAD(TILE_B0, x->column, sizeof x->column[0]);
    TILE_MULTIPLY(TILE_C0, TILE_A, TILE_B0);
    TILE_STORE(TILE_C0, x->got, sizeof x->got[0]);
    tiles_end();
    _mm_setcsr(keep);
}

static bool agrees(const struct operands *x, int rows, int words)
{
    for (int r = 0; r < TILE_ROWS; r++)
        for (int c = 0; c < TILE_WORDS; c++) {
            float s = 0;
            for (int k = 0; k < 2 * words; k++)
                s += x->a[r][k] * x->b[k][c]; /* exact: below 2^13, multiples of 2^-8 */
            const float want = r < rows ? x->c[r][c] + s : 0;
            if (as_pattern(want) != as_pattern(x->got[r][c]))
                return false;
        }
    return true;
}

/* TDPBSSD, all bytes and sums of any size. */
static bool bytes_agree(uint64_t *state, int rows, int words)
{
    int32_t c[TILE_ROWS][TILE_WORDS], got[TILE_ROWS][TILE_WORDS] = { { 0 } };
    int8_t a[TILE_ROWS][4 * MOST_WORDS], b[MOST_WORDS][4 * TILE_WORDS];
    for (int r = 0; r < TILE_ROWS; r++) {
        for (int i = 0; i < 4 * MOST_WORDS; i++) {
            a[r][i] = (int8_t)(next(state) & 255u);
            b[r][i] = (int8_t)(next(state) & 255u);
        }
        for (int i = 0; i < TILE_WORDS; i++)
            c[r][i] = (int32_t)next(state) / 2; /* no sum leaves 32 bits */
    }
    tiles_begin(rows, words);
    TILE_LOAD(TILE_C0, c, sizeof c[0]);
    TILE_LOAD(TILE_A, a, sizeof a[0]);
    TILE_LOAD(TILE_B0, b, sizeof b[0]);
    TILE_MULTIPLY_BYTES(TILE_C0, TILE_A, TILE_B0);
    TILE_STORE(TILE_C0, got, sizeof got[0]);
    tiles_end();
    for (int r = 0; r < TILE_ROWS; r++)
        for (int i = 0; i < TILE_WORDS; i++) {
            int32_t want = r < rows ? c[r][i] : 0;
            for (int k = 0; r < rows && k < 4 * words; k++)
                want += a[r][k] * b[k / 4][4 * i + k % 4];
            if (want != got[r][i])
                return false;
        }
    return true;
}

bool ng_kernels_amxbf16_proved(void)
{
    uint64_t state = 24;
    for (int i = 0; i < ROUNDS; i++) {
        const int rows = 1 + (i * 5 + 15) % TILE_ROWS,
                  words = i % 4 == 3 ? MOST_WORDS : 1 << i % 4;
        struct operands x;
        memset(x.got, 0, sizeof x.got);
        draw(&x, &state, words);
        multiply(&x, rows, words);
        if (!agrees(&x, rows, words) || !bytes_agree(&state, rows, words))
            return false;
    }
    return true;
}
