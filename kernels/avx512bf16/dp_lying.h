/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_fma.h for the kernels of single products that multiply by VDPBF16PS, and B where it
 * lies: two positions' columns become pairs in registers, one VPERMT2W for 16 of them; and a
 * panel of lines along k by squares of 16 by 16 pairs, 64 shuffles for 1 KiB.
 */
#ifndef NG_AVX512BF16_DP_LYING_H
#define NG_AVX512BF16_DP_LYING_H

#include "../dp.h"
#include "../ints512.h"

#define FMA_MORE                                                                               \
    .turn = turn, .lies = lies, .note = note, .tile_lying = tile_lying, .tiles = tiles,        \
    .few = { 1024, 8, 3 }, .behind = behind
#include "../dp_note.h"
#include "../gemm_fma.h"
#include "../gemm_lying.h"

/* ---- Facts of rows. ---- */

/* Columns are whole panels. */
static void note(const unsigned char *const *row, int64_t n, int64_t columns,
                 struct gemm_panel *head)
{
    struct codes_facts facts;
    struct note_bounds seen = { _mm512_set1_epi16(-1), _mm512_set1_epi16(-1) };
    codes_facts_begin(&facts);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < columns; c += NOTE_VL)
            note_codes(&seen, _mm512_loadu_si512(row[i] + 2 * c));
    if (!note_settle(&seen, &facts))
        lying_special(row, n, columns, &facts);
    lying_conclude(&facts, head);
}

/* ---- Panels. ---- */

/* 16 lines of 32 positions. */
PACK_INLINE void turn_square(struct note_bounds *seen, const unsigned char *const line[VL],
                             int64_t k, uint32_t *to)
{
    ivec x[VL];
    for (int i = 0; i < VL; i++) {
        x[i] = _mm512_loadu_si512(line[i] + 2 * k);
        note_codes(seen, x[i]);
        x[i] = _mm512_rol_epi32(x[i], 16);
    }
    iv_transpose(x);
    for (int i = 0; i < VL; i++)
        iv_store(to + i * NR, x[i]);
}

static bool turn(const struct gemm_job *g, const struct gemm_walk *w,
                 const unsigned char *const *row, int32_t lines, void *panel)
{
    static const unsigned char zeros[2 * 256];
    struct gemm_panel *head = panel;
    uint32_t *to = (uint32_t *)((unsigned char *)panel + sizeof *head);
    struct codes_facts facts;
    struct note_bounds seen = { _mm512_set1_epi16(-1), _mm512_set1_epi16(-1) };
    if (!lies(g) || g->k > 256 || !pack_runs(w, NOTE_VL))
        return false;
    for (int l = 0; l < NR; l += VL) {
        const unsigned char *line[VL];
        for (int i = 0; i < VL; i++)
            line[i] = l + i < lines ? row[l + i] : zeros;
        for (int64_t p = 0; p < w->used; p += NOTE_VL)
            turn_square(&seen, line, w->k[p], to + p / 2 * NR + l);
    }
    codes_facts_begin(&facts);
    if (!note_settle(&seen, &facts))
        return false;
    lying_conclude(&facts, head);
    return true;
}

/* ---- Tiles. ---- */

/* Two positions, of A at `a`. */
PACK_INLINE void dp_step(const int rows, const int nv, const uint32_t *a, const vec y[NV],
                         struct block *acc)
{
    FMA_UNROLL
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < nv; q++)
        acc->v[r][q] = dp(acc->v[r][q], y[q], dp_all(a + r));
}

/*
 * Rows that are wanted soon. All that a chain asks for at once is more than the first cache can
 * wait for, and the products would wait with it: so some lines with each pair of positions.
 */
static struct gemm_soon dp_take(const struct gemm_tile *t, bool fast)
{
    struct gemm_soon s = *t->soon;
    if (fast) {
        s.lines = s.step * ((s.bytes + 63) / 64);
        s.step = 0;
    }
    return s;
}

static void dp_give(const struct gemm_tile *t, const struct gemm_soon *s)
{
    t->soon->row = s->row;
    t->soon->rows = s->rows;
    t->soon->at = s->at;
}

/* What a chain asks for, in registers. */
struct dp_soon {
    const unsigned char *const *row;
    int64_t rows, at, bytes, each; /* each: lines a pair of positions */
};

PACK_INLINE struct dp_soon dp_begin(const struct fma *f, const struct chain *c)
{
    const struct gemm_soon *s = f->soon;
    if (!s || !s->lines || s->rows <= 0 || c->n == 0)
        return (struct dp_soon){ 0 };
    return (struct dp_soon){ .row = s->row,
                             .rows = s->rows,
                             .at = s->at,
                             .bytes = s->bytes,
                             .each = (2 * s->lines + c->n - 1) / c->n };
}

PACK_INLINE void dp_ask(struct dp_soon *s)
{
    for (int64_t i = 0; i < s->each; i++) {
        __builtin_prefetch(*s->row + s->at);
        s->at += 64;
        if (s->at >= s->bytes) {
            s->at = 0;
            s->row++;
            if (--s->rows == 0)
                s->each = 0;
        }
    }
}

PACK_INLINE void dp_end(const struct fma *f, const struct dp_soon *s)
{
    if (!s->row)
        return;
    f->soon->row = s->row;
    f->soon->rows = s->rows;
    f->soon->at = s->at;
}

PACK_INLINE void dp_lying_run(struct fma *f, const int rows, const struct chain *c)
{
    const uint32_t *a = f->a + c->from / 2 * MR;
    const unsigned char *const *row = f->lying->row + (c->from - f->lying->first);
    const int64_t at = 2 * f->lying->column;
    struct dp_soon soon = dp_begin(f, c);
    struct block acc;
    fma_begin(f, rows, NV, 0, &acc);
    for (int64_t p = 0; p < c->n; p += 2, a += MR, row += 2) {
        __m512i pairs[NV];
        vec y[NV];
        FMA_UNROLL
        for (int q = 0; q < NV; q += 2)
            codes_pairs(_mm512_loadu_si512(row[0] + at + 2 * q * VL),
                        _mm512_loadu_si512(row[1] + at + 2 * q * VL), pairs + q);
        FMA_UNROLL
        for (int q = 0; q < NV; q++)
            y[q] = iv_float(pairs[q]);
        dp_step(rows, NV, a, y, &acc);
        dp_ask(&soon);
    }
    dp_end(f, &soon);
    fma_end(f, rows, NV, 0, c, &acc);
}

FMA_RUNNERS(lying, false, WAY_LYING)
FMA_INSTANCES(dp_lying)

static gemm_way tile_lying(const struct gemm_job *g, const struct gemm_walk *w,
                           const struct gemm_tile *t, const struct gemm_lying *b)
{
    static fma_runner *const lying_runners[2][MR] = { FMA_LINE(lying), FMA_LINE(dp_lying) };
    const bool fast = never_subnormal(t->a, b->head);
    if (!t->soon)
        return lying_tile(g, w, t, b, lying_runners[fast]);
    struct gemm_soon soon = dp_take(t, fast);
    struct gemm_tile own = *t;
    own.soon = &soon;
    const gemm_way way = lying_tile(g, w, &own, b, lying_runners[fast]);
    dp_give(t, &soon);
    return way;
}

#endif
