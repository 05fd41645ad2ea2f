/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slim panels: what ng_pack() keeps, and a call of few rows makes, of a B whose codes have 4
 * bits, or 8 where the ISA decodes them soon enough (VEC_BYTES); and what ng_pack() keeps of a
 * sparse B with two values in four places, or fewer. A panel of bf16 pairs takes
 * four times as much memory as they do, or twice as much; a slim one holds the codes, and its
 * other parts as they are. Before a stretch of it is multiplied it grows back, bit for bit,
 * into memory of the worker's own, which takes as long as the multiply of some 16 rows. Few
 * rows therefore read the codes themselves (gemm_slim.h, gemm_bytes.h), where the head lets
 * them; how many: `slim_panels`.
 *
 * Layout, in parts on 64 bytes:
 *   struct gemm_panel
 *   codes      [position / SLIM_DEEP][SLIM_DEEP * bits / 8 * width] bytes, as the ISA's
 *              vec_decode() takes them: vec_code_byte(); of 8 bits [position / 4] and in each
 *              4 * width: vec_byte(). Of a sparse B [position / 8], and in each
 *              [2][width] words of four positions, two bf16 values, and [2][width / VL][2]
 *              masks: vec_kept_decode(); or, SLIM_PLACES, [width] bytes: kept.h
 *   spread, most   as in the panel (packing.h), where they can matter: rule_watches()
 *   scales         as in the panel
 */
#ifndef NG_KERNELS_SLIM_H
#define NG_KERNELS_SLIM_H

#include "intrin.h"
#include "near.h"
#include "order.h"
#include "packing.h"

#ifdef SLIM_PLACES
#include "kept.h"
#endif
#if defined SLIM_PLACES || defined VEC_BYTES
#define SLIM_KEEPS
#endif

enum {
    SLIM_DEEP = 8,     /* positions whose codes lie together */
    SLIM_COLUMNS = 32, /* what a panel is wide, or twice that */
    SLIM_GROUPS = 2,   /* the widest panel has 64 columns */
    SLIM_EARLY = 96    /* positions */
};

/* A bf16 value for two places, and a bit for each. */
#define SLIM_KEPT 9

enum {
    KEPT_PLACES = 4 /* that have at most two values */
};

/* Bits of a code, or of a sparse operand's place. */
static inline int slim_bits(const struct gemm_job *g)
{
    return g->b.sparse ? SLIM_KEPT : (int)g->b.spec->store_bits;
}

/* At most two values in each four places: a chain has all places of its groups (walk.c). */
static inline bool slim_takes_kept(const ng_sparse *s)
{
#ifdef SLIM_KEEPS
    return s->kept <= 2 && s->group % KEPT_PLACES == 0;
#else
    (void)s;
    return false;
#endif
}

/* A sign and a magnitude in a byte, which are looked up apart; for the magnitude see
 * vec_bytes_look_up(). */
static inline bool slim_takes_bytes(const struct gemm_operand *o)
{
#ifdef VEC_BYTES
    return o->spec->store_bits == 8 &&
           (o->spec->kind == NG_KIND_IEEE || o->spec->kind == NG_KIND_FN) &&
           o->spec->man_bits <= 4 && o->spec->bias % 2 != 0;
#else
    (void)o;
    return false;
#endif
}

/* The code of +0, which stands in empty places; none in a table of the caller's: -1. */
static inline int slim_zero(const struct gemm_job *g)
{
    if (!g->fp4 || g->b.spec->format != NG_E2M1)
        return 0;
    for (int i = 0; i < 16; i++)
        if (widen(g->fp4, g->op->fp4_map[i]) == 0)
            return i;
    return -1;
}

static inline bool slim_takes(const struct gemm_job *g, int width)
{
    const bool bits = g->b.sparse         ? slim_takes_kept(g->b.sparse)
                      : slim_bits(g) == 4 ? slim_zero(g) >= 0
                                          : slim_takes_bytes(&g->b);
    return bits && !rule_pieces(g) && pack_fits_bf16(g, &g->b) && g->mode != NG_MODE_NV &&
           width % SLIM_COLUMNS == 0;
}

/* Bytes of the eights of codes before the one that p is in. */
static inline int64_t slim_before(const int bits, int64_t p, int width)
{
    return (int64_t)((uint64_t)p / SLIM_DEEP) * (SLIM_DEEP * bits / 8) * width;
}

static inline int64_t slim_code_bytes(const int bits, const struct gemm_walk *w, int width)
{
    return slim_before(bits, w->depth + SLIM_DEEP - 1, width);
}

static inline struct panel_parts slim_parts(const struct gemm_job *g, const struct gemm_walk *w,
                                            int width, const struct panel_parts *full)
{
    const size_t codes = sizeof(struct gemm_panel) +
                         panel_up((size_t)slim_code_bytes(slim_bits(g), w, width)),
                 spreads = rule_watches(g) ? full->scales - full->spread : 0;
    return (struct panel_parts){ .lo = codes,
                                 .spread = codes,
                                 .most = codes + (spreads ? full->most - full->spread : 0),
                                 .scales = codes + spreads,
                                 .bytes = codes + spreads + (full->bytes - full->scales) };
}

static inline size_t slim_bytes(const struct gemm_job *g, const struct gemm_walk *w, int width)
{
    const struct panel_parts full = panel_parts(g, w, width, true);
    return slim_takes(g, width) ? slim_parts(g, w, width, &full).bytes : 0;
}

/* ---- To the slim form. ---- */

/* SLIM_COLUMNS codes of 4 bits, a byte each. */
PACK_INLINE void slim_nibbles(const unsigned char *from, uint8_t *code)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)from),
                  four = _mm_set1_epi8(0xF), low = _mm_and_si128(x, four),
                  high = _mm_and_si128(_mm_srli_epi16(x, 4), four);
    __m128i *const to = (__m128i *)(void *)code;
    _mm_storeu_si128(to, _mm_unpacklo_epi8(low, high));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi8(low, high));
}

/* Codes of a position's lines, which are neighbours from element `at` on. */
PACK_INLINE void slim_read_across(const int bits, const struct gemm_operand *o, int64_t at,
                                  int32_t lines, uint8_t code[SLIM_GROUPS * SLIM_COLUMNS])
{
    const unsigned char *const from = (const unsigned char *)o->data + at * bits / 8;
    int32_t l = 0;
    for (; bits == 8 && l + SLIM_COLUMNS <= lines; l += SLIM_COLUMNS)
        memcpy(code + l, from + l, SLIM_COLUMNS);
    for (; bits == 4 && at % 2 == 0 && l + SLIM_COLUMNS <= lines; l += SLIM_COLUMNS)
        slim_nibbles(from + l / 2, code + l);
    for (; l < lines; l++)
        code[l] = (uint8_t)load_code(o->data, (uint32_t)bits, at + l);
}

/* Do n places from k[0] on follow each other in memory, on whole bytes? */
PACK_INLINE bool slim_along(const int bits, const struct gemm_operand *o, int64_t first,
                            const int32_t *k, int n)
{
    return o->k == 1 && n == SLIM_DEEP && pack_consecutive(k, SLIM_DEEP) &&
           (bits == 8 || (o->line % 2 == 0 && (first + k[0]) % 2 == 0));
}

/* Places p .. p + n of some lines, a byte a code; code[i] of an empty one stays as it is. */
PACK_INLINE void slim_read(const int bits, const struct gemm_operand *o, const int32_t *k,
                           int n, int64_t line, int32_t lines,
                           uint8_t code[SLIM_DEEP][SLIM_GROUPS * SLIM_COLUMNS])
{
    const int64_t first = o->offset + line * o->line;
    for (int i = 0; i < n; i++) {
        const int64_t here = first + k[i] * o->k;
        if (k[i] >= 0 && o->line == 1)
            slim_read_across(bits, o, here, lines, code[i]);
        for (int l = 0; o->line != 1 && k[i] >= 0 && l < lines; l++)
            code[i][l] = (uint8_t)load_code(o->data, (uint32_t)bits, here + l * o->line);
    }
}

/* Lines along k that are a power of two apart share a few places of the first cache: so many
 * bytes of each are copied side by side before words of all of them are brought together. */
enum {
    SLIM_STRETCH = 64,
    SLIM_AHEAD_OF_LINES = 256 /* bytes; 64 to 512 are as good or a little less */
};

/* n bytes of a line, as many from `at` on; or, of a stretch of bytes, half of them from there
 * and half `apart` from there, in turn. */
PACK_INLINE void slim_beside(const unsigned char *at, int64_t apart, const int n,
                             unsigned char to[SLIM_STRETCH])
{
    if (!apart) {
        memcpy(to, at, (size_t)n);
        return;
    }
    for (int i = 0; i < n; i += 32)
        _mm256_storeu_si256((__m256i *)(void *)(to + i), codes_two_runs(at + i / 2, apart));
}

enum {
    SLIM_WORDS = 4 /* of a line, that are turned together */
};

/* Words of all lines, one word's lines side by side: `words` of each, from byte `at` on. */
PACK_INLINE void slim_words(unsigned char beside[][SLIM_STRETCH], int at, const int words,
                            int width, uint32_t word[SLIM_WORDS][SLIM_GROUPS * SLIM_COLUMNS])
{
    for (int l = 0; words == SLIM_WORDS && l < width; l += CODES_LINES) {
        __m256i x[SLIM_WORDS];
        ORDER_UNROLL
        for (int i = 0; i < SLIM_WORDS; i++)
            x[i] = codes_half_lines(beside[l + i] + at, beside[l + CODES_LINES / 2 + i] + at);
        codes_turn_half(x);
        ORDER_UNROLL
        for (int i = 0; i < SLIM_WORDS; i++)
            _mm256_storeu_si256((__m256i *)(void *)(word[i] + l), x[i]);
    }
    for (int i = 0; words < SLIM_WORDS && i < words; i++)
        for (int l = 0; l < width; l++)
            memcpy(&word[i][l], beside[l] + at + 4 * i, sizeof word[i][l]);
}

/* n bytes of B's lines along k, whose words have eight codes of 4 bits or four of 8; bytes of
 * `empty` where there is no line. `apart`: see slim_beside(). More lines than the CPU follows
 * by itself: what is wanted next comes nearer. */
PACK_INLINE void slim_put_lines(const int bits, const struct gemm_job *g, int64_t at,
                                int64_t apart, const int n, int32_t lines, int width, int empty,
                                uint8_t *out)
{
    enum {
        WORD = 4 /* bytes */
    };
    const int together = n < SLIM_WORDS * WORD ? n / WORD : SLIM_WORDS;
    unsigned char beside[SLIM_GROUPS * SLIM_COLUMNS][SLIM_STRETCH];
    uint32_t word[SLIM_WORDS][SLIM_GROUPS * SLIM_COLUMNS];
    for (int l = 0; l < lines; l++) {
        const unsigned char *const from =
            (const unsigned char *)g->b.data + at + l * g->b.line * bits / 8;
        near_ask(from + SLIM_AHEAD_OF_LINES, g->second);
        if (apart)
            near_ask(from + apart + SLIM_AHEAD_OF_LINES, g->second);
        slim_beside(from, apart, n, beside[l]);
    }
    for (int l = lines; l < width; l++)
        memset(beside[l], empty, (size_t)n);
    for (int i = 0; i < n; i += WORD * together) {
        slim_words(beside, i, together, width, word);
        for (int j = 0; j < together; j++, out += WORD * width) {
            if (bits == 4)
                vec_code_put_words(out, width, word[j]);
#ifdef VEC_BYTES
            else
                for (int l = 0; l < width; l += VL)
                    vec_bytes_put_words(out + VEC_BYTES * l, word[j] + l);
#endif
        }
    }
}

/*
 * Rows of 8-bit codes of n positions that are wanted some positions after p come nearer. (Of 4
 * bits, four panels share a line of the cache: nothing is gained.)
 */
PACK_INLINE void slim_ask_rows(const struct gemm_job *g, const struct gemm_walk *w, int64_t p,
                               int n, int64_t line, int32_t lines)
{
    const struct gemm_operand *o = &g->b;
    const int64_t from = p + SLIM_EARLY;
    for (int64_t i = from; o->line == 1 && i < from + n && i < w->depth; i++)
        if (w->k[i] >= 0)
            pack_ask_row((const unsigned char *)o->data + o->offset + line + w->k[i] * o->k,
                         lines, g->second);
}

/* Positions [from, to); from is a multiple of SLIM_DEEP. */
PACK_INLINE void slim_put(const int bits, const struct gemm_job *g, const struct gemm_walk *w,
                          int64_t from, int64_t to, int64_t line, int32_t lines, int width,
                          uint8_t *out)
{
    enum {
        DEEP_BYTES = SLIM_DEEP / 8
    };
    const int zero = slim_zero(g), stretch = SLIM_STRETCH * 8 / bits;
    const int64_t first = g->b.offset + line * g->b.line;
    for (int64_t p = from, n; p < to; p += n) {
        n = to - p < SLIM_DEEP ? to - p : SLIM_DEEP;
        uint8_t *const here = out + slim_before(bits, p - from, width);
        const int64_t at = (first + w->k[p]) * bits / 8;
        const int empty = bits == 4 ? 0x11 * zero : 0;
        const bool whole = g->b.k == 1 && to - p >= stretch;
        if (slim_along(bits, &g->b, first, w->k + p, (int)n)) {
            if (whole && pack_consecutive(w->k + p, stretch)) {
                n = stretch;
                slim_put_lines(bits, g, at, 0, SLIM_STRETCH, lines, width, empty, here);
            } else {
                slim_put_lines(bits, g, at, 0, DEEP_BYTES * bits, lines, width, empty, here);
            }
            continue;
        }
        if (bits == 8 && whole && pack_in_turn(w->k + p, stretch)) {
            n = stretch;
            slim_put_lines(bits, g, at, w->k[p + 1] - w->k[p], SLIM_STRETCH, lines, width,
                           empty, here);
            continue;
        }
        uint8_t code[SLIM_DEEP][SLIM_GROUPS * SLIM_COLUMNS];
        if (bits == 8)
            slim_ask_rows(g, w, p, (int)n, line, lines);
        memset(code, zero, sizeof code);
        slim_read(bits, &g->b, w->k + p, (int)n, line, lines, code);
        if (bits == 4)
            vec_code_put(here, width, code[0], SLIM_GROUPS * SLIM_COLUMNS);
#ifdef VEC_BYTES
        else
            for (int i = 0; i < SLIM_DEEP; i += VEC_BYTES)
                vec_bytes_put(here + i * width, width, code[i], SLIM_GROUPS * SLIM_COLUMNS);
#endif
    }
}

static void slim_codes(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                       int32_t lines, int width, uint8_t *out)
{
    if (slim_bits(g) == 4)
        slim_put(4, g, w, 0, w->depth, line, lines, width, out);
    else
        slim_put(8, g, w, 0, w->depth, line, lines, width, out);
}

#ifdef SLIM_KEEPS
/* Of a sparse B: the words of the four positions from p on. */
static inline int64_t slim_kept_words(int64_t p, int width)
{
    return slim_before(SLIM_KEPT, p, width) +
           (int64_t)((uint64_t)p / KEPT_PLACES % 2) * KEPT_PLACES * width;
}

#ifdef SLIM_PLACES
/* And the places of the eight that p is among. */
static inline int64_t slim_kept_places(int64_t p, int width)
{
    return slim_before(SLIM_KEPT, p, width) + (int64_t)SLIM_DEEP * width;
}

/* The pairs of VL columns from l on. */
PACK_INLINE void slim_kept_pairs(const uint8_t *codes, const int width, int64_t p, int l,
                                 vec_pairs y[2])
{
    const uint8_t *const words = codes + slim_kept_words(p, width) + KEPT_PLACES * l,
                         *const places = codes + slim_kept_places(p, width) + l;
    if (p % SLIM_DEEP)
        kept_decode(words, places, 1, y);
    else
        kept_decode(words, places, 0, y);
}

PACK_INLINE void slim_keep_four(const vec_pairs y[2], const int width, int64_t p, int l,
                                uint8_t *out)
{
    kept_put(y, out + slim_kept_words(p, width) + KEPT_PLACES * l,
             out + slim_kept_places(p, width) + l, p % SLIM_DEEP != 0);
}
#else
_Static_assert(VL == 16, "a mask of 32 bits for a vector of pairs");

/* And their masks, of the columns from l on. */
static inline int64_t slim_kept_masks(int64_t p, int width, int l)
{
    return slim_before(SLIM_KEPT, p, width) + (int64_t)SLIM_DEEP * width +
           (int64_t)((uint64_t)p / KEPT_PLACES % 2) * KEPT_PLACES * width / 8 +
           l / VL * (int)(2 * sizeof(uint32_t));
}

/* The pairs of 16 columns from l on. */
PACK_INLINE void slim_kept_pairs(const uint8_t *codes, const int width, int64_t p, int l,
                                 vec_pairs y[2])
{
    uint32_t keep[2];
    memcpy(keep, codes + slim_kept_masks(p, width, l), sizeof keep);
    vec_kept_decode(codes + slim_kept_words(p, width) + KEPT_PLACES * l, keep, y);
}

PACK_INLINE void slim_keep_four(const vec_pairs y[2], const int width, int64_t p, int l,
                                uint8_t *out)
{
    uint32_t keep[2];
    vec_kept_put(y, out + slim_kept_words(p, width) + KEPT_PLACES * l, keep);
    memcpy(out + slim_kept_masks(p, width, l), keep, sizeof keep);
}
#endif

/* From a panel's pairs, whose depth is a multiple of 4. */
static void slim_keep(const struct gemm_walk *w, const int width, const uint32_t *pairs,
                      uint8_t *out)
{
    for (int64_t p = 0; p < (w->depth + SLIM_DEEP - 1) / SLIM_DEEP * SLIM_DEEP;
         p += KEPT_PLACES)
        for (int l = 0; l < width; l += VL) {
            vec_pairs y[2] = { vec_pairs_zero(), vec_pairs_zero() };
            for (int i = 0; i < 2 && p < w->depth; i++)
                y[i] = vec_pairs_load(pairs + (p / 2 + i) * width + l);
            slim_keep_four(y, width, p, l, out);
        }
}
#endif

/* The block of n positions; -1: all of them are empty, -2: they have several. */
static inline int32_t slim_block(const struct gemm_walk *w, int64_t p, int64_t n)
{
    int32_t block = -1;
    for (int64_t q = p; q < p + n; q++) {
        if (w->k[q] < 0)
            continue;
        if (block >= 0 && w->block[q] != block)
            return -2;
        block = w->block[q];
    }
    return block;
}

/* Positions that are multiplied under one scale: of 4-bit codes a row of four lanes, of bytes
 * a row of two or four, or a pair; 0: they are not. */
static inline int64_t slim_together(const struct gemm_job *g, const struct gemm_walk *w)
{
    const bool bytes = slim_bits(g) != 4;
    switch (rule_step_of(g)) {
    case STEP_SUM: return w->step == 4 || (bytes && w->step == 2) ? w->step : 0;
    case STEP_FMA: return bytes ? 2 : 0;
    case STEP_TREE: break;
    }
    return 0;
}

/*
 * May codes and scales be multiplied apart? What goes together has one scale, every scale is a
 * normal FP32 number, and the facts are those of scaled values.
 */
static bool slim_direct(const struct gemm_job *g, const struct gemm_walk *w, int width,
                        struct gemm_panel *head, const uint8_t *scales)
{
    const int64_t step = slim_together(g, w);
    if (!step || head->unfolded || head->plain)
        return false;
    if (!w->blocks) {
        head->scale_min = head->scale_max = 127;
        return slim_bits(g) != 4;
    }
    uint8_t least = 255, most = 0;
    for (int64_t i = 0; i < w->blocks * width; i++) {
        least = scales[i] < least ? scales[i] : least;
        most = scales[i] > most ? scales[i] : most;
    }
    head->scale_min = least;
    head->scale_max = most;
    if (head->scale_min < 1 || head->scale_max > 254)
        return false;
    for (int64_t p = w->in_blocks; p < w->depth; p += step)
        if (slim_block(w, p, step) == -2)
            return false;
    return true;
}

static void slim_make(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                      int32_t lines, int width, const void *panel, void *slim)
{
    const struct panel_parts full = panel_parts(g, w, width, true),
                             part = slim_parts(g, w, width, &full);
    const unsigned char *from = panel;
    unsigned char *to = slim;
    struct gemm_panel *head = slim;
    memcpy(head, panel, sizeof *head);
#ifdef SLIM_KEEPS
    if (g->b.sparse)
        slim_keep(w, width, (const uint32_t *)(const void *)(from + sizeof *head),
                  to + sizeof *head);
#endif
    if (!g->b.sparse)
        slim_codes(g, w, line, lines, width, to + sizeof *head);
    memcpy(to + part.spread, from + full.spread, part.scales - part.spread);
    memcpy(to + part.scales, from + full.scales, full.bytes - full.scales);
    uint8_t nan = 0;
    for (int64_t i = 0; i < w->blocks * width; i++)
        nan |= from[full.scales + (size_t)i] == 255;
    head->plain = head->special | nan;
    head->direct = slim_direct(g, w, width, head, from + full.scales);
}

/* ---- And back. ---- */

/* What is wanted next comes to the second cache. */
PACK_INLINE void slim_ask(const uint8_t *bytes, int64_t n)
{
    for (int64_t i = 0; i < n; i += 64)
        __builtin_prefetch(bytes + i, 0, 2);
}

/* The code at position p of column l. */
static inline uint8_t slim_code(const int bits, const uint8_t *codes, int width, int64_t p,
                                int l)
{
    const int at = (int)(p % SLIM_DEEP);
    codes += slim_before(bits, p, width);
#ifdef VEC_BYTES
    if (bits == 8)
        return codes[at / VEC_BYTES * VEC_BYTES * width + vec_byte(l, at % VEC_BYTES)];
#endif
    return codes[vec_code_byte(width, at, l)] >> vec_code_shift(at, l) & 0xF;
}

/* One position after another, in plain C. */
static void slim_grow_plain(const int bits, const struct gemm_walk *w, int width, bool fold,
                            int64_t from, int64_t to, const uint8_t *codes,
                            const uint8_t *scales, uint32_t *out)
{
    uint32_t v[2][SLIM_GROUPS * SLIM_COLUMNS];
    for (int64_t p = from; p < to; p++) {
        uint32_t *const x = v[p % 2];
        for (int l = 0; l < width; l++)
            x[l] = w->widen[GEMM_B][slim_code(bits, codes, width, p, l)];
        if (fold && w->k[p] >= 0) /* all of them fit: they did when they were packed */
            (void)pack_fold(x, scales + (int64_t)w->block[p] * width, width);
        for (int l = 0; p % 2 && l < width; l++)
            out[p / 2 * width + l] = (v[0][l] & 0xFFFF0000u) | v[1][l] >> 16;
    }
}

/* The scales in force: what two positions' add to pairs. */
struct slim_scales {
    int32_t block[2];
    vec_pairs step[SLIM_GROUPS * SLIM_COLUMNS / VL];
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
    for (int l = 0; l < width; l += VL)
        s->step[l / VL] = vec_pairs_step(scales + (int64_t)first * width + l,
                                         scales + (int64_t)second * width + l);
}

PACK_INLINE void slim_grow_pair(const struct vec_codes *t, const struct slim_scales *s,
                                const int width, const bool fold, const uint8_t *codes,
                                const int at, uint32_t *out)
{
    for (int l = 0; l < width; l += SLIM_COLUMNS / 2) {
        vec_pairs x[SLIM_COLUMNS / 2 / VL];
        vec_decode(t, codes, width, at, l, x);
        for (int i = 0; i < SLIM_COLUMNS / 2 / VL; i++) {
            const int col = l + i * VL;
            vec_pairs_store(out + col, fold ? vec_pairs_fold(x[i], s->step[col / VL]) : x[i]);
        }
    }
}

_Static_assert(SLIM_DEEP == 8, "words of a vector");

/* Are the positions of eight codes one block's? */
PACK_INLINE bool slim_one(const struct gemm_walk *w, int64_t p)
{
    const __m256i block = _mm256_loadu_si256((const __m256i *)(const void *)(w->block + p)),
                  k = _mm256_loadu_si256((const __m256i *)(const void *)(w->k + p)),
                  other =
                      _mm256_or_si256(_mm256_xor_si256(block, _mm256_set1_epi32(w->block[p])),
                                      _mm256_and_si256(k, _mm256_set1_epi32(INT32_MIN)));
    return _mm256_testz_si256(other, other);
}

/* Positions from p on, before `to`, which is even as p is: how many. Their pairs go to `pair`.
 */
PACK_INLINE int64_t slim_grow_next(const struct vec_codes *t, const struct gemm_walk *w,
                                   const int width, const bool fold, int64_t p, int64_t to,
                                   const uint8_t *codes, const uint8_t *scales,
                                   struct slim_scales *s, uint32_t *pair)
{
    const uint8_t *const together = codes + slim_before(4, p, width);
    if (fold)
        slim_look_up_scales(w, p, width, scales, s);
    if (p % SLIM_DEEP == 0 && p + SLIM_DEEP <= to && (!fold || slim_one(w, p))) {
        ORDER_UNROLL
        for (int at = 0; at < SLIM_DEEP; at += 2)
            slim_grow_pair(t, s, width, fold, together, at, pair + at / 2 * width);
        return SLIM_DEEP;
    }
    switch (p % SLIM_DEEP) {
    case 0: slim_grow_pair(t, s, width, fold, together, 0, pair); break;
    case 2: slim_grow_pair(t, s, width, fold, together, 2, pair); break;
    case 4: slim_grow_pair(t, s, width, fold, together, 4, pair); break;
    default: slim_grow_pair(t, s, width, fold, together, 6, pair);
    }
    return 2;
}

static inline struct slim_scales slim_no_scales(const int width)
{
    struct slim_scales s = { .block = { -1, -1 } };
    for (int l = 0; l < width / VL; l++)
        s.step[l] = vec_pairs_zero();
    return s;
}

PACK_INLINE void slim_grow_stretch(const struct gemm_walk *w, const int width, const bool fold,
                                   int64_t from, int64_t to, const uint8_t *codes,
                                   const uint8_t *scales, int64_t next, uint32_t *out)
{
    const struct vec_codes t = vec_code_table(w->widen[GEMM_B]);
    struct slim_scales s = slim_no_scales(width);
    for (int64_t p = from; p < to;) {
        if (p % SLIM_DEEP == 0)
            slim_ask(codes + slim_before(4, p, width) + next, SLIM_DEEP / 2 * width);
        p += slim_grow_next(&t, w, width, fold, p, to, codes, scales, &s, out + p / 2 * width);
    }
}

#ifdef VEC_BYTES
/* The pairs from position p on, which is even: of two positions, or of four where `four`. */
PACK_INLINE void slim_grow_bytes(const struct vec_bytes *t, const struct slim_scales *s,
                                 const int width, const bool fold, const bool four, int64_t p,
                                 const uint8_t *codes, uint32_t *out)
{
    const uint8_t *const word = codes + (int64_t)((uint64_t)p / VEC_BYTES) * VEC_BYTES * width;
    for (int l = 0; l < width; l += VL) {
        vec_pairs y[2];
        vec_bytes_decode(t, word + VEC_BYTES * l, y);
        ORDER_UNROLL
        for (int i = 0; i < 2; i++)
            y[i] = fold ? vec_pairs_fold(y[i], s->step[l / VL]) : y[i];
        if (four) {
            vec_pairs_store(out + l, y[0]);
            vec_pairs_store(out + width + l, y[1]);
        } else {
            vec_pairs_store(out + l, p % VEC_BYTES ? y[1] : y[0]);
        }
    }
}

PACK_INLINE void slim_grow_bytes_stretch(int man_bits, const struct gemm_walk *w,
                                         const int width, const bool fold, int64_t from,
                                         int64_t to, const uint8_t *codes,
                                         const uint8_t *scales, int64_t next, uint32_t *out)
{
    const struct vec_bytes t = vec_bytes_table(w->widen[GEMM_B], man_bits);
    struct slim_scales s = slim_no_scales(width);
    for (int64_t p = from, n; p < to; p += n, out += n / 2 * width) {
        if (fold)
            slim_look_up_scales(w, p, width, scales, &s);
        n = 2;
        if (p % SLIM_DEEP == 0 && p + SLIM_DEEP <= to && (!fold || slim_one(w, p))) {
            n = SLIM_DEEP;
            slim_ask(codes + slim_before(8, p, width) + next, SLIM_DEEP * width);
            ORDER_UNROLL
            for (int at = 0; at < SLIM_DEEP; at += VEC_BYTES)
                slim_grow_bytes(&t, &s, width, fold, true, p + at, codes, out + at / 2 * width);
        } else {
            slim_grow_bytes(&t, &s, width, fold, false, p, codes, out);
        }
    }
}
#endif

#ifdef SLIM_KEEPS
/* Of a sparse B: `from` and `to` are multiples of 4, as all groups are. */
PACK_INLINE void slim_grow_kept(const int width, int64_t from, int64_t to, const uint8_t *codes,
                                int64_t next, uint32_t *out)
{
    for (int64_t p = from; p < to; p += KEPT_PLACES) {
        if (p % SLIM_DEEP == 0)
            slim_ask(codes + slim_before(SLIM_KEPT, p, width) + next, SLIM_KEPT * width);
        for (int l = 0; l < width; l += VL) {
            vec_pairs y[2];
            slim_kept_pairs(codes, width, p, l, y);
            vec_pairs_store(out + p / 2 * width + l, y[0]);
            vec_pairs_store(out + (p / 2 + 1) * width + l, y[1]);
        }
    }
}
#endif

/* Positions [from, to) of pairs, in vectors. */
PACK_INLINE void slim_grow_vectors(const int bits, const struct gemm_job *g,
                                   const struct gemm_walk *w, const int width, const bool fold,
                                   int64_t from, int64_t to, const uint8_t *codes,
                                   const uint8_t *scales, int64_t next, uint32_t *elements)
{
#ifdef VEC_BYTES
    if (bits == 8) {
        slim_grow_bytes_stretch((int)g->b.spec->man_bits, w, width, fold, from, to, codes,
                                scales, next, elements + from / 2 * width);
        return;
    }
#else
    (void)bits;
    (void)g;
#endif
    slim_grow_stretch(w, width, fold, from, to, codes, scales, next, elements);
}

PACK_INLINE void slim_grow_elements(const int bits, const struct gemm_job *g,
                                    const struct gemm_walk *w, const int width,
                                    const struct gemm_panel *head, int64_t from, int64_t to,
                                    const uint8_t *codes, const uint8_t *scales, int64_t next,
                                    uint32_t *elements)
{
    const bool fold = w->blocks > 0 && !head->unfolded;
    if (head->plain)
        slim_grow_plain(bits, w, width, fold, from, to, codes, scales, elements);
    else if (fold)
        slim_grow_vectors(bits, g, w, width, true, from, to, codes, scales, next, elements);
    else
        slim_grow_vectors(bits, g, w, width, false, from, to, codes, scales, next, elements);
}

/* Positions [from, to), which are whole rows of lanes, or GEMM_GRAIN's; those of the panel
 * `next` bytes behind come nearer meanwhile. */
static void slim_grow(const struct gemm_job *g, const struct gemm_walk *w, const int width,
                      int64_t from, int64_t to, const void *slim, int64_t next, void *panel)
{
    const struct panel_parts full = panel_parts(g, w, width, true),
                             part = slim_parts(g, w, width, &full);
    const struct gemm_panel *head = slim;
    const unsigned char *in = slim, *codes = in + sizeof *head, *scales = in + part.scales;
    unsigned char *out = panel;
    uint32_t *elements = (uint32_t *)(void *)(out + sizeof *head);
    memcpy(out, in, sizeof *head);
    if (part.most > part.spread) {
        const size_t row = (size_t)(from / w->step), rows = (size_t)(to / w->step) - row,
                     groups = spread_groups(width);
        memcpy(out + full.spread + row * (size_t)width, in + part.spread + row * (size_t)width,
               rows * (size_t)width);
        memcpy(out + full.most + row * groups, in + part.most + row * groups, rows * groups);
        slim_ask(in + part.spread + row * (size_t)width + next, (int64_t)rows * width);
        slim_ask(in + part.most + row * groups + next, (int64_t)(rows * groups));
    }
    slim_ask(in + part.scales + next, w->blocks * width);
    if (head->unfolded)
        memcpy(out + full.scales, scales, (size_t)w->blocks * (size_t)width);
#ifdef SLIM_KEEPS
    if (g->b.sparse) {
        slim_grow_kept(width, from, to, codes, next, elements);
        return;
    }
#endif
    if (slim_bits(g) == 4)
        slim_grow_elements(4, g, w, width, head, from, to, codes, scales, next, elements);
    else
        slim_grow_elements(8, g, w, width, head, from, to, codes, scales, next, elements);
}

#endif
