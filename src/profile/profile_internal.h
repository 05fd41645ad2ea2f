/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_PROFILE_INTERNAL_H
#define NG_PROFILE_INTERNAL_H

#include "ng/profile.h"

/* profiles.c: the devices. */
extern const ng_profile *const ng_builtin_profiles[];
extern const size_t ng_n_builtin_profiles;

/* One rule of ng_profile_check(): what a multiply checks of a caller's profile. */
ng_status ng_rule_check(const ng_rule *rule, char *message, size_t bytes);

/* "fused chain presum tree": names, the last of them before a NULL. Length as snprintf. */
size_t ng_names_print(const char *const *names, char *buffer, size_t bytes);

#endif
