/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions of arrays; everything is in elementary.h. */
#include "../sleef512.h"

#include "../elementary.h"

extern const struct ng_elementary_kernel ng_elementary__avx512;

const struct ng_elementary_kernel ng_elementary__avx512 = { .name = "elementary__avx512",
                                                            .run = function_run };
