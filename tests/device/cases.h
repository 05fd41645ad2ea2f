/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device is asked, drawn from integers alone, so that the program that runs on the
 * device (hopper.cu) and the one that asks the oracle (replay.c) have the same operands. C and
 * CUDA C++.
 *
 * A case is one instruction, issued `steps` times into one accumulator, on tiles of 64 x 8
 * results. Tiles differ in their operands, `enum kind` in what these are like.
 */
#ifndef NG_TESTS_DEVICE_CASES_H
#define NG_TESTS_DEVICE_CASES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define BOTH __host__ __device__ static inline
#else
#define BOTH static inline
#endif

enum {
    TILE_ROWS = 64,
    TILE_COLS = 8,
    TILE_SIZE = TILE_ROWS * TILE_COLS,
    MAX_STEPS = 3,
    MAX_ROW = 32 * MAX_STEPS, /* bytes of a row of A; of a column of B twice as many */
    TILES = 32,               /* of a case, all in all */
    FIRST_TILES = 4           /* that have a digest of their own */
};

/* ---- Formats, as their fields lie. ---- */

struct device_format {
    const char *name;
    int bits, exp, man,
        low;   /* `low`: bits below the significand that the format does not have */
    bool ieee; /* the largest exponent is Inf and NaN; else the last code is NaN */
};

static const struct device_format dev_f16 = { "f16", 16, 5, 10, 0, true };
static const struct device_format dev_bf16 = { "bf16", 16, 8, 7, 0, true };
static const struct device_format dev_tf32 = { "tf32", 32, 8, 10, 13, true };
static const struct device_format dev_f32 = { "f32", 32, 8, 23, 0, true };
static const struct device_format dev_e4m3 = { "e4m3fn", 8, 4, 3, 0, false };
static const struct device_format dev_e5m2 = { "e5m2", 8, 5, 2, 0, true };

/* ---- Instructions and cases. ---- */

struct insn {
    const char *name, *profile;
    const struct device_format *a, *b, *acc;
    int row; /* bytes of a row of A */
    int kept, group;
};

#define DEV_INSN(unit, prof, shape, fa, fb, fc, row_, kept_, group_)                           \
    { unit "." shape "." #fc "." #fa "." #fb,                                                  \
      prof,                                                                                    \
      &dev_##fa,                                                                               \
      &dev_##fb,                                                                               \
      &dev_##fc,                                                                               \
      row_,                                                                                    \
      kept_,                                                                                   \
      group_ },

static const struct insn insns[] = {
#define MMA(shape, a, b, c, row, kept, group)                                                  \
    DEV_INSN("mma", "nv-hopper", shape, a, b, c, row, kept, group)
#define WGMMA(shape, a, b, c, row, kept, group)                                                \
    DEV_INSN("wgmma", "nv-hopper-wgmma", shape, a, b, c, row, kept, group)
#include "insns.def"
};

enum {
    N_INSNS = sizeof insns / sizeof insns[0]
};

enum kind {
    ANY,    /* all codes alike */
    WINDOW, /* exponents near each other, and C's near the products' */
    CORNER, /* zeros, ends of the range, Inf, NaN among the former */
    LOW,    /* where results, and least exponents, are reached */
    HIGH,   /* where sums and products leave the range */
    CANCEL, /* products that cancel, or nearly */
    FEW,    /* a few small powers of two, so that single bits decide */
    N_KINDS
};

static const char *const kind_names[N_KINDS] = { "any",  "window", "corner", "low",
                                                 "high", "cancel", "few" };

/* One issue without C, one with, and several. */
struct way {
    int steps;
    bool c;
};
static const struct way ways[] = { { 1, false }, { 1, true }, { MAX_STEPS, true } };

enum {
    N_WAYS = sizeof ways / sizeof ways[0],
    N_CASES = N_KINDS * N_WAYS /* of an instruction */
};

struct tile {
    const struct insn *insn;
    int k;         /* A's, as stored, of all steps */
    int bk;        /* B's */
    unsigned tags; /* sparse: four bits, of every group */
    uint8_t a[TILE_ROWS * MAX_ROW], b[TILE_COLS * 2 * MAX_ROW];
    uint32_t c[TILE_SIZE]; /* codes of the accumulator's format */
};

/* ---- Conversions. ---- */

#define dev_F32    dev_f32
#define dev_F16    dev_f16
#define dev_BF16   dev_bf16
#define dev_TF32   dev_tf32
#define dev_E4M3FN dev_e4m3
#define dev_E5M2   dev_e5m2

#define NAN_CUT 0u

struct device_cvt {
    const char *name;
    const struct device_format *from, *to;
};

static const struct device_cvt cvts[] = {
#define CVT(ptx, from, to, round, overflow, nan) { ptx, &dev_##from, &dev_##to },
#include "cvts.def"
};

enum {
    N_CVTS = sizeof cvts / sizeof cvts[0]
};

/* The inputs of the first digest: all of a small domain, every 509th of a large one. */
enum {
    CVT_STEP = 509
};
BOTH uint64_t cvt_step(uint64_t inputs)
{
    return inputs <= 65536 ? 1 : CVT_STEP;
}

/* ---- Random words: SplitMix64 (Steele, Lea, Flood, 2014). ---- */

BOTH uint64_t mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

struct draw {
    uint64_t state;
};

static inline uint32_t draw_word(struct draw *d)
{
    d->state += 0x9E3779B97F4A7C15u;
    return (uint32_t)(mix64(d->state) >> 32);
}

/* 0 .. n-1 */
static inline int draw_below(struct draw *d, int n)
{
    return (int)(((uint64_t)draw_word(d) * (uint32_t)n) >> 32);
}

static inline bool draw_one_in(struct draw *d, int n)
{
    return draw_below(d, n) == 0;
}

/* ---- Codes. ---- */

static inline int bias_of(const struct device_format *f)
{
    return (1 << (f->exp - 1)) - 1;
}

/* The largest exponent field that has finite values. */
static inline int top_field(const struct device_format *f)
{
    return (1 << f->exp) - (f->ieee ? 2 : 1);
}

static inline uint32_t code_of(const struct device_format *f, bool neg, int field, uint32_t man)
{
    field = field < 0 ? 0 : field > top_field(f) ? top_field(f) : field;
    const uint32_t top = (1u << f->man) - 1;
    man &= top;
    if (!f->ieee && field == top_field(f) && man == top)
        man--;
    return ((uint32_t)neg << (f->bits - 1)) | (uint32_t)field << (f->man + f->low) |
           man << f->low;
}

/* +-2^exponent; a zero where that is below the least subnormal. */
static inline uint32_t power_of(const struct device_format *f, bool neg, int exponent)
{
    const int field = exponent + bias_of(f), bit = f->man + field - 1;
    return field > 0 ? code_of(f, neg, field, 0) : code_of(f, neg, 0, bit < 0 ? 0 : 1u << bit);
}

static inline uint32_t draw_man(struct draw *d, const struct device_format *f)
{
    const uint32_t man = draw_word(d) & ((1u << f->man) - 1);
    switch (draw_below(d, 8)) {
    case 0: return 0;
    case 1: return man & (3u << (f->man - 2));
    default: return man;
    }
}

/* An exponent field in [field, field + spread]. */
static inline uint32_t draw_near(struct draw *d, const struct device_format *f, int field,
                                 int spread)
{
    const bool neg = draw_word(d) & 1;
    const int e = field + draw_below(d, spread + 1);
    return code_of(f, neg, e, draw_man(d, f));
}

/* +-2^e, e in [exponent, exponent + spread]. */
static inline uint32_t draw_power(struct draw *d, const struct device_format *f, int exponent,
                                  int spread)
{
    const int e = exponent + draw_below(d, spread + 1);
    const bool neg = draw_word(d) & 1;
    return power_of(f, neg, e);
}

static inline uint32_t draw_any(struct draw *d, const struct device_format *f)
{
    return draw_word(d) & (f->bits == 32 ? 0xFFFFFFFFu : (1u << f->bits) - 1);
}

static inline uint32_t draw_special(struct draw *d, const struct device_format *f)
{
    const uint32_t sign = (draw_word(d) & 1) << (f->bits - 1);
    const uint32_t exp = ((1u << f->exp) - 1) << (f->man + f->low);
    if (!f->ieee)
        return sign | exp | ((1u << f->man) - 1);
    if (draw_word(d) & 1)
        return sign | exp;
    /* a NaN; of tf32 also one that only its low bits tell from an Inf */
    return sign | exp | (1u << draw_below(d, f->man + f->low));
}

static inline uint32_t draw_corner(struct draw *d, const struct device_format *f, int specials)
{
    const bool neg = draw_word(d) & 1;
    if (specials && draw_one_in(d, specials))
        return draw_special(d, f);
    switch (draw_below(d, 8)) {
    case 0:
    case 1: return code_of(f, neg, 0, 0);
    case 2: return code_of(f, neg, 0, 1);
    case 3: return code_of(f, neg, 0, ~0u);
    case 4: return code_of(f, neg, 1, 0);
    case 5: return code_of(f, neg, bias_of(f), 0);
    case 6: return code_of(f, neg, top_field(f), ~0u);
    default: return code_of(f, neg, top_field(f), 0) | (draw_word(d) & ((1u << f->low) - 1));
    }
}

/* ---- A tile's operands. ---- */

/* What a tile's operands are like: least exponent fields, how far they reach, and C's. */
struct likeness {
    int a, b, c;
    int spread_a, spread_b, spread_c;
    int zeros;    /* one element of A in so many is zero (few: is not); 0: none on purpose */
    int specials; /* corner: one in so many */
};

static inline int field_of(const struct device_format *f, int exponent)
{
    return exponent + bias_of(f);
}

static inline struct likeness draw_likeness(struct draw *d, const struct insn *in,
                                            enum kind kind)
{
    static const int spreads[8] = { 0, 1, 2, 3, 5, 8, 12, 20 };
    const struct device_format *a = in->a, *b = in->b;
    struct likeness l = { 0, 0, 0, 0, 0, 0, 0, 0 };
    l.spread_a = spreads[draw_below(d, 8)];
    l.spread_b = spreads[draw_below(d, 8)];
    const bool wide_a = a->exp == 8, wide_b = b->exp == 8;
    l.a = wide_a ? field_of(a, draw_below(d, 41) - 20) : draw_below(d, top_field(a));
    l.b = wide_b ? field_of(b, draw_below(d, 41) - 20) : draw_below(d, top_field(b));
    l.specials = draw_one_in(d, 2) ? 48 : 0;

    if (kind == LOW && wide_a) {
        if (draw_word(d) & 1) { /* products of small normals, about 2^-150 to 2^-105 */
            l.a = field_of(a, -75 + draw_below(d, 20));
            l.b = field_of(b, -75 + draw_below(d, 20));
        } else { /* subnormals of A and ordinary numbers */
            l.a = 0;
            l.spread_a %= 4;
            l.b = field_of(b, draw_below(d, 25) - 16);
        }
        l.spread_a %= 9;
        l.spread_b %= 9;
    } else if (kind == LOW) {
        l.a = draw_below(d, 3);
        l.b = draw_below(d, 3);
    } else if (kind == HIGH && wide_a) {
        l.a = field_of(a, 50 + draw_below(d, 20));
        l.b = field_of(b, 50 + draw_below(d, 20));
        l.spread_a %= 13;
        l.spread_b %= 13;
    } else if (kind == HIGH) {
        l.a = top_field(a) - draw_below(d, 4) - l.spread_a;
        l.b = top_field(b) - draw_below(d, 4) - l.spread_b;
    } else if (kind == FEW) { /* exponents, not fields: down to the least of all */
        l.a = wide_a ? -75 : 1 - bias_of(a) - a->man;
        l.b = wide_b ? -84 : 1 - bias_of(b) - b->man;
        l.spread_a = wide_a ? 15 : a->man + 2;
        l.spread_b = wide_b ? 18 : b->man + 2;
        l.zeros = 3 + draw_below(d, 6);     /* not zero: one in so many */
        if (!wide_a && draw_one_in(d, 4)) { /* zeros that meet large numbers, beside a tiny C */
            l.b = bias_of(b) - l.spread_b;
            l.zeros = 40;
        }
    } else if (kind == CORNER && draw_one_in(d, 3)) {
        /* zeros of A against the largest of B, beside products that are small */
        l.zeros = 2;
        l.a = field_of(a, -bias_of(a) / 2);
        l.b = top_field(b) / 2;
        l.spread_b = top_field(b) - l.b;
    }
    if (kind == FEW) {
        l.c = l.a + l.b;
        l.spread_c = 40;
        return l;
    }
    const int product = l.a - bias_of(a) + l.b - bias_of(b);
    l.c = field_of(in->acc, product + draw_below(d, 37) - 28 + l.spread_a + l.spread_b);
    l.spread_c = spreads[draw_below(d, 6)];
    return l;
}

static inline uint32_t draw_element(struct draw *d, const struct device_format *f,
                                    enum kind kind, int field, int spread, int specials)
{
    if (kind == ANY)
        return draw_any(d, f);
    if (kind == CORNER && draw_one_in(d, 2))
        return draw_corner(d, f, specials);
    if (kind == FEW && draw_one_in(d, 2))
        return draw_power(d, f, field, spread);
    if (kind == FEW) { /* the ends, which one bit of a sum tells apart */
        const int near = draw_below(d, 2), end = draw_below(d, 2) * (spread - 1);
        const bool neg = draw_word(d) & 1;
        return power_of(f, neg, field + near + end);
    }
    return draw_near(d, f, field, spread);
}

static inline uint32_t draw_c(struct draw *d, const struct device_format *f, enum kind kind,
                              const struct likeness *l)
{
    if (kind == ANY && draw_one_in(d, 2))
        return draw_any(d, f);
    if (draw_one_in(d, 8))
        return code_of(f, draw_word(d) & 1, 0, 0);
    if (kind == CORNER && draw_one_in(d, 2))
        return draw_corner(d, f, l->specials);
    if (kind == LOW && draw_one_in(d, 4)) {
        const uint32_t man = draw_man(d, f);
        return code_of(f, draw_word(d) & 1, 0, man);
    }
    if (kind == HIGH && draw_one_in(d, 4))
        return draw_near(d, f, top_field(f) - 1, 1);
    if (kind == FEW && draw_one_in(d, 2))
        return 0;
    if (kind == FEW && draw_one_in(d, 2)) /* so low that a product of zero may count more */
        return draw_power(d, f, 1 - bias_of(f) - f->man, 2 * f->man - 1);
    if (kind == FEW)
        return draw_power(d, f, l->c, l->spread_c);
    return draw_near(d, f, l->c, l->spread_c);
}

static inline void put_code(uint8_t *data, const struct device_format *f, int64_t i,
                            uint32_t code)
{
    const int bytes = f->bits / 8;
    for (int n = 0; n < bytes; n++)
        data[i * bytes + n] = (uint8_t)(code >> 8 * n);
}

static inline uint32_t get_code(const uint8_t *data, const struct device_format *f, int64_t i)
{
    const int bytes = f->bits / 8;
    uint32_t code = 0;
    for (int n = 0; n < bytes; n++)
        code |= (uint32_t)data[i * bytes + n] << 8 * n;
    return code;
}

/* The k of B that slot `s` of A meets. */
static inline int dense_k(const struct tile *t, int s)
{
    const struct insn *in = t->insn;
    if (!in->kept)
        return s;
    const unsigned tag = in->kept == 2 ? t->tags >> 2 * (s % 2) & 3 : t->tags == 0xE;
    return s / in->kept * in->group + (int)tag;
}

/* Every second slot's product becomes minus another's, some but for a last bit of A. */
static inline void cancel_pairs(struct draw *d, struct tile *t)
{
    const struct insn *in = t->insn;
    const int deep = in->row * 8 / in->a->bits; /* k of one issue */
    const int distance = 1 << draw_below(d, deep == 4 ? 2 : 3);
    for (int s = 0; s < t->k; s++) {
        if (s % deep & distance)
            continue;
        const int p = s + distance;
        for (int col = 0; col < TILE_COLS; col++) {
            const uint32_t code = get_code(t->b, in->b, (int64_t)col * t->bk + dense_k(t, s));
            put_code(t->b, in->b, (int64_t)col * t->bk + dense_k(t, p), code);
        }
        for (int row = 0; row < TILE_ROWS; row++) {
            uint32_t code = get_code(t->a, in->a, (int64_t)row * t->k + s);
            code ^= 1u << (in->a->bits - 1);
            if (draw_one_in(d, 4))
                code ^= 1u << in->a->low;
            put_code(t->a, in->a, (int64_t)row * t->k + p, code);
        }
    }
}

/* Tile `number` of a case: operands of all its steps. */
static inline void draw_tile(struct tile *t, int insn, enum kind kind, int way, int number)
{
    static const uint8_t pairs[6] = { 0x4, 0x8, 0xC, 0x9, 0xD, 0xE };
    const struct insn *in = &insns[insn];
    /* the name, not the number: lists may grow */
    uint64_t seed = 0;
    for (const char *s = in->name; *s; s++)
        seed = mix64(seed + (uint8_t)*s);
    struct draw d = { mix64(seed ^ (uint64_t)(in->kept * 4096 + (int)kind * 256 + way * 64) ^
                            (uint64_t)number << 32) };

    t->insn = in;
    t->k = in->row * 8 / in->a->bits * ways[way].steps;
    t->bk = in->kept ? t->k / in->kept * in->group : t->k;
    t->tags = in->kept == 2 ? pairs[draw_below(&d, 6)] : draw_below(&d, 2) ? 0xE : 0x4;
    const struct likeness l = draw_likeness(&d, in, kind);
    for (int i = 0; i < TILE_ROWS * t->k; i++) {
        const bool zero = l.zeros && draw_one_in(&d, l.zeros) != (kind == FEW);
        const uint32_t code = draw_element(&d, in->a, kind, l.a, l.spread_a, l.specials);
        put_code(t->a, in->a, i, zero ? 0 : code);
    }
    for (int i = 0; i < TILE_COLS * t->bk; i++)
        put_code(t->b, in->b, i, draw_element(&d, in->b, kind, l.b, l.spread_b, l.specials));
    if (kind == CANCEL)
        cancel_pairs(&d, t);
    for (int i = 0; i < TILE_SIZE; i++)
        t->c[i] = ways[way].c ? draw_c(&d, in->acc, kind, &l) : 0;
}

/* ---- Digests: a sum, so that no order matters. ---- */

BOTH uint64_t digest_term(uint64_t index, uint32_t code)
{
    return mix64(mix64(index + 1) ^ code);
}

#endif
