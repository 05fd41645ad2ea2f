/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions, and the block scales of MX and NVFP4, 8 elements at a time: ../cast.h,
 * ../quantize.h, ../nvfp4.h; FP8 under FP32 scales: ../fp8.h. */
#include "ints.h"

#include "../cast_turn.h"
#include "../fp8.h"
#include "../nvfp4.h"
#include "../quantize.h"

extern const struct ng_cast_kernel ng_cast__avx2;
const struct ng_cast_kernel ng_cast__avx2 = {
    .name = "cast__avx2",
    .refuses = quant_job_refuses,
    .convert = cast_convert,
    .quantize = quant_quantize,
    .dequantize = quant_dequantize,
    .turn = turn_codes,
};

extern fp8_rows ng_moe_fp8__avx2; /* for moe.c */
void ng_moe_fp8__avx2(const struct fp8_job *j, const void *src, int64_t n, uint8_t *code,
                      uint32_t *scale)
{
    fp8_row(j, src, n, code, scale);
}

extern const struct ng_cast_kernel ng_nvfp4__avx2;
const struct ng_cast_kernel ng_nvfp4__avx2 = {
    .name = "nvfp4__avx2",
    .refuses = nv_refuses,
    .convert = cast_convert,
    .quantize = nv_quantize,
    .dequantize = nv_dequantize,
    .largest = nv_largest_of,
};
