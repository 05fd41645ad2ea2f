/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the schema ng.case/1. Unknown keys are errors: a misspelt one must not change a bit.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "reader.h"
#include "words.h"

static const char *const op_names[] = {
    "dot",   "gemm", "quantize",   "dequantize", "convert", "attention", "attention_backward",
    "route", "moe",  "all_reduce", NULL
};

const char *op_text(enum op op)
{
    return op_names[op];
}

bool reader_fail(struct reader *r, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->code = r->options ? cli_fail(EXIT_USAGE, "%s", text)
              : r->n     ? cli_fail(EXIT_FILE, "%s: case %d: %s", r->path, r->n, text)
                     : cli_fail(EXIT_FILE, "%s: %s", r->path, text); /* outside of its cases */
    return false;
}

struct code_text reader_name(const struct reader *r, const char *key)
{
    struct code_text t;
    snprintf(t.text, sizeof t.text, "%s%s", r->options ? "--" : "", key);
    for (char *c = t.text; r->options && *c; c++)
        *c = *c == '_' ? '-' : *c;
    return t;
}

static bool reader_fail_file(struct reader *r, const struct io_error *e)
{
    r->code = cli_file_error(e);
    return false;
}

static bool reader_no_key(struct reader *r, const char *key, const char *what,
                          const char *const *keys)
{
    char wanted[400] = "";
    size_t n = 0;
    for (int i = 0; keys[i] && n < sizeof wanted; i++)
        n += (size_t)snprintf(wanted + n, sizeof wanted - n, " %s", keys[i]);
    return reader_fail(r, "'%.60s' is no key of %s; wanted:%s", key, what, wanted);
}

/* Every key of `object` must be in the NULL-terminated list. */
bool reader_keys(struct reader *r, json_t *object, const char *what, const char *const *keys)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return reader_fail(r, "%s is not an object", what);
    json_object_foreach(object, key, value)
    {
        bool known = false;
        for (int i = 0; keys[i]; i++)
            known = known || strcmp(keys[i], key) == 0;
        if (!known)
            return reader_no_key(r, key, what, keys);
    }
    return true;
}

/* A string member; *text is NULL when it is absent. */
bool reader_string(struct reader *r, json_t *object, const char *key, const char **text)
{
    json_t *v = json_object_get(object, key);
    *text = json_string_value(v);
    return !v || *text || reader_fail(r, "%s is not a string", key);
}

bool reader_bool(struct reader *r, json_t *object, const char *key, bool *value)
{
    json_t *v = json_object_get(object, key);
    if (!v)
        return true;
    *value = json_is_true(v);
    return json_is_boolean(v) || reader_fail(r, "%s is not true or false", key);
}

bool reader_number(struct reader *r, json_t *object, const char *key, int64_t low, int64_t high,
                   int64_t *value)
{
    json_t *v = json_object_get(object, key);
    if (!v)
        return true;
    if (!json_is_integer(v) || json_integer_value(v) < low || json_integer_value(v) > high)
        return reader_fail(r, "%s is not a whole number from %lld to %lld", key, (long long)low,
                           (long long)high);
    *value = json_integer_value(v);
    return true;
}

/* Bit patterns are hex strings. */
bool reader_pattern(struct reader *r, json_t *object, const char *key, uint32_t *value)
{
    const char *text;
    uint64_t v = 0;
    if (!reader_string(r, object, key, &text))
        return false;
    if (text && (strncmp(text, "0x", 2) || !parse_u64(text, &v) || v > UINT32_MAX))
        return reader_fail(r, "%s is '%.40s'; wanted: a pattern, \"0x3f800000\"", key, text);
    if (text)
        *value = (uint32_t)v;
    return true;
}

bool reader_format(struct reader *r, json_t *object, const char *key, ng_format *format)
{
    const char *text;
    if (!reader_string(r, object, key, &text))
        return false;
    if (text) {
        *format = ng_format_find(text);
        if (!*format)
            return reader_fail(r, "%s is '%.40s', which is no format", key, text);
    }
    return true;
}

bool reader_real(struct reader *r, json_t *object, const char *key, uint32_t *value)
{
    json_t *v = json_object_get(object, key);
    if (!v || json_is_string(v))
        return reader_pattern(r, object, key, value);
    if (!json_is_number(v) || !number_f32(json_number_value(v), value))
        return reader_fail(r, "%s is neither a number nor a pattern, \"0x3f800000\"", key);
    return true;
}

bool reader_not_zero(struct reader *r, json_t *object, const char *key, uint32_t value,
                     const char *instead)
{
    return value || !json_object_get(object, key) ||
           reader_fail(r, "%s is 0 in FP32; wanted: another number, or %s", key, instead);
}

bool reader_choice(struct reader *r, json_t *object, const char *key, const char *names,
                   int *value)
{
    const char *text;
    if (!reader_string(r, object, key, &text))
        return false;
    const int found = text ? place_in(names, text) : *value;
    if (found < 0)
        return reader_fail(r, "%s is '%.40s'; wanted: one of %s", key, text, names);
    *value = found;
    return true;
}

/* ---- Arrays. ---- */

/* `to` := another shape of the same elements. */
static bool reshape(struct reader *r, const char *name, const json_t *shape,
                    struct io_array *to)
{
    struct io_error e;
    uint32_t rank;
    int64_t dim[NG_MAX_RANK];
    if (!shape)
        return true;
    if (!io_json_shape(shape, r->path, "", &rank, dim, &e))
        return reader_fail_file(r, &e);
    if (io_array_size(to->format, to->item_bits, rank, dim) != to->bytes)
        return reader_fail(r, "shape %s of %s does not fit the %zu bytes of its file (%s)",
                           io_shape(rank, dim).text, name, to->bytes,
                           io_shape(to->rank, to->dim).text);
    to->rank = rank;
    memcpy(to->dim, dim, sizeof dim);
    return true;
}

static bool copy_array(struct reader *r, const struct io_array *from, struct io_array *to)
{
    *to = *from;
    to->data = malloc(from->bytes);
    if (!to->data) {
        r->code = cli_fail(EXIT_INTERNAL, "out of memory");
        return false;
    }
    memcpy(to->data, from->data, from->bytes);
    return true;
}

static bool from_safetensors(struct reader *r, const struct st_file *st, const char *file,
                             const char *tensor, const char *name, ng_format format,
                             struct io_array *out)
{
    const bool plain = format == NG_FORMAT_NONE;
    const struct io_array *a = tensor ? st_find(st, tensor) : st_only(st, plain);
    if (!a && tensor)
        return reader_fail(r, "%s has no tensor '%.60s', which is %s%s%s", file, tensor, name,
                           st_why(st, tensor) ? ": " : "",
                           st_why(st, tensor) ? st_why(st, tensor) : "");
    if (!a)
        return reader_fail(r, "%s is one of the %zu tensors in %s (%s); wanted: %s", name,
                           st->n_arrays, file, st_names(st).text,
                           r->options ? "its name, FILE.safetensors:NAME" : "\"tensor\"");
    tensor = a->name;
    if (format && a->format != format)
        return reader_fail(r, "tensor '%.60s' in %s has format %s, but %s is %s", tensor, file,
                           io_type_name(a->format, a->item_bits), name,
                           io_type_name(format, 0));
    return copy_array(r, a, out);
}

static bool raw_array(struct reader *r, const char *path, const char *name, ng_format format,
                      bool plain, const json_t *shape, const char *raw, struct io_array *out)
{
    struct io_error e;
    char spec[200];
    uint32_t rank;
    int64_t dim[NG_MAX_RANK];
    if (raw) {
        struct raw_spec parts;
        if (r->options && !raw_parse_spec(raw, &parts, &e))
            return reader_fail(r, "%s", e.text);
        if (!raw_read(path, raw, out, &e))
            return reader_fail_file(r, &e);
        return out->format == format ||
               reader_fail(r, "%s is %s, but its raw spec says %s", name,
                           plain ? "integers" : io_type_name(format, 0), raw);
    }
    if (!shape || plain)
        return reader_fail(r,
                           "%s is '%.200s', neither .npy nor .safetensors, so raw; wanted: a "
                           "raw spec, %s:DIMxDIM..",
                           name, path, plain ? "u32" : io_type_name(format, 0));
    if (!io_json_shape(shape, r->path, "", &rank, dim, &e))
        return reader_fail_file(r, &e);
    int n = snprintf(spec, sizeof spec, "%s:", io_type_name(format, 0));
    for (uint32_t d = 0; d < rank; d++)
        n += snprintf(spec + n, sizeof spec - (size_t)n, "%s%lld", d ? "x" : "",
                      (long long)dim[d]);
    return raw_read(path, spec, out, &e) || reader_fail_file(r, &e);
}

/* Where a file of the case lies, malloc'ed; NULL after a report. */
static char *path_of(struct reader *r, const char *file)
{
    const size_t n = file[0] == '/' ? 0 : r->folder, bytes = n + strlen(file) + 1;
    char *path = malloc(bytes);
    if (path)
        snprintf(path, bytes, "%.*s%s", (int)n, r->path, file);
    else
        r->code = cli_fail(EXIT_INTERNAL, "out of memory");
    return path;
}

/* What belongs to other files than the one at hand must not look as if it were read. */
static bool no_idle_place(struct reader *r, const char *path, const char *name, bool raw_file,
                          const char *tensor, const json_t *shape, const char *raw)
{
    if (tensor && path && !ends_in(path, ".safetensors"))
        return reader_fail(r, "%s is tensor '%.60s' of %s; only a .safetensors has tensors",
                           name, tensor, path);
    if (raw && !raw_file)
        return reader_fail(r,
                           "%s has the raw spec %.80s, but %s has its own shape: a spec is of "
                           "raw files",
                           name, raw, path ? path : "a tensor");
    return !raw || !shape ||
           reader_fail(r, "%s has a shape beside its raw spec %.80s; wanted: one of them", name,
                       raw);
}

/* An array of a file: npy, safetensors with "tensor", raw with "shape" or "raw". */
static bool from_file(struct reader *r, json_t *object, const char *path, const char *name,
                      ng_format format, bool plain, struct io_array *out)
{
    struct io_error e;
    struct st_file st;
    const char *tensor = json_string_value(json_object_get(object, "tensor")),
               *raw = json_string_value(json_object_get(object, "raw"));
    const json_t *shape = json_object_get(object, "shape");
    const bool npy = ends_in(path, ".npy"), st_file = ends_in(path, ".safetensors");
    if (!no_idle_place(r, path, name, !npy && !st_file, tensor, shape, raw))
        return false;
    if (npy)
        return (npy_read(path, format, plain, out, &e) || reader_fail_file(r, &e)) &&
               reshape(r, name, shape, out);
    if (!st_file)
        return raw_array(r, path, name, format, plain, shape, raw, out);
    if (!st_read(path, &st, &e))
        return reader_fail_file(r, &e);
    const bool ok = from_safetensors(r, &st, path, tensor, name, format, out) &&
                    reshape(r, name, shape, out);
    st_free(&st);
    return ok;
}

/* One array: of a "file", or of a "tensor" of the case's own. */
bool reader_array(struct reader *r, json_t *object, const char *name, ng_format format,
                  bool plain, struct io_array *out)
{
    const char *file, *tensor, *raw;
    if (!reader_string(r, object, "file", &file) ||
        !reader_string(r, object, "tensor", &tensor) || !reader_string(r, object, "raw", &raw))
        return false;
    if (!file) {
        if (!r->st)
            return reader_fail(r, "%s has no \"file\"", name);
        return no_idle_place(r, NULL, name, false, tensor, NULL, raw) &&
               from_safetensors(r, r->st, r->path, tensor, name, format, out) &&
               reshape(r, name, json_object_get(object, "shape"), out);
    }
    char *path = path_of(r, file);
    const bool ok = path && from_file(r, object, path, name, format, plain, out);
    free(path);
    return ok;
}

/* ---- Tensors. ---- */

bool reader_has_data(struct reader *r, json_t *object)
{
    return json_object_get(object, "file") || (r->st && json_object_get(object, "tensor"));
}

/* "store": how the file holds the scales. */
static bool read_store(struct reader *r, json_t *object, struct scale_place *p)
{
    const char *text;
    int64_t rows = 128, offset = 0;
    if (!reader_string(r, object, "store", &text) ||
        !reader_number(r, object, "tile_rows", 8, 128, &rows) ||
        !reader_number(r, object, "offset", 0, 12, &offset))
        return false;
    if (text && !name_scale_store(text, &p->store))
        return reader_fail(r, "store is '%.40s'; wanted: linear, trn_sbuf or swizzle_128x4",
                           text);
    if (p->store != NG_SCALE_TRN_SBUF &&
        (json_object_get(object, "tile_rows") || json_object_get(object, "offset")))
        return reader_fail(r, "%s says nothing to store %s; it is of trn_sbuf",
                           json_object_get(object, "tile_rows") ? "tile_rows" : "offset",
                           scale_store_text(p->store));
    if (rows % 8)
        return reader_fail(r, "tile_rows is %lld; wanted: a multiple of 8 from 8 to 128",
                           (long long)rows);
    if (offset % 4)
        return reader_fail(r, "offset is %lld; wanted: 0, 4, 8 or 12", (long long)offset);
    p->tile_rows = (uint32_t)rows;
    p->offset = (uint32_t)offset;
    return true;
}

static bool axis_is_there(struct reader *r, const char *name, const ng_tensor *t)
{
    return t->block_axis < t->rank ||
           reader_fail(r, "blocks of %s run along dimension %u, but it has rank %u", name,
                       t->block_axis, t->rank);
}

/* The file must hold exactly the scales that the tensor needs, in its store. */
static bool check_scale_size(struct reader *r, const char *name, const struct operand *o,
                             size_t want)
{
    const ng_tensor *t = &o->view;
    const char *store = scale_store_text(o->place.store);
    if (o->scale.item_bits != 8 && o->place.store) {
        reader_fail(r, "scales of %s are %s; wanted in store %s: bytes", name,
                    io_type_name(o->scale.format, o->scale.item_bits), store);
    } else if (o->scale.bytes != want) {
        reader_fail(r,
                    "%s %s in blocks of %u along %u wants %zu scales%s%s, but the file has %zu",
                    name, io_shape(t->rank, t->dim).text, t->block, t->block_axis, want,
                    o->place.store ? " and padding in store " : "", o->place.store ? store : "",
                    o->scale.bytes);
    } else {
        return true;
    }
    r->code = EXIT_FILE; /* of an option too */
    return false;
}

/* Scales of another store become linear ones. */
static bool make_linear(struct reader *r, const char *name, struct operand *o)
{
    struct io_array a = scales_shape(&o->view, &(struct scale_place){ NG_SCALE_LINEAR, 0, 0 });
    ng_ctx *ctx = NULL;
    ng_status s = NG_ERR_MEMORY;
    a.data = malloc(a.bytes);
    if (a.data && ng_ctx_create(NULL, &ctx) == NG_OK)
        s = scales_load(ctx, &o->view, &o->place, o->scale.data, a.data);
    ng_ctx_destroy(ctx);
    if (s) {
        free(a.data);
        r->code = cli_fail(s == NG_ERR_MEMORY ? EXIT_INTERNAL : EXIT_REFUSED,
                           "scales of %s: %s", name, ng_status_name(s));
        return false;
    }
    io_array_free(&o->scale);
    o->scale = a;
    return true;
}

/* The scales of a tensor whose elements are there. A raw file without a shape has the one that
 * it must have. */
static bool read_scale_data(struct reader *r, json_t *object, const char *name,
                            struct operand *o)
{
    const bool plain = o->place.store != NG_SCALE_LINEAR; /* with padding: just bytes */
    const ng_format format = plain ? NG_FORMAT_NONE : o->view.scale_format;
    const char *file = json_string_value(json_object_get(object, "file"));
    char spec[40], why[200] = "";
    if (!axis_is_there(r, name, &o->view))
        return false;
    const size_t n = scales_bytes(&o->view, &o->place, why, sizeof why);
    if (!n)
        return reader_fail(r, "scales of %s: %s", name, why);
    if (!file || ends_in(file, ".npy") || ends_in(file, ".safetensors") ||
        json_object_get(object, "raw") || json_object_get(object, "shape")) {
        if (!reader_array(r, object, name, format, plain, &o->scale))
            return false;
    } else {
        snprintf(spec, sizeof spec, "%s:%zu", io_type_name(format, 8), n);
        json_t *whole = json_pack("{s:s,s:s}", "file", file, "raw", spec);
        const bool ok = reader_array(r, whole, name, format, plain, &o->scale);
        json_decref(whole);
        if (!ok)
            return false;
    }
    return check_scale_size(r, name, o, n) && (!plain || make_linear(r, name, o));
}

/* Which dimension from the end is K: of right sides, [.., K, N], the second. */
static uint32_t k_from_end(const struct reader *r, const char *name)
{
    const char *const right[] = { [OP_GEMM] = "b",
                                  [OP_ATTENTION] = "v",
                                  [OP_ATTENTION_BACKWARD] = "v",
                                  [OP_ROUTE] = "router",
                                  [OP_MOE] = "router gate up down" };
    const char *names = r->op <= OP_MOE ? right[r->op] : NULL;
    return names && place_in(names, name) >= 0 ? 2 : 1;
}

static bool read_scale(struct reader *r, json_t *object, const char *name, bool needed,
                       struct operand *o)
{
    static const char *const keys[] = { "file",  "tensor",    "format", "block",
                                        "axis",  "layout",    "shape",  "raw",
                                        "store", "tile_rows", "offset", NULL };
    ng_format format = NG_E8M0;
    int64_t block = 32, axis = (int64_t)o->view.rank - k_from_end(r, name);
    axis = !o->view.rank ? AXIS_LAST : axis < 0 ? 0 : axis;
    const char *text;
    ng_layout layout = NG_LAYOUT_LINEAR;
    if (!reader_keys(r, object, "scale", keys) ||
        !reader_format(r, object, "format", &format) ||
        !reader_number(r, object, "block", 1, 1 << 20, &block) ||
        !reader_number(r, object, "axis", 0, NG_MAX_RANK - 1, &axis) ||
        !reader_string(r, object, "layout", &text))
        return false;
    if (format != NG_E8M0 && format != NG_UE4M3)
        return reader_fail(r, "%s%s is %s; wanted: e8m0 or ue4m3",
                           r->options ? "--scale-format of " : "scale format of ", name,
                           io_type_name(format, 0));
    if (text && !name_layout(text, &layout))
        return reader_fail(r, "layout is '%.40s'; wanted: linear, trn_wrap or trn_1x32", text);
    o->view.scale_format = format;
    o->view.block = (uint32_t)block;
    o->view.block_axis = (uint32_t)axis;
    o->view.layout = layout;
    if (!read_store(r, object, &o->place))
        return false;
    if (!needed)
        return true;
    if (!reader_has_data(r, object))
        return reader_fail(r, "scale of %s has no \"file\"", name);
    if (!read_scale_data(r, object, name, o))
        return false;
    o->view.scale = o->scale.data;
    return true;
}

static bool read_sparse(struct reader *r, json_t *object, const char *name, struct operand *o)
{
    static const char *const keys[] = { "tags", "tensor", "kept", "group", "store", NULL };
    int64_t kept = 2, group = 4;
    const char *store, *tags;
    if (!reader_keys(r, object, "sparse", keys) ||
        !reader_number(r, object, "kept", 1, 16, &kept) ||
        !reader_number(r, object, "group", 1, 16, &group) ||
        !reader_string(r, object, "store", &store) || !reader_string(r, object, "tags", &tags))
        return false;
    const bool nv = store && strcmp(store, "nv24") == 0;
    if (store && !nv && strcmp(store, "trn"))
        return reader_fail(r, "store is '%.40s'; wanted: trn or nv24", store);
    json_t *file = tags ? json_pack("{s:s}", "file", tags)
                        : json_pack("{s:O}", "tensor", json_object_get(object, "tensor"));
    if (!file)
        return reader_fail(r, "sparse %s has no \"tags\"", name);
    const bool ok = reader_array(r, file, name, NG_FORMAT_NONE, true, &o->tags);
    json_decref(file);
    if (!ok)
        return false;
    o->sparse = (ng_sparse){ .kept = (uint32_t)kept,
                             .group = (uint32_t)group,
                             .store = nv ? NG_TAG_NV24 : NG_TAG_TRN,
                             .tags = o->tags.data };
    return true;
}

/* Lines of tags must be there for every line of the operand. */
static bool check_tags_size(struct reader *r, const char *name, const struct operand *o)
{
    const ng_tensor *t = &o->view;
    if (!o->tags.data)
        return true;
    const uint32_t from_end = k_from_end(r, name),
                   k_axis = t->rank - (from_end <= t->rank ? from_end : 1);
    int64_t lines = 1;
    for (uint32_t d = 0; d < t->rank; d++)
        lines *= d == k_axis ? 1 : t->dim[d];
    const int64_t slots = t->dim[k_axis];
    const int64_t line = (slots + 3) / 4 * (o->sparse.store == NG_TAG_TRN ? 2 : 1);
    return (int64_t)o->tags.bytes == lines * line ||
           reader_fail(r, "tags of %s are %zu bytes; wanted: %lld, %lld lines of %lld bytes",
                       name, o->tags.bytes, (long long)(lines * line), (long long)lines,
                       (long long)line);
}

bool reader_tensor(struct reader *r, json_t *object, const char *name, bool output,
                   struct operand *o)
{
    static const char *const keys[] = { "file",  "tensor", "format",       "shape", "raw",
                                        "scale", "sparse", "tensor_scale", NULL };
    ng_format format = NG_FORMAT_NONE;
    if (!reader_keys(r, object, name, keys) || !reader_format(r, object, "format", &format))
        return false;
    if (!format)
        return reader_fail(r, "%s has no \"format\"; files are never typed by guess", name);
    const bool needed = !output || r->outputs;
    o->view.format = format;
    if (needed && reader_has_data(r, object)) {
        if (!reader_array(r, object, name, format, false, &o->data))
            return false;
        const int64_t one = 1;
        const bool scalar = o->data.rank == 0;
        if (ng_tensor_init(&o->view, format, o->data.data, scalar ? 1 : o->data.rank,
                           scalar ? &one : o->data.dim))
            return reader_fail(r, "%s has a shape that is too large", name);
    } else if (needed) {
        return reader_fail(r, "%s has no \"file\"", name);
    }
    json_t *scale = json_object_get(object, "scale"),
           *sparse = json_object_get(object, "sparse");
    if ((scale && !read_scale(r, scale, name, needed, o)) ||
        (sparse && !read_sparse(r, sparse, name, o)) ||
        !reader_pattern(r, object, "tensor_scale", &o->view.tensor_scale) ||
        !reader_not_zero(r, object, "tensor_scale", o->view.tensor_scale,
                         "no tensor_scale for none"))
        return false;
    if (o->view.tensor_scale && !scale)
        return reader_fail(r, "tensor_scale says nothing to %s, which has no scale", name);
    o->present = true;
    return !o->data.data || check_tags_size(r, name, o);
}

/* ---- Roundings. ---- */

/* "state": "FILE", {"file": ..} or {"tensor": ..} */
static bool read_state(struct reader *r, json_t *object, struct words *w, ng_random *random)
{
    static const char *const keys[] = { "file", "tensor", NULL };
    json_t *state = json_object_get(object, "state");
    if (!state)
        return reader_fail(r, "%s has no \"state\"", words_kind_text(random->kind));
    json_t *place =
        json_is_string(state) ? json_pack("{s:O}", "file", state) : json_incref(state);
    const bool ok = reader_keys(r, place, "state", keys) &&
                    reader_array(r, place, "state", NG_FORMAT_NONE, true, &w->array);
    json_decref(place);
    if (!ok)
        return false;
    const char *why = words_state(random, &w->array);
    if (why)
        r->code = cli_fail(EXIT_FILE, "words: %s", why);
    return !why;
}

static bool read_key(struct reader *r, json_t *object, ng_random *random)
{
    json_t *key = json_object_get(object, "key");
    uint64_t v = 0;
    if (key && (!json_is_array(key) || json_array_size(key) != 2))
        return reader_fail(r, "key is not two patterns, [\"0x1\", \"0x2\"]");
    for (size_t i = 0; key && i < 2; i++) {
        const char *text = json_string_value(json_array_get(key, i));
        if (!text || !parse_u64(text, &v) || v > UINT32_MAX)
            return reader_fail(r, "key is not two patterns, [\"0x1\", \"0x2\"]");
        random->key[i] = (uint32_t)v;
    }
    return true;
}

/* {"philox": {..}}, {"xorwow": {..}} or {"lfsr32": {..}} */
static bool read_generator(struct reader *r, const char *name, json_t *object, struct words *w,
                           ng_random *random)
{
    static const char *const philox[] = { "key", "first", NULL };
    static const char *const xorwow[] = { "state", "lanes", "states", "first", NULL };
    static const char *const lfsr[] = { "state", "lanes", "poly", "steps", "first", NULL };
    int64_t first = 0, lanes = 0, states = 0, steps = 0;
    if (!reader_keys(r, object, name,
                     random->kind == NG_RANDOM_PHILOX   ? philox
                     : random->kind == NG_RANDOM_XORWOW ? xorwow
                                                        : lfsr) ||
        !reader_number(r, object, "first", 0, INT64_MAX, &first) ||
        !reader_number(r, object, "lanes", 1, 1 << 24, &lanes) ||
        !reader_number(r, object, "states", 1, 4, &states) ||
        !reader_number(r, object, "steps", 1, 32, &steps) ||
        !reader_pattern(r, object, "poly", &random->poly) || !read_key(r, object, random))
        return false;
    random->first = (uint64_t)first;
    random->lanes = (uint32_t)lanes;
    random->states = (uint32_t)states;
    random->steps = (uint32_t)steps;
    return random->kind == NG_RANDOM_PHILOX || read_state(r, object, w, random);
}

static bool read_words(struct reader *r, json_t *object, struct words *w, ng_cast *cast)
{
    json_t *words = json_object_get(object, "words"), *generator;
    static const char *const keys[] = { "file", "tensor", NULL };
    const char *name;
    if (!words)
        return true;
    if (json_object_size(words) == 1)
        json_object_foreach(words, name, generator)
        {
            ng_random random = { .kind = NG_RANDOM_NONE };
            if (!words_kind(name, &random.kind))
                continue;
            const bool ok = read_generator(r, name, generator, w, &random);
            cast->random = random;
            return ok;
        }
    if (!reader_keys(r, words, "words", keys))
        return false;
    if (!reader_array(r, words, "words", NG_FORMAT_NONE, true, &w->array))
        return false;
    if (w->array.item_bits != 32) {
        r->code = cli_fail(EXIT_FILE, "words are %u-bit integers; wanted: uint32",
                           w->array.item_bits);
        return false;
    }
    cast->random = (ng_random){ .kind = NG_RANDOM_EXTERNAL,
                                .word = w->array.data,
                                .count = (int64_t)(w->array.bytes / 4) };
    return true;
}

/* Random words, and how they are taken, are of stochastic rounding alone. */
static bool no_idle_words(struct reader *r, json_t *object, const char *what, ng_round round)
{
    static const char *const keys[] = { "words", "sr", "sr_bits", "sr_take" };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && round != NG_ROUND_STOCHASTIC; i++)
        if (json_object_get(object, keys[i]))
            return reader_fail(r, "%s says nothing to round %s%s%s; it is of sr",
                               reader_name(r, keys[i]).text, round_text(round),
                               r->options ? "" : " of ", r->options ? "" : what);
    return true;
}

bool reader_cast(struct reader *r, json_t *object, const char *what, ng_cast *cast,
                 struct words *w)
{
    static const char *const keys[] = { "round",   "overflow", "nan_sign", "nan_to", "sr",
                                        "sr_bits", "sr_take",  "words",    NULL };
    const char *text;
    int sign = 0, nan_to = 0, sr = 0, take = 0;
    int64_t bits = 0;
    if (!object)
        return true;
    if (!reader_keys(r, object, what, keys) || !reader_string(r, object, "round", &text))
        return false;
    if (text && !name_round(text, &cast->round))
        return reader_fail(r, "round is '%.40s'; wanted: rne rna rtz rdn rup rto or sr", text);
    if (!reader_string(r, object, "overflow", &text))
        return false;
    if (text && !name_overflow(text, &cast->overflow))
        return reader_fail(r, "overflow is '%.40s'; wanted: inf, sat or sat_keep_inf", text);
    if (!reader_choice(r, object, "nan_sign", "clear keep", &sign) ||
        !reader_choice(r, object, "nan_to", "max zero error", &nan_to) ||
        !reader_choice(r, object, "sr", "a b c", &sr) ||
        !reader_choice(r, object, "sr_take", "low high", &take) ||
        !reader_number(r, object, "sr_bits", 1, 32, &bits) ||
        !no_idle_words(r, object, what, cast->round))
        return false;
    cast->nan_sign = (ng_nan_sign)sign;
    cast->nan_to = (ng_nan_to)nan_to;
    cast->sr = (ng_sr)sr;
    cast->sr_take = (ng_sr_take)take;
    cast->sr_bits = (uint32_t)bits;
    return read_words(r, object, w, cast);
}

/* ---- FP4 tables. ---- */

bool reader_fp4_map(struct reader *r, json_t *object, ng_gemm_op *op, uint8_t *code)
{
    static const char *const keys[] = { "format", "codes", NULL };
    json_t *map = json_object_get(object, "fp4_map"), *codes = json_object_get(map, "codes");
    if (!map)
        return true;
    if (!reader_keys(r, map, "fp4_map", keys) ||
        !reader_format(r, map, "format", &op->fp4_format))
        return false;
    if (op->fp4_format != NG_E4M3FN && op->fp4_format != NG_E5M2)
        return reader_fail(r, "the format of fp4_map is '%s'; wanted: e4m3fn or e5m2",
                           op->fp4_format ? ng_format_info(op->fp4_format)->text : "(absent)");
    if (!json_is_array(codes) || json_array_size(codes) != FP4_CODES)
        return reader_fail(r, "fp4_map has %zu codes; wanted: %d, one for each code of e2m1",
                           json_array_size(codes), FP4_CODES);
    for (size_t i = 0; i < FP4_CODES; i++) {
        const char *text = json_string_value(json_array_get(codes, i));
        uint64_t v = 0;
        if (!text || strncmp(text, "0x", 2) != 0 || !parse_u64(text, &v) || v > UINT8_MAX)
            return reader_fail(r,
                               "code %zu of fp4_map is %s%.40s%s; wanted: \"0x00\" to \"0xff\"",
                               i, text ? "'" : "", text ? text : "no string", text ? "'" : "");
        code[i] = (uint8_t)v;
    }
    op->fp4_map = code;
    return true;
}

/* ---- Profiles. ---- */

static bool parse_profile(struct reader *r, const char *text, size_t n, struct one_case *c)
{
    char message[400] = "";
    const ng_status s = ng_profile_parse(text, n, &c->owned, message, sizeof message);
    c->profile = c->owned;
    if (s == NG_ERR_MEMORY) {
        r->code = cli_fail(EXIT_INTERNAL, "out of memory");
        return false;
    }
    return s == NG_OK || reader_fail(r, "profile: %s", message);
}

static bool profile_file(struct reader *r, const char *file, struct one_case *c)
{
    struct io_error e;
    void *data;
    size_t n;
    char *path = path_of(r, file);
    if (!path)
        return false;
    bool ok = io_read_file(path, 1 << 20, &data, &n, &e) || reader_fail_file(r, &e);
    if (ok) {
        ok = parse_profile(r, data, n, c);
        free(data);
    }
    free(path);
    return ok;
}

static bool profile_name(struct reader *r, const char *name, struct one_case *c)
{
    c->profile = ng_profile_find(name);
    return c->profile ||
           reader_fail(r, "'%.60s' is no built-in profile; see ngauge profile list", name);
}

/* ---- Values that a case sets in its profile. ---- */

/* Why ng_profile_set() refused. */
static bool bad_setting(struct reader *r, const ng_profile *p, const char *name,
                        const char *rule, const char *key, const char *value)
{
    char rules[300] = "";
    bool has_rule = false;
    int param = 0;
    for (size_t i = 0, n = 0; i < p->n_rules && n < sizeof rules; i++) {
        has_rule = has_rule || strcmp(p->rules[i].name, rule) == 0;
        n += (size_t)snprintf(rules + n, sizeof rules - n, " %s", p->rules[i].name);
    }
    while (param < NG_PARAM_COUNT && strcmp(ng_param_key((ng_param)param), key) != 0)
        param++;
    if (!has_rule)
        return reader_fail(r, "set has %.60s: %.60s has no such rule; wanted:%s", name, p->name,
                           rules);
    if (param == NG_PARAM_COUNT)
        return reader_fail(r, "set has %.60s: '%.60s' is no parameter; see ngauge profile keys",
                           name, key);
    char wanted[200];
    ng_param_values((ng_param)param, wanted, sizeof wanted);
    return reader_fail(r, "set has %.60s: '%.60s' is no value of it; wanted: %s", name, value,
                       wanted);
}

static bool set_one(struct reader *r, ng_profile *p, const char *name, json_t *value)
{
    const char *dot = strchr(name, '.');
    char rule[64], number[32];
    if (!dot || (size_t)(dot - name) >= sizeof rule)
        return reader_fail(r, "set has '%.60s'; wanted: RULE.KEY, as fp8.promote_every", name);
    snprintf(rule, sizeof rule, "%.*s", (int)(dot - name), name);
    if (!json_is_string(value) && !json_is_integer(value))
        return reader_fail(r, "%.60s of set is neither a string nor an integer", name);
    snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    const char *text = json_is_string(value) ? json_string_value(value) : number;
    return ng_profile_set(p, rule, dot + 1, text) == NG_OK ||
           bad_setting(r, p, name, rule, dot + 1, text);
}

/* Under a name of its own: NAME+set. */
static bool rename_profile(struct reader *r, const ng_profile *p, struct one_case *c)
{
    static const char word[] = "profile ", added[] = "+set";
    const size_t n = ng_profile_print(p, NULL, 0), bytes = n + sizeof added;
    char *text = malloc(n + 1), *other = malloc(bytes);
    bool ok = text && other;
    if (ok) {
        ng_profile_print(p, text, n + 1);
        const char *at = strstr(text, word);
        const size_t before = (size_t)(at - text) + strlen(word) + strlen(p->name);
        snprintf(other, bytes, "%.*s%s%s", (int)before, text, added, text + before);
        ng_profile_free(c->owned);
        c->owned = NULL;
        ok = parse_profile(r, other, strlen(other), c);
    } else {
        r->code = cli_fail(EXIT_INTERNAL, "out of memory");
    }
    free(text);
    free(other);
    return ok;
}

static bool set_all(struct reader *r, json_t *set, struct one_case *c)
{
    const char *name;
    json_t *value;
    char message[400] = "";
    if (!set)
        return true;
    if (!json_is_object(set))
        return reader_fail(r, "set of the profile is no object");
    ng_profile *p = ng_profile_copy(c->profile);
    bool ok = p != NULL;
    if (!p)
        r->code = cli_fail(EXIT_INTERNAL, "out of memory");
    json_object_foreach(set, name, value) ok = ok && set_one(r, p, name, value);
    if (ok && ng_profile_check(p, message, sizeof message) != NG_OK)
        ok = reader_fail(r, "with what is set the profile is inconsistent: %s", message);
    ok = ok && rename_profile(r, p, c);
    ng_profile_free(p);
    return ok;
}

bool reader_profile(struct reader *r, json_t *root, struct one_case *c)
{
    static const char *const keys[] = { "name", "file", "text", "set", NULL };
    const char *name, *text, *file;
    json_t *p = json_object_get(root, "profile");
    if (!p)
        return reader_fail(r, "a multiply needs a \"profile\"");
    if (json_is_string(p))
        return profile_name(r, json_string_value(p), c);
    if (!reader_keys(r, p, "profile", keys) || !reader_string(r, p, "name", &name) ||
        !reader_string(r, p, "text", &text) || !reader_string(r, p, "file", &file))
        return false;
    if ((name != NULL) + (text != NULL) + (file != NULL) != 1)
        return reader_fail(r, "profile has %s of \"name\", \"file\" and \"text\"; wanted: one",
                           name || text || file ? "several" : "none");
    json_t *set = json_object_get(p, "set");
    if (name)
        return profile_name(r, name, c) && set_all(r, set, c);
    if (text)
        return parse_profile(r, text, strlen(text), c) && set_all(r, set, c);
    if (r->options && !strpbrk(file, "./"))
        return reader_fail(
            r, "'%.60s' is no built-in profile and no file name; see ngauge profile list",
            file);
    return profile_file(r, file, c) && set_all(r, set, c);
}

int settings_add(json_t **set, const char *text)
{
    const char *equals = strchr(text, '=');
    if (!equals || !memchr(text, '.', (size_t)(equals - text)))
        return cli_fail(EXIT_USAGE, "--set is '%.60s'; wanted: RULE.KEY=VALUE", text);
    char *name = strndup(text, (size_t)(equals - text));
    if (!*set)
        *set = json_object();
    const bool ok = name && !json_object_set_new(*set, name, json_string(equals + 1));
    free(name);
    return ok ? 0 : cli_fail(EXIT_USAGE, "--set is '%.60s', which is no UTF-8", text);
}

/* --set: as if the case said it. */
static bool add_settings(struct reader *r, json_t *one)
{
    json_t *p = json_object_get(one, "profile");
    if (!r->set || !json_is_object(one))
        return true;
    if (!p)
        return reader_fail(r, "--set says nothing to it: it has no profile");
    json_t *whole = json_is_string(p) ? json_pack("{s:O}", "name", p) : json_deep_copy(p);
    json_t *set = json_object_get(whole, "set");
    if (!set)
        json_object_set_new(whole, "set", set = json_object());
    json_object_update(set, r->set);
    json_object_set_new(one, "profile", whole);
    return true;
}

/* ---- Operations. ---- */

static bool want_tensor(struct reader *r, json_t *tensors, const char *name, bool output,
                        struct operand *o)
{
    json_t *t = json_object_get(tensors, name);
    return t ? reader_tensor(r, t, name, output, o)
             : reader_fail(r, "tensors have no \"%s\"", name);
}

/* What is of other formats than those of the case. */
static bool no_idle_keys(struct reader *r, json_t *root, const struct one_case *c)
{
    const ng_format a = c->a.view.format, b = c->b.view.format;
    if (json_object_get(root, "psum") && c->gemm.accumulate != NG_BF16)
        return reader_fail(r, "psum says nothing to accumulate %s; it is of bf16",
                           c->gemm.accumulate ? ng_format_info(c->gemm.accumulate)->text
                                              : "f32");
    return !c->gemm.fp4_map || a == NG_E2M1 || b == NG_E2M1 ||
           reader_fail(r, "%s says nothing to a %s and b %s; it is of e2m1",
                       reader_name(r, "fp4_map").text, ng_format_info(a)->text,
                       ng_format_info(b)->text);
}

static bool read_multiply(struct reader *r, json_t *root, json_t *tensors, struct one_case *c)
{
    static const char *const names[] = { "a", "b", "c", "d", NULL };
    json_t *tc = json_object_get(tensors, "c");
    c->gemm.size = sizeof c->gemm;
    if (!reader_keys(r, tensors, "tensors", names) || !reader_profile(r, root, c) ||
        !want_tensor(r, tensors, "a", false, &c->a) ||
        !want_tensor(r, tensors, "b", false, &c->b) ||
        (tc && !reader_tensor(r, tc, "c", false, &c->c)) ||
        !want_tensor(r, tensors, "d", true, &c->d) ||
        !reader_format(r, root, "accumulate", &c->gemm.accumulate) ||
        !reader_bool(r, root, "double_row", &c->gemm.double_row) ||
        !reader_pattern(r, root, "out_scale", &c->gemm.out_scale) ||
        !reader_not_zero(r, root, "out_scale", c->gemm.out_scale, "no out_scale for none") ||
        !reader_fp4_map(r, root, &c->gemm, c->fp4) ||
        !reader_cast(r, json_object_get(root, "out"), "out", &c->gemm.out, &c->out_words) ||
        !reader_cast(r, json_object_get(root, "psum"), "psum", &c->gemm.psum, &c->psum_words) ||
        !no_idle_keys(r, root, c))
        return false;
    c->gemm.profile = c->profile;
    return true;
}

static bool read_other(struct reader *r, json_t *root, json_t *tensors, struct one_case *c)
{
    static const char *const names[] = { "src", "dst", NULL };
    const char *rule, *special;
    json_t *cast = json_object_get(root, "cast");
    c->quantize.size = sizeof c->quantize;
    c->convert.size = sizeof c->convert;
    if (!reader_keys(r, tensors, "tensors", names) ||
        !want_tensor(r, tensors, "src", false, &c->src) ||
        !want_tensor(r, tensors, "dst", true, &c->dst) ||
        !reader_string(r, root, "rule", &rule) ||
        !reader_string(r, root, "special", &special) ||
        !reader_pattern(r, root, "tensor_amax", &c->quantize.tensor_amax) ||
        !reader_not_zero(r, root, "tensor_amax", c->quantize.tensor_amax,
                         "no tensor_amax: it is found") ||
        !reader_cast(r, cast, "cast", &c->convert.cast, &c->out_words))
        return false;
    c->quantize.cast = c->convert.cast;
    if (c->op != OP_QUANTIZE)
        return true;
    if (!rule || !name_scale_rule(rule, &c->quantize.rule))
        return reader_fail(
            r,
            "rule is '%.40s'; wanted: floor floor_up1 ceil even rceil nvfp4_te or "
            "nvfp4_exact",
            rule ? rule : "(absent)");
    if (special && !name_block_special(special, &c->quantize.special))
        return reader_fail(r, "special is '%.40s'; wanted: element, nan_block or from_exponent",
                           special);
    if (json_object_get(cast, "overflow") && c->quantize.cast.overflow != NG_OVERFLOW_SATURATE)
        return reader_fail(r, "overflow %s says nothing to a quantize: its elements saturate",
                           overflow_text(c->quantize.cast.overflow));
    return c->dst.view.block || reader_fail(r, "dst of a quantize needs a \"scale\"");
}

/* A key that the operation would not read must not look as if it were read. */
static const char *const multiply_keys[] = { "name",    "comment",    "op",         "tensors",
                                             "profile", "accumulate", "double_row", "out",
                                             "psum",    "out_scale",  "fp4_map",    NULL };
static const char *const quantize_keys[] = { "name",    "comment",     "op",
                                             "tensors", "rule",        "cast",
                                             "special", "tensor_amax", NULL };
static const char *const convert_keys[] = { "name", "comment", "op", "tensors", "cast", NULL };
static const char *const *const case_keys[] = { multiply_keys, multiply_keys, quantize_keys,
                                                convert_keys, convert_keys };

static bool read_case(struct reader *r, json_t *root, struct one_case *c)
{
    const char *op, *name;
    int index = -1;
    if (!json_is_object(root))
        return reader_fail(r, "a case is not an object");
    if (!reader_string(r, root, "op", &op) || !reader_string(r, root, "name", &name))
        return false;
    for (int i = 0; op && op_names[i]; i++)
        if (strcmp(op_names[i], op) == 0)
            index = i;
    if (index < 0)
        return reader_fail(r,
                           "op is '%.40s'; wanted: dot, gemm, quantize, dequantize, convert, "
                           "attention, attention_backward, route, moe or all_reduce",
                           op ? op : "(absent)");
    c->op = r->op = (enum op)index;
    if (c->op <= OP_CONVERT && !reader_keys(r, root, op, case_keys[index]))
        return false;
    snprintf(c->name, sizeof c->name, "%s", name ? name : "");
    json_t *tensors = json_object_get(root, "tensors");
    if (c->op > OP_CONVERT)
        return block_read(r, root, c);
    return c->op <= OP_GEMM ? read_multiply(r, root, tensors, c)
                            : read_other(r, root, tensors, c);
}

/* The operands' views point into the case itself; it must not move after this. */
static void link_sparse(struct one_case *c)
{
    if (c->a.tags.data)
        c->a.view.sparse = &c->a.sparse;
    if (c->b.tags.data)
        c->b.view.sparse = &c->b.sparse;
}

static int read_cases(struct reader *r, json_t *root, struct case_list *list)
{
    static const char *const keys[] = { "schema", "cases", "comment", NULL };
    const char *schema;
    r->code = EXIT_FILE;
    if (!reader_keys(r, root, "the case file", keys) ||
        !reader_string(r, root, "schema", &schema))
        return r->code;
    if (!schema || strcmp(schema, "ng.case/1"))
        return cli_fail(EXIT_FILE, "%s: schema is '%.40s'; wanted: ng.case/1", r->path,
                        schema ? schema : "(absent)");
    json_t *cases = json_object_get(root, "cases");
    const size_t n = json_array_size(cases);
    if (!n)
        return cli_fail(EXIT_FILE, "%s: has no \"cases\"", r->path);
    list->item = calloc(n, sizeof *list->item);
    if (!list->item)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        r->n = (int)i + 1;
        list->n = i + 1;
        if (!add_settings(r, json_array_get(cases, i)) ||
            !read_case(r, json_array_get(cases, i), &list->item[i]))
            return r->code;
        link_sparse(&list->item[i]);
    }
    return 0;
}

static int read_json_case(struct reader *r, const char *path, struct case_list *list)
{
    struct io_error e;
    void *data;
    size_t n;
    if (!io_read_file(path, 16 << 20, &data, &n, &e))
        return cli_file_error(&e);
    json_t *root = io_json(data, n, path, "a case", &e);
    free(data);
    if (!root)
        return cli_file_error(&e);
    const char *slash = strrchr(path, '/');
    r->folder = slash ? (size_t)(slash - path) + 1 : 0;
    r->path = path;
    const int code = read_cases(r, root, list);
    json_decref(root);
    return code;
}

static int read_st_case(struct reader *r, const char *path, struct case_list *list)
{
    struct io_error e;
    struct st_file st;
    if (!st_read(path, &st, &e))
        return cli_file_error(&e);
    const char *text = st_meta_get(&st, "ng.case");
    json_t *root = text ? io_json(text, strlen(text), path, "metadata ng.case", &e) : NULL;
    int code;
    if (!text)
        code = cli_fail(EXIT_FILE,
                        "%s: has no metadata \"ng.case\", so it is no case; --dumps "
                        "compares two plain dumps",
                        path);
    else if (!root)
        code = cli_file_error(&e);
    else {
        r->path = path;
        r->st = &st;
        code = read_cases(r, root, list);
    }
    json_decref(root);
    st_free(&st);
    return code;
}

int case_read(const char *path, bool outputs, json_t *set, struct case_list *list)
{
    struct reader r = { .path = path, .outputs = outputs, .set = set };
    *list = (struct case_list){ NULL, 0 };
    if (ends_in(path, ".safetensors"))
        return read_st_case(&r, path, list);
    if (ends_in(path, ".json"))
        return read_json_case(&r, path, list);
    const size_t bytes = strlen(path) + sizeof "/case.json";
    char *inside = malloc(bytes);
    if (!inside)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    snprintf(inside, bytes, "%s%scase.json", path, ends_in(path, "/") ? "" : "/");
    const int code = read_json_case(&r, inside, list);
    free(inside);
    return code;
}

int case_from_json(json_t *root, bool outputs, json_t *set, struct case_list *list)
{
    struct reader r = {
        .path = "command line", .outputs = outputs, .options = true, .set = set
    };
    *list = (struct case_list){ NULL, 0 };
    return read_cases(&r, root, list);
}

void operand_free(struct operand *o)
{
    io_array_free(&o->data);
    io_array_free(&o->scale);
    io_array_free(&o->tags);
    *o = (struct operand){ .present = false };
}

void case_free(struct case_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        struct one_case *c = &list->item[i];
        struct operand *all[] = { &c->a, &c->b, &c->c, &c->d, &c->src, &c->dst };
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            operand_free(all[k]);
        io_array_free(&c->out_words.array);
        io_array_free(&c->psum_words.array);
        block_free(c->block);
        ng_profile_free(c->owned);
    }
    free(list->item);
    *list = (struct case_list){ NULL, 0 };
}
