/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of many operands or several results: attention, its gradients, routing, a mixture
 * of experts, reductions over ranks. An operation is a table of its tensors, the keys of a case
 * and what is done with them; reading, computing, comparing, writing and reporting walk that
 * table.
 */
#ifndef NG_CLI_BLOCK_H
#define NG_CLI_BLOCK_H

#include "compare.h"
#include "make_case.h"
#include "reader.h"
#include "search.h"
#include "settings.h"

enum {
    BLOCK_TENSORS = 28,
    BLOCK_ROW = 256, /* elements of a row that is told exactly, at most */
    BLOCK_PARAMS = 80,
    BLOCK_ORDER = 8 * NG_MAX_RANKS /* bytes of a reduction's order */
};

enum block_role {
    BLOCK_OPERAND, /* must be there */
    BLOCK_OPTION,  /* an operand that may be left out */
    BLOCK_RESULT,  /* must be there */
    BLOCK_EXTRA    /* a result that may be left out: it is not asked for then */
};

struct block_tensor {
    const char *name;
    enum block_role role;
    bool integers; /* without a format */
};

/* A parameter as reports have it. */
struct block_param {
    char key[48], value[64];
    ng_evidence evidence;
    bool idle; /* no value of it changes a bit of this case */
};

struct block_part;

struct block_kind {
    const struct block_tensor *tensor;
    size_t n;
    const char *const *keys; /* of a case, but those that all have */
    /* The keys; the tensors have been read. */
    bool (*read)(struct reader *r, json_t *root, struct one_case *c);
    /* Shape of result i; an exit code. */
    int (*shape)(const struct one_case *c, size_t i, uint32_t *rank, int64_t *dim);
    /* Results that are present in `out` are written. */
    ng_status (*compute)(ng_ctx *ctx, const struct one_case *c, struct operand *out);
    /* Name of the parameters as a whole, and the parameters. */
    const char *(*title)(const struct one_case *c);
    size_t (*parameters)(const struct one_case *c, struct block_param *out);
    /* Rows of the results, where each can be computed alone; else 0, and why it cannot. */
    int64_t (*rows)(const struct one_case *c, const char **why);
    /* Make the operands of p->b those of p->row. */
    bool (*take)(const struct cli *cli, const struct one_case *c, struct block_part *p);
    /* Rows for a hypothesis, so that all of them together end; at least 1. */
    int64_t (*room)(const struct one_case *c);
    /* The result that explanations look at alone where it differs, or 0. */
    size_t main_result;
    /* A row of that result as the real numbers that it stands for, each rounded once to FP32.
     * `work` counts what a report's rows take; false: with this one it would be too long. NULL:
     * nobody can tell. */
    bool (*exact)(const struct cli *cli, const struct one_case *c, int64_t row, int64_t *work,
                  uint32_t *f32);
    bool alone; /* a row of it is one element; else those of its last dimension */
    bool cheap; /* pairs of edits that hide others are tried whatever a single one explains */
    /* Where an element of it parts ways between the case and another, or ""; NULL: nobody can
     * tell. */
    void (*parts)(const struct cli *cli, const struct one_case *c, const struct one_case *v,
                  int64_t row, char *text, size_t bytes);
    /* Other rules and likely mistakes; one of them, on a variant of the case. */
    void (*edits)(const struct one_case *c, struct search *x);
    bool (*apply)(struct one_case *v, const struct edit *e);
    bool (*hides_others)(const struct edit *e);
};

extern const struct block_kind attention_kind, attention_backward_kind, route_kind, moe_kind,
    reduce_kind;

extern const struct settings_kind schedule_settings, collective_settings;

/* Places in the tables of tensors. Results follow the operands. */
enum {
    ATTENTION_Q,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_SINK,
    ATTENTION_PAGES,
    ATTENTION_EXP,
    ATTENTION_TANH,
    ATTENTION_RECIPROCAL,
    ATTENTION_O,
    ATTENTION_LSE,
    ATTENTION_MAX,
    ATTENTION_SUM,
    ATTENTION_DOUT, /* of the backward: operands up to here */
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    ATTENTION_DSINK
};
enum {
    ROUTE_LOGITS,
    ROUTE_X,
    ROUTE_W,
    ROUTE_B,
    ROUTE_CORRECTION,
    ROUTE_EXP,
    ROUTE_SIGMOID,
    ROUTE_RECIPROCAL,
    ROUTE_EXPERTS, /* results of a route, operands of a mixture without a router */
    ROUTE_WEIGHTS,
    ROUTE_LOGITS_OUT,
    MOE_TANH = ROUTE_LOGITS_OUT,
    MOE_C,
    MOE_GATE, /* weights, scale, bias */
    MOE_UP = MOE_GATE + 3,
    MOE_DOWN = MOE_UP + 3,
    MOE_Y = MOE_DOWN + 3
};

enum {
    REDUCE_X,
    REDUCE_D
};

struct block {
    const struct block_kind *kind;
    json_t *json; /* the case as it was read */
    struct operand t[BLOCK_TENSORS];
    struct words words;
    struct {
        ng_attention_schedule schedule;
        ng_attention_op op;
        int64_t *kv_length, *page_table;
        const int64_t *row; /* the rows of o that are computed, one by one; NULL: all */
        int64_t n_rows;
        ng_executor executor; /* theirs */
    } attention;
    struct {
        const ng_moe_preset *preset;
        uint64_t said; /* bit per key that the case has */
        ng_gemm_op router;
        ng_format logits, weights;
        ng_route_op route;
        ng_moe_op op;
        uint8_t fp4[FP4_CODES]; /* of op.gemm.fp4_map */
        bool ties_high;         /* an explanation's: ties go to the higher index */
    } moe;
    struct {
        ng_collective collective;
        ng_all_reduce_op op;
        char order[BLOCK_ORDER]; /* of algorithm explicit */
        int64_t left_out;        /* an explanation's: this rank brings zeros; -1: none */
    } reduce;
};

/* A reduction of the keys of a case alone, without tensors; an exit code. block_free() it. */
int reduce_from_keys(json_t *root, struct one_case *c);
/* As the library takes it; c outlives it. */
ng_all_reduce_op reduce_op(const struct one_case *c);

bool block_read(struct reader *r, json_t *root, struct one_case *c);
void block_free(struct block *b);

/* Operand i as calls take it, or NULL. */
const ng_tensor *block_view(const struct operand *t, size_t i);
bool block_is_result(const struct block_kind *k, size_t i);
/* Element of a row-major operand: its code, or the integer itself. */
uint64_t block_code(const struct operand *o, int64_t i);
int64_t block_elements(const struct operand *o);

/* Memory for every result that the case asks for; an exit code. */
int block_alloc(const struct one_case *c, struct operand *out);
void block_free_results(struct operand *out);

/* The parameters with their evidence in one line; the weakest in another, of those that are not
 * idle. */
void block_line(const struct one_case *c, char *text, size_t bytes);
void block_weakest(const struct one_case *c, char *text, size_t bytes);
/* Operation, tensors and their shapes. */
void block_describe(const struct one_case *c, char *text, size_t bytes);

/* All of it, and the profile; -q: only what the operation is. */
void block_print_head(const struct cli *cli, const struct one_case *c);

/* Where results go: a file for each, NULL for none. */
struct block_files {
    const char *path[BLOCK_TENSORS];
};
/*
 * Compute and write, or compute and compare with the dump; report; an exit code. `whole` gets
 * the case and all its results, `only` the one result of a case that has no more.
 */
int block_run(const struct cli *cli, struct one_case *c, const struct block_files *to,
              const char *whole, const char *only);
struct verify_options {
    bool explain, sensitivity;
    int64_t sample; /* elements of a multiply, rows of others; 0: all */
};
int block_verify(const struct cli *cli, const struct verify_options *opt, struct one_case *c,
                 const char *where, json_t *report, int64_t *elements, int64_t *differ,
                 double *seconds);

/* One case that a command line made: the report and its exit code. */
int block_verify_alone(const struct cli *cli, struct one_case *c);

/* "[2, 3]": the index of a result's element. */
void block_place_text(const struct operand *o, int64_t number, char *text, size_t bytes);

/* ---- Some rows as a case of their own: block_rows.c. ---- */

struct block_part {
    struct one_case c; /* shares with the case what is not in rows */
    struct block b;
    const int64_t *row;
    int64_t n;
    void *owned[BLOCK_TENSORS];
};
/* `row` outlives it; `rows`: that the case has. False: out of memory. */
bool block_part_open(struct block_part *p, const struct cli *cli, const struct one_case *c,
                     const int64_t *row, int64_t n, int64_t rows);
void block_part_close(struct block_part *p);
/* Elements of a row. */
int64_t block_width(const struct operand *o, int64_t rows);
/* Those rows of results that have `rows` of them, as results of the part. */
bool block_gather(const struct one_case *part, const struct operand *from, const int64_t *row,
                  int64_t n, int64_t rows, struct operand *to);
/* Rows, of dimension 0, of an operand, in memory of their own. */
bool block_take_rows(const struct operand *from, const int64_t *row, int64_t n,
                     struct operand *to);

/* ---- Explanations: block_explain.c. ---- */

/* The oracle's results: of all rows, or of n rows of the case. */
struct block_looked {
    const struct operand *want;
    const int64_t *row;
    int64_t n;
    size_t only; /* the one result that counts, or 0 */
};
/* Exit codes. */
int block_explain(const struct cli *cli, const struct one_case *c, const struct block_looked *l,
                  struct findings *out);
int block_notice(const struct cli *cli, const struct one_case *c, const struct block_looked *l,
                 struct findings *out);

#endif
