# SPDX-License-Identifier: Apache-2.0
"""The library's calls on numpy arrays of codes. One code an item; 4-bit codes are packed here."""
import ctypes as C
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "model"))
import judge  # noqa: E402  the structures, and the functions' types

F32_WORDS = ("f32", "tf32")


def dtype(fmt):
    """The unsigned integers that hold a format's codes."""
    return np.dtype({"f32": "<u4", "tf32": "<u4", "bf16": "<u2", "f16": "<u2"}.get(fmt, "u1"))


def bits(fmt):
    return judge.FORMATS[fmt].bits


def narrow_formats():
    """Those of at most 16 bits."""
    return [f for f in judge.FORMAT_ORDER if f not in F32_WORDS]


def all_codes(fmt):
    """Every code of a format of at most 16 bits."""
    assert fmt not in F32_WORDS
    return np.arange(1 << bits(fmt), dtype=np.uint32).astype(dtype(fmt))


def pack(codes):
    """4-bit codes, two a byte, low nibble first."""
    if codes.size % 2:
        codes = np.append(codes, np.uint8(0))
    return codes[0::2] | codes[1::2] << 4


def unpack(data, n):
    return np.stack([data & 15, data >> 4], axis=1).ravel()[:n]


class Ours:
    """One context, one thread. What the library refuses raises ValueError with its message."""

    def __init__(self, path):
        self.lib = judge.Library(path)
        self.ctx = self.lib.ctx["all"]

    def done(self, status):
        if status:
            raise ValueError(self.lib.message(self.ctx))

    def cast(self, overflow, round="rne", nan_sign="clear", nan_to="max", sr="a", sr_bits=0, words=None):
        cast = judge.CCast(round=judge.ROUNDS.index(round), overflow=judge.OVERFLOWS.index(overflow),
                           nan_sign=["clear", "keep"].index(nan_sign),
                           nan_to=["max", "zero", "error"].index(nan_to),
                           sr="abc".index(sr), sr_bits=sr_bits)
        if words is not None:
            assert words.dtype == np.uint32 and words.flags.c_contiguous
            cast.random.kind, cast.random.word, cast.random.count = 1, words.ctypes.data, words.size
        return cast

    @staticmethod
    def tensor(fmt, data, dims):
        t = judge.CTensor()
        t.data, t.format, t.rank = data.ctypes.data, judge.FORMAT_CODE[fmt], len(dims)
        step = 1
        for i in reversed(range(len(dims))):
            t.dim[i], t.stride[i] = dims[i], step
            step *= dims[i]
        assert bits(fmt) != 4 or len(dims) == 1 or dims[-1] % 2 == 0
        return t

    def _source(self, fmt, codes, dims):
        data = pack(codes.ravel()) if bits(fmt) == 4 else np.ascontiguousarray(codes)
        return data, self.tensor(fmt, data, dims)

    def _result(self, fmt, dims):
        n = int(np.prod(dims))
        data = np.zeros((n + 1) // 2 if bits(fmt) == 4 else n, dtype(fmt))
        return data, self.tensor(fmt, data, dims)

    def convert(self, source, codes, target, overflow="inf", **cast):
        """Codes of `source` as codes of `target`."""
        src, s = self._source(source, codes, codes.shape)
        dst, d = self._result(target, codes.shape)
        op = judge.CConvert(C.sizeof(judge.CConvert), self.cast(overflow, **cast))
        self.done(self.lib.c.ng_convert(self.ctx, C.byref(op), C.byref(s), C.byref(d)))
        return unpack(dst, codes.size) if bits(target) == 4 else dst.reshape(codes.shape)

    def decode(self, fmt, codes):
        """Their values as FP64, by ng_decode, one by one; every value here is one."""
        v = judge.CValue()
        out = np.empty(codes.size)
        for i, code in enumerate(codes.ravel().tolist()):
            self.done(self.lib.c.ng_decode(judge.FORMAT_CODE[fmt], code, C.byref(v)))
            assert not v.sticky
            x = {0: np.ldexp(float(v.sig), v.exp), 1: np.inf, 2: np.nan}[v.cls]
            out[i] = -x if v.neg else x
        return out

    def quantize(self, codes, target, rule, special="element", source="f32", block=32):
        """A [lines, K] array as (elements, scales [lines, blocks]); blocks run along K."""
        lines, depth = codes.shape
        blocks = -(-depth // block)
        src, s = self._source(source, codes, codes.shape)
        dst, d = self._result(target, codes.shape)
        scales = np.zeros((lines, blocks), np.uint8)
        d.scale, d.scale_format = scales.ctypes.data, judge.FORMAT_CODE["e8m0"]
        d.block, d.block_axis = block, 1
        op = judge.CQuantize(C.sizeof(judge.CQuantize), judge.RULES.index(rule), judge.SPECIALS.index(special),
                             self.cast("sat"), 0)
        self.done(self.lib.c.ng_quantize(self.ctx, C.byref(op), C.byref(s), C.byref(d)))
        out = unpack(dst, codes.size) if bits(target) == 4 else dst
        return out.reshape(codes.shape), scales

    def dequantize(self, source, codes, scales, block=32, target="f32", overflow="inf"):
        src, s = self._source(source, codes, codes.shape)
        dst, d = self._result(target, codes.shape)
        s.scale, s.scale_format = scales.ctypes.data, judge.FORMAT_CODE["e8m0"]
        s.block, s.block_axis = block, 1
        op = judge.CConvert(C.sizeof(judge.CConvert), self.cast(overflow))
        self.done(self.lib.c.ng_dequantize(self.ctx, C.byref(op), C.byref(s), C.byref(d)))
        return dst.reshape(codes.shape)
