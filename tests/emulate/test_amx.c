/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amx.h against the CPU's own TDPBF16PS and TDPBSSD, on every bit: what kernels/amxbf16/tiles.h
 * says that they compute, rounded sums, subnormal numbers, Inf and NaN among them, under every
 * control word.
 */
#include <cpuid.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../kernels/amxbf16/tiles.h"
#include "amx.h"

enum {
    ROUNDS = 4000,
    REQUEST_PERMISSION = 0x1023, /* Linux: ARCH_REQ_XCOMP_PERM, of XTILEDATA */
    TILE_DATA = 18
};

static uint64_t state = 1;

static uint32_t draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* Two bf16; `mood` 0: of all exponents, 1: near 1, 2: any codes, 3: near the least. */
static uint32_t any_pair(int mood)
{
    const uint32_t w = draw(), e = draw();
    switch (mood) {
    case 0: return (w & 0x807F807Fu) | (64 + (e & 127)) << 23 | (64 + (e >> 8 & 127)) << 7;
    case 1: return (w & 0x807F807Fu) | (124 + (e & 7)) << 23 | (124 + (e >> 8 & 7)) << 7;
    case 2: return w;
    default: return (w & 0x807F807Fu) | (58 + (e & 15)) << 23 | (58 + (e >> 8 & 15)) << 7;
    }
}

static uint32_t any_float(int mood)
{
    const uint32_t w = draw(), e = draw();
    return mood == 2   ? w
           : mood == 3 ? (w & 0x807FFFFFu) | (e % 12) << 23
                       : (w & 0x807FFFFFu) | (100 + e % 54) << 23;
}

static bool is_nan(uint32_t u)
{
    return (u & 0x7FFFFFFFu) > 0x7F800000u;
}

struct operands {
    uint32_t c[TILE_ROWS][TILE_WORDS], a[TILE_ROWS][16], b[16][TILE_WORDS];
    uint32_t cpu[TILE_ROWS][TILE_WORDS], emulated[TILE_ROWS][TILE_WORDS];
};

/* `bytes`: by TDPBSSD. */
static void by_cpu(struct operands *x, bool bytes, int rows, int words)
{
    const unsigned keep = _mm_getcsr();
    _mm_setcsr(0x1F80u | (draw() & 0xE040u)); /* rounding, FTZ, DAZ */
    tiles_begin(rows, words);
    TILE_LOAD(TILE_C0, x->c, sizeof x->c[0]);
    TILE_LOAD(TILE_A, x->a, sizeof x->a[0]);
    TILE_LOAD(TILE_B0, x->b, sizeof x->b[0]);
    if (bytes)
        TILE_MULTIPLY_BYTES(TILE_C0, TILE_A, TILE_B0);
    else
        TILE_MULTIPLY(TILE_C0, TILE_A, TILE_B0);
    TILE_STORE(TILE_C0, x->cpu, sizeof x->cpu[0]);
    tiles_end();
    _mm_setcsr(keep);
}

static void by_emulation(struct operands *x, bool bytes, int rows, int words)
{
    const struct tile_config c = tiles_of(rows, words);
    ng_emu_tile_config(c.row_bytes, c.rows);
    ng_emu_tile_load(TILE_C0, x->c, sizeof x->c[0]);
    ng_emu_tile_load(TILE_A, x->a, sizeof x->a[0]);
    ng_emu_tile_load(TILE_B0, x->b, sizeof x->b[0]);
    if (bytes)
        ng_emu_tile_multiply_bytes(TILE_C0, TILE_A, TILE_B0);
    else
        ng_emu_tile_multiply(TILE_C0, TILE_A, TILE_B0);
    ng_emu_tile_store(TILE_C0, x->emulated, sizeof x->emulated[0]);
    ng_emu_tile_release();
}

/* Of one round: elements that differ. */
static int differing(int round)
{
    static struct operands x;
    const int rows = 1 + (int)(draw() % TILE_ROWS), words = 1 + (int)(draw() % 16),
              mood = round % 5 % 4;
    const bool bytes = round % 5 == 4;
    int n = 0;
    memset(&x, 0, sizeof x);
    for (int r = 0; r < TILE_ROWS; r++)
        for (int i = 0; i < 16; i++) {
            x.a[r][i] = any_pair(mood);
            x.b[i][r] = any_pair(mood);
            x.c[r][i] = any_float(mood);
            if (bytes) {
                x.a[r][i] = draw();
                x.b[i][r] = draw();
                x.c[r][i] = draw();
            }
        }
    by_cpu(&x, bytes, rows, words);
    by_emulation(&x, bytes, rows, words);
    for (int r = 0; r < TILE_ROWS; r++)
        for (int c = 0; c < TILE_WORDS; c++) {
            const uint32_t got = x.cpu[r][c], want = x.emulated[r][c];
            if (got == want || (!bytes && is_nan(got) && is_nan(want)))
                continue;
            if (n++ == 0)
                printf("FAIL: round %d, %d rows of %d words, mood %d%s: element %d, %d is %08x "
                       "on the CPU, %08x emulated\n",
                       round, rows, words, mood, bytes ? ", bytes" : "", r, c, got, want);
        }
    return n;
}

static bool has_tiles(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) &&
           (d >> 25 & 1) && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

int main(void)
{
    int failed = 0;
    if (!has_tiles()) {
        puts("skipped: no AMX-BF16 and AMX-INT8 on this CPU, or the system does not save its "
             "registers");
        return 77;
    }
    for (int i = 0; i < ROUNDS; i++)
        failed += differing(i) != 0;
    printf("%d rounds, %d failed\n", ROUNDS, failed);
    return failed != 0;
}
