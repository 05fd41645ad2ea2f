# SPDX-License-Identifier: Apache-2.0
"""Compare the library's reductions over ranks with collective.py, bit by bit.

usage: judge_collective.py [LIBRARY] [--suite NAME] [--seed N] [--cases SCALE] [--long]

As judge_moe.py.
"""

import ctypes as C
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import collective  # noqa: E402
import judge as j  # noqa: E402
import judge_moe as jm  # noqa: E402
from judge import Memory  # noqa: E402
from model import FORMATS, decode, encode  # noqa: E402

# In the order of collective.def.
PARAMS = dict(
    algorithm=["ring", "kanga_ring", "mesh", "rdh", "tree", "single_step", "explicit", "real"], node=None,
    between=["ring", "kanga_ring", "mesh", "rdh", "tree", "single_step", "explicit", "real"], chip=None,
    start=["zero", "owner", "own"], halving=["near", "far"], received=["first", "last"], chunk=None, wire=None,
    round=["rne", "rna", "rtz", "rdn", "rup", "rto"], overflow=["inf", "sat", "sat_keep_inf"],
    sum=["once", "pairs"], nan=["propagate", "number"])
REDUCTIONS = ["sum", "min", "max"]
INPUTS = ["f32", "bf16", "bf16", "f16", "e4m3fn", "e5m2", "e4m3", "e2m1", "tf32", "mxint8"]
WIRES = ["given", "given", "f32", "bf16", "f16", "e5m2", "e4m3fn"]
OUTPUTS = ["f32", "bf16", "f16", "e4m3fn", "e5m2", "e2m1", "e3m2"]


class CCollective(C.Structure):
    _fields_ = [("name", C.c_char_p), ("about", C.c_char_p), ("set", j.CSetting * len(PARAMS))]


class CAllReduce(C.Structure):
    _fields_ = [("size", C.c_size_t), ("collective", C.POINTER(CCollective)), ("reduction", C.c_int),
                ("order", C.c_char_p), ("rank", C.c_int64), ("out", j.CCast), ("elements", C.c_int64),
                ("element", C.c_void_p)]


class CStep(C.Structure):
    _fields_ = [("terms", C.c_int64), ("ranks", C.c_int64), ("rank", C.c_int64), ("value", C.c_uint32),
                ("wire", C.c_uint32)]


def declare(lib):
    P, T, vp, i, n = C.POINTER, C.POINTER(j.CTensor), C.c_void_p, C.c_int, C.c_int64
    for name, res, args in (
        ("ng_all_reduce", i, [vp, P(CAllReduce), T, T]),
        ("ng_all_reduce_element", i, [vp, P(CAllReduce), T, T, P(n), P(CStep), C.c_size_t, P(C.c_size_t),
                                      P(C.c_uint32)]),
        ("ng_all_reduce_order", i, [vp, P(CAllReduce), n, n, C.c_char_p, C.c_size_t, P(C.c_size_t)]),
        ("ng_collective_param_key", C.c_char_p, [i]),
        ("ng_collective_find", P(CCollective), [C.c_char_p]),
    ):
        f = getattr(lib.c, name)
        f.restype, f.argtypes = res, args
    keys = [lib.c.ng_collective_param_key(k).decode() for k in range(len(PARAMS))]
    assert keys == list(PARAMS), "collective.def has changed: %s" % keys


class Judge(jm.Judge):
    # ---- Drawing. ----

    def ranks_of(self, p):
        """How many ranks the drawn algorithms can have."""
        rng = self.rng

        def level(algorithm, chip):
            if algorithm == "kanga_ring":
                return 2 * rng.randint(1, 4)
            if algorithm == "mesh":
                return chip * rng.randint(1, 4)
            if algorithm == "rdh":
                return chip * rng.choice([1, 2, 4, 8])
            return rng.randint(1, 9)

        n = level(p["algorithm"], p["chip"])
        if p["node"]:
            p["node"] = n
            n *= level(p["between"], 1)
        return n

    def an_order(self, n):
        """Ranks in any order, in sums of any shape."""
        rng = self.rng
        ranks = rng.sample(range(n), n)
        sign = self.option("order", ["", "+"])
        terms = [sign + str(r) for r in ranks]
        while len(terms) > 2 and rng.random() < 0.9:
            k = rng.randint(2, min(4, len(terms) - 1))
            at = rng.randint(0, len(terms) - k)
            terms[at:at + k] = ["(%s)" % " ".join(terms[at:at + k])]
        return " ".join(terms)

    def draw(self):
        rng = self.rng
        p = {k: self.option(k, v) for k, v in PARAMS.items() if v}
        p.update(chip=rng.choice([1, 2, 3, 4]), node=0, chunk=rng.choice([0, 0, 0, 1, 2, 3, 7]),
                 wire=self.option("wire", WIRES))
        while p["between"] in ("explicit", "real"):
            p["between"] = rng.choice(PARAMS["between"])
        if p["algorithm"] not in ("explicit", "real") and rng.random() < 0.3:
            p["node"] = 1
        if p["start"] == "own" and "mesh" in (p["algorithm"], p["between"] if p["node"] else ""):
            p["start"] = "owner"
        n = self.ranks_of(p)
        reduction = "sum" if p["algorithm"] == "real" else self.option("reduction", ["sum", "sum", "min", "max"])
        order = self.an_order(n) if p["algorithm"] == "explicit" else None
        own = p["start"] == "own" and "single_step" in (p["algorithm"], p["between"] if p["node"] else "")
        p["rank"] = rng.randrange(n) if own else 0
        return p, n, reduction, order

    def c_op(self, p, reduction, order, out):
        """And what must stay alive."""
        it = CCollective(b"drawn", b"")
        for k, (key, names) in enumerate(PARAMS.items()):
            it.set[k].value = names.index(p[key]) if names else \
                jm.fmt_code(None if p[key] == "given" else p[key]) if key == "wire" else p[key]
            it.set[k].source = b""
        return CAllReduce(C.sizeof(CAllReduce), C.pointer(it), REDUCTIONS.index(reduction),
                          order.encode() if order else None, p["rank"], out), it

    def values(self, fmt, count):
        style = "plain" if fmt in ("e2m1", "mxint8") else self.style()
        if style != "far" or fmt not in ("f32", "bf16"):
            return self.numbers(fmt, count, style)
        # far apart, so that small terms vanish, and sums that pass the largest number
        top = self.rng.choice([0, 0, 100])
        return [encode(fmt, collective.num(self.rng.choice([-1, 1]) * collective.Fraction(2) ** (
            top + self.rng.randint(0, 27))), j.m.SAT) for _ in range(count)]

    # ---- Suites. ----

    def suite_reduce(self):
        for _ in range(self.times(400)):
            self.reduce_case()

    def reduce_case(self):
        rng = self.rng
        p, n, reduction, order = self.draw()
        dims = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
        elements = 1
        for d in dims:
            elements *= d
        fmt, to = self.option("input", INPUTS), self.option("output", OUTPUTS)
        cast = self.cast(to)
        words = j.words_array(self.words(elements)) if cast.round == "sr" else None
        x = self.values(fmt, n * elements)
        one = collective.Reduction(p, reduction, fmt, order)
        wire = FORMATS[one.wire]
        if not wire.has_inf and not wire.has_nan and p["overflow"] == "inf":
            p["overflow"] = "sat"
            one = collective.Reduction(p, reduction, fmt, order)
        want, steps, whole, number = [], [], elements, list(range(elements))
        if rng.random() < 0.3:  # some elements of a larger buffer, in any order
            whole = elements + rng.randint(0, 40)
            number = [rng.randrange(whole) for _ in range(elements)]
            self.cover["elements=some"] += 1
        for e in range(elements):
            v, s = one.result([decode(fmt, x[r * elements + e]) for r in range(n)],
                              collective.chunk_of(number[e], whole, n, p))
            want.append(encode(to, v, cast, words[e] if words is not None else 0))
            steps.append(s)
        op, alive = self.c_op(p, reduction, order, j.c_cast(cast, words))
        if whole > elements or number != list(range(elements)):
            numbers = (C.c_int64 * elements)(*number)
            op.elements, op.element = whole, C.addressof(numbers)
        what = "%s of %d ranks %s (%s) in %s to %s %s: %s order %s\n  %s" % (
            reduction, n, dims, number, fmt, to, vars(cast) if hasattr(cast, "__dict__") else cast, p, order,
            ["%x" % c for c in x])
        for name, ctx in self.contexts():
            xm = Memory(rng, fmt, [n] + dims, x)
            dm = Memory(rng, to, dims)
            xt, dt = xm.tensor(), dm.tensor()
            if not self.called(self.lib.c.ng_all_reduce(ctx, C.byref(op), C.byref(xt), C.byref(dt)), ctx, what):
                return
            self.same(["%x" % c for c in dm.get()], ["%x" % c for c in want], lambda: what + "\n  ctx " + name)
            if not dm.untouched():
                self.fail(what + " wrote outside the tensor")
            self.element(ctx, op, xt, dt, dims, want, steps, what)
        self.orders(op, n, p, order, what)
        del alive

    def element(self, ctx, op, xt, dt, dims, want, steps, what):
        at = [self.rng.randrange(d) for d in dims]
        e = 0
        for i, d in zip(at, dims):
            e = e * d + i
        room = C.c_size_t()
        got, code = (CStep * 1024)(), C.c_uint32()
        st = self.lib.c.ng_all_reduce_element(ctx, C.byref(op), C.byref(xt), C.byref(dt), (C.c_int64 * len(at))(*at),
                                              got, 1024, C.byref(room), C.byref(code))
        if not self.called(st, ctx, what):
            return
        told = sorted((s.terms, s.value, s.wire) for s in got[:room.value])
        asked = sorted((t, encode("f32", a, j.m.RNE), encode("f32", b, j.m.RNE)) for t, a, b in steps[e])
        self.same((code.value, told), (want[e], asked), lambda: what + "\n  element %s" % at)

    def orders(self, op, n, p, order, what):
        if p["algorithm"] == "real":
            return
        chunk, length, text = self.rng.randrange(n), C.c_size_t(), C.create_string_buffer(16384)
        ctx = self.lib.ctx["ref"]
        st = self.lib.c.ng_all_reduce_order(ctx, C.byref(op), n, chunk, text, 16384, C.byref(length))
        if self.called(st, ctx, what):
            plan = collective.text_of(collective.plan_of(p, n, chunk, order))
            self.same((text.value.decode(), length.value), (plan, len(plan)), lambda: what + "\n  chunk %d" % chunk)

    def suite_large(self):
        """Beyond a task's run of elements, and chunks that end inside one."""
        for _ in range(self.times(3)):
            p, n, reduction, order = self.draw()
            while n < 2 or n > 6 or p["algorithm"] == "real":
                p, n, reduction, order = self.draw()
            elements = self.rng.randint(4200, 4700)
            p["chunk"] = self.rng.choice([0, 1000, 2048, 2049])
            p["overflow"] = "sat"
            fmt = self.option("input", ["bf16", "f32", "e5m2"])
            x = self.values(fmt, n * elements)
            one = collective.Reduction(p, reduction, fmt, order)
            known = {}
            want = []
            for e in range(elements):
                c = collective.chunk_of(e, elements, n, p)
                key = (c,) + tuple(x[e::elements])
                if key not in known:
                    known[key] = encode(fmt, one.result([decode(fmt, v) for v in key[1:]], c)[0], j.m.RNE)
                want.append(known[key])
            op, alive = self.c_op(p, reduction, order, j.c_cast(j.m.RNE))
            what = "%s of %d ranks, %d elements in %s: %s order %s" % (reduction, n, elements, fmt, p, order)
            for name, ctx in self.contexts():
                xm, dm = Memory(self.rng, fmt, [n, elements], x), Memory(self.rng, fmt, [elements])
                xt, dt = xm.tensor(), dm.tensor()
                if self.called(self.lib.c.ng_all_reduce(ctx, C.byref(op), C.byref(xt), C.byref(dt)), ctx, what):
                    got = dm.get()
                    bad = [e for e in range(elements) if got[e] != want[e]]
                    self.same(bad[:4], [], lambda: what + "\n  ctx " + name)
            del alive

    def suite_presets(self):
        """Each by its name, as the page has it."""
        for name in ("trn-ring", "trn-kanga-ring", "trn-mesh", "trn-rdh", "trn-single-step", "nccl-ring",
                     "nccl-symmetric", "tree", "exact"):
            preset = self.lib.c.ng_collective_find(name.encode()).contents
            p = {}
            for k, (key, names) in enumerate(PARAMS.items()):
                v = preset.set[k].value
                p[key] = names[v] if names else "given" if key == "wire" and v == 0 else v
            p["rank"] = 0
            assert p["wire"] == "given"
            for n in (8, 16, 64):
                x = self.values("bf16", n * 70)
                one = collective.Reduction(p, "sum", "bf16")
                want = [encode("bf16", one.result([decode("bf16", c) for c in x[e::70]],
                                                  collective.chunk_of(e, 70, n, p))[0], j.m.RNE) for e in range(70)]
                op, alive = self.c_op(p, "sum", None, j.c_cast(j.m.RNE))
                for context, ctx in self.contexts():
                    xm, dm = Memory(self.rng, "bf16", [n, 70], x), Memory(self.rng, "bf16", [70])
                    xt, dt = xm.tensor(), dm.tensor()
                    if self.called(self.lib.c.ng_all_reduce(ctx, C.byref(op), C.byref(xt), C.byref(dt)), ctx, name):
                        self.same(dm.get(), want, lambda: "%s of %d ranks, ctx %s" % (name, n, context))
                del alive


SUITES = ["reduce", "large", "presets"]



if __name__ == "__main__":
    sys.exit(jm.run_suites("collective", SUITES, declare, Judge))
