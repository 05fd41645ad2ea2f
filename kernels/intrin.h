/* SPDX-License-Identifier: Apache-2.0 */
/* Intrinsics of AVX-512; with -Demulate=true in plain C, AMX with them, to test kernels without
 * such a CPU. */
#ifndef NG_KERNELS_INTRIN_H
#define NG_KERNELS_INTRIN_H

#include <immintrin.h>

#ifdef NG_EMULATE_AVX512
#include "amx.h"
#include "avx512.h"
#endif

#endif
