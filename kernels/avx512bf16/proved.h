/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_AVX512BF16_PROVED_H
#define NG_AVX512BF16_PROVED_H

#include "../kernel.h"

/* Does VDPBF16PS on this CPU compute what dp.h says? */
bool ng_kernels_avx512bf16_proved(void);

/* Does this CPU start so few of them that FMAs get more done? */
bool ng_kernels_avx512bf16_slow(void);

#endif
