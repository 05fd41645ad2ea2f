/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of structured sparsity against the reference: every function of the contract on
 * stretches of all lengths, each operand between unreadable pages, then the public calls.
 */
#include "ngc.h"

#include <stdio.h>
#include <string.h>

#include "../../src/internal.h"
#include "../../src/ref/ref.h"
#include "ng/sparse.h"

enum {
    MAX_GROUPS = 200,
    N = 4,
    M = 2,
    DENSE = MAX_GROUPS * N * 2, /* bytes, of 16-bit codes */
    ROOM = 8192
};

/* One case: a kernel, a format, a store. */
struct kase {
    const struct ng_isa *isa;
    const struct ng_sparse_kernel *kernel;
    struct sparse_job job;
    char name[120];
};

/* What stays the same between rounds; each block lies between unreadable pages. */
static struct {
    struct ngc_mem src, slots, tags, dense;
} mem;

struct round {
    const struct kase *kase;
    struct ngc_rng rng;
    int64_t groups;
    size_t dense_bytes, slot_bytes, tag_bytes;
    /* The reference's results. */
    unsigned char pruned[DENSE], slots[DENSE / 2], tags[MAX_GROUPS];
    bool holds, distinct; /* of the source; of the tags that expand() would get */
    const char *pass, *wrong;
    bool took;
};

static bool open_memory(void)
{
    return ngc_mem_open(&mem.src, ROOM) && ngc_mem_open(&mem.slots, ROOM) &&
           ngc_mem_open(&mem.tags, ROOM) && ngc_mem_open(&mem.dense, ROOM);
}

static uint32_t code_bits(const struct round *r)
{
    return r->kase->job.spec->store_bits;
}

/* ---- Drawing. ---- */

static void draw_shape(struct round *r)
{
    static const int64_t seams[] = { 1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129 };
    r->groups = ngc_one_in(&r->rng, 2)
                    ? seams[ngc_below(&r->rng, (uint32_t)(sizeof seams / sizeof seams[0]))]
                    : 1 + ngc_below(&r->rng, MAX_GROUPS);
    const size_t element = code_bits(r) / 8, slots = (size_t)r->groups * M;
    r->dense_bytes = (size_t)r->groups * N * element;
    r->slot_bytes = slots * element;
    r->tag_bytes = r->kase->job.store == NG_TAG_TRN ? slots / 2 : (slots + 3) / 4;
}

/* Codes whose order is easily wrong: neighbours, both signs, zeros, Inf, NaN of all payloads.
 */
static uint32_t corner(struct ngc_rng *rng, const ng_format_spec *f)
{
    const uint32_t top = f->kind == NG_KIND_INT ? 0x7F : (1u << (f->bits - 1)) - 1,
                   sign = ngc_one_in(rng, 2) ? 1u << (f->bits - 1) : 0;
    switch (ngc_below(rng, 6)) {
    case 0: return sign;
    case 1: return (f->max_code + ngc_below(rng, 4)) | sign; /* maximum, Inf, first NaN */
    case 2: return top | sign;
    case 3: return (1 + ngc_below(rng, 2)) | sign;
    case 4: return (top / 2 + ngc_below(rng, 3)) | sign;
    default: return ngc_any_code(rng, f);
    }
}

static void draw_codes(struct round *r)
{
    const ng_format_spec *f = r->kase->job.spec;
    const uint32_t mood = ngc_below(&r->rng, 4), zeros = ngc_below(&r->rng, 4);
    uint32_t few[3];
    for (int i = 0; i < 3; i++)
        few[i] = ngc_one_in(&r->rng, 2) ? corner(&r->rng, f) : ngc_any_code(&r->rng, f);
    for (int64_t i = 0; i < r->groups * N; i++) {
        uint32_t code = mood == 0   ? few[ngc_below(&r->rng, 3)]
                        : mood == 1 ? corner(&r->rng, f)
                                    : ngc_any_code(&r->rng, f);
        if (mood == 3) /* a neighbour of the first */
            code = few[0] + ngc_below(&r->rng, 3) - 1;
        if (zeros && ngc_one_in(&r->rng, zeros + 1))
            code = ngc_one_in(&r->rng, 2) ? 0 : 1u << (f->bits - 1);
        if (f->bits == 6 && ngc_one_in(&r->rng, 4))
            code |= 0xC0; /* bits that the format has not */
        ngc_store(mem.src.data, f->store_bits, i, code);
    }
}

/* ---- The reference. ---- */

static void reference(struct round *r)
{
    const struct sparse_job *j = &r->kase->job;
    const uint32_t bits = code_bits(r);
    memset(r->tags, 0, sizeof r->tags);
    r->holds = true;
    for (int64_t g = 0; g < r->groups; g++) {
        uint32_t code[N], slot = 0;
        for (int i = 0; i < N; i++)
            code[i] = ngc_load(mem.src.data, bits, g * N + i);
        const uint32_t keep = ng_ref_sparse_keep(j->spec, code, M, N),
                       set = ng_ref_sparse_nonzero(j->spec, code, N);
        r->holds = r->holds && __builtin_popcount(set) <= M;
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t stays = (keep & set) >> i & 1 ? code[i] : 0;
            ngc_store(r->pruned, bits, g * N + i, stays);
            if (!(keep >> i & 1))
                continue;
            ngc_store(r->slots, bits, g * M + slot, stays);
            ng_tag_put(j->store, r->tags, g * M + slot++, i);
        }
    }
}

/* Tags that repeat, descend or point past the group: some only, somewhere. */
static void spoil_tags(struct round *r)
{
    const struct sparse_job *j = &r->kase->job;
    if (ngc_one_in(&r->rng, 2)) {
        const int64_t s = ngc_below(&r->rng, (uint32_t)(r->groups * M));
        ng_tag_put(j->store, mem.tags.data, s,
                   ngc_below(&r->rng, j->store == NG_TAG_TRN ? 16 : 4));
    } else if (ngc_one_in(&r->rng, 2)) {
        for (int64_t g = 0; g < r->groups; g++) {
            const uint32_t first = ngc_below(&r->rng, N), other = 1 + ngc_below(&r->rng, N - 1);
            ng_tag_put(j->store, mem.tags.data, g * M, first);
            ng_tag_put(j->store, mem.tags.data, g * M + 1, (first + other) % N);
        }
    }
    r->distinct = true;
    for (int64_t g = 0; g < r->groups; g++) {
        const uint32_t a = ng_tag_at(j->store, mem.tags.data, g * M),
                       b = ng_tag_at(j->store, mem.tags.data, g * M + 1);
        r->distinct = r->distinct && a < N && b < N && a != b;
    }
}

/* Is a block what it should be, and nothing beside it changed? */
static bool is(const struct ngc_mem *m, const unsigned char *want, size_t bytes)
{
    for (size_t i = 1; i <= m->before; i++)
        if (m->data[-(ptrdiff_t)i] != 0xAA)
            return false;
    for (size_t i = 0; i < m->after; i++)
        if (m->data[bytes + i] != 0xAA)
            return false;
    return memcmp(m->data, want, bytes) == 0;
}

static bool place(struct round *r, struct ngc_mem *m, size_t bytes)
{
    return ngc_mem_place(m, bytes, 1, !ngc_one_in(&r->rng, 4));
}

static void want(struct round *r, bool ok, const char *wrong)
{
    if (!ok && !r->wrong)
        r->wrong = wrong;
}

/* ---- Passes: what runs under ngc_catch(). ---- */

static void run_kernel(void *arg)
{
    struct round *r = arg;
    const struct kase *c = r->kase;
    const struct ng_sparse_kernel *k = c->kernel;
    r->pass = "holds";
    want(r, k->holds(&c->job, mem.src.data, r->groups) == r->holds, "says the contrary");
    if (r->wrong)
        return;
    r->pass = "prune";
    k->prune(&c->job, mem.src.data, r->groups, mem.dense.data);
    want(r, is(&mem.dense, r->pruned, r->dense_bytes), "differs");
    if (r->wrong)
        return;
    r->pass = "compress";
    k->compress(&c->job, mem.src.data, r->groups, mem.slots.data, mem.tags.data);
    want(r, is(&mem.slots, r->slots, r->slot_bytes), "slots differ");
    want(r, is(&mem.tags, r->tags, r->tag_bytes), "tags differ");
    want(r, ngc_mem_kept(&mem.src), "wrote to its source");
}

static void run_expand(void *arg)
{
    struct round *r = arg;
    const struct kase *c = r->kase;
    static unsigned char back[DENSE];
    r->pass = "distinct";
    spoil_tags(r);
    ngc_mem_keep(&mem.tags);
    ngc_mem_keep(&mem.slots);
    want(r, c->kernel->distinct(&c->job, mem.tags.data, r->groups) == r->distinct,
         "says the contrary");
    if (!r->distinct || r->wrong)
        return;
    memset(back, 0, sizeof back);
    for (int64_t s = 0; s < r->groups * M; s++)
        ngc_store(back, code_bits(r), s / M * N + ng_tag_at(c->job.store, mem.tags.data, s),
                  ngc_load(mem.slots.data, code_bits(r), s));
    r->pass = "expand";
    memset(mem.dense.data, 0x55, r->dense_bytes);
    c->kernel->expand(&c->job, mem.slots.data, mem.tags.data, r->groups, mem.dense.data);
    want(r, is(&mem.dense, back, r->dense_bytes), "differs");
    want(r, ngc_mem_kept(&mem.tags) && ngc_mem_kept(&mem.slots), "wrote to its source");
}

static void run_in_place(void *arg)
{
    struct round *r = arg;
    r->pass = "prune in place";
    r->kase->kernel->prune(&r->kase->job, mem.src.data, r->groups, mem.src.data);
    want(r, is(&mem.src, r->pruned, r->dense_bytes), "differs");
}

/* Of the calls only that they choose the kernel and hand it the right places. */
static void run_public(void *arg)
{
    struct round *r = arg;
    const struct kase *c = r->kase;
    ng_ctx *ctx;
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = c->isa->bit };
    const int64_t dim = r->groups * N, slots = r->groups * M;
    const ng_sparse_op op = {
        .size = sizeof op, .kept = M, .group = N, .store = c->job.store, .prune = true
    };
    const size_t line = ng_tags_bytes(c->job.store, slots);
    ng_tensor src, dst;
    r->pass = "ng_compress";
    (void)ng_tensor_init(&src, c->job.spec->format, mem.src.data, 1, &dim);
    (void)ng_tensor_init(&dst, c->job.spec->format, mem.slots.data, 1, &slots);
    if (!ngc_mem_place(&mem.tags, line, 1, true) || ng_ctx_create(&config, &ctx)) {
        want(r, false, "no context");
        return;
    }
    want(r, ng_compress(ctx, &op, &src, &dst, mem.tags.data) == NG_OK, "fails");
    r->took = strcmp(ng_ctx_kernel(ctx), c->kernel->name) == 0;
    want(r, is(&mem.slots, r->slots, r->slot_bytes), "slots differ");
    want(r, is(&mem.tags, r->tags, line), "tags differ");
    ng_ctx_destroy(ctx);
}

/* ---- One round, and the walk. ---- */

static bool judge(const struct ngc *run, struct round *r, uint32_t round,
                  void (*body)(void *arg))
{
    r->wrong = NULL;
    const int signal = ngc_catch(body, r);
    if (!signal && !r->wrong)
        return true;
    printf("FAIL %s: %lld groups, round %u, %s: %s\n     again: ng-check --seed %llu --rounds "
           "%u '%s'\n",
           r->kase->name, (long long)r->groups, round, r->pass,
           signal ? ngc_signal_text(signal) : r->wrong, (unsigned long long)run->seed,
           run->rounds, r->kase->name);
    return false;
}

static bool run_round(const struct ngc *run, struct round *r, uint32_t round)
{
    draw_shape(r);
    if (!place(r, &mem.src, r->dense_bytes) || !place(r, &mem.dense, r->dense_bytes) ||
        !place(r, &mem.slots, r->slot_bytes) || !place(r, &mem.tags, r->tag_bytes))
        return false;
    draw_codes(r);
    if (ngc_one_in(&r->rng, 3)) { /* one that holds, or nearly */
        reference(r);
        const uint32_t spared = ngc_below(&r->rng, (uint32_t)(r->groups * N)),
                       code = ngc_load(mem.src.data, code_bits(r), spared);
        memcpy(mem.src.data, r->pruned, r->dense_bytes);
        if (ngc_one_in(&r->rng, 2))
            ngc_store(mem.src.data, code_bits(r), spared, code);
    }
    reference(r);
    ngc_mem_keep(&mem.src);
    return judge(run, r, round, run_kernel) && judge(run, r, round, run_expand) &&
           judge(run, r, round, run_public) && judge(run, r, round, run_in_place);
}

static void run_case(struct ngc *run, const struct kase *c, bool *took)
{
    static struct round r;
    for (uint32_t i = 0; i < run->rounds; i++) {
        r = (struct round){ .kase = c,
                            .rng = { ngc_hash(c->name, run->seed) + i * UINT64_C(0x51ED27) } };
        run->rounds_run++;
        if (!run_round(run, &r, i)) {
            run->failed++;
            return;
        }
        *took = *took || r.took;
    }
}

static void walk_kernel(struct ngc *run, const struct ng_isa *isa,
                        const struct ng_sparse_kernel *kernel)
{
    const struct ngc_walk walk = ngc_begin_walk(run);
    bool took = false;
    for (size_t i = 0; ng_format_at(i); i++)
        for (int store = NG_TAG_TRN; store <= NG_TAG_NV24; store++) {
            struct kase c = { .isa = isa,
                              .kernel = kernel,
                              .job = { .spec = ng_format_at(i),
                                       .kept = M,
                                       .group = N,
                                       .store = (ng_tag_store)store,
                                       .consecutive = true } };
            (void)snprintf(c.name, sizeof c.name, "%s/%s/%s", kernel->name, c.job.spec->text,
                           store == NG_TAG_TRN ? "trn" : "nv24");
            if (!kernel->refuses(&c.job) && ngc_begin_case(run, c.name))
                run_case(run, &c, &took);
        }
    if (ngc_walked(run, &walk))
        printf("%s: %u cases\n", kernel->name, ngc_walked(run, &walk));
    ngc_end_walk(run, &walk, kernel->name, took);
}

void ngc_check_sparse(struct ngc *run)
{
    if (!open_memory()) {
        printf("FAIL: no memory for sparse operands\n");
        run->failed++;
        return;
    }
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        const struct ng_sparse_kernel *const *k = isa.kernels->sparse;
        for (; k && *k; k++)
            if (ngc_begin_kernel(run, &isa, (*k)->name))
                walk_kernel(run, &isa, *k);
    }
}
