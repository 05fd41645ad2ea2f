/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slim panels without the full ones that slim_make() has them from, and full ones by way of
 * their codes: where a panel's facts are its codes' own, and its spreads say nothing. Facts of
 * bytes are their magnitudes', whose order is that of the values; those of e2m1 under e8m0
 * scales a sum of two small exponents. Behind slim.h.
 */
#ifndef NG_KERNELS_SLIM_STRAIGHT_H
#define NG_KERNELS_SLIM_STRAIGHT_H

#include "slim.h"

static inline uint8_t slim_least(const uint8_t *x, int n)
{
    uint8_t least = 255;
    for (int i = 0; i < n; i++)
        least = x[i] < least ? x[i] : least;
    return least;
}

static inline uint8_t slim_most(const uint8_t *x, int n)
{
    uint8_t most = 0;
    for (int i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* A head with bounds from exponent fields; `most` 0: there are only zeros. */
static inline void slim_head(int man_bits, uint32_t least, uint32_t most,
                             struct gemm_panel *head)
{
    struct pack_facts f;
    pack_facts_begin(&f);
    if (most) {
        f.low[0] = least;
        f.high[0] = most;
    }
    *head = (struct gemm_panel){ 0 };
    pack_conclude(&f, man_bits, head);
}

/* ---- Bytes without scales. ---- */

static inline bool slim_tells_bytes(const struct gemm_job *g, const struct gemm_walk *w,
                                    int width)
{
    return slim_bits(g) == 8 && slim_takes(g, width) && !w->blocks &&
           rule_step_of(g) != STEP_SUM;
}

#ifdef VEC_BYTES
/* Over magnitudes, in lanes of their own; `less`: less 1, so that a zero is the largest. */
struct slim_seen {
    __m256i less, most;
};

static inline struct slim_seen slim_unseen(void)
{
    return (struct slim_seen){ _mm256_set1_epi8(-1), _mm256_setzero_si256() };
}

PACK_INLINE void slim_see(struct slim_seen *s, const uint8_t *codes, int64_t n)
{
    for (int64_t i = 0; i < n; i += 32) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(codes + i)),
                      mag = _mm256_and_si256(x, _mm256_set1_epi8(0x7F));
        s->most = _mm256_max_epu8(s->most, mag);
        s->less = _mm256_min_epu8(s->less, _mm256_sub_epi8(mag, _mm256_set1_epi8(1)));
    }
}

/* False: an Inf or a NaN is among them. */
static inline bool slim_conclude(const ng_format_spec *f, int man_bits, const uint32_t *widen,
                                 const struct slim_seen *s, struct gemm_panel *head)
{
    uint8_t less[32], mag[32];
    _mm256_storeu_si256((__m256i *)(void *)less, s->less);
    _mm256_storeu_si256((__m256i *)(void *)mag, s->most);
    const uint8_t most = slim_most(mag, 32);
    if (most > f->max_code)
        return false;
    slim_head(man_bits, most ? widen[slim_least(less, 32) + 1] >> 23 : 0, widen[most] >> 23,
              head);
    return true;
}

static inline bool slim_see_bytes(const struct gemm_job *g, const struct gemm_walk *w,
                                  int width, const uint8_t *codes, struct gemm_panel *head)
{
    struct slim_seen seen = slim_unseen();
    slim_see(&seen, codes, slim_code_bytes(8, w, width));
    return slim_conclude(g->b.spec, rule_fraction(g, &g->b), w->widen[GEMM_B], &seen, head);
}

/* A full panel of pairs, a stretch at a time; false: pack() takes it, whatever it holds now. */
static bool slim_full(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                      int32_t lines, const int width, void *panel)
{
    uint8_t codes[SLIM_STRETCH * SLIM_GROUPS * SLIM_COLUMNS];
    uint32_t *const to =
        (uint32_t *)(void *)((unsigned char *)panel + sizeof(struct gemm_panel));
    struct slim_seen seen = slim_unseen();
    if (!slim_tells_bytes(g, w, width))
        return false;
    const struct vec_bytes t = vec_bytes_table(w->widen[GEMM_B], (int)g->b.spec->man_bits);
    const struct slim_scales none = slim_no_scales(width);
    for (int64_t p = 0, n; p < w->depth; p += n) {
        n = w->depth - p < SLIM_STRETCH ? w->depth - p : SLIM_STRETCH;
        slim_put(8, g, w, p, p + n, line, lines, width, codes);
        slim_see(&seen, codes, slim_before(8, n + SLIM_DEEP - 1, width));
        for (int64_t q = 0; q < n; q += VEC_BYTES)
            slim_grow_bytes(&t, &none, width, false, q + VEC_BYTES <= n, q, codes,
                            to + (p + q) / 2 * width);
    }
    return slim_conclude(g->b.spec, rule_fraction(g, &g->b), w->widen[GEMM_B], &seen, panel);
}
#else
static inline bool slim_see_bytes(const struct gemm_job *g, const struct gemm_walk *w,
                                  int width, const uint8_t *codes, struct gemm_panel *head)
{
    (void)g, (void)w, (void)width, (void)codes, (void)head;
    return false;
}

static inline bool slim_full(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                             int32_t lines, const int width, void *panel)
{
    (void)g, (void)w, (void)line, (void)lines, (void)width, (void)panel;
    return false;
}
#endif

/* ---- e2m1 under scales. ---- */

static inline bool slim_tells_halves(const struct gemm_job *g, const struct gemm_walk *w,
                                     int width)
{
    return slim_bits(g) == 4 && slim_takes(g, width) && w->blocks && g->mode == NG_MODE_MX &&
           g->b.spec->format == NG_E2M1 && rule_values(g, &g->b) == g->b.spec &&
           rule_step_of(g) == STEP_SUM && !rule_watches(g);
}

/*
 * e2m1's magnitude c > 0 is of exponent field 126 + c / 2, less 127 with a scale: fields from
 * SLIM_LEAST on and up to SLIM_MOST stay in FP32's normal range whatever the code.
 */
enum {
    SLIM_LEAST = 2,
    SLIM_MOST = 252
};

/* Exponent fields, each more by 1. */
struct slim_fields {
    __m128i least, most;
    __m128i far; /* not zero: a scale is too far */
};

/* A block of 16 columns. */
PACK_INLINE void slim_note_block(struct slim_fields *f, const struct vec_seen *s,
                                 const uint8_t *scales)
{
    const __m128i scale = _mm_loadu_si128((const __m128i *)(const void *)scales),
                  three = _mm_set1_epi8(3);
    __m128i most, less;
    vec_seen_columns(s, &most, &less);
    const __m128i none = _mm_cmpeq_epi8(most, _mm_setzero_si128()),
                  least = _mm_add_epi8(less, _mm_set1_epi8(1)),
                  near = _mm_min_epu8(_mm_max_epu8(scale, _mm_set1_epi8(SLIM_LEAST)),
                                      _mm_set1_epi8((char)SLIM_MOST)),
                  low = _mm_add_epi8(scale, _mm_and_si128(_mm_srli_epi16(least, 1), three)),
                  high = _mm_add_epi8(scale, _mm_and_si128(_mm_srli_epi16(most, 1), three));
    f->least = _mm_min_epu8(f->least, _mm_or_si128(low, none));
    f->most = _mm_max_epu8(f->most, _mm_andnot_si128(none, high));
    f->far = _mm_or_si128(f->far, _mm_andnot_si128(none, _mm_xor_si128(near, scale)));
}

/* False: the panel decides. */
static inline bool slim_see_halves(const struct gemm_job *g, const struct gemm_walk *w,
                                   int width, const uint8_t *codes, const uint8_t *scales,
                                   struct gemm_panel *head)
{
    struct slim_fields f = { _mm_set1_epi8(-1), _mm_setzero_si128(), _mm_setzero_si128() };
    for (int64_t p = 0, n; p < w->depth; p += n) {
        int32_t block = -1;
        for (n = 0; p + n < w->depth; n += SLIM_DEEP) {
            const int64_t left = w->depth - p - n, deep = left < SLIM_DEEP ? left : SLIM_DEEP;
            const int32_t b = slim_block(w, p + n, deep);
            if (b == -2)
                return false;
            if (block >= 0 && b >= 0 && b != block)
                break;
            block = b >= 0 ? b : block;
        }
        for (int l = 0; block >= 0 && l < width; l += 16) {
            struct vec_seen seen = vec_unseen();
            for (int64_t q = p; q < p + n; q += SLIM_DEEP)
                vec_see(&seen, codes + slim_before(4, q, width), width, l);
            slim_note_block(&f, &seen, scales + (int64_t)block * width + l);
        }
    }
    uint8_t least[16], most[16];
    _mm_storeu_si128((__m128i *)(void *)least, f.least);
    _mm_storeu_si128((__m128i *)(void *)most, f.most);
    if (!_mm_testz_si128(f.far, f.far))
        return false;
    const uint8_t high = slim_most(most, 16);
    slim_head(rule_fraction(g, &g->b), high ? slim_least(least, 16) - 1u : 0,
              high ? high - 1u : 0, head);
    return true;
}

/* ---- The slim panel; false: it wants a full one to be made from. ---- */

static inline bool slim_tells(const struct gemm_job *g, const struct gemm_walk *w, int width)
{
    return slim_tells_bytes(g, w, width) || slim_tells_halves(g, w, width);
}

static inline bool slim_straight(const struct gemm_job *g, const struct gemm_walk *w,
                                 int64_t line, int32_t lines, int width, void *slim)
{
    if (!slim_tells(g, w, width))
        return false;
    const struct panel_parts full = panel_parts(g, w, width, true),
                             part = slim_parts(g, w, width, &full);
    const struct pack_source s = { .g = g, .o = &g->b, .line = line, .lines = lines };
    struct gemm_panel *head = slim;
    uint8_t *const codes = (uint8_t *)slim + sizeof *head, *const scales =
                                                               (uint8_t *)slim + part.scales;
    if (w->blocks)
        pack_scales(&s, w, width, scales);
    for (int64_t i = 0; i < w->blocks * width; i++)
        if (scales[i] == 255)
            return false;
    slim_codes(g, w, line, lines, width, codes);
    if (!(slim_bits(g) == 8 ? slim_see_bytes(g, w, width, codes, head)
                            : slim_see_halves(g, w, width, codes, scales, head)))
        return false;
    head->direct = slim_direct(g, w, width, head, scales);
    return true;
}

#endif
