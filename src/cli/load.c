/* SPDX-License-Identifier: Apache-2.0 */
/* What commands name: one tensor of a file (FILE, FILE=FORMAT or FILE=SPEC), a profile. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

int file_name_open(const char *text, struct file_name *f)
{
    const char *eq = strrchr(text, '=');
    const bool typed = eq && eq != text && !strpbrk(eq, "/.");
    const size_t n = typed ? (size_t)(eq - text) : strlen(text);
    *f = (struct file_name){ .path = malloc(n + 1), .type = typed ? eq + 1 : NULL };
    if (!f->path)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    memcpy(f->path, text, n);
    f->path[n] = '\0';
    char *name = strstr(f->path, ".safetensors:");
    if (name) {
        name[sizeof ".safetensors" - 1] = '\0';
        f->tensor = name + sizeof ".safetensors";
    }
    return 0;
}

void file_name_close(struct file_name *f)
{
    free(f->path);
    f->path = NULL;
}

/* One tensor of a safetensors file: the one named, or the only one. */
static int from_safetensors(const char *path, const char *name, bool plain,
                            struct io_array *out)
{
    struct io_error e;
    struct st_file file;
    if (!st_read(path, &file, &e))
        return cli_file_error(&e);
    int code = 0;
    const struct io_array *a = name ? st_find(&file, name) : st_only(&file, plain);
    const char *why = a ? NULL : st_why(&file, name);
    if (!a && (name || !file.n_arrays)) {
        code = cli_fail(EXIT_FILE, "%s has no tensor%s%.60s%s%s%s", path, name ? " '" : "",
                        name ? name : "", name ? "'" : "", why ? ": " : "", why ? why : "");
    } else if (!a) {
        code = cli_fail(EXIT_FILE, "%s has %zu tensors (%s); --tensor names one", path,
                        file.n_arrays, st_names(&file).text);
    } else {
        *out = *a; /* and no longer the file's */
        file.array[a - file.array].data = NULL;
    }
    st_free(&file);
    return code;
}

/* Of the file `f`, which the command line calls `text`. */
static int load_file(const char *text, const struct file_name *f, const char *tensor,
                     bool plain, struct io_array *out)
{
    struct io_error e;
    ng_format format = NG_FORMAT_NONE;
    uint32_t bits = 0;
    const bool npy = ends_in(f->path, ".npy"), st_file = ends_in(f->path, ".safetensors");
    if (tensor && f->tensor)
        return cli_fail(EXIT_USAGE, "--tensor %s says nothing to %s, which names tensor %s",
                        tensor, text, f->tensor);
    tensor = f->tensor ? f->tensor : tensor;
    if (tensor && !st_file)
        return cli_fail(EXIT_USAGE, "--tensor %s says nothing to %s; it is of a .safetensors",
                        tensor, f->path);
    if (f->type && strchr(f->type, ':') && (npy || st_file))
        return cli_fail(EXIT_USAGE, "%s has its own shape: the spec %s is of raw files",
                        f->path, f->type);
    if (f->type && strchr(f->type, ':')) {
        struct raw_spec spec;
        if (!raw_parse_spec(f->type, &spec, &e))
            return cli_fail(EXIT_USAGE, "%s", e.text);
        if (!raw_read(f->path, f->type, out, &e))
            return cli_file_error(&e);
    } else {
        if (f->type && (!io_type_find(f->type, &format, &bits) || (!plain && !format)))
            return cli_fail(EXIT_USAGE, "'%s' is no format (of '%s')", f->type, text);
        if (st_file) {
            const int code = from_safetensors(f->path, tensor, plain, out);
            if (code)
                return code;
        } else if (!npy) {
            return cli_fail(EXIT_USAGE, "'%s' is raw: wanted FILE=FORMAT:DIMxDIM..", text);
        } else if (!npy_read(f->path, format, plain, out, &e)) {
            return cli_file_error(&e);
        }
    }
    if (plain ? out->format != NG_FORMAT_NONE || (bits && out->item_bits != bits)
              : !out->format || (format && out->format != format))
        return cli_fail(EXIT_FILE, "%s holds %s; wanted: %s", f->path,
                        io_type_name(out->format, out->item_bits),
                        bits    ? f->type
                        : plain ? "plain integers"
                                : "elements of a format");
    return 0;
}

int array_load(const char *text, const char *tensor, bool plain, struct io_array *out)
{
    struct file_name f;
    int code = file_name_open(text, &f);
    if (!code)
        code = load_file(text, &f, tensor, plain, out);
    file_name_close(&f);
    return code;
}

const ng_profile *profile_load(const char *name, ng_profile **owned, int *code)
{
    const ng_profile *p = ng_profile_find(name);
    struct io_error e;
    char message[400] = "";
    void *data;
    size_t n;
    *owned = NULL;
    if (p)
        return p;
    if (!strpbrk(name, "./")) {
        *code = cli_fail(EXIT_USAGE,
                         "'%s' is no built-in profile and no file name; see ngauge "
                         "profile list",
                         name);
        return NULL;
    }
    if (!io_read_file(name, 1 << 20, &data, &n, &e)) {
        *code = cli_file_error(&e);
        return NULL;
    }
    const ng_status s = ng_profile_parse(data, n, owned, message, sizeof message);
    if (s)
        *code = s == NG_ERR_MEMORY ? cli_fail(EXIT_INTERNAL, "out of memory")
                                   : cli_fail(EXIT_FILE, "%s: %s", name, message);
    free(data);
    return *owned;
}
