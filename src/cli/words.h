/* SPDX-License-Identifier: Apache-2.0 */
/* Random sources as files and options have them. */
#ifndef NG_CLI_WORDS_H
#define NG_CLI_WORDS_H

#include <string.h>

#include "io.h"
#include "ng/ng.h"

/* "philox", "xorwow", "lfsr32". */
static inline const char *words_kind_text(ng_random_kind kind)
{
    return kind == NG_RANDOM_PHILOX ? "philox" : kind == NG_RANDOM_XORWOW ? "xorwow" : "lfsr32";
}

static inline bool words_kind(const char *text, ng_random_kind *kind)
{
    for (int k = NG_RANDOM_XORWOW; k <= NG_RANDOM_PHILOX; k++)
        if (strcmp(text, words_kind_text((ng_random_kind)k)) == 0) {
            *kind = (ng_random_kind)k;
            return true;
        }
    return false;
}

/* uint32 words that a source's states take. */
static inline size_t words_of_state(const ng_random *r)
{
    const size_t lanes = r->lanes ? r->lanes : 128;
    if (r->kind == NG_RANDOM_LFSR32)
        return lanes;
    return lanes * (r->states ? r->states : 1) * 6;
}

/* States that were read from a file: NULL, or what is wrong with them. */
static inline const char *words_state(ng_random *r, const struct io_array *a)
{
    if (a->item_bits != 32)
        return "a random state is not of uint32";
    if (a->bytes != words_of_state(r) * 4)
        return r->kind == NG_RANDOM_LFSR32
                   ? "a random state has not the size of its lanes (default 128)"
                   : "a random state has not the size lanes * states * 6 (default 128 * 1 * 6)";
    r->state = a->data;
    return NULL;
}

#endif
