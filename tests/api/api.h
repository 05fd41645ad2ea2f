/* SPDX-License-Identifier: Apache-2.0 */
/* What the API tests share: counted checks, random codes, executors. Only the public headers.
 */
#ifndef NG_TEST_API_H
#define NG_TEST_API_H

#include <stdio.h>
#include <string.h>

#include "ng/ng.h"

static unsigned checks, failures;

static inline bool check_at(const char *file, int line, bool ok, const char *what)
{
    checks++;
    if (!ok) {
        failures++;
        printf("FAIL %s:%d: %s\n", file, line, what);
    }
    return ok;
}
#define CHECK(condition) check_at(__FILE__, __LINE__, condition, #condition)

static inline int report(const char *name)
{
    printf("%s: %u checks, %u failed\n", name, checks, failures);
    return failures ? 1 : 0;
}

/* SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators". */
static inline uint64_t next(uint64_t *s)
{
    uint64_t z = (*s += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* Codes with values around one; now and then a zero. */
static inline uint32_t some_code(const ng_format_spec *f, uint64_t *s)
{
    const uint64_t r = next(s);
    const uint32_t sign = (uint32_t)(r & 1) << (f->bits - 1), man = (uint32_t)(r >> 8);
    if (f->kind == NG_KIND_INT || f->kind == NG_KIND_FINITE)
        return man & (f->kind == NG_KIND_INT ? 0x7Fu : f->max_code);
    if (r >> 60 == 0)
        return 0;
    const uint32_t field = (uint32_t)(f->bias - 2 + (int)(r >> 40 & 3));
    const uint32_t mag = field << f->man_bits | (man & ((1u << f->man_bits) - 1u));
    return sign | mag << f->low_bits;
}

/* Packed views of rank 2 and 1. */
static inline ng_tensor view(ng_format f, void *data, int64_t rows, int64_t columns)
{
    ng_tensor t;
    CHECK(ng_tensor_init(&t, f, data, 2, (const int64_t[]){ rows, columns }) == NG_OK);
    return t;
}
static inline ng_tensor vector(ng_format f, void *data, int64_t n)
{
    ng_tensor t;
    CHECK(ng_tensor_init(&t, f, data, 1, &n) == NG_OK);
    return t;
}

/* To the next index of a tensor, row-major; false after the last. */
static inline bool next_index(const ng_tensor *t, int64_t *index)
{
    for (uint32_t d = t->rank; d-- > 0;) {
        if (++index[d] < t->dim[d])
            return true;
        index[d] = 0;
    }
    return false;
}

static inline void fill_tensor(const ng_tensor *t, uint64_t *s)
{
    int64_t index[NG_MAX_RANK] = { 0 };
    do
        ng_tensor_set(t, index, some_code(ng_format_info(t->format), s));
    while (next_index(t, index));
}

static inline void backwards(void *user, size_t n,
                             void (*body)(void *arg, size_t i, size_t worker), void *arg)
{
    (void)user;
    while (n-- > 0)
        body(arg, n, 0);
}

#endif
