/* SPDX-License-Identifier: Apache-2.0 */
/* Checked random sources, and the words of any range. Numerics: docs/numerics.md, 7 and 11.7.
 */
#include <string.h>

#include "dispatch.h"
#include "internal.h"
#include "num/num.h"
#include "num/random.h"

/* ---- Checks. ---- */

static ng_status check_external(ng_ctx *ctx, const char *call, const char *name,
                                const ng_random *r, int64_t words)
{
    if (!r->word)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s has no random words: word is NULL", call,
                       name);
    if (r->count >= words && r->first <= (uint64_t)(r->count - words))
        return NG_OK;
    if (r->first)
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "%s: %s has %lld random words but needs %lld from word %llu on", call,
                       name, (long long)r->count, (long long)words,
                       (unsigned long long)r->first);
    return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s has %lld random words but needs %lld", call,
                   name, (long long)r->count, (long long)words);
}

/* A state that would give zeros for ever. */
static ng_status check_states(ng_ctx *ctx, const char *call, const char *name,
                              const ng_random *r)
{
    const uint32_t lanes = ng_num_lanes(r), states = ng_num_states(r);
    const bool xorwow = r->kind == NG_RANDOM_XORWOW;
    for (uint64_t i = 0; i < (uint64_t)lanes * states; i++) {
        const uint32_t *s = r->state + (xorwow ? 6 * i : i);
        const uint32_t any = xorwow ? s[0] | s[1] | s[2] | s[3] | s[4] : s[0];
        if (!any)
            return ng_fail(
                ctx, NG_ERR_ARGUMENT,
                "%s: %s: the random state of lane %u%s%.0u is all zero; wanted: a bit "
                "in %s",
                call, name, (unsigned)(i / states), states > 1 ? ", state " : "",
                (unsigned)(i % states), xorwow ? "x, y, z, w or v" : "it");
    }
    return NG_OK;
}

static ng_status check_lanes(ng_ctx *ctx, const char *call, const char *name,
                             const ng_random *r)
{
    const bool xorwow = r->kind == NG_RANDOM_XORWOW;
    if (!r->state)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s: the random source's state is NULL", call,
                       name);
    if (r->lanes > 1u << 24)
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "%s: %s: the random source has %u lanes; wanted: at most 2^24", call,
                       name, r->lanes);
    if (xorwow && r->states > 1 && r->states != 4)
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "%s: %s: the random source has %u states a lane; wanted: 1 or 4", call,
                       name, r->states);
    if (!xorwow && r->states > 1)
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "%s: %s: the random source has %u states a lane; lfsr32 has 1", call,
                       name, r->states);
    if (!xorwow && (!r->poly || r->steps > 32))
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "%s: %s: random poly 0x%08x with %u steps; wanted: a polynomial that is "
                       "not 0, at most 32 steps",
                       call, name, r->poly, r->steps);
    return check_states(ctx, call, name, r);
}

ng_status ng_stream_open(ng_ctx *ctx, const char *call, const char *name,
                         const ng_random *source, int64_t columns, int64_t words,
                         struct ng_stream *s)
{
    ng_status status = NG_OK;
    switch (source->kind) {
    case NG_RANDOM_NONE:
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s has no random words: its source is none",
                       call, name);
    case NG_RANDOM_EXTERNAL: status = check_external(ctx, call, name, source, words); break;
    case NG_RANDOM_XORWOW:
    case NG_RANDOM_LFSR32: status = check_lanes(ctx, call, name, source); break;
    case NG_RANDOM_PHILOX: break;
    default:
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s: random kind %d is no ng_random_kind",
                       call, name, (int)source->kind);
    }
    if (!status && source->first > (uint64_t)(INT64_MAX - words))
        status = ng_fail(ctx, NG_ERR_ARGUMENT,
                         "%s: %s: random words from %llu on, %lld of them, end past 2^63", call,
                         name, (unsigned long long)source->first, (long long)words);
    if (!status)
        *s = (struct ng_stream){ .source = *source,
                                 .columns = columns,
                                 .kernel = ng_pick_random(source->kind, ng_ctx_isas(ctx)) };
    return status;
}

ng_status ng_check_cast(ng_ctx *ctx, const char *call, const char *name, const ng_cast *cast,
                        const ng_format_spec *to, int64_t columns, int64_t words,
                        struct ng_stream *s)
{
    const char *error = ng_num_cast_error(to, cast);
    if (error) {
        const bool no_inf = cast->overflow == NG_OVERFLOW_INF && !to->has_inf && !to->has_nan;
        return ng_fail(ctx, no_inf ? NG_ERR_FORMAT : NG_ERR_ARGUMENT, "%s: %s for %s: %s", call,
                       name, to->text, error);
    }
    *s = (struct ng_stream){ .columns = columns };
    if (cast->round != NG_ROUND_STOCHASTIC)
        return NG_OK;
    return ng_stream_open(ctx, call, name, &cast->random, columns, words, s);
}

bool ng_stream_overlaps(const struct ng_stream *s, const void *data, struct ng_extent extent)
{
    const ng_random *r = &s->source;
    if (r->kind == NG_RANDOM_EXTERNAL)
        return r->count < INT64_MAX / 4 &&
               ng_overlap(r->word, (struct ng_extent){ 0, 4 * r->count }, data, extent);
    if (r->kind != NG_RANDOM_XORWOW && r->kind != NG_RANDOM_LFSR32)
        return false;
    const int64_t states = (int64_t)ng_num_lanes(r) * ng_num_states(r),
                  bytes = states * (r->kind == NG_RANDOM_XORWOW ? 24 : 4);
    return ng_overlap(r->state, (struct ng_extent){ 0, bytes }, data, extent);
}

/* ---- Words. ---- */

const uint32_t *ng_stream_direct(const struct ng_stream *s, int64_t first)
{
    return s->source.kind == NG_RANDOM_EXTERNAL ? s->source.word + s->source.first + first
                                                : NULL;
}

void ng_stream_words(const struct ng_stream *s, int64_t first, int64_t count, uint32_t *out)
{
    const uint32_t *there = ng_stream_direct(s, first);
    if (count <= 0)
        return;
    if (there)
        memcpy(out, there, (size_t)count * sizeof *out);
    else if (s->kernel)
        s->kernel->words(&s->source, s->columns, s->source.first + (uint64_t)first, count, out);
    else
        ng_num_random_words(&s->source, s->columns, first, count, out);
}

uint32_t ng_stream_word(const struct ng_stream *s, int64_t i)
{
    return ng_num_random_word(&s->source, s->columns, i);
}
