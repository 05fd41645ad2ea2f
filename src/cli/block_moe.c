/* SPDX-License-Identifier: Apache-2.0 */
/* Routing and mixtures of experts as cases: keys, shapes, the calls. docs/cli.md. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "report.h"

/* ---- Tensors. ---- */

#define ROUTER_TENSORS                                                                         \
    [ROUTE_X] = { "x", BLOCK_OPTION, false }, [ROUTE_W] = { "router", BLOCK_OPTION, false },   \
    [ROUTE_B] = { "router_bias", BLOCK_OPTION, false },                                        \
    [ROUTE_CORRECTION] = { "correction", BLOCK_OPTION, false },                                \
    [ROUTE_EXP] = { "exp_table", BLOCK_OPTION, false },                                        \
    [ROUTE_SIGMOID] = { "sigmoid_table", BLOCK_OPTION, false },                                \
    [ROUTE_RECIPROCAL] = { "reciprocal_table", BLOCK_OPTION, false }

static const struct block_tensor route_tensors[] = {
    [ROUTE_LOGITS] = { "logits", BLOCK_OPTION, false },
    ROUTER_TENSORS,
    [ROUTE_EXPERTS] = { "experts", BLOCK_EXTRA, true },
    [ROUTE_WEIGHTS] = { "weights", BLOCK_EXTRA, false },
    [ROUTE_LOGITS_OUT] = { "logits_out", BLOCK_EXTRA, false },
};
static const struct block_tensor moe_tensors[] = {
    [ROUTE_LOGITS] = { "logits", BLOCK_OPTION, false },
    ROUTER_TENSORS,
    [ROUTE_EXPERTS] = { "experts", BLOCK_OPTION, true },
    [ROUTE_WEIGHTS] = { "weights", BLOCK_OPTION, false },
    [MOE_TANH] = { "tanh_table", BLOCK_OPTION, false },
    [MOE_C] = { "c", BLOCK_OPTION, false },
    [MOE_GATE] = { "gate", BLOCK_OPERAND, false },
    [MOE_GATE + 1] = { "gate_scale", BLOCK_OPTION, false },
    [MOE_GATE + 2] = { "gate_bias", BLOCK_OPTION, false },
    [MOE_UP] = { "up", BLOCK_OPTION, false },
    [MOE_UP + 1] = { "up_scale", BLOCK_OPTION, false },
    [MOE_UP + 2] = { "up_bias", BLOCK_OPTION, false },
    [MOE_DOWN] = { "down", BLOCK_OPERAND, false },
    [MOE_DOWN + 1] = { "down_scale", BLOCK_OPTION, false },
    [MOE_DOWN + 2] = { "down_bias", BLOCK_OPTION, false },
    [MOE_Y] = { "y", BLOCK_RESULT, false },
};

/* ---- Keys: one table for reading, reporting and explaining. ---- */

enum key_type {
    KEY_ENUM,
    KEY_BOOL,
    KEY_FORMAT,  /* one of the values; NONE is the first */
    KEY_FORMATS, /* any; NONE: as given */
    KEY_FUNCTION,
    KEY_COUNT, /* uint32 */
    KEY_SIZE,  /* int64 */
    KEY_REAL,  /* FP32 pattern */
    KEY_FP4    /* 16 codes, of a multiply */
};

struct key {
    const char *object, *key;
    const char *param;  /* its row of ng_moe_param_at(); NULL: a number of the model's */
    const char *values; /* names, the default first */
    enum key_type type;
    size_t at; /* in struct block */
};

#define AT(field)  offsetof(struct block, moe.field)
#define FORMATS    "f32 bf16 f16"
#define OUTPUTS    "bf16 f32 f16"
#define FUNCTIONS  "cr sleef table"
#define SCALE_RULE "floor floor_up1 ceil even rceil"
#define LAYOUTS    "linear trn_wrap trn_1x32"
#define SPECIALS   "element nan_block from_exponent"
#define DIVIDE     "reciprocal division"
#define OPERANDS   "as_is mx fp8_row fp8_block"
#define FN         "exp sigmoid tanh"

static const struct key keys[] = {
    { "router", "k", NULL, NULL, KEY_COUNT, AT(route.k) },
    { "router", "order", "order", "topk_then_act act_then_topk act_all", KEY_ENUM,
      AT(route.order) },
    { "router", "act", "act", "softmax sigmoid", KEY_ENUM, AT(route.act) },
    { "router", "score", "score", FORMATS, KEY_FORMAT, AT(route.score) },
    { "router", "exp", FN, FUNCTIONS, KEY_FUNCTION, AT(route.exp) },
    { "router", "sigmoid", FN, FUNCTIONS, KEY_FUNCTION, AT(route.sigmoid) },
    { "router", "reciprocal", FN, FUNCTIONS, KEY_FUNCTION, AT(route.reciprocal) },
    { "router", "softmax_by", "softmax_by", DIVIDE, KEY_ENUM, AT(route.softmax_by) },
    { "router", "normalise", "normalise", "no yes", KEY_BOOL, AT(route.normalise) },
    { "router", "normalise_by", "normalise_by", DIVIDE, KEY_ENUM, AT(route.normalise_by) },
    { "router", "eps", NULL, NULL, KEY_REAL, AT(route.eps) },
    { "router", "eps_how", "eps_how", "add floor", KEY_ENUM, AT(route.eps_how) },
    { "router", "scale", NULL, NULL, KEY_REAL, AT(route.scale) },
    { "router", "groups", NULL, NULL, KEY_COUNT, AT(route.groups) },
    { "router", "top_groups", NULL, NULL, KEY_COUNT, AT(route.top_groups) },
    { "router", "group_top", NULL, NULL, KEY_COUNT, AT(route.group_top) },
    { "router", "mask", "mask", "zero minus_inf", KEY_ENUM, AT(route.mask) },
    { "router", "logits", "logits", FORMATS, KEY_FORMAT, AT(logits) },
    { "router", "weights", "weights", FORMATS, KEY_FORMAT, AT(weights) },
    { "router", "accumulate", "accumulate", FORMATS, KEY_FORMAT, AT(router.accumulate) },
    { "router", "double_row", "double_row", "no yes", KEY_BOOL, AT(router.double_row) },
    { "dispatch", "mode", "mode", "dropless capacity", KEY_ENUM, AT(op.dispatch.mode) },
    { "dispatch", "block", NULL, NULL, KEY_COUNT, AT(op.dispatch.block) },
    { "dispatch", "factor", NULL, NULL, KEY_REAL, AT(op.dispatch.factor) },
    { "dispatch", "capacity", NULL, NULL, KEY_SIZE, AT(op.dispatch.capacity) },
    { "dispatch", "ranks", NULL, NULL, KEY_COUNT, AT(op.dispatch.ranks) },
    { "dispatch", "rank", NULL, NULL, KEY_COUNT, AT(op.dispatch.rank) },
    { "mlp", "accumulate", "accumulate", FORMATS, KEY_FORMAT, AT(op.gemm.accumulate) },
    { "mlp", "double_row", "double_row", "no yes", KEY_BOOL, AT(op.gemm.double_row) },
    { "mlp", "fp4_map", NULL, NULL, KEY_FP4, AT(op.gemm) },
    { "mlp", "weights_as", "weights_as", NULL, KEY_FORMATS, AT(op.weights_as) },
    { "mlp", "hidden", "hidden", FORMATS, KEY_FORMAT, AT(op.hidden) },
    { "mlp", "middle", "middle", OUTPUTS, KEY_FORMAT, AT(op.middle) },
    { "mlp", "expert_out", "expert_out", OUTPUTS, KEY_FORMAT, AT(op.expert_out) },
    { "mlp", "affinity", "affinity", "after before inside", KEY_ENUM, AT(op.affinity) },
    { "x", "how", "operands", OPERANDS, KEY_ENUM, AT(op.x.how) },
    { "x", "format", "operands", NULL, KEY_FORMATS, AT(op.x.format) },
    { "x", "rule", "operands", SCALE_RULE, KEY_ENUM, AT(op.x.rule) },
    { "x", "layout", "operands", LAYOUTS, KEY_ENUM, AT(op.x.layout) },
    { "x", "special", NULL, SPECIALS, KEY_ENUM, AT(op.x.special) },
    { "x", "scale_min", NULL, NULL, KEY_REAL, AT(op.x.scale_min) },
    { "x", "by", "x.by quant.by", DIVIDE, KEY_ENUM, AT(op.x.by) },
    { "inner", "how", "operands", OPERANDS, KEY_ENUM, AT(op.quant.how) },
    { "inner", "format", "operands", NULL, KEY_FORMATS, AT(op.quant.format) },
    { "inner", "rule", "operands", SCALE_RULE, KEY_ENUM, AT(op.quant.rule) },
    { "inner", "layout", "operands", LAYOUTS, KEY_ENUM, AT(op.quant.layout) },
    { "inner", "special", NULL, SPECIALS, KEY_ENUM, AT(op.quant.special) },
    { "inner", "scale_min", NULL, NULL, KEY_REAL, AT(op.quant.scale_min) },
    { "inner", "by", "x.by quant.by", DIVIDE, KEY_ENUM, AT(op.quant.by) },
    { "blocks", "order", "blocks.order", "in_turn product", KEY_ENUM, AT(op.blocks.order) },
    { "blocks", "fused", "blocks.fused", "no yes", KEY_BOOL, AT(op.blocks.fused) },
    { "activation", "act", "moe_act", "swiglu swish gelu gpt_oss gpt_oss_folded", KEY_ENUM,
      AT(op.act.act) },
    { "activation", "sigmoid", FN, FUNCTIONS, KEY_FUNCTION, AT(op.act.sigmoid) },
    { "activation", "tanh", FN, FUNCTIONS, KEY_FUNCTION, AT(op.act.tanh) },
    { "activation", "alpha", "alpha limit", NULL, KEY_REAL, AT(op.act.alpha) },
    { "activation", "limit", "alpha limit", NULL, KEY_REAL, AT(op.act.limit) },
    { "activation", "biased", "biased", FORMATS, KEY_FORMAT, AT(op.act.biased) },
    { "combine", "order", "combine.order", "expert rank", KEY_ENUM, AT(op.combine.order) },
    { "combine", "fused", "combine.fused", "no yes", KEY_BOOL, AT(op.combine.fused) },
    { "combine", "product", "combine.product", FORMATS, KEY_FORMAT, AT(op.combine.product) },
    { "combine", "sum", "combine.sum", FORMATS, KEY_FORMAT, AT(op.combine.sum) },
};
enum {
    N_KEYS = sizeof keys / sizeof keys[0],
    N_NAMES = 5 /* the longest list of names */
};
_Static_assert(N_KEYS <= 64, "moe.said has a bit for each");

static void *place(struct block *b, const struct key *k)
{
    return (unsigned char *)b + k->at;
}

/* Enumerations are read and written as what they are: int or unsigned, of one size. */
static int enum_of(const struct block *b, const struct key *k)
{
    int v = 0;
    if (k->type == KEY_BOOL)
        return *(const bool *)((const unsigned char *)b + k->at);
    memcpy(&v, (const unsigned char *)b + k->at, sizeof v); /* FUNCTION: its kind comes first */
    if (k->type != KEY_FORMAT)
        return v;
    const int named = v ? place_in(k->values, ng_format_info((ng_format)v)->text) : 0;
    return named;
}

static void set_enum(struct block *b, const struct key *k, int v)
{
    if (k->type == KEY_BOOL) {
        *(bool *)place(b, k) = v != 0;
        return;
    }
    if (k->type == KEY_FORMAT)
        v = (int)ng_format_find(word_at(k->values, v).text);
    memcpy(place(b, k), &v, sizeof v);
}

static bool has_names(const struct key *k)
{
    return k->values != NULL;
}

static bool of_router(const struct key *k)
{
    return strcmp(k->object, "router") == 0;
}

/* ---- What is read. ---- */

static bool is_routed(const struct one_case *c)
{
    return c->op == OP_ROUTE || c->block->t[ROUTE_W].present;
}

static bool is_blocked(const struct block *b)
{
    return b->moe.op.x.how == NG_MOE_FP8_BLOCK || b->moe.op.quant.how == NG_MOE_FP8_BLOCK;
}

/* Of `x` and `inner`. */
static const char *quant_wants(const ng_moe_quant *q, const char *key)
{
    const bool fp8 = q->how == NG_MOE_FP8_ROW || q->how == NG_MOE_FP8_BLOCK;
    if (strcmp(key, "how") == 0)
        return NULL;
    if (strcmp(key, "format") == 0)
        return q->how == NG_MOE_AS_IS ? "how mx, fp8_row or fp8_block" : NULL;
    if (strcmp(key, "scale_min") == 0 || strcmp(key, "by") == 0)
        return fp8 ? NULL : "how fp8_row or fp8_block";
    return q->how == NG_MOE_MX ? NULL : "how mx";
}

static const char *dispatch_wants(const ng_dispatch_op *op, const struct key *k)
{
    const bool capacity = op->mode == NG_DISPATCH_CAPACITY;
    if (k->at == AT(op.dispatch.block))
        return capacity ? "mode dropless" : NULL;
    if (k->at == AT(op.dispatch.factor))
        return capacity && !op->capacity ? NULL : "mode capacity and no capacity";
    return k->at == AT(op.dispatch.capacity) && !capacity ? "mode capacity" : NULL;
}

/* What a key of the router belongs to where the case has not got it, or NULL. */
static const char *router_wants(const struct block *b, const struct key *k)
{
    const ng_route_op *route = &b->moe.route;
    const bool of_groups = k->at == AT(route.top_groups) || k->at == AT(route.group_top) ||
                           k->at == AT(route.mask),
               multiplies = k->at == AT(logits) || k->at == AT(router.accumulate) ||
                            k->at == AT(router.double_row);
    if (of_groups && !route->groups)
        return "groups";
    if ((k->at == AT(route.eps) || k->at == AT(route.normalise_by)) && !route->normalise)
        return "normalise";
    if (k->at == AT(route.eps_how) && !route->eps)
        return "eps";
    if (k->at == AT(route.softmax_by) && route->act != NG_ROUTE_SOFTMAX)
        return "act softmax";
    return multiplies && b->t[ROUTE_LOGITS].present ? "x and router instead of logits" : NULL;
}

/* What would make the case read a key that it does not read, or NULL. */
static const char *key_wants(const struct one_case *c, const struct key *k)
{
    const struct block *b = c->block;
    if (of_router(k))
        return router_wants(b, k);
    if (strcmp(k->object, "dispatch") == 0)
        return dispatch_wants(&b->moe.op.dispatch, k);
    if (strcmp(k->object, "x") == 0)
        return quant_wants(&b->moe.op.x, k->key);
    if (strcmp(k->object, "inner") == 0)
        return quant_wants(&b->moe.op.quant, k->key);
    if (strcmp(k->object, "blocks") == 0)
        return is_blocked(b) ? NULL : "x.how or inner.how fp8_block";
    return NULL;
}

/* ---- Reading. ---- */

static bool read_key(struct reader *r, json_t *object, struct block *b, const struct key *k)
{
    int64_t n = 0;
    int v = enum_of(b, k);
    switch (k->type) {
    case KEY_BOOL: return reader_bool(r, object, k->key, place(b, k));
    case KEY_FORMATS: return reader_format(r, object, k->key, place(b, k));
    case KEY_SIZE: return reader_number(r, object, k->key, 0, INT64_MAX, place(b, k));
    case KEY_REAL: return reader_real(r, object, k->key, place(b, k));
    case KEY_FP4: return reader_fp4_map(r, object, place(b, k), b->moe.fp4);
    case KEY_COUNT:
        n = *(uint32_t *)place(b, k);
        if (!reader_number(r, object, k->key, 0, UINT32_MAX, &n))
            return false;
        *(uint32_t *)place(b, k) = (uint32_t)n;
        return true;
    default:
        if (!json_object_get(object, k->key))
            return true;
        if (!reader_choice(r, object, k->key, k->values, &v))
            return false;
        set_enum(b, k, v);
        return true;
    }
}

/* The keys of every object that the operation has. */
static bool read_keys(struct reader *r, json_t *root, struct block *b)
{
    for (size_t i = 0; i < N_KEYS;) {
        const char *object = keys[i].object, *names[N_KEYS + 1];
        size_t n = 0, end = i;
        for (; end < N_KEYS && strcmp(keys[end].object, object) == 0; end++)
            names[n++] = keys[end].key;
        names[n] = NULL;
        json_t *j = json_object_get(root, object);
        if (j && !reader_keys(r, j, object, names))
            return false;
        for (; i < end; i++) {
            if (j && !read_key(r, j, b, &keys[i]))
                return false;
            if (j && json_object_get(j, keys[i].key))
                b->moe.said |= (uint64_t)1 << i;
        }
    }
    return true;
}

static bool read_preset(struct reader *r, json_t *root, struct block *b)
{
    const char *name;
    if (!reader_string(r, root, "preset", &name))
        return false;
    b->moe.preset = name ? ng_moe_preset_find(name) : NULL;
    if (name && !b->moe.preset) {
        char known[200] = "";
        for (size_t i = 0, n = 0; ng_moe_preset_at(i) && n < sizeof known; i++)
            n +=
                (size_t)snprintf(known + n, sizeof known - n, " %s", ng_moe_preset_at(i)->name);
        return reader_fail(r, "preset is '%.40s'; wanted: one of%s", name, known);
    }
    if (b->moe.preset) {
        b->moe.route = b->moe.preset->route;
        b->moe.op.act = b->moe.preset->act;
    }
    return true;
}

/* Keys whose zero the library takes for a default, and what that is. */
static const char *default_of(const struct key *k)
{
    static const struct {
        size_t at;
        const char *is;
    } list[] = {
        { AT(route.scale), "no factor" },
        { AT(route.group_top), "2" },
        { AT(op.dispatch.block), "1" },
        { AT(op.dispatch.capacity), "that of the factor" },
        { AT(op.dispatch.ranks), "1" },
        { AT(op.x.scale_min), "2^-126" },
        { AT(op.quant.scale_min), "2^-126" },
        { AT(op.act.alpha), "1.702" },
        { AT(op.act.limit), "7" },
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].at == k->at)
            return list[i].is;
    return NULL;
}

static bool is_zero(const struct block *b, const struct key *k)
{
    static const unsigned char zero[sizeof(int64_t)];
    const size_t bytes = k->type == KEY_SIZE ? sizeof(int64_t) : sizeof(uint32_t);
    return memcmp((const unsigned char *)b + k->at, zero, bytes) == 0;
}

/* "router.mask", or "--mask". */
static struct code_text said_name(const struct reader *r, const struct key *k)
{
    struct code_text t = reader_name(r, k->key);
    if (!r->options)
        snprintf(t.text, sizeof t.text, "%s.%s", k->object, k->key);
    return t;
}

/* What the case says itself must be read, and be what it looks like. */
static bool check_said(struct reader *r, const struct one_case *c)
{
    const struct block *b = c->block;
    for (size_t i = 0; i < N_KEYS; i++) {
        const struct key *k = &keys[i];
        if (!(b->moe.said >> i & 1))
            continue;
        if (default_of(k) && is_zero(b, k))
            return reader_fail(r, "%s is 0%s; wanted: another number, or none for %s",
                               said_name(r, k).text, k->type == KEY_REAL ? " in FP32" : "",
                               default_of(k));
        const char *wants = key_wants(c, k);
        if (wants)
            return reader_fail(r, "%s is not read; it wants %s", said_name(r, k).text, wants);
    }
    return true;
}

/* A table is read for a function of kind table. */
static bool check_tables(struct reader *r, const struct one_case *c)
{
    const struct block *b = c->block;
    const ng_route_op *route = &b->moe.route;
    const ng_moe_act_op *act = &b->moe.op.act;
    const bool routed = is_routed(c), moe = c->op == OP_MOE;
    const struct {
        size_t tensor;
        bool read;
        const char *wants;
    } list[] = {
        { ROUTE_EXP, routed && route->exp.kind == NG_FUNCTION_TABLE, "router.exp" },
        { ROUTE_SIGMOID,
          (routed && route->sigmoid.kind == NG_FUNCTION_TABLE) ||
              (moe && act->sigmoid.kind == NG_FUNCTION_TABLE),
          moe ? "router.sigmoid or activation.sigmoid" : "router.sigmoid" },
        { ROUTE_RECIPROCAL, routed && route->reciprocal.kind == NG_FUNCTION_TABLE,
          "router.reciprocal" },
        { MOE_TANH, act->tanh.kind == NG_FUNCTION_TABLE, "activation.tanh" },
    };
    for (size_t i = 0; i < (moe ? 4 : 3); i++)
        if (b->t[list[i].tensor].present && !list[i].read)
            return reader_fail(r, "%s is not read; it wants %s table",
                               reader_name(r, b->kind->tensor[list[i].tensor].name).text,
                               list[i].wants);
    return true;
}

/* 65536 bf16 codes, for the functions of kind table. */
static bool take_table(struct reader *r, const struct block *b, size_t i,
                       ng_function_choice *choice)
{
    const struct io_array *a = &b->t[i].data;
    if (a->data && (a->format != NG_BF16 || a->bytes != 65536 * sizeof(uint16_t)))
        return reader_fail(r, "%s holds %s %s; wanted: 65536 bf16 codes",
                           b->kind->tensor[i].name, io_type_name(a->format, a->item_bits),
                           io_shape(a->rank, a->dim).text);
    choice->table = a->data;
    return true;
}

static void set_sizes(struct block *b)
{
    b->moe.route.size = sizeof b->moe.route;
    b->moe.router.size = b->moe.op.gemm.size = sizeof(ng_gemm_op);
    b->moe.op.size = sizeof b->moe.op;
    b->moe.op.act.size = sizeof b->moe.op.act;
    b->moe.op.combine.size = sizeof b->moe.op.combine;
    b->moe.op.dispatch.size = sizeof b->moe.op.dispatch;
}

/* Indices of 64 bits, PyTorch's, become those of 32 that routing writes. */
static bool narrow_experts(struct reader *r, struct operand *o)
{
    struct io_array *a = &o->data;
    uint32_t *to = a->data;
    if (!a->data || a->item_bits != 64)
        return true;
    for (int64_t i = 0; i < block_elements(o); i++) {
        const int64_t v = (int64_t)block_code(o, i);
        if (v < INT32_MIN || v > UINT32_MAX) {
            char at[128];
            ng_tensor t = { .rank = a->rank };
            memcpy(t.dim, a->dim, sizeof t.dim);
            index_text(&t, i, at, sizeof at);
            r->code = cli_fail(EXIT_FILE, "experts%s is %lld; wanted: indices of 32 bits", at,
                               (long long)v);
            return false;
        }
    }
    for (int64_t i = 0; i < block_elements(o); i++) /* to stays behind what is read */
        to[i] = (uint32_t)block_code(o, i);
    a->item_bits = 32;
    a->bytes /= 2;
    return true;
}

static bool read_common(struct reader *r, json_t *root, struct one_case *c)
{
    struct block *b = c->block;
    set_sizes(b);
    if (!narrow_experts(r, &b->t[ROUTE_EXPERTS]) || !read_preset(r, root, b) ||
        !read_keys(r, root, b) ||
        (json_object_get(root, "profile") && !reader_profile(r, root, c)) ||
        !take_table(r, b, ROUTE_EXP, &b->moe.route.exp) ||
        !take_table(r, b, ROUTE_SIGMOID, &b->moe.route.sigmoid) ||
        !take_table(r, b, ROUTE_RECIPROCAL, &b->moe.route.reciprocal))
        return false;
    b->moe.op.act.sigmoid.table = b->moe.route.sigmoid.table;
    return check_said(r, c) && check_tables(r, c);
}

static bool want_router(struct reader *r, const struct one_case *c)
{
    const struct operand *t = c->block->t;
    if (!t[ROUTE_X].present || !t[ROUTE_W].present || !c->profile)
        return reader_fail(r,
                           "%s is missing; wanted for logits: tensors x and router, and a "
                           "profile",
                           !t[ROUTE_X].present   ? "x"
                           : !t[ROUTE_W].present ? "router"
                                                 : "profile");
    return t[ROUTE_W].view.rank == 2 ||
           reader_fail(r, "router has rank %u; wanted: [H, experts]", t[ROUTE_W].view.rank);
}

static bool want_k(struct reader *r, json_t *root, const struct block *b)
{
    if (b->moe.route.k)
        return true;
    return json_object_get(json_object_get(root, "router"), "k")
               ? reader_fail(r, "router.k is 0; wanted: at least 1")
               : reader_fail(r, "router has no \"k\", and there is no \"preset\"");
}

/* Experts that are given leave a router nothing to do. */
static bool no_router(struct reader *r, json_t *root, const struct block *b)
{
    for (size_t i = ROUTE_B; i <= ROUTE_CORRECTION; i++)
        if (b->t[i].present)
            return reader_fail(r, "%s is not read beside experts; it wants the tensor router",
                               b->kind->tensor[i].name);
    return !json_object_get(root, "router") ||
           reader_fail(r, "\"router\" is not read beside experts; it wants the tensor router");
}

static bool read_route(struct reader *r, json_t *root, struct one_case *c)
{
    const struct operand *t = c->block->t;
    if (!read_common(r, root, c))
        return false;
    if (!t[ROUTE_EXPERTS].present && !t[ROUTE_WEIGHTS].present)
        return reader_fail(r, "tensors have neither experts nor weights: nothing is asked for");
    if (!want_k(r, root, c->block))
        return false;
    for (size_t i = 0; i < N_KEYS; i++)
        if (c->block->moe.said >> i & 1 && keys[i].at == AT(weights))
            return reader_fail(r, "router.weights says nothing to a route: its tensor weights "
                                  "has the format");
    c->block->moe.weights = t[ROUTE_WEIGHTS].view.format;
    if (t[ROUTE_LOGITS_OUT].present)
        c->block->moe.logits = t[ROUTE_LOGITS_OUT].view.format;
    if (!t[ROUTE_LOGITS].present)
        return want_router(r, c);
    static const size_t idle[] = { ROUTE_X, ROUTE_W, ROUTE_B, ROUTE_LOGITS_OUT };
    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++)
        if (t[idle[i]].present)
            return reader_fail(r, "%s says nothing beside logits",
                               reader_name(r, c->block->kind->tensor[idle[i]].name).text);
    if (c->profile)
        return reader_fail(r, "%s says nothing beside logits", reader_name(r, "profile").text);
    return t[ROUTE_LOGITS].view.rank == 2 ||
           reader_fail(r, "logits have rank %u; wanted: [tokens, experts]",
                       t[ROUTE_LOGITS].view.rank);
}

/* Experts and entries a token are what the operands say. */
static bool count_experts(struct reader *r, struct block *b)
{
    const struct operand *t = b->t;
    const uint32_t ranks = b->moe.op.dispatch.ranks ? b->moe.op.dispatch.ranks : 1;
    for (size_t i = MOE_GATE; i <= MOE_DOWN; i += 3)
        if (t[i].present && t[i].view.rank != 3)
            return reader_fail(r, "%s has rank %u; wanted: [experts, K, N]",
                               b->kind->tensor[i].name, t[i].view.rank);
    const int64_t local = t[MOE_DOWN].view.dim[0];
    for (size_t i = MOE_GATE; i < MOE_DOWN; i += 3)
        if (t[i].present && t[i].view.dim[0] != local)
            return reader_fail(r, "%s has %lld experts but down %lld", b->kind->tensor[i].name,
                               (long long)t[i].view.dim[0], (long long)local);
    if (t[ROUTE_W].present && t[ROUTE_W].view.dim[1] != local * ranks)
        return reader_fail(r,
                           "router has %lld columns; wanted: %lld, one for each of the %lld "
                           "experts of down on %u ranks",
                           (long long)t[ROUTE_W].view.dim[1], (long long)(local * ranks),
                           (long long)local, ranks);
    b->moe.op.dispatch.experts = (uint32_t)local * ranks;
    b->moe.op.dispatch.k = b->moe.route.k;
    if (t[ROUTE_EXPERTS].present && t[ROUTE_EXPERTS].data.rank != 2)
        return reader_fail(r, "experts have rank %u; wanted: [tokens, k]",
                           t[ROUTE_EXPERTS].data.rank);
    if (t[ROUTE_EXPERTS].present && t[ROUTE_EXPERTS].data.dim[0] != t[ROUTE_X].view.dim[0])
        return reader_fail(r, "experts have %lld rows; wanted: %lld, the tokens of x",
                           (long long)t[ROUTE_EXPERTS].data.dim[0],
                           (long long)t[ROUTE_X].view.dim[0]);
    if (t[ROUTE_EXPERTS].present)
        b->moe.op.dispatch.k = (uint32_t)t[ROUTE_EXPERTS].data.dim[1];
    return true;
}

static bool read_moe(struct reader *r, json_t *root, struct one_case *c)
{
    struct block *b = c->block;
    const struct operand *t = b->t;
    if (!read_common(r, root, c) || !take_table(r, b, MOE_TANH, &b->moe.op.act.tanh))
        return false;
    if (!t[ROUTE_X].present || t[ROUTE_X].view.rank != 2)
        return reader_fail(r, "x is %s; wanted: [tokens, H]",
                           t[ROUTE_X].present ? "of another rank" : "missing");
    if (!c->profile)
        return reader_fail(r, "a mixture of experts needs a \"profile\"");
    if (t[ROUTE_LOGITS].present)
        return reader_fail(r, "logits are of op route; a moe takes router, or experts");
    if (t[ROUTE_W].present == t[ROUTE_EXPERTS].present)
        return reader_fail(r, "wanted either a router or experts (and their weights), not %s",
                           t[ROUTE_W].present ? "both" : "neither");
    if (t[ROUTE_W].present ? !want_k(r, root, b) || !want_router(r, c) : !no_router(r, root, b))
        return false;
    if (t[ROUTE_W].present && t[ROUTE_WEIGHTS].present)
        return reader_fail(r, "weights is not read beside a router; it wants experts");
    for (size_t i = MOE_UP + 1; i < MOE_DOWN; i++)
        if (t[i].present && !t[MOE_UP].present)
            return reader_fail(r, "%s is given but up is not", b->kind->tensor[i].name);
    return count_experts(r, b);
}

/* ---- Shapes and calls. ---- */

static int64_t experts_of(const struct operand *t)
{
    return t[ROUTE_LOGITS].present ? t[ROUTE_LOGITS].view.dim[1] : t[ROUTE_W].view.dim[1];
}

static int route_shape(const struct one_case *c, size_t i, uint32_t *rank, int64_t *dim)
{
    const struct operand *t = c->block->t;
    const int64_t experts = experts_of(t);
    *rank = 2;
    dim[0] = t[ROUTE_LOGITS].present ? t[ROUTE_LOGITS].view.dim[0] : t[ROUTE_X].view.dim[0];
    dim[1] = i == ROUTE_LOGITS_OUT ? experts : (int64_t)c->block->moe.route.k;
    if ((int64_t)c->block->moe.route.k > experts)
        return cli_fail(EXIT_REFUSED, "k is %u; wanted: at most %lld experts",
                        c->block->moe.route.k, (long long)experts);
    return 0;
}

static int moe_shape(const struct one_case *c, size_t i, uint32_t *rank, int64_t *dim)
{
    const ng_tensor *x = &c->block->t[ROUTE_X].view;
    (void)i;
    *rank = 2;
    memcpy(dim, x->dim, 2 * sizeof *dim);
    return 0;
}

/* What a call wants beside what was asked for: experts, weights and logits of its own. */
struct scratch {
    int32_t *experts;
    uint32_t *weights, *logits;
};

static bool scratch_open(struct scratch *s, int64_t tokens, int64_t k, int64_t experts)
{
    s->experts = calloc((size_t)(tokens * k), sizeof *s->experts);
    s->weights = calloc((size_t)(tokens * k), sizeof *s->weights);
    s->logits = calloc((size_t)(tokens * experts), sizeof *s->logits);
    return s->experts && s->weights && s->logits;
}

static void scratch_close(struct scratch *s)
{
    free(s->experts);
    free(s->weights);
    free(s->logits);
}

static ng_tensor matrix(ng_format format, void *data, int64_t rows, int64_t columns)
{
    ng_tensor t = { 0 };
    (void)ng_tensor_init(&t, format, data, 2, (const int64_t[]){ rows, columns });
    return t;
}

/* Experts and weights of the case's logits, or of its router's. */
static ng_status route_tokens(ng_ctx *ctx, const struct one_case *c, const ng_tensor *logits,
                              int32_t *experts, const ng_tensor *weights)
{
    const struct block *b = c->block;
    const struct operand *t = b->t;
    const ng_tensor *correction = block_view(t, ROUTE_CORRECTION);
    if (t[ROUTE_LOGITS].present)
        return ng_route(ctx, &b->moe.route, &t[ROUTE_LOGITS].view, correction, experts, weights,
                        NULL);
    ng_gemm_op gemm = b->moe.router;
    gemm.profile = c->profile;
    return ng_router(ctx, &gemm, &b->moe.route, &t[ROUTE_X].view, &t[ROUTE_W].view,
                     block_view(t, ROUTE_B), logits, correction, experts, weights, NULL);
}

static ng_status route(ng_ctx *ctx, const struct one_case *c, struct operand *out)
{
    const struct block *b = c->block;
    const struct operand *t = b->t;
    const int64_t tokens = t[ROUTE_LOGITS].present ? t[ROUTE_LOGITS].view.dim[0]
                                                   : t[ROUTE_X].view.dim[0],
                  k = b->moe.route.k, experts = experts_of(t);
    struct scratch s;
    ng_status status = NG_ERR_MEMORY;
    if (scratch_open(&s, tokens, k, experts)) {
        const ng_tensor weights = out[ROUTE_WEIGHTS].present
                                      ? out[ROUTE_WEIGHTS].view
                                      : matrix(NG_F32, s.weights, tokens, k),
                        logits = out[ROUTE_LOGITS_OUT].present
                                     ? out[ROUTE_LOGITS_OUT].view
                                     : matrix(b->moe.logits ? b->moe.logits : NG_F32, s.logits,
                                              tokens, experts);
        status = route_tokens(
            ctx, c, &logits,
            out[ROUTE_EXPERTS].present ? out[ROUTE_EXPERTS].data.data : s.experts, &weights);
    }
    scratch_close(&s);
    return status;
}

/* Matrix e of an array of them. */
static ng_tensor matrix_of(const ng_tensor *t, int64_t e)
{
    ng_tensor m;
    const int64_t bits = ng_format_info(t->format)->store_bits;
    (void)ng_tensor_init(&m, t->format, (unsigned char *)t->data + e * t->stride[0] * bits / 8,
                         2, t->dim + 1);
    if (!t->scale)
        return m;
    int64_t blocks = 1;
    for (uint32_t d = 1; d < 3; d++)
        blocks *= d == t->block_axis ? (t->dim[d] + t->block - 1) / t->block : t->dim[d];
    (void)ng_tensor_set_scale(&m, t->scale_format, (unsigned char *)t->scale + e * blocks,
                              t->block, t->block_axis ? t->block_axis - 1 : 0, t->layout);
    return m;
}

/* The views of a projection: weights [experts], scale and bias. */
static bool projection(const struct operand *t, ng_tensor **owned, ng_moe_linear *l)
{
    if (!t[0].present)
        return true;
    const int64_t n = t[0].view.dim[0];
    *owned = calloc((size_t)n, sizeof **owned);
    for (int64_t e = 0; *owned && e < n; e++)
        (*owned)[e] = matrix_of(&t[0].view, e);
    *l = (ng_moe_linear){ .weights = *owned,
                          .scale = block_view(t, 1),
                          .bias = block_view(t, 2) };
    return *owned != NULL;
}

/* -1, in whatever width, is no expert. */
static int32_t *indices_of(const struct operand *o)
{
    const int64_t n = block_elements(o);
    const uint32_t bits = o->data.item_bits;
    int32_t *indices = calloc((size_t)n, sizeof *indices);
    for (int64_t i = 0; indices && i < n; i++) {
        const uint64_t v = block_code(o, i);
        const uint64_t none = bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
        indices[i] = v == none ? -1 : v > INT32_MAX ? INT32_MAX : (int32_t)v;
    }
    return indices;
}

static ng_status call_moe(ng_ctx *ctx, const struct one_case *c, const ng_moe_experts *experts,
                          const ng_tensor *y)
{
    const struct block *b = c->block;
    const struct operand *t = b->t;
    ng_moe_op op = b->moe.op;
    op.gemm.profile = c->profile;
    if (!t[ROUTE_EXPERTS].present) {
        ng_moe_router router = { .gemm = b->moe.router,
                                 .route = b->moe.route,
                                 .logits = b->moe.logits,
                                 .weights = b->moe.weights,
                                 .w = &t[ROUTE_W].view,
                                 .b = block_view(t, ROUTE_B),
                                 .correction = block_view(t, ROUTE_CORRECTION) };
        router.gemm.profile = c->profile;
        return ng_moe(ctx, &op, &router, experts, &t[ROUTE_X].view, block_view(t, MOE_C), y);
    }
    int32_t *indices = indices_of(&t[ROUTE_EXPERTS]);
    const ng_status s = indices
                            ? ng_moe_mlp(ctx, &op, experts, &t[ROUTE_X].view, indices,
                                         block_view(t, ROUTE_WEIGHTS), block_view(t, MOE_C), y)
                            : NG_ERR_MEMORY;
    free(indices);
    return s;
}

static ng_status moe(ng_ctx *ctx, const struct one_case *c, struct operand *out)
{
    const struct operand *t = c->block->t;
    ng_tensor *owned[3] = { NULL };
    ng_moe_experts experts = { .gate = { .weights = NULL } };
    ng_status s = NG_ERR_MEMORY;
    if (projection(&t[MOE_GATE], &owned[0], &experts.gate) &&
        projection(&t[MOE_UP], &owned[1], &experts.up) &&
        projection(&t[MOE_DOWN], &owned[2], &experts.down))
        s = call_moe(ctx, c, &experts, &out[MOE_Y].view);
    for (int i = 0; i < 3; i++)
        free(owned[i]);
    return s;
}

/* ---- Reports. ---- */

static const char *title(const struct one_case *c)
{
    return c->block->moe.preset ? c->block->moe.preset->name : op_text(c->op);
}

static const ng_moe_param *param_of(const char *key)
{
    for (size_t i = 0; key && ng_moe_param_at(i); i++)
        if (strcmp(ng_moe_param_at(i)->key, key) == 0)
            return ng_moe_param_at(i);
    return NULL;
}

/* "e4m3fn:00,30,38,..": as the option of a multiply, without its 0x */
static void fp4_text(const ng_gemm_op *op, char *text, size_t bytes)
{
    size_t n = (size_t)snprintf(text, bytes, "%s", ng_format_info(op->fp4_format)->text);
    for (int i = 0; i < FP4_CODES && n < bytes; i++)
        n += (size_t)snprintf(text + n, bytes - n, "%c%02x", i ? ',' : ':', op->fp4_map[i]);
}

static void value_text_of(const struct block *b, const struct key *k, char *text, size_t bytes)
{
    const void *at = (const unsigned char *)b + k->at;
    ng_format format;
    switch (k->type) {
    case KEY_COUNT: snprintf(text, bytes, "%u", *(const uint32_t *)at); return;
    case KEY_SIZE: snprintf(text, bytes, "%lld", (long long)*(const int64_t *)at); return;
    case KEY_REAL:
        snprintf(text, bytes, *(const uint32_t *)at ? "0x%08X" : "default",
                 *(const uint32_t *)at);
        return;
    case KEY_FP4: fp4_text(at, text, bytes); return;
    case KEY_FORMATS:
        format = *(const ng_format *)at;
        snprintf(text, bytes, "%s", format ? ng_format_info(format)->text : "given");
        return;
    default:
        snprintf(text, bytes, "%.60s",
                 enum_of(b, k) < 0 ? "?" : word_at(k->values, enum_of(b, k)).text);
    }
}

/* Is a parameter's evidence of the value that it has here? */
static bool is_known(const struct block *b, const struct key *k, const ng_moe_param *p)
{
    char value[160];
    const bool mx = b->moe.op.x.how == NG_MOE_MX || b->t[ROUTE_X].view.scale;
    value_text_of(b, k, value, sizeof value);
    if (strcmp(p->key, "accumulate") == 0 && !of_router(k))
        return strcmp(value, mx ? "bf16" : "f32") == 0;
    return p->of ? place_in(p->of, value) >= 0 : !has_names(k) || enum_of(b, k) == 0;
}

/* The value's evidence, the preset's, or none that we know of. */
static ng_evidence evidence_of(const struct block *b, size_t i)
{
    const struct key *k = &keys[i];
    const ng_moe_param *p = param_of(k->param);
    const bool preset = b->moe.preset && (of_router(k) || strcmp(k->object, "activation") == 0),
               said = b->moe.said >> i & 1;
    if (said && !has_names(k))
        return NG_EVIDENCE_ASSUMED;
    if (preset && !said && (!p || (has_names(k) && enum_of(b, k) != 0)))
        return b->moe.preset->evidence;
    return p && is_known(b, k, p) ? p->evidence : NG_EVIDENCE_ASSUMED;
}

static bool is_key_of(const struct one_case *c, const struct key *k)
{
    return of_router(k) ? is_routed(c) : c->op == OP_MOE;
}

/* ---- Parameters that can change nothing here. ---- */

static bool router_is_idle(const struct block *b, size_t at)
{
    const ng_route_op *op = &b->moe.route;
    const bool softmax = op->act == NG_ROUTE_SOFTMAX,
               divides = (softmax && op->softmax_by == NG_DIVIDE_RECIPROCAL) ||
                         (op->normalise && op->normalise_by == NG_DIVIDE_RECIPROCAL);
    switch (at) {
    case AT(route.exp):
    case AT(route.softmax_by): return !softmax;
    case AT(route.sigmoid): return softmax;
    case AT(route.reciprocal): return !divides;
    case AT(route.normalise_by):
    case AT(route.eps): return !op->normalise;
    case AT(route.eps_how): return !op->normalise || !op->eps;
    case AT(route.top_groups):
    case AT(route.group_top):
    case AT(route.mask): return !op->groups;
    default: return false;
    }
}

static bool is_byte(const struct operand *o)
{
    return o->present && ng_format_info(o->view.format)->bits == 8;
}

/* Do the combine's sums have weights? */
static bool combine_weighs(const struct block *b)
{
    return b->moe.op.affinity == NG_MOE_AFFINITY_AFTER &&
           (b->t[ROUTE_W].present || b->t[ROUTE_WEIGHTS].present);
}

static bool act_is_idle(const struct block *b, size_t at)
{
    const ng_moe_act act = b->moe.op.act.act;
    switch (at) {
    case AT(op.act.sigmoid): return act == NG_MOE_GELU;
    case AT(op.act.tanh): return act != NG_MOE_GELU;
    case AT(op.act.alpha): return act == NG_MOE_SWIGLU || act == NG_MOE_GELU;
    case AT(op.act.limit): return act < NG_MOE_GPT_OSS;
    case AT(op.act.biased): return !b->t[MOE_GATE + 2].present && !b->t[MOE_UP + 2].present;
    default: return false;
    }
}

static bool moe_is_idle(const struct block *b, size_t at)
{
    const ng_moe_op *op = &b->moe.op;
    switch (at) {
    case AT(op.gemm.double_row):
        return !is_byte(&b->t[MOE_GATE]) && !is_byte(&b->t[MOE_UP]) &&
               !is_byte(&b->t[MOE_DOWN]);
    case AT(op.weights_as):
        return op->x.how == NG_MOE_FP8_BLOCK && op->quant.how == NG_MOE_FP8_BLOCK;
    case AT(op.affinity): return !b->t[ROUTE_W].present && !b->t[ROUTE_WEIGHTS].present;
    case AT(op.dispatch.block): return true; /* padding is in no sum */
    case AT(op.dispatch.rank): return op->dispatch.ranks <= 1;
    case AT(op.combine.order): return op->dispatch.k == 1;
    case AT(op.combine.fused): return !combine_weighs(b);
    case AT(op.combine.product): return op->combine.fused || !combine_weighs(b);
    default: return act_is_idle(b, at);
    }
}

static bool key_is_idle(const struct one_case *c, const struct key *k)
{
    const struct block *b = c->block;
    if (key_wants(c, k))
        return true;
    if (k->at == AT(router.double_row))
        return !is_byte(&b->t[ROUTE_X]) || !is_byte(&b->t[ROUTE_W]);
    return of_router(k) ? router_is_idle(b, k->at) : moe_is_idle(b, k->at);
}

/* Of those without a key. */
static bool fixed_is_idle(const struct block *b, const char *key)
{
    const struct operand *t = b->t;
    if (strcmp(key, "softmax sum") == 0)
        return b->moe.route.act != NG_ROUTE_SOFTMAX;
    if (strcmp(key, "router bias") == 0)
        return !t[ROUTE_B].present;
    if (strcmp(key, "clamps") == 0)
        return b->moe.op.act.act < NG_MOE_GPT_OSS;
    if (strcmp(key, "scales") == 0)
        return !(b->moe.op.x.how == NG_MOE_FP8_ROW &&
                 (t[MOE_GATE + 1].present || t[MOE_UP + 1].present)) &&
               !(b->moe.op.quant.how == NG_MOE_FP8_ROW && t[MOE_DOWN + 1].present);
    return false;
}

/* Parameters that have no key, because there is no other value of them yet. The backward is no
 * case here. */
static size_t fixed_parameters(const struct one_case *c, struct block_param *out)
{
    static const char *const of_routing[] = { "ties", "nan and zeros in top-k", "softmax sum",
                                              "router bias" };
    size_t n = 0;
    for (size_t i = 0; ng_moe_param_at(i); i++) {
        const ng_moe_param *p = ng_moe_param_at(i);
        bool keyed = strcmp(p->key, "backward") == 0, routing = false;
        for (size_t k = 0; k < N_KEYS; k++)
            keyed = keyed || (keys[k].param && strcmp(keys[k].param, p->key) == 0);
        for (size_t k = 0; k < sizeof of_routing / sizeof of_routing[0]; k++)
            routing = routing || strcmp(of_routing[k], p->key) == 0;
        if (keyed || (routing ? !is_key_of(c, &keys[0]) : c->op == OP_ROUTE))
            continue;
        snprintf(out[n].key, sizeof out[n].key, "%s", p->key);
        snprintf(out[n].value, sizeof out[n].value, "\"%s\"", p->values);
        out[n].idle = fixed_is_idle(c->block, p->key);
        out[n++].evidence = p->evidence;
    }
    return n;
}

static size_t parameters(const struct one_case *c, struct block_param *out)
{
    const struct block *b = c->block;
    size_t n = 0;
    for (size_t i = 0; i < N_KEYS; i++) {
        if (!is_key_of(c, &keys[i]) ||
            (keys[i].type == KEY_FP4 && !b->moe.op.gemm.fp4_map)) /* without one: E2M1 */
            continue;
        snprintf(out[n].key, sizeof out[n].key, "%s.%s", keys[i].object, keys[i].key);
        value_text_of(b, &keys[i], out[n].value, sizeof out[n].value);
        out[n].idle = key_is_idle(c, &keys[i]);
        out[n++].evidence = evidence_of(b, i);
    }
    return n + fixed_parameters(c, out + n);
}

/* ---- Tokens are independent of each other. ---- */

static bool is_row_of(const struct one_case *c, size_t i)
{
    const bool moe_rows = c->op == OP_MOE && (i == MOE_C || i == MOE_Y);
    return i == ROUTE_LOGITS || i == ROUTE_X || i == ROUTE_EXPERTS || i == ROUTE_WEIGHTS ||
           (c->op == OP_ROUTE ? i == ROUTE_LOGITS_OUT : moe_rows);
}

static int64_t tokens_of(const struct one_case *c)
{
    const struct operand *t = c->block->t;
    return (t[ROUTE_X].present ? t[ROUTE_X] : t[ROUTE_LOGITS]).data.dim[0];
}

/* A capacity looks at all tokens; rows of half bytes or with scales are left as they are. */
static int64_t token_rows(const struct one_case *c, const char **why)
{
    const struct block *b = c->block;
    *why = "with a capacity tokens depend on each other";
    if (c->op == OP_MOE && b->moe.op.dispatch.mode == NG_DISPATCH_CAPACITY)
        return 0;
    *why = "rows of an operand are half bytes or have scales";
    for (size_t i = 0; i < b->kind->n; i++) {
        const struct operand *o = &b->t[i];
        if (o->present && is_row_of(c, i) &&
            (o->data.item_bits < 8 || o->scale.data || o->tags.data))
            return 0;
        if (o->data.data && is_row_of(c, i) && o->data.dim[0] != tokens_of(c))
            return 0; /* the call will say so */
    }
    return tokens_of(c);
}

static bool take_tokens(const struct cli *cli, const struct one_case *c, struct block_part *p)
{
    (void)cli;
    for (size_t i = 0; i < p->b.kind->n; i++) {
        if (!p->b.t[i].present || !is_row_of(c, i) || block_is_result(p->b.kind, i))
            continue;
        if (!block_take_rows(&c->block->t[i], p->row, p->n, &p->b.t[i]))
            return false;
        p->owned[i] = p->b.t[i].data.data;
    }
    return true;
}

static int64_t multiplies_of_token(const struct one_case *c)
{
    const struct operand *t = c->block->t;
    int64_t n = experts_of(t);
    if (t[ROUTE_W].present)
        n *= t[ROUTE_W].view.dim[0];
    for (size_t i = MOE_GATE; c->op == OP_MOE && i <= MOE_DOWN; i += 3)
        if (t[i].present)
            n += t[i].view.dim[1] * t[i].view.dim[2] * (int64_t)c->block->moe.op.dispatch.k;
    return n < 1 ? 1 : n;
}

/* A second's work for a hypothesis. */
static int64_t room(const struct one_case *c)
{
    const int64_t most = 200000000 / multiplies_of_token(c);
    return most < 2 ? 2 : most > 256 ? 256 : most;
}

/* ---- Ties to the higher index: experts counted from the other end. ---- */

struct ties {
    int64_t tokens, experts, k;
    uint32_t *logits, *correction, *weights, *scores; /* FP32 */
    int32_t *index, *order, *slot;
};

static void ties_close(struct ties *s)
{
    free(s->logits);
    free(s->correction);
    free(s->weights);
    free(s->scores);
    free(s->index);
    free(s->order);
    free(s->slot);
}

static bool ties_open(struct ties *s, const struct one_case *c)
{
    *s = (struct ties){ .tokens = tokens_of(c),
                        .experts = experts_of(c->block->t),
                        .k = c->block->moe.route.k };
    const size_t all = (size_t)(s->tokens * s->experts), kept = (size_t)(s->tokens * s->k);
    s->logits = calloc(all, sizeof *s->logits);
    s->correction = calloc((size_t)s->experts, sizeof *s->correction);
    s->weights = calloc(kept, sizeof *s->weights);
    s->scores = calloc(all, sizeof *s->scores);
    s->index = calloc(kept, sizeof *s->index);
    s->order = calloc(all, sizeof *s->order);
    s->slot = calloc(kept, sizeof *s->slot);
    return s->logits && s->correction && s->weights && s->scores && s->index && s->order &&
           s->slot;
}

static void reverse(uint32_t *line, int64_t n)
{
    for (int64_t i = 0, k = n - 1; i < k; i++, k--) {
        const uint32_t kept = line[i];
        line[i] = line[k];
        line[k] = kept;
    }
}

static ng_status widen(ng_ctx *ctx, const ng_tensor *from, const ng_tensor *to)
{
    const ng_convert_op op = { .size = sizeof op };
    return ng_convert(ctx, &op, from, to);
}

/* The logits as FP32: the case's, or its router's. */
static ng_status ties_logits(ng_ctx *ctx, const struct one_case *c, struct ties *s)
{
    const struct operand *t = c->block->t;
    const ng_tensor wide = matrix(NG_F32, s->logits, s->tokens, s->experts);
    if (t[ROUTE_LOGITS].present)
        return widen(ctx, &t[ROUTE_LOGITS].view, &wide);
    const ng_format format = c->block->moe.logits ? c->block->moe.logits : NG_F32;
    const ng_tensor made = matrix(format, s->scores, s->tokens, s->experts),
                    weights = matrix(NG_F32, s->weights, s->tokens, s->k);
    const ng_status status = route_tokens(ctx, c, &made, s->index, &weights);
    return status ? status : widen(ctx, &made, &wide);
}

/* A sum over all experts must not run backwards too: weights of scores are looked up. */
static ng_status look_up(ng_ctx *ctx, const ng_route_op *op, const ng_tensor *logits,
                         const ng_tensor *correction, struct ties *s)
{
    ng_route_op every = *op;
    const ng_tensor scores = matrix(NG_F32, s->scores, s->tokens, s->experts),
                    weights = matrix(NG_F32, s->weights, s->tokens, s->k);
    every.k = (uint32_t)s->experts;
    every.normalise = false;
    every.eps = every.scale = 0;
    const ng_status status = ng_route(ctx, &every, logits, correction, s->order, &scores, NULL);
    for (int64_t i = 0; i < s->tokens * s->k && !status; i++)
        for (int64_t n = 0; n < s->experts; n++)
            if (s->order[i / s->k * s->experts + n] == s->index[i])
                s->weights[i] = s->scores[i / s->k * s->experts + n];
    return status ? status : ng_route_weights(ctx, op, s->slot, &weights);
}

static ng_status ties_route(ng_ctx *ctx, const struct one_case *c, struct ties *s)
{
    const struct operand *bias = &c->block->t[ROUTE_CORRECTION];
    const ng_route_op *op = &c->block->moe.route;
    const ng_tensor logits = matrix(NG_F32, s->logits, s->tokens, s->experts),
                    weights = matrix(NG_F32, s->weights, s->tokens, s->k);
    ng_tensor correction;
    (void)ng_tensor_init(&correction, NG_F32, s->correction, 1, &s->experts);
    ng_status status = ties_logits(ctx, c, s);
    if (!status && bias->present)
        status = widen(ctx, &bias->view, &correction);
    for (int backwards = 0; backwards < 2; backwards++) { /* and forwards again */
        for (int64_t i = 0; i < s->tokens; i++)
            reverse(s->logits + i * s->experts, s->experts);
        reverse(s->correction, s->experts);
        if (!status && !backwards)
            status = ng_route(ctx, op, &logits, bias->present ? &correction : NULL, s->index,
                              &weights, NULL);
    }
    for (int64_t i = 0; i < s->tokens * s->k; i++)
        s->index[i] = (int32_t)s->experts - 1 - s->index[i];
    if (!status && op->order != NG_ROUTE_TOPK_THEN_ACT)
        status = look_up(ctx, op, &logits, bias->present ? &correction : NULL, s);
    return status;
}

/* The results of a route, or of a mixture that is told its experts. */
static ng_status ties_results(ng_ctx *ctx, const struct one_case *c, struct ties *s,
                              struct operand *out)
{
    struct block b = *c->block;
    struct one_case v = *c;
    const ng_tensor weights = matrix(NG_F32, s->weights, s->tokens, s->k);
    v.block = &b;
    b.moe.ties_high = false;
    ng_status status = b.kind->compute(ctx, &v, out); /* all that ties do not change */
    if (!status && v.op == OP_ROUTE) {
        if (out[ROUTE_EXPERTS].present)
            memcpy(out[ROUTE_EXPERTS].data.data, s->index, out[ROUTE_EXPERTS].data.bytes);
        return out[ROUTE_WEIGHTS].present ? widen(ctx, &weights, &out[ROUTE_WEIGHTS].view)
                                          : NG_OK;
    }
    const ng_tensor narrow =
        matrix(b.moe.weights ? b.moe.weights : NG_F32, s->scores, s->tokens, s->k);
    if (!status)
        status = widen(ctx, &weights, &narrow);
    b.t[ROUTE_W].present = false;
    b.t[ROUTE_WEIGHTS] = (struct operand){ .present = true, .view = narrow };
    b.t[ROUTE_EXPERTS] = (struct operand){
        .present = true,
        .data = { .item_bits = 32, .rank = 2, .dim = { s->tokens, s->k }, .data = s->index }
    };
    return status ? status : b.kind->compute(ctx, &v, out);
}

/* The whole operation with ties to the higher index. */
static ng_status with_ties(ng_ctx *ctx, const struct one_case *c, struct operand *out)
{
    struct ties s;
    ng_status status = ties_open(&s, c) ? ties_route(ctx, c, &s) : NG_ERR_MEMORY;
    if (!status)
        status = ties_results(ctx, c, &s, out);
    ties_close(&s);
    return status;
}

static ng_status compute(ng_ctx *ctx, const struct one_case *c, struct operand *out)
{
    if (c->block->moe.ties_high)
        return with_ties(ctx, c, out);
    return c->op == OP_ROUTE ? route(ctx, c, out) : moe(ctx, c, out);
}

/* ---- Explaining. ---- */

enum edit_kind {
    EDIT_KEY,        /* keys[which] has its name number `value` */
    EDIT_NO_OPERAND, /* tensor `which` */
    EDIT_EXCHANGED,
    EDIT_NO_EPS,
    EDIT_NO_SCALE,
    EDIT_NO_FP4_MAP,
    EDIT_WEIGHTS_AS, /* format `value` */
    EDIT_PROFILE,    /* the built-in one of number `value` */
    EDIT_TIES
};

static void add_keys(const struct one_case *c, struct search *x)
{
    for (size_t i = 0; i < N_KEYS; i++) {
        const struct key *k = &keys[i];
        if (!is_key_of(c, k) || !has_names(k) || (c->op == OP_ROUTE && k->at == AT(weights)))
            continue;
        for (int n = 0; n < N_NAMES && word_at(k->values, n).text[0]; n++)
            if (n != enum_of(c->block, k))
                search_add(x, EDIT_KEY, (int)i, n, "%s.%s=%.40s", k->object, k->key,
                           word_at(k->values, n).text);
    }
}

/* Operands that may have been forgotten or taken for each other, and numbers of the model. */
static void add_operands(const struct one_case *c, struct search *x)
{
    const struct block *b = c->block;
    for (size_t i = 0; i < b->kind->n; i++)
        if (b->kind->tensor[i].role == BLOCK_OPTION && b->t[i].present && i != ROUTE_LOGITS &&
            i != ROUTE_X && i != ROUTE_W && i != ROUTE_EXPERTS &&
            !(c->op == OP_MOE && i == MOE_UP))
            search_add(x, EDIT_NO_OPERAND, (int)i, 0, "no %s", b->kind->tensor[i].name);
    if (c->op == OP_MOE && b->t[MOE_UP].present)
        search_add(x, EDIT_EXCHANGED, 0, 0, "gate and up exchanged");
    if (b->moe.route.eps)
        search_add(x, EDIT_NO_EPS, 0, 0, "no eps");
    if (b->moe.route.scale)
        search_add(x, EDIT_NO_SCALE, 0, 0, "no scale");
    if (b->moe.op.gemm.fp4_map)
        search_add(x, EDIT_NO_FP4_MAP, 0, 0, "fp4_map ignored");
    if (c->op == OP_MOE && !b->moe.op.weights_as)
        search_add(x, EDIT_WEIGHTS_AS, 0, NG_BF16, "mlp.weights_as=bf16");
}

static void edits(const struct one_case *c, struct search *x)
{
    add_keys(c, x);
    add_operands(c, x);
    for (size_t i = 0; c->profile && ng_profile_at(i); i++)
        if (ng_profile_at(i) != c->profile)
            search_add(x, EDIT_PROFILE, 0, (int64_t)i, "profile=%.60s", ng_profile_at(i)->name);
    if (is_key_of(c, &keys[0]) && c->block->moe.op.dispatch.mode != NG_DISPATCH_CAPACITY)
        search_add(x, EDIT_TIES, 0, 0, "ties=\"higher index first\"");
}

static void exchange(struct block *b)
{
    for (size_t i = 0; i < 3; i++) {
        const struct operand gate = b->t[MOE_GATE + i];
        b->t[MOE_GATE + i] = b->t[MOE_UP + i];
        b->t[MOE_UP + i] = gate;
    }
}

static bool apply(struct one_case *v, const struct edit *e)
{
    struct block *b = v->block;
    switch ((enum edit_kind)e->kind) {
    case EDIT_KEY: set_enum(b, &keys[e->which], (int)e->value); return true;
    case EDIT_NO_OPERAND: b->t[e->which].present = false; return true;
    case EDIT_EXCHANGED: exchange(b); return true;
    case EDIT_NO_EPS: b->moe.route.eps = 0; return true;
    case EDIT_NO_SCALE: b->moe.route.scale = 0; return true;
    case EDIT_NO_FP4_MAP: b->moe.op.gemm.fp4_map = NULL; return true;
    case EDIT_WEIGHTS_AS: b->moe.op.weights_as = (ng_format)e->value; return true;
    case EDIT_PROFILE: v->profile = ng_profile_at((size_t)e->value); return true;
    case EDIT_TIES: b->moe.ties_high = true; return true;
    }
    return false;
}

static bool hides_others(const struct edit *e)
{
    return e->kind != EDIT_KEY && e->kind != EDIT_NO_EPS && e->kind != EDIT_TIES;
}

/* ---- The kinds. ---- */

static const char *const route_keys[] = { "profile", "preset", "router", NULL };
static const char *const moe_keys[] = { "profile",    "preset",  "router", "dispatch",
                                        "mlp",        "x",       "inner",  "blocks",
                                        "activation", "combine", NULL };

const struct block_kind route_kind = { .tensor = route_tensors,
                                       .n = sizeof route_tensors / sizeof route_tensors[0],
                                       .keys = route_keys,
                                       .read = read_route,
                                       .shape = route_shape,
                                       .compute = compute,
                                       .title = title,
                                       .parameters = parameters,
                                       .rows = token_rows,
                                       .take = take_tokens,
                                       .room = room,
                                       .edits = edits,
                                       .apply = apply,
                                       .hides_others = hides_others };
const struct block_kind moe_kind = { .tensor = moe_tensors,
                                     .n = sizeof moe_tensors / sizeof moe_tensors[0],
                                     .keys = moe_keys,
                                     .read = read_moe,
                                     .shape = moe_shape,
                                     .compute = compute,
                                     .title = title,
                                     .parameters = parameters,
                                     .rows = token_rows,
                                     .take = take_tokens,
                                     .room = room,
                                     .edits = edits,
                                     .apply = apply,
                                     .hides_others = hides_others };
