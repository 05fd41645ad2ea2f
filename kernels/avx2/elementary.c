/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions of arrays; everything is in elementary.h. */
#include "sleef.h"

#include "../elementary.h"

extern const struct ng_elementary_kernel ng_elementary__avx2;

const struct ng_elementary_kernel ng_elementary__avx2 = { .name = "elementary__avx2",
                                                          .run = function_run };
