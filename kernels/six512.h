/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 16 words of each of six lines along k, as a panel has them: words of two lines are joined to
 * doublewords, and those of three such pairs of lines taken in turn. 18 shuffles for six
 * vectors. Behind gemm_fma.h.
 */
#ifndef NG_KERNELS_SIX512_H
#define NG_KERNELS_SIX512_H

#include "ints512.h"
#include "packing.h"

_Static_assert(MR == 6, "lines of a panel");

PACK_INLINE void six_turn(const ivec x[MR], uint32_t *to)
{
    static const int32_t join[2][VL] = {
        { 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23 },
        { 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31 }
    };
    static const int64_t two[3][VL / 2] = { { 0, 8, 0, 1, 9, 0, 2, 10 },
                                            { 0, 3, 11, 0, 4, 12, 0, 5 },
                                            { 13, 0, 6, 14, 0, 7, 15, 0 } },
                                     three[3][VL / 2] = { { 0, 1, 8, 3, 4, 9, 6, 7 },
                                                          { 10, 1, 2, 11, 4, 5, 12, 7 },
                                                          { 0, 13, 2, 3, 14, 5, 6, 15 } };
    FMA_UNROLL
    for (int h = 0; h < 2; h++) {
        ivec y[3];
        FMA_UNROLL
        for (int i = 0; i < 3; i++)
            y[i] = _mm512_permutex2var_epi32(x[2 * i], iv_load(join[h]), x[2 * i + 1]);
        FMA_UNROLL
        for (int v = 0; v < 3; v++) {
            const ivec z = _mm512_permutex2var_epi64(y[0], iv_load(two[v]), y[1]);
            iv_store(to + (3 * h + v) * VL,
                     _mm512_permutex2var_epi64(z, iv_load(three[v]), y[2]));
        }
    }
}

#endif
