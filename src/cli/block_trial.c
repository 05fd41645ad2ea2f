/* SPDX-License-Identifier: Apache-2.0 */
/* Trying variants of a case against its dump. block.h. */
#include <stdlib.h>
#include <string.h>

#include "block.h"

static int block_trial_open(struct block_trial *t, const struct cli *cli,
                            const struct one_case *c, const struct operand *want,
                            struct findings *out)
{
    *t = (struct block_trial){ .cli = cli, .c = c, .want = want, .out = out };
    for (size_t i = 0; i < c->block->kind->n; i++)
        for (int64_t k = 0; want[i].present && k < block_elements(&want[i]); k++)
            *(block_code(&c->block->t[i], k) == block_code(&want[i], k) ? &out->equal
                                                                        : &out->differ) += 1;
    return block_alloc(c, t->made);
}

static void block_trial_close(struct block_trial *t)
{
    block_free_results(t->made);
}

struct finding *block_finding(struct findings *out, const char *label)
{
    if (!(out->n & (out->n - 1))) { /* full: 0, 1, 2, 4, .. */
        const size_t room = out->n ? 2 * out->n : 1;
        struct finding *more = realloc(out->item, room * sizeof *more);
        if (!more)
            return NULL;
        out->item = more;
    }
    struct finding *f = &out->item[out->n++];
    *f = (struct finding){ .explains = 0 };
    snprintf(f->label, sizeof f->label, "%s", label);
    out->tried++;
    return f;
}

void block_judge(struct block_trial *t, const char *label)
{
    const struct block *b = t->c->block;
    struct finding *f = block_finding(t->out, label);
    if (!f)
        return;
    f->of = t->out->differ;
    f->against = t->out->equal;
    for (size_t i = 0; i < b->kind->n; i++)
        for (int64_t k = 0; t->want[i].present && k < block_elements(&t->want[i]); k++) {
            const uint64_t got = block_code(&b->t[i], k);
            const bool same = block_code(&t->made[i], k) == got;
            if (got == block_code(&t->want[i], k))
                f->breaks += !same;
            else
                f->explains += same;
        }
}

void block_try(struct block_trial *t, const struct one_case *variant, const char *label)
{
    if (t->c->block->kind->compute(t->cli->ctx, variant, t->made))
        t->out->refused++;
    else
        block_judge(t, label);
}

int block_explain(const struct cli *cli, const struct one_case *c, const struct operand *want,
                  struct findings *out,
                  void (*tries)(struct block_trial *t, struct one_case *v))
{
    struct block_trial t;
    const int code = block_trial_open(&t, cli, c, want, out);
    struct block b = *c->block;
    struct one_case v = *c;
    if (code)
        return code;
    v.block = &b;
    tries(&t, &v);
    block_trial_close(&t);
    return 0;
}
