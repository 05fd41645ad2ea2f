# SPDX-License-Identifier: Apache-2.0
"""How fast the casts of numpy, ml_dtypes and gfloat are beside ng_convert and ng_quantize: one thread each.

    peers.py LIBRARY [--quick] [--filter REGEX] [--repetitions N] [--seconds S] [--json FILE]

Before a pair is timed its results are compared on every bit; what differs is REFUSED, gets no time, and the exit
status is 1. 77: a package is missing (tests/opinion/requirements.txt).
"""
import ctypes as C
import importlib.metadata
import os
import re
import sys

try:
    import gfloat
    import gfloat.formats as gf
    import ml_dtypes
    import numpy as np
except ImportError as why:
    print(f"skipped: {why}")
    sys.exit(77)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "opinion"))
import ours as ng  # noqa: E402
import race  # noqa: E402

SHAPES = [(64, 4096), (16384, 4096)]  # the second: 256 MiB of FP32
SMALL = 1 << 20  # elements; what a peer written in Python is timed on
TYPES = dict(f32=np.float32, f16=np.float16, bf16=ml_dtypes.bfloat16, e4m3fn=ml_dtypes.float8_e4m3fn)
CASTS = [("ml_dtypes", "f32", "e4m3fn"), ("ml_dtypes", "f32", "bf16"), ("ml_dtypes", "e4m3fn", "f32"),
         ("ml_dtypes", "bf16", "f32"), ("numpy", "f32", "f16"), ("numpy", "f16", "f32")]


class Pair:
    """Our call and the peer's (None: not timed), each writing its own result; `same` compares them."""

    def __init__(self, name, peer, shape, ours, theirs, same):
        self.name, self.peer, self.shape, self.same = name, peer, shape, same
        self.calls = dict(ours=ours, peer=theirs) if theirs else dict(ours=ours)
        self.times = {}  # race()'s

    def rate(self, side):
        return self.shape[0] * self.shape[1] / self.times[side][0] * 1e-9 if side in self.times else None


def values(shape):
    """Past e4m3fn's maximum and below its least subnormal too: all paths of a rounding."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape, np.float32)
    return np.ldexp(x, rng.integers(-14, 11, shape, dtype=np.int8), out=x)


def cast_pair(ours, peer, source, target, shape):
    src = values(shape)
    if source != "f32":
        src = src.astype(TYPES[source])
    codes = src.view(ng.dtype(source))
    mine, them = (np.zeros(shape, ng.dtype(target)) for _ in range(2))
    s, d = ours.tensor(source, codes, shape), ours.tensor(target, mine, shape)
    op = ng.judge.CConvert(C.sizeof(ng.judge.CConvert), ours.cast("inf", nan_sign="keep"))
    call = ours.lib.c.ng_convert

    def convert():
        ours.done(call(ours.ctx, C.byref(op), C.byref(s), C.byref(d)))

    # The loop of astype(), into memory that is there already, as ours has it.
    result = them.view(TYPES[target])
    return Pair(f"{source} -> {target}", peer, shape, convert,
                lambda: np.copyto(result, src, casting="unsafe"), lambda: np.array_equal(mine, them))


def quantize_pair(ours, shape):
    """MXFP8 by the rule `floor`; gfloat in arrays, with one call for the scale of each block."""
    src = values(shape)
    small = src.size <= SMALL
    value = src.astype(np.float64).reshape(-1, 32) if small else None
    mine, scales = np.zeros(shape, np.uint8), np.zeros((shape[0], shape[1] // 32), np.uint8)
    s, d = ours.tensor("f32", src, shape), ours.tensor("e4m3fn", mine, shape)
    d.scale, d.scale_format, d.block, d.block_axis = scales.ctypes.data, ng.judge.FORMAT_CODE["e8m0"], 32, 1
    op = ng.judge.CQuantize(C.sizeof(ng.judge.CQuantize), 0, 0, ours.cast("sat"), 0)
    call = ours.lib.c.ng_quantize
    result = []

    def quantize():
        assert src.size  # `s` only has its address
        ours.done(call(ours.ctx, C.byref(op), C.byref(s), C.byref(d)))

    def theirs():
        info = gf.format_info_mxfp8_e4m3
        scale = np.array([gfloat.compute_scale_amax(info.etype.emax, block) for block in value])
        rounded = gfloat.round_ndarray(info.etype, value / scale[:, None], sat=True)
        result[:] = [gfloat.encode_ndarray(info.etype, rounded.ravel()),
                     gfloat.encode_ndarray(info.stype, scale)]

    def same():
        return np.array_equal(result[0], mine.ravel()) and np.array_equal(result[1], scales.ravel())

    return Pair("f32 -> mx e4m3fn", "gfloat", shape, quantize, theirs if small else None, same)


def pairs(ours, shapes, wanted):
    """One at a time: the large ones take a gigabyte."""
    for shape in shapes:
        for peer, source, target in CASTS:
            if wanted(f"{source} -> {target}"):
                yield cast_pair(ours, peer, source, target, shape)
        if wanted("f32 -> mx e4m3fn"):
            yield quantize_pair(ours, shape)


def cell(x, digits):
    return "-" if x is None else f"{x:.{digits}f}"


def row(pair, refused):
    mine, theirs = pair.rate("ours"), pair.rate("peer")
    ratio = mine / theirs if mine and theirs else None
    spread = max((spread for _, spread in pair.times.values()), default=None)
    shape = "x".join(map(str, pair.shape))
    if refused:
        print(f"{pair.name:<18} {shape:<11} {pair.peer:<10} REFUSED: the results differ")
    else:
        print(f"{pair.name:<18} {shape:<11} {pair.peer:<10} {cell(mine, 4):>9} {cell(theirs, 4):>9} "
              f"{cell(ratio, 3):>8} {cell(spread, 2):>7}", flush=True)
    return dict(name=pair.name, m=pair.shape[0], n=pair.shape[1], threads=1, unit="Gelem/s", peer=pair.peer,
                rate=mine, peer_rate=theirs, ratio=ratio, spread=spread, same=not refused)


def main():
    args = race.options(__doc__, "the small shape only", "f32 -> e4m3fn")
    ours = ng.Ours(args.library)
    print(f"numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}, gfloat {importlib.metadata.version('gfloat')}; "
          f"one thread, median of {args.repetitions}, Gelem/s; ratio: ours / peer's")
    print(f"{'cast':<18} {'shape':<11} {'peer':<10} {'ours':>9} {'peer':>9} {'ratio':>8} {'spread':>7}")
    rows = []
    for pair in pairs(ours, SHAPES[:1] if args.quick else SHAPES, lambda name: re.search(args.filter, name)):
        first = {side: race.timed(call, 1) for side, call in pair.calls.items()}
        refused = "peer" in pair.calls and not pair.same()
        if not refused:
            pair.times = race.race(pair.calls, first, args)
        rows.append(row(pair, refused))
    return race.finish(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
