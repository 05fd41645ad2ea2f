/* SPDX-License-Identifier: Apache-2.0 */
#include "compare.h"

#include <stdlib.h>

#include "draw.h"

static const char *const class_names[DIFF_CLASSES] = { "sign of zero",
                                                       "sign",
                                                       "NaN code",
                                                       "NaN against number",
                                                       "Inf against max",
                                                       "Inf against number",
                                                       "subnormal flushed",
                                                       "one code toward zero",
                                                       "one code away from zero",
                                                       "low bits of a tf32 word",
                                                       "a few codes (2 to 16)",
                                                       "further" };

const char *diff_class_text(enum diff_class c)
{
    return class_names[c];
}

int64_t count_of(const ng_tensor *t)
{
    int64_t n = 1;
    for (uint32_t d = 0; d < t->rank; d++)
        n *= t->dim[d];
    return n;
}

void index_of(const ng_tensor *t, int64_t number, int64_t *index)
{
    for (uint32_t d = t->rank; d-- > 0;) {
        index[d] = number % t->dim[d];
        number /= t->dim[d];
    }
}

json_t *index_json(const ng_tensor *t, int64_t number)
{
    int64_t index[NG_MAX_RANK];
    json_t *list = json_array();
    index_of(t, number, index);
    for (uint32_t d = 0; d < t->rank; d++)
        json_array_append_new(list, json_integer(index[d]));
    return list;
}

uint32_t code_at(const ng_tensor *t, int64_t number)
{
    int64_t index[NG_MAX_RANK];
    index_of(t, number, index);
    return ng_tensor_get(t, index);
}

/* Codes in the order of their values: sign and magnitude become one integer. */
static int64_t ordinal(const ng_format_spec *f, uint32_t code)
{
    if (f->kind == NG_KIND_SCALE || f->kind == NG_KIND_UFN)
        return code;
    if (f->kind == NG_KIND_INT)
        return (int8_t)code;
    const uint32_t sign = 1u << (f->bits - 1), mag = code & (sign - 1);
    const int64_t m = mag >> f->low_bits;
    return code & sign ? -m : m;
}

static bool is_max(const ng_format_spec *f, uint32_t code)
{
    const uint32_t sign = 1u << (f->bits - 1);
    return (code & ~sign) == f->max_code;
}

static bool is_subnormal(const ng_format_spec *f, const ng_value *v)
{
    /* below the least normal number: its significand lacks the leading bit */
    return v->cls == NG_CLASS_FINITE && v->sig &&
           v->sig < (uint64_t)1 << (f->man_bits + f->low_bits) && f->kind != NG_KIND_SCALE;
}

enum diff_class diff_classify(ng_format format, uint32_t got, uint32_t want, int64_t *distance)
{
    const ng_format_spec *f = ng_format_info(format);
    ng_value g, w;
    (void)ng_decode(format, got, &g);
    (void)ng_decode(format, want, &w);
    *distance = INT64_MAX;
    if (g.cls == NG_CLASS_NAN || w.cls == NG_CLASS_NAN)
        return g.cls == w.cls ? DIFF_NAN_CODE : DIFF_NAN_NUMBER;
    if (g.cls == NG_CLASS_INF || w.cls == NG_CLASS_INF) {
        const bool to_max = g.neg == w.neg && is_max(f, g.cls == NG_CLASS_INF ? want : got);
        if (to_max)
            *distance = 1;
        return to_max ? DIFF_INF_MAX : DIFF_INF_NUMBER;
    }
    *distance = llabs(ordinal(f, got) - ordinal(f, want));
    if (!g.sig && !w.sig)
        return DIFF_ZERO_SIGN;
    if (g.neg != w.neg && g.sig == w.sig && g.exp == w.exp)
        return DIFF_SIGN;
    if (!g.sig && is_subnormal(f, &w) && *distance > 1)
        return DIFF_FLUSHED;
    if (*distance == 0)
        return DIFF_LOW_BITS;
    if (*distance == 1)
        return llabs(ordinal(f, got)) < llabs(ordinal(f, want)) ? DIFF_ONE_TOWARD
                                                                : DIFF_ONE_AWAY;
    return *distance <= 16 ? DIFF_FEW : DIFF_FAR;
}

/* Note that element `i` differs; false: out of memory. */
static bool add_diff(struct comparison *r, ng_format format, int64_t i, uint32_t got,
                     uint32_t want)
{
    if (r->differ == r->room) {
        const int64_t room = r->room ? 2 * r->room : 64;
        struct diff *more = realloc(r->diff, (size_t)room * sizeof *more);
        if (!more)
            return false;
        r->diff = more;
        r->room = room;
    }
    struct diff *x = &r->diff[r->differ++];
    *x = (struct diff){ .index = i, .got = got, .want = want };
    x->cls = diff_classify(format, got, want, &x->distance);
    r->by_class[x->cls]++;
    return true;
}

bool compare_tensors(const ng_tensor *got, const ng_tensor *want, struct comparison *r)
{
    int64_t index[NG_MAX_RANK] = { 0 };
    *r = (struct comparison){ .n = 1 };
    for (uint32_t d = 0; d < want->rank; d++)
        r->n *= want->dim[d];
    for (int64_t i = 0; i < r->n; i++) {
        const uint32_t g = ng_tensor_get(got, index), w = ng_tensor_get(want, index);
        if (g != w && !add_diff(r, want->format, i, g, w)) {
            comparison_free(r);
            return false;
        }
        for (uint32_t d = want->rank; d-- > 0;) { /* the next index */
            if (++index[d] < want->dim[d])
                break;
            index[d] = 0;
        }
    }
    return true;
}

bool compare_sample(const ng_tensor *got, int64_t *number, const uint32_t *want, int64_t n,
                    struct comparison *r)
{
    *r = (struct comparison){ .n = n, .number = number };
    for (int64_t i = 0; i < n; i++) {
        const uint32_t g = code_at(got, number[i]);
        if (g != want[i] && !add_diff(r, got->format, number[i], g, want[i])) {
            comparison_free(r);
            return false;
        }
    }
    return true;
}

int64_t *draw_sample(uint64_t seed, int64_t all, int64_t n)
{
    int64_t *number = malloc((size_t)n * sizeof *number);
    uint64_t state = seed;
    for (int64_t i = 0; number && i < n; i++) {
        const int64_t low = i * (all / n), span = i == n - 1 ? all - low : all / n;
        number[i] = low + (int64_t)(draw(&state) % (uint64_t)span);
    }
    return number;
}

void comparison_free(struct comparison *r)
{
    free(r->diff);
    free(r->number);
    *r = (struct comparison){ .n = 0 };
}
