/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed panels: up to `width` lines of an operand, decoded, in the order of the walk.
 *
 *   header    struct gemm_panel, 64 bytes
 *   elements  FP32 patterns [position][width]; or, for values with at most 8 significant bits,
 *             words of two positions [position / 2][width], the earlier one in the upper half:
 *             bf16. With FP32 in pieces two such arrays: hi, then lo.
 *   spread    [row step][width] bytes, then [row step][width / 16] their maxima: STEP_SUM only
 *   scales    [block][width] codes: MX only
 *
 * Lines past the operand's are zeros. Compiled into every ISA with its own flags: the vectors
 * of codes.h, and for what they do not take plain C.
 */
#ifndef NG_KERNELS_PACKING_H
#define NG_KERNELS_PACKING_H

#include "codes.h"
#include "near.h"
#include "rule.h"
#include "widen.h"

#define PACK_INLINE static inline __attribute__((always_inline))

enum {
    PANEL_NONE = 1000 /* bounds of a panel without a finite element that is not zero */
};

/* Lines are read side by side, each as long as k: too many, and too short, for what a CPU
 * fetches by itself. So those of the panel behind it come nearer, a line's bytes at `at` on:
 * `next` after them, 0 where there is none. */
static inline void pack_ask(const unsigned char *at, int64_t next)
{
    __builtin_prefetch(at + next);
}

/* From a line of the panel of A that begins at `first` to that line of the next one, in lines.
 */
static inline int64_t pack_next(const struct gemm_job *g, int64_t first, int32_t lines)
{
    return first + 2 * lines <= g->m ? lines : 0;
}

/* Where the parts of a panel begin, in bytes. */
struct panel_parts {
    size_t lo, spread, most, scales, bytes;
};

static inline size_t panel_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

static inline size_t spread_groups(int width)
{
    return (size_t)(width + 15) / 16;
}

static inline struct panel_parts panel_parts(const struct gemm_job *g,
                                             const struct gemm_walk *w, int width, bool pairs)
{
    const size_t words = (size_t)(pairs ? w->depth / 2 : w->depth) * (size_t)width;
    const size_t steps = rule_step_of(g) == STEP_SUM ? (size_t)(w->depth / w->step) : 0;
    struct panel_parts p = { .lo = sizeof(struct gemm_panel) + panel_up(4 * words) };
    p.spread = p.lo + (rule_pieces(g) ? panel_up(4 * words) : 0);
    p.most = p.spread + panel_up(steps * (size_t)width);
    p.scales = p.most + panel_up(steps * spread_groups(width));
    p.bytes = p.scales + panel_up((size_t)w->blocks * (size_t)width);
    return p;
}

/* Do all of an operand's values fit bf16: 8 significant bits, an exponent of FP32's range? */
static inline bool pack_fits_bf16(const struct gemm_job *g, const struct gemm_operand *o)
{
    return rule_fraction(g, o) <= 7;
}

/* ---- Facts. ---- */

/* In lanes of their own, so that nothing need be reduced before the end. */
struct pack_facts {
    uint32_t low[16], high[16], special[16]; /* exponent fields */
    struct codes_facts codes;                /* of elements that codes.h read */
};

PACK_INLINE void pack_facts_begin(struct pack_facts *f)
{
    for (int l = 0; l < 16; l++) {
        f->low[l] = 255;
        f->high[l] = 0;
        f->special[l] = 0;
    }
    codes_facts_begin(&f->codes);
}

/* n is a multiple of 16. Zeros, also those of absent places, say nothing. */
PACK_INLINE void pack_note(struct pack_facts *f, const uint32_t *v, int n)
{
    for (int i = 0; i < n; i += 16)
        for (int l = 0; l < 16; l++) {
            const uint32_t e = v[i + l] >> 23 & 0xFFu, low = v[i + l] << 1 ? e : 255u;
            f->low[l] = low < f->low[l] ? low : f->low[l];
            f->high[l] = e != 255u && e > f->high[l] ? e : f->high[l];
            f->special[l] |= e == 255u;
        }
}

/* What codes.h found, to the rest. */
static inline void pack_join(struct pack_facts *f, const ng_format_spec *spec)
{
    uint16_t least[CODES], most[CODES], special[CODES];
    _mm256_storeu_si256((__m256i *)least, f->codes.least);
    _mm256_storeu_si256((__m256i *)most, f->codes.most);
    _mm256_storeu_si256((__m256i *)special, f->codes.special);
    for (int l = 0; l < CODES; l++) {
        const uint32_t low = least[l] == 0xFFFF ? 255 : codes_exponent(spec, least[l] + 1u),
                       high = codes_exponent(spec, most[l]);
        f->low[l] = low < f->low[l] ? low : f->low[l];
        f->high[l] = high > f->high[l] ? high : f->high[l];
        f->special[l] |= special[l] != 0;
    }
}

/* Eight words. */
PACK_INLINE __m256i pack_load_8(const uint32_t *v)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)v);
}

static inline void pack_conclude(const struct pack_facts *f, int man_bits, struct gemm_panel *p)
{
    uint32_t low = 255, high = 0, special = 0;
    for (int l = 0; l < 16; l++) {
        low = f->low[l] < low ? f->low[l] : low;
        high = f->high[l] > high ? f->high[l] : high;
        special |= f->special[l];
    }
    p->special = (uint8_t)special;
    p->lsb_min = PANEL_NONE;
    p->msb_min = PANEL_NONE;
    p->msb_max = -PANEL_NONE;
    if (low == 255)
        return;
    p->lsb_min = (int)(low ? low : 1) - 127 - man_bits;
    p->msb_min = low ? (int)low - 127 : -149;
    p->msb_max = (int)(high ? high : 1) - 127;
}

/*
 * ---- Spread of a row's lanes ----
 *
 * With l the exponent of the lowest set bit among a row's elements, every partial sum of the
 * row's products is a multiple of 2^(l_a + l_b), and at most S_a M_b in magnitude: S the sum of
 * A's magnitudes, M the largest of B's. It is an FP32 number if S_a M_b / 2^(l_a + l_b) <=
 * 2^24. A's byte holds log2 S - l, B's log2 M - l, in eighths, rounded up: 192 is the limit of
 * the two. 255 stands for all above.
 */
enum {
    SPREAD_UNIT = 8,
    SPREAD_MAX = 255,
    SPREAD_GROUP = 16, /* columns whose largest byte stands in `most` */
    /*
     * log2 x <= e + f + 0.0861 for x = 2^e (1 + f), and e + f is x's pattern in fixed point.
     * Added before it is cut to eighths: 0.0861 * 2^23, what rounds up, and what covers the
     * rounding of S, a few last places.
     */
    SPREAD_UP = 722260 + (1 << 20) - 1 + 64
};

struct pack_spread {
    int32_t low[64]; /* exponent field of the lowest set bit */
    float top[64];   /* S or M */
};

/* Eight lanes of it. */
struct pack_spread_8 {
    __m256i low;
    __m256 top;
};

PACK_INLINE void pack_spread_begin(struct pack_spread *s, int width)
{
    for (int l = 0; l < width; l++) {
        s->low[l] = PANEL_NONE;
        s->top[l] = 0;
    }
}

/* As pack_spread_note() does one lane. */
PACK_INLINE void pack_spread_note_8(struct pack_spread_8 *s, __m256i v, const bool sum)
{
    const __m256i zero = _mm256_setzero_si256(), all = _mm256_set1_epi32(0xFF),
                  magnitude = _mm256_and_si256(v, _mm256_set1_epi32(0x7FFFFFFF)),
                  e = _mm256_srli_epi32(magnitude, 23),
                  counts = _mm256_andnot_si256(_mm256_cmpeq_epi32(e, all),
                                               _mm256_cmpgt_epi32(e, zero)),
                  sig = _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(0x7FFFFF)),
                                        _mm256_set1_epi32(0x800000));
    const __m256 lowest =
        _mm256_cvtepi32_ps(_mm256_and_si256(sig, _mm256_sub_epi32(zero, sig)));
    const __m256i bit = _mm256_srli_epi32(_mm256_castps_si256(lowest), 23),
                  lsb = _mm256_sub_epi32(_mm256_add_epi32(e, bit), _mm256_set1_epi32(150)),
                  low = _mm256_blendv_epi8(_mm256_set1_epi32(PANEL_NONE), lsb, counts);
    const __m256 mag = _mm256_castsi256_ps(_mm256_and_si256(magnitude, counts));
    s->low = _mm256_min_epi32(low, s->low);
    s->top = sum ? _mm256_add_ps(s->top, mag) : _mm256_max_ps(mag, s->top);
}

PACK_INLINE void pack_spread_note(struct pack_spread *s, const uint32_t *v, int width, bool sum)
{
    int l = 0;
    for (; l + 8 <= width; l += 8) {
        __m256i *const low = (__m256i *)(void *)(s->low + l);
        struct pack_spread_8 x = { _mm256_loadu_si256(low), _mm256_loadu_ps(s->top + l) };
        pack_spread_note_8(&x, pack_load_8(v + l), sum);
        _mm256_storeu_si256(low, x.low);
        _mm256_storeu_ps(s->top + l, x.top);
    }
    for (; l < width; l++) {
        const int32_t e = (int32_t)(v[l] >> 23 & 0xFFu);
        const int32_t sig = (int32_t)((v[l] & 0x7FFFFFu) | 0x800000u);
        const float lowest = (float)(sig & -sig); /* a power of two: exact */
        const int32_t lsb = e - 23 + (int32_t)(as_pattern(lowest) >> 23) - 127;
        const bool counts = e && e != 255;
        const float mag = as_float(counts ? v[l] & 0x7FFFFFFFu : 0);
        const int32_t low = counts ? lsb : PANEL_NONE;
        s->low[l] = low < s->low[l] ? low : s->low[l];
        s->top[l] = sum ? s->top[l] + mag : mag > s->top[l] ? mag : s->top[l];
    }
}

/* A sum of magnitudes past FP32's range says nothing of its size: the largest byte. */
PACK_INLINE int pack_spread_byte(float top, int32_t low)
{
    const int32_t log2_up = (int32_t)((as_pattern(top) + SPREAD_UP) >> 20);
    const int32_t x = log2_up - SPREAD_UNIT * low;
    return top == 0 ? 0 : x > SPREAD_MAX || as_pattern(top) >= WIDEN_INF ? SPREAD_MAX : x;
}

/* pack_spread_byte() of eight lanes. */
PACK_INLINE __m256i pack_spread_bytes_8(const struct pack_spread_8 *s)
{
    const __m256i top = _mm256_castps_si256(s->top),
                  log2_up = _mm256_srli_epi32(
                      _mm256_add_epi32(top, _mm256_set1_epi32(SPREAD_UP)), 20),
                  none = _mm256_cmpeq_epi32(top, _mm256_setzero_si256()),
                  past = _mm256_cmpgt_epi32(top, _mm256_set1_epi32((int)WIDEN_INF - 1)),
                  x = _mm256_sub_epi32(log2_up, _mm256_slli_epi32(s->low, 3));
    _Static_assert(SPREAD_UNIT == 1 << 3, "eighths");
    return _mm256_min_epu32(_mm256_or_si256(_mm256_andnot_si256(none, x), past),
                            _mm256_set1_epi32(SPREAD_MAX));
}

PACK_INLINE int pack_largest_byte(__m128i bytes)
{
    const __m128i inverse = _mm_xor_si128(bytes, _mm_set1_epi8(-1)),
                  least = _mm_minpos_epu16(
                      _mm_min_epu8(_mm_and_si128(inverse, _mm_set1_epi16(0xFF)),
                                   _mm_srli_epi16(inverse, 8)));
    return 255 - (_mm_cvtsi128_si32(least) & 0xFF);
}

/* The first n bytes, 8 or 16, of two eights go to `out`; the largest of both. */
PACK_INLINE int pack_spread_put(__m256i x, __m256i y, const int n, uint8_t *out)
{
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, y), 0xD8);
    const __m128i bytes =
        _mm_packus_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    if (n > 8)
        _mm_storeu_si128((__m128i *)(void *)out, bytes);
    else
        _mm_storel_epi64((__m128i *)(void *)out, bytes);
    return pack_largest_byte(bytes);
}

/* Sixteen lanes from l on: their bytes to `out`; the largest. */
PACK_INLINE int pack_spread_end_16(const struct pack_spread *s, int l, uint8_t *out)
{
    __m256i x[2];
    for (int i = 0; i < 2; i++) {
        const struct pack_spread_8 one = {
            pack_load_8((const uint32_t *)(const void *)(s->low + l + 8 * i)),
            _mm256_loadu_ps(s->top + l + 8 * i)
        };
        x[i] = pack_spread_bytes_8(&one);
    }
    return pack_spread_put(x[0], x[1], 16, out + l);
}

/* Writes the row's bytes and the largest of each group; returns the largest of all. */
PACK_INLINE int pack_spread_end(const struct pack_spread *s, int width, uint8_t *out,
                                uint8_t *most)
{
    int all = 0;
    for (int l = 0; l < width; l += SPREAD_GROUP) {
        const bool whole = l + SPREAD_GROUP <= width;
        int x = whole ? pack_spread_end_16(s, l, out) : 0;
        for (int i = l; !whole && i < width; i++) {
            out[i] = (uint8_t)pack_spread_byte(s->top[i], s->low[i]);
            x = out[i] > x ? out[i] : x;
        }
        *most++ = (uint8_t)x;
        all = x > all ? x : all;
    }
    return all;
}

/* ---- Reading: CHUNK positions of all lines, [position][width]. ---- */

enum {
    PACK_CHUNK = 16
};

struct pack_source {
    const struct gemm_job *g;
    const struct gemm_operand *o;
    const uint32_t *table; /* patterns of codes of at most 8 bits */
    int64_t line;
    int32_t lines;
    bool tf32_nearest, tf32_cut; /* tf32_in is rne; a NaN's low bits go too (tf32_nan) */
    uint32_t absent;             /* what stands where there is no product: -0 in A, +0 in B */
    struct codes codes;
};

/* n codes from `at`, a stride apart; codes of more than 8 bits keep a NaN's payload. */
PACK_INLINE void pack_codes(const struct pack_source *s, int64_t at, const int64_t step,
                            const int n, uint32_t *v)
{
    const struct gemm_operand *o = s->o;
    const unsigned char *p = o->data;
    if (o->spec->store_bits == 8) {
        for (int i = 0; i < n; i++)
            v[i] = s->table[p[at + i * step]];
    } else if (o->spec->format == NG_BF16) {
        for (int i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, p + 2 * (at + i * step), sizeof h);
            v[i] = (uint32_t)h << 16;
        }
    } else if (o->spec->format == NG_TF32) {
        for (int i = 0; i < n; i++) {
            memcpy(&v[i], p + 4 * (at + i * step), 4);
            v[i] = widen_tf32(v[i], s->tf32_nearest, s->tf32_cut);
        }
    } else if (o->spec->store_bits == 32) {
        for (int i = 0; i < n; i++)
            memcpy(&v[i], p + 4 * (at + i * step), 4);
    } else if (o->spec->store_bits == 4) {
        for (int i = 0; i < n; i++)
            v[i] = s->table[load_code(p, 4, at + i * step)];
    } else {
        for (int i = 0; i < n; i++)
            v[i] = widen(o->spec, load_code(p, o->spec->store_bits, at + i * step));
    }
}

/* Neighbours in memory are read with a constant stride, so that compilers see it. */
PACK_INLINE void pack_run(const struct pack_source *s, int64_t at, int64_t step, int n,
                          const int most, uint32_t *v)
{
    if (step == 1 && n == most)
        pack_codes(s, at, 1, most, v);
    else
        pack_codes(s, at, step, n, v);
}

/* One position of all lines. */
PACK_INLINE void pack_read(const struct pack_source *s, int64_t k, uint32_t *v, const int width)
{
    const struct gemm_operand *o = s->o;
    for (int l = k < 0 ? 0 : s->lines; l < width; l++)
        v[l] = k < 0 ? s->absent : 0;
    if (k >= 0)
        pack_run(s, o->offset + s->line * o->line + k * o->k, o->line, s->lines, width, v);
}

PACK_INLINE bool pack_consecutive(const int32_t *k, int n)
{
    int wrong = k[0] < 0;
    for (int i = 1; i < n; i++)
        wrong |= k[i] != k[0] + i;
    return !wrong;
}

/* Are the positions of a walk whole groups of n neighbours? */
static inline bool pack_runs(const struct gemm_walk *w, int n)
{
    bool all = w->used % n == 0;
    for (int64_t p = 0; all && p < w->used; p += n)
        all = pack_consecutive(w->k + p, n);
    return all;
}

/* Neighbours of k[0] and neighbours of k[1] in turn: two lanes whose k are split. */
PACK_INLINE bool pack_in_turn(const int32_t *k, int n)
{
    int wrong = k[0] < 0 || k[1] < 0;
    for (int i = 2; i < n; i++)
        wrong |= k[i] != k[i % 2] + i / 2;
    return !wrong;
}

/* PACK_CHUNK neighbours along k, from k on, of lines of 32-bit codes: eight lines by eight
 * positions at a time, turned. */
PACK_INLINE void pack_words(const struct pack_source *s, int64_t k, uint32_t *v,
                            const int width)
{
    const struct gemm_operand *o = s->o;
    const unsigned char *first =
        (const unsigned char *)o->data + (o->offset + s->line * o->line + k) * 4;
    for (int l = 0; l < width; l += CODES_LINES)
        for (int at = 0; at < PACK_CHUNK; at += 8) {
            __m256i x[CODES_LINES];
            for (int i = 0; i < CODES_LINES; i++)
                x[i] =
                    l + i < s->lines
                        ? pack_load_8(
                              (const uint32_t *)(const void *)(first + (l + i) * o->line * 4) +
                              at)
                        : _mm256_setzero_si256();
            codes_turn(x);
            for (int i = 0; i < CODES_LINES; i++)
                _mm256_storeu_si256((__m256i *)(void *)(v + (at + i) * width + l), x[i]);
        }
    if (o->spec->format == NG_TF32)
        for (int i = 0; i < PACK_CHUNK * width; i++)
            v[i] = widen_tf32(v[i], s->tf32_nearest, s->tf32_cut);
}

/* Positions p .. p + n; lines along k are read by lines where their k are neighbours. */
PACK_INLINE void pack_chunk(const struct pack_source *s, const struct gemm_walk *w, int64_t p,
                            int n, uint32_t *v, const int width)
{
    const struct gemm_operand *o = s->o;
    if (o->k != 1 || n < PACK_CHUNK || !pack_consecutive(w->k + p, n)) {
        for (int i = 0; i < n; i++)
            pack_read(s, w->k[p + i], v + i * width, width);
        return;
    }
    if (o->spec->store_bits == 32 && width % CODES_LINES == 0) {
        pack_words(s, w->k[p], v, width);
        return;
    }
    for (int l = s->lines; l < width; l++)
        for (int i = 0; i < PACK_CHUNK; i++)
            v[i * width + l] = 0;
    for (int l = 0; l < s->lines; l++) {
        uint32_t row[PACK_CHUNK];
        pack_codes(s, o->offset + (s->line + l) * o->line + w->k[p], 1, PACK_CHUNK, row);
        for (int i = 0; i < PACK_CHUNK; i++)
            v[i * width + l] = row[i];
    }
}

/* ---- The same by codes.h, straight to where it goes. ---- */

/* 16 neighbours along k of all lines; `split`: eight from k[0] on and eight from k[1] on, in
 * turn. */
PACK_INLINE void pack_along(const codes_kind kind, const struct pack_source *s,
                            const int32_t *k, const bool split, const int width,
                            const bool pairs, struct codes_facts *facts, uint32_t *to)
{
    const struct gemm_operand *o = s->o;
    const int64_t step = codes_bytes(kind, o->line), other = codes_bytes(kind, k[1] - k[0]);
    const unsigned char *p = (const unsigned char *)o->data +
                             codes_bytes(kind, o->offset + s->line * o->line + k[0]);
    struct codes_facts seen = *facts; /* in registers */
    for (int l = 0; l < width; l += CODES_LINES) {
        __m256i x[CODES_LINES];
        for (int i = 0; i < CODES_LINES; i++) {
            x[i] = _mm256_setzero_si256();
            if (l + i < width && l + i < s->lines) {
                const unsigned char *at = p + (l + i) * step;
                x[i] = split ? codes_load_two(kind, &s->codes, at, at + other)
                             : codes_load(kind, &s->codes, at);
                codes_note(kind, &seen, x[i]);
            }
        }
        codes_turn(x);
        for (int i = 0; i < CODES_LINES; i++)
            codes_write(kind, to + (pairs ? i : 2 * i) * width + l, codes_swap(x[i]), width - l,
                        width, pairs);
    }
    *facts = seen;
}

/* 16 lines of one position from line l on, those past the last as zeros. */
PACK_INLINE __m256i pack_across_load(const codes_kind kind, const struct pack_source *s,
                                     int64_t k, int l)
{
    const struct gemm_operand *o = s->o;
    const unsigned char *p =
        (const unsigned char *)o->data + codes_bytes(kind, o->offset + s->line + l + k * o->k);
    if (k < 0)
        return _mm256_set1_epi16((int16_t)(s->absent >> 16));
    if (l + CODES <= s->lines)
        return codes_load(kind, &s->codes, p);
    unsigned char some[2 * CODES] = { 0 };
    if (l < s->lines)
        memcpy(some, p, (size_t)codes_bytes(kind, s->lines - l));
    if (kind == CODES_HALVES && l < s->lines && s->lines % 2)
        some[(s->lines - l) / 2] = p[(s->lines - l) / 2] & 15;
    return codes_load(kind, &s->codes, some);
}

/* 16 positions, wherever they are, of lines that are neighbours. */
PACK_INLINE void pack_across(const codes_kind kind, const struct pack_source *s,
                             const int32_t *k, const int width, const bool pairs,
                             struct codes_facts *facts, uint32_t *to)
{
    struct codes_facts seen = *facts;
    for (int i = 0; i < PACK_CHUNK; i += 2, to += pairs ? width : 2 * width)
        for (int l = 0; l < width; l += CODES) {
            const __m256i x = pack_across_load(kind, s, k[i], l),
                          y = pack_across_load(kind, s, k[i + 1], l),
                          low = _mm256_unpacklo_epi16(y, x), high = _mm256_unpackhi_epi16(y, x);
            codes_note(kind, &seen, x);
            codes_note(kind, &seen, y);
            codes_write(kind, to + l, _mm256_permute2x128_si256(low, high, 0x20), 8, width,
                        pairs);
            codes_write(kind, to + l + 8, _mm256_permute2x128_si256(low, high, 0x31), 8, width,
                        pairs);
        }
    *facts = seen;
}

/* Do all of a chunk's runs begin with a byte? */
PACK_INLINE bool pack_in_bytes(const codes_kind kind, const struct pack_source *s,
                               const int32_t *k)
{
    const struct gemm_operand *o = s->o;
    if (kind != CODES_HALVES)
        return true;
    const int64_t first = o->offset + s->line * o->line;
    return o->k == 1 ? !(o->line % 2 || (first + k[0]) % 2 ||
                         (k[1] != k[0] + 1 && (first + k[1]) % 2))
                     : !(o->k % 2 || first % 2);
}

PACK_INLINE bool pack_codes_kind(const codes_kind kind, const struct pack_source *s,
                                 const int32_t *k, const int width, const bool pairs,
                                 struct codes_facts *facts, uint32_t *to)
{
    if (!pack_in_bytes(kind, s, k))
        return false;
    if (s->o->k == 1 && pack_consecutive(k, PACK_CHUNK))
        pack_along(kind, s, k, false, width, pairs, facts, to);
    else if (s->o->k == 1 && pack_in_turn(k, PACK_CHUNK))
        pack_along(kind, s, k, true, width, pairs, facts, to);
    else if (s->o->line == 1 && width % CODES == 0)
        pack_across(kind, s, k, width, pairs, facts, to);
    else
        return false;
    return true;
}

/*
 * Positions p .. p + n, in the panel's layout, and their facts; false: not read
 * here. A function of its own: in the loop of pack_elements() compilers would lose sight of the
 * rest.
 */
static __attribute__((noinline)) bool pack_straight(const struct pack_source *s,
                                                    const struct gemm_walk *w, int64_t p, int n,
                                                    const int width, const bool pairs,
                                                    struct codes_facts *facts, uint32_t *to)
{
    const int32_t *k = w->k + p;
    if (n < PACK_CHUNK)
        return false;
    switch (s->codes.kind) {
    case CODES_BF16: return pack_codes_kind(CODES_BF16, s, k, width, pairs, facts, to);
    case CODES_F16: return pack_codes_kind(CODES_F16, s, k, width, pairs, facts, to);
    case CODES_FLOAT8: return pack_codes_kind(CODES_FLOAT8, s, k, width, pairs, facts, to);
    case CODES_INT8: return pack_codes_kind(CODES_INT8, s, k, width, pairs, facts, to);
    case CODES_HALVES: return pack_codes_kind(CODES_HALVES, s, k, width, pairs, facts, to);
    case CODES_NONE: break;
    }
    return false;
}

/*
 * All of a full panel of bf16 in words, lines along k: what most multiplies have for B. Eight
 * lines at a time, so that memory is read in few streams; a panel of another width would be
 * written past its end. False: it is another, or something special is in it.
 */
static __attribute__((noinline)) bool pack_bf16(const struct pack_source *s,
                                                const struct gemm_walk *w, const int width,
                                                struct codes_facts *facts, uint32_t *to)
{
    enum {
        HALF = CODES_LINES / 2
    };
    const struct gemm_operand *o = s->o;
    const int64_t step = 2 * o->line;
    const __m256i turn = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    struct codes_bounds seen;
    codes_bounds_begin(&seen);
    for (int64_t p = 0; p < w->used; p += PACK_CHUNK)
        if (w->used - p < PACK_CHUNK || !pack_consecutive(w->k + p, PACK_CHUNK))
            return false;
    for (int l = 0; l < width; l += CODES_LINES)
        for (int64_t p = 0; p < w->used; p += PACK_CHUNK) {
            const unsigned char *at = (const unsigned char *)o->data +
                                      2 * (o->offset + (s->line + l) * o->line + w->k[p]);
            for (int h = 0; h < 2; h++) {
                __m256i x[HALF];
                for (int i = 0; i < HALF; i++) {
                    const unsigned char *line = at + i * step + 2 * CODES_LINES * h;
                    x[i] = codes_half_lines(line, line + HALF * step);
                    codes_bound(&seen, x[i]);
                    x[i] = _mm256_shuffle_epi8(x[i], turn);
                }
                codes_turn_half(x);
                for (int i = 0; i < HALF; i++)
                    _mm256_storeu_si256((__m256i *)(to + (p / 2 + HALF * h + i) * width + l),
                                        x[i]);
            }
        }
    return codes_settle(&seen, facts);
}

/* ---- Block scales. ---- */

static inline void pack_scales(const struct pack_source *s, const struct gemm_walk *w,
                               int width, uint8_t *out)
{
    const struct gemm_operand *o = s->o;
    const uint8_t one = s->g->mode == NG_MODE_NV ? 7 << 3 : 127; /* 1.0 in ue4m3, in e8m0 */
    const uint8_t *first = o->scale + o->scale_offset + s->line * o->scale_line;
    if (o->scale_line == 1 && s->lines == width) {
        for (int64_t b = 0; b < w->blocks; b++)
            memcpy(out + b * width, first + b * o->scale_block, (size_t)width);
        return;
    }
    for (int l = 0; l < width; l++) {
        const uint8_t *at = first + l * o->scale_line;
        for (int64_t b = 0; b < w->blocks; b++)
            out[b * width + l] = l < s->lines ? at[b * o->scale_block] : one;
    }
}

/* Eight lanes of pack_fold(); not 0 where one is wrong. */
PACK_INLINE uint32_t pack_fold_8(uint32_t *v, const uint8_t *scale)
{
    const __m256i x = pack_load_8(v), zero = _mm256_setzero_si256(),
                  all = _mm256_set1_epi32(255),
                  s = _mm256_cvtepu8_epi32(
                      _mm_loadl_epi64((const __m128i *)(const void *)scale)),
                  magnitude = _mm256_and_si256(x, _mm256_set1_epi32(0x7FFFFFFF)),
                  e = _mm256_srli_epi32(magnitude, 23),
                  folded = _mm256_sub_epi32(_mm256_add_epi32(e, s), _mm256_set1_epi32(127)),
                  nan = _mm256_cmpeq_epi32(s, all),
                  kept = _mm256_or_si256(_mm256_cmpeq_epi32(magnitude, zero),
                                         _mm256_cmpeq_epi32(e, all)),
                  outside = _mm256_or_si256(
                      _mm256_cmpeq_epi32(e, zero),
                      _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(1), folded),
                                      _mm256_cmpgt_epi32(folded, _mm256_set1_epi32(254)))),
                  moved =
                      _mm256_or_si256(_mm256_and_si256(x, _mm256_set1_epi32((int)0x807FFFFFu)),
                                      _mm256_slli_epi32(_mm256_and_si256(folded, all), 23)),
                  y = _mm256_blendv_epi8(_mm256_blendv_epi8(moved, x, kept),
                                         _mm256_set1_epi32(WIDEN_NAN), nan);
    _mm256_storeu_si256((__m256i *)(void *)v, y);
    return (uint32_t)_mm256_movemask_epi8(
        _mm256_andnot_si256(_mm256_or_si256(kept, nan), outside));
}

/* Multiplies the scales in; false where a value would leave FP32's normal range. */
PACK_INLINE bool pack_fold(uint32_t *v, const uint8_t *scale, int width)
{
    uint32_t wrong = 0;
    int l = 0;
    for (; l + 8 <= width; l += 8)
        wrong |= pack_fold_8(v + l, scale + l);
    for (; l < width; l++) {
        const int32_t e = (int32_t)(v[l] >> 23 & 0xFFu), folded = e + scale[l] - 127;
        const bool plain = v[l] << 1 && e != 255;
        const uint32_t moved = (v[l] & 0x807FFFFFu) | (uint32_t)(folded & 0xFF) << 23;
        wrong |= plain && scale[l] != 255 && (!e || folded < 1 || folded > 254);
        v[l] = scale[l] == 255 ? WIDEN_NAN : plain ? moved : v[l];
    }
    return !wrong;
}

/* Multiplies ue4m3 scales in: elements of at most 11 bits, and 5 of exponent, so FP32 holds it.
 */
PACK_INLINE void pack_fold_ue4m3(uint32_t *v, const uint8_t *scale, int width)
{
    int l = 0;
    for (; l + 8 <= width; l += 8) { /* widen_ue4m3() of eight */
        const __m256i nan = _mm256_set1_epi32(0x7F),
                      mag = _mm256_and_si256(_mm256_cvtepu8_epi32(_mm_loadl_epi64(
                                                 (const __m128i *)(const void *)(scale + l))),
                                             nan),
                      up = _mm256_blendv_epi8(_mm256_slli_epi32(mag, 20),
                                              _mm256_set1_epi32(WIDEN_NAN),
                                              _mm256_cmpeq_epi32(mag, nan));
        const __m256 by = _mm256_mul_ps(_mm256_castsi256_ps(up), _mm256_set1_ps(0x1p120f)),
                     x = _mm256_castsi256_ps(pack_load_8(v + l));
        _mm256_storeu_si256((__m256i *)(void *)(v + l),
                            _mm256_castps_si256(_mm256_mul_ps(x, by)));
    }
    for (; l < width; l++)
        v[l] = as_pattern(as_float(v[l]) * widen_ue4m3(scale[l]));
}

/* The same of n positions from p on, of which those without a product keep what they hold. */
PACK_INLINE bool pack_fold_rows(uint32_t *v, const struct gemm_walk *w, int64_t p, int n,
                                const uint8_t *scales, const int width, const bool ue4m3)
{
    uint8_t flat[PACK_CHUNK * 8];
    bool same = width < 8;
    for (int i = 0; same && i < n; i++)
        same = w->k[p + i] >= 0 && w->block[p + i] == w->block[p];
    if (same) { /* narrow rows, one behind the other */
        const uint8_t *scale = scales + (int64_t)w->block[p] * width;
        const int all = (n * width + 7) / 8 * 8;
        for (int i = 0; i < n; i++)
            for (int l = 0; l < width; l++)
                flat[i * width + l] = scale[l];
        for (int i = n * width; i < all; i++)
            flat[i] = ue4m3 ? 7 << 3 : 127; /* 1 */
        if (ue4m3)
            pack_fold_ue4m3(v, flat, all);
        return ue4m3 || pack_fold(v, flat, all);
    }
    for (int i = 0; i < n; i++) {
        if (w->k[p + i] < 0)
            continue;
        const uint8_t *scale = scales + (int64_t)w->block[p + i] * width;
        if (ue4m3)
            pack_fold_ue4m3(v + i * width, scale, width);
        else if (!pack_fold(v + i * width, scale, width))
            return false;
    }
    return true;
}

/* ---- Writing. ---- */

/* hi: the upper 12 bits; lo: the exact rest (docs/numerics.md 11.2 item 12). */
PACK_INLINE void pack_pieces(const uint32_t *v, int width, uint32_t *hi, uint32_t *lo)
{
    for (int l = 0; l < width; l++) {
        const uint32_t x = v[l], cut = x & ~0xFFFu;
        const bool special = (x & 0x7F800000u) == 0x7F800000u;
        uint32_t rest = as_pattern(as_float(x) - as_float(cut));
        if (!(rest << 1))
            rest = x & 0x80000000u; /* a zero piece has the operand's sign */
        hi[l] = special && x << 9 ? WIDEN_NAN : cut;
        lo[l] = special ? 0 : rest;
    }
}

/* Where the parts of a panel are written next. */
struct pack_out {
    uint32_t *elements, *lo;
    uint8_t *spread, *most;
    struct pack_spread row;
};

/* Of `step` positions from v on eight lanes from l on. */
PACK_INLINE __m256i pack_spread_row_8(const uint32_t *v, const int width, int l, const int step,
                                      const bool sum)
{
    struct pack_spread_8 s = { _mm256_set1_epi32(PANEL_NONE), _mm256_setzero_ps() };
    for (int i = 0; i < step; i++)
        pack_spread_note_8(&s, pack_load_8(v + i * width + l), sum);
    return pack_spread_bytes_8(&s);
}

/* Rows of `step` positions, nothing but whole eights. */
PACK_INLINE void pack_spread_rows(struct gemm_panel *head, int n, const uint32_t *v,
                                  const int width, const int step, const bool sum,
                                  struct pack_out *out)
{
    int all = head->spread;
    for (int i = 0; i < n; i += step, v += step * width)
        for (int l = 0; l < width; l += SPREAD_GROUP) {
            const __m256i x = pack_spread_row_8(v, width, l, step, sum);
            const int most =
                l + 8 < width
                    ? pack_spread_put(x, pack_spread_row_8(v, width, l + 8, step, sum), 16,
                                      out->spread)
                    : pack_spread_put(x, x, 8, out->spread);
            out->spread += l + 8 < width ? 16 : 8;
            *out->most++ = (uint8_t)most;
            all = most > all ? most : all;
        }
    head->spread = all;
}

/* The same of fewer than eight lanes: behind them come other rows', which are not looked at. */
PACK_INLINE void pack_spread_narrow(struct gemm_panel *head, int n, const uint32_t *v,
                                    const int width, const int step, const bool sum,
                                    struct pack_out *out)
{
    for (int i = 0; i < n; i += step, v += step * width) {
        const __m256i x = pack_spread_row_8(v, width, 0, step, sum);
        uint8_t bytes[8];
        int most = 0;
        (void)pack_spread_put(x, x, 8, bytes);
        for (int l = 0; l < width; l++) {
            out->spread[l] = bytes[l];
            most = bytes[l] > most ? bytes[l] : most;
        }
        out->spread += width;
        *out->most++ = (uint8_t)most;
        head->spread = most > head->spread ? most : head->spread;
    }
}

PACK_INLINE void pack_spreads(struct gemm_panel *head, const struct gemm_walk *w, int64_t p,
                              int n, const uint32_t *v, const int width, const bool sum,
                              struct pack_out *out)
{
    if (width % 8 == 0 && w->step == 2 && n % 2 == 0) {
        pack_spread_rows(head, n, v, width, 2, sum, out);
        return;
    }
    if (width % 8 == 0 && w->step == 4 && n % 4 == 0) {
        pack_spread_rows(head, n, v, width, 4, sum, out);
        return;
    }
    if (width < 8 && w->step == 4 && n % 4 == 0) {
        pack_spread_narrow(head, n, v, width, 4, sum, out);
        return;
    }
    if (width < 8 && w->step == 2 && n % 2 == 0) {
        pack_spread_narrow(head, n, v, width, 2, sum, out);
        return;
    }
    for (int i = 0; i < n; i++) {
        if ((p + i) % w->step == 0)
            pack_spread_begin(&out->row, width);
        pack_spread_note(&out->row, v + i * width, width, sum);
        if ((p + i + 1) % w->step)
            continue;
        const int x = pack_spread_end(&out->row, width, out->spread, out->most);
        head->spread = x > head->spread ? x : head->spread;
        out->most += spread_groups(width);
        out->spread += width;
    }
}

PACK_INLINE void pack_write(const struct pack_source *s, const uint32_t *v, int n,
                            const int width, const bool pairs, struct pack_out *out)
{
    if (pairs) {
        for (int i = 0; i < n; i += 2, out->elements += width)
            for (int l = 0; l < width; l++)
                out->elements[l] =
                    (v[i * width + l] & 0xFFFF0000u) | v[(i + 1) * width + l] >> 16;
    } else if (rule_pieces(s->g)) {
        for (int i = 0; i < n; i++, out->elements += width, out->lo += width)
            pack_pieces(v + i * width, width, out->elements, out->lo);
    } else {
        memcpy(out->elements, v, 4 * (size_t)(n * width));
        out->elements += n * width;
    }
}

/* A row's `bytes` from `at` on, of lines that are neighbours, come nearer: a line or two of the
 * cache, too far from the next row's for the CPU to fetch them by itself. One that the panel
 * before has read is there. */
PACK_INLINE void pack_ask_row(const unsigned char *at, const int64_t bytes, const bool second)
{
    const int64_t inside = (int64_t)((uintptr_t)at & 63);
    for (int64_t b = (inside < bytes ? 0 : 64) - inside; b < bytes; b += 64)
        near_ask(at + b, second);
}

/* Rows that a chunk some way behind p will read, to the second cache: such as lie a power of
 * two apart would drive each other out of the first. */
PACK_INLINE void pack_nearer(const struct pack_source *s, const struct gemm_walk *w, int64_t p)
{
    enum {
        CHUNKS = 4
    };
    const struct gemm_operand *o = s->o;
    const int64_t bits = (int64_t)o->spec->store_bits, from = p + (int64_t)CHUNKS * PACK_CHUNK;
    if (o->line != 1)
        return;
    for (int64_t i = from; i < from + PACK_CHUNK && i < w->used; i++)
        if (w->k[i] >= 0)
            pack_ask_row((const unsigned char *)o->data +
                             (o->offset + s->line + w->k[i] * o->k) * bits / 8,
                         s->lines * bits / 8, true);
}

/* False: a scale could not be multiplied in. */
PACK_INLINE bool pack_elements(const struct pack_source *s, const struct gemm_walk *w,
                               const int width, const bool pairs, bool fold,
                               const struct panel_parts *parts, struct pack_facts *facts,
                               unsigned char *panel)
{
    struct gemm_panel *head = (struct gemm_panel *)panel;
    struct pack_out out = { .elements = (uint32_t *)(panel + sizeof *head),
                            .lo = (uint32_t *)(panel + parts->lo),
                            .spread = panel + parts->spread,
                            .most = panel + parts->most };
    const uint8_t *scales = panel + parts->scales;
    const bool sums = rule_step_of(s->g) == STEP_SUM;
    uint32_t v[PACK_CHUNK * 64 + 16];
    struct codes_facts none; /* v says it all */
    codes_facts_begin(&none);
    for (int64_t p = 0; p < w->used; p += PACK_CHUNK) {
        const int n = w->used - p < PACK_CHUNK ? (int)(w->used - p) : PACK_CHUNK;
        pack_nearer(s, w, p);
        if (!fold && !sums &&
            pack_straight(s, w, p, n, width, pairs, &facts->codes, out.elements)) {
            out.elements += (pairs ? n / 2 : n) * width;
            continue;
        }
        if (!pack_straight(s, w, p, n, width, false, &none, v))
            pack_chunk(s, w, p, n, v, width);
        for (int i = n * width; i < n * width + 16; i++)
            v[i] = 0; /* is read with what is there */
        if (fold && !pack_fold_rows(v, w, p, n, scales, width, s->g->mode == NG_MODE_NV))
            return false;
        pack_note(facts, v, (n * width + 15) / 16 * 16);
        if (sums)
            pack_spreads(head, w, p, n, v, width, s->absent != 0, &out); /* A: sums */
        pack_write(s, v, n, width, pairs, &out);
    }
    return true;
}

/* ---- A sparse operand: zeros, and its values where the tags say. ---- */

/* The first byte of a line's tags; `each`: slots of a byte. */
static inline const uint8_t *pack_tags(const struct gemm_operand *o, int64_t line, int *each)
{
    const bool trn = o->sparse->store == NG_TAG_TRN;
    const int64_t packed = trn ? (o->depth + 3) / 4 * 2 : (o->depth + 3) / 4;
    const int64_t stride = o->sparse->tag_stride ? o->sparse->tag_stride : packed;
    *each = trn ? 2 : 4;
    return (const uint8_t *)o->sparse->tags + (o->tag_line + line) * stride;
}

static inline uint32_t pack_tag(const struct gemm_operand *o, int64_t line, int64_t slot)
{
    int each;
    const uint8_t *p = pack_tags(o, line, &each);
    return each == 2 ? p[slot / 2] >> (slot % 2 * 4) & 0xFu
                     : p[slot / 4] >> (slot % 4 * 2) & 3u;
}

/* Eight lines' tags of PACK_CHUNK slots, the earlier ones lowest: in word[0] those of 2 bits,
 * in both those of 4. */
struct pack_tags_8 {
    __m256i word[2];
    int bits;
};

static inline struct pack_tags_8 pack_load_tags(const struct pack_source *s, int l,
                                                int64_t slot, int n)
{
    uint32_t word[2][8] = { { 0 } };
    int each = 4;
    for (int i = 0; i < 8 && l + i < s->lines; i++) {
        const uint8_t *p = pack_tags(s->o, s->line + l + i, &each) + slot / each;
        uint64_t tags = 0;
        memcpy(&tags, p, (size_t)((n + each - 1) / each));
        word[0][i] = (uint32_t)tags;
        word[1][i] = (uint32_t)(tags >> 32);
    }
    return (struct pack_tags_8){ { pack_load_8(word[0]), pack_load_8(word[1]) }, 8 / each };
}

PACK_INLINE __m256i pack_tag_8(const struct pack_tags_8 *t, int slot)
{
    const int bit = slot * t->bits;
    const __m256i word = bit < 32 ? t->word[0] : t->word[1];
    return _mm256_and_si256(_mm256_srl_epi32(word, _mm_cvtsi32_si128(bit % 32)),
                            _mm256_set1_epi32((1 << t->bits) - 1));
}

/*
 * The `group` rows of a group whose `kept` values and tags are those of the chunk's slots from
 * `slot` on: eight lines at a time; rows that are no multiple of eight long end in words that
 * the next one's, or nobody's, take the place of.
 */
PACK_INLINE void pack_group(const struct pack_tags_8 *tags, const uint32_t *v, const int width,
                            int slot, const int kept, const int group, uint32_t absent,
                            uint32_t *rows)
{
    for (int i = 0; i < group; i++)
        for (int l = 0; l < width; l += 8) {
            __m256i x = _mm256_set1_epi32((int)absent);
            for (int j = slot; j < slot + kept; j++)
                x = _mm256_blendv_epi8(
                    x, pack_load_8(v + j * width + l),
                    _mm256_cmpeq_epi32(pack_tag_8(tags + l / 8, j), _mm256_set1_epi32(i)));
            _mm256_storeu_si256((__m256i *)(void *)(rows + i * width + l), x);
        }
}

/* pack_load_tags() of a whole chunk. Words come to a vector one by one: out of memory it would
 * wait for all of them to be there. */
PACK_INLINE struct pack_tags_8 pack_whole_tags(const bool trn, const struct pack_source *s,
                                               int l, int64_t slot)
{
    int each;
    const uint8_t *p = pack_tags(s->o, s->line + l, &each) + slot / (trn ? 2 : 4);
    const int64_t step = pack_tags(s->o, s->line + 1, &each) - pack_tags(s->o, s->line, &each);
    int32_t word[2][8] = { { 0 } };
    ORDER_UNROLL
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < (trn ? 2 : 1) && l + i < s->lines; j++)
            memcpy(&word[j][i], p + i * step + 4 * j, sizeof word[j][i]);
    struct pack_tags_8 t = { .bits = trn ? 4 : 2 };
    for (int j = 0; j < 2; j++)
        t.word[j] = _mm256_setr_epi32(word[j][0], word[j][1], word[j][2], word[j][3],
                                      word[j][4], word[j][5], word[j][6], word[j][7]);
    return t;
}

/* The two bits of words from `bit` on, times 16: what a value above is to move down by. */
PACK_INLINE __m256i pack_places(__m256i tags, const int bit)
{
    return _mm256_and_si256(bit < 4 ? _mm256_slli_epi32(tags, 4 - bit)
                                    : _mm256_srli_epi32(tags, bit - 4),
                            _mm256_set1_epi32(0x30));
}

/*
 * Groups of two of four, pairs: a chunk's slots as pairs, to the rows of pairs of each group. A
 * value stands above in a word of its own and moves down by 16 bits a place: by 32 and more,
 * and by less than 0, it leaves the pair.
 */
PACK_INLINE void pack_twos_of_four(const bool trn, const struct pack_source *s, int64_t slot,
                                   const uint32_t *v, const int width,
                                   uint32_t *const row[PACK_CHUNK / 2])
{
    const __m256i upper = _mm256_set1_epi32(-0x10000), pair = _mm256_set1_epi32(32);
    for (int l = 0; l < width; l += 8) {
        const struct pack_tags_8 tags = pack_whole_tags(trn, s, l, slot);
        ORDER_UNROLL
        for (int g = 0; g < PACK_CHUNK / 2; g++) {
            const __m256i both = pack_load_8(v + g * width + l),
                          x = _mm256_and_si256(both, upper), y = _mm256_slli_epi32(both, 16),
                          word = tags.word[trn ? g / 4 : 0],
                          first = pack_places(word, trn ? g % 4 * 8 : g * 4),
                          second = pack_places(word, trn ? g % 4 * 8 + 4 : g * 4 + 2);
            _mm256_storeu_si256(
                (__m256i *)(void *)(row[g] + l),
                _mm256_or_si256(_mm256_srlv_epi32(x, first), _mm256_srlv_epi32(y, second)));
            _mm256_storeu_si256(
                (__m256i *)(void *)(row[g] + width + l),
                _mm256_or_si256(_mm256_srlv_epi32(x, _mm256_sub_epi32(first, pair)),
                                _mm256_srlv_epi32(y, _mm256_sub_epi32(second, pair))));
        }
    }
}

/* A whole chunk of such slots, whose groups' other places are +0; false: it is none, or not
 * read so. */
PACK_INLINE bool pack_sparse_pairs(const struct pack_source *s, const struct gemm_walk *w,
                                   const struct gemm_walk *own, int64_t slot, int n,
                                   const int width, struct pack_facts *facts,
                                   unsigned char *panel)
{
    const ng_sparse *sparse = s->o->sparse;
    uint32_t v[PACK_CHUNK / 2 * 64], *row[PACK_CHUNK / 2];
    if (sparse->kept != 2 || sparse->group != 4 || width % 8 != 0 || s->absent ||
        !pack_straight(s, own, 0, n, width, true, &facts->codes, v))
        return false;
    for (int g = 0; g < PACK_CHUNK / 2; g++)
        row[g] = (uint32_t *)(void *)(panel + sizeof(struct gemm_panel)) +
                 w->slot[slot + 2 * g] / 2 * width;
    if (sparse->store == NG_TAG_TRN)
        pack_twos_of_four(true, s, slot, v, width, row);
    else
        pack_twos_of_four(false, s, slot, v, width, row);
    return true;
}

/* Slots from `slot` on come nearer where lines are neighbours: a row of them, farther from the
 * next one than the CPU fetches by itself, has a line or two of the cache. */
PACK_INLINE void pack_sparse_ask(const struct pack_source *s, int64_t slot, const int width)
{
    const struct gemm_operand *o = s->o;
    const int64_t bits = o->spec->store_bits;
    if (o->line != 1 || slot + PACK_CHUNK > s->g->k)
        return;
    for (int i = 0; i < PACK_CHUNK; i++)
        pack_ask_row((const unsigned char *)o->data +
                         (o->offset + s->line + (slot + i) * o->k) * bits / 8,
                     width * bits / 8, true);
}

/* Slots [slot, slot + n), at most PACK_CHUNK: read like a chunk of a dense operand, and put
 * where their groups are. */
static inline void pack_sparse_chunk(const struct pack_source *s, const struct gemm_walk *w,
                                     int64_t slot, int n, const int width, const bool pairs,
                                     const struct panel_parts *parts, struct pack_facts *facts,
                                     unsigned char *panel)
{
    const int kept = (int)s->o->sparse->kept, group = (int)s->o->sparse->group;
    uint32_t v[PACK_CHUNK * 64 + 16], rows[PACK_CHUNK * 64 + 16];
    struct pack_tags_8 tags[8];
    int32_t k[PACK_CHUNK];
    struct gemm_walk own = *w;
    own.k = k;
    for (int i = 0; i < n; i++)
        k[i] = (int32_t)slot + i;
    pack_sparse_ask(s, slot + PACK_CHUNK, width);
    if (pairs && pack_sparse_pairs(s, w, &own, slot, n, width, facts, panel))
        return;
    for (int i = n * width; i < n * width + 16; i++)
        v[i] = 0; /* is read with what is there */
    if (!pack_straight(s, &own, 0, n, width, false, &facts->codes, v)) {
        pack_chunk(s, &own, 0, n, v, width);
        pack_note(facts, v, (n * width + 15) / 16 * 16);
    }
    for (int l = 0; l < width; l += 8)
        tags[l / 8] = pack_load_tags(s, l, slot, n);
    for (int i = 0; i < n; i += kept) {
        const int64_t at = w->slot[slot + i];
        struct pack_out out = { .elements =
                                    (uint32_t *)(void *)(panel + sizeof(struct gemm_panel)) +
                                    (pairs ? at / 2 : at) * width,
                                .lo = (uint32_t *)(void *)(panel + parts->lo) + at * width };
        if (kept == 2 && group == 4)
            pack_group(tags, v, width, i, 2, 4, s->absent, rows);
        else
            pack_group(tags, v, width, i, kept, group, s->absent, rows);
        pack_write(s, rows, group, width, pairs, &out);
    }
}

/* Does each chunk of slots have whole groups, of which no chain has only some slots, and each
 * in whole words? */
static inline bool pack_groups(const struct pack_source *s, const struct gemm_walk *w,
                               const bool pairs)
{
    const ng_sparse *sparse = s->o->sparse;
    bool all = PACK_CHUNK % sparse->kept == 0 && s->g->k % sparse->kept == 0 &&
               (!pairs || sparse->group % 2 == 0);
    for (int64_t slot = 0; all && slot < s->g->k; slot++)
        all = w->slot[slot] == w->slot[slot - slot % sparse->kept] &&
              (!pairs || w->slot[slot] % 2 == 0);
    return all;
}

/* A value at a time, wherever it goes. */
static inline void pack_sparse_slow(const struct pack_source *s, const struct gemm_walk *w,
                                    int width, bool pairs, const struct panel_parts *parts,
                                    struct pack_facts *facts, unsigned char *panel)
{
    const struct gemm_operand *o = s->o;
    uint32_t *out = (uint32_t *)(panel + sizeof(struct gemm_panel)),
             *lo = (uint32_t *)(panel + parts->lo);
    uint16_t *half = (uint16_t *)out;
    for (int l = 0; l < s->lines; l++)
        for (int64_t slot = 0; slot < s->g->k; slot++) {
            const int64_t at = w->slot[slot] + (int64_t)pack_tag(o, s->line + l, slot);
            struct pack_source one = *s;
            uint32_t v[16] = { 0 }, hi, rest;
            one.line = s->line + l;
            one.lines = 1;
            pack_read(&one, slot, v, 1);
            pack_note(facts, v, 16);
            if (pairs) { /* little-endian: the upper half is the odd one */
                half[2 * (at / 2 * width + l) + 1 - at % 2] = (uint16_t)(v[0] >> 16);
            } else if (rule_pieces(s->g)) {
                pack_pieces(v, 1, &hi, &rest);
                out[at * width + l] = hi;
                lo[at * width + l] = rest;
            } else {
                out[at * width + l] = v[0];
            }
        }
}

/* Unselected places of A are -0 and of B +0, as all places without a product. */
static inline void pack_sparse(const struct pack_source *s, const struct gemm_walk *w,
                               const int width, const bool pairs,
                               const struct panel_parts *parts, struct pack_facts *facts,
                               unsigned char *panel)
{
    uint32_t *out = (uint32_t *)(panel + sizeof(struct gemm_panel)),
             *lo = (uint32_t *)(panel + parts->lo);
    const int64_t words = (pairs ? w->depth / 2 : w->depth) * width;
    const uint32_t fill = pairs ? s->absent | s->absent >> 16 : s->absent;
    const bool groups = pack_groups(s, w, pairs),
               all = groups && s->g->k / s->o->sparse->kept * s->o->sparse->group == w->depth;
    for (int64_t i = 0; !all && i < words; i++)
        out[i] = fill;
    for (int64_t i = 0; !all && rule_pieces(s->g) && i < words; i++)
        lo[i] = fill;
    if (!groups) {
        pack_sparse_slow(s, w, width, pairs, parts, facts, panel);
        return;
    }
    for (int64_t slot = 0; slot < s->g->k; slot += PACK_CHUNK) {
        const int64_t left = s->g->k - slot;
        pack_sparse_chunk(s, w, slot, left < PACK_CHUNK ? (int)left : PACK_CHUNK, width, pairs,
                          parts, facts, panel);
    }
}

/* ---- A whole panel. ---- */

PACK_INLINE void pack_any(const struct pack_source *s, const struct gemm_walk *w,
                          const int width, const bool pairs, const struct panel_parts *parts,
                          struct pack_facts *facts, void *panel)
{
    struct gemm_panel *head = panel;
    pack_facts_begin(facts);
    if (s->o->sparse) {
        pack_sparse(s, w, width, pairs, parts, facts, panel);
    } else if (!pack_elements(s, w, width, pairs, w->blocks > 0, parts, facts, panel)) {
        *head = (struct gemm_panel){ .unfolded = 1 };
        pack_facts_begin(facts);
        (void)pack_elements(s, w, width, pairs, false, parts, facts, panel);
    }
}

PACK_INLINE void pack_panel(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                            int64_t line, int32_t lines, int width, bool pairs, void *panel)
{
    const struct gemm_operand *o = side == GEMM_A ? &g->a : &g->b;
    const struct pack_source s = {
        .g = g,
        .o = o,
        .table = w->widen[side],
        .line = line,
        .lines = lines,
        .tf32_nearest = rule_param(g, NG_PARAM_TF32_IN) == NG_ROUND_TIES_TO_EVEN,
        .tf32_cut = rule_fused(g) && rule_param(g, NG_PARAM_TF32_NAN) == NG_TF32_NAN_CUT,
        .absent = side == GEMM_A ? 0x80000000u : 0,
        .codes = codes_of(o->spec, w->widen[side])
    };
    const struct panel_parts parts = panel_parts(g, w, width, pairs);
    struct gemm_panel *head = panel;
    struct pack_facts facts;
    *head = (struct gemm_panel){ 0 };
    if (w->blocks)
        pack_scales(&s, w, width, (uint8_t *)panel + parts.scales);
    pack_facts_begin(&facts);
    const bool straight = pairs && s.codes.kind == CODES_BF16 && o->k == 1 && lines == width &&
                          width % CODES_LINES == 0 && !o->sparse && !w->blocks &&
                          rule_step_of(g) != STEP_SUM;
    uint32_t *elements = (uint32_t *)((unsigned char *)panel + sizeof *head);
    if (!straight || !pack_bf16(&s, w, width, &facts.codes, elements))
        pack_any(&s, w, width, pairs, &parts, &facts, panel);
    pack_join(&facts, o->spec);
    pack_conclude(&facts, rule_fraction(g, o), head);
}

#endif
