/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions, and the block scales of MX, 16 elements at a time: ../cast.h, ../quantize.h. */
#include "../ints512.h"

#include "../quantize.h"

extern const struct ng_cast_kernel ng_cast__avx512;
const struct ng_cast_kernel ng_cast__avx512 = {
    .name = "cast__avx512",
    .refuses = quant_job_refuses,
    .convert = cast_convert,
    .quantize = quant_quantize,
    .dequantize = quant_dequantize,
};
