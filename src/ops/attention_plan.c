/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a call, its memory, and k and v in panels. */
#include <math.h>
#include <string.h>

#include "../../kernels/bf16.h"
#include "attention_plan.h"

static const ng_gemm_op plain = { .size = sizeof plain };

/* ---- Desk: what is multiplied, and how it is cut. ---- */

/* Its codes and scales are the caller's to set; until then scales are 2^0. */
static struct gemm_operand operand(const struct attention_multiply *m, const ng_format_spec *f,
                                   int64_t k)
{
    static const uint8_t one = 127;
    struct gemm_operand o = { .spec = f, .k = 1, .depth = k };
    if (m->mode == NG_MODE_MX) {
        o.scale = &one;
        o.scale_spec = ng_format_info(NG_E8M0);
        o.block = BLOCK;
    }
    return o;
}

struct gemm_job ng_attention_product(const struct attention_product *x, int64_t k)
{
    const ng_format_spec *f32 = ng_format_info(NG_F32);
    return (struct gemm_job){ .op = &plain,
                              .rule = x->what->rule,
                              .mode = x->what->mode,
                              .acc = NG_F32,
                              .a = operand(x->what, x->what->a, k),
                              .b = operand(x->what, x->b, k),
                              .c = { .spec = f32 },
                              .d = { .spec = f32 },
                              .m = ATTENTION_ROWS,
                              .n = x->columns,
                              .k = k,
                              .elements = ATTENTION_ROWS * x->columns,
                              .second = x->second };
}

static bool is_fused(const struct attention_multiply *m)
{
    return m->rule->set[NG_PARAM_FAMILY].value == NG_FAMILY_FUSED;
}

/* Is item 63's conversion exact, so that the packer reads the given codes? Family fused asks an
 * operand's format for its least exponent (23). */
static bool reads_as(const struct attention_multiply *m, const ng_format_spec *f,
                     const ng_format_spec *wanted)
{
    return f == wanted ||
           (!is_fused(m) && f->store_bits == 8 && f->kind != NG_KIND_SCALE &&
            f->kind != NG_KIND_UFN && (wanted->format == NG_BF16 || wanted->format == NG_F32));
}

struct cast_job ng_attention_conversion(const ng_format_spec *from, const ng_format_spec *to)
{
    static const ng_cast inf = { .overflow = NG_OVERFLOW_INF },
                         sat = { .overflow = NG_OVERFLOW_SATURATE };
    return (struct cast_job){ .from = from,
                              .to = to,
                              .cast = to->has_inf || to->has_nan ? &inf : &sat,
                              .tensor_scale = 0x3F800000u };
}

/* From K tiles to what a kernel counts in. */
static void in_writes(const struct gemm_walk *w, struct gemm_tile *t)
{
    t->parts = 0; /* all of b is near, or `soon` asks for it */
    t->once = true;
    t->from *= w->whole ? 1 : w->writes;
    t->to *= w->whole ? 1 : w->writes;
}

bool ng_attention_tile(const struct attention_product *x, const struct gemm_job *g,
                       const struct gemm_walk *w, struct gemm_tile *t)
{
    in_writes(w, t);
    return x->kernel->tile(g, w, t) < GEMM_LEFT;
}

bool ng_attention_tiles(const struct attention_product *x, const struct gemm_job *g,
                        const struct gemm_walk *w, const struct gemm_tile *t, int64_t panels)
{
    const struct gemm_run run = { .panels = panels,
                                  .b_step = (int64_t)up_64(x->b_bytes),
                                  .psum_step = x->kernel->mr * x->kernel->nr };
    struct gemm_tile all = *t;
    in_writes(w, &all);
    if (x->kernel->tiles && x->kernel->tiles(g, w, &all, &run))
        return true;
    bool fast = true;
    for (int64_t i = 0; i < panels; i++) {
        struct gemm_tile one = *t;
        one.b = (const unsigned char *)t->b + i * run.b_step;
        one.psum = t->psum + i * run.psum_step;
        fast &= ng_attention_tile(x, g, w, &one);
    }
    return fast;
}

bool ng_attention_tiles_down(const struct attention_product *x, const struct gemm_job *g,
                             const struct gemm_walk *w, const struct gemm_tile *t,
                             int64_t panels)
{
    const struct gemm_run run = { .panels = panels,
                                  .a_step = (int64_t)up_64(x->a_bytes),
                                  .psum_step = x->kernel->mr * x->kernel->nr };
    struct gemm_tile all = *t;
    in_writes(w, &all);
    all.once = false;
    if (x->kernel->tiles && x->kernel->tiles(g, w, &all, &run))
        return true;
    /* b's stretch of K is to stay in the first cache for all of them */
    const int64_t near = TILES_DOWN / x->kernel->nr,
                  step = w->whole ? near / GEMM_GRAIN * GEMM_GRAIN : max64(1, near / w->tile_k);
    bool fast = true;
    for (int64_t from = t->from; from < t->to; from += step)
        for (int64_t i = 0; i < panels; i++) {
            struct gemm_tile one = *t;
            one.a = (const unsigned char *)t->a + i * run.a_step;
            one.psum = t->psum + i * run.psum_step;
            one.from = from;
            one.to = min64(from + step, t->to);
            one.begun = t->begun || from > t->from;
            in_writes(w, &one);
            one.once = false;
            fast &= x->kernel->tile(g, w, &one) < GEMM_LEFT;
        }
    return fast;
}

static void plan_conversion(struct attention_product *x)
{
    x->cast = ng_attention_conversion(x->given, x->b);
    x->widens = x->b != x->given && x->b->format == NG_BF16 && x->given->store_bits == 8 &&
                x->given->kind != NG_KIND_SCALE && x->kernel->widen;
    if (x->widens)
        ng_widen_all(x->given, x->value);
}

bool ng_attention_plan_product(ng_ctx *ctx, const struct attention_multiply *what, ng_format b,
                               int64_t length, int64_t columns, struct attention_product *x)
{
    *x = (struct attention_product){ .what = what,
                                     .given = ng_format_info(b),
                                     .length = length,
                                     .columns = columns,
                                     .second = ng_ctx_asks_second(ctx) };
    x->b = reads_as(what, x->given, what->b) ? x->given : what->b;
    const struct gemm_job g = x->job = ng_attention_product(x, length);
    if (what->a->store_bits < 8 || x->b->store_bits < 8 || !ng_walk_bytes(&g))
        return false;
    /* AMX's panels of A have more rows than attention's */
    x->kernel = ng_pick_gemm(&g, ng_ctx_isas(ctx) & ~NG_ISA_AMXBF16, ng_ctx_slow(ctx));
    if (!x->kernel || x->kernel->mr > ATTENTION_ROWS || x->kernel->nr % ATTENTION_GROUP)
        return false;
    plan_conversion(x);
    ng_walk_build(&g, NULL, &x->full);
    x->tile = x->full.whole ? length : x->full.tile_k;
    x->panels = div_up(columns, x->kernel->nr);
    x->a_bytes = x->kernel->panel_bytes(&g, &x->full, GEMM_A);
    x->b_bytes = x->kernel->panel_bytes(&g, &x->full, GEMM_B);
    return true;
}

static bool plan_products(ng_ctx *ctx, const struct attention_job *g, struct attention_plan *p)
{
    const int64_t pv = attention_setting(p, NG_ATTENTION_PV_KEYS),
                  all = min64(ng_ref_section(g), g->keys),
                  tile = attention_setting(p, NG_ATTENTION_KEY_TILE);
    if (!ng_attention_plan_product(ctx, &g->scores, g->k.format, g->d, g->keys, &p->scores) ||
        !ng_attention_plan_product(ctx, &g->pv, g->v.format, pv ? min64(pv, all) : all, g->dv,
                                   &p->pv))
        return false;
    p->mr = p->scores.kernel->mr < p->pv.kernel->mr ? p->scores.kernel->mr : p->pv.kernel->mr;
    if (attention_setting(p, NG_ATTENTION_SUM_ORDER) != NG_SUM_ONES)
        return true;
    if (!ng_attention_plan_product(ctx, &g->ones, g->ones.b->format, min64(tile, all), 1,
                                   &p->ones))
        return false;
    if (p->ones.kernel->mr < p->mr)
        p->mr = p->ones.kernel->mr;
    return true;
}

/*
 * The length of a chain where p 1 is plain sums of neighbours in P: bf16, one product a row,
 * chains of rows that follow each other, nothing flushed. 0: it is not, or chains would not
 * begin at the same keys in every group.
 */
static int64_t ones_chain(const struct attention_plan *p)
{
    const struct attention_product *x = &p->ones;
    if (!x->kernel)
        return 0;
    const ng_setting *set = p->g->ones.rule->set;
    if (p->g->ones.mode == NG_MODE_MX || is_fused(&p->g->ones) ||
        x->what->a->format != NG_BF16 || set[NG_PARAM_LANES].value != 1 ||
        set[NG_PARAM_ACC_RANGE].value == NG_RANGE_F32_FTZ || x->full.writes != 1 ||
        x->full.lanes != 1)
        return 0;
    const int64_t chains = x->full.whole ? 1 : x->full.chains, length = x->tile / chains;
    const bool neighbours = chains == 1 || set[NG_PARAM_CHAIN_MAP].value == NG_CHAIN_BLOCK,
               pairs = (chains & (chains - 1)) == 0 && chains <= ONES_CHAINS,
               aligned = x->length % length == 0 || x->length >= p->g->keys;
    return neighbours && pairs && aligned ? length : 0;
}

/* P's conversion (69). */
static struct cast_job p_conversion(const struct attention_plan *p)
{
    static const ng_cast sat = { .overflow = NG_OVERFLOW_SATURATE };
    const bool blocks = p->g->pv.mode == NG_MODE_MX;
    struct cast_job j = ng_attention_conversion(
        ng_format_info(blocks ? (ng_format)attention_setting(p, NG_ATTENTION_MX_INPUT)
                              : NG_F32),
        p->g->pv.a);
    if (blocks) {
        j.cast = &sat;
        j.scale = ng_format_info(NG_E8M0);
        j.block = BLOCK;
        j.rule = (ng_scale_rule)attention_setting(p, NG_ATTENTION_MX_RULE);
        j.quantize = true;
    }
    return j;
}

/* Is q taken by kernels where it is scaled, converted or quantised (63)? */
static bool plan_q(ng_ctx *ctx, struct attention_plan *p)
{
    static const ng_cast sat = { .overflow = NG_OVERFLOW_SATURATE };
    const ng_tensor *q = &p->g->q;
    const ng_format_spec *f32 = ng_format_info(NG_F32), *from = ng_format_info(q->format);
    const bool blocks = attention_setting(p, NG_ATTENTION_Q_BLOCK) != 0;
    const ng_format_spec *input =
        blocks ? ng_format_info((ng_format)attention_setting(p, NG_ATTENTION_MX_INPUT))
               : p->g->scores.a;
    p->q_cast[0] = ng_attention_conversion(from, f32);
    p->q_cast[1] = ng_attention_conversion(f32, input);
    p->q_cast[2] = ng_attention_conversion(input, p->g->scores.a);
    p->q_cast[2].cast = &sat;
    p->q_cast[2].scale = ng_format_info(NG_E8M0);
    p->q_cast[2].block = BLOCK;
    p->q_cast[2].rule = (ng_scale_rule)attention_setting(p, NG_ATTENTION_MX_RULE);
    p->q_cast[2].quantize = true;
    bool all = p->cast && q->stride[3] == 1 && !q->scale && from->store_bits >= 8;
    for (int i = 0; i < (blocks ? 3 : 2); i++)
        all = all && (p->q_cast[i].from == p->q_cast[i].to ||
                      ng_pick_cast(&p->q_cast[i], ng_ctx_isas(ctx)) == p->cast);
    return all;
}

/* Does the call's kernel convert x's codes, if they are? */
static bool converts(ng_ctx *ctx, const struct attention_plan *p,
                     const struct attention_product *x)
{
    return x->given == x->b || ng_pick_cast(&x->cast, ng_ctx_isas(ctx)) == p->cast;
}

/* One kernel converts whatever there is to convert; false: none does. */
static bool plan_casts(ng_ctx *ctx, struct attention_plan *p)
{
    const uint32_t isas = ng_ctx_isas(ctx);
    p->p_cast = p_conversion(p);
    /* arithmetic comes last (73), which leaves a NaN no sign: a CPU's may have one. But an Inf
     * that becomes a NaN has (5) */
    p->out = p->g->op->out;
    if (ng_format_info(p->g->o.format)->has_inf)
        p->out.nan_sign = NG_NAN_SIGN_CLEAR;
    p->o_cast = (struct cast_job){ .from = ng_format_info(NG_F32),
                                   .to = ng_format_info(p->g->o.format),
                                   .cast = &p->out,
                                   .tensor_scale = 0x3F800000u };
    p->cast = ng_pick_cast(&p->o_cast, isas);
    p->q_by_kernels = plan_q(ctx, p);
    return p->cast && converts(ctx, p, &p->scores) && converts(ctx, p, &p->pv) &&
           (p->p_cast.to->format == NG_BF16 || ng_pick_cast(&p->p_cast, isas) == p->cast);
}

bool ng_attention_skips_tiles(const struct attention_plan *p, const struct attention_product *x)
{
    const bool groups = p->skip % x->length == 0, /* as a whole */
        tiles = p->skip % x->tile == 0 && (x->length % x->tile == 0 || x->length >= p->g->keys);
    return !p->skip || groups || tiles;
}

/* In one chain of single products keys may be skipped anywhere: a product of +0 with a finite v
 * changes no sum. */
static bool may_skip(const struct attention_plan *p, const struct attention_product *x)
{
    return ng_attention_skips_tiles(p, x) || (x->full.whole && x->full.lanes == 1);
}

static bool plan_cuts(struct attention_plan *p)
{
    const struct attention_job *g = p->g;
    const int64_t tile = attention_setting(p, NG_ATTENTION_KEY_TILE);
    p->section = ng_ref_section(g);
    p->skip = attention_setting(p, NG_ATTENTION_SKIP_KEYS);
    const int64_t cut = p->section < g->keys ? p->section : 0, nr = p->scores.kernel->nr;
    p->positions = div_up(min64(p->section, g->keys), nr) * nr;
    /* panels, K tiles and groups begin where sections and computed keys may begin */
    return cut % nr == 0 && p->skip % nr == 0 && cut % p->pv.length == 0 &&
           may_skip(p, &p->pv) &&
           (!p->ones.kernel || (may_skip(p, &p->ones) && cut % tile == 0));
}

/* The fill as it enters exp (64), and what a maximum is multiplied by there (68). The one
 * rounding is the reference's, because m may be that very number, and the caller's control word
 * still stands. */
static void plan_fill(struct attention_plan *p)
{
    const ng_attention_op *op = p->g->op;
    const ng_format_spec *f =
        ng_format_info((ng_format)attention_setting(p, NG_ATTENTION_SCORE_FORMAT));
    const int32_t place = attention_setting(p, NG_ATTENTION_SCALE_PLACE);
    ng_value fill = ng_num_f32((uint32_t)attention_setting(p, NG_ATTENTION_MASK));
    fill = ng_num_decode(f, ng_ref_convert(f, fill));
    if (op->scale && place == NG_PLACE_SCORES && !op->softcap &&
        attention_setting(p, NG_ATTENTION_SCORE_ORDER) == NG_SCORE_MASK_SCALE)
        fill = ng_ref_mul32(fill, ng_num_f32(op->scale));
    p->exp_scale = place == NG_PLACE_EXP && op->scale ? (double)as_float(op->scale) : 1;
    if (place == NG_PLACE_EXP)
        p->exp_inner = (double)as_float(ng_num_f32_code(ng_ref_inner_scale(p->g)));
    p->fill = (double)as_float(ng_num_f32_code(fill)) * p->exp_scale;
}

/* Panels of rows of an item: a panel of k or v that one of them reads is nearer for the others.
 * Their scores, which the second cache has, are to leave it room for v's panels, and workers
 * are to have an even load. */
static int64_t item_panels(const struct attention_plan *p, int64_t workers)
{
    const int64_t all = div_up(p->rows, p->mr),
                  fit = ITEM_SCORES / (p->positions * p->mr * (int64_t)sizeof(float)),
                  each = workers > 1 ? all / (workers * WORKER_ITEMS) : all;
    return p->few ? all : max64(1, min64(min64(fit, each), ITEM_PANELS));
}

static const char *plan(ng_ctx *ctx, struct attention_plan *p)
{
    const struct attention_job *g = p->g;
    if (attention_setting(p, NG_ATTENTION_ARITHMETIC) != NG_ARITHMETIC_STEPS)
        return "arithmetic is real";
    if (g->keys >= INT32_MAX / 2)
        return "too many keys";
    if (ng_format_info(g->o.format)->store_bits < 8)
        return "elements of o are half bytes";
    /* summands are those of exponentials(), which knows bf16 alone */
    if (attention_setting(p, NG_ATTENTION_SUM_SOURCE) == NG_SUM_OF_P &&
        attention_setting(p, NG_ATTENTION_SUM_ORDER) != NG_SUM_ONES &&
        g->pv.a->format != NG_BF16)
        return "sums of P, which is not bf16";
    p->kernel = ng_pick_attention(g, ng_ctx_isas(ctx));
    if (!p->kernel)
        return "no kernel takes the rows";
    if (!plan_products(ctx, g, p))
        return "no kernel takes one of the multiplies";
    if (!plan_casts(ctx, p))
        return "no kernel takes one of the conversions";
    p->ones_chain = ones_chain(p);
    p->group = g->heads / g->kv_heads;
    p->rows = g->queries * p->group;
    p->p_bytes = g->pv.a->store_bits / 8;
    p->fused = is_fused(&g->pv);
    return plan_cuts(p) ? NULL : "sections, or skipped keys, begin inside a panel";
}

bool ng_attention_plan(ng_ctx *ctx, const struct attention_job *g, struct attention_plan *p)
{
    *p = (struct attention_plan){ .g = g };
    plan_fill(p);
    p->left = plan(ctx, p);
    return !p->left;
}

bool ng_attention_in_rows(const struct attention_product *x, const ng_tensor *t)
{
    return t->stride[3] == 1 && x->given->store_bits >= 8;
}

/* The format of rows of k or v that are converted: bf16 where that says the same. */
static const ng_format_spec *rows_as(const struct attention_product *x)
{
    const ng_format_spec *bf16 = ng_format_info(NG_BF16), *wanted = x->what->b;
    return x->given == wanted && x->what->mode != NG_MODE_MX && reads_as(x->what, wanted, bf16)
               ? bf16
               : wanted;
}

/* x as its kernel has it where rows are converted first, if they have to be; false: not so. */
static bool plan_converted(ng_ctx *ctx, const struct attention_plan *p,
                           const struct attention_product *x, struct attention_product *to)
{
    const struct ng_gemm_kernel *kernel = x->kernel;
    *to = *x;
    to->b = rows_as(x);
    if (to->b == x->b)
        return converts(ctx, p, to);
    to->job = ng_attention_product(to, to->length);
    plan_conversion(to);
    if ((kernel->refuses && kernel->refuses(&to->job)) || !converts(ctx, p, to))
        return false;
    to->a_bytes = kernel->panel_bytes(&to->job, &to->full, GEMM_A);
    to->b_bytes = kernel->panel_bytes(&to->job, &to->full, GEMM_B);
    return true;
}

/* Few rows: panels of k out of its rows, which the kernel turns, or which are converted. */
static bool plan_turns(ng_ctx *ctx, struct attention_plan *p)
{
    const struct ng_gemm_kernel *kernel = p->scores.kernel;
    struct attention_product k;
    if (!p->few || !ng_attention_in_rows(&p->scores, &p->g->k) ||
        !plan_converted(ctx, p, &p->scores, &k) ||
        (k.b == k.given && !(kernel->turn && kernel->lies(&k.job))))
        return false;
    p->scores = k;
    return true;
}

/* Few rows: may v, or its rows converted, lie where they are? */
static bool plan_lies(ng_ctx *ctx, struct attention_plan *p)
{
    return p->few && p->pv.kernel->lies && plan_converted(ctx, p, &p->pv, &p->lying) &&
           p->pv.kernel->lies(&p->lying.job);
}

/* Rows of q as columns: k and v in bf16. */
static bool plan_wide(ng_ctx *ctx, struct attention_plan *p)
{
    const struct attention_product scores = p->scores, pv = p->pv;
    struct attention_product k, v;
    if (p->few || !ng_attention_in_rows(&scores, &p->g->k) ||
        !ng_attention_in_rows(&pv, &p->g->v) || !plan_converted(ctx, p, &scores, &k) ||
        !plan_converted(ctx, p, &pv, &v))
        return false;
    p->scores = k;
    p->pv = v;
    if (ng_attention_plan_wide(p))
        return true;
    p->scores = scores;
    p->pv = pv;
    return false;
}

void ng_attention_plan_items(ng_ctx *ctx, struct attention_plan *p)
{
    const int64_t skip_queries = attention_setting(p, NG_ATTENTION_SKIP_QUERIES);
    p->few = p->rows <= FEW_PANELS * p->mr && (!skip_queries || p->g->queries <= skip_queries);
    p->lies = plan_lies(ctx, p);
    p->turns = plan_turns(ctx, p);
    p->wide = plan_wide(ctx, p);
    p->item_panels = (int32_t)item_panels(p, (int64_t)ng_workers(ctx));
}

void ng_attention_tell_product(ng_ctx *ctx, const char *stage,
                               const struct attention_product *x, const char *left)
{
    if (!x->what || !ng_ctx_watched(ctx)) /* there is none, or it was not come to */
        return;
    const struct gemm_job g = ng_attention_product(x, x->length);
    ng_tell_gemm(ctx, stage, &g, left ? NULL : x->kernel, left);
}

void ng_attention_tell(ng_ctx *ctx, const struct attention_plan *p)
{
    ng_tell_attention(ctx, "rows", p->g, p->left ? NULL : p->kernel, p->left);
    ng_attention_tell_product(ctx, "q k^T", &p->scores, p->left);
    ng_attention_tell_product(ctx, "p v", &p->pv, p->left);
    ng_attention_tell_product(ctx, "p 1", &p->ones, p->left);
    if (p->p_cast.to && p->p_cast.to->format != NG_BF16)
        ng_tell_cast(ctx, "p", &p->p_cast, p->left ? NULL : p->cast, p->left);
    if (p->o_cast.to)
        ng_tell_cast(ctx, "o", &p->o_cast, p->left ? NULL : p->cast, p->left);
}

/* ---- What items of any kind ask. ---- */

struct range ng_attention_computed(const struct attention_plan *p, int64_t keys, int64_t i0,
                                   int64_t i1)
{
    const int64_t skip = p->skip;
    struct range c = { keys, 0 };
    if (!skip)
        return (struct range){ 0, keys };
    /* later queries begin and end later (61): the first and the last that see anything */
    struct range first = { 0, 0 }, last = { 0, 0 };
    for (int64_t i = i0; i < i1 && first.begin == first.end; i++)
        first = ng_ref_visible(p->g, keys, i);
    if (first.begin == first.end)
        return c;
    for (int64_t i = i1; last.begin == last.end; i--)
        last = ng_ref_visible(p->g, keys, i - 1);
    c.begin = first.begin / skip * skip;
    c.end = min64(keys, div_up(last.end, skip) * skip);
    return c;
}

/* e^-128 and 2^-184 are far below half the least subnormal number. RN(m c) may be -Inf where m
 * is finite, and a fill of -Inf less that is a NaN. */
bool ng_attention_fill_vanishes(const struct attention_plan *p, float m)
{
    const double overflows = 0x1.ffffffp127, most = (double)m * p->exp_scale;
    return isfinite(most) && fabs((double)m * p->exp_inner) < overflows &&
           p->fill - most < -128;
}

static void put_apart(const ng_tensor *t, uint32_t bits, int64_t at, const unsigned char *code,
                      int64_t n)
{
    for (int64_t c = 0; c < n; c++)
        ng_store_code(t->data, bits, at + c * t->stride[3], ng_load_code(code, bits, c));
}

void ng_attention_put_codes(const ng_tensor *t, uint32_t bits, const int64_t *index,
                            const unsigned char *code, int64_t n)
{
    const int64_t at = ng_offset_at(t, index);
    if (t->stride[3] == 1)
        memcpy((char *)t->data + at * (bits / 8), code, (size_t)n * (bits / 8));
    else
        put_apart(t, bits, at, code, n);
}

void ng_attention_put(const struct ng_cast_kernel *kernel, const struct cast_job *cast,
                      const ng_tensor *t, const int64_t *index, const float *line,
                      const uint32_t *word, int64_t n, unsigned char *code)
{
    const uint32_t bits = cast->to->store_bits;
    const int64_t at = ng_offset_at(t, index);
    if (t->stride[3] == 1 && bits >= 8) {
        kernel->convert(cast, line, word, n, (char *)t->data + at * (bits / 8));
        return;
    }
    kernel->convert(cast, line, word, n, code);
    put_apart(t, bits, at, code, n);
}

/* ---- Memory. ---- */

void *ng_attention_part(struct attention_layout *l, size_t bytes, int64_t times)
{
    unsigned char *p = l->base ? l->base + l->at : NULL;
    l->at += up_64(bytes) * (size_t)times;
    return p;
}

void ng_attention_lay_walk(struct attention_layout *l, const struct attention_product *x,
                           int64_t k, struct gemm_walk *w)
{
    *w = (struct gemm_walk){ 0 };
    if (!x->kernel || !k)
        return;
    const struct gemm_job g = ng_attention_product(x, k);
    void *memory = ng_attention_part(l, ng_walk_bytes(&g), 1);
    if (memory)
        ng_walk_build(&g, memory, w);
}

size_t ng_attention_lay_work(struct attention_plan *p, unsigned char *base,
                             struct attention_work *w)
{
    const struct attention_job *g = p->g;
    struct attention_layout l = { base, 0 };
    struct attention_tail unused;
    ng_attention_lay_walk(&l, &p->scores, p->scores.length,
                          base ? &p->scores.full : &unused.pv);
    ng_attention_lay_walk(&l, &p->pv, p->pv.length, base ? &p->pv.full : &unused.pv);
    ng_attention_lay_walk(&l, &p->ones, p->ones.length, base ? &p->ones.full : &unused.ones);
    w->tail = ng_attention_part(&l, sizeof *w->tail, g->batch);
    for (int64_t b = 0; b < g->batch; b++) {
        struct attention_tail *t = base ? &w->tail[b] : &unused;
        const int64_t keys = ng_ref_keys(g, b);
        ng_attention_lay_walk(&l, &p->pv, keys % p->pv.length, &t->pv);
        ng_attention_lay_walk(&l, &p->ones, p->ones.kernel ? keys % p->ones.length : 0,
                              &t->ones);
    }
    w->sink = ng_attention_part(&l, sizeof *w->sink * (size_t)g->heads, g->op->sink ? 1 : 0);
    w->ones = ng_attention_part(&l, sizeof *w->ones, p->ones.length);
    w->ones_panels = ng_attention_part(&l, p->ones.b_bytes, 1 + g->batch);
    const int64_t shared = p->few ? 0 : 1;
    if (p->wide) {
        ng_attention_lay_wide_panels(&l, p, w);
    } else {
        w->k = ng_attention_part(&l, p->scores.b_bytes, shared * p->scores.panels);
        w->v = ng_attention_part(&l, p->pv.b_bytes,
                                 shared * p->pv.panels * attention_groups(&p->pv, g->keys));
    }
    w->desks = ng_attention_part(&l, 0, 0);
    return l.at;
}

/* A section's codes, and what its first and last groups have beyond it. */
int64_t ng_attention_p_line(const struct attention_plan *p)
{
    return p->positions + 2 * max64(p->pv.length, p->ones.length) + SPARE;
}

int64_t ng_attention_pieces(const struct attention_plan *p)
{
    const int64_t piece = attention_piece(p);
    return piece ? p->positions / piece + 2 : 0;
}

int64_t ng_attention_p_blocks(const struct attention_plan *p)
{
    return p->p_cast.quantize ? div_up(ng_attention_p_line(p), BLOCK) : 0;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Does the packer read it elsewhere than where it lies? */
static bool is_gathered(const struct attention_plan *p, const struct attention_product *x)
{
    return p->g->op->page_table || x->b != x->given;
}

/* Room for what is gathered of k or v: a panel. */
static void lay_gathered(struct attention_layout *l, const struct attention_plan *p,
                         struct attention_desk *d)
{
    const struct attention_product *k = &p->scores, *v = &p->pv;
    const size_t of_k = (size_t)(k->kernel->nr * k->length),
                 of_v = (size_t)(v->length * v->kernel->nr),
                 any = is_gathered(p, k) || is_gathered(p, v) ? sizeof(uint32_t) : 0;
    const size_t scales =
        larger(p->g->k.scale ? (size_t)(k->kernel->nr * div_up(k->length, BLOCK)) : 0,
               p->g->v.scale ? (size_t)(div_up(v->length, BLOCK) * v->kernel->nr) : 0);
    d->gathered = ng_attention_part(l, any * larger(of_k, of_v), 1);
    d->gathered_row = ng_attention_part(l, any * larger((size_t)k->length, v->kernel->nr), 1);
    d->gathered_scales = ng_attention_part(l, p->g->op->page_table ? scales : 0, 1);
}

size_t ng_attention_lay_desk(const struct attention_plan *p, unsigned char *base,
                             struct attention_desk *d)
{
    const struct attention_job *g = p->g;
    const struct ng_gemm_kernel *ks = p->scores.kernel, *kp = p->pv.kernel,
                                *ko = p->ones.kernel;
    if (p->wide)
        return ng_attention_lay_wide_desk(p, base, d);
    const int64_t few = p->few ? 1 : 0, each = p->item_panels;
    const size_t element = sizeof(float), wide = (size_t)(p->pv.panels * kp->nr),
                 p_codes = (size_t)(p->mr * ng_attention_p_line(p));
    struct attention_layout l = { base, 0 };
    d->gemm = ng_attention_part(
        &l, larger(larger(ks->scratch_bytes, kp->scratch_bytes), ko ? ko->scratch_bytes : 0),
        1);
    d->reference = ng_attention_part(&l, ng_ref_attention_scratch(g, NULL, NULL), 1);
    d->q_codes = ng_attention_part(&l, element * (size_t)(p->mr * g->d), 1);
    d->q_line = ng_attention_part(&l, element * (size_t)attention_whole(g->d), 1);
    d->q_input = ng_attention_part(&l, element * (size_t)g->d, 1);
    d->q_scales = ng_attention_part(&l, (size_t)(p->mr * div_up(g->d, BLOCK)), 1);
    d->q = ng_attention_part(&l, p->scores.a_bytes, each);
    d->x = ng_attention_part(&l, element * (size_t)(p->positions * ks->mr), each);
    d->p_codes = ng_attention_part(&l, p_codes * p->p_bytes, each);
    d->p_scales = ng_attention_part(&l, (size_t)(p->mr * ng_attention_p_blocks(p)), each);
    d->p_input =
        ng_attention_part(&l, p->p_cast.quantize ? p_codes * sizeof *d->p_input : 0, 1);
    d->p = ng_attention_part(&l, p->pv.a_bytes, each);
    d->ones = ng_attention_part(&l, p->ones.a_bytes, 1);
    d->sum = ng_attention_part(&l, ko ? element * (size_t)(ko->mr * ko->nr) : 0, 1);
    d->piece =
        ng_attention_part(&l, element * ATTENTION_ROWS * (size_t)ng_attention_pieces(p), each);
    d->o = ng_attention_part(&l, element * wide * kp->mr, each);
    d->w = ng_attention_part(&l, element * wide * kp->mr, each);
    d->more = ng_attention_part(&l, element * wide * kp->mr, each);
    d->line = ng_attention_part(&l, element * wide * (size_t)p->mr, 1);
    d->word = ng_attention_part(&l, sizeof *d->word * (size_t)g->dv, 1);
    d->code = ng_attention_part(&l, sizeof(uint32_t) * (size_t)(g->dv * p->mr), 1);
    d->k = ng_attention_part(&l, p->scores.b_bytes, few);
    for (int i = 0; i < 2; i++)
        d->k_row[i] = ng_attention_part(&l, sizeof *d->k_row[i] * ks->nr, few);
    d->k_room = ng_attention_lay_room(&l, &p->scores, attention_whole(g->d),
                                      p->turns && p->scores.b != p->scores.given ? ks->nr : 0);
    d->v = ng_attention_part(&l, p->pv.b_bytes, few);
    lay_gathered(&l, p, d);
    ng_attention_lay_lying(&l, p, d);
    return l.at;
}

/* ---- Pantry: k and v in panels. ---- */

struct gemm_operand ng_attention_view(const ng_tensor *t, const ng_format_spec *f, int64_t b,
                                      int64_t head, uint32_t line_axis)
{
    return (struct gemm_operand){ .data = t->data,
                                  .spec = f,
                                  .offset = b * t->stride[0] + head * t->stride[1],
                                  .line = t->stride[line_axis],
                                  .k = t->stride[5 - line_axis] };
}

/* A part of one head of k or v: keys [key, key + keys), columns [column, column + columns).
 * Lines of the multiply are keys (dimension 2), or columns (3). */
struct piece {
    const ng_tensor *t;
    int64_t b, head, key, keys, column, columns;
    uint32_t lines;
};

/* Where it lies; codes and scales are read there. */
static void read_there(const struct piece *c, struct gemm_operand *o)
{
    const ng_tensor *t = c->t;
    const uint32_t along = 5 - c->lines;
    const int64_t index[NG_MAX_RANK] = { c->b, c->head, c->key, c->column };
    o->data = t->data;
    o->offset = ng_offset_at(t, index);
    o->line = t->stride[c->lines];
    o->k = t->stride[along];
    if (!t->scale)
        return;
    int64_t stride[NG_MAX_RANK];
    ng_scale_strides(t, stride);
    o->scale = t->scale;
    o->scale_offset = ng_scale_offset(t, index);
    o->scale_line = stride[c->lines];
    o->scale_block = stride[along];
}

bool ng_attention_plain_queries(const struct attention_plan *p)
{
    const struct attention_job *g = p->g;
    const bool scaled =
        g->op->scale && attention_setting(p, NG_ATTENTION_SCALE_PLACE) == NG_PLACE_Q;
    return g->q.format == g->scores.a->format && !scaled && !g->q.scale &&
           !attention_setting(p, NG_ATTENTION_Q_BLOCK) && g->q.stride[3] == 1;
}

void ng_attention_take_codes(const struct attention_plan *p, const struct attention_product *x,
                             const ng_tensor *t, int64_t at, int64_t n, unsigned char *row,
                             unsigned char *to)
{
    const uint32_t bits = x->given->store_bits;
    const unsigned char *from = row;
    if (t->stride[3] == 1 && bits >= 8)
        from = (const unsigned char *)t->data + at * (bits / 8);
    else
        for (int64_t c = 0; c < n; c++)
            ng_store_code(row, bits, c, ng_load_code(t->data, bits, at + c * t->stride[3]));
    if (x->b == x->given)
        memcpy(to, from, (size_t)n * (bits / 8));
    else
        p->cast->convert(&x->cast, from, NULL, n, to);
}

struct attention_room ng_attention_lay_room(struct attention_layout *l,
                                            const struct attention_product *x, int64_t columns,
                                            int64_t rows)
{
    const size_t codes = (size_t)(columns * rows);
    return (struct attention_room){
        .given = ng_attention_part(l, codes * x->given->store_bits / 8, 1),
        .rows = ng_attention_part(l, codes * x->b->store_bits / 8, 1),
    };
}

/* Rows as given, one behind the other. */
static void collect_rows(const struct attention_product *x, int64_t columns, int64_t wide,
                         int64_t n, const unsigned char *const *row, unsigned char *to)
{
    const size_t bytes = (size_t)columns * x->given->store_bits / 8,
                 line = (size_t)wide * x->given->store_bits / 8;
    for (int64_t i = 0; i < n; i++, to += line) {
        memcpy(to, row[i], bytes);
        memset(to + bytes, 0, line - bytes);
    }
}

static void convert_rows(const struct attention_plan *p, const struct attention_product *x,
                         int64_t columns, int64_t wide, int64_t n,
                         const unsigned char *const *row, const struct attention_room *room)
{
    const int64_t bytes = columns * x->given->store_bits / 8;
    const bool there = columns == wide && (n == 1 || attention_adjoin(row, n, bytes));
    if (!there)
        collect_rows(x, columns, wide, n, row, room->given);
    p->cast->convert(&x->cast, there ? row[0] : room->given, NULL, n * wide, room->rows);
}

bool ng_attention_take_rows(const struct attention_plan *p, const struct attention_product *x,
                            int64_t columns, int64_t wide, int64_t n,
                            const struct attention_room *room, const unsigned char **row,
                            struct gemm_panel *head)
{
    const size_t step = (size_t)wide * x->b->store_bits / 8;
    const bool known = x->widens && x->kernel->widen(x->given, x->value, row, n, columns, wide,
                                                     (uint16_t *)(void *)room->rows, head);
    if (x->b == x->given)
        collect_rows(x, columns, wide, n, row, room->rows);
    else if (!known)
        convert_rows(p, x, columns, wide, n, row, room);
    for (int64_t i = 0; i < n; i++)
        row[i] = room->rows + (size_t)i * step;
    return known;
}

/* What lies in pages, or is converted: key after key into the worker's memory. */
static void read_gathered(const struct attention_plan *p, const struct attention_product *x,
                          const struct piece *c, const struct attention_desk *d,
                          struct gemm_operand *o)
{
    const bool by_key = c->lines == 2;
    const int64_t line = c->columns * (x->b->store_bits / 8), key_step = by_key ? 1 : BLOCK,
                  step = by_key ? BLOCK : 1, scales = div_up(c->columns, step);
    int64_t index[NG_MAX_RANK];
    uint8_t *scale = d->gathered_scales;
    for (int64_t j = 0; j < c->keys; j++) {
        ng_ref_attention_locate(p->g, c->b, c->head * p->group, c->key + j, index);
        index[3] = c->column;
        ng_attention_take_codes(p, x, c->t, ng_offset_at(c->t, index), c->columns,
                                d->gathered_row, d->gathered + j * line);
        for (; c->t->scale && j % key_step == 0 && index[3] < c->column + c->columns;
             index[3] += step)
            *scale++ = ((const uint8_t *)c->t->scale)[ng_scale_offset(c->t, index)];
    }
    o->data = d->gathered;
    o->line = by_key ? c->columns : 1;
    o->k = by_key ? 1 : c->columns;
    if (!c->t->scale)
        return;
    o->scale = d->gathered_scales;
    o->scale_line = by_key ? scales : 1;
    o->scale_block = by_key ? 1 : scales;
}

static void pack_piece(const struct attention_plan *p, const struct attention_product *x,
                       const struct gemm_walk *walk, const struct piece *c,
                       const struct attention_desk *d, unsigned char *to)
{
    const bool by_key = c->lines == 2;
    struct gemm_job g = ng_attention_product(x, by_key ? c->columns : c->keys);
    if (is_gathered(p, x))
        read_gathered(p, x, c, d, &g.b);
    else
        read_there(c, &g.b);
    x->kernel->pack(&g, walk, GEMM_B, 0, (int32_t)(by_key ? c->keys : c->columns), to);
}

void ng_attention_rows(const struct attention_plan *p, const ng_tensor *t, int64_t b,
                       int64_t head, int64_t from, int64_t n, const unsigned char **row)
{
    const int64_t bits = ng_format_info(t->format)->store_bits, step = t->stride[2] * bits / 8;
    int64_t index[NG_MAX_RANK];
    for (int64_t i = 0; i < (p->g->op->page_table ? n : min64(n, 1)); i++) {
        ng_ref_attention_locate(p->g, b, head * p->group, from + i, index);
        index[3] = 0;
        row[i] = (const unsigned char *)t->data + ng_offset_at(t, index) * bits / 8;
    }
    const unsigned char *const first = n > 0 ? row[0] : NULL;
    for (int64_t i = 1; !p->g->op->page_table && i < n; i++)
        row[i] = first + i * step;
}

void ng_attention_pack_k(const struct attention_work *w, int64_t b, int64_t head, int64_t panel,
                         const struct attention_desk *d, unsigned char *to)
{
    const struct attention_job *g = w->p->g;
    const int64_t nr = w->p->scores.kernel->nr, from = panel * nr;
    const struct piece c = { .t = &g->k,
                             .b = b,
                             .head = head,
                             .key = from,
                             .keys = min64(nr, ng_ref_keys(g, b) - from),
                             .columns = g->d,
                             .lines = 2 };
    pack_piece(w->p, &w->p->scores, &w->p->scores.full, &c, d, to);
}

const struct gemm_walk *ng_attention_walk(const struct attention_product *x,
                                          const struct gemm_walk *tail, int64_t group,
                                          int64_t keys, int64_t *n)
{
    *n = min64(x->length, keys - group * x->length);
    return *n == x->length ? &x->full : tail;
}

void ng_attention_pack_v(const struct attention_work *w, int64_t b, int64_t head, int64_t group,
                         int64_t panel, const struct attention_desk *d, unsigned char *to)
{
    const struct attention_job *g = w->p->g;
    const struct attention_product *x = &w->p->pv;
    const int64_t nr = x->kernel->nr, from = panel * nr;
    struct piece c = { .t = &g->v,
                       .b = b,
                       .head = head,
                       .key = group * x->length,
                       .column = from,
                       .columns = min64(nr, x->columns - from),
                       .lines = 3 };
    const struct gemm_walk *walk =
        ng_attention_walk(x, &w->tail[b].pv, group, ng_ref_keys(g, b), &c.keys);
    pack_piece(w->p, x, walk, &c, d, to);
}

static void pack_ones(const struct attention_work *w, int64_t n, const struct gemm_walk *walk,
                      unsigned char *to)
{
    const struct attention_product *x = &w->p->ones;
    struct gemm_job g = ng_attention_product(x, n);
    g.b.data = w->ones;
    x->kernel->pack(&g, walk, GEMM_B, 0, 1, to);
}

void ng_attention_pack_ones(const struct attention_work *w)
{
    const struct attention_product *x = &w->p->ones;
    if (!x->kernel)
        return;
    const uint32_t one = ng_ref_convert(x->b, (ng_value){ .sig = 1 });
    for (int64_t i = 0; i < x->length; i++)
        ng_store_code(w->ones, x->b->store_bits, i, one);
    pack_ones(w, x->length, &x->full, w->ones_panels);
    for (int64_t b = 0; b < w->p->g->batch; b++)
        if (w->tail[b].ones.depth)
            pack_ones(w, ng_ref_keys(w->p->g, b) % x->length, &w->tail[b].ones,
                      w->ones_panels + (size_t)(b + 1) * x->b_bytes);
}
