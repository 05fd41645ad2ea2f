/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the tensor files: round trips, truncated and corrupted files, hostile headers.
 *
 *   test_io                     runs the tests
 *   test_io --dump DIR          writes one file of each kind and format (also fuzzing seeds)
 *   test_io --show npy FILE FORMAT|plain|-
 *   test_io --show st FILE      prints NAME FORMAT SHAPE HEX of each tensor (cross_io.py)
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "../../src/cli/io.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static unsigned checks, failures;
static char dir[64];
static struct io_error err;

static bool check_at(int line, bool ok, const char *format, ...) IO_PRINTF(3, 4);
static bool check_at(int line, bool ok, const char *format, ...)
{
    checks++;
    if (!ok) {
        failures++;
        printf("test_io.c:%d: ", line);
        va_list args;
        va_start(args, format);
        vprintf(format, args);
        va_end(args);
        printf("\n");
    }
    return ok;
}
#define CHECK(ok, ...) check_at(__LINE__, ok, __VA_ARGS__)

/* ---- helpers ---- */

/* A path in the temporary directory; four may be in use at once. */
static const char *in_dir(const char *name)
{
    static char path[4][512];
    static unsigned next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%.300s", dir, name);
    return p;
}

static void put_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) {
        printf("cannot write %s\n", path);
        exit(2);
    }
}

static void *need(void *p)
{
    if (p == NULL) {
        printf("no memory\n");
        exit(2);
    }
    return p;
}

/* An array of some shape, filled with all kinds of codes. */
static struct io_array make(const char *name, ng_format format, uint32_t bits, uint32_t rank,
                            const int64_t *dim)
{
    static uint32_t seed = 1;
    const ng_format_spec *spec = ng_format_info(format);
    struct io_array a;
    memset(&a, 0, sizeof a);
    snprintf(a.name, sizeof a.name, "%s", name);
    a.format = format;
    a.item_bits = spec != NULL ? spec->store_bits : bits;
    a.rank = rank;
    for (uint32_t i = 0; i < rank; i++) {
        a.dim[i] = dim[i];
    }
    a.bytes = io_array_size(format, a.item_bits, rank, dim);
    unsigned char *p = need(malloc(a.bytes));
    for (size_t i = 0; i < a.bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (unsigned char)(seed >> 24);
        if (spec != NULL && spec->bits == 6) {
            p[i] &= 0x3f;
        }
    }
    a.data = p;
    return a;
}

static bool same(const struct io_array *a, const struct io_array *b)
{
    return a->format == b->format && a->item_bits == b->item_bits && a->rank == b->rank &&
           memcmp(a->dim, b->dim, a->rank * sizeof a->dim[0]) == 0 && a->bytes == b->bytes &&
           memcmp(a->data, b->data, a->bytes) == 0;
}

/* The message of a failure: begins with the path, and has `want` in it. */
static void expect_message(int line, const char *path, const char *want)
{
    size_t n = strlen(path);
    check_at(line, strncmp(err.text, path, n) == 0 && err.text[n] == ':',
             "message '%s' does not begin with '%s:'", err.text, path);
    check_at(line, strstr(err.text, want) != NULL, "message '%s' lacks '%s'", err.text, want);
}

/* ---- round trips ---- */

static const struct {
    uint32_t rank;
    int64_t dim[NG_MAX_RANK];
} shapes[] = {
    { 0, { 0 } },          { 1, { 1 } },       { 1, { 5 } },          { 1, { 8 } },
    { 2, { 2, 6 } },       { 2, { 3, 5 } },    { 2, { 1, 1 } },       { 3, { 2, 3, 4 } },
    { 4, { 2, 1, 3, 5 } }, { 2, { 64, 130 } }, { 4, { 3, 2, 2, 2 } },
};
#define SHAPES (sizeof shapes / sizeof shapes[0])

static void trip_npy(const struct io_array *a)
{
    const char *path = in_dir("trip.npy");
    struct io_array b;
    bool plain = a->format == NG_FORMAT_NONE;
    if (!CHECK(npy_write(path, a, &err), "%s", err.text)) {
        return;
    }
    for (int with = 0; with < 2; with++) {
        /* By the sidecar, then by what is asked; an odd row needs the sidecar's shape. */
        ng_format as = with ? a->format : NG_FORMAT_NONE;
        bool odd = a->item_bits < 8 && (a->rank == 0 || a->dim[a->rank - 1] % 2 != 0);
        if (with && !odd) {
            unlink(in_dir("trip.npy.json"));
        }
        if (CHECK(npy_read(path, as, plain, &b, &err), "%s", err.text)) {
            CHECK(same(a, &b), "npy %s rank %u differs", io_type_name(a->format, a->item_bits),
                  a->rank);
            io_array_free(&b);
        }
    }
}

static void trip_raw(const struct io_array *a)
{
    char spec[160] = "";
    struct io_array b;
    size_t at =
        (size_t)snprintf(spec, sizeof spec, "%s:", io_type_name(a->format, a->item_bits));
    for (uint32_t i = 0; i < a->rank; i++) {
        at += (size_t)snprintf(spec + at, sizeof spec - at, "%s%" PRId64, i > 0 ? "x" : "",
                               a->dim[i]);
    }
    if (a->rank == 0) {
        snprintf(spec + at, sizeof spec - at, "1");
    }
    static const char *const names[] = { "trip.bin", "trip.hex" };
    for (size_t i = 0; i < 2; i++) {
        const char *path = in_dir(names[i]);
        CHECK(raw_write(path, a, &err), "%s", err.text);
        if (CHECK(raw_read(path, spec, &b, &err), "%s", err.text)) {
            /* hex text has no half byte behind an odd row */
            const bool part =
                i && a->format == NG_E2M1 && (!a->rank || a->dim[a->rank - 1] % 2);
            CHECK(b.bytes == a->bytes && (part || memcmp(a->data, b.data, a->bytes) == 0),
                  "%s %s differs", names[i], spec);
            CHECK(a->rank == 0 || part || same(a, &b), "%s %s differs", names[i], spec);
            io_array_free(&b);
        }
    }
}

/* Can this array be in a safetensors file? */
static bool st_takes(const struct io_array *a)
{
    if (a->format == NG_E2M1) {
        return a->rank > 0 && a->dim[a->rank - 1] % 2 == 0;
    }
    return (a->format != NG_E3M2 && a->format != NG_E2M3) || a->bytes % 4 == 0;
}

static void trip_st(struct io_array *a)
{
    const char *path = in_dir("trip.safetensors");
    struct st_meta meta = { (char *)(uintptr_t) "who", (char *)(uintptr_t) "\xc3\xbc \"\\ \n" };
    struct st_file file = { .array = a, .n_arrays = 1, .meta = &meta, .n_meta = 1 }, back;
    bool takes = st_takes(a);
    bool ok = st_write(path, &file, &err);
    CHECK(ok == takes, "st %s %s: %s", io_type_name(a->format, a->item_bits),
          io_shape(a->rank, a->dim).text, ok ? "was written" : err.text);
    if (ok && CHECK(st_read(path, &back, &err), "%s", err.text)) {
        CHECK(back.n_arrays == 1 && same(a, back.array), "st %s differs",
              io_type_name(a->format, a->item_bits));
        CHECK(st_find(&back, a->name) == back.array, "st_find");
        const char *who = st_meta_get(&back, "who");
        CHECK(back.n_meta == 1 && who != NULL && strcmp(who, meta.value) == 0, "metadata");
        CHECK(st_find(&back, "x") == NULL && st_meta_get(&back, "x") == NULL,
              "found a nothing");
        st_free(&back);
    }
}

static void round_trips(void)
{
    for (size_t s = 0; s < SHAPES; s++) {
        const ng_format_spec *spec;
        for (size_t i = 0; (spec = ng_format_at(i)) != NULL; i++) {
            struct io_array a = make("w", spec->format, 0, shapes[s].rank, shapes[s].dim);
            trip_npy(&a);
            trip_raw(&a);
            trip_st(&a);
            io_array_free(&a);
        }
        for (uint32_t bits = 8; bits <= 64; bits *= 2) {
            struct io_array a =
                make("tags", NG_FORMAT_NONE, bits, shapes[s].rank, shapes[s].dim);
            trip_npy(&a);
            trip_raw(&a);
            trip_st(&a);
            io_array_free(&a);
        }
    }
}

/* One array of every format, 2 by 6. */
static size_t one_of_each(struct io_array *list, size_t room)
{
    const int64_t dim[2] = { 2, 6 };
    size_t n = 0;
    const ng_format_spec *spec;
    for (; (spec = ng_format_at(n)) != NULL && n + 4 < room; n++) {
        list[n] = make(spec->text, spec->format, 0, 2, dim);
    }
    for (uint32_t bits = 8; bits <= 64; bits *= 2) {
        list[n++] = make(io_type_name(NG_FORMAT_NONE, bits), NG_FORMAT_NONE, bits, 2, dim);
    }
    return n;
}

static void st_together(void)
{
    struct io_array list[64];
    struct st_file file = { .array = list, .n_arrays = one_of_each(list, 64) }, back;
    const char *path = in_dir("all.safetensors");
    CHECK(st_write(path, &file, &err), "%s", err.text);
    if (CHECK(st_read(path, &back, &err), "%s", err.text)) {
        CHECK(back.n_arrays == file.n_arrays, "%zu arrays", back.n_arrays);
        CHECK(back.n_meta == 0, "format entries stayed in the metadata");
        for (size_t i = 0; i < file.n_arrays; i++) {
            const struct io_array *b = st_find(&back, list[i].name);
            CHECK(b != NULL && same(b, &list[i]), "array '%s' differs", list[i].name);
        }
        st_free(&back);
    }
    for (size_t i = 0; i < file.n_arrays; i++) {
        io_array_free(&list[i]);
    }
    /* No tensors is a valid file. */
    struct st_file none = { .n_arrays = 0 };
    CHECK(st_write(path, &none, &err) && st_read(path, &back, &err), "%s", err.text);
    CHECK(back.n_arrays == 0 && back.n_meta == 0, "an empty file has something in it");
    st_free(&back);
}

/* ---- .npy by hand ---- */

/* A .npy of this header (a line feed is added) and `items` bytes 0, 1, 2.. */
static void *npy_of(int version, const char *header, size_t items, size_t *bytes)
{
    size_t n = strlen(header) + 1, base = version == 1 ? 10 : 12;
    unsigned char *p = need(calloc(base + n + items, 1));
    memcpy(p, "\x93NUMPY", 6);
    p[6] = (unsigned char)version;
    p[8] = n & 0xff;
    p[9] = (n >> 8) & 0xff;
    memcpy(p + base, header, n - 1);
    p[base + n - 1] = '\n';
    for (size_t i = 0; i < items; i++) {
        p[base + n + i] = (unsigned char)i;
    }
    *bytes = base + n + items;
    return p;
}

static void bad_npy_bytes(int line, const void *data, size_t bytes, ng_format as, bool plain,
                          const char *want)
{
    struct io_array out, before;
    memset(&before, 0xa5, sizeof before);
    out = before;
    if (check_at(line, !npy_parse(data, bytes, "h.npy", as, plain, NULL, &out, &err),
                 "was read, but '%s' is wanted", want)) {
        expect_message(line, "h.npy", want);
        check_at(line, memcmp(&out, &before, sizeof out) == 0, "the output was written");
    } else {
        io_array_free(&out);
    }
}

static void bad_npy_at(int line, const char *header, size_t items, ng_format as,
                       const char *want)
{
    size_t bytes;
    void *p = npy_of(1, header, items, &bytes);
    bad_npy_bytes(line, p, bytes, as, as == NG_FORMAT_NONE, want);
    free(p);
}
#define BAD_NPY(header, items, as, want) bad_npy_at(__LINE__, header, items, as, want)
/* Only the descr, or only the shape, is what is tested; 4 bytes of items. */
#define BAD_DESCR(descr, as, want)                                                             \
    BAD_NPY("{'descr': " descr ", 'fortran_order': False, 'shape': (4,), }", 4, as, want)
#define BAD_SHAPE(shape, want)                                                                 \
    BAD_NPY("{'descr': '|u1', 'fortran_order': False, 'shape': " shape ", }", 4, NG_E4M3FN,    \
            want)

static void npy_hostile_types(void)
{
    BAD_DESCR("'>f4'", NG_F32, "big-endian");
    BAD_DESCR("'>u2'", NG_FORMAT_NONE, "big-endian");
    BAD_DESCR("'=f4'", NG_F32, "byte order");
    BAD_DESCR("'f4'", NG_F32, "byte order");
    BAD_DESCR("'|f4'", NG_F32, "byte order");
    BAD_DESCR("'|O'", NG_F32, "object arrays");
    BAD_DESCR("'O'", NG_FORMAT_NONE, "object arrays");
    BAD_DESCR("[('a', '<f4'), ('b', '<f4')]", NG_F32, "structured");
    BAD_DESCR("('<f4', (2,))", NG_F32, "structured");
    BAD_DESCR("'<f4'", NG_E4M3FN, "has '<f4' items, but e4m3fn takes 8-bit ones");
    BAD_DESCR("'<f2'", NG_BF16, "another format than bf16");
    BAD_DESCR("'<f1'", NG_E4M3FN, "another format than e4m3fn");
    BAD_DESCR("'<u4'", NG_F16, "f16 takes 16-bit");
    BAD_DESCR("'<f8'", NG_F32, "f32 takes 32-bit");
    BAD_DESCR("'|b1'", NG_E4M3FN, "'|b1'");
    BAD_DESCR("'<c8'", NG_F32, "'<c8'");
    BAD_DESCR("'<U1'", NG_F32, "'<U1'");
    BAD_DESCR("'|S1'", NG_E4M3FN, "'|S1'");
    BAD_DESCR("'|V1'", NG_E2M1, "one code a byte");
    BAD_DESCR("'|V1'", NG_FORMAT_NONE, "integers of 8, 16, 32 or 64");
    BAD_DESCR("'<f4'", NG_FORMAT_NONE, "integers of 8, 16, 32 or 64");
    BAD_DESCR("'<u3'", NG_FORMAT_NONE, "integers of 8, 16, 32 or 64");
    BAD_DESCR("'<u0'", NG_FORMAT_NONE, "not of the form");
    BAD_DESCR("'<u99999999999999999999'", NG_FORMAT_NONE, "not of the form");
    BAD_DESCR("''", NG_F32, "not of the form");
    BAD_DESCR("'<'", NG_F32, "not of the form");
    BAD_DESCR("'<M8[ns]'", NG_F32, "not of the form");
    BAD_DESCR("'<f4", NG_F32, "'<f4, ' is not of the form");
    BAD_NPY("{'descr': '<f4", 4, NG_F32, "0x0a at byte 24");
    BAD_DESCR("'<f\\x34'", NG_F32, "descr, a short quoted string");
    BAD_DESCR("'<f4\xff'", NG_F32, "byte 0xff");
    BAD_DESCR("'<f44444444444444444444444444'", NG_F32, "a short quoted string");
    BAD_DESCR("4", NG_F32, "a short quoted string");
    BAD_DESCR("None", NG_F32, "a short quoted string");
    BAD_DESCR("'<f4'", (ng_format)0x7f, "format number 127");
}

static void npy_hostile_shapes(void)
{
    BAD_SHAPE("(5,)", "has 4 bytes after its header, but '|u1' [5] takes 5");
    BAD_SHAPE("(3,)", "'|u1' [3] takes 3");
    BAD_SHAPE("(-4,)", "('-4', at byte 61) is negative");
    BAD_SHAPE("(0,)", "empty tensors");
    BAD_SHAPE("(4, 0)", "empty tensors");
    BAD_SHAPE("(4)", "a tuple (4,) is wanted");
    BAD_SHAPE("(4L,)", "not a whole number");
    BAD_SHAPE("(4.0,)", "not a whole number");
    BAD_SHAPE("(0x4,)", "not a whole number");
    BAD_SHAPE("(1e1,)", "not a whole number");
    BAD_SHAPE("(+4,)", "not a whole number");
    BAD_SHAPE("(4_0,)", "not a whole number");
    BAD_SHAPE("(04,)", "begins with a 0");
    BAD_SHAPE("(,)", "is missing");
    BAD_SHAPE("(4,,)", "is missing");
    BAD_SHAPE("(4 4)", "',' or ')'");
    BAD_SHAPE("(4", "('}', at byte 64) is not a whole number");
    BAD_SHAPE("[4]", "'(' of the shape");
    BAD_SHAPE("4", "'(' of the shape");
    BAD_SHAPE("(1, 1, 1, 1, 4)", "more than 4 dimensions");
    BAD_SHAPE("((4,),)", "not a whole number");
    BAD_SHAPE("(9223372036854775808,)", "63 bits");
    BAD_SHAPE("(9223372036854775807,)", "[9223372036854775807] takes");
    BAD_SHAPE("(9223372036854775807, 2)", "more than memory holds");
    BAD_SHAPE("(4294967296, 4294967296)", "more than memory holds");
    BAD_SHAPE("(4294967296, 1073741824, 4)", "more than memory holds");
    BAD_SHAPE("(99999999999999999999999999999999999,)", "63 bits");
    BAD_NPY("{'descr': '|u1', 'fortran_order': False, 'shape': (9223372036854775807,), }", 4,
            NG_E2M1, "overflows");
    BAD_NPY("{'descr': '<u8', 'fortran_order': False, 'shape': (2305843009213693952,), }", 4,
            NG_FORMAT_NONE, "more than memory holds");
    BAD_NPY("{'descr': '|u1', 'fortran_order': False, 'shape': (), }", 1, NG_E2M1,
            "one code or two");
}

static void npy_hostile_dicts(void)
{
    BAD_NPY("", 4, NG_F32, "'{' is wanted");
    BAD_NPY("[]", 4, NG_F32, "'{' is wanted");
    BAD_NPY("{}", 4, NG_F32, "no key 'descr'");
    BAD_NPY("{'descr': '<f4', 'shape': (1,), }", 4, NG_F32, "no key 'fortran_order'");
    BAD_NPY("{'descr': '<f4', 'fortran_order': False, }", 4, NG_F32, "no key 'shape'");
    BAD_NPY("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", 4,
            NG_F32, "twice the key 'descr'");
    BAD_NPY("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", 4, NG_F32,
            "unknown key 'x'");
    BAD_NPY("{'descr': '<f4' 'fortran_order': False, 'shape': (1,), }", 4, NG_F32,
            "',' or '}'");
    BAD_NPY("{'descr' '<f4', 'fortran_order': False, 'shape': (1,), }", 4, NG_F32, "':'");
    BAD_NPY("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }", 4, NG_F32,
            "True or False");
    BAD_NPY("{'descr': '<f4', 'fortran_order': false, 'shape': (1,), }", 4, NG_F32,
            "True or False");
    BAD_NPY("{'descr': '<f4', 'fortran_order': Falsey, 'shape': (1,), }", 4, NG_F32,
            "',' or '}'");
    BAD_NPY("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", 4, NG_F32,
            "a line feed");
    BAD_NPY("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n", 4, NG_F32,
            "a line feed");
    BAD_NPY("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), ", 4, NG_F32, "a key");
    BAD_NPY("{,}", 4, NG_F32, "a key");
    BAD_NPY("{descr: '<f4', 'fortran_order': False, 'shape': (1,), }", 4, NG_F32, "a key");
    BAD_NPY("{'\xc3\xa9': 1}", 4, NG_F32, "a key");
    BAD_NPY("{'a\\'': 1}", 4, NG_F32, "a key");
}

/* What is not in the dictionary: magic, version, lengths. */
static void npy_hostile_frames(void)
{
    const char *good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
    size_t bytes;
    unsigned char *p = npy_of(1, good, 4, &bytes);
    p[6] = 4;
    bad_npy_bytes(__LINE__, p, bytes, NG_F32, false, "version 4.0");
    p[6] = 0;
    bad_npy_bytes(__LINE__, p, bytes, NG_F32, false, "version 0.0");
    p[6] = 1;
    p[7] = 1;
    bad_npy_bytes(__LINE__, p, bytes, NG_F32, false, "version 1.1");
    p[7] = 0;
    p[9] = 0xff;
    bad_npy_bytes(__LINE__, p, bytes, NG_F32, false, "claims 65");
    p[9] = 0;
    bad_npy_bytes(__LINE__, p, bytes, NG_F32, true, "both as f32 and as plain");
    bad_npy_bytes(__LINE__, p, bytes, NG_FORMAT_NONE, false, "does not say what format");
    p[0] = 0;
    bad_npy_bytes(__LINE__, p, bytes, NG_F32, false, "does not begin with");
    free(p);
    p = npy_of(2, good, 4, &bytes);
    p[11] = 0xff;
    bad_npy_bytes(__LINE__, p, bytes, NG_F32, false, "claims 4278");
    bad_npy_bytes(__LINE__, p, 10, NG_F32, false, "inside the length");
    free(p);
    bad_npy_bytes(__LINE__, "", 0, NG_F32, false, "shorter than 10 bytes");
}

/* Headers that numpy writes, or reads, and that must be read. */
static void good_npy(const char *header, size_t items, ng_format as, bool plain, size_t bytes)
{
    for (int version = 1; version <= 3; version++) {
        struct io_array a;
        size_t n;
        void *p = npy_of(version, header, items, &n);
        if (CHECK(npy_parse(p, n, "g.npy", as, plain, NULL, &a, &err), "%s", err.text)) {
            CHECK(a.bytes == bytes, "%s: %zu bytes", header, a.bytes);
            io_array_free(&a);
        }
        free(p);
    }
}

static void npy_good(void)
{
    good_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }   ", 4, NG_F32, false,
             4);
    good_npy("{'shape':(2,2),'descr':\"<u4\",'fortran_order':True}", 16, NG_TF32, false, 16);
    good_npy("{ 'shape' : ( 2 , 2 , ) , 'descr' : '<f2' , 'fortran_order' : False }", 8, NG_F16,
             false, 8);
    good_npy("{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }", 4, NG_BF16, false, 4);
    good_npy("{'descr': '|V2', 'fortran_order': False, 'shape': (2,), }", 4, NG_BF16, false, 4);
    good_npy("{'descr': '<V1', 'fortran_order': False, 'shape': (2,), }", 2, NG_E4M3, false, 2);
    good_npy("{'descr': '|V1', 'fortran_order': False, 'shape': (2,), }", 2, NG_E3M2, false, 2);
    good_npy("{'descr': '<f1', 'fortran_order': False, 'shape': (2,), }", 2, NG_E5M2, false, 2);
    good_npy("{'descr': '|i1', 'fortran_order': False, 'shape': (2,), }", 2, NG_MXINT8, false,
             2);
    good_npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }", 6, NG_E2M1, false,
             6);
    good_npy("{'descr': '<i8', 'fortran_order': False, 'shape': (), }", 8, NG_FORMAT_NONE, true,
             8);
}

static void npy_fortran(void)
{
    /* Items 0..23 in Fortran order: element [i, j, k] of (2, 3, 4) is i + 2*j + 6*k. */
    struct io_array a;
    size_t n;
    void *p =
        npy_of(1, "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 4), }", 24, &n);
    if (CHECK(npy_parse(p, n, "f.npy", NG_FORMAT_NONE, true, NULL, &a, &err), "%s", err.text)) {
        const unsigned char *at = a.data;
        for (int i = 0; i < 2; i++) {
            for (int j = 0; j < 3; j++) {
                for (int k = 0; k < 4; k++, at++) {
                    CHECK(*at == i + 2 * j + 6 * k, "[%d, %d, %d] is %d", i, j, k, *at);
                }
            }
        }
        io_array_free(&a);
    }
    if (CHECK(npy_parse(p, n, "f.npy", NG_E2M1, false, NULL, &a, &err), "%s", err.text)) {
        CHECK(a.dim[0] == 2 && a.dim[1] == 3 && a.dim[2] == 8, "%s", io_shape(3, a.dim).text);
        io_array_free(&a);
    }
    free(p);
}

/* ---- sidecars ---- */

static void side_at(int line, const char *json, ng_format as, bool plain, const char *want)
{
    const char *path = in_dir("side.npy");
    struct io_array a;
    size_t n;
    void *p = npy_of(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }", 6, &n);
    put_file(path, p, n);
    free(p);
    unlink(in_dir("side.npy.json"));
    if (json != NULL) {
        put_file(in_dir("side.npy.json"), json, strlen(json));
    }
    bool ok = npy_read(path, as, plain, &a, &err);
    check_at(line, ok == (want == NULL), "%s", ok ? "was read" : err.text);
    if (ok) {
        io_array_free(&a);
    } else if (want != NULL) {
        check_at(line, strstr(err.text, want) != NULL, "message '%s' lacks '%s'", err.text,
                 want);
    }
}
#define SIDE(json, as, plain, want) side_at(__LINE__, json, as, plain, want)

static void sidecars(void)
{
    const ng_format none = NG_FORMAT_NONE;
    SIDE(NULL, none, false, "does not say what format");
    SIDE(NULL, none, true, NULL);
    SIDE(NULL, NG_E4M3FN, false, NULL);
    SIDE("{\"format\": \"e4m3fn\", \"shape\": [2, 3]}", none, false, NULL);
    SIDE("{\"format\": \"e4m3fn\"}", none, false, NULL);
    SIDE("{\"format\": \"e4m3fn\"}", NG_E4M3FN, false, NULL);
    SIDE("{\"format\": \"e2m1\"}", none, false, NULL);
    SIDE("{\"format\": \"e2m1\", \"shape\": [2, 5]}", none, false, NULL);
    SIDE("{\"format\": \"e2m1\", \"shape\": [2, 6]}", none, false, NULL);
    SIDE("{\"format\": \"u8\", \"shape\": [2, 3]}", none, true, NULL);
    SIDE("{\"format\": \"e4m3fn\"}", NG_E4M3, false, "says e4m3fn, but e4m3 was asked");
    SIDE("{\"format\": \"e4m3fn\"}", none, true, "says e4m3fn, but plain integers");
    SIDE("{\"format\": \"u8\"}", none, false, "says u8, but an element format");
    SIDE("{\"format\": \"u8\"}", NG_E4M3FN, false, "says u8, but e4m3fn");
    SIDE("{\"format\": \"u16\"}", none, true, "says u16, but the items are '|u1'");
    SIDE("{\"format\": \"f32\"}", none, false, "f32 takes 32-bit");
    SIDE("{\"format\": \"e4m3fn\", \"shape\": [3, 2]}", none, false, "e4m3fn [3, 2]");
    SIDE("{\"format\": \"e4m3fn\", \"shape\": [6]}", none, false, "e4m3fn [6]");
    SIDE("{\"format\": \"e4m3fn\", \"shape\": []}", none, false, "e4m3fn []");
    SIDE("{\"format\": \"e2m1\", \"shape\": [2, 3]}", none, false, "bytes of two codes");
    SIDE("{\"format\": \"e2m1\", \"shape\": [2, 7]}", none, false, "e2m1 [2, 7]");
    SIDE("{\"format\": \"e4m3fn\", \"shape\": [2, 3, 1, 1, 1]}", none, false, "5 dimensions");
    SIDE("{\"format\": \"e4m3fn\", \"shape\": [2, 3.0]}", none, false, "whole number");
    SIDE("{\"format\": \"e4m3fn\", \"shape\": [2, -3]}", none, false, "-3");
    SIDE("{\"format\": \"e4m3fn\", \"shape\": [2, 0]}", none, false, "empty");
    SIDE("{\"format\": \"e4m3fn\", \"shape\": 6}", none, false, "not an array");
    SIDE("{\"format\": \"E4M3FN\"}", none, false, "no element format");
    SIDE("{\"format\": 17}", none, false, "no string 'format'");
    SIDE("{\"shape\": [2, 3]}", none, false, "no string 'format'");
    SIDE("{\"format\": \"e4m3fn\", \"scale\": 1}", none, false, "'scale'");
    SIDE("{\"format\": \"e4m3fn\", \"format\": \"e4m3\"}", none, false, "duplicate");
    SIDE("[]", none, false, "not a JSON object");
    SIDE("", none, false, "not valid JSON");
    SIDE("{\"format\": \"\xff\"}", none, false, "not valid JSON");
    unlink(in_dir("side.npy.json"));
    mkdir(in_dir("side.npy.json"), 0700);
    CHECK(!npy_read(in_dir("side.npy"), NG_E4M3FN, false, &(struct io_array){ 0 }, &err),
          "a directory was read as a sidecar");
    CHECK(strstr(err.text, "directory") != NULL, "%s", err.text);
    rmdir(in_dir("side.npy.json"));
}

/* ---- safetensors by hand ---- */

static void *st_of(const char *json, size_t length, size_t buffer, size_t *bytes)
{
    unsigned char *p = need(calloc(8 + length + buffer, 1));
    for (int i = 0; i < 8; i++) {
        p[i] = ((uint64_t)length >> (8 * i)) & 0xff;
    }
    memcpy(p + 8, json, length);
    *bytes = 8 + length + buffer;
    return p;
}

static void bad_st_bytes(int line, const void *data, size_t bytes, const char *want)
{
    struct st_file out, before;
    memset(&before, 0xa5, sizeof before);
    out = before;
    if (check_at(line, !st_parse(data, bytes, "h.safetensors", &out, &err),
                 "was read, but '%s' is wanted", want)) {
        expect_message(line, "h.safetensors", want);
        check_at(line, memcmp(&out, &before, sizeof out) == 0, "the output was written");
    } else {
        st_free(&out);
    }
}

static void bad_st_at(int line, const char *json, size_t buffer, const char *want)
{
    size_t bytes;
    void *p = st_of(json, strlen(json), buffer, &bytes);
    bad_st_bytes(line, p, bytes, want);
    free(p);
}
#define BAD_ST(json, buffer, want) bad_st_at(__LINE__, json, buffer, want)
/* A file whose one tensor 'w' is no array here: read, but only without it. */
static void idle_st_at(int line, const char *json, size_t buffer, const char *want)
{
    struct st_file out;
    const struct io_array like = { .name = "w", .item_bits = 8, .rank = 1, .dim = { 1 } };
    size_t bytes;
    void *p = st_of(json, strlen(json), buffer, &bytes);
    if (check_at(line, st_parse(p, bytes, "h.safetensors", &out, &err), "%s", err.text)) {
        const char *why = st_why(&out, "w");
        check_at(line, out.n_arrays == 0 && out.n_idle == 1 && st_find(&out, "w") == NULL,
                 "an array was made of it");
        check_at(line, why != NULL && strstr(why, want) != NULL, "'%s' does not say '%s'",
                 why == NULL ? "nothing" : why, want);
        st_free(&out);
    }
    if (check_at(line, !st_parse_some(p, bytes, "h.safetensors", &like, 1, &out, &err),
                 "it was read where it is asked for")) {
        expect_message(line, "h.safetensors", want);
    }
    if (check_at(line, st_parse_some(p, bytes, "h.safetensors", &like, 0, &out, &err), "%s",
                 err.text)) {
        st_free(&out);
    }
    free(p);
}
#define IDLE_ST(json, buffer, want) idle_st_at(__LINE__, json, buffer, want)
/* One tensor 'w'. */
#define W(dtype, shape, offsets)                                                               \
    "{\"w\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define U8(name, begin, end, size)                                                             \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" size "],\"data_offsets\":[" begin "," end "]" \
    "}"

static void st_hostile_lengths(void)
{
    unsigned char p[32] = { 0 };
    for (size_t n = 0; n < 8; n++) {
        bad_st_bytes(__LINE__, p, n, "begins with 8 bytes");
    }
    bad_st_bytes(__LINE__, p, 8, "does not begin with '{'");
    p[0] = 100;
    bad_st_bytes(__LINE__, p, 32, "claims 100 bytes, but only 24 follow");
    p[3] = 0x7f;
    bad_st_bytes(__LINE__, p, 32, "at most 100000000 are allowed");
    memset(p, 0xff, 8);
    bad_st_bytes(__LINE__, p, 32, "claims 18446744073709551615 bytes");
    BAD_ST("", 0, "does not begin with '{'");
    BAD_ST(" {}", 0, "does not begin with '{'");
    BAD_ST("[]", 0, "does not begin with '{'");
    BAD_ST("\xef\xbb\xbf{}", 0, "does not begin with '{'");
    BAD_ST("{", 0, "not valid JSON");
    BAD_ST("{} x", 0, "not valid JSON");
    BAD_ST("{}{}", 0, "not valid JSON");
    BAD_ST("{\"w\":\"\xff\xfe\"}", 0, "not valid JSON");
    BAD_ST("{\"\xc0\x80\":1}", 0, "not valid JSON");
    BAD_ST("{\"a\\u0000b\":1}", 0, "not valid JSON");
    BAD_ST("{\"\\ud800\":1}", 0, "not valid JSON");
    BAD_ST("{}", 1, "bytes 0 to 1, the end of the buffer, belong to no tensor");
    bad_st_bytes(__LINE__, "\3\0\0\0\0\0\0\0{\0}", 11, "not valid JSON");
}

static void st_hostile_nesting(void)
{
    enum {
        DEEP = 200000,
        MANY = 1000000
    };
    char *text = need(malloc(2 * DEEP + 1));
    text[0] = '{';
    memset(text + 1, '[', DEEP);
    text[DEEP] = 0;
    BAD_ST(text, 0, "nests deeper");
    memcpy(text, "{\"w\":[", 6);
    for (size_t i = 6; i + 1 < 2 * DEEP; i += 2) {
        memcpy(text + i, "0,", 2);
    }
    text[2 * DEEP - 1] = ']';
    text[2 * DEEP] = 0;
    BAD_ST(text, 0, "array of more than 64 items");
    free(text);
    text = need(malloc(MANY * 10 + 64));
    size_t at = (size_t)sprintf(text, "{\"__metadata__\":{\"x\":\"\"");
    for (unsigned i = 0; i < MANY; i++) {
        at += (size_t)sprintf(text + at, ",\"%x\":1", i);
    }
    strcpy(text + at, "}}");
    BAD_ST(text, 0, "more than 1000000 members");
    free(text);
    BAD_ST("{\"w\":{\"a\":{\"b\":{\"c\":1}}}}", 0, "unknown key 'a'");
    BAD_ST("{\"a[[[[[[[[[\\\"[[[[[[\":1}", 0, "not described by a JSON object");
}

static void st_hostile_tensors(void)
{
    BAD_ST("{\"w\":1}", 0, "tensor 'w': is not described");
    BAD_ST("{\"w\":{}}", 0, "has no 'dtype'");
    BAD_ST("{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "has no 'data_offsets'");
    BAD_ST("{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "has no 'shape'");
    BAD_ST("{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "has no 'dtype'");
    BAD_ST("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":0}}", 1,
           "unknown key 'x'");
    BAD_ST("{\"w\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "not a string");
    BAD_ST("{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
           1, "duplicate");
    BAD_ST("{" U8("w", "0", "1", "1") "," U8("w", "0", "1", "1") "}", 1, "duplicate");
    IDLE_ST(W("u8", "[1]", "[0,1]"), 1, "dtype 'u8' is none");
    IDLE_ST(W("", "[1]", "[0,1]"), 1, "dtype '' is none");
    IDLE_ST(W("F64", "[1]", "[0,8]"), 8, "dtype 'F64' is none");
    IDLE_ST(W("BOOL", "[1]", "[0,1]"), 1, "dtype 'BOOL' is none");
    IDLE_ST(W("F8_E4M3FN", "[1]", "[0,1]"), 1, "dtype 'F8_E4M3FN' is none");
    IDLE_ST(W("F99", "[1,2,3,4,5]", "[0,1]"), 1, "dtype 'F99' is none");
    BAD_ST(W("F64", "[1]", "[0,4]"), 4, "takes 64 bits");
    BAD_ST(W("BOOL", "[3,1,1,1,1]", "[0,4]"), 4, "cover 4 bytes");
    BAD_ST(W("F99", "[-1]", "[0,1]"), 1, "is -1");
    BAD_ST(W("F99", "2", "[0,1]"), 1, "not an array");
    BAD_ST(W("F99", "[1]", "[0,2]"), 1, "end after the buffer");
    BAD_ST(W("F64", "[4611686018427387904,4]", "[0,8]"), 8, "overflows 63 bits");
    BAD_ST(W("F8_E4M3", "[4,4]", "[0,64]"), 64,
           "tensor 'w': data_offsets [0, 64] cover 64 bytes, but F8_E4M3 [4, 4] takes 16");
    BAD_ST(W("F32", "[4]", "[0,4]"), 4, "F32 [4] takes 16");
    BAD_ST(W("F32", "[]", "[0,1]"), 1, "F32 [] takes 4");
    BAD_ST(W("F4", "[3]", "[0,1]"), 1, "no whole number of bytes");
    BAD_ST(W("F4", "[]", "[0,1]"), 1, "no whole number of bytes");
    IDLE_ST(W("F4", "[2,3]", "[0,3]"), 3, "odd last dimension");
    BAD_ST(W("F6_E2M3", "[2,3]", "[0,5]"), 5, "36 bits, which is no whole number");
    BAD_ST(W("F6_E3M2", "[4]", "[0,4]"), 4, "F6_E3M2 [4] takes 3");
    char text[400], name[160];
    memset(name, 'n', 128);
    name[128] = 0;
    snprintf(text, sizeof text,
             "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", name);
    BAD_ST(text, 1, "its name has 128 bytes, but at most 127");
}

static void st_hostile_shapes(void)
{
    IDLE_ST(W("U8", "[0]", "[0,0]"), 0, "empty tensors");
    IDLE_ST(W("U8", "[4,0]", "[0,0]"), 0, "dimension 1 of the shape is 0");
    BAD_ST(W("U8", "[4,0]", "[0,1]"), 1, "cover 1 bytes");
    BAD_ST(W("U8", "[-1]", "[0,1]"), 1, "is -1");
    BAD_ST(W("U8", "[1.0]", "[0,1]"), 1, "not a whole number");
    BAD_ST(W("U8", "[1e0]", "[0,1]"), 1, "not a whole number");
    BAD_ST(W("U8", "[\"1\"]", "[0,1]"), 1, "not a whole number");
    BAD_ST(W("U8", "[true]", "[0,1]"), 1, "not a whole number");
    BAD_ST(W("U8", "1", "[0,1]"), 1, "not an array");
    BAD_ST(W("U8", "null", "[0,1]"), 1, "not an array");
    IDLE_ST(W("U8", "[1,1,1,1,1]", "[0,1]"), 1, "5 dimensions");
    BAD_ST(W("U8", "[1,1,1,1,2]", "[0,1]"), 1, "cover 1 bytes");
    BAD_ST(W("U8", "[01]", "[0,1]"), 1, "not valid JSON");
    BAD_ST(W("U8", "[9223372036854775808]", "[0,1]"), 1, "too big integer");
    BAD_ST(W("U8", "[9223372036854775807]", "[0,1]"), 1, "overflows");
    BAD_ST(W("U8", "[4294967296,4294967296]", "[0,1]"), 1, "overflows");
    BAD_ST(W("U8", "[4294967296,536870912]", "[0,1]"), 1, "overflows");
    BAD_ST(W("U8", "[9223372036854775807,9223372036854775807,2,2]", "[0,1]"), 1, "overflows");
    BAD_ST(W("U8", "[1152921504606846975]", "[0,1]"), 1, "takes 1152921504606846975");
}

static void st_hostile_offsets(void)
{
    BAD_ST(W("U8", "[1]", "[0]"), 1, "two whole numbers");
    BAD_ST(W("U8", "[1]", "[0,1,1]"), 1, "two whole numbers");
    BAD_ST(W("U8", "[1]", "[]"), 1, "two whole numbers");
    BAD_ST(W("U8", "[1]", "{}"), 1, "two whole numbers");
    BAD_ST(W("U8", "[1]", "[0,1.0]"), 1, "two whole numbers");
    BAD_ST(W("U8", "[1]", "[null,1]"), 1, "two whole numbers");
    BAD_ST(W("U8", "[1]", "[-1,0]"), 1, "0 <= begin <= end");
    BAD_ST(W("U8", "[1]", "[1,0]"), 1, "0 <= begin <= end");
    BAD_ST(W("U8", "[1]", "[0,-9223372036854775808]"), 1, "0 <= begin <= end");
    BAD_ST(W("U8", "[1]", "[9223372036854775806,9223372036854775807]"), 1, "end after");
    BAD_ST(W("U8", "[1]", "[0,18446744073709551616]"), 1, "too big integer");
    BAD_ST(W("U8", "[2]", "[0,2]"), 1, "[0, 2] end after the buffer of 1 bytes");
    BAD_ST(W("U8", "[1]", "[1,2]"), 2, "bytes 0 to 1 of the buffer, before tensor 'w'");
    BAD_ST(W("U8", "[1]", "[0,1]"), 2, "bytes 1 to 2, the end of the buffer");
    BAD_ST("{" U8("a", "0", "2", "2") "," U8("b", "1", "3", "2") "}", 3,
           "tensors 'a' [0, 2] and 'b' [1, 3] overlap");
    BAD_ST("{" U8("a", "0", "2", "2") "," U8("b", "0", "2", "2") "}", 2, "overlap");
    BAD_ST("{" U8("a", "0", "1", "1") "," U8("b", "2", "3", "1") "}", 3,
           "bytes 1 to 2 of the buffer, before tensor 'b'");
    BAD_ST("{" U8("a", "0", "3", "3") "," U8("b", "1", "2", "1") "}", 3, "overlap");
}

static void st_hostile_meta(void)
{
    const char *w = U8("w", "0", "1", "1");
    char text[400];
    static const struct {
        const char *meta, *want;
    } bad[] = {
        { "1", "__metadata__ is not" },
        { "[]", "__metadata__ is not" },
        { "{\"a\":1}", "something but a string for 'a'" },
        { "{\"a\":{}}", "something but a string" },
        { "{\"a\":null}", "something but a string" },
        { "{\"a\":\"\",\"a\":\"\"}", "duplicate" },
        { "{\"ng.format.w\":\"e4\"}", "no format" },
        { "{\"ng.format.w\":\"\"}", "no format" },
        { "{\"ng.format.w\":\"bf16\"}", "says bf16, but its dtype is U8" },
        { "{\"ng.format.w\":\"e2m1\"}", "says e2m1, but its dtype is U8" },
        { "{\"ng.format.w\":\"e2m3\"}", "says e2m3, but its dtype is U8" },
        { "{\"ng.format.v\":\"e4m3\"}", "name no tensor" },
        { "{\"ng.format.__metadata__\":\"e4m3\"}", "name no tensor" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "{\"__metadata__\":%s,%s}", bad[i].meta, w);
        BAD_ST(text, 1, bad[i].want);
    }
    BAD_ST(
        "{\"__metadata__\":{\"ng.format.w\":\"e4m3\"},\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":"
        "[1],\"data_offsets\":[0,1]}}",
        1, "says e4m3, but its dtype is F8_E4M3");
    BAD_ST("{\"__metadata__\":{\"ng.format.w\":\"e4m3\"},\"w\":{\"dtype\":\"I8\",\"shape\":"
           "[1],\"data_offsets\":[0,1]}}",
           1, "says e4m3, but its dtype is I8");
    /* A hostile name must not reach the terminal as it is. */
    BAD_ST("{\"\\u001b[31m\\u009b\":1}", 0,
           "tensor '?[31m?"
           "?'");
}

static void st_good(void)
{
    struct st_file f;
    size_t n;
    const char *json = "{" U8("b", "1", "3", "2") "," U8(
        "a", "0", "1",
        "1") ",\"six\":{\"shape\":"
             "[2,2],\"data_offsets\":[3,6],\"dtype\":\"F6_E3M2\"}, \"__metadata__\":{"
             "\"ng.format.b\":\"e3m4\",\"k\":\"v\"} }   ";
    unsigned char *p = st_of(json, strlen(json), 6, &n);
    /* 0x01, 0x22, 0x33, 0x3e: lowest bits first */
    memcpy(p + n - 3, "\x81\x38\xfb", 3);
    if (CHECK(st_parse(p, n, "g.safetensors", &f, &err), "%s", err.text)) {
        CHECK(f.n_arrays == 3 && strcmp(f.array[0].name, "a") == 0 &&
                  strcmp(f.array[1].name, "b") == 0,
              "not in the order of offsets");
        CHECK(f.array[0].format == NG_FORMAT_NONE && f.array[1].format == NG_E3M4, "formats");
        CHECK(f.n_meta == 1 && strcmp(f.meta[0].key, "k") == 0, "metadata");
        CHECK(f.array[2].bytes == 4 && memcmp(f.array[2].data, "\x01\x22\x33\x3e", 4) == 0,
              "6-bit codes");
        st_free(&f);
    }
    free(p);
}

static void st_bad_write_at(int line, const struct st_file *f, const char *want)
{
    const char *path = in_dir("never.safetensors");
    struct stat st;
    if (check_at(line, !st_write(path, f, &err), "was written, but '%s' is wanted", want)) {
        expect_message(line, path, want);
        check_at(line, stat(path, &st) != 0, "a file was made");
    }
}
#define BAD_WRITE(f, want) st_bad_write_at(__LINE__, f, want)

static void st_bad_writes(void)
{
    const int64_t dim[1] = { 5 };
    struct io_array list[2] = { make("a", NG_E4M3FN, 0, 1, dim), make("a", NG_F32, 0, 1, dim) };
    struct st_meta meta[2] = { { (char *)(uintptr_t) "k", (char *)(uintptr_t) "v" },
                               { (char *)(uintptr_t) "k", (char *)(uintptr_t) "v" } };
    struct st_file f = { .array = list, .n_arrays = 2 };
    BAD_WRITE(&f, "two of this name");
    strcpy(list[1].name, "__metadata__");
    BAD_WRITE(&f, "format's own");
    strcpy(list[1].name, "\xff");
    BAD_WRITE(&f, "not UTF-8");
    strcpy(list[1].name, "b");
    f.meta = meta;
    f.n_meta = 2;
    BAD_WRITE(&f, "'k' twice");
    meta[1].key = (char *)(uintptr_t) "ng.format.b";
    BAD_WRITE(&f, "by the writer only");
    meta[1].key = (char *)(uintptr_t) "\xfe";
    BAD_WRITE(&f, "not UTF-8");
    f.n_meta = 0;
    list[1].bytes--;
    BAD_WRITE(&f, "holds 19 bytes, but f32 [5] takes 20");
    list[1].bytes++;
    list[1].rank = 5;
    BAD_WRITE(&f, "5 dimensions");
    list[1].rank = 1;
    list[1].item_bits = 16;
    BAD_WRITE(&f, "no known type");
    list[1].item_bits = 32;
    list[1].dim[0] = 0;
    BAD_WRITE(&f, "[0]");
    list[1].dim[0] = 5;
    list[0].format = NG_E2M3;
    BAD_WRITE(&f, "a multiple of 4");
    memset(list[0].name, 'n', sizeof list[0].name);
    BAD_WRITE(&f, "has no end");
    io_array_free(&list[0]);
    io_array_free(&list[1]);
}

/* ---- raw specs ---- */

static void bad_spec_at(int line, const char *spec, const char *want)
{
    struct raw_spec s, before;
    memset(&before, 0xa5, sizeof before);
    s = before;
    if (check_at(line, !raw_parse_spec(spec, &s, &err), "'%s' was taken", spec)) {
        expect_message(line, spec, want);
        check_at(line, memcmp(&s, &before, sizeof s) == 0, "the output was written");
    }
}
#define BAD_SPEC(spec, want) bad_spec_at(__LINE__, spec, want)

static void raw_specs(void)
{
    BAD_SPEC("", "is no FORMAT:DIMxDIM");
    BAD_SPEC("f32", "is no FORMAT:DIMxDIM");
    BAD_SPEC(":3", "no element format");
    BAD_SPEC("foo:3", "'foo' is no element format");
    BAD_SPEC("F32:3", "'F32' is no element format");
    BAD_SPEC("u7:3", "'u7' is no element format");
    BAD_SPEC("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:3", "is no element format");
    BAD_SPEC("e4m3fn:-1x3", "dimension 0 ('-1') is negative");
    BAD_SPEC("e4m3fn:", "dimension 0 ('') is missing");
    BAD_SPEC("e4m3fn:3x", "dimension 1 ('') is missing");
    BAD_SPEC("e4m3fn:x3", "dimension 0 ('') is missing");
    BAD_SPEC("e4m3fn:3xx3", "dimension 1 ('') is missing");
    BAD_SPEC("e4m3fn:3X3", "not a whole number");
    BAD_SPEC("e4m3fn: 3", "not a whole number");
    BAD_SPEC("e4m3fn:3.5", "not a whole number");
    BAD_SPEC("e4m3fn:0x10", "dimension 0 ('0') is 0");
    BAD_SPEC("e4m3fn:03", "begins with a 0");
    BAD_SPEC("e4m3fn:1x1x1x1x1", "more than 4 dimensions");
    BAD_SPEC("f32:99999999999x99999999999", "overflows");
    BAD_SPEC("f32:9999999999999999999999", "63 bits");
    BAD_SPEC("u64:9223372036854775807", "overflows");
    BAD_SPEC("u8:9223372036854775807@1", "overflows");
    BAD_SPEC("e4m3fn:3@", "the offset ('') is missing");
    BAD_SPEC("e4m3fn:3@-1", "the offset ('-1') is negative");
    BAD_SPEC("e4m3fn:3@1@2", "the offset ('1@2') is not");
    BAD_SPEC("e4m3fn:3@99999999999999999999", "63 bits");
}

static void raw_files(void)
{
    const char *path = in_dir("raw.bin");
    struct io_array a;
    put_file(path, "0123456789", 10);
    CHECK(raw_read(path, "u16:2x2@1", &a, &err), "%s", err.text);
    CHECK(a.bytes == 8 && memcmp(a.data, "12345678", 8) == 0, "offset");
    io_array_free(&a);
    CHECK(raw_read(path, "e2m1:2x9", &a, &err), "%s", err.text);
    io_array_free(&a);
    static const struct {
        const char *spec, *want;
    } bad[] = {
        { "u8:9", "is 10 bytes long, but u8:9 takes 9 (@0 allows more)" },
        { "u8:11", "is 10 bytes long, but u8:11 takes 11" },
        { "u8:10@1", "takes at least 11" },
        { "u64:1000000000000000000", "takes 8000000000000000000" },
        { "u8:1@9223372036854775806", "takes at least 9223372036854775807" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(!raw_read(path, bad[i].spec, &a, &err), "%s was read", bad[i].spec);
        expect_message(__LINE__, path, bad[i].want);
    }
}

/* Words as a person, or $writememh, may have written them. */
static void hex_files(void)
{
    const char *path = in_dir("words.hex");
    struct io_array a;
    static const char good[] =
        "// three rows\n0_4030201 /* over\nlines */ F\r\n\tabcdEf01//end";
    put_file(path, good, sizeof good - 1);
    if (CHECK(raw_read(path, "u8:3x4", &a, &err), "%s", err.text)) {
        CHECK(memcmp(a.data, "\1\2\3\4\xF\0\0\0\1\xEF\xCD\xAB", 12) == 0, "words of bytes");
        io_array_free(&a);
    }
    if (CHECK(raw_read(path, "f32:3", &a, &err), "%s", err.text)) {
        CHECK(memcmp(a.data, "\1\2\3\4\xF\0\0\0\1\xEF\xCD\xAB", 12) == 0, "words of f32");
        io_array_free(&a);
    }
    if (CHECK(raw_read(path, "e2m1:3x9", &a, &err), "%s", err.text)) { /* rows of five bytes */
        CHECK(memcmp(a.data, "\1\2\3\4\0\xF\0\0\0\0\1\xEF\xCD\xAB\0", 15) == 0,
              "words of half bytes");
        io_array_free(&a);
    }
    static const struct {
        const char *text, *spec, *want;
    } bad[] = {
        { "12 34", "u8:3", "has 2 words; wanted: 3" },
        { "12\n34\n56", "u8:2", "line 3: more than the 2 words wanted" },
        { "123", "u8:1", "line 1: a word of 3 digits; wanted: 1 to 2" },
        { "\n1x", "u8:1", "line 2: 'x' is no known bit" },
        { "@10 12", "u8:1", "line 1: an address" },
        { "1g", "u8:1", "line 1: 'g' is no hex digit" },
        { "_1", "u8:1", "line 1: '_' is no hex digit" },
        { "1 / 2", "u8:2", "'/'" },
        { "1 /* 2\n", "u8:2", "line 1: a comment does not end" },
        { "12", "u8:1@0", "an offset says nothing to it" },
        { "", "u8:1", "has 0 words; wanted: 1" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put_file(path, bad[i].text, strlen(bad[i].text));
        CHECK(!raw_read(path, bad[i].spec, &a, &err), "%s was read", bad[i].text);
        expect_message(__LINE__, path, bad[i].want);
    }
    put_file(path, "1\0", 3);
    CHECK(!raw_read(path, "u8:1", &a, &err), "a NUL was read");
}

/* Some tensors of a file, from it and from its bytes, in the order that is asked for. */
static void st_some(void)
{
    struct io_array list[64], like[3];
    struct st_file file = { .array = list, .n_arrays = one_of_each(list, 64) }, back;
    const size_t pick[3] = { file.n_arrays - 1, 3, 0 }, n = 3;
    const char *path = in_dir("some.safetensors");
    void *data;
    size_t bytes;
    CHECK(st_write(path, &file, &err), "%s", err.text);
    CHECK(st_build(&file, "m", &data, &bytes, &err), "%s", err.text);
    for (size_t f = 0; f + n <= file.n_arrays; f++) { /* every format, 6 bits too */
        if (CHECK(st_read_some(path, list + f, n, &back, &err), "%s", err.text)) {
            for (size_t i = 0; i < n; i++) {
                CHECK(same(&back.array[i], &list[f + i]), "'%s' differs", list[f + i].name);
            }
            CHECK(back.n_arrays == n && back.n_meta == 0, "more than was asked for");
            st_free(&back);
        }
    }
    for (size_t i = 0; i < n; i++) {
        like[i] = list[pick[i]];
        like[i].data = NULL;
    }
    if (CHECK(st_parse_some(data, bytes, "m", like, n, &back, &err), "%s", err.text)) {
        for (size_t i = 0; i < n; i++) {
            CHECK(same(&back.array[i], &list[pick[i]]), "'%s' differs", like[i].name);
        }
        st_free(&back);
    }
    like[1].dim[1] = 7;
    CHECK(!st_read_some(path, like, n, &back, &err), "another shape was read");
    expect_message(__LINE__, path, "[2, 6]; wanted: ");
    like[1].dim[1] = 6;
    like[1].format = NG_FORMAT_NONE;
    CHECK(!st_read_some(path, like, n, &back, &err), "another format was read");
    expect_message(__LINE__, path, "wanted: U");
    snprintf(like[0].name, sizeof like[0].name, "nobody");
    if (CHECK(st_parse_some(data, bytes, "m", like, 1, &back, &err), "%s", err.text)) {
        CHECK(back.n_arrays == 1 && back.array[0].data == NULL, "nobody was read");
        st_free(&back);
    }
    free(data);
    for (size_t i = 0; i < file.n_arrays; i++) {
        io_array_free(&list[i]);
    }
}

/* ---- truncation and corruption ---- */

static void truncations(void)
{
    const int64_t dim[2] = { 2, 4 };
    struct io_array a = make("w", NG_E2M3, 0, 2, dim), b;
    struct st_file f = { .array = &a, .n_arrays = 1 }, g;
    void *npy, *st;
    size_t npy_bytes, st_bytes;
    CHECK(npy_build(&a, "t", &npy, &npy_bytes, &err), "%s", err.text);
    CHECK(st_build(&f, "t", &st, &st_bytes, &err), "%s", err.text);
    const char *path = in_dir("cut");
    for (size_t n = 0; n < npy_bytes; n++) {
        put_file(path, npy, n);
        CHECK(!npy_read(path, NG_E2M3, false, &b, &err), "npy cut to %zu bytes was read", n);
        expect_message(__LINE__, path, "");
    }
    for (size_t n = 0; n < st_bytes; n++) {
        put_file(path, st, n);
        CHECK(!st_read(path, &g, &err), "safetensors cut to %zu bytes was read", n);
        expect_message(__LINE__, path, "");
        CHECK(!st_read_some(path, &a, 1, &g, &err), "a tensor of %zu bytes was read", n);
        expect_message(__LINE__, path, "");
    }
    for (size_t n = 0; n < a.bytes; n++) {
        put_file(path, a.data, n);
        CHECK(!raw_read(path, "e2m3:2x4", &b, &err), "raw cut to %zu bytes was read", n);
        expect_message(__LINE__, path, "");
    }
    free(npy);
    free(st);
    io_array_free(&a);
}

/* What was read fits in the file that it was read from. */
static bool fits(const struct io_array *a, size_t file)
{
    size_t bytes = io_array_size(a->format, a->item_bits, a->rank, a->dim);
    return bytes != 0 && bytes == a->bytes && a->bytes / 4 * 3 <= file;
}

static void flip_npy(ng_format format)
{
    const int64_t dim[2] = { 2, 4 };
    struct io_array a = make("w", format, 16, 2, dim), b;
    void *data;
    size_t bytes;
    CHECK(npy_build(&a, "t", &data, &bytes, &err), "%s", err.text);
    unsigned char *p = data;
    for (size_t i = 0; i < (bytes - a.bytes) * 8; i++) {
        p[i / 8] ^= (unsigned char)(1u << (i % 8));
        bool ok = npy_parse(p, bytes, "t", format, format == NG_FORMAT_NONE, NULL, &b, &err);
        CHECK(ok ? fits(&b, bytes) : err.text[0] == 't', "bit %zu", i);
        if (ok) {
            io_array_free(&b);
        }
        p[i / 8] ^= (unsigned char)(1u << (i % 8));
    }
    free(data);
    io_array_free(&a);
}

static void flip_st(void)
{
    const int64_t dim[2] = { 2, 4 };
    struct io_array a[3] = { make("w", NG_E2M3, 0, 2, dim), make("v", NG_E3M4, 0, 2, dim),
                             make("u", NG_E2M1, 0, 2, dim) };
    struct st_file f = { .array = a, .n_arrays = 3 }, g;
    void *data;
    size_t bytes;
    CHECK(st_build(&f, "t", &data, &bytes, &err), "%s", err.text);
    unsigned char *p = data;
    for (size_t i = 0; i < (bytes - 18) * 8; i++) {
        p[i / 8] ^= (unsigned char)(1u << (i % 8));
        bool ok = st_parse(p, bytes, "t", &g, &err);
        CHECK(ok || err.text[0] == 't', "bit %zu", i);
        for (size_t k = 0; ok && k < g.n_arrays; k++) {
            CHECK(fits(&g.array[k], bytes), "bit %zu", i);
        }
        if (ok) {
            st_free(&g);
        }
        p[i / 8] ^= (unsigned char)(1u << (i % 8));
    }
    free(data);
    for (int i = 0; i < 3; i++) {
        io_array_free(&a[i]);
    }
}

/* ---- files that are none ---- */

static void bad_reads(const char *path, const char *want)
{
    struct io_array a;
    struct st_file f;
    void *data;
    size_t n;
    CHECK(!io_read_file(path, 0, &data, &n, &err), "%s was read", path);
    expect_message(__LINE__, path, want);
    CHECK(!npy_read(path, NG_F32, false, &a, &err), "%s was read", path);
    expect_message(__LINE__, path, want);
    CHECK(!raw_read(path, "u8:1", &a, &err), "%s was read", path);
    expect_message(__LINE__, path, want);
    CHECK(!st_read(path, &f, &err), "%s was read", path);
    expect_message(__LINE__, path, want);
}

static void bad_writes(const char *path, const char *want)
{
    const int64_t dim[1] = { 4 };
    struct io_array a = make("w", NG_F32, 0, 1, dim);
    struct st_file f = { .array = &a, .n_arrays = 1 };
    CHECK(!io_write_file(path, "x", 1, &err), "%s was written", path);
    expect_message(__LINE__, path, want);
    CHECK(!npy_write(path, &a, &err), "%s was written", path);
    expect_message(__LINE__, path, want);
    CHECK(!raw_write(path, &a, &err), "%s was written", path);
    expect_message(__LINE__, path, want);
    CHECK(!st_write(path, &f, &err), "%s was written", path);
    expect_message(__LINE__, path, want);
    io_array_free(&a);
}

static void special_files(void)
{
    const char *fifo = in_dir("fifo"), *sub = in_dir("sub");
    CHECK(mkfifo(fifo, 0600) == 0 && mkdir(sub, 0700) == 0, "cannot make them");
    bad_reads(fifo, "is a pipe, but a regular file is wanted");
    bad_writes(fifo, "is a pipe and is not replaced");
    bad_reads(sub, "is a directory");
    bad_writes(sub, "is a directory");
    bad_reads("/dev/null", "is a character device");
    bad_writes("/dev/null", "is a character device");
    bad_reads(in_dir("missing"), "cannot be opened");
    bad_writes(in_dir("missing/x"), "cannot be written");
    CHECK(unlink(fifo) == 0 && rmdir(sub) == 0, "cannot remove them");
}

static void plain_files(void)
{
    const char *path = in_dir("plain");
    void *data;
    size_t n;
    CHECK(io_write_file(path, "old", 3, &err) && io_write_file(path, "newer", 5, &err), "%s",
          err.text);
    if (CHECK(io_read_file(path, 5, &data, &n, &err), "%s", err.text)) {
        CHECK(n == 5 && memcmp(data, "newer", 5) == 0, "%zu bytes", n);
        free(data);
    }
    CHECK(!io_read_file(path, 4, &data, &n, &err), "5 bytes were read as 4");
    expect_message(__LINE__, path, "is 5 bytes long, but at most 4");
    CHECK(io_write_file(path, "", 0, &err), "%s", err.text);
    if (CHECK(io_read_file(path, 0, &data, &n, &err), "%s", err.text)) {
        CHECK(n == 0, "%zu bytes", n);
        free(data);
    }
    struct stat st;
    if (stat("/proc/self/status", &st) == 0 && st.st_size == 0) {
        CHECK(!io_read_file("/proc/self/status", 0, &data, &n, &err), "/proc was read");
        expect_message(__LINE__, "/proc/self/status", "longer than the 0 bytes");
    }
    char deep[600];
    memset(deep, 'd', sizeof deep);
    strcpy(deep + sizeof deep - 6, "/tail");
    CHECK(!io_read_file(deep, 0, &data, &n, &err), "a long path was read");
    CHECK(strncmp(err.text, "...ddd", 6) == 0 && strstr(err.text, "/tail: cannot") != NULL,
          "%s", err.text);
}

/* A failed npy_write() leaves the pair that was there. */
static void npy_pairs(void)
{
    const int64_t dim[1] = { 4 };
    struct io_array a = make("w", NG_E4M3, 0, 1, dim), b;
    const char *path = in_dir("pair.npy");
    CHECK(npy_write(path, &a, &err), "%s", err.text);
    a.bytes--;
    CHECK(!npy_write(path, &a, &err), "a wrong array was written");
    a.bytes++;
    if (CHECK(npy_read(path, NG_FORMAT_NONE, false, &b, &err), "%s", err.text)) {
        CHECK(same(&a, &b), "the old pair is gone");
        io_array_free(&b);
    }
    io_array_free(&a);
}

/* ---- the temporary directory ---- */

/* Removes what the tests made. A leftover temporary file of io_stage() is a failure. */
static void clean(void)
{
    DIR *d = opendir(dir);
    if (d != NULL) {
        for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
            CHECK(strstr(entry->d_name, ".tmp-") == NULL, "%s was left", entry->d_name);
            if (entry->d_name[0] != '.') {
                unlink(in_dir(entry->d_name));
            }
        }
        closedir(d);
    }
    CHECK(rmdir(dir) == 0, "%s cannot be removed", dir);
}

static int run_tests(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/test_io-XXXXXX",
             base != NULL && strlen(base) < 40 ? base : "/tmp");
    if (mkdtemp(dir) == NULL) {
        printf("cannot make %s\n", dir);
        return 2;
    }
    round_trips();
    st_together();
    npy_hostile_types();
    npy_hostile_shapes();
    npy_hostile_dicts();
    npy_hostile_frames();
    npy_good();
    npy_fortran();
    sidecars();
    st_hostile_lengths();
    st_hostile_nesting();
    st_hostile_tensors();
    st_hostile_shapes();
    st_hostile_offsets();
    st_hostile_meta();
    st_good();
    st_bad_writes();
    st_some();
    raw_specs();
    raw_files();
    hex_files();
    truncations();
    flip_npy(NG_E4M3FN);
    flip_npy(NG_E2M1);
    flip_npy(NG_F32);
    flip_npy(NG_FORMAT_NONE);
    flip_st();
    special_files();
    plain_files();
    npy_pairs();
    clean();
    printf("io: %u checks, %u failed\n", checks, failures);
    return failures != 0;
}

/* ---- other modes ---- */

static int dump(const char *to)
{
    struct io_array list[64];
    struct st_file file = { .array = list, .n_arrays = one_of_each(list, 64) };
    char path[512];
    snprintf(path, sizeof path, "%s/all.safetensors", to);
    bool ok = st_write(path, &file, &err);
    for (size_t i = 0; i < file.n_arrays; i++) {
        const char *name = io_type_name(list[i].format, list[i].item_bits);
        snprintf(path, sizeof path, "%s/%s.npy", to, name);
        ok = ok && npy_write(path, &list[i], &err);
        snprintf(path, sizeof path, "%s/%s.bin", to, name);
        ok = ok && raw_write(path, &list[i], &err);
        io_array_free(&list[i]);
    }
    if (!ok) {
        printf("%s\n", err.text);
    }
    return !ok;
}

static void print_array(const struct io_array *a)
{
    printf("%s %s ", a->name[0] != 0 ? a->name : "-", io_type_name(a->format, a->item_bits));
    for (uint32_t i = 0; i < a->rank; i++) {
        printf("%s%" PRId64, i > 0 ? "x" : "", a->dim[i]);
    }
    printf("%s ", a->rank == 0 ? "-" : "");
    for (size_t i = 0; i < a->bytes; i++) {
        printf("%02x", ((const unsigned char *)a->data)[i]);
    }
    printf("\n");
}

static int show_npy(const char *path, const char *as)
{
    struct io_array a;
    bool plain = strcmp(as, "plain") == 0;
    ng_format format = plain ? NG_FORMAT_NONE : ng_format_find(as);
    if (!npy_read(path, format, plain, &a, &err)) {
        printf("%s\n", err.text);
        return 1;
    }
    print_array(&a);
    io_array_free(&a);
    return 0;
}

static int show_st(const char *path)
{
    struct st_file f;
    if (!st_read(path, &f, &err)) {
        printf("%s\n", err.text);
        return 1;
    }
    for (size_t i = 0; i < f.n_arrays; i++) {
        print_array(&f.array[i]);
    }
    st_free(&f);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 1) {
        return run_tests();
    }
    if (argc == 3 && strcmp(argv[1], "--dump") == 0) {
        return dump(argv[2]);
    }
    if (argc == 5 && strcmp(argv[1], "--show") == 0 && strcmp(argv[2], "npy") == 0) {
        return show_npy(argv[3], argv[4]);
    }
    if (argc == 4 && strcmp(argv[1], "--show") == 0 && strcmp(argv[2], "st") == 0) {
        return show_st(argv[3]);
    }
    printf("usage: test_io [--dump DIR | --show npy FILE FORMAT | --show st FILE]\n");
    return 2;
}
