/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a SystemVerilog simulator calls: the C side of ng_dpi.sv, which says what each of these
 * does. Types are those of IEEE 1800, annex H: a chandle is a pointer, an int is 32 bits, a
 * packed vector an array of 32-bit words, least significant word first.
 */
#ifndef NG_DPI_H
#define NG_DPI_H

#include <stdint.h>

#define NG_DPI_BITS       4096 /* of a line of elements */
#define NG_DPI_SCALE_BITS 512  /* of its block scales */

/* Operands of ng_dpi_put() and others. */
enum {
    NG_DPI_A = 0,
    NG_DPI_B = 1,
    NG_DPI_C = 2,
    NG_DPI_OPERANDS = 3
};

#define NG_DPI_API __attribute__((visibility("default")))

NG_DPI_API void *ng_dpi_open(const char *profile);
NG_DPI_API void ng_dpi_close(void *oracle);
NG_DPI_API int ng_dpi_status(void *oracle);
NG_DPI_API const char *ng_dpi_message(void *oracle);

NG_DPI_API int ng_dpi_set(void *oracle, const char *rule, const char *key, const char *value);
NG_DPI_API int ng_dpi_output(void *oracle, int round, int overflow);
NG_DPI_API int ng_dpi_word(void *oracle, int element, unsigned word);
NG_DPI_API int ng_dpi_accumulate(void *oracle, int format);
NG_DPI_API int ng_dpi_double_row(void *oracle, int on);

NG_DPI_API int ng_dpi_dot(void *oracle, int k, int a_format, const uint32_t *a, int b_format,
                          const uint32_t *b, int scale_format, int block,
                          const uint32_t *a_scale, const uint32_t *b_scale, int c_format,
                          unsigned c, int d_format, unsigned *d);

NG_DPI_API int ng_dpi_matrices(void *oracle, int m, int n, int k, int a_format, int b_format,
                               int scale_format, int block, int c_format, int d_format);
NG_DPI_API int ng_dpi_put(void *oracle, int operand, int row, int column, unsigned code);
NG_DPI_API int ng_dpi_put_scale(void *oracle, int operand, int line, int block, unsigned code);
NG_DPI_API int ng_dpi_put_line(void *oracle, int operand, int line, int first, int count,
                               const uint32_t *bits);
NG_DPI_API int ng_dpi_multiply(void *oracle);
NG_DPI_API unsigned ng_dpi_get(void *oracle, int row, int column);

NG_DPI_API int ng_dpi_trace(void *oracle, int row, int column);
NG_DPI_API int ng_dpi_step(void *oracle, int i, int *kind, int *index, int *k0, int *k1,
                           double *value);
NG_DPI_API const char *ng_dpi_step_text(void *oracle, int i);

NG_DPI_API int ng_dpi_convert(void *oracle, int from, unsigned code, int to, unsigned *result);
NG_DPI_API double ng_dpi_real(int format, unsigned code);
NG_DPI_API int ng_dpi_quantize(void *oracle, int n, int from, const uint32_t *src, int to,
                               int scale_format, int block, int rule, int special,
                               unsigned tensor_amax, uint32_t *dst, uint32_t *scale,
                               unsigned *tensor_scale);

#endif
