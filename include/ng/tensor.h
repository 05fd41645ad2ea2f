/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NG_TENSOR_H
#define NG_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ng/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Element and scale formats: the rows of formats.def. */
typedef enum ng_format {
    NG_FORMAT_NONE = 0,
#define NG_FORMAT(name, value, text, bits, store, exp, man, low, bias, kind, nan)              \
    NG_##name = value,
#include "ng/formats.def"
#undef NG_FORMAT
    NG_FORMAT_LIMIT = 0xff
} ng_format;

/** How a format spends its special codes; see formats.def. */
typedef enum ng_kind {
    NG_KIND_IEEE = 0,
    NG_KIND_FN = 1,
    NG_KIND_FNUZ = 2,
    NG_KIND_FINITE = 3,
    NG_KIND_UFN = 4,
    NG_KIND_SCALE = 5,
    NG_KIND_INT = 6
} ng_kind;

/** One row of formats.def. */
typedef struct ng_format_spec {
    ng_format format;
    const char *text; /**< the name used in files and on the command line */
    uint32_t bits;    /**< of a code */
    uint32_t store_bits;
    uint32_t exp_bits;
    uint32_t man_bits;
    uint32_t low_bits;
    int32_t bias;
    ng_kind kind;
    uint32_t nan_code; /**< canonical NaN; 0 where there is none */
    uint32_t max_code; /**< largest finite, positive */
    bool has_inf;
    bool has_nan;
} ng_format_spec;

/** The row of a format, or NULL for a number that is none. Static storage. */
NG_API const ng_format_spec *ng_format_info(ng_format format);
/** The format named `text` ("e4m3fn"), or NG_FORMAT_NONE. Names are exact: "e4m3" is not
 * "e4m3fn". */
NG_API ng_format ng_format_find(const char *text);
/** The i-th row of formats.def, i from 0; NULL past the end. For walking all formats. */
NG_API const ng_format_spec *ng_format_at(size_t i);

/**
 * A real number, exactly: (-1)^neg * sig * 2^exp, plus less than one unit of `sig` more
 * (away from zero) when `sticky` is set. The number that a code stands for, or the exact
 * result of a sum.
 */
typedef enum ng_class {
    NG_CLASS_FINITE = 0,
    NG_CLASS_INF = 1,
    NG_CLASS_NAN = 2
} ng_class;
typedef struct ng_value {
    uint64_t sig; /**< 0 for a zero; sticky is then not looked at */
    int32_t exp;  /**< of the lowest bit of sig */
    ng_class cls;
    bool neg;
    bool sticky; /**< something non-zero lies below the lowest bit of sig */
} ng_value;

/** The value of a code. Bits of `code` above the format's width are ignored.
 *  @retval NG_ERR_FORMAT  `format` is no row of formats.def; `value` is untouched. */
NG_API ng_status ng_decode(ng_format format, uint32_t code, ng_value *value);

/** Which elements share a scale. Numerics: docs/numerics.md, section 3.3. */
typedef enum ng_layout {
    NG_LAYOUT_LINEAR = 0,   /**< `block` consecutive elements along the block axis */
    NG_LAYOUT_TRN_WRAP = 1, /**< Trainium3: 8 rows x 4 lanes, lane q of row p is k = q*P + p */
    NG_LAYOUT_TRN_1X32 = 2  /**< Trainium3: k = 4p + q; the same blocks as LINEAR */
} ng_layout;

/** How the scale bytes lie in memory. The converters of ng/quantize.h are pure moves. */
typedef enum ng_scale_store {
    NG_SCALE_LINEAR = 0,       /**< [line][block], row-major */
    NG_SCALE_TRN_SBUF = 1,     /**< partitions 32*(g/4) + g%4 (+ 0, 4, 8 or 12) of a K tile */
    NG_SCALE_SWIZZLE_128X4 = 2 /**< 128x4 tiles of 32x16 bytes: cuBLAS, tcgen05 */
} ng_scale_store;

/** How tags of a structured-sparse operand are packed; docs/numerics.md, section 4.3. */
typedef enum ng_tag_store {
    NG_TAG_TRN = 0, /**< 4 bits a tag, four to a uint16, low nibble first */
    NG_TAG_NV24 = 1 /**< 2 bits a tag, four to a byte, low bits first; groups of at most 4 */
} ng_tag_store;

/** The tags of an operand compressed M:N along K: `kept` values of every `group`. */
typedef struct ng_sparse {
    uint32_t kept;  /**< M */
    uint32_t group; /**< N, at most 16 */
    ng_tag_store store;
    const void *tags;   /**< a line per row of A or column of B, in every matrix of a batch */
    int64_t tag_stride; /**< bytes between lines; 0: packed lines */
} ng_sparse;

#define NG_MAX_RANK 4

/** A view of memory that the caller owns. Zero-initialise, then fill what is used. */
typedef struct ng_tensor {
    void *data;                  /**< codes; 4-bit: two a byte, low nibble first */
    void *scale;                 /**< block scales in NG_SCALE_LINEAR order, or NULL */
    ng_format format;            /**< of the elements */
    ng_format scale_format;      /**< of the scales: e8m0 or ue4m3 */
    uint32_t block;              /**< elements that share a scale, 0 for none */
    uint32_t block_axis;         /**< the dimension that the blocks run along */
    ng_layout layout;            /**< which elements form a block */
    uint32_t tensor_scale;       /**< NVFP4: FP32 pattern of the per-tensor scale; 0: 1.0 */
    uint32_t rank;               /**< 1..NG_MAX_RANK */
    int64_t dim[NG_MAX_RANK];    /**< in elements */
    int64_t stride[NG_MAX_RANK]; /**< in elements, not bytes; 4-bit rows start on a byte */
    int64_t scale_stride[NG_MAX_RANK]; /**< in scales; all 0: row-major and packed */
    const ng_sparse *sparse;           /**< the data are compressed along K, or NULL */
} ng_tensor;

/** Fill `t` as a row-major tensor: format, data, rank, dims, packed strides; the rest is zero.
 *  A 4-bit row of odd length takes a whole number of bytes, so its stride is rounded up to
 * even. */
NG_API ng_status ng_tensor_init(ng_tensor *t, ng_format format, void *data, uint32_t rank,
                                const int64_t *dim);
/** Attach block scales: element i of the axis belongs to block i/`block` (see ng_layout). */
NG_API ng_status ng_tensor_set_scale(ng_tensor *t, ng_format scale_format, void *scale,
                                     uint32_t block, uint32_t axis, ng_layout layout);
/** Bytes that a packed row-major tensor of this format and shape takes; 0 when it overflows. */
NG_API size_t ng_tensor_bytes(ng_format format, uint32_t rank, const int64_t *dim);
/** One element's code at index[0..rank). The caller vouches for the index. */
NG_API uint32_t ng_tensor_get(const ng_tensor *t, const int64_t *index);
NG_API void ng_tensor_set(const ng_tensor *t, const int64_t *index, uint32_t code);

#ifdef __cplusplus
}
#endif
#endif
