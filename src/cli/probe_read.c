/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which values give a unit's results: from the nearest profile, one parameter after another is
 * set to what makes more elements agree, and two at once where no single one does. Then every
 * other value of every parameter is tried against what was found.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "neighbours.h"
#include "probe.h"

/* One parameter changed: how many elements agree then, and whether any is another than without
 * the change. agree -1: refused. */
struct edit {
    ng_param param;
    int64_t value;
    int64_t agree;
    bool moves;
};

enum {
    MOST_EDITS = 512,
    NO_EDIT = MOST_EDITS,
    MOST_PAIRS = 4096,
    LOOKED_AT = 48 /* changes that a sample recommends */
};

struct probe {
    const struct cli *cli;
    struct one_case *c;
    ng_ctx **ctx; /* one for each worker, without executors of their own */
    size_t n_ctx;
    int64_t n;           /* elements of d */
    uint32_t *want;      /* what must come out */
    uint32_t *now;       /* what the profile that edits are made of gives */
    const ng_rule *rule; /* of the profile that edits are made of */
    struct edit edit[MOST_EDITS];
    size_t n_edits;
    int64_t right; /* of the sample that they were looked at by: what no change gives */
    atomic_llong tried;
    struct progress progress; /* elements that agree */
};

static void probe_close(struct probe *x)
{
    for (size_t i = 0; x && i < x->n_ctx; i++)
        ng_ctx_destroy(x->ctx[i]);
    if (x) {
        free(x->ctx);
        free(x->want);
        free(x->now);
    }
    free(x);
}

static struct probe *probe_open(const struct cli *cli, struct one_case *c)
{
    struct probe *x = calloc(1, sizeof *x);
    const size_t workers = cli->executor.parallel_for ? cli->executor.workers : 1;
    const ng_ctx_config config = { .size = sizeof config, .isa_mask = cli->isa_mask };
    if (!x)
        return NULL;
    x->cli = cli;
    x->c = c;
    x->n = count_of(&c->d.view);
    x->want = malloc((size_t)x->n * sizeof *x->want);
    x->now = malloc((size_t)x->n * sizeof *x->now);
    x->ctx = calloc(workers, sizeof(ng_ctx *));
    for (size_t i = 0; x->want && x->now && x->ctx && i < workers; i++) {
        if (ng_ctx_create(&config, &x->ctx[i]))
            break;
        x->n_ctx++;
    }
    if (x->n_ctx == workers)
        return x;
    probe_close(x);
    return NULL;
}

static const ng_rule *rule_of(const struct probe *x, const ng_profile *p)
{
    char message[400];
    return case_rule(x->c, p, message, sizeof message);
}

/* ---- One profile's results. ---- */

/* All of d under `profile`; false: refused, or out of memory. */
static bool compute(struct probe *x, size_t worker, const ng_profile *profile,
                    struct operand *out)
{
    struct one_case c = *x->c;
    c.profile = c.gemm.profile = profile;
    atomic_fetch_add(&x->tried, 1);
    return operand_alloc_like(out, &x->c->d, 0) &&
           case_compute(x->cli, x->ctx[worker], &c, out, false) == NG_OK;
}

struct result {
    int64_t agree; /* with the unit; -1: refused */
    bool moves;    /* differs from x->now */
};

static struct result look(struct probe *x, size_t worker, const ng_profile *profile)
{
    struct operand out;
    struct result r = { -1, false };
    if (compute(x, worker, profile, &out)) {
        r.agree = 0;
        for (int64_t i = 0; i < x->n; i++) {
            const uint32_t code = code_at(&out.view, i);
            r.agree += code == x->want[i];
            r.moves = r.moves || code != x->now[i];
        }
    }
    operand_free(&out);
    return r;
}

static int64_t agreeing(struct probe *x, const ng_profile *profile)
{
    return look(x, 0, profile).agree;
}

/* The profile with these edits, which the caller frees; NULL: there is none such. */
static ng_profile *edited(const struct probe *x, const ng_profile *base, const struct edit *e,
                          size_t n)
{
    ng_profile *p = ng_profile_copy(base);
    for (size_t i = 0; p && i < n; i++)
        if (!neighbour_set(p, rule_of(x, p), e[i].param, e[i].value)) {
            ng_profile_free(p);
            return NULL;
        }
    return p;
}

/* ---- Many at once. ---- */

/* A few elements. */
enum {
    FEW = 24,         /* for the many pairs */
    MOST_SAMPLE = 128 /* for single changes */
};
struct sample {
    int64_t number[2 * MOST_SAMPLE];
    size_t n;
};

/* Those whose codes are the unit's, or are not, spread over all such. */
static void add_sample(const struct probe *x, const uint32_t *code, bool right, int64_t most,
                       struct sample *s)
{
    int64_t total = 0, seen = 0, taken = 0;
    for (int64_t i = 0; i < x->n; i++)
        total += (code[i] == x->want[i]) == right;
    const int64_t take = total < most ? total : most;
    for (int64_t i = 0; i < x->n && taken < take; i++)
        if ((code[i] == x->want[i]) == right && seen++ * take / total == taken) {
            s->number[s->n++] = i;
            taken++;
        }
}

/* What a profile gives of them. */
static struct result look_at_sample(const struct probe *x, size_t worker,
                                    const ng_profile *profile, const struct sample *s)
{
    const struct one_case *c = x->c;
    ng_gemm_op op = c->gemm;
    struct result r = { 0, false };
    op.profile = profile;
    for (size_t i = 0; i < s->n; i++) {
        int64_t index[NG_MAX_RANK];
        uint32_t code;
        index_of(&c->d.view, s->number[i], index);
        if (ng_gemm_element(x->ctx[worker], &op, c->op == OP_DOT, &c->a.view, &c->b.view,
                            c->c.present ? &c->c.view : NULL, &c->d.view, index, NULL, &code))
            return (struct result){ -1, false };
        r.agree += code == x->want[s->number[i]];
        r.moves = r.moves || code != x->now[s->number[i]];
    }
    return r;
}

struct batch {
    struct probe *x;
    const ng_profile *base;
    struct edit (*edit)[2]; /* the second one of param NG_PARAM_COUNT: there is none */
    struct result *result;
    const struct sample *sample; /* or NULL: only what gives all of this is looked at */
    bool sample_only;            /* the results are of the sample */
};

static void try_one(void *arg, size_t i, size_t worker)
{
    struct batch *b = arg;
    const size_t n = b->edit[i][1].param == NG_PARAM_COUNT ? 1 : 2;
    ng_profile *p = edited(b->x, b->base, b->edit[i], n);
    struct result r = { -1, false };
    if (p && b->sample)
        r = look_at_sample(b->x, worker, p, b->sample);
    if (p && !b->sample_only)
        r = !b->sample || r.agree == (int64_t)b->sample->n ? look(b->x, worker, p)
                                                           : (struct result){ -1, false };
    b->result[i] = r;
    ng_profile_free(p);
}

static void try_all(struct batch *b, size_t n)
{
    cli_for_all(b->x->cli, n, try_one, b);
}

static void add_edit(void *of, ng_param p, int64_t value, const char *note)
{
    struct probe *x = of;
    (void)note;
    for (size_t i = 0; i < x->n_edits; i++)
        if (x->edit[i].param == p && x->edit[i].value == value)
            return;
    if (x->n_edits < MOST_EDITS)
        x->edit[x->n_edits++] = (struct edit){ p, value, -1, false };
}

/* NaN codes: those of devices, and the one that the unit wrote. They are the accumulator's only
 * where nothing is rounded behind it. */
static void add_nan_codes(struct probe *x)
{
    static const uint32_t f32[] = { 0x7FC00000, 0x7FFFFFFF, 0xFFC00000 },
                          f16[] = { 0x7E00, 0x7FFF, 0xFE00 };
    const ng_format f = x->c->d.view.format;
    const ng_param p = f == NG_F32 ? NG_PARAM_NAN_F32 : NG_PARAM_NAN_F16;
    const int32_t now = x->rule->set[p].value;
    if ((f != NG_F32 && f != NG_F16) || param_is_idle(x->rule, p, x->c))
        return;
    for (size_t i = 0; i < 3; i++)
        if ((int32_t)(f == NG_F32 ? f32 : f16)[i] != now)
            add_edit(x, p, (int32_t)(f == NG_F32 ? f32 : f16)[i], "");
    for (int64_t i = 0; i < x->n; i++) {
        ng_value v;
        (void)ng_decode(f, x->want[i], &v);
        if (v.cls == NG_CLASS_NAN && (int32_t)x->want[i] != now) {
            add_edit(x, p, (int32_t)x->want[i], "");
            return;
        }
    }
}

/* Every single change of `base`: what each gives, of everything or (`few`) of a sample. */
static bool look_around(struct probe *x, const ng_profile *base, bool few)
{
    struct sample sample = { .n = 0 };
    struct edit(*one)[2] = malloc(MOST_EDITS * sizeof *one);
    struct result *result = malloc(MOST_EDITS * sizeof *result);
    struct operand now = { .present = false };
    const bool ok = one && result && compute(x, 0, base, &now);
    for (int64_t i = 0; ok && i < x->n; i++)
        x->now[i] = code_at(&now.view, i);
    operand_free(&now);
    x->rule = rule_of(x, base);
    x->n_edits = 0;
    if (ok) {
        each_neighbour(x->rule, x->c, REACH_WIDE, add_edit, x);
        add_nan_codes(x);
        for (size_t i = 0; i < x->n_edits; i++) {
            one[i][0] = x->edit[i];
            one[i][1].param = NG_PARAM_COUNT;
        }
        add_sample(x, x->now, false, MOST_SAMPLE, &sample);
        const size_t wrong = sample.n;
        add_sample(x, x->now, true, MOST_SAMPLE, &sample);
        x->right = (int64_t)(sample.n - wrong);
        try_all(&(struct batch){ x, base, one, result, few ? &sample : NULL, few }, x->n_edits);
        for (size_t i = 0; i < x->n_edits; i++) {
            x->edit[i].agree = result[i].agree;
            x->edit[i].moves = result[i].moves;
        }
    }
    free(one);
    free(result);
    return ok;
}

/* ---- The search. ---- */

static int larger_first(int64_t a, int64_t b)
{
    return a < b ? 1 : a > b ? -1 : 0;
}

/* Then in the order of the parameters: the same everywhere. */
static int by_agreement(const void *pa, const void *pb)
{
    const struct edit *a = pa, *b = pb;
    if (a->agree != b->agree)
        return larger_first(a->agree, b->agree);
    return a->param != b->param ? (int)a->param - (int)b->param
                                : larger_first(b->value, a->value);
}

/* What a sample says is better, best first; each is kept if it is good beside those kept
 * already, by everything. True: the profile is better now. */
static bool take_better(struct probe *x, ng_profile **profile, int64_t *agree)
{
    const int64_t before = *agree;
    bool taken[NG_PARAM_COUNT] = { false };
    size_t looked = 0;
    qsort(x->edit, x->n_edits, sizeof *x->edit, by_agreement);
    for (size_t i = 0; i < x->n_edits && x->edit[i].agree > x->right && looked < LOOKED_AT;
         i++) {
        const struct edit *e = &x->edit[i];
        if (taken[e->param])
            continue;
        ng_profile *p = edited(x, *profile, e, 1);
        const int64_t now = p ? agreeing(x, p) : -1;
        looked++;
        if (now > *agree) {
            ng_profile_free(*profile);
            *profile = p;
            *agree = now;
            taken[e->param] = true;
        } else {
            ng_profile_free(p);
        }
    }
    return *agree > before;
}

/* Two changes, and what they give; `order`: of looking at them. */
struct two {
    struct edit edit[2];
    int64_t agree;
    size_t order;
};

static int by_gain(const void *pa, const void *pb)
{
    const struct two *a = pa, *b = pb;
    return a->agree != b->agree ? larger_first(a->agree, b->agree)
                                : larger_first((int64_t)b->order, (int64_t)a->order);
}

/* Of the changes that move anything, those that alone cost least with every other. */
static size_t list_pairs(struct probe *x, struct edit (*two)[2])
{
    enum {
        FIRST = 16
    };
    size_t n = 0, first = 0;
    qsort(x->edit, x->n_edits, sizeof *x->edit, by_agreement);
    for (size_t i = 0; i < x->n_edits && first < FIRST; i++) {
        if (!x->edit[i].moves)
            continue;
        first++;
        for (size_t k = i + 1; k < x->n_edits && n < MOST_PAIRS; k++)
            if (x->edit[k].moves && x->edit[i].param != x->edit[k].param) {
                two[n][0] = x->edit[i];
                two[n++][1] = x->edit[k];
            }
    }
    return n;
}

/*
 * Pairs that give more than `agree`, best first; their number. look_around() came before. A few
 * elements, right and wrong ones, say which pairs are worth a look at all.
 */
static size_t rank_pairs(struct probe *x, const ng_profile *base, int64_t agree,
                         struct two *best, size_t room)
{
    struct edit(*two)[2] = malloc(MOST_PAIRS * sizeof *two);
    struct result *result = malloc(MOST_PAIRS * sizeof *result);
    struct two *all = malloc(MOST_PAIRS * sizeof *all);
    const bool ok = two && result && all;
    struct sample sample = { .n = 0 };
    size_t n = ok ? list_pairs(x, two) : 0, found = 0;
    add_sample(x, x->now, false, FEW, &sample);
    add_sample(x, x->now, true, FEW, &sample);
    try_all(&(struct batch){ x, base, two, result, &sample, true }, n);
    for (size_t i = 0; i < n; i++)
        all[i] = (struct two){ { two[i][0], two[i][1] }, result[i].agree, i };
    if (n)
        qsort(all, n, sizeof *all, by_gain);
    n = n < LOOKED_AT ? n : LOOKED_AT;
    for (size_t i = 0; i < n; i++)
        memcpy(two[i], all[i].edit, sizeof two[i]);
    try_all(&(struct batch){ x, base, two, result, NULL, false }, n);
    for (size_t i = 0; i < n; i++)
        if (result[i].agree > agree) {
            all[found] = all[i];
            all[found++].agree = result[i].agree;
        }
    if (found)
        qsort(all, found, sizeof *all, by_gain);
    found = found < room ? found : room;
    for (size_t i = 0; i < found; i++)
        best[i] = all[i];
    free(two);
    free(result);
    free(all);
    return found;
}

static bool take_pair(struct probe *x, ng_profile **profile, int64_t *agree)
{
    struct two best;
    ng_profile *p =
        rank_pairs(x, *profile, *agree, &best, 1) ? edited(x, *profile, best.edit, 2) : NULL;
    if (!p)
        return false;
    ng_profile_free(*profile);
    *profile = p;
    *agree = best.agree;
    return true;
}

struct start {
    const ng_profile *profile;
    int64_t agree;
    size_t order;
};

static int by_start(const void *pa, const void *pb)
{
    const struct start *a = pa, *b = pb;
    return a->agree != b->agree ? larger_first(a->agree, b->agree)
                                : larger_first((int64_t)b->order, (int64_t)a->order);
}

/* Profiles that take the operands: one that gives everything as it stands, or else the case's
 * own, then the built-in ones, nearest first. Their number. */
static size_t list_starts(struct probe *x, struct start *start, size_t room)
{
    size_t n = 0;
    const ng_profile *own = x->c->profile;
    const int64_t as_is = rule_of(x, own) ? agreeing(x, own) : -1;
    if (as_is >= 0)
        start[n++] = (struct start){ own, as_is, 0 };
    const size_t first = n;
    for (size_t i = 0; ng_profile_at(i) && n < room; i++) {
        const ng_profile *p = ng_profile_at(i);
        const int64_t agree = p != own && rule_of(x, p) ? agreeing(x, p) : -1;
        if (agree >= 0)
            start[n++] = (struct start){ p, agree, i };
    }
    qsort(start + first, n - first, sizeof *start, by_start);
    if (first && as_is < x->n && n > first && start[first].agree == x->n) {
        const struct start other = start[0];
        start[0] = start[first];
        start[first] = other;
    }
    return n;
}

/* As far as it goes from `p`, which it takes; kept where that is further than before. False:
 * out of memory. */
static bool climb(struct probe *x, const struct start *start, ng_profile *p, int64_t agree,
                  struct probe_findings *out)
{
    bool ok = p && look_around(x, p, true);
    progress_at(&x->progress, agree);
    while (ok && agree < x->n && (take_better(x, &p, &agree) || take_pair(x, &p, &agree))) {
        progress_at(&x->progress, agree);
        ok = look_around(x, p, true);
    }
    if (!ok || agree <= out->as_read) {
        ng_profile_free(p);
        return ok;
    }
    ng_profile_free(out->profile);
    out->profile = p;
    out->start = start->profile;
    out->as_started = start->agree;
    out->as_read = agree;
    return true;
}

/* What is left of one element in a thousand is something else than a wrong start. */
static bool is_near(const struct probe *x, const struct probe_findings *out)
{
    return out->as_read >= x->n - 1 - x->n / 1000;
}

/* From one start after another, until one gives everything, or nearly; then with two changes at
 * once from the first one, where single ones led astray. */
static bool search(struct probe *x, const struct start *start, size_t n,
                   struct probe_findings *out)
{
    enum {
        STARTS = 5,
        PAIRS = 6
    };
    struct two best[PAIRS];
    size_t pairs = 0;
    bool ok = true;
    out->as_read = -1;
    for (size_t i = 0; ok && i < n && i < STARTS && !is_near(x, out); i++)
        ok = climb(x, &start[i], ng_profile_copy(start[i].profile), start[i].agree, out);
    if (ok && !is_near(x, out)) {
        ok = look_around(x, start[0].profile, true);
        pairs = rank_pairs(x, start[0].profile, start[0].agree, best, PAIRS);
    }
    for (size_t i = 0; ok && i < pairs && !is_near(x, out); i++)
        ok = climb(x, &start[0], edited(x, start[0].profile, best[i].edit, 2), best[i].agree,
                   out);
    return ok && look_around(x, out->profile, false);
}

/* ---- What was found. ---- */

static void list_changes(const struct probe *x, struct probe_findings *out)
{
    const ng_rule *from = rule_of(x, out->start);
    for (int p = 0; p < NG_PARAM_COUNT; p++)
        if (!param_is_idle(out->rule, (ng_param)p, x->c) &&
            from->set[p].value != out->rule->set[p].value)
            out->change[out->n_changes++] =
                (struct probe_change){ (ng_param)p, from->set[p].value,
                                       out->rule->set[p].value };
}

/* Elements that a change alone takes from the unit's. */
static bool left_under(struct probe *x, const ng_profile *base, const struct edit *e,
                       struct sample *left)
{
    uint32_t *code = malloc((size_t)x->n * sizeof *code);
    ng_profile *p = edited(x, base, e, 1);
    struct operand out = { .present = false };
    const bool ok = code && p && compute(x, 0, p, &out);
    for (int64_t i = 0; ok && i < x->n; i++) /* what nothing gives says nothing here */
        code[i] = x->now[i] == x->want[i] ? code_at(&out.view, i) : x->want[i];
    left->n = 0;
    if (ok)
        add_sample(x, code, false, FEW, left);
    operand_free(&out);
    ng_profile_free(p);
    free(code);
    return ok;
}

/*
 * Values that few elements speak against, each with every change of another parameter: where
 * the two give as much as what was found, the first is not told from it.
 */
static bool find_joint(struct probe *x, const struct probe_findings *out, size_t *joint)
{
    const int64_t few = x->n / 100 + 4;
    struct edit(*two)[2] = malloc(MOST_EDITS * sizeof *two);
    struct result *result = malloc(MOST_EDITS * sizeof *result);
    bool ok = two && result;
    for (size_t i = 0; ok && i < x->n_edits; i++) {
        const struct edit *e = &x->edit[i];
        size_t from[MOST_EDITS], n = 0;
        struct sample left;
        joint[i] = NO_EDIT;
        if (e->agree < 0 || e->agree == out->as_read || e->agree < out->as_read - few)
            continue;
        ok = left_under(x, out->profile, e, &left);
        for (size_t k = 0; ok && k < x->n_edits; k++)
            if (x->edit[k].param != e->param && x->edit[k].agree >= 0) {
                two[n][0] = *e;
                two[n][1] = x->edit[k];
                from[n++] = k;
            }
        try_all(&(struct batch){ x, out->profile, two, result, &left, false }, n);
        for (size_t k = n; k--;)
            if (result[k].agree >= out->as_read)
                joint[i] = from[k];
    }
    free(two);
    free(result);
    return ok;
}

/* A profile that gives everything too but has another value of a parameter, or (of another
 * family) none: the data do not decide it. */
static const ng_profile *elsewhere(const struct probe *x, const struct probe_findings *out,
                                   ng_param p)
{
    const ng_setting *set = out->rule->set;
    for (size_t i = 0; i < out->n_also; i++) {
        const ng_setting *other = rule_of(x, out->also[i])->set;
        if (other[NG_PARAM_FAMILY].value != set[NG_PARAM_FAMILY].value ||
            other[p].value != set[p].value)
            return out->also[i];
    }
    return NULL;
}

/* look_around() came last: every other value against the profile found. */
static bool list_params(struct probe *x, struct probe_findings *out)
{
    size_t joint[MOST_EDITS];
    if (!find_joint(x, out, joint))
        return false;
    for (int p = 0; p < NG_PARAM_COUNT; p++) {
        struct probe_param *q = &out->param[out->n_params];
        *q = (struct probe_param){ .param = (ng_param)p,
                                   .value = out->rule->set[p].value,
                                   .elsewhere = elsewhere(x, out, (ng_param)p) };
        for (size_t i = 0; i < x->n_edits; i++) {
            const struct edit *e = &x->edit[i];
            if (e->param != (ng_param)p)
                continue;
            q->refused += e->agree < 0;
            if (e->agree < 0 || q->n_others == PROBE_MOST_VALUES)
                continue;
            struct probe_other *o = &q->other[q->n_others++];
            *o = (struct probe_other){ .value = e->value,
                                       .differ = out->as_read - e->agree,
                                       .with = NG_PARAM_COUNT };
            if (joint[i] != NO_EDIT) {
                o->with = x->edit[joint[i]].param;
                o->with_value = x->edit[joint[i]].value;
            }
            q->n_open += probe_is_open(o);
        }
        out->n_params += q->n_others || q->refused;
    }
    return true;
}

/* Products of an element that are not zero: the fewer, the easier to read. */
static int64_t terms_of(const struct probe *x, int64_t number)
{
    const ng_tensor *a = &x->c->a.view, *b = &x->c->b.view;
    int64_t at[NG_MAX_RANK], ia[NG_MAX_RANK], ib[NG_MAX_RANK], n = 0;
    const int64_t k = a->dim[a->rank - 1];
    index_of(&x->c->d.view, number, at);
    memcpy(ia, at, sizeof ia);
    memcpy(ib, at, sizeof ib);
    const uint32_t k_of_b = x->c->op == OP_GEMM ? b->rank - 2 : b->rank - 1;
    for (int64_t i = 0; i < k; i++) {
        ng_value va, vb;
        ia[a->rank - 1] = ib[k_of_b] = i;
        (void)ng_decode(a->format, ng_tensor_get(a, ia), &va);
        (void)ng_decode(b->format, ng_tensor_get(b, ib), &vb);
        n += (va.cls != NG_CLASS_FINITE || va.sig) && (vb.cls != NG_CLASS_FINITE || vb.sig);
    }
    return n;
}

static bool find_left(struct probe *x, struct probe_findings *out)
{
    struct operand made;
    int64_t fewest = INT64_MAX;
    const bool ok = compute(x, 0, out->profile, &made);
    const bool sparse = x->c->a.view.sparse || x->c->b.view.sparse;
    for (int64_t i = 0; ok && i < x->n; i++) {
        const uint32_t code = code_at(&made.view, i);
        const int64_t terms = code == x->want[i] ? INT64_MAX : sparse ? 0 : terms_of(x, i);
        if (terms >= fewest)
            continue;
        fewest = terms;
        out->left = i;
        out->got = x->want[i];
        out->want = code;
    }
    operand_free(&made);
    return ok;
}

static int read_by(struct probe *x, struct probe_findings *out)
{
    struct start start[64];
    const size_t n = list_starts(x, start, sizeof start / sizeof start[0]);
    if (!n)
        return cli_refused(x->cli, case_compute(x->cli, x->cli->ctx, x->c, &x->c->d, false),
                           "");
    out->elements = x->n;
    for (size_t i = 1; i < n && out->n_also < PROBE_MOST_ALSO; i++)
        if (start[i].agree == x->n)
            out->also[out->n_also++] = start[i].profile;
    progress_begin(&x->progress, x->cli, "probe, elements that agree", x->n);
    const bool ok = search(x, start, n, out);
    progress_end(&x->progress);
    if (!ok)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    out->rule = rule_of(x, out->profile);
    list_changes(x, out);
    if (!list_params(x, out))
        return cli_fail(EXIT_INTERNAL, "out of memory");
    if (out->as_read < x->n && !find_left(x, out))
        return cli_fail(EXIT_INTERNAL, "out of memory");
    out->tried = atomic_load(&x->tried);
    return 0;
}

int probe_read(const struct cli *cli, struct one_case *c, struct probe_findings *out)
{
    struct probe *x = probe_open(cli, c);
    *out = (struct probe_findings){ .left = -1 };
    if (!x)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    for (int64_t i = 0; i < x->n; i++)
        x->want[i] = code_at(&c->d.view, i);
    const int code = read_by(x, out);
    probe_close(x);
    return code;
}

/* ---- What more rows would tell. ---- */

bool probe_is_open(const struct probe_other *o)
{
    return !o->differ || o->with != NG_PARAM_COUNT;
}

size_t probe_count_open(const struct probe_findings *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_params; i++)
        n += f->param[i].n_open;
    return n;
}

struct telling {
    struct probe *x;
    const ng_profile *profile;
    struct edit (*edit)[2];
    bool *tells;
    atomic_bool failed;
};

static void tell_one(void *arg, size_t i, size_t worker)
{
    struct telling *t = arg;
    struct operand out = { .present = false };
    const int64_t rows = t->x->c->d.view.dim[0], columns = t->x->c->d.view.dim[1];
    ng_profile *p =
        edited(t->x, t->profile, t->edit[i], t->edit[i][1].param == NG_PARAM_COUNT ? 1 : 2);
    if (!p || !compute(t->x, worker, p, &out))
        atomic_store(&t->failed, true);
    for (int64_t k = 0; !t->failed && k < rows * columns; k++)
        if (code_at(&out.view, k) != t->x->want[k])
            t->tells[(int64_t)i * rows + k / columns] = true;
    operand_free(&out);
    ng_profile_free(p);
}

int probe_tell(const struct cli *cli, struct one_case *c, const struct probe_findings *open,
               bool *tells)
{
    struct edit edit[MOST_EDITS][2];
    struct probe *x = probe_open(cli, c);
    size_t n = 0;
    if (!x || case_compute(cli, cli->ctx, c, &c->d, false)) {
        probe_close(x);
        return cli_fail(EXIT_INTERNAL, "out of memory");
    }
    for (int64_t i = 0; i < x->n; i++)
        x->want[i] = code_at(&c->d.view, i);
    for (size_t i = 0; i < open->n_params; i++)
        for (size_t k = 0; k < open->param[i].n_others && n < MOST_EDITS; k++) {
            const struct probe_other *o = &open->param[i].other[k];
            if (!probe_is_open(o))
                continue;
            edit[n][0] = (struct edit){ .param = open->param[i].param, .value = o->value };
            edit[n][1] = (struct edit){ .param = o->with, .value = o->with_value };
            n++;
        }
    struct telling t = { x, open->profile, edit, tells, false };
    cli_for_all(cli, n, tell_one, &t);
    probe_close(x);
    return t.failed ? cli_fail(EXIT_INTERNAL, "out of memory") : 0;
}

int probe_foresee(const struct cli *cli, struct one_case *c, struct probe_findings *out)
{
    const ng_status s = case_compute(cli, cli->ctx, c, &c->d, false);
    *out = (struct probe_findings){ .left = -1 };
    return s ? cli_refused(cli, s, "") : probe_read(cli, c, out);
}

void probe_findings_free(struct probe_findings *f)
{
    ng_profile_free(f->profile);
    *f = (struct probe_findings){ .left = -1 };
}
