/* SPDX-License-Identifier: Apache-2.0 */
#include "neighbours.h"

struct walk {
    const ng_rule *rule;
    const struct one_case *c;
    enum reach reach;
    neighbour_fn *each;
    void *of;
};

static void add(const struct walk *w, ng_param p, int64_t value)
{
    char text[32];
    if (w->rule->set[p].value == (int32_t)value)
        return;
    ng_param_print(p, (int32_t)value, text, sizeof text);
    if (text[0] != '?')
        w->each(w->of, p, value, "");
}

static void add_all(const struct walk *w, ng_param p, const int64_t *value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        add(w, p, value[i]);
}

static void add_from_to(const struct walk *w, ng_param p, int64_t from, int64_t to)
{
    for (int64_t v = from; v <= to; v++)
        add(w, p, v);
}

/* from, 2 from, 4 from, .. */
static void add_doubled(const struct walk *w, ng_param p, int64_t from, int64_t to)
{
    for (int64_t v = from; v <= to; v *= 2)
        add(w, p, v);
}

/* K in 2 to 16 parts, each its own chain, the sums added one after another: what libraries do
 * where there are few tiles. Parts are whole K tiles, 128 bytes of an operand's row
 * (cuBLAS 13.0 on H100, docs/profiles.md). */
static void add_split_k(const struct walk *w)
{
    enum {
        TILE_BYTES = 128,
        MOST_PARTS = 16
    };
    const ng_setting *set = w->rule->set;
    const ng_tensor *a = &w->c->a.view;
    const bool whole =
        set[NG_PARAM_K_PERM].value == NG_PERM_MOD4 || set[NG_PARAM_C_PLACE].value == NG_C_AFTER;
    const int64_t step =
        whole ? set[NG_PARAM_K_INSTR].value
              : (int64_t)set[NG_PARAM_GROUP].value * set[NG_PARAM_EXACT_GROUP].value;
    const int64_t tile = TILE_BYTES * 8 / ng_format_info(a->format)->store_bits;
    const int64_t tiles = (a->dim[a->rank - 1] + tile - 1) / tile;
    int64_t last = 0;
    for (int64_t parts = 2; parts <= MOST_PARTS && parts <= tiles; parts++) {
        const int64_t steps = (tiles + parts - 1) / parts * tile / step;
        char note[32];
        snprintf(note, sizeof note, "K in %lld parts", (long long)parts);
        if (steps != last && steps > 8) /* up to 8: among the promotions */
            w->each(w->of, NG_PARAM_PROMOTE, steps, note);
        last = steps;
    }
}

static void add_near(const struct walk *w, ng_param p)
{
    const int64_t v = w->rule->set[p].value;
    switch (p) {
    case NG_PARAM_CHAIN_ROWS: add_doubled(w, p, 8, 128); break;
    case NG_PARAM_ROWS: add_doubled(w, p, 32, 128); break;
    case NG_PARAM_ACC_BITS:
    case NG_PARAM_FRAC:
    case NG_PARAM_OUT_BITS:
        add_from_to(w, p, v - 2, v + 2);
        add_from_to(w, p, 10, 14);
        if (p == NG_PARAM_FRAC)
            add_from_to(w, p, 22, 27);
        break;
    case NG_PARAM_GROUP: add_doubled(w, p, 1, 32); break;
    case NG_PARAM_PIECE_ADDS: add(w, p, v == 2 ? 4 : 2); break;
    case NG_PARAM_PIECES: add(w, p, v == 2 ? 1 : 2); break;
    case NG_PARAM_SUBGROUPS: add(w, p, v == 2 ? 1 : 2); break;
    case NG_PARAM_SUM_FRAC:
    case NG_PARAM_C_FRAC:
        add(w, p, v - 1);
        add(w, p, v + 1);
        break;
    case NG_PARAM_FLOOR_F32:
        add(w, p, v == NG_FLOOR_NONE ? -133 : NG_FLOOR_NONE);
        add(w, p, -132);
        break;
    case NG_PARAM_FLOOR_F16:
        add(w, p, v == NG_FLOOR_NONE ? -21 : NG_FLOOR_NONE);
        add(w, p, -20);
        break;
    case NG_PARAM_C_DROP: add(w, p, v ? 0 : 25); break;
    case NG_PARAM_PROMOTE:
        add_all(w, p, (const int64_t[]){ 0, 4, 8 }, 3);
        add_split_k(w);
        break;
    default: break; /* k_instr and exact_group describe instructions */
    }
}

/* Widths are those of adders that have been described, or could be built for these formats. */
static void add_wide(const struct walk *w, ng_param p)
{
    switch (p) {
    case NG_PARAM_CHAIN_ROWS:
    case NG_PARAM_ROWS:
        add(w, p, 0);
        add_doubled(w, p, p == NG_PARAM_ROWS ? 4 : 1, 256);
        break;
    case NG_PARAM_LANES: /* without scales the mode says it: one, or two */
        if (w->c->a.view.scale)
            add_doubled(w, p, 1, 32);
        break;
    case NG_PARAM_ACC_BITS:
        add_from_to(w, p, 8, 32);
        add(w, p, 53);
        break;
    case NG_PARAM_FRAC: add_from_to(w, p, 8, 36); break;
    case NG_PARAM_OUT_BITS: add_from_to(w, p, 7, 23); break;
    case NG_PARAM_GROUP: add_doubled(w, p, 1, 64); break;
    case NG_PARAM_EXACT_GROUP: add_doubled(w, p, 1, 16); break;
    case NG_PARAM_K_INSTR: add_doubled(w, p, 4, 128); break;
    case NG_PARAM_PIECE_ADDS: add_doubled(w, p, 2, 4); break;
    case NG_PARAM_PIECES:
    case NG_PARAM_SUBGROUPS: add_doubled(w, p, 1, 2); break;
    case NG_PARAM_SUM_FRAC:
    case NG_PARAM_C_FRAC: add_from_to(w, p, 20, 34); break;
    case NG_PARAM_FLOOR_F32:
        add(w, p, NG_FLOOR_NONE);
        add_from_to(w, p, -140, -124);
        break;
    case NG_PARAM_FLOOR_F16:
        add(w, p, NG_FLOOR_NONE);
        add_from_to(w, p, -26, -12);
        break;
    case NG_PARAM_C_DROP:
        add(w, p, 0);
        add_from_to(w, p, 22, 34);
        break;
    case NG_PARAM_PROMOTE:
        add(w, p, 0);
        add_doubled(w, p, 1, 8);
        add_split_k(w);
        break;
    default: break;
    }
}

static bool is_named(ng_param p)
{
    char text[32];
    ng_param_print(p, 100, text, sizeof text); /* no enumeration is that long */
    return text[0] == '?';
}

bool param_is_idle(const ng_rule *r, ng_param p, const struct one_case *c)
{
    const bool one_lane = r->set[NG_PARAM_LANES].value == 1;
    const bool pieces = p == NG_PARAM_PIECE_SPLIT || p == NG_PARAM_PIECE_ORDER ||
                        p == NG_PARAM_PIECE_ADDS || p == NG_PARAM_PIECE_OUTER;
    const bool late = p == NG_PARAM_SUBGROUPS || p == NG_PARAM_SUM_FRAC ||
                      p == NG_PARAM_C_FRAC || p == NG_PARAM_C_DROP;
    const bool f16 = p == NG_PARAM_OUT_F16 || p == NG_PARAM_NAN_F16 || p == NG_PARAM_FLOOR_F16;
    if (!ng_param_in_family(p, (ng_family)r->set[NG_PARAM_FAMILY].value))
        return true;
    if (f16 && c->d.view.format != NG_F16 && c->gemm.accumulate != NG_F16)
        return true; /* FP32 accumulates: item 19 */
    if (one_lane && (p == NG_PARAM_LANE_SUM || p == NG_PARAM_K_MAP))
        return true;
    if (p == NG_PARAM_TF32_IN || p == NG_PARAM_TF32_NAN)
        return c->a.view.format != NG_TF32;
    if (p == NG_PARAM_SPARSE_K)
        return !c->a.view.sparse && !c->b.view.sparse;
    if (p == NG_PARAM_OPERAND_EXP) /* bf16 and tf32 reach below f16's exponents: no unit's */
        return ng_format_info(c->a.view.format)->bits > 8;
    if (p == NG_PARAM_ALIGN_ROUND || p == NG_PARAM_FLOOR_F32 || p == NG_PARAM_FLOOR_F16)
        if (r->set[NG_PARAM_C_PLACE].value == NG_C_LATE)
            return true; /* its cuts are fixed: docs/numerics.md 11.3 item 27 */
    if (pieces)
        return r->set[NG_PARAM_PIECES].value != 2;
    return late && r->set[NG_PARAM_C_PLACE].value != NG_C_LATE;
}

/* The family is the device; the case says the accumulate memory's format. */
static bool is_no_question(ng_param p)
{
    return p == NG_PARAM_FAMILY || p == NG_PARAM_PSUM || p == NG_PARAM_PSUM_ROUND;
}

void each_neighbour(const ng_rule *r, const struct one_case *c, enum reach reach,
                    neighbour_fn *each, void *of)
{
    const struct walk w = { r, c, reach, each, of };
    for (int p = 0; p < NG_PARAM_COUNT; p++) {
        if (is_no_question((ng_param)p) || param_is_idle(r, (ng_param)p, c))
            continue;
        if (is_named((ng_param)p))
            add_from_to(&w, (ng_param)p, 0, 7);
        else if (reach == REACH_NEAR)
            add_near(&w, (ng_param)p);
        else
            add_wide(&w, (ng_param)p);
    }
}

bool neighbour_set(ng_profile *profile, const ng_rule *r, ng_param p, int64_t value)
{
    char text[32];
    ng_param_print(p, (int32_t)value, text, sizeof text);
    if (ng_profile_set(profile, r->name, ng_param_key(p), text))
        return false;
    if (p != NG_PARAM_GROUP || r->set[NG_PARAM_K_PERM].value != NG_PERM_MOD4)
        return true;
    snprintf(text, sizeof text, "%lld", 2 * (long long)value); /* mod4 takes two steps */
    return ng_profile_set(profile, r->name, "k_instr", text) == NG_OK;
}
