/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of products: docs/numerics.md 4.1, steps 1, 2 and 4, 4.2, and 4.3 for sparse
 * operands, turned into a list once a job. Every map of rows, chains and lanes ends here;
 * packing and the kernels only ever run straight ahead.
 */
#include <string.h>

#include "rule.h"
#include "widen.h"

static size_t round_up_64(size_t n)
{
    return (n + 63) / 64 * 64;
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- How long the lists are. ---- */

struct sizes {
    int64_t rows, lanes, step, chains, tile_k, tiles, depth;
    const ng_sparse *sparse;
};

static struct sizes sizes_of(const struct gemm_job *g)
{
    struct sizes s = { .rows = rule_param(g, NG_PARAM_ROWS),
                       .lanes = rule_param(g, NG_PARAM_LANES),
                       .chains = rule_chains(g),
                       .sparse = rule_sparse(g) };
    s.step = s.lanes == 1 ? 1 : (s.lanes + 1) / 2 * 2;
    s.tile_k = s.rows ? s.rows * s.lanes : g->k;
    s.tiles = (g->k + s.tile_k - 1) / s.tile_k;
    /* at most: whole steps, an odd chain made even, and every slot a group of its own */
    const int64_t steps = (g->k + s.lanes - 1) / s.lanes + s.tiles;
    s.depth = (s.sparse ? g->k * s.sparse->group : steps * s.step) + s.tiles * s.chains;
    return s;
}

/* ---- Family fused: a tile is what is added to C at once, an instruction or a promotion's. */

/* Steps of k elements of one instruction. */
static int64_t steps_of(const struct rule_steps *r, int64_t k)
{
    return r->mod4 ? 2 : (k + r->terms - 1) / r->terms;
}

static struct sizes fused_sizes(const struct gemm_job *g)
{
    const struct rule_steps r = rule_steps(g);
    const int64_t promote = rule_param(g, NG_PARAM_PROMOTE), all = (g->k + r.k - 1) / r.k,
                  each = promote ? promote : 1;
    struct sizes s = {
        .lanes = r.terms, .step = rule_positions(g), .chains = 1, .sparse = rule_sparse(g)
    };
    s.tile_k = min64(each, all) * r.k;
    s.tiles = (all + each - 1) / each;
    s.depth = all * r.steps * s.step;
    return s;
}

/* Packed panels index with 32 bits. */
size_t ng_walk_bytes(const struct gemm_job *g)
{
    const struct sizes s = rule_fused(g) ? fused_sizes(g) : sizes_of(g);
    if (g->k > INT32_MAX / 32 || s.depth > INT32_MAX / 2 || s.tiles > INT32_MAX / 2 / s.chains)
        return 0;
    return 2 * round_up_64((size_t)s.depth * 4) +
           round_up_64((size_t)(s.tiles * s.chains) * 4) +
           round_up_64((size_t)(s.tiles + 1) * 8) + round_up_64((size_t)g->k * 4) + 2 * 1024;
}

/* ---- Rows of a chain (step 4), in order. ---- */

struct rows {
    int64_t first, step, count;
};

static struct rows rows_of_chain(const struct gemm_job *g, const struct sizes *s, int64_t c,
                                 int64_t used)
{
    struct rows r = { 0, 1, used };
    const int64_t len = rule_param(g, NG_PARAM_CHAIN_ROWS);
    if (s->chains > 1) {
        switch ((ng_chain_map)rule_param(g, NG_PARAM_CHAIN_MAP)) {
        case NG_CHAIN_BLOCK: r = (struct rows){ c * len, 1, len }; break;
        case NG_CHAIN_PARITY: r = (struct rows){ c / 2 * 2 * len + c % 2, 2, len }; break;
        case NG_CHAIN_INTERLEAVE: r = (struct rows){ c, s->chains, len }; break;
        }
        const int64_t left = used - r.first;
        r.count = left <= 0 ? 0 : min64(r.count, (left + r.step - 1) / r.step);
    }
    return r;
}

/* ---- Which k a row and lane take (step 2), and which scale that k has (11.2 item 18). ---- */

static bool splits(const struct gemm_job *g)
{
    const ng_k_map map = (ng_k_map)rule_param(g, NG_PARAM_K_MAP);
    return map == NG_K_SPLIT || (map == NG_K_LAYOUT && g->a.layout == NG_LAYOUT_TRN_WRAP);
}

/* trn_wrap: K tiles of 128 rows by 4 lanes, a block is 8 rows by all lanes. */
static int32_t block_of(const struct gemm_job *g, int64_t k)
{
    if (g->a.layout != NG_LAYOUT_TRN_WRAP) /* blocks of 32 without a division */
        return (int32_t)(g->a.block == 32 ? k / 32 : k / g->a.block);
    const int64_t tile = k / 512, rows = min64(g->k - tile * 512, 512) / 4;
    return (int32_t)(tile * 16 + k % 512 % rows / 8);
}

/* ---- Lists. ---- */

struct build {
    const struct gemm_job *g;
    const struct sizes *s;
    struct gemm_walk *w;
    int64_t at;
    bool split;
};

static inline void emit(struct build *b, int64_t k)
{
    if (b->w->k)
        b->w->k[b->at] = (int32_t)k;
    if (b->w->block)
        b->w->block[b->at] = k < 0 ? -1 : block_of(b->g, k);
    b->at++;
}

/* n positions with k from k0 on. */
static void emit_run(struct build *b, int64_t k0, int64_t n)
{
    const struct gemm_operand *a = &b->g->a;
    int32_t *k = b->w->k + b->at, *block = b->w->block;
    for (int64_t i = 0; i < n; i++)
        k[i] = (int32_t)(k0 + i);
    if (block && a->layout != NG_LAYOUT_TRN_WRAP) {
        block += b->at;
        for (int64_t i = 0, next; i < n; i = next) {
            const int64_t number = (k0 + i) / a->block;
            next = min64(n, (number + 1) * a->block - k0);
            for (int64_t l = i; l < next; l++)
                block[l] = (int32_t)number;
        }
    } else if (block) {
        for (int64_t i = 0; i < n; i++)
            block[b->at + i] = block_of(b->g, k0 + i);
    }
    b->at += n;
}

static void emit_rows(struct build *b, struct rows r, int64_t k0, int64_t depth, int64_t used)
{
    const int64_t lanes = b->s->lanes, step = b->s->step;
    if (!b->w->k) { /* counted only */
        b->at += r.count * step;
        return;
    }
    int64_t i = 0;
    if (!b->split && lanes == step && r.step == 1) { /* rows that follow each other, all full */
        i = max64(0, min64(r.count, depth / lanes - r.first));
        emit_run(b, k0 + lanes * r.first, lanes * i);
    }
    for (int64_t p = r.first + i * r.step; i < r.count; i++, p += r.step)
        for (int64_t q = 0; q < step; q++) {
            const int64_t offset = b->split ? q * used + p : lanes * p + q;
            emit(b, q < lanes && offset < depth ? k0 + offset : -1);
        }
}

/* A group whose places have been emitted: its number, and the first of them. */
struct places {
    int64_t group, base;
};

/* A slot by its group: all of its places, so that tags choose among them. */
static void emit_slot(struct build *b, int64_t slot, struct places *last)
{
    const ng_sparse *sp = b->s->sparse;
    if (slot / sp->kept != last->group) {
        *last = (struct places){ slot / sp->kept, b->at };
        for (int64_t x = 0; x < sp->group; x++)
            emit(b, last->group * sp->group + x);
    }
    if (b->w->slot)
        b->w->slot[slot] = (int32_t)last->base;
}

static void emit_groups(struct build *b, struct rows r, int64_t k0)
{
    struct places last = { .group = -1 };
    for (int64_t i = 0, p = r.first; i < r.count; i++, p += r.step)
        emit_slot(b, k0 + p, &last);
}

static void build_tile(struct build *b, int64_t t)
{
    const struct sizes *s = b->s;
    const int64_t k0 = t * s->tile_k, depth = min64(b->g->k - k0, s->tile_k),
                  used = (depth + s->lanes - 1) / s->lanes;
    if (b->w->start)
        b->w->start[t] = b->at;
    for (int64_t c = 0; c < s->chains; c++) {
        const int64_t from = b->at;
        const struct rows r = rows_of_chain(b->g, s, c, used);
        if (s->sparse)
            emit_groups(b, r, k0);
        else
            emit_rows(b, r, k0, depth, used);
        if ((b->at - from) % 2)
            emit(b, -1);
        if (b->w->run)
            b->w->run[t * s->chains + c] = (int32_t)(b->at - from);
    }
}

/* Terms of one step of k elements from k0 on, in increasing k. */
static void emit_step(struct build *b, const struct rule_steps *r, int64_t half, int64_t k0,
                      int64_t k)
{
    const int64_t from = b->at;
    struct places last = { .group = -1 };
    if (!r->mod4 && !b->s->sparse) {
        emit_run(b, k0, k);
    } else {
        for (int64_t i = 0; i < k; i++)
            if (!r->mod4 || i % 4 / 2 == half) {
                if (b->s->sparse)
                    emit_slot(b, k0 + i, &last);
                else
                    emit(b, k0 + i);
            }
    }
    while (b->at - from < b->s->step)
        emit(b, -1);
}

static void build_fused_tile(struct build *b, int64_t t)
{
    const struct rule_steps r = rule_steps(b->g);
    const int64_t from = b->at, end = min64(b->g->k, (t + 1) * b->s->tile_k);
    if (b->w->start)
        b->w->start[t] = from;
    for (int64_t k0 = t * b->s->tile_k; k0 < end; k0 += r.k) {
        const int64_t k = min64(end - k0, r.k), steps = steps_of(&r, k);
        if (!b->w->k && !b->s->sparse) { /* counted only */
            b->at += steps * b->s->step;
            continue;
        }
        for (int64_t i = 0; i < steps; i++)
            if (r.mod4)
                emit_step(b, &r, i, k0, k);
            else
                emit_step(b, &r, 0, k0 + i * r.terms, min64(k - i * r.terms, r.terms));
    }
    if (b->w->run)
        b->w->run[t] = (int32_t)(b->at - from);
}

/* ---- Codes of at most 8 bits. ---- */

void ng_widen_all(const ng_format_spec *f, uint32_t table[256])
{
    const uint32_t codes = 1u << f->bits, sign = codes / 2;
    if (f->kind == NG_KIND_INT || f->kind == NG_KIND_SCALE) {
        for (uint32_t code = 0; code < codes; code++)
            table[code] = widen(f, code);
    } else { /* a sign above a magnitude, most of which are FP32's with the exponent moved */
        const uint32_t move = 23 - f->man_bits, add = (uint32_t)(127 - f->bias) << 23;
        for (uint32_t mag = 0; mag < sign; mag++)
            table[mag] = (mag << move) + add;
        for (uint32_t mag = 0; mag < 1u << f->man_bits; mag++)
            table[mag] = widen(f, mag);
        for (uint32_t mag = f->max_code + 1; mag < sign; mag++)
            table[mag] = widen(f, mag);
        for (uint32_t mag = 0; mag < sign; mag++)
            table[sign + mag] = table[mag] == WIDEN_NAN ? WIDEN_NAN : table[mag] | 1u << 31;
        table[sign] = widen(f, sign);
    }
    for (uint32_t code = codes; code < 256; code++)
        table[code] = table[code - codes];
}

static void build_widen(const struct gemm_job *g, const struct gemm_operand *o, uint32_t *table)
{
    const ng_format_spec *f = rule_values(g, o);
    if (f == o->spec)
        ng_widen_all(f, table);
    else
        for (uint32_t code = 0; code < 256; code++)
            table[code] = widen(f, g->op->fp4_map[code & 0xFu]);
}

/* Are a K tile's four chains of n positions each, or the last two of none? */
static bool is_quad(const int32_t *run, int32_t n)
{
    return run[0] == n && run[1] == n && run[2] == run[3] && (run[2] == n || run[2] == 0);
}

static int64_t quads_of(const struct gemm_walk *w)
{
    int64_t n = 0;
    while (w->chains == 4 && n < w->tiles && is_quad(w->run + 4 * n, w->quad))
        n++;
    return n;
}

static int64_t blocks_of(const struct gemm_walk *w)
{
    int64_t n = 0;
    for (int32_t other = 0; w->block && n + GEMM_BLOCK <= w->depth; n += GEMM_BLOCK) {
        for (int64_t p = n; p < n + GEMM_BLOCK; p++)
            other |= w->block[p] ^ (int32_t)(n / GEMM_BLOCK);
        if (other)
            break;
    }
    return n;
}

static int64_t runs_of(const struct gemm_walk *w)
{
    int64_t n = 0;
    for (int32_t other = 0; n + GEMM_BLOCK <= w->depth; n += GEMM_BLOCK) {
        for (int64_t p = n; p < n + GEMM_BLOCK; p++)
            other |= w->k[p] ^ (w->k[n] + (int32_t)(p - n));
        if (other || w->k[n] < 0)
            break;
    }
    return n;
}

static void *take(unsigned char **at, size_t bytes)
{
    void *p = *at;
    *at += round_up_64(bytes);
    return p;
}

void ng_walk_build(const struct gemm_job *g, void *memory, struct gemm_walk *w)
{
    const bool fused = rule_fused(g);
    const struct sizes s = fused ? fused_sizes(g) : sizes_of(g);
    unsigned char *at = memory;
    *w = (struct gemm_walk){ .tiles = s.tiles,
                             .tile_k = s.tile_k,
                             .chains = (int32_t)s.chains,
                             .lanes = (int32_t)s.lanes,
                             .step = (int32_t)s.step,
                             .writes = 1 };
    if (rule_pieces(g))
        w->writes = rule_param(g, NG_PARAM_PIECE_ADDS);
    w->whole = !fused && s.tiles == 1 && s.chains == 1 && w->writes == 1 && !rule_pieces(g) &&
               GEMM_GRAIN % s.step == 0;
    if (g->a.scale)
        w->blocks = (g->k + g->a.block - 1) / g->a.block;
    if (memory) {
        w->k = take(&at, (size_t)s.depth * 4);
        w->block = take(&at, (size_t)s.depth * 4);
        w->run = take(&at, (size_t)(s.tiles * s.chains) * 4);
        w->start = take(&at, (size_t)(s.tiles + 1) * 8);
        w->slot = take(&at, (size_t)g->k * 4);
        if (!g->a.scale)
            w->block = NULL;
    }
    struct build b = { .g = g, .s = &s, .w = w, .split = !fused && splits(g) };
    for (int64_t t = 0; t < s.tiles; t++) {
        if (fused)
            build_fused_tile(&b, t);
        else
            build_tile(&b, t);
    }
    w->depth = w->used = b.at;
    if (!memory)
        return;
    w->start[s.tiles] = b.at;
    w->quad = w->run[0];
    w->quads = quads_of(w);
    w->in_blocks = blocks_of(w);
    w->in_runs = runs_of(w);
    const struct gemm_operand *const side[] = { &g->a, &g->b };
    for (int i = 0; i < 2; i++)
        if (i && side[0]->spec == side[1]->spec) { /* one table, of values or of g->fp4 */
            w->widen[i] = w->widen[0];
        } else if (side[i]->spec->store_bits <= 8) {
            w->widen[i] = take(&at, 1024);
            build_widen(g, side[i], w->widen[i]);
        }
}
