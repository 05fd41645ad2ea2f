# SPDX-License-Identifier: Apache-2.0
"""Compare the shared library with the model of docs/numerics.md, bit by bit.

usage: judge.py [LIBRARY] [--list] [--suite NAME] [--seed N] [--cases SCALE] [--long]

Every suite draws random and adversarial cases from its seed, asks the library, and compares
each result with model.py. A mismatch prints all that is needed to repeat it. Ends with
"model: N cases, M elements, X mismatches"; exit status 1 on a mismatch, 77 when there is no
library to judge.
"""

import argparse
import collections
import ctypes as C
import itertools
import os
import random
import sys
import time
from fractions import Fraction

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import model as m  # noqa: E402
from model import FORMATS, Cast, Line, Num  # noqa: E402

# ------------------------------------------------------------------------------------------------
# The C interface
# ------------------------------------------------------------------------------------------------

FORMAT_CODE = dict(f32=0x01, tf32=0x02, bf16=0x03, f16=0x04, e5m2=0x10, e4m3fn=0x11, e4m3=0x12,
                   e3m4=0x13, e4m3fnuz=0x14, e5m2fnuz=0x15, e3m2=0x20, e2m3=0x21, e2m1=0x30,
                   e8m0=0x40, ue4m3=0x41, mxint8=0x50)
FORMAT_ORDER = ["f32", "tf32", "bf16", "f16", "e5m2", "e4m3fn", "e4m3", "e3m4", "e4m3fnuz",
                "e5m2fnuz", "e3m2", "e2m3", "e2m1", "e8m0", "ue4m3", "mxint8"]
ROUNDS = ["rne", "rna", "rtz", "rdn", "rup", "rto", "sr"]
OVERFLOWS = ["inf", "sat", "sat_keep_inf"]
RULES = ["floor", "floor_up1", "ceil", "even", "rceil", "nvfp4_te", "nvfp4_exact"]
SPECIALS = ["element", "nan_block", "from_exponent"]
LAYOUTS = ["linear", "trn_wrap", "trn_1x32"]
STORES = ["linear", "trn_sbuf", "swizzle_128x4"]
MODES = ["plain", "double_row", "mx", "nv"]
OK, ERR_ARGUMENT, ERR_SHAPE, ERR_FORMAT, ERR_LAYOUT, ERR_PROFILE = 0, 1, 2, 3, 4, 5
STATUS = ["NG_OK", "NG_ERR_ARGUMENT", "NG_ERR_SHAPE", "NG_ERR_FORMAT", "NG_ERR_LAYOUT",
          "NG_ERR_PROFILE", "NG_ERR_SCRATCH", "NG_ERR_MEMORY", "NG_ERR_UNSUPPORTED", "NG_ERR_INTERNAL"]
# In the order of params.def.
PARAMS = """family nan_f32 tf32_in rows lanes lane_sum chain_rows chain_map combine acc_bits acc_round
acc_range k_map psum psum_round psum_add pieces piece_split piece_order piece_adds piece_outer sum
k_instr group k_perm exact_group frac align_round product_norm zero_exp floor_f32 floor_f16 c_place
subgroups sum_frac c_frac c_drop product_inf out_bits out_round out_f16 nan_f16 flush_in flush_out
promote_every tf32_nan operand_exp out_zero sparse_k""".split()


class CSparse(C.Structure):
    _fields_ = [("kept", C.c_uint32), ("group", C.c_uint32), ("store", C.c_int),
                ("tags", C.c_void_p), ("tag_stride", C.c_int64)]


class CTensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("scale", C.c_void_p), ("format", C.c_int),
                ("scale_format", C.c_int), ("block", C.c_uint32), ("block_axis", C.c_uint32),
                ("layout", C.c_int), ("tensor_scale", C.c_uint32), ("rank", C.c_uint32),
                ("dim", C.c_int64 * 4), ("stride", C.c_int64 * 4), ("scale_stride", C.c_int64 * 4),
                ("sparse", C.POINTER(CSparse))]


class CRandom(C.Structure):
    _fields_ = [("kind", C.c_int), ("word", C.c_void_p), ("count", C.c_int64), ("first", C.c_uint64),
                ("key", C.c_uint32 * 2), ("state", C.c_void_p), ("lanes", C.c_uint32),
                ("states", C.c_uint32), ("poly", C.c_uint32), ("steps", C.c_uint32)]


class CCast(C.Structure):
    _fields_ = [("round", C.c_int), ("overflow", C.c_int), ("nan_sign", C.c_int), ("nan_to", C.c_int),
                ("sr", C.c_int), ("sr_bits", C.c_uint32), ("sr_take", C.c_int), ("random", CRandom)]


class CConvert(C.Structure):
    _fields_ = [("size", C.c_size_t), ("cast", CCast)]


class CQuantize(C.Structure):
    _fields_ = [("size", C.c_size_t), ("rule", C.c_int), ("special", C.c_int), ("cast", CCast),
                ("tensor_amax", C.c_uint32)]


class CSetting(C.Structure):
    _fields_ = [("value", C.c_int32), ("evidence", C.c_int), ("source", C.c_char_p)]


class CRule(C.Structure):
    _fields_ = [("name", C.c_char_p), ("mode", C.c_int), ("block", C.c_uint32), ("a", C.c_uint32),
                ("b", C.c_uint32), ("apart", C.c_uint32), ("same", C.c_bool),
                ("set", CSetting * len(PARAMS))]


class CProfile(C.Structure):
    _fields_ = [("name", C.c_char_p), ("about", C.c_char_p), ("revision", C.c_uint32),
                ("n_rules", C.c_uint32), ("rules", C.POINTER(CRule))]


class CGemm(C.Structure):
    _fields_ = [("size", C.c_size_t), ("profile", C.POINTER(CProfile)), ("double_row", C.c_bool),
                ("accumulate", C.c_int), ("psum", CCast), ("out", CCast), ("out_scale", C.c_uint32),
                ("fp4_map", C.c_void_p), ("fp4_format", C.c_int)]


class CValue(C.Structure):
    _fields_ = [("sig", C.c_uint64), ("exp", C.c_int32), ("cls", C.c_int), ("neg", C.c_bool),
                ("sticky", C.c_bool)]


class CConfig(C.Structure):
    _fields_ = [("size", C.c_size_t), ("isa_mask", C.c_uint32), ("alloc", C.c_void_p),
                ("free", C.c_void_p), ("alloc_user", C.c_void_p), ("parallel_for", C.c_void_p),
                ("exec_user", C.c_void_p), ("workers", C.c_size_t), ("scratch", C.c_void_p),
                ("scratch_bytes", C.c_size_t)]


class CExecutor(C.Structure):
    _fields_ = [("parallel_for", C.c_void_p), ("user", C.c_void_p), ("workers", C.c_size_t)]


class Library:
    """The functions used here, and one context per way of running them."""

    def __init__(self, path):
        self.c = c = C.CDLL(path)
        P, T = C.POINTER, C.POINTER(CTensor)
        vp, i, u, s = C.c_void_p, C.c_int, C.c_uint32, C.c_char_p
        for name, res, args in (
            ("ng_ctx_create", i, [P(CConfig), P(vp)]),
            ("ng_ctx_message", s, [vp]),
            ("ng_ctx_kernel", s, [vp]),
            ("ng_isa_available", u, []),
            ("ng_pool_create", i, [C.c_size_t, P(vp), P(CExecutor)]),
            ("ng_decode", i, [i, u, P(CValue)]),
            ("ng_encode", i, [i, P(CCast), P(CValue), u, P(u)]),
            ("ng_convert", i, [vp, P(CConvert), T, T]),
            ("ng_quantize", i, [vp, P(CQuantize), T, T]),
            ("ng_dequantize", i, [vp, P(CConvert), T, T]),
            ("ng_scale_bytes", C.c_size_t, [i, C.c_int64, C.c_int64, u]),
            ("ng_scale_move", i, [vp, i, vp, i, vp, C.c_int64, C.c_int64, u, u]),
            ("ng_profile_find", P(CProfile), [s]),
            ("ng_profile_at", P(CProfile), [C.c_size_t]),
            ("ng_profile_parse", i, [s, C.c_size_t, P(P(CProfile)), s, C.c_size_t]),
            ("ng_profile_free", None, [P(CProfile)]),
            ("ng_profile_copy", P(CProfile), [P(CProfile)]),
            ("ng_profile_set", i, [P(CProfile), s, s, s]),
            ("ng_profile_check", i, [P(CProfile), s, C.c_size_t]),
            ("ng_profile_print", C.c_size_t, [P(CProfile), s, C.c_size_t]),
            ("ng_profile_hash", u, [P(CProfile)]),
            ("ng_rule_print", C.c_size_t, [P(CProfile), P(CRule), s, C.c_size_t]),
            ("ng_profile_rule", P(CRule), [P(CProfile), i, i, i, s, C.c_size_t]),
            ("ng_param_key", s, [i]),
            ("ng_param_print", C.c_size_t, [i, C.c_int32, s, C.c_size_t]),
            ("ng_gemm", i, [vp, P(CGemm), T, T, T, T]),
            ("ng_dot", i, [vp, P(CGemm), T, T, T, T]),
            ("ng_gemm_element", i, [vp, P(CGemm), C.c_bool, T, T, T, T, P(C.c_int64), vp, P(u)]),
            ("ng_gemm_exact", i, [vp, P(CGemm), C.c_bool, T, T, T, T, P(C.c_int64), P(CValue)]),
            ("ng_gemm_rule", P(CRule), [vp, P(CGemm), T, T]),
        ):
            f = getattr(c, name)
            f.restype, f.argtypes = res, args
        self.param_names = [c.ng_param_key(j).decode() for j in range(len(PARAMS))]
        assert self.param_names == PARAMS, "params.def has changed: %s" % self.param_names
        self.ctx = {"all": self.context(0), "ref": self.context(1)}
        if c.ng_isa_available() & 2:
            self.ctx["avx2"] = self.context(3)
        self.pool = C.c_void_p()
        ex = CExecutor()
        if c.ng_pool_create(3, C.byref(self.pool), C.byref(ex)) == OK:
            self.ctx["pool"] = self.context(0, ex)
        self.numbers = {}

    def context(self, mask, ex=None):
        cfg = CConfig(size=C.sizeof(CConfig), isa_mask=mask)
        if ex is not None:
            cfg.parallel_for, cfg.exec_user, cfg.workers = ex.parallel_for, ex.user, ex.workers
        ctx = C.c_void_p()
        st = self.c.ng_ctx_create(C.byref(cfg), C.byref(ctx))
        assert st == OK, "ng_ctx_create: %d" % st
        return ctx

    def message(self, ctx):
        return self.c.ng_ctx_message(ctx).decode(errors="replace")

    def rule_line(self, prof, rule):
        buf = C.create_string_buffer(4096)
        self.c.ng_rule_print(prof, rule, buf, 4096)
        return buf.value.decode()

    def rule_params(self, rule):
        """A rule's parameters as the model takes them: texts, integers, None for no floor."""
        out = {}
        for j, key in enumerate(PARAMS):
            v = rule.contents.set[j].value
            if (j, v) not in self.numbers:
                buf = C.create_string_buffer(64)
                self.c.ng_param_print(j, v, buf, 64)
                self.numbers[j, v] = buf.value.decode()
            text = self.numbers[j, v]
            if key in ("floor_f32", "floor_f16"):
                out[key] = None if v == -9999 else v
            elif key == "product_inf":
                out[key] = bool(v)
            elif key in ("nan_f32", "nan_f16"):
                out[key] = v & 0xFFFFFFFF
            else:
                try:
                    out[key] = int(text, 0)
                    assert out[key] == v
                except ValueError:
                    out[key] = text
        return out


def formats_in(mask):
    return [f for i, f in enumerate(FORMAT_ORDER) if mask >> i & 1]


# ------------------------------------------------------------------------------------------------
# Memory
# ------------------------------------------------------------------------------------------------


class Memory:
    """A tensor's bytes: codes at strides, everything else noise that must survive."""

    def __init__(self, rng, fmt, dims, codes=None, fast=None, repeat=(), loose=True):
        """fast: the dimension with the smallest stride (default the last). repeat: dimensions
        with stride 0."""
        self.fmt, self.dims = fmt, dims
        self.bits = FORMATS[fmt].store
        order = [d for d in range(len(dims))]
        if fast is not None:
            order.remove(fast)
            order.append(fast)
        stride, step = [0] * len(dims), 1
        if loose and self.bits != 4 and rng.random() < 0.08:
            step = rng.randint(2, 3)
        for pos, d in enumerate(reversed(order)):
            if d in repeat:
                continue
            stride[d] = step
            step *= dims[d]
            if loose and rng.random() < 0.4:
                step += rng.randint(1, 5)
            if self.bits == 4:
                step += step % 2
        self.stride = stride
        self.span = 1 + sum((n - 1) * s for n, s in zip(dims, stride))
        nbytes = (self.span * self.bits + 7) // 8
        self.lead = rng.randint(0, 5) * max(1, self.bits // 8)
        raw = rng.randbytes(nbytes + 64 + self.lead)
        self.buf = C.create_string_buffer(raw, len(raw))
        self.offsets = [sum(i * s for i, s in zip(ix, stride)) for ix in itertools.product(*map(range, dims))]
        if codes is not None:
            for o, code in zip(self.offsets, codes):
                self.put(o, code)
        self.before = self.buf.raw

    def put(self, o, code):
        if self.bits == 4:
            at = self.lead + o // 2
            old = self.buf[at][0]
            new = (old & 0x0F) | code << 4 if o & 1 else (old & 0xF0) | (code & 15)
            self.buf[at] = bytes([new])
        else:
            n = self.bits // 8
            at = self.lead + o * n
            self.buf[at : at + n] = code.to_bytes(n, "little")

    def get(self):
        raw = self.buf.raw
        if self.bits == 4:
            return [raw[self.lead + o // 2] >> (4 * (o & 1)) & 15 for o in self.offsets]
        n = self.bits // 8
        return [int.from_bytes(raw[self.lead + o * n : self.lead + o * n + n], "little") for o in self.offsets]

    def untouched(self):
        """Whether only the tensor's own bytes have changed."""
        own = set()
        n = max(1, self.bits // 8)
        for o in self.offsets:
            at = self.lead + (o // 2 if self.bits == 4 else o * n)
            own.update(range(at, at + n))
        raw = self.buf.raw
        return all(raw[i] == self.before[i] or i in own for i in range(len(raw)))

    def tensor(self):
        t = CTensor()
        t.data = C.addressof(self.buf) + self.lead
        t.format = FORMAT_CODE[self.fmt]
        t.rank = len(self.dims)
        for i, (n, s) in enumerate(zip(self.dims, self.stride)):
            t.dim[i], t.stride[i] = n, s
        return t


def words_array(words):
    return (C.c_uint32 * max(1, len(words)))(*words)


def c_cast(cast, words=None):
    r = CCast(round=ROUNDS.index(cast.round), overflow=OVERFLOWS.index(cast.overflow),
              nan_sign=["clear", "keep"].index(cast.nan_sign), nan_to=["max", "zero", "error"].index(cast.nan_to),
              sr="abc".index(cast.sr), sr_bits=cast.sr_bits, sr_take=["low", "high"].index(cast.sr_take))
    if words is not None:
        r.random.kind, r.random.word, r.random.count = 1, C.addressof(words), len(words)
    return r


def c_value(v, rng=None):
    """A Num as an ng_value, exactly."""
    if v.kind == m.NAN:
        return CValue(0, 0, 2, v.neg, False)
    if v.kind == m.INF:
        return CValue(0, 0, 1, v.neg, False)
    n, d = abs(Fraction(v.x)).as_integer_ratio()
    e = -(d.bit_length() - 1)
    zeros = (n & -n).bit_length() - 1 if n else 0
    n, e = n >> zeros, e + zeros
    if n and rng and rng.random() < 0.3:
        n, e = n << 3, e - 3
    return CValue(n, e, 0, v.neg, False)


# ------------------------------------------------------------------------------------------------
# Operands
# ------------------------------------------------------------------------------------------------


def negate(fmt, code):
    f = FORMATS[fmt]
    if f.kind == "int":
        return -code & 0xFF
    if not f.signed or (f.kind == "fnuz" and code in (0, 0x80)):
        return code
    return code ^ f.sign_bit


def is_finite(fmt, code):
    return m.decode(fmt, code).kind == m.FINITE


def field_code(rng, fmt, lo, hi, sign=True):
    """A finite code with its exponent field between lo and hi (fractions of the field's range)."""
    f = FORMATS[fmt]
    if f.kind == "scale":
        return rng.randint(int(lo * 254), int(hi * 254))
    if f.kind == "int":
        return rng.randint(-127, 127) & 0xFF
    top = (f.max_code >> f.low) >> f.man
    e = rng.randint(int(lo * top), int(hi * top))
    c = (e << f.man | rng.getrandbits(f.man)) << f.low
    c = min(c, f.max_code)
    if sign and f.signed and rng.random() < 0.5:
        c |= f.sign_bit
    return c if is_finite(fmt, c) else 0


STYLES = ["random", "middle", "narrow", "wide", "tiny", "huge", "zeros", "hugetiny", "special", "ones", "edge"]


def codes_of(rng, fmt, n, style):
    f = FORMATS[fmt]
    special = [c for c in (([f.nan] if f.has_nan else []) + ([((1 << f.exp) - 1) << (f.man + f.low)] if f.has_inf else []))]
    special += [negate(fmt, c) for c in special]
    if style == "random":
        return [(rng.getrandbits(f.bits) & -(1 << f.low) if f.low else rng.getrandbits(f.bits)) for _ in range(n)]
    if style == "middle":
        return [field_code(rng, fmt, 0.35, 0.62) for _ in range(n)]
    if style == "narrow":
        c = rng.uniform(0.45, 0.5)
        return [field_code(rng, fmt, c, c + 0.02) for _ in range(n)]
    if style == "wide":
        return [field_code(rng, fmt, 0, 1) for _ in range(n)]
    if style == "tiny":
        return [field_code(rng, fmt, 0, 0.0 if rng.random() < 0.7 else 0.1) for _ in range(n)]
    if style == "huge":
        return [field_code(rng, fmt, 0.93, 1) for _ in range(n)]
    if style == "zeros":
        z = field_code(rng, fmt, 0.4, 0.6)
        zeros = [0, negate(fmt, 0)]
        return [rng.choice(zeros) if rng.random() < 0.9 else z for _ in range(n)]
    if style == "hugetiny":
        out = [field_code(rng, fmt, 0, 0.25) for _ in range(n)]
        for _ in range(rng.randint(1, 2)):
            out[rng.randrange(n)] = field_code(rng, fmt, 0.8, 1)
        return out
    if style == "special":
        out = [field_code(rng, fmt, 0.2, 0.8) for _ in range(n)]
        for _ in range(rng.randint(1, 2)):
            out[rng.randrange(n)] = rng.choice(special) if special and rng.random() < 0.8 else 0
        return out
    if style == "ones":
        one = m.encode(fmt, m.num(Fraction(1)), m.SAT)
        return [rng.choice([one, negate(fmt, one)]) if rng.random() < 0.9 else field_code(rng, fmt, 0.3, 0.5) for _ in range(n)]
    edge = [0, negate(fmt, 0), f.max_code, negate(fmt, f.max_code), 1 << f.low, negate(fmt, 1 << f.low),
            f.max_code >> 1 & -(1 << f.low), 1 << (f.man + f.low)]
    edge = [c for c in edge if is_finite(fmt, c)]
    return [rng.choice(edge) for _ in range(n)]


class Operand:
    """A or B of a multiply: codes[batch][line][k], with scales and tags."""

    def __init__(self, rng, fmt, batch, lines, K, style, repeat=False):
        self.fmt, self.batch, self.lines, self.K = fmt, batch, lines, K
        self.codes = [[codes_of(rng, fmt, K, style) for _ in range(lines)] for _ in range(batch)]
        if repeat:
            self.codes = [self.codes[0]] * batch
        self.repeat, self.style = repeat, style
        self.scale_fmt = self.scales = self.tags = None
        self.layout, self.block = "linear", 0

    def add_scales(self, rng, scale_fmt, block, layout):
        self.scale_fmt, self.block, self.layout = scale_fmt, block, layout
        nb = m.block_count(self.K, block)
        self.scales = [[scale_codes(rng, scale_fmt, nb) for _ in range(self.lines)] for _ in range(self.batch)]
        if self.repeat:
            self.scales = [self.scales[0]] * self.batch

    def add_tags(self, rng, kept, group, store):
        self.kept, self.group, self.store = kept, group, store

        def line():
            out = []
            for _ in range(self.K // kept):
                if rng.random() < 0.8:
                    out += sorted(rng.sample(range(group), kept))
                else:
                    out += [rng.randrange(group) for _ in range(kept)]
            return out

        self.tags = [[line() for _ in range(self.lines)] for _ in range(self.batch)]

    def line(self, b, i):
        if self.scales is None:
            return Line(self.fmt, self.codes[b][i])
        s = [self.scales[b][i][m.block_of(k, self.K, self.block, self.layout)] for k in range(self.K)]
        return Line(self.fmt, self.codes[b][i], self.scale_fmt, s, self.layout)

    def tensor(self, rng, batch_dims, k_last, keep):
        """The C tensor, [.., lines, K] if k_last else [.., K, lines]."""
        L, K = self.lines, self.K
        nb = len(batch_dims)
        dims = list(batch_dims) + ([L, K] if k_last else [K, L])
        flat = []
        for b in range(self.batch):
            if k_last:
                flat += [c for i in range(L) for c in self.codes[b][i]]
            else:
                flat += [self.codes[b][i][k] for k in range(K) for i in range(L)]
        if self.fmt in ("e3m2", "e2m3") and rng.random() < 0.3:  # bits above the code are not read
            flat = [c | rng.getrandbits(2) << 6 for c in flat]
        rep = tuple(range(nb)) if self.repeat else ()
        fast = nb + rng.randint(0, 1)
        mem = Memory(rng, self.fmt, dims, flat, fast=fast, repeat=rep)
        t = mem.tensor()
        keep.append(mem)
        if self.scales is not None:
            n = m.block_count(K, self.block)
            sd = list(batch_dims) + ([L, n] if k_last else [n, L])
            sflat = []
            for b in range(self.batch):
                if k_last:
                    sflat += [c for i in range(L) for c in self.scales[b][i]]
                else:
                    sflat += [self.scales[b][i][k] for k in range(n) for i in range(L)]
            plain = not self.repeat and rng.random() < 0.4
            smem = Memory(rng, self.scale_fmt, sd, sflat, fast=None if plain else nb + rng.randint(0, 1),
                          repeat=rep, loose=not plain)
            keep.append(smem)
            t.scale = C.addressof(smem.buf) + smem.lead
            t.scale_format = FORMAT_CODE[self.scale_fmt]
            t.block, t.block_axis = self.block, nb + (1 if k_last else 0)
            t.layout = LAYOUTS.index(self.layout)
            if not plain:
                for i, s in enumerate(smem.stride):
                    t.scale_stride[i] = s
        if self.tags is not None:
            unit = 2 if self.store == "trn" else 1
            need = -(-K // 4) * unit
            stride = need + (unit * rng.randint(0, 3) if rng.random() < 0.5 else 0)
            raw = bytearray(rng.randbytes(stride * L * self.batch + 8))
            for b in range(self.batch):
                for i in range(L):
                    at = (b * L + i) * stride
                    raw[at : at + need] = pack_tags(self.tags[b][i], self.store)
            buf = C.create_string_buffer(bytes(raw), len(raw))
            sp = CSparse(self.kept, self.group, 0 if self.store == "trn" else 1, C.addressof(buf),
                         0 if stride == need and rng.random() < 0.5 else stride)
            keep += [buf, sp]
            t.sparse = C.pointer(sp)
        return t

    def dump(self, name):
        out = ["%s %s %s style=%s" % (name, self.fmt, "repeat" if self.repeat else "", self.style)]
        w = (FORMATS[self.fmt].bits + 3) // 4
        for b in range(self.batch):
            for i in range(self.lines):
                out.append("  [%d][%d] %s" % (b, i, " ".join("%0*x" % (w, c) for c in self.codes[b][i])))
                if self.scales is not None:
                    out.append("    %s/%d %s: %s" % (self.scale_fmt, self.block, self.layout,
                                                     " ".join("%02x" % c for c in self.scales[b][i])))
                if self.tags is not None:
                    out.append("    tags %d:%d %s: %s" % (self.kept, self.group, self.store, self.tags[b][i]))
        return "\n".join(out)


def pack_tags(tags, store):
    """Section 4.3: four tags to a uint16 (`trn`) or to a byte (`nv24`), low bits first."""
    out = bytearray()
    for i in range(0, len(tags), 4):
        w = sum(t << ((4 if store == "trn" else 2) * j) for j, t in enumerate(tags[i : i + 4]))
        out += w.to_bytes(2 if store == "trn" else 1, "little")
    return bytes(out)


def scale_codes(rng, fmt, n):
    style = rng.random()
    if fmt == "ue4m3":
        if style < 0.5:
            return [rng.randint(0x20, 0x50) for _ in range(n)]
        return [rng.choice([0, 1, 2, 7, 8, 0x38, 0x7E, rng.randrange(256), rng.randrange(127)] + ([0x7F] if style > 0.9 else []))
                for _ in range(n)]
    if style < 0.5:
        return [rng.randint(120, 134) for _ in range(n)]
    if style < 0.65:
        return [rng.randint(0, 254) for _ in range(n)]
    return [rng.choice([0, 1, 127, 254, 126, 128, 64, 190] + ([255] if style > 0.92 else [])) for _ in range(n)]


def cancel(rng, A, B):
    """Make pairs of products that cancel."""
    K = A.K
    for _ in range(max(1, K // 3)):
        k, j = rng.randrange(K), rng.randrange(K)
        if k == j:
            continue
        for b in range(A.batch):
            for row in A.codes[b]:
                row[j] = negate(A.fmt, row[k])
        for b in range(B.batch):
            for col in B.codes[b]:
                col[j] = col[k]


# ------------------------------------------------------------------------------------------------
# The judge
# ------------------------------------------------------------------------------------------------


class Judge:
    def __init__(self, lib, rng, scale, long, show):
        self.lib, self.rng, self.scale, self.long, self.show = lib, rng, scale, long, show
        self.cases = self.elements = self.mismatches = self.shown = 0
        self.cover = collections.Counter()
        self.keys = collections.defaultdict(collections.Counter)
        self.notes = collections.Counter()

    def times(self, n):
        return max(1, int(n * self.scale))

    def fail(self, text):
        self.mismatches += 1
        if self.shown < self.show:
            self.shown += 1
            print("MISMATCH\n" + text, flush=True)

    def same(self, got, want, text):
        self.elements += 1
        if got != want:
            self.fail("%s\n  want %s\n  got  %s" % (text(), want, got))
            return False
        return True

    def cast(self, fmt=None, rounds=ROUNDS):
        """A random cast; never one that `fmt` refuses."""
        rng = self.rng
        c = Cast(rng.choice(rounds), rng.choice(OVERFLOWS), rng.choice(["clear", "clear", "keep"]),
                 rng.choice(["max", "zero"]), rng.choice("abc"),
                 rng.choice([32, 32, 32, 1, 2, 8, 13, 16, 24, 31]), rng.choice(["low", "high"]))
        if fmt and not FORMATS[fmt].has_inf and not FORMATS[fmt].has_nan and c.overflow == "inf":
            c.overflow = "sat"
        return c

    def words(self, n):
        rng = self.rng
        out = [rng.getrandbits(32) for _ in range(n)]
        for i in range(n):
            if rng.random() < 0.15:
                out[i] = rng.choice([0, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0xFFFF, 0xFFFF0000, 1])
        return out

    # -- convert -----------------------------------------------------------------------------------

    def near(self, src, dst, n):
        """Codes of src around dst's rounding thresholds."""
        rng, out = self.rng, []
        fd = FORMATS[dst]
        for _ in range(n):
            c = rng.choice([rng.randrange(fd.max_code + 1), fd.max_code, rng.randrange(min(64, fd.max_code) + 1)])
            if fd.low:
                c &= -(1 << fd.low)
            v = m.decode(dst, c)
            if v.kind != m.FINITE:
                continue
            nxt = m.decode(dst, c + (1 << fd.low))
            x = v.x
            e = max(m.floor_log2(x), fd.emin) if x else fd.emin
            step = m.pow2(e - fd.man) if nxt.kind != m.FINITE or c == fd.max_code else abs(nxt.x - v.x)
            x += step * rng.choice([0, Fraction(1, 2), Fraction(1, 2), Fraction(1, 4), Fraction(3, 4), Fraction(rng.randrange(1024), 1024)])
            code = m.encode(src, m.num(-x if rng.random() < 0.5 and FORMATS[src].signed else x), m.SAT)
            code = (code + (rng.choice([-1, 0, 0, 0, 1]) << FORMATS[src].low)) & ((1 << FORMATS[src].bits) - 1)
            out.append(code)
        return out

    def convert_case(self, src, dst, cast, codes, dims=None):
        rng, lib = self.rng, self.lib
        dims = dims or [len(codes)]
        words = self.words(len(codes))
        wa = words_array(words)
        want, refuse = [], False
        try:
            want = [m.encode(dst, m.decode(src, c), cast, w) for c, w in zip(codes, words)]
        except m.Refused:
            refuse = True
        fast = rng.randrange(len(dims)) if rng.random() < 0.4 else None
        S = Memory(rng, src, dims, codes, fast=fast)
        op = CConvert(C.sizeof(CConvert), c_cast(cast, wa if cast.round == "sr" else None))
        self.cases += 1
        for name in ("all", "ref", "avx2", "pool"):
            if name not in lib.ctx or (name in ("pool", "avx2") and rng.random() < 0.9):
                continue
            D = Memory(rng, dst, dims, fast=fast if rng.random() < 0.5 else None)
            ts, td = S.tensor(), D.tensor()
            if src == dst and rng.random() < 0.4:  # in place
                for o, c in zip(D.offsets, codes):
                    D.put(o, c)
                D.before = D.buf.raw
                ts = td
            st = lib.c.ng_convert(lib.ctx[name], C.byref(op), C.byref(ts), C.byref(td))
            what = lambda i=None: "convert %s -> %s %s ctx=%s kernel=%s%s" % (  # noqa: E731
                src, dst, cast, name, lib.c.ng_ctx_kernel(lib.ctx[name]).decode(),
                "" if i is None else " code %x word %08x value %r" % (codes[i], words[i], m.decode(src, codes[i])))
            if refuse:
                self.same(STATUS[st], "NG_ERR_FORMAT", what)
                self.same(D.buf.raw == D.before, True, lambda: what() + " wrote on error")
                self.cover["refused"] += 1
                continue
            if st != OK:
                self.fail(what() + " status %s: %s" % (STATUS[st], lib.message(lib.ctx[name])))
                continue
            got = D.get()
            for i, (g, w) in enumerate(zip(got, want)):
                if not self.same("%x" % g, "%x" % w, lambda: what(i)):
                    break
            if not D.untouched():
                self.fail(what() + " wrote outside the tensor")

    def suite_convert(self):
        """Sections 1, 2, 2.1, 11.1: ng_decode, ng_encode, ng_convert."""
        rng, lib = self.rng, self.lib
        out = CValue()
        for fmt in FORMAT_ORDER:  # every code of 16 bits and less
            f = FORMATS[fmt]
            codes = range(1 << f.bits) if f.bits <= 16 else [c for s in STYLES for c in codes_of(rng, fmt, 300, s)]
            if f.bits == 16 and not self.long:
                codes = range(rng.randrange(7), 1 << 16, 7)
            if fmt == "tf32":
                codes = list(codes) + [rng.getrandbits(32) for _ in range(300)]
            self.cases += 1
            for c in codes:
                st = lib.c.ng_decode(FORMAT_CODE[fmt], c, C.byref(out))
                v = m.decode(fmt, c)
                got = (st, out.cls, out.neg, Fraction(out.sig) * m.pow2(out.exp) if out.cls == 0 else 0, out.sticky)
                want = (OK, v.kind, v.neg, abs(v.x), False)
                self.same(got, want, lambda: "decode %s %x" % (fmt, c))
        for _ in range(self.times(12000)):  # arbitrary reals, with and without sticky
            dst = rng.choice(FORMAT_ORDER)
            f = FORMATS[dst]
            cast = self.cast(dst if rng.random() < 0.98 else None)
            if rng.random() < 0.02:
                cast.nan_to = "error"
            r = rng.random()
            neg = rng.random() < 0.5
            sticky = False
            if r < 0.05:
                v = Num(rng.choice([m.INF, m.NAN]), 0, neg)
            elif r < 0.08:
                v = m.num(Fraction(0), neg)
            else:
                e = rng.randint(f.emin - f.man - 6, m.floor_log2(m.max_value(dst)) + 2)
                if r < 0.5:
                    sig = rng.getrandbits(64) | 1 << 63
                    if r < 0.3:  # near a tie or a grid point
                        keep = rng.randint(1, f.man + 3)
                        sig = sig >> (64 - keep) << (64 - keep)
                        sig = max(1 << 63, min((1 << 64) - 1, sig + rng.choice([-1, 0, 0, 1])))
                    sticky = rng.random() < 0.4
                    x = Fraction(sig) * m.pow2(e - 63)
                    v = m.num(-x if neg else x)
                    cv = CValue(sig, e - 63, 0, neg, sticky)
                    if sticky:
                        x += Fraction(1, 3) * m.pow2(e - 63)
                        v = m.num(-x if neg else x)
                else:
                    x = Fraction(rng.getrandbits(f.man + 3) | 1) * m.pow2(e - f.man - 1)
                    v = m.num(-x if neg else x)
            if v.kind != m.FINITE or not sticky:
                if r < 0.08 or r >= 0.5:
                    cv = c_value(v, rng)
            word = self.words(1)[0]
            code = C.c_uint32(0xDEAD)
            cc = c_cast(cast)
            st = lib.c.ng_encode(FORMAT_CODE[dst], C.byref(cc), C.byref(cv), word, C.byref(code))
            try:
                want = (OK, m.encode(dst, v, cast, word))
            except m.Refused:
                want = (ERR_FORMAT, 0xDEAD)
            self.cases += 1
            self.same((st, code.value), want, lambda: "encode %s %s sig=%x exp=%d cls=%d neg=%d sticky=%d word=%08x" % (
                dst, cast, cv.sig, cv.exp, cv.cls, cv.neg, cv.sticky, word))
        small = [f for f in FORMAT_ORDER if FORMATS[f].bits <= 8]
        combos = list(itertools.product(small, FORMAT_ORDER, ROUNDS, OVERFLOWS))
        if not self.long:
            combos = rng.sample(combos, min(len(combos), self.times(250)))
        for src, dst, rnd, ovf in combos:  # every code of a small format
            cast = self.cast()
            cast.round, cast.overflow = rnd, ovf
            self.convert_case(src, dst, cast, list(range(1 << FORMATS[src].bits)))
        if self.long:
            for src, dst in (("bf16", "e4m3fn"), ("f16", "e5m2"), ("bf16", "e2m1"), ("f16", "bf16")):
                for rnd in ROUNDS:
                    cast = self.cast(dst)
                    cast.round = rnd
                    self.convert_case(src, dst, cast, list(range(1 << 16)))
        for _ in range(self.times(1800)):
            src, dst = rng.choice(FORMAT_ORDER), rng.choice(FORMAT_ORDER)
            if rng.random() < 0.6:
                src = rng.choice(["f32", "bf16", "f16"])
            cast = self.cast(dst if rng.random() < 0.98 else None)
            dims = [rng.randint(1, 5) for _ in range(rng.randint(1, 4))]
            if rng.random() < 0.3:
                dims = [rng.randint(1, 4), rng.randint(1, 70)]
            n = 1
            for d in dims:
                n *= d
            codes = self.near(src, dst, n) if rng.random() < 0.6 else []
            codes += codes_of(rng, src, n - len(codes), rng.choice(STYLES)) if n > len(codes) else []
            if any(not is_finite(src, c) for c in codes) and rng.random() < 0.1:
                cast.nan_to = "error"
            if src == "tf32" and rng.random() < 0.3:
                codes = [c | rng.getrandbits(13) for c in codes]
            rng.shuffle(codes)
            self.cover[cast.round] += 1
            self.convert_case(src, dst, cast, codes, dims)

    # -- quantize ----------------------------------------------------------------------------------

    def suite_quantize(self):
        """Sections 3 and 11.5: ng_quantize, ng_dequantize, ng_scale_move."""
        for _ in range(self.times(650)):
            self.quantize_mx()
        for _ in range(self.times(450)):
            self.quantize_nv()
        for _ in range(self.times(600)):
            self.dequantize_case()
        for _ in range(self.times(250)):
            self.scale_move_case()

    def block_values(self, src, n):
        rng = self.rng
        r = rng.random()
        if r < 0.45:
            return codes_of(rng, src, n, rng.choice(STYLES))
        # A block whose largest magnitude lies near a power of two times a format's thresholds.
        top = rng.choice([1, 2, 448, 57344, 28, Fraction(15, 2), 6, 7, Fraction(127, 64), Fraction(15, 8), Fraction(31, 16)])
        e = rng.randint(FORMATS[src].emin - FORMATS[src].man, m.floor_log2(m.max_value(src)))
        x = Fraction(top) / m.pow2(m.floor_log2(top)) * m.pow2(e)
        c = m.encode(src, m.num(x), m.SAT)
        c = max(0, min(FORMATS[src].max_code, c + (rng.choice([-1, 0, 0, 1]) << FORMATS[src].low)))
        a = m.decode(src, c).x
        out = []
        for _ in range(n):
            y = a * Fraction(rng.randrange(4097), 4096) * rng.choice([1, 1, Fraction(1, 8), Fraction(1, 300)])
            out.append(m.encode(src, m.num(-y if rng.random() < 0.5 else y, rng.random() < 0.5), m.SAT))
        out[rng.randrange(n)] = negate(src, c) if rng.random() < 0.5 else c
        f = FORMATS[src]
        if r > 0.85 and f.has_nan:
            for _ in range(rng.randint(1, 2)):
                out[rng.randrange(n)] = rng.choice([f.nan] + ([((1 << f.exp) - 1) << (f.man + f.low)] * 2 if f.has_inf else []))
        if r > 0.97:
            out = [rng.choice([f.nan if f.has_nan else 0, 0]) for _ in range(n)]
        return out

    def quantize_setup(self, src, block, layout):
        """A random shape, the axis, and codes arranged so that each block is drawn as one."""
        rng = self.rng
        rank = rng.randint(1, 3)
        axis = rng.randrange(rank)
        dims = [rng.randint(1, 3) for _ in range(rank)]
        if layout == "trn_wrap":
            dims[axis] = 32 * rng.choice([1, 1, 2, 3, 16, 17])
        else:
            dims[axis] = rng.choice([1, block, block, 2 * block, rng.randint(1, 3 * block)])
        K = dims[axis]
        nb = m.block_count(K, block)
        sdims = list(dims)
        sdims[axis] = nb
        members = collections.defaultdict(list)  # scale index -> element numbers
        for i, ix in enumerate(itertools.product(*map(range, dims))):
            s = list(ix)
            s[axis] = m.block_of(ix[axis], K, block, layout)
            members[tuple(s)].append(i)
        codes = [0] * sum(len(v) for v in members.values())
        for els in members.values():
            for i, c in zip(els, self.block_values(src, len(els))):
                codes[i] = c
        return dims, sdims, axis, members, codes

    def quantize_run(self, src, dst, sfmt, rule, special, cast, block, layout, setup, want, amax=0):
        """Call the library on every context and compare elements, scales and tensor scale."""
        rng, lib = self.rng, self.lib
        dims, sdims, axis, members, codes, words = setup
        wa = words_array(words)
        S = Memory(rng, src, dims, codes, fast=rng.choice([None, rng.randrange(len(dims))]))
        self.cases += 1
        self.cover[rule + " " + special] += 1
        w_el, w_sc, w_ts = want
        for name in ("all", "ref", "avx2", "pool"):
            if name not in lib.ctx or (name in ("pool", "avx2") and rng.random() < 0.8):
                continue
            D = Memory(rng, dst, dims, fast=rng.choice([None, rng.randrange(len(dims))]))
            plain = rng.random() < 0.5
            X = Memory(rng, sfmt, sdims, loose=not plain)
            ts, td = S.tensor(), D.tensor()
            td.scale = C.addressof(X.buf) + X.lead
            td.scale_format, td.block, td.block_axis = FORMAT_CODE[sfmt], block, axis
            td.layout = LAYOUTS.index(layout)
            if not plain:
                for i, s in enumerate(X.stride):
                    td.scale_stride[i] = s
            op = CQuantize(C.sizeof(CQuantize), RULES.index(rule), SPECIALS.index(special),
                           c_cast(cast, wa if cast.round == "sr" else None), amax)
            st = lib.c.ng_quantize(lib.ctx[name], C.byref(op), C.byref(ts), C.byref(td))

            def what(i=None):
                t = "quantize %s -> %s rule=%s special=%s block=%d %s dims=%s axis=%d %s amax=%08x ctx=%s kernel=%s" % (
                    src, dst, rule, special, block, layout, dims, axis, cast, amax, name,
                    lib.c.ng_ctx_kernel(lib.ctx[name]).decode())
                if i is not None:
                    els = members[i]
                    t += "\n  block %s src: %s\n  words %s\n  want scale %02x elements %s\n  got  scale %02x elements %s" % (
                        i, " ".join("%x" % codes[j] for j in els), " ".join("%08x" % words[j] for j in els),
                        w_sc[i], " ".join("%x" % w_el[j] for j in els),
                        scales[i], " ".join("%x" % got[j] for j in els))
                return t

            if st != OK:
                self.fail(what() + " status %s: %s" % (STATUS[st], lib.message(lib.ctx[name])))
                continue
            got = D.get()
            scales = dict(zip(itertools.product(*map(range, sdims)), X.get()))
            for i in members:
                ok = self.same(scales[i], w_sc[i], lambda: what(i))
                for j in members[i]:
                    ok = ok and self.same(got[j], w_el[j], lambda: what(i) + "\n  element %d" % j)
            if w_ts is not None:
                self.same("%08x" % td.tensor_scale, "%08x" % w_ts, lambda: what() + "\n  codes " + " ".join("%x" % c for c in codes))
            if not D.untouched() or not X.untouched():
                self.fail(what() + " wrote outside the tensor")

    def quantize_mx(self):
        rng = self.rng
        dst = rng.choice(["e4m3fn", "e5m2", "e3m2", "e2m3", "e2m1", "mxint8"])
        src = rng.choice(["f32", "f32", "bf16", "bf16", "f16", "e5m2", "e4m3", "tf32"])
        rule, special = rng.choice(RULES[:5]), rng.choice(SPECIALS)
        layout = rng.choice(["linear", "linear", "trn_1x32", "trn_wrap"])
        block = 32 if layout != "linear" or rng.random() < 0.7 else rng.choice([1, 3, 8, 16, 64])
        cast = self.cast(rounds=ROUNDS if rng.random() < 0.5 else ["rne"])
        cast.overflow = "sat"
        dims, sdims, axis, members, codes = self.quantize_setup(src, block, layout)
        words = self.words(len(codes))
        el, sc = {}, {}
        for i, els in members.items():
            sc[i], out = m.quantize_mx_block([m.decode(src, codes[j]) for j in els], dst, rule, special, cast,
                                             [words[j] for j in els])
            el.update(zip(els, out))
        self.quantize_run(src, dst, "e8m0", rule, special, cast, block, layout,
                          (dims, sdims, axis, members, codes, words), (el, sc, None))

    def quantize_nv(self):
        rng = self.rng
        src = rng.choice(["f32", "f32", "bf16", "bf16", "f16", "e4m3fn"])
        rule, special = rng.choice(RULES[5:]), rng.choice(SPECIALS[:2])
        cast = self.cast(rounds=ROUNDS if rng.random() < 0.4 else ["rne"])
        cast.overflow = "sat"
        dims, sdims, axis, members, codes = self.quantize_setup(src, 16, "linear")
        if rng.random() < 0.5:  # keep the tensor's magnitudes together
            codes = codes_of(rng, src, len(codes), rng.choice(STYLES))
        words = self.words(len(codes))
        values = [m.decode(src, c) for c in codes]
        amax = 0
        if rng.random() < 0.3:
            amax = field_code(rng, "f32", *rng.choice([(0, 0), (0, 1), (0.4, 0.6), (0.95, 1)]), sign=False)
        S, ts = m.nvfp4_tensor(values, rule, amax)
        el, sc = {}, {}
        for i, els in members.items():
            sc[i], out = m.quantize_nv_block([values[j] for j in els], rule, special, S, cast, [words[j] for j in els])
            el.update(zip(els, out))
        self.quantize_run(src, "e2m1", "ue4m3", rule, special, cast, 16, "linear",
                          (dims, sdims, axis, members, codes, words), (el, sc, ts), amax)

    def dequantize_case(self):
        rng, lib = self.rng, self.lib
        nv = rng.random() < 0.3
        src = "e2m1" if nv else rng.choice(["e4m3fn", "e5m2", "e3m2", "e2m3", "e2m1", "mxint8", "bf16", "f32"])
        sfmt = "ue4m3" if nv else "e8m0"
        dst = rng.choice(["f32", "f32", "bf16", "bf16", "f16", "e5m2", "e4m3fn"])
        layout = "linear" if nv else rng.choice(["linear", "trn_1x32", "trn_wrap"])
        block = 16 if nv else 32 if layout != "linear" or rng.random() < 0.7 else rng.choice([1, 3, 8, 64])
        dims, sdims, axis, members, codes = self.quantize_setup(src, block, layout)
        cast = self.cast(dst)
        words = self.words(len(codes))
        wa = words_array(words)
        scales = {i: scale_codes(rng, sfmt, 1)[0] for i in members}
        ts = 0
        if nv and rng.random() < 0.7:
            ts = field_code(rng, "f32", *rng.choice([(0, 0), (0.3, 0.6), (0.95, 1)]), sign=False)
        want = {}
        for i, els in members.items():
            for j in els:
                want[j] = m.dequantize(src, codes[j], sfmt, scales[i], ts, dst, cast, words[j])
        S = Memory(rng, src, dims, codes, fast=rng.choice([None, rng.randrange(len(dims))]))
        order = list(itertools.product(*map(range, sdims)))
        plain = rng.random() < 0.5
        X = Memory(rng, sfmt, sdims, [scales[i] for i in order], loose=not plain)
        tsr = S.tensor()
        tsr.scale = C.addressof(X.buf) + X.lead
        tsr.scale_format, tsr.block, tsr.block_axis = FORMAT_CODE[sfmt], block, axis
        tsr.layout, tsr.tensor_scale = LAYOUTS.index(layout), ts
        if not plain:
            for i, s in enumerate(X.stride):
                tsr.scale_stride[i] = s
        op = CConvert(C.sizeof(CConvert), c_cast(cast, wa if cast.round == "sr" else None))
        self.cases += 1
        self.cover["dequantize"] += 1
        for name in ("all", "ref"):
            D = Memory(rng, dst, dims, fast=rng.choice([None, rng.randrange(len(dims))]))
            td = D.tensor()
            st = lib.c.ng_dequantize(lib.ctx[name], C.byref(op), C.byref(tsr), C.byref(td))
            head = "dequantize %s %s -> %s block=%d %s dims=%s axis=%d %s tensor_scale=%08x ctx=%s" % (
                src, sfmt, dst, block, layout, dims, axis, cast, ts, name)
            if st != OK:
                self.fail(head + " status %s: %s" % (STATUS[st], lib.message(lib.ctx[name])))
                continue
            got = D.get()
            for i in members:
                for j in members[i]:
                    if not self.same("%x" % got[j], "%x" % want[j], lambda: head + "\n  code %x scale %02x word %08x" % (
                            codes[j], scales[i], words[j])):
                        break
            if not D.untouched():
                self.fail(head + " wrote outside the tensor")

    def scale_move_case(self):
        rng, lib = self.rng, self.lib
        lines = rng.choice([1, 2, 5, 31, 33, 127, 128, 129, 200, 260])
        blocks = rng.choice([1, 2, 3, 4, 5, 8, 15, 16, 17, 33])
        frm, to = rng.choice(STORES), rng.choice(STORES)
        rows = rng.choice([0, 128, 64, 32, 8, 24, 96])
        offset = rng.choice([0, 4, 8, 12])
        P = rows or 128
        src = rng.randbytes(m.scale_bytes(frm, lines, blocks, P))
        want = m.scale_move(src, frm, to, lines, blocks, P, offset)
        size = lib.c.ng_scale_bytes(STORES.index(to), lines, blocks, P)
        what = lambda: "scale_move %s -> %s lines=%d blocks=%d tile_rows=%d offset=%d" % (frm, to, lines, blocks, rows, offset)  # noqa: E731
        self.cases += 1
        self.cover["move %s %s" % (frm, to)] += 1
        if not self.same(size, len(want), lambda: what() + " bytes"):
            return
        buf = C.create_string_buffer(b"\xa5" * (size + 8), size + 8)
        st = lib.c.ng_scale_move(lib.ctx["all"], STORES.index(frm), src, STORES.index(to), buf, lines, blocks, rows, offset)
        if st != OK:
            self.fail(what() + " status %s: %s" % (STATUS[st], lib.message(lib.ctx["all"])))
            return
        self.same(buf.raw[:size] == want, True, what)
        self.same(buf.raw[size:], b"\xa5" * 8, lambda: what() + " wrote past the end")

    # -- NVFP4, step by step ------------------------------------------------------------------------

    def suite_nvfp4(self):
        """Section 11.5: both rules at every place where a ue4m3 scale or an e2m1 element changes, and
        all codes of both dequantised. Steps are found in the model by bisection: both rise."""
        largest = [0x42F6E979, 0x7F7FFFFF, 0x00000001]
        if self.long:
            largest += [0x3F800000, 0x45280000, 0x00800000, 0x3EAAAAAB] + [self.rng.randrange(1, 0x7F800000) for _ in range(8)]
        for i, amax in enumerate(largest):
            for r, rule in enumerate(RULES[5:]):
                if self.long or i == 0 or r == i % 2:
                    self.nv_steps(rule, amax)
        for ts in [0x3A2AAAAB, 0x00000001] + [0, 0x3F800000, 0x7F7FFFFF, 0x38800001] * self.long:
            self.nv_dequantise(ts)

    def first_pattern(self, holds, low, high, near):
        """The least FP32 pattern in (low, high] of which a monotone property holds; it does of high. The
        search begins around the value `near`, which costs or saves time and nothing else."""
        at = min(max(m.encode("f32", m.num(near), m.SAT), low + 1), high)
        held, step = at == high or holds(at), 2
        low, high = (low, at) if held else (at, high)
        while low < (p := at - step if held else at + step) < high:
            if holds(p):
                high = p
            else:
                low = p
            if (p == high) != held:
                break
            step *= 8
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high

    def nv_row(self, rule, S, ts, a, every_step):
        """A block with the largest magnitude a (an FP32 pattern): the elements are those on both sides
        of each step of e2m1 that a block of this scale has, or a part of a."""
        def block(v):
            return m.quantize_nv_block([m.decode("f32", a), m.decode("f32", v)], rule, "element", S, Cast(), [0, 0])

        row = [a]
        scale, (top, _) = block(0)
        for c in range(1, top + 1 if every_step else 1):
            middle = (m.decode("e2m1", c - 1).x + m.decode("e2m1", c).x) / 2
            p = self.first_pattern(lambda v, c=c: block(v)[1][1] >= c, -1, a, middle * m.decode("ue4m3", scale).x * ts)
            row += [max(p - 1, 0) | 0x80000000 * (c % 2), p | 0x80000000 * (c % 3 == 0)]
        while len(row) < 16:
            row.append(self.rng.randrange(a + 1) | 0x80000000 * self.rng.randrange(2))
        at = self.rng.randrange(16)
        return row[at:] + row[:at]

    def nv_steps(self, rule, amax):
        S, ts = m.nvfp4_tensor([], rule, amax)
        ts_value = m.decode("f32", ts).x

        def scale(p):
            return m.quantize_nv_block([m.decode("f32", p)], rule, "element", S, Cast(), [0])[0]

        rows, at = [], -1
        most = scale(0x7F7FFFFF)
        for c in range(1, most + 1):
            middle = (m.decode("ue4m3", c - 1).x + m.decode("ue4m3", c).x) / 2
            at = self.first_pattern(lambda p, c=c: scale(p) >= c, max(at - 1, -1), 0x7F7FFFFF, middle * 6 * ts_value)
            every_step = c % (2 if self.long else 16) == 0
            rows += [self.nv_row(rule, S, ts_value, max(p, 0), every_step and p == at) for p in (at - 1, at, at + 1) if p < 0x7F800000]
            self.cover["nvfp4 steps"] += 1
        codes = [c for row in rows for c in row]
        members = {(i, 0): list(range(16 * i, 16 * i + 16)) for i in range(len(rows))}
        cast = Cast(self.rng.choice(["rne", "rne", "rtz", "rup"]), "sat")
        el, sc = {}, {}
        for i, els in members.items():
            sc[i], out = m.quantize_nv_block([m.decode("f32", codes[j]) for j in els], rule, "element", S, cast, [0] * 16)
            el.update(zip(els, out))
        for _ in range(5 if self.long else 1):  # each with strides of its own
            self.quantize_run("f32", "e2m1", "ue4m3", rule, "element", cast, 16, "linear",
                              ((len(rows), 16), (len(rows), 1), 1, members, codes, [0] * len(codes)), (el, sc, ts), amax)

    def nv_dequantise(self, ts):
        """All 16 codes under all 256 scales."""
        lib, cast = self.lib, Cast()
        S = Memory(self.rng, "e2m1", (256, 16), [c for _ in range(256) for c in range(16)])
        X = Memory(self.rng, "ue4m3", (256, 1), list(range(256)))
        src = S.tensor()
        src.scale = C.addressof(X.buf) + X.lead
        src.scale_format, src.block, src.block_axis = FORMAT_CODE["ue4m3"], 16, 1
        src.tensor_scale = ts
        for i, s in enumerate(X.stride):
            src.scale_stride[i] = s
        op = CConvert(C.sizeof(CConvert), c_cast(cast, None))
        for dst in ("f32", "bf16"):
            want = [m.dequantize("e2m1", c, "ue4m3", s, ts, dst, cast) for s in range(256) for c in range(16)]
            for name in sorted(lib.ctx):
                D = Memory(self.rng, dst, (256, 16))
                out = D.tensor()
                self.cases += 1
                st = lib.c.ng_dequantize(lib.ctx[name], C.byref(op), C.byref(src), C.byref(out))
                if st != OK:
                    self.fail("dequantize: %s" % lib.message(lib.ctx[name]))
                    continue
                for i, (g, w) in enumerate(zip(D.get(), want)):
                    if not self.same("%x" % g, "%x" % w, lambda: "dequantize e2m1 code %x scale %02x tensor_scale %08x -> %s ctx=%s" % (
                            i % 16, i // 16, ts, dst, name)):
                        break

    # -- multiplies --------------------------------------------------------------------------------

    def gemm_case(self, prof, A, B, mode, batch_dims=(), dot=False, c_fmt=None, d_fmt="f32", out=None, acc=None,
                  psum="rne", out_scale=0, fp4=None, exact=False, c_style="middle", sample=0):
        """One multiply on every context against the model. prof: a profile pointer. sample: ask the
        model for this many elements only; the others are compared between the contexts."""
        rng, lib = self.rng, self.lib
        rule = lib.c.ng_profile_rule(prof, FORMAT_CODE[A.fmt], FORMAT_CODE[B.fmt], MODES.index(mode), None, 0)
        if not rule:
            self.notes["no rule %s %s %s" % (A.fmt, B.fmt, mode)] += 1
            return
        p = lib.rule_params(rule)
        out = out or Cast()
        self.count_keys(p, mode=mode, a=A.fmt, b=B.fmt, C=c_fmt, D=d_fmt, out_round=out.round, accumulate=acc,
                        batch=A.batch, call="dot" if dot else "gemm", psum_write="%s %s" % (acc, psum))
        batch = A.batch
        rows, cols = (A.lines, 1) if dot else (A.lines, B.lines)
        E = batch * rows * cols
        keep = []
        ta = A.tensor(rng, batch_dims, True, keep)
        tb = B.tensor(rng, batch_dims, dot, keep)
        ddims = [rows] if dot else list(batch_dims) + [rows, cols]
        c_codes = None
        if c_fmt:
            c_codes = codes_of(rng, c_fmt, E, c_style)
        array = p["family"] == "array"
        effective = acc or "f32"
        if acc is None and not array:
            f16 = d_fmt == "f16" and c_fmt in (None, "f16") and p["out_f16"] != "none"
            effective = "f16" if f16 else "f32"
        # The model's answer.
        owords = self.words(E)
        writes = 1
        if array:
            K = A.K if A.tags is not None or B.tags is None else B.K
            depth = p["rows"] * p["lanes"] or K
            writes = -(-K // depth) * (1 if p["pieces"] == 1 else p["piece_adds"])
        pwords = self.words(writes * E) if psum == "sr" else None
        # Of this cast only the rounding and its random bits are read.
        pcast = Cast(psum)
        if psum == "sr" and rng.random() < 0.3:
            pcast = Cast("sr", sr=rng.choice("abc"), sr_bits=rng.choice([32, 1, 8, 16, 20]), sr_take=rng.choice(["low", "high"]))
        want, reals = [], []
        chosen = set(rng.sample(range(E), sample)) if 0 < sample < E else None
        for e in range(E):
            if chosen is not None and e not in chosen:
                want.append(None)
                continue
            b, r = divmod(e, rows * cols)
            i, j = divmod(r, cols)
            la, lb = A.line(b, i), B.line(b, i if dot else j)
            if A.tags is not None:
                lb = lb.gather(m.slots(A.tags[b][i], A.kept, A.group))
            if B.tags is not None:
                la = la.gather(m.slots(B.tags[b][i if dot else j], B.kept, B.group))
            cv = m.fixed(c_fmt, c_codes[e]) if c_fmt else None
            if array:
                v = m.Array(p).element(la, lb, cv, effective, pcast,
                                       (lambda s: pwords[s * E + e]) if pwords else None, fp4)
            else:
                sp = A if A.tags is not None else B
                v = m.Fused(p, effective, (sp.kept, sp.group) if sp.tags is not None else None).element(la, lb, cv)
            nans = {"f32": p["nan_f32"], "f16": p["nan_f16"], "bf16": FORMATS["bf16"].nan}
            want.append(m.finish(v, effective, nans, d_fmt, out, owords[e], out_scale))
            if exact:
                reals.append(m.real_value(p, la, lb, cv, fp4 if array else None))
        # The library's.
        op = CGemm(size=C.sizeof(CGemm), profile=prof, double_row=mode == "double_row",
                   accumulate=FORMAT_CODE[acc] if acc else 0)
        ow, pw = words_array(owords), words_array(pwords or [])
        op.out = c_cast(out, ow if out.round == "sr" else None)
        op.psum = c_cast(pcast, pw if psum == "sr" else None)
        op.out_scale = out_scale
        if fp4:
            table = (C.c_uint8 * 16)(*fp4[0])
            op.fp4_map, op.fp4_format = C.addressof(table), FORMAT_CODE[fp4[1]]
        self.cases += 1
        call = lib.c.ng_dot if dot else lib.c.ng_gemm
        for name in ("ref", "all", "avx2", "pool"):
            if name not in lib.ctx or (name in ("pool", "avx2") and not sample and rng.random() < 0.9):
                continue
            ctx = lib.ctx[name]
            alias = c_fmt == d_fmt and c_fmt is not None and rng.random() < 0.3
            D = Memory(rng, d_fmt, ddims, c_codes if alias else None,
                       fast=None if dot else len(ddims) - 1 - (rng.random() < 0.3))
            td = D.tensor()
            tc = None
            if c_fmt:
                if alias:
                    tc = td
                else:
                    cm = Memory(rng, c_fmt, ddims, c_codes, fast=None if dot else len(ddims) - 1 - (rng.random() < 0.3))
                    keep.append(cm)
                    tc = cm.tensor()
            pc = C.byref(tc) if tc is not None else None

            def what(i=None, got=None):
                t = "%s %s ctx=%s kernel=%s\n%s" % (
                    "dot" if dot else "gemm", lib.rule_line(prof, rule), name,
                    lib.c.ng_ctx_kernel(ctx).decode(), A.dump("A") + "\n" + B.dump("B"))
                t += "\n  K=%d batch=%s C=%s %s D=%s accumulate=%s psum=%s out=%s out_scale=%08x fp4=%s alias=%s" % (
                    A.K, list(batch_dims), c_fmt, " ".join("%x" % c for c in c_codes) if c_codes else "", d_fmt,
                    acc, pcast, out, out_scale, fp4, alias)
                if pwords:
                    t += "\n  psum words " + " ".join("%08x" % w for w in pwords)
                if i is not None:
                    t += "\n  element %d out word %08x" % (i, owords[i])
                if got is not None:
                    t += "\n  all want %s\n  all got  %s" % (" ".join("-" if w is None else "%x" % w for w in want),
                                                              " ".join("%x" % g for g in got))
                return t

            if exact:
                self.exact_elements(op, dot, ta, tb, pc, td, ddims, ctx, reals, what)
                break
            st = call(ctx, C.byref(op), C.byref(ta), C.byref(tb), pc, C.byref(td))
            if st != OK:
                self.fail(what() + "\n  status %s: %s" % (STATUS[st], lib.message(ctx)))
                continue
            self.cover["kernel " + lib.c.ng_ctx_kernel(ctx).decode()] += 1
            got = D.get()
            for i, (g, w) in enumerate(zip(got, want)):
                if w is None:
                    want[i] = w = g
                if not self.same("%x" % g, "%x" % w, lambda: what(i, got)):
                    break
            if not D.untouched():
                self.fail(what() + " wrote outside the tensor")
            if name == "all" and not alias and rng.random() < 0.2:
                e = rng.randrange(E)
                index = (C.c_int64 * 4)(*list(itertools.product(*map(range, ddims)))[e])
                code = C.c_uint32()
                st = lib.c.ng_gemm_element(ctx, C.byref(op), dot, C.byref(ta), C.byref(tb), pc, C.byref(td), index,
                                           None, C.byref(code))
                self.same((st, "%x" % code.value), (OK, "%x" % want[e]), lambda: what(e) + "\n  by ng_gemm_element")

    def exact_elements(self, op, dot, ta, tb, pc, td, ddims, ctx, reals, what):
        lib = self.lib
        for e, ix in enumerate(itertools.product(*map(range, ddims))):
            index = (C.c_int64 * 4)(*ix)
            v = CValue()
            st = lib.c.ng_gemm_exact(ctx, C.byref(op), dot, C.byref(ta), C.byref(tb), pc, C.byref(td), index, C.byref(v))
            r = reals[e]
            if st != OK:
                self.fail(what(e) + "\n  ng_gemm_exact status %s: %s" % (STATUS[st], lib.message(ctx)))
                continue
            unit = m.pow2(v.exp) if v.cls == 0 else 1
            if r.kind != m.FINITE:
                good = v.cls == r.kind and (r.kind == m.NAN or v.neg == r.neg)
            elif v.sticky:
                good = v.cls == 0 and v.neg == r.neg and v.sig >> 63 == 1 and v.sig * unit < abs(r.x) < (v.sig + 1) * unit
            else:
                good = v.cls == 0 and v.neg == r.neg and v.sig * unit == abs(r.x)
            self.same(good, True, lambda: what(e) + "\n  exact: want %r\n  got sig=%x exp=%d cls=%d neg=%d sticky=%d" % (
                r, v.sig, v.exp, v.cls, v.neg, v.sticky))

    def count_keys(self, p, **more):
        """Count what this multiply covers: the values of its rule's parameters, and `more`."""
        fam = p["family"]
        first = PARAMS.index("sum")
        for i, key in enumerate(PARAMS):
            if i < 3 or (i < first) == (fam == "array"):
                self.keys[key][p[key]] += 1
        for key, v in more.items():
            self.keys["D round" if key == "out_round" else key][v] += 1

    def copy(self, base, rule_of, settings):
        """A copy of a built-in with keys set on the rule that takes (a, b, mode), or None when the
        library's check refuses it. Parsed back from its own text half the time."""
        lib = self.lib
        c = lib.c
        src = c.ng_profile_find(base.encode())
        assert src, "no profile " + base
        p = c.ng_profile_copy(src)
        rule = c.ng_profile_rule(p, FORMAT_CODE[rule_of[0]], FORMAT_CODE[rule_of[1]], MODES.index(rule_of[2]), None, 0)
        if not rule:
            self.notes["%s has no rule for %s" % (base, " ".join(rule_of))] += 1
            c.ng_profile_free(p)
            return None
        for key, value in settings.items():
            st = c.ng_profile_set(p, rule.contents.name, key.encode(), str(value).encode())
            if st != OK:
                self.notes["set %s=%s: %s" % (key, value, STATUS[st])] += 1
                c.ng_profile_free(p)
                return None
        buf = C.create_string_buffer(512)
        if c.ng_profile_check(p, buf, 512) != OK:
            self.notes["refused by ng_profile_check: wanted " + buf.value.decode().partition("wanted: ")[2]] += 1
            c.ng_profile_free(p)
            return None
        if self.rng.random() < 0.5:
            n = c.ng_profile_print(p, None, 0)
            text = C.create_string_buffer(n + 1)
            c.ng_profile_print(p, text, n + 1)
            q = C.POINTER(CProfile)()
            st = c.ng_profile_parse(text.value, n, C.byref(q), buf, 512)
            if st != OK:
                self.fail("profile text does not parse: %s\n%s" % (buf.value.decode(), text.value.decode()))
            else:
                if c.ng_profile_hash(p) != c.ng_profile_hash(q):
                    self.fail("profile hash changed by print and parse:\n" + text.value.decode())
                c.ng_profile_free(p)
                p = q
        return p

    def depth(self, KT, big):
        """A K: mostly small, every residue, now and then a little over two tiles."""
        rng = self.rng
        r = rng.random()
        if not KT:
            return rng.randint(1, 9) if r < 0.4 else rng.randint(1, big)
        if r < 0.35:
            return rng.randint(1, min(KT, 12))
        if r < 0.65:
            return rng.randint(1, KT)
        if r < 0.8:
            return KT + rng.randint(-2, 2) if KT > 2 else KT
        return rng.randint(KT, 2 * KT + max(2, KT // 8))

    def operands(self, fa, fb, K, M, N, batch=1, ka=None, kb=None):
        rng = self.rng
        s1 = rng.choice(STYLES)
        s2 = rng.choice(STYLES) if rng.random() < 0.6 else rng.choice(["middle", "narrow", "ones", "wide"])
        A = Operand(rng, fa, batch, M, ka or K, s1, batch > 1 and rng.random() < 0.3)
        B = Operand(rng, fb, batch, N, kb or K, s2, batch > 1 and rng.random() < 0.3)
        if rng.random() < 0.06 and FORMATS[fa].exp == FORMATS[fb].exp == 8:  # products near 2^-149 .. 2^-126
            for X in (A, B):
                X.codes = [[[field_code(rng, X.fmt, 0.2, 0.255) if rng.random() < 0.7 else 0 for _ in row] for row in b]
                           for b in X.codes]
                X.style, X.repeat = "underflow", False
        if rng.random() < 0.25 and A.K == B.K and A.K > 1:
            cancel(rng, A, B)
        return A, B

    def shape(self):
        rng = self.rng
        r = rng.random()
        batch_dims = () if r < 0.75 else (2,) if r < 0.93 else (2, rng.randint(1, 2))
        return batch_dims, rng.randint(1, 3), rng.randint(1, 3)

    def output(self, acc):
        """A format and cast for D, and a format for C (or None)."""
        rng = self.rng
        d = "f32" if rng.random() < 0.6 else rng.choice(["bf16", "f16", "e4m3fn", "e5m2", "tf32", "e4m3", "e2m1", "bf16", "e3m4", "e4m3fnuz"])
        out = Cast() if rng.random() < 0.6 else self.cast(d)
        if not FORMATS[d].has_nan:
            out.overflow = "sat"
        c = None
        if rng.random() < 0.4:
            c = rng.choice(["f32", "f32", "bf16", "f16", "e5m2", "tf32"] if acc == "f32" else ["bf16", "bf16", "e4m3fn", "e5m2"])
        return d, out, c

    def finish_array(self, prof, A, B, mode, batch_dims, psum_mode, fp4=None, exact=False, sample=0):
        rng = self.rng
        acc = "bf16" if psum_mode.startswith("bf16") else "f32"
        d, out, c = self.output(acc)
        scale = 0
        if rng.random() < 0.08:
            scale = field_code(rng, "f32", *rng.choice([(0.45, 0.55), (0.1, 0.9)]))
        dot = not sample and not batch_dims and A.lines == B.lines and B.tags is None and rng.random() < 0.2
        if sample and rng.random() < 0.8:
            d, out, c, scale = "f32", Cast(), rng.choice([None, None, "bf16" if acc == "bf16" else "f32"]), 0
        if acc == "f32" and rng.random() < 0.7:
            acc = None  # the same accumulator, left to the library
        self.gemm_case(prof, A, B, mode, batch_dims, dot, c, d, out, acc, "sr" if psum_mode == "bf16 sr" else "rne",
                       scale, fp4, exact, rng.choice(STYLES), sample)

    PSUMS = {"f32": dict(psum="f32"), "bf16 rne": dict(psum="bf16", psum_round="rne"),
             "bf16 sr": dict(psum="bf16", psum_round="sr")}

    def array_settings(self, n):
        """n settings of the family `array`: all combinations of the enumerated keys in turn."""
        rng = self.rng
        combos = list(itertools.product(["fused", "chain", "presum", "tree"], ["block", "parity", "interleave"],
                                        ["tree", "sequential"], ["wide", "f32", "f32_ftz"], ["interleave", "split"],
                                        list(self.PSUMS)))
        rng.shuffle(combos)
        for i in range(n):
            lane_sum, cmap, comb, rng_, kmap, psum = combos[i % len(combos)]
            lanes = rng.choice([1, 2, 2, 4, 4, 4, 3, 8])
            rows, chain = rng.choice([(128, 32), (128, 32), (128, 16), (128, 64), (128, 128), (64, 16), (64, 32),
                                      (64, 64), (32, 16), (32, 16), (32, 32), (32, 8), (16, 4), (8, 2), (0, 0)])
            if rng.random() < 0.3:  # any number of chains of any length
                lanes, chain = rng.choice([lanes, rng.randint(1, 12), 64]), rng.randint(1, 20)
                rows = chain * rng.randint(1, 8) * (2 if cmap == "parity" else 1)
            s = dict(rows=rows, lanes=lanes, lane_sum=lane_sum, chain_rows=chain, chain_map=cmap, combine=comb,
                     acc_range=rng_, k_map=kmap)
            s.update(self.PSUMS[psum])
            if rng.random() < 0.25:
                s["acc_bits"] = rng.choice([8, 11, 16, 23, 25, 28, 32, 40, 53, 2, rng.randint(2, 53)])
            if rng.random() < 0.25:
                s["acc_round"] = rng.choice(ROUNDS[:6])
            if rng.random() < 0.2:
                s["psum_add"] = rng.choice(ROUNDS[:6])
            yield s, psum

    def cover_settings(self, s, psum):
        self.cover["lane_sum=%s chain_map=%s combine=%s acc_range=%s k_map=%s psum=%s" % (
            s["lane_sum"], s["chain_map"], s["combine"], s["acc_range"], s["k_map"], psum)] += 1
        self.cover["rows=%s chain_rows=%s" % (s["rows"], s["chain_rows"])] += 1
        self.cover["lanes=%s" % s["lanes"]] += 1
        for k in ("acc_bits", "acc_round", "psum_add"):
            if k in s:
                self.cover["%s=%s" % (k, s[k])] += 1

    # Section 4.1's table: per profile and rule, the operands and what differs from ROW.
    ROW = dict(rows=128, lanes=1, lane_sum="fused", chain_rows=32, chain_map="block", combine="tree", acc_bits=24,
               acc_round="rne", acc_range="wide", k_map="interleave", psum="f32", psum_add="rne", pieces=1,
               piece_split="trunc", piece_order="lo_first", piece_adds=2, piece_outer="a", tf32_in="rne", nan_f32=0x7FC00000)
    OLD = {"bf16", "f16", "e5m2", "e4m3", "e3m4"}
    TABLE = {}
    for _n, _f8, _mx in (("trn1", None, False), ("trn2", {"e5m2", "e4m3", "e3m4"}, False),
                         ("trn3", {"e5m2", "e4m3", "e4m3fn", "e3m4"}, True), ("trn4-preview", {"e5m2", "e4m3fn", "e3m4"}, True)):
        _mem = dict(psum="f32_or_bf16", psum_round="rne_or_sr") if _mx else {}
        _all = {"trn3": OLD | {"e4m3fn"}, "trn4-preview": OLD - {"e4m3"} | {"e4m3fn"}}.get(_n, OLD)
        TABLE[_n, "plain", "bf16"] = (_all, _mem)
        TABLE[_n, "plain", "tf32"] = ({"tf32"}, _mem)
        TABLE[_n, "plain", "f32"] = ({"f32"}, dict(_mem, pieces=2))
        if _f8:
            TABLE[_n, "double_row", "e5m2"] = (_f8, dict(_mem, lanes=2, k_map="split"))
        if _mx:
            TABLE[_n, "mx", "e5m2"] = ({"e4m3fn", "e5m2", "e2m1"}, dict(_mem, lanes=4, k_map="layout"))
    TABLE["ocp-mx", "mx", "e5m2"] = ({"e5m2", "e4m3fn", "e3m2", "e2m3", "e2m1", "mxint8"},
                                     dict(rows=0, chain_rows=0, lanes=32, acc_range="f32"))
    TABLE["fma-f32", "plain", "f32"] = (None, dict(rows=0, chain_rows=0, acc_range="f32"))

    def check_table(self):
        """The built-in profiles say what the table of section 4.1 says."""
        lib = self.lib
        for (name, mode, fmt), (formats, differs) in self.TABLE.items():
            prof = lib.c.ng_profile_find(name.encode())
            rule = lib.c.ng_profile_rule(prof, FORMAT_CODE[fmt], FORMAT_CODE[fmt], MODES.index(mode), None, 0) if prof else None
            self.cases += 1
            if not rule:
                self.fail("table 4.1: %s has no rule for %s %s" % (name, mode, fmt))
                continue
            p = lib.rule_params(rule)
            for key, want in dict(self.ROW, **differs).items():
                self.same(p[key], want, lambda: "table 4.1: %s %s %s: %s" % (name, mode, fmt, key))
            if formats:
                got = (set(formats_in(rule.contents.a)), set(formats_in(rule.contents.b)))
                self.same(got, (formats, formats), lambda: "table 4.1: %s %s operands" % (name, mode))

    def check_refusals(self):
        """Pairs that section 4.1 and decisions 14, 15 and 18 refuse: (profile, A, B, mode, why)."""
        lib, c = self.lib, self.lib.c
        for name, fa, fb, mode, ok in (
            ("trn2", "f32", "tf32", "plain", False), ("trn3", "tf32", "f32", "plain", False),
            ("trn3", "e4m3", "e4m3fn", "plain", False), ("trn3", "e4m3fn", "e4m3", "double_row", False),
            ("trn3", "e4m3fn", "e5m2", "plain", True), ("trn3", "e4m3", "bf16", "plain", True),
            ("trn1", "e5m2", "e5m2", "double_row", False), ("trn2", "bf16", "bf16", "double_row", False),
            ("trn2", "f32", "bf16", "plain", False), ("trn2", "e4m3fn", "e4m3fn", "plain", False),
            ("trn1", "e5m2", "e5m2", "mx", False), ("trn2", "e4m3fn", "e4m3fn", "mx", False),
            ("trn3", "e4m3", "e4m3", "mx", False), ("trn3", "e2m1", "e5m2", "mx", True),
            ("trn4-preview", "e4m3", "e4m3", "plain", False), ("ocp-mx", "e4m3", "e4m3", "mx", False),
            ("trn3", "e4m3fn", "e4m3fn", "nv", False), ("ocp-mx", "e2m1", "mxint8", "mx", True),
        ):
            got = bool(c.ng_profile_rule(c.ng_profile_find(name.encode()), FORMAT_CODE[fa], FORMAT_CODE[fb],
                                         MODES.index(mode), None, 0))
            self.cases += 1
            self.same(got, ok, lambda: "rule for %s %s x %s %s" % (name, fa, fb, mode))

    def suite_array(self):
        """Section 4.1 without scales: every parameter on copies of fma-f32, then the built-ins."""
        rng, lib = self.rng, self.lib
        self.check_table()
        self.check_refusals()
        kinds = ["bf16", "bf16", "f16", "f32", "tf32", "e4m3fn", "e5m2", "e4m3", "e3m4", "e2m1", "e3m2", "e2m3", "mxint8", "e4m3fnuz"]
        for s, psum in self.array_settings(self.times(1300)):
            fa = rng.choice(kinds)
            fb = fa if rng.random() < 0.7 else rng.choice(kinds)
            if "f32" in (fa, fb) and rng.random() < 0.5:
                fa = fb = "bf16"
            if "tf32" in (fa, fb) and rng.random() < 0.5:
                s["tf32_in"] = rng.choice(ROUNDS[:6])
            prof = self.copy("fma-f32", (fa, fb, "plain"), s)
            if not prof:
                continue
            KT = s["rows"] * s["lanes"]
            K = self.depth(KT, 140)
            batch_dims, M, N = self.shape()
            while M * N * K > 700:
                M, N = rng.randint(1, M), rng.randint(1, N)
                if M * N == 1:
                    batch_dims = ()
                    break
            batch = 1
            for d in batch_dims:
                batch *= d
            if batch * M * N * K > 1000:
                batch_dims, batch = (), 1
            A, B = self.operands(fa, fb, K, M, N, batch)
            for X in (A, B):
                if X.fmt == "tf32" and rng.random() < 0.5:
                    X.codes = [[[c | rng.getrandbits(13) for c in row] for row in b] for b in X.codes]
                    X.repeat = False
            fp4 = None
            if "e2m1" in (fa, fb) and rng.random() < 0.5:
                ff = rng.choice(["e4m3fn", "e5m2"])
                fp4 = ([rng.randrange(256) for _ in range(16)] if rng.random() < 0.3 else codes_of(rng, ff, 16, "wide"), ff)
                self.cover["fp4_map"] += 1
            self.cover_settings(s, psum)
            self.finish_array(prof, A, B, "plain", batch_dims, psum, fp4)
            lib.c.ng_profile_free(prof)
        self.builtins(("plain", "double_row"), "array", self.times(450))
        self.vector_kernels()

    def vector_kernels(self):
        """Shapes that fill the tiles of vector kernels, with edges: sampled against the model, and
        every element between the contexts."""
        rng, lib = self.rng, self.lib
        kinds = ["bf16", "bf16", "bf16", "f16", "e4m3fn", "e5m2", "e4m3", "e3m4", "f32", "tf32", "e2m1"]
        for i, (s, psum) in enumerate(self.array_settings(self.times(90))):
            fa = rng.choice(kinds)
            fb = fa if rng.random() < 0.8 or fa in ("f32", "tf32") else rng.choice(kinds[:8])
            if rng.random() < 0.8:
                s["lanes"] = 1
            if rng.random() < 0.85:
                psum = "f32"
                s.update(self.PSUMS[psum])
                for key in ("acc_bits", "acc_round", "psum_add", "psum_round"):
                    s.pop(key, None)
            prof = None
            if i % 3:
                prof = self.copy("fma-f32", (fa, fb, "plain"), s)
            else:
                psum, fb = "f32", fa
                prof = self.copy(rng.choice(["trn1", "trn2", "trn3", "fma-f32"]), (fa, fb, "plain"), {})
            if not prof:
                continue
            KT = (s["rows"] * s["lanes"] or 64) if i % 3 else 128
            K = self.depth(KT, 150)
            M, N = rng.choice([1, 3, 4, 5, 8, 11]), rng.choice([15, 31, 32, 33, 48, 64, 70])
            batch_dims = (2,) if rng.random() < 0.15 else ()
            A, B = self.operands(fa, fb, K, M, N, 2 if batch_dims else 1)
            if rng.random() < 0.7:  # ordinary data: what a fast path may take
                for X in (A, B):
                    X.style, X.repeat = rng.choice(["middle", "narrow", "ones", "zeros"]), False
                    X.codes = [[codes_of(rng, X.fmt, K, X.style) for _ in row] for row in X.codes]
                if rng.random() < 0.3:
                    cancel(rng, A, B)
            self.finish_array(prof, A, B, "plain", batch_dims, psum, sample=max(6, 4000 // K))
            lib.c.ng_profile_free(prof)

    def builtin_rules(self, modes, family):
        """(profile, rule, mode, format pairs) of every built-in rule."""
        lib, i = self.lib, 0
        while True:
            p = lib.c.ng_profile_at(i)
            i += 1
            if not p:
                return
            for j in range(p.contents.n_rules):
                rule = C.pointer(p.contents.rules[j])
                mode = MODES[rule.contents.mode]
                params = lib.rule_params(rule)
                if mode in modes and params["family"] == family:
                    yield p, rule, mode, params

    def builtins(self, modes, family, n):
        """Built-in profiles as they are."""
        rng, lib = self.rng, self.lib
        rules = list(self.builtin_rules(modes, family))
        self.cover["built-in rules"] = len(rules)
        for i in range(n):
            prof, rule, mode, p = rules[i % len(rules)]
            pair = self.pick_pair(prof, rule, mode)
            if pair is None:
                continue
            fa, fb = pair
            self.cover["built-in %s/%s" % (prof.contents.name.decode(), rule.contents.name.decode())] += 1
            batch_dims, M, N = self.shape()
            KT = p["rows"] * p["lanes"]
            K = self.depth(KT, 200)
            while M * N * K > 900 and M * N > 1:
                M, N, batch_dims = rng.randint(1, M), rng.randint(1, N), ()
            A, B = self.operands(fa, fb, K, M, N, 1 if not batch_dims else [2, 2, 4][len(batch_dims)] if batch_dims != (2, 1) else 2)
            psums = ["f32"]
            if p["psum"] == "f32_or_bf16":
                psums += ["bf16 rne"]
                if p["psum_round"] != "rne":
                    psums += ["bf16 sr"]
            self.finish_array(prof, A, B, mode, batch_dims, rng.choice(psums))

    def pick_pair(self, prof, rule, mode):
        """A random pair of formats that this very rule takes."""
        rng, lib = self.rng, self.lib
        r = rule.contents
        for _ in range(30):
            fa, fb = rng.choice(formats_in(r.a)), rng.choice(formats_in(r.b))
            got = lib.c.ng_profile_rule(prof, FORMAT_CODE[fa], FORMAT_CODE[fb], MODES.index(mode), None, 0)
            if got and got.contents.name == r.name:
                return fa, fb
        self.notes["no pair for %s/%s" % (prof.contents.name.decode(), r.name.decode())] += 1
        return None

    def suite_pieces(self):
        """Sections 4.1 and 11.2.12: FP32 operands in two pieces."""
        rng, lib = self.rng, self.lib
        combos = list(itertools.product(["trunc", "rne"], ["lo_first", "hi_first"], [2, 4], ["a", "b"], list(self.PSUMS),
                                        ["wide", "f32", "f32_ftz"], ["tree", "sequential"], ["block", "parity", "interleave"]))
        rng.shuffle(combos)
        for i in range(self.times(430)):
            split, order, adds, outer, psum, range_, comb, cmap = combos[i % len(combos)]
            rows, chain = rng.choice([(128, 32), (128, 32), (64, 16), (32, 16), (32, 8), (16, 4), (8, 2), (0, 0)])
            if rng.random() < 0.3:
                chain = rng.randint(1, 20)
                rows = chain * rng.randint(1, 8) * (2 if cmap == "parity" else 1)
            s = dict(pieces=2, piece_split=split, piece_order=order, piece_adds=adds, piece_outer=outer, acc_range=range_,
                     combine=comb, chain_map=cmap, rows=rows, chain_rows=chain)
            s.update(self.PSUMS[psum])
            if rng.random() < 0.3:
                s["lanes"] = rng.choice([2, 4])
                s["lane_sum"] = rng.choice(["fused", "chain", "presum", "tree"])
                s["k_map"] = rng.choice(["interleave", "split"])
            if rng.random() < 0.2:
                s["acc_round"] = rng.choice(ROUNDS[:6])
            if rng.random() < 0.2:
                s["acc_bits"] = rng.choice([12, 23, 25, 32])
            if rng.random() < 0.15:
                s["psum_add"] = rng.choice(ROUNDS[:6])
            prof = self.copy("fma-f32", ("f32", "f32", "plain"), s)
            if not prof:
                continue
            self.cover["split=%s order=%s adds=%s outer=%s psum=%s range=%s" % (split, order, adds, outer, psum, range_)] += 1
            batch_dims, M, N = (), rng.randint(1, 2), rng.randint(1, 2)
            K = self.depth(rows * s.get("lanes", 1), 80)
            if K > 100:
                M = N = 1
            A, B = self.operands("f32", "f32", K, M, N)
            if rng.random() < 0.2:  # pieces that carry, vanish or overflow
                for X in (A, B):
                    for row in X.codes[0]:
                        for k in range(len(row)):
                            if rng.random() < 0.5:
                                row[k] = rng.choice([0x7F7FFFFF, 0x7F7FF800, 0x00000800, 0x00000801, 0x00001000, 0x3FFFF800,
                                                     0x3F800800, 0x3F801800, 0x80000001, 0x80000FFF, 0xBF800801, 0x7F800000,
                                                     0, 0x80000000])
            self.finish_array(prof, A, B, "plain", batch_dims, psum)
            lib.c.ng_profile_free(prof)

    def suite_mx(self):
        """MX operands in the family `array` (sections 3, 4.1.2, 4.1.3, 11.2.16, 11.2.18)."""
        rng, lib = self.rng, self.lib
        rules = list(self.builtin_rules(("mx",), "array"))
        for i in range(self.times(500)):
            prof, rule, mode, p = rules[rng.randrange(len(rules))]
            base = prof.contents.name.decode()
            pair = self.pick_pair(prof, rule, mode)
            if pair is None:
                continue
            free, psum = False, "f32"
            layout = rng.choice(["linear", "trn_1x32", "trn_wrap"])
            if i % 3:
                s, psum = next(self.array_settings(1))
                del s["k_map"]
                s["lanes"] = rng.choice([4, 4, 4, 2, 1, 8, 32])
                if layout == "trn_wrap":
                    s["rows"], s["lanes"] = 128, 4
                    if s["chain_rows"] not in (16, 32, 64, 128):
                        s["chain_rows"] = 32
                if rng.random() < 0.3 and layout != "trn_wrap":
                    s["k_map"] = rng.choice(["interleave", "layout"])
                prof = self.copy(base, (*pair, mode), s)
                if not prof:
                    continue
                free = True
                p = lib.rule_params(lib.c.ng_profile_rule(prof, FORMAT_CODE[pair[0]], FORMAT_CODE[pair[1]], 2, None, 0))
                self.cover["lane_sum=%s lanes=%d rows=%d psum=%s" % (s["lane_sum"], s["lanes"], s["rows"], psum)] += 1
            elif p["psum"] == "f32_or_bf16":
                psum = rng.choice(list(self.PSUMS))
            if layout == "trn_wrap" and (p["rows"] != 128 or p["lanes"] != 4 or p["k_map"] != "layout"):
                layout = "linear"  # refused, or k_map contradicts the blocks: the page does not say
            self.cover["%s %s" % (base, layout)] += 1
            KT = p["rows"] * p["lanes"]
            K = self.depth(KT, 150)
            if layout == "trn_wrap":
                K = 32 * rng.choice([1, 1, 2, 3, 5, 8, 16, 17, 20, 33])
            M, N = (rng.randint(1, 3), rng.randint(1, 2)) if K <= 130 else (1, rng.randint(1, 2))
            batch_dims = (2,) if K < 40 and rng.random() < 0.2 else ()
            A, B = self.operands(*pair, K, M, N, 2 if batch_dims else 1)
            other = layout if layout == "trn_wrap" else rng.choice(["linear", "trn_1x32", layout])
            A.add_scales(rng, "e8m0", 32, layout)
            B.add_scales(rng, "e8m0", 32, layout if rng.random() < 0.9 else other)
            fp4 = None
            if "e2m1" in pair and rng.random() < 0.3:
                ff = rng.choice(["e4m3fn", "e5m2"])
                fp4 = (codes_of(rng, ff, 16, "wide"), ff)
            self.finish_array(prof, A, B, mode, batch_dims, psum, fp4)
            if free:
                lib.c.ng_profile_free(prof)

    def suite_sparse(self):
        """Section 4.3: compressed operands, both families."""
        rng, lib = self.rng, self.lib
        rules = list(self.builtin_rules(("plain",), "array")) + list(self.builtin_rules(("plain",), "fused"))
        for _ in range(self.times(500)):
            prof, rule, mode, p = rng.choice(rules)
            pair = self.pick_pair(prof, rule, mode)
            if pair is None:
                continue
            kept, group = rng.choice([(2, 4), (2, 4), (1, 4), (1, 2), (2, 8), (4, 8), (4, 12), (4, 16)])
            if rng.random() < 0.3:
                group = rng.randint(1, 16)
                kept = rng.randint(1, group)
            store = "nv24" if group <= 4 and rng.random() < 0.5 else "trn"
            self.cover["%d:%d %s" % (kept, group, store)] += 1
            free, psum = False, "f32"
            if p["family"] == "array" and rng.random() < 0.5:
                s, psum = next(self.array_settings(1))
                prof = self.copy("fma-f32", (*pair, "plain"), s)
                if not prof:
                    continue
                free = True
            elif p["family"] == "fused" and rng.random() < 0.5:
                prof = self.copy(prof.contents.name.decode(), (*pair, "plain"), {"sparse_k": "dense"})
                if not prof:
                    continue
                free = True
                p = lib.rule_params(lib.c.ng_profile_rule(prof, FORMAT_CODE[pair[0]], FORMAT_CODE[pair[1]], 0, None, 0))
            groups = rng.choice([1, 2, 3, 4, 7, rng.randint(1, 20), rng.randint(1, 80 // kept)])
            Kc, Kd = groups * kept, groups * group
            M, N = rng.randint(1, 3), rng.randint(1, 2)
            batch_dims = (2,) if rng.random() < 0.2 else ()
            nb = 2 if batch_dims else 1
            which = rng.random() < 0.6
            A, B = self.operands(*pair, Kd, M, N, nb, ka=Kc if which else Kd, kb=Kd if which else Kc)
            sp = A if which else B
            if sp.repeat:
                sp.repeat = False
            sp.add_tags(rng, kept, group, store)
            self.cover["sparse " + ("A" if which else "B")] += 1
            self.cover["family " + p["family"]] += 1
            if p["family"] == "array":
                self.finish_array(prof, A, B, mode, batch_dims, psum)
            else:
                self.finish_fused(prof, A, B, mode, batch_dims, p)
            if free:
                lib.c.ng_profile_free(prof)

    def finish_fused(self, prof, A, B, mode, batch_dims, p, exact=False):
        rng = self.rng
        acc = rng.choice([None, None, "f32", "f16"]) if p["out_f16"] != "none" else rng.choice([None, "f32"])
        if p["sum"] == "pairwise" or p["flush_in"] != "none" or p["flush_out"] != "none":
            acc = "f32"  # section 11.3.28 speaks of FP32 only
        d = rng.choice(["f32", "f32", "f32", "f16", "bf16", "e4m3fn", "e5m2", "e2m1"])
        out = Cast() if rng.random() < 0.7 else self.cast(d)
        if not FORMATS[d].has_nan:
            out.overflow = "sat"
        c = None
        if rng.random() < 0.6:
            if acc == "f16" or (acc is None and d == "f16" and rng.random() < 0.5):
                c = rng.choice(["f16", "f16", "e4m3fn"]) if acc == "f16" else "f16"
            else:
                c = rng.choice(["f32", "f32", "f32", "f16", "bf16"])
        dot = not batch_dims and A.lines == B.lines and B.tags is None and rng.random() < 0.15
        self.cover["acc %s" % acc] += 1
        self.cover["C %s" % c] += 1
        scale = field_code(rng, "f32", 0.4, 0.6) if rng.random() < 0.05 else 0
        self.gemm_case(prof, A, B, mode, batch_dims, dot, c, d, out, acc, "rne", scale, None, exact, rng.choice(STYLES))

    def fused_operands(self, pair, mode, rule, p, K, M, N, batch=1):
        rng = self.rng
        A, B = self.operands(*pair, K, M, N, batch)
        if mode in ("mx", "nv"):
            block = rule.contents.block or (32 if mode == "mx" else 16)
            for X in (A, B):
                X.add_scales(rng, "e8m0" if mode == "mx" else "ue4m3", block, "linear")
        if rng.random() < 0.25 and K > 1:  # exponents that fall off the alignment window
            for X in (A, B):
                f = FORMATS[X.fmt]
                if f.kind == "int":
                    continue
                for b in range(X.batch if not X.repeat else 1):
                    for row in X.codes[b]:
                        c0 = rng.uniform(0.1, 0.6)
                        row[:] = [field_code(rng, X.fmt, c0, c0 + min(0.35, rng.choice([2, 6, 14, 20]) / (1 << f.exp))) for _ in row]
        return A, B

    @staticmethod
    def undefined(p):
        """Combinations of the family `fused` to which the page gives no meaning."""
        if p["k_instr"] % (p["group"] * p["exact_group"]):
            return "k_instr is no whole number of steps"
        if p["sum"] == "pairwise" and p["exact_group"] > 1:
            return "pairwise with exact groups"
        if p["product_inf"] and (p["sum"] == "exact" or p["exact_group"] > 1):
            return "product_inf with sum exact or exact groups"
        if p["promote_every"] and (p["c_place"] == "after" or p["k_perm"] == "mod4"):
            return "promote_every with c_place after or k_perm mod4"
        if p["exact_group"] > 1 and p["zero_exp"] == "emin":
            return "zero_exp emin with exact groups"
        return ""

    def suite_fused(self):
        """Sections 4.2 and 11.3: the built-in matrix units, and variations of them."""
        rng, lib = self.rng, self.lib
        rules = list(self.builtin_rules(("plain", "mx", "nv"), "fused"))
        self.cover["built-in rules"] = len(rules)
        for i in range(self.times(2400)):
            prof, rule, mode, p = rules[i % len(rules)]
            base = prof.contents.name.decode()
            pair = self.pick_pair(prof, rule, mode)
            if pair is None:
                continue
            free = False
            if rng.random() < 0.5:
                s = {}

                def maybe(key, values, chance=0.25):
                    if rng.random() < chance:
                        s[key] = rng.choice(values)

                maybe("group", [1, 2, 4, 8, 16, 32, rng.randint(1, 63)])
                maybe("frac", [10, 13, 22, 23, 24, 25, 27, 35, rng.randint(1, 54)])
                maybe("align_round", ROUNDS[:5], 0.1)
                maybe("product_norm", ["keep", "renorm"])
                maybe("zero_exp", ["skip", "emin"])
                maybe("floor_f32", ["none", -132, -133, -126, -20])
                maybe("floor_f16", ["none", -20, -21, -19])
                maybe("out_bits", [10, 13, 22, 23])
                maybe("out_round", ROUNDS[:5])
                maybe("out_f16", ["rne", "rtz"], 0.1)
                maybe("c_place", ["in", "after", "late"])
                maybe("k_perm", ["linear", "mod4"])
                maybe("k_instr", [4, 8, 16, 32, 64])
                maybe("promote_every", [0, 1, 2, 3, 4])
                maybe("product_inf", ["yes", "no"], 0.1)
                maybe("subgroups", [1, 2], 0.1)
                maybe("c_drop", [0, 24, 30], 0.1)
                maybe("sum_frac", [24, 28, 31], 0.1)
                maybe("c_frac", [23, 24, 26], 0.1)
                maybe("flush_in", ["none", "zero", "signed"], 0.1)
                maybe("flush_out", ["none", "zero", "signed"], 0.1)
                maybe("sum", ["align", "exact", "pairwise"], 0.1)
                maybe("tf32_nan", ["keep", "cut"])
                maybe("operand_exp", ["own", "f16"])
                maybe("out_zero", ["signed", "plus"])
                if "group" in s or "k_instr" in s or s.get("k_perm") == "mod4":  # whole steps in an instruction
                    g = s.get("group", p["group"])
                    n = 2 if s.get("k_perm", p["k_perm"]) == "mod4" else rng.choice([1, 1, 2, 4])
                    s["group"] = g if n * g % 4 == 0 else 4
                    s["k_instr"] = s["group"] * p["exact_group"] * n
                if s:
                    prof = self.copy(base, (*pair, mode), s)
                    if not prof:
                        continue
                    free = True
                    rule = lib.c.ng_profile_rule(prof, FORMAT_CODE[pair[0]], FORMAT_CODE[pair[1]], MODES.index(mode), None, 0)
                    p = lib.rule_params(rule)
                    why = self.undefined(p)
                    if why:
                        self.notes[why + ": the page does not say"] += 1
                        continue
            if not free:
                self.cover["built-in %s/%s" % (base, rule.contents.name.decode())] += 1
            self.cover["sum=%s c_place=%s k_perm=%s exact_group=%s promote=%s" % (
                p["sum"], p["c_place"], p["k_perm"], p["exact_group"] > 1, p["promote_every"] > 0)] += 1
            ki = max(p["k_instr"], p["group"])
            r = rng.random()
            K = rng.randint(1, max(2, ki)) if r < 0.5 else rng.randint(1, 2 * ki + 3) if r < 0.9 else ki * rng.randint(1, 3)
            batch_dims, M, N = self.shape()
            while M * N * K > 300 and M * N > 1:
                M, N, batch_dims = rng.randint(1, M), rng.randint(1, N), ()
            batch = 1
            for d in batch_dims:
                batch *= d
            A, B = self.fused_operands(pair, mode, rule, p, K, M, N, batch)
            self.finish_fused(prof, A, B, mode, batch_dims, p)
            if free:
                lib.c.ng_profile_free(prof)

    def suite_exact(self):
        """ng_gemm_exact: the real number behind an element."""
        rng = self.rng
        rules = [x for fam in ("array", "fused") for x in self.builtin_rules(("plain", "double_row", "mx", "nv"), fam)]
        for _ in range(self.times(500)):
            prof, rule, mode, p = rng.choice(rules)
            pair = self.pick_pair(prof, rule, mode)
            if pair is None:
                continue
            K = rng.randint(1, 60)
            M, N = rng.randint(1, 2), rng.randint(1, 2)
            if p["family"] == "array":
                A, B = self.operands(*pair, K, M, N)
                if mode == "mx":
                    A.add_scales(rng, "e8m0", 32, "linear")
                    B.add_scales(rng, "e8m0", 32, "linear")
                self.finish_array(prof, A, B, mode, (), "f32", exact=True)
            else:
                A, B = self.fused_operands(pair, mode, rule, p, K, M, N)
                self.finish_fused(prof, A, B, mode, (), p, exact=True)


SUITES = ["convert", "quantize", "nvfp4", "array", "pieces", "mx", "sparse", "fused", "exact"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("library", nargs="?", default="")
    ap.add_argument("--list", action="store_true", help="print the names of the suites")
    ap.add_argument("--suite", action="append", choices=SUITES, help="run only this suite")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--cases", type=float, default=1.0, help="multiply the number of cases")
    ap.add_argument("--long", action="store_true", help="about ten times the cases")
    ap.add_argument("--show", type=int, default=3, help="mismatches printed per suite")
    ap.add_argument("--cover", action="store_true", help="print every coverage count")
    args = ap.parse_args()
    if args.list:
        print("\n".join(SUITES))
        return 0
    m.self_check()
    try:
        lib = Library(args.library or "libnarrowgauge.so")
    except (OSError, AttributeError) as e:
        print("skipped: %s" % e)
        return 77
    scale = args.cases * (10 if args.long else 1)
    cases = elements = bad = 0
    for name in args.suite or SUITES:
        j = Judge(lib, random.Random("%d %s" % (args.seed, name)), scale, args.long, args.show)
        t = time.monotonic()
        getattr(j, "suite_" + name)()
        combos = sum(1 for k in j.cover if "=" in k)
        print("%s: %d cases, %d elements, %d mismatches, %d combinations, %.1f s" % (
            name, j.cases, j.elements, j.mismatches, combos, time.monotonic() - t), flush=True)
        for key, n in sorted(j.keys.items()):
            if len(n) > 1:
                print("  %-13s %s" % (key, " ".join("%s:%d" % (str(v).replace(" ", "/"), n[v]) for v in sorted(n, key=str))))
        kernels = {k[7:]: v for k, v in j.cover.items() if k.startswith("kernel ")}
        if kernels:
            print("  %-13s %s" % ("kernels", " ".join("%s:%d" % kv for kv in sorted(kernels.items()))))
        if args.cover:
            for k in sorted(j.cover):
                print("  %6d  %s" % (j.cover[k], k))
        for k, n in sorted(j.notes.items()):
            print("  not run %d: %s" % (n, k))
        cases, elements, bad = cases + j.cases, elements + j.elements, bad + j.mismatches
    print("model: %d cases, %d elements, %d mismatches" % (cases, elements, bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
