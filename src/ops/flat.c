/* SPDX-License-Identifier: Apache-2.0 */
/* Elements one after another. flat.h. */
#include "flat.h"

#include "../num/num.h"

static const ng_cast exact = { .round = NG_ROUND_TIES_TO_EVEN };

/* Row-major, without gaps. */
static bool in_a_row(const ng_tensor *t)
{
    int64_t step = 1;
    for (uint32_t d = t->rank; d-- > 0; step *= t->dim[d])
        if (t->dim[d] != 1 && t->stride[d] != step)
            return false;
    return true;
}

static bool aligned(const void *p)
{
    return (uintptr_t)p % sizeof(uint32_t) == 0;
}

static void *at_element(const ng_tensor *t, const ng_format_spec *f, int64_t i)
{
    return (unsigned char *)t->data + i * f->store_bits / 8;
}

static void gather(const struct flat_in *in, int64_t offset, int64_t first, int64_t n,
                   void *codes)
{
    const ng_tensor *t = &in->t;
    const uint32_t bits = in->job.from->store_bits;
    int64_t index[NG_MAX_RANK];
    ng_unravel(t, first, index);
    for (int64_t i = 0; i < n; i++, ng_next_index(t, index))
        ng_store_code(codes, bits, i,
                      ng_load_code(t->data, bits, offset + ng_offset_at(t, index)));
}

static void scatter(const ng_tensor *t, const ng_format_spec *f, int64_t first, int64_t n,
                    const void *codes)
{
    int64_t index[NG_MAX_RANK];
    ng_unravel(t, first, index);
    for (int64_t i = 0; i < n; i++, ng_next_index(t, index))
        ng_store_code(t->data, f->store_bits, ng_offset_at(t, index),
                      ng_load_code(codes, f->store_bits, i));
}

/* ---- In. ---- */

struct flat_in ng_flat_in(ng_ctx *ctx, const ng_tensor *t)
{
    struct flat_in in = { .t = *t,
                          .row = in_a_row(t),
                          .job = { .from = ng_format_info(t->format),
                                   .to = ng_format_info(NG_F32),
                                   .cast = &exact } };
    in.widen = ng_pick_cast(&in.job, ng_ctx_isas(ctx));
    return in;
}

/* Does element `first` of 4 bits begin a byte? */
static bool begins_byte(const ng_format_spec *f, int64_t first)
{
    return f->store_bits != 4 || first % 2 == 0;
}

const uint32_t *ng_flat_read(const struct flat_in *in, int64_t offset, int64_t first, int64_t n,
                             uint32_t *buffer)
{
    const ng_format_spec *f = in->job.from;
    const int64_t at = offset + first;
    const void *place = in->row && begins_byte(f, at) ? at_element(&in->t, f, at) : NULL;
    uint32_t codes[FLAT_RUN];
    if (f->format == NG_F32 && place && aligned(place))
        return place;
    if (!place)
        gather(in, offset, first, n, codes);
    const void *from = place ? place : codes;
    if (in->widen)
        in->widen->convert(&in->job, from, NULL, n, buffer);
    for (int64_t i = 0; !in->widen && i < n; i++)
        buffer[i] = ng_num_f32_code(ng_num_decode(f, ng_load_code(from, f->store_bits, i)));
    return buffer;
}

/* ---- Out. ---- */

ng_status ng_flat_out(ng_ctx *ctx, const char *call, const char *name, const ng_tensor *t,
                      const char *tensor, const ng_cast *cast, struct ng_extent extent,
                      struct flat_out *out)
{
    *out = (struct flat_out){
        .t = t,
        .row = in_a_row(t),
        .job = { .from = ng_format_info(NG_F32), .to = ng_format_info(t->format), .cast = cast }
    };
    const ng_status s = ng_check_cast(ctx, call, name, cast, out->job.to, t->dim[t->rank - 1],
                                      ng_count(t), &out->words);
    if (s)
        return s;
    if (ng_stream_overlaps(&out->words, t->data, extent))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: %s overlaps the random words of %s", call,
                       tensor, name);
    out->narrow = ng_pick_cast(&out->job, ng_ctx_isas(ctx));
    return NG_OK;
}

uint32_t *ng_flat_place(const struct flat_out *out, int64_t first)
{
    const ng_format_spec *f = out->job.to;
    return f->format == NG_F32 && out->job.cast->overflow != NG_OVERFLOW_SATURATE && out->row &&
                   aligned(out->t->data)
               ? at_element(out->t, f, first)
               : NULL;
}

bool ng_flat_may_fail(const struct flat_out *out)
{
    return out->job.cast->nan_to == NG_NAN_TO_ERROR && !out->job.to->has_nan;
}

bool ng_flat_shares_bytes(const struct flat_out *out)
{
    return !out->row && out->job.to->store_bits == 4;
}

/* By the reference, into codes one after another; the first error. */
static ng_status encode(const struct flat_out *out, const uint32_t *y, const uint32_t *word,
                        int64_t n, void *codes)
{
    const ng_format_spec *f = out->job.to;
    ng_status found = NG_OK;
    for (int64_t i = 0; i < n; i++) {
        uint32_t code = 0;
        const ng_status s = ng_num_encode(f, out->job.cast, ng_num_f32(y[i]), word[i], &code);
        found = found ? found : s;
        ng_store_code(codes, f->store_bits, i, code);
    }
    return found;
}

void ng_flat_write(const struct flat_out *out, int64_t first, int64_t n, const uint32_t *y)
{
    const ng_format_spec *f = out->job.to;
    const bool random = out->job.cast->round == NG_ROUND_STOCHASTIC;
    uint32_t word[FLAT_RUN] = { 0 }, codes[FLAT_RUN];
    if (random)
        ng_stream_words(&out->words, first, n, word);
    if (out->dry) {
        const ng_status s = encode(out, y, word, n, codes);
        *out->found = *out->found ? *out->found : s;
        return;
    }
    void *to =
        out->row && out->narrow && begins_byte(f, first) ? at_element(out->t, f, first) : codes;
    if (out->narrow)
        out->narrow->convert(&out->job, y, random ? word : NULL, n, to);
    else
        (void)encode(out, y, word, n, codes); /* what can fail did so in the dry run */
    if (to == codes)
        scatter(out->t, f, first, n, codes);
}
