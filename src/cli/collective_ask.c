/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which order does a library add ranks up? collective_ask.h.
 *
 * An element asks of two ranks, i and j, where they meet. i brings a large number M, j brings
 * -M, the others bring units. Units that are added to M before the two meet are lost, the
 * others survive, so what comes out is the weight of the ranks outside of the sum that joins i
 * and j (after FPRev: Xie et al., "FPRev: Revealing the Order of Floating-Point Summation",
 * USENIX ATC 2025, which asks so for FP32 sums). There are two sizes of M: one that swallows
 * units in FP32 tells the order of all additions; one that swallows them only where a sum is
 * rounded to the buffers' format tells which sums are rounded. A chunk of all pairs decides its
 * plan.
 */
#include "collective_ask.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"

enum {
    LEVEL_ADDITIONS, /* M swallows units in FP32 */
    LEVEL_ROUNDINGS, /* only in the format */
    LEVELS,
    ORDER_ROOM = 16 * NG_MAX_RANKS,
    MOST_STRETCHES = 8 * NG_MAX_RANKS,
    MOST_ALSO = 16,
    FEW = 1009, /* elements */
    MOST_WEIGHT = 16
};

/* How far apart numbers are, for n ranks in a format. */
struct plan {
    int64_t ranks, pairs;
    ng_format format;
    int levels;
    int ratio[LEVELS]; /* log2 of M over the unit */
    int top;           /* log2 of M, at most */
    int64_t weights;   /* a rank that is not asked brings 1 to so many units */
};

static int log2_up(int64_t n)
{
    int l = 0;
    while ((int64_t)1 << l < n)
        l++;
    return l;
}

static int plan_open(int64_t ranks, ng_format format, struct plan *p)
{
    const ng_format_spec *f = ng_format_info(format);
    const int bits = (int)f->man_bits + 1,
              most = (1 << f->exp_bits) - (f->kind == NG_KIND_IEEE ? 2 : 1) - f->bias,
              least = 1 - f->bias - (int)f->man_bits;
    *p = (struct plan){ .ranks = ranks,
                        .pairs = ranks * (ranks - 1) / 2,
                        .format = format,
                        .levels = bits < 24 ? LEVELS : 1,
                        .weights = 1 };
    const int64_t exact = (int64_t)1 << (bits < 24 ? bits : 24); /* it counts so far */
    while (p->weights < MOST_WEIGHT && 2 * p->weights * ranks <= exact)
        p->weights *= 2;
    p->ratio[LEVEL_ADDITIONS] = 25 + log2_up(ranks);
    p->ratio[LEVEL_ROUNDINGS] = bits + 1 + log2_up(ranks) + log2_up(p->weights);
    p->top = most;
    if (ranks < 2)
        return cli_fail(EXIT_USAGE, "there are %lld ranks; wanted: 2 or more",
                        (long long)ranks);
    if (f->exp_bits == 0 || f->kind == NG_KIND_SCALE || f->kind == NG_KIND_UFN ||
        f->kind == NG_KIND_INT || most - least < p->ratio[LEVEL_ADDITIONS])
        return cli_fail(
            EXIT_REFUSED,
            "%s has no two numbers so far apart that one swallows %lld of the other "
            "in FP32; wanted: f32, bf16, f16, or e5m2 for few ranks",
            f->text, (long long)ranks);
    if (ranks > exact)
        return cli_fail(EXIT_REFUSED, "%s does not count to %lld, the number of ranks", f->text,
                        (long long)ranks);
    return 0;
}

static bool alloc(struct operand *to, ng_format format, uint32_t rank, const int64_t *dim)
{
    struct operand like = { .present = true };
    like.view.format = format;
    return ng_tensor_init(&like.view, format, NULL, rank, dim) == NG_OK &&
           operand_alloc_like(to, &like, 0);
}

/* ---- Asking. ---- */

/* Pair number p of n ranks: (0, 1), (0, 2) .. */
static void pair_of(int64_t p, int64_t n, int64_t *i, int64_t *j)
{
    *i = 0;
    while (p >= n - 1 - *i)
        p -= n - 1 - (*i)++;
    *j = *i + 1 + p;
}

/* Of a rank that is not asked, so that sums of equally many ranks weigh differently. Of few
 * ranks there are few pairs, and few weights have to be dealt out evenly. */
static uint64_t weight_of(const struct plan *p, int64_t pair, int64_t rank)
{
    if (p->weights == 2 && p->ranks <= 5) {
        int64_t i, j;
        pair_of(pair, p->ranks, &i, &j);
        return 1 + (uint64_t)(rank - (rank > i) - (rank > j)) % 2;
    }
    /* the finalizer of MurmurHash3 */
    uint64_t h = (uint64_t)(pair * NG_MAX_RANKS + rank + 1);
    h = (h ^ h >> 33) * UINT64_C(0xFF51AFD7ED558CCD);
    h = (h ^ h >> 33) * UINT64_C(0xC4CEB9FE1A85EC53);
    return 1 + (h >> 40) % (uint64_t)p->weights;
}

static uint32_t code_of(ng_format format, uint64_t sig, int exp, bool neg)
{
    const ng_cast cast = { .round = NG_ROUND_TIES_TO_EVEN };
    const ng_value v = { .sig = sig, .exp = exp, .neg = neg };
    uint32_t code = 0;
    (void)ng_encode(format, &cast, &v, 0, &code);
    return code;
}

static void fill(const struct plan *p, int64_t elements, const ng_tensor *x)
{
    for (int64_t e = 0; e < elements; e++) {
        const int64_t pair = e % p->pairs;
        const int level = (int)(e / p->pairs % p->levels), ratio = p->ratio[level],
                  unit = ratio > p->top ? p->top - ratio : 0;
        int64_t i, j;
        pair_of(pair, p->ranks, &i, &j);
        for (int64_t r = 0; r < p->ranks; r++) {
            const bool asked = r == i || r == j;
            const uint64_t w = level == LEVEL_ROUNDINGS ? weight_of(p, pair, r) : 1;
            ng_tensor_set(
                x, (const int64_t[]){ r, e },
                code_of(p->format, asked ? 1 : w, asked ? unit + ratio : unit, r == j));
        }
    }
}

int collective_ask(const struct cli *cli, int64_t ranks, int64_t elements, ng_format format,
                   const char *out)
{
    struct plan p;
    struct operand x = { .present = false };
    int code = plan_open(ranks, format, &p);
    if (code)
        return code;
    const int64_t least = p.levels * p.pairs;
    elements = elements ? elements : least * ranks;
    if (elements < least)
        return cli_fail(EXIT_USAGE, "--elements is %lld; wanted: at least %lld, all pairs once",
                        (long long)elements, (long long)least);
    const int64_t dim[] = { ranks, elements };
    code = check_writable(&out, 1);
    if (!code && !alloc(&x, format, 2, dim))
        code = cli_fail(EXIT_INTERNAL, "out of memory");
    if (!code) {
        fill(&p, elements, &x.view);
        code = array_write(out, "x", &x.data);
    }
    operand_free(&x);
    if (code || cli->quiet)
        return code;
    if (cli->json)
        return cli_print_json(
            json_pack("{s:s,s:s,s:I,s:I,s:s,s:I}", "schema", "ng.report/1", "written", out,
                      "ranks", (json_int_t)ranks, "elements", (json_int_t)elements, "format",
                      ng_format_info(format)->text, "pairs", (json_int_t)least));
    printf("wrote %s: %lld ranks of %lld elements, %s; every %lld of them ask of all pairs\n"
           "Give rank r the r-th buffer, reduce by a sum, keep what any rank gets; then:\n"
           "ngauge collective read --x %s=%s --dump D=%s\n",
           out, (long long)ranks, (long long)elements, ng_format_info(format)->text,
           (long long)least, out, ng_format_info(format)->text, ng_format_info(format)->text);
    return 0;
}

/* ---- Reading: what an element asked, and was told. ---- */

/* A code as a number; the questions' numbers and answers are exact doubles. */
static double number_of(ng_format format, uint32_t code)
{
    ng_value v;
    if (ng_decode(format, code, &v) || v.cls != NG_CLASS_FINITE)
        return (double)NAN;
    return ldexp((double)v.sig, v.exp) * (v.neg ? -1 : 1);
}

struct answer {
    int64_t i, j;
    int level;
    double lost; /* the weight that did not survive; NaN: no answer at all */
};

/* A chunk's questions: of every pair how much is lost, at each level. */
struct table {
    int64_t n;
    double *lost[LEVELS]; /* [n][n] */
};

/* Elements that are looked at before all of them are. */
struct few {
    int64_t n;
    int64_t *element;
    struct operand x, d; /* theirs, and what a collective makes of them */
};

struct reading {
    const struct cli *cli;
    struct plan p;
    int64_t elements;
    const ng_tensor *x, *d;
    double *brings;        /* [n]: to the element that was read last */
    struct answer *answer; /* of every element */
    struct few few;
    struct table t;
};

/* What element e asks and was told; false: it asks nothing. */
static bool read_answer(const struct reading *r, int64_t e, struct answer *a)
{
    const int64_t n = r->p.ranks;
    double most = 0, least = HUGE_VAL, all = 0;
    *a = (struct answer){ -1, -1, LEVEL_ADDITIONS, (double)NAN };
    for (int64_t k = 0; k < n; k++) {
        const double v = number_of(r->x->format, code_at(r->x, k * r->elements + e));
        if (isnan(v) || v == 0)
            return false;
        r->brings[k] = v;
        most = fabs(v) > most ? fabs(v) : most;
        least = fabs(v) < least ? fabs(v) : least;
    }
    if (n > 2 && ldexp(least, r->p.ratio[LEVEL_ADDITIONS]) != most)
        a->level = LEVEL_ROUNDINGS;
    const double unit = ldexp(most, -r->p.ratio[a->level]);
    for (int64_t k = 0; k < n; k++) {
        const double v = r->brings[k];
        if (v == most && a->i < 0)
            a->i = k;
        else if (v == -most && a->j < 0)
            a->j = k;
        else if (v >= unit && v <= (double)r->p.weights * unit)
            all += v / unit;
        else
            return false;
    }
    a->lost = all - number_of(r->d->format, code_at(r->d, e)) / unit;
    return a->i >= 0 && a->j >= 0 && a->level < r->p.levels;
}

/* ---- A plan from a table. ---- */

/* A sum of two terms, or a rank. */
struct node {
    int64_t rank; /* of a leaf; else -1 */
    int left, right;
    int64_t first, n; /* its ranks: order[first .. first + n) */
    bool rounded;     /* a term of its own, not the beginning of a longer sum */
};

struct tree {
    struct node node[2 * NG_MAX_RANKS];
    int n;
    int64_t order[NG_MAX_RANKS]; /* ranks, those of every node side by side */
    int64_t spare[NG_MAX_RANKS];
    bool wide; /* nothing was rounded on the way */
};

static double lost_at(const struct reading *r, int level, int64_t i, int64_t j)
{
    return r->t.lost[level][i * r->t.n + j];
}

/* Ranks under the sum that joins i and j. */
static int64_t joined(const struct reading *r, int64_t i, int64_t j)
{
    const double lost = lost_at(r, LEVEL_ADDITIONS, i, j);
    return lost >= 0 && lost <= (double)r->p.ranks ? (int64_t)lost + 2 : -1;
}

/* Ranks that meet the first of n before the last sum come to the front; how many. */
static int64_t part(const struct reading *r, struct tree *t, int64_t *s, int64_t n)
{
    int64_t near = 1, far = 0;
    for (int64_t k = 1; k < n; k++)
        if (joined(r, s[0], s[k]) < n)
            s[near++] = s[k];
        else
            t->spare[far++] = s[k];
    memcpy(s + near, t->spare, (size_t)far * sizeof *s);
    return near;
}

/* order[first .. first + n) as a tree; its node, or -1: no tree of sums of two gives that. */
static int grow(const struct reading *r, struct tree *t, int64_t first, int64_t n)
{
    int64_t *s = t->order + first;
    const int at = t->n++;
    t->node[at] = (struct node){ .rank = -1, .first = first, .n = n, .rounded = true };
    if (n == 1) {
        t->node[at].rank = s[0];
        return at;
    }
    const int64_t near = part(r, t, s, n);
    for (int64_t i = 0; i < near; i++)
        for (int64_t j = near; j < n; j++)
            if (joined(r, s[i], s[j]) != n)
                return -1;
    if (near == n)
        return -1;
    const int left = grow(r, t, first, near), right = grow(r, t, first + near, n - near);
    if (left < 0 || right < 0)
        return -1;
    t->node[at].left = left;
    t->node[at].right = right;
    return at;
}

/* Is a rank below a node? */
static bool holds(const struct tree *t, int node, int64_t rank)
{
    const struct node *x = &t->node[node];
    for (int64_t k = 0; k < x->n; k++)
        if (t->order[x->first + k] == rank)
            return true;
    return false;
}

/* The term with `rank` in it of the sum that goes through `node`, where `rounded` says whether
 * that one is a term itself. */
static int term_with(const struct tree *t, int node, int64_t rank, bool rounded)
{
    while (!rounded && t->node[node].rank < 0) {
        const struct node *x = &t->node[node];
        node = holds(t, x->left, rank) ? x->left : x->right;
        rounded = t->node[node].rounded;
    }
    return node;
}

/* What the ranks of a node but one would lose: the units, by the element that asks. */
static double units(const struct reading *r, const struct tree *t, int node, int64_t but,
                    int64_t pair)
{
    const struct node *x = &t->node[node];
    double sum = 0;
    for (int64_t k = 0; k < x->n; k++) {
        const int64_t rank = t->order[x->first + k];
        sum += rank == but ? 0 : (double)weight_of(&r->p, pair, rank);
    }
    return sum;
}

static int64_t pair_number(int64_t i, int64_t j, int64_t n)
{
    const int64_t a = i < j ? i : j, b = i < j ? j : i;
    return a * (2 * n - a - 1) / 2 + b - a - 1;
}

/* Do the roundings' answers of all pairs across a node go with its two sides' being rounded? */
static bool goes_with(const struct reading *r, const struct tree *t, int node, bool left,
                      bool right)
{
    const struct node *x = &t->node[node], *a = &t->node[x->left], *b = &t->node[x->right];
    for (int64_t p = 0; p < a->n; p++)
        for (int64_t q = 0; q < b->n; q++) {
            const int64_t i = t->order[a->first + p], j = t->order[b->first + q],
                          pair = pair_number(i, j, r->p.ranks);
            const double lost = units(r, t, term_with(t, x->left, i, left), i, pair) +
                                units(r, t, term_with(t, x->right, j, right), j, pair);
            if (lost != lost_at(r, LEVEL_ROUNDINGS, i, j))
                return false;
        }
    return true;
}

/* Nothing is lost by rounding anywhere: the buffers' format is not that of the sums. */
static bool is_wide(const struct reading *r)
{
    for (int64_t i = 0; i < r->p.ranks; i++)
        for (int64_t j = 0; j < r->p.ranks; j++)
            if (i != j && lost_at(r, LEVEL_ROUNDINGS, i, j) != 0)
                return false;
    return true;
}

/* The same sum, its terms exchanged. */
static void turn(struct node *x)
{
    const int left = x->left;
    x->left = x->right;
    x->right = left;
}

/* Which sums are rounded, the innermost first: nodes come after those that hold them. */
static bool find_roundings(const struct reading *r, struct tree *t)
{
    for (int i = t->n - 1; i >= 0; i--) {
        struct node *x = &t->node[i];
        if (x->rank >= 0)
            continue;
        if (goes_with(r, t, i, true, true))
            continue;
        if (goes_with(r, t, i, false, true)) {
            t->node[x->left].rounded = false;
            continue;
        }
        if (!goes_with(r, t, i, true, false))
            return false;
        turn(x); /* a sum begins at its left */
        t->node[x->left].rounded = false;
    }
    return true;
}

/* Does every sum begin with the one before it, so that one sum of all would be the same? */
static bool is_comb(const struct tree *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->node[i].rank < 0 && t->node[t->node[i].left].rank < 0 &&
            t->node[t->node[i].right].rank < 0)
            return false;
    return true;
}

static void all_one_sum(struct tree *t)
{
    for (int i = 0; i < t->n; i++) {
        struct node *x = &t->node[i];
        if (x->rank < 0 && t->node[x->right].rank < 0)
            turn(x);
        if (x->rank < 0 && t->node[x->left].rank < 0)
            t->node[x->left].rounded = false;
    }
}

/* Of the two terms that a sum begins with, the one that is a sum first, as rings have it. */
static void put_in_order(struct tree *t)
{
    for (int i = 0; i < t->n; i++) {
        struct node *x = &t->node[i];
        if (x->rank < 0 && t->node[x->left].rounded && t->node[x->left].rank >= 0 &&
            t->node[x->right].rank < 0)
            turn(x);
    }
}

static bool find_shape(const struct reading *r, struct tree *t)
{
    t->n = 0;
    t->wide = false;
    for (int64_t k = 0; k < r->p.ranks; k++)
        t->order[k] = k;
    if (grow(r, t, 0, r->p.ranks) < 0)
        return false;
    if (r->p.levels < LEVELS || r->p.ranks == 2)
        return true;
    if (!is_wide(r))
        return find_roundings(r, t);
    t->wide = !is_comb(t);
    if (!t->wide)
        all_one_sum(t);
    return true;
}

static bool find_tree(const struct reading *r, struct tree *t)
{
    const bool found = find_shape(r, t);
    if (found)
        put_in_order(t);
    return found;
}

/* ---- As an order. ---- */

struct text {
    char *to;
    size_t n;
};

static void say(struct text *s, const struct tree *t, int node, bool open)
{
    const struct node *x = &t->node[node];
    if (x->rank >= 0) {
        s->n += (size_t)snprintf(s->to + s->n, ORDER_ROOM - s->n, "%lld", (long long)x->rank);
        return;
    }
    if (open)
        s->to[s->n++] = '(';
    say(s, t, x->left, t->node[x->left].rounded);
    s->to[s->n++] = ' ';
    say(s, t, x->right, true);
    if (open)
        s->to[s->n++] = ')';
    s->to[s->n] = 0;
}

static char *order_text(const struct tree *t)
{
    struct text s = { .to = malloc(ORDER_ROOM) };
    if (s.to)
        say(&s, t, 0, false);
    return s.to;
}

/* ---- Held against all elements. ---- */

/* Does a collective give all that is looked at? Most that do not are found out by a few. */
static bool gives_few(const struct reading *r, const ng_all_reduce_op *op)
{
    ng_all_reduce_op some = *op;
    some.elements = r->elements;
    some.element = r->few.element;
    if (ng_all_reduce(r->cli->ctx, &some, &r->few.x.view, &r->few.d.view))
        return false;
    for (int64_t i = 0; i < r->few.n; i++)
        if (code_at(&r->few.d.view, i) != code_at(r->d, r->few.element[i]))
            return false;
    return true;
}

/* What an order gives: codes of d. */
static bool by_order(const struct reading *r, const char *order, bool wide, int64_t chunk,
                     bool look_first, const struct operand *d)
{
    ng_collective c = *ng_collective_find("tree");
    const ng_all_reduce_op op = { .size = sizeof op, .collective = &c, .order = order };
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)chunk);
    (void)ng_collective_set(&c, "algorithm", "explicit");
    (void)ng_collective_set(&c, "chunk", text);
    if (wide)
        (void)ng_collective_set(&c, "wire", "f32");
    return (!look_first || gives_few(r, &op)) &&
           ng_all_reduce(r->cli->ctx, &op, r->x, &d->view) == NG_OK;
}

static int64_t count_same(const struct reading *r, const struct operand *d, int64_t first,
                          int64_t end)
{
    int64_t n = 0;
    for (int64_t e = first; e < end; e++)
        n += code_at(&d->view, e) == code_at(r->d, e);
    return n;
}

/* ---- Elements that have one order. ---- */

struct stretch {
    int64_t first, end; /* elements */
    int64_t earliest;   /* `first` may be as early: elements that both orders give */
    char *order;        /* NULL: none gives them */
    bool wide;
};

struct stretches {
    struct stretch *s;
    int64_t n;
};

/* Elements that ask of all pairs, wherever they begin. */
static int64_t window_of(const struct reading *r)
{
    return r->p.levels * r->p.pairs;
}

/* The answers of the window that begins at `first`. */
static void fill_table(struct reading *r, int64_t first)
{
    const int64_t n = r->p.ranks;
    for (int l = 0; l < r->p.levels; l++)
        for (int64_t i = 0; i < n * n; i++)
            r->t.lost[l][i] = -1; /* no answer */
    for (int64_t e = first; e < first + window_of(r); e++) {
        const struct answer *a = &r->answer[e];
        double *to = r->t.lost[a->level];
        if (!isnan(a->lost))
            to[a->i * n + a->j] = to[a->j * n + a->i] = a->lost;
    }
}

/* The order of the window that begins at `first`, if it has one. */
static bool order_at(struct reading *r, int64_t first, struct tree *t, struct stretch *s)
{
    if (first < 0 || first + window_of(r) > r->elements)
        return false;
    fill_table(r, first);
    if (!find_tree(r, t))
        return false;
    s->order = order_text(t);
    s->wide = t->wide;
    return s->order != NULL;
}

/*
 * The first window with an order at or near `from`: it may begin a little before, for the last
 * elements of the stretch before it may be as this one's order has them too. -1: there is none.
 */
static int64_t next_order(struct reading *r, int64_t from, int64_t least, struct tree *t,
                          struct stretch *s)
{
    for (int64_t first = from; first > least && first > from - window_of(r); first--)
        if (order_at(r, first, t, s))
            return first;
    for (int64_t first = from ? from + 1 : 0; first + window_of(r) <= r->elements; first++)
        if (order_at(r, first, t, s))
            return first;
    return -1;
}

static bool is_as(const struct reading *r, const struct operand *d, int64_t e)
{
    return e >= 0 && e < r->elements && code_at(&d->view, e) == code_at(r->d, e);
}

/* Elements from `from` on that no window has an order for: an order that is known, or none. */
static void close_rest(const struct reading *r, struct stretches *all, int64_t from,
                       int64_t end, const struct operand *d)
{
    struct stretch *s = &all->s[all->n];
    *s = (struct stretch){ .first = from, .end = end, .earliest = from };
    for (int64_t i = 0; i < all->n && !s->order; i++) {
        const struct stretch *k = &all->s[i];
        if (k->order && by_order(r, k->order, k->wide, 0, false, d) &&
            count_same(r, d, from, end) == end - from) {
            s->order = strdup(k->order);
            s->wide = k->wide;
        }
    }
    all->n++;
}

static bool read_stretches(struct reading *r, const struct operand *d, struct stretches *all)
{
    struct tree *t = malloc(sizeof *t);
    int64_t from = 0;
    *all = (struct stretches){ calloc(MOST_STRETCHES, sizeof *all->s), 0 };
    bool ok = t && all->s;
    while (ok && from < r->elements && all->n + 2 < MOST_STRETCHES) {
        struct stretch found = { .order = NULL };
        const int64_t from_before = from;
        const int64_t least = all->n ? all->s[all->n - 1].first : -1,
                      first = next_order(r, from, least, t, &found);
        if (first < 0) {
            close_rest(r, all, from, r->elements, d);
            break;
        }
        ok = by_order(r, found.order, found.wide, 0, false, d);
        if (!ok) {
            free(found.order);
            break;
        }
        found.first = first < from ? from : first;
        while (found.first > from && is_as(r, d, found.first - 1))
            found.first--;
        found.earliest = found.first; /* where the stretch before may have ended as well */
        while (found.earliest > least + 1 && is_as(r, d, found.earliest - 1))
            found.earliest--;
        found.end = first + window_of(r);
        while (is_as(r, d, found.end))
            found.end++;
        from = found.end;
        if (found.first > from_before)
            close_rest(r, all, from_before, found.first, d);
        all->s[all->n++] = found;
    }
    free(t);
    return ok;
}

static void free_stretches(struct stretches *all)
{
    for (int64_t i = 0; i < all->n; i++)
        free(all->s[i].order);
    free(all->s);
}

/* ---- All of it. ---- */

/* An order that counts from the chunk's number and a chunk's length that give everything. */
struct whole {
    char *order;
    int64_t chunk, least; /* lengths that do: some elements may be of either of two chunks */
    bool wide;
    const char *also[MOST_ALSO]; /* collectives that do */
    int n_also;
    bool also_wide;
};

/* "3 (2 1)": "+3 (+2 +1)" */
static char *relative(const char *order)
{
    char *to = malloc(ORDER_ROOM);
    size_t n = 0;
    for (bool number = false; to && *order; order++) {
        const bool digit = *order >= '0' && *order <= '9';
        if (digit && !number)
            to[n++] = '+';
        number = digit;
        to[n++] = *order;
    }
    if (to)
        to[n] = 0;
    return to;
}

static bool gives_all(const struct reading *r, const char *order, bool wide, int64_t chunk,
                      const struct operand *d)
{
    return by_order(r, order, wide, chunk, true, d) &&
           count_same(r, d, 0, r->elements) == r->elements;
}

/* The length of chunks where nobody says another. */
static int64_t even_chunk(const struct reading *r)
{
    return (r->elements + r->p.ranks - 1) / r->p.ranks;
}

static void find_whole(const struct reading *r, const struct stretches *all,
                       const struct operand *d, struct whole *w)
{
    const struct stretch *s = all->s;
    *w = (struct whole){ .order = NULL };
    if (all->n && s[0].order && gives_all(r, s[0].order, s[0].wide, 0, d)) {
        w->order = strdup(s[0].order);
        w->wide = s[0].wide;
        return;
    }
    if (all->n < 2 || !s[0].order)
        return;
    w->order = relative(s[0].order); /* the first chunk is number 0 */
    w->wide = s[0].wide;
    for (int64_t k = s[1].first; w->order && k >= s[1].earliest && k > 0; k--)
        if (gives_all(r, w->order, w->wide, k, d)) {
            w->chunk = w->chunk ? w->chunk : k;
            w->least = k;
        } else if (w->chunk) {
            break;
        }
    const int64_t even = even_chunk(r);
    if (w->least <= even && even <= w->chunk)
        w->chunk = even; /* the one that anybody would take */
    if (w->chunk)
        return;
    free(w->order);
    w->order = NULL;
}

static bool collective_gives(const struct reading *r, ng_collective *c, int64_t chunk,
                             const struct operand *d)
{
    const ng_all_reduce_op op = { .size = sizeof op, .collective = c };
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)chunk);
    (void)ng_collective_set(c, "chunk", text);
    return gives_few(r, &op) && ng_all_reduce(r->cli->ctx, &op, r->x, &d->view) == NG_OK &&
           count_same(r, d, 0, r->elements) == r->elements;
}

static void find_also(const struct reading *r, const struct stretches *all,
                      const struct operand *d, struct whole *w)
{
    static const char *const wires[] = { "given", "f32" };
    const bool chunks = all->n > 1;
    const int64_t first = chunks ? all->s[1].earliest : 0, last = chunks ? all->s[1].first : 0;
    for (int wire = 0; wire < 2 && !w->n_also; wire++)
        for (size_t i = 0; ng_collective_at(i); i++) {
            ng_collective c = *ng_collective_at(i);
            bool all_of_it = false;
            (void)ng_collective_set(&c, "wire", wires[wire]);
            if (strcmp(c.name, "exact") == 0)
                continue;
            all_of_it = collective_gives(r, &c, 0, d);
            for (int64_t k = last; chunks && !all_of_it && k >= first && k > 0; k--)
                all_of_it = collective_gives(r, &c, k, d);
            if (all_of_it && w->n_also < MOST_ALSO)
                w->also[w->n_also++] = ng_collective_at(i)->name;
            w->also_wide = wire == 1;
        }
}

static int64_t count_explained(const struct reading *r, const struct stretches *all,
                               const struct operand *d)
{
    int64_t n = 0;
    for (int64_t i = 0; i < all->n; i++) {
        const struct stretch *s = &all->s[i];
        if (s->order && by_order(r, s->order, s->wide, 0, false, d))
            n += count_same(r, d, s->first, s->end);
    }
    return n;
}

static void print_reading(const struct reading *r, const struct stretches *all,
                          const struct whole *w, int64_t explained)
{
    printf("%lld ranks, %lld elements in %s\n", (long long)r->p.ranks, (long long)r->elements,
           ng_format_info(r->x->format)->text);
    for (int64_t i = 0; i < all->n; i++) {
        const struct stretch *s = &all->s[i];
        if (i == (int64_t)r->cli->max_report && i + 1 < all->n && !r->cli->verbose) {
            printf("  ... and %lld more\n", (long long)(all->n - i));
            break;
        }
        printf("  elements %lld to %lld: %s%s\n", (long long)s->first, (long long)s->end - 1,
               s->order ? s->order : "no order of additions gives these",
               s->wide ? ", in FP32" : "");
    }
    if (w->order && w->order[strspn(w->order, "(")] == '+')
        printf("from chunk to chunk of %lld elements every rank is one further%s:\n",
               (long long)w->chunk, w->least < w->chunk ? " (or a few less)" : "");
    if (w->order)
        printf("as a collective: --collective tree --set algorithm=explicit%s",
               w->wide ? " --set wire=f32" : "");
    if (w->order && w->chunk)
        printf(" --set chunk=%lld", (long long)w->chunk);
    if (w->order)
        printf(" --order \"%s\"\n", w->order);
    for (int i = 0; i < w->n_also; i++)
        printf("%s%s", i ? " " : "which gives what these do: ", w->also[i]);
    if (w->n_also)
        printf("%s\n", w->also_wide ? ", with wire=f32" : "");
    printf("verdict: %lld of %lld elements follow from %s\n", (long long)explained,
           (long long)r->elements,
           !explained               ? "any order"
           : w->n_also && !w->order ? "these collectives"
           : all->n == 1            ? "this order"
                                    : "these orders");
}

/* Elements that two neighbours' orders give go where chunks of one length end. */
static void settle(struct stretches *all, int64_t chunk)
{
    for (int64_t i = 1; i < all->n; i++) {
        struct stretch *s = &all->s[i];
        if (s->earliest <= i * chunk && i * chunk <= s->first)
            s->first = s[-1].end = i * chunk;
    }
}

static json_t *reading_json(const struct reading *r, const struct stretches *all,
                            const struct whole *w, int64_t explained)
{
    json_t *list = json_array(), *also = json_array();
    for (int64_t i = 0; i < all->n; i++)
        json_array_append_new(list, json_pack("{s:I,s:I,s:s?,s:b}", "first",
                                              (json_int_t)all->s[i].first, "end",
                                              (json_int_t)all->s[i].end, "order",
                                              all->s[i].order, "wide", all->s[i].wide));
    for (int i = 0; i < w->n_also; i++)
        json_array_append_new(also, json_string(w->also[i]));
    return json_pack("{s:s,s:I,s:I,s:I,s:o,s:s?,s:I,s:I,s:b,s:o}", "schema", "ng.report/1",
                     "ranks", (json_int_t)r->p.ranks, "elements", (json_int_t)r->elements,
                     "explained", (json_int_t)explained, "stretches", list, "order", w->order,
                     "chunk", (json_int_t)w->chunk, "least_chunk", (json_int_t)w->least, "wide",
                     w->wide, "also", also);
}

static int read_answers(struct reading *r)
{
    for (int64_t e = 0; e < r->elements; e++) {
        if (!read_answer(r, e, &r->answer[e]))
            return cli_fail(EXIT_REFUSED,
                            "x: element %lld asks nothing; wanted: buffers that ngauge "
                            "collective ask wrote",
                            (long long)e);
    }
    return 0;
}

static bool open_few(struct reading *r)
{
    struct few *f = &r->few;
    const int64_t step = 1 + r->elements / FEW;
    f->n = (r->elements + step - 1) / step;
    f->element = calloc((size_t)f->n, sizeof *f->element);
    const int64_t dim[] = { r->p.ranks, f->n };
    if (!f->element || !alloc(&f->x, r->x->format, 2, dim) ||
        !alloc(&f->d, r->d->format, 1, dim + 1))
        return false;
    for (int64_t i = 0; i < f->n; i++) {
        f->element[i] = i * step;
        for (int64_t k = 0; k < r->p.ranks; k++)
            ng_tensor_set(&f->x.view, (const int64_t[]){ k, i },
                          code_at(r->x, k * r->elements + i * step));
    }
    return true;
}

static int open_reading(const struct cli *cli, const struct one_case *c, struct reading *r)
{
    const struct operand *x = &c->block->t[REDUCE_X], *d = &c->block->t[REDUCE_D];
    *r = (struct reading){ .cli = cli, .x = &x->view, .d = &d->view };
    if (x->view.rank != 2 || d->view.rank != 1 || d->view.dim[0] != x->view.dim[1])
        return cli_fail(EXIT_REFUSED,
                        "x has shape %s and the dump %s; wanted: [ranks, elements] and "
                        "[elements]",
                        io_shape(x->data.rank, x->data.dim).text,
                        io_shape(d->data.rank, d->data.dim).text);
    int code = plan_open(x->view.dim[0], x->view.format, &r->p);
    if (code)
        return code;
    r->elements = x->view.dim[1];
    if (r->elements < r->p.levels * r->p.pairs)
        return cli_fail(EXIT_REFUSED, "x has %lld elements; wanted: at least %lld, all pairs",
                        (long long)r->elements, (long long)(r->p.levels * r->p.pairs));
    const size_t n = (size_t)r->p.ranks;
    r->t.n = r->p.ranks;
    r->brings = calloc(n, sizeof *r->brings);
    r->answer = calloc((size_t)r->elements, sizeof *r->answer);
    bool ok = r->brings && r->answer && open_few(r);
    for (int l = 0; l < LEVELS && ok; l++) {
        r->t.lost[l] = calloc(n * n, sizeof *r->t.lost[l]);
        ok = r->t.lost[l] != NULL;
    }
    return ok ? read_answers(r) : cli_fail(EXIT_INTERNAL, "out of memory");
}

int collective_read(const struct cli *cli, const struct one_case *c)
{
    struct reading r;
    struct stretches all = { NULL, 0 };
    struct whole w = { .order = NULL };
    struct operand d = { .present = false };
    int64_t explained = 0;
    int code = open_reading(cli, c, &r);
    if (!code && !operand_alloc_like(&d, &c->block->t[REDUCE_D], 0))
        code = cli_fail(EXIT_INTERNAL, "out of memory");
    const ng_all_reduce_op any = { .size = sizeof any,
                                   .collective = ng_collective_find("tree") };
    const ng_status s = code ? NG_OK : ng_all_reduce(cli->ctx, &any, r.x, &d.view);
    if (s)
        code = cli_refused(cli, s, ""); /* d's format */
    if (!code && !read_stretches(&r, &d, &all))
        code = cli_fail(EXIT_INTERNAL, "out of memory");
    if (!code) {
        explained = count_explained(&r, &all, &d);
        find_whole(&r, &all, &d, &w);
        find_also(&r, &all, &d, &w);
        if (w.order || w.n_also)
            explained = r.elements;
        settle(&all, w.chunk ? w.chunk : even_chunk(&r));
        if (cli->json)
            code = cli_print_json(reading_json(&r, &all, &w, explained));
        else
            print_reading(&r, &all, &w, explained);
        code = code ? code : explained == r.elements ? EXIT_EQUAL : EXIT_DIFFERS;
    }
    free(w.order);
    free_stretches(&all);
    operand_free(&d);
    free(r.brings);
    free(r.answer);
    free(r.few.element);
    operand_free(&r.few.x);
    operand_free(&r.few.d);
    for (int l = 0; l < LEVELS; l++)
        free(r.t.lost[l]);
    return code;
}
