/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel contract. A kernel includes this header, its own vec.h and <ng/...>: never
 * src/num, never src/ref, never another ISA. See kernels/README.md.
 */
#ifndef NG_KERNEL_H
#define NG_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ng/gemm.h"

/* One operand of a multiply, as lines (rows of A, columns of B) by k. */
struct gemm_operand {
    const void *data;
    const ng_format_spec *spec;
    int64_t offset;       /* elements from data to (line 0, k 0) */
    int64_t line, k;      /* strides in elements */
    const uint8_t *scale; /* one byte each, or NULL */
    const ng_format_spec *scale_spec;
    int64_t scale_offset, scale_line, scale_block;
    uint32_t block;
    ng_layout layout;
    int64_t depth; /* length along k in memory: K, or K * group / kept of a dense operand that
                      meets a sparse one */
    const ng_sparse *sparse; /* or NULL: lines are then compressed */
    int64_t tag_line;        /* number of line 0's tags */

    /* What the front door found; meaningful only if job.scanned. */
    bool finite;
    int lsb_min; /* least exponent of the lowest set bit of any element (scales not applied) */
    int msb_max; /* largest floor(log2 |element|) */
};

/* C or D: rows by columns. */
struct gemm_matrix {
    void *data;
    const ng_format_spec *spec;
    int64_t offset, row, col;
};

/* One matrix multiply: const from room 2 on. */
struct gemm_job {
    const ng_gemm_op *op;
    const ng_rule *rule;
    ng_mode mode;
    ng_format acc; /* f32, bf16 or f16 */
    struct gemm_operand a, b;
    struct gemm_matrix c, d; /* c.data may be NULL */
    int64_t m, n, k;         /* k is the accumulation's: compressed when an operand is sparse */
    int64_t first,
        elements; /* row-major number of D(0, 0), and of all elements: random words */
    bool scanned;
};

/*
 * A GEMM kernel. The library calls, in this order and never back:
 *   accepts         once, while planning; reads the job only
 *   prepared_bytes  once
 *   prepare         once a batch; writes `prepared`, prepared_bytes() long, 64-byte aligned
 *   tile            once per tile, from any thread; writes D[i .. i+mr, j .. j+nr) and no more
 * Tiles of one 4-bit D run on one thread. A kernel reads no byte outside its operands, even
 * where it would not use it. It may change nothing but its outputs; see uses_fp for the control
 * word.
 */
struct ng_gemm_kernel {
    const char *name; /* "gemm_chain_4x32__avx512": as its symbol, less the prefix */
    uint16_t mr, nr;
    bool uses_fp; /* the library sets MXCSR (nearest, no flush, masked) around prepare and tile
                   */
    bool (*accepts)(const struct gemm_job *g);
    size_t (*prepared_bytes)(const struct gemm_job *g);
    void (*prepare)(const struct gemm_job *g, void *prepared);
    void (*tile)(const struct gemm_job *g, const void *prepared, int64_t i, int64_t j);
};

/* The kernels of one ISA, best first, NULL-terminated. */
struct ng_kernel_set {
    const struct ng_gemm_kernel *const *gemm;
};

#define NG_ISA(name, bit, features) extern const struct ng_kernel_set ng_kernels_##name;
#include "isa.def"
#undef NG_ISA

#endif
