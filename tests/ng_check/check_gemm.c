/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix multiply kernels against the reference. Each round draws a rule (the profile's own or
 * a variation), a shape at the kernel's seams, layouts and data, and runs the kernel by the
 * contract of kernels/kernel.h, through ng_gemm(), and through ng_pack() and ng_gemm_packed().
 */
#include "../../src/internal.h"
#include "../../src/profile/profile_internal.h"
#include "../../src/ref/ref.h"
#include "ngc.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_PRODUCTS = 30000, /* of a round: what the reference does in a few milliseconds */
    MAX_TILES = 4096
};

struct kase {
    const struct ng_isa *isa;
    const struct ng_gemm_kernel *kernel;
    const ng_profile *profile;
    const ng_rule *rule;
    const ng_format_spec *a, *b;
    char name[200];
};

/* All of one round. */
struct round {
    const struct kase *kase;
    struct ngc_rng rng;
    ng_rule rule;
    ng_profile profile;
    ng_gemm_op op;
    uint8_t fp4_map[16];
    ng_sparse sparse;
    struct gemm_job job;
    struct ng_stream psum_words;
    const ng_format_spec *d_spec, *c_spec; /* c_spec NULL: no C */
    bool in_place, wrap;
    int about; /* log2 of e8m0 scales, more or less */
    int64_t order[MAX_TILES];
    const char *wrong; /* what a run did, besides a wrong D */
    bool took;         /* ng_gemm() chose a kernel of the case's ISA */
    ng_status status;
    char message[600];
};

static struct {
    struct ngc_mem a, b, c, d, want, walk, pa, pb, slim, psum, scratch, sa, sb, tags, words;
    bool open;
} mem;

static bool open_memory(void)
{
    const size_t big = (size_t)8 << 20, small = (size_t)1 << 20;
    if (!mem.open)
        mem.open = ngc_mem_open(&mem.a, small) && ngc_mem_open(&mem.b, small) &&
                   ngc_mem_open(&mem.c, small) && ngc_mem_open(&mem.d, small) &&
                   ngc_mem_open(&mem.want, small) && ngc_mem_open(&mem.walk, big) &&
                   ngc_mem_open(&mem.pa, big) && ngc_mem_open(&mem.pb, big) &&
                   ngc_mem_open(&mem.slim, big) && ngc_mem_open(&mem.psum, small) &&
                   ngc_mem_open(&mem.scratch, small) && ngc_mem_open(&mem.words, big) &&
                   ngc_mem_open(&mem.sa, small) && ngc_mem_open(&mem.sb, small) &&
                   ngc_mem_open(&mem.tags, small);
    return mem.open;
}

static int32_t param(const struct round *r, ng_param p)
{
    return r->rule.set[p].value;
}

static void set(struct round *r, ng_param p, int32_t value)
{
    r->rule.set[p].value = value;
}

static bool is_array(const struct round *r)
{
    return param(r, NG_PARAM_FAMILY) == NG_FAMILY_ARRAY;
}

/* ---- The rule and the call's options. ---- */

/* What a kernel of FP32 chains may meet and must compute: other chains, maps, feet, ranges. */
static void vary_chains(struct round *r)
{
    static const int16_t shapes[][2] = {
        { 0, 0 },  { 128, 32 }, { 128, 128 }, { 128, 16 }, { 64, 32 }, { 32, 8 }, { 16, 4 },
        { 16, 2 }, { 8, 1 },    { 12, 2 },    { 12, 4 },   { 24, 8 },  { 20, 4 }, { 6, 2 },
        { 4, 4 },  { 10, 2 },   { 14, 2 },    { 1, 1 },    { 32, 4 },
    };
    static const uint32_t nans[] = { 0x7FC00000u, 0xFFC00000u, 0x7FFFFFFFu, 0x7F800001u };
    int16_t s[2];
    memcpy(s, shapes[ngc_below(&r->rng, sizeof shapes / sizeof shapes[0])], sizeof s);
    if (ngc_one_in(&r->rng, 3)) { /* any number of chains of any length */
        const int chains = 1 + (int)ngc_below(&r->rng, ngc_one_in(&r->rng, 6) ? 64 : 8);
        s[1] = (int16_t)ngc_between(&r->rng, 1, 160 / chains);
        s[0] = (int16_t)(s[1] * chains);
    }
    set(r, NG_PARAM_ROWS, s[0]);
    set(r, NG_PARAM_CHAIN_ROWS, s[1]);
    set(r, NG_PARAM_CHAIN_MAP, ngc_between(&r->rng, NG_CHAIN_BLOCK, NG_CHAIN_INTERLEAVE));
    set(r, NG_PARAM_COMBINE, ngc_between(&r->rng, NG_COMBINE_TREE, NG_COMBINE_SEQUENTIAL));
    set(r, NG_PARAM_ACC_RANGE, ngc_between(&r->rng, NG_RANGE_WIDE, NG_RANGE_F32_FTZ));
    set(r, NG_PARAM_NAN_F32, (int32_t)nans[ngc_below(&r->rng, 4)]);
    set(r, NG_PARAM_LANE_SUM, ngc_between(&r->rng, NG_LANE_SUM_FUSED, NG_LANE_SUM_TREE));
    if (param(r, NG_PARAM_PIECES) == 2) {
        set(r, NG_PARAM_PIECE_ORDER,
            ngc_between(&r->rng, NG_ORDER_LO_FIRST, NG_ORDER_HI_FIRST));
        set(r, NG_PARAM_PIECE_ADDS, ngc_one_in(&r->rng, 2) ? 2 : 4);
        set(r, NG_PARAM_PIECE_OUTER, ngc_between(&r->rng, NG_OPERAND_A, NG_OPERAND_B));
    }
    if (param(r, NG_PARAM_CHAIN_MAP) == NG_CHAIN_PARITY && s[0] != s[1] && s[0] % (2 * s[1]))
        set(r, NG_PARAM_CHAIN_MAP, NG_CHAIN_BLOCK);
}

/*
 * One thing off the beaten track. A kernel that does not refuse it must get it right.
 */
static void vary_foreign(struct round *r)
{
    struct ngc_rng *g = &r->rng;
    switch (ngc_below(g, 18)) {
    case 0: {
        static const int8_t lanes[] = { 1, 2, 3, 4, 5, 6, 8, 32 };
        set(r, NG_PARAM_LANES,
            ngc_one_in(g, 2) ? lanes[ngc_below(g, 8)] : ngc_between(g, 1, 64));
        if (r->rule.mode != NG_MODE_MX)
            set(r, NG_PARAM_K_MAP, ngc_between(g, NG_K_INTERLEAVE, NG_K_SPLIT));
        break;
    }
    case 1: set(r, NG_PARAM_PIECES, 3 - param(r, NG_PARAM_PIECES)); break;
    case 2: set(r, NG_PARAM_ACC_BITS, ngc_between(g, 10, 40)); break;
    case 3:
        set(r, NG_PARAM_ACC_ROUND, ngc_between(g, NG_ROUND_TIES_TO_AWAY, NG_ROUND_TO_ODD));
        break;
    case 4:
        set(r, NG_PARAM_PSUM_ADD, ngc_between(g, NG_ROUND_TIES_TO_AWAY, NG_ROUND_TO_ODD));
        break;
    case 5: /* more chains than a tile keeps */
        set(r, NG_PARAM_ROWS, 64);
        set(r, NG_PARAM_CHAIN_ROWS, ngc_one_in(g, 2) ? 4 : 1);
        set(r, NG_PARAM_CHAIN_MAP, NG_CHAIN_BLOCK);
        break;
    case 6: set(r, NG_PARAM_PSUM, NG_PSUM_BF16); break;
    case 7: r->d_spec = ng_format_info(NG_BF16); break;
    case 8: r->d_spec = ng_format_info(NG_F16); break;
    case 9: r->d_spec = ng_format_info(NG_E4M3FN); break;
    case 10: /* shows where C brings an Inf: see fill_c() */
        r->op.out.overflow = NG_OVERFLOW_SATURATE;
        r->c_spec = ng_format_info(NG_F32);
        break;
    case 11: r->op.out_scale = 0x3F000000u + (ngc_below(g, 1u << 24)); break;
    case 12:
        if (!is_array(r))
            break; /* the front door has it */
        r->op.fp4_map = r->fp4_map;
        r->op.fp4_format = NG_E4M3FN;
        for (int i = 0; i < 16; i++)
            r->fp4_map[i] = (uint8_t)ngc_any_code(g, ng_format_info(NG_E4M3FN));
        if (ngc_one_in(g, 2)) /* +0, which a slim panel wants */
            r->fp4_map[ngc_between(g, 0, 15)] = 0;
        break;
    case 13: r->c_spec = ng_format_info(NG_BF16); break;
    case 14: set(r, NG_PARAM_PIECE_SPLIT, NG_SPLIT_RNE); break;
    case 15:
        set(r, NG_PARAM_TF32_IN, ngc_between(g, NG_ROUND_TIES_TO_AWAY, NG_ROUND_TO_ODD));
        break;
    case 16: r->op.out.nan_sign = NG_NAN_SIGN_KEEP; break;
    default: break;
    }
}

/* What few rules have is varied where it is there, lest too few rounds see it.
 */
static void vary_rare(struct round *r)
{
    struct ngc_rng *g = &r->rng;
    const bool tf32 = r->kase->a->format == NG_TF32 || r->kase->b->format == NG_TF32;
    if (param(r, NG_PARAM_PIECES) == 2 && ngc_one_in(g, 12))
        set(r, NG_PARAM_PIECE_SPLIT, NG_SPLIT_RNE);
    if (tf32 && ngc_one_in(g, 4))
        set(r, NG_PARAM_TF32_IN,
            ngc_one_in(g, 2) ? NG_ROUND_TOWARD_ZERO
                             : ngc_between(g, NG_ROUND_TIES_TO_AWAY, NG_ROUND_TO_ODD));
}

/* What a kernel of aligned terms may meet: other steps, widths, floors, results and promotions.
 */
static void vary_fused(struct round *r)
{
    static const int8_t groups[] = { 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 63 };
    struct ngc_rng *g = &r->rng;
    if (ngc_one_in(g, 2))
        set(r, NG_PARAM_GROUP,
            ngc_one_in(g, 2) ? groups[ngc_below(g, sizeof groups)] : ngc_between(g, 1, 63));
    if (ngc_one_in(g, 2))
        set(r, NG_PARAM_FRAC, ngc_between(g, 1, param(r, NG_PARAM_EXACT_GROUP) > 1 ? 44 : 28));
    if (ngc_one_in(g, 3))
        set(r, NG_PARAM_OUT_BITS, ngc_between(g, 1, 23));
    if (ngc_one_in(g, 3)) {
        set(r, NG_PARAM_FLOOR_F32, ngc_between(g, -140, 10));
        set(r, NG_PARAM_FLOOR_F16, ngc_between(g, -30, 10));
    }
    if (ngc_one_in(g, 3))
        set(r, NG_PARAM_PROMOTE, ngc_between(g, 1, 5));
    if (param(r, NG_PARAM_C_PLACE) == NG_C_LATE && ngc_one_in(g, 2)) {
        set(r, NG_PARAM_SUBGROUPS, ngc_between(g, 1, 2));
        set(r, NG_PARAM_SUM_FRAC, ngc_between(g, 1, 42));
        set(r, NG_PARAM_C_FRAC, ngc_between(g, 1, 42));
        set(r, NG_PARAM_C_DROP, ngc_one_in(g, 3) ? 0 : ngc_between(g, 1, 60));
    }
    if (ngc_one_in(g, 3)) {
        set(r, NG_PARAM_C_PLACE, NG_C_AFTER);
        set(r, NG_PARAM_K_PERM, NG_PERM_LINEAR);
        set(r, NG_PARAM_K_INSTR,
            param(r, NG_PARAM_GROUP) * param(r, NG_PARAM_EXACT_GROUP) * ngc_between(g, 1, 4));
    }
    if (param(r, NG_PARAM_EXACT_GROUP) == 1 && ngc_one_in(g, 4)) {
        set(r, NG_PARAM_GROUP, 2 * ngc_between(g, 1, 16));
        set(r, NG_PARAM_K_INSTR, 2 * param(r, NG_PARAM_GROUP));
        set(r, NG_PARAM_K_PERM, NG_PERM_MOD4);
    }
    set(r, NG_PARAM_OUT_ZERO, ngc_between(g, NG_OUT_ZERO_SIGNED, NG_OUT_ZERO_PLUS));
    set(r, NG_PARAM_SPARSE_K, ngc_between(g, NG_SPARSE_K_COMPRESSED, NG_SPARSE_K_DENSE));
    if (ngc_one_in(g, 4))
        set(r, NG_PARAM_OPERAND_EXP, ngc_between(g, NG_OPERAND_EXP_OWN, NG_OPERAND_EXP_F16));
}

/* An f16 accumulator, where the rule has one. */
static void draw_f16(struct round *r)
{
    if (is_array(r) || param(r, NG_PARAM_OUT_F16) == NG_F16_ACC_NONE || ngc_one_in(&r->rng, 2))
        return;
    r->op.accumulate = NG_F16;
    if (r->c_spec)
        r->c_spec = ng_format_info(NG_F16);
    if (ngc_one_in(&r->rng, 2))
        r->d_spec = ng_format_info(NG_F16);
}

static void draw_sparse(struct round *r)
{
    static const uint8_t patterns[][2] = { { 2, 4 }, { 1, 4 }, { 1, 2 },  { 2, 8 },
                                           { 4, 8 }, { 3, 4 }, { 4, 12 }, { 4, 16 } };
    const uint8_t *p = patterns[ngc_below(&r->rng, sizeof patterns / sizeof patterns[0])];
    r->sparse =
        (ng_sparse){ .kept = p[0],
                     .group = p[1],
                     .store = p[1] <= 4 && ngc_one_in(&r->rng, 2) ? NG_TAG_NV24 : NG_TAG_TRN };
}

static void draw_psum(struct round *r)
{
    const bool sr = ngc_one_in(&r->rng, 2);
    r->op.accumulate = NG_BF16;
    set(r, NG_PARAM_PSUM_ROUND, NG_PSUM_RNE_OR_SR);
    if (sr)
        r->op.psum =
            (ng_cast){ .round = NG_ROUND_STOCHASTIC,
                       .sr = (ng_sr)ngc_between(&r->rng, NG_SR_A, NG_SR_C),
                       .sr_bits =
                           ngc_one_in(&r->rng, 2) ? 0 : (uint32_t)ngc_between(&r->rng, 1, 32),
                       .sr_take = ngc_one_in(&r->rng, 2) ? NG_SR_TAKE_LOW : NG_SR_TAKE_HIGH };
    if (r->c_spec)
        r->c_spec = ng_format_info(NG_BF16);
}

static void draw_rule(struct round *r)
{
    const struct kase *c = r->kase;
    r->rule = *c->rule;
    r->op = (ng_gemm_op){ .size = sizeof r->op,
                          .profile = &r->profile,
                          .double_row = c->rule->mode == NG_MODE_DOUBLE_ROW };
    r->d_spec = ng_format_info(NG_F32);
    r->c_spec = ngc_one_in(&r->rng, 2) ? ng_format_info(NG_F32) : NULL;
    if (is_array(r) && !ngc_one_in(&r->rng, 4))
        vary_chains(r);
    if (!is_array(r) && !ngc_one_in(&r->rng, 4))
        vary_fused(r);
    if (ngc_one_in(&r->rng, 5))
        vary_foreign(r);
    if (is_array(r))
        vary_rare(r);
    if (r->rule.mode >= NG_MODE_MX && ngc_one_in(&r->rng, 6)) /* a rule may take any */
        r->rule.block = 1u + ngc_below(&r->rng, ngc_one_in(&r->rng, 2) ? 20 : 140);
    if (r->rule.mode == NG_MODE_PLAIN && ngc_one_in(&r->rng, 6))
        draw_sparse(r);
    if (ng_rule_check(&r->rule, NULL, 0) != NG_OK)
        r->rule = *c->rule;
    r->profile = (ng_profile){ .name = c->profile->name,
                               .about = "",
                               .revision = c->profile->revision,
                               .n_rules = 1,
                               .rules = &r->rule };
    r->op.accumulate = NG_F32;
    if (is_array(r) && ngc_one_in(&r->rng, 8))
        set(r, NG_PARAM_PSUM, NG_PSUM_F32_OR_BF16);
    if (is_array(r) && param(r, NG_PARAM_PSUM) != NG_PSUM_F32 &&
        (param(r, NG_PARAM_PSUM) == NG_PSUM_BF16 || ngc_one_in(&r->rng, 3)))
        draw_psum(r);
    draw_f16(r);
    r->in_place = r->c_spec == r->d_spec && ngc_one_in(&r->rng, 3);
}

/* ---- Shapes. ---- */

static int64_t seam(struct ngc_rng *g, int64_t u)
{
    switch (ngc_below(g, 7)) {
    case 0: return 1;
    case 1: return u > 1 ? u - 1 : 1;
    case 2: return u;
    case 3: return u + 1;
    case 4: return 2 * u + 3;
    case 5: return 2 * u;
    default: return ngc_between(g, 1, (int)(3 * u < 300 ? 3 * u : 300));
    }
}

static void draw_shape(struct round *r)
{
    struct gemm_job *j = &r->job;
    struct ngc_rng *g = &r->rng;
    int64_t tile = 16, chain = 16;
    if (is_array(r)) {
        const int64_t rows = param(r, NG_PARAM_ROWS), lanes = param(r, NG_PARAM_LANES);
        tile = rows ? rows * lanes : 16 * lanes;
        chain = rows ? param(r, NG_PARAM_CHAIN_ROWS) * lanes : lanes;
    } else {
        tile = param(r, NG_PARAM_K_INSTR) ? param(r, NG_PARAM_K_INSTR) : 16;
        chain = param(r, NG_PARAM_GROUP);
    }
    if (r->kase->kernel->block.deep && ngc_one_in(g, 8))
        tile = r->kase->kernel->block.deep;
    /* many panels of A with one of B go through K a stretch at a time */
    const bool tall = r->kase->kernel->near && ngc_one_in(g, 12);
    for (int i = 0; i < 20 && !tall; i++) {
        j->m = seam(g, r->kase->kernel->mr);
        j->n = seam(g, r->kase->kernel->nr);
        j->k = seam(g, ngc_one_in(g, 2) ? chain : tile);
        if (j->m * j->n * j->k <= MAX_PRODUCTS)
            break;
        if (i > 8) /* deep sums: few elements */
            j->m = ngc_between(g, 1, 2);
        if (j->m * j->n * j->k <= MAX_PRODUCTS)
            break;
    }
    const int64_t few = r->kase->kernel->byte_panels, mr = r->kase->kernel->mr;
    if (r->kase->kernel->both && few > 2 && ngc_one_in(g, 12)) { /* two panels after two */
        j->m = ngc_between(g, (int)(2 * mr + 1), (int)(few * mr));
        j->n = ngc_between(g, 1, 3);
        const int64_t most = MAX_PRODUCTS / (j->m * j->n), k = seam(g, chain);
        j->k = k < most ? k : most;
    } else if (tall) {
        j->m = ngc_between(g, 8, 10) * r->kase->kernel->mr + ngc_between(g, 0, 5);
        j->n = ngc_one_in(g, 16) ? r->kase->kernel->nr : ngc_between(g, 1, 3);
        j->k = ngc_between(g, 100, j->n > 3 ? 150 : 300);
    }
    if (r->sparse.kept)
        j->k = (j->k + r->sparse.kept - 1) / r->sparse.kept * r->sparse.kept;
    if (r->rule.mode == NG_MODE_MX && !ngc_one_in(g, 3))
        j->k = (j->k + 31) / 32 * 32;
    if (r->rule.block && r->rule.block != 32 && ngc_one_in(g, 2)) /* blocks as a whole */
        j->k = (j->k + r->rule.block - 1) / r->rule.block * r->rule.block;
}

/* ---- Layouts. ---- */

/* Strides of a line x depth operand; either dimension may be the inner one. */
static bool lay_operand(struct round *r, struct gemm_operand *o, struct ngc_mem *m,
                        int64_t lines)
{
    struct ngc_rng *g = &r->rng;
    const uint32_t bits = o->spec->store_bits;
    const bool k_inner = ngc_one_in(g, 2), nibbles = bits == 4;
    const int64_t inner = k_inner ? o->depth : lines;
    const int64_t step = !nibbles && ngc_one_in(g, 6) ? 2 : 1;
    int64_t outer = inner * step + (ngc_one_in(g, 2) ? 0 : ngc_between(g, 1, 9));
    if (nibbles)
        outer += outer & 1;
    o->k = k_inner ? step : outer;
    o->line = k_inner ? outer : step;
    o->offset = ngc_one_in(g, 2) ? 0 : 2 * ngc_between(g, 1, 7);
    const int64_t last = o->offset + (lines - 1) * o->line + (o->depth - 1) * o->k;
    if (!nibbles && ngc_one_in(g, 6)) {
        o->offset += (lines - 1) * o->line;
        o->line = -o->line;
    }
    if (!nibbles && ngc_one_in(g, 6)) {
        o->offset += (o->depth - 1) * o->k;
        o->k = -o->k;
    }
    if (!ngc_mem_place(m, (size_t)((last + 1) * bits + 7) / 8, 1, !ngc_one_in(g, 4)))
        return false;
    o->data = m->data;
    return true;
}

static bool lay_matrix(struct round *r, struct gemm_matrix *x, const ng_format_spec *spec,
                       struct ngc_mem *m)
{
    struct ngc_rng *g = &r->rng;
    const int64_t rows = r->job.m, cols = r->job.n;
    const bool col_inner = !ngc_one_in(g, 4);
    const int64_t step = ngc_one_in(g, 6) ? 3 : 1;
    const int64_t outer =
        (col_inner ? cols : rows) * step + (ngc_one_in(g, 2) ? 0 : ngc_between(g, 1, 9));
    x->spec = spec;
    x->row = col_inner ? outer : step;
    x->col = col_inner ? step : outer;
    x->offset = ngc_one_in(g, 2) ? 0 : ngc_between(g, 1, 9);
    const int64_t last = x->offset + (rows - 1) * x->row + (cols - 1) * x->col;
    if (ngc_one_in(g, 6)) {
        x->offset += (rows - 1) * x->row;
        x->row = -x->row;
    }
    if (!ngc_mem_place(m, (size_t)(last + 1) * spec->store_bits / 8, 1, !ngc_one_in(g, 4)))
        return false;
    x->data = m->data;
    return true;
}

static bool lay_scale(struct round *r, struct gemm_operand *o, struct ngc_mem *m, int64_t lines)
{
    const bool nv = r->rule.mode == NG_MODE_NV;
    if (r->rule.mode != NG_MODE_MX && !nv)
        return true;
    o->block = r->rule.block ? r->rule.block : 32;
    o->scale_spec = ng_format_info(nv ? NG_UE4M3 : NG_E8M0);
    o->scale_block = 1;
    const int64_t blocks = (o->depth + o->block - 1) / o->block;
    o->scale_line = blocks + ngc_between(&r->rng, 0, 3);
    if (!ngc_mem_place(m, (size_t)((lines - 1) * o->scale_line + blocks), 1, true))
        return false;
    o->scale = m->data;
    o->layout = r->wrap ? NG_LAYOUT_TRN_WRAP : NG_LAYOUT_LINEAR;
    static const int widths[] = { 127, 12, 6, 4, 3, 2, 1, 1 };
    const int wide = nv ? 12 : widths[ngc_below(&r->rng, 8)];
    const struct ngc_mood mood = { .spec = o->scale_spec,
                                   .low = nv ? -9 : r->about - wide, /* nv: subnormals too */
                                   .high = nv ? 8 : r->about + wide,
                                   .zeros = nv && ngc_one_in(&r->rng, 4) ? 3 : 0,
                                   .special = ngc_one_in(&r->rng, 8) ? 9 : 0 };
    for (int64_t i = 0; i < lines; i++)
        for (int64_t q = 0; q < blocks; q++)
            ngc_store(m->data, 8, i * o->scale_line + q, ngc_code(&r->rng, &mood));
    return true;
}

static uint32_t draw_tag(struct round *r, uint32_t *left, uint32_t from)
{
    /* one of the places that leave enough for the slots after this one */
    const uint32_t tag = from + ngc_below(&r->rng, r->sparse.group - from - (*left - 1));
    --*left;
    return tag;
}

/* Mostly ascending inside a group, as compression makes them; else any. */
static bool lay_tags(struct round *r, struct gemm_operand *o, int64_t lines)
{
    const bool trn = r->sparse.store == NG_TAG_TRN, ascend = !ngc_one_in(&r->rng, 6);
    const int64_t depth = r->job.k, packed = trn ? (depth + 3) / 4 * 2 : (depth + 3) / 4;
    if (!ngc_mem_place(&mem.tags, (size_t)(lines * packed), 1, true))
        return false;
    o->tags_ascend = ascend || r->sparse.kept == 1;
    for (int64_t i = 0; i < lines; i++) {
        uint32_t left = 0, from = 0;
        for (int64_t k = 0; k < packed * (trn ? 2 : 4); k++) {
            uint32_t tag = ngc_below(&r->rng, r->sparse.group);
            if (k % r->sparse.kept == 0)
                left = r->sparse.kept, from = 0;
            if (ascend) {
                tag = draw_tag(r, &left, from);
                from = tag + 1;
            }
            uint8_t *p = mem.tags.data + i * packed + k / (trn ? 2 : 4);
            const int at = (int)(k % (trn ? 2 : 4)) * (trn ? 4 : 2), mask = trn ? 0xF : 3;
            *p = (uint8_t)((*p & ~(mask << at)) | (int)tag << at);
        }
    }
    r->sparse.tags = mem.tags.data;
    return true;
}

/* A word for every write of every element. */
static bool lay_words(struct round *r)
{
    const struct gemm_job *j = &r->job;
    const int64_t rows = param(r, NG_PARAM_ROWS),
                  deep = rows ? rows * param(r, NG_PARAM_LANES) : j->k,
                  adds = param(r, NG_PARAM_PIECES) == 2 ? param(r, NG_PARAM_PIECE_ADDS) : 1,
                  words = (j->k + deep - 1) / deep * adds * j->m * j->n;
    if (!ngc_mem_place(&mem.words, (size_t)words * 4, 4, true))
        return false;
    for (int64_t i = 0; i < words; i++)
        ngc_store(mem.words.data, 32, i, (uint32_t)ngc_next(&r->rng));
    r->op.psum.random = (ng_random){ .kind = NG_RANDOM_EXTERNAL,
                                     .word = (const uint32_t *)(const void *)mem.words.data,
                                     .count = words };
    r->psum_words = (struct ng_stream){ .source = r->op.psum.random, .columns = j->n };
    r->job.psum_words = &r->psum_words;
    return true;
}

static bool lay_out(struct round *r)
{
    struct gemm_job *j = &r->job;
    const int32_t lanes = is_array(r) ? param(r, NG_PARAM_LANES) : 0;
    r->wrap = r->rule.mode == NG_MODE_MX && r->rule.block == 32 && j->k % 32 == 0 &&
              ngc_one_in(&r->rng, 2) &&
              (lanes == 1 || (lanes == 4 && param(r, NG_PARAM_ROWS) == 128));
    r->about = 0; /* else products about an end of FP32's range */
    if (r->rule.mode == NG_MODE_MX && ngc_one_in(&r->rng, 5))
        r->about = ngc_between(&r->rng, 52, 70) * (ngc_one_in(&r->rng, 4) ? 1 : -1);
    j->a = (struct gemm_operand){ .spec = r->kase->a, .depth = j->k };
    j->b = (struct gemm_operand){ .spec = r->kase->b, .depth = j->k };
    if (r->sparse.kept) {
        const bool in_a = ngc_one_in(&r->rng, 2);
        *(in_a ? &j->a.sparse : &j->b.sparse) = &r->sparse;
        *(in_a ? &j->b.depth : &j->a.depth) = j->k / r->sparse.kept * r->sparse.group;
        if (!lay_tags(r, in_a ? &j->a : &j->b, in_a ? j->m : j->n))
            return false;
    }
    j->c = (struct gemm_matrix){ 0 };
    if (!lay_operand(r, &j->a, &mem.a, j->m) || !lay_operand(r, &j->b, &mem.b, j->n) ||
        !lay_scale(r, &j->a, &mem.sa, j->m) || !lay_scale(r, &j->b, &mem.sb, j->n) ||
        !lay_matrix(r, &j->d, r->d_spec, &mem.d))
        return false;
    if (r->in_place)
        j->c = j->d;
    else if (r->c_spec && !lay_matrix(r, &j->c, r->c_spec, &mem.c))
        return false;
    if (r->op.psum.round == NG_ROUND_STOCHASTIC && !lay_words(r))
        return false;
    j->op = &r->op;
    j->fp4 = r->op.fp4_map ? ng_format_info(r->op.fp4_format) : NULL;
    j->rule = &r->rule;
    j->mode = r->rule.mode;
    j->acc = r->op.accumulate;
    j->first = 0;
    j->elements = j->m * j->n;
    return true;
}

/* ---- Data. ---- */

static int log2_ceil(int64_t n)
{
    int bits = 0;
    while (((int64_t)1 << bits) < n)
        bits++;
    return bits;
}

static void clip(struct ngc_mood *m)
{
    const int least = ngc_exp_least(m->spec), most = ngc_exp_most(m->spec);
    m->low = m->low < least ? least : m->low > most ? most : m->low;
    m->high = m->high < m->low ? m->low : m->high > most ? most : m->high;
}

static bool is_wide(const ng_format_spec *f)
{
    return f->exp_bits == 8;
}

/* A mood of a format whose products stay well inside FP32, whatever the window. */
static void narrow_mood(struct ngc_rng *g, struct ngc_mood *m)
{
    const int least = ngc_exp_least(m->spec), most = ngc_exp_most(m->spec),
              normal = ngc_exp_normal(m->spec);
    m->low = ngc_between(g, least, most);
    m->high = m->low + ngc_between(g, 0, most - least);
    switch (ngc_below(g, 8)) {
    case 0: m->any_code = true; break;
    case 1: m->low = least, m->high = normal; break;
    case 2: m->low = most, m->high = most; break;
    case 3: m->low = -1, m->high = 1; break;
    case 4: m->low = least, m->high = most; break;
    default: break;
    }
    clip(m);
}

/*
 * Where FP32's exponents are in reach, the window of one operand follows from the other's so
 * that the products lie in the middle, or at the very borders of what an FP32 chain computes:
 * unit 2^-149 or 2^-126, bound 2^127; or FP32 operations align, 2^-100 and 2^120.
 */
static void wide_mood(struct round *r, struct ngc_mood *m, const struct ngc_mood *other)
{
    struct ngc_rng *g = &r->rng;
    const int man = (int)m->spec->man_bits, width = ngc_between(g, 0, 20);
    const int other_lsb =
        other->low -
        (other->low < ngc_exp_normal(other->spec) ? 0 : (int)other->spec->man_bits);
    const int border = ngc_one_in(g, 2) ? -149 : is_array(r) ? -126 : -100;
    const int top = is_array(r) || ngc_one_in(g, 2) ? 127 : 120;
    const int floor_ = border - other_lsb + man, bound = top - 2 - log2_ceil(r->job.k);
    switch (ngc_below(g, 6)) {
    case 0: /* the lowest unit */
        m->low = floor_ + ngc_between(g, -3, 3);
        m->high = m->low + width;
        break;
    case 1: /* the highest sum */
        m->high = bound - other->high + ngc_between(g, -3, 3);
        m->low = m->high - width / 4;
        break;
    case 2: /* subnormals of this operand */
        m->low = ngc_exp_least(m->spec);
        m->high = ngc_exp_normal(m->spec);
        break;
    case 3: m->low = -1, m->high = 1; break;
    default:
        m->low = ngc_between(g, floor_, bound - other->high);
        m->high = m->low + width;
        if (m->high > bound - other->high)
            m->high = bound - other->high;
        break;
    }
    clip(m);
}

static struct ngc_mood plain_mood(struct round *r, const ng_format_spec *f)
{
    struct ngc_mood m = { .spec = f };
    if (is_wide(f)) {
        m.low = ngc_between(&r->rng, -62, 40);
        m.high = m.low + ngc_between(&r->rng, 0, 16);
        clip(&m);
    } else {
        narrow_mood(&r->rng, &m);
    }
    return m;
}

static void season(struct ngc_rng *g, struct ngc_mood *m, bool specials)
{
    m->ends_only = ngc_one_in(g, 6);
    m->zeros = ngc_one_in(g, 20) ? 1 : ngc_one_in(g, 4) ? 1 + ngc_below(g, 8) : 0;
    m->special = specials && ngc_one_in(g, 2) ? 1 + ngc_below(g, 200) : 0;
}

static void fill_operand(struct round *r, const struct gemm_operand *o, void *data,
                         int64_t lines, const struct ngc_mood *mood)
{
    for (int64_t i = 0; i < lines; i++)
        for (int64_t k = 0; k < o->depth; k++)
            ngc_store(data, o->spec->store_bits, o->offset + i * o->line + k * o->k,
                      ngc_code(&r->rng, mood));
}

/* Blocks of zeros, whatever their scales. */
static void blank(struct round *r, const struct gemm_operand *o, void *data, int64_t lines)
{
    for (int64_t i = 0; i < lines; i++)
        for (int64_t k = 0; k < o->depth; k += o->block)
            for (int64_t q = ngc_one_in(&r->rng, 6) ? k : o->depth;
                 q < k + o->block && q < o->depth; q++)
                ngc_store(data, o->spec->store_bits, o->offset + i * o->line + q * o->k, 0);
}

/* Products in pairs that cancel: A(i, k + d) = -A(i, k), B(k + d, j) = B(k, j). */
static void cancel(struct round *r)
{
    const struct gemm_job *j = &r->job;
    const uint32_t ba = j->a.spec->store_bits, bb = j->b.spec->store_bits;
    if (r->sparse.kept || j->k < 2)
        return;
    const int64_t d = ngc_one_in(&r->rng, 2) ? 1 : ngc_between(&r->rng, 1, (int)j->k - 1);
    for (int64_t k = 0; k + d < j->k; k += 2 * d)
        for (int64_t x = k; x < k + d && x + d < j->k; x++) {
            if (ngc_one_in(&r->rng, 5))
                continue;
            for (int64_t i = 0; i < j->m; i++) {
                const int64_t at = j->a.offset + i * j->a.line + x * j->a.k;
                ngc_store(mem.a.data, ba, at + d * j->a.k,
                          ngc_negate(j->a.spec, ngc_load(mem.a.data, ba, at)));
            }
            for (int64_t i = 0; i < j->n; i++) {
                const int64_t at = j->b.offset + i * j->b.line + x * j->b.k;
                ngc_store(mem.b.data, bb, at + d * j->b.k, ngc_load(mem.b.data, bb, at));
            }
        }
}

/* The code of 2^e (or of the least number), or of the next larger one. */
static uint32_t power_code(const ng_format_spec *f, int e, bool next)
{
    const int least = ngc_exp_least(f);
    const uint32_t mag = e >= ngc_exp_normal(f) ? (uint32_t)(e + f->bias) << f->man_bits
                                                : 1u << (e > least ? e - least : 0);
    return (mag + next) << f->low_bits;
}

/*
 * Sums that end half way between two FP32 numbers, and what decides them far
 * below: products are powers of two, 0, 1, 23 to 26 or about 50 places under
 * the largest.
 */
static void ties(struct round *r)
{
    static const int8_t below[] = { 0, 0, 0, 1, 23, 24, 24, 24, 25, 26, 47, 50, 60 };
    const struct gemm_job *j = &r->job;
    const struct gemm_operand *o[] = { &j->a, &j->b };
    void *const data[] = { mem.a.data, mem.b.data };
    const int64_t lines[] = { j->m, j->n };
    const bool all_in_a = ngc_one_in(&r->rng, 2);
    int64_t
        even[2]; /* the first lines have one exponent: neighbours of very different spread */
    int top[2], reach[2];
    for (int i = 0; i < 2; i++) {
        const ng_format_spec *f = o[i]->spec;
        even[i] = ngc_one_in(&r->rng, 3) ? ngc_between(&r->rng, 0, (int)lines[i]) : 0;
        top[i] = is_wide(f) ? ngc_between(&r->rng, -40, 20) : ngc_exp_most(f);
        reach[i] = is_wide(f) ? 60 : top[i] - ngc_exp_least(f);
    }
    if (ngc_one_in(&r->rng, 3)) /* near the lowest exponents of FP32, where it rounds early */
        for (int i = 0; i < 2; i++)
            if (is_wide(o[i]->spec))
                top[i] = ngc_between(&r->rng, -75, -45);
    for (int64_t k = 0; k < j->k; k++) {
        const int all = below[ngc_below(&r->rng, sizeof below)],
                  drop = all < reach[0] + reach[1] ? all : reach[0] + reach[1],
                  most = drop < reach[0] ? drop : reach[0],
                  least = drop > reach[1] ? drop - reach[1] : 0,
                  in_a = all_in_a ? most : ngc_between(&r->rng, least, most);
        for (int i = 0; i < 2; i++)
            for (int64_t l = 0; l < lines[i]; l++) {
                const int e = top[i] - (l < even[i] ? 0 : i ? drop - in_a : in_a);
                uint32_t code = power_code(o[i]->spec, e, drop < 2 && ngc_one_in(&r->rng, 6));
                if (ngc_one_in(&r->rng, 16))
                    code = 0;
                else if (ngc_one_in(&r->rng, 3))
                    code = ngc_negate(o[i]->spec, code);
                ngc_store(data[i], o[i]->spec->store_bits,
                          o[i]->offset + l * o[i]->line + k * o[i]->k, code);
            }
    }
}

/* Products of one exponent and sign, of all places or nearly: the largest sum of a step. */
static void crowd(struct round *r)
{
    const struct gemm_job *j = &r->job;
    const struct gemm_operand *o[] = { &j->a, &j->b };
    void *const data[] = { mem.a.data, mem.b.data };
    const int64_t lines[] = { j->m, j->n };
    for (int i = 0; i < 2; i++) {
        const ng_format_spec *f = o[i]->spec;
        const int e = is_wide(f) ? ngc_between(&r->rng, -40, 20)
                                 : ngc_between(&r->rng, ngc_exp_normal(f), ngc_exp_most(f) - 1);
        const uint32_t most = power_code(f, e + 1, false) - (1u << f->low_bits);
        for (int64_t l = 0; l < lines[i]; l++) {
            const bool negate = ngc_one_in(&r->rng, 2);
            for (int64_t k = 0; k < j->k; k++) {
                const uint32_t less = ngc_one_in(&r->rng, 6) ? 1u << f->low_bits : 0,
                               code = most - less;
                ngc_store(data[i], f->store_bits, o[i]->offset + l * o[i]->line + k * o[i]->k,
                          negate ? ngc_negate(f, code) : code);
            }
        }
    }
}

/* C about as large as the products, far above, far below; zeros; now and then specials. */
static void fill_c(struct round *r, void *data, const struct ngc_mood *a,
                   const struct ngc_mood *b)
{
    const struct gemm_matrix *c = &r->job.c;
    const int mid = (a->low + a->high + b->low + b->high) / 2;
    struct ngc_mood m = { .spec = c->spec };
    const int reach = ngc_one_in(&r->rng, 2) ? 4 : 30;
    m.low = mid - reach;
    m.high = mid + reach;
    clip(&m);
    season(&r->rng, &m, ngc_one_in(&r->rng, 3));
    if (ngc_one_in(&r->rng, 8))
        m.any_code = true;
    if (r->op.out.overflow != NG_OVERFLOW_INF)
        m.special = 4;
    for (int64_t i = 0; i < r->job.m; i++)
        for (int64_t q = 0; q < r->job.n; q++)
            ngc_store(data, c->spec->store_bits, c->offset + i * c->row + q * c->col,
                      ngc_code(&r->rng, &m));
}

static void fill(struct round *r)
{
    struct gemm_job *j = &r->job;
    /* in pieces an Inf or NaN is taken apart: more of them there */
    const bool specials = ngc_one_in(&r->rng, param(r, NG_PARAM_PIECES) == 2 ? 3 : 12);
    struct ngc_mood a = plain_mood(r, j->a.spec), b = plain_mood(r, j->b.spec);
    if (is_wide(a.spec) && (!is_wide(b.spec) || ngc_one_in(&r->rng, 2)))
        wide_mood(r, &a, &b);
    else if (is_wide(b.spec))
        wide_mood(r, &b, &a);
    if (ngc_one_in(&r->rng, 10)) /* far outside what fast paths take */
        a.any_code = b.any_code = true;
    const struct ngc_mood plain_a = a, plain_b = b;
    season(&r->rng, &a, specials);
    season(&r->rng, &b, specials);
    fill_operand(r, &j->a, mem.a.data, j->m, &a);
    fill_operand(r, &j->b, mem.b.data, j->n, &b);
    if (j->a.scale && ngc_one_in(&r->rng, 4)) {
        blank(r, &j->a, mem.a.data, j->m);
        blank(r, &j->b, mem.b.data, j->n);
    }
    if (!r->sparse.kept && ngc_one_in(&r->rng, param(r, NG_PARAM_LANES) > 1 ? 3 : 8))
        ties(r);
    else if (!is_array(r) && !r->sparse.kept && ngc_one_in(&r->rng, 8))
        crowd(r);
    else if (ngc_one_in(&r->rng, 3))
        cancel(r);
    if (r->c_spec)
        fill_c(r, r->in_place ? mem.d.data : mem.c.data, &plain_a, &plain_b);
}

/* ---- Runs. ---- */

static void run_reference(void *arg)
{
    struct round *r = arg;
    struct gemm_job j = r->job;
    j.d.data = mem.want.data;
    if (r->in_place)
        j.c.data = mem.want.data;
    for (int64_t i = 0; i < j.m; i++)
        for (int64_t q = 0; q < j.n; q++)
            ng_ref_gemm_store(&j, i, q, ng_ref_gemm_element(&j, i, q, NULL));
}

static int64_t shuffle_tiles(struct round *r, int64_t tiles)
{
    const int64_t n = tiles < MAX_TILES ? tiles : MAX_TILES;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = ngc_between(&r->rng, 0, (int)i);
        r->order[i] = r->order[at];
        r->order[at] = i;
    }
    return n;
}

/* ---- By the contract: walk, panels, tiles in any order, K in any pieces. ---- */

struct direct {
    struct gemm_walk walk;
    size_t a_bytes, b_bytes, slim_bytes;
    int64_t down, across;
    int32_t height[300];         /* rows of A's panels */
    int64_t row[301];            /* where they begin; and behind the last */
    bool done[300], column[300]; /* all tiles of that panel, of A or of B, in one call */
    unsigned long long slim_tiles, run_tiles; /* without growing; in one call; of all rounds */
};

static struct direct direct;

/* What run_direct() judges by itself: the accumulator, unrounded, is D. */
static bool is_plain(const struct round *r)
{
    return r->job.acc == NG_F32 && r->job.d.spec->format == NG_F32 && !r->op.out_scale &&
           r->op.out.overflow == NG_OVERFLOW_INF &&
           (!r->job.c.data || r->job.c.spec->format == NG_F32);
}

static bool place_direct(struct round *r)
{
    struct direct *x = &direct;
    const struct gemm_job *j = &r->job;
    const struct ng_gemm_kernel *k = r->kase->kernel;
    const size_t walk = ng_walk_bytes(j);
    if (!walk || !ngc_mem_place(&mem.walk, walk, 64, true))
        return false;
    ng_walk_build(j, mem.walk.data, &x->walk);
    x->a_bytes = k->panel_bytes(j, &x->walk, GEMM_A);
    x->b_bytes = k->panel_bytes(j, &x->walk, GEMM_B);
    x->across = (j->n + k->nr - 1) / k->nr;
    x->slim_bytes = k->slim_bytes(j, &x->walk);
    x->down = 0;
    for (int64_t i = 0; i < j->m; x->down++) {
        if (x->down == 300)
            return false;
        const int left = (int)(j->m - i), most = left < k->mr ? left : k->mr;
        x->row[x->down] = i;
        x->height[x->down] = ngc_one_in(&r->rng, 3) ? ngc_between(&r->rng, 1, most) : most;
        i += x->height[x->down];
    }
    x->row[x->down] = j->m;
    return ngc_mem_place(&mem.pa, x->a_bytes * (size_t)x->down, 64, true) &&
           ngc_mem_place(&mem.pb, x->b_bytes * (size_t)x->across, 64, true) &&
           ngc_mem_place(&mem.slim, x->slim_bytes * (size_t)x->across, 64, true) &&
           ngc_mem_place(&mem.scratch, k->scratch_bytes, 64, true);
}

static void note(struct round *r, const char *what)
{
    if (!r->wrong)
        r->wrong = what;
}

static float *psum_at(const struct round *r, int64_t i, int64_t q)
{
    return (float *)(void *)mem.psum.data + i * r->kase->kernel->nr + q;
}

static float c_at(const struct round *r, int64_t i, int64_t q)
{
    const struct gemm_matrix *c = &r->job.c;
    const uint32_t u = ngc_load(c->data, 32, c->offset + i * c->row + q * c->col);
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* By the slim panel where the kernel takes it; psum is untouched where it does not. */
static gemm_way run_piece(struct round *r, const struct gemm_tile *t, int64_t q)
{
    const struct direct *x = &direct;
    const struct ng_gemm_kernel *k = r->kase->kernel;
    if (x->slim_bytes && k->tile_slim && ngc_one_in(&r->rng, 2)) {
        struct gemm_tile slim = *t;
        slim.b = mem.slim.data + (size_t)q * x->slim_bytes;
        ngc_mem_keep(&mem.psum);
        const gemm_way way = k->tile_slim(&r->job, &x->walk, &slim);
        if (way != GEMM_LEFT) {
            direct.slim_tiles++;
            return way;
        }
        if (!ngc_mem_kept(&mem.psum))
            note(r, "a slim tile that was left wrote to psum");
    }
    return k->tile(&r->job, &x->walk, t);
}

/* One tile in K pieces of random size. */
static gemm_way run_pieces(struct round *r, int64_t i, int64_t q)
{
    struct direct *x = &direct;
    const struct gemm_job *j = &r->job;
    const struct gemm_walk *w = &x->walk;
    const struct ng_gemm_kernel *k = r->kase->kernel;
    const int64_t end = w->whole ? w->depth : w->tiles * w->writes;
    struct gemm_tile t = { .a = mem.pa.data + (size_t)i * x->a_bytes,
                           .b = mem.pb.data + (size_t)q * x->b_bytes,
                           .rows = x->height[i],
                           .begun = j->c.data && !w->whole,
                           .psum = (float *)(void *)mem.psum.data,
                           .scratch = mem.scratch.data,
                           .fresh = ngc_one_in(&r->rng, 2),
                           .once = ngc_one_in(&r->rng, 4),
                           .parts = (uint8_t)ngc_below(&r->rng, 16),
                           .next = q + 1 < x->across ? (int64_t)x->b_bytes : 0 };
    gemm_way worst = GEMM_FAST;
    for (t.from = 0; t.from < end; t.from = t.to, t.begun = true) {
        int64_t piece =
            w->whole ? GEMM_GRAIN * ngc_between(&r->rng, 1, 4) : ngc_between(&r->rng, 1, 5);
        if (ngc_one_in(&r->rng, 2))
            piece = end;
        t.to = end - t.from < piece ? end : t.from + piece;
        const gemm_way way = run_piece(r, &t, q);
        if (way == GEMM_WHOLE && t.from == 0 && t.to < end) {
            t.to = end;
            return k->tile(j, w, &t);
        }
        if (way == GEMM_WHOLE || (way == GEMM_LEFT && t.from > 0))
            note(r, "changed its mind inside a tile");
        if (way == GEMM_LEFT || way == GEMM_WHOLE)
            return GEMM_LEFT;
        worst = way > worst ? way : worst;
    }
    return worst;
}

static void store_direct(struct round *r, int64_t row, int64_t col, float v)
{
    const struct gemm_job *j = &r->job;
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    if (v != v)
        u = (uint32_t)param(r, NG_PARAM_NAN_F32);
    ng_ref_gemm_store(j, row, col, u);
}

/* C, or nothing, for a tile whose psum is `at` rows down. */
static void begin_tile(struct round *r, int64_t i, int64_t q, int64_t at)
{
    const struct gemm_job *j = &r->job;
    const int64_t nr = r->kase->kernel->nr;
    for (int64_t y = 0; y < direct.height[i] && j->c.data && !direct.walk.whole; y++)
        for (int64_t x = 0; x < nr; x++)
            *psum_at(r, at + y, x) =
                q * nr + x < j->n ? c_at(r, direct.row[i] + y, q * nr + x) : 0;
}

static void store_tile(struct round *r, int64_t i, int64_t q, int64_t at, gemm_way way)
{
    const struct gemm_job *j = &r->job;
    const int64_t nr = r->kase->kernel->nr;
    const bool add = direct.walk.whole && j->c.data;
    for (int64_t y = 0; y < direct.height[i]; y++)
        for (int64_t x = 0; x < nr && q * nr + x < j->n; x++) {
            const int64_t row = direct.row[i] + y, col = q * nr + x;
            const float sum = way == GEMM_LEFT ? 0 : *psum_at(r, at + y, x);
            if (way == GEMM_LEFT)
                ng_ref_gemm_store(j, row, col, ng_ref_gemm_element(j, row, col, NULL));
            else
                store_direct(r, row, col, add ? c_at(r, row, col) + sum : sum);
        }
}

static void run_one_tile(struct round *r, int64_t i, int64_t q)
{
    const int64_t nr = r->kase->kernel->nr, rows = direct.height[i];
    if (!ngc_mem_place(&mem.psum, (size_t)(rows * nr) * 4, 4, true))
        return;
    begin_tile(r, i, q, 0);
    const gemm_way way = run_pieces(r, i, q);
    if (mem.psum.data + mem.psum.bytes < (unsigned char *)psum_at(r, rows, 0))
        note(r, "psum"); /* never: keeps the bound in sight */
    store_tile(r, i, q, 0, way);
}

/* By tile()'s contract, psum is untouched where nothing was done. */
static bool run_tiles(struct round *r, const struct gemm_tile *t, const struct gemm_run *run)
{
    const struct ng_gemm_kernel *k = r->kase->kernel;
    ngc_mem_keep(&mem.psum);
    if (k->tiles(&r->job, &direct.walk, t, run))
        return true;
    if (!ngc_mem_kept(&mem.psum))
        note(r, "tiles that were left wrote to psum");
    return false;
}

/* The same, of all of K in one piece or two. */
static bool run_all_of_k(struct round *r, struct gemm_tile *t, const struct gemm_run *run)
{
    const struct gemm_walk *w = &direct.walk;
    const int64_t end = w->whole ? w->depth : w->tiles * w->writes,
                  cut = w->whole ? end / 2 / GEMM_GRAIN * GEMM_GRAIN : end / 2;
    t->to = cut > 0 && ngc_one_in(&r->rng, 2) ? cut : end;
    if (!run_tiles(r, t, run))
        return false;
    if (t->to < end) {
        t->from = t->to;
        t->to = end;
        t->begun = true;
        if (!r->kase->kernel->tiles(&r->job, w, t, run))
            note(r, "panels changed their mind");
    }
    return true;
}

/* All of B's panels under one of A, K in one piece or two. False: the kernel would not. */
static bool run_panels(struct round *r, int64_t i)
{
    const struct direct *x = &direct;
    const struct ng_gemm_kernel *k = r->kase->kernel;
    const int64_t rows = x->height[i];
    const struct gemm_run b = { .panels = x->across,
                                .b_step = (int64_t)x->b_bytes,
                                .psum_step = rows * k->nr };
    struct gemm_tile t = { .a = mem.pa.data + (size_t)i * x->a_bytes,
                           .b = mem.pb.data,
                           .rows = (int32_t)rows,
                           .begun = r->job.c.data && !x->walk.whole,
                           .scratch = mem.scratch.data,
                           .once = ngc_one_in(&r->rng, 2) };
    if (!ngc_mem_place(&mem.psum, (size_t)(rows * k->nr * x->across) * 4, 4, true))
        return false;
    t.psum = (float *)(void *)mem.psum.data;
    for (int64_t q = 0; q < x->across; q++)
        begin_tile(r, i, q, q * rows);
    if (!run_all_of_k(r, &t, &b))
        return false;
    for (int64_t q = 0; q < x->across; q++)
        store_tile(r, i, q, q * rows, GEMM_FAST);
    direct.run_tiles += (unsigned long long)x->across;
    return true;
}

/* All of A's panels with one of B's: each to its psum, or to D by one psum for all or one each;
 * K in one piece or two. */
static bool run_column(struct round *r, int64_t q)
{
    struct direct *x = &direct;
    const struct gemm_job *j = &r->job;
    const struct gemm_walk *w = &x->walk;
    const struct ng_gemm_kernel *k = r->kase->kernel;
    const int64_t size = k->mr * k->nr, end = w->whole ? w->depth : w->tiles * w->writes;
    const bool out = !j->c.data && ngc_one_in(&r->rng, 2), same = out && ngc_one_in(&r->rng, 2);
    const int64_t cut = w->whole ? end / 2 / GEMM_GRAIN * GEMM_GRAIN : end / 2;
    uint8_t way[2 * 300] = { 0 };
    if (!ngc_mem_place(&mem.psum, (size_t)(size * (same ? 1 : x->down)) * 4, 4, true))
        return false;
    struct gemm_write write = { .psum = (float *)(void *)mem.psum.data,
                                .d = (unsigned char *)j->d.data +
                                     4 * (j->d.offset + q * k->nr * j->d.col),
                                .rows = x->height[0],
                                .columns = j->n - q * k->nr < k->nr ? j->n - q * k->nr : k->nr,
                                .d_row = 4 * j->d.row,
                                .d_col = 4 * j->d.col,
                                .nan = (uint32_t)param(r, NG_PARAM_NAN_F32) };
    const struct gemm_run run = { .panels = x->down,
                                  .a_step = (int64_t)x->a_bytes,
                                  .psum_step = same ? 0 : size,
                                  .row = x->row,
                                  .way = way,
                                  .way_step = ngc_between(&r->rng, 1, 2) };
    struct gemm_tile t = { .a = mem.pa.data,
                           .b = mem.pb.data + (size_t)q * x->b_bytes,
                           .rows = x->height[0],
                           .begun = j->c.data && !w->whole,
                           .psum = (float *)(void *)mem.psum.data,
                           .scratch = mem.scratch.data,
                           .fresh = k->both && x->down == 2 && ngc_one_in(&r->rng, 2) };
    for (int64_t i = 0; i < x->down && !out; i++)
        begin_tile(r, i, q, i * k->mr);
    t.to = cut > 0 && !same && ngc_one_in(&r->rng, 2) ? cut : end;
    t.write = out && t.to == end ? &write : NULL;
    if (!run_tiles(r, &t, &run))
        return false;
    if (t.to < end) {
        t.from = t.to;
        t.to = end;
        t.begun = true;
        t.write = out ? &write : NULL;
        if (out && !k->tiles(j, w, &t, &run)) /* psum cannot go to this D */
            t.write = NULL;
        if (!t.write && !k->tiles(j, w, &t, &run))
            note(r, "a column changed its mind");
    }
    for (int64_t i = 0; i < x->down && !t.write; i++)
        store_tile(r, i, q, i * k->mr, GEMM_FAST);
    t.from = 0;
    for (int64_t i = 0; i < x->down; i++) {
        struct gemm_tile one = t;
        one.a = mem.pa.data + (size_t)i * x->a_bytes;
        one.rows = x->height[i];
        one.begun = false;
        one.write = NULL;
        if (k->tile(j, w, &one) != (gemm_way)way[i * run.way_step])
            note(r, "a column's tile says another way than tile()");
    }
    direct.run_tiles += (unsigned long long)x->down;
    return true;
}

/* Two panels of A with B's slim panel q, each to its psum, K in one piece or two. */
static bool run_two(struct round *r, int64_t i, int64_t q)
{
    const struct direct *x = &direct;
    const struct ng_gemm_kernel *k = r->kase->kernel;
    const int64_t size = k->mr * k->nr;
    uint8_t way[2] = { 0 };
    if (!ngc_mem_place(&mem.psum, (size_t)size * 2 * 4, 4, true))
        return false;
    const struct gemm_run run = { .panels = 2,
                                  .a_step = (int64_t)x->a_bytes,
                                  .psum_step = size,
                                  .row = x->row + i,
                                  .way = way,
                                  .way_step = 1,
                                  .slim = true };
    struct gemm_tile t = { .a = mem.pa.data + (size_t)i * x->a_bytes,
                           .b = mem.slim.data + (size_t)q * x->slim_bytes,
                           .rows = x->height[i],
                           .begun = r->job.c.data && !x->walk.whole,
                           .psum = (float *)(void *)mem.psum.data,
                           .scratch = mem.scratch.data,
                           .fresh = ngc_one_in(&r->rng, 2),
                           .parts = (uint8_t)ngc_below(&r->rng, 16),
                           .next = q + 1 < x->across ? (int64_t)x->slim_bytes : 0 };
    begin_tile(r, i, q, 0);
    begin_tile(r, i + 1, q, k->mr);
    if (!run_all_of_k(r, &t, &run))
        return false;
    store_tile(r, i, q, 0, GEMM_FAST);
    store_tile(r, i + 1, q, k->mr, GEMM_FAST);
    direct.run_tiles += 2;
    return true;
}

/* Panels of A two after two; those that are left go alone. */
static bool run_twos(struct round *r, int64_t q)
{
    const struct direct *x = &direct;
    for (int64_t i = 0; i < x->down; i++)
        if (i + 1 < x->down && run_two(r, i, q))
            i++;
        else
            run_one_tile(r, i, q);
    return true;
}

/* A panel of B that was slim in between, and grew in pieces on what had been there. */
static void slim_and_grow(struct round *r, int64_t q, int32_t lines, unsigned char *panel)
{
    const struct ng_gemm_kernel *k = r->kase->kernel;
    const struct gemm_walk *w = &direct.walk;
    unsigned char *slim = mem.slim.data + (size_t)q * direct.slim_bytes;
    const int64_t end = w->whole ? w->depth : w->tiles;
    k->slim(&r->job, w, q * k->nr, lines, panel, slim);
    memset(panel, ngc_one_in(&r->rng, 2) ? 0 : 0xA5, direct.b_bytes);
    for (int64_t from = 0, to; from < end; from = to) {
        to = from + (w->whole ? GEMM_GRAIN : 1) * ngc_between(&r->rng, 1, 4);
        to = to < end ? to : end;
        k->grow(&r->job, w, w->whole ? from : w->start[from], w->whole ? to : w->start[to],
                slim, q % 2 ? (int64_t)direct.slim_bytes : 0, panel);
    }
}

/* Rooms 3 and 4 as src/ops/gemm_run.c runs them. */
static void run_direct(void *arg)
{
    struct round *r = arg;
    const struct ng_gemm_kernel *k = r->kase->kernel;
    const struct gemm_job *j = &r->job;
    struct direct *x = &direct;
    const int64_t n = shuffle_tiles(r, x->across * x->down);
    const uint32_t before = ngc_fp_get();
    (void)ng_fp_enter();
    const uint32_t inside = ngc_fp_control(ngc_fp_get());
    for (int64_t i = x->down; i-- > 0;)
        k->pack(j, &x->walk, GEMM_A, x->row[i], x->height[i],
                mem.pa.data + (size_t)i * x->a_bytes);
    for (int64_t q = 0; q < x->across; q++) {
        const int32_t lines = (int32_t)(j->n - q * k->nr < k->nr ? j->n - q * k->nr : k->nr);
        unsigned char *panel = mem.pb.data + (size_t)q * x->b_bytes;
        k->pack(j, &x->walk, GEMM_B, q * k->nr, lines, panel);
        if (x->slim_bytes)
            slim_and_grow(r, q, lines, panel);
    }
    ngc_mem_keep(&mem.pa);
    ngc_mem_keep(&mem.pb);
    const bool columns = ngc_one_in(&r->rng, 2); /* a tile is done once: C may be in D */
    const bool twos = k->tiles && k->both && x->slim_bytes && ngc_one_in(&r->rng, 3);
    for (int64_t i = 0; i < x->down; i++)
        x->done[i] = k->tiles && !columns && ngc_one_in(&r->rng, 2) && run_panels(r, i);
    for (int64_t q = 0; q < x->across; q++)
        x->column[q] = k->tiles && columns && ngc_one_in(&r->rng, 2) &&
                       (twos ? run_twos(r, q) : run_column(r, q));
    for (int64_t t = 0; t < n; t++)
        if (!x->done[r->order[t] / x->across] && !x->column[r->order[t] % x->across])
            run_one_tile(r, r->order[t] / x->across, r->order[t] % x->across);
    const uint32_t after = ngc_fp_control(ngc_fp_get());
    ngc_fp_set(before);
    if (after != inside)
        note(r, "left the control word changed");
    if (!ngc_mem_kept(&mem.pa) || !ngc_mem_kept(&mem.pb))
        note(r, "a tile wrote to a panel");
}

static ng_tensor operand_view(const struct gemm_operand *o, int64_t lines, bool is_a)
{
    ng_tensor t = { .data = (unsigned char *)o->data + o->offset * o->spec->store_bits / 8,
                    .format = o->spec->format,
                    .rank = 2,
                    .sparse = o->sparse };
    const int line = is_a ? 0 : 1, k = 1 - line;
    t.dim[line] = lines;
    t.dim[k] = o->depth;
    t.stride[line] = o->line;
    t.stride[k] = o->k;
    if (o->scale) {
        t.scale = (void *)(uintptr_t)o->scale;
        t.scale_format = o->scale_spec->format;
        t.block = o->block;
        t.block_axis = (uint32_t)k;
        t.layout = o->layout;
        t.scale_stride[line] = o->scale_line;
        t.scale_stride[k] = o->scale_block;
    }
    return t;
}

static ng_tensor matrix_view(const struct gemm_job *j, const struct gemm_matrix *x)
{
    return (ng_tensor){ .data = (unsigned char *)x->data + x->offset * x->spec->store_bits / 8,
                        .format = x->spec->format,
                        .rank = 2,
                        .dim = { j->m, j->n },
                        .stride = { x->row, x->col } };
}

/* ng_gemm(), or ng_pack() and ng_gemm_packed(), by a hostile caller. */
static void run_calls(struct round *r, bool packed)
{
    const struct gemm_job *j = &r->job;
    ng_packed *p = NULL;
    ng_ctx_config config = { .size = sizeof config, .isa_mask = r->kase->isa->bit };
    if (ngc_one_in(&r->rng, 2))
        config.executor = ngc_backwards;
    ng_ctx *ctx = NULL;
    r->status = ng_ctx_create(&config, &ctx);
    if (r->status)
        return;
    const ng_tensor a = operand_view(&j->a, j->m, true), b = operand_view(&j->b, j->n, false);
    const ng_tensor d = matrix_view(j, &j->d);
    ng_tensor c = { 0 };
    if (j->c.data)
        c = matrix_view(j, &j->c);
    const uint32_t before = ngc_fp_get(), hostile = ngc_fp_hostile();
    ngc_fp_set(hostile);
    if (packed)
        r->status = ng_pack(ctx, &r->op, &b, j->a.spec->format, &p);
    if (p)
        r->status = ng_gemm_packed(ctx, &r->op, &a, p, j->c.data ? &c : NULL, &d);
    else if (!packed)
        r->status = ng_gemm(ctx, &r->op, &a, &b, j->c.data ? &c : NULL, &d);
    const uint32_t after = ngc_fp_get();
    ngc_fp_set(before);
    if (after != hostile)
        note(r, "a call changed the control word");
    (void)snprintf(r->message, sizeof r->message, "%s", ng_ctx_message(ctx));
    for (const struct ng_gemm_kernel *const *k = r->kase->isa->kernels->gemm; *k; k++)
        r->took = r->took || strcmp(ng_ctx_kernel(ctx), (*k)->name) == 0;
    ng_packed_destroy(p);
    ng_ctx_destroy(ctx);
}

static void run_public(void *arg)
{
    run_calls(arg, false);
}

static void run_packed(void *arg)
{
    run_calls(arg, true);
}

/* ---- Reports. ---- */

static void report_head(const struct round *r, uint32_t round, const char *pass)
{
    const struct gemm_job *j = &r->job;
    printf("FAIL %s: [%lld,%lld] K %lld%s, round %u, %s: ", r->kase->name, (long long)j->m,
           (long long)j->n, (long long)j->k,
           !r->c_spec    ? ""
           : r->in_place ? " C in D"
                         : " with C",
           round, pass);
}

static void report_tail(const struct ngc *run, const struct round *r)
{
    char text[1200];
    ng_rule_print(&r->profile, &r->rule, text, sizeof text);
    printf("     rule: %s\n     again: ng-check --seed %llu --rounds %u '%s'\n", text,
           (unsigned long long)run->seed, run->rounds, r->kase->name);
}

static void print_step(void *user, const ng_trace_step *step)
{
    static const char *const names[] = { "chain", "foot", "psum", "step", "promoted", "out" };
    char text[64];
    uint32_t code = 0;
    const ng_cast cast = { .round = NG_ROUND_TOWARD_ZERO };
    (void)user;
    (void)ng_encode(NG_F32, &cast, &step->value, 0, &code);
    printf("       %-8s %4lld  k %lld..%lld  %s\n", names[step->kind], (long long)step->index,
           (long long)step->k0, (long long)step->k1,
           ngc_text(ng_format_info(NG_F32), code, text));
}

/* Inputs along K and the reference's steps of one element. */
static void explain(const struct round *r, int64_t i, int64_t q)
{
    const struct gemm_job *j = &r->job;
    char ta[64], tb[64];
    if (!j->a.sparse && !j->b.sparse)
        for (int64_t k = 0; k < j->k; k++) {
            const uint32_t x = ngc_load(j->a.data, j->a.spec->store_bits,
                                        j->a.offset + i * j->a.line + k * j->a.k),
                           y = ngc_load(j->b.data, j->b.spec->store_bits,
                                        j->b.offset + q * j->b.line + k * j->b.k);
            printf("       k %lld: %s * %s\n", (long long)k, ngc_text(j->a.spec, x, ta),
                   ngc_text(j->b.spec, y, tb));
        }
    const ng_trace trace = { print_step, NULL };
    if (!r->in_place)
        (void)ng_ref_gemm_element(j, i, q, &trace);
}

/* The first element of D that differs; false when only bytes outside of it do. */
static bool report_element(const struct ngc *run, const struct round *r)
{
    const struct gemm_job *j = &r->job;
    const uint32_t bits = j->d.spec->store_bits;
    char want_text[64], got_text[64];
    for (int64_t i = 0; i < j->m; i++)
        for (int64_t q = 0; q < j->n; q++) {
            const int64_t at = j->d.offset + i * j->d.row + q * j->d.col;
            const uint32_t want = ngc_load(mem.want.data, bits, at),
                           got = ngc_load(mem.d.data, bits, at);
            if (want == got)
                continue;
            printf("d[%lld,%lld]: want %s, got %s\n", (long long)i, (long long)q,
                   ngc_text(j->d.spec, want, want_text), ngc_text(j->d.spec, got, got_text));
            if (run->verbose)
                explain(r, i, q);
            return true;
        }
    return false;
}

static void keep_operands(const struct round *r)
{
    ngc_mem_keep(&mem.a);
    ngc_mem_keep(&mem.b);
    if (r->c_spec && !r->in_place)
        ngc_mem_keep(&mem.c);
}

static bool operands_kept(const struct round *r)
{
    return ngc_mem_kept(&mem.a) && ngc_mem_kept(&mem.b) &&
           (!r->c_spec || r->in_place || ngc_mem_kept(&mem.c));
}

/* One pass of a kernel over the round, judged. */
static bool judge(const struct ngc *run, struct round *r, uint32_t round, const char *pass,
                  void (*body)(void *arg))
{
    r->wrong = NULL;
    r->status = NG_OK;
    r->message[0] = '\0';
    const int signal = ngc_catch(body, r);
    const bool same = ngc_mem_equal(&mem.d, &mem.want), kept = operands_kept(r);
    if (!signal && !r->status && !r->wrong && same && kept)
        return true;
    report_head(r, round, pass);
    if (signal)
        printf("%s (signal %d)\n", ngc_signal_text(signal), signal);
    else if (r->status)
        printf("%s: %s\n", ng_status_name(r->status), r->message);
    else if (r->wrong)
        printf("%s\n", r->wrong);
    else if (!kept)
        printf("wrote to an operand\n");
    else if (!report_element(run, r))
        printf("wrote bytes outside of D\n");
    report_tail(run, r);
    return false;
}

/* The choice among this ISA's kernels and the next one's, on a CPU where either may be slow:
 * the next one's only where this one's first says that it is behind, and there is one. */
static const char *wrong_choice(const struct round *r)
{
    const struct ng_isa isa = *r->kase->isa;
    size_t i = 0;
    while (ng_isa_at(i).bit != isa.bit)
        i++;
    const uint32_t next_bit = ng_isa_at(i + 1).bit, both = isa.bit | next_bit;
    const struct ng_gemm_kernel *first = ng_pick_gemm(&r->job, isa.bit, 0),
                                *next = ng_pick_gemm(&r->job, next_bit, 0);
    const bool behind = first->behind && first->behind(&r->job);
    if (ng_pick_gemm(&r->job, both, 0) != first)
        return "another than the first kernel is chosen";
    if (ng_pick_gemm(&r->job, both, next_bit) != first)
        return "a slow ISA after it changes the choice";
    if (ng_pick_gemm(&r->job, isa.bit, isa.bit) != first)
        return "an ISA that is not asked for is chosen where this one is slow";
    if (ng_pick_gemm(&r->job, both, isa.bit) != (behind && next ? next : first))
        return behind ? "the next ISA is not chosen where this one is slow and behind"
                      : "the next ISA is chosen where this one is slow but not behind";
    return NULL;
}

/* ---- One round. ---- */

enum outcome {
    REJECTED,
    PASSED,
    FAILED
};

static enum outcome run_round(struct ngc *run, struct round *r, uint32_t round, bool *took)
{
    draw_rule(r);
    draw_shape(r);
    if (!lay_out(r) || r->kase->kernel->refuses(&r->job) || !place_direct(r))
        return REJECTED;
    const char *wrong = wrong_choice(r);
    if (wrong) {
        report_head(r, round, "ng_pick_gemm");
        printf("%s\n", wrong);
        report_tail(run, r);
        return FAILED;
    }
    fill(r);

    const bool d_at_end = mem.d.data != mem.d.room;
    if (!ngc_mem_place(&mem.want, mem.d.bytes, 1, d_at_end))
        return REJECTED;
    ngc_mem_keep(&mem.d); /* D as it was: C's codes, or the pattern */
    memcpy(mem.want.data, mem.d.data, mem.d.bytes);
    keep_operands(r);
    if (ngc_catch(run_reference, r)) {
        report_head(r, round, "reference");
        printf("the reference crashes\n");
        report_tail(run, r);
        return FAILED;
    }
    if (is_plain(r) && !judge(run, r, round, "kernel", run_direct))
        return FAILED;
    memcpy(mem.d.data - mem.d.before, mem.d.copy, mem.d.before + mem.d.bytes + mem.d.after);
    r->took = false;
    if (!judge(run, r, round, "ng_gemm", run_public))
        return FAILED;
    memcpy(mem.d.data - mem.d.before, mem.d.copy, mem.d.before + mem.d.bytes + mem.d.after);
    if (!r->job.a.sparse && !judge(run, r, round, "ng_gemm_packed", run_packed))
        return FAILED;
    *took = *took || r->took;
    return PASSED;
}

/* ---- The walk. ---- */

struct tally {
    uint64_t accepted;
    bool took;
};

/* A kernel that takes few cases, or few rules of one, gets more rounds of those. */
static bool wants_more(const struct ngc *run, const struct tally *tally, uint32_t tried,
                       uint32_t accepted)
{
    return accepted && accepted < 8 * run->rounds && tried < 100 * run->rounds &&
           tally->accepted + accepted < 20 * run->rounds;
}

static void run_case(struct ngc *run, const struct kase *c, struct tally *tally)
{
    static struct round r;
    uint32_t accepted = 0;
    for (uint32_t i = 0; i < run->rounds || wants_more(run, tally, i, accepted); i++) {
        r = (struct round){ .kase = c,
                            .rng = { ngc_hash(c->name, run->seed) + i * UINT64_C(0x51ED27) } };
        const enum outcome o = run_round(run, &r, i, &tally->took);
        accepted += o != REJECTED;
        if (o == FAILED) {
            run->failed++;
            break;
        }
    }
    run->rounds_run += accepted;
    tally->accepted += accepted;
    run->never += accepted == 0;
    if (run->verbose)
        printf("  %s %u of %u rounds\n", accepted ? "accepted" : "NEVER accepted", accepted,
               run->rounds);
}

static void walk_rule(struct ngc *run, struct kase *c, struct tally *tally)
{
    for (size_t i = 0; ng_format_at(i); i++)
        for (size_t k = 0; ng_format_at(k); k++) {
            c->a = ng_format_at(i);
            c->b = ng_format_at(k);
            if (ng_profile_rule(c->profile, c->a->format, c->b->format, c->rule->mode, NULL,
                                0) != c->rule)
                continue;
            (void)snprintf(c->name, sizeof c->name, "%s/%s/%s/%s/%s", c->kernel->name,
                           c->profile->name, c->rule->name, c->a->text, c->b->text);
            if (ngc_begin_case(run, c->name))
                run_case(run, c, tally);
        }
}

static void walk_kernel(struct ngc *run, const struct ng_isa *isa,
                        const struct ng_gemm_kernel *kernel)
{
    struct kase c = { .isa = isa, .kernel = kernel };
    struct tally tally = { 0, false };
    const struct ngc_walk walk = ngc_begin_walk(run);
    direct.slim_tiles = direct.run_tiles = 0;
    for (size_t p = 0; ng_profile_at(p); p++)
        for (uint32_t i = 0; i < ng_profile_at(p)->n_rules; i++) {
            c.profile = ng_profile_at(p);
            c.rule = &c.profile->rules[i];
            walk_rule(run, &c, &tally);
        }
    if (ngc_walked(run, &walk))
        printf("%s: %u cases, %llu rounds accepted, %llu tiles of slim panels, %llu in runs\n",
               kernel->name, ngc_walked(run, &walk), (unsigned long long)tally.accepted,
               direct.slim_tiles, direct.run_tiles);
    ngc_end_walk(run, &walk, kernel->name, tally.took);
}

void ngc_check_gemm(struct ngc *run)
{
    if (!open_memory()) {
        printf("FAIL: no memory for operands\n");
        run->failed++;
        return;
    }
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        if (isa.bit == NG_ISA_REF)
            continue; /* the reference is the judge */
        const bool missing = !(isa.bit & ng_isa_available()),
                   barred = !ngc_isa_allowed(run->isas, isa.name);
        if (missing || barred) {
            printf("skipped: %s: %s\n", isa.name,
                   missing ? "not on this CPU" : "not asked for");
            for (const struct ng_gemm_kernel *const *k = isa.kernels->gemm; *k; k++)
                run->skipped++;
            continue;
        }
        for (const struct ng_gemm_kernel *const *k = isa.kernels->gemm; *k; k++)
            walk_kernel(run, &isa, *k);
    }
}
