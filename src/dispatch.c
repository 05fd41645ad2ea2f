/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch.h"

static const struct ng_gemm_kernel *const no_gemm[] = { NULL };
static const struct ng_cast_kernel *const no_cast[] = { NULL };
static const struct ng_random_kernel *const no_random[] = { NULL };
static const struct ng_kernel_set ref_kernels = { .gemm = no_gemm,
                                                  .cast = no_cast,
                                                  .random = no_random };

static const struct ng_isa isas[] = {
#define NG_ISA(name, bit, features) { #name, bit, features, &ng_kernels_##name },
#include "../kernels/isa.def"
#undef NG_ISA
    { "ref", NG_ISA_REF, 0, &ref_kernels }, /* last: what no kernel takes */
};

#define N_ISAS (sizeof isas / sizeof isas[0])

struct ng_isa ng_isa_at(size_t i)
{
    return i < N_ISAS ? isas[i] : (struct ng_isa){ NULL, 0, 0, NULL };
}

/* The CPU has it, and its instructions compute what the kernels take them for. */
static bool works(const struct ng_isa *isa, uint32_t has)
{
    return (isa->features & ~has) == 0 && (!isa->kernels->proved || isa->kernels->proved());
}

uint32_t ng_isa_working(uint32_t mask)
{
    uint32_t wanted = 0, working = 0;
    for (size_t i = 0; i < N_ISAS; i++)
        wanted |= isas[i].bit & mask ? isas[i].features : 0;
    const uint32_t has = ng_cpu_features(wanted), saved = ng_fp_enter();
    for (size_t i = 0; i < N_ISAS; i++)
        if (isas[i].bit & mask && works(&isas[i], has))
            working |= isas[i].bit;
    ng_fp_leave(saved);
    return working;
}

uint32_t ng_isa_available(void)
{
    return ng_isa_working(UINT32_MAX);
}

/* Some 20 microseconds: contexts ask once and remember. A packed B keeps the kernel that packed
 * it, whatever another context would choose. */
uint32_t ng_isa_slow(uint32_t available)
{
    uint32_t slow = 0;
    const uint32_t saved = ng_fp_enter();
    for (size_t i = 0; i < N_ISAS; i++)
        if (available & isas[i].bit && isas[i].kernels->slow && isas[i].kernels->slow())
            slow |= isas[i].bit;
    ng_fp_leave(saved);
    return slow;
}

const char *ng_isa_name(uint32_t bit)
{
    switch (bit) {
    case NG_ISA_REF: return "ref";
    case NG_ISA_AVX2: return "avx2";
    case NG_ISA_AVX512: return "avx512";
    case NG_ISA_AVX512BF16: return "avx512bf16";
    case NG_ISA_AMXBF16: return "amxbf16";
    default: return NULL;
    }
}

static const struct ng_gemm_kernel *first_gemm(const struct ng_isa *isa,
                                               const struct gemm_job *g)
{
    for (const struct ng_gemm_kernel *const *k = isa->kernels->gemm; *k; k++)
        if (!(*k)->refuses(g))
            return *k;
    return NULL;
}

const struct ng_gemm_kernel *ng_pick_gemm(const struct gemm_job *g, uint32_t mask,
                                          uint32_t slow)
{
    for (size_t i = 0; i < N_ISAS; i++) {
        const struct ng_gemm_kernel *k = isas[i].bit & mask ? first_gemm(&isas[i], g) : NULL;
        if (k && isas[i].bit & slow && k->behind && k->behind(g) && isas[i + 1].bit & mask) {
            const struct ng_gemm_kernel *next = first_gemm(&isas[i + 1], g);
            return next ? next : k;
        }
        if (k)
            return k;
    }
    return NULL;
}

const struct ng_cast_kernel *ng_pick_cast(const struct cast_job *j, uint32_t mask)
{
    for (size_t i = 0; i < N_ISAS; i++)
        if (isas[i].bit & mask)
            for (const struct ng_cast_kernel *const *k = isas[i].kernels->cast; *k; k++)
                if (!(*k)->refuses(j))
                    return *k;
    return NULL;
}

const struct ng_sparse_kernel *ng_pick_sparse(const struct sparse_job *j, uint32_t mask)
{
    for (size_t i = 0; i < N_ISAS; i++)
        if (isas[i].bit & mask && isas[i].kernels->sparse)
            for (const struct ng_sparse_kernel *const *k = isas[i].kernels->sparse; *k; k++)
                if (!(*k)->refuses(j))
                    return *k;
    return NULL;
}

const struct ng_random_kernel *ng_pick_random(ng_random_kind kind, uint32_t mask)
{
    for (size_t i = 0; i < N_ISAS; i++)
        if (isas[i].bit & mask && isas[i].kernels->random)
            for (const struct ng_random_kernel *const *k = isas[i].kernels->random; *k; k++)
                if ((*k)->kind == kind)
                    return *k;
    return NULL;
}

const struct ng_elementary_kernel *ng_pick_elementary(uint32_t mask)
{
    for (size_t i = 0; i < N_ISAS; i++)
        if (isas[i].bit & mask && isas[i].kernels->elementary)
            return isas[i].kernels->elementary;
    return NULL;
}

const struct ng_attention_kernel *ng_pick_attention(const struct attention_job *g,
                                                    uint32_t mask)
{
    for (size_t i = 0; i < N_ISAS; i++) {
        const struct ng_attention_kernel *k = isas[i].kernels->attention;
        if (isas[i].bit & mask && k && !k->refuses(g))
            return k;
    }
    return NULL;
}

const struct ng_moe_kernel *ng_pick_moe(uint32_t mask)
{
    for (size_t i = 0; i < N_ISAS; i++)
        if (isas[i].bit & mask && isas[i].kernels->moe)
            return isas[i].kernels->moe;
    return NULL;
}

const struct ng_reduce_kernel *ng_pick_reduce(uint32_t mask)
{
    for (size_t i = 0; i < N_ISAS; i++)
        if (isas[i].bit & mask && isas[i].kernels->reduce)
            return isas[i].kernels->reduce;
    return NULL;
}

/* ---- All of them, for reports. ---- */

/* Counts down to the entry that is asked for. */
struct walk {
    size_t left;
    bool found;
    ng_kernel_entry entry;
};

static void pass(struct walk *w, const struct ng_isa *isa, const char *does, const char *name)
{
    if (!w->found && w->left-- == 0) {
        w->found = true;
        w->entry = (ng_kernel_entry){ name, does, isa->bit };
    }
}

static void pass_isa(struct walk *w, const struct ng_isa *isa)
{
    const struct ng_kernel_set *set = isa->kernels;
    for (const struct ng_gemm_kernel *const *k = set->gemm; *k; k++)
        pass(w, isa, "multiply", (*k)->name);
    for (const struct ng_cast_kernel *const *k = set->cast; *k; k++)
        pass(w, isa, "convert", (*k)->name);
    for (const struct ng_sparse_kernel *const *k = set->sparse; k && *k; k++)
        pass(w, isa, "sparse", (*k)->name);
    for (const struct ng_random_kernel *const *k = set->random; k && *k; k++)
        pass(w, isa, "random", (*k)->name);
    if (set->elementary)
        pass(w, isa, "elementary", set->elementary->name);
    if (set->attention)
        pass(w, isa, "attention", set->attention->name);
    if (set->moe)
        pass(w, isa, "moe", set->moe->name);
    if (set->reduce)
        pass(w, isa, "reduce", set->reduce->name);
    if (isa->bit == NG_ISA_REF)
        pass(w, isa, "everything", isa->name);
}

bool ng_kernel_at(size_t i, ng_kernel_entry *entry)
{
    struct walk w = { .left = i };
    for (size_t n = 0; n < N_ISAS; n++)
        pass_isa(&w, &isas[n]);
    if (w.found && entry)
        *entry = w.entry;
    return w.found;
}
