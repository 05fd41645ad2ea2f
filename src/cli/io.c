/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tensor file formats share: whole files in and out, messages, shapes, numbers.
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Arrays are copied between memory and files as they are. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensor files are little-endian, and so must this machine be"
#endif

/* read() and write() may refuse more than INT_MAX at once. */
#define IO_CHUNK ((size_t)1 << 30)

/* ---- messages ---- */

/* A terminal obeys C0 controls and, in UTF-8, C1 controls (0xC2 0x80..0x9F). */
static void io_harmless(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c != 0; c++) {
        if (*c < 0x20 || *c == 0x7f) {
            *c = '?';
        } else if (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) {
            c[0] = c[1] = '?';
        }
    }
}

static void io_say(struct io_error *e, const char *path, const char *format, va_list args)
{
    /* The end of a long path says more than its beginning, and leaves room for the reason. */
    const size_t shown = 160;
    size_t n = strlen(path);
    int at = snprintf(e->text, sizeof e->text, "%s%s: ", n > shown ? "..." : "",
                      n > shown ? path + (n - shown) : path);
    if (at < 0 || (size_t)at >= sizeof e->text) {
        at = 0;
    }
    vsnprintf(e->text + at, sizeof e->text - (size_t)at, format, args);
    io_harmless(e->text);
}

bool io_fail(struct io_error *e, const char *path, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    io_say(e, path, format, args);
    va_end(args);
    e->memory = false;
    return false;
}

bool io_no_memory(struct io_error *e, const char *path, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    io_say(e, path, format, args);
    va_end(args);
    e->memory = true;
    return false;
}

/* ---- files ---- */

static const char *io_kind(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
                            : "no regular file";
}

bool io_regular(const char *path, struct io_error *e)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        return io_fail(e, path, "cannot be opened: %s", strerror(errno));
    }
    return S_ISREG(st.st_mode) ||
           io_fail(e, path, "is %s, but a regular file is wanted", io_kind(st.st_mode));
}

bool io_open(const char *path, struct io_file *f, struct io_error *e)
{
    struct stat st;
    /* Looked at before it is opened, because opening a device can do something; and again
     * after, because it may have been replaced in between. */
    if (!io_regular(path, e)) {
        return false;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return io_fail(e, path, "cannot be opened: %s", strerror(errno));
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return io_fail(e, path, "was replaced while it was opened");
    }
    *f = (struct io_file){ .fd = fd, .bytes = (uint64_t)st.st_size, .path = path };
    return true;
}

void io_close(struct io_file *f)
{
    close(f->fd);
    f->fd = -1;
}

bool io_read_at(const struct io_file *f, uint64_t offset, void *data, size_t bytes,
                struct io_error *e)
{
    for (size_t done = 0; done < bytes;) {
        size_t want = bytes - done < IO_CHUNK ? bytes - done : IO_CHUNK;
        ssize_t got = pread(f->fd, (char *)data + done, want, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return io_fail(e, f->path, "cannot be read: %s", strerror(errno));
        }
        if (got == 0) {
            return io_fail(e, f->path,
                           "ends at byte %" PRIu64 ", though it was %" PRIu64
                           " bytes long when it was opened",
                           offset + done, f->bytes);
        }
        done += (size_t)got;
    }
    return true;
}

static bool io_read_all(const struct io_file *f, size_t limit, void **data, size_t *bytes,
                        struct io_error *e)
{
    if (f->bytes > SIZE_MAX - 1 || (limit != 0 && f->bytes > limit)) {
        return io_fail(e, f->path, "is %" PRIu64 " bytes long, but at most %zu are read here",
                       f->bytes, limit != 0 ? limit : SIZE_MAX - 1);
    }
    size_t n = (size_t)f->bytes;
    char *p = malloc(n + 1);
    if (p == NULL) {
        return io_no_memory(e, f->path, "no memory for its %zu bytes", n);
    }
    bool ok = io_read_at(f, 0, p, n, e);
    /* Files of /proc say 0 and then give more; a file being written grows. */
    if (ok && pread(f->fd, p + n, 1, (off_t)n) > 0) {
        ok = io_fail(e, f->path, "is longer than the %zu bytes it had when it was opened", n);
    }
    if (!ok) {
        free(p);
        return false;
    }
    *data = p;
    *bytes = n;
    return true;
}

bool io_read_file(const char *path, size_t limit, void **data, size_t *bytes,
                  struct io_error *e)
{
    struct io_file f = { .fd = -1 };
    if (!io_open(path, &f, e)) {
        return false;
    }
    bool ok = io_read_all(&f, limit, data, bytes, e);
    io_close(&f);
    return ok;
}

static bool io_write_fd(int fd, const char *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        size_t want = bytes - done < IO_CHUNK ? bytes - done : IO_CHUNK;
        ssize_t put = write(fd, data + done, want);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            return false;
        }
        done += (size_t)put;
    }
    /* Without this a crash after the rename could leave the new name with no content. Some
     * file systems have no fsync. */
    return fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP;
}

/* A file of its own name, written whole; false: it is gone again. */
static bool io_write_new(const char *name, const char *path, const void *data, size_t bytes,
                         struct io_error *e)
{
    unlink(name); /* left by a process that had the same number and was killed */
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
        return io_fail(e, path, "cannot be written: %s", strerror(errno));
    }
    bool ok = io_write_fd(fd, data, bytes);
    int why = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (!ok) {
        unlink(name);
        return io_fail(e, path, "cannot be written: %s", strerror(why));
    }
    return true;
}

/* Room for one more, with its names. */
static struct io_staged *io_staged_add(struct io_files *files, const char *path)
{
    size_t length = strlen(path);
    struct io_staged *file = realloc(files->file, (files->n + 1) * sizeof *file);
    if (file == NULL) {
        return NULL;
    }
    files->file = file;
    file += files->n;
    *file = (struct io_staged){ .path = malloc(length + 1), .temporary = malloc(length + 32) };
    if (file->path == NULL || file->temporary == NULL) {
        free(file->path);
        free(file->temporary);
        return NULL;
    }
    memcpy(file->path, path, length + 1);
    snprintf(file->temporary, length + 32, "%s.tmp-%ld", path, (long)getpid());
    return file;
}

bool io_stage(struct io_files *files, const char *path, const void *data, size_t bytes,
              struct io_error *e)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        return io_fail(e, path, "is %s and is not replaced", io_kind(st.st_mode));
    }
    struct io_staged *file = io_staged_add(files, path);
    if (file == NULL) {
        return io_no_memory(e, path, "no memory for its name");
    }
    if (!io_write_new(file->temporary, path, data, bytes, e)) {
        free(file->path);
        free(file->temporary);
        return false;
    }
    files->n++;
    return true;
}

static bool io_rename_all(struct io_files *files, struct io_error *e)
{
    for (size_t i = 0; i < files->n; i++) {
        const struct io_staged *f = &files->file[i];
        if (f->gone_first && unlink(f->path) != 0 && errno != ENOENT) {
            return io_fail(e, f->path, "cannot be replaced: %s", strerror(errno));
        }
    }
    for (size_t i = 0; i < files->n; i++) {
        const struct io_staged *f = &files->file[i];
        if (rename(f->temporary, f->path) != 0) {
            return io_fail(e, f->path, "cannot be replaced: %s", strerror(errno));
        }
        f->temporary[0] = 0; /* no longer there */
    }
    return true;
}

bool io_commit(struct io_files *files, struct io_error *e)
{
    bool ok = io_rename_all(files, e);
    io_discard(files);
    return ok;
}

void io_discard(struct io_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        if (files->file[i].temporary[0] != 0) {
            unlink(files->file[i].temporary);
        }
        free(files->file[i].temporary);
        free(files->file[i].path);
    }
    free(files->file);
    *files = (struct io_files){ .n = 0 };
}

bool io_write_file(const char *path, const void *data, size_t bytes, struct io_error *e)
{
    struct io_files files = { .n = 0 };
    bool ok = io_stage(&files, path, data, bytes, e) && io_commit(&files, e);
    io_discard(&files);
    return ok;
}

/* The directory that holds `path`. */
static bool io_folder_of(const char *path, struct stat *st)
{
    char folder[4096] = ".";
    const char *slash = strrchr(path, '/');
    if (slash != NULL) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
    }
    return stat(folder, st) == 0;
}

bool io_same_place(const char *a, const char *b)
{
    const char *in_a = strrchr(a, '/'), *in_b = strrchr(b, '/');
    struct stat st_a, st_b;
    if (strcmp(in_a != NULL ? in_a + 1 : a, in_b != NULL ? in_b + 1 : b) != 0) {
        return false;
    }
    if (!io_folder_of(a, &st_a) || !io_folder_of(b, &st_b)) {
        return strcmp(a, b) == 0;
    }
    return st_a.st_dev == st_b.st_dev && st_a.st_ino == st_b.st_ino;
}

/* ---- arrays ---- */

void io_array_free(struct io_array *a)
{
    free(a->data);
    memset(a, 0, sizeof *a);
}

static bool io_plain_bits(uint32_t bits)
{
    return bits == 8 || bits == 16 || bits == 32 || bits == 64;
}

size_t io_array_size(ng_format format, uint32_t item_bits, uint32_t rank, const int64_t *dim)
{
    uint64_t n = item_bits / 8;
    for (uint32_t i = 0; i < rank; i++) {
        if (dim[i] < 1) {
            return 0;
        }
        if (format == NG_FORMAT_NONE && n > (uint64_t)PTRDIFF_MAX / (uint64_t)dim[i]) {
            return 0;
        }
        n *= (uint64_t)dim[i];
    }
    if (format == NG_FORMAT_NONE) {
        return (size_t)n;
    }
    const int64_t one = 1;
    size_t bytes =
        rank == 0 ? ng_tensor_bytes(format, 1, &one) : ng_tensor_bytes(format, rank, dim);
    return bytes > (size_t)PTRDIFF_MAX ? 0 : bytes;
}

bool io_array_check(const struct io_array *a, const char *path, struct io_error *e)
{
    if (a->rank > NG_MAX_RANK) {
        return io_fail(e, path, "array '%s' has %u dimensions, but at most %d are written",
                       a->name, a->rank, NG_MAX_RANK);
    }
    const ng_format_spec *spec = ng_format_info(a->format);
    bool known = a->format == NG_FORMAT_NONE ? io_plain_bits(a->item_bits)
                                             : spec != NULL && spec->store_bits == a->item_bits;
    if (!known) {
        return io_fail(e, path,
                       "array '%s' has elements of format number %u in %u bits, which "
                       "is no known type",
                       a->name, (unsigned)a->format, a->item_bits);
    }
    size_t want = io_array_size(a->format, a->item_bits, a->rank, a->dim);
    if (want == 0 || want != a->bytes || a->data == NULL) {
        return io_fail(e, path, "array '%s' holds %zu bytes, but %s %s takes %zu", a->name,
                       a->data == NULL ? (size_t)0 : a->bytes,
                       io_type_name(a->format, a->item_bits), io_shape(a->rank, a->dim).text,
                       want);
    }
    return true;
}

const char *io_type_name(ng_format format, uint32_t item_bits)
{
    if (format != NG_FORMAT_NONE) {
        const ng_format_spec *spec = ng_format_info(format);
        return spec != NULL ? spec->text : "?";
    }
    switch (item_bits) {
    case 8: return "u8";
    case 16: return "u16";
    case 32: return "u32";
    case 64: return "u64";
    default: return "?";
    }
}

bool io_type_find(const char *name, ng_format *format, uint32_t *item_bits)
{
    for (uint32_t bits = 8; bits <= 64; bits *= 2) {
        if (strcmp(name, io_type_name(NG_FORMAT_NONE, bits)) == 0) {
            *format = NG_FORMAT_NONE;
            *item_bits = bits;
            return true;
        }
    }
    const ng_format_spec *spec = ng_format_info(ng_format_find(name));
    if (spec == NULL) {
        return false;
    }
    *format = spec->format;
    *item_bits = spec->store_bits;
    return true;
}

/* ---- numbers and shapes ---- */

const char *io_number(const char *text, size_t length, int64_t *value)
{
    if (length == 0) {
        return "is missing";
    }
    size_t from = text[0] == '-' && length > 1;
    int64_t v = 0;
    bool large = false;
    for (size_t i = from; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return "is not a whole number";
        }
        int digit = text[i] - '0';
        large = large || v > (INT64_MAX - digit) / 10;
        v = large ? v : v * 10 + digit;
    }
    if (from != 0) {
        return "is negative";
    }
    if (text[0] == '0' && length > 1) {
        return "begins with a 0";
    }
    if (large) {
        return "does not fit in 63 bits";
    }
    *value = v;
    return NULL;
}

struct io_shape_text io_shape(uint32_t rank, const int64_t *dim)
{
    struct io_shape_text s;
    size_t at = 0;
    s.text[at++] = '[';
    for (uint32_t i = 0; i < rank && i < NG_MAX_RANK; i++) {
        int n =
            snprintf(s.text + at, sizeof s.text - at, "%s%" PRId64, i > 0 ? ", " : "", dim[i]);
        at += n > 0 ? (size_t)n : 0;
    }
    s.text[at++] = ']';
    s.text[at] = 0;
    return s;
}

/* ---- JSON ---- */

json_t *io_json(const void *data, size_t bytes, const char *path, const char *what,
                struct io_error *e)
{
    json_error_t why;
    json_t *root = json_loadb(data, bytes, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) {
        io_fail(e, path, "%s is not valid JSON: %s, at byte %d", what, why.text, why.position);
        return NULL;
    }
    if (!json_is_object(root)) {
        io_fail(e, path, "%s is not a JSON object", what);
        json_decref(root);
        return NULL;
    }
    return root;
}

bool io_json_shape(const json_t *json, const char *path, const char *where, uint32_t *rank,
                   int64_t *dim, struct io_error *e)
{
    if (!json_is_array(json)) {
        return io_fail(e, path, "%sthe shape is not an array", where);
    }
    size_t n = json_array_size(json);
    if (n > NG_MAX_RANK) {
        return io_fail(e, path, "%sthe shape has %zu dimensions, but at most %d are read",
                       where, n, NG_MAX_RANK);
    }
    int64_t d[NG_MAX_RANK];
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(json, i);
        if (!json_is_integer(item)) {
            return io_fail(e, path, "%sdimension %zu of the shape is not a whole number", where,
                           i);
        }
        d[i] = json_integer_value(item);
        if (d[i] < 1) {
            return io_fail(
                e, path, "%sdimension %zu of the shape is %" PRId64 ", but %s", where, i, d[i],
                d[i] == 0 ? "empty tensors are not supported" : "a positive number is wanted");
        }
    }
    for (size_t i = 0; i < n; i++) {
        dim[i] = d[i];
    }
    *rank = (uint32_t)n;
    return true;
}
