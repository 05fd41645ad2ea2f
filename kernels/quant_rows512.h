/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of 32 along a row, from FP32 or bf16, ties to even: what most calls are, where 32
 * halves of words go at once. quantize.h includes this and takes all else.
 *
 * With x's binade's lower end g (or the least normal value) and the sign of x, FP32's
 * x + g * 2^drop is x rounded as the code wants, as in cast_nearest_plain(); here it is one
 * FMA. The sum's lower half counts units, its upper half is sign and exponent, which counts
 * 2^man units a binade. Their sum is the code, but for the upper bits and for a constant of the
 * block, which the FMA brings along: a multiple of 2^man units, so even stays even.
 */
#ifndef NG_KERNELS_QUANT_ROWS512_H
#define NG_KERNELS_QUANT_ROWS512_H

enum {
    QUANT_NEAR = 16384 /* bytes that elements come nearer before their turn */
};

/* What some blocks' scales make of their elements' arithmetic. */
struct quant_sums {
    uint32_t most[QUANT_TAKE];  /* the largest value */
    uint32_t low[QUANT_TAKE];   /* the least normal value */
    uint32_t times[QUANT_TAKE]; /* 2^drop, and the constant */
};

struct quant_places {
    ivec up, sign, magnitude; /* of halves: shifts of the sum's upper half; a code's bits */
    int64_t ahead;            /* bytes; 0: nothing comes nearer */
    bool second;              /* cast_job's */
};

CAST_INLINE struct quant_places quant_places(const struct quant *q)
{
    const struct cast_to *t = &q->to;
    const uint32_t bits = 32 - t->sign_down;
    return (struct quant_places){ .up = iv_all16(7 - t->man_bits),
                                  .sign = iv_all16(16 - bits),
                                  .magnitude = iv_all16((1u << (bits - 1)) - 1u),
                                  .second = q->job->second };
}

/* 32 elements; what they are moved by is two vectors' each, of halves even and odd ones'. */
CAST_INLINE ivec quant_codes_by(const struct quant_places *p, const uint8_t *src,
                                const vec most[2], const vec low[2], const vec times[2],
                                const int half)
{
    ivec x[2];
    if (half) {
        const ivec y = iv_load(src);
        x[0] = iv_sll_by(y, 16);
        x[1] = iv_and(y, iv_all(0xFFFF0000u));
    } else {
        x[0] = iv_load(src);
        x[1] = iv_load(src + 4 * VL);
    }
    for (int v = 0; v < 2; v++) {
        const vec y = vec_no_farther(iv_float(x[v]), most[v]);
        const vec end = iv_float(iv_and(iv_bits(y), iv_all(0xFF800000u)));
        x[v] = iv_bits(vec_fma(vec_no_nearer(end, low[v]), times[v], y));
    }
    const ivec upper = iv_halves(x[0], x[1], 1, half), units = iv_halves(x[0], x[1], 0, half);
    return iv_select(p->magnitude, iv_add16(iv_srl16(upper, p->up), units),
                     iv_srl16(upper, p->sign));
}

/* One block. */
CAST_INLINE ivec quant_codes(const struct quant_places *p, const uint8_t *src,
                             const struct quant_sums *s, int64_t block, const int half)
{
    const vec most = iv_float(iv_all(s->most[block])), low = iv_float(iv_all(s->low[block])),
              times = iv_float(iv_all(s->times[block]));
    return quant_codes_by(p, src, (const vec[]){ most, most }, (const vec[]){ low, low },
                          (const vec[]){ times, times }, half);
}

/* The largest magnitudes' patterns of VL blocks. */
CAST_INLINE ivec quant_tops(const uint8_t *src, const int half)
{
    ivec m[VL];
    for (int i = 0; i < VL; i++)
        if (half) {
            m[i] = iv_and(iv_load(src + 64 * i), iv_all(0x7FFF7FFFu));
        } else {
            const uint8_t *s = src + 128 * i;
            m[i] = iv_max_u(iv_and(iv_load(s), iv_all(0x7FFFFFFFu)),
                            iv_and(iv_load(s + 64), iv_all(0x7FFFFFFFu)));
        }
    if (!half)
        return iv_most_of(m);
    const ivec y = iv_most_as(m, 1);
    return iv_max_u(iv_sll_by(y, 16), iv_and(y, iv_all(0xFFFF0000u)));
}

/* What the largest magnitudes of VL blocks make of them, with their scales. False: elements
 * need more than sums. */
CAST_INLINE int quant_sums_of(const struct quant *q, ivec top, ivec *most, ivec *low,
                              ivec *times, ivec *scale)
{
    const struct cast_to *t = &q->to;
    const uint32_t bits = 32 - t->sign_down;
    const struct quant_most m = { top, top };
    const struct quant_lanes l = quant_scales(q, m);
    const ivec up = iv_sll_by(l.k, 23);
    const ivec field =
        iv_sll(iv_sub(iv_all(0u - t->drop - t->low_field), l.k), iv_all(t->man_bits));
    *most = iv_add(iv_all(t->most), up);
    *low = iv_add(iv_all(t->low_field << 23), up);
    *times =
        iv_or(iv_and(field, iv_all((1u << (bits - 1)) - 1u)), iv_all((t->drop + 127u) << 23));
    *scale = l.scale;
    return !quant_has_special(&m) && !im_any(quant_unusual(&l));
}

/* The same of blocks along a row. */
CAST_INLINE int quant_sums(const struct quant *q, const uint8_t *src, const int half,
                           struct quant_sums *s, ivec *scale)
{
    ivec most, low, times;
    const int quick = quant_sums_of(q, quant_tops(src, half), &most, &low, &times, scale);
    iv_store(s->most, most);
    iv_store(s->low, low);
    iv_store(s->times, times);
    return quick;
}

/* A take of any data. */
static __attribute__((noinline)) void quant_slow(const struct quant *q, const uint8_t *src,
                                                 uint8_t *dst, uint8_t *scale,
                                                 int64_t scale_step)
{
    uint32_t u[CAST_PIECE];
    cast_decode(&q->from, src, CAST_PIECE, u, 0);
    quant_blocks(q, u, NULL, QUANT_TAKE, dst, scale, scale_step, NG_ROUND_TIES_TO_EVEN, NG_SR_A,
                 1, 0);
}

/* Elements of a take. */
CAST_INLINE void quant_sums_codes(const struct quant_places *p, const struct quant_sums *s,
                                  const uint8_t *src, uint8_t *dst, int stream, const int half,
                                  const uint32_t bits)
{
    const int64_t in = half ? 64 : 128, out = 4 * bits;
    for (int i = 0; i < QUANT_TAKE; i += 2, src += 2 * in, dst += 2 * out) {
        if (p->ahead)
            for (int64_t b = 0; b < 2 * in; b += 64)
                near_ask(src + p->ahead + b, p->second);
        const ivec x = quant_codes(p, src, s, i, half),
                   y = quant_codes(p, src + in, s, i + 1, half);
        if (bits == 4)
            iv_store4_of(dst, x, y, stream);
        else
            iv_store8_of(dst, x, y, stream);
    }
}

/* The next take's scales come before a take's elements, so that neither waits. */
CAST_INLINE void quant_takes(const struct quant *q, const uint8_t *src, int64_t takes,
                             uint8_t *dst, uint8_t *scale, int64_t scale_step, int stream,
                             const int half, const uint32_t bits)
{
    struct quant_places p = quant_places(q);
    const int64_t in = half ? 64 : 128, out = 4 * bits;
    struct quant_sums s[2];
    ivec code;
    int quick = quant_sums(q, src, half, &s[0], &code);
    p.ahead = q->job->ahead ? q->job->ahead : stream ? QUANT_NEAR : 0;
    for (int64_t t = 0; t < takes; t++, src += QUANT_TAKE * in, dst += QUANT_TAKE * out,
                 scale += QUANT_TAKE * scale_step) {
        const int now = quick;
        if (now && scale_step == 1) {
            iv_put_bytes(scale, code);
        } else if (now) {
            uint32_t words[VL];
            iv_store(words, code);
            for (int i = 0; i < VL; i++)
                scale[i * scale_step] = (uint8_t)words[i];
        }
        if (t + 1 < takes)
            quick = quant_sums(q, src + QUANT_TAKE * in, half, &s[(t + 1) % 2], &code);
        if (now)
            quant_sums_codes(&p, &s[t % 2], src, dst, stream, half, bits);
        else
            quant_slow(q, src, dst, scale, scale_step);
    }
}

typedef void quant_taker(const struct quant *q, const uint8_t *src, int64_t takes, uint8_t *dst,
                         uint8_t *scale, int64_t scale_step, int stream);

#define QUANT_TAKER(name, half, bits)                                                          \
    static __attribute__((noinline)) void name(const struct quant *q, const uint8_t *src,      \
                                               int64_t takes, uint8_t *dst, uint8_t *scale,    \
                                               int64_t scale_step, int stream)                 \
    {                                                                                          \
        quant_takes(q, src, takes, dst, scale, scale_step, stream, half, bits);                \
    }

QUANT_TAKER(quant_f32_4, 0, 4)
QUANT_TAKER(quant_f32_8, 0, 8)
QUANT_TAKER(quant_bf16_4, 1, 4)
QUANT_TAKER(quant_bf16_8, 1, 8)

/* Is it the data of the above? */
static bool quant_takes_sums(const struct quant *q)
{
    return (q->from.shape == CAST_RAW || q->from.store_bits == 32) && q->to.store_bits <= 8 &&
           q->to.man_bits;
}

/* Of blocks of 32 along a row, how many from the first on are done. */
static int64_t quant_quick(const struct quant *q, const uint8_t *src, int64_t blocks,
                           uint8_t *dst, uint8_t *scale, int64_t scale_step, int stream)
{
    const bool half = q->from.shape == CAST_RAW;
    if (!quant_takes_sums(q) || blocks < QUANT_TAKE)
        return 0;
    const int64_t takes = blocks / QUANT_TAKE;
    quant_taker *const take = half ? q->to.store_bits == 4 ? quant_bf16_4 : quant_bf16_8
                              : q->to.store_bits == 4 ? quant_f32_4
                                                      : quant_f32_8;
    take(q, src, takes, dst, scale, scale_step, stream);
    return takes * QUANT_TAKE;
}

#endif
