/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of four positions with at most two values a column, these two and their places: for a kernel
 * that multiplies FP32 values, which picks what of A they meet (gemm_kept.h). The earlier value
 * is the upper half of a word, the later the lower half; a value of 0 stands for none. Places
 * of eight positions are a byte a column, two bits each, the first value's lowest.
 *
 * For slim.h, behind an ISA's ints.h.
 */
#ifndef NG_KERNELS_KEPT_H
#define NG_KERNELS_KEPT_H

enum {
    KEPT_BITS = 4 /* of four positions' places */
};

/* VL columns' places of four positions, the second of eight or the first, in the lowest bits.
 */
PACK_INLINE ivec kept_places(const uint8_t *places, const int second)
{
    const ivec x = iv_load8(places);
    return second ? vec_next_place(vec_next_place(x)) : x;
}

/* VL columns' pairs of four positions. A value stands above and moves down by 16 bits a place:
 * by 32 and more, and by less than 0, it leaves the pair. */
PACK_INLINE void kept_decode(const uint8_t *words, const uint8_t *places, const int second,
                             ivec y[2])
{
    const ivec at = kept_places(places, second), x = iv_load(words),
               earlier = iv_and(x, iv_all(0xFFFF0000u)), later = iv_sll(x, iv_all(16)),
               bits = iv_all(0x30), pair = iv_all(32),
               first = iv_and(iv_sll(at, iv_all(4)), bits),
               then = iv_and(iv_sll(at, iv_all(2)), bits);
    y[0] = iv_or(iv_srl(earlier, first), iv_srl(later, then));
    y[1] = iv_or(iv_srl(earlier, iv_sub(first, pair)), iv_srl(later, iv_sub(then, pair)));
}

/* And back. */
PACK_INLINE void kept_put(const ivec y[2], uint8_t *words, uint8_t *places, const int second)
{
    const ivec zero = iv_all(0), upper = iv_all(0xFFFF0000u);
    ivec half[4], first = zero, then = zero, earlier = zero, later = zero;
    uint32_t at[VL];
    for (int i = 0; i < 4; i++)
        half[i] = i % 2 ? iv_sll(y[i / 2], iv_all(16)) : iv_and(y[i / 2], upper);
    for (int i = 0; i < 4; i++) {
        const imask none = iv_eq(half[i], zero);
        then = iv_pick(none, then, iv_all((uint32_t)i));
        later = iv_pick(none, later, half[i]);
    }
    for (int i = 4; i-- > 0;) {
        const imask none = iv_eq(half[i], zero);
        first = iv_pick(none, first, iv_all((uint32_t)i));
        earlier = iv_pick(none, earlier, half[i]);
    }
    later = iv_pick(iv_eq(first, then), zero, later); /* one value, or none */
    iv_store(words, iv_or(earlier, iv_srl(later, iv_all(16))));
    iv_store(at, iv_or(first, iv_sll(then, iv_all(2))));
    for (int l = 0; l < VL; l++)
        places[l] = (uint8_t)(second ? places[l] | at[l] << KEPT_BITS : at[l]);
}

#endif
