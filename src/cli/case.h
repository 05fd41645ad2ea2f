/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A case: one operation with its operands and, for verify, what the chip made of them. Read
 * from the schema ng.case/1 (docs/cli.md) in a folder's case.json, a .json file, or the
 * metadata of a safetensors file.
 */
#ifndef NG_CLI_CASE_H
#define NG_CLI_CASE_H

#include "cli.h"

enum op {
    OP_DOT,
    OP_GEMM,
    OP_QUANTIZE,
    OP_DEQUANTIZE,
    OP_CONVERT,
    OP_ATTENTION, /* from here on: struct block */
    OP_ATTENTION_BACKWARD,
    OP_ROUTE,
    OP_MOE,
    OP_ALL_REDUCE
};
const char *op_text(enum op op);

/* How a file holds block scales; docs/cli.md, "store". */
struct scale_place {
    ng_scale_store store;
    uint32_t tile_rows, offset; /* TRN_SBUF; 0 rows: 128 */
};

/* A tensor of a case, with all the memory it points to. */
struct operand {
    bool present;
    struct io_array data, scale, tags;
    ng_sparse sparse;
    struct scale_place place; /* of the scales in their file; in memory they are linear */
    ng_tensor view;
};

enum {
    FP4_CODES = 16
};

/* A rounding with the memory of its random words, or of its generator's states. */
struct words {
    struct io_array array;
};

struct one_case {
    char name[160];
    enum op op;
    ng_profile *owned; /* NULL for a built-in one */
    const ng_profile *profile;
    struct operand a, b, c, d; /* dot, gemm */
    struct operand src, dst;   /* the others */
    struct words out_words, psum_words;
    ng_gemm_op gemm;
    uint8_t fp4[FP4_CODES]; /* gemm.fp4_map, where there is one */
    ng_quantize_op quantize;
    ng_convert_op convert;
    struct block *block; /* of OP_ATTENTION and later: all of it; block.h */
};

struct case_list {
    struct one_case *item;
    size_t n;
};

/*
 * Read all cases of PATH. `outputs`: the result tensor (d, dst) must be there with its file;
 * otherwise its file may be missing and only its format is read. `set`: of settings_add(), as
 * if the cases' profiles said it; or NULL. Returns an exit code, 0 for success; reports its own
 * errors.
 */
int case_read(const char *path, bool outputs, json_t *set, struct case_list *list);
/* "RULE.KEY=VALUE" of the option --set into *set, which begins as NULL. An exit code. */
int settings_add(json_t **set, const char *text);
/* The same from JSON that the tool made of its command line; file names as they stand. */
int case_from_json(json_t *root, bool outputs, json_t *set, struct case_list *list);
void case_free(struct case_list *list);

/* A block axis: the last dimension of a result whose rank is not known before its operands'. */
enum {
    AXIS_LAST = NG_MAX_RANK
};
/* The tensor that the operation writes. */
struct operand *case_output(struct one_case *c);
/* Set shape and packed strides of an output that has no file, from the operands. */
int case_shape_output(struct one_case *c);
/* Memory for an output like `like`, all bytes `fill`; scales too if it has some. */
bool operand_alloc_like(struct operand *out, const struct operand *like, int fill);
void operand_free(struct operand *o);

/* Compute the case's output into `out` (as operand_alloc_like made it). */
ng_status case_compute(const struct cli *cli, ng_ctx *ctx, const struct one_case *c,
                       struct operand *out, bool show_progress);

/* Bytes of `t`'s scales in a store; 0: `why` says what is wrong with the store. The block axis
 * is one of t's. */
size_t scales_bytes(const ng_tensor *t, const struct scale_place *p, char *why, size_t n);
/* Type and shape of the array that holds them, without data: linear ones are of the scale
 * format, others plain bytes. scales_bytes() has been asked. */
struct io_array scales_shape(const ng_tensor *t, const struct scale_place *p);
/* Moves between the tool's packed scales and a store of scales_bytes(). */
ng_status scales_store(ng_ctx *ctx, const ng_tensor *t, const struct scale_place *p,
                       const void *scales, void *stored);
ng_status scales_load(ng_ctx *ctx, const ng_tensor *t, const struct scale_place *p,
                      const void *stored, void *scales);
/* The scales of `o` in a store; an exit code. */
int scales_stage(const struct cli *cli, struct io_files *files, const char *path,
                 const struct operand *o, const struct scale_place *p);

/* The rule by which a profile multiplies the case's operands; NULL: `message` says why none. */
const ng_rule *case_rule(const struct one_case *c, const ng_profile *profile, char *message,
                         size_t bytes);

/* One line that says what was computed: op, shapes, formats, rule. */
void case_describe(const struct one_case *c, char *text, size_t bytes);

/* What decides the bits of a conversion, and the evidence for what a device decides; empty for
 * a multiply. */
void conversion_line(const struct one_case *c, char *text, size_t bytes);

/* A case as a safetensors file with its metadata: op, profile, line, hash, ng.case. */
int case_stage_st(struct io_files *files, const char *path, const struct one_case *c);
/* Parts of a case's JSON. A tensor or words stand in the file as the named tensor, or in a
 * folder beside it as NAME.npy. */
json_t *tensor_json(const char *name, const struct operand *o, bool folder);
json_t *profile_json(const struct one_case *c);
/* An FP4 table as a case has it: {"format": "e4m3fn", "codes": ["0x00", ..]} */
json_t *fp4_json(const ng_gemm_op *op);
/* Set `key` to a rounding, where it is not the default one. */
void set_cast(json_t *root, const char *key, const ng_cast *cast, const char *words,
              bool folder);
/* Write a case as a folder: npy files and case.json. */
int case_write_folder(const char *path, const struct one_case *c);

#endif
