/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .npy: a magic, a version, a header that is a Python literal, the items.
 * Source: numpy.lib.format ("NPY format", versions 1.0, 2.0 and 3.0).
 *
 * The header is parsed by hand and strictly: what numpy writes, white space aside. A format
 * that numpy has no type for is named by a sidecar, PATH.json.
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "io.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NPY_MAGIC      "\x93NUMPY"
#define NPY_SIDE_LIMIT 65536

struct npy_header {
    char descr[24];
    char kind;           /* the letter of descr */
    uint32_t item_bytes; /* its number */
    bool fortran;
    uint32_t rank;
    int64_t dim[NG_MAX_RANK];
};

/* ---- the Python literal ---- */

/* Where the parser is. `base` is the offset of the text in the file, for messages. */
struct npy_text {
    const char *path;
    const char *text;
    size_t length, at, base;
    struct io_error *e;
};

static bool npy_wants(const struct npy_text *t, const char *wanted)
{
    char found[16] = "its end";
    if (t->at < t->length) {
        unsigned char c = (unsigned char)t->text[t->at];
        if (c > 0x20 && c < 0x7f) {
            snprintf(found, sizeof found, "'%c'", c);
        } else {
            snprintf(found, sizeof found, "byte 0x%02x", c);
        }
    }
    return io_fail(t->e, t->path, "the header has %s at byte %zu, but %s is wanted", found,
                   t->base + t->at, wanted);
}

static char npy_peek(struct npy_text *t)
{
    while (t->at < t->length && t->text[t->at] == ' ') {
        t->at++;
    }
    return t->at < t->length ? t->text[t->at] : 0;
}

static bool npy_take(struct npy_text *t, char c)
{
    if (npy_peek(t) != c || t->at == t->length) {
        return false;
    }
    t->at++;
    return true;
}

/* A string of printable ASCII without escapes: all that a header needs. */
static bool npy_string(struct npy_text *t, const char *what, char *out, size_t room)
{
    char quote = npy_peek(t);
    if (quote != '\'' && quote != '"') {
        return npy_wants(t, what);
    }
    size_t n = 0;
    for (t->at++; t->at < t->length && t->text[t->at] != quote; t->at++) {
        char c = t->text[t->at];
        if (c < 0x20 || c > 0x7e || c == '\\' || n + 1 >= room) {
            return npy_wants(t, what);
        }
        out[n++] = c;
    }
    if (t->at == t->length) {
        return npy_wants(t, "a closing quote");
    }
    t->at++;
    out[n] = 0;
    return true;
}

static bool npy_dimension(struct npy_text *t, struct npy_header *h)
{
    npy_peek(t);
    const char *from = t->text + t->at;
    size_t n = 0;
    while (t->at + n < t->length && strchr(",) \n", from[n]) == NULL) {
        n++;
    }
    if (h->rank == NG_MAX_RANK) {
        return io_fail(t->e, t->path, "the shape has more than %d dimensions", NG_MAX_RANK);
    }
    int64_t *d = &h->dim[h->rank];
    const char *wrong = io_number(from, n, d);
    if (wrong == NULL && *d == 0) {
        wrong = "is 0, but empty tensors are not supported";
    }
    if (wrong != NULL) {
        return io_fail(t->e, t->path, "dimension %u of the shape ('%.*s', at byte %zu) %s",
                       h->rank, n < 40 ? (int)n : 40, from, t->base + t->at, wrong);
    }
    t->at += n;
    h->rank++;
    return true;
}

/* () (n,) (n, m) (n, m,): a tuple as Python writes or reads it; (n) is no tuple. */
static bool npy_shape(struct npy_text *t, struct npy_header *h)
{
    if (!npy_take(t, '(')) {
        return npy_wants(t, "'(' of the shape");
    }
    bool comma = true;
    while (!npy_take(t, ')')) {
        if (!comma) {
            return npy_wants(t, "',' or ')' of the shape");
        }
        if (!npy_dimension(t, h)) {
            return false;
        }
        comma = npy_take(t, ',');
    }
    if (h->rank == 1 && !comma) {
        return io_fail(t->e, t->path,
                       "the shape (%" PRId64 ") is a number, but a tuple (%" PRId64
                       ",) is wanted",
                       h->dim[0], h->dim[0]);
    }
    return true;
}

static bool npy_order(struct npy_text *t, struct npy_header *h)
{
    npy_peek(t);
    size_t left = t->length - t->at;
    h->fortran = left >= 4 && memcmp(t->text + t->at, "True", 4) == 0;
    if (!h->fortran && (left < 5 || memcmp(t->text + t->at, "False", 5) != 0)) {
        return npy_wants(t, "True or False for fortran_order");
    }
    t->at += h->fortran ? 4 : 5;
    return true;
}

/* '<f4': byte order, kind, bytes. The kinds themselves are judged by npy_fits(). */
static bool npy_descr(struct npy_text *t, struct npy_header *h)
{
    char c = npy_peek(t);
    if (c == '[' || c == '(' || c == '{') {
        return io_fail(t->e, t->path,
                       "descr is a structured or sub-array dtype, but a plain one such as "
                       "'<f4' is wanted");
    }
    if (!npy_string(t, "descr, a short quoted string", h->descr, sizeof h->descr)) {
        return false;
    }
    const char *d = h->descr;
    const char *kind = d[0] != 0 && strchr("<>|=", d[0]) != NULL ? d + 1 : d;
    if (kind[0] == 'O') {
        return io_fail(t->e, t->path,
                       "descr '%s': object arrays are Python pickles and are "
                       "not read",
                       d);
    }
    int64_t n = 0;
    if (kind[0] == 0 || io_number(kind + 1, strlen(kind + 1), &n) != NULL || n < 1 ||
        n > 1000000) {
        return io_fail(t->e, t->path, "descr '%s' is not of the form '<f4'", d);
    }
    if (d[0] == '>') {
        return io_fail(t->e, t->path,
                       "descr '%s' is big-endian, but little-endian ('<%c%" PRId64
                       "') is wanted",
                       d, kind[0], n);
    }
    /* '|' says that order does not matter: so for bytes and opaque items. */
    if (d[0] != '<' && !(d[0] == '|' && (n == 1 || kind[0] == 'V'))) {
        return io_fail(t->e, t->path,
                       "descr '%s' does not say its byte order: '<%c%" PRId64 "' is wanted", d,
                       kind[0], n);
    }
    h->kind = kind[0];
    h->item_bytes = (uint32_t)n;
    return true;
}

static bool npy_entry(struct npy_text *t, struct npy_header *h, bool seen[3])
{
    static const char *const keys[3] = { "descr", "fortran_order", "shape" };
    char key[24];
    if (!npy_string(t, "a key: 'descr', 'fortran_order' or 'shape'", key, sizeof key)) {
        return false;
    }
    int k = 0;
    while (k < 3 && strcmp(key, keys[k]) != 0) {
        k++;
    }
    if (k == 3 || seen[k]) {
        return io_fail(t->e, t->path, "the header has %s key '%s'",
                       k == 3 ? "the unknown" : "twice the", key);
    }
    seen[k] = true;
    if (!npy_take(t, ':')) {
        return npy_wants(t, "':'");
    }
    return k == 0 ? npy_descr(t, h) : k == 1 ? npy_order(t, h) : npy_shape(t, h);
}

static bool npy_dict(struct npy_text *t, struct npy_header *h)
{
    bool seen[3] = { false, false, false };
    bool comma = true;
    if (!npy_take(t, '{')) {
        return npy_wants(t, "'{'");
    }
    while (!npy_take(t, '}')) {
        if (!comma) {
            return npy_wants(t, "',' or '}'");
        }
        if (!npy_entry(t, h, seen)) {
            return false;
        }
        comma = npy_take(t, ',');
    }
    if (!seen[0] || !seen[1] || !seen[2]) {
        return io_fail(t->e, t->path, "the header has no key '%s'",
                       !seen[0]   ? "descr"
                       : !seen[1] ? "fortran_order"
                                  : "shape");
    }
    npy_peek(t);
    if (t->length - t->at != 1 || t->text[t->at] != '\n') {
        return npy_wants(t, "a line feed, as the last byte of the header,");
    }
    return true;
}

/* The header; *items is where the items begin. */
static bool npy_head(const unsigned char *p, size_t bytes, const char *path,
                     struct npy_header *h, size_t *items, struct io_error *e)
{
    if (bytes < 10 || memcmp(p, NPY_MAGIC, 6) != 0) {
        return io_fail(e, path, "is no .npy file: it %s",
                       bytes < 10 ? "is shorter than 10 bytes"
                                  : "does not begin with \\x93NUMPY");
    }
    unsigned major = p[6], minor = p[7];
    if (major < 1 || major > 3 || minor != 0) {
        return io_fail(e, path, "is .npy version %u.%u, but 1.0, 2.0 or 3.0 is wanted", major,
                       minor);
    }
    size_t base = major == 1 ? 10 : 12;
    if (bytes < base) {
        return io_fail(e, path, "ends inside the length of its header");
    }
    size_t n = p[8] | (size_t)p[9] << 8;
    if (major > 1) {
        n |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
    }
    if (n > bytes - base) {
        return io_fail(e, path, "the header claims %zu bytes, but only %zu follow", n,
                       bytes - base);
    }
    struct npy_text t = {
        .path = path, .text = (const char *)p + base, .length = n, .base = base, .e = e
    };
    *items = base + n;
    return npy_dict(&t, h);
}

/* ---- what the items are ---- */

static bool npy_clash(struct io_error *e, const char *path, const char *side, const char *asked)
{
    return io_fail(e, path, "the sidecar %s.json says %s, but %s was asked for", path, side,
                   asked);
}

/* From what was asked and what the sidecar says to one format; neither overrides the other. */
static bool npy_settle(const struct npy_header *h, const char *path, bool plain,
                       const struct npy_side *side, ng_format *as, struct io_error *e)
{
    if (plain && *as != NG_FORMAT_NONE) {
        return io_fail(e, path, "is asked for both as %s and as plain integers",
                       io_type_name(*as, 0));
    }
    if (*as != NG_FORMAT_NONE && ng_format_info(*as) == NULL) {
        return io_fail(e, path, "is asked for as format number %u, which is unknown",
                       (unsigned)*as);
    }
    if (side == NULL && !plain && *as == NG_FORMAT_NONE) {
        return io_fail(e, path,
                       "does not say what format its '%s' items are: name one, or put it in "
                       "%s.json",
                       h->descr, path);
    }
    if (side == NULL) {
        return true;
    }
    const char *says = io_type_name(side->format, side->item_bits);
    if (plain && side->format != NG_FORMAT_NONE) {
        return npy_clash(e, path, says, "plain integers");
    }
    if (plain && side->item_bits != h->item_bytes * 8) {
        return io_fail(e, path, "the sidecar says %s, but the items are '%s'", says, h->descr);
    }
    if (!plain && *as == NG_FORMAT_NONE) {
        *as = side->format;
    }
    if (!plain && (*as != side->format || *as == NG_FORMAT_NONE)) {
        return npy_clash(e, path, says,
                         *as == NG_FORMAT_NONE ? "an element format" : io_type_name(*as, 0));
    }
    return true;
}

static bool npy_plain_fits(const struct npy_header *h, const char *path, struct io_error *e)
{
    uint32_t n = h->item_bytes;
    if ((h->kind != 'u' && h->kind != 'i') || (n != 1 && n != 2 && n != 4 && n != 8)) {
        return io_fail(e, path,
                       "has '%s' items, but integers of 8, 16, 32 or 64 bits are wanted",
                       h->descr);
    }
    return true;
}

/* Can these items be codes of this format? */
static bool npy_fits(const struct npy_header *h, const char *path, ng_format as,
                     struct io_error *e)
{
    const ng_format_spec *spec = ng_format_info(as);
    uint32_t wide = spec->store_bits < 8 ? 8 : spec->store_bits;
    if (strchr("uifV", h->kind) == NULL || h->item_bytes * 8 != wide) {
        return io_fail(e, path, "has '%s' items, but %s takes %u-bit ones", h->descr,
                       spec->text, wide);
    }
    if (spec->store_bits < 8 && h->kind != 'u' && h->kind != 'i') {
        return io_fail(e, path,
                       "has '%s' items, which hold one code a byte, but %s is two codes to a "
                       "'|u1'",
                       h->descr, spec->text);
    }
    bool same = h->kind != 'f' || (h->item_bytes == 4 && (as == NG_F32 || as == NG_TF32)) ||
                (h->item_bytes == 2 && as == NG_F16) || (h->item_bytes == 1 && as == NG_E5M2);
    if (!same) {
        return io_fail(e, path,
                       "has '%s' items, which are numbers of another format than %s; give its "
                       "codes as unsigned integers",
                       h->descr, spec->text);
    }
    return true;
}

/* The sidecar's shape is that of the array; in 4-bit formats its last dimension counts codes.
 */
static bool npy_side_shape(const struct npy_side *side, const char *path, bool nibbles,
                           struct io_array *a, struct io_error *e)
{
    bool same = side->rank == a->rank;
    for (uint32_t i = 0; same && i < a->rank; i++) {
        int64_t d = side->dim[i];
        same = a->dim[i] == (nibbles && i + 1 == a->rank ? d / 2 + d % 2 : d);
    }
    if (!same) {
        return io_fail(e, path, "the sidecar says %s %s, but the items are %s%s",
                       io_type_name(side->format, side->item_bits),
                       io_shape(side->rank, side->dim).text, io_shape(a->rank, a->dim).text,
                       nibbles ? " bytes of two codes" : "");
    }
    memcpy(a->dim, side->dim, sizeof a->dim);
    return true;
}

/* Format and shape of the array in memory. */
static bool npy_type(const struct npy_header *h, const char *path, ng_format as, bool plain,
                     const struct npy_side *side, struct io_array *a, struct io_error *e)
{
    if (!npy_settle(h, path, plain, side, &as, e) ||
        !(plain ? npy_plain_fits(h, path, e) : npy_fits(h, path, as, e))) {
        return false;
    }
    a->format = as;
    a->item_bits = plain ? h->item_bytes * 8 : ng_format_info(as)->store_bits;
    a->rank = h->rank;
    memcpy(a->dim, h->dim, sizeof a->dim);
    bool nibbles = a->item_bits < 8;
    if (side != NULL && side->has_shape) {
        return npy_side_shape(side, path, nibbles, a, e);
    }
    if (nibbles && a->rank == 0) {
        return io_fail(e, path,
                       "is one byte without a shape: %s.json must say whether that is "
                       "one code or two",
                       path);
    }
    if (nibbles) {
        if (a->dim[a->rank - 1] > INT64_MAX / 2) {
            return io_fail(e, path, "the shape overflows");
        }
        a->dim[a->rank - 1] *= 2;
    }
    return true;
}

/* ---- reading ---- */

/* Fortran order has the first index run fastest. `out` is written in order. */
static void npy_transpose(const struct npy_header *h, const char *items, char *out)
{
    size_t stride[NG_MAX_RANK], index[NG_MAX_RANK] = { 0 }, total = 1, from = 0;
    for (uint32_t i = 0; i < h->rank; i++) {
        stride[i] = total;
        total *= (size_t)h->dim[i];
    }
    for (size_t k = 0; k < total; k++) {
        memcpy(out + k * h->item_bytes, items + from * h->item_bytes, h->item_bytes);
        for (uint32_t i = h->rank; i-- > 0;) {
            from += stride[i];
            if (++index[i] < (size_t)h->dim[i]) {
                break;
            }
            from -= index[i] * stride[i];
            index[i] = 0;
        }
    }
}

bool npy_parse(const void *data, size_t bytes, const char *path, ng_format as, bool plain,
               const struct npy_side *side, struct io_array *out, struct io_error *e)
{
    struct npy_header h;
    struct io_array a;
    size_t items = 0;
    memset(&h, 0, sizeof h);
    memset(&a, 0, sizeof a);
    if (!npy_head(data, bytes, path, &h, &items, e) ||
        !npy_type(&h, path, as, plain, side, &a, e)) {
        return false;
    }
    a.bytes = io_array_size(a.format, a.item_bits, a.rank, a.dim);
    if (a.bytes == 0 || a.bytes != bytes - items) {
        char takes[32] = "more than memory holds";
        if (a.bytes != 0) {
            snprintf(takes, sizeof takes, "%zu", a.bytes);
        }
        return io_fail(e, path, "has %zu bytes after its header, but '%s' %s takes %s",
                       bytes - items, h.descr, io_shape(h.rank, h.dim).text, takes);
    }
    a.data = malloc(a.bytes);
    if (a.data == NULL) {
        return io_no_memory(e, path, "no memory for %zu bytes", a.bytes);
    }
    if (h.fortran && h.rank > 1) {
        npy_transpose(&h, (const char *)data + items, a.data);
    } else {
        memcpy(a.data, (const char *)data + items, a.bytes);
    }
    *out = a;
    return true;
}

static bool npy_side_fill(const json_t *root, const char *path, struct npy_side *s,
                          struct io_error *e)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value)
    {
        if (strcmp(key, "format") != 0 && strcmp(key, "shape") != 0) {
            return io_fail(e, path, "the key '%.40s' is neither 'format' nor 'shape'", key);
        }
    }
    const char *name = json_string_value(json_object_get(root, "format"));
    if (name == NULL) {
        return io_fail(e, path, "has no string 'format'");
    }
    if (!io_type_find(name, &s->format, &s->item_bits)) {
        return io_fail(e, path, "'%.40s' is no element format and none of u8 u16 u32 u64",
                       name);
    }
    const json_t *shape = json_object_get(root, "shape");
    s->has_shape = shape != NULL;
    return shape == NULL || io_json_shape(shape, path, "", &s->rank, s->dim, e);
}

bool npy_side_parse(const void *data, size_t bytes, const char *path, struct npy_side *out,
                    struct io_error *e)
{
    struct npy_side s;
    memset(&s, 0, sizeof s);
    json_t *root = io_json(data, bytes, path, "the sidecar", e);
    if (root == NULL) {
        return false;
    }
    bool ok = npy_side_fill(root, path, &s, e);
    json_decref(root);
    if (ok) {
        *out = s;
    }
    return ok;
}

static char *npy_side_path(const char *path, struct io_error *e)
{
    size_t n = strlen(path);
    char *side = malloc(n + 6);
    if (side == NULL) {
        io_no_memory(e, path, "no memory for its name");
        return NULL;
    }
    memcpy(side, path, n);
    memcpy(side + n, ".json", 6);
    return side;
}

/* *there: is there a sidecar? Only ENOENT says no. */
static bool npy_side_read(const char *path, bool *there, struct npy_side *out,
                          struct io_error *e)
{
    char *name = npy_side_path(path, e);
    if (name == NULL) {
        return false;
    }
    struct stat st;
    void *data = NULL;
    size_t bytes;
    *there = stat(name, &st) == 0 || errno != ENOENT;
    bool ok = !*there || (io_read_file(name, NPY_SIDE_LIMIT, &data, &bytes, e) &&
                          npy_side_parse(data, bytes, name, out, e));
    free(data);
    free(name);
    return ok;
}

bool npy_read(const char *path, ng_format as, bool plain, struct io_array *out,
              struct io_error *e)
{
    struct npy_side side;
    bool there;
    void *data;
    size_t bytes;
    if (!io_read_file(path, 0, &data, &bytes, e)) {
        return false;
    }
    bool ok = npy_side_read(path, &there, &side, e) &&
              npy_parse(data, bytes, path, as, plain, there ? &side : NULL, out, e);
    free(data);
    return ok;
}

/* ---- writing ---- */

/* The 64-byte alignment of items is numpy's own. Returns the length with magic and version. */
static size_t npy_format_header(const struct io_array *a, char text[512])
{
    uint32_t item = a->item_bits < 8 ? 1 : a->item_bits / 8;
    char kind = a->format == NG_F32 || a->format == NG_F16 ? 'f' : 'u';
    size_t at = 10;
    at += (size_t)snprintf(text + at, 512 - at,
                           "{'descr': '%c%c%u', 'fortran_order': False, 'shape': (",
                           item == 1 ? '|' : '<', kind, item);
    for (uint32_t i = 0; i < a->rank; i++) {
        int64_t d = a->dim[i];
        if (a->item_bits < 8 && i + 1 == a->rank) {
            d = d / 2 + d % 2;
        }
        const char *after = a->rank == 1 ? "," : i + 1 < a->rank ? ", " : "";
        at += (size_t)snprintf(text + at, 512 - at, "%" PRId64 "%s", d, after);
    }
    at += (size_t)snprintf(text + at, 512 - at, "), }");
    while (at % 64 != 63) {
        text[at++] = ' ';
    }
    text[at++] = '\n';
    memcpy(text, NPY_MAGIC, 6);
    text[6] = 1;
    text[7] = 0;
    text[8] = (char)((at - 10) & 0xff);
    text[9] = (char)((at - 10) >> 8);
    return at;
}

bool npy_build(const struct io_array *a, const char *path, void **data, size_t *bytes,
               struct io_error *e)
{
    char header[512];
    if (!io_array_check(a, path, e)) {
        return false;
    }
    size_t n = npy_format_header(a, header);
    char *p = malloc(n + a->bytes);
    if (p == NULL) {
        return io_no_memory(e, path, "no memory for %zu bytes", n + a->bytes);
    }
    memcpy(p, header, n);
    memcpy(p + n, a->data, a->bytes);
    *data = p;
    *bytes = n + a->bytes;
    return true;
}

/* The old sidecar goes before anything is renamed, so that no moment shows new items under an
 * old format. */
static bool npy_stage_side(struct io_files *files, const char *path, const struct io_array *a,
                           struct io_error *e)
{
    char text[256];
    int n = snprintf(text, sizeof text, "{\"format\": \"%s\", \"shape\": %s}\n",
                     io_type_name(a->format, a->item_bits), io_shape(a->rank, a->dim).text);
    char *side = npy_side_path(path, e);
    bool ok = side != NULL && io_stage(files, side, text, (size_t)n, e);
    if (ok) {
        files->file[files->n - 1].gone_first = true;
    }
    free(side);
    return ok;
}

bool npy_stage(struct io_files *files, const char *path, const struct io_array *a,
               struct io_error *e)
{
    void *data;
    size_t bytes;
    if (!npy_build(a, path, &data, &bytes, e)) {
        return false;
    }
    bool ok = io_stage(files, path, data, bytes, e);
    free(data);
    return ok && npy_stage_side(files, path, a, e);
}

bool npy_write(const char *path, const struct io_array *a, struct io_error *e)
{
    struct io_files files = { .n = 0 };
    bool ok = npy_stage(&files, path, a, e) && io_commit(&files, e);
    io_discard(&files);
    return ok;
}
