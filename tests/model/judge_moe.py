# SPDX-License-Identifier: Apache-2.0
"""Compare the library's mixture of experts with moe.py, bit by bit.

usage: judge_moe.py [LIBRARY] [--suite NAME] [--seed N] [--cases SCALE] [--long]

As judge.py: random and adversarial cases, every option; exit status 1 on a mismatch, 77 when
there is no library to judge.
"""

import argparse
import collections
import ctypes as C
import os
import random
import sys
import time
from fractions import Fraction

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import judge as j  # noqa: E402
import model as m  # noqa: E402
import moe  # noqa: E402
from judge import FORMAT_CODE, OK, STATUS, Memory  # noqa: E402
from model import RNE, decode, encode  # noqa: E402

ORDERS = ["topk_then_act", "act_then_topk", "act_all"]
ROUTE_ACTS = ["softmax", "sigmoid"]
DIVIDES = ["reciprocal", "division"]
EPS = ["add", "floor"]
MASKS = ["zero", "minus_inf"]
MODES = ["dropless", "capacity"]
ACTS = ["swiglu", "swish", "gelu", "gpt_oss", "gpt_oss_folded"]
SUMS = ["expert", "rank"]
HOWS = ["as_is", "mx", "fp8_row", "fp8_block"]
BLOCK_ORDERS = ["in_turn", "product"]
AFFINITIES = ["after", "before", "inside"]
VALUES = ["f32", "bf16", "f16"]


class CFunction(C.Structure):
    _fields_ = [("kind", C.c_int), ("table", C.c_void_p)]


class CRoute(C.Structure):
    _fields_ = [("size", C.c_size_t), ("k", C.c_uint32), ("order", C.c_int), ("act", C.c_int),
                ("score", C.c_int), ("exp", CFunction), ("sigmoid", CFunction),
                ("reciprocal", CFunction), ("softmax_by", C.c_int), ("normalise", C.c_bool),
                ("normalise_by", C.c_int), ("eps", C.c_uint32), ("eps_how", C.c_int),
                ("scale", C.c_uint32), ("groups", C.c_uint32), ("top_groups", C.c_uint32),
                ("group_top", C.c_uint32), ("mask", C.c_int)]


class CDispatch(C.Structure):
    _fields_ = [("size", C.c_size_t), ("mode", C.c_int), ("experts", C.c_uint32),
                ("k", C.c_uint32), ("block", C.c_uint32), ("factor", C.c_uint32),
                ("capacity", C.c_int64), ("ranks", C.c_uint32), ("rank", C.c_uint32)]


class CPlan(C.Structure):
    _fields_ = [("slot", C.c_void_p), ("row", C.c_void_p), ("offset", C.c_void_p),
                ("block_expert", C.c_void_p), ("rows", C.c_int64), ("dropped", C.c_int64)]


class CAct(C.Structure):
    _fields_ = [("size", C.c_size_t), ("act", C.c_int), ("sigmoid", CFunction), ("tanh", CFunction),
                ("alpha", C.c_uint32), ("limit", C.c_uint32), ("biased", C.c_int)]


class CCombine(C.Structure):
    _fields_ = [("size", C.c_size_t), ("order", C.c_int), ("fused", C.c_bool), ("product", C.c_int),
                ("sum", C.c_int)]


class CQuant(C.Structure):
    _fields_ = [("how", C.c_int), ("format", C.c_int), ("rule", C.c_int), ("layout", C.c_int),
                ("special", C.c_int), ("scale_min", C.c_uint32), ("by", C.c_int)]


class CBlocks(C.Structure):
    _fields_ = [("order", C.c_int), ("fused", C.c_bool)]


class CMoe(C.Structure):
    _fields_ = [("size", C.c_size_t), ("gemm", j.CGemm), ("weights_as", C.c_int), ("x", CQuant),
                ("hidden", C.c_int), ("act", CAct), ("middle", C.c_int), ("quant", CQuant),
                ("expert_out", C.c_int), ("affinity", C.c_int), ("combine", CCombine),
                ("dispatch", CDispatch), ("blocks", CBlocks)]


class CLinear(C.Structure):
    _fields_ = [("weights", C.POINTER(j.CTensor)), ("packed", C.c_void_p),
                ("scale", C.POINTER(j.CTensor)), ("bias", C.POINTER(j.CTensor))]


class CExperts(C.Structure):
    _fields_ = [("gate", CLinear), ("up", CLinear), ("down", CLinear)]


class CGradients(C.Structure):
    _fields_ = [(name, C.POINTER(j.CTensor)) for name in ("x", "weights", "gate", "up", "down")]


class CRouter(C.Structure):
    _fields_ = [("gemm", j.CGemm), ("route", CRoute), ("logits", C.c_int), ("weights", C.c_int),
                ("w", C.POINTER(j.CTensor)), ("b", C.POINTER(j.CTensor)),
                ("correction", C.POINTER(j.CTensor))]


def declare(lib):
    P, T = C.POINTER, C.POINTER(j.CTensor)
    vp, i, n = C.c_void_p, C.c_int, C.c_int64
    for name, res, args in (
        ("ng_route", i, [vp, P(CRoute), T, T, vp, T, vp]),
        ("ng_route_weights", i, [vp, P(CRoute), vp, T]),
        ("ng_router", i, [vp, P(j.CGemm), P(CRoute), T, T, T, T, T, vp, T, vp]),
        ("ng_dispatch_rows", n, [P(CDispatch), n]),
        ("ng_dispatch", i, [vp, P(CDispatch), vp, n, P(CPlan)]),
        ("ng_moe_activation", i, [vp, P(CAct), T, T, T, T, T]),
        ("ng_moe_combine", i, [vp, P(CCombine), T, vp, n, T, T, T]),
        ("ng_moe_mlp", i, [vp, P(CMoe), P(CExperts), T, vp, T, T, T]),
        ("ng_moe_mlp_backward", i, [vp, P(CMoe), P(CExperts), T, vp, T, T, P(CGradients)]),
        ("ng_route_backward", i, [vp, P(CRoute), T, vp, vp, T, T]),
        ("ng_moe", i, [vp, P(CMoe), P(CRouter), P(CExperts), T, T, T]),
    ):
        f = getattr(lib.c, name)
        f.restype, f.argtypes = res, args


def f32(x):
    """The pattern nearest to a Python number, for settings."""
    return encode("f32", m.num(Fraction(x)), RNE)


def ref(t):
    return C.byref(t) if t is not None else None


def fmt_code(name):
    return FORMAT_CODE[name] if name else 0


class Judge(j.Judge):
    def __init__(self, *args):
        super().__init__(*args)
        self.tables = {}  # of functions: what the model reads and what the library reads

    def option(self, name, choices):
        v = self.rng.choice(choices)
        self.cover["%s=%s" % (name, v)] += 1
        return v

    def table(self, like):
        """None, or 65536 codes of about the right size: what is read is what is looked up."""
        if self.rng.random() < 0.85:
            return None
        self.cover["table=" + like] += 1
        if like not in self.tables:
            low, high = {"exp": (100, 127), "tanh": (110, 127)}.get(like, (110, 130))
            t = self.rng.choices(range(low << 7, high << 7), k=1 << 16)
            t[0x3F80] = 0x7F81  # of 1: a NaN that is not the canonical one
            self.tables[like] = t, (C.c_uint16 * (1 << 16))(*t)
        return self.tables[like][0]

    def c_function(self, table):
        return CFunction(0, None) if table is None else \
            CFunction(2, next(C.addressof(c) for t, c in self.tables.values() if t is table))

    def numbers(self, fmt, n, style):
        """Codes of n values. Styles: plain, ties (few values), far (saturating), special."""
        rng = self.rng
        if style == "ties":
            few = [encode(fmt, m.num(Fraction(rng.randint(-8, 8), 4)), RNE) for _ in range(3)]
            return [rng.choice(few) for _ in range(n)]
        if style == "far":
            return [encode(fmt, m.num(Fraction(rng.choice([-1, 1]) * rng.randint(1, 400), 4)), RNE) for _ in range(n)]
        out = [encode(fmt, m.num(Fraction(rng.gauss(0, 2))), m.SAT) for _ in range(n)]
        if style == "special":
            f = m.FORMATS[fmt]
            inf = f.max_code + (1 << f.low)
            for i in range(n):
                if rng.random() < 0.3:
                    out[i] = rng.choice([0, f.sign_bit, f.nan, f.nan | f.sign_bit, f.nan + 1, inf,
                                         inf | f.sign_bit, 1, f.sign_bit | 1, f.max_code])
        return out

    def style(self):
        return self.option("style", ["plain", "plain", "ties", "far", "special"])

    def contexts(self):
        for name in ("ref", "all", "avx2", "pool"):
            if name in self.lib.ctx and (name in ("ref", "all") or self.rng.random() < 0.15):
                yield name, self.lib.ctx[name]

    def called(self, st, ctx, what):
        self.cases += 1
        if st == OK:
            return True
        self.fail(what + "\n  status %s: %s" % (STATUS[st], self.lib.message(ctx)))
        return False

    # ---- Routing. ----

    def route_op(self, E):
        rng = self.rng
        op = dict(k=rng.randint(1, min(E, 8)), order=self.option("order", ORDERS),
                  act=self.option("act", ROUTE_ACTS), score=self.option("score", [None, "f32", "bf16", "f16"]),
                  exp=self.table("exp"), sigmoid=self.table("sigmoid"), reciprocal=self.table("reciprocal"),
                  softmax_by=self.option("softmax_by", DIVIDES), normalise=self.option("normalise", [False, True]),
                  normalise_by=self.option("normalise_by", DIVIDES), eps=rng.choice([0, 0, f32(1e-20), f32(0.5)]),
                  eps_how=self.option("eps_how", EPS), scale=rng.choice([0, 0, f32(2.5), f32(-1)]), groups=0,
                  top_groups=0, group_top=0, mask=self.option("mask", MASKS))
        divisors = [g for g in range(1, E + 1) if E % g == 0 and E // g >= 2 and g <= 64]
        if divisors and rng.random() < 0.4:
            op["groups"] = rng.choice(divisors)
            op["top_groups"] = rng.randint(1, op["groups"])
            op["group_top"] = rng.choice([0, 1, 2, rng.randint(1, E // op["groups"])])
            self.cover["groups=yes"] += 1
        return op

    def c_route(self, op):
        return CRoute(size=C.sizeof(CRoute), k=op["k"], order=ORDERS.index(op["order"]),
                      act=ROUTE_ACTS.index(op["act"]), score=fmt_code(op["score"]),
                      exp=self.c_function(op["exp"]), sigmoid=self.c_function(op["sigmoid"]),
                      reciprocal=self.c_function(op["reciprocal"]), softmax_by=DIVIDES.index(op["softmax_by"]),
                      normalise=op["normalise"], normalise_by=DIVIDES.index(op["normalise_by"]), eps=op["eps"],
                      eps_how=EPS.index(op["eps_how"]), scale=op["scale"], groups=op["groups"],
                      top_groups=op["top_groups"], group_top=op["group_top"], mask=MASKS.index(op["mask"]))

    @staticmethod
    def short(op):
        return {k: ("table" if isinstance(v, list) else v) for k, v in op.items()}

    def suite_route(self):
        for _ in range(self.times(110)):
            self.route_case()
        for name in ("gpt_oss", "mixtral", "deepseek"):
            for _ in range(self.times(1)):
                self.route_case(name)

    def route_case(self, preset=None):
        rng = self.rng
        E = rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32]) if preset is None else {"gpt_oss": 32, "mixtral": 8, "deepseek": 256}[preset]
        T = rng.randint(1, 3)
        op = self.route_op(E)
        if preset == "gpt_oss":
            op.update(k=4, order="topk_then_act", act="softmax", groups=0)
        elif preset == "mixtral":
            op.update(k=2, order="act_then_topk", act="softmax", normalise=True, groups=0)
        elif preset == "deepseek":
            op.update(k=8, order="act_then_topk", act="sigmoid", normalise=True, groups=8, top_groups=4, group_top=2)
        fmt, wfmt = self.option("logits", VALUES + ["e4m3fn"]), self.option("weights", VALUES)
        logits = [self.numbers(fmt, E, self.style()) for _ in range(T)]
        corr = self.numbers("f32", E, self.style()) if rng.random() < 0.4 else None
        values = [[decode(fmt, c) for c in row] for row in logits]
        bias = [decode("f32", c) for c in corr] if corr else None
        best, want = [], []
        for row in values:
            i, w = moe.route(op, row, bias)
            best += i
            want += [encode(wfmt, v, RNE) for v in w]
        what = "route E=%d %s %s %s\n  logits %s\n  correction %s" % (
            E, fmt, wfmt, self.short(op), [["%x" % c for c in r] for r in logits], corr and ["%x" % c for c in corr])
        for name, ctx in self.contexts():
            cop = self.c_route(op)
            lm = Memory(rng, fmt, [T, E], sum(logits, []))
            cm = Memory(rng, "f32", [E], corr) if corr else None
            wm = Memory(rng, wfmt, [T, op["k"]])
            tc = cm.tensor() if cm else None
            index = (C.c_int32 * (T * op["k"]))(*[-7] * (T * op["k"]))
            counts = (C.c_int64 * E)()
            st = self.lib.c.ng_route(ctx, C.byref(cop), C.byref(lm.tensor()), ref(tc), index, C.byref(wm.tensor()), counts)
            if not self.called(st, ctx, what):
                return
            self.same(list(index), best, lambda: what + "\n  ctx " + name + " indices")
            self.same(wm.get(), want, lambda: what + "\n  ctx " + name + " weights")
            self.same(list(counts), [best.count(e) for e in range(E)], lambda: what + " counts")
            if not wm.untouched():
                self.fail(what + " wrote outside the tensor")

    def suite_weights(self):
        rng = self.rng
        for _ in range(self.times(40)):
            op = self.route_op(rng.randint(1, 12))
            T, k, fmt = rng.randint(1, 4), op["k"], self.option("weights", VALUES)
            codes = self.numbers(fmt, T * k, self.style())
            slots = [rng.choice([-1, 0, 5]) for _ in range(T * k)]
            want = []
            for t in range(T):
                row = [decode(fmt, c) for c in codes[t * k:(t + 1) * k]]
                want += [encode(fmt, v, RNE) for v in moe.late_weights(op, slots[t * k:(t + 1) * k], row)]
            what = "route_weights %s %s %s %s" % (fmt, ["%x" % c for c in codes], slots, self.short(op))
            for name, ctx in self.contexts():
                wm = Memory(rng, fmt, [T, k], codes)
                cop = self.c_route(op)
                st = self.lib.c.ng_route_weights(ctx, C.byref(cop), (C.c_int32 * len(slots))(*slots), C.byref(wm.tensor()))
                if self.called(st, ctx, what):
                    self.same(wm.get(), want, lambda: what + " ctx " + name)

    # ---- Dispatch. ----

    def dispatch_op(self, E, k, T):
        rng = self.rng
        R = rng.choice([r for r in range(1, E + 1) if E % r == 0])
        op = dict(mode=self.option("mode", MODES), experts=E, k=k, block=rng.choice([0, 1, 2, 4, 5]),
                  factor=rng.choice([f32(1), f32(1.25), f32(0.3), f32(2), f32(100), 1, 0x7F7FFFFF]),
                  capacity=rng.choice([0, 0, 1, 2, T + 3]), ranks=rng.choice([0, R]), rank=0)
        op["rank"] = rng.randrange(op["ranks"] or 1)
        return op

    @staticmethod
    def c_dispatch(op):
        return CDispatch(C.sizeof(CDispatch), MODES.index(op["mode"]), op["experts"], op["k"], op["block"],
                         op["factor"], op["capacity"], op["ranks"], op["rank"])

    def suite_dispatch(self):
        rng = self.rng
        for _ in range(self.times(200)):
            E, k, T = rng.randint(1, 12), rng.randint(1, 4), rng.randint(1, 12)
            op = self.dispatch_op(E, k, T)
            indices = [rng.choice([rng.randrange(E), 0, -1]) if rng.random() < 0.3 else rng.randrange(E)
                       for _ in range(T * k)]
            slot, row, offset, blocks, dropped = moe.dispatch(op, indices, T)
            cop = self.c_dispatch(op)
            what = "dispatch %s %s" % (op, indices)
            room = self.lib.c.ng_dispatch_rows(C.byref(cop), T)
            if room < len(row):
                self.fail(what + " ng_dispatch_rows %d < %d" % (room, len(row)))
            ctx = self.lib.ctx["all"]
            n = len(offset) - 1
            c_slot, c_row = (C.c_int32 * (T * k))(), (C.c_int32 * max(1, room))()
            c_offset, c_block = (C.c_int64 * (n + 1))(), (C.c_int32 * max(1, room))()
            plan = CPlan(*map(C.addressof, (c_slot, c_row, c_offset, c_block)))
            st = self.lib.c.ng_dispatch(ctx, C.byref(cop), (C.c_int32 * len(indices))(*indices), T, C.byref(plan))
            if not self.called(st, ctx, what):
                continue
            self.same((plan.rows, plan.dropped), (len(row), dropped), lambda: what + " rows, dropped")
            self.same(list(c_slot), slot, lambda: what + " slot")
            self.same(list(c_row)[:len(row)], row, lambda: what + " row")
            self.same(list(c_offset), offset, lambda: what + " offset")
            self.same(list(c_block)[:len(blocks)], blocks, lambda: what + " blocks")

    # ---- Activation and combine. ----

    def act_op(self, gated=True):
        rng = self.rng
        return dict(act=self.option("act", ACTS if gated else ACTS[:3]), sigmoid=self.table("sigmoid"),
                    tanh=self.table("tanh"), alpha=rng.choice([0, 0, f32(1), f32(-0.5)]),
                    limit=rng.choice([0, 0, f32(1), f32(0.3)]), biased=self.option("biased", [None, "f32", "bf16", "f16"]))

    def c_act(self, op):
        return CAct(C.sizeof(CAct), ACTS.index(op["act"]), self.c_function(op["sigmoid"]),
                    self.c_function(op["tanh"]), op["alpha"], op["limit"], fmt_code(op["biased"]))

    def suite_activation(self):
        rng = self.rng
        for _ in range(self.times(70)):
            gated = rng.random() < 0.85
            op = self.act_op(gated)
            M, N = rng.randint(1, 3), rng.randint(1, 20)
            fmt, ufmt, dfmt = (self.option("operand", VALUES) for _ in range(3))
            g, u = self.numbers(fmt, M * N, self.style()), self.numbers(ufmt, M * N, self.style())
            gb = self.numbers("bf16", N, self.style()) if rng.random() < 0.5 else None
            ub = self.numbers("f32", N, "plain") if gated and rng.random() < 0.5 else None

            def biased(codes, fmt, bias, bias_fmt, i):
                v = decode(fmt, codes[i])
                return moe.settle(v, None, None, None, decode(bias_fmt, bias[i % N]) if bias else None, op["biased"])

            want = [encode(dfmt, moe.activation(op, biased(g, fmt, gb, "bf16", i),
                                                biased(u, ufmt, ub, "f32", i) if gated else None), RNE)
                    for i in range(M * N)]
            what = "activation %s %s %s %s\n  gate %s\n  up %s\n  biases %s %s" % (
                fmt, ufmt, dfmt, self.short(op), ["%x" % c for c in g], ["%x" % c for c in u], gb, ub)
            for name, ctx in self.contexts():
                cop = self.c_act(op)
                alias = fmt == dfmt and rng.random() < 0.3
                gm, um = Memory(rng, fmt, [M, N], g), Memory(rng, ufmt, [M, N], u)
                dm = gm if alias else Memory(rng, dfmt, [M, N])
                gbm, ubm = gb and Memory(rng, "bf16", [N], gb), ub and Memory(rng, "f32", [N], ub)
                tg, tu, td = gm.tensor(), um.tensor(), dm.tensor()
                tgb, tub = gbm and gbm.tensor(), ubm and ubm.tensor()
                st = self.lib.c.ng_moe_activation(ctx, C.byref(cop), C.byref(tg), ref(tgb), ref(tu if gated else None),
                                                  ref(tub), C.byref(td))
                if not self.called(st, ctx, what):
                    break
                self.same(["%x" % c for c in dm.get()], ["%x" % c for c in want], lambda: what + "\n  ctx " + name)
                if not dm.untouched():
                    self.fail(what + " wrote outside the tensor")

    def combine_op(self):
        op = dict(order=self.option("order", SUMS), fused=self.option("fused", [False, False, True]),
                  product=self.option("product", [None, "f32", "bf16", "f16"]),
                  sum=self.option("sum", [None, "f32", "bf16", "f16"]))
        if op["fused"]:
            op["product"] = None
        return op

    @staticmethod
    def c_combine(op):
        return CCombine(C.sizeof(CCombine), SUMS.index(op["order"]), op["fused"], fmt_code(op["product"]),
                        fmt_code(op["sum"]))

    def suite_combine(self):
        rng = self.rng
        for _ in range(self.times(120)):
            op = self.combine_op()
            T, k, H, R = rng.randint(1, 3), rng.randint(1, 5), rng.randint(1, 20), rng.randint(1, 9)
            ofmt, wfmt, cfmt, yfmt = (self.option("operand", VALUES) for _ in range(4))
            style = self.style()
            o = self.numbers(ofmt, R * H, style)
            w = self.numbers(wfmt, T * k, self.style()) if rng.random() < 0.8 else None
            c = self.numbers(cfmt, T * H, style) if rng.random() < 0.4 else None
            slots = [rng.randint(-1, R - 1) for _ in range(T * k)]
            want = []
            for i in range(T * H):
                t, h = divmod(i, H)
                entries = [(s, decode(wfmt, w[t * k + r]) if w else None, decode(ofmt, o[s * H + h]))
                           for r, s in enumerate(slots[t * k:(t + 1) * k]) if s >= 0]
                v = moe.combine(op, entries, decode(cfmt, c[i]) if c else moe.ZERO)
                want.append(encode(yfmt, v, RNE))
            what = "combine %s %s slots %s\n  o %s %s\n  w %s %s\n  c %s %s" % (
                op, yfmt, slots, ofmt, ["%x" % v for v in o], wfmt, w, cfmt, c)
            for name, ctx in self.contexts():
                om, ym = Memory(rng, ofmt, [R, H], o), Memory(rng, yfmt, [T, H])
                wm, cm = w and Memory(rng, wfmt, [T, k], w), c and Memory(rng, cfmt, [T, H], c)
                if c and cfmt == yfmt and rng.random() < 0.4:
                    ym = cm
                tw, tc, to, ty = wm and wm.tensor(), cm and cm.tensor(), om.tensor(), ym.tensor()
                cop = self.c_combine(op)
                st = self.lib.c.ng_moe_combine(ctx, C.byref(cop), C.byref(to), (C.c_int32 * len(slots))(*slots), k, ref(tw),
                                           ref(tc), C.byref(ty))
                if not self.called(st, ctx, what):
                    break
                self.same(["%x" % v for v in ym.get()], ["%x" % v for v in want], lambda: what + "\n  ctx " + name)
                if not ym.untouched():
                    self.fail(what + " wrote outside the tensor")

    # ---- The expert MLP and the whole block. ----

    PATHS = [  # profile, weights, on-the-fly, mode of the rule
        ("fma-f32", "f32", None, "plain"), ("trn2", "bf16", None, "plain"), ("trn2", "f32", None, "plain"),
        ("trn3", "e4m3fn", "mx", "mx"), ("trn3", "e2m1", "mx", "mx"), ("ocp-mx", "e5m2", "mx", "mx"),
        ("trn2", "e2m1", "as", "plain"), ("trn2", "e4m3", "fp8_row", "plain"), ("trn3", "e4m3fn", "fp8_row", "plain"),
        ("trn3", "e4m3fn", "fp8_block", "plain"), ("trn2", "e4m3", "fp8_block", "plain"),
    ]

    def projection(self, rng, path, E, K, N, keep):
        """One projection: what moe.mlp() reads and what the library reads."""
        _, wfmt, fly, _ = path
        mx = fly in ("mx", "as")
        tensors = (j.CTensor * E)()
        keep.append(tensors)
        lines = []
        for e in range(E):
            cols = [self.numbers(wfmt, K, "plain") for _ in range(N)]
            wm = Memory(rng, wfmt, [K, N], [cols[n][k] for k in range(K) for n in range(N)], fast=0 if mx else 1)
            keep.append(wm)
            tensors[e] = wm.tensor()
            scales = [[rng.randint(124, 129) for _ in range((K + 31) // 32)] for _ in range(N)]
            if mx:
                raw = (C.c_uint8 * (len(scales[0]) * N))(*[s[b] for b in range(len(scales[0])) for s in scales])
                keep.append(raw)
                tensors[e].scale, tensors[e].scale_format = C.addressof(raw), FORMAT_CODE["e8m0"]
                tensors[e].block, tensors[e].block_axis = 32, 0
            each = [[s[k // 32] for k in range(K)] for s in scales]
            if fly == "as":
                lines.append([m.Line("bf16", [m.dequantize(wfmt, c, "e8m0", s, f32(1), "bf16", RNE) for c, s in zip(col, sc)])
                              for col, sc in zip(cols, each)])
            else:
                lines.append([m.Line(wfmt, col, "e8m0" if mx else None, sc if mx else None)
                              for col, sc in zip(cols, each)])
        part = dict(lines=lines, scale=None, bias=None)
        c_part = CLinear(weights=tensors)
        kind = rng.choice(["none", "one", "column"])
        if fly == "fp8_block":
            dims = [E, -(-K // 128), -(-N // 128)]
            codes = self.numbers("f32", dims[0] * dims[1] * dims[2], "plain")
            sm = Memory(rng, "f32", dims, codes, fast=rng.choice([1, 2]))
            ts = sm.tensor()
            keep += [sm, ts]
            v = iter([decode("f32", c) for c in codes])
            part["blocks"] = [[[next(v) for _ in range(dims[2])] for _ in range(dims[1])] for _ in range(E)]
            c_part.scale = C.pointer(ts)
        elif kind != "none":
            n = E if kind == "one" else E * N
            codes = self.numbers("f32", n, "plain")
            sm = Memory(rng, "f32", [E] if kind == "one" else [E, N], codes)
            ts = sm.tensor()
            keep += [sm, ts]
            v = [decode("f32", c) for c in codes]
            part["scale"] = v if kind == "one" else [v[e * N:(e + 1) * N] for e in range(E)]
            c_part.scale = C.pointer(ts)
        if rng.random() < 0.6:
            fmt = rng.choice(["bf16", "f32"])
            codes = self.numbers(fmt, E * N, "plain")
            bm = Memory(rng, fmt, [E, N], codes)
            tb = bm.tensor()
            keep += [bm, tb]
            v = [decode(fmt, c) for c in codes]
            part["bias"] = [v[e * N:(e + 1) * N] for e in range(E)]
            c_part.bias = C.pointer(tb)
        return part, c_part

    def setup(self):
        """Everything of one MLP call, for model and library."""
        rng, keep = self.rng, []
        path = self.option("path", self.PATHS)
        prof_name, wfmt, fly, mode = path
        prof = self.lib.c.ng_profile_find(prof_name.encode())
        x_fmt = {"mx": "bf16", "as": "bf16", "fp8_row": "bf16", "fp8_block": "bf16"}.get(fly, wfmt)
        mid = x_fmt
        mul_fmt = {"mx": "e4m3fn", "fp8_row": wfmt, "fp8_block": wfmt}.get(fly, x_fmt)
        if fly == "mx" and prof_name == "ocp-mx":
            mul_fmt = "e5m2"
        rule = self.lib.c.ng_profile_rule(prof, FORMAT_CODE[mul_fmt], FORMAT_CODE[mul_fmt if fly == "as" else wfmt],
                                          j.MODES.index(mode), None, 0)
        assert rule, path
        E, T, k = rng.choice([1, 2, 3]), rng.randint(1, 4), rng.randint(1, 2)
        H, I = rng.randint(1, 6), rng.randint(1, 6)
        if fly in ("mx", "as") and rng.random() < 0.5:
            H, I = rng.choice([33, 40]), rng.randint(1, 3)
        if fly == "fp8_block" and rng.random() < 0.5:
            H, I = rng.choice([(130, 2), (2, 130), (3, 257)])
        gated = rng.random() < 0.85
        acc = rng.choice(["f32", "bf16"]) if prof_name == "trn3" else "f32"
        quant = dict(how={"mx": "mx", "fp8_row": "fp8_row", "fp8_block": "fp8_block"}.get(fly, "as_is"), format=mul_fmt,
                     rule=rng.choice(["floor_up1", "floor"]), special="element", scale_min=rng.choice([0, f32(0.01)]),
                     by=self.option("by", DIVIDES))
        op = dict(p=self.lib.rule_params(rule), psum=acc, hidden=self.option("hidden", [None, "f32", "bf16", "f16"]),
                  act=self.act_op(gated), middle=mid, expert_out=self.option("expert_out", [None, "f32", "bf16", "f16"]),
                  affinity=self.option("affinity", AFFINITIES), combine=self.combine_op(), x=quant, quant=quant,
                  dispatch=self.dispatch_op(E, k, T),
                  blocks=dict(order=self.option("blocks.order", BLOCK_ORDERS), fused=self.option("blocks.fused", [False, True])))
        local = E // (op["dispatch"]["ranks"] or 1)
        gemm = j.CGemm(size=C.sizeof(j.CGemm), profile=prof, accumulate=FORMAT_CODE[acc])
        cq = CQuant(HOWS.index(quant["how"]), FORMAT_CODE[mul_fmt] if quant["how"] != "as_is" else 0,
                    j.RULES.index(quant["rule"]), 0, 0, quant["scale_min"], DIVIDES.index(quant["by"]))
        c_op = CMoe(size=C.sizeof(CMoe), gemm=gemm, weights_as=FORMAT_CODE["bf16"] if fly == "as" else 0, x=cq,
                    hidden=fmt_code(op["hidden"]), act=self.c_act(op["act"]), middle=fmt_code(mid), quant=cq,
                    expert_out=fmt_code(op["expert_out"]), affinity=AFFINITIES.index(op["affinity"]),
                    combine=self.c_combine(op["combine"]), dispatch=self.c_dispatch(op["dispatch"]),
                    blocks=CBlocks(BLOCK_ORDERS.index(op["blocks"]["order"]), op["blocks"]["fused"]))
        experts, c_experts = {}, CExperts()
        for name, K, N in (("gate", H, I), ("up", H, I), ("down", I, H)):
            experts[name], part = (None, CLinear()) if name == "up" and not gated else \
                self.projection(rng, path, local, K, N, keep)
            setattr(c_experts, name, part)
        return op, c_op, experts, c_experts, x_fmt, (E, T, k, H), keep

    def mlp_calls(self, call, op, c_op, c_experts, x_fmt, x, c, y_fmt, want, dims, what):
        """call(ctx, x, c, y): compared on the contexts."""
        rng = self.rng
        T, H = dims
        for name, ctx in self.contexts():
            xm, ym = Memory(rng, x_fmt, [T, H], x), Memory(rng, y_fmt, [T, H])
            if xm.stride[1] != 1:
                xm = Memory(rng, x_fmt, [T, H], x, loose=False)
            cm = c and Memory(rng, "f32", [T, H], c)
            tx, ty, tc = xm.tensor(), ym.tensor(), cm and cm.tensor()
            if not self.called(call(ctx, C.byref(tx), ref(tc), C.byref(ty)), ctx, what):
                return
            self.same(["%x" % v for v in ym.get()], ["%x" % v for v in want], lambda: what + "\n  ctx " + name)
            if not ym.untouched():
                self.fail(what + " wrote outside the tensor")

    def suite_mlp(self):
        rng = self.rng
        for _ in range(self.times(60)):
            op, c_op, experts, c_experts, x_fmt, (E, T, k, H), keep = self.setup()
            x, y_fmt = self.numbers(x_fmt, T * H, self.option("x", ["plain", "plain", "special"])), rng.choice(VALUES)
            weights = self.numbers("f32", T * k, "plain") if op["affinity"] != "after" or rng.random() < 0.8 else None
            c = self.numbers("f32", T * H, "plain") if rng.random() < 0.3 else None
            indices = [rng.randint(-1 if rng.random() < 0.1 else 0, E - 1) for _ in range(T * k)]
            rows = lambda v, f, n: [[decode(f, a) for a in v[i:i + n]] for i in range(0, len(v), n)]  # noqa: E731
            y = moe.mlp(op, experts, rows(x, x_fmt, H), x_fmt, indices, rows(weights, "f32", k) if weights else None,
                        rows(c, "f32", H) if c else None)
            want = [encode(y_fmt, v, RNE) for r in y for v in r]
            wm = weights and Memory(rng, "f32", [T, k], weights)
            tw = wm and wm.tensor()
            ci = (C.c_int32 * len(indices))(*indices)
            what = "mlp %s\n  %s" % ({k: self.short(v) if isinstance(v, dict) else v for k, v in op.items() if k != "p"},
                                     indices)
            self.mlp_calls(lambda ctx, tx, tc, ty: self.lib.c.ng_moe_mlp(ctx, C.byref(c_op), C.byref(c_experts), tx, ci,
                                                                         ref(tw), tc, ty),
                           op, c_op, c_experts, x_fmt, x, c, y_fmt, want, (T, H), what)

    def suite_block(self):
        """ng_moe: router and MLP, with what follows from a capacity."""
        rng = self.rng
        for _ in range(self.times(40)):
            op, c_op, experts, c_experts, x_fmt, (E, T, k, H), keep = self.setup()
            k = min(k, E)
            op["dispatch"]["k"] = c_op.dispatch.k = k
            route = self.route_op(E)
            route["k"] = k
            lfmt, wfmt = self.option("logits", VALUES), self.option("weights", VALUES)
            prof = self.lib.c.ng_profile_find(b"fma-f32")
            cols = [self.numbers(x_fmt, H, "plain") for _ in range(E)]
            rw = Memory(rng, x_fmt, [H, E], [cols[e][h] for h in range(H) for e in range(E)])
            rb = Memory(rng, "bf16", [E], self.numbers("bf16", E, "plain")) if rng.random() < 0.5 else None
            corr = self.numbers("f32", E, "plain") if rng.random() < 0.3 else None
            cm = corr and Memory(rng, "f32", [E], corr)
            tw, tb, tc = rw.tensor(), rb and rb.tensor(), cm and cm.tensor()
            router = CRouter(gemm=j.CGemm(size=C.sizeof(j.CGemm), profile=prof), route=self.c_route(route),
                             logits=FORMAT_CODE[lfmt], weights=FORMAT_CODE[wfmt], w=C.pointer(tw))
            if tb:
                router.b = C.pointer(tb)
            if tc:
                router.correction = C.pointer(tc)
            x, y_fmt = self.numbers(x_fmt, T * H, "plain"), rng.choice(VALUES)
            rule = self.lib.c.ng_profile_rule(prof, FORMAT_CODE[x_fmt], FORMAT_CODE[x_fmt], 0, None, 0)
            p = self.lib.rule_params(rule)
            late = op["dispatch"]["mode"] == "capacity"
            first = dict(route, normalise=False, eps=0, scale=0) if late else route
            indices, weights = [], []
            for t in range(T):
                a = m.Line(x_fmt, x[t * H:(t + 1) * H])
                logits = [moe.product(p, "f32", a, m.Line(x_fmt, col)) for col in cols]
                if rb:
                    logits = [moe.add(v, decode("bf16", b)) for v, b in zip(logits, rb.get())]
                i, w = moe.route(first, [moe.to(lfmt, v) for v in logits], [decode("f32", v) for v in corr] if corr else None)
                indices += i
                weights.append([moe.to(wfmt, v) for v in w])
            if late:
                slots = moe.dispatch(dict(op["dispatch"], ranks=0, rank=0), indices, T)[0]
                weights = [[moe.to(wfmt, v) for v in moe.late_weights(route, slots[t * k:(t + 1) * k], w)]
                           for t, w in enumerate(weights)]
            rows = [[decode(x_fmt, v) for v in x[t * H:(t + 1) * H]] for t in range(T)]
            want = [encode(y_fmt, v, RNE) for r in moe.mlp(op, experts, rows, x_fmt, indices, weights, None) for v in r]
            what = "moe %s %s" % (self.short(route), {k: v for k, v in op.items() if k not in ("p", "act")})
            self.mlp_calls(lambda ctx, tx, tc, ty: self.lib.c.ng_moe(ctx, C.byref(c_op), C.byref(router), C.byref(c_experts),
                                                                     tx, tc, ty),
                           op, c_op, c_experts, x_fmt, x, None, y_fmt, want, (T, H), what)


    # ---- Backward. ----

    def suite_route_back(self):
        rng = self.rng
        for _ in range(self.times(90)):
            E, T = rng.choice([1, 2, 3, 5, 8, 9, 17, 32]), rng.choice([1, 2, 3, 9])
            op = self.route_op(E)
            k = op["k"]
            fmt, gfmt, dfmt = self.option("logits", VALUES + ["e4m3fn"]), self.option("dweights", VALUES), \
                self.option("dlogits", VALUES)
            logits, dw = self.numbers(fmt, T * E, self.style()), self.numbers(gfmt, T * k, self.style())
            indices = sum([rng.sample(range(E), k) for _ in range(T)], [])
            slots = [rng.choice([-1, 0, 7]) for _ in range(T * k)] if rng.random() < 0.5 else None
            self.cover["slots=%s" % (slots is not None)] += 1
            want = []
            for t in range(T):
                at = slice(t * k, (t + 1) * k)
                row = moe.route_back(op, [decode(fmt, c) for c in logits[t * E:(t + 1) * E]], indices[at],
                                     slots and slots[at], [decode(gfmt, c) for c in dw[at]])
                want += [encode(dfmt, v, RNE) for v in row]
            what = "route_backward E=%d %s %s %s %s\n  logits %s\n  dw %s\n  %s %s" % (
                E, fmt, gfmt, dfmt, self.short(op), ["%x" % c for c in logits], ["%x" % c for c in dw], indices, slots)
            for name, ctx in self.contexts():
                lm, wm, dm = Memory(rng, fmt, [T, E], logits), Memory(rng, gfmt, [T, k], dw), Memory(rng, dfmt, [T, E])
                cop = self.c_route(op)
                st = self.lib.c.ng_route_backward(
                    ctx, C.byref(cop), C.byref(lm.tensor()), (C.c_int32 * (T * k))(*indices),
                    (C.c_int32 * (T * k))(*slots) if slots else None, C.byref(wm.tensor()), C.byref(dm.tensor()))
                if not self.called(st, ctx, what):
                    return
                self.same(["%x" % v for v in dm.get()], ["%x" % v for v in want], lambda: what + "\n  ctx " + name)
                if not dm.untouched():
                    self.fail(what + " wrote outside the tensor")

    BACK_PATHS = [  # profile, the format of all operands
        ("fma-f32", "f32"), ("trn2", "bf16"), ("trn2", "bf16"), ("trn2", "f32"), ("trn3", "f16"),
    ]

    def gradient(self, keep, fmt, n, dims):
        """n matrices to be written, as tensors; or nothing, where they are not wanted."""
        if self.rng.random() < 0.12:
            self.cover["gradient=none"] += 1
            return None, None
        memory = [Memory(self.rng, fmt, dims) for _ in range(n)]
        tensors = (j.CTensor * n)(*[w.tensor() for w in memory])
        keep += [memory, tensors]
        return memory, C.cast(tensors, C.POINTER(j.CTensor))

    def suite_mlp_back(self):
        rng = self.rng
        for _ in range(self.times(50)):
            prof_name, fmt = path = self.option("path", self.BACK_PATHS)
            prof, keep = self.lib.c.ng_profile_find(prof_name.encode()), []
            rule = self.lib.c.ng_profile_rule(prof, FORMAT_CODE[fmt], FORMAT_CODE[fmt], 0, None, 0)
            assert rule, path
            E, T, k = rng.choice([1, 2, 3]), rng.choice([1, 3, 5, 20]), rng.randint(1, 2)
            H, I = rng.choice([1, 2, 5, 7, 9, 17]), rng.randint(1, 9)
            act = self.act_op()
            act["act"] = "swiglu"
            op = dict(p=self.lib.rule_params(rule), psum="f32", hidden=self.option("hidden", [None, "f32", "bf16", "f16"]),
                      act=act, middle=fmt, expert_out=self.option("expert_out", [None, "f32", "bf16", "f16"]),
                      combine=self.combine_op(), dispatch=self.dispatch_op(E, k, T))
            local = E // (op["dispatch"]["ranks"] or 1)
            c_op = CMoe(size=C.sizeof(CMoe), gemm=j.CGemm(size=C.sizeof(j.CGemm), profile=prof), middle=FORMAT_CODE[fmt],
                        hidden=fmt_code(op["hidden"]), act=self.c_act(act), expert_out=fmt_code(op["expert_out"]),
                        combine=self.c_combine(op["combine"]), dispatch=self.c_dispatch(op["dispatch"]))
            experts, c_experts = {}, CExperts()
            for name, K, N in (("gate", H, I), ("up", H, I), ("down", I, H)):
                tensors, lines = (j.CTensor * local)(), []
                for e in range(local):
                    cols = [self.numbers(fmt, K, "plain") for _ in range(N)]
                    wm = Memory(rng, fmt, [K, N], [c[i] for i in range(K) for c in cols])
                    tensors[e] = wm.tensor()
                    keep.append(wm)
                    lines.append([m.Line(fmt, c) for c in cols])
                keep.append(tensors)
                experts[name] = dict(lines=lines, scale=None, bias=None)
                setattr(c_experts, name, CLinear(weights=tensors))
            x, dfmt = self.numbers(fmt, T * H, self.option("x", ["plain", "plain", "special"])), self.option("dy", VALUES)
            dy = self.numbers(dfmt, T * H, self.option("dy", ["plain", "plain", "special"]))
            weights = self.numbers("f32", T * k, "plain") if rng.random() < 0.8 else None
            indices = [rng.randint(-1 if rng.random() < 0.1 else 0, E - 1) for _ in range(T * k)]
            rows = lambda v, f, n: [[decode(f, a) for a in v[i:i + n]] for i in range(0, len(v), n)]  # noqa: E731
            dx, dw, grads = moe.mlp_back(op, experts, rows(x, fmt, H), fmt, indices,
                                         rows(weights, "f32", k) if weights else None, rows(dy, dfmt, H))
            flat = lambda v: [a for r in v for a in r]  # noqa: E731
            ci = (C.c_int32 * len(indices))(*indices)
            what = "mlp_backward %s %s\n  %s" % (path, {k: self.short(v) if isinstance(v, dict) else v
                                                       for k, v in op.items() if k != "p"}, indices)
            for name, ctx in self.contexts():
                gfmt = {n: rng.choice(VALUES) for n in ("x", "weights", "gate", "up", "down")}
                c_grad, memory = CGradients(), {}
                for n, count, dims in (("x", 1, [T, H]), ("weights", 1, [T, k]), ("gate", local, [H, I]),
                                       ("up", local, [H, I]), ("down", local, [I, H])):
                    memory[n], tensors = self.gradient(keep, gfmt[n], count, dims)
                    if tensors:
                        setattr(c_grad, n, tensors)
                xm, ym = Memory(rng, fmt, [T, H], x), Memory(rng, dfmt, [T, H], dy)
                if xm.stride[1] != 1:
                    xm = Memory(rng, fmt, [T, H], x, loose=False)
                wm = weights and Memory(rng, "f32", [T, k], weights)
                tx, ty, tw = xm.tensor(), ym.tensor(), wm and wm.tensor()
                st = self.lib.c.ng_moe_mlp_backward(ctx, C.byref(c_op), C.byref(c_experts), C.byref(tx), ci, ref(tw),
                                                    C.byref(ty), C.byref(c_grad))
                if not self.called(st, ctx, what):
                    return
                for n, got in memory.items():
                    if got is None:
                        continue
                    want = [dx] if n == "x" else [dw] if n == "weights" else [g[n] for g in grads]
                    for e, (one, v) in enumerate(zip(got, want)):
                        self.same(["%x" % c for c in one.get()],
                                  ["%x" % encode(gfmt[n], a, RNE) for a in flat(v)],
                                  lambda: what + "\n  ctx %s: %s[%d]" % (name, n, e))
                        if not one.untouched():
                            self.fail(what + " wrote outside grad." + n)


SUITES = ["route", "weights", "dispatch", "activation", "combine", "mlp", "block", "route_back", "mlp_back"]


def run_suites(title, suites, declare, judge):
    """The command line of a judge whose methods suite_NAME make cases; the exit status."""
    ap = argparse.ArgumentParser()
    ap.add_argument("library", nargs="?", default="libnarrowgauge.so")
    ap.add_argument("--suite", action="append", choices=suites)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--cases", type=float, default=1.0)
    ap.add_argument("--long", action="store_true", help="ten times the cases")
    args = ap.parse_args()
    try:
        lib = j.Library(args.library)
        declare(lib)
    except (OSError, AttributeError) as e:
        print("skipped: %s" % e)
        return 77
    totals = collections.Counter()
    for name in args.suite or suites:
        one = judge(lib, random.Random("%d %s" % (args.seed, name)), args.cases * (10 if args.long else 1), args.long, 3)
        t = time.monotonic()
        getattr(one, "suite_" + name)()
        print("%s: %d cases, %d comparisons, %d mismatches, %d settings, %.1f s" % (
            name, one.cases, one.elements, one.mismatches, len(one.cover), time.monotonic() - t),
            flush=True)
        totals.update(cases=one.cases, elements=one.elements, bad=one.mismatches)
    print("%s: %d cases, %d comparisons, %d mismatches" % (
        title, totals["cases"], totals["elements"], totals["bad"]))
    return 1 if totals["bad"] else 0


if __name__ == "__main__":
    sys.exit(run_suites("moe", SUITES, declare, Judge))
