/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng-check: every kernel equals the reference on every code, shape and layout that it accepts,
 * touches nothing else and leaves the machine as it found it. This header is what the checks
 * share: random numbers, guarded memory, caught crashes, the control word, reports.
 */
#ifndef NGC_H
#define NGC_H

#include "../../src/dispatch.h"

/* ---- Options and counts of one run. ---- */

struct ngc {
    uint64_t seed;
    uint32_t rounds;
    const char *filter; /* part of a case's name, or NULL */
    const char *isas;   /* NG_ISA or --isa: names with commas, or NULL for all */
    bool list, verbose, stop_at_first;

    uint32_t cases, failed, skipped, never;
    uint64_t rounds_run; /* rounds that a kernel accepted */
    bool idle_kernel;    /* a kernel that this CPU runs was never accepted */
};

void ngc_check_gemm(struct ngc *run);
void ngc_check_write(struct ngc *run);
void ngc_check_cast(struct ngc *run);
void ngc_check_sparse(struct ngc *run);
void ngc_check_elementary(struct ngc *run);
void ngc_check_attention(struct ngc *run);
void ngc_check_moe(struct ngc *run);
void ngc_check_mlp(struct ngc *run);
void ngc_check_calls(struct ngc *run);
void ngc_check_large(struct ngc *run);

/* Is the ISA's name in the list? */
bool ngc_isa_allowed(const char *isas, const char *name);
/* Has the kernel to be walked? If not, that is said and counted. */
bool ngc_begin_kernel(struct ngc *run, const struct ng_isa *isa, const char *kernel);
/* Has the case to be run? Then it is counted; --list prints its name instead. */
bool ngc_begin_case(struct ngc *run, const char *name);

/* Counts when a kernel's walk began. */
struct ngc_walk {
    uint32_t cases, failed;
};
struct ngc_walk ngc_begin_walk(const struct ngc *run);
/* Cases that were run since. */
uint32_t ngc_walked(const struct ngc *run, const struct ngc_walk *w);
/* Fails the run if all of the kernel's cases were run and the public call never chose it. */
void ngc_end_walk(struct ngc *run, const struct ngc_walk *w, const char *kernel, bool took);

/* ---- Random numbers: a pure function of (seed, salt). ---- */

struct ngc_rng {
    uint64_t s;
};
uint64_t ngc_hash(const char *text, uint64_t seed);
uint64_t ngc_next(struct ngc_rng *r);
/* In [0, n). */
uint32_t ngc_below(struct ngc_rng *r, uint32_t n);
/* In [low, high]. */
int ngc_between(struct ngc_rng *r, int low, int high);
bool ngc_one_in(struct ngc_rng *r, uint32_t n);

/* ---- Codes. ---- */

/* One operand's mood: which exponents its values have. */
struct ngc_mood {
    const ng_format_spec *spec;
    int low, high;    /* window of floor(log2 |v|); below the least normal: subnormals */
    bool ends_only;   /* only the two ends of the window: one huge, many tiny */
    uint32_t zeros;   /* one element in `zeros` is a zero of either sign; 0: none */
    uint32_t special; /* one element in `special` is an Inf or NaN; 0: none */
    bool any_code;    /* every finite code alike; the window is not read */
};
uint32_t ngc_code(struct ngc_rng *r, const struct ngc_mood *mood);
/* Any code at all, Inf and NaN payloads included. */
uint32_t ngc_any_code(struct ngc_rng *r, const ng_format_spec *spec);
uint32_t ngc_negate(const ng_format_spec *spec, uint32_t code);
/* Least and largest floor(log2 |v|) of a format's finite values; least normal exponent. */
int ngc_exp_least(const ng_format_spec *spec);
int ngc_exp_normal(const ng_format_spec *spec);
int ngc_exp_most(const ng_format_spec *spec);

void ngc_store(void *data, uint32_t store_bits, int64_t index, uint32_t code);
uint32_t ngc_load(const void *data, uint32_t store_bits, int64_t index);

/* "0x3f800000 (1)": a code and what it stands for. */
const char *ngc_text(const ng_format_spec *spec, uint32_t code, char text[64]);

/* Any format; any that has elements, not scales. */
const ng_format_spec *ngc_any_format(struct ngc_rng *r);
const ng_format_spec *ngc_element_format(struct ngc_rng *r);

/* ---- Memory that ends (or begins) at an unreadable page. ---- */

struct ngc_mem {
    unsigned char *room, *copy;
    size_t capacity;
    unsigned char *data; /* where the block was placed */
    size_t bytes;
    size_t before, after; /* pattern around it that must stay */
};
bool ngc_mem_open(struct ngc_mem *m, size_t capacity);
/* Place a block and fill it and its surroundings with 0xAA. False: it does not fit. */
bool ngc_mem_place(struct ngc_mem *m, size_t bytes, size_t align, bool at_end);
/* Remember the block with its surroundings; is it still the same? */
void ngc_mem_keep(struct ngc_mem *m);
bool ngc_mem_kept(const struct ngc_mem *m);
/* Do two blocks placed alike hold the same bytes, surroundings included? */
bool ngc_mem_equal(const struct ngc_mem *x, const struct ngc_mem *y);

/*
 * Strides of t, whose elements then reach over *n places, the first of them *at places from
 * their beginning: row-major, or dimensions in any order with gaps between them, some counted
 * backwards. Half bytes: rows of whole bytes.
 */
void ngc_draw_strides(struct ngc_rng *r, ng_tensor *t, uint32_t bits, int64_t *at, int64_t *n);
/* A tensor with such strides in memory `m`, and room for another in `other`, or NULL. */
bool ngc_lay(struct ngc_rng *r, struct ngc_mem *m, struct ngc_mem *other, ng_format f,
             uint32_t rank, const int64_t *dim, ng_tensor *t);
/* Scales for every `block` elements of t along `axis`, with such strides, in `m`, for the
 * caller to fill. */
bool ngc_lay_scales(struct ngc_rng *r, struct ngc_mem *m, ng_format f, uint32_t block,
                    uint32_t axis, ng_tensor *t);

/* ---- Tasks. ---- */

/* One worker, the last task first: none may lean on the one before. */
extern const ng_executor ngc_backwards;

/* ---- The machine's state. ---- */

/* A control word that breaks naive code: flush, round up, underflow unmasked. */
uint32_t ngc_fp_hostile(void);
uint32_t ngc_fp_get(void);
void ngc_fp_set(uint32_t word);
/* The control bits alone, without the sticky flags. */
uint32_t ngc_fp_control(uint32_t word);

/* Run f(arg); 0, or the signal that ended it. The control word is restored after a crash. */
int ngc_catch(void (*f)(void *arg), void *arg);
/* What such a signal says of the kernel. */
const char *ngc_signal_text(int signal);

#endif
