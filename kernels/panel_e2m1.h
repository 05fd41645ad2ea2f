/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Panels of two MXFP4 operands for gemm_e2m1.h, whose products are products of integers: twice
 * an E2M1 value is one of 0, 1, 2, 3, 4, 6, 8, 12 with a sign. In blocks of 32 positions of the
 * walk, all under one scale:
 *
 *   header   struct gemm_panel, 64 bytes
 *   norms    doubles: at each chain's first block the chain's, then of each K tile, of all:
 *            see e2_settle()
 *   scales   [block][NR] codes: B only
 *   A        blocks of { bytes [8 quads][MR][4], signed; notes: words [MR]; FP32 [MR]; words
 *            [MR] }: the doubled values; -12 times their sum; a quarter of the scale; a bit for
 *            each -0, which only sums that are flushed to a zero can tell from 0
 *            where E2_WOVEN, its rows, is defined: bytes [two blocks][row][64], row after row,
 *            then the notes
 *   B        codes [block][4][NR] words: byte i has position i of quad 2 j in its lower half
 *            and that of quad 2 j + 1 in its upper one, so that a shuffle makes 64 values
 *
 * B's codes stay what they are, and their panel is as large as they. Multiplied, they are
 * unsigned: 12 too large, which the second part of A's blocks takes off again.
 *
 * A block without a value but zero has scale 0, whatever was written there, unless that was a
 * NaN: code 0 in B, +0 in A. Lines past the operand's are zeros. In vectors of 256 bits, as
 * codes.h.
 */
#ifndef NG_KERNELS_PANEL_E2M1_H
#define NG_KERNELS_PANEL_E2M1_H

#include "doubles.h"
#include "packing.h"

enum {
    E2_BLOCK = 32,
    E2_QUADS = E2_BLOCK / 4,
    E2_BIAS = 12,
    E2_LINES = 8, /* that are packed together */
    E2_ONE = 127, /* e8m0's code of 1 */
    E2_NAN = 255,
    E2_NOTES = 3 /* words of a row's block */
};

/* Words of A's elements from a quad of a row to its next, and from a row to the next; what its
 * bytes want to be unsigned. */
#ifdef E2_WOVEN
enum {
    E2_A_HEIGHT = E2_WOVEN,
    E2_TOGETHER = 2, /* blocks */
    E2_A_BIAS = 8 * E2_BIAS,
    E2_NEXT_QUAD = 1,
    E2_NEXT_ROW = 2 * E2_QUADS
};
#else
enum {
    E2_A_HEIGHT = MR,
    E2_TOGETHER = 1,
    E2_A_BIAS = E2_BIAS,
    E2_NEXT_QUAD = MR,
    E2_NEXT_ROW = 1
};
#endif

/* Doubled values by code, and their magnitudes. */
#define E2_VALUES  0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12
#define E2_SIZES   0, 1, 2, 3, 4, 6, 8, 12, 0, 1, 2, 3, 4, 6, 8, 12
#define E2_SHIFTED 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0

/* Where norms are. */
static inline int64_t e2_norm_of_chain(int64_t position)
{
    return position / E2_BLOCK;
}
static inline int64_t e2_norm_of_tile(const struct gemm_walk *w, int64_t tile)
{
    return w->depth / E2_BLOCK + tile;
}
static inline int64_t e2_norm_of_all(const struct gemm_walk *w)
{
    return w->depth / E2_BLOCK + w->tiles;
}

/* Where these begin, in bytes; words from a block of A to the next. */
struct e2_parts {
    size_t elements, notes, scales, bytes;
    int64_t next_notes;
};

/* Words of A's elements before a block's first quad. */
static inline int64_t e2_before(int64_t block)
{
#ifdef E2_WOVEN
    return block / 2 * (2 * E2_QUADS * E2_A_HEIGHT) + block % 2 * E2_QUADS;
#else
    return block * ((E2_QUADS + E2_NOTES) * E2_A_HEIGHT);
#endif
}

static inline struct e2_parts e2_parts(const struct gemm_walk *w, gemm_side side, int width)
{
    const size_t blocks = (size_t)(w->depth / E2_BLOCK);
    struct e2_parts p = { .scales =
                              sizeof(struct gemm_panel) +
                              panel_up((size_t)(e2_norm_of_all(w) + 1) * sizeof(double)) };
    if (side == GEMM_B) {
        p.elements = p.notes = p.scales + panel_up(blocks * (size_t)width);
        p.bytes = p.elements + panel_up(4 * blocks * (E2_BLOCK / 8) * (size_t)width);
        return p;
    }
    p.elements = p.scales;
#ifdef E2_WOVEN
    p.notes = p.elements + 4 * (size_t)e2_before((int64_t)(blocks + blocks % E2_TOGETHER));
    p.next_notes = E2_NOTES * E2_A_HEIGHT;
#else
    p.notes = p.elements + 4 * E2_QUADS * E2_A_HEIGHT;
    p.next_notes = e2_before(1);
#endif
    p.bytes = p.elements + panel_up(4 * (blocks + blocks % E2_TOGETHER) *
                                    (E2_QUADS + E2_NOTES) * E2_A_HEIGHT);
    return p;
}

static inline const double *e2_norms(const void *panel)
{
    return (const double *)(const void *)((const struct gemm_panel *)panel + 1);
}

/* Is every block of 32 positions in one chain, whole and under one scale? From rule, formats
 * and K alone. */
static inline const char *e2_refuses(const struct gemm_job *g)
{
    const int32_t lanes = rule_param(g, NG_PARAM_LANES);
    const char *why = rule_refuses(g);
    if (why)
        return why;
    if (g->a.spec->format != NG_E2M1 || g->b.spec->format != NG_E2M1 || g->fp4)
        return "operands other than two of e2m1";
    if (g->mode != NG_MODE_MX || g->a.block != E2_BLOCK || g->b.block != E2_BLOCK)
        return "no e8m0 scales of 32";
    if (g->a.sparse || g->b.sparse)
        return "a sparse operand";
    if (g->k % E2_BLOCK)
        return "K is no multiple of 32";
    if (E2_BLOCK % lanes || (rule_step_of(g) != STEP_FMA && lanes > 4 && lanes != E2_BLOCK))
        return "lanes other than 1, 2, 4, 32";
    if (g->a.layout == NG_LAYOUT_TRN_WRAP && lanes != 4)
        return "trn_wrap on lanes other than 4";
    if (rule_chains(g) > 1 && (rule_param(g, NG_PARAM_CHAIN_ROWS) * lanes % E2_BLOCK ||
                               rule_param(g, NG_PARAM_CHAIN_MAP) != NG_CHAIN_BLOCK))
        return "chains that end inside a block";
    if (rule_param(g, NG_PARAM_ROWS) * lanes % E2_BLOCK)
        return "K tiles that end inside a block";
    return NULL;
}

/* ---- A panel under way. ---- */

/* A chain, a K tile, or all of them. */
struct e2_norm {
    double squares; /* no line has more */
    uint8_t least;  /* scale code of blocks that are not zero */
};

struct e2_panel {
    const struct gemm_operand *o;
    const struct gemm_walk *w;
    gemm_side side;
    int64_t line;
    int32_t lines, width;
    unsigned char *base;
    struct e2_parts parts;
    uint8_t least, most; /* scale codes of blocks that are not zero: of this chain, of all */
    bool nan;
    double squares[64]; /* of a line, in this chain */
};

/*
 * The largest sum of squares of a line, in units of the least scale: with those of two panels,
 * N and M, no sum of magnitudes of products is above sqrt(N M) units (Cauchy and Schwarz), so
 * where N M <= 2^48 each is an FP32 number in any order. What these doubles round is far less
 * than what e2_exact() leaves.
 */
static inline void e2_settle(struct e2_panel *t, int64_t at, const struct e2_norm *n)
{
    double *norms = (double *)(void *)((struct gemm_panel *)(void *)t->base + 1);
    const uint64_t unit = (uint64_t)(1023 - 2 * (n->least - E2_ONE)) << 52;
    norms[at] = n->squares * exact_double(unit);
}

static inline void e2_join(struct e2_norm *n, const struct e2_norm *part)
{
    n->squares += part->squares;
    n->least = part->least < n->least ? part->least : n->least;
}

static inline bool e2_exact(double a, double b)
{
    return a * b <= 0x0.ffffffp48;
}

/* What eight lines' scales are, from line l on. */
PACK_INLINE __m256i e2_scales(const struct e2_panel *t, int32_t block, int l)
{
    uint8_t code[E2_LINES] = { E2_ONE, E2_ONE, E2_ONE, E2_ONE, E2_ONE, E2_ONE, E2_ONE, E2_ONE };
    const uint8_t *from = t->o->scale + t->o->scale_offset + (t->line + l) * t->o->scale_line +
                          block * t->o->scale_block;
    for (int i = 0; i < E2_LINES && l + i < t->lines; i++)
        code[i] = from[i * t->o->scale_line];
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)code));
}

PACK_INLINE int e2_most_of(__m256i x)
{
    uint32_t v[8];
    _mm256_storeu_si256((__m256i *)v, x);
    uint32_t most = 0;
    for (int i = 0; i < 8; i++)
        most = v[i] > most ? v[i] : most;
    return (int)most;
}

/* Four squares' sums times 4^(code - 127). */
PACK_INLINE void e2_add_squares(double *to, __m128i squares, __m128i code)
{
    const __m256i power =
        _mm256_slli_epi64(_mm256_cvtepu32_epi64(_mm_add_epi32(
                              _mm_add_epi32(code, code), _mm_set1_epi32(1023 - 2 * E2_ONE))),
                          52);
    _mm256_storeu_pd(to, _mm256_fmadd_pd(_mm256_cvtepi32_pd(squares),
                                         _mm256_castsi256_pd(power), _mm256_loadu_pd(to)));
}

/* Notes the sums of squares of eight lines' blocks; their scales, code 0 where all is zero. */
PACK_INLINE __m256i e2_note(struct e2_panel *t, int l, __m256i squares, __m256i code)
{
    const __m256i nan = _mm256_cmpeq_epi32(code, _mm256_set1_epi32(E2_NAN)),
                  zero = _mm256_cmpeq_epi32(squares, _mm256_setzero_si256()),
                  skip = _mm256_or_si256(nan, zero),
                  kept = _mm256_andnot_si256(_mm256_andnot_si256(nan, zero), code),
                  live = _mm256_andnot_si256(skip, squares),
                  down = _mm256_andnot_si256(skip,
                                             _mm256_sub_epi32(_mm256_set1_epi32(E2_NAN), code)),
                  up = _mm256_andnot_si256(skip, code);
    const uint8_t least = (uint8_t)(E2_NAN - e2_most_of(down)), most = (uint8_t)e2_most_of(up);
    t->nan |= !_mm256_testz_si256(nan, nan);
    t->least = least < t->least ? least : t->least;
    t->most = most > t->most ? most : t->most;
    const __m256i safe = _mm256_andnot_si256(nan, code);
    e2_add_squares(t->squares + l, _mm256_castsi256_si128(live), _mm256_castsi256_si128(safe));
    e2_add_squares(t->squares + l + 4, _mm256_extracti128_si256(live, 1),
                   _mm256_extracti128_si256(safe, 1));
    return kept;
}

/* Sums of pairs of 16-bit lanes. */
PACK_INLINE __m256i e2_sum(__m256i x)
{
    return _mm256_madd_epi16(x, _mm256_set1_epi16(1));
}

/* ---- Codes. ---- */

/* The halves of two times eight bytes (or of 16), the lower one first. */
PACK_INLINE __m256i e2_halves(__m128i x)
{
    const __m256i wide = _mm256_cvtepu8_epi16(x);
    return _mm256_and_si256(_mm256_or_si256(wide, _mm256_slli_epi16(wide, 4)),
                            _mm256_set1_epi8(0xF));
}

/* Do codes that are neighbours, along k or across lines, share bytes? */
static inline bool e2_whole_bytes(const struct gemm_operand *o, int64_t stride)
{
    return o->offset % 2 == 0 && stride % 2 == 0;
}

/* Are a block's positions neighbours along k, from an even one on? */
PACK_INLINE bool e2_follow(const struct gemm_walk *w, int64_t p)
{
    return w->k[p] % 2 == 0 && pack_consecutive(w->k + p, E2_BLOCK);
}

/* 32 codes of a line from position p on, a byte each, one by one. */
static inline void e2_read(const struct e2_panel *t, int64_t p, int64_t line,
                           uint8_t out[E2_BLOCK])
{
    for (int i = 0; i < E2_BLOCK; i++)
        out[i] = (uint8_t)load_code(
            t->o->data, 4, t->o->offset + line * t->o->line + t->w->k[p + i] * t->o->k);
}

/* The 16 bytes of a line's block; `follow`: they are in memory as they are wanted. */
PACK_INLINE __m128i e2_line(const struct e2_panel *t, const bool follow, int64_t p, int l)
{
    if (l >= t->lines)
        return _mm_setzero_si128();
    const int64_t line = t->line + l;
    if (follow) {
        const unsigned char *from = (const unsigned char *)t->o->data +
                                    (t->o->offset + line * t->o->line + t->w->k[p]) / 2;
        return _mm_loadu_si128((const __m128i *)(const void *)from);
    }
    uint8_t code[E2_BLOCK], byte[E2_BLOCK / 2];
    e2_read(t, p, line, code);
    for (int i = 0; i < E2_BLOCK / 2; i++)
        byte[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
    return _mm_loadu_si128((const __m128i *)(const void *)byte);
}

/* ---- A: rows' doubled values. ---- */

/* Scales' quarters in FP32; +0 where the sums of squares are 0, and no NaN. */
PACK_INLINE __m256i e2_quarters(__m256i code, __m256i squares)
{
    const __m256 quarter =
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(code, 23)), _mm256_set1_ps(0.25f));
    const __m256i zero = _mm256_cmpeq_epi32(squares, _mm256_setzero_si256()),
                  least = _mm256_andnot_si256(zero,
                                              _mm256_cmpeq_epi32(code, _mm256_setzero_si256())),
                  nan = _mm256_cmpeq_epi32(code, _mm256_set1_epi32(E2_NAN)),
                  x = _mm256_blendv_epi8(_mm256_castps_si256(quarter),
                                         _mm256_set1_epi32(1 << 20), least); /* 2^-129 */
    return _mm256_blendv_epi8(x, _mm256_set1_epi32((int)WIDEN_NAN), nan);
}

/* Eight lines, or as many as there are, from line l on. */
PACK_INLINE void e2_block_a(struct e2_panel *t, const bool follow, int64_t p, const int l)
{
    const __m256i values = _mm256_broadcastsi128_si256(_mm_setr_epi8(E2_VALUES)),
                  bias = _mm256_set1_epi8(E2_BIAS);
    const int64_t block = p / E2_BLOCK;
    const int n = t->width - l;
    uint32_t *to = (uint32_t *)(void *)(t->base + t->parts.elements) + e2_before(block) +
                   l * E2_NEXT_ROW,
             *notes = (uint32_t *)(void *)(t->base + t->parts.notes) +
                      block * t->parts.next_notes + l;
    __m256i x[E2_LINES], sum = _mm256_setzero_si256(), squares = sum;
    uint32_t minus[E2_LINES];
    for (int i = 0; i < E2_LINES; i++) {
        const __m256i codes = e2_halves(e2_line(t, follow, p, l + i));
        minus[i] =
            (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(codes, _mm256_set1_epi8(8)));
        x[i] = _mm256_shuffle_epi8(values, codes);
        if (E2_NEXT_QUAD == 1)
            codes_put(to + i * E2_NEXT_ROW, x[i], E2_QUADS);
    }
    codes_turn(x);
    for (int q = 0; q < E2_QUADS; q++) { /* below 2^12 in 16 bits */
        const __m256i size = _mm256_abs_epi8(x[q]);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(bias, x[q]));
        squares = _mm256_add_epi16(squares, _mm256_maddubs_epi16(size, size));
        if (E2_NEXT_QUAD > 1)
            codes_put(to + q * E2_NEXT_QUAD, x[q], n);
    }
    squares = e2_sum(squares);
    const __m256i scale = e2_note(t, l, squares, e2_scales(t, t->w->block[p], l));
    codes_put(notes, _mm256_sub_epi32(_mm256_setzero_si256(), e2_sum(sum)), n);
    codes_put(notes + t->width, e2_quarters(scale, squares), n);
    codes_put(notes + 2 * t->width, pack_load_8(minus), n);
}

/* ---- B: columns' codes. ---- */

/* Sums of squares of what words of codes say, twice 8 bits each, below 2^12 in 16. */
PACK_INLINE __m256i e2_squares(__m256i sum, __m256i codes)
{
    const __m256i sizes = _mm256_broadcastsi128_si256(_mm_setr_epi8(E2_SIZES)),
                  four = _mm256_set1_epi8(0xF),
                  low = _mm256_shuffle_epi8(sizes, _mm256_and_si256(codes, four)),
                  high = _mm256_shuffle_epi8(
                      sizes, _mm256_and_si256(_mm256_srli_epi16(codes, 4), four));
    return _mm256_add_epi16(sum, _mm256_add_epi16(_mm256_maddubs_epi16(low, low),
                                                  _mm256_maddubs_epi16(high, high)));
}

PACK_INLINE uint32_t *e2_words_b(const struct e2_panel *t, int64_t p, int l)
{
    return (uint32_t *)(void *)(t->base + t->parts.elements) +
           p / E2_BLOCK * (E2_BLOCK / 8) * t->width + l;
}

/* Eight columns' scales, and what is to be noted of them. */
PACK_INLINE void e2_conclude_b(struct e2_panel *t, int64_t p, int l, __m256i squares)
{
    const __m256i scale = e2_note(t, l, e2_sum(squares), e2_scales(t, t->w->block[p], l));
    uint32_t code[E2_LINES];
    uint8_t *to = t->base + t->parts.scales + p / E2_BLOCK * t->width + l;
    _mm256_storeu_si256((__m256i *)code, scale);
    for (int i = 0; i < E2_LINES; i++)
        to[i] = (uint8_t)code[i];
}

/* Words of eight codes each, the earlier in lower bits, as the panel has them: code 4 behind
 * code 0, 5 behind 1, 6 behind 2, 7 behind 3. */
PACK_INLINE __m256i e2_in_turn(__m256i x)
{
    const __m256i middle = _mm256_broadcastsi128_si256(
                      _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15)),
                  y = _mm256_shuffle_epi8(x, middle);
    return _mm256_or_si256(
        _mm256_and_si256(y, _mm256_set1_epi16((short)0xF00F)),
        _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(y, 4), _mm256_set1_epi16(0x0F00)),
                        _mm256_and_si256(_mm256_srli_epi16(y, 4), _mm256_set1_epi16(0x00F0))));
}

/* Eight columns, each along k. */
PACK_INLINE void e2_along_b(struct e2_panel *t, const bool follow, int64_t p, int l)
{
    __m256i x[4], squares = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++)
        x[i] = _mm256_set_m128i(e2_line(t, follow, p, l + 4 + i), e2_line(t, follow, p, l + i));
    codes_turn_half(x);
    for (int i = 0; i < 4; i++) {
        const __m256i y = e2_in_turn(x[i]);
        squares = e2_squares(squares, y);
        codes_put(e2_words_b(t, p, l) + i * t->width, y, E2_LINES);
    }
    e2_conclude_b(t, p, l, squares);
}

/* Codes of 16 columns, a byte each, of one row and of another. */
PACK_INLINE __m256i e2_two_rows(const unsigned char *row, const unsigned char *other)
{
    return e2_halves(_mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(const void *)row),
                                        _mm_loadl_epi64((const __m128i *)(const void *)other)));
}

/* 16 columns that are neighbours in memory. */
PACK_INLINE void e2_across_b(struct e2_panel *t, int64_t p, int l)
{
    const struct gemm_operand *o = t->o;
    const int64_t step = o->k / 2;
    const unsigned char *row =
        (const unsigned char *)o->data + (o->offset + t->line + l + t->w->k[p] * o->k) / 2;
    __m256i squares[2] = { _mm256_setzero_si256(), _mm256_setzero_si256() };
    for (int i = 0; i < 4; i += 2, row += 16 * step) { /* words i and i + 1 */
        __m256i y[4];
        for (int j = 0; j < 4; j++)
            y[j] = _mm256_or_si256(
                e2_two_rows(row + j * step, row + (j + 8) * step),
                _mm256_slli_epi16(e2_two_rows(row + (j + 4) * step, row + (j + 12) * step), 4));
        const __m256i a = _mm256_unpacklo_epi8(y[0], y[1]),
                      b = _mm256_unpackhi_epi8(y[0], y[1]),
                      c = _mm256_unpacklo_epi8(y[2], y[3]),
                      d = _mm256_unpackhi_epi8(y[2], y[3]), first = _mm256_unpacklo_epi16(a, c),
                      second = _mm256_unpackhi_epi16(a, c), third = _mm256_unpacklo_epi16(b, d),
                      fourth = _mm256_unpackhi_epi16(b, d);
        const __m256i word[2][2] = { { _mm256_permute2x128_si256(first, second, 0x20),
                                       _mm256_permute2x128_si256(third, fourth, 0x20) },
                                     { _mm256_permute2x128_si256(first, second, 0x31),
                                       _mm256_permute2x128_si256(third, fourth, 0x31) } };
        for (int n = 0; n < 2; n++)
            for (int h = 0; h < 2; h++) {
                squares[h] = e2_squares(squares[h], word[n][h]);
                codes_put(e2_words_b(t, p, l + h * E2_LINES) + (i + n) * t->width, word[n][h],
                          E2_LINES);
            }
    }
    for (int h = 0; h < 2; h++)
        e2_conclude_b(t, p, l + h * E2_LINES, squares[h]);
}

/* ---- A panel. ---- */

static inline void e2_block(struct e2_panel *t, const int width, int64_t p)
{
    const struct gemm_operand *o = t->o;
    const bool follow = e2_follow(t->w, p);
    const bool along = follow && o->k == 1 && e2_whole_bytes(o, o->line),
               across = follow && o->line == 1 && e2_whole_bytes(o, o->k) && t->line % 2 == 0 &&
                        t->lines == width;
    if (t->side == GEMM_A)
        for (int l = 0; l < width; l += E2_LINES)
            if (along)
                e2_block_a(t, true, p, l);
            else
                e2_block_a(t, false, p, l);
    else if (across)
        for (int l = 0; l < width; l += 16)
            e2_across_b(t, p, l);
    else
        for (int l = 0; l < width; l += E2_LINES)
            if (along)
                e2_along_b(t, true, p, l);
            else
                e2_along_b(t, false, p, l);
}

/* Positions [from, to). */
static inline struct e2_norm e2_chain(struct e2_panel *t, const int width, int64_t from,
                                      int64_t to)
{
    struct e2_norm n = { 0, E2_NAN };
    t->least = E2_NAN;
    for (int l = 0; l < width; l++)
        t->squares[l] = 0;
    for (int64_t p = from; p < to; p += E2_BLOCK)
        e2_block(t, width, p);
    n.least = t->least;
    for (int l = 0; l < width; l++)
        n.squares = t->squares[l] > n.squares ? t->squares[l] : n.squares;
    if (to > from)
        e2_settle(t, e2_norm_of_chain(from), &n);
    return n;
}

static inline void e2_pack(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                           int64_t line, int32_t lines, const int width, void *panel)
{
    struct e2_panel t = { .o = side == GEMM_A ? &g->a : &g->b,
                          .w = w,
                          .side = side,
                          .line = line,
                          .lines = lines,
                          .width = width,
                          .base = panel,
                          .parts = e2_parts(w, side, width) };
    struct e2_norm all = { 0, E2_NAN };
    const int32_t *run = w->run;
    for (int64_t i = 0, p = 0; i < w->tiles; i++) {
        struct e2_norm tile = { 0, E2_NAN };
        for (int32_t c = 0; c < w->chains; c++, p += *run++) {
            const struct e2_norm chain = e2_chain(&t, width, p, p + *run);
            e2_join(&tile, &chain);
        }
        e2_settle(&t, e2_norm_of_tile(w, i), &tile);
        e2_join(&all, &tile);
    }
    e2_settle(&t, e2_norm_of_all(w), &all);
    const bool any = all.least < E2_NAN;
    *(struct gemm_panel *)panel =
        (struct gemm_panel){ .lsb_min = any ? all.least - E2_ONE - 1 : PANEL_NONE,
                             .msb_min = any ? all.least - E2_ONE - 1 : PANEL_NONE,
                             .msb_max = any ? t.most - E2_ONE + 2 : -PANEL_NONE,
                             .special = t.nan,
                             .nan_scale = t.nan };
}

/* The value of line l at a position, its scale multiplied in: for exact.h. */
static double e2_value(const unsigned char *panel, const struct gemm_walk *w, gemm_side side,
                       int width, int64_t p, int l)
{
    static const double value[16] = { 0,    0.5,  1,  1.5,  2,  3,  4,  6,
                                      -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 };
    const struct e2_parts parts = e2_parts(w, side, width);
    const int64_t block = p / E2_BLOCK;
    const int at = (int)(p % E2_BLOCK);
    if (side == GEMM_A) {
        const unsigned char *from = panel + parts.elements +
                                    4 * (e2_before(block) + (int64_t)l * E2_NEXT_ROW),
                            *notes = panel + parts.notes + 4 * (block * parts.next_notes + l);
        const double x = (int8_t)from[at / 4 * 4 * E2_NEXT_QUAD + at % 4];
        uint32_t minus;
        float quarter;
        memcpy(&quarter, notes + 4 * width, sizeof quarter);
        memcpy(&minus, notes + 8 * width, sizeof minus);
        return (minus >> at & 1 ? -0.0 : x) * (double)quarter * 2;
    }
    const unsigned char byte =
        panel[parts.elements +
              (size_t)(4 * ((block * (E2_BLOCK / 8) + at / 8) * width + l) + at % 4)];
    const uint8_t scale = panel[parts.scales + (size_t)(block * width + l)];
    const double power = scale == E2_NAN
                             ? (double)as_float(WIDEN_NAN)
                             : exact_double((uint64_t)(scale + 1023 - E2_ONE) << 52);
    return value[at % 8 < 4 ? byte & 0xF : byte >> 4] * power;
}

#endif
