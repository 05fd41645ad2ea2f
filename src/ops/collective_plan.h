/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a chunk's sums as a list: what a stack machine does for a run of elements.
 * Numerics: docs/numerics.md, section 11.12.
 */
#ifndef NG_COLLECTIVE_PLAN_H
#define NG_COLLECTIVE_PLAN_H

#include "../dispatch.h"
#include "../internal.h"

/* A step: a rank, whose term is pushed, or one of these. */
enum {
    PLAN_ADD = -1,   /* the last two become one */
    PLAN_ROUND = -2, /* the last goes into the wire's format */
    PLAN_OPEN = -3,  /* a sum begins, and ends: for text */
    PLAN_CLOSE = -4
};

struct reduce_plan {
    int32_t *step; /* room for ng_plan_room(), or NULL: only counted */
    int64_t n;
    int64_t depth; /* terms that are there at once, at most */
};

/* Does the algorithm do so many ranks? And is op->order one of theirs? */
ng_status ng_plan_check(ng_ctx *ctx, const struct reduce_job *j);
/* Is it another one for another chunk? */
bool ng_plan_has_chunks(const struct reduce_job *j);
/* Steps of a plan, at most. */
int64_t ng_plan_room(int64_t ranks);
void ng_plan_build(const struct reduce_job *j, int64_t chunk, struct reduce_plan *p);
/* As text; its length, as snprintf has it. */
size_t ng_plan_print(const struct reduce_plan *p, char *buffer, size_t bytes);

#endif
