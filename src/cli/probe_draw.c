/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands that ask a unit how it adds.
 *
 * A large number M and -M, at two places of K, swamp what is added between them, so that what
 * survives says which products met before which (Xie and others, FPRev, USENIX ATC 2025): that
 * finds chains, tiles, groups and their order. Numbers within a few binades of one another
 * round at every addition, and tell widths and roundings; ends of the range tell floors,
 * flushes and overflows. Every kind of row of A meets every kind of column of B.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "probe.h"

enum kind {
    ONES,   /* one power of two, everywhere */
    SIGNED, /* with either sign */
    MASK,   /* the same number everywhere, but M and -M at a pair of places */
    PEAK,   /* a large power of two at such a pair, a small one elsewhere */
    NEEDLE, /* zero but at a few places */
    EVEN,   /* zero but for a run of numbers whose sum is a power of two, by bits that cancel */
    WINDOW, /* any numbers of a few binades */
    LOW,    /* the smallest ones */
    HIGH,   /* the largest ones */
    ANY,    /* any code that is a number */
    SPECIAL /* Inf and NaN, and zeros of both signs, among others */
};

/* How often a kind is drawn for a row of A, for a column of B. */
static const struct {
    enum kind kind;
    uint32_t a, b;
} weights[] = {
    { ONES, 1, 6 },    { SIGNED, 1, 3 }, { MASK, 12, 0 },   { PEAK, 0, 4 },
    { NEEDLE, 12, 2 }, { EVEN, 8, 0 },   { WINDOW, 7, 7 },  { LOW, 3, 3 },
    { HIGH, 3, 3 },    { ANY, 2, 2 },    { SPECIAL, 2, 1 },
};

enum {
    PAIRS = 8,     /* places of M and -M that rows and columns share */
    MOST_EVEN = 5, /* a run of EVEN has at most 2^5 numbers */
    SPARE = 4      /* of so many rows one may be replaced */
};

struct pair {
    int64_t at[2];
};

struct line {
    ng_tensor *t;
    int64_t index[2]; /* of the line; index[axis] runs */
    uint32_t axis;
    int64_t k;
    uint64_t *state;
    const struct pair *pair;
    int lowest, highest; /* exponents of the least subnormal, of the largest number */
    int normal;          /* of the least number with a whole significand */
    int end;             /* of the last bit of the smallest result */
    int partner;         /* of B, so that A's normal numbers reach that end; INT_MIN: none */
    int bits;            /* of a significand */
};

/* Draws are taken one a statement: C leaves the order of arguments open. */
static int pick(struct line *l, int from, int to)
{
    return to <= from ? from : from + (int)draw_below(l->state, (uint32_t)(to - from + 1));
}

static void put_code(struct line *l, int64_t at, uint32_t code)
{
    l->index[l->axis] = at;
    ng_tensor_set(l->t, l->index, code);
}

/* sig (one of `bits` bits, its first set) with its highest bit at 2^exp. */
static void put(struct line *l, int64_t at, bool neg, uint64_t sig, int exp)
{
    const ng_cast cast = { .round = NG_ROUND_TIES_TO_EVEN, .overflow = NG_OVERFLOW_SATURATE };
    const ng_value v = { .sig = sig, .exp = exp - (l->bits - 1), .neg = neg };
    uint32_t code = 0;
    (void)ng_encode(l->t->format, &cast, &v, 0, &code);
    put_code(l, at, code);
}

static uint64_t one(const struct line *l)
{
    return UINT64_C(1) << (l->bits - 1);
}

static uint64_t any_sig(struct line *l)
{
    return one(l) | (draw(l->state) & (one(l) - 1));
}

static bool coin(struct line *l)
{
    return draw(l->state) & 1;
}

/* Two places: any, or 2^n apart, as lanes, rows, chains and tiles are. */
static void pick_pair(uint64_t *state, int64_t k, int64_t *at)
{
    const int64_t apart = (int64_t)1 << draw_below(state, 10);
    at[0] = draw_below(state, (uint32_t)k);
    at[1] = draw(state) & 1 ? at[0] + apart : draw_below(state, (uint32_t)k);
    if (at[1] >= k || at[1] == at[0])
        at[1] = (at[0] + 1 + draw_below(state, (uint32_t)(k - 1))) % k;
}

/* Exponents that a line may have, so that its sums are about an accumulator's width: all of a
 * narrow format's; of a wide one a part, about 2^0 for the most part. */
static void pick_reach(struct line *l, int *from, int *to)
{
    enum {
        WIDTH = 48
    };
    *from = l->lowest;
    *to = l->highest;
    if (*to - *from <= WIDTH)
        return;
    *from = draw_below(l->state, 4) ? -WIDTH / 2 : pick(l, l->lowest, l->highest - WIDTH);
    *to = *from + WIDTH;
}

static void draw_mask(struct line *l, uint32_t which)
{
    int64_t at[2];
    int from, to;
    pick_reach(l, &from, &to);
    const int small = pick(l, from, to - (to - from) / 2);
    const int large = pick(l, small + (to - from) / 4, to);
    const bool neg = coin(l), round = coin(l);
    const uint64_t sig = round ? one(l) : any_sig(l);
    if (coin(l))
        memcpy(at, l->pair[which % PAIRS].at, sizeof at);
    else
        pick_pair(l->state, l->k, at);
    for (int64_t i = 0; i < l->k; i++)
        put(l, i, false, sig, small);
    put(l, at[0], neg, one(l), large);
    put(l, at[1], !neg, one(l), large);
}

static void draw_peak(struct line *l, uint32_t which)
{
    const int64_t *at = l->pair[which % PAIRS].at;
    int from, to;
    pick_reach(l, &from, &to);
    const int small = pick(l, from, (from + to) / 2), large = pick(l, small, to);
    for (int64_t i = 0; i < l->k; i++)
        put(l, i, false, one(l), i == at[0] || i == at[1] ? large : small);
}

/* Large, small and the large one taken away again: at three places near or far, and a few more
 * small ones. */
static void draw_needle(struct line *l)
{
    int64_t at[2];
    int from, to;
    pick_reach(l, &from, &to);
    const int large = pick(l, (from + to) / 2, to), more = pick(l, 1, 4);
    const bool neg = coin(l);
    for (int64_t i = 0; i < l->k; i++)
        put_code(l, i, 0);
    pick_pair(l->state, l->k, at);
    for (int i = 0; i < more; i++) {
        const int64_t near = at[0] + pick(l, -4, 4);
        const int64_t where = coin(l) && near >= 0 && near < l->k
                                  ? near
                                  : (int64_t)draw_below(l->state, (uint32_t)l->k);
        const bool minus = coin(l), power = coin(l);
        const uint64_t sig = power ? one(l) : any_sig(l);
        put(l, where, minus, sig, pick(l, large - 30 < from ? from : large - 30, large));
    }
    put(l, at[0], neg, one(l), large);
    put(l, at[1], !neg, one(l), large);
}

/*
 * 2^n numbers that are 1 + x and 1 - x in turn, times a power of two: what is lost of each
 * below its last kept bit takes one unit from the sum. Where the formats reach so far, half of
 * them sum to the last unit of a result, or to a tie beside it, and tell where the bits of
 * small sums end.
 */
static void draw_even(struct line *l)
{
    const bool low = l->partner > INT_MIN && coin(l), tie = coin(l), neg = coin(l);
    const int j = pick(l, 1, MOST_EVEN);
    const int64_t n = (int64_t)1 << j, runs = l->k / n;
    const int64_t first = runs ? n * draw_below(l->state, (uint32_t)runs) : 0;
    const uint64_t x = UINT64_C(1) << pick(l, 0, l->bits - 2);
    int from, to;
    pick_reach(l, &from, &to);
    const int last = l->end - l->partner; /* of the result, as this operand has it */
    const int exp = low ? last - j - tie : pick(l, from < l->normal ? l->normal : from, to - 1);
    for (int64_t i = 0; i < l->k; i++)
        put_code(l, i, 0);
    for (int64_t i = 0; i < n && first + i < l->k; i++)
        put(l, first + i, neg, i & 1 ? one(l) - x : one(l) + x, exp);
    if (low && tie)
        put(l, first ? first - 1 : l->k - 1, neg, one(l), last);
}

static void draw_window(struct line *l, int from, int to)
{
    for (int64_t i = 0; i < l->k; i++) {
        const bool neg = coin(l);
        const uint64_t sig = any_sig(l);
        put(l, i, neg, sig, pick(l, from, to));
    }
}

/* About 2^0 most of the time: sums of such are what accumulators are made for. */
static void draw_middle(struct line *l)
{
    const int width = 1 << pick(l, 0, 5);
    const int middle = l->lowest > -8 || coin(l) ? (l->lowest + l->highest) / 2 : 0;
    int from = middle - width / 2, to = from + width;
    from = from < l->lowest ? l->lowest : from;
    to = to > l->highest ? l->highest : to;
    draw_window(l, from, to);
}

static void draw_any(struct line *l)
{
    const ng_format_spec *f = ng_format_info(l->t->format);
    for (int64_t i = 0; i < l->k; i++) {
        ng_value v;
        uint32_t code;
        do {
            code = (uint32_t)draw(l->state) & (uint32_t)((UINT64_C(1) << f->bits) - 1);
            code = code >> f->low_bits << f->low_bits;
            (void)ng_decode(f->format, code, &v);
        } while (v.cls != NG_CLASS_FINITE);
        put_code(l, i, code);
    }
}

/* Few of them in a line: one NaN ends all. */
static void draw_special(struct line *l)
{
    const ng_format_spec *f = ng_format_info(l->t->format);
    const uint32_t sign = f->kind == NG_KIND_INT ? 0 : 1u << (f->bits - 1);
    draw_middle(l);
    for (int i = 0; i < 4; i++) {
        const int64_t at = draw_below(l->state, (uint32_t)l->k);
        const uint32_t zero = coin(l) && f->kind != NG_KIND_FNUZ ? sign : 0;
        put_code(l, at, zero);
    }
    if (coin(l)) /* only zeros: which sign has their sum? */
        for (int64_t i = 0; i < l->k; i++)
            put_code(l, i, coin(l) && f->kind != NG_KIND_FNUZ ? sign : 0);
    else if (f->has_inf || f->has_nan) {
        const uint32_t inf = f->max_code + (1u << f->low_bits); /* of formats that have one */
        const uint32_t code = f->has_inf && (coin(l) || !f->has_nan) ? inf : f->nan_code;
        const int64_t at = draw_below(l->state, (uint32_t)l->k);
        put_code(l, at, code | (coin(l) ? sign : 0));
    }
}

/* FP32 patterns as they come: a tf32 operand's low bits are cut, or rounded, by the unit. */
static void draw_low_bits(struct line *l)
{
    const uint32_t half = 1u << (ng_format_info(l->t->format)->low_bits - 1);
    for (int64_t i = 0; i < l->k; i++) {
        const uint32_t any = (uint32_t)draw(l->state) & (2 * half - 1);
        l->index[l->axis] = i;
        put_code(l, i, ng_tensor_get(l->t, l->index) | (coin(l) ? half : any));
    }
}

static void draw_line(struct line *l, enum kind kind, uint32_t which)
{
    const int span = l->highest - l->lowest, end = span < 8 ? span / 2 : span < 40 ? 4 : 12;
    switch (kind) {
    case ONES:
    case SIGNED: {
        int from, to;
        pick_reach(l, &from, &to);
        const int any = pick(l, from, to), how = (int)draw_below(l->state, 3);
        const int exp = how == 0 ? 0 : how == 1 && l->partner > INT_MIN ? l->partner : any;
        for (int64_t i = 0; i < l->k; i++)
            put(l, i, kind == SIGNED && coin(l), one(l), exp);
        break;
    }
    case MASK: draw_mask(l, which); break;
    case PEAK: draw_peak(l, which); break;
    case NEEDLE: draw_needle(l); break;
    case EVEN: draw_even(l); break;
    case WINDOW: draw_middle(l); break;
    case LOW: draw_window(l, l->lowest, l->lowest + end); break;
    case HIGH: draw_window(l, l->highest - end, l->highest); break;
    case ANY: draw_any(l); break;
    case SPECIAL: draw_special(l); break;
    }
    if (kind >= WINDOW && ng_format_info(l->t->format)->low_bits && coin(l))
        draw_low_bits(l);
}

/* Kinds in proportion, the same ones for every seed. */
static enum kind kind_of(int64_t line, int64_t lines, bool is_b)
{
    uint32_t sum = 0, upto = 0;
    size_t i = 0;
    const size_t n = sizeof weights / sizeof weights[0];
    for (size_t w = 0; w < n; w++)
        sum += is_b ? weights[w].b : weights[w].a;
    for (; i + 1 < n; i++) {
        upto += is_b ? weights[i].b : weights[i].a;
        if (line * sum < (int64_t)upto * lines)
            break;
    }
    return weights[i].kind;
}

/* Exponents of a format's numbers. */
static void reach_of(ng_format format, struct line *l)
{
    const ng_format_spec *f = ng_format_info(format);
    ng_value most, least;
    (void)ng_decode(format, f->max_code, &most);
    (void)ng_decode(format, 1u << f->low_bits, &least);
    l->bits = (int)f->man_bits + 1;
    l->lowest = least.exp + 63 - __builtin_clzll(least.sig);
    l->highest = most.exp + 63 - __builtin_clzll(most.sig);
    l->normal = l->lowest + (int)f->man_bits;
}

static struct line line_of(const struct probe_shape *shape, ng_tensor *t, uint32_t axis,
                           uint64_t *state, const struct pair *pair)
{
    struct line l = { .t = t,
                      .axis = axis,
                      .k = t->dim[axis],
                      .state = state,
                      .pair = pair,
                      .end = shape->d == NG_F16 ? -24 : -149 };
    struct line a, b;
    reach_of(t->format, &l);
    reach_of(shape->a, &a);
    reach_of(shape->b, &b);
    l.partner = l.end - MOST_EVEN - 1 - a.normal;
    if (l.partner < b.lowest || l.partner > b.highest)
        l.partner = INT_MIN;
    return l;
}

/* A line's scales are near 1, or as far apart as sums can be, or any; one is a NaN. */
static uint32_t draw_scale(ng_format format, uint32_t how, uint64_t *state)
{
    if (format == NG_UE4M3)
        return how < 5 ? 0x30 + draw_below(state, 0x10) : draw_below(state, 0x7F);
    return how < 5   ? 124 + draw_below(state, 7)
           : how < 7 ? 107 + draw_below(state, 40)
                     : draw_below(state, 255);
}

static void draw_scales(struct operand *o, uint64_t *state)
{
    enum {
        HOWS = 8
    };
    const ng_tensor *t = &o->view;
    const ng_format format = t->scale_format;
    const int64_t lines = t->dim[1 - t->block_axis], blocks = (int64_t)o->scale.bytes / lines;
    unsigned char *s = o->scale.data;
    for (int64_t i = 0; i < lines; i++) {
        const uint32_t how = draw_below(state, HOWS);
        for (int64_t k = 0; k < blocks; k++)
            s[t->block_axis ? i * blocks + k : k * lines + i] =
                (unsigned char)draw_scale(format, how, state);
    }
    s[draw_below(state, (uint32_t)o->scale.bytes)] = format == NG_UE4M3 ? 0x7F : 0xFF;
}

static bool draw_operand(const struct probe_shape *shape, const ng_rule *rule, bool is_b,
                         uint64_t *state, const struct pair *pair, struct operand *o)
{
    const int64_t lines = is_b ? shape->n : shape->m;
    const uint32_t axis = is_b ? 0 : 1;
    struct operand like = { .present = true };
    int64_t dim[2] = { lines, lines };
    dim[axis] = shape->k;
    if (ng_tensor_init(&like.view, is_b ? shape->b : shape->a, NULL, 2, dim))
        return false;
    if (shape->mode == NG_MODE_MX || shape->mode == NG_MODE_NV) {
        like.view.block = rule->block ? rule->block : shape->mode == NG_MODE_MX ? 32 : 16;
        like.view.block_axis = axis;
        like.view.scale_format = shape->mode == NG_MODE_MX ? NG_E8M0 : NG_UE4M3;
    }
    if (!operand_alloc_like(o, &like, 0))
        return false;
    struct line l = line_of(shape, &o->view, axis, state, pair);
    for (int64_t i = 0; i < lines; i++) {
        l.index[1 - axis] = i;
        draw_line(&l, kind_of(i, lines, is_b), (uint32_t)i);
    }
    if (o->scale.data)
        draw_scales(o, state);
    return true;
}

/* An addend of each element: zero, at the end of the range, about 1, or of any size. */
static bool draw_c(const struct probe_shape *shape, uint64_t *state, struct operand *o)
{
    struct operand like = { .present = true };
    if (ng_tensor_init(&like.view, shape->c, NULL, 2, (int64_t[]){ shape->m, shape->n }) ||
        !operand_alloc_like(o, &like, 0))
        return false;
    struct line l = line_of(shape, &o->view, 1, state, NULL);
    for (int64_t i = 0; i < shape->m; i++) {
        l.index[0] = i;
        switch (draw_below(state, 8)) {
        case 0:
        case 1:
        case 2: break; /* zeros */
        case 3: draw_window(&l, l.lowest, l.lowest + 4); break;
        case 4:
        case 5: draw_window(&l, -4, 4); break;
        case 6: draw_middle(&l); break;
        default: draw_any(&l); break;
        }
    }
    return true;
}

/* A (and C) of a seed; places are the probe's, which B shares. */
static bool draw_rows(const struct probe_shape *shape, const ng_rule *rule, uint64_t seed,
                      const struct pair *pair, struct one_case *c)
{
    uint64_t state = seed;
    return draw_operand(shape, rule, false, &state, pair, &c->a) &&
           (!shape->c || draw_c(shape, &state, &c->c));
}

static void draw_pairs(const struct probe_shape *shape, uint64_t *state, struct pair *pair)
{
    for (int i = 0; i < PAIRS; i++)
        pick_pair(state, shape->k, pair[i].at);
}

int probe_draw(const struct probe_shape *shape, const ng_rule *rule, struct one_case *c)
{
    uint64_t state = shape->seed;
    struct pair pair[PAIRS];
    struct operand like = { .present = true };
    if (ng_format_info(shape->a)->store_bits * shape->k % 8 ||
        ng_format_info(shape->b)->store_bits * shape->n % 8)
        return cli_fail(EXIT_REFUSED,
                        "rows of %lld and %lld elements of 4 bits: wanted: an even --depth "
                        "for a, an even --columns for b",
                        (long long)shape->k, (long long)shape->n);
    draw_pairs(shape, &state, pair);
    if (draw_operand(shape, rule, true, &state, pair, &c->b) &&
        draw_rows(shape, rule, draw(&state), pair, c) &&
        !ng_tensor_init(&like.view, shape->d, NULL, 2, (int64_t[]){ shape->m, shape->n }) &&
        operand_alloc_like(&c->d, &like, 0))
        return 0;
    return cli_fail(EXIT_INTERNAL, "out of memory for operands of %lld x %lld x %lld",
                    (long long)shape->m, (long long)shape->k, (long long)shape->n);
}

/* ---- Rows that tell what the first ones did not. ---- */

/* Row `from` of one tensor into row `to` of another like it. */
static void copy_row(const ng_tensor *source, int64_t from, const ng_tensor *target, int64_t to)
{
    for (int64_t k = 0; k < source->dim[1]; k++) {
        const int64_t i[2] = { from, k }, o[2] = { to, k };
        ng_tensor_set(target, o, ng_tensor_get(source, i));
    }
}

static void take_row(const struct one_case *source, int64_t from, struct one_case *c,
                     int64_t to)
{
    copy_row(&source->a.view, from, &c->a.view, to);
    if (source->c.present)
        copy_row(&source->c.view, from, &c->c.view, to);
    if (source->a.scale.data) {
        const size_t n = source->a.scale.bytes / (size_t)source->a.view.dim[0];
        memcpy((unsigned char *)c->a.scale.data + (size_t)to * n,
               (const unsigned char *)source->a.scale.data + (size_t)from * n, n);
    }
}

/* The row that tells most of what no row taken yet does; -1: none tells any. */
static int64_t best_row(const bool *tells, const bool *told, size_t n, int64_t rows)
{
    int64_t best = -1;
    size_t most = 0;
    for (int64_t row = 0; row < rows; row++) {
        size_t count = 0;
        for (size_t i = 0; i < n; i++)
            count += !told[i] && tells[i * (size_t)rows + (size_t)row];
        if (count > most) {
            most = count;
            best = row;
        }
    }
    return best;
}

/* Which rows tell what, and what is told already. */
struct telling {
    bool *tells, *told;
    size_t n; /* open values */
};

static int improve_once(const struct cli *cli, const struct probe_findings *open,
                        struct telling *t, int64_t *replaced, struct one_case *other,
                        struct one_case *c)
{
    const size_t rows = (size_t)c->a.view.dim[0];
    memset(t->tells, 0, t->n * rows * sizeof *t->tells);
    const int code = probe_tell(cli, other, open, t->tells);
    while (!code && (*replaced + 1) * SPARE <= (int64_t)rows) {
        const int64_t row = best_row(t->tells, t->told, t->n, (int64_t)rows);
        if (row < 0)
            break;
        take_row(other, row, c, *replaced * SPARE + SPARE - 1);
        ++*replaced;
        for (size_t i = 0; i < t->n; i++)
            t->told[i] = t->told[i] || t->tells[i * rows + (size_t)row];
    }
    return code;
}

static bool is_all_told(const struct telling *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        n += t->told[i];
    return n == t->n;
}

int probe_improve(const struct cli *cli, const struct probe_shape *shape, const ng_rule *rule,
                  uint64_t rounds, const struct probe_findings *open, int64_t *replaced,
                  struct one_case *c)
{
    const size_t n = probe_count_open(open);
    struct telling t = { calloc(n * (size_t)shape->m + 1, 1), calloc(n + 1, 1), n };
    uint64_t state = shape->seed;
    struct pair pair[PAIRS];
    int code = t.tells && t.told ? 0 : cli_fail(EXIT_INTERNAL, "out of memory");
    draw_pairs(shape, &state, pair);
    *replaced = 0;
    for (uint64_t round = 0; !code && round < rounds && !is_all_told(&t); round++) {
        struct one_case other = *c; /* its own A and C, and a result; B is shared */
        other.a = other.c = other.d = (struct operand){ .present = false };
        if (!operand_alloc_like(&other.d, &c->d, 0) ||
            !draw_rows(shape, rule, draw(&state), pair, &other))
            code = cli_fail(EXIT_INTERNAL, "out of memory");
        if (!code)
            code = improve_once(cli, open, &t, replaced, &other, c);
        operand_free(&other.a);
        operand_free(&other.c);
        operand_free(&other.d);
    }
    free(t.tells);
    free(t.told);
    return code;
}

int64_t probe_k(const ng_rule *rule)
{
    const ng_setting *set = rule->set;
    const int64_t rows = set[NG_PARAM_ROWS].value, lanes = set[NG_PARAM_LANES].value,
                  group = (int64_t)set[NG_PARAM_GROUP].value * set[NG_PARAM_EXACT_GROUP].value,
                  instr = set[NG_PARAM_K_INSTR].value, step = group > instr ? group : instr;
    if (set[NG_PARAM_FAMILY].value == NG_FAMILY_FUSED)
        return 10 * step <= 256 ? 256 : (10 * step + 127) / 128 * 128;
    return rows ? 2 * rows * lanes + rows * lanes / 2 : 256; /* three additions */
}
