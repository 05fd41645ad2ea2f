# SPDX-License-Identifier: Apache-2.0
"""Compare the library's RMSNorm, rotary embedding and sums of rows with layer.py, bit by bit.

usage: judge_layer.py [LIBRARY] [--suite NAME] [--seed N] [--cases SCALE] [--long]

As judge_moe.py.
"""

import ctypes as C
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import judge as j  # noqa: E402
import judge_moe as jm  # noqa: E402
import layer  # noqa: E402
from judge import Memory  # noqa: E402
from judge_moe import VALUES, CFunction, f32, fmt_code  # noqa: E402
from model import RNE, decode, encode  # noqa: E402

PAIRS = ["halves", "adjacent"]
INPUTS = VALUES + ["e4m3fn", "e2m1"]


class CNorm(C.Structure):
    _fields_ = [("size", C.c_size_t), ("eps", C.c_uint32), ("rsqrt", CFunction)]


class CRope(C.Structure):
    _fields_ = [("size", C.c_size_t), ("pairs", C.c_int), ("product", C.c_int)]


def declare(lib):
    P, T, vp, i = C.POINTER, C.POINTER(j.CTensor), C.c_void_p, C.c_int
    for name, args in (("ng_rms_norm", [vp, P(CNorm), T, T, T]), ("ng_rope", [vp, P(CRope), T, T, T, T]),
                       ("ng_add", [vp, T, T, T])):
        f = getattr(lib.c, name)
        f.restype, f.argtypes = i, args


class Judge(jm.Judge):
    def input(self, dims):
        fmt = self.option("operand", INPUTS)
        n = 1
        for d in dims:
            n *= d
        codes = self.numbers(fmt, n, "plain" if fmt == "e2m1" else self.style())
        return fmt, codes, [decode(fmt, c) for c in codes]

    def check(self, call, inputs, dims, want, what):
        """inputs: (format, codes, dimensions) of each. One of y's shape and format may be y."""
        fmt = self.option("output", VALUES)
        want = ["%x" % encode(fmt, v, RNE) for v in want]
        what += " to %s\n  %s" % (fmt, [(f, ["%x" % c for c in codes]) for f, codes, _ in inputs])
        for name, ctx in self.contexts():
            memory = [Memory(self.rng, f, list(d), codes) for f, codes, d in inputs]
            same = [m for m, (f, _, d) in zip(memory, inputs) if f == fmt and list(d) == list(dims)]
            y = self.rng.choice(same) if same and self.rng.random() < 0.4 else Memory(self.rng, fmt, list(dims))
            tensors = [m.tensor() for m in memory] + [y.tensor()]
            if not self.called(call(ctx, *map(C.byref, tensors)), ctx, what):
                break
            self.same(["%x" % c for c in y.get()], want, lambda: what + "\n  ctx " + name)
            if not y.untouched():
                self.fail(what + " wrote outside the tensor")

    def suite_norm(self):
        for _ in range(self.times(90)):
            T, H = self.rng.randint(1, 3), self.rng.randint(1, 24)
            fmt, codes, x = self.input([T, H])
            gfmt, gcodes, gain = self.input([H])
            if self.rng.random() < 0.2:
                gain = None
            eps, table = self.rng.choice([0, 0x3727C5AC, f32(1), 1]), self.table("rsqrt")
            op = CNorm(C.sizeof(CNorm), eps, self.c_function(table))
            want = [v for t in range(T)
                    for v in layer.rms_norm(x[t * H:(t + 1) * H], gain, decode("f32", eps), table)]
            inputs = [(fmt, codes, [T, H])] + ([(gfmt, gcodes, [H])] if gain else [])

            def call(ctx, *t):
                g = t[1] if gain else None
                return self.lib.c.ng_rms_norm(ctx, C.byref(op), t[0], g, t[-1])

            self.check(call, inputs, [T, H], want, "rms_norm eps %x" % eps)

    def suite_rope(self):
        for _ in range(self.times(90)):
            T, n, half = self.rng.randint(1, 3), self.rng.randint(1, 3), self.rng.randint(1, 5)
            H = 2 * n * half
            pairs, product = self.option("pairs", PAIRS), self.option("product", [None, "f32", "bf16", "f16"])
            op = CRope(C.sizeof(CRope), PAIRS.index(pairs), fmt_code(product))
            (xf, xc, x), (cf, cc, c), (sf, sc, s) = self.input([T, H]), self.input([T, half]), self.input([T, half])
            want = [v for t in range(T)
                    for v in layer.rope(x[t * H:(t + 1) * H], c[t * half:(t + 1) * half], s[t * half:(t + 1) * half],
                                        pairs, product)]
            self.check(lambda ctx, *t: self.lib.c.ng_rope(ctx, C.byref(op), *t),
                       [(xf, xc, [T, H]), (cf, cc, [T, half]), (sf, sc, [T, half])], [T, H], want,
                       "rope %s %s" % (pairs, product))

    def suite_add(self):
        for _ in range(self.times(90)):
            T, N = self.rng.randint(1, 4), self.rng.randint(1, 24)
            row = self.option("b", ["row", "rows"]) == "row"
            dims = [N] if row else [T, N]
            (af, ac, a), (bf, bc, b) = self.input([T, N]), self.input(dims)
            want = [layer.add(v, b[i % N if row else i]) for i, v in enumerate(a)]
            self.check(self.lib.c.ng_add, [(af, ac, [T, N]), (bf, bc, dims)], [T, N], want, "add")


SUITES = ["norm", "rope", "add"]


if __name__ == "__main__":
    sys.exit(jm.run_suites("layer", SUITES, declare, Judge))
