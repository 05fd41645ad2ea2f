/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_pack and ng_gemm_packed: the bits of ng_gemm, for every rule there is; B's memory may go,
 * contexts may share. ng_gemm_kernels, ng_ctx_watch and ng_ctx_tiles: what they say is what
 * happened.
 */
#include <pthread.h>
#include <stdlib.h>

#include "api.h"

enum {
    ROOM = 1 << 16,
    MOST = 40, /* rows */
    LANES = 5  /* executors: the calling thread, 2 to 4 threads, backwards */
};

static uint64_t seed = 4711;

static struct {
    ng_pool *pool[LANES];
    ng_executor executor[LANES];
} lanes;

/* A multiply with all that can belong to it. */
struct job {
    char name[128];
    unsigned char a[ROOM], b[ROOM], c[ROOM], d[ROOM], want[ROOM];
    unsigned char scale_a[ROOM / 16], scale_b[ROOM / 16], tags[ROOM / 8], table[16];
    uint32_t words[1 << 13];
    ng_tensor ta, tb, tc, td;
    ng_sparse sparse;
    ng_gemm_op op;
    bool with_c;
};

struct shape {
    ng_format a, b, d;
    int64_t m, n, k; /* k: of the dense operand */
};

/* ---- Making jobs. ---- */

static void plain_job(struct job *j, const struct shape *s)
{
    memset(j, 0, sizeof *j);
    const int64_t da[] = { s->m, s->k }, db[] = { s->k, s->n }, dd[] = { s->m, s->n };
    CHECK(ng_tensor_init(&j->ta, s->a, j->a, 2, da) == NG_OK);
    CHECK(ng_tensor_init(&j->tb, s->b, j->b, 2, db) == NG_OK);
    CHECK(ng_tensor_init(&j->tc, NG_F32, j->c, 2, dd) == NG_OK);
    CHECK(ng_tensor_init(&j->td, s->d, j->d, 2, dd) == NG_OK);
    fill_tensor(&j->ta, &seed);
    fill_tensor(&j->tb, &seed);
    fill_tensor(&j->tc, &seed);
    j->op = (ng_gemm_op){ .size = sizeof j->op };
    if (!ng_format_info(s->d)->has_nan)
        j->op.out.overflow = NG_OVERFLOW_SATURATE;
    for (size_t i = 0; i < sizeof j->words / 4; i++)
        j->words[i] = (uint32_t)next(&seed);
}

static void give_scales(struct job *j, ng_format format, uint32_t block, ng_layout layout)
{
    const unsigned base = format == NG_E8M0 ? 123 : 0x34;
    CHECK(ng_tensor_set_scale(&j->ta, format, j->scale_a, block, 1, layout) == NG_OK);
    CHECK(ng_tensor_set_scale(&j->tb, format, j->scale_b, block, 0, layout) == NG_OK);
    for (size_t i = 0; i < sizeof j->scale_a; i++) {
        j->scale_a[i] = (unsigned char)(base + (next(&seed) & 7));
        j->scale_b[i] = (unsigned char)(base + (next(&seed) & 7));
    }
}

/* B keeps 2 of 4: its rows are half of A's columns. */
static void give_tags(struct job *j, bool ascending)
{
    const int64_t db[] = { j->ta.dim[1] / 2, j->tb.dim[1] };
    CHECK(ng_tensor_init(&j->tb, j->tb.format, j->b, 2, db) == NG_OK);
    for (size_t i = 0; i < sizeof j->tags; i++)
        j->tags[i] =
            (unsigned char)(ascending ? (next(&seed) & 1) | (2 + (next(&seed) & 1)) << 4
                                      : next(&seed) & 0x33u);
    j->sparse = (ng_sparse){ .kept = 2, .group = 4, .tags = j->tags };
    j->tb.sparse = &j->sparse;
}

static ng_random words(const struct job *j)
{
    return (ng_random){ NG_RANDOM_EXTERNAL, j->words, (int64_t)(sizeof j->words / 4) };
}

/* ---- Running them. ---- */

static ng_ctx *context(uint32_t mask, size_t lane)
{
    const ng_ctx_config config = { .size = sizeof config,
                                   .isa_mask = mask,
                                   .executor = lanes.executor[lane] };
    ng_ctx *ctx = NULL;
    if (!CHECK(ng_ctx_create(&config, &ctx) == NG_OK))
        abort();
    return ctx;
}

static const ng_tensor *c_of(const struct job *j)
{
    return j->with_c ? &j->tc : NULL;
}

/* D by the reference, in `want`. */
static bool reference(struct job *j)
{
    ng_ctx *ctx = context(NG_ISA_REF, 0);
    memset(j->d, 0xEE, sizeof j->d);
    const ng_status s = ng_gemm(ctx, &j->op, &j->ta, &j->tb, c_of(j), &j->td);
    if (!CHECK(s == NG_OK))
        printf("     %s: %s\n", j->name, ng_ctx_message(ctx));
    memcpy(j->want, j->d, sizeof j->want);
    ng_ctx_destroy(ctx);
    return s == NG_OK;
}

static void same(int line, const struct job *j, const ng_ctx *ctx, ng_status s, const char *how)
{
    checks++;
    if (s == NG_OK && memcmp(j->d, j->want, sizeof j->d) == 0)
        return;
    failures++;
    printf("FAIL %s:%d: %s M %d: %s gives %s %s\n", __FILE__, line, j->name, (int)j->ta.dim[0],
           how, s ? ng_status_name(s) : "other bits", ng_ctx_message(ctx));
}

static void multiply_packed(struct job *j, ng_ctx *ctx, const ng_packed *p, const char *how)
{
    memset(j->d, 0xEE, sizeof j->d);
    same(__LINE__, j, ctx, ng_gemm_packed(ctx, &j->op, &j->ta, p, c_of(j), &j->td), how);
}

static ng_packed *pack(const struct job *j, ng_ctx *ctx)
{
    ng_packed *p = NULL;
    if (!CHECK(ng_pack(ctx, &j->op, &j->tb, j->ta.format, &p) == NG_OK && p))
        printf("     %s: %s\n", j->name, ng_ctx_message(ctx));
    return p;
}

/* Everything that a caller may do with B once it is packed. */
static void lose(struct job *j)
{
    memset(j->b, 0xA5, sizeof j->b);
    memset(j->scale_b, 0xA5, sizeof j->scale_b);
    memset(j->tags, 0xFF, sizeof j->tags);
    memset(&j->sparse, 0, sizeof j->sparse);
}

static bool is_ref(const ng_packed *p)
{
    return strcmp(ng_packed_kernel(p), "ref") == 0;
}

/* The bits of ng_gemm, by the best kernel and by the reference, in one executor. */
static void packs_alike(struct job *j, size_t lane)
{
    static struct job whole;
    if (!reference(j))
        return;
    ng_ctx *best = context(0, lane), *ref = context(NG_ISA_REF, lane);
    memset(j->d, 0xEE, sizeof j->d);
    same(__LINE__, j, best, ng_gemm(best, &j->op, &j->ta, &j->tb, c_of(j), &j->td), "ng_gemm");
    whole = *j; /* its tensors still point into j */
    ng_packed *p = pack(j, best), *r = pack(j, ref);
    if (p && r) {
        CHECK(is_ref(r) && ng_packed_bytes(p) > 0 && ng_packed_bytes(r) > 0);
        lose(j);
        multiply_packed(j, best, p, "a packed B");
        CHECK(strcmp(ng_ctx_kernel(best), ng_packed_kernel(p)) == 0);
        multiply_packed(j, best, p, "a packed B again");
        multiply_packed(j, ref, r, "B packed for the reference");
        multiply_packed(j, best, r, "B packed for the reference, any ISA");
        CHECK(strcmp(ng_ctx_kernel(best), "ref") == 0);
        memcpy(j->b, whole.b, sizeof j->b);
        memcpy(j->scale_b, whole.scale_b, sizeof j->scale_b);
        memcpy(j->tags, whole.tags, sizeof j->tags);
        j->sparse = whole.sparse;
    }
    ng_packed_destroy(p);
    ng_packed_destroy(r);
    ng_ctx_destroy(best);
    ng_ctx_destroy(ref);
}

/* ---- Every rule of every profile. ---- */

static bool takes(const ng_profile *p, const ng_rule *r, size_t a, size_t b)
{
    return ng_format_at(a) && ng_format_at(b) &&
           ng_profile_rule(p, ng_format_at(a)->format, ng_format_at(b)->format, r->mode, NULL,
                           0) == r;
}

static void one_pair(const ng_profile *p, const ng_rule *r, ng_format a, ng_format b)
{
    static struct job j;
    static unsigned n;
    static const int64_t rows[] = { 1, 2, 5, 6, 7, 13, 24, 25, 37, 40 };
    static const int64_t depths[] = { 1, 33, 96, 130 };
    const unsigned i = n++;
    const struct shape s = {
        a, b, NG_F32, rows[i % 10], 1 + i % 3 * 16 + i % 5, depths[i % 4]
    };
    plain_job(&j, &s);
    (void)snprintf(j.name, sizeof j.name, "%s/%s %s x %s", p->name, r->name,
                   ng_format_info(a)->text, ng_format_info(b)->text);
    j.op.profile = p;
    j.op.double_row = r->mode == NG_MODE_DOUBLE_ROW;
    j.with_c = i % 2;
    if (r->mode == NG_MODE_MX || r->mode == NG_MODE_NV)
        give_scales(&j, r->mode == NG_MODE_MX ? NG_E8M0 : NG_UE4M3, r->block ? r->block : 32,
                    NG_LAYOUT_LINEAR);
    packs_alike(&j, i % LANES);
}

/* A rule's first, middle and last pair of formats. */
static void one_rule(const ng_profile *p, const ng_rule *r)
{
    static ng_format pairs[32 * 32][2];
    size_t n = 0;
    for (size_t a = 0; ng_format_at(a); a++)
        for (size_t b = 0; ng_format_at(b); b++)
            if (takes(p, r, a, b)) {
                pairs[n][0] = ng_format_at(a)->format;
                pairs[n++][1] = ng_format_at(b)->format;
            }
    if (!CHECK(n > 0))
        return;
    one_pair(p, r, pairs[0][0], pairs[0][1]);
    if (n > 2)
        one_pair(p, r, pairs[n / 2][0], pairs[n / 2][1]);
    if (n > 1)
        one_pair(p, r, pairs[n - 1][0], pairs[n - 1][1]);
}

static void all_rules(void)
{
    for (size_t i = 0; ng_profile_at(i); i++)
        for (uint32_t k = 0; k < ng_profile_at(i)->n_rules; k++)
            one_rule(ng_profile_at(i), &ng_profile_at(i)->rules[k]);
}

/* ---- What else a multiply can have; every M. ---- */

enum features {
    WITH_C = 1,
    SCALED = 2,
    WRAPPED = 4,
    SPARSE = 8,
    UNSORTED = 16,
    TABLE = 32,
    SR_OUT = 64,
    PSUM_RNE = 128,
    PSUM_SR = 256,
    DOUBLE_ROW = 512,
    OUT_SCALE = 1024
};

struct recipe {
    const char *profile;
    ng_format a, b, d;
    int64_t n, k;
    unsigned features;
};

static const struct recipe recipes[] = {
    { "trn2", NG_BF16, NG_BF16, NG_F32, 33, 140, WITH_C },
    { "trn2", NG_F16, NG_E4M3, NG_F16, 17, 65, OUT_SCALE },
    { "trn2", NG_F32, NG_F32, NG_F32, 18, 40, 0 },
    { "trn2", NG_TF32, NG_TF32, NG_BF16, 16, 33, WITH_C },
    { "trn2", NG_E5M2, NG_E5M2, NG_F32, 20, 260, DOUBLE_ROW },
    { "trn3", NG_E4M3FN, NG_E4M3FN, NG_F32, 19, 160, SCALED | WITH_C },
    { "trn3", NG_E4M3FN, NG_E2M1, NG_F32, 18, 96, SCALED | TABLE },
    { "trn3", NG_E2M1, NG_E2M1, NG_E4M3FN, 18, 96, SCALED | SR_OUT },
    { "trn3", NG_E5M2, NG_E4M3FN, NG_F32, 17, 128, SCALED | WRAPPED },
    { "trn3", NG_BF16, NG_BF16, NG_F32, 17, 64, SPARSE },
    { "trn3", NG_E4M3FN, NG_BF16, NG_F32, 17, 64, SPARSE | UNSORTED | WITH_C },
    { "nv-ampere", NG_F16, NG_F16, NG_F16, 9, 32, SPARSE },
    { "trn3", NG_BF16, NG_BF16, NG_F32, 21, 300, PSUM_RNE },
    { "trn3", NG_BF16, NG_E5M2, NG_BF16, 16, 200, PSUM_SR | SR_OUT },
    { "fma-f32", NG_F32, NG_BF16, NG_F32, 34, 99, WITH_C },
    { "ocp-mx", NG_E4M3FN, NG_E5M2, NG_E2M1, 16, 64, SCALED },
    { "nv-hopper", NG_F16, NG_F16, NG_F16, 8, 32, 0 },
    { "nv-hopper-wgmma", NG_E4M3FN, NG_E5M2, NG_F32, 34, 96, SPARSE | WITH_C },
    { "nv-hopper", NG_BF16, NG_BF16, NG_F32, 17, 64, SPARSE | UNSORTED },
    { "amd-cdna1", NG_BF16, NG_BF16, NG_F32, 33, 27, 0 },
    { "amd-cdna2", NG_F16, NG_F16, NG_F32, 18, 70, WITH_C },
    { "amd-cdna3", NG_BF16, NG_BF16, NG_F32, 8, 24, WITH_C },
    { "amd-cdna3", NG_E4M3FNUZ, NG_E5M2FNUZ, NG_BF16, 35, 50, 0 },
};
#define N_RECIPES (sizeof recipes / sizeof recipes[0])

static void cook(struct job *j, const struct recipe *r, int64_t m)
{
    const struct shape s = { r->a, r->b, r->d, m, r->n, r->k };
    plain_job(j, &s);
    (void)snprintf(j->name, sizeof j->name, "%s %s x %s", r->profile,
                   ng_format_info(r->a)->text, ng_format_info(r->b)->text);
    j->op.profile = ng_profile_find(r->profile);
    j->op.double_row = (r->features & DOUBLE_ROW) != 0;
    j->with_c = r->features & WITH_C;
    if (r->features & SCALED)
        give_scales(j, NG_E8M0, 32,
                    r->features & WRAPPED ? NG_LAYOUT_TRN_WRAP : NG_LAYOUT_LINEAR);
    if (r->features & SPARSE)
        give_tags(j, !(r->features & UNSORTED));
    if (r->features & TABLE) {
        for (int i = 0; i < 16; i++)
            j->table[i] = (unsigned char)some_code(ng_format_info(NG_E5M2), &seed);
        j->op.fp4_map = j->table;
        j->op.fp4_format = NG_E5M2;
    }
    if (r->features & (PSUM_RNE | PSUM_SR)) {
        j->op.accumulate = NG_BF16;
        j->tc.format = NG_BF16;
    }
    if (r->features & PSUM_SR) {
        j->op.psum.round = NG_ROUND_STOCHASTIC;
        j->op.psum.random = words(j);
    }
    if (r->features & SR_OUT) {
        j->op.out.round = NG_ROUND_STOCHASTIC;
        j->op.out.random = words(j);
        j->op.out.random.count = m * r->n; /* exactly as many as D wants */
    }
    if (r->features & OUT_SCALE)
        j->op.out_scale = 0x3FA00000u;
}

/* Packed once, for all M: what it is for. */
static void all_rows(const struct recipe *r)
{
    static struct job j;
    ng_ctx *ctx = context(0, 0);
    cook(&j, r, MOST);
    packs_alike(&j, 3);
    ng_packed *p = pack(&j, ctx);
    const uint64_t from = seed;
    for (int64_t m = 1; p && m <= MOST; m++) {
        ng_tensor a = j.ta, c = j.tc, d = j.td;
        a.dim[0] = c.dim[0] = d.dim[0] = m;
        const ng_tensor *with = j.with_c ? &c : NULL;
        memset(j.d, 0xEE, sizeof j.d);
        CHECK(ng_gemm(ctx, &j.op, &a, &j.tb, with, &d) == NG_OK);
        memcpy(j.want, j.d, sizeof j.want);
        memset(j.d, 0xEE, sizeof j.d);
        same(__LINE__, &j, ctx, ng_gemm_packed(ctx, &j.op, &a, p, with, &d), "one packed B");
    }
    CHECK(seed == from);
    ng_packed_destroy(p);
    ng_ctx_destroy(ctx);
}

static void all_recipes(void)
{
    static struct job j;
    for (size_t i = 0; i < N_RECIPES; i++) {
        all_rows(&recipes[i]);
        for (size_t lane = 0; lane < LANES; lane++) {
            cook(&j, &recipes[i], 1 + (int64_t)(i * LANES + lane) % MOST);
            packs_alike(&j, lane);
        }
    }
}

/* ---- Any number of threads share it. ---- */

struct sharer {
    const struct job *j;
    const ng_packed *packed;
    unsigned wrong;
};

static void *share(void *arg)
{
    struct sharer *s = arg;
    static _Thread_local unsigned char d[ROOM];
    ng_ctx *ctx = NULL;
    ng_tensor td = s->j->td;
    td.data = d;
    if (ng_ctx_create(NULL, &ctx)) {
        s->wrong++;
        return NULL;
    }
    for (int i = 0; i < 20; i++) {
        memset(d, 0xEE, sizeof d);
        const ng_status status =
            ng_gemm_packed(ctx, &s->j->op, &s->j->ta, s->packed, c_of(s->j), &td);
        s->wrong += status || memcmp(d, s->j->want, sizeof d) != 0;
    }
    ng_ctx_destroy(ctx);
    return NULL;
}

static void shared_by_threads(void)
{
    static struct job j;
    static const size_t some[] = { 0, 5, 9, 10, 16 };
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        cook(&j, &recipes[some[i]], 12);
        ng_ctx *ctx = context(0, 0);
        ng_packed *p = reference(&j) ? pack(&j, ctx) : NULL;
        ng_ctx_destroy(ctx); /* B outlives the context that packed it */
        struct sharer s[2] = { { &j, p, 0 }, { &j, p, 0 } };
        pthread_t other;
        if (p && CHECK(pthread_create(&other, NULL, share, &s[1]) == 0)) {
            (void)share(&s[0]);
            CHECK(pthread_join(other, NULL) == 0);
            CHECK(s[0].wrong == 0 && s[1].wrong == 0);
        }
        ng_packed_destroy(p);
    }
}

/* ---- An allocator that fails at its n-th call. ---- */

struct counted {
    long until_failure; /* calls that still succeed; negative: all */
    long calls, live;
    size_t most; /* bytes of the largest request */
};

static void *counted_alloc(void *user, size_t align, size_t bytes)
{
    struct counted *c = user;
    c->calls++;
    c->most = bytes > c->most ? bytes : c->most;
    if (c->until_failure == 0)
        return NULL;
    if (c->until_failure > 0)
        c->until_failure--;
    void *p = aligned_alloc(align, (bytes + align - 1) / align * align);
    c->live += p != NULL;
    return p;
}

static void counted_free(void *user, void *ptr)
{
    struct counted *c = user;
    c->live -= ptr != NULL;
    free(ptr);
}

static ng_status session(struct counted *c, struct job *j, uint32_t mask)
{
    const ng_ctx_config config = { .size = sizeof config,
                                   .isa_mask = mask,
                                   .allocator = { counted_alloc, counted_free, c } };
    ng_ctx *ctx = NULL;
    ng_packed *p = NULL;
    ng_status s = ng_ctx_create(&config, &ctx);
    if (s)
        return s;
    s = ng_pack(ctx, &j->op, &j->tb, j->ta.format, &p);
    CHECK(s ? !p && strstr(ng_ctx_message(ctx), "allocator") : p != NULL);
    if (!s) {
        memset(j->d, 0xEE, sizeof j->d);
        s = ng_gemm_packed(ctx, &j->op, &j->ta, p, c_of(j), &j->td);
        if (!s) {
            CHECK(memcmp(j->d, j->want, sizeof j->d) == 0);
        } else {
            bool untouched = true;
            for (size_t i = 0; i < sizeof j->d; i++)
                untouched = untouched && j->d[i] == 0xEE;
            CHECK(untouched);
        }
    }
    ng_packed_destroy(p);
    ng_ctx_destroy(ctx);
    return s;
}

static void allocator_fails(void)
{
    static struct job j;
    static const size_t some[] = { 0, 5, 9, 16 };
    for (size_t i = 0; i < 2 * sizeof some / sizeof some[0]; i++) {
        const uint32_t mask = i % 2 ? NG_ISA_REF : 0;
        struct counted all = { .until_failure = -1 };
        cook(&j, &recipes[some[i / 2]], 12);
        if (!reference(&j))
            continue;
        CHECK(session(&all, &j, mask) == NG_OK && all.live == 0 && all.calls >= 2);
        for (long n = 0; n < all.calls; n++) {
            struct counted c = { .until_failure = n };
            CHECK(session(&c, &j, mask) == NG_ERR_MEMORY && c.live == 0);
        }
    }
}

/* ---- Misuse. ---- */

/* The call failed as it should: status, both sides named, D untouched. */
static void refused(int line, const struct job *j, const ng_ctx *ctx, ng_status got,
                    ng_status want, const char *one, const char *other)
{
    const char *message = ng_ctx_message(ctx);
    bool untouched = true;
    checks++;
    for (size_t i = 0; i < sizeof j->d; i++)
        untouched = untouched && j->d[i] == 0xEE;
    if (got == want && untouched && strstr(message, one) && strstr(message, other))
        return;
    failures++;
    printf("FAIL %s:%d: %s, D %s: \"%s\"; wanted %s, naming \"%s\" and \"%s\"\n", __FILE__,
           line, ng_status_name(got), untouched ? "untouched" : "written", message,
           ng_status_name(want), one, other);
}
#define REFUSED(call, want, one, other)                                                        \
    do {                                                                                       \
        memset(j.d, 0xEE, sizeof j.d);                                                         \
        refused(__LINE__, &j, ctx, call, want, one, other);                                    \
    } while (0)

static void other_rules(void)
{
    static struct job j;
    cook(&j, &recipes[0], 9); /* trn2, bf16, with C */
    ng_ctx *ctx = context(0, 0);
    ng_packed *p = pack(&j, ctx);
    ng_gemm_op op = j.op;
    op.profile = ng_profile_find("trn3");
    REFUSED(ng_gemm_packed(ctx, &op, &j.ta, p, &j.tc, &j.td), NG_ERR_PROFILE, "trn2", "trn3");
    op.profile = ng_profile_find("nv-ampere");
    REFUSED(ng_gemm_packed(ctx, &op, &j.ta, p, &j.tc, &j.td), NG_ERR_PROFILE, "trn2",
            "nv-ampere");
    ng_profile *own = ng_profile_copy(j.op.profile);
    CHECK(ng_profile_set(own, "plain", "chain_rows", "16") == NG_OK);
    op.profile = own;
    REFUSED(ng_gemm_packed(ctx, &op, &j.ta, p, &j.tc, &j.td), NG_ERR_PROFILE, "trn2/plain",
            "parameters");
    ng_profile_free(own);
    /* another profile with the same parameters is the same rule */
    op.profile = ng_profile_find("trn1");
    if (reference(&j)) {
        memset(j.d, 0xEE, sizeof j.d);
        same(__LINE__, &j, ctx, ng_gemm_packed(ctx, &op, &j.ta, p, &j.tc, &j.td), "trn1");
    }
    ng_packed_destroy(p);

    cook(&j, &recipes[4], 9); /* double_row */
    p = pack(&j, ctx);
    op = j.op;
    op.double_row = false;
    REFUSED(ng_gemm_packed(ctx, &op, &j.ta, p, NULL, &j.td), NG_ERR_PROFILE, "double_row",
            "plain");
    ng_packed_destroy(p);
    ng_ctx_destroy(ctx);
}

static void other_operands(void)
{
    static struct job j, h;
    cook(&j, &recipes[0], 9);
    ng_ctx *ctx = context(0, 0);
    ng_packed *p = pack(&j, ctx);
    ng_tensor a = j.ta;
    a.format = NG_F16;
    REFUSED(ng_gemm_packed(ctx, &j.op, &a, p, &j.tc, &j.td), NG_ERR_PROFILE, "bf16", "f16");
    a = j.ta;
    a.dim[1]--;
    REFUSED(ng_gemm_packed(ctx, &j.op, &a, p, &j.tc, &j.td), NG_ERR_SHAPE, "139", "140");
    ng_tensor d = j.td;
    d.dim[1]--;
    REFUSED(ng_gemm_packed(ctx, &j.op, &j.ta, p, NULL, &d), NG_ERR_SHAPE, "33", "32");
    d = j.td;
    d.dim[0]--;
    REFUSED(ng_gemm_packed(ctx, &j.op, &j.ta, p, NULL, &d), NG_ERR_SHAPE, "9", "8");
    a = j.ta;
    a.rank = 3;
    a.dim[2] = a.stride[2] = 1;
    REFUSED(ng_gemm_packed(ctx, &j.op, &a, p, NULL, &j.td), NG_ERR_SHAPE, "rank 3", "2");
    d = j.td;
    d.rank = 3;
    d.dim[2] = d.stride[2] = 1;
    REFUSED(ng_gemm_packed(ctx, &j.op, &j.ta, p, NULL, &d), NG_ERR_SHAPE, "rank 3", "a");
    cook(&h, &recipes[0], 9);
    h.sparse = (ng_sparse){ .kept = 2, .group = 4, .tags = h.tags };
    a = h.ta;
    a.dim[1] = 70;
    a.sparse = &h.sparse;
    memset(j.d, 0xEE, sizeof j.d);
    CHECK(ng_gemm_packed(ctx, &j.op, &a, p, NULL, &j.td) != NG_OK);
    CHECK(strstr(ng_ctx_message(ctx), "sparse") && j.d[0] == 0xEE);
    ng_packed_destroy(p);

    cook(&j, &recipes[6], 9); /* an FP4 table */
    p = pack(&j, ctx);
    ng_gemm_op op = j.op;
    op.fp4_map = NULL;
    REFUSED(ng_gemm_packed(ctx, &op, &j.ta, p, NULL, &j.td), NG_ERR_PROFILE, "FP4 table",
            "none");
    unsigned char table[16];
    memcpy(table, j.table, 16);
    op.fp4_map = table; /* the same table elsewhere is the same */
    if (reference(&j)) {
        memset(j.d, 0xEE, sizeof j.d);
        same(__LINE__, &j, ctx, ng_gemm_packed(ctx, &op, &j.ta, p, NULL, &j.td), "its table");
    }
    table[15] ^= 1;
    REFUSED(ng_gemm_packed(ctx, &op, &j.ta, p, NULL, &j.td), NG_ERR_PROFILE, "FP4 table",
            "another");
    op = j.op;
    op.fp4_format = NG_E4M3FN;
    REFUSED(ng_gemm_packed(ctx, &op, &j.ta, p, NULL, &j.td), NG_ERR_PROFILE, "FP4 table",
            "another");
    ng_tensor bare = j.ta;
    bare.scale = NULL;
    REFUSED(ng_gemm_packed(ctx, &op, &bare, p, NULL, &j.td), NG_ERR_FORMAT, "scales", "none");
    ng_packed_destroy(p);
    ng_ctx_destroy(ctx);
}

/* Packed for a kernel whose ISA this context may not use. */
static void other_isa(void)
{
    static struct job j;
    cook(&j, &recipes[0], 9);
    ng_ctx *best = context(0, 0), *ctx = context(NG_ISA_REF, 0);
    ng_packed *p = pack(&j, best);
    if (is_ref(p))
        printf("skipped: this CPU has no kernel to exclude\n");
    else
        REFUSED(ng_gemm_packed(ctx, &j.op, &j.ta, p, &j.tc, &j.td), NG_ERR_PROFILE,
                ng_packed_kernel(p), "isa_mask");
    ng_packed_destroy(p);
    ng_ctx_destroy(best);
    ng_ctx_destroy(ctx);
}

static void nulls(void)
{
    static struct job j;
    cook(&j, &recipes[0], 9);
    ng_ctx *ctx = context(0, 0);
    ng_packed *p = pack(&j, ctx), *none = NULL;
    const ng_gemm_op *op = &j.op;
    REFUSED(ng_gemm_packed(ctx, NULL, &j.ta, p, NULL, &j.td), NG_ERR_ARGUMENT, "op", "NULL");
    REFUSED(ng_gemm_packed(ctx, op, NULL, p, NULL, &j.td), NG_ERR_ARGUMENT, "a", "NULL");
    REFUSED(ng_gemm_packed(ctx, op, &j.ta, NULL, NULL, &j.td), NG_ERR_ARGUMENT, "b", "NULL");
    REFUSED(ng_gemm_packed(ctx, op, &j.ta, p, NULL, NULL), NG_ERR_ARGUMENT, "d", "NULL");
    REFUSED(ng_pack(ctx, NULL, &j.tb, NG_BF16, &none), NG_ERR_ARGUMENT, "op", "NULL");
    REFUSED(ng_pack(ctx, op, NULL, NG_BF16, &none), NG_ERR_ARGUMENT, "b", "NULL");
    REFUSED(ng_pack(ctx, op, &j.tb, NG_BF16, NULL), NG_ERR_ARGUMENT, "packed", "NULL");
    REFUSED(ng_pack(ctx, op, &j.tb, NG_FORMAT_NONE, &none), NG_ERR_FORMAT, "a_format", "0");
    REFUSED(ng_pack(ctx, op, &j.tb, NG_F32, &none), NG_ERR_PROFILE, "f32", "bf16");
    ng_gemm_op wrong = j.op;
    wrong.profile = NULL;
    REFUSED(ng_pack(ctx, &wrong, &j.tb, NG_BF16, &none), NG_ERR_ARGUMENT, "profile", "NULL");
    REFUSED(ng_gemm_packed(ctx, &wrong, &j.ta, p, NULL, &j.td), NG_ERR_ARGUMENT, "profile",
            "NULL");
    wrong = j.op;
    wrong.size--;
    REFUSED(ng_pack(ctx, &wrong, &j.tb, NG_BF16, &none), NG_ERR_ARGUMENT, "op.size", "");
    ng_tensor b = j.tb;
    b.data = NULL;
    REFUSED(ng_pack(ctx, op, &b, NG_BF16, &none), NG_ERR_ARGUMENT, "b", "NULL");
    b = j.tb;
    b.rank = 3;
    b.dim[2] = b.stride[2] = 1;
    REFUSED(ng_pack(ctx, op, &b, NG_BF16, &none), NG_ERR_SHAPE, "b", "rank");
    b = j.tb;
    b.dim[0] = 0;
    REFUSED(ng_pack(ctx, op, &b, NG_BF16, &none), NG_ERR_SHAPE, "b", "0");
    b = j.tb;
    b.dim[0] = (int64_t)1 << 60;
    REFUSED(ng_pack(ctx, op, &b, NG_BF16, &none), NG_ERR_SHAPE, "b is [1152921504606846976",
            "fewer than 2^63 bytes");
    CHECK(!none);
    CHECK(ng_pack(NULL, op, &j.tb, NG_BF16, &none) == NG_ERR_ARGUMENT);
    CHECK(ng_gemm_packed(NULL, op, &j.ta, p, NULL, &j.td) == NG_ERR_ARGUMENT);
    ng_packed_destroy(NULL);
    CHECK(ng_packed_bytes(NULL) == 0 && strcmp(ng_packed_kernel(NULL), "") == 0);
    ng_packed_destroy(p);
    ng_ctx_destroy(ctx);
}

/* What is small stays so: hundredths of a byte an element, by a kernel of AVX-512 and by
 * another, panel heads and scales included. */
struct small {
    struct recipe recipe;
    size_t wide, other;
};

static const struct small small[] = {
    { { "trn3", NG_E2M1, NG_E2M1, NG_F32, 256, 256, SCALED }, 100, 100 },
    { { "trn3", NG_E4M3FN, NG_E2M1, NG_F32, 256, 256, SCALED }, 55, 55 },
    { { "trn3", NG_E4M3FN, NG_E2M1, NG_F32, 256, 256, SCALED | TABLE }, 90, 90 },
    { { "trn2", NG_E4M3, NG_E4M3, NG_F32, 256, 256, 0 }, 102, 202 },
    { { "trn2", NG_BF16, NG_E5M2, NG_F32, 256, 256, 0 }, 102, 202 },
    { { "trn2", NG_E3M4, NG_E3M4, NG_F32, 256, 256, 0 }, 102, 202 },
    { { "trn2", NG_E4M3, NG_E4M3, NG_F32, 256, 256, DOUBLE_ROW }, 156, 256 },
    { { "trn3", NG_E4M3FN, NG_E4M3FN, NG_F32, 256, 256, SCALED }, 133, 233 },
    /* 2:4, of 128 k that are kept: two values and their tags beside the panel */
    { { "trn2", NG_BF16, NG_BF16, NG_F32, 128, 128, SPARSE }, 480, 480 },
};

static void stays_small(struct job *j, const struct small *x, size_t lane)
{
    cook(j, &x->recipe, MOST);
    j->table[5] = 0; /* +0, for empty places */
    if (!reference(j))
        return;
    size_t bytes = 0;
    ng_ctx *ctx = context(0, lane);
    CHECK(ng_gemm_scratch(ctx, &j->op, &j->ta, &j->tb, NULL, &j->td, &bytes) == NG_OK);
    ng_packed *p = pack(j, ctx);
    const char *kernel = ng_packed_kernel(p);
    const size_t part = strstr(kernel, "avx512") || strstr(kernel, "amx") ? x->wide : x->other;
    if (!CHECK(is_ref(p) || ng_packed_bytes(p) * 100 <=
                                part * (size_t)(x->recipe.n * x->recipe.k) + 100 * 1024))
        printf("     %s by %s: %zu bytes\n", j->name, kernel, ng_packed_bytes(p));
    void *room = aligned_alloc(64, (bytes + 63) / 64 * 64);
    const ng_ctx_config config = { .size = sizeof config,
                                   .executor = lanes.executor[lane],
                                   .scratch = room,
                                   .scratch_bytes = bytes };
    ng_ctx *tight = NULL;
    if (room && CHECK(ng_ctx_create(&config, &tight) == NG_OK))
        multiply_packed(j, tight, p, "a slim B in scratch memory");
    ng_ctx_destroy(tight);
    ng_ctx_destroy(ctx);
    ng_packed_destroy(p);
    free(room);
}

/* And what ng_gemm_scratch() asks for is enough to grow it. */
static void small_panels(void)
{
    static struct job j;
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++)
        for (size_t lane = 0; lane < LANES; lane++)
            stays_small(&j, &small[i], lane);
}

/* A call of few rows wants memory for panels under way, not for all of B (4 MiB). */
static void few_rows(void)
{
    static const int64_t a[] = { 8, 512 }, b[] = { 512, 4096 }, d[] = { 8, 4096 };
    static uint16_t in[512 * 4096];
    static uint32_t out[8 * 4096];
    const ng_gemm_op op = { .size = sizeof op, .profile = ng_profile_find("trn2") };
    ng_tensor ta, tb, td;
    ng_ctx *ctx = context(0, 0);
    size_t bytes = SIZE_MAX;
    CHECK(ng_tensor_init(&ta, NG_BF16, in, 2, a) == NG_OK);
    CHECK(ng_tensor_init(&tb, NG_BF16, in, 2, b) == NG_OK);
    CHECK(ng_tensor_init(&td, NG_F32, out, 2, d) == NG_OK);
    CHECK(ng_gemm_scratch(ctx, &op, &ta, &tb, NULL, &td, &bytes) == NG_OK);
    CHECK(bytes < (size_t)1 << 20);
    ng_ctx_destroy(ctx);
}

/* A code in the middle of the format's range. */
static size_t put_middling(unsigned char *p, ng_format f)
{
    const uint64_t r = next(&seed);
    if (f == NG_BF16) {
        const uint16_t code = (uint16_t)(0x3D00 + r % 0x400 + (r >> 16) % 2 * 0x8000);
        memcpy(p, &code, sizeof code);
        return sizeof code;
    }
    *p = (unsigned char)(r % 40 + 40 + (r >> 16) % 2 * 128);
    return 1;
}

enum {
    DEEP_M = 49,
    DEEP_N = 130, /* bf16 of 1.1 MiB: more than a second cache holds (adjoin_pack) */
    DEEP_K = 4500
};

/* A product whose B stays the same: by one mask of ISAs all of its rows, or the first ones. */
struct deep {
    ng_gemm_op op;
    ng_tensor a, b, d;
    const uint32_t *want;
};

static void deep_rows_by(struct deep *x, uint32_t mask)
{
    static uint32_t out[DEEP_M * DEEP_N];
    ng_ctx *ctx = context(mask, 0);
    ng_packed *p = NULL;
    x->d.data = out;
    CHECK(ng_pack(ctx, &x->op, &x->b, x->a.format, &p) == NG_OK);
    for (int64_t m = 1; m <= DEEP_M; m++) {
        x->a.dim[0] = x->d.dim[0] = m;
        for (int way = 0; way < 2; way++) {
            memset(out, 0xEE, sizeof out);
            CHECK((way ? ng_gemm_packed(ctx, &x->op, &x->a, p, NULL, &x->d)
                       : ng_gemm(ctx, &x->op, &x->a, &x->b, NULL, &x->d)) == NG_OK);
            CHECK(memcmp(out, x->want, (size_t)m * DEEP_N * sizeof *out) == 0);
        }
    }
    ng_packed_destroy(p);
    ng_ctx_destroy(ctx);
}

/* Two of each four places of a 2:4 B, in the order of K. */
static const unsigned char deep_places[][2] = { { 0, 1 }, { 0, 2 }, { 0, 3 },
                                                { 1, 2 }, { 1, 3 }, { 2, 3 } };

/* Any such places of B as tags of its columns, and B as it is without them. */
static void deep_tags(ng_tag_store store, const unsigned char *b, size_t bytes,
                      unsigned char *tags, unsigned char *dense)
{
    const size_t line = (DEEP_K / 2 + 3) / 4 * (store == NG_TAG_TRN ? 2 : 1),
                 row = DEEP_N * bytes;
    memset(tags, 0, line * DEEP_N);
    memset(dense, 0, DEEP_K * row);
    for (size_t n = 0; n < DEEP_N; n++)
        for (size_t slot = 0; slot < DEEP_K / 2; slot += 2) {
            const unsigned char *const place = deep_places[next(&seed) % 6];
            for (size_t i = 0; i < 2; i++) {
                const size_t at = slot + i, each = store == NG_TAG_TRN ? 2 : 4;
                tags[n * line + at / each] |=
                    (unsigned char)(place[i] << (at % each * (8 / each)));
                memcpy(dense + (2 * slot + place[i]) * row + n * bytes,
                       b + at * row + n * bytes, bytes);
            }
        }
}

/*
 * Rows by two panels after two, or two and then the others (gemm_run.c), codes of B as they are
 * and grown ones, more of K than one block of it, in chains of 32 and in one: the bits of
 * AVX2's kernels, which pack in the call. A 2:4 B, which each ISA keeps in its own way, by all
 * of them; in one chain it has the bits of the dense one. Values that no slow path has to take.
 */
static void deep_rows(const char *profile, ng_format f, const ng_tag_store *store)
{
    static const int64_t da[] = { DEEP_M, DEEP_K }, dd[] = { DEEP_M, DEEP_N };
    static unsigned char a[2 * DEEP_M * DEEP_K], b[2 * DEEP_K * DEEP_N],
        dense[2 * DEEP_K * DEEP_N], tags[(DEEP_K / 2 + 3) / 4 * 2 * DEEP_N];
    const int64_t db[] = { store ? DEEP_K / 2 : DEEP_K, DEEP_N };
    const ng_sparse kept = {
        .tags = tags, .kept = 2, .group = 4, .store = store ? *store : NG_TAG_NV24
    };
    static uint32_t want[DEEP_M * DEEP_N];
    struct deep x = { .op = { .size = sizeof x.op, .profile = ng_profile_find(profile) },
                      .want = want };
    ng_tensor whole;
    ng_ctx *other = context(NG_ISA_AVX2 | NG_ISA_REF, 0);
    ng_packed *p = NULL;
    for (size_t i = 0; i < sizeof a; i += put_middling(a + i, f))
        ;
    for (size_t i = 0; i < sizeof b; i += put_middling(b + i, f))
        ;
    CHECK(ng_tensor_init(&x.a, f, a, 2, da) == NG_OK);
    CHECK(ng_tensor_init(&x.b, f, b, 2, db) == NG_OK);
    CHECK(ng_tensor_init(&x.d, NG_F32, want, 2, dd) == NG_OK);
    whole = x.b;
    if (store) {
        deep_tags(*store, b, f == NG_BF16 ? 2 : 1, tags, dense);
        x.b.sparse = &kept;
        if (strcmp(profile, "fma-f32") == 0) {
            whole.data = dense;
            whole.dim[0] = DEEP_K;
        } else {
            whole = x.b;
        }
    }
    CHECK(ng_pack(other, &x.op, &x.b, f, &p) == NG_OK);
    if (!p || is_ref(p)) {
        printf("skipped: deep rows of %s: no kernel for them here\n", profile);
    } else {
        CHECK(ng_gemm(other, &x.op, &x.a, &whole, NULL, &x.d) == NG_OK);
        deep_rows_by(&x, 0);
        if (store) {
            deep_rows_by(&x, NG_ISA_AVX512 | NG_ISA_AVX2 | NG_ISA_REF);
            deep_rows_by(&x, NG_ISA_AVX2 | NG_ISA_REF);
        }
    }
    ng_packed_destroy(p);
    ng_ctx_destroy(other);
}

/* B repeated by strides of zero: more of it than memory has, and than size_t counts. */
static void too_large(void)
{
    static struct job j;
    static const int64_t sizes[][2] = { { INT64_C(1) << 24, INT64_C(1) << 42 },
                                        { INT64_C(1) << 33, INT64_C(1) << 31 } };
    static const char *const profiles[] = { "trn2", "nv-ampere" };
    cook(&j, &recipes[0], 9);
    for (int i = 0; i < 4; i++) {
        struct counted c = { .until_failure = 1 }; /* for the context */
        const ng_ctx_config config = { .size = sizeof config,
                                       .allocator = { counted_alloc, counted_free, &c } };
        ng_ctx *ctx = NULL;
        ng_packed *p = NULL;
        ng_gemm_op op = j.op;
        ng_tensor b = j.tb;
        CHECK(ng_ctx_create(&config, &ctx) == NG_OK);
        op.profile = ng_profile_find(profiles[i / 2]);
        for (int d = 0; d < 2; d++) {
            b.dim[d] = sizes[i % 2][d];
            b.stride[d] = 0;
        }
        const ng_status s = ng_pack(ctx, &op, &b, NG_BF16, &p);
        /* never asks for less than it will write */
        if (!CHECK(!p && (s == NG_ERR_SHAPE || (s == NG_ERR_MEMORY && c.most >> 60))))
            printf("     %s: %s, asked for %zu\n", profiles[i / 2], ng_status_name(s), c.most);
        ng_ctx_destroy(ctx);
    }
}

/* ---- ng_gemm_kernels. ---- */

enum {
    MANY = 32
};

struct told {
    size_t times, n;
    ng_kernel_info info[MANY];
    char stage[16], does[16];
};

static void keep_choice(void *user, const ng_kernel_choice *c)
{
    struct told *t = user;
    t->times++;
    t->n = c->count;
    for (size_t i = 0; i < c->count && i < MANY; i++)
        t->info[i] = c->info[i];
    snprintf(t->stage, sizeof t->stage, "%s", c->stage);
    snprintf(t->does, sizeof t->does, "%s", c->does);
}

/* What a watched ng_gemm() tells is what ng_gemm_kernels() says. */
static void watched(struct job *j, ng_ctx *ctx, const ng_kernel_info *all, size_t n)
{
    struct told t = { .times = 0 };
    ng_ctx_watch(ctx, &(ng_kernel_watch){ keep_choice, &t });
    CHECK(ng_gemm(ctx, &j->op, &j->ta, &j->tb, c_of(j), &j->td) == NG_OK);
    if (!CHECK(t.times == 1 && t.n == n && strcmp(t.stage, "gemm") == 0 &&
               strcmp(t.does, "multiply") == 0))
        printf("     %s: told %zu times of %zu\n", j->name, t.times, t.n);
    for (size_t i = 0; i < n && i < t.n; i++)
        CHECK(strcmp(t.info[i].name, all[i].name) == 0 && t.info[i].chosen == all[i].chosen &&
              !t.info[i].refuses == !all[i].refuses &&
              (!all[i].refuses || strcmp(t.info[i].refuses, all[i].refuses) == 0));
    CHECK(ng_gemm(ctx, &j->op, NULL, &j->tb, NULL, &j->td) == NG_ERR_ARGUMENT && t.times == 1);
    ng_ctx_watch(ctx, NULL);
    CHECK(ng_gemm(ctx, &j->op, &j->ta, &j->tb, c_of(j), &j->td) == NG_OK && t.times == 1);
    ng_ctx_watch(NULL, NULL);
}

static void kernels_of(struct job *j, uint32_t mask)
{
    ng_kernel_info all[MANY + 1], some[MANY + 1];
    size_t n = 0, again = 0, chosen = MANY;
    ng_ctx *ctx = context(mask, 0);
    memset(all, 0xEE, sizeof all);
    CHECK(ng_gemm_kernels(ctx, &j->op, &j->ta, &j->tb, c_of(j), &j->td, all, MANY, &n) ==
          NG_OK);
    if (!CHECK(n >= 1 && n <= MANY))
        return;
    for (size_t i = 0; i < n; i++) {
        CHECK(all[i].name && all[i].isa && all[i].name[0] && all[i].isa[0]);
        CHECK(all[i].chosen ? !all[i].refuses && chosen == MANY
                            : all[i].refuses && all[i].refuses[0]);
        if (all[i].chosen)
            chosen = i;
    }
    for (size_t i = 0; i < chosen && i < n; i++) /* what comes before it has its own reason */
        CHECK(!all[i].refuses || strcmp(all[i].refuses, "another takes it first") != 0);
    CHECK(strcmp(all[n - 1].name, "ref") == 0);
    /* ng_gemm() did as was said */
    CHECK(ng_gemm(ctx, &j->op, &j->ta, &j->tb, c_of(j), &j->td) == NG_OK);
    if (!CHECK(chosen < n && strcmp(all[chosen].name, ng_ctx_kernel(ctx)) == 0))
        printf("     %s: mask %u, it took %s\n", j->name, mask, ng_ctx_kernel(ctx));
    watched(j, ctx, all, n);
    /* less room than there are */
    for (size_t room = 0; room < n; room++) {
        const ng_kernel_info guard = { .name = "guard" };
        for (size_t i = 0; i <= MANY; i++)
            some[i] = guard;
        CHECK(ng_gemm_kernels(ctx, &j->op, &j->ta, &j->tb, c_of(j), &j->td, room ? some : NULL,
                              room, &again) == NG_OK);
        bool kept = again == n;
        for (size_t i = 0; i <= MANY; i++)
            kept = kept &&
                   (i < room ? some[i].name == all[i].name && some[i].chosen == all[i].chosen &&
                                   some[i].refuses == all[i].refuses
                             : some[i].name == guard.name);
        CHECK(kept);
    }
    CHECK(ng_gemm_kernels(ctx, &j->op, &j->ta, &j->tb, c_of(j), &j->td, NULL, 3, &n) ==
          NG_ERR_ARGUMENT);
    CHECK(ng_gemm_kernels(ctx, &j->op, &j->ta, &j->tb, c_of(j), &j->td, all, MANY, NULL) ==
          NG_ERR_ARGUMENT);
    CHECK(ng_gemm_kernels(ctx, &j->op, NULL, &j->tb, NULL, &j->td, all, MANY, &n) ==
          NG_ERR_ARGUMENT);
    ng_ctx_destroy(ctx);
}

static void all_kernels(void)
{
    static struct job j;
    for (size_t i = 0; i < N_RECIPES; i++)
        for (uint32_t mask = 0; mask < 8; mask++) {
            cook(&j, &recipes[i], mask % 2 ? 12 : 1); /* a row may be too little for a kernel */
            kernels_of(&j, mask);
        }
}

/* ---- ng_ctx_tiles. ---- */

static uint64_t sum(ng_tiles t)
{
    return t.fast + t.exact + t.reference;
}

static ng_tiles tiles(struct job *j, size_t lane)
{
    ng_ctx *ctx = context(0, lane);
    memset(j->d, 0xEE, sizeof j->d);
    CHECK(sum(ng_ctx_tiles(ctx)) == 0);
    const ng_status s = ng_gemm(ctx, &j->op, &j->ta, &j->tb, c_of(j), &j->td);
    same(__LINE__, j, ctx, s, "ng_gemm, whose tiles are counted");
    const ng_tiles t = ng_ctx_tiles(ctx);
    ng_ctx_destroy(ctx);
    return t;
}

/* In one row: values far apart, in one place of it a NaN or Inf. */
static void spoil(struct job *j, int64_t row, bool special)
{
    const ng_format_spec *f = ng_format_info(j->ta.format);
    const uint32_t low = 1u << f->low_bits;
    for (int64_t k = 0; !special && k < j->ta.dim[1]; k++)
        ng_tensor_set(&j->ta, (int64_t[]){ row, k }, k % 2 ? f->max_code : low);
    if (special)
        ng_tensor_set(&j->ta, (int64_t[]){ row, j->ta.dim[1] / 2 },
                      f->has_inf ? f->max_code + low : f->nan_code);
    for (int64_t b = 0; !special && j->ta.scale && b < (j->ta.dim[1] + 31) / 32; b++)
        j->scale_a[row * ((j->ta.dim[1] + 31) / 32) + b] = b % 2 ? 254 : 0;
}

static void counted_tiles(const struct recipe *r)
{
    static struct job j;
    for (int how = 0; how < 3; how++) {
        cook(&j, r, MOST);
        ng_tensor *const t[] = { &j.tb, &j.tc, &j.td };
        for (int i = 0; i < 3; i++)
            t[i]->dim[1] = 8; /* one panel of columns, whatever the kernel */
        if (!reference(&j))
            return;
        const ng_tiles clean = tiles(&j, 0);
        if (how) {
            spoil(&j, 21, how == 2);
            if (!reference(&j))
                return;
        }
        for (size_t lane = 0; lane < LANES; lane++) {
            const ng_tiles x = tiles(&j, lane);
            CHECK(sum(x) == sum(clean));
            if (!CHECK(clean.reference == sum(clean) || x.fast + 1 >= clean.fast))
                printf("     %s: %llu of %llu tiles stay fast\n", j.name,
                       (unsigned long long)x.fast, (unsigned long long)clean.fast);
        }
    }
    /* by the reference: its elements */
    ng_ctx *ctx = context(NG_ISA_REF, 0);
    CHECK(ng_gemm(ctx, &j.op, &j.ta, &j.tb, c_of(&j), &j.td) == NG_OK);
    const ng_tiles x = ng_ctx_tiles(ctx);
    CHECK(x.reference == 8 * MOST && x.fast == 0 && x.exact == 0);
    ng_ctx_destroy(ctx);
}

int main(void)
{
    for (size_t i = 1; i < LANES - 1; i++)
        (void)ng_pool_create(i + 1, &lanes.pool[i], &lanes.executor[i]);
    lanes.executor[LANES - 1] = (ng_executor){ backwards, NULL, 1 };
    all_rules();
    all_recipes();
    shared_by_threads();
    allocator_fails();
    other_rules();
    other_operands();
    other_isa();
    nulls();
    all_kernels();
    for (size_t i = 0; i < N_RECIPES; i++)
        if (recipes[i].features != SPARSE)
            counted_tiles(&recipes[i]);
    small_panels();
    few_rows();
    const ng_tag_store trn = NG_TAG_TRN, nv24 = NG_TAG_NV24;
    deep_rows("trn2", NG_E4M3, NULL);
    deep_rows("fma-f32", NG_E4M3FN, NULL);
    deep_rows("trn2", NG_BF16, NULL);
    deep_rows("fma-f32", NG_BF16, NULL);
    deep_rows("trn2", NG_BF16, &trn);
    deep_rows("trn2", NG_E4M3, &nv24);
    deep_rows("fma-f32", NG_BF16, &trn);
    deep_rows("fma-f32", NG_BF16, &nv24);
    too_large();
    CHECK(ng_ctx_tiles(NULL).fast == 0);
    for (size_t i = 0; i < LANES; i++)
        ng_pool_destroy(lanes.pool[i]);
    return report("test_pack");
}
