/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions over ranks over the public header: what can be said by hand, chunks and owners,
 * presets and their text, threads and ISAs beside the reference, bad input. The bits are judged
 * by tests/model/judge_collective.py.
 */
#include <stdlib.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "api.h"

enum {
    N = 4,
    E = 6,
    AROUND = 0xEE
};

static ng_ctx *ctx;
static float x[N * E], d[E];

static ng_collective preset(const char *name)
{
    const ng_collective *c = ng_collective_find(name);
    return CHECK(c) ? *c : (ng_collective){ 0 };
}

static ng_all_reduce_op op_of(const ng_collective *c)
{
    return (ng_all_reduce_op){ .size = sizeof(ng_all_reduce_op), .collective = c };
}

static bool is_untouched(void)
{
    for (size_t i = 0; i < sizeof d; i++)
        if (((const unsigned char *)d)[i] != AROUND)
            return false;
    return true;
}

/* The call just made must have failed so, naming `word`, and have left d alone. */
static void refused(ng_status found, ng_status want, const char *word)
{
    if (!CHECK(found == want) || !CHECK(strstr(ng_ctx_message(ctx), word)) ||
        !CHECK(is_untouched()))
        printf("  %s: %d %s\n", word, (int)found, ng_ctx_message(ctx));
}

/* ---- By hand. ---- */

/* In FP32, where 2^24 swallows a one: who meets whom decides. */
static void big_and_small(void)
{
    const float big = 16777216;
    const float column[4] = { big, 1, 1, -big };
    static const struct {
        const char *order;
        float want;
    } cases[] = { { "((0 1) 2) 3", 0 },
                  { "(1 2) (0 3)", 2 },
                  { "((0 3) 1) 2", 2 },
                  { "0 3 1 2", 2 },
                  { "0 1 3 2", 1 } };
    ng_collective c = preset("trn-ring");
    CHECK(ng_collective_set(&c, "algorithm", "explicit") == NG_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float buffers[4], result[1];
        memcpy(buffers, column, sizeof buffers);
        ng_all_reduce_op op = op_of(&c);
        op.order = cases[i].order;
        const ng_tensor tx = view(NG_F32, buffers, 4, 1), td = vector(NG_F32, result, 1);
        CHECK(ng_all_reduce(ctx, &op, &tx, &td) == NG_OK);
        if (!CHECK(result[0] == cases[i].want))
            printf("  %s: %g\n", cases[i].order, (double)result[0]);
    }
}

/* Every chunk begins behind its owner: of four elements each has another order. */
static void ring_by_hand(void)
{
    const float big = 16777216;
    /* element c: its owner brings the big number, the next one takes it away at first */
    float buffers[4][4], result[4];
    ng_collective c = preset("trn-ring");
    ng_all_reduce_op op = op_of(&c);
    for (int r = 0; r < 4; r++)
        for (int e = 0; e < 4; e++)
            buffers[r][e] = r == e ? big : r == (e + 1) % 4 ? -big : 1;
    const ng_tensor tx = view(NG_F32, buffers, 4, 4), td = vector(NG_F32, result, 4);
    CHECK(ng_all_reduce(ctx, &op, &tx, &td) == NG_OK);
    for (int e = 0; e < 4; e++) /* (-big + 1) + 1, both exact, then the big number */
        CHECK(result[e] == 2);
    CHECK(ng_collective_set(&c, "wire", "bf16") == NG_OK);
    CHECK(ng_all_reduce(ctx, &op, &tx, &td) == NG_OK);
    for (int e = 0; e < 4; e++)
        CHECK(result[e] == 0);
    CHECK(ng_collective_set(&c, "chunk", "4") == NG_OK); /* all are of chunk 0 */
    CHECK(ng_collective_set(&c, "wire", "given") == NG_OK);
    CHECK(ng_all_reduce(ctx, &op, &tx, &td) == NG_OK);
    /* chunk 0: ranks 1, 2, 3, 0 */
    CHECK(result[0] == 2 && result[1] == 2 && result[2] == 1 && result[3] == 2);
}

static void least_by_hand(void)
{
    const uint32_t codes[3][5] = {
        { 0x80000000u, 0x7FC12345u, 0xFF800000u, 0x3F800000u, 0x7F800001u },
        { 0x00000000u, 0x3F800000u, 0x7F800000u, 0xBF800000u, 0xFFC00000u },
        { 0x80000000u, 0xC0000000u, 0x00000001u, 0x00000002u, 0x7FFFFFFFu }
    };
    static const struct {
        ng_reduction reduction;
        const char *nan;
        uint32_t want[5];
    } cases[] = {
        { NG_REDUCTION_MIN,
          "propagate",
          { 0x80000000u, 0x7FC00000u, 0xFF800000u, 0xBF800000u, 0x7FC00000u } },
        { NG_REDUCTION_MAX,
          "propagate",
          { 0, 0x7FC00000u, 0x7F800000u, 0x3F800000u, 0x7FC00000u } },
        { NG_REDUCTION_MIN,
          "number",
          { 0x80000000u, 0xC0000000u, 0xFF800000u, 0xBF800000u, 0x7FC00000u } },
        { NG_REDUCTION_MAX,
          "number",
          { 0, 0x3F800000u, 0x7F800000u, 0x3F800000u, 0x7FC00000u } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t buffers[3][5], result[5];
        ng_collective c = preset("trn-single-step");
        CHECK(ng_collective_set(&c, "nan", cases[i].nan) == NG_OK);
        ng_all_reduce_op op = op_of(&c);
        op.reduction = cases[i].reduction;
        memcpy(buffers, codes, sizeof buffers);
        const ng_tensor tx = view(NG_F32, buffers, 3, 5), td = vector(NG_F32, result, 5);
        CHECK(ng_all_reduce(ctx, &op, &tx, &td) == NG_OK);
        CHECK(memcmp(result, cases[i].want, sizeof result) == 0);
    }
}

/* ---- Orders as text, sums one by one. ---- */

static void orders(void)
{
    static const struct {
        const char *preset, *key, *value;
        int64_t ranks, chunk;
        const char *want;
    } cases[] = {
        { "trn-ring", "node", "0", 4, 0, "((1 2) 3) 0" },
        { "trn-ring", "node", "0", 4, 2, "((3 0) 1) 2" },
        { "trn-ring", "node", "0", 1, 0, "0" },
        { "trn-ring", "node", "2", 4, 1, "(1 0) (3 2)" },
        { "trn-ring", "node", "2", 4, 3, "(0 1) (2 3)" },
        { "trn-kanga-ring", "node", "0", 6, 0, "((2 3) 4 5) 0 1" },
        { "trn-kanga-ring", "node", "0", 6, 3, "((5 4) 1 0) 3 2" },
        { "trn-kanga-ring", "received", "last", 4, 0, "0 1 (2 3)" },
        { "trn-mesh", "chip", "2", 6, 3, "(0 1) (2 3) (4 5)" },
        { "trn-mesh", "start", "owner", 8, 6, "(6 7 4 5) (2 3 0 1)" },
        { "trn-mesh", "chip", "1", 3, 0, "0 1 2" },
        { "trn-rdh", "chip", "1", 4, 0, "(0 1) (2 3)" },
        { "trn-rdh", "chip", "2", 8, 5, "((0 1) (2 3)) ((4 5) (6 7))" },
        { "trn-rdh", "halving", "far", 16, 5,
          "((0 1 2 3) (8 9 10 11)) ((4 5 6 7) (12 13 14 15))" },
        { "trn-single-step", "node", "0", 3, 2, "0 1 2" },
        { "nccl-symmetric", "node", "0", 3, 2, "2 0 1" },
        { "tree", "node", "0", 5, 0, "((0 1) 2) (3 4)" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ng_collective c = preset(cases[i].preset);
        const ng_all_reduce_op op = op_of(&c);
        const char *want = cases[i].want;
        char text[80] = "";
        size_t length = 0;
        CHECK(ng_collective_set(&c, cases[i].key, cases[i].value) == NG_OK);
        CHECK(ng_all_reduce_order(ctx, &op, cases[i].ranks, cases[i].chunk, text, sizeof text,
                                  &length) == NG_OK);
        if (!CHECK(strcmp(text, want) == 0) || !CHECK(length == strlen(want)))
            printf("  %s: %s\n", cases[i].preset, text);
        /* the text is an order: it gives itself */
        char again[80] = "";
        CHECK(ng_collective_set(&c, "node", "0") == NG_OK);
        CHECK(ng_collective_set(&c, "algorithm", "explicit") == NG_OK);
        ng_all_reduce_op same = op_of(&c);
        same.order = text;
        CHECK(ng_all_reduce_order(ctx, &same, cases[i].ranks, 0, again, sizeof again,
                                  &length) == NG_OK);
        CHECK(strcmp(again, text) == 0);
        /* a short buffer ends in a NUL, and the length is the whole's */
        CHECK(ng_all_reduce_order(ctx, &same, cases[i].ranks, 0, again, 2, &length) == NG_OK);
        CHECK(strlen(again) <= 1 && length == strlen(text));
    }
}

static void steps(void)
{
    float buffers[4][2] = { { 1, 256 }, { 2, 1 }, { 4, 1 }, { 8, 1 } }, result[2];
    ng_collective c = preset("trn-ring");
    CHECK(ng_collective_set(&c, "wire", "bf16") == NG_OK);
    const ng_all_reduce_op op = op_of(&c);
    const ng_tensor tx = view(NG_F32, buffers, 4, 2), td = vector(NG_F32, result, 2);
    const int64_t second = 1, outside = 2;
    ng_reduce_step s[3];
    size_t n = 0;
    uint32_t code = 0;
    /* chunk 1: ranks 2, 3, 0, 1: 2, 258, 259 goes to 260 in bf16 */
    CHECK(ng_all_reduce_element(ctx, &op, &tx, &td, &second, s, 3, &n, &code) == NG_OK);
    CHECK(n == 3 && code == 0x43820000u);
    CHECK(s[0].terms == 2 && s[0].ranks == 2 && s[0].rank == 3 && s[0].value == 0x40000000u);
    CHECK(s[1].ranks == 3 && s[1].rank == 0 && s[1].value == 0x43810000u);
    CHECK(s[2].ranks == 4 && s[2].rank == 1 && s[2].value == 0x43818000u &&
          s[2].wire == 0x43820000u);
    CHECK(ng_all_reduce_element(ctx, &op, &tx, &td, &second, s, 1, &n, &code) == NG_OK &&
          n == 3);
    CHECK(ng_all_reduce_element(ctx, &op, &tx, &td, &second, NULL, 0, NULL, &code) == NG_OK);
    CHECK(ng_all_reduce_element(ctx, &op, &tx, &td, &outside, NULL, 0, NULL, &code) ==
          NG_ERR_ARGUMENT);
    CHECK(ng_all_reduce_element(ctx, &op, &tx, &td, NULL, NULL, 0, NULL, &code) ==
          NG_ERR_ARGUMENT);
    CHECK(ng_all_reduce_element(ctx, &op, &tx, &td, &second, NULL, 0, NULL, NULL) ==
          NG_ERR_ARGUMENT);
}

/* ---- Presets. ---- */

static void presets(void)
{
    char text[2048], values[200];
    size_t n = 0;
    for (; ng_collective_at(n); n++) {
        const ng_collective *c = ng_collective_at(n);
        CHECK(ng_collective_find(c->name) == c);
        CHECK(ng_collective_check(c, text, sizeof text) == NG_OK);
        CHECK(ng_collective_print(c, text, sizeof text) == strlen(text));
        CHECK(strstr(text, "algorithm=") && strncmp(text, c->name, strlen(c->name)) == 0);
        for (int p = 0; p < NG_COLLECTIVE_PARAM_COUNT; p++) {
            const ng_evidence e = c->set[p].evidence;
            CHECK(e == NG_EVIDENCE_ASSUMED || c->set[p].source[0]);
        }
    }
    CHECK(n == 9 && !ng_collective_find("ring") && !ng_collective_find(NULL));
    for (int p = 0; p < NG_COLLECTIVE_PARAM_COUNT; p++) {
        const ng_collective_param param = (ng_collective_param)p;
        CHECK(ng_collective_param_key(param) && ng_collective_param_meaning(param));
        CHECK(ng_collective_param_values(param, values, sizeof values) == strlen(values));
        CHECK(ng_collective_param_print(param, 1, values, sizeof values) == strlen(values));
    }
    CHECK(!ng_collective_param_key(NG_COLLECTIVE_PARAM_COUNT));
    CHECK(ng_collective_param_print(NG_COLLECTIVE_PARAM_COUNT, 0, values, 9) == 0);
    CHECK(ng_collective_param_is_idle(NULL, NG_COLLECTIVE_NODE, true));
    ng_collective c = preset("trn-ring");
    CHECK(ng_collective_set(&c, "algorithm", "star") == NG_ERR_PROFILE);
    CHECK(ng_collective_set(&c, "speed", "1") == NG_ERR_PROFILE);
    CHECK(ng_collective_set(&c, NULL, "1") == NG_ERR_ARGUMENT);
    CHECK(ng_collective_set(&c, "chip", "-1") == NG_ERR_PROFILE);
}

/* An idle parameter changes no bit, one that is not can. */
static void idle(void)
{
    enum {
        RANKS = 16,
        COUNT = 2500
    };
    static uint32_t buffers[RANKS * COUNT], want[COUNT], got[COUNT];
    static const char *const value[] = {
        "0",          "1",           "2",    "4",    "8",     "64",        "ring",
        "mesh",       "rdh",         "tree", "own",  "zero",  "owner",     "near",
        "far",        "first",       "last", "once", "pairs", "propagate", "number",
        "kanga_ring", "single_step", "bf16", "rtz",  "sat"
    };
    const ng_tensor tx = view(NG_F32, buffers, RANKS, COUNT), td = vector(NG_F32, want, COUNT),
                    tg = vector(NG_F32, got, COUNT);
    uint64_t seed = 5;
    bool changed[NG_COLLECTIVE_PARAM_COUNT] = { false };
    fill_tensor(&tx, &seed);
    for (size_t n = 0; ng_collective_at(n); n++) {
        const ng_all_reduce_op op = op_of(ng_collective_at(n));
        CHECK(ng_all_reduce(ctx, &op, &tx, &td) == NG_OK);
        for (int p = 0; p < NG_COLLECTIVE_PARAM_COUNT; p++)
            for (size_t v = 0; v < sizeof value / sizeof value[0]; v++) {
                ng_collective c = *op.collective;
                const ng_all_reduce_op other = op_of(&c);
                const ng_collective_param param = (ng_collective_param)p;
                if (ng_collective_set(&c, ng_collective_param_key(param), value[v]) ||
                    ng_all_reduce(ctx, &other, &tx, &tg))
                    continue;
                const bool same = memcmp(want, got, sizeof want) == 0;
                changed[p] |= !same;
                if (!CHECK(same || !ng_collective_param_is_idle(op.collective, param, true)))
                    printf("  %s: %s=%s\n", op.collective->name, ng_collective_param_key(param),
                           value[v]);
            }
    }
    /* nothing passes FP32's largest number, no sum is rounded twice, no preset has nodes */
    for (int p = 0; p < NG_COLLECTIVE_PARAM_COUNT; p++)
        if (!CHECK(changed[p] || p == NG_COLLECTIVE_NAN || p == NG_COLLECTIVE_BETWEEN ||
                   p == NG_COLLECTIVE_OVERFLOW || p == NG_COLLECTIVE_ROUND ||
                   p == NG_COLLECTIVE_SUM))
            printf("  %s\n", ng_collective_param_key((ng_collective_param)p));
}

/* ---- The same bits. ---- */

/* Threads, tasks in reverse, ISAs, hostile control words, memory of the caller's. */
static void invariance(void)
{
    enum {
        RANKS = 12,
        COUNT = 10007
    };
    static uint16_t buffers[RANKS * COUNT], want[COUNT], got[COUNT];
    uint64_t seed = 77;
    const ng_tensor tx = view(NG_BF16, buffers, RANKS, COUNT),
                    td = vector(NG_BF16, want, COUNT), tg = vector(NG_BF16, got, COUNT);
    fill_tensor(&tx, &seed);
    ng_ctx *ref = NULL, *isa = NULL, *threads = NULL;
    ng_pool *pool = NULL;
    ng_executor executor;
    ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    CHECK(ng_ctx_create(&config, &ref) == NG_OK);
    config.isa_mask = NG_ISA_REF | NG_ISA_AVX2;
    config.executor = (ng_executor){ .parallel_for = backwards, .workers = 1 };
    CHECK(ng_ctx_create(&config, &isa) == NG_OK);
    config = (ng_ctx_config){ .size = sizeof config };
    CHECK(ng_pool_create(3, &pool, &executor) == NG_OK);
    config.executor = executor;
    CHECK(ng_ctx_create(&config, &threads) == NG_OK);
    ng_ctx *const all[] = { isa, threads, ctx };
    static const char *const names[] = { "trn-ring", "trn-kanga-ring", "trn-mesh", "tree",
                                         "nccl-symmetric" };
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        ng_collective c = preset(names[n]);
        const ng_all_reduce_op op = op_of(&c);
        CHECK(ng_all_reduce(ref, &op, &tx, &td) == NG_OK);
        CHECK(strcmp(ng_ctx_kernel(ref), "ref") == 0);
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            memset(got, AROUND, sizeof got);
#if defined(__x86_64__)
            const unsigned saved = _mm_getcsr();
            _mm_setcsr(saved | 0xE040); /* toward zero, flush, denormals are zeros */
#endif
            const ng_status s = ng_all_reduce(all[i], &op, &tx, &tg);
#if defined(__x86_64__)
            _mm_setcsr(saved);
#endif
            CHECK(s == NG_OK && memcmp(want, got, sizeof want) == 0);
        }
    }
    ng_ctx_destroy(ref);
    ng_ctx_destroy(isa);
    ng_ctx_destroy(threads);
    ng_pool_destroy(pool);
}

/* ---- Bad input. ---- */

static void bad_operands(void)
{
    ng_collective c = preset("trn-ring");
    const ng_all_reduce_op good = op_of(&c);
    ng_all_reduce_op op = good;
    uint8_t scales[N * E];
    const int64_t many[] = { NG_MAX_RANKS + 1, 1 };
    const ng_tensor tx = view(NG_F32, x, N, E), td = vector(NG_F32, d, E),
                    flat = vector(NG_F32, x, N * E), narrow = vector(NG_F32, d, E - 1),
                    scale = vector(NG_E8M0, d, E), inside = vector(NG_F32, x + E, E),
                    scaled_x = view(NG_E8M0, scales, N, E);
    ng_tensor scaled = view(NG_E4M3FN, x, N, E), crowd = view(NG_F32, x, N, 1),
              one = vector(NG_F32, d, 1);
    memset(d, AROUND, sizeof d);
    refused(ng_all_reduce(ctx, NULL, &tx, &td), NG_ERR_ARGUMENT, "op is NULL");
    op.size = 1;
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "op.size");
    op = good;
    op.collective = NULL;
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "op.collective");
    op = good;
    op.reduction = (ng_reduction)3;
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "op.reduction is 3");
    op = good;
    op.rank = 1;
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "op.rank is 1");
    op = good;
    op.order = "0 1 2 3";
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "op.order is '0 1 2 3'");
    op = good;
    op.out.round = (ng_round)9;
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "op.out");
    op.out.round = NG_ROUND_STOCHASTIC;
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "random");
    op = good;
    op.elements = 9;
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "op.elements is 9");
    op.element = (const int64_t[E]){ 8, 7, 6, 5, 0, 9 };
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "op.element[5] is 9");
    op.element = (const int64_t[E]){ 8, 7, -1, 5, 0, 3 };
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "op.element[2] is -1");
    refused(ng_all_reduce(ctx, &good, NULL, &td), NG_ERR_ARGUMENT, "x is NULL");
    refused(ng_all_reduce(ctx, &good, &tx, NULL), NG_ERR_ARGUMENT, "d is NULL");
    refused(ng_all_reduce(ctx, &good, &flat, &td), NG_ERR_SHAPE, "x has 1 dimensions");
    refused(ng_all_reduce(ctx, &good, &tx, &narrow), NG_ERR_SHAPE, "dimension 0 of d is 5");
    refused(ng_all_reduce(ctx, &good, &tx, &scale), NG_ERR_FORMAT, "d has format e8m0");
    refused(ng_all_reduce(ctx, &good, &scaled_x, &td), NG_ERR_FORMAT, "x has format e8m0");
    refused(ng_all_reduce(ctx, &good, &tx, &inside), NG_ERR_LAYOUT, "d overlaps x");
    scaled.scale = scales;
    scaled.scale_format = NG_E8M0;
    scaled.block = 32;
    refused(ng_all_reduce(ctx, &good, &scaled, &td), NG_ERR_FORMAT, "x has scales");
    CHECK(ng_tensor_init(&crowd, NG_F32, x, 2, many) == NG_OK);
    crowd.stride[0] = 0; /* one buffer, over and over */
    refused(ng_all_reduce(ctx, &good, &crowd, &one), NG_ERR_SHAPE, "1025 ranks");
}

static void bad_collectives(void)
{
    static const struct {
        const char *preset, *key, *value, *word;
    } cases[] = {
        { "trn-kanga-ring", "algorithm", "kanga_ring", "number of ranks of kanga_ring is 3" },
        { "trn-mesh", "chip", "2", "a multiple of chip" },
        { "trn-rdh", "chip", "1", "a power of two" },
        { "trn-ring", "node", "2", "3 ranks are no whole nodes of 2" },
        { "trn-mesh", "chip", "0", "chip is 0" },
        { "trn-mesh", "start", "own", "start is own" },
        { "trn-ring", "between", "real", "between is real" },
        { "trn-ring", "wire", "e8m0", "wire is e8m0" },
        { "trn-ring", "wire", "e2m1", "wire is e2m1" },
        { "trn-ring", "algorithm", "explicit", "op.order is NULL" },
    };
    const ng_tensor tx = view(NG_F32, x, 3, E), td = vector(NG_F32, d, E);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ng_collective c = preset(cases[i].preset);
        const ng_all_reduce_op op = op_of(&c);
        CHECK(ng_collective_set(&c, cases[i].key, cases[i].value) == NG_OK);
        const ng_status s = ng_all_reduce(ctx, &op, &tx, &td);
        refused(s, s == NG_ERR_ARGUMENT ? s : NG_ERR_PROFILE, cases[i].word);
    }
    /* FP6 wires have neither Inf nor NaN */
    ng_collective c = preset("trn-ring");
    ng_all_reduce_op op = op_of(&c);
    CHECK(ng_collective_set(&c, "wire", "e3m2") == NG_OK);
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_FORMAT, "wire is e3m2");
    c = preset("exact");
    op.reduction = NG_REDUCTION_MAX;
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "is no sum");
    c.set[NG_COLLECTIVE_ALGORITHM].value = 77;
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_PROFILE, "algorithm");
}

static void bad_orders(void)
{
    static const char *const order[] = {
        "",         "0",        "0 1",    "0 1 2 3",
        "0 1 1",    "0 (1 2",   "0 1) 2", "0 (1) 2",
        "() 0 1 2", "0 1 x",    "0 1 +2", "+0 +1 2",
        "(0 1 2)",  "0 1 -2",   "0 1 +",  "0 1 99999999999999999999",
        "0,1,2",    "((((0 1 2"
    };
    const ng_tensor tx = view(NG_F32, x, 3, E), td = vector(NG_F32, d, E);
    ng_collective c = preset("trn-ring");
    ng_all_reduce_op op = op_of(&c);
    CHECK(ng_collective_set(&c, "algorithm", "explicit") == NG_OK);
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        op.order = order[i];
        refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "op.order");
    }
    char deep[5000]; /* as deep as it likes */
    memset(deep, '(', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    op.order = deep;
    refused(ng_all_reduce(ctx, &op, &tx, &td), NG_ERR_ARGUMENT, "op.order");
    size_t length;
    CHECK(ng_all_reduce_order(ctx, &op, 3, 0, NULL, 0, &length) == NG_ERR_ARGUMENT);
    op.order = "2 1 0";
    CHECK(ng_all_reduce_order(ctx, &op, 3, 3, NULL, 0, &length) == NG_ERR_ARGUMENT);
    CHECK(ng_all_reduce_order(ctx, &op, 3, 2, NULL, 0, NULL) == NG_ERR_ARGUMENT);
    CHECK(ng_all_reduce_order(ctx, &op, 3, 2, NULL, 0, &length) == NG_OK && length == 5);
    c = preset("exact");
    op.order = NULL;
    CHECK(ng_all_reduce_order(ctx, &op, 3, 0, NULL, 0, &length) == NG_ERR_PROFILE);
}

/* A NaN that d cannot hold is found before anything is written. */
static void no_code(void)
{
    uint8_t codes[E];
    ng_collective c = preset("trn-ring");
    ng_all_reduce_op op = op_of(&c);
    const ng_tensor tx = view(NG_F32, x, N, E), td = vector(NG_E3M2, codes, E);
    const uint32_t nan = 0x7FC00000u;
    const int64_t last = E - 1;
    uint32_t code;
    op.out.overflow = NG_OVERFLOW_SATURATE;
    op.out.nan_to = NG_NAN_TO_ERROR;
    memset(codes, AROUND, sizeof codes);
    CHECK(ng_all_reduce(ctx, &op, &tx, &td) == NG_OK && codes[0] == 0);
    memset(codes, AROUND, sizeof codes);
    memcpy(x + 2 * E + E - 1, &nan, sizeof nan);
    CHECK(ng_all_reduce(ctx, &op, &tx, &td) == NG_ERR_FORMAT);
    for (int i = 0; i < E; i++)
        CHECK(codes[i] == AROUND);
    CHECK(ng_all_reduce_element(ctx, &op, &tx, &td, &last, NULL, 0, NULL, &code) ==
          NG_ERR_FORMAT);
    c = preset("exact");
    CHECK(ng_all_reduce(ctx, &op, &tx, &td) == NG_ERR_FORMAT && codes[0] == AROUND);
    x[2 * E + E - 1] = 0;
}

static void no_memory(void)
{
    static _Alignas(64) unsigned char small[64], large[1 << 17];
    ng_ctx_config config = { .size = sizeof config, .scratch = small, .scratch_bytes = 64 };
    ng_ctx *other = NULL;
    ng_collective c = preset("trn-ring");
    const ng_all_reduce_op op = op_of(&c);
    const ng_tensor tx = view(NG_F32, x, N, E), td = vector(NG_F32, d, E);
    memset(d, AROUND, sizeof d);
    CHECK(ng_ctx_create(&config, &other) == NG_OK);
    CHECK(ng_all_reduce(other, &op, &tx, &td) == NG_ERR_SCRATCH && is_untouched());
    CHECK(strstr(ng_ctx_message(other), "bytes"));
    ng_ctx_destroy(other);
    config.scratch = large;
    config.scratch_bytes = sizeof large;
    CHECK(ng_ctx_create(&config, &other) == NG_OK);
    CHECK(ng_all_reduce(other, &op, &tx, &td) == NG_OK);
    ng_ctx_destroy(other);
}

int main(void)
{
    CHECK(ng_ctx_create(NULL, &ctx) == NG_OK);
    big_and_small();
    ring_by_hand();
    least_by_hand();
    orders();
    steps();
    presets();
    idle();
    invariance();
    bad_operands();
    bad_collectives();
    bad_orders();
    no_code();
    no_memory();
    ng_ctx_destroy(ctx);
    return report("collective");
}
