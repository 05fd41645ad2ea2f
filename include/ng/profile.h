/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_PROFILE_H
#define NG_PROFILE_H

#include "ng/convert.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What decides the bits of a multiply. A profile is a device; its rules are the arithmetic of
 * one class of operands each; a rule is a list of parameters, each with its value, the evidence
 * for it and its source. Numerics: docs/numerics.md, section 4.
 */

/** What a parameter's value rests on, strongest first. */
typedef enum ng_evidence {
    NG_EVIDENCE_DOCUMENTED = 0, /**< vendor page or standard */
    NG_EVIDENCE_BACKED = 1,     /**< vendor's published code */
    NG_EVIDENCE_MEASURED = 2,   /**< hardware output */
    NG_EVIDENCE_INFERRED = 3,   /**< reasoned from the above */
    NG_EVIDENCE_ASSUMED = 4     /**< nothing public: our default until somebody measures */
} ng_evidence;

/** The parameters: the rows of params.def. */
typedef enum ng_param {
#define NG_PARAM(name, key, type, family, neutral, meaning) NG_PARAM_##name,
#include "ng/params.def"
#undef NG_PARAM
    NG_PARAM_COUNT
} ng_param;

/* Values of the enumerated parameters. Text names stand beside each. */
typedef enum ng_family {
    NG_FAMILY_ARRAY = 0,
    NG_FAMILY_FUSED = 1
} ng_family;
typedef enum ng_lane_sum { /* fused chain presum tree */
    NG_LANE_SUM_FUSED = 0,
    NG_LANE_SUM_CHAIN = 1,
    NG_LANE_SUM_PRESUM = 2,
    NG_LANE_SUM_TREE = 3
} ng_lane_sum;
typedef enum ng_chain_map { /* block parity interleave */
    NG_CHAIN_BLOCK = 0,
    NG_CHAIN_PARITY = 1,
    NG_CHAIN_INTERLEAVE = 2
} ng_chain_map;
typedef enum ng_combine {
    NG_COMBINE_TREE = 0,
    NG_COMBINE_SEQUENTIAL = 1
} ng_combine;
typedef enum ng_range { /* wide f32 f32_ftz */
    NG_RANGE_WIDE = 0,
    NG_RANGE_F32 = 1,
    NG_RANGE_F32_FTZ = 2
} ng_range;
typedef enum ng_k_map { /* interleave split layout */
    NG_K_INTERLEAVE = 0,
    NG_K_SPLIT = 1,
    NG_K_LAYOUT = 2
} ng_k_map;
typedef enum ng_psum {
    NG_PSUM_F32 = 0,
    NG_PSUM_BF16 = 1,
    NG_PSUM_F32_OR_BF16 = 2
} ng_psum;
typedef enum ng_psum_round {
    NG_PSUM_RNE = 0,
    NG_PSUM_SR = 1,
    NG_PSUM_RNE_OR_SR = 2
} ng_psum_round;
typedef enum ng_piece_split {
    NG_SPLIT_TRUNC = 0,
    NG_SPLIT_RNE = 1
} ng_piece_split;
typedef enum ng_piece_order {
    NG_ORDER_LO_FIRST = 0,
    NG_ORDER_HI_FIRST = 1
} ng_piece_order;
typedef enum ng_operand {
    NG_OPERAND_A = 0,
    NG_OPERAND_B = 1
} ng_operand;
typedef enum ng_sum_kind {
    NG_SUM_ALIGN = 0,
    NG_SUM_EXACT = 1,
    NG_SUM_PAIRWISE = 2
} ng_sum_kind;
typedef enum ng_k_perm { /* linear; mod4: k mod 4 in {0,1}, then {2,3} */
    NG_PERM_LINEAR = 0,
    NG_PERM_MOD4 = 1
} ng_k_perm;
typedef enum ng_product_norm {
    NG_NORM_KEEP = 0,
    NG_NORM_RENORM = 1
} ng_product_norm;
typedef enum ng_zero_exp {
    NG_ZERO_SKIP = 0,
    NG_ZERO_EMIN = 1
} ng_zero_exp;
typedef enum ng_c_place {
    NG_C_IN = 0,
    NG_C_LATE = 1,
    NG_C_AFTER = 2
} ng_c_place;
typedef enum ng_f16_acc {
    NG_F16_ACC_RNE = 0,
    NG_F16_ACC_RTZ = 1,
    NG_F16_ACC_NONE = 2
} ng_f16_acc;
typedef enum ng_flush { /* none; zero: +0; signed: zero of the same sign */
    NG_FLUSH_NONE = 0,
    NG_FLUSH_ZERO = 1,
    NG_FLUSH_SIGNED = 2
} ng_flush;
typedef enum ng_tf32_nan { /* a NaN whose payload lies below tf32's significand */
    NG_TF32_NAN_KEEP = 0,
    NG_TF32_NAN_CUT = 1 /* becomes an Inf */
} ng_tf32_nan;
typedef enum ng_operand_exp {
    NG_OPERAND_EXP_OWN = 0,
    NG_OPERAND_EXP_F16 = 1 /* the operands are widened to f16 before they are multiplied */
} ng_operand_exp;
typedef enum ng_out_zero {
    NG_OUT_ZERO_SIGNED = 0,
    NG_OUT_ZERO_PLUS = 1
} ng_out_zero;
typedef enum ng_sparse_k {
    NG_SPARSE_K_COMPRESSED = 0,
    NG_SPARSE_K_DENSE = 1
} ng_sparse_k;
#define NG_FLOOR_NONE (-9999) /**< floor_f32, floor_f16: no least exponent */

/** How the operands are fed; part of what selects a rule. */
typedef enum ng_mode {
    NG_MODE_PLAIN = 0,      /**< no scales */
    NG_MODE_DOUBLE_ROW = 1, /**< Trainium2/3: two FP8 products per element and step */
    NG_MODE_MX = 2,         /**< e8m0 block scales */
    NG_MODE_NV = 3          /**< ue4m3 block scales */
} ng_mode;

typedef struct ng_setting {
    int32_t value;
    ng_evidence evidence;
    const char *source; /**< document, file or measurement; "" when nobody named one */
} ng_setting;

/** A set of formats: bit i stands for row i of formats.def (ng_format_at). */
typedef uint32_t ng_format_set;

typedef struct ng_rule {
    const char *name; /**< "bf16", "mx", ...: unique in its profile */
    ng_mode mode;
    uint32_t block;      /**< MX, NV: elements per scale that the unit takes; 0: any */
    ng_format_set a, b;  /**< operand formats the rule takes */
    ng_format_set apart; /**< no two different members of this set meet in one multiply */
    bool same;           /**< A and B must have the same format */
    ng_setting set[NG_PARAM_COUNT];
} ng_rule;

/** The arithmetic of one device, as data. Equal profiles give equal bits. */
typedef struct ng_profile {
    const char *name;  /**< "vendor-unit-generation" or a chip's name */
    const char *about; /**< one line for a person */
    uint32_t revision; /**< grows whenever a result bit changes */
    uint32_t n_rules;
    const ng_rule *rules; /**< the first that takes a pair of operands is used */
} ng_profile;

/** A built-in profile by name, or NULL. Static storage. */
NG_API const ng_profile *ng_profile_find(const char *name);
/** The i-th built-in profile, i from 0; NULL past the end. */
NG_API const ng_profile *ng_profile_at(size_t i);

/**
 * Read a profile from its text (docs/profiles.md). The inverse of ng_profile_print().
 *
 * @param text     `length` bytes; need not end in a NUL.
 * @param profile  a new object, to be given to ng_profile_free().
 * @param message  `message_bytes` long: on error, the line number and what is wrong with it.
 *
 * @retval NG_ERR_PROFILE  not a profile; `profile` is untouched.
 * @retval NG_ERR_MEMORY   malloc returned NULL.
 */
NG_API ng_status ng_profile_parse(const char *text, size_t length, ng_profile **profile,
                                  char *message, size_t message_bytes);
NG_API void ng_profile_free(ng_profile *profile);
/** A copy that may be changed with ng_profile_set(); NULL when malloc fails. */
NG_API ng_profile *ng_profile_copy(const ng_profile *profile);
/** Set one parameter of one rule of a profile made by parse or copy, by its text form:
 *  ng_profile_set(p, "mx", "lane_sum", "tree"). Its evidence becomes `assumed`.
 *  @retval NG_ERR_PROFILE  no such rule or key, or a value that is none. */
NG_API ng_status ng_profile_set(ng_profile *profile, const char *rule, const char *key,
                                const char *value);
/** Check that every rule is consistent (chain_rows divides rows, F in range, ...).
 *  @retval NG_ERR_PROFILE  `message` names rule, key, value found and value wanted. */
NG_API ng_status ng_profile_check(const ng_profile *profile, char *message,
                                  size_t message_bytes);

/** The canonical text: what ng_profile_parse() reads. Returns its length without the NUL, as
 *  snprintf does; writes at most `bytes`. */
NG_API size_t ng_profile_print(const ng_profile *profile, char *buffer, size_t bytes);
/** One rule in one line, as reports carry it:
 *  "trn3/mx: array rows=128 lanes=4 lane_sum=fused ... #9f3c61d2". Length as above. */
NG_API size_t ng_rule_print(const ng_profile *profile, const ng_rule *rule, char *buffer,
                            size_t bytes);
/** A hash of everything that decides bits: name, revision, rules, formats, values. Evidence,
 *  sources and `about` do not enter. */
NG_API uint32_t ng_profile_hash(const ng_profile *profile);

/** The rule that multiplies these operands, or NULL: then `message` says which rules there are
 *  and why none fits. */
NG_API const ng_rule *ng_profile_rule(const ng_profile *profile, ng_format a, ng_format b,
                                      ng_mode mode, char *message, size_t message_bytes);

/** Key, meaning and family of a parameter. */
NG_API const char *ng_param_key(ng_param param);
NG_API const char *ng_param_meaning(ng_param param);
NG_API bool ng_param_in_family(ng_param param, ng_family family);
/** A parameter's value as text ("tree", "128"). Returns the length as snprintf does. */
NG_API size_t ng_param_print(ng_param param, int32_t value, char *buffer, size_t bytes);
/** What values it may have: "fused presum tree chain", "an integer", "a pattern, as
 * 0x7FC00000". Returns the length as snprintf does. */
NG_API size_t ng_param_values(ng_param param, char *buffer, size_t bytes);
/** "documented", "backed", "measured", "inferred", "assumed". */
NG_API const char *ng_evidence_name(ng_evidence evidence);

#ifdef __cplusplus
}
#endif
#endif
