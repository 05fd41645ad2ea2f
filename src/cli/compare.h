/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing two tensors code by code, and saying what kind of difference each one is. */
#ifndef NG_CLI_COMPARE_H
#define NG_CLI_COMPARE_H

#include "cli.h"

enum diff_class {
    DIFF_ZERO_SIGN,  /* +0 against -0 */
    DIFF_SIGN,       /* the same magnitude with the other sign */
    DIFF_NAN_CODE,   /* two different NaNs */
    DIFF_NAN_NUMBER, /* NaN on one side only */
    DIFF_INF_MAX,    /* Inf against the largest finite number */
    DIFF_INF_NUMBER, /* Inf on one side only, or of the other sign */
    DIFF_FLUSHED,    /* zero where a subnormal is wanted */
    DIFF_ONE_TOWARD, /* one code nearer to zero than wanted */
    DIFF_ONE_AWAY,   /* one code further from zero */
    DIFF_LOW_BITS,   /* tf32: the same value, other bits below it */
    DIFF_FEW,        /* 2 to 16 codes */
    DIFF_FAR,        /* more */
    DIFF_CLASSES
};
const char *diff_class_text(enum diff_class c);

struct diff {
    int64_t index; /* row-major number of the element */
    uint32_t got, want;
    enum diff_class cls;
    int64_t distance; /* codes from want to got; INT64_MAX where there is no such thing */
};

struct comparison {
    int64_t n, differ;
    int64_t by_class[DIFF_CLASSES];
    struct diff *diff; /* all of them, ascending */
    int64_t room;      /* of diff */
    int64_t *number;   /* the n elements that were looked at, ascending; NULL: all there are */
};

enum diff_class diff_classify(ng_format format, uint32_t got, uint32_t want, int64_t *distance);
/* Same format and shape; false: out of memory. */
bool compare_tensors(const ng_tensor *got, const ng_tensor *want, struct comparison *r);
/* Only elements number[0..n), whose wanted codes are given; the comparison takes `number` over.
 */
bool compare_sample(const ng_tensor *got, int64_t *number, const uint32_t *want, int64_t n,
                    struct comparison *r);
/* An even sample of `all`: one drawn number from each of n equal stretches, ascending; freed by
 * free(). NULL: out of memory. */
int64_t *draw_sample(uint64_t seed, int64_t all, int64_t n);
void comparison_free(struct comparison *r);

/* Row-major number to index and back to a code. */
void index_of(const ng_tensor *t, int64_t number, int64_t *index);
int64_t count_of(const ng_tensor *t);                   /* elements */
json_t *index_json(const ng_tensor *t, int64_t number); /* a list */
uint32_t code_at(const ng_tensor *t, int64_t number);

#endif
