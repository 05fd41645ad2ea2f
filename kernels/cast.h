/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes to FP32 patterns and FP32 patterns to codes, a vector at a time. Numerics:
 * docs/numerics.md, section 2. An ISA's cast.c includes its ints.h, then this.
 *
 * Every value of every format is an FP32 number, so a conversion is cast_decode() and
 * cast_encode(), and only the second rounds. Both are integer arithmetic on the patterns, but
 * for one multiplication and one addition whose results are exact or are the page's rounding:
 * see cast_nearest().
 *
 * The limit is memory: FP32 to FP8 moves 5 bytes an element. The plain encoder takes 14
 * operations a vector, the others 25 to 35, on four ports (Zen 4, 8 lanes: 0.5 to 1 cycle an
 * element).
 */
#ifndef NG_KERNELS_CAST_H
#define NG_KERNELS_CAST_H

#include "kernel.h"
#include "widen.h"

#define CAST_INLINE static inline __attribute__((always_inline))

#define CAST_INF 0x7F800000u

/* ---- Decode. ---- */

/* How a format is read: each gets a loop of its own. */
typedef enum cast_shape {
    CAST_TABLE,  /* 4 bits: looked up */
    CAST_WORDS,  /* f32, tf32: the patterns themselves */
    CAST_UPPER,  /* bf16: their upper halves */
    CAST_RAW,    /* the same, NaNs as they are: for an encoder, which replaces them */
    CAST_IEEE16, /* f16 */
    CAST_IEEE,   /* the rest has 8 bits or less in a byte */
    CAST_FN,     /* signed or not */
    CAST_FNUZ,
    CAST_FINITE,
    CAST_INT,
    CAST_SCALE
} cast_shape;

/* What halves512.h looks up. */
struct cast_halves {
    uint16_t half[128]; /* upper halves of the patterns of codes without their signs */
    /* powers of two under which all numbers stay normal: patterns from .. from + range */
    uint32_t plain_from, plain_range;
};

struct cast_from {
    cast_shape shape;
    uint32_t store_bits;
    uint32_t sign_up;     /* shift that brings the sign to bit 31 */
    uint32_t sign_mask;   /* 0x80000000, or 0 where codes have none */
    uint32_t mag_mask;    /* exponent and mantissa */
    uint32_t man_up;      /* shift of the mantissa to FP32's place */
    uint32_t rebias;      /* to add to the shifted magnitude */
    uint32_t normal_from; /* magnitudes below are subnormal */
    uint32_t inf;         /* magnitude of Inf, or of the last before NaN */
    uint32_t nan_keep;    /* sign bit of a NaN that stays */
    uint32_t least;       /* pattern of the lowest subnormal */
    uint32_t table[16];   /* patterns of a 4-bit format */
    const ng_format_spec *spec;
    const struct cast_halves *halves; /* or NULL */
};

static inline float cast_power(int e) /* 2^e, normal */
{
    return as_float((uint32_t)(e + 127) << 23);
}

static inline cast_shape cast_shape_of(const ng_format_spec *s)
{
    if (s->bits == 4)
        return CAST_TABLE;
    if (s->exp_bits == 8 && s->man_bits)
        return s->store_bits == 32 ? CAST_WORDS : CAST_UPPER;
    switch (s->kind) {
    case NG_KIND_IEEE: return s->bits == 16 ? CAST_IEEE16 : CAST_IEEE;
    case NG_KIND_FN:
    case NG_KIND_UFN: return CAST_FN;
    case NG_KIND_FNUZ: return CAST_FNUZ;
    case NG_KIND_FINITE: return CAST_FINITE;
    case NG_KIND_INT: return CAST_INT;
    case NG_KIND_SCALE: break;
    }
    return CAST_SCALE;
}

/* keep: NaNs keep their signs (those that have one). */
static inline void cast_from_make(struct cast_from *f, const ng_format_spec *s, bool keep)
{
    const uint32_t man = s->man_bits + s->low_bits;
    *f = (struct cast_from){ .shape = cast_shape_of(s),
                             .store_bits = s->store_bits,
                             .sign_up = 32 - s->bits,
                             .sign_mask = s->kind == NG_KIND_UFN ? 0 : 0x80000000u,
                             .mag_mask = (1u << (s->exp_bits + man)) - 1u,
                             .man_up = 23 - man,
                             .rebias = (uint32_t)(127 - s->bias) << 23,
                             .normal_from = 1u << man,
                             .inf = s->max_code + (s->kind == NG_KIND_IEEE),
                             .nan_keep = keep ? 0x80000000u : 0,
                             .spec = s };
    if (s->exp_bits < 8)
        f->least = as_pattern(cast_power(1 - s->bias - (int)man));
    for (uint32_t c = 0; s->bits == 4 && c < 16; c++)
        f->table[c] = widen(s, c);
}

/* A canonical NaN with the input's sign if that is kept. */
CAST_INLINE ivec cast_quiet(const struct cast_from *f, ivec sign)
{
    return iv_or(iv_all(WIDEN_NAN), iv_and(sign, iv_all(f->nan_keep)));
}

/* One vector of codes, as words. */
CAST_INLINE ivec cast_decode_words(const struct cast_from *f, ivec x, const cast_shape shape)
{
    const ivec top = iv_all(0x80000000u);
    if (shape == CAST_TABLE)
        return iv_at(f->table, x);
    if (shape == CAST_INT) /* two's complement: int to FP32 is exact */
        return iv_bits(
            vec_mul(iv_to_float(iv_sra_by(iv_sll_by(x, 24), 24)), iv_float(iv_all(f->least))));
    if (shape == CAST_SCALE) { /* 2^-127 is subnormal in FP32 */
        const ivec v = iv_pick(iv_eq(x, iv_all(0)), iv_all(0x00400000u), iv_sll_by(x, 23));
        return iv_pick(iv_eq(x, iv_all(0xFF)), iv_all(WIDEN_NAN), v);
    }
    if (shape == CAST_RAW)
        return iv_sll_by(x, 16);
    if (shape == CAST_WORDS || shape == CAST_UPPER) {
        const ivec w = shape == CAST_UPPER ? iv_sll_by(x, 16) : x;
        return iv_pick(iv_gt(iv_and(w, iv_all(0x7FFFFFFFu)), iv_all(CAST_INF)),
                       cast_quiet(f, iv_and(w, top)), w);
    }
    const ivec sign = iv_and(iv_sll(x, iv_all(f->sign_up)), iv_all(f->sign_mask));
    const ivec mag = iv_and(x, iv_all(f->mag_mask));
    const ivec high = iv_add(iv_sll(mag, iv_all(f->man_up)), iv_all(f->rebias));
    const ivec low = iv_bits(vec_mul(iv_to_float(mag), iv_float(iv_all(f->least))));
    ivec v = iv_pick(iv_gt(iv_all(f->normal_from), mag), low, high);
    if (shape == CAST_IEEE || shape == CAST_IEEE16)
        v = iv_pick(iv_eq(mag, iv_all(f->inf)), iv_all(CAST_INF), v);
    v = iv_or(v, sign);
    if (shape == CAST_FNUZ) /* the code of -0 */
        return iv_pick(iv_eq(v, top), iv_all(WIDEN_NAN), v);
    if (shape == CAST_FINITE)
        return v;
    return iv_pick(iv_gt(mag, iv_all(f->inf)), cast_quiet(f, sign), v);
}

CAST_INLINE ivec cast_load(const uint8_t *p, const uint32_t store_bits)
{
    switch (store_bits) {
    case 4: return iv_load4(p);
    case 8: return iv_load8(p);
    case 16: return iv_load16(p);
    default: return iv_load(p);
    }
}

/* Where element i lies; i is even under 4-bit codes. */
static inline int64_t cast_bytes(uint32_t store_bits, int64_t i)
{
    return i * store_bits / 8;
}

CAST_INLINE void cast_decode_as(const struct cast_from *from, const uint8_t *src, int64_t n,
                                uint32_t *out, int stream, const cast_shape shape,
                                const uint32_t bits)
{
    const struct cast_from f = *from; /* no store can change it */
    int64_t i = 0;
    for (; i + VL <= n; i += VL, src += cast_bytes(bits, VL)) {
        const ivec v = cast_decode_words(&f, cast_load(src, bits), shape);
        if (stream)
            iv_stream(out + i, v);
        else
            iv_store(out + i, v);
    }
    if (i < n) {
        uint8_t codes[4 * VL] = { 0 };
        uint32_t words[VL];
        memcpy(codes, src, (size_t)((n - i) * bits + 7) / 8);
        iv_store(words, cast_decode_words(&f, cast_load(codes, bits), shape));
        memcpy(out + i, words, 4 * (size_t)(n - i));
    }
}

/* Groups of 32 codes to the patterns of their values times a power of two each: the product is
 * exact, or the caller knows that it is not. */
CAST_INLINE void cast_scale_as(const struct cast_from *from, const uint8_t *src,
                               const uint32_t *factor, int64_t groups, uint32_t *out,
                               int stream, const cast_shape shape, const uint32_t bits)
{
    const struct cast_from f = *from;
    for (int64_t b = 0; b < groups; b++, out += IV_GROUP) {
        const vec times = iv_float(iv_all(factor[b]));
        for (int v = 0; v < IV_GROUP_VECTORS; v++, src += cast_bytes(bits, VL)) {
            const ivec x = iv_bits(
                vec_mul(iv_float(cast_decode_words(&f, cast_load(src, bits), shape)), times));
            if (stream)
                iv_stream(out + VL * v, x);
            else
                iv_store(out + VL * v, x);
        }
    }
}

#ifdef IV_HALVES
#include "halves512.h"
#else
/* f->halves, for n elements: here none. */
static inline void cast_prepare(struct cast_from *f, int64_t n, struct cast_halves *room)
{
    (void)f, (void)n, (void)room;
}
/* Of n codes, how many from the first on are decoded: here none. */
static inline int64_t cast_decode_quick(const struct cast_from *f, const uint8_t *src,
                                        int64_t n, uint32_t *out, int stream)
{
    (void)f, (void)src, (void)n, (void)out, (void)stream;
    return 0;
}
/* cast_scale() done, to patterns or to bf16: here never. */
static inline bool cast_scale_quick(const struct cast_from *f, const uint8_t *src,
                                    const uint32_t *factor, int64_t groups, uint8_t *out,
                                    int stream, bool to_bf16)
{
    (void)f, (void)src, (void)factor, (void)groups, (void)out, (void)stream, (void)to_bf16;
    return false;
}
#endif

static __attribute__((noinline)) void cast_scale(const struct cast_from *f, const uint8_t *src,
                                                 const uint32_t *factor, int64_t groups,
                                                 uint32_t *out, int stream)
{
    if (cast_scale_quick(f, src, factor, groups, (uint8_t *)out, stream, false))
        return;
    switch (f->shape) {
    case CAST_TABLE: cast_scale_as(f, src, factor, groups, out, stream, CAST_TABLE, 4); break;
    case CAST_IEEE: cast_scale_as(f, src, factor, groups, out, stream, CAST_IEEE, 8); break;
    case CAST_FN: cast_scale_as(f, src, factor, groups, out, stream, CAST_FN, 8); break;
    case CAST_FNUZ: cast_scale_as(f, src, factor, groups, out, stream, CAST_FNUZ, 8); break;
    case CAST_FINITE: cast_scale_as(f, src, factor, groups, out, stream, CAST_FINITE, 8); break;
    case CAST_INT: cast_scale_as(f, src, factor, groups, out, stream, CAST_INT, 8); break;
    case CAST_WORDS:
    case CAST_UPPER:
    case CAST_RAW:
    case CAST_IEEE16:
    case CAST_SCALE: break; /* no elements under a scale */
    }
}

/* n codes to patterns. */
static __attribute__((noinline)) void cast_decode(const struct cast_from *f, const uint8_t *src,
                                                  int64_t n, uint32_t *out, int stream)
{
    const int64_t done = cast_decode_quick(f, src, n, out, stream);
    src += cast_bytes(f->store_bits, done);
    out += done;
    n -= done;
    switch (f->shape) {
    case CAST_TABLE: cast_decode_as(f, src, n, out, stream, CAST_TABLE, 4); break;
    case CAST_WORDS: cast_decode_as(f, src, n, out, stream, CAST_WORDS, 32); break;
    case CAST_UPPER: cast_decode_as(f, src, n, out, stream, CAST_UPPER, 16); break;
    case CAST_RAW: cast_decode_as(f, src, n, out, stream, CAST_RAW, 16); break;
    case CAST_IEEE16: cast_decode_as(f, src, n, out, stream, CAST_IEEE16, 16); break;
    case CAST_IEEE: cast_decode_as(f, src, n, out, stream, CAST_IEEE, 8); break;
    case CAST_FN: cast_decode_as(f, src, n, out, stream, CAST_FN, 8); break;
    case CAST_FNUZ: cast_decode_as(f, src, n, out, stream, CAST_FNUZ, 8); break;
    case CAST_FINITE: cast_decode_as(f, src, n, out, stream, CAST_FINITE, 8); break;
    case CAST_INT: cast_decode_as(f, src, n, out, stream, CAST_INT, 8); break;
    case CAST_SCALE: cast_decode_as(f, src, n, out, stream, CAST_SCALE, 8); break;
    }
}

/* ---- Encode. ---- */

/* The grid that values are rounded on. Where a block's scale is 2^k it moves up by k. */
struct cast_grid {
    ivec low;    /* pattern of the least normal value: below it units stay the same */
    ivec magic;  /* pattern of the number whose unit is the least subnormal */
    ivec rebias; /* to subtract from a pattern so that its field is the code's */
    ivec per;    /* pattern of one over the least subnormal */
    ivec most;   /* pattern of the largest finite value */
    ivec above;  /* pattern of 2^drop times the least normal value */
};

struct cast_to {
    ng_kind kind;
    uint32_t store_bits, man_bits, low_bits;
    uint32_t drop;                    /* bits of an FP32 mantissa below the code's */
    uint32_t low_field;               /* FP32 exponent field of the least normal value */
    uint32_t max;                     /* largest finite code, before low_bits */
    uint32_t most;                    /* pattern of its value */
    uint32_t sign_down;               /* shift that brings bit 31 to the sign's place */
    uint32_t sign;                    /* the sign's bit in a code */
    uint32_t over[2], inf[2], nan[2]; /* whole codes, of positive and negative inputs */
    bool plain; /* sign and magnitude; Inf and all above the maximum become it; NaNs
                   are positive */
    ng_round round;
    ng_sr sr;
    uint32_t word_up, word_mask; /* a random word's bits to the upper end */
    uint32_t sr_bits;
    const ng_format_spec *spec;
};

/* The code of NaN. */
static inline uint32_t cast_nan(const ng_format_spec *s, const ng_cast *cast, uint32_t sign)
{
    if (!s->has_nan)
        return cast->nan_to == NG_NAN_TO_ZERO ? 0 : s->max_code;
    const bool keep =
        cast->nan_sign == NG_NAN_SIGN_KEEP && s->kind != NG_KIND_FNUZ && s->kind != NG_KIND_UFN;
    return s->nan_code | (keep ? sign : 0);
}

static inline bool cast_stops(ng_round round, uint32_t negative)
{
    return round == NG_ROUND_TOWARD_ZERO || round == NG_ROUND_TO_ODD ||
           (round == NG_ROUND_TOWARD_NEGATIVE && !negative) ||
           (round == NG_ROUND_TOWARD_POSITIVE && negative);
}

static inline void cast_to_make(struct cast_to *t, const ng_format_spec *s, const ng_cast *cast)
{
    const uint32_t n = cast->sr_bits ? cast->sr_bits : 32;
    *t = (struct cast_to){ .kind = s->kind,
                           .store_bits = s->store_bits,
                           .man_bits = s->man_bits,
                           .low_bits = s->low_bits,
                           .spec = s,
                           .drop = 23 - s->man_bits,
                           .low_field = (uint32_t)(128 - s->bias),
                           .max = s->max_code >> s->low_bits,
                           .most = s->kind == NG_KIND_SCALE ? 0 : widen(s, s->max_code),
                           .sign_down = 32 - s->bits,
                           .sign = 1u << (s->bits - 1),
                           .round = cast->round,
                           .sr = cast->sr,
                           .word_up = cast->sr_take == NG_SR_TAKE_HIGH ? 0 : 32 - n,
                           .word_mask = ~0u << (32 - n),
                           .sr_bits = n };
    for (uint32_t neg = 0; neg < 2; neg++) {
        const uint32_t sign = neg ? 1u << (s->bits - 1) : 0;
        const uint32_t max = s->kind == NG_KIND_INT && neg ? 256u - s->max_code
                             : s->kind == NG_KIND_UFN      ? s->max_code
                                                           : s->max_code | sign;
        const uint32_t inf =
            s->has_inf ? (s->max_code + (1u << s->low_bits)) | sign : cast_nan(s, cast, sign);
        t->nan[neg] = cast_nan(s, cast, sign);
        t->inf[neg] = cast->overflow == NG_OVERFLOW_SATURATE ? max : inf;
        t->over[neg] =
            cast->overflow == NG_OVERFLOW_INF && !cast_stops(cast->round, neg) ? inf : max;
    }
    const uint32_t low = s->max_code | 1u << (s->bits - 1);
    const bool saturates = t->inf[0] == s->max_code && t->over[0] == s->max_code &&
                           t->inf[1] == low && t->over[1] == low;
    const bool magnitude =
        s->kind == NG_KIND_IEEE || s->kind == NG_KIND_FN || s->kind == NG_KIND_FINITE;
    t->plain = magnitude && saturates && t->nan[0] == t->nan[1];
}

/* The format's own grid, moved by k. The fields that result lie in 1 .. 254: the caller sees
 * to it. */
CAST_INLINE struct cast_grid cast_grid(const struct cast_to *t, ivec k)
{
    const ivec up = iv_sll_by(k, 23);
    const uint32_t least = t->low_field - t->man_bits;
    return (struct cast_grid){ .low = iv_add(iv_all(t->low_field << 23), up),
                               .magic = iv_add(iv_all((least + 23u) << 23), up),
                               .rebias = iv_add(iv_all((t->low_field - 1u) << 23), up),
                               .most = iv_add(iv_all(t->most), up),
                               .above = iv_add(iv_all((t->low_field + t->drop) << 23), up),
                               .per = iv_sub(iv_all((254u - least) << 23), up) };
}

/* A format with FP32's exponents has no place where its unit stops shrinking before FP32's
 * does: patterns are on one grid all the way down. */
CAST_INLINE int cast_wide(const struct cast_to *t)
{
    return t->low_field == 1;
}

/* Subnormal results are rare: with five bits of exponent, whose least normal value is 2^-14, a
 * branch that spares their arithmetic pays; with fewer it is often taken wrongly. */
CAST_INLINE int cast_rarely_low(const struct cast_to *t)
{
    return t->low_field <= 127 - 14;
}

/*
 * Ties to even. Normal results: add half a unit less one, and the last kept bit, then cut.
 * Below the least normal value all units are the same, and FP32's addition of a number with
 * that unit rounds to it: |x| + 2^(23 + least) is in [2^(23 + least), 2^(24 + least)), whose
 * unit is 2^least, and the addition is to nearest, ties to even.
 */
CAST_INLINE ivec cast_nearest(const struct cast_to *t, const struct cast_grid *g, ivec mag,
                              const int wide)
{
    const ivec drop = iv_all(t->drop), one = iv_all(1);
    const ivec half = iv_sub(iv_all((1u << t->drop >> 1) - 1u), g->rebias);
    const ivec odd = iv_and(iv_srl(mag, drop), one);
    const ivec high = iv_srl(iv_add(iv_add(mag, half), odd), drop);
    if (wide)
        return high;
    const ivec low = iv_sub(iv_bits(vec_add(iv_float(mag), iv_float(g->magic))), g->magic);
    return iv_pick(iv_gt(g->low, mag), low, high);
}

/*
 * Ties to even, saturating, without a choice: 2^drop times the binade that x is in (or the
 * least normal one) has x's unit on the code's grid as its own, so FP32's addition of it rounds
 * x as the code wants; the sum's distance from it counts those units, and binades below are
 * 2^man of them each. Clamping first is right here: what is above the maximum becomes it.
 */
CAST_INLINE ivec cast_nearest_plain(const struct cast_to *t, const struct cast_grid *g,
                                    ivec mag)
{
    const ivec x = iv_min(mag, g->most);
    const ivec binades = iv_less16(iv_and(x, iv_all(0x7F800000u)), g->low);
    const ivec magic = iv_add(binades, g->above);
    const ivec sum = iv_bits(vec_add(iv_float(x), iv_float(magic)));
    return iv_add(iv_sub(sum, magic), iv_srl(binades, iv_all(t->drop)));
}

/* Toward zero. Below the least normal value x / 2^least is an integer and a fraction; the
 * division is exact, or its result so small that nothing of it is kept. */
CAST_INLINE ivec cast_toward_zero(const struct cast_to *t, const struct cast_grid *g, ivec mag)
{
    const ivec high = iv_srl(iv_sub(mag, g->rebias), iv_all(t->drop));
    const ivec low = iv_cut(vec_mul(iv_float(mag), iv_float(g->per)));
    return iv_pick(iv_gt(g->low, mag), low, high);
}

/* An integer without its last `shift` bits; those; and how many they are. */
struct cast_cut {
    ivec kept, rest, shift;
};

/*
 * Any rounding: the significand as an integer, shifted by as many places as the grid has fewer
 * than FP32 at this exponent. What stays is the code (or differs from it by a constant), what
 * goes decides.
 */
CAST_INLINE struct cast_cut cast_cut(const struct cast_to *t, const struct cast_grid *g,
                                     ivec mag, imask low)
{
    const ivec one = iv_all(1), hidden = iv_all(0x00800000u);
    const ivec field = iv_max(iv_srl_by(mag, 23), one);
    const ivec fraction = iv_and(mag, iv_all(0x007FFFFFu));
    const ivec sig =
        iv_pick(iv_gt(hidden, mag), fraction, iv_or(fraction, hidden)); /* FP32 subnormals */
    const ivec x = iv_pick(low, sig, mag);
    const ivec further = iv_where(low, iv_sub(iv_srl_by(g->low, 23), field));
    const ivec shift = iv_add(iv_all(t->drop), further);
    const ivec kept = iv_srl(x, shift);
    return (struct cast_cut){ kept, iv_sub(x, iv_sll(kept, shift)), shift };
}

/* 1 where the sum x + y of unsigned words carries. */
CAST_INLINE ivec cast_carry(ivec x, ivec y)
{
    const ivec s = iv_add(x, y);
    return iv_pick(iv_eq(iv_max_u(s, x), s), iv_all(0), iv_all(1));
}

/* Stochastic: what is to be added, 0 or 1; section 2.1. The fraction v = rest / 2^shift. */
CAST_INLINE ivec cast_chance(const struct cast_to *t, const struct cast_cut *c, ivec word,
                             const ng_sr sr)
{
    const ivec zero = iv_all(0), one = iv_all(1), c32 = iv_all(32);
    /* r at the upper end of a word; v's upper 32 bits */
    const ivec r = iv_and(iv_sll(word, iv_all(t->word_up)), iv_all(t->word_mask));
    const ivec v =
        iv_or(iv_sll(c->rest, iv_sub(c32, c->shift)), iv_srl(c->rest, iv_sub(c->shift, c32)));
    if (sr == NG_SR_A) /* v's bits below n meet zeros: no carry comes from there */
        return cast_carry(v, r);
    if (sr == NG_SR_B) {
        if (t->sr_bits < 32)
            return cast_carry(v, iv_or(r, iv_all(0x80000000u >> t->sr_bits)));
        /* v + r + half of the last place >= 1: the 33rd bit of v is what a half makes carry */
        const ivec next = iv_and(iv_srl(c->rest, iv_sub(c->shift, iv_all(33))), one);
        const ivec sum = iv_add(v, r);
        const imask all = iv_eq(sum, iv_all(~0u));
        return iv_or(cast_carry(v, r), iv_where(all, next));
    }
    /* C: v to n bits, to nearest even, from its n bits, the next one, and whether more follow
     */
    const ivec places = iv_sub(c->shift, iv_all(t->sr_bits + 1u)); /* below the next bit */
    const ivec upper = iv_srl(c->rest, places);
    const imask deep = iv_gt(places, iv_all(~0u));
    const ivec more =
        iv_pick(im_andnot(iv_eq(c->rest, iv_sll(upper, places)), deep), one, zero);
    const ivec next = iv_and(upper, iv_where(deep, one));
    const uint32_t off = 32 - t->sr_bits;
    const ivec kept = iv_srl(v, iv_all(off)); /* floor(v * 2^n): n bits */
    const ivec up = iv_and(next, iv_or(more, kept));
    /* kept + up >= 2^n - r; r may be 0, so both sides at the upper end, and up adds a carry of
     * its own where kept is all ones */
    const ivec at = iv_sll(kept, iv_all(off)), add = iv_sll(up, iv_all(off));
    return iv_or(cast_carry(at, add), cast_carry(iv_add(at, add), r));
}

/*
 * Stochastic A, quickly: the random word's upper bits are added where the cut ones are, and all
 * is cut. `shift` bits of the word meet as many of the number; those below them meet nothing.
 * Where 32 or more are cut only a carry of the fraction's 32 bits with the word can come back.
 * Narrow formats: an FP32 subnormal (or zero) may be taken for a normal number, for it is
 * shifted out anyway.
 */
CAST_INLINE ivec cast_chance_a(const struct cast_to *t, const struct cast_grid *g, ivec mag,
                               ivec word, const int wide)
{
    const ivec r = iv_and(iv_sll(word, iv_all(t->word_up)), iv_all(t->word_mask));
    if (wide)
        return iv_srl(iv_add(mag, iv_srl(r, iv_all(32 - t->drop))), iv_all(t->drop));
    const imask low = iv_gt(g->low, mag);
    if (cast_rarely_low(t) && !im_any(low)) {
        const ivec part = iv_srl(r, iv_all(32 - t->drop));
        return iv_srl(iv_add(iv_sub(mag, g->rebias), part), iv_all(t->drop));
    }
    const ivec sig = iv_or(iv_and(mag, iv_all(0x007FFFFFu)), iv_all(0x00800000u));
    const ivec x = iv_pick(low, sig, iv_sub(mag, g->rebias));
    const ivec fewer = iv_sub(iv_srl_by(g->low, 23), iv_srl_by(mag, 23));
    const ivec shift = iv_add(iv_all(t->drop), iv_where(low, fewer));
    const ivec up = iv_sub(iv_all(32), shift), down = iv_sub(shift, iv_all(32));
    const ivec kept = iv_srl(iv_add(x, iv_srl(r, up)), shift);
    return iv_add(kept, cast_carry(iv_srl(x, down), r));
}

/* What is to be added to the kept bits, by the rounding; rto also comes to that. */
CAST_INLINE ivec cast_step(const struct cast_to *t, const struct cast_cut *c, ivec u, ivec word,
                           const ng_round round, const ng_sr sr)
{
    const ivec zero = iv_all(0), one = iv_all(1);
    const imask exact = iv_eq(c->rest, zero);
    const ivec next = iv_and(iv_srl(c->rest, iv_sub(c->shift, one)), one);
    switch (round) {
    case NG_ROUND_TIES_TO_AWAY: return next;
    case NG_ROUND_TOWARD_NEGATIVE: return iv_pick(exact, zero, iv_srl_by(u, 31));
    case NG_ROUND_TOWARD_POSITIVE: return iv_pick(exact, zero, iv_xor(iv_srl_by(u, 31), one));
    case NG_ROUND_TO_ODD: return iv_pick(exact, zero, iv_xor(iv_and(c->kept, one), one));
    case NG_ROUND_STOCHASTIC: return cast_chance(t, c, word, sr);
    case NG_ROUND_TIES_TO_EVEN:
    case NG_ROUND_TOWARD_ZERO: break;
    }
    return zero;
}

/* The magnitude's code on the grid continued past its maximum. */
CAST_INLINE ivec cast_magnitude(const struct cast_to *t, const struct cast_grid *g, ivec u,
                                ivec mag, ivec word, const ng_round round, const ng_sr sr,
                                const int wide)
{
    if (round == NG_ROUND_TIES_TO_EVEN)
        return cast_nearest(t, g, mag, wide);
    if (round == NG_ROUND_TOWARD_ZERO)
        return wide ? iv_srl(mag, iv_all(t->drop)) : cast_toward_zero(t, g, mag);
    if (round == NG_ROUND_STOCHASTIC && sr == NG_SR_A)
        return cast_chance_a(t, g, mag, word, wide);
    const imask low = iv_gt(g->low, mag);
    const struct cast_cut c = cast_cut(t, g, mag, low);
    const ivec code = iv_add(c.kept, cast_step(t, &c, u, word, round, sr));
    const ivec rebias = iv_srl(g->rebias, iv_all(t->drop));
    return iv_pick(low, code, iv_sub(code, rebias));
}

/* What a negative, a positive input gets. */
CAST_INLINE ivec cast_by_sign(ivec u, const uint32_t of[2])
{
    return iv_pick(iv_gt(iv_all(0), u), iv_all(of[1]), iv_all(of[0]));
}

/* From the magnitude's code to the whole: sign, overflow, specials. */
CAST_INLINE ivec cast_finish(const struct cast_to *t, ivec u, ivec mag, ivec code)
{
    const ivec zero = iv_all(0);
    const ivec sign = iv_srl(iv_and(u, iv_all(0x80000000u)), iv_all(t->sign_down));
    ivec c = iv_sll(code, iv_all(t->low_bits));
    if (t->kind == NG_KIND_INT) {
        const ivec flip = iv_sra_by(u, 31);
        c = iv_and(iv_sub(iv_xor(c, flip), flip), iv_all(0xFF));
    } else if (t->kind == NG_KIND_FNUZ) { /* no -0 */
        c = iv_pick(iv_eq(c, zero), zero, iv_or(c, sign));
    } else if (t->kind != NG_KIND_UFN) {
        c = iv_or(c, sign);
    }
    c = iv_pick(iv_gt(code, iv_all(t->max)), cast_by_sign(u, t->over), c);
    c = iv_pick(iv_eq(mag, iv_all(CAST_INF)), cast_by_sign(u, t->inf), c);
    c = iv_pick(iv_gt(mag, iv_all(CAST_INF)), cast_by_sign(u, t->nan), c);
    if (t->kind == NG_KIND_UFN) /* below zero there is nothing but NaN */
        c = iv_pick(im_andnot(iv_eq(mag, zero), iv_gt(zero, u)), iv_all(t->nan[0]), c);
    return c;
}

/* One vector of patterns to codes, as words. `numbers`: no NaN is among them. */
CAST_INLINE ivec cast_encode_words(const struct cast_to *t, const struct cast_grid *g, ivec u,
                                   ivec word, const ng_round round, const ng_sr sr,
                                   const int plain, const int wide, int numbers)
{
    const ivec mag = iv_and(u, iv_all(0x7FFFFFFFu));
    if (!plain)
        return cast_finish(t, u, mag, cast_magnitude(t, g, u, mag, word, round, sr, wide));
    ivec c;
    if (round == NG_ROUND_TIES_TO_EVEN && !wide)
        c = cast_nearest_plain(t, g, mag);
    else
        c = iv_min(cast_magnitude(t, g, u, mag, word, round, sr, wide), iv_all(t->max));
    c = iv_or_some(c, iv_srl(u, iv_all(t->sign_down)), iv_all(t->sign));
    return numbers ? c : iv_pick(iv_gt(mag, iv_all(CAST_INF)), iv_all(t->nan[0]), c);
}

/* 32 words to codes in memory. */
CAST_INLINE void cast_store(const uint32_t store_bits, uint8_t *p, const ivec *x, int stream)
{
    switch (store_bits) {
    case 4: iv_store4(p, x, stream); return;
    case 8: iv_store8(p, x, stream); return;
    case 16: iv_store16(p, x, stream); return;
    default: break;
    }
    for (int i = 0; i < IV_GROUP_VECTORS; i++)
        if (stream)
            iv_stream(p + 4 * VL * i, x[i]);
        else
            iv_store(p + 4 * VL * i, x[i]);
}

/* The first n of 32 codes: the last byte's other half stays as it was. */
static inline void cast_put(uint32_t store_bits, uint8_t *p, const uint8_t *codes, int64_t n)
{
    const size_t bytes = (size_t)cast_bytes(store_bits, n);
    memcpy(p, codes, bytes);
    if (store_bits == 4 && n % 2)
        p[bytes] = (uint8_t)((p[bytes] & 0xF0u) | (codes[bytes] & 0x0Fu));
}

/* The body stands here once: the last, short group takes the same way through buffers. */
CAST_INLINE void cast_encode_as(const struct cast_to *to, const uint32_t *u,
                                const uint32_t *word, int64_t n, uint8_t *dst, int stream,
                                const ng_round round, const ng_sr sr, const int plain,
                                const int wide, const uint32_t bits)
{
    const struct cast_to t = *to; /* no store can change it */
    const struct cast_grid g = cast_grid(&t, iv_all(0));
    const int random = round == NG_ROUND_STOCHASTIC;
    uint32_t in[2][IV_GROUP];
    uint8_t codes[4 * IV_GROUP];
    for (int64_t i = 0; i < n; i += IV_GROUP, dst += cast_bytes(bits, IV_GROUP)) {
        const uint32_t *p = u + i, *w = random ? word + i : u;
        const int64_t left = n - i;
        if (__builtin_expect(left < IV_GROUP, 0)) {
            memset(in, 0, sizeof in);
            memcpy(in[0], p, 4 * (size_t)left);
            memcpy(in[1], w, 4 * (size_t)left);
            p = in[0];
            w = in[1];
        }
        ivec x[IV_GROUP_VECTORS];
        for (int v = 0; v < IV_GROUP_VECTORS; v++)
            x[v] = cast_encode_words(&t, &g, iv_load(p + VL * v),
                                     random ? iv_load(w + VL * v) : iv_all(0), round, sr, plain,
                                     wide, 0);
        const int whole = left >= IV_GROUP;
        cast_store(bits, whole ? dst : codes, x, stream & whole);
        if (!whole)
            cast_put(bits, dst, codes, left);
    }
}

/* FP32 to FP32: nothing is rounded. */
static inline void cast_encode_f32(const struct cast_to *t, const uint32_t *u, int64_t n,
                                   uint8_t *dst)
{
    for (int64_t i = 0; i < n; i += VL) {
        uint32_t words[VL] = { 0 };
        const size_t bytes = 4 * (size_t)(n - i < VL ? n - i : VL);
        memcpy(words, u + i, bytes);
        const ivec x = iv_load(words), mag = iv_and(x, iv_all(0x7FFFFFFFu));
        ivec c = iv_pick(iv_eq(mag, iv_all(CAST_INF)), cast_by_sign(x, t->inf), x);
        c = iv_pick(iv_gt(mag, iv_all(CAST_INF)), cast_by_sign(x, t->nan), c);
        iv_store(words, c);
        memcpy(dst + 4 * i, words, bytes);
    }
}

/*
 * A loop of its own for what most calls are, so that nothing is decided inside; one more for
 * all others, which decides in each vector.
 */
typedef void cast_encoder(const struct cast_to *t, const uint32_t *u, const uint32_t *word,
                          int64_t n, uint8_t *dst, int stream);

#define CAST_ENCODER(name, round, sr, plain, wide, bits)                                       \
    static __attribute__((noinline)) void name(const struct cast_to *t, const uint32_t *u,     \
                                               const uint32_t *word, int64_t n, uint8_t *dst,  \
                                               int stream)                                     \
    {                                                                                          \
        cast_encode_as(t, u, word, n, dst, stream, round, sr, plain, wide, bits);              \
    }

CAST_ENCODER(cast_any, t->round, t->sr, 0, cast_wide(t), t->store_bits)
CAST_ENCODER(cast_rne_4, NG_ROUND_TIES_TO_EVEN, NG_SR_A, 1, 0, 4)
CAST_ENCODER(cast_rne_8, NG_ROUND_TIES_TO_EVEN, NG_SR_A, 1, 0, 8)
CAST_ENCODER(cast_rne_16, NG_ROUND_TIES_TO_EVEN, NG_SR_A, 1, 0, 16)
CAST_ENCODER(cast_rne_wide, NG_ROUND_TIES_TO_EVEN, NG_SR_A, 1, 1, 16)
CAST_ENCODER(cast_rtz_4, NG_ROUND_TOWARD_ZERO, NG_SR_A, 1, 0, 4)
CAST_ENCODER(cast_rtz_8, NG_ROUND_TOWARD_ZERO, NG_SR_A, 1, 0, 8)
CAST_ENCODER(cast_rtz_16, NG_ROUND_TOWARD_ZERO, NG_SR_A, 1, 0, 16)
CAST_ENCODER(cast_rtz_wide, NG_ROUND_TOWARD_ZERO, NG_SR_A, 1, 1, 16)
CAST_ENCODER(cast_sr_4, NG_ROUND_STOCHASTIC, NG_SR_A, 1, 0, 4)
CAST_ENCODER(cast_sr_8, NG_ROUND_STOCHASTIC, NG_SR_A, 1, 0, 8)
CAST_ENCODER(cast_sr_wide, NG_ROUND_STOCHASTIC, NG_SR_A, 1, 1, 16)
CAST_ENCODER(cast_rne_any, NG_ROUND_TIES_TO_EVEN, NG_SR_A, 0, 0, t->store_bits)
CAST_ENCODER(cast_rne_any_wide, NG_ROUND_TIES_TO_EVEN, NG_SR_A, 0, 1, 16)

/* To bf16, what is a bf16 number: nothing is rounded, NaNs are as they should be. */
static __attribute__((noinline)) void cast_upper(const struct cast_to *t, const uint32_t *u,
                                                 const uint32_t *word, int64_t n, uint8_t *dst,
                                                 int stream)
{
    (void)t;
    (void)word;
    ivec x[IV_GROUP_VECTORS];
    int64_t i = 0;
    for (; i + IV_GROUP <= n; i += IV_GROUP, dst += 2 * IV_GROUP) {
        for (int v = 0; v < IV_GROUP_VECTORS; v++)
            x[v] = iv_srl_by(iv_load(u + i + VL * v), 16);
        iv_store16(dst, x, stream);
    }
    for (; i < n; i++, dst += 2) {
        const uint16_t code = (uint16_t)(u[i] >> 16);
        memcpy(dst, &code, sizeof code);
    }
}

static cast_encoder *cast_encoder_for(const struct cast_to *t)
{
    /* by rounding, then 4, 8, 16 bits, bf16 */
    static cast_encoder *const quick[3][4] = {
        { cast_rne_4, cast_rne_8, cast_rne_16, cast_rne_wide },
        { cast_rtz_4, cast_rtz_8, cast_rtz_16, cast_rtz_wide },
        { cast_sr_4, cast_sr_8, cast_any, cast_sr_wide },
    };
    const bool wide = cast_wide(t);
    if (t->store_bits == 32)
        return cast_any;
    const int at = wide ? 3 : t->store_bits == 16 ? 2 : t->store_bits == 8;
    if (t->plain && t->round == NG_ROUND_TIES_TO_EVEN)
        return quick[0][at];
    if (t->plain && t->round == NG_ROUND_TOWARD_ZERO)
        return quick[1][at];
    if (t->plain && t->round == NG_ROUND_STOCHASTIC && t->sr == NG_SR_A)
        return quick[2][at];
    if (t->round == NG_ROUND_TIES_TO_EVEN)
        return wide ? cast_rne_any_wide : cast_rne_any;
    return cast_any;
}

/* ---- A run of elements that lie one after another. ---- */

enum {
    CAST_PIECE = 512 /* patterns between decoding and encoding: 2 KiB */
};

/* Elements before dst is at a multiple of 64 bytes; all n where it never gets there, or where
 * src would then begin inside a byte. */
static inline int64_t cast_head(const struct cast_job *j, const void *dst, int64_t n)
{
    const uintptr_t bytes = (0 - (uintptr_t)dst) & 63;
    if (bytes * 8 % j->to->store_bits)
        return n;
    const int64_t head = (int64_t)(bytes * 8 / j->to->store_bits);
    return head < n && head * j->from->store_bits % 8 == 0 ? head : n;
}

/* How a run goes from patterns to codes. */
struct cast_path {
    cast_encoder *encode; /* NULL: to FP32 */
    bool bare;            /* codes become patterns, or their upper halves, and that is all */
};

/* Every value of a format of at most 8 bits is a bf16 number. */
static struct cast_path cast_path_of(const struct cast_from *f, const struct cast_to *t)
{
    const bool small = f->store_bits <= 8 && t->spec->format == NG_BF16;
    const uint32_t inf = t->spec->format == NG_BF16 ? CAST_INF >> 16 : CAST_INF;
    const bool inf_stays = t->inf[0] == inf || !f->spec->has_inf;
    if (t->spec->format == NG_F32)
        return (struct cast_path){ NULL, inf_stays };
    if (small && inf_stays)
        return (struct cast_path){ cast_upper, true };
    return (struct cast_path){ cast_encoder_for(t), false };
}

#ifdef IV_HALVES
#include "halves_encode512.h"
#else
/* Of n elements, how many from the first on are done: here none. */
static inline int64_t cast_run_quick(const struct cast_from *f, const struct cast_to *t,
                                     struct cast_path path, const uint8_t *src, int64_t n,
                                     uint8_t *dst, int stream)
{
    (void)f, (void)t, (void)path, (void)src, (void)n, (void)dst, (void)stream;
    return 0;
}
#endif

static void cast_run(const struct cast_from *f, const struct cast_to *t, const uint8_t *src,
                     const uint32_t *word, int64_t n, uint8_t *dst, int stream)
{
    const struct cast_path path = cast_path_of(f, t);
    const int64_t done = cast_run_quick(f, t, path, src, n, dst, stream);
    src += cast_bytes(f->store_bits, done);
    dst += cast_bytes(t->store_bits, done);
    word = word ? word + done : NULL;
    n -= done;
    if (f->store_bits == 32 && path.encode) {
        path.encode(t, (const uint32_t *)(const void *)src, word, n, dst, stream);
        return;
    }
    if (!path.encode && path.bare) {
        cast_decode(f, src, n, (uint32_t *)(void *)dst, stream);
        return;
    }
    uint32_t buffer[CAST_PIECE];
    for (int64_t i = 0; i < n; i += CAST_PIECE) {
        const int64_t m = n - i < CAST_PIECE ? n - i : CAST_PIECE;
        cast_decode(f, src + cast_bytes(f->store_bits, i), m, buffer, 0);
        uint8_t *out = dst + cast_bytes(t->store_bits, i);
        if (path.encode)
            path.encode(t, buffer, word ? word + i : NULL, m, out, stream);
        else
            cast_encode_f32(t, buffer, m, out);
    }
}

static const char *cast_refuses(const struct cast_job *j)
{
    if (j->to->kind == NG_KIND_SCALE)
        return "codes of a scale format are written";
    return NULL;
}

static void cast_convert(const struct cast_job *j, const void *src, const uint32_t *word,
                         int64_t n, void *dst)
{
    struct cast_from f;
    struct cast_to t;
    struct cast_halves halves;
    cast_from_make(&f, j->from, j->cast->nan_sign == NG_NAN_SIGN_KEEP);
    if (f.shape == CAST_UPPER && j->to->format != NG_F32)
        f.shape = CAST_RAW;
    cast_prepare(&f, n, &halves);
    cast_to_make(&t, j->to, j->cast);
    const int64_t head = j->stream ? cast_head(j, dst, n) : n;
    cast_run(&f, &t, src, word, head, dst, 0);
    if (head == n)
        return;
    const uint8_t *s = (const uint8_t *)src + cast_bytes(j->from->store_bits, head);
    uint8_t *d = (uint8_t *)dst + cast_bytes(j->to->store_bits, head);
    cast_run(&f, &t, s, word ? word + head : NULL, n - head, d, 1);
    _mm_sfence(); /* another thread may read dst as soon as the call is over */
}

#endif
