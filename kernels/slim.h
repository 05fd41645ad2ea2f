/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slim panels: what ng_pack() keeps of a B whose codes have 4 bits. A panel of bf16 pairs takes
 * four times as much memory as they do; a slim one holds the codes, and its other parts as they
 * are. Before a stretch of it is multiplied it grows back, bit for bit, into memory of the
 * worker's own: 0.6 operations a code, which is little beside the multiply of 8 rows, but as
 * much as that of one, which memory limits otherwise: AVX2 multiplies one row at 0.5 to 0.95 of
 * the speed that a third of the memory is paid with.
 *
 * Layout, in parts on 64 bytes:
 *   struct gemm_panel
 *   codes      [position][width / 2] bytes: of SLIM_COLUMNS columns the first half in the low
 *              nibbles, the second in the high ones
 *   spread, most, scales    as in the panel (packing.h)
 */
#ifndef NG_KERNELS_SLIM_H
#define NG_KERNELS_SLIM_H

#include "packing.h"

enum {
    SLIM_COLUMNS = 32, /* nibbles of half a vector */
    SLIM_GROUPS = 2    /* the widest panel has 64 columns */
};

/* Not with a table of values of the caller's: its code 0 need not be the +0 of empty places. */
static inline bool slim_takes(const struct gemm_job *g, int width)
{
    return g->b.spec->store_bits == 4 && !g->fp4 && !g->b.sparse && !rule_pieces(g) &&
           pack_fits_bf16(g, &g->b) && width % SLIM_COLUMNS == 0;
}

/* The parts of both forms lie alike behind the elements. */
static inline struct panel_parts slim_parts(const struct gemm_walk *w, int width,
                                            const struct panel_parts *full)
{
    const size_t codes = panel_up((size_t)w->depth * (size_t)width / 2),
                 gone = full->lo - sizeof(struct gemm_panel) - codes;
    return (struct panel_parts){ .lo = full->lo - gone,
                                 .spread = full->spread - gone,
                                 .most = full->most - gone,
                                 .scales = full->scales - gone,
                                 .bytes = full->bytes - gone };
}

static inline size_t slim_bytes(const struct gemm_job *g, const struct gemm_walk *w, int width)
{
    const struct panel_parts full = panel_parts(g, w, width, true);
    return slim_takes(g, width) ? slim_parts(w, width, &full).bytes : 0;
}

/* ---- To the slim form. ---- */

static void slim_codes(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                       int32_t lines, int width, uint8_t *out)
{
    const struct gemm_operand *o = &g->b;
    memset(out, 0, (size_t)w->depth * (size_t)width / 2);
    for (int64_t p = 0; p < w->depth; p++, out += width / 2)
        for (int l = 0; w->k[p] >= 0 && l < lines; l++) {
            const uint32_t code =
                load_code(o->data, 4, o->offset + (line + l) * o->line + w->k[p] * o->k);
            const int half = l % SLIM_COLUMNS / (SLIM_COLUMNS / 2);
            out[l / SLIM_COLUMNS * (SLIM_COLUMNS / 2) + l % (SLIM_COLUMNS / 2)] |=
                (uint8_t)(code << 4 * half);
        }
}

static void slim_make(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                      int32_t lines, int width, const void *panel, void *slim)
{
    const struct panel_parts full = panel_parts(g, w, width, true),
                             part = slim_parts(w, width, &full);
    const unsigned char *from = panel;
    unsigned char *to = slim;
    struct gemm_panel *head = slim;
    memcpy(head, panel, sizeof *head);
    slim_codes(g, w, line, lines, width, to + sizeof *head);
    memcpy(to + part.spread, from + full.spread, full.bytes - full.spread);
    for (int64_t i = 0; i < w->blocks * width; i++)
        head->nan_scale |= from[full.scales + (size_t)i] == 255;
}

/* ---- And back. ---- */

/* One position after another, in plain C. */
static void slim_grow_plain(const struct gemm_walk *w, int width, bool fold, int64_t from,
                            int64_t to, const uint8_t *codes, const uint8_t *scales,
                            uint32_t *out)
{
    uint32_t v[2][SLIM_GROUPS * SLIM_COLUMNS];
    for (int64_t p = from; p < to; p++) {
        uint32_t *const x = v[p % 2];
        for (int l = 0; l < width; l++) {
            const int half = l % SLIM_COLUMNS / (SLIM_COLUMNS / 2);
            const uint8_t *at = codes + p * width / 2 + l / SLIM_COLUMNS * (SLIM_COLUMNS / 2);
            x[l] = w->widen[GEMM_B][at[l % (SLIM_COLUMNS / 2)] >> 4 * half & 0xF];
        }
        if (fold && w->k[p] >= 0) /* all of them fit: they did when they were packed */
            (void)pack_fold(x, scales + (int64_t)w->block[p] * width, width);
        for (int l = 0; p % 2 && l < width; l++)
            out[p / 2 * width + l] = (v[0][l] & 0xFFFF0000u) | v[1][l] >> 16;
    }
}

/* The upper two bytes of 16 codes' FP32 patterns. */
struct slim_table {
    __m256i low, high;
};

static struct slim_table slim_table(const uint32_t *widen)
{
    uint8_t low[16], high[16];
    for (int i = 0; i < 16; i++) {
        low[i] = (uint8_t)(widen[i] >> 16);
        high[i] = (uint8_t)(widen[i] >> 24);
    }
    return (struct slim_table){
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)low)),
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)high))
    };
}

/* What scales add to bf16 patterns that are not zero, for 8 columns. */
static __m128i slim_steps(const uint8_t *scale)
{
    const __m128i s = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)scale));
    return _mm_slli_epi16(_mm_sub_epi16(s, _mm_set1_epi16(127)), 7);
}

/* The scales in force: two positions', eight columns a vector. */
struct slim_scales {
    int32_t block[2];
    __m256i step[SLIM_GROUPS * SLIM_COLUMNS / 8];
};

static inline void slim_look_up_scales(const struct gemm_walk *w, int64_t p, int width,
                                       const uint8_t *scales, struct slim_scales *s)
{
    /* an empty place has the code 0, which no scale moves */
    const int32_t first = w->k[p] >= 0 ? w->block[p] : s->block[0],
                  second = w->k[p + 1] >= 0 ? w->block[p + 1] : s->block[1];
    if (first == s->block[0] && second == s->block[1])
        return;
    s->block[0] = first;
    s->block[1] = second;
    for (int l = 0; l < width; l += 8)
        s->step[l / 8] = _mm256_set_m128i(slim_steps(scales + (int64_t)second * width + l),
                                          slim_steps(scales + (int64_t)first * width + l));
}

/* Eight columns of two positions, a lane each, to pairs: the first in the upper half. */
PACK_INLINE void slim_pairs(__m256i x, const bool fold, __m256i step, uint32_t *out)
{
    const __m256i turn = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(8, 9, 0, 1, 10, 11, 2, 3, 12, 13, 4, 5, 14, 15, 6, 7));
    if (fold) {
        const __m256i zero =
            _mm256_cmpeq_epi16(_mm256_slli_epi16(x, 1), _mm256_setzero_si256());
        x = _mm256_add_epi16(x, _mm256_andnot_si256(zero, step));
    }
    x = _mm256_shuffle_epi8(_mm256_permute4x64_epi64(x, 0xD8), turn);
    _mm256_storeu_si256((__m256i *)(void *)out, x);
}

PACK_INLINE void slim_grow_stretch(const struct gemm_walk *w, const int width, const bool fold,
                                   int64_t from, int64_t to, const uint8_t *codes,
                                   const uint8_t *scales, uint32_t *out)
{
    const struct slim_table t = slim_table(w->widen[GEMM_B]);
    const __m256i nibble = _mm256_set1_epi8(0xF);
    struct slim_scales s = { .block = { -1, -1 } };
    for (int l = 0; l < width / 8; l++)
        s.step[l] = _mm256_setzero_si256();
    for (int64_t p = from; p < to; p += 2) {
        if (fold)
            slim_look_up_scales(w, p, width, scales, &s);
        for (int l = 0; l < width; l += SLIM_COLUMNS) {
            const uint8_t *at = codes + (p * width + l) / 2;
            const __m256i both = _mm256_set_m128i(
                _mm_loadu_si128((const __m128i *)(const void *)(at + width / 2)),
                _mm_loadu_si128((const __m128i *)(const void *)at));
            for (int half = 0; half < 2; half++) {
                const __m256i c =
                    _mm256_and_si256(half ? _mm256_srli_epi16(both, 4) : both, nibble);
                const __m256i low = _mm256_shuffle_epi8(t.low, c),
                              high = _mm256_shuffle_epi8(t.high, c);
                const int col = l + half * SLIM_COLUMNS / 2;
                uint32_t *to_col = out + p / 2 * width + col;
                slim_pairs(_mm256_unpacklo_epi8(low, high), fold, s.step[col / 8], to_col);
                slim_pairs(_mm256_unpackhi_epi8(low, high), fold, s.step[col / 8 + 1],
                           to_col + 8);
            }
        }
    }
}

/* Positions [from, to), which are whole rows of lanes. */
static void slim_grow(const struct gemm_job *g, const struct gemm_walk *w, const int width,
                      int64_t from, int64_t to, const void *slim, void *panel)
{
    const struct panel_parts full = panel_parts(g, w, width, true),
                             part = slim_parts(w, width, &full);
    const struct gemm_panel *head = slim;
    const unsigned char *in = slim, *codes = in + sizeof *head, *scales = in + part.scales;
    unsigned char *out = panel;
    uint32_t *elements = (uint32_t *)(void *)(out + sizeof *head);
    const bool fold = w->blocks > 0 && !head->unfolded;
    memcpy(out, in, sizeof *head);
    if (full.most > full.spread) {
        const size_t row = (size_t)(from / w->step), rows = (size_t)(to / w->step) - row,
                     groups = spread_groups(width);
        memcpy(out + full.spread + row * (size_t)width, in + part.spread + row * (size_t)width,
               rows * (size_t)width);
        memcpy(out + full.most + row * groups, in + part.most + row * groups, rows * groups);
    }
    if (head->unfolded)
        memcpy(out + full.scales, scales, (size_t)w->blocks * (size_t)width);
    if (fold && head->nan_scale)
        slim_grow_plain(w, width, true, from, to, codes, scales, elements);
    else if (fold)
        slim_grow_stretch(w, width, true, from, to, codes, scales, elements);
    else
        slim_grow_stretch(w, width, false, from, to, codes, scales, elements);
}

#endif
