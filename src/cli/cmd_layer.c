/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge run layer: one transformer layer from a checkpoint, with times and digests.
 * docs/cli.md, docs/layer.md. */
#include <stdlib.h>
#include <string.h>

#include "layer.h"

static const char help[] =
    "usage: ngauge run layer --preset MODEL [OPTIONS]\n\n"
    "One transformer layer, every rounding named: RMSNorm, q k v, RoPE, attention, output,\n"
    "residual, RMSNorm, router, experts, residual. Without a checkpoint its weights are made "
    "up.\n"
    "  --preset gpt-oss-20b|gpt-oss-tiny\n"
    "  --layer N              of the model (0); even ones have the window, odd ones none\n"
    "  --weights FILE         the model's safetensors file that has the layer; again for more\n"
    "  --write-weights FILE   the weights made up, under the model's names\n"
    "  --tokens N             (16) of a hidden state made up from --seed\n"
    "  --input FILE[=bf16]    or the hidden state itself, [tokens, hidden]\n"
    "  --profile NAME|FILE    (trn3) the array of all multiplies\n"
    "  --schedule S           (trn-prefill) of attention\n"
    "  --check                compare with the published digests; exit code 1 if one differs\n"
    "  -o OUT                 the layer's output: .npy, .safetensors or raw\n"
    "and the options of every command: ngauge --help\n";

enum {
    OPT_PRESET = OPT_OWN,
    OPT_LAYER,
    OPT_WEIGHTS,
    OPT_WRITE_WEIGHTS,
    OPT_TOKENS,
    OPT_INPUT,
    OPT_PROFILE,
    OPT_SCHEDULE,
    OPT_CHECK
};

struct request {
    struct cli cli;
    struct layer_files weights;
    ng_profile *owned; /* where --profile is a file */
    const char *write_weights, *input, *out;
    bool tokens_given, check;
    struct layer_run run;
    struct st_file file;
    struct io_files staged; /* what is written where all goes well */
    double loading;
};

/* ---- Published digests. ---- */

static const struct published {
    const char *preset, *profile, *schedule;
    int64_t layer, tokens;
    uint64_t seed;
    const char *digest[LAYER_STAGES];
} published[] = {
#include "layers.inc"
};

/* Of a layer whose weights and input are made up; or NULL. */
static const struct published *published_of(const struct request *r)
{
    const struct layer_run *run = &r->run;
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        const struct published *p = &published[i];
        if (p->seed == r->cli.seed && p->layer == run->number && p->tokens == run->tokens &&
            strcmp(p->preset, run->shape->name) == 0 &&
            ng_profile_hash(ng_profile_find(p->profile)) == ng_profile_hash(run->profile) &&
            strcmp(p->schedule, run->schedule->name) == 0)
            return p;
    }
    return NULL;
}

/* ---- Options. ---- */

static int whole_number(const char *option, const char *text, int64_t least, int64_t *value)
{
    uint64_t n;
    if (!parse_u64(text, &n) || n > INT32_MAX || (int64_t)n < least)
        return cli_fail(EXIT_USAGE, "--%s is '%s'; wanted: a whole number from %lld on", option,
                        text, (long long)least);
    *value = (int64_t)n;
    return 0;
}

static int take_profile(struct request *r, const char *name)
{
    int code = 0;
    ng_profile_free(r->owned);
    r->run.profile = profile_load(name, &r->owned, &code);
    return code;
}

static int take(void *to, int o, const char *v)
{
    struct request *r = to;
    struct layer_run *run = &r->run;
    switch (o) {
    case OPT_PRESET:
        run->shape = layer_shape_find(v);
        return run->shape ? 0
                          : cli_fail(EXIT_USAGE,
                                     "'%s' is no preset; wanted: gpt-oss-20b, gpt-oss-tiny", v);
    case OPT_LAYER: return whole_number("layer", v, 0, &run->number);
    case OPT_WEIGHTS:
        if (r->weights.n == LAYER_FILES)
            return cli_fail(EXIT_USAGE, "--weights is there more than %d times", LAYER_FILES);
        r->weights.path[r->weights.n++] = v;
        return 0;
    case OPT_WRITE_WEIGHTS: r->write_weights = v; return 0;
    case OPT_TOKENS: r->tokens_given = true; return whole_number("tokens", v, 1, &run->tokens);
    case OPT_INPUT: r->input = v; return 0;
    case OPT_PROFILE: return take_profile(r, v);
    case OPT_SCHEDULE:
        run->schedule = ng_attention_find(v);
        return run->schedule
                   ? 0
                   : cli_fail(EXIT_USAGE, "'%s' is no schedule; see ngauge attention show", v);
    case OPT_CHECK: r->check = true; return 0;
    case 'o': r->out = v; return 0;
    default: return EXIT_USAGE;
    }
}

static int check_request(const struct request *r)
{
    const struct layer_run *run = &r->run;
    if (!run->shape)
        return cli_fail(EXIT_USAGE, "run layer wants --preset gpt-oss-20b or gpt-oss-tiny");
    if (run->number >= run->shape->layers)
        return cli_fail(EXIT_USAGE, "--layer is %lld; wanted: 0 to %lld of %s",
                        (long long)run->number, (long long)run->shape->layers - 1,
                        run->shape->name);
    if (r->weights.n && r->write_weights)
        return cli_fail(EXIT_USAGE,
                        "--write-weights writes weights made up; --weights has some");
    if (r->input && r->tokens_given)
        return cli_fail(EXIT_USAGE, "--tokens says nothing beside --input, which has them");
    if (r->check && (r->weights.n || r->input))
        return cli_fail(EXIT_USAGE,
                        "--check is of weights and an input that are made up: --%s says others",
                        r->weights.n ? "weights" : "input");
    if (r->check && !published_of(r))
        return cli_fail(EXIT_USAGE,
                        "no digests are published for this preset, profile, schedule, layer, "
                        "number of tokens and seed; docs/layer.md lists those that are");
    return 0;
}

/* ---- Input. ---- */

static int load_input(struct request *r)
{
    struct layer_run *run = &r->run;
    if (!r->input)
        return layer_make_tensor(&r->cli, run->shape, run->number, run->tokens, LAYER_INPUT,
                                 &run->input);
    const int code = array_load(r->input, NULL, false, &run->input);
    if (code)
        return code;
    const struct io_array *a = &run->input;
    if (a->format != NG_BF16 || a->rank != 2 || a->dim[1] != run->shape->hidden)
        return cli_fail(EXIT_FILE, "%s holds %s %s; wanted: bf16 [tokens, %lld]", r->input,
                        io_type_name(a->format, a->item_bits), io_shape(a->rank, a->dim).text,
                        (long long)run->shape->hidden);
    run->tokens = a->dim[0];
    return 0;
}

/* Positions begin at 0 and end where the model's context does. */
static int check_tokens(const struct layer_run *run)
{
    return run->tokens <= run->shape->context
               ? 0
               : cli_fail(EXIT_USAGE, "%lld tokens; wanted: at most %lld, the context of %s",
                          (long long)run->tokens, (long long)run->shape->context,
                          run->shape->name);
}

/* ---- What decides the bits, for reports. ---- */

/* key=value(evidence), as lines of a list or one text. */
struct listing {
    char text[4096];
    size_t length;
};

static void list(struct listing *l, const char *key, const char *value, ng_evidence evidence)
{
    if (l->length < sizeof l->text)
        l->length +=
            (size_t)snprintf(l->text + l->length, sizeof l->text - l->length, "%s%s=%s(%s)",
                             l->length ? " " : "", key, value, ng_evidence_name(evidence));
}

/* The values of ng_layer_param_at() that a layer takes: the first of each list, but for the
 * product of RoPE. */
static void list_layer(struct listing *l)
{
    for (size_t i = 0; ng_layer_param_at(i); i++) {
        const ng_layer_param *p = ng_layer_param_at(i);
        char value[64];
        const bool several = strstr("rms.rsqrt rope.pairs rope.product", p->key) != NULL;
        snprintf(value, sizeof value, "%.*s",
                 several ? (int)strcspn(p->values, " ") : (int)strlen(p->values), p->values);
        list(l, p->key, strcmp(p->key, "rope.product") == 0 ? "bf16" : value, p->evidence);
    }
}

static ng_evidence evidence_of(const char *key)
{
    for (size_t i = 0; ng_moe_param_at(i); i++)
        if (strcmp(ng_moe_param_at(i)->key, key) == 0)
            return ng_moe_param_at(i)->evidence;
    return NG_EVIDENCE_ASSUMED;
}

/* Item 136. */
static void list_experts(struct listing *l, const struct layer_run *run)
{
    const bool bf16 = run->expert_sums == NG_BF16;
    static const char *const set[][2] = { { "order", "topk_then_act" },
                                          { "act", "softmax" },
                                          { "score", "f32" },
                                          { "softmax_by", "reciprocal" },
                                          { "router bias", "after the accumulate memory" },
                                          { "hidden", "f32" },
                                          { "biased", "bf16" },
                                          { "moe_act", "gpt_oss" },
                                          { "middle", "bf16" },
                                          { "expert_out", "bf16" },
                                          { "affinity", "after" },
                                          { "combine.order", "expert" },
                                          { "combine.fused", "no" },
                                          { "combine.product", "f32" },
                                          { "combine.sum", "bf16" } };
    if (run->mx)
        list(l, "tokens", "mx e4m3fn floor_up1", NG_EVIDENCE_DOCUMENTED);
    else
        list(l, "weights_as", "bf16", NG_EVIDENCE_ASSUMED);
    list(l, "accumulate", bf16 ? "bf16" : "f32", /* f32 with MX: no source (item 100) */
         bf16 || !run->mx ? NG_EVIDENCE_BACKED : NG_EVIDENCE_ASSUMED);
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++)
        list(l, set[i][0], set[i][1], evidence_of(set[i][0]));
}

static void rule_line(const struct layer_run *run, bool experts, char *line, size_t bytes)
{
    const bool mx = experts && run->mx;
    const ng_rule *rule =
        ng_profile_rule(run->profile, mx ? NG_E4M3FN : NG_BF16, mx ? NG_E2M1 : NG_BF16,
                        mx ? NG_MODE_MX : NG_MODE_PLAIN, line, bytes);
    if (rule)
        (void)ng_rule_print(run->profile, rule, line, bytes);
}

/* ---- Reports. ---- */

static double seconds_of(const struct layer_run *run)
{
    double s = 0;
    for (int i = 0; i < run->n_stages; i++)
        s += run->stage[i].seconds;
    return s;
}

static void print_head(const struct request *r)
{
    const struct layer_run *run = &r->run;
    const struct layer_shape *s = run->shape;
    char line[4096];
    struct listing layer = { .length = 0 }, experts = { .length = 0 };
    list_layer(&layer);
    list_experts(&experts, run);
    printf("layer %lld of %s: %lld tokens of %lld, %lld heads on %lld of %lld, %lld of %lld "
           "experts of %lld, ",
           (long long)run->number, s->name, (long long)run->tokens, (long long)s->hidden,
           (long long)s->heads, (long long)s->kv_heads, (long long)s->head_dim,
           (long long)s->top, (long long)s->experts, (long long)s->inner);
    if (run->number % 2)
        printf("all keys\n");
    else
        printf("a window of %lld\n", (long long)s->window);
    if (r->weights.n)
        printf("  weights: %s%s (%.2f s)\n", r->weights.path[0],
               r->weights.n > 1 ? " and others" : "", r->loading);
    else
        printf("  weights: made up, seed %llu (%.2f s)\n", (unsigned long long)r->cli.seed,
               r->loading);
    rule_line(run, false, line, sizeof line);
    printf("  multiplies: %s\n", line);
    rule_line(run, true, line, sizeof line);
    printf("  of experts: %s\n", line);
    (void)ng_attention_schedule_print(run->schedule, line, sizeof line);
    printf("  attention: %s\n  layer: %s\n  experts: %s\n", line, layer.text, experts.text);
}

static void print_stages(const struct layer_run *run, const struct published *p)
{
    printf("%-11s %9s %8s  %-22s %s\n", "stage", "seconds", "GFLOP/s", "kernel", "XXH3-128");
    for (int i = 0; i < run->n_stages; i++) {
        const struct layer_stage *s = &run->stage[i];
        char rate[24] = "-";
        if (s->operations > 0)
            snprintf(rate, sizeof rate, "%.1f", s->operations / s->seconds * 1e-9);
        printf("%-11s %9.4f %8s  %-22s %s%s\n", s->name, s->seconds, rate, s->kernel, s->digest,
               !p                                     ? ""
               : strcmp(p->digest[i], s->digest) == 0 ? " as published"
                                                      : " DIFFERS");
    }
    printf("%-11s %9.4f\n", "all", seconds_of(run));
}

static json_t *stages_json(const struct layer_run *run, const struct published *p)
{
    json_t *stages = json_array();
    for (int i = 0; i < run->n_stages; i++) {
        const struct layer_stage *s = &run->stage[i];
        json_t *j =
            json_pack("{s:s,s:f,s:f,s:s,s:s}", "name", s->name, "seconds", s->seconds,
                      "operations", s->operations, "kernel", s->kernel, "digest", s->digest);
        json_object_set_new(j, "published", p ? json_string(p->digest[i]) : json_null());
        json_array_append_new(stages, j);
    }
    return stages;
}

static json_t *report(const struct request *r, const struct published *p)
{
    const struct layer_run *run = &r->run;
    char multiplies[4096], of_experts[4096], attention[4096];
    struct listing layer = { .length = 0 }, experts = { .length = 0 };
    list_layer(&layer);
    list_experts(&experts, run);
    rule_line(run, false, multiplies, sizeof multiplies);
    rule_line(run, true, of_experts, sizeof of_experts);
    (void)ng_attention_schedule_print(run->schedule, attention, sizeof attention);
    json_t *j = json_pack(
        "{s:s,s:s,s:s,s:I,s:I,s:s,s:s,s:s,s:s,s:s,s:f,s:f,s:o}", "schema", "ng.report/1", "op",
        "layer", "preset", run->shape->name, "layer", (json_int_t)run->number, "tokens",
        (json_int_t)run->tokens, "multiplies", multiplies, "of_experts", of_experts,
        "attention", attention, "parameters", layer.text, "experts", experts.text, "loading",
        r->loading, "seconds", seconds_of(run), "stages", stages_json(run, p));
    json_t *files = json_array();
    for (int i = 0; i < r->weights.n; i++)
        json_array_append_new(files, text_json(r->weights.path[i]));
    json_object_set_new(j, "weights", files);
    json_object_set_new(j, "seed", json_integer((json_int_t)r->cli.seed));
    json_object_set_new(j, "written", r->out ? text_json(r->out) : json_null());
    return j;
}

/* ---- The command. ---- */

static bool differs(const struct layer_run *run, const struct published *p)
{
    for (int i = 0; p && i < run->n_stages; i++)
        if (strcmp(p->digest[i], run->stage[i].digest) != 0)
            return true;
    return false;
}

static int finish(struct request *r)
{
    const struct published *p = r->check ? published_of(r) : NULL;
    int code = r->out ? array_stage(&r->staged, r->out, "y", &r->run.output) : 0;
    code = files_close(&r->staged, code);
    if (code)
        return code;
    if (r->cli.json) {
        const int failed = cli_print_json(report(r, p));
        if (failed)
            return failed;
    } else {
        if (!r->cli.quiet)
            print_head(r);
        print_stages(&r->run, p);
    }
    return differs(&r->run, p) ? EXIT_DIFFERS : EXIT_EQUAL;
}

static int run_request(struct request *r)
{
    int code = check_request(r);
    if (!code)
        code = cli_open(&r->cli);
    if (!code)
        code = load_input(r);
    if (!code)
        code = check_tokens(&r->run);
    if (!code)
        code = check_writable((const char *[]){ r->write_weights, r->out }, 2);
    const double began = seconds_now();
    if (!code)
        code = layer_load_weights(&r->cli, r->run.shape, r->run.number, &r->weights,
                                  r->write_weights, &r->staged, &r->file);
    r->loading = seconds_now() - began;
    r->run.weights = &r->file;
    if (!code)
        code = layer_run(&r->cli, &r->run);
    if (!code)
        code = finish(r);
    cli_close(&r->cli);
    return code;
}

static void release(struct request *r)
{
    io_array_free(&r->run.input);
    io_array_free(&r->run.output);
    st_free(&r->file);
    io_discard(&r->staged);
    ng_profile_free(r->owned);
    free(r);
}

int cmd_run_layer(int argc, char **argv)
{
    static const struct option long_options[] = {
        CLI_OPTIONS,
        { "preset", required_argument, NULL, OPT_PRESET },
        { "layer", required_argument, NULL, OPT_LAYER },
        { "weights", required_argument, NULL, OPT_WEIGHTS },
        { "write-weights", required_argument, NULL, OPT_WRITE_WEIGHTS },
        { "tokens", required_argument, NULL, OPT_TOKENS },
        { "input", required_argument, NULL, OPT_INPUT },
        { "profile", required_argument, NULL, OPT_PROFILE },
        { "schedule", required_argument, NULL, OPT_SCHEDULE },
        { "check", no_argument, NULL, OPT_CHECK },
        { 0 }
    };
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    r->cli = (struct cli){ .threads = 1, .max_report = 5 };
    r->run.tokens = 16;
    r->run.profile = ng_profile_find("trn3");
    r->run.schedule = ng_attention_find("trn-prefill");
    int code;
    if (cli_options(&r->cli, argc, argv,
                    &(struct cli_options){ CLI_SHORT "o:", long_options, help, take, r },
                    &code)) {
        code = cli_words("run layer", argv + optind, 0, 0, NULL);
        if (!code)
            code = run_request(r);
    }
    release(r);
    return code;
}
