/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of two MXFP4 operands for TDPBSSD. A doubled E2M1 value is at most 12, so three more
 * bits of a byte are free: where the scales of a line's blocks lie no more than 2^3 apart,
 * their values are shifted to the least of these scales and all of them are integers over one
 * unit. So are the products of a run of positions, and a sum of many blocks is one integer.
 *
 * Runs are of 512 positions, 64 or 32 (a block, nothing shifted), counted from the walk's
 * beginning; the longest that all lines of a panel allow is its `run`. Blocks of zeros have no
 * scale of their own.
 *
 * A's panels are packed (panel_e2m1.h, 32 rows, woven), then shifted where they lie: every
 * block of a run has the run's scale. B's stay codes (what ng_pack keeps), and grow:
 *
 *   the panel of codes, as it was
 *   powers   [block][NR] scale codes: its run's
 *   bytes    [quad][NR][4], signed; up to a multiple of 64 positions: what is behind the last
 *            block is any, A's are zeros there
 */
#ifndef NG_AMXBF16_E2M1_FOLD_H
#define NG_AMXBF16_E2M1_FOLD_H

enum {
    FOLD_BITS = 3,
    FOLD_WIDTH = 2 /* vectors of 16 lines: A's rows, B's columns */
};

/* Positions that are one run, longest first. */
static const int32_t fold_runs[] = { 512, 64 };

/* Scales of 16 lines in FP32 patterns: the least and the largest of blocks seen so far that are
 * not zero, less 1, and whether one was NaN. */
struct fold {
    ivec least, most;
    imask nan;
};

PACK_INLINE struct fold fold_none(void)
{
    return (struct fold){ .least = iv_all(UINT32_MAX), .most = iv_all(0), .nan = 0 };
}

PACK_INLINE void fold_see(struct fold *f, ivec scale)
{
    const imask nan = iv_gt(scale, iv_all(WIDEN_INF));
    const ivec x = iv_sub(scale, iv_all(1));
    f->nan = im_or(f->nan, nan);
    f->least = iv_min_u(f->least, iv_pick(nan, iv_all(UINT32_MAX), x));
    f->most = iv_max(f->most, iv_pick(nan, iv_all(0), x));
}

/* Are the scales normal numbers no more than 2^FOLD_BITS apart, in all lanes? */
PACK_INLINE bool fold_fits(const struct fold *f)
{
    const imask none = iv_eq(f->least, iv_all(UINT32_MAX)),
                wide = iv_gt(iv_sub(f->most, f->least), iv_all(FOLD_BITS << 23)),
                tiny = iv_gt(iv_all(0x00800000u - 1), f->least);
    return !im_any(im_andnot(none, im_or(wide, tiny)));
}

/* The run's scale: NaN, +0 where all its blocks are zeros, or the least. */
PACK_INLINE ivec fold_scale(const struct fold *f)
{
    return iv_pick(f->nan, iv_all(WIDEN_NAN), iv_add(f->least, iv_all(1)));
}

/* Places from a block's unit to the run's; 0 where it has none. */
PACK_INLINE ivec fold_places(const struct fold *f, ivec scale)
{
    const imask none = im_or(iv_eq(scale, iv_all(0)), iv_gt(scale, iv_all(WIDEN_INF)));
    return iv_pick(none, iv_all(0), iv_srl_by(iv_sub(iv_sub(scale, iv_all(1)), f->least), 23));
}

/* ---- A panel's scales: FP32 patterns among A's notes, codes in B. ---- */

static inline uint32_t *fold_a_scale(const struct gemm_walk *w, void *panel, int64_t block)
{
    const struct e2_parts p = e2_parts(w, GEMM_A, E2_A_HEIGHT);
    return (uint32_t *)(void *)((unsigned char *)panel + p.notes) + block * p.next_notes +
           E2_A_HEIGHT;
}

PACK_INLINE ivec fold_b_scale(const uint8_t *codes)
{
    const ivec code = iv_load8(codes);
    return iv_pick(iv_eq(code, iv_all(E2_NAN)), iv_all(WIDEN_NAN), iv_sll_by(code, 23));
}

/* Blocks of a run from `first` on, to the walk's end. */
static inline int64_t fold_blocks(const struct gemm_walk *w, int64_t first, int32_t run)
{
    const int64_t left = w->depth / E2_BLOCK - first;
    return left < run / E2_BLOCK ? left : run / E2_BLOCK;
}

/* Of the q-th 16 lines, the run of blocks from `first` on. */
static struct fold fold_run(const struct gemm_walk *w, gemm_side side, const void *panel,
                            int64_t first, int q, int32_t run)
{
    const struct e2_parts p = e2_parts(w, side, side == GEMM_A ? E2_A_HEIGHT : NR);
    const unsigned char *const base = panel;
    const uint32_t *const notes = (const uint32_t *)(const void *)(base + p.notes) + q * VL;
    struct fold f = fold_none();
    for (int64_t i = first; i < first + fold_blocks(w, first, run); i++)
        fold_see(&f, side == GEMM_A ? iv_load(notes + i * p.next_notes + E2_A_HEIGHT)
                                    : fold_b_scale(base + p.scales + i * NR + q * VL));
    return f;
}

/* The longest run that all lines allow. */
static int32_t fold_longest(const struct gemm_walk *w, gemm_side side, const void *panel)
{
    for (size_t n = 0; n < sizeof fold_runs / sizeof *fold_runs; n++) {
        bool fits = true;
        for (int64_t i = 0; fits && i < w->depth / E2_BLOCK; i += fold_runs[n] / E2_BLOCK)
            for (int q = 0; fits && q < FOLD_WIDTH; q++) {
                const struct fold f = fold_run(w, side, panel, i, q, fold_runs[n]);
                fits = fold_fits(&f);
            }
        if (fits)
            return fold_runs[n];
    }
    return E2_BLOCK;
}

/* ---- A. ---- */

/* 32 bytes of a row, `places` to the left. */
PACK_INLINE void fold_row(uint32_t *words, uint32_t places)
{
    __m256i *const at = (__m256i *)(void *)words;
    const __m128i by = _mm_cvtsi32_si128((int)places);
    const __m256i x = _mm256_loadu_si256(at), kept = _mm256_set1_epi8((char)(0xFFu << places));
    _mm256_storeu_si256(at, _mm256_and_si256(_mm256_sll_epi16(x, by), kept));
}

/* A block of 16 rows: its bytes and what is to be taken off their sums. */
PACK_INLINE void fold_a_block(const struct fold *f, uint32_t *elements, uint32_t *first,
                              uint32_t *scale)
{
    uint32_t places[VL];
    const ivec by = fold_places(f, iv_load(scale));
    if (im_any(iv_gt(by, iv_all(0)))) {
        iv_store(places, by);
        for (int r = 0; r < VL; r++)
            if (places[r])
                fold_row(elements + r * E2_NEXT_ROW, places[r]);
        iv_store(first, iv_sll(iv_load(first), by));
    }
    iv_store(scale, fold_scale(f));
}

static void fold_a_runs(const struct gemm_walk *w, void *panel, int32_t run)
{
    const struct e2_parts p = e2_parts(w, GEMM_A, E2_A_HEIGHT);
    uint32_t *const elements = (uint32_t *)(void *)((unsigned char *)panel + p.elements);
    for (int64_t i = 0; i < w->depth / E2_BLOCK; i += run / E2_BLOCK)
        for (int q = 0; q < FOLD_WIDTH; q++) {
            const int64_t n = fold_blocks(w, i, run);
            uint32_t *const scale = fold_a_scale(w, panel, i) + q * VL;
            const struct fold f = fold_run(w, GEMM_A, panel, i, q, run);
            for (int64_t j = 0; j < n; j++)
                fold_a_block(&f, elements + e2_before(i + j) + q * VL * E2_NEXT_ROW,
                             scale + j * p.next_notes - E2_A_HEIGHT, scale + j * p.next_notes);
        }
}

static void fold_a(const struct gemm_walk *w, void *panel)
{
    struct gemm_panel *const head = panel;
    const int64_t blocks = w->depth / E2_BLOCK;
    head->run = fold_longest(w, GEMM_A, panel);
    if (blocks % 2) { /* bytes that a register is filled with */
        const struct e2_parts p = e2_parts(w, GEMM_A, E2_A_HEIGHT);
        unsigned char *at = (unsigned char *)panel + p.elements + 4 * e2_before(blocks);
        for (int r = 0; r < E2_A_HEIGHT; r++)
            memset(at + (size_t)(4 * E2_NEXT_ROW) * (size_t)r, 0, E2_BLOCK);
    }
    if (head->run > E2_BLOCK)
        fold_a_runs(w, panel, head->run);
}

/* ---- B. ---- */

struct fold_parts {
    size_t powers, elements, bytes;
};

static inline struct fold_parts fold_parts(const struct gemm_walk *w)
{
    const size_t blocks = (size_t)(w->depth / E2_BLOCK);
    struct fold_parts p = { .powers = e2_parts(w, GEMM_B, NR).bytes };
    p.elements = p.powers + panel_up(blocks * NR);
    p.bytes = p.elements + panel_up((blocks + blocks % 2) * (E2_BLOCK * NR));
    return p;
}

/* Doubled values by code and places. */
static const int8_t fold_values[64] = {
#define FOLD_VALUES(by)                                                                        \
    0, 1 * (by), 2 * (by), 3 * (by), 4 * (by), 6 * (by), 8 * (by), 12 * (by), 0, -1 * (by),    \
        -2 * (by), -3 * (by), -4 * (by), -6 * (by), -8 * (by), -12 * (by)
    FOLD_VALUES(1), FOLD_VALUES(2), FOLD_VALUES(4), FOLD_VALUES(8)
};

/* Words of four times 16 * places, for each of 16 lanes. */
PACK_INLINE ivec fold_four(ivec places)
{
    const __m512i first = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    return _mm512_shuffle_epi8(iv_sll_by(places, 4), first);
}

/* A block of 16 columns: four words of codes each become eight of bytes; and go to `kept`. */
PACK_INLINE void fold_b_block(ivec values, ivec places, const uint32_t *codes, uint32_t *kept,
                              uint32_t *bytes)
{
    const ivec by = fold_four(places), four = iv_all(0x0F0F0F0F);
    FMA_UNROLL
    for (int j = 0; j < E2_QUADS / 2; j++, codes += NR, kept += NR, bytes += 2 * NR) {
        const ivec x = iv_load(codes);
        iv_store(kept, x);
        iv_store(bytes, _mm512_permutexvar_epi8(iv_or_some(by, x, four), values));
        iv_store(bytes + NR,
                 _mm512_permutexvar_epi8(iv_or_some(by, iv_srl_by(x, 4), four), values));
    }
}

/* So many words of codes before they are wanted. */
enum {
    FOLD_AHEAD = 2048
};

/* Blocks [from, to) of a slim panel's, codes and bytes; `run`: one of fold_runs, or E2_BLOCK.
 */
static void fold_b_grow(const struct gemm_walk *w, int64_t from, int64_t to, int32_t run,
                        const unsigned char *slim, unsigned char *panel)
{
    const struct e2_parts p = e2_parts(w, GEMM_B, NR);
    const struct fold_parts q = fold_parts(w);
    const uint8_t *const scales = slim + p.scales;
    const uint32_t *const codes = (const uint32_t *)(const void *)(slim + p.elements);
    uint32_t *const kept = (uint32_t *)(void *)(panel + p.elements),
                    *const bytes = (uint32_t *)(void *)(panel + q.elements);
    const ivec values = iv_load(fold_values);
    const int64_t step = run / E2_BLOCK;
    for (int64_t i = from / step * step; i < to; i += step)
        for (int l = 0; l < NR; l += VL) {
            const int64_t end = i + fold_blocks(w, i, run);
            const struct fold f = fold_run(w, GEMM_B, slim, i, l / VL, run);
            const ivec code = iv_srl_by(fold_scale(&f), 23); /* NaN's, too */
            for (int64_t j = i > from ? i : from; j < end && j < to; j++) {
                const int64_t at = j * (E2_BLOCK / 8 * NR) + l;
                for (int64_t k = 0; k < E2_BLOCK / 8 * NR; k += NR)
                    __builtin_prefetch(codes + at + FOLD_AHEAD + k);
                fold_b_block(values, fold_places(&f, fold_b_scale(scales + j * NR + l)),
                             codes + at, kept + at, bytes + 2 * at - l);
                iv_put_bytes(panel + q.powers + j * NR + l, code);
            }
        }
}

#endif
