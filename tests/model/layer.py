# SPDX-License-Identifier: Apache-2.0
"""An independent model of docs/numerics.md 11.11: RMSNorm, rotary embedding, sums, angles.

Written from that page alone, on the operations of moe.py; item numbers are the page's. Angles are
real numbers to 60 digits, rounded where the page says so.
"""

import decimal
from fractions import Fraction

from model import FINITE, INF, NAN, NOT_A_NUMBER, RNE, Num, decode, encode, fp32, infinity, num
from moe import CONTEXT, ONE, ZERO, add, div, mul, negated, to


def rsqrt(table, v):
    """Section 8: `cr`, or a table of 65536 bf16 codes."""
    if table is not None:
        return decode("bf16", table[encode("bf16", v, RNE)])
    if v.kind == NAN or (v.neg and (v.kind == INF or v.x != 0)):
        return NOT_A_NUMBER
    if v.kind == INF:
        return ZERO
    if v.x == 0:
        return infinity(v.neg)
    with decimal.localcontext(CONTEXT):
        square = decimal.Decimal(v.x.denominator) / decimal.Decimal(v.x.numerator)
        return fp32(num(Fraction(square.sqrt())))


def rms_norm(row, gain, eps, table=None):
    """Item 130."""
    s = mul(row[0], row[0])
    for x in row[1:]:
        s = add(s, mul(x, x))
    t = add(mul(s, div(ONE, num(Fraction(len(row))))), eps)
    r = rsqrt(table, t)
    y = [mul(x, r) for x in row]
    return [mul(v, g) for v, g in zip(y, gain)] if gain is not None else y


def rope(row, cosine, sine, pairs, product):
    """Item 133: all heads of one token."""
    d, out = 2 * len(cosine), list(row)
    for head in range(0, len(row), d):
        for e, (c, s) in enumerate(zip(cosine, sine)):
            i, k = (head + e, head + e + d // 2) if pairs == "halves" else (head + 2 * e, head + 2 * e + 1)
            a, b = row[i], row[k]
            ac, bs, bc, as_ = (to(product or "f32", mul(x, y)) for x, y in ((a, c), (b, s), (b, c), (a, s)))
            out[i], out[k] = add(ac, negated(bs)), add(bc, as_)
    return out


# ---- Item 134. ----

DIGITS = decimal.Context(prec=60)
PI = decimal.Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
BASE, HEAD, FACTOR, CONTEXT_LENGTH, FAST, SLOW = 150000, 64, 32, 4096, 32, 1


def rounded(x):
    """RN of a Decimal, as a Fraction."""
    return fp32(num(Fraction(x))).x


def frequencies():
    """phi of each pair."""
    with decimal.localcontext(DIGITS) as c:
        ln_base = decimal.Decimal(BASE).ln()

        def turns(beta):
            return (CONTEXT_LENGTH / (2 * PI * beta)).ln() / ln_base * (HEAD // 2)

        low, high = turns(FAST), turns(SLOW)
        out = []
        for e in range(HEAD // 2):
            f = c.exp(ln_base * (-2 * e) / HEAD)
            w = 1 - min(decimal.Decimal(1), max(decimal.Decimal(0), (e - low) / (high - low)))
            out.append(rounded(f * w + f * (1 - w) / FACTOR))
    return out


def cos_sin(theta):
    """The real cosine and sine of a Fraction, to some 50 digits."""
    with decimal.localcontext(DIGITS):
        x = decimal.Decimal(theta.numerator) / decimal.Decimal(theta.denominator)
        x -= 2 * PI * (x / (2 * PI)).to_integral_value()
        cosine, sine, term, n = decimal.Decimal(0), decimal.Decimal(0), decimal.Decimal(1), 0
        while abs(term) > decimal.Decimal("1e-55"):
            if n % 2:
                sine += -term if n % 4 == 3 else term
            else:
                cosine += -term if n % 4 == 2 else term
            n += 1
            term = term * x / n
        return cosine, sine


def attention_factor():
    with decimal.localcontext(DIGITS):
        return rounded(1 + decimal.Decimal(FACTOR).ln() / 10)


def angle_codes(position, phi, factor):
    """The bf16 codes of c and s."""
    theta = rounded(Fraction(position) * phi)
    return tuple(encode("bf16", fp32(num(rounded(v) * factor)), RNE) for v in cos_sin(theta))


def self_check():
    assert FINITE == num(Fraction(1)).kind and isinstance(ONE, Num)
    assert encode("f32", num(attention_factor()), RNE) == 0x3FAC5C86
    assert [encode("f32", v, RNE) for v in rms_norm([ONE, ONE], None, ZERO)] == [0x3F800000] * 2


self_check()
