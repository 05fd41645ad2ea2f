/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_all_reduce: a plan of sums per chunk, done for runs of elements at a time. Numerics:
 * docs/numerics.md, section 11.12.
 */
#include <string.h>

#include "../num/num.h"
#include "../ref/ref.h"
#include "collective_plan.h"
#include "flat.h"

enum {
    RUN = 4096 /* elements of a task: two partial sums of them lie in the first cache */
};

/* A call: const while tasks run, but for the workers' memory and what a dry run finds. */
struct reduce_run {
    struct reduce_job job;
    struct flat_in x; /* of rank 0 */
    struct flat_out out;
    int64_t count;           /* elements of d */
    int64_t chunk;           /* elements of a chunk */
    struct reduce_plan plan; /* of every chunk, where all have one */
    bool chunks;             /* each its own */
    /* There, or the reference computes: */
    const struct ng_reduce_kernel *kernel;
    struct reduce_rounding rounding; /* of sums, and of terms in another format */
    bool bf16_terms;                 /* codes of bf16 that lie one after another */
    bool second;                     /* ng_ctx_asks_second() */
    unsigned char *memory;
    size_t of_worker;
};

static int32_t setting(const struct reduce_run *r, ng_collective_param p)
{
    return r->job.set[p].value;
}

static bool is_real(const struct reduce_run *r)
{
    return setting(r, NG_COLLECTIVE_ALGORITHM) == NG_ALGORITHM_REAL;
}

/* A rank's code of an element. */
static uint32_t code_of(const struct reduce_run *r, const ng_tensor *x, int64_t rank,
                        const int64_t *index)
{
    return ng_load_code(x->data, r->job.from->store_bits,
                        rank * x->stride[0] + ng_offset_at(&r->x.t, index));
}

/* ---- By kernels: a stack machine whose registers are runs. ---- */

struct machine {
    const struct reduce_run *r;
    const ng_tensor *x;
    int64_t first, n; /* elements */
    uint32_t *stack;  /* runs */
    int64_t top;      /* runs on the stack */
};

static uint32_t *run_at(const struct machine *m, int64_t i)
{
    return m->stack + i * RUN;
}

/* A rank's term: where it lies, or in `to`. */
static const uint32_t *read_term(const struct machine *m, int64_t rank, uint32_t *to)
{
    const struct reduce_run *r = m->r;
    const uint32_t *from = ng_flat_read(&r->x, rank * m->x->stride[0], m->first, m->n, to);
    if (r->job.wire == r->job.from || r->rounding.way == REDUCE_NOT)
        return from;
    if (from != to)
        memcpy(to, from, (size_t)m->n * sizeof *to);
    r->kernel->round(&r->rounding, m->n, to);
    return to;
}

static void push(struct machine *m, int64_t rank)
{
    uint32_t *to = run_at(m, m->top++);
    const uint32_t *from = read_term(m, rank, to);
    if (from != to)
        memcpy(to, from, (size_t)m->n * sizeof *to);
}

/* Where a rank's codes of `first` lie. */
static const void *codes_of(const struct machine *m, int64_t rank, int64_t first)
{
    const int64_t bytes = m->r->job.from->store_bits / 8;
    return (const unsigned char *)m->x->data + bytes * (rank * m->x->stride[0] + first);
}

/* The codes that will be read next, if they lie one after another. */
static const void *next_codes(const struct machine *m, const struct reduce_plan *p, int64_t i)
{
    const bool lie = m->r->x.row && m->r->job.from->store_bits % 8 == 0;
    while (i < p->n && p->step[i] < 0)
        i++;
    return lie && i < p->n ? codes_of(m, p->step[i], m->first) : NULL;
}

/* Sums that are not rounded. */
static const struct reduce_rounding none = { .way = REDUCE_NOT };

static void combine(const struct machine *m, const struct reduce_terms *terms, bool rounded)
{
    const struct reduce_run *r = m->r;
    const ng_reduction how = r->job.op->reduction;
    uint32_t *y = run_at(m, m->top - 1);
    if (how == NG_REDUCTION_SUM)
        r->kernel->add(rounded ? &r->rounding : &none, m->n, y, terms, y);
    else
        r->kernel->least(how == NG_REDUCTION_MAX,
                         setting(r, NG_COLLECTIVE_NAN) == NG_COLLECTIVE_NAN_NUMBER, m->n, y,
                         terms->data, y);
}

/* Step i of the plan, and those after it that are done with it; the next one. A sum is rounded
 * as it is added. */
static int64_t advance(struct machine *m, const struct reduce_plan *p, int64_t i)
{
    const struct reduce_run *r = m->r;
    const int32_t s = p->step[i++];
    struct reduce_terms terms = { .bf16 = false };
    if (s < PLAN_ADD) /* opened, closed */
        return i;
    if (s >= 0 && (i == p->n || p->step[i] != PLAN_ADD)) {
        push(m, s);
        return i;
    }
    if (s >= 0) {
        terms.bf16 = r->bf16_terms;
        terms.data = terms.bf16 ? codes_of(m, s, m->first)
                                : (const void *)read_term(m, s, run_at(m, m->top));
        terms.ahead = next_codes(m, p, ++i);
        terms.apart = r->job.from->store_bits / 8;
        terms.second = r->second;
    } else {
        terms.data = run_at(m, --m->top);
    }
    const bool rounded = i < p->n && p->step[i] == PLAN_ROUND;
    combine(m, &terms, rounded);
    return i + rounded;
}

static const uint32_t *by_kernels(const struct reduce_run *r, const ng_tensor *x,
                                  const struct reduce_plan *p, int64_t first, int64_t n,
                                  uint32_t *memory)
{
    struct machine m = { r, x, first, n, memory, 0 };
    for (int64_t i = 0; i < p->n;)
        i = advance(&m, p, i);
    if (r->job.op->reduction == NG_REDUCTION_SUM)
        r->kernel->quiet(n, m.stack);
    return m.stack;
}

/* ---- By the reference. ---- */

static const uint32_t *by_reference(const struct reduce_run *r, const ng_tensor *x,
                                    int64_t chunk, int64_t first, int64_t n, uint32_t *memory)
{
    uint32_t *y = memory, *term = memory + RUN;
    for (int64_t i = 0; i < n; i++) {
        int64_t index[NG_MAX_RANK];
        ng_unravel(&r->x.t, first + i, index);
        for (int64_t k = 0; k < r->job.ranks; k++)
            term[k] = ng_ref_reduce_term(&r->job, code_of(r, x, k, index));
        y[i] = ng_ref_reduce(&r->job, chunk, term, NULL);
    }
    return y;
}

/* Item 147, into d: not by way of FP32. The first error. */
static ng_status real_element(const struct reduce_run *r, const ng_tensor *x, int64_t i,
                              ng_value *term, uint32_t *code)
{
    int64_t index[NG_MAX_RANK];
    ng_unravel(&r->x.t, i, index);
    for (int64_t k = 0; k < r->job.ranks; k++)
        term[k] = ng_num_decode(r->job.from, code_of(r, x, k, index));
    const bool random = r->out.job.cast->round == NG_ROUND_STOCHASTIC;
    return ng_num_encode(r->out.job.to, r->out.job.cast, ng_ref_reduce_real(r->job.ranks, term),
                         random ? ng_stream_word(&r->out.words, i) : 0, code);
}

/* ---- Tasks. ---- */

struct task_arg {
    struct reduce_run *r;
    const ng_tensor *x;
};

static void real_task(const struct task_arg *a, int64_t first, int64_t end, void *memory)
{
    const struct reduce_run *r = a->r;
    const ng_tensor *d = r->out.t;
    for (int64_t i = first; i < end; i++) {
        int64_t index[NG_MAX_RANK];
        uint32_t code = 0;
        const ng_status s = real_element(r, a->x, i, memory, &code);
        if (r->out.dry) {
            *r->out.found = *r->out.found ? *r->out.found : s;
            continue;
        }
        ng_unravel(d, i, index);
        ng_store_code(d->data, r->out.job.to->store_bits, ng_offset_at(d, index), code);
    }
}

/* Item 143, before the modulus: of element i of d. */
static int64_t chunk_number(const struct reduce_run *r, int64_t i)
{
    const int64_t *element = r->job.op->element;
    return (element ? element[i] : i) / r->chunk;
}

/* Elements from `first` on that are in its chunk. */
static int64_t same_chunk(const struct reduce_run *r, int64_t first, int64_t end)
{
    const int64_t number = chunk_number(r, first);
    int64_t i = first + 1;
    if (!r->chunks)
        return end - first;
    if (!r->job.op->element)
        return (number + 1) * r->chunk < end ? (number + 1) * r->chunk - first : end - first;
    while (i < end && chunk_number(r, i) == number)
        i++;
    return i - first;
}

/* The elements of a task, chunk by chunk. */
static void reduce_task(void *arg, size_t task, size_t worker)
{
    const struct task_arg *a = arg;
    const struct reduce_run *r = a->r;
    int64_t first = (int64_t)task * RUN;
    const int64_t end = first + RUN < r->count ? first + RUN : r->count;
    uint32_t *memory = (void *)(r->memory + worker * r->of_worker);
    struct reduce_plan plan = r->plan;
    if (is_real(r)) {
        real_task(a, first, end, memory);
        return;
    }
    if (r->chunks)
        plan.step = (int32_t *)memory;
    memory += r->chunks ? ng_plan_room(r->job.ranks) : 0;
    const uint32_t saved = ng_fp_enter();
    while (first < end) {
        const int64_t n = same_chunk(r, first, end),
                      chunk = r->chunks ? chunk_number(r, first) % r->job.ranks : 0;
        if (r->chunks && r->kernel)
            ng_plan_build(&r->job, chunk, &plan);
        const uint32_t *y = r->kernel ? by_kernels(r, a->x, &plan, first, n, memory)
                                      : by_reference(r, a->x, chunk, first, n, memory);
        ng_flat_write(&r->out, first, n, y);
        first += n;
    }
    ng_fp_leave(saved);
}

static void run_all(ng_ctx *ctx, struct reduce_run *r, const ng_tensor *x)
{
    struct task_arg a = { r, x };
    const size_t tasks = (size_t)((r->count + RUN - 1) / RUN);
    /* real: codes of half a byte are stored one by one */
    const bool alone = r->out.dry || ng_flat_shares_bytes(&r->out);
    if (!alone) {
        ng_parallel(ctx, tasks, reduce_task, &a);
        return;
    }
    for (size_t t = 0; t < tasks; t++)
        reduce_task(&a, t, 0);
}

/* ---- Front door. ---- */

static ng_status check_op(ng_ctx *ctx, const ng_all_reduce_op *op)
{
    char message[160];
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "all_reduce: op is NULL or op.size is not %zu",
                       sizeof *op);
    if (!op->collective)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "all_reduce: op.collective is NULL");
    if ((unsigned)op->reduction > NG_REDUCTION_MAX)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "all_reduce: op.reduction is %d, no ng_reduction",
                       (int)op->reduction);
    if (ng_collective_check(op->collective, message, sizeof message))
        return ng_fail(ctx, NG_ERR_PROFILE, "all_reduce: op.collective: %s", message);
    if (op->reduction != NG_REDUCTION_SUM &&
        op->collective->set[NG_COLLECTIVE_ALGORITHM].value == NG_ALGORITHM_REAL)
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "all_reduce: op.reduction is no sum and the algorithm is real; wanted: "
                       "a sum");
    return NG_OK;
}

static ng_status check_rank(ng_ctx *ctx, const ng_all_reduce_op *op, int64_t ranks)
{
    const bool own = op->collective->set[NG_COLLECTIVE_START].value == NG_START_OWN &&
                     !ng_collective_param_is_idle(op->collective, NG_COLLECTIVE_START, true);
    if (ranks < 1 || ranks > NG_MAX_RANKS)
        return ng_fail(ctx, NG_ERR_SHAPE, "all_reduce: there are %lld ranks; wanted: 1 to %d",
                       (long long)ranks, NG_MAX_RANKS);
    if (op->rank < 0 || op->rank >= (own ? ranks : 1))
        return ng_fail(ctx, NG_ERR_ARGUMENT, "all_reduce: op.rank is %lld; wanted: %s",
                       (long long)op->rank,
                       own ? "a rank" : "0, for no rank begins at its own");
    return NG_OK;
}

static ng_status check_elements(ng_ctx *ctx, const ng_all_reduce_op *op, int64_t count)
{
    if (!op->element)
        return op->elements ? ng_fail(ctx, NG_ERR_ARGUMENT,
                                      "all_reduce: op.elements is %lld and op.element NULL; "
                                      "wanted: 0",
                                      (long long)op->elements)
                            : NG_OK;
    for (int64_t i = 0; i < count; i++)
        if (op->element[i] < 0 || op->element[i] >= op->elements)
            return ng_fail(ctx, NG_ERR_ARGUMENT,
                           "all_reduce: op.element[%lld] is %lld; wanted: 0 to %lld, "
                           "op.elements - 1",
                           (long long)i, (long long)op->element[i],
                           (long long)op->elements - 1);
    return NG_OK;
}

static ng_status check_plain(ng_ctx *ctx, const char *name, const ng_tensor *t)
{
    const ng_format_spec *f = ng_format_info(t->format);
    if (t->scale || t->tensor_scale || t->sparse)
        return ng_fail(ctx, NG_ERR_FORMAT,
                       "all_reduce: %s has %s; wanted: neither; use ng_dequantize or ng_expand "
                       "first",
                       name, t->sparse ? "tags" : "scales");
    if (f->kind == NG_KIND_SCALE || f->kind == NG_KIND_UFN)
        return ng_fail(ctx, NG_ERR_FORMAT, "all_reduce: %s has format %s, which is a scale",
                       name, f->text);
    return NG_OK;
}

static ng_status check_shapes(ng_ctx *ctx, const ng_tensor *x, const ng_tensor *d)
{
    if (x->rank < 2 || d->rank != x->rank - 1)
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "all_reduce: x has %u dimensions and d %u; wanted: [ranks, ...] and "
                       "those behind the first",
                       x->rank, d->rank);
    for (uint32_t i = 0; i < d->rank; i++)
        if (d->dim[i] != x->dim[i + 1])
            return ng_fail(ctx, NG_ERR_SHAPE,
                           "all_reduce: dimension %u of d is %lld; wanted: %lld, dimension %u "
                           "of x",
                           i, (long long)d->dim[i], (long long)x->dim[i + 1], i + 1);
    return NG_OK;
}

/* Rank 0's buffer. */
static ng_tensor first_buffer(const ng_tensor *x)
{
    ng_tensor t = *x;
    t.rank--;
    for (uint32_t i = 0; i < t.rank; i++) {
        t.dim[i] = x->dim[i + 1];
        t.stride[i] = x->stride[i + 1];
    }
    return t;
}

/* The wire's format, and whether sums can go into it. */
static ng_status open_wire(ng_ctx *ctx, struct reduce_job *j)
{
    const int32_t wire = j->set[NG_COLLECTIVE_WIRE].value;
    j->wire = wire == NG_FORMAT_NONE ? j->from : ng_format_info((ng_format)wire);
    j->cast = (ng_cast){ .round = (ng_round)j->set[NG_COLLECTIVE_ROUND].value,
                         .overflow = (ng_overflow)j->set[NG_COLLECTIVE_OVERFLOW].value };
    const bool rounds = j->op->reduction == NG_REDUCTION_SUM || j->wire != j->from;
    const char *error = rounds && j->set[NG_COLLECTIVE_ALGORITHM].value != NG_ALGORITHM_REAL
                            ? ng_num_cast_error(j->wire, &j->cast)
                            : NULL;
    return error
               ? ng_fail(ctx, NG_ERR_FORMAT, "all_reduce: wire is %s: %s", j->wire->text, error)
               : NG_OK;
}

static ng_status open_job(ng_ctx *ctx, const ng_all_reduce_op *op, ng_format from,
                          int64_t ranks, struct reduce_job *j)
{
    ng_status s = check_rank(ctx, op, ranks);
    *j = (struct reduce_job){
        .op = op, .set = op->collective->set, .ranks = ranks, .from = ng_format_info(from)
    };
    if (!s)
        s = open_wire(ctx, j);
    return s ? s : ng_plan_check(ctx, j);
}

static ng_status open_call(ng_ctx *ctx, const ng_all_reduce_op *op, const ng_tensor *x,
                           const ng_tensor *d, struct reduce_run *r)
{
    struct ng_extent ex, ed;
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_op(ctx, op);
    if (!s)
        s = ng_check_tensor(ctx, "all_reduce", "x", x, false, &ex);
    if (!s)
        s = ng_check_tensor(ctx, "all_reduce", "d", d, true, &ed);
    if (!s)
        s = check_plain(ctx, "x", x);
    if (!s)
        s = check_plain(ctx, "d", d);
    if (!s)
        s = check_shapes(ctx, x, d);
    if (s)
        return s;
    *r = (struct reduce_run){ .count = ng_count(d) };
    s = open_job(ctx, op, x->format, x->dim[0], &r->job);
    if (!s)
        s = check_elements(ctx, op, r->count);
    if (s)
        return s;
    if (ng_overlap(x->data, ex, d->data, ed))
        return ng_fail(ctx, NG_ERR_LAYOUT, "all_reduce: d overlaps x");
    const ng_tensor first = first_buffer(x);
    r->x = ng_flat_in(ctx, &first);
    r->chunks = ng_plan_has_chunks(&r->job);
    const int64_t elements = op->element ? op->elements : r->count;
    r->chunk = setting(r, NG_COLLECTIVE_CHUNK);
    if (!r->chunk)
        r->chunk = (elements + r->job.ranks - 1) / r->job.ranks;
    return ng_flat_out(ctx, "all_reduce", "op.out", d, "d", &op->out, ed, &r->out);
}

/* ---- Desk. ---- */

static uint32_t pattern_of(const ng_format_spec *f, uint32_t code)
{
    return ng_num_f32_code(ng_num_decode(f, code));
}

/* 2^e, within FP32. */
static uint32_t power(int e)
{
    return ng_num_f32_code((ng_value){ .sig = 1, .exp = e });
}

/* How a kernel rounds into the wire's format; false: none does. */
static bool rounding_of(const struct reduce_job *j, struct reduce_rounding *r)
{
    const ng_format_spec *f = j->wire;
    const ng_overflow o = j->cast.overflow;
    const int least = 1 - f->bias - (int)f->man_bits; /* of its last place */
    *r = (struct reduce_rounding){ .way = REDUCE_GRID };
    if (f->format == NG_F32 && o != NG_OVERFLOW_SATURATE) {
        r->way = REDUCE_NOT; /* every sum is one of FP32's */
        return true;
    }
    if (j->cast.round != NG_ROUND_TIES_TO_EVEN || f->man_bits >= 23 ||
        (f->kind != NG_KIND_IEEE && f->kind != NG_KIND_FN))
        return false;
    if (f->format == NG_BF16 && o == NG_OVERFLOW_INF)
        r->way = REDUCE_BF16;
    r->drop = 23 - f->man_bits;
    r->normal = f->exp_bits == 8 ? 0 : power(1 - f->bias);
    r->magic = power(least + 23 < 127 ? least + 23 : 127);
    r->most = pattern_of(f, f->max_code);
    const uint32_t beyond = f->kind == NG_KIND_IEEE ? 0x7F800000u : 0x7FC00000u;
    r->past = o == NG_OVERFLOW_INF ? beyond : r->most;
    r->inf = o == NG_OVERFLOW_SATURATE ? r->most : beyond;
    return true;
}

static void pick_kernels(ng_ctx *ctx, struct reduce_run *r)
{
    const struct reduce_job *j = &r->job;
    const bool rounds = rounding_of(j, &r->rounding),
               reads = r->x.widen || (j->from->format == NG_F32 && r->x.row);
    r->second = ng_ctx_asks_second(ctx);
    r->bf16_terms = j->from->format == NG_BF16 && j->wire == j->from && r->x.row &&
                    j->op->reduction == NG_REDUCTION_SUM;
    /* one rank's NaN meets no sum that makes it the canonical one */
    if (j->ranks > 1 && reads && rounds)
        r->kernel = ng_pick_reduce(ng_ctx_isas(ctx));
    ng_tell_reduce(ctx, r->kernel,
                   j->ranks == 1 ? "one rank has no sums"
                   : !rounds     ? "a wire's rounding that no kernel does"
                                 : "only the best ISA's is asked");
}

/* Memory of the plan that all chunks have, and of every worker. */
static ng_status claim(ng_ctx *ctx, struct reduce_run *r)
{
    const int64_t ranks = r->job.ranks;
    const size_t word = sizeof(uint32_t),
                 plan = ((size_t)ng_plan_room(ranks) * word + 63) / 64 * 64;
    size_t of_worker = (RUN + (size_t)ranks) * word; /* the reference's */
    void *memory;
    if (is_real(r)) {
        of_worker = (size_t)ranks * sizeof(ng_value);
    } else if (r->kernel) {
        ng_plan_build(&r->job, 0, &r->plan); /* others differ by the ranks in them alone */
        of_worker = (size_t)r->plan.depth * RUN * word;
    }
    of_worker = (of_worker + plan + 63) / 64 * 64;
    const ng_status s = ng_arena_claim(ctx, plan + ng_workers(ctx) * of_worker, &memory);
    if (s)
        return s;
    r->plan.step = memory;
    if (r->kernel && !r->chunks)
        ng_plan_build(&r->job, 0, &r->plan);
    r->memory = (unsigned char *)memory + plan;
    r->of_worker = of_worker;
    return NG_OK;
}

/* A NaN that d cannot hold: found before anything is written. */
static ng_status find_nans(ng_ctx *ctx, struct reduce_run *r, const ng_tensor *x)
{
    ng_status found = NG_OK;
    if (!ng_flat_may_fail(&r->out))
        return NG_OK;
    r->out.dry = true;
    r->out.found = &found;
    run_all(ctx, r, x);
    r->out.dry = false;
    r->out.found = NULL;
    if (!found)
        return NG_OK;
    return ng_fail(ctx, found,
                   "all_reduce: a result is NaN (or an Inf that overflows to one), which %s "
                   "cannot hold, and nan_to is \"error\"",
                   r->out.job.to->text);
}

ng_status ng_all_reduce(ng_ctx *ctx, const ng_all_reduce_op *op, const ng_tensor *x,
                        const ng_tensor *d)
{
    struct reduce_run r;
    ng_status s = open_call(ctx, op, x, d, &r);
    if (s)
        return s;
    if (is_real(&r))
        ng_tell_reduce(ctx, NULL, "real numbers are the reference's");
    else
        pick_kernels(ctx, &r);
    s = claim(ctx, &r);
    if (!s)
        s = find_nans(ctx, &r, x);
    if (s)
        return s;
    ng_ctx_note_kernel(ctx, r.kernel ? r.kernel->name : "ref", (ng_tiles){ 0 });
    run_all(ctx, &r, x);
    return NG_OK;
}

/* ---- One element; an order. ---- */

static ng_status check_index(ng_ctx *ctx, const ng_tensor *d, const int64_t *index)
{
    if (!index)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "all_reduce_element: index is NULL");
    for (uint32_t i = 0; i < d->rank; i++)
        if (index[i] < 0 || index[i] >= d->dim[i])
            return ng_fail(ctx, NG_ERR_ARGUMENT,
                           "all_reduce_element: index %u is %lld; wanted: 0 to %lld", i,
                           (long long)index[i], (long long)d->dim[i] - 1);
    return NG_OK;
}

ng_status ng_all_reduce_element(ng_ctx *ctx, const ng_all_reduce_op *op, const ng_tensor *x,
                                const ng_tensor *d, const int64_t *index, ng_reduce_step *step,
                                size_t room, size_t *steps, uint32_t *code)
{
    struct reduce_run r;
    struct ng_ref_steps told = { step, step ? room : 0, 0 };
    void *memory;
    ng_status s = open_call(ctx, op, x, d, &r);
    if (!s)
        s = check_index(ctx, d, index);
    if (!s && !code)
        s = ng_fail(ctx, NG_ERR_ARGUMENT, "all_reduce_element: code is NULL");
    if (!s)
        s = ng_arena_claim(ctx, (size_t)r.job.ranks * sizeof(ng_value), &memory);
    if (s)
        return s;
    int64_t number = 0;
    for (uint32_t i = 0; i < d->rank; i++)
        number = number * d->dim[i] + index[i];
    if (is_real(&r)) {
        s = real_element(&r, x, number, memory, code);
    } else {
        uint32_t *term = memory;
        for (int64_t k = 0; k < r.job.ranks; k++)
            term[k] = ng_ref_reduce_term(&r.job, code_of(&r, x, k, index));
        const uint32_t y =
            ng_ref_reduce(&r.job, chunk_number(&r, number) % r.job.ranks, term, &told);
        const bool random = op->out.round == NG_ROUND_STOCHASTIC;
        s = ng_num_encode(r.out.job.to, &op->out, ng_num_f32(y),
                          random ? ng_stream_word(&r.out.words, number) : 0, code);
    }
    if (s)
        return ng_fail(ctx, s,
                       "all_reduce_element: the result is NaN, which %s cannot hold, "
                       "and nan_to is \"error\"",
                       r.out.job.to->text);
    if (steps)
        *steps = told.n;
    return NG_OK;
}

ng_status ng_all_reduce_order(ng_ctx *ctx, const ng_all_reduce_op *op, int64_t ranks,
                              int64_t chunk, char *buffer, size_t bytes, size_t *length)
{
    struct reduce_job j;
    struct reduce_plan plan = { 0 };
    void *memory;
    ng_status s = ng_begin(ctx);
    if (!s)
        s = check_op(ctx, op);
    if (!s && op->collective->set[NG_COLLECTIVE_ALGORITHM].value == NG_ALGORITHM_REAL)
        s = ng_fail(ctx, NG_ERR_PROFILE,
                    "all_reduce_order: the algorithm is real; wanted: one "
                    "that has an order");
    if (!s && !length)
        s = ng_fail(ctx, NG_ERR_ARGUMENT, "all_reduce_order: length is NULL");
    if (!s)
        s = open_job(ctx, op, NG_F32, ranks, &j);
    if (!s && (chunk < 0 || chunk >= ranks))
        s = ng_fail(ctx, NG_ERR_ARGUMENT, "all_reduce_order: chunk is %lld; wanted: 0 to %lld",
                    (long long)chunk, (long long)ranks - 1);
    if (!s)
        s = ng_arena_claim(ctx, (size_t)ng_plan_room(ranks) * sizeof(int32_t), &memory);
    if (s)
        return s;
    plan.step = memory;
    ng_plan_build(&j, chunk, &plan);
    *length = ng_plan_print(&plan, buffer, bytes);
    return NG_OK;
}
