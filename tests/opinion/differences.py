# SPDX-License-Identifier: Apache-2.0
"""Where the peers differ from docs/numerics.md, and why. Everything else is equal on every bit.

A row names the cases it belongs to (`when`), the inputs there (`where`, a mask) and the codes that the peer
gives for them (`gives`). Opinion.judge() in opinion.py wants exactly these codes for these inputs, and ours for
all others; a code of a row that is ours too fails, and so does a row that no input reached. So a difference
that is gone fails like a new one.
"""
import dataclasses
import typing

import numpy as np

FINITE = ("e3m2", "e2m3", "e2m1", "mxint8")  # neither Inf nor NaN
FNUZ = ("e4m3fnuz", "e5m2fnuz")
UNSIGNED = ("e8m0", "ue4m3")


@dataclasses.dataclass
class Difference:
    peer: str
    name: str
    reason: str
    when: typing.Callable
    where: typing.Callable
    gives: typing.Callable
    cases: int = 0
    inputs: int = 0


def is_nan(case):
    return np.isnan(case.value)


def same(code):
    return lambda case: np.full(case.codes.shape, code)


# ---- NaN ----

def all_ones(case):
    # A tf32 code is a word with 13 low zero bits.
    return {"tf32": 0xFFFFE000, "f16": 0xFFFF, "bf16": 0xFFFF}.get(case.target, 0xFF)


def payload_to_f16(case):
    """The sign and the upper ten bits of the payload, or 1 where these are zero."""
    payload = case.codes >> 13 & 0x3FF
    return case.codes >> 31 << 15 | 0x7C00 | np.where(payload == 0, 1, payload)


def payload_to_f32(case):
    wide = case.codes.astype(np.uint32)
    if case.source == "bf16":
        return wide << 16
    return wide >> 15 << 31 | 0x7F800000 | (wide & 0x3FF) << 13


def opposite_zero(case):
    negative = {"e2m1": 0x8}.get(case.target, 0x20)
    return np.where(np.signbit(case.value) | (case.source in FNUZ), 0, negative)


def negative_nan(case):
    return case.ask(np.full(case.codes.shape, 0xFFC00000, np.uint32), source="f32", nan_sign="keep")


# ---- e8m0 ----

def odd_tie(case):
    """Half way between two powers of two, the lower of which has the even code."""
    fraction, exponent = np.frexp(case.value)
    return (fraction == 0.75) & (exponent % 2 == 0)


def below_e8m0(case):
    """Exponents as on a grid without an end below (ours of 2^64 times the value), with gfloat's ties."""
    small = np.where((case.value > 0) & (case.value < 2.0**-100), case.value * 2.0**64, 1)
    code = case.ask(small.astype(np.float32).view(np.uint32), source="f32").astype(np.int64) - 64
    return np.where(small == 1, 0, code - odd_tie(case) if case.round == "rne" else code)


# ---- mxint8 ----

def rounds_to_128(case):
    """Rounds to -128/64 or less."""
    if case.round == "sr":
        # Between -128/64 and -127/64 the word decides, as it does one higher.
        doubt = (case.value < -127 / 64) & (case.value > -128 / 64)
        higher = np.where(doubt, case.value + 1, 0).astype(np.float32).view(np.uint32)
        return (case.value <= -128 / 64) | doubt & (case.ask(higher, source="f32") == 0xC0)
    whole = {"rne": np.rint, "rtz": np.trunc, "rup": np.ceil, "rdn": np.floor,
             "rna": lambda x: np.trunc(x + np.copysign(0.5, x))}[case.round]
    return whole(case.value * 64) <= -128


# ---- Stochastic rounding ----

def rounded_sum(case):
    """The discarded fraction plus the random number is below 1, and 1 when rounded to FP64."""
    v = np.abs(case.value)
    v = np.where(np.isfinite(v) & (v > 0), v, 1.0)
    exponent = np.frexp(v)[1] - 1
    if case.info.has_subnormals:
        exponent = np.maximum(exponent, 1 - case.info.bias)
    scaled = np.ldexp(v, case.info.precision - 1 - exponent)
    fraction = scaled - np.floor(scaled)
    word = case.words.astype(np.float64)
    number = word * 2.0**-case.sr_bits if case.sr == "a" else (2 * word + 1) * 2.0**-(case.sr_bits + 1)
    total = fraction + number
    back = total - fraction
    error = (fraction - (total - back)) + (number - back)  # exact: total + error = fraction + number
    return (total == 1) & (error < 0) & np.isfinite(case.value) & (case.value != 0)


def next_away(case):
    up, down = (case.ask(case.codes, round=r) for r in ("rup", "rdn"))
    return np.where(np.signbit(case.value), down, up)


def cast(peer, *targets):
    return lambda c: c.what == "encode" and c.peer == peer and (not targets or c.target in targets)


DIFFERENCES = [
    Difference(
        "numpy", "NaN's payload into f16",
        "sign and upper bits of the payload are kept, signalling or not; ours is canonical (section 2)",
        cast("numpy", "f16"),
        lambda c: is_nan(c) & (payload_to_f16(c) != c.ours), payload_to_f16),
    Difference(
        "numpy", "NaN's payload of f16",
        "sign and payload are kept, signalling or not; ours is canonical (section 2)",
        cast("numpy", "f32"),
        lambda c: is_nan(c) & (payload_to_f32(c) != c.ours), payload_to_f32),
    Difference(
        "ml_dtypes", "NaN's payload of bf16",
        "bf16 to FP32 is a shift, so sign and payload are kept; ours is canonical (section 2)",
        lambda c: cast("ml_dtypes", "f32")(c) and c.source == "bf16",
        lambda c: is_nan(c) & (payload_to_f32(c) != c.ours), payload_to_f32),
    Difference(
        "ml_dtypes", "NaN into a format without",
        "becomes the zero of the opposite sign (its README: undefined); ours follows nan_to (section 2)",
        cast("ml_dtypes", *FINITE), is_nan, opposite_zero),
    Difference(
        "ml_dtypes", "NaN of fnuz is negative",
        "0x80 is read as a NaN with a sign; ours has none (11.1, item 4)",
        lambda c: cast("ml_dtypes")(c) and c.source in FNUZ and c.target not in FNUZ + FINITE,
        is_nan, negative_nan),
    Difference(
        "ml_dtypes", "zero into e8m0",
        "becomes NaN; ours is the least scale, code 0 (11.1, item 2)",
        cast("ml_dtypes", "e8m0"), lambda c: c.value == 0, same(0xFF)),
    Difference(
        "ml_dtypes", "FP32 subnormals into e8m0",
        "between 2^-127 and 1.5 * 2^-127 become 2^-126, where 2^-127 is nearer and is what its own rule gives "
        "everywhere else",
        cast("ml_dtypes", "e8m0"),
        lambda c: (c.value > 2.0**-127) & (c.value < 1.5 * 2.0**-127), same(1)),
    Difference(
        "gfloat", "one NaN",
        "every NaN, and every overflow to NaN, is the code with all bits one; ours is canonical (section 2)",
        lambda c: cast("gfloat")(c) and c.target not in FINITE + FNUZ + UNSIGNED,
        lambda c: c.ours_nan & (c.ours != all_ones(c)), lambda c: same(all_ones(c))(c)),
    Difference(
        "gfloat", "mxint8 has -128",
        "-2 and below are 0x80; ours are -127/64, for -128 is never written (section 1)",
        cast("gfloat", "mxint8"), rounds_to_128, same(0x80)),
    Difference(
        "gfloat", "mxint8 blocks have -128",
        "the same after division by the block's scale",
        lambda c: c.what == "block" and c.target == "mxint8", rounds_to_128, same(0x80)),
    Difference(
        "gfloat", "ties of e8m0",
        "go to the even code, as in P3109; ours go to the even significand, always up (11.1, item 2)",
        lambda c: cast("gfloat", "e8m0")(c) and c.round == "rne",
        lambda c: odd_tie(c) & (c.value > 2.0**-127) & ((c.value < 2.0**127) | (c.overflow == "inf")),
        lambda c: np.frexp(c.value)[1] - 1 + 127),
    Difference(
        "gfloat", "e8m0 has no end below",
        "values that round below 2^-127 give negative integers, which are no codes; ours is code 0 (11.1, item 2)",
        cast("gfloat", "e8m0"), lambda c: below_e8m0(c) < 0, below_e8m0),
    Difference(
        "gfloat", "stochastic sums in FP64",
        "variants a and b add fraction and random number in FP64, where a sum just below 1 becomes 1 and the value "
        "moves; ours are exact (section 2.1)",
        lambda c: cast("gfloat")(c) and c.round == "sr" and c.sr in "ab", rounded_sum, next_away),
]
