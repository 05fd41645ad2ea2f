/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rule explains a difference: the case is evaluated again under neighbouring rules, at
 * the elements that differ and at a sample of those that do not. A rule explains an element
 * when it gives the chip's code; it breaks one when it takes an equal element away.
 */
#ifndef NG_CLI_EXPLAIN_H
#define NG_CLI_EXPLAIN_H

#include "case.h"
#include "compare.h"

struct finding {
    char label[160];
    int64_t explains, of;    /* of the differing elements looked at */
    int64_t breaks, against; /* of the equal elements looked at */
    bool all;                /* every element was looked at under this rule */
    char left[400];          /* then: the first one that it does not give as the chip has it */
    char divergence[400];    /* multiply: where the first differing element parts ways; or "" */
};

struct findings {
    struct finding *item; /* best first */
    size_t n;
    int64_t refused; /* hypotheses that the library refuses for these operands */
    int64_t tried;   /* hypotheses that could be evaluated */
    int64_t differ;  /* differing elements looked at */
    int64_t equal;
    bool all;      /* every element was looked at under every rule */
    size_t beyond; /* more rules that explain everything than `item` has */
};

/* `want` is the oracle's output; the chip's codes are in the comparisons. Exit code, 0:
 * success. */
int explain(const struct cli *cli, struct one_case *c, const struct operand *want,
            const struct comparison *elements, const struct comparison *scales,
            struct findings *out);

/*
 * The oracle's codes of `n` elements of a multiply, by row-major number. NG_OK, or why the
 * library refuses (message in cli->ctx).
 */
ng_status evaluate_sample(const struct cli *cli, struct one_case *c, const int64_t *number,
                          int64_t n, uint32_t *code);

/*
 * How many elements of this data would notice each wrong rule: the oracle's output against the
 * same under every single hypothesis. `explains` of a finding is the count that changes.
 */
int sensitivity(const struct cli *cli, struct one_case *c, const struct operand *want,
                const struct comparison *looked_at, struct findings *out);
void findings_free(struct findings *f);

#endif
