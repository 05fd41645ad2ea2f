/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel contract. A kernel includes this header, the shared ones of its folder and
 * <ng/...>: never src/num, never src/ref, never another ISA. See kernels/README.md.
 */
#ifndef NG_KERNEL_H
#define NG_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ng/attention.h"
#include "ng/collective.h"
#include "ng/elementary.h"
#include "ng/gemm.h"
#include "ng/layer.h"
#include "ng/moe.h"
#include "ng/quantize.h"

/* One operand of a multiply, as lines (rows of A, columns of B) by k. */
struct gemm_operand {
    const void *data;
    const ng_format_spec *spec;
    int64_t offset;       /* elements from data to (line 0, k 0) */
    int64_t line, k;      /* strides in elements */
    const uint8_t *scale; /* one byte each, or NULL */
    const ng_format_spec *scale_spec;
    int64_t scale_offset, scale_line, scale_block;
    uint32_t block;
    ng_layout layout;
    int64_t depth; /* length along k in memory: K, or K * group / kept of a dense operand that
                      meets a sparse one */
    const ng_sparse *sparse; /* or NULL: lines are then compressed */
    int64_t tag_line;        /* number of line 0's tags */
    bool tags_ascend;        /* inside every group, over all lines: what the front door found */
};

/* C or D: rows by columns. */
struct gemm_matrix {
    void *data;
    const ng_format_spec *spec;
    int64_t offset, row, col;
};

struct ng_stream;

/* One matrix multiply: const from room 2 on. */
struct gemm_job {
    const ng_gemm_op *op;
    const ng_rule *rule;
    ng_mode mode;
    ng_format acc;             /* f32, bf16 or f16 */
    const ng_format_spec *fp4; /* of the codes in op->fp4_map, or NULL without one */
    struct gemm_operand a, b;
    struct gemm_matrix c, d; /* c.data may be NULL */
    int64_t m, n, k;         /* k is the accumulation's: compressed when an operand is sparse */
    int64_t first,
        elements; /* row-major number of D(0, 0), and of all elements: random words */
    const struct ng_stream *out_words, *psum_words; /* of sr; not for kernels */
    bool second; /* what is asked for from memory is to come into the second cache: near.h */
};

/*
 * The order in which a rule takes the products of an element (docs/numerics.md 4.1, steps 1, 2
 * and 4): K tiles, their chains, a chain's rows, a row's lanes. Packed panels hold the operands
 * in this order, so that a tile runs straight through them. A position without a product (past
 * K, or padding to whole steps) has k = -1; panels hold -0 in A and +0 in B there, whose
 * product -0 leaves every sum as it is (section 11.2 item 9).
 *
 * Of family fused (4.2): the products of steps. A tile is an instruction, or those that are
 * promoted together, its one chain their steps; psum is C, so that tile() adds to it or goes on
 * from it as the rule says.
 */
struct gemm_walk {
    int64_t depth;  /* positions */
    int64_t used;   /* those that pack() fills of a dense operand's panel, and takes facts of:
                       depth, or less where a copy of the walk says so: up to the end of a K
                       tile; tile() then gets none behind it */
    int64_t tiles;  /* K tiles, */
    int64_t tile_k; /* each of so many k; the last one may have fewer */
    int32_t chains; /* of a tile; each gives a sum, also when no row feeds it */
    int32_t lanes;  /* of a row; fused: products of a step */
    int32_t step;   /* positions of a row: lanes, rounded up to even; 1 for one lane. fused: of
                       a step, rounded up to fours */
    int32_t writes; /* additions to the accumulate memory per tile: 1, 2, 4 */
    bool whole;     /* one chain over all of K, one write: it may be cut and carried */
    int64_t blocks; /* scales of a line, 0 without */
    int32_t *k;     /* [depth] k of the dense operands */
    int32_t *block; /* [depth] number of the scale, or NULL */
    int32_t *run;   /* [tiles * chains] positions of a chain: even, whole steps */
    int64_t *start; /* [tiles + 1] first position of a tile */
    int64_t quads;  /* so many K tiles, from the first on, are four chains of `quad` positions,
                       or two of them and two of none */
    int32_t quad;
    int64_t in_blocks; /* so many positions, from the first on, are whole blocks of GEMM_BLOCK:
                          position p has the scale p / GEMM_BLOCK */
    int64_t in_runs;   /* so many positions, from the first on, are runs of GEMM_BLOCK whose k
                          follow each other */
    int32_t *slot;     /* [job k] sparse: position of the slot's group, to add its tag to */
    uint32_t
        *widen[2]; /* [256] FP32 patterns of A's and B's codes of at most 8 bits, or NULL */
};

enum {
    GEMM_GRAIN = 64, /* where a whole chain may be cut: whole steps of any number of lanes */
    GEMM_BLOCK = 32  /* elements of an MX scale */
};

/* What a panel begins with; 64 bytes. Bounds are over its finite elements that are not zero. */
struct gemm_panel {
    int32_t lsb_min;   /* no element has a bit below 2^lsb_min */
    int32_t msb_max;   /* each is below 2^(msb_max + 1) */
    int32_t msb_min;   /* and not below 2^msb_min */
    int32_t spread;    /* largest of the spread bytes: see packing.h */
    uint8_t special;   /* a NaN or an Inf is among them */
    uint8_t unfolded;  /* block scales stand apart; else they are multiplied in */
    uint8_t nan_scale; /* of MXFP4: one of its block scales is NaN */
    uint8_t direct;    /* a slim panel's: its codes may be multiplied as they are, */
    uint8_t scale_min; /* their block scales being these e8m0 codes, 1 to 254 */
    uint8_t scale_max;
    uint8_t ints;  /* of A, by VPDPWSSD: see amxbf16/quad_ints.h */
    uint8_t plain; /* a slim panel's: a value is NaN or Inf, or a block scale NaN */
    int32_t run;   /* two MXFP4 operands by TDPBSSD: see amxbf16/e2m1_fold.h */
    uint8_t rest[36];
};

typedef enum gemm_side {
    GEMM_A = 0,
    GEMM_B = 1
} gemm_side;

/* How a tile call came by its bits. */
typedef enum gemm_way {
    GEMM_FAST = 0,
    GEMM_EXACT = 1, /* in whole or in part by the slow path */
    GEMM_LEFT = 2,  /* psum untouched: the caller asks the reference */
    GEMM_WHOLE =
        3 /* psum untouched: the caller gives all of K at once. The panels alone decide */
} gemm_way;

/* Rows of memory that are wanted after this call: while sums run they come nearer. */
struct gemm_soon {
    const unsigned char *const *row;
    int64_t rows, bytes; /* of each row */
    int64_t step;        /* rows that each chain asks for */
    int64_t early;       /* rows, of these, that turn(), note() or the like asks for instead */
    int64_t lines; /* the kernel's own: cache lines, one after another, while a chain runs */
    int64_t at;    /* byte of *row that is next */
};

/* psum of a tile on its way to D: FP32. */
struct gemm_write {
    const float *psum; /* [mr][nr] */
    unsigned char *d;
    int64_t rows, columns, d_row, d_col; /* bytes from a row of D, a column, to the next */
    uint32_t nan;                        /* what any NaN becomes */
    bool done;                           /* tile() wrote it */
};

/* One call of tile(): the panels of up to mr rows and nr columns, and a stretch of K. */
struct gemm_tile {
    const void *a, *b; /* panels */
    int32_t rows;      /* 1 .. mr */
    int64_t from, to;  /* additions to the accumulate memory: walk->writes a K tile. If
                          walk->whole: positions, multiples of GEMM_GRAIN, or the end */
    bool begun;    /* psum holds something to add to (whole: the chain so far); else the first
                      write just writes */
    float *psum;   /* [mr][nr] */
    void *scratch; /* scratch_bytes, 64-byte aligned, the calling worker's own */
    struct gemm_soon *soon;   /* or NULL; counts down what it is asked for */
    bool fresh;               /* b's stretch of K comes from memory: no tile has just read it */
    bool once;                /* this b is multiplied once, and `a` stays where it is near */
    bool sparing;             /* few elements of the tile are wanted: GEMM_LEFT, psum any,
                               * rather than a slow path for all of it */
    uint8_t parts;            /* bit q: the q-th quarter of `next`'s lines is to come nearer */
    int64_t next;             /* bytes from b to the panel that comes after it */
    struct gemm_write *write; /* or NULL: D takes psum as it is when this call is over. Sums may
                               * go there from registers: `done`, and psum is any */
};

/*
 * B of a stretch of positions where it lies: bf16, the columns of a position one after another.
 * For a few rows of A, which would not pay for a panel.
 */
struct gemm_lying {
    const struct gemm_panel *head;   /* facts of all of them: note() */
    const unsigned char *const *row; /* [position - first]: its columns; where there is no
                                        product any that are finite */
    int64_t first;                   /* position */
    int64_t column;                  /* of the first of the tile's nr columns */
    bool pairs;                      /* rows 0 and 1, 2 and 3, ... are one of pairs, the earlier
                                        one's codes in the upper halves, at the earlier's row */
};

/* Tiles of panels of A, or of B, one after another. */
struct gemm_run {
    int64_t panels;
    int64_t a_step, b_step; /* bytes from panel to panel; 0: all have the same */
    int64_t psum_step;      /* numbers from psum to psum; 0: each has it before the next */
    const int64_t *row;     /* panel i of A has row[i + 1] - row[i] rows; NULL: tile's */
    uint8_t *way;           /* of tile i at way[i * way_step], where it is not GEMM_FAST */
    int64_t way_step;
    bool slim; /* t->b is a slim panel, whose codes are multiplied as they are */
};

/*
 * A GEMM kernel. The library calls, in this order and never back:
 *   refuses      while planning; reads the job only
 *   panel_bytes  the same
 *   pack         once a panel, from any thread; writes panel_bytes(), 64-byte aligned
 *   tile         any order, any thread; writes psum[0 .. rows][0 .. nr) and scratch
 *   write        psum to a D that takes it as it is; others are the library's own
 *   turn         instead of pack, for B
 *   note, tile_lying  instead of pack for B and tile, where lies() lets them
 *   turn_codes   turn out of rows of 8-bit codes
 *   widen, widen_pairs  rows for turn, note and tile_lying
 *   tiles        instead of tile
 * Round-to-nearest, no flush to zero, all exceptions masked: the library sets the control word
 * around pack and tile. A kernel reads no byte outside operands and panels, even where it would
 * not use it, and changes nothing but its outputs.
 */
struct ng_gemm_kernel {
    const char *name; /* "gemm_fma_6x16__avx2": as its symbol, less the prefix */
    uint16_t mr, nr;
    size_t scratch_bytes;
    /* NULL: takes the job, whatever its data. Else why not, in a few words. */
    const char *(*refuses)(const struct gemm_job *g);
    size_t (*panel_bytes)(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side);
    void (*pack)(const struct gemm_job *g, const struct gemm_walk *w, gemm_side side,
                 int64_t line, int32_t lines, void *panel);
    gemm_way (*tile)(const struct gemm_job *g, const struct gemm_walk *w,
                     const struct gemm_tile *t);
    void (*write)(const struct gemm_write *w);
    /* What ng_pack() keeps of a panel of B, see slim.h: its bytes, 0: the panel as it is; made
     * from the panel and B's codes, or, panel NULL, from these alone: false, where it wants the
     * panel; and back, positions [from, to), as far as tile() reads.
     * Those of the slim panel `next` bytes behind this one are wanted next; 0: of none. */
    size_t (*slim_bytes)(const struct gemm_job *g, const struct gemm_walk *w);
    bool (*slim)(const struct gemm_job *g, const struct gemm_walk *w, int64_t line,
                 int32_t lines, const void *panel, void *slim);
    /* Does slim() want no panel, whatever most data are? NULL: it does. */
    bool (*slims)(const struct gemm_job *g, const struct gemm_walk *w);
    void (*grow)(const struct gemm_job *g, const struct gemm_walk *w, int64_t from, int64_t to,
                 const void *slim, int64_t next, void *panel);
    /* tile(), t->b a slim panel; or GEMM_LEFT, psum untouched: the caller lets it
     * grow. NULL: always. Growing pays for itself where more than `slim_panels` panels of A are
     * multiplied by it, of 8-bit codes `byte_panels`, of a sparse B `kept_panels`. */
    gemm_way (*tile_slim)(const struct gemm_job *g, const struct gemm_walk *w,
                          const struct gemm_tile *t);
    int64_t slim_panels, byte_panels, kept_panels;
    /* May tiles() be asked for two panels of A by a B that comes from memory (t->fresh), or by
     * a slim one (gemm_run.slim), whose codes bring what comes after them if it does? */
    bool both;
    /* A block's rows, and its positions of K, where others than usual are better; 0: as usual.
     */
    struct gemm_block {
        int64_t rows, deep;
    } block;
    /* Would tiles() of so many panels of A rather go through K a stretch at a time, which B has
     * in the first cache? Each tile then wants a psum of its own. NULL: no. */
    bool (*near)(const struct gemm_job *g, const struct gemm_walk *w, int64_t panels);
    /* Few panels of A are multiplied sooner than B comes from memory. With more than `rows`
     * rows in at most `panels` panels it comes by `parts`, in blocks of K of `deep` positions.
     * All 0: never. */
    struct gemm_few {
        int64_t deep, rows, panels;
    } few;
    /* pack() of B in bf16 whose line l has its k one after another at row[l]. False: pack()
     * takes it, whatever the panel holds now. NULL: always. `known`: facts of the rows, or
     * NULL. Of `soon`, or NULL, it asks for the early rows and takes them off. */
    bool (*turn)(const struct gemm_job *g, const struct gemm_walk *w,
                 const unsigned char *const *row, int32_t lines, const struct gemm_panel *known,
                 struct gemm_soon *soon, void *panel);
    /* turn() of lines whose k are codes of 8 bits in another format; `value`: FP32 patterns of
     * all codes. False also where an Inf or a NaN is among them. NULL: always. */
    bool (*turn_codes)(const struct gemm_job *g, const struct gemm_walk *w,
                       const ng_format_spec *from, const uint32_t value[256],
                       const unsigned char *const *row, int32_t lines, struct gemm_soon *soon,
                       void *panel);
    /* May B, in bf16, lie where it is? NULL: never. */
    bool (*lies)(const struct gemm_job *g);
    /* Facts of n rows of `columns` columns, a multiple of nr; `soon` as in turn(). */
    void (*note)(const struct gemm_job *g, const unsigned char *const *row, int64_t n,
                 int64_t columns, struct gemm_soon *soon, struct gemm_panel *head);
    /* tile(), t->b not looked at. GEMM_FAST; or GEMM_LEFT, psum untouched, where it would not
     * be: the caller packs. */
    gemm_way (*tile_lying)(const struct gemm_job *g, const struct gemm_walk *w,
                           const struct gemm_tile *t, const struct gemm_lying *b);
    /* Such rows out of others in a format of 8 bits: n times `columns` codes at row[i], `value`
     * FP32 patterns of all codes, to `to`, `wide` of bf16 each, a multiple of 32: +0 behind the
     * columns. *head: note()'s facts. False, both outputs any: of this format never, or an Inf
     * or a NaN is among them. NULL: always. */
    bool (*widen)(const ng_format_spec *from, const uint32_t value[256],
                  const unsigned char *const *row, int64_t n, int64_t columns, int64_t wide,
                  uint16_t *to, struct gemm_panel *head);
    /* The same, as gemm_lying.pairs has rows; `soon` as in turn(). False also where n is odd.
     */
    bool (*widen_pairs)(const struct gemm_job *g, const ng_format_spec *from,
                        const uint32_t value[256], const unsigned char *const *row, int64_t n,
                        int64_t columns, int64_t wide, struct gemm_soon *soon, uint16_t *to,
                        struct gemm_panel *head);
    /* tile() of several, from t->a, t->b, t->psum and t->write on; t->soon is NULL. False, and
     * nothing touched, where a whole tile would not be fast, or t->write not `done`: the caller
     * goes panel by panel. NULL: always. */
    bool (*tiles)(const struct gemm_job *g, const struct gemm_walk *w,
                  const struct gemm_tile *t, const struct gemm_run *run);
    /* On a CPU where its ISA is slow(): is this job sooner done by the next ISA? NULL: no. */
    bool (*behind)(const struct gemm_job *g);
};

/* ---- Conversions: docs/numerics.md sections 2 and 3. ---- */

/* What a call asks for; `cast` has been checked. */
struct cast_job {
    const ng_format_spec *from, *to;
    const ng_cast *cast;         /* quantise: overflow is SATURATE */
    const ng_format_spec *scale; /* of the block scales, or NULL: none */
    uint32_t tensor_scale;       /* FP32 pattern; 1.0 without one */
    uint32_t encode;             /* quantise, nvfp4_te: S_enc, FP32 pattern (11.5 item 32) */
    uint32_t block;              /* elements of a scale */
    ng_scale_rule rule;          /* quantise */
    ng_block_special special;
    bool quantize;
    bool stream;   /* what is written is too much for the caches */
    bool second;   /* as gemm_job's */
    int64_t ahead; /* quantise, along: so many bytes behind what is read comes nearer; 0:
                      nothing but what the kernel asks for by itself */
};

/* Rows of elements that lie one after another; 4-bit rows begin on a byte. */
struct cast_rows {
    const void *src;
    void *dst;
    uint8_t *scale;       /* of the first block; dequantise: read only */
    const uint32_t *word; /* random words of dst's first row, or NULL */
    int64_t rows, n;      /* n elements a row */
    /* From row to row: bytes, bytes, words; and from each `run` rows to the next. */
    int64_t src_step, dst_step, word_step;
    int64_t run, src_jump, dst_jump, word_jump;
    int64_t scale_step; /* in scales: from block to block along a row (ACROSS: from column
                           to column); from row to row, ALONG, */
    int64_t scale_row;
};

/* Where a block's elements lie. */
typedef enum cast_way {
    CAST_ALONG = 0, /* in a row, one after another; dequantise: `rows` is 1 */
    CAST_ACROSS = 1 /* in a column: `rows` rows are one block of each of the n columns */
} cast_way;

/* Rows of bytes that become lines. */
struct cast_turn {
    const uint8_t *codes; /* CAST_TURN rows, `step` apart, in them a multiple of 32 */
    int64_t step;
    int64_t rows, n; /* those that count: up to CAST_TURN, and of each */
    uint8_t *to;     /* n lines of `rows` codes, `step_to` bytes apart */
    int64_t step_to;
    bool halves; /* two codes a byte: codes are below 16 */
    bool stream; /* as cast_job's */
};

enum {
    CAST_TURN = 64
};

/*
 * A conversion kernel: refuses() while planning, then the others in any order, from any thread,
 * under the control word of the GEMM kernels. They write the codes (and scales) of the rows
 * they are given and nothing else: of a last byte that is half a 4-bit row's the other half
 * stays.
 */
struct ng_cast_kernel {
    const char *name;
    /* NULL: takes the job, whatever its data. Else why not, in a few words. */
    const char *(*refuses)(const struct cast_job *j);
    void (*convert)(const struct cast_job *j, const void *src, const uint32_t *word, int64_t n,
                    void *dst);
    void (*quantize)(const struct cast_job *j, cast_way way, const struct cast_rows *r);
    /* False, and dst in any state: a scale is so large or small that a value is not an FP32
     * number. */
    bool (*dequantize)(const struct cast_job *j, cast_way way, const struct cast_rows *r);
    /* Before a quantise with a tensor scale, which is in the job only afterwards: the FP32
     * pattern of the largest finite magnitude of n elements. NULL: takes no such job. */
    uint32_t (*largest)(const struct cast_job *j, const void *src, int64_t n);
    /* Behind a quantise ACROSS to bytes. NULL: those of such a kernel are not turned. */
    void (*turn)(const struct cast_turn *t);
};

/* ---- Attention: docs/numerics.md, section 11.9. ---- */

/* A multiply inside attention: the rule of its two formats, and the codes it reads. */
struct attention_multiply {
    const ng_rule *rule;
    ng_mode mode;
    const ng_format_spec *a, *b; /* formats in the multiply, after item 63 */
};

/* One call, checked. Views and schedule are the caller's; const while rows are computed. */
struct attention_job {
    const ng_attention_op *op;
    const ng_setting *set;   /* the schedule's */
    ng_tensor q, k, v, o;    /* o.data is NULL where nothing is written */
    ng_tensor lse, max, sum; /* data NULL: not asked for */
    struct attention_multiply scores, pv, ones;
    ng_function_choice exp, tanh, reciprocal;
    int64_t batch, heads, kv_heads, queries, keys, d, dv; /* keys: Skv, of all pages */
    int64_t page_rows;                                    /* keys, where k is not paged */
    const struct ng_stream *out_words;                    /* of sr; not for kernels */
};

/* One backward call, checked: items 79 to 82. */
struct attention_grad_job {
    struct attention_job forward; /* o: as it was written; statistics: read */
    ng_tensor dout, dq, dk, dv;   /* data NULL: not asked for */
    ng_tensor dsink;              /* likewise */
    struct attention_multiply dp, dq_sum, dk_sum, dv_sum;
};

enum {
    ATTENTION_ROWS = 8,                                  /* at most: of a panel of A */
    ATTENTION_PANELS = 4,                                /* at most: of an item, */
    ATTENTION_ADDED = ATTENTION_PANELS * ATTENTION_ROWS, /* and their rows */
    ATTENTION_GROUP = 32,                                /* nr is a multiple of it, */
    ATTENTION_WIDE = 64                                  /* and at most this */
};

/*
 * Rows of one panel of A in one section, and their scores as the multiply's tiles leave them:
 * position p of row r at [p / nr][r][p % nr] of [panels][mr][nr]. Positions count the section's
 * computed keys; those from `keys` on may hold anything.
 */
struct attention_rows {
    int32_t rows, mr, nr;
    int64_t keys;
    int32_t begin[ATTENTION_ROWS], end[ATTENTION_ROWS]; /* the positions that each row sees */
};

/* Rows that are columns of the multiplies, and the positions of a section that each sees; a
 * lane without a row sees all. */
struct attention_wide {
    int64_t keys;
    int32_t begin[ATTENTION_WIDE], end[ATTENTION_WIDE];
};

/* Panels of a section whose exponentials are summed; their rows may differ, their keys do not.
 */
struct attention_addends {
    int32_t panels;
    struct attention_rows a[ATTENTION_PANELS];
    const float *x[ATTENTION_PANELS];
    float *sum[ATTENTION_PANELS]; /* [pieces][ATTENTION_ROWS] */
};

/* What a row's gradients are made of (item 79), and where their bf16 codes go. */
struct attention_terms {
    float d[ATTENTION_ROWS];  /* D */
    float m[ATTENTION_ROWS];  /* e = E(s; m) */
    float by[ATTENTION_ROWS]; /* statistics max_sum: e is then multiplied by it */
    uint16_t *e, *ds;         /* NULL: nowhere */
    int64_t line;             /* from row to row, codes */
};

/* How a running output of n elements goes on: o with w, or with a number. */
typedef enum attention_combine {
    ATTENTION_ADD = 0,   /* RN(o + w) */
    ATTENTION_TWO = 1,   /* RN(RN(o * by) + w) */
    ATTENTION_FMA = 2,   /* RN(o * by + w) */
    ATTENTION_TIMES = 3, /* RN(o * by) */
    ATTENTION_OVER = 4   /* RN(o / by) */
} attention_combine;

/*
 * A kernel for what lies between the multiplies (docs/numerics.md 11.9, items 64 to 73 and
 * 79): takes rows whose visible scores are finite and whose masked exponentials are +0; the
 * library sees to that. From any thread, in any order, under the control word of the GEMM
 * kernels.
 */
struct ng_attention_kernel {
    const char *name; /* "attention__avx2" */
    /* NULL: takes the job, whatever its data. Else why not, in a few words. */
    const char *(*refuses)(const struct attention_job *g);
    /* Products become scores, where a row sees them, or stay and wait for exponentials(); the
     * others may be anything afterwards. best: of each row the largest score that it sees, or
     * -Inf. Bit r of the answer: row r sees one that is not finite. */
    uint32_t (*scores)(const struct attention_job *g, const struct attention_rows *a, float *x,
                       float *best);
    /* What scores() left becomes exponentials, or with sum_source p what they are in bf16 if P
     * is bf16; +0 where a row does not see, whole groups. `code`, if not NULL: their bf16
     * codes, a row every `line`, whole groups. */
    void (*exponentials)(const struct attention_job *g, const struct attention_rows *a,
                         const float *m, float *x, uint16_t *code, int64_t line);
    /* n exponentials E(x; m) */
    void (*factors)(const struct attention_job *g, int n, const float *x, const float *m,
                    float *y);
    /* Sequential sums of what exponentials() left, of pieces that begin at keys which are
     * multiples of `piece`; position 0 is key `first`. */
    void (*sums)(const struct attention_addends *t, int64_t piece, int64_t first);
    /* Backward (79): products q k^T in x become e, products do v^T in y become ds; +0 where a
     * row does not see. Any scores and statistics. Codes, if any: whole groups. */
    void (*gradients)(const struct attention_job *g, const struct attention_rows *a,
                      const struct attention_terms *t, float *x, float *y);
    /* n is a multiple of 32. */
    void (*combine)(attention_combine how, int64_t n, float by, const float *w, float *o);
    /* Rows as columns of the multiplies, `nr` of them: products [keys][nr]. May they? Then P is
     * bf16, and its rows are summed in pieces. */
    bool (*wide_takes)(const struct attention_job *g, int32_t nr);
    /* As scores(), of products that stay as they are. */
    uint64_t (*wide_largest)(const struct attention_job *g, const struct attention_wide *a,
                             const float *x, float *best);
    /* As exponentials() and sums(): P's codes [keys][nr], sums [pieces][nr]. */
    void (*wide_exponentials)(const struct attention_job *g, const struct attention_wide *a,
                              const float *m, const float *x, int64_t piece, int64_t first,
                              uint16_t *code, float *sum);
    /* n lines of nr lanes, each with its own number. */
    void (*wide_combine)(attention_combine how, int64_t n, const float *by, const float *w,
                         float *o);
    /* n lines of nr lanes, a multiple of 16, become nr rows, `step` numbers apart. */
    void (*wide_rows)(int64_t n, const float *o, int64_t step, float *row);
    /* n rows of bf16, `step` codes apart, become lines of their `columns`, a multiple of 16,
     * `line` codes apart; what a line has behind its n, up to a multiple of 32, is zero. */
    void (*wide_turn)(const uint16_t *code, int64_t n, int64_t step, int64_t columns,
                      int64_t line, uint16_t *to);
};

/* ---- Structured sparsity: docs/numerics.md, sections 4.3 and 11.4. ---- */

/* What is the same for all lines of a call. */
struct sparse_job {
    const ng_format_spec *spec;
    uint32_t kept, group;
    ng_tag_store store;
    bool consecutive; /* elements of a line, and its slots, follow each other in memory */
};

/*
 * A kernel for stretches of whole groups of one line. `groups` is at least 1; a stretch begins
 * on a byte of tags. Nothing is read or written but the elements, slots and tags of these
 * groups; in a last byte that holds tags of other slots too, compress() writes 0 for those.
 * Called from any thread, in any order, under any control word.
 */
struct ng_sparse_kernel {
    const char *name;
    /* NULL: takes the job, whatever its data. Else why not, in a few words. */
    const char *(*refuses)(const struct sparse_job *j);
    /* Has no group more than M non-zeros? */
    bool (*holds)(const struct sparse_job *j, const void *src, int64_t groups);
    /* dst may be src. */
    void (*prune)(const struct sparse_job *j, const void *src, int64_t groups, void *dst);
    /* prune() and compress at once. */
    void (*compress)(const struct sparse_job *j, const void *src, int64_t groups, void *slots,
                     void *tags);
    /* Is every tag below N, and is no tag twice in its group? expand() relies on it. */
    bool (*distinct)(const struct sparse_job *j, const void *tags, int64_t groups);
    void (*expand)(const struct sparse_job *j, const void *slots, const void *tags,
                   int64_t groups, void *dst);
};

/* ---- Random words. ---- */

enum {
    NG_RANDOM_STRANDS = 16
};

/* Of a kernel: where each strand stands. */
struct ng_random_strands {
    _Alignas(64) uint32_t state[6][NG_RANDOM_STRANDS];
    uint32_t step[8 * 16]; /* lfsr32's tables */
};

/*
 * A kernel of one random generator (docs/numerics.md, 7 and 11.7): words [first, first + count)
 * of a checked source's stream for rows of `columns` elements. `first` counts from the stream's
 * own beginning: source->first is in it. Any range, from any thread; integers only.
 */
struct ng_random_kernel {
    const char *name; /* "random_philox__avx2" */
    ng_random_kind kind;
    void (*words)(const ng_random *source, int64_t columns, uint64_t first, int64_t count,
                  uint32_t *out);
    /*
     * Of generators that follow a state, whose every place costs a jump; else 0, NULL, NULL.
     * `strands` states are followed at once: strands / states stretches, each in one row from
     * word first[i] on, whose column is a multiple of the source's `states`. next() gives
     * `words` more of each, stretch i at out + i * apart, in whole steps (`states` words); it
     * writes whole multiples of strands * states words, those past the last step are no words.
     * After a row's last word comes the first of the row `lanes` further down, if the row is
     * whole steps.
     */
    int64_t strands; /* at most NG_RANDOM_STRANDS */
    void (*place)(const ng_random *source, int64_t columns, const uint64_t *first,
                  struct ng_random_strands *g);
    void (*next)(const ng_random *source, struct ng_random_strands *g, int64_t words,
                 uint32_t *out, int64_t apart);
};

/* ---- Elementary functions: docs/numerics.md, sections 8 and 11.8. ---- */

struct elementary_job {
    ng_function f;
    ng_function_choice choice; /* checked */
};

/* f of n FP32 patterns; y may be x. From any thread, in any order, under the control word of
 * the GEMM kernels. A NaN is the canonical one, but for a table's entries. */
struct ng_elementary_kernel {
    const char *name; /* "elementary__avx2" */
    void (*run)(const struct elementary_job *j, const uint32_t *x, int64_t n, uint32_t *y);
};

/* ---- Mixture of experts: docs/numerics.md, sections 6 and 11.10. ---- */

/* The routing of a call's tokens. Numbers are FP32 patterns. */
struct route_job {
    const ng_route_op *op;
    int32_t experts;
};

/* Some tokens of it. */
struct route_rows {
    int64_t tokens;
    const uint32_t *logit, *correction; /* correction: [E], or NULL */
    int32_t *index;                     /* [tokens][k] */
    uint32_t *weight;
    int64_t logit_stride, weight_stride;
};

/* Some tokens of its backward; `slot`: NULL where no entry was dropped. */
struct route_back_rows {
    int64_t tokens;
    const uint32_t *logit, *dweight;
    const int32_t *index, *slot; /* [tokens][k] */
    uint32_t *dlogit;            /* [tokens][E] */
    int64_t logit_stride, dweight_stride, dlogit_stride;
};

/* What happens to a multiply's results: psum * scale[n] * row scale, in `hidden`; with a bias
 * + bias[n], in `biased`. */
struct settle_job {
    const uint32_t *scale; /* [N], or NULL */
    bool row_scaled;
    ng_format hidden;
    const uint32_t *bias; /* [N], or NULL */
    ng_format biased;
};

/* One token's sum: y = begin + weight[0] * o[0] + ..., in this order. */
struct combine_row {
    int64_t entries, columns;
    const uint32_t *weight, *begin; /* or NULL */
    const uint32_t *const *o;       /* [entries] */
    uint32_t *y;                    /* may be `begin` */
};

/* What becomes of rows under FP8_ROW and FP8_BLOCK: item 101. */
struct fp8_job {
    const ng_format_spec *from, *to;
    ng_divide by;
    uint32_t least; /* FP32 pattern: no scale is below */
    int64_t block;  /* elements that share a scale; a row's last block may have less */
};

/* Codes of a row of n elements of 8 bits or more, and a scale for each block of it. */
typedef void fp8_rows(const struct fp8_job *j, const void *src, int64_t n, uint8_t *code,
                      uint32_t *scale);

/* A block of K, some rows and columns of it: FP32 patterns, a row of each every `..._step`. */
struct block_tile {
    int64_t rows, columns;
    const uint32_t *psum;
    const uint32_t *row_scale; /* a number a row */
    const uint32_t *scale;     /* [columns] */
    uint32_t *sum;             /* read and written */
    int64_t psum_step, row_scale_step, sum_step;
};

/* Heads of d elements, one behind the other; FP32 patterns. */
struct rope_row {
    int64_t heads, d;
    const uint32_t *cosine, *sine; /* [d / 2] */
    const uint32_t *x;
    uint32_t *y; /* or x */
};

enum {
    NG_MOE_ACT_MOST = 512 /* columns that act() takes at once */
};

/*
 * A kernel for mixtures of experts, and for what lies between a layer's multiplies. *_refuses:
 * NULL takes the job, whatever its data; else why not. From any thread, in any order, under the
 * control word of the GEMM kernels; a NaN that is written is the canonical one.
 */
struct ng_moe_kernel {
    const char *name; /* "moe__avx2" */
    const char *(*route_refuses)(const struct route_job *j);
    int64_t (*route_words)(const struct route_job *j); /* of `work` */
    void (*route)(const struct route_job *j, const struct route_rows *r, uint32_t *work);
    const char *(*settle_refuses)(const struct settle_job *j);
    /* Columns [first, first + n) of a row; out may be psum. */
    void (*settle)(const struct settle_job *j, uint32_t row_scale, int64_t first, int64_t n,
                   const uint32_t *psum, uint32_t *out);
    /* n is at most NG_MOE_ACT_MOST; `up` NULL: not gated; `affinity` NULL: none; dst may be
     * `gate`. */
    void (*act)(const ng_moe_act_op *op, int64_t n, const uint32_t *gate, const uint32_t *up,
                const uint32_t *affinity, uint32_t *dst);
    /* A block of K: sum += psum * row scale * scale, rounded as `op` says. */
    void (*block)(const ng_moe_block_op *op, const struct block_tile *t);
    fp8_rows *fp8;
    const char *(*combine_refuses)(const ng_moe_combine_op *op);
    void (*combine)(const ng_moe_combine_op *op, const struct combine_row *r);
    /* The backward of a routing that route() takes, with its `work`. */
    void (*route_back)(const struct route_job *j, const struct route_back_rows *r,
                       uint32_t *work);
    /* swiglu's, n at most NG_MOE_ACT_MOST; dgate may be `gate`, dup `up`. */
    void (*act_back)(const ng_moe_act_op *op, int64_t n, const uint32_t *gate,
                     const uint32_t *up, const uint32_t *dmiddle, uint32_t *dgate,
                     uint32_t *dup);
    /* For each row the sum of a[i] * b[i], two roundings a term, in order; n >= 1. */
    void (*dots)(int64_t rows, int64_t n, const uint32_t *const *a, const uint32_t *const *b,
                 uint32_t *out);
    /* RMSNorm's elements: times r, times `gain` unless that is NULL; y may be x. */
    void (*norm)(uint32_t r, int64_t n, const uint32_t *x, const uint32_t *gain, uint32_t *y);
    const char *(*rope_refuses)(const ng_rope_op *op);
    void (*rope)(const ng_rope_op *op, const struct rope_row *r);
};

/* ---- Reductions over ranks: docs/numerics.md, section 11.12. ---- */

/* One call, checked. */
struct reduce_job {
    const ng_all_reduce_op *op;
    const ng_setting *set; /* the collective's */
    int64_t ranks;
    const ng_format_spec *from, *wire;
    ng_cast cast; /* to the wire's format */
};

/* How a sum is rounded: FP32 patterns to FP32 patterns. */
typedef enum reduce_way {
    REDUCE_NOT,  /* FP32 */
    REDUCE_BF16, /* to nearest even, past the largest number Inf */
    REDUCE_GRID  /* to nearest even on another grid */
} reduce_way;
struct reduce_rounding {
    reduce_way way;
    /* GRID: */
    uint32_t drop;            /* low bits of an FP32 mantissa */
    uint32_t normal;          /* pattern of the least normal number; 0: FP32's exponents */
    uint32_t magic;           /* of the number whose last place is the least subnormal */
    uint32_t most, past, inf; /* the largest number; what is past it; what Inf becomes */
};

/* Terms that a kernel adds. */
struct reduce_terms {
    const void *data;
    bool bf16;         /* codes of bf16; else FP32 patterns */
    bool second;       /* gemm_job's */
    const void *ahead; /* codes or patterns that come next, to be fetched; or NULL */
    int64_t apart;     /* bytes from one of these to the next */
};

/*
 * A kernel for reductions. From any thread, in any order, under the control word of the GEMM
 * kernels. Of n FP32 patterns; y may be a, or the terms where they are FP32. NaNs stay some
 * NaN, until quiet() makes them the canonical one; under BF16 those of FP32 terms have no bits
 * below bf16's.
 */
struct ng_reduce_kernel {
    const char *name; /* "reduce__avx2" */
    /* RN(a + term), rounded. */
    void (*add)(const struct reduce_rounding *r, int64_t n, const uint32_t *a,
                const struct reduce_terms *b, uint32_t *y);
    /* Rounded alone; NaNs are the canonical one. */
    void (*round)(const struct reduce_rounding *r, int64_t n, uint32_t *y);
    void (*quiet)(int64_t n, uint32_t *y);
    /* Item 142. `number`: not a NaN where there is another term. */
    void (*least)(bool most, bool number, int64_t n, const uint32_t *a, const uint32_t *b,
                  uint32_t *y);
};

/* The kernels of one ISA, best first, NULL-terminated. */
struct ng_kernel_set {
    const struct ng_gemm_kernel *const *gemm;
    const struct ng_cast_kernel *const *cast;
    const struct ng_sparse_kernel *const *sparse;  /* NULL: none */
    const struct ng_random_kernel *const *random;  /* NULL: none */
    const struct ng_elementary_kernel *elementary; /* takes every job; NULL: none */
    const struct ng_attention_kernel *attention;   /* NULL: none */
    const struct ng_moe_kernel *moe;               /* NULL: none */
    const struct ng_reduce_kernel *reduce;         /* NULL: none */
    bool (*proved)(void); /* the instructions' numerics on this CPU; NULL: nothing to prove */
    /* Timed: does the multiplying instruction do so little here that the next ISA's kernels
     * come first where gemm->behind() says so? NULL: nowhere. */
    bool (*slow)(void);
};

#define NG_ISA(name, bit, features) extern const struct ng_kernel_set ng_kernels_##name;
#include "isa.def"
#undef NG_ISA

/* ---- walk.c: built once a job, before packing. ---- */

/* FP32 patterns of all codes of a format of at most 8 bits; those of fewer bits repeat. */
void ng_widen_all(const ng_format_spec *f, uint32_t table[256]);
/* Bytes of a job's walk; 0: it has none, or is too long for 32-bit positions. */
size_t ng_walk_bytes(const struct gemm_job *g);
/* Lays the walk out in `memory`, 64-byte aligned, ng_walk_bytes() long. NULL: numbers only, no
 * lists; enough for panel_bytes(). */
void ng_walk_build(const struct gemm_job *g, void *memory, struct gemm_walk *w);

#endif
