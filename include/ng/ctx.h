/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_CTX_H
#define NG_CTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ng/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What decides the speed. Nothing in this header can change a result bit.
 */

/** Calls body(arg, i, worker) once for each i in [0, n), in any order, on any thread, with
 *  worker in [0, workers); returns when all have returned. */
typedef struct ng_executor {
    void (*parallel_for)(void *user, size_t n, void (*body)(void *arg, size_t i, size_t worker),
                         void *arg);
    void *user;
    size_t workers;
} ng_executor;

typedef struct ng_allocator {
    void *(*alloc)(void *user, size_t align, size_t bytes);
    void (*free)(void *user, void *ptr);
    void *user;
} ng_allocator;

/** ISAs by their bit in ng_ctx_config.isa_mask (kernels/isa.def pins them). */
#define NG_ISA_REF        0x1u /**< the scalar reference; always there */
#define NG_ISA_AVX2       0x2u /**< AVX2 and FMA */
#define NG_ISA_AVX512     0x4u /**< AVX-512 F, BW, DQ, VL */
#define NG_ISA_AVX512BF16 0x8u /**< and AVX512_BF16 */
/** and AMX-BF16, AMX-INT8. Making a context asks Linux for AMX's registers where the CPU has
 * them: for the whole process, whose signal stacks must then hold 8 KiB more. Where that is
 * refused the ISA is not there. */
#define NG_ISA_AMXBF16 0x10u

typedef struct ng_ctx_config {
    size_t size;            /**< sizeof(ng_ctx_config) */
    uint32_t isa_mask;      /**< ISAs that may be used; 0: all that the CPU has */
    ng_allocator allocator; /**< zero: the C library's, asking for huge pages */
    ng_executor executor;   /**< zero: the calling thread */
    void *scratch;          /**< caller's memory, 64-byte aligned; NULL: an arena that grows */
    size_t scratch_bytes;
} ng_ctx_config;

/** Owns scratch memory, with what the last expert MLP had from the allocator, and the last
 * error message. Not used by two threads at once. */
typedef struct ng_ctx ng_ctx;

/**
 * Make a context: once, for many calls. It takes some 0.1 ms, in which the CPU's instructions
 * are tried; a small call takes a fiftieth of that.
 *
 * @param config  or NULL for all defaults.
 *
 * @retval NG_ERR_ARGUMENT  `ctx` is NULL, `size` is wrong, one of alloc/free is missing, the
 *                          executor has no workers, or `scratch` is not 64-byte aligned.
 * @retval NG_ERR_MEMORY    the allocator returned NULL.
 */
NG_API ng_status ng_ctx_create(const ng_ctx_config *config, ng_ctx **ctx);
NG_API void ng_ctx_destroy(ng_ctx *ctx);

/** Why the last call on this context failed: operand, dimension, value found, value wanted.
 *  "" after a call that did not. Valid until the next call on the context. */
NG_API const char *ng_ctx_message(const ng_ctx *ctx);
/** The kernel that took the last job, "gemm_fma_6x16__avx2" or "ref"; "" before any. */
NG_API const char *ng_ctx_kernel(const ng_ctx *ctx);

/** How the last multiply's tiles came by their bits: it decides the speed, never the bits. */
typedef struct ng_tiles {
    uint64_t fast;      /**< by the kernel's fast path alone */
    uint64_t exact;     /**< in whole or in part by its slow path: ranges or spreads too wide */
    uint64_t reference; /**< by the reference; without a kernel, elements */
} ng_tiles;
NG_API ng_tiles ng_ctx_tiles(const ng_ctx *ctx);

/** The ISAs that this library was built with and this CPU has: bits NG_ISA_*. */
NG_API uint32_t ng_isa_available(void);
/** "ref", "avx2", "avx512", "avx512bf16", "amxbf16" for one bit; NULL for anything else. */
NG_API const char *ng_isa_name(uint32_t bit);

/** A kernel of this build, for reports. */
typedef struct ng_kernel_entry {
    const char *name; /**< "gemm_fma_6x32__avx2", or "ref" */
    const char *does; /**< "multiply", "convert", "sparse", "random", "elementary", "attention",
                           "moe"; the reference: "everything" */
    uint32_t isa;     /**< the bit of its ISA */
} ng_kernel_entry;
/** The i-th kernel, i from 0: by ISA, best first, and in the order in which they are asked; the
 *  reference last. Whether this CPU runs it: ng_isa_available() & entry->isa. False past the
 *  end; `entry` is then untouched. */
NG_API bool ng_kernel_at(size_t i, ng_kernel_entry *entry);

/** Which kernels there are for a job, best first, and why not. For reports. */
typedef struct ng_kernel_info {
    const char *name; /**< "gemm_fma_6x16__avx2", "ref" */
    const char *isa;
    const char *refuses; /**< why it does not take the job, or NULL */
    bool chosen;
} ng_kernel_info;

/** A stage of a call and the kernels that were asked for it, in their order; the reference
 * last. All texts are static. */
typedef struct ng_kernel_choice {
    const char *stage;          /**< "gemm", "q k^T", "gate", "combine" */
    const char *does;           /**< which sort was asked: see ng_kernel_entry */
    const ng_kernel_info *info; /**< for the length of the call only */
    size_t count;
} ng_kernel_choice;

typedef struct ng_kernel_watch {
    void (*choice)(void *user, const ng_kernel_choice *choice);
    void *user;
} ng_kernel_watch;

/** Be told of each choice that calls on this context make: multiplies, conversions, quantising,
 *  attention and its gradients, routing, mixtures of experts, forward. What is packed chose
 * when it was packed. On the calling thread, before the stage runs; a choice does not say that
 * a kernel left nothing to the reference (ng_ctx_tiles). `choice` must not call the context.
 *
 *  @param watch  copied; NULL: nobody is told any more. */
NG_API void ng_ctx_watch(ng_ctx *ctx, const ng_kernel_watch *watch);

/** A pool of `threads` POSIX threads that fills an executor; 0 means one per online CPU.
 *  Contexts may share it from several threads: their runs take turns. A body must not call it.
 *  @retval NG_ERR_UNSUPPORTED  the library was built with -Dthreads=disabled. */
typedef struct ng_pool ng_pool;
NG_API ng_status ng_pool_create(size_t threads, ng_pool **pool, ng_executor *executor);
NG_API void ng_pool_destroy(ng_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
