/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library for SystemVerilog simulators: codes from packed vectors into tensors, a call,
 * codes out. No numerics here. ng_dpi.sv says what each function does.
 */
#include "ng_dpi.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ng/gemm.h"
#include "ng/quantize.h"

enum {
    MAX_PROFILE = 1 << 20, /* bytes of a profile's file */
    MAX_WORDS = 1 << 24,   /* random words */
    MAX_MESSAGE = 600
};

/* Memory that grows. */
struct room {
    void *data;
    size_t bytes;
};

/* A matrix and what it lies in. Lines are rows of A, C, D, columns of B, one behind the other.
 */
struct matrix {
    ng_tensor view;
    struct room codes, scales;
    bool present;
};

struct oracle {
    ng_ctx *ctx;
    const ng_profile *profile; /* NULL: ng_dpi_open() found none */
    ng_profile *own;           /* it, where it was read or changed */
    ng_gemm_op op;
    struct matrix a, b, c, d;
    bool shaped; /* there are operands */
    struct room words, steps;
    int n_words; /* those before are known */
    int n_steps;
    ng_status status;
    char message[MAX_MESSAGE], text[200];
};

/* ---- Statuses. ---- */

static int set_status(struct oracle *o, ng_status s, const char *text)
{
    o->status = s;
    snprintf(o->message, sizeof o->message, "%s", text);
    return (int)s;
}

__attribute__((format(printf, 3, 4))) static int fail(struct oracle *o, ng_status s,
                                                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(o->message, sizeof o->message, format, args);
    va_end(args);
    o->status = s;
    return (int)s;
}

static int done(struct oracle *o)
{
    return set_status(o, NG_OK, "");
}

/* What a call of the library gave. */
static int given(struct oracle *o, ng_status s)
{
    return set_status(o, s, s ? ng_ctx_message(o->ctx) : "");
}

static int no_memory(struct oracle *o, const char *call)
{
    return fail(o, NG_ERR_MEMORY, "%s: malloc has no memory", call);
}

/* An oracle that has a profile. */
static struct oracle *ready(void *oracle)
{
    struct oracle *o = oracle;
    return o && o->profile ? o : NULL;
}

/* A call on none: that of ng_dpi_open() stays. */
static int not_ready(const void *oracle)
{
    const struct oracle *o = oracle;
    return o ? (int)o->status : NG_ERR_MEMORY;
}

static bool grow(struct room *r, size_t bytes)
{
    if (bytes <= r->bytes)
        return true;
    void *more = realloc(r->data, bytes);
    if (!more)
        return false;
    r->data = more;
    r->bytes = bytes;
    return true;
}

/* ---- Packed vectors. ---- */

static uint32_t bits_get(const uint32_t *bits, uint32_t width, int i)
{
    const uint32_t at = (uint32_t)i * width, word = bits[at / 32] >> at % 32;
    return width == 32 ? word : word & ((1u << width) - 1u);
}

static void bits_put(uint32_t *bits, uint32_t width, int i, uint32_t code)
{
    const uint32_t at = (uint32_t)i * width,
                   mask = (width == 32 ? 0xFFFFFFFFu : (1u << width) - 1u) << at % 32;
    bits[at / 32] = (bits[at / 32] & ~mask) | (code << at % 32 & mask);
}

/* Bits that an element takes; 0: no format. */
static uint32_t width_of(int format)
{
    const ng_format_spec *f = ng_format_info((ng_format)format);
    return f ? f->store_bits : 0;
}

/* ---- An oracle. ---- */

static void read_profile(struct oracle *o, const char *name)
{
    FILE *file = fopen(name, "rb");
    char *text = file ? malloc(MAX_PROFILE) : NULL;
    char why[300] = "";
    if (!text) {
        fail(
            o, file ? NG_ERR_MEMORY : NG_ERR_PROFILE,
            file
                ? "open: malloc has no memory for %.200s"
                : "open: '%.200s' is no built-in profile (ngauge profile list), and no file of "
                  "that name can be read",
            name);
    } else {
        const size_t n = fread(text, 1, MAX_PROFILE, file);
        const ng_status s = n == MAX_PROFILE
                                ? NG_ERR_PROFILE
                                : ng_profile_parse(text, n, &o->own, why, sizeof why);
        o->profile = o->own;
        if (s)
            fail(o, s, "open: %.200s: %s", name, why[0] ? why : "more than a MiB: no profile");
    }
    free(text);
    if (file)
        fclose(file);
}

void *ng_dpi_open(const char *profile)
{
    struct oracle *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    const ng_status s = ng_ctx_create(NULL, &o->ctx);
    o->op.size = sizeof o->op;
    if (s) {
        fail(o, s, "open: no context: %s", ng_status_name(s));
        return o;
    }
    o->profile = ng_profile_find(profile);
    if (!o->profile)
        read_profile(o, profile ? profile : "");
    return o;
}

static void free_matrix(struct matrix *m)
{
    free(m->codes.data);
    free(m->scales.data);
}

void ng_dpi_close(void *oracle)
{
    struct oracle *o = oracle;
    if (!o)
        return;
    ng_ctx_destroy(o->ctx);
    ng_profile_free(o->own);
    free_matrix(&o->a);
    free_matrix(&o->b);
    free_matrix(&o->c);
    free_matrix(&o->d);
    free(o->words.data);
    free(o->steps.data);
    free(o);
}

int ng_dpi_status(void *oracle)
{
    return not_ready(oracle);
}

const char *ng_dpi_message(void *oracle)
{
    const struct oracle *o = oracle;
    return o ? o->message : "open: malloc has no memory";
}

/* ---- Options. ---- */

int ng_dpi_set(void *oracle, const char *rule, const char *key, const char *value)
{
    struct oracle *o = ready(oracle);
    char why[300] = "", wanted[200] = "RULE, KEY and a value; ngauge profile keys";
    if (!o)
        return not_ready(oracle);
    ng_profile *p = ng_profile_copy(o->profile);
    if (!p)
        return no_memory(o, "set");
    for (int i = 0; key && i < NG_PARAM_COUNT; i++)
        if (strcmp(ng_param_key((ng_param)i), key) == 0)
            ng_param_values((ng_param)i, wanted, sizeof wanted);
    ng_status s = ng_profile_set(p, rule, key, value);
    if (s)
        fail(o, s, "set: %.40s.%.40s = %.40s in %.40s: no such rule, key or value; wanted: %s",
             rule ? rule : "", key ? key : "", value ? value : "", o->profile->name, wanted);
    else if ((s = ng_profile_check(p, why, sizeof why)) != NG_OK)
        fail(o, s, "set: %.40s.%.40s = %.40s: %s", rule, key, value, why);
    if (s) {
        ng_profile_free(p);
        return (int)s;
    }
    ng_profile_free(o->own);
    o->profile = o->own = p;
    return done(o);
}

int ng_dpi_output(void *oracle, int round, int overflow)
{
    struct oracle *o = ready(oracle);
    if (!o)
        return not_ready(oracle);
    if (round < 0 || round > NG_ROUND_STOCHASTIC || overflow < 0 ||
        overflow > NG_OVERFLOW_SATURATE_KEEP_INF)
        return fail(o, NG_ERR_ARGUMENT,
                    "output: round %d, overflow %d; wanted: NG_ROUND_..., NG_OVERFLOW_...",
                    round, overflow);
    o->op.out.round = (ng_round)round;
    o->op.out.overflow = (ng_overflow)overflow;
    return done(o);
}

int ng_dpi_word(void *oracle, int element, unsigned word)
{
    struct oracle *o = ready(oracle);
    if (!o)
        return not_ready(oracle);
    if (element < 0 || element >= MAX_WORDS)
        return fail(o, NG_ERR_ARGUMENT, "word: of element %d; wanted: 0 to %d", element,
                    MAX_WORDS - 1);
    if (!grow(&o->words, ((size_t)element + 1) * sizeof(uint32_t)))
        return no_memory(o, "word");
    uint32_t *w = o->words.data;
    while (o->n_words <= element)
        w[o->n_words++] = 0;
    w[element] = word;
    return done(o);
}

int ng_dpi_accumulate(void *oracle, int format)
{
    struct oracle *o = ready(oracle);
    if (!o)
        return not_ready(oracle);
    if (format != NG_FORMAT_NONE && !width_of(format))
        return fail(o, NG_ERR_FORMAT, "accumulate: %d is no format", format);
    o->op.accumulate = (ng_format)format;
    return done(o);
}

int ng_dpi_double_row(void *oracle, int on)
{
    struct oracle *o = ready(oracle);
    if (!o)
        return not_ready(oracle);
    o->op.double_row = on != 0;
    return done(o);
}

/* What rounds the output, with the words that there are. */
static const ng_cast *output_of(struct oracle *o)
{
    ng_cast *cast = &o->op.out;
    cast->random = (ng_random){ 0 };
    if (cast->round == NG_ROUND_STOCHASTIC)
        cast->random = (ng_random){ .kind = NG_RANDOM_EXTERNAL,
                                    .word = o->words.data,
                                    .count = o->n_words };
    return cast;
}

/* ---- Matrices. ---- */

/* `lines` of `length` elements, all zero: dimension `along` is the one that runs along a line.
 */
static bool make_matrix(struct matrix *x, int format, int lines, int length, int along)
{
    const int64_t step = width_of(format) == 4 ? ((int64_t)length + 1) / 2 * 2 : length,
                  dim[] = { lines, step };
    const size_t bytes = ng_tensor_bytes((ng_format)format, 2, dim);
    if (!bytes || !grow(&x->codes, bytes))
        return false;
    memset(x->codes.data, 0, bytes);
    x->view = (ng_tensor){ .data = x->codes.data, .format = (ng_format)format, .rank = 2 };
    x->view.dim[along] = length;
    x->view.dim[1 - along] = lines;
    x->view.stride[along] = 1;
    x->view.stride[1 - along] = step;
    x->present = true;
    return true;
}

/* Scales of blocks along its lines, all zero. */
static bool make_scales(struct matrix *x, int format, int block, int along)
{
    ng_tensor *t = &x->view;
    const int64_t blocks = (t->dim[along] + block - 1) / block;
    const size_t bytes = (size_t)(blocks * t->dim[1 - along]);
    if (!grow(&x->scales, bytes))
        return false;
    memset(x->scales.data, 0, bytes);
    t->scale = x->scales.data;
    t->scale_format = (ng_format)format;
    t->block = (uint32_t)block;
    t->block_axis = (uint32_t)along;
    t->scale_stride[along] = 1;
    t->scale_stride[1 - along] = blocks;
    return true;
}

static int matrices(struct oracle *o, const char *call, int m, int n, int k, int a_format,
                    int b_format, int scale_format, int block, int c_format, int d_format)
{
    const bool scaled = scale_format != NG_FORMAT_NONE, adds = c_format != NG_FORMAT_NONE;
    if (m < 1 || n < 1 || k < 1)
        return fail(o, NG_ERR_SHAPE, "%s: m %d, n %d, k %d; wanted: 1 or more", call, m, n, k);
    if (!width_of(a_format) || !width_of(b_format) || !width_of(d_format) ||
        (adds && !width_of(c_format)) || (scaled && width_of(scale_format) != 8))
        return fail(o, NG_ERR_FORMAT,
                    "%s: formats a %d, b %d, c %d, d %d, scales %d: one of them is none", call,
                    a_format, b_format, c_format, d_format, scale_format);
    if (scaled && block < 1)
        return fail(o, NG_ERR_SHAPE, "%s: block %d; wanted: 1 or more", call, block);
    o->shaped = false;
    o->n_steps = 0;
    if (!make_matrix(&o->a, a_format, m, k, 1) || !make_matrix(&o->b, b_format, n, k, 0) ||
        !make_matrix(&o->d, d_format, m, n, 1) ||
        (adds && !make_matrix(&o->c, c_format, m, n, 1)) ||
        (scaled && (!make_scales(&o->a, scale_format, block, 1) ||
                    !make_scales(&o->b, scale_format, block, 0))))
        return no_memory(o, call);
    o->c.present = adds;
    o->shaped = true;
    return done(o);
}

int ng_dpi_matrices(void *oracle, int m, int n, int k, int a_format, int b_format,
                    int scale_format, int block, int c_format, int d_format)
{
    struct oracle *o = ready(oracle);
    return o ? matrices(o, "matrices", m, n, k, a_format, b_format, scale_format, block,
                        c_format, d_format)
             : not_ready(oracle);
}

static struct matrix *operand(struct oracle *o, int which)
{
    struct matrix *const all[NG_DPI_OPERANDS] = { &o->a, &o->b, &o->c };
    return which >= 0 && which < NG_DPI_OPERANDS && o->shaped && all[which]->present
               ? all[which]
               : NULL;
}

static int no_operand(struct oracle *o, const char *call, int which)
{
    return fail(o, NG_ERR_ARGUMENT, "%s: %d is no operand of what ng_dpi_matrices() made", call,
                which);
}

int ng_dpi_put(void *oracle, int which, int row, int column, unsigned code)
{
    struct oracle *o = ready(oracle);
    if (!o)
        return not_ready(oracle);
    struct matrix *x = operand(o, which);
    if (!x)
        return no_operand(o, "put", which);
    const int64_t *dim = x->view.dim, index[] = { row, column };
    if (row < 0 || row >= dim[0] || column < 0 || column >= dim[1])
        return fail(o, NG_ERR_SHAPE, "put: element %d, %d of %lld x %lld", row, column,
                    (long long)dim[0], (long long)dim[1]);
    ng_tensor_set(&x->view, index, code);
    return done(o);
}

/* The dimension along a line. */
static int along_of(int which)
{
    return which == NG_DPI_B ? 0 : 1;
}

int ng_dpi_put_scale(void *oracle, int which, int line, int block, unsigned code)
{
    struct oracle *o = ready(oracle);
    if (!o)
        return not_ready(oracle);
    struct matrix *x = operand(o, which);
    if (!x || !x->view.scale)
        return no_operand(o, "put_scale", which);
    const int along = along_of(which);
    const int64_t lines = x->view.dim[1 - along], blocks = x->view.scale_stride[1 - along];
    if (line < 0 || line >= lines || block < 0 || block >= blocks)
        return fail(o, NG_ERR_SHAPE, "put_scale: block %d of line %d; there are %lld of %lld",
                    block, line, (long long)blocks, (long long)lines);
    ((uint8_t *)x->view.scale)[line * blocks + block] = (uint8_t)code;
    return done(o);
}

/* The elements of a vector to those of a line. */
static void put_bits(struct matrix *x, int along, int line, int first, int count,
                     const uint32_t *bits)
{
    const uint32_t width = width_of((int)x->view.format);
    int64_t index[2];
    index[1 - along] = line;
    for (int i = 0; i < count; i++) {
        index[along] = first + i;
        ng_tensor_set(&x->view, index, bits_get(bits, width, i));
    }
}

int ng_dpi_put_line(void *oracle, int which, int line, int first, int count,
                    const uint32_t *bits)
{
    struct oracle *o = ready(oracle);
    if (!o)
        return not_ready(oracle);
    struct matrix *x = operand(o, which);
    if (!x)
        return no_operand(o, "put_line", which);
    const int along = along_of(which), room = NG_DPI_BITS / (int)width_of((int)x->view.format);
    const int64_t lines = x->view.dim[1 - along], length = x->view.dim[along];
    if (line < 0 || line >= lines || first < 0 || count < 0 || count > room ||
        first > length - count)
        return fail(o, NG_ERR_SHAPE,
                    "put_line: %d elements from %d on of line %d; there are %lld of %lld, and "
                    "at most %d come at once",
                    count, first, line, (long long)length, (long long)lines, room);
    put_bits(x, along, line, first, count, bits);
    return done(o);
}

static const ng_tensor *addend(const struct oracle *o)
{
    return o->c.present ? &o->c.view : NULL;
}

static int multiply(struct oracle *o)
{
    o->n_steps = 0;
    o->op.profile = o->profile;
    (void)output_of(o);
    return given(o, ng_gemm(o->ctx, &o->op, &o->a.view, &o->b.view, addend(o), &o->d.view));
}

int ng_dpi_multiply(void *oracle)
{
    struct oracle *o = ready(oracle);
    if (!o)
        return not_ready(oracle);
    if (!o->shaped)
        return fail(o, NG_ERR_ARGUMENT,
                    "multiply: no operands; wanted: ng_dpi_matrices() first");
    return multiply(o);
}

/* Is there such an element of D? Else the message says so. */
static bool has_element(struct oracle *o, const char *call, int row, int column)
{
    const int64_t *dim = o->d.view.dim;
    if (!o->shaped)
        fail(o, NG_ERR_ARGUMENT, "%s: no operands; wanted: ng_dpi_matrices() first", call);
    else if (row < 0 || row >= dim[0] || column < 0 || column >= dim[1])
        fail(o, NG_ERR_SHAPE, "%s: element %d, %d of %lld x %lld", call, row, column,
             (long long)dim[0], (long long)dim[1]);
    else
        return true;
    return false;
}

unsigned ng_dpi_get(void *oracle, int row, int column)
{
    struct oracle *o = ready(oracle);
    if (!o || !has_element(o, "get", row, column))
        return 0;
    done(o);
    return ng_tensor_get(&o->d.view, (const int64_t[]){ row, column });
}

/* ---- A dot product. ---- */

static void put_scales(struct matrix *x, const uint32_t *bits, int blocks)
{
    for (int i = 0; i < blocks; i++)
        ((uint8_t *)x->view.scale)[i] = (uint8_t)bits_get(bits, 8, i);
}

int ng_dpi_dot(void *oracle, int k, int a_format, const uint32_t *a, int b_format,
               const uint32_t *b, int scale_format, int block, const uint32_t *a_scale,
               const uint32_t *b_scale, int c_format, unsigned c, int d_format, unsigned *d)
{
    struct oracle *o = ready(oracle);
    *d = 0;
    if (!o)
        return not_ready(oracle);
    const uint32_t wa = width_of(a_format), wb = width_of(b_format), wide = wa > wb ? wa : wb;
    if (wide && k > NG_DPI_BITS / (int)wide)
        return fail(o, NG_ERR_SHAPE, "dot: k %d; wanted: at most %d elements of %u bits", k,
                    NG_DPI_BITS / (int)wide, wide);
    const bool scaled = scale_format != NG_FORMAT_NONE && block > 0;
    const int blocks = scaled && k > 0 ? (k - 1) / block + 1 : 0;
    if (blocks > NG_DPI_SCALE_BITS / 8)
        return fail(o, NG_ERR_SHAPE, "dot: %d blocks of %d; wanted: at most %d", blocks, block,
                    NG_DPI_SCALE_BITS / 8);
    int s = matrices(o, "dot", 1, 1, k, a_format, b_format, scale_format, block, c_format,
                     d_format);
    if (s)
        return s;
    put_bits(&o->a, 1, 0, 0, k, a);
    put_bits(&o->b, 0, 0, 0, k, b);
    put_scales(&o->a, a_scale, blocks);
    put_scales(&o->b, b_scale, blocks);
    if (o->c.present)
        ng_tensor_set(&o->c.view, (const int64_t[]){ 0, 0 }, c);
    s = multiply(o);
    if (!s)
        *d = ng_tensor_get(&o->d.view, (const int64_t[]){ 0, 0 });
    return s;
}

/* ---- Intermediates. ---- */

struct tracing {
    struct oracle *o;
    bool full;
};

static void keep_step(void *user, const ng_trace_step *step)
{
    struct tracing *t = user;
    struct oracle *o = t->o;
    const size_t n = (size_t)o->n_steps + 1;
    if (n * sizeof *step > o->steps.bytes && !grow(&o->steps, 2 * n * sizeof *step)) {
        t->full = true;
        return;
    }
    ((ng_trace_step *)o->steps.data)[o->n_steps++] = *step;
}

int ng_dpi_trace(void *oracle, int row, int column)
{
    struct oracle *o = ready(oracle);
    struct tracing t = { o, false };
    const ng_trace trace = { keep_step, &t };
    const int64_t index[] = { row, column };
    uint32_t code;
    if (!o || !has_element(o, "trace", row, column))
        return -1;
    o->n_steps = 0;
    o->op.profile = o->profile;
    (void)output_of(o);
    const int s = given(o, ng_gemm_element(o->ctx, &o->op, false, &o->a.view, &o->b.view,
                                           addend(o), &o->d.view, index, &trace, &code));
    if (!s && t.full)
        no_memory(o, "trace");
    return o->status ? -1 : o->n_steps;
}

static double real_of(const ng_value *v)
{
    double x = ldexp((double)v->sig, v->exp);
    if (v->cls != NG_CLASS_FINITE)
        x = v->cls == NG_CLASS_INF ? HUGE_VAL : nan("");
    return v->neg ? -x : x;
}

/* Step i, or a message. */
static const ng_trace_step *step_at(struct oracle *o, const char *call, int i)
{
    if (i < 0 || i >= o->n_steps) {
        fail(o, NG_ERR_ARGUMENT, "%s: step %d of %d; wanted: ng_dpi_trace() first", call, i,
             o->n_steps);
        return NULL;
    }
    done(o);
    return (const ng_trace_step *)o->steps.data + i;
}

int ng_dpi_step(void *oracle, int i, int *kind, int *index, int *k0, int *k1, double *value)
{
    struct oracle *o = ready(oracle);
    const ng_trace_step *s = o ? step_at(o, "step", i) : NULL;
    *kind = s ? (int)s->kind : 0;
    *index = s ? (int)s->index : 0;
    *k0 = s ? (int)s->k0 : 0;
    *k1 = s ? (int)s->k1 : 0;
    *value = s ? real_of(&s->value) : 0;
    return not_ready(oracle);
}

const char *ng_dpi_step_text(void *oracle, int i)
{
    static const char *const names[] = { "chain", "foot of tile", "accumulate memory",
                                         "step",  "promotion",    "output" };
    struct oracle *o = ready(oracle);
    const ng_trace_step *s = o ? step_at(o, "step_text", i) : NULL;
    if (!s)
        return "";
    snprintf(o->text, sizeof o->text, "%s %lld of k %lld to %lld: %.17g (%a)", names[s->kind],
             (long long)s->index, (long long)s->k0, (long long)s->k1 - 1, real_of(&s->value),
             real_of(&s->value));
    return o->text;
}

/* ---- Conversions. ---- */

int ng_dpi_convert(void *oracle, int from, unsigned code, int to, unsigned *result)
{
    struct oracle *o = ready(oracle);
    ng_value value;
    uint32_t out = 0;
    *result = 0;
    if (!o)
        return not_ready(oracle);
    ng_status s = ng_decode((ng_format)from, code, &value);
    if (s)
        return fail(o, s, "convert: %d is no format", from);
    s = ng_encode((ng_format)to, output_of(o), &value,
                  o->n_words ? *(const uint32_t *)o->words.data : 0, &out);
    if (s)
        return fail(o, s,
                    "convert: to format %d by round %d, overflow %d; wanted: a format, and one "
                    "with Inf or NaN for NG_OVERFLOW_INF",
                    to, (int)o->op.out.round, (int)o->op.out.overflow);
    *result = out;
    return done(o);
}

double ng_dpi_real(int format, unsigned code)
{
    ng_value value;
    return ng_decode((ng_format)format, code, &value) ? nan("") : real_of(&value);
}

int ng_dpi_quantize(void *oracle, int n, int from, const uint32_t *src, int to,
                    int scale_format, int block, int rule, int special, unsigned tensor_amax,
                    uint32_t *dst, uint32_t *scale, unsigned *tensor_scale)
{
    struct oracle *o = ready(oracle);
    struct matrix x = { .present = false }, y = { .present = false };
    memset(dst, 0, NG_DPI_BITS / 8);
    memset(scale, 0, NG_DPI_SCALE_BITS / 8);
    *tensor_scale = 0;
    if (!o)
        return not_ready(oracle);
    const uint32_t wf = width_of(from), wt = width_of(to), wide = wf > wt ? wf : wt;
    if (!wf || !wt || width_of(scale_format) != 8)
        return fail(o, NG_ERR_FORMAT, "quantize: formats %d to %d, scales %d: one is none",
                    from, to, scale_format);
    if (n < 1 || n > NG_DPI_BITS / (int)wide || block < 1 ||
        (n - 1) / block + 1 > NG_DPI_SCALE_BITS / 8)
        return fail(o, NG_ERR_SHAPE,
                    "quantize: %d elements in blocks of %d; wanted: 1 to %d in at most %d "
                    "blocks",
                    n, block, NG_DPI_BITS / (int)wide, NG_DPI_SCALE_BITS / 8);
    ng_quantize_op op = { .size = sizeof op,
                          .rule = (ng_scale_rule)rule,
                          .special = (ng_block_special)special,
                          .cast = *output_of(o),
                          .tensor_amax = tensor_amax };
    if (!make_matrix(&x, from, 1, n, 1) || !make_matrix(&y, to, 1, n, 1) ||
        !make_scales(&y, scale_format, block, 1)) {
        no_memory(o, "quantize");
    } else {
        put_bits(&x, 1, 0, 0, n, src);
        given(o, ng_quantize(o->ctx, &op, &x.view, &y.view));
    }
    for (int i = 0; !o->status && i < n; i++)
        bits_put(dst, wt, i, ng_tensor_get(&y.view, (const int64_t[]){ 0, i }));
    for (int i = 0; !o->status && i <= (n - 1) / block; i++)
        bits_put(scale, 8, i, ((const uint8_t *)y.view.scale)[i]);
    if (!o->status)
        *tensor_scale = y.view.tensor_scale;
    free_matrix(&x);
    free_matrix(&y);
    return (int)o->status;
}
