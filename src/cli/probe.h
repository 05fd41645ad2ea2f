/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding out how an unknown unit multiplies: operands whose results differ under every value
 * that a parameter may have, and the values that give a unit's results. docs/cli.md, "probe".
 */
#ifndef NG_CLI_PROBE_H
#define NG_CLI_PROBE_H

#include "case.h"

/* What is asked. */
struct probe_shape {
    ng_format a, b, c, d; /* c: NONE for no C */
    ng_mode mode;
    int64_t m, n, k;
    uint64_t seed;
};

/* A and B (and C) of a multiply, with memory of their own; an exit code. */
int probe_draw(const struct probe_shape *shape, const ng_rule *rule, struct one_case *c);
/* K that passes the ends of an array's tiles, of a unit's steps and promotions. */
int64_t probe_k(const ng_rule *rule);

/* ---- Reading. ---- */

enum {
    PROBE_MOST_VALUES = 64,
    PROBE_MOST_ALSO = 32
};

/* Another value of a parameter, and how many elements it takes from those that the profile
 * found gives: 0 means that the data cannot tell the two apart. `with`: another parameter's
 * value beside which it takes none; NG_PARAM_COUNT: there is none, or nobody looked, since it
 * takes many. */
struct probe_other {
    int64_t value;
    int64_t differ;
    ng_param with;
    int64_t with_value;
};
bool probe_is_open(const struct probe_other *o);

struct probe_param {
    ng_param param;
    int64_t value;
    size_t n_others, n_open; /* n_open: of them that are not told apart */
    struct probe_other other[PROBE_MOST_VALUES];
    size_t refused; /* values that the library refuses here */
    /* a profile of `also` that has another value, or is of another family; NULL: none is */
    const ng_profile *elsewhere;
};

struct probe_change {
    ng_param param;
    int64_t from, to;
};

struct probe_findings {
    const ng_profile *start;                 /* the nearest profile */
    const ng_profile *also[PROBE_MOST_ALSO]; /* built-in ones that give everything as well */
    size_t n_also;
    ng_profile *profile;                   /* what was found: a copy of it with other values */
    const ng_rule *rule;                   /* of `profile` */
    int64_t elements, as_started, as_read; /* elements that the two give */
    struct probe_change change[NG_PARAM_COUNT];
    size_t n_changes;
    struct probe_param param[NG_PARAM_COUNT];
    size_t n_params;
    int64_t tried; /* multiplies computed */
    int64_t left;  /* the simplest element that nothing gives, by number; -1: none */
    uint32_t got, want;
};

/* The values under which `c` gives its d. The search begins at c's profile, or at a built-in
 * one that gives more of it. An exit code. */
int probe_read(const struct cli *cli, struct one_case *c, struct probe_findings *out);
/* Values that the data could not tell from the ones found. */
size_t probe_count_open(const struct probe_findings *f);
/* tells[i * rows + row]: does a row of `c` tell the i-th of those? An exit code. */
int probe_tell(const struct cli *cli, struct one_case *c, const struct probe_findings *open,
               bool *tells);
/* Draw other rows `rounds` times, and take those that tell what is open in place of some of
 * c's; *replaced of them. */
int probe_improve(const struct cli *cli, const struct probe_shape *shape, const ng_rule *rule,
                  uint64_t rounds, const struct probe_findings *open, int64_t *replaced,
                  struct one_case *c);
/* What these operands tell apart, without a result: as if the unit were c's profile. */
int probe_foresee(const struct cli *cli, struct one_case *c, struct probe_findings *out);
void probe_findings_free(struct probe_findings *f);

#endif
