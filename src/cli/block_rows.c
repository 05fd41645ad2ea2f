/* SPDX-License-Identifier: Apache-2.0 */
/* Some rows of a case as a case of their own: samples, and what rules are tried on. block.h. */
#include <stdlib.h>
#include <string.h>

#include "block.h"

int64_t block_width(const struct operand *o, int64_t rows)
{
    return block_elements(o) / rows;
}

/* Rows of `from` after each other into `to`, which has room for them. */
static void copy_rows(const struct operand *from, const int64_t *row, int64_t n, int64_t width,
                      struct operand *to)
{
    const size_t line = (size_t)width * from->data.item_bits / 8;
    for (int64_t i = 0; i < n; i++) {
        if (from->data.item_bits >= 8) {
            memcpy((char *)to->data.data + (size_t)i * line,
                   (const char *)from->data.data + (size_t)row[i] * line, line);
            continue;
        }
        for (int64_t k = 0; k < width; k++) {
            int64_t at[NG_MAX_RANK];
            index_of(&to->view, i * width + k, at);
            ng_tensor_set(&to->view, at, code_at(&from->view, row[i] * width + k));
        }
    }
}

bool block_gather(const struct one_case *part, const struct operand *from, const int64_t *row,
                  int64_t n, int64_t rows, struct operand *to)
{
    if (block_alloc(part, to))
        return false;
    for (size_t i = 0; i < part->block->kind->n; i++)
        if (to[i].present)
            copy_rows(&from[i], row, n, block_width(&from[i], rows), &to[i]);
    return true;
}

bool block_part_open(struct block_part *p, const struct cli *cli, const struct one_case *c,
                     const int64_t *row, int64_t n, int64_t rows)
{
    const struct block_kind *k = c->block->kind;
    struct operand dump[BLOCK_TENSORS];
    *p = (struct block_part){ .c = *c, .b = *c->block, .row = row, .n = n };
    p->c.block = &p->b;
    for (size_t i = 0; i < k->n; i++)
        if (block_is_result(k, i))
            p->b.t[i].data.data = NULL;
    if (!k->take(cli, c, p) || !block_gather(&p->c, c->block->t, row, n, rows, dump)) {
        block_part_close(p);
        return false;
    }
    for (size_t i = 0; i < k->n; i++)
        if (dump[i].present) {
            p->b.t[i] = dump[i];
            p->owned[i] = dump[i].data.data;
        }
    return true;
}

void block_part_close(struct block_part *p)
{
    for (size_t i = 0; i < BLOCK_TENSORS; i++) {
        free(p->owned[i]);
        p->owned[i] = NULL;
    }
}

bool block_take_rows(const struct operand *from, const int64_t *row, int64_t n,
                     struct operand *to)
{
    *to = *from;
    to->data.dim[0] = n;
    to->data.bytes = from->data.bytes / (size_t)from->data.dim[0] * (size_t)n;
    to->data.data = malloc(to->data.bytes ? to->data.bytes : 1);
    if (!to->data.data)
        return false;
    copy_rows(from, row, n, block_width(from, from->data.dim[0]), to);
    if (to->data.format)
        (void)ng_tensor_init(&to->view, to->data.format, to->data.data, to->data.rank,
                             to->data.dim);
    return true;
}
