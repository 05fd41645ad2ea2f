/* SPDX-License-Identifier: Apache-2.0 */
#include "ngc.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

bool ngc_isa_allowed(const char *isas, const char *name)
{
    if (!isas || !isas[0])
        return true;
    const size_t n = strlen(name);
    for (const char *p = isas; *p;) {
        const size_t len = strcspn(p, ",");
        if (len == n && memcmp(p, name, n) == 0)
            return true;
        p += len + (p[len] == ',');
    }
    return false;
}

bool ngc_begin_kernel(struct ngc *run, const struct ng_isa *isa, const char *kernel)
{
    const bool here = isa->bit & ng_isa_available();
    if (here && ngc_isa_allowed(run->isas, isa->name))
        return true;
    printf("skipped: %s: %s\n", kernel, here ? "not asked for" : "not on this CPU");
    run->skipped++;
    return false;
}

bool ngc_begin_case(struct ngc *run, const char *name)
{
    if ((run->filter && !strstr(name, run->filter)) || (run->stop_at_first && run->failed))
        return false;
    if (run->list) {
        printf("%s\n", name);
        return false;
    }
    run->cases++;
    if (run->verbose)
        printf("%s\n", name); /* before: a kernel may take the harness with it */
    return true;
}

struct ngc_walk ngc_begin_walk(const struct ngc *run)
{
    return (struct ngc_walk){ run->cases, run->failed };
}

uint32_t ngc_walked(const struct ngc *run, const struct ngc_walk *w)
{
    return run->cases - w->cases;
}

void ngc_end_walk(struct ngc *run, const struct ngc_walk *w, const char *kernel, bool took)
{
    if (took || !ngc_walked(run, w) || run->failed > w->failed || run->filter)
        return;
    printf("FAIL %s: the public call never chose it\n", kernel);
    run->idle_kernel = true;
}

/* ---- Random numbers. ---- */

/* FNV-1a of the text, started at the seed. */
uint64_t ngc_hash(const char *text, uint64_t seed)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325) ^ (seed * UINT64_C(0x9E3779B97F4A7C15));
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001B3);
    return h;
}

/* SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators". */
uint64_t ngc_next(struct ngc_rng *r)
{
    uint64_t z = (r->s += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

uint32_t ngc_below(struct ngc_rng *r, uint32_t n)
{
    return (uint32_t)((ngc_next(r) >> 32) * n >> 32);
}

int ngc_between(struct ngc_rng *r, int low, int high)
{
    return high <= low ? low : low + (int)ngc_below(r, (uint32_t)(high - low + 1));
}

bool ngc_one_in(struct ngc_rng *r, uint32_t n)
{
    return n && ngc_below(r, n) == 0;
}

/* ---- Codes. ---- */

int ngc_exp_normal(const ng_format_spec *spec)
{
    return 1 - spec->bias;
}

int ngc_exp_least(const ng_format_spec *spec)
{
    return 1 - spec->bias - (int)spec->man_bits;
}

int ngc_exp_most(const ng_format_spec *spec)
{
    return (int)(spec->max_code >> spec->low_bits >> spec->man_bits) - spec->bias;
}

static uint32_t with_sign(const ng_format_spec *spec, uint32_t mag, bool neg)
{
    if (!neg)
        return mag;
    switch (spec->kind) {
    case NG_KIND_INT: return mag ? 256u - mag : 0;
    case NG_KIND_FNUZ: return mag ? mag | 1u << (spec->bits - 1) : 0; /* no -0 */
    case NG_KIND_SCALE: return mag;
    case NG_KIND_UFN: /* a bit that nobody reads */
    case NG_KIND_IEEE:
    case NG_KIND_FN:
    case NG_KIND_FINITE: break;
    }
    return mag | 1u << (spec->bits - 1);
}

uint32_t ngc_negate(const ng_format_spec *spec, uint32_t code)
{
    switch (spec->kind) {
    case NG_KIND_INT: return code == 0x80u ? 0x7Fu : (256u - code) & 0xFFu;
    case NG_KIND_FNUZ: return code ? code ^ 1u << (spec->bits - 1) : 0;
    case NG_KIND_SCALE:
    case NG_KIND_UFN: return code;
    case NG_KIND_IEEE:
    case NG_KIND_FN:
    case NG_KIND_FINITE: break;
    }
    return code ^ 1u << (spec->bits - 1);
}

/* Mantissas biased to the ends, where rounding goes wrong first. */
static uint32_t mantissa(struct ngc_rng *r, uint32_t bits)
{
    const uint32_t all = bits ? (1u << bits) - 1u : 0, any = (uint32_t)ngc_next(r) & all;
    switch (ngc_below(r, 8)) {
    case 0: return 0;
    case 1: return all;
    case 2: return all & 1u;
    case 3: return bits ? 1u << ngc_below(r, bits) : 0;
    case 4: return any & (all ^ all >> 3); /* few bits: exact sums, ties */
    default: return any;
    }
}

/* The magnitude code of a value with floor(log2 |v|) = e, as near as the format has one. */
static uint32_t magnitude(struct ngc_rng *r, const ng_format_spec *spec, int e)
{
    const int normal = ngc_exp_normal(spec), man = (int)spec->man_bits;
    uint32_t mag = 0;
    if (e >= normal) {
        const int field = e + spec->bias, most = ngc_exp_most(spec) + spec->bias;
        mag = (uint32_t)(field < most ? field : most) << man | mantissa(r, spec->man_bits);
    } else if (e >= ngc_exp_least(spec)) {
        const uint32_t top = (uint32_t)(e - ngc_exp_least(spec));
        mag = 1u << top | mantissa(r, top);
    }
    mag <<= spec->low_bits;
    return mag < spec->max_code ? mag : spec->max_code;
}

static uint32_t special_code(struct ngc_rng *r, const ng_format_spec *spec)
{
    for (int i = 0; i < 64; i++) {
        const uint32_t code = ngc_any_code(r, spec);
        ng_value v;
        if (ng_decode(spec->format, code, &v) == NG_OK && v.cls != NG_CLASS_FINITE)
            return code;
    }
    return spec->has_nan ? spec->nan_code : 0;
}

uint32_t ngc_code(struct ngc_rng *r, const struct ngc_mood *mood)
{
    const ng_format_spec *f = mood->spec;
    const bool neg = ngc_next(r) & 1;
    if (ngc_one_in(r, mood->special))
        return special_code(r, f);
    if (ngc_one_in(r, mood->zeros))
        return with_sign(f, 0, neg);
    if (mood->any_code)
        return with_sign(
            f, (uint32_t)((uint64_t)(uint32_t)ngc_next(r) % ((uint64_t)f->max_code + 1)), neg);
    const int e = mood->ends_only ? (ngc_one_in(r, 8) ? mood->high : mood->low)
                                  : ngc_between(r, mood->low, mood->high);
    uint32_t mag = magnitude(r, f, e);
    if (f->low_bits && ngc_one_in(r, 2)) /* tf32: an FP32 word that must be rounded first */
        mag |= (uint32_t)ngc_next(r) & ((1u << f->low_bits) - 1u);
    const uint32_t code = with_sign(f, mag, neg);
    if (f->bits >= f->store_bits || !ngc_one_in(r, 6))
        return code;
    return code | ((uint32_t)ngc_next(r) << f->bits & ((1u << f->store_bits) - 1u));
}

uint32_t ngc_any_code(struct ngc_rng *r, const ng_format_spec *spec)
{
    const uint32_t any = (uint32_t)ngc_next(r);
    if (spec->kind == NG_KIND_IEEE && ngc_one_in(r, 2)) { /* exponent field all ones */
        const uint32_t field = ((1u << spec->exp_bits) - 1u) << spec->man_bits;
        const uint32_t man = ngc_one_in(r, 3) ? 0 : mantissa(r, spec->man_bits);
        /* tf32: of a NaN the low bits may be all that is not zero */
        const uint32_t low = any & ((1u << spec->low_bits) - 1u);
        return (any >> 31) << (spec->bits - 1) | (field | man) << spec->low_bits | low;
    }
    if (spec->kind == NG_KIND_FNUZ && ngc_one_in(r, 8))
        return spec->nan_code;
    if (spec->kind == NG_KIND_FN && ngc_one_in(r, 8))
        return spec->nan_code | (any & 0x80u);
    return spec->bits == 32 ? any : any & ((1u << spec->bits) - 1u);
}

void ngc_store(void *data, uint32_t store_bits, int64_t index, uint32_t code)
{
    unsigned char *p = data;
    const uint16_t half = (uint16_t)code;
    switch (store_bits) {
    case 4: {
        unsigned char *q = p + (index >> 1);
        *q = (unsigned char)((index & 1) ? (*q & 0x0Fu) | code << 4
                                         : (*q & 0xF0u) | (code & 0xFu));
        break;
    }
    case 8: p[index] = (unsigned char)code; break;
    case 16: memcpy(p + 2 * index, &half, sizeof half); break;
    default: memcpy(p + 4 * index, &code, sizeof code); break;
    }
}

uint32_t ngc_load(const void *data, uint32_t store_bits, int64_t index)
{
    const unsigned char *p = data;
    uint16_t half;
    uint32_t word;
    switch (store_bits) {
    case 4: return (unsigned)p[index >> 1] >> ((index & 1) * 4) & 0xFu;
    case 8: return p[index];
    case 16: memcpy(&half, p + 2 * index, sizeof half); return half;
    default: memcpy(&word, p + 4 * index, sizeof word); return word;
    }
}

const char *ngc_text(const ng_format_spec *spec, uint32_t code, char text[64])
{
    const int digits = (int)(spec->bits + 3) / 4;
    ng_value v;
    if (ng_decode(spec->format, code, &v) != NG_OK)
        (void)snprintf(text, 64, "0x%0*x", digits, code);
    else if (v.cls == NG_CLASS_NAN)
        (void)snprintf(text, 64, "0x%0*x (NaN)", digits, code);
    else if (v.cls == NG_CLASS_INF)
        (void)snprintf(text, 64, "0x%0*x (%sInf)", digits, code, v.neg ? "-" : "");
    else
        (void)snprintf(text, 64, "0x%0*x (%s%.9g)", digits, code, v.neg ? "-" : "",
                       ldexp((double)v.sig, v.exp));
    return text;
}

const ng_format_spec *ngc_any_format(struct ngc_rng *r)
{
    uint32_t n = 0;
    while (ng_format_at(n))
        n++;
    return ng_format_at(ngc_below(r, n));
}

const ng_format_spec *ngc_element_format(struct ngc_rng *r)
{
    const ng_format_spec *f = ngc_any_format(r);
    while (f->kind == NG_KIND_SCALE || f->kind == NG_KIND_UFN)
        f = ngc_any_format(r);
    return f;
}

/* ---- Memory. ---- */

enum {
    PATTERN = 0xAA,
    AROUND = 256 /* bytes beside a block that are compared */
};

bool ngc_mem_open(struct ngc_mem *m, size_t capacity)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    m->capacity = (capacity + page - 1) / page * page;
    unsigned char *map = mmap(NULL, m->capacity + 2 * page, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return false;
    m->room = map + page;
    m->copy = malloc(m->capacity);
    return m->copy && mprotect(m->room, m->capacity, PROT_READ | PROT_WRITE) == 0;
}

bool ngc_mem_place(struct ngc_mem *m, size_t bytes, size_t align, bool at_end)
{
    if (bytes + 2 * AROUND > m->capacity)
        return false;
    const size_t at = at_end ? (m->capacity - bytes) / align * align : 0;
    const size_t behind = m->capacity - at - bytes;
    m->data = m->room + at;
    m->bytes = bytes;
    m->before = at < AROUND ? at : AROUND;
    m->after = behind < AROUND ? behind : AROUND;
    memset(m->data - m->before, PATTERN, m->before + bytes + m->after);
    return true;
}

void ngc_mem_keep(struct ngc_mem *m)
{
    memcpy(m->copy, m->data - m->before, m->before + m->bytes + m->after);
}

bool ngc_mem_kept(const struct ngc_mem *m)
{
    return memcmp(m->copy, m->data - m->before, m->before + m->bytes + m->after) == 0;
}

bool ngc_mem_equal(const struct ngc_mem *x, const struct ngc_mem *y)
{
    return x->bytes == y->bytes && x->before == y->before && x->after == y->after &&
           memcmp(x->data - x->before, y->data - y->before, x->before + x->bytes + x->after) ==
               0;
}

/* ---- Layouts. ---- */

void ngc_draw_strides(struct ngc_rng *r, ng_tensor *t, uint32_t bits, int64_t *at, int64_t *n)
{
    uint32_t order[NG_MAX_RANK]; /* the last is the inner one */
    const bool nibbles = bits < 8, plain = !ngc_one_in(r, 3), inner = !ngc_one_in(r, 3);
    for (uint32_t i = 0; i < t->rank; i++)
        order[i] = i;
    for (uint32_t i = t->rank - inner; !plain && i-- > 1;) {
        const uint32_t k = ngc_below(r, i + 1), was = order[i];
        order[i] = order[k];
        order[k] = was;
    }
    int64_t step = plain || nibbles || !ngc_one_in(r, 6) ? 1 : 2;
    *at = 0;
    *n = 1;
    for (uint32_t i = t->rank; i-- > 0;) {
        const uint32_t d = order[i];
        const bool back = !plain && !nibbles && ngc_one_in(r, 8);
        t->stride[d] = back ? -step : step;
        *at += back ? step * (t->dim[d] - 1) : 0;
        *n += step * (t->dim[d] - 1);
        step *= t->dim[d];
        if (!plain && ngc_one_in(r, 3))
            step += ngc_between(r, 1, 9);
        step += nibbles ? step & 1 : 0;
    }
}

bool ngc_lay(struct ngc_rng *r, struct ngc_mem *m, struct ngc_mem *other, ng_format f,
             uint32_t rank, const int64_t *dim, ng_tensor *t)
{
    const uint32_t bits = ng_format_info(f)->store_bits;
    const size_t align = bits < 8 ? 1 : bits / 8;
    const bool at_end = !ngc_one_in(r, 4);
    int64_t at = 0, n = 0;
    if (ng_tensor_init(t, f, m->room, rank, dim))
        return false;
    ngc_draw_strides(r, t, bits, &at, &n);
    const size_t bytes = ((size_t)n * bits + 7) / 8;
    if (!ngc_mem_place(m, bytes, align, at_end) ||
        (other && !ngc_mem_place(other, bytes, align, at_end)))
        return false;
    t->data = m->data + (size_t)at * bits / 8;
    return true;
}

bool ngc_lay_scales(struct ngc_rng *r, struct ngc_mem *m, ng_format f, uint32_t block,
                    uint32_t axis, ng_tensor *t)
{
    ng_tensor scales = { .rank = t->rank };
    int64_t at = 0, n = 0;
    for (uint32_t d = 0; d < t->rank; d++)
        scales.dim[d] = d == axis ? (t->dim[d] + block - 1) / block : t->dim[d];
    ngc_draw_strides(r, &scales, 8, &at, &n);
    if (!ngc_mem_place(m, (size_t)n, 1, !ngc_one_in(r, 4)) ||
        ng_tensor_set_scale(t, f, m->data + at, block, axis, NG_LAYOUT_LINEAR))
        return false;
    memcpy(t->scale_stride, scales.stride, sizeof t->scale_stride);
    return true;
}

/* ---- Tasks. ---- */

static void backwards(void *self, size_t n, void (*body)(void *arg, size_t i, size_t worker),
                      void *arg)
{
    (void)self;
    while (n-- > 0)
        body(arg, n, 0);
}

const ng_executor ngc_backwards = { backwards, NULL, 1 };

/* ---- The machine's state. ---- */

#if defined(__x86_64__)
uint32_t ngc_fp_hostile(void)
{
    /* MXCSR: FTZ 0x8000, round up 0x4000, DAZ 0x0040; all masked (0x1F80) but underflow 0x0800
     */
    return (0x1F80u & ~0x0800u) | 0x8000u | 0x4000u | 0x0040u;
}

uint32_t ngc_fp_get(void)
{
    return _mm_getcsr();
}

void ngc_fp_set(uint32_t word)
{
    _mm_setcsr(word);
}

uint32_t ngc_fp_control(uint32_t word)
{
    return word & ~0x3Fu;
}
#else
uint32_t ngc_fp_hostile(void)
{
    return 0;
}

uint32_t ngc_fp_get(void)
{
    return 0;
}

void ngc_fp_set(uint32_t word)
{
    (void)word;
}

uint32_t ngc_fp_control(uint32_t word)
{
    return word;
}
#endif

/* Of CPU time, which does not pass while others have the machine. Longer than any round takes,
 * sanitizers included: a kernel that hangs fails its case. */
enum {
    ROUND_SECONDS = 20
};

static void set_limit(int seconds)
{
    const struct itimerval limit = { .it_value = { .tv_sec = seconds } };
    (void)setitimer(ITIMER_PROF, &limit, NULL);
}

const char *ngc_signal_text(int signal)
{
    return signal == SIGPROF ? "hangs" : "crashes: a bad address, instruction or exception";
}

static sigjmp_buf back;
static volatile sig_atomic_t crashed;

/* A second signal on the way out of the first means that the kernel has spoilt our own frames:
 * then nothing can be told but that. */
static void on_signal(int signal)
{
    static const char text[] = "FAIL: a kernel spoilt the harness' stack; -v names the case\n";
    if (crashed) {
        if (write(STDOUT_FILENO, text, sizeof text - 1) < 0)
            _exit(4);
        _exit(3);
    }
    crashed = 1;
    siglongjmp(back, signal);
}

int ngc_catch(void (*f)(void *arg), void *arg)
{
    static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF };
    enum {
        N = sizeof signals / sizeof signals[0]
    };
    static unsigned char stack[64 * 1024]; /* for a kernel that has spoilt its own */
    static struct sigaction old[N];
    static stack_t old_stack;
    const stack_t ours = { .ss_sp = stack, .ss_size = sizeof stack };
    const uint32_t word = ngc_fp_get();
    struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
    sigemptyset(&act.sa_mask);
    sigaltstack(&ours, &old_stack);
    for (int i = 0; i < N; i++)
        sigaction(signals[i], &act, &old[i]);

    const int signal = sigsetjmp(back, 1);
    if (signal == 0) {
        set_limit(ROUND_SECONDS);
        f(arg);
    }
    set_limit(0);
    if (signal)
        ngc_fp_set(word);
    for (int i = 0; i < N; i++)
        sigaction(signals[i], &old[i], NULL);
    sigaltstack(&old_stack, NULL);
    crashed = 0;
    return signal;
}
