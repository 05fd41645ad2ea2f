# SPDX-License-Identifier: Apache-2.0
"""An independent model of docs/numerics.md in exact arithmetic.

Written from that page alone: it shares no code and no structure with the C library. Section
numbers below are the page's. Conversions and block scaling work on fractions.Fraction. The
multiplies work on Python integers in units of 2^-UNIT, which is exact too: no product, scale or
sum of the page has a bit below it.
"""

from fractions import Fraction
from functools import lru_cache

# ------------------------------------------------------------------------------------------------
# Section 1: formats
# ------------------------------------------------------------------------------------------------


class Format:
    """One row of the table of section 1."""

    def __init__(self, name, bits, exp, man, bias, kind, nan, low=0, store=None):
        self.name, self.bits, self.exp, self.man, self.bias = name, bits, exp, man, bias
        self.kind, self.nan, self.low, self.store = kind, nan, low, store or bits
        self.emin = 1 - bias if kind != "scale" else -bias  # least normal exponent
        self.signed = kind not in ("ufn", "scale")
        self.negzero = kind in ("ieee", "fn", "finite")
        self.has_inf = kind == "ieee"
        self.has_nan = kind not in ("finite", "int")
        if kind == "ieee":
            self.max_code = (((1 << exp) - 1) << man) - 1
        elif kind in ("fn", "ufn"):
            self.max_code = (1 << (exp + man)) - 2
        elif kind == "scale":
            self.max_code = 0xFE
        else:  # fnuz, finite, int: every code below the sign is a number
            self.max_code = (1 << (exp + man)) - 1
        self.max_code <<= low
        self.sign_bit = 1 << (exp + man + low)

    def __repr__(self):
        return self.name


FORMATS = {
    f.name: f
    for f in (
        Format("f32", 32, 8, 23, 127, "ieee", 0x7FC00000),
        Format("tf32", 32, 8, 10, 127, "ieee", 0x7FC00000, low=13),
        Format("bf16", 16, 8, 7, 127, "ieee", 0x7FC0),
        Format("f16", 16, 5, 10, 15, "ieee", 0x7E00),
        Format("e5m2", 8, 5, 2, 15, "ieee", 0x7E),
        Format("e4m3fn", 8, 4, 3, 7, "fn", 0x7F),
        Format("e4m3", 8, 4, 3, 7, "ieee", 0x7C),
        Format("e3m4", 8, 3, 4, 3, "ieee", 0x78),
        Format("e4m3fnuz", 8, 4, 3, 8, "fnuz", 0x80),
        Format("e5m2fnuz", 8, 5, 2, 16, "fnuz", 0x80),
        Format("e3m2", 6, 3, 2, 3, "finite", None, store=8),
        Format("e2m3", 6, 2, 3, 1, "finite", None, store=8),
        Format("e2m1", 4, 2, 1, 1, "finite", None),
        Format("e8m0", 8, 8, 0, 127, "scale", 0xFF),
        Format("ue4m3", 8, 4, 3, 7, "ufn", 0x7F),
        Format("mxint8", 8, 1, 6, 1, "int", None),
    )
}

FINITE, INF, NAN = 0, 1, 2


class Num:
    """A number: kind, exact value x (FINITE), and its sign (which zeros, Inf and NaN have too)."""

    __slots__ = ("kind", "x", "neg")

    def __init__(self, kind, x, neg):
        self.kind, self.x, self.neg = kind, x, neg

    def __repr__(self):
        s = "-" if self.neg else "+"
        if self.kind == NAN:
            return s + "nan"
        if self.kind == INF:
            return s + "inf"
        return "%s%s (%.9g)" % (s, abs(self.x), float(self.x)) if abs(self.x) < 2**1000 else s + "big"


def num(x, neg=None):
    """A finite number; the sign of a zero is given apart."""
    return Num(FINITE, x, x < 0 if neg is None or x != 0 else neg)


NOT_A_NUMBER = Num(NAN, 0, False)


def infinity(neg):
    return Num(INF, 0, neg)


def pow2(e):
    return Fraction(1 << e) if e >= 0 else Fraction(1, 1 << -e)


def floor_log2(x):
    """floor(log2 x) of a positive rational, by integers alone."""
    n, d = Fraction(x).as_integer_ratio()
    e = n.bit_length() - d.bit_length()
    return e if (n >= d << e if e >= 0 else n << -e >= d) else e - 1


def ceil_log2(x):
    e = floor_log2(x)
    return e if pow2(e) == x else e + 1


@lru_cache(maxsize=1 << 18)
def decode(fmt, code):
    """Sections 1, 11.1.1 and 11.1.3: what a code stands for."""
    f = FORMATS[fmt]
    code &= (1 << f.bits) - 1
    if f.kind == "scale":
        return NOT_A_NUMBER if code == 0xFF else num(pow2(code - 127))
    if f.kind == "int":
        return num(Fraction(code - 256 if code >= 128 else code, 64))
    if f.low:  # a tf32 word is an FP32 pattern
        return decode("f32", code)
    neg = bool(code & f.sign_bit) and f.signed
    mag = code & (f.sign_bit - 1)
    e, m = mag >> f.man, mag & ((1 << f.man) - 1)
    if f.kind == "ieee" and e == (1 << f.exp) - 1:
        return Num(NAN, 0, neg) if m else infinity(neg)
    if f.kind in ("fn", "ufn") and mag == f.sign_bit - 1:
        return Num(NAN, 0, neg)
    if f.kind == "fnuz" and code == f.sign_bit:
        return NOT_A_NUMBER
    x = Fraction(m + ((1 << f.man) if e else 0)) * pow2((e if e else 1) - f.bias - f.man)
    return num(-x if neg else x, neg)


def max_value(fmt):
    return decode(fmt, FORMATS[fmt].max_code).x


# ------------------------------------------------------------------------------------------------
# Section 2: conversion
# ------------------------------------------------------------------------------------------------


class Cast:
    """How a value becomes a code: the fields of section 2."""

    def __init__(self, round="rne", overflow="inf", nan_sign="clear", nan_to="max", sr="a",
                 sr_bits=32, sr_take="low"):
        self.round, self.overflow, self.nan_sign, self.nan_to = round, overflow, nan_sign, nan_to
        self.sr, self.sr_bits, self.sr_take = sr, sr_bits or 32, sr_take

    def __repr__(self):
        s = "%s %s nan_sign=%s nan_to=%s" % (self.round, self.overflow, self.nan_sign, self.nan_to)
        return s + (" sr_%s/%d/%s" % (self.sr, self.sr_bits, self.sr_take) if self.round == "sr" else "")


class Refused(Exception):
    """The page says that this conversion is an error."""


def sr_away(v, cast, word):
    """Section 2.1: whether a discarded fraction v in (0, 1) is rounded away from zero."""
    n = cast.sr_bits
    r = word >> (32 - n) if cast.sr_take == "high" else word & ((1 << n) - 1)
    if cast.sr == "a":
        return v.numerator * (1 << n) // v.denominator + r >= 1 << n
    if cast.sr == "b":
        return v.numerator * (1 << (n + 1)) // v.denominator + 2 * r + 1 >= 1 << (n + 1)
    return round(v * (1 << n)) + r >= 1 << n  # Python rounds a Fraction to nearest even


def to_integer(t, mode, neg, cast=None, word=0):
    """Round a magnitude t (in units of the last kept place) to an integer."""
    k = t.numerator // t.denominator
    v = t - k
    if v == 0:
        return k
    half = Fraction(1, 2)
    if mode == "rne":
        return k + 1 if v > half or (v == half and k & 1) else k
    if mode == "rna":
        return k + 1 if v >= half else k
    if mode == "rtz":
        return k
    if mode == "rup":
        return k if neg else k + 1
    if mode == "rdn":
        return k + 1 if neg else k
    if mode == "rto":
        return k | 1
    if mode == "sr":
        return k + 1 if sr_away(v, cast, word) else k
    raise ValueError(mode)


def overflow_is_inf(mode, neg):
    """Section 11.1.5: whether a finite value past the maximum becomes Inf under rule `inf`."""
    if mode in ("rtz", "rto"):
        return False
    if mode == "rup":
        return not neg
    if mode == "rdn":
        return neg
    return True


def pattern(f, mag):
    """The code (without sign) of a magnitude that is on the format's grid."""
    if f.kind == "scale":
        return floor_log2(mag) + 127
    if f.kind == "int":
        return int(mag * 64)
    if mag == 0:
        return 0
    e = max(floor_log2(mag), f.emin)
    m = mag / pow2(e - f.man)
    assert m.denominator == 1
    m = int(m)
    # A subnormal has m < 2^man and field 0; a normal one carries its hidden bit into the field.
    return (((e + f.bias - 1) << f.man) + m) << f.low


def encode(fmt, value, cast, word=0):
    """Section 2 with 11.1: NaN rule, round on the continued grid, overflow rule, signed zero."""
    f = FORMATS[fmt]
    if cast.overflow == "inf" and not f.has_inf and not f.has_nan:
        raise Refused("overflow inf")

    def sign(neg):
        return f.sign_bit if neg else 0

    def nan(neg):
        if not f.has_nan:
            if cast.nan_to == "error":
                raise Refused("nan")
            return f.max_code if cast.nan_to == "max" else 0
        return f.nan | (sign(neg) if cast.nan_sign == "keep" and f.signed else 0)

    def inf(neg):
        return (((1 << f.exp) - 1) << (f.man + f.low)) | sign(neg) if f.has_inf else nan(neg)

    def largest(neg):
        if f.kind == "int":
            return -f.max_code & 0xFF if neg else f.max_code
        return f.max_code | sign(neg)

    if value.kind == NAN:
        return nan(value.neg)
    if not f.signed and value.neg and (value.kind == INF or value.x != 0):
        return nan(value.neg)
    if value.kind == INF:
        return largest(value.neg) if cast.overflow == "sat" else inf(value.neg)
    mag = abs(value.x)
    if f.kind == "scale" and mag < pow2(-127):
        return 0
    if mag:
        q = pow2(max(floor_log2(mag), f.emin) - f.man)
        mag = to_integer(Fraction(mag) / q, cast.round, value.neg, cast, word) * q
    if mag > max_value(fmt):
        if cast.overflow == "inf" and overflow_is_inf(cast.round, value.neg):
            return inf(value.neg)
        return largest(value.neg)
    code = pattern(f, mag)
    if f.kind == "int":
        return -code & 0xFF if value.neg else code
    if value.neg and f.signed and (mag or f.negzero):
        code |= f.sign_bit
    return code


RNE = Cast()
SAT = Cast(overflow="sat")


def fp32(value):
    """RN of the page: the FP32 number nearest to a Num or Fraction, as a Num."""
    if not isinstance(value, Num):
        value = num(Fraction(value))
    return decode("f32", encode("f32", value, RNE))


def fp32_mul(a, b):
    return fp32(a.x * b.x) if a.kind == FINITE == b.kind else _fp32_mul_special(a, b)


def _fp32_mul_special(a, b):
    if a.kind == NAN or b.kind == NAN or (a.kind == FINITE and a.x == 0) or (b.kind == FINITE and b.x == 0):
        return NOT_A_NUMBER
    return infinity(a.neg != b.neg)


# ------------------------------------------------------------------------------------------------
# Section 3: block scaling
# ------------------------------------------------------------------------------------------------

EMAX = {"e4m3fn": 8, "e5m2": 15, "e3m2": 4, "e2m3": 2, "e2m1": 2, "mxint8": 0}
FLT_MAX = max_value("f32")


def emax(fmt):
    """floor(log2 max) of section 3.1; the formats it does not list follow the same words."""
    e = floor_log2(max_value(fmt))
    assert EMAX.get(fmt, e) == e
    return e


def block_of(k, K, block, layout):
    """Sections 3.3 and 11.2.18: the index along the block axis of the scale of element k."""
    if layout != "trn_wrap":
        return k // block
    tile, j = divmod(k, 512)
    P = min(512, K - 512 * tile) // 4
    return (tile * 128 + j % P) // 8


def block_count(K, block):
    return -(-K // block)


def mx_exponent(a, fmt, rule):
    """Section 3.1: the unbiased, unclamped exponent from the largest magnitude a > 0."""
    if rule == "floor":
        return floor_log2(a) - emax(fmt)
    if rule == "floor_up1":
        return floor_log2(a) - (emax(fmt) - 1)
    if rule == "ceil":
        return ceil_log2(a) - emax(fmt)
    if rule == "even":
        return floor_log2(a + pow2(floor_log2(a) - FORMATS[fmt].man - 1)) - emax(fmt)
    if rule == "rceil":
        return ceil_log2(Fraction(a) / max_value(fmt))
    raise ValueError(rule)


def quantize_mx_block(values, fmt, rule, special, cast, words):
    """Sections 3.1, 11.5.30 and 11.5.31: (scale code, element codes) of one block."""
    has_nan = any(v.kind == NAN for v in values)
    has_special = has_nan or any(v.kind == INF for v in values)
    if (special == "nan_block" and has_special) or (has_nan and not FORMATS[fmt].has_nan):
        return 0xFF, [0] * len(values)
    a = max([abs(v.x) for v in values if v.kind == FINITE], default=Fraction(0))
    if special == "from_exponent" and has_special:
        a = max(a, pow2(128))
    e = -127 if a == 0 else min(127, max(-127, mx_exponent(a, fmt, rule)))
    sat = Cast(cast.round, "sat", cast.nan_sign, cast.nan_to, cast.sr, cast.sr_bits, cast.sr_take)
    out = []
    for v, w in zip(values, words):
        if v.kind == FINITE:
            v = num(v.x / pow2(e), v.neg)
        out.append(encode(fmt, v, sat, w))
    return e + 127, out


def nvfp4_tensor(values, rule, amax=0):
    """Sections 11.5.32 and 33: S_enc (te) or S (exact), and the tensor scale's FP32 pattern."""
    if amax:
        G = decode("f32", amax).x
    else:
        G = fp32(max([abs(v.x) for v in values if v.kind == FINITE], default=Fraction(0))).x
    if rule == "nvfp4_te":
        s = fp32(Fraction(2688) / G) if G else num(Fraction(1))
        S = FLT_MAX if s.kind == INF else s.x
        if S == 0:
            S = Fraction(1)
        return S, encode("f32", num(1 / S), RNE)
    S = fp32(G / 2688).x
    if S == 0:
        S = Fraction(1)
    return S, encode("f32", num(S), RNE)


def quantize_nv_block(values, rule, special, S, cast, words):
    """Sections 11.5.32 and 33: (scale code, element codes) of one block of 16."""
    if any(v.kind == NAN for v in values) or (special == "nan_block" and any(v.kind == INF for v in values)):
        return 0x7F, [0] * len(values)
    a = max([abs(v.x) for v in values if v.kind == FINITE], default=Fraction(0))
    if rule == "nvfp4_te":
        t = fp32_mul(fp32(a), fp32(S * fp32(Fraction(1, 6)).x))
        scale = encode("ue4m3", t, SAT)
    else:
        scale = encode("ue4m3", num(a / (6 * S)), SAT)
    q = decode("ue4m3", scale).x
    sat = Cast(cast.round, "sat", cast.nan_sign, cast.nan_to, cast.sr, cast.sr_bits, cast.sr_take)
    out = []
    for v, w in zip(values, words):
        if v.kind == INF:
            y = v
        elif q == 0:
            y = num(Fraction(0), v.neg)
        elif rule == "nvfp4_te":
            d = fp32(q * fp32(1 / S).x).x
            enc = fp32(1 / d) if d else infinity(False)
            enc = FLT_MAX if enc.kind == INF else enc.x
            y = fp32(v.x * enc)
            y = Num(y.kind, y.x, v.neg)
        else:
            y = num(v.x / (q * S), v.neg)
        if q == 0 and v.kind == INF:
            y = num(Fraction(0), v.neg)
        out.append(encode("e2m1", y, sat, w))
    return scale, out


def dequantize(fmt, code, scale_fmt, scale, tensor_scale, to, cast, word=0):
    """Section 11.5.34: scale, element and tensor scale multiplied exactly, then one conversion."""
    v = decode(fmt, code)
    for s in (decode(scale_fmt, scale), decode("f32", tensor_scale) if tensor_scale else None):
        if s is None:
            continue
        if NAN in (v.kind, s.kind):
            v = NOT_A_NUMBER  # a product's NaN has no sign
        elif v.kind == INF or s.kind == INF:
            zero = (v.kind == FINITE and v.x == 0) or (s.kind == FINITE and s.x == 0)
            v = NOT_A_NUMBER if zero else infinity(v.neg != s.neg)
        else:
            v = num(v.x * s.x, v.neg != s.neg)
    return encode(to, v, cast, word)


def scale_bytes(store, lines, blocks, tile_rows=128):
    """The size of a scale memory with its padding."""
    if store == "linear":
        return lines * blocks
    if store == "trn_sbuf":
        return -(-blocks // (tile_rows // 8)) * 128 * lines
    return -(-lines // 128) * -(-blocks // 4) * 512


def scale_address(store, line, block, lines, blocks, tile_rows=128, offset=0):
    """Sections 3.3 and 11.5.35: the byte of the scale of a block."""
    if store == "linear":
        return line * blocks + block
    if store == "trn_sbuf":
        t, g = divmod(block, tile_rows // 8)
        return (t * 128 + 32 * (g // 4) + offset + g % 4) * lines + line
    tile = (line // 128) * -(-blocks // 4) + block // 4
    return tile * 512 + (line % 32) * 16 + ((line % 128) // 32) * 4 + block % 4


def scale_move(src, frm, to, lines, blocks, tile_rows=128, offset=0):
    """Move scales between storage orders; what is not a scale is 0."""
    out = bytearray(scale_bytes(to, lines, blocks, tile_rows))
    for r in range(lines):
        for c in range(blocks):
            out[scale_address(to, r, c, lines, blocks, tile_rows, offset)] = src[
                scale_address(frm, r, c, lines, blocks, tile_rows, offset)
            ]
    return bytes(out)


# ------------------------------------------------------------------------------------------------
# Sums for section 4: Nums whose x is an integer in units of 2^-UNIT
# ------------------------------------------------------------------------------------------------

UNIT = 1024


@lru_cache(maxsize=1 << 18)
def fixed(fmt, code):
    """decode() in units of 2^-UNIT."""
    return to_fixed(decode(fmt, code))


def to_fixed(v):
    if v.kind != FINITE:
        return v
    n, d = Fraction(v.x).as_integer_ratio()
    scaled, rest = divmod(n << UNIT, d)
    assert rest == 0
    return Num(FINITE, scaled, v.neg)


def to_fraction(v):
    return Num(v.kind, Fraction(v.x, 1 << UNIT), v.neg) if v.kind == FINITE else v


def exponent(x):
    """floor(log2 |x|) of a non-zero integer in units of 2^-UNIT."""
    return abs(x).bit_length() - 1 - UNIT


def to_multiple(x, q, mode):
    """Round x to a multiple of 2^q."""
    s = q + UNIT
    if s <= 0 or x == 0:
        return x
    m = -x if x < 0 else x
    k, rest = m >> s, m & ((1 << s) - 1)
    if rest:
        half = 1 << (s - 1)
        if mode == "rne":
            k += rest > half or (rest == half and k & 1)
        elif mode == "rna":
            k += rest >= half
        elif mode == "rup":
            k += x > 0
        elif mode == "rdn":
            k += x < 0
        elif mode == "rto":
            k |= 1
        elif mode != "rtz":
            raise ValueError(mode)
    return -(k << s) if x < 0 else k << s


def to_float(v, bits, mode, emin=None, emax=None, always_inf=False, ftz=False):
    """Round to `bits` significant bits. emin: least normal exponent (gradual underflow below it),
    None for no underflow; emax: greatest exponent, None for no overflow. always_inf: past the
    maximum lies Inf whatever the mode. ftz: subnormal results become zeros of the same sign."""
    if v.kind != FINITE or v.x == 0:
        return v
    e = exponent(v.x)
    if emin is not None and e < emin:
        e = emin
    x = to_multiple(v.x, e - bits + 1, mode)
    if emax is not None and abs(x) >= 1 << (emax + 1 + UNIT):
        if always_inf or overflow_is_inf(mode, v.neg):
            return infinity(v.neg)
        x = ((1 << bits) - 1) << (emax - bits + 1 + UNIT)
        x = -x if v.neg else x
    if ftz and abs(x) < 1 << (emin + UNIT):
        x = 0
    return Num(FINITE, x, v.neg)


def rn32(v, mode="rne"):
    """Into FP32, gradual underflow, overflow by the mode."""
    return to_float(v, 24, mode, -126, 127)


def total(terms):
    """The exact sum. Section 4.1.8: zero is +0 unless every term is -0."""
    s, neg, inf = 0, True, None
    for t in terms:
        if t.kind == FINITE:
            s += t.x
            neg = neg and t.neg
        elif t.kind == NAN or (inf is not None and inf.neg != t.neg):
            return NOT_A_NUMBER
        else:
            inf = t
    if inf is not None:
        return inf
    return Num(FINITE, s, s < 0 if s else neg and bool(terms))


PLUS_ZERO = Num(FINITE, 0, False)


def times(a, b):
    """The exact product of two Nums in fixed units."""
    neg = a.neg != b.neg
    if a.kind == FINITE and b.kind == FINITE:
        return Num(FINITE, (a.x * b.x) >> UNIT, neg)  # nothing lies below: see UNIT
    if a.kind == NAN or b.kind == NAN or (a.kind == FINITE and a.x == 0) or (b.kind == FINITE and b.x == 0):
        return NOT_A_NUMBER
    return infinity(neg)


def scaled(v, scales):
    """A product times its scales (sections 4.1.3 and 11.2.16)."""
    for s in scales:
        if s.kind == NAN:
            return NOT_A_NUMBER
        v = times(v, s)
    return v


def is_zero(v):
    return v.kind == FINITE and v.x == 0


# ------------------------------------------------------------------------------------------------
# Operands of one element of D
# ------------------------------------------------------------------------------------------------


class Line:
    """The K operands of one row of A or column of B: format, codes, and scales by element."""

    def __init__(self, fmt, codes, scale_fmt=None, scales=None, layout="linear"):
        self.fmt, self.codes = fmt, codes
        self.scale_fmt, self.scales, self.layout = scale_fmt, scales, layout

    def gather(self, index):
        """The elements that the slots of a sparse partner select (section 4.3)."""
        return Line(self.fmt, [self.codes[i] for i in index])


def slots(tags, kept, group):
    """Section 4.3: slot s of a compressed line takes the dense element N*g + tag(s)."""
    return [group * (s // kept) + t for s, t in enumerate(tags)]


def read_tags(raw, n, store):
    """Section 4.3: n tags from one packed line."""
    if store == "trn":
        return [(raw[2 * (i // 4)] | raw[2 * (i // 4) + 1] << 8) >> (4 * (i % 4)) & 15 for i in range(n)]
    return [raw[i // 4] >> (2 * (i % 4)) & 3 for i in range(n)]


@lru_cache(maxsize=1 << 16)
def tf32_operand(code, mode, cut):
    """Section 4.1: operands in tf32 are first converted to it by tf32_in. cut: a NaN loses its low
    bits, and with them, perhaps, all of its payload (11.1.1)."""
    v = decode("f32", code)
    if cut and v.kind == NAN:
        return decode("f32", code & 0xFFFFE000)
    return fixed("tf32", encode("tf32", v, Cast(mode)))


def operand_values(line, p, fp4=None):
    """The values of a line as the multiplier sees them. fp4: (16 codes, their format) or None."""
    if line.fmt == "tf32":
        return [tf32_operand(c, p["tf32_in"], p.get("tf32_nan") == "cut") for c in line.codes]
    if line.fmt == "e2m1" and fp4:
        return [fixed(fp4[1], fp4[0][c & 15]) for c in line.codes]
    return [fixed(line.fmt, c) for c in line.codes]


def line_scales(line, n):
    if line.scales is None:
        return [None] * n
    return [fixed(line.scale_fmt, s) for s in line.scales]


# ------------------------------------------------------------------------------------------------
# Section 4.1: the family `array`
# ------------------------------------------------------------------------------------------------


def pairs_tree(items, add):
    """Adjacent pairs are joined level by level; an odd one out passes to the next level."""
    while len(items) > 1:
        nxt = [add(items[i], items[i + 1]) for i in range(0, len(items) - 1, 2)]
        if len(items) % 2:
            nxt.append(items[-1])
        items = nxt
    return items[0]


class Array:
    """One element of D by the family `array`."""

    def __init__(self, p):
        self.p = p

    def R(self, v):
        """Sections 4.1.4 and 11.2.11: a chain's adder."""
        p = self.p
        if p["acc_range"] == "wide":
            return to_float(v, p["acc_bits"], p["acc_round"])
        return to_float(v, p["acc_bits"], p["acc_round"], -126, 127, ftz=p["acc_range"] == "f32_ftz")

    def row(self, acc, lanes):
        """Section 4.1.4: one row step. lanes: the products, None where K has ended."""
        p, R = self.p, self.R
        x = [t for t in lanes if t is not None]
        if not x:
            return acc
        if p["lanes"] == 1 or p["lane_sum"] == "fused":
            return R(total([acc] + x))
        if p["lane_sum"] == "chain":
            for t in x:
                acc = R(total([acc, t]))
            return acc
        if p["lane_sum"] == "presum":
            return R(total([acc, R(total(x))]))
        # tree: an odd one out passes to the next level, as at the foot (11.2.10)
        return R(total([acc, pairs_tree(x, lambda s, t: R(total([s, t])))]))

    def chain_of(self, row):
        """Section 4.1.4: the chain that a row of a tile belongs to."""
        p = self.p
        C = self.chains()
        if C == 1:
            return 0
        n = p["chain_rows"]
        if p["chain_map"] == "block":
            return row // n
        if p["chain_map"] == "parity":
            return 2 * (row // (2 * n)) + row % 2
        return row % C

    def chains(self):
        p = self.p
        return p["rows"] // p["chain_rows"] if p["rows"] and p["chain_rows"] else 1

    def foot(self, x, split):
        """Sections 4.1.2 to 4.1.5: what the foot of the array holds after one tile, before it
        leaves. x: the tile's products, None where there is none (11.2.12)."""
        p, R = self.p, self.R
        L = p["lanes"]
        P = -(-len(x) // L)
        chains = [PLUS_ZERO] * self.chains()
        for row in range(P):
            at = [q * P + row if split else L * row + q for q in range(L)]
            lanes = [x[j] if j < len(x) else None for j in at]
            c = self.chain_of(row)
            chains[c] = self.row(chains[c], lanes)
        if p["combine"] == "tree":
            return pairs_tree(chains, lambda s, t: R(total([s, t])))
        acc = chains[0]
        for c in chains[1:]:
            acc = R(total([acc, c]))
        return acc

    def halves(self, v):
        """Section 11.2.12: hi and lo of an FP32 operand, in units; (v, None) for a special."""
        if v.kind != FINITE:
            return None
        # The pattern's low 12 bits: 12 places above the unit in the last place.
        e = -126 if v.x == 0 else max(exponent(v.x), -126)
        mode = "rtz" if self.p["piece_split"] == "trunc" else "rne"
        hi = to_multiple(v.x, e - 23 + 12, mode)
        lo = v.x - hi
        return {
            "hi": Num(FINITE, hi, hi < 0 if hi else v.neg),
            "lo": Num(FINITE, lo, lo < 0 if lo else v.neg),
        }

    def tile_results(self, a, b, scales, split):
        """The values that one tile sends to the accumulate memory, in order (FP32)."""
        p, R = self.p, self.R
        if p["pieces"] == 1:
            return [rn32(self.foot([scaled(times(u, v), s) for u, v, s in zip(a, b, scales)], split))]
        ah, bh = [self.halves(u) for u in a], [self.halves(v) for v in b]

        def run(pa, pb):
            x = []
            for u, v, hu, hv in zip(a, b, ah, bh):
                if hu is None or hv is None:
                    x.append(times(u, v) if (pa, pb) == ("hi", "hi") else None)
                else:
                    x.append(times(hu[pa], hv[pb]))
            return self.foot(x, split)

        order = ["lo", "hi"] if p["piece_order"] == "lo_first" else ["hi", "lo"]
        out = []
        for outer in order:
            both = [run(outer, i) if p["piece_outer"] == "a" else run(i, outer) for i in order]
            if p["piece_adds"] == 2:
                out.append(rn32(R(total(both))))
            else:
                out += [rn32(t) for t in both]
        return out

    def element(self, A, B, c=None, psum="f32", psum_cast=RNE, words=None, fp4=None):
        """The accumulate memory after the last tile (sections 4.1.1 and 4.1.6). words: a function
        from the number of a write to its random word."""
        p = self.p
        K = len(A.codes)
        a, b = operand_values(A, p, fp4), operand_values(B, p, fp4)
        sa, sb = line_scales(A, K), line_scales(B, K)
        scales = [[s for s in pair if s is not None] for pair in zip(sa, sb)]
        split = p["k_map"] == "split"
        if A.scales is not None:  # section 4.1.2: the map follows from the block layout
            split = A.layout == "trn_wrap"
        depth = p["rows"] * p["lanes"] or K
        acc = c
        write = 0
        for k0 in range(0, K, depth):
            k1 = min(K, k0 + depth)
            for v in self.tile_results(a[k0:k1], b[k0:k1], scales[k0:k1], split):
                acc = v if acc is None else rn32(total([acc, v]), p["psum_add"])
                if psum == "bf16":
                    w = words(write) if words else 0
                    acc = to_fixed(decode("bf16", encode("bf16", to_fraction(acc), psum_cast, w)))
                write += 1
        return acc


# ------------------------------------------------------------------------------------------------
# Section 4.2 and 11.3: the family `fused`
# ------------------------------------------------------------------------------------------------


def flushed(v, how, emin):
    """A value after flush_in or flush_out."""
    if how == "none" or v.kind != FINITE or v.x == 0 or exponent(v.x) >= emin:
        return v
    return Num(FINITE, 0, v.neg if how == "signed" else False)


class Term:
    """An un-normalised term: its exact value and the exponent it competes with."""

    __slots__ = ("v", "e")

    def __init__(self, v, e):
        self.v, self.e = v, e


class Fused:
    """One element of D by the family `fused`. acc: "f32" or "f16", the accumulator's format;
    sparse: (kept, group) of a compressed operand."""

    def __init__(self, p, acc="f32", sparse=None):
        self.p, self.acc, self.sparse = p, acc, sparse
        self.acc_emin = FORMATS[acc].emin

    def result(self, v):
        """A step's result (sections 11.3.19, 21, 22)."""
        p = self.p
        if self.acc == "f16":
            r = to_float(v, 11, p["out_f16"], -14, 15, always_inf=True)
        else:
            r = to_float(v, p["out_bits"] + 1, p["out_round"], -126, 127, always_inf=True)
        if p["out_zero"] == "plus" and v.x != 0 and r.kind == FINITE and r.x == 0:
            return PLUS_ZERO
        return r

    def rn(self, v):
        """A rounded add's result: RN in the accumulator's format."""
        return to_float(v, 11, "rne", -14, 15) if self.acc == "f16" else rn32(v)

    def steps(self, K):
        """The k of every step: `group` terms (of exact_group products each), in the order of k_perm
        inside an instruction. Yields (k list, whether an instruction ends here). Absent k (>= K)
        are left out; a step that would have none is not taken, but an instruction in mod4 order
        always takes both of its steps (the page leaves this open)."""
        p = self.p
        size = self.kept(p["group"] * p["exact_group"])
        n = self.kept(p["k_instr"]) if p["k_instr"] else -(-K // size) * size
        if p["k_perm"] == "linear" and p["c_place"] != "after":
            n = size  # an instruction is no more than its steps
        for k0 in range(0, K, n):
            ks = range(k0, min(k0 + n, K))
            if p["k_perm"] == "mod4":
                groups = [[k for k in ks if (k - k0) % 4 // 2 == half] for half in (0, 1)]
            else:
                groups = [list(ks[i : i + size]) for i in range(0, len(ks), size)]
            for i, g in enumerate(groups):
                yield g, i == len(groups) - 1

    @staticmethod
    def operand_exponent(v, emin):
        """Section 11.3.23; a zero operand has -126 where it has a say at all (zero_exp = emin)."""
        return -126 if v.x == 0 else max(exponent(v.x), emin)

    def kept(self, k):
        """Section 11.4.29: of k k, those that a sparse operand keeps, if steps are counted in k."""
        if self.sparse is None or self.p["sparse_k"] == "compressed":
            return k
        return max(1, k * self.sparse[0] // self.sparse[1])

    def competing(self, term):
        """The exponent with which a term takes part in the maximum, or None (11.3.23)."""
        return None if term.v.x == 0 and self.p["zero_exp"] == "skip" else term.e

    def c_exponent(self, c):
        return -126 if c.x == 0 else max(exponent(c.x), self.acc_emin)

    def products(self, ks):
        """The terms of a step: [(Term, k)], or a special Num when they decide the result."""
        p = self.p
        n = p["exact_group"]
        runs = {}
        for k in ks:
            runs.setdefault(k // n if n > 1 else k, []).append(k)
        out = []
        for run in runs.values():
            xs = [times(self.a[k], self.b[k]) for k in run]
            scales = [s[run[0]] for s in (self.sa, self.sb) if s[run[0]] is not None]
            v = scaled(total(xs), scales)
            if any(x.kind == NAN for x in xs):
                v = NOT_A_NUMBER
            if n > 1:
                e = 0
                for s, emin in zip(scales, self.scale_emin):
                    e += 0 if s.kind != FINITE else self.operand_exponent(s, emin)
            elif v.kind == FINITE and v.x and p["product_norm"] == "renorm":
                e = exponent(v.x)
            elif v.kind == FINITE:
                e = self.operand_exponent(self.a[run[0]], self.emin_a)
                e += self.operand_exponent(self.b[run[0]], self.emin_b)
                for s, emin in zip(scales, self.scale_emin):
                    e += self.operand_exponent(s, emin)
            else:
                e = 0
            if p["product_inf"] and v.kind == FINITE and abs(v.x) >= 1 << (128 + UNIT):
                v = infinity(v.neg)
            out.append((Term(v, e), run[0]))
        return out

    @staticmethod
    def special(values):
        """Section 11.3.22: NaN or Inf among the terms decides; None when all are finite."""
        if all(v.kind == FINITE for v in values):
            return None
        return total(values)

    def floor(self):
        f = self.p["floor_f16"] if self.acc == "f16" else self.p["floor_f32"]
        return f

    def align(self, terms, frac, mode, floor=None):
        """(sum of the terms cut at `frac` bits below the largest exponent, that exponent)."""
        es = [e for e in map(self.competing, terms) if e is not None]
        if not es:
            return 0, None
        E = max(es)
        if floor is not None:
            E = max(E, floor)
        return sum(to_multiple(t.v.x, E - frac, mode) for t in terms), E

    @staticmethod
    def sign_sum(s):
        return Num(FINITE, s, s < 0)

    def step(self, ks, acc):
        """One step: products, and the accumulator (None: no C term)."""
        p = self.p
        if p["sum"] == "pairwise":
            return self.pairwise(ks, acc)
        prods = self.products(ks)
        values = [t.v for t, _ in prods] + ([acc] if acc is not None else [])
        sp = self.special(values)
        if sp is not None:
            return sp
        if p["sum"] == "exact":
            return flushed(self.result(total(values)), p["flush_out"], self.acc_emin)
        if p["c_place"] == "late":
            return self.late(prods, acc)
        terms = [t for t, _ in prods]
        if acc is not None:
            terms.append(Term(acc, self.c_exponent(acc)))
        s, _ = self.align(terms, p["frac"], p["align_round"], self.floor())
        return flushed(self.result(self.sign_sum(s)), p["flush_out"], self.acc_emin)

    def late(self, prods, acc):
        """Section 11.3.27: its cuts are fixed there, so align_round and the floors have no say."""
        p = self.p
        if p["subgroups"] == 2:
            first = prods[0][1]  # of the step
            parts = [[t for t, k in prods if (k - first) % 2 == r] for r in (0, 1)]
        else:
            parts = [[t for t, _ in prods]]
        sums = [self.align(part, p["frac"], "rtz") for part in parts]
        es = [e for _, e in sums if e is not None]
        s, E = 0, None
        if es:
            E = max(es)
            if len(parts) == 1:
                s = sums[0][0]
            else:
                s = sum(to_multiple(x, E - p["frac"], "rdn") for x, _ in sums)
        acc = PLUS_ZERO if acc is None else acc  # the instruction always takes a C
        ec = self.c_exponent(acc)
        top = ec if E is None else max(E, ec)
        s = to_multiple(s, top - p["sum_frac"], "rdn")
        if not (p["c_drop"] and top - ec > p["c_drop"]):
            s += to_multiple(acc.x, top - p["c_frac"], "rdn")
        return flushed(self.result(self.sign_sum(s)), p["flush_out"], self.acc_emin)

    def pairwise(self, ks, acc):
        """Section 11.3.28."""
        p = self.p

        def op(v):
            return flushed(rn32(v), p["flush_out"], -126)

        prods = [op(scaled(times(self.a[k], self.b[k]),
                           [s[k] for s in (self.sa, self.sb) if s[k] is not None])) for k in ks]
        prods += [PLUS_ZERO] * (p["group"] - len(prods))
        s = pairs_tree(prods, lambda x, y: op(total([x, y])))
        return s if acc is None else op(total([acc, s]))

    def element(self, A, B, c=None, fp4=None):
        """The accumulator (or the promotion register) after the last step."""
        p = self.p
        K = len(A.codes)
        fa, fb = FORMATS[A.fmt], FORMATS[B.fmt]
        f16 = FORMATS["f16"].emin
        self.emin_a, self.emin_b = (f16, f16) if p["operand_exp"] == "f16" else (fa.emin, fb.emin)
        self.a = [flushed(v, p["flush_in"], fa.emin) for v in operand_values(A, p)]
        self.b = [flushed(v, p["flush_in"], fb.emin) for v in operand_values(B, p)]
        self.sa, self.sb = line_scales(A, K), line_scales(B, K)
        self.scale_emin = [FORMATS[x.scale_fmt].emin for x in (A, B) if x.scales is not None]
        if c is not None:
            c = flushed(c, p["flush_in"], self.acc_emin)
        every = p["promote_every"]
        if every:  # c_place `after` has no meaning here: the accumulator starts from nothing
            reg, acc, n = c, None, 0
            for ks, _ in self.steps(K):
                acc = self.step(ks, acc)
                n += 1
                if n == every:
                    reg = acc if reg is None else rn32(total([reg, acc]))
                    acc, n = None, 0
            if n:
                reg = acc if reg is None else rn32(total([reg, acc]))
            return reg
        if p["c_place"] == "after":
            reg, acc = c, None
            for ks, last in self.steps(K):
                acc = self.step(ks, acc)
                if last:
                    if reg is None:
                        reg = acc
                    else:
                        reg = flushed(self.rn(total([reg, acc])), p["flush_out"], self.acc_emin)
                    acc = None
            return reg
        acc = c
        for ks, _ in self.steps(K):
            acc = self.step(ks, acc)
        return acc


# ------------------------------------------------------------------------------------------------
# A whole element: accumulator to D, and the real number behind it
# ------------------------------------------------------------------------------------------------


def finish(acc, acc_fmt, nans, to, cast, word=0, out_scale=0):
    """Sections 4.1.7, 4.1.8 and 11.2.17: the accumulator becomes a code of D. nans: the
    NaN that an accumulator of each format holds; D in the format of `accumulate` shows it."""
    v = to_fraction(acc)
    if out_scale:
        s = decode("f32", out_scale)
        if v.kind == NAN or s.kind == NAN:
            v = NOT_A_NUMBER
        elif v.kind == FINITE and s.kind == FINITE:
            v = Num(FINITE, v.x * s.x, v.neg != s.neg)
            r = encode("f32", v, RNE)
            v = decode("f32", r)
        else:
            v = _fp32_mul_special(v, s)
    if v.kind == NAN:
        v = NOT_A_NUMBER
        if to == acc_fmt and FORMATS[to].has_nan:
            return nans[to]
    return encode(to, v, cast, word)


def real_value(p, A, B, c=None, fp4=None):
    """The real number that the element is: products and C summed with no rounding at all. The
    operands are those that the multiplier takes: after tf32_in and, in `fused`, flush_in."""
    K = len(A.codes)
    a, b = operand_values(A, p, fp4), operand_values(B, p, fp4)
    if p["family"] == "fused":
        a = [flushed(v, p["flush_in"], FORMATS[A.fmt].emin) for v in a]
        b = [flushed(v, p["flush_in"], FORMATS[B.fmt].emin) for v in b]
        c = None if c is None else flushed(c, p["flush_in"], -126)
    sa, sb = line_scales(A, K), line_scales(B, K)
    terms = [scaled(times(u, v), [s for s in (x, y) if s is not None]) for u, v, x, y in zip(a, b, sa, sb)]
    if c is not None:
        terms.append(c)
    if any(t.kind == NAN for t in terms):
        return NOT_A_NUMBER
    return to_fraction(total(terms))


# ------------------------------------------------------------------------------------------------
# Self-check: the page's own check points
# ------------------------------------------------------------------------------------------------


def self_check():
    """Section 1's table, section 2's check points and a few worked examples. Raises on failure."""

    def check(got, want, what):
        if got != want:
            raise AssertionError("%s: got %s, want %s" % (what, got, want))

    F = Fraction
    tops = {"f32": (0x7F7FFFFF, None, 149), "bf16": (0x7F7F, None, 133), "f16": (0x7BFF, 65504, 24),
            "tf32": (0x7F7FE000, (2 - pow2(-10)) * pow2(127), 136),
            "e5m2": (0x7B, 57344, 16), "e4m3fn": (0x7E, 448, 9), "e4m3": (0x77, 240, 9),
            "e3m4": (0x6F, F(31, 2), 6), "e4m3fnuz": (0x7F, 240, 10), "e5m2fnuz": (0x7F, 57344, 17),
            "e3m2": (0x1F, 28, 4), "e2m3": (0x1F, F(15, 2), 3), "e2m1": (7, 6, 1),
            "ue4m3": (0x7E, 448, 9), "e8m0": (0xFE, pow2(127), 127), "mxint8": (127, F(127, 64), 6)}
    for name, (code, top, tiny) in tops.items():
        f = FORMATS[name]
        check(f.max_code, code, name + " max code")
        if top is not None:
            check(max_value(name), top, name + " max")
        least = decode(name, 1 << f.low if f.kind != "scale" else 0).x
        check(least, pow2(-tiny), name + " least")
        cast = Cast(overflow="sat", nan_sign="keep")
        if f.bits <= 16:  # codes that are numbers come back
            for c in range(0, 1 << f.bits, 1 if f.bits <= 8 else 61):
                v = decode(name, c)
                if v.kind == NAN or (name == "mxint8" and c == 0x80) or (name == "ue4m3" and c >= 0x80):
                    continue
                if v.kind == INF:
                    check(encode(name, v, Cast()), c, name)
                else:
                    for mode in ("rne", "rna", "rtz", "rup", "rdn", "rto", "sr"):
                        back = encode(name, v, Cast(mode, "sat"), 0xFFFFFFFF)
                        check(back, c, "%s %s" % (name, mode))

    def enc(fmt, x, **kw):
        return encode(fmt, num(F(x)), Cast(**kw))

    check(enc("e4m3fn", 464), 0x7E, "464")
    check(enc("e4m3fn", F(464) + F(1, 1000)), 0x7F, "464+")
    check(enc("e5m2", 61440), 0x7C, "61440")
    check(enc("e5m2", F(61440) - F(1, 9)), 0x7B, "61440-")
    check(enc("e4m3", 248), 0x78, "248")
    check(enc("e4m3", F(248) - F(1, 9)), 0x77, "248-")
    check(enc("e3m4", F(63, 4)), 0x70, "15.75")
    check(enc("e3m4", F(63, 4) - F(1, 99)), 0x6F, "15.75-")
    check(enc("f16", 65520), 0x7C00, "65520")
    check(enc("f16", F(65520) - 1), 0x7BFF, "65519")
    for x, want in ((F(1, 4), 0), (F(3, 4), 1), (F(5, 4), 1), (F(7, 4), 2), (F(5, 2), 2), (F(7, 2), 4), (5, 4)):
        v = decode("e2m1", enc("e2m1", x, overflow="sat")).x
        check(v, want, "e2m1 %s" % x)
    for x, want in ((F(3, 2), 2), (3, 4), (6, 8)):
        check(decode("e8m0", enc("e8m0", x)).x, want, "e8m0 %s" % x)
    check(enc("e8m0", pow2(-140)), 0, "e8m0 small")
    check(enc("e8m0", pow2(130), overflow="sat"), 0xFE, "e8m0 sat")
    check(enc("e8m0", pow2(130)), 0xFF, "e8m0 inf")
    check(enc("e8m0", -1), 0xFF, "e8m0 negative")
    check(enc("mxint8", -2, overflow="sat"), 0x81, "mxint8 -2")
    check(enc("e4m3fnuz", -pow2(-20)), 0, "fnuz -0")
    check(enc("f32", pow2(200), round="rtz"), 0x7F7FFFFF, "rtz overflow")
    check(enc("f32", -pow2(200), round="rup"), 0xFF7FFFFF, "rup overflow")
    check(enc("f32", pow2(200), round="rup"), 0x7F800000, "rup overflow +")
    sr = Cast("sr", sr_bits=8)
    check([encode("bf16", num(1 + F(64, 256) * pow2(-7)), sr, w) & 1 for w in (191, 192)], [0, 1], "sr_a")
    check(quantize_mx_block([num(F(448)), num(F(-1))], "e4m3fn", "floor", "element", SAT, [0, 0]),
          (127, [0x7E, 0xB8]), "mx floor")
    check(quantize_mx_block([num(F(1))], "e2m1", "floor", "element", SAT, [0]), (125, [6]), "mx e2m1")
    check(mx_exponent(F(7), "e2m1", "even"), 1, "even 7")
    check(mx_exponent(F(6), "e2m1", "rceil"), 0, "rceil 6")
    check(mx_exponent(F(13, 2), "e2m1", "rceil"), 1, "rceil 6.5")
    check(mx_exponent(F(13, 2), "e2m1", "ceil"), 1, "ceil 6.5")
    check(scale_address("trn_sbuf", 3, 21, 10, 40, 128, 4), (128 + 32 + 4 + 1) * 10 + 3, "sbuf")
    check(scale_address("swizzle_128x4", 37, 6, 256, 8), 512 + 5 * 16 + 4 + 2, "swizzle")
    # One chain against four: 2^24 + 1 + 1 in one chain stays, apart it does not.
    p = dict(rows=0, lanes=1, lane_sum="fused", chain_rows=0, chain_map="block", combine="tree",
             acc_bits=24, acc_round="rne", acc_range="f32", k_map="interleave", pieces=1,
             psum_add="rne", tf32_in="rne")
    one, big = 0x3F800000, 0x4B800000
    line = Line("f32", [big, one, one])
    ones = Line("f32", [one] * 3)
    check(to_fraction(Array(p).element(line, ones)).x, F(1 << 24), "one chain")
    q = dict(p, rows=2, chain_rows=1)
    check(to_fraction(Array(q).element(Line("f32", [big, one, one, one]), Line("f32", [one] * 4))).x,
          F((1 << 24) + 2), "two chains")
    # Pieces: 1 + 2^-12 splits into 1 and 2^-12; its square is 1 + 2^-11 + 2^-24, which RN drops.
    q = dict(p, rows=128, chain_rows=32, pieces=2, piece_split="trunc", piece_order="lo_first",
             piece_adds=2, piece_outer="a")
    x = encode("f32", num(1 + pow2(-12)), RNE)
    check(to_fraction(Array(q).element(Line("f32", [x]), Line("f32", [x]))).x, 1 + pow2(-11), "pieces")
    # Fused: four terms, 2^0 and three of 2^-24 below F = 23 are dropped one by one.
    p = dict(sum="align", group=4, k_instr=4, k_perm="linear", exact_group=1, frac=23,
             align_round="rtz", product_norm="keep", zero_exp="skip", floor_f32=None, floor_f16=None,
             c_place="in", product_inf=False, out_bits=23, out_round="rtz", out_f16="rne",
             flush_in="none", flush_out="none", promote_every=0, tf32_in="rne", tf32_nan="keep",
             operand_exp="own", out_zero="signed", sparse_k="compressed")
    h = Line("f16", [0x3C00, 1, 1, 1])
    check(to_fraction(Fused(p).element(h, Line("f16", [0x3C00] * 4))).x, F(1), "fused")
    p["frac"] = 24
    check(to_fraction(Fused(p).element(h, Line("f16", [0x3C00] * 4))).x, 1 + pow2(-23), "fused F=24")


if __name__ == "__main__":
    self_check()
    print("model: self-check passed")
