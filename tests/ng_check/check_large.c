/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multiplies as calls, large enough to be cut in blocks of rows, columns and K, to be batched
 * and shared among threads: each ISA's whole result against the first one's, and some elements
 * of it against the reference. Packed in the call and before.
 */
#include "ngc.h"

#include <stdio.h>
#include <string.h>

#include "ng/gemm.h"

enum {
    MOST_PRODUCTS = 12000000,
    MOST_CODES = 700000, /* of an operand */
    CODES = 1024,        /* of either kind: an operand is drawn from them */
    SAMPLES = 24,
    ROOM = 8 << 20
};

struct kase {
    ng_mode mode;
    char name[60];
};

static struct {
    struct ngc_mem a, b, c, scale[2], d[2];
    ng_pool *pool;
    ng_executor executor;
    bool open;
} mem;

struct round {
    const struct kase *kase;
    struct ngc_rng rng;
    ng_gemm_op op;
    ng_tensor a, b, c, d;
    bool has_c, packed;
    int side;
    bool pool; /* of two threads; else tasks in reverse */
    uint32_t isa;
    ng_status status;
    bool took;
    char text[500], kernel[100];
};

static bool open_memory(void)
{
    bool ok = mem.open || (ngc_mem_open(&mem.a, ROOM) && ngc_mem_open(&mem.b, ROOM) &&
                           ngc_mem_open(&mem.c, ROOM));
    for (int i = 0; i < 2 && !mem.open; i++)
        ok = ok && ngc_mem_open(&mem.scale[i], ROOM) && ngc_mem_open(&mem.d[i], ROOM);
    mem.open = ok;
    return ok;
}

/* ---- Drawing. ---- */

/* Formats and a profile that multiplies them in this mode. */
static bool draw_formats(struct round *r, ng_format *a, ng_format *b)
{
    struct ngc_rng *rng = &r->rng;
    const ng_format_spec *f[2];
    for (int i = 0; i < 2; i++)
        f[i] = ngc_element_format(rng);
    const ng_profile *p = ng_profile_at(ngc_below(rng, 40));
    if (r->kase->mode == NG_MODE_NV && !ngc_one_in(rng, 4)) {
        f[0] = f[1] = ng_format_info(NG_E2M1);
        p = ng_profile_find(ngc_one_in(rng, 2) ? "nv-blackwell" : "nv-blackwell-tcgen05");
    } else if (ngc_one_in(rng, 2)) /* they have most kernels */
        p = ng_profile_find(ngc_one_in(rng, 3)   ? "fma-f32"
                            : ngc_one_in(rng, 2) ? "trn3"
                                                 : "trn2");
    if (!p || !ng_profile_rule(p, f[0]->format, f[1]->format, r->kase->mode, NULL, 0))
        return false;
    r->op = (ng_gemm_op){ .size = sizeof r->op,
                          .profile = p,
                          .double_row = r->kase->mode == NG_MODE_DOUBLE_ROW,
                          .accumulate = ngc_one_in(rng, 4) ? NG_BF16 : NG_F32 };
    *a = f[0]->format;
    *b = f[1]->format;
    return true;
}

/* About where rows are cut into panels and blocks, columns likewise, K in stretches. */
static void draw_shape(struct ngc_rng *rng, int64_t *m, int64_t *n, int64_t *k)
{
    static const int64_t rows[] = { 1, 6, 7, 8, 12, 13, 16, 24, 36, 48, 49, 64, 96, 130 },
                         deep[] = { 64, 128, 512, 1024, 2047, 2048, 2049, 2304, 4096, 4100 };
    do {
        *m = ngc_one_in(rng, 2) ? rows[ngc_below(rng, 14)] : 1 + ngc_below(rng, 400);
        *n = 1 + ngc_below(rng, ngc_one_in(rng, 2) ? 200 : 1000);
        *k = ngc_one_in(rng, 2) ? deep[ngc_below(rng, 10)] : 1 + ngc_below(rng, 6000);
    } while (*m * *n * *k > MOST_PRODUCTS || *m * *k > MOST_CODES || *n * *k > MOST_CODES ||
             (*m * *n * *k < MOST_PRODUCTS / 20 && !ngc_one_in(rng, 4)));
}

/* A window of exponents; some lines, or all, have values from far apart or specials. */
static void fill(struct round *r, struct ngc_mem *m, ng_format f)
{
    struct ngc_rng *rng = &r->rng;
    const ng_format_spec *s = ng_format_info(f);
    const bool wide = s->exp_bits == 8;
    const int least = wide ? -70 : ngc_exp_least(s), most = wide ? 60 : ngc_exp_most(s),
              top = ngc_between(rng, least, most), width = ngc_between(rng, 0, 12),
              run = ngc_between(rng, 1, 3000);
    const bool wild = ngc_one_in(rng, 8), far = ngc_one_in(rng, 3);
    const struct ngc_mood near_ = { .spec = s,
                                    .low = top - width < least ? least : top - width,
                                    .high = top,
                                    .zeros = ngc_one_in(rng, 3) ? 4 : 0 };
    struct ngc_mood other = near_;
    other.low = least;
    other.high = most;
    other.special = ngc_one_in(rng, 6) ? 2000 : 0;
    other.any_code = wild;
    const int64_t n = (int64_t)(m->bytes * 8 / s->store_bits);
    static uint32_t code[2][CODES];
    for (int i = 0; i < 2 * CODES; i++)
        code[i / CODES][i % CODES] = ngc_code(rng, i < CODES ? &near_ : &other);
    bool odd = wild;
    for (int64_t i = 0; i < n; i++) {
        if (i % run == 0)
            odd = wild || (far && ngc_one_in(rng, 4));
        ngc_store(m->data, s->store_bits, i, code[odd][ngc_next(rng) % CODES]);
    }
    ngc_mem_keep(m);
}

static bool place(struct round *r, struct ngc_mem *m, ng_format f, uint32_t rank,
                  const int64_t *dim, ng_tensor *t)
{
    if (!ngc_lay(&r->rng, m, NULL, f, rank, dim, t))
        return false;
    fill(r, m, f);
    return true;
}

static bool place_scales(struct round *r, struct ngc_mem *m, uint32_t axis, ng_tensor *t)
{
    const bool nv = r->kase->mode == NG_MODE_NV, wide = ngc_one_in(&r->rng, 4);
    const ng_rule *rule =
        ng_profile_rule(r->op.profile, r->a.format, r->b.format, r->kase->mode, NULL, 0);
    if (!ngc_lay_scales(&r->rng, m, nv ? NG_UE4M3 : NG_E8M0, rule->block ? rule->block : 32,
                        axis, t))
        return false;
    for (size_t i = 0; i < m->bytes; i++)
        m->data[i] = (uint8_t)(nv ? ngc_between(&r->rng, 0, 126)
                                  : ngc_between(&r->rng, wide ? 60 : 122, wide ? 190 : 130));
    ngc_mem_keep(m);
    return true;
}

static bool draw(struct round *r)
{
    struct ngc_rng *rng = &r->rng;
    ng_format a, b;
    int64_t m, n, k;
    if (!draw_formats(r, &a, &b))
        return false;
    draw_shape(rng, &m, &n, &k);
    int64_t batch = 1;
    while (batch < 4 && ngc_one_in(rng, 4) && (batch + 1) * m * n * k < MOST_PRODUCTS &&
           (batch + 1) * m * k < MOST_CODES && (batch + 1) * n * k < MOST_CODES)
        batch++;
    const uint32_t rank = batch > 1 ? 3 : 2, skip = 3 - rank;
    const int64_t dim_a[] = { batch, m, k }, dim_b[] = { batch, k, n },
                  dim_d[] = { batch, m, n };
    const ng_format d = ngc_one_in(rng, 4) ? NG_BF16 : NG_F32;
    bool ok = place(r, &mem.a, a, rank, dim_a + skip, &r->a) &&
              place(r, &mem.b, b, rank, dim_b + skip, &r->b) &&
              ngc_lay(rng, &mem.d[0], &mem.d[1], d, rank, dim_d + skip, &r->d);
    if (r->kase->mode >= NG_MODE_MX)
        ok = ok && place_scales(r, &mem.scale[0], rank - 1, &r->a) &&
             place_scales(r, &mem.scale[1], rank - 2, &r->b);
    r->has_c = ngc_one_in(rng, 3);
    ok = ok && (!r->has_c || place(r, &mem.c, r->op.accumulate, rank, dim_d + skip, &r->c));
    return ok;
}

/* ---- Running. ---- */

static void run_isa(void *arg)
{
    struct round *r = arg;
    const ng_ctx_config config = { .size = sizeof config,
                                   .isa_mask = r->isa,
                                   .executor = r->pool ? mem.executor : ngc_backwards };
    ng_ctx *ctx;
    ng_packed *p = NULL;
    ng_tensor d = r->d;
    d.data = mem.d[r->side].data + ((unsigned char *)r->d.data - mem.d[0].data);
    r->status = ng_ctx_create(&config, &ctx);
    if (r->status)
        return;
    ng_kernel_info info[32];
    size_t count = 0;
    r->status = ng_gemm_kernels(ctx, &r->op, &r->a, &r->b, r->has_c ? &r->c : NULL, &d, info,
                                32, &count);
    r->took = false;
    for (size_t i = 0; !r->status && i < count && i < 32; i++)
        r->took = r->took || (info[i].chosen && strcmp(info[i].name, "ref") != 0);
    if (!r->took) { /* the reference would take long for all of it */
        ng_ctx_destroy(ctx);
        return;
    }
    if (r->packed)
        r->status = ng_pack(ctx, &r->op, &r->b, r->a.format, &p);
    if (p)
        r->status = ng_gemm_packed(ctx, &r->op, &r->a, p, r->has_c ? &r->c : NULL, &d);
    else if (!r->packed)
        r->status = ng_gemm(ctx, &r->op, &r->a, &r->b, r->has_c ? &r->c : NULL, &d);
    (void)snprintf(r->text, sizeof r->text, "%s", ng_ctx_message(ctx));
    (void)snprintf(r->kernel, sizeof r->kernel, "%s", ng_ctx_kernel(ctx));
    ng_packed_destroy(p);
    ng_ctx_destroy(ctx);
}

static const char *sampled(struct round *r)
{
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    const uint32_t rank = r->d.rank;
    ng_ctx *ctx;
    bool same = true;
    if (ng_ctx_create(&config, &ctx))
        return "no context";
    for (int s = 0; s < SAMPLES && same; s++) {
        int64_t index[NG_MAX_RANK];
        uint32_t want = 0;
        for (uint32_t d = 0; d < rank; d++)
            index[d] = ngc_below(&r->rng, (uint32_t)r->d.dim[d]);
        same = ng_gemm_element(ctx, &r->op, false, &r->a, &r->b, r->has_c ? &r->c : NULL, &r->d,
                               index, NULL, &want) == NG_OK &&
               ng_tensor_get(&r->d, index) == want;
    }
    ng_ctx_destroy(ctx);
    return same ? NULL : "an element is not the reference's";
}

static const char *check_round(const struct ngc *run, struct round *r, uint64_t *products)
{
    r->side = 0;
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        if (isa.bit == NG_ISA_REF || !(isa.bit & ng_isa_available()) ||
            !ngc_isa_allowed(run->isas, isa.name))
            continue;
        r->isa = isa.bit | (ngc_one_in(&r->rng, 3) ? ng_isa_available() & (isa.bit - 1) : 0);
        r->pool = ngc_one_in(&r->rng, 2) && mem.pool;
        r->packed = r->b.rank == 2 && ngc_one_in(&r->rng, 2);
        const int signal = ngc_catch(run_isa, r);
        if (signal)
            return ngc_signal_text(signal);
        if (r->status) /* of every ISA the same, before D is written */
            return r->side ? ng_status_name(r->status) : NULL;
        if (!r->took)
            continue;
        if (r->side && !ngc_mem_equal(&mem.d[0], &mem.d[1]))
            return "differs from the first ISA's";
        if (!r->side)
            *products += (uint64_t)(r->d.dim[r->d.rank - 2] * r->d.dim[r->d.rank - 1] *
                                    r->a.dim[r->a.rank - 1]);
        r->side = 1;
    }
    const char *wrong = r->side ? sampled(r) : NULL;
    bool kept =
        ngc_mem_kept(&mem.a) && ngc_mem_kept(&mem.b) && (!r->has_c || ngc_mem_kept(&mem.c));
    for (int i = 0; i < 2 && r->kase->mode >= NG_MODE_MX; i++)
        kept = kept && ngc_mem_kept(&mem.scale[i]);
    return wrong || kept ? wrong : "wrote to its operands";
}

/* ---- The walk. ---- */

static void print_round(const struct round *r)
{
    const uint32_t e = r->d.rank - 2;
    printf("     %s %s x %s, m %lld n %lld k %lld batch %lld, strides %lld,%lld %lld,%lld, "
           "accumulate %s, d %s, isa 0x%x, %s%s%s%s\n",
           r->op.profile->name, ng_format_info(r->a.format)->text,
           ng_format_info(r->b.format)->text, (long long)r->d.dim[e],
           (long long)r->d.dim[e + 1], (long long)r->a.dim[e + 1],
           (long long)(e ? r->d.dim[0] : 1), (long long)r->a.stride[e],
           (long long)r->a.stride[e + 1], (long long)r->b.stride[e],
           (long long)r->b.stride[e + 1], ng_format_info(r->op.accumulate)->text,
           ng_format_info(r->d.format)->text, r->isa, r->kernel, r->packed ? ", packed" : "",
           r->pool ? ", two threads" : "", r->has_c ? ", C" : "");
}

static void run_case(struct ngc *run, const struct kase *c)
{
    static struct round r;
    const uint32_t failed = run->failed;
    uint32_t taken = 0;
    uint64_t products = 0;
    for (uint32_t i = 0; taken < run->rounds / 2 + 1 && i < 400 * run->rounds; i++) {
        r = (struct round){ .kase = c,
                            .rng = { ngc_hash(c->name, run->seed) + i * UINT64_C(0x51ED27) } };
        if (!draw(&r))
            continue;
        const char *wrong = check_round(run, &r, &products);
        taken += (uint32_t)r.side;
        if (!wrong)
            continue;
        printf("FAIL %s: round %u: %s: %s\n     again: ng-check --seed %llu --rounds %u '%s'\n",
               c->name, i, wrong, r.text, (unsigned long long)run->seed, run->rounds, c->name);
        print_round(&r);
        run->failed++;
        break;
    }
    run->rounds_run += taken;
    if (!taken && !run->isas && run->failed == failed) {
        printf("FAIL %s: no kernel took a round\n", c->name);
        run->failed++;
    } else if (!taken && run->failed == failed) {
        printf("skipped: %s: no kernel of %s takes any\n", c->name, run->isas);
        run->skipped++;
    }
    printf("%s: %u rounds, %.0f million products\n", c->name, taken, (double)products / 1e6);
}

void ngc_check_large(struct ngc *run)
{
    static const char *const mode[] = { "plain", "double_row", "mx", "nv" };
    if (!(ng_isa_available() & ~NG_ISA_REF)) {
        printf("skipped: gemm_calls: no kernels to compare\n");
        run->skipped++;
        return;
    }
    if (!open_memory()) {
        printf("FAIL: no memory for large operands\n");
        run->failed++;
        return;
    }
    (void)ng_pool_create(2, &mem.pool, &mem.executor); /* without threads: tasks in reverse */
    for (int m = NG_MODE_PLAIN; m <= NG_MODE_NV; m++) {
        struct kase c = { .mode = (ng_mode)m };
        (void)snprintf(c.name, sizeof c.name, "gemm_calls/%s", mode[m]);
        if (ngc_begin_case(run, c.name))
            run_case(run, &c);
    }
    ng_pool_destroy(mem.pool);
    mem.pool = NULL;
}
