/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chains of single products of bf16 and narrower values: 6 rows of A by 64 columns of B, two
 * positions an instruction. 24 accumulators cover its latency of 6 at two a cycle; 4 vectors of
 * B; A is a broadcast operand. Per pair: 10 loads to 24 VDPBF16PS, which is 12 cycles. The
 * additions that end a chain run on other ports than the products.
 *
 * Where a value or a sum may be subnormal the FMA of gemm_fma.h takes the tile, on the same
 * panels; past FP32's range exact.h.
 */
#include "../dp.h"

enum {
    MR = 6,
    NV = 4,
    SUMS = 24,
    A_PAIRS = 1
};
#define FMA_EACH FMA_EACH_6
#define FMA_PACK pack_or_six

#include "dp_lying.h"

#include "dp_six.h"

/* Few rows read bytes as they are. */
PACK_INLINE void dp_single(const int rows, const int q, const uint32_t *a, vec_pairs y,
                           struct block *acc)
{
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        acc->v[r][q] = dp_at(acc->v[r][q], iv_float(y), a + r);
}

#define SLIM_FAST(a, b) never_subnormal(a, b)
#define BYTES_SINGLE    dp_single
#include "../gemm_bytes.h"

static const char *refuses(const struct gemm_job *g)
{
    return fma_refuses(g, false);
}

/* What else comes nearer while they run. */
enum dp_wish {
    DP_NOTHING,
    DP_A,   /* A's next words: see fma_ask_a() */
    DP_B,   /* B's next words: it comes from memory, or its next panel does */
    DP_SOON /* rows that are wanted soon */
};

PACK_INLINE void dp_chain(struct fma *f, const int rows, const enum dp_wish wish,
                          const struct chain *c)
{
    const uint32_t *a = f->a + c->from / 2 * MR, *b = f->b + c->from / 2 * NR;
    struct soon_lines soon = { 0 };
    int64_t ahead[NV];
    if (wish == DP_SOON)
        soon = soon_begin(f, c->n, 1);
    for (int q = 0; wish == DP_B && q < NV; q++)
        ahead[q] = fma_ahead(f, q);
    struct block acc;
    fma_begin(f, rows, NV, 0, &acc);
    for (int64_t p = 0; p < c->n; p += 2, a += MR, b += NR) {
        vec y[NV];
        FMA_UNROLL
        for (int q = 0; q < NV; q++) {
            y[q] = dp_load(b + q * VL);
            if (wish == DP_B)
                __builtin_prefetch(b + q * VL + ahead[q]);
        }
        dp_step(rows, NV, a, y, &acc);
        if (wish == DP_SOON)
            soon_ask(&soon);
        else if (wish == DP_A)
            fma_ask_a(a);
    }
    fma_end(f, rows, NV, 0, c, &acc);
    if (wish == DP_SOON)
        soon_end(f, &soon);
}

/*
 * Two chains of the same length, the second one's sums added to the first one's, in as many
 * columns as registers hold twice: a store of each would keep the multiplying ports waiting
 * (README.md, "What a 32-row chain costs").
 */
PACK_INLINE void dp_two_run(struct fma *f, const int rows, const struct chain *first,
                            const struct chain *second)
{
    const int nv = 2 * rows * NV <= SUMS ? NV : NV / 2;
    for (int col = 0; col < NR; col += nv * VL) {
        const uint32_t *a[2] = { f->a + first->from / 2 * MR, f->a + second->from / 2 * MR },
                       *b[2] = { f->b + first->from / 2 * NR + col,
                                 f->b + second->from / 2 * NR + col };
        struct block acc[2];
        ORDER_APART(a[1]);
        ORDER_APART(b[1]);
        fma_zero(rows, nv, &acc[0]);
        fma_zero(rows, nv, &acc[1]);
        for (int64_t p = 0; p < first->n; p += 2) {
            FMA_UNROLL
            for (int i = 0; i < 2; i++) {
                vec y[NV];
                FMA_UNROLL
                for (int q = 0; q < nv; q++)
                    y[q] = dp_load(b[i] + q * VL);
                dp_step(rows, nv, a[i], y, &acc[i]);
                if (col == 0)
                    fma_ask_a(a[i]);
                a[i] += MR;
                b[i] += NR;
            }
        }
        fma_join(f, rows, nv, col, first, second, acc);
    }
}

#define DP_RUNNERS(name, wish)                                                                 \
    PACK_INLINE void name##_run(struct fma *f, const int rows, const struct chain *c)          \
    {                                                                                          \
        dp_chain(f, rows, wish, c);                                                            \
    }
DP_RUNNERS(dp, DP_A)
DP_RUNNERS(dp_far, DP_A)
DP_RUNNERS(dp_once, DP_NOTHING)
DP_RUNNERS(dp_b, DP_B)
DP_RUNNERS(dp_soon, DP_SOON)
FMA_TWO_INSTANCES(dp)
FMA_INSTANCES(dp_far)
FMA_INSTANCES(dp_once)
FMA_INSTANCES(dp_b)
FMA_INSTANCES(dp_soon)

FMA_RUNNERS(chain, true, WAY_FMA)

enum {
    FAR = 2048 /* positions: 256 KiB of 64 columns */
};

/* A stretch of B that is more than a quarter of a second cache of 1 MiB, of which A's panels
 * have most, comes from farther off: in whole lines one after another, as dp_two_run() does not
 * ask. */
static bool dp_is_far(const struct gemm_walk *w, const struct gemm_tile *t)
{
    return (w->whole ? t->to - t->from : w->start[t->to] - w->start[t->from]) > FAR;
}

static fma_runner *pick(const struct fma *f, const struct gemm_tile *t)
{
    static fma_runner *const two[MR] = FMA_LINE(dp), *const far[MR] = FMA_LINE(dp_far),
                             *const once[MR] = FMA_LINE(dp_once),
                             *const from_b[MR] = FMA_LINE(dp_b),
                             *const soon[MR] = FMA_LINE(dp_soon),
                             *const single[MR] = FMA_LINE(chain);
    const bool asks = soon_has_lines(f);
    fma_runner *const *run = two;
    if (!never_subnormal(t->a, t->b))
        run = single;
    else if (asks)
        run = soon;
    else if (fma_asks(f))
        run = from_b;
    else if (f->once)
        run = once;
    else if (dp_is_far(f->w, t))
        run = far;
    return run[t->rows - 1];
}

static gemm_way tile(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t)
{
    return fma_tile_soon(g, w, t, pick, never_subnormal(t->a, t->b) && !t->fresh && !t->next);
}

static bool tiles(const struct gemm_job *g, const struct gemm_walk *w,
                  const struct gemm_tile *t, const struct gemm_run *run)
{
    return fma_tiles(g, w, t, run, pick, NULL);
}

/* By FMA 1024^3 has 1.5 of its rate on such a CPU, 8 rows 1.3, one row the same. */
static bool behind(const struct gemm_job *g)
{
    (void)g;
    return true;
}

FMA_KERNEL(gemm_bf16_6x64__avx512bf16);
