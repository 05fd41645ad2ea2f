/* SPDX-License-Identifier: Apache-2.0 */
/* The other values that a rule's parameters may have had: what explain and probe try. */
#ifndef NG_CLI_NEIGHBOURS_H
#define NG_CLI_NEIGHBOURS_H

#include "case.h"

/* True for a parameter that cannot change a bit of this case under this rule. */
bool param_is_idle(const ng_rule *r, ng_param p, const struct one_case *c);

/* Numbers that other devices have and those next to this one's; or all that a unit is likely
 * to have. */
enum reach {
    REACH_NEAR,
    REACH_WIDE
};

/* `note`: what the value stands for, "K in 3 parts"; or "". */
typedef void neighbour_fn(void *of, ng_param p, int64_t value, const char *note);

/* Every other value of every parameter that is not idle, in the order of params.def. NaN codes
 * are not among them: they come from data. */
void each_neighbour(const ng_rule *r, const struct one_case *c, enum reach reach,
                    neighbour_fn *each, void *of);

/* Set one in the profile, and what goes with it; false: no such value, or out of memory. */
bool neighbour_set(ng_profile *profile, const ng_rule *r, ng_param p, int64_t value);

#endif
