/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ng_prune, ng_compress, ng_expand, ng_sparse_check: one walk over the lines of a tensor, cut
 * into stretches of groups. Numerics: docs/numerics.md, sections 4.3 and 11.4.
 */
#include <stdatomic.h>

#include "../dispatch.h"
#include "../internal.h"
#include "../ref/ref.h"
#include "ng/sparse.h"

enum {
    MAX_GROUP = 16,
    /* Groups of a task: enough to hide the executor. A multiple of 4, so that the tags of a
     * stretch begin on a byte. */
    STRETCH = 8192
};

/* A call: const while tasks run, the findings apart. */
struct sparse_call {
    const char *name;
    struct sparse_job job;
    const struct ng_sparse_kernel *kernel; /* NULL: the reference */
    const ng_tensor *dense;                /* where the groups of N are read or written */
    const ng_tensor *out;                  /* prune: written; compress, expand: the slots */
    uint32_t axis;
    int64_t lines, in_matrix, groups; /* all lines, those of a matrix; groups of a line */
    unsigned char *tags;              /* of line 0 */
    int64_t tag_stride;
    int64_t together, cuts; /* lines of a task, or tasks of a line: one of them is 1 */
    void (*stretch)(struct sparse_call *c, int64_t line, int64_t from, int64_t to);
    atomic_llong broken, first; /* groups found wrong; number of the first of them */
};

/* ---- Front door. ---- */

static ng_status check_pattern(ng_ctx *ctx, struct sparse_call *c)
{
    const struct sparse_job *j = &c->job;
    if (j->group < 1 || j->group > MAX_GROUP || j->kept < 1 || j->kept > j->group)
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "%s: the pattern is %u:%u; wanted: 1 <= kept <= group <= 16", c->name,
                       j->kept, j->group);
    return NG_OK;
}

static ng_status check_formats(ng_ctx *ctx, const struct sparse_call *c, const char *name,
                               const ng_tensor *t, bool tags)
{
    const ng_format_spec *f = ng_format_info(t->format);
    if (f->kind == NG_KIND_SCALE || f->kind == NG_KIND_UFN)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: %s has format %s, which is a scale", c->name,
                       name, f->text);
    if (t->scale || t->tensor_scale || (t->sparse && !tags))
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: %s has %s; wanted: none", c->name, name,
                       t->sparse && !tags ? "tags" : "scales");
    return NG_OK;
}

/* The dense side: its axis, its lines and their groups. */
static ng_status check_dense(ng_ctx *ctx, struct sparse_call *c, const char *name,
                             const ng_tensor *t)
{
    const uint32_t r = t->rank;
    if (c->axis >= r || c->axis + 2 < r)
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "%s: axis is %u but %s has rank %u; wanted: the last dimension or the "
                       "one before it",
                       c->name, c->axis, name, r);
    if (t->dim[c->axis] % c->job.group)
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "%s: dimension %u of %s is %lld; %u:%u wants a multiple of %u", c->name,
                       c->axis, name, (long long)t->dim[c->axis], c->job.kept, c->job.group,
                       c->job.group);
    c->dense = t;
    c->groups = t->dim[c->axis] / c->job.group;
    c->lines = ng_count(t) / t->dim[c->axis];
    c->in_matrix = r < 2 ? 1 : t->dim[c->axis == r - 1 ? r - 2 : r - 1];
    c->job.spec = ng_format_info(t->format);
    return NG_OK;
}

static ng_status check_same_format(ng_ctx *ctx, const struct sparse_call *c,
                                   const ng_tensor *src, const ng_tensor *dst)
{
    if (src->format != dst->format)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: src is %s but dst is %s", c->name,
                       ng_format_info(src->format)->text, ng_format_info(dst->format)->text);
    return NG_OK;
}

/* The compressed side `t` beside the dense one. */
static ng_status check_slots(ng_ctx *ctx, const struct sparse_call *c, const char *name,
                             const ng_tensor *t, const char *dense)
{
    if (t->rank != c->dense->rank)
        return ng_fail(ctx, NG_ERR_SHAPE, "%s: %s has rank %u but %s has rank %u", c->name,
                       name, t->rank, dense, c->dense->rank);
    for (uint32_t d = 0; d < t->rank; d++) {
        const int64_t want = d == c->axis ? c->groups * c->job.kept : c->dense->dim[d];
        if (t->dim[d] != want)
            return ng_fail(ctx, NG_ERR_SHAPE,
                           "%s: dimension %u of %s is %lld; %u:%u of %s with %lld wants %lld",
                           c->name, d, name, (long long)t->dim[d], c->job.kept, c->job.group,
                           dense, (long long)c->dense->dim[d], (long long)want);
    }
    return NG_OK;
}

static struct ng_extent tags_extent(const struct sparse_call *c)
{
    return (struct ng_extent){ 0, c->lines * c->tag_stride };
}

static ng_status check_op(ng_ctx *ctx, const char *call, const ng_sparse_op *op)
{
    const ng_status s = ng_begin(ctx);
    if (s)
        return s;
    if (!op || op->size != sizeof *op)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: op is NULL or op.size is not %zu", call,
                       sizeof *op);
    return NG_OK;
}

/* ---- Walking lines. ---- */

/* Element 0 of a line, in elements from data. */
static int64_t line_start(const ng_tensor *t, uint32_t axis, int64_t line)
{
    int64_t at = 0;
    for (uint32_t d = t->rank; d-- > 0;) {
        if (d == axis)
            continue;
        at += line % t->dim[d] * t->stride[d];
        line /= t->dim[d];
    }
    return at;
}

static void run_task(void *arg, size_t task, size_t worker)
{
    struct sparse_call *c = arg;
    (void)worker;
    const int64_t t = (int64_t)task, first = t / c->cuts * c->together,
                  end = first + c->together < c->lines ? first + c->together : c->lines;
    const int64_t from = t % c->cuts * STRETCH,
                  to = c->cuts == 1 || from + STRETCH > c->groups ? c->groups : from + STRETCH;
    for (int64_t line = first; line < end; line++)
        c->stretch(c, line, from, to);
}

/* `shared`: two lines may write into one byte, so that only one thread may. */
static void run_all(ng_ctx *ctx, struct sparse_call *c, bool shared,
                    void (*stretch)(struct sparse_call *c, int64_t line, int64_t from,
                                    int64_t to))
{
    c->stretch = stretch;
    c->cuts = (c->groups + STRETCH - 1) / STRETCH;
    c->together = c->cuts > 1 ? 1 : STRETCH / c->groups;
    const size_t tasks = (size_t)((c->lines + c->together - 1) / c->together * c->cuts);
    if (!shared) {
        ng_parallel(ctx, tasks, run_task, c);
        return;
    }
    for (size_t i = 0; i < tasks; i++)
        run_task(c, i, 0);
}

/* The kernel, where the lines of both tensors are consecutive codes of whole bytes. */
static void pick(ng_ctx *ctx, struct sparse_call *c)
{
    const ng_tensor *out = c->out ? c->out : c->dense;
    c->job.consecutive = (c->dense->dim[c->axis] == 1 || c->dense->stride[c->axis] == 1) &&
                         (out->dim[c->axis] == 1 || out->stride[c->axis] == 1);
    c->kernel = ng_pick_sparse(&c->job, ng_ctx_isas(ctx));
    atomic_init(&c->broken, 0);
    atomic_init(&c->first, INT64_MAX);
    ng_ctx_note_kernel(ctx, c->kernel ? c->kernel->name : "ref", (ng_tiles){ 0 });
}

/* The bytes of element k of a line; kernels only. */
static unsigned char *place(const struct sparse_call *c, const ng_tensor *t, int64_t line,
                            int64_t k)
{
    return (unsigned char *)t->data +
           (line_start(t, c->axis, line) + k) * (c->job.spec->store_bits / 8);
}

static unsigned char *line_tags(const struct sparse_call *c, int64_t line)
{
    return c->tags + line * c->tag_stride;
}

/* The byte that the tags of group g begin in. */
static unsigned char *group_tags(const struct sparse_call *c, int64_t line, int64_t g)
{
    return line_tags(c, line) + g * c->job.kept / (c->job.store == NG_TAG_TRN ? 2 : 4);
}

static void load_group(const struct sparse_call *c, int64_t start, int64_t g, uint32_t *code)
{
    const ng_tensor *t = c->dense;
    for (uint32_t i = 0; i < c->job.group; i++)
        code[i] = ng_load_code(t->data, c->job.spec->store_bits,
                               start + (g * c->job.group + i) * t->stride[c->axis]);
}

static void note_broken(struct sparse_call *c, int64_t line, int64_t g)
{
    const long long number = line * c->groups + g;
    long long first = atomic_load(&c->first);
    while (number < first && !atomic_compare_exchange_weak(&c->first, &first, number))
        ;
    atomic_fetch_add(&c->broken, 1);
}

/* ---- Stretches: groups [from, to) of a line. ---- */

static void check_stretch(struct sparse_call *c, int64_t line, int64_t from, int64_t to)
{
    uint32_t code[MAX_GROUP];
    const int64_t start = line_start(c->dense, c->axis, line);
    if (c->kernel &&
        c->kernel->holds(&c->job, place(c, c->dense, line, from * c->job.group), to - from))
        return;
    for (int64_t g = from; g < to; g++) {
        load_group(c, start, g, code);
        const uint32_t set = ng_ref_sparse_nonzero(c->job.spec, code, c->job.group);
        if ((uint32_t)__builtin_popcount(set) > c->job.kept)
            note_broken(c, line, g);
    }
}

/* What pruning keeps: the slots' elements, without the zeros among them. */
static uint32_t survivors(const struct sparse_job *j, const uint32_t *code)
{
    return ng_ref_sparse_keep(j->spec, code, j->kept, j->group) &
           ng_ref_sparse_nonzero(j->spec, code, j->group);
}

static void prune_stretch(struct sparse_call *c, int64_t line, int64_t from, int64_t to)
{
    const struct sparse_job *j = &c->job;
    uint32_t code[MAX_GROUP];
    if (c->kernel) {
        c->kernel->prune(j, place(c, c->dense, line, from * j->group), to - from,
                         place(c, c->out, line, from * j->group));
        return;
    }
    const int64_t start = line_start(c->dense, c->axis, line),
                  out = line_start(c->out, c->axis, line);
    for (int64_t g = from; g < to; g++) {
        load_group(c, start, g, code);
        const uint32_t set = survivors(j, code);
        for (uint32_t i = 0; i < j->group; i++)
            ng_store_code(c->out->data, j->spec->store_bits,
                          out + (g * j->group + i) * c->out->stride[c->axis],
                          set >> i & 1 ? code[i] : 0);
    }
}

static void compress_group(const struct sparse_call *c, int64_t line, int64_t out, int64_t g,
                           const uint32_t *code)
{
    const struct sparse_job *j = &c->job;
    const uint32_t keep = ng_ref_sparse_keep(j->spec, code, j->kept, j->group),
                   set = keep & ng_ref_sparse_nonzero(j->spec, code, j->group);
    int64_t slot = g * j->kept;
    for (uint32_t i = 0; i < j->group; i++) {
        if (!(keep >> i & 1))
            continue;
        ng_store_code(c->out->data, j->spec->store_bits, out + slot * c->out->stride[c->axis],
                      set >> i & 1 ? code[i] : 0);
        ng_tag_put(j->store, line_tags(c, line), slot++, i);
    }
}

static void compress_stretch(struct sparse_call *c, int64_t line, int64_t from, int64_t to)
{
    const struct sparse_job *j = &c->job;
    uint32_t code[MAX_GROUP];
    if (c->kernel) {
        c->kernel->compress(j, place(c, c->dense, line, from * j->group), to - from,
                            place(c, c->out, line, from * j->kept), group_tags(c, line, from));
    } else {
        const int64_t start = line_start(c->dense, c->axis, line),
                      out = line_start(c->out, c->axis, line);
        for (int64_t g = from; g < to; g++) {
            load_group(c, start, g, code);
            compress_group(c, line, out, g, code);
        }
    }
    if (to == c->groups)
        for (int64_t s = to * j->kept; s % 4; s++) /* what is left of the line's last word */
            ng_tag_put(j->store, line_tags(c, line), s, 0);
}

/* The tags of a group, and whether each is an element of its own. */
static bool load_tags(const struct sparse_call *c, int64_t line, int64_t g, uint32_t *tag)
{
    const struct sparse_job *j = &c->job;
    uint32_t seen = 0;
    for (uint32_t i = 0; i < j->kept; i++) {
        tag[i] = ng_tag_at(j->store, line_tags(c, line), g * j->kept + i);
        if (tag[i] >= j->group || seen >> tag[i] & 1)
            return false;
        seen |= 1u << tag[i];
    }
    return true;
}

static void tags_stretch(struct sparse_call *c, int64_t line, int64_t from, int64_t to)
{
    uint32_t tag[MAX_GROUP];
    if (c->kernel && c->kernel->distinct(&c->job, group_tags(c, line, from), to - from))
        return;
    for (int64_t g = from; g < to; g++)
        if (!load_tags(c, line, g, tag))
            note_broken(c, line, g);
}

static void expand_stretch(struct sparse_call *c, int64_t line, int64_t from, int64_t to)
{
    const struct sparse_job *j = &c->job;
    const uint32_t bits = j->spec->store_bits;
    uint32_t tag[MAX_GROUP];
    if (c->kernel) {
        c->kernel->expand(j, place(c, c->out, line, from * j->kept), group_tags(c, line, from),
                          to - from, place(c, c->dense, line, from * j->group));
        return;
    }
    const int64_t slots = line_start(c->out, c->axis, line),
                  start = line_start(c->dense, c->axis, line), step = c->dense->stride[c->axis];
    for (int64_t g = from; g < to; g++) {
        (void)load_tags(c, line, g, tag);
        for (uint32_t i = 0; i < j->group; i++)
            ng_store_code(c->dense->data, bits, start + (g * j->group + i) * step, 0);
        for (uint32_t i = 0; i < j->kept; i++)
            ng_store_code(c->dense->data, bits, start + (g * j->group + tag[i]) * step,
                          ng_load_code(c->out->data, bits,
                                       slots + (g * j->kept + i) * c->out->stride[c->axis]));
    }
}

/* ---- Public: a dense tensor. ---- */

/* Of src: everything that all calls but ng_expand() ask. */
static ng_status open_dense(ng_ctx *ctx, struct sparse_call *c, const ng_sparse_op *op,
                            const ng_tensor *src, struct ng_extent *extent)
{
    ng_status s = check_op(ctx, c->name, op);
    if (s)
        return s;
    c->axis = op->axis;
    c->job = (struct sparse_job){ .kept = op->kept, .group = op->group };
    s = check_pattern(ctx, c);
    if (!s)
        s = ng_check_tensor(ctx, c->name, "src", src, false, extent);
    if (!s)
        s = check_formats(ctx, c, "src", src, false);
    return s ? s : check_dense(ctx, c, "src", src);
}

/* What the check found first, as numbers that a user knows. */
static ng_sparse_report report_of(const struct sparse_call *c)
{
    ng_sparse_report r = { .groups = c->lines * c->groups,
                           .broken = atomic_load(&c->broken),
                           .matrix = -1,
                           .line = -1,
                           .group = -1 };
    if (!r.broken)
        return r;
    const int64_t first = atomic_load(&c->first), line = first / c->groups;
    uint32_t code[MAX_GROUP];
    r.matrix = line / c->in_matrix;
    r.line = line % c->in_matrix;
    r.group = first % c->groups;
    load_group(c, line_start(c->dense, c->axis, line), r.group, code);
    r.nonzeros =
        (uint32_t)__builtin_popcount(ng_ref_sparse_nonzero(c->job.spec, code, c->job.group));
    return r;
}

ng_status ng_sparse_check(ng_ctx *ctx, const ng_sparse_op *op, const ng_tensor *src,
                          ng_sparse_report *report)
{
    struct sparse_call c = { .name = "sparse_check" };
    struct ng_extent extent;
    const ng_status s = open_dense(ctx, &c, op, src, &extent);
    if (s)
        return s;
    if (!report)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "sparse_check: report is NULL");
    pick(ctx, &c);
    run_all(ctx, &c, false, check_stretch);
    *report = report_of(&c);
    return NG_OK;
}

ng_status ng_prune(ng_ctx *ctx, const ng_sparse_op *op, const ng_tensor *src,
                   const ng_tensor *dst)
{
    struct sparse_call c = { .name = "prune", .out = dst };
    struct ng_extent es, ed;
    ng_status s = open_dense(ctx, &c, op, src, &es);
    if (!s)
        s = ng_check_tensor(ctx, c.name, "dst", dst, true, &ed);
    if (!s)
        s = check_formats(ctx, &c, "dst", dst, false);
    if (!s)
        s = ng_check_same_shape(ctx, c.name, "src", src, "dst", dst);
    if (!s)
        s = check_same_format(ctx, &c, src, dst);
    if (!s && !ng_same_view(src, dst) && ng_overlap(src->data, es, dst->data, ed))
        s = ng_fail(ctx, NG_ERR_LAYOUT, "prune: dst overlaps src without being the same view");
    if (s)
        return s;
    pick(ctx, &c);
    run_all(ctx, &c, c.job.spec->store_bits == 4, prune_stretch);
    return NG_OK;
}

/* ---- Public: to and from slots. ---- */

/* The tags that ng_compress() writes. */
static ng_status open_tags(ng_ctx *ctx, struct sparse_call *c, const ng_sparse_op *op,
                           void *tags)
{
    const int64_t slots = c->groups * c->job.kept;
    const ng_sparse sparse = { .kept = op->kept,
                               .group = op->group,
                               .store = op->store,
                               .tags = tags,
                               .tag_stride = op->tag_stride };
    if (!tags)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "compress: tags is NULL");
    ng_status s = ng_check_sparse(ctx, c->name, "dst", &sparse);
    if (!s)
        s = ng_check_tag_stride(ctx, c->name, "dst", &sparse, c->lines, slots);
    if (s)
        return s;
    c->job.store = op->store;
    c->tags = tags;
    c->tag_stride = ng_tag_line_bytes(&sparse, slots);
    return NG_OK;
}

static ng_status check_apart(ng_ctx *ctx, const struct sparse_call *c, const ng_tensor *src,
                             struct ng_extent es, const ng_tensor *dst, struct ng_extent ed)
{
    if (ng_overlap(src->data, es, dst->data, ed))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: dst overlaps src", c->name);
    if (ng_overlap(c->tags, tags_extent(c), dst->data, ed))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: dst overlaps the tags", c->name);
    if (ng_overlap(c->tags, tags_extent(c), src->data, es))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: the tags overlap src", c->name);
    return NG_OK;
}

ng_status ng_compress(ng_ctx *ctx, const ng_sparse_op *op, const ng_tensor *src,
                      const ng_tensor *dst, void *tags)
{
    struct sparse_call c = { .name = "compress", .out = dst };
    struct ng_extent es, ed;
    ng_status s = open_dense(ctx, &c, op, src, &es);
    if (!s)
        s = ng_check_tensor(ctx, c.name, "dst", dst, true, &ed);
    if (!s)
        s = check_formats(ctx, &c, "dst", dst, false);
    if (!s)
        s = check_slots(ctx, &c, "dst", dst, "src");
    if (!s)
        s = check_same_format(ctx, &c, src, dst);
    if (!s)
        s = open_tags(ctx, &c, op, tags);
    if (!s)
        s = check_apart(ctx, &c, src, es, dst, ed);
    if (s)
        return s;
    pick(ctx, &c);
    if (!op->prune)
        run_all(ctx, &c, false, check_stretch);
    const ng_sparse_report r = report_of(&c);
    if (r.broken)
        return ng_fail(ctx, NG_ERR_ARGUMENT,
                       "compress: group %lld of line %lld of matrix %lld of src has %u "
                       "non-zeros; %u:%u wants at most %u (%lld of %lld groups have more)",
                       (long long)r.group, (long long)r.line, (long long)r.matrix, r.nonzeros,
                       op->kept, op->group, op->kept, (long long)r.broken, (long long)r.groups);
    run_all(ctx, &c, c.job.spec->store_bits == 4, compress_stretch);
    return NG_OK;
}

/* Slots and tags, as ng_expand() reads them. */
static ng_status open_sparse(ng_ctx *ctx, struct sparse_call *c, const ng_tensor *src)
{
    const ng_sparse *sp = src->sparse;
    if (!sp)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "expand: src has no tags (sparse is NULL)");
    const ng_status s = ng_check_sparse(ctx, c->name, "src", sp);
    if (s)
        return s;
    c->job = (struct sparse_job){ .kept = sp->kept, .group = sp->group, .store = sp->store };
    c->tags = (unsigned char *)(uintptr_t)sp->tags; /* read only */
    return NG_OK;
}

/* A tag that is none of its group's, or a second one of the same element. */
static ng_status wrong_tags(ng_ctx *ctx, const struct sparse_call *c)
{
    const int64_t first = atomic_load(&c->first), line = first / c->groups,
                  g = first % c->groups, matrix = line / c->in_matrix;
    uint32_t tag[MAX_GROUP] = { 0 };
    for (uint32_t i = 0; i < c->job.kept; i++) {
        tag[i] = ng_tag_at(c->job.store, line_tags(c, line), g * c->job.kept + i);
        if (tag[i] >= c->job.group)
            return ng_fail(ctx, NG_ERR_ARGUMENT,
                           "expand: tag %u in group %lld of line %lld of matrix %lld of src is "
                           "%u; a group has %u",
                           i, (long long)g, (long long)(line % c->in_matrix), (long long)matrix,
                           tag[i], c->job.group);
        for (uint32_t k = 0; k < i; k++)
            if (tag[k] == tag[i])
                return ng_fail(ctx, NG_ERR_ARGUMENT,
                               "expand: tags %u and %u in group %lld of line %lld of matrix "
                               "%lld of src are both %u; a dense tensor has one element there",
                               k, i, (long long)g, (long long)(line % c->in_matrix),
                               (long long)matrix, tag[i]);
    }
    return ng_fail(ctx, NG_ERR_INTERNAL, "expand: group %lld refused without a reason",
                   (long long)g);
}

ng_status ng_expand(ng_ctx *ctx, const ng_tensor *src, uint32_t axis, const ng_tensor *dst)
{
    struct sparse_call c = { .name = "expand", .out = src, .axis = axis };
    struct ng_extent es, ed;
    ng_status s = ng_begin(ctx);
    if (s)
        return s;
    s = ng_check_tensor(ctx, c.name, "src", src, false, &es);
    if (!s)
        s = ng_check_tensor(ctx, c.name, "dst", dst, true, &ed);
    if (!s)
        s = open_sparse(ctx, &c, src);
    if (!s)
        s = check_formats(ctx, &c, "src", src, true);
    if (!s)
        s = check_formats(ctx, &c, "dst", dst, false);
    if (!s)
        s = check_dense(ctx, &c, "dst", dst);
    if (!s)
        s = check_slots(ctx, &c, "src", src, "dst");
    if (!s)
        s = check_same_format(ctx, &c, src, dst);
    if (!s)
        s = ng_check_tag_stride(ctx, c.name, "src", src->sparse, c.lines, src->dim[axis]);
    if (s)
        return s;
    c.tag_stride = ng_tag_line_bytes(src->sparse, src->dim[axis]);
    s = check_apart(ctx, &c, src, es, dst, ed);
    if (s)
        return s;
    pick(ctx, &c);
    run_all(ctx, &c, false, tags_stretch);
    if (atomic_load(&c.broken))
        return wrong_tags(ctx, &c);
    run_all(ctx, &c, c.job.spec->store_bits == 4, expand_stretch);
    return NG_OK;
}
