/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies ng_dpi.sv.in to standard output; its line "@CONSTANTS@" becomes the numbers of the
 * headers, so that no testbench can have others.
 */
#include <stdio.h>
#include <string.h>

#include "ng/gemm.h"
#include "ng/quantize.h"
#include "ng_dpi.h"

static void constant(const char *name, int value)
{
    printf("  localparam int %-30s = %d;\n", name, value);
}
#define CONSTANT(name) constant(#name, (int)(name))

static void constants(void)
{
    printf("  // element and scale formats; 0: none\n");
    CONSTANT(NG_FORMAT_NONE);
#define NG_FORMAT(name, value, text, bits, store, exp, man, low, bias, kind, nan)              \
    CONSTANT(NG_##name);
#include "ng/formats.def"
#undef NG_FORMAT
    printf("\n  // statuses\n");
    CONSTANT(NG_OK);
    CONSTANT(NG_ERR_ARGUMENT);
    CONSTANT(NG_ERR_SHAPE);
    CONSTANT(NG_ERR_FORMAT);
    CONSTANT(NG_ERR_LAYOUT);
    CONSTANT(NG_ERR_PROFILE);
    CONSTANT(NG_ERR_SCRATCH);
    CONSTANT(NG_ERR_MEMORY);
    CONSTANT(NG_ERR_UNSUPPORTED);
    CONSTANT(NG_ERR_INTERNAL);
    printf("\n  // roundings, and what happens past the largest value\n");
    CONSTANT(NG_ROUND_TIES_TO_EVEN);
    CONSTANT(NG_ROUND_TIES_TO_AWAY);
    CONSTANT(NG_ROUND_TOWARD_ZERO);
    CONSTANT(NG_ROUND_TOWARD_NEGATIVE);
    CONSTANT(NG_ROUND_TOWARD_POSITIVE);
    CONSTANT(NG_ROUND_TO_ODD);
    CONSTANT(NG_ROUND_STOCHASTIC);
    CONSTANT(NG_OVERFLOW_INF);
    CONSTANT(NG_OVERFLOW_SATURATE);
    CONSTANT(NG_OVERFLOW_SATURATE_KEEP_INF);
    printf("\n  // block scales, and blocks with a NaN or Inf\n");
    CONSTANT(NG_SCALE_FLOOR);
    CONSTANT(NG_SCALE_FLOOR_UP1);
    CONSTANT(NG_SCALE_CEIL);
    CONSTANT(NG_SCALE_EVEN);
    CONSTANT(NG_SCALE_RCEIL);
    CONSTANT(NG_SCALE_NVFP4_TE);
    CONSTANT(NG_SCALE_NVFP4_EXACT);
    CONSTANT(NG_BLOCK_SPECIAL_ELEMENT);
    CONSTANT(NG_BLOCK_SPECIAL_NAN_BLOCK);
    CONSTANT(NG_BLOCK_SPECIAL_EXPONENT);
    printf("\n  // steps of a trace\n");
    CONSTANT(NG_TRACE_CHAIN);
    CONSTANT(NG_TRACE_FOOT);
    CONSTANT(NG_TRACE_PSUM);
    CONSTANT(NG_TRACE_STEP);
    CONSTANT(NG_TRACE_PROMOTED);
    CONSTANT(NG_TRACE_OUT);
    printf("\n  // operands, and how many bits a line of one has, and its scales\n");
    CONSTANT(NG_DPI_A);
    CONSTANT(NG_DPI_B);
    CONSTANT(NG_DPI_C);
    CONSTANT(NG_DPI_BITS);
    CONSTANT(NG_DPI_SCALE_BITS);
}

int main(int argc, char **argv)
{
    char line[400];
    FILE *in = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!in) {
        fprintf(stderr, "usage: constants ng_dpi.sv.in\n");
        return 2;
    }
    while (fgets(line, sizeof line, in))
        if (strcmp(line, "@CONSTANTS@\n") == 0)
            constants();
        else
            fputs(line, stdout);
    fclose(in);
    return 0;
}
