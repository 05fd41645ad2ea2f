/* SPDX-License-Identifier: Apache-2.0 */
/* ng_random_words(): every generator of every ISA, against filling the same memory. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum {
    WORDS = 65536, /* stay in the second-level cache */
    SHORT = 4096   /* a conversion's task */
};

struct generator {
    const char *name;
    ng_random source; /* its states are drawn */
    int64_t columns, count;
    uint32_t isa;
    const ng_executor *executor;
    bool failed, differs;

    ng_ctx *ctx;
    uint32_t *state, *words;
    int64_t first;
};

static const struct generator generators[] = {
    { .name = "philox", .source = { .kind = NG_RANDOM_PHILOX, .key = { 1, 2 } } },
    { .name = "xorwow", .source = { .kind = NG_RANDOM_XORWOW, .states = 1 } },
    { .name = "xorwow4", .source = { .kind = NG_RANDOM_XORWOW, .states = 4 } },
    { .name = "lfsr32", .source = { .kind = NG_RANDOM_LFSR32, .poly = 0x80200003 } },
};

static bool draw(const struct generator *x, ng_ctx *ctx, uint32_t *out)
{
    return ng_random_words(ctx, &x->source, x->columns, x->first, x->count, out) == NG_OK;
}

/* The reference's words, all of them. */
static bool equals_reference(const struct generator *x)
{
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    uint32_t *want = bench_alloc((size_t)x->count * sizeof *want);
    ng_ctx *ctx = NULL;
    const bool same = ng_ctx_create(&config, &ctx) == NG_OK && draw(x, ctx, want) &&
                      memcmp(want, x->words, (size_t)x->count * sizeof *want) == 0;
    ng_ctx_destroy(ctx);
    free(want);
    return same;
}

static void done_words(void *state)
{
    struct generator *x = state;
    free(x->state);
    free(x->words);
    ng_ctx_destroy(x->ctx);
}

static void *setup_words(void *arg)
{
    struct generator *x = arg;
    ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF | x->isa };
    if (x->executor)
        config.executor = *x->executor;
    x->failed = ng_ctx_create(&config, &x->ctx) != NG_OK;
    if (x->failed)
        return NULL;
    x->state = bench_alloc((size_t)128 * 4 * 6 * sizeof *x->state);
    x->words = bench_alloc((size_t)x->count * sizeof *x->words);
    if (x->source.kind != NG_RANDOM_PHILOX) {
        (void)ng_random_states(x->source.kind, 3, 0, x->source.states, x->state);
        x->source.state = x->state;
    }
    x->first = 1000 * x->columns; /* not the easy beginning of the stream */
    x->failed = !draw(x, x->ctx, x->words);
    x->differs = !x->failed && !equals_reference(x);
    if (!x->failed && !x->differs)
        return x;
    done_words(x);
    return NULL;
}

static void run_words(void *state)
{
    struct generator *x = state;
    (void)draw(x, x->ctx, x->words);
}

struct fill_memory {
    size_t bytes;
    unsigned char *to;
    int value;
};

static void *setup_fill(void *arg)
{
    struct fill_memory *x = arg;
    x->to = bench_alloc(x->bytes);
    return x;
}

static void run_fill(void *state)
{
    struct fill_memory *x = state;
    memset(x->to, x->value++, x->bytes);
}

static void done_fill(void *state)
{
    free(((struct fill_memory *)state)->to);
}

static void one(struct bench *run, const struct generator *what, const char *isa, uint32_t bit,
                int64_t columns, int64_t count)
{
    struct generator x = *what;
    x.columns = columns;
    x.count = count;
    x.isa = bit;
    x.executor = run->executor;
    char name[80], label[40];
    (void)snprintf(label, sizeof label, "random_%s__%s", x.name, isa);
    (void)snprintf(name, sizeof name, "random/%s/%s/%lldx%lld", x.name, isa,
                   (long long)((count + columns - 1) / columns), (long long)columns);
    if (!bench_wants(run, name) || run->list)
        return;
    struct fill_memory fill = { .bytes = (size_t)count * 4 };
    struct ng_bench bench[2] = { { .name = name,
                                   .setup = setup_words,
                                   .run = run_words,
                                   .done = done_words,
                                   .arg = &x,
                                   .items = (double)count },
                                 { .name = "memset",
                                   .setup = setup_fill,
                                   .run = run_fill,
                                   .done = done_fill,
                                   .arg = &fill,
                                   .items = (double)count } };
    ng_bench_run(bench, 2, &run->options);
    if (x.failed || x.differs) {
        bench_refuse(run, name, x.failed ? "the call failed" : "differs from the reference");
        return;
    }
    bench_row(run, &(struct row){ .name = name,
                                  .label = label,
                                  .kernel = label,
                                  .profile = "",
                                  .tag = "",
                                  .a = x.name,
                                  .b = "u32",
                                  .m = (count + columns - 1) / columns,
                                  .n = columns,
                                  .k = 1,
                                  .unit = "Gwords/s",
                                  .scale = 1e-9,
                                  .rate = bench[0].rate,
                                  .peak = bench[1].rate,
                                  .spread = bench[0].spread });
}

/* Rows enough for every lane; one long row; a conversion's task in a long row. */
void bench_random(struct bench *run)
{
    const size_t n = sizeof generators / sizeof generators[0];
    for (uint32_t bit = 1; bit; bit <<= 1) {
        const char *isa = ng_isa_name(bit);
        if (!isa || !(ng_isa_available() & bit) || bit >= NG_ISA_AVX512BF16)
            continue; /* those have AVX-512's generators */
        for (size_t i = 0; i < n; i++) {
            one(run, &generators[i], isa, bit, 512, WORDS);
            one(run, &generators[i], isa, bit, WORDS, WORDS);
            one(run, &generators[i], isa, bit, WORDS, SHORT);
        }
    }
}
