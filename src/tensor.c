/* SPDX-License-Identifier: Apache-2.0 */
/* Views of memory: addressing, and the checks that every call makes of its operands. */
#include <string.h>

#include "internal.h"
#include "ng/sparse.h"

/* Bounds every size below, so that sums and products of a few of them cannot overflow. */
#define MAX_DIM ((int64_t)1 << 47)

uint32_t ng_load_code(const void *data, uint32_t store_bits, int64_t index)
{
    const unsigned char *p = data;
    switch (store_bits) {
    case 4: return p[index >> 1] >> (index & 1 ? 4 : 0) & 0xFu;
    case 8: return p[index];
    case 16: {
        uint16_t v;
        memcpy(&v, p + 2 * index, sizeof v);
        return v;
    }
    default: {
        uint32_t v;
        memcpy(&v, p + 4 * index, sizeof v);
        return v;
    }
    }
}

void ng_store_code(void *data, uint32_t store_bits, int64_t index, uint32_t code)
{
    unsigned char *p = data;
    switch (store_bits) {
    case 4:
        if (index & 1)
            p[index >> 1] = (unsigned char)((p[index >> 1] & 0x0Fu) | code << 4);
        else
            p[index >> 1] = (unsigned char)((p[index >> 1] & 0xF0u) | (code & 0xFu));
        break;
    case 8: p[index] = (unsigned char)code; break;
    case 16: {
        const uint16_t v = (uint16_t)code;
        memcpy(p + 2 * index, &v, sizeof v);
        break;
    }
    default: memcpy(p + 4 * index, &code, sizeof code); break;
    }
}

/* ---- Tags: section 4.3. ---- */

uint32_t ng_tag_at(ng_tag_store store, const void *line, int64_t s)
{
    const unsigned char *p = line;
    if (store == NG_TAG_TRN) /* little-endian uint16: tags 0, 1 in the first byte */
        return p[s / 2] >> (s % 2 * 4) & 0xFu;
    return p[s / 4] >> (s % 4 * 2) & 3u;
}

void ng_tag_put(ng_tag_store store, void *line, int64_t s, uint32_t tag)
{
    const bool trn = store == NG_TAG_TRN;
    unsigned char *p = (unsigned char *)line + (trn ? s / 2 : s / 4);
    const unsigned at = trn ? (unsigned)(s % 2) * 4 : (unsigned)(s % 4) * 2,
                   mask = (trn ? 0xFu : 3u) << at;
    *p = (unsigned char)((*p & ~mask) | (tag << at & mask));
}

size_t ng_tags_bytes(ng_tag_store store, int64_t slots)
{
    if ((unsigned)store > NG_TAG_NV24 || slots < 1 || slots > MAX_DIM)
        return 0;
    return (size_t)((slots + 3) / 4 * (store == NG_TAG_TRN ? 2 : 1));
}

int64_t ng_tag_line_bytes(const ng_sparse *sparse, int64_t slots)
{
    return sparse->tag_stride ? sparse->tag_stride
                              : (int64_t)ng_tags_bytes(sparse->store, slots);
}

/* ---- Shapes. ---- */

int64_t ng_count(const ng_tensor *t)
{
    int64_t n = 1;
    for (uint32_t d = 0; d < t->rank; d++)
        n *= t->dim[d];
    return n;
}

void ng_unravel(const ng_tensor *t, int64_t i, int64_t *index)
{
    for (uint32_t d = t->rank; d-- > 0;) {
        index[d] = i % t->dim[d];
        i /= t->dim[d];
    }
}

int64_t ng_offset_at(const ng_tensor *t, const int64_t *index)
{
    int64_t at = 0;
    for (uint32_t d = 0; d < t->rank; d++)
        at += index[d] * t->stride[d];
    return at;
}

bool ng_next_index(const ng_tensor *t, int64_t *index)
{
    for (uint32_t d = t->rank; d-- > 0;) {
        if (++index[d] < t->dim[d])
            return true;
        index[d] = 0;
    }
    return false;
}

uint32_t ng_tensor_get(const ng_tensor *t, const int64_t *index)
{
    return ng_load_code(t->data, ng_format_info(t->format)->store_bits, ng_offset_at(t, index));
}

void ng_tensor_set(const ng_tensor *t, const int64_t *index, uint32_t code)
{
    ng_store_code(t->data, ng_format_info(t->format)->store_bits, ng_offset_at(t, index), code);
}

/* Elements in a packed row, padded so that the next row starts on a byte. */
static int64_t row_stride(const ng_format_spec *f, int64_t n)
{
    return f->store_bits == 4 ? n + (n & 1) : n;
}

size_t ng_tensor_bytes(ng_format format, uint32_t rank, const int64_t *dim)
{
    const ng_format_spec *f = ng_format_info(format);
    if (!f || !dim || rank < 1 || rank > NG_MAX_RANK)
        return 0;
    int64_t n = 1;
    for (uint32_t d = 0; d < rank; d++) {
        if (dim[d] < 1 || dim[d] > MAX_DIM)
            return 0;
        const int64_t len = d == rank - 1 ? row_stride(f, dim[d]) : dim[d];
        if (__builtin_mul_overflow(n, len, &n) || n > MAX_DIM)
            return 0;
    }
    return (size_t)n * f->store_bits / 8;
}

ng_status ng_tensor_init(ng_tensor *t, ng_format format, void *data, uint32_t rank,
                         const int64_t *dim)
{
    const ng_format_spec *f = ng_format_info(format);
    if (!t || !dim || rank < 1 || rank > NG_MAX_RANK)
        return NG_ERR_ARGUMENT;
    if (!f)
        return NG_ERR_FORMAT;
    if (!ng_tensor_bytes(format, rank, dim))
        return NG_ERR_SHAPE;
    ng_tensor r = { .data = data, .format = format, .rank = rank };
    int64_t stride = 1;
    for (uint32_t d = rank; d-- > 0;) {
        r.dim[d] = dim[d];
        r.stride[d] = stride;
        stride *= d == rank - 1 ? row_stride(f, dim[d]) : dim[d];
    }
    *t = r;
    return NG_OK;
}

ng_status ng_tensor_set_scale(ng_tensor *t, ng_format scale_format, void *scale, uint32_t block,
                              uint32_t axis, ng_layout layout)
{
    if (!t || axis >= t->rank || block < 1)
        return NG_ERR_ARGUMENT;
    if (scale_format != NG_E8M0 && scale_format != NG_UE4M3)
        return NG_ERR_FORMAT;
    t->scale = scale;
    t->scale_format = scale_format;
    t->block = block;
    t->block_axis = axis;
    t->layout = layout;
    memset(t->scale_stride, 0, sizeof t->scale_stride);
    return NG_OK;
}

/* ---- Blocks: section 3.3. ---- */

/* Trainium3: rows of a K tile, and lanes that a packed word holds. */
enum {
    WRAP_ROWS = 128,
    WRAP_LANES = 4,
    WRAP_GROUP = 8
};

int64_t ng_block_of(const ng_tensor *t, int64_t k)
{
    if (t->layout != NG_LAYOUT_TRN_WRAP)
        return k / t->block;
    const int64_t deep = WRAP_ROWS * WRAP_LANES, tile = k / deep;
    const int64_t left = t->dim[t->block_axis] - tile * deep;
    const int64_t rows = (left < deep ? left : deep) / WRAP_LANES;
    return tile * (WRAP_ROWS / WRAP_GROUP) + (k % deep) % rows / WRAP_GROUP;
}

int64_t ng_n_blocks(const ng_tensor *t)
{
    return (t->dim[t->block_axis] + t->block - 1) / t->block;
}

void ng_scale_strides(const ng_tensor *t, int64_t *stride)
{
    bool given = false;
    for (uint32_t d = 0; d < t->rank; d++)
        given = given || t->scale_stride[d] != 0;
    int64_t packed = 1;
    for (uint32_t d = t->rank; d-- > 0;) {
        stride[d] = given ? t->scale_stride[d] : packed;
        packed *= d == t->block_axis ? ng_n_blocks(t) : t->dim[d];
    }
}

int64_t ng_scale_offset(const ng_tensor *t, const int64_t *index)
{
    int64_t stride[NG_MAX_RANK], at = 0;
    ng_scale_strides(t, stride);
    for (uint32_t d = 0; d < t->rank; d++)
        at += (d == t->block_axis ? ng_block_of(t, index[d]) : index[d]) * stride[d];
    return at;
}

/* ---- Checks. ---- */

static ng_status check_shape(ng_ctx *ctx, const char *call, const char *name,
                             const ng_tensor *t)
{
    if (t->rank < 1 || t->rank > NG_MAX_RANK)
        return ng_fail(ctx, NG_ERR_SHAPE, "%s: %s has rank %u, not 1 to %d", call, name,
                       t->rank, NG_MAX_RANK);
    int64_t n = 1;
    for (uint32_t d = 0; d < t->rank; d++) {
        if (t->dim[d] < 1)
            return ng_fail(ctx, NG_ERR_SHAPE, "%s: dimension %u of %s is %lld, not at least 1",
                           call, d, name, (long long)t->dim[d]);
        if (t->dim[d] > MAX_DIM || __builtin_mul_overflow(n, t->dim[d], &n) || n > MAX_DIM)
            return ng_fail(ctx, NG_ERR_SHAPE, "%s: %s has more than 2^47 elements", call, name);
    }
    return NG_OK;
}

/* Elements between the lowest and the highest place that the view reaches. */
static ng_status reach(ng_ctx *ctx, const char *call, const char *name, uint32_t rank,
                       const int64_t *dim, const int64_t *stride, int64_t *low, int64_t *high)
{
    *low = *high = 0;
    for (uint32_t d = 0; d < rank; d++) {
        int64_t span;
        if (__builtin_mul_overflow(dim[d] - 1, stride[d], &span) || span > MAX_DIM ||
            span < -MAX_DIM)
            return ng_fail(ctx, NG_ERR_SHAPE, "%s: stride %lld of dimension %u of %s overflows",
                           call, (long long)stride[d], d, name);
        *(span < 0 ? low : high) += span;
    }
    return NG_OK;
}

static int64_t magnitude(int64_t v)
{
    return v < 0 ? -v : v;
}

/* Sorted by stride, each dimension must step over all that the smaller ones reach. */
static bool elements_apart(uint32_t rank, const int64_t *dim, const int64_t *stride)
{
    bool used[NG_MAX_RANK] = { false };
    int64_t reached = 0;
    for (uint32_t n = 0; n < rank; n++) {
        uint32_t least = NG_MAX_RANK;
        for (uint32_t d = 0; d < rank; d++)
            if (!used[d] &&
                (least == NG_MAX_RANK || magnitude(stride[d]) < magnitude(stride[least])))
                least = d;
        used[least] = true;
        if (dim[least] > 1) {
            if (magnitude(stride[least]) <= reached)
                return false;
            reached += magnitude(stride[least]) * (dim[least] - 1);
        }
    }
    return true;
}

/* A 4-bit view may step by single nibbles along one dimension only; rows start on bytes. */
static ng_status check_nibbles(ng_ctx *ctx, const char *call, const char *name,
                               const ng_tensor *t)
{
    uint32_t unit = NG_MAX_RANK;
    for (uint32_t d = 0; d < t->rank; d++) {
        if (t->dim[d] == 1 || t->stride[d] % 2 == 0)
            continue;
        if (magnitude(t->stride[d]) != 1 || unit != NG_MAX_RANK)
            return ng_fail(
                ctx, NG_ERR_LAYOUT,
                "%s: stride %lld of dimension %u of %s (%s) is odd, so a row does not "
                "start on a byte; wanted: 1 in one dimension, even in the others",
                call, (long long)t->stride[d], d, name, ng_format_info(t->format)->text);
        unit = d;
    }
    return NG_OK;
}

ng_status ng_check_tensor(ng_ctx *ctx, const char *call, const char *name, const ng_tensor *t,
                          bool output, struct ng_extent *extent)
{
    if (!t)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s is NULL", call, name);
    const ng_format_spec *f = ng_format_info(t->format);
    if (!f)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: %s has format number %d, which is none", call,
                       name, (int)t->format);
    if (!t->data)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s has no data (NULL)", call, name);
    ng_status s = check_shape(ctx, call, name, t);
    int64_t low = 0, high = 0;
    if (!s)
        s = reach(ctx, call, name, t->rank, t->dim, t->stride, &low, &high);
    if (!s && f->store_bits == 4)
        s = check_nibbles(ctx, call, name, t);
    if (s)
        return s;
    if (output && !elements_apart(t->rank, t->dim, t->stride))
        return ng_fail(ctx, NG_ERR_LAYOUT,
                       "%s: elements of %s share memory with one another: "
                       "a stride is smaller than what the other dimensions reach",
                       call, name);
    if (f->store_bits == 4)
        *extent = (struct ng_extent){ low >> 1, (high >> 1) + 1 };
    else
        *extent = (struct ng_extent){ low * f->store_bits / 8, (high + 1) * f->store_bits / 8 };
    return NG_OK;
}

ng_status ng_check_scale(ng_ctx *ctx, const char *call, const char *name, const ng_tensor *t,
                         bool output, struct ng_extent *extent)
{
    if (!t->scale)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: %s has no scales (NULL)", call, name);
    if (t->scale_format != NG_E8M0 && t->scale_format != NG_UE4M3)
        return ng_fail(ctx, NG_ERR_FORMAT, "%s: scales of %s have format %s, not e8m0 or ue4m3",
                       call, name,
                       ng_format_info(t->scale_format) ? ng_format_info(t->scale_format)->text
                                                       : "(none)");
    if (t->block < 1 || t->block_axis >= t->rank)
        return ng_fail(
            ctx, NG_ERR_SHAPE,
            "%s: %s has block %u along dimension %u; wanted: at least 1, along 0 to %u", call,
            name, t->block, t->block_axis, t->rank - 1);
    if ((unsigned)t->layout > NG_LAYOUT_TRN_1X32)
        return ng_fail(ctx, NG_ERR_ARGUMENT, "%s: layout %d of %s is no ng_layout", call,
                       (int)t->layout, name);
    const bool trn = t->layout != NG_LAYOUT_LINEAR;
    if (trn && t->block != WRAP_LANES * WRAP_GROUP)
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: %s has block %u; the trn layouts have 32", call,
                       name, t->block);
    if (t->layout == NG_LAYOUT_TRN_WRAP && t->dim[t->block_axis] % 32)
        return ng_fail(ctx, NG_ERR_SHAPE,
                       "%s: dimension %u of %s is %lld; trn_wrap wants a multiple of 32", call,
                       t->block_axis, name, (long long)t->dim[t->block_axis]);
    int64_t dim[NG_MAX_RANK], stride[NG_MAX_RANK], low, high;
    for (uint32_t d = 0; d < t->rank; d++)
        dim[d] = d == t->block_axis ? ng_n_blocks(t) : t->dim[d];
    ng_scale_strides(t, stride);
    const ng_status s = reach(ctx, call, name, t->rank, dim, stride, &low, &high);
    if (s)
        return s;
    if (output && !elements_apart(t->rank, dim, stride))
        return ng_fail(ctx, NG_ERR_LAYOUT, "%s: scales of %s share memory with one another",
                       call, name);
    *extent = (struct ng_extent){ low, high + 1 };
    return NG_OK;
}

bool ng_overlap(const void *a, struct ng_extent ea, const void *b, struct ng_extent eb)
{
    const uintptr_t pa = (uintptr_t)a, pb = (uintptr_t)b;
    return pa + (uintptr_t)ea.low < pb + (uintptr_t)eb.high &&
           pb + (uintptr_t)eb.low < pa + (uintptr_t)ea.high;
}

bool ng_same_view(const ng_tensor *a, const ng_tensor *b)
{
    if (a->data != b->data || a->format != b->format || a->rank != b->rank)
        return false;
    for (uint32_t d = 0; d < a->rank; d++)
        if (a->dim[d] != b->dim[d] || (a->dim[d] > 1 && a->stride[d] != b->stride[d]))
            return false;
    return true;
}

ng_status ng_check_same_shape(ng_ctx *ctx, const char *call, const char *na, const ng_tensor *a,
                              const char *nb, const ng_tensor *b)
{
    if (a->rank != b->rank)
        return ng_fail(ctx, NG_ERR_SHAPE, "%s: %s has rank %u but %s has rank %u", call, na,
                       a->rank, nb, b->rank);
    for (uint32_t d = 0; d < a->rank; d++)
        if (a->dim[d] != b->dim[d])
            return ng_fail(ctx, NG_ERR_SHAPE,
                           "%s: dimension %u of %s is %lld but of %s it is %lld", call, d, na,
                           (long long)a->dim[d], nb, (long long)b->dim[d]);
    return NG_OK;
}
