/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors: 8 bytes of header length, a JSON header, a buffer. Source: the format section of
 * the safetensors README and its Rust reader, whose checks these are, and a few more.
 */
#include "io.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ST_HEADER_LIMIT  100000000u /* as the Rust reader */
#define ST_META          "__metadata__"
#define ST_PREFIX        "ng.format."
#define ST_DEPTH_LIMIT   4
#define ST_ITEMS_LIMIT   64
#define ST_MEMBERS_LIMIT 1000000 /* of all objects: four a tensor */

struct st_type {
    const char *name;
    ng_format format;
    uint32_t bits; /* of an element in the file */
};

/* The first row that fits is the one that is written. */
static const struct st_type st_types[] = {
    { "F32", NG_F32, 32 },
    { "F16", NG_F16, 16 },
    { "BF16", NG_BF16, 16 },
    { "F8_E5M2", NG_E5M2, 8 },
    { "F8_E4M3", NG_E4M3FN, 8 },
    { "F8_E8M0", NG_E8M0, 8 },
    { "F8_E5M2FNUZ", NG_E5M2FNUZ, 8 },
    { "F8_E4M3FNUZ", NG_E4M3FNUZ, 8 },
    { "F6_E3M2", NG_E3M2, 6 },
    { "F6_E2M3", NG_E2M3, 6 },
    { "F4", NG_E2M1, 4 },
    { "U8", NG_FORMAT_NONE, 8 },
    { "U16", NG_FORMAT_NONE, 16 },
    { "U32", NG_FORMAT_NONE, 32 },
    { "U64", NG_FORMAT_NONE, 64 },
    { "I8", NG_FORMAT_NONE, 8 },
    { "I16", NG_FORMAT_NONE, 16 },
    { "I32", NG_FORMAT_NONE, 32 },
    { "I64", NG_FORMAT_NONE, 64 },
};
#define ST_TYPES (sizeof st_types / sizeof st_types[0])

/* Of other types only the size is known. */
static const struct st_type st_others[] = {
    { "BOOL", NG_FORMAT_NONE, 8 },
    { "F64", NG_FORMAT_NONE, 64 },
    { "C64", NG_FORMAT_NONE, 64 },
};
#define ST_OTHERS (sizeof st_others / sizeof st_others[0])

/* One tensor of the header. Strings belong to the JSON. */
struct st_entry {
    const char *name;
    const struct st_type *type;
    ng_format format; /* the type's, or what the metadata say */
    uint32_t rank;
    int64_t dim[NG_MAX_RANK];
    uint64_t begin, end;
    char *why; /* it cannot be an array; malloc'ed. Then rank and dim are not set, type may be
                * NULL */
};

/* What the steps of a parse share. */
struct st_parse {
    const char *path;
    struct io_error *e;
    const unsigned char *buffer; /* in memory, or NULL: behind `skip` bytes of `file` */
    const struct io_file *file;
    uint64_t skip;
    size_t bytes; /* of the buffer */
    json_t *root;
    json_t *meta; /* or NULL; borrowed */
    struct st_entry *entry;
    size_t n;
};

/* The start of a message about one tensor. */
struct st_where {
    char text[96];
};
static struct st_where st_where(const char *name)
{
    struct st_where w;
    snprintf(w.text, sizeof w.text, "tensor '%.64s%s': ", name, strlen(name) > 64 ? "..." : "");
    return w;
}

/* ---- the header ---- */

/*
 * A JSON tree takes some twenty times the memory of its text, most of all for nested or long
 * arrays, which no header has. Those, and more members than any model's, are refused before the
 * tree is built.
 */
static bool st_scan(const char *text, size_t length, const char *path, struct io_error *e)
{
    unsigned depth = 0, items = 0, members = 0;
    bool string = false, array = false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (string) {
            i += c == '\\';
            string = c != '"';
        } else if (c == '"') {
            string = true;
        } else if (c == '{' || c == '[') {
            array = c == '[';
            items = 0;
            if (++depth > ST_DEPTH_LIMIT) {
                return io_fail(e, path, "the header nests deeper than %d at byte %zu",
                               ST_DEPTH_LIMIT, i);
            }
        } else if (c == '}' || c == ']') {
            array = false;
            depth -= depth > 0;
        } else if (c == ':' && ++members > ST_MEMBERS_LIMIT) {
            return io_fail(e, path, "the header has more than %d members", ST_MEMBERS_LIMIT);
        } else if (c == ',' && array && ++items > ST_ITEMS_LIMIT) {
            return io_fail(e, path, "the header has an array of more than %d items at byte %zu",
                           ST_ITEMS_LIMIT, i);
        }
    }
    return true;
}

/* The length of the header of a file of `bytes` bytes, of which p has the first 8 (or all). */
static bool st_header_length(struct st_parse *s, const unsigned char *p, size_t bytes,
                             size_t *length)
{
    uint64_t n = 0;
    if (bytes < 8) {
        return io_fail(s->e, s->path,
                       "is %zu bytes long, but a safetensors file begins with 8 bytes of "
                       "header length",
                       bytes);
    }
    for (int i = 7; i >= 0; i--) {
        n = n << 8 | p[i];
    }
    if (n > ST_HEADER_LIMIT || n > bytes - 8) {
        return io_fail(s->e, s->path,
                       "the header claims %" PRIu64 " bytes, but %s %" PRIu64 " %s", n,
                       n > ST_HEADER_LIMIT ? "at most" : "only",
                       n > ST_HEADER_LIMIT ? (uint64_t)ST_HEADER_LIMIT : (uint64_t)bytes - 8,
                       n > ST_HEADER_LIMIT ? "are allowed" : "follow");
    }
    *length = (size_t)n;
    s->skip = 8 + n;
    s->bytes = bytes - 8 - (size_t)n;
    return true;
}

static bool st_header_text_read(struct st_parse *s, const char *text, size_t n)
{
    if (n == 0 || text[0] != '{') {
        return io_fail(s->e, s->path, "the header does not begin with '{'");
    }
    if (!st_scan(text, n, s->path, s->e)) {
        return false;
    }
    s->root = io_json(text, n, s->path, "the header", s->e);
    return s->root != NULL;
}

static bool st_header(struct st_parse *s, const unsigned char *p, size_t bytes)
{
    size_t n = 0;
    if (!st_header_length(s, p, bytes, &n)) {
        return false;
    }
    s->buffer = p + s->skip;
    return st_header_text_read(s, (const char *)p + 8, n);
}

/* The same of a file, whose buffer stays where it is. */
static bool st_header_of_file(struct st_parse *s, const struct io_file *f)
{
    unsigned char length[8] = { 0 };
    size_t n, bytes = (size_t)f->bytes;
    if (!io_read_at(f, 0, length, bytes < 8 ? bytes : 8, s->e) ||
        !st_header_length(s, length, bytes, &n)) {
        return false;
    }
    char *text = malloc(n + 1);
    if (text == NULL) {
        return io_no_memory(s->e, s->path, "no memory for its header");
    }
    s->file = f;
    bool ok = io_read_at(f, 8, text, n, s->e) && st_header_text_read(s, text, n);
    free(text);
    return ok;
}

/* ---- one tensor ---- */

static const struct st_type *st_type_find(const struct st_type *type, size_t n,
                                          const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(type[i].name, name) == 0) {
            return &type[i];
        }
    }
    return NULL;
}

static char *st_copy(const char *text)
{
    size_t n = strlen(text) + 1;
    char *p = malloc(n);
    if (p != NULL) {
        memcpy(p, text, n);
    }
    return p;
}

static bool st_keys(struct st_parse *s, const char *where, json_t *json)
{
    const char *key;
    json_t *value;
    if (!json_is_object(json)) {
        return io_fail(s->e, s->path, "%sis not described by a JSON object", where);
    }
    json_object_foreach(json, key, value)
    {
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
            strcmp(key, "data_offsets") != 0) {
            return io_fail(s->e, s->path, "%shas the unknown key '%.40s'", where, key);
        }
    }
    static const char *const keys[3] = { "dtype", "shape", "data_offsets" };
    for (int i = 0; i < 3; i++) {
        if (json_object_get(json, keys[i]) == NULL) {
            return io_fail(s->e, s->path, "%shas no '%s'", where, keys[i]);
        }
    }
    return true;
}

static bool st_offsets(struct st_parse *s, const char *where, const json_t *json,
                       struct st_entry *t)
{
    const json_t *from = json_array_get(json, 0), *to = json_array_get(json, 1);
    if (json_array_size(json) != 2 || !json_is_integer(from) || !json_is_integer(to)) {
        return io_fail(s->e, s->path, "%sdata_offsets is not an array of two whole numbers",
                       where);
    }
    json_int_t begin = json_integer_value(from), end = json_integer_value(to);
    if (begin < 0 || end < begin) {
        return io_fail(s->e, s->path,
                       "%sdata_offsets [%" JSON_INTEGER_FORMAT ", %" JSON_INTEGER_FORMAT
                       "] are not 0 <= begin <= end",
                       where, begin, end);
    }
    if ((uint64_t)end > s->bytes) {
        return io_fail(s->e, s->path,
                       "%sdata_offsets [%" JSON_INTEGER_FORMAT ", %" JSON_INTEGER_FORMAT
                       "] end after the buffer of %zu bytes",
                       where, begin, end, s->bytes);
    }
    t->begin = (uint64_t)begin;
    t->end = (uint64_t)end;
    return true;
}

/* Dtype, shape and offsets must agree; the first two say what the third must cover. */
static bool st_size(struct st_parse *s, const char *where, const struct st_entry *t)
{
    const struct io_shape_text shape = io_shape(t->rank, t->dim);
    uint64_t bits = t->type->bits;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (bits > (uint64_t)INT64_MAX / (uint64_t)t->dim[i]) {
            return io_fail(s->e, s->path, "%s%s %s overflows 63 bits", where, t->type->name,
                           shape.text);
        }
        bits *= (uint64_t)t->dim[i];
    }
    if (bits % 8 != 0) {
        return io_fail(s->e, s->path,
                       "%s%s %s takes %" PRIu64 " bits, which is no whole number of bytes",
                       where, t->type->name, shape.text, bits);
    }
    if (t->end - t->begin != bits / 8) {
        return io_fail(s->e, s->path,
                       "%sdata_offsets [%" PRIu64 ", %" PRIu64 "] cover %" PRIu64
                       " bytes, but %s %s takes %" PRIu64,
                       where, t->begin, t->end, t->end - t->begin, t->type->name, shape.text,
                       bits / 8);
    }
    return true;
}

/* What a file may hold but no array here can be. */
static bool st_set_idle(struct st_parse *s, struct st_entry *t, const char *format, ...)
    IO_PRINTF(3, 4);
static bool st_set_idle(struct st_parse *s, struct st_entry *t, const char *format, ...)
{
    char text[240];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    t->why = st_copy(text);
    return t->why != NULL || io_fail(s->e, s->path, "no memory for its header");
}

/* A shape that no array has, though all its dimensions are numbers: too many, or a 0. */
static bool st_shape_is_idle(const json_t *shape, size_t *zero)
{
    const size_t n = json_array_size(shape);
    *zero = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0) {
            return false; /* io_json_shape() says what is wrong */
        }
        if (json_integer_value(d) == 0 && *zero == n) {
            *zero = i;
        }
    }
    return n > NG_MAX_RANK || *zero < n;
}

/* An idle tensor's bytes, where its dtype is known; offsets and order are checked of all. */
static bool st_idle_size(struct st_parse *s, const char *where, const struct st_entry *t,
                         const json_t *shape)
{
    uint64_t bits = t->type == NULL ? 0 : t->type->bits;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        const uint64_t d = (uint64_t)json_integer_value(json_array_get(shape, i));
        if (d != 0 && bits > (uint64_t)INT64_MAX / d) {
            return io_fail(s->e, s->path, "%s%s of its shape overflows 63 bits", where,
                           t->type->name);
        }
        bits *= d;
    }
    if (t->type != NULL && (bits % 8 != 0 || t->end - t->begin != bits / 8)) {
        return io_fail(s->e, s->path,
                       "%sdata_offsets [%" PRIu64 ", %" PRIu64 "] cover %" PRIu64
                       " bytes, but %s of its shape takes %" PRIu64 " bits",
                       where, t->begin, t->end, t->end - t->begin, t->type->name, bits);
    }
    return true;
}

/* Of a dtype that is none of ours, or of a shape that no array has. */
static bool st_idle_tensor(struct st_parse *s, const char *where, json_t *json,
                           const char *dtype, bool known, struct st_entry *t)
{
    const json_t *shape = json_object_get(json, "shape");
    size_t zero;
    if ((!st_shape_is_idle(shape, &zero) &&
         !io_json_shape(shape, s->path, where, &t->rank, t->dim, s->e)) ||
        !st_offsets(s, where, json_object_get(json, "data_offsets"), t) ||
        !st_idle_size(s, where, t, shape)) {
        return false;
    }
    if (!known) {
        return st_set_idle(s, t,
                           "dtype '%.40s' is none that is read here; wanted: F32, F16, BF16, "
                           "an F8, F6 or F4, U8 to U64 or I8 to I64",
                           dtype);
    }
    return zero < json_array_size(shape)
               ? st_set_idle(s, t,
                             "dimension %zu of the shape is 0, but empty tensors are not "
                             "supported",
                             zero)
               : st_set_idle(s, t, "the shape has %zu dimensions, but at most %d are read",
                             json_array_size(shape), NG_MAX_RANK);
}

/* A file packs the whole tensor; in memory every row starts on a byte. */
static bool st_rows(struct st_parse *s, struct st_entry *t)
{
    return t->type->bits != 4 || t->dim[t->rank - 1] % 2 == 0 ||
           st_set_idle(s, t,
                       "%s %s has an odd last dimension, so rows would begin inside a byte: "
                       "not supported",
                       t->type->name, io_shape(t->rank, t->dim).text);
}

static bool st_tensor(struct st_parse *s, const char *name, json_t *json, struct st_entry *t)
{
    const struct st_where where = st_where(name);
    struct io_array a;
    size_t zero;
    if (strlen(name) >= sizeof a.name) {
        return io_fail(s->e, s->path, "%sits name has %zu bytes, but at most %zu are read",
                       where.text, strlen(name), sizeof a.name - 1);
    }
    if (!st_keys(s, where.text, json)) {
        return false;
    }
    const char *dtype = json_string_value(json_object_get(json, "dtype"));
    const json_t *shape = json_object_get(json, "shape");
    if (dtype == NULL) {
        return io_fail(s->e, s->path, "%sdtype is not a string", where.text);
    }
    t->name = name;
    t->type = st_type_find(st_types, ST_TYPES, dtype);
    const bool known = t->type != NULL;
    if (!known || st_shape_is_idle(shape, &zero)) {
        t->type = known ? t->type : st_type_find(st_others, ST_OTHERS, dtype);
        return st_idle_tensor(s, where.text, json, dtype, known, t);
    }
    t->format = t->type->format;
    return io_json_shape(shape, s->path, where.text, &t->rank, t->dim, s->e) &&
           st_offsets(s, where.text, json_object_get(json, "data_offsets"), t) &&
           st_size(s, where.text, t) && st_rows(s, t);
}

/* ---- all tensors ---- */

static bool st_metadata(struct st_parse *s, json_t *meta)
{
    const char *key;
    json_t *value;
    if (!json_is_object(meta)) {
        return io_fail(s->e, s->path, "__metadata__ is not a JSON object");
    }
    json_object_foreach(meta, key, value)
    {
        if (!json_is_string(value)) {
            return io_fail(s->e, s->path, "__metadata__ has something but a string for '%.64s'",
                           key);
        }
    }
    s->meta = meta;
    return true;
}

static bool st_entries(struct st_parse *s)
{
    const char *key;
    json_t *value;
    json_object_foreach(s->root, key, value)
    {
        bool ok = strcmp(key, ST_META) == 0 ? st_metadata(s, value)
                                            : st_tensor(s, key, value, &s->entry[s->n++]);
        if (!ok) {
            return false;
        }
    }
    return true;
}

static int st_by_offset(const void *a, const void *b)
{
    const struct st_entry *x = a, *y = b;
    return x->begin != y->begin ? (x->begin > y->begin ? 1 : -1)
                                : (x->end > y->end) - (x->end < y->end);
}

/* Every byte of the buffer belongs to one tensor. */
static bool st_cover(struct st_parse *s)
{
    uint64_t at = 0;
    qsort(s->entry, s->n, sizeof *s->entry, st_by_offset);
    for (size_t i = 0; i < s->n; i++) {
        const struct st_entry *t = &s->entry[i];
        if (t->begin < at) {
            return io_fail(s->e, s->path,
                           "tensors '%.64s' [%" PRIu64 ", %" PRIu64 "] and '%.64s' [%" PRIu64
                           ", %" PRIu64 "] overlap",
                           t[-1].name, t[-1].begin, t[-1].end, t->name, t->begin, t->end);
        }
        if (t->begin > at) {
            return io_fail(s->e, s->path,
                           "bytes %" PRIu64 " to %" PRIu64
                           " of the buffer, before tensor '%.64s', belong to no tensor",
                           at, t->begin, t->name);
        }
        at = t->end;
    }
    if (at != s->bytes) {
        return io_fail(s->e, s->path,
                       "bytes %" PRIu64 " to %zu, the end of the buffer, belong to no tensor",
                       at, s->bytes);
    }
    return true;
}

/*
 * "ng.format.NAME" gives a format to an unsigned tensor; it may repeat a dtype, not change it.
 * Not to formats below 8 bits: their own dtypes pack them, and one code a byte would leave bits
 * that mean nothing.
 */
static bool st_retype(struct st_parse *s, struct st_entry *t)
{
    char key[sizeof ST_PREFIX + sizeof((struct io_array *)0)->name];
    snprintf(key, sizeof key, ST_PREFIX "%s", t->name);
    const char *text = json_string_value(json_object_get(s->meta, key));
    if (text == NULL) {
        return true;
    }
    const ng_format_spec *spec = ng_format_info(ng_format_find(text));
    if (spec == NULL) {
        return io_fail(s->e, s->path, "the metadata '%s' says '%.40s', which is no format", key,
                       text);
    }
    bool fits =
        t->type->format != NG_FORMAT_NONE
            ? t->type->format == spec->format
            : t->type->name[0] == 'U' && spec->bits >= 8 && t->type->bits == spec->store_bits;
    if (!fits) {
        return io_fail(s->e, s->path, "the metadata '%s' says %s, but its dtype is %s", key,
                       spec->text, t->type->name);
    }
    t->format = spec->format;
    return true;
}

static bool st_formats(struct st_parse *s)
{
    const char *key;
    json_t *value;
    const size_t n = strlen(ST_PREFIX);
    json_object_foreach(s->meta, key, value)
    {
        if (strncmp(key, ST_PREFIX, n) == 0 &&
            (strcmp(key + n, ST_META) == 0 || json_object_get(s->root, key + n) == NULL)) {
            return io_fail(s->e, s->path, "the metadata '%.140s' name no tensor", key);
        }
    }
    for (size_t i = 0; i < s->n; i++) {
        if (s->entry[i].why == NULL && !st_retype(s, &s->entry[i])) {
            return false;
        }
    }
    return true;
}

/* ---- into memory ---- */

/* 4 codes in 3 bytes, the first in the lowest bits. */
static void st_unpack6(const unsigned char *from, unsigned char *codes, size_t n)
{
    for (size_t i = 0; i < n; i += 4, from += 3) {
        uint32_t w = from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16;
        for (size_t k = 0; k < 4; k++) {
            codes[i + k] = (w >> (6 * k)) & 0x3f;
        }
    }
}

/* Bits above the sixth are no part of a code, and are dropped. */
static void st_pack6(const unsigned char *codes, unsigned char *to, size_t n)
{
    for (size_t i = 0; i < n; i += 4, to += 3) {
        uint32_t w = 0;
        for (size_t k = 0; k < 4; k++) {
            w |= (codes[i + k] & 0x3fu) << (6 * k);
        }
        to[0] = w & 0xff;
        to[1] = (w >> 8) & 0xff;
        to[2] = (w >> 16) & 0xff;
    }
}

/* The n bytes of a tensor as they are in the buffer. */
static bool st_fetch(struct st_parse *s, const struct st_entry *t, void *to, size_t n)
{
    if (s->buffer == NULL) {
        return io_read_at(s->file, s->skip + t->begin, to, n, s->e);
    }
    memcpy(to, s->buffer + t->begin, n);
    return true;
}

static bool st_load(struct st_parse *s, const struct st_entry *t, struct io_array *a)
{
    const ng_format_spec *spec = ng_format_info(t->format);
    snprintf(a->name, sizeof a->name, "%s", t->name);
    a->format = t->format;
    a->item_bits = spec != NULL ? spec->store_bits : t->type->bits;
    a->rank = t->rank;
    memcpy(a->dim, t->dim, sizeof a->dim);
    a->bytes = io_array_size(a->format, a->item_bits, a->rank, a->dim);
    size_t filed = (size_t)(t->end - t->begin);
    if (a->bytes != (t->type->bits == 6 ? filed / 3 * 4 : filed)) {
        return io_fail(s->e, s->path, "tensor '%s' takes %zu bytes in memory and %zu here",
                       t->name, a->bytes, filed);
    }
    a->data = malloc(a->bytes);
    if (a->data == NULL) {
        return io_no_memory(s->e, s->path, "no memory for the %zu bytes of tensor '%s'",
                            a->bytes, t->name);
    }
    /* 6-bit codes wait at the end of the room that they are unpacked into. */
    unsigned char *filed_at = (unsigned char *)a->data + (a->bytes - filed);
    if (!st_fetch(s, t, filed_at, filed)) {
        return false;
    }
    if (t->type->bits == 6) {
        st_unpack6(filed_at, a->data, a->bytes);
    }
    return true;
}

/* The dtype of an array: its format's own, or unsigned integers as wide. */
static const struct st_type *st_type_of(const struct io_array *a)
{
    for (size_t i = 0; i < ST_TYPES; i++) {
        if (a->format != NG_FORMAT_NONE && st_types[i].format == a->format) {
            return &st_types[i];
        }
    }
    for (size_t i = 0; i < ST_TYPES; i++) {
        if (st_types[i].format == NG_FORMAT_NONE && st_types[i].bits == a->item_bits) {
            return &st_types[i];
        }
    }
    return NULL;
}

/* An idle tensor goes on as the name and the reason. */
static bool st_load_idle(struct st_parse *s, struct st_entry *t, struct st_idle *idle)
{
    idle->name = st_copy(t->name);
    idle->why = t->why;
    t->why = NULL;
    return idle->name != NULL || io_fail(s->e, s->path, "no memory for its header");
}

/* Is the tensor of like's name what `like` says? */
static bool st_entry_is(struct st_parse *s, const struct st_entry *t,
                        const struct io_array *like)
{
    const struct st_where where = st_where(like->name);
    if (t->why != NULL) {
        return io_fail(s->e, s->path, "%s%s", where.text, t->why);
    }
    if (t->format == like->format &&
        (t->format != NG_FORMAT_NONE || t->type->bits == like->item_bits) &&
        t->rank == like->rank &&
        memcmp(t->dim, like->dim, like->rank * sizeof *like->dim) == 0) {
        return true;
    }
    return io_fail(s->e, s->path, "%sit is %s %s; wanted: %s %s", where.text, t->type->name,
                   io_shape(t->rank, t->dim).text, st_type_of(like)->name,
                   io_shape(like->rank, like->dim).text);
}

static const struct st_entry *st_entry_find(const struct st_parse *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++) {
        if (strcmp(s->entry[i].name, name) == 0) {
            return &s->entry[i];
        }
    }
    return NULL;
}

static bool st_load_meta(struct st_parse *s, struct st_file *file)
{
    const char *key;
    json_t *value;
    if (json_object_size(s->meta) == 0) {
        return true;
    }
    file->meta = calloc(json_object_size(s->meta), sizeof *file->meta);
    if (file->meta == NULL) {
        return io_no_memory(s->e, s->path, "no memory for the metadata");
    }
    json_object_foreach(s->meta, key, value)
    {
        if (strncmp(key, ST_PREFIX, strlen(ST_PREFIX)) == 0) {
            continue; /* lives on as the array's format */
        }
        struct st_meta *m = &file->meta[file->n_meta++];
        m->key = st_copy(key);
        m->value = st_copy(json_string_value(value));
        if (m->key == NULL || m->value == NULL) {
            return io_no_memory(s->e, s->path, "no memory for the metadata");
        }
    }
    return true;
}

static bool st_load_all(struct st_parse *s, struct st_file *out)
{
    struct st_file file;
    memset(&file, 0, sizeof file);
    bool ok = true;
    if (s->n > 0) {
        file.array = calloc(s->n, sizeof *file.array);
        file.idle = calloc(s->n, sizeof *file.idle);
        ok = (file.array != NULL && file.idle != NULL) ||
             io_no_memory(s->e, s->path, "no memory for %zu tensors", s->n);
    }
    for (size_t i = 0; ok && i < s->n; i++) {
        struct st_entry *t = &s->entry[i];
        ok = t->why != NULL ? st_load_idle(s, t, &file.idle[file.n_idle++])
                            : st_load(s, t, &file.array[file.n_arrays++]);
    }
    if (ok && st_load_meta(s, &file)) {
        *out = file;
        return true;
    }
    st_free(&file);
    return false;
}

/* What the header says, checked; st_end() in any case. */
static bool st_check_header(struct st_parse *s)
{
    s->entry = calloc(json_object_size(s->root) + 1, sizeof *s->entry);
    bool ok = s->entry != NULL || io_no_memory(s->e, s->path, "no memory for its header");
    return ok && st_entries(s) && st_cover(s) && st_formats(s);
}

static void st_end(struct st_parse *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->entry[i].why);
    }
    free(s->entry);
    json_decref(s->root);
}

bool st_parse(const void *data, size_t bytes, const char *path, struct st_file *out,
              struct io_error *e)
{
    struct st_parse s = { .path = path, .e = e };
    bool ok = st_header(&s, data, bytes) && st_check_header(&s) && st_load_all(&s, out);
    st_end(&s);
    return ok;
}

/* Those tensors of a checked header that `like` names, as it says they are; what the file has
 * not stays empty. */
static bool st_load_some(struct st_parse *s, const struct io_array *like, size_t n,
                         struct st_file *out)
{
    struct st_file file;
    memset(&file, 0, sizeof file);
    file.array = calloc(n + 1, sizeof *file.array);
    bool ok = file.array != NULL || io_no_memory(s->e, s->path, "no memory for %zu tensors", n);
    for (size_t i = 0; ok && i < n; i++) {
        const struct st_entry *t = st_entry_find(s, like[i].name);
        struct io_array *a = &file.array[file.n_arrays++];
        ok = t == NULL || (st_entry_is(s, t, &like[i]) && st_load(s, t, a));
    }
    if (ok) {
        *out = file;
    } else {
        st_free(&file);
    }
    return ok;
}

bool st_parse_some(const void *data, size_t bytes, const char *path,
                   const struct io_array *like, size_t n, struct st_file *out,
                   struct io_error *e)
{
    struct st_parse s = { .path = path, .e = e };
    bool ok =
        st_header(&s, data, bytes) && st_check_header(&s) && st_load_some(&s, like, n, out);
    st_end(&s);
    return ok;
}

bool st_read_some(const char *path, const struct io_array *like, size_t n, struct st_file *out,
                  struct io_error *e)
{
    struct st_parse s = { .path = path, .e = e };
    struct io_file f;
    if (!io_open(path, &f, e)) {
        return false;
    }
    bool ok =
        st_header_of_file(&s, &f) && st_check_header(&s) && st_load_some(&s, like, n, out);
    st_end(&s);
    io_close(&f);
    return ok;
}

bool st_read(const char *path, struct st_file *out, struct io_error *e)
{
    void *data;
    size_t bytes;
    if (!io_read_file(path, 0, &data, &bytes, e)) {
        return false;
    }
    bool ok = st_parse(data, bytes, path, out, e);
    free(data);
    return ok;
}

void st_free(struct st_file *file)
{
    for (size_t i = 0; i < file->n_arrays; i++) {
        io_array_free(&file->array[i]);
    }
    for (size_t i = 0; i < file->n_idle; i++) {
        free(file->idle[i].name);
        free(file->idle[i].why);
    }
    for (size_t i = 0; i < file->n_meta; i++) {
        free(file->meta[i].key);
        free(file->meta[i].value);
    }
    free(file->array);
    free(file->idle);
    free(file->meta);
    memset(file, 0, sizeof *file);
}

const struct io_array *st_find(const struct st_file *file, const char *name)
{
    for (size_t i = 0; i < file->n_arrays; i++) {
        if (strcmp(file->array[i].name, name) == 0) {
            return &file->array[i];
        }
    }
    return NULL;
}

const struct io_array *st_only(const struct st_file *file, bool plain)
{
    const struct io_array *only = NULL;
    for (size_t i = 0; i < file->n_arrays; i++) {
        const struct io_array *a = &file->array[i];
        if (file->n_arrays > 1 && (a->format == NG_FORMAT_NONE) != plain) {
            continue;
        }
        if (only != NULL) {
            return NULL;
        }
        only = a;
    }
    return only;
}

const char *st_why(const struct st_file *file, const char *name)
{
    for (size_t i = 0; i < file->n_idle; i++) {
        if (name == NULL || strcmp(file->idle[i].name, name) == 0) {
            return file->idle[i].why;
        }
    }
    return NULL;
}

struct st_names st_names(const struct st_file *file)
{
    struct st_names s = { "" };
    size_t n = 0;
    for (size_t i = 0; i < file->n_arrays; i++) {
        const char *name = file->array[i].name;
        if (n + strlen(name) + 6 > sizeof s.text) {
            snprintf(s.text + n, sizeof s.text - n, "%s", n > 0 ? ", .." : "..");
            break;
        }
        n += (size_t)snprintf(s.text + n, sizeof s.text - n, "%s%s", i > 0 ? ", " : "", name);
    }
    return s;
}

const char *st_meta_get(const struct st_file *file, const char *key)
{
    for (size_t i = 0; i < file->n_meta; i++) {
        if (strcmp(file->meta[i].key, key) == 0) {
            return file->meta[i].value;
        }
    }
    return NULL;
}

/* ---- writing ---- */

static size_t st_filed(const struct io_array *a)
{
    return st_type_of(a)->bits == 6 ? a->bytes / 4 * 3 : a->bytes;
}

static bool st_check(const struct io_array *a, const char *path, struct io_error *e)
{
    if (memchr(a->name, 0, sizeof a->name) == NULL) {
        return io_fail(e, path, "a tensor's name has no end");
    }
    if (!io_array_check(a, path, e)) {
        return false;
    }
    const struct st_where where = st_where(a->name);
    const struct st_type *type = st_type_of(a);
    const struct io_shape_text shape = io_shape(a->rank, a->dim);
    if (strcmp(a->name, ST_META) == 0) {
        return io_fail(e, path, "%sthis name is the format's own", where.text);
    }
    if (type->bits == 4 && (a->rank == 0 || a->dim[a->rank - 1] % 2 != 0)) {
        return io_fail(e, path, "%s%s %s has an odd last dimension, which is not supported",
                       where.text, type->name, shape.text);
    }
    if (type->bits == 6 && a->bytes % 4 != 0) {
        return io_fail(e, path,
                       "%s%s %s has %zu elements, but a multiple of 4 is wanted: their bits "
                       "must be whole bytes",
                       where.text, type->name, shape.text, a->bytes);
    }
    return true;
}

/* Adds one tensor to the header, and its format to the metadata when the dtype does not say. */
static bool st_describe(json_t *root, json_t *meta, const struct io_array *a, size_t begin,
                        const char *path, struct io_error *e)
{
    const struct st_where where = st_where(a->name);
    const struct st_type *type = st_type_of(a);
    if (json_object_get(root, a->name) != NULL) {
        return io_fail(e, path, "%sthere are two of this name", where.text);
    }
    json_t *shape = json_array();
    for (uint32_t i = 0; i < a->rank; i++) {
        json_array_append_new(shape, json_integer(a->dim[i]));
    }
    json_t *t = json_pack("{s:s, s:o, s:[I, I]}", "dtype", type->name, "shape", shape,
                          "data_offsets", (json_int_t)begin, (json_int_t)(begin + st_filed(a)));
    bool ok = t != NULL && json_array_size(shape) == a->rank &&
              json_object_set_new(root, a->name, t) == 0;
    if (ok && type->format != a->format) {
        char key[sizeof ST_PREFIX + sizeof a->name];
        snprintf(key, sizeof key, ST_PREFIX "%s", a->name);
        ok = json_object_set_new(meta, key, json_string(io_type_name(a->format, 0))) == 0;
    }
    return ok || io_fail(e, path, "%sits name is not UTF-8, or memory is short", where.text);
}

static bool st_describe_meta(json_t *meta, const struct st_file *file, const char *path,
                             struct io_error *e)
{
    for (size_t i = 0; i < file->n_meta; i++) {
        const struct st_meta *m = &file->meta[i];
        if (strncmp(m->key, ST_PREFIX, strlen(ST_PREFIX)) == 0) {
            return io_fail(e, path, "the metadata '%.140s' are written by the writer only",
                           m->key);
        }
        if (json_object_get(meta, m->key) != NULL) {
            return io_fail(e, path, "the metadata have '%.64s' twice", m->key);
        }
        if (json_object_set_new(meta, m->key, json_string(m->value)) != 0) {
            return io_fail(e, path, "the metadata '%.64s' are not UTF-8, or memory is short",
                           m->key);
        }
    }
    return true;
}

/* Wide elements first: then every offset is a multiple of its element's size. */
static void st_sort(const struct st_file *file, const struct io_array **order)
{
    size_t n = 0;
    for (uint32_t bits = 64; bits >= 4; bits--) {
        for (size_t i = 0; i < file->n_arrays; i++) {
            if (st_type_of(&file->array[i])->bits == bits) {
                order[n++] = &file->array[i];
            }
        }
    }
}

/* The header text, and the buffer's length. */
static char *st_header_text(const struct st_file *file, const struct io_array **order,
                            const char *path, size_t *buffer, struct io_error *e)
{
    json_t *root = json_object(), *meta = json_object();
    char *text = NULL;
    size_t at = 0;
    bool ok = root != NULL && meta != NULL && json_object_set(root, ST_META, meta) == 0;
    if (!ok) {
        io_no_memory(e, path, "no memory for its header");
    }
    ok = ok && st_describe_meta(meta, file, path, e);
    for (size_t i = 0; ok && i < file->n_arrays; i++) {
        ok = st_describe(root, meta, order[i], at, path, e);
        at += st_filed(order[i]);
    }
    if (ok && json_object_size(meta) == 0) {
        json_object_del(root, ST_META);
    }
    if (ok && (text = json_dumps(root, JSON_COMPACT)) == NULL) {
        io_no_memory(e, path, "no memory for its header");
    }
    json_decref(root);
    json_decref(meta);
    *buffer = at;
    return text;
}

static bool st_assemble(const struct st_file *file, const struct io_array **order,
                        const char *text, size_t buffer, const char *path, void **data,
                        size_t *bytes, struct io_error *e)
{
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    if (padded > ST_HEADER_LIMIT) {
        return io_fail(e, path, "its header takes %zu bytes, but at most %u are allowed",
                       padded, ST_HEADER_LIMIT);
    }
    unsigned char *p = malloc(8 + padded + buffer);
    if (p == NULL) {
        return io_no_memory(e, path, "no memory for %zu bytes", 8 + padded + buffer);
    }
    for (int i = 0; i < 8; i++) {
        p[i] = (padded >> (8 * i)) & 0xff;
    }
    memset(p + 8, ' ', padded);
    memcpy(p + 8, text, length);
    unsigned char *at = p + 8 + padded;
    for (size_t i = 0; i < file->n_arrays; i++) {
        const struct io_array *a = order[i];
        if (st_type_of(a)->bits == 6) {
            st_pack6(a->data, at, a->bytes);
        } else {
            memcpy(at, a->data, a->bytes);
        }
        at += st_filed(a);
    }
    *data = p;
    *bytes = 8 + padded + buffer;
    return true;
}

bool st_build(const struct st_file *file, const char *path, void **data, size_t *bytes,
              struct io_error *e)
{
    size_t buffer = 0;
    for (size_t i = 0; i < file->n_arrays; i++) {
        if (!st_check(&file->array[i], path, e)) {
            return false;
        }
    }
    const struct io_array **order = calloc(file->n_arrays + 1, sizeof *order);
    if (order == NULL) {
        return io_no_memory(e, path, "no memory for %zu tensors", file->n_arrays);
    }
    st_sort(file, order);
    char *text = st_header_text(file, order, path, &buffer, e);
    bool ok = text != NULL && st_assemble(file, order, text, buffer, path, data, bytes, e);
    free(text);
    free(order);
    return ok;
}

bool st_stage(struct io_files *files, const char *path, const struct st_file *file,
              struct io_error *e)
{
    void *data;
    size_t bytes;
    if (!st_build(file, path, &data, &bytes, e)) {
        return false;
    }
    bool ok = io_stage(files, path, data, bytes, e);
    free(data);
    return ok;
}

bool st_write(const char *path, const struct st_file *file, struct io_error *e)
{
    struct io_files files = { .n = 0 };
    bool ok = st_stage(&files, path, file, e) && io_commit(&files, e);
    io_discard(&files);
    return ok;
}
