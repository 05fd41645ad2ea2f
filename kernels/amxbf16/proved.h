/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_AMXBF16_PROVED_H
#define NG_AMXBF16_PROVED_H

#include "../kernel.h"

/* Do TDPBF16PS, of exact sums, and TDPBSSD on this CPU compute what tiles.h says? */
bool ng_kernels_amxbf16_proved(void);

#endif
