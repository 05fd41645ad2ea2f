# SPDX-License-Identifier: Apache-2.0
"""An independent model of attention: docs/numerics.md, section 11.9, in exact rationals.

Written from that page alone, like model.py, whose formats and multiplies it uses. A whole head of
one sequence is a table of Python lists here; elementary functions come from the decimal module,
whose exp and ln are correctly rounded at any precision. Numbers in comments are the page's items.
"""

from decimal import Context, Decimal
from fractions import Fraction

import model as m
from model import FINITE, INF, NAN, Line, Num, num

# ------------------------------------------------------------------------------------------------
# FP32 operations and functions
# ------------------------------------------------------------------------------------------------

ONE = num(Fraction(1))
ZERO = num(Fraction(0), False)
LOG2_E = m.decode("f32", 0x3FB8AA3B)


def product(a, b):
    """The exact product."""
    if a.kind == FINITE == b.kind:
        return Num(FINITE, a.x * b.x, a.neg != b.neg)
    return m._fp32_mul_special(a, b)


def mul(a, b):
    return m.fp32(product(a, b))


def add(a, b):
    return m.fp32(m.total([a, b]))


def minus(a):
    return Num(a.kind, -a.x, not a.neg)


def sub(a, b):
    return add(a, minus(b))


def fma(a, b, c):
    return m.fp32(m.total([product(a, b), c]))


def div(a, b):
    neg = a.neg != b.neg
    if NAN in (a.kind, b.kind) or (a.kind == INF == b.kind):
        return m.NOT_A_NUMBER
    if b.kind == INF:
        return num(Fraction(0), neg)
    if a.kind == INF:
        return m.infinity(neg)
    if b.x == 0:
        return m.NOT_A_NUMBER if a.x == 0 else m.infinity(neg)
    return m.fp32(Num(FINITE, Fraction(a.x) / b.x, neg))


def nearest(f, x):
    """RN of a transcendental real: f(x, context) is within a few units of its last digit."""
    for digits in (30, 60, 120, 240):
        ctx = Context(prec=digits, Emin=-10**9, Emax=10**9)
        y = Fraction(f(x, ctx))
        slack = abs(y) / 10 ** (digits - 8)
        low, high = m.fp32(y - slack), m.fp32(y + slack)
        if low.kind == high.kind and low.x == high.x:
            return high
    raise ValueError("no rounding of f(%r)" % x)


def decimal(x, ctx):
    """A rational as a decimal (FP32 numbers have at most 150 digits behind the point)."""
    big = Context(prec=400)
    return big.divide(Decimal(x.numerator), Decimal(x.denominator))


def exp_of(x, ctx):
    return ctx.exp(decimal(x, ctx))


def exp2_of(x, ctx):
    return ctx.exp(ctx.multiply(decimal(x, ctx), Context(prec=ctx.prec + 10).ln(Decimal(2))))


def tanh_of(x, ctx):
    """(e^2x - 1) / (e^2x + 1), with digits to spare for what cancels."""
    wide = Context(prec=ctx.prec + 100, Emin=-10**9, Emax=10**9)
    e = wide.exp(wide.multiply(Decimal(2), decimal(x, wide)))
    return wide.divide(wide.subtract(e, Decimal(1)), wide.add(e, Decimal(1)))


def ln_of(x, ctx):
    return ctx.ln(decimal(x, ctx))


def exp(x):
    if x.kind == NAN:
        return m.NOT_A_NUMBER
    if x.kind == INF or abs(x.x) > 120:
        return ZERO if x.neg else m.infinity(False)
    return ONE if x.x == 0 else nearest(exp_of, Fraction(x.x))


def exp2(x):
    if x.kind == NAN:
        return m.NOT_A_NUMBER
    if x.kind == INF or abs(x.x) > 160:
        return ZERO if x.neg else m.infinity(False)
    if Fraction(x.x).denominator == 1:
        return m.fp32(m.pow2(int(x.x)))
    return nearest(exp2_of, Fraction(x.x))


def tanh(x):
    if x.kind == NAN or (x.kind == FINITE and x.x == 0):
        return x
    if x.kind == INF or abs(x.x) > 20:
        return Num(FINITE, Fraction(-1 if x.neg else 1), x.neg)
    if abs(x.x) < m.pow2(-20):  # x - x^3/3 + ...: below x by less than half a unit, above x - x^3
        t = abs(Fraction(x.x))
        y = m.fp32(t - t**3 / 3)
        assert y.x == m.fp32(t - t**3).x or y.x == m.fp32(t).x
        return Num(FINITE, -y.x if x.neg else y.x, x.neg)
    return nearest(tanh_of, Fraction(x.x))


def ln(x):
    if x.kind == NAN or (x.kind == FINITE and x.x < 0) or (x.kind == INF and x.neg):
        return m.NOT_A_NUMBER
    if x.kind == INF:
        return x
    if x.x == 0:
        return m.infinity(True)
    return ZERO if x.x == 1 else nearest(ln_of, Fraction(x.x))


def from_table(table):
    def f(x):
        code = table[m.encode("bf16", x if x.kind != NAN else m.NOT_A_NUMBER, m.RNE)]
        return m.decode("bf16", code)

    return f


# ------------------------------------------------------------------------------------------------
# Conversions (63)
# ------------------------------------------------------------------------------------------------


def plain(fmt, v):
    f = m.FORMATS[fmt]
    return m.encode(fmt, v, m.RNE if f.has_inf or f.has_nan else m.SAT)


def blocks(fmt, values, rule, source):
    """Codes and one scale for each element."""
    codes, scales = [], []
    for at in range(0, len(values), 32):
        part = [m.decode(source, plain(source, v)) for v in values[at : at + 32]]
        scale, out = m.quantize_mx_block(part, fmt, rule, "element", m.RNE, [0] * len(part))
        codes += out
        scales += [scale] * len(part)
    return codes, scales


def line(fmt, codes, scales=None):
    return Line(fmt, codes, "e8m0", scales) if scales else Line(fmt, codes)


def line_value(ln_, i):
    v = m.decode(ln_.fmt, ln_.codes[i])
    return v if ln_.scales is None else product(v, m.decode("e8m0", ln_.scales[i]))


# ------------------------------------------------------------------------------------------------
# One head of one sequence
# ------------------------------------------------------------------------------------------------


class Tensor:
    """codes[row][column] with e8m0 scales of the same shape, or none."""

    def __init__(self, fmt, codes, scales=None):
        self.fmt, self.codes, self.scales = fmt, codes, scales


class Head:
    """q [Sq][d], k [T][d], v [T][dv] of one head; keys from T on are gone already (60).

    s: the schedule's texts by key. o: options: scale, softcap, sink as Num or None; causal,
    align, window, masked_rows, keys (Skv); tables of functions by key.
    multiply(a_line, b_line, c): section 4, a Num (FP32)."""

    def __init__(self, s, o, q, k, v, multiply):
        self.s, self.o, self.q, self.k, self.v, self.multiply = s, o, q, k, v, multiply
        self.T, self.Sq = len(k.codes), len(q.codes)
        self.exp = from_table(o["exp_table"]) if s["exp"] == "table" else {"e": exp, "2": exp2}[s["exp_base"]]
        self.tanh = from_table(o["tanh_table"]) if s["tanh"] == "table" else tanh
        self.reciprocal = (from_table(o["reciprocal_table"]) if s["reciprocal"] == "table"
                           else lambda x: div(ONE, x))
        self.k_lines = [self.operand(k, j, s["kv_format"]) for j in range(self.T)]

    # -- operands (63) ---------------------------------------------------------------------------

    def operand(self, t, row, fmt):
        if t.scales:
            return line(t.fmt, t.codes[row], t.scales[row])
        if fmt in ("given", t.fmt):
            return line(t.fmt, t.codes[row])
        return line(fmt, [plain(fmt, m.decode(t.fmt, c)) for c in t.codes[row]])

    def query(self, i):
        s, t = self.s, self.q
        if t.scales:
            return self.operand(t, i, "given")
        v = [m.decode(t.fmt, c) for c in t.codes[i]]
        if s["scale_place"] == "q" and self.o["scale"]:
            v = [mul(x, self.o["scale"]) for x in v]
        elif s["q_block"] == 0:
            return self.operand(t, i, s["q_format"])
        fmt = t.fmt if s["q_format"] == "given" else s["q_format"]
        if s["q_block"]:
            return line(fmt, *blocks(fmt, v, s["mx_rule"], s["mx_input"]))
        return line(fmt, [plain(fmt, x) for x in v])

    def column(self, keys, c):
        t, fmt = self.v, self.s["kv_format"]
        codes = [t.codes[j][c] for j in keys]
        if t.scales:
            return line(t.fmt, codes, [t.scales[j][c] for j in keys])
        if fmt in ("given", t.fmt):
            return line(t.fmt, codes)
        return line(fmt, [plain(fmt, m.decode(t.fmt, x)) for x in codes])

    # -- who sees whom (61, 65) --------------------------------------------------------------------

    def sees(self, i, j):
        o = self.o
        if not o["causal"] and not o["window"]:
            return True
        back = i + (self.T - self.Sq if o["align"] == "bottom_right" else 0) - j
        return back >= 0 and (not o["window"] or back < o["window"])

    def computed(self, i):
        """The keys computed for query i."""
        w, g = self.s["skip_keys"], self.s["skip_queries"]
        if w == 0:
            return list(range(self.T))
        group = range(self.Sq) if g == 0 else range(i // g * g, min(self.Sq, i // g * g + g))
        out = []
        for t in range(0, self.T, w):
            tile = range(t, min(self.T, t + w))
            if any(self.sees(x, j) for x in group for j in tile):
                out += tile
        return out

    # -- scores (64) ---------------------------------------------------------------------------------

    def score(self, q, i, j):
        s, o = self.s, self.o
        cap, c = o["softcap"] is not None, o["softcap"]

        def leave(v):
            return m.decode(s["score_format"], plain(s["score_format"], v))

        def scaled(v):
            return mul(v, o["scale"]) if o["scale"] and s["scale_place"] == "scores" else v

        fill = leave(m.decode("f32", s["mask"]))
        hidden = not self.sees(i, j)
        x = leave(self.multiply("scores", q, self.k_lines[j], None))
        if s["score_order"] == "mask_scale" and not cap:
            return scaled(fill if hidden else x)
        if hidden:
            return fill
        x = scaled(x)
        if cap:
            t = div(x, c) if s["cap_argument"] == "divide" else mul(x, div(ONE, c))
            x = mul(c, self.tanh(t))
        return x

    def E(self, x, mx):
        """(68)"""
        s, o = self.s, self.o
        if s["scale_place"] == "exp":
            c = o["scale"] or ONE
            if s["exp_base"] == "2":
                c = mul(c, LOG2_E)
            return self.exp(fma(x, c, minus(mul(mx, c))))
        d = sub(x, mx)
        return self.exp(mul(d, LOG2_E) if s["exp_base"] == "2" else d)

    def saved_weight(self, x, lse):
        """(79), `statistics` lse"""
        if self.s["scale_place"] != "exp":
            return self.E(x, lse)
        c, two = self.o["scale"] or ONE, self.s["exp_base"] == "2"
        return self.exp(fma(x, mul(c, LOG2_E) if two else c, minus(mul(lse, LOG2_E) if two else lse)))

    # -- sums and products of a section (69, 70) --------------------------------------------------------

    def cuts(self, keys, start, width):
        """Positions of keys, in runs that lie in the same cut."""
        runs = {}
        for pos, j in enumerate(keys):
            runs.setdefault((j - start) // width if width else 0, []).append(pos)
        return [runs[r] for r in sorted(runs)]

    def part(self, p, at):
        return line(p.fmt, [p.codes[x] for x in at], [p.scales[x] for x in at] if p.scales else None)

    def tile(self, e, p, at):
        s = self.s
        if s["sum_order"] == "ones":
            ones = line(p.fmt, [plain(p.fmt, ONE)] * len(at), [127] * len(at) if p.scales else None)
            return self.multiply("ones", self.part(p, at), ones, None)
        terms = [e[x] if s["sum_source"] == "exp" else line_value(p, x) for x in at]
        if s["sum_order"] == "tree":
            return m.pairs_tree(terms, add)
        acc = terms[0]
        for t in terms[1:]:
            acc = add(acc, t)
        return acc

    def in_order(self, parts):
        acc = parts[0]
        for t in parts[1:]:
            acc = add(acc, t)
        return acc

    # -- a row ------------------------------------------------------------------------------------------

    def row(self, i):
        """(o before its conversion: dv Nums, lse, m, l), all FP32."""
        s, o = self.s, self.o
        dv = len(self.v.codes[0]) if self.T else o["dv"]
        init = m.decode("f32", s["max_init"])
        sink = o["sink"]
        if o["masked_rows"] == "zero" and not any(self.sees(i, j) for j in range(self.T)):
            mx, l = (sink, ONE) if sink else (init, ZERO)
            return [ZERO] * dv, self.lse(mx, l), mx, l
        q = self.query(i)
        keys = self.computed(i)
        width = s["section"] if s["section"] and o["keys"] > s["section_from"] else o["keys"]
        sections = sorted({j // width for j in keys})
        early = sink is not None and s["sink_place"] == "first"
        mx, l, out = init, ZERO, [ZERO] * dv
        if not sections and early:
            mx = self.largest([init, sink])
            l = self.E(sink, mx)
        for n in sections:
            mine = [j for j in keys if j // width == n]
            first = n == sections[0]
            scores = [self.score(q, i, j) for j in mine]
            new = self.largest([mx] + scores + ([sink] if first and early else []))
            alpha = self.E(mx, new)
            mx = new
            e = [self.E(x, mx) for x in scores]
            if s["p_block"]:
                p = line(s["p_format"], *blocks(s["p_format"], e, s["mx_rule"], s["mx_input"]))
            else:
                p = line(s["p_format"], [plain(s["p_format"], x) for x in e])
            tiles = [self.tile(e, p, at) for at in self.cuts(mine, 0, s["key_tile"])]
            lam = self.in_order(tiles)
            if first and early:
                lam = add(lam, self.E(sink, mx))
            if first:
                l = lam
            elif s["update"] == "fma":
                l = fma(l, alpha, lam)
            else:
                l = add(mul(l, alpha), lam)
            groups = self.cuts(mine, n * width, s["pv_keys"])
            for c in range(dv):
                inside = not first and s["update"] == "accumulator"
                start = mul(out[c], alpha) if inside else None
                w = self.in_order([self.multiply("pv", self.part(p, at), self.column([mine[x] for x in at], c), start)
                                   for at in groups])
                if first or inside:
                    out[c] = w
                elif s["update"] == "fma":
                    out[c] = fma(out[c], alpha, w)
                else:
                    out[c] = add(mul(out[c], alpha), w)
                if n != sections[-1] and s["o_format"] == "q":
                    out[c] = m.decode(self.q.fmt, plain(self.q.fmt, out[c]))
        if sink is not None and not early:  # (72)
            new = self.largest([mx, sink])
            alpha = self.E(mx, new)
            l = add(mul(l, alpha), self.E(sink, new))
            out = [mul(x, alpha) for x in out]
            mx = new
        if s["normalise"] == "divide":
            final = [div(x, l) for x in out]
        else:
            r = self.reciprocal(l)
            final = [mul(x, r) for x in out]
        return final, self.lse(mx, l), mx, l

    def largest(self, values):
        if any(v.kind == NAN for v in values):
            return m.NOT_A_NUMBER
        if any(v.kind == INF and not v.neg for v in values):
            return m.infinity(False)
        finite = [v.x for v in values if v.kind == FINITE]
        return num(Fraction(max(finite)), False) if finite else m.infinity(True)

    def lse(self, mx, l):
        if self.s["scale_place"] == "exp" and self.o["scale"]:
            mx = mul(mx, self.o["scale"])
        return add(mx, ln(l))


# ------------------------------------------------------------------------------------------------
# The real number (78)
# ------------------------------------------------------------------------------------------------

FAR = 700  # e^-700: below everything that a format or a random word can tell
STEP = 40  # one far weight outweighs all after it, whatever their v; ten of them lie within SHORT
REACHED = 700  # a cap's argument u from which only the order of what tanh(u) lacks is kept,
LACK = 80  # each so much before the next: e^-160 of it
SHORT, LONG = 700, 1600  # digits; the long ones where a cap is reached


def digits(n):
    """A context of n digits, and the unit that weights are integers of: about as many digits."""
    return Context(prec=n, Emin=-10**9, Emax=10**9), 1 << int(n * 3.3)


class Exact(Head):
    """Rows in real arithmetic, to so many digits less ten; what is rational is exact."""

    def __init__(self, s, o, q, k, v):
        Head.__init__(self, dict(s, kv_format="given"), o, q, k, v, None)

    def real(self, t, row, e):
        v = m.decode(t.fmt, t.codes[row][e])
        return v if not t.scales else product(v, m.decode("e8m0", t.scales[row][e]))

    def score(self, i, j):
        """The score of a visible key before the cap."""
        o = self.o
        d = len(self.q.codes[0])
        x = m.total([product(self.real(self.q, i, e), self.real(self.k, j, e)) for e in range(d)])
        if o["scale"]:
            x = product(x, o["scale"])
        return x

    def sigma(self, x, reached):
        """A score x: (before the cap, after it); after is None for NaN or +Inf, "gone" for -Inf.

        reached: all |u| from REACHED on, in order."""
        if x.kind == NAN:
            return None, None
        cap = self.o["softcap"]
        if x.kind == INF:
            if cap:
                return x.neg, -cap.x if x.neg else cap.x
            return None, ("gone" if x.neg else None)
        if not cap:
            return x.x, Fraction(x.x)
        u = Fraction(x.x) / cap.x
        if abs(u) > REACHED:
            u = (REACHED + LACK * reached.index(abs(u))) * (-1 if u < 0 else 1)
        return x.x, cap.x * Fraction(tanh_of(Fraction(u), digits(LONG if reached else SHORT)[0]))

    def row(self, i):
        o, dv = self.o, self.o["dv"]
        keys = [j for j in range(self.T) if self.sees(i, j)]
        weights, nan = [], False  # (what tells equal ones, sigma, key or None)
        scores = [self.score(i, j) for j in keys]
        cap = o["softcap"]
        us = {abs(Fraction(x.x) / cap.x) for x in scores if x.kind == FINITE} if cap else ()
        reached = sorted(u for u in us if u > REACHED)
        context, unit = digits(LONG if reached else SHORT)
        for j, x in zip(keys, scores):
            before, s = self.sigma(x, reached)
            if s is None:
                nan = True
            elif s != "gone":
                weights.append((("key", before), s, j))
        z = o["sink"]
        if z is not None:
            if z.kind == NAN or (z.kind == INF and not z.neg):
                nan = True
            elif z.kind == FINITE:
                weights.append((("key", z.x) if not o["softcap"] else "sink", Fraction(z.x), None))
        zero = o["masked_rows"] == "zero" and not keys
        if nan or not weights:
            v = ZERO if zero else m.NOT_A_NUMBER
            none = m.NOT_A_NUMBER if nan else m.infinity(True)
            return [v] * dv, none, none, m.NOT_A_NUMBER if nan else ZERO
        top = max(s for _, s, _ in weights)
        far = sorted({s for _, s, _ in weights if s - top < -FAR}, reverse=True)

        def weight(s):
            d = -Fraction(FAR + STEP * (1 + far.index(s))) if s in far else s - top
            y = context.exp(context.divide(Decimal(d.numerator), Decimal(d.denominator)))
            return int(context.multiply(y, Decimal(unit)))

        made = {}
        for _, s, _ in weights:
            if s not in made:
                made[s] = weight(s)
        total = sum(made[s] for _, s, _ in weights)
        out = [ZERO if zero else self.mean(weights, made, total, c) for c in range(dv)]
        if len(weights) == 1:
            lse = num(top)
        else:
            lse = num(top + Fraction(context.ln(context.divide(Decimal(total), Decimal(unit)))))
        return out, m.fp32(lse), m.fp32(num(top)), m.fp32(num(Fraction(total, unit)))

    def mean(self, weights, made, total, c):
        values = [ZERO if j is None else self.real(self.v, j, c) for _, _, j in weights]
        special = m.total([v for v in values if v.kind != FINITE])
        if special.kind != FINITE:
            return special
        groups = {}
        for (name, s, _), v in zip(weights, values):
            groups.setdefault(name, []).append(v.x)
        means = {Fraction(sum(g), len(g)) for g in groups.values()}
        if len(means) == 1:
            return num(Fraction(means.pop()), False)
        fine = 1 << 600  # no v has a bit below it
        return num(Fraction(sum(made[s] * int(v.x * fine) for (_, s, _), v in zip(weights, values)), total * fine))


# ------------------------------------------------------------------------------------------------
# Backward (79 to 82)
# ------------------------------------------------------------------------------------------------


class Back:
    """The gradients of all heads of one sequence that share a head of k and v.

    heads: their Head objects. o, dout [head][i][c]: codes. stats [head][i]: (lse, m, l), Nums.
    multiply as Head's, for the kinds dp, dq, dk and dv too."""

    def __init__(self, heads, o_fmt, o, d_fmt, dout, stats):
        self.heads, self.o_fmt, self.o, self.d_fmt, self.dout, self.stats = heads, o_fmt, o, d_fmt, dout, stats
        self.first = heads[0]
        self.s = self.first.s
        self.rows, self.sink_terms = {}, [[] for _ in heads]
        for n, h in enumerate(heads):
            for i in range(h.Sq):
                self.rows[n, i] = self.row(n, i)

    def gone(self, h, i):
        return h.o["masked_rows"] == "zero" and not any(h.sees(i, j) for j in range(h.T))

    def upstream(self, n, i):
        """dout of a query as the multiplies take it."""
        fmt = self.d_fmt if self.s["q_format"] == "given" else self.s["q_format"]
        codes = self.dout[n][i]
        return line(fmt, codes if fmt == self.d_fmt else [plain(fmt, m.decode(self.d_fmt, c)) for c in codes])

    def row(self, n, i):
        """{key: (e, ds)} of one query."""
        h, s = self.heads[n], self.s
        if self.gone(h, i):
            return {}
        terms = [mul(m.decode(self.d_fmt, a), m.decode(self.o_fmt, b)) for a, b in zip(self.dout[n][i], self.o[n][i])]
        D = h.in_order(terms)
        lse, mx, l = self.stats[n][i]
        q, up = h.query(i), self.upstream(n, i)

        def weight(score):
            if s["statistics"] == "lse":
                return h.saved_weight(score, lse)
            return mul(h.E(score, mx), h.reciprocal(l))
        if h.o["sink"] is not None:  # (82)
            self.sink_terms[n].append(mul(weight(h.o["sink"]), sub(ZERO, D)))
        out = {}
        for j in h.computed(i):
            e = weight(h.score(q, i, j))
            if not h.sees(i, j):
                out[j] = (e, ZERO)
                continue
            v = h.operand(h.v, j, s["kv_format"])
            ds = mul(e, sub(h.multiply("dp", up, v, None), D))
            if h.o["softcap"] is not None:
                c = h.o["softcap"]
                x = m.decode(s["score_format"], plain(s["score_format"], h.multiply("scores", q, h.k_lines[j], None)))
                if h.o["scale"] and s["scale_place"] == "scores":
                    x = mul(x, h.o["scale"])
                y = h.tanh(div(x, c) if s["cap_argument"] == "divide" else mul(x, div(ONE, c)))
                ds = mul(ds, sub(ONE, mul(y, y)))
            out[j] = (e, ds)
        return out

    def p_line(self, values):
        return line(self.s["p_format"], [plain(self.s["p_format"], v) for v in values])

    def scaled(self, v):
        return mul(v, self.first.o["scale"]) if self.first.o["scale"] else v

    def dq(self, n, i):
        h, s, row = self.heads[n], self.s, self.rows[n, i]
        if not row:
            return [ZERO] * len(h.k.codes[0]) if h.T else None
        keys = sorted(row)
        width = s["section"] if s["section"] and h.o["keys"] > s["section_from"] else h.o["keys"]
        cut = {}
        for j in keys:
            at = j // width
            cut.setdefault((at, (j - at * width) // s["pv_keys"] if s["pv_keys"] else 0), []).append(j)
        out = []
        for c in range(len(h.k.codes[0])):
            parts = []
            for key in sorted(cut):
                js = cut[key]
                column = line(h.k_lines[0].fmt, [h.k_lines[j].codes[c] for j in js])
                parts.append(h.multiply("dq", self.p_line([row[j][1] for j in js]), column, None))
            out.append(self.scaled(h.in_order(parts)))
        return out

    def dkv(self, j):
        """(dk, dv) at key j."""
        d, dv = len(self.first.k.codes[0]), len(self.first.v.codes[0])
        block = self.s["skip_queries"] or 128
        k_parts, v_parts = [[] for _ in range(d)], [[] for _ in range(dv)]
        for n, h in enumerate(self.heads):
            for start in range(0, h.Sq, block):
                mine = [i for i in range(start, min(h.Sq, start + block)) if j in self.rows[n, i]]
                if not mine:
                    continue
                e = self.p_line([self.rows[n, i][j][0] for i in mine])
                ds = self.p_line([self.rows[n, i][j][1] for i in mine])
                qs, ups = [h.query(i) for i in mine], [self.upstream(n, i) for i in mine]
                for c in range(d):
                    k_parts[c].append(h.multiply("dk", ds, line(qs[0].fmt, [x.codes[c] for x in qs]), None))
                for c in range(dv):
                    v_parts[c].append(h.multiply("dv", e, line(ups[0].fmt, [x.codes[c] for x in ups]), None))
        if not k_parts[0]:
            return [ZERO] * d, [ZERO] * dv
        dk, dvs = [self.first.in_order(p) for p in k_parts], [self.first.in_order(p) for p in v_parts]
        return ([self.scaled(x) for x in dk] if self.s["scale_place"] != "q" else dk), dvs
