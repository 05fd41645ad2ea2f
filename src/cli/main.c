/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge: the command line tool over libnarrowgauge. It holds no numerics. docs/cli.md. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

static int cmd_version(int argc, char **argv)
{
    static const struct option long_options[] = { CLI_OPTIONS, { 0 } };
    struct cli cli = { .threads = 1 };
    int code;
    if (!cli_options(&cli, argc, argv,
                     &(struct cli_options){ CLI_SHORT, long_options,
                                            "usage: ngauge version [--json]\n", NULL, NULL },
                     &code))
        return code;
    code = cli_words("version", argv + optind, 0, 0, NULL);
    if (code)
        return code;
    if (cli.json) {
        json_t *isas = json_array();
        for (uint32_t bit = 1; bit; bit <<= 1)
            if (ng_isa_available() & bit && ng_isa_name(bit))
                json_array_append_new(isas, json_string(ng_isa_name(bit)));
        return cli_print_json(json_pack("{s:s,s:s,s:o}", "version", NG_CLI_VERSION, "library",
                                        ng_version(), "isas", isas));
    }
    printf("ngauge %s (library %s), ISAs:", NG_CLI_VERSION, ng_version());
    for (uint32_t bit = 1; bit; bit <<= 1)
        if (ng_isa_available() & bit && ng_isa_name(bit))
            printf(" %s", ng_isa_name(bit));
    printf("\n");
    return EXIT_EQUAL;
}

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} commands[] = {
    { "verify", cmd_verify, "compare a chip's dump with the oracle, or two dumps; explain" },
    { "run", cmd_run, "compute: a multiply, a conversion, attention, experts, a layer" },
    { "convert", cmd_convert, "convert a tensor file to another format" },
    { "quantize", cmd_quantize, "elements and block scales of a tensor; its transpose's too" },
    { "dequantize", cmd_dequantize, "the values of elements and block scales" },
    { "sparsify", cmd_sparsify, "prune, compress, expand or check an M:N sparse tensor" },
    { "function", cmd_function, "exp, log, tanh, ... of a tensor, or of one number" },
    { "attention", cmd_attention, "attention by a schedule: run, verify and explain, show" },
    { "collective", cmd_collective,
      "reductions over ranks: run, verify and explain; in which order a library adds" },
    { "info", cmd_info, "tables of codes; differences between look-alike formats" },
    { "profile", cmd_profile, "list, show, diff and check device profiles" },
    { "probe", cmd_probe, "ask an unknown unit how it multiplies; read its answer" },
    { "example", cmd_example, "write an example dump, with a fault if asked" },
    { "selftest", cmd_selftest, "digests of this build against built-in values (10 s)" },
    { "sweep", cmd_sweep, "all 2^32 FP32 inputs to a format, against published digests" },
    { "kernels", cmd_kernels, "the kernels of this build; which takes a case, and why" },
    { "bench", cmd_bench, "how fast this machine multiplies; checked against the reference" },
    { "route", cmd_route,
      "experts and weights of router logits; a dump's, and what explains it" },
    { "rng", cmd_rng, "the words of a random source" },
    { "version", cmd_version, "versions and ISAs" },
};

static void usage(FILE *out)
{
    fprintf(out, "usage: ngauge COMMAND [OPTIONS] ...\n\n"
                 "Bit-exact numerics of low-precision AI accelerators.\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].about);
    fprintf(out,
            "\nOptions of every command:\n"
            "  --json            a machine's report on stdout instead of text\n"
            "  --threads N       worker threads (default 1, 0: one per CPU); changes no bit\n"
            "  --isa LIST        which kernels may run: ref,avx2,avx512,avx512bf16,amxbf16;\n"
            "                    changes no bit\n"
            "  --seed N          of whatever is drawn at random\n"
            "  --max-report N    differing elements to print (default 5)\n"
            "  -q, -v, --help\n\n"
            "Exit codes: 0 done or equal, 1 differs, 2 usage, 3 bad file, 4 refused by the\n"
            "library (shape, format, profile), 5 out of memory or a bug.\n"
            "ngauge COMMAND --help says more.\n");
}

/* Commands put their arguments into JSON, which holds no other text. */
static int check_arguments(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        json_t *text = json_string(argv[i]);
        if (!text)
            return cli_fail(EXIT_USAGE,
                            "argument %d is not valid UTF-8; file names and options must be",
                            i);
        json_decref(text);
    }
    return EXIT_EQUAL;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    if (check_arguments(argc, argv))
        return EXIT_USAGE;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        usage(stdout);
        return EXIT_EQUAL;
    }
    if (strcmp(argv[1], "--version") == 0)
        return cmd_version(1, (char *[]){ (char *)"version", NULL });
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return cli_fail(EXIT_USAGE, "'%s' is no command; see ngauge --help", argv[1]);
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a file too large for ulimit -f is then an error of writing */
    const int code = run(argc, argv);
    if (fflush(stdout) || ferror(stdout))
        return cli_fail(EXIT_FILE, "cannot write to standard output");
    return code;
}
