/* SPDX-License-Identifier: Apache-2.0 */
/* Counts cases and mismatches, prints the first few mismatches. Shared by the tests here. */
#ifndef NG_TESTS_NUM_REPORT_H
#define NG_TESTS_NUM_REPORT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/** Meson's exit status for a test that could not run. */
#define REPORT_SKIP 77
#define REPORT_SHOW 12u

typedef struct report {
    uint64_t cases;
    uint64_t bad;
    uint64_t shown;
} report;

/** One failed case; the first REPORT_SHOW of them are printed. */
__attribute__((format(printf, 2, 3))) static inline void report_bad(report *r, const char *how,
                                                                    ...)
{
    va_list args;

    r->bad++;
    if (r->shown >= REPORT_SHOW) {
        return;
    }
    r->shown++;
    printf("  MISMATCH ");
    va_start(args, how);
    vprintf(how, args);
    va_end(args);
    printf("\n");
}

/** Count one case that holds or not; `what` names it. */
static inline void report_check(report *r, bool ok, const char *what, const char *where)
{
    r->cases++;
    if (!ok) {
        report_bad(r, "%s: %s", where, what);
    }
}

static inline void report_add(report *total, const report *part)
{
    total->cases += part->cases;
    total->bad += part->bad;
}

/** A fixed stream of test bits (splitmix64); not one of the library's generators. */
static inline uint64_t report_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

#endif
