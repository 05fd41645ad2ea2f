/* SPDX-License-Identifier: Apache-2.0 */
#include "peak.h"

#include <stddef.h>

#include "ng/ctx.h"

#define NG_ISA(name, bit, features) extern const struct peak peak_##name;
#include "../kernels/isa.def"
#undef NG_ISA

const struct peak *peak_of(uint32_t isa_bit)
{
    switch (isa_bit) {
#define NG_ISA(name, bit, features)                                                            \
    case bit:                                                                                  \
        return &peak_##name;
#include "../kernels/isa.def"
#undef NG_ISA
    default: return NULL;
    }
}
