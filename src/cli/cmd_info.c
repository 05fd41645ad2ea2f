/* SPDX-License-Identifier: Apache-2.0 */
/* ngauge info: what formats are, code by code, and where two look-alikes differ. */
#include <string.h>

#include "cli.h"

static const char help[] =
    "usage: ngauge info                     the formats\n"
    "       ngauge info FORMAT              one format; all its codes if it has at most 8 "
    "bits\n"
    "       ngauge info FORMAT --vs OTHER   the codes that mean different things\n"
    "and the options of every command: ngauge --help\n";

static const char *const kind_text[] = { "Inf and NaN as IEEE 754",
                                         "no Inf; NaN is all ones",
                                         "no Inf, no -0; NaN is the code of -0",
                                         "no Inf, no NaN",
                                         "sign ignored; NaN is all ones",
                                         "powers of two; NaN is all ones",
                                         "two's complement" };

/* "inf", "nan", or the value in few digits. */
static struct code_text meaning(ng_format f, uint32_t code)
{
    struct code_text t = code_text(f, code);
    char *open = strchr(t.text, '('), *close = strchr(t.text, ')');
    if (open && close) {
        *close = '\0';
        memmove(t.text, open + 1, strlen(open));
    }
    return t;
}

static ng_value value_of(ng_format f, uint32_t code)
{
    ng_value v = { 0 };
    (void)ng_decode(f, code, &v);
    return v;
}

static bool same(const ng_value *a, const ng_value *b)
{
    if (a->cls != b->cls)
        return false;
    if (a->cls == NG_CLASS_NAN)
        return true;
    if (a->neg != b->neg || a->cls == NG_CLASS_INF)
        return a->neg == b->neg;
    if (!a->sig || !b->sig)
        return !a->sig == !b->sig;
    const int za = __builtin_clzll(a->sig), zb = __builtin_clzll(b->sig);
    return a->sig << za == b->sig << zb && a->exp - za == b->exp - zb;
}

static uint32_t min_subnormal(const ng_format_spec *f)
{
    return f->kind == NG_KIND_SCALE ? 0 : 1u << f->low_bits;
}

static json_t *format_json(const ng_format_spec *f)
{
    return json_pack("{s:s,s:i,s:i,s:i,s:i,s:s,s:s,s:s}", "format", f->text, "bits",
                     (int)f->bits, "exponent_bits", (int)f->exp_bits, "mantissa_bits",
                     (int)f->man_bits, "bias", (int)f->bias, "max",
                     meaning(f->format, f->max_code).text, "min",
                     meaning(f->format, min_subnormal(f)).text, "specials", kind_text[f->kind]);
}

static int list_formats(const struct cli *cli)
{
    json_t *list = cli->json ? json_array() : NULL;
    if (!list)
        printf("%-9s %4s %5s %4s  %-12s %-12s %s\n", "format", "bits", "S/E/M", "bias", "max",
               "least > 0", "specials");
    for (size_t i = 0; ng_format_at(i); i++) {
        const ng_format_spec *f = ng_format_at(i);
        if (list) {
            json_array_append_new(list, format_json(f));
            continue;
        }
        printf("%-9s %4u %u/%u/%-2u %4d  %-12s %-12s %s\n", f->text, f->bits,
               f->bits - f->exp_bits - f->man_bits - f->low_bits, f->exp_bits, f->man_bits,
               (int)f->bias, meaning(f->format, f->max_code).text,
               meaning(f->format, min_subnormal(f)).text, kind_text[f->kind]);
    }
    return list ? cli_print_json(list) : EXIT_EQUAL;
}

static int show_format(const struct cli *cli, const ng_format_spec *f)
{
    json_t *j = cli->json ? format_json(f) : NULL, *codes = json_array();
    if (!j)
        printf("%s: %u bits: %u sign, %u exponent, %u mantissa, bias %d; %s\n"
               "max %s, least above zero %s\n",
               f->text, f->bits, f->bits - f->exp_bits - f->man_bits - f->low_bits, f->exp_bits,
               f->man_bits, (int)f->bias, kind_text[f->kind],
               code_text(f->format, f->max_code).text,
               code_text(f->format, min_subnormal(f)).text);
    for (uint32_t c = 0; f->bits <= 8 && c < 1u << f->bits; c++) {
        if (j)
            json_array_append_new(codes, json_string(meaning(f->format, c).text));
        else
            printf("0x%02x %-12s%s", c, meaning(f->format, c).text, c % 4 == 3 ? "\n" : " ");
    }
    if (!j) {
        json_decref(codes);
        return EXIT_EQUAL;
    }
    json_object_set_new(j, "codes", codes);
    return cli_print_json(j);
}

static int show_difference(const struct cli *cli, const ng_format_spec *f,
                           const ng_format_spec *g)
{
    if (f->bits != g->bits || f->bits > 16)
        return cli_fail(EXIT_USAGE, "%s has %u bits and %s %u; wanted: the same, at most 16",
                        f->text, f->bits, g->text, g->bits);
    json_t *list = cli->json ? json_array() : NULL;
    const uint32_t n = 1u << f->bits;
    uint32_t differ = 0, shown = 0;
    if (!list)
        printf("code   %-16s %s\n", f->text, g->text);
    for (uint32_t c = 0; c < n; c++) {
        const ng_value a = value_of(f->format, c), b = value_of(g->format, c);
        if (same(&a, &b))
            continue;
        differ++;
        if (list)
            json_array_append_new(list, json_pack("{s:i,s:s,s:s}", "code", (int)c, f->text,
                                                  meaning(f->format, c).text, g->text,
                                                  meaning(g->format, c).text));
        else if (shown++ < 64 || cli->verbose)
            printf("0x%02x   %-16s %s\n", c, meaning(f->format, c).text,
                   meaning(g->format, c).text);
    }
    if (list)
        return cli_print_json(json_pack("{s:s,s:s,s:i,s:i,s:o}", "format", f->text, "vs",
                                        g->text, "codes", (int)n, "differ", (int)differ, "list",
                                        list));
    if (shown > 64 && !cli->verbose)
        printf("... (-v for all)\n");
    printf("%u of %u codes differ\n", differ, n);
    return EXIT_EQUAL;
}

int cmd_info(int argc, char **argv)
{
    enum {
        OPT_VS = OPT_OWN
    };
    static const struct option long_options[] = { CLI_OPTIONS,
                                                  { "vs", required_argument, NULL, OPT_VS },
                                                  { 0 } };
    struct cli cli = { .threads = 1 };
    const char *vs = NULL;
    int code;
    if (!cli_options(&cli, argc, argv,
                     &(struct cli_options){ CLI_SHORT, long_options, help, cli_take_text, &vs },
                     &code))
        return code;
    if (argc == optind && !vs)
        return list_formats(&cli);
    code = cli_words("info", argv + optind, 1, 1, vs ? "one format beside --vs" : "one format");
    if (code)
        return code;
    const ng_format_spec *f = ng_format_info(ng_format_find(argv[optind]));
    const ng_format_spec *g = vs ? ng_format_info(ng_format_find(vs)) : NULL;
    if (!f || (vs && !g))
        return cli_fail(EXIT_USAGE, "'%s' is no format; ngauge info lists them",
                        f ? vs : argv[optind]);
    return vs ? show_difference(&cli, f, g) : show_format(&cli, f);
}
