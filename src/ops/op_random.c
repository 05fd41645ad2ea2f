/* SPDX-License-Identifier: Apache-2.0 */
/* ng_random_words, ng_random_uniform, ng_random_states. Numerics: docs/numerics.md, 7 and 11.7.
 */
#include "../internal.h"
#include "../num/random.h"
#include "ng/random.h"

/* One task's words: enough that finding a place in the stream costs little beside them. */
#define RUN 65536

struct words_job {
    const struct ng_stream *stream;
    int64_t first, count;
    uint32_t *out;
    bool uniform;
};

static void words_run(void *arg, size_t task, size_t worker)
{
    const struct words_job *j = arg;
    (void)worker;
    const int64_t from = (int64_t)task * RUN, left = j->count - from,
                  n = left < RUN ? left : RUN;
    uint32_t *out = j->out + from;
    ng_stream_words(j->stream, j->first + from, n, out);
    for (int64_t i = 0; j->uniform && i < n; i++)
        out[i] = ng_num_uniform(out[i]);
}

static ng_status words(ng_ctx *ctx, const char *call, const ng_random *source, int64_t columns,
                       struct words_job *j)
{
    struct ng_stream stream;
    int64_t end;
    ng_status s = ng_begin(ctx);
    if (s)
        return s;
    if (!source || !j->out)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s is NULL", call,
                       source ? "words" : "source");
    if (columns < 1 || j->first < 0 || j->count < 1 ||
        __builtin_add_overflow(j->first, j->count, &end) || j->count > INT64_MAX / 4)
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "%s: columns is %lld, first %lld, count %lld; wanted: at least 1, 0, 1",
                       call, (long long)columns, (long long)j->first, (long long)j->count);
    s = ng_stream_open(ctx, call, "source", source, columns, end, &stream);
    if (s)
        return s;
    if (ng_stream_overlaps(&stream, j->out, (struct ng_extent){ 0, 4 * j->count }))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: words overlaps the memory of source", call);
    j->stream = &stream;
    ng_parallel(ctx, (size_t)((j->count + RUN - 1) / RUN), words_run, j);
    return NG_OK;
}

ng_status ng_random_words(ng_ctx *ctx, const ng_random *source, int64_t columns, int64_t first,
                          int64_t count, uint32_t *out)
{
    struct words_job j = { .first = first, .count = count, .out = out };
    return words(ctx, "random_words", source, columns, &j);
}

ng_status ng_random_uniform(ng_ctx *ctx, const ng_random *source, int64_t columns,
                            int64_t first, int64_t count, uint32_t *patterns)
{
    struct words_job j = { .first = first, .count = count, .out = patterns, .uniform = true };
    return words(ctx, "random_uniform", source, columns, &j);
}

ng_status ng_random_states(ng_random_kind kind, uint64_t seed, uint32_t lanes, uint32_t states,
                           uint32_t *state)
{
    const bool xorwow = kind == NG_RANDOM_XORWOW;
    const ng_random shape = { .kind = kind, .lanes = lanes, .states = states },
                    philox = { .kind = NG_RANDOM_PHILOX,
                               .key = { (uint32_t)seed, (uint32_t)(seed >> 32) } };
    if (!state || (!xorwow && kind != NG_RANDOM_LFSR32) || lanes > 1u << 24 ||
        (states > 1 && (!xorwow || states != 4)))
        return NG_ERR_ARGUMENT;
    const int64_t n = (int64_t)ng_num_lanes(&shape) * ng_num_states(&shape),
                  each = xorwow ? 6 : 1;
    ng_num_random_words(&philox, 1, 0, n * each, state);
    for (int64_t i = 0; i < n; i++) {
        uint32_t *s = state + i * each;
        if (!(xorwow ? s[0] | s[1] | s[2] | s[3] | s[4] : s[0]))
            s[0] = 1;
    }
    return NG_OK;
}
