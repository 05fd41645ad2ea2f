/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of reductions over ranks. collective_plan.h; items are those of numerics.md 11.12. */
#include "collective_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t setting(const struct reduce_job *j, ng_collective_param p)
{
    return j->set[p].value;
}

/* ---- Does it go together? ---- */

static bool is_power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static ng_status refuse(ng_ctx *ctx, const struct reduce_job *j, const char *what, int64_t n,
                        const char *wanted)
{
    char name[24];
    (void)ng_collective_param_print(NG_COLLECTIVE_ALGORITHM,
                                    setting(j, NG_COLLECTIVE_ALGORITHM), name, sizeof name);
    return ng_fail(ctx, NG_ERR_PROFILE, "all_reduce: %s of %s is %lld; wanted: %s", what, name,
                   (long long)n, wanted);
}

static ng_status check_level(ng_ctx *ctx, const struct reduce_job *j, int32_t algorithm,
                             const char *what, int64_t n, int64_t chip)
{
    const bool chips = algorithm == NG_ALGORITHM_MESH || algorithm == NG_ALGORITHM_RDH;
    if (algorithm == NG_ALGORITHM_KANGA_RING && n % 2)
        return refuse(ctx, j, what, n, "an even number, for kanga_ring");
    if (chips && n % chip)
        return refuse(ctx, j, what, n, "a multiple of chip");
    if (algorithm == NG_ALGORITHM_RDH && !is_power_of_two(n / chip))
        return refuse(ctx, j, what, n, "chip times a power of two, for rdh");
    return NG_OK;
}

/* Where an order stops being one. */
struct order {
    ng_ctx *ctx;
    const char *text, *at;
    int64_t ranks, found;
    bool relative; /* as the first number is */
    bool seen[NG_MAX_RANKS];
};

static ng_status wrong(const struct order *o, const char *wanted)
{
    return ng_fail(o->ctx, NG_ERR_ARGUMENT,
                   "all_reduce: op.order is '%.40s', at character %d '%.8s'; wanted: %s",
                   o->text, (int)(o->at - o->text), o->at, wanted);
}

static ng_status check_rank(struct order *o)
{
    const bool relative = *o->at == '+';
    const char *digits = o->at + relative;
    if (*digits < '0' || *digits > '9')
        return wrong(o, "a rank, as 3 or +3, or a parenthesis");
    if (o->found++ == 0)
        o->relative = relative;
    if (relative != o->relative)
        return wrong(o, "all numbers with a +, or none");
    char *after;
    const long long rank = strtoll(digits, &after, 10);
    if (after - digits > 6 || rank >= o->ranks)
        return wrong(o, "a rank below the number of ranks");
    if (o->seen[rank])
        return wrong(o, "every rank once");
    o->seen[rank] = true;
    o->at = after;
    return NG_OK;
}

static ng_status check_list(struct order *o, int64_t deep)
{
    int64_t terms = 0;
    while (*o->at && *o->at != ')') {
        ng_status s = NG_OK;
        if (*o->at == ' ') {
            o->at++;
            continue;
        }
        terms++;
        if (*o->at != '(') {
            s = check_rank(o);
        } else if (deep > o->ranks) { /* each holds two terms */
            return wrong(o, "fewer parentheses than ranks");
        } else {
            o->at++;
            s = check_list(o, deep + 1);
            if (!s && *o->at != ')')
                s = wrong(o, "a closing parenthesis");
            o->at += !s;
        }
        if (s)
            return s;
    }
    return terms > 1 || (deep == 0 && o->ranks == 1 && terms)
               ? NG_OK
               : wrong(o, "two terms or more in every sum");
}

static ng_status check_order(ng_ctx *ctx, const struct reduce_job *j)
{
    const char *text = j->op->order;
    const bool read = setting(j, NG_COLLECTIVE_ALGORITHM) == NG_ALGORITHM_EXPLICIT;
    struct order o = { .ctx = ctx, .text = text, .at = text, .ranks = j->ranks };
    if (!read)
        return text ? ng_fail(ctx, NG_ERR_ARGUMENT,
                              "all_reduce: op.order is '%.40s' and the algorithm is not "
                              "explicit; wanted: NULL",
                              text)
                    : NG_OK;
    if (!text)
        return ng_fail(
            ctx, NG_ERR_ARGUMENT,
            "all_reduce: op.order is NULL; wanted: an order, as \"((+1 +2) +3) +0\", "
            "for the algorithm is explicit");
    const ng_status s = check_list(&o, 0);
    if (s)
        return s;
    if (*o.at)
        return wrong(&o, "its end, or an opening parenthesis before");
    if (o.found != j->ranks)
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "all_reduce: op.order has %lld ranks; wanted: all %lld",
                       (long long)o.found, (long long)j->ranks);
    return NG_OK;
}

ng_status ng_plan_check(ng_ctx *ctx, const struct reduce_job *j)
{
    const int64_t n = j->ranks, m = setting(j, NG_COLLECTIVE_NODE);
    const int32_t algorithm = setting(j, NG_COLLECTIVE_ALGORITHM);
    const int64_t chip = setting(j, NG_COLLECTIVE_CHIP);
    if (m && n % m)
        return ng_fail(ctx, NG_ERR_PROFILE,
                       "all_reduce: %lld ranks are no whole nodes of %lld; wanted: a multiple "
                       "of node",
                       (long long)n, (long long)m);
    ng_status s = check_level(ctx, j, algorithm, m ? "ranks of a node" : "the number of ranks",
                              m ? m : n, chip);
    if (!s && m)
        s = check_level(ctx, j, setting(j, NG_COLLECTIVE_BETWEEN), "the number of nodes", n / m,
                        1);
    return s ? s : check_order(ctx, j);
}

/* ---- Building. ---- */

/* A level's terms are ranks from `first` on, or nodes of `node` ranks. */
struct level {
    const struct reduce_job *j;
    struct reduce_plan *p;
    int64_t n, first, node, chip;
    int64_t chunk, own; /* in the level's own numbers */
    int64_t node_chunk; /* of the ranks of a node */
    int32_t algorithm;
    int64_t *height; /* of the stack */
};

/* Terms so far of sums that are open. */
struct sum {
    int64_t terms;
    int64_t begin; /* step that opened it */
};

static void step(const struct level *l, int32_t s)
{
    if (l->p->step)
        l->p->step[l->p->n] = s;
    l->p->n++;
    *l->height += s >= 0 ? 1 : s == PLAN_ADD ? -1 : 0;
    if (*l->height > l->p->depth)
        l->p->depth = *l->height;
}

static bool rounds_pairs(const struct level *l)
{
    return setting(l->j, NG_COLLECTIVE_SUM) == NG_COLLECTIVE_PAIRS;
}

static bool rounds(const struct level *l)
{
    return l->j->op->reduction == NG_REDUCTION_SUM;
}

static struct sum open(const struct level *l)
{
    const struct sum s = { 0, l->p->n };
    step(l, PLAN_OPEN);
    return s;
}

/* The term on top of the stack. */
static void take(const struct level *l, struct sum *s)
{
    if (s->terms++ == 0)
        return;
    step(l, PLAN_ADD);
    if (rounds(l) && rounds_pairs(l))
        step(l, PLAN_ROUND);
}

static void close(const struct level *l, const struct sum *s)
{
    if (s->terms > 1 && rounds(l) && !rounds_pairs(l))
        step(l, PLAN_ROUND);
    if (s->terms > 1) {
        step(l, PLAN_CLOSE);
        return;
    }
    l->p->n--; /* one term is no sum */
    int32_t *at = l->p->step ? l->p->step + s->begin : NULL;
    if (at)
        memmove(at, at + 1, (size_t)(l->p->n - s->begin) * sizeof *at);
}

static void build(const struct level *l);

static void term(const struct level *l, int64_t i)
{
    if (!l->node) {
        step(l, (int32_t)(l->first + i % l->n));
        return;
    }
    struct level in = *l;
    in.n = l->node;
    in.first = i % l->n * l->node;
    in.node = 0;
    in.chip = setting(l->j, NG_COLLECTIVE_CHIP);
    in.chunk = l->node_chunk;
    in.own = l->j->op->rank % l->node;
    in.algorithm = setting(l->j, NG_COLLECTIVE_ALGORITHM);
    build(&in);
}

static void add_term(const struct level *l, struct sum *s, int64_t i)
{
    term(l, i);
    take(l, s);
}

/* Sums inside each other, the innermost first: they open all at once. */
static void ring(const struct level *l)
{
    for (int64_t i = 2; i <= l->n; i++)
        step(l, PLAN_OPEN);
    struct sum s = { 0, 0 };
    add_term(l, &s, l->chunk + 1);
    for (int64_t i = 2; i <= l->n; i++) {
        s.terms = 1;
        add_term(l, &s, l->chunk + i);
        close(l, &s);
    }
}

static void kanga_ring(const struct level *l)
{
    const bool last = setting(l->j, NG_COLLECTIVE_RECEIVED) == NG_RECEIVED_LAST;
    const int64_t pairs = l->n / 2, role = l->chunk % 2;
    if (last) { /* the primary and the secondary of the last hop come first, and so on */
        for (int64_t i = pairs; i >= 1; i--) {
            const int64_t pair = (l->chunk / 2 + i) % pairs;
            step(l, PLAN_OPEN);
            struct sum s = { 0, 0 };
            add_term(l, &s, 2 * pair + role);
            add_term(l, &s, 2 * pair + 1 - role);
        }
        struct sum s = { 2, 0 };
        close(l, &s);
        for (int64_t i = 2; i <= pairs; i++) {
            take(l, &s);
            close(l, &s);
        }
        return;
    }
    for (int64_t i = 1; i <= pairs; i++)
        step(l, PLAN_OPEN);
    struct sum s = { 0, 0 };
    for (int64_t i = 1; i <= pairs; i++) {
        const int64_t pair = (l->chunk / 2 + i) % pairs;
        add_term(l, &s, 2 * pair + role);
        add_term(l, &s, 2 * pair + 1 - role);
        close(l, &s);
        s.terms = 1;
    }
}

static void chip_sum(const struct level *l, int64_t chip, int64_t from)
{
    struct sum s = open(l);
    for (int64_t i = 0; i < l->chip; i++)
        add_term(l, &s, chip * l->chip + (from + i) % l->chip);
    close(l, &s);
}

static void mesh(const struct level *l)
{
    const bool owner = setting(l->j, NG_COLLECTIVE_START) == NG_START_OWNER;
    const int64_t chips = l->n / l->chip, first = owner ? l->chunk / l->chip : 0,
                  from = owner ? l->chunk % l->chip : 0;
    struct sum s = open(l);
    for (int64_t i = 0; i < chips; i++) {
        chip_sum(l, (first + i) % chips, from);
        take(l, &s);
    }
    close(l, &s);
}

/* A chip after `t` steps; `distance`: of its partner in the last of them. */
static void halves(const struct level *l, int64_t chip, int64_t t, int64_t distance, bool near)
{
    if (t == 0) {
        chip_sum(l, chip, 0);
        return;
    }
    struct sum s = open(l);
    for (int64_t partner = 0; partner <= distance; partner += distance) {
        halves(l, chip ^ partner, t - 1, near ? distance / 2 : distance * 2, near);
        take(l, &s);
    }
    close(l, &s);
}

static void rdh(const struct level *l)
{
    const bool near = setting(l->j, NG_COLLECTIVE_HALVING) == NG_HALVING_NEAR;
    const int64_t chips = l->n / l->chip;
    int64_t t = 0;
    while ((int64_t)1 << t < chips)
        t++;
    halves(l, 0, t, near ? chips / 2 : 1, near);
}

static void tree(const struct level *l, int64_t low, int64_t high)
{
    const int64_t middle = low + (high - low + 1) / 2;
    if (high - low == 1) {
        term(l, low);
        return;
    }
    struct sum s = open(l);
    tree(l, low, middle);
    take(l, &s);
    tree(l, middle, high);
    take(l, &s);
    close(l, &s);
}

static void single_step(const struct level *l)
{
    const int32_t start = setting(l->j, NG_COLLECTIVE_START);
    const int64_t from = start == NG_START_OWNER ? l->chunk
                         : start == NG_START_OWN ? l->own
                                                 : 0;
    struct sum s = open(l);
    for (int64_t i = 0; i < l->n; i++)
        add_term(l, &s, from + i);
    close(l, &s);
}

/* Terms from `at` to a parenthesis or the end; where that is. */
static const char *listed(const struct level *l, const char *at)
{
    struct sum s = open(l);
    while (*at && *at != ')') {
        if (*at == ' ') {
            at++;
            continue;
        }
        if (*at == '(') {
            at = listed(l, at + 1) + 1;
        } else {
            char *after;
            const int64_t relative = *at == '+', rank = strtoll(at + relative, &after, 10);
            term(l, rank + (relative ? l->chunk : 0));
            at = after;
        }
        take(l, &s);
    }
    close(l, &s);
    return at;
}

static void build(const struct level *l)
{
    switch ((ng_collective_algorithm)l->algorithm) {
    case NG_ALGORITHM_RING: ring(l); return;
    case NG_ALGORITHM_KANGA_RING: kanga_ring(l); return;
    case NG_ALGORITHM_MESH: mesh(l); return;
    case NG_ALGORITHM_RDH: rdh(l); return;
    case NG_ALGORITHM_TREE: tree(l, 0, l->n); return;
    case NG_ALGORITHM_SINGLE_STEP: single_step(l); return;
    case NG_ALGORITHM_EXPLICIT: (void)listed(l, l->j->op->order); return;
    case NG_ALGORITHM_REAL: return;
    }
}

bool ng_plan_has_chunks(const struct reduce_job *j)
{
    return !ng_collective_param_is_idle(j->op->collective, NG_COLLECTIVE_CHUNK, true);
}

/* A rank is pushed, added, rounded; its sum opened and closed. A sum of one term holds a step
 * for a while, and chips may be ranks. */
int64_t ng_plan_room(int64_t ranks)
{
    return 6 * ranks + 4;
}

void ng_plan_build(const struct reduce_job *j, int64_t chunk, struct reduce_plan *p)
{
    const int64_t m = setting(j, NG_COLLECTIVE_NODE), nodes = m ? j->ranks / m : 0;
    int64_t height = 0;
    const struct level all = { .j = j,
                               .p = p,
                               .n = m ? nodes : j->ranks,
                               .node = m,
                               .chip = m ? 1 : setting(j, NG_COLLECTIVE_CHIP),
                               .chunk = m ? chunk % nodes : chunk,
                               .node_chunk = m ? chunk / nodes : 0,
                               .own = m ? j->op->rank / m : j->op->rank,
                               .algorithm = setting(j, m ? NG_COLLECTIVE_BETWEEN
                                                         : NG_COLLECTIVE_ALGORITHM),
                               .height = &height };
    p->n = 0;
    p->depth = 0;
    build(&all);
}

/* ---- Text. ---- */

size_t ng_plan_print(const struct reduce_plan *p, char *buffer, size_t bytes)
{
    size_t at = 0;
    bool space = false;
    int deep = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const int32_t s = p->step[i];
        char text[16] = "";
        if (s >= 0)
            (void)snprintf(text, sizeof text, "%s%d", space ? " " : "", (int)s);
        else if (s == PLAN_OPEN && deep++ > 0) /* the whole has none */
            (void)snprintf(text, sizeof text, "%s(", space ? " " : "");
        else if (s == PLAN_CLOSE && --deep > 0)
            (void)snprintf(text, sizeof text, ")");
        space = s == PLAN_OPEN ? false : space || s >= 0;
        const int n =
            snprintf(at < bytes ? buffer + at : NULL, at < bytes ? bytes - at : 0, "%s", text);
        at += n < 0 ? 0 : (size_t)n;
    }
    return at;
}
