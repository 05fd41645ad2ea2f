/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks a Hopper GPU what its matrix instructions, and its conversions, give for the operands of
 * cases.h. Prints digests, the lines of hopper.txt; with a folder also writes every result
 * there.
 *
 *   nvcc -std=c++17 -O2 -gencode=arch=compute_90a,code=sm_90a -o hopper hopper.cu
 *   ./hopper [FOLDER] > hopper.txt
 *
 * Fragment layouts: PTX ISA 9.0. One block of 128 threads takes a tile: four warps with 16 rows
 * each, or one warpgroup.
 */
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cases.h"

#define CHECK(call)                                                                            \
    do {                                                                                       \
        const cudaError_t error = (call);                                                      \
        if (error != cudaSuccess) {                                                            \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));                     \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

/* A thread's part of the operands of one issue. */
struct fragment {
    uint32_t a[4], b[4], d[4];
    uint64_t b_lines; /* wgmma: the descriptor of B in shared memory */
    uint32_t tags;
    int with_c;
};

/* The instruction of a case, as a type. */
template <int I> struct issue;

/* mma: {d}, {a}, {b}, {c}. FP32 registers are .f32 in PTX: moved, which changes no bit. */
#define ASM_F32(text_a, text_b, tail, ptx, ...)                                                \
    float d0 = __uint_as_float(f.d[0]), d1 = __uint_as_float(f.d[1]),                          \
          d2 = __uint_as_float(f.d[2]), d3 = __uint_as_float(f.d[3]);                          \
    asm volatile(ptx " {%0, %1, %2, %3}, " text_a ", " text_b ", {%0, %1, %2, %3}" tail ";"    \
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)                                      \
                 : __VA_ARGS__);                                                               \
    f.d[0] = __float_as_uint(d0), f.d[1] = __float_as_uint(d1), f.d[2] = __float_as_uint(d2),  \
    f.d[3] = __float_as_uint(d3);

#define MMA_16_0_f32(ptx)                                                                      \
    ASM_F32("{%4, %5}", "{%6}", "", "mma.sync.aligned" ptx, "r"(f.a[0]), "r"(f.a[1]),          \
            "r"(f.b[0]))
#define MMA_32_0_f32(ptx)                                                                      \
    ASM_F32("{%4, %5, %6, %7}", "{%8, %9}", "", "mma.sync.aligned" ptx, "r"(f.a[0]),           \
            "r"(f.a[1]), "r"(f.a[2]), "r"(f.a[3]), "r"(f.b[0]), "r"(f.b[1]))
#define MMA_32_2_f32(ptx)                                                                      \
    ASM_F32("{%4, %5, %6, %7}", "{%8, %9, %10, %11}", ", %12, 0x0",                            \
            "mma.sp::ordered_metadata.sync.aligned" ptx, "r"(f.a[0]), "r"(f.a[1]),             \
            "r"(f.a[2]), "r"(f.a[3]), "r"(f.b[0]), "r"(f.b[1]), "r"(f.b[2]), "r"(f.b[3]),      \
            "r"(f.tags))
#define MMA_32_1_f32(ptx) MMA_32_2_f32(ptx)
#define MMA_16_0_f16(ptx)                                                                      \
    asm volatile("mma.sync.aligned" ptx " {%0, %1}, {%2, %3}, {%4}, {%0, %1};"                 \
                 : "+r"(f.d[0]), "+r"(f.d[1])                                                  \
                 : "r"(f.a[0]), "r"(f.a[1]), "r"(f.b[0]));
#define MMA_32_0_f16(ptx)                                                                      \
    asm volatile("mma.sync.aligned" ptx " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"     \
                 : "+r"(f.d[0]), "+r"(f.d[1])                                                  \
                 : "r"(f.a[0]), "r"(f.a[1]), "r"(f.a[2]), "r"(f.a[3]), "r"(f.b[0]),            \
                   "r"(f.b[1]));
#define MMA_32_2_f16(ptx)                                                                      \
    asm volatile("mma.sp::ordered_metadata.sync.aligned" ptx                                   \
                 " {%0, %1}, {%2, %3, %4, %5}, {%6, %7, %8, %9}, {%0, %1}, %10, 0x0;"          \
                 : "+r"(f.d[0]), "+r"(f.d[1])                                                  \
                 : "r"(f.a[0]), "r"(f.a[1]), "r"(f.a[2]), "r"(f.a[3]), "r"(f.b[0]),            \
                   "r"(f.b[1]), "r"(f.b[2]), "r"(f.b[3]), "r"(f.tags));

/* wgmma: {d}, {a}, descriptor of b [, tags, selector], scale-d, imm-a, imm-b [, imm-trans-b].
 */
#define TAIL_f16  ", 0"
#define TAIL_bf16 ", 0"
#define TAIL_tf32 ""
#define TAIL_e4m3 ""
#define TAIL_e5m2 ""
#define WG_F32(ptx, tags, p, tail, ...)                                                        \
    float d0 = __uint_as_float(f.d[0]), d1 = __uint_as_float(f.d[1]),                          \
          d2 = __uint_as_float(f.d[2]), d3 = __uint_as_float(f.d[3]);                          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p ", 0;\nwgmma.fence.sync.aligned;\n" ptx \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8" tags ", p, 1, 1" tail ";\n"         \
                 "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}"       \
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)                                      \
                 : "r"(f.a[0]), "r"(f.a[1]), "r"(f.a[2]), "r"(f.a[3]), "l"(f.b_lines),         \
                   __VA_ARGS__                                                                 \
                 : "memory");                                                                  \
    f.d[0] = __float_as_uint(d0), f.d[1] = __float_as_uint(d1), f.d[2] = __float_as_uint(d2),  \
    f.d[3] = __float_as_uint(d3);
#define WG_F16(ptx, tags, p, tail, ...)                                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p ", 0;\nwgmma.fence.sync.aligned;\n" ptx \
                 " {%0, %1}, {%2, %3, %4, %5}, %6" tags ", p, 1, 1" tail ";\n"                 \
                 "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}"       \
                 : "+r"(f.d[0]), "+r"(f.d[1])                                                  \
                 : "r"(f.a[0]), "r"(f.a[1]), "r"(f.a[2]), "r"(f.a[3]), "l"(f.b_lines),         \
                   __VA_ARGS__                                                                 \
                 : "memory");
#define WG_0_f32(ptx, tail)                                                                    \
    WG_F32("wgmma.mma_async.sync.aligned" ptx, "", "%9", tail, "r"(f.with_c))
#define WG_2_f32(ptx, tail)                                                                    \
    WG_F32("wgmma.mma_async.sp.sync.aligned" ptx, ", %9, 0", "%10", tail, "r"(f.tags),         \
           "r"(f.with_c))
#define WG_1_f32(ptx, tail) WG_2_f32(ptx, tail)
#define WG_0_f16(ptx, tail)                                                                    \
    WG_F16("wgmma.mma_async.sync.aligned" ptx, "", "%7", tail, "r"(f.with_c))
#define WG_2_f16(ptx, tail)                                                                    \
    WG_F16("wgmma.mma_async.sp.sync.aligned" ptx, ", %7, 0", "%8", tail, "r"(f.tags),          \
           "r"(f.with_c))

#define ISSUE(wg, body)                                                                        \
    template <> struct issue<__COUNTER__ - FIRST_COUNT> {                                      \
        static constexpr bool warpgroup = wg;                                                  \
        static __device__ void go(fragment &f)                                                 \
        {                                                                                      \
            body                                                                               \
        }                                                                                      \
    };
enum {
    FIRST_COUNT = __COUNTER__ + 1
};
#define MMA(shape, a, b, acc, row, kept, group)                                                \
    ISSUE(false, MMA_##row##_##kept##_##acc("." shape ".row.col." #acc "." #a "." #b "." #acc))
#define WGMMA(shape, a, b, acc, row, kept, group)                                              \
    ISSUE(true, WG_##kept##_##acc("." shape "." #acc "." #a "." #b, TAIL_##a))
#include "insns.def"

/* ---- One tile. ---- */

struct sizes {
    int row, column; /* bytes of one issue */
    int steps;
    bool with_c, acc_f16;
};

/* B of one issue: lines of 16 bytes, eight columns of them one after another (no swizzle). */
static __device__ uint64_t b_descriptor(const uint8_t *shared)
{
    const uint64_t address = (uint64_t)__cvta_generic_to_shared(shared);
    const uint64_t next = 128; /* bytes from one line of eight columns to the next */
    return (address & 0x3FFFF) >> 4 | next >> 4 << 16 | next >> 4 << 32;
}

template <int I>
__global__ void tile_kernel(sizes s, const uint8_t *a, const uint8_t *b, const uint32_t *tags,
                            const uint32_t *c, uint32_t *d)
{
    __shared__ alignas(128) uint8_t shared[TILE_COLS * 64];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int a_row = s.row * s.steps, b_col = s.column * s.steps;
    a += (size_t)blockIdx.x * TILE_ROWS * a_row + (size_t)(16 * warp) * a_row;
    b += (size_t)blockIdx.x * TILE_COLS * b_col;
    c += (size_t)blockIdx.x * TILE_SIZE;
    d += (size_t)blockIdx.x * TILE_SIZE;

    /* results of this thread: rows g and g + 8, columns 2t and 2t + 1 */
    int where[4];
    for (int i = 0; i < 4; i++)
        where[i] = (16 * warp + g + i / 2 * 8) * TILE_COLS + 2 * t + i % 2;
    fragment f = {};
    f.tags = tags[blockIdx.x] * 0x11111111u;
    for (int i = 0; i < (s.acc_f16 ? 2 : 4); i++)
        f.d[i] = s.acc_f16 ? c[where[2 * i]] | c[where[2 * i + 1]] << 16 : c[where[i]];

    for (int step = 0; step < s.steps; step++) {
        const uint8_t *a0 = a + step * s.row;
        for (int i = 0; i < s.row / 8; i++)
            f.a[i] = *(const uint32_t *)(a0 + (g + i % 2 * 8) * a_row + i / 2 * 16 + 4 * t);
        for (int i = 0; i < s.column / 16; i++)
            f.b[i] = *(const uint32_t *)(b + g * b_col + step * s.column + i * 16 + 4 * t);
        f.with_c = s.with_c || step;
        if constexpr (issue<I>::warpgroup) {
            __syncthreads();
            for (int i = threadIdx.x; i < TILE_COLS * s.column; i += blockDim.x)
                shared[i % s.column / 16 * 128 + i / s.column * 16 + i % 16] =
                    b[i / s.column * b_col + step * s.column + i % s.column];
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
            f.b_lines = b_descriptor(shared);
        }
        issue<I>::go(f);
    }
    for (int i = 0; i < 4; i++)
        d[where[i]] = s.acc_f16 ? f.d[i / 2] >> 16 * (i % 2) & 0xFFFF : f.d[i];
}

/* ---- All cases. ---- */

template <class T> static T *to_device(const std::vector<T> &v)
{
    T *p;
    CHECK(cudaMalloc(&p, v.size() * sizeof(T)));
    CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

template <int I> static void run_case(int kind, int way, FILE *dump)
{
    const insn &in = insns[I];
    const int steps = ways[way].steps;
    const int column = in.kept ? in.row / in.kept * in.group : in.row;
    std::vector<uint8_t> a, b;
    std::vector<uint32_t> c, tags, d(TILES * TILE_SIZE, 0xDEADBEEF);
    static tile t;
    for (int number = 0; number < TILES; number++) {
        draw_tile(&t, I, (enum kind)kind, way, number);
        a.insert(a.end(), t.a, t.a + TILE_ROWS * in.row * steps);
        b.insert(b.end(), t.b, t.b + TILE_COLS * column * steps);
        c.insert(c.end(), t.c, t.c + TILE_SIZE);
        tags.push_back(t.tags);
    }
    uint8_t *da = to_device(a), *db = to_device(b);
    uint32_t *dc = to_device(c), *dt = to_device(tags), *dd = to_device(d);
    const sizes s = { in.row, column, steps, ways[way].c, in.acc == &dev_f16 };
    tile_kernel<I><<<TILES, 128>>>(s, da, db, dt, dc, dd);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(d.data(), dd, d.size() * sizeof d[0], cudaMemcpyDeviceToHost));
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(dc));
    CHECK(cudaFree(dt));
    CHECK(cudaFree(dd));

    uint64_t first = 0, all = 0;
    for (size_t i = 0; i < d.size(); i++) {
        all += digest_term(i, d[i]);
        if (i + 1 == FIRST_TILES * TILE_SIZE)
            first = all;
    }
    printf("%s%s %s %d %s %016llx %016llx\n", in.kept ? "sp." : "", in.name, kind_names[kind],
           steps, ways[way].c ? "c" : "-", (unsigned long long)first, (unsigned long long)all);
    if (dump && in.acc == &dev_f16)
        for (uint32_t code : d)
            fwrite(&code, 2, 1, dump);
    else if (dump)
        fwrite(d.data(), sizeof d[0], d.size(), dump);
}

template <int I> static void run_from(FILE *dump)
{
    if constexpr (I < N_INSNS) {
        for (int kind = 0; kind < N_KINDS; kind++)
            for (int way = 0; way < N_WAYS; way++)
                run_case<I>(kind, way, dump);
        run_from<I + 1>(dump);
    }
}

/* ---- Conversions: every code of the source. ---- */

/* ptx "d, x, x" of two halves, or "d, x" of words: %0 is d, %1 and %2 are x. */
#define PAIR_OF_F32(ptx)                                                                       \
    uint16_t d;                                                                                \
    asm volatile(ptx " %0, %1, %1;" : "=h"(d) : "f"(__uint_as_float(x)));                      \
    return d
#define WORDS_OF_F32(ptx)                                                                      \
    uint32_t d;                                                                                \
    asm volatile(ptx " %0, %1, %1;" : "=r"(d) : "f"(__uint_as_float(x)));                      \
    return d
#define PAIR_OF_WORDS(ptx)                                                                     \
    uint16_t d;                                                                                \
    asm volatile(ptx " %0, %1;" : "=h"(d) : "r"(x | x << 16));                                 \
    return d
#define WORDS_OF_PAIR(ptx)                                                                     \
    uint32_t d;                                                                                \
    asm volatile(ptx " %0, %1;" : "=r"(d) : "h"((uint16_t)(x | x << 8)));                      \
    return d
#define WORD_OF_F32(ptx)                                                                       \
    uint32_t d;                                                                                \
    asm volatile(ptx " %0, %1;" : "=r"(d) : "f"(__uint_as_float(x)));                          \
    return d
#define CVT_F32_E4M3FN PAIR_OF_F32
#define CVT_F32_E5M2   PAIR_OF_F32
#define CVT_F16_E4M3FN PAIR_OF_WORDS
#define CVT_F16_E5M2   PAIR_OF_WORDS
#define CVT_E4M3FN_F16 WORDS_OF_PAIR
#define CVT_E5M2_F16   WORDS_OF_PAIR
#define CVT_F32_F16    WORDS_OF_F32
#define CVT_F32_BF16   WORDS_OF_F32
#define CVT_F32_TF32   WORD_OF_F32

template <int I> struct cvt;
enum {
    FIRST_CVT = __COUNTER__ + 1
};
#define CVT(ptx, from, to, round, overflow, nan)                                               \
    template <> struct cvt<__COUNTER__ - FIRST_CVT> {                                          \
        static __device__ uint32_t go(uint32_t x)                                              \
        {                                                                                      \
            CVT_##from##_##to(ptx);                                                            \
        }                                                                                      \
    };
#include "cvts.def"

/* sums[0]: of all; [1]: of every cvt_step'th; [2]: of results whose halves differ, or with low
 * bits. */
template <int I>
__global__ void cvt_kernel(uint64_t inputs, int half_bits, uint32_t low,
                           unsigned long long *sums, uint32_t *nans)
{
    unsigned long long all = 0, some = 0, odd = 0;
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < inputs;
         i += threads) {
        uint32_t d = cvt<I>::go((uint32_t)i);
        odd += (d & low) != 0;
        if (half_bits) {
            const uint32_t half = d & ((1u << half_bits) - 1);
            odd += d >> half_bits != half;
            d = half;
        }
        const uint64_t term = digest_term(i, d & ~low);
        all += term;
        some += i % cvt_step(inputs) == 0 ? term : 0;
        if (i == inputs - 1)
            *nans = d;
    }
    atomicAdd(&sums[0], all);
    atomicAdd(&sums[1], some);
    atomicAdd(&sums[2], odd);
}

template <int I> static void run_cvts()
{
    if constexpr (I < N_CVTS) {
        unsigned long long *sums, host[3];
        uint32_t *nans, nan;
        CHECK(cudaMalloc(&sums, sizeof host));
        CHECK(cudaMalloc(&nans, sizeof nan));
        CHECK(cudaMemset(sums, 0, sizeof host));
        const struct device_cvt &c = cvts[I];
        cvt_kernel<I><<<1024, 256>>>(1ull << c.from->bits, c.to->bits == 32 ? 0 : c.to->bits,
                                     c.to->low ? (1u << c.to->low) - 1 : 0, sums, nans);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(&nan, nans, sizeof nan, cudaMemcpyDeviceToHost));
        printf("%s %016llx %016llx\n", c.name, host[1], host[0]);
        fprintf(stderr, "%s: of the last code %08x; %llu with low bits, or different halves\n",
                c.name, nan, host[2]);
        CHECK(cudaFree(sums));
        CHECK(cudaFree(nans));
        run_cvts<I + 1>();
    }
}

int main(int argc, char **argv)
{
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, 0));
    fprintf(stderr, "%s, compute capability %d.%d\n", p.name, p.major, p.minor);
    FILE *dump = argc > 1 ? fopen((std::string(argv[1]) + "/results").c_str(), "wb") : nullptr;
    if (argc > 1 && !dump) {
        perror(argv[1]);
        return 1;
    }
    run_from<0>(dump);
    run_cvts<0>();
    if (dump && fclose(dump)) {
        perror(argv[1]);
        return 1;
    }
    return 0;
}
