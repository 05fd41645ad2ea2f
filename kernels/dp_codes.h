/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes of at most 8 bits as bf16, 32 at a time, alone or in blocks of 32 under e8m0 scales: by
 * a table in four registers; a scale is an addition to their exponents. Behind gemm_fma.h.
 */
#ifndef NG_KERNELS_DP_CODES_H
#define NG_KERNELS_DP_CODES_H

#include "blocks.h"
#include "dp_note.h"
#include "ints512.h"

/* bf16 of the codes without a sign. */
struct blocks_table {
    __m512i part[4];
};

struct blocks {
    struct blocks_table table;
    struct note_bounds seen; /* of folded values */
    __m512i largest;         /* magnitude before that: an Inf or a NaN shows */
    ivec spread;             /* of bytes */
};

PACK_INLINE struct blocks_table blocks_table(const uint32_t *widen)
{
    struct blocks_table t;
    for (int i = 0; i < 4; i++)
        t.part[i] = iv_halves(iv_load(widen + 32 * i), iv_load(widen + 32 * i + 16), 1, 0);
    return t;
}

/* `widen` NULL: bf16, which nobody decodes. */
static inline struct blocks blocks_begin(const uint32_t *widen)
{
    struct blocks b = { .seen = { _mm512_set1_epi16(-1), _mm512_set1_epi16(-1) },
                        .largest = _mm512_setzero_si512(),
                        .spread = iv_all(0) };
    if (widen)
        b.table = blocks_table(widen);
    return b;
}

/* The exponent field of the lowest set bit, and 7 more, of bf16 with at most 4 bits behind the
 * point, none of them subnormal. */
PACK_INLINE __m512i blocks_lowest(__m512i size)
{
    const __m512i zeros = _mm512_broadcast_i32x4(
                      _mm_setr_epi8(7, 3, 4, 3, 5, 3, 4, 3, 6, 3, 4, 3, 5, 3, 4, 3)),
                  at = _mm512_or_si512(
                      _mm512_and_si512(_mm512_srli_epi16(size, 3), _mm512_set1_epi16(15)),
                      _mm512_set1_epi16((short)0x8000)),
                  bit = _mm512_add_epi16(_mm512_srli_epi16(size, 7),
                                         _mm512_shuffle_epi8(zeros, at));
    return _mm512_mask_mov_epi16(_mm512_set1_epi16(PANEL_NONE + 7),
                                 _mm512_test_epi16_mask(size, size), bit);
}

/* 32 codes of a byte, in lanes of their own. */
PACK_INLINE __m512i blocks_codes(const void *p)
{
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(p));
}

/* 32 codes as bf16, times 2^(step / 128): zeros stay zeros. */
PACK_INLINE __m512i blocks_decode(struct blocks *b, __m512i at, __m512i step)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7FFF),
                  low = _mm512_permutex2var_epi16(b->table.part[0], at, b->table.part[1]),
                  high = _mm512_permutex2var_epi16(b->table.part[2], at, b->table.part[3]),
                  size = _mm512_mask_blend_epi16(
                      _mm512_test_epi16_mask(at, _mm512_set1_epi16(0x40)), low, high),
                  sign = _mm512_slli_epi16(_mm512_and_si512(at, _mm512_set1_epi16(0x80)), 8);
    b->largest = _mm512_max_epi16(b->largest, size);
    const __m512i x = _mm512_or_si512(
        _mm512_mask_add_epi16(size, _mm512_test_epi16_mask(size, magnitude), size, step), sign);
    note_codes(&b->seen, x);
    return x;
}

/* How the codes of a line's 32 positions lie. */
enum rows_lie {
    ROWS_WORDS, /* bf16 */
    ROWS_BYTES,
    ROWS_SPLIT, /* 16 from one k on and 16 from another on, in turn */
    ROWS_NIBBLES
};

/* 32 codes from k on, in lanes of their own; `apart`: from their first to the other run's. */
PACK_INLINE __m512i rows_codes(const enum rows_lie lie, const unsigned char *line, int64_t k,
                               int64_t apart)
{
    if (lie == ROWS_NIBBLES) { /* the earlier one in the lower bits */
        const ivec x = iv_load8(line + k / 2);
        return iv_and(iv_or(x, _mm512_slli_epi32(x, 12)), iv_all(0x000F000F));
    }
    if (lie == ROWS_SPLIT)
        return iv_or(iv_load8(line + k), _mm512_slli_epi32(iv_load8(line + k + apart), 16));
    return blocks_codes(line + k);
}

/* How lie A's lines along k, if their codes are those of blocks_bytes(), or of 4 bits? */
static bool rows_narrow(const struct gemm_job *g, enum rows_lie *lie)
{
    const struct gemm_operand *o = &g->a;
    const ng_format_spec *f = o->spec;
    const bool nibbles = f->format == NG_E2M1 && o->offset % 2 == 0 && o->line % 2 == 0;
    *lie = nibbles ? ROWS_NIBBLES : ROWS_BYTES;
    return o->k == 1 && (blocks_bytes(f) || nibbles) && rule_values(g, o) == f && !o->sparse &&
           !g->b.sparse;
}

enum {
    ROWS_VL = 32 /* positions: a block */
};

/* Are the positions from p on of one block, and in whole bytes? */
PACK_INLINE bool rows_whole(const struct gemm_walk *w, int64_t p)
{
    bool all = w->k[p] % 2 == 0;
    for (int i = 0; all && w->blocks && i < ROWS_VL; i++)
        all = w->block[p + i] == w->block[p]; /* k_map may deal a block's out */
    return all;
}

/* Of any rows: is A made of runs of ROWS_VL positions, each of one block? */
static inline bool rows_runs(const struct gemm_job *g, const struct gemm_walk *w,
                             enum rows_lie *lie)
{
    bool all = g->mode != NG_MODE_NV && rows_narrow(g, lie) && pack_runs(w, ROWS_VL);
    for (int64_t p = 0; all && (w->blocks || *lie == ROWS_NIBBLES) && p < w->used; p += ROWS_VL)
        all = rows_whole(w, p);
    return all;
}

/* Is A made of ROWS_VL positions one after another (of blocks: a block); `split`: of two runs
 * of them in turn? */
static inline bool rows_follow(const struct gemm_walk *w, const bool split)
{
    bool all = w->used % ROWS_VL == 0;
    for (int64_t p = 0; all && p < w->used; p += ROWS_VL)
        all = split ? pack_in_turn(w->k + p, ROWS_VL)
                    : pack_consecutive(w->k + p, ROWS_VL) &&
                          (!w->blocks || w->k[p] % ROWS_VL == 0);
    return all;
}

/* The same of rows that sum two or four lanes. */
static inline bool rows_takes(const struct gemm_job *g, const struct gemm_walk *w,
                              enum rows_lie *lie)
{
    const bool all = rows_narrow(g, lie) && rule_step_of(g) == STEP_SUM &&
                     w->lanes == w->step && (w->step == 2 || w->step == 4) &&
                     (!w->blocks || g->a.block == ROWS_VL);
    if (!all || rows_follow(w, false))
        return all;
    if (*lie != ROWS_BYTES || w->blocks || w->step != 2 || !rows_follow(w, true))
        return false;
    *lie = ROWS_SPLIT;
    return true;
}

/* Bytes of n elements that lie so. */
PACK_INLINE int64_t rows_bytes(const enum rows_lie lie, int64_t n)
{
    return lie == ROWS_WORDS ? 2 * n : lie == ROWS_NIBBLES ? n / 2 : n;
}

/* Line `line` of A, whose codes lie so. */
PACK_INLINE const unsigned char *rows_line(const struct gemm_operand *o, enum rows_lie lie,
                                           int64_t line)
{
    return (const unsigned char *)o->data + rows_bytes(lie, o->offset + line * o->line);
}

/* A panel of A under way: lines along k, and where its parts are. */
struct rows_panel {
    const unsigned char *line[MR];
    int32_t lines;
    const struct gemm_walk *w;
    const uint8_t *scales; /* NULL: none */
    uint32_t *elements;
    uint8_t *spread, *most;
    int64_t next; /* bytes from a line to that of the next panel */
};

static inline struct rows_panel rows_panel_of(const struct gemm_job *g,
                                              const struct gemm_walk *w, enum rows_lie lie,
                                              int64_t first, int32_t lines,
                                              const struct panel_parts *parts,
                                              unsigned char *panel)
{
    struct rows_panel t = { .lines = lines,
                            .w = w,
                            .scales = w->blocks ? panel + parts->scales : NULL,
                            .elements = (uint32_t *)(void *)(panel + sizeof(struct gemm_panel)),
                            .spread = panel + parts->spread,
                            .most = panel + parts->most };
    for (int i = 0; i < lines; i++)
        t.line[i] = rows_line(&g->a, lie, first + i);
    t.next = rows_line(&g->a, lie, first + pack_next(g, first, lines)) - t.line[0];
    return t;
}

#ifdef VEC_VBMI
/* From four bytes of each of 16 words to 16 first ones, 16 second ones, ... */
PACK_INLINE __m512i blocks_turn_bytes(__m512i x)
{
    uint8_t at[64];
    FMA_UNROLL
    for (int i = 0; i < 64; i++)
        at[i] = (uint8_t)(i % VL * 4 + i / VL);
    return _mm512_permutexvar_epi8(iv_load(at), x);
}

/* Four rows of 16 bytes, `apart` from each other. */
PACK_INLINE void blocks_put_rows(__m512i x, uint8_t *to, const int apart)
{
    uint8_t out[64];
    iv_store(out, x);
    FMA_UNROLL
    for (int i = 0; i < 4; i++)
        memcpy(to + i * apart, out + i * VL, VL);
}

/* Scales of 16 lines that lie along their blocks, of four blocks. */
PACK_INLINE void blocks_turn_scales(const uint8_t *from, int64_t line, const int width,
                                    uint8_t *to)
{
    uint32_t word[VL];
    for (int l = 0; l < VL; l++)
        memcpy(&word[l], from + l * line, sizeof *word);
    blocks_put_rows(blocks_turn_bytes(iv_load(word)), to, width);
}
#endif

/* The panel's scales, of `width` lines; false: one is too far for blocks_decode(). */
PACK_INLINE bool blocks_scales(const struct pack_source *s, const struct gemm_walk *w,
                               const int width, uint8_t *to)
{
    const struct gemm_operand *o = s->o;
    if (o->scale_line == 1 && s->lines == width)
        for (int64_t i = 0; i < w->blocks; i++)
            memcpy(to + i * width, o->scale + o->scale_offset + s->line + i * o->scale_block,
                   (size_t)width);
#ifdef VEC_VBMI
    else if (o->scale_block == 1 && s->lines == width && width % VL == 0 && w->blocks % 4 == 0)
        for (int64_t i = 0; i < w->blocks; i += 4)
            for (int l = 0; l < width; l += VL)
                blocks_turn_scales(o->scale + o->scale_offset + (s->line + l) * o->scale_line +
                                       i,
                                   o->scale_line, width, to + i * width + l);
#endif
    else
        pack_scales(s, w, width, to);
    return blocks_near(to, w->blocks * width);
}

/* The largest spread byte. */
static inline int blocks_widest(const struct blocks *b)
{
    uint8_t bytes[64];
    int spread = 0;
    iv_store(bytes, b->spread);
    for (int i = 0; i < 64; i++)
        spread = bytes[i] > spread ? bytes[i] : spread;
    return spread;
}

/* The panel's head; false: a NaN or an Inf is among the values. */
static bool blocks_conclude(const struct blocks *b, const struct gemm_job *g,
                            const struct gemm_operand *o, int spread, struct gemm_panel *head)
{
    struct pack_facts facts;
    pack_facts_begin(&facts);
    if (_mm512_cmpgt_epi16_mask(b->largest, _mm512_set1_epi16((WIDEN_INF >> 16) - 1)) ||
        !note_settle(&b->seen, &facts.codes))
        return false;
    *head = (struct gemm_panel){ .spread = spread };
    pack_join(&facts, o->spec);
    pack_conclude(&facts, (int)rule_values(g, o)->man_bits, head);
    return true;
}

#endif
