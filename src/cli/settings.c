/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that operations go by: what is set, what is shown. settings.h. */
#include "settings.h"

#include <string.h>

/* ---- Reading. ---- */

static int parameter_of(const struct settings_kind *k, const char *key)
{
    for (int p = 0; p < k->n; p++)
        if (strcmp(k->key(p), key) == 0)
            return p;
    return -1;
}

static bool bad_value(struct reader *r, const struct settings_kind *k, const char *key,
                      const char *value)
{
    char wanted[200];
    const int p = parameter_of(k, key);
    if (p < 0)
        return reader_fail(r, "set: '%.40s' is no parameter of a %s; see ngauge %s keys", key,
                           k->what, k->command);
    (void)k->values(p, wanted, sizeof wanted);
    return reader_fail(r, "set: %s=%.40s is no value of that parameter (%s); wanted: %s", key,
                       value, k->meaning(p), wanted);
}

bool settings_read(struct reader *r, json_t *root, const struct settings_kind *k, void *of,
                   ng_status (*change)(void *of, const char *key, const char *value))
{
    json_t *set = json_object_get(root, "set"), *v;
    const char *key;
    if (set && !json_is_object(set))
        return reader_fail(r, "set is not an object");
    json_object_foreach(set, key, v)
    {
        char text[64];
        if (json_is_integer(v))
            snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
        else
            snprintf(text, sizeof text, "%.60s",
                     json_is_string(v) ? json_string_value(v) : "(no string)");
        if (change(of, key, text))
            return bad_value(r, k, key, text);
    }
    return true;
}

bool settings_unknown(struct reader *r, const struct settings_kind *k, const char *text)
{
    char known[200] = "";
    const char *about, *name;
    const ng_setting *set;
    for (size_t i = 0, n = 0; (name = k->at(i, &about, &set)) && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, " %s", name);
    return reader_fail(r, "%s is '%.40s'; wanted: one of%s", k->what, text ? text : "(absent)",
                       known);
}

int settings_option(json_t *set, const char *text)
{
    char key[40];
    const char *eq = strchr(text, '=');
    if (!eq || (size_t)(eq - text) >= sizeof key)
        return cli_fail(EXIT_USAGE, "'%s' is no KEY=VALUE", text);
    snprintf(key, sizeof key, "%.*s", (int)(eq - text), text);
    json_object_set_new(set, key, text_json(eq + 1));
    return 0;
}

/* ---- Showing. ---- */

static void show_one(const struct settings_kind *k, const char *name, const char *about,
                     const ng_setting *set)
{
    printf("%s: %s\n", name, about);
    for (int p = 0; p < k->n; p++) {
        char value[40];
        (void)k->print(p, set[p].value, value, sizeof value);
        printf("  %-13s %-12s %-10s %s%s%s\n", k->key(p), value,
               ng_evidence_name(set[p].evidence), k->meaning(p), set[p].source[0] ? "; " : "",
               set[p].source);
    }
}

static json_t *one_json(const struct settings_kind *k, const char *name, const char *about,
                        const ng_setting *set)
{
    json_t *parameters = json_array();
    for (int p = 0; p < k->n; p++) {
        char value[40];
        (void)k->print(p, set[p].value, value, sizeof value);
        json_array_append_new(parameters,
                              json_pack("{s:s,s:s,s:s,s:s,s:s}", "key", k->key(p), "value",
                                        value, "evidence", ng_evidence_name(set[p].evidence),
                                        "meaning", k->meaning(p), "source", set[p].source));
    }
    return json_pack("{s:s,s:s,s:s,s:o}", "schema", "ng.report/1", k->what, name, "about",
                     about, "parameters", parameters);
}

static json_t *all_json(const struct settings_kind *k)
{
    json_t *list = json_array();
    char plural[40];
    const char *about, *name;
    const ng_setting *set;
    for (size_t i = 0; (name = k->at(i, &about, &set)); i++)
        json_array_append_new(list, json_pack("{s:s,s:s}", k->what, name, "about", about));
    snprintf(plural, sizeof plural, "%ss", k->what);
    return json_pack("{s:s,s:o}", "schema", "ng.report/1", plural, list);
}

int settings_show(const struct cli *cli, const struct settings_kind *k, const char *wanted)
{
    const char *about, *name;
    const ng_setting *set;
    for (size_t i = 0; wanted && (name = k->at(i, &about, &set)); i++)
        if (strcmp(name, wanted) == 0) {
            if (cli->json)
                return cli_print_json(one_json(k, name, about, set));
            show_one(k, name, about, set);
            return EXIT_EQUAL;
        }
    if (wanted)
        return cli_fail(EXIT_USAGE, "'%s' is no %s; see ngauge %s show", wanted, k->what,
                        k->command);
    if (cli->json)
        return cli_print_json(all_json(k));
    for (size_t i = 0; (name = k->at(i, &about, &set)); i++)
        printf("%-15s %s\n", name, about);
    return EXIT_EQUAL;
}

int settings_keys(const struct cli *cli, const struct settings_kind *k)
{
    json_t *out = cli->json ? json_array() : NULL;
    for (int p = 0; p < k->n; p++) {
        char values[200];
        (void)k->values(p, values, sizeof values);
        cli_print_key(out, k->key(p), NULL, values, k->meaning(p));
    }
    return out ? cli_print_json(out) : EXIT_EQUAL;
}
