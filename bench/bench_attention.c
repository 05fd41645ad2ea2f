/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_attention() by kernels. Prefill counts the multiply-adds of live (query, key) pairs alone,
 * against the peak of the multiplying instruction; decode counts the bytes of k and v, against
 * a plain sum over as many. Two rows of each are compared with the reference before anything is
 * timed. ng_attention_backward() does five multiplies for the forward's two; all its gradients
 * are compared on fewer queries and keys.
 */
#include <stdlib.h>
#include <string.h>

#include "yardstick.h"

struct shape {
    const char *name, *profile, *schedule;
    int64_t batch, heads, kv_heads, queries, keys, d, window;
    bool causal, sink, quick;
    enum cache {
        CACHE_BF16,
        CACHE_FP8,
        CACHE_MXFP8
    } cache;   /* k and v */
    bool back; /* the gradients */
};

static const struct shape shapes[] = {
    { "prefill/causal", "trn2", "trn-prefill", 1, 1, 1, 512, 512, 128, 0, true, false, true },
    { "prefill/causal", "trn2", "trn-prefill", 1, 1, 1, 2048, 2048, 128, 0, true, false,
      false },
    { "prefill/causal", "trn2", "trn-prefill", 1, 1, 1, 8192, 8192, 128, 0, true, false,
      false },
    { "prefill/causal", "trn2", "trn-prefill", 1, 1, 1, 2048, 2048, 64, 0, true, false, false },
    { "prefill/causal-fp8", "trn2", "trn-prefill", 1, 1, 1, 2048, 2048, 128, 0, true, false,
      false, CACHE_FP8 },
    { "prefill/full", "trn2", "trn-prefill", 1, 1, 1, 2048, 2048, 128, 0, false, false, false },
    { "flash/causal", "trn2", "flash", 1, 1, 1, 2048, 2048, 128, 0, true, false, false },
    { "flash/hopper", "nv-hopper", "flash", 1, 1, 1, 2048, 2048, 128, 0, true, false, false },
    { "flash/cdna3", "amd-cdna3", "flash", 1, 1, 1, 2048, 2048, 128, 0, true, false, false },
    /* a layer of GPT-OSS: 8 query heads a head of k, window 128, sinks */
    { "flash/gpt-oss", "trn2", "flash", 1, 8, 1, 2048, 2048, 64, 128, true, true, false },
    { "decode/8192", "trn2", "trn-decode", 1, 8, 2, 1, 8192, 128, 0, false, false, true },
    { "decode/8192", "trn2", "trn-decode", 4, 64, 8, 1, 8192, 128, 0, false, false, false },
    { "decode/8192-fp8", "trn2", "trn-decode", 4, 64, 8, 1, 8192, 128, 0, false, false, false,
      CACHE_FP8 },
    { "decode/8192-mx", "trn3", "trn-mx-decode", 4, 64, 8, 1, 8192, 128, 0, false, false, false,
      CACHE_MXFP8 },
    /* 4 query heads a head of k */
    { "decode/8192", "trn2", "trn-decode", 4, 32, 8, 1, 8192, 128, 0, false, false, false },
    { "decode/8192-fp8", "trn2", "trn-decode", 4, 32, 8, 1, 8192, 128, 0, false, false, false,
      CACHE_FP8 },
    { "decode/8192-mx", "trn3", "trn-mx-decode", 4, 32, 8, 1, 8192, 128, 0, false, false, false,
      CACHE_MXFP8 },
    /* one */
    { "decode/8192", "trn2", "trn-decode", 4, 8, 8, 1, 8192, 128, 0, false, false, false },
    { "decode/8192-fp8", "trn2", "trn-decode", 4, 8, 8, 1, 8192, 128, 0, false, false, false,
      CACHE_FP8 },
    { "decode/8192-mx", "trn3", "trn-mx-decode", 4, 8, 8, 1, 8192, 128, 0, false, false, false,
      CACHE_MXFP8 },
    { "backward/causal", "trn2", "trn-prefill", 1, 1, 1, 2048, 2048, 128, 0, true, false, false,
      CACHE_BF16, true },
    { "backward/flash", "trn2", "flash", 1, 1, 1, 2048, 2048, 64, 0, true, false, false,
      CACHE_BF16, true },
    { "backward/gpt-oss", "trn2", "flash", 1, 8, 1, 2048, 2048, 64, 128, true, true, false,
      CACHE_BF16, true },
    /* windows: trn-decode computes masked keys too, flash skips their tiles */
    { "decode/gpt-oss", "trn2", "flash", 8, 64, 8, 1, 8192, 64, 128, true, true, false },
};

struct attention {
    const struct shape *s;
    uint32_t isa;
    const ng_executor *executor;
    struct reader *reader; /* to be told how much is read, or NULL */
    bool failed, differs, refused;

    ng_attention_op op;
    ng_ctx *ctx;
    ng_tensor q, k, v, o, sink;
    ng_tensor dout, lse, max, sum, dq, dk, dv, dsink; /* of the backward */
};

/* Of a cache: bytes an element, its scale among them; and what a report calls it. */
static const struct {
    double bytes;
    const char *name;
} caches[] = { { 2, "bf16" }, { 1, "e4m3" }, { 1 + 1.0 / 32, "mxfp8" } };

static bool is_decode(const struct shape *s)
{
    return s->queries == 1;
}

/* (query, key) pairs of a head that are not masked. */
static double live_pairs(const struct shape *s)
{
    double pairs = 0;
    for (int64_t i = 0; i < s->queries; i++) {
        const int64_t self = i + s->keys - s->queries;
        int64_t n = s->causal ? self + 1 : s->keys;
        if (s->window && n > s->window)
            n = s->window;
        pairs += (double)n;
    }
    return pairs;
}

/* Two multiply-adds a pair and element of a head; five for the gradients. */
static double flops(const struct shape *s)
{
    return (s->back ? 10 : 4) * (double)(s->batch * s->heads * s->d) * live_pairs(s);
}

static double bytes_read(const struct shape *s)
{
    const double keys = s->window ? (double)s->window : (double)s->keys;
    return 2 * caches[s->cache].bytes * (double)(s->batch * s->kv_heads * s->d) * keys;
}

static ng_tensor codes(ng_format f, int64_t b, int64_t h, int64_t n, int64_t d, uint64_t seed)
{
    const int64_t dim[] = { b, h, n, d };
    ng_tensor flat = bench_matrix(f, b * h * n, d, (struct spread){ -3, 0 }, seed), t;
    (void)ng_tensor_init(&t, f, flat.data, 4, dim);
    return t;
}

static ng_tensor tensor(int64_t b, int64_t h, int64_t n, int64_t d, uint64_t seed)
{
    return codes(NG_BF16, b, h, n, d, seed);
}

/* MXFP8, blocks along dimension `axis`, 2 or 3. */
static ng_tensor blocks(int64_t b, int64_t h, int64_t n, int64_t d, uint32_t axis,
                        uint64_t seed)
{
    const int64_t dim[] = { b, h, n, d };
    ng_tensor flat = bench_operand(NG_E4M3FN, b * h * n, d, axis - 2, FILL_MX, seed), t;
    (void)ng_tensor_init(&t, NG_E4M3FN, flat.data, 4, dim);
    t.scale = flat.scale;
    t.scale_format = flat.scale_format;
    t.block = flat.block;
    t.block_axis = axis;
    return t;
}

/* k, or v, whose blocks lie along dimension `axis`. */
static ng_tensor cached(const struct shape *s, uint32_t axis, uint64_t seed)
{
    if (s->cache == CACHE_MXFP8)
        return blocks(s->batch, s->kv_heads, s->keys, s->d, axis, seed);
    return codes(s->cache == CACHE_FP8 ? NG_E4M3 : NG_BF16, s->batch, s->kv_heads, s->keys,
                 s->d, seed);
}

static bool row_differs(const struct attention *x, int64_t b, int64_t h, int64_t i)
{
    const int64_t index[] = { b, h, i };
    uint32_t want[256];
    const uint16_t *o = x->o.data;
    if (ng_attention_row(x->ctx, &x->op, &x->q, &x->k, &x->v, &x->o, index, NULL, want))
        return true;
    for (int64_t c = 0; c < x->s->d; c++)
        if (o[b * x->o.stride[0] + h * x->o.stride[1] + i * x->o.stride[2] + c] != want[c])
            return true;
    return false;
}

static void done_attention(void *state)
{
    struct attention *x = state;
    ng_tensor *const all[] = { &x->q,   &x->k,   &x->v,  &x->o,  &x->sink, &x->dout, &x->lse,
                               &x->max, &x->sum, &x->dq, &x->dk, &x->dv,   &x->dsink };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        bench_free(all[i]);
    ng_ctx_destroy(x->ctx);
}

static ng_tensor floats(int64_t b, int64_t h, int64_t n, uint64_t seed)
{
    const int64_t dim[] = { b, h, n };
    ng_tensor flat = bench_matrix(NG_F32, b * h, n, (struct spread){ -1, 1 }, seed), t;
    (void)ng_tensor_init(&t, NG_F32, flat.data, 3, dim);
    return t;
}

static ng_tensor heads_floats(int64_t heads, uint64_t seed)
{
    ng_tensor t = bench_matrix(NG_F32, 1, heads, (struct spread){ -1, 1 }, seed);
    t.rank = 1;
    t.dim[0] = heads;
    t.stride[0] = 1;
    return t;
}

/* Operands, and o as the forward call leaves it; false where a call fails. */
static bool open_attention(struct attention *x, const struct shape *s, uint32_t isas)
{
    ng_ctx_config config = { .size = sizeof config, .isa_mask = isas };
    if (x->executor)
        config.executor = *x->executor;
    if (ng_ctx_create(&config, &x->ctx))
        return false;
    x->q = tensor(s->batch, s->heads, s->queries, s->d, 1);
    x->k = cached(s, 3, 2);
    x->v = cached(s, 2, 3);
    x->o = tensor(s->batch, s->heads, s->queries, s->d, 4);
    x->sink = heads_floats(s->heads, 5);
    x->op = (ng_attention_op){ .size = sizeof x->op,
                               .profile = ng_profile_find(s->profile),
                               .schedule = ng_attention_find(s->schedule),
                               .scale = s->d == 64 ? 0x3E000000u : 0x3DB504F3u, /* d^-0.5 */
                               .causal = s->causal,
                               .window = s->window,
                               .sink = s->sink ? &x->sink : NULL };
    if (!s->back)
        return ng_attention(x->ctx, &x->op, &x->q, &x->k, &x->v, &x->o, NULL) == NG_OK;
    x->lse = floats(s->batch, s->heads, s->queries, 6);
    x->max = floats(s->batch, s->heads, s->queries, 7);
    x->sum = floats(s->batch, s->heads, s->queries, 8);
    x->dout = tensor(s->batch, s->heads, s->queries, s->d, 9);
    x->dq = tensor(s->batch, s->heads, s->queries, s->d, 10);
    x->dk = tensor(s->batch, s->kv_heads, s->keys, s->d, 11);
    x->dv = tensor(s->batch, s->kv_heads, s->keys, s->d, 12);
    x->dsink = heads_floats(s->heads, 13);
    const ng_attention_saved saved = { &x->lse, &x->max, &x->sum };
    return ng_attention(x->ctx, &x->op, &x->q, &x->k, &x->v, &x->o, &saved) == NG_OK;
}

static ng_status call(struct attention *x)
{
    const ng_attention_saved saved = { &x->lse, &x->max, &x->sum };
    const ng_attention_gradients grad = { &x->dq, &x->dk, &x->dv,
                                          x->op.sink ? &x->dsink : NULL };
    if (!x->s->back)
        return ng_attention(x->ctx, &x->op, &x->q, &x->k, &x->v, &x->o, NULL);
    return ng_attention_backward(x->ctx, &x->op, &x->q, &x->k, &x->v, &x->o, &saved, &x->dout,
                                 &grad);
}

static size_t bytes_of(const ng_tensor *t)
{
    size_t n = ng_format_info(t->format)->store_bits / 8;
    for (uint32_t i = 0; i < t->rank; i++)
        n *= (size_t)t->dim[i];
    return n;
}

/* All gradients of a small call, by this ISA and by the reference. */
static bool gradients_differ(const struct attention *like)
{
    struct shape small = *like->s;
    small.queries = small.keys = 72;
    small.heads = small.heads < 2 ? small.heads : 2;
    struct attention x[2] = { { .s = &small }, { .s = &small } };
    bool differ = false;
    for (int i = 0; i < 2; i++)
        differ |= !open_attention(&x[i], &small, i ? NG_ISA_REF : isas_of(like->isa)) ||
                  call(&x[i]) != NG_OK;
    const ng_tensor *const all[2][4] = { { &x[0].dq, &x[0].dk, &x[0].dv, &x[0].dsink },
                                         { &x[1].dq, &x[1].dk, &x[1].dv, &x[1].dsink } };
    for (int i = 0; !differ && i < (small.sink ? 4 : 3); i++)
        differ = memcmp(all[0][i]->data, all[1][i]->data, bytes_of(all[0][i])) != 0;
    done_attention(&x[0]);
    done_attention(&x[1]);
    return differ;
}

static void *setup_attention(void *arg)
{
    struct attention *x = arg;
    const struct shape *s = x->s;
    x->failed = !open_attention(x, s, isas_of(x->isa)) || call(x) != NG_OK;
    x->refused = !x->failed && ng_ctx_tiles(x->ctx).fast == 0;
    if (!x->failed && !x->refused)
        x->differs = row_differs(x, 0, 0, 0) ||
                     row_differs(x, s->batch - 1, s->heads - 1, s->queries - 1) ||
                     (s->back && gradients_differ(x));
    if (x->reader)
        x->reader->like = (size_t)bytes_read(s);
    if (!x->failed && !x->differs && !x->refused)
        return x;
    done_attention(x);
    return NULL;
}

static void run_attention(void *state)
{
    (void)call(state);
}

/* What both measured, the ISA's own instruction and the one of the ISA that it builds upon (0:
 * there is none): where VDPBF16PS is slow, multiplies go by FMA. */
static double best_peak(const struct bench *run, const struct ng_bench *own,
                        const struct ng_bench *base)
{
    return (own->rate > base->rate ? own->rate : base->rate) * (double)run->threads;
}

static void one(struct bench *run, const char *isa, uint32_t bit, const struct shape *s)
{
    const bool decode = is_decode(s);
    const struct peak *base = peak_of(bit >> 1);
    struct reader reader = { .peak = peak_of(bit),
                             .executor = run->executor,
                             .threads = run->threads };
    struct attention x = {
        .s = s, .isa = bit, .executor = run->executor, .reader = decode ? &reader : NULL
    };
    char name[100], label[60];
    (void)snprintf(name, sizeof name, "attention/%s/%s/%lldx%lldx%lld/d%lld", isa, s->name,
                   (long long)(s->batch * s->heads), (long long)s->queries, (long long)s->keys,
                   (long long)s->d);
    (void)snprintf(label, sizeof label, "%s %s", isa, s->name);
    if (!bench_wants(run, name) || run->list)
        return;
    struct ng_bench bench[3] = { { .name = name,
                                   .setup = setup_attention,
                                   .run = run_attention,
                                   .done = done_attention,
                                   .arg = &x,
                                   .items = decode ? bytes_read(s) : flops(s) },
                                 decode ? yard_read(&reader) : yard_peak(reader.peak),
                                 yard_peak(base) };
    ng_bench_run(bench, decode || !base ? 2 : 3, &run->options);
    if (x.failed || x.differs || x.refused) {
        bench_refuse(run, name,
                     x.failed    ? "the call failed"
                     : x.refused ? "no kernel took it"
                                 : "differs from the reference");
        return;
    }
    bench_row(run, &(struct row){ .name = name,
                                  .label = label,
                                  .kernel = isa,
                                  .profile = s->profile,
                                  .tag = s->schedule,
                                  .a = "bf16",
                                  .b = caches[s->cache].name,
                                  .m = s->batch * s->heads * s->queries,
                                  .n = s->keys,
                                  .k = s->d,
                                  .unit = decode ? "GB/s" : "GFLOP/s",
                                  .scale = 1e-9,
                                  .rate = bench[0].rate,
                                  .peak = decode ? yard_read_rate(&reader, &bench[1])
                                                 : best_peak(run, &bench[1], &bench[2]),
                                  .spread = bench[0].spread });
}

static void rows(struct bench *run, bool decode)
{
    /* AMX has no part in it */
    for (uint32_t bit = NG_ISA_AVX2; bit <= NG_ISA_AVX512BF16; bit <<= 1) {
        const char *isa = ng_isa_name(bit);
        if (!isa || !(ng_isa_available() & bit) || !peak_of(bit))
            continue;
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            if (is_decode(&shapes[i]) == decode && (!run->quick || shapes[i].quick))
                one(run, isa, bit, &shapes[i]);
    }
}

void bench_prefill(struct bench *run)
{
    rows(run, false);
}

void bench_decode(struct bench *run)
{
    rows(run, true);
}
