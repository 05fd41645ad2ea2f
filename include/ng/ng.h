/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Narrowgauge: a bit-exact numerics oracle for low-precision AI accelerators.
 *
 * Rules of the whole API:
 *  - Pointers are required unless "or NULL" is written. Destroy and free functions take NULL.
 *  - Strides are in elements. Operands do not overlap outputs unless said.
 *  - A struct that begins with `size` is filled by the caller with its sizeof.
 *  - Every call that can fail returns ng_status, leaves its outputs untouched on error, and
 *    writes one message into the context: operand, dimension, value found, value wanted.
 *  - A context belongs to one thread at a time. Different contexts are independent.
 *  - No call prints, exits, aborts, starts a thread (ng_pool_create apart) or reads the
 *    environment.
 *  - What decides bits is in profiles and ng_*_op; what decides speed is in ng_ctx_config. No
 *    setting of the second changes a bit. The caller's floating-point control word does not
 *    matter either: the reference uses integers, kernels set and restore it.
 */
#ifndef NG_NG_H
#define NG_NG_H

#include "ng/attention.h"
#include "ng/collective.h"
#include "ng/convert.h"
#include "ng/ctx.h"
#include "ng/elementary.h"
#include "ng/gemm.h"
#include "ng/layer.h"
#include "ng/moe.h"
#include "ng/profile.h"
#include "ng/quantize.h"
#include "ng/random.h"
#include "ng/sparse.h"
#include "ng/status.h"
#include "ng/tensor.h"
#include "ng/version.h"

#endif
