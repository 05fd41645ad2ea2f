/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shapes of published layers; their tensors: made up, or out of a checkpoint's safetensors
 * file, both through the same reader. Numerics: docs/numerics.md, section 11.11, item 137.
 */
#include <stdlib.h>
#include <string.h>

#include "layer.h"

enum {
    BLOCK = 32 /* elements of an MXFP4 block: 16 bytes and a scale */
};

/* ---- Shapes. ---- */

static const struct layer_shape shapes[] = {
    /* config.json of openai/gpt-oss-20b: hidden_size, intermediate_size, num_attention_heads,
     * num_key_value_heads, head_dim, num_local_experts, num_experts_per_tok, sliding_window,
     * num_hidden_layers, max_position_embeddings; gpt_oss/torch/model.py and layer_types have
     * the window on even layers. */
    { .name = "gpt-oss-20b",
      .source = "config.json of openai/gpt-oss-20b",
      .hidden = 2880,
      .inner = 2880,
      .heads = 64,
      .kv_heads = 8,
      .head_dim = 64,
      .experts = 32,
      .top = 4,
      .window = 128,
      .layers = 24,
      .context = 131072 },
    /* The same structure for tests: hidden and inner differ, and few tokens fill the window. */
    { .name = "gpt-oss-tiny",
      .source = "ours: gpt-oss-20b made small",
      .hidden = 160,
      .inner = 96,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 64,
      .experts = 8,
      .top = 4,
      .window = 4,
      .layers = 2,
      .context = 131072 },
};

const struct layer_shape *layer_shape_at(size_t i)
{
    return i < sizeof shapes / sizeof shapes[0] ? &shapes[i] : NULL;
}

const struct layer_shape *layer_shape_find(const char *name)
{
    for (size_t i = 0; layer_shape_at(i); i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

/* ---- Names, types and shapes. ---- */

/* How a tensor is made up. */
enum kind {
    MATRIX,
    BIAS,
    SINK,
    GAIN,
    CODES,
    SCALES
};

/* Dimensions in words, so that a row fits all shapes. */
enum size {
    NONE,
    HIDDEN,
    QUERIES, /* heads * head_dim */
    KEYS,    /* kv_heads * head_dim */
    HEADS,
    EXPERTS,
    GATE_UP, /* 2 * inner, gate and up in turn */
    HIDDEN_BLOCKS,
    INNER_BLOCKS,
    BLOCK_BYTES
};

/*
 * Names below model.layers.N, dtypes and shapes as in the published checkpoint
 * (openai/gpt-oss-20b, model-0000?-of-00002.safetensors; transformers,
 * convert_gpt_oss_weights_to_hf.py has the names, original/dtypes.json the dtypes,
 * gpt_oss/torch/weights.py the blocks: the low nibble is the even element). Matrices are
 * [outputs, inputs].
 */
static const struct row {
    const char *name;
    enum kind kind;
    enum size dim[NG_MAX_RANK];
} rows[LAYER_TENSORS] = {
    [LAYER_NORM_1] = { "input_layernorm.weight", GAIN, { HIDDEN } },
    [LAYER_Q] = { "self_attn.q_proj.weight", MATRIX, { QUERIES, HIDDEN } },
    [LAYER_Q_BIAS] = { "self_attn.q_proj.bias", BIAS, { QUERIES } },
    [LAYER_K] = { "self_attn.k_proj.weight", MATRIX, { KEYS, HIDDEN } },
    [LAYER_K_BIAS] = { "self_attn.k_proj.bias", BIAS, { KEYS } },
    [LAYER_V] = { "self_attn.v_proj.weight", MATRIX, { KEYS, HIDDEN } },
    [LAYER_V_BIAS] = { "self_attn.v_proj.bias", BIAS, { KEYS } },
    [LAYER_SINKS] = { "self_attn.sinks", SINK, { HEADS } },
    [LAYER_O] = { "self_attn.o_proj.weight", MATRIX, { HIDDEN, QUERIES } },
    [LAYER_O_BIAS] = { "self_attn.o_proj.bias", BIAS, { HIDDEN } },
    [LAYER_NORM_2] = { "post_attention_layernorm.weight", GAIN, { HIDDEN } },
    [LAYER_ROUTER] = { "mlp.router.weight", MATRIX, { EXPERTS, HIDDEN } },
    [LAYER_ROUTER_BIAS] = { "mlp.router.bias", BIAS, { EXPERTS } },
    [LAYER_GATE_UP] = { "mlp.experts.gate_up_proj_blocks",
                        CODES,
                        { EXPERTS, GATE_UP, HIDDEN_BLOCKS, BLOCK_BYTES } },
    [LAYER_GATE_UP_SCALES] = { "mlp.experts.gate_up_proj_scales",
                               SCALES,
                               { EXPERTS, GATE_UP, HIDDEN_BLOCKS } },
    [LAYER_GATE_UP_BIAS] = { "mlp.experts.gate_up_proj_bias", BIAS, { EXPERTS, GATE_UP } },
    [LAYER_DOWN] = { "mlp.experts.down_proj_blocks",
                     CODES,
                     { EXPERTS, HIDDEN, INNER_BLOCKS, BLOCK_BYTES } },
    [LAYER_DOWN_SCALES] = { "mlp.experts.down_proj_scales",
                            SCALES,
                            { EXPERTS, HIDDEN, INNER_BLOCKS } },
    [LAYER_DOWN_BIAS] = { "mlp.experts.down_proj_bias", BIAS, { EXPERTS, HIDDEN } },
};

static int64_t size_of(const struct layer_shape *s, enum size size)
{
    switch (size) {
    case HIDDEN: return s->hidden;
    case QUERIES: return s->heads * s->head_dim;
    case KEYS: return s->kv_heads * s->head_dim;
    case HEADS: return s->heads;
    case EXPERTS: return s->experts;
    case GATE_UP: return 2 * s->inner;
    case HIDDEN_BLOCKS: return s->hidden / BLOCK;
    case INNER_BLOCKS: return s->inner / BLOCK;
    case BLOCK_BYTES: return BLOCK / 2;
    case NONE: break;
    }
    return 0;
}

struct io_array layer_tensor_like(const struct layer_shape *shape, int64_t number,
                                  enum layer_tensor which)
{
    const struct row *row = &rows[which];
    const bool plain = row->kind >= CODES;
    struct io_array a = { .format = plain ? NG_FORMAT_NONE : NG_BF16,
                          .item_bits = plain ? 8 : 16 };
    snprintf(a.name, sizeof a.name, "model.layers.%lld.%s", (long long)number, row->name);
    while (a.rank < NG_MAX_RANK && row->dim[a.rank] != NONE) {
        a.dim[a.rank] = size_of(shape, row->dim[a.rank]);
        a.rank++;
    }
    a.bytes = io_array_size(a.format, a.item_bits, a.rank, a.dim);
    return a;
}

/* ---- Made up: item 137. ---- */

enum {
    TENSORS_A_LAYER = 32,
    WORDS_A_TENSOR = 40, /* as a power of two */
    MIDDLE = 510,        /* the mean of four bytes' sum */
    RUN = 1 << 16        /* words drawn at a time */
};

static int draw_words(const struct cli *cli, int64_t number, enum layer_tensor which,
                      int64_t first, int64_t n, uint32_t *words)
{
    const ng_random source = { .kind = NG_RANDOM_PHILOX,
                               .key = { (uint32_t)cli->seed, (uint32_t)(cli->seed >> 32) },
                               .first = (uint64_t)(number * TENSORS_A_LAYER + (int)which)
                                        << WORDS_A_TENSOR };
    const ng_status s = ng_random_words(cli->ctx, &source, n, first, n, words);
    return s ? cli_refused(cli, s, "weights") : 0;
}

/* The largest -e whose 4^e is at least n / d. */
static int half_log(uint64_t n, uint64_t d)
{
    int e = 0;
    for (uint64_t four = 1; four * d < n; four *= 4)
        e++;
    return -e;
}

/* c + u 2^e for every u: c is 0 or 1, so that 2^-11 is the unit of a gain. */
static void bf16_codes(int c, int e, uint16_t code[2 * MIDDLE + 1])
{
    const ng_cast nearest = { .round = NG_ROUND_TIES_TO_EVEN };
    for (int u = -MIDDLE; u <= MIDDLE; u++) {
        const int sum = u + (c ? 1 << -e : 0);
        const ng_value v = { .sig = (uint64_t)abs(sum), .exp = e, .neg = sum < 0 };
        uint32_t found = 0;
        (void)ng_encode(NG_BF16, &nearest, &v, 0, &found); /* of this size bf16 takes all */
        code[u + MIDDLE] = (uint16_t)found;
    }
}

static int exponent_of(const struct layer_shape *shape, enum layer_tensor which)
{
    if (which == LAYER_INPUT || rows[which].kind == SINK)
        return -7;
    if (rows[which].kind == GAIN)
        return -11;
    if (rows[which].kind == BIAS)
        return -13;
    return half_log(21845 * (uint64_t)size_of(shape, rows[which].dim[1]), 1);
}

static int make_bf16(const struct cli *cli, const struct layer_shape *shape, int64_t number,
                     enum layer_tensor which, struct io_array *a, uint32_t *words)
{
    uint16_t code[2 * MIDDLE + 1], *out = a->data;
    const int64_t n = (int64_t)(a->bytes / sizeof *out);
    bf16_codes(which != LAYER_INPUT && rows[which].kind == GAIN, exponent_of(shape, which),
               code);
    for (int64_t at = 0; at < n; at += RUN) {
        const int64_t some = n - at < RUN ? n - at : RUN;
        const int failed = draw_words(cli, number, which, at, some, words);
        if (failed)
            return failed;
        for (int64_t i = 0; i < some; i++) {
            const uint32_t w = words[i];
            out[at + i] = code[(w & 255) + (w >> 8 & 255) + (w >> 16 & 255) + (w >> 24)];
        }
    }
    return 0;
}

static int make_bytes(const struct cli *cli, const struct layer_shape *shape, int64_t number,
                      enum layer_tensor which, struct io_array *a, uint32_t *words)
{
    unsigned char *out = a->data;
    const int64_t n = (int64_t)a->bytes, run = RUN * (int64_t)sizeof *words;
    const bool scales = rows[which].kind == SCALES;
    const int64_t length = size_of(shape, rows[which].dim[2]) * BLOCK;
    const int least = 127 + half_log(137 * (uint64_t)length, 16) - 1;
    for (int64_t at = 0; at < n; at += run) {
        const int64_t some = n - at < run ? n - at : run;
        const int failed = draw_words(cli, number, which, at / 4, (some + 3) / 4, words);
        if (failed)
            return failed;
        for (int64_t i = 0; i < some; i++) {
            const uint32_t byte = words[i / 4] >> (8 * (i % 4)) & 255;
            out[at + i] =
                (unsigned char)(scales ? least + (int)(byte & 1) + (int)(byte >> 1 & 1)
                                       : (int)byte);
        }
    }
    return 0;
}

int layer_make_tensor(const struct cli *cli, const struct layer_shape *shape, int64_t number,
                      int64_t rows_of_input, enum layer_tensor which, struct io_array *out)
{
    struct io_array a;
    if (which == LAYER_INPUT) {
        a = (struct io_array){ .name = "x",
                               .format = NG_BF16,
                               .item_bits = 16,
                               .rank = 2,
                               .dim = { rows_of_input, shape->hidden } };
        a.bytes = io_array_size(a.format, a.item_bits, a.rank, a.dim);
    } else {
        a = layer_tensor_like(shape, number, which);
    }
    uint32_t *words = malloc(RUN * sizeof *words);
    a.data = malloc(a.bytes);
    int code = a.data && words ? 0 : cli_fail(EXIT_INTERNAL, "out of memory");
    if (!code)
        code = a.format == NG_BF16 ? make_bf16(cli, shape, number, which, &a, words)
                                   : make_bytes(cli, shape, number, which, &a, words);
    free(words);
    if (code)
        io_array_free(&a);
    else
        *out = a;
    return code;
}

/* ---- A file of them. ---- */

static int make_all(const struct cli *cli, const struct layer_shape *shape, int64_t number,
                    struct st_file *file)
{
    int code = 0;
    *file = (struct st_file){ .array = calloc(LAYER_TENSORS, sizeof *file->array) };
    if (!file->array)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    for (int t = 0; !code && t < LAYER_TENSORS; t++)
        code = layer_make_tensor(cli, shape, number, 0, (enum layer_tensor)t,
                                 &file->array[file->n_arrays++]);
    return code;
}

/* A file's bytes, and the tensors read from them as from a file. */
static int through_a_file(const struct layer_shape *shape, struct st_file *made,
                          const struct io_array *like, const char *written,
                          struct io_files *staged, struct st_file *out)
{
    struct io_error e;
    void *data = NULL;
    size_t bytes = 0;
    const char *path = written ? written : shape->name;
    bool ok = st_build(made, path, &data, &bytes, &e);
    st_free(made); /* before they are there a third time */
    ok = ok && (!written || io_stage(staged, written, data, bytes, &e)) &&
         st_parse_some(data, bytes, path, like, LAYER_TENSORS, out, &e);
    free(data);
    return ok ? 0 : cli_file_error(&e);
}

/* The tensors that `have` still wants and a file has become its. */
static bool take_from(const char *path, const struct io_array *like, struct st_file *have,
                      struct io_error *e)
{
    struct io_array wanted[LAYER_TENSORS];
    struct st_file found;
    size_t place[LAYER_TENSORS], n = 0;
    for (size_t t = 0; t < LAYER_TENSORS; t++)
        if (!have->array[t].data) {
            place[n] = t;
            wanted[n++] = like[t];
        }
    if (!st_read_some(path, wanted, n, &found, e))
        return false;
    for (size_t i = 0; i < n; i++) {
        have->array[place[i]] = found.array[i];
        found.array[i] = (struct io_array){ .data = NULL };
    }
    st_free(&found);
    return true;
}

static int from_files(const struct layer_files *files, const struct io_array *like,
                      struct st_file *out)
{
    struct io_error e;
    struct st_file have = { .array = calloc(LAYER_TENSORS, sizeof *have.array),
                            .n_arrays = LAYER_TENSORS };
    if (!have.array)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    int code = 0;
    for (int f = 0; !code && f < files->n; f++)
        if (!take_from(files->path[f], like, &have, &e))
            code = cli_file_error(&e);
    for (int t = 0; !code && t < LAYER_TENSORS; t++)
        if (!have.array[t].data)
            code = cli_fail(EXIT_FILE, "%s%s no tensor '%s'", files->path[0],
                            files->n > 1 ? " and the other files of --weights have" : " has",
                            like[t].name);
    if (code)
        st_free(&have);
    else
        *out = have;
    return code;
}

int layer_load_weights(const struct cli *cli, const struct layer_shape *shape, int64_t number,
                       const struct layer_files *files, const char *written,
                       struct io_files *staged, struct st_file *out)
{
    struct io_array like[LAYER_TENSORS];
    struct st_file made;
    for (int t = 0; t < LAYER_TENSORS; t++)
        like[t] = layer_tensor_like(shape, number, (enum layer_tensor)t);
    if (files->n)
        return from_files(files, like, out);
    const int code = make_all(cli, shape, number, &made);
    if (!code)
        return through_a_file(shape, &made, like, written, staged, out);
    st_free(&made);
    return code;
}
