/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row of attention as the real number that it is, rounded once. Numerics: docs/numerics.md,
 * section 11.9 item 78.
 *
 * Everything is fixed point of 1536 bits behind the point. Scores are exact (or, with a cap,
 * known to 2^-1380); exponentials are known to 2^-1380, so a quotient of their sums is known to
 * ERROR = 2^-1200. Its 64 leading bits are then plain, unless it is that near to such a number
 * t. Whether it is t, below or above is the sign of the sum of w_j (v_j - t): keys with equal
 * scores are put together first, because for different algebraic scores the exponentials are
 * linearly independent (Lindemann 1882, Weierstrass 1885), so the sum is zero only if each
 * group's is; and then with the largest weight left as the unit, so that a weight's smallness
 * hides nothing. A cap that is reached hides what a score lacks of it: e, of c tanh(u) =
 * c (1 - e), is a term of its own, exp(c (1 - e)) = exp(c) - c e exp(c), so that equal weights
 * that are not quite equal tell above from below.
 */
#include <string.h>

#include "ref_attention.h"

__extension__ typedef unsigned __int128 wide;

/* ---- Fixed point: two's complement, lowest limb first. ---- */

enum {
    FRACTION = 24, /* limbs behind the point */
    LIMBS = 40,
    POINT = 64 * FRACTION,
    ERROR = 1200 /* results are known to 2^-ERROR */
};

struct big {
    uint64_t limb[LIMBS];
};

static struct big big_add(struct big a, const struct big *b)
{
    uint64_t carry = 0;
    for (int i = 0; i < LIMBS; i++) {
        const wide sum = (wide)a.limb[i] + b->limb[i] + carry;
        a.limb[i] = (uint64_t)sum;
        carry = (uint64_t)(sum >> 64);
    }
    return a;
}

static struct big big_sub(struct big a, const struct big *b)
{
    uint64_t borrow = 0;
    for (int i = 0; i < LIMBS; i++) {
        const wide d = (wide)a.limb[i] - b->limb[i] - borrow;
        a.limb[i] = (uint64_t)d;
        borrow = (uint64_t)(d >> 64) & 1;
    }
    return a;
}

static bool is_negative(const struct big *a)
{
    return a->limb[LIMBS - 1] >> 63;
}

/* -1, 0, 1 */
static int sign_of(const struct big *a)
{
    uint64_t any = 0;
    for (int i = 0; i < LIMBS; i++)
        any |= a->limb[i];
    return is_negative(a) ? -1 : any != 0;
}

static int compare(const struct big *a, const struct big *b)
{
    const struct big d = big_sub(*a, b);
    return sign_of(&d);
}

static struct big big_neg(const struct big *a)
{
    return big_sub((struct big){ { 0 } }, a);
}

static struct big magnitude(const struct big *a)
{
    return is_negative(a) ? big_neg(a) : *a;
}

/* a * 2^n of a >= 0; what falls off below is lost. */
static struct big big_shift(const struct big *a, int n)
{
    struct big r = { { 0 } };
    const int words = n >= 0 ? n / 64 : -((-n + 63) / 64), bits = n - 64 * words;
    for (int i = 0; i < LIMBS; i++) {
        const int from = i - words;
        const uint64_t low = from >= 0 && from < LIMBS ? a->limb[from] : 0;
        const uint64_t under = from >= 1 && from <= LIMBS ? a->limb[from - 1] : 0;
        r.limb[i] = bits ? low << bits | under >> (64 - bits) : low;
    }
    return r;
}

/* sig * 2^exp; exp >= -POINT. */
static struct big big_of(ng_value v)
{
    struct big r = { { v.sig } };
    r = big_shift(&r, v.exp + POINT);
    return v.neg ? big_neg(&r) : r;
}

static struct big big_int(uint64_t n)
{
    return big_of((ng_value){ .sig = n });
}

static int limbs_of(const struct big *a)
{
    int n = LIMBS;
    while (n && !a->limb[n - 1])
        n--;
    return n;
}

/* Rounded toward zero. */
static struct big big_mul(const struct big *x, const struct big *y)
{
    const struct big a = magnitude(x), b = magnitude(y);
    const int na = limbs_of(&a), nb = limbs_of(&b);
    uint64_t product[2 * LIMBS + 1] = { 0 };
    for (int i = 0; i < na; i++) {
        uint64_t carry = 0;
        for (int j = 0; j < nb; j++) {
            const wide t = (wide)a.limb[i] * b.limb[j] + product[i + j] + carry;
            product[i + j] = (uint64_t)t;
            carry = (uint64_t)(t >> 64);
        }
        product[i + nb] = carry;
    }
    struct big r;
    memcpy(r.limb, product + FRACTION, sizeof r.limb);
    return is_negative(x) != is_negative(y) ? big_neg(&r) : r;
}

static struct big big_div_int(struct big a, uint64_t n) /* a >= 0 */
{
    uint64_t rest = 0;
    for (int i = LIMBS - 1; i >= 0; i--) {
        const wide t = (wide)rest << 64 | a.limb[i];
        a.limb[i] = (uint64_t)(t / n);
        rest = (uint64_t)(t % n);
    }
    return a;
}

/* a / b of b > 0, bit by bit, toward zero; below 2^960. */
static struct big big_div(const struct big *x, const struct big *b)
{
    const struct big a = magnitude(x);
    struct big rest = { { 0 } }, q = { { 0 } };
    for (int i = 64 * LIMBS - 1; i >= -POINT; i--) {
        rest = big_add(rest, &rest);
        if (i >= 0)
            rest.limb[0] |= a.limb[i / 64] >> (i % 64) & 1;
        if (compare(&rest, b) >= 0) {
            rest = big_sub(rest, b);
            const int at = i + POINT;
            if (at < 64 * LIMBS)
                q.limb[at / 64] |= (uint64_t)1 << (at % 64);
        }
    }
    return is_negative(x) ? big_neg(&q) : q;
}

/* floor(log2 a) of a > 0. */
static int big_exponent(const struct big *a)
{
    const int n = limbs_of(a);
    return 64 * n - 1 - __builtin_clzll(a->limb[n - 1]) - POINT;
}

/* ---- Functions. ---- */

/* exp(x) of x <= 0, to 2^-1480: y = x / 2^32, its series, 32 squarings. */
static struct big big_exp(const struct big *x)
{
    enum {
        HALVINGS = 32,
        LEAST = 1100 /* e^-1100 is below the last place */
    };
    const struct big one = big_int(1), bound = big_int(LEAST), a = big_neg(x);
    if (compare(&a, &bound) >= 0)
        return (struct big){ { 0 } };
    const struct big y = big_shift(&a, -HALVINGS);
    struct big sum = one, term = one;
    for (uint64_t k = 1; sign_of(&term); k++) { /* 1 - y + y^2/2 - ... */
        term = big_mul(&term, &y);
        term = big_div_int(term, k);
        sum = k % 2 ? big_sub(sum, &term) : big_add(sum, &term);
    }
    for (int i = 0; i < HALVINGS; i++)
        sum = big_mul(&sum, &sum);
    return sum;
}

/* tanh(x) = (1 - e) / (1 + e) with e = exp(-2|x|). */
static struct big big_tanh(const struct big *x)
{
    const struct big one = big_int(1), a = magnitude(x);
    const struct big twice = big_add(a, &a), minus = big_neg(&twice);
    const struct big e = big_exp(&minus);
    const struct big above = big_sub(one, &e), below = big_add(one, &e);
    const struct big t = big_div(&above, &below);
    return is_negative(x) ? big_neg(&t) : t;
}

/* log(x) of 1 <= x < 2^64, by Newton's y + x exp(-y) - 1, which doubles the digits. */
static struct big big_log(const struct big *x)
{
    enum {
        STEPS = 13 /* from one bit to 2^13 */
    };
    const struct big one = big_int(1), n = big_int((uint64_t)big_exponent(x));
    const struct big ln2 =
        big_of((ng_value){ .sig = 0xB17217F7D1CF79AB, .exp = -64 }); /* log 2 */
    struct big y = big_mul(&n, &ln2);
    for (int i = 0; i < STEPS; i++) {
        const struct big minus = big_neg(&y), e = big_exp(&minus), q = big_mul(x, &e);
        y = big_add(y, &q);
        y = big_sub(y, &one);
    }
    return y;
}

/* ---- A row's keys. ---- */

/* A visible key that has a weight, or the sink. */
struct ng_ref_real_key {
    struct big score;  /* before the cap: exact */
    struct big weight; /* exp(sigma - M) */
    int64_t key;       /* -1: the sink */
};

struct term {
    struct big exponent, factor;
};

struct real_row {
    const struct attention_job *g;
    int64_t b, h, i;
    struct ng_ref_real_key *key;
    int64_t n;
    struct term *term; /* of one element beside a number: at most two a key */
    int64_t n_terms;
    bool nan;       /* a score is NaN or +Inf */
    struct big max; /* M */
    struct big sum; /* of the weights */
};

static struct big sigma_of(const struct attention_job *g, const struct big *score, bool sink)
{
    if (!g->op->softcap || sink)
        return *score;
    const struct big c = big_of(ng_num_f32(g->op->softcap)), x = big_div(score, &c),
                     t = big_tanh(&x);
    return big_mul(&c, &t);
}

/* An infinite score: gone, NaN, or, under a cap, the cap itself: a score beyond every finite
 * one (below 2^420), and as a multiple of any cap below big_div's bound. */
static void add_infinite(struct real_row *r, ng_value s, int64_t j)
{
    if (!ng_num_is_inf(s) || (!s.neg && !r->g->op->softcap)) {
        r->nan = true;
        return;
    }
    if (!r->g->op->softcap)
        return;
    const ng_value far = { .sig = 1, .exp = 600, .neg = s.neg };
    r->key[r->n++] = (struct ng_ref_real_key){ .score = big_of(far), .key = j };
}

static void add_key(struct real_row *r, int64_t j)
{
    const struct attention_job *g = r->g;
    int64_t qi[NG_MAX_RANK] = { r->b, r->h, r->i, 0 }, ki[NG_MAX_RANK];
    const ng_value scale = g->op->scale ? ng_num_f32(g->op->scale) : (ng_value){ .sig = 1 };
    struct big sum = { { 0 } };
    struct ng_sum class_of;
    ng_sum_begin(&class_of);
    ng_ref_attention_locate(g, r->b, r->h, j, ki);
    for (int64_t e = 0; e < g->d; e++) {
        qi[3] = ki[3] = e;
        const ng_value x =
            ng_num_mul(ng_ref_attention_value(&g->q, qi), ng_ref_attention_value(&g->k, ki));
        if (x.cls == NG_CLASS_FINITE) {
            const struct big term = big_of(x);
            sum = big_add(sum, &term);
        } else {
            ng_sum_add(&class_of, x);
        }
    }
    ng_value special = ng_sum_end(&class_of);
    if (special.cls != NG_CLASS_FINITE) {
        add_infinite(r, ng_num_mul(special, scale), j);
        return;
    }
    const struct big factor = big_of(scale);
    r->key[r->n++] = (struct ng_ref_real_key){ .score = big_mul(&sum, &factor), .key = j };
}

static void add_sink(struct real_row *r)
{
    if (!r->g->op->sink)
        return;
    const ng_value z = ng_ref_attention_value(r->g->op->sink, &r->h);
    if (ng_num_is_nan(z) || (ng_num_is_inf(z) && !z.neg))
        r->nan = true;
    else if (!ng_num_is_inf(z))
        r->key[r->n++] = (struct ng_ref_real_key){ .score = big_of(z), .key = -1 };
}

static void find_weights(struct real_row *r)
{
    for (int64_t x = 0; x < r->n; x++) {
        struct ng_ref_real_key *k = &r->key[x];
        k->weight = sigma_of(r->g, &k->score, k->key < 0);
        if (!x || compare(&k->weight, &r->max) > 0)
            r->max = k->weight;
    }
    for (int64_t x = 0; x < r->n; x++) {
        struct ng_ref_real_key *k = &r->key[x];
        const struct big d = big_sub(k->weight, &r->max);
        k->weight = big_exp(&d);
        r->sum = big_add(r->sum, &k->weight);
    }
}

/* ---- The quotient. ---- */

static ng_value v_of(const struct real_row *r, int64_t key, int64_t c)
{
    int64_t index[NG_MAX_RANK];
    if (key < 0)
        return ng_num_zero(false);
    ng_ref_attention_locate(r->g, r->b, r->h, key, index);
    index[3] = c;
    return ng_ref_attention_value(&r->g->v, index);
}

/* A sink has no cap. */
static bool same_score(const struct real_row *r, int64_t x, int64_t y)
{
    return memcmp(&r->key[x].score, &r->key[y].score, sizeof(struct big)) == 0 &&
           (!r->g->op->softcap || (r->key[x].key < 0) == (r->key[y].key < 0));
}

/* The sum of v_j - t over the keys whose score is that of key x. */
static struct big group_sum(const struct real_row *r, int64_t x, int64_t c, const struct big *t)
{
    struct big sum = { { 0 } };
    for (int64_t y = 0; y < r->n; y++)
        if (same_score(r, x, y)) {
            const struct big v = big_of(v_of(r, r->key[y].key, c));
            sum = big_add(sum, &v);
            sum = big_sub(sum, t);
        }
    return sum;
}

static bool is_first_of_group(const struct real_row *r, int64_t x)
{
    for (int64_t y = 0; y < x; y++)
        if (same_score(r, x, y))
            return false;
    return true;
}

/* factor * exp(exponent); terms of one exponent are one. */
static void add_term(struct real_row *r, const struct big *exponent, const struct big *factor)
{
    int64_t x = 0;
    while (x < r->n_terms && memcmp(&r->term[x].exponent, exponent, sizeof(struct big)) != 0)
        x++;
    if (x == r->n_terms)
        r->term[r->n_terms++] = (struct term){ .exponent = *exponent };
    r->term[x].factor = big_add(r->term[x].factor, factor);
}

/* part * exp(sigma) of key x's group: as it is, or, where |u| = |score| / c >= SATURATED, as
 * the cap's part * exp(+-c) and the -+ c e * part * exp(+-c) that it lacks, e = 2 exp(-2|u|);
 * the terms in e^2 are less than 2^-1000 of that. */
static void add_group(struct real_row *r, int64_t x, const struct big *part)
{
    enum {
        SATURATED = 400 /* e < 2^-1150; sigma is known to 2^-1350 */
    };
    const struct ng_ref_real_key *k = &r->key[x];
    const bool capped = r->g->op->softcap && k->key >= 0;
    const struct big cap = big_of(ng_num_f32(r->g->op->softcap)), bound = big_int(SATURATED);
    const struct big u = capped ? big_div(&k->score, &cap) : bound, size = magnitude(&u);
    if (!capped || compare(&size, &bound) < 0) {
        const struct big sigma = sigma_of(r->g, &k->score, !capped);
        add_term(r, &sigma, part);
        return;
    }
    const bool below = is_negative(&u);
    const struct big limit = below ? big_neg(&cap) : cap, twice = big_add(size, &size),
                     exponent = big_sub(limit, &twice), slope = big_add(cap, &cap),
                     lack = big_mul(&slope, part), factor = below ? lack : big_neg(&lack);
    add_term(r, &limit, part);
    add_term(r, &exponent, &factor);
}

/* The sign of the row's element c less t. */
static int against(struct real_row *r, int64_t c, const struct big *t)
{
    const struct term *top = NULL;
    r->n_terms = 0;
    for (int64_t x = 0; x < r->n; x++) {
        if (!is_first_of_group(r, x))
            continue;
        const struct big part = group_sum(r, x, c, t);
        if (sign_of(&part))
            add_group(r, x, &part);
    }
    for (const struct term *x = r->term; x < r->term + r->n_terms; x++)
        if (sign_of(&x->factor) && (!top || compare(&x->exponent, &top->exponent) > 0))
            top = x;
    struct big sum = { { 0 } };
    for (const struct term *x = r->term; top && x < r->term + r->n_terms; x++)
        if (sign_of(&x->factor)) {
            const struct big d = big_sub(x->exponent, &top->exponent), w = big_exp(&d),
                             product = big_mul(&w, &x->factor);
            sum = big_add(sum, &product);
        }
    const struct big size = magnitude(&sum);
    return !sign_of(&sum) || big_exponent(&size) < -ERROR ? 0 : sign_of(&sum);
}

/* t rounded down to a multiple of 2^unit as a value. */
static ng_value value_of(const struct big *t, int unit, bool neg)
{
    const struct big n = big_shift(t, -unit - POINT);
    return (ng_value){ .sig = n.limb[0], .exp = unit, .neg = neg };
}

enum {
    NOTHING = -400 /* far below half of every format's least number, and of its random bits */
};

/* 64 leading bits of x, which is known to 2^-ERROR: of the row's element c, or, with r NULL, of
 * a number that lies where `side` says beside one of so few bits: -1 below, 0 it is that, 1
 * above. */
static ng_value leading(const struct big *x, struct real_row *r, int64_t c, int side)
{
    const struct big a = magnitude(x), error = big_of((ng_value){ .sig = 1, .exp = -ERROR });
    const bool neg = is_negative(x);
    if (!sign_of(&a) || big_exponent(&a) < NOTHING) {
        const struct big zero = { { 0 } };
        const int sign = r ? against(r, c, &zero) : sign_of(x);
        return sign ? (ng_value){ .sig = 1, .exp = NOTHING, .neg = sign < 0, .sticky = true }
                    : ng_num_zero(false);
    }
    const int unit = big_exponent(&a) - 63;
    const struct big near = big_add(a, &error);
    ng_value up = value_of(&near, unit, neg);
    struct big t = big_of((ng_value){ .sig = up.sig, .exp = up.exp });
    if (!up.sig) { /* the error's carry made it a power of two */
        up = (ng_value){ .sig = (uint64_t)1 << 63, .exp = unit + 1, .neg = neg };
        t = big_of((ng_value){ .sig = up.sig, .exp = up.exp });
    }
    const struct big past = big_sub(near, &t), span = big_add(error, &error);
    if (compare(&past, &span) > 0) { /* t lies clearly below */
        up.sticky = true;
        return up;
    }
    const struct big signed_t = neg ? big_neg(&t) : t;
    if (r)
        side = against(r, c, &signed_t);
    if (neg)
        side = -side;
    if (side < 0) { /* the next one down, and more */
        up.sig = up.sig == (uint64_t)1 << 63 ? UINT64_MAX : up.sig - 1;
        up.exp -= up.sig == UINT64_MAX;
    }
    up.sticky = side != 0;
    return up;
}

static ng_value element(struct real_row *r, int64_t c)
{
    struct ng_sum special;
    struct big sum = { { 0 } };
    ng_sum_begin(&special);
    for (int64_t x = 0; x < r->n; x++) {
        const ng_value v = v_of(r, r->key[x].key, c);
        if (v.cls != NG_CLASS_FINITE) {
            ng_sum_add(&special, v);
            continue;
        }
        const struct big exact = big_of(v), term = big_mul(&r->key[x].weight, &exact);
        sum = big_add(sum, &term);
    }
    const ng_value total = ng_sum_end(&special);
    if (total.cls != NG_CLASS_FINITE)
        return total;
    const struct big quotient = big_div(&sum, &r->sum);
    return leading(&quotient, r, c, 0);
}

static uint32_t f32_code(const struct big *x, int side)
{
    return ng_num_f32_code(leading(x, NULL, 0, side));
}

static void statistics(const struct real_row *r, struct ng_ref_attention_result *out)
{
    if (r->nan) {
        out->lse = out->max = out->sum = ng_num_f32_code(ng_num_nan());
    } else if (!r->n) {
        out->lse = out->max = ng_num_f32_code(ng_num_inf(true));
        out->sum = 0;
    } else {
        /* weights beside the largest may lie below the last place, and lse above M all the same
         */
        const struct big one = big_int(1), least = big_of((ng_value){ .sig = 1, .exp = -1100 });
        const struct big rest = big_sub(r->sum, &one);
        const bool at_max = compare(&rest, &least) < 0;
        struct big lse = big_log(&r->sum);
        lse = big_add(lse, &r->max);
        out->lse = at_max ? f32_code(&r->max, r->n > 1) : f32_code(&lse, 0);
        out->max = f32_code(&r->max, 0);
        out->sum = f32_code(&r->sum, 0);
    }
}

void ng_ref_attention_exact(const struct attention_job *g, int64_t b, int64_t h, int64_t i,
                            struct ng_ref_attention_scratch *s, const ng_attention_trace *trace,
                            struct ng_ref_attention_result *out)
{
    struct real_row r = { .g = g, .b = b, .h = h, .i = i, .key = s->real };
    r.term = (struct term *)(r.key + g->keys + 1);
    const struct range seen = ng_ref_visible(g, ng_ref_keys(g, b), i);
    const bool zero = g->op->masked_rows == NG_MASKED_ZERO && seen.begin == seen.end;
    for (int64_t j = seen.begin; j < seen.end; j++)
        add_key(&r, j);
    add_sink(&r);
    if (!r.nan)
        find_weights(&r);
    statistics(&r, out);
    for (int64_t c = 0; c < g->dv; c++) {
        const ng_value v = zero            ? ng_num_zero(false)
                           : r.nan || !r.n ? ng_num_nan()
                                           : element(&r, c);
        ng_ref_attention_write(g, b, h, i, c, v, trace, out);
    }
}

size_t ng_ref_real_bytes(const struct attention_job *g)
{
    return ((size_t)g->keys + 1) * /* and the sink */
           (sizeof(struct ng_ref_real_key) + 2 * sizeof(struct term));
}
