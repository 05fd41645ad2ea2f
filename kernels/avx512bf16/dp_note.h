/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of bf16 codes, 32 at a time; behind packing.h. */
#ifndef NG_AVX512BF16_DP_NOTE_H
#define NG_AVX512BF16_DP_NOTE_H

#include "../packing.h"

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

#endif
