/* SPDX-License-Identifier: Apache-2.0 */
/* psum of a tile into a D that takes it as it is; behind an ISA's ints.h and the kernel's NV.
 */
#ifndef NG_KERNELS_PSUM_H
#define NG_KERNELS_PSUM_H

#include "widen.h"

enum {
    NR = NV * VL
};

/* An FP32 sum as D has it. */
static inline ivec psum_result(ivec x, ivec nan)
{
    return iv_pick(iv_gt(iv_and(x, iv_all(0x7FFFFFFFu)), iv_all(WIDEN_INF)), nan, x);
}

static void write_psum(const struct gemm_write *w)
{
    const ivec nan = iv_all(w->nan);
    const int64_t vectors = w->d_col == sizeof(float) ? w->columns / VL * VL : 0;
    for (int64_t r = 0; r < w->rows; r++) {
        const float *psum = w->psum + r * NR;
        unsigned char *d = w->d + r * w->d_row;
        for (int64_t l = 0; l < vectors; l += VL)
            iv_store(d + 4 * l, psum_result(iv_load(psum + l), nan));
        for (int64_t l = vectors; l < w->columns; l++) {
            const uint32_t x = as_pattern(psum[l]),
                           y = (x & 0x7FFFFFFFu) > WIDEN_INF ? w->nan : x;
            memcpy(d + l * w->d_col, &y, sizeof y);
        }
    }
}

#endif
