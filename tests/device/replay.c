/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a Hopper GPU gave for the operands of cases.h (hopper.cu; digests in hopper.txt) against
 * the oracle. One ng_gemm() a tile.
 *
 *   replay hopper.txt            the first tiles of every case, some inputs of conversions
 *   replay --all hopper.txt      all tiles
 *   replay --conversions hopper.txt  all inputs of conversions: some minutes
 *   replay --results FILE        every bit against what `hopper FOLDER` wrote: which differ
 *   replay --library library.txt PyTorch's multiplies (library.py)
 *   replay --teeth               which wrong values of a rule's parameters the first tiles
 * notice
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "ng/ng.h"

struct outcome {
    long cases, results, different;
};

static ng_tensor matrix(ng_format format, void *data, int64_t rows, int64_t columns)
{
    ng_tensor t;
    const int64_t dim[2] = { rows, columns };
    if (ng_tensor_init(&t, format, data, 2, dim) != NG_OK)
        abort();
    return t;
}

static ng_format named(const struct device_format *f)
{
    return ng_format_find(f->name);
}

/* The slots [from, from + k) of one tile by the oracle: codes of the accumulator's format. */
static void multiply(ng_ctx *ctx, const ng_profile *profile, const struct tile *t, int from,
                     int k, const uint32_t *c_codes, uint32_t *d)
{
    const struct insn *in = t->insn;
    const int bfrom = in->kept ? from / in->kept * in->group : from;
    const int bk = in->kept ? k / in->kept * in->group : k;
    const ng_format acc = named(in->acc);
    uint8_t lines[TILE_ROWS * MAX_ROW / 4]; /* 2 bits a tag */
    uint16_t half[2][TILE_SIZE];
    ng_sparse sparse;

    ng_tensor a = matrix(named(in->a), (void *)(t->a + from * in->a->bits / 8), TILE_ROWS, k);
    a.stride[0] = t->k;
    ng_tensor b = matrix(named(in->b), (void *)(t->b + bfrom * in->b->bits / 8), bk, TILE_COLS);
    b.stride[0] = 1, b.stride[1] = t->bk;
    if (in->kept) {
        for (int slot = 0; slot < k; slot += 4) {
            unsigned byte = 0;
            for (int i = 0; i < 4; i++)
                byte |= (unsigned)(dense_k(t, slot + i) % in->group) << 2 * i;
            for (int row = 0; row < TILE_ROWS; row++)
                lines[(row * k + slot) / 4] = (uint8_t)byte;
        }
        sparse = (ng_sparse){ (uint32_t)in->kept, (uint32_t)in->group, NG_TAG_NV24, lines, 0 };
        a.sparse = &sparse;
    }
    const bool f16 = acc == NG_F16;
    for (int i = 0; i < TILE_SIZE; i++)
        half[0][i] = (uint16_t)(c_codes ? c_codes[i] : 0);
    const ng_tensor c =
        matrix(acc, f16 ? (void *)half[0] : (void *)c_codes, TILE_ROWS, TILE_COLS);
    const ng_tensor out = matrix(acc, f16 ? (void *)half[1] : (void *)d, TILE_ROWS, TILE_COLS);
    const ng_gemm_op op = { .size = sizeof op, .profile = profile, .accumulate = acc };
    if (ng_gemm(ctx, &op, &a, &b, c_codes ? &c : NULL, &out) != NG_OK) {
        fprintf(stderr, "%s: %s\n", in->name, ng_ctx_message(ctx));
        exit(1);
    }
    for (int i = 0; f16 && i < TILE_SIZE; i++)
        d[i] = half[1][i];
}

/* One tile. Instructions shorter than the profile's are issued one by one. */
static void run_tile(ng_ctx *ctx, const ng_profile *profile, const struct tile *t, int way,
                     uint32_t *d)
{
    const int deep = t->insn->row < 32 ? t->k / ways[way].steps : t->k;
    for (int k = 0; k < t->k; k += deep)
        multiply(ctx, profile, t, k, deep, k ? d : ways[way].c ? t->c : NULL, d);
}

/* The next digests of the list; they come in the order of the cases. */
static bool listed(FILE *list, const char *name, uint64_t *first, uint64_t *all)
{
    char line[256], found[128];
    do {
        if (!fgets(line, sizeof line, list))
            return false;
    } while (line[0] == '#');
    char *digests = line + strlen(line);
    for (int spaces = 0; spaces < 2 && digests > line;)
        spaces += *--digests == ' ';
    snprintf(found, sizeof found, "%.*s", (int)(digests - line), line);
    char *end;
    *first = strtoull(digests, &end, 16);
    *all = strtoull(end, NULL, 16);
    return strcmp(found, name) == 0;
}

static void show(const struct tile *t, int number, int i, uint32_t ours, uint32_t theirs)
{
    const struct insn *in = t->insn;
    printf("    tile %d [%d, %d]: device %08x, oracle %08x; c %08x; a", number, i / TILE_COLS,
           i % TILE_COLS, theirs, ours, t->c[i]);
    for (int s = 0; s < t->k; s++)
        printf(" %x", get_code(t->a, in->a, (int64_t)(i / TILE_COLS) * t->k + s));
    printf("; b");
    for (int s = 0; s < t->k; s++)
        printf(" %x", get_code(t->b, in->b, (int64_t)(i % TILE_COLS) * t->bk + dense_k(t, s)));
    printf("\n");
}

/* ---- Conversions. ---- */

struct our_cvt {
    ng_format from, to;
    ng_cast cast;
    uint32_t nan;
};
static const struct our_cvt our_cvts[] = {
#define CVT(ptx, from, to, round_, overflow_, nan)                                             \
    { NG_##from,                                                                               \
      NG_##to,                                                                                 \
      { .round = NG_ROUND_##round_, .overflow = NG_OVERFLOW_##overflow_ },                     \
      nan },
#include "cvts.def"
};

enum {
    CVT_AT_ONCE = 65536
};

static bool is_nan(const struct device_format *f, uint32_t code)
{
    const uint32_t top = (1u << (f->exp + f->man + f->low)) - 1, exp = ((1u << f->exp) - 1)
                                                                       << (f->man + f->low);
    return f->ieee ? (code & top) > exp : (code & top) == top;
}

/* The digest of one conversion by ng_convert(), NaN as the device writes it. */
static uint64_t convert(ng_ctx *ctx, int i, bool all)
{
    const struct our_cvt *o = &our_cvts[i];
    const struct device_cvt *c = &cvts[i];
    const uint64_t inputs = 1ull << c->from->bits;
    static uint8_t from[CVT_AT_ONCE * 4], to[CVT_AT_ONCE * 4];
    static uint32_t input[CVT_AT_ONCE];
    uint64_t digest = 0, next = 0;
    while (next < inputs) {
        int64_t n = 0;
        for (; n < CVT_AT_ONCE && next < inputs; next += all ? 1 : cvt_step(inputs)) {
            put_code(from, c->from, n, (uint32_t)next);
            input[n++] = (uint32_t)next;
        }
        const ng_tensor src = matrix(o->from, from, 1, n), dst = matrix(o->to, to, 1, n);
        const ng_convert_op op = { .size = sizeof op, .cast = o->cast };
        if (ng_convert(ctx, &op, &src, &dst) != NG_OK) {
            fprintf(stderr, "%s: %s\n", c->name, ng_ctx_message(ctx));
            exit(1);
        }
        for (int64_t k = 0; k < n; k++) {
            const uint32_t low = (1u << c->to->low) - 1;
            uint32_t code = get_code(to, c->to, k);
            if (is_nan(c->from, input[k]))
                code = (o->nan == NAN_CUT ? input[k] : o->nan) & ~low;
            digest += digest_term(input[k], code);
        }
    }
    return digest;
}

/* A parameter, and a value for it. */
struct edit {
    const char *key, *value;
};

/* ---- Libraries: what PyTorch's multiplies are. ---- */

enum {
    LIBRARY_CORNER = 16,
    MOST_K = 4096
};

/* Code i of library.py's operand `which`. */
static uint32_t library_code(const struct device_format *f, int which, int64_t i)
{
    const uint64_t w = mix64((uint64_t)(i + 1) * 0x9E3779B97F4A7C15u + (uint64_t)which);
    const uint32_t field = (1u << (f->exp - 1)) - 4 + (uint32_t)(w >> 40) % 4;
    const int man = f->man + f->low;
    return (uint32_t)(w >> 63) << (f->bits - 1) | field << man |
           ((uint32_t)w & ((1u << man) - 1));
}

static void library_operand(uint8_t *data, const struct device_format *f, int which, int64_t k)
{
    for (int64_t i = 0; i < LIBRARY_CORNER * k; i++)
        put_code(data, f, i, library_code(f, which, i));
}

/* library.py's scales: number i of 3 (A's) or 4 (B's). */
static float library_scale(int which, int64_t i)
{
    const uint64_t w = mix64((uint64_t)(i + 1) * 0x9E3779B97F4A7C15u + (uint64_t)which);
    const uint32_t code = ((uint32_t)w & 0x7FFFFF) | 0x3C000000;
    float scale;
    memcpy(&scale, &code, sizeof scale);
    return scale;
}

/* One multiply of the corner, over [k0, k0 + k). */
static void library_multiply(ng_ctx *ctx, const ng_profile *p, const ng_tensor *a,
                             const ng_tensor *b, int64_t k0, int64_t k, ng_format format,
                             void *d)
{
    ng_tensor ta = *a, tb = *b;
    const int64_t bytes = ng_format_info(a->format)->store_bits / 8;
    ta.data = (uint8_t *)a->data + k0 * bytes;
    tb.data = (uint8_t *)b->data + k0 * bytes;
    ta.dim[1] = tb.dim[0] = k;
    const ng_tensor td = matrix(format, d, LIBRARY_CORNER, LIBRARY_CORNER);
    const ng_gemm_op op = { .size = sizeof op, .profile = p, .accumulate = NG_F32 };
    if (ng_gemm(ctx, &op, &ta, &tb, NULL, &td) != NG_OK) {
        fprintf(stderr, "%s\n", ng_ctx_message(ctx));
        exit(1);
    }
}

/* FP8 with scales: every product and sum of FP32 rounds once, `fmaf` for both at once. Returns
 * false where `mode` has none. */
static bool library_scaled(ng_ctx *ctx, const ng_profile *p, const ng_tensor *a,
                           const ng_tensor *b, const char *mode, int64_t k, float *d)
{
    enum {
        BLOCK = 128
    };
    static float psum[LIBRARY_CORNER * LIBRARY_CORNER];
    const bool block = !strcmp(mode, "block"), vector = !strcmp(mode, "vector");
    const bool row = !strcmp(mode, "row"), tensor = !strcmp(mode, "tensor");
    const int64_t blocks = k / BLOCK;
    if (row || tensor) {
        library_multiply(ctx, p, a, b, 0, k, NG_F32, d);
        for (int i = 0; i < LIBRARY_CORNER * LIBRARY_CORNER; i++) {
            const float sa = library_scale(3, row ? i / LIBRARY_CORNER : 0);
            const float sb = library_scale(4, row ? i % LIBRARY_CORNER : 0);
            const float both = sa * sb, first = d[i] * sb;
            d[i] = row ? first * sa : d[i] * both;
        }
        return true;
    }
    for (int i = 0; i < LIBRARY_CORNER * LIBRARY_CORNER; i++)
        d[i] = 0;
    for (int64_t n = 0; n < blocks && (block || vector); n++) {
        library_multiply(ctx, p, a, b, n * BLOCK, BLOCK, NG_F32, psum);
        for (int i = 0; i < LIBRARY_CORNER * LIBRARY_CORNER; i++) {
            const float sa = library_scale(3, i / LIBRARY_CORNER * blocks + n);
            const float sb = library_scale(4, (block ? 0 : i % LIBRARY_CORNER * blocks) + n);
            const float both = sa * sb, first = psum[i] * sa;
            d[i] = block ? fmaf(psum[i], both, d[i]) : fmaf(first, sb, d[i]);
        }
    }
    return block || vector;
}

static float library_float(const struct device_format *f, uint32_t code)
{
    const ng_cast rne = { .round = NG_ROUND_TIES_TO_EVEN };
    ng_value value;
    float x;
    (void)ng_decode(named(f), code, &value);
    (void)ng_encode(NG_F32, &rne, &value, 0, &code);
    memcpy(&x, &code, sizeof x);
    return x;
}

static uint32_t library_rounded(const struct device_format *f, float x)
{
    const ng_cast rne = { .round = NG_ROUND_TIES_TO_EVEN };
    ng_value value;
    uint32_t code;
    memcpy(&code, &x, sizeof code);
    (void)ng_decode(NG_F32, code, &value);
    (void)ng_encode(named(f), &rne, &value, 0, &code);
    return code;
}

/* A bias is added to the FP32 sum, a matrix to what is rounded to the result's format. False:
 * the line has neither. */
static bool library_added(ng_ctx *ctx, const ng_profile *p, const ng_tensor *a,
                          const ng_tensor *b, const char *mode, int64_t k, int64_t columns,
                          const struct device_format *f, uint8_t *d)
{
    static float sum[LIBRARY_CORNER * LIBRARY_CORNER];
    const bool matrix = !strcmp(mode, "matrix");
    if (!matrix && strcmp(mode, "bias") != 0)
        return false;
    library_multiply(ctx, p, a, b, 0, k, NG_F32, sum);
    for (int i = 0; i < LIBRARY_CORNER * LIBRARY_CORNER; i++) {
        const int64_t row = i / LIBRARY_CORNER, column = i % LIBRARY_CORNER;
        const uint32_t c =
            matrix ? library_code(f, 5, row * columns + column) : library_code(f, 6, column);
        const float first = matrix ? library_float(f, library_rounded(f, sum[i])) : sum[i];
        put_code(d, f, i, library_rounded(f, first + library_float(f, c)));
    }
    return true;
}

/* The arithmetic of a line, `call a b out mode MxNxK`, by docs/profiles.md. */
static bool library_rule(const char *call, const char *mode, const char *shape, bool tf32,
                         struct edit edit[2])
{
    const bool small = !strcmp(shape, "64x64x4096");
    edit[0] = edit[1] = (struct edit){ NULL, NULL };
    if (!strcmp(call, "_scaled_mm")) {
        /* one addition to an FP32 register every 128 k; blocks have that by themselves */
        if (!strcmp(mode, "exact") || !strcmp(mode, "row") || !strcmp(mode, "tensor"))
            edit[0] = (struct edit){ "promote_every", "4" };
        return true;
    }
    if (tf32)
        edit[1] = (struct edit){ "tf32_in", "rne" };
    if (small) /* few tiles: K in parts */
        edit[0] = (struct edit){ "promote_every", tf32 ? "16" : "88" };
    return !strcmp(call, "mm") || !strcmp(call, "addmm");
}

static const struct device_format *format_named(const char *name)
{
    static const struct device_format *const all[] = { &dev_f16, &dev_bf16, &dev_tf32,
                                                       &dev_f32, &dev_e4m3, &dev_e5m2 };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strcmp(all[i]->name, name))
            return all[i];
    abort();
}

/* One line: does the oracle give its digest? */
static bool library_line(ng_ctx *ctx, const char *line)
{
    static uint8_t a[LIBRARY_CORNER * MOST_K * 4], b[LIBRARY_CORNER * MOST_K * 4];
    static _Alignas(float) uint8_t d[LIBRARY_CORNER * LIBRARY_CORNER * 4];
    char call[32], fa[16], fb[16], fd[16], mode[16], shape[32];
    unsigned long long want;
    if (sscanf(line, "%31s %15s %15s %15s %15s %31s %llx", call, fa, fb, fd, mode, shape,
               &want) != 7)
        return false;
    const int64_t k = atoi(strrchr(shape, 'x') + 1), n = atoi(strchr(shape, 'x') + 1);
    const bool tf32 = !strcmp(fa, "f32");
    const struct device_format *a_format = tf32 ? &dev_tf32 : format_named(fa);
    const struct device_format *b_format = tf32 ? &dev_tf32 : format_named(fb);
    struct edit edit[2];
    if (k > MOST_K || !library_rule(call, mode, shape, tf32, edit))
        return false;
    library_operand(a, a_format, 1, k);
    library_operand(b, b_format, 2, k);
    ng_profile *p = ng_profile_copy(ng_profile_find("nv-hopper-wgmma"));
    const char *rule =
        ng_profile_rule(p, named(a_format), named(b_format), NG_MODE_PLAIN, NULL, 0)->name;
    for (int i = 0; i < 2; i++)
        if (edit[i].key && ng_profile_set(p, rule, edit[i].key, edit[i].value) != NG_OK)
            abort();
    const ng_tensor ta = matrix(named(a_format), a, LIBRARY_CORNER, k);
    ng_tensor tb = matrix(named(b_format), b, k, LIBRARY_CORNER);
    tb.stride[0] = 1, tb.stride[1] = k;
    if (!library_scaled(ctx, p, &ta, &tb, mode, k, (float *)(void *)d) &&
        !library_added(ctx, p, &ta, &tb, mode, k, n, format_named(fd), d))
        library_multiply(ctx, p, &ta, &tb, 0, k, named(format_named(fd)), d);
    ng_profile_free(p);
    uint64_t digest = 0;
    for (int i = 0; i < LIBRARY_CORNER * LIBRARY_CORNER; i++)
        digest += digest_term((uint64_t)i, get_code(d, format_named(fd), i));
    return digest == want;
}

static int library(ng_ctx *ctx, FILE *list)
{
    char line[512];
    int lines = 0, failed = 0;
    while (fgets(line, sizeof line, list)) {
        if (line[0] == '#')
            continue;
        lines++;
        if (!library_line(ctx, line)) {
            failed++;
            printf("FAILED: %s", line);
        }
    }
    printf("device: %d multiplies by a library, %d differ\n", lines, failed);
    return failed || !lines;
}

/* ---- Teeth: which wrong values of a parameter the device's results tell from the right one.
 * ---- */

/* "+1", "-1", "/2", "*2": of the rule's own value */
static const struct edit edits[] = {
    { "nan_f32", "0x7FC00000" },
    { "tf32_in", "rne" },
    { "tf32_nan", "keep" },
    { "sum", "exact" },
    { "group", "/2" },
    { "group", "*2" },
    { "k_perm", "linear" },
    { "k_perm", "mod4" },
    { "frac", "-1" },
    { "frac", "+1" },
    { "align_round", "rdn" },
    { "align_round", "rne" },
    { "product_norm", "renorm" },
    { "zero_exp", "emin" },
    { "floor_f32", "-1" },
    { "floor_f32", "+1" },
    { "floor_f32", "-12" },
    { "floor_f16", "-12" },
    { "floor_f16", "-1" },
    { "floor_f16", "+1" },
    { "c_place", "in" },
    { "c_place", "after" },
    { "product_inf", "yes" },
    { "out_bits", "-1" },
    { "out_bits", "+1" },
    { "out_round", "rne" },
    { "out_f16", "rtz" },
    { "nan_f16", "0x7E00" },
    { "flush_in", "signed" },
    { "flush_out", "signed" },
    { "operand_exp", "own" },
    { "operand_exp", "f16" },
    { "out_zero", "signed" },
    { "sparse_k", "dense" },
};

enum {
    N_EDITS = sizeof edits / sizeof edits[0]
};

static const char *const units[] = { "nv-hopper", "nv-hopper-wgmma" };

static ng_param param_of(const char *key)
{
    for (int p = 0; p < NG_PARAM_COUNT; p++)
        if (!strcmp(ng_param_key((ng_param)p), key))
            return (ng_param)p;
    abort();
}

/* What a wrong value asks of k_instr, so that instructions are whole steps. */
static bool set_companion(ng_profile *p, const ng_rule *r, const struct edit *e)
{
    const int k_instr = r->set[NG_PARAM_K_INSTR].value, group = r->set[NG_PARAM_GROUP].value;
    const bool mod4 = !strcmp(e->value, "mod4");
    char value[32];
    snprintf(value, sizeof value, "%d", mod4 ? 2 * group : 2 * k_instr);
    return (!mod4 && e->value[0] != '*') ||
           ng_profile_set(p, r->name, "k_instr", value) == NG_OK;
}

/* A copy of the profile with one wrong value in one rule; NULL where that is no change, or none
 * that the rule can have. */
static ng_profile *wrong_profile(const char *name, size_t rule, const struct edit *e)
{
    ng_profile *p = ng_profile_copy(ng_profile_find(name));
    const ng_rule *r = &p->rules[rule];
    const ng_param key = param_of(e->key);
    const int32_t own = r->set[key].value;
    char value[32], message[256];
    snprintf(value, sizeof value, "%s", e->value);
    const bool floors = strstr(e->key, "floor") != NULL;
    if (!strcmp(e->value, "+1") || !strcmp(e->value, "-1"))
        snprintf(value, sizeof value, "%d", (int)own + atoi(e->value));
    if (strchr("/*", e->value[0]))
        snprintf(value, sizeof value, "%d", e->value[0] == '/' ? (int)own / 2 : (int)own * 2);
    /* a floor where there is none, or one that is off by one */
    bool ok = !(floors && (own == NG_FLOOR_NONE) != !strcmp(e->value, "-12")) &&
              ng_profile_set(p, r->name, e->key, value) == NG_OK;
    ok = ok && set_companion(p, r, e);
    if (ok && ng_profile_check(p, message, sizeof message) == NG_OK &&
        p->rules[rule].set[key].value != own)
        return p;
    ng_profile_free(p);
    return NULL;
}

/* Cases whose first tiles notice that `p` has a wrong rule; counting stops at `enough`. */
static int notice(ng_ctx *ctx, const ng_profile *p, const char *rule, int enough)
{
    static struct tile t;
    static uint32_t right[TILE_SIZE], wrong[TILE_SIZE];
    int noticed = 0;
    for (int insn = 0; insn < N_INSNS; insn++) {
        const struct insn *in = &insns[insn];
        const ng_rule *r = ng_profile_rule(ng_profile_find(in->profile), named(in->a),
                                           named(in->b), NG_MODE_PLAIN, NULL, 0);
        if (strcmp(in->profile, p->name) != 0 || strcmp(r->name, rule) != 0)
            continue;
        for (int c = 0; c < N_CASES && noticed < enough; c++)
            for (int number = 0; number < FIRST_TILES; number++) {
                draw_tile(&t, insn, (enum kind)(c / N_WAYS), c % N_WAYS, number);
                run_tile(ctx, ng_profile_find(in->profile), &t, c % N_WAYS, right);
                run_tile(ctx, p, &t, c % N_WAYS, wrong);
                if (memcmp(right, wrong, sizeof right) != 0) {
                    noticed++;
                    break;
                }
            }
    }
    return noticed;
}

/* Whether a rule claims that this parameter was measured. */
static bool claims(const ng_rule *r, const char *key)
{
    return r->set[param_of(key)].evidence == NG_EVIDENCE_MEASURED;
}

/* Parameters that a rule calls measured and no edit is of. The family has no neighbour, an
 * instruction is as deep as its steps, which group says, and under mod4 sum has no other value.
 */
static int untried(bool tried[2][8][NG_PARAM_COUNT])
{
    int n = 0;
    for (int u = 0; u < 2; u++)
        for (size_t r = 0; r < ng_profile_find(units[u])->n_rules; r++)
            for (int p = 0; p < NG_PARAM_COUNT; p++) {
                const ng_rule *rule = &ng_profile_find(units[u])->rules[r];
                const bool only =
                    p == NG_PARAM_FAMILY || p == NG_PARAM_K_INSTR ||
                    (p == NG_PARAM_SUM && rule->set[NG_PARAM_K_PERM].value == NG_PERM_MOD4);
                if (only || tried[u][r][p] || rule->set[p].evidence != NG_EVIDENCE_MEASURED)
                    continue;
                printf("FAILED: %s/%s: nothing tries %s\n", units[u], rule->name,
                       ng_param_key((ng_param)p));
                n++;
            }
    return n;
}

/* What a rule calls measured must be noticed, whichever way it is wrong. */
static int teeth(ng_ctx *ctx)
{
    static bool tried[2][8][NG_PARAM_COUNT];
    int failed = 0;
    printf("cases of which the first tiles notice a wrong value (3: or more; -: no such edit; "
           "*: the rule calls the value measured)\n%-24s",
           "");
    for (int u = 0; u < 2; u++)
        for (size_t r = 0; r < ng_profile_find(units[u])->n_rules; r++)
            printf(" %5s/%-5s", u ? "wgmma" : "mma", ng_profile_find(units[u])->rules[r].name);
    printf("\n");
    for (int e = 0; e < N_EDITS; e++) {
        printf("%-13s%-11s", edits[e].key, edits[e].value);
        for (int u = 0; u < 2; u++)
            for (size_t r = 0; r < ng_profile_find(units[u])->n_rules; r++) {
                const ng_rule *rule = &ng_profile_find(units[u])->rules[r];
                ng_profile *p = wrong_profile(units[u], r, &edits[e]);
                const int n = p ? notice(ctx, p, rule->name, 3) : -1;
                const bool claimed = claims(rule, edits[e].key);
                ng_profile_free(p);
                if (n < 0)
                    printf(" %8s%-3s", "-", "");
                else
                    printf(" %8d%-3s", n, claimed ? "*" : "");
                failed += claimed && n == 0;
                tried[u][r][param_of(edits[e].key)] |= n >= 0;
            }
        printf("\n");
        fflush(stdout);
    }
    failed += untried(tried);
    printf("device: %d values are called measured, and no result tells them apart\n", failed);
    return failed != 0;
}

/* ---- The cases. ---- */

enum mode {
    FIRST,       /* tiles with a digest of their own, and some conversions */
    ALL,         /* all tiles */
    CONVERSIONS, /* all inputs of all conversions */
    RESULTS,     /* all tiles, bit by bit */
    LIBRARY,
    TEETH,
    N_MODES
};

static const char *const mode_names[N_MODES] = { "--first",   "--all",     "--conversions",
                                                 "--results", "--library", "--teeth" };

static void missing(const char *name)
{
    fprintf(stderr, "%s: it is not where it belongs in the list\n", name);
    exit(1);
}

/* A case bit by bit: how many of its results the device has otherwise. */
static long differing(const uint32_t *ours, const struct tile *t, int number, FILE *results,
                      long before)
{
    long n = 0;
    for (int i = 0; i < TILE_SIZE; i++) {
        uint32_t theirs = 0;
        if (fread(&theirs, (size_t)t->insn->acc->bits / 8, 1, results) != 1)
            missing(t->insn->name);
        if (theirs != ours[i] && before + n++ < 2)
            show(t, number, i, ours[i], theirs);
    }
    return n;
}

static void check_case(ng_ctx *ctx, enum mode mode, FILE *file, int insn, int c,
                       struct outcome *o)
{
    static struct tile t;
    static uint32_t ours[TILE_SIZE];
    const int kind = c / N_WAYS, way = c % N_WAYS;
    const struct insn *in = &insns[insn];
    const int tiles = mode == FIRST ? FIRST_TILES : TILES;
    char name[128];
    uint64_t digest = 0, first = 0, last = 0;
    long differ = 0;
    snprintf(name, sizeof name, "%s%s %s %d %s", in->kept ? "sp." : "", in->name,
             kind_names[kind], ways[way].steps, ways[way].c ? "c" : "-");
    for (int number = 0; number < tiles; number++) {
        draw_tile(&t, insn, (enum kind)kind, way, number);
        run_tile(ctx, ng_profile_find(in->profile), &t, way, ours);
        for (int i = 0; i < TILE_SIZE; i++)
            digest += digest_term((uint64_t)(number * TILE_SIZE + i), ours[i]);
        if (mode == RESULTS)
            differ += differing(ours, &t, number, file, differ);
    }
    if (mode != RESULTS) {
        if (!listed(file, name, &first, &last))
            missing(name);
        differ = digest != (mode == ALL ? last : first);
    }
    o->cases++;
    o->results += (long)tiles * TILE_SIZE;
    o->different += differ != 0;
    if (differ)
        printf("FAILED: %s: %ld differ\n", name, differ);
}

static void check_cvt(ng_ctx *ctx, enum mode mode, FILE *file, int i, struct outcome *o)
{
    uint64_t first = 0, last = 0;
    if (!listed(file, cvts[i].name, &first, &last))
        missing(cvts[i].name);
    const bool differ =
        convert(ctx, i, mode == CONVERSIONS) != (mode == CONVERSIONS ? last : first);
    if (differ)
        printf("FAILED: %s\n", cvts[i].name);
    o->cases++;
    o->different += differ;
}

/* The list has the tiles' cases first, then the conversions. */
static void skip_tiles(FILE *file)
{
    char line[256];
    for (int i = 0; i < N_INSNS * N_CASES;)
        if (!fgets(line, sizeof line, file))
            missing("conversions");
        else
            i += line[0] != '#';
}

static int check(ng_ctx *ctx, enum mode mode, FILE *file)
{
    struct outcome o = { 0 };
    for (int insn = 0; insn < N_INSNS && mode != CONVERSIONS; insn++)
        for (int c = 0; c < N_CASES; c++)
            check_case(ctx, mode, file, insn, c, &o);
    if (mode == CONVERSIONS)
        skip_tiles(file);
    for (int i = 0; i < N_CVTS && mode != RESULTS; i++)
        check_cvt(ctx, mode, file, i, &o);
    printf("device: %ld cases, %ld results of %d instructions, %ld cases differ\n", o.cases,
           o.results, N_INSNS, o.different);
    return o.different != 0;
}

int main(int argc, char **argv)
{
    int mode = FIRST;
    for (int i = 0; i < N_MODES && argc > 1; i++)
        if (!strcmp(argv[1], mode_names[i]))
            mode = i;
    const bool named_mode = argc > 1 && !strcmp(argv[1], mode_names[mode]);
    if (argc != 1 + named_mode + (mode != TEETH)) {
        fprintf(stderr, "usage: replay [--all | --conversions | --results | --library] FILE\n"
                        "       replay --teeth\n");
        return 2;
    }
    FILE *file = mode == TEETH ? NULL : fopen(argv[argc - 1], "rb");
    if (mode != TEETH && !file) {
        perror(argv[argc - 1]);
        return 1;
    }
    const ng_ctx_config config = { .size = sizeof config };
    ng_ctx *ctx = NULL;
    if (ng_ctx_create(&config, &ctx) != NG_OK)
        return 1;
    const int failed = mode == TEETH     ? teeth(ctx)
                       : mode == LIBRARY ? library(ctx, file)
                                         : check(ctx, (enum mode)mode, file);
    ng_ctx_destroy(ctx);
    if (file)
        fclose(file);
    return failed;
}
