/* SPDX-License-Identifier: Apache-2.0 */
#include "ngc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int usage(FILE *out)
{
    (void)fputs("usage: ng-check [--seed N] [--rounds N] [--isa NAME,..] [--list] [-v] [-x] "
                "[FILTER]\n"
                "Compare every kernel with the reference. FILTER is a part of a case's name\n"
                "(kernel/profile/rule/a/b, or kernel/format/store). NG_ISA does what --isa "
                "does; -x stops at the first\n"
                "failure; -v prints each case, and the steps of an element that differs.\n",
                out);
    return out == stderr ? 2 : 0;
}

static bool number(const char *text, uint64_t *value)
{
    char *end;
    if (!text || text[0] < '0' || text[0] > '9')
        return false;
    *value = strtoull(text, &end, 0);
    return *end == '\0';
}

int main(int argc, char **argv)
{
    struct ngc run = { .seed = 1, .rounds = 8, .isas = getenv("NG_ISA") };
    for (int i = 1; i < argc; i++) {
        uint64_t n;
        if (strcmp(argv[i], "--seed") == 0 && number(argv[i + 1], &n)) {
            run.seed = n;
            i++;
        } else if (strcmp(argv[i], "--rounds") == 0 && number(argv[i + 1], &n) && n >= 1 &&
                   n <= UINT32_MAX) {
            run.rounds = (uint32_t)n;
            i++;
        } else if (strcmp(argv[i], "--isa") == 0 && argv[i + 1]) {
            run.isas = argv[++i];
        } else if (strcmp(argv[i], "--list") == 0) {
            run.list = true;
        } else if (strcmp(argv[i], "-v") == 0) {
            run.verbose = true;
        } else if (strcmp(argv[i], "-x") == 0) {
            run.stop_at_first = true;
        } else if (strcmp(argv[i], "--help") == 0) {
            return usage(stdout);
        } else if (argv[i][0] != '-' && !run.filter) {
            run.filter = argv[i];
        } else {
            return usage(stderr);
        }
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    ngc_check_gemm(&run);
    ngc_check_write(&run);
    ngc_check_cast(&run);
    ngc_check_sparse(&run);
    ngc_check_elementary(&run);
    ngc_check_attention(&run);
    ngc_check_moe(&run);
    ngc_check_mlp(&run);
    ngc_check_calls(&run);
    ngc_check_large(&run);
    if (run.list)
        return 0;
    if (run.never)
        printf("never accepted: %u cases%s\n", run.never,
               run.verbose ? "" : " (-v lists them)");
    printf("ng-check: %u cases, %llu rounds, %u failed, %u skipped\n", run.cases,
           (unsigned long long)run.rounds_run, run.failed, run.skipped);
    if (run.filter && !run.cases) {
        (void)fprintf(stderr, "ng-check: no case has '%s' in its name\n", run.filter);
        return 2;
    }
    return run.failed || run.idle_kernel ? 1 : 0;
}
