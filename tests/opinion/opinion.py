# SPDX-License-Identifier: Apache-2.0
"""A second opinion: the library's codes against those of numpy, ml_dtypes and gfloat.

    opinion.py LIBRARY [--seed N] [--list]

Every code that a peer gives must be ours, bit by bit, but for the differences that differences.py lists, and
these must be as listed. Ends with "opinion: N cases, M codes, X failures"; exit status 1 on a failure, 77 when
a package is missing (requirements.txt).
"""
import argparse
import dataclasses
import importlib.metadata
import sys
import time

try:
    import gfloat
    import gfloat.formats as gf
    import ml_dtypes
    import numpy as np
except ImportError as why:
    print(f"skipped: {why}")
    sys.exit(77)

import ours as ng
from differences import DIFFERENCES, FINITE, UNSIGNED

# The peers' names of our formats. numpy and ml_dtypes: a dtype.
DTYPES = dict(f32="float32", f16="float16", bf16="bfloat16", e5m2="float8_e5m2", e4m3fn="float8_e4m3fn",
              e4m3="float8_e4m3", e3m4="float8_e3m4", e4m3fnuz="float8_e4m3fnuz", e5m2fnuz="float8_e5m2fnuz",
              e3m2="float6_e3m2fn", e2m3="float6_e2m3fn", e2m1="float4_e2m1fn", e8m0="float8_e8m0fnu")


def described(k, precision, bias, high_nans, extended=False, negative_zero=True, signed=True):
    """A format that gfloat does not name."""
    return gfloat.FormatInfo("", k, precision, bias=bias, is_signed=signed,
                             domain=gfloat.Domain.Extended if extended else gfloat.Domain.Finite,
                             has_nz=negative_zero, num_high_nans=high_nans, has_subnormals=True,
                             is_twos_complement=False)


GFLOAT = dict(f16=gf.format_info_binary16, bf16=gf.format_info_bfloat16, e5m2=gf.format_info_ocp_e5m2,
              e4m3fn=gf.format_info_ocp_e4m3, e3m2=gf.format_info_ocp_e3m2, e2m3=gf.format_info_ocp_e2m3,
              e2m1=gf.format_info_ocp_e2m1, e8m0=gf.format_info_ocp_e8m0, mxint8=gf.format_info_ocp_int8,
              tf32=described(19, 11, 127, 2**10 - 1, extended=True),
              e4m3=described(8, 4, 7, 7, extended=True), e3m4=described(8, 5, 3, 15, extended=True),
              e4m3fnuz=described(8, 4, 8, 0, negative_zero=False),
              e5m2fnuz=described(8, 3, 16, 0, negative_zero=False),
              ue4m3=described(7, 4, 7, 1, negative_zero=False, signed=False))
ROUNDS = dict(rne="TiesToEven", rna="TiesToAway", rtz="TowardZero", rup="TowardPositive", rdn="TowardNegative")
STOCHASTIC = dict(a="StochasticFastest", b="StochasticFast", c="Stochastic")
BLOCKS = dict(e5m2=gf.format_info_mxfp8_e5m2, e4m3fn=gf.format_info_mxfp8_e4m3, e3m2=gf.format_info_mxfp6_e3m2,
              e2m3=gf.format_info_mxfp6_e2m3, e2m1=gf.format_info_mxfp4_e2m1, mxint8=gf.format_info_mxint8)


def peer_dtype(fmt):
    return np.dtype(getattr(ml_dtypes, DTYPES[fmt], None) or DTYPES[fmt])


@dataclasses.dataclass
class Case:
    """One call of ours and of a peer's, with what differences.py asks of it."""
    peer: str
    what: str  # decode, encode, scale, block, dequantize
    source: str
    target: str
    codes: np.ndarray  # inputs
    value: np.ndarray  # what they stand for, FP64
    convert: object = None  # Ours.convert
    round: str = "rne"
    overflow: str = "inf"
    sr: str = ""
    sr_bits: int = 0
    words: np.ndarray = None
    info: object = None  # gfloat's format
    ours: np.ndarray = None
    theirs: np.ndarray = None
    ours_nan: np.ndarray = None

    def ask(self, codes, source=None, round=None, nan_sign="keep"):
        """Our codes of these inputs, by this case's rules; peers keep the sign of a NaN."""
        more = {}
        if (round or self.round) == "sr":
            more = dict(sr=self.sr, sr_bits=self.sr_bits, words=self.words)
        return self.convert(source or self.source, codes, self.target, self.overflow, round=round or self.round,
                            nan_sign=nan_sign, **more)

    def __str__(self):
        text = f"{self.peer} {self.what} {self.source} -> {self.target} {self.round} {self.overflow}"
        return text + (f" {self.sr} n={self.sr_bits}" if self.sr else "")


class Opinion:
    def __init__(self, library, seed):
        self.ours = ng.Ours(library)
        self.rng = np.random.default_rng(seed)
        self.cases = self.codes = self.failures = 0
        self.values = {}  # of every code, found by decode()

    def fail(self, text, details=()):
        self.failures += 1
        if self.failures <= 40:
            print("FAILED:", text, *details, sep="\n    ")

    def judge(self, case):
        """Their codes are ours, but for the listed differences, which are as listed."""
        self.cases += 1
        self.codes += case.codes.size
        want = case.ours.astype(np.int64)
        listed = np.zeros(case.codes.shape, np.int32)
        for number, row in enumerate(DIFFERENCES, 1):
            if not row.when(case):
                continue
            where = row.where(case)
            if not where.any():
                continue
            row.cases += 1
            row.inputs += int(where.sum())
            gives = np.asarray(row.gives(case)).astype(np.int64)
            if (listed[where] != 0).any():
                self.fail(f"{case}: '{row.name}' meets '{DIFFERENCES[listed[where].max() - 1].name}'")
            if (gives[where] == case.ours[where]).any():
                self.fail(f"{case}: '{row.name}' lists codes that are ours too")
            want[where] = gives[where]
            listed[where] = number
        wrong = np.flatnonzero(want != case.theirs.astype(np.int64))
        if wrong.size:
            self.fail(f"{case}: {wrong.size} of {case.codes.size} codes are neither ours nor as listed",
                      [self.element(case, i, want, listed) for i in wrong[:4]])

    @staticmethod
    def element(case, i, want, listed):
        why = f"'{DIFFERENCES[listed[i] - 1].name}' wants {want[i]:#x}" if listed[i] else "not listed"
        word = f", word {case.words[i]:#x}" if case.words is not None else ""
        return (f"{case.codes[i]:#x} ({float(case.value[i])!r}{word}): ours {case.ours[i]:#x}, "
                f"theirs {case.theirs[i]:#x}, {why}")

    def value_of(self, fmt, codes):
        if fmt in ng.F32_WORDS:
            return codes.view(np.float32).astype(np.float64)
        return self.values[fmt][codes]

    def is_nan(self, fmt, codes):
        return np.zeros(codes.shape, bool) if fmt in FINITE else np.isnan(self.value_of(fmt, codes))

    # ---- Decode ----

    def decode(self):
        """ng_decode's values of every code of at most 16 bits; a NaN is a NaN."""
        for fmt in ng.narrow_formats():
            codes = ng.all_codes(fmt)
            value = self.values[fmt] = self.ours.decode(fmt, codes)
            if fmt in GFLOAT:
                info = GFLOAT[fmt]
                their = gfloat.decode_ndarray(info, codes.astype(np.int64) % (1 << info.k))  # ue4m3: no sign bit
                self.judge(self.decoded("gfloat", fmt, codes, value, their))
            if fmt in DTYPES:
                peer = "numpy" if fmt == "f16" else "ml_dtypes"
                their = codes.view(peer_dtype(fmt)).astype(np.float64)
                self.judge(self.decoded(peer, fmt, codes, value, their))

    @staticmethod
    def decoded(peer, fmt, codes, value, their):
        def pattern(x):
            return np.where(np.isnan(x), np.nan, x).view(np.int64)
        return Case(peer, "decode", fmt, "FP64", codes, value, ours=pattern(value), theirs=pattern(their))

    # ---- Encode ----

    def fp32_around(self, target):
        """FP32 patterns: every value of the target, the points half way between, the first beyond the
        maximum, each with its neighbours at 1 to 3 units; all upper halves with six lower halves."""
        upper = np.arange(1 << 16, dtype=np.uint32) << 16
        lower = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
        if target == "tf32":
            lower = (0, 0x0FFF, 0x1000, 0x1001, 0x3000, 0xFFFF)
        sets = [upper | np.uint32(low) for low in lower]
        if target not in ng.F32_WORDS:
            v = np.abs(self.values[target])
            v = np.unique(v[np.isfinite(v)])
            with np.errstate(over="ignore"):
                v = np.concatenate([v, [2 * v[-1] - v[-2], 2 * v[-1]]])
                v = np.concatenate([v, (v[1:] + v[:-1]) / 2]).astype(np.float32)
            near = v.view(np.uint32).astype(np.int64)[:, None] + np.arange(-3, 4)
            near = near[near >= 0].astype(np.uint32)
            sets += [near, near | np.uint32(1 << 31)]
        sets.append(np.arange(1 << 10, dtype=np.uint32))
        sets.append(np.uint32(1) << np.arange(32, dtype=np.uint32))
        sets.append(np.array([0x7F800001, 0x7FA00000, 0x7FBFFFFF, 0x7FC00001, 0xFF800001, 0xFFBFFFFF], np.uint32))
        return np.unique(np.concatenate(sets))

    def random(self, n):
        return self.rng.integers(0, 1 << 32, n, dtype=np.uint32)

    def encode(self, case, theirs):
        case.convert = self.ours.convert
        case.ours = case.ask(case.codes)
        case.ours_nan = self.is_nan(case.target, case.ours)
        case.theirs = theirs(case)
        self.judge(case)

    def encode_dtypes(self):
        """FP32 and every narrower type to every other, by the cast of numpy and ml_dtypes: rne; Inf and NaN
        past the maximum where there are, the maximum elsewhere."""
        for target in DTYPES:
            for source in DTYPES:
                if source == target or "e8m0" in (source, target) and not {source, target} & {"f32", "f16", "bf16"}:
                    continue  # ml_dtypes has no cast between e8m0 and 8 bits or fewer
                if source == "f32":
                    codes = np.concatenate([self.fp32_around(target), self.random(1 << 22)])
                else:
                    codes = ng.all_codes(source)
                peer = "numpy" if {source, target} == {"f32", "f16"} else "ml_dtypes"
                case = Case(peer, "encode", source, target, codes, self.value_of(source, codes),
                            overflow="sat" if target in FINITE else "inf")
                self.encode(case, lambda c: c.codes.view(peer_dtype(c.source)).astype(peer_dtype(c.target))
                            .view(ng.dtype(c.target)))

    def takes(self, target, codes, value):
        """What gfloat encodes: no NaN where there is none, no negative value where there is no sign."""
        take = ~np.isnan(value) if target in FINITE else np.ones(codes.shape, bool)
        if target in UNSIGNED:
            take &= ~(value < 0)
        return codes[take], value[take]

    @staticmethod
    def gfloat_codes(case):
        mode = gfloat.RoundMode[STOCHASTIC[case.sr] if case.sr else ROUNDS[case.round]]
        words = None if case.words is None else case.words.astype(np.int64)
        rounded = gfloat.round_ndarray(case.info, case.value, mode, case.overflow == "sat", words, case.sr_bits)
        codes = gfloat.encode_ndarray(case.info, rounded).astype(np.int64)
        return codes << 13 if case.target == "tf32" else codes

    def encode_gfloat(self):
        """FP32, bf16 and f16 to every format, five roundings, saturating and not."""
        for target, info in GFLOAT.items():
            around = self.fp32_around(target)
            for mode in ROUNDS:
                for overflow in ("sat",) if target in FINITE else ("inf", "sat"):
                    fresh = self.random(1 << (20 if (mode, overflow) == ("rne", "sat") else 17))
                    for source, codes in (("f32", np.concatenate([around, fresh])),
                                          ("bf16", ng.all_codes("bf16")), ("f16", ng.all_codes("f16"))):
                        if source != target:
                            codes, value = self.takes(target, codes, self.value_of(source, codes))
                            self.encode(Case("gfloat", "encode", source, target, codes, value, round=mode,
                                             overflow=overflow, info=info), self.gfloat_codes)

    def encode_stochastic(self):
        """Variants a, b, c with given words of 1 to 32 bits: none, all, and random ones."""
        for target, info in GFLOAT.items():
            around = self.fp32_around(target)
            for n in (1, 4, 8, 13, 24, 32):
                codes = np.concatenate([self.rng.choice(around, 1 << 16), self.short_of_one(info, n)])
                codes, value = self.takes(target, codes, self.value_of("f32", codes))
                words = self.rng.integers(0, 1 << n, codes.size, dtype=np.uint32)
                kind = self.rng.integers(0, 4, codes.size)
                words[kind == 0] = 0
                words[kind >= 2] = (1 << n) - 1
                for sr in STOCHASTIC:
                    overflow = "sat" if target in FINITE or n == 8 else "inf"
                    self.encode(Case("gfloat", "encode", "f32", target, codes, value, round="sr", sr=sr, sr_bits=n,
                                     words=words, overflow=overflow, info=info), self.gfloat_codes)

    @staticmethod
    def short_of_one(info, n):
        """Values whose fraction is near one unit, or half, of an n-bit random number: with the largest such
        number the sum is just below or just above 1."""
        if not info.has_subnormals:
            return np.zeros(0, np.uint32)
        step = 1 - info.bias - (info.precision - 1)
        unit = np.ldexp(np.float32(1), np.array([step - n, step - n - 1])).view(np.uint32).astype(np.int64)
        near = (unit[:, None] + np.arange(-8, 9)).ravel()
        near = near[near > 0].astype(np.uint32)
        return np.tile(np.concatenate([near, near | np.uint32(1 << 31)]), 8)

    def refusals(self):
        """Formats with neither Inf nor NaN: both refuse overflow without saturation, and NaN where told to."""
        def refused(call):
            self.codes += 1
            try:
                call()
            except (ValueError, AssertionError):
                return True
            return False

        big, nan = np.array([0x7F000000], np.uint32), np.array([0x7FC00000], np.uint32)
        for target in FINITE:
            self.cases += 1
            info = GFLOAT[target]
            for who, call in (
                ("ours, overflow", lambda: self.ours.convert("f32", big, target, "inf")),
                ("ours, NaN", lambda: self.ours.convert("f32", nan, target, "sat", nan_to="error")),
                ("gfloat, overflow", lambda: gfloat.round_ndarray(info, np.array([1e30]))),
                ("gfloat, NaN", lambda: gfloat.encode_ndarray(info, np.array([np.nan])))):
                if not refused(call):
                    self.fail(f"{target}: not refused by {who}")

    # ---- Blocks ----

    def block_values(self, blocks):
        """Blocks of 32 FP32 patterns: narrow and wide, at both ends of the exponents, powers of two less and
        plus a unit, with zeros, all zero; finite."""
        shape = (blocks, 32)
        exponent = self.rng.integers(0, 255, (blocks, 1)) - self.rng.integers(0, 12, shape) * \
            self.rng.integers(0, 3, (blocks, 1))
        fraction = self.rng.integers(0, 1 << 23, shape)
        edge = self.rng.integers(0, 4, (blocks, 1)) == 0
        fraction = np.where(edge, self.rng.choice([0, 1, (1 << 23) - 1, 3 << 21, 7 << 20, 15 << 19], shape), fraction)
        codes = np.clip(exponent, 0, 254) << 23 | fraction | self.rng.integers(0, 2, shape) << 31
        codes[self.rng.integers(0, 16, shape) == 0] = 0
        codes[::97] &= 1 << 31
        return codes.astype(np.uint32)

    def blocks(self):
        """MX blocks by the OCP rule, as gfloat has it; its own block encoder on some of them."""
        codes = {"f32": self.block_values(1 << 13)}
        codes["bf16"] = (codes["f32"] >> 16).astype(np.uint16)
        for target, info in BLOCKS.items():
            for source in codes:
                value = self.value_of(source, codes[source])
                scale = np.array([gfloat.compute_scale_amax(info.etype.emax, v) for v in value])
                quotient = value / scale[:, None]
                elements, scales = self.ours.quantize(codes[source], target, "floor", source=source)
                self.judge(Case("gfloat", "scale", source, "e8m0", codes[source][:, 0], value[:, 0],
                                ours=scales[:, 0],
                                theirs=gfloat.encode_ndarray(info.stype, scale).astype(np.int64)))
                rounded = gfloat.round_ndarray(info.etype, quotient.ravel(), sat=True)
                self.judge(self.block(source, target, codes[source], quotient, elements,
                                      gfloat.encode_ndarray(info.etype, rounded).astype(np.int64)))
                some = slice(0, 97 * 2, 2)
                theirs = np.array([list(gfloat.encode_block(info, s, q))
                                   for s, q in zip(scale[some], quotient[some])])
                self.judge(self.block(source, target, codes[source][some], quotient[some], elements[some],
                                      theirs[:, 1:]))
                self.judge(Case("gfloat", "scale", source, "e8m0", codes[source][some, 0], value[some, 0],
                                ours=scales[some, 0], theirs=theirs[:, 0]))

    @staticmethod
    def block(source, target, codes, quotient, ours, theirs):
        return Case("gfloat", "block", source, target, codes.ravel(), quotient.ravel(), overflow="sat",
                    ours=ours.ravel(), theirs=theirs.ravel())

    def dequantize(self):
        """Every scale times every element into FP32; numpy rounds the peers' FP64 products."""
        for fmt, info in BLOCKS.items():
            elements, scales = ng.all_codes(fmt), ng.all_codes("e8m0")
            codes = np.resize(elements, (256, max(elements.size, 32)))
            per_line = np.repeat(scales[:, None], codes.shape[1] // 32, axis=1).copy()
            ours = self.ours.dequantize(fmt, codes, per_line)
            theirs = [("gfloat", gfloat.decode_ndarray(info.stype, scales.astype(np.int64))[:, None]
                       * gfloat.decode_ndarray(info.etype, codes.astype(np.int64))),
                      ("gfloat", np.array([list(gfloat.decode_block(info, [int(s), *map(int, line)]))
                                           for s, line in zip(scales[::5], codes[::5, -32:])]))]
            if fmt in DTYPES:
                theirs.append(("ml_dtypes", scales.view(peer_dtype("e8m0")).astype(np.float64)[:, None]
                               * codes.view(peer_dtype(fmt)).astype(np.float64)))
            for peer, product in theirs:
                mine = ours if product.shape == ours.shape else ours[::5, -32:]
                f32 = np.where(np.isnan(product), np.nan, product).astype(np.float32).view(np.uint32)
                self.judge(Case(peer, "dequantize", fmt, "f32", mine.ravel(), product.ravel(), ours=mine.ravel(),
                                theirs=f32.ravel()))


def table():
    for row in DIFFERENCES:
        seen = f"{row.inputs} inputs in {row.cases} cases" if row.cases else "not asked"
        print(f"{row.peer}: {row.name}: {row.reason} [{seen}]")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="the listed differences")
    args = parser.parse_args()
    if args.list:
        table()
        return 0
    np.seterr(all="ignore")
    print(f"numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}, gfloat "
          f"{importlib.metadata.version('gfloat')}, seed {args.seed}")
    print("not here: torch, whose wheel for x86-64 Linux is the one for CUDA; torch_routing.py has Debian's build")
    print("skipped: NVFP4 and all scale rules but floor: none of these peers has them")
    opinion = Opinion(args.library, args.seed)
    for part in (opinion.decode, opinion.encode_dtypes, opinion.encode_gfloat, opinion.encode_stochastic,
                 opinion.refusals, opinion.blocks, opinion.dequantize):
        begin, cases, codes = time.monotonic(), opinion.cases, opinion.codes
        part()
        print(f"{part.__name__}: {opinion.cases - cases} cases, {opinion.codes - codes} codes "
              f"({time.monotonic() - begin:.1f} s)", flush=True)
    print("listed differences:")
    table()
    for row in DIFFERENCES:
        if not row.inputs:
            opinion.fail(f"'{row.name}' is listed and no input reached it")
    print(f"opinion: {opinion.cases} cases, {opinion.codes} codes, {opinion.failures} failures")
    return opinion.failures != 0


if __name__ == "__main__":
    sys.exit(main())
