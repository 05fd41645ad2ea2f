/* SPDX-License-Identifier: Apache-2.0 */
/* Words of a row whose end is no whole vector. A file includes its ISA's ints.h before. */
#ifndef NG_KERNELS_TAILS_H
#define NG_KERNELS_TAILS_H

#include <string.h>

/* n words from p, the first VL of them; lanes past n are 0. */
IV_INLINE ivec tail_load(const void *p, int64_t n)
{
    if (n >= VL)
        return iv_load(p);
    uint32_t rest[VL] = { 0 };
    memcpy(rest, p, (size_t)n * sizeof *rest);
    return iv_load(rest);
}

IV_INLINE void tail_store(uint32_t *p, int64_t n, ivec x)
{
    if (n >= VL) {
        iv_store(p, x);
        return;
    }
    uint32_t rest[VL];
    iv_store(rest, x);
    memcpy(p, rest, (size_t)n * sizeof *p);
}

#endif
