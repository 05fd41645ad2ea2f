/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multiplies at the speed of every kernel in the tables, and at the reference's. A kernel is
 * compared with the reference before it is timed: wrong and fast is not a result.
 */
#include <stdlib.h>
#include <string.h>

#include "../src/dispatch.h"
#include "yardstick.h"

struct problem {
    const char *profile, *a, *b;
    const char *tag; /* what sets it apart from others of these formats, or "" */
    enum fill fill;  /* all but FILL_GAUSSIAN: with block scales */
    bool double_row;
    bool sparse;          /* B 2:4 */
    const char *lane_sum; /* of the rule mx, in a user's copy of the profile; NULL: as it is */
    bool huge;            /* the huge shapes too */
    double most;          /* flops of the largest shape; 0: any */
};

struct shape {
    int64_t m, n, k;
    bool quick, huge;
};

/* Every kernel is tried on each of these; a new kind of kernel adds the row that it takes. */
static const struct problem problems[] = {
    { .profile = "trn2", .a = "bf16", .b = "bf16", .tag = "", .huge = true },
    { .profile = "fma-f32", .a = "bf16", .b = "bf16", .tag = "" },
    { .profile = "fma-f32", .a = "f32", .b = "f32", .tag = "" },
    { .profile = "trn2", .a = "f32", .b = "f32", .tag = "pieces" },
    { .profile = "trn2", .a = "f16", .b = "f16", .tag = "" },
    { .profile = "trn2", .a = "e4m3", .b = "e4m3", .tag = "", .huge = true },
    { .profile = "trn2", .a = "e4m3", .b = "e4m3", .tag = "double-row", .double_row = true },
    { .profile = "trn2", .a = "e5m2", .b = "e5m2", .tag = "" },
    { .profile = "trn2", /* sums of two that FP32 does not hold, here and there */
      .a = "e5m2",
      .b = "e5m2",
      .tag = "double-row",
      .double_row = true,
      .most = 2.5e9 },
    { .profile = "trn3", .a = "e4m3fn", .b = "e4m3fn", .tag = "mx", .fill = FILL_MX },
    { .profile = "trn3",
      .a = "e4m3fn",
      .b = "e4m3fn",
      .tag = "mx-chain",
      .fill = FILL_MX,
      .lane_sum = "chain" },
    { .profile = "trn3",
      .a = "e4m3fn",
      .b = "e2m1",
      .tag = "mx",
      .fill = FILL_MX,
      .huge = true },
    { .profile = "trn3", .a = "e2m1", .b = "e2m1", .tag = "mx", .fill = FILL_MX },
    { .profile = "ocp-mx", .a = "e2m1", .b = "e2m1", .tag = "mx", .fill = FILL_MX },
    { .profile = "trn3", /* no chain of which every sum is exact */
      .a = "e2m1",
      .b = "e2m1",
      .tag = "mx-far",
      .fill = FILL_FAR,
      .most = 2.5e9 },
    { .profile = "trn3",
      .a = "e4m3fn",
      .b = "e4m3fn",
      .tag = "mx-wide", /* the slow path everywhere */
      .fill = FILL_WIDE,
      .most = 2.5e9 },
    { .profile = "fma-f32", .a = "e2m1", .b = "e2m1", .tag = "nv", .fill = FILL_NV },
    { .profile = "trn2", .a = "bf16", .b = "bf16", .tag = "sparse24", .sparse = true },
    { .profile = "nv-ampere", .a = "bf16", .b = "bf16", .tag = "" }, /* 8 products a step, */
    { .profile = "nv-hopper", .a = "f16", .b = "f16", .tag = "" },   /* 16, */
    { .profile = "nv-hopper-wgmma", .a = "e4m3fn", .b = "e4m3fn", .tag = "" }, /* 32 */
    { .profile = "nv-ada", .a = "e4m3fn", .b = "e4m3fn", .tag = "" },
    { .profile = "nv-blackwell-tcgen05",
      .a = "e4m3fn",
      .b = "e4m3fn",
      .tag = "mx",
      .fill = FILL_MX },
    { .profile = "nv-blackwell-tcgen05",
      .a = "e2m1",
      .b = "e2m1",
      .tag = "mx",
      .fill = FILL_MX },
    { .profile = "nv-hopper", .a = "f16", .b = "f16", .tag = "sparse24", .sparse = true },
    { .profile = "amd-cdna2", .a = "bf16", .b = "bf16", .tag = "" }, /* sums of four, */
    { .profile = "amd-cdna3", .a = "tf32", .b = "tf32", .tag = "" }, /* aligned, of 4, */
    { .profile = "amd-cdna3", .a = "f16", .b = "f16", .tag = "" },   /* 8, */
    { .profile = "amd-cdna3", .a = "e4m3fnuz", .b = "e4m3fnuz", .tag = "" }, /* twice 8 */
};

/* The oracle's own speed, for both families. */
static const struct problem references[] = {
    { .profile = "trn2", .a = "bf16", .b = "bf16", .tag = "" },
    { .profile = "trn3", .a = "e4m3fn", .b = "e4m3fn", .tag = "mx", .fill = FILL_MX },
    { .profile = "nv-hopper", .a = "f16", .b = "f16", .tag = "" },
    { .profile = "nv-ada", .a = "e4m3fn", .b = "e4m3fn", .tag = "" },
};

/* With tails in M, N and the last K tile, of whole blocks: compared in full, and the reference
 * is timed on it. */
static const struct shape small = { 29, 69, 224, true, false };

static const struct shape shapes[] = {
    { 512, 512, 512, true, false },     { 1024, 1024, 1024, false, false },
    { 2048, 2048, 2048, false, false }, { 4096, 4096, 4096, false, false },
    { 1, 4096, 4096, false, false },    { 8, 4096, 4096, false, false },
    { 32, 4096, 4096, false, false },   { 128, 4096, 4096, false, false },
    { 512, 4096, 4096, false, false },  { 1, 14336, 4096, false, false },
    { 8, 14336, 4096, false, false },   { 32, 14336, 4096, false, false },
    { 128, 14336, 4096, false, false }, { 512, 14336, 4096, false, false },
    { 1, 2880, 2880, false, false },    { 8, 2880, 2880, true, false },
    { 32, 2880, 2880, false, false },   { 128, 2880, 2880, false, false },
    { 1, 16384, 16384, false, true },   { 8, 16384, 16384, false, true },
    { 32, 16384, 16384, false, true },
};

#define COUNT(x) (sizeof(x) / sizeof(x)[0])

enum {
    MAX_ISAS = 8,
    MAX_KERNELS = 64,
    MAX_CASES = 4 * MAX_ISAS + 2,
    SAMPLES = 16,
    THIN = 16 /* rows of A up to which a multiply is limited by memory */
};

static double flops(struct shape s)
{
    return 2.0 * (double)s.m * (double)s.n * (double)s.k;
}

/* Is it timed with both operands packed in the call too? */
static bool packs_both(struct shape s)
{
    return s.n == s.k && (s.m == s.n || s.n == 4096);
}

static bool has_shape(const struct bench *run, const struct problem *p, struct shape s)
{
    return (s.quick || !run->quick) && (p->huge || !s.huge) &&
           (p->most == 0 || flops(s) <= p->most);
}

/* ---- Operands: one set for all cases of a race. ---- */

struct operands {
    ng_profile *owned; /* a copy of the profile, changed; or NULL */
    ng_gemm_op op;
    ng_tensor a, b, dense; /* dense: sparse problems only, what b was pruned from */
    struct bench_sparse sparse;
};

static void close_operands(struct operands *o)
{
    bench_free(&o->a);
    if (o->b.sparse) {
        bench_free_sparse(&o->sparse);
        bench_free(&o->dense);
    } else {
        bench_free(&o->b);
    }
    ng_profile_free(o->owned);
}

/* False: the profile cannot be varied so. The struct must not move afterwards. */
static bool open_operands(struct operands *o, const struct problem *p, struct shape s)
{
    *o = (struct operands){ .op = { .size = sizeof o->op,
                                    .profile = ng_profile_find(p->profile),
                                    .double_row = p->double_row } };
    if (p->lane_sum) {
        o->owned = ng_profile_copy(o->op.profile);
        if (!o->owned || ng_profile_set(o->owned, "mx", "lane_sum", p->lane_sum))
            return false;
        o->op.profile = o->owned;
    }
    o->a = bench_operand(ng_format_find(p->a), s.m, s.k, 1, p->fill, 1);
    o->b = bench_operand(ng_format_find(p->b), s.k, s.n, 0, p->fill, 2);
    if (p->sparse) {
        o->dense = o->b;
        bench_prune(&o->dense, &o->sparse);
        o->b = o->sparse.t;
    }
    return true;
}

static ng_tensor result_like(struct shape s)
{
    ng_tensor d;
    const int64_t dim[2] = { s.m, s.n };
    (void)ng_tensor_init(&d, NG_F32, bench_alloc((size_t)(s.m * s.n) * 4), 2, dim);
    memset(d.data, 0xFF, (size_t)(s.m * s.n) * 4);
    return d;
}

/* ---- One way to multiply them. ---- */

enum way {
    WAY_FLY,    /* both operands packed in the call */
    WAY_PACKED, /* B packed beforehand */
    WAY_DENSE   /* packed, and not the sparse B but what it was pruned from */
};

struct multiply {
    const struct operands *o;
    struct shape shape;
    enum way way;
    uint32_t isa_mask;
    const ng_executor *executor;
    const char *kernel;  /* that must take the job */
    struct reader *like; /* to be told the packed size, or NULL */
    const char *wrong;   /* why setup failed */

    ng_ctx *ctx;
    ng_packed *packed;
    ng_tensor d;
    size_t packed_bytes;
    ng_tiles tiles;
};

static const ng_tensor *b_of(const struct multiply *x)
{
    return x->way == WAY_DENSE ? &x->o->dense : &x->o->b;
}

static bool multiply(struct multiply *x)
{
    const struct operands *o = x->o;
    return (x->packed ? ng_gemm_packed(x->ctx, &o->op, &o->a, x->packed, NULL, &x->d)
                      : ng_gemm(x->ctx, &o->op, &o->a, b_of(x), NULL, &x->d)) == NG_OK;
}

static void close_multiply(struct multiply *x)
{
    ng_packed_destroy(x->packed);
    bench_free(&x->d);
    ng_ctx_destroy(x->ctx);
    x->packed = NULL;
    x->ctx = NULL;
}

static bool open_multiply(struct multiply *x)
{
    ng_ctx_config config = { .size = sizeof config, .isa_mask = x->isa_mask };
    if (x->executor)
        config.executor = *x->executor;
    if (ng_ctx_create(&config, &x->ctx)) {
        x->wrong = "no context";
        return false;
    }
    x->d = result_like(x->shape);
    if (x->way != WAY_FLY && ng_pack(x->ctx, &x->o->op, b_of(x), x->o->a.format, &x->packed)) {
        x->wrong = "ng_pack failed";
        close_multiply(x);
        return false;
    }
    x->packed_bytes = ng_packed_bytes(x->packed);
    return true;
}

/* ---- Is it right? ---- */

/* The large ones would take the reference minutes: its corners and some elements between. */
static bool samples_equal_reference(struct multiply *x)
{
    const struct shape s = x->shape;
    for (int64_t i = 0; i < SAMPLES; i++) {
        const int64_t at[2] = { i * (s.m - 1) / (SAMPLES - 1),
                                i * 7 % SAMPLES * (s.n - 1) / (SAMPLES - 1) };
        uint32_t code = 0;
        if (ng_gemm_element(x->ctx, &x->o->op, false, &x->o->a, b_of(x), NULL, &x->d, at, NULL,
                            &code) ||
            code != ng_tensor_get(&x->d, at))
            return false;
    }
    return true;
}

/* The first run: caches are warm after it, and it is the one checked. */
static bool check_multiply(struct multiply *x)
{
    if (!multiply(x))
        x->wrong = "the multiply failed";
    else if (strcmp(ng_ctx_kernel(x->ctx), x->kernel) != 0)
        x->wrong = "another kernel took the job";
    x->tiles = ng_ctx_tiles(x->ctx);
    if (!x->wrong && !samples_equal_reference(x))
        x->wrong = "D differs from the reference";
    return !x->wrong;
}

static void *setup_multiply(void *arg)
{
    struct multiply *x = arg;
    if (!open_multiply(x))
        return NULL;
    if (check_multiply(x)) {
        if (x->like && x->packed_bytes > x->like->like)
            x->like->like = x->packed_bytes;
        return x;
    }
    close_multiply(x);
    return NULL;
}

static void run_multiply(void *state)
{
    (void)multiply(state);
}

static void done_multiply(void *state)
{
    close_multiply(state);
}

static struct ng_bench multiply_case(struct multiply *x, const char *name)
{
    return (struct ng_bench){ .name = name,
                              .setup = setup_multiply,
                              .run = run_multiply,
                              .done = done_multiply,
                              .arg = x,
                              .items = flops(x->shape) };
}

/* ---- Kernels: of an ISA the one that takes the problem. ---- */

struct rival {
    struct ng_isa isa;
    const char *kernel; /* that takes the problem at hand, rightly; or NULL */
};

struct field {
    struct rival rival[MAX_ISAS];
    size_t n;
    const char *reached[MAX_KERNELS]; /* names of kernels that some case reached */
    size_t n_reached;
};

/* The ISAs that this CPU runs, best first. */
static void find_isas(struct field *f)
{
    *f = (struct field){ .n = 0 };
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        if (isa.bit == NG_ISA_REF)
            continue;
        if (!(isa.bit & ng_isa_available()))
            printf("skipped: %s: not on this CPU\n", isa.name);
        else if (f->n < MAX_ISAS)
            f->rival[f->n++] = (struct rival){ .isa = isa };
    }
}

static bool is_reached(const struct field *f, const char *kernel)
{
    for (size_t i = 0; i < f->n_reached; i++)
        if (strcmp(f->reached[i], kernel) == 0)
            return true;
    return false;
}

static void note_reached(struct field *f, const char *kernel)
{
    if (!is_reached(f, kernel) && f->n_reached < MAX_KERNELS)
        f->reached[f->n_reached++] = kernel;
}

static void print_unreached(const struct field *f)
{
    for (size_t i = 0; i < f->n; i++)
        for (const struct ng_gemm_kernel *const *k = f->rival[i].isa.kernels->gemm; *k; k++) {
            if (!is_reached(f, (*k)->name))
                printf("skipped: %s: none of the cases here reaches it\n", (*k)->name);
        }
}

static void case_name(char *name, size_t bytes, const char *kernel, const struct problem *p,
                      struct shape s, const char *suffix)
{
    (void)snprintf(name, bytes, "%s/%s/%s%s%sx%s/%lldx%lldx%lld%s", kernel, p->profile, p->tag,
                   p->tag[0] ? "-" : "", p->a, p->b, (long long)s.m, (long long)s.n,
                   (long long)s.k, suffix);
}

static const char *suffix_of(enum way way)
{
    return way == WAY_FLY ? "/fly" : "/packed";
}

/* Of the ISA's kernels the one that this job gets, or NULL. */
static const char *kernel_for(const struct rival *r, const struct operands *o,
                              const ng_tensor *d)
{
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = r->isa.bit };
    ng_kernel_info info[MAX_KERNELS];
    const char *name = NULL;
    size_t n = 0;
    ng_ctx *ctx;
    if (ng_ctx_create(&config, &ctx))
        return NULL;
    if (ng_gemm_kernels(ctx, &o->op, &o->a, &o->b, NULL, d, info, MAX_KERNELS, &n) == NG_OK)
        for (size_t i = 0; i < n && i < MAX_KERNELS; i++)
            if (info[i].chosen && strcmp(info[i].isa, r->isa.name) == 0)
                name = info[i].name;
    ng_ctx_destroy(ctx);
    return name;
}

/* All of D on the small shape, both ways. */
static void judge(struct bench *run, struct rival *r, const struct problem *p,
                  const struct operands *o, const ng_tensor *want)
{
    for (int way = WAY_FLY; way <= WAY_PACKED && r->kernel; way++) {
        struct multiply x = { .o = o,
                              .shape = small,
                              .way = (enum way)way,
                              .isa_mask = r->isa.bit,
                              .executor = run->executor,
                              .kernel = r->kernel };
        if (open_multiply(&x)) {
            if (check_multiply(&x) &&
                memcmp(x.d.data, want->data, (size_t)(small.m * small.n) * 4) != 0)
                x.wrong = "D differs from the reference";
            close_multiply(&x);
        }
        if (!x.wrong)
            continue;
        char name[160];
        case_name(name, sizeof name, r->kernel, p, small, suffix_of(x.way));
        bench_refuse(run, name, x.wrong);
        r->kernel = NULL;
    }
}

/* The reference's D on the small shape; its flops a second, or 0 when it failed. */
static double ask_reference(struct bench *run, const struct operands *o, ng_tensor *d)
{
    struct multiply x = {
        .o = o, .shape = small, .way = WAY_FLY, .isa_mask = NG_ISA_REF, .kernel = "ref"
    };
    struct multiply again = x;
    struct ng_bench b = multiply_case(&again, "ref");
    struct ng_bench_options one_thread = run->options;
    if (!open_multiply(&x))
        return 0;
    const bool ok = multiply(&x);
    if (ok)
        memcpy(d->data, x.d.data, (size_t)(small.m * small.n) * 4);
    close_multiply(&x);
    one_thread.wall = false;
    if (ok)
        ng_bench_run(&b, 1, &one_thread);
    return b.rate;
}

/* Who takes the problem, and rightly? The reference's rate on it. */
static double find_rivals(struct bench *run, struct field *f, const struct problem *p)
{
    struct operands o;
    double ref = 0;
    bool any = false;
    ng_tensor want = result_like(small);
    const bool opened = open_operands(&o, p, small);
    for (size_t i = 0; i < f->n; i++) {
        f->rival[i].kernel = opened ? kernel_for(&f->rival[i], &o, &want) : NULL;
        if (!f->rival[i].kernel)
            continue;
        any = true;
        note_reached(f, f->rival[i].kernel);
    }
    if (any && !run->list) {
        ref = ask_reference(run, &o, &want);
        for (size_t i = 0; i < f->n; i++)
            judge(run, &f->rival[i], p, &o, &want);
    }
    if (opened)
        close_operands(&o);
    bench_free(&want);
    return ref;
}

/* ---- A race: one problem, one shape; all kernels that take it and what they are measured
 * against, repetitions mixed. ---- */

struct entry {
    struct multiply x;
    char name[160];
    const struct rival *rival;
    size_t at, peak, dense; /* places of its cases; 0 for dense: none */
};

struct race {
    struct bench *run;
    const struct problem *p;
    struct shape shape;
    struct operands operands;
    struct entry entry[2 * MAX_ISAS];
    struct multiply dense[MAX_ISAS]; /* rivals that have no row of their own */
    size_t entries, n_dense;
    struct reader reader;
    struct sgemm sgemm;
    struct ng_bench bench[MAX_CASES];
    size_t cases, sgemm_at, reader_at;
};

static struct multiply as_multiply(struct race *race, const struct rival *r, enum way way)
{
    return (struct multiply){ .o = &race->operands,
                              .shape = race->shape,
                              .way = way,
                              .isa_mask = r->isa.bit,
                              .executor = race->run->executor,
                              .kernel = r->kernel,
                              .like = way == WAY_PACKED ? &race->reader : NULL };
}

/* The entry whose name is wanted; its cases come later, when it is known that any run. */
static void enter(struct race *race, const struct rival *r, enum way way)
{
    struct entry *e = &race->entry[race->entries];
    case_name(e->name, sizeof e->name, r->kernel, race->p, race->shape, suffix_of(way));
    if (!bench_wants(race->run, e->name))
        return;
    e->rival = r;
    e->x = as_multiply(race, r, way);
    race->entries++;
}

static size_t add_case(struct race *race, struct ng_bench b)
{
    race->bench[race->cases] = b;
    return race->cases++;
}

static const struct peak *peak_for(const struct problem *p, uint32_t isa)
{
    const struct peak *peak = peak_of(isa);
    return peak && peak->fp4 && !strcmp(p->a, "e2m1") && !strcmp(p->b, "e2m1") ? peak->fp4
                                                                               : peak;
}

static void add_cases(struct race *race)
{
    const struct rival *last = NULL;
    size_t peak = 0, dense = 0;
    for (size_t i = 0; i < race->entries; i++) {
        struct entry *e = &race->entry[i];
        e->at = add_case(race, multiply_case(&e->x, e->name));
        if (e->rival != last) {
            last = e->rival;
            peak = add_case(race, yard_peak(peak_for(race->p, last->isa.bit)));
            if (race->p->sparse) {
                struct multiply *x = &race->dense[race->n_dense++];
                *x = as_multiply(race, last, WAY_DENSE);
                dense = add_case(race, multiply_case(x, "dense"));
            }
        }
        e->peak = peak;
        e->dense = dense;
    }
    race->sgemm = (struct sgemm){ race->shape.m, race->shape.n, race->shape.k, .a = { 0 } };
    race->sgemm_at = add_case(race, yard_sgemm(&race->sgemm));
    if (race->shape.m <= THIN) /* last: its setup asks how much the others packed */
        race->reader_at = add_case(race, yard_read(&race->reader));
}

/* What the race wants at most, all cases being set up at once. */
static size_t memory_wanted(const struct race *race)
{
    const struct shape s = race->shape;
    const size_t kn = (size_t)(s.k * s.n), mk = (size_t)(s.m * s.k), mn = (size_t)(s.m * s.n);
    const ng_format_spec *b = ng_format_info(ng_format_find(race->p->b));
    const size_t packed = kn * (b->man_bits <= 7 ? 3 : 9); /* pairs, or words in two pieces */
    size_t bytes = 4 * (mk + kn + mn) + 4 * mk + kn * b->store_bits / 8;
    bytes += race->entries * (packed + 8 * mk + 4 * mn);
    bytes += race->p->sparse ? 2 * race->entries * packed : 0;
    return bytes + (s.m <= THIN ? yard_read_bytes(packed) : 0);
}

static bool fits_memory(const struct race *race)
{
    const size_t wanted = memory_wanted(race), have = yard_memory();
    if (wanted < have)
        return true;
    for (size_t i = 0; i < race->entries; i++)
        printf("skipped: %s: wants %zu MiB of memory, %zu are free\n", race->entry[i].name,
               wanted >> 20, have >> 20);
    return false;
}

/* Bytes of a packed B that a multiply reads: those of the values and tags that a sparse one
 * keeps for the reference are not. */
static size_t read_of_packed(const struct multiply *x)
{
    const ng_tensor *b = b_of(x);
    if (!x->packed_bytes || !b->sparse)
        return x->packed_bytes;
    const int64_t tags = (b->dim[0] + 3) / 4 * (b->sparse->store == NG_TAG_TRN ? 2 : 1);
    return x->packed_bytes - ng_tensor_bytes(b->format, 2, b->dim) - (size_t)(tags * b->dim[1]);
}

static void report(const struct race *race, const struct entry *e, double ref)
{
    struct bench *run = race->run;
    const struct problem *p = race->p;
    const struct shape s = race->shape;
    const struct ng_bench *b = &race->bench[e->at];
    const bool thin = race->reader_at && e->x.way == WAY_PACKED;
    if (e->x.wrong) {
        bench_refuse(run, e->name, e->x.wrong);
        return;
    }
    const struct multiply_row extra = {
        .packed = e->x.way == WAY_PACKED,
        .dense = e->dense ? race->bench[e->dense].rate : 0,
        .bytes = (double)e->x.packed_bytes,
        .bytes_moved = thin && b->seconds > 0 ? (double)read_of_packed(&e->x) / b->seconds : 0,
        .read = thin ? yard_read_rate(&race->reader, &race->bench[race->reader_at]) : 0,
        .tiles = e->x.tiles
    };
    bench_row(run, &(struct row){ .name = e->name,
                                  .label = e->rival->kernel,
                                  .kernel = e->rival->kernel,
                                  .profile = p->profile,
                                  .tag = p->tag,
                                  .a = p->a,
                                  .b = p->b,
                                  .m = s.m,
                                  .n = s.n,
                                  .k = s.k,
                                  .unit = "GFLOP/s",
                                  .scale = 1e-9,
                                  .rate = b->rate,
                                  .peak = race->bench[e->peak].rate * (double)run->threads,
                                  .openblas = race->bench[race->sgemm_at].rate,
                                  .ref = ref,
                                  .spread = b->spread,
                                  .multiply = &extra });
}

/* Long runs need fewer repetitions: five are the least that a median is taken of. */
static struct ng_bench_options options_for(const struct race *race)
{
    struct ng_bench_options o = race->run->options;
    if (flops(race->shape) > 1e10 && o.repetitions > 5)
        o.repetitions = 5;
    return o;
}

static void run_race(struct bench *run, const struct field *f, const struct problem *p,
                     struct shape s, double ref)
{
    struct race *race = bench_alloc(sizeof *race);
    *race = (struct race){ .run = run, .p = p, .shape = s };
    for (size_t i = 0; i < f->n; i++)
        if (f->rival[i].kernel) {
            enter(race, &f->rival[i], WAY_PACKED);
            if (packs_both(s))
                enter(race, &f->rival[i], WAY_FLY);
        }
    if (race->entries && !run->list && fits_memory(race) &&
        open_operands(&race->operands, p, s)) {
        race->reader = (struct reader){ .peak = peak_of(race->entry[0].rival->isa.bit),
                                        .executor = run->executor,
                                        .threads = run->threads };
        add_cases(race);
        const struct ng_bench_options options = options_for(race);
        ng_bench_run(race->bench, race->cases, &options);
        for (size_t i = 0; i < race->entries; i++)
            report(race, &race->entry[i], ref);
        close_operands(&race->operands);
    }
    free(race);
}

/* ---- All of them. ---- */

/* Could a case of the problem be wanted, whichever of the ISAs' kernels takes it? */
static bool wants_any(const struct bench *run, const struct field *f, const struct problem *p)
{
    char name[160];
    for (size_t i = 0; i < f->n; i++)
        for (const struct ng_gemm_kernel *const *k = f->rival[i].isa.kernels->gemm; *k; k++)
            for (size_t s = 0; s < COUNT(shapes); s++)
                for (int way = WAY_FLY; way <= WAY_PACKED; way++) {
                    case_name(name, sizeof name, (*k)->name, p, shapes[s],
                              suffix_of((enum way)way));
                    if (has_shape(run, p, shapes[s]) && bench_would_want(run, name))
                        return true;
                }
    return false;
}

void bench_gemm(struct bench *run)
{
    struct field field;
    bool asked_all = true;
    yard_set_threads(run->threads);
    find_isas(&field);
    for (size_t i = 0; i < COUNT(problems); i++) {
        const struct problem *p = &problems[i];
        if (!wants_any(run, &field, p)) {
            asked_all = false;
            continue;
        }
        const double ref = find_rivals(run, &field, p);
        for (size_t s = 0; s < COUNT(shapes); s++)
            if (has_shape(run, p, shapes[s]))
                run_race(run, &field, p, shapes[s], ref);
    }
    if (asked_all)
        print_unreached(&field);
}

/* ---- The reference. ---- */

static void time_reference(struct bench *run, const struct problem *p, struct shape s,
                           const char *name)
{
    struct operands o;
    if (!open_operands(&o, p, s))
        return;
    struct multiply x = { .o = &o,
                          .shape = s,
                          .way = WAY_FLY,
                          .isa_mask = NG_ISA_REF,
                          .executor = run->executor,
                          .kernel = "ref" };
    struct ng_bench b = multiply_case(&x, name);
    ng_bench_run(&b, 1, &run->options);
    if (x.wrong)
        bench_refuse(run, name, x.wrong);
    else
        bench_row(run, &(struct row){ .name = name,
                                      .label = "ref",
                                      .kernel = "ref",
                                      .profile = p->profile,
                                      .tag = p->tag,
                                      .a = p->a,
                                      .b = p->b,
                                      .m = s.m,
                                      .n = s.n,
                                      .k = s.k,
                                      .unit = "MMAC/s",
                                      .scale = 1e-6,
                                      .rate = b.rate / 2,
                                      .spread = b.spread });
    close_operands(&o);
}

void bench_reference(struct bench *run)
{
    const struct shape s = { 16, 16, 512, true, false };
    for (size_t i = 0; i < COUNT(references); i++) {
        char name[160];
        case_name(name, sizeof name, "ref", &references[i], s, "");
        if (bench_wants(run, name) && !run->list)
            time_reference(run, &references[i], s, name);
    }
}
