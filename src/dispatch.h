/* SPDX-License-Identifier: Apache-2.0 */
/* What the CPU has, and which kernel takes a job. */
#ifndef NG_DISPATCH_H
#define NG_DISPATCH_H

#include "../kernels/kernel.h"

/* CPU features that kernels/isa.def asks for, all that the operating system saves included. */
enum {
    NG_CPU_AVX2 = 1 << 0,
    NG_CPU_FMA = 1 << 1,
    NG_CPU_AVX512F = 1 << 2,
    NG_CPU_AVX512BW = 1 << 3,
    NG_CPU_AVX512DQ = 1 << 4,
    NG_CPU_AVX512VL = 1 << 5,
    NG_CPU_AVX512BF16 = 1 << 6,
    NG_CPU_AVX512VBMI = 1 << 7,
    NG_CPU_AVX512VNNI = 1 << 8,
    NG_CPU_AMXBF16 = 1 << 9, /* AMX-TILE and AMX-BF16, and the kernel lets the process */
    /* All of AVX-512 and AMX that isa.def asks for: what -Demulate=true takes as there. */
    NG_CPU_EMULATED = NG_CPU_AVX512F | NG_CPU_AVX512BW | NG_CPU_AVX512DQ | NG_CPU_AVX512VL |
                      NG_CPU_AVX512BF16 | NG_CPU_AVX512VBMI | NG_CPU_AVX512VNNI | NG_CPU_AMXBF16
};
/* Of AMX, which the process has to ask for, only where it is wanted. */
uint32_t ng_cpu_features(uint32_t wanted);

/* Does this CPU want lines of memory in its second cache rather than its first, where kernels
 * ask for them before they read them? See kernels/near.h. */
bool ng_cpu_asks_second(void);

/* The i-th built ISA, best first, whether or not this CPU has it; NULL kernels past the end. */
struct ng_isa {
    const char *name;
    uint32_t bit;
    uint32_t features;
    const struct ng_kernel_set *kernels;
};
struct ng_isa ng_isa_at(size_t i);

/* Of the ISAs in `mask` those that work on this CPU. A proof takes a fraction of a millisecond:
 * contexts ask once and remember. */
uint32_t ng_isa_working(uint32_t mask);

/* Of the ISAs in `available` those whose multiplying instruction is slow() on this CPU. */
uint32_t ng_isa_slow(uint32_t available);

/* The first kernel of the ISAs in `mask` (that this CPU has) that takes the job, or the next
 * ISA's where that of a `slow` one is behind(); NULL: the reference does. */
const struct ng_gemm_kernel *ng_pick_gemm(const struct gemm_job *g, uint32_t mask,
                                          uint32_t slow);
const struct ng_cast_kernel *ng_pick_cast(const struct cast_job *j, uint32_t mask);

/* The same for a call of ng/sparse.h. */
const struct ng_sparse_kernel *ng_pick_sparse(const struct sparse_job *j, uint32_t mask);

/* The same for a random generator. */
const struct ng_random_kernel *ng_pick_random(ng_random_kind kind, uint32_t mask);

/* The first kernel for elementary functions. */
const struct ng_elementary_kernel *ng_pick_elementary(uint32_t mask);

/* The same for attention's rows. */
const struct ng_attention_kernel *ng_pick_attention(const struct attention_job *g,
                                                    uint32_t mask);

/* The first kernel for mixtures of experts. */
const struct ng_moe_kernel *ng_pick_moe(uint32_t mask);

/* The first kernel for reductions over ranks. */
const struct ng_reduce_kernel *ng_pick_reduce(uint32_t mask);

/* ---- For reports (watch.c): what each kernel says of a job. pick: the one that takes it, or
 * NULL; left: why then none does that refuses nothing. ---- */

/* As ng_gemm_kernels() has it; how many there are. */
size_t ng_list_gemm(const ng_ctx *ctx, const struct gemm_job *g,
                    const struct ng_gemm_kernel *pick, const char *left, ng_kernel_info *info,
                    size_t room);
/* To whoever watches the context. */
void ng_tell_gemm(ng_ctx *ctx, const char *stage, const struct gemm_job *g,
                  const struct ng_gemm_kernel *pick, const char *left);
void ng_tell_cast(ng_ctx *ctx, const char *stage, const struct cast_job *j,
                  const struct ng_cast_kernel *pick, const char *left);
void ng_tell_attention(ng_ctx *ctx, const char *stage, const struct attention_job *g,
                       const struct ng_attention_kernel *pick, const char *left);
void ng_tell_route(ng_ctx *ctx, const struct route_job *j, const struct ng_moe_kernel *pick);
void ng_tell_settle(ng_ctx *ctx, const char *stage, const struct settle_job *j,
                    const struct ng_moe_kernel *pick);
void ng_tell_combine(ng_ctx *ctx, const ng_moe_combine_op *op,
                     const struct ng_moe_kernel *pick);
/* A job that no kernel refuses. */
void ng_tell_moe(ng_ctx *ctx, const char *stage, const struct ng_moe_kernel *pick);
void ng_tell_reduce(ng_ctx *ctx, const struct ng_reduce_kernel *pick, const char *left);

/* MXCSR: the caller's is kept and round-to-nearest, no flush, all masked is set; then restored.
 */
uint32_t ng_fp_enter(void);
void ng_fp_leave(uint32_t saved);

#endif
