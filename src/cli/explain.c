/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>

#include <stdlib.h>
#include <string.h>

#include "neighbours.h"
#include "report.h"
#include "search.h"

/* ---- Hypotheses: what edits there are of a multiply or a conversion. ---- */

enum edit_kind {
    EDIT_PARAM,   /* a parameter of the profile's rule */
    EDIT_PROFILE, /* another profile */
    EDIT_ROUND,   /* of the output */
    EDIT_OVERFLOW,
    EDIT_NAN_SIGN,
    EDIT_NAN_TO,
    EDIT_NAN_CODE,   /* the output's NaN is `value` */
    EDIT_VIA,        /* rounded to another format first */
    EDIT_FLUSH_OUT,  /* subnormal outputs become zero */
    EDIT_FLUSH_IN,   /* subnormal elements of the inputs do */
    EDIT_ACCUMULATE, /* another accumulator format */
    EDIT_NO_C,
    EDIT_C_LAST, /* C added to the finished FP32 sum; value 1: to that rounded to D's format */
    EDIT_NO_FP4_MAP,
    EDIT_DOUBLE_ROW,
    EDIT_COLUMNS,     /* operand `which`, or OUTPUT, lies column by column */
    EDIT_ROUND_IN,    /* operand `which` rounded to format `value` first */
    EDIT_READ_AS,     /* operand `which` read in a look-alike format */
    EDIT_NIBBLES,     /* two 4-bit codes of a byte in the other order */
    EDIT_SWAP_SCALES, /* A's scales used for B and B's for A */
    EDIT_NO_SCALES,   /* of operand `which`, or of both */
    EDIT_SCALE_STEP,  /* every e8m0 scale off by `value` */
    EDIT_LAYOUT,      /* block layout */
    EDIT_SCALE_RULE,
    EDIT_SPECIAL
};

/* Differing elements that a hypothesis of a multiply must explain one of before it is looked at
 * in full; a conversion computes all of its elements anyway. */
enum {
    FIRST_LOOK = 64,
    PAIR_LOOK = 6
};

/* Of a class of differences at least this part of the sample, if there are so many. */
enum {
    FEW_OF_CLASS = 32
};

/* `which` of an edit that changes a and b alike; of one that changes d. */
enum {
    BOTH = 2,
    OUTPUT = 3
};
struct explainer {
    struct search search;
    const struct cli *cli;
    struct one_case *c;
    const struct operand *want;        /* of all elements, unless those are a sample: */
    const struct comparison *elements; /* what the report compared */
    const ng_rule *rule;               /* multiply: the oracle's */
    ng_ctx **ctx;                      /* one for each worker, without executors of their own */
    size_t n_ctx;
};

/* ---- A variant: the case as a hypothesis sees it. ---- */

struct variant {
    struct one_case c; /* shallow: shares the case's memory */
    ng_profile *profile;
    void *owned[8];
    size_t n_owned;
    ng_format via;
    bool flush, has_nan, c_last, c_rounded, columns; /* `columns`: d's */
    uint32_t nan;
};

static void variant_free(struct variant *v)
{
    for (size_t i = 0; i < v->n_owned; i++)
        free(v->owned[i]);
    ng_profile_free(v->profile);
}

/* A copy of an array for the variant to change; NULL when it has none or memory is out. */
static unsigned char *own(struct variant *v, const struct io_array *a)
{
    if (!a->data || v->n_owned == sizeof v->owned / sizeof v->owned[0])
        return NULL;
    unsigned char *copy = malloc(a->bytes);
    if (copy) {
        memcpy(copy, a->data, a->bytes);
        v->owned[v->n_owned++] = copy;
    }
    return copy;
}

static struct operand *operand_of(struct variant *v, int which)
{
    if (v->c.op > OP_GEMM)
        return &v->c.src;
    return which ? &v->c.b : &v->c.a;
}

static bool set_param(struct variant *v, const struct explainer *x, const struct edit *e)
{
    if (!v->profile)
        v->profile = ng_profile_copy(v->c.profile);
    if (!v->profile)
        return false;
    v->c.profile = v->c.gemm.profile = v->profile;
    return neighbour_set(v->profile, x->rule, (ng_param)e->which, e->value);
}

static bool swap_nibbles(struct variant *v, struct operand *o)
{
    unsigned char *p = own(v, &o->data);
    if (!p)
        return false;
    for (size_t i = 0; i < o->data.bytes; i++)
        p[i] = (unsigned char)(p[i] << 4 | p[i] >> 4);
    o->view.data = p;
    return true;
}

/* Every code of an operand through `map`, in memory of the variant's own. */
static bool map_inputs(struct variant *v, struct operand *o,
                       bool (*map)(ng_format format, int64_t arg, uint32_t *code), int64_t arg)
{
    unsigned char *p = own(v, &o->data);
    int64_t n = 1, index[NG_MAX_RANK];
    if (!p)
        return false;
    o->view.data = p;
    for (uint32_t d = 0; d < o->view.rank; d++)
        n *= o->view.dim[d];
    for (int64_t i = 0; i < n; i++) {
        index_of(&o->view, i, index);
        uint32_t code = ng_tensor_get(&o->view, index);
        if (!map(o->view.format, arg, &code))
            return false;
        ng_tensor_set(&o->view, index, code);
    }
    return true;
}

/* Through a narrower format, as a compiler's automatic cast does. */
static bool round_code(ng_format format, int64_t via, uint32_t *code)
{
    const ng_cast rne = { .round = NG_ROUND_TIES_TO_EVEN };
    ng_value x;
    return !ng_decode(format, *code, &x) && !ng_encode((ng_format)via, &rne, &x, 0, code) &&
           !ng_decode((ng_format)via, *code, &x) && !ng_encode(format, &rne, &x, 0, code);
}

static bool flush_code(ng_format format, int64_t unused, uint32_t *code)
{
    const ng_format_spec *f = ng_format_info(format);
    const uint32_t sign = 1u << (f->bits - 1);
    (void)unused;
    if ((*code & ~sign) >> (f->man_bits + f->low_bits) == 0)
        *code = f->kind == NG_KIND_FNUZ ? 0 : *code & sign;
    return f->kind != NG_KIND_INT;
}

static bool change_scales(struct variant *v, struct operand *o, const struct edit *e)
{
    unsigned char *p = own(v, &o->scale);
    if (!p)
        return false;
    for (size_t i = 0; i < o->scale.bytes; i++) {
        if (p[i] == 0xFF)
            continue;
        const int64_t s = e->kind == EDIT_NO_SCALES ? 127 : p[i] + e->value;
        p[i] = (unsigned char)(s < 0 ? 0 : s > 254 ? 254 : s);
    }
    o->view.scale = p;
    return true;
}

static bool change_both_scales(struct variant *v, const struct edit *e)
{
    if (v->c.op > OP_GEMM)
        return change_scales(v, &v->c.src, e);
    return (e->which == 1 || change_scales(v, &v->c.a, e)) &&
           (e->which == 0 || change_scales(v, &v->c.b, e));
}

static ng_cast *cast_of(struct one_case *c)
{
    return c->op <= OP_GEMM       ? &c->gemm.out
           : c->op == OP_QUANTIZE ? &c->quantize.cast
                                  : &c->convert.cast;
}

static bool swap_scales(struct variant *v)
{
    ng_tensor *a = &v->c.a.view, *b = &v->c.b.view;
    if (!a->scale || !b->scale || v->c.a.scale.bytes != v->c.b.scale.bytes)
        return false;
    void *s = a->scale;
    a->scale = b->scale;
    b->scale = s;
    return true;
}

/* Can these bytes be a matrix that lies the other way? Rows packed, no scales, no tags. */
static bool may_be_columns(const ng_tensor *t)
{
    const uint32_t r = t->rank;
    return r >= 2 && !t->scale && !t->sparse && ng_format_info(t->format)->store_bits >= 8 &&
           t->stride[r - 1] == 1 && t->stride[r - 2] == t->dim[r - 1] && t->dim[r - 1] > 1 &&
           t->dim[r - 2] > 1;
}

static bool read_columns(struct variant *v, int which)
{
    if (which == OUTPUT) {
        v->columns = true;
        return true;
    }
    ng_tensor *t = &operand_of(v, which)->view;
    t->stride[t->rank - 2] = 1;
    t->stride[t->rank - 1] = t->dim[t->rank - 2];
    return true;
}

/* The element that stands where `number` is expected. */
static int64_t standing_at(const struct variant *v, const ng_tensor *d, int64_t number)
{
    if (!v->columns)
        return number;
    const int64_t rows = d->dim[d->rank - 2], columns = d->dim[d->rank - 1];
    const int64_t matrix = number / (rows * columns), at = number % (rows * columns);
    return matrix * rows * columns + at % rows * columns + at / rows;
}

static bool apply(struct variant *v, const struct explainer *x, const struct edit *e)
{
    if (e->which == BOTH && (e->kind == EDIT_READ_AS || e->kind == EDIT_ROUND_IN)) {
        struct edit one = *e;
        one.which = 0;
        if (!apply(v, x, &one))
            return false;
        one.which = 1;
        return apply(v, x, &one);
    }
    struct operand *o = operand_of(v, e->which);
    ng_cast *cast = cast_of(&v->c);
    switch ((enum edit_kind)e->kind) {
    case EDIT_PARAM: return set_param(v, x, e);
    case EDIT_PROFILE:
        v->c.profile = v->c.gemm.profile = ng_profile_at((size_t)e->value);
        return true;
    case EDIT_ROUND: cast->round = (ng_round)e->value; return true;
    case EDIT_OVERFLOW: cast->overflow = (ng_overflow)e->value; return true;
    case EDIT_NAN_SIGN: cast->nan_sign = (ng_nan_sign)e->value; return true;
    case EDIT_NAN_TO: cast->nan_to = (ng_nan_to)e->value; return true;
    case EDIT_NAN_CODE:
        v->has_nan = true;
        v->nan = (uint32_t)e->value;
        return true;
    case EDIT_VIA:
        if (v->c_last)
            return false;
        v->via = (ng_format)e->value;
        return true;
    case EDIT_FLUSH_OUT: v->flush = true; return true;
    case EDIT_FLUSH_IN: return map_inputs(v, o, flush_code, 0);
    case EDIT_ACCUMULATE: v->c.gemm.accumulate = (ng_format)e->value; return true;
    case EDIT_NO_C: v->c.c.present = false; return true;
    case EDIT_C_LAST:
        if (v->via)
            return false;
        v->c.c.present = false;
        v->c_last = true;
        v->c_rounded = e->value != 0;
        v->via = NG_F32;
        return true;
    case EDIT_NO_FP4_MAP: v->c.gemm.fp4_map = NULL; return true;
    case EDIT_DOUBLE_ROW: v->c.gemm.double_row = !v->c.gemm.double_row; return true;
    case EDIT_COLUMNS: return read_columns(v, e->which);
    case EDIT_ROUND_IN: return map_inputs(v, o, round_code, e->value);
    case EDIT_READ_AS: o->view.format = (ng_format)e->value; return true;
    case EDIT_NIBBLES: return swap_nibbles(v, o);
    case EDIT_SWAP_SCALES: return swap_scales(v);
    case EDIT_NO_SCALES:
    case EDIT_SCALE_STEP: return change_both_scales(v, e);
    case EDIT_LAYOUT:
        if (v->c.op > OP_GEMM) {
            ng_tensor *t = v->c.op == OP_QUANTIZE ? &v->c.dst.view : &v->c.src.view;
            t->layout = (ng_layout)e->value;
            return true;
        }
        v->c.a.view.layout = v->c.b.view.layout = (ng_layout)e->value;
        return true;
    case EDIT_SCALE_RULE: v->c.quantize.rule = (ng_scale_rule)e->value; return true;
    case EDIT_SPECIAL: v->c.quantize.special = (ng_block_special)e->value; return true;
    }
    return false;
}

static bool variant_make(struct variant *v, const struct explainer *x,
                         const struct hypothesis *h)
{
    *v = (struct variant){ .c = *x->c };
    if (v->c.a.tags.data) /* the copied views must not point into the original */
        v->c.a.view.sparse = &v->c.a.sparse;
    if (v->c.b.tags.data)
        v->c.b.view.sparse = &v->c.b.sparse;
    for (int i = 0; i < h->n; i++)
        if (!apply(v, x, h->edit[i])) {
            variant_free(v);
            return false;
        }
    return true;
}

/* An FP32 sum and element `number` of C, added to nearest: one IEEE operation. */
static uint32_t add_c(const struct variant *v, ng_format to, uint32_t code, int64_t number)
{
    const ng_cast rne = { .round = NG_ROUND_TIES_TO_EVEN };
    const ng_tensor *c = &v->c.c.view;
    ng_value value;
    uint32_t c_code = 0;
    float sum, addend;
    if (v->c_rounded) {
        (void)ng_decode(NG_F32, code, &value);
        (void)ng_encode(to, &rne, &value, 0, &code);
        (void)ng_decode(to, code, &value);
        (void)ng_encode(NG_F32, &rne, &value, 0, &code);
    }
    (void)ng_decode(c->format, code_at(c, number), &value);
    (void)ng_encode(NG_F32, &rne, &value, 0, &c_code);
    memcpy(&sum, &code, sizeof sum);
    memcpy(&addend, &c_code, sizeof addend);
    sum += addend;
    memcpy(&code, &sum, sizeof code);
    return code;
}

/* What comes after the oracle's own arithmetic for element `number`: C, flushes, NaN codes, a
 * second rounding. */
static uint32_t finish(const struct variant *v, ng_format to, int64_t number, uint32_t code)
{
    ng_value value;
    if (v->via) {
        ng_cast cast = *cast_of((struct one_case *)&v->c);
        if (v->c_last)
            code = add_c(v, to, code, number);
        (void)ng_decode(v->via, code, &value);
        if (cast.round == NG_ROUND_STOCHASTIC)
            cast.round = NG_ROUND_TIES_TO_EVEN;
        (void)ng_encode(to, &cast, &value, 0, &code);
    }
    (void)ng_decode(to, code, &value);
    if (v->has_nan && value.cls == NG_CLASS_NAN)
        return v->nan;
    if (v->flush)
        (void)flush_code(to, 0, &code);
    return code;
}

/* ---- Evaluating: a list of elements under a hypothesis. ---- */

struct evaluation {
    const struct explainer *x;
    const struct variant *v;
    const int64_t *number;
    uint32_t *code;
    ng_tensor d; /* shape and format of the output */
    atomic_int status;
};

static void evaluate_one(void *arg, size_t i, size_t worker)
{
    struct evaluation *e = arg;
    const struct one_case *c = &e->v->c;
    int64_t index[NG_MAX_RANK];
    uint32_t code = 0;
    const int64_t number = standing_at(e->v, &e->d, e->number[i]);
    index_of(&e->d, number, index);
    const ng_status s =
        ng_gemm_element(e->x->ctx[worker], &c->gemm, c->op == OP_DOT, &c->a.view, &c->b.view,
                        c->c.present ? &c->c.view : NULL, &e->d, index, NULL, &code);
    if (s)
        atomic_store(&e->status, (int)s); /* every worker would find the same */
    else
        e->code[i] = finish(e->v, e->x->c->d.view.format, number, code);
}

static bool evaluate_multiply(const struct explainer *x, const struct variant *v,
                              const int64_t *number, size_t n, uint32_t *code)
{
    struct evaluation e = { .x = x, .v = v, .number = number, .code = code, .d = v->c.d.view };
    e.d.data = NULL;
    if (v->via)
        e.d.format = v->via;
    if (n)
        evaluate_one(&e, 0, 0); /* a rule that is refused is refused here */
    if (e.status)
        return false;
    cli_for_all(x->cli, n, evaluate_one, &e);
    return e.status == NG_OK;
}

/* Elements first, then scales: the numbering of conversions' outputs here. */
static uint32_t output_code(const struct variant *v, const struct operand *o, int64_t elements,
                            int64_t number)
{
    if (number < elements)
        return finish(v, o->view.format, number, code_at(&o->view, number));
    return ((const unsigned char *)o->scale.data)[number - elements];
}

/* Through another format: src is converted to it first. */
static bool convert_via(const struct explainer *x, struct variant *v)
{
    struct operand like = { .view = v->c.src.view }, half;
    const ng_convert_op op = { .size = sizeof op };
    like.view.format = v->via;
    like.view.block = 0;
    like.view.scale = NULL;
    if (!operand_alloc_like(&half, &like, 0))
        return false;
    const ng_status s = v->c.op == OP_DEQUANTIZE
                            ? ng_dequantize(x->ctx[0], &op, &v->c.src.view, &half.view)
                            : ng_convert(x->ctx[0], &op, &v->c.src.view, &half.view);
    v->owned[v->n_owned++] = half.data.data;
    v->c.src = half;
    if (v->c.op == OP_DEQUANTIZE)
        v->c.op = OP_CONVERT;
    return s == NG_OK;
}

static bool evaluate_conversion(const struct explainer *x, struct variant *v,
                                const int64_t *number, size_t n, uint32_t *code)
{
    struct operand out;
    if (v->via && !convert_via(x, v))
        return false;
    v->via = NG_FORMAT_NONE;
    bool ok = operand_alloc_like(&out, &v->c.dst, 0) &&
              case_compute(x->cli, x->ctx[0], &v->c, &out, false) == NG_OK;
    const int64_t elements = count_of(&v->c.dst.view);
    for (size_t i = 0; ok && i < n; i++)
        code[i] = output_code(v, &out, elements, number[i]);
    operand_free(&out);
    return ok;
}

static bool evaluate(void *of, const struct hypothesis *h, const int64_t *number, size_t n,
                     uint32_t *code)
{
    const struct explainer *x = of;
    struct variant v;
    if (!variant_make(&v, x, h))
        return false;
    const bool ok = x->c->op <= OP_GEMM ? evaluate_multiply(x, &v, number, n, code)
                                        : evaluate_conversion(x, &v, number, n, code);
    variant_free(&v);
    return ok;
}

/* ---- A hypothesis on all that the report compared. ---- */

static void note_left(const struct explainer *x, const struct operand *o, int64_t number,
                      uint32_t code, struct finding *f)
{
    const ng_format format = o->view.format;
    char at[64];
    index_text(&o->view, number, at, sizeof at);
    snprintf(f->left, sizeof f->left, "%s%s got %s, under the rule %s", at,
             x->c->op <= OP_GEMM ? "" : " of dst",
             code_text(format, code_at(&o->view, number)).text, code_text(format, code).text);
}

static void count_elements(const struct explainer *x, const struct variant *v,
                           const struct operand *made, struct finding *f)
{
    const struct operand *o = case_output(x->c);
    const int64_t n = count_of(&o->view);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = standing_at(v, &o->view, i);
        const uint32_t code = finish(v, o->view.format, at, code_at(&made->view, at));
        if (finding_count(f, code_at(&o->view, i), code_at(&x->want->view, i), code))
            note_left(x, o, i, code, f);
    }
}

static void count_scales(const struct explainer *x, const struct operand *made,
                         struct finding *f)
{
    const unsigned char *got = x->c->dst.scale.data, *want = x->want->scale.data,
                        *code = made->scale.data;
    for (size_t i = 0; i < made->scale.bytes; i++)
        if (finding_count(f, got[i], want[i], code[i]))
            snprintf(f->left, sizeof f->left, "scale %zu got 0x%02x, under the rule 0x%02x", i,
                     got[i], code[i]);
}

/* The elements of a report on a sample, each by the reference as before. */
static bool confirm_numbers(const struct explainer *x, const struct variant *v,
                            struct finding *f)
{
    const struct comparison *r = x->elements;
    uint32_t *code = malloc((size_t)r->n * sizeof *code);
    const bool ok = code && evaluate_multiply(x, v, r->number, (size_t)r->n, code);
    for (int64_t i = 0, d = 0; ok && i < r->n; i++) {
        const bool differs = d < r->differ && r->diff[d].index == r->number[i];
        const uint32_t got = code_at(&x->c->d.view, r->number[i]),
                       want = differs ? r->diff[d].want : got;
        d += differs;
        if (finding_count(f, got, want, code[i]))
            note_left(x, &x->c->d, r->number[i], code[i], f);
    }
    free(code);
    return ok;
}

/* Products of a multiply that the reference does in less than a minute. */
#define MANY_PRODUCTS 4e8

/* By a kernel, or by the reference in not too long a time. */
static bool is_soon_done(const struct explainer *x, const struct one_case *c,
                         const struct operand *out)
{
    const ng_tensor *a = &c->a.view;
    ng_kernel_info info[32];
    size_t n = 0;
    if (c->op > OP_GEMM ||
        (double)a->dim[a->rank - 1] * (double)count_of(&out->view) < MANY_PRODUCTS)
        return true;
    if (c->op == OP_DOT ||
        ng_gemm_kernels(x->cli->ctx, &c->gemm, a, &c->b.view, c->c.present ? &c->c.view : NULL,
                        &out->view, info, sizeof info / sizeof info[0], &n))
        return false;
    for (size_t i = 0; i < n && i < sizeof info / sizeof info[0]; i++)
        if (info[i].chosen)
            return strcmp(info[i].name, "ref") != 0;
    return false;
}

static bool confirm_all(const struct explainer *x, struct variant *v, struct finding *f)
{
    struct operand out, like = *case_output(&v->c);
    if (x->c->op <= OP_GEMM && v->via)
        like.view.format = v->via;
    if (x->c->op > OP_GEMM && v->via && !convert_via(x, v))
        return false;
    if (x->c->op > OP_GEMM)
        v->via = NG_FORMAT_NONE;
    const bool ok = operand_alloc_like(&out, &like, 0) && is_soon_done(x, &v->c, &out) &&
                    case_compute(x->cli, x->cli->ctx, &v->c, &out, false) == NG_OK;
    if (ok) {
        count_elements(x, v, &out, f);
        if (x->c->op == OP_QUANTIZE)
            count_scales(x, &out, f);
    }
    operand_free(&out);
    return ok;
}

static bool confirm(void *of, const struct hypothesis *h, struct finding *f)
{
    const struct explainer *x = of;
    struct variant v;
    if (!variant_make(&v, x, h))
        return false;
    const bool ok = x->elements->number ? confirm_numbers(x, &v, f) : confirm_all(x, &v, f);
    variant_free(&v);
    return ok;
}

/* ---- The list of edits. ---- */

static void add_param(void *of, ng_param p, int64_t value, const char *note)
{
    struct explainer *x = of;
    char text[32], about[48] = "";
    ng_param_print(p, (int32_t)value, text, sizeof text);
    if (note[0])
        snprintf(about, sizeof about, " (%s)", note);
    search_add(&x->search, EDIT_PARAM, (int)p, value, "%s=%s%s", ng_param_key(p), text, about);
}

static void add_cast(struct explainer *x, const char *what)
{
    const ng_cast *cast = cast_of(x->c);
    for (int r = NG_ROUND_TIES_TO_EVEN; r < NG_ROUND_STOCHASTIC; r++)
        if (cast->round != (ng_round)r)
            search_add(&x->search, EDIT_ROUND, 0, r, "%sround=%s", what,
                       round_text((ng_round)r));
    for (int o = NG_OVERFLOW_INF; o <= NG_OVERFLOW_SATURATE_KEEP_INF; o++)
        if (cast->overflow != (ng_overflow)o)
            search_add(&x->search, EDIT_OVERFLOW, 0, o, "%soverflow=%s", what,
                       overflow_text((ng_overflow)o));
    search_add(&x->search, EDIT_NAN_SIGN, 0, !cast->nan_sign, "%snan_sign=%s", what,
               cast->nan_sign ? "clear" : "keep");
    search_add(&x->search, EDIT_NAN_TO, 0,
               cast->nan_to == NG_NAN_TO_ZERO ? NG_NAN_TO_MAX : NG_NAN_TO_ZERO, "%snan_to=%s",
               what, cast->nan_to == NG_NAN_TO_ZERO ? "max" : "zero");
    search_add(&x->search, EDIT_FLUSH_OUT, 0, 1, "%sflush_subnormals", what);
}

/* Formats between the arithmetic and the output: wider in both fields is no rounding at all. */
static void add_via(struct explainer *x, const ng_format_spec *to, const char *what)
{
    static const ng_format between[] = { NG_F32, NG_TF32, NG_BF16, NG_F16, NG_E5M2 };
    for (size_t i = 0; i < sizeof between / sizeof between[0]; i++) {
        const ng_format_spec *f = ng_format_info(between[i]);
        const bool exact = f->format == NG_F32 && x->c->op <= OP_GEMM;
        if (f->format != to->format && !exact && f->man_bits >= to->man_bits)
            search_add(&x->search, EDIT_VIA, 0, f->format, "%svia=%s", what, f->text);
    }
    for (size_t i = 0; i < sizeof between / sizeof between[0]; i++) {
        const ng_format_spec *f = ng_format_info(between[i]);
        if (f->format != to->format && f->man_bits < to->man_bits && f->bits <= 32)
            search_add(&x->search, EDIT_VIA, 0, f->format, "%svia=%s", what, f->text);
    }
}

/* Formats that are taken for one another: the same stored bits, other values. */
static void add_look_alikes(struct explainer *x, ng_format f, int which, const char *name)
{
    static const ng_format alike[] = { NG_E4M3FN,   NG_E4M3, NG_E4M3FNUZ, NG_E5M2,
                                       NG_E5M2FNUZ, NG_E3M4, NG_MXINT8,   NG_BF16,
                                       NG_F16,      NG_E3M2, NG_E2M3 };
    const ng_format_spec *now = ng_format_info(f);
    for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++) {
        const ng_format_spec *g = ng_format_info(alike[i]);
        if (g->format == f || g->bits != now->bits || now->kind == NG_KIND_SCALE)
            continue;
        if (which == BOTH)
            search_add(&x->search, EDIT_READ_AS, which, g->format, "a read as %s, b read as %s",
                       g->text, g->text);
        else
            search_add(&x->search, EDIT_READ_AS, which, g->format, "%s read as %s", name,
                       g->text);
    }
}

/* Narrower formats that a compiler may have cast the operand to. */
static void add_casts(struct explainer *x, ng_format f, int which, const char *name)
{
    static const ng_format narrower[] = { NG_TF32, NG_BF16, NG_F16 };
    const ng_format_spec *now = ng_format_info(f);
    for (size_t i = 0; i < sizeof narrower / sizeof narrower[0]; i++) {
        const ng_format_spec *g = ng_format_info(narrower[i]);
        if (g->format == f || now->bits < 16 || g->man_bits >= now->man_bits)
            continue;
        if (which == BOTH)
            search_add(&x->search, EDIT_ROUND_IN, which, g->format,
                       "a rounded to %s, b rounded to %s", g->text, g->text);
        else
            search_add(&x->search, EDIT_ROUND_IN, which, g->format, "%s rounded to %s", name,
                       g->text);
    }
}

static void add_operand(struct explainer *x, const struct operand *o, int which,
                        const char *name)
{
    const ng_format_spec *f = ng_format_info(o->view.format);
    add_look_alikes(x, f->format, which, name);
    add_casts(x, f->format, which, name);
    if (f->store_bits == 4)
        search_add(&x->search, EDIT_NIBBLES, which, 0, "%s nibbles swapped", name);
    if (f->exp_bits > 1 && f->format != NG_E2M1)
        search_add(&x->search, EDIT_FLUSH_IN, which, 0, "%s subnormals flushed", name);
}

static void add_scales(struct explainer *x, const ng_tensor *t)
{
    if (!t->block)
        return;
    for (int l = NG_LAYOUT_LINEAR; l <= NG_LAYOUT_TRN_WRAP; l++)
        if (t->layout != (ng_layout)l && !(t->layout == NG_LAYOUT_TRN_1X32 && l == 0))
            search_add(&x->search, EDIT_LAYOUT, 0, l, "block layout=%s",
                       layout_text((ng_layout)l));
    if (x->c->op == OP_QUANTIZE)
        return;
    if (x->c->op <= OP_GEMM)
        search_add(&x->search, EDIT_SWAP_SCALES, 0, 0, "scales of a and b swapped");
    if (t->scale_format != NG_E8M0)
        return;
    search_add(&x->search, EDIT_NO_SCALES, BOTH, 0, "scales ignored");
    if (x->c->op <= OP_GEMM && x->c->b.view.block) {
        search_add(&x->search, EDIT_NO_SCALES, 0, 0, "scales of a ignored");
        search_add(&x->search, EDIT_NO_SCALES, 1, 0, "scales of b ignored");
    }
    search_add(&x->search, EDIT_SCALE_STEP, 0, 1, "scale bias off by +1");
    search_add(&x->search, EDIT_SCALE_STEP, 0, -1, "scale bias off by -1");
}

/* The first NaN that the chip wrote where the oracle has another. */
static void add_nan_code(struct explainer *x, const struct comparison *r)
{
    for (int64_t i = 0; r && i < r->differ; i++)
        if (r->diff[i].cls == DIFF_NAN_CODE) {
            search_add(&x->search, EDIT_NAN_CODE, 0, r->diff[i].got, "NaN code=0x%x",
                       (unsigned)r->diff[i].got);
            return;
        }
}

static void add_multiply(struct explainer *x)
{
    const struct one_case *c = x->c;
    each_neighbour(x->rule, c, REACH_NEAR, add_param, x);
    add_cast(x, "out ");
    static const ng_format acc[] = { NG_F32, NG_BF16, NG_F16 };
    for (size_t i = 0; i < 3; i++)
        if (c->gemm.accumulate != acc[i])
            search_add(&x->search, EDIT_ACCUMULATE, 0, acc[i], "accumulate=%s",
                       ng_format_info(acc[i])->text);
    add_via(x, ng_format_info(c->d.view.format), "out ");
    if (c->c.present)
        search_add(&x->search, EDIT_NO_C, 0, 0, "c ignored");
    if (c->c.present) /* fused: c_place=after is once an instruction */
        search_add(&x->search, EDIT_C_LAST, 0, 0, "c added last");
    if (c->c.present && c->d.view.format != NG_F32)
        search_add(&x->search, EDIT_C_LAST, 0, 1, "c added to the rounded sum");
    if (c->gemm.fp4_map)
        search_add(&x->search, EDIT_NO_FP4_MAP, 0, 0, "fp4_map ignored");
    search_add(&x->search, EDIT_DOUBLE_ROW, 0, 0, "double_row=%s",
               c->gemm.double_row ? "no" : "yes");
    add_operand(x, &c->a, 0, "a");
    add_operand(x, &c->b, 1, "b");
    if (c->a.view.format == c->b.view.format) {
        add_look_alikes(x, c->a.view.format, BOTH, "");
        add_casts(x, c->a.view.format, BOTH, "");
    }
    add_scales(x, &c->a.view);
    if (may_be_columns(&c->a.view))
        search_add(&x->search, EDIT_COLUMNS, 0, 0, "a is column-major");
    if (may_be_columns(&c->b.view))
        search_add(&x->search, EDIT_COLUMNS, 1, 0, "b is column-major");
    if (may_be_columns(&c->d.view))
        search_add(&x->search, EDIT_COLUMNS, OUTPUT, 0, "d is column-major");
    x->search.n_usual = x->search.n_edits;
    for (size_t i = 0; ng_profile_at(i); i++)
        if (ng_profile_at(i) != c->profile)
            search_add(&x->search, EDIT_PROFILE, 0, (int64_t)i, "profile=%.60s",
                       ng_profile_at(i)->name);
}

static void add_conversion(struct explainer *x)
{
    const struct one_case *c = x->c;
    if (c->op == OP_QUANTIZE) {
        for (int r = NG_SCALE_FLOOR; r <= NG_SCALE_NVFP4_EXACT; r++)
            if (c->quantize.rule != (ng_scale_rule)r)
                search_add(&x->search, EDIT_SCALE_RULE, 0, r, "scale_rule=%s",
                           scale_rule_text((ng_scale_rule)r));
        for (int s = NG_BLOCK_SPECIAL_ELEMENT; s <= NG_BLOCK_SPECIAL_EXPONENT; s++)
            if (c->quantize.special != (ng_block_special)s)
                search_add(&x->search, EDIT_SPECIAL, 0, s, "special=%s",
                           block_special_text((ng_block_special)s));
        add_scales(x, &c->dst.view);
    }
    add_cast(x, "");
    add_via(x, ng_format_info(c->dst.view.format), "");
    add_operand(x, &c->src, 0, "src");
    if (c->op == OP_DEQUANTIZE)
        add_scales(x, &c->src.view);
}

/* ---- Which elements. ---- */

/* Of each class its share, spread evenly, but of a rare one a few more: what differs otherwise
 * than the rest may have another cause. */
static void take_differing(struct sample *s, const struct comparison *r, int64_t base,
                           size_t limit)
{
    int64_t quota[DIFF_CLASSES], seen[DIFF_CLASSES] = { 0 }, taken[DIFF_CLASSES] = { 0 };
    const int64_t few = 1 + (int64_t)limit / FEW_OF_CLASS;
    for (int c = 0; c < DIFF_CLASSES; c++) {
        const double share = r->differ > (int64_t)limit ? (double)limit / (double)r->differ : 1;
        quota[c] = (int64_t)(share * (double)r->by_class[c]);
        if (quota[c] < few)
            quota[c] = few < r->by_class[c] ? few : r->by_class[c];
        s->all = s->all && quota[c] == r->by_class[c];
    }
    for (int64_t i = 0; i < r->differ; i++) {
        const struct diff *d = &r->diff[i];
        const int c = (int)d->cls;
        if (taken[c] == quota[c] || seen[c]++ * quota[c] / r->by_class[c] != taken[c])
            continue;
        taken[c]++;
        s->number[s->differ] = base + d->index;
        s->got[s->differ] = d->got;
        s->want[s->differ++] = d->want;
    }
}

static void take_equal(struct sample *s, const struct comparison *r, const ng_tensor *want,
                       const unsigned char *scales, int64_t base, size_t limit)
{
    const int64_t n = r->n - r->differ, take = n < (int64_t)limit ? n : (int64_t)limit;
    int64_t seen = 0, taken = 0, d = 0;
    for (int64_t k = 0; k < r->n && taken < take; k++) {
        const int64_t i = r->number ? r->number[k] : k;
        if (d < r->differ && r->diff[d].index == i) {
            d++;
            continue;
        }
        if (seen++ != taken * n / take)
            continue;
        const size_t at = s->differ + s->equal++;
        taken++;
        s->number[at] = base + i;
        s->got[at] = s->want[at] = scales ? scales[i] : code_at(want, i);
    }
    s->all = s->all && take == n && !r->number;
}

/* So many that all hypotheses together cost a few seconds. */
static size_t sample_limit(const struct explainer *x)
{
    if (x->c->op > OP_GEMM)
        return 1 << 20;
    const double k = (double)x->c->a.view.dim[x->c->a.view.rank - 1];
    const double n = 4e7 / (k * (double)search_usual(&x->search));
    return n < 32 ? 32 : n > 20000 ? 20000 : (size_t)n;
}

static bool take_sample(struct explainer *x, struct sample *s, const struct operand *want,
                        const struct comparison *elements, const struct comparison *scales)
{
    const size_t limit = sample_limit(x);
    *s = (struct sample){ .all = true };
    if (!sample_alloc(s, 4 * limit + 2 * DIFF_CLASSES * (1 + limit / FEW_OF_CLASS)))
        return false;
    take_differing(s, elements, 0, limit);
    if (scales)
        take_differing(s, scales, elements->n, limit);
    take_equal(s, elements, &want->view, NULL, 0, limit);
    if (scales)
        take_equal(s, scales, NULL, want->scale.data, elements->n, limit);
    return true;
}

static bool hides_others(const struct edit *e)
{
    switch ((enum edit_kind)e->kind) {
    case EDIT_READ_AS:
    case EDIT_ROUND_IN:
    case EDIT_NIBBLES:
    case EDIT_SWAP_SCALES:
    case EDIT_NO_SCALES:
    case EDIT_SCALE_STEP:
    case EDIT_LAYOUT:
    case EDIT_ACCUMULATE:
    case EDIT_NO_C:
    case EDIT_C_LAST:
    case EDIT_NO_FP4_MAP:
    case EDIT_DOUBLE_ROW:
    case EDIT_COLUMNS:
    case EDIT_SCALE_RULE: return true;
    default: return false;
    }
}

/* ---- Where the first differing element parts ways. ---- */

enum {
    MAX_STEPS = 1024
};

struct steps {
    ng_trace_step step[MAX_STEPS];
    size_t n;
};

static void keep_step(void *user, const ng_trace_step *step)
{
    struct steps *s = user;
    if (s->n < MAX_STEPS)
        s->step[s->n++] = *step;
}

static bool trace_element(const struct explainer *x, const struct one_case *c, int64_t number,
                          struct steps *s)
{
    const ng_trace trace = { keep_step, s };
    int64_t index[NG_MAX_RANK];
    uint32_t code;
    s->n = 0;
    index_of(&x->c->d.view, number, index);
    return ng_gemm_element(x->ctx[0], &c->gemm, c->op == OP_DOT, &c->a.view, &c->b.view,
                           c->c.present ? &c->c.view : NULL, &c->d.view, index, &trace,
                           &code) == NG_OK;
}

static bool same_value(const ng_value *a, const ng_value *b)
{
    if (a->cls != b->cls || (a->cls != NG_CLASS_NAN && a->neg != b->neg))
        return false;
    if (a->cls != NG_CLASS_FINITE || !a->sig || !b->sig)
        return a->cls != NG_CLASS_FINITE || !a->sig == !b->sig;
    const int za = __builtin_clzll(a->sig), zb = __builtin_clzll(b->sig);
    return a->sig << za == b->sig << zb && a->exp - za == b->exp - zb;
}

static const char *const step_names[] = { "chain", "foot of tile", "accumulate memory",
                                          "step",  "promotion",    "output" };

static void describe_divergence(void *of, const struct hypothesis *h, int64_t number,
                                char *text, size_t bytes)
{
    const struct explainer *x = of;
    struct variant v;
    struct steps *s = malloc(2 * sizeof *s);
    text[0] = '\0';
    if (!s || !variant_make(&v, x, h)) {
        free(s);
        return;
    }
    /* Of an output that lies otherwise, or that C joins late, another sum would be traced. */
    if (!v.columns && !v.c_last && trace_element(x, x->c, number, &s[0]) &&
        trace_element(x, &v.c, number, &s[1])) {
        for (size_t i = 0; i < s[0].n && i < s[1].n; i++) {
            const ng_trace_step *a = &s[0].step[i], *b = &s[1].step[i];
            if (a->kind != b->kind || a->k0 != b->k0 || a->k1 != b->k1)
                break; /* other steps altogether: nothing to set side by side */
            if (same_value(&a->value, &b->value))
                continue;
            if (a->kind == NG_TRACE_OUT)
                snprintf(text, bytes, "same accumulator; parts ways at the output: %s, not %s",
                         value_text(&b->value).text, value_text(&a->value).text);
            else
                snprintf(text, bytes, "parts ways at %s %lld of k %lld to %lld: %s, not %s",
                         step_names[a->kind], (long long)a->index, (long long)a->k0,
                         (long long)a->k1 - 1, value_text(&b->value).text,
                         value_text(&a->value).text);
            break;
        }
    }
    variant_free(&v);
    free(s);
}

/* ---- Entry points. ---- */

static void explainer_close(struct explainer *x)
{
    for (size_t i = 0; i < x->n_ctx; i++)
        ng_ctx_destroy(x->ctx[i]);
    free(x->ctx);
    free(x);
}

static struct explainer *explainer_open(const struct cli *cli, struct one_case *c,
                                        const struct comparison *elements)
{
    struct explainer *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->cli = cli;
    x->c = c;
    x->search = (struct search){ .cli = cli,
                                 .of = x,
                                 .evaluate = evaluate,
                                 .confirm = confirm,
                                 .hides_others = hides_others,
                                 .divergence = c->op <= OP_GEMM ? describe_divergence : NULL,
                                 .first_look = c->op <= OP_GEMM ? FIRST_LOOK : SIZE_MAX,
                                 .pair_look = c->op <= OP_GEMM ? PAIR_LOOK : SIZE_MAX,
                                 .any = c->op <= OP_GEMM };
    const size_t workers = cli->executor.parallel_for ? cli->executor.workers : 1;
    x->ctx = calloc(workers, sizeof(ng_ctx *));
    for (size_t i = 0; x->ctx && i < workers; i++) {
        if (ng_ctx_create(NULL, &x->ctx[i]))
            break;
        x->n_ctx++;
    }
    if (x->n_ctx < workers) {
        explainer_close(x);
        return NULL;
    }
    if (c->op <= OP_GEMM) {
        x->rule = ng_gemm_rule(x->ctx[0], &c->gemm, &c->a.view, &c->b.view);
        if (x->rule)
            add_multiply(x);
    } else {
        add_conversion(x);
    }
    add_nan_code(x, elements);
    return x;
}

ng_status evaluate_sample(const struct cli *cli, struct one_case *c, const int64_t *number,
                          int64_t n, uint32_t *code)
{
    struct explainer *x = explainer_open(cli, c, NULL);
    const struct hypothesis oracle = { .n = 0 };
    int64_t index[NG_MAX_RANK];
    ng_status s = NG_ERR_MEMORY;
    if (!x)
        return s;
    /* The first element through the caller's context, for its message. */
    index_of(&c->d.view, number[0], index);
    s = ng_gemm_element(cli->ctx, &c->gemm, c->op == OP_DOT, &c->a.view, &c->b.view,
                        c->c.present ? &c->c.view : NULL, &c->d.view, index, NULL, code);
    if (!s && !evaluate(x, &oracle, number, (size_t)n, code))
        s = NG_ERR_INTERNAL;
    explainer_close(x);
    return s;
}

int explain(const struct cli *cli, struct one_case *c, const struct operand *want,
            const struct comparison *elements, const struct comparison *scales,
            struct findings *out)
{
    struct explainer *x = explainer_open(cli, c, elements);
    struct sample s = { .all = false };
    *out = (struct findings){ .n = 0 };
    if (!x)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    x->want = want;
    x->elements = elements;
    const bool ok =
        take_sample(x, &s, want, elements, scales) && search_explain(&x->search, &s, out);
    sample_free(&s);
    explainer_close(x);
    return ok ? 0 : cli_fail(EXIT_INTERNAL, "out of memory");
}

int sensitivity(const struct cli *cli, struct one_case *c, const struct operand *want,
                const struct comparison *looked_at, struct findings *out)
{
    /* Of a sample the differing elements' wanted codes are not in `want`: they stay out. */
    const struct comparison all = { .n = looked_at->n };
    const struct comparison *elements = looked_at->number ? looked_at : &all;
    struct comparison scales;
    struct explainer *x = explainer_open(cli, c, NULL);
    struct sample s = { .all = false };
    const bool has_scales = c->op == OP_QUANTIZE;
    *out = (struct findings){ .n = 0 };
    if (!x)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    scales = (struct comparison){ .n = (int64_t)want->scale.bytes };
    const bool ok = take_sample(x, &s, want, elements, has_scales ? &scales : NULL) &&
                    search_notice(&x->search, &s, out);
    sample_free(&s);
    explainer_close(x);
    return ok ? 0 : cli_fail(EXIT_INTERNAL, "out of memory");
}
