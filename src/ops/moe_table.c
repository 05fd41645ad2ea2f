/* SPDX-License-Identifier: Apache-2.0 */
/* Presets of public models, and the parameters with their evidence. Numerics: docs/numerics.md,
 * section 11.10. */
#include <string.h>

#include "ng/moe.h"

#define ROUTE .size = sizeof(ng_route_op)
#define ACT   .size = sizeof(ng_moe_act_op)

#define GPT_OSS_SOURCE "config.json of openai/gpt-oss, and its published PyTorch model"
#define GPT_OSS_ROUTE                                                                          \
    {                                                                                          \
        ROUTE, .k = 4, .order = NG_ROUTE_TOPK_THEN_ACT                                         \
    }

static const ng_moe_preset presets[] = {
    { .name = "gpt-oss-20b",
      .source = GPT_OSS_SOURCE,
      .evidence = NG_EVIDENCE_BACKED,
      .experts = 32,
      .hidden = 2880,
      .inner = 2880,
      .route = GPT_OSS_ROUTE,
      .act = { ACT, .act = NG_MOE_GPT_OSS },
      .weights = NG_E2M1,
      .router_bias = true,
      .expert_bias = true },
    { .name = "gpt-oss-120b",
      .source = GPT_OSS_SOURCE,
      .evidence = NG_EVIDENCE_BACKED,
      .experts = 128,
      .hidden = 2880,
      .inner = 2880,
      .route = GPT_OSS_ROUTE,
      .act = { ACT, .act = NG_MOE_GPT_OSS },
      .weights = NG_E2M1,
      .router_bias = true,
      .expert_bias = true },
    { .name = "mixtral-8x7b",
      .source = "config.json of mistralai/Mixtral-8x7B; transformers, modeling_mixtral",
      .evidence = NG_EVIDENCE_BACKED,
      .experts = 8,
      .hidden = 4096,
      .inner = 14336,
      .route = { ROUTE, .k = 2, .order = NG_ROUTE_ACT_THEN_TOPK, .softmax_by = NG_DIVIDE_TRUE,
                 .normalise = true, .normalise_by = NG_DIVIDE_TRUE },
      .act = { ACT },
      .weights = NG_BF16 },
    { .name = "qwen3-moe",
      .source = "config.json of Qwen/Qwen3-30B-A3B; transformers, modeling_qwen3_moe",
      .evidence = NG_EVIDENCE_BACKED,
      .experts = 128,
      .hidden = 2048,
      .inner = 768,
      .route = { ROUTE, .k = 8, .order = NG_ROUTE_ACT_THEN_TOPK, .softmax_by = NG_DIVIDE_TRUE,
                 .normalise = true, .normalise_by = NG_DIVIDE_TRUE },
      .act = { ACT },
      .weights = NG_BF16 },
    { .name = "deepseek-v3",
      .source = "config.json and modeling_deepseek of deepseek-ai/DeepSeek-V3",
      .evidence = NG_EVIDENCE_BACKED,
      .experts = 256,
      .hidden = 7168,
      .inner = 2048,
      .route = { ROUTE, .k = 8, .order = NG_ROUTE_ACT_THEN_TOPK, .act = NG_ROUTE_SIGMOID,
                 .normalise = true, .normalise_by = NG_DIVIDE_TRUE,
                 .eps = 0x1E3CE508u,   /* 1e-20 */
                 .scale = 0x40200000u, /* 2.5 */
                 .groups = 8, .top_groups = 4, .group_top = 2 },
      .act = { ACT },
      .weights = NG_E4M3FN,
      .correction = true },
};

const ng_moe_preset *ng_moe_preset_at(size_t i)
{
    return i < sizeof presets / sizeof presets[0] ? &presets[i] : NULL;
}

const ng_moe_preset *ng_moe_preset_find(const char *name)
{
    for (size_t i = 0; name && ng_moe_preset_at(i); i++)
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    return NULL;
}

#define NKL_ROUTER "NKL core/router_topk"
#define NKL_MOE    "NKL core/moe"

static const ng_moe_param params[] = {
    { "order", "topk_then_act act_then_topk act_all", NG_EVIDENCE_BACKED,
      NKL_ROUTER "; NxD modules/moe/routing.py", NULL },
    { "act", "softmax sigmoid", NG_EVIDENCE_BACKED, NKL_ROUTER, NULL },
    { "ties", "lower index first", NG_EVIDENCE_DOCUMENTED, "NKI nki.isa max8, find_index8",
      NULL },
    { "nan and zeros in top-k", "NaN largest, -0 = +0", NG_EVIDENCE_ASSUMED, "", NULL },
    { "score", "f32 bf16 f16", NG_EVIDENCE_BACKED, NKL_ROUTER "; NxD modules/moe/routing.py",
      NULL },
    { "exp sigmoid tanh", "cr sleef table", NG_EVIDENCE_ASSUMED, "", NULL },
    { "softmax sum", "sequential", NG_EVIDENCE_ASSUMED, "", NULL },
    { "softmax_by", "reciprocal division", NG_EVIDENCE_BACKED, NKL_ROUTER, NULL },
    { "normalise_by", "reciprocal division", NG_EVIDENCE_BACKED, NKL_ROUTER, NULL },
    { "eps_how", "add floor", NG_EVIDENCE_BACKED,
      "transformers modeling_deepseek_v3; NxD modules/moe/expert_mlps_v2.py", NULL },
    { "mask", "zero minus_inf", NG_EVIDENCE_BACKED, "NxD modules/moe/routing.py", NULL },
    { "router bias", "after the accumulate memory", NG_EVIDENCE_ASSUMED, "", NULL },
    { "normalise", "no yes", NG_EVIDENCE_BACKED, NKL_ROUTER, NULL },
    { "logits", "f32 bf16 f16", NG_EVIDENCE_ASSUMED, "", NULL },
    { "weights", "f32 bf16 f16", NG_EVIDENCE_ASSUMED, "", NULL },
    { "mode", "dropless capacity", NG_EVIDENCE_BACKED, "NxD modules/moe/blockwise.py", NULL },
    { "accumulate", "f32 bf16", NG_EVIDENCE_BACKED, NKL_MOE "/moe_cte, moe_tkg", NULL },
    { "double_row", "no yes", NG_EVIDENCE_ASSUMED, "", NULL },
    { "weights_as", "as given, or a format", NG_EVIDENCE_ASSUMED, "", NULL },
    { "operands", "as_is mx fp8_row fp8_block", NG_EVIDENCE_BACKED,
      NKL_MOE "; DeepSeek-V3 inference/kernel.py", NULL },
    { "scales", "of the weights, then of the row", NG_EVIDENCE_MEASURED,
      "cuBLAS on Hopper, row-wise FP8: tests/device", NULL },
    { "hidden", "f32 bf16 f16", NG_EVIDENCE_BACKED, NKL_MOE "/moe_cte, moe_tkg", "f32 bf16" },
    { "biased", "f32 bf16 f16", NG_EVIDENCE_BACKED,
      "NxDI models/gpt_oss/mx_layout_transform.py", "bf16" },
    { "moe_act", "swiglu swish gelu gpt_oss gpt_oss_folded", NG_EVIDENCE_BACKED,
      "NxD modules/moe/expert_mlps_v2.py", NULL },
    { "alpha limit", "1.702 7", NG_EVIDENCE_BACKED,
      "config.json of openai/gpt-oss; NxD modules/moe/expert_mlps_v2.py", NULL },
    { "clamps", "upper, then lower", NG_EVIDENCE_BACKED, NKL_MOE, NULL },
    { "middle", "bf16 f32 f16", NG_EVIDENCE_BACKED, NKL_MOE "/moe_cte", NULL },
    { "expert_out", "bf16 f32 f16", NG_EVIDENCE_BACKED, NKL_MOE "/moe_cte", NULL },
    { "affinity", "after before inside", NG_EVIDENCE_BACKED, NKL_MOE, NULL },
    { "combine.order", "expert rank", NG_EVIDENCE_BACKED, NKL_MOE "/moe_cte", NULL },
    { "combine.fused", "no yes", NG_EVIDENCE_ASSUMED, "", NULL },
    { "combine.product", "f32 bf16 f16", NG_EVIDENCE_ASSUMED, "", NULL },
    { "combine.sum", "f32 bf16 f16", NG_EVIDENCE_BACKED, NKL_MOE "/moe_cte, moe_tkg", "bf16" },
    { "blocks.order", "in_turn product", NG_EVIDENCE_BACKED,
      "DeepSeek-V3 inference/kernel.py; DeepGEMM fp8_gemm; cuBLAS on Hopper: product", NULL },
    { "blocks.fused", "no yes", NG_EVIDENCE_MEASURED,
      "cuBLAS on Hopper: tests/device; kernels in Triton leave it to the compiler", "yes" },
    { "x.by quant.by", "reciprocal division", NG_EVIDENCE_BACKED,
      "NKL core/rmsnorm/rmsnorm_quant; DeepSeek-V3 inference/kernel.py", NULL },
    { "backward", "formats 110, orders 112 to 118", NG_EVIDENCE_ASSUMED, "", NULL },
};

const ng_moe_param *ng_moe_param_at(size_t i)
{
    return i < sizeof params / sizeof params[0] ? &params[i] : NULL;
}
