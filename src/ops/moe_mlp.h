/* SPDX-License-Identifier: Apache-2.0 */
/* What the expert MLP and its backward share: checked operands, memory, one expert's steps. */
#ifndef NG_MOE_MLP_H
#define NG_MOE_MLP_H

#include "moe_run.h"

enum {
    NG_MOE_MX_BLOCK = 32,
    /* Of memory: 4 of ng_moe(); 13 of the call, 5 an operand, 4 a projection; 12 of the
     * backward. */
    NG_MOE_FIRST_PIECES = 4,
    NG_MOE_PIECES = NG_MOE_FIRST_PIECES + 13 + 2 * 5 + 3 * 4 + 12
};
_Static_assert((int)NG_MOE_PIECES <= (int)NG_PIECES, "a context has as many");

/* Memory of a call that makes calls which use the arena: pieces [used, ...) of the context. */
struct moe_memory {
    ng_ctx *ctx;
    int used;
    bool failed;
};
/* Room for `count` things; NULL, and `failed`, where there is none. */
void *ng_moe_take(struct moe_memory *m, int64_t count, size_t size);

/* One projection, as it is multiplied. */
struct moe_linear {
    const char *name;
    const ng_moe_linear *given;
    int64_t k, n;
    struct moe_rows scale, bias; /* FP32, or without data */
    bool one_scale;              /* [E]: an expert's columns share it */
    bool blocked;                /* FP8_BLOCK: a scale for each block; `scale` has no data */
    const struct moe_operand *operand; /* what is multiplied by it */
    void *weights;                     /* room for one dequantised matrix, or NULL */
    uint32_t *columns;                 /* room for n scales */
};

/* An operand of the multiplies, one expert's rows of it. */
struct moe_operand {
    const ng_moe_quant *quant;
    ng_format from; /* before it is quantised */
    int64_t k;
    void *codes, *quantised, *scales;
    uint32_t *wide, *row_scale; /* FP8_BLOCK: row by row a scale for each block */
};

/* Rows of an expert, from d_row on of the dispatch's; the first is number `row` of those of
 * its wave. */
struct moe_part {
    int64_t expert, row, rows, d_row;
};

struct moe_mlp {
    ng_ctx *ctx;
    ng_moe_op op; /* defaults filled in */
    const ng_tensor *tokens;
    int64_t local, h, i; /* experts of this rank; widths */
    int64_t most;        /* rows that an expert, or a wave, can have */
    bool gated;
    bool together; /* packed experts of one kind go in waves */
    struct moe_linear gate, up, down;
    struct moe_operand x, middle;
    int32_t *slot, *row;
    int64_t *offset;
    struct moe_rows weights; /* FP32, or without data */
    uint32_t *affinity;      /* [most] */
    uint32_t *g, *u, *o;
    uint32_t *block; /* FP8_BLOCK: room for the multiply of a block of K */
    /* Together: of every expert with rows; which token a row is; the scale of its x. */
    struct moe_part *part;
    int64_t parts;
    struct gemm_part *gemm_part;
    int32_t *line;
    uint32_t *wave_scale;
    struct moe_memory memory;
};

/* Scales of n elements, one for each NG_MOE_BLOCK. */
static inline int64_t ng_moe_blocks(int64_t n)
{
    return (n + NG_MOE_BLOCK - 1) / NG_MOE_BLOCK;
}

/* Are tokens quantised once, for all of their rows? */
static inline bool ng_moe_shares_tokens(const struct moe_mlp *m)
{
    return m->together && m->op.affinity != NG_MOE_AFFINITY_BEFORE;
}

/* Parts that are multiplied together, and their rows without padding. */
struct moe_wave {
    const struct moe_part *part;
    int64_t parts, rows;
    const int32_t *line; /* tokens of the rows */
};
/* The wave of parts from `first` on; `line`: of its first row. */
struct moe_wave ng_moe_wave_from(const struct moe_mlp *m, int64_t first, const int32_t *line);

/* Sizes of op and its parts, enums, formats. */
ng_status ng_moe_check_op(ng_ctx *ctx, const ng_moe_op *op);
/* Checks all operands but the outputs (and what sums start with). m->ctx is set. */
ng_status ng_moe_open_mlp(struct moe_mlp *m, const ng_moe_op *op, const ng_moe_experts *experts,
                          const ng_tensor *x, const int32_t *indices, const ng_tensor *weights);
/* Dispatch, and memory for it all. m->memory.allocator is set. */
ng_status ng_moe_make_room(struct moe_mlp *m, const int32_t *indices, const ng_tensor *weights);
/* The FP32 rows of an input, or of NULL. */
struct moe_rows ng_moe_room_rows(struct moe_mlp *m, const ng_tensor *t);

/* The rows of an expert, padding left out. */
int64_t ng_moe_expert_rows(const struct moe_mlp *m, int64_t e);
/* The tokens of an expert's rows into m->x.codes, times their weights with affinity `before`;
 * the weights into m->affinity. */
ng_status ng_moe_gather(struct moe_mlp *m, int64_t first, int64_t rows);
/* psum of a * weights of expert e, as FP32. */
ng_status ng_moe_multiply(struct moe_mlp *m, struct moe_linear *l, int64_t e,
                          const ng_tensor *a, uint32_t *psum);
/* The message of an inner call, with where it was. */
ng_status ng_moe_failed_at(struct moe_mlp *m, ng_status s, const char *what, int64_t e);

size_t ng_moe_bytes_of(ng_format f);
ng_tensor ng_moe_matrix(ng_format f, void *data, int64_t rows, int64_t columns);
/* Nearest, overflow to Inf. */
ng_status ng_moe_convert(ng_ctx *ctx, const ng_tensor *from, const ng_tensor *to);

#endif
