/* SPDX-License-Identifier: Apache-2.0 */
/* Computing a case's output, and writing cases. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "case.h"
#include "words.h"

struct operand *case_output(struct one_case *c)
{
    return c->op <= OP_GEMM ? &c->d : &c->dst;
}

static bool alloc_array(struct io_array *a, ng_format format, uint32_t rank, const int64_t *dim,
                        int fill)
{
    *a = (struct io_array){ .format = format,
                            .item_bits = ng_format_info(format)->store_bits,
                            .rank = rank,
                            .bytes = ng_tensor_bytes(format, rank, dim) };
    memcpy(a->dim, dim, rank * sizeof *dim);
    a->data = a->bytes ? malloc(a->bytes) : NULL;
    if (a->data)
        memset(a->data, fill, a->bytes);
    return a->data != NULL;
}

bool operand_alloc_like(struct operand *out, const struct operand *like, int fill)
{
    const ng_tensor *t = &like->view;
    *out = (struct operand){ .present = true };
    if (!alloc_array(&out->data, t->format, t->rank, t->dim, fill) ||
        ng_tensor_init(&out->view, t->format, out->data.data, t->rank, t->dim))
        return false;
    if (!t->block)
        return true;
    int64_t dim[NG_MAX_RANK];
    memcpy(dim, t->dim, sizeof dim);
    dim[t->block_axis] = (dim[t->block_axis] + t->block - 1) / t->block;
    return alloc_array(&out->scale, t->scale_format, t->rank, dim, fill) &&
           ng_tensor_set_scale(&out->view, t->scale_format, out->scale.data, t->block,
                               t->block_axis, t->layout) == NG_OK;
}

int case_shape_output(struct one_case *c)
{
    struct operand *o = case_output(c);
    if (o->data.data)
        return 0;
    int64_t dim[NG_MAX_RANK] = { 0 };
    uint32_t rank;
    ng_tensor keep = o->view;
    if (c->op > OP_GEMM) {
        rank = c->src.view.rank;
        memcpy(dim, c->src.view.dim, sizeof dim);
    } else {
        rank = c->op == OP_DOT ? 1 : c->a.view.rank;
        if (c->a.view.rank < 2 || c->b.view.rank != c->a.view.rank)
            return cli_fail(EXIT_REFUSED,
                            "a has rank %u and b %u; wanted: the same, at least 2",
                            c->a.view.rank, c->b.view.rank);
        memcpy(dim, c->a.view.dim, sizeof dim);
        if (c->op == OP_GEMM)
            dim[rank - 1] = c->b.view.dim[rank - 1];
    }
    if (ng_tensor_init(&o->view, keep.format, NULL, rank, dim))
        return cli_fail(EXIT_REFUSED, "the output %s is too large", io_shape(rank, dim).text);
    if (!keep.block)
        return 0;
    if (keep.block_axis == AXIS_LAST)
        keep.block_axis = rank - 1;
    if (keep.block_axis >= rank)
        return cli_fail(EXIT_REFUSED,
                        "blocks run along dimension %u, but the tensor has rank %u",
                        keep.block_axis, rank);
    o->view.scale_format = keep.scale_format;
    o->view.block = keep.block;
    o->view.block_axis = keep.block_axis;
    o->view.layout = keep.layout;
    return 0;
}

/* ---- Computing. ---- */

/* Rows [i, i + n) of dimension 0. */
static ng_tensor rows_of(const ng_tensor *t, int64_t i, int64_t n)
{
    ng_tensor r = *t;
    const int64_t at = i * t->stride[0] * ng_format_info(t->format)->store_bits / 8;
    r.data = (unsigned char *)t->data + at;
    r.dim[0] = n;
    return r;
}

/*
 * A plain multiply in bands of rows, so that a terminal sees progress. Only where a band is
 * just a multiply of its own: no random words (their numbers would shift), no tags, no scales.
 */
static bool can_band(const struct one_case *c)
{
    return c->op == OP_GEMM && c->a.view.rank == 2 && !c->a.view.scale && !c->a.view.sparse &&
           !c->b.view.sparse && c->gemm.out.round != NG_ROUND_STOCHASTIC &&
           c->gemm.psum.round != NG_ROUND_STOCHASTIC && c->a.view.dim[0] > 256;
}

static ng_status banded(const struct cli *cli, ng_ctx *ctx, const struct one_case *c,
                        const ng_tensor *d)
{
    enum {
        BAND = 64
    };
    struct progress p;
    const int64_t m = c->a.view.dim[0];
    ng_status s = NG_OK;
    progress_begin(&p, cli, "multiply", m);
    for (int64_t i = 0; i < m && !s; i += BAND) {
        const int64_t n = m - i < BAND ? m - i : BAND;
        const ng_tensor a = rows_of(&c->a.view, i, n), out = rows_of(d, i, n);
        ng_tensor cc = { 0 };
        if (c->c.present)
            cc = rows_of(&c->c.view, i, n);
        s = ng_gemm(ctx, &c->gemm, &a, &c->b.view, c->c.present ? &cc : NULL, &out);
        progress_at(&p, i + n);
    }
    progress_end(&p);
    return s;
}

ng_status case_compute(const struct cli *cli, ng_ctx *ctx, const struct one_case *c,
                       struct operand *out, bool show_progress)
{
    const ng_tensor *cc = c->c.present ? &c->c.view : NULL;
    ng_status s = NG_ERR_INTERNAL;
    switch (c->op) {
    case OP_DOT: return ng_dot(ctx, &c->gemm, &c->a.view, &c->b.view, cc, &out->view);
    case OP_GEMM:
        /* The whole shape is checked first, so that a band cannot fail half way. */
        if (show_progress && can_band(c) &&
            ng_gemm_rule(ctx, &c->gemm, &c->a.view, &c->b.view)) {
            size_t bytes;
            s = ng_gemm_scratch(ctx, &c->gemm, &c->a.view, &c->b.view, cc, &out->view, &bytes);
            return s ? s : banded(cli, ctx, c, &out->view);
        }
        return ng_gemm(ctx, &c->gemm, &c->a.view, &c->b.view, cc, &out->view);
    case OP_QUANTIZE: return ng_quantize(ctx, &c->quantize, &c->src.view, &out->view);
    case OP_DEQUANTIZE: return ng_dequantize(ctx, &c->convert, &c->src.view, &out->view);
    case OP_CONVERT: return ng_convert(ctx, &c->convert, &c->src.view, &out->view);
    default: break; /* the others are blocks */
    }
    return s;
}

/* ---- Describing. ---- */

static void put_operand(char *text, size_t bytes, const char *name, const struct operand *o)
{
    const size_t n = strlen(text);
    if (n < bytes)
        snprintf(text + n, bytes - n, " %s %s%s%s %s", name,
                 ng_format_info(o->view.format)->text, o->view.block ? "+" : "",
                 o->view.block ? ng_format_info(o->view.scale_format)->text : "",
                 io_shape(o->view.rank, o->view.dim).text);
}

/* " fp4_map e4m3fn 00 30 38 .." */
static void put_fp4(char *text, size_t bytes, const ng_gemm_op *op)
{
    size_t n = strlen(text);
    if (n < bytes)
        n += (size_t)snprintf(text + n, bytes - n, " fp4_map %s",
                              ng_format_info(op->fp4_format)->text);
    for (int i = 0; i < FP4_CODES && n < bytes; i++)
        n += (size_t)snprintf(text + n, bytes - n, " %02x", op->fp4_map[i]);
}

void case_describe(const struct one_case *c, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", op_text(c->op));
    if (c->op > OP_GEMM) {
        put_operand(text, bytes, "src", &c->src);
        put_operand(text, bytes, "dst", &c->dst);
        return;
    }
    put_operand(text, bytes, "a", &c->a);
    put_operand(text, bytes, "b", &c->b);
    if (c->c.present)
        put_operand(text, bytes, "c", &c->c);
    put_operand(text, bytes, "d", &c->d);
    if (c->gemm.fp4_map)
        put_fp4(text, bytes, &c->gemm);
}

void conversion_line(const struct one_case *c, char *text, size_t bytes)
{
    const ng_cast *cast = c->op == OP_QUANTIZE ? &c->quantize.cast : &c->convert.cast;
    size_t n = 0;
    text[0] = '\0';
    if (c->op != OP_QUANTIZE && c->op != OP_DEQUANTIZE && c->op != OP_CONVERT)
        return;
    if (c->op == OP_QUANTIZE)
        n = (size_t)snprintf(text, bytes, "rule=%s(%s) special=%s(%s) ",
                             scale_rule_text(c->quantize.rule),
                             ng_evidence_name(ng_scale_rule_evidence(c->quantize.rule)),
                             block_special_text(c->quantize.special),
                             ng_evidence_name(ng_block_special_evidence(c->quantize.special)));
    if (n < bytes)
        n += (size_t)snprintf(text + n, bytes - n, "round=%s", round_text(cast->round));
    if (cast->round == NG_ROUND_STOCHASTIC && n < bytes)
        n += (size_t)snprintf(text + n, bytes - n, " sr=%c(assumed) sr_bits=%u(assumed)",
                              'a' + (int)cast->sr, cast->sr_bits ? cast->sr_bits : 32);
    if (c->op != OP_QUANTIZE && n < bytes)
        snprintf(text + n, bytes - n, " overflow=%s nan_sign=%s", overflow_text(cast->overflow),
                 cast->nan_sign ? "keep" : "clear");
}

/* ---- Writing. ---- */

static json_t *cast_json(const ng_cast *c)
{
    json_t *j = json_object();
    if (c->round)
        json_object_set_new(j, "round", json_string(round_text(c->round)));
    if (c->overflow)
        json_object_set_new(j, "overflow", json_string(overflow_text(c->overflow)));
    if (c->nan_sign)
        json_object_set_new(j, "nan_sign", json_string("keep"));
    if (c->nan_to)
        json_object_set_new(j, "nan_to",
                            json_string(c->nan_to == NG_NAN_TO_ZERO ? "zero" : "error"));
    if (c->round == NG_ROUND_STOCHASTIC) {
        json_object_set_new(j, "sr",
                            json_string(c->sr == NG_SR_A   ? "a"
                                        : c->sr == NG_SR_B ? "b"
                                                           : "c"));
        json_object_set_new(j, "sr_bits", json_integer(c->sr_bits ? c->sr_bits : 32));
        json_object_set_new(j, "sr_take", json_string(c->sr_take ? "high" : "low"));
    }
    if (json_object_size(j))
        return j;
    json_decref(j);
    return NULL;
}

/* Names of a case's arrays: its tensors, their scales and tags, the random words. */
struct piece {
    const char *tensor, *part;
    const struct io_array *array;
};
enum {
    MAX_PIECES = 20
};

static size_t list_pieces(const struct one_case *c, struct piece *out)
{
    const struct {
        const char *name;
        const struct operand *o;
    } all[] = { { "a", &c->a }, { "b", &c->b },     { "c", &c->c },
                { "d", &c->d }, { "src", &c->src }, { "dst", &c->dst } };
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].o->data.data)
            out[n++] = (struct piece){ all[i].name, "", &all[i].o->data };
        if (all[i].o->scale.data)
            out[n++] = (struct piece){ all[i].name, "_scale", &all[i].o->scale };
        if (all[i].o->tags.data)
            out[n++] = (struct piece){ all[i].name, "_tags", &all[i].o->tags };
    }
    if (c->out_words.array.data)
        out[n++] = (struct piece){ "out_words", "", &c->out_words.array };
    if (c->psum_words.array.data)
        out[n++] = (struct piece){ "psum_words", "", &c->psum_words.array };
    return n;
}

/* {"file": "a_scale.npy"} or {"tensor": "a_scale"} */
static json_t *place(const char *tensor, const char *part, bool folder)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s%s", tensor, part, folder ? ".npy" : "");
    return json_pack("{s:s}", folder ? "file" : "tensor", name);
}

json_t *tensor_json(const char *name, const struct operand *o, bool folder)
{
    const ng_tensor *t = &o->view;
    char pattern[16];
    json_t *j = place(name, "", folder);
    json_object_set_new(j, "format", json_string(ng_format_info(t->format)->text));
    if (t->block) {
        json_t *s = place(name, "_scale", folder);
        json_object_set_new(s, "format", json_string(ng_format_info(t->scale_format)->text));
        json_object_set_new(s, "block", json_integer(t->block));
        json_object_set_new(s, "axis", json_integer(t->block_axis));
        json_object_set_new(s, "layout", json_string(layout_text(t->layout)));
        json_object_set_new(j, "scale", s);
    }
    if (t->sparse) {
        json_t *s = json_pack("{s:i,s:i,s:s}", "kept", (int)t->sparse->kept, "group",
                              (int)t->sparse->group, "store",
                              t->sparse->store == NG_TAG_TRN ? "trn" : "nv24");
        char tags[64];
        snprintf(tags, sizeof tags, "%s_tags%s", name, folder ? ".npy" : "");
        json_object_set_new(s, folder ? "tags" : "tensor", json_string(tags));
        json_object_set_new(j, "sparse", s);
    }
    if (t->tensor_scale) {
        snprintf(pattern, sizeof pattern, "0x%08x", (unsigned)t->tensor_scale);
        json_object_set_new(j, "tensor_scale", json_string(pattern));
    }
    return j;
}

/* A source as case.c reads it; `words` names the array of its words or states. */
static json_t *words_json(const ng_random *r, const char *words, bool folder)
{
    char text[2][16];
    if (r->kind == NG_RANDOM_EXTERNAL)
        return place(words, "", folder);
    json_t *g = json_object();
    if (r->first)
        json_object_set_new(g, "first", json_integer((json_int_t)r->first));
    if (r->kind == NG_RANDOM_PHILOX) {
        for (int i = 0; i < 2; i++)
            snprintf(text[i], sizeof text[i], "0x%08x", (unsigned)r->key[i]);
        json_object_set_new(g, "key", json_pack("[s,s]", text[0], text[1]));
    } else {
        json_object_set_new(g, "state", place(words, "", folder));
    }
    if (r->lanes)
        json_object_set_new(g, "lanes", json_integer(r->lanes));
    if (r->states)
        json_object_set_new(g, "states", json_integer(r->states));
    if (r->steps)
        json_object_set_new(g, "steps", json_integer(r->steps));
    if (r->kind == NG_RANDOM_LFSR32) {
        snprintf(text[0], sizeof text[0], "0x%08x", (unsigned)r->poly);
        json_object_set_new(g, "poly", json_string(text[0]));
    }
    return json_pack("{s:o}", words_kind_text(r->kind), g);
}

void set_cast(json_t *root, const char *key, const ng_cast *cast, const char *words,
              bool folder)
{
    json_t *j = cast_json(cast);
    if (!j)
        return;
    if (cast->random.kind)
        json_object_set_new(j, "words", words_json(&cast->random, words, folder));
    json_object_set_new(root, key, j);
}

json_t *fp4_json(const ng_gemm_op *op)
{
    json_t *codes = json_array();
    char text[8];
    for (int i = 0; i < FP4_CODES; i++) {
        snprintf(text, sizeof text, "0x%02x", op->fp4_map[i]);
        json_array_append_new(codes, json_string(text));
    }
    return json_pack("{s:s,s:o}", "format", ng_format_info(op->fp4_format)->text, "codes",
                     codes);
}

json_t *profile_json(const struct one_case *c)
{
    if (!c->owned)
        return json_string(c->profile->name);
    const size_t n = ng_profile_print(c->profile, NULL, 0);
    char *text = malloc(n + 1);
    if (!text)
        return NULL;
    ng_profile_print(c->profile, text, n + 1);
    json_t *j = json_pack("{s:s}", "text", text);
    free(text);
    return j;
}

static void set_multiply(const struct one_case *c, json_t *j, json_t *tensors, bool folder)
{
    char text[64];
    json_object_set_new(j, "profile", profile_json(c));
    json_object_set_new(tensors, "a", tensor_json("a", &c->a, folder));
    json_object_set_new(tensors, "b", tensor_json("b", &c->b, folder));
    if (c->c.present)
        json_object_set_new(tensors, "c", tensor_json("c", &c->c, folder));
    json_object_set_new(tensors, "d", tensor_json("d", &c->d, folder));
    if (c->gemm.accumulate)
        json_object_set_new(j, "accumulate",
                            json_string(ng_format_info(c->gemm.accumulate)->text));
    if (c->gemm.double_row)
        json_object_set_new(j, "double_row", json_true());
    if (c->gemm.out_scale) {
        snprintf(text, sizeof text, "0x%08x", (unsigned)c->gemm.out_scale);
        json_object_set_new(j, "out_scale", json_string(text));
    }
    if (c->gemm.fp4_map)
        json_object_set_new(j, "fp4_map", fp4_json(&c->gemm));
    set_cast(j, "out", &c->gemm.out, "out_words", folder);
    set_cast(j, "psum", &c->gemm.psum, "psum_words", folder);
}

static json_t *case_json(const struct one_case *c, bool folder)
{
    json_t *tensors = json_object(), *j = json_object();
    char text[64];
    if (c->name[0])
        json_object_set_new(j, "name", json_string(c->name));
    json_object_set_new(j, "op", json_string(op_text(c->op)));
    if (c->op <= OP_GEMM) {
        set_multiply(c, j, tensors, folder);
    } else {
        json_object_set_new(tensors, "src", tensor_json("src", &c->src, folder));
        json_object_set_new(tensors, "dst", tensor_json("dst", &c->dst, folder));
        set_cast(j, "cast", &c->convert.cast, "out_words", folder);
    }
    if (c->op == OP_QUANTIZE) {
        json_object_set_new(j, "rule", json_string(scale_rule_text(c->quantize.rule)));
        json_object_set_new(j, "special", json_string(block_special_text(c->quantize.special)));
        if (c->quantize.tensor_amax) {
            snprintf(text, sizeof text, "0x%08x", (unsigned)c->quantize.tensor_amax);
            json_object_set_new(j, "tensor_amax", json_string(text));
        }
    }
    json_object_set_new(j, "tensors", tensors);
    return json_pack("{s:s,s:[o]}", "schema", "ng.case/1", "cases", j);
}

static int stage_folder(struct io_files *files, const char *path, const struct one_case *c)
{
    struct io_error e;
    struct piece piece[MAX_PIECES];
    char file[2048];
    const size_t n = list_pieces(c, piece);
    for (size_t i = 0; i < n; i++) {
        snprintf(file, sizeof file, "%s/%s%s.npy", path, piece[i].tensor, piece[i].part);
        if (!npy_stage(files, file, piece[i].array, &e))
            return cli_file_error(&e);
    }
    json_t *root = case_json(c, true);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(root);
    if (!text)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    snprintf(file, sizeof file, "%s/case.json", path);
    const bool ok = io_stage(files, file, text, strlen(text), &e);
    free(text);
    return ok ? 0 : cli_file_error(&e);
}

int case_write_folder(const char *path, const struct one_case *c)
{
    struct io_files files = { .n = 0 };
    const bool made = mkdir(path, 0777) == 0;
    if (!made && errno != EEXIST)
        return cli_fail(EXIT_FILE, "%s: cannot make this folder: %s", path, strerror(errno));
    const int code = files_close(&files, stage_folder(&files, path, c));
    if (code && made)
        rmdir(path);
    return code;
}

const ng_rule *case_rule(const struct one_case *c, const ng_profile *profile, char *message,
                         size_t bytes)
{
    const ng_tensor *a = &c->a.view;
    const ng_mode mode = c->gemm.double_row            ? NG_MODE_DOUBLE_ROW
                         : !a->scale                   ? NG_MODE_PLAIN
                         : a->scale_format == NG_UE4M3 ? NG_MODE_NV
                                                       : NG_MODE_MX;
    return ng_profile_rule(profile, a->format, c->b.view.format, mode, message, bytes);
}

/* Metadata of a replayable file: what was computed, by which rule, under which hash. */
static size_t fill_meta(const struct one_case *c, char *case_text, struct st_meta *meta,
                        char *line, size_t line_bytes, char *hash, size_t hash_bytes)
{
    size_t n = 0;
    meta[n++] = (struct st_meta){ (char *)"ng.case", case_text };
    meta[n++] = (struct st_meta){ (char *)"ng.op", (char *)op_text(c->op) };
    meta[n++] = (struct st_meta){ (char *)"ng.version", (char *)ng_version() };
    if (c->op > OP_GEMM)
        return n;
    const ng_rule *rule = case_rule(c, c->profile, line, line_bytes);
    if (rule)
        ng_rule_print(c->profile, rule, line, line_bytes);
    snprintf(hash, hash_bytes, "%08x", ng_profile_hash(c->profile));
    meta[n++] = (struct st_meta){ (char *)"ng.profile", line };
    meta[n++] = (struct st_meta){ (char *)"ng.profile_hash", hash };
    return n;
}

int case_stage_st(struct io_files *files, const char *path, const struct one_case *c)
{
    struct io_error e;
    struct piece piece[MAX_PIECES];
    struct io_array array[MAX_PIECES];
    struct st_meta meta[8];
    char line[1024], hash[16];
    const size_t n = list_pieces(c, piece);
    for (size_t i = 0; i < n; i++) {
        array[i] = *piece[i].array;
        snprintf(array[i].name, sizeof array[i].name, "%s%s", piece[i].tensor, piece[i].part);
    }
    json_t *root = case_json(c, false);
    char *text = json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(root);
    if (!text)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    const struct st_file st = { .array = array,
                                .n_arrays = n,
                                .meta = meta,
                                .n_meta = fill_meta(c, text, meta, line, sizeof line, hash,
                                                    sizeof hash) };
    const bool ok = st_stage(files, path, &st, &e);
    free(text);
    return ok ? 0 : cli_file_error(&e);
}
