/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How kernels do a call of attention: which, on panels of what, in which memory. Calls of one
 * plan share it; nothing in it changes while rows are computed.
 */
#ifndef NG_ATTENTION_PLAN_H
#define NG_ATTENTION_PLAN_H

#include <stdatomic.h>

#include "../dispatch.h"
#include "attention_fast.h"

enum {
    ITEM_PANELS = ATTENTION_PANELS, /* of rows, at most */
    FEW_PANELS = ITEM_PANELS,       /* of all rows: k and v are packed on the way */
    SUM_LANES = 24,          /* pieces of rows that are summed together: two vectors of 16 */
    ITEM_SCORES = 384 << 10, /* bytes: the second cache also has what they are multiplied by */
    WORKER_ITEMS = 6,        /* of a head of k, at least, before one has more panels */
    NEAR_KEYS = 512,         /* of k at a time, by all of an item's panels */
    TILES_DOWN = 16384, /* elements of a panel of b that the first cache has for panels of a */
    SPARE = 64,         /* codes of P beyond a line's keys: whole groups of 32 */
    BLOCK = 32,         /* elements of a block scale */
    TURN_ROWS = 8,      /* of A: their multiply takes as long as to turn a panel of k, */
    NOTE_ROWS = 3,      /* as to note facts of a K tile of v, */
    PAIR_ROWS = 4,      /* as to make pairs of its positions, */
    WIDEN_ROWS = 4,     /* as to make them out of 8-bit codes, ahead, */
    LOAD_ROWS = 3,      /* and as to load those; */
    BUSY_ROWS = 8,      /* whose multiply takes longer than memory on a Zen 4 */
    ONES_CHAINS = 8     /* of a K tile, at most, where p 1 is no multiply */
};

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Elements of a row in whole vectors. */
static inline int64_t attention_whole(int64_t n)
{
    return div_up(n, ATTENTION_GROUP) * ATTENTION_GROUP;
}

static inline size_t up_64(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* Memory brings n rows of k or v best at an even pace. Those that are asked for while the ones
 * before them are gone over once, which takes as long as `over` rows of A; the others while
 * they are multiplied, as long as `rows`. */
static inline int64_t attention_early(int64_t n, int64_t over, int64_t rows)
{
    return n * over / (over + rows);
}

/* Do n rows follow each other in memory, as their ends tell? Then the CPU fetches more of them
 * by itself. */
static inline bool attention_adjoin(const unsigned char *const *row, int64_t n, int64_t bytes)
{
    const uintptr_t step = (uintptr_t)bytes, first = n > 1 ? (uintptr_t)row[0] : 0;
    return n > 1 && (uintptr_t)row[1] == first + step &&
           (uintptr_t)row[n - 1] == first + (uintptr_t)(n - 1) * step;
}

/* One of the multiplies: q k^T, p v, p 1. Keys of p v and p 1 come in groups of `length`; the
 * last of a sequence may be shorter, its tail. */
struct attention_product {
    const struct attention_multiply *what;
    const ng_format_spec *given; /* of k or v */
    const ng_format_spec *b; /* as it is packed: what->b, or `given` if that holds it exactly */
    struct cast_job cast;    /* where `given` is another than `b` */
    bool widens;             /* the kernel may convert; `value`: what it asks for */
    const struct ng_gemm_kernel *kernel; /* NULL: there is no such multiply */
    int64_t length, columns, panels;
    bool second;         /* gemm_job's */
    struct gemm_job job; /* over `length` positions, without its operands */
    int64_t tile;        /* keys of a K tile: where a group may be cut */
    struct gemm_walk full;
    size_t a_bytes, b_bytes;
    uint32_t value[256]; /* FP32 patterns of the given codes */
};

struct attention_plan {
    const struct attention_job *g;
    const char *left; /* why the reference has the whole call, or NULL */
    const struct ng_attention_kernel *kernel;
    const struct ng_cast_kernel *cast; /* of all conversions */
    struct cast_job p_cast, o_cast;    /* P in other formats than bf16; the result */
    ng_cast out;                       /* how the result is converted */
    struct cast_job q_cast[3]; /* q to FP32; that, scaled, to the multiply's format, or to what
                                  is quantised; blocks of that */
    bool q_by_kernels;         /* else element by element */
    struct attention_product scores, pv, ones;
    struct attention_product lying; /* pv, for v that is read where it lies */
    bool lies;                      /* it is */
    bool turns;                     /* k's panels are made of its rows where they lie */
    int64_t ones_chain;             /* p 1 by sums of so many neighbours; 0: a multiply */
    int32_t mr;                     /* rows of a panel */
    int64_t section, skip;          /* keys; skip 0: none is skipped */
    int64_t positions;              /* of a section, at most: whole panels */
    int64_t group;                  /* query heads of a head of k */
    int64_t rows;                   /* of a head of k: queries times group */
    bool few;                       /* rows: pack on the way */
    bool wide;                      /* rows of q are columns: attention_wide.c */
    bool fused;                     /* family: no K tile is dropped (76) */
    int32_t item_panels;            /* at most, of an item */
    uint32_t p_bytes;               /* of a code of P */
    double fill;                    /* a masked score as it enters exp */
    double exp_scale;               /* and what a maximum is multiplied by there */
    double exp_inner;               /* scale_place exp: c of RN(m c) (68); else 0 */
};

/* May a panel of v hold an Inf or a NaN? Scales that stand apart may be NaN. */
static inline bool attention_is_special(const void *panel)
{
    const struct gemm_panel *v = panel;
    return v->special || v->unfolded;
}

/* Walks of a sequence's last, shorter groups. */
struct attention_tail {
    struct gemm_walk pv, ones; /* depth 0: none */
};

/* What the workers share. */
struct attention_work {
    const struct attention_plan *p;
    attention_row *row;
    struct attention_tail *tail;  /* of each sequence */
    float *sink;                  /* of each head, if there are any */
    uint32_t *ones;               /* codes of 1.0 */
    unsigned char *ones_panels;   /* of a whole group, then of each sequence's tail */
    unsigned char *k, *v, *desks; /* k, v: panels, not for few rows */
    size_t desk_bytes;
    int64_t b, kv_head;    /* of the shared panels */
    bool special;          /* their v holds an Inf or a NaN */
    atomic_ullong rows[2]; /* by kernels, by the reference */
};

/* Rows that do not lie as they are read: as given, each behind the one before, and as read. */
struct attention_room {
    unsigned char *given, *rows;
};

/* What a worker has for itself; q, x, p_codes, p_scales, p, o, w, more: for each panel of an
 * item. */
struct attention_desk {
    unsigned char *gemm, *reference, *q_codes, *q_input, *p_codes, *q, *p, *ones, *k, *v, *code;
    uint8_t *q_scales, *p_scales;
    unsigned char *gathered, *gathered_row; /* of k and v: a panel's codes; one row as given */
    uint8_t *gathered_scales;
    const unsigned char **k_row[2];          /* of this panel of k, of the next */
    const unsigned char **lying_row[2];      /* of this stretch of v, of the next */
    struct attention_room k_room, v_room;    /* of rows that are converted or collected */
    unsigned char *lying_zeros, *lying_code; /* v of no key, one row, as given both */
    uint16_t *turned;                        /* columns of v as lines */
    uint16_t *p_input;                       /* bf16, before it is quantised */
    float *x, *sum, *piece, *o, *w, *more, *line, *q_line;
    uint32_t *word;
};

static inline int64_t attention_groups(const struct attention_product *x, int64_t keys)
{
    return div_up(keys, x->length);
}

static inline int32_t attention_setting(const struct attention_plan *p,
                                        ng_attention_param param)
{
    return p->g->set[param].value;
}

/* Keys whose sums denominators are made of; 0: they are multiplies by ones. */
static inline int64_t attention_piece(const struct attention_plan *p)
{
    return p->ones.kernel ? p->ones_chain : attention_setting(p, NG_ATTENTION_KEY_TILE);
}

/* Item 63's conversion. */
struct cast_job ng_attention_conversion(const ng_format_spec *from, const ng_format_spec *to);

/* False: the reference has the whole call, p->left says why. */
bool ng_attention_plan(ng_ctx *ctx, const struct attention_job *g, struct attention_plan *p);
/* How the forward call's rows become items, once it is planned. */
void ng_attention_plan_items(ng_ctx *ctx, struct attention_plan *p);
/* Are rows of k or v whole bytes, their codes one after another? */
bool ng_attention_in_rows(const struct attention_product *x, const ng_tensor *t);

/* For reports: who takes the rows, each multiply, each conversion. left: why none does. */
void ng_attention_tell(ng_ctx *ctx, const struct attention_plan *p);
void ng_attention_tell_product(ng_ctx *ctx, const char *stage,
                               const struct attention_product *x, const char *left);
/* Panels of a multiply whose B has format `b` in memory; false: no kernel takes it. */
bool ng_attention_plan_product(ng_ctx *ctx, const struct attention_multiply *what, ng_format b,
                               int64_t length, int64_t columns, struct attention_product *x);
/* A multiply over k positions, without its operands. */
struct gemm_job ng_attention_product(const struct attention_product *x, int64_t k);
/* tile() of such a multiply, `from` and `to` in K tiles (walk->whole: positions), which become
 * the kernel's; false: the reference has what it would have written. */
bool ng_attention_tile(const struct attention_product *x, const struct gemm_job *g,
                       const struct gemm_walk *w, struct gemm_tile *t);
/* The same of panels of b that follow each other from t->b on, their psums from t->psum. */
bool ng_attention_tiles(const struct attention_product *x, const struct gemm_job *g,
                        const struct gemm_walk *w, const struct gemm_tile *t, int64_t panels);
/* The same of panels of a, by one panel of b. */
bool ng_attention_tiles_down(const struct attention_product *x, const struct gemm_job *g,
                             const struct gemm_walk *w, const struct gemm_tile *t,
                             int64_t panels);
/* Keys of a group, and their walk. */
const struct gemm_walk *ng_attention_walk(const struct attention_product *x,
                                          const struct gemm_walk *tail, int64_t group,
                                          int64_t keys, int64_t *n);

/* Do a group's computed keys begin and end with its K tiles? Item 70 renumbers them. */
bool ng_attention_skips_tiles(const struct attention_plan *p,
                              const struct attention_product *x);
/* Keys that queries [i0, i1) compute, which skip together (65). */
struct range ng_attention_computed(const struct attention_plan *p, int64_t keys, int64_t i0,
                                   int64_t i1);
/* The fill as it enters exp, and m likewise: is the exponential of a masked key +0 whatever the
 * function's kind? */
bool ng_attention_fill_vanishes(const struct attention_plan *p, float m);
/* n codes of at least 8 bits as the last dimension of t at three indices. */
void ng_attention_put_codes(const ng_tensor *t, uint32_t bits, const int64_t *index,
                            const unsigned char *code, int64_t n);
/* n numbers there; `word`: of stochastic rounding. */
void ng_attention_put(const struct ng_cast_kernel *kernel, const struct cast_job *cast,
                      const ng_tensor *t, const int64_t *index, const float *line,
                      const uint32_t *word, int64_t n, unsigned char *code);

/* Lays parts out behind `base`; where that is NULL it only counts. */
struct attention_layout {
    unsigned char *base;
    size_t at;
};
void *ng_attention_part(struct attention_layout *l, size_t bytes, int64_t times);
/* A multiply's walk over k positions; k 0 or no kernel: depth 0. */
void ng_attention_lay_walk(struct attention_layout *l, const struct attention_product *x,
                           int64_t k, struct gemm_walk *w);

/* Memory behind `base`; NULL: only its size. */
size_t ng_attention_lay_work(struct attention_plan *p, unsigned char *base,
                             struct attention_work *w);
size_t ng_attention_lay_desk(const struct attention_plan *p, unsigned char *base,
                             struct attention_desk *d);
/* Positions of a section, in whole panels of scores; codes, and scales, of a row of P. */
int64_t ng_attention_p_line(const struct attention_plan *p);
int64_t ng_attention_p_blocks(const struct attention_plan *p);
/* Pieces of a section's keys that denominators are sums of, at most. */
int64_t ng_attention_pieces(const struct attention_plan *p);

/* One head of k or v as B, whose lines run along axis 2 (keys) or 3. */
struct gemm_operand ng_attention_view(const ng_tensor *t, const ng_format_spec *f, int64_t b,
                                      int64_t head, uint32_t line_axis);
/* Is a row of q in one piece, neither scaled nor converted? */
bool ng_attention_plain_queries(const struct attention_plan *p);
/* Panels of one head of k and v; `d`: room for what is not packed from where it lies. */
void ng_attention_pack_k(const struct attention_work *w, int64_t b, int64_t head, int64_t panel,
                         const struct attention_desk *d, unsigned char *to);
void ng_attention_pack_v(const struct attention_work *w, int64_t b, int64_t head, int64_t group,
                         int64_t panel, const struct attention_desk *d, unsigned char *to);
/* n codes of k or v from `at` on, one after another and as they are packed; `row`: room for
 * them as given. */
void ng_attention_take_codes(const struct attention_plan *p, const struct attention_product *x,
                             const ng_tensor *t, int64_t at, int64_t n, unsigned char *row,
                             unsigned char *to);
/* Rows of one head of k or v where they lie, keys [from, from + n). */
void ng_attention_rows(const struct attention_plan *p, const ng_tensor *t, int64_t b,
                       int64_t head, int64_t from, int64_t n, const unsigned char **row);
/* Room for n such rows of `columns` codes. */
struct attention_room ng_attention_lay_room(struct attention_layout *l,
                                            const struct attention_product *x, int64_t columns,
                                            int64_t rows);
/* n rows of `columns` codes, which lie at row[i] as given, as they are packed: row[i] is where
 * they are then, in `room`, `wide` codes each, zeros behind the columns. True: *head has their
 * facts too. */
bool ng_attention_take_rows(const struct attention_plan *p, const struct attention_product *x,
                            int64_t columns, int64_t wide, int64_t n,
                            const struct attention_room *room, const unsigned char **row,
                            struct gemm_panel *head);
/* Panels of 1.0, where denominators are multiplies. */
void ng_attention_pack_ones(const struct attention_work *w);

/* ---- attention_wide.c: rows of q as columns. ---- */

/* Does it take the call, which is not of few rows, k and v as p has them? */
bool ng_attention_plan_wide(const struct attention_plan *p);
/* Its panels of k and v; its desk, as ng_attention_lay_desk(). */
void ng_attention_lay_wide_panels(struct attention_layout *l, const struct attention_plan *p,
                                  struct attention_work *w);
size_t ng_attention_lay_wide_desk(const struct attention_plan *p, unsigned char *base,
                                  struct attention_desk *d);
/* All rows of w->b, w->kv_head. */
void ng_attention_wide_head(ng_ctx *ctx, struct attention_work *w);

/* ---- attention_few.c: v where it lies. ---- */

void ng_attention_lay_lying(struct attention_layout *l, const struct attention_plan *p,
                            struct attention_desk *d);

/* A group of P times v, all panels of an item. */
struct attention_lying {
    const struct attention_work *w;
    const struct attention_desk *d;
    int64_t b, kv_head;
    const struct gemm_walk *walk;
    int64_t n, begin; /* keys of the group; the first */
    int64_t from, to; /* K tiles (walk->whole: positions) */
    bool begun;       /* psum holds something to add to */
    bool finite;      /* has to be */
    int32_t panels, rows[FEW_PANELS];
    const void *a[FEW_PANELS];
    float *psum[FEW_PANELS];
};
/* False: the values want the slow path, on panels; psum holds nothing of use. */
bool ng_attention_multiply_lying(const struct attention_lying *y);

#endif
