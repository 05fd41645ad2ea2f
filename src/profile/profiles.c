/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The built-in devices: one profile each, its rules, and for every parameter its evidence and
 * source. Numerics: docs/numerics.md, section 4. docs/profiles.md says how to read and add one.
 *
 * A commit that changes a value here raises `revision` and says so in a `Bits:` trailer.
 */
#include "profile_internal.h"

/* ---- Formats as sets. ---- */

enum {
#define NG_FORMAT(name, value, text, bits, store, exp, man, low, bias, kind, nan) ROW_##name,
#include "ng/formats.def"
#undef NG_FORMAT
};

#define F(name)  (1u << ROW_##name)
#define BF16_F16 (F(BF16) | F(F16))
#define OCP_FP8  (F(E4M3FN) | F(E5M2))
#define OCP_FP6  (F(E3M2) | F(E2M3))
#define FNUZ_FP8 (F(E4M3FNUZ) | F(E5M2FNUZ))
#define ELEMENTS                                                                               \
    (F(F32) | F(TF32) | BF16_F16 | OCP_FP8 | F(E4M3) | F(E3M4) | FNUZ_FP8 | OCP_FP6 |          \
     F(E2M1) | F(MXINT8))

/* ---- Sources. ---- */

#define S_DEF    "definition of this profile; docs/numerics.md 4.1"
#define S_NKI    "AWS NKI isa.nc_matmul"
#define S_NKI_DR "AWS NKI isa.nc_matmul, performance mode double_row"
#define S_NKI_MX "AWS NKI isa.nc_matmul_mx, MXFP matmul deep dive"
#define S_TRN3   "AWS Trainium3 architecture guide"
#define S_STUDY  "published trn2 FP32 error figures (K = 64, 2048) re-analysed; docs/profiles.md"
#define S_BUSES                                                                                \
    "US 11308027, 11762803, 12182691: row groups and buses joined at the column's foot"
#define S_WIDE   "US 11467806, 12067375: normalised inputs, wider internal exponent"
#define S_PIECES "US 12423058: FP32 split into two parts; published trn2 FP32 figures"
#define S_TILES                                                                                \
    "rows are tiled by 32 (AWS NKI isa.nc_matmul); no figure tells blocks from parity"
#define S_TRN2  "as trn2"
#define S_NONE  "nothing public"
#define S_CAP   "captured outputs: MATLAB-tensor-core model_validation (Khattak, Mikaitis)"
#define S_SIM   "MMA-Sim simulator (third-party model checked on the device by its authors)"
#define S_LEEDS "MATLAB-tensor-core models (Khattak, Mikaitis)"
#define S_EMUL                                                                                 \
    "search over captured outputs: FP8 mma.sync runs on the f16 unit; docs/profiles.md"
#define S_BOTH "two published models disagree (MMA-Sim, MATLAB-tensor-core)"
#define S_HOPPER                                                                               \
    "outputs of an H100 and an H200: tests/device; also captures of MATLAB-tensor-core"
#define S_FLOORS                                                                               \
    "MATLAB-tensor-core models; MMA-Sim differs; Hopper is as the former: tests/device"
#define S_AS_HOPPER "as Hopper, where it was measured: tests/device"
#define S_PTX       "PTX ISA: the instruction has no f16 accumulator"
#define S_SPARSE    "as Hopper (tests/device); Volta and Turing have no sparse unit"
#define S_IDLE      "has no part in this rule"
#define S_OCP                                                                                  \
    "OCP MX 1.0, 6.1 and 6.2: a dot product a block, to FP32; the standard leaves order open"

#define SET(param, value_, tag, source_)                                                       \
    [NG_PARAM_##param] = { .value = (int32_t)(value_),                                         \
                           .evidence = NG_EVIDENCE_##tag,                                      \
                           .source = (source_) }
/* The same with tag and source from one macro. */
#define SET_BY(param, value, ...)          SET_BY_(param, value, __VA_ARGS__)
#define SET_BY_(param, value, tag, source) SET(param, value, tag, source)

/* ---- Family array. ---- */

/* What all rules of a Trainium have in common; `tag` and `source` are those of its chains. */
#define TRN_ARRAY(tag, source)                                                                 \
    SET(FAMILY, NG_FAMILY_ARRAY, DOCUMENTED, S_NKI),                                           \
        SET(NAN_F32, 0x7FC00000, ASSUMED, S_NONE), SET(ROWS, 128, DOCUMENTED, S_NKI),          \
        SET(CHAIN_ROWS, 32, tag, source), SET(CHAIN_MAP, NG_CHAIN_BLOCK, ASSUMED, S_TILES),    \
        SET(COMBINE, NG_COMBINE_TREE, tag, source), SET(ACC_BITS, 24, tag, source),            \
        SET(ACC_ROUND, NG_ROUND_TIES_TO_EVEN, tag, source),                                    \
        SET(ACC_RANGE, NG_RANGE_WIDE, INFERRED, S_WIDE),                                       \
        SET(PSUM_ADD, NG_ROUND_TIES_TO_EVEN, tag, source)

#define PSUM_F32                                                                               \
    SET(PSUM, NG_PSUM_F32, DOCUMENTED, S_NKI), SET(PSUM_ROUND, NG_PSUM_RNE, DOCUMENTED, S_NKI)
#define PSUM_BOTH                                                                              \
    SET(PSUM, NG_PSUM_F32_OR_BF16, DOCUMENTED, S_TRN3),                                        \
        SET(PSUM_ROUND, NG_PSUM_RNE_OR_SR, DOCUMENTED, S_TRN3)

#define ONE_LANE(source)                                                                       \
    SET(LANES, 1, DOCUMENTED, source), SET(LANE_SUM, NG_LANE_SUM_FUSED, DOCUMENTED, source),   \
        SET(K_MAP, NG_K_INTERLEAVE, DOCUMENTED, source)

#define ONE_PIECE(source)                                                                      \
    SET(PIECES, 1, DOCUMENTED, source), SET(PIECE_SPLIT, NG_SPLIT_TRUNC, DOCUMENTED, source),  \
        SET(PIECE_ORDER, NG_ORDER_LO_FIRST, DOCUMENTED, source),                               \
        SET(PIECE_ADDS, 2, DOCUMENTED, source),                                                \
        SET(PIECE_OUTER, NG_OPERAND_A, DOCUMENTED, source)

#define TWO_PIECES(tag)                                                                        \
    SET(PIECES, 2, tag, S_PIECES), SET(PIECE_SPLIT, NG_SPLIT_TRUNC, tag, S_PIECES),            \
        SET(PIECE_ORDER, NG_ORDER_LO_FIRST, tag, S_PIECES), SET(PIECE_ADDS, 2, tag, S_PIECES), \
        SET(PIECE_OUTER, NG_OPERAND_A, ASSUMED, S_NONE)

#define TF32_RNE SET(TF32_IN, NG_ROUND_TIES_TO_EVEN, ASSUMED, S_NONE)

/* The five kinds of rule a Trainium has. */
#define RULE_PLAIN(formats_, apart_, psum, tag, source)                                        \
    {                                                                                          \
        .name = "plain", .mode = NG_MODE_PLAIN, .a = (formats_), .b = (formats_),              \
        .apart = (apart_), .set = {                                                            \
            TRN_ARRAY(tag, source),                                                            \
            ONE_LANE(S_NKI),                                                                   \
            ONE_PIECE(S_NKI),                                                                  \
            TF32_RNE,                                                                          \
            psum                                                                               \
        }                                                                                      \
    }
#define RULE_TF32(psum, tag, source)                                                           \
    {                                                                                          \
        .name = "tf32", .mode = NG_MODE_PLAIN, .a = F(TF32), .b = F(TF32), .set = {            \
            TRN_ARRAY(tag, source),                                                            \
            ONE_LANE(S_NKI),                                                                   \
            ONE_PIECE(S_NKI),                                                                  \
            TF32_RNE,                                                                          \
            psum                                                                               \
        }                                                                                      \
    }
#define RULE_F32(psum, tag, source)                                                            \
    {                                                                                          \
        .name = "f32", .mode = NG_MODE_PLAIN, .a = F(F32), .b = F(F32), .set = {               \
            TRN_ARRAY(tag, source),                                                            \
            ONE_LANE(S_NKI),                                                                   \
            TWO_PIECES(tag),                                                                   \
            TF32_RNE,                                                                          \
            psum                                                                               \
        }                                                                                      \
    }
#define RULE_DOUBLE_ROW(formats_, apart_, psum, tag, source)                                   \
    {                                                                                          \
        .name = "double_row", .mode = NG_MODE_DOUBLE_ROW, .a = (formats_), .b = (formats_),    \
        .apart = (apart_), .set = {                                                            \
            TRN_ARRAY(tag, source),                                                            \
            SET(LANES, 2, DOCUMENTED, S_NKI_DR),                                               \
            SET(LANE_SUM, NG_LANE_SUM_FUSED, ASSUMED, S_NONE),                                 \
            SET(K_MAP, NG_K_SPLIT, DOCUMENTED, S_NKI_DR),                                      \
            ONE_PIECE(S_NKI_DR),                                                               \
            TF32_RNE,                                                                          \
            psum                                                                               \
        }                                                                                      \
    }
#define RULE_MX(formats_, psum, tag, source)                                                   \
    {                                                                                          \
        .name = "mx", .mode = NG_MODE_MX, .block = 32, .a = (formats_), .b = (formats_),       \
        .set = {                                                                               \
            TRN_ARRAY(tag, source),                                                            \
            SET(LANES, 4, DOCUMENTED, S_NKI_MX),                                               \
            SET(LANE_SUM, NG_LANE_SUM_FUSED, ASSUMED, S_NONE),                                 \
            SET(K_MAP, NG_K_LAYOUT, DOCUMENTED, S_NKI_MX),                                     \
            ONE_PIECE(S_NKI_MX),                                                               \
            TF32_RNE,                                                                          \
            psum                                                                               \
        }                                                                                      \
    }

#define TRN_FP8 (F(E5M2) | F(E4M3) | F(E3M4))

static const ng_rule trn1_rules[] = {
    RULE_PLAIN(BF16_F16 | TRN_FP8, 0, PSUM_F32, ASSUMED, S_TRN2),
    RULE_TF32(PSUM_F32, ASSUMED, S_TRN2),
    RULE_F32(PSUM_F32, ASSUMED, S_TRN2),
};

static const ng_rule trn2_rules[] = {
    RULE_PLAIN(BF16_F16 | TRN_FP8, 0, PSUM_F32, INFERRED, S_STUDY),
    RULE_TF32(PSUM_F32, INFERRED, S_STUDY),
    RULE_F32(PSUM_F32, INFERRED, S_STUDY),
    RULE_DOUBLE_ROW(TRN_FP8, 0, PSUM_F32, INFERRED, S_STUDY),
};

static const ng_rule trn3_rules[] = {
    RULE_PLAIN(BF16_F16 | TRN_FP8 | F(E4M3FN), F(E4M3) | F(E4M3FN), PSUM_BOTH, ASSUMED, S_TRN2),
    RULE_TF32(PSUM_BOTH, ASSUMED, S_TRN2),
    RULE_F32(PSUM_BOTH, ASSUMED, S_TRN2),
    RULE_DOUBLE_ROW(TRN_FP8 | F(E4M3FN), F(E4M3) | F(E4M3FN), PSUM_BOTH, ASSUMED, S_TRN2),
    RULE_MX(OCP_FP8 | F(E2M1), PSUM_BOTH, ASSUMED, S_TRN2),
};

/* Announced only: whatever is said of it here is our guess. */
#define TRN4_SOURCE "announced only; as trn3"
#define PSUM_TRN4                                                                              \
    SET(PSUM, NG_PSUM_F32_OR_BF16, ASSUMED, TRN4_SOURCE),                                      \
        SET(PSUM_ROUND, NG_PSUM_RNE_OR_SR, ASSUMED, TRN4_SOURCE)
#define TRN4_RULE(name_, mode_, block_, formats_, lanes_, map_, pieces_)                       \
    {                                                                                          \
        .name = name_, .mode = mode_, .block = block_, .a = (formats_), .b = (formats_),       \
        .set = {                                                                               \
            SET(FAMILY, NG_FAMILY_ARRAY, ASSUMED, TRN4_SOURCE),                                \
            SET(NAN_F32, 0x7FC00000, ASSUMED, TRN4_SOURCE),                                    \
            SET(TF32_IN, NG_ROUND_TIES_TO_EVEN, ASSUMED, TRN4_SOURCE),                         \
            SET(ROWS, 128, ASSUMED, TRN4_SOURCE),                                              \
            SET(LANES, lanes_, ASSUMED, TRN4_SOURCE),                                          \
            SET(LANE_SUM, NG_LANE_SUM_FUSED, ASSUMED, TRN4_SOURCE),                            \
            SET(CHAIN_ROWS, 32, ASSUMED, TRN4_SOURCE),                                         \
            SET(CHAIN_MAP, NG_CHAIN_BLOCK, ASSUMED, TRN4_SOURCE),                              \
            SET(COMBINE, NG_COMBINE_TREE, ASSUMED, TRN4_SOURCE),                               \
            SET(ACC_BITS, 24, ASSUMED, TRN4_SOURCE),                                           \
            SET(ACC_ROUND, NG_ROUND_TIES_TO_EVEN, ASSUMED, TRN4_SOURCE),                       \
            SET(ACC_RANGE, NG_RANGE_WIDE, ASSUMED, TRN4_SOURCE),                               \
            SET(K_MAP, map_, ASSUMED, TRN4_SOURCE),                                            \
            PSUM_TRN4,                                                                         \
            SET(PSUM_ADD, NG_ROUND_TIES_TO_EVEN, ASSUMED, TRN4_SOURCE),                        \
            SET(PIECES, pieces_, ASSUMED, TRN4_SOURCE),                                        \
            SET(PIECE_SPLIT, NG_SPLIT_TRUNC, ASSUMED, TRN4_SOURCE),                            \
            SET(PIECE_ORDER, NG_ORDER_LO_FIRST, ASSUMED, TRN4_SOURCE),                         \
            SET(PIECE_ADDS, 2, ASSUMED, TRN4_SOURCE),                                          \
            SET(PIECE_OUTER, NG_OPERAND_A, ASSUMED, TRN4_SOURCE)                               \
        }                                                                                      \
    }

static const ng_rule trn4_rules[] = {
    TRN4_RULE("plain", NG_MODE_PLAIN, 0, BF16_F16 | OCP_FP8 | F(E3M4), 1, NG_K_INTERLEAVE, 1),
    TRN4_RULE("tf32", NG_MODE_PLAIN, 0, F(TF32), 1, NG_K_INTERLEAVE, 1),
    TRN4_RULE("f32", NG_MODE_PLAIN, 0, F(F32), 1, NG_K_INTERLEAVE, 2),
    TRN4_RULE("double_row", NG_MODE_DOUBLE_ROW, 0, OCP_FP8 | F(E3M4), 2, NG_K_SPLIT, 1),
    TRN4_RULE("mx", NG_MODE_MX, 32, OCP_FP8 | F(E2M1), 4, NG_K_LAYOUT, 1),
};

/* One chain of FP32 operations over all of K. */
#define ONE_CHAIN(tag, source, nan_tag, nan_source)                                            \
    SET(FAMILY, NG_FAMILY_ARRAY, tag, source), SET(NAN_F32, 0x7FC00000, nan_tag, nan_source),  \
        SET(TF32_IN, NG_ROUND_TIES_TO_EVEN, tag, source), SET(ROWS, 0, tag, source),           \
        SET(LANE_SUM, NG_LANE_SUM_FUSED, tag, source), SET(CHAIN_ROWS, 0, tag, source),        \
        SET(CHAIN_MAP, NG_CHAIN_BLOCK, tag, source),                                           \
        SET(COMBINE, NG_COMBINE_TREE, tag, source), SET(ACC_BITS, 24, tag, source),            \
        SET(ACC_ROUND, NG_ROUND_TIES_TO_EVEN, tag, source),                                    \
        SET(ACC_RANGE, NG_RANGE_F32, tag, source), SET(K_MAP, NG_K_INTERLEAVE, tag, source),   \
        SET(PSUM, NG_PSUM_F32, tag, source), SET(PSUM_ROUND, NG_PSUM_RNE, tag, source),        \
        SET(PSUM_ADD, NG_ROUND_TIES_TO_EVEN, tag, source), SET(PIECES, 1, tag, source),        \
        SET(PIECE_SPLIT, NG_SPLIT_TRUNC, tag, source),                                         \
        SET(PIECE_ORDER, NG_ORDER_LO_FIRST, tag, source), SET(PIECE_ADDS, 2, tag, source),     \
        SET(PIECE_OUTER, NG_OPERAND_A, tag, source)

static const ng_rule ocp_mx_rules[] = {
    { .name = "mx",
      .mode = NG_MODE_MX,
      .block = 32,
      .a = OCP_FP8 | OCP_FP6 | F(E2M1) | F(MXINT8),
      .b = OCP_FP8 | OCP_FP6 | F(E2M1) | F(MXINT8),
      .set = { ONE_CHAIN(DOCUMENTED, S_DEF, DOCUMENTED, S_DEF),
               SET(LANES, 32, DOCUMENTED, S_OCP) } },
};

#define FMA_RULE(name_, mode_)                                                                 \
    {                                                                                          \
        .name = name_, .mode = mode_, .a = ELEMENTS, .b = ELEMENTS, .set = {                   \
            ONE_CHAIN(DOCUMENTED, S_DEF, DOCUMENTED, S_DEF),                                   \
            SET(LANES, 1, DOCUMENTED, S_DEF)                                                   \
        }                                                                                      \
    }

static const ng_rule fma_rules[] = {
    FMA_RULE("plain", NG_MODE_PLAIN),
    FMA_RULE("mx", NG_MODE_MX),
    FMA_RULE("nv", NG_MODE_NV),
};

/* ---- Family fused. ---- */

/* NVIDIA: group products and C aligned to the largest exponent, `frac` bits kept, cut toward
 * zero, summed, FP32 result cut at `bits`, f16 result rounded to nearest. group_ and bits_ have
 * evidence of their own: (value, tag, source). `by` is HOPPER, whose ends of the range were
 * measured, or MODELS: see NV_ZEROS_, NV_SPECIALS_. */
#define NV_FUSED(k_instr_, group_, frac_, bits_, by, tag, source)                              \
    SET(FAMILY, NG_FAMILY_FUSED, tag, source), SET_BY(NAN_F32, 0x7FFFFFFF, NV_SPECIALS_##by),  \
        SET(SUM, NG_SUM_ALIGN, tag, source), SET(K_INSTR, k_instr_, tag, source), NV_L group_, \
        SET(FRAC, frac_, tag, source), SET(ALIGN_ROUND, NG_ROUND_TOWARD_ZERO, tag, source),    \
        SET(PRODUCT_NORM, NG_NORM_KEEP, tag, source),                                          \
        SET_BY(OUT_ZERO, NG_OUT_ZERO_PLUS, NV_NEW_##by), NV_OUT bits_,                         \
        SET_BY(FLUSH_IN, NG_FLUSH_NONE, NV_SPECIALS_##by),                                     \
        SET_BY(FLUSH_OUT, NG_FLUSH_NONE, NV_SPECIALS_##by), NV_IDLE(SUBGROUPS, 1),             \
        SET_BY(SPARSE_K, NG_SPARSE_K_COMPRESSED, NV_SPARSE_##by), NV_IDLE(SUM_FRAC, 31),       \
        NV_IDLE(C_FRAC, 24), NV_IDLE(C_DROP, 0), SET(PROMOTE, 0, DOCUMENTED, S_DEF)
#define NV_IDLE(param, value) SET(param, value, DOCUMENTED, S_IDLE)

/* Zeros and least exponents; NaN, Inf, subnormals; what was first seen on Hopper. */
#define NV_ZEROS_HOPPER    MEASURED, S_HOPPER
#define NV_ZEROS_MODELS    INFERRED, S_FLOORS
#define NV_SPECIALS_HOPPER MEASURED, S_HOPPER
#define NV_SPECIALS_MODELS INFERRED, S_SIM
#define NV_NEW_HOPPER      MEASURED, S_HOPPER
#define NV_NEW_MODELS      INFERRED, S_AS_HOPPER

/* Without a sparse unit (Volta, Turing) it is this library's definition, and no chip's. */
#define NV_SPARSE_HOPPER MEASURED, S_HOPPER
#define NV_SPARSE_MODELS INFERRED, S_SPARSE

/* What depends on the operands' range. f16: its products stay above FP32's floor, bf16 and tf32
 * have no f16 result, and FP8 reaches no floor that anybody has seen. */
#define NV_RANGE_F16(floor32, floor16, by)                                                     \
    SET_BY(ZERO_EXP, NG_ZERO_SKIP, NV_ZEROS_##by), NV_IDLE(FLOOR_F32, floor32),                \
        SET_BY(FLOOR_F16, floor16, NV_ZEROS_##by), NV_IDLE(PRODUCT_INF, 0)
#define NV_RANGE_WIDE(floor32, floor16, by)                                                    \
    SET_BY(ZERO_EXP, NG_ZERO_SKIP, NV_ZEROS_##by), SET_BY(FLOOR_F32, floor32, NV_ZEROS_##by),  \
        NV_IDLE(FLOOR_F16, floor16), SET_BY(PRODUCT_INF, 0, NV_SPECIALS_##by)
#define NV_RANGE_NO_FLOOR(by)                                                                  \
    SET_BY(ZERO_EXP, NG_ZERO_SKIP, NV_ZEROS_##by), SET_BY(FLOOR_F32, NO_FLOOR, NV_ZEROS_##by), \
        SET_BY(FLOOR_F16, NO_FLOOR, NV_ZEROS_##by), SET_BY(PRODUCT_INF, 0, NV_SPECIALS_##by)

/* Operands: of tf32 the upper bits of the pattern; exponents are those of the format. */
#define NV_NOT_TF32         NV_IDLE(TF32_IN, NG_ROUND_TOWARD_ZERO), NV_IDLE(TF32_NAN, NG_TF32_NAN_CUT)
#define NV_OWN(tag, source) NV_NOT_TF32, SET(OPERAND_EXP, NG_OPERAND_EXP_OWN, tag, source)
#define NV_OWN_TF32(by, tag, source)                                                           \
    SET_BY(TF32_IN, NG_ROUND_TOWARD_ZERO, NV_SPECIALS_##by),                                   \
        SET_BY(TF32_NAN, NG_TF32_NAN_CUT, NV_NEW_##by),                                        \
        SET(OPERAND_EXP, NG_OPERAND_EXP_OWN, tag, source)

/* Products of a step: captures are of one step each, so they show that it has no fewer; that it
 * has no more they show where it is a whole instruction. A step's FP32 result. */
#define NV_L(group_, tag, source) SET(GROUP, group_, tag, source)
#define NV_OUT(bits_, tag, source)                                                             \
    SET(OUT_BITS, bits_, tag, source), SET(OUT_ROUND, NG_ROUND_TOWARD_ZERO, tag, source)

#define NV_IN_STEP(tag, source)                                                                \
    SET(C_PLACE, NG_C_IN, tag, source), SET(K_PERM, NG_PERM_LINEAR, tag, source),              \
        NV_IDLE(EXACT_GROUP, 1) /* it can be another for FP4 alone */
#define F16_RNE(by, tag, source)                                                               \
    SET(OUT_F16, NG_F16_ACC_RNE, tag, source), SET_BY(NAN_F16, 0x7FFF, NV_SPECIALS_##by)
#define F16_NONE SET(OUT_F16, NG_F16_ACC_NONE, DOCUMENTED, S_PTX), NV_IDLE(NAN_F16, 0x7FFF)

/* Least exponents: emin of the result - (5 + F - 23); none seen for FP8. */
enum {
    FLOOR_F32_24 = -132,
    FLOOR_F32_25 = -133
};
enum {
    FLOOR_F16_23 = -19,
    FLOOR_F16_24 = -20,
    FLOOR_F16_25 = -21,
    NO_FLOOR = NG_FLOOR_NONE
};

#define NV_RULE(name_, formats_, same_, ...)                                                   \
    {                                                                                          \
        .name = name_, .mode = NG_MODE_PLAIN, .a = (formats_), .b = (formats_), .same = same_, \
        .set = {                                                                               \
            __VA_ARGS__                                                                        \
        }                                                                                      \
    }

/* f16 with either accumulator, bf16 with FP32 only; tf32 with half the products. */
#define NV_16BIT(k_instr_, group_, frac_, floor32, floor16, by, tag, source)                   \
    NV_RULE("f16", F(F16), true,                                                               \
            NV_FUSED(k_instr_, group_, frac_, (23, tag, source), by, tag, source),             \
            NV_RANGE_F16(floor32, floor16, by), NV_OWN_F16, NV_IN_STEP(tag, source),           \
            F16_RNE(by, tag, source)),                                                         \
        NV_RULE("bf16", F(BF16), true,                                                         \
                NV_FUSED(k_instr_, group_, frac_, (23, tag, source), by, tag, source),         \
                NV_RANGE_WIDE(floor32, floor16, by), NV_OWN(tag, source),                      \
                NV_IN_STEP(tag, source), F16_NONE)
#define NV_TF32(k_instr_, group_, frac_, floor32, by, tag, source)                             \
    NV_RULE("tf32", F(TF32), true,                                                             \
            NV_FUSED(k_instr_, group_, frac_, (23, tag, source), by, tag, source),             \
            NV_RANGE_WIDE(floor32, NO_FLOOR, by), NV_OWN_TF32(by, tag, source),                \
            NV_IN_STEP(tag, source), F16_NONE)
#define NV_OWN_F16 NV_NOT_TF32, NV_IDLE(OPERAND_EXP, NG_OPERAND_EXP_OWN)

/* FP8 mma.sync where there is no FP8 unit behind it: the operands widened to f16, two steps of
 * the f16 unit, then one rounded add. */
#define NV_FP8_EMULATED(by, out_tag, source)                                                   \
    NV_RULE(                                                                                   \
        "fp8", OCP_FP8, false,                                                                 \
        NV_FUSED(32, (16, MEASURED, source), 25, (23, out_tag, source), by, MEASURED, source), \
        NV_IDLE(ZERO_EXP, NG_ZERO_SKIP), NV_IDLE(FLOOR_F32, FLOOR_F32_25),                     \
        NV_IDLE(FLOOR_F16, FLOOR_F16_25), NV_IDLE(PRODUCT_INF, 0), NV_NOT_TF32,                \
        SET_BY(OPERAND_EXP, NG_OPERAND_EXP_F16, NV_NEW_##by),                                  \
        SET(C_PLACE, NG_C_AFTER, MEASURED, source),                                            \
        SET(K_PERM, NG_PERM_MOD4, MEASURED, source), NV_IDLE(EXACT_GROUP, 1),                  \
        F16_RNE(by, MEASURED, source))

static const ng_rule volta_rules[] = {
    NV_RULE(
        "f16", F(F16), true,
        NV_FUSED(4, (4, MEASURED, S_CAP), 23, (23, MEASURED, S_CAP), MODELS, MEASURED, S_CAP),
        NV_RANGE_F16(NO_FLOOR, FLOOR_F16_23, MODELS), NV_OWN_F16, NV_IN_STEP(MEASURED, S_CAP),
        F16_RNE(MODELS, MEASURED, S_CAP)),
};

static const ng_rule turing_rules[] = {
    NV_RULE(
        "f16", F(F16), true,
        NV_FUSED(8, (8, INFERRED, S_SIM), 24, (23, INFERRED, S_SIM), MODELS, INFERRED, S_SIM),
        NV_RANGE_F16(FLOOR_F32_24, FLOOR_F16_24, MODELS), NV_OWN_F16,
        NV_IN_STEP(INFERRED, S_SIM), F16_RNE(MODELS, INFERRED, S_SIM)),
};

static const ng_rule ampere_rules[] = {
    NV_16BIT(16, (8, INFERRED, S_SIM), 24, FLOOR_F32_24, FLOOR_F16_24, MODELS, MEASURED, S_CAP),
    NV_TF32(8, (4, INFERRED, S_SIM), 24, FLOOR_F32_24, MODELS, MEASURED, S_CAP),
};

static const ng_rule ada_rules[] = {
    NV_16BIT(16, (8, INFERRED, S_SIM), 24, FLOOR_F32_24, FLOOR_F16_24, MODELS, MEASURED, S_CAP),
    NV_TF32(8, (4, INFERRED, S_SIM), 24, FLOOR_F32_24, MODELS, MEASURED, S_CAP),
    NV_RULE(
        "fp8", OCP_FP8, false,
        NV_FUSED(32, (16, MEASURED, S_CAP), 13, (13, MEASURED, S_CAP), MODELS, MEASURED, S_CAP),
        NV_RANGE_NO_FLOOR(MODELS), NV_OWN(MEASURED, S_CAP), NV_IN_STEP(MEASURED, S_CAP),
        F16_RNE(MODELS, MEASURED, S_CAP)),
};

static const ng_rule hopper_rules[] = {
    NV_16BIT(16, (16, MEASURED, S_HOPPER), 25, FLOOR_F32_25, FLOOR_F16_25, HOPPER, MEASURED,
             S_HOPPER),
    NV_TF32(8, (8, MEASURED, S_HOPPER), 25, FLOOR_F32_25, HOPPER, MEASURED, S_HOPPER),
    NV_FP8_EMULATED(HOPPER, MEASURED, S_HOPPER),
};

static const ng_rule hopper_wgmma_rules[] = {
    NV_16BIT(16, (16, MEASURED, S_HOPPER), 25, FLOOR_F32_25, FLOOR_F16_25, HOPPER, MEASURED,
             S_HOPPER),
    NV_TF32(8, (8, MEASURED, S_HOPPER), 25, FLOOR_F32_25, HOPPER, MEASURED, S_HOPPER),
    NV_RULE("fp8", OCP_FP8, false,
            NV_FUSED(32, (32, MEASURED, S_HOPPER), 13, (13, MEASURED, S_HOPPER), HOPPER,
                     MEASURED, S_HOPPER),
            SET(ZERO_EXP, NG_ZERO_SKIP, MEASURED, S_HOPPER),
            SET(FLOOR_F32, NO_FLOOR, MEASURED, S_HOPPER),
            SET(FLOOR_F16, NO_FLOOR, MEASURED, S_HOPPER), NV_IDLE(PRODUCT_INF, 0),
            NV_OWN(MEASURED, S_HOPPER), NV_IN_STEP(MEASURED, S_HOPPER),
            F16_RNE(HOPPER, MEASURED, S_HOPPER)),
};

static const ng_rule blackwell_rules[] = {
    NV_16BIT(16, (16, MEASURED, S_CAP), 25, FLOOR_F32_25, FLOOR_F16_25, MODELS, MEASURED,
             S_CAP),
    NV_TF32(8, (8, INFERRED, S_SIM), 25, FLOOR_F32_25, MODELS, INFERRED, S_SIM),
    NV_FP8_EMULATED(MODELS, MEASURED, S_EMUL),
};

/* mxf4, nvf4: four exact sums of 16, hung from the scales' exponents. */
#define NV_FP4(name_, mode_, block_)                                                           \
    {                                                                                          \
        .name = name_, .mode = mode_, .block = block_, .a = F(E2M1), .b = F(E2M1), .set = {    \
            NV_FUSED(64, (4, INFERRED, S_SIM), 35, (23, INFERRED, S_SIM), MODELS, INFERRED,    \
                     S_SIM),                                                                   \
            NV_RANGE_NO_FLOOR(MODELS),                                                         \
            NV_OWN(INFERRED, S_SIM),                                                           \
            SET(C_PLACE, NG_C_IN, INFERRED, S_SIM),                                            \
            SET(K_PERM, NG_PERM_LINEAR, INFERRED, S_SIM),                                      \
            SET(EXACT_GROUP, 16, INFERRED, S_SIM),                                             \
            F16_NONE                                                                           \
        }                                                                                      \
    }

static const ng_rule tcgen05_rules[] = {
    NV_16BIT(16, (16, INFERRED, S_SIM), 25, FLOOR_F32_25, FLOOR_F16_25, MODELS, INFERRED,
             S_SIM),
    NV_TF32(8, (8, INFERRED, S_SIM), 25, FLOOR_F32_25, MODELS, INFERRED, S_SIM),
    NV_RULE(
        "f8f6f4", OCP_FP8 | OCP_FP6 | F(E2M1), false,
        NV_FUSED(32, (32, INFERRED, S_SIM), 25, (23, INFERRED, S_SIM), MODELS, INFERRED, S_SIM),
        NV_RANGE_NO_FLOOR(MODELS), NV_OWN(INFERRED, S_SIM), NV_IN_STEP(INFERRED, S_SIM),
        F16_RNE(MODELS, INFERRED, S_SIM)),
    NV_FP4("mxf4", NG_MODE_MX, 32),
    { .name = "mxf8f6f4",
      .mode = NG_MODE_MX,
      .block = 32,
      .a = OCP_FP8 | OCP_FP6 | F(E2M1),
      .b = OCP_FP8 | OCP_FP6 | F(E2M1),
      .set = { NV_FUSED(32, (32, INFERRED, S_SIM), 25, (23, INFERRED, S_SIM), MODELS, INFERRED,
                        S_SIM),
               NV_RANGE_NO_FLOOR(MODELS), NV_OWN(INFERRED, S_SIM), NV_IN_STEP(INFERRED, S_SIM),
               F16_NONE } },
    NV_FP4("nvf4", NG_MODE_NV, 16),
};

/* AMD: FP32 accumulators only. */
#define AMD_FUSED(sum_, sum_source, k_instr_, group_, frac_, flush_in_, flush_out_, place_,    \
                  sub_, drop_)                                                                 \
    SET(FAMILY, NG_FAMILY_FUSED, INFERRED, S_SIM), SET(NAN_F32, 0x7FC00000, ASSUMED, S_NONE),  \
        SET(TF32_IN, NG_ROUND_TOWARD_ZERO, INFERRED, S_SIM),                                   \
        SET(SUM, sum_, INFERRED, sum_source), SET(K_INSTR, k_instr_, INFERRED, S_SIM),         \
        SET(GROUP, group_, INFERRED, S_SIM), SET(K_PERM, NG_PERM_LINEAR, INFERRED, S_SIM),     \
        SET(EXACT_GROUP, 1, INFERRED, S_SIM), SET(FRAC, frac_, INFERRED, S_SIM),               \
        SET(ALIGN_ROUND, NG_ROUND_TOWARD_ZERO, INFERRED, S_SIM),                               \
        SET(PRODUCT_NORM, NG_NORM_KEEP, INFERRED, S_SIM),                                      \
        SET(ZERO_EXP, NG_ZERO_SKIP, ASSUMED, S_NONE),                                          \
        SET(FLOOR_F32, NG_FLOOR_NONE, INFERRED, S_SIM),                                        \
        SET(FLOOR_F16, NG_FLOOR_NONE, INFERRED, S_SIM), SET(C_PLACE, place_, INFERRED, S_SIM), \
        SET(SUBGROUPS, sub_, INFERRED, S_SIM), SET(SUM_FRAC, 31, INFERRED, S_SIM),             \
        SET(C_FRAC, 24, INFERRED, S_SIM), SET(C_DROP, drop_, INFERRED, S_SIM),                 \
        SET(PRODUCT_INF, (place_) == NG_C_LATE, INFERRED, S_SIM),                              \
        SET(OUT_BITS, 23, INFERRED, S_SIM),                                                    \
        SET(OUT_ROUND, NG_ROUND_TIES_TO_EVEN, INFERRED, S_SIM),                                \
        SET(OUT_F16, NG_F16_ACC_NONE, INFERRED, S_SIM), SET(NAN_F16, 0x7E00, ASSUMED, S_NONE), \
        SET(FLUSH_IN, flush_in_, INFERRED, S_SIM),                                             \
        SET(FLUSH_OUT, flush_out_, INFERRED, S_SIM),                                           \
        SET(TF32_NAN, NG_TF32_NAN_KEEP, ASSUMED, S_NONE),                                      \
        SET(OPERAND_EXP, NG_OPERAND_EXP_OWN, INFERRED, S_SIM),                                 \
        SET(OUT_ZERO, NG_OUT_ZERO_SIGNED, ASSUMED, S_NONE),                                    \
        SET(SPARSE_K, NG_SPARSE_K_COMPRESSED, ASSUMED, S_NONE),                                \
        SET(PROMOTE, 0, DOCUMENTED, S_DEF)

#define AMD_RULE(name_, formats_, ...)                                                         \
    {                                                                                          \
        .name = name_, .mode = NG_MODE_PLAIN, .a = (formats_), .b = (formats_), .set = {       \
            AMD_FUSED(__VA_ARGS__)                                                             \
        }                                                                                      \
    }
#define AMD_F32                                                                                \
    {                                                                                          \
        .name = "f32", .mode = NG_MODE_PLAIN, .a = F(F32), .b = F(F32), .set = {               \
            ONE_CHAIN(INFERRED, S_SIM, ASSUMED, S_NONE),                                       \
            SET(LANES, 1, INFERRED, S_SIM)                                                     \
        }                                                                                      \
    }

/* The other published model of CDNA1 sums four (f16) or two (bf16) products and C exactly. */
static const ng_rule cdna1_rules[] = {
    AMD_RULE("f16", F(F16), NG_SUM_PAIRWISE, S_BOTH, 16, 4, 24, NG_FLUSH_NONE, NG_FLUSH_NONE,
             NG_C_IN, 1, 0),
    AMD_RULE("bf16", F(BF16), NG_SUM_PAIRWISE, S_BOTH, 8, 2, 24, NG_FLUSH_NONE, NG_FLUSH_NONE,
             NG_C_IN, 1, 0),
    AMD_F32,
};

static const ng_rule cdna2_rules[] = {
    AMD_RULE("f16", F(F16), NG_SUM_PAIRWISE, S_SIM, 16, 4, 24, NG_FLUSH_ZERO, NG_FLUSH_SIGNED,
             NG_C_IN, 1, 0),
    AMD_RULE("bf16", F(BF16), NG_SUM_PAIRWISE, S_SIM, 16, 4, 24, NG_FLUSH_ZERO, NG_FLUSH_SIGNED,
             NG_C_IN, 1, 0),
    AMD_F32,
};

static const ng_rule cdna3_rules[] = {
    AMD_RULE("f16", F(F16), NG_SUM_ALIGN, S_SIM, 16, 8, 24, NG_FLUSH_NONE, NG_FLUSH_NONE,
             NG_C_LATE, 1, 0),
    AMD_RULE("bf16", F(BF16), NG_SUM_ALIGN, S_SIM, 16, 8, 24, NG_FLUSH_NONE, NG_FLUSH_NONE,
             NG_C_LATE, 1, 0),
    AMD_RULE("xf32", F(TF32), NG_SUM_ALIGN, S_SIM, 8, 4, 24, NG_FLUSH_NONE, NG_FLUSH_NONE,
             NG_C_LATE, 1, 0),
    AMD_RULE("fp8", FNUZ_FP8, NG_SUM_ALIGN, S_SIM, 32, 16, 24, NG_FLUSH_NONE, NG_FLUSH_NONE,
             NG_C_LATE, 2, 25),
    AMD_F32,
};

/* ---- The list. ---- */

#define PROFILE(variable, name_, revision_, rules_, about_)                                    \
    static const ng_profile variable = { .name = name_,                                        \
                                         .about = about_,                                      \
                                         .revision = revision_,                                \
                                         .n_rules = sizeof rules_ / sizeof rules_[0],          \
                                         .rules = rules_ }

PROFILE(trn1, "trn1", 1, trn1_rules, "AWS Trainium (NeuronCore-v2), tensor engine");
PROFILE(trn2, "trn2", 1, trn2_rules, "AWS Trainium2 (NeuronCore-v3), tensor engine");
PROFILE(trn3, "trn3", 1, trn3_rules, "AWS Trainium3 (NeuronCore-v4), tensor engine");
PROFILE(trn4, "trn4-preview", 1, trn4_rules,
        "AWS Trainium4: announced only, everything assumed");
PROFILE(ocp_mx, "ocp-mx", 1, ocp_mx_rules,
        "OCP MX 1.0 dot products, one FP32 rounding a block");
PROFILE(chain_f32, "fma-f32", 1, fma_rules,
        "one FP32 fused multiply-add after another, k ascending");
PROFILE(volta, "nv-volta", 2, volta_rules, "NVIDIA Volta tensor core (V100), mma / wmma");
PROFILE(turing, "nv-turing", 2, turing_rules, "NVIDIA Turing tensor core, mma / wmma");
PROFILE(ampere, "nv-ampere", 2, ampere_rules, "NVIDIA Ampere tensor core (A100), mma / wmma");
PROFILE(ada, "nv-ada", 2, ada_rules, "NVIDIA Ada tensor core, mma / wmma");
PROFILE(hopper, "nv-hopper", 2, hopper_rules, "NVIDIA Hopper (H100), mma.sync / wmma");
PROFILE(wgmma, "nv-hopper-wgmma", 2, hopper_wgmma_rules, "NVIDIA Hopper (H100), wgmma");
PROFILE(blackwell, "nv-blackwell", 2, blackwell_rules,
        "NVIDIA Blackwell (B200), mma.sync / wmma");
PROFILE(tcgen05, "nv-blackwell-tcgen05", 2, tcgen05_rules,
        "NVIDIA Blackwell (B200), tcgen05.mma");
PROFILE(cdna1, "amd-cdna1", 1, cdna1_rules, "AMD CDNA1 matrix core (MI100), v_mfma");
PROFILE(cdna2, "amd-cdna2", 1, cdna2_rules,
        "AMD CDNA2 matrix core (MI250X), v_mfma, bf16_1k forms");
PROFILE(cdna3, "amd-cdna3", 1, cdna3_rules, "AMD CDNA3 matrix core (MI300X), v_mfma");

const ng_profile *const ng_builtin_profiles[] = {
    &trn1, &trn2,   &trn3,  &trn4,      &ocp_mx,  &chain_f32, &volta, &turing, &ampere,
    &ada,  &hopper, &wgmma, &blackwell, &tcgen05, &cdna1,     &cdna2, &cdna3
};
const size_t ng_n_builtin_profiles = sizeof ng_builtin_profiles / sizeof ng_builtin_profiles[0];
