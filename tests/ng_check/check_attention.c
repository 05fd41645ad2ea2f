/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention and its gradients by kernels against the reference: schedules with parameters
 * drawn, every option, shapes with all tails, pages, lengths, special values; operands and
 * outputs between unreadable pages, tasks in reverse, a hostile control word. Cases of
 * gradients end in /back; o and the statistics come from a forward call.
 */
#include "ngc.h"

#include <stdio.h>
#include <string.h>

#include "ng/attention.h"

enum {
    MAX_HEADS = 6,
    MAX_QUERIES = 140, /* but for a few gradients 40 */
    MAX_KEYS = 420,
    MANY_KEYS = 1700, /* where only some rows are compared */
    MANY_QUERIES = 60,
    LONG_QUERIES = 700, /* gradients: blocks of queries, beside few keys */
    MANY_D = 64,
    SAMPLES = 5,
    MAX_D = 160,
    MAX_BATCH = 3,
    MAX_PAGES = MAX_BATCH * MAX_KEYS,
    ROOM = 8 << 20
};

/* One case: a kernel, a profile, the preset that draws begin with. */
struct kase {
    const struct ng_isa *isa;
    const struct ng_attention_kernel *kernel;
    const ng_profile *profile;
    const ng_attention_schedule *preset;
    bool back;
    char name[120];
};

enum output {
    O,
    LSE,
    MAX,
    SUM,
    DQ,
    DK,
    DV,
    DSINK,
    OUTPUTS
};

static struct {
    struct ngc_mem q, k, v, dout, scale[3], out[2][OUTPUTS]; /* scale: of q, k, v */
} mem;

struct round {
    const struct kase *kase;
    struct ngc_rng rng;
    ng_attention_schedule schedule;
    ng_attention_op op;
    ng_tensor q, k, v, o, stats[3], sink, dout;
    ng_tensor grad[4]; /* of q, k, v and the sink; no data: not asked for */
    int64_t length[MAX_BATCH], page[MAX_PAGES];
    uint16_t sink_code[MAX_HEADS];
    bool has_stats, took, refused; /* refused: the forward call, so there is no backward */
    uint32_t multiplies;           /* ISAs whose GEMM kernels take part too */
    bool decode; /* few rows and v in bf16, which is then read where it lies */
    bool narrow; /* decode, k and v in codes of 8 bits */
    bool skips;  /* a short window, many keys: some are skipped inside groups */
    bool wide;   /* rows that nearly fill whole vectors: they are columns of the multiplies */
    bool many;   /* keys and queries: rows in more than one item, keys beyond those of a loop */
    bool long_;  /* gradients: many keys or many queries, all of which are compared */
    bool wild;   /* numbers and formats of any kind, not those that people choose */
    int side;
    ng_status status[2];
    char text[2][400];
    const char *wrong;
    uint64_t by_kernel;
};

static bool open_memory(void)
{
    bool ok = ngc_mem_open(&mem.q, ROOM) && ngc_mem_open(&mem.k, ROOM) &&
              ngc_mem_open(&mem.v, ROOM) && ngc_mem_open(&mem.dout, ROOM);
    for (int i = 0; i < 2 * OUTPUTS; i++)
        ok = ok && ngc_mem_open(&mem.out[i / OUTPUTS][i % OUTPUTS], ROOM);
    for (int i = 0; i < 3; i++)
        ok = ok && ngc_mem_open(&mem.scale[i], ROOM);
    return ok;
}

/* ---- Schedules. ---- */

static const char *one_of(struct ngc_rng *rng, const char *const *text)
{
    uint32_t n = 0;
    while (text[n])
        n++;
    return text[ngc_below(rng, n)];
}

/* A parameter otherwise than the preset has it, unless it does not go with the rest. */
static void change(struct round *r, const char *key, const char *value)
{
    char message[200];
    const ng_attention_schedule before = r->schedule;
    if (ng_attention_set(&r->schedule, key, value) ||
        ng_attention_schedule_check(&r->schedule, message, sizeof message))
        r->schedule = before;
}

static bool has_blocks(const struct round *r, ng_attention_param p)
{
    return r->schedule.set[p].value != 0;
}

/* Of an operand: elements of whole bytes. */
static ng_format draw_element(struct ngc_rng *rng)
{
    const ng_format_spec *f = ngc_element_format(rng);
    while (f->store_bits < 8)
        f = ngc_element_format(rng);
    return f->format;
}

static void change_to(struct round *r, const char *key, uint32_t value)
{
    char text[16];
    (void)snprintf(text, sizeof text,
                   strcmp(key, "mask") && strcmp(key, "max_init") ? "%u" : "0x%08X", value);
    change(r, key, text);
}

/* A negative FP32 pattern, and any of them alike, or about as large as scores. */
static uint32_t draw_negative(struct ngc_rng *rng)
{
    return 0x80000001u + (ngc_one_in(rng, 2) ? ngc_below(rng, 0x7F800000u)
                                             : 0x3E000000u + ngc_below(rng, 0x08000000u));
}

/* Cuts at any key, fills and first maxima of any size, formats of any kind. */
static void draw_wild(struct round *r)
{
    static const char *const format[] = { "q_format", "kv_format", "p_format" };
    struct ngc_rng *rng = &r->rng;
    const uint32_t by = has_blocks(r, NG_ATTENTION_P_BLOCK) && !ngc_one_in(rng, 8) ? 32 : 1;
    if (ngc_one_in(rng, 2)) {
        const uint32_t tile = by * (1 + ngc_below(rng, 300 / by));
        change(r, "section", "0");
        change_to(r, "key_tile", tile);
        change_to(r, "section", tile * ngc_below(rng, 5));
        change_to(r, "section_from", ngc_below(rng, 300));
    }
    if (ngc_one_in(rng, 2))
        change_to(r, "pv_keys", by * ngc_below(rng, 300 / by));
    if (ngc_one_in(rng, 2))
        change_to(r, "skip_keys", by * ngc_below(rng, 200 / by));
    if (ngc_one_in(rng, 2))
        change_to(r, "skip_queries", ngc_below(rng, 30));
    if (ngc_one_in(rng, 2))
        change_to(r, "mask", draw_negative(rng));
    if (ngc_one_in(rng, 2))
        change_to(r, "max_init", draw_negative(rng));
    for (int i = 0; i < 3; i++)
        if (ngc_one_in(rng, 4))
            change(r, format[i], ngc_any_format(rng)->text);
}

/* Some parameters. */
static void draw_schedule(struct round *r)
{
    static const struct {
        const char *key;
        const char *value[8];
    } other[] = {
        { "key_tile", { "32", "64", "128", "96", "512", "40" } },
        { "section", { "0", "128", "256", "384", "192" } },
        { "section_from", { "0", "200", "1000" } },
        { "skip_keys", { "0", "128", "256" } },
        { "skip_queries", { "0", "1", "5", "16", "128" } },
        { "pv_keys", { "0", "128", "256", "96", "200" } },
        { "score_format", { "f32", "bf16" } },
        { "scale_place", { "q", "scores", "exp" } },
        { "score_order", { "mask_scale", "scale_mask" } },
        { "cap_argument", { "divide", "reciprocal" } },
        { "mask", { "0xFF7FFFFF", "0xFF800000", "0xC77FE000" } },
        { "max_init", { "0xFF7FFFFF", "0xFE967699", "0xFF800000" } },
        { "exp_base", { "e", "2" } },
        { "p_format", { "bf16", "e4m3", "e4m3fn", "e5m2" } },
        { "p_block", { "0", "32" } },
        { "kv_format", { "bf16", "given", "f16" } },
        { "q_format", { "bf16", "given", "e5m2" } },
        { "q_block", { "0", "32" } },
        { "mx_rule", { "floor", "floor_up1", "ceil", "even", "rceil" } },
        { "mx_input", { "f32", "bf16" } },
        { "sum_source", { "exp", "p" } },
        { "sum_order", { "sequential", "ones", "tree" } },
        { "update", { "two", "fma", "accumulator" } },
        { "o_format", { "f32", "q" } },
        { "sink_place", { "first", "last" } },
        { "normalise", { "reciprocal", "divide" } },
        { "exp", { "cr", "sleef" } },
        { "tanh", { "cr", "sleef" } },
        { "statistics", { "lse", "max_sum" } },
    };
    r->schedule = *r->kase->preset;
    if (ngc_one_in(&r->rng, 4)) { /* keys skipped inside a group of p v */
        (void)ng_attention_set(&r->schedule, "section", "0");
        (void)ng_attention_set(&r->schedule, "skip_keys", "128");
    }
    if (r->skips) {
        if (ngc_one_in(&r->rng, 2)) /* else first sections may be masked as a whole */
            (void)ng_attention_set(&r->schedule, "section", "0");
        change(r, "skip_queries", "5");
        change(r, "skip_keys", ngc_one_in(&r->rng, 2) ? "128" : "32");
        change(r, "pv_keys", ngc_one_in(&r->rng, 2) ? "200" : "96");
    }
    if (ngc_one_in(&r->rng, 6)) {
        (void)ng_attention_set(&r->schedule, "pv_keys", "0");
        (void)ng_attention_set(&r->schedule, "update", "accumulator");
    }
    if (ngc_one_in(&r->rng, 8)) { /* seldom among all, and the two together hardly ever */
        change(r, "scale_place", "exp");
        change(r, "exp_base", ngc_one_in(&r->rng, 2) ? "2" : "e");
    }
    if (ngc_one_in(&r->rng, 6)) /* it shows in few rounds that have it */
        change(r, "update", "fma");
    if (r->wild)
        draw_wild(r);
    const uint32_t changes = ngc_below(&r->rng, 8);
    for (uint32_t i = 0; i < changes; i++) {
        const uint32_t at = ngc_below(&r->rng, sizeof other / sizeof other[0]);
        change(r, other[at].key, one_of(&r->rng, other[at].value));
    }
}

/* ---- Shapes, codes, options. ---- */

/* The largest exponent of a tensor's window. `edge`: about either end of the accumulator's
 * range. */
static int draw_top(struct ngc_rng *rng, const ng_format_spec *s, bool edge)
{
    if (edge)
        return ngc_one_in(rng, 4) ? ngc_exp_most(s) - ngc_between(rng, 0, 6)
                                  : ngc_exp_normal(s) + ngc_between(rng, 0, 8);
    return ngc_one_in(rng, 12)  ? ngc_exp_normal(s) + 2 /* sums flush, of any sign */
           : ngc_one_in(rng, 6) ? ngc_between(rng, 2, 7)
                                : 0;
}

/* The same view in the other side's memory. */
static ng_tensor on_side(const ng_tensor *t, enum output which, int side)
{
    ng_tensor x = *t;
    if (t->data)
        x.data =
            mem.out[side][which].data + ((unsigned char *)t->data - mem.out[0][which].data);
    return x;
}

static bool place_tensor(struct round *r, struct ngc_mem *m, ng_format f, const int64_t dim[4],
                         ng_tensor *t)
{
    const ng_format_spec *s = ng_format_info(f);
    if (!ngc_lay(&r->rng, m, NULL, f, 4, dim, t))
        return false;
    const size_t n = m->bytes * 8 / s->store_bits;
    const int window = ngc_between(&r->rng, 0, 3) * 2,
              top = draw_top(&r->rng, s, m == &mem.v && ngc_one_in(&r->rng, r->decode ? 2 : 8));
    const struct ngc_mood mood = { .spec = s,
                                   .low = top - window,
                                   .high = top,
                                   .zeros = ngc_one_in(&r->rng, 3) ? 3 : 0,
                                   /* many rows of the reference's would take long */
                                   .special = r->many                  ? 0
                                              : ngc_one_in(&r->rng, 6) ? 400
                                              : ngc_one_in(&r->rng, 6) ? (uint32_t)n
                                                                       : 0,
                                   .any_code = !r->many && ngc_one_in(&r->rng, 12) };
    for (size_t i = 0; i < n; i++)
        ngc_store(m->data, s->store_bits, (int64_t)i, ngc_code(&r->rng, &mood));
    ngc_mem_keep(m);
    return true;
}

/* Block scales along `axis`: ordinary ones, seldom anything, NaN too. */
static bool place_scales(struct round *r, struct ngc_mem *m, uint32_t axis, ng_tensor *t)
{
    if (!ngc_lay_scales(&r->rng, m, NG_E8M0, 32, axis, t))
        return false;
    const bool wild = ngc_one_in(&r->rng, 12);
    for (size_t i = 0; i < m->bytes; i++)
        m->data[i] = (uint8_t)(wild ? ngc_below(&r->rng, 256) : 124 + ngc_below(&r->rng, 6));
    ngc_mem_keep(m);
    return true;
}

static ng_format kv_format(struct round *r, bool blocks)
{
    static const ng_format f[] = { NG_BF16, NG_BF16, NG_BF16, NG_E4M3,
                                   NG_E5M2, NG_F32,  NG_F32,  NG_F16 };
    if (r->narrow && !blocks)
        return ngc_below(&r->rng, 2) ? NG_E5M2 : NG_E4M3;
    if ((r->decode || r->wide) && !blocks && ngc_one_in(&r->rng, 2))
        return NG_BF16;
    if (blocks)
        return ngc_one_in(&r->rng, 3) ? NG_E5M2 : NG_E4M3FN;
    if (r->wild && ngc_one_in(&r->rng, 2))
        return draw_element(&r->rng);
    return f[ngc_below(&r->rng, sizeof f / sizeof f[0])];
}

static bool place_operands(struct round *r, const int64_t dim_q[4], const int64_t dim_k[4],
                           const int64_t dim_v[4])
{
    const bool p_blocks = has_blocks(r, NG_ATTENTION_P_BLOCK),
               given = !has_blocks(r, NG_ATTENTION_Q_BLOCK) && p_blocks &&
                       ngc_one_in(&r->rng, 2), /* q is, in blocks */
        k_blocks = given || has_blocks(r, NG_ATTENTION_Q_BLOCK);
    const ng_format kv = kv_format(r, p_blocks),
                    k = k_blocks == p_blocks ? kv : kv_format(r, k_blocks),
                    q = given                               ? NG_E4M3FN
                        : r->wild && ngc_one_in(&r->rng, 2) ? draw_element(&r->rng)
                        : ngc_one_in(&r->rng, 5)            ? NG_F32
                                                            : NG_BF16;
    return place_tensor(r, &mem.q, q, dim_q, &r->q) &&
           place_tensor(r, &mem.k, k, dim_k, &r->k) &&
           place_tensor(r, &mem.v, kv, dim_v, &r->v) &&
           (!given || place_scales(r, &mem.scale[0], 3, &r->q)) &&
           (!k_blocks || place_scales(r, &mem.scale[1], 3, &r->k)) &&
           (!p_blocks || place_scales(r, &mem.scale[2], 2, &r->v));
}

static void draw_options(struct round *r, int64_t batch, int64_t heads, int64_t keys)
{
    static const uint32_t scale[] = { 0, 0x3DB504F3u, 0x3F800000u, 0x40000000u };
    ng_attention_op *op = &r->op;
    *op = (ng_attention_op){ .size = sizeof *op,
                             .profile = r->kase->profile,
                             .schedule = &r->schedule,
                             .scale = scale[ngc_below(&r->rng, 4)],
                             .causal = ngc_one_in(&r->rng, 2),
                             .align = (ng_attention_align)ngc_below(&r->rng, 2),
                             .masked_rows = (ng_masked_rows)ngc_below(&r->rng, 2) };
    if (r->skips || ngc_one_in(&r->rng, r->wide ? 2 : 4))
        op->window = 1 + ngc_below(&r->rng, r->skips || r->wide ? 60 : (uint32_t)keys + 10);
    const bool inside = r->schedule.set[NG_ATTENTION_SCALE_PLACE].value == NG_PLACE_EXP;
    if (r->wild && ngc_one_in(&r->rng, 2)) /* of either sign, where that may be */
        op->scale =
            draw_negative(&r->rng) & (inside || ngc_one_in(&r->rng, 2) ? 0x7FFFFFFFu : ~0u);
    else if (inside && ngc_one_in(&r->rng, 2))
        op->scale = scale[1]; /* by the others a product is exact, and fused or not the same */
    if (!inside && ngc_one_in(&r->rng, 5))
        op->softcap = r->wild ? draw_negative(&r->rng) & 0x7FFFFFFFu : 0x41F00000u; /* 30 */
    if (!inside && ngc_one_in(&r->rng, 3)) {
        for (int64_t h = 0; h < heads; h++)
            r->sink_code[h] =
                (uint16_t)(ngc_one_in(&r->rng, 9) ? 0xFF80u
                                                  : 0x3F00u + ngc_below(&r->rng, 256) +
                                                        0x8000u * ngc_below(&r->rng, 2));
        (void)ng_tensor_init(&r->sink, NG_BF16, r->sink_code, 1, &heads);
        op->sink = &r->sink;
    }
    if (ngc_one_in(&r->rng, 4)) {
        for (int64_t b = 0; b < batch; b++)
            r->length[b] = ngc_one_in(&r->rng, 8) ? ngc_below(&r->rng, 2) * keys
                                                  : 1 + ngc_below(&r->rng, (uint32_t)keys);
        op->kv_length = r->length;
    }
    if (r->wild) {
        op->out.nan_sign = (ng_nan_sign)ngc_below(&r->rng, 2);
        op->out.overflow = (ng_overflow)ngc_below(&r->rng, 3);
        op->out.round = (ng_round)ngc_below(&r->rng, NG_ROUND_STOCHASTIC);
    }
    if (!r->kase->back && ngc_one_in(&r->rng, 12)) {
        static uint32_t word[MAX_BATCH * MAX_HEADS * MAX_QUERIES * MAX_D];
        for (size_t i = 0; i < sizeof word / sizeof word[0]; i++)
            word[i] = (uint32_t)ngc_next(&r->rng);
        op->out.round = NG_ROUND_STOCHASTIC;
        op->out.random = (ng_random){ .kind = NG_RANDOM_EXTERNAL,
                                      .word = word,
                                      .count = sizeof word / sizeof word[0] };
    }
}

/* k and v in pages of 16 to 48 rows (32 or 64 where v has block scales), in any order. */
static int64_t draw_pages(struct round *r, int64_t batch, int64_t *keys)
{
    const int64_t rows = has_blocks(r, NG_ATTENTION_P_BLOCK) ? 32 * (1 + ngc_below(&r->rng, 2))
                         : r->many                           ? 16 + ngc_below(&r->rng, 70)
                         : r->wild                           ? 1 + ngc_below(&r->rng, 70)
                                                             : 16 * (1 + ngc_below(&r->rng, 3)),
                  pages = (*keys + rows - 1) / rows,
                  blocks = batch * pages + ngc_below(&r->rng, 3);
    for (int64_t i = 0; i < batch * pages; i++)
        r->page[i] = ngc_below(&r->rng, (uint32_t)blocks);
    r->op.page_table = r->page;
    r->op.pages = pages;
    *keys = rows;
    return blocks;
}

/* do, and which gradients are wanted in which formats. */
static bool draw_gradients(struct round *r, const int64_t dim_o[4])
{
    static const ng_format f[] = { NG_BF16, NG_BF16, NG_F32, NG_E4M3 };
    const ng_tensor *like[] = { &r->q, &r->k, &r->v, r->op.sink };
    bool ok =
        place_tensor(r, &mem.dout, ngc_one_in(&r->rng, 5) ? NG_F32 : NG_BF16, dim_o, &r->dout);
    r->grad[3].data = NULL;
    for (int i = 0; i < (r->op.sink ? 4 : 3); i++) {
        const ng_format to = f[ngc_below(&r->rng, 4)];
        ok = ok && ngc_lay(&r->rng, &mem.out[0][DQ + i], &mem.out[1][DQ + i], to, like[i]->rank,
                           like[i]->dim, &r->grad[i]);
        if (ngc_one_in(&r->rng, 8))
            r->grad[i].data = NULL;
    }
    return ok;
}

/* Shapes of gradients: the reference takes each pair of a query and a key three times. */
static void draw_small(struct ngc_rng *rng, int64_t *queries, int64_t *keys, int64_t *d)
{
    *d = ngc_one_in(rng, 3) ? 1 + ngc_below(rng, 48) : 16;
    *queries = *queries % 24 + 1;
    if (ngc_one_in(rng, 10)) { /* more than the usual block of 128 */
        *queries = 120 + ngc_below(rng, MAX_QUERIES - 120);
        *keys = 1 + *keys % 33;
    }
}

static void draw_long(struct ngc_rng *rng, int64_t *queries, int64_t *keys, int64_t *d)
{
    const bool keys_are = ngc_one_in(rng, 2);
    *d = 1 + ngc_below(rng, 8);
    *queries = keys_are ? ngc_between(rng, 1, 10) : ngc_between(rng, MAX_QUERIES, LONG_QUERIES);
    *keys = keys_are ? ngc_between(rng, MAX_KEYS, MANY_KEYS) : ngc_between(rng, 1, 24);
}

static bool draw(struct round *r)
{
    static const int64_t seams[] = { 1, 2, 31, 32, 33, 64, 127, 128, 129, 255, 256, 257 };
    struct ngc_rng *rng = &r->rng;
    draw_schedule(r);
    if (r->wide && !ngc_one_in(rng, 4)) { /* else few draws have all that it wants */
        change(r, "q_format", "bf16");
        change(r, "p_format", "bf16");
        change(r, "score_format", "f32");
        if (ngc_one_in(rng, 2)) /* a window ends inside a tile, and keys are few */
            change(r, "key_tile", ngc_one_in(rng, 2) ? "32" : "40");
    }
    const bool decode = r->decode || (!r->skips && !r->wide && ngc_one_in(rng, 3)),
               back = r->kase->back;
    const int64_t batch = r->many || r->long_
                              ? 1
                              : 1 + ngc_below(rng, back ? 1 + ngc_one_in(rng, 3) : MAX_BATCH),
                  kv_heads = 1 + ngc_below(rng, 2),
                  heads = kv_heads * (1 + (r->long_ ? 0 : ngc_below(rng, back ? 2 : 3)));
    int64_t blocks = batch, queries = decode ? 1 + ngc_below(rng, 2) : 1 + ngc_below(rng, 40),
            d = ngc_one_in(rng, 3) ? 1 + ngc_below(rng, MAX_D) : 16 + 16 * ngc_below(rng, 3),
            keys = r->skips             ? 200 + ngc_below(rng, MAX_KEYS - 248)
                   : ngc_one_in(rng, 2) ? seams[ngc_below(rng, 12)]
                                        : 1 + ngc_below(rng, MAX_KEYS - 48);
    if (r->wide) {
        queries =
            ngc_between(rng, 55, 64) * (int64_t)(1 + ngc_below(rng, 2)) * kv_heads / heads;
        keys = r->skips ? keys : 1 + keys % 200;
        d = ngc_one_in(rng, 3) ? d : 16;
    }
    if (r->narrow) /* as runs of 32, which are turned, end */
        d = 32 * (int64_t)(1 + ngc_below(rng, MAX_D / 32));
    if (r->many) {
        keys = ngc_between(rng, MAX_KEYS, MANY_KEYS);
        d = 1 + ngc_below(rng, MANY_D);
        queries = decode ? queries : 1 + ngc_below(rng, MANY_QUERIES);
    }
    if (back)
        (r->long_ ? draw_long : draw_small)(rng, &queries, &keys, &d);
    const int64_t dv = ngc_one_in(rng, 3) ? 1 + ngc_below(rng, r->long_  ? 8
                                                               : back    ? 40
                                                               : r->many ? MANY_D
                                                                         : MAX_D)
                       : r->wide          ? 16 * (1 + ngc_below(rng, 5))
                                          : d;
    draw_options(r, batch, heads, keys);
    if (r->wide && ngc_one_in(rng, 2)) /* a scale that its exponentials apply */
        r->op.scale = 0x3DB504F3u;
    if (!back && ngc_one_in(rng, r->wide ? 12 : 6))
        blocks = draw_pages(r, batch, &keys);
    const ng_format out = r->wild && ngc_one_in(rng, 3)     ? draw_element(rng)
                          : !r->skips && ngc_one_in(rng, 2) ? NG_BF16
                          : ngc_one_in(rng, 4)              ? NG_E5M2
                                                            : NG_F32;
    const int64_t dim_q[] = { batch, heads, queries, d },
                  dim_k[] = { blocks, kv_heads, keys, d },
                  dim_v[] = { blocks, kv_heads, keys, dv },
                  dim_o[] = { batch, heads, queries, dv };
    r->has_stats = ngc_one_in(rng, 2);
    bool ok = place_operands(r, dim_q, dim_k, dim_v);
    ok = ok && ngc_lay(&r->rng, &mem.out[0][O], &mem.out[1][O], out, 4, dim_o, &r->o);
    for (int i = 0; i < 3; i++)
        ok = ok && ngc_lay(&r->rng, &mem.out[0][LSE + i], &mem.out[1][LSE + i], NG_F32, 3,
                           dim_q, &r->stats[i]);
    return ok && (!back || draw_gradients(r, dim_o));
}

/* ---- Running. ---- */

static ng_status run_forward(struct round *r, ng_ctx *ctx, int side, bool has_stats)
{
    ng_tensor o = on_side(&r->o, O, side), stat[3];
    for (int i = 0; i < 3; i++)
        stat[i] = on_side(&r->stats[i], (enum output)(LSE + i), side);
    const ng_attention_saved saved = { &stat[0], &stat[1], &stat[2] };
    return ng_attention(ctx, &r->op, &r->q, &r->k, &r->v, &o, has_stats ? &saved : NULL);
}

/* Side 1, which comes first, makes what both sides read. */
static ng_status run_back(struct round *r, ng_ctx *ctx)
{
    ng_tensor grad[4];
    const ng_tensor *to[4];
    if (r->side)
        r->refused = run_forward(r, ctx, 0, true) != NG_OK;
    if (r->refused)
        return NG_OK;
    for (int i = 0; i < 4; i++) {
        grad[i] = on_side(&r->grad[i], (enum output)(DQ + i), r->side);
        to[i] = r->grad[i].data ? &grad[i] : NULL;
    }
    for (int i = O; i <= SUM && r->side; i++)
        ngc_mem_keep(&mem.out[0][i]);
    const ng_attention_saved saved = { &r->stats[0], &r->stats[1], &r->stats[2] };
    const ng_attention_gradients to_all = { to[0], to[1], to[2], to[3] };
    return ng_attention_backward(ctx, &r->op, &r->q, &r->k, &r->v, &r->o, &saved, &r->dout,
                                 &to_all);
}

/* ISAs that have no attention of their own. */
static uint32_t without_rows(void)
{
    uint32_t mask = 0;
    for (size_t i = 0; ng_isa_at(i).name; i++)
        mask |= ng_isa_at(i).kernels->attention ? 0 : ng_isa_at(i).bit;
    return mask & ng_isa_available();
}

/* This ISA, and the next one that has conversions if it has none. */
static uint32_t with_casts(const struct ng_isa *isa)
{
    bool found = false;
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa next = ng_isa_at(i);
        found |= next.bit == isa->bit;
        if (found && *next.kernels->cast)
            return isa->bit | (next.bit & ng_isa_available());
    }
    return isa->bit;
}

static void run_side(void *arg)
{
    struct round *r = arg;
    const ng_ctx_config config = { .size = sizeof config,
                                   .isa_mask = r->side ? with_casts(r->kase->isa) |
                                                             r->multiplies | NG_ISA_REF
                                                       : NG_ISA_REF,
                                   .executor = r->side ? ngc_backwards : (ng_executor){ 0 } };
    ng_ctx *ctx;
    if (ng_ctx_create(&config, &ctx)) {
        r->wrong = "no context";
        return;
    }
    const uint32_t before = ngc_fp_hostile();
    ngc_fp_set(before);
    r->status[r->side] =
        r->kase->back ? run_back(r, ctx) : run_forward(r, ctx, r->side, r->has_stats);
    if (ngc_fp_control(ngc_fp_get()) != ngc_fp_control(before))
        r->wrong = "the control word is another";
    ngc_fp_set(0x1F80);
    if (!r->refused)
        (void)snprintf(r->text[r->side], sizeof r->text[r->side], "%s", ng_ctx_message(ctx));
    if (r->side && !r->status[1] && strcmp(ng_ctx_kernel(ctx), r->kase->kernel->name) == 0) {
        r->took = true;
        r->by_kernel = ng_ctx_tiles(ctx).fast;
    }
    ng_ctx_destroy(ctx);
}

static const char *compare(const struct round *r)
{
    static const char *const name[] = { "o differs",   "lse differs",  "max differs",
                                        "sum differs", "dq differs",   "dk differs",
                                        "dv differs",  "dsink differs" };
    if (r->wrong)
        return r->wrong;
    if (r->status[0] != r->status[1] || strcmp(r->text[0], r->text[1]) != 0)
        return "another status";
    const bool back = r->kase->back;
    for (int i = back ? DQ : O; i <= (back ? (r->op.sink ? DSINK : DV) : SUM); i++)
        if (!ngc_mem_equal(&mem.out[0][i], &mem.out[1][i]))
            return name[i];
    bool kept = ngc_mem_kept(&mem.q) && ngc_mem_kept(&mem.k) && ngc_mem_kept(&mem.v) &&
                (!back || ngc_mem_kept(&mem.dout));
    for (int i = O; back && !r->refused && i <= SUM; i++)
        kept = kept && ngc_mem_kept(&mem.out[0][i]);
    for (int i = 0; i < 3; i++)
        kept = kept && (!(const ng_tensor *[]){ &r->q, &r->k, &r->v }[i]->scale ||
                        ngc_mem_kept(&mem.scale[i]));
    return kept ? NULL : "wrote to its operands";
}

static void print_elements(const char *name, const ng_tensor *t, enum output which)
{
    const ng_format_spec *f = ng_format_info(t->format);
    const ng_tensor other = on_side(t, which, 1);
    int64_t n = 1, index[NG_MAX_RANK] = { 0 };
    for (uint32_t d = 0; d < t->rank; d++)
        n *= t->dim[d];
    char want[64], got[64];
    for (int64_t i = 0, shown = 0; t->data && i < n && shown < 3; i++) {
        for (int64_t d = t->rank, left = i; d-- > 0; left /= t->dim[d])
            index[d] = left % t->dim[d];
        const uint32_t a = ng_tensor_get(t, index), b = ng_tensor_get(&other, index);
        if (a == b)
            continue;
        printf("     %s[%lld,%lld,%lld,%lld]: want %s, got %s\n", name, (long long)index[0],
               (long long)index[1], (long long)index[2], (long long)index[3],
               ngc_text(f, a, want), ngc_text(f, b, got));
        shown++;
    }
}

static void print_difference(const struct round *r)
{
    static const char *const gradient[] = { "dq", "dk", "dv" }, *const stat[] = { "lse", "max",
                                                                                  "sum" };
    const ng_format_spec *f = ng_format_info(r->o.format);
    char line[2000];
    if (!r->kase->back && !r->many)
        print_elements("o", &r->o, O);
    for (int i = 0; i < 3 && r->has_stats && !r->kase->back && !r->many; i++)
        print_elements(stat[i], &r->stats[i], (enum output)(LSE + i));
    for (int i = 0; r->kase->back && i < 3; i++)
        print_elements(gradient[i], &r->grad[i], (enum output)(DQ + i));
    (void)ng_attention_schedule_print(&r->schedule, line, sizeof line);
    printf("     q [%lld,%lld,%lld,%lld] %s, keys %lld %s %s%s, dv %lld, o %s, causal %d "
           "window %lld scale 0x%08X cap %d sink %d lengths %d pages %lld\n     %s\n",
           (long long)r->q.dim[0], (long long)r->q.dim[1], (long long)r->q.dim[2],
           (long long)r->q.dim[3], ng_format_info(r->q.format)->text, (long long)r->k.dim[2],
           ng_format_info(r->k.format)->text, ng_format_info(r->v.format)->text,
           r->k.scale || r->v.scale ? " in blocks" : "", (long long)r->v.dim[3], f->text,
           r->op.causal, (long long)r->op.window, r->op.scale, r->op.softcap != 0,
           r->op.sink != NULL, r->op.kv_length != NULL, (long long)r->op.pages, line);
}

/* Some rows of what the kernel wrote, against the reference. */
static void sample_rows(void *arg)
{
    struct round *r = arg;
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    const ng_tensor o = on_side(&r->o, O, 1);
    const uint32_t bits = ng_format_info(o.format)->store_bits;
    ng_ctx *ctx;
    if (ng_ctx_create(&config, &ctx)) {
        r->wrong = "no context";
        return;
    }
    for (int s = 0; s < SAMPLES && !r->wrong; s++) {
        uint32_t code[MAX_D];
        int64_t at[NG_MAX_RANK] = { 0 };
        for (int i = 0; i < 3; i++)
            at[i] = ngc_below(&r->rng, (uint32_t)o.dim[i]);
        if (ng_attention_row(ctx, &r->op, &r->q, &r->k, &r->v, &o, at, NULL, code))
            r->wrong = "ng_attention_row() refuses what ng_attention() takes";
        for (; !r->wrong && at[3] < o.dim[3]; at[3]++)
            if (ng_tensor_get(&o, at) != code[at[3]]) {
                (void)snprintf(r->text[1], sizeof r->text[1],
                               "o[%lld,%lld,%lld,%lld]: want 0x%X, got 0x%X of %u bits",
                               (long long)at[0], (long long)at[1], (long long)at[2],
                               (long long)at[3], code[at[3]], ng_tensor_get(&o, at), bits);
                r->wrong = "a row differs";
            }
    }
    ng_ctx_destroy(ctx);
}

/* The kernel's side alone; rows only where it took the call. */
static const char *run_many(struct round *r)
{
    r->side = 1;
    int signal = ngc_catch(run_side, r);
    if (!signal && r->took && !r->wrong)
        signal = ngc_catch(sample_rows, r);
    return signal ? ngc_signal_text(signal) : r->wrong;
}

static bool run_round(const struct ngc *run, struct round *r, uint32_t round)
{
    int signal = 0;
    if (!draw(r)) {
        printf("FAIL %s: round %u: does not fit\n", r->kase->name, round);
        return false;
    }
    for (r->side = 1; r->side >= 0 && !signal && !r->many; r->side--)
        signal = ngc_catch(run_side, r);
    const char *wrong = r->many ? run_many(r) : signal ? ngc_signal_text(signal) : compare(r);
    if (!wrong)
        return true;
    printf("FAIL %s: round %u: %s %s\n     again: ng-check --seed %llu --rounds %u '%s'\n",
           r->kase->name, round, wrong, r->text[1], (unsigned long long)run->seed, run->rounds,
           r->kase->name);
    print_difference(r);
    return false;
}

/* The reference takes as long for a round here as for several of the others. */
static uint32_t rounds_of(const struct ngc *run)
{
    return run->filter ? run->rounds : run->rounds / 4 + 1;
}

static void run_case(struct ngc *run, const struct kase *c, uint64_t *by_kernel)
{
    static struct round r;
    for (uint32_t i = 0; i < rounds_of(run); i++) {
        r = (struct round){ .kase = c,
                            .rng = { ngc_hash(c->name, run->seed) + i * UINT64_C(0x51ED27) } };
        r.multiplies = i % 2 ? without_rows() : 0;
        r.decode = i % 4 == 1 && !c->back;
        r.narrow = i % 16 == 13 && !c->back;
        r.skips = i % 8 == 3;
        r.wide = (i % 8 == 0 || i % 16 == 12) && !r.many && !c->back;
        r.many = i % 5 == 4 && !c->back;
        r.long_ = i % 5 == 4 && c->back;
        r.wild = i % 4 == 2 || i % 8 == 7;
        const bool ok = run_round(run, &r, i);
        run->rounds_run += r.took;
        *by_kernel += r.by_kernel;
        if (!ok) {
            run->failed++;
            return;
        }
    }
}

/* The cases of a kernel, forward or backward; how many rows (and keys) it took. */
static uint64_t walk_cases(struct ngc *run, const struct ng_isa *isa,
                           const struct ng_attention_kernel *kernel, bool back)
{
    static const char *const profile[] = {
        "trn2", "trn3", "fma-f32", "nv-ampere", "nv-hopper-wgmma", "amd-cdna2", "amd-cdna3"
    };
    uint64_t rows = 0;
    for (size_t p = 0; p < sizeof profile / sizeof profile[0]; p++)
        for (size_t i = 0; ng_attention_at(i); i++) {
            struct kase c = { .isa = isa,
                              .kernel = kernel,
                              .profile = ng_profile_find(profile[p]),
                              .preset = ng_attention_at(i),
                              .back = back };
            (void)snprintf(c.name, sizeof c.name, "%s/%s/%s%s", kernel->name, profile[p],
                           c.preset->name, back ? "/back" : "");
            if (strcmp(c.preset->name, "exact") == 0 ||
                (back && c.preset->set[NG_ATTENTION_Q_BLOCK].value))
                continue;
            if (ngc_begin_case(run, c.name))
                run_case(run, &c, &rows);
        }
    return rows;
}

static void walk_kernel(struct ngc *run, const struct ng_isa *isa,
                        const struct ng_attention_kernel *kernel)
{
    for (int back = 0; back < 2; back++) {
        const struct ngc_walk walk = ngc_begin_walk(run);
        const uint64_t rounds = run->rounds_run, rows = walk_cases(run, isa, kernel, back != 0);
        if (!ngc_walked(run, &walk))
            continue;
        printf("%s%s: %u cases, %llu rounds and %llu %s accepted\n", kernel->name,
               back ? "/back" : "", ngc_walked(run, &walk),
               (unsigned long long)(run->rounds_run - rounds), (unsigned long long)rows,
               back ? "rows and keys" : "rows");
        ngc_end_walk(run, &walk, kernel->name, rows > 0);
    }
}

void ngc_check_attention(struct ngc *run)
{
    if (!open_memory()) {
        printf("FAIL: no memory for attention\n");
        run->failed++;
        return;
    }
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        const struct ng_attention_kernel *k = isa.kernels->attention;
        if (k && ngc_begin_kernel(run, &isa, k->name))
            walk_kernel(run, &isa, k);
    }
}
