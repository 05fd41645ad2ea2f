/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles as data: names of values, canonical text, parser, hash, checks. docs/profiles.md. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profile_internal.h"

/* ---- Parameters and the names of their values. ---- */

enum type {
    T_INT, /* decimal */
    T_HEX,
    T_FLOOR, /* decimal or "none" */
    T_NAMED
};

static const char *const family_names[] = { "array", "fused", NULL };
static const char *const round_names[] = { "rne", "rna", "rtz", "rdn", "rup", "rto", NULL };
static const char *const lane_sum_names[] = { "fused", "chain", "presum", "tree", NULL };
static const char *const chain_names[] = { "block", "parity", "interleave", NULL };
static const char *const combine_names[] = { "tree", "sequential", NULL };
static const char *const range_names[] = { "wide", "f32", "f32_ftz", NULL };
static const char *const k_map_names[] = { "interleave", "split", "layout", NULL };
static const char *const psum_names[] = { "f32", "bf16", "f32_or_bf16", NULL };
static const char *const psum_rnd_names[] = { "rne", "sr", "rne_or_sr", NULL };
static const char *const split_names[] = { "trunc", "rne", NULL };
static const char *const order_names[] = { "lo_first", "hi_first", NULL };
static const char *const operand_names[] = { "a", "b", NULL };
static const char *const sum_names[] = { "align", "exact", "pairwise", NULL };
static const char *const k_perm_names[] = { "linear", "mod4", NULL };
static const char *const norm_names[] = { "keep", "renorm", NULL };
static const char *const zero_names[] = { "skip", "emin", NULL };
static const char *const c_place_names[] = { "in", "late", "after", NULL };
static const char *const yesno_names[] = { "no", "yes", NULL };
static const char *const f16_acc_names[] = { "rne", "rtz", "none", NULL };
static const char *const flush_names[] = { "none", "zero", "signed", NULL };
static const char *const tf32_nan_names[] = { "keep", "cut", NULL };
static const char *const op_exp_names[] = { "own", "f16", NULL };
static const char *const sparse_k_names[] = { "compressed", "dense", NULL };
static const char *const out_zero_names[] = { "signed", "plus", NULL };

#define TYPE_INT      T_INT, NULL
#define TYPE_HEX      T_HEX, NULL
#define TYPE_FLOOR    T_FLOOR, NULL
#define TYPE_FAMILY   T_NAMED, family_names
#define TYPE_ROUND    T_NAMED, round_names
#define TYPE_LANE_SUM T_NAMED, lane_sum_names
#define TYPE_CHAIN    T_NAMED, chain_names
#define TYPE_COMBINE  T_NAMED, combine_names
#define TYPE_RANGE    T_NAMED, range_names
#define TYPE_K_MAP    T_NAMED, k_map_names
#define TYPE_PSUM     T_NAMED, psum_names
#define TYPE_PSUM_RND T_NAMED, psum_rnd_names
#define TYPE_SPLIT    T_NAMED, split_names
#define TYPE_ORDER    T_NAMED, order_names
#define TYPE_OPERAND  T_NAMED, operand_names
#define TYPE_SUM      T_NAMED, sum_names
#define TYPE_K_PERM   T_NAMED, k_perm_names
#define TYPE_NORM     T_NAMED, norm_names
#define TYPE_ZERO     T_NAMED, zero_names
#define TYPE_C_PLACE  T_NAMED, c_place_names
#define TYPE_YESNO    T_NAMED, yesno_names
#define TYPE_F16_ACC  T_NAMED, f16_acc_names
#define TYPE_FLUSH    T_NAMED, flush_names
#define TYPE_TF32_NAN T_NAMED, tf32_nan_names
#define TYPE_OP_EXP   T_NAMED, op_exp_names
#define TYPE_SPARSE_K T_NAMED, sparse_k_names
#define TYPE_OUT_ZERO T_NAMED, out_zero_names

enum {
    IN_ARRAY = 1,
    IN_FUSED = 2,
    IN_BOTH = 3
};

struct param {
    const char *key;
    enum type type;
    const char *const *names;
    int family;
    int64_t neutral;
    const char *meaning;
};

static const struct param params[NG_PARAM_COUNT] = {
#define NG_PARAM(name, key, type, family, neutral, meaning)                                    \
    { key, TYPE_##type, IN_##family, neutral, meaning },
#include "ng/params.def"
#undef NG_PARAM
};

static const char *const evidence_names[] = { "documented", "backed",  "measured",
                                              "inferred",   "assumed", NULL };
static const char *const mode_names[] = { "plain", "double_row", "mx", "nv", NULL };

const char *ng_param_key(ng_param param)
{
    return (unsigned)param < NG_PARAM_COUNT ? params[param].key : NULL;
}

const char *ng_param_meaning(ng_param param)
{
    return (unsigned)param < NG_PARAM_COUNT ? params[param].meaning : NULL;
}

bool ng_param_in_family(ng_param param, ng_family family)
{
    return (unsigned)param < NG_PARAM_COUNT &&
           (params[param].family & (family == NG_FAMILY_ARRAY ? IN_ARRAY : IN_FUSED)) != 0;
}

const char *ng_evidence_name(ng_evidence evidence)
{
    return (unsigned)evidence <= NG_EVIDENCE_ASSUMED ? evidence_names[evidence] : NULL;
}

static int find_name(const char *const *names, const char *text)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], text) == 0)
            return i;
    return -1;
}

static int count_names(const char *const *names)
{
    int n = 0;
    while (names[n])
        n++;
    return n;
}

size_t ng_param_print(ng_param param, int32_t value, char *buffer, size_t bytes)
{
    int n = 0;
    if ((unsigned)param >= NG_PARAM_COUNT)
        return 0;
    const struct param *p = &params[param];
    switch (p->type) {
    case T_INT: n = snprintf(buffer, bytes, "%d", (int)value); break;
    case T_HEX: n = snprintf(buffer, bytes, "0x%X", (unsigned)value); break;
    case T_FLOOR:
        n = value == NG_FLOOR_NONE ? snprintf(buffer, bytes, "none")
                                   : snprintf(buffer, bytes, "%d", (int)value);
        break;
    case T_NAMED:
        n = value >= 0 && value < count_names(p->names)
                ? snprintf(buffer, bytes, "%s", p->names[value])
                : snprintf(buffer, bytes, "?%d", (int)value);
        break;
    }
    return n < 0 ? 0 : (size_t)n;
}

size_t ng_names_print(const char *const *names, char *buffer, size_t bytes)
{
    size_t n = 0;
    for (int i = 0; names[i]; i++)
        n += (size_t)snprintf(n < bytes ? buffer + n : NULL, n < bytes ? bytes - n : 0, "%s%s",
                              i ? " " : "", names[i]);
    return n;
}

size_t ng_param_values(ng_param param, char *buffer, size_t bytes)
{
    if ((unsigned)param >= NG_PARAM_COUNT)
        return 0;
    const struct param *p = &params[param];
    const char *const number = p->type == T_INT     ? "an integer"
                               : p->type == T_HEX   ? "a pattern, as 0x7FC00000"
                               : p->type == T_FLOOR ? "none, or an integer"
                                                    : NULL;
    if (number)
        return (size_t)snprintf(buffer, bytes, "%s", number);
    return ng_names_print(p->names, buffer, bytes);
}

static bool parse_value(const struct param *p, const char *text, int32_t *value)
{
    char *end;
    if (p->type == T_NAMED) {
        const int i = find_name(p->names, text);
        *value = i;
        return i >= 0;
    }
    if (p->type == T_FLOOR && strcmp(text, "none") == 0) {
        *value = NG_FLOOR_NONE;
        return true;
    }
    if (!isdigit((unsigned char)text[0]) && text[0] != '-')
        return false;
    const long long v = strtoll(text, &end, p->type == T_HEX ? 16 : 10);
    if (*end || v < INT32_MIN || v > (p->type == T_HEX ? (long long)UINT32_MAX : INT32_MAX))
        return false;
    *value = (int32_t)(uint32_t)(uint64_t)v;
    return true;
}

/* ---- Printing. ---- */

/* snprintf into what is left of a buffer, counting all of it. */
struct out {
    char *buffer;
    size_t bytes, used;
};

__attribute__((format(printf, 2, 3))) static void put(struct out *o, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const size_t left = o->used < o->bytes ? o->bytes - o->used : 0;
    const int n = vsnprintf(left ? o->buffer + o->used : NULL, left, format, args);
    va_end(args);
    o->used += n < 0 ? 0 : (size_t)n;
}

static void put_formats(struct out *o, const char *key, ng_format_set set)
{
    const char *comma = "";
    put(o, " %s=", key);
    for (size_t i = 0; ng_format_at(i); i++)
        if (set >> i & 1) {
            put(o, "%s%s", comma, ng_format_at(i)->text);
            comma = ",";
        }
}

static bool is_read(const ng_rule *rule, int param)
{
    return ng_param_in_family((ng_param)param, (ng_family)rule->set[NG_PARAM_FAMILY].value);
}

static void put_rule(struct out *o, const ng_rule *r, bool evidence)
{
    put(o, "rule %s mode=%s", r->name,
        (unsigned)r->mode <= NG_MODE_NV ? mode_names[r->mode] : "?");
    if (r->block)
        put(o, " block=%u", r->block);
    put_formats(o, "a", r->a);
    put_formats(o, "b", r->b);
    if (r->apart)
        put_formats(o, "apart", r->apart);
    if (r->same)
        put(o, " same=yes");
    put(o, "\n");
    for (int i = 0; i < NG_PARAM_COUNT; i++) {
        char value[32];
        if (!is_read(r, i))
            continue;
        ng_param_print((ng_param)i, r->set[i].value, value, sizeof value);
        if (evidence)
            put(o, "  %-13s = %-11s # %s: %s\n", params[i].key, value,
                evidence_names[r->set[i].evidence], r->set[i].source ? r->set[i].source : "");
        else
            put(o, "%s=%s\n", params[i].key, value);
    }
}

static size_t print_profile(const ng_profile *p, char *buffer, size_t bytes, bool evidence)
{
    struct out o = { buffer, bytes, 0 };
    if (bytes)
        buffer[0] = '\0';
    put(&o, "profile %s\nrevision %u\n", p->name, p->revision);
    if (evidence)
        put(&o, "about %s\n", p->about);
    for (uint32_t i = 0; i < p->n_rules; i++) {
        if (evidence)
            put(&o, "\n");
        put_rule(&o, &p->rules[i], evidence);
    }
    return o.used;
}

size_t ng_profile_print(const ng_profile *profile, char *buffer, size_t bytes)
{
    return profile ? print_profile(profile, buffer, bytes, true) : 0;
}

/* FNV-1a, 64 bits folded to 32: an identity, not a defence. Fowler, Noll, Vo; RFC 9923. */
static uint32_t hash_text(const char *text, size_t n)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * UINT64_C(0x100000001B3);
    return (uint32_t)(h ^ h >> 32);
}

uint32_t ng_profile_hash(const ng_profile *profile)
{
    if (!profile)
        return 0;
    const size_t n = print_profile(profile, NULL, 0, false);
    char *text = malloc(n + 1);
    if (!text)
        return 0;
    print_profile(profile, text, n + 1, false);
    const uint32_t h = hash_text(text, n);
    free(text);
    return h;
}

size_t ng_rule_print(const ng_profile *profile, const ng_rule *rule, char *buffer, size_t bytes)
{
    struct out o = { buffer, bytes, 0 };
    if (!profile || !rule)
        return 0;
    put(&o, "%s/%s:", profile->name, rule->name);
    for (int i = 0; i < NG_PARAM_COUNT; i++) {
        char value[32];
        if (!is_read(rule, i))
            continue;
        ng_param_print((ng_param)i, rule->set[i].value, value, sizeof value);
        if (i == NG_PARAM_FAMILY)
            put(&o, " %s", value);
        else
            put(&o, " %s=%s", params[i].key, value);
    }
    put(&o, " #%08x", ng_profile_hash(profile));
    return o.used;
}

/* ---- Consistency. ---- */

__attribute__((format(printf, 3, 4))) static ng_status refuse(char *message, size_t bytes,
                                                              const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (message && bytes)
        (void)vsnprintf(message, bytes, format, args);
    va_end(args);
    return NG_ERR_PROFILE;
}

/* One row a rule of consistency: `ok` or a message that says what is wanted. */
struct demand {
    bool ok;
    ng_param param;
    const char *wanted;
};

/* The first demand that is not met; *at is its parameter. */
static ng_status first_unmet(const ng_rule *r, const struct demand *d, size_t n, int *at,
                             char *message, size_t bytes)
{
    for (size_t i = 0; i < n; i++) {
        char value[32];
        if (d[i].ok)
            continue;
        *at = (int)d[i].param;
        ng_param_print(d[i].param, r->set[d[i].param].value, value, sizeof value);
        return refuse(message, bytes, "rule %s: %s is %s; wanted: %s", r->name,
                      params[d[i].param].key, value, d[i].wanted);
    }
    return NG_OK;
}

static bool between(int32_t v, int32_t low, int32_t high)
{
    return v >= low && v <= high;
}

static ng_status check_array(const ng_rule *r, int *at, char *message, size_t bytes)
{
#define V(p) r->set[NG_PARAM_##p].value
    const int32_t rows = V(ROWS), chain = V(CHAIN_ROWS);
    const int32_t chains = rows && chain > 0 ? rows / chain : 1;
    const bool divides = between(chain, 1, rows) && rows % chain == 0;
    const struct demand d[] = {
        { between(rows, 0, 4096), NG_PARAM_ROWS, "0 to 4096" },
        { between(V(LANES), 1, 64), NG_PARAM_LANES, "1 to 64" },
        { chain == 0 || (rows && divides), NG_PARAM_CHAIN_ROWS,
          "a divisor of rows, or 0 for all of them; 0 if rows is 0" },
        { chains <= 64, NG_PARAM_CHAIN_ROWS, "at most 64 chains" },
        { V(CHAIN_MAP) != NG_CHAIN_PARITY || chains == 1 || chains % 2 == 0, NG_PARAM_CHAIN_MAP,
          "an even number of chains, for parity" },
        { between(V(ACC_BITS), 2, 53), NG_PARAM_ACC_BITS, "2 to 53" },
        { between(V(PIECES), 1, 2), NG_PARAM_PIECES, "1 or 2" },
        { V(PIECE_ADDS) == 2 || V(PIECE_ADDS) == 4, NG_PARAM_PIECE_ADDS, "2 or 4" },
    };
    return first_unmet(r, d, sizeof d / sizeof d[0], at, message, bytes);
}

static unsigned format_bit(ng_format f)
{
    for (unsigned i = 0; ng_format_at(i); i++)
        if (ng_format_at(i)->format == f)
            return 1u << i;
    return 0;
}

static ng_status check_fused(const ng_rule *r, int *at, char *message, size_t bytes)
{
    const int32_t run = V(EXACT_GROUP);
    const bool mod4 = V(K_PERM) == NG_PERM_MOD4;
    const struct demand d[] = {
        { between(V(GROUP), 1, 63), NG_PARAM_GROUP, "1 to 63" },
        { between(run, 1, 64), NG_PARAM_EXACT_GROUP, "1 to 64" },
        /* sums of FP4 products under two scales: at most 18 bits, which one term must hold */
        { run == 1 || ((r->a | r->b) & ~format_bit(NG_E2M1)) == 0, NG_PARAM_EXACT_GROUP,
          "1, unless both operands are e2m1" },
        { run == 1 || V(SUM) == NG_SUM_ALIGN, NG_PARAM_SUM, "align, with exact groups" },
        { run == 1 || V(C_PLACE) != NG_C_LATE, NG_PARAM_C_PLACE,
          "in or after, with exact groups" },
        /* 64 terms below 2^(F + 2), or 2^(F + 11) of exact FP4 groups, in 63 bits */
        { between(V(FRAC), 1, run > 1 ? 44 : 54), NG_PARAM_FRAC,
          "1 to 54; 44 with exact groups" },
        { !mod4 || ((int64_t)V(K_INSTR) == 2 * (int64_t)V(GROUP) && V(K_INSTR) % 4 == 0),
          NG_PARAM_K_INSTR, "twice the group and a multiple of 4, for mod4" },
        { !mod4 || (V(SUM) == NG_SUM_ALIGN && run == 1 && V(C_PLACE) != NG_C_LATE),
          NG_PARAM_K_PERM, "linear, unless sum = align without exact groups and late C" },
        { between(V(K_INSTR), 0, 4096), NG_PARAM_K_INSTR, "0 to 4096" },
        { V(C_PLACE) != NG_C_AFTER || mod4 ||
              (V(K_INSTR) && V(GROUP) > 0 && run > 0 &&
               V(K_INSTR) % ((int64_t)V(GROUP) * run) == 0),
          NG_PARAM_K_INSTR, "a whole number of steps, for c_place = after" },
        { between(V(SUBGROUPS), 1, 2), NG_PARAM_SUBGROUPS, "1 or 2" },
        { between(V(SUM_FRAC), 1, 48), NG_PARAM_SUM_FRAC, "1 to 48" },
        { between(V(C_FRAC), 1, 48), NG_PARAM_C_FRAC, "1 to 48" },
        { V(C_DROP) >= 0, NG_PARAM_C_DROP, "at least 0" },
        { between(V(OUT_BITS), 1, 23), NG_PARAM_OUT_BITS, "1 to 23" },
        { V(PROMOTE) >= 0, NG_PARAM_PROMOTE, "at least 0" },
    };
    return first_unmet(r, d, sizeof d / sizeof d[0], at, message, bytes);
}

static ng_status check_nans(const ng_rule *r, int *at, char *message, size_t bytes)
{
    const uint32_t f32 = (uint32_t)V(NAN_F32), f16 = (uint32_t)V(NAN_F16);
    const struct demand d[] = {
        { (f32 & 0x7FFFFFFF) > 0x7F800000, NG_PARAM_NAN_F32, "a NaN of FP32" },
        { V(FAMILY) == NG_FAMILY_ARRAY || (f16 <= 0xFFFF && (f16 & 0x7FFF) > 0x7C00),
          NG_PARAM_NAN_F16, "a NaN of f16" },
    };
    return first_unmet(r, d, sizeof d / sizeof d[0], at, message, bytes);
}
#undef V

static ng_status check_values(const ng_rule *r, int *at, char *message, size_t bytes)
{
    for (int i = 0; i < NG_PARAM_COUNT; i++) {
        const struct param *p = &params[i];
        if (!is_read(r, i))
            continue;
        *at = i;
        if ((unsigned)r->set[i].evidence > NG_EVIDENCE_ASSUMED)
            return refuse(message, bytes, "rule %s: the evidence of %s is %d, which is none",
                          r->name, p->key, (int)r->set[i].evidence);
        if (p->type == T_NAMED && !between(r->set[i].value, 0, count_names(p->names) - 1))
            return refuse(message, bytes, "rule %s: %s is %d, which names no value", r->name,
                          p->key, (int)r->set[i].value);
    }
    return NG_OK;
}

/* *at: the parameter that is wrong, or -1: the rule itself. */
static ng_status check_rule(const ng_rule *r, int *at, char *message, size_t bytes)
{
    const int32_t family = r->set[NG_PARAM_FAMILY].value;
    *at = -1;
    if (!r->name || !r->name[0])
        return refuse(message, bytes, "a rule has no name");
    if ((unsigned)r->mode > NG_MODE_NV)
        return refuse(message, bytes, "rule %s: mode %d is none", r->name, (int)r->mode);
    if (!r->a || !r->b)
        return refuse(message, bytes, "rule %s: takes no formats for %s", r->name,
                      r->a ? "b" : "a");
    if (!between(family, NG_FAMILY_ARRAY, NG_FAMILY_FUSED))
        return refuse(message, bytes, "rule %s: family is %d; wanted: array or fused", r->name,
                      (int)family);
    ng_status s = check_values(r, at, message, bytes);
    if (!s)
        s = check_nans(r, at, message, bytes);
    if (!s)
        s = family == NG_FAMILY_ARRAY ? check_array(r, at, message, bytes)
                                      : check_fused(r, at, message, bytes);
    return s;
}

ng_status ng_rule_check(const ng_rule *r, char *message, size_t bytes)
{
    int at;
    return check_rule(r, &at, message, bytes);
}

ng_status ng_profile_check(const ng_profile *p, char *message, size_t bytes)
{
    if (!p || !p->name || !p->name[0] || !p->about)
        return refuse(message, bytes, "the profile is NULL or has no name or about line");
    if (!p->n_rules || !p->rules)
        return refuse(message, bytes, "profile %s has no rules", p->name);
    for (uint32_t i = 0; i < p->n_rules; i++) {
        const ng_status s = ng_rule_check(&p->rules[i], message, bytes);
        if (s)
            return s;
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(p->rules[k].name, p->rules[i].name) == 0)
                return refuse(message, bytes, "two rules are named %s", p->rules[i].name);
    }
    return NG_OK;
}

/* ---- Which rule. ---- */

/* Formats meet in a rule that takes both, unless it keeps them apart. */
static bool takes(const ng_rule *r, ng_format a, ng_format b)
{
    const unsigned ba = format_bit(a), bb = format_bit(b);
    return (r->a & ba) && (r->b & bb) &&
           (a == b || !((r->apart & ba && r->apart & bb) || r->same));
}

static void put_why_not(struct out *o, const ng_rule *r, ng_format a, ng_format b)
{
    const unsigned ba = format_bit(a), bb = format_bit(b);
    if (!(r->a & ba) || !(r->b & bb))
        put(o, " rule %s does not take %s as %s;", r->name,
            ng_format_info(r->a & ba ? b : a)->text, r->a & ba ? "b" : "a");
    else if (r->apart & ba && r->apart & bb)
        put(o, " rule %s never lets %s meet %s;", r->name, ng_format_info(a)->text,
            ng_format_info(b)->text);
    else
        put(o, " rule %s wants both operands in one format;", r->name);
}

const ng_rule *ng_profile_rule(const ng_profile *p, ng_format a, ng_format b, ng_mode mode,
                               char *message, size_t bytes)
{
    struct out o = { message, bytes, 0 };
    if (!p || !format_bit(a) || !format_bit(b) || (unsigned)mode > NG_MODE_NV) {
        put(&o, "no profile, no such format or no such mode");
        return NULL;
    }
    for (uint32_t i = 0; i < p->n_rules; i++)
        if (p->rules[i].mode == mode && takes(&p->rules[i], a, b))
            return &p->rules[i];
    put(&o, "profile %s has no rule for a %s, b %s, mode %s:", p->name, ng_format_info(a)->text,
        ng_format_info(b)->text, mode_names[mode]);
    for (uint32_t i = 0; i < p->n_rules; i++)
        if (p->rules[i].mode == mode)
            put_why_not(&o, &p->rules[i], a, b);
    put(&o, " modes it has:");
    for (int m = 0; mode_names[m]; m++)
        for (uint32_t i = 0; i < p->n_rules; i++)
            if (p->rules[i].mode == (ng_mode)m) {
                put(&o, " %s", mode_names[m]);
                break;
            }
    return NULL;
}

/* ---- Parsing. A parsed profile is one block: the struct, its rules, then its strings. ---- */

enum {
    MAX_RULES = 32,
    MAX_VALUES = 200 /* a parameter's, as text */
};

struct parser {
    const char *at, *end;
    int line;
    char *message;
    size_t bytes;
    struct owned *p;
    char *strings, *strings_end;
    ng_rule *rule;
    int rule_line;
    int set_line[NG_PARAM_COUNT]; /* by this rule; 0: it leaves the parameter alone */
    bool has_name, has_revision, has_about;
};

struct owned {
    ng_profile profile;
    ng_rule rules[MAX_RULES];
    char strings[];
};

__attribute__((format(printf, 2, 3))) static bool bad(struct parser *q, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)refuse(q->message, q->bytes, "line %d: %s", q->line, text);
    return false;
}

/* A copy inside the profile's block, trimmed; the block is as long as the text, so it fits. */
static const char *keep(struct parser *q, const char *from, const char *to)
{
    while (from < to && isspace((unsigned char)*from))
        from++;
    while (to > from && isspace((unsigned char)to[-1]))
        to--;
    char *s = q->strings;
    const size_t n = (size_t)(to - from);
    if ((size_t)(q->strings_end - s) < n + 1)
        return "";
    memcpy(s, from, n);
    s[n] = '\0';
    q->strings += n + 1;
    return s;
}

static bool parse_formats(struct parser *q, char *list, ng_format_set *set)
{
    char *save = NULL;
    for (char *f = strtok_r(list, ",", &save); f; f = strtok_r(NULL, ",", &save)) {
        const ng_format format = ng_format_find(f);
        if (!format)
            return bad(q, "'%s' is no format", f);
        *set |= format_bit(format);
    }
    return true;
}

/* `given`: the keys of this rule so far, a bit each. */
static bool parse_rule_word(struct parser *q, char *word, unsigned *given)
{
    static const char *const keys[] = { "mode", "block", "a", "b", "apart", "same", NULL };
    char *eq = strchr(word, '=');
    ng_rule *r = q->rule;
    if (!eq)
        return bad(q, "'%s' is not KEY=VALUE", word);
    *eq = '\0';
    char *value = eq + 1, *end;
    const int key = find_name(keys, word);
    if (key >= 0 && *given >> key & 1)
        return bad(q, "%s is there twice in rule %s", word, r->name);
    *given |= key < 0 ? 0 : 1u << key;
    if (strcmp(word, "mode") == 0) {
        const int m = find_name(mode_names, value);
        r->mode = (ng_mode)(m < 0 ? 0 : m);
        return m >= 0 || bad(q, "mode is '%s'; wanted: plain, double_row, mx or nv", value);
    }
    if (strcmp(word, "block") == 0) {
        const unsigned long n = strtoul(value, &end, 10);
        r->block = (uint32_t)n;
        return (isdigit((unsigned char)value[0]) && !*end && n <= 4096) ||
               bad(q, "block is '%s'; wanted: 0 to 4096", value);
    }
    if (strcmp(word, "same") == 0) {
        r->same = strcmp(value, "yes") == 0;
        return r->same || strcmp(value, "no") == 0 ||
               bad(q, "same is '%s'; wanted: yes or no", value);
    }
    if (strcmp(word, "a") == 0)
        return parse_formats(q, value, &r->a);
    if (strcmp(word, "b") == 0)
        return parse_formats(q, value, &r->b);
    if (strcmp(word, "apart") == 0)
        return parse_formats(q, value, &r->apart);
    return bad(q, "'%s' is no key of a rule; wanted: mode, block, a, b, apart, same", word);
}

/* A rule is checked where it ends; what is wrong is on the line that says it. */
static bool close_rule(struct parser *q)
{
    char text[200];
    int at;
    if (!q->rule || check_rule(q->rule, &at, text, sizeof text) == NG_OK)
        return true;
    q->line = at >= 0 && q->set_line[at] ? q->set_line[at] : q->rule_line;
    return bad(q, "%s", text);
}

static bool parse_rule(struct parser *q, char *words)
{
    char *save = NULL;
    char *name = strtok_r(words, " \t", &save);
    unsigned given = 0;
    if (!close_rule(q))
        return false;
    if (!name || strchr(name, '='))
        return bad(q, "a rule needs a name%s%s", name ? " before " : "", name ? name : "");
    for (uint32_t i = 0; i < q->p->profile.n_rules; i++)
        if (strcmp(q->p->rules[i].name, name) == 0)
            return bad(q, "two rules are named %s", name);
    if (q->p->profile.n_rules == MAX_RULES)
        return bad(q, "more than %d rules", MAX_RULES);
    q->rule = &q->p->rules[q->p->profile.n_rules++];
    q->rule_line = q->line;
    memset(q->set_line, 0, sizeof q->set_line);
    for (int i = 0; i < NG_PARAM_COUNT; i++)
        q->rule->set[i] = (ng_setting){ (int32_t)(uint32_t)(uint64_t)params[i].neutral,
                                        NG_EVIDENCE_ASSUMED, "" };
    q->rule->name = keep(q, name, name + strlen(name));
    for (char *w = strtok_r(NULL, " \t", &save); w; w = strtok_r(NULL, " \t", &save))
        if (!parse_rule_word(q, w, &given))
            return false;
    return true;
}

static int find_param(const char *key)
{
    for (int i = 0; i < NG_PARAM_COUNT; i++)
        if (strcmp(params[i].key, key) == 0)
            return i;
    return -1;
}

/* "tag: source" behind a value. */
static bool parse_evidence(struct parser *q, ng_setting *s, char *comment)
{
    char *colon = strchr(comment, ':');
    if (colon)
        *colon = '\0';
    while (isspace((unsigned char)*comment))
        comment++;
    const int e = find_name(evidence_names, comment);
    if (e < 0)
        return bad(q,
                   "'%s' is no evidence; wanted: documented, backed, measured, inferred or "
                   "assumed, then ': source'",
                   comment);
    s->evidence = (ng_evidence)e;
    s->source = colon ? keep(q, colon + 1, colon + 1 + strlen(colon + 1)) : "";
    return true;
}

static bool parse_setting(struct parser *q, char *text)
{
    char key[32], value[32];
    char *comment = strchr(text, '#');
    if (comment)
        *comment++ = '\0';
    int used = 0;
    if (sscanf(text, " %31[a-z0-9_] = %31s %n", key, value, &used) != 2 || text[used])
        return bad(q, "'%s' is not KEY = VALUE", text);
    const int i = find_param(key);
    if (i < 0)
        return bad(q, "'%s' is no parameter", key);
    if (!q->rule)
        return bad(q, "%s stands before any rule", key);
    if (q->set_line[i])
        return bad(q, "%s is set twice in rule %s", key, q->rule->name);
    q->set_line[i] = q->line;
    if (!parse_value(&params[i], value, &q->rule->set[i].value)) {
        char wanted[MAX_VALUES];
        ng_param_values((ng_param)i, wanted, sizeof wanted);
        return bad(q, "%s is '%s', which is no value of it; wanted: %s", key, value, wanted);
    }
    return !comment || parse_evidence(q, &q->rule->set[i], comment);
}

static const char *after_word(const char *line, const char *word)
{
    const size_t n = strlen(word);
    return strncmp(line, word, n) == 0 && isspace((unsigned char)line[n]) ? line + n + 1 : NULL;
}

static bool parse_line(struct parser *q, char *line)
{
    const char *rest;
    char *end;
    ng_profile *p = &q->p->profile;
    while (isspace((unsigned char)*line))
        line++;
    if (!*line || *line == '#')
        return true;
    if ((rest = after_word(line, "profile"))) {
        if (q->has_name)
            return bad(q, "a second 'profile' line");
        q->has_name = true;
        p->name = keep(q, rest, rest + strlen(rest));
        return (p->name[0] && !strpbrk(p->name, " \t/")) || bad(q, "'%s' is no name", p->name);
    }
    if ((rest = after_word(line, "revision"))) {
        const unsigned long n = strtoul(rest, &end, 10);
        if (q->has_revision)
            return bad(q, "a second 'revision' line");
        p->revision = (uint32_t)n;
        q->has_revision = true;
        while (isspace((unsigned char)*end))
            end++;
        return (isdigit((unsigned char)rest[0]) && !*end && n <= UINT32_MAX) ||
               bad(q, "revision is '%s'; wanted: a number", rest);
    }
    if ((rest = after_word(line, "about"))) {
        if (q->has_about)
            return bad(q, "a second 'about' line");
        q->has_about = true;
        p->about = keep(q, rest, rest + strlen(rest));
        return true;
    }
    if ((rest = after_word(line, "rule")))
        return parse_rule(q, line + (rest - line));
    return parse_setting(q, line);
}

/* Bytes of the UTF-8 character that begins here; 0: there is none, in the n bytes left. */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const size_t length = s[0] < 0x80         ? 1
                          : s[0] >> 5 == 0x06 ? 2
                          : s[0] >> 4 == 0x0E ? 3
                          : s[0] >> 3 == 0x1E ? 4
                                              : 0;
    uint32_t c = length > 1 ? s[0] & 0x7Fu >> length : s[0];
    if (!length || length > n)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if (s[i] >> 6 != 2)
            return 0;
        c = c << 6 | (s[i] & 0x3Fu);
    }
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    return c >= least[length] && c <= 0x10FFFF && !surrogate ? length : 0;
}

static bool check_utf8(struct parser *q, const char *line, size_t n)
{
    for (size_t i = 0, step; i < n; i += step) {
        step = utf8_length((const unsigned char *)line + i, n - i);
        if (!step)
            return bad(q, "byte %zu is 0x%02X, which is not UTF-8", i + 1,
                       (unsigned)(unsigned char)line[i]);
    }
    return true;
}

static bool parse_lines(struct parser *q)
{
    while (q->at < q->end) {
        char line[1024];
        const char *nl = memchr(q->at, '\n', (size_t)(q->end - q->at));
        const char *stop = nl ? nl : q->end;
        const size_t n = (size_t)(stop - q->at);
        q->line++;
        if (n >= sizeof line || memchr(q->at, '\0', n))
            return bad(q, "longer than %zu bytes, or a NUL in it", sizeof line - 1);
        memcpy(line, q->at, n);
        line[n] = '\0';
        q->at = nl ? nl + 1 : q->end;
        if (!check_utf8(q, line, n) || !parse_line(q, line))
            return false;
    }
    if (!q->has_name || !q->has_revision)
        return bad(q, "the profile has no '%s' line", q->has_name ? "revision" : "profile");
    return q->rule ? close_rule(q) : bad(q, "the profile has no rules");
}

ng_status ng_profile_parse(const char *text, size_t length, ng_profile **profile, char *message,
                           size_t message_bytes)
{
    if (!text || !profile || length > 1u << 20) {
        (void)refuse(message, message_bytes, "text or profile is NULL, or longer than 1 MiB");
        return NG_ERR_ARGUMENT;
    }
    /* Every string is part of a line and takes one byte more: the NUL. */
    const size_t room = 2 * length + 64;
    struct owned *p = calloc(1, sizeof *p + room);
    if (!p)
        return NG_ERR_MEMORY;
    p->profile = (ng_profile){ .name = "", .about = "", .rules = p->rules };
    struct parser q = { .at = text,
                        .end = text + length,
                        .message = message,
                        .bytes = message_bytes,
                        .p = p,
                        .strings = p->strings,
                        .strings_end = p->strings + room };
    if (!parse_lines(&q) || ng_profile_check(&p->profile, message, message_bytes)) {
        free(p);
        return NG_ERR_PROFILE;
    }
    *profile = &p->profile;
    return NG_OK;
}

void ng_profile_free(ng_profile *profile)
{
    free(profile); /* the first member of its block */
}

ng_profile *ng_profile_copy(const ng_profile *profile)
{
    if (!profile)
        return NULL;
    const size_t n = ng_profile_print(profile, NULL, 0);
    char *text = malloc(n + 1);
    ng_profile *copy = NULL;
    if (!text)
        return NULL;
    ng_profile_print(profile, text, n + 1);
    if (ng_profile_parse(text, n, &copy, NULL, 0))
        copy = NULL;
    free(text);
    return copy;
}

ng_status ng_profile_set(ng_profile *profile, const char *rule, const char *key,
                         const char *value)
{
    if (!profile || !rule || !key || !value)
        return NG_ERR_ARGUMENT;
    struct owned *p = (struct owned *)(void *)profile;
    const int param = find_param(key);
    int32_t v;
    if (param < 0 || !parse_value(&params[param], value, &v))
        return NG_ERR_PROFILE;
    for (uint32_t i = 0; i < profile->n_rules; i++)
        if (strcmp(p->rules[i].name, rule) == 0) {
            p->rules[i].set[param] =
                (ng_setting){ v, NG_EVIDENCE_ASSUMED, "set by the caller" };
            return NG_OK;
        }
    return NG_ERR_PROFILE;
}

/* ---- The built-in ones. ---- */

const ng_profile *ng_profile_at(size_t i)
{
    return i < ng_n_builtin_profiles ? ng_builtin_profiles[i] : NULL;
}

const ng_profile *ng_profile_find(const char *name)
{
    for (size_t i = 0; name && i < ng_n_builtin_profiles; i++)
        if (strcmp(ng_builtin_profiles[i]->name, name) == 0)
            return ng_builtin_profiles[i];
    return NULL;
}
