/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How GEMM kernels write psum to D: every pattern as it is but NaNs, tiles of every height and
 * width, rows and columns close together or far apart, aligned or not; psum and D end at (or
 * begin after) unreadable pages, and what lies between stays.
 */
#include "ngc.h"

#include <stdio.h>
#include <string.h>

#include "../../kernels/kernel.h"

enum {
    GAP = 96, /* bytes between two rows of D, at most */
    ROOM = 1 << 17
};

/* Each block lies between unreadable pages. */
static struct {
    struct ngc_mem psum, d, want;
} mem;

struct round {
    const struct ng_gemm_kernel *kernel;
    struct gemm_write w;
};

static uint32_t pattern(struct ngc_rng *g)
{
    static const uint32_t corner[] = { 0,          0x80000000, 1,          0x807FFFFF,
                                       0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001,
                                       0xFF800001, 0x7FC00000, 0xFFFFFFFF, 0x7FFFFFFF };
    return ngc_one_in(g, 2) ? corner[ngc_below(g, sizeof corner / sizeof corner[0])]
                            : (uint32_t)ngc_next(g);
}

static void run_kernel(void *arg)
{
    const struct round *r = arg;
    r->kernel->write(&r->w);
}

/* What is wrong, or NULL. */
static const char *run_round(const struct ng_gemm_kernel *k, struct ngc_rng *g)
{
    struct gemm_write w = { .rows = ngc_between(g, 1, k->mr),
                            .columns = ngc_one_in(g, 2) ? k->nr : ngc_between(g, 1, k->nr),
                            .nan = ngc_one_in(g, 2) ? 0x7FC00000 : 0x7FFFFFFF };
    const bool lines = ngc_one_in(g, 2), aligned = ngc_one_in(g, 2), at_end = ngc_one_in(g, 2);
    w.d_col = ngc_one_in(g, 3) ? 4 * ngc_between(g, 2, 5) : 4;
    const int64_t row = w.d_col * (w.columns - 1) + 4, wide = row + ngc_between(g, 0, GAP);
    w.d_row = lines ? (wide + 63) / 64 * 64 : wide;
    const size_t bytes = (size_t)(w.d_row * (w.rows - 1) + row);
    if (!ngc_mem_place(&mem.psum, (size_t)(w.rows * k->nr) * 4, 4, at_end) ||
        !ngc_mem_place(&mem.d, aligned ? (bytes + 63) / 64 * 64 : bytes, aligned ? 64 : 1,
                       at_end) ||
        !ngc_mem_place(&mem.want, mem.d.bytes, aligned ? 64 : 1, at_end))
        return "no room";
    for (int64_t i = 0; i < w.rows * k->nr; i++)
        ngc_store(mem.psum.data, 32, i, pattern(g));
    for (int64_t r = 0; r < w.rows; r++)
        for (int64_t c = 0; c < w.columns; c++) {
            const uint32_t x = ngc_load(mem.psum.data, 32, r * k->nr + c),
                           y = (x & 0x7FFFFFFFu) > 0x7F800000u ? w.nan : x;
            memcpy(mem.want.data + r * w.d_row + c * w.d_col, &y, sizeof y);
        }
    ngc_mem_keep(&mem.psum);
    w.psum = (const float *)(const void *)mem.psum.data;
    w.d = mem.d.data;
    struct round r = { k, w };
    const int crashed = ngc_catch(run_kernel, &r);
    if (crashed)
        return ngc_signal_text(crashed);
    if (!ngc_mem_kept(&mem.psum))
        return "wrote to psum";
    return ngc_mem_equal(&mem.d, &mem.want) ? NULL : "D differs";
}

static void walk_kernel(struct ngc *run, const struct ng_gemm_kernel *k)
{
    char name[120];
    (void)snprintf(name, sizeof name, "%s/write", k->name);
    if (!ngc_begin_case(run, name))
        return;
    struct ngc_rng g = { ngc_hash(name, run->seed) };
    for (uint32_t i = 0; i < run->rounds; i++) {
        const char *wrong = run_round(k, &g);
        run->rounds_run++;
        if (wrong) {
            printf("FAIL: %s: round %u, seed %llu: %s\n", name, i,
                   (unsigned long long)run->seed, wrong);
            run->failed++;
            return;
        }
    }
}

void ngc_check_write(struct ngc *run)
{
    if (!ngc_mem_open(&mem.psum, ROOM) || !ngc_mem_open(&mem.d, ROOM) ||
        !ngc_mem_open(&mem.want, ROOM)) {
        printf("FAIL: no memory for tiles\n");
        run->failed++;
        return;
    }
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        if (isa.bit == NG_ISA_REF)
            continue; /* it writes element by element */
        for (const struct ng_gemm_kernel *const *k = isa.kernels->gemm; *k; k++)
            if (ngc_begin_kernel(run, &isa, (*k)->name))
                walk_kernel(run, *k);
    }
}
