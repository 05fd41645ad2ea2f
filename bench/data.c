/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "bench.h"

/* splitmix64 */
static uint64_t next(uint64_t *s)
{
    uint64_t z = *s += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

void *bench_alloc(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) {
        (void)fprintf(stderr, "ng-bench: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return p;
}

/* A real number of 24 random bits, so that sums of products do round. */
static uint32_t draw(ng_format f, struct spread s, uint64_t *seed)
{
    const ng_cast cast = { .overflow = NG_OVERFLOW_SATURATE };
    const uint64_t r = next(seed);
    const int window = s.high - s.low + 1;
    const ng_value v = { .sig = (r & 0x7FFFFFu) | 0x800000u,
                         .exp = s.low + (int)(r >> 32 & 0xFFFFu) % window - 23,
                         .cls = NG_CLASS_FINITE,
                         .neg = r >> 63 };
    uint32_t code = 0;
    (void)ng_encode(f, &cast, &v, 0, &code);
    return code;
}

ng_tensor bench_matrix(ng_format f, int64_t rows, int64_t cols, struct spread s, uint64_t seed)
{
    enum {
        POOL = 4096 /* encoding each element would take longer than the case */
    };
    static uint32_t pool[POOL];
    for (int i = 0; i < POOL; i++)
        pool[i] = draw(f, s, &seed);

    const int64_t dim[2] = { rows, cols };
    ng_tensor t;
    (void)ng_tensor_init(&t, f, bench_alloc(ng_tensor_bytes(f, 2, dim)), 2, dim);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            ng_tensor_set(&t, (const int64_t[]){ i, j }, pool[next(&seed) % POOL]);
    return t;
}

void bench_scales(ng_tensor *t, uint32_t axis, uint64_t seed)
{
    const int64_t blocks = (t->dim[axis] + 31) / 32, n = blocks * t->dim[1 - axis];
    uint8_t *scale = bench_alloc((size_t)n);
    for (int64_t i = 0; i < n; i++)
        scale[i] = (uint8_t)(125 + next(&seed) % 5);
    (void)ng_tensor_set_scale(t, NG_E8M0, scale, 32, axis, NG_LAYOUT_LINEAR);
}

void bench_free(ng_tensor *t)
{
    free(t->data);
    free(t->scale);
    *t = (ng_tensor){ .data = NULL };
}
