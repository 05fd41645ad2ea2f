/* SPDX-License-Identifier: Apache-2.0 */
#include "ng/status.h"

#define STRING_(x) #x
#define STRING(x)  STRING_(x)

const char *ng_version(void)
{
    return STRING(NG_VERSION_MAJOR) "." STRING(NG_VERSION_MINOR) "." STRING(NG_VERSION_PATCH);
}

const char *ng_status_name(ng_status status)
{
    switch (status) {
    case NG_OK: return "NG_OK";
    case NG_ERR_ARGUMENT: return "NG_ERR_ARGUMENT";
    case NG_ERR_SHAPE: return "NG_ERR_SHAPE";
    case NG_ERR_FORMAT: return "NG_ERR_FORMAT";
    case NG_ERR_LAYOUT: return "NG_ERR_LAYOUT";
    case NG_ERR_PROFILE: return "NG_ERR_PROFILE";
    case NG_ERR_SCRATCH: return "NG_ERR_SCRATCH";
    case NG_ERR_MEMORY: return "NG_ERR_MEMORY";
    case NG_ERR_UNSUPPORTED: return "NG_ERR_UNSUPPORTED";
    case NG_ERR_INTERNAL: return "NG_ERR_INTERNAL";
    }
    return "NG_ERR_?";
}
