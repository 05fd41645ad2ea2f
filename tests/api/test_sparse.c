/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structured sparsity: every call against a plain model of its own (docs/numerics.md 4.3
 * and 11.4, in floating point and sorting), on all groups of four 4-bit codes and on random
 * tensors of every format, pattern, axis and store; the same bytes for ISAs and threads; bad
 * input.
 */
#include <math.h>
#include <stdlib.h>

#include "api.h"

enum {
    MAX_ELEMENTS = 1 << 18,
    BYTES = 4 * MAX_ELEMENTS,
    AROUND = 0xEE /* what memory holds that nobody may write */
};

static const struct pattern {
    uint32_t kept, group;
} patterns[] = { { 2, 4 },  { 1, 4 }, { 1, 2 }, { 2, 8 },  { 4, 8 }, { 4, 12 },
                 { 4, 16 }, { 3, 4 }, { 4, 4 }, { 1, 16 }, { 7, 9 }, { 5, 5 } };
#define N_PATTERNS (sizeof patterns / sizeof patterns[0])

static unsigned char src_data[BYTES], dst_data[BYTES], slot_data[BYTES], back_data[BYTES],
    tag_data[BYTES], want_data[BYTES], want_slots[BYTES], want_tags[BYTES], more_tags[BYTES];

/* ---- The model. ---- */

/* The order of pruning: larger is kept first. */
static double weight(ng_format f, uint32_t code)
{
    ng_value v;
    CHECK(ng_decode(f, code, &v) == NG_OK);
    if (v.cls == NG_CLASS_FINITE)
        return ldexp((double)v.sig, v.exp);
    return v.cls == NG_CLASS_INF ? 1e300 : 2e300;
}

struct group {
    uint32_t code[16];
    uint32_t kept[16]; /* elements that have slots, ascending */
    uint32_t nonzeros;
};

/* Take the heaviest that is left, the first of equals, `kept` times. */
static void model_group(ng_format f, struct pattern p, struct group *g)
{
    double w[16];
    bool taken[16] = { false };
    g->nonzeros = 0;
    for (uint32_t i = 0; i < p.group; i++) {
        w[i] = weight(f, g->code[i]);
        g->nonzeros += w[i] != 0;
    }
    for (uint32_t n = 0; n < p.kept; n++) {
        uint32_t best = 16;
        for (uint32_t i = 0; i < p.group; i++)
            if (!taken[i] && (best == 16 || w[i] > w[best]))
                best = i;
        taken[best] = true;
    }
    for (uint32_t i = 0, n = 0; i < p.group; i++) {
        if (w[i] == 0)
            g->code[i] = 0;
        if (taken[i])
            g->kept[n++] = i;
    }
}

/* A tag in its line, written down again. */
static void put_tag(ng_tag_store store, unsigned char *line, int64_t s, uint32_t tag)
{
    const int width = store == NG_TAG_TRN ? 4 : 2, per = 8 / width, at = (int)(s % per) * width;
    line[s / per] =
        (unsigned char)((line[s / per] & ~(((1 << width) - 1) << at)) | (int)(tag << at));
}

/* One call's operands. */
struct work {
    struct pattern p;
    ng_format format;
    ng_sparse_op op;
    ng_tensor src, dst, slots; /* slots: compressed */
    int64_t lines, groups, line_bytes, n_broken;
    int64_t broken_line, broken_group;
    uint32_t broken_nonzeros;
};

static int64_t line_start(const ng_tensor *t, uint32_t axis, int64_t line)
{
    int64_t at = 0;
    for (uint32_t d = t->rank; d-- > 0;)
        if (d != axis) {
            at += line % t->dim[d] * t->stride[d];
            line /= t->dim[d];
        }
    return at;
}

/* A tensor's code by line and place in it. */
static ng_tensor one(const ng_tensor *t, uint32_t axis, int64_t line, int64_t k)
{
    ng_tensor e = { .data = t->data, .format = t->format, .rank = 1, .dim = { 1 } };
    e.stride[0] = 1;
    e.dim[0] = line_start(t, axis, line) + k * t->stride[axis]; /* an index, here */
    return e;
}
static uint32_t get(const ng_tensor *t, uint32_t axis, int64_t line, int64_t k)
{
    const ng_tensor e = one(t, axis, line, k);
    return ng_tensor_get(&e, e.dim);
}
static void set(const ng_tensor *t, uint32_t axis, int64_t line, int64_t k, uint32_t code)
{
    const ng_tensor e = one(t, axis, line, k);
    ng_tensor_set(&e, e.dim, code);
}

/* What prune and compress should write, into want_data, want_slots and want_tags. */
static void model(struct work *w)
{
    ng_tensor pruned = w->dst, slots = w->slots;
    const uint32_t axis = w->op.axis;
    pruned.data = want_data;
    slots.data = want_slots;
    memset(want_data, AROUND, BYTES);
    memset(want_slots, AROUND, BYTES);
    memset(want_tags, AROUND, BYTES);
    w->n_broken = 0;
    w->broken_line = -1;
    for (int64_t line = 0; line < w->lines; line++) {
        unsigned char *tags =
            want_tags + line * (w->op.tag_stride ? w->op.tag_stride : w->line_bytes);
        memset(tags, 0, (size_t)w->line_bytes);
        for (int64_t g = 0; g < w->groups; g++) {
            struct group x;
            for (uint32_t i = 0; i < w->p.group; i++) {
                x.code[i] = get(&w->src, axis, line, g * w->p.group + i);
                set(&pruned, axis, line, g * w->p.group + i, 0);
            }
            model_group(w->format, w->p, &x);
            if (x.nonzeros > w->p.kept && w->n_broken++ == 0) {
                w->broken_line = line;
                w->broken_group = g;
                w->broken_nonzeros = x.nonzeros;
            }
            for (uint32_t n = 0; n < w->p.kept; n++) {
                const uint32_t code = x.code[x.kept[n]];
                set(&pruned, axis, line, g * w->p.group + x.kept[n], code);
                set(&slots, axis, line, g * w->p.kept + n, code);
                put_tag(w->op.store, tags, g * w->p.kept + n, x.kept[n]);
            }
        }
    }
}

/* ---- A round: all calls on one tensor. ---- */

static void check_report(ng_ctx *ctx, const struct work *w)
{
    ng_sparse_report r;
    const int64_t in_matrix =
        w->src.rank < 2
            ? 1
            : w->src.dim[w->op.axis == w->src.rank - 1 ? w->src.rank - 2 : w->src.rank - 1];
    CHECK(ng_sparse_check(ctx, &w->op, &w->src, &r) == NG_OK);
    CHECK(r.groups == w->lines * w->groups && r.broken == w->n_broken);
    if (w->n_broken)
        CHECK(r.matrix == w->broken_line / in_matrix && r.line == w->broken_line % in_matrix &&
              r.group == w->broken_group && r.nonzeros == w->broken_nonzeros);
    else
        CHECK(r.matrix == -1 && r.line == -1 && r.group == -1 && r.nonzeros == 0);
}

static void check_prune(ng_ctx *ctx, const struct work *w)
{
    memset(dst_data, AROUND, BYTES);
    CHECK(ng_prune(ctx, &w->op, &w->src, &w->dst) == NG_OK);
    CHECK(memcmp(dst_data, want_data, BYTES) == 0);
    CHECK(ng_prune(ctx, &w->op, &w->dst, &w->dst) == NG_OK); /* in place; nothing to do */
    CHECK(memcmp(dst_data, want_data, BYTES) == 0);
    ng_sparse_report r;
    CHECK(ng_sparse_check(ctx, &w->op, &w->dst, &r) == NG_OK && r.broken == 0);
}

static void fresh_slots(void)
{
    memset(slot_data, AROUND, BYTES);
    memset(tag_data, AROUND, BYTES);
}

static bool slots_are_wanted(void)
{
    return memcmp(slot_data, want_slots, BYTES) == 0 && memcmp(tag_data, want_tags, BYTES) == 0;
}

/* dst holds the pruned tensor. */
static void check_compress(ng_ctx *ctx, const struct work *w)
{
    char place[80];
    ng_sparse_op op = w->op;
    op.prune = true;
    fresh_slots();
    CHECK(ng_compress(ctx, &op, &w->src, &w->slots, tag_data) == NG_OK);
    CHECK(slots_are_wanted());
    op.prune = false;
    fresh_slots();
    CHECK(ng_compress(ctx, &op, &w->dst, &w->slots, tag_data) == NG_OK);
    CHECK(slots_are_wanted());
    fresh_slots();
    const ng_status s = ng_compress(ctx, &op, &w->src, &w->slots, tag_data);
    CHECK(s == (w->n_broken ? NG_ERR_ARGUMENT : NG_OK));
    if (!w->n_broken) {
        CHECK(slots_are_wanted());
        return;
    }
    (void)snprintf(place, sizeof place, "group %lld of line ", (long long)w->broken_group);
    CHECK(strstr(ng_ctx_message(ctx), place) != NULL);
    bool untouched = true;
    for (size_t i = 0; i < BYTES; i++)
        untouched = untouched && slot_data[i] == AROUND && tag_data[i] == AROUND;
    CHECK(untouched);
}

static void check_back(ng_ctx *ctx, const struct work *w)
{
    ng_sparse sparse = { .kept = w->p.kept,
                         .group = w->p.group,
                         .store = w->op.store,
                         .tags = want_tags,
                         .tag_stride = w->op.tag_stride };
    ng_tensor slots = w->slots, back = w->dst;
    bool ascend = false;
    slots.data = want_slots;
    slots.sparse = &sparse;
    back.data = back_data;
    memset(back_data, AROUND, BYTES);
    CHECK(ng_expand(ctx, &slots, w->op.axis, &back) == NG_OK);
    CHECK(memcmp(back_data, want_data, BYTES) == 0); /* expand(compress(prune(x))) = prune(x) */
    CHECK(ng_tags_check(ctx, &sparse, w->lines, w->groups * w->p.kept, &ascend) == NG_OK);
    CHECK(ascend);
    if (w->p.group > 4)
        return;
    /* To the other store and back. */
    const ng_tag_store other = w->op.store == NG_TAG_TRN ? NG_TAG_NV24 : NG_TAG_TRN;
    const int64_t n = w->groups * w->p.kept;
    const size_t all = (size_t)w->lines * ng_tags_bytes(other, n);
    memset(more_tags, AROUND, BYTES);
    CHECK(ng_tags_move(ctx, &sparse, other, more_tags, 0, w->lines, n) == NG_OK);
    CHECK(more_tags[all] == AROUND);
    const ng_sparse moved = {
        .kept = w->p.kept, .group = w->p.group, .store = other, .tags = more_tags
    };
    memset(tag_data, AROUND, BYTES);
    CHECK(ng_tags_move(ctx, &moved, w->op.store, tag_data, w->op.tag_stride, w->lines, n) ==
          NG_OK);
    CHECK(memcmp(tag_data, want_tags, BYTES) == 0);
}

static void round_of(ng_ctx *ctx, struct work *w)
{
    w->lines = 1;
    for (uint32_t d = 0; d < w->src.rank; d++)
        w->lines *= d == w->op.axis ? 1 : w->src.dim[d];
    w->groups = w->src.dim[w->op.axis] / w->p.group;
    w->line_bytes = (int64_t)ng_tags_bytes(w->op.store, w->groups * w->p.kept);
    model(w);
    check_report(ctx, w);
    check_prune(ctx, w);
    check_compress(ctx, w);
    check_back(ctx, w);
}

/* ---- All groups of four 4-bit codes. ---- */

static void exhaustive(ng_ctx *ctx)
{
    const int64_t n = 4 * 65536;
    for (int64_t i = 0; i < n; i += 2) { /* element e of group g is nibble e of g */
        const int64_t g = i / 4;
        src_data[i / 2] = (unsigned char)(g >> (i % 4 * 4));
    }
    for (uint32_t kept = 1; kept <= 4; kept++)
        for (int store = NG_TAG_TRN; store <= NG_TAG_NV24; store++) {
            const int64_t slots = n / 4 * kept;
            struct work w = { .p = { kept, 4 },
                              .format = NG_E2M1,
                              .op = { .size = sizeof w.op,
                                      .kept = kept,
                                      .group = 4,
                                      .store = (ng_tag_store)store } };
            CHECK(ng_tensor_init(&w.src, NG_E2M1, src_data, 1, &n) == NG_OK);
            CHECK(ng_tensor_init(&w.dst, NG_E2M1, dst_data, 1, &n) == NG_OK);
            CHECK(ng_tensor_init(&w.slots, NG_E2M1, slot_data, 1, &slots) == NG_OK);
            round_of(ctx, &w);
        }
}

/* ---- Random tensors. ---- */

static uint64_t below(uint64_t *s, uint64_t n)
{
    return next(s) % n;
}

/* Shapes of rank 1 to 4, row-major or with K and its neighbour swapped, with gaps. */
static void draw_views(struct work *w, uint64_t *s, bool sub_byte)
{
    const uint32_t rank = 1 + (uint32_t)below(s, 4);
    w->op.axis = rank == 1 || below(s, 2) ? rank - 1 : rank - 2;
    ng_tensor t = { .format = w->format, .rank = rank };
    for (uint32_t d = 0; d < rank; d++)
        t.dim[d] = 1 + (int64_t)below(s, d + 2 < rank ? 2 : 5);
    t.dim[w->op.axis] = w->p.group * (1 + (int64_t)below(s, below(s, 4) ? 9 : 90));
    const bool swapped = rank > 1 && below(s, 3) == 0;
    for (int which = 0; which < 3; which++) {
        ng_tensor v = t;
        int64_t step = 1;
        if (which == 2)
            v.dim[w->op.axis] = v.dim[w->op.axis] / w->p.group * w->p.kept;
        for (uint32_t n = rank; n-- > 0;) {
            const uint32_t d = !swapped || n + 2 < rank ? n : n == rank - 1 ? n - 1 : n + 1;
            v.stride[d] = step;
            step *= v.dim[d];
            step += sub_byte ? step % 2 + 2 * (int64_t)below(s, 2) : (int64_t)below(s, 3);
        }
        *(which == 0 ? &w->src : which == 1 ? &w->dst : &w->slots) = v;
    }
    w->src.data = src_data;
    w->dst.data = dst_data;
    w->slots.data = slot_data;
}

static void draw_codes(const struct work *w, uint64_t *s)
{
    const ng_format_spec *f = ng_format_info(w->format);
    const uint32_t all = f->bits == 32 ? UINT32_MAX : (1u << f->bits) - 1, top = all / 2;
    const uint32_t few[4] = { (uint32_t)next(s) & all, f->max_code, top, 1 };
    const uint64_t mood = below(s, 4), sparse = below(s, 4);
    int64_t index[NG_MAX_RANK] = { 0 };
    do {
        uint32_t code = (uint32_t)(next(s) >> 20) & all;
        if (mood == 1)
            code = (few[below(s, 4)] + (uint32_t)below(s, 3)) & all;
        if (mood == 2)
            code = (few[0] + (uint32_t)below(s, 2)) & all;
        if (sparse && below(s, sparse + 1))
            code = below(s, 2) ? 0 : top + 1; /* often -0 */
        ng_tensor_set(&w->src, index, code);
    } while (next_index(&w->src, index));
}

static bool is_element(const ng_format_spec *f)
{
    return f->kind != NG_KIND_SCALE && f->kind != NG_KIND_UFN;
}

static void random_tensors(ng_ctx *ctx, uint64_t seed, int rounds)
{
    for (size_t i = 0; ng_format_at(i); i++) {
        const ng_format_spec *f = ng_format_at(i);
        if (!is_element(f))
            continue;
        for (int n = 0; n < rounds; n++) {
            const struct pattern p = patterns[below(&seed, below(&seed, 2) ? 1 : N_PATTERNS)];
            struct work w = { .p = p, .format = f->format };
            w.op = (ng_sparse_op){ .size = sizeof w.op,
                                   .kept = p.kept,
                                   .group = p.group,
                                   .store = p.group <= 4 && below(&seed, 2) ? NG_TAG_NV24
                                                                            : NG_TAG_TRN };
            memset(src_data, AROUND, BYTES);
            draw_views(&w, &seed, f->store_bits == 4);
            draw_codes(&w, &seed);
            if (below(&seed, 3) == 0)
                w.op.tag_stride = (int64_t)(ng_tags_bytes(w.op.store, w.slots.dim[w.op.axis]) +
                                            below(&seed, 7));
            round_of(ctx, &w);
        }
    }
}

/* Lines longer than a task, on several threads: a kernel's and the reference's. */
static void long_lines(ng_ctx *ctx, ng_format f, struct pattern p, uint64_t seed)
{
    const int64_t groups = 20011, dim[2] = { 2, groups * p.group },
                  out[2] = { 2, groups * p.kept };
    struct work w = { .p = p,
                      .format = f,
                      .op = {
                          .size = sizeof w.op, .kept = p.kept, .group = p.group, .axis = 1 } };
    CHECK(ng_tensor_init(&w.src, f, src_data, 2, dim) == NG_OK);
    CHECK(ng_tensor_init(&w.dst, f, dst_data, 2, dim) == NG_OK);
    CHECK(ng_tensor_init(&w.slots, f, slot_data, 2, out) == NG_OK);
    draw_codes(&w, &seed);
    round_of(ctx, &w);
}

static void everywhere(void)
{
    const uint32_t available = ng_isa_available();
    for (size_t threads = 1; threads <= 3; threads++)
        for (uint32_t bit = 1; bit; bit <<= 1) {
            if (!(bit & available))
                continue;
            ng_ctx_config config = { .size = sizeof config, .isa_mask = bit };
            ng_pool *pool = NULL;
            ng_ctx *ctx = NULL;
            if (threads == 2)
                config.executor = (ng_executor){ .parallel_for = backwards, .workers = 1 };
            if (threads == 3 && ng_pool_create(3, &pool, &config.executor) != NG_OK)
                continue; /* built without threads */
            CHECK(ng_ctx_create(&config, &ctx) == NG_OK);
            random_tensors(ctx, bit * 10 + threads, 6);
            if (threads == 3) {
                long_lines(ctx, NG_BF16, (struct pattern){ 2, 4 }, bit);
                long_lines(ctx, NG_E4M3FN, (struct pattern){ 1, 2 }, bit);
            }
            ng_ctx_destroy(ctx);
            ng_pool_destroy(pool);
        }
}

/* ---- What the operands are for. ---- */

/* One chain of FP32 sums: a product that is +0 or -0 changes no finite sum but -0, and chains
 * start at +0. So the compressed operand multiplies as the dense pruned one. */
static void multiplies(ng_ctx *ctx)
{
    enum {
        ROWS = 9,
        COLS = 17,
        DEEP = 48
    };
    static float dense_d[ROWS * COLS], sparse_d[ROWS * COLS];
    static unsigned char other[4 * DEEP * COLS];
    const int64_t da[2] = { ROWS, DEEP }, db[2] = { DEEP, COLS }, dd[2] = { ROWS, COLS };
    const ng_gemm_op gemm = { .size = sizeof gemm, .profile = ng_profile_find("fma-f32") };
    uint64_t seed = 5;
    for (size_t i = 0; i < 7; i++)
        for (uint32_t axis = 0; axis < 2; axis++) {
            const struct pattern p = patterns[i];
            const ng_format f = i % 2 ? NG_E4M3FN : NG_BF16;
            const bool is_a = axis == 1;
            ng_sparse_op op = {
                .size = sizeof op, .kept = p.kept, .group = p.group, .axis = axis, .prune = true
            };
            int64_t dc[2] = { is_a ? ROWS : DEEP / p.group * p.kept,
                              is_a ? DEEP / p.group * p.kept : COLS };
            const ng_sparse sparse = { .kept = p.kept, .group = p.group, .tags = tag_data };
            ng_tensor src, pruned, slots, dense, d1, d2;
            (void)ng_tensor_init(&src, f, src_data, 2, is_a ? da : db);
            (void)ng_tensor_init(&pruned, f, dst_data, 2, is_a ? da : db);
            (void)ng_tensor_init(&slots, f, slot_data, 2, dc);
            (void)ng_tensor_init(&dense, f, other, 2, is_a ? db : da);
            (void)ng_tensor_init(&d1, NG_F32, dense_d, 2, dd);
            (void)ng_tensor_init(&d2, NG_F32, sparse_d, 2, dd);
            fill_tensor(&src, &seed);
            fill_tensor(&dense, &seed);
            CHECK(ng_prune(ctx, &op, &src, &pruned) == NG_OK);
            CHECK(ng_compress(ctx, &op, &src, &slots, tag_data) == NG_OK);
            slots.sparse = &sparse;
            memset(dense_d, 1, sizeof dense_d);
            memset(sparse_d, 2, sizeof sparse_d);
            CHECK(ng_gemm(ctx, &gemm, is_a ? &pruned : &dense, is_a ? &dense : &pruned, NULL,
                          &d1) == NG_OK);
            CHECK(ng_gemm(ctx, &gemm, is_a ? &slots : &dense, is_a ? &dense : &slots, NULL,
                          &d2) == NG_OK);
            CHECK(memcmp(dense_d, sparse_d, sizeof dense_d) == 0);
        }
}

/* ---- Definitions, one by one. ---- */

/* bf16 groups of four, pruned 2:4 and compressed: expected by hand. */
static void by_hand(ng_ctx *ctx)
{
    static const struct {
        uint16_t in[4], slot[2];
        uint8_t tags;
    } rows[] = {
        { { 0x3F80, 0xBF80, 0x3F80, 0x3F80 },
          { 0x3F80, 0xBF80 },
          0x10 }, /* ties: lower index */
        { { 0x3F80, 0x4000, 0xC040, 0x3F81 }, { 0x4000, 0xC040 }, 0x21 },
        { { 0x7F80, 0xFFC1, 0x3F80, 0x7FFF }, { 0xFFC1, 0x7FFF }, 0x31 }, /* NaN above Inf */
        { { 0xFFFF, 0x7F81, 0x7FFF, 0x3F80 }, { 0xFFFF, 0x7F81 }, 0x10 }, /* all NaN alike */
        { { 0x8000, 0x0000, 0x8000, 0x0001 }, { 0x0000, 0x0001 }, 0x30 }, /* -0 is padding */
        { { 0x8000, 0x8000, 0x8000, 0x8000 }, { 0x0000, 0x0000 }, 0x10 },
        { { 0x0000, 0x0000, 0x8001, 0x8000 }, { 0x0000, 0x8001 }, 0x20 },
        { { 0xFF80, 0x7F7F, 0xFF7F, 0x7F80 }, { 0xFF80, 0x7F80 }, 0x30 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const int64_t four = 4, two = 2;
        const ng_sparse_op op = { .size = sizeof op, .kept = 2, .group = 4, .prune = true };
        uint16_t in[4], slot[2] = { 0 };
        uint8_t tags[2] = { 0xEE, 0xEE };
        ng_tensor src, dst;
        memcpy(in, rows[i].in, sizeof in);
        (void)ng_tensor_init(&src, NG_BF16, in, 1, &four);
        (void)ng_tensor_init(&dst, NG_BF16, slot, 1, &two);
        CHECK(ng_compress(ctx, &op, &src, &dst, tags) == NG_OK);
        CHECK(slot[0] == rows[i].slot[0] && slot[1] == rows[i].slot[1]);
        CHECK(tags[0] == rows[i].tags && tags[1] == 0);
    }
    CHECK(ng_tags_bytes(NG_TAG_TRN, 1) == 2 && ng_tags_bytes(NG_TAG_TRN, 5) == 4);
    CHECK(ng_tags_bytes(NG_TAG_NV24, 4) == 1 && ng_tags_bytes(NG_TAG_NV24, 5) == 2);
    CHECK(ng_tags_bytes(NG_TAG_TRN, 0) == 0 && ng_tags_bytes((ng_tag_store)2, 4) == 0);
    CHECK(ng_tags_bytes(NG_TAG_TRN, INT64_MAX) == 0);
}

/* ---- Bad input: a status, words of the message, nothing written. ---- */

struct bad {
    ng_sparse_op op;
    ng_tensor src, dst, slots;
    ng_sparse sparse;
    uint16_t in[4 * 16], out[4 * 16], slot[4 * 8];
    uint8_t tags[4 * 8];
};

static struct bad *good(void)
{
    static struct bad b;
    const int64_t dim[3] = { 2, 2, 16 }, half[3] = { 2, 2, 8 };
    memset(&b, 0, sizeof b);
    b.op = (ng_sparse_op){ .size = sizeof b.op, .kept = 2, .group = 4, .axis = 2 };
    (void)ng_tensor_init(&b.src, NG_BF16, b.in, 3, dim);
    (void)ng_tensor_init(&b.dst, NG_BF16, b.out, 3, dim);
    (void)ng_tensor_init(&b.slots, NG_BF16, b.slot, 3, half);
    for (int i = 0; i < 64; i += 4)
        b.in[i + 1] = b.in[i + 3] = 0x3F80;
    memset(b.out, AROUND, sizeof b.out);
    memset(b.slot, AROUND, sizeof b.slot);
    memset(b.tags, 0x10, sizeof b.tags);
    b.sparse = (ng_sparse){ .kept = 2, .group = 4, .tags = b.tags };
    return &b;
}

enum call {
    PRUNE,
    COMPRESS,
    EXPAND,
    REPORT
};

static ng_status call_it(ng_ctx *ctx, enum call call, struct bad *b)
{
    ng_sparse_report r;
    switch (call) {
    case PRUNE: return ng_prune(ctx, &b->op, &b->src, &b->dst);
    case COMPRESS: return ng_compress(ctx, &b->op, &b->src, &b->slots, b->tags);
    case EXPAND:
        b->slots.sparse = &b->sparse;
        return ng_expand(ctx, &b->slots, b->op.axis, &b->dst);
    case REPORT: break;
    }
    return ng_sparse_check(ctx, &b->op, &b->src, &r);
}

static void refuse(ng_ctx *ctx, int line, enum call call, struct bad *b, ng_status status,
                   const char *words)
{
    static struct bad before;
    char each[200];
    b->slots.sparse = call == EXPAND ? &b->sparse : b->slots.sparse;
    before = *b;
    const ng_status s = call_it(ctx, call, b);
    if (s != status)
        printf("%d: %s, %s\n", line, ng_status_name(s), ng_ctx_message(ctx));
    check_at(__FILE__, line, s == status, "the status");
    check_at(__FILE__, line, memcmp(&before, b, sizeof before) == 0, "untouched");
    (void)snprintf(each, sizeof each, "%s", words);
    for (char *word = strtok(each, "|"); word; word = strtok(NULL, "|"))
        if (!check_at(__FILE__, line, strstr(ng_ctx_message(ctx), word) != NULL, word))
            printf("  message: %s\n", ng_ctx_message(ctx));
}
#define REFUSE(call, b, status, words) refuse(ctx, __LINE__, call, b, status, words)

static void bad_patterns(ng_ctx *ctx)
{
    struct bad *b;
    for (enum call c = PRUNE; c <= REPORT; c++) {
        if (c == EXPAND)
            continue;
        b = good();
        b->op.size = 4;
        REFUSE(c, b, NG_ERR_ARGUMENT, "op.size");
        b = good();
        b->op.kept = 0;
        REFUSE(c, b, NG_ERR_ARGUMENT, "0:4|1 <= kept");
        b = good();
        b->op.kept = 5;
        REFUSE(c, b, NG_ERR_ARGUMENT, "5:4");
        b = good();
        b->op.group = 17;
        REFUSE(c, b, NG_ERR_ARGUMENT, "2:17");
        b = good();
        b->op.axis = 3;
        REFUSE(c, b, NG_ERR_SHAPE, "axis is 3|src|rank 3");
        b = good();
        b->op.axis = 0;
        REFUSE(c, b, NG_ERR_SHAPE, "axis is 0");
        b = good();
        b->op.group = 5;
        REFUSE(c, b, NG_ERR_SHAPE, "dimension 2 of src is 16|multiple of 5");
        b = good();
        b->src.format = NG_E8M0;
        REFUSE(c, b, NG_ERR_FORMAT, "src|e8m0|scale");
        b = good();
        b->src.format = NG_UE4M3;
        REFUSE(c, b, NG_ERR_FORMAT, "ue4m3");
        b = good();
        b->src.scale = b->tags;
        REFUSE(c, b, NG_ERR_FORMAT, "src has scales");
        b = good();
        b->src.sparse = &b->sparse;
        REFUSE(c, b, NG_ERR_FORMAT, "src has tags");
        b = good();
        b->src.data = NULL;
        REFUSE(c, b, NG_ERR_ARGUMENT, "src has no data");
    }
}

static void bad_tensors(ng_ctx *ctx)
{
    struct bad *b = good();
    b->dst.dim[1] = 1;
    REFUSE(PRUNE, b, NG_ERR_SHAPE, "dimension 1 of src is 2 but of dst it is 1");
    b = good();
    b->dst.format = NG_F16;
    REFUSE(PRUNE, b, NG_ERR_FORMAT, "src is bf16 but dst is f16");
    b = good();
    b->dst.data = b->in + 1;
    REFUSE(PRUNE, b, NG_ERR_LAYOUT, "dst overlaps src");
    b = good();
    b->dst.stride[0] = 0;
    REFUSE(PRUNE, b, NG_ERR_LAYOUT, "dst");
    b = good();
    b->slots.dim[2] = 7;
    REFUSE(COMPRESS, b, NG_ERR_SHAPE, "dimension 2 of dst is 7|wants 8");
    b = good();
    b->slots.rank = 2;
    REFUSE(COMPRESS, b, NG_ERR_SHAPE, "dst has rank 2");
    b = good();
    b->slots.sparse = &b->sparse;
    REFUSE(COMPRESS, b, NG_ERR_FORMAT, "dst has tags");
    b = good();
    b->slots.data = b->in;
    REFUSE(COMPRESS, b, NG_ERR_LAYOUT, "dst overlaps src");
    b = good();
    b->slots.data = b->tags;
    REFUSE(COMPRESS, b, NG_ERR_LAYOUT, "dst overlaps the tags");
    b = good();
    b->op.store = (ng_tag_store)2;
    REFUSE(COMPRESS, b, NG_ERR_LAYOUT, "store 2");
    b = good();
    b->op.tag_stride = 3;
    REFUSE(COMPRESS, b, NG_ERR_LAYOUT, "tag_stride|3 bytes|takes 4");
    b = good();
    b->op.group = 8;
    b->op.store = NG_TAG_NV24;
    b->slots.dim[2] = 4;
    REFUSE(COMPRESS, b, NG_ERR_LAYOUT, "groups of 8|nv24");
    b = good();
    CHECK(ng_compress(ctx, &b->op, &b->src, &b->slots, NULL) == NG_ERR_ARGUMENT);
    CHECK(ng_sparse_check(ctx, &b->op, &b->src, NULL) == NG_ERR_ARGUMENT);
    CHECK(ng_prune(NULL, &b->op, &b->src, &b->dst) == NG_ERR_ARGUMENT);
    CHECK(ng_expand(ctx, &b->slots, 2, &b->dst) == NG_ERR_ARGUMENT); /* sparse is NULL */
    b->in[2 * 16 + 8] = 0x0001; /* line 2 = line 0 of matrix 1 */
    REFUSE(COMPRESS, b, NG_ERR_ARGUMENT,
           "group 2 of line 0 of matrix 1|3 non-zeros|2:4|1 of 16");
}

static void bad_tags(ng_ctx *ctx)
{
    struct bad *b = good();
    b->tags[3 * 4 + 1] = 0x33; /* line 3, group 1 */
    REFUSE(EXPAND, b, NG_ERR_ARGUMENT, "group 1 of line 1 of matrix 1|tags 0 and 1|both 3");
    b = good();
    b->tags[2] = 0x70;
    REFUSE(EXPAND, b, NG_ERR_ARGUMENT, "tag 1 in group 2 of line 0 of matrix 0|is 7|has 4");
    b = good();
    b->sparse.tags = NULL;
    REFUSE(EXPAND, b, NG_ERR_ARGUMENT, "without tags");
    b = good();
    b->dst.dim[2] = 12;
    REFUSE(EXPAND, b, NG_ERR_SHAPE, "dimension 2 of src is 8|wants 6");
    b = good();
    b->slots.data = b->out;
    REFUSE(EXPAND, b, NG_ERR_LAYOUT, "overlap");
    b = good();
    bool ascend = false;
    uint8_t out[32];
    memset(out, AROUND, sizeof out);
    b->tags[5] = 0x01; /* descends, which a multiply may take */
    CHECK(ng_tags_check(ctx, &b->sparse, 4, 8, &ascend) == NG_OK && !ascend);
    CHECK(ng_tags_check(ctx, &b->sparse, 4, 7, NULL) == NG_ERR_SHAPE);
    CHECK(ng_tags_check(ctx, &b->sparse, 0, 8, NULL) == NG_ERR_SHAPE);
    CHECK(ng_tags_check(ctx, NULL, 4, 8, NULL) == NG_ERR_ARGUMENT);
    b->tags[5] = 0x41;
    CHECK(ng_tags_check(ctx, &b->sparse, 4, 8, NULL) == NG_ERR_ARGUMENT);
    CHECK(strstr(ng_ctx_message(ctx), "tag 3 of line 1 of sparse is 4"));
    CHECK(ng_tags_move(ctx, &b->sparse, NG_TAG_NV24, out, 0, 4, 8) == NG_ERR_ARGUMENT);
    b->tags[5] = 0x10;
    CHECK(ng_tags_move(ctx, &b->sparse, NG_TAG_NV24, NULL, 0, 4, 8) == NG_ERR_ARGUMENT);
    CHECK(ng_tags_move(ctx, &b->sparse, NG_TAG_NV24, out, 1, 4, 8) == NG_ERR_LAYOUT);
    CHECK(ng_tags_move(ctx, &b->sparse, NG_TAG_NV24, b->tags, 0, 4, 8) == NG_ERR_LAYOUT);
    b->sparse.group = 8;
    CHECK(ng_tags_move(ctx, &b->sparse, NG_TAG_NV24, out, 0, 4, 8) == NG_ERR_LAYOUT);
    for (size_t i = 0; i < sizeof out; i++)
        CHECK(out[i] == AROUND);
}

/* Every two tags of a group, of every size, at several places of a line whose others are 0
 * and 1. The last group of nv24 is half a byte. */
static void two_tags(ng_ctx *ctx)
{
    enum {
        SLOTS = 86
    };
    static uint8_t tags[SLOTS];
    for (int store = NG_TAG_TRN; store <= NG_TAG_NV24; store++) {
        const bool trn = store == NG_TAG_TRN;
        const uint32_t most = trn ? 16 : 4, bits = trn ? 4 : 2;
        for (uint32_t n = 0; n < most * most * (most - 1); n++) {
            const uint32_t first = n % most, second = n / most % most,
                           group = 2 + n / (most * most);
            const ng_sparse sparse = {
                .kept = 2, .group = group, .store = (ng_tag_store)store, .tags = tags
            };
            for (uint32_t slot = 0; slot < SLOTS; slot += slot < 4 || slot > 78 ? 2 : 34) {
                bool ascend = false;
                uint8_t *const byte = tags + slot * bits / 8;
                const uint32_t at = slot * bits % 8, both = first | second << bits;
                memset(tags, trn ? 0x10 : 0x44, sizeof tags);
                *byte = (uint8_t)((*byte & ~(((1u << 2 * bits) - 1) << at)) | both << at);
                const ng_status s = ng_tags_check(ctx, &sparse, 1, SLOTS, &ascend);
                if (first < group && second < group) {
                    CHECK(s == NG_OK && ascend == (second > first));
                    continue;
                }
                char text[80];
                (void)snprintf(text, sizeof text, "tag %u of line 0 of sparse is %u; ",
                               slot + (first < group), first < group ? second : first);
                CHECK(s == NG_ERR_ARGUMENT && strstr(ng_ctx_message(ctx), text));
            }
        }
    }
}

/* Of many lines: what the call says of each tag that is wrong, or not above the one before it.
 */
static void many_tags(ng_ctx *ctx)
{
    enum {
        LINES = 9,
        SLOTS = 510,
        ROOM = LINES * 256
    };
    static uint8_t tags[ROOM];
    for (int store = NG_TAG_TRN; store <= NG_TAG_NV24; store++)
        for (uint32_t group = store == NG_TAG_TRN ? 3 : 4; group <= 4; group++) {
            const bool trn = store == NG_TAG_TRN;
            const ng_sparse sparse = {
                .kept = 2, .group = group, .store = (ng_tag_store)store, .tags = tags
            };
            const int64_t line = (int64_t)ng_tags_bytes(sparse.store, SLOTS);
            for (int64_t i = 0; i < LINES * SLOTS; i += 37) {
                const int64_t l = i / SLOTS, slot = i % SLOTS;
                uint8_t *const byte = tags + l * line + slot / (trn ? 2 : 4);
                const int bit = (int)(trn ? slot % 2 * 4 : slot % 4 * 2);
                bool ascend = false;
                memset(tags, trn ? 0x20 : 0x88, sizeof tags); /* 0 and 2 of each group */
                CHECK(ng_tags_check(ctx, &sparse, LINES, SLOTS, &ascend) == NG_OK && ascend);
                *byte = (uint8_t)((*byte & ~(3 << bit)) | (slot % 2 ? 0 : 2) << bit);
                CHECK(ng_tags_check(ctx, &sparse, LINES, SLOTS, &ascend) == NG_OK && !ascend);
                if (!trn)
                    continue;
                *byte = (uint8_t)((*byte & ~(15 << bit)) | (int)group << bit);
                char text[80];
                (void)snprintf(text, sizeof text, "tag %lld of line %lld of sparse is %u",
                               (long long)slot, (long long)l, group);
                CHECK(ng_tags_check(ctx, &sparse, LINES, SLOTS, &ascend) == NG_ERR_ARGUMENT);
                CHECK(strstr(ng_ctx_message(ctx), text));
            }
        }
}

int main(void)
{
    ng_ctx *ctx = NULL;
    CHECK(ng_ctx_create(NULL, &ctx) == NG_OK);
    by_hand(ctx);
    two_tags(ctx);
    many_tags(ctx);
    bad_patterns(ctx);
    bad_tensors(ctx);
    bad_tags(ctx);
    multiplies(ctx);
    exhaustive(ctx);
    ng_ctx_destroy(ctx);
    everywhere();
    return report("test_sparse");
}
