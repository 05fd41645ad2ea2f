/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of elementary functions against the reference: arrays of every length around the
 * vectors', operands between unreadable pages, in place, and by the public call into every
 * format.
 */
#include "ngc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/internal.h"
#include "../../src/ref/ref.h"

enum {
    MOST = 300, /* elements of a round */
    ROOM = 8192,
    FUNCTIONS = NG_FN_RSQRT + 1,
    KINDS = NG_FUNCTION_TABLE + 1
};

/* One case: a kernel, a function, whose bits. */
struct kase {
    const struct ng_isa *isa;
    const struct ng_elementary_kernel *kernel;
    struct elementary_job job;
    char name[120];
};

/* What stays the same between rounds; each block lies between unreadable pages. */
static struct {
    struct ngc_mem src, dst;
    uint16_t *table;
} mem;

struct round {
    const struct kase *kase;
    struct ngc_rng rng;
    int64_t n;
    uint32_t want[MOST];
    const char *pass, *wrong;
    int64_t at; /* the element that is wrong */
    bool took;
};

/* Arguments whose results lie within 2^-50 of a tie, so that a double cannot tell: the first of
 * each function, by a scan with the C library's doubles. */
static const uint32_t hard[FUNCTIONS][8] = {
    [NG_FN_EXP] = { 0x377EFF81, 0x39C6BE5B, 0xBAE0E25C, 0xBBF0EDF1, 0x4001B249, 0x40315B33,
                    0xC16912CD },
    [NG_FN_EXP2] = { 0x33B8AA3B, 0xB466D4CB, 0xB52D1F9A, 0x36879CF7, 0xB8D3D026, 0x3A07857C,
                     0xBAEC2B40, 0x3B429D37 },
    [NG_FN_LOG] = { 0x064CB44B, 0x07C060FA, 0x0DC8BBA4, 0x0F61FF63, 0x111C87F8, 0x145CB6D4,
                    0x14907055, 0x16C5EE7A },
    [NG_FN_TANH] = { 0x3AC37DE2, 0xBAC37DE2 },
    [NG_FN_SIGMOID] = { 0xB3800000, 0x34000000, 0xB4400000, 0xB4A00000, 0x34C00000, 0xB4E00000,
                        0xB5100000, 0x35200000 },
    [NG_FN_RSQRT] = { 0x403A18E3 },
};

/* ---- Drawing. ---- */

/* `plain`: seldom one that a fast path leaves to a slow one, with all that is beside it. */
static uint32_t draw_one(struct ngc_rng *rng, ng_function f, bool plain)
{
    static const uint32_t corners[] = { 0,          0x7F800000, 0x7FC00000, 0x7F800001,
                                        0x00000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF,
                                        0x3F800000, 0x42B17218, 0x42CFF1B5, 0x43160000 };
    const uint32_t sign = ngc_one_in(rng, 2) ? 0x80000000u : 0;
    switch (plain && !ngc_one_in(rng, 100) ? 5 : ngc_below(rng, 5)) {
    case 0:
        return corners[ngc_below(rng, (uint32_t)(sizeof corners / sizeof corners[0]))] | sign;
    case 1: return hard[f][ngc_below(rng, 8)];
    case 2: return (uint32_t)ngc_next(rng);
    case 3: return ((uint32_t)ngc_next(rng) & 0xFFFF0000u) | 0x8000u; /* ties of bf16 */
    default: /* around 1, where results are neither 0 nor Inf */
        return ((uint32_t)ngc_next(rng) & 0x03FFFFFFu) + 0x3D000000u + sign;
    }
}

static bool draw(struct round *r)
{
    static const int64_t seams[] = { 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65 };
    r->n = ngc_one_in(&r->rng, 2)
               ? seams[ngc_below(&r->rng, (uint32_t)(sizeof seams / sizeof seams[0]))]
               : 1 + ngc_below(&r->rng, MOST);
    const size_t bytes = (size_t)r->n * 4;
    if (!ngc_mem_place(&mem.src, bytes, 4, !ngc_one_in(&r->rng, 4)) ||
        !ngc_mem_place(&mem.dst, bytes, 4, !ngc_one_in(&r->rng, 4)))
        return false;
    const struct elementary_job *j = &r->kase->job;
    const bool plain = ngc_one_in(&r->rng, 2);
    for (int64_t i = 0; i < r->n; i++) {
        const uint32_t x = draw_one(&r->rng, j->f, plain);
        ngc_store(mem.src.data, 32, i, x);
        r->want[i] = ng_ref_function(j->f, &j->choice, x);
    }
    ngc_mem_keep(&mem.src);
    return true;
}

/* ---- Passes: what runs under ngc_catch(). ---- */

/* Is a block what it should be, and nothing beside it changed? */
static void want(struct round *r, const struct ngc_mem *m)
{
    const size_t bytes = (size_t)r->n * 4;
    for (int64_t i = 0; i < r->n && !r->wrong; i++)
        if (ngc_load(m->data, 32, i) != r->want[i]) {
            r->wrong = "differs";
            r->at = i;
        }
    for (size_t i = 1; i <= m->before && !r->wrong; i++)
        if (m->data[-(ptrdiff_t)i] != 0xAA)
            r->wrong = "writes before its result";
    for (size_t i = 0; i < m->after && !r->wrong; i++)
        if (m->data[bytes + i] != 0xAA)
            r->wrong = "writes past its result";
}

static void run_kernel(void *arg)
{
    struct round *r = arg;
    const struct kase *c = r->kase;
    r->pass = "run";
    const uint32_t saved = ng_fp_enter();
    c->kernel->run(&c->job, (const uint32_t *)(const void *)mem.src.data, r->n,
                   (uint32_t *)(void *)mem.dst.data);
    ng_fp_leave(saved);
    want(r, &mem.dst);
    if (!r->wrong && !ngc_mem_kept(&mem.src))
        r->wrong = "writes to its source";
}

/* Under a hostile control word, in place. */
static void run_public(void *arg)
{
    struct round *r = arg;
    const struct kase *c = r->kase;
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = c->isa->bit };
    const ng_elementary_op op = { .size = sizeof op,
                                  .function = c->job.f,
                                  .choice = c->job.choice };
    ng_ctx *ctx;
    ng_tensor t;
    r->pass = "ng_elementary";
    (void)ng_tensor_init(&t, NG_F32, mem.src.data, 1, &r->n);
    if (ng_ctx_create(&config, &ctx)) {
        r->wrong = "no context";
        return;
    }
    const uint32_t saved = ngc_fp_get(), hostile = ngc_fp_hostile();
    ngc_fp_set(hostile);
    const ng_status s = ng_elementary(ctx, &op, &t, &t);
    const bool restored = ngc_fp_control(ngc_fp_get()) == ngc_fp_control(hostile);
    ngc_fp_set(saved);
    if (s)
        r->wrong = "fails";
    else if (!restored)
        r->wrong = "changes the control word";
    r->took = strcmp(ng_ctx_kernel(ctx), c->kernel->name) == 0;
    want(r, &mem.src);
    ng_ctx_destroy(ctx);
}

/* ---- One round, and the walk. ---- */

static bool judge(const struct ngc *run, struct round *r, uint32_t round,
                  void (*body)(void *arg))
{
    r->wrong = NULL;
    r->at = 0;
    const int signal = ngc_catch(body, r);
    if (!signal && !r->wrong)
        return true;
    printf(
        "FAIL %s: %lld elements, round %u, %s: %s (element %lld)\n     again: ng-check --seed "
        "%llu --rounds %u '%s'\n",
        r->kase->name, (long long)r->n, round, r->pass,
        signal ? ngc_signal_text(signal) : r->wrong, (long long)r->at,
        (unsigned long long)run->seed, run->rounds, r->kase->name);
    return false;
}

static void run_case(struct ngc *run, const struct kase *c, bool *took)
{
    static struct round r;
    for (uint32_t i = 0; i < run->rounds; i++) {
        r = (struct round){ .kase = c,
                            .rng = { ngc_hash(c->name, run->seed) + i * UINT64_C(0x51ED27) } };
        run->rounds_run++;
        if (!draw(&r) || !judge(run, &r, i, run_kernel) || !judge(run, &r, i, run_public)) {
            run->failed++;
            return;
        }
        *took = *took || r.took;
    }
}

static void walk_kernel(struct ngc *run, const struct ng_isa *isa)
{
    static const char *const kinds[KINDS] = { "cr", "sleef", "table" };
    const struct ng_elementary_kernel *kernel = isa->kernels->elementary;
    const struct ngc_walk walk = ngc_begin_walk(run);
    bool took = false;
    for (int k = 0; k < KINDS; k++)
        for (int f = 0; f < FUNCTIONS; f++) {
            struct kase c = { .isa = isa,
                              .kernel = kernel,
                              .job = { .f = (ng_function)f,
                                       .choice = { .kind = (ng_function_kind)k,
                                                   .table = mem.table } } };
            (void)snprintf(c.name, sizeof c.name, "%s/%s/%s", kernel->name,
                           ng_function_name(c.job.f), kinds[k]);
            if (ngc_begin_case(run, c.name))
                run_case(run, &c, &took);
        }
    if (ngc_walked(run, &walk))
        printf("%s: %u cases\n", kernel->name, ngc_walked(run, &walk));
    ngc_end_walk(run, &walk, kernel->name, took);
}

static bool open_memory(void)
{
    struct ngc_rng rng = { 8 };
    mem.table = malloc(65536 * sizeof *mem.table);
    if (!mem.table)
        return false;
    for (int i = 0; i < 65536; i++) /* no NaN: the call's conversion makes those canonical */
        mem.table[i] = (uint16_t)(ngc_below(&rng, 0x7F80) | ngc_below(&rng, 2) << 15);
    return ngc_mem_open(&mem.src, ROOM) && ngc_mem_open(&mem.dst, ROOM);
}

void ngc_check_elementary(struct ngc *run)
{
    if (!open_memory()) {
        printf("FAIL: no memory for elementary functions\n");
        run->failed++;
        return;
    }
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        const struct ng_elementary_kernel *k = isa.kernels->elementary;
        if (k && ngc_begin_kernel(run, &isa, k->name))
            walk_kernel(run, &isa);
    }
    free(mem.table);
}
