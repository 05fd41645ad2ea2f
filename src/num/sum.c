/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums: a wide fixed-point number. Numerics: docs/numerics.md, section 4.1 item 8. */
#include <string.h>

#include "num.h"

void ng_sum_begin(struct ng_sum *s)
{
    memset(s, 0, sizeof *s);
    s->all_neg_zero = true;
    s->first = NG_EXACT_LIMBS;
}

/* limb[at..] += or -= part, with the carry or borrow running up as far as it must. */
static void add_at(struct ng_sum *s, int at, uint64_t part, bool neg)
{
    for (int i = at; part && i < NG_EXACT_LIMBS; i++) {
        const uint64_t before = s->limb[i];
        s->limb[i] = neg ? before - part : before + part;
        part = neg ? s->limb[i] > before : s->limb[i] < before;
    }
}

void ng_sum_add(struct ng_sum *s, ng_value v)
{
    s->any = true;
    s->all_neg_zero = s->all_neg_zero && v.neg && ng_num_is_zero(v);
    if (ng_num_is_nan(v))
        s->nan = true;
    if (ng_num_is_inf(v))
        *(v.neg ? &s->neg_inf : &s->pos_inf) = true;
    if (v.cls != NG_CLASS_FINITE || !v.sig)
        return;
    const int at = v.exp - NG_EXACT_LEAST; /* exp >= -552: see num.h */
    const int limb = at / 64, shift = at % 64;
    s->first = limb < s->first ? limb : s->first;
    s->last = limb + 1 > s->last ? limb + 1 : s->last;
    add_at(s, limb, v.sig << shift, v.neg);
    if (shift)
        add_at(s, limb + 1, v.sig >> (64 - shift), v.neg);
}

static uint64_t magnitude_limb(const struct ng_sum *s, int i, int low, bool neg)
{
    if (!neg)
        return s->limb[i];
    return i == low ? 0 - s->limb[i] : ~s->limb[i];
}

ng_value ng_sum_end(const struct ng_sum *s)
{
    if (s->nan || (s->pos_inf && s->neg_inf))
        return ng_num_nan();
    if (s->pos_inf || s->neg_inf)
        return ng_num_inf(s->neg_inf);

    /* The magnitude of a negative number: limbs below the lowest that is not 0 stay 0, that one
     * is negated, those above are complemented. */
    const bool neg = s->limb[NG_EXACT_LIMBS - 1] >> 63;
    int low = s->first, top = s->last + 1; /* above that there are copies of the sign only */
    while (low <= top && !s->limb[low])
        low++;
    if (low > top) /* exactly zero: +0, unless all terms were -0 */
        return ng_num_zero(s->any && s->all_neg_zero);
    while (top > low && s->limb[top] == (neg ? UINT64_MAX : 0))
        top--;

    /* The 64 bits from the highest one down, and whether anything lies below them. */
    const uint64_t head = magnitude_limb(s, top, low, neg);
    const uint64_t next = top > low ? magnitude_limb(s, top - 1, low, neg) : 0;
    const int zeros = __builtin_clzll(head);
    return (ng_value){ .sig = zeros ? head << zeros | next >> (64 - zeros) : head,
                       .exp = NG_EXACT_LEAST + 64 * top - zeros,
                       .neg = neg,
                       .sticky = next << zeros != 0 || top - 1 > low };
}

ng_value ng_num_add(ng_value a, ng_value b)
{
    struct ng_sum s;
    ng_sum_begin(&s);
    ng_sum_add(&s, a);
    ng_sum_add(&s, b);
    return ng_sum_end(&s);
}
