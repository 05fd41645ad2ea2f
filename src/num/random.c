/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The generators as docs/numerics.md, sections 7 and 11.7, has them. xorwow and the LFSR are
 * linear over GF(2): n steps are a polynomial in one step, x^n modulo a polynomial that the
 * step is a root of.
 */
#include "random.h"

uint32_t ng_num_lanes(const ng_random *r)
{
    return r->lanes ? r->lanes : 128;
}

uint32_t ng_num_states(const ng_random *r)
{
    return r->states && r->kind == NG_RANDOM_XORWOW ? r->states : 1;
}

uint32_t ng_num_steps(const ng_random *r)
{
    return r->steps ? r->steps : 32;
}

/* ---- Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
 * 3", SC11, for multipliers (table 2), key increments and the number of rounds. ---- */

void ng_num_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = { counter[0], counter[1], counter[2], counter[3] };
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    for (int i = 0; i < 4; i++)
        out[i] = c[i];
}

static void philox_block(const ng_random *r, uint64_t block, uint32_t out[4])
{
    const uint32_t counter[4] = { (uint32_t)block, (uint32_t)(block >> 32), 0, 0 };
    ng_num_philox(counter, r->key, out);
}

/* ---- xorwow: Marsaglia, "Xorshift RNGs", J. Stat. Softw. 8(14), 2003, section 3.1. ---- */

#define WEYL 362437u

uint32_t ng_num_xorwow_next(struct ng_xorwow *s)
{
    uint32_t *w = s->word;
    const uint32_t t = w[0] ^ w[0] >> 2, v = w[4];
    for (int i = 0; i < 4; i++)
        w[i] = w[i + 1];
    w[4] = (v ^ v << 4) ^ (t ^ t << 1);
    w[5] += WEYL;
    return w[4] + w[5];
}

/* A polynomial over GF(2) of degree below 160: coefficient i is bit i mod 32 of word i div 32.
 */
struct poly {
    uint32_t word[5];
};

/*
 * The characteristic polynomial of xorwow's step on x y z w v, less its x^160: the shortest
 * recurrence of one bit of v (Berlekamp and Massey's algorithm finds it from 320 of them).
 */
static const struct poly xorwow_poly = { { 0x00060001u, 0x08610030u, 0x00062121u, 0x0F3C0035u,
                                           0x00000F0Eu } };

static bool coefficient(const struct poly *p, int i)
{
    return p->word[i / 32] >> (i % 32) & 1;
}

static void add(struct poly *a, const struct poly *b)
{
    for (int i = 0; i < 5; i++)
        a->word[i] ^= b->word[i];
}

/* a * x */
static void times_x(struct poly *a)
{
    const bool over = coefficient(a, 159);
    for (int i = 4; i > 0; i--)
        a->word[i] = a->word[i] << 1 | a->word[i - 1] >> 31;
    a->word[0] <<= 1;
    if (over)
        add(a, &xorwow_poly);
}

static struct poly times(const struct poly *a, const struct poly *b)
{
    struct poly r = { { 0 } };
    for (int i = 159; i >= 0; i--) {
        times_x(&r);
        if (coefficient(b, i))
            add(&r, a);
    }
    return r;
}

/* x^n */
static struct poly power_of_x(uint64_t n)
{
    struct poly r = { { 1 } };
    for (int i = 63; i >= 0; i--) {
        if (n >> i) /* else r is still 1 */
            r = times(&r, &r);
        if (n >> i & 1)
            times_x(&r);
    }
    return r;
}

void ng_num_xorwow_jump(struct ng_xorwow *s, uint64_t n)
{
    const struct poly p = power_of_x(n);
    const uint32_t d = s->word[5] + (uint32_t)n * WEYL;
    struct ng_xorwow sum = { { 0 } };
    for (int i = 0; i < 160; i++) {
        if (coefficient(&p, i))
            for (int j = 0; j < 5; j++)
                sum.word[j] ^= s->word[j];
        (void)ng_num_xorwow_next(s);
    }
    *s = sum;
    s->word[5] = d;
}

/* ---- LFSR32: Galois, right shift. ---- */

uint32_t ng_num_lfsr_shift(uint32_t state, uint32_t poly, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        state = state >> 1 ^ (state & 1 ? poly : 0);
    return state;
}

/*
 * A register is a polynomial with bit 31 as its constant: a shift is a multiplication by x,
 * modulo x^32 + poly.
 */
static uint32_t lfsr_times(uint32_t a, uint32_t b, uint32_t poly)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i++) /* from x^31 down */
        r = ng_num_lfsr_shift(r, poly, 1) ^ (b >> i & 1 ? a : 0);
    return r;
}

uint32_t ng_num_lfsr_jump(uint32_t state, uint32_t poly, uint32_t steps, uint64_t n)
{
    const uint32_t one = 0x80000000u, word = ng_num_lfsr_shift(one, poly, steps);
    uint32_t r = one;
    for (int i = 63; i >= 0; i--) {
        r = lfsr_times(r, r, poly);
        if (n >> i & 1)
            r = lfsr_times(r, word, poly);
    }
    return lfsr_times(state, r, poly);
}

/* ---- Streams. ---- */

/* Where word e of a stream comes from: a state of the source, and the words it gave before. */
struct place {
    uint64_t row;
    int64_t column;
    uint64_t state, drawn;
};

static struct place place_of(const ng_random *r, int64_t columns, uint64_t e)
{
    const uint64_t wide = (uint64_t)columns, lanes = ng_num_lanes(r), states = ng_num_states(r);
    const uint64_t row = e / wide, column = e % wide, q = column % states;
    const uint64_t per_row = (wide - q + states - 1) / states; /* of state q */
    return (struct place){ .row = row,
                           .column = (int64_t)column,
                           .state = row % lanes * states + q,
                           .drawn = row / lanes * per_row + column / states };
}

/* The next word of a state that has given `drawn` words before; then one more at a time. */
struct drawing {
    const ng_random *source;
    struct ng_xorwow xorwow;
    uint32_t lfsr;
};

static struct drawing draw_from(const ng_random *r, const struct place *p)
{
    struct drawing d = { .source = r };
    if (r->kind == NG_RANDOM_LFSR32) {
        d.lfsr = ng_num_lfsr_jump(r->state[p->state], r->poly, ng_num_steps(r), p->drawn);
        return d;
    }
    for (int i = 0; i < 6; i++)
        d.xorwow.word[i] = r->state[6 * p->state + (uint64_t)i];
    ng_num_xorwow_jump(&d.xorwow, p->drawn);
    return d;
}

static uint32_t draw(struct drawing *d)
{
    const ng_random *r = d->source;
    if (r->kind == NG_RANDOM_XORWOW)
        return ng_num_xorwow_next(&d->xorwow);
    d->lfsr = ng_num_lfsr_shift(d->lfsr, r->poly, ng_num_steps(r));
    return d->lfsr;
}

uint32_t ng_num_random_word(const ng_random *r, int64_t columns, int64_t i)
{
    const uint64_t e = r->first + (uint64_t)i;
    if (r->kind == NG_RANDOM_EXTERNAL)
        return r->word[e];
    if (r->kind == NG_RANDOM_PHILOX) {
        uint32_t block[4];
        philox_block(r, e / 4, block);
        return block[e % 4];
    }
    const struct place p = place_of(r, columns, e);
    struct drawing d = draw_from(r, &p);
    return draw(&d);
}

/* The words of [begin, end) that the state of element `e`, its first there, gives. */
static void words_of_state(const ng_random *r, int64_t columns, uint64_t begin, uint64_t end,
                           uint64_t e, uint32_t *out)
{
    const struct place p = place_of(r, columns, e);
    struct drawing d = draw_from(r, &p);
    const uint64_t wide = (uint64_t)columns, states = ng_num_states(r);
    uint64_t row = p.row, column = (uint64_t)p.column;
    const uint64_t q = column % states;
    for (; row * wide + column < end; column += states) {
        out[row * wide + column - begin] = draw(&d);
        if (column + states < wide)
            continue;
        row += ng_num_lanes(r); /* the lane's next row */
        column = q - states;    /* wraps, and the loop adds it again */
    }
}

static void words_by_state(const ng_random *r, int64_t columns, uint64_t begin, uint64_t end,
                           uint32_t *out)
{
    const uint64_t wide = (uint64_t)columns, lanes = ng_num_lanes(r),
                   states = ng_num_states(r) < wide ? ng_num_states(r) : wide;
    for (uint64_t row = begin / wide; row < begin / wide + lanes && row * wide < end; row++)
        for (uint64_t q = 0; q < states; q++) {
            uint64_t e = row * wide + q;
            while (e < begin && e < (row + 1) * wide)
                e += states;
            if (e >= (row + 1) * wide) /* begin is past this state's part of the row */
                e = (row + lanes) * wide + q;
            if (e < end)
                words_of_state(r, columns, begin, end, e, out);
        }
}

void ng_num_random_words(const ng_random *r, int64_t columns, int64_t first, int64_t count,
                         uint32_t *out)
{
    const uint64_t begin = r->first + (uint64_t)first, end = begin + (uint64_t)count;
    if (r->kind == NG_RANDOM_XORWOW || r->kind == NG_RANDOM_LFSR32) {
        words_by_state(r, columns, begin, end, out);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        out[i] = ng_num_random_word(r, columns, first + i);
}

uint32_t ng_num_uniform(uint32_t word)
{
    const uint32_t m = word >> 9; /* the number is m * 2^-23 */
    if (!m)
        return 0;
    const int top = 31 - __builtin_clz(m);
    return (uint32_t)(127 - 23 + top) << 23 | (m << (23 - top) & 0x7FFFFFu);
}
