/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge probe: operands that ask an unknown unit how it multiplies, and what its results say.
 */
#include <stdlib.h>
#include <string.h>

#include "make_case.h"
#include "probe.h"
#include "reader.h"
#include "report.h"

static const char help[] =
    "usage: ngauge probe make --profile P --a F --b F [OPTIONS] OUT\n"
    "       ngauge probe read CASE [--dump FILE[=F]] [-o FILE --source TEXT]\n\n"
    "make writes operands whose product is another under every value that a parameter of the\n"
    "profile's rule may have: a folder with a.npy, b.npy and case.json, or one file if OUT "
    "ends\n"
    "in .safetensors. Multiply them on the unit, put the result beside them as d.npy, and "
    "read\n"
    "says which values give it, which it contradicts and which it cannot tell apart. CASE may "
    "be\n"
    "any case of gemm or dot with a result.\n"
    "  --profile P            what the unit is thought to be: a name or a file\n"
    "  --a F --b F            formats of the operands\n"
    "  --scales F             block scales: e8m0 or ue4m3\n"
    "  --double-row           two FP8 products per element and step\n"
    "  --c F                  an addend too\n"
    "  --to F                 format of the result; default f32, which shows most\n"
    "  --accumulate F         of the accumulator\n"
    "  --rows N --columns N --depth N   sizes; default 160, 24, and what passes the unit's "
    "tiles\n"
    "  --rounds N             times to look for rows that tell what stayed open; default 8\n"
    "  --set RULE.KEY=VALUE   another value of the profile; may be repeated\n"
    "  --dump FILE[=F]        read: the unit's result, if the case does not name its file\n"
    "  -o FILE                read: write what was found as a profile, the values that the\n"
    "                         data decide tagged measured, with --source TEXT: which device,\n"
    "                         which software. --name N names it\n"
    "and the options of every command: ngauge --help\n";

enum {
    OPT_SCALES = OPT_PRESET + 1,
    OPT_ROWS,
    OPT_COLUMNS,
    OPT_DEPTH,
    OPT_ROUNDS,
    OPT_C_FORMAT,
    OPT_DUMP,
    OPT_SOURCE,
    OPT_NAME
};

struct request {
    struct cli cli;
    const char *profile, *dump, *out, *source, *name;
    json_t *set;
    struct probe_shape shape;
    ng_format accumulate, scales;
    bool double_row;
    uint64_t rounds; /* of looking for rows that tell more */
    uint64_t seen;   /* options that the command line had: BIT() */
};

/* ---- What both say. ---- */

static struct code_text value_of(ng_param p, int64_t value)
{
    struct code_text t;
    ng_param_print(p, (int32_t)value, t.text, 32); /* none is longer */
    return t;
}

/* The one told apart that the fewest elements speak against; NULL: there is none. */
static const struct probe_other *nearest(const struct probe_param *p)
{
    const struct probe_other *best = NULL;
    for (size_t i = 0; i < p->n_others; i++)
        if (!probe_is_open(&p->other[i]) && (!best || p->other[i].differ < best->differ))
            best = &p->other[i];
    return best;
}

/* "23 (with align_round=rdn)" */
static struct code_text open_text(const struct probe_param *p, const struct probe_other *o)
{
    struct code_text t = value_of(p->param, o->value);
    const size_t n = strlen(t.text);
    if (o->differ)
        snprintf(t.text + n, sizeof t.text - n, " (with %s=%.32s)", ng_param_key(o->with),
                 value_of(o->with, o->with_value).text);
    return t;
}

enum standing {
    DECIDED, /* every other value is contradicted */
    OPEN,    /* some are not, or a profile that gives everything too has another */
    IDLE,    /* none changes an element of these data */
    STANDINGS
};

static enum standing standing_of(const struct probe_param *p)
{
    size_t moves = 0;
    for (size_t i = 0; i < p->n_others; i++)
        moves += p->other[i].differ != 0;
    return !moves ? IDLE : p->n_open || p->elsewhere ? OPEN : DECIDED;
}

static void count_standings(const struct probe_findings *f, size_t *n)
{
    memset(n, 0, STANDINGS * sizeof *n);
    for (size_t i = 0; i < f->n_params; i++)
        n[standing_of(&f->param[i])]++;
}

static void print_param(const struct probe_param *p)
{
    const struct probe_other *near = nearest(p);
    const size_t told = p->n_others - p->n_open;
    const enum standing standing = standing_of(p);
    printf("  %-14s %-12s", ng_param_key(p->param), value_of(p->param, p->value).text);
    if (near)
        printf(" %zu other%s contradicted, %s by %lld element%s", told, told == 1 ? "" : "s",
               value_of(p->param, near->value).text, (long long)near->differ,
               near->differ == 1 ? "" : "s");
    if (standing == IDLE)
        printf(p->n_others ? " nothing here depends on it"
                           : " no other value goes with the rest");
    if (standing == OPEN) {
        printf("%s not told from:", near ? ";" : "");
        for (size_t i = 0; i < p->n_others; i++)
            if (probe_is_open(&p->other[i]))
                printf(" %s", open_text(p, &p->other[i]).text);
        if (p->elsewhere)
            printf(" that of %s", p->elsewhere->name);
    }
    printf("\n");
}

static void print_params(const struct probe_findings *f)
{
    for (size_t i = 0; i < f->n_params; i++)
        print_param(&f->param[i]);
}

/* Built-in profiles that give everything as well. */
static void print_also(const struct probe_findings *f, const char *what)
{
    if (!f->n_also)
        return;
    printf("%s", what);
    for (size_t i = 0; i < f->n_also; i++)
        printf(" %s", f->also[i]->name);
    printf("\n");
}

static json_t *also_json(const struct probe_findings *f)
{
    json_t *list = json_array();
    for (size_t i = 0; i < f->n_also; i++)
        json_array_append_new(list, json_string(f->also[i]->name));
    return list;
}

static json_t *param_json(const struct probe_param *p)
{
    json_t *others = json_array(), *open = json_array();
    for (size_t i = 0; i < p->n_others; i++) {
        const struct probe_other *o = &p->other[i];
        const struct code_text value = value_of(p->param, o->value);
        json_t *j =
            json_pack("{s:s,s:I}", "value", value.text, "elements", (json_int_t)o->differ);
        if (o->with != NG_PARAM_COUNT)
            json_object_set_new(j, "with",
                                json_pack("{s:s,s:s}", "key", ng_param_key(o->with), "value",
                                          value_of(o->with, o->with_value).text));
        json_array_append_new(probe_is_open(o) ? open : others, j);
    }
    return json_pack("{s:s,s:s,s:o,s:o,s:s?,s:I,s:b}", "key", ng_param_key(p->param), "value",
                     value_of(p->param, p->value).text, "contradicted", others, "open", open,
                     "elsewhere", p->elsewhere ? p->elsewhere->name : NULL, "refused",
                     (json_int_t)p->refused, "decided", standing_of(p) == DECIDED);
}

static json_t *params_json(const struct probe_findings *f)
{
    json_t *list = json_array();
    for (size_t i = 0; i < f->n_params; i++)
        json_array_append_new(list, param_json(&f->param[i]));
    return list;
}

/* ---- make ---- */

static int shape_of(struct request *r, struct one_case *c, const ng_rule **rule)
{
    char message[400];
    struct probe_shape *s = &r->shape;
    if (!s->a || !s->b)
        return cli_fail(EXIT_USAGE, "probe make wants --a FORMAT and --b FORMAT");
    if (r->double_row && r->scales)
        return cli_fail(EXIT_USAGE, "--double-row has no block scales: --scales says nothing");
    s->mode = r->double_row           ? NG_MODE_DOUBLE_ROW
              : r->scales == NG_E8M0  ? NG_MODE_MX
              : r->scales == NG_UE4M3 ? NG_MODE_NV
                                      : NG_MODE_PLAIN;
    s->d = s->d ? s->d : NG_F32;
    *rule = ng_profile_rule(c->profile, s->a, s->b, s->mode, message, sizeof message);
    if (!*rule)
        return cli_fail(EXIT_REFUSED, "%s", message);
    s->k = s->k ? s->k : probe_k(*rule);
    s->seed = r->cli.seed;
    c->op = OP_GEMM;
    c->gemm = (ng_gemm_op){ .size = sizeof c->gemm,
                            .profile = c->profile,
                            .double_row = r->double_row,
                            .accumulate = r->accumulate };
    return 0;
}

static void print_made(const struct request *r, const struct one_case *c,
                       const struct probe_findings *f)
{
    char line[1024], text[512];
    size_t n[STANDINGS];
    count_standings(f, n);
    ng_rule_print(c->profile, f->rule, line, sizeof line);
    case_describe(c, text, sizeof text);
    printf("wrote %s: %s\n  %s\n", r->out, text, line);
    printf(
        "what these data tell, if the unit is this one (%lld multiplies of %lld elements):\n",
        (long long)f->tried, (long long)f->elements);
    print_params(f);
    print_also(f, "Not told from these profiles:");
    printf("%zu parameters would be decided, %zu stay open in part, %zu play no part here.\n",
           n[DECIDED], n[OPEN], n[IDLE]);
    if (ends_in(r->out, ".safetensors"))
        printf("Multiply on the unit; then: ngauge probe read %s --dump D=%s\n", r->out,
               ng_format_info(r->shape.d)->text);
    else
        printf("Multiply on the unit, write the %s result as %s/d.npy; then: ngauge probe read "
               "%s\n",
               ng_format_info(r->shape.d)->text, r->out, r->out);
}

static int write_probe(const struct request *r, struct one_case *c)
{
    struct io_files files = { .n = 0 };
    struct io_array result = c->d.data; /* the unit's to say, not ours */
    c->d.data.data = NULL;
    const int code = ends_in(r->out, ".safetensors")
                         ? files_close(&files, case_stage_st(&files, r->out, c))
                         : case_write_folder(r->out, c);
    c->d.data = result;
    return code;
}

/* Does the library take such a multiply at all? */
static int check_taken(const struct request *r, const struct one_case *c)
{
    size_t bytes;
    const ng_status s = ng_gemm_scratch(r->cli.ctx, &c->gemm, &c->a.view, &c->b.view,
                                        c->c.present ? &c->c.view : NULL, &c->d.view, &bytes);
    return s ? cli_refused(&r->cli, s, "") : 0;
}

static int make_one(struct request *r, struct one_case *c)
{
    struct probe_findings f = { .left = -1 };
    const ng_rule *rule;
    int code = shape_of(r, c, &rule);
    if (!code)
        code = probe_draw(&r->shape, rule, c);
    if (!code)
        code = check_taken(r, c);
    if (!code && (r->rounds || r->cli.json || !r->cli.quiet))
        code = probe_foresee(&r->cli, c, &f);
    int64_t replaced = 0;
    if (!code && r->rounds && probe_count_open(&f))
        code = probe_improve(&r->cli, &r->shape, rule, r->rounds, &f, &replaced, c);
    if (!code && replaced) {
        probe_findings_free(&f);
        code = probe_foresee(&r->cli, c, &f);
    }
    if (!code) {
        snprintf(c->name, sizeof c->name, "probe of %.80s/%.40s, seed %llu", c->profile->name,
                 rule->name, (unsigned long long)r->cli.seed);
        code = write_probe(r, c);
    }
    if (!code && r->cli.json)
        code = cli_print_json(
            json_pack("{s:s,s:s,s:o,s:s,s:o,s:I,s:I,s:o}", "schema", "ng.report/1", "version",
                      NG_CLI_VERSION, "written", text_json(r->out), "profile", c->profile->name,
                      "also", also_json(&f), "elements", (json_int_t)f.elements, "multiplies",
                      (json_int_t)f.tried, "parameters", params_json(&f)));
    else if (!code && !r->cli.quiet)
        print_made(r, c, &f);
    probe_findings_free(&f);
    return code;
}

/* NAME or FILE, and what --set says, as a case would have them. */
static int open_profile(struct request *r, struct one_case *c)
{
    struct reader reader = { .path = "command line", .options = true };
    if (!r->profile)
        return cli_fail(EXIT_USAGE, "probe make wants --profile");
    json_t *root = json_pack("{s:{s:s}}", "profile",
                             ng_profile_find(r->profile) ? "name" : "file", r->profile);
    if (r->set)
        json_object_set(json_object_get(root, "profile"), "set", r->set);
    const bool ok = reader_profile(&reader, root, c);
    json_decref(root);
    return ok ? 0 : reader.code;
}

static int make(struct request *r, const char *path)
{
    struct one_case *c = calloc(1, sizeof *c);
    struct case_list list = { c, 1 };
    if (!c)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    r->out = path;
    int code = open_profile(r, c);
    if (!code)
        code = make_one(r, c);
    case_free(&list);
    return code;
}

/* ---- read ---- */

static void print_left(const struct one_case *c, const struct probe_findings *f)
{
    const ng_format format = c->d.view.format;
    char at[64];
    index_text(&c->d.view, f->left, at, sizeof at);
    printf("  the simplest element left: %s got %s, under these values %s\n", at,
           code_text(format, f->got).text, code_text(format, f->want).text);
}

static void print_read(const struct cli *cli, const struct one_case *c,
                       const struct probe_findings *f)
{
    char line[1024], text[512];
    size_t n[STANDINGS];
    count_standings(f, n);
    case_describe(c, text, sizeof text);
    printf("%s\n", text);
    printf("from %s/%s, which gives %lld of %lld elements as it stands:\n", f->start->name,
           f->rule->name, (long long)f->as_started, (long long)f->elements);
    print_also(f, "so do as they stand:");
    for (size_t i = 0; i < f->n_changes; i++)
        printf("  %s=%s (there %s)\n", ng_param_key(f->change[i].param),
               value_of(f->change[i].param, f->change[i].to).text,
               value_of(f->change[i].param, f->change[i].from).text);
    if (!cli->quiet) {
        ng_rule_print(f->profile, f->rule, line, sizeof line);
        printf("%s\n", line);
        printf("every other value tried against that, one at a time (%lld multiplies):\n",
               (long long)f->tried);
        print_params(f);
    }
    if (f->left < 0) {
        printf(
            "verdict: all %lld elements follow from these values; %zu parameters are decided, "
            "%zu stay open in part, %zu play no part here\n",
            (long long)f->elements, n[DECIDED], n[OPEN], n[IDLE]);
        return;
    }
    print_left(c, f);
    printf("verdict: %lld of %lld elements follow from these values; %lld from none that was "
           "tried\n",
           (long long)f->as_read, (long long)f->elements,
           (long long)(f->elements - f->as_read));
}

static json_t *read_json(const struct one_case *c, const struct probe_findings *f)
{
    char line[1024];
    json_t *changes = json_array(), *left = json_null();
    for (size_t i = 0; i < f->n_changes; i++)
        json_array_append_new(
            changes, json_pack("{s:s,s:s,s:s}", "key", ng_param_key(f->change[i].param), "from",
                               value_of(f->change[i].param, f->change[i].from).text, "to",
                               value_of(f->change[i].param, f->change[i].to).text));
    if (f->left >= 0)
        left = json_pack("{s:o,s:o,s:o}", "index", index_json(&c->d.view, f->left), "got",
                         code_json(c->d.view.format, f->got), "want",
                         code_json(c->d.view.format, f->want));
    ng_rule_print(f->profile, f->rule, line, sizeof line);
    return json_pack("{s:s,s:I,s:s,s:o,s:I,s:I,s:o,s:s,s:o,s:o,s:I,s:s}", "op", op_text(c->op),
                     "elements", (json_int_t)f->elements, "from", f->start->name, "also",
                     also_json(f), "as_it_stands", (json_int_t)f->as_started, "explained",
                     (json_int_t)f->as_read, "changes", changes, "rule", line, "parameters",
                     params_json(f), "left", left, "multiplies", (json_int_t)f->tried,
                     "verdict", f->left < 0 ? "explained" : "differs");
}

/* The profile's text, if that is a profile: names and sources come from the command line. */
static char *profile_text(const ng_profile *p, int *code)
{
    char message[400] = "";
    ng_profile *again = NULL;
    const size_t n = ng_profile_print(p, NULL, 0);
    char *text = malloc(n + 1);
    *code = text ? 0 : cli_fail(EXIT_INTERNAL, "out of memory");
    if (!text)
        return NULL;
    ng_profile_print(p, text, n + 1);
    if (ng_profile_parse(text, n, &again, message, sizeof message))
        *code = cli_fail(EXIT_USAGE, "--name and --source make no profile: %s", message);
    ng_profile_free(again);
    return text;
}

/* The profile found; values that the data decide rest on them. */
static int write_profile(const struct request *r, const struct probe_findings *f)
{
    struct io_error e;
    struct io_files files = { .n = 0 };
    ng_profile p = *f->profile;
    ng_rule *rules = malloc(p.n_rules * sizeof *rules);
    int code;
    if (!rules)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    memcpy(rules, p.rules, p.n_rules * sizeof *rules);
    p.name = r->name ? r->name : "probed";
    p.about = r->source;
    p.revision = 1;
    p.rules = rules;
    for (size_t i = 0; i < f->n_params; i++)
        if (standing_of(&f->param[i]) == DECIDED) {
            ng_setting *s = &rules[f->rule - f->profile->rules].set[f->param[i].param];
            s->evidence = NG_EVIDENCE_MEASURED;
            s->source = r->source;
        }
    char *text = profile_text(&p, &code);
    if (!code && !io_stage(&files, r->out, text, strlen(text), &e))
        code = cli_file_error(&e);
    code = files_close(&files, code);
    free(text);
    free(rules);
    return code;
}

static int read_one(const struct request *r, struct one_case *c, json_t *report, bool *all)
{
    struct probe_findings f;
    if (c->op > OP_GEMM)
        return cli_fail(EXIT_REFUSED, "probe read takes cases of gemm and dot, not of %s",
                        op_text(c->op));
    int code = probe_read(&r->cli, c, &f);
    if (!code && report)
        json_array_append_new(report, read_json(c, &f));
    else if (!code)
        print_read(&r->cli, c, &f);
    if (!code)
        *all = *all && f.left < 0;
    if (!code && r->out && f.left >= 0)
        code = cli_fail(EXIT_DIFFERS,
                        "%s is not written: %lld elements follow from no value that was tried",
                        r->out, (long long)(f.elements - f.as_read));
    else if (!code && r->out)
        code = write_profile(r, &f);
    probe_findings_free(&f);
    return code;
}

/* The result that the case does not have, of the shape that it must have. */
static int load_dump(const char *text, struct one_case *c)
{
    int code = c->op > OP_GEMM ? 0 : case_shape_output(c);
    struct file_name name;
    const ng_format f = c->d.view.format;
    if (code || c->op > OP_GEMM)
        return code;
    code = file_name_open(text, &name);
    json_t *typed = code || name.type ? json_string(text)
                                      : json_sprintf("%s=%s", text, ng_format_info(f)->text);
    file_name_close(&name);
    if (!code)
        code = array_load(json_string_value(typed), NULL, false, &c->d.data);
    json_decref(typed);
    if (code)
        return code;
    const struct io_array *a = &c->d.data;
    bool same = a->format == f && a->rank == c->d.view.rank;
    for (uint32_t d = 0; same && d < a->rank; d++)
        same = a->dim[d] == c->d.view.dim[d];
    if (!same)
        return cli_fail(EXIT_REFUSED, "%s is %s %s; wanted: %s %s", text,
                        io_type_name(a->format, a->item_bits), io_shape(a->rank, a->dim).text,
                        ng_format_info(f)->text, io_shape(c->d.view.rank, c->d.view.dim).text);
    c->d.view.data = c->d.data.data;
    return 0;
}

static int read_cases(const struct request *r, struct case_list *list)
{
    json_t *report = r->cli.json ? json_array() : NULL;
    bool all = true;
    int code = 0;
    if (list->n > 1 && (r->dump || r->out))
        code = cli_fail(EXIT_USAGE, "--%s is of one case, but there are %zu",
                        r->dump ? "dump" : "out", list->n);
    if (!code && r->dump)
        code = load_dump(r->dump, &list->item[0]);
    for (size_t i = 0; i < list->n && !code; i++)
        code = read_one(r, &list->item[i], report, &all);
    if (code <= EXIT_DIFFERS && report) {
        const int printed = cli_print_json(
            json_pack("{s:s,s:s,s:O,s:s}", "schema", "ng.report/1", "version", NG_CLI_VERSION,
                      "cases", report, "verdict", all ? "explained" : "differs"));
        code = printed ? printed : code;
    }
    json_decref(report);
    return code ? code : all ? EXIT_EQUAL : EXIT_DIFFERS;
}

static int read_probe(struct request *r, const char *path)
{
    struct case_list list = { NULL, 0 };
    if (!r->out != !r->source || (r->name && !r->out))
        return cli_fail(EXIT_USAGE, "-o wants --source TEXT, the device and software that "
                                    "gave the result; --source and --name say nothing without");
    if (r->name && ng_profile_find(r->name))
        return cli_fail(EXIT_USAGE, "--name %s is a built-in profile; wanted: another name",
                        r->name);
    int code = r->out ? check_writable(&r->out, 1) : 0;
    if (!code)
        code = case_read(path, !r->dump, r->set, &list);
    if (!code)
        code = read_cases(r, &list);
    case_free(&list);
    return code;
}

/* ---- Options. ---- */

static int format_option(const struct option *options, int o, const char *text, ng_format *to)
{
    *to = ng_format_find(text);
    return *to ? 0 : cli_bad_value(options, o, text, "a format; ngauge info lists them");
}

static int size_option(const struct option *options, int o, const char *text, int64_t *to)
{
    uint64_t v = 0;
    if (!parse_u64(text, &v) || v < 1 || v > 1 << 20)
        return cli_bad_value(options, o, text, "a number from 1 to 1048576");
    *to = (int64_t)v;
    return 0;
}

static int own_option(struct request *r, const struct option *options, int o, const char *v)
{
    struct probe_shape *s = &r->shape;
    switch (o) {
    case OPT_PROFILE: r->profile = v; return 0;
    case OPT_A: return format_option(options, o, v, &s->a);
    case OPT_B: return format_option(options, o, v, &s->b);
    case OPT_C_FORMAT: return format_option(options, o, v, &s->c);
    case OPT_TO: return format_option(options, o, v, &s->d);
    case OPT_ACCUMULATE: return format_option(options, o, v, &r->accumulate);
    case OPT_SCALES:
        r->scales = ng_format_find(v);
        return r->scales == NG_E8M0 || r->scales == NG_UE4M3
                   ? 0
                   : cli_bad_value(options, o, v, "e8m0 or ue4m3");
    case OPT_DOUBLE_ROW: r->double_row = true; return 0;
    case OPT_ROWS: return size_option(options, o, v, &s->m);
    case OPT_COLUMNS: return size_option(options, o, v, &s->n);
    case OPT_DEPTH: return size_option(options, o, v, &s->k);
    case OPT_ROUNDS:
        return parse_u64(v, &r->rounds) && r->rounds <= 1000
                   ? 0
                   : cli_bad_value(options, o, v, "a number up to 1000");
    case OPT_SETTING: return settings_add(&r->set, v);
    case OPT_DUMP: r->dump = v; return 0;
    case OPT_SOURCE: r->source = v; return 0;
    case OPT_NAME: r->name = v; return 0;
    case 'o': r->out = v; return 0;
    default: return EXIT_USAGE;
    }
}

static const struct option options[] = { CLI_OPTIONS,
                                         { "profile", required_argument, NULL, OPT_PROFILE },
                                         { "a", required_argument, NULL, OPT_A },
                                         { "b", required_argument, NULL, OPT_B },
                                         { "c", required_argument, NULL, OPT_C_FORMAT },
                                         { "to", required_argument, NULL, OPT_TO },
                                         { "scales", required_argument, NULL, OPT_SCALES },
                                         { "double-row", no_argument, NULL, OPT_DOUBLE_ROW },
                                         { "accumulate", required_argument, NULL,
                                           OPT_ACCUMULATE },
                                         { "rows", required_argument, NULL, OPT_ROWS },
                                         { "columns", required_argument, NULL, OPT_COLUMNS },
                                         { "depth", required_argument, NULL, OPT_DEPTH },
                                         { "rounds", required_argument, NULL, OPT_ROUNDS },
                                         { "set", required_argument, NULL, OPT_SETTING },
                                         { "dump", required_argument, NULL, OPT_DUMP },
                                         { "out", required_argument, NULL, 'o' },
                                         { "source", required_argument, NULL, OPT_SOURCE },
                                         { "name", required_argument, NULL, OPT_NAME },
                                         { 0 } };

static int take(void *to, int o, const char *v)
{
    struct request *const r = to;
    r->seen |= o >= OPT_OWN ? BIT(o) : 0;
    return own_option(r, options, o, v);
}

/* What would have no effect is an error. */
static int check_options(const struct request *r, bool is_make)
{
    const uint64_t of_read = BIT(OPT_DUMP) | BIT(OPT_SOURCE) | BIT(OPT_NAME),
                   of_both = BIT(OPT_SETTING);
    if (is_make && r->out)
        return cli_fail(EXIT_USAGE, "-o says nothing to probe make, whose OUT is a word");
    return cli_stray(options, r->seen, is_make ? ~of_read : of_read | of_both, "probe",
                     is_make ? "make" : "read");
}

static int probe(int argc, char **argv, struct request *r)
{
    enum {
        MAKE,
        READ
    };
    static const struct cli_verb verbs[] = { [MAKE] = { "make", 1, 1, "one OUT" },
                                             [READ] = { "read", 1, 1, "one CASE" },
                                             { NULL, 0, 0, NULL } };
    const int verb = cli_verb(argc, argv, verbs);
    if (verb < 0)
        return EXIT_USAGE;
    int code = check_options(r, verb == MAKE);
    if (!code)
        code = cli_open(&r->cli);
    if (!code)
        code = verb == MAKE ? make(r, argv[optind + 1]) : read_probe(r, argv[optind + 1]);
    cli_close(&r->cli);
    return code;
}

int cmd_probe(int argc, char **argv)
{
    struct request r = { .cli = { .threads = 1, .seed = 1 },
                         .rounds = 8,
                         .shape = { .m = 160, .n = 24 } };
    int code;
    if (cli_options(&r.cli, argc, argv,
                    &(struct cli_options){ CLI_SHORT "o:", options, help, take, &r }, &code))
        code = probe(argc, argv, &r);
    json_decref(r.set);
    return code;
}
