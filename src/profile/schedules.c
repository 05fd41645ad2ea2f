/* SPDX-License-Identifier: Apache-2.0 */
/* Attention schedules as data: names of values, presets, text, checks. Numerics:
 * docs/numerics.md, section 11.9 item 62. */
#include <string.h>

#include "ng/attention.h"
#include "ng/elementary.h"
#include "ng/quantize.h"
#include "setting_text.h"

/* ---- Parameters and the names of their values. ---- */

static const char *const arithmetic_names[] = { "steps", "real", NULL };
static const char *const place_names[] = { "q", "scores", "exp", NULL };
static const char *const order_names[] = { "mask_scale", "scale_mask", NULL };
static const char *const division_names[] = { "divide", "reciprocal", NULL };
static const char *const base_names[] = { "e", "2", NULL };
static const char *const rule_names[] = { "floor", "floor_up1", "ceil", "even", "rceil", NULL };
static const char *const source_names[] = { "exp", "p", NULL };
static const char *const sum_names[] = { "sequential", "tree", "ones", NULL };
static const char *const update_names[] = { "two", "fma", "accumulator", NULL };
static const char *const store_names[] = { "f32", "q", NULL };
static const char *const sink_names[] = { "first", "last", NULL };
static const char *const saved_names[] = { "lse", "max_sum", NULL };
static const char *const function_names[] = { "cr", "sleef", "table", NULL };

#define TYPE_INT        SETTING_INT, NULL
#define TYPE_HEX        SETTING_HEX, NULL
#define TYPE_FORMAT     SETTING_FORMAT, NULL
#define TYPE_ARITHMETIC SETTING_NAMED, arithmetic_names
#define TYPE_PLACE      SETTING_NAMED, place_names
#define TYPE_ORDER      SETTING_NAMED, order_names
#define TYPE_DIVISION   SETTING_NAMED, division_names
#define TYPE_BASE       SETTING_NAMED, base_names
#define TYPE_RULE       SETTING_NAMED, rule_names
#define TYPE_SOURCE     SETTING_NAMED, source_names
#define TYPE_SUM        SETTING_NAMED, sum_names
#define TYPE_UPDATE     SETTING_NAMED, update_names
#define TYPE_STORE      SETTING_NAMED, store_names
#define TYPE_SINK       SETTING_NAMED, sink_names
#define TYPE_FUNCTION   SETTING_NAMED, function_names
#define TYPE_SAVED      SETTING_NAMED, saved_names

static const struct setting_param params[NG_ATTENTION_PARAM_COUNT] = {
#define NG_ATTENTION_PARAM(name, key, type, meaning) { key, TYPE_##type, meaning },
#include "ng/attention.def"
#undef NG_ATTENTION_PARAM
};

static const struct setting_table table = { params, NG_ATTENTION_PARAM_COUNT };

/* ---- Presets. ---- */

#define F32_NEG_MAX  0xFF7FFFFFu /* -FLT_MAX */
#define F32_NEG_INF  0xFF800000u
#define F32_NEG_F16  0xC77FE000u /* -65504, the least f16 */
#define F32_NEG_1E38 0xFE967699u

/* AWS's published kernels: what they compute in which order. */
#define CTE "nki-library core/attention/attention_cte.py"
#define TKG "nki-library core/attention/attention_tkg.py"
#define MX  "nki-library attention_mxfp8; NKI docs attention-mxfp8-tkg"
#define NKI "NKI docs quantize_mx"

#define PARAM(name) [NG_ATTENTION_##name]

/* The same in all schedules of a device: its functions and its quantiser. */
#define TRN_COMMON                                                                             \
    PARAM(CAP_ARGUMENT) = A(NG_DIVISION_RECIPROCAL),                                           \
    PARAM(MX_RULE) = D(NG_SCALE_FLOOR_UP1, NKI), PARAM(MX_INPUT) = D(NG_BF16, NKI),            \
    PARAM(UPDATE) = A(NG_UPDATE_TWO), PARAM(EXP) = A(NG_FUNCTION_CR),                          \
    PARAM(TANH) = A(NG_FUNCTION_CR), PARAM(RECIPROCAL) = A(NG_FUNCTION_CR)

/* clang-format off */
/* No device's. */
#define GENERIC(arithmetic) \
    PARAM(ARITHMETIC)   = A(arithmetic), \
    PARAM(Q_FORMAT)     = A(NG_FORMAT_NONE), \
    PARAM(Q_BLOCK)      = A(0), \
    PARAM(KV_FORMAT)    = A(NG_FORMAT_NONE), \
    PARAM(SCORE_FORMAT) = A(NG_F32), \
    PARAM(SCALE_PLACE)  = A(NG_PLACE_SCORES), \
    PARAM(SCORE_ORDER)  = A(NG_SCORE_SCALE_MASK), \
    PARAM(CAP_ARGUMENT) = A(NG_DIVISION_DIVIDE), \
    PARAM(MASK)         = A(F32_NEG_INF), \
    PARAM(MAX_INIT)     = A(F32_NEG_MAX), \
    PARAM(KEY_TILE)     = A(128), \
    PARAM(SECTION)      = A(128), \
    PARAM(SECTION_FROM) = A(0), \
    PARAM(SKIP_QUERIES) = A(128), \
    PARAM(SKIP_KEYS)    = A(128), \
    PARAM(EXP_BASE)     = A(NG_EXP_BASE_E), \
    PARAM(P_FORMAT)     = A(NG_BF16), \
    PARAM(P_BLOCK)      = A(0), \
    PARAM(MX_RULE)      = A(NG_SCALE_FLOOR), \
    PARAM(MX_INPUT)     = A(NG_F32), \
    PARAM(SUM_SOURCE)   = A(NG_SUM_OF_EXP), \
    PARAM(SUM_ORDER)    = A(NG_SUM_SEQUENTIAL), \
    PARAM(PV_KEYS)      = A(0), \
    PARAM(UPDATE)       = A(NG_UPDATE_TWO), \
    PARAM(O_FORMAT)     = A(NG_OUTPUT_F32), \
    PARAM(SINK_PLACE)   = A(NG_SINK_FIRST), \
    PARAM(NORMALISE)    = A(NG_DIVISION_RECIPROCAL), \
    PARAM(EXP)          = A(NG_FUNCTION_CR), \
    PARAM(TANH)         = A(NG_FUNCTION_CR), \
    PARAM(RECIPROCAL)   = A(NG_FUNCTION_CR), \
    PARAM(STATISTICS)   = A(NG_STATISTICS_LSE)

static const ng_attention_schedule schedules[] = {
    { "trn-prefill", "AWS NKI attention_cte: prompt processing on Trainium2 and 3", {
        TRN_COMMON,
        PARAM(ARITHMETIC)   = B(NG_ARITHMETIC_STEPS, CTE),
        PARAM(Q_FORMAT)     = B(NG_BF16, CTE),
        PARAM(Q_BLOCK)      = B(0, CTE),
        PARAM(KV_FORMAT)    = B(NG_BF16, CTE),
        PARAM(SCORE_FORMAT) = B(NG_F32, CTE),
        PARAM(SCALE_PLACE)  = B(NG_PLACE_SCORES, CTE),
        PARAM(SCORE_ORDER)  = B(NG_SCORE_MASK_SCALE, CTE),
        PARAM(MASK)         = B(F32_NEG_MAX, CTE),
        PARAM(MAX_INIT)     = B(F32_NEG_MAX, CTE),
        PARAM(KEY_TILE)     = B(512, CTE),
        PARAM(SECTION)      = B(8192, CTE),
        PARAM(SECTION_FROM) = B(10240, CTE),
        PARAM(SKIP_QUERIES) = I(128, CTE),
        PARAM(SKIP_KEYS)    = B(512, CTE),
        PARAM(EXP_BASE)     = B(NG_EXP_BASE_E, CTE),
        PARAM(P_FORMAT)     = B(NG_BF16, CTE),
        PARAM(P_BLOCK)      = B(0, CTE),
        PARAM(SUM_SOURCE)   = I(NG_SUM_OF_EXP, CTE),
        PARAM(SUM_ORDER)    = A(NG_SUM_SEQUENTIAL),
        PARAM(PV_KEYS)      = B(2048, CTE),
        PARAM(O_FORMAT)     = B(NG_OUTPUT_AS_Q, CTE),
        PARAM(SINK_PLACE)   = B(NG_SINK_FIRST, CTE),
        PARAM(NORMALISE)    = B(NG_DIVISION_RECIPROCAL, CTE),
        PARAM(STATISTICS)   = B(NG_STATISTICS_MAX_SUM, CTE),
    } },
    { "trn-decode", "AWS NKI attention_tkg: token generation on Trainium2 and 3", {
        TRN_COMMON,
        PARAM(ARITHMETIC)   = B(NG_ARITHMETIC_STEPS, TKG),
        PARAM(Q_FORMAT)     = B(NG_BF16, TKG),
        PARAM(Q_BLOCK)      = B(0, TKG),
        PARAM(KV_FORMAT)    = B(NG_BF16, TKG),
        PARAM(SCORE_FORMAT) = B(NG_F32, TKG),
        PARAM(SCALE_PLACE)  = B(NG_PLACE_Q, TKG),
        PARAM(SCORE_ORDER)  = B(NG_SCORE_SCALE_MASK, TKG),
        PARAM(MASK)         = B(F32_NEG_INF, TKG),
        PARAM(MAX_INIT)     = B(F32_NEG_MAX, TKG),
        PARAM(KEY_TILE)     = I(512, TKG),
        PARAM(SECTION)      = B(8192, TKG),
        PARAM(SECTION_FROM) = B(0, TKG),
        PARAM(SKIP_QUERIES) = A(0),
        PARAM(SKIP_KEYS)    = A(0),
        PARAM(EXP_BASE)     = B(NG_EXP_BASE_E, TKG),
        PARAM(P_FORMAT)     = B(NG_BF16, TKG),
        PARAM(P_BLOCK)      = B(0, TKG),
        PARAM(SUM_SOURCE)   = B(NG_SUM_OF_P, TKG),
        PARAM(SUM_ORDER)    = B(NG_SUM_ONES, TKG),
        PARAM(PV_KEYS)      = B(0, TKG),
        PARAM(O_FORMAT)     = B(NG_OUTPUT_F32, TKG),
        PARAM(SINK_PLACE)   = A(NG_SINK_FIRST),
        PARAM(NORMALISE)    = B(NG_DIVISION_RECIPROCAL, TKG),
        PARAM(STATISTICS)   = A(NG_STATISTICS_LSE),
    } },
    { "trn-mx-decode", "AWS NKI attention_mxfp8: token generation from MXFP8 keys on Trainium3", {
        TRN_COMMON,
        PARAM(ARITHMETIC)   = B(NG_ARITHMETIC_STEPS, MX),
        PARAM(Q_FORMAT)     = B(NG_E4M3FN, MX),
        PARAM(Q_BLOCK)      = D(32, NKI),
        PARAM(KV_FORMAT)    = D(NG_FORMAT_NONE, MX),
        PARAM(SCORE_FORMAT) = B(NG_BF16, MX),
        PARAM(SCALE_PLACE)  = B(NG_PLACE_Q, MX),
        PARAM(SCORE_ORDER)  = B(NG_SCORE_SCALE_MASK, MX),
        PARAM(MASK)         = B(F32_NEG_F16, MX),
        PARAM(MAX_INIT)     = B(F32_NEG_1E38, MX),
        PARAM(KEY_TILE)     = I(128, MX),
        PARAM(SECTION)      = B(2048, MX),
        PARAM(SECTION_FROM) = A(0),
        PARAM(SKIP_QUERIES) = A(0),
        PARAM(SKIP_KEYS)    = A(0),
        PARAM(EXP_BASE)     = B(NG_EXP_BASE_E, MX),
        PARAM(P_FORMAT)     = B(NG_E4M3FN, MX),
        PARAM(P_BLOCK)      = B(32, MX),
        PARAM(SUM_SOURCE)   = B(NG_SUM_OF_EXP, MX),
        PARAM(SUM_ORDER)    = A(NG_SUM_SEQUENTIAL),
        PARAM(PV_KEYS)      = A(0),
        PARAM(O_FORMAT)     = A(NG_OUTPUT_F32),
        PARAM(SINK_PLACE)   = A(NG_SINK_FIRST),
        PARAM(NORMALISE)    = B(NG_DIVISION_RECIPROCAL, MX),
        PARAM(STATISTICS)   = A(NG_STATISTICS_LSE),
    } },
    { "flash", "online softmax over key tiles of 128: a definition, no device's", {
        GENERIC(NG_ARITHMETIC_STEPS),
    } },
    { "exact", "the real number, rounded once: a definition, for measuring errors", {
        GENERIC(NG_ARITHMETIC_REAL),
    } },
};
/* clang-format on */

const ng_attention_schedule *ng_attention_at(size_t i)
{
    return i < sizeof schedules / sizeof *schedules ? &schedules[i] : NULL;
}

const ng_attention_schedule *ng_attention_find(const char *name)
{
    for (size_t i = 0; name && ng_attention_at(i); i++)
        if (strcmp(schedules[i].name, name) == 0)
            return &schedules[i];
    return NULL;
}

/* ---- Text. ---- */

static const struct setting_param *info(ng_attention_param p)
{
    return (unsigned)p < NG_ATTENTION_PARAM_COUNT ? &params[p] : NULL;
}

const char *ng_attention_param_key(ng_attention_param p)
{
    return info(p) ? info(p)->key : NULL;
}

const char *ng_attention_param_meaning(ng_attention_param p)
{
    return info(p) ? info(p)->meaning : NULL;
}

size_t ng_attention_param_print(ng_attention_param param, int32_t value, char *buffer,
                                size_t bytes)
{
    return info(param) ? ng_setting_print(info(param), value, buffer, bytes) : 0;
}

size_t ng_attention_param_values(ng_attention_param param, char *buffer, size_t bytes)
{
    return info(param) ? ng_setting_values(info(param), buffer, bytes) : 0;
}

size_t ng_attention_schedule_print(const ng_attention_schedule *s, char *buffer, size_t bytes)
{
    return s ? ng_settings_print(&table, s->name, s->set, buffer, bytes) : 0;
}

ng_status ng_attention_set(ng_attention_schedule *s, const char *key, const char *text)
{
    return s && key && text ? ng_setting_set(&table, s->set, key, text) : NG_ERR_ARGUMENT;
}

/* ---- Checks: item 62's limits. ---- */

static int32_t value_of(const struct setting_check *c, ng_attention_param p)
{
    return c->set[p].value;
}

static ng_status refuse(const struct setting_check *c, ng_attention_param p, const char *wanted)
{
    return ng_setting_refuse(c, (int)p, wanted);
}

static bool is_negative(uint32_t pattern) /* -Inf too; not NaN */
{
    return pattern > 0x80000000u && pattern <= F32_NEG_INF;
}

static bool is_element_of_blocks(int32_t format)
{
    return format == NG_E4M3FN || format == NG_E5M2;
}

static ng_status check_formats(const struct setting_check *c)
{
    const int32_t q = value_of(c, NG_ATTENTION_Q_FORMAT),
                  kv = value_of(c, NG_ATTENTION_KV_FORMAT),
                  p = value_of(c, NG_ATTENTION_P_FORMAT),
                  score = value_of(c, NG_ATTENTION_SCORE_FORMAT),
                  input = value_of(c, NG_ATTENTION_MX_INPUT);
    const int32_t q_block = value_of(c, NG_ATTENTION_Q_BLOCK),
                  p_block = value_of(c, NG_ATTENTION_P_BLOCK);
    if (q != NG_FORMAT_NONE && !ng_is_plain_element(q))
        return refuse(c, NG_ATTENTION_Q_FORMAT, "given, or an element format");
    if (kv != NG_FORMAT_NONE && !ng_is_plain_element(kv))
        return refuse(c, NG_ATTENTION_KV_FORMAT, "given, or an element format");
    if (!ng_is_plain_element(p) || ng_format_info((ng_format)p)->store_bits < 8)
        return refuse(c, NG_ATTENTION_P_FORMAT, "an element format of at least a byte");
    if (score != NG_F32 && score != NG_BF16)
        return refuse(c, NG_ATTENTION_SCORE_FORMAT, "f32 or bf16");
    if (input != NG_F32 && input != NG_BF16)
        return refuse(c, NG_ATTENTION_MX_INPUT, "f32 or bf16");
    if (q_block != 0 && q_block != 32)
        return refuse(c, NG_ATTENTION_Q_BLOCK, "0 or 32");
    if (p_block != 0 && p_block != 32)
        return refuse(c, NG_ATTENTION_P_BLOCK, "0 or 32");
    if (q_block && !is_element_of_blocks(q))
        return refuse(c, NG_ATTENTION_Q_FORMAT, "e4m3fn or e5m2, as q_block is 32");
    if (p_block && !is_element_of_blocks(p))
        return refuse(c, NG_ATTENTION_P_FORMAT, "e4m3fn or e5m2, as p_block is 32");
    return NG_OK;
}

static ng_status check_cuts(const struct setting_check *c)
{
    const int32_t tile = value_of(c, NG_ATTENTION_KEY_TILE),
                  section = value_of(c, NG_ATTENTION_SECTION);
    if (tile < 1)
        return refuse(c, NG_ATTENTION_KEY_TILE, "at least 1");
    if (section % tile)
        return refuse(c, NG_ATTENTION_SECTION, "a multiple of key_tile");
    if (!value_of(c, NG_ATTENTION_P_BLOCK))
        return NG_OK;
    static const ng_attention_param cuts[] = { NG_ATTENTION_SECTION, NG_ATTENTION_PV_KEYS,
                                               NG_ATTENTION_SKIP_KEYS, NG_ATTENTION_KEY_TILE };
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        if (value_of(c, cuts[i]) % 32)
            return refuse(c, cuts[i], "a multiple of 32, as p_block is 32");
    return NG_OK;
}

ng_status ng_attention_schedule_check(const ng_attention_schedule *s, char *message,
                                      size_t bytes)
{
    if (!s)
        return NG_ERR_ARGUMENT;
    const struct setting_check c = { &table, s->set, message, message ? bytes : 0 };
    ng_status status = ng_setting_check_values(&c);
    if (!status)
        status = check_formats(&c);
    if (!status)
        status = check_cuts(&c);
    if (status)
        return status;
    if (!is_negative((uint32_t)value_of(&c, NG_ATTENTION_MASK)))
        return refuse(&c, NG_ATTENTION_MASK, "a negative FP32 pattern, not NaN");
    if (!is_negative((uint32_t)value_of(&c, NG_ATTENTION_MAX_INIT)))
        return refuse(&c, NG_ATTENTION_MAX_INIT, "a negative FP32 pattern, not NaN");
    if (value_of(&c, NG_ATTENTION_SUM_ORDER) == NG_SUM_ONES &&
        value_of(&c, NG_ATTENTION_SUM_SOURCE) != NG_SUM_OF_P)
        return refuse(&c, NG_ATTENTION_SUM_SOURCE, "p, as sum_order is ones");
    if (value_of(&c, NG_ATTENTION_UPDATE) == NG_UPDATE_ACCUMULATOR &&
        value_of(&c, NG_ATTENTION_PV_KEYS))
        return refuse(&c, NG_ATTENTION_PV_KEYS, "0, as update is accumulator");
    return NG_OK;
}
