# SPDX-License-Identifier: Apache-2.0
"""An independent model of docs/numerics.md 11.10 in exact arithmetic: mixture of experts.

Written from that page alone, on model.py's fractions. Functions are computed to 80 digits and
then rounded once; item numbers are the page's.
"""

import decimal
from fractions import Fraction

import model as m
from model import FINITE, INF, NAN, NOT_A_NUMBER, RNE, SAT, Num, decode, encode, fp32, infinity, num

ONE, ZERO, HALF = num(Fraction(1)), num(Fraction(0)), num(Fraction(1, 2))
CONTEXT = decimal.Context(prec=80, Emin=-decimal.MAX_EMAX, Emax=decimal.MAX_EMAX)


def value(pattern):
    return decode("f32", pattern)


def code(v):
    return encode("f32", v, RNE)


def to(fmt, v):
    """One conversion, rne, and back."""
    return decode(fmt, encode(fmt, v, RNE))


# ---- FP32 operations, each RN. ----


def negated(v):
    return Num(v.kind, -v.x, not v.neg)


def exact_product(a, b):
    if a.kind == FINITE == b.kind:
        return Num(FINITE, a.x * b.x, a.neg != b.neg)
    return m._fp32_mul_special(a, b)


def exact_sum(a, b):
    if a.kind == NAN or b.kind == NAN or (a.kind == INF == b.kind and a.neg != b.neg):
        return NOT_A_NUMBER
    if a.kind == INF or b.kind == INF:
        return infinity((a if a.kind == INF else b).neg)
    s = a.x + b.x
    return Num(FINITE, s, s < 0 if s else a.neg and b.neg)


def add(a, b):
    return fp32(exact_sum(a, b))


def mul(a, b):
    return fp32(exact_product(a, b))


def fma(a, b, c):
    return fp32(exact_sum(exact_product(a, b), c))


def div(a, b):
    neg = a.neg != b.neg
    zero_a, zero_b = [v.kind == FINITE and v.x == 0 for v in (a, b)]
    if NAN in (a.kind, b.kind) or (a.kind == INF == b.kind) or (zero_a and zero_b):
        return NOT_A_NUMBER
    if a.kind == INF or zero_b:
        return infinity(neg)
    if b.kind == INF or zero_a:
        return Num(FINITE, Fraction(0), neg)
    return fp32(num(a.x / b.x))


# ---- Section 8, `cr` and `table`. ----


def real_exp(x):
    """e^x to 80 digits; outside of +-400 the result is beyond every FP32 number anyway."""
    x = max(min(x, Fraction(400)), Fraction(-400))
    with decimal.localcontext(CONTEXT):
        d = decimal.Decimal(x.numerator) / decimal.Decimal(x.denominator)
        return Fraction(d.exp())


def function(name, table, v):
    """table: None for `cr`, else 65536 bf16 codes."""
    if table is not None:
        return decode("bf16", table[encode("bf16", v, RNE)])
    if v.kind == NAN:
        return NOT_A_NUMBER
    if name == "reciprocal":
        return div(ONE, v)
    if v.kind == INF:
        if name == "exp":
            return ZERO if v.neg else v
        return num(Fraction(-1 if v.neg else 1)) if name == "tanh" else ZERO if v.neg else ONE
    if name == "exp":
        return ONE if v.x == 0 else fp32(num(real_exp(v.x)))
    if name == "sigmoid":
        return fp32(num(1 / (1 + real_exp(-v.x))))
    if v.x == 0:
        return v
    e = real_exp(2 * v.x)
    return fp32(num((e - 1) / (e + 1)))


# ---- Items 91 to 97. ----


def height(v):
    """Item 92: what numbers are ordered by."""
    if v.kind == NAN:
        return (2, 0)
    return (-1 if v.neg else 1, 0) if v.kind == INF else (0, v.x)


def ranked(values):
    """Indices, best first: a stable sort keeps the lower index of equals in front."""
    return sorted(range(len(values)), key=lambda i: height(values[i]), reverse=True)


def in_sequence(values):
    s = values[0]
    for v in values[1:]:
        s = add(s, v)
    return s


def shares(values, s, how, table):
    if how == "division":
        return [div(v, s) for v in values]
    r = function("reciprocal", table, s)
    return [mul(v, r) for v in values]


def activated(op, logits):
    if op["act"] == "sigmoid":
        p = [function("sigmoid", op["sigmoid"], v) for v in logits]
    else:
        top = max(logits, key=height)
        top = ZERO if height(top) == (0, 0) else top
        e = [function("exp", op["exp"], add(v, negated(top))) for v in logits]
        p = shares(e, in_sequence(e), op["softmax_by"], op["reciprocal"])
    return [to(op["score"] or "f32", v) for v in p]


def final_weights(op, w):
    """Item 96."""
    if op["normalise"]:
        s = in_sequence(w)
        if op["eps"] and op["eps_how"] == "add":
            s = add(s, value(op["eps"]))
        elif op["eps"] and height(s) < height(value(op["eps"])):
            s = value(op["eps"])
        w = shares(w, s, op["normalise_by"], op["reciprocal"])
    return [mul(v, value(op["scale"])) for v in w] if op["scale"] else w


def route(op, logits, correction):
    """Indices and weights (FP32) of one token."""
    all_scores = None if op["order"] == "topk_then_act" else activated(op, logits)
    by_score = op["order"] == "act_then_topk"
    choice = list(all_scores if by_score else logits)
    if correction is not None:
        choice = [add(v, c) for v, c in zip(choice, correction)]
        if by_score:
            choice = [to(op["score"] or "f32", v) for v in choice]
    G = op["groups"]
    if G:
        size = len(logits) // G
        members = [choice[g * size:(g + 1) * size] for g in range(G)]
        totals = [in_sequence([c[i] for i in ranked(c)[:op["group_top"] or 2]]) for c in members]
        kept = set(ranked(totals)[:op["top_groups"]])
        out = ZERO if op["mask"] == "zero" else infinity(True)
        choice = [v if i // size in kept else out for i, v in enumerate(choice)]
    best = ranked(choice)[:op["k"]]
    w = activated(op, [logits[i] for i in best]) if all_scores is None else [all_scores[i] for i in best]
    return best, final_weights(op, w)


def late_weights(op, slots, w):
    """Item 97."""
    kept = [r for r, s in enumerate(slots) if s >= 0]
    out = [ZERO] * len(w)
    if kept:
        for r, v in zip(kept, final_weights(op, [w[r] for r in kept])):
            out[r] = v
    return out


# ---- Items 98 and 99. ----


def dispatch(op, indices, tokens):
    """slot, row, offset, block_expert, dropped."""
    E, k, R = op["experts"], op["k"], op["ranks"] or 1
    mine = range(op["rank"] * (E // R), (op["rank"] + 1) * (E // R))
    B = op["block"] or 1
    slot, row, offset, blocks, dropped = [-1] * (tokens * k), [], [], [], 0
    if op["mode"] == "capacity":
        C = op["capacity"] or -(-tokens * k * value(op["factor"]).x // E)
        C = int(min(tokens, C))
    for e in mine:
        offset.append(len(row))
        entries = [i for i, x in enumerate(indices) if x == e]
        if op["mode"] == "capacity":
            dropped += max(0, len(entries) - C)
            entries = entries[:C]
            pad = C - len(entries)
        else:
            pad = -len(entries) % B
            blocks += [e - mine[0]] * ((len(entries) + pad) // B)
        for i in entries:
            slot[i] = len(row)
            row.append(i)
        row += [-1] * pad
    return slot, row, offset + [len(row)], blocks, dropped


# ---- Items 100 to 105. ----


def settle(v, column, row, hidden, bias, biased):
    for s in (column, row):
        if s is not None:
            v = mul(v, s)
    v = to(hidden or "f32", v)
    return v if bias is None else to(biased or "f32", add(v, bias))


def clamped(v, low, high):
    if v.kind == NAN:
        return v
    if high is not None and height(v) > height(high):
        v = high
    return low if low is not None and height(v) < height(low) else v


def activation(op, gate, up):
    """Item 102; up: None without a gate."""
    alpha, limit = value(op["alpha"] or 0x3FD9DB23), value(op["limit"] or 0x40E00000)

    def swish(x, at):
        return mul(x, function("sigmoid", op["sigmoid"], at))

    if op["act"] == "swiglu":
        v = swish(gate, gate)
    elif op["act"] == "swish":
        v = swish(gate, mul(alpha, gate))
    elif op["act"] == "gelu":
        cube = mul(mul(gate, gate), gate)
        inner = mul(value(0x3F4C422A), add(gate, mul(value(0x3D372713), cube)))
        v = mul(mul(gate, HALF), add(ONE, function("tanh", op["tanh"], inner)))
    else:
        g = clamped(gate, None, limit)
        v = swish(g, mul(alpha, g))
        if op["act"] == "gpt_oss":
            up = add(clamped(up, negated(limit), limit), ONE)
        else:
            up = clamped(up, add(ONE, negated(limit)), add(ONE, limit))
    return v if up is None else mul(v, up)


def fp8_rows(fmt, by, least, row):
    """Item 101: the scale (a Num) and the codes of a row, or of a block of one."""
    a = max([abs(v.x) for v in row if v.kind == FINITE], default=Fraction(0))
    top = num(m.max_value(fmt))
    s = div(num(a), top) if by == "division" else mul(num(a), div(ONE, top))
    least = value(least or 0x00800000)
    s = s if s.x > least.x else least
    if by == "division":
        return s, [encode(fmt, div(v, s), SAT) for v in row]
    q = div(ONE, s)
    return s, [encode(fmt, mul(v, q), SAT) for v in row]


BLOCK = 128


def blocked_product(op, a, scales, b, b_scales):
    """Item 101: one element of a projection under fp8_block; scales: of the row's blocks and of
    the column's."""
    y = ZERO
    for i, (s, w) in enumerate(zip(scales, b_scales)):
        at = slice(i * BLOCK, (i + 1) * BLOCK)
        psum = product(op["p"], op["psum"], m.Line(a.fmt, a.codes[at]), m.Line(b.fmt, b.codes[at]))
        left, right = (psum, mul(s, w)) if op["blocks"]["order"] == "product" else (mul(psum, s), w)
        y = fma(left, right, y) if op["blocks"]["fused"] else add(y, mul(left, right))
    return y


# ---- Items 106 and 107. ----


def combine(op, entries, y):
    """One element. entries: (slot, weight or None, o) in rank order, those with a row."""
    if op["order"] == "expert":
        entries = sorted(entries, key=lambda e: e[0])
    for _, w, o in entries:
        if w is not None and op["fused"]:
            y = fma(w, o, y)
        else:
            y = add(y, o if w is None else to(op["product"] or "f32", mul(w, o)))
        y = to(op["sum"] or "f32", y)
    return y


# ---- The expert MLP: items 100, 101 and 105 over section 4. ----


def product(p, psum, a, b):
    """One element of a multiply, FP32. a, b: model.Line; p: a rule's parameters, family array."""
    v = m.to_fraction(m.Array(p).element(a, b, None, psum))
    return v if v.kind != NAN else NOT_A_NUMBER


def prepared(quant, fmt, rows):
    """Rows of Nums in format fmt -> (lines, row scales or Nones)."""
    if quant["how"] == "as_is":
        return [m.Line(fmt, [encode(fmt, v, RNE) for v in r]) for r in rows], [None] * len(rows)
    to_fmt = quant["format"]
    if quant["how"] == "fp8_row":
        both = [fp8_rows(to_fmt, quant["by"], quant["scale_min"], r) for r in rows]
        return [m.Line(to_fmt, codes) for _, codes in both], [s for s, _ in both]
    if quant["how"] == "fp8_block":
        both = [[fp8_rows(to_fmt, quant["by"], quant["scale_min"], r[k:k + BLOCK])
                 for k in range(0, len(r), BLOCK)] for r in rows]
        return [m.Line(to_fmt, [c for _, codes in r for c in codes]) for r in both], \
            [[s for s, _ in r] for r in both]
    lines = []
    for r in rows:
        codes, scales = [], []
        for k in range(0, len(r), 32):
            part = r[k:k + 32]
            s, c = m.quantize_mx_block(part, to_fmt, quant["rule"], quant["special"], RNE, [0] * len(part))
            codes += c
            scales += [s] * len(part)
        lines.append(m.Line(to_fmt, codes, "e8m0", scales))
    return lines, [None] * len(rows)


def mlp(op, experts, x, x_fmt, indices, weights, c):
    """experts: three projections {lines: [E][N] Line, scale, bias} (up may be None); x, c: rows
    of Nums; weights: rows of Nums or None. Returns rows of y before their last conversion."""
    T, k, H = len(x), op["dispatch"]["k"], len(x[0])
    slot, row, offset, _, _ = dispatch(op["dispatch"], indices, T)
    o = {}
    for e in range(len(offset) - 1):
        entries = [i for i in row[offset[e]:offset[e + 1]] if i >= 0]
        if not entries:
            continue
        rows = [x[i // k] for i in entries]
        w = [weights[i // k][i % k] if weights else None for i in entries]
        if op["affinity"] == "before":
            rows = [[to(x_fmt, mul(v, f)) for v in r] for r, f in zip(rows, w)]
        lines, scales = prepared(op["x"], x_fmt, rows)

        def project(name, lines, scales, hidden, biased):
            part = experts[name]
            sc = part["scale"]
            if part.get("blocks"):  # [e][K block][N block]
                return [[settle(blocked_product(op, a, s, b, [r[n // BLOCK] for r in part["blocks"][e]]), None, None,
                                hidden, part["bias"][e][n] if part["bias"] else None, biased)
                         for n, b in enumerate(part["lines"][e])] for a, s in zip(lines, scales)]
            column = (lambda n: None) if sc is None else (lambda n: sc[e]) if not isinstance(sc[e], list) \
                else (lambda n: sc[e][n])
            return [[settle(product(op["p"], op["psum"], a, b), column(n), s, hidden,
                            part["bias"][e][n] if part["bias"] else None, biased)
                     for n, b in enumerate(part["lines"][e])] for a, s in zip(lines, scales)]

        g = project("gate", lines, scales, op["hidden"], op["act"]["biased"])
        u = project("up", lines, scales, op["hidden"], op["act"]["biased"]) if experts["up"] else \
            [[None] * len(r) for r in g]
        mid = [[activation(op["act"], a, b) for a, b in zip(ra, rb)] for ra, rb in zip(g, u)]
        if op["affinity"] == "inside":
            mid = [[mul(v, f) for v in r] for r, f in zip(mid, w)]
        mid_fmt, out_fmt = op["middle"] or "bf16", op["expert_out"] or "bf16"
        mid = [[to(mid_fmt, v) for v in r] for r in mid]
        lines, scales = prepared(op["quant"], mid_fmt, mid)
        out = project("down", lines, scales, out_fmt, out_fmt)
        for n, r in enumerate(out):
            o[offset[e] + n] = r
    y = []
    for t in range(T):
        w = weights[t] if weights and op["affinity"] == "after" else [None] * k
        mine = [(slot[t * k + r], w[r]) for r in range(k) if slot[t * k + r] >= 0]
        y.append([combine(op["combine"], [(s, f, o[s][h]) for s, f in mine], c[t][h] if c else ZERO)
                  for h in range(H)])
    return y


# ---- Backward: items 110 to 118. ----


def products(a, b):
    """Items 113, 117 and 118: the sum of RN products, in sequence."""
    return in_sequence([mul(u, v) for u, v in zip(a, b)])


def minus(a, b):
    return add(a, negated(b))


def weights_back(op, scores, dw):
    """Item 117: kept entries' gradients, from weights to scores."""
    v = [mul(d, value(op["scale"])) for d in dw] if op["scale"] else dw
    if not op["normalise"]:
        return v
    total = in_sequence(scores)
    if op["eps"] and op["eps_how"] == "add":
        total = add(total, value(op["eps"]))
    elif op["eps"] and height(total) < height(value(op["eps"])):
        return shares(v, value(op["eps"]), op["normalise_by"], op["reciprocal"])
    n = shares(scores, total, op["normalise_by"], op["reciprocal"])
    mean = products(v, n)
    return shares([minus(d, mean) for d in v], total, op["normalise_by"], op["reciprocal"])


def route_back(op, logits, indices, slots, dw):
    """One token's gradients of logits; slots may be None."""
    members = indices if op["order"] == "topk_then_act" else range(len(logits))
    p = dict(zip(members, activated(op, [logits[e] for e in members])))
    kept = [r for r in range(len(indices)) if slots is None or slots[r] >= 0]
    out = [ZERO] * len(logits)
    if not kept:
        return out
    mine = [indices[r] for r in kept]
    dp = dict(zip(mine, weights_back(op, [p[e] for e in mine], [dw[r] for r in kept])))
    if op["act"] == "sigmoid":
        for e in mine:
            out[e] = mul(dp[e], mul(p[e], minus(ONE, p[e])))
        return out
    mean = products([dp[e] for e in mine], [p[e] for e in mine])
    for e in members:
        out[e] = mul(p[e], minus(dp.get(e, ZERO), mean))
    return out


def swiglu_back(table, g, u, dm):
    """Item 115: dg and du."""
    s = function("sigmoid", table, g)
    slope = mul(s, add(ONE, mul(g, minus(ONE, s))))
    return mul(mul(dm, u), slope), mul(dm, mul(g, s))


def turned(rows):
    return [list(c) for c in zip(*rows)]


def mlp_back(op, experts, x, x_fmt, indices, weights, dy):
    """Items 111 to 116. Operands as mlp()'s; experts' lines are all of one format. Returns rows
    of dx, of dw, and per expert {gate, up, down: [K][N]}, all before their last conversion."""
    T, k, H = len(x), op["dispatch"]["k"], len(x[0])
    slot, row, offset, _, _ = dispatch(op["dispatch"], indices, T)
    mid, out, hidden = op["middle"] or "bf16", op["expert_out"] or "bf16", op["hidden"] or "f32"

    def multiply(a, a_fmt, b, b_fmt):
        """Rows of codes times columns of codes."""
        lines = [m.Line(b_fmt, c) for c in b]
        return [[product(op["p"], op["psum"], m.Line(a_fmt, r), c) for c in lines] for r in a]

    def codes(fmt, rows):
        return [[encode(fmt, v, RNE) for v in r] for r in rows]

    def rounded(fmt, rows):
        return [[to(fmt, v) for v in r] for r in rows]

    q, dw, grads = {}, [[ZERO] * k for _ in range(T)], []
    for e in range(len(offset) - 1):
        entries = [i for i in row[offset[e]:offset[e + 1]] if i >= 0]
        W = {n: [line.codes for line in experts[n]["lines"][e]] for n in experts}  # columns
        fmt = experts["gate"]["lines"][e][0].fmt
        I = len(W["gate"])
        if not entries:
            grads.append({n: [[ZERO] * len(W[n]) for _ in W[n][0]] for n in W})
            continue
        xs = codes(x_fmt, [x[i // k] for i in entries])
        g, u = [rounded(hidden, multiply(xs, x_fmt, W[n], fmt)) for n in ("gate", "up")]
        ms = codes(mid, [[activation(op["act"], a, b) for a, b in zip(ra, rb)] for ra, rb in zip(g, u)])
        o = rounded(out, multiply(ms, mid, W["down"], fmt))
        do = []
        for i, r in zip(entries, o):
            dw[i // k][i % k] = products(dy[i // k], r)
            w = weights[i // k][i % k] if weights else None
            do.append([v if w is None else mul(w, v) for v in dy[i // k]])
        do = codes(mid, do)
        dm = rounded(hidden, multiply(do, mid, turned(W["down"]), fmt))
        pairs = [[swiglu_back(op["act"]["sigmoid"], *t) for t in zip(*r)] for r in zip(g, u, dm)]
        dg, du = [codes(x_fmt, [[p[n] for p in r] for r in pairs]) for n in (0, 1)]
        a, b = multiply(dg, x_fmt, turned(W["gate"]), fmt), multiply(du, x_fmt, turned(W["up"]), fmt)
        for n in range(len(entries)):
            q[offset[e] + n] = [to(out, add(v, w)) for v, w in zip(a[n], b[n])]
        grads.append(dict(gate=multiply(turned(xs), x_fmt, turned(dg), x_fmt),
                          up=multiply(turned(xs), x_fmt, turned(du), x_fmt),
                          down=multiply(turned(ms), mid, turned(do), mid)))
        assert len(grads[-1]["gate"]) == H and len(grads[-1]["down"]) == I
    plain = dict(op["combine"], fused=False, product=None)
    dx = [[combine(plain, [(s, None, q[s][h]) for s in slot[t * k:(t + 1) * k] if s >= 0], ZERO)
           for h in range(H)] for t in range(T)]
    return dx, dw, grads
