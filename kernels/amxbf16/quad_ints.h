/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows of four lanes against a slim panel of E2M1 codes, in integers: on these CPUs a
 * VDPBF16PS starts every other cycle, VPDPWSSD two a cycle. A doubled E2M1 value is an integer
 * of at most 12; a row's four elements of A are integers of 16 bits over one unit, the row's
 * own, if their bits span no more; so two VPDPWSSD have the sum of a row of lanes, exactly. It
 * joins the chain by an FMA with the unit: one rounding of the same sum as in gemm_slim.h,
 * whose chain without the block's scale this is. Rows of lanes that span more go as there.
 *
 * A's panels of few lines have behind all else, row of lanes after row of lanes:
 *   words  [line][2]: integers, the earlier of two in the upper half
 *   FP32   [line]: half the unit
 * and behind these a byte for each: 1 where a line's elements are no such integers.
 */
#ifndef NG_AMXBF16_QUAD_INTS_H
#define NG_AMXBF16_QUAD_INTS_H

enum {
    INTS_LINES = 4, /* no more: with five B grows and goes by tiles as fast */
    INTS_WORDS = 3, /* of a line's row of lanes */
    INTS_STEP = 4,
    INTS_TOGETHER = 32, /* positions that ask but once */
    INTS_TOP = 14       /* the highest bit of the largest element */
};

struct ints_parts {
    size_t words, wide, bytes;
};

static inline struct ints_parts ints_parts(const struct gemm_job *g, const struct gemm_walk *w)
{
    const size_t rows = (size_t)(w->depth / INTS_STEP),
                 before = panel_parts(g, w, MR, true).bytes;
    struct ints_parts p = { .words = before, .wide = before, .bytes = before };
    if (w->step != INTS_STEP || g->b.spec->format != NG_E2M1 || g->fp4)
        return p;
    p.wide = p.words + panel_up(4 * INTS_WORDS * INTS_LINES * rows);
    p.bytes = p.wide + panel_up(rows); /* whole eights of them are read together */
    return p;
}

/* The larger magnitudes' exponents of each line's elements, two words side by side. */
PACK_INLINE ivec ints_exponents(ivec first, ivec second)
{
    const ivec mask = iv_all(0x7F800000u),
               most = iv_max_u(iv_and(first, mask), iv_and(second, mask));
    return iv_max_u(most, iv_swap(most));
}

/* x times a power of two as integers; *wide: lanes whose product is none, NaN among them. */
PACK_INLINE ivec ints_of(vec x, vec by, imask *wide)
{
    const vec y = vec_mul(x, by);
    const ivec n = _mm512_cvtps_epi32(y);
    *wide = im_or(*wide, _mm512_cmp_ps_mask(iv_to_float(n), y, _CMP_NEQ_UQ));
    return n;
}

/* One row of lanes of up to INTS_LINES lines. */
PACK_INLINE bool ints_row(const uint32_t *pairs, int32_t lines, uint32_t *to)
{
    const ivec even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const imask kept = (imask)((1u << 2 * lines) - 1u);
    const ivec x = iv_load(pairs), first = iv_and(x, iv_all(0xFFFF0000u)),
               second = iv_sll_by(x, 16);
    /* the unit's half is a normal number, and so is its inverse */
    const ivec most = iv_max_u(ints_exponents(first, second), iv_all((INTS_TOP + 2u) << 23)),
               by = iv_sub(iv_all((254u + INTS_TOP) << 23), most),
               half = iv_sub(most, iv_all((INTS_TOP + 1u) << 23));
    imask wide = 0;
    const ivec upper = ints_of(iv_float(first), iv_float(by), &wide),
               lower = ints_of(iv_float(second), iv_float(by), &wide);
    _mm512_mask_storeu_epi32(to, kept,
                             iv_or(iv_sll_by(upper, 16), iv_and(lower, iv_all(0xFFFF))));
    _mm512_mask_storeu_epi32(to + 2 * lines, (imask)((1u << lines) - 1u),
                             _mm512_permutexvar_epi32(even, half));
    return im_any(im_and(wide, kept));
}

/* A panel that is packed gets its integers. */
static void ints_pack(const struct gemm_job *g, const struct gemm_walk *w, int32_t lines,
                      void *panel)
{
    const struct ints_parts p = ints_parts(g, w);
    struct gemm_panel *const head = panel;
    head->ints = p.bytes > p.words && lines <= INTS_LINES;
    if (!head->ints)
        return;
    const uint32_t *pairs = (const uint32_t *)panel + sizeof *head / 4;
    uint32_t *to = (uint32_t *)(void *)((unsigned char *)panel + p.words);
    uint8_t *wide = (uint8_t *)panel + p.wide;
    for (int64_t q = 0; q < w->used / INTS_STEP; q++) {
        *wide++ = ints_row(pairs, lines, to);
        pairs += 2 * MR;
        to += INTS_WORDS * lines;
    }
}

/* ---- Products. ---- */

struct ints {
    const uint32_t *words;
    const uint8_t *wide;
    struct vec_codes table; /* doubled values */
};

static struct ints ints_begin(const struct gemm_job *g, const struct gemm_walk *w,
                              const void *panel)
{
    static const uint16_t twice[32] = {
#define INTS_VALUES 0, 1, 2, 3, 4, 6, 8, 12
#define INTS_MINUS  0, 0xFFFF, 0xFFFE, 0xFFFD, 0xFFFC, 0xFFFA, 0xFFF8, 0xFFF4 /* in 16 bits */
        INTS_VALUES, INTS_MINUS, INTS_VALUES, INTS_MINUS
    };
    const struct ints_parts p = ints_parts(g, w);
    const unsigned char *const base = panel;
    return (struct ints){ .words = (const uint32_t *)(const void *)(base + p.words),
                          .wide = base + p.wide,
                          .table = { iv_load(twice) } };
}

/* acc += four positions, `at` of SLIM_DEEP. */
PACK_INLINE void ints_step(const struct vec_codes *table, const int rows, const uint32_t *words,
                           const uint8_t *codes, const int at, struct block *acc)
{
    const float *const unit = (const float *)words + 2 * rows;
    ivec y[2][NV];
    FMA_UNROLL
    for (int i = 0; i < 2; i++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++)
        vec_decode(table, codes, NR, at + 2 * i, q * VL, &y[i][q]);
    FMA_UNROLL
    for (int r = 0; r < rows; r++) {
        const vec by = vec_all(unit + r);
        FMA_UNROLL
        for (int q = 0; q < NV; q++) {
            ivec sum = iv_all(0);
            FMA_UNROLL
            for (int i = 0; i < 2; i++)
                sum = _mm512_dpwssd_epi32(sum, y[i][q], iv_all(words[2 * r + i]));
            acc->v[r][q] = vec_fma(iv_to_float(sum), by, acc->v[r][q]);
        }
    }
}

/* The row of lanes at p. */
PACK_INLINE void ints_or_slim(const struct fma *f, const struct ints *x, const int rows,
                              int64_t p, const uint8_t *codes, const int at, struct block *acc)
{
    const int64_t row = p / INTS_STEP;
    if (__builtin_expect(!x->wide[row], 1))
        ints_step(&x->table, rows, x->words + row * (INTS_WORDS * rows), codes, at, acc);
    else
        slim_step(f, rows, 0, NV / SLIM_HALF, f->a + fma_words(A_PAIRS, MR, p), codes, at, acc);
}

/* Are INTS_TOGETHER positions from p on one block's, and none of their rows of lanes wide? */
PACK_INLINE bool ints_together(const struct gemm_walk *w, const struct ints *x, int64_t p)
{
    uint64_t wide;
    const ivec block = iv_all((uint32_t)w->block[p]);
    memcpy(&wide, x->wide + p / INTS_STEP, sizeof wide);
    return !wide && w->block[p] >= 0 &&
           !im_any((imask)~im_and(iv_eq(block, iv_load(w->block + p)),
                                  iv_eq(block, iv_load(w->block + p + VL))));
}

/* slim_part() in integers. */
PACK_INLINE void ints_run(struct fma *f, const int rows, const struct chain *c)
{
    const struct gemm_walk *w = f->w;
    const struct ints x = *(const struct ints *)f->own;
    const int64_t last = slim_code_bytes(4, w, NR) - SLIM_AHEAD, to = c->from + c->n;
    struct slim_held held = { slim_ones, -1 };
    struct block acc;
    fma_begin(f, rows, NV, 0, &acc);
    for (int64_t p = c->from, n; p < to; p += n) {
        n = INTS_STEP;
        if (!slim_at(f, rows, NV, 0, p, INTS_STEP, &held, &acc))
            continue;
        const uint8_t *codes = f->codes + slim_before(4, p, NR);
        if (p % SLIM_DEEP) {
            ints_or_slim(f, &x, rows, p, codes, 4, &acc);
        } else if (p + INTS_TOGETHER <= to && ints_together(w, &x, p)) {
            const uint32_t *words = x.words + p / INTS_STEP * (INTS_WORDS * rows);
            n = INTS_TOGETHER;
            for (int i = 0; i < INTS_TOGETHER; i += SLIM_DEEP) {
                slim_nearer(f, rows, codes, SLIM_AHEAD, last);
                ints_step(&x.table, rows, words, codes, 0, &acc);
                words += INTS_WORDS * rows;
                ints_step(&x.table, rows, words, codes, 4, &acc);
                words += INTS_WORDS * rows;
                codes += SLIM_DEEP / 2 * NR;
            }
        } else {
            slim_nearer(f, rows, codes, SLIM_AHEAD, last);
            ints_or_slim(f, &x, rows, p, codes, 0, &acc);
            if (p + SLIM_DEEP <= to && w->block[p + INTS_STEP] == held.block) {
                n = SLIM_DEEP;
                ints_or_slim(f, &x, rows, p + INTS_STEP, codes, 4, &acc);
            }
        }
    }
    slim_hold(rows, NV, held.scales, slim_ones, &acc);
    fma_end(f, rows, NV, 0, c, &acc);
}

FMA_INSTANCES(ints)

static gemm_way tile_ints(const struct gemm_job *g, const struct gemm_walk *w,
                          const struct gemm_tile *t)
{
    static fma_runner *const runners[INTS_LINES] = FMA_LINE(ints);
    const struct ints x = ints_begin(g, w, t->a);
    return slim_tile(g, w, t, runners, &x);
}

#endif
