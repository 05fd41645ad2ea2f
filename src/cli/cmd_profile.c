/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge profile: the devices as data. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char help[] =
    "usage: ngauge profile list\n"
    "       ngauge profile show NAME|FILE     every parameter with its evidence and source\n"
    "       ngauge profile diff P Q           what decides other bits\n"
    "       ngauge profile check FILE         is it consistent, and what does it rest on\n"
    "       ngauge profile keys               every parameter that there is, and its values\n\n"
    "A FILE is what show prints; docs/profiles.md says how to write one.\n";

static bool read_by(const ng_rule *r, int param)
{
    return ng_param_in_family((ng_param)param, (ng_family)r->set[NG_PARAM_FAMILY].value);
}

static void count_evidence(const ng_profile *p, int *count)
{
    for (uint32_t i = 0; i < p->n_rules; i++)
        for (int k = 0; k < NG_PARAM_COUNT; k++)
            if (read_by(&p->rules[i], k))
                count[p->rules[i].set[k].evidence]++;
}

static int list(const struct cli *cli)
{
    json_t *out = cli->json ? json_array() : NULL;
    for (size_t i = 0; ng_profile_at(i); i++) {
        const ng_profile *p = ng_profile_at(i);
        int n[NG_EVIDENCE_ASSUMED + 1] = { 0 };
        char hash[16];
        count_evidence(p, n);
        snprintf(hash, sizeof hash, "%08x", ng_profile_hash(p));
        if (!out) {
            printf("%-21s #%s  r%u  %s\n%23s", p->name, hash, p->revision, p->about, "");
            for (int e = 0; e <= NG_EVIDENCE_ASSUMED; e++)
                if (n[e])
                    printf("%d %s  ", n[e], ng_evidence_name((ng_evidence)e));
            printf("\n");
            continue;
        }
        json_t *j = json_pack("{s:s,s:s,s:i,s:s}", "name", p->name, "hash", hash, "revision",
                              (int)p->revision, "about", p->about);
        for (int e = 0; e <= NG_EVIDENCE_ASSUMED; e++)
            json_object_set_new(j, ng_evidence_name((ng_evidence)e), json_integer(n[e]));
        json_array_append_new(out, j);
    }
    return out ? cli_print_json(out) : EXIT_EQUAL;
}

static char *print(const ng_profile *p)
{
    const size_t n = ng_profile_print(p, NULL, 0);
    char *text = malloc(n + 1);
    if (text)
        ng_profile_print(p, text, n + 1);
    return text;
}

static json_t *profile_json(const ng_profile *p)
{
    json_t *rules = json_array();
    char hash[16];
    for (uint32_t i = 0; i < p->n_rules; i++) {
        const ng_rule *r = &p->rules[i];
        json_t *params = json_object();
        for (int k = 0; k < NG_PARAM_COUNT; k++) {
            char value[32];
            if (!read_by(r, k))
                continue;
            ng_param_print((ng_param)k, r->set[k].value, value, sizeof value);
            json_object_set_new(params, ng_param_key((ng_param)k),
                                json_pack("{s:s,s:s,s:s}", "value", value, "evidence",
                                          ng_evidence_name(r->set[k].evidence), "source",
                                          r->set[k].source));
        }
        json_array_append_new(rules,
                              json_pack("{s:s,s:o}", "rule", r->name, "parameters", params));
    }
    snprintf(hash, sizeof hash, "%08x", ng_profile_hash(p));
    return json_pack("{s:s,s:s,s:i,s:s,s:o}", "name", p->name, "about", p->about, "revision",
                     (int)p->revision, "hash", hash, "rules", rules);
}

static int show(const struct cli *cli, const char *name)
{
    ng_profile *owned;
    int code = 0;
    const ng_profile *p = profile_load(name, &owned, &code);
    if (!p)
        return code;
    if (cli->json) {
        code = cli_print_json(profile_json(p));
    } else {
        char *text = print(p);
        if (text)
            printf("# hash %08x\n%s", ng_profile_hash(p), text);
        else
            code = cli_fail(EXIT_INTERNAL, "out of memory");
        free(text);
    }
    ng_profile_free(owned);
    return code;
}

static const ng_rule *find_rule(const ng_profile *p, const char *name)
{
    for (uint32_t i = 0; i < p->n_rules; i++)
        if (strcmp(p->rules[i].name, name) == 0)
            return &p->rules[i];
    return NULL;
}

/* "+e4m3fn -e3m4": what the second set has and the first has not, and the reverse. */
static int diff_set(const ng_rule *r, const char *key, ng_format_set now, ng_format_set then,
                    json_t *out)
{
    char text[400] = "";
    size_t n = 0;
    if (now == then)
        return 0;
    for (size_t i = 0; ng_format_at(i) && n < sizeof text; i++)
        if ((now ^ then) >> i & 1)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%c%s", n ? " " : "",
                                  then >> i & 1 ? '+' : '-', ng_format_at(i)->text);
    if (out)
        json_array_append_new(
            out, json_pack("{s:s,s:s,s:s}", "rule", r->name, "key", key, "formats", text));
    else
        printf("  %s: %s\n", key, text);
    return 1;
}

/* The differences of one rule; their number. */
static int diff_rule(const ng_rule *r, const ng_rule *s, json_t *out)
{
    int n = 0;
    for (int k = 0; k < NG_PARAM_COUNT; k++) {
        char a[32], b[32];
        if (!(read_by(r, k) || read_by(s, k)) || r->set[k].value == s->set[k].value)
            continue;
        ng_param_print((ng_param)k, r->set[k].value, a, sizeof a);
        ng_param_print((ng_param)k, s->set[k].value, b, sizeof b);
        n++;
        if (out)
            json_array_append_new(
                out, json_pack("{s:s,s:s,s:s,s:s,s:s,s:s}", "rule", r->name, "key",
                               ng_param_key((ng_param)k), "from", a, "to", b, "evidence_from",
                               ng_evidence_name(r->set[k].evidence), "evidence_to",
                               ng_evidence_name(s->set[k].evidence)));
        else
            printf("  %s: %s (%s) -> %s (%s)\n", ng_param_key((ng_param)k), a,
                   ng_evidence_name(r->set[k].evidence), b,
                   ng_evidence_name(s->set[k].evidence));
    }
    n += diff_set(r, "a", r->a, s->a, out) + diff_set(r, "b", r->b, s->b, out) +
         diff_set(r, "apart", r->apart, s->apart, out);
    if (r->same != s->same || r->block != s->block) {
        n++;
        if (out)
            json_array_append_new(out, json_pack("{s:s,s:s,s:b,s:b,s:i,s:i}", "rule", r->name,
                                                 "key", "same, block", "same_from", r->same,
                                                 "same_to", s->same, "block_from",
                                                 (int)r->block, "block_to", (int)s->block));
        else
            printf("  same=%s block=%u -> same=%s block=%u\n", r->same ? "yes" : "no", r->block,
                   s->same ? "yes" : "no", s->block);
    }
    return n;
}

static int diff_profiles(const struct cli *cli, const ng_profile *p, const ng_profile *q)
{
    json_t *out = cli->json ? json_array() : NULL;
    int n = 0;
    for (uint32_t i = 0; i < p->n_rules; i++) {
        const ng_rule *s = find_rule(q, p->rules[i].name);
        if (!out)
            printf("rule %s%s\n", p->rules[i].name, s ? "" : ": only in the first");
        n += s ? diff_rule(&p->rules[i], s, out) : 1;
        if (!s && out)
            json_array_append_new(
                out, json_pack("{s:s,s:s}", "rule", p->rules[i].name, "only_in", p->name));
    }
    for (uint32_t i = 0; i < q->n_rules; i++)
        if (!find_rule(p, q->rules[i].name)) {
            n++;
            if (out)
                json_array_append_new(
                    out, json_pack("{s:s,s:s}", "rule", q->rules[i].name, "only_in", q->name));
            else
                printf("rule %s: only in the second\n", q->rules[i].name);
        }
    if (out)
        return cli_print_json(out) ? EXIT_FILE : n ? EXIT_DIFFERS : EXIT_EQUAL;
    printf("%d difference%s\n", n, n == 1 ? "" : "s");
    return n ? EXIT_DIFFERS : EXIT_EQUAL;
}

static int diff(const struct cli *cli, const char *first, const char *second)
{
    ng_profile *o1, *o2 = NULL;
    int code = 0;
    const ng_profile *p = profile_load(first, &o1, &code),
                     *q = p ? profile_load(second, &o2, &code) : NULL;
    if (p && q)
        code = diff_profiles(cli, p, q);
    ng_profile_free(o1);
    ng_profile_free(o2);
    return code;
}

/* A file whose name is a built-in profile's: the two can be mistaken for each other. */
static const ng_profile *namesake(const ng_profile *p)
{
    const ng_profile *built_in = ng_profile_find(p->name);
    return built_in == p ? NULL : built_in;
}

static json_t *check_json(const ng_profile *p, int unsourced)
{
    const ng_profile *other = namesake(p);
    char hash[16];
    snprintf(hash, sizeof hash, "%08x", ng_profile_hash(other));
    return json_pack("{s:s,s:b,s:i,s:i,s:o}", "name", p->name, "consistent", 1, "rules",
                     (int)p->n_rules, "without_source", unsourced, "built_in",
                     other ? json_string(hash) : json_null());
}

static void print_check(const ng_profile *p, const int *n, int unsourced)
{
    const ng_profile *other = namesake(p);
    printf("%s: consistent, %u rules, hash %08x\n", p->name, p->n_rules, ng_profile_hash(p));
    for (int e = 0; e <= NG_EVIDENCE_ASSUMED; e++)
        printf("  %3d %s\n", n[e], ng_evidence_name((ng_evidence)e));
    if (unsourced)
        printf("  %3d parameters name no source\n", unsourced);
    if (other)
        printf("  a built-in profile has this name too: revision %u, hash %08x\n",
               other->revision, ng_profile_hash(other));
}

static int check(const struct cli *cli, const char *name)
{
    ng_profile *owned;
    int code = 0, n[NG_EVIDENCE_ASSUMED + 1] = { 0 }, unsourced = 0;
    const ng_profile *p = profile_load(name, &owned, &code);
    if (!p)
        return code;
    count_evidence(p, n);
    for (uint32_t i = 0; i < p->n_rules; i++)
        for (int k = 0; k < NG_PARAM_COUNT; k++)
            unsourced += read_by(&p->rules[i], k) && !p->rules[i].set[k].source[0];
    if (cli->json)
        code = cli_print_json(check_json(p, unsourced));
    else
        print_check(p, n, unsourced);
    ng_profile_free(owned);
    return code;
}

/* Which rules read a parameter. */
static const char *family_of(ng_param p)
{
    const bool array = ng_param_in_family(p, NG_FAMILY_ARRAY),
               fused = ng_param_in_family(p, NG_FAMILY_FUSED);
    return array && fused ? "both" : array ? "array" : "fused";
}

static int keys(const struct cli *cli)
{
    json_t *out = cli->json ? json_array() : NULL;
    for (int i = 0; i < NG_PARAM_COUNT; i++) {
        const ng_param p = (ng_param)i;
        char values[200];
        ng_param_values(p, values, sizeof values);
        cli_print_key(out, ng_param_key(p), family_of(p), values, ng_param_meaning(p));
    }
    return out ? cli_print_json(out) : EXIT_EQUAL;
}

int cmd_profile(int argc, char **argv)
{
    static const struct option long_options[] = { CLI_OPTIONS, { 0 } };
    enum {
        LIST,
        SHOW,
        DIFF,
        CHECK,
        KEYS
    };
    static const struct cli_verb verbs[] = {
        [LIST] = { "list", 0, 0, NULL },
        [SHOW] = { "show", 1, 1, "one profile, a name or a file" },
        [DIFF] = { "diff", 2, 2, "two profiles" },
        [CHECK] = { "check", 1, 1, "one FILE" },
        [KEYS] = { "keys", 0, 0, NULL },
        { NULL, 0, 0, NULL },
    };
    struct cli cli = { .threads = 1 };
    int code;
    if (!cli_options(&cli, argc, argv,
                     &(struct cli_options){ CLI_SHORT, long_options, help, NULL, NULL }, &code))
        return code;
    const int verb = cli_verb(argc, argv, verbs);
    char **const word = argv + optind + 1;
    switch (verb) {
    case LIST: return list(&cli);
    case SHOW: return show(&cli, word[0]);
    case DIFF: return diff(&cli, word[0], word[1]);
    case CHECK: return check(&cli, word[0]);
    case KEYS: return keys(&cli);
    default: return EXIT_USAGE;
    }
}
