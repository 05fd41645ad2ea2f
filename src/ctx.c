/* SPDX-License-Identifier: Apache-2.0 */
/* The context: configuration, one message, one arena. Nothing here can change a result bit. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "dispatch.h"
#include "internal.h"

struct ng_ctx {
    ng_ctx_config config;
    char message[512];
    const char *kernel;
    ng_tiles tiles;
    ng_kernel_watch watch;
    const char *stage; /* of the running call, or NULL */
    uint32_t isas;     /* of this CPU */
    uint32_t slow;     /* of those: ng_isa_slow() */
    bool second;       /* ng_cpu_asks_second() */
    void *arena;       /* ours; NULL while `scratch` is the caller's */
    size_t arena_bytes;
    struct piece {
        void *data;
        size_t bytes;
    } piece[NG_PIECES]; /* of the last call that asked for some */
};

#ifdef MADV_HUGEPAGE
enum {
    PAGE = 4096,
    HUGE_PAGE = 2 << 20
};

/*
 * Packed weights and scratch are written once from end to end: by pages of 4 KiB that costs
 * more in faults than the packing does. And what the CPU fetches by itself ends at every page:
 * a few rows of A by weights of 2 MiB (a small expert's) that come from memory are 1.15
 * to 1.5 times as fast. A huge page begins at a multiple of its size; what is behind
 * the last whole one has small ones. madvise(2): where it is refused nothing but time is lost.
 */
static void *huge_alloc(size_t bytes)
{
    void *p = NULL;
    if (bytes > SIZE_MAX - PAGE || posix_memalign(&p, HUGE_PAGE, bytes))
        return NULL;
    (void)madvise(p, (bytes + PAGE - 1) / PAGE * PAGE, MADV_HUGEPAGE);
    return p;
}
#endif

static void *default_alloc(void *user, size_t align, size_t bytes)
{
    (void)user;
#ifdef MADV_HUGEPAGE
    if (bytes >= HUGE_PAGE)
        return huge_alloc(bytes);
#endif
    const size_t rounded = (bytes + align - 1) / align * align;
    return rounded < bytes ? NULL : aligned_alloc(align, rounded);
}

static void default_free(void *user, void *ptr)
{
    (void)user;
    free(ptr);
}

static ng_status check_config(const ng_ctx_config *c)
{
    if (c->size != sizeof *c)
        return NG_ERR_ARGUMENT;
    if (!c->allocator.alloc != !c->allocator.free)
        return NG_ERR_ARGUMENT;
    if (c->executor.parallel_for && !c->executor.workers)
        return NG_ERR_ARGUMENT;
    if ((uintptr_t)c->scratch % 64)
        return NG_ERR_ARGUMENT;
    return NG_OK;
}

ng_status ng_ctx_create(const ng_ctx_config *config, ng_ctx **out)
{
    ng_ctx_config c = { .size = sizeof c };
    if (!out)
        return NG_ERR_ARGUMENT;
    if (config) {
        const ng_status s = check_config(config);
        if (s)
            return s;
        c = *config;
    }
    if (!c.allocator.alloc)
        c.allocator = (ng_allocator){ .alloc = default_alloc, .free = default_free };
    ng_ctx *ctx = c.allocator.alloc(c.allocator.user, 64, sizeof *ctx);
    if (!ctx)
        return NG_ERR_MEMORY;
    *ctx = (ng_ctx){ .config = c, .kernel = "" };
    ctx->isas = ng_isa_working(ng_ctx_isa_mask(ctx));
    ctx->slow = ng_isa_slow(ng_ctx_isas(ctx));
    ctx->second = ng_cpu_asks_second();
    *out = ctx;
    return NG_OK;
}

void ng_ctx_destroy(ng_ctx *ctx)
{
    if (!ctx)
        return;
    const ng_allocator a = ctx->config.allocator;
    if (ctx->arena)
        a.free(a.user, ctx->arena);
    ng_pieces_keep(ctx, 0);
    a.free(a.user, ctx);
}

const char *ng_ctx_message(const ng_ctx *ctx)
{
    return ctx ? ctx->message : "the context is NULL";
}

const char *ng_ctx_kernel(const ng_ctx *ctx)
{
    return ctx ? ctx->kernel : "";
}

ng_tiles ng_ctx_tiles(const ng_ctx *ctx)
{
    return ctx ? ctx->tiles : (ng_tiles){ 0 };
}

void ng_ctx_note_kernel(ng_ctx *ctx, const char *name, ng_tiles tiles)
{
    ctx->kernel = name;
    ctx->tiles = tiles;
}

void ng_ctx_watch(ng_ctx *ctx, const ng_kernel_watch *watch)
{
    if (ctx)
        ctx->watch = watch ? *watch : (ng_kernel_watch){ NULL, NULL };
}

bool ng_ctx_watched(const ng_ctx *ctx)
{
    return ctx->watch.choice != NULL;
}

void ng_ctx_stage(ng_ctx *ctx, const char *stage)
{
    ctx->stage = stage;
}

void ng_ctx_tell(ng_ctx *ctx, const ng_kernel_choice *choice)
{
    ng_kernel_choice named = *choice;
    if (ctx->stage)
        named.stage = ctx->stage;
    ctx->watch.choice(ctx->watch.user, &named);
}

ng_status ng_begin(ng_ctx *ctx)
{
    if (!ctx)
        return NG_ERR_ARGUMENT;
    ctx->message[0] = '\0';
    return NG_OK;
}

ng_status ng_fail(ng_ctx *ctx, ng_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(ctx->message, sizeof ctx->message, format, args);
    va_end(args);
    return status;
}

uint32_t ng_ctx_isa_mask(const ng_ctx *ctx)
{
    return ctx->config.isa_mask ? ctx->config.isa_mask : UINT32_MAX;
}

uint32_t ng_ctx_isas(const ng_ctx *ctx)
{
    return ctx->isas & ng_ctx_isa_mask(ctx);
}

uint32_t ng_ctx_slow(const ng_ctx *ctx)
{
    return ctx->slow;
}

bool ng_ctx_asks_second(const ng_ctx *ctx)
{
    return ctx->second;
}

bool ng_arena_may_hold(const ng_ctx *ctx, size_t bytes)
{
    return !ctx->config.scratch || bytes <= ctx->config.scratch_bytes;
}

ng_status ng_arena_claim(ng_ctx *ctx, size_t bytes, void **block)
{
    const ng_ctx_config *c = &ctx->config;
    if (c->scratch) {
        if (bytes > c->scratch_bytes)
            return ng_fail(ctx, NG_ERR_SCRATCH, "scratch is %zu bytes but %zu are wanted",
                           c->scratch_bytes, bytes);
        *block = c->scratch;
        return NG_OK;
    }
    if (bytes > ctx->arena_bytes) {
        void *fresh = c->allocator.alloc(c->allocator.user, 64, bytes);
        if (!fresh)
            return ng_fail(ctx, NG_ERR_MEMORY, "the allocator has no %zu bytes", bytes);
        if (ctx->arena)
            c->allocator.free(c->allocator.user, ctx->arena);
        ctx->arena = fresh;
        ctx->arena_bytes = bytes;
    }
    *block = ctx->arena;
    return NG_OK;
}

static void give_piece_back(ng_ctx *ctx, int i)
{
    struct piece *p = &ctx->piece[i];
    const ng_allocator *a = &ctx->config.allocator;
    if (p->data)
        a->free(a->user, p->data);
    *p = (struct piece){ NULL, 0 };
}

void *ng_piece(ng_ctx *ctx, int i, size_t bytes)
{
    struct piece *p = &ctx->piece[i];
    const ng_allocator *a = &ctx->config.allocator;
    if (p->bytes >= bytes && p->bytes / 2 <= bytes)
        return p->data;
    give_piece_back(ctx, i);
    void *data = a->alloc(a->user, 64, bytes);
    if (!data) { /* what is kept for later pieces may be what is short */
        ng_pieces_keep(ctx, i);
        data = a->alloc(a->user, 64, bytes);
    }
    if (data)
        *p = (struct piece){ data, bytes };
    return data;
}

void ng_pieces_keep(ng_ctx *ctx, int n)
{
    for (int i = n; i < NG_PIECES; i++)
        give_piece_back(ctx, i);
}

ng_allocator ng_ctx_allocator(const ng_ctx *ctx)
{
    return ctx->config.allocator;
}

size_t ng_workers(const ng_ctx *ctx)
{
    const ng_executor *e = &ctx->config.executor;
    return e->parallel_for ? e->workers : 1;
}

void ng_parallel(ng_ctx *ctx, size_t n, void (*body)(void *arg, size_t i, size_t worker),
                 void *arg)
{
    const ng_executor *e = &ctx->config.executor;
    if (e->parallel_for) {
        e->parallel_for(e->user, n, body, arg);
        return;
    }
    for (size_t i = 0; i < n; i++)
        body(arg, i, 0);
}
