/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_ATTENTION_H
#define NG_ATTENTION_H

#include "ng/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Attention, rounding by rounding. What decides the bits: the profile of the array that
 * multiplies, and a schedule, which is the order of everything around the multiplies as data.
 * Numerics: docs/numerics.md, sections 5 and 11.9.
 */

/** The parameters: the rows of attention.def. */
typedef enum ng_attention_param {
#define NG_ATTENTION_PARAM(name, key, type, meaning) NG_ATTENTION_##name,
#include "ng/attention.def"
#undef NG_ATTENTION_PARAM
    NG_ATTENTION_PARAM_COUNT
} ng_attention_param;

/* Values of the enumerated parameters. Text names stand beside each. FORMAT parameters hold an
 * ng_format, NG_FORMAT_NONE for "given"; mx_rule an ng_scale_rule. */
typedef enum ng_attention_arithmetic { /* steps real */
    NG_ARITHMETIC_STEPS = 0,
    NG_ARITHMETIC_REAL = 1
} ng_attention_arithmetic;
typedef enum ng_scale_place { /* q scores exp */
    NG_PLACE_Q = 0,
    NG_PLACE_SCORES = 1,
    NG_PLACE_EXP = 2
} ng_scale_place;
typedef enum ng_score_order { /* mask_scale scale_mask */
    NG_SCORE_MASK_SCALE = 0,
    NG_SCORE_SCALE_MASK = 1
} ng_score_order;
typedef enum ng_division { /* divide reciprocal */
    NG_DIVISION_DIVIDE = 0,
    NG_DIVISION_RECIPROCAL = 1
} ng_division;
typedef enum ng_exp_base { /* e 2 */
    NG_EXP_BASE_E = 0,
    NG_EXP_BASE_2 = 1
} ng_exp_base;
typedef enum ng_sum_source { /* exp p */
    NG_SUM_OF_EXP = 0,
    NG_SUM_OF_P = 1
} ng_sum_source;
typedef enum ng_sum_order { /* sequential tree ones */
    NG_SUM_SEQUENTIAL = 0,
    NG_SUM_TREE = 1,
    NG_SUM_ONES = 2
} ng_sum_order;
typedef enum ng_attention_update { /* two fma accumulator */
    NG_UPDATE_TWO = 0,
    NG_UPDATE_FMA = 1,
    NG_UPDATE_ACCUMULATOR = 2
} ng_attention_update;
typedef enum ng_output_store { /* f32 q */
    NG_OUTPUT_F32 = 0,
    NG_OUTPUT_AS_Q = 1
} ng_output_store;
typedef enum ng_sink_place { /* first last */
    NG_SINK_FIRST = 0,
    NG_SINK_LAST = 1
} ng_sink_place;

typedef enum ng_attention_statistics { /* lse max_sum */
    NG_STATISTICS_LSE = 0,
    NG_STATISTICS_MAX_SUM = 1
} ng_attention_statistics;

/** A schedule: every parameter with its value, the evidence for it and its source. */
typedef struct ng_attention_schedule {
    const char *name;  /**< "trn-prefill" */
    const char *about; /**< one line for a person */
    ng_setting set[NG_ATTENTION_PARAM_COUNT];
} ng_attention_schedule;

/** A preset: trn-prefill, trn-decode, trn-mx-decode, flash, exact; or NULL. Static storage. */
NG_API const ng_attention_schedule *ng_attention_find(const char *name);
/** The i-th preset, i from 0; NULL past the end. */
NG_API const ng_attention_schedule *ng_attention_at(size_t i);
/** Set one parameter of the caller's copy by its text form: ng_attention_set(&s, "sum_source",
 *  "p"). Its evidence becomes `assumed`.
 *  @retval NG_ERR_PROFILE   no such key, or a value that is none.
 *  @retval NG_ERR_ARGUMENT  a NULL. */
NG_API ng_status ng_attention_set(ng_attention_schedule *schedule, const char *key,
                                  const char *value);
/** Check that the parameters go together.
 *  @retval NG_ERR_PROFILE  `message` names key, value found and value wanted. */
NG_API ng_status ng_attention_schedule_check(const ng_attention_schedule *schedule,
                                             char *message, size_t message_bytes);
/** The schedule in one line, every parameter with its evidence, as reports carry it:
 *  "trn-prefill: arithmetic=steps(backed) q_format=bf16(backed) ...". Returns its length
 *  without the NUL, as snprintf does; writes at most `bytes`. */
NG_API size_t ng_attention_schedule_print(const ng_attention_schedule *schedule, char *buffer,
                                          size_t bytes);
/** Key and meaning of a parameter; NULL for what is none. */
NG_API const char *ng_attention_param_key(ng_attention_param param);
NG_API const char *ng_attention_param_meaning(ng_attention_param param);
/** A parameter's value as text ("scores", "512", "0xFF800000", "bf16"). Length as snprintf. */
NG_API size_t ng_attention_param_print(ng_attention_param param, int32_t value, char *buffer,
                                       size_t bytes);
/** What values it may have: "q scores exp", "an integer", "a pattern, as 0xFF800000", "given,
 * or a format". Length as snprintf. */
NG_API size_t ng_attention_param_values(ng_attention_param param, char *buffer, size_t bytes);

/** Which key the last query sees when there are more keys than queries. */
typedef enum ng_attention_align {
    NG_ALIGN_BOTTOM_RIGHT = 0, /**< "bottom_right": query i sees keys up to i + T - Sq */
    NG_ALIGN_TOP_LEFT = 1      /**< "top_left": up to i */
} ng_attention_align;

/** What becomes of a query that sees no key. */
typedef enum ng_masked_rows {
    NG_MASKED_AS_SCHEDULED = 0, /**< what the schedule's arithmetic gives */
    NG_MASKED_ZERO = 1          /**< +0 */
} ng_masked_rows;

/** All zero but `size`, `profile` and `schedule`: every query sees every key. */
typedef struct ng_attention_op {
    size_t size;               /**< sizeof(ng_attention_op) */
    const ng_profile *profile; /**< of the multiplies; outlives the call. Not read if
                                    arithmetic is real */
    const ng_attention_schedule *schedule; /**< outlives the call */
    uint32_t scale;                        /**< FP32 pattern; 0: none */
    uint32_t softcap;                      /**< c of c * tanh(s / c), FP32 pattern; 0: none */
    bool causal;
    ng_attention_align align;   /**< of `causal` and `window` */
    int64_t window;             /**< keep 0 <= q - k < window; 0: none */
    ng_masked_rows masked_rows; /**< queries that see no key */
    const ng_tensor *sink;      /**< [Hq] logits, any element format, or NULL */
    const int64_t *kv_length;   /**< [B] keys of each sequence, 0 .. Skv, or NULL: Skv */
    const int64_t *page_table;  /**< [B][pages] block numbers, or NULL: not paged */
    int64_t pages;              /**< blocks of a sequence */
    ng_cast out;                /**< from FP32 to o; sr takes a word per element of o */
    const uint16_t *exp_table;  /**< bf16 tables of functions of kind `table`: see
                                     ng_function_choice. exp2 if exp_base is 2 */
    const uint16_t *tanh_table;
    const uint16_t *reciprocal_table;
} ng_attention_op;

/** Statistics of every row, each an f32 tensor [B, Hq, Sq] that is written, or NULL. */
typedef struct ng_attention_saved {
    const ng_tensor *lse; /**< m + log(l) */
    const ng_tensor *max; /**< m */
    const ng_tensor *sum; /**< l, before any reciprocal */
} ng_attention_saved;

/**
 * softmax(scale * q k^T) v, bit for bit as the schedule's kernel on the profile's array.
 *
 * @param q      [B, Hq, Sq, d]; may have e8m0 block scales (32) along d.
 * @param k      [B, Hkv, Skv, d], likewise; Hq is a multiple of Hkv. Paged: [blocks, Hkv, rows,
 *               d], Skv = pages * rows.
 * @param v      [B, Hkv, Skv, dv], paged as k; block scales along the keys.
 * @param o      [B, Hq, Sq, dv], written; any element format.
 * @param saved  or NULL.
 *
 * @retval NG_OK              every element of `o` and of the statistics is written.
 * @retval NG_ERR_SHAPE       a rank is not 4, dimensions differ between operands, d or dv is
 *                            above 256, Hq is no multiple of Hkv, a length is out of range.
 * @retval NG_ERR_FORMAT      a format does not go with the schedule, or see ng_encode().
 * @retval NG_ERR_LAYOUT      outputs overlap operands or each other, blocks run along another
 *                            dimension or have another layout than linear.
 * @retval NG_ERR_PROFILE     the schedule is inconsistent, or the profile has no rule for a
 *                            pair of formats.
 * @retval NG_ERR_ARGUMENT    a NULL, an enum or option out of range, a page out of range, a
 *                            table that is missing, too few random words.
 *
 * The bits do not depend on CPU, `isa_mask` or executor. On any error outputs are unchanged.
 * Numerics: docs/numerics.md, section 11.9.
 */
NG_API ng_status ng_attention(ng_ctx *ctx, const ng_attention_op *op, const ng_tensor *q,
                              const ng_tensor *k, const ng_tensor *v, const ng_tensor *o,
                              const ng_attention_saved *saved);

/** Scratch memory that ng_attention() may want for operands of these shapes and formats on this
 *  context's executor; for ng_ctx_config.scratch. */
NG_API ng_status ng_attention_scratch(ng_ctx *ctx, const ng_attention_op *op,
                                      const ng_tensor *q, const ng_tensor *k,
                                      const ng_tensor *v, const ng_tensor *o, size_t *bytes);

/** One intermediate of one row, as the reference computes it. */
typedef enum ng_attention_trace_kind {
    NG_ATTENTION_TRACE_SCORE = 0,    /**< s of key `index`: scaled, capped, masked */
    NG_ATTENTION_TRACE_MAX = 1,      /**< m after section `index` */
    NG_ATTENTION_TRACE_EXP = 2,      /**< e of key `index` */
    NG_ATTENTION_TRACE_P = 3,        /**< p of key `index`, its block scale multiplied in */
    NG_ATTENTION_TRACE_TILE_SUM = 4, /**< of key tile `index` */
    NG_ATTENTION_TRACE_ALPHA = 5,    /**< the rescaling at section `index` */
    NG_ATTENTION_TRACE_SUM = 6,      /**< l after section `index` */
    NG_ATTENTION_TRACE_PV = 7,       /**< section `index`'s P times column `column` of v */
    NG_ATTENTION_TRACE_OUTPUT = 8,   /**< the running output after section `index` */
    NG_ATTENTION_TRACE_LSE = 9,
    NG_ATTENTION_TRACE_RESULT = 10 /**< element `column` of o */
} ng_attention_trace_kind;

typedef struct ng_attention_step {
    ng_attention_trace_kind kind;
    int64_t index;  /**< of the key, tile or section */
    int64_t column; /**< of o, or 0 */
    ng_value value;
} ng_attention_step;

typedef struct ng_attention_trace {
    void (*step)(void *user, const ng_attention_step *step);
    void *user;
} ng_attention_trace;

/**
 * One row by the reference, with every intermediate, for triage.
 *
 * @param index  sequence, query head, query.
 * @param trace  or NULL.
 * @param code   dv codes of o's format; o itself is not written, its `data` may be NULL.
 *
 * Statuses as ng_attention(); NG_ERR_ARGUMENT also for an index outside o.
 */
NG_API ng_status ng_attention_row(ng_ctx *ctx, const ng_attention_op *op, const ng_tensor *q,
                                  const ng_tensor *k, const ng_tensor *v, const ng_tensor *o,
                                  const int64_t index[3], const ng_attention_trace *trace,
                                  uint32_t *code);

/** What the backward writes, each of its operand's shape, any element format; or NULL. */
typedef struct ng_attention_gradients {
    const ng_tensor *q, *k, *v;
    const ng_tensor *sink; /**< [Hq]; asks for op->sink */
} ng_attention_gradients;

/**
 * The gradients of ng_attention(), bit for bit as items 79 to 82 of the page order them
 * (nothing public says how a device does; evidence `assumed`).
 *
 * @param op     as for the forward call; schedules with arithmetic = steps and no block scales;
 *               no page_table; op->out converts the gradients, without stochastic rounding.
 * @param o      [B, Hq, Sq, dv], as the forward call wrote it.
 * @param saved  what it wrote: lse, or max and sum, as the schedule's `statistics` says.
 * @param dout   [B, Hq, Sq, dv], the gradient of o, any element format.
 * @param grad   written.
 *
 * Statuses as ng_attention(). On any error the gradients are unchanged.
 * Numerics: docs/numerics.md, section 11.9.
 */
NG_API ng_status ng_attention_backward(ng_ctx *ctx, const ng_attention_op *op,
                                       const ng_tensor *q, const ng_tensor *k,
                                       const ng_tensor *v, const ng_tensor *o,
                                       const ng_attention_saved *saved, const ng_tensor *dout,
                                       const ng_attention_gradients *grad);

#ifdef __cplusplus
}
#endif
#endif
