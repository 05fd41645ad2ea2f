/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raw binary, and hex text (.hex): nothing in the file says what it holds, so the command line
 * does.
 */
#include "io.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* "DIMxDIM..": `end` is the '@' or the end of the spec. */
static bool raw_dims(const char *spec, const char *text, const char *end, struct raw_spec *out,
                     struct io_error *e)
{
    for (const char *at = text;; at++) {
        const char *stop = at;
        while (stop < end && *stop != 'x') {
            stop++;
        }
        if (out->rank == NG_MAX_RANK) {
            return io_fail(e, spec, "has more than %d dimensions", NG_MAX_RANK);
        }
        int64_t *d = &out->dim[out->rank];
        const char *wrong = io_number(at, (size_t)(stop - at), d);
        if (wrong == NULL && *d == 0) {
            wrong = "is 0, but empty tensors are not supported";
        }
        if (wrong != NULL) {
            return io_fail(e, spec, "dimension %u ('%.*s') %s", out->rank,
                           stop - at < 40 ? (int)(stop - at) : 40, at, wrong);
        }
        out->rank++;
        at = stop;
        if (at == end) {
            return true;
        }
    }
}

static bool raw_offset(const char *spec, const char *text, struct raw_spec *out,
                       struct io_error *e)
{
    int64_t v;
    const char *wrong = io_number(text, strlen(text), &v);
    if (wrong != NULL) {
        return io_fail(e, spec, "the offset ('%.40s') %s", text, wrong);
    }
    out->offset = (uint64_t)v;
    out->has_offset = true;
    return true;
}

bool raw_parse_spec(const char *spec, struct raw_spec *out, struct io_error *e)
{
    struct raw_spec s;
    memset(&s, 0, sizeof s);
    char type[16];
    const char *colon = strchr(spec, ':');
    if (colon == NULL) {
        return io_fail(e, spec, "is no FORMAT:DIMxDIM..[@OFFSET], such as e4m3fn:512x1024@64");
    }
    size_t n = (size_t)(colon - spec);
    if (n < sizeof type) {
        memcpy(type, spec, n);
        type[n] = 0;
    }
    if (n >= sizeof type || !io_type_find(type, &s.format, &s.item_bits)) {
        return io_fail(e, spec, "'%.*s' is no element format and none of u8 u16 u32 u64",
                       n < 40 ? (int)n : 40, spec);
    }
    const char *at = strchr(colon, '@');
    const char *end = at != NULL ? at : colon + strlen(colon);
    if (!raw_dims(spec, colon + 1, end, &s, e) ||
        (at != NULL && !raw_offset(spec, at + 1, &s, e))) {
        return false;
    }
    s.bytes = io_array_size(s.format, s.item_bits, s.rank, s.dim);
    if (s.bytes == 0 || s.offset > (uint64_t)INT64_MAX - s.bytes) {
        return io_fail(e, spec, "the size overflows 63 bits");
    }
    *out = s;
    return true;
}

/* The file's length is checked before anything is allocated. */
static bool raw_load(const struct io_file *f, const char *spec, const struct raw_spec *s,
                     void **data, struct io_error *e)
{
    uint64_t end = s->offset + s->bytes;
    if (f->bytes < end || (f->bytes > end && !s->has_offset)) {
        return io_fail(e, f->path, "is %" PRIu64 " bytes long, but %.80s takes %s%" PRIu64 "%s",
                       f->bytes, spec, s->has_offset ? "at least " : "", end,
                       f->bytes > end ? " (@0 allows more)" : "");
    }
    void *p = malloc(s->bytes);
    if (p == NULL) {
        return io_no_memory(e, f->path, "no memory for %zu bytes", s->bytes);
    }
    if (!io_read_at(f, s->offset, p, s->bytes, e)) {
        free(p);
        return false;
    }
    *data = p;
    return true;
}

static bool is_hex(const char *path)
{
    const size_t n = strlen(path);
    return n >= 4 && strcmp(path + n - 4, ".hex") == 0;
}

static bool load_binary(const char *path, const char *spec, const struct raw_spec *s,
                        void **data, struct io_error *e)
{
    struct io_file f = { .fd = -1 };
    if (!io_open(path, &f, e)) {
        return false;
    }
    const bool ok = raw_load(&f, spec, s, data, e);
    io_close(&f);
    return ok;
}

static bool load_hex(const char *path, const struct raw_spec *s, void **data,
                     struct io_error *e)
{
    void *text;
    size_t n;
    if (s->has_offset) {
        return io_fail(e, path, "is hex text: an offset says nothing to it");
    }
    if (!io_read_file(path, 0, &text, &n, e)) {
        return false;
    }
    const bool ok = hex_parse(text, n, path, s, data, e);
    free(text);
    return ok;
}

bool raw_read(const char *path, const char *spec, struct io_array *out, struct io_error *e)
{
    struct raw_spec s = { .bytes = 1 }; /* never 0: clang-analyzer does not see io_fail() */
    void *data = NULL;
    if (!raw_parse_spec(spec, &s, e)) {
        return false;
    }
    if (!(is_hex(path) ? load_hex(path, &s, &data, e)
                       : load_binary(path, spec, &s, &data, e))) {
        return false;
    }
    memset(out, 0, sizeof *out);
    out->format = s.format;
    out->item_bits = s.item_bits;
    out->rank = s.rank;
    memcpy(out->dim, s.dim, sizeof out->dim);
    out->data = data;
    out->bytes = s.bytes;
    return true;
}

/* With others, or, without `files`, to its place at once. */
static bool raw_put(const char *path, const struct io_array *a, struct io_error *e,
                    struct io_files *files)
{
    void *text = NULL;
    size_t n = a->bytes;
    if (!io_array_check(a, path, e) || (is_hex(path) && !hex_build(a, path, &text, &n, e))) {
        return false;
    }
    const void *data = text != NULL ? text : a->data;
    const bool ok =
        files != NULL ? io_stage(files, path, data, n, e) : io_write_file(path, data, n, e);
    free(text);
    return ok;
}

bool raw_stage(struct io_files *files, const char *path, const struct io_array *a,
               struct io_error *e)
{
    return raw_put(path, a, e, files);
}

bool raw_write(const char *path, const struct io_array *a, struct io_error *e)
{
    return raw_put(path, a, e, NULL);
}
