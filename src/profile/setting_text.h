/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of a schedule as text: names of values, one line of all, reading, limits. A schedule
 * is an array of settings, one per row of its table. */
#ifndef NG_SETTING_TEXT_H
#define NG_SETTING_TEXT_H

#include "ng/profile.h"

enum setting_type {
    SETTING_INT,    /* 0 or more */
    SETTING_HEX,    /* a pattern */
    SETTING_FORMAT, /* a row of formats.def, or "given" */
    SETTING_NAMED
};

struct setting_param {
    const char *key;
    enum setting_type type;
    const char *const *names; /* of NAMED, the last before a NULL */
    const char *meaning;
};

struct setting_table {
    const struct setting_param *param;
    int n;
};

/* Lengths as snprintf has them. */
size_t ng_setting_print(const struct setting_param *p, int32_t value, char *buffer,
                        size_t bytes);
/* What values it may have. */
size_t ng_setting_values(const struct setting_param *p, char *buffer, size_t bytes);
/* "NAME: key=value(evidence) ..." */
size_t ng_settings_print(const struct setting_table *t, const char *name, const ng_setting *set,
                         char *buffer, size_t bytes);
/* NG_ERR_PROFILE: no such key, or a value that is none. What is set is `assumed`. */
ng_status ng_setting_set(const struct setting_table *t, ng_setting *set, const char *key,
                         const char *text);

struct setting_check {
    const struct setting_table *t;
    const ng_setting *set;
    char *message;
    size_t bytes;
};
/* "section is 100; wanted: ...": NG_ERR_PROFILE. */
ng_status ng_setting_refuse(const struct setting_check *c, int p, const char *wanted);
/* Each is a value of its type. */
ng_status ng_setting_check_values(const struct setting_check *c);

/* A setting of a preset, with its evidence: documented, backed, inferred, assumed. */
#define D(value, source)                                                                       \
    {                                                                                          \
        (int32_t)(value), NG_EVIDENCE_DOCUMENTED, source                                       \
    }
#define B(value, source)                                                                       \
    {                                                                                          \
        (int32_t)(value), NG_EVIDENCE_BACKED, source                                           \
    }
#define I(value, source)                                                                       \
    {                                                                                          \
        (int32_t)(value), NG_EVIDENCE_INFERRED, source                                         \
    }
#define A(value)                                                                               \
    {                                                                                          \
        (int32_t)(value), NG_EVIDENCE_ASSUMED, ""                                              \
    }

/* A format of signed elements, as operands have it. */
bool ng_is_plain_element(int32_t format);

#endif
