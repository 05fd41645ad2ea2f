/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor files: .npy, safetensors, raw binary. Readers trust nothing: every size is checked
 * against the file's own length before a byte is allocated, and nothing is typed by guess.
 */
#ifndef NG_CLI_IO_H
#define NG_CLI_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "ng/tensor.h"

/* Why a file could not be read or written: the file, the place, what was found, what is wanted.
 */
struct io_error {
    char text[512];
    bool memory; /* nothing is wrong with the file: there was no memory for it */
};

/* A tensor in memory, row-major and packed as ng_tensor_init() lays it out; data is malloc'ed.
 */
struct io_array {
    char name[128];
    ng_format format; /* NONE: plain integers of item_bits, e.g. tags or random words */
    uint32_t
        item_bits; /* 8, 16, 32 (or 64) when format is NONE; else the format's store_bits */
    uint32_t rank; /* 0..NG_MAX_RANK (0: one element) */
    int64_t dim[NG_MAX_RANK];
    void *data;
    size_t bytes;
};

/* Frees the data and zeroes the struct; a zeroed struct is fine. */
void io_array_free(struct io_array *a);

/*
 * Every reader below leaves its outputs untouched when it returns false; then e->text is one
 * sentence that begins with the path. Empty tensors (a dimension of 0) and ranks above
 * NG_MAX_RANK are refused everywhere.
 */

/* A whole file of at most `limit` bytes (0: any) in malloc'ed memory. Refuses directories,
 * FIFOs. */
bool io_read_file(const char *path, size_t limit, void **data, size_t *bytes,
                  struct io_error *e);
/*
 * Files that change together. io_stage() writes one to `path`.tmp-PID; io_commit() renames all
 * of them, io_discard() removes them, and both leave the struct zeroed, as it begins. A reader
 * sees an old file or a whole new one. Refuses to replace anything but a regular file.
 */
struct io_files {
    struct io_staged {
        char *path, *temporary;
        bool gone_first; /* the old one is removed before the first rename */
    } * file;
    size_t n;
};
bool io_stage(struct io_files *files, const char *path, const void *data, size_t bytes,
              struct io_error *e);
bool io_commit(struct io_files *files, struct io_error *e);
void io_discard(struct io_files *files);
/* One file by itself. */
bool io_write_file(const char *path, const void *data, size_t bytes, struct io_error *e);
/* Do two paths name one entry of one directory, whatever is there? */
bool io_same_place(const char *a, const char *b);

/*
 * .npy, versions 1.0 to 3.0, C order or Fortran order (transposed on reading).
 *   as     the element format, or NG_FORMAT_NONE: then the sidecar `path`.json
 *          ({"format": "e4m3fn", "shape": [..]}) must name it, or `plain` must be set.
 *   plain  read as plain unsigned integers (tags, random words).
 * The npy dtype must have as many bits as the format stores: u1 i1 V1 for 8, u2 i2 f2 V2 for
 * 16, u4 i4 f4 V4 for 32. A '<f4' array read as anything but f32 or tf32, or '<f2' as anything
 * but f16, is an error; so is a sidecar that names another format or shape than `as` or the
 * array. '<f1' is what ml_dtypes writes for e5m2, and nothing else. e2m1: uint8, two codes a
 * byte, last dimension doubled unless the sidecar's shape says; V1 is refused there, because
 * ml_dtypes keeps one code a byte. plain: u or i only, up to 64 bits.
 */
bool npy_read(const char *path, ng_format as, bool plain, struct io_array *out,
              struct io_error *e);
/* Writes unsigned integers of the stored width (f32: '<f4', f16: '<f2') and the sidecar, whose
 * format is "u8".."u64" for plain arrays. The two change together: a reader who comes between
 * finds no sidecar, never the wrong one. */
bool npy_write(const char *path, const struct io_array *a, struct io_error *e);
bool npy_stage(struct io_files *files, const char *path, const struct io_array *a,
               struct io_error *e);

/*
 * Raw binary: spec is FORMAT:DIMxDIM..[@OFFSET], "e4m3fn:512x1024@64"; uN:DIM.. for plain.
 * Little-endian. The file must be exactly offset + size long, unless @OFFSET is given: then at
 * least. A path that ends in .hex is hex text (hex.c), without an offset.
 */
bool raw_read(const char *path, const char *spec, struct io_array *out, struct io_error *e);
bool raw_write(const char *path, const struct io_array *a, struct io_error *e);
bool raw_stage(struct io_files *files, const char *path, const struct io_array *a,
               struct io_error *e);

/* safetensors. Pairs of strings of "__metadata__". */
struct st_meta {
    char *key, *value;
};
/* A tensor that cannot be an array here, and the sentence that says why. */
struct st_idle {
    char *name, *why;
};
struct st_file {
    struct io_array *array; /* in the order of their offsets */
    size_t n_arrays;
    struct st_idle *idle;
    size_t n_idle;
    struct st_meta *meta;
    size_t n_meta;
};
/*
 * Reads every tensor but those that are `idle`: of another dtype, empty, of a rank above
 * NG_MAX_RANK, or of F4 with an odd last dimension. Names: F32 F16 BF16 F8_E5M2 F8_E4M3 (=
 * e4m3fn) F8_E8M0 F8_E5M2FNUZ F8_E4M3FNUZ F6_E3M2 F6_E2M3 (packed 4 codes in 3 bytes; unpacked
 * to one a byte) F4 U8 I8 U16 I16 U32 I32 U64 I64. U8/U16/U32 tensors are plain unless the
 * metadata entry "ng.format.NAME" names a format of as many bits, 8 or more (e4m3, e3m4, tf32,
 * ue4m3, mxint8 have no name of their own and are written that way). Those entries are the
 * array's `format` in memory: st_read() takes them out of `meta`, st_write() puts them in, and
 * refuses a `meta` that has some already. Signed integers are read as plain bits, and would be
 * written as unsigned.
 *
 * F4 wants an even last dimension, F6 a multiple of 4 elements. st_write() puts wide elements
 * first, so that all are aligned, else keeps the order of `array`.
 */
bool st_read(const char *path, struct st_file *out, struct io_error *e);
/*
 * Reads only n tensors, those with the names of `like`, in its order; each must have its format
 * (or plain bits) and its shape. One that the file has not is left empty: its `data` is NULL.
 * Of the rest of the file only the header is read, and checked as st_read() does. One that is
 * idle is an error.
 */
bool st_read_some(const char *path, const struct io_array *like, size_t n, struct st_file *out,
                  struct io_error *e);
bool st_write(const char *path, const struct st_file *file, struct io_error *e);
bool st_stage(struct io_files *files, const char *path, const struct st_file *file,
              struct io_error *e);
const struct io_array *st_find(const struct st_file *file, const char *name);
/* The only array of the kind: elements, or with `plain` integers; or the only one at all. NULL
 * where there is none, or a choice. */
const struct io_array *st_only(const struct st_file *file, bool plain);
/* Why the tensor of that name is no array, or NULL; with NULL for a name, of the first idle
 * one. */
const char *st_why(const struct st_file *file, const char *name);
/* The names of the arrays, as many as have room: "a, b, ..". */
struct st_names {
    char text[120];
};
struct st_names st_names(const struct st_file *file);
const char *st_meta_get(const struct st_file *file, const char *key);
void st_free(struct st_file *file);

/*
 * The cores: from and to memory, for the above and for fuzzing. `path` only names the file in
 * messages.
 */

/* What a sidecar says. */
struct npy_side {
    ng_format format;   /* NONE: plain */
    uint32_t item_bits; /* of plain elements */
    bool has_shape;
    uint32_t rank;
    int64_t dim[NG_MAX_RANK];
};
/* `side` is NULL where there is no sidecar. */
bool npy_parse(const void *data, size_t bytes, const char *path, ng_format as, bool plain,
               const struct npy_side *side, struct io_array *out, struct io_error *e);
bool npy_side_parse(const void *data, size_t bytes, const char *path, struct npy_side *out,
                    struct io_error *e);
bool npy_build(const struct io_array *a, const char *path, void **data, size_t *bytes,
               struct io_error *e);
bool st_parse(const void *data, size_t bytes, const char *path, struct st_file *out,
              struct io_error *e);
bool st_parse_some(const void *data, size_t bytes, const char *path,
                   const struct io_array *like, size_t n, struct st_file *out,
                   struct io_error *e);
bool st_build(const struct st_file *file, const char *path, void **data, size_t *bytes,
              struct io_error *e);

struct raw_spec {
    ng_format format;
    uint32_t item_bits, rank;
    int64_t dim[NG_MAX_RANK];
    size_t bytes; /* of the tensor */
    uint64_t offset;
    bool has_offset;
};
bool raw_parse_spec(const char *spec, struct raw_spec *out, struct io_error *e);

bool hex_parse(const void *text, size_t bytes, const char *path, const struct raw_spec *s,
               void **data, struct io_error *e);
bool hex_build(const struct io_array *a, const char *path, void **data, size_t *bytes,
               struct io_error *e);

/* What the three formats share. */

#if defined(__GNUC__)
#define IO_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define IO_PRINTF(f, a)
#endif
/* Writes "PATH: ..." and returns false. Control characters, which may come from a hostile file,
 * become '?'. */
bool io_fail(struct io_error *e, const char *path, const char *format, ...) IO_PRINTF(3, 4);
bool io_no_memory(struct io_error *e, const char *path, const char *format, ...)
    IO_PRINTF(3, 4);

/* Is there a regular file? Asked before it is opened: opening a pipe waits, a device acts. */
bool io_regular(const char *path, struct io_error *e);
/* A regular file, open for reading. */
struct io_file {
    int fd;
    uint64_t bytes;
    const char *path;
};
bool io_open(const char *path, struct io_file *f, struct io_error *e);
bool io_read_at(const struct io_file *f, uint64_t offset, void *data, size_t bytes,
                struct io_error *e);
void io_close(struct io_file *f);

/* Bytes in memory; 0 when a dimension is not positive or the size overflows. */
size_t io_array_size(ng_format format, uint32_t item_bits, uint32_t rank, const int64_t *dim);
/* Is this array what its own fields say? Asked before anything is written. */
bool io_array_check(const struct io_array *a, const char *path, struct io_error *e);
/* "e4m3fn", or "u8".."u64" for plain elements. */
const char *io_type_name(ng_format format, uint32_t item_bits);
/* The reverse; exact. False for a name that is neither. */
bool io_type_find(const char *name, ng_format *format, uint32_t *item_bits);

/* A decimal number, digits only. NULL, or what is wrong with it ("is negative"). */
const char *io_number(const char *text, size_t length, int64_t *value);
/* "[2, 3]" */
struct io_shape_text {
    char text[NG_MAX_RANK * 24];
};
struct io_shape_text io_shape(uint32_t rank, const int64_t *dim);

/* JSON text; trailing white space only. NULL after a failure. */
struct json_t;
struct json_t *io_json(const void *data, size_t bytes, const char *path, const char *what,
                       struct io_error *e);
/* A shape from a JSON array; `where` begins the message: "tensor 'w': ". */
bool io_json_shape(const struct json_t *json, const char *path, const char *where,
                   uint32_t *rank, int64_t *dim, struct io_error *e);

#endif
