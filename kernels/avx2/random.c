/* SPDX-License-Identifier: Apache-2.0 */
/* The random generators over this ISA's vectors; kernels/README.md counts their ports. */
#include "words.h"

#include "../random.h"

extern const struct ng_random_kernel ng_random_philox__avx2, ng_random_xorwow__avx2,
    ng_random_lfsr32__avx2;

const struct ng_random_kernel ng_random_philox__avx2 = { .name = "random_philox__avx2",
                                                         .kind = NG_RANDOM_PHILOX,
                                                         .words = philox_words };
const struct ng_random_kernel ng_random_xorwow__avx2 = { .name = "random_xorwow__avx2",
                                                         .kind = NG_RANDOM_XORWOW,
                                                         .words = linear_words,
                                                         .strands = VL,
                                                         .place = linear_place,
                                                         .next = linear_next };
const struct ng_random_kernel ng_random_lfsr32__avx2 = { .name = "random_lfsr32__avx2",
                                                         .kind = NG_RANDOM_LFSR32,
                                                         .words = linear_words,
                                                         .strands = VL,
                                                         .place = linear_place,
                                                         .next = linear_next };
