/* SPDX-License-Identifier: Apache-2.0 */
/* What each kernel says of a job, for reports: nothing here chooses. dispatch.h. */
#include "dispatch.h"
#include "internal.h"

enum {
    MOST = 64 /* kernels of one sort */
};

struct list {
    ng_kernel_info *info;
    size_t room, n;
    uint32_t has, mask;
    bool picked;
};

static struct list list_begin(const ng_ctx *ctx, ng_kernel_info *info, size_t room)
{
    return (struct list){
        .info = info, .room = room, .has = ng_isa_available(), .mask = ng_ctx_isa_mask(ctx)
    };
}

/* A kernel that this CPU lacks is not even asked. */
static const char *absent(const struct list *l, const struct ng_isa *isa)
{
    return !(isa->bit & l->has)    ? "not on this CPU"
           : !(isa->bit & l->mask) ? "excluded by isa_mask"
                                   : NULL;
}

static void put(struct list *l, const struct ng_isa *isa, const char *name, const char *refuses,
                bool chosen)
{
    l->picked = l->picked || chosen;
    if (l->n < l->room)
        l->info[l->n] = (ng_kernel_info){ name, isa->name, refuses, chosen };
    l->n++;
}

/* The reference; and why those that refuse nothing do not take it. */
static size_t list_end(struct list *l, const char *left)
{
    for (size_t i = 0; i < l->n && i < l->room; i++)
        if (!l->info[i].refuses && !l->info[i].chosen)
            l->info[i].refuses = l->picked ? "another takes it first" : left;
    if (l->n < l->room)
        l->info[l->n] =
            (ng_kernel_info){ "ref", "ref", l->picked ? "another takes it first" : NULL,
                              !l->picked };
    return l->n + 1;
}

static void tell(ng_ctx *ctx, const char *stage, const char *does, const ng_kernel_info *info,
                 size_t n)
{
    ng_ctx_tell(ctx, &(ng_kernel_choice){ stage, does, info, n < MOST ? n : MOST });
}

/* Why `k`, which is there, does not take the job; NULL: it would if it were asked first. */
static const char *gemm_leaves(const ng_ctx *ctx, const struct ng_isa *isa,
                               const struct ng_gemm_kernel *k, const struct gemm_job *g,
                               const struct ng_gemm_kernel *pick)
{
    const char *refuses = k->refuses(g);
    if (refuses || k == pick || !pick || !(isa->bit & ng_ctx_slow(ctx)))
        return refuses;
    return k->behind && k->behind(g) ? "its instruction is slow on this CPU" : NULL;
}

size_t ng_list_gemm(const ng_ctx *ctx, const struct gemm_job *g,
                    const struct ng_gemm_kernel *pick, const char *left, ng_kernel_info *info,
                    size_t room)
{
    struct list l = list_begin(ctx, info, room);
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        const char *why = absent(&l, &isa);
        for (const struct ng_gemm_kernel *const *k = isa.kernels->gemm; *k; k++)
            put(&l, &isa, (*k)->name, why ? why : gemm_leaves(ctx, &isa, *k, g, pick),
                *k == pick);
    }
    return list_end(&l, left);
}

void ng_tell_gemm(ng_ctx *ctx, const char *stage, const struct gemm_job *g,
                  const struct ng_gemm_kernel *pick, const char *left)
{
    ng_kernel_info info[MOST];
    if (ng_ctx_watched(ctx))
        tell(ctx, stage, "multiply", info, ng_list_gemm(ctx, g, pick, left, info, MOST));
}

void ng_tell_cast(ng_ctx *ctx, const char *stage, const struct cast_job *j,
                  const struct ng_cast_kernel *pick, const char *left)
{
    ng_kernel_info info[MOST];
    if (!ng_ctx_watched(ctx))
        return;
    struct list l = list_begin(ctx, info, MOST);
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        const char *why = absent(&l, &isa);
        for (const struct ng_cast_kernel *const *k = isa.kernels->cast; *k; k++)
            put(&l, &isa, (*k)->name, why ? why : (*k)->refuses(j), *k == pick);
    }
    tell(ctx, stage, "convert", info, list_end(&l, left));
}

/* Of kinds of which an ISA has one kernel: that one, and what it says of a job. */
struct only {
    const void *kernel; /* NULL: none */
    const char *name, *refuses;
};
typedef struct only only_of(const struct ng_kernel_set *set, const void *job);

static void tell_only(ng_ctx *ctx, const char *stage, const char *does, only_of *of,
                      const void *job, const void *pick, const char *left)
{
    ng_kernel_info info[MOST];
    if (!ng_ctx_watched(ctx))
        return;
    struct list l = list_begin(ctx, info, MOST);
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        const struct only k = of(isa.kernels, job);
        const char *why = absent(&l, &isa);
        if (k.kernel)
            put(&l, &isa, k.name, why ? why : k.refuses, k.kernel == pick);
    }
    tell(ctx, stage, does, info, list_end(&l, left));
}

static struct only attention_of(const struct ng_kernel_set *set, const void *job)
{
    const struct ng_attention_kernel *k = set->attention;
    return k ? (struct only){ k, k->name, k->refuses(job) } : (struct only){ NULL, NULL, NULL };
}

void ng_tell_attention(ng_ctx *ctx, const char *stage, const struct attention_job *g,
                       const struct ng_attention_kernel *pick, const char *left)
{
    tell_only(ctx, stage, "attention", attention_of, g, pick, left);
}

/* What a kernel for experts says of one of its jobs; NULL: it takes every one. */
typedef const char *moe_refuses(const struct ng_moe_kernel *k, const void *job);
struct moe_asked {
    moe_refuses *refuses;
    const void *job;
};

static struct only moe_of(const struct ng_kernel_set *set, const void *job)
{
    const struct moe_asked *asked = job;
    const struct ng_moe_kernel *k = set->moe;
    if (!k)
        return (struct only){ NULL, NULL, NULL };
    return (struct only){ k, k->name, asked->refuses ? asked->refuses(k, asked->job) : NULL };
}

static void tell_moe(ng_ctx *ctx, const char *stage, moe_refuses *refuses, const void *job,
                     const struct ng_moe_kernel *pick)
{
    const struct moe_asked asked = { refuses, job };
    /* the first of the CPU's is asked alone: ng_pick_moe() */
    tell_only(ctx, stage, "moe", moe_of, &asked, pick, "only the best ISA's is asked");
}

static const char *route_refuses(const struct ng_moe_kernel *k, const void *job)
{
    return k->route_refuses(job);
}

static const char *settle_refuses(const struct ng_moe_kernel *k, const void *job)
{
    return k->settle_refuses(job);
}

static const char *combine_refuses(const struct ng_moe_kernel *k, const void *job)
{
    return k->combine_refuses(job);
}

void ng_tell_route(ng_ctx *ctx, const struct route_job *j, const struct ng_moe_kernel *pick)
{
    tell_moe(ctx, "route", route_refuses, j, pick);
}

void ng_tell_settle(ng_ctx *ctx, const char *stage, const struct settle_job *j,
                    const struct ng_moe_kernel *pick)
{
    tell_moe(ctx, stage, settle_refuses, j, pick);
}

void ng_tell_combine(ng_ctx *ctx, const ng_moe_combine_op *op, const struct ng_moe_kernel *pick)
{
    tell_moe(ctx, "combine", combine_refuses, op, pick);
}

void ng_tell_moe(ng_ctx *ctx, const char *stage, const struct ng_moe_kernel *pick)
{
    tell_moe(ctx, stage, NULL, NULL, pick);
}

static struct only reduce_of(const struct ng_kernel_set *set, const void *job)
{
    const struct ng_reduce_kernel *k = set->reduce;
    (void)job; /* it takes every one that it is asked for */
    return k ? (struct only){ k, k->name, NULL } : (struct only){ NULL, NULL, NULL };
}

void ng_tell_reduce(ng_ctx *ctx, const struct ng_reduce_kernel *pick, const char *left)
{
    tell_only(ctx, "sums", "reduce", reduce_of, NULL, pick, left);
}
