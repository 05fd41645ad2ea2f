/* SPDX-License-Identifier: Apache-2.0 */
/*
 * R(acc + x_0 + ...) where the sum of a row's lanes does not fit FP32 but 53 bits: in FP64, for
 * single vectors between the products and for whole steps. Behind gemm_fma.h.
 *
 * Products of 8 significant bits are exact in FP32, their sums in FP64; rounding acc + s to odd
 * first and to FP32 then is one rounding (Boldo and Melquiond), as 53 >= 24 + 2.
 */
#ifndef NG_AVX512BF16_DP_SUM64_H
#define NG_AVX512BF16_DP_SUM64_H

#include "../dp.h"

enum {
    SUM64_MANY = 5, /* vectors of a step; from there on they share what they convert */
    SUM64_LANES = 4,
    SUM64_STEPS = 32
};

/* acc + s, rounded to odd: where it is not exact, the one of its two neighbours that is odd. */
PACK_INLINE vec64 sum64_odd(vec64 acc, vec64 s)
{
    const vec64 down = _mm512_add_round_pd(acc, s, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC),
                up = _mm512_add_round_pd(acc, s, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    return _mm512_mask_mov_pd(
        up, _mm512_test_epi64_mask(_mm512_castpd_si512(down), _mm512_set1_epi64(1)), down);
}

/* R(acc + s), s the sums of a vector's halves; `held`: FP64 holds acc + s. */
PACK_INLINE vec sum64_add(vec64 lower, vec64 upper, vec acc, bool held)
{
    const vec64 low = vec64_half(acc, 0), high = vec64_half(acc, 1);
    return held ? vec_of_halves(vec64_add(low, lower), vec64_add(high, upper))
                : vec_of_halves(sum64_odd(low, lower), sum64_odd(high, upper));
}

/* The sums of one row's lanes and of VL columns. */
PACK_INLINE void sum64_sums(const int step, const uint32_t *a, const uint32_t *b, vec64 s[2])
{
    /* Other words than the products', or compilers broadcast both from a general register. */
    __asm__("" : "+r"(a));
    FMA_UNROLL
    for (int k = 0; k < step; k++) {
        const vec_pairs x = iv_all(a[k / 2 * MR]), y = iv_load(b + k / 2 * NR);
        const vec p = k % 2 ? _mm512_mul_ps(vec_pairs_lower(x), vec_pairs_lower(y))
                            : _mm512_mul_ps(vec_pairs_upper(x), vec_pairs_upper(y));
        FMA_UNROLL
        for (int h = 0; h < 2; h++)
            s[h] = k ? vec64_add(s[h], vec64_half(p, h)) : vec64_half(p, h);
    }
}

/* acc = R(acc + x_0 + ...) of a row and VL columns. */
PACK_INLINE vec sum64_vector(const int step, const uint32_t *a, const uint32_t *b, bool held,
                             vec acc)
{
    vec64 s[2];
    sum64_sums(step, a, b, s);
    return sum64_add(s[0], s[1], acc, held);
}

/* The k-th of the lanes of eight rows or columns. */
PACK_INLINE vec64 sum64_values(const uint32_t *pairs, int k)
{
    const __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)pairs),
                  v = k % 2 ? _mm256_slli_epi32(w, 16)
                            : _mm256_and_si256(w, _mm256_set1_epi32(-0x10000));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(v));
}

/* acc = R(acc + x_0 + ...) of all rows and columns: A's values and B's become doubles once. */
PACK_INLINE void sum64_step(int rows, const int step, const uint32_t *a, const uint32_t *b,
                            bool held, float acc[MR][NR])
{
    enum {
        VL64 = VL / 2
    };
    double x[SUM64_LANES][MR];
    vec64 y[SUM64_LANES][NR / VL64];
    for (int k = 0; k < step; k++) {
        _mm512_storeu_pd(x[k], sum64_values(a + k / 2 * MR, k));
        for (int h = 0; h < NR / VL64; h++)
            y[k][h] = sum64_values(b + k / 2 * NR + h * VL64, k);
    }
    for (int r = 0; r < rows; r++)
        FMA_UNROLL
    for (int q = 0; q < NV; q++) {
        vec64 sum[2];
        FMA_UNROLL
        for (int h = 0; h < 2; h++) {
            const int at = 2 * q + h;
            vec64 s = vec64_mul(_mm512_set1_pd(x[0][r]), y[0][at]);
            FMA_UNROLL
            for (int k = 1; k < step; k++)
                s = vec64_fma(_mm512_set1_pd(x[k][r]), y[k][at], s);
            const vec64 before = _mm512_cvtps_pd(_mm256_loadu_ps(acc[r] + at * VL64));
            sum[h] = held ? vec64_add(before, s) : sum64_odd(before, s);
        }
        vec_store(acc[r] + q * VL, vec_of_halves(sum[0], sum[1]));
    }
}

/* Which vectors of a step want it: bit 8 q + r. */
PACK_INLINE uint32_t sum64_wanted(const struct fma *f, int64_t number)
{
    uint64_t a;
    uint16_t b;
    memcpy(&a, f->spread_a + number * MR, sizeof a);
    memcpy(&b, f->most_b + number * GROUPS, sizeof b);
    const __m128i each = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                  sum = _mm_adds_epu8(_mm_set1_epi64x((long long)a),
                                      _mm_shuffle_epi8(_mm_cvtsi32_si128(b), each)),
                  over = _mm_subs_epu8(sum, _mm_set1_epi8((char)SPREAD_LIMIT));
    return 0xFFFF ^ (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(over, _mm_setzero_si128()));
}

/* Bit i of n, n <= SUM64_STEPS: step number + i may have some that want it. */
PACK_INLINE uint32_t sum64_steps(const struct fma *f, int64_t number, int64_t n)
{
    const __mmask32 those = (uint32_t)(((uint64_t)1 << n) - 1);
    const __m512i groups = _mm512_maskz_loadu_epi16(those, f->most_b + number * GROUPS);
    const __m256i a = _mm256_maskz_loadu_epi8(those, f->most_a + number),
                  b = _mm512_cvtepi16_epi8(
                      _mm512_max_epu8(groups, _mm512_srli_epi16(groups, 8)));
    return _mm256_mask_cmpgt_epu8_mask(those, _mm256_adds_epu8(a, b),
                                       _mm256_set1_epi8((char)SPREAD_LIMIT));
}

/*
 * sum64_wanted() of steps to come. A branch that asks vectors waits for all the products that
 * were given to them before it, one that asks memory does not: so SUM64_STEPS are looked up
 * while those before them are multiplied.
 */
struct sum64_ahead {
    int64_t first, end; /* steps of the run */
    int64_t seen;       /* up to which: the last two SUM64_STEPS are here */
    uint32_t any[2];    /* bit i: wanted[][i] has some */
    uint16_t wanted[2][SUM64_STEPS];
};

/* Is it done? Of two lanes steps seldom have any, and few rows lost 2 % by it. */
PACK_INLINE bool sum64_looks(const int rows, const int step)
{
    return step == 4 && rows > 3;
}

/* wanted[i] of n steps from `number` on; bit i: there are some. */
PACK_INLINE uint32_t sum64_look(const struct fma *f, int64_t number, int64_t n,
                                uint16_t wanted[SUM64_STEPS])
{
    uint8_t rows[64], groups[64];
    uint64_t four[SUM64_STEPS / 4] = { 0 };
    FMA_UNROLL
    for (int i = 0; i < 64; i++) {
        rows[i] = (uint8_t)(i / (2 * MR) * MR + i % MR);
        groups[i] = (uint8_t)(i / MR);
    }
    for (int64_t i = 0; i < n; i += 4) {
        const int left = n - i < 4 ? (int)(n - i) : 4;
        const __m256i a = _mm256_maskz_loadu_epi8((uint32_t)(((uint64_t)1 << MR * left) - 1),
                                                  f->spread_a + (number + i) * MR);
        const __m128i b = _mm_maskz_loadu_epi8((__mmask16)((1u << GROUPS * left) - 1),
                                               f->most_b + (number + i) * GROUPS);
        four[i / 4] = _mm512_cmpgt_epu8_mask(
            _mm512_adds_epu8(
                _mm512_permutexvar_epi8(iv_load(rows), _mm512_castsi256_si512(a)),
                _mm512_permutexvar_epi8(iv_load(groups), _mm512_castsi128_si512(b))),
            _mm512_set1_epi8((char)SPREAD_LIMIT));
    }
    memcpy(wanted, four, sizeof four);
    const __m512i all = iv_load(four);
    return _mm512_test_epi16_mask(all, all);
}

/* SUM64_STEPS of the run more. */
static __attribute__((noinline)) void sum64_next(const struct fma *f, struct sum64_ahead *t)
{
    const int64_t left = t->end - t->seen, n = left < SUM64_STEPS ? left : SUM64_STEPS;
    const int half = (int)((t->seen - t->first) / SUM64_STEPS % 2);
    t->any[half] = n > 0 ? sum64_steps(f, t->seen, n) : 0;
    if (t->any[half])
        t->any[half] = sum64_look(f, t->seen, n, t->wanted[half]);
    t->seen += SUM64_STEPS;
}

/* Before a run of rows of four lanes. */
static void sum64_begin(struct fma *f, struct sum64_ahead *t, int64_t from, int64_t to)
{
    t->first = (f->one ? from : f->w->start[from]) / 4;
    t->end = (f->one ? to : f->w->start[to]) / 4;
    t->seen = t->first;
    f->ahead = t;
    sum64_next(f, t);
}

/* Which half of t has step number `number`, as its i-th; those behind its half are looked up
 * before it is multiplied. */
PACK_INLINE int sum64_half(const struct fma *f, struct sum64_ahead *t, int64_t number,
                           int64_t *i)
{
    const uint64_t at = (uint64_t)(number - t->first);
    while (number + SUM64_STEPS >= t->seen)
        sum64_next(f, t);
    *i = (int64_t)(at % SUM64_STEPS);
    return (int)(at / SUM64_STEPS % 2);
}

/* sum64_wanted() of the step that is multiplied next, looked up. */
PACK_INLINE uint32_t sum64_due(const struct fma *f, int64_t number)
{
    struct sum64_ahead *const t = f->ahead;
    int64_t i;
    const int half = sum64_half(f, t, number, &i);
    return t->any[half] >> i & 1 ? t->wanted[half][i] : 0;
}

/* name_ahead_1, ...: name_1 ... of four lanes, with that. */
#define SUM64_INSTANCE(name, rows)                                                             \
    static void name##_ahead_##rows(struct fma *f, int64_t from, int64_t to, const float *add, \
                                    float *out)                                                \
    {                                                                                          \
        struct sum64_ahead ahead;                                                              \
        if (sum64_looks(rows, 4))                                                              \
            sum64_begin(f, &ahead, from, to);                                                  \
        name##_##rows(f, from, to, add, out);                                                  \
    }

_Static_assert(GROUPS == 2, "a byte of each half of the columns");

#endif
