/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention's rows as columns of the multiplies: q is B, so a key's scores are one line of nr
 * lanes, a row of q each, and so are P, which is B of the second multiply, and the running
 * output's columns. Maxima, denominators and factors are then plain operations of lanes, in the
 * order of the keys; nothing is turned but the output in the end. Behind attention.h, whose
 * functions of scores and exponentials these are.
 */
#ifndef NG_KERNELS_ATTENTION_WIDE_H
#define NG_KERNELS_ATTENTION_WIDE_H

enum {
    WIDE_VECTORS = FUNCTION_MANY /* of a line: what every kernel of single products has */
};

static bool wide_takes(const struct attention_job *g, int32_t nr)
{
    return nr == WIDE_VECTORS * VL && attention_waits(g);
}

/* Of each line's lanes those whose row sees the key at position p. */
FUNCTION_INLINE imask wide_sees(const struct attention_wide *a, int64_t p, int q)
{
    const ivec at = iv_all((uint32_t)p);
    return im_and(iv_gt(at, iv_sub(iv_load(a->begin + q * VL), iv_all(1))),
                  iv_gt(iv_load(a->end + q * VL), at));
}

/* Positions that all rows see: [*from, *to), or none. */
static void wide_whole(const struct attention_wide *a, int64_t *from, int64_t *to)
{
    *from = 0;
    *to = a->keys;
    for (int r = 0; r < WIDE_VECTORS * VL; r++) {
        *from = a->begin[r] > *from ? a->begin[r] : *from;
        *to = a->end[r] < *to ? a->end[r] : *to;
    }
    if (*from >= *to)
        *from = *to = a->keys;
}

FUNCTION_INLINE void wide_products_of(const struct attention_wide *a, const float *x,
                                      int64_t from, int64_t to, const bool whole,
                                      struct attention_largest_of *seen)
{
    struct attention_largest_of s = *seen; /* in registers */
    for (int64_t p = from; p < to; p++)
        IV_UNROLL
    for (int q = 0; q < WIDE_VECTORS; q++)
        attention_look(&s, q, vec_load(x + (p * WIDE_VECTORS + q) * VL), whole,
                       whole ? im_all() : wide_sees(a, p, q));
    *seen = s;
}

static uint64_t wide_largest(const struct attention_job *g, const struct attention_wide *a,
                             const float *x, float *best)
{
    const float scale = attention_scales(g) ? as_float(g->op->scale) : 1;
    struct attention_largest_of seen = attention_nothing_seen();
    uint64_t special = 0;
    int64_t from, to;
    wide_whole(a, &from, &to);
    wide_products_of(a, x, 0, from, false, &seen);
    wide_products_of(a, x, from, to, true, &seen);
    wide_products_of(a, x, to, a->keys, false, &seen);
    for (int q = 0; q < WIDE_VECTORS; q++) {
        float zero[VL];
        vec_store(best + q * VL, vec_mul(seen.most[q], vec_all(&scale)));
        vec_store(zero, seen.zero[q]);
        for (int i = 0; i < VL; i++)
            special |= (uint64_t)(as_pattern(zero[i]) != 0) << (q * VL + i);
    }
    return special;
}

/* Where exponentials come from, and where they go. */
struct wide_run {
    float less[WIDE_VECTORS * VL];
    vec factor;
    const float *x;
    uint16_t *code;
    float *sum;
    bool sum_p;
};

/* A line's codes; with `sum_p` its numbers become what the codes are. */
FUNCTION_INLINE void wide_rounded(const bool sum_p, vec *y, uint16_t *code)
{
    ivec rounded[WIDE_VECTORS];
    IV_UNROLL
    for (int q = 0; q < WIDE_VECTORS; q++)
        rounded[q] = attention_nearest(iv_bits(y[q]));
    for (int q = 0; q < WIDE_VECTORS; q += IV_GROUP_VECTORS)
        iv_store_upper(code + q * VL, rounded + q);
    for (int q = 0; sum_p && q < WIDE_VECTORS; q++)
        y[q] = iv_float(iv_and(rounded[q], iv_all(0xFFFF0000u)));
}

/* Positions [from, end), a line each; as attention_group(). */
FUNCTION_INLINE void wide_lines(const struct attention_exp *e, const ng_function_kind kind,
                                const ng_function f, const struct attention_wide *a,
                                const struct wide_run *to, int64_t from, int64_t end,
                                const bool whole)
{
    vec sum[WIDE_VECTORS];
    for (int q = 0; q < WIDE_VECTORS; q++)
        sum[q] = vec_load(to->sum + q * VL);
    for (int64_t p = from; p < end; p++) {
        const float *at = to->x + p * (WIDE_VECTORS * VL);
        uint16_t *code = to->code + p * (WIDE_VECTORS * VL);
        vec d[WIDE_VECTORS], y[WIDE_VECTORS];
        IV_UNROLL
        for (int q = 0; q < WIDE_VECTORS; q++)
            d[q] = attention_below(e, f, vec_mul(vec_load(at + q * VL), to->factor),
                                   vec_load(to->less + q * VL));
        const bool normal = function_vectors(kind, f, !e->inside, d, WIDE_VECTORS, y);
        for (int q = 0; !whole && q < WIDE_VECTORS; q++)
            y[q] = iv_float(iv_where(wide_sees(a, p, q), iv_bits(y[q])));
        if (normal && ATTENTION_SHORT && !to->sum_p)
            for (int q = 0; q < WIDE_VECTORS; q += IV_GROUP_VECTORS)
                attention_short(code + q * VL, y + q);
        else
            wide_rounded(to->sum_p, y, code);
        IV_UNROLL
        for (int q = 0; q < WIDE_VECTORS; q++)
            sum[q] = vec_add(sum[q], y[q]);
    }
    for (int q = 0; q < WIDE_VECTORS; q++)
        vec_store(to->sum + q * VL, sum[q]);
}

/* Pieces of keys, and in each what all rows see. */
FUNCTION_INLINE void wide_pieces(const struct attention_exp *given, const bool inside,
                                 const ng_function_kind kind, const ng_function f,
                                 const struct attention_wide *a, int64_t piece, int64_t first,
                                 struct wide_run *to, float *sum)
{
    struct attention_exp e = *given;
    int64_t from, end;
    e.inside = inside;
    wide_whole(a, &from, &end);
    for (int64_t p = 0, next; p < a->keys; p = next, sum += WIDE_VECTORS * VL) {
        next = p + piece - (first + p) % piece;
        if (next > a->keys)
            next = a->keys;
        const int64_t begin = from < p      ? p
                              : from > next ? next
                                            : from,
                      stop = end < begin  ? begin
                             : end > next ? next
                                          : end;
        memset(sum, 0, WIDE_VECTORS * VL * sizeof *sum); /* +0 first changes none */
        to->sum = sum;
        wide_lines(&e, kind, f, a, to, p, begin, false);
        wide_lines(&e, kind, f, a, to, begin, stop, true);
        wide_lines(&e, kind, f, a, to, stop, next, false);
    }
}

static void wide_exponentials(const struct attention_job *g, const struct attention_wide *a,
                              const float *m, const float *x, int64_t piece, int64_t first,
                              uint16_t *code, float *sum)
{
    const struct attention_exp e = attention_exp(g);
    const float scale = attention_scales(g) ? as_float(g->op->scale) : 1;
    struct wide_run to = { .factor = vec_all(&scale),
                           .x = x,
                           .code = code,
                           .sum_p =
                               attention_param(g, NG_ATTENTION_SUM_SOURCE) == NG_SUM_OF_P };
    for (int q = 0; q < WIDE_VECTORS; q++)
        vec_store(to.less + q * VL, attention_less(&e, vec_load(m + q * VL)));
#define PIECES(inside, kind, f) wide_pieces(&e, inside, kind, f, a, piece, first, &to, sum)
    ATTENTION_KINDS(g, e, PIECES);
#undef PIECES
}

/* n lines go on, each lane by its own number. */
static void wide_combine(attention_combine how, int64_t n, const float *by, const float *w,
                         float *o)
{
    for (int q = 0; q < WIDE_VECTORS; q++) {
        const vec f = vec_load(by + q * VL);
        for (int64_t i = q * VL; i < n * WIDE_VECTORS * VL; i += WIDE_VECTORS * VL)
            vec_store(o + i, attention_combined(how, vec_load(o + i), f, w ? w + i : NULL));
    }
}

/* n lines, a multiple of VL, become the rows of their lanes, `step` numbers apart. */
static void wide_rows(int64_t n, const float *o, int64_t step, float *row)
{
    for (int64_t i = 0; i < n; i += VL)
        for (int q = 0; q < WIDE_VECTORS; q++) {
            ivec v[VL];
            IV_UNROLL
            for (int k = 0; k < VL; k++)
                v[k] = iv_load(o + ((i + k) * WIDE_VECTORS + q) * VL);
            iv_transpose(v);
            IV_UNROLL
            for (int k = 0; k < VL; k++)
                iv_store(row + (q * VL + k) * step + i, v[k]);
        }
}

/* VL columns of two rows of 16-bit codes, the first row's in the lower halves. */
FUNCTION_INLINE ivec wide_pairs(const uint16_t *row, const uint16_t *next)
{
    return iv_or(iv_load16((const uint8_t *)row),
                 iv_sll_by(iv_load16((const uint8_t *)next), 16));
}

/* `n` rows of 16-bit codes, `step` apart, in them `columns`, a multiple of VL, become lines of
 * the columns, `line` codes apart, which have room for whole groups. */
static void wide_turn(const uint16_t *code, int64_t n, int64_t step, int64_t columns,
                      int64_t line, uint16_t *to)
{
    static const uint16_t none[VL];
    for (int64_t k = 0; k < n; k += 2 * VL)
        for (int64_t c = 0; c < columns; c += VL) {
            ivec v[VL];
            IV_UNROLL
            for (int i = 0; i < VL; i++) {
                const int64_t at = k + 2 * i;
                v[i] = wide_pairs(at < n ? code + at * step + c : none,
                                  at + 1 < n ? code + (at + 1) * step + c : none);
            }
            iv_transpose(v);
            IV_UNROLL
            for (int i = 0; i < VL; i++)
                iv_store(to + (c + i) * line + k, v[i]);
        }
}

#endif
