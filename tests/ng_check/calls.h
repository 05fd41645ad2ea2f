/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Public calls with drawn operands: a context that has an ISA's kernels, with tasks in reverse
 * and a hostile control word, against a context of the reference alone. Operands and outputs
 * lie between unreadable pages; statuses, messages, outputs and the bytes around them must be
 * equal, operands untouched.
 */
#ifndef NG_CHECK_CALLS_H
#define NG_CHECK_CALLS_H

#include "ngc.h"

enum {
    CALLS_INPUTS = 64,
    CALLS_OUTPUTS = 8
};

/* Which side runs, or has run. */
enum {
    CALLS_REFERENCE,
    CALLS_KERNELS,
    CALLS_SIDES
};

struct calls {
    struct ngc_rng rng;
    int side;
    int inputs, outputs; /* how many are drawn */
};

/* An operand of values about 2^top and below, now and then specials, zeros, or anything. */
bool calls_values(struct calls *c, ng_format f, uint32_t rank, const int64_t *dim, int top,
                  ng_tensor *t);
/* Bytes for the caller to fill before it says that the operand is complete; NULL: no room. */
void *calls_bytes(struct calls *c, size_t bytes, size_t align);
void calls_filled(struct calls *c);
/* Scales of blocks of t along `axis`, e8m0 or ue4m3, as an operand of that many more. */
bool calls_scales(struct calls *c, ng_format f, uint32_t block, uint32_t axis, ng_tensor *t);
/* An output, of either side the same; calls_on() is the one of the side that runs. */
bool calls_output(struct calls *c, ng_format f, uint32_t rank, const int64_t *dim,
                  ng_tensor *t);
ng_tensor calls_on(const struct calls *c, const ng_tensor *t);
/* The same without a tensor. */
bool calls_output_bytes(struct calls *c, size_t bytes, size_t align, int *number);
void *calls_place(const struct calls *c, int number);
/* Codes that outputs begin with. */
void calls_begin(struct calls *c, const ng_tensor *t);

/* bf16, f32, f16; `none`: or none. */
ng_format calls_wide(struct calls *c, bool none);
ng_format calls_one(struct calls *c, const ng_format *f, uint32_t n);

/* A call that is checked. Its state is static memory that `draw` writes as a whole. */
struct calls_case {
    const char *name;
    bool (*draw)(struct calls *c);
    ng_status (*run)(struct calls *c, ng_ctx *ctx);
    void (*close)(struct calls *c); /* after a side has run, before its context goes; or NULL */
    void (*print)(void);            /* of a round that failed */
};

/* Each case with each ISA: run->rounds that end in NG_OK. */
void calls_walk(struct ngc *run, const char *group, const struct calls_case *cases, size_t n);

#endif
