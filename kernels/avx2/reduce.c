/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over ranks; everything is in reduce.h. */
#include "ints.h"

#include "../reduce.h"

extern const struct ng_reduce_kernel ng_reduce__avx2;

const struct ng_reduce_kernel ng_reduce__avx2 = { .name = "reduce__avx2",
                                                  .add = reduce_add,
                                                  .round = reduce_round,
                                                  .quiet = reduce_quiet,
                                                  .least = reduce_least };
