/* SPDX-License-Identifier: Apache-2.0 */
/* What the rooms of the library share: the context, messages, checked views of tensors. */
#ifndef NG_INTERNAL_H
#define NG_INTERNAL_H

#include "ng/convert.h"
#include "ng/ctx.h"
#include "ng/elementary.h"
#include "ng/tensor.h"

/* Write the message and return the status, so that a check is one line. */
__attribute__((format(printf, 3, 4))) ng_status ng_fail(ng_ctx *ctx, ng_status status,
                                                        const char *format, ...);
/* Begin a public call: NG_ERR_ARGUMENT for a NULL context; clears the message. */
ng_status ng_begin(ng_ctx *ctx);
uint32_t ng_ctx_isa_mask(const ng_ctx *ctx);
/* Of those, the ones that this CPU has. */
uint32_t ng_ctx_isas(const ng_ctx *ctx);
/* Those whose multiplies may be left to the next ISA's: ng_pick_gemm(). */
uint32_t ng_ctx_slow(const ng_ctx *ctx);
/* ng_cpu_asks_second(): what kernels' jobs are told. */
bool ng_ctx_asks_second(const ng_ctx *ctx);
void ng_ctx_note_kernel(ng_ctx *ctx, const char *name, ng_tiles tiles);
/* Is anybody told of choices? What a call made of several names its stages; NULL: their own
 * names. */
bool ng_ctx_watched(const ng_ctx *ctx);
void ng_ctx_stage(ng_ctx *ctx, const char *stage);
void ng_ctx_tell(ng_ctx *ctx, const ng_kernel_choice *choice);

/* One block of arena memory for the running call, 64-byte aligned; freed by the next call. */
ng_status ng_arena_claim(ng_ctx *ctx, size_t bytes, void **block);
/* Does the caller's scratch, if there is one, have as many? */
bool ng_arena_may_hold(const ng_ctx *ctx, size_t bytes);

/*
 * Memory of a call made of calls that use the arena: piece i of at most NG_PIECES, 64-byte
 * aligned, bytes > 0; NULL: the allocator has none. It is the last such call's i-th piece if
 * that was no smaller and not twice as large: fresh pages cost a call of few tokens more than
 * its activations do. At the end the first n stay for the next call, the others are given back.
 */
enum {
    NG_PIECES = 64
};
void *ng_piece(ng_ctx *ctx, int i, size_t bytes);
void ng_pieces_keep(ng_ctx *ctx, int n);

/* Run body over [0, n) on the context's executor, or here. */
size_t ng_workers(const ng_ctx *ctx);
ng_allocator ng_ctx_allocator(const ng_ctx *ctx);
void ng_parallel(ng_ctx *ctx, size_t n, void (*body)(void *arg, size_t i, size_t worker),
                 void *arg);

/* ---- Tensors. ---- */

/* The bytes that a view touches, as offsets from `data`: [low, high). */
struct ng_extent {
    int64_t low, high;
};

/*
 * Check one operand as every call must: pointer, format, rank, dims of at least 1, strides that
 * do not overflow, 4-bit rows on bytes, and for outputs that no two elements share a place.
 * `name` is how the message calls it.
 */
ng_status ng_check_tensor(ng_ctx *ctx, const char *call, const char *name, const ng_tensor *t,
                          bool output, struct ng_extent *extent);
/* Same for the block scales of a tensor that has some. */
ng_status ng_check_scale(ng_ctx *ctx, const char *call, const char *name, const ng_tensor *t,
                         bool output, struct ng_extent *extent);
/* Do the two byte ranges meet? */
bool ng_overlap(const void *a, struct ng_extent ea, const void *b, struct ng_extent eb);
bool ng_same_view(const ng_tensor *a, const ng_tensor *b);
ng_status ng_check_same_shape(ng_ctx *ctx, const char *call, const char *na, const ng_tensor *a,
                              const char *nb, const ng_tensor *b);

/* ---- Random words: docs/numerics.md, sections 7 and 11.7. ---- */

struct ng_random_kernel;
/* A checked source for rows of `columns` elements. Read only: any thread may draw from it. */
struct ng_stream {
    ng_random source;
    int64_t columns;
    const struct ng_random_kernel *kernel; /* NULL: the reference's code */
};
/* Check a source that must give `words` words. `name` is how messages call it. */
ng_status ng_stream_open(ng_ctx *ctx, const char *call, const char *name,
                         const ng_random *source, int64_t columns, int64_t words,
                         struct ng_stream *s);
/* Words [first, first + count), anywhere in the stream. */
void ng_stream_words(const struct ng_stream *s, int64_t first, int64_t count, uint32_t *out);
/* Where word `first` and those after it lie, or NULL for generators. */
const uint32_t *ng_stream_direct(const struct ng_stream *s, int64_t first);
uint32_t ng_stream_word(const struct ng_stream *s, int64_t i);
/* Does the source's memory meet these bytes? */
bool ng_stream_overlaps(const struct ng_stream *s, const void *data, struct ng_extent extent);

/* A rounding into `to`; if it is stochastic, its stream: `words` words, rows of `columns`. */
ng_status ng_check_cast(ng_ctx *ctx, const char *call, const char *name, const ng_cast *cast,
                        const ng_format_spec *to, int64_t columns, int64_t words,
                        struct ng_stream *s);

/* ---- Elementary functions: docs/numerics.md, sections 8 and 11.8. ---- */

/* SLEEF's exp, exp2, log or tanh of an FP32 pattern, whatever the control word; and can this
 * CPU run it? A NaN may have any payload. */
uint32_t ng_sleef(ng_function f, uint32_t x);
bool ng_sleef_available(void);

/* ---- Tags of a sparse operand (ops/tags.c): what every call checks of them. ---- */

/* kept, group, tags, and the store that they are in. */
ng_status ng_check_sparse(ng_ctx *ctx, const char *call, const char *name, const ng_sparse *sp);
/* The stride between `lines` lines of `slots` tags. */
ng_status ng_check_tag_stride(ng_ctx *ctx, const char *call, const char *name,
                              const ng_sparse *sp, int64_t lines, int64_t slots);
/* The tags themselves: each below the group; do they ascend in every group? */
ng_status ng_check_tags(ng_ctx *ctx, const char *call, const char *name, const ng_sparse *sp,
                        int64_t lines, int64_t slots, bool *ascend);

/* The code at `index`, in elements of 4, 8, 16 or 32 bits from data. */
uint32_t ng_load_code(const void *data, uint32_t store_bits, int64_t index);
void ng_store_code(void *data, uint32_t store_bits, int64_t index, uint32_t code);

/* Tag of slot s of a line, and to write it; docs/numerics.md, section 4.3. */
uint32_t ng_tag_at(ng_tag_store store, const void *line, int64_t s);
void ng_tag_put(ng_tag_store store, void *line, int64_t s, uint32_t tag);
/* Bytes from one line of tags to the next. */
int64_t ng_tag_line_bytes(const ng_sparse *sparse, int64_t slots);

/* Elements of a tensor; the caller has checked that it does not overflow. */
int64_t ng_count(const ng_tensor *t);
/* Row-major logical order: the index of the i-th element; the next one; its place in memory. */
void ng_unravel(const ng_tensor *t, int64_t i, int64_t *index);
bool ng_next_index(const ng_tensor *t, int64_t *index); /* false: that was the last */
int64_t ng_offset_at(const ng_tensor *t, const int64_t *index);

/* Which block an element of a scaled tensor is in, along the block axis of length n. */
int64_t ng_block_of(const ng_tensor *t, int64_t k);
int64_t ng_n_blocks(const ng_tensor *t);
/* Strides in scales: the given ones, or row-major and packed. */
void ng_scale_strides(const ng_tensor *t, int64_t *stride);
/* Offset of the scale of the element at `index`, in scales. */
int64_t ng_scale_offset(const ng_tensor *t, const int64_t *index);

#endif
