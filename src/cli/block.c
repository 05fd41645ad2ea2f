/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of many operands: reading, memory, text, files. block.h. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"

/* ---- Reading. ---- */

static const struct block_kind *kind_of(enum op op)
{
    return op == OP_ATTENTION            ? &attention_kind
           : op == OP_ATTENTION_BACKWARD ? &attention_backward_kind
           : op == OP_ROUTE              ? &route_kind
           : op == OP_MOE                ? &moe_kind
                                         : &reduce_kind;
}

bool block_is_result(const struct block_kind *k, size_t i)
{
    return k->tensor[i].role >= BLOCK_RESULT;
}

/* The keys that every case has, and those of the operation. */
static bool known_keys(struct reader *r, json_t *root, const struct block_kind *k)
{
    static const char *const common[] = { "name", "comment", "op", "tensors" };
    const char *all[64];
    size_t n = 0;
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++)
        all[n++] = common[i];
    for (size_t i = 0; k->keys[i]; i++)
        all[n++] = k->keys[i];
    all[n] = NULL;
    return reader_keys(r, root, op_text(r->op), all);
}

/* Integers have a place, no format. */
static bool read_integers(struct reader *r, json_t *object, const char *name, bool result,
                          struct operand *o)
{
    static const char *const keys[] = { "file", "tensor", "shape", "raw", NULL };
    if (!reader_keys(r, object, name, keys))
        return false;
    o->present = true;
    if (result && !r->outputs)
        return true;
    if (!reader_has_data(r, object))
        return reader_fail(r, "%s has no \"file\"", name);
    return reader_array(r, object, name, NG_FORMAT_NONE, true, &o->data);
}

/* No operation here writes block scales or tags. */
static bool no_idle_parts(struct reader *r, json_t *result, const char *name)
{
    static const char *const parts[] = { "scale", "sparse", "tensor_scale" };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (json_object_get(result, parts[i]))
            return reader_fail(r, "%s says nothing to %s, a result without", parts[i], name);
    return true;
}

static bool read_tensors(struct reader *r, json_t *tensors, const struct block_kind *k,
                         struct block *b)
{
    const char *names[BLOCK_TENSORS + 1] = { NULL };
    for (size_t i = 0; i < k->n; i++)
        names[i] = k->tensor[i].name;
    if (!reader_keys(r, tensors, "tensors", names))
        return false;
    for (size_t i = 0; i < k->n; i++) {
        const struct block_tensor *t = &k->tensor[i];
        json_t *object = json_object_get(tensors, t->name);
        if (!object && (t->role == BLOCK_OPERAND || t->role == BLOCK_RESULT))
            return reader_fail(r, "tensors have no \"%s\"", t->name);
        if (object && block_is_result(k, i) && !no_idle_parts(r, object, t->name))
            return false;
        if (object &&
            !(t->integers ? read_integers(r, object, t->name, block_is_result(k, i), &b->t[i])
                          : reader_tensor(r, object, t->name, block_is_result(k, i), &b->t[i])))
            return false;
    }
    return true;
}

bool block_read(struct reader *r, json_t *root, struct one_case *c)
{
    struct block *b = calloc(1, sizeof *b);
    c->block = b;
    if (!b) {
        r->code = cli_fail(EXIT_INTERNAL, "out of memory");
        return false;
    }
    b->kind = kind_of(c->op);
    b->json = json_incref(root);
    if (!known_keys(r, root, b->kind) ||
        !read_tensors(r, json_object_get(root, "tensors"), b->kind, b))
        return false;
    for (size_t i = 0; i < b->kind->n; i++)
        if (b->t[i].tags.data)
            b->t[i].view.sparse = &b->t[i].sparse;
    return b->kind->read(r, root, c);
}

void block_free(struct block *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < BLOCK_TENSORS; i++)
        operand_free(&b->t[i]);
    io_array_free(&b->words.array);
    free(b->attention.kv_length);
    free(b->attention.page_table);
    json_decref(b->json);
    free(b);
}

/* ---- Operands. ---- */

const ng_tensor *block_view(const struct operand *t, size_t i)
{
    return t[i].present ? &t[i].view : NULL;
}

int64_t block_elements(const struct operand *o)
{
    int64_t n = 1;
    for (uint32_t d = 0; d < o->data.rank; d++)
        n *= o->data.dim[d];
    return n;
}

uint64_t block_code(const struct operand *o, int64_t i)
{
    const size_t bytes = o->data.item_bits / 8;
    uint64_t v = 0;
    if (o->data.format)
        return code_at(&o->view, i);
    memcpy(&v, (const unsigned char *)o->data.data + (size_t)i * bytes, bytes);
    return v;
}

static bool alloc_integers(struct operand *o, uint32_t rank, const int64_t *dim)
{
    o->data = (struct io_array){ .item_bits = 32, .rank = rank, .bytes = 4 };
    for (uint32_t d = 0; d < rank; d++) {
        o->data.dim[d] = dim[d];
        o->data.bytes *= (size_t)dim[d];
    }
    o->data.data = calloc(1, o->data.bytes);
    return o->data.data != NULL;
}

/* A dump must be what the operation writes. */
static int check_dump(const char *name, const struct operand *dump, const struct operand *out)
{
    const struct io_array *a = &dump->data, *b = &out->data;
    if (!a->data)
        return 0;
    if (a->rank != b->rank || memcmp(a->dim, b->dim, b->rank * sizeof *b->dim) != 0)
        return cli_fail(EXIT_REFUSED, "%s has shape %s; wanted: %s", name,
                        io_shape(a->rank, a->dim).text, io_shape(b->rank, b->dim).text);
    if (a->item_bits != b->item_bits)
        return cli_fail(EXIT_REFUSED, "%s holds %s; wanted: %s", name,
                        io_type_name(a->format, a->item_bits),
                        io_type_name(b->format, b->item_bits));
    return 0;
}

int block_alloc(const struct one_case *c, struct operand *out)
{
    const struct block *b = c->block;
    int code = 0;
    memset(out, 0, BLOCK_TENSORS * sizeof *out);
    for (size_t i = 0; i < b->kind->n && !code; i++) {
        uint32_t rank = 0;
        int64_t dim[NG_MAX_RANK] = { 0 };
        if (!block_is_result(b->kind, i) || !b->t[i].present)
            continue;
        code = b->kind->shape(c, i, &rank, dim);
        if (code)
            break;
        struct operand like = { .present = true };
        like.view.format = b->t[i].view.format;
        out[i].present = true;
        if (b->kind->tensor[i].integers
                ? !alloc_integers(&out[i], rank, dim)
                : ng_tensor_init(&like.view, like.view.format, NULL, rank, dim) ||
                      !operand_alloc_like(&out[i], &like, 0))
            code = cli_fail(EXIT_REFUSED, "%s %s is too large", b->kind->tensor[i].name,
                            io_shape(rank, dim).text);
        else
            code = check_dump(b->kind->tensor[i].name, &b->t[i], &out[i]);
    }
    if (code)
        block_free_results(out);
    return code;
}

void block_free_results(struct operand *out)
{
    for (size_t i = 0; i < BLOCK_TENSORS; i++)
        operand_free(&out[i]);
}

/* ---- Text. ---- */

__attribute__((format(printf, 3, 4))) static void add(char *text, size_t bytes,
                                                      const char *format, ...)
{
    const size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    if (n < bytes)
        vsnprintf(text + n, bytes - n, format, args);
    va_end(args);
}

void block_describe(const struct one_case *c, char *text, size_t bytes)
{
    const struct block *b = c->block;
    snprintf(text, bytes, "%s", op_text(c->op));
    for (size_t i = 0; i < b->kind->n; i++) {
        const struct operand *o = &b->t[i];
        if (!o->present)
            continue;
        add(text, bytes, " %s", b->kind->tensor[i].name);
        if (o->view.format)
            add(text, bytes, " %s%s%s", ng_format_info(o->view.format)->text,
                o->view.block ? "+" : "",
                o->view.block ? ng_format_info(o->view.scale_format)->text : "");
        if (o->data.data)
            add(text, bytes, " %s", io_shape(o->data.rank, o->data.dim).text);
    }
}

void block_line(const struct one_case *c, char *text, size_t bytes)
{
    struct block_param p[BLOCK_PARAMS];
    const size_t n = c->block->kind->parameters(c, p);
    snprintf(text, bytes, "%s:", c->block->kind->title(c));
    for (size_t i = 0; i < n; i++)
        add(text, bytes, " %s=%s(%s)", p[i].key, p[i].value, ng_evidence_name(p[i].evidence));
}

void block_weakest(const struct one_case *c, char *text, size_t bytes)
{
    struct block_param p[BLOCK_PARAMS];
    const size_t n = c->block->kind->parameters(c, p);
    ng_evidence worst = NG_EVIDENCE_DOCUMENTED;
    for (size_t i = 0; i < n; i++)
        worst = !p[i].idle && p[i].evidence > worst ? p[i].evidence : worst;
    snprintf(text, bytes, "weakest evidence: %s (", ng_evidence_name(worst));
    const char *comma = "";
    for (size_t i = 0; i < n; i++)
        if (!p[i].idle && p[i].evidence == worst) {
            add(text, bytes, "%s%s", comma, p[i].key);
            comma = " ";
        }
    add(text, bytes, ")");
}

/* ---- Writing. ---- */

/* Tensor i in a written file: NAME_scale is the name of NAME's block scales, where it has some.
 */
struct label {
    char text[64];
};
static struct label label_of(const struct block *b, size_t i)
{
    struct label l;
    const char *name = b->kind->tensor[i].name;
    bool taken = false;
    for (size_t k = 0; k < b->kind->n; k++) {
        const char *of = b->kind->tensor[k].name;
        const size_t n = strlen(of);
        taken = taken || (b->t[k].scale.data && strncmp(name, of, n) == 0 &&
                          strcmp(name + n, "_scale") == 0);
    }
    snprintf(l.text, sizeof l.text, "%s%s", name, taken ? "_of_experts" : "");
    return l;
}

/* The case with `out` for its results, all of it in one safetensors file. */
static json_t *whole_json(const struct one_case *c)
{
    const struct block *b = c->block;
    json_t *j = json_deep_copy(b->json), *tensors = json_object();
    for (size_t i = 0; i < b->kind->n; i++) {
        const char *name = b->kind->tensor[i].name;
        if (b->t[i].present)
            json_object_set_new(tensors, name,
                                b->kind->tensor[i].integers
                                    ? json_pack("{s:s}", "tensor", name)
                                    : tensor_json(label_of(b, i).text, &b->t[i], false));
    }
    json_object_set_new(j, "tensors", tensors);
    if (c->profile)
        json_object_set_new(j, "profile", profile_json(c));
    if (json_object_get(j, "out"))
        set_cast(j, "out", b->kind == &reduce_kind ? &b->reduce.op.out : &b->attention.op.out,
                 "out_words", false);
    return json_pack("{s:s,s:[o]}", "schema", "ng.case/1", "cases", j);
}

static size_t add_piece(struct io_array *to, size_t n, const struct io_array *from,
                        const char *name, const char *part)
{
    if (!from->data)
        return n;
    to[n] = *from;
    snprintf(to[n].name, sizeof to[n].name, "%s%s", name, part);
    return n + 1;
}

static int stage_whole(struct io_files *files, const char *path, const struct one_case *c,
                       const struct operand *out)
{
    const struct block *b = c->block;
    struct io_array array[3 * BLOCK_TENSORS + 1];
    struct io_error e;
    char line[4096], hash[16];
    size_t n = 0;
    for (size_t i = 0; i < b->kind->n; i++) {
        const struct operand *o = block_is_result(b->kind, i) ? &out[i] : &b->t[i];
        n = add_piece(array, n, &o->data, label_of(b, i).text, "");
        n = add_piece(array, n, &o->scale, b->kind->tensor[i].name, "_scale");
        n = add_piece(array, n, &o->tags, b->kind->tensor[i].name, "_tags");
    }
    n = add_piece(array, n, &b->words.array, "out_words", "");
    json_t *root = whole_json(c);
    char *text = json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(root);
    if (!text)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    block_line(c, line, sizeof line);
    struct st_meta meta[5] = { { (char *)"ng.case", text },
                               { (char *)"ng.op", (char *)op_text(c->op) },
                               { (char *)"ng.version", (char *)ng_version() },
                               { (char *)"ng.parameters", line },
                               { (char *)"ng.profile_hash", hash } };
    if (c->profile)
        snprintf(hash, sizeof hash, "%08x", ng_profile_hash(c->profile));
    const struct st_file st = {
        .array = array, .n_arrays = n, .meta = meta, .n_meta = c->profile ? 5 : 4
    };
    const bool ok = st_stage(files, path, &st, &e);
    free(text);
    return ok ? 0 : cli_file_error(&e);
}

static json_t *run_json(const struct one_case *c, const char *kernel, double seconds)
{
    char what[1200], line[4096];
    block_describe(c, what, sizeof what);
    block_line(c, line, sizeof line);
    return json_pack("{s:s,s:s,s:s,s:s,s:s,s:f}", "schema", "ng.report/1", "op", op_text(c->op),
                     "what", what, "parameters", line, "kernel", kernel, "seconds", seconds);
}

void block_print_head(const struct cli *cli, const struct one_case *c)
{
    char what[1200], line[4096];
    block_describe(c, what, sizeof what);
    printf("%s\n", what);
    if (cli->quiet)
        return;
    block_line(c, line, sizeof line);
    printf("  ");
    if (c->profile)
        printf("profile %s (%08x), ", c->profile->name, (unsigned)ng_profile_hash(c->profile));
    printf("%s\n", line);
    block_weakest(c, line, sizeof line);
    printf("  %s\n", line);
}

/* The files of the results, `only` and `whole` turned into them. */
static int place_results(const struct one_case *c, const char *only, struct block_files *to)
{
    const struct block *b = c->block;
    size_t results = 0, last = 0;
    for (size_t i = 0; i < b->kind->n; i++)
        if (block_is_result(b->kind, i) && b->t[i].present) {
            results++;
            last = i;
        }
    if (only && results != 1)
        return cli_fail(EXIT_USAGE,
                        "this %s has %zu results: give an OUT that ends in .safetensors",
                        op_text(c->op), results);
    if (only)
        to->path[last] = only;
    return 0;
}

static int check_files(const struct block *b, const struct block_files *to, const char *whole)
{
    const char *path[BLOCK_TENSORS + 1] = { NULL };
    size_t n = 0;
    for (size_t i = 0; i < b->kind->n; i++)
        if (to->path[i])
            path[n++] = to->path[i];
    if (whole)
        path[n++] = whole;
    return check_writable(path, n);
}

static int write_results(const struct one_case *c, const struct operand *out,
                         const struct block_files *to, const char *whole)
{
    struct io_files files = { .n = 0 };
    int code = whole ? stage_whole(&files, whole, c, out) : 0;
    for (size_t i = 0; i < c->block->kind->n && !code; i++)
        if (to->path[i])
            code =
                array_stage(&files, to->path[i], c->block->kind->tensor[i].name, &out[i].data);
    return files_close(&files, code);
}

static int say(const struct cli *cli, const struct one_case *c, const struct block_files *to,
               const char *whole, double seconds)
{
    const struct block_kind *k = c->block->kind;
    json_t *j = run_json(c, ng_ctx_kernel(cli->ctx), seconds), *written = json_object();
    for (size_t i = 0; i < k->n; i++)
        if (to->path[i])
            json_object_set_new(written, k->tensor[i].name, text_json(to->path[i]));
    if (whole)
        json_object_set_new(written, "case", text_json(whole));
    if (cli->json) {
        json_object_set_new(j, "written", written);
        return cli_print_json(j);
    }
    if (!cli->quiet) {
        const char *name;
        json_t *path;
        block_print_head(cli, c);
        json_object_foreach(written, name, path)
            printf("  wrote %s to %s\n", name, json_string_value(path));
        printf("  (%s, %.2f s)\n", ng_ctx_kernel(cli->ctx), seconds);
    }
    json_decref(j);
    json_decref(written);
    return 0;
}

int block_run(const struct cli *cli, struct one_case *c, const struct block_files *files,
              const char *whole, const char *only)
{
    struct block_files to = *files;
    struct operand out[BLOCK_TENSORS];
    const double start = seconds_now();
    int code = place_results(c, only, &to);
    if (!code)
        code = check_files(c->block, &to, whole);
    if (!code)
        code = block_alloc(c, out);
    if (code)
        return code;
    const ng_status s = c->block->kind->compute(cli->ctx, c, out);
    code = s ? cli_refused(cli, s, "") : write_results(c, out, &to, whole);
    if (!code)
        code = say(cli, c, &to, whole, seconds_now() - start);
    block_free_results(out);
    return code;
}
