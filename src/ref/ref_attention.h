/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the attention reference that forward and backward share, and its scratch memory. */
#ifndef NG_REF_ATTENTION_H
#define NG_REF_ATTENTION_H

#include "../internal.h"
#include "ref.h"

enum {
    NG_REF_MAX_HEAD = 256 /* d and dv; a multiple of every block */
};

/* Operands of one side of a multiply: codes one after another, and their block scales. */
struct ng_ref_line {
    const ng_format_spec *spec;
    void *code;
    uint8_t *scale;
    uint32_t block; /* 0: no scales */
};

/* Memory of one row at a time: the number of keys, or of a head's elements, in each. */
struct ng_ref_real_key;
struct ng_ref_attention_scratch {
    struct ng_ref_real_key *real; /* arithmetic = real: nothing else is used */
    ng_value *e, *summand;
    int64_t *key;
    struct ng_ref_line q_line, key_line, p_line;
};

/* Keys [begin, end). */
struct range {
    int64_t begin, end;
};

/* What one row gives: dv codes of o, and FP32 patterns. */
struct ng_ref_attention_result {
    uint32_t code[NG_REF_MAX_HEAD];
    uint32_t lse, max, sum;
};

/* FP32 operations of FP32 values, one rounding each. */
ng_value ng_ref_mul32(ng_value a, ng_value b);
ng_value ng_ref_add32(ng_value a, ng_value b);
ng_value ng_ref_sub32(ng_value a, ng_value b);
ng_value ng_ref_function32(ng_function f, const ng_function_choice *how, ng_value x);

/* By rne; overflow to Inf or NaN, or to the maximum where there is neither. */
uint32_t ng_ref_convert(const ng_format_spec *to, ng_value v);
ng_value ng_ref_line_value(const struct ng_ref_line *line, int64_t at);
/* The line from position `at`, a whole number of its blocks, on. */
struct ng_ref_line ng_ref_line_from(const struct ng_ref_line *line, int64_t at);

/* Key j of query head h: its row in k and v (60), as the first three indices. */
void ng_ref_attention_locate(const struct attention_job *g, int64_t b, int64_t h, int64_t j,
                             int64_t *index);
/* An element as it was given, its block scale multiplied in. */
ng_value ng_ref_attention_value(const ng_tensor *t, const int64_t *index);
/* Query i as the multiply takes it. */
void ng_ref_attention_q(const struct attention_job *g, int64_t b, int64_t h, int64_t i,
                        struct ng_ref_line *line);
/* The last dimension of t at three indices, in format `spec`. */
void ng_ref_attention_copy(const ng_tensor *t, int64_t *index, const ng_format_spec *spec,
                           struct ng_ref_line *line);
/* Column c of t (k or v) at n keys of query head h. */
void ng_ref_attention_column(const struct attention_job *g, const ng_tensor *t,
                             const ng_format_spec *spec, int64_t b, int64_t h, int64_t c,
                             const int64_t *key, int64_t n, struct ng_ref_line *line);
ng_value ng_ref_multiply(const struct attention_multiply *m, const struct ng_ref_line *a,
                         const struct ng_ref_line *b, int64_t k, const ng_value *c);

/* Keys of sequence b; those that query i sees; is key j computed for it? */
int64_t ng_ref_keys(const struct attention_job *g, int64_t b);
struct range ng_ref_visible(const struct attention_job *g, int64_t keys, int64_t i);
bool ng_ref_computed(const struct attention_job *g, int64_t keys, int64_t i, int64_t j);

/* Of those in [from, to), the computed ones; how many. */
int64_t ng_ref_list_keys(const struct attention_job *g, int64_t keys, int64_t i, int64_t from,
                         int64_t to, int64_t *key);
/* One past the last of the keys from position `at` on that lie in the same cut of `width` keys,
 * counted from key `start`; width 0: no cuts. */
int64_t ng_ref_cut_end(const int64_t *key, int64_t n, int64_t at, int64_t start, int64_t width);
/* Keys of a section (66). */
int64_t ng_ref_section(const struct attention_job *g);

/* From a product to a score, under a cap with its tanh; E(x; m); E(x; lse) of the backward. */
ng_value ng_ref_score(const struct attention_job *g, ng_value x, bool masked, ng_value *y);
ng_value ng_ref_exponential(const struct attention_job *g, ng_value x, ng_value m);
/* v, or RN(v L) under base 2; scale_place exp: c, what a score is multiplied by. */
ng_value ng_ref_in_base(const struct attention_job *g, ng_value v);
ng_value ng_ref_inner_scale(const struct attention_job *g);
ng_value ng_ref_weight(const struct attention_job *g, ng_value x, ng_value lse);

/* Row (b, h, i); `trace` may be NULL. */
void ng_ref_attention_row(const struct attention_job *g, int64_t b, int64_t h, int64_t i,
                          struct ng_ref_attention_scratch *s, const ng_attention_trace *trace,
                          struct ng_ref_attention_result *out);
/* The same for arithmetic = real (78), and its memory. */
void ng_ref_attention_exact(const struct attention_job *g, int64_t b, int64_t h, int64_t i,
                            struct ng_ref_attention_scratch *s, const ng_attention_trace *trace,
                            struct ng_ref_attention_result *out);
size_t ng_ref_real_bytes(const struct attention_job *g);
/* Element c of the row, converted to o's format. */
void ng_ref_attention_write(const struct attention_job *g, int64_t b, int64_t h, int64_t i,
                            int64_t c, ng_value v, const ng_attention_trace *trace,
                            struct ng_ref_attention_result *out);
/* Bytes of scratch memory; `base` NULL: only counts. */
size_t ng_ref_attention_scratch(const struct attention_job *g, void *base,
                                struct ng_ref_attention_scratch *s);

/* ---- Backward: items 79 to 82. ---- */

/* Memory of one row of dq or one key of dk and dv. */
struct ng_ref_gradient_scratch {
    int64_t *list;
    struct ng_ref_line q, dout, key, weight;
    uint32_t *e, *ds;             /* codes of a row, or of a block of queries */
    uint32_t *q_rows, *dout_rows; /* their lines' codes, NG_REF_MAX_HEAD apart */
};
size_t ng_ref_gradient_scratch(const struct attention_grad_job *g, void *base,
                               struct ng_ref_gradient_scratch *s);
/* Queries of a block (81). */
int64_t ng_ref_query_block(const struct attention_job *g);
/* Codes of e and ds of row (b, h, i), to s->e and s->ds, at its computed keys, s->list; how
 * many. */
int64_t ng_ref_attention_weights(const struct attention_grad_job *g, int64_t b, int64_t h,
                                 int64_t i, struct ng_ref_gradient_scratch *s);
/* d codes of row (b, h, i) of dq; d codes of dk and dv codes of dv at key j. */
void ng_ref_attention_dq(const struct attention_grad_job *g, int64_t b, int64_t h, int64_t i,
                         struct ng_ref_gradient_scratch *s, uint32_t *code);
void ng_ref_attention_dkv(const struct attention_grad_job *g, int64_t b, int64_t kv_head,
                          int64_t j, struct ng_ref_gradient_scratch *s, uint32_t *dk,
                          uint32_t *dv);
/* The code of head h's sink's gradient. */
uint32_t ng_ref_attention_dsink(const struct attention_grad_job *g, int64_t h);

#endif
