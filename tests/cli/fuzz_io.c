/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer over the tensor file parsers. What is accepted must fit in the input, and must
 * come back the same after it is written and read again.
 *
 *   clang -fsanitize=fuzzer,address,undefined -Iinclude tests/cli/fuzz_io.c
 * src/cli/{io,npy,raw,hex,safetensors}.c libnarrowgauge.a -ljansson
 *
 * Seeds: test_io --dump DIR.
 */
#include "../../src/cli/io.h"

#include <stdlib.h>
#include <string.h>

#define WANT(ok)                                                                               \
    do {                                                                                       \
        if (!(ok)) {                                                                           \
            abort();                                                                           \
        }                                                                                      \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static bool same(const struct io_array *a, const struct io_array *b)
{
    return strcmp(a->name, b->name) == 0 && a->format == b->format &&
           a->item_bits == b->item_bits && a->rank == b->rank &&
           memcmp(a->dim, b->dim, a->rank * sizeof a->dim[0]) == 0 && a->bytes == b->bytes &&
           memcmp(a->data, b->data, a->bytes) == 0;
}

/* 6-bit codes take a third more in memory than in a safetensors file. */
static void fits(const struct io_array *a, size_t file)
{
    WANT(a->bytes != 0 && a->bytes / 4 * 3 <= file);
    WANT(a->bytes == io_array_size(a->format, a->item_bits, a->rank, a->dim));
}

static void npy_again(struct io_array *a)
{
    struct io_error e;
    struct io_array b;
    struct npy_side side = {
        .format = a->format, .item_bits = a->item_bits, .has_shape = true, .rank = a->rank
    };
    void *data;
    size_t bytes;
    memcpy(side.dim, a->dim, sizeof side.dim);
    WANT(npy_build(a, "b", &data, &bytes, &e));
    WANT(npy_parse(data, bytes, "b", a->format, a->format == NG_FORMAT_NONE, &side, &b, &e));
    WANT(same(a, &b));
    free(data);
    io_array_free(&b);
}

static void fuzz_npy(const uint8_t *data, size_t bytes)
{
    static const ng_format as[] = { NG_FORMAT_NONE, NG_F32, NG_F16, NG_BF16, NG_E5M2, NG_E2M1 };
    struct io_error e;
    struct io_array a;
    for (size_t i = 0; i < sizeof as / sizeof as[0]; i++) {
        if (npy_parse(data, bytes, "n", as[i], i == 0, NULL, &a, &e)) {
            fits(&a, bytes);
            npy_again(&a);
            io_array_free(&a);
        } else {
            WANT(strncmp(e.text, "n: ", 3) == 0);
        }
    }
}

static void st_again(const struct st_file *f)
{
    struct io_error e;
    struct st_file g;
    void *data;
    size_t bytes;
    WANT(st_build(f, "b", &data, &bytes, &e));
    WANT(st_parse(data, bytes, "b", &g, &e));
    WANT(f->n_arrays == g.n_arrays && f->n_meta == g.n_meta);
    for (size_t i = 0; i < f->n_arrays; i++) {
        const struct io_array *b = st_find(&g, f->array[i].name);
        WANT(b != NULL && same(&f->array[i], b));
    }
    for (size_t i = 0; i < f->n_meta; i++) {
        const char *value = st_meta_get(&g, f->meta[i].key);
        WANT(value != NULL && strcmp(value, f->meta[i].value) == 0);
    }
    free(data);
    st_free(&g);
}

static void fuzz_st(const uint8_t *data, size_t bytes)
{
    struct io_error e;
    struct st_file f;
    if (!st_parse(data, bytes, "s", &f, &e)) {
        WANT(strncmp(e.text, "s: ", 3) == 0);
        return;
    }
    size_t left = bytes;
    for (size_t i = 0; i < f.n_arrays; i++) {
        fits(&f.array[i], left);
        left -= f.array[i].bytes / 4 * 3;
    }
    st_again(&f);
    struct st_file some;
    WANT(st_parse_some(data, bytes, "s", f.array, f.n_arrays, &some, &e));
    for (size_t i = 0; i < f.n_arrays; i++) {
        WANT(same(&f.array[i], &some.array[i]));
    }
    st_free(&some);
    st_free(&f);
}

/* The small texts: a sidecar and a raw spec. */
static void fuzz_text(const uint8_t *data, size_t bytes)
{
    struct io_error e;
    struct npy_side side;
    struct raw_spec spec;
    char text[256];
    if (npy_side_parse(data, bytes, "j", &side, &e)) {
        WANT(side.rank <= NG_MAX_RANK);
    }
    if (bytes < sizeof text) {
        memcpy(text, data, bytes);
        text[bytes] = 0;
        if (raw_parse_spec(text, &spec, &e)) {
            WANT(spec.bytes == io_array_size(spec.format, spec.item_bits, spec.rank, spec.dim));
        }
    }
}

static void fuzz_hex(const uint8_t *data, size_t bytes)
{
    static const char *const specs[] = { "u8:2x3", "e2m1:3x5", "f32:2", "bf16:1x2" };
    struct io_error e;
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        struct raw_spec s;
        void *words, *text, *again;
        size_t n;
        WANT(raw_parse_spec(specs[i], &s, &e));
        if (!hex_parse(data, bytes, "h", &s, &words, &e)) {
            WANT(strncmp(e.text, "h: ", 3) == 0);
            continue;
        }
        struct io_array a = { .format = s.format,
                              .item_bits = s.item_bits,
                              .rank = s.rank,
                              .data = words,
                              .bytes = s.bytes };
        memcpy(a.dim, s.dim, sizeof a.dim);
        WANT(hex_build(&a, "b", &text, &n, &e));
        WANT(hex_parse(text, n, "b", &s, &again, &e));
        WANT(memcmp(words, again, s.bytes) == 0);
        free(text);
        free(again);
        free(words);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_npy(data, bytes);
    fuzz_st(data, bytes);
    fuzz_text(data, bytes);
    fuzz_hex(data, bytes);
    /* Most mutations of a whole file only break the header's length: also as bare JSON. */
    uint8_t *framed = malloc(8 + bytes + 16);
    if (framed != NULL && bytes > 0 && data[0] == '{') {
        for (size_t i = 0; i < 8; i++) {
            framed[i] = (uint8_t)((uint64_t)bytes >> (8 * i));
        }
        memcpy(framed + 8, data, bytes);
        memset(framed + 8 + bytes, 0x5a, 16);
        fuzz_st(framed, 8 + bytes + 16);
    }
    free(framed);
    return 0;
}
