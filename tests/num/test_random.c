/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random sources (docs/numerics.md, 7 and 11.7): known answers; jumps against steps; kernels
 * against the reference over ranges, tails, columns and lanes; statistics with fixed seeds.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/dispatch.h"
#include "../../src/num/random.h"
#include "ng/random.h"
#include "report.h"

static unsigned checks, failures;

static bool check_at(int line, bool ok, const char *what)
{
    checks++;
    if (!ok) {
        failures++;
        printf("FAIL test_random.c:%d: %s\n", line, what);
    }
    return ok;
}
#define CHECK(condition) check_at(__LINE__, condition, #condition)

/* ---- Known answers. ---- */

/* Random123 (D. E. Shaw Research), tests/kat_vectors, the three lines "philox4x32 10". */
static void test_philox_known(void)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } known[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8 } },
        { { 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF },
          { 0xFFFFFFFF, 0xFFFFFFFF },
          { 0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD } },
        { { 0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344 },
          { 0xA4093822, 0x299F31D0 },
          { 0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1 } },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t got[4];
        ng_num_philox(known[i].counter, known[i].key, got);
        CHECK(memcmp(got, known[i].want, sizeof got) == 0);
    }
}

/*
 * Marsaglia's own seeds (his xorwow(), with d = 6615241). The first nine words are also those
 * that D's standard library holds its generator of 192 bits to (Phobos, std.random, unittest);
 * the states further on come from powers of the 160 x 160 matrix of a step, in Python.
 */
static const struct ng_xorwow marsaglia = { { 123456789, 362436069, 521288629, 88675123,
                                              5783321, 6615241 } };

static void test_xorwow_known(void)
{
    static const uint32_t words[] = { 246875399,  3690007200, 1264581005,
                                      3906711041, 1866187943, 2481925219,
                                      2464530826, 1604040631, 3653403911 };
    static const struct {
        uint64_t n;
        struct ng_xorwow want;
    } known[] = {
        { 1, { { 0x159A55E5, 0x1F123BB5, 0x5491333, 0x583F19, 0xE4C8C79, 0x6A788E } } },
        { 159, { { 0x7EBCE3A1, 0xF0D4C6ED, 0x555DE145, 0x52E27B58, 0xE65C7E9, 0x3D44424 } } },
        { 160, { { 0xF0D4C6ED, 0x555DE145, 0x52E27B58, 0xE65C7E9, 0x4B0DD4A2, 0x3D9CBE9 } } },
        { 1000,
          { { 0x5EDC3231, 0x3CC2AB83, 0xDBB5B8EF, 0x441D5AB0, 0x2B015A0E, 0x15FF4A51 } } },
        { 0x100000005,
          { { 0x59A33B75, 0x3F2AE1DA, 0xE313067F, 0x856CAA76, 0x21B7C206, 0x8097A2 } } },
        { 0xFFFFFFFFFF,
          { { 0x433BD173, 0x2DDF7278, 0x3408E599, 0xBF86CB0C, 0xADC37C8A, 0x5F6904 } } },
        { 0x123456789ABCDEF,
          { { 0x61BAA65A, 0x669E0B13, 0xDD6FAE2E, 0xB788BB8A, 0x54F59AC2, 0x90DE72B4 } } },
        { 0x4000000000003039,
          { { 0x2777F135, 0x33282421, 0x892C1BE1, 0x5B67D15A, 0x6851F67E, 0xB151BA6 } } },
    };
    struct ng_xorwow s = marsaglia;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        CHECK(ng_num_xorwow_next(&s) == words[i]);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        s = marsaglia;
        ng_num_xorwow_jump(&s, known[i].n);
        CHECK(memcmp(&s, &known[i].want, sizeof s) == 0);
    }
}

/* x^32 + x^22 + x^2 + x + 1, state 0xACE1: a Python model, shift by shift, then by the powers
 * of its 32 x 32 matrix. */
static void test_lfsr_known(void)
{
    static const uint32_t poly = 0x80200003, state = 0xACE1,
                          words[] = { 0xE4CFDF41, 0xE0E11F53, 0x57F59106, 0x606442CC };
    static const struct {
        uint64_t n;
        uint32_t want;
    } known[] = { { 1, 0xE4CFDF41 },
                  { 0x100000005, 0xAD68A2E5 },
                  { 0x123456789ABCDEF, 0x70FEE5F7 },
                  { 0x4000000000003039, 0xC4B5DA4B } };
    uint32_t s = state;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        s = ng_num_lfsr_shift(s, poly, 32);
        CHECK(s == words[i]);
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        CHECK(ng_num_lfsr_jump(state, poly, 32, known[i].n) == known[i].want);
}

/* Every step up to 1000, then jumps that end where two others do. */
static void test_jumps(void)
{
    struct ng_xorwow stepped = marsaglia;
    uint32_t lfsr = 0x12345;
    for (uint64_t n = 0; n <= 1000; n++) {
        struct ng_xorwow s = marsaglia;
        ng_num_xorwow_jump(&s, n);
        CHECK(memcmp(&s, &stepped, sizeof s) == 0);
        CHECK(ng_num_lfsr_jump(0x12345, 0xB4000001, 7, n) == lfsr);
        (void)ng_num_xorwow_next(&stepped);
        lfsr = ng_num_lfsr_shift(lfsr, 0xB4000001, 7);
    }
    uint64_t seed = 5;
    for (int i = 0; i < 200; i++) {
        const uint64_t a = report_random(&seed) >> (1 + i % 40),
                       b = report_random(&seed) >> (1 + i % 50);
        struct ng_xorwow once = marsaglia, twice = marsaglia;
        ng_num_xorwow_jump(&once, a + b);
        ng_num_xorwow_jump(&twice, a);
        ng_num_xorwow_jump(&twice, b);
        CHECK(memcmp(&once, &twice, sizeof once) == 0);
        const uint32_t first = ng_num_lfsr_jump(1, 0x80200003, 5, a);
        CHECK(ng_num_lfsr_jump(first, 0x80200003, 5, b) ==
              ng_num_lfsr_jump(1, 0x80200003, 5, a + b));
    }
}

static void test_uniform(void)
{
    for (uint64_t w = 0; w < UINT64_C(1) << 32; w += 509) {
        const uint32_t word = (uint32_t)w, one = word >> 9 | 0x3F800000u,
                       pattern = ng_num_uniform(word);
        float x, got;
        memcpy(&x, &one, sizeof x);
        memcpy(&got, &pattern, sizeof got);
        x -= 1.0F;
        if (memcmp(&x, &got, sizeof x) != 0 && !CHECK(false))
            return;
    }
    CHECK(ng_num_uniform(0x1FF) == 0 && ng_num_uniform(UINT32_MAX) == 0x3F7FFFFE);
}

/* ---- Kernels against the reference. ---- */

enum {
    MOST = 6000,
    STATES = 512
};
static uint32_t state_words[STATES * 6];

static ng_random draw_source(ng_random_kind kind, uint64_t *seed)
{
    static const uint32_t lanes[] = { 1, 2, 3, 7, 8, 13, 16, 33, 0 };
    static const uint64_t firsts[] = { 0,         1,          5,
                                       12345,     4294967290, UINT64_C(0x123456789ABC),
                                       1ULL << 50 };
    ng_random r = { .kind = kind, .first = firsts[report_random(seed) % 7] };
    if (kind == NG_RANDOM_PHILOX) {
        r.key[0] = (uint32_t)report_random(seed);
        r.key[1] = (uint32_t)report_random(seed);
        return r;
    }
    r.lanes = lanes[report_random(seed) % 9];
    r.state = state_words;
    if (kind == NG_RANDOM_XORWOW)
        r.states = report_random(seed) % 2 ? 4 : (uint32_t)(report_random(seed) % 2);
    r.poly = report_random(seed) % 4 ? (uint32_t)report_random(seed) | 1u << 31
                                     : (uint32_t)(1 + report_random(seed) % 0xFFFF);
    r.steps = (uint32_t)(report_random(seed) % 33);
    if (kind == NG_RANDOM_XORWOW)
        r.steps = r.poly = 0;
    return r;
}

static int64_t draw_columns(uint64_t *seed)
{
    const uint64_t x = report_random(seed);
    switch (x % 4) {
    case 0: return 1 + (int64_t)(x >> 8) % 20;
    case 1: return 1 + (int64_t)(x >> 8) % 300;
    case 2: return 64 * (1 + (int64_t)(x >> 8) % 8);
    default: return 1 + (int64_t)(x >> 8) % 10000;
    }
}

/* One word apiece from the index alone, against the bulk forms, in a place with margins. */
static void compare(const struct ng_random_kernel *k, const ng_random *r, int64_t columns,
                    int64_t first, int64_t count)
{
    static uint32_t got[MOST + 16], want[MOST];
    memset(got, 0xA5, sizeof got);
    ng_num_random_words(r, columns, first, count, want);
    k->words(r, columns, r->first + (uint64_t)first, count, got + 8);
    bool same = memcmp(got + 8, want, (size_t)count * 4) == 0;
    for (int i = 0; i < 8; i++)
        same = same && got[i] == 0xA5A5A5A5 && got[8 + count + i] == 0xA5A5A5A5;
    if (!CHECK(same))
        printf("  %s columns %lld first %lld + %llu count %lld lanes %u states %u\n", k->name,
               (long long)columns, (long long)first, (unsigned long long)r->first,
               (long long)count, r->lanes, r->states);
}

/* As many stretches of rows as a kernel follows, a few words at a time, into the lane's next
 * row where they end. */
static void follow(const struct ng_random_kernel *k, const ng_random *r, int64_t columns,
                   uint64_t *seed)
{
    static uint32_t got[16 * 512], want[512];
    const int64_t states = r->kind == NG_RANDOM_XORWOW && r->states ? r->states : 1,
                  lanes = r->lanes ? r->lanes : 128, wide = k->strands / states,
                  square = k->strands * states, apart = 512;
    const uint64_t row = r->first / (uint64_t)columns;
    uint64_t first[NG_RANDOM_STRANDS];
    int64_t done[NG_RANDOM_STRANDS]; /* place of a stretch's next word */
    ng_random from = *r;
    from.first = 0;
    for (int64_t i = 0; i < wide; i++) {
        const uint64_t column =
            report_random(seed) % (uint64_t)columns / (uint64_t)states * (uint64_t)states;
        first[i] = (row + report_random(seed) % 40) * (uint64_t)columns + column;
        done[i] = (int64_t)first[i];
    }
    struct ng_random_strands g;
    k->place(r, columns, first, &g);
    for (int piece = 0; piece < 4; piece++) {
        const int64_t n = states + (int64_t)(report_random(seed) % (uint64_t)(apart - square)) /
                                       states * states;
        k->next(r, &g, n, got, apart);
        bool same = true;
        for (int64_t i = 0; i < wide; i++) {
            int64_t had = 0;
            while (had < n) {
                const int64_t left = columns - done[i] % columns,
                              m = left < n - had ? left : n - had;
                ng_num_random_words(&from, columns, done[i], m, want + had);
                had += m;
                done[i] += m;
                if (done[i] % columns == 0)
                    done[i] += (lanes - 1) * columns;
            }
            same = same && memcmp(got + i * apart, want, (size_t)n * 4) == 0;
        }
        if (!CHECK(same))
            printf("  %s followed: columns %lld first %llu lanes %u states %u\n", k->name,
                   (long long)columns, (unsigned long long)r->first, r->lanes, r->states);
    }
}

static void test_kernel(const struct ng_random_kernel *k, int rounds)
{
    uint64_t seed = 77;
    for (int i = 0; i < rounds; i++) {
        const ng_random r = draw_source(k->kind, &seed);
        const int64_t columns = draw_columns(&seed),
                      most = report_random(&seed) % 2 ? MOST : 200,
                      first = (int64_t)(report_random(&seed) % 3000),
                      count = 1 + (int64_t)(report_random(&seed) % (uint64_t)most);
        compare(k, &r, columns, first, count);
        if (k->next && i % 4 == 0) /* rows are whole steps, so that one can follow the other */
            follow(k, &r, (columns + 3) / 4 * 4, &seed);
    }
    for (int64_t count = 1; count <= 150; count++) { /* every tail, from every place */
        ng_random r = { .kind = k->kind, .state = state_words, .poly = 0x80200003 };
        compare(k, &r, 37, count % 41, count);
        r.lanes = 5;
        r.states = k->kind == NG_RANDOM_XORWOW ? 4 : 0;
        compare(k, &r, 10, count % 41, count);
    }
    printf("  %s\n", k->name);
}

static void test_kernels(int rounds)
{
    const uint32_t here = ng_isa_available();
    int kernels = 0;
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        if (!isa.kernels->random)
            continue;
        if (!(isa.bit & here)) {
            printf("skipped: %s is not on this CPU\n", isa.name);
            continue;
        }
        for (const struct ng_random_kernel *const *k = isa.kernels->random; *k; k++, kernels++)
            test_kernel(*k, rounds);
    }
    printf("kernels: %d\n", kernels);
}

/* The reference's bulk form against its single words. */
static void test_bulk(void)
{
    static uint32_t got[MOST];
    uint64_t seed = 3;
    for (int i = 0; i < 60; i++) {
        const ng_random r = draw_source((ng_random_kind)(NG_RANDOM_XORWOW + i % 3), &seed);
        const int64_t columns = draw_columns(&seed),
                      first = (int64_t)(report_random(&seed) % 3000),
                      count = 1 + (int64_t)(report_random(&seed) % 300);
        bool same = true;
        ng_num_random_words(&r, columns, first, count, got);
        for (int64_t j = 0; j < count; j++)
            same = same && got[j] == ng_num_random_word(&r, columns, first + j);
        CHECK(same);
    }
}

/* The definition, walked: rows in order, every lane's states a step a column. */
static void test_rows(void)
{
    for (uint32_t states = 1; states <= 4; states += 3)
        for (int64_t columns = 1; columns < 12; columns++) {
            struct ng_xorwow s[3 * 4];
            memcpy(s, state_words, 3 * states * sizeof s[0]);
            const ng_random r = {
                .kind = NG_RANDOM_XORWOW, .state = state_words, .lanes = 3, .states = states
            };
            bool same = true;
            for (int64_t row = 0; row < 20; row++)
                for (int64_t c = 0; c < columns; c++)
                    same = same && ng_num_random_word(&r, columns, row * columns + c) ==
                                       ng_num_xorwow_next(&s[row % 3 * states + c % states]);
            CHECK(same);
        }
}

/* ---- Statistics: the seeds are fixed, so each is one number for ever. ---- */

/*
 * Chi-square over 2^16 words. Level 0.001 on each side: with 255 degrees of freedom the
 * quantiles 0.0005 and 0.9995 are 187.1 and 336.1 (Wilson and Hilferty's approximation).
 */
static void chi_square(const char *what, const uint32_t *count, double each)
{
    double x = 0;
    for (int i = 0; i < 256; i++)
        x += (count[i] - each) * (count[i] - each) / each;
    if (!CHECK(x > 187.1 && x < 336.1))
        printf("  %s: %.1f\n", what, x);
}

static void test_statistics(const ng_random *r, const char *name)
{
    enum {
        N = 1 << 16
    };
    static uint32_t w[N];
    char what[80];
    ng_num_random_words(r, 512, 0, N, w);
    for (int byte = 0; byte < 4; byte++) {
        uint32_t count[256] = { 0 };
        for (int i = 0; i < N; i++)
            count[w[i] >> (8 * byte) & 255]++;
        (void)snprintf(what, sizeof what, "%s: byte %d", name, byte);
        chi_square(what, count, N / 256.0);
    }
    /* serial: the top four bits of neighbours, in a row and down a column */
    for (int apart = 1; apart <= 512; apart += 511) {
        uint32_t count[256] = { 0 };
        for (int i = 0; i + apart < N; i++)
            count[(w[i] >> 28) << 4 | w[i + apart] >> 28]++;
        (void)snprintf(what, sizeof what, "%s: pairs %d apart", name, apart);
        chi_square(what, count, (N - apart) / 256.0);
    }
    /* every bit is set half the time: 5 deviations of 128 */
    for (int bit = 0; bit < 32; bit++) {
        int set = 0;
        for (int i = 0; i < N; i++)
            set += (int)(w[i] >> bit & 1);
        CHECK(abs(set - N / 2) < 5 * 128);
    }
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 400;
    static uint32_t seeded[STATES * 6];
    CHECK(ng_random_states(NG_RANDOM_XORWOW, 99, 128, 4, state_words) == NG_OK);
    CHECK(ng_random_states(NG_RANDOM_XORWOW, 99, 0, 4, seeded) == NG_OK);
    CHECK(memcmp(seeded, state_words, sizeof seeded) == 0);
    test_philox_known();
    test_xorwow_known();
    test_lfsr_known();
    test_jumps();
    test_uniform();
    test_bulk();
    test_rows();
    test_kernels(rounds);
    test_statistics(&(ng_random){ .kind = NG_RANDOM_PHILOX, .key = { 1, 2 } }, "philox");
    test_statistics(&(ng_random){ .kind = NG_RANDOM_XORWOW, .state = state_words }, "xorwow");
    test_statistics(&(ng_random){ .kind = NG_RANDOM_XORWOW, .state = state_words, .states = 4 },
                    "xorwow, four states");
    test_statistics(
        &(ng_random){ .kind = NG_RANDOM_LFSR32, .state = state_words, .poly = 0x80200003 },
        "lfsr32");
    printf("random: %u checks, %u failed\n", checks, failures);
    return failures ? 1 : 0;
}
