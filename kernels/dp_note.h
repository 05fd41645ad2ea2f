/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 codes, 32 at a time: their facts, and pairs of two positions; behind packing.h. */
#ifndef NG_KERNELS_DP_NOTE_H
#define NG_KERNELS_DP_NOTE_H

#include "packing.h"

enum {
    NOTE_VL = 32
};

struct note_bounds {
    __m512i least, most; /* as codes.h has them */
};

PACK_INLINE void note_codes(struct note_bounds *b, __m512i x)
{
    const __m512i less =
        _mm512_sub_epi16(_mm512_and_si512(x, _mm512_set1_epi16(0x7FFF)), _mm512_set1_epi16(1));
    b->least = _mm512_min_epu16(b->least, less);
    b->most = _mm512_max_epi16(b->most, less);
}

/* False: an Inf or a NaN is there. */
static inline bool note_settle(const struct note_bounds *b, struct codes_facts *facts)
{
    const struct codes_bounds half = {
        .least = _mm256_min_epu16(_mm512_castsi512_si256(b->least),
                                  _mm512_extracti64x4_epi64(b->least, 1)),
        .most = _mm256_max_epi16(_mm512_castsi512_si256(b->most),
                                 _mm512_extracti64x4_epi64(b->most, 1))
    };
    return codes_settle(&half, facts);
}

/* ---- Pairs: the codes of an earlier position in the upper halves. ---- */

/* Of two positions' 32 codes the pairs of the first 16, of the others. */
PACK_INLINE void codes_pairs(__m512i first, __m512i second, __m512i y[2])
{
    static const uint16_t at[2][32] = {
        { 32, 0, 33, 1, 34, 2,  35, 3,  36, 4,  37, 5,  38, 6,  39, 7,
          40, 8, 41, 9, 42, 10, 43, 11, 44, 12, 45, 13, 46, 14, 47, 15 },
        { 48, 16, 49, 17, 50, 18, 51, 19, 52, 20, 53, 21, 54, 22, 55, 23,
          56, 24, 57, 25, 58, 26, 59, 27, 60, 28, 61, 29, 62, 30, 63, 31 }
    };
    for (int i = 0; i < 2; i++)
        y[i] = _mm512_permutex2var_epi16(first, _mm512_loadu_si512(at[i]), second);
}

#endif
