/* SPDX-License-Identifier: Apache-2.0 */
/* Tags of sparse operands: their checks, and moves between stores. docs/numerics.md, sections
 * 4.3 and 11.4. */
#include "../internal.h"
#include "ng/sparse.h"

ng_status ng_check_sparse(ng_ctx *ctx, const char *call, const char *name, const ng_sparse *sp)
{
    if (sp->group < 1 || sp->group > 16 || sp->kept < 1 || sp->kept > sp->group || !sp->tags)
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "%s: %s is sparse %u:%u%s; wanted: 1 <= kept <= group <= 16, with tags",
                       call, name, sp->kept, sp->group, sp->tags ? "" : " without tags");
    if ((unsigned)sp->store > NG_TAG_NV24 || (sp->store == NG_TAG_NV24 && sp->group > 4))
        return ng_fail(ctx, NG_ERR_LAYOUT,
                       "%s: tags of %s have store %d for groups of %u; nv24 holds groups of 4",
                       call, name, (int)sp->store, sp->group);
    return NG_OK;
}

ng_status ng_check_tag_stride(ng_ctx *ctx, const char *call, const char *name,
                              const ng_sparse *sp, int64_t lines, int64_t slots)
{
    const int64_t packed = (int64_t)ng_tags_bytes(sp->store, slots),
                  stride = ng_tag_line_bytes(sp, slots);
    int64_t reach;
    if (stride < packed || __builtin_mul_overflow(stride, lines, &reach))
        return ng_fail(
            ctx, NG_ERR_LAYOUT,
            "%s: tag_stride of %s is %lld bytes; a line takes %lld, and %lld lines must "
            "not overflow",
            call, name, (long long)stride, (long long)packed, (long long)lines);
    return NG_OK;
}

/* The first of a line's tags, from slot `from` on, which begins a group, that points past its
 * group, and so would read past the dense operand; -1: none does. */
static int64_t check_line(const ng_sparse *sp, const uint8_t *tags, int64_t from, int64_t slots,
                          bool *ascend)
{
    uint32_t before = 0;
    for (int64_t s = from; s < slots; s++) {
        const uint32_t tag = ng_tag_at(sp->store, tags, s);
        if (tag >= sp->group)
            return s;
        if (s % sp->kept && tag <= before)
            *ascend = false;
        before = tag;
    }
    return -1;
}

enum {
    TAG_PAST = 1, /* one points past its group */
    TAG_BACK = 2  /* a group's second is not above its first */
};

/* Of bytes with whole groups of two. Sums of fields that stay within them: what carries into a
 * field's spare bit, or does not, is the answer for all bytes at once. */
static inline int faults_of_twos(const bool trn, uint32_t group, const uint8_t *tags, int64_t n)
{
    const uint8_t above = (uint8_t)(trn ? 16 - group : (4 - group) * 0x11),
                  firsts = trn ? 0x0F : 0x33, less = trn ? 0x7F : 0x77;
    uint8_t past = 0, rises = 0xFF;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t first = tags[i] & firsts, second = tags[i] >> (trn ? 4 : 2) & firsts;
        past |= (uint8_t)(first + above) | (uint8_t)(second + above);
        rises &= (uint8_t)(less + second - first);
    }
    return (past & (trn ? 0x10 : 0x44) ? TAG_PAST : 0) |
           (~rises & (trn ? 0x80 : 0x88) ? TAG_BACK : 0);
}

/* Of groups with two values, the usual ones: slots of whole bytes, which have been looked at;
 * none where a tag points past its group. */
static int64_t check_twos(const ng_sparse *sp, const uint8_t *tags, int64_t slots, bool *ascend)
{
    const bool trn = sp->store == NG_TAG_TRN;
    const int64_t n = slots / (trn ? 2 : 4);
    const int faults = trn ? faults_of_twos(true, sp->group, tags, n)
                           : faults_of_twos(false, sp->group, tags, n);
    if (faults & TAG_PAST)
        return 0;
    if (faults & TAG_BACK)
        *ascend = false;
    return n * (trn ? 2 : 4);
}

ng_status ng_check_tags(ng_ctx *ctx, const char *call, const char *name, const ng_sparse *sp,
                        int64_t lines, int64_t slots, bool *ascend)
{
    const int64_t stride = ng_tag_line_bytes(sp, slots);
    *ascend = true;
    for (int64_t line = 0; line < lines; line++) {
        const uint8_t *p = (const uint8_t *)sp->tags + line * stride;
        const int64_t from = sp->kept == 2 ? check_twos(sp, p, slots, ascend) : 0,
                      past = check_line(sp, p, from, slots, ascend);
        if (past >= 0)
            return ng_fail(ctx, NG_ERR_ARGUMENT,
                           "%s: tag %lld of line %lld of %s is %u; a group has %u", call,
                           (long long)past, (long long)line, name,
                           ng_tag_at(sp->store, p, past), sp->group);
    }
    return NG_OK;
}

/* All that the two calls below ask of the tags that they read. */
static ng_status check_all(ng_ctx *ctx, const char *call, const ng_sparse *sp, int64_t lines,
                           int64_t slots, bool *ascend)
{
    ng_status s = ng_begin(ctx);
    if (s)
        return s;
    if (!sp)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: sparse is NULL", call);
    s = ng_check_sparse(ctx, call, "sparse", sp);
    if (s)
        return s;
    if (lines < 1 || !ng_tags_bytes(sp->store, slots) || slots % sp->kept)
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "%s: %lld lines of %lld slots; wanted: at least one line, and a "
                       "multiple of kept = %u slots up to 2^47",
                       call, (long long)lines, (long long)slots, sp->kept);
    s = ng_check_tag_stride(ctx, call, "sparse", sp, lines, slots);
    return s ? s : ng_check_tags(ctx, call, "sparse", sp, lines, slots, ascend);
}

ng_status ng_tags_check(ng_ctx *ctx, const ng_sparse *sparse, int64_t lines, int64_t slots,
                        bool *ascend)
{
    bool found = false;
    const ng_status s = check_all(ctx, "tags_check", sparse, lines, slots, &found);
    if (!s && ascend)
        *ascend = found;
    return s;
}

ng_status ng_tags_move(ng_ctx *ctx, const ng_sparse *src, ng_tag_store to, void *dst,
                       int64_t dst_stride, int64_t lines, int64_t slots)
{
    bool ascend;
    ng_status s = check_all(ctx, "tags_move", src, lines, slots, &ascend);
    if (s)
        return s;
    const ng_sparse out = { .kept = src->kept,
                            .group = src->group,
                            .store = to,
                            .tags = dst,
                            .tag_stride = dst_stride };
    s = ng_check_sparse(ctx, "tags_move", "dst", &out);
    if (!s)
        s = ng_check_tag_stride(ctx, "tags_move", "dst", &out, lines, slots);
    if (s)
        return s;
    const int64_t from_line = ng_tag_line_bytes(src, slots),
                  to_line = ng_tag_line_bytes(&out, slots), last = (slots + 3) / 4 * 4;
    if (ng_overlap(src->tags, (struct ng_extent){ 0, lines * from_line }, dst,
                   (struct ng_extent){ 0, lines * to_line }))
        return ng_fail(ctx, NG_ERR_LAYOUT, "tags_move: dst overlaps src");
    for (int64_t line = 0; line < lines; line++) {
        const unsigned char *p = (const unsigned char *)src->tags + line * from_line;
        unsigned char *o = (unsigned char *)dst + line * to_line;
        for (int64_t i = 0; i < last; i++)
            ng_tag_put(to, o, i, i < slots ? ng_tag_at(src->store, p, i) : 0);
    }
    return NG_OK;
}
