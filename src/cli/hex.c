/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hex text, as $readmemh and $writememh of IEEE 1800-2017 (21.4, 21.5) have it: words parted by
 * white space, comments, underscores in between. A word is a row, its first element in the
 * low bits; of a tensor of rank 0 or 1 it is an element.
 */
#include "io.h"

#include <stdlib.h>
#include <string.h>

struct hex_shape {
    size_t words, digits; /* of one word */
    size_t stride;        /* four bits, from one word to the next: a row begins on a byte */
};

static struct hex_shape shape_of(uint32_t rank, const int64_t *dim, uint32_t bits)
{
    size_t words = 1, elements = 1;
    for (uint32_t d = 0; d < rank; d++) {
        if (rank > 1 && d + 1 == rank) {
            elements = (size_t)dim[d];
        } else {
            words *= (size_t)dim[d];
        }
    }
    const size_t digits = elements * bits / 4;
    return (struct hex_shape){ words, digits, rank > 1 ? digits + digits % 2 : digits };
}

/* Four bits of an element; elements lie one behind another, of four bits the low half first. */
static uint32_t digit_at(const unsigned char *data, size_t nibble)
{
    return data[nibble / 2] >> nibble % 2 * 4 & 15;
}

bool hex_build(const struct io_array *a, const char *path, void **data, size_t *bytes,
               struct io_error *e)
{
    const struct hex_shape s = shape_of(a->rank, a->dim, a->item_bits);
    char head[160];
    const int n =
        snprintf(head, sizeof head, "// %s %s: %s\n", io_type_name(a->format, a->item_bits),
                 io_shape(a->rank, a->dim).text,
                 a->rank > 1 ? "a word is a row, its first element in the low bits"
                             : "a word is an element");
    char *text = malloc((size_t)n + s.words * (s.digits + 1));
    if (text == NULL) {
        return io_no_memory(e, path, "no memory for %zu words", s.words);
    }
    char *to = text + n;
    memcpy(text, head, (size_t)n);
    for (size_t w = 0; w < s.words; w++) {
        for (size_t i = s.digits; i--;) {
            *to++ = "0123456789abcdef"[digit_at(a->data, w * s.stride + i)];
        }
        *to++ = '\n';
    }
    *data = text;
    *bytes = (size_t)(to - text);
    return true;
}

/* ---- Reading. ---- */

struct hex_text {
    const char *at, *end, *path;
    size_t line;
    struct io_error *e;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f';
}

static bool at_comment(const struct hex_text *t, char second)
{
    return t->end - t->at > 1 && t->at[0] == '/' && t->at[1] == second;
}

/* Where a word may end. */
static bool at_space(const struct hex_text *t)
{
    return t->at == t->end || is_space(*t->at) || at_comment(t, '/') || at_comment(t, '*');
}

/* Past white space and comments; false: a comment that does not end. */
static bool skip_space(struct hex_text *t)
{
    while (t->at < t->end && at_space(t)) {
        if (at_comment(t, '/')) {
            const char *newline = memchr(t->at, '\n', (size_t)(t->end - t->at));
            t->at = newline != NULL ? newline : t->end;
        } else if (at_comment(t, '*')) {
            const size_t from = t->line;
            for (t->at += 2; t->end - t->at > 1 && (t->at[0] != '*' || t->at[1] != '/');
                 t->at++) {
                t->line += *t->at == '\n';
            }
            if (t->end - t->at < 2) {
                return io_fail(t->e, t->path, "line %zu: a comment does not end", from);
            }
            t->at += 2;
        } else {
            t->line += *t->at++ == '\n';
        }
    }
    return true;
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static bool bad_character(struct hex_text *t)
{
    const char c = *t->at;
    if (c == '@') {
        return io_fail(t->e, t->path, "line %zu: an address; wanted: words alone", t->line);
    }
    if (strchr("xXzZ?", c) != NULL && c != '\0') {
        return io_fail(t->e, t->path, "line %zu: '%c' is no known bit", t->line, c);
    }
    return io_fail(t->e, t->path, "line %zu: '%c' is no hex digit", t->line, c);
}

/* One word of at most `digits` digits into the nibbles from `first` on, which are 0. */
static bool read_word(struct hex_text *t, size_t digits, unsigned char *data, size_t first)
{
    const char *from = t->at;
    size_t n = 0;
    while (t->at < t->end && (digit_of(*t->at) >= 0 || (*t->at == '_' && t->at > from))) {
        n += *t->at++ != '_';
    }
    if (!at_space(t)) {
        return bad_character(t);
    }
    if (n == 0 || n > digits) {
        return io_fail(t->e, t->path, "line %zu: a word of %zu digits; wanted: 1 to %zu",
                       t->line, n, digits);
    }
    size_t at = first;
    for (const char *c = t->at; c-- > from;) {
        if (*c != '_') {
            data[at / 2] |= (unsigned char)((uint32_t)digit_of(*c) << at % 2 * 4);
            at++;
        }
    }
    return true;
}

bool hex_parse(const void *text, size_t bytes, const char *path, const struct raw_spec *s,
               void **data, struct io_error *e)
{
    const struct hex_shape shape = shape_of(s->rank, s->dim, s->item_bits);
    struct hex_text t = { text, (const char *)text + bytes, path, 1, e };
    unsigned char *out = calloc(1, s->bytes);
    size_t words = 0;
    if (out == NULL) {
        return io_no_memory(e, path, "no memory for %zu bytes", s->bytes);
    }
    bool ok = skip_space(&t);
    while (ok && t.at < t.end) {
        ok = words < shape.words ? read_word(&t, shape.digits, out, words * shape.stride)
                                 : io_fail(e, path, "line %zu: more than the %zu words wanted",
                                           t.line, shape.words);
        words++;
        ok = ok && skip_space(&t);
    }
    if (ok && words < shape.words) {
        ok = io_fail(e, path, "has %zu words; wanted: %zu", words, shape.words);
    }
    if (!ok) {
        free(out);
        return false;
    }
    *data = out;
    return true;
}
