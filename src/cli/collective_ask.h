/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers whose sum tells in which order a library adds ranks up, and what it told.
 * docs/cli.md, "In which order does a library add?". */
#ifndef NG_CLI_COLLECTIVE_ASK_H
#define NG_CLI_COLLECTIVE_ASK_H

#include "case.h"

/* Writes [ranks, elements] to a file; elements 0: enough for every chunk. An exit code. */
int collective_ask(const struct cli *cli, int64_t ranks, int64_t elements, ng_format format,
                   const char *out);
/* Of a case of all_reduce whose x is such a tensor: prints what d says; an exit code, 1: no
 * order gives it. */
int collective_read(const struct cli *cli, const struct one_case *c);

#endif
