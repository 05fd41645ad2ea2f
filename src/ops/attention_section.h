/* SPDX-License-Identifier: Apache-2.0 */
/* What items of either kind do alike: their rows' beginnings and ends, sections, groups of
 * keys, denominators out of the sums of pieces. Numerics: docs/numerics.md, section 11.9. */
#ifndef NG_ATTENTION_SECTION_H
#define NG_ATTENTION_SECTION_H

#include "attention_plan.h"

/* Keys [from, to) are evaluated; those from `begin` and up to `end` are computed too, and
 * masked. */
struct section {
    int64_t begin, from, to, end;
    int64_t base; /* key of a P line's first code */
    bool last;
};

/* Rows of a head of k, from number `first` on: query by query, in it head by head. */
struct attention_head {
    const struct attention_work *w;
    int64_t b, kv_head, keys;
};

static inline int64_t attention_query(const struct attention_plan *p, int64_t row)
{
    return row / p->group;
}

static inline int64_t attention_head_of(const struct attention_plan *p, int64_t kv_head,
                                        int64_t row)
{
    return kv_head * p->group + row % p->group;
}

/* Queries that skip key tiles together. */
static inline int64_t attention_together(const struct attention_plan *p)
{
    const int64_t n = attention_setting(p, NG_ATTENTION_SKIP_QUERIES);
    return p->skip && n ? min64(n, p->g->queries) : p->g->queries;
}

/* ---- Items: panels of `lines` rows, `each` of them at most. ---- */

/* Rows [first, first + rows) of a head of k, which skip together with queries [i0, i1). */
struct attention_item {
    int64_t first, rows, i0, i1;
};

/* Tasks of a head of k, and what a task has to do; false: nothing. */
int64_t ng_attention_items(const struct attention_plan *p, int64_t lines, int64_t each);
bool ng_attention_item(const struct attention_plan *p, int64_t lines, int64_t each, size_t task,
                       struct attention_item *item);

/* ---- A row's beginning. ---- */

/* What a row sees, its first maximum (67), its sink. False: the reference has the row. */
bool ng_attention_begin_row(const struct attention_head *h, int64_t row, struct range *sees,
                            float *m, float *sink);
/* Its query as the multiply takes it (63). */
void ng_attention_take_query(const struct attention_head *h, const struct attention_desk *d,
                             int64_t row, struct ng_ref_line *to);

/* ---- A section. ---- */

/* Pieces that begin at multiples of `piece` and that the section touches. */
static inline int64_t attention_pieces_in(const struct section *s, int64_t piece)
{
    return div_up(s->to, piece) - s->from / piece;
}

/* How l and o go on from section to section. */
static inline attention_combine attention_update(const struct attention_plan *p)
{
    return attention_setting(p, NG_ATTENTION_UPDATE) == NG_UPDATE_FMA ? ATTENTION_FMA
                                                                      : ATTENTION_TWO;
}

/* The section whose rows see keys [from, to) of it, which are more where none is left out. */
struct section ng_attention_section(const struct attention_plan *p, int64_t begin, int64_t end,
                                    int64_t from, int64_t to, bool last);
/* Of a row's visible keys those of the section, as positions in it. */
static inline void attention_visible(const struct section *s, struct range sees, int32_t *begin,
                                     int32_t *end)
{
    const int64_t from = max64(sees.begin, s->from), to = min64(sees.end, s->to);
    *begin = (int32_t)(from < to ? from - s->from : 0);
    *end = (int32_t)(from < to ? to - s->from : 0);
}

/* Maxima (67) of n rows, which see positions [begin, end), and alpha (71) where they had some
 * before. Bit r: the reference has row r. */
uint64_t ng_attention_maxima(const struct attention_plan *p, const struct section *s, int n,
                             const int32_t *begin, const int32_t *end, const float *best,
                             bool begun, float *m, float *alpha);
/* The sums (69) of `lanes` rows out of those of their pieces, [pieces][lanes]. */
void ng_attention_sum(const struct attention_plan *p, const struct section *s,
                      const float *piece, int64_t lanes, float *sum);
/* Behind the last key, exclusive, that a multiply reads of P, or its packer in whole vectors.
 */
int64_t ng_attention_read_end(const struct attention_plan *p, const struct section *s);
/* Are whole K tiles left out (76)? Keys before s->from and behind s->to in the same tile are
 * multiplied as zeros. */
bool ng_attention_drops_tiles(const struct attention_plan *p, const struct section *s);
/* Back from q's format, where a section ends that is not the last. */
void ng_attention_store_output(const struct attention_plan *p, float *o, int64_t n);

/* ---- A group of keys in one accumulate memory. ---- */

struct group {
    int64_t begin, n; /* its keys */
    int64_t from, to; /* of them those of the section */
    int64_t end;      /* K tile (whole: position) */
    const struct gemm_walk *walk;
    bool partial; /* a whole chain, which has the skipped keys too */
    bool inside;  /* its sums go on from the product's; else they begin, */
    bool apart;   /* and are then added to it */
};

/* `accumulates`: update accumulator, in a later section. */
struct group ng_attention_group(const struct attention_head *h, const struct section *s,
                                int64_t number, bool accumulates);
/* P's panel as far as K tile `to`, exclusive, is multiplied. */
struct gemm_walk ng_attention_walk_to(const struct gemm_walk *w, int64_t to);

/* ---- Rows' ends (72, 73, 75). ---- */

/* n rows from `first` on, their o over l at `line`, `step` numbers apart; those in `lost` are
 * left to the reference, and asked of it. */
void ng_attention_store_rows(const struct attention_head *h, const struct attention_desk *d,
                             int64_t first, int64_t n, uint64_t lost, float *line, int64_t step,
                             const float *m, const float *l);

#endif
