/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVFP4: ue4m3 block scales and e2m1 elements; and the way back for every scale beside a tensor
 * scale. Numerics: docs/numerics.md, section 3.2 and 11.5 items 32 to 34. An ISA's cast.c
 * includes its ints.h, quantize.h, then this.
 *
 * `nvfp4_te` is FP32 arithmetic as the page writes it: vector products and quotients, each to
 * nearest even under the library's control word.
 *
 * `nvfp4_exact` rounds real quotients, and forms none of an element. e2m1 has seven steps; |v|
 * over d = scale * S reaches one of value m if |v| >= m * d (or >, where the step is open). d
 * has 4 + 24 significant bits and m at most 3, so m * d is exact in FP64, and the largest FP32
 * number that does not reach the step is found by one conversion and a look at what it left
 * over. An element is then seven integer comparisons. Stochastic rounding asks for 32 bits of
 * the quotient itself, which this does not give.
 *
 * The block's scale, a / (6 S), is a quotient in FP64. It has to be compared with ue4m3's
 * numbers and the points half way between them, M * 2^e, M < 2^5. a is a multiple of some 2^i
 * and below 2^(i + 24), and M * 6 S is one of some 2^j, below 2^(j + 31) (6 S: 24 bits and 2
 * more). If they differ, they do by at least the smaller of the units, so by more than 2^-31 of
 * either; the quotient's error is 2^-53 of it: on which side it lies, or that it lies on the
 * point, stays true, and again in FP32 rounded to odd. No exponent leaves FP64's.
 *
 * Dequantise: see unnv_product().
 */
#ifndef NG_KERNELS_NVFP4_H
#define NG_KERNELS_NVFP4_H

#include "quantize.h"

enum {
    NV_BLOCK = 16,
    NV_TAKE = 16, /* blocks that are looked at together */
    NV_PIECE = NV_TAKE * NV_BLOCK,
    NV_STEPS = 7, /* of e2m1 */
    NV_NAN = 0x7F /* of ue4m3 */
};

struct nv {
    const struct cast_job *job;
    struct cast_from from, scale_from;
    struct cast_to to, scale_to;
    uint32_t sixth; /* te: RN(S_enc * RN(1/6)) */
    uint32_t decode;
    /* exact: where each step lies in units of d, and whether its own value is below it, of
     * positive and negative numbers */
    uint32_t at[2][NV_STEPS];
    bool open[2][NV_STEPS];
};

static const char *nv_quant_refuses(const struct cast_job *j)
{
    if (j->rule < NG_SCALE_NVFP4_TE)
        return "scales that are powers of two";
    if (j->rule == NG_SCALE_NVFP4_EXACT && j->cast->round == NG_ROUND_STOCHASTIC)
        return "stochastic rounding of real quotients";
    if (j->to->store_bits != 4 || j->block > NV_BLOCK)
        return "other elements than 4-bit ones in blocks of 16";
    return NULL;
}

/* Where step i (1 .. 7) begins for one sign. */
static inline void nv_step(struct nv *q, uint32_t negative, int i)
{
    static const float grid[NV_STEPS + 1] = { 0, 0.5F, 1, 1.5F, 2, 3, 4, 6 };
    const float below = grid[i - 1], here = grid[i];
    const bool odd = i % 2 != 0;
    float at = here; /* toward zero */
    bool open = false;
    switch (q->to.round) {
    case NG_ROUND_TIES_TO_EVEN:
        at = (below + here) / 2;
        open = odd;
        break;
    case NG_ROUND_TIES_TO_AWAY: at = (below + here) / 2; break;
    case NG_ROUND_TO_ODD: open = odd; break;
    case NG_ROUND_TOWARD_NEGATIVE: open = negative != 0; break;
    case NG_ROUND_TOWARD_POSITIVE: open = negative == 0; break;
    case NG_ROUND_TOWARD_ZERO:
    case NG_ROUND_STOCHASTIC: break;
    }
    const bool nearest =
        q->to.round == NG_ROUND_TIES_TO_EVEN || q->to.round == NG_ROUND_TIES_TO_AWAY;
    if (open && !nearest) /* as soon as the value below is exceeded */
        at = below;
    q->at[negative][i - 1] = as_pattern(at);
    q->open[negative][i - 1] = open;
}

static inline void nv_make(struct nv *q, const struct cast_job *j)
{
    static const ng_cast plain = { .round = NG_ROUND_TIES_TO_EVEN,
                                   .overflow = NG_OVERFLOW_SATURATE };
    q->job = j;
    cast_from_make(&q->from, j->from, true);
    if (q->from.shape == CAST_UPPER)
        q->from.shape = CAST_RAW;
    cast_from_make(&q->scale_from, j->scale, false);
    cast_to_make(&q->to, j->to, j->cast);
    cast_to_make(&q->scale_to, j->scale, &plain);
    q->sixth = as_pattern(as_float(j->encode) * as_float(0x3E2AAAABu)); /* RN(1/6) */
    q->decode = j->tensor_scale;
    for (uint32_t s = 0; s < 2; s++)
        for (int i = 1; i <= NV_STEPS; i++)
            nv_step(q, s, i);
}

/* ---- What blocks' largest magnitudes make of them: each lane is a block. ---- */

struct nv_lanes {
    ivec scale;              /* code */
    ivec factor;             /* te: what elements are multiplied by */
    ivec level[2][NV_STEPS]; /* exact: the largest patterns that do not reach the steps */
    ivec keep;               /* of an element's code: all, the sign (scale 0), nothing (NaN) */
};

/* Numbers in FP64, lane by lane. */
struct nv_wide {
    vec64 half[2];
};

CAST_INLINE struct nv_wide nv_wide(vec x)
{
    return (struct nv_wide){ { vec64_half(x, 0), vec64_half(x, 1) } };
}

CAST_INLINE struct nv_wide nv_times(struct nv_wide x, struct nv_wide y)
{
    return (
        struct nv_wide){ { vec64_mul(x.half[0], y.half[0]), vec64_mul(x.half[1], y.half[1]) } };
}

/* To FP32, nearest. *rest: a pattern with the sign of what is left, zero if nothing is. What is
 * left over of numbers of at most 53 bits is above 2^-204, or f is 0 and nothing of it matters.
 */
CAST_INLINE ivec nv_narrow(struct nv_wide x, ivec *rest)
{
    const vec f = vec_of_halves(x.half[0], x.half[1]);
    const struct nv_wide up = nv_wide(iv_float(iv_all((100u + 127u) << 23))), back = nv_wide(f);
    const struct nv_wide left = { { vec64_sub(x.half[0], back.half[0]),
                                    vec64_sub(x.half[1], back.half[1]) } };
    const struct nv_wide r = nv_times(left, up);
    *rest = iv_bits(vec_of_halves(r.half[0], r.half[1]));
    return iv_bits(f);
}

/* f + rest, not negative, cut to FP32; the last bit is set if anything was cut. */
CAST_INLINE ivec nv_odd(ivec f, ivec rest)
{
    const ivec down = iv_add(f, iv_sra_by(rest, 31));
    return iv_pick(iv_eq(rest, iv_all(0)), f, iv_or(down, iv_all(1)));
}

/* RN64(a / (6 S)), to FP32 by odd. */
CAST_INLINE ivec nv_quotient(const struct nv *q, ivec a)
{
    const struct nv_wide s = nv_times(nv_wide(iv_float(iv_all(q->decode))),
                                      nv_wide(iv_float(iv_all(0x40C00000u)))); /* 6 */
    const struct nv_wide x = nv_wide(iv_float(a));
    const struct nv_wide y = { { vec64_div(x.half[0], s.half[0]),
                                 vec64_div(x.half[1], s.half[1]) } };
    ivec rest;
    const ivec f = nv_narrow(y, &rest);
    return nv_odd(f, rest);
}

/* The largest pattern that does not reach m * d; one that nothing reaches where the scale is 0.
 */
CAST_INLINE ivec nv_level(struct nv_wide d, uint32_t at, bool open, imask none)
{
    ivec rest;
    const ivec f = nv_narrow(nv_times(d, nv_wide(iv_float(iv_all(at)))), &rest);
    const imask reaches = iv_gt(iv_all(open ? 0 : 1), rest); /* f itself does */
    return iv_pick(none, iv_all(0x7FFFFFFFu), iv_add(f, iv_where(reaches, iv_all(~0u))));
}

CAST_INLINE void nv_lanes(const struct nv *q, struct quant_most m, struct nv_lanes *l,
                          const int exact, const int signs)
{
    const ivec zero = iv_all(0), inf = iv_all(CAST_INF), one = iv_all(0x3F800000u);
    const imask nan = iv_gt(m.top, inf);
    const imask gone =
        q->job->special == NG_BLOCK_SPECIAL_NAN_BLOCK ? im_or(nan, iv_eq(m.top, inf)) : nan;
    const struct cast_grid grid = cast_grid(&q->scale_to, zero);
    const ivec t = exact ? nv_quotient(q, m.finite)
                         : iv_bits(vec_mul(iv_float(m.finite), iv_float(iv_all(q->sixth))));
    const ivec code = cast_nearest_plain(&q->scale_to, &grid, t);
    const imask none = iv_eq(code, zero);
    l->scale = iv_pick(gone, iv_all(NV_NAN), code);
    l->keep = iv_pick(gone, zero, iv_pick(none, iv_all(8), iv_all(~0u)));
    const vec scale = iv_float(cast_decode_words(&q->scale_from, code, CAST_FN)),
              decode = iv_float(iv_all(q->decode));
    if (exact) {
        const struct nv_wide d = nv_times(nv_wide(scale), nv_wide(decode));
        for (int s = 0; s <= signs; s++)
            for (int i = 0; i < NV_STEPS; i++)
                l->level[s][i] = nv_level(d, q->at[s][i], q->open[s][i], none);
    } else {
        const ivec e = iv_bits(vec_div(iv_float(one), vec_mul(scale, decode)));
        l->factor = iv_pick(none, zero, iv_min(e, iv_all(0x7F7FFFFFu)));
    }
}

/* ---- Elements. ---- */

/* RN(v * encode), by the cast. usual: a special times a factor of 0 cannot occur, whose sign
 * would be lost. */
CAST_INLINE ivec nv_te(const struct nv *q, const struct cast_grid *grid, ivec u, ivec factor,
                       ivec word, const ng_round round, const ng_sr sr, const int usual)
{
    ivec y = iv_bits(vec_mul(iv_float(u), iv_float(factor)));
    if (!usual)
        y = iv_or_some(iv_and(y, iv_all(0x7FFFFFFFu)), u, iv_all(0x80000000u));
    return cast_encode_words(&q->to, grid, y, word, round, sr, 1, 0, 1);
}

/* The steps that |v| reaches, and v's sign. Apart: levels of negative numbers, or NULL. */
CAST_INLINE ivec nv_steps(ivec u, const ivec *level, const ivec *apart)
{
    const ivec mag = iv_and(u, iv_all(0x7FFFFFFFu));
    const imask negative = iv_gt(iv_all(0), u);
    ivec c = iv_all(0);
    for (int i = 0; i < NV_STEPS; i++)
        c = iv_count(c, mag, apart ? iv_pick(negative, apart[i], level[i]) : level[i]);
    return iv_or_some(c, iv_srl_by(u, 28), iv_all(8));
}

/* ---- Along a row. ---- */

struct nv_take {
    uint32_t scale[NV_TAKE], factor[NV_TAKE], keep[NV_TAKE], level[2][NV_STEPS][NV_TAKE];
    bool usual; /* all is kept but for zeros */
};

CAST_INLINE void nv_take(const struct nv *q, const uint32_t *u, int64_t blocks,
                         struct nv_take *t, const int exact, const int signs)
{
    t->usual = true;
    for (int64_t b = 0; b < blocks; b += VL) {
        const struct quant_most m = quant_most_of(u + NV_BLOCK * b, blocks - b, NV_BLOCK);
        struct nv_lanes l;
        nv_lanes(q, m, &l, exact, signs);
        t->usual = t->usual && !quant_has_special(&m);
        iv_store(t->scale + b, l.scale);
        iv_store(t->keep + b, l.keep);
        if (!exact)
            iv_store(t->factor + b, l.factor);
        for (int s = 0; exact && s <= signs; s++)
            for (int i = 0; i < NV_STEPS; i++)
                iv_store(t->level[s][i] + b, l.level[s][i]);
    }
}

/* Pairs of blocks: 32 elements are stored at a time. */
CAST_INLINE void nv_elements(const struct nv *q, const struct nv_take *t, const uint32_t *u,
                             const uint32_t *word, int64_t blocks, uint8_t *dst, int stream,
                             const int exact, const int signs, const ng_round round,
                             const ng_sr sr, const int usual)
{
    const struct cast_grid grid = cast_grid(&q->to, iv_all(0));
    for (int64_t b = 0; b < blocks; b += IV_GROUP / NV_BLOCK) {
        ivec x[IV_GROUP_VECTORS], level[2][NV_STEPS];
        for (int v = 0; v < IV_GROUP_VECTORS; v++) {
            const int64_t i = b + v * VL / NV_BLOCK;
            const ivec y = iv_load(u + NV_BLOCK * b + VL * v);
            for (int k = 0; exact && k < NV_STEPS; k++) {
                level[0][k] = iv_all(t->level[0][k][i]);
                level[1][k] = iv_all(t->level[signs][k][i]);
            }
            const ivec w = !exact && round == NG_ROUND_STOCHASTIC
                               ? iv_load(word + NV_BLOCK * b + VL * v)
                               : iv_all(0);
            x[v] = exact ? nv_steps(y, level[0], signs ? level[1] : NULL)
                         : nv_te(q, &grid, y, iv_all(t->factor[i]), w, round, sr, usual);
            if (!usual)
                x[v] = iv_and(x[v], iv_all(t->keep[i]));
        }
        cast_store(4, dst, x, stream);
        dst += IV_GROUP / 2;
    }
}

CAST_INLINE void nv_along(const struct nv *q, const struct cast_rows *r, const int exact,
                          const int signs, const ng_round round, const ng_sr sr)
{
    const uint32_t from = q->from.store_bits;
    const bool random = !exact && round == NG_ROUND_STOCHASTIC;
    const int stream = q->job->stream && ((uintptr_t)r->dst & 63) == 0;
    uint32_t buffer[NV_PIECE], words[NV_PIECE];
    uint8_t codes[NV_PIECE / 2], *scale = r->scale;
    for (int64_t i = 0, m; i < r->n; i += m) {
        m = r->n - i < NV_PIECE ? r->n - i : NV_PIECE;
        const bool whole = m % IV_GROUP == 0;
        const uint8_t *src = (const uint8_t *)r->src + cast_bytes(from, i);
        uint8_t *dst = (uint8_t *)r->dst + cast_bytes(4, i);
        const uint32_t *u = (const uint32_t *)(const void *)src, *w = random ? r->word + i : u;
        if (!whole || from != 32) {
            if (!whole)
                memset(buffer, 0, sizeof buffer);
            cast_decode(&q->from, src, m, buffer, 0);
            u = buffer;
        }
        if (!whole && random) {
            memset(words, 0, sizeof words);
            memcpy(words, w, 4 * (size_t)m);
            w = words;
        }
        const int64_t blocks = (m + NV_BLOCK - 1) / NV_BLOCK;
        struct nv_take t;
        nv_take(q, u, blocks, &t, exact, signs);
        for (int64_t b = 0; b < blocks; b++, scale += r->scale_step)
            *scale = (uint8_t)t.scale[b];
        if (t.usual)
            nv_elements(q, &t, u, w, blocks, whole ? dst : codes, stream & whole, exact, signs,
                        round, sr, 1);
        else
            nv_elements(q, &t, u, w, blocks, whole ? dst : codes, stream & whole, exact, signs,
                        round, sr, 0);
        if (!whole)
            cast_put(4, dst, codes, m);
    }
    if (stream)
        _mm_sfence();
}

/* ---- Across rows: a lane is a column. ---- */

CAST_INLINE void nv_columns(const struct nv *q, const struct cast_rows *r, int64_t col,
                            const int exact, const int signs, const ng_round round,
                            const ng_sr sr)
{
    const int64_t n = r->n - col < IV_GROUP ? r->n - col : IV_GROUP;
    const bool random = !exact && round == NG_ROUND_STOCHASTIC;
    const struct cast_grid grid = cast_grid(&q->to, iv_all(0));
    uint32_t buffer[IV_GROUP] = { 0 }, words[IV_GROUP] = { 0 };
    struct quant_most most[IV_GROUP_VECTORS];
    for (int v = 0; v < IV_GROUP_VECTORS; v++)
        most[v] = (struct quant_most){ iv_all(0), iv_all(0) };
    for (int64_t p = 0; p < r->rows; p++) {
        const uint32_t *u = quant_row(&q->from, r, col, p, n, buffer);
        for (int v = 0; v < IV_GROUP_VECTORS; v++)
            quant_more(&most[v], iv_load(u + VL * v));
    }
    struct nv_lanes lanes[IV_GROUP_VECTORS];
    for (int v = 0; v < IV_GROUP_VECTORS; v++) {
        nv_lanes(q, most[v], &lanes[v], exact, signs);
        iv_store(words + VL * v, lanes[v].scale);
    }
    for (int64_t c = 0; c < n; c++)
        r->scale[(col + c) * r->scale_step] = (uint8_t)words[c];
    for (int64_t p = 0; p < r->rows; p++) {
        const uint32_t *u = quant_row(&q->from, r, col, p, n, buffer);
        uint8_t *dst =
            (uint8_t *)r->dst + cast_bytes(4, col) + quant_at(r, p, r->dst_step, r->dst_jump);
        uint8_t codes[IV_GROUP / 2];
        if (random)
            memcpy(words, r->word + quant_at(r, p, r->word_step, r->word_jump) + col,
                   4 * (size_t)n);
        ivec x[IV_GROUP_VECTORS];
        for (int v = 0; v < IV_GROUP_VECTORS; v++) {
            const ivec y = iv_load(u + VL * v),
                       w = random ? iv_load(words + VL * v) : iv_all(0);
            const struct nv_lanes *l = &lanes[v];
            x[v] = exact ? nv_steps(y, l->level[0], signs ? l->level[1] : NULL)
                         : nv_te(q, &grid, y, l->factor, w, round, sr, 0);
            x[v] = iv_and(x[v], l->keep);
        }
        cast_store(4, n == IV_GROUP ? dst : codes, x, 0);
        if (n < IV_GROUP)
            cast_put(4, dst, codes, n);
    }
}

#define NV_WAY(name, exact, signs, round, sr)                                                  \
    static __attribute__((noinline)) void name(const struct nv *q, cast_way way,               \
                                               const struct cast_rows *r)                      \
    {                                                                                          \
        for (int64_t p = 0; way == CAST_ALONG && p < r->rows; p++) {                           \
            const struct cast_rows one = quant_one(r, p);                                      \
            nv_along(q, &one, exact, signs, round, sr);                                        \
        }                                                                                      \
        for (int64_t col = 0; way == CAST_ACROSS && col < r->n; col += IV_GROUP)               \
            nv_columns(q, r, col, exact, signs, round, sr);                                    \
    }

NV_WAY(nv_te_rne, 0, 0, NG_ROUND_TIES_TO_EVEN, NG_SR_A)
NV_WAY(nv_te_sr, 0, 0, NG_ROUND_STOCHASTIC, NG_SR_A)
NV_WAY(nv_te_any, 0, 0, q->to.round, q->to.sr)
NV_WAY(nv_exact_even, 1, 0, NG_ROUND_TIES_TO_EVEN, NG_SR_A)
NV_WAY(nv_exact_signs, 1, 1, NG_ROUND_TIES_TO_EVEN, NG_SR_A)

static void nv_quantize(const struct cast_job *j, cast_way way, const struct cast_rows *r)
{
    struct nv q;
    nv_make(&q, j);
    const ng_round round = j->cast->round;
    if (j->rule == NG_SCALE_NVFP4_EXACT) {
        if (round == NG_ROUND_TOWARD_NEGATIVE || round == NG_ROUND_TOWARD_POSITIVE)
            nv_exact_signs(&q, way, r);
        else
            nv_exact_even(&q, way, r); /* all whose steps are the same for both signs */
    } else if (round == NG_ROUND_TIES_TO_EVEN) {
        nv_te_rne(&q, way, r);
    } else if (round == NG_ROUND_STOCHASTIC && j->cast->sr == NG_SR_A) {
        nv_te_sr(&q, way, r);
    } else {
        nv_te_any(&q, way, r);
    }
}

/* The pattern of the largest finite magnitude of n elements. */
static uint32_t nv_largest_of(const struct cast_job *j, const void *src, int64_t n)
{
    struct cast_from f;
    cast_from_make(&f, j->from, false);
    const ivec inf = iv_all(CAST_INF), magnitude = iv_all(0x7FFFFFFFu);
    const int64_t piece = NV_PIECE;
    ivec most[2] = { iv_all(0), iv_all(0) };
    uint32_t buffer[NV_PIECE];
    for (int64_t i = 0; i < n; i += piece) {
        const uint8_t *s = (const uint8_t *)src + cast_bytes(f.store_bits, i);
        const uint32_t *u = (const uint32_t *)(const void *)s;
        if (f.store_bits != 32 || n - i < piece) {
            if (n - i < piece)
                memset(buffer, 0, sizeof buffer);
            cast_decode(&f, s, n - i < piece ? n - i : piece, buffer, 0);
            u = buffer;
        }
        for (int64_t k = 0; k < piece; k += 2 * VL)
            for (int v = 0; v < 2; v++) {
                const ivec mag = iv_and(iv_load(u + k + VL * v), magnitude);
                most[v] = iv_max_u(most[v], iv_where(iv_gt(inf, mag), mag));
            }
    }
    return iv_most_u(iv_max_u(most[0], most[1]));
}

/* ---- Dequantise, with a scale that is no power of two or a tensor scale. ---- */

struct unnv {
    struct cast_from from, scale_from;
    struct cast_to to;
    cast_encoder *encode; /* NULL: to FP32 */
    uint32_t high, low;   /* the tensor scale's upper 12 bits, and the rest */
    uint32_t least, most; /* exponent fields of scale * high that are right for any element */
};

static const char *unnv_refuses(const struct cast_job *j)
{
    const uint32_t t = j->tensor_scale & 0x7FFFFFFFu;
    if (j->scale->format == NG_E8M0 && j->tensor_scale == 0x3F800000u)
        return "scales that are powers of two";
    if (!t || t >= CAST_INF)
        return "a tensor scale of 0, Inf or NaN";
    if (j->from->store_bits > 8 || j->from->kind == NG_KIND_SCALE ||
        j->from->kind == NG_KIND_UFN || j->from->has_inf)
        return "scaled elements of more than 8 bits, with an Inf, or of a scale format";
    if (j->to->format == NG_F32 && j->cast->round != NG_ROUND_TIES_TO_EVEN)
        return "a rounding to f32 that is not to nearest even";
    if (j->cast->round == NG_ROUND_STOCHASTIC)
        return "stochastic rounding of products of more than 24 bits";
    if (j->block > NV_PIECE)
        return "a block of more than 256 elements";
    if ((j->to->store_bits == 4 || j->from->store_bits == 4) && j->block % 2)
        return "4-bit elements in blocks of odd size";
    return cast_refuses(j);
}

/*
 * What scale * high must lie between. Its exponent e is that of the whole factor F, or one
 * less: high is the tensor scale less its last 12 bits. F has 4 + 24 bits, so all of it is a
 * multiple of 2^(e - 27), and a product of 2^(e - 27 + unit), which has to be at least 2^-149:
 * then FP32 subnormals cut nothing, and neither product nor sum below is rounded but as their
 * 24 bits demand. F is below 2^(e + 2) and an element below 2^(top + 1): at e + top + 3 <= 127
 * nothing overflows.
 */
static inline void unnv_range(struct unnv *x, const ng_format_spec *s)
{
    const bool integer = s->kind == NG_KIND_INT;
    const int unit =
        integer ? -(int)s->man_bits : 1 - s->bias - (int)(s->man_bits + s->low_bits);
    const int top = quant_exponent(s) + integer; /* -128 is a power above the maximum's */
    x->least = (uint32_t)(-149 + 27 - unit + 127);
    x->most = (uint32_t)(127 - 3 - top + 127);
}

static inline void unnv_make(struct unnv *x, const struct cast_job *j)
{
    const uint32_t sign = j->tensor_scale & 0x80000000u;
    *x = (struct unnv){ .high = j->tensor_scale & 0xFFFFF000u };
    cast_from_make(&x->from, j->from, false); /* a NaN's sign is lost: section 11.5 item 34 */
    cast_from_make(&x->scale_from, j->scale, false);
    cast_to_make(&x->to, j->to, j->cast);
    x->encode = j->to->format == NG_F32 ? NULL : cast_encoder_for(&x->to);
    x->low = as_pattern(as_float(j->tensor_scale) - as_float(x->high)) | sign;
    unnv_range(x, j->from);
}

/* The factors of n scales, in two parts; room up to a whole vector. False: out of range. */
static inline bool unnv_factors(const struct unnv *x, const uint8_t *scale, int64_t step,
                                int64_t n, uint32_t *high, uint32_t *low)
{
    const ivec zero = iv_all(0), inf = iv_all(CAST_INF);
    imask bad = iv_gt(zero, zero);
    for (int64_t i = 0; i < n; i += VL) {
        uint32_t codes[VL];
        for (int64_t k = 0; k < VL; k++)
            codes[k] = scale[(i + k < n ? i + k : i) * step];
        const ivec c = iv_load(codes);
        const ivec s = x->scale_from.shape == CAST_SCALE
                           ? cast_decode_words(&x->scale_from, c, CAST_SCALE)
                           : cast_decode_words(&x->scale_from, c, CAST_FN);
        const ivec h = iv_bits(vec_mul(iv_float(s), iv_float(iv_all(x->high))));
        const ivec field = iv_and(iv_srl_by(h, 23), iv_all(0xFF));
        const imask out = im_or(iv_gt(iv_all(x->least), field), iv_gt(field, iv_all(x->most)));
        bad = im_or(bad, im_andnot(im_or(iv_eq(s, zero), iv_gt(s, inf)), out));
        iv_store(high + i, h);
        iv_store(low + i, iv_bits(vec_mul(iv_float(s), iv_float(iv_all(x->low)))));
    }
    return !im_any(bad);
}

/*
 * u * (high + low). An element has at most 8 bits, each part of a factor 4 + 12: both products
 * are exact, of one sign (zeros too), and their sum is the real product rounded once, to FP32.
 * What the sum lost is b - (h - a), exactly, since |a| >= |b| (Dekker). odd: cut instead, the
 * last bit set if anything was lost: all formats but f32 have at most 11 bits, and a rounding
 * to so few bits of a number rounded to odd at 24 is one rounding of the number (exact.h).
 * Below 2^-125 the sum is exact: see unnv_range().
 */
CAST_INLINE ivec unnv_product(ivec u, vec high, vec low, const int odd)
{
    const vec a = vec_mul(iv_float(u), high), b = vec_mul(iv_float(u), low), h = vec_add(a, b);
    if (!odd)
        return iv_bits(h);
    const ivec rest = iv_bits(vec_sub(b, vec_sub(h, a)));
    const ivec apart = iv_sra_by(iv_xor(rest, iv_bits(h)), 31);
    const imask exact = iv_eq(iv_and(rest, iv_all(0x7FFFFFFFu)), iv_all(0));
    return iv_pick(exact, iv_bits(h), iv_or(iv_add(iv_bits(h), apart), iv_all(1)));
}

/* Blocks in the buffer, block after block; whole vectors: out has room for one more. */
CAST_INLINE void unnv_blocks(const uint32_t *u, int64_t n, int64_t block, const uint32_t *high,
                             const uint32_t *low, uint32_t *out, int stream, const int odd)
{
    for (int64_t b = 0; b < n; b += block, high++, low++) {
        const vec h = iv_float(iv_all(*high)), l = iv_float(iv_all(*low));
        for (int64_t e = b; e < b + block; e += VL) {
            const ivec v = unnv_product(iv_load(u + e), h, l, odd);
            if (stream)
                iv_stream(out + e, v);
            else
                iv_store(out + e, v);
        }
    }
}

static bool unnv_along(const struct unnv *x, const struct cast_rows *r, int64_t block,
                       bool streams)
{
    enum {
        MOST = 64
    }; /* blocks of a piece */
    const uint32_t from = x->from.store_bits, to = x->to.store_bits;
    uint32_t u[NV_PIECE + VL] = { 0 }, out[NV_PIECE + VL], high[MOST], low[MOST];
    const int64_t fit = NV_PIECE / block, whole = block * (fit < MOST ? fit : MOST);
    for (int64_t i = 0; i < r->n; i += whole) {
        const int64_t m = r->n - i < whole ? r->n - i : whole;
        if (!unnv_factors(x, r->scale + i / block * r->scale_step, r->scale_step,
                          (m + block - 1) / block, high, low))
            return false;
        cast_decode(&x->from, (const uint8_t *)r->src + cast_bytes(from, i), m, u, 0);
        uint8_t *dst = (uint8_t *)r->dst + cast_bytes(to, i);
        const int stream = streams && m == NV_PIECE;
        if (!x->encode && block % VL == 0 && m % block == 0) {
            unnv_blocks(u, m, block, high, low, (uint32_t *)(void *)dst, stream, 0);
        } else if (!x->encode) {
            unnv_blocks(u, m, block, high, low, out, 0, 0);
            memcpy(dst, out, 4 * (size_t)m);
        } else {
            unnv_blocks(u, m, block, high, low, out, 0, 1);
            x->encode(&x->to, out, NULL, m, dst, stream);
        }
    }
    return true;
}

static bool unnv_across(const struct unnv *x, const struct cast_rows *r)
{
    uint32_t u[NV_PIECE], high[NV_PIECE], low[NV_PIECE];
    memset(u, 0, sizeof u);
    for (int64_t c = 0; c < r->n; c += NV_PIECE) {
        const int64_t m = r->n - c < NV_PIECE ? r->n - c : NV_PIECE;
        if (!unnv_factors(x, r->scale + c * r->scale_step, r->scale_step, m, high, low))
            return false;
        for (int64_t p = 0; p < r->rows; p++) {
            cast_decode(&x->from,
                        (const uint8_t *)r->src + cast_bytes(x->from.store_bits, c) +
                            quant_at(r, p, r->src_step, r->src_jump),
                        m, u, 0);
            uint8_t *dst = (uint8_t *)r->dst + cast_bytes(x->to.store_bits, c) +
                           quant_at(r, p, r->dst_step, r->dst_jump);
            for (int64_t e = 0; e < m; e += VL) {
                const ivec v = iv_load(u + e);
                const vec h = iv_float(iv_load(high + e)), l = iv_float(iv_load(low + e));
                iv_store(u + e,
                         x->encode ? unnv_product(v, h, l, 1) : unnv_product(v, h, l, 0));
            }
            if (x->encode)
                x->encode(&x->to, u, NULL, m, dst, 0);
            else
                memcpy(dst, u, 4 * (size_t)m);
        }
    }
    return true;
}

static bool nv_dequantize(const struct cast_job *j, cast_way way, const struct cast_rows *r)
{
    struct unnv x;
    unnv_make(&x, j);
    if (way == CAST_ACROSS)
        return unnv_across(&x, r);
    const bool stream = j->stream && ((uintptr_t)r->dst & 63) == 0 && NV_PIECE % j->block == 0;
    const bool exact = unnv_along(&x, r, j->block, stream);
    if (stream)
        _mm_sfence();
    return exact;
}

static const char *nv_refuses(const struct cast_job *j)
{
    if (!j->scale)
        return "no block scales";
    return j->quantize ? nv_quant_refuses(j) : unnv_refuses(j);
}

#endif
