/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives as data: names of values, presets, checks. Numerics: docs/numerics.md, section
 * 11.12, whose items are named here. */
#include <string.h>

#include "ng/collective.h"
#include "setting_text.h"

/* ---- Parameters and the names of their values. ---- */

static const char *const algorithm_names[] = { "ring",     "kanga_ring", "mesh",
                                               "rdh",      "tree",       "single_step",
                                               "explicit", "real",       NULL };
static const char *const start_names[] = { "zero", "owner", "own", NULL };
static const char *const halving_names[] = { "near", "far", NULL };
static const char *const received_names[] = { "first", "last", NULL };
static const char *const round_names[] = { "rne", "rna", "rtz", "rdn", "rup", "rto", NULL };
static const char *const overflow_names[] = { "inf", "sat", "sat_keep_inf", NULL };
static const char *const sum_names[] = { "once", "pairs", NULL };
static const char *const nan_names[] = { "propagate", "number", NULL };

#define TYPE_INT       SETTING_INT, NULL
#define TYPE_FORMAT    SETTING_FORMAT, NULL
#define TYPE_ALGORITHM SETTING_NAMED, algorithm_names
#define TYPE_START     SETTING_NAMED, start_names
#define TYPE_HALVING   SETTING_NAMED, halving_names
#define TYPE_RECEIVED  SETTING_NAMED, received_names
#define TYPE_ROUND     SETTING_NAMED, round_names
#define TYPE_OVERFLOW  SETTING_NAMED, overflow_names
#define TYPE_SUM       SETTING_NAMED, sum_names
#define TYPE_NAN       SETTING_NAMED, nan_names

static const struct setting_param params[NG_COLLECTIVE_PARAM_COUNT] = {
#define NG_COLLECTIVE_PARAM(name, key, type, meaning) { key, TYPE_##type, meaning },
#include "ng/collective.def"
#undef NG_COLLECTIVE_PARAM
};

static const struct setting_table table = { params, NG_COLLECTIVE_PARAM_COUNT };

/* ---- Presets. ---- */

#define CC    "Neuron docs neuron-runtime/explore/intranode-collective-comm"
#define DMA   "NKI docs dma_compute"
#define RING  "NCCL src/device/all_reduce.h"
#define ADDS  "NCCL src/device/reduce_kernel.h"
#define PEERS "NCCL src/device/symmetric/all_reduce.cuh"

#define PARAM(name) [NG_COLLECTIVE_##name]

/* clang-format off */
/* What an algorithm does not read, or nobody has said. */
#define PLAIN \
    PARAM(NODE)     = A(0), \
    PARAM(BETWEEN)  = A(NG_ALGORITHM_RING), \
    PARAM(CHIP)     = A(4), \
    PARAM(START)    = A(NG_START_ZERO), \
    PARAM(HALVING)  = A(NG_HALVING_NEAR), \
    PARAM(RECEIVED) = A(NG_RECEIVED_FIRST), \
    PARAM(CHUNK)    = A(0), \
    PARAM(WIRE)     = A(NG_FORMAT_NONE), \
    PARAM(ROUND)    = A(NG_ROUND_TIES_TO_EVEN), \
    PARAM(OVERFLOW) = A(NG_OVERFLOW_INF), \
    PARAM(SUM)      = A(NG_COLLECTIVE_ONCE), \
    PARAM(NAN)      = A(NG_COLLECTIVE_NAN_PROPAGATE)

/* Trainium's DMA engines add. */
#define TRN(algorithm) \
    PARAM(ALGORITHM) = D(algorithm, CC), \
    PARAM(NODE)      = A(0), \
    PARAM(BETWEEN)   = A(NG_ALGORITHM_RING), \
    PARAM(CHIP)      = D(4, CC), \
    PARAM(START)     = A(NG_START_ZERO), \
    PARAM(HALVING)   = A(NG_HALVING_NEAR), \
    PARAM(RECEIVED)  = I(NG_RECEIVED_FIRST, CC), \
    PARAM(CHUNK)     = I(0, CC), \
    PARAM(WIRE)      = I(NG_FORMAT_NONE, CC), \
    PARAM(ROUND)     = I(NG_ROUND_TIES_TO_EVEN, DMA), \
    PARAM(OVERFLOW)  = A(NG_OVERFLOW_INF), \
    PARAM(SUM)       = I(NG_COLLECTIVE_ONCE, DMA), \
    PARAM(NAN)       = A(NG_COLLECTIVE_NAN_PROPAGATE)

/* NVIDIA's library; its CHUNK follows from tuning tables: the caller's. */
#define NCCL(algorithm, start, sum, file) \
    PARAM(ALGORITHM) = B(algorithm, file), \
    PARAM(NODE)      = A(0), \
    PARAM(BETWEEN)   = A(NG_ALGORITHM_RING), \
    PARAM(CHIP)      = A(1), \
    PARAM(START)     = B(start, file), \
    PARAM(HALVING)   = A(NG_HALVING_NEAR), \
    PARAM(RECEIVED)  = A(NG_RECEIVED_FIRST), \
    PARAM(CHUNK)     = A(0), \
    PARAM(WIRE)      = B(NG_FORMAT_NONE, file), \
    PARAM(ROUND)     = B(NG_ROUND_TIES_TO_EVEN, ADDS), \
    PARAM(OVERFLOW)  = B(NG_OVERFLOW_INF, ADDS " (bf16, f16, f32; its FP8 saturates: overflow=sat)"), \
    PARAM(SUM)       = B(sum, file), \
    PARAM(NAN)       = B(NG_COLLECTIVE_NAN_NUMBER, ADDS)

static const ng_collective collectives[] = {
    { "trn-ring", "Trainium: a ring, a rank a hop", { TRN(NG_ALGORITHM_RING) } },
    { "trn-kanga-ring", "Trainium: a ring of pairs of ranks, large buffers on full chips",
      { TRN(NG_ALGORITHM_KANGA_RING) } },
    { "trn-mesh", "Trainium: the ranks of a chip, then the chips, small buffers",
      { TRN(NG_ALGORITHM_MESH) } },
    { "trn-rdh", "Trainium: recursive halving between chips", { TRN(NG_ALGORITHM_RDH) } },
    { "trn-single-step", "Trainium: every rank adds up all buffers, the smallest ones",
      { TRN(NG_ALGORITHM_SINGLE_STEP) } },
    { "nccl-ring", "NVIDIA NCCL: a ring; ranks are places in it",
      { NCCL(NG_ALGORITHM_RING, NG_START_ZERO, NG_COLLECTIVE_PAIRS, RING) } },
    { "nccl-symmetric", "NVIDIA NCCL: symmetric kernels without multicast",
      { NCCL(NG_ALGORITHM_SINGLE_STEP, NG_START_OWNER, NG_COLLECTIVE_ONCE, PEERS) } },
    { "tree", "halves of the ranks: a definition, no device's",
      { PARAM(ALGORITHM) = A(NG_ALGORITHM_TREE), PLAIN } },
    { "exact", "the real number, rounded once: a definition, for measuring errors",
      { PARAM(ALGORITHM) = A(NG_ALGORITHM_REAL), PLAIN } },
};
/* clang-format on */

const ng_collective *ng_collective_at(size_t i)
{
    return i < sizeof collectives / sizeof *collectives ? &collectives[i] : NULL;
}

const ng_collective *ng_collective_find(const char *name)
{
    for (size_t i = 0; name && ng_collective_at(i); i++)
        if (strcmp(collectives[i].name, name) == 0)
            return &collectives[i];
    return NULL;
}

/* ---- Text. ---- */

static const struct setting_param *info(ng_collective_param p)
{
    return (unsigned)p < NG_COLLECTIVE_PARAM_COUNT ? &params[p] : NULL;
}

const char *ng_collective_param_key(ng_collective_param p)
{
    return info(p) ? info(p)->key : NULL;
}

const char *ng_collective_param_meaning(ng_collective_param p)
{
    return info(p) ? info(p)->meaning : NULL;
}

size_t ng_collective_param_print(ng_collective_param param, int32_t value, char *buffer,
                                 size_t bytes)
{
    return info(param) ? ng_setting_print(info(param), value, buffer, bytes) : 0;
}

size_t ng_collective_param_values(ng_collective_param param, char *buffer, size_t bytes)
{
    return info(param) ? ng_setting_values(info(param), buffer, bytes) : 0;
}

size_t ng_collective_print(const ng_collective *c, char *buffer, size_t bytes)
{
    return c ? ng_settings_print(&table, c->name, c->set, buffer, bytes) : 0;
}

ng_status ng_collective_set(ng_collective *c, const char *key, const char *text)
{
    return c && key && text ? ng_setting_set(&table, c->set, key, text) : NG_ERR_ARGUMENT;
}

/* ---- Which parameters have a part in the bits. ---- */

static bool uses(const ng_collective *c, ng_collective_algorithm a)
{
    return c->set[NG_COLLECTIVE_ALGORITHM].value == (int32_t)a ||
           (c->set[NG_COLLECTIVE_NODE].value &&
            c->set[NG_COLLECTIVE_BETWEEN].value == (int32_t)a);
}

/* Does a plan depend on the chunk? */
static bool has_chunks(const ng_collective *c)
{
    const bool from_owner = c->set[NG_COLLECTIVE_START].value == NG_START_OWNER;
    return uses(c, NG_ALGORITHM_RING) || uses(c, NG_ALGORITHM_KANGA_RING) ||
           uses(c, NG_ALGORITHM_EXPLICIT) ||
           (from_owner && (uses(c, NG_ALGORITHM_MESH) || uses(c, NG_ALGORITHM_SINGLE_STEP)));
}

bool ng_collective_param_is_idle(const ng_collective *c, ng_collective_param p, bool sums)
{
    const int32_t algorithm = c ? c->set[NG_COLLECTIVE_ALGORITHM].value : 0;
    if (!c || !info(p))
        return true;
    if (algorithm == NG_ALGORITHM_REAL)
        return p != NG_COLLECTIVE_ALGORITHM;
    switch (p) {
    case NG_COLLECTIVE_NODE: return algorithm == NG_ALGORITHM_EXPLICIT;
    case NG_COLLECTIVE_BETWEEN: return c->set[NG_COLLECTIVE_NODE].value == 0;
    case NG_COLLECTIVE_CHIP:
        return algorithm != NG_ALGORITHM_MESH && algorithm != NG_ALGORITHM_RDH;
    case NG_COLLECTIVE_START:
        return !uses(c, NG_ALGORITHM_MESH) && !uses(c, NG_ALGORITHM_SINGLE_STEP);
    case NG_COLLECTIVE_HALVING: return !uses(c, NG_ALGORITHM_RDH);
    case NG_COLLECTIVE_RECEIVED: return !uses(c, NG_ALGORITHM_KANGA_RING);
    case NG_COLLECTIVE_CHUNK: return !has_chunks(c);
    case NG_COLLECTIVE_SUM: /* rings of single ranks, halves: two terms a sum */
        return !sums || (!uses(c, NG_ALGORITHM_KANGA_RING) && !uses(c, NG_ALGORITHM_MESH) &&
                         !uses(c, NG_ALGORITHM_SINGLE_STEP) && !uses(c, NG_ALGORITHM_RDH) &&
                         !uses(c, NG_ALGORITHM_EXPLICIT));
    case NG_COLLECTIVE_NAN: return sums;
    default: return false;
    }
}

/* ---- Checks. ---- */

static int32_t value_of(const struct setting_check *c, ng_collective_param p)
{
    return c->set[p].value;
}

static ng_status refuse(const struct setting_check *c, ng_collective_param p,
                        const char *wanted)
{
    return ng_setting_refuse(c, (int)p, wanted);
}

static bool has_no_ranks(int32_t algorithm)
{
    return algorithm == NG_ALGORITHM_EXPLICIT || algorithm == NG_ALGORITHM_REAL;
}

ng_status ng_collective_check(const ng_collective *collective, char *message, size_t bytes)
{
    if (!collective)
        return NG_ERR_ARGUMENT;
    const struct setting_check c = { &table, collective->set, message, message ? bytes : 0 };
    const ng_status s = ng_setting_check_values(&c);
    if (s)
        return s;
    const int32_t wire = value_of(&c, NG_COLLECTIVE_WIRE);
    if (has_no_ranks(value_of(&c, NG_COLLECTIVE_BETWEEN)))
        return refuse(&c, NG_COLLECTIVE_BETWEEN, "neither explicit nor real");
    if (value_of(&c, NG_COLLECTIVE_NODE) && has_no_ranks(value_of(&c, NG_COLLECTIVE_ALGORITHM)))
        return refuse(&c, NG_COLLECTIVE_NODE, "0, as algorithm is explicit or real");
    if (value_of(&c, NG_COLLECTIVE_CHIP) < 1)
        return refuse(&c, NG_COLLECTIVE_CHIP, "at least 1");
    if (value_of(&c, NG_COLLECTIVE_START) == NG_START_OWN &&
        uses(collective, NG_ALGORITHM_MESH))
        return refuse(&c, NG_COLLECTIVE_START, "zero or owner, as the algorithm is mesh");
    if (wire != NG_FORMAT_NONE &&
        (!ng_is_plain_element(wire) || ng_format_info((ng_format)wire)->store_bits < 8))
        return refuse(&c, NG_COLLECTIVE_WIRE, "given, or an element format of at least a byte");
    return NG_OK;
}
