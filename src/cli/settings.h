/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named rows of settings that an operation goes by: attention's schedules, collectives. Reading
 * what a case or a command line changes of one, showing them with their evidence.
 */
#ifndef NG_CLI_SETTINGS_H
#define NG_CLI_SETTINGS_H

#include "reader.h"

/* One kind of them. */
struct settings_kind {
    const char *what;    /* "schedule" */
    const char *command; /* "attention" */
    int n;               /* parameters */
    const char *(*key)(int param);
    const char *(*meaning)(int param);
    size_t (*print)(int param, int32_t value, char *buffer, size_t bytes);
    size_t (*values)(int param, char *buffer, size_t bytes);
    /* The i-th preset's name; NULL past the end. */
    const char *(*at)(size_t i, const char **about, const ng_setting **set);
};

/* "set" of a case, which changes `of` by set(). */
bool settings_read(struct reader *r, json_t *root, const struct settings_kind *k, void *of,
                   ng_status (*set)(void *of, const char *key, const char *value));
/* The name that `text` must be: "schedule is 'x'; wanted: one of ...". */
bool settings_unknown(struct reader *r, const struct settings_kind *k, const char *text);

/* --set KEY=VALUE into the object `set`; an exit code. */
int settings_option(json_t *set, const char *text);
/* ngauge COMMAND show [NAME], ngauge COMMAND keys; exit codes. */
int settings_show(const struct cli *cli, const struct settings_kind *k, const char *name);
int settings_keys(const struct cli *cli, const struct settings_kind *k);

#endif
