/* SPDX-License-Identifier: Apache-2.0 */
/* 2:4 of 8 and 16 bits; everything is in sparse.h. */
#include "bytes.h"

#include "../sparse.h"

extern const struct ng_sparse_kernel ng_sparse_24__avx2;

const struct ng_sparse_kernel ng_sparse_24__avx2 = { .name = "sparse_24__avx2",
                                                     .refuses = sparse_refuses,
                                                     .holds = sparse_holds,
                                                     .prune = sparse_prune,
                                                     .compress = sparse_compress,
                                                     .distinct = sparse_distinct,
                                                     .expand = sparse_expand };
