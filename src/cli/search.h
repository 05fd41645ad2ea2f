/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking for the rule that explains a difference, whatever the operation: every neighbouring
 * rule alone, then pairs, ranked by what they explain and break. An operation says which rules
 * there are and computes elements under them.
 */
#ifndef NG_CLI_SEARCH_H
#define NG_CLI_SEARCH_H

#include "explain.h"

/* One rule changed. kind, which and value are the operation's own. */
struct edit {
    int kind, which;
    int64_t value;
    char label[80];
};

/* None of them, one, or two. */
struct hypothesis {
    const struct edit *edit[2];
    int n;
};

/* The elements that are looked at, by numbers that the operation gives them. */
struct sample {
    int64_t *number;      /* differing ones, then equal ones */
    uint32_t *got, *want; /* the chip's codes, the oracle's */
    uint32_t *code;       /* room for those of a hypothesis */
    size_t differ, equal;
    bool all; /* there are no others */
};
bool sample_alloc(struct sample *s, size_t n);
void sample_free(struct sample *s);
/* One more element of confirm(): the chip's code, the oracle's, the hypothesis's. True: it is
 * the first that is left. */
bool finding_count(struct finding *f, uint64_t got, uint64_t want, uint64_t code);

enum {
    MAX_EDITS = 256
};

struct search {
    const struct cli *cli;
    void *of; /* of the functions */
    /* Codes of n elements under a hypothesis; false: the library refuses it. */
    bool (*evaluate)(void *of, const struct hypothesis *h, const int64_t *number, size_t n,
                     uint32_t *code);
    /* A fault that changes nearly every bit, so that it hides what another one explains. */
    bool (*hides_others)(const struct edit *e);
    /* A hypothesis on every element of the report: counts, and what is left. False: that would
     * take too long, or there is no memory for it. */
    bool (*confirm)(void *of, const struct hypothesis *h, struct finding *f);
    /* Where an element parts ways under a hypothesis; NULL: nobody can tell. */
    void (*divergence)(void *of, const struct hypothesis *h, int64_t number, char *text,
                       size_t bytes);
    /* Differing elements that a single rule, a pair, must explain one of before it is looked at
     * in full; SIZE_MAX: all elements cost as much as a few. */
    size_t first_look, pair_look;
    bool hide_always; /* hides_others() is asked even where a single rule does explain some */
    bool any;         /* evaluate() takes any elements of the sample, not only its first ones */
    struct edit edit[MAX_EDITS]; /* more usual ones first */
    size_t n_edits;
    size_t n_usual; /* the first ones; the others are tried where none of these explains
                       everything. 0: all */
};

/* How many those are. */
size_t search_usual(const struct search *x);
/* One more rule, unless it is there. */
__attribute__((format(printf, 5, 6))) void search_add(struct search *x, int kind, int which,
                                                      int64_t value, const char *format, ...);
/* Singles, then pairs where no single rule does all of it. False: out of memory. */
bool search_explain(struct search *x, struct sample *s, struct findings *out);
/* Of the sample's equal elements: how many change under each single rule. */
bool search_notice(struct search *x, struct sample *s, struct findings *out);

#endif
