/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structured sparsity 2:4 of codes of 8 and 16 bits (docs/numerics.md, sections 4.3 and 11.4),
 * over the byte vectors of an ISA (`vb`, VB bytes; avx2/bytes.h, bytes512.h). Limited by
 * memory: some 20 instructions for VB bytes.
 *
 * Pruning. An element's key is its magnitude: the code without its sign, every NaN taken as the
 * code after Inf (section 11.4: all NaN are alike). Keys are compared with those of the other
 * three of the group, brought there by shuffles. An element loses to a larger key, and to an
 * equal one at a lower index: for that comparison its own key is taken one less, x >= y being x
 * > y - 1. Keys are signed numbers of their width, so 8-bit ones are moved down by 64: 0..0x80
 * become -64..64, and one less does not wrap. Who loses at most once is kept. That is always
 * two of four, since the order has no ties.
 *
 * Compressing. Of the two lower elements of a group at most these are kept: none, first,
 * second, both; they decide where slot 0 comes from (2, 0, 1, 0). The two upper ones decide
 * slot 1 (1, 2, 3, 3). Both pairs become numbers 0..3, a table makes them positions, and these
 * move the codes. The tags come from the same comparison as a bit an element: a nibble a group,
 * and a table.
 *
 * Work is done in blocks of 32 groups; what is left is copied into a block of zeros and out of
 * it.
 */
#ifndef NG_KERNELS_SPARSE_H
#define NG_KERNELS_SPARSE_H

#include <string.h>

#include "kernel.h"

enum {
    SPARSE_BLOCK = 32,                   /* groups */
    SPARSE_CODES = 4 * SPARSE_BLOCK * 2, /* bytes of a block, of 16-bit codes */
    SPARSE_NIBBLES = SPARSE_BLOCK / 2    /* bytes of a block's keep bits */
};

/* How a format's codes become keys. */
struct sparse_keys {
    vb magnitude; /* the bits that are not the sign */
    vb cap;       /* the code after Inf: every NaN's key */
    int wide;     /* 16 bits, else 8 */
    int fnuz;     /* NaN is the code of -0 */
    int twos;     /* two's complement */
};

static inline struct sparse_keys sparse_keys_of(const struct sparse_job *j)
{
    const ng_format_spec *f = j->spec;
    const int magnitude = (1 << (f->bits - 1)) - 1,
              inf = ((1 << f->exp_bits) - 1) << f->man_bits,
              cap = f->kind == NG_KIND_IEEE ? inf + 1 : 0x80;
    struct sparse_keys k = { .wide = f->store_bits == 16,
                             .fnuz = f->kind == NG_KIND_FNUZ,
                             .twos = f->kind == NG_KIND_INT };
    k.magnitude = k.wide ? vb_all16(magnitude) : vb_all8(magnitude);
    k.cap = k.wide ? vb_all16(cap) : vb_all8(cap);
    return k;
}

/* Bytes 0..15 of each 16 of a vector. */
#define SPARSE_BYTES(name, ...)                                                                \
    static inline vb name(void)                                                                \
    {                                                                                          \
        static const uint8_t byte[16] __attribute__((aligned(16))) = { __VA_ARGS__ };          \
        return vb_sixteen(byte);                                                               \
    }
#define NO 0x80 /* a shuffle writes 0 there */

/* Where element i finds the one that is 1, 2, 3 places further on, around the group. */
SPARSE_BYTES(sparse_next1_16, 2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9)
SPARSE_BYTES(sparse_next2_16, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
SPARSE_BYTES(sparse_next3_16, 6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13)
SPARSE_BYTES(sparse_next1_8, 1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12)
SPARSE_BYTES(sparse_next2_8, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
SPARSE_BYTES(sparse_next3_8, 3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14)
/* 1 where that one is at a lower index. */
SPARSE_BYTES(sparse_tie1_16, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0)
SPARSE_BYTES(sparse_tie2_16, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 0)
SPARSE_BYTES(sparse_tie3_16, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0)
SPARSE_BYTES(sparse_tie1_8, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1)
SPARSE_BYTES(sparse_tie2_8, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1)
SPARSE_BYTES(sparse_tie3_8, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1)

/* ---- Which are kept: masks of all ones, an element wide. ---- */

/* Codes without their zeros' sign, and who is kept. */
struct sparse_kept {
    vb code, keep;
};

static inline struct sparse_kept sparse_keep16(const struct sparse_keys *k, vb x)
{
    const vb m = vb_min16(vb_and(x, k->magnitude), k->cap);
    const vb g1 = vb_above16(vb_shuffle(m, sparse_next1_16()), vb_sub16(m, sparse_tie1_16())),
             g2 = vb_above16(vb_shuffle(m, sparse_next2_16()), vb_sub16(m, sparse_tie2_16())),
             g3 = vb_above16(vb_shuffle(m, sparse_next3_16()), vb_sub16(m, sparse_tie3_16()));
    const vb lost = vb_add16(vb_add16(g1, g2), g3); /* 0, -1, -2, -3 times */
    return (struct sparse_kept){ vb_and_not(vb_equal16(m, vb_zero()), x),
                                 vb_above16(lost, vb_all16(-2)) };
}

static inline vb sparse_magnitude8(const struct sparse_keys *k, vb x)
{
    if (k->twos)
        return vb_abs8(x); /* -128 becomes 0x80 */
    const vb m = vb_min8(vb_and(x, k->magnitude), k->cap), top = vb_all8(0x80);
    return k->fnuz ? vb_or(m, vb_and(vb_equal8(x, top), top)) : m;
}

static inline struct sparse_kept sparse_keep8(const struct sparse_keys *k, vb x)
{
    const vb a = sparse_magnitude8(k, x), m = vb_sub8(a, vb_all8(64));
    const vb g1 = vb_above8(vb_shuffle(m, sparse_next1_8()), vb_sub8(m, sparse_tie1_8())),
             g2 = vb_above8(vb_shuffle(m, sparse_next2_8()), vb_sub8(m, sparse_tie2_8())),
             g3 = vb_above8(vb_shuffle(m, sparse_next3_8()), vb_sub8(m, sparse_tie3_8()));
    const vb lost = vb_add8(vb_add8(g1, g2), g3);
    return (struct sparse_kept){ vb_and_not(vb_equal8(a, vb_zero()), x),
                                 vb_above8(lost, vb_all8(-2)) };
}

static inline struct sparse_kept sparse_keep(const struct sparse_keys *k, vb x)
{
    return k->wide ? sparse_keep16(k, x) : sparse_keep8(k, x);
}

/* ---- Moving kept codes together: the lower half of each 16 bytes. ---- */

/* Pairs as numbers: first + 2 * second of the lower pair, and of the upper one. */
SPARSE_BYTES(sparse_pairs_16, 255, 255, 254, 255, 255, 255, 254, 255, 255, 255, 254, 255, 255,
             255, 254, 255)
SPARSE_BYTES(sparse_pairs_8, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2)
/* A number for each byte to come: 32-bit sums of four groups' halves, 16-bit ones of eight. */
SPARSE_BYTES(sparse_spread_16, 0, 0, 4, 4, 8, 8, 12, 12, NO, NO, NO, NO, NO, NO, NO, NO)
SPARSE_BYTES(sparse_spread_8, 0, 2, 4, 6, 8, 10, 12, 14, NO, NO, NO, NO, NO, NO, NO, NO)
/* 4 for slot 1: the second half of the tables. */
SPARSE_BYTES(sparse_slot_16, 0, 0, 4, 4, 0, 0, 4, 4, NO, NO, NO, NO, NO, NO, NO, NO)
SPARSE_BYTES(sparse_slot_8, 0, 4, 0, 4, 0, 4, 0, 4, NO, NO, NO, NO, NO, NO, NO, NO)
/* Bytes from the group's first: 2 * element; and the element, where the number is -n mod 4. */
SPARSE_BYTES(sparse_from_16, 4, 0, 2, 0, 2, 4, 6, 6, 0, 0, 0, 0, 0, 0, 0, 0)
SPARSE_BYTES(sparse_from_8, 2, 0, 1, 0, 1, 3, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0)
/* And the group's first byte. */
SPARSE_BYTES(sparse_base_16, 0, 1, 0, 1, 8, 9, 8, 9, NO, NO, NO, NO, NO, NO, NO, NO)
SPARSE_BYTES(sparse_base_8, 0, 0, 4, 4, 8, 8, 12, 12, NO, NO, NO, NO, NO, NO, NO, NO)

static inline vb sparse_together16(struct sparse_kept x)
{
    const vb n = vb_or(vb_shuffle(vb_dot16(x.keep, sparse_pairs_16()), sparse_spread_16()),
                       sparse_slot_16());
    return vb_shuffle(x.code, vb_or(vb_shuffle(sparse_from_16(), n), sparse_base_16()));
}

static inline vb sparse_together8(struct sparse_kept x)
{
    const vb n = vb_shuffle(vb_dot8(sparse_pairs_8(), x.keep), sparse_spread_8()); /* -n */
    const vb at = vb_or(vb_and(n, vb_all8(3)), sparse_slot_8());
    return vb_shuffle(x.code, vb_or(vb_shuffle(sparse_from_8(), at), sparse_base_8()));
}

/* Codes of a block become slots, and a nibble of keep bits a group. */
static inline void sparse_squeeze16(const struct sparse_keys *k, const uint8_t *src,
                                    uint8_t *slots, uint8_t *nibbles)
{
    for (int i = 0; i < 8 * SPARSE_BLOCK; i += 2 * VB) {
        const struct sparse_kept x = sparse_keep16(k, vb_load(src + i)),
                                 y = sparse_keep16(k, vb_load(src + i + VB));
        vb_store(slots + i / 2, vb_halves(sparse_together16(x), sparse_together16(y)));
        vb_bits(nibbles + i / 16, vb_narrow(x.keep, y.keep));
    }
}

static inline void sparse_squeeze8(const struct sparse_keys *k, const uint8_t *src,
                                   uint8_t *slots, uint8_t *nibbles)
{
    for (int i = 0; i < 4 * SPARSE_BLOCK; i += 2 * VB) {
        const struct sparse_kept x = sparse_keep8(k, vb_load(src + i)),
                                 y = sparse_keep8(k, vb_load(src + i + VB));
        vb_store(slots + i / 2, vb_halves(sparse_together8(x), sparse_together8(y)));
        vb_bits(nibbles + i / 8, x.keep);
        vb_bits(nibbles + i / 8 + VB / 8, y.keep);
    }
}

/* ---- Tags. A group's two as a byte: slot 0's low, as trn has them. ---- */

static inline __m128i sparse_load16(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

static inline void sparse_store16(uint8_t *p, __m128i x)
{
    _mm_storeu_si128((__m128i *)p, x);
}

/* Look up both nibbles of 16 bytes: low[i], high[i] of bytes i. */
static inline void sparse_look_up(__m128i table, __m128i x, __m128i *low, __m128i *high)
{
    const __m128i mask = _mm_set1_epi8(15);
    *low = _mm_shuffle_epi8(table, _mm_and_si128(x, mask));
    *high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(x, 4), mask));
}

/* A block's keep bits to its tags, by the six nibbles that have two bits. */
static inline void sparse_tags(const struct sparse_job *j, const uint8_t *nibbles,
                               uint8_t *tags)
{
    static const uint8_t
        trn[16] = { [3] = 0x10, [5] = 0x20, [9] = 0x30, [6] = 0x21, [10] = 0x31, [12] = 0x32 },
        nv24[16] = { [3] = 0x4, [5] = 0x8, [9] = 0xC, [6] = 0x9, [10] = 0xD, [12] = 0xE };
    const __m128i x = sparse_load16(nibbles);
    __m128i low, high;
    sparse_look_up(sparse_load16(j->store == NG_TAG_TRN ? trn : nv24), x, &low, &high);
    if (j->store == NG_TAG_TRN) {
        sparse_store16(tags, _mm_unpacklo_epi8(low, high));
        sparse_store16(tags + 16, _mm_unpackhi_epi8(low, high));
        return;
    }
    sparse_store16(tags, _mm_or_si128(low, _mm_slli_epi16(high, 4)));
}

/* A block's tags, 32 bytes, whatever the store. */
static inline void sparse_tags_of(const struct sparse_job *j, const uint8_t *tags,
                                  uint8_t *pairs)
{
    static const uint8_t apart[16] = { 0x00, 0x01, 0x02, 0x03, 0x10, 0x11, 0x12, 0x13,
                                       0x20, 0x21, 0x22, 0x23, 0x30, 0x31, 0x32, 0x33 };
    __m128i low, high;
    if (j->store == NG_TAG_TRN) {
        memcpy(pairs, tags, SPARSE_BLOCK);
        return;
    }
    sparse_look_up(sparse_load16(apart), sparse_load16(tags), &low, &high);
    sparse_store16(pairs, _mm_unpacklo_epi8(low, high));
    sparse_store16(pairs + 16, _mm_unpackhi_epi8(low, high));
}

/* Bytes of the tags of n groups. */
static inline size_t sparse_tag_bytes(const struct sparse_job *j, int64_t n)
{
    return (size_t)(j->store == NG_TAG_TRN ? n : (n + 1) / 2);
}

/* ---- Blocks, and what is left. ---- */

static inline void sparse_compress_block(const struct sparse_job *j,
                                         const struct sparse_keys *k, const uint8_t *src,
                                         uint8_t *slots, uint8_t *tags)
{
    uint8_t nibbles[SPARSE_NIBBLES];
    if (k->wide)
        sparse_squeeze16(k, src, slots, nibbles);
    else
        sparse_squeeze8(k, src, slots, nibbles);
    sparse_tags(j, nibbles, tags);
}

static void sparse_compress(const struct sparse_job *j, const void *src, int64_t groups,
                            void *slots, void *tags)
{
    const struct sparse_keys k = sparse_keys_of(j);
    const uint8_t *from = src;
    uint8_t *to = slots, *tag = tags;
    const size_t bytes = k.wide ? 8 : 4; /* of a group */
    for (; groups >= SPARSE_BLOCK; groups -= SPARSE_BLOCK) {
        sparse_compress_block(j, &k, from, to, tag);
        from += SPARSE_BLOCK * bytes;
        to += SPARSE_BLOCK * bytes / 2;
        tag += sparse_tag_bytes(j, SPARSE_BLOCK);
    }
    if (!groups)
        return;
    uint8_t in[SPARSE_CODES] = { 0 }, out[SPARSE_CODES / 2], last[SPARSE_BLOCK];
    memcpy(in, from, (size_t)groups * bytes);
    sparse_compress_block(j, &k, in, out, last);
    if (j->store == NG_TAG_NV24 && groups % 2) /* the upper half is of no group */
        last[groups / 2] &= 15;
    memcpy(to, out, (size_t)groups * bytes / 2);
    memcpy(tag, last, sparse_tag_bytes(j, groups));
}

static void sparse_prune(const struct sparse_job *j, const void *src, int64_t groups, void *dst)
{
    const struct sparse_keys k = sparse_keys_of(j);
    const uint8_t *from = src;
    uint8_t *to = dst;
    size_t left = (size_t)groups * (k.wide ? 8 : 4);
    for (; left >= VB; left -= VB, from += VB, to += VB) {
        const struct sparse_kept x = sparse_keep(&k, vb_load(from));
        vb_store(to, vb_and(x.code, x.keep));
    }
    uint8_t rest[VB] = { 0 };
    memcpy(rest, from, left);
    const struct sparse_kept x = sparse_keep(&k, vb_load(rest));
    vb_store(rest, vb_and(x.code, x.keep));
    memcpy(to, rest, left);
}

/* Nothing that is not zero would be pruned. */
static bool sparse_holds(const struct sparse_job *j, const void *src, int64_t groups)
{
    const struct sparse_keys k = sparse_keys_of(j);
    const uint8_t *from = src;
    size_t left = (size_t)groups * (k.wide ? 8 : 4);
    vb lost = vb_zero();
    for (; left >= VB; left -= VB, from += VB) {
        const struct sparse_kept x = sparse_keep(&k, vb_load(from));
        lost = vb_or(lost, vb_and_not(x.keep, x.code));
    }
    uint8_t rest[VB] = { 0 };
    memcpy(rest, from, left);
    const struct sparse_kept x = sparse_keep(&k, vb_load(rest));
    return !vb_any(vb_or(lost, vb_and_not(x.keep, x.code)));
}

/* ---- Back to dense. ---- */

/* Slot 0, slot 1 of a group for each of its elements; slots lie in the group's lower half. */
SPARSE_BYTES(sparse_slot0_16, 0, 1, 0, 1, 0, 1, 0, 1, 8, 9, 8, 9, 8, 9, 8, 9)
SPARSE_BYTES(sparse_slot1_16, 2, 3, 2, 3, 2, 3, 2, 3, 10, 11, 10, 11, 10, 11, 10, 11)
SPARSE_BYTES(sparse_slot0_8, 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12)
SPARSE_BYTES(sparse_slot1_8, 1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13)
/* The group's pair of tags for each of its bytes; what it is where slot 0, slot 1 is wanted. */
SPARSE_BYTES(sparse_tag_16, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8)
SPARSE_BYTES(sparse_own_16, 0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3)
SPARSE_BYTES(sparse_own_8, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3)

static inline vb sparse_spread(vb slots, vb pairs, vb slot0, vb slot1, vb own)
{
    const vb low = vb_all8(15), upper = vb_and_not(low, pairs);
    const vb first = vb_equal8(vb_and(pairs, low), own),
             second = vb_equal8(upper, vb_shl4(own));
    return vb_or(vb_and(vb_shuffle(slots, slot0), first),
                 vb_and(vb_shuffle(slots, slot1), second));
}

static inline void sparse_expand_block(const struct sparse_job *j, const uint8_t *slots,
                                       const uint8_t *tags, uint8_t *dst)
{
    uint8_t pairs[SPARSE_BLOCK];
    sparse_tags_of(j, tags, pairs);
    if (j->spec->store_bits == 16) {
        for (int i = 0; i < 8 * SPARSE_BLOCK; i += VB) {
            const vb tag = vb_shuffle(vb_bytes_to_64(pairs + i / 8), sparse_tag_16());
            vb_store(dst + i, sparse_spread(vb_32_to_64(slots + i / 2), tag, sparse_slot0_16(),
                                            sparse_slot1_16(), sparse_own_16()));
        }
        return;
    }
    for (int i = 0; i < 4 * SPARSE_BLOCK; i += VB) {
        const vb tag = vb_shuffle(vb_bytes_to_32(pairs + i / 4), sparse_slot0_8());
        vb_store(dst + i, sparse_spread(vb_16_to_32(slots + i / 2), tag, sparse_slot0_8(),
                                        sparse_slot1_8(), sparse_own_8()));
    }
}

static void sparse_expand(const struct sparse_job *j, const void *slots, const void *tags,
                          int64_t groups, void *dst)
{
    const uint8_t *from = slots, *tag = tags;
    uint8_t *to = dst;
    const size_t bytes = j->spec->store_bits == 16 ? 8 : 4;
    for (; groups >= SPARSE_BLOCK; groups -= SPARSE_BLOCK) {
        sparse_expand_block(j, from, tag, to);
        from += SPARSE_BLOCK * bytes / 2;
        to += SPARSE_BLOCK * bytes;
        tag += sparse_tag_bytes(j, SPARSE_BLOCK);
    }
    if (!groups)
        return;
    uint8_t in[SPARSE_CODES / 2] = { 0 }, last[SPARSE_BLOCK] = { 0 }, out[SPARSE_CODES];
    memcpy(in, from, (size_t)groups * bytes / 2);
    memcpy(last, tag, sparse_tag_bytes(j, groups));
    sparse_expand_block(j, in, last, out);
    memcpy(to, out, (size_t)groups * bytes);
}

/* Bytes of pairs that are not two different tags below 4: all ones. */
static inline __m128i sparse_wrong(__m128i pairs)
{
    const __m128i three = _mm_set1_epi8(3),
                  apart = _mm_and_si128(_mm_xor_si128(pairs, _mm_srli_epi16(pairs, 4)), three),
                  none = _mm_cmpeq_epi8(_mm_and_si128(pairs, _mm_set1_epi8((char)0xCC)),
                                        _mm_setzero_si128());
    return _mm_or_si128(_mm_cmpeq_epi8(apart, _mm_setzero_si128()),
                        _mm_andnot_si128(none, _mm_set1_epi8(-1)));
}

static bool sparse_distinct(const struct sparse_job *j, const void *tags, int64_t groups)
{
    const uint8_t *tag = tags;
    uint8_t pairs[SPARSE_BLOCK], last[SPARSE_BLOCK];
    for (; groups > 0; groups -= SPARSE_BLOCK) {
        if (groups < SPARSE_BLOCK) {
            memset(last, j->store == NG_TAG_TRN ? 0x10 : 0x44, sizeof last); /* tags 0, 1 */
            memcpy(last, tag, sparse_tag_bytes(j, groups));
            if (j->store == NG_TAG_NV24 && groups % 2) /* the upper half is of no group */
                last[groups / 2] = (uint8_t)((last[groups / 2] & 15) | 0x40);
            tag = last;
        }
        sparse_tags_of(j, tag, pairs);
        if (_mm_movemask_epi8(_mm_or_si128(sparse_wrong(sparse_load16(pairs)),
                                           sparse_wrong(sparse_load16(pairs + 16)))))
            return false;
        tag += sparse_tag_bytes(j, SPARSE_BLOCK);
    }
    return true;
}

static const char *sparse_refuses(const struct sparse_job *j)
{
    if (j->kept != 2 || j->group != 4)
        return "another pattern than 2:4";
    if (j->spec->store_bits != 8 && j->spec->store_bits != 16)
        return "codes of another width than 8 and 16 bits";
    if (j->spec->kind == NG_KIND_SCALE || j->spec->kind == NG_KIND_UFN)
        return "a scale format";
    return j->consecutive ? NULL : "lines with strides";
}

#endif
