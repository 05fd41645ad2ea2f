/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block scales and elements of the MX formats. Numerics: docs/numerics.md, section 3.1 and
 * 11.5. An ISA's cast.c includes its ints.h, cast.h, then this.
 *
 * An element is v / 2^k, rounded once. Nothing is divided: v is rounded on the format's grid
 * moved up by k (struct cast_grid), which costs nothing an element. Where the block's values
 * are so small or large that the moved grid would leave FP32's exponents, they are first
 * multiplied by 2^64 or 2^-64: exact upwards; downwards only values vanish that are far below
 * half a unit, and those keep a bit so that directed roundings see that they were not zero.
 *
 * All scale rules are one addition on the pattern of the largest magnitude: the exponent field
 * of (pattern + q->add) is that of a rounded up, or not, where the rule says.
 */
#ifndef NG_KERNELS_QUANTIZE_H
#define NG_KERNELS_QUANTIZE_H

#include "cast.h"
#include "near.h"

enum {
    QUANT_BLOCK = 512, /* the largest block along a row */
    QUANT_LIFT = 64
};

struct quant {
    const struct cast_job *job;
    struct cast_from from;
    struct cast_to to;
    uint32_t add; /* to the pattern of a */
    int emax;     /* to subtract from its exponent */
};

static inline int quant_exponent(const ng_format_spec *s) /* floor(log2 max) */
{
    const uint32_t max = widen(s, s->max_code);
    return (int)(max >> 23) - 127;
}

static inline void quant_make(struct quant *q, const struct cast_job *j)
{
    const uint32_t fraction = 0x007FFFFFu;
    q->job = j;
    cast_from_make(&q->from, j->from, true);
    if (q->from.shape == CAST_UPPER)
        q->from.shape = CAST_RAW;
    cast_to_make(&q->to, j->to, j->cast);
    q->emax = quant_exponent(j->to);
    q->add = 0;
    switch (j->rule) {
    case NG_SCALE_FLOOR_UP1: q->emax--; break;
    case NG_SCALE_CEIL: q->add = fraction; break;
    case NG_SCALE_EVEN: q->add = 1u << (22 - j->to->man_bits); break;
    case NG_SCALE_RCEIL: /* up if a's significand is above max's */
        q->add = fraction - (widen(j->to, j->to->max_code) & fraction);
        break;
    case NG_SCALE_FLOOR:
    case NG_SCALE_NVFP4_TE:
    case NG_SCALE_NVFP4_EXACT: break;
    }
}

static const char *quant_refuses(const struct cast_job *j)
{
    const char *why = cast_refuses(j);
    if (why)
        return why;
    if (j->rule >= NG_SCALE_NVFP4_TE)
        return "scales that are no powers of two";
    if (j->block > QUANT_BLOCK)
        return "a block of more than 512 elements";
    if ((j->to->store_bits == 4 || j->from->store_bits == 4) && j->block % 2)
        return "4-bit elements in blocks of odd size";
    return NULL;
}

/* v * 2^lift; downwards what is not zero stays so. */
CAST_INLINE ivec quant_lift(ivec u, vec factor)
{
    const ivec sign = iv_all(0x80000000u);
    const ivec w = iv_bits(vec_mul(iv_float(u), factor));
    const imask gone = im_andnot(iv_eq(iv_or(u, sign), sign), iv_eq(iv_or(w, sign), sign));
    return iv_pick(gone, iv_or(w, iv_all(1)), w);
}

/* ---- What blocks' largest magnitudes make of them: each lane is a block. ---- */

struct quant_lanes {
    ivec scale; /* codes */
    ivec k;     /* the grid moves by so much, of values multiplied by 2^lift */
    vec factor; /* 2^lift */
    ivec keep;  /* all ones, or 0 where the scale is NaN: elements are 0 */
};

/* The largest patterns, and those of finite numbers. */
struct quant_most {
    ivec top, finite;
};

CAST_INLINE void quant_more(struct quant_most *m, ivec u)
{
    const ivec mag = iv_and(u, iv_all(0x7FFFFFFFu));
    m->top = iv_max_u(m->top, mag);
    m->finite = iv_max_u(m->finite, iv_where(iv_gt(iv_all(CAST_INF), mag), mag));
}

CAST_INLINE int quant_has_special(const struct quant_most *m)
{
    return im_any(iv_gt(m->top, iv_all(CAST_INF - 1u)));
}

/* Sections 3.1 and 11.5 item 30. */
CAST_INLINE struct quant_lanes quant_scales(const struct quant *q, struct quant_most m)
{
    const ivec zero = iv_all(0), inf = iv_all(CAST_INF);
    const imask nan = iv_gt(m.top, inf), special = im_or(nan, iv_eq(m.top, inf));
    const ivec a = q->job->special == NG_BLOCK_SPECIAL_EXPONENT
                       ? iv_pick(special, inf, m.finite)
                       : m.finite;
    const ivec field = iv_srl_by(a, 23);
    const imask small = iv_gt(iv_all(0x00800000u), a);
    const ivec lifted =
        iv_bits(vec_mul(iv_float(a), iv_float(iv_all((uint32_t)(QUANT_LIFT + 127) << 23))));
    const ivec normal = iv_pick(small, lifted, a);
    ivec e = iv_sub(iv_srl_by(iv_add(normal, iv_all(q->add)), 23),
                    iv_all((uint32_t)(127 + q->emax)));
    e = iv_sub(e, iv_where(small, iv_all(QUANT_LIFT)));
    e = iv_max(iv_min(e, iv_all(127)), iv_all((uint32_t)-127));
    const imask none = iv_eq(a, zero);
    const ivec lift =
        iv_pick(im_andnot(none, iv_gt(iv_all(67), field)), iv_all(QUANT_LIFT),
                iv_where(iv_gt(field, iv_all(186)), iv_all((uint32_t)-QUANT_LIFT)));
    const imask gone = q->job->special == NG_BLOCK_SPECIAL_NAN_BLOCK ? special
                       : q->job->to->has_nan                         ? iv_gt(zero, zero)
                                                                     : nan;
    const ivec code = iv_pick(none, zero, iv_add(e, iv_all(127)));
    return (struct quant_lanes){ .scale = iv_pick(gone, iv_all(0xFF), code),
                                 .k = iv_pick(none, zero, iv_add(e, lift)),
                                 .factor = iv_float(iv_sll_by(iv_add(lift, iv_all(127)), 23)),
                                 .keep = iv_pick(gone, zero, iv_all(~0u)) };
}

/* Lanes whose values are multiplied by 2^lift, or whose scale is NaN. */
CAST_INLINE imask quant_unusual(const struct quant_lanes *l)
{
    const ivec one = iv_all(0x3F800000u), f = iv_bits(l->factor);
    return im_or(im_or(iv_gt(f, one), iv_gt(one, f)), iv_eq(l->keep, iv_all(0)));
}

/* One block, alike in all lanes. */
CAST_INLINE struct quant_lanes quant_look(const struct quant *q, const uint32_t *u, int vectors)
{
    struct quant_most m = { iv_all(0), iv_all(0) };
    for (int v = 0; v < vectors; v++)
        quant_more(&m, iv_load(u + VL * v));
    return quant_scales(
        q, (struct quant_most){ iv_all(iv_most_u(m.top)), iv_all(iv_most_u(m.finite)) });
}

CAST_INLINE uint32_t quant_first(ivec x)
{
    uint32_t lanes[VL];
    iv_store(lanes, x);
    return lanes[0];
}

/* ---- Along a row. ---- */

/* A block of n <= QUANT_BLOCK elements of any number: through buffers. */
static __attribute__((noinline)) void quant_any(const struct quant *q, const uint8_t *src,
                                                const uint32_t *word, int64_t n, uint8_t *dst,
                                                uint8_t *scale)
{
    const ng_round round = q->to.round;
    const int64_t groups = (n + IV_GROUP - 1) / IV_GROUP;
    uint32_t u[QUANT_BLOCK], words[IV_GROUP] = { 0 };
    memset(u + IV_GROUP * (groups - 1), 0, sizeof(uint32_t) * IV_GROUP);
    cast_decode(&q->from, src, n, u, 0);
    const struct quant_lanes b = quant_look(q, u, (int)groups * IV_GROUP_VECTORS);
    const struct cast_grid g = cast_grid(&q->to, b.k);
    *scale = (uint8_t)quant_first(b.scale);
    for (int64_t i = 0; i < n; i += IV_GROUP) {
        uint8_t codes[4 * IV_GROUP];
        ivec x[IV_GROUP_VECTORS];
        const int64_t m = n - i < IV_GROUP ? n - i : IV_GROUP;
        if (round == NG_ROUND_STOCHASTIC)
            memcpy(words, word + i, 4 * (size_t)m);
        for (int v = 0; v < IV_GROUP_VECTORS; v++) {
            const ivec y = quant_lift(iv_load(u + i + VL * v), b.factor);
            x[v] = iv_and(b.keep, cast_encode_words(&q->to, &g, y, iv_load(words + VL * v),
                                                    round, q->to.sr, 0, 0, 0));
        }
        cast_store(q->to.store_bits, codes, x, 0);
        cast_put(q->to.store_bits, dst + cast_bytes(q->to.store_bits, i), codes, m);
    }
}

enum {
    QUANT_TAKE = 16, /* blocks of 32 that are looked at together: whole vectors of them */
    QUANT_AHEAD = 4  /* takes */
};

/* What some blocks' scales make of their grids. */
struct quant_take {
    uint32_t k[QUANT_TAKE], factor[QUANT_TAKE], keep[QUANT_TAKE], scale[QUANT_TAKE];
    bool usual; /* no NaN or Inf; factors are 1, and all are kept */
};

/* Lane i: the largest magnitude of block i; finite: of its finite ones. Absent blocks: 0. */
CAST_INLINE ivec quant_side_by_side(const uint32_t *u, int64_t blocks, const int block,
                                    const int finite)
{
    ivec m[VL];
    for (int i = 0; i < VL; i++, u += block) {
        struct quant_most x = { iv_all(0), iv_all(0) };
        for (int v = 0; i < blocks && v < block / VL; v++)
            quant_more(&x, iv_load(u + VL * v));
        m[i] = finite ? x.finite : x.top;
    }
    return iv_most_of(m);
}

/* So VL scales come of the operations of one, and no block waits for the one before. */
CAST_INLINE struct quant_most quant_most_of(const uint32_t *u, int64_t blocks, const int block)
{
    struct quant_most m = { .top = quant_side_by_side(u, blocks, block, 0) };
    m.finite = m.top;
    if (quant_has_special(&m))
        m.finite = quant_side_by_side(u, blocks, block, 1);
    return m;
}

CAST_INLINE void quant_take(const struct quant *q, const uint32_t *u, int64_t blocks,
                            struct quant_take *t)
{
    t->usual = true;
    for (int64_t b = 0; b < blocks; b += VL) {
        const struct quant_most m = quant_most_of(u + IV_GROUP * b, blocks - b, IV_GROUP);
        const struct quant_lanes l = quant_scales(q, m);
        iv_store(t->scale + b, l.scale);
        iv_store(t->k + b, l.k);
        iv_store(t->factor + b, iv_bits(l.factor));
        iv_store(t->keep + b, l.keep);
        t->usual = t->usual && !quant_has_special(&m) && !im_any(quant_unusual(&l));
    }
}

/*
 * A block of a later take comes nearer. All of a take is read in one go, and the next only
 * after its elements: too long a pause for the CPU's own prefetching beyond the caches.
 */
CAST_INLINE void quant_soon(const struct quant *q, const uint32_t *u)
{
    const char *at = (const char *)(u + QUANT_AHEAD * QUANT_TAKE * IV_GROUP);
    near_ask(at, q->job->second);
    near_ask(at + 64, q->job->second);
}

/* Elements of up to QUANT_TAKE blocks under their scales. */
CAST_INLINE void quant_elements(const struct quant *q, const struct quant_take *t,
                                const uint32_t *u, const uint32_t *word, int64_t blocks,
                                uint8_t *dst, const ng_round round, const ng_sr sr,
                                const int plain, int stream, const int usual)
{
    for (int64_t i = 0; i < blocks; i++, u += IV_GROUP) {
        const struct cast_grid g = cast_grid(&q->to, iv_all(t->k[i]));
        ivec x[IV_GROUP_VECTORS];
        if (stream)
            quant_soon(q, u);
        for (int v = 0; v < IV_GROUP_VECTORS; v++) {
            ivec y = iv_load(u + VL * v);
            if (!usual)
                y = quant_lift(y, iv_float(iv_all(t->factor[i])));
            const ivec w = round == NG_ROUND_STOCHASTIC ? iv_load(word + VL * v) : iv_all(0);
            x[v] = cast_encode_words(&q->to, &g, y, w, round, sr, plain, 0, usual);
            if (!usual)
                x[v] = iv_and(x[v], iv_all(t->keep[i]));
        }
        cast_store(q->to.store_bits, dst, x, stream);
        dst += cast_bytes(q->to.store_bits, IV_GROUP);
        if (round == NG_ROUND_STOCHASTIC)
            word += IV_GROUP;
    }
}

/* Blocks of 32 that lie as patterns. */
CAST_INLINE void quant_blocks(const struct quant *q, const uint32_t *u, const uint32_t *word,
                              int64_t blocks, uint8_t *dst, uint8_t *scale, int64_t scale_step,
                              const ng_round round, const ng_sr sr, const int plain, int stream)
{
    struct quant_take t;
    for (int64_t b = 0, m; b < blocks; b += m) {
        m = blocks - b < QUANT_TAKE ? blocks - b : QUANT_TAKE;
        quant_take(q, u, m, &t);
        for (int64_t i = 0; i < m; i++, scale += scale_step)
            *scale = (uint8_t)t.scale[i];
        if (t.usual)
            quant_elements(q, &t, u, word, m, dst, round, sr, plain, stream, 1);
        else
            quant_elements(q, &t, u, word, m, dst, round, sr, plain, stream, 0);
        u += IV_GROUP * m;
        dst += cast_bytes(q->to.store_bits, IV_GROUP * m);
        if (round == NG_ROUND_STOCHASTIC)
            word += IV_GROUP * m;
    }
}

#ifdef IV_HALVES
#include "quant_rows512.h"
#else
/* Of blocks of 32 along a row, how many from the first on are done: here none. */
static inline int64_t quant_quick(const struct quant *q, const uint8_t *src, int64_t blocks,
                                  uint8_t *dst, uint8_t *scale, int64_t scale_step, int stream)
{
    (void)q, (void)src, (void)blocks, (void)dst, (void)scale, (void)scale_step, (void)stream;
    return 0;
}
#endif

/* Row p alone, of blocks along rows. */
CAST_INLINE struct cast_rows quant_one(const struct cast_rows *r, int64_t p)
{
    return (struct cast_rows){ .src = (const uint8_t *)r->src + p * r->src_step,
                               .dst = (uint8_t *)r->dst + p * r->dst_step,
                               .scale = r->scale + p * r->scale_row,
                               .word = r->word ? r->word + p * r->word_step : NULL,
                               .n = r->n,
                               .scale_step = r->scale_step };
}

CAST_INLINE void quant_along(const struct quant *q, const struct cast_rows *r,
                             const ng_round round, const ng_sr sr, const int plain)
{
    const uint32_t from = q->from.store_bits, to = q->to.store_bits;
    const uint8_t *src = r->src;
    uint8_t *dst = r->dst, *scale = r->scale;
    const int64_t block = q->job->block, step = r->scale_step,
                  whole = block == IV_GROUP ? r->n / IV_GROUP * IV_GROUP : 0,
                  piece = from == 32 ? whole : CAST_PIECE;
    const int stream = q->job->stream && ((uintptr_t)dst & 63) == 0;
    uint32_t buffer[CAST_PIECE];
    int64_t i = 0;
    if (plain && round == NG_ROUND_TIES_TO_EVEN) {
        const int64_t done = quant_quick(q, src, whole / IV_GROUP, dst, scale, step, stream);
        i = done * IV_GROUP;
        scale += done * step;
    }
    for (int64_t m; i < whole; i += m, scale += m / IV_GROUP * step) {
        m = whole - i < piece ? whole - i : piece;
        const uint8_t *s = src + cast_bytes(from, i);
        for (int64_t b = 0; q->job->ahead && b < cast_bytes(from, m); b += 64)
            near_ask(s + q->job->ahead + b, q->job->second);
        if (from != 32)
            cast_decode(&q->from, s, m, buffer, 0);
        quant_blocks(q, from == 32 ? (const uint32_t *)(const void *)s : buffer,
                     r->word ? r->word + i : NULL, m / IV_GROUP, dst + cast_bytes(to, i), scale,
                     step, round, sr, plain, stream);
    }
    for (; i < r->n; i += block, scale += step)
        quant_any(q, src + cast_bytes(from, i), r->word ? r->word + i : NULL,
                  r->n - i < block ? r->n - i : block, dst + cast_bytes(to, i), scale);
    if (stream)
        _mm_sfence();
}

/* ---- Across rows: a lane is a column. ---- */

/* Where row p begins, when rows come in runs. */
CAST_INLINE int64_t quant_at(const struct cast_rows *r, int64_t p, int64_t step, int64_t jump)
{
    if (p < r->run) /* mostly: two divisions less */
        return p * step;
    return p / r->run * jump + p % r->run * step;
}

/* Row p of n <= 32 columns as patterns: in place, or in the buffer, with zeros behind. */
CAST_INLINE const uint32_t *quant_row(const struct cast_from *f, const struct cast_rows *r,
                                      int64_t col, int64_t p, int64_t n, uint32_t *buffer)
{
    const uint8_t *s = (const uint8_t *)r->src + cast_bytes(f->store_bits, col) +
                       quant_at(r, p, r->src_step, r->src_jump);
    if (f->store_bits == 32 && n == IV_GROUP)
        return (const uint32_t *)(const void *)s;
    cast_decode(f, s, n, buffer, 0);
    return buffer;
}

/* Row p of columns that are read soon: pieces too short, and rows too many, for what a CPU
 * fetches by itself. */
CAST_INLINE void quant_column_soon(const struct quant *q, const struct cast_rows *r,
                                   int64_t col, int64_t p)
{
    const uint32_t from = q->from.store_bits;
    const uint8_t *s = (const uint8_t *)r->src + cast_bytes(from, col + 2 * IV_GROUP) +
                       quant_at(r, p, r->src_step, r->src_jump);
    for (int64_t at = 0; at < cast_bytes(from, IV_GROUP); at += 64)
        near_ask(s + at, q->job->second);
}

/* Up to 32 columns of one block. */
CAST_INLINE void quant_columns(const struct quant *q, const struct cast_rows *r, int64_t col,
                               const ng_round round, const ng_sr sr, const int plain)
{
    const uint32_t to = q->to.store_bits;
    const int64_t n = r->n - col < IV_GROUP ? r->n - col : IV_GROUP;
    uint8_t *dst = (uint8_t *)r->dst + cast_bytes(to, col);
    uint32_t buffer[IV_GROUP] = { 0 }, words[IV_GROUP] = { 0 };
    struct quant_most most[IV_GROUP_VECTORS];
    for (int v = 0; v < IV_GROUP_VECTORS; v++)
        most[v] = (struct quant_most){ iv_all(0), iv_all(0) };
    for (int64_t p = 0; p < r->rows; p++) {
        const uint32_t *u = quant_row(&q->from, r, col, p, n, buffer);
        for (int v = 0; v < IV_GROUP_VECTORS; v++)
            quant_more(&most[v], iv_load(u + VL * v));
    }
    struct quant_lanes lanes[IV_GROUP_VECTORS];
    struct cast_grid grid[IV_GROUP_VECTORS];
    int usual = 1;
    for (int v = 0; v < IV_GROUP_VECTORS; v++) {
        lanes[v] = quant_scales(q, most[v]);
        grid[v] = cast_grid(&q->to, lanes[v].k);
        iv_store(words + VL * v, lanes[v].scale);
        usual = usual && !im_any(quant_unusual(&lanes[v])) && !quant_has_special(&most[v]);
    }
    for (int64_t c = 0; c < n; c++)
        r->scale[(col + c) * r->scale_step] = (uint8_t)words[c];
    for (int64_t p = 0; p < r->rows; p++) {
        const uint32_t *u = quant_row(&q->from, r, col, p, n, buffer);
        uint8_t *out = dst + quant_at(r, p, r->dst_step, r->dst_jump), codes[4 * IV_GROUP];
        quant_column_soon(q, r, col, p);
        if (round == NG_ROUND_STOCHASTIC)
            memcpy(words, r->word + quant_at(r, p, r->word_step, r->word_jump) + col,
                   4 * (size_t)n);
        ivec x[IV_GROUP_VECTORS];
        for (int v = 0; v < IV_GROUP_VECTORS; v++) {
            ivec y = iv_load(u + VL * v);
            if (!usual)
                y = quant_lift(y, lanes[v].factor);
            const ivec w = round == NG_ROUND_STOCHASTIC ? iv_load(words + VL * v) : iv_all(0);
            x[v] = cast_encode_words(&q->to, &grid[v], y, w, round, sr, plain, 0, usual);
            if (!usual)
                x[v] = iv_and(lanes[v].keep, x[v]);
        }
        cast_store(to, n == IV_GROUP ? out : codes, x, 0);
        if (n < IV_GROUP)
            cast_put(to, out, codes, n);
    }
}

#ifdef IV_HALVES
#include "quant_columns512.h"
#else
/* Of columns, how many from the first on are done: here none. */
static inline int64_t quant_quick_columns(const struct quant *q, const struct cast_rows *r)
{
    (void)q, (void)r;
    return 0;
}
#endif

CAST_INLINE void quant_across(const struct quant *q, const struct cast_rows *r,
                              const ng_round round, const ng_sr sr, const int plain)
{
    int64_t col = 0;
    if (plain && round == NG_ROUND_TIES_TO_EVEN)
        col = quant_quick_columns(q, r);
    for (; col < r->n; col += IV_GROUP)
        quant_columns(q, r, col, round, sr, plain);
}

#define QUANT_WAY(name, round, sr, plain)                                                      \
    static __attribute__((noinline)) void name(const struct quant *q, cast_way way,            \
                                               const struct cast_rows *r)                      \
    {                                                                                          \
        const struct quant mine = *q; /* no store can change it */                             \
        for (int64_t p = 0; way == CAST_ALONG && p < r->rows; p++) {                           \
            const struct cast_rows one = quant_one(r, p);                                      \
            quant_along(&mine, &one, round, sr, plain);                                        \
        }                                                                                      \
        if (way == CAST_ACROSS)                                                                \
            quant_across(&mine, r, round, sr, plain);                                          \
    }

QUANT_WAY(quant_any_way, q->job->cast->round, q->job->cast->sr, 0)
QUANT_WAY(quant_rne, NG_ROUND_TIES_TO_EVEN, NG_SR_A, 1)
QUANT_WAY(quant_rtz, NG_ROUND_TOWARD_ZERO, NG_SR_A, 1)
QUANT_WAY(quant_sr, NG_ROUND_STOCHASTIC, NG_SR_A, 1)

static void quant_quantize(const struct cast_job *j, cast_way way, const struct cast_rows *r)
{
    struct quant q;
    quant_make(&q, j);
    const ng_round round = j->cast->round;
    if (q.to.plain && round == NG_ROUND_TIES_TO_EVEN)
        quant_rne(&q, way, r);
    else if (q.to.plain && round == NG_ROUND_TOWARD_ZERO)
        quant_rtz(&q, way, r);
    else if (q.to.plain && round == NG_ROUND_STOCHASTIC && j->cast->sr == NG_SR_A)
        quant_sr(&q, way, r);
    else
        quant_any_way(&q, way, r);
}

/* ---- Dequantise. ---- */

/* Codes of scales under which every element is a multiple of 2^unit, and below 2^128: scale *
 * element is then an exact FP32 product. */
struct quant_range {
    uint32_t from, to;
};

static inline struct quant_range quant_exact_scales(const ng_format_spec *s, int unit)
{
    const int least = s->kind == NG_KIND_INT ? -(int)s->man_bits
                                             : 1 - s->bias - (int)(s->man_bits + s->low_bits);
    const int from = unit - least, to = 127 - quant_exponent(s) - (s->kind == NG_KIND_INT);
    return (struct quant_range){ from < -127 ? 0 : (uint32_t)(from + 127),
                                 to > 127 ? 254 : (uint32_t)(to + 127) };
}

/* 2^(code - 127), or NaN, as a pattern. */
static inline uint32_t quant_power(uint32_t code)
{
    return code == 0xFF ? WIDEN_NAN : code ? code << 23 : 0x00400000u;
}

/* The patterns of n scales, `step` apart. False: under one of them products are not exact. */
static inline bool quant_factors(struct quant_range range, const uint8_t *scale, int64_t step,
                                 int64_t n, uint32_t *out)
{
    uint32_t bad = 0;
    int64_t i = 0;
    const ivec from = iv_all(range.from), to = iv_all(range.to), none = iv_all(0xFF);
    for (; step == 1 && i + VL <= n; i += VL) {
        const ivec code = iv_load8(scale + i);
        const imask out_of = im_or(iv_gt(from, code), iv_gt(code, to)), nan = iv_eq(code, none);
        bad |= (uint32_t)im_any(im_andnot(nan, out_of));
        const ivec power =
            iv_pick(iv_eq(code, iv_all(0)), iv_all(0x00400000u), iv_sll_by(code, 23));
        iv_store(out + i, iv_pick(nan, iv_all(WIDEN_NAN), power));
    }
    for (; i < n; i++) {
        const uint32_t code = scale[i * step];
        bad |= code != 0xFF && (code < range.from || code > range.to);
        out[i] = quant_power(code);
    }
    return !bad;
}

struct unquant {
    struct cast_from from;
    struct cast_to to;
    struct quant_range range;
    struct cast_path path;
};

/* From products to codes. */
static inline void unquant_put(const struct unquant *x, const uint32_t *u, const uint32_t *word,
                               int64_t n, uint8_t *dst, int stream)
{
    if (x->path.encode)
        x->path.encode(&x->to, u, word, n, dst, stream);
    else
        cast_encode_f32(&x->to, u, n, dst);
}

enum {
    UNQUANT_TAKE = CAST_PIECE / IV_GROUP
};

/* Along a row, blocks of 32: values straight to dst, or through a buffer to codes. */
static bool unquant_blocks(const struct unquant *x, const struct cast_rows *r, int stream)
{
    const uint32_t from = x->from.store_bits, to = x->to.store_bits;
    const bool bare = x->path.bare && !x->path.encode;
    const bool halves = x->from.halves && x->path.bare && x->path.encode; /* to bf16 */
    uint32_t u[CAST_PIECE], factor[4 * UNQUANT_TAKE];
    const int64_t blocks = r->n / IV_GROUP,
                  take = bare || halves ? 4 * UNQUANT_TAKE : UNQUANT_TAKE;
    for (int64_t b = 0; b < blocks; b += take) {
        const int64_t m = blocks - b < take ? blocks - b : take, i = b * IV_GROUP;
        if (!quant_factors(x->range, r->scale + b * r->scale_step, r->scale_step, m, factor))
            return false;
        uint8_t *dst = (uint8_t *)r->dst + cast_bytes(to, i);
        const uint8_t *src = (const uint8_t *)r->src + cast_bytes(from, i);
        if (halves && cast_scale_quick(&x->from, src, factor, m, dst, stream, true))
            continue;
        cast_scale(&x->from, src, factor, m, bare ? (uint32_t *)(void *)dst : u,
                   bare && stream);
        if (!bare)
            unquant_put(x, u, r->word ? r->word + i : NULL, m * IV_GROUP, dst, stream);
    }
    return true;
}

/* Along a row, any block: pieces of whole blocks through a buffer. */
static bool unquant_along(const struct unquant *x, const struct cast_rows *r, int64_t block)
{
    const uint32_t from = x->from.store_bits, to = x->to.store_bits;
    uint32_t u[CAST_PIECE];
    const int64_t whole = CAST_PIECE / block * block;
    for (int64_t i = 0; i < r->n; i += whole) {
        const int64_t m = r->n - i < whole ? r->n - i : whole;
        cast_decode(&x->from, (const uint8_t *)r->src + cast_bytes(from, i), m, u, 0);
        for (int64_t b = 0; b < m; b += block) {
            uint32_t factor;
            if (!quant_factors(x->range, r->scale + (i + b) / block * r->scale_step, 1, 1,
                               &factor))
                return false;
            for (int64_t e = b; e < m && e < b + block; e++)
                u[e] = as_pattern(as_float(u[e]) * as_float(factor));
        }
        unquant_put(x, u, r->word ? r->word + i : NULL, m,
                    (uint8_t *)r->dst + cast_bytes(to, i), 0);
    }
    return true;
}

/* Across rows: a scale a column. */
static bool unquant_across(const struct unquant *x, const struct cast_rows *r)
{
    const ng_format_spec *from = x->from.spec, *to = x->to.spec;
    uint32_t u[CAST_PIECE / 2], factor[CAST_PIECE / 2];
    for (int64_t c = 0; c < r->n; c += CAST_PIECE / 2) {
        const int64_t m = r->n - c < CAST_PIECE / 2 ? r->n - c : CAST_PIECE / 2;
        if (!quant_factors(x->range, r->scale + c * r->scale_step, r->scale_step, m, factor))
            return false;
        for (int64_t p = 0; p < r->rows; p++) {
            const uint8_t *s = (const uint8_t *)r->src + cast_bytes(from->store_bits, c) +
                               quant_at(r, p, r->src_step, r->src_jump);
            cast_decode(&x->from, s, m, u, 0);
            int64_t e = 0;
            for (; e + VL <= m; e += VL)
                iv_store(u + e, iv_bits(vec_mul(iv_float(iv_load(u + e)),
                                                iv_float(iv_load(factor + e)))));
            for (; e < m; e++)
                u[e] = as_pattern(as_float(u[e]) * as_float(factor[e]));
            const uint32_t *word = r->word;
            if (word)
                word += quant_at(r, p, r->word_step, r->word_jump) + c;
            unquant_put(x, u, word, m,
                        (uint8_t *)r->dst + cast_bytes(to->store_bits, c) +
                            quant_at(r, p, r->dst_step, r->dst_jump),
                        0);
        }
    }
    return true;
}

static const char *unquant_refuses(const struct cast_job *j)
{
    if (j->scale->format != NG_E8M0 || j->tensor_scale != 0x3F800000u)
        return "scales that are no powers of two";
    if (j->from->store_bits > 8 || j->from->kind == NG_KIND_SCALE)
        return "scaled elements of more than 8 bits, or of a scale format";
    if (j->block > QUANT_BLOCK)
        return "a block of more than 512 elements";
    if ((j->to->store_bits == 4 || j->from->store_bits == 4) && j->block % 2)
        return "4-bit elements in blocks of odd size";
    return cast_refuses(j);
}

static bool quant_dequantize(const struct cast_job *j, cast_way way, const struct cast_rows *r)
{
    struct unquant x = { 0 };
    struct cast_halves halves;
    cast_from_make(&x.from, j->from, false); /* a NaN's sign is lost: section 11.5 item 34 */
    cast_prepare(&x.from, r->n, &halves);
    cast_to_make(&x.to, j->to, j->cast);
    x.path = cast_path_of(&x.from, &x.to);
    /* FP32's least unit, or bf16's where nothing is to be rounded */
    x.range = quant_exact_scales(j->from, x.path.encode && x.path.bare ? -133 : -149);
    if (way == CAST_ACROSS)
        return unquant_across(&x, r);
    const int stream = j->stream && ((uintptr_t)r->dst & 63) == 0;
    const bool exact = j->block == IV_GROUP && r->n % IV_GROUP == 0
                           ? unquant_blocks(&x, r, stream)
                           : unquant_along(&x, r, j->block);
    if (stream)
        _mm_sfence();
    return exact;
}

static const char *quant_job_refuses(const struct cast_job *j)
{
    return j->quantize ? quant_refuses(j) : j->scale ? unquant_refuses(j) : cast_refuses(j);
}

#endif
