/* SPDX-License-Identifier: Apache-2.0 */
/* ng_dispatch: where tokens go. Integers only. Numerics: docs/numerics.md, section 11.10, items
 * 98 and 99. */
#include <string.h>

#include "../num/num.h"
#include "moe_run.h"

static int64_t local_experts(const ng_dispatch_op *op)
{
    return op->experts / (op->ranks ? op->ranks : 1);
}

static int64_t block_of(const ng_dispatch_op *op)
{
    return op->block ? op->block : 1;
}

/* min(T, ceil(T * k * cf / E)): everything exact. cf = sig * 2^exp. */
static int64_t capacity_of(const ng_dispatch_op *op, int64_t tokens)
{
    if (op->capacity)
        return op->capacity < tokens ? op->capacity : tokens;
    const ng_value cf = ng_num_f32(op->factor);
    if (cf.exp > 0) /* then it is at least 2^24: more than E */
        return tokens;
    /* T * k is below 2^31, so the product below 2^55. */
    const uint64_t entries = (uint64_t)tokens * op->k * cf.sig, experts = op->experts;
    const unsigned shift = (unsigned)-cf.exp;
    const uint64_t whole = shift < 64 ? entries >> shift : 0;
    const bool more = shift >= 64 || whole << shift != entries;
    const uint64_t c = whole / experts + (whole % experts != 0 || more);
    return c < (uint64_t)tokens ? (int64_t)c : tokens;
}

/* What ng_moe_check_dispatch() takes, where no context is there for a message. */
static bool is_good(const ng_dispatch_op *op)
{
    const uint32_t ranks = op->ranks ? op->ranks : 1;
    if (op->size != sizeof *op || !op->experts || op->experts > NG_ROUTE_MAX_EXPERTS ||
        !op->k || op->k > NG_ROUTE_MAX_EXPERTS || op->rank >= ranks || op->experts % ranks)
        return false;
    if (op->mode == NG_DISPATCH_DROPLESS)
        return op->block <= INT32_MAX;
    const bool factor = op->factor && op->factor < 0x7F800000u; /* positive and finite */
    return op->mode == NG_DISPATCH_CAPACITY && op->capacity >= 0 && op->capacity <= INT32_MAX &&
           (op->capacity || factor);
}

/* Of a good op, and entries that an int32 can number. */
static int64_t most_rows(const ng_dispatch_op *op, int64_t tokens)
{
    return op->mode == NG_DISPATCH_CAPACITY
               ? local_experts(op) * capacity_of(op, tokens)
               : tokens * (int64_t)op->k + local_experts(op) * (block_of(op) - 1);
}

int64_t ng_dispatch_rows(const ng_dispatch_op *op, int64_t tokens)
{
    if (!op || !is_good(op) || tokens < 1 || tokens > INT32_MAX ||
        tokens * (int64_t)op->k > INT32_MAX)
        return 0;
    const int64_t rows = most_rows(op, tokens);
    return rows <= INT32_MAX ? rows : 0;
}

/* Entries and rows are numbered by int32. */
static ng_status check_rows(ng_ctx *ctx, const ng_dispatch_op *op, int64_t tokens)
{
    if (tokens < 1 || tokens > INT32_MAX || tokens * (int64_t)op->k > INT32_MAX)
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "dispatch: %lld tokens of %u entries; wanted: at least 1, and entries "
                       "below 2^31",
                       (long long)tokens, op->k);
    const int64_t rows = most_rows(op, tokens);
    if (rows <= INT32_MAX)
        return NG_OK;
    if (op->mode == NG_DISPATCH_DROPLESS)
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "dispatch: block is %lld: %lld tokens of %u entries and %lld experts "
                       "have up to %lld rows; wanted: below 2^31",
                       (long long)block_of(op), (long long)tokens, op->k,
                       (long long)local_experts(op), (long long)rows);
    return ng_fail(ctx, NG_ERR_SHAPE,
                   "dispatch: a capacity of %lld of %lld experts is %lld rows; wanted: below "
                   "2^31",
                   (long long)capacity_of(op, tokens), (long long)local_experts(op),
                   (long long)rows);
}

/* A call. `next`: the row that an expert's next entry takes; [E / R] */
struct dispatch_call {
    const ng_dispatch_op *op;
    const int32_t *indices;
    int64_t entries, tokens, first, local;
    int64_t *start, *next;
};

/* The expert of an entry, counted in this rank; -1: none of it. */
static int64_t expert_at(const struct dispatch_call *c, int64_t entry)
{
    const int64_t e = c->indices[entry] - c->first;
    return c->indices[entry] >= 0 && e >= 0 && e < c->local ? e : -1;
}

static void lay_out_rows(const struct dispatch_call *c)
{
    const ng_dispatch_op *op = c->op;
    const int64_t block = block_of(op), capacity = capacity_of(op, c->tokens);
    for (int64_t i = 0; i < c->entries; i++) {
        const int64_t e = expert_at(c, i);
        if (e >= 0)
            c->next[e]++; /* entries, until the next loop */
    }
    int64_t row = 0;
    for (int64_t e = 0; e < c->local; e++) {
        const int64_t n = c->next[e];
        c->start[e] = c->next[e] = row;
        row += op->mode == NG_DISPATCH_CAPACITY ? capacity : (n + block - 1) / block * block;
    }
    c->start[c->local] = row;
}

static void fill(const struct dispatch_call *c, ng_dispatch_plan *p)
{
    const int64_t rows = c->start[c->local];
    p->rows = rows;
    p->dropped = 0;
    for (int64_t r = 0; p->row && r < rows; r++)
        p->row[r] = -1;
    for (int64_t i = 0; i < c->entries; i++) {
        const int64_t e = expert_at(c, i);
        const bool fits = e >= 0 && c->next[e] < c->start[e + 1];
        if (p->slot)
            p->slot[i] = fits ? (int32_t)c->next[e] : -1;
        if (fits && p->row)
            p->row[c->next[e]] = (int32_t)i;
        if (fits)
            c->next[e]++;
        else if (e >= 0)
            p->dropped++;
    }
    if (p->offset)
        memcpy(p->offset, c->start, (size_t)(c->local + 1) * sizeof *p->offset);
    if (p->block_expert && c->op->mode == NG_DISPATCH_DROPLESS)
        for (int64_t e = 0, b = 0; e < c->local; e++)
            for (; b * block_of(c->op) < c->start[e + 1]; b++)
                p->block_expert[b] = (int32_t)e;
}

static ng_status check_apart(ng_ctx *ctx, const struct dispatch_call *c,
                             const ng_dispatch_plan *p)
{
    const int64_t rows = ng_dispatch_rows(c->op, c->tokens), word = (int64_t)sizeof(int32_t);
    const struct moe_bytes bytes[] = {
        ng_moe_words("indices", c->indices, c->entries * word, false),
        ng_moe_words("plan.slot", p->slot, c->entries * word, true),
        ng_moe_words("plan.row", p->row, rows * word, true),
        ng_moe_words("plan.offset", p->offset, (c->local + 1) * (int64_t)sizeof *p->offset,
                     true),
        ng_moe_words("plan.block_expert", p->block_expert, rows / block_of(c->op) * word, true),
    };
    return ng_moe_apart(ctx, "dispatch", bytes, sizeof bytes / sizeof bytes[0]);
}

static ng_status check_entries(ng_ctx *ctx, const struct dispatch_call *c)
{
    for (int64_t i = 0; i < c->entries; i++)
        if (c->indices[i] < -1 || c->indices[i] >= (int64_t)c->op->experts)
            return ng_fail(ctx, NG_ERR_ARGUMENT,
                           "dispatch: entry %lld of token %lld is expert %d; wanted: -1 to %u",
                           (long long)(i % c->op->k), (long long)(i / c->op->k), c->indices[i],
                           c->op->experts - 1);
    return NG_OK;
}

ng_status ng_dispatch(ng_ctx *ctx, const ng_dispatch_op *op, const int32_t *indices,
                      int64_t tokens, ng_dispatch_plan *plan)
{
    ng_status s = ng_begin(ctx);
    if (s)
        return s;
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "dispatch: op is NULL or op.size is not %zu",
                       sizeof *op);
    if (!indices || !plan)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "dispatch: %s is NULL",
                       indices ? "plan" : "indices");
    s = ng_moe_check_dispatch(ctx, "dispatch", op);
    if (!s)
        s = check_rows(ctx, op, tokens);
    if (s)
        return s;
    struct dispatch_call c = { .op = op,
                               .indices = indices,
                               .entries = tokens * op->k,
                               .tokens = tokens,
                               .local = local_experts(op) };
    c.first = c.local * op->rank;
    s = check_entries(ctx, &c);
    if (!s)
        s = check_apart(ctx, &c, plan);
    if (s)
        return s;
    void *memory;
    s = ng_arena_claim(ctx, (size_t)(2 * c.local + 1) * sizeof *c.next, &memory);
    if (s)
        return s;
    c.start = memory;
    c.next = c.start + c.local + 1;
    memset(c.next, 0, (size_t)c.local * sizeof *c.next);
    lay_out_rows(&c);
    fill(&c, plan);
    return NG_OK;
}
