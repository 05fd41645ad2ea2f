/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The array family with lanes = 1 in FP32 fused multiply-adds: 4 rows of A by 32 columns of B.
 *
 * Lanes are columns, so no sum crosses lanes and each lane takes the very steps of
 * docs/numerics.md 4.1: (4) chains from +0, one FMA a row; (5) the foot; (6) the accumulate
 * memory. chain.h says when an FMA is the page's R(acc + x). The limit is the two FMA ports:
 * 8 FMAs take 2 loads of B and 4 broadcasts of A.
 */
#include "../chain.h"
#include "../intrin.h"

enum {
    MR = 4,
    NR = 32,
    VECS = NR / 16
};

static size_t prepared_bytes(const struct gemm_job *g)
{
    return chain_prepared_bytes(g, NR);
}

static void prepare(const struct gemm_job *g, void *prepared)
{
    chain_prepare(g, prepared, NR);
}

struct block {
    __m512 v[MR][VECS];
};

static inline void add(struct block *x, const struct block *y)
{
    for (int r = 0; r < MR; r++)
        for (int q = 0; q < VECS; q++)
            x->v[r][q] = _mm512_add_ps(x->v[r][q], y->v[r][q]);
}

/* One chain: acc = R(acc + a * b) for its rows in order. */
static struct block chain(const float *const a[MR], const float *b, struct chain_rows rows,
                          int64_t used)
{
    struct block acc;
    for (int r = 0; r < MR; r++)
        for (int q = 0; q < VECS; q++)
            acc.v[r][q] = _mm512_setzero_ps();
    for (int64_t s = 0, k = rows.first; s < used; s++, k += rows.step) {
        const __m512 b0 = _mm512_loadu_ps(b + k * NR), b1 = _mm512_loadu_ps(b + k * NR + 16);
        for (int r = 0; r < MR; r++) {
            const __m512 x = _mm512_set1_ps(a[r][k]);
            acc.v[r][0] = _mm512_fmadd_ps(x, b0, acc.v[r][0]);
            acc.v[r][1] = _mm512_fmadd_ps(x, b1, acc.v[r][1]);
        }
    }
    return acc;
}

static void foot(struct block *c, int64_t n, bool tree)
{
    if (!tree) {
        for (int64_t i = 1; i < n; i++)
            add(&c[0], &c[i]);
        return;
    }
    for (; n > 1; n = (n + 1) / 2) {
        for (int64_t i = 0; i < n / 2; i++) {
            struct block sum = c[2 * i];
            add(&sum, &c[2 * i + 1]);
            c[i] = sum;
        }
        if (n % 2)
            c[n / 2] = c[n - 1];
    }
}

static void load_c(const struct gemm_job *g, int64_t i, int64_t j, int64_t rows, int64_t cols,
                   struct block *psum)
{
    float line[NR] = { 0 };
    for (int64_t r = 0; r < MR; r++) {
        if (r < rows)
            chain_load_row(&g->c, i + r, j, cols, line);
        psum->v[r][0] = _mm512_loadu_ps(line);
        psum->v[r][1] = _mm512_loadu_ps(line + 16);
    }
}

/* A NaN can only come from C; it leaves as the rule's. */
static void store_d(const struct gemm_job *g, int64_t i, int64_t j, int64_t rows, int64_t cols,
                    const struct block *psum)
{
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(chain_param(g, NG_PARAM_NAN_F32)));
    float line[NR];
    for (int64_t r = 0; r < rows; r++) {
        for (int q = 0; q < VECS; q++) {
            const __m512 x = psum->v[r][q];
            const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
            _mm512_storeu_ps(line + 16 * q, _mm512_mask_mov_ps(x, is_nan, nan));
        }
        chain_store_row(&g->d, i + r, j, cols, line);
    }
}

static void tile(const struct gemm_job *g, const void *prepared, int64_t i, int64_t j)
{
    const int64_t rows = g->m - i < MR ? g->m - i : MR, cols = g->n - j < NR ? g->n - j : NR;
    const float *all_a = prepared, *b = all_a + g->m * g->k + j / NR * g->k * NR;
    const float *a[MR];
    for (int64_t r = 0; r < MR; r++)
        a[r] = all_a + (r < rows ? i + r : i) * g->k; /* rows past M repeat one, unused */

    const int64_t deep = chain_param(g, NG_PARAM_ROWS) ? chain_param(g, NG_PARAM_ROWS) : g->k;
    const int64_t n = chain_count(g);
    const bool tree = chain_param(g, NG_PARAM_COMBINE) == NG_COMBINE_TREE;
    struct block psum;
    if (g->c.data)
        load_c(g, i, j, rows, cols, &psum);
    for (int64_t k0 = 0; k0 < g->k; k0 += deep) {
        const int64_t depth = g->k - k0 < deep ? g->k - k0 : deep;
        const float *at[MR] = { a[0] + k0, a[1] + k0, a[2] + k0, a[3] + k0 };
        struct block c[CHAIN_MAX];
        for (int64_t x = 0; x < n; x++) { /* (4) */
            const struct chain_rows rows_x = chain_rows_of(g, x, deep);
            c[x] = chain(at, b + k0 * NR, rows_x, chain_used(rows_x, depth));
        }
        foot(c, n, tree); /* (5) */
        if (k0 == 0 && !g->c.data)
            psum = c[0];
        else
            add(&psum, &c[0]); /* (6) */
    }
    store_d(g, i, j, rows, cols, &psum);
}

extern const struct ng_gemm_kernel ng_gemm_chain_4x32__avx512;
const struct ng_gemm_kernel ng_gemm_chain_4x32__avx512 = { .name = "gemm_chain_4x32__avx512",
                                                           .mr = MR,
                                                           .nr = NR,
                                                           .uses_fp = true,
                                                           .accepts = chain_accepts,
                                                           .prepared_bytes = prepared_bytes,
                                                           .prepare = prepare,
                                                           .tile = tile };
