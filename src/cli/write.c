/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a result: each can be written, none twice, and all of them or none are. */
#include <string.h>

#include "cli.h"

/* ---- Before anything is computed. ---- */

enum {
    MOST_FILES = 64,
    MOST_NAME = 4200 /* more than a path can have */
};

/* Writes no byte into place: a temporary file beside it tells. */
static int can_write(const char *path)
{
    struct io_error e;
    struct io_files files = { .n = 0 };
    const bool ok = io_stage(&files, path, "", 0, &e);
    io_discard(&files);
    return ok ? 0 : cli_file_error(&e);
}

/* The paths, and the sidecars that are written beside those that end in .npy. */
static size_t list_files(const char *const *path, size_t n, char (*list)[MOST_NAME])
{
    size_t found = 0;
    for (size_t i = 0; i < n && found + 2 <= MOST_FILES; i++) {
        if (!path[i])
            continue;
        snprintf(list[found++], MOST_NAME, "%s", path[i]);
        if (ends_in(path[i], ".npy"))
            snprintf(list[found++], MOST_NAME, "%s.json", path[i]);
    }
    return found;
}

int check_writable(const char *const *path, size_t n)
{
    char list[MOST_FILES][MOST_NAME];
    const size_t found = list_files(path, n, list);
    int code = 0;
    for (size_t i = 0; i < found && !code; i++) {
        for (size_t k = 0; k < i; k++)
            if (io_same_place(list[i], list[k]))
                return cli_fail(EXIT_USAGE, "%s would be written twice", list[i]);
        code = can_write(list[i]);
    }
    return code;
}

/* ---- The result. ---- */

int array_stage(struct io_files *files, const char *path, const char *name,
                const struct io_array *a)
{
    struct io_error e;
    struct io_array named = *a;
    bool ok;
    snprintf(named.name, sizeof named.name, "%s", name);
    if (ends_in(path, ".safetensors"))
        ok = st_stage(files, path, &(struct st_file){ .array = &named, .n_arrays = 1 }, &e);
    else if (ends_in(path, ".npy"))
        ok = npy_stage(files, path, &named, &e);
    else
        ok = raw_stage(files, path, &named, &e);
    return ok ? 0 : cli_file_error(&e);
}

int files_close(struct io_files *files, int code)
{
    struct io_error e;
    if (!code && !io_commit(files, &e))
        code = cli_file_error(&e);
    io_discard(files);
    return code;
}

int array_write(const char *path, const char *name, const struct io_array *a)
{
    struct io_files files = { .n = 0 };
    return files_close(&files, array_stage(&files, path, name, a));
}
