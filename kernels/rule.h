/* SPDX-License-Identifier: Apache-2.0 */
/* A job's rule as the kernels read it, and which jobs those of the array family take. */
#ifndef NG_KERNELS_RULE_H
#define NG_KERNELS_RULE_H

#include "kernel.h"

/* Chains of a tile: what the stack of the foot is made for (2^LEVELS > CHAINS_MAX). */
enum {
    CHAINS_MAX = 64,
    LEVELS = 7
};

static inline int32_t rule_param(const struct gemm_job *g, ng_param p)
{
    return g->rule->set[p].value;
}

static inline int32_t rule_chains(const struct gemm_job *g)
{
    const int32_t rows = rule_param(g, NG_PARAM_ROWS),
                  chain = rule_param(g, NG_PARAM_CHAIN_ROWS);
    return rows && chain ? rows / chain : 1;
}

static inline bool rule_fused(const struct gemm_job *g)
{
    return rule_param(g, NG_PARAM_FAMILY) == NG_FAMILY_FUSED;
}

static inline bool rule_pieces(const struct gemm_job *g)
{
    return !rule_fused(g) && rule_param(g, NG_PARAM_PIECES) == 2;
}

/* The operand whose lines are compressed, or NULL. */
static inline const ng_sparse *rule_sparse(const struct gemm_job *g)
{
    return g->a.sparse ? g->a.sparse : g->b.sparse;
}

/* Of `k` k the products that a sparse operand keeps, where steps are counted in dense k (29).
 */
static inline int64_t rule_kept(const struct gemm_job *g, int64_t k)
{
    const ng_sparse *s = rule_sparse(g);
    if (!s || rule_param(g, NG_PARAM_SPARSE_K) == NG_SPARSE_K_COMPRESSED)
        return k;
    const int64_t kept = k * s->kept / s->group;
    return kept > 0 ? kept : 1;
}

/*
 * Steps of family `fused` (4.2): `terms` products each, `steps` of them for the k of an
 * instruction. What matters of an instruction's depth: without a permutation or a late C it is
 * its step's. Of a sparse operand k are its slots.
 */
struct rule_steps {
    int64_t terms, steps, k;
    bool mod4;  /* of four k the first two are of its first step, the others of its second */
    bool after; /* C comes after its steps */
};

static inline struct rule_steps rule_steps(const struct gemm_job *g)
{
    const int64_t k = rule_kept(g, rule_param(g, NG_PARAM_K_INSTR)),
                  group = rule_kept(g, (int64_t)rule_param(g, NG_PARAM_GROUP) *
                                           rule_param(g, NG_PARAM_EXACT_GROUP));
    struct rule_steps s = { .terms = group,
                            .steps = 1,
                            .k = group,
                            .mod4 = rule_param(g, NG_PARAM_K_PERM) == NG_PERM_MOD4,
                            .after = rule_param(g, NG_PARAM_C_PLACE) == NG_C_AFTER };
    if (s.mod4)
        return (struct rule_steps){ (k + 3) / 4 * 2, 2, k, true, s.after };
    if (s.after) {
        s.k = k;
        s.steps = (k + group - 1) / group;
    }
    return s;
}

/*
 * Positions of a step, in fours: absent products are no terms, so that it may have some, unless
 * they are rounded in pairs. With a sparse operand they are all places of the groups that its
 * slots are of.
 */
static inline int64_t rule_positions(const struct gemm_job *g)
{
    const struct rule_steps r = rule_steps(g);
    const ng_sparse *s = rule_sparse(g);
    const int64_t slots = r.mod4 ? r.k : r.terms;
    if (s) {
        const bool whole = r.k % s->kept == 0 && slots % s->kept == 0;
        const int64_t groups = (slots + s->kept - 1) / s->kept + (whole ? 0 : 1);
        return ((groups < r.terms ? groups : r.terms) * s->group + 3) / 4 * 4;
    }
    const int64_t unit = rule_param(g, NG_PARAM_SUM) == NG_SUM_PAIRWISE ? 2 : 4;
    return (r.terms + unit - 1) / unit * unit;
}

/* How a row's products join the chain (step 4). */
typedef enum rule_step {
    STEP_FMA,  /* one after the other: lanes = 1, `chain` */
    STEP_SUM,  /* one exact sum, one rounding: `fused`; two: `presum` */
    STEP_TREE, /* `tree` */
} rule_step;

static inline rule_step rule_step_of(const struct gemm_job *g)
{
    if (rule_fused(g) || rule_param(g, NG_PARAM_LANES) == 1)
        return STEP_FMA;
    switch ((ng_lane_sum)rule_param(g, NG_PARAM_LANE_SUM)) {
    case NG_LANE_SUM_CHAIN: return STEP_FMA;
    case NG_LANE_SUM_TREE: return STEP_TREE;
    case NG_LANE_SUM_FUSED:
    case NG_LANE_SUM_PRESUM: return STEP_SUM;
    }
    return STEP_SUM;
}

/* The format whose values the operand brings: that of the FP4 table where one is given. */
static inline const ng_format_spec *rule_values(const struct gemm_job *g,
                                                const struct gemm_operand *o)
{
    return g->fp4 && o->spec->format == NG_E2M1 ? g->fp4 : o->spec;
}

static inline int rule_log2_ceil(int64_t n)
{
    int bits = 0;
    while (((int64_t)1 << bits) < n)
        bits++;
    return bits;
}

/* The largest magnitude in units of the least; 0: not of a sign, an exponent and a fraction, or
 * of more than 8 bits. */
static inline double rule_span(const struct gemm_job *g, const struct gemm_operand *o)
{
    const ng_format_spec *f = rule_values(g, o);
    if (f->bits > 8 || f->low_bits ||
        (f->kind != NG_KIND_IEEE && f->kind != NG_KIND_FN && f->kind != NG_KIND_FINITE))
        return 0;
    const uint32_t exponent = f->max_code >> f->man_bits, one = 1u << f->man_bits,
                   fraction = f->max_code & (one - 1);
    return exponent ? (double)((uint64_t)(one | fraction) << (exponent - 1)) : fraction;
}

/* May the exact sum of a row's lanes, which have one scale, be one that FP32 does not hold? */
static inline bool rule_watches(const struct gemm_job *g)
{
    const double a = rule_span(g, &g->a), b = rule_span(g, &g->b);
    return a == 0 || b == 0 || rule_param(g, NG_PARAM_LANES) * a * b > 0x1p24;
}

/* Values with an exponent field of at most 5 bits: sums of their products fit the exact path.
 */
static inline bool rule_narrow(const struct gemm_job *g, const struct gemm_operand *o)
{
    const ng_format_spec *f = rule_values(g, o);
    return f->exp_bits <= 5 && f->man_bits <= 6;
}

/* Fraction bits of an operand's values with their scales multiplied in: powers of two add none,
 * the four bits of a ue4m3 scale four. */
static inline int rule_fraction(const struct gemm_job *g, const struct gemm_operand *o)
{
    return (int)rule_values(g, o)->man_bits + (o->scale && g->mode == NG_MODE_NV ? 4 : 0);
}

static inline const char *rule_refuses_operand(const struct gemm_job *g,
                                               const struct gemm_operand *o)
{
    if (o->spec->kind == NG_KIND_SCALE || o->spec->kind == NG_KIND_UFN)
        return "an operand in a scale format";
    if (o->scale && g->mode != NG_MODE_MX &&
        (rule_param(g, NG_PARAM_LANES) != 1 || rule_values(g, o)->exp_bits > 5))
        return "block scales other than e8m0, on several lanes or of elements of FP32's range";
    if (o->sparse && !o->tags_ascend)
        return "sparse tags that repeat or descend inside a group";
    return NULL;
}

/*
 * NULL for the jobs that chains of FP32 operations compute, fast or by the exact path; see
 * README.md for the argument. Only rule, formats and modes are looked at, never data.
 */
static inline const char *rule_refuses(const struct gemm_job *g)
{
    const int32_t lanes = rule_param(g, NG_PARAM_LANES);
    const ng_round tf32 = (ng_round)rule_param(g, NG_PARAM_TF32_IN);
    const bool has_tf32 = g->a.spec->format == NG_TF32 || g->b.spec->format == NG_TF32;
    if (rule_fused(g))
        return "family fused";
    if (rule_param(g, NG_PARAM_ACC_BITS) != 24 ||
        rule_param(g, NG_PARAM_ACC_ROUND) != NG_ROUND_TIES_TO_EVEN)
        return "a chain adder other than 24 bits, ties to even";
    if (rule_param(g, NG_PARAM_PSUM_ADD) != NG_ROUND_TIES_TO_EVEN)
        return "psum_add other than ties to even";
    if (rule_chains(g) > CHAINS_MAX)
        return "more than 64 chains a tile";
    if (g->acc != NG_F32 && g->acc != NG_BF16)
        return "an accumulator other than f32 or bf16";
    if (has_tf32 && tf32 != NG_ROUND_TIES_TO_EVEN && tf32 != NG_ROUND_TOWARD_ZERO)
        return "tf32_in other than rne or rtz";
    if (rule_pieces(g) && (lanes != 1 || g->a.spec->format != NG_F32 ||
                           g->b.spec->format != NG_F32 || g->a.scale || g->b.scale))
        return "pieces of operands other than plain f32";
    if (rule_pieces(g) && rule_param(g, NG_PARAM_PIECE_SPLIT) != NG_SPLIT_TRUNC)
        return "piece_split other than trunc";
    if (lanes > 1 && (!rule_narrow(g, &g->a) || !rule_narrow(g, &g->b)) &&
        rule_step_of(g) == STEP_SUM)
        return "exact sums over lanes of operands wider than 8 bits";
    if (lanes > 1 && rule_step_of(g) == STEP_TREE && lanes != 2 && lanes != 4)
        return "a lane tree of other than 2 or 4";
    if (lanes > 1 && rule_step_of(g) == STEP_TREE &&
        (rule_values(g, &g->a)->man_bits > 11 || rule_values(g, &g->b)->man_bits > 11))
        return "a lane tree of products that FP32 does not hold";
    if (lanes > 64)
        return "more than 64 lanes";
    if (lanes > 1 && (g->a.sparse || g->b.sparse))
        return "a sparse operand on several lanes";
    /* a row's lanes share a scale: 32 / lanes rows a block, or trn_wrap's 8 rows of 4 lanes */
    if (lanes > 1 && g->a.scale &&
        (g->a.block % (uint32_t)lanes || g->b.block % (uint32_t)lanes))
        return "blocks that end inside a row";
    if (lanes > 1 && g->a.scale && g->a.layout != NG_LAYOUT_TRN_WRAP &&
        rule_param(g, NG_PARAM_K_MAP) == NG_K_SPLIT)
        return "blocks that end inside a row";
    if (lanes > 1 && g->a.scale && g->a.layout == NG_LAYOUT_TRN_WRAP &&
        rule_param(g, NG_PARAM_K_MAP) == NG_K_INTERLEAVE)
        return "blocks that end inside a row";
    const char *why = rule_refuses_operand(g, &g->a);
    return why ? why : rule_refuses_operand(g, &g->b);
}

#endif
