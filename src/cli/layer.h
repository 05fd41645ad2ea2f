/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One transformer layer, from a checkpoint's tensors to digests: what ngauge run layer is made
 * of. Numerics: docs/numerics.md, section 11.11; docs/layer.md walks through it.
 */
#ifndef NG_CLI_LAYER_H
#define NG_CLI_LAYER_H

#include "cli.h"

/* ---- Shapes. ---- */

struct layer_shape {
    const char *name, *source;
    int64_t hidden, inner; /* of a token, of an expert */
    int64_t heads, kv_heads, head_dim;
    int64_t experts, top;    /* how many there are, and take a token */
    int64_t window;          /* of even layers; odd ones see all keys */
    int64_t layers, context; /* of the model; positions end there */
};

/* NULL: there is none of that name. By number: NULL past the end. */
const struct layer_shape *layer_shape_find(const char *name);
const struct layer_shape *layer_shape_at(size_t i);

/* ---- Weights. ---- */

enum layer_tensor {
    LAYER_NORM_1, /* input_layernorm.weight */
    LAYER_Q,
    LAYER_Q_BIAS,
    LAYER_K,
    LAYER_K_BIAS,
    LAYER_V,
    LAYER_V_BIAS,
    LAYER_SINKS,
    LAYER_O,
    LAYER_O_BIAS,
    LAYER_NORM_2, /* post_attention_layernorm.weight */
    LAYER_ROUTER,
    LAYER_ROUTER_BIAS,
    LAYER_GATE_UP, /* blocks of e2m1 codes, scales: MXFP4 as the checkpoint stores it */
    LAYER_GATE_UP_SCALES,
    LAYER_GATE_UP_BIAS,
    LAYER_DOWN,
    LAYER_DOWN_SCALES,
    LAYER_DOWN_BIAS,
    LAYER_TENSORS,
    LAYER_INPUT = LAYER_TENSORS /* the hidden state, where it is made up too */
};

/* Name, type and shape of a tensor of layer `number`, without data. */
struct io_array layer_tensor_like(const struct layer_shape *shape, int64_t number,
                                  enum layer_tensor which);

/* Made up as item 137 says; an exit code. `rows`: of the hidden state. */
int layer_make_tensor(const struct cli *cli, const struct layer_shape *shape, int64_t number,
                      int64_t rows, enum layer_tensor which, struct io_array *out);
enum {
    LAYER_FILES = 8
};
/* A checkpoint's files, among which a layer may be divided. None: weights are made up. */
struct layer_files {
    const char *path[LAYER_FILES];
    int n;
};
/* All of them in the order of enum layer_tensor: from a checkpoint's files, or made up, put
 * into a file's bytes (staged as `written` unless that is NULL) and read from those. An exit
 * code.
 */
int layer_load_weights(const struct cli *cli, const struct layer_shape *shape, int64_t number,
                       const struct layer_files *files, const char *written,
                       struct io_files *staged, struct st_file *out);

/* ---- Angles: item 134. ---- */

enum {
    LAYER_PAIRS = 32 /* of a head of 64 */
};
/* FP32 pattern of the frequency of a pair. */
uint32_t layer_frequency(int pair);
/* bf16 codes of cosine and sine, each times the attention factor, of a position below 2^17.
 * False: the digits computed do not decide a rounding. */
bool layer_angle(int64_t position, int pair, uint16_t *cosine, uint16_t *sine);

/* ---- The layer. ---- */

enum {
    LAYER_STAGES = 10
};

struct layer_stage {
    const char *name;
    double seconds, operations; /* of the multiplies; 0: it has none */
    char kernel[40];
    char digest[40]; /* XXH3-128 of what it gives */
};

struct layer_run {
    const struct layer_shape *shape;
    const ng_profile *profile;
    const ng_attention_schedule *schedule;
    int64_t number, tokens;
    const struct st_file *weights;
    struct io_array input, output; /* [tokens, hidden], bf16 */
    bool mx;                       /* experts multiply MXFP4 by MXFP8; else bf16 by bf16 */
    ng_format expert_sums;         /* their accumulate memory */
    int n_stages;                  /* that are done */
    struct layer_stage stage[LAYER_STAGES];
};

/* Runs the stages; an exit code. */
int layer_run(const struct cli *cli, struct layer_run *run);

int cmd_run_layer(int argc, char **argv);

#endif
