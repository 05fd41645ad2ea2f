/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as text. setting_text.h. */
#include "setting_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profile_internal.h"

static int count_names(const char *const *names)
{
    int n = 0;
    while (names[n])
        n++;
    return n;
}

/* NULL: not a value of this parameter. */
static const char *value_name(const struct setting_param *p, int32_t value)
{
    if (p->type == SETTING_NAMED)
        return value >= 0 && value < count_names(p->names) ? p->names[value] : NULL;
    if (value == NG_FORMAT_NONE)
        return "given";
    const ng_format_spec *f = ng_format_info((ng_format)value);
    return f ? f->text : NULL;
}

size_t ng_setting_print(const struct setting_param *p, int32_t value, char *buffer,
                        size_t bytes)
{
    int n = 0;
    switch (p->type) {
    case SETTING_INT: n = snprintf(buffer, bytes, "%d", (int)value); break;
    case SETTING_HEX: n = snprintf(buffer, bytes, "0x%08X", (unsigned)value); break;
    case SETTING_FORMAT:
    case SETTING_NAMED:
        n = snprintf(buffer, bytes, "%s", value_name(p, value) ? value_name(p, value) : "?");
        break;
    }
    return n < 0 ? 0 : (size_t)n;
}

size_t ng_setting_values(const struct setting_param *p, char *buffer, size_t bytes)
{
    if (p->type == SETTING_NAMED)
        return ng_names_print(p->names, buffer, bytes);
    return (size_t)snprintf(buffer, bytes, "%s",
                            p->type == SETTING_INT   ? "an integer"
                            : p->type == SETTING_HEX ? "a pattern, as 0xFF800000"
                                                     : "given, or a format");
}

size_t ng_settings_print(const struct setting_table *t, const char *name, const ng_setting *set,
                         char *buffer, size_t bytes)
{
    int n = snprintf(buffer, bytes, "%s:", name ? name : "");
    size_t at = n < 0 ? 0 : (size_t)n;
    for (int i = 0; i < t->n; i++) {
        char value[32];
        (void)ng_setting_print(&t->param[i], set[i].value, value, sizeof value);
        const char *evidence = ng_evidence_name(set[i].evidence);
        n = snprintf(at < bytes ? buffer + at : NULL, at < bytes ? bytes - at : 0, " %s=%s(%s)",
                     t->param[i].key, value, evidence ? evidence : "?");
        at += n < 0 ? 0 : (size_t)n;
    }
    return at;
}

/* Decimal or 0x.. in the whole of text. */
static bool read_integer(const char *text, int base, int64_t least, int64_t most,
                         int32_t *value)
{
    char *end = NULL;
    if (base == 16 && strncmp(text, "0x", 2) != 0)
        return false;
    if (!(text[0] >= '0' && text[0] <= '9'))
        return false;
    const long long v = strtoll(text, &end, base);
    if (*end || v < least || v > most)
        return false;
    *value = (int32_t)(uint32_t)v;
    return true;
}

static bool read_value(const struct setting_param *p, const char *text, int32_t *value)
{
    switch (p->type) {
    case SETTING_INT: return read_integer(text, 10, 0, INT32_MAX, value);
    case SETTING_HEX: return read_integer(text, 16, 0, UINT32_MAX, value);
    case SETTING_FORMAT: {
        const ng_format f = ng_format_find(text);
        if (f == NG_FORMAT_NONE && strcmp(text, "given") != 0)
            return false;
        *value = (int32_t)f;
        return true;
    }
    case SETTING_NAMED:
        for (int i = 0; p->names[i]; i++)
            if (strcmp(p->names[i], text) == 0) {
                *value = i;
                return true;
            }
    }
    return false;
}

ng_status ng_setting_set(const struct setting_table *t, ng_setting *set, const char *key,
                         const char *text)
{
    for (int i = 0; i < t->n; i++) {
        int32_t value;
        if (strcmp(t->param[i].key, key) != 0)
            continue;
        if (!read_value(&t->param[i], text, &value))
            return NG_ERR_PROFILE;
        set[i] = (ng_setting){ value, NG_EVIDENCE_ASSUMED, "" };
        return NG_OK;
    }
    return NG_ERR_PROFILE;
}

ng_status ng_setting_refuse(const struct setting_check *c, int p, const char *wanted)
{
    char value[32];
    (void)ng_setting_print(&c->t->param[p], c->set[p].value, value, sizeof value);
    (void)snprintf(c->message, c->bytes, "%s is %s; wanted: %s", c->t->param[p].key, value,
                   wanted);
    return NG_ERR_PROFILE;
}

ng_status ng_setting_check_values(const struct setting_check *c)
{
    for (int i = 0; i < c->t->n; i++) {
        const struct setting_param *p = &c->t->param[i];
        if (p->type == SETTING_INT && c->set[i].value < 0)
            return ng_setting_refuse(c, i, "0 or more");
        if ((p->type == SETTING_FORMAT || p->type == SETTING_NAMED) &&
            !value_name(p, c->set[i].value))
            return ng_setting_refuse(c, i, "a value of its table");
    }
    return NG_OK;
}

bool ng_is_plain_element(int32_t format)
{
    const ng_format_spec *f = ng_format_info((ng_format)format);
    return f && f->kind != NG_KIND_SCALE && f->kind != NG_KIND_UFN;
}
