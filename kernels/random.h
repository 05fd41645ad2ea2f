/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random words in vectors (docs/numerics.md, 7 and 11.7). An ISA's words.h gives VL lanes of 32
 * bits and their operations; random.c instances this file.
 *
 * Philox: a 64-bit lane holds one word of a block, its upper half is not looked at. Two
 * multiplications, two shifts and four XORs make a round of VL / 2 blocks.
 *
 * xorwow and the LFSR: a lane is a strand, one state followed along its words. Where a range
 * has many rows, strands are rows (times states); where it has few, a row is cut into as many
 * stretches as there are lanes. A strand's first state is found by a jump: x^n modulo the
 * step's polynomial, applied to the state. VL steps of VL strands are a square, transposed on
 * its way out. A conversion follows strands itself (linear_place(), linear_next()), a few
 * squares at a time, so that it jumps once for many words that never leave the first cache.
 */
#ifndef NG_KERNELS_RANDOM_H
#define NG_KERNELS_RANDOM_H

#include <string.h>

#include "kernel.h"

/* ---- Philox4x32-10: Salmon, Moraes, Dror, Shaw, SC11. ---- */

enum {
    ROUNDS = 10,
    GROUPS = WORDS_GROUPS, /* vectors of blocks at once: a round waits for itself */
    BLOCKS = VL / 2,       /* of a vector */
    GROUP = 4 * BLOCKS     /* words */
};

struct philox_keys {
    ivec k[ROUNDS][2];
};

static void philox_begin(struct philox_keys *p, const uint32_t key[2])
{
    uint32_t k0 = key[0], k1 = key[1];
    for (int i = 0; i < ROUNDS; i++) {
        p->k[i][0] = iv_all(k0);
        p->k[i][1] = iv_all(k1);
        k0 += 0x9E3779B9u; /* Weyl increments: golden ratio, sqrt(3) - 1 */
        k1 += 0xBB67AE85u;
    }
}

/*
 * Words of `groups` groups, at most GROUPS, from block `block` on. words_unpack_low/high take
 * the even, the odd 64-bit lanes: so even lanes count the first half of a vector's blocks, odd
 * ones the second.
 */
IV_INLINE void philox_groups(const struct philox_keys *p, uint64_t block, uint32_t *out,
                             const int groups)
{
    const ivec m0 = iv_all(0xD2511F53u), m1 = iv_all(0xCD9E8D57u);
    ivec c[GROUPS][4];
    IV_UNROLL
    for (int g = 0; g < groups; g++) {
        c[g][0] = words_blocks(block + (uint64_t)(g * BLOCKS));
        c[g][1] = words_high(c[g][0]);
        c[g][2] = c[g][3] = iv_all(0);
    }
    IV_UNROLL
    for (int i = 0; i < ROUNDS; i++) {
        IV_UNROLL
        for (int g = 0; g < groups; g++) {
            const ivec p0 = words_mul(c[g][0], m0), p1 = words_mul(c[g][2], m1);
            c[g][0] = words_xor3(words_high(p1), c[g][1], p->k[i][0]);
            c[g][1] = p1;
            c[g][2] = words_xor3(words_high(p0), c[g][3], p->k[i][1]);
            c[g][3] = p0;
            words_keep(&c[g][0]); /* round by round: the compiler would go group by group */
            words_keep(&c[g][2]);
        }
    }
    IV_UNROLL
    for (int g = 0; g < groups; g++) {
        const ivec x = words_pair(c[g][0], c[g][1]), y = words_pair(c[g][2], c[g][3]);
        iv_store(out + (size_t)g * GROUP, words_unpack_low(x, y));
        iv_store(out + (size_t)g * GROUP + GROUP / 2, words_unpack_high(x, y));
    }
}

static void philox_words(const ng_random *source, int64_t columns, uint64_t first,
                         int64_t count, uint32_t *out)
{
    struct philox_keys keys;
    uint32_t group[GROUP];
    uint64_t at = first / 4 * 4;
    const uint64_t end = first + (uint64_t)count;
    (void)columns;
    philox_begin(&keys, source->key);
    while (at < end) {
        if (at >= first && at + GROUPS * GROUP <= end) {
            philox_groups(&keys, at / 4, out + (at - first), GROUPS);
            at += GROUPS * GROUP;
            continue;
        }
        const uint64_t from = at < first ? first : at, to = at + GROUP < end ? at + GROUP : end;
        philox_groups(&keys, at / 4, group, 1);
        memcpy(out + (from - first), group + (from - at), (size_t)(to - from) * sizeof *out);
        at += GROUP;
    }
}

/* ---- Maps of 32 bits to 32, linear over GF(2): tables of TABLE_BITS bits. ---- */

enum {
    TABLES = (32 + TABLE_BITS - 1) / TABLE_BITS
};
struct lookup {
    uint32_t t[TABLES][1 << TABLE_BITS];
};

IV_INLINE ivec look_up(const struct lookup *l, ivec x)
{
    ivec r = words_lookup(l->t[0], x);
    IV_UNROLL
    for (int i = 1; i < TABLES; i++)
        r = iv_xor(r, words_lookup(l->t[i], iv_srl_by(x, i * TABLE_BITS)));
    return r;
}

/* ---- LFSR32: a register is a polynomial, bit 31 its constant; a shift multiplies by x. ----
 */

static inline uint32_t lfsr_shift(uint32_t a, uint32_t poly)
{
    return a >> 1 ^ (poly & (0u - (a & 1)));
}

static uint32_t lfsr_times(uint32_t a, uint32_t b, uint32_t poly)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i++, b >>= 1)
        r = lfsr_shift(r, poly) ^ (a & (0u - (b & 1)));
    return r;
}

/* x^(steps * n): n words. */
static uint32_t lfsr_power(const ng_random *source, uint64_t n)
{
    const uint32_t poly = source->poly;
    uint32_t word = 0x80000000u, r = word;
    for (uint32_t i = 0; i < (source->steps ? source->steps : 32); i++)
        word = lfsr_shift(word, poly);
    for (int i = n ? 63 - __builtin_clzll(n) : -1; i >= 0; i--) {
        r = lfsr_times(r, r, poly);
        if (n >> i & 1)
            r = lfsr_times(r, word, poly);
    }
    return r;
}

/* Multiplication by `a`. */
static void lfsr_lookup(struct lookup *l, uint32_t a, uint32_t poly)
{
    uint32_t image[TABLES * TABLE_BITS] = { 0 }; /* of each bit */
    for (int b = 31; b >= 0; b--, a = lfsr_shift(a, poly))
        image[b] = a;
    for (int i = 0; i < TABLES; i++) {
        l->t[i][0] = 0;
        for (int x = 1; x < 1 << TABLE_BITS; x++)
            l->t[i][x] =
                l->t[i][x & (x - 1)] ^ image[i * TABLE_BITS + __builtin_ctz((unsigned)x)];
    }
}

/* ---- xorwow: Marsaglia, "Xorshift RNGs", 2003, section 3.1. ---- */

#define WEYL 362437u

/* The least polynomial of the step on x y z w v, less its x^160; as docs/numerics.md 11.7. */
struct poly {
    uint64_t w[3];
};
static const struct poly xorwow_poly = {
    { UINT64_C(0x0861003000060001), UINT64_C(0x0F3C003500062121), UINT64_C(0x0000000000000F0E) }
};

/* of[i][n]: n * x^(160 + 4 i) modulo the polynomial, for n of four coefficients. */
struct reduction {
    struct poly of[4][16];
};

#define TOP UINT64_C(0xFFFFFFFF) /* what there is of the third word */

static inline struct poly poly_xor(struct poly a, struct poly b)
{
    return (struct poly){ { a.w[0] ^ b.w[0], a.w[1] ^ b.w[1], a.w[2] ^ b.w[2] } };
}

static inline struct poly poly_up(struct poly a, int n) /* a * x^n, what passes x^159 lost */
{
    return (struct poly){ { a.w[0] << n, a.w[1] << n | a.w[0] >> (64 - n),
                            (a.w[2] << n | a.w[1] >> (64 - n)) & TOP } };
}

static void reduction_begin(struct reduction *r)
{
    struct poly p = xorwow_poly;
    for (int i = 0; i < 4; i++) {
        struct poly *of = r->of[i];
        of[0] = (struct poly){ { 0 } };
        for (int n = 1; n < 16; n++) {
            if (n & (n - 1)) {
                of[n] = poly_xor(of[n & (n - 1)], of[n & -n]);
                continue;
            }
            of[n] = p;
            const uint64_t over = 0 - (p.w[2] >> 31);
            p = poly_up(p, 1);
            for (int k = 0; k < 3; k++)
                p.w[k] ^= xorwow_poly.w[k] & over;
        }
    }
}

/* a^2: every coefficient moves to twice its place. */
static struct poly poly_square(const struct reduction *r, const struct poly *a)
{
    uint64_t wide[5];
    for (int i = 0; i < 5; i++) {
        uint64_t x = a->w[i / 2] >> (i % 2 * 32) & TOP;
        x = (x | x << 16) & UINT64_C(0x0000FFFF0000FFFF);
        x = (x | x << 8) & UINT64_C(0x00FF00FF00FF00FF);
        x = (x | x << 4) & UINT64_C(0x0F0F0F0F0F0F0F0F);
        x = (x | x << 2) & UINT64_C(0x3333333333333333);
        wide[i] = (x | x << 1) & UINT64_C(0x5555555555555555);
    }
    /* the upper 160 coefficients, sixteen at a time */
    struct poly s = { { 0 } };
    for (int i = 304; i >= 160; i -= 16) {
        const uint64_t over = (s.w[2] >> 16 ^ wide[i / 64] >> (i % 64)) & 0xFFFF;
        s = poly_up(s, 16);
        for (int k = 0; k < 4; k++)
            s = poly_xor(s, r->of[k][over >> 4 * k & 15]);
    }
    return poly_xor(s, (struct poly){ { wide[0], wide[1], wide[2] & TOP } });
}

static struct poly power_of_x(const struct reduction *r, uint64_t n)
{
    struct poly p = { { 0 } };
    int i = 57; /* the first seven bits that matter: x^127 is there without squaring */
    while (i > 0 && !(n >> (i + 6)))
        i--;
    p.w[n >> i >> 6] = UINT64_C(1) << (n >> i & 63);
    while (i-- > 0) {
        p = poly_square(r, &p);
        if (n >> i & 1) {
            const uint64_t over = p.w[2] >> 31;
            p = poly_xor(poly_up(p, 1), r->of[0][over]);
        }
    }
    return p;
}

IV_INLINE ivec xorwow_next(ivec s[5])
{
    const ivec t = iv_xor(s[0], iv_srl_by(s[0], 2)), v = s[4];
    s[0] = s[1];
    s[1] = s[2];
    s[2] = s[3];
    s[3] = v;
    s[4] = words_xor3(v, iv_sll_by(v, 4), iv_xor(t, iv_sll_by(t, 1))); /* v waits for v */
    return s[4];
}

/* ---- Strands. ---- */

/* What is asked for, by place in the stream. */
struct range {
    const ng_random *source;
    uint64_t wide, lanes, states; /* of a row, of the source, of a lane */
    uint64_t begin, end;
    uint32_t *out;
    bool xorwow;
    struct lookup step;         /* LFSR: a word on */
    struct reduction reduction; /* xorwow */
};

/* A group is a row's `states` strands, side by side; at VL / states places at once. */
struct strands {
    ivec s[5], d;       /* LFSR: s[0] */
    uint64_t at[VL];    /* place in the stream of a group's next step */
    uint64_t limit[VL]; /* its words end before this one; 0: an idle group */
};

/* The jump over n words: x^n; LFSR: in w[0]. */
static struct poly power(const struct range *r, uint64_t n)
{
    if (r->xorwow)
        return power_of_x(&r->reduction, n);
    return (struct poly){ { lfsr_power(r->source, n) } };
}

/* Over twice as many. */
static struct poly power_square(const struct range *r, const struct poly *p)
{
    if (r->xorwow)
        return poly_square(&r->reduction, p);
    const uint32_t a = (uint32_t)p->w[0];
    return (struct poly){ { lfsr_times(a, a, r->source->poly) } };
}

/* Lanes with mask all ones go n words on, p of them. */
static void xorwow_jump(struct strands *g, const struct poly *p, uint64_t n, ivec mask)
{
    ivec s[5], sum[5];
    for (int j = 0; j < 5; j++) {
        s[j] = g->s[j];
        sum[j] = iv_all(0);
    }
    for (int i = 0; i < 160; i++) {
        const ivec take = iv_all(0u - (uint32_t)(p->w[i / 64] >> (i % 64) & 1));
        for (int j = 0; j < 5; j++)
            sum[j] = words_xor_some(sum[j], s[j], take);
        (void)xorwow_next(s);
    }
    for (int j = 0; j < 5; j++)
        g->s[j] = iv_select(mask, sum[j], g->s[j]);
    g->d = iv_add(g->d, iv_and(mask, iv_all((uint32_t)n * WEYL)));
}

static void lfsr_jump(const struct range *r, struct strands *g, const struct poly *p, ivec mask)
{
    struct lookup by;
    lfsr_lookup(&by, (uint32_t)p->w[0], r->source->poly);
    g->s[0] = iv_select(mask, look_up(&by, g->s[0]), g->s[0]);
}

static void jump_masked(const struct range *r, struct strands *g, const struct poly *p,
                        uint64_t n, const uint32_t mask[VL])
{
    if (r->xorwow)
        xorwow_jump(g, p, n, iv_load(mask));
    else
        lfsr_jump(r, g, p, iv_load(mask));
}

/* Lanes n[j] = times * unit on, times below VL: by the bits of `times`. */
static void jump_by_bits(const struct range *r, struct strands *g, const uint64_t n[VL],
                         uint64_t unit)
{
    struct poly p = power(r, unit);
    for (uint64_t bit = 1; bit < VL; bit *= 2) {
        uint32_t mask[VL], any = 0, above = 0;
        for (int j = 0; j < VL; j++) {
            mask[j] = n[j] / unit & bit ? UINT32_MAX : 0;
            any |= mask[j];
            above |= n[j] / unit >= 2 * bit;
        }
        if (any)
            jump_masked(r, g, &p, bit * unit, mask);
        if (!above)
            return;
        p = power_square(r, &p);
    }
}

/* Lanes n[j] on, each different n once. */
static void jump_one_by_one(const struct range *r, struct strands *g, const uint64_t n[VL])
{
    for (int j = 0; j < VL; j++) {
        uint32_t mask[VL];
        bool seen = n[j] == 0;
        for (int i = 0; i < j; i++)
            seen |= n[i] == n[j];
        if (seen)
            continue;
        for (int i = 0; i < VL; i++)
            mask[i] = n[i] == n[j] ? UINT32_MAX : 0;
        const struct poly p = power(r, n[j]);
        jump_masked(r, g, &p, n[j], mask);
    }
}

/* Every lane by its own n: what they share, and most often multiples of one stretch. */
static void jump(const struct range *r, struct strands *g, const uint64_t n[VL])
{
    uint64_t least = n[0], unit = 0, rest[VL];
    uint32_t all[VL];
    bool even = true;
    for (int j = 1; j < VL; j++)
        least = n[j] < least ? n[j] : least;
    for (int j = 0; j < VL; j++) {
        all[j] = UINT32_MAX;
        rest[j] = n[j] - least;
        if (rest[j] && (!unit || rest[j] < unit))
            unit = rest[j];
    }
    if (least) {
        const struct poly p = power(r, least);
        jump_masked(r, g, &p, least, all);
    }
    if (!unit)
        return;
    for (int j = 0; j < VL; j++)
        even &= rest[j] % unit == 0 && rest[j] / unit < VL;
    if (even)
        jump_by_bits(r, g, rest, unit);
    else
        jump_one_by_one(r, g, rest);
}

/* Groups go from their lanes' first states to `step` of their rows. */
static void place(const struct range *r, struct strands *g, const uint64_t row[VL],
                  const uint64_t step[VL])
{
    uint32_t s[6][VL];
    uint64_t n[VL], steps[VL];
    const bool even = r->wide % r->states == 0; /* all states of a row have the same n */
    for (uint64_t j = 0; j < VL; j++) {
        const uint64_t x = row[j / r->states], q = j % r->states,
                       state = x % r->lanes * r->states + q;
        for (int i = 0; i < (r->xorwow ? 6 : 1); i++)
            s[i][j] =
                r->xorwow ? r->source->state[6 * state + (uint64_t)i] : r->source->state[state];
        n[j] = x / r->lanes * ((r->wide + r->states - 1 - q) / r->states);
        steps[j] = step[j / r->states];
        if (even)
            n[j] += steps[j];
    }
    for (int i = 0; i < 5; i++)
        g->s[i] = i == 0 || r->xorwow ? iv_load(s[i]) : iv_all(0);
    g->d = r->xorwow ? iv_load(s[5]) : iv_all(0);
    jump(r, g, n);
    if (!even)
        jump(r, g, steps);
}

/*
 * Where the squares of a run go: a group whose run lies inside its limits writes where its
 * words belong, the others into a line of their own, of which emit_part() keeps what is wanted.
 */
struct ways {
    uint32_t *to[VL];
    uint64_t by[VL]; /* how far `to` moves a square */
    uint32_t line[VL * VL];
    uint64_t part[VL]; /* groups of the second kind that are not idle */
    uint64_t parts;
};

static void find_ways(const struct range *r, const struct strands *g, uint64_t steps,
                      struct ways *w)
{
    const uint64_t words_of = r->states * (steps / VL * VL); /* in whole squares */
    w->parts = 0;
    for (uint64_t x = 0; x < VL / r->states; x++) {
        w->to[x] = w->line + x * r->states * VL;
        w->by[x] = 0;
        if (g->at[x] >= r->begin && g->at[x] + words_of <= g->limit[x]) {
            w->to[x] = r->out + (g->at[x] - r->begin);
            w->by[x] = r->states * VL;
        } else if (g->limit[x]) {
            w->part[w->parts++] = x;
        }
    }
}

/* n steps of group x from its line. */
static void emit_part(const struct range *r, const struct strands *g, const uint32_t *line,
                      uint64_t x, uint64_t n)
{
    const uint64_t at = g->at[x], to = at + r->states * n, low = at < r->begin ? r->begin : at,
                   high = to < g->limit[x] ? to : g->limit[x];
    if (low < high)
        memcpy(r->out + (low - r->begin), line + x * r->states * VL + (low - at),
               (size_t)(high - low) * sizeof *line);
}

/* VL steps of all lanes, turned: of each group VL * states words. */
IV_INLINE void emit_square(const struct range *r, struct strands *g, struct ways *w,
                           const ivec *x, const uint64_t states)
{
    const uint64_t whole = states * VL;
    IV_UNROLL
    for (uint64_t j = 0; j < VL; j++)
        iv_store(w->to[j / states] + j % states * VL, x[j]);
    for (uint64_t i = 0; i < w->parts; i++)
        emit_part(r, g, w->line, w->part[i], VL);
    for (uint64_t i = 0; i < VL / states; i++) {
        g->at[i] += whole;
        w->to[i] += w->by[i];
    }
}

/* The last steps of a run, fewer than VL. */
static void emit_rest(const struct range *r, struct strands *g, struct ways *w,
                      const uint32_t *square, uint64_t n)
{
    for (uint64_t x = 0; x < VL / r->states; x++) {
        for (uint64_t t = 0; t < n; t++)
            memcpy(w->line + x * r->states * VL + t * r->states,
                   square + t * VL + x * r->states, r->states * sizeof *square);
        emit_part(r, g, w->line, x, n);
        g->at[x] += r->states * n;
    }
}

IV_INLINE ivec next_words(const struct lookup *step, ivec s[5], ivec *d, bool xorwow)
{
    if (!xorwow) {
        s[0] = look_up(step, s[0]);
        return s[0];
    }
    *d = iv_add(*d, iv_all(WEYL));
    return iv_add(xorwow_next(s), *d);
}

/* VL steps, turned. */
IV_INLINE void next_square(const struct lookup *step, ivec s[5], ivec *d, ivec x[VL],
                           bool xorwow, const uint64_t states)
{
    IV_UNROLL
    for (int t = 0; t < VL; t++)
        x[t] = next_words(step, s, d, xorwow);
    if (states == 1)
        iv_transpose(x);
    else
        words_turn4(x);
}

/* `steps` words of every strand. */
IV_INLINE void run_strands(const struct range *r, struct strands *g, uint64_t steps,
                           bool xorwow, const uint64_t states)
{
    uint32_t square[VL * VL];
    struct ways w;
    ivec s[5] = { g->s[0], g->s[1], g->s[2], g->s[3], g->s[4] }, d = g->d;
    find_ways(r, g, steps, &w);
    for (; steps >= VL; steps -= VL) {
        ivec x[VL];
        next_square(&r->step, s, &d, x, xorwow, states);
        emit_square(r, g, &w, x, states);
    }
    for (uint64_t t = 0; t < steps; t++)
        iv_store(square + t * VL, next_words(&r->step, s, &d, xorwow));
    if (steps)
        emit_rest(r, g, &w, square, steps);
    for (int i = 0; i < 5; i++)
        g->s[i] = s[i];
    g->d = d;
}

static void run(const struct range *r, struct strands *g, uint64_t steps)
{
    if (!r->xorwow)
        run_strands(r, g, steps, false, 1);
    else if (r->states == 1)
        run_strands(r, g, steps, true, 1);
    else
        run_strands(r, g, steps, true, 4);
}

/* ---- Whole rows: a group is a lane, and goes from row to row. ---- */

/* The columns past the last whole step: only the states that have one there go on. */
static void run_rest(const struct range *r, struct strands *g, uint64_t rest)
{
    uint32_t mask[VL];
    const struct strands before = *g;
    for (uint64_t j = 0; j < VL; j++)
        mask[j] = j % r->states < rest ? UINT32_MAX : 0;
    run(r, g, 1);
    const ivec moved = iv_load(mask);
    for (int i = 0; i < 5; i++)
        g->s[i] = iv_select(moved, g->s[i], before.s[i]);
    g->d = iv_select(moved, g->d, before.d);
}

/* Lanes of rows [row, row + groups) and all their later rows below `end`. */
static void run_lanes(const struct range *r, uint64_t row, uint64_t groups, uint64_t end)
{
    struct strands g;
    uint64_t rows[VL], step[VL] = { 0 };
    for (uint64_t x = 0; x < VL; x++)
        rows[x] = row + (x < groups ? x : 0);
    place(r, &g, rows, step);
    for (; row < end; row += r->lanes) {
        for (uint64_t x = 0; x < VL / r->states; x++) {
            const uint64_t mine = row + x;
            g.at[x] = mine * r->wide;
            g.limit[x] = x < groups && mine < end ? (mine + 1) * r->wide : 0;
        }
        run(r, &g, r->wide / r->states);
        if (r->wide % r->states)
            run_rest(r, &g, r->wide % r->states);
    }
}

static void run_rows(const struct range *r, uint64_t row, uint64_t end)
{
    const uint64_t most = VL / r->states, rows = end - row,
                   lanes = rows < r->lanes ? rows : r->lanes;
    for (uint64_t l = 0; l < lanes; l += most)
        run_lanes(r, row + l, lanes - l < most ? lanes - l : most, end);
}

/* ---- A piece of one row, cut into stretches. ---- */

static void run_piece(const struct range *r, uint64_t row, uint64_t begin, uint64_t end)
{
    const uint64_t groups = VL / r->states, first = begin / r->states,
                   steps = (end + r->states - 1) / r->states - first;
    /* whole squares, so that only the last stretch has a tail */
    const uint64_t each = ((steps + groups - 1) / groups + VL - 1) / VL * VL,
                   base = row * r->wide;
    struct strands g;
    uint64_t rows[VL], step[VL];
    for (uint64_t x = 0; x < VL; x++) {
        rows[x] = row;
        step[x] = first + x * each;
    }
    place(r, &g, rows, step);
    for (uint64_t x = 0; x < groups; x++) {
        const uint64_t column = (first + x * each) * r->states,
                       stop = column + each * r->states;
        g.at[x] = base + column;
        g.limit[x] = column < end ? base + (stop < end ? stop : end) : 0;
    }
    run(r, &g, each < steps ? each : steps);
}

/* ---- Any range. ---- */

static void linear_begin(struct range *r, const ng_random *source, int64_t columns)
{
    r->source = source;
    r->wide = (uint64_t)columns;
    r->lanes = source->lanes ? source->lanes : 128;
    r->xorwow = source->kind == NG_RANDOM_XORWOW;
    r->states = r->xorwow && source->states ? source->states : 1;
    if (r->xorwow)
        reduction_begin(&r->reduction);
    else
        lfsr_lookup(&r->step, lfsr_power(source, 1), source->poly);
}

static void linear_words(const ng_random *source, int64_t columns, uint64_t first,
                         int64_t count, uint32_t *out)
{
    struct range r = { .begin = first, .end = first + (uint64_t)count, .out = out };
    linear_begin(&r, source, columns);
    uint64_t row = r.begin / r.wide;
    const uint64_t last = r.end / r.wide, head = r.begin % r.wide, tail = r.end % r.wide;
    if (head) {
        run_piece(&r, row, head, row == last ? tail : r.wide);
        if (row == last)
            return;
        row++;
    }
    if ((last - row) * r.states >= VL / 2) {
        run_rows(&r, row, last);
    } else {
        for (; row < last; row++)
            run_piece(&r, row, 0, r.wide);
    }
    if (tail)
        run_piece(&r, last, 0, tail);
}

/* ---- Strands that the caller follows. ---- */

_Static_assert(sizeof(struct lookup) <= sizeof((struct ng_random_strands *)0)->step,
               "the LFSR's step has a place");

static void linear_place(const ng_random *source, int64_t columns, const uint64_t *first,
                         struct ng_random_strands *to)
{
    struct range r = { 0 };
    struct strands g;
    uint64_t row[VL], step[VL];
    linear_begin(&r, source, columns);
    for (uint64_t x = 0; x < VL / r.states; x++) {
        row[x] = first[x] / r.wide;
        step[x] = first[x] % r.wide / r.states;
    }
    place(&r, &g, row, step);
    for (int i = 0; i < 5; i++)
        iv_store(to->state[i], g.s[i]);
    iv_store(to->state[5], g.d);
    if (!r.xorwow)
        memcpy(to->step, &r.step, sizeof r.step);
}

IV_INLINE void follow(struct ng_random_strands *g, int64_t words, uint32_t *out, int64_t apart,
                      bool xorwow, const uint64_t states)
{
    struct lookup step;
    ivec s[5], d = iv_load(g->state[5]);
    if (!xorwow)
        memcpy(&step, g->step, sizeof step);
    for (int i = 0; i < 5; i++)
        s[i] = iv_load(g->state[i]);
    for (int64_t steps = (words + (int64_t)states - 1) / (int64_t)states; steps > 0;
         steps -= VL, out += VL * states) {
        ivec x[VL];
        if (__builtin_expect(steps >= VL, 1)) {
            next_square(&step, s, &d, x, xorwow, states);
        } else { /* the strands stop where they shall go on */
            for (int t = 0; t < VL; t++)
                x[t] = t < steps ? next_words(&step, s, &d, xorwow) : iv_all(0);
            if (states == 1)
                iv_transpose(x);
            else
                words_turn4(x);
        }
        IV_UNROLL
        for (uint64_t j = 0; j < VL; j++)
            iv_store(out + (int64_t)(j / states) * apart + j % states * VL, x[j]);
    }
    for (int i = 0; i < 5; i++)
        iv_store(g->state[i], s[i]);
    iv_store(g->state[5], d);
}

static void linear_next(const ng_random *source, struct ng_random_strands *g, int64_t words,
                        uint32_t *out, int64_t apart)
{
    if (source->kind != NG_RANDOM_XORWOW)
        follow(g, words, out, apart, false, 1);
    else if (source->states != 4)
        follow(g, words, out, apart, true, 1);
    else
        follow(g, words, out, apart, true, 4);
}

#endif
