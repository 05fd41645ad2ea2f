/* SPDX-License-Identifier: Apache-2.0 */
/* ng_pack and ng_gemm_packed: an operand B in a kernel's panels, packed once. */
#include <stdio.h>
#include <string.h>

#include "../num/num.h"
#include "../profile/profile_internal.h"
#include "gemm_run.h"

struct ng_packed {
    ng_allocator allocator;
    size_t bytes;
    struct gemm_packed panels;
    ng_tensor view; /* B as the front door sees it: its codes, or just their place */
    ng_sparse sparse;
    bool copied; /* the codes are there */
    bool tags_ascend;
    struct ng_packed **slab; /* of a B in slabs, which has nothing else; or NULL */
    int64_t slabs;

    /* What it was packed for. */
    ng_rule rule;
    char profile[64], rule_name[32];
    ng_mode mode;
    ng_format a_format, fp4_format;
    bool fp4_map;
    uint8_t fp4[16];
};

enum {
    ROWS = 64 /* of the A that packing imagines: enough that kernels want the job */
};

/* ---- The job as it will be, but for A and D. ---- */

/* Random words are for the multiply, whose M is not known: here there are always enough. */
static void forget_words(ng_cast *cast)
{
    static const uint32_t never_read = 0;
    if (cast->round == NG_ROUND_STOCHASTIC)
        cast->random = (ng_random){ NG_RANDOM_EXTERNAL, &never_read, INT64_MAX / 8 };
}

static ng_status imagine(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *b,
                         ng_format a_format, struct gemm_call *q)
{
    static const unsigned char nothing = 0; /* pointed at, never read: only B's tags are */
    void *place = (void *)(uintptr_t)&nothing;
    ng_tensor a, d;
    ng_status s = ng_begin(ctx);
    if (s)
        return s;
    if (!b)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "pack: b is NULL");
    if (b->rank != 2)
        return ng_fail(ctx, NG_ERR_SHAPE, "pack: b has rank %u; wanted: a matrix [K, N]",
                       b->rank);
    if (!ng_format_info(a_format))
        return ng_fail(ctx, NG_ERR_FORMAT, "pack: a_format is %d, which is no format",
                       (int)a_format);
    int64_t k = b->dim[0];
    if (b->sparse && b->sparse->kept)
        k = k / b->sparse->kept * b->sparse->group;
    s = ng_tensor_init(&a, a_format, place, 2, (int64_t[]){ ROWS, k });
    if (!s)
        s = ng_tensor_init(&d, NG_F32, place, 2, (int64_t[]){ ROWS, b->dim[1] });
    if (!s && b->scale)
        s = ng_tensor_set_scale(&a, b->scale_format, place, b->block, 1, b->layout);
    if (s)
        return ng_fail(
            ctx, s,
            "pack: b is [%lld, %lld]; wanted: at least 1 each, and %d rows of either "
            "in fewer than 2^63 bytes",
            (long long)b->dim[0], (long long)b->dim[1], ROWS);
    d.data = NULL;
    return ng_gemm_check(ctx, op, &(struct gemm_views){ &a, b, NULL, &d, false, NULL }, false,
                         q);
}

/* ---- A copy of the codes, where the reference may be asked. ---- */

struct layout {
    size_t panels, data, scale, tags, all;
};

static size_t up_64(size_t n)
{
    return (n + 63) / 64 * 64;
}

static int64_t tag_bytes(const ng_tensor *b)
{
    return (b->dim[0] + 3) / 4 * (b->sparse->store == NG_TAG_TRN ? 2 : 1);
}

/* n elements of `size` bytes, `step` of them apart; they become neighbours. */
static void copy_row(unsigned char *to, const unsigned char *from, int64_t step, int64_t n,
                     size_t size)
{
    if (step == 1)
        memcpy(to, from, (size_t)n * size);
    else if (size == 1)
        for (int64_t j = 0; j < n; j++)
            to[j] = from[j * step];
    else if (size == 2)
        for (int64_t j = 0; j < n; j++)
            memcpy(to + 2 * j, from + 2 * j * step, 2);
    else
        for (int64_t j = 0; j < n; j++)
            memcpy(to + 4 * j, from + 4 * j * step, 4);
}

/* A matrix to a packed one of its format and shape. */
static void copy_elements(ng_tensor *to, const ng_tensor *from)
{
    const size_t size = ng_format_info(from->format)->store_bits / 8;
    for (int64_t k = 0; k < from->dim[0]; k++) {
        if (size)
            copy_row((unsigned char *)to->data + k * to->stride[0] * (int64_t)size,
                     (const unsigned char *)from->data + k * from->stride[0] * (int64_t)size,
                     from->stride[1], from->dim[1], size);
        for (int64_t j = 0; !size && j < from->dim[1]; j++)
            ng_tensor_set(to, (int64_t[]){ k, j }, ng_tensor_get(from, (int64_t[]){ k, j }));
    }
}

static void copy_codes(struct ng_packed *p, const ng_tensor *b, unsigned char *base,
                       const struct layout *l)
{
    ng_tensor *v = &p->view;
    copy_elements(v, b);
    if (b->scale) {
        int64_t from[NG_MAX_RANK], to[NG_MAX_RANK];
        ng_scale_strides(b, from);
        ng_scale_strides(v, to);
        for (int64_t x = 0; x < ng_n_blocks(b); x++)
            for (int64_t j = 0; j < b->dim[1]; j++)
                ((uint8_t *)v->scale)[x * to[0] + j * to[1]] =
                    ((const uint8_t *)b->scale)[x * from[0] + j * from[1]];
    }
    if (b->sparse) {
        const int64_t line = tag_bytes(b),
                      stride = b->sparse->tag_stride ? b->sparse->tag_stride : line;
        for (int64_t j = 0; j < b->dim[1]; j++)
            memcpy(base + l->tags + j * line, (const uint8_t *)b->sparse->tags + j * stride,
                   (size_t)line);
        p->sparse = *b->sparse;
        p->sparse.tags = base + l->tags;
        p->sparse.tag_stride = line;
        v->sparse = &p->sparse;
    }
}

static struct layout lay_out(const struct gemm_call *q, const struct gemm_packed *panels,
                             const ng_tensor *b, bool copied)
{
    struct layout l = { .panels = up_64(sizeof(struct ng_packed)) };
    l.data = l.panels;
    if (panels->kernel)
        l.data += panels->panel_bytes * (size_t)ng_gemm_panels(q->job.n, panels->kernel->nr);
    l.scale = l.data + (copied ? up_64(ng_tensor_bytes(b->format, 2, b->dim)) : 0);
    l.tags = l.scale + (copied && b->scale ? up_64((size_t)(ng_n_blocks(b) * b->dim[1])) : 0);
    l.all = l.tags + (b->sparse ? up_64((size_t)(tag_bytes(b) * b->dim[1])) : 0);
    return l;
}

static void remember(struct ng_packed *p, const ng_gemm_op *op, const struct gemm_call *q)
{
    p->rule = *q->job.rule;
    p->rule.name = p->rule_name;
    (void)snprintf(p->profile, sizeof p->profile, "%s", op->profile->name);
    (void)snprintf(p->rule_name, sizeof p->rule_name, "%s", q->job.rule->name);
    p->mode = q->job.mode;
    p->a_format = q->job.a.spec->format;
    p->fp4_map = op->fp4_map != NULL;
    p->fp4_format = op->fp4_format;
    if (op->fp4_map)
        memcpy(p->fp4, op->fp4_map, sizeof p->fp4);
}

ng_status ng_pack(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *b, ng_format a_format,
                  ng_packed **packed)
{
    struct gemm_call q = { .name = "pack" };
    ng_gemm_op copy;
    if (op && op->size == sizeof *op) {
        copy = *op;
        forget_words(&copy.psum);
        forget_words(&copy.out);
        op = &copy;
    }
    ng_status s = imagine(ctx, op, b, a_format, &q);
    if (s)
        return s;
    if (!packed)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "pack: packed is NULL");
    struct gemm_packed panels = { .kernel = ng_walk_bytes(&q.job)
                                                ? ng_pick_gemm(&q.job, ng_ctx_isas(ctx),
                                                               ng_ctx_slow(ctx))
                                                : NULL };
    if (panels.kernel)
        ng_gemm_plan_b(&q, &panels);
    const bool copied = !panels.kernel || b->sparse;
    const struct layout l = lay_out(&q, &panels, b, copied);
    const ng_allocator allocator = ng_ctx_allocator(ctx);
    unsigned char *base = allocator.alloc(allocator.user, 64, l.all);
    if (!base)
        return ng_fail(ctx, NG_ERR_MEMORY, "pack: the allocator has no %zu bytes", l.all);
    struct ng_packed *p = (struct ng_packed *)base;
    *p = (struct ng_packed){ .allocator = allocator, .bytes = l.all, .panels = panels };
    p->copied = copied;
    p->tags_ascend = q.job.b.tags_ascend;
    p->panels.panels = base + l.panels;
    remember(p, op, &q);
    /* without a copy the front door only looks at shape and format */
    (void)ng_tensor_init(&p->view, b->format, base + (copied ? l.data : l.panels), 2, b->dim);
    if (b->scale)
        (void)ng_tensor_set_scale(&p->view, b->scale_format,
                                  base + (copied ? l.scale : l.panels), b->block, b->block_axis,
                                  b->layout);
    if (copied)
        copy_codes(p, b, base, &l);
    if (panels.kernel)
        s = ng_gemm_pack_b(ctx, &q, &p->panels, base + l.panels);
    if (s)
        ng_packed_destroy(p);
    else
        *packed = p;
    return s;
}

/* ---- In slabs. ---- */

/* Rows [first, first + n) of a matrix. */
static ng_tensor slab_of(const ng_tensor *b, int64_t first, int64_t n)
{
    ng_tensor t = *b;
    t.data = (unsigned char *)t.data +
             first * t.stride[0] * ng_format_info(t.format)->store_bits / 8;
    t.dim[0] = n;
    return t;
}

static ng_status pack_slabs(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *b,
                            ng_format a_format, int64_t depth, struct ng_packed *p)
{
    for (int64_t i = 0; i < p->slabs; i++) {
        const int64_t left = b->dim[0] - i * depth;
        const ng_tensor t = slab_of(b, i * depth, left < depth ? left : depth);
        const ng_status s = ng_pack(ctx, op, &t, a_format, &p->slab[i]);
        if (s)
            return s;
        const struct gemm_packed *mine = &p->slab[i]->panels;
        p->bytes += p->slab[i]->bytes;
        if (!i)
            p->panels = *mine;
        else if (mine->kernel != p->panels.kernel || mine->slim != p->panels.slim)
            p->panels.kernel = NULL;
    }
    p->panels.panels = NULL;
    return NG_OK;
}

ng_status ng_pack_slabs(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *b,
                        ng_format a_format, int64_t depth, struct ng_packed **packed)
{
    const int64_t slabs = (b->dim[0] + depth - 1) / depth;
    const size_t head = up_64(sizeof(struct ng_packed)),
                 bytes = head + up_64((size_t)slabs * sizeof(struct ng_packed *));
    const ng_allocator allocator = ng_ctx_allocator(ctx);
    if (!packed)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "pack: packed is NULL");
    unsigned char *base = allocator.alloc(allocator.user, 64, bytes);
    if (!base)
        return ng_fail(ctx, NG_ERR_MEMORY, "pack: the allocator has no %zu bytes", bytes);
    struct ng_packed *p = (struct ng_packed *)base;
    *p = (struct ng_packed){ .allocator = allocator,
                             .bytes = bytes,
                             .slab = (struct ng_packed **)(void *)(base + head),
                             .slabs = slabs };
    memset(p->slab, 0, (size_t)slabs * sizeof *p->slab);
    /* only shape and format are looked at */
    (void)ng_tensor_init(&p->view, b->format, base, 2, b->dim);
    const ng_status s = pack_slabs(ctx, op, b, a_format, depth, p);
    if (s)
        ng_packed_destroy(p);
    else
        *packed = p;
    return s;
}

int64_t ng_packed_slabs(const struct ng_packed *p)
{
    return p ? p->slabs : 0;
}

const struct ng_packed *ng_packed_slab(const struct ng_packed *p, int64_t i)
{
    return p->slab[i];
}

/* ---- From values. ---- */

/* Codes and scales of `like`'s kind for K x N, in the context's memory. */
static ng_status quantize_b(ng_ctx *ctx, const ng_quantize_op *quantize, const ng_tensor *src,
                            const ng_tensor *like, ng_tensor *b, unsigned char **memory)
{
    ng_status s = ng_begin(ctx);
    if (s)
        return s;
    if (!src || !like)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "pack_quantized: %s is NULL",
                       src ? "like" : "src");
    if (src->rank != 2)
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "pack_quantized: src has rank %u; wanted: a matrix [K, N]", src->rank);
    const size_t codes = ng_tensor_bytes(like->format, 2, src->dim);
    if (!codes)
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "pack_quantized: src is %lld x %lld of format %d: not a tensor",
                       (long long)src->dim[0], (long long)src->dim[1], (int)like->format);
    if (like->block < 1)
        return ng_fail(ctx, NG_ERR_SHAPE, "pack_quantized: like.block is 0");
    const size_t blocks = (size_t)((src->dim[0] + like->block - 1) / like->block),
                 room = (codes + 63) / 64 * 64 + blocks * (size_t)src->dim[1];
    const ng_allocator a = ng_ctx_allocator(ctx);
    *memory = a.alloc(a.user, 64, room);
    if (!*memory)
        return ng_fail(ctx, NG_ERR_MEMORY, "pack_quantized: the allocator has no %zu bytes",
                       room);
    s = ng_tensor_init(b, like->format, *memory, 2, src->dim);
    if (!s)
        s = ng_tensor_set_scale(b, like->scale_format, *memory + (codes + 63) / 64 * 64,
                                like->block, 0, like->layout);
    if (s)
        return ng_fail(ctx, s, "pack_quantized: like has no scale format");
    return ng_quantize(ctx, quantize, src, b);
}

ng_status ng_pack_quantized(ng_ctx *ctx, const ng_gemm_op *op, const ng_quantize_op *quantize,
                            const ng_tensor *src, const ng_tensor *like, ng_format a_format,
                            ng_packed **packed)
{
    ng_tensor b = { 0 };
    unsigned char *memory = NULL;
    ng_status s = quantize_b(ctx, quantize, src, like, &b, &memory);
    if (!s)
        s = ng_pack(ctx, op, &b, a_format, packed);
    if (memory) {
        const ng_allocator a = ng_ctx_allocator(ctx);
        a.free(a.user, memory);
    }
    return s;
}

void ng_packed_destroy(ng_packed *p)
{
    if (!p)
        return;
    for (int64_t i = 0; i < p->slabs; i++)
        ng_packed_destroy(p->slab[i]);
    const ng_allocator allocator = p->allocator;
    allocator.free(allocator.user, p);
}

const ng_tensor *ng_packed_view(const ng_packed *p)
{
    return p ? &p->view : NULL;
}

size_t ng_packed_bytes(const ng_packed *p)
{
    return p ? p->bytes : 0;
}

const char *ng_packed_kernel(const ng_packed *p)
{
    if (p && p->slab)
        return ng_packed_kernel(p->slab[0]);
    return !p ? "" : p->panels.kernel ? p->panels.kernel->name : "ref";
}

/* ---- Using it. ---- */

static bool same_rule(const ng_rule *x, const ng_rule *y)
{
    for (int i = 0; i < NG_PARAM_COUNT; i++)
        if (x->set[i].value != y->set[i].value)
            return false;
    return true;
}

static ng_status check_same(ng_ctx *ctx, const struct gemm_call *q, const ng_gemm_op *op,
                            const struct ng_packed *p)
{
    const struct gemm_job *g = &q->job;
    if (g->mode != p->mode || !same_rule(g->rule, &p->rule))
        return ng_fail(ctx, NG_ERR_PROFILE,
                       "gemm: b was packed for rule %s/%s; this call asks for %s/%s%s",
                       p->profile, p->rule_name, op->profile->name, g->rule->name,
                       strcmp(op->profile->name, p->profile) == 0 &&
                               strcmp(g->rule->name, p->rule_name) == 0
                           ? ", with other parameters"
                           : "");
    if (g->a.spec->format != p->a_format)
        return ng_fail(ctx, NG_ERR_PROFILE, "gemm: b was packed for an a of %s; a is %s",
                       ng_format_info(p->a_format)->text, g->a.spec->text);
    if ((op->fp4_map != NULL) != p->fp4_map ||
        (op->fp4_map &&
         (op->fp4_format != p->fp4_format || memcmp(op->fp4_map, p->fp4, sizeof p->fp4) != 0)))
        return ng_fail(ctx, NG_ERR_PROFILE,
                       "gemm: b was packed %s an FP4 table; this call has %s",
                       p->fp4_map ? "with" : "without", op->fp4_map ? "another one" : "none");
    if (g->a.sparse)
        return ng_fail(ctx, NG_ERR_UNSUPPORTED,
                       "gemm: a is sparse; a packed b meets dense operands only");
    return NG_OK;
}

static const char *isa_of(const struct ng_gemm_kernel *kernel, uint32_t *bit)
{
    for (size_t i = 0; ng_isa_at(i).name; i++)
        for (const struct ng_gemm_kernel *const *k = ng_isa_at(i).kernels->gemm; *k; k++)
            if (*k == kernel) {
                *bit = ng_isa_at(i).bit;
                return ng_isa_at(i).name;
            }
    return NULL;
}

ng_status ng_packed_check(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                          const struct ng_packed *b, const ng_tensor *c, const ng_tensor *d,
                          bool writes, struct gemm_call *q)
{
    uint32_t bit = 0;
    ng_status s = ng_begin(ctx);
    if (s)
        return s;
    if (!b)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "gemm: b is NULL");
    if (b->slab)
        return ng_fail(ctx, NG_ERR_PROFILE,
                       "gemm: b was packed by ng_moe_pack_blocks(); wanted: by ng_pack()");
    if (a && a->rank != 2)
        return ng_fail(ctx, NG_ERR_SHAPE, "gemm: a has rank %u; a packed b wants 2", a->rank);
    s = ng_gemm_check(
        ctx, op, &(struct gemm_views){ a, &b->view, c, d, false, &b->tags_ascend }, writes, q);
    if (!s)
        s = check_same(ctx, q, op, b);
    if (s || !b->panels.kernel)
        return s;
    const char *isa = isa_of(b->panels.kernel, &bit);
    if (!(bit & ng_ctx_isa_mask(ctx)))
        return ng_fail(ctx, NG_ERR_PROFILE,
                       "gemm: b was packed for %s, but this context's isa_mask is 0x%x and "
                       "excludes %s",
                       b->panels.kernel->name, ng_ctx_isa_mask(ctx), isa);
    const char *why = b->panels.kernel->refuses(&q->job);
    return why ? ng_fail(ctx, NG_ERR_PROFILE,
                         "gemm: b was packed for %s, which does not take %s",
                         b->panels.kernel->name, why)
               : NG_OK;
}

const struct gemm_packed *ng_packed_panels(const struct ng_packed *p)
{
    return &p->panels;
}

ng_status ng_gemm_packed(ng_ctx *ctx, const ng_gemm_op *op, const ng_tensor *a,
                         const ng_packed *b, const ng_tensor *c, const ng_tensor *d)
{
    struct gemm_call q;
    const ng_status s = ng_packed_check(ctx, op, a, b, c, d, true, &q);
    return s ? s : ng_gemm_run(ctx, &q, &b->panels);
}
