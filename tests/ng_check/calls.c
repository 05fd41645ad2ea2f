/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include <stdio.h>
#include <string.h>

enum {
    ROOM = 2 << 20,
    TRIES = 20 /* of a round that ends in NG_OK */
};

static struct {
    struct ngc_mem in[CALLS_INPUTS], out[CALLS_SIDES][CALLS_OUTPUTS];
    bool open;
} mem;

static bool open_memory(void)
{
    bool ok = true;
    for (int i = 0; i < CALLS_INPUTS && ok && !mem.open; i++)
        ok = ngc_mem_open(&mem.in[i], ROOM);
    for (int i = 0; i < CALLS_OUTPUTS && ok && !mem.open; i++)
        ok = ngc_mem_open(&mem.out[0][i], ROOM) && ngc_mem_open(&mem.out[1][i], ROOM);
    mem.open = ok;
    return ok;
}

/* ---- Operands. ---- */

bool calls_values(struct calls *c, ng_format f, uint32_t rank, const int64_t *dim, int top,
                  ng_tensor *t)
{
    struct ngc_rng *rng = &c->rng;
    const ng_format_spec *s = ng_format_info(f);
    if (c->inputs == CALLS_INPUTS)
        return false;
    struct ngc_mem *m = &mem.in[c->inputs];
    if (!ngc_lay(rng, m, NULL, f, rank, dim, t))
        return false;
    const int least = ngc_exp_least(s), most = ngc_exp_most(s);
    struct ngc_mood mood = { .spec = s,
                             .low = top - ngc_between(rng, 0, 6),
                             .high = top,
                             .zeros = ngc_one_in(rng, 3) ? 3 : 0,
                             .special = ngc_one_in(rng, 12) ? 300 : 0,
                             .any_code = ngc_one_in(rng, 12) };
    mood.high = top > most ? most : top < least ? least : top;
    mood.low = mood.low > mood.high ? mood.high : mood.low < least ? least : mood.low;
    const int64_t n = (int64_t)(m->bytes * 8 / s->store_bits);
    for (int64_t i = 0; i < n; i++)
        ngc_store(m->data, s->store_bits, i, ngc_code(rng, &mood));
    calls_filled(c);
    return true;
}

void *calls_bytes(struct calls *c, size_t bytes, size_t align)
{
    return c->inputs < CALLS_INPUTS &&
                   ngc_mem_place(&mem.in[c->inputs], bytes, align, !ngc_one_in(&c->rng, 4))
               ? mem.in[c->inputs].data
               : NULL;
}

void calls_filled(struct calls *c)
{
    ngc_mem_keep(&mem.in[c->inputs++]);
}

bool calls_scales(struct calls *c, ng_format f, uint32_t block, uint32_t axis, ng_tensor *t)
{
    struct ngc_rng *rng = &c->rng;
    struct ngc_mem *m = &mem.in[c->inputs];
    if (c->inputs == CALLS_INPUTS || !ngc_lay_scales(rng, m, f, block, axis, t))
        return false;
    const uint32_t least = f == NG_E8M0 ? 118 : 0x28, few = f == NG_E8M0 ? 12 : 0x20;
    const bool wild = ngc_one_in(rng, 12);
    for (size_t i = 0; i < m->bytes; i++)
        m->data[i] = (uint8_t)(wild ? ngc_below(rng, 256) : least + ngc_below(rng, few));
    calls_filled(c);
    return true;
}

/* ---- Outputs. ---- */

bool calls_output(struct calls *c, ng_format f, uint32_t rank, const int64_t *dim, ng_tensor *t)
{
    if (c->outputs == CALLS_OUTPUTS ||
        !ngc_lay(&c->rng, &mem.out[0][c->outputs], &mem.out[1][c->outputs], f, rank, dim, t))
        return false;
    c->outputs++;
    return true;
}

static int number_of(const struct calls *c, const ng_tensor *t)
{
    const unsigned char *p = t->data;
    for (int i = 0; i < c->outputs; i++)
        if (p >= mem.out[0][i].room && p < mem.out[0][i].room + mem.out[0][i].capacity)
            return i;
    return -1;
}

ng_tensor calls_on(const struct calls *c, const ng_tensor *t)
{
    const int i = number_of(c, t);
    ng_tensor x = *t;
    x.data = mem.out[c->side][i].data + ((unsigned char *)t->data - mem.out[0][i].data);
    return x;
}

bool calls_output_bytes(struct calls *c, size_t bytes, size_t align, int *number)
{
    *number = c->outputs;
    if (c->outputs == CALLS_OUTPUTS ||
        !ngc_mem_place(&mem.out[0][c->outputs], bytes, align, true) ||
        !ngc_mem_place(&mem.out[1][c->outputs], bytes, align, true))
        return false;
    c->outputs++;
    return true;
}

void *calls_place(const struct calls *c, int number)
{
    return mem.out[c->side][number].data;
}

void calls_begin(struct calls *c, const ng_tensor *t)
{
    const int i = number_of(c, t);
    for (size_t at = 0; at < mem.out[0][i].bytes; at++)
        mem.out[0][i].data[at] = mem.out[1][i].data[at] = (uint8_t)ngc_below(&c->rng, 0x7C);
}

/* ---- Formats. ---- */

ng_format calls_one(struct calls *c, const ng_format *f, uint32_t n)
{
    return f[ngc_below(&c->rng, n)];
}

ng_format calls_wide(struct calls *c, bool none)
{
    static const ng_format f[] = { NG_BF16, NG_F32, NG_F16, NG_FORMAT_NONE };
    return calls_one(c, f, none ? 4 : 3);
}

/* ---- Running. ---- */

struct round {
    struct calls calls; /* the first: a case knows no more */
    const struct calls_case *of;
    uint32_t isas;
    ng_status status[CALLS_SIDES];
    char text[CALLS_SIDES][500];
    const char *wrong;
};

static void run_side(void *arg)
{
    struct round *r = arg;
    const int side = r->calls.side;
    ng_ctx_config config = { .size = sizeof config, .isa_mask = NG_ISA_REF };
    if (side == CALLS_KERNELS) {
        config.isa_mask = r->isas;
        config.executor = ngc_backwards;
    }
    ng_ctx *ctx;
    if (ng_ctx_create(&config, &ctx)) {
        r->wrong = "no context";
        return;
    }
    const uint32_t saved = ngc_fp_get(), before = ngc_fp_hostile();
    ngc_fp_set(before);
    r->status[side] = r->of->run(&r->calls, ctx);
    if (ngc_fp_control(ngc_fp_get()) != ngc_fp_control(before))
        r->wrong = "the control word is another";
    ngc_fp_set(saved);
    (void)snprintf(r->text[side], sizeof r->text[side], "%s", ng_ctx_message(ctx));
    if (r->of->close)
        r->of->close(&r->calls);
    ng_ctx_destroy(ctx);
}

static const char *compare(const struct round *r)
{
    static const char *const differs[CALLS_OUTPUTS] = {
        "the first output differs", "the second output differs", "the third output differs",
        "output 3 differs",         "output 4 differs",          "output 5 differs",
        "output 6 differs",         "output 7 differs"
    };
    if (r->wrong)
        return r->wrong;
    if (r->status[0] != r->status[1] || strcmp(r->text[0], r->text[1]) != 0)
        return "another status";
    for (int i = 0; i < r->calls.outputs; i++)
        if (!ngc_mem_equal(&mem.out[0][i], &mem.out[1][i]))
            return differs[i];
    for (int i = 0; i < r->calls.inputs; i++)
        if (!ngc_mem_kept(&mem.in[i]))
            return "wrote to an operand";
    return NULL;
}

/* False: it failed. *took: the call ended in NG_OK. */
static bool run_round(const struct ngc *run, const char *name, struct round *r, uint32_t number,
                      bool *took)
{
    struct calls *c = &r->calls;
    int signal = 0;
    if (!r->of->draw(c)) /* it does not fit the memory that there is */
        return true;
    for (c->side = CALLS_SIDES - 1; c->side >= 0 && !signal; c->side--)
        signal = ngc_catch(run_side, r);
    *took = !signal && !r->status[CALLS_KERNELS];
    const char *wrong = signal ? ngc_signal_text(signal) : compare(r);
    if (!wrong)
        return true;
    printf(
        "FAIL %s: round %u: %s: \"%s\", \"%s\"\n     again: ng-check --seed %llu --rounds %u "
        "'%s'\n",
        name, number, wrong, r->text[0], r->text[1], (unsigned long long)run->seed, run->rounds,
        name);
    r->of->print();
    return false;
}

/* How many rounds ended in NG_OK. */
static uint32_t run_case(struct ngc *run, const char *name, const struct calls_case *of,
                         const struct ng_isa *isa)
{
    static struct round r;
    uint32_t taken = 0;
    for (uint32_t i = 0; taken < run->rounds && i < TRIES * run->rounds; i++) {
        bool took = false;
        r = (struct round){ .of = of,
                            /* alone, or with all that it is chosen before */
                            .isas =
                                isa->bit | (i % 2 ? ng_isa_available() & (isa->bit - 1) : 0) };
        r.calls.rng.s = ngc_hash(name, run->seed) + i * UINT64_C(0x51ED27);
        const bool ok = run_round(run, name, &r, i, &took);
        taken += took;
        if (!ok) {
            run->failed++;
            break;
        }
    }
    run->rounds_run += taken;
    if (run->verbose)
        printf("  %u rounds\n", taken);
    return taken;
}

void calls_walk(struct ngc *run, const char *group, const struct calls_case *cases, size_t n)
{
    if (!open_memory()) {
        printf("FAIL: no memory for operands\n");
        run->failed++;
        return;
    }
    for (size_t i = 0; ng_isa_at(i).name; i++) {
        const struct ng_isa isa = ng_isa_at(i);
        char name[80];
        (void)snprintf(name, sizeof name, "%s_calls/%s", group, isa.name);
        if (isa.bit == NG_ISA_REF || !ngc_begin_kernel(run, &isa, name))
            continue;
        const struct ngc_walk walk = ngc_begin_walk(run);
        for (size_t k = 0; k < n; k++) {
            (void)snprintf(name, sizeof name, "%s_calls/%s/%s", group, isa.name, cases[k].name);
            if (ngc_begin_case(run, name) && !run_case(run, name, &cases[k], &isa) &&
                run->failed == walk.failed) {
                printf("FAIL %s: no round ended in NG_OK\n", name);
                run->failed++;
            }
        }
    }
}
