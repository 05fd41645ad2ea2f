/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block scales in the storage orders of devices (docs/numerics.md, sections 3.3 and 11.5). In
 * memory the tool has them as a row-major array with the tensor's dimensions; files may have
 * them otherwise.
 */
#include <stdlib.h>
#include <string.h>

#include "case.h"

/* The tensor's scales as lines of blocks: all dimensions but the block axis are lines. */
static void count_scales(const ng_tensor *t, int64_t *lines, int64_t *blocks)
{
    *lines = *blocks = 1;
    for (uint32_t d = 0; d < t->rank; d++)
        if (d == t->block_axis)
            *blocks = (t->dim[d] + t->block - 1) / t->block;
        else
            *lines *= t->dim[d];
}

size_t scales_bytes(const ng_tensor *t, const struct scale_place *p, char *why, size_t n)
{
    int64_t lines, blocks;
    count_scales(t, &lines, &blocks);
    if (p->store == NG_SCALE_LINEAR)
        return (size_t)(lines * blocks);
    if (t->rank > 2) {
        snprintf(why, n, "store %s is of a matrix; this tensor has rank %u",
                 scale_store_text(p->store), t->rank);
        return 0;
    }
    if (p->tile_rows > 128 || p->tile_rows % 8) {
        snprintf(why, n, "tile_rows is %u; wanted: a multiple of 8 from 8 to 128",
                 p->tile_rows);
        return 0;
    }
    if (p->offset > 12 || p->offset % 4) {
        snprintf(why, n, "offset is %u; wanted: 0, 4, 8 or 12", p->offset);
        return 0;
    }
    const size_t bytes = ng_scale_bytes(p->store, lines, blocks, p->tile_rows);
    if (!bytes)
        snprintf(why, n, "%lld lines of %lld scales are too many for %s", (long long)lines,
                 (long long)blocks, scale_store_text(p->store));
    return bytes;
}

struct io_array scales_shape(const ng_tensor *t, const struct scale_place *p)
{
    struct io_array a = { .item_bits = 8, .rank = 3 };
    char why[200];
    int64_t lines, blocks;
    count_scales(t, &lines, &blocks);
    a.bytes = scales_bytes(t, p, why, sizeof why);
    switch (p->store) {
    case NG_SCALE_LINEAR:
        a.format = t->scale_format;
        a.rank = t->rank;
        memcpy(a.dim, t->dim, sizeof a.dim);
        a.dim[t->block_axis] = blocks;
        break;
    case NG_SCALE_TRN_SBUF: /* K tile, partition, line */
        a.dim[0] = (int64_t)a.bytes / 128 / lines;
        a.dim[1] = 128;
        a.dim[2] = lines;
        break;
    case NG_SCALE_SWIZZLE_128X4: /* tile of lines, tile of blocks, byte */
        a.dim[0] = (lines + 127) / 128;
        a.dim[1] = (blocks + 3) / 4;
        a.dim[2] = 512;
        break;
    }
    return a;
}

/* [rows][cols] to [cols][rows] */
static void turn(const unsigned char *src, unsigned char *dst, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            dst[j * rows + i] = src[i * cols + j];
}

/* The library's linear order is [line][block]; along the first dimension of a matrix the array
 * has it the other way round. */
static bool is_turned(const ng_tensor *t)
{
    return t->rank == 2 && t->block_axis == 0;
}

ng_status scales_store(ng_ctx *ctx, const ng_tensor *t, const struct scale_place *p,
                       const void *scales, void *stored)
{
    int64_t lines, blocks;
    count_scales(t, &lines, &blocks);
    unsigned char *turned = is_turned(t) ? malloc((size_t)(lines * blocks)) : NULL;
    if (is_turned(t) && !turned)
        return NG_ERR_MEMORY;
    if (turned)
        turn(scales, turned, blocks, lines);
    const ng_status s = ng_scale_move(ctx, NG_SCALE_LINEAR, turned ? turned : scales, p->store,
                                      stored, lines, blocks, p->tile_rows, p->offset);
    free(turned);
    return s;
}

ng_status scales_load(ng_ctx *ctx, const ng_tensor *t, const struct scale_place *p,
                      const void *stored, void *scales)
{
    int64_t lines, blocks;
    count_scales(t, &lines, &blocks);
    unsigned char *turned = is_turned(t) ? malloc((size_t)(lines * blocks)) : NULL;
    if (is_turned(t) && !turned)
        return NG_ERR_MEMORY;
    const ng_status s =
        ng_scale_move(ctx, p->store, stored, NG_SCALE_LINEAR, turned ? turned : scales, lines,
                      blocks, p->tile_rows, p->offset);
    if (!s && turned)
        turn(turned, scales, lines, blocks);
    free(turned);
    return s;
}

int scales_stage(const struct cli *cli, struct io_files *files, const char *path,
                 const struct operand *o, const struct scale_place *p)
{
    if (p->store == NG_SCALE_LINEAR)
        return array_stage(files, path, "scale", &o->scale);
    struct io_array a = scales_shape(&o->view, p);
    a.data = a.bytes ? malloc(a.bytes) : NULL;
    if (!a.data)
        return cli_fail(EXIT_INTERNAL, "out of memory");
    const ng_status s = scales_store(cli->ctx, &o->view, p, o->scale.data, a.data);
    const int code = s ? cli_refused(cli, s, "scales") : array_stage(files, path, "scale", &a);
    io_array_free(&a);
    return code;
}
