/* SPDX-License-Identifier: Apache-2.0 */
/* Cases from command lines, and their results. */
#include <stdlib.h>
#include <string.h>

#include "make_case.h"

static void set_text(json_t *object, const char *key, const char *text)
{
    json_object_set_new(object, key, text_json(text)); /* never left out: it must be refused */
}

/* A tensor's place: its file, and the spec of a raw one. */
static json_t *place_json(const struct file_name *f)
{
    json_t *place = json_object();
    set_text(place, "file", f->path);
    if (f->tensor)
        set_text(place, "tensor", f->tensor);
    if (f->type && strchr(f->type, ':'))
        set_text(place, "raw", f->type);
    return place;
}

/* The same with the format, which stands before the spec's dimensions. */
static json_t *typed_json(const struct file_name *f)
{
    json_t *t = place_json(f);
    if (f->type)
        json_object_set_new(t, "format", json_stringn(f->type, strcspn(f->type, ":")));
    return t;
}

/* FILE=FORMAT or FILE=FORMAT:DIMS[@OFFSET] */
static int set_tensor(struct builder *b, const char *name, const char *text)
{
    struct file_name f;
    int code = file_name_open(text, &f);
    if (!code && !f.type)
        code = cli_fail(EXIT_USAGE, "'%s' is not FILE=FORMAT: files are never typed by guess",
                        text);
    if (!code)
        json_object_set_new(b->tensors, name, typed_json(&f));
    file_name_close(&f);
    return code;
}

/* `key` is the option's name with '_' for '-'. */
static int set_integer(json_t *object, const char *key, const char *text)
{
    uint64_t v;
    char option[32];
    snprintf(option, sizeof option, "%s", key);
    for (char *c = option; *c; c++)
        *c = *c == '_' ? '-' : *c;
    if (!parse_u64(text, &v) || v > INT32_MAX)
        return cli_fail(EXIT_USAGE, "'%s' is no number for --%s", text, option);
    json_object_set_new(object, key, json_integer((json_int_t)v));
    return 0;
}

static void set_scale_file(struct builder *b, const char *tensor, const char *file)
{
    if (b->n_scale_files < 3) {
        b->scale_file[b->n_scale_files].tensor = tensor;
        b->scale_file[b->n_scale_files++].file = file;
    }
}

static void set_profile(struct builder *b, const char *name)
{
    if (ng_profile_find(name))
        set_text(b->one, "profile", name);
    else
        json_object_set_new(b->one, "profile", json_pack("{s:s}", "file", name));
}

/* A file, or a generator as in a case: {"philox": {"key": ["0x1", "0x2"]}} */
static int set_words(struct builder *b, const char *text)
{
    json_t *words =
        text[0] == '{' ? json_loads(text, 0, NULL) : json_pack("{s:s}", "file", text);
    if (!words)
        return cli_fail(EXIT_USAGE, "--words %s is no JSON", text);
    json_object_set_new(b->cast, "words", words);
    return 0;
}

/* FORMAT:CODE,CODE,.. */
static int set_fp4_map(struct builder *b, const char *text)
{
    const char *at = strchr(text, ':');
    json_t *codes = json_array();
    if (!at) {
        json_decref(codes);
        return cli_fail(EXIT_USAGE, "--fp4-map is '%.40s'; wanted: FORMAT:CODE,CODE,..", text);
    }
    json_t *map = json_pack("{s:s%,s:o}", "format", text, (size_t)(at - text), "codes", codes);
    while (*at) {
        const char *code = at + 1;
        at = code + strcspn(code, ",");
        json_array_append_new(codes, json_stringn(code, (size_t)(at - code)));
    }
    json_object_set_new(b->one, "fp4_map", map ? map : json_null());
    return 0;
}

int builder_option(struct builder *b, int o, const char *v)
{
    if (o >= OPT_OWN)
        b->seen |= (uint64_t)1 << (o - OPT_OWN);
    switch (o) {
    case OPT_PROFILE: set_profile(b, v); return 0;
    case OPT_SETTING: return settings_add(&b->set, v);
    case OPT_A: return set_tensor(b, "a", v);
    case OPT_B: return set_tensor(b, "b", v);
    case OPT_C: return set_tensor(b, "c", v);
    case OPT_SRC: return set_tensor(b, "src", v);
    case OPT_TO: set_text(b->root, "to", v); return 0;
    case OPT_A_SCALE: set_scale_file(b, "a", v); return 0;
    case OPT_B_SCALE: set_scale_file(b, "b", v); return 0;
    case OPT_SRC_SCALE: set_scale_file(b, "src", v); return 0;
    case OPT_ROUND: set_text(b->cast, "round", v); return 0;
    case OPT_OVERFLOW: set_text(b->cast, "overflow", v); return 0;
    case OPT_NAN_SIGN: set_text(b->cast, "nan_sign", v); return 0;
    case OPT_NAN_TO: set_text(b->cast, "nan_to", v); return 0;
    case OPT_WORDS: return set_words(b, v);
    case OPT_ACCUMULATE: set_text(b->one, "accumulate", v); return 0;
    case OPT_DOUBLE_ROW: json_object_set_new(b->one, "double_row", json_true()); return 0;
    case OPT_FP4_MAP: return set_fp4_map(b, v);
    case OPT_OUT_SCALE: set_text(b->one, "out_scale", v); return 0;
    case OPT_SCALE_FORMAT: set_text(b->scale, "format", v); return 0;
    case OPT_BLOCK: return set_integer(b->scale, "block", v);
    case OPT_AXIS: return set_integer(b->scale, "axis", v);
    case OPT_LAYOUT: set_text(b->scale, "layout", v); return 0;
    case OPT_RULE: set_text(b->one, "rule", v); return 0;
    case OPT_SPECIAL: set_text(b->one, "special", v); return 0;
    case OPT_SCALE_OUT: b->scale_out = v; return 0;
    case OPT_SCALE_STORE: set_text(b->scale, "store", v); return 0;
    case OPT_TILE_ROWS: return set_integer(b->scale, "tile_rows", v);
    case OPT_OFFSET: return set_integer(b->scale, "offset", v);
    case OPT_TENSOR_AMAX: set_text(b->one, "tensor_amax", v); return 0;
    case OPT_TENSOR_SCALE: b->tensor_scale = v; return 0;
    case OPT_SCALE: set_scale_file(b, "src", v); return 0;
    case OPT_TRANSPOSE: b->transpose = v; return 0;
    case OPT_TRANSPOSE_SCALE_OUT: b->transpose_scale = v; return 0;
    case OPT_TENSOR_NAME: b->tensor = v; return 0;
    case 'o': b->out = v; return 0;
    default: return EXIT_USAGE;
    }
}

/* Without --axis the blocks run along K, or along the last dimension. */
static void finish_scales(struct builder *b)
{
    for (int i = 0; i < b->n_scale_files; i++) {
        json_t *t = json_object_get(b->tensors, b->scale_file[i].tensor);
        json_t *s = json_deep_copy(b->scale);
        struct file_name f;
        if (file_name_open(b->scale_file[i].file, &f) || f.type) {
            set_text(s, "file", b->scale_file[i].file);
        } else {
            json_t *place = place_json(&f);
            json_object_update(s, place);
            json_decref(place);
        }
        file_name_close(&f);
        json_object_set_new(t, "scale", s);
    }
}

json_t *builder_json(struct builder *b, const char *op)
{
    const bool multiply = strcmp(op, "dot") == 0 || strcmp(op, "gemm") == 0;
    json_t *to = json_object_get(b->root, "to");
    json_t *out = json_pack("{s:O}", "format", to);
    if (strcmp(op, "quantize") == 0)
        json_object_set(out, "scale", b->scale);
    finish_scales(b);
    if (b->tensor_scale)
        set_text(json_object_get(b->tensors, "src"), "tensor_scale", b->tensor_scale);
    json_object_set_new(b->tensors, multiply ? "d" : "dst", out);
    return builder_case(b, op, multiply ? "out" : "cast");
}

struct builder builder_open(void)
{
    return (struct builder){ .root = json_object(),
                             .one = json_object(),
                             .tensors = json_object(),
                             .cast = json_object(),
                             .scale = json_object() };
}

void builder_close(struct builder *b)
{
    json_decref(b->root);
    json_decref(b->one);
    json_decref(b->tensors);
    json_decref(b->cast);
    json_decref(b->scale);
    json_decref(b->set);
}

bool is_safetensors(const char *path)
{
    return ends_in(path, ".safetensors");
}

/* The input without a FORMAT: a .npy with a sidecar, or a tensor of a safetensors file. */
static int untyped_tensor(struct builder *b, const char *name, const char *in,
                          const struct file_name *f)
{
    struct io_array a = { .data = NULL };
    const int code = array_load(in, b->tensor, false, &a);
    if (!code) {
        json_t *t = place_json(f);
        if (is_safetensors(f->path))
            set_text(t, "tensor", a.name);
        set_text(t, "format", io_type_name(a.format, 0));
        json_object_set_new(b->tensors, name, t);
    }
    io_array_free(&a);
    return code;
}

int builder_tensor(struct builder *b, const char *name, const char *in)
{
    struct file_name f;
    int code = file_name_open(in, &f);
    if (!code && f.tensor && b->tensor)
        code = cli_fail(EXIT_USAGE, "--tensor %s says nothing to %s, which names tensor %s",
                        b->tensor, in, f.tensor);
    if (!code && b->tensor)
        f.tensor = b->tensor;
    if (!code && !f.type)
        code = untyped_tensor(b, name, in, &f);
    else if (!code)
        json_object_set_new(b->tensors, name, typed_json(&f));
    file_name_close(&f);
    return code;
}

int builder_integers(struct builder *b, const char *name, const char *in)
{
    struct file_name f;
    int code = file_name_open(in, &f);
    if (!code && f.type && !strchr(f.type, ':'))
        code = cli_fail(EXIT_USAGE,
                        "%s are integers, so %s says nothing to %s; a raw file has "
                        "a spec, u32:DIMxDIM",
                        name, f.type, f.path);
    if (!code)
        json_object_set_new(b->tensors, name, place_json(&f));
    file_name_close(&f);
    return code;
}

int builder_scale(struct builder *b, const char *tensor, const char *in)
{
    struct file_name f;
    int code = file_name_open(in, &f);
    if (!code &&
        json_object_set_new(json_object_get(b->tensors, tensor), "scale", typed_json(&f)))
        code = cli_fail(EXIT_INTERNAL, "out of memory");
    file_name_close(&f);
    return code;
}

json_t *builder_case(struct builder *b, const char *op, const char *cast)
{
    set_text(b->one, "op", op);
    json_object_set(b->one, "tensors", b->tensors);
    if (json_object_size(b->cast))
        json_object_set(b->one, cast, b->cast);
    return json_pack("{s:s,s:[O]}", "schema", "ng.case/1", "cases", b->one);
}

/* ---- Computing and writing. ---- */

static int check_outputs(const struct outputs *to)
{
    const char *const path[] = { to->path, to->scale, to->transpose, to->transpose_scale };
    return check_writable(path, sizeof path / sizeof path[0]);
}

static int stage_result(const struct cli *cli, struct one_case *c, struct operand *out,
                        const struct outputs *to, struct io_files *files)
{
    struct operand *slot = case_output(c);
    int code;
    if (to->whole) {
        const struct operand keep = *slot; /* the shape without memory */
        *slot = *out;
        code = case_stage_st(files, to->path, c);
        *slot = keep;
    } else {
        code = array_stage(files, to->path, c->op <= OP_GEMM ? "d" : "dst", &out->data);
    }
    if (!code && out->scale.data && to->scale)
        code = scales_stage(cli, files, to->scale, out, &slot->place);
    return code;
}

static int stage_transpose(const struct cli *cli, const struct one_case *c,
                           const struct operand *turned, const struct outputs *to,
                           struct io_files *files)
{
    const int code = array_stage(files, to->transpose, "dst", &turned->data);
    return code ? code : scales_stage(cli, files, to->transpose_scale, turned, &c->dst.place);
}

/* The output's form for the transposed source; the block axis keeps its number. */
static int transposed_like(const struct one_case *c, struct operand *like)
{
    const ng_tensor *t = &c->dst.view;
    if (t->rank != 2)
        return cli_fail(EXIT_REFUSED, "src has rank %u; wanted for --transpose: a matrix",
                        t->rank);
    const int64_t dim[2] = { t->dim[1], t->dim[0] };
    *like = (struct operand){ .present = true, .place = c->dst.place };
    if (ng_tensor_init(&like->view, t->format, NULL, 2, dim))
        return cli_fail(EXIT_REFUSED, "the output %s is too large", io_shape(2, dim).text);
    like->view.scale_format = t->scale_format;
    like->view.block = t->block;
    like->view.block_axis = t->block_axis;
    like->view.layout = t->layout;
    return 0;
}

/* What case_compute() does, of the transpose too. */
static int compute_both(const struct cli *cli, const struct one_case *c, struct operand *out,
                        struct operand *turned)
{
    struct operand like;
    const int code = transposed_like(c, &like);
    if (code)
        return code;
    if (!operand_alloc_like(turned, &like, 0))
        return cli_fail(EXIT_INTERNAL, "out of memory");
    const ng_status s =
        ng_quantize_both(cli->ctx, &c->quantize, &c->src.view, &out->view, &turned->view);
    return s ? cli_refused(cli, s, "") : 0;
}

static int compute(const struct cli *cli, struct one_case *c, const struct outputs *to,
                   struct operand *out, struct operand *turned)
{
    if (to->transpose)
        return compute_both(cli, c, out, turned);
    const ng_status s = case_compute(cli, cli->ctx, c, out, true);
    return s ? cli_refused(cli, s, "") : 0;
}

/* Can the scales be put into the store that the case names? */
static int check_store(const struct one_case *c, const struct outputs *to)
{
    char why[200];
    struct operand turned;
    if (c->op != OP_QUANTIZE)
        return 0;
    if (!scales_bytes(&c->dst.view, &c->dst.place, why, sizeof why))
        return cli_fail(EXIT_REFUSED, "scales of dst: %s", why);
    const int code = to->transpose ? transposed_like(c, &turned) : 0;
    if (!code && to->transpose && !scales_bytes(&turned.view, &turned.place, why, sizeof why))
        return cli_fail(EXIT_REFUSED, "scales of the transpose: %s", why);
    return code;
}

static void add_scales(json_t *j, const struct one_case *c, const struct outputs *to)
{
    const struct operand *o = c->op == OP_QUANTIZE ? &c->dst : &c->src;
    const ng_tensor *t = &o->view;
    json_t *scales =
        json_pack("{s:s,s:i,s:i,s:s,s:s}", "format", ng_format_info(t->scale_format)->text,
                  "block", (int)t->block, "axis", (int)t->block_axis, "layout",
                  layout_text(t->layout), "store", scale_store_text(o->place.store));
    if (to->scale)
        json_object_set_new(scales, "written", text_json(to->scale));
    json_object_set_new(j, "scales", scales);
}

static json_t *report(const struct cli *cli, const struct one_case *c, const struct outputs *to,
                      const char *what, uint32_t tensor_scale, double seconds)
{
    json_t *j = json_pack("{s:s,s:s,s:s,s:o,s:I,s:s,s:f}", "schema", "ng.report/1", "op",
                          op_text(c->op), "what", what, "written", text_json(to->path),
                          "tensor_scale", (json_int_t)tensor_scale, "kernel",
                          ng_ctx_kernel(cli->ctx), "seconds", seconds);
    if (c->op == OP_QUANTIZE) {
        json_object_set_new(j, "rule", json_string(scale_rule_text(c->quantize.rule)));
        json_object_set_new(j, "special", json_string(block_special_text(c->quantize.special)));
    }
    if (c->op == OP_QUANTIZE || c->op == OP_DEQUANTIZE)
        add_scales(j, c, to);
    if (to->transpose)
        json_object_set_new(j, "transpose",
                            json_pack("{s:o,s:o}", "written", text_json(to->transpose),
                                      "scales_written", text_json(to->transpose_scale)));
    return j;
}

static void print_blocks(const struct one_case *c)
{
    const struct operand *o = c->op == OP_QUANTIZE ? &c->dst : &c->src;
    printf("blocks of %u along dimension %u, layout %s, scales stored %s\n", o->view.block,
           o->view.block_axis, layout_text(o->view.layout), scale_store_text(o->place.store));
}

static int say(const struct cli *cli, const struct one_case *c, const struct outputs *to,
               uint32_t tensor_scale, double seconds)
{
    char what[400];
    case_describe(c, what, sizeof what);
    if (cli->json)
        return cli_print_json(report(cli, c, to, what, tensor_scale, seconds));
    if (tensor_scale && !to->whole)
        printf("tensor scale 0x%08x\n", (unsigned)tensor_scale);
    if (cli->quiet)
        return 0;
    printf("%s\n", what);
    conversion_line(c, what, sizeof what);
    if (what[0])
        printf("%s\n", what);
    if (c->op == OP_QUANTIZE || c->op == OP_DEQUANTIZE)
        print_blocks(c);
    printf("written to %s", to->path);
    if (to->scale && c->op == OP_QUANTIZE)
        printf(", scales to %s", to->scale);
    if (to->transpose)
        printf(", the transpose to %s, its scales to %s", to->transpose, to->transpose_scale);
    printf(" (%s, %.2f s)\n", ng_ctx_kernel(cli->ctx), seconds);
    return 0;
}

int compute_and_write(const struct cli *cli, struct one_case *c, const struct outputs *to)
{
    struct operand out = { .present = false }, turned = { .present = false };
    struct io_files files = { .n = 0 };
    const double start = seconds_now();
    int code = case_shape_output(c);
    if (!code)
        code = check_store(c, to);
    if (code)
        return code;
    if (!operand_alloc_like(&out, case_output(c), 0))
        return cli_fail(EXIT_INTERNAL, "out of memory");
    code = check_outputs(to);
    if (!code)
        code = compute(cli, c, to, &out, &turned);
    if (!code)
        code = stage_result(cli, c, &out, to, &files);
    if (!code && to->transpose)
        code = stage_transpose(cli, c, &turned, to, &files);
    code = files_close(&files, code);
    if (!code)
        code = say(cli, c, to, out.view.tensor_scale, seconds_now() - start);
    operand_free(&out);
    operand_free(&turned);
    return code;
}
