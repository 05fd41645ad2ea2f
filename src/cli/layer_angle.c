/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cosines and sines of the rotary embedding in integers, so that no C library decides a bit:
 * docs/numerics.md, section 11.11, item 134. tests/model/angles.py judges them.
 */
#include "layer.h"

__extension__ typedef unsigned __int128 wide;
__extension__ typedef __int128 wide_signed;

/*
 * RN(f w + f (1 - w) / 32) of each pair: YaRN's frequencies for a base of 150000, heads of 64,
 * a factor of 32, an original context of 4096, betas of 32 and 1, not truncated (config.json of
 * openai/gpt-oss-20b, rope_theta and rope_scaling; gpt_oss/torch/model.py has the formulas).
 * tests/model/angles.py computes them to 60 digits.
 */
static const uint32_t frequency[LAYER_PAIRS] = {
    0x3F800000, 0x3F306535, 0x3EF316A2, 0x3EA77FAA, 0x3E66D3FA, 0x3E1F0CFD, 0x3DDB2F9F,
    0x3D970764, 0x3D502195, 0x3D01DDD5, 0x3C9E6470, 0x3C3DEC94, 0x3BDEA840, 0x3B7CFE15,
    0x3B093802, 0x3A89F777, 0x39EF543C, 0x390799B9, 0x3820ADC6, 0x37DD6DFC, 0x37989328,
    0x375242FA, 0x3710E12C, 0x36C7A82B, 0x3689928C, 0x363D9647, 0x3602A245, 0x35B40669,
    0x35781728, 0x352AF200, 0x34EB93EA, 0x34A252D3
};

/* RN(1 + ln(32) / 10): what YaRN multiplies cosines and sines by (as above). */
#define FACTOR 0x3FAC5C86u

enum {
    POINT = 108, /* angles are multiples of 2^-108, below 2^17 */
    TERMS = 11,  /* y^11 / 22! is below 2^-75 for y up to (pi/4)^2 */
    DOUBT = 16   /* units of 2^-64 by which a result may be wrong */
};

/* pi / 2 in units of 2^-POINT: the hexadecimal digits of pi / 2, cut. */
static const wide half_pi = (wide)0x1921FB54442D1u << 60 | (wide)0x8469898CC51701Bu;

static const ng_cast nearest = { .round = NG_ROUND_TIES_TO_EVEN };

uint32_t layer_frequency(int pair)
{
    return frequency[pair];
}

static uint32_t to_f32(const ng_value *v)
{
    uint32_t pattern = 0;
    (void)ng_encode(NG_F32, &nearest, v, 0, &pattern); /* FP32 takes all */
    return pattern;
}

static ng_value f32(uint32_t pattern)
{
    ng_value v = { 0 };
    (void)ng_decode(NG_F32, pattern, &v);
    return v;
}

/* Of two FP32 numbers, RN. */
static uint32_t product(const ng_value *a, const ng_value *b)
{
    const ng_value p = { .sig = a->sig * b->sig,
                         .exp = a->exp + b->exp,
                         .neg = a->neg != b->neg };
    return to_f32(&p);
}

/* 1 - y / (d (d + 1)) + y^2 / (d (d + 1) (d + 2) (d + 3)) - ...: 2^63 is 1, y in units of
 * 2^-64.
 */
static uint64_t series(uint64_t y, uint64_t d)
{
    const uint64_t one = (uint64_t)1 << 63;
    uint64_t f = one;
    for (uint64_t n = TERMS; n-- > 0;)
        f = one - (uint64_t)((wide)y * f >> 64) / ((d + 2 * n) * (d + 2 * n + 1));
    return f;
}

/* An angle of at most pi / 4 in magnitude, in units of 2^-POINT. */
struct reduced {
    int quadrant;
    wide_signed rest;
};

static struct reduced reduce(uint32_t theta)
{
    const ng_value v = f32(theta);
    if (!v.sig)
        return (struct reduced){ 0 };
    /* angles are 2^-23 or more, so no bit of one lies below 2^-46 */
    const wide a = (wide)v.sig << (POINT + v.exp), q = (a + half_pi / 2) / half_pi;
    return (struct reduced){ .quadrant = (int)(q % 4),
                             .rest = (wide_signed)a - (wide_signed)(q * half_pi) };
}

/* |rest| with 64 significant bits; rest is not zero. */
static ng_value magnitude(wide_signed rest)
{
    const wide r = rest < 0 ? (wide)-rest : (wide)rest;
    const uint64_t high = (uint64_t)(r >> 64);
    const int zeros = high ? __builtin_clzll(high) : 64 + __builtin_clzll((uint64_t)r);
    return (ng_value){ .sig = (uint64_t)(r << zeros >> 64),
                       .exp = 64 - zeros - POINT,
                       .neg = rest < 0,
                       .sticky = true };
}

/* Square of the rest in units of 2^-64. */
static uint64_t square(const ng_value *r)
{
    const uint64_t s = (uint64_t)((wide)r->sig * r->sig >> 64); /* times 2^(2 exp + 64) */
    const int right = -(2 * r->exp + 128);
    return right > 63 ? 0 : s >> right;
}

static ng_value cosine_of(wide_signed rest)
{
    if (!rest)
        return (ng_value){ .sig = 1 };
    const ng_value r = magnitude(rest);
    return (ng_value){ .sig = series(square(&r), 1), .exp = -63, .sticky = true };
}

static ng_value sine_of(wide_signed rest)
{
    if (!rest)
        return (ng_value){ 0 };
    ng_value r = magnitude(rest);
    const uint64_t f = series(square(&r), 2);
    r.sig = (uint64_t)((wide)r.sig * f >> 63);
    return r;
}

/* Would numbers a little smaller and larger round to the same FP32 number? */
static bool is_decided(const ng_value *v)
{
    if (!v->sticky)
        return true;
    ng_value low = *v, high = *v;
    low.sig -= DOUBT;
    high.sig += DOUBT;
    return to_f32(&low) == to_f32(&high);
}

/* The codes of RN(RN(v) FACTOR). */
static bool finish(const ng_value *v, uint16_t *code)
{
    const ng_value rounded = f32(to_f32(v)), factor = f32(FACTOR);
    const ng_value scaled = f32(product(&rounded, &factor));
    uint32_t c = 0;
    (void)ng_encode(NG_BF16, &nearest, &scaled, 0, &c); /* bf16 takes all of this size */
    *code = (uint16_t)c;
    return is_decided(v);
}

bool layer_angle(int64_t position, int pair, uint16_t *cosine, uint16_t *sine)
{
    const ng_value t = { .sig = (uint64_t)position }, phi = f32(frequency[pair]);
    const struct reduced a = reduce(product(&t, &phi));
    ng_value c = cosine_of(a.rest), s = sine_of(a.rest);
    if (a.quadrant % 2) {
        const ng_value was = c;
        c = s;
        s = was;
    }
    c.neg = c.neg != (a.quadrant == 1 || a.quadrant == 2);
    s.neg = s.neg != (a.quadrant >= 2);
    const bool decided = finish(&c, cosine);
    return finish(&s, sine) && decided;
}
