/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over the public headers: bad input named and nothing written, the same bits for
 * executors, control words, strides and pages, rows one by one, and results that follow from
 * the page (docs/numerics.md 11.9) by hand. Its arithmetic is judged by tests/model.
 */
#include <math.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "api.h"

enum {
    ROOM = 1 << 20,
    AROUND = 0xEE
};

static unsigned char q_data[ROOM], k_data[ROOM], v_data[ROOM], o_data[ROOM], want_data[ROOM],
    scale_data[2][ROOM / 32];
static uint32_t lse_data[ROOM / 16], max_data[ROOM / 16], sum_data[ROOM / 16],
    want_stats[3][ROOM / 16];

static float as_float(uint32_t pattern)
{
    float f;
    memcpy(&f, &pattern, sizeof f);
    return f;
}

static uint32_t pattern_of(float f)
{
    uint32_t p;
    memcpy(&p, &f, sizeof p);
    return p;
}

static ng_tensor tensor4(ng_format f, void *data, int64_t a, int64_t b, int64_t c, int64_t d)
{
    ng_tensor t;
    CHECK(ng_tensor_init(&t, f, data, 4, (const int64_t[]){ a, b, c, d }) == NG_OK);
    return t;
}

/* One problem: operands, outputs and what to do. */
struct work {
    ng_attention_op op;
    ng_tensor q, k, v, o, lse, max, sum;
    ng_attention_saved saved;
};

static struct work make(const char *schedule, const char *profile, int64_t b, int64_t hq,
                        int64_t hkv, int64_t sq, int64_t skv, int64_t d, int64_t dv)
{
    struct work w = { .op = { .size = sizeof w.op,
                              .profile = ng_profile_find(profile),
                              .schedule = ng_attention_find(schedule),
                              .scale = 0x3E000000u } };
    w.q = tensor4(NG_BF16, q_data, b, hq, sq, d);
    w.k = tensor4(NG_BF16, k_data, b, hkv, skv, d);
    w.v = tensor4(NG_BF16, v_data, b, hkv, skv, dv);
    w.o = tensor4(NG_BF16, o_data, b, hq, sq, dv);
    const int64_t rows[] = { b, hq, sq };
    CHECK(ng_tensor_init(&w.lse, NG_F32, lse_data, 3, rows) == NG_OK);
    CHECK(ng_tensor_init(&w.max, NG_F32, max_data, 3, rows) == NG_OK);
    CHECK(ng_tensor_init(&w.sum, NG_F32, sum_data, 3, rows) == NG_OK);
    return w;
}

static void fill(struct work *w, uint64_t seed)
{
    fill_tensor(&w->q, &seed);
    fill_tensor(&w->k, &seed);
    fill_tensor(&w->v, &seed);
}

static ng_status run(ng_ctx *ctx, struct work *w)
{
    w->saved = (ng_attention_saved){ &w->lse, &w->max, &w->sum };
    return ng_attention(ctx, &w->op, &w->q, &w->k, &w->v, &w->o, &w->saved);
}

static void clear(void)
{
    memset(o_data, AROUND, sizeof o_data);
    memset(lse_data, AROUND, sizeof lse_data);
    memset(max_data, AROUND, sizeof max_data);
    memset(sum_data, AROUND, sizeof sum_data);
}

static bool outputs_untouched(void)
{
    for (size_t i = 0; i < 4096; i++)
        if (o_data[i] != AROUND || lse_data[i] != 0xEEEEEEEEu || max_data[i] != 0xEEEEEEEEu ||
            sum_data[i] != 0xEEEEEEEEu)
            return false;
    return true;
}

static void keep(void)
{
    memcpy(want_data, o_data, sizeof want_data);
    memcpy(want_stats[0], lse_data, sizeof lse_data);
    memcpy(want_stats[1], max_data, sizeof max_data);
    memcpy(want_stats[2], sum_data, sizeof sum_data);
}

static bool kept(void)
{
    return memcmp(want_data, o_data, sizeof o_data) == 0 &&
           memcmp(want_stats[0], lse_data, sizeof lse_data) == 0 &&
           memcmp(want_stats[1], max_data, sizeof max_data) == 0 &&
           memcmp(want_stats[2], sum_data, sizeof sum_data) == 0;
}

/* ---- Schedules as data. ---- */

static void test_schedules(void)
{
    char line[4096], value[64];
    size_t n = 0;
    for (const ng_attention_schedule *s; (s = ng_attention_at(n)); n++) {
        CHECK(ng_attention_find(s->name) == s);
        CHECK(ng_attention_schedule_check(s, line, sizeof line) == NG_OK);
        const size_t length = ng_attention_schedule_print(s, line, sizeof line);
        CHECK(length == strlen(line) && length < sizeof line);
        char part[16];
        CHECK(ng_attention_schedule_print(s, part, sizeof part) == length);
        CHECK(strncmp(part, line, 15) == 0 && part[15] == 0);
        ng_attention_schedule copy = *s;
        for (int i = 0; i < NG_ATTENTION_PARAM_COUNT; i++) {
            const ng_attention_param p = (ng_attention_param)i;
            char want[200];
            CHECK(ng_attention_param_print(p, s->set[i].value, value, sizeof value) > 0);
            (void)snprintf(want, sizeof want, " %s=%s(%s)", ng_attention_param_key(p), value,
                           ng_evidence_name(s->set[i].evidence));
            CHECK(strstr(line, want) != NULL);
            CHECK(ng_attention_set(&copy, ng_attention_param_key(p), value) == NG_OK);
            CHECK(copy.set[i].value == s->set[i].value);
            CHECK(copy.set[i].evidence == NG_EVIDENCE_ASSUMED);
            CHECK(ng_attention_param_meaning(p)[0] != 0);
        }
    }
    CHECK(n >= 4);
    CHECK(ng_attention_find("trn-train") == NULL && ng_attention_find(NULL) == NULL);
    CHECK(ng_attention_param_key(NG_ATTENTION_PARAM_COUNT) == NULL);
    CHECK(ng_attention_param_meaning(NG_ATTENTION_PARAM_COUNT) == NULL);
}

static void test_schedule_errors(void)
{
    static const struct {
        const char *key, *value, *why;
    } bad[] = {
        { "section", "100", "multiple of key_tile" },
        { "key_tile", "0", "at least 1" },
        { "q_block", "16", "0 or 32" },
        { "p_block", "32", "e4m3fn or e5m2" },
        { "score_format", "f16", "f32 or bf16" },
        { "score_format", "given", "f32 or bf16" },
        { "mx_input", "f16", "f32 or bf16" },
        { "p_format", "given", "element format" },
        { "p_format", "e2m1", "at least a byte" },
        { "p_format", "e8m0", "element format" },
        { "kv_format", "ue4m3", "element format" },
        { "mask", "0x00000000", "negative" },
        { "mask", "0xFFC00000", "negative" },
        { "max_init", "0x80000000", "negative" },
        { "sum_order", "ones", "sum_order is ones" },
    };
    char why[200];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ng_attention_schedule s = *ng_attention_find("flash");
        CHECK(ng_attention_set(&s, bad[i].key, bad[i].value) == NG_OK);
        CHECK(ng_attention_schedule_check(&s, why, sizeof why) == NG_ERR_PROFILE);
        if (!CHECK(strstr(why, bad[i].why) != NULL))
            printf("  %s=%s: %s\n", bad[i].key, bad[i].value, why);
    }
    ng_attention_schedule s = *ng_attention_find("flash");
    CHECK(ng_attention_set(&s, "sum", "p") == NG_ERR_PROFILE);
    CHECK(ng_attention_set(&s, "sum_source", "q") == NG_ERR_PROFILE);
    CHECK(ng_attention_set(&s, "section", "-1") == NG_ERR_PROFILE);
    CHECK(ng_attention_set(&s, "section", "12 ") == NG_ERR_PROFILE);
    CHECK(ng_attention_set(&s, "section", "99999999999") == NG_ERR_PROFILE);
    CHECK(ng_attention_set(&s, "mask", "4286578688") == NG_ERR_PROFILE);
    CHECK(ng_attention_set(&s, "p_format", "fp8") == NG_ERR_PROFILE);
    CHECK(ng_attention_set(&s, NULL, "p") == NG_ERR_ARGUMENT);
    CHECK(memcmp(&s, ng_attention_find("flash"), sizeof s) == 0);
    CHECK(ng_attention_schedule_check(NULL, why, sizeof why) == NG_ERR_ARGUMENT);
    s.set[NG_ATTENTION_UPDATE].value = 7;
    CHECK(ng_attention_schedule_check(&s, NULL, 0) == NG_ERR_PROFILE);
    s = *ng_attention_find("trn-mx-decode");
    CHECK(ng_attention_set(&s, "pv_keys", "48") == NG_OK);
    CHECK(ng_attention_schedule_check(&s, why, sizeof why) == NG_ERR_PROFILE);
    s = *ng_attention_find("flash");
    CHECK(ng_attention_set(&s, "update", "accumulator") == NG_OK);
    CHECK(ng_attention_set(&s, "pv_keys", "64") == NG_OK);
    CHECK(ng_attention_schedule_check(&s, why, sizeof why) == NG_ERR_PROFILE);
}

/* ---- Errors: named, and nothing is written. ---- */

static ng_ctx *the_ctx;

static void fails(struct work *w, ng_status status, const char *message)
{
    clear();
    const ng_status got = run(the_ctx, w);
    if (!CHECK(got == status) || !CHECK(strstr(ng_ctx_message(the_ctx), message) != NULL))
        printf("  %s: %s; wanted %s with \"%s\"\n", ng_status_name(got),
               ng_ctx_message(the_ctx), ng_status_name(status), message);
    CHECK(outputs_untouched());
}

static struct work usual(void)
{
    struct work w = make("flash", "trn2", 2, 4, 2, 3, 5, 8, 6);
    fill(&w, 1);
    return w;
}

static void test_shape_errors(void)
{
    struct work w = usual();
    CHECK(run(the_ctx, &w) == NG_OK && ng_ctx_message(the_ctx)[0] == 0);
    w.q.rank = 3;
    fails(&w, NG_ERR_SHAPE, "q has rank 3; wanted: 4");
    w = usual();
    w.k.dim[2] = 0;
    fails(&w, NG_ERR_SHAPE, "k");
    w = usual();
    w.k.dim[3] = 7;
    fails(&w, NG_ERR_SHAPE, "d is 8 in q but 7 in k");
    w = usual();
    w.v.dim[2] = 4;
    fails(&w, NG_ERR_SHAPE, "Skv is 5 in k but 4 in v");
    w = usual();
    w.v.dim[1] = 1;
    fails(&w, NG_ERR_SHAPE, "Hkv is 2 in k but 1 in v");
    w = usual();
    w.k.dim[0] = w.v.dim[0] = 1;
    fails(&w, NG_ERR_SHAPE, "B is 2 in q but 1 in k");
    w = usual();
    w.q.dim[1] = w.o.dim[1] = 3;
    fails(&w, NG_ERR_SHAPE, "Hq is 3; wanted: a multiple of Hkv = 2");
    w = usual();
    w.o.dim[3] = 5;
    fails(&w, NG_ERR_SHAPE, "dv is 6 in v but 5 in o");
    w = usual();
    w.o.dim[2] = 2;
    fails(&w, NG_ERR_SHAPE, "Sq is 3 in q but 2 in o");
    w = make("flash", "trn2", 1, 1, 1, 1, 1, 257, 1);
    fails(&w, NG_ERR_SHAPE, "d is 257; wanted: at most 256");
    w = make("flash", "trn2", 1, 1, 1, 1, 1, 1, 300);
    fails(&w, NG_ERR_SHAPE, "dv is 300; wanted: at most 256");
    w = usual();
    w.lse.dim[2] = 2;
    fails(&w, NG_ERR_SHAPE, "saved.lse is not [B, Hq, Sq] = [2, 4, 3]");
    w = usual();
    w.op.kv_length = (const int64_t[]){ 5, 6 };
    fails(&w, NG_ERR_SHAPE, "kv_length[1] is 6; wanted: 0 to 5");
    w.op.kv_length = (const int64_t[]){ -1, 5 };
    fails(&w, NG_ERR_SHAPE, "kv_length[0] is -1");
}

static void test_option_errors(void)
{
    struct work w = usual();
    w.op.size = 3;
    fails(&w, NG_ERR_ARGUMENT, "op.size");
    w = usual();
    w.op.profile = NULL;
    fails(&w, NG_ERR_ARGUMENT, "op.profile is NULL");
    w = usual();
    w.op.schedule = NULL;
    fails(&w, NG_ERR_ARGUMENT, "op.schedule is NULL");
    w = usual();
    w.op.window = -1;
    fails(&w, NG_ERR_ARGUMENT, "op.window is -1");
    w = usual();
    w.op.align = (ng_attention_align)2;
    fails(&w, NG_ERR_ARGUMENT, "op.align");
    w = usual();
    w.op.masked_rows = (ng_masked_rows)-1;
    fails(&w, NG_ERR_ARGUMENT, "op.masked_rows");
    w = usual();
    w.op.scale = 0x7F800000u;
    fails(&w, NG_ERR_ARGUMENT, "op.scale is 0x7F800000; wanted: finite");
    w = usual();
    w.op.softcap = 0xBF800000u;
    fails(&w, NG_ERR_ARGUMENT, "op.softcap is 0xBF800000; wanted: finite and positive");
    w = usual();
    w.op.pages = 2;
    fails(&w, NG_ERR_ARGUMENT, "op.pages is 2 without a page_table");
    w = usual();
    w.op.page_table = (const int64_t[]){ 0, 1, 2, 0 };
    w.op.pages = 2;
    fails(&w, NG_ERR_ARGUMENT, "page_table[1][0] is 2; wanted: a block of k, 0 to 1");
    w.op.pages = INT64_MAX;
    fails(&w, NG_ERR_SHAPE, "op.pages is 9223372036854775807; wanted: 1 to ");
    w = usual();
    w.op.out.round = NG_ROUND_STOCHASTIC;
    fails(&w, NG_ERR_ARGUMENT, "op.out");
    w = usual();
    w.o.format = NG_E2M1;
    fails(&w, NG_ERR_FORMAT, "op.out");
    w.op.out.overflow = NG_OVERFLOW_SATURATE;
    w.op.out.nan_to = NG_NAN_TO_ERROR;
    fails(&w, NG_ERR_ARGUMENT, "nan_to");

    ng_attention_schedule s = *ng_attention_find("flash");
    CHECK(ng_attention_set(&s, "exp", "table") == NG_OK);
    w = usual();
    w.op.schedule = &s;
    fails(&w, NG_ERR_ARGUMENT, "op.exp_table is NULL, but exp is table");
    s = *ng_attention_find("flash");
    CHECK(ng_attention_set(&s, "scale_place", "exp") == NG_OK);
    w.op.softcap = 0x41F00000u;
    fails(&w, NG_ERR_PROFILE, "scale_place exp takes no op.softcap");
    w.op.softcap = 0;
    w.op.scale = 0xBF800000u;
    fails(&w, NG_ERR_ARGUMENT, "op.scale is 0xBF800000");
    s.set[NG_ATTENTION_KEY_TILE].value = 0;
    fails(&w, NG_ERR_PROFILE, "schedule flash: key_tile is 0");
}

static void test_format_errors(void)
{
    ng_attention_schedule s = *ng_attention_find("flash");
    struct work w = usual();
    w.q.format = NG_F32;
    fails(&w, NG_ERR_PROFILE, "q k^T");
    w = usual();
    CHECK(ng_attention_set(&s, "p_format", "f32") == NG_OK);
    w.op.schedule = &s;
    fails(&w, NG_ERR_PROFILE, "p v");
    w = usual();
    w.lse.format = NG_BF16;
    fails(&w, NG_ERR_FORMAT, "saved.lse is bf16; wanted: f32");
    w = usual();
    w.op.schedule = ng_attention_find("trn-prefill");
    w.q.format = NG_E4M3;
    fails(&w, NG_ERR_FORMAT, "o_format is q, which is e4m3");

    w = make("trn-mx-decode", "trn3", 1, 1, 1, 1, 64, 64, 4);
    fails(&w, NG_ERR_FORMAT, "q k^T: the first has block scales but the second has none");
    w.k.format = w.v.format = NG_E4M3FN;
    CHECK(ng_tensor_set_scale(&w.k, NG_E8M0, scale_data[0], 32, 2, NG_LAYOUT_LINEAR) == NG_OK);
    fails(&w, NG_ERR_LAYOUT, "blocks of k run along dimension 2; wanted: 3");
    w.k.block_axis = 3;
    w.k.block = 16;
    fails(&w, NG_ERR_FORMAT, "k has blocks of 16 with e8m0 scales; wanted: 32 with e8m0");
    w.k.block = 32;
    fails(&w, NG_ERR_FORMAT, "p v: the first has block scales but the second has none");
    CHECK(ng_tensor_set_scale(&w.v, NG_E8M0, scale_data[1], 32, 2, NG_LAYOUT_TRN_WRAP) ==
          NG_OK);
    fails(&w, NG_ERR_LAYOUT, "v has layout trn_wrap; wanted: linear or trn_1x32");
    w.v.layout = NG_LAYOUT_LINEAR;
    w.op.profile = ng_profile_find("trn2");
    fails(&w, NG_ERR_PROFILE, "q k^T");
    w.op.profile = ng_profile_find("trn3");
    CHECK(run(the_ctx, &w) == NG_OK);
    w.q.format = NG_E4M3FN;
    CHECK(ng_tensor_set_scale(&w.q, NG_E8M0, scale_data[0], 32, 3, NG_LAYOUT_LINEAR) == NG_OK);
    fails(&w, NG_ERR_FORMAT, "q has block scales but q_block is 32");
}

static void test_memory_errors(void)
{
    struct work w = usual();
    w.o.data = q_data;
    fails(&w, NG_ERR_LAYOUT, "o overlaps q");
    w = usual();
    w.o.data = v_data + 4;
    fails(&w, NG_ERR_LAYOUT, "o overlaps v");
    w = usual();
    w.sum.data = max_data;
    fails(&w, NG_ERR_LAYOUT, "saved.sum overlaps saved.max");
    w = usual();
    w.lse.data = o_data;
    fails(&w, NG_ERR_LAYOUT, "saved.lse overlaps o");
    w = usual();
    w.o.stride[3] = 0;
    fails(&w, NG_ERR_LAYOUT, "o");
    w = usual();
    w.v.data = NULL;
    fails(&w, NG_ERR_ARGUMENT, "v");

    ng_tensor sink;
    CHECK(ng_tensor_init(&sink, NG_F32, scale_data[0], 1, (const int64_t[]){ 3 }) == NG_OK);
    w = usual();
    w.op.sink = &sink;
    fails(&w, NG_ERR_SHAPE, "op.sink has rank 1 and 3 elements; wanted: rank 1 and Hq = 4");
    sink.dim[0] = 4;
    sink.data = o_data;
    fails(&w, NG_ERR_LAYOUT, "o overlaps op.sink");
    w = usual();
    CHECK(ng_attention(the_ctx, &w.op, NULL, &w.k, &w.v, &w.o, NULL) == NG_ERR_ARGUMENT);
    CHECK(ng_attention(the_ctx, &w.op, &w.q, &w.k, &w.v, NULL, NULL) == NG_ERR_ARGUMENT);
    CHECK(ng_attention(NULL, &w.op, &w.q, &w.k, &w.v, &w.o, NULL) == NG_ERR_ARGUMENT);
}

/* ---- The same bits, however it is run. ---- */

static void test_executors(void)
{
    struct work w = make("trn-prefill", "trn2", 2, 4, 2, 9, 33, 20, 7);
    fill(&w, 3);
    w.op.causal = true;
    clear();
    CHECK(run(the_ctx, &w) == NG_OK);
    keep();
    ng_pool *pool = NULL;
    ng_executor ex[2] = { { .parallel_for = backwards, .workers = 1 } };
    const ng_status made = ng_pool_create(3, &pool, &ex[1]);
    CHECK(made == NG_OK || made == NG_ERR_UNSUPPORTED);
    for (int i = 0; i < (made == NG_OK ? 2 : 1); i++) {
        const ng_ctx_config config = { .size = sizeof config,
                                       .executor = ex[i],
                                       .isa_mask = i ? NG_ISA_REF : 0 };
        ng_ctx *ctx = NULL;
        CHECK(ng_ctx_create(&config, &ctx) == NG_OK);
        clear();
        CHECK(run(ctx, &w) == NG_OK);
        CHECK(kept());
        ng_ctx_destroy(ctx);
    }
    ng_pool_destroy(pool);
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0xE040u | 0x1F80u); /* toward zero, flushing both ways */
    clear();
    const ng_status s = run(the_ctx, &w);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK(s == NG_OK && kept());
    CHECK((after & 0xFFC0u) == (0xE040u | 0x1F80u));
#endif
}

/* Any strides: q, k and o with the heads inside, v transposed. */
static void test_strides(void)
{
    struct work w = make("flash", "trn2", 2, 3, 1, 4, 21, 5, 3);
    fill(&w, 5);
    clear();
    CHECK(run(the_ctx, &w) == NG_OK);
    static unsigned char q2[4096], k2[4096], v2[4096], o2[4096];
    struct work x = w;
    x.q.data = q2, x.k.data = k2, x.v.data = v2, x.o.data = o2;
    memcpy(x.q.stride, (const int64_t[]){ 300, 6, 50, 1 }, sizeof x.q.stride);
    memcpy(x.k.stride, (const int64_t[]){ 1, 2, 2, 60 }, sizeof x.k.stride);
    memcpy(x.v.stride, (const int64_t[]){ 200, 1, 1, 40 }, sizeof x.v.stride);
    memcpy(x.o.stride, (const int64_t[]){ 1, 2, 8, 100 }, sizeof x.o.stride);
    int64_t index[4] = { 0 };
    do
        ng_tensor_set(&x.q, index, ng_tensor_get(&w.q, index));
    while (next_index(&w.q, index));
    do
        ng_tensor_set(&x.k, index, ng_tensor_get(&w.k, index));
    while (next_index(&w.k, index));
    do
        ng_tensor_set(&x.v, index, ng_tensor_get(&w.v, index));
    while (next_index(&w.v, index));
    CHECK(run(the_ctx, &x) == NG_OK);
    bool same = true;
    do
        same = same && ng_tensor_get(&x.o, index) == ng_tensor_get(&w.o, index);
    while (next_index(&w.o, index));
    CHECK(same);
}

/* A page table is a gather; lengths cut every sequence. */
static void test_pages(void)
{
    enum {
        PAGES = 3,
        ROWS = 4
    };
    static const int64_t table[2][PAGES] = { { 5, 0, 3 }, { 1, 1, 99 } }, length[2] = { 11, 7 };
    struct work w = make("trn-decode", "trn2", 6, 2, 2, 2, ROWS, 9, 4);
    fill(&w, 6);
    w.q.dim[0] = w.o.dim[0] = w.lse.dim[0] = w.max.dim[0] = w.sum.dim[0] = 2;
    w.op.page_table = table[0];
    w.op.pages = PAGES;
    w.op.kv_length = length;
    w.op.causal = true;
    clear();
    CHECK(run(the_ctx, &w) == NG_OK);
    keep();
    static uint16_t k2[2 * 2 * PAGES * ROWS * 9], v2[2 * 2 * PAGES * ROWS * 4];
    struct work flat = w;
    flat.k = tensor4(NG_BF16, k2, 2, 2, PAGES * ROWS, 9);
    flat.v = tensor4(NG_BF16, v2, 2, 2, PAGES * ROWS, 4);
    flat.op.page_table = NULL;
    flat.op.pages = 0;
    int64_t to[4] = { 0 };
    do {
        const int64_t block = table[to[0]][to[2] / ROWS];
        const int64_t from[4] = { block, to[1], to[2] % ROWS, to[3] };
        const bool there = to[2] < length[to[0]]; /* else NaN, which nobody may look at */
        ng_tensor_set(&flat.k, to, there ? ng_tensor_get(&w.k, from) : 0x7FC1);
        if (to[3] < 4)
            ng_tensor_set(&flat.v, to, there ? ng_tensor_get(&w.v, from) : 0x7FC1);
    } while (next_index(&flat.k, to));
    clear();
    CHECK(run(the_ctx, &flat) == NG_OK);
    CHECK(kept());
}

/* ---- Rows one by one, and what they tell. ---- */

struct told {
    unsigned n[NG_ATTENTION_TRACE_RESULT + 1];
    double exp_sum;
    uint32_t lse;
    ng_value result[256];
};

static void listen(void *user, const ng_attention_step *step)
{
    struct told *t = user;
    t->n[step->kind]++;
    const double v = ldexp((double)step->value.sig, step->value.exp);
    if (step->kind == NG_ATTENTION_TRACE_EXP)
        t->exp_sum += v;
    if (step->kind == NG_ATTENTION_TRACE_RESULT)
        t->result[step->column] = step->value;
}

static void test_rows(void)
{
    struct work w = make("trn-prefill", "trn2", 1, 2, 1, 3, 600, 16, 5);
    fill(&w, 8);
    w.op.causal = true;
    w.op.window = 150;
    clear();
    CHECK(run(the_ctx, &w) == NG_OK);
    int64_t at[4] = { 0 };
    ng_tensor shape = w.o;
    shape.data = NULL;
    for (at[1] = 0; at[1] < 2; at[1]++)
        for (at[2] = 0; at[2] < 3; at[2]++) {
            uint32_t code[256];
            struct told told = { .n = { 0 } };
            const ng_attention_trace trace = { listen, &told };
            CHECK(ng_attention_row(the_ctx, &w.op, &w.q, &w.k, &w.v, &shape, at, &trace,
                                   code) == NG_OK);
            for (at[3] = 0; at[3] < 5; at[3]++) {
                ng_value v;
                CHECK(code[at[3]] == ng_tensor_get(&w.o, at));
                CHECK(ng_decode(NG_BF16, code[at[3]], &v) == NG_OK);
                CHECK(v.sig == told.result[at[3]].sig && v.exp == told.result[at[3]].exp);
            }
            at[3] = 0;
            /* Tiles of 512: the window reaches into both. */
            CHECK(told.n[NG_ATTENTION_TRACE_SCORE] == 600);
            CHECK(told.n[NG_ATTENTION_TRACE_TILE_SUM] == 2);
            CHECK(told.n[NG_ATTENTION_TRACE_MAX] == 1 && !told.n[NG_ATTENTION_TRACE_ALPHA]);
            CHECK(told.n[NG_ATTENTION_TRACE_RESULT] == 5);
            const double sum = (double)as_float(sum_data[at[1] * 3 + at[2]]);
            CHECK(fabs(told.exp_sum - sum) < 1e-5 * sum);
        }
    uint32_t code[256];
    const int64_t outside[] = { 0, 2, 0 };
    CHECK(ng_attention_row(the_ctx, &w.op, &w.q, &w.k, &w.v, &shape, outside, NULL, code) ==
          NG_ERR_ARGUMENT);
    CHECK(ng_attention_row(the_ctx, &w.op, &w.q, &w.k, &w.v, &shape, NULL, NULL, code) ==
          NG_ERR_ARGUMENT);
}

/* ---- Results by hand. ---- */

/* Far from exact, near enough to catch what is not attention at all. */
static void test_meaning(void)
{
    static const int64_t heads[] = { 1, 2, 3, 31, 64, 65, 100, 128, 129, 255, 256 };
    for (size_t n = 0; n < sizeof heads / sizeof *heads; n++) {
        const int64_t d = heads[n], dv = heads[sizeof heads / sizeof *heads - 1 - n];
        struct work w = make("flash", "trn2", 1, 1, 1, 1, 37, d, dv);
        w.o.format = NG_F32;
        fill(&w, 10 + n);
        w.op.scale = pattern_of(1 / sqrtf((float)d));
        CHECK(run(the_ctx, &w) == NG_OK);
        double sum = 0, out[256] = { 0 };
        for (int64_t j = 0; j < 37; j++) {
            double s = 0;
            for (int64_t e = 0; e < d; e++)
                s += (double)as_float((uint32_t)((uint16_t *)q_data)[e] << 16) *
                     (double)as_float((uint32_t)((uint16_t *)k_data)[j * d + e] << 16);
            const double p = exp(s / sqrt((double)d));
            sum += p;
            for (int64_t c = 0; c < dv; c++)
                out[c] +=
                    p * (double)as_float((uint32_t)((uint16_t *)v_data)[j * dv + c] << 16);
        }
        bool near = true;
        for (int64_t c = 0; c < dv; c++)
            near = near && fabs((double)as_float(((uint32_t *)(void *)o_data)[c]) -
                                out[c] / sum) < 0.02;
        CHECK(near);
        CHECK(fabs((double)as_float(lse_data[0]) - log(sum)) < 1e-4);
    }
}

static void set_all(const ng_tensor *t, uint32_t code)
{
    int64_t index[4] = { 0 };
    do
        ng_tensor_set(t, index, code);
    while (next_index(t, index));
}

static uint16_t out16(int64_t i)
{
    return ((uint16_t *)(void *)o_data)[i];
}

static void test_masked_rows(void)
{
    /* Query 0 sees nothing: four queries, two keys. */
    static const char *const schedule[] = { "trn-prefill", "trn-decode", "flash" };
    for (size_t n = 0; n < 3; n++) {
        struct work w = make(schedule[n], "trn2", 1, 1, 1, 4, 2, 4, 1);
        fill(&w, 20 + n);
        ((uint16_t *)(void *)v_data)[0] = 0x3F80; /* 1 */
        ((uint16_t *)(void *)v_data)[1] = 0x4040; /* 3 */
        w.op.causal = true;
        CHECK(run(the_ctx, &w) == NG_OK);
        CHECK(out16(0) == (n == 0 ? 0x4000 : 0x7FC0)); /* the mean, or NaN */
        CHECK(out16(2) == 0x3F80);                     /* sees key 0 alone */
        if (n)
            CHECK(lse_data[0] == 0xFF800000u);
        w.op.masked_rows = NG_MASKED_ZERO;
        CHECK(run(the_ctx, &w) == NG_OK);
        CHECK(out16(0) == 0 && out16(1) == 0 && out16(2) == 0x3F80);
        CHECK(lse_data[0] == 0xFF800000u && sum_data[0] == 0 && max_data[0] == 0xFF7FFFFFu);
        /* A scale above 1 makes prefill's mask -Inf. */
        w.op.masked_rows = NG_MASKED_AS_SCHEDULED;
        w.op.scale = 0x40000000u;
        CHECK(run(the_ctx, &w) == NG_OK);
        CHECK(out16(0) == 0x7FC0);
        /* top_left: every query sees itself and what is before. */
        w.op.align = NG_ALIGN_TOP_LEFT;
        CHECK(run(the_ctx, &w) == NG_OK);
        CHECK(out16(0) == 0x3F80);
        /* No keys at all: bits as scheduled, whatever lies there; with zero, 0. */
        w.op.kv_length = (const int64_t[]){ 0 };
        set_all(&w.v, 0x7FC0);
        w.op.masked_rows = NG_MASKED_ZERO;
        CHECK(run(the_ctx, &w) == NG_OK);
        CHECK(out16(0) == 0 && out16(3) == 0);
        w.op.masked_rows = NG_MASKED_AS_SCHEDULED;
        CHECK(run(the_ctx, &w) == NG_OK);
        CHECK(out16(0) == 0x7FC0);
    }
}

/* NaN and infinite scores; a NaN in v that nobody sees. */
static void test_specials(void)
{
    struct work w = make("flash", "trn2", 1, 1, 1, 1, 4, 1, 1);
    uint16_t *q = (uint16_t *)(void *)q_data, *k = (uint16_t *)(void *)k_data;
    static const struct {
        uint16_t key;
        uint32_t o, lse;
    } bad[] = { { 0x7FC0, 0x7FC0, 0x7FC00000 }, /* NaN */
                { 0x7F80, 0x7FC0, 0x7FC00000 }, /* +Inf: Inf - Inf */
                { 0xFF80, 0x3F80, 0 } };        /* -Inf: weight 0 */
    for (size_t n = 0; n < 3; n++) {
        fill(&w, 30);
        q[0] = 0x3F80;
        set_all(&w.k, 0);
        set_all(&w.v, 0x3F80);
        k[2] = bad[n].key;
        w.op.scale = 0;
        CHECK(run(the_ctx, &w) == NG_OK);
        CHECK(out16(0) == bad[n].o);
        if (bad[n].lse)
            CHECK(lse_data[0] == bad[n].lse);
        else
            CHECK(as_float(sum_data[0]) == 3.0F);
    }
    /* Key 3 is masked. In the same tile its weight 0 meets NaN; in a skipped one it does not.
     */
    ng_attention_schedule s = *ng_attention_find("flash");
    CHECK(ng_attention_set(&s, "key_tile", "1") == NG_OK);
    w = make("flash", "trn2", 1, 1, 1, 1, 4, 1, 1);
    w.op.schedule = &s;
    w.op.align = NG_ALIGN_TOP_LEFT;
    w.op.causal = true;
    set_all(&w.v, 0x7FC0);
    ((uint16_t *)(void *)v_data)[0] = 0x3F80;
    CHECK(run(the_ctx, &w) == NG_OK && out16(0) == 0x7FC0);
    CHECK(ng_attention_set(&s, "skip_keys", "1") == NG_OK);
    CHECK(run(the_ctx, &w) == NG_OK && out16(0) == 0x3F80);
}

static void test_sinks(void)
{
    struct work w = make("trn-prefill", "trn2", 1, 2, 1, 1, 3, 2, 1);
    uint32_t logits[2] = { 0xFF7FFFFFu, 0x42C80000u }; /* nothing; far above all scores */
    ng_tensor sink;
    CHECK(ng_tensor_init(&sink, NG_F32, logits, 1, (const int64_t[]){ 2 }) == NG_OK);
    fill(&w, 40);
    CHECK(run(the_ctx, &w) == NG_OK);
    keep();
    w.op.sink = &sink;
    CHECK(run(the_ctx, &w) == NG_OK);
    CHECK(out16(0) == ((uint16_t *)(void *)want_data)[0] && lse_data[0] == want_stats[0][0]);
    CHECK((out16(1) & 0x7FFF) < 0x1000 && lse_data[1] == 0x42C80000u);
    /* As many as the keys, at their height: half of everything. */
    set_all(&w.q, 0);
    set_all(&w.v, 0x4000);
    logits[0] = logits[1] = pattern_of(logf(3.0F));
    CHECK(run(the_ctx, &w) == NG_OK);
    CHECK(out16(0) == 0x3F80 && max_data[0] == logits[0]);
    /* Nothing visible: 0 over the sink. */
    w.op.kv_length = (const int64_t[]){ 0 };
    CHECK(run(the_ctx, &w) == NG_OK);
    CHECK(out16(0) == 0 && lse_data[0] == logits[0]);
}

/* 10241 keys: prefill's first length with sections. */
static void test_sections(void)
{
    struct work w = make("trn-prefill", "trn2", 1, 1, 1, 1, 10241, 1, 1);
    fill(&w, 50);
    CHECK(run(the_ctx, &w) == NG_OK);
    struct told told = { .n = { 0 } };
    const ng_attention_trace trace = { listen, &told };
    uint32_t code[256];
    const int64_t at[] = { 0, 0, 0 };
    CHECK(ng_attention_row(the_ctx, &w.op, &w.q, &w.k, &w.v, &w.o, at, &trace, code) == NG_OK);
    CHECK(code[0] == out16(0));
    CHECK(told.n[NG_ATTENTION_TRACE_MAX] == 2 && told.n[NG_ATTENTION_TRACE_ALPHA] == 1);
    CHECK(told.n[NG_ATTENTION_TRACE_TILE_SUM] == 16 + 5); /* 512 each; the last has one key */
    CHECK(fabs(told.exp_sum - (double)as_float(sum_data[0])) < 1e-3 * told.exp_sum);
    w.k.dim[2] = w.v.dim[2] = 10240;
    told = (struct told){ .n = { 0 } };
    CHECK(ng_attention_row(the_ctx, &w.op, &w.q, &w.k, &w.v, &w.o, at, &trace, code) == NG_OK);
    CHECK(told.n[NG_ATTENTION_TRACE_MAX] == 1);
}

/* The same outputs by kernels as by the reference? */
static bool agree(ng_ctx *ref, struct work *w)
{
    clear();
    CHECK(run(ref, w) == NG_OK);
    keep();
    clear();
    CHECK(run(the_ctx, w) == NG_OK);
    return kept();
}

/* A short window over many keys, by kernels and by the reference. */
static void test_kernels(void)
{
    static const struct {
        const char *profile;
        int64_t keys;
        uint32_t scale;
        const char *set[3][2];
        bool taken; /* by AVX-512's kernels */
    } call[] = {
        /* computed keys, from 256 on, begin inside a K tile of the group from 200 on */
        { "trn2", 390, 0x3E000000u, { { "section", "0" }, { "pv_keys", "200" } } },
        /* inside exp the first section's maximum, -FLT_MAX, leaves FP32's range */
        { "trn2",
          200,
          0x3F800000u,
          { { "scale_place", "exp" }, { "exp_base", "2" }, { "skip_keys", "0" } } },
        { "trn2", 200, 0x40000000u, { { "scale_place", "exp" }, { "skip_keys", "0" } } },
        /* a tensor core's steps go on from C */
        { "nv-hopper", 300, 0x3E000000u, { { "update", "accumulator" } }, true },
        { "nv-ampere",
          300,
          0x3E000000u,
          { { "section", "0" }, { "sum_order", "ones" }, { "sum_source", "p" } },
          true },
    };
    const bool avx512 = (ng_isa_available() & NG_ISA_AVX512) != 0;
    ng_ctx *ref = NULL;
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    CHECK(ng_ctx_create(&config, &ref) == NG_OK);
    for (size_t i = 0; i < sizeof call / sizeof call[0]; i++) {
        struct work w = make("flash", call[i].profile, 1, 2, 1, 12, call[i].keys, 16, 16);
        ng_attention_schedule s = *w.op.schedule;
        for (int j = 0; j < 3 && call[i].set[j][0]; j++)
            CHECK(ng_attention_set(&s, call[i].set[j][0], call[i].set[j][1]) == NG_OK);
        w.op.schedule = &s;
        w.op.scale = call[i].scale;
        w.op.window = 10;
        w.o = tensor4(NG_F32, o_data, 1, 2, 12, 16);
        fill(&w, 70 + i);
        const bool same = agree(ref, &w);
        const bool taken = ng_ctx_tiles(the_ctx).fast > 0;
        if (!CHECK(same) || !CHECK(taken || !call[i].taken || !avx512))
            printf("  call %zu\n", i);
    }
    ng_ctx_destroy(ref);
}

/* Rows enough to be columns of the multiplies, by kernels and by the reference: all of them by
 * kernels, in whole and in half empty vectors, over several sections. */
static void test_many_rows(void)
{
    static const struct {
        const char *schedule, *profile;
        int64_t heads, queries, keys, window;
        const char *set[2][2];
        bool causal, sink;
    } call[] = {
        { "trn-prefill", "trn2", 1, 64, 200, 0, { { NULL } }, true, false },
        { "trn-prefill",
          "trn3",
          4,
          31,
          131,
          0,
          { { "sum_order", "ones" }, { "sum_source", "p" } },
          false,
          false },
        { "trn-prefill", "trn2", 1, 120, 77, 0, { { "pv_keys", "64" } }, false, true },
        { "flash", "trn2", 8, 24, 300, 40, { { NULL } }, true, true },
        { "flash",
          "trn2",
          8,
          16,
          290,
          0,
          { { "update", "fma" }, { "sink_place", "last" } },
          true,
          true },
        { "flash", "trn3", 2, 32, 260, 0, { { "update", "accumulator" } }, false, true },
        { "flash", "fma-f32", 2, 30, 270, 0, { { "exp_base", "2" } }, true, false },
        { "flash",
          "trn2",
          2,
          64,
          140,
          0,
          { { "sum_source", "p" }, { "exp", "sleef" } },
          true,
          false },
        { "flash", "trn2", 1, 64, 150, 0, { { "scale_place", "exp" } }, true, false },
        /* its keys begin inside a piece */
        { "flash", "trn2", 1, 64, 300, 50, { { "key_tile", "32" } }, true, false },
    };
    const bool kernels = (ng_isa_available() & (NG_ISA_AVX2 | NG_ISA_AVX512)) != 0;
    ng_ctx *ref = NULL;
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    CHECK(ng_ctx_create(&config, &ref) == NG_OK);
    for (size_t i = 0; i < sizeof call / sizeof call[0]; i++) {
        const int64_t heads = call[i].heads, queries = call[i].queries;
        struct work w =
            make(call[i].schedule, call[i].profile, 2, heads, 1, queries, call[i].keys, 16, 32);
        static const int64_t length[] = { 70, 270 };
        ng_attention_schedule s = *w.op.schedule;
        float logits[8] = { 0.5F, -1, 2, 0, 3, -2, 0.25F, 1 };
        ng_tensor sink;
        CHECK(ng_tensor_init(&sink, NG_F32, logits, 1, &heads) == NG_OK);
        for (int j = 0; j < 2 && call[i].set[j][0]; j++)
            CHECK(ng_attention_set(&s, call[i].set[j][0], call[i].set[j][1]) == NG_OK);
        w.op.schedule = &s;
        w.op.causal = call[i].causal;
        w.op.window = call[i].window;
        w.op.sink = call[i].sink ? &sink : NULL;
        w.op.kv_length = call[i].keys > 270 && !call[i].causal ? length : NULL;
        fill(&w, 90 + i);
        const bool same = agree(ref, &w);
        const uint64_t rows = (uint64_t)(2 * heads * queries);
        if (!CHECK(same) || !CHECK(!kernels || ng_ctx_tiles(the_ctx).fast == rows))
            printf("  call %zu: %llu of %llu rows by %s\n", i,
                   (unsigned long long)ng_ctx_tiles(the_ctx).fast, (unsigned long long)rows,
                   ng_ctx_kernel(the_ctx));
    }
    ng_ctx_destroy(ref);
}

/* k and v in other formats than bf16, few rows and many, columns that fill no panel, keys
 * beyond those that are converted together; `apart`: another head between the keys of one. */
static void test_caches(void)
{
    static const ng_format cache[] = { NG_E4M3, NG_E5M2, NG_F16, NG_F32 };
    static const struct {
        const char *schedule;
        int64_t queries, d, dv;
        bool apart, causal, given;
    } call[] = {
        { "trn-decode", 1, 64, 64, false, false },
        { "trn-decode", 3, 96, 80, true, false },
        { "flash", 2, 40, 128, false, false, true },
        { "trn-prefill", 64, 32, 112, false, true },
        { "flash", 64, 64, 80, true, false, true },
        { "flash", 20, 32, 16, true, true, true },
    };
    const int64_t heads = 2, keys = 150;
    const bool kernels = (ng_isa_available() & (NG_ISA_AVX2 | NG_ISA_AVX512)) != 0;
    ng_ctx *ref = NULL;
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    CHECK(ng_ctx_create(&config, &ref) == NG_OK);
    for (size_t i = 0; i < sizeof call / sizeof call[0] * 4; i++) {
        const int64_t queries = call[i / 4].queries, d = call[i / 4].d, dv = call[i / 4].dv;
        if (call[i / 4].given && i % 4 > 1) /* not beside a q of bf16 */
            continue;
        struct work w =
            make(call[i / 4].schedule, "trn2", 1, heads, heads, queries, keys, d, dv);
        w.k = tensor4(cache[i % 4], k_data, 1, heads, keys, d);
        w.v = tensor4(cache[i % 4], v_data, 1, heads, keys, dv);
        if (call[i / 4].apart) {
            w.k.stride[1] = d;
            w.k.stride[2] = heads * d;
            w.v.stride[1] = dv;
            w.v.stride[2] = heads * dv;
        }
        w.op.causal = call[i / 4].causal;
        fill(&w, 120 + i);
        const bool same = agree(ref, &w);
        if (!CHECK(same) || !CHECK(!kernels || ng_ctx_tiles(the_ctx).reference == 0))
            printf("  call %zu, format %zu: %llu rows by the reference\n", i / 4, i % 4,
                   (unsigned long long)ng_ctx_tiles(the_ctx).reference);
    }
    ng_ctx_destroy(ref);
}

static void set_codes(const ng_tensor *t, int64_t from, int64_t to, uint16_t code,
                      uint16_t more)
{
    uint16_t *at = (uint16_t *)t->data;
    const int64_t d = t->dim[3];
    for (int64_t i = from * d; i < to * d; i++)
        at[i] = (uint16_t)(code + (i * 37 + i / d * 11) % (more + 1));
}

/*
 * Inf times +0 where a first section's running sum or output is Inf and the second's maximum is
 * far above: a NaN whose sign is the CPU's own, by kernels. The page's has none.
 */
static void test_nan_signs(void)
{
    ng_ctx *ref = NULL;
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    CHECK(ng_ctx_create(&config, &ref) == NG_OK);
    for (int sums = 0; sums < 2; sums++) {
        struct work w = make("flash", "trn2", 1, 1, 1, 12, 256, 16, 16);
        ng_attention_schedule s = *w.op.schedule;
        CHECK(ng_attention_set(&s, "scale_place", sums ? "exp" : "scores") == NG_OK);
        w.op.schedule = &s;
        w.op.scale = sums ? 0x3DB504F3u : 0x3F800000u;
        w.op.out.nan_sign = NG_NAN_SIGN_KEEP;
        w.o = tensor4(NG_F32, o_data, 1, 1, 12, 16);
        set_codes(&w.q, 0, 12, sums ? 0x5C80 : 0x3F80, sums ? 0x7F : 0); /* 2^58, or 1 */
        set_codes(&w.k, 0, 128, sums ? 0x5E80 : 0x3F80, 0);              /* 2^62, or 1 */
        set_codes(&w.k, 128, 256, sums ? 0x5F00 : 0x4180, 0);            /* 2^63, or 16 */
        set_codes(&w.v, 0, 256, 0x3F80, 0);
        if (!sums)
            set_codes(&w.v, 0, 1, 0x7F80, 0); /* Inf */
        clear();
        CHECK(run(ref, &w) == NG_OK);
        int nans = 0;
        for (int i = 0; i < 12; i++) {
            const uint32_t *o = (const uint32_t *)(const void *)o_data;
            nans += (sums ? sum_data[i] : o[i * 16]) == 0x7FC00000u;
        }
        CHECK(nans > 0);
        keep();
        clear();
        CHECK(run(the_ctx, &w) == NG_OK);
        const bool kernels = (ng_isa_available() & (NG_ISA_AVX2 | NG_ISA_AVX512)) != 0;
        CHECK(kernels == (strcmp(ng_ctx_kernel(the_ctx), "ref") != 0));
        if (!CHECK(kept()))
            printf("  %s\n", sums ? "sums" : "o");
    }
    ng_ctx_destroy(ref);
}

/* o has no Inf: a NaN has the sign of the Inf that it stands for, by kernels too; that of Inf -
 * Inf has none, whatever the CPU's. */
static void test_inf_signs(void)
{
    for (int both = 0; both < 2; both++) {
        struct work w = make("flash", "trn2", 1, 1, 1, 12, 64, 16, 16);
        w.op.out.nan_sign = NG_NAN_SIGN_KEEP;
        w.op.out.overflow = NG_OVERFLOW_INF;
        w.o = tensor4(NG_E4M3FN, o_data, 1, 1, 12, 16);
        set_codes(&w.q, 0, 12, 0x3F80, 0x3F);
        set_codes(&w.k, 0, 64, 0x3F00, 0x3F);
        set_codes(&w.v, 0, 64, 0x3F80, 0x3F);
        set_codes(&w.v, 0, 1, 0xFF80, 0); /* -Inf */
        if (both)
            set_codes(&w.v, 1, 2, 0x7F80, 0);
        clear();
        CHECK(run(the_ctx, &w) == NG_OK);
        for (int i = 0; i < 12 * 16; i++)
            if (!CHECK(o_data[i] == (both ? 0x7F : 0xFF)))
                break;
    }
}

static void test_scratch(void)
{
    struct work w = make("flash", "trn2", 1, 2, 1, 2, 300, 8, 8);
    size_t bytes = 0;
    fill(&w, 60);
    CHECK(ng_attention_scratch(the_ctx, &w.op, &w.q, &w.k, &w.v, &w.o, &bytes) == NG_OK);
    CHECK(bytes > 0);
    CHECK(ng_attention_scratch(the_ctx, &w.op, &w.q, &w.k, &w.v, &w.o, NULL) ==
          NG_ERR_ARGUMENT);
    CHECK(run(the_ctx, &w) == NG_OK);
    keep();
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    CHECK(memory != NULL);
    for (int enough = 0; enough < 2; enough++) {
        const ng_ctx_config config = { .size = sizeof config,
                                       .scratch = memory,
                                       .scratch_bytes = bytes - !enough };
        ng_ctx *ctx = NULL;
        CHECK(ng_ctx_create(&config, &ctx) == NG_OK);
        clear();
        CHECK(run(ctx, &w) == (enough ? NG_OK : NG_ERR_SCRATCH));
        CHECK(enough || outputs_untouched());
        CHECK(!enough || memcmp(o_data, want_data, 64) == 0);
        ng_ctx_destroy(ctx);
    }
    free(memory);
}

/* ---- Backward. ---- */

static unsigned char grad_data[4][4096], want_grad[4][4096];

struct back {
    struct work w;
    ng_tensor dout, g[4]; /* of q, k, v, and the sink where there is one */
    ng_attention_gradients grad;
};

static struct back make_back(const char *schedule)
{
    static unsigned char dout_data[4096];
    struct back b = { .w = make(schedule, "trn2", 1, 2, 1, 5, 7, 6, 3) };
    uint64_t seed = 70;
    fill(&b.w, 71);
    b.w.op.causal = true;
    b.dout = tensor4(NG_BF16, dout_data, 1, 2, 5, 3);
    fill_tensor(&b.dout, &seed);
    b.g[0] = tensor4(NG_F32, grad_data[0], 1, 2, 5, 6);
    b.g[1] = tensor4(NG_F32, grad_data[1], 1, 1, 7, 6);
    b.g[2] = tensor4(NG_F32, grad_data[2], 1, 1, 7, 3);
    return b;
}

/* Sinks of two heads, and a place for their gradients. */
static void add_sinks(struct back *b, ng_tensor *sink, float *logits)
{
    const int64_t heads = 2;
    CHECK(ng_tensor_init(sink, NG_F32, logits, 1, &heads) == NG_OK);
    CHECK(ng_tensor_init(&b->g[3], NG_F32, grad_data[3], 1, &heads) == NG_OK);
    b->w.op.sink = sink;
}

static ng_status run_back(ng_ctx *ctx, struct back *b)
{
    b->grad = (ng_attention_gradients){ &b->g[0], &b->g[1], &b->g[2],
                                        b->w.op.sink ? &b->g[3] : NULL };
    return ng_attention_backward(ctx, &b->w.op, &b->w.q, &b->w.k, &b->w.v, &b->w.o, &b->w.saved,
                                 &b->dout, &b->grad);
}

static void back_fails(struct back *b, ng_status status, const char *message)
{
    memset(grad_data, AROUND, sizeof grad_data);
    const ng_status got = run_back(the_ctx, b);
    if (!CHECK(got == status) || !CHECK(strstr(ng_ctx_message(the_ctx), message) != NULL))
        printf("  %s: %s; wanted %s with \"%s\"\n", ng_status_name(got),
               ng_ctx_message(the_ctx), ng_status_name(status), message);
    const unsigned char *g = &grad_data[0][0];
    bool untouched = true;
    for (size_t i = 0; i < sizeof grad_data; i++)
        untouched = untouched && g[i] == AROUND;
    CHECK(untouched);
}

static void test_back_meaning(void)
{
    struct back b = make_back("flash");
    CHECK(run(the_ctx, &b.w) == NG_OK);
    CHECK(run_back(the_ctx, &b) == NG_OK);
    double columns[3] = { 0 }, sums[3] = { 0 };
    /* Each row's weights sum to 1: the sum of dv over keys is that of dout over rows. */
    for (int64_t r = 0; r < 2 * 5; r++)
        for (int64_t c = 0; c < 3; c++)
            columns[c] +=
                (double)as_float((uint32_t)((uint16_t *)b.dout.data)[r * 3 + c] << 16);
    for (int64_t j = 0; j < 7; j++)
        for (int64_t c = 0; c < 3; c++)
            sums[c] += (double)as_float(((uint32_t *)(void *)grad_data[2])[j * 3 + c]);
    for (int64_t c = 0; c < 3; c++)
        CHECK(fabs(sums[c] - columns[c]) < 0.05);
}

/* A key of score 0 and v = 2 beside a sink of 0: p = 1/2, o = 1; do = 1, so D = 1 and each of
 * three rows adds 1/2 * (0 - 1). The other head's sink is -Inf: it has no weight. */
static void test_back_sink(void)
{
    static uint16_t zero[6], two[1] = { 0x4000 }, one[6];
    float logits[2] = { 0, -INFINITY };
    ng_tensor sink;
    struct back b = { .w = make("trn-prefill", "trn2", 1, 2, 1, 3, 1, 1, 1) };
    for (int i = 0; i < 6; i++)
        one[i] = 0x3F80;
    b.w.q.data = zero;
    b.w.v.data = two;
    b.dout = tensor4(NG_BF16, one, 1, 2, 3, 1);
    b.g[0] = tensor4(NG_F32, grad_data[0], 1, 2, 3, 1);
    b.g[1] = tensor4(NG_F32, grad_data[1], 1, 1, 1, 1);
    b.g[2] = tensor4(NG_F32, grad_data[2], 1, 1, 1, 1);
    add_sinks(&b, &sink, logits);
    CHECK(run(the_ctx, &b.w) == NG_OK);
    CHECK(run_back(the_ctx, &b) == NG_OK);
    const uint32_t *got = (const uint32_t *)(void *)grad_data[3];
    CHECK(as_float(got[0]) == -1.5f);
    CHECK(as_float(got[1]) == 0.0f);
    b.g[3].dim[0] = 1;
    back_fails(&b, NG_ERR_SHAPE, "grad.sink");
    b.g[3].dim[0] = 2;
    b.g[3].data = logits;
    back_fails(&b, NG_ERR_LAYOUT, "grad.sink overlaps op.sink");
    b.w.op.sink = NULL;
    const ng_attention_gradients only = { .sink = &b.g[3] };
    CHECK(ng_attention_backward(the_ctx, &b.w.op, &b.w.q, &b.w.k, &b.w.v, &b.w.o, &b.w.saved,
                                &b.dout, &only) == NG_ERR_ARGUMENT);
    CHECK(strstr(ng_ctx_message(the_ctx), "grad.sink is given but op.sink is NULL") != NULL);
}

static void test_backward(void)
{
    float logits[2] = { 0.5f, -1.25f };
    ng_tensor sink;
    struct back b = make_back("trn-prefill");
    add_sinks(&b, &sink, logits);
    CHECK(run(the_ctx, &b.w) == NG_OK);
    CHECK(run_back(the_ctx, &b) == NG_OK);
    memcpy(want_grad, grad_data, sizeof grad_data);
    ng_pool *pool = NULL;
    ng_executor ex[2] = { { .parallel_for = backwards, .workers = 1 } };
    const ng_status made = ng_pool_create(3, &pool, &ex[1]);
    for (int i = 0; i < (made == NG_OK ? 2 : 1); i++) {
        const ng_ctx_config config = { .size = sizeof config, .executor = ex[i] };
        ng_ctx *ctx = NULL;
        CHECK(ng_ctx_create(&config, &ctx) == NG_OK);
        memset(grad_data, 0, sizeof grad_data);
        CHECK(run_back(ctx, &b) == NG_OK);
        CHECK(memcmp(want_grad, grad_data, sizeof grad_data) == 0);
        ng_ctx_destroy(ctx);
    }
    ng_pool_destroy(pool);
    /* One gradient alone is the same. */
    for (int i = 0; i < 4; i++) {
        memset(grad_data, 0, sizeof grad_data);
        const ng_attention_gradients only = { i == 0 ? &b.g[0] : NULL, i == 1 ? &b.g[1] : NULL,
                                              i == 2 ? &b.g[2] : NULL,
                                              i == 3 ? &b.g[3] : NULL };
        CHECK(ng_attention_backward(the_ctx, &b.w.op, &b.w.q, &b.w.k, &b.w.v, &b.w.o,
                                    &b.w.saved, &b.dout, &only) == NG_OK);
        CHECK(memcmp(want_grad[i], grad_data[i], sizeof grad_data[i]) == 0);
    }
}

static void test_backward_errors(void)
{
    struct back b = make_back("trn-prefill");
    CHECK(run(the_ctx, &b.w) == NG_OK);
    b.w.saved.sum = NULL;
    back_fails(&b, NG_ERR_ARGUMENT, "saved.sum is NULL");
    b = make_back("trn-prefill");
    CHECK(run(the_ctx, &b.w) == NG_OK);
    b.dout.dim[2] = 4;
    back_fails(&b, NG_ERR_SHAPE, "dout");
    b = make_back("trn-prefill");
    CHECK(run(the_ctx, &b.w) == NG_OK);
    b.g[1].dim[2] = 6;
    back_fails(&b, NG_ERR_SHAPE, "grad.k");
    b.g[1].dim[2] = 7;
    b.g[2].format = NG_E3M2;
    b.w.op.out = (ng_cast){ .overflow = NG_OVERFLOW_SATURATE, .nan_to = NG_NAN_TO_ERROR };
    back_fails(&b, NG_ERR_ARGUMENT, "nan_to");
    b.w.op.out = (ng_cast){ 0 };
    b.g[2].format = NG_F32;
    b.g[2].data = grad_data[1];
    back_fails(&b, NG_ERR_LAYOUT, "grad.v overlaps grad.k");
    b.g[2].data = lse_data;
    b.w.saved.lse = NULL;
    b.g[2].data = max_data;
    back_fails(&b, NG_ERR_LAYOUT, "grad.v overlaps saved.max");
    b = make_back("trn-prefill");
    CHECK(run(the_ctx, &b.w) == NG_OK);
    b.w.op.out.round = NG_ROUND_STOCHASTIC;
    b.w.op.out.random = (ng_random){ .kind = NG_RANDOM_PHILOX };
    back_fails(&b, NG_ERR_PROFILE, "stochastic");
    b.w.op.out = (ng_cast){ 0 };
    b.g[0].format = NG_E2M1;
    back_fails(&b, NG_ERR_FORMAT, "op.out for grad.q");
    b = make_back("exact");
    back_fails(&b, NG_ERR_PROFILE, "arithmetic real");
    b = make_back("flash");
    CHECK(run(the_ctx, &b.w) == NG_OK);
    b.dout.format = NG_F32;
    back_fails(&b, NG_ERR_PROFILE, "dout v^T");
}

int main(void)
{
    CHECK(ng_ctx_create(NULL, &the_ctx) == NG_OK);
    test_schedules();
    test_schedule_errors();
    test_shape_errors();
    test_option_errors();
    test_format_errors();
    test_memory_errors();
    test_executors();
    test_strides();
    test_pages();
    test_rows();
    test_meaning();
    test_masked_rows();
    test_specials();
    test_sinks();
    test_sections();
    test_kernels();
    test_many_rows();
    test_caches();
    test_nan_signs();
    test_inf_signs();
    test_scratch();
    test_backward();
    test_back_meaning();
    test_back_sink();
    test_backward_errors();
    ng_ctx_destroy(the_ctx);
    return report("attention");
}
