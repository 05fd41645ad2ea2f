/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_VERSION_H
#define NG_VERSION_H

/* The API version. meson.build reads these three lines and makes the soname from them. */
#define NG_VERSION_MAJOR 0
#define NG_VERSION_MINOR 1
#define NG_VERSION_PATCH 0

#if defined(_WIN32)
#define NG_API
#elif defined(__GNUC__)
#define NG_API __attribute__((visibility("default")))
#else
#define NG_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** The version of the library that runs, "0.1.0"; compare with NG_VERSION_* of the headers. */
NG_API const char *ng_version(void);

#ifdef __cplusplus
}
#endif
#endif
