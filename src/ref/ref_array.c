/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A systolic array with accumulate memory. Numerics: docs/numerics.md, section 4.1; the numbers
 * in parentheses are its steps.
 */
#include "../internal.h"
#include "ref.h"

/* Chains of one tile: rows / chain_rows; profile.c checks the bound. */
enum {
    MAX_CHAINS = 64
};

/* Which part of the operands a pass multiplies; WHOLE when they are not split. */
enum piece {
    WHOLE,
    LO,
    HI
};

/* The parameters of one multiply, read once. */
struct array {
    const struct gemm_job *g;
    int64_t i, j;
    int64_t rows, lanes, chain_rows, n_chains;
    ng_lane_sum lane_sum;
    ng_chain_map chain_map;
    ng_combine combine;
    ng_k_map k_map;
    ng_range range;
    ng_round round;
    int bits;
    ng_piece_split split;
    enum piece piece_a, piece_b;
};

/* ---- R(x): the adder inside the array (4). ---- */

static ng_value adder(const struct array *p, ng_value exact)
{
    if (exact.cls != NG_CLASS_FINITE || !exact.sig)
        return exact;
    if (p->range == NG_RANGE_WIDE)
        return ng_num_round(exact, (struct ng_grid){ p->bits, NG_NO_UNDERFLOW },
                            ng_rounding_of(p->round));
    const struct ng_grid f32 = { p->bits, -126 - (p->bits - 1) };
    const ng_value r = ng_num_round(exact, f32, ng_rounding_of(p->round));
    if (r.sig && ng_num_exponent(r) > 127)
        return ng_num_stops_at_max(p->round, r.neg)
                   ? (ng_value){ .sig = ((uint64_t)1 << p->bits) - 1,
                                 .exp = 128 - p->bits,
                                 .neg = r.neg }
                   : ng_num_inf(r.neg);
    if (p->range == NG_RANGE_F32_FTZ && r.sig && ng_num_exponent(r) < -126)
        return ng_num_zero(r.neg);
    return r;
}

static ng_value add(const struct array *p, ng_value a, ng_value b)
{
    return adder(p, ng_num_add(a, b));
}

/* ---- Products (3), with FP32 operands in pieces (section 11.2 item 12). ---- */

/* hi: the low 12 of 24 bits cleared or rounded away; lo: the exact rest, with its own sign. */
static ng_value piece_of(ng_value v, enum piece piece, ng_piece_split split)
{
    const uint64_t low = v.sig & 0xFFF;
    uint64_t high = v.sig >> 12;
    bool up = false;
    if (split == NG_SPLIT_RNE)
        up = low > 0x800 || (low == 0x800 && (high & 1));
    high += up;
    if (piece == HI)
        return (ng_value){ .sig = high, .exp = v.exp + 12, .neg = v.neg };
    return (ng_value){ .sig = up ? 0x1000 - low : low, .exp = v.exp, .neg = v.neg != up };
}

/* False where a pass has no product: a special pair stands in the (hi, hi) pass only. */
static bool product(const struct array *p, int64_t k, ng_value *x)
{
    struct ng_pair pair = ng_ref_pair(p->g, p->i, p->j, k);
    if (p->piece_a != WHOLE) {
        const bool special = pair.a.cls != NG_CLASS_FINITE || pair.b.cls != NG_CLASS_FINITE;
        if (special && (p->piece_a != HI || p->piece_b != HI))
            return false;
        if (!special) {
            pair.a = piece_of(pair.a, p->piece_a, p->split);
            pair.b = piece_of(pair.b, p->piece_b, p->split);
        }
    }
    *x = ng_ref_product(&pair);
    return true;
}

/* ---- A row's step (4). ---- */

static ng_value exact_sum(const ng_value *x, int64_t n)
{
    struct ng_sum s;
    ng_sum_begin(&s);
    for (int64_t q = 0; q < n; q++)
        ng_sum_add(&s, x[q]);
    return ng_sum_end(&s);
}

/* R(R(x0 + x1) + R(x2 + x3)), any number of terms; an odd one passes on to the next level. */
static ng_value tree_sum(const struct array *p, const ng_value *x, int64_t n)
{
    ng_value level[MAX_CHAINS];
    for (int64_t q = 0; q < n; q++)
        level[q] = x[q];
    for (; n > 1; n = (n + 1) / 2) {
        for (int64_t q = 0; q < n / 2; q++)
            level[q] = add(p, level[2 * q], level[2 * q + 1]);
        if (n % 2)
            level[n / 2] = level[n - 1];
    }
    return level[0];
}

static ng_value row_step(const struct array *p, ng_value acc, const ng_value *x, int64_t n)
{
    if (n == 0)
        return acc;
    switch (p->lanes == 1 ? NG_LANE_SUM_FUSED : p->lane_sum) {
    case NG_LANE_SUM_FUSED: {
        struct ng_sum s;
        ng_sum_begin(&s);
        ng_sum_add(&s, acc);
        for (int64_t q = 0; q < n; q++)
            ng_sum_add(&s, x[q]);
        return adder(p, ng_sum_end(&s));
    }
    case NG_LANE_SUM_CHAIN:
        for (int64_t q = 0; q < n; q++)
            acc = add(p, acc, x[q]);
        return acc;
    case NG_LANE_SUM_PRESUM: return add(p, acc, adder(p, exact_sum(x, n)));
    case NG_LANE_SUM_TREE: return add(p, acc, tree_sum(p, x, n));
    }
    return acc;
}

/* ---- A tile: map (2), chains (4), foot (5). ---- */

static int64_t chain_of(const struct array *p, int64_t row)
{
    switch (p->chain_map) {
    case NG_CHAIN_BLOCK: return row / p->chain_rows;
    case NG_CHAIN_PARITY: return row / (2 * p->chain_rows) * 2 + row % 2;
    case NG_CHAIN_INTERLEAVE: return row % p->n_chains;
    }
    return 0;
}

/* The products of one row, in lane order: offset j = lanes * p + q, or q * P + p. */
static int64_t row_products(const struct array *p, int64_t k0, int64_t depth, int64_t row,
                            ng_value *x)
{
    const int64_t used_rows = (depth + p->lanes - 1) / p->lanes;
    int64_t n = 0;
    for (int64_t q = 0; q < p->lanes; q++) {
        const int64_t offset =
            p->k_map == NG_K_SPLIT ? q * used_rows + row : p->lanes * row + q;
        if (offset < depth && product(p, k0 + offset, &x[n]))
            n++;
    }
    return n;
}

static ng_value foot(const struct array *p, const ng_value *chain)
{
    if (p->combine == NG_COMBINE_TREE)
        return tree_sum(p, chain, p->n_chains);
    ng_value v = chain[0];
    for (int64_t c = 1; c < p->n_chains; c++)
        v = add(p, v, chain[c]);
    return v;
}

static ng_value tile_sum(const struct array *p, int64_t k0, int64_t depth,
                         const ng_trace *trace)
{
    const int64_t used_rows = (depth + p->lanes - 1) / p->lanes;
    ng_value chain[MAX_CHAINS] = { { 0 } }; /* each starts from +0 */
    ng_value x[MAX_CHAINS];

    for (int64_t row = 0; row < used_rows; row++) {
        ng_value *acc = &chain[p->n_chains == 1 ? 0 : chain_of(p, row)];
        const int64_t n = row_products(p, k0, depth, row, x);
        *acc = row_step(p, *acc, x, n);
    }
    for (int64_t c = 0; c < p->n_chains; c++)
        ng_ref_trace(trace, NG_TRACE_CHAIN, c, k0, k0 + depth, chain[c]);
    return foot(p, chain);
}

/* ---- Accumulate memory (6). ---- */

struct psum {
    ng_value value;
    bool written; /* or C stood there */
    int64_t writes;
};

static void accumulate(const struct array *p, struct psum *psum, ng_value v)
{
    const struct gemm_job *g = p->g;
    ng_value sum = v;
    if (psum->written)
        sum = ng_num_round_f32(ng_num_add(psum->value, v),
                               (ng_round)ng_ref_param(g, NG_PARAM_PSUM_ADD));
    if (g->acc == NG_BF16) { /* Q, every time */
        const ng_cast *cast = &g->op->psum;
        const int64_t e = g->first + p->i * g->n + p->j;
        const struct ng_rounding how = {
            .round = cast->round,
            .sr = cast->sr,
            .sr_bits = cast->sr_bits ? cast->sr_bits : 32,
            .take = cast->sr_take,
            .word = cast->round == NG_ROUND_STOCHASTIC
                        ? ng_stream_word(g->psum_words, psum->writes * g->elements + e)
                        : 0
        };
        if (sum.cls == NG_CLASS_FINITE) {
            sum = ng_num_round(sum, (struct ng_grid){ .bits = 8, .least = -133 }, how);
            if (sum.sig && ng_num_exponent(sum) > 127)
                sum = ng_num_inf(sum.neg);
        }
    }
    psum->value = sum;
    psum->written = true;
    psum->writes++;
}

/* The result leaves the array: RN into FP32, where `wide` meets subnormals and Inf (5). */
static ng_value leave(ng_value v)
{
    return ng_num_round_f32(v, NG_ROUND_TIES_TO_EVEN);
}

static ng_value piece_sum(struct array *p, enum piece outer, enum piece inner, int64_t k0,
                          int64_t depth, const ng_trace *trace)
{
    const bool a_outer = ng_ref_param(p->g, NG_PARAM_PIECE_OUTER) == NG_OPERAND_A;
    p->piece_a = a_outer ? outer : inner;
    p->piece_b = a_outer ? inner : outer;
    return tile_sum(p, k0, depth, trace);
}

/* One tile of FP32 operands: two instructions, one for each piece of the outer operand. */
static void accumulate_pieces(struct array *p, struct psum *psum, int64_t tile, int64_t k0,
                              int64_t depth, const ng_trace *trace)
{
    const bool lo_first = ng_ref_param(p->g, NG_PARAM_PIECE_ORDER) == NG_ORDER_LO_FIRST;
    const enum piece order[2] = { lo_first ? LO : HI, lo_first ? HI : LO };
    const bool four = ng_ref_param(p->g, NG_PARAM_PIECE_ADDS) == 4;

    for (int outer = 0; outer < 2; outer++) {
        ng_value t[2];
        for (int inner = 0; inner < 2; inner++) {
            t[inner] = piece_sum(p, order[outer], order[inner], k0, depth, trace);
            if (four) {
                ng_ref_trace(trace, NG_TRACE_FOOT, tile, k0, k0 + depth, leave(t[inner]));
                accumulate(p, psum, leave(t[inner]));
            }
        }
        if (!four) {
            const ng_value w = leave(add(p, t[0], t[1]));
            ng_ref_trace(trace, NG_TRACE_FOOT, tile, k0, k0 + depth, w);
            accumulate(p, psum, w);
        }
    }
}

/* ---- The whole element. ---- */

/* With block scales the map follows from their layout, so that a block is 8 rows x all lanes.
 */
static ng_k_map k_map(const struct gemm_job *g)
{
    const ng_k_map map = (ng_k_map)ng_ref_param(g, NG_PARAM_K_MAP);
    if (map != NG_K_LAYOUT)
        return map;
    return g->a.layout == NG_LAYOUT_TRN_WRAP ? NG_K_SPLIT : NG_K_INTERLEAVE;
}

static struct array read_parameters(const struct gemm_job *g, int64_t i, int64_t j)
{
    struct array p = { .g = g,
                       .i = i,
                       .j = j,
                       .rows = ng_ref_param(g, NG_PARAM_ROWS),
                       .lanes = ng_ref_param(g, NG_PARAM_LANES),
                       .chain_rows = ng_ref_param(g, NG_PARAM_CHAIN_ROWS),
                       .n_chains = 1,
                       .lane_sum = (ng_lane_sum)ng_ref_param(g, NG_PARAM_LANE_SUM),
                       .chain_map = (ng_chain_map)ng_ref_param(g, NG_PARAM_CHAIN_MAP),
                       .combine = (ng_combine)ng_ref_param(g, NG_PARAM_COMBINE),
                       .k_map = k_map(g),
                       .range = (ng_range)ng_ref_param(g, NG_PARAM_ACC_RANGE),
                       .round = (ng_round)ng_ref_param(g, NG_PARAM_ACC_ROUND),
                       .bits = ng_ref_param(g, NG_PARAM_ACC_BITS),
                       .split = (ng_piece_split)ng_ref_param(g, NG_PARAM_PIECE_SPLIT) };
    if (p.rows && p.chain_rows)
        p.n_chains = p.rows / p.chain_rows;
    return p;
}

ng_value ng_ref_array(const struct gemm_job *g, int64_t i, int64_t j, const ng_trace *trace)
{
    struct array p = read_parameters(g, i, j);
    const int64_t tile_k = p.rows ? p.rows * p.lanes : g->k;
    struct psum psum = { .value = ng_num_zero(false) };
    if (g->c.data) {
        psum.value = ng_ref_c(g, i, j);
        psum.written = true;
    }
    for (int64_t k0 = 0, t = 0; k0 < g->k; k0 += tile_k, t++) {
        const int64_t depth = g->k - k0 < tile_k ? g->k - k0 : tile_k;
        if (ng_ref_param(g, NG_PARAM_PIECES) == 2) {
            accumulate_pieces(&p, &psum, t, k0, depth, trace);
        } else {
            const ng_value v = leave(tile_sum(&p, k0, depth, trace));
            ng_ref_trace(trace, NG_TRACE_FOOT, t, k0, k0 + depth, v);
            accumulate(&p, &psum, v);
        }
        ng_ref_trace(trace, NG_TRACE_PSUM, t, k0, k0 + depth, psum.value);
    }
    return psum.value;
}
