/* SPDX-License-Identifier: Apache-2.0 */
#include "search.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

void search_add(struct search *x, int kind, int which, int64_t value, const char *format, ...)
{
    for (size_t i = 0; i < x->n_edits; i++)
        if (x->edit[i].kind == kind && x->edit[i].which == which && x->edit[i].value == value)
            return;
    if (x->n_edits == MAX_EDITS)
        return;
    struct edit *e = &x->edit[x->n_edits++];
    va_list args;
    *e = (struct edit){ .kind = kind, .which = which, .value = value };
    va_start(args, format);
    vsnprintf(e->label, sizeof e->label, format, args);
    va_end(args);
}

void sample_free(struct sample *s)
{
    free(s->number);
    free(s->got);
    free(s->want);
    free(s->code);
}

bool sample_alloc(struct sample *s, size_t n)
{
    s->number = malloc((n + 1) * sizeof *s->number);
    s->got = malloc((n + 1) * sizeof *s->got);
    s->want = malloc((n + 1) * sizeof *s->want);
    s->code = malloc((n + 1) * sizeof *s->code);
    return s->number && s->got && s->want && s->code;
}

bool finding_count(struct finding *f, uint64_t got, uint64_t want, uint64_t code)
{
    if (got != want) {
        f->of++;
        f->explains += code == got;
    } else {
        f->against++;
        f->breaks += code != want;
    }
    return code != got && !f->left[0];
}

struct score {
    struct hypothesis h;
    int64_t explains, breaks;
    size_t order; /* of the list: earlier is more usual */
};

static void count(const struct sample *s, size_t n_differ, struct score *r)
{
    r->explains = r->breaks = 0;
    for (size_t i = 0; i < n_differ; i++)
        r->explains += s->code[i] == s->got[i];
    for (size_t i = 0; i < s->equal; i++)
        r->breaks += s->code[s->differ + i] != s->want[s->differ + i];
}

/* True when the hypothesis can be evaluated and explains something. */
static bool look(const struct search *x, struct sample *s, struct score *r, size_t few,
                 int64_t *tried, int64_t *refused)
{
    const size_t all = s->differ + s->equal;
    if (few > s->differ)
        few = few == SIZE_MAX ? all : s->differ;
    if (!x->evaluate(x->of, &r->h, s->number, few, s->code)) {
        ++*refused;
        return false;
    }
    ++*tried;
    int64_t hits = 0;
    for (size_t i = 0; i < few && i < s->differ; i++)
        hits += s->code[i] == s->got[i];
    if (!hits || (few < all && !x->evaluate(x->of, &r->h, s->number, all, s->code)))
        return false;
    count(s, s->differ, r);
    return true;
}

static int by_merit(const void *pa, const void *pb)
{
    const struct score *a = pa, *b = pb;
    const int64_t ma = a->explains - a->breaks, mb = b->explains - b->breaks;
    if (ma != mb)
        return ma < mb ? 1 : -1;
    if (a->explains != b->explains)
        return a->explains < b->explains ? 1 : -1;
    if (a->h.n != b->h.n)
        return a->h.n - b->h.n;
    return a->order > b->order ? 1 : -1;
}

/* Edits [from, to) alone, behind the n scores that there are. */
static size_t look_at_singles(const struct search *x, struct sample *s, size_t from, size_t to,
                              struct score *score, size_t n, int64_t *tried, int64_t *refused)
{
    struct progress p;
    progress_begin(&p, x->cli, "explain", (int64_t)(to - from));
    for (size_t i = from; i < to; i++) {
        score[n] = (struct score){ .h = { { &x->edit[i], NULL }, 1 }, .order = i };
        n += look(x, s, &score[n], x->first_look, tried, refused);
        progress_at(&p, (int64_t)(i - from));
    }
    progress_end(&p);
    qsort(score, n, sizeof *score, by_merit);
    return n;
}

size_t search_usual(const struct search *x)
{
    return x->n_usual ? x->n_usual : x->n_edits;
}

static bool is_solved(const struct sample *s, const struct score *score, size_t n)
{
    return n && score[0].explains == (int64_t)s->differ && !score[0].breaks;
}

static bool same_question(const struct edit *a, const struct edit *b)
{
    return a == b || (a->kind == b->kind && a->which == b->which);
}

static bool is_among(const struct edit *e, const struct edit *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == e)
            return true;
    return false;
}

/* Elements that a rule alone gets wrong, `pair_look` at most: a pair with it that gets them
 * wrong as well is no better. None: it is not known. */
enum {
    LEFT = 8
};
struct left {
    int64_t number[LEFT];
    uint32_t got[LEFT];
    size_t n;
};

static struct left left_by(const struct search *x, struct sample *s, const struct edit *e)
{
    const struct hypothesis h = { { e, NULL }, 1 };
    struct left l = { .n = 0 };
    const size_t all = s->differ + s->equal;
    if (!x->any || !x->evaluate(x->of, &h, s->number, all, s->code))
        return l;
    for (size_t i = 0; i < all && l.n < LEFT && l.n < x->pair_look; i++)
        if (s->code[i] != s->got[i]) {
            l.number[l.n] = s->number[i];
            l.got[l.n++] = s->got[i];
        }
    return l;
}

static bool mends_any(const struct search *x, const struct left *l, const struct hypothesis *h)
{
    uint32_t code[LEFT];
    if (!l->n)
        return true;
    if (!x->evaluate(x->of, h, l->number, l->n, code))
        return true; /* look() counts it as refused */
    for (size_t i = 0; i < l->n; i++)
        if (code[i] == l->got[i])
            return true;
    return false;
}

/* Two rules at once: the best few singles, and what hides others, with every other edit. */
static size_t look_at_pairs(const struct search *x, struct sample *s, struct score *score,
                            size_t n, size_t room, int64_t *tried, int64_t *refused)
{
    enum {
        BEST = 4
    };
    const struct edit *first[MAX_EDITS];
    size_t n_first = 0;
    struct progress p;
    const size_t singles = n;
    const int64_t bar = n ? score[0].explains - score[0].breaks : 0;
    for (size_t b = 0; b < n && b < BEST; b++)
        first[n_first++] = score[b].h.edit[0];
    for (size_t i = 0; i < x->n_edits && (bar <= 0 || x->hide_always); i++)
        if (x->hides_others(&x->edit[i]) && !is_among(&x->edit[i], first, n_first))
            first[n_first++] = &x->edit[i];
    progress_begin(&p, x->cli, "explain, two rules", (int64_t)(n_first * x->n_edits));
    for (size_t b = 0; b < n_first; b++) {
        const struct left left =
            b < singles && b < BEST ? left_by(x, s, first[b]) : (struct left){ .n = 0 };
        for (size_t i = 0; i < x->n_edits && n < room; i++) {
            progress_at(&p, (int64_t)(b * x->n_edits + i));
            if (same_question(first[b], &x->edit[i]) || is_among(&x->edit[i], first, b))
                continue; /* the other way round the pair was tried */
            score[n] = (struct score){ .h = { { first[b], &x->edit[i] }, 2 },
                                       .order = singles + b * x->n_edits + i };
            if (!mends_any(x, &left, &score[n].h)) {
                ++*tried;
                continue;
            }
            if (look(x, s, &score[n], x->pair_look, tried, refused) &&
                score[n].explains - score[n].breaks > bar)
                n++;
        }
    }
    progress_end(&p);
    qsort(score, n, sizeof *score, by_merit);
    return n;
}

static void label_of(const struct hypothesis *h, char *text, size_t bytes)
{
    snprintf(text, bytes, "%.76s%s%.76s", h->edit[0]->label, h->n > 1 ? ", " : "",
             h->n > 1 ? h->edit[1]->label : "");
}

/*
 * What the report says of the best rules it says of every element, not of a sample: those that
 * seem to explain everything, as many as there is time for, or else the best one.
 */
static void confirm(const struct search *x, const struct score *score, struct findings *out)
{
    enum {
        CONFIRMED = 3
    };
    size_t n = findings_certain(out);
    if (n && out->all)
        return;
    if (!n && out->n && finding_is_close(&out->item[0]))
        n = 1;
    for (size_t i = 0; i < n && i < CONFIRMED; i++) {
        struct finding f = { .all = true }, *to = &out->item[i];
        if (!x->confirm(x->of, &score[i].h, &f))
            continue;
        memcpy(f.label, to->label, sizeof f.label);
        memcpy(f.divergence, to->divergence, sizeof f.divergence);
        *to = f;
    }
    /* those that hold first, in their order */
    for (size_t i = 0, done = 0; i < n; i++) {
        const struct finding f = out->item[i];
        if (!finding_is_certain(&f))
            continue;
        memmove(&out->item[done + 1], &out->item[done], (i - done) * sizeof f);
        out->item[done++] = f;
    }
}

static bool report(const struct search *x, const struct sample *s, const struct score *score,
                   size_t n, struct findings *out)
{
    enum {
        SHOWN = 12
    };
    out->n = n < SHOWN ? n : SHOWN;
    out->item = calloc(out->n + 1, sizeof *out->item);
    for (size_t i = 0; out->item && i < out->n; i++) {
        struct finding *f = &out->item[i];
        label_of(&score[i].h, f->label, sizeof f->label);
        f->explains = score[i].explains;
        f->breaks = score[i].breaks;
        f->of = (int64_t)s->differ;
        f->against = (int64_t)s->equal;
        f->all = s->all;
        if (i == 0 && x->divergence && s->differ)
            x->divergence(x->of, &score[i].h, s->number[0], f->divergence,
                          sizeof f->divergence);
    }
    out->differ = (int64_t)s->differ;
    out->equal = (int64_t)s->equal;
    out->all = s->all;
    for (size_t i = out->n; i < n && score[i].explains == out->differ && !score[i].breaks; i++)
        out->beyond++;
    if (out->item)
        confirm(x, score, out);
    return out->item != NULL;
}

bool search_explain(struct search *x, struct sample *s, struct findings *out)
{
    const size_t room = x->n_edits * 6 + 1;
    struct score *score = calloc(room, sizeof *score);
    if (!score)
        return false;
    const size_t usual = search_usual(x);
    size_t n = look_at_singles(x, s, 0, usual, score, 0, &out->tried, &out->refused);
    if (!is_solved(s, score, n))
        n = look_at_singles(x, s, usual, x->n_edits, score, n, &out->tried, &out->refused);
    if (!is_solved(s, score, n))
        n = look_at_pairs(x, s, score, n, room, &out->tried, &out->refused);
    const bool ok = report(x, s, score, n, out);
    free(score);
    return ok;
}

bool search_notice(struct search *x, struct sample *s, struct findings *out)
{
    out->item = calloc(x->n_edits + 1, sizeof *out->item);
    for (size_t i = 0; out->item && i < search_usual(x); i++) {
        struct score r = { .h = { { &x->edit[i], NULL }, 1 } };
        if (!x->evaluate(x->of, &r.h, s->number + s->differ, s->equal, s->code + s->differ))
            continue;
        count(s, 0, &r);
        struct finding *f = &out->item[out->n++];
        label_of(&r.h, f->label, sizeof f->label);
        f->explains = r.breaks;
        f->of = (int64_t)s->equal;
    }
    out->equal = (int64_t)s->equal;
    out->all = s->all;
    return out->item != NULL;
}

void findings_free(struct findings *f)
{
    free(f->item);
    *f = (struct findings){ .n = 0 };
}
