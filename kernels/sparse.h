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

/* How a format's codes become keys. Each is an instance of the loops. */
enum sparse_way {
    SPARSE_16,   /* 16 bits */
    SPARSE_8,    /* 8 and 6 bits */
    SPARSE_FNUZ, /* 8 bits; NaN is the code of -0 */
    SPARSE_TWOS  /* 8 bits, two's complement */
};

#define SPARSE_INLINE static inline __attribute__((always_inline))
#define NO            0x80 /* a shuffle writes 0 there */

/*
 * What a loop needs beside codes, each 16 bytes for every 16 of a vector. Behind a pointer that
 * the compiler cannot see through: it would build them anew from immediates in every turn.
 */
struct sparse_words {
    vb magnitude; /* the bits that are not the sign */
    vb cap;       /* the code after Inf: every NaN's key */
    vb next1, next2, next3, tie1, tie2, pairs, spread, slot, from, base;
};

/* Rows: 16 bits, 8 bits. */
enum sparse_row {
    NEXT1, /* where element i finds the one that is 1, 2, 3 places further on, around the group
            */
    NEXT2,
    NEXT3,
    TIE1, /* 1 where the one 1, 2 places further on is at a lower index */
    TIE2,
    PAIRS,  /* a pair as a number: first + 2 * second */
    SPREAD, /* that number for each byte to come */
    SLOT,   /* 4 for slot 1: the second half of the tables */
    FROM, /* 16 bits: bytes from the group's first; 8 bits: the same, where the number is -n mod
             4 */
    BASE, /* the group's first byte */
    ROWS
};

/* clang-format off */
static const uint8_t sparse_bytes[2][ROWS][16] __attribute__((aligned(16))) = {
    { [NEXT1] = { 2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9 },
      [NEXT2] = { 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11 },
      [NEXT3] = { 6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13 },
      [TIE1] = { 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0 },
      [TIE2] = { 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 0 },
      [PAIRS] = { 255, 255, 254, 255, 255, 255, 254, 255, 255, 255, 254, 255, 255, 255, 254, 255 },
      [SPREAD] = { 0, 0, 4, 4, 8, 8, 12, 12, NO, NO, NO, NO, NO, NO, NO, NO },
      [SLOT] = { 0, 0, 4, 4, 0, 0, 4, 4, NO, NO, NO, NO, NO, NO, NO, NO },
      [FROM] = { 4, 0, 2, 0, 2, 4, 6, 6, 0, 0, 0, 0, 0, 0, 0, 0 },
      [BASE] = { 0, 1, 0, 1, 8, 9, 8, 9, NO, NO, NO, NO, NO, NO, NO, NO } },
    { [NEXT1] = { 1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12 },
      [NEXT2] = { 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13 },
      [NEXT3] = { 3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14 },
      [TIE1] = { 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1 },
      [TIE2] = { 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1 },
      [PAIRS] = { 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2 },
      [SPREAD] = { 0, 2, 4, 6, 8, 10, 12, 14, NO, NO, NO, NO, NO, NO, NO, NO },
      [SLOT] = { 0, 4, 0, 4, 0, 4, 0, 4, NO, NO, NO, NO, NO, NO, NO, NO },
      [FROM] = { 2, 0, 1, 0, 1, 3, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0 },
      [BASE] = { 0, 0, 4, 4, 8, 8, 12, 12, NO, NO, NO, NO, NO, NO, NO, NO } },
};
/* clang-format on */

static inline enum sparse_way sparse_way_of(const struct sparse_job *j)
{
    return j->spec->store_bits == 16       ? SPARSE_16
           : j->spec->kind == NG_KIND_FNUZ ? SPARSE_FNUZ
           : j->spec->kind == NG_KIND_INT  ? SPARSE_TWOS
                                           : SPARSE_8;
}

SPARSE_INLINE struct sparse_words sparse_words_of(const struct sparse_job *j,
                                                  enum sparse_way way)
{
    const ng_format_spec *f = j->spec;
    const int magnitude = (1 << (f->bits - 1)) - 1,
              inf = ((1 << f->exp_bits) - 1) << f->man_bits,
              cap = f->kind == NG_KIND_IEEE ? inf + 1 : 0x80;
    const uint8_t(*row)[16] = sparse_bytes[way != SPARSE_16];
    __asm__("" : "+r"(row));
    return (struct sparse_words){
        .magnitude = way == SPARSE_16 ? vb_all16(magnitude) : vb_all8(magnitude),
        .cap = way == SPARSE_16 ? vb_all16(cap) : vb_all8(cap),
        .next1 = vb_sixteen(row[NEXT1]),
        .next2 = vb_sixteen(row[NEXT2]),
        .next3 = vb_sixteen(row[NEXT3]),
        .tie1 = vb_sixteen(row[TIE1]),
        .tie2 = vb_sixteen(row[TIE2]),
        .pairs = vb_sixteen(row[PAIRS]),
        .spread = vb_sixteen(row[SPREAD]),
        .slot = vb_sixteen(row[SLOT]),
        .from = vb_sixteen(row[FROM]),
        .base = vb_sixteen(row[BASE]),
    };
}

/* ---- Which are kept: masks of all ones, an element wide. ---- */

/* Codes without their zeros' sign, and who is kept. */
struct sparse_kept {
    vb code, keep;
};

/* Of three comparisons the last is the first one of the element before: it loses to x unless x
 * loses to it. */
SPARSE_INLINE struct sparse_kept sparse_keep16(const struct sparse_words *w, vb x)
{
    const vb m = vb_min16(vb_and(x, w->magnitude), w->cap);
    const vb g1 = vb_above16(vb_shuffle(m, w->next1), vb_sub16(m, w->tie1)),
             g2 = vb_above16(vb_shuffle(m, w->next2), vb_sub16(m, w->tie2)),
             g3 = vb_shuffle(g1, w->next3);
    const vb lost = vb_sub16(vb_add16(g1, g2), g3); /* 1, 0, -1, -2: never, once, ... */
    return (struct sparse_kept){ vb_and_not(vb_equal16(m, vb_zero()), x),
                                 vb_above16(lost, vb_all16(-1)) };
}

SPARSE_INLINE vb sparse_magnitude8(const struct sparse_words *w, vb x, enum sparse_way way)
{
    if (way == SPARSE_TWOS)
        return vb_abs8(x); /* -128 becomes 0x80 */
    const vb m = vb_min8(vb_and(x, w->magnitude), w->cap), top = vb_all8(0x80);
    return way == SPARSE_FNUZ ? vb_or(m, vb_and(vb_equal8(x, top), top)) : m;
}

SPARSE_INLINE struct sparse_kept sparse_keep8(const struct sparse_words *w, vb x,
                                              enum sparse_way way)
{
    const vb a = sparse_magnitude8(w, x, way), m = vb_sub8(a, vb_all8(64));
    const vb g1 = vb_above8(vb_shuffle(m, w->next1), vb_sub8(m, w->tie1)),
             g2 = vb_above8(vb_shuffle(m, w->next2), vb_sub8(m, w->tie2)),
             g3 = vb_shuffle(g1, w->next3);
    const vb lost = vb_sub8(vb_add8(g1, g2), g3);
    return (struct sparse_kept){ vb_and_not(vb_equal8(a, vb_zero()), x),
                                 vb_above8(lost, vb_all8(-1)) };
}

SPARSE_INLINE struct sparse_kept sparse_keep(const struct sparse_words *w, vb x,
                                             enum sparse_way way)
{
    return way == SPARSE_16 ? sparse_keep16(w, x) : sparse_keep8(w, x, way);
}

/* ---- Moving kept codes together: the lower half of each 16 bytes. ---- */

SPARSE_INLINE vb sparse_together(const struct sparse_words *w, struct sparse_kept x,
                                 enum sparse_way way)
{
    const vb n = way == SPARSE_16
                     ? vb_shuffle(vb_dot16(x.keep, w->pairs), w->spread)
                     : vb_and(vb_shuffle(vb_dot8(w->pairs, x.keep), w->spread), vb_all8(3));
    const vb at = vb_shuffle(w->from, vb_or(n, w->slot));
    return vb_shuffle(x.code, vb_or(at, w->base));
}

/* Codes of a block become slots, and a nibble of keep bits a group. */
SPARSE_INLINE void sparse_squeeze(const struct sparse_words *w, const uint8_t *src,
                                  uint8_t *slots, uint8_t *nibbles, enum sparse_way way)
{
    const int bytes = (way == SPARSE_16 ? 8 : 4) * SPARSE_BLOCK;
    for (int i = 0; i < bytes; i += 2 * VB) {
        const struct sparse_kept x = sparse_keep(w, vb_load(src + i), way),
                                 y = sparse_keep(w, vb_load(src + i + VB), way);
        vb_store(slots + i / 2,
                 vb_halves(sparse_together(w, x, way), sparse_together(w, y, way)));
        if (way == SPARSE_16) {
            vb_bits(nibbles + i / 16, vb_narrow(x.keep, y.keep));
        } else {
            vb_bits(nibbles + i / 8, x.keep);
            vb_bits(nibbles + i / 8 + VB / 8, y.keep);
        }
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

SPARSE_INLINE void sparse_compress_as(const struct sparse_job *j, const uint8_t *src,
                                      int64_t groups, uint8_t *slots, uint8_t *tags,
                                      enum sparse_way way)
{
    const struct sparse_words w = sparse_words_of(j, way);
    const size_t bytes = way == SPARSE_16 ? 8 : 4; /* of a group */
    uint8_t nibbles[SPARSE_NIBBLES];
    for (; groups >= SPARSE_BLOCK; groups -= SPARSE_BLOCK) {
        sparse_squeeze(&w, src, slots, nibbles, way);
        sparse_tags(j, nibbles, tags);
        src += SPARSE_BLOCK * bytes;
        slots += SPARSE_BLOCK * bytes / 2;
        tags += sparse_tag_bytes(j, SPARSE_BLOCK);
    }
    if (!groups)
        return;
    uint8_t in[SPARSE_CODES] = { 0 }, out[SPARSE_CODES / 2], last[SPARSE_BLOCK];
    memcpy(in, src, (size_t)groups * bytes);
    sparse_squeeze(&w, in, out, nibbles, way);
    sparse_tags(j, nibbles, last);
    if (j->store == NG_TAG_NV24 && groups % 2) /* the upper half is of no group */
        last[groups / 2] &= 15;
    memcpy(slots, out, (size_t)groups * bytes / 2);
    memcpy(tags, last, sparse_tag_bytes(j, groups));
}

/* `left` bytes. */
SPARSE_INLINE void sparse_prune_as(const struct sparse_job *j, const uint8_t *src, size_t left,
                                   uint8_t *dst, enum sparse_way way)
{
    const struct sparse_words w = sparse_words_of(j, way);
    for (; left >= VB; left -= VB, src += VB, dst += VB) {
        const struct sparse_kept x = sparse_keep(&w, vb_load(src), way);
        vb_store(dst, vb_and(x.code, x.keep));
    }
    uint8_t rest[VB] = { 0 };
    memcpy(rest, src, left);
    const struct sparse_kept x = sparse_keep(&w, vb_load(rest), way);
    vb_store(rest, vb_and(x.code, x.keep));
    memcpy(dst, rest, left);
}

/* Nothing that is not zero would be pruned. */
SPARSE_INLINE bool sparse_holds_as(const struct sparse_job *j, const uint8_t *src, size_t left,
                                   enum sparse_way way)
{
    const struct sparse_words w = sparse_words_of(j, way);
    vb lost = vb_zero();
    for (; left >= VB; left -= VB, src += VB) {
        const struct sparse_kept x = sparse_keep(&w, vb_load(src), way);
        lost = vb_or(lost, vb_and_not(x.keep, x.code));
    }
    uint8_t rest[VB] = { 0 };
    memcpy(rest, src, left);
    const struct sparse_kept x = sparse_keep(&w, vb_load(rest), way);
    return !vb_any(vb_or(lost, vb_and_not(x.keep, x.code)));
}

static void sparse_compress(const struct sparse_job *j, const void *src, int64_t groups,
                            void *slots, void *tags)
{
    switch (sparse_way_of(j)) {
    case SPARSE_16: sparse_compress_as(j, src, groups, slots, tags, SPARSE_16); break;
    case SPARSE_8: sparse_compress_as(j, src, groups, slots, tags, SPARSE_8); break;
    case SPARSE_FNUZ: sparse_compress_as(j, src, groups, slots, tags, SPARSE_FNUZ); break;
    case SPARSE_TWOS: sparse_compress_as(j, src, groups, slots, tags, SPARSE_TWOS); break;
    }
}

static void sparse_prune(const struct sparse_job *j, const void *src, int64_t groups, void *dst)
{
    const size_t n = (size_t)groups * 4;
    switch (sparse_way_of(j)) {
    case SPARSE_16: sparse_prune_as(j, src, 2 * n, dst, SPARSE_16); break;
    case SPARSE_8: sparse_prune_as(j, src, n, dst, SPARSE_8); break;
    case SPARSE_FNUZ: sparse_prune_as(j, src, n, dst, SPARSE_FNUZ); break;
    case SPARSE_TWOS: sparse_prune_as(j, src, n, dst, SPARSE_TWOS); break;
    }
}

static bool sparse_holds(const struct sparse_job *j, const void *src, int64_t groups)
{
    const size_t n = (size_t)groups * 4;
    switch (sparse_way_of(j)) {
    case SPARSE_16: return sparse_holds_as(j, src, 2 * n, SPARSE_16);
    case SPARSE_8: return sparse_holds_as(j, src, n, SPARSE_8);
    case SPARSE_FNUZ: return sparse_holds_as(j, src, n, SPARSE_FNUZ);
    case SPARSE_TWOS: return sparse_holds_as(j, src, n, SPARSE_TWOS);
    }
    return false;
}

/* ---- Back to dense. ---- */

/* What expanding needs: rows as above. */
struct sparse_back {
    vb slot0, slot1; /* slots of a group for each of its elements; they lie in its lower half */
    vb tag;          /* the group's pair of tags for each of its bytes */
    vb first;        /* what tag 0, tag 1 are where slot 0, slot 1 is wanted: the element */
    vb second;
    vb low;
};

/* clang-format off */
static const uint8_t sparse_back_bytes[2][4][16] __attribute__((aligned(16))) = {
    { { 0, 1, 0, 1, 0, 1, 0, 1, 8, 9, 8, 9, 8, 9, 8, 9 },
      { 2, 3, 2, 3, 2, 3, 2, 3, 10, 11, 10, 11, 10, 11, 10, 11 },
      { 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8 },
      { 0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3 } },
    { { 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12 },
      { 1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13 },
      { 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12 },
      { 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3 } },
};
/* clang-format on */

SPARSE_INLINE struct sparse_back sparse_back_of(bool wide)
{
    const uint8_t(*row)[16] = sparse_back_bytes[!wide];
    __asm__("" : "+r"(row));
    const vb own = vb_sixteen(row[3]);
    return (struct sparse_back){ .slot0 = vb_sixteen(row[0]),
                                 .slot1 = vb_sixteen(row[1]),
                                 .tag = vb_sixteen(row[2]),
                                 .first = own,
                                 .second = vb_shl4(own),
                                 .low = vb_all8(15) };
}

SPARSE_INLINE vb sparse_spread(const struct sparse_back *b, vb slots, vb pairs)
{
    const vb tag = vb_shuffle(pairs, b->tag), first = vb_equal8(vb_and(tag, b->low), b->first),
             second = vb_equal8(vb_and_not(b->low, tag), b->second);
    return vb_or(vb_and(vb_shuffle(slots, b->slot0), first),
                 vb_and(vb_shuffle(slots, b->slot1), second));
}

SPARSE_INLINE void sparse_expand_block(const struct sparse_job *j, const struct sparse_back *b,
                                       const uint8_t *slots, const uint8_t *tags, uint8_t *dst,
                                       bool wide)
{
    uint8_t pairs[SPARSE_BLOCK];
    sparse_tags_of(j, tags, pairs);
    for (int i = 0; wide && i < 8 * SPARSE_BLOCK; i += VB)
        vb_store(dst + i,
                 sparse_spread(b, vb_32_to_64(slots + i / 2), vb_bytes_to_64(pairs + i / 8)));
    for (int i = 0; !wide && i < 4 * SPARSE_BLOCK; i += VB)
        vb_store(dst + i,
                 sparse_spread(b, vb_16_to_32(slots + i / 2), vb_bytes_to_32(pairs + i / 4)));
}

SPARSE_INLINE void sparse_expand_as(const struct sparse_job *j, const uint8_t *slots,
                                    const uint8_t *tags, int64_t groups, uint8_t *dst,
                                    bool wide)
{
    const struct sparse_back b = sparse_back_of(wide);
    const size_t bytes = wide ? 8 : 4;
    for (; groups >= SPARSE_BLOCK; groups -= SPARSE_BLOCK) {
        sparse_expand_block(j, &b, slots, tags, dst, wide);
        slots += SPARSE_BLOCK * bytes / 2;
        dst += SPARSE_BLOCK * bytes;
        tags += sparse_tag_bytes(j, SPARSE_BLOCK);
    }
    if (!groups)
        return;
    uint8_t in[SPARSE_CODES / 2] = { 0 }, last[SPARSE_BLOCK] = { 0 }, out[SPARSE_CODES];
    memcpy(in, slots, (size_t)groups * bytes / 2);
    memcpy(last, tags, sparse_tag_bytes(j, groups));
    sparse_expand_block(j, &b, in, last, out, wide);
    memcpy(dst, out, (size_t)groups * bytes);
}

static void sparse_expand(const struct sparse_job *j, const void *slots, const void *tags,
                          int64_t groups, void *dst)
{
    if (j->spec->store_bits == 16)
        sparse_expand_as(j, slots, tags, groups, dst, true);
    else
        sparse_expand_as(j, slots, tags, groups, dst, false);
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
