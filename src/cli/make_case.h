/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of run, convert, quantize and dequantize as a case: the options become the
 * JSON that a case file would hold, and case.c reads it. Then computing, writing, reporting.
 */
#ifndef NG_CLI_MAKE_CASE_H
#define NG_CLI_MAKE_CASE_H

#include "case.h"

/* The command line as the JSON of a case. */
struct builder {
    json_t *root, *one, *tensors, *cast, *scale;
    json_t *set; /* in the profile; NULL: nothing */
    const char *out, *scale_out, *tensor_scale;
    const char *tensor; /* of IN, where its file has several */
    struct {
        const char *tensor, *file;
    } scale_file[3];
    int n_scale_files;
    const char *transpose, *transpose_scale; /* quantize */
    uint64_t seen; /* options of its own that the command line had: bit i for OPT_OWN + i */
};

enum {
    OPT_PROFILE = OPT_OWN,
    OPT_A,
    OPT_B,
    OPT_C,
    OPT_SRC,
    OPT_TO,
    OPT_A_SCALE,
    OPT_B_SCALE,
    OPT_SRC_SCALE,
    OPT_ROUND,
    OPT_OVERFLOW,
    OPT_NAN_SIGN,
    OPT_NAN_TO,
    OPT_WORDS,
    OPT_ACCUMULATE,
    OPT_DOUBLE_ROW,
    OPT_OUT_SCALE,
    OPT_FP4_MAP,
    OPT_SCALE_FORMAT,
    OPT_BLOCK,
    OPT_AXIS,
    OPT_LAYOUT,
    OPT_RULE,
    OPT_SPECIAL,
    OPT_SCALE_OUT,
    OPT_SETTING,
    OPT_SCALE_STORE,
    OPT_TILE_ROWS,
    OPT_OFFSET,
    OPT_TENSOR_AMAX,
    OPT_TENSOR_SCALE,
    OPT_SCALE,
    OPT_TRANSPOSE,
    OPT_TRANSPOSE_SCALE_OUT,
    OPT_TENSOR_NAME,
    OPT_PRESET
};

/* Of an output's rounding: what every operation here has. */
#define CAST_OPTIONS                                                                           \
    { "to", required_argument, NULL, OPT_TO },                                                 \
        { "round", required_argument, NULL, OPT_ROUND },                                       \
        { "overflow", required_argument, NULL, OPT_OVERFLOW },                                 \
        { "nan-sign", required_argument, NULL, OPT_NAN_SIGN },                                 \
        { "nan-to", required_argument, NULL, OPT_NAN_TO },                                     \
    {                                                                                          \
        "words", required_argument, NULL, OPT_WORDS                                            \
    }

/* Of block scales, and of the order in which a file has them. */
#define SCALE_OPTIONS                                                                          \
    { "scale-format", required_argument, NULL, OPT_SCALE_FORMAT },                             \
        { "block", required_argument, NULL, OPT_BLOCK },                                       \
        { "axis", required_argument, NULL, OPT_AXIS },                                         \
        { "layout", required_argument, NULL, OPT_LAYOUT },                                     \
        { "scale-store", required_argument, NULL, OPT_SCALE_STORE },                           \
        { "tile-rows", required_argument, NULL, OPT_TILE_ROWS },                               \
    {                                                                                          \
        "offset", required_argument, NULL, OPT_OFFSET                                          \
    }

#define TENSOR_OPTION                                                                          \
    {                                                                                          \
        "tensor", required_argument, NULL, OPT_TENSOR_NAME                                     \
    }

struct builder builder_open(void);
void builder_close(struct builder *b);
/* One of the options above; an exit code. */
int builder_option(struct builder *b, int o, const char *value);
/* A tensor on the command line: FILE=FORMAT, FILE=SPEC, or a file that says itself what it
 * holds; integers: FILE, FILE=SPEC; the scales of a tensor: FILE, FILE=FORMAT. */
int builder_tensor(struct builder *b, const char *name, const char *in);
int builder_integers(struct builder *b, const char *name, const char *in);
int builder_scale(struct builder *b, const char *tensor, const char *in);
/* The case of `op` with the tensors as they are, and the rounding, if there is one, as `cast`.
 */
json_t *builder_case(struct builder *b, const char *op, const char *cast);
/* The options as the JSON of a case. */
json_t *builder_json(struct builder *b, const char *op);

bool is_safetensors(const char *path);

/* Where the result goes. */
struct outputs {
    const char *path, *scale; /* scale may be NULL */
    const char *transpose, *transpose_scale;
    bool whole; /* `path` gets the whole case */
};
/* Compute, write, report; an exit code. Nothing is written where one of the files cannot be. */
int compute_and_write(const struct cli *cli, struct one_case *c, const struct outputs *to);

#endif
