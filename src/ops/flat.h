/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of a tensor one after another, in row-major logical order, whatever its strides: a
 * task's run of them to FP32 patterns, and FP32 patterns to a task's run.
 */
#ifndef NG_FLAT_H
#define NG_FLAT_H

#include "../dispatch.h"
#include "../internal.h"

enum {
    FLAT_RUN = 4096 /* the longest: enough to hide the executor; even, so that 4-bit codes in a
                       row are cut between bytes */
};

/* What is read: without scales and tags. */
struct flat_in {
    ng_tensor t;
    bool row;                           /* elements lie one after another */
    struct cast_job job;                /* to FP32 */
    const struct ng_cast_kernel *widen; /* NULL: the reference */
};
struct flat_in ng_flat_in(ng_ctx *ctx, const ng_tensor *t);
/* FP32 patterns of n elements from `first` on: where they lie, or in `buffer`. `offset`:
 * elements from t.data to a tensor like t that is read in its place. */
const uint32_t *ng_flat_read(const struct flat_in *in, int64_t offset, int64_t first, int64_t n,
                             uint32_t *buffer);

/* What is written. */
struct flat_out {
    const ng_tensor *t;
    bool row;
    struct cast_job job; /* from FP32 */
    const struct ng_cast_kernel *narrow;
    struct ng_stream words; /* stochastic rounding's */
    bool dry;               /* encode, write nothing */
    ng_status *found;       /* dry: the first error */
};
/* Checks the rounding, whose words may not lie in t. */
ng_status ng_flat_out(ng_ctx *ctx, const char *call, const char *name, const ng_tensor *t,
                      const char *tensor, const ng_cast *cast, struct ng_extent extent,
                      struct flat_out *out);
void ng_flat_write(const struct flat_out *out, int64_t first, int64_t n, const uint32_t *y);
/* Where element `first` lies, if FP32 patterns may be written there as they are: no rounding of
 * numbers and of the canonical NaN changes one; else NULL. */
uint32_t *ng_flat_place(const struct flat_out *out, int64_t first);
/* Could a NaN have no code, and be an error? Then a dry run comes first. */
bool ng_flat_may_fail(const struct flat_out *out);
/* Elements of 4 bits that do not lie in a row share bytes between runs: one thread then. */
bool ng_flat_shares_bytes(const struct flat_out *out);

#endif
