# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's matrix multiplies give on a Hopper GPU: the lines of library.txt.

    library.py > library.txt

Operands are drawn from integers alone (replay.c draws the same). A line is a call, its shape, the
digest of the first CORNER x CORNER results, and the kernel that the library chose; lines that begin
with # say which library. Which arithmetic each is: docs/profiles.md.
"""
import sys

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

CORNER = 16
SHAPES = [(512, 512, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (64, 64, 4096)]
# name: bits, exponent bits, mantissa bits, how torch calls it
FORMATS = {"bf16": (16, 8, 7, torch.bfloat16), "f16": (16, 5, 10, torch.float16),
           "f32": (32, 8, 23, torch.float32), "e4m3fn": (8, 4, 3, torch.float8_e4m3fn),
           "e5m2": (8, 5, 2, torch.float8_e5m2)}


def mix64(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def operand(which, fmt, rows, k):
    """Codes of an operand: four binades below 2, any significand, either sign."""
    bits, exp, man, dtype = FORMATS[fmt]
    with np.errstate(over="ignore"):
        word = mix64(np.arange(1, rows * k + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
                     + np.uint64(which))
    field = np.uint64((1 << (exp - 1)) - 4) + (word >> np.uint64(40)) % np.uint64(4)
    code = ((word >> np.uint64(63)) << np.uint64(bits - 1)) | (field << np.uint64(man)) \
        | (word & np.uint64((1 << man) - 1))
    view = {8: np.uint8, 16: np.int16, 32: np.int32}[bits]
    codes = code.astype({8: np.uint8, 16: np.uint16, 32: np.uint32}[bits]).view(view)
    return torch.from_numpy(codes.reshape(rows, k)).cuda().view(dtype)


def scales(which, rows, columns):
    """FP32 numbers in [2^-7, 2^-6)."""
    with np.errstate(over="ignore"):
        word = mix64(np.arange(1, rows * columns + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
                     + np.uint64(which))
    codes = ((word & np.uint64(0x7FFFFF)) | np.uint64(0x3C000000)).astype(np.uint32).view(np.float32)
    return torch.from_numpy(codes.reshape(rows, columns)).cuda()


def digest(result):
    corner = result[:CORNER, :CORNER].contiguous().cpu()
    view = {2: torch.int16, 4: torch.int32}[corner.element_size()]
    codes = corner.view(view).numpy()
    codes = codes.view({2: np.uint16, 4: np.uint32}[corner.element_size()]).astype(np.uint64).ravel()
    with np.errstate(over="ignore"):
        terms = mix64(mix64(np.arange(1, codes.size + 1, dtype=np.uint64)) ^ codes)
        return int(terms.sum(dtype=np.uint64))


def kernel_of(call):
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        result = call()
        torch.cuda.synchronize()
    names = [e.key for e in p.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    names = [n.replace("void ", "").replace("cutlass::Kernel2<", "").split("<")[0].split("(")[0] for n in names]
    return result, " ".join(n.split("::Params")[0] for n in names if not n.startswith(("cuda", "cuLaunch", "Activity", "Mem")))


def line(name, m, n, k, call):
    result, kernel = kernel_of(call)
    print(f"{name} {m}x{n}x{k} {digest(result):016x} # {kernel}", flush=True)


def scaled(m, n, k):
    """One scale a tensor, a row, 128 of a row, 128 x 128; weights and activations by DeepSeek-V3's recipe
    are `block`."""
    a, b = operand(1, "e4m3fn", m, k), operand(2, "e4m3fn", n, k).t()
    blocks = k // 128

    def call(scale_a, scale_b):
        return lambda: torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b,
                                        out_dtype=torch.float32, use_fast_accum=False)

    by_row = scales(3, m, blocks).t().contiguous().t()
    line("_scaled_mm e4m3fn e4m3fn f32 tensor", m, n, k,
         call(scales(3, 1, 1).reshape(()), scales(4, 1, 1).reshape(())))
    line("_scaled_mm e4m3fn e4m3fn f32 row", m, n, k, call(scales(3, m, 1), scales(4, 1, n)))
    line("_scaled_mm e4m3fn e4m3fn f32 block", m, n, k, call(by_row, scales(4, n // 128, blocks).t()))
    line("_scaled_mm e4m3fn e4m3fn f32 vector", m, n, k,
         call(by_row, scales(4, n, blocks).t().contiguous()))


def added(m, n, k):
    """A matrix, or a bias for each column, added to the product."""
    for f in ("bf16", "f16", "f32"):
        a, b = operand(1, f, m, k), operand(2, f, n, k).t()
        c, bias = operand(5, f, m, n), operand(6, f, 1, n).reshape(n)
        line(f"addmm {f} {f} {f} matrix", m, n, k, lambda: torch.addmm(c, a, b))
        line(f"addmm {f} {f} {f} bias", m, n, k, lambda: torch.addmm(bias, a, b))


def main():
    print(f"# {torch.cuda.get_device_name()}; PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    one = torch.ones((), device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    for m, n, k in SHAPES[:2]:
        scaled(m, n, k)
        added(m, n, k)
    for m, n, k in SHAPES:
        for fa, fb in (("e4m3fn", "e4m3fn"), ("e4m3fn", "e5m2")):
            a, b = operand(1, fa, m, k), operand(2, fb, n, k).t()
            for fast in (True, False):
                for out, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
                    line(f"_scaled_mm {fa} {fb} {out} {'fast' if fast else 'exact'}", m, n, k,
                         lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=dtype,
                                                  use_fast_accum=fast))
        for f in ("bf16", "f16", "f32"):
            a, b = operand(1, f, m, k), operand(2, f, n, k).t()
            line(f"mm {f} {f} {f} -", m, n, k, lambda: torch.mm(a, b))
            if f != "f32":
                line(f"mm {f} {f} f32 -", m, n, k, lambda: torch.mm(a, b, out_dtype=torch.float32))


if __name__ == "__main__":
    sys.exit(main())
