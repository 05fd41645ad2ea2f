# SPDX-License-Identifier: Apache-2.0
"""An independent model of docs/numerics.md 11.12: reductions over ranks.

Written from that page alone: an algorithm is a function that writes its plan down as nested
tuples, and one function adds up a plan. Item numbers are the page's.
"""

from fractions import Fraction

from model import FINITE, INF, NAN, NOT_A_NUMBER, Cast, decode, encode, fp32, infinity, num
from moe import add


def ring(n, c, p):
    plan = (c + 1) % n
    for i in range(2, n + 1):
        plan = (plan, (c + i) % n)
    return plan


def kanga_ring(n, c, p):
    pairs = [((q, q + 1) if c % 2 == 0 else (q + 1, q)) for q in range(0, n, 2)]
    first = c // 2 + 1
    order = [pairs[(first + i) % len(pairs)] for i in range(len(pairs))]
    plan = order[0]
    for pair in order[1:]:
        plan = (plan,) + pair if p["received"] == "first" else pair + (plan,)
    return plan


def sum_of(terms):
    """A sum of one term is that term."""
    return tuple(terms) if len(terms) > 1 else terms[0]


def turned(items, by):
    return items[by:] + items[:by]


def chips_of(n, chip, by=0):
    return [sum_of(turned(list(range(g, g + chip)), by)) for g in range(0, n, chip)]


def mesh(n, c, p):
    chip = p["chip"]
    if p["start"] == "zero":
        return sum_of(chips_of(n, chip))
    return sum_of(turned(chips_of(n, chip, c % chip), c // chip))


def rdh(n, c, p):
    now = chips_of(n, p["chip"])
    steps = len(now).bit_length() - 1
    distances = [1 << i for i in range(steps)]
    for b in distances if p["halving"] == "near" else distances[::-1]:
        now = [(now[j], now[j ^ b]) for j in range(len(now))]
    return now[0]


def tree(n, c, p):
    def span(ranks):
        if len(ranks) == 1:
            return ranks[0]
        middle = (len(ranks) + 1) // 2
        return (span(ranks[:middle]), span(ranks[middle:]))

    return span(list(range(n)))


def single_step(n, c, p):
    return sum_of(turned(list(range(n)), dict(zero=0, owner=c, own=p["rank"])[p["start"]]))


ALGORITHMS = dict(ring=ring, kanga_ring=kanga_ring, mesh=mesh, rdh=rdh, tree=tree, single_step=single_step)


def explicit(text, n, c):
    """Item 145: the text is Python's, but for its commas and signs."""
    def read(tokens):
        terms = []
        while tokens:
            t = tokens.pop(0)
            if t == ")":
                break
            terms.append(read(tokens) if t == "(" else (int(t) + c) % n if t[0] == "+" else int(t))
        return sum_of(terms)

    return read(text.replace("(", " ( ").replace(")", " ) ").split())


def plan_of(p, n, c, order=None):
    """p: every parameter, and the rank that asks."""
    if p["algorithm"] == "explicit":
        return explicit(order, n, c)
    m = p["node"]
    if not m:
        return ALGORITHMS[p["algorithm"]](n, c, p)
    nodes = n // m
    inside = ALGORITHMS[p["algorithm"]](m, c // nodes, dict(p, rank=p["rank"] % m))
    between = ALGORITHMS[p["between"]](nodes, c % nodes, dict(p, chip=1, rank=p["rank"] // m))

    def ranks(plan, node):
        return node * m + plan if isinstance(plan, int) else tuple(ranks(t, node) for t in plan)

    def nodes_in(plan):
        return ranks(inside, plan) if isinstance(plan, int) else tuple(nodes_in(t) for t in plan)

    return nodes_in(between)


def text_of(plan, whole=True):
    if isinstance(plan, int):
        return str(plan)
    inner = " ".join(text_of(t, False) for t in plan)
    return inner if whole else "(%s)" % inner


def below(a, b):
    """Item 142's order, of numbers that are no NaN."""
    def key(v):
        size = Fraction(0) if v.kind != FINITE else abs(v.x)
        size = (1, 0) if v.kind == INF else (0, size)
        return (0, (-size[0], -size[1])) if v.neg else (1, size)

    return key(a) < key(b)


def least(a, b, reduction, nan):
    if NAN in (a.kind, b.kind):
        numbers = [v for v in (a, b) if v.kind != NAN]
        return numbers[0] if numbers and nan == "number" else NOT_A_NUMBER
    return a if below(a, b) == (reduction == "min") else b


class Reduction:
    """One element at a time: values of n ranks in, a value out."""

    def __init__(self, p, reduction, fmt, order=None):
        self.p, self.reduction, self.order = p, reduction, order
        self.wire = fmt if p["wire"] == "given" else p["wire"]
        self.fmt = fmt
        self.cast = Cast(round=p["round"], overflow=p["overflow"])

    def to_wire(self, v):
        v = decode(self.wire, encode(self.wire, v, self.cast))
        return NOT_A_NUMBER if v.kind == NAN else v

    def term(self, v):
        if v.kind == NAN and self.wire == self.fmt:
            return NOT_A_NUMBER
        return v if self.wire == self.fmt else self.to_wire(v)

    def value(self, plan, terms, steps):
        if isinstance(plan, int):
            return terms[plan]
        parts = [self.value(t, terms, steps) for t in plan]
        s, whole = parts[0], None
        for v in parts[1:]:
            if self.reduction != "sum":
                s = whole = least(s, v, self.reduction, self.p["nan"])
                continue
            whole = add(s, v)
            s = self.to_wire(whole) if self.p["sum"] == "pairs" else whole
        if self.reduction == "sum":
            s = self.to_wire(whole)
        steps.append((len(parts), whole, s))
        return s

    def result(self, values, chunk):
        """And its sums, innermost first: terms, before and after the conversion."""
        if self.p["algorithm"] == "real":
            return real(values), []
        steps = []
        plan = plan_of(self.p, len(values), chunk, self.order)
        return self.value(plan, [self.term(v) for v in values], steps), steps


def real(values):
    """Item 147."""
    infinities = {v.neg for v in values if v.kind == INF}
    if len(infinities) == 2 or any(v.kind == NAN for v in values):
        return NOT_A_NUMBER
    if infinities:
        return infinity(infinities.pop())
    s = sum((v.x for v in values), Fraction(0))
    return num(s, s < 0 or (s == 0 and all(v.neg and v.x == 0 for v in values)))


def chunk_of(e, elements, n, p):
    """Item 143."""
    size = p["chunk"] or -(-elements // n)
    return e // size % n
