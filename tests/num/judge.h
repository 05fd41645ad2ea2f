/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judge: formats and conversions a second time, written from docs/numerics.md sections 1,
 * 2, 2.1 and 11.1 alone, with MPFR. It shares neither code nor tables with the library: no
 * header of the library is included here, formats.def least of all.
 *
 * How it works. The magnitudes of a format, continued past its maximum without end, are a
 * rising sequence value(0), value(1), value(2), ... A number is placed between its two
 * neighbours in that sequence, and the fraction v of the gap below it is kept as an exact MPFR
 * number. Rounding is a choice between index and index + 1; overflow is index > max_index.
 */
#ifndef NG_TESTS_NUM_JUDGE_H
#define NG_TESTS_NUM_JUDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__has_include)
#if __has_include(<mpfr.h>)
#define JUDGE_HAVE_MPFR 1
#endif
#endif

#ifdef JUDGE_HAVE_MPFR
#include <mpfr.h>

typedef enum judge_class {
    JUDGE_FINITE,
    JUDGE_INF,
    JUDGE_NAN
} judge_class;

typedef enum judge_round {
    JUDGE_RNE,
    JUDGE_RNA,
    JUDGE_RTZ,
    JUDGE_RUP,
    JUDGE_RDN,
    JUDGE_RTO,
    JUDGE_SR,
    JUDGE_ROUNDS
} judge_round;

typedef enum judge_sr {
    JUDGE_SR_A,
    JUDGE_SR_B,
    JUDGE_SR_C,
    JUDGE_SRS
} judge_sr;

typedef enum judge_overflow {
    JUDGE_OVERFLOW_INF,
    JUDGE_OVERFLOW_SAT,
    JUDGE_OVERFLOW_KEEP_INF,
    JUDGE_OVERFLOWS
} judge_overflow;

typedef enum judge_nan_to {
    JUDGE_NAN_MAX,
    JUDGE_NAN_ZERO,
    JUDGE_NAN_ERROR,
    JUDGE_NAN_TOS
} judge_nan_to;

/** The names of the page. */
extern const char *const judge_round_name[JUDGE_ROUNDS];
extern const char *const judge_sr_name[JUDGE_SRS];
extern const char *const judge_overflow_name[JUDGE_OVERFLOWS];
extern const char *const judge_nan_to_name[JUDGE_NAN_TOS];

/** A row of section 1. A code that a format lacks is JUDGE_NO_CODE. */
#define JUDGE_NO_CODE UINT32_MAX
typedef struct judge_format {
    const char *name;
    unsigned bits;      /**< of a code, as stored in a word of word_bits */
    unsigned word_bits; /**< memory that an element takes */
    unsigned sign_bits; /**< of which the value depends on: 0 for e8m0, ue4m3 */
    unsigned exp_bits;
    unsigned man_bits;
    unsigned low_bits; /**< always written 0: tf32's 13 */
    int bias;
    double max; /**< largest finite value, exact in a double */
    uint32_t max_code;
    int min_exp; /**< log2 of the smallest positive value: the "min subnormal" column */
    uint32_t inf_code;
    uint32_t nan_first; /**< the NaN codes, sign bit aside */
    uint32_t nan_last;
    uint32_t nan_code; /**< section 2, canonical NaN */
    bool nan_signed;   /**< the sign bit of a NaN can be set */
    bool minus_zero;   /**< 11.1.4 */
    bool has_zero;     /**< all but e8m0 */
    bool complement;   /**< two's complement: mxint8 */
} judge_format;

#define JUDGE_FORMATS 16
extern const judge_format judge_formats[JUDGE_FORMATS];
const judge_format *judge_find(const char *name);
bool judge_has_nan(const judge_format *f);
bool judge_has_inf(const judge_format *f);
/** value(max_index) is the largest finite magnitude. */
uint64_t judge_max_index(const judge_format *f);

/** A number: the magnitude is exact. */
typedef struct judge_num {
    mpfr_t mag;
    judge_class cls;
    bool neg;
} judge_num;

typedef enum judge_side {
    JUDGE_EXACT,
    JUDGE_BELOW_HALF,
    JUDGE_HALF,
    JUDGE_ABOVE_HALF
} judge_side;

/** Where a number lies on a format's continued grid. */
typedef struct judge_spot {
    uint64_t index; /**< of the greatest grid magnitude that is not above it */
    judge_side side;
    judge_class cls;
    bool neg;
    bool zero; /**< the number itself, not what it rounds to */
} judge_spot;

/** Working numbers; one per thread. */
typedef struct judge judge;
judge *judge_new(void);
void judge_free(judge *j);
void judge_num_init(judge_num *n);
void judge_num_clear(judge_num *n);

/** The value of a code; bits above the format's width are ignored. */
void judge_decode(const judge_format *f, uint32_t code, judge_num *out);
/** (-1)^neg * sig * 2^exp, plus half a unit of sig when `sticky`. */
void judge_dyadic(judge_num *out, bool neg, uint64_t sig, long exp, bool sticky);
/** The magnitude of an index of the continued grid. */
void judge_index_value(const judge_format *f, uint64_t index, mpfr_ptr out);

/** Place a number. The fraction v of section 2.1 stays in `j` until the next call. */
void judge_place(judge *j, const judge_format *f, const judge_num *x, judge_spot *spot);
/** All rules but sr: the index that the spot rounds to. */
uint64_t judge_pick(const judge_format *f, const judge_spot *spot, judge_round round);

/** Section 2.1, of the number placed last: A floor(v 2^n), B floor(v 2^(n+1)), C rne(v 2^n). */
uint64_t judge_sr_scaled(judge *j, judge_sr sr, unsigned n);
/** How many of the 2^n values of r round away from zero. */
uint64_t judge_sr_count(judge_sr sr, uint64_t scaled);
/** Does r round away from zero? */
bool judge_sr_up(judge_sr sr, unsigned n, uint64_t scaled, uint32_t r);
/** The n bits of a word. */
uint32_t judge_sr_take(uint32_t word, unsigned n, bool high);

typedef struct judge_rule {
    judge_round round;
    judge_overflow overflow;
    bool nan_keep;
    judge_nan_to nan_to;
} judge_rule;

/** The overflow and NaN rules. False: the conversion is an error. */
bool judge_finish(const judge_format *f, const judge_spot *spot, uint64_t rounded,
                  const judge_rule *rule, uint32_t *code);

/** All of it for one number; `rule->round` is not JUDGE_SR. */
bool judge_encode(judge *j, const judge_format *f, const judge_num *x, const judge_rule *rule,
                  uint32_t *code);
/** The same for JUDGE_SR. */
bool judge_encode_sr(judge *j, const judge_format *f, const judge_num *x,
                     const judge_rule *rule, judge_sr sr, unsigned n, bool high, uint32_t word,
                     uint32_t *code);

/** The FP32 pattern of a magnitude; false if FP32 does not hold it exactly. */
bool judge_f32_pattern(judge *j, mpfr_srcptr mag, uint32_t *pattern);

/** The table against itself and the check points of section 2. Returns what is wrong, or NULL.
 */
const char *judge_self_test(void);

#endif
#endif
