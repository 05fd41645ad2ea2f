/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "ng/tensor.h"

/* The largest finite code of each kind, from the widths alone. */
#define MAX_IEEE(e, m, low)   ((((((1u << (e)) - 1u) << (m)) - 1u)) << (low))
#define MAX_FN(e, m, low)     ((1u << ((e) + (m))) - 2u)
#define MAX_FNUZ(e, m, low)   ((1u << ((e) + (m))) - 1u)
#define MAX_FINITE(e, m, low) ((1u << ((e) + (m))) - 1u)
#define MAX_UFN(e, m, low)    ((1u << ((e) + (m))) - 2u)
#define MAX_SCALE(e, m, low)  ((1u << (e)) - 2u)
#define MAX_INT(e, m, low)    ((1u << ((e) + (m))) - 1u)

static const ng_format_spec specs[] = {
#define NG_FORMAT(name, value, text, bits, store, exp, man, low, bias, kind, nan)              \
    { NG_##name,                                                                               \
      text,                                                                                    \
      bits,                                                                                    \
      store,                                                                                   \
      exp,                                                                                     \
      man,                                                                                     \
      low,                                                                                     \
      bias,                                                                                    \
      NG_KIND_##kind,                                                                          \
      nan,                                                                                     \
      MAX_##kind(exp, man, low),                                                               \
      NG_KIND_##kind == NG_KIND_IEEE,                                                          \
      (nan) != 0 },
#include "ng/formats.def"
#undef NG_FORMAT
};

#define N_SPECS (sizeof specs / sizeof specs[0])

const ng_format_spec *ng_format_at(size_t i)
{
    return i < N_SPECS ? &specs[i] : NULL;
}

const ng_format_spec *ng_format_info(ng_format format)
{
    for (size_t i = 0; i < N_SPECS; i++)
        if (specs[i].format == format)
            return &specs[i];
    return NULL;
}

ng_format ng_format_find(const char *text)
{
    for (size_t i = 0; text && i < N_SPECS; i++)
        if (strcmp(specs[i].text, text) == 0)
            return specs[i].format;
    return NG_FORMAT_NONE;
}
