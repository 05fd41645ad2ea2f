/* SPDX-License-Identifier: Apache-2.0 */
/*
 * B in bf16 where it lies, by AVX-512: facts of its rows, and panels of pairs out of lines
 * along k, by squares of 16 by 16 pairs, 64 shuffles for 1 KiB. Behind gemm_lying.h.
 */
#ifndef NG_KERNELS_LYING512_H
#define NG_KERNELS_LYING512_H

#include "blocks.h"
#include "dp_note.h"
#include "ints512.h"

/* ---- Facts of rows. ---- */

/* Columns are whole panels. */
static void note(const struct gemm_job *g, const unsigned char *const *row, int64_t n,
                 int64_t columns, struct gemm_soon *soon, struct gemm_panel *head)
{
    struct codes_facts facts;
    struct note_bounds seen = { _mm512_set1_epi16(-1), _mm512_set1_epi16(-1) };
    struct soon_rows ahead = soon_over(soon, n, g->second);
    codes_facts_begin(&facts);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < columns; c += NOTE_VL)
            note_codes(&seen, _mm512_loadu_si512(row[i] + 2 * c));
        soon_step(&ahead);
    }
    soon_over_end(soon);
    if (!note_settle(&seen, &facts))
        lying_special(row, n, columns, &facts);
    lying_conclude(&facts, head);
}

/* ---- Facts of 8-bit codes. ---- */

/* slim_seen's, twice as wide. */
struct widen_seen {
    __m512i less, most;
};

static inline struct widen_seen widen_unseen(void)
{
    return (struct widen_seen){ _mm512_set1_epi8(-1), _mm512_setzero_si512() };
}

PACK_INLINE void widen_see(struct widen_seen *s, __m512i codes)
{
    const __m512i size = _mm512_and_si512(codes, _mm512_set1_epi8(0x7F));
    s->less = _mm512_min_epu8(s->less, _mm512_sub_epi8(size, _mm512_set1_epi8(1)));
    s->most = _mm512_max_epu8(s->most, size);
}

/* Of both halves. */
static inline struct slim_seen widen_fold(const struct widen_seen *s)
{
    return (struct slim_seen){ .less = _mm256_min_epu8(_mm512_castsi512_si256(s->less),
                                                       _mm512_extracti64x4_epi64(s->less, 1)),
                               .most = _mm256_max_epu8(_mm512_castsi512_si256(s->most),
                                                       _mm512_extracti64x4_epi64(s->most, 1)) };
}

/* ---- Panels. ---- */

/* 16 lines of 32 positions. `seen` and `soon` or NULL, constants: who does not ask pays
 * nothing. Unrolled because gcc would keep x on the stack. */
PACK_INLINE void turn_square(struct note_bounds *seen, const unsigned char *const line[VL],
                             int64_t k, struct soon_rows *soon, uint32_t *to)
{
    ivec x[VL];
    FMA_UNROLL
    for (int i = 0; i < VL; i++) {
        x[i] = _mm512_loadu_si512(line[i] + 2 * k);
        if (seen)
            note_codes(seen, x[i]);
        x[i] = _mm512_rol_epi32(x[i], 16);
        if (soon && i % 4 == 3)
            soon_step(soon);
    }
    iv_transpose(x);
    for (int i = 0; i < VL; i++)
        iv_store(to + i * NR, x[i]);
}

/* Lines l .. l + 15 of a panel; zeros follow those that there are. */
PACK_INLINE void turn_some(const unsigned char *const *row, int32_t lines, int l,
                           const unsigned char *line[VL])
{
    static const unsigned char zeros[2 * 256];
    for (int i = 0; i < VL; i++)
        line[i] = l + i < lines ? row[l + i] : zeros;
}

PACK_INLINE void turn_lines(struct note_bounds *seen, const struct gemm_walk *w,
                            const unsigned char *const *row, int32_t lines,
                            struct soon_rows *soon, uint32_t *to)
{
    for (int l = 0; l < NR; l += VL) {
        const unsigned char *line[VL];
        turn_some(row, lines, l, line);
        for (int64_t p = 0; p < w->used; p += NOTE_VL)
            turn_square(seen, line, w->k[p], soon, to + p / 2 * NR + l);
    }
}

PACK_INLINE void turn_soon(struct note_bounds *seen, const struct gemm_walk *w,
                           const unsigned char *const *row, int32_t lines,
                           struct soon_rows *soon, uint32_t *to)
{
    if (soon->n)
        turn_lines(seen, w, row, lines, soon, to);
    else
        turn_lines(seen, w, row, lines, NULL, to);
}

static bool turn(const struct gemm_job *g, const struct gemm_walk *w,
                 const unsigned char *const *row, int32_t lines, const struct gemm_panel *known,
                 struct gemm_soon *soon, void *panel)
{
    struct gemm_panel *head = panel;
    uint32_t *to = (uint32_t *)((unsigned char *)panel + sizeof *head);
    struct codes_facts facts;
    struct note_bounds seen = { _mm512_set1_epi16(-1), _mm512_set1_epi16(-1) };
    if (!lies(g) || g->k > 256 || !pack_runs(w, NOTE_VL))
        return false;
    const int64_t squares = NR / VL * (w->used / NOTE_VL);
    struct soon_rows ahead = soon_over(soon, squares * (VL / 4), g->second);
    if (known)
        turn_soon(NULL, w, row, lines, &ahead, to);
    else
        turn_soon(&seen, w, row, lines, &ahead, to);
    soon_over_end(soon);
    if (known) {
        *head = *known;
        return true;
    }
    codes_facts_begin(&facts);
    if (!note_settle(&seen, &facts))
        return false;
    lying_conclude(&facts, head);
    return true;
}

/* 16 lines of 64 positions, or of the first 32. A word has a line's codes of four. */
PACK_INLINE void turn_codes_square(const struct vec_bytes *t, struct widen_seen *seen,
                                   const unsigned char *const line[VL], int64_t k,
                                   const __mmask64 there, struct soon_rows *soon, uint32_t *to)
{
    const int words = there == UINT64_MAX ? VL : VL / 2;
    ivec x[VL];
    FMA_UNROLL
    for (int i = 0; i < VL; i++) {
        x[i] = _mm512_maskz_loadu_epi8(there, line[i] + k);
        widen_see(seen, x[i]);
        if (i % 4 == 3 || (words == VL && i % 2))
            soon_step(soon);
    }
    iv_transpose(x);
    FMA_UNROLL
    for (int i = 0; i < words; i++) {
        vec_pairs y[2];
        vec_bytes_pairs(t, vec_bytes_order(x[i]), y);
        iv_store(to + 2 * i * NR, y[0]);
        iv_store(to + (2 * i + 1) * NR, y[1]);
    }
}

static bool turn_codes(const struct gemm_job *g, const struct gemm_walk *w,
                       const ng_format_spec *from, const uint32_t value[256],
                       const unsigned char *const *row, int32_t lines, struct gemm_soon *soon,
                       void *panel)
{
    uint32_t *to = (uint32_t *)((unsigned char *)panel + sizeof(struct gemm_panel));
    if (!blocks_bytes(from) || !lies(g) || g->k > 256 || !pack_runs(w, NOTE_VL))
        return false;
    const struct vec_bytes t = vec_bytes_table(value, (int)from->man_bits);
    struct widen_seen seen = widen_unseen();
    struct soon_rows ahead =
        soon_over(soon, NR / VL * (w->used / NOTE_VL) * (VL / 4), g->second);
    for (int l = 0; l < NR; l += VL) {
        const unsigned char *line[VL];
        turn_some(row, lines, l, line);
        for (int64_t p = 0; p < w->used;) {
            uint32_t *const at = to + p / 2 * NR + l;
            if (p + NOTE_VL < w->used && w->k[p + NOTE_VL] == w->k[p] + NOTE_VL) {
                turn_codes_square(&t, &seen, line, w->k[p], UINT64_MAX, &ahead, at);
                p += 2 * NOTE_VL;
            } else {
                turn_codes_square(&t, &seen, line, w->k[p], UINT32_MAX, &ahead, at);
                p += NOTE_VL;
            }
        }
    }
    soon_over_end(soon);
    const struct slim_seen all = widen_fold(&seen);
    return slim_conclude(from, (int)from->man_bits, value, &all, panel);
}

/* ---- Rows out of 8-bit codes. ---- */

/* 64 codes as bf16: the first 32, the others. */
PACK_INLINE void widen_codes(const struct vec_bytes *t, __m512i codes, __m512i y[2])
{
    /* eight codes at a time, as unpacking takes them out of quarters */
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    vec_bytes_pairs(t, _mm512_permutexvar_epi64(order, codes), y);
}

static bool widen_rows(const ng_format_spec *from, const uint32_t value[256],
                       const unsigned char *const *row, int64_t n, int64_t columns,
                       int64_t wide, uint16_t *to, struct gemm_panel *head)
{
    if (!blocks_bytes(from))
        return false;
    const struct vec_bytes t = vec_bytes_table(value, (int)from->man_bits);
    struct widen_seen seen = widen_unseen();
    __m512i y[2];
    for (int64_t i = 0; i < n; i++, to += wide) {
        int64_t c = 0;
        for (; c + 2 * NOTE_VL <= columns; c += 2 * NOTE_VL) {
            const __m512i x = _mm512_loadu_si512(row[i] + c);
            widen_see(&seen, x);
            widen_codes(&t, x, y);
            iv_store(to + c, y[0]);
            iv_store(to + c + NOTE_VL, y[1]);
        }
        for (; c < wide; c += NOTE_VL) {
            const int64_t left = columns - c; /* below 64 */
            const __mmask64 there = left > 0 ? UINT64_MAX >> (64 - left) : 0;
            const __m512i x = _mm512_maskz_loadu_epi8(there, row[i] + c);
            widen_see(&seen, x);
            widen_codes(&t, x, y);
            iv_store(to + c, y[0]);
        }
    }
    const struct slim_seen all = widen_fold(&seen);
    return slim_conclude(from, (int)from->man_bits, value, &all, head);
}

/* Of two positions 64 codes each, or of as many as are there, as pairs. */
PACK_INLINE void widen_two(const struct vec_bytes *t, struct widen_seen *seen,
                           const unsigned char *first, const unsigned char *second,
                           __mmask64 there, __m512i y[4])
{
    /* unpacked twice: vector q has word q of each quarter */
    const __m512i order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i a = _mm512_maskz_loadu_epi8(there, first),
                  b = _mm512_maskz_loadu_epi8(there, second),
                  early = _mm512_permutexvar_epi32(order, a),
                  late = _mm512_permutexvar_epi32(order, b);
    widen_see(seen, a);
    widen_see(seen, b);
    vec_bytes_pairs(t, _mm512_unpacklo_epi8(late, early), y);
    vec_bytes_pairs(t, _mm512_unpackhi_epi8(late, early), y + 2);
}

static bool widen_pairs(const struct gemm_job *g, const ng_format_spec *from,
                        const uint32_t value[256], const unsigned char *const *row, int64_t n,
                        int64_t columns, int64_t wide, struct gemm_soon *soon, uint16_t *to,
                        struct gemm_panel *head)
{
    if (!blocks_bytes(from) || n % 2)
        return false;
    const struct vec_bytes t = vec_bytes_table(value, (int)from->man_bits);
    struct widen_seen seen = widen_unseen();
    struct soon_rows ahead = soon_over(soon, n / 2, g->second);
    __m512i y[4];
    for (int64_t i = 0; i < n; i += 2, to += 2 * wide) {
        int64_t c = 0;
        for (; c + 4 * VL <= columns; c += 4 * VL) {
            widen_two(&t, &seen, row[i] + c, row[i + 1] + c, UINT64_MAX, y);
            FMA_UNROLL
            for (int q = 0; q < 4; q++)
                iv_store(to + 2 * (c + q * VL), y[q]);
        }
        for (; c < wide; c += 4 * VL) {
            const int64_t left = columns - c; /* below 64 */
            const __mmask64 there = left > 0 ? UINT64_MAX >> (64 - left) : 0;
            widen_two(&t, &seen, row[i] + c, row[i + 1] + c, there, y);
            for (int q = 0; q < 4 && c + q * VL < wide; q++)
                iv_store(to + 2 * (c + q * VL), y[q]);
        }
        soon_step(&ahead);
    }
    soon_over_end(soon);
    const struct slim_seen all = widen_fold(&seen);
    return slim_conclude(from, (int)from->man_bits, value, &all, head);
}

/* ---- Panels out of positions whose columns adjoin. ---- */

enum {
    ADJOIN_AHEAD = 64,     /* positions; 96 are as good, 32 give half as much */
    ADJOIN_CACHE = 1 << 20 /* bytes, a second cache of a Zen 4 and 5; a B that it holds is asked
                              for in vain, at 4 to 7 % of a multiply of few rows */
};

/* Two positions' NR columns as pairs; `k` below 0: none, zeros. */
PACK_INLINE void adjoin_pairs(const struct gemm_operand *o, const uint16_t *first,
                              const int32_t k[2], struct note_bounds *seen, uint32_t *to)
{
    static const uint16_t zeros[NR];
    const uint16_t *row[2];
    for (int i = 0; i < 2; i++)
        row[i] = k[i] < 0 ? zeros : first + k[i] * o->k;
    FMA_UNROLL
    for (int c = 0; c < NR; c += NOTE_VL) {
        const ivec x = iv_load(row[0] + c), y = iv_load(row[1] + c);
        __m512i pairs[2];
        note_codes(seen, x);
        note_codes(seen, y);
        codes_pairs(x, y, pairs);
        iv_store(to + c, pairs[0]);
        iv_store(to + c + VL, pairs[1]);
    }
}

/* False: pack() takes it, whatever the panel holds now. */
static bool adjoin_pack(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                        int32_t lines, void *panel)
{
    const struct gemm_operand *o = &g->b;
    struct gemm_panel *head = panel;
    uint32_t *to = (uint32_t *)((unsigned char *)panel + sizeof *head);
    struct note_bounds seen = { _mm512_set1_epi16(-1), _mm512_set1_epi16(-1) };
    struct codes_facts facts;
    if (!lies(g) || o->line != 1 || lines != NR)
        return false;
    const uint16_t *first = (const uint16_t *)o->data + o->offset + line;
    const bool far = w->used * g->n > ADJOIN_CACHE / 2;
    for (int64_t p = 0; p < w->used; p += 2, to += NR) {
        for (int64_t i = p + ADJOIN_AHEAD; far && i < p + ADJOIN_AHEAD + 2 && i < w->used; i++)
            if (w->k[i] >= 0)
                pack_ask_row((const unsigned char *)(first + w->k[i] * o->k), 2 * NR,
                             g->second);
        adjoin_pairs(o, first, w->k + p, &seen, to);
    }
    codes_facts_begin(&facts);
    if (!note_settle(&seen, &facts))
        return false;
    lying_conclude(&facts, head);
    return true;
}

#endif
