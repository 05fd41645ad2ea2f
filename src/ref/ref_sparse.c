/* SPDX-License-Identifier: Apache-2.0 */
/* One group of M:N structured sparsity. Numerics: docs/numerics.md, sections 4.3 and 11.4. */
#include "ref.h"

uint32_t ng_ref_sparse_nonzero(const ng_format_spec *f, const uint32_t *code, uint32_t group)
{
    uint32_t set = 0;
    for (uint32_t i = 0; i < group; i++)
        if (!ng_num_is_zero(ng_num_decode(f, code[i])))
            set |= 1u << i;
    return set;
}

/* -1, 0, 1 as |a| <, =, > |b|: NaN above Inf above every finite value, all NaN alike. */
static int compare(ng_value a, ng_value b)
{
    if (a.cls == NG_CLASS_FINITE && b.cls == NG_CLASS_FINITE)
        return ng_num_compare_magnitude(a, b);
    const int ra = ng_num_is_nan(a) ? 2 : ng_num_is_inf(a), /* 0: finite */
        rb = ng_num_is_nan(b) ? 2 : ng_num_is_inf(b);
    return (ra > rb) - (ra < rb);
}

uint32_t ng_ref_sparse_keep(const ng_format_spec *f, const uint32_t *code, uint32_t kept,
                            uint32_t group)
{
    uint32_t set = 0;
    for (uint32_t i = 0; i < group; i++) {
        const ng_value v = ng_num_decode(f, code[i]);
        uint32_t before = 0; /* elements that come before it in the order of pruning */
        for (uint32_t j = 0; j < group; j++) {
            const int order = compare(ng_num_decode(f, code[j]), v);
            if (order > 0 || (order == 0 && j < i))
                before++;
        }
        if (before < kept)
            set |= 1u << i;
    }
    return set;
}
