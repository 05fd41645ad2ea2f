/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference: one output element, or one block, as docs/numerics.md says it. Integers only;
 * never made fast.
 */
#ifndef NG_REF_H
#define NG_REF_H

#include "../../kernels/kernel.h"
#include "../num/num.h"
#include "ng/elementary.h"
#include "ng/layer.h"
#include "ng/quantize.h"

/* ---- Block scaling: section 3. ---- */

/* The scale code of an MX block whose largest magnitude is `a` (finite). */
uint32_t ng_ref_mx_scale(ng_scale_rule rule, const ng_format_spec *element, ng_value a);
/* An element under a scale: v / 2^(code - 127), converted once. */
uint32_t ng_ref_mx_element(const ng_format_spec *element, const ng_cast *cast, uint32_t scale,
                           ng_value v, uint32_t word);

/* NVFP4's constants of one tensor: what section 11.5 items 32 and 33 derive from amax. */
struct ng_nvfp4 {
    ng_scale_rule rule;
    ng_value encode;       /* te: S_enc */
    uint32_t tensor_scale; /* FP32 pattern of the scale that decodes */
};
struct ng_nvfp4 ng_ref_nvfp4(ng_scale_rule rule, ng_value amax);
uint32_t ng_ref_nvfp4_scale(const struct ng_nvfp4 *t, ng_value a);
uint32_t ng_ref_nvfp4_element(const struct ng_nvfp4 *t, const ng_cast *cast, uint32_t scale,
                              ng_value v, uint32_t word);

/* ---- Elementary functions: section 8. ---- */

/* f of an FP32 pattern, an FP32 pattern. `how` is checked. */
uint32_t ng_ref_function(ng_function f, const ng_function_choice *how, uint32_t x);

/* ---- Structured sparsity: section 4.3. Sets of a group's elements: bit i is element i. ----
 */

/* The elements that are not zero. */
uint32_t ng_ref_sparse_nonzero(const ng_format_spec *f, const uint32_t *code, uint32_t group);
/* The `kept` elements that go into the slots: largest magnitudes, ties to the lower index. So
 * where fewer are non-zero, the lowest zeros too. */
uint32_t ng_ref_sparse_keep(const ng_format_spec *f, const uint32_t *code, uint32_t kept,
                            uint32_t group);

/* ---- Mixture of experts: sections 6 and 11.10. Numbers are FP32 patterns. ---- */

/* One token's experts and weights. `score` and `choice` are work, [E] each; `correction` may be
 * NULL. */
void ng_ref_route(const struct route_job *j, const uint32_t *logit, const uint32_t *correction,
                  uint32_t *score, uint32_t *choice, int32_t *index, uint32_t *weight);
/* Items 93 and 94: n logits become scores, in place. */
void ng_ref_route_scores(const ng_route_op *op, int64_t n, uint32_t *p);
/* Item 96: what n weights are divided by; `floored`: that is eps, in place of their sum. */
uint32_t ng_ref_route_divisor(const ng_route_op *op, int64_t n, const uint32_t *weight,
                              bool *floored);
/* p_i / s, in the way that is asked for. */
void ng_ref_route_divide(ng_divide how, const ng_function_choice *reciprocal, int64_t n,
                         uint32_t s, uint32_t *p);
/* Item 96 on n weights, in place. */
void ng_ref_route_weights(const ng_route_op *op, int64_t n, uint32_t *weight);
/* Items 100 and 101 behind a multiply: column `n` of a row. */
uint32_t ng_ref_settle(const struct settle_job *j, uint32_t psum, uint32_t row_scale,
                       int64_t n);
/* Items 102 and 103, biases already added. `gated`: there is an up. */
uint32_t ng_ref_moe_act(const ng_moe_act_op *op, bool gated, uint32_t gate, uint32_t up);
/* Items 106 and 107: one element, n entries in their order. `weight` NULL: none. */
uint32_t ng_ref_moe_combine(const ng_moe_combine_op *op, int64_t n, const uint32_t *weight,
                            const uint32_t *o, uint32_t y);
/* Item 113, and the sums of items 117 and 118: of n >= 1 products. */
uint32_t ng_ref_moe_dot(int64_t n, const uint32_t *a, const uint32_t *b);
/* Item 115: du, and dg. */
uint32_t ng_ref_moe_up_back(const ng_moe_act_op *op, uint32_t gate, uint32_t dmiddle);
uint32_t ng_ref_moe_gate_back(const ng_moe_act_op *op, uint32_t gate, uint32_t up,
                              uint32_t dmiddle);
/* Items 117 and 118 of one token. `slot` may be NULL; `work`: [E + 4k]. */
void ng_ref_route_back(const struct route_job *j, const uint32_t *logit, const int32_t *index,
                       const int32_t *slot, const uint32_t *dweight, uint32_t *work,
                       uint32_t *dlogit);
/* Item 101, `fp8_row` and `fp8_block`: n elements and the scale that they share. */
uint32_t ng_ref_fp8_row_scale(const ng_format_spec *f, ng_divide by, uint32_t least, int64_t n,
                              const uint32_t *v);
uint32_t ng_ref_fp8_row_element(const ng_format_spec *f, ng_divide by, uint32_t scale,
                                uint32_t v);
/* Item 101: `sum` and the scaled result of a block of K. */
uint32_t ng_ref_moe_block(const ng_moe_block_op *op, uint32_t psum, uint32_t row_scale,
                          uint32_t scale, uint32_t sum);
/* FP32 to a format of values and back, rne. */
uint32_t ng_ref_to_format(ng_format format, uint32_t x);

/* ---- Between the multiplies of a layer: section 11.11. Numbers are FP32 patterns. ---- */

/* Item 130: a row's common factor, from ng_ref_moe_dot() of the row with itself; and an element
 * under it. `gain` NULL: none. */
uint32_t ng_ref_rms_scale(const ng_rms_norm_op *op, int64_t n, uint32_t s);
uint32_t ng_ref_rms_element(uint32_t x, uint32_t scale, const uint32_t *gain);
/* Item 133: the pair (a, b), in place. */
void ng_ref_rope_pair(ng_format product, uint32_t cosine, uint32_t sine, uint32_t *a,
                      uint32_t *b);

/* ---- Reductions over ranks: section 11.12. ---- */

/* Item 140: what a rank brings in, an FP32 pattern. */
uint32_t ng_ref_reduce_term(const struct reduce_job *j, uint32_t code);
/* Its sums, as ng_all_reduce_element() tells them; room 0: only counted. */
struct ng_ref_steps {
    ng_reduce_step *step;
    size_t room, n;
};
/* The result of an element of a chunk: term[r] is that of rank r. `steps` may be NULL. */
uint32_t ng_ref_reduce(const struct reduce_job *j, int64_t chunk, const uint32_t *term,
                       struct ng_ref_steps *steps);
/* Item 147: the sum of n values. */
ng_value ng_ref_reduce_real(int64_t n, const ng_value *x);

/* ---- Matrix multiply: section 4. ---- */

/* Element (i, j) of D, with its intermediates told to `trace` (or NULL). */
uint32_t ng_ref_gemm_element(const struct gemm_job *g, int64_t i, int64_t j,
                             const ng_trace *trace);
/* What becomes of an accumulator's value: the code of element (i, j) of D. `word`: its random
 * word, read by sr. */
uint32_t ng_ref_gemm_output(const struct gemm_job *g, int64_t i, int64_t j, ng_value acc,
                            uint32_t word, const ng_trace *trace);
void ng_ref_gemm_store(const struct gemm_job *g, int64_t i, int64_t j, uint32_t code);
/* The same element as a real number. */
ng_value ng_ref_gemm_exact(const struct gemm_job *g, int64_t i, int64_t j);

/* Parts of ref_gemm.c that the two families share. */

/* The operands that meet at position k of the accumulation. */
struct ng_pair {
    ng_value a, b;             /* elements, scales not applied */
    ng_value scale_a, scale_b; /* 1 where there is none */
};
struct ng_pair ng_ref_pair(const struct gemm_job *g, int64_t i, int64_t j, int64_t k);
/* a * b * scales, exact. */
ng_value ng_ref_product(const struct ng_pair *p);
/* C's value at (i, j). */
ng_value ng_ref_c(const struct gemm_job *g, int64_t i, int64_t j);
int32_t ng_ref_param(const struct gemm_job *g, ng_param param);
void ng_ref_trace(const ng_trace *trace, ng_trace_kind kind, int64_t index, int64_t k0,
                  int64_t k1, ng_value v);

/* The accumulator at the end of K: an FP32 (or bf16, f16) value. */
ng_value ng_ref_array(const struct gemm_job *g, int64_t i, int64_t j, const ng_trace *trace);
ng_value ng_ref_fused(const struct gemm_job *g, int64_t i, int64_t j, const ng_trace *trace);

#endif
