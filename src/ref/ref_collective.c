/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One element of a reduction over ranks. Numerics: docs/numerics.md, section 11.12, whose items
 * are named here. Numbers are FP32 patterns.
 */
#include <stdlib.h>

#include "ref.h"

#define NAN_PATTERN 0x7FC00000u

/* A number of an element's plan: of a rank, or of a sum. */
struct term {
    uint32_t value;
    int64_t ranks; /* in it */
    int64_t rank;  /* of one rank: which; else -1 */
};

struct call {
    const struct reduce_job *j;
    const uint32_t *term; /* of each rank */
    struct ng_ref_steps *steps;
};

/* Ranks that an algorithm adds up, or nodes' sums. */
struct level {
    const struct call *call;
    int64_t n, chunk;
    int64_t own; /* the number of the rank whose result is asked for */
    int64_t chip;
    int32_t algorithm;
    int64_t node;  /* ranks of each term; 0: a term is a rank */
    int64_t first; /* without nodes: the rank of term 0 */
};

static int32_t setting(const struct call *c, ng_collective_param p)
{
    return c->j->set[p].value;
}

/* ---- Items 140 to 142. ---- */

static uint32_t to_wire(const struct reduce_job *j, uint32_t value)
{
    uint32_t code = 0;
    (void)ng_num_encode(j->wire, &j->cast, ng_num_f32(value), 0, &code);
    return ng_num_f32_code(ng_num_decode(j->wire, code));
}

uint32_t ng_ref_reduce_term(const struct reduce_job *j, uint32_t code)
{
    const uint32_t x = ng_num_f32_code(ng_num_decode(j->from, code));
    return j->wire == j->from ? x : to_wire(j, x);
}

/* Is a below b? -0 is below +0. Neither is a NaN. */
static bool is_below(uint32_t a, uint32_t b)
{
    const ng_value x = ng_num_f32(a), y = ng_num_f32(b);
    if (x.neg != y.neg)
        return x.neg;
    if (ng_num_is_inf(x) || ng_num_is_inf(y))
        return x.neg ? ng_num_is_inf(x) && !ng_num_is_inf(y)
                     : !ng_num_is_inf(x) && ng_num_is_inf(y);
    const int order = ng_num_compare_magnitude(x, y);
    return x.neg ? order > 0 : order < 0;
}

static bool is_nan(uint32_t x)
{
    return ng_num_is_nan(ng_num_f32(x));
}

static uint32_t least(const struct call *c, uint32_t a, uint32_t b)
{
    const bool number = setting(c, NG_COLLECTIVE_NAN) == NG_COLLECTIVE_NAN_NUMBER;
    if (is_nan(a) || is_nan(b)) {
        const uint32_t other = is_nan(a) ? b : a;
        return number && !is_nan(other) ? other : NAN_PATTERN;
    }
    return is_below(a, b) == (c->j->op->reduction == NG_REDUCTION_MIN) ? a : b;
}

/* A sum on its way: terms come from left to right. */
struct sum {
    uint32_t value; /* of the additions */
    struct term so_far;
    int64_t terms;
};

static void add(const struct call *c, struct sum *s, struct term t)
{
    const bool sums = c->j->op->reduction == NG_REDUCTION_SUM;
    if (s->terms++ == 0) {
        s->so_far = t;
        return;
    }
    s->value =
        sums ? ng_num_f32_add(s->so_far.value, t.value) : least(c, s->so_far.value, t.value);
    s->so_far.value = s->value;
    if (sums && setting(c, NG_COLLECTIVE_SUM) == NG_COLLECTIVE_PAIRS)
        s->so_far.value = to_wire(c->j, s->value);
    s->so_far.ranks += t.ranks;
    s->so_far.rank = t.rank >= 0 ? t.rank : s->so_far.rank;
}

/* What is sent on: a sum of one term is that term. */
static struct term end(const struct call *c, const struct sum *s)
{
    struct term t = s->so_far;
    struct ng_ref_steps *steps = c->steps;
    if (s->terms < 2)
        return t;
    if (c->j->op->reduction == NG_REDUCTION_SUM)
        t.value = to_wire(c->j, s->value);
    if (steps && steps->n < steps->room)
        steps->step[steps->n] =
            (ng_reduce_step){ s->terms, t.ranks, t.rank, s->value, t.value };
    if (steps)
        steps->n++;
    t.rank = -1;
    return t;
}

/* ---- Items 144 to 146. ---- */

static struct term result(const struct level *l);

/* Of a level, number i modulo n. */
static struct term term_of(const struct level *l, int64_t i)
{
    const struct call *c = l->call;
    i %= l->n;
    if (!l->node)
        return (struct term){ c->term[l->first + i], 1, l->first + i };
    const int64_t m = l->node, rank = c->j->op->rank;
    const struct level inside = { .call = c,
                                  .n = m,
                                  .chunk = l->chunk / l->n,
                                  .own = rank % m,
                                  .chip = setting(c, NG_COLLECTIVE_CHIP),
                                  .algorithm = setting(c, NG_COLLECTIVE_ALGORITHM),
                                  .first = i * m };
    return result(&inside);
}

/* Between nodes chunks are numbered over all ranks; the level's own number. */
static int64_t chunk_of(const struct level *l)
{
    return l->node ? l->chunk % l->n : l->chunk;
}

static struct term ring(const struct level *l)
{
    struct term t = term_of(l, chunk_of(l) + 1);
    for (int64_t i = 2; i <= l->n; i++) {
        struct sum s = { 0 };
        add(l->call, &s, t);
        add(l->call, &s, term_of(l, chunk_of(l) + i));
        t = end(l->call, &s);
    }
    return t;
}

static struct term kanga_ring(const struct level *l)
{
    const bool last = setting(l->call, NG_COLLECTIVE_RECEIVED) == NG_RECEIVED_LAST;
    const int64_t pairs = l->n / 2, role = chunk_of(l) % 2;
    struct term received = { 0 };
    for (int64_t i = 1; i <= pairs; i++) {
        const int64_t pair = (chunk_of(l) / 2 + i) % pairs;
        struct sum s = { 0 };
        if (i > 1 && !last)
            add(l->call, &s, received);
        add(l->call, &s, term_of(l, 2 * pair + role));
        add(l->call, &s, term_of(l, 2 * pair + 1 - role));
        if (i > 1 && last)
            add(l->call, &s, received);
        received = end(l->call, &s);
    }
    return received;
}

/* One sum of the ranks of a chip, from its number `from` up, cyclically. */
static struct term chip_sum(const struct level *l, int64_t chip, int64_t from)
{
    struct sum s = { 0 };
    for (int64_t i = 0; i < l->chip; i++)
        add(l->call, &s, term_of(l, chip * l->chip + (from + i) % l->chip));
    return end(l->call, &s);
}

static struct term mesh(const struct level *l)
{
    const bool owner = setting(l->call, NG_COLLECTIVE_START) == NG_START_OWNER;
    const int64_t chips = l->n / l->chip, first = owner ? chunk_of(l) / l->chip : 0,
                  from = owner ? chunk_of(l) % l->chip : 0;
    struct sum s = { 0 };
    for (int64_t i = 0; i < chips; i++)
        add(l->call, &s, chip_sum(l, (first + i) % chips, from));
    return end(l->call, &s);
}

/* S_t of a chip: its own, and that of the partner of the last of t steps. */
static struct term halves(const struct level *l, int64_t chip, int64_t t)
{
    const int64_t chips = l->n / l->chip;
    if (t == 0)
        return chip_sum(l, chip, 0);
    const int64_t distance = setting(l->call, NG_COLLECTIVE_HALVING) == NG_HALVING_NEAR
                                 ? (int64_t)1 << (t - 1)
                                 : chips >> t;
    struct sum s = { 0 };
    add(l->call, &s, halves(l, chip, t - 1));
    add(l->call, &s, halves(l, chip ^ distance, t - 1));
    return end(l->call, &s);
}

static struct term rdh(const struct level *l)
{
    int64_t t = 0;
    while ((l->chip << t) < l->n)
        t++;
    return halves(l, 0, t);
}

static struct term tree(const struct level *l, int64_t low, int64_t high)
{
    const int64_t middle = low + (high - low + 1) / 2;
    if (high - low == 1)
        return term_of(l, low);
    struct sum s = { 0 };
    add(l->call, &s, tree(l, low, middle));
    add(l->call, &s, tree(l, middle, high));
    return end(l->call, &s);
}

static struct term single_step(const struct level *l)
{
    const int32_t start = setting(l->call, NG_COLLECTIVE_START);
    const int64_t from = start == NG_START_OWNER ? chunk_of(l)
                         : start == NG_START_OWN ? l->own
                                                 : 0;
    struct sum s = { 0 };
    for (int64_t i = 0; i < l->n; i++)
        add(l->call, &s, term_of(l, from + i));
    return end(l->call, &s);
}

/* Item 145: terms up to a closing parenthesis or the end; *text was checked, and moves on. */
static struct term listed(const struct level *l, const char **text)
{
    struct sum s = { 0 };
    while (**text && **text != ')') {
        if (**text == ' ') {
            ++*text;
        } else if (**text == '(') {
            ++*text;
            add(l->call, &s, listed(l, text));
            ++*text; /* its parenthesis */
        } else {
            const bool relative = **text == '+';
            char *after;
            const int64_t rank = strtoll(*text + relative, &after, 10);
            add(l->call, &s, term_of(l, relative ? rank + l->chunk : rank));
            *text = after;
        }
    }
    return end(l->call, &s);
}

static struct term result(const struct level *l)
{
    const char *order = l->call->j->op->order;
    switch ((ng_collective_algorithm)l->algorithm) {
    case NG_ALGORITHM_RING: return ring(l);
    case NG_ALGORITHM_KANGA_RING: return kanga_ring(l);
    case NG_ALGORITHM_MESH: return mesh(l);
    case NG_ALGORITHM_RDH: return rdh(l);
    case NG_ALGORITHM_TREE: return tree(l, 0, l->n);
    case NG_ALGORITHM_SINGLE_STEP: return single_step(l);
    case NG_ALGORITHM_EXPLICIT: return listed(l, &order);
    case NG_ALGORITHM_REAL: break; /* has no order: ng_ref_reduce_real() */
    }
    return (struct term){ 0 };
}

uint32_t ng_ref_reduce(const struct reduce_job *j, int64_t chunk, const uint32_t *term,
                       struct ng_ref_steps *steps)
{
    const struct call c = { j, term, steps };
    const int64_t m = setting(&c, NG_COLLECTIVE_NODE);
    const struct level all = { .call = &c,
                               .n = m ? j->ranks / m : j->ranks,
                               .chunk = chunk,
                               .own = m ? j->op->rank / m : j->op->rank,
                               .chip = m ? 1 : setting(&c, NG_COLLECTIVE_CHIP),
                               .algorithm = setting(&c, m ? NG_COLLECTIVE_BETWEEN
                                                          : NG_COLLECTIVE_ALGORITHM),
                               .node = m };
    return result(&all).value;
}

ng_value ng_ref_reduce_real(int64_t n, const ng_value *x)
{
    struct ng_sum s;
    ng_sum_begin(&s);
    for (int64_t r = 0; r < n; r++)
        ng_sum_add(&s, x[r]);
    return ng_sum_end(&s);
}
