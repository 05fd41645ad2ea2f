/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line that comes from memory is asked for before it is read, as a rule into the first cache.
 * A Zen 4's waits for few lines at once: asked for there they come at 13 GB/s, however early,
 * of some 28 that its memory gives. Into the second cache, where PREFETCHT1 takes them from
 * Zen 4 on (arXiv 2411.02814), they come as fast as memory can (README.md, "Into which cache").
 * gemm_job.second says what this CPU wants.
 */
#ifndef NG_KERNELS_NEAR_H
#define NG_KERNELS_NEAR_H

static inline __attribute__((always_inline)) void near_ask(const void *line, const bool second)
{
    if (second)
        __builtin_prefetch(line, 0, 2);
    else
        __builtin_prefetch(line);
}

#endif
