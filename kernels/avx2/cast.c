/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions, and the block scales of MX, 8 elements at a time: ../cast.h, ../quantize.h. */
#include "ints.h"

#include "../quantize.h"

extern const struct ng_cast_kernel ng_cast__avx2;
const struct ng_cast_kernel ng_cast__avx2 = {
    .name = "cast__avx2",
    .refuses = quant_job_refuses,
    .convert = cast_convert,
    .quantize = quant_quantize,
    .dequantize = quant_dequantize,
};
