/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix multiply reference: what meets at a position k, and what becomes of the
 * accumulator. The sum itself is ref_array.c or ref_fused.c. Numerics: docs/numerics.md,
 * section 4.
 */
#include "../internal.h"
#include "ref.h"

int32_t ng_ref_param(const struct gemm_job *g, ng_param param)
{
    return g->rule->set[param].value;
}

void ng_ref_trace(const ng_trace *trace, ng_trace_kind kind, int64_t index, int64_t k0,
                  int64_t k1, ng_value v)
{
    if (!trace)
        return;
    const ng_trace_step step = { .kind = kind, .index = index, .k0 = k0, .k1 = k1, .value = v };
    trace->step(trace->user, &step);
}

/* ---- Operands. ---- */

/* The offset inside its group that slot s of a sparse line selects; section 4.3. */
static int64_t tag_of(const struct gemm_operand *o, int64_t line, int64_t s)
{
    const uint8_t *tags = o->sparse->tags;
    return ng_tag_at(o->sparse->store,
                     tags + (o->tag_line + line) * ng_tag_line_bytes(o->sparse, o->depth), s);
}

/* A subnormal operand of a unit that flushes them; emin is the least normal exponent. */
static ng_value flushed_input(const struct gemm_job *g, ng_value v, int emin)
{
    const int32_t flush = ng_ref_param(g, NG_PARAM_FAMILY) == NG_FAMILY_FUSED
                              ? ng_ref_param(g, NG_PARAM_FLUSH_IN)
                              : NG_FLUSH_NONE;
    if (flush == NG_FLUSH_NONE || v.cls != NG_CLASS_FINITE || !v.sig ||
        ng_num_exponent(v) >= emin)
        return v;
    return ng_num_zero(flush == NG_FLUSH_SIGNED && v.neg);
}

/* An FP32 pattern as a tf32 operand: section 11.1 item 1. */
static uint32_t tf32_operand(const struct gemm_job *g, const ng_format_spec *tf32,
                             uint32_t code)
{
    const ng_cast in = { .round = (ng_round)ng_ref_param(g, NG_PARAM_TF32_IN) };
    const ng_value v = ng_num_decode(tf32, code);
    if (ng_num_is_nan(v) && ng_ref_param(g, NG_PARAM_FAMILY) == NG_FAMILY_FUSED &&
        ng_ref_param(g, NG_PARAM_TF32_NAN) == NG_TF32_NAN_CUT)
        return code & ~((1u << tf32->low_bits) - 1);
    (void)ng_num_encode(tf32, &in, v, 0, &code);
    return code;
}

/* The value as the unit sees it: FP4 through its table, tf32 rounded, subnormals flushed. */
static ng_value operand_value(const struct gemm_job *g, const struct gemm_operand *o,
                              int64_t line, int64_t k)
{
    uint32_t code =
        ng_load_code(o->data, o->spec->store_bits, o->offset + line * o->line + k * o->k);
    if (o->spec->format == NG_E2M1 && g->op->fp4_map)
        return ng_num_decode(ng_format_info(g->op->fp4_format), g->op->fp4_map[code]);

    if (o->spec->format == NG_TF32)
        code = tf32_operand(g, o->spec, code);
    const ng_value v = ng_num_decode(o->spec, code);
    return flushed_input(g, v, 1 - o->spec->bias);
}

/* Which scale element k of a line has: as ng_block_of(), over this operand's depth. */
static int64_t block_of(const struct gemm_operand *o, int64_t k)
{
    const ng_tensor line = {
        .block = o->block, .layout = o->layout, .rank = 1, .dim = { o->depth }
    };
    return ng_block_of(&line, k);
}

static ng_value scale_value(const struct gemm_operand *o, int64_t line, int64_t k)
{
    if (!o->scale)
        return (ng_value){ .sig = 1 };
    const int64_t at = o->scale_offset + line * o->scale_line + block_of(o, k) * o->scale_block;
    return ng_num_decode(o->scale_spec, o->scale[at]);
}

struct ng_pair ng_ref_pair(const struct gemm_job *g, int64_t i, int64_t j, int64_t k)
{
    int64_t ka = k, kb = k;
    if (g->a.sparse)
        kb = k / g->a.sparse->kept * g->a.sparse->group + tag_of(&g->a, i, k);
    if (g->b.sparse)
        ka = k / g->b.sparse->kept * g->b.sparse->group + tag_of(&g->b, j, k);
    return (struct ng_pair){ .a = operand_value(g, &g->a, i, ka),
                             .b = operand_value(g, &g->b, j, kb),
                             .scale_a = scale_value(&g->a, i, ka),
                             .scale_b = scale_value(&g->b, j, kb) };
}

ng_value ng_ref_product(const struct ng_pair *p)
{
    return ng_num_mul(ng_num_mul(p->a, p->b), ng_num_mul(p->scale_a, p->scale_b));
}

ng_value ng_ref_c(const struct gemm_job *g, int64_t i, int64_t j)
{
    const struct gemm_matrix *c = &g->c;
    const ng_value v =
        ng_num_decode(c->spec, ng_load_code(c->data, c->spec->store_bits,
                                            c->offset + i * c->row + j * c->col));
    return flushed_input(g, v, -126);
}

/* ---- Output: section 4.1 item 7 and 11.2 item 17. ---- */

static uint32_t acc_nan(const struct gemm_job *g)
{
    return (uint32_t)ng_ref_param(g, g->acc == NG_F16 ? NG_PARAM_NAN_F16 : NG_PARAM_NAN_F32);
}

uint32_t ng_ref_gemm_output(const struct gemm_job *g, int64_t i, int64_t j, ng_value acc,
                            uint32_t word, const ng_trace *trace)
{
    if (g->op->out_scale)
        acc = ng_num_round_f32(ng_num_mul(acc, ng_num_f32(g->op->out_scale)),
                               NG_ROUND_TIES_TO_EVEN);

    uint32_t code = 0;
    const ng_cast *out = &g->op->out;
    const int64_t e = g->first + i * g->n + j;
    if (ng_num_is_nan(acc) && g->d.spec->format == g->acc && g->acc != NG_BF16)
        code = acc_nan(g); /* the accumulator's own NaN, as it stands */
    else
        (void)ng_num_encode(g->d.spec, out, acc, word, &code); /* checked at the front door */
    ng_ref_trace(trace, NG_TRACE_OUT, e, 0, g->k, ng_num_decode(g->d.spec, code));
    return code;
}

uint32_t ng_ref_gemm_element(const struct gemm_job *g, int64_t i, int64_t j,
                             const ng_trace *trace)
{
    const ng_value acc = ng_ref_param(g, NG_PARAM_FAMILY) == NG_FAMILY_ARRAY
                             ? ng_ref_array(g, i, j, trace)
                             : ng_ref_fused(g, i, j, trace);
    const int64_t e = g->first + i * g->n + j;
    const uint32_t word =
        g->op->out.round == NG_ROUND_STOCHASTIC ? ng_stream_word(g->out_words, e) : 0;
    return ng_ref_gemm_output(g, i, j, acc, word, trace);
}

void ng_ref_gemm_store(const struct gemm_job *g, int64_t i, int64_t j, uint32_t code)
{
    ng_store_code(g->d.data, g->d.spec->store_bits, g->d.offset + i * g->d.row + j * g->d.col,
                  code);
}

ng_value ng_ref_gemm_exact(const struct gemm_job *g, int64_t i, int64_t j)
{
    struct ng_sum s;
    ng_sum_begin(&s);
    for (int64_t k = 0; k < g->k; k++) {
        const struct ng_pair p = ng_ref_pair(g, i, j, k);
        ng_sum_add(&s, ng_ref_product(&p));
    }
    if (g->c.data)
        ng_sum_add(&s, ng_ref_c(g, i, j));
    return ng_sum_end(&s);
}
