/* SPDX-License-Identifier: Apache-2.0 */
/* What the API tests share: counted checks and random codes. Only the public headers. */
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

#endif
