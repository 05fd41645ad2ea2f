/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_STATUS_H
#define NG_STATUS_H

#include "ng/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What a call that can fail returns. Values are pinned; new ones append. */
typedef enum ng_status {
    NG_OK = 0,
    NG_ERR_ARGUMENT = 1, /**< a pointer, size field or enum value is not valid */
    NG_ERR_SHAPE = 2,    /**< operand shapes do not agree */
    NG_ERR_FORMAT = 3,   /**< the operation does not take this format */
    NG_ERR_LAYOUT = 4,   /**< a stride, alignment, overlap or block layout is not supported */
    NG_ERR_PROFILE = 5,  /**< the profile is unknown, inconsistent, or has no such rule */
    NG_ERR_SCRATCH = 6,  /**< the caller's scratch memory is too small */
    NG_ERR_MEMORY = 7,   /**< the allocator returned NULL */
    NG_ERR_UNSUPPORTED = 8, /**< valid, but not built into this library */
    NG_ERR_INTERNAL = 9     /**< a bug in the library; please report */
} ng_status;

/** The name of a status as written above, "NG_ERR_SHAPE"; "NG_ERR_?" for any other number. */
NG_API const char *ng_status_name(ng_status status);

#ifdef __cplusplus
}
#endif
#endif
