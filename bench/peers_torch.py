# SPDX-License-Identifier: Apache-2.0
"""How fast PyTorch's attention and routing are beside ng_attention and ng_route: one thread each, on the CPU.

    peers_torch.py LIBRARY [--quick] [--filter REGEX] [--repetitions N] [--seconds S] [--json FILE]

Before a pair is timed both results are held to bounds (attention: Attention.differs; routing: those of
tests/opinion/torch_routing.py); what is outside is REFUSED, gets no time, and the exit status is 1. 77: torch or numpy
is missing (Debian: python3-torch, python3-numpy).
"""
import ctypes as C
import os
import re
import sys

try:
    import numpy as np
    import torch
except ImportError as why:
    print(f"skipped: {why}")
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "opinion"))
import torch_routing as routing  # noqa: E402
import judge_attention as ja  # noqa: E402  found by ours, as torch_routing is
import race  # noqa: E402

BF16 = torch.bfloat16
UNIT = 2.0**-9  # half a unit in the last place of bf16, of a significand of 1
TOKENS = 4096


class Pair:
    """Calls by name, ours first, "torch" last; `work`: what a call does, FLOP or tokens. `differs` has each side's
    distance as a share of its bound."""

    def __init__(self, name, unit, work, calls, differs):
        self.name, self.unit, self.work, self.calls, self.differs = name, unit, work, calls, differs
        self.times = {}  # race()'s


# ---- Attention. ----

def theirs(q, k, v, causal):
    """PyTorch 1.13 has it by another name, and returns the weights too. Told `is_causal` it makes a mask in every call,
    which takes half as long as all the rest; here it gets one that is there already."""
    f = torch.nn.functional
    if hasattr(f, "scaled_dot_product_attention"):
        return lambda: f.scaled_dot_product_attention(q, k, v, is_causal=causal)
    n = k.shape[2]
    mask = torch.full((n, n), -torch.inf).triu(1).to(BF16) if causal else None
    return lambda: f._scaled_dot_product_attention(q, k, v, mask)[0]


class Attention:
    def __init__(self, ours, queries, keys, heads, d, causal):
        gen = torch.Generator().manual_seed(1)
        self.q, self.k, self.v = (torch.randn(1, h, n, d, generator=gen).to(BF16)
                                  for h, n in ((heads, queries), (1, keys), (1, keys)))
        self.ours, self.causal, self.scale = ours, causal, d**-0.5
        self.flop = 4 * d * heads * (queries * (queries + 1) / 2 if causal else queries * keys)
        self.results = {}

    def tensor(self, t):
        return self.ours.tensor("bf16", t.view(torch.int16).numpy(), tuple(t.shape))

    def mine(self, schedule):
        c = self.ours.lib.c
        out = torch.zeros(self.q.shape, dtype=BF16)
        op = ja.CAttention(size=C.sizeof(ja.CAttention), profile=c.ng_profile_find(b"trn2"),
                           schedule=c.ng_attention_find(schedule.encode()), causal=self.causal,
                           scale=int(np.float32(self.scale).view(np.uint32)))
        tensors = [self.tensor(t) for t in (self.q, self.k, self.v, out)]
        self.results[schedule] = out

        def call():
            self.ours.done(c.ng_attention(self.ours.ctx, C.byref(op), *map(C.byref, tensors), None))

        return call

    def torch(self):
        # One query of eight heads over the same keys is eight queries of one head: nothing is copied.
        q = self.q if self.q.shape[1] == 1 else self.q.transpose(1, 2)
        attend = theirs(q, self.k, self.v, self.causal)

        def call():
            self.results["torch"] = attend()

        return call

    def bounds(self, rows):
        """FP64's result of some rows, and how far PyTorch and ours may be from it.

        Let u be half a unit of bf16. PyTorch stores in bf16: q and k, each scaled by d^-1/4, which moves a score by
        at most (2u + u^2) sum|q k| scale; the score, u of it (its sum is FP32's, its mask moves nothing); the
        probabilities, u; the output, u. All scores of a row within D of the true ones means probabilities within
        a factor of exp(2D). Ours stores scores in FP32 and only P and the output in bf16, so D is FP32's; where the
        schedule scales q (decode), it stores q: u sum|q k| scale. P is not normalised yet, and its sum has P's
        roundings or not: two u. FP32 sums of n terms add n 2^-24 of the sum of magnitudes, in both.
        """
        q, k, v = (t[0].double() for t in (self.q, self.k[:, :1], self.v[:, :1]))
        q, k, v = q.reshape(-1, q.shape[-1])[rows], k[0], v[0]
        score, size = q @ k.T * self.scale, q.abs() @ k.abs().T * self.scale
        hidden = torch.zeros_like(score, dtype=torch.bool)
        if self.causal:
            hidden = torch.arange(len(k)) > rows.unsqueeze(1)
        p = torch.softmax(score.masked_fill(hidden, -torch.inf), dim=1)
        value, weight = p @ v, p @ v.abs()

        def bound(d, roundings):
            d = torch.where(hidden, torch.zeros_like(d), d).max(1, keepdim=True).values
            inner = (torch.exp(2 * d) * (1 + UNIT)**roundings * (1 + 2 * sums) - 1) * weight
            return inner * (1 + UNIT) + value.abs() * UNIT

        sums = len(k) * 2.0**-24
        fp32 = size * q.shape[1] * 2.0**-23 + score.abs() * 2.0**-22
        loose = fp32 + size * (2 * UNIT + 4 * UNIT**2) + (score.abs() + size * 3 * UNIT) * UNIT
        return value, bound(loose, 1), bound(fp32, 2), bound(fp32 + size * UNIT, 2)

    def differs(self):
        """Distances of 64 rows from FP64's over their bounds. Of all elements none may be NaN, and none of ours farther
        from PyTorch's than the widest of the bounds twice."""
        total = self.q.shape[1] * self.q.shape[2]
        gen = torch.Generator().manual_seed(2)
        rows = torch.cat([torch.tensor([0, total - 1]), torch.randint(0, total, (62,), generator=gen)])
        value, loose, tight, scaled = self.bounds(rows)
        far = {}
        flat = {name: r.transpose(1, 2).reshape(total, -1) if r.shape != self.q.shape and r.shape[1] != 1 else
                r.reshape(total, -1) for name, r in self.results.items()}
        for name, r in flat.items():
            bound = loose if name == "torch" else scaled if name == "trn-decode" else tight
            share = ((r[rows].double() - value).abs() / bound).max()
            far[name] = float(share) if r.isfinite().all() else float("inf")
        for name, r in flat.items():
            apart = (r.double() - flat["torch"].double()).abs().max()
            if not apart <= 2 * loose.max():
                far[name] = float("inf")
        return far


def attention_pair(ours, name, schedules, shape):
    a = Attention(ours, **shape)
    calls = {schedule: a.mine(schedule) for schedule in schedules}
    calls["torch"] = a.torch()
    return Pair(name, "GFLOP/s", a.flop, calls, a.differs)


# ---- Routing. ----

def route_pair(router, name, experts, k):
    """Softmax over all experts, the k best, normalised."""
    logits = torch.randn(TOKENS, experts, generator=torch.Generator().manual_seed(3)) * 2
    op = dict(k=k, order="act_then_topk", act="softmax", score="f32", softmax_by="division", normalise=True,
              normalise_by="division", eps=0, eps_how="add", scale=0, groups=0, top_groups=0, group_top=0, mask="zero")
    call, indices, weights = router.call(op, logits, None)
    result = []

    def torchs():
        w, i = torch.topk(torch.softmax(logits, dim=-1), k, dim=-1)
        result[:] = [i, w / w.sum(dim=-1, keepdim=True)]

    def differs():
        mine = indices.long(), weights
        wrong = routing.Judge().judge(op, logits, None, "f32", mine, tuple(result))
        return {"ours": float("inf") if wrong else 0.0}

    return Pair(name, "us/token", TOKENS, dict(ours=call, torch=torchs), differs)


LONG = dict(queries=2048, keys=2048, heads=1)
SHAPES = [("attention causal S=2048 d=128", ("trn-prefill", "flash"), dict(LONG, d=128, causal=True)),
          ("attention full S=2048 d=128", ("trn-prefill", "flash"), dict(LONG, d=128, causal=False)),
          ("attention causal S=2048 d=64", ("trn-prefill", "flash"), dict(LONG, d=64, causal=True)),
          ("attention decode 8x8192 d=128", ("trn-prefill", "trn-decode", "flash"),
           dict(queries=1, keys=8192, heads=8, d=128, causal=False))]
ROUTES = [("route 32 experts top 4", 32, 4), ("route 128 experts top 8", 128, 8), ("route 256 experts top 8", 256, 8)]


def pairs(ours, router, quick, wanted):
    for name, schedules, shape in SHAPES:
        if quick and shape["queries"] > 1:
            shape = {**shape, "queries": 512, "keys": 512}
            name = name.replace("2048", "512")
        if wanted(name):
            yield attention_pair(ours, name, schedules, shape)
    for name, experts, k in ROUTES:
        if wanted(name):
            yield route_pair(router, name, experts, k)


# ---- Times. ----

def rate(pair, name):
    if name not in pair.times:
        return None
    seconds = pair.times[name][0]
    return seconds / pair.work * 1e6 if pair.unit == "us/token" else pair.work / seconds * 1e-9


def rows(pair, far):
    """A row for each of ours; `ratio` is how many times as fast it is as PyTorch."""
    for name in pair.calls:
        if name == "torch":
            continue
        mine, peer = rate(pair, name), rate(pair, "torch")
        refused = not (far[name] <= 1 and far.get("torch", 0) <= 1)
        ratio = spread = None
        if refused:
            print(f"{pair.name:<30} {name:<12} REFUSED: {far[name]:.3g} of its bound, torch {far.get('torch', 0):.3g}")
        else:
            (seconds, spread), (peers, peer_spread) = pair.times[name], pair.times["torch"]
            ratio, spread = peers / seconds, max(spread, peer_spread)
            print(f"{pair.name:<30} {name:<12} {pair.unit:<9} {mine:>9.4g} {peer:>9.4g} {ratio:>8.3f} {spread:>7.2f}",
                  flush=True)
        yield dict(name=pair.name, call=name, threads=1, unit=pair.unit, peer="torch", rate=mine, peer_rate=peer,
                   ratio=ratio, spread=spread, of_bound=far[name], peer_of_bound=far.get("torch"), same=not refused)


def build():
    """What PyTorch multiplies bf16 by."""
    config = torch.__config__.show()
    mkldnn = re.search(r"MKL-DNN v([0-9.]+)", config)
    capability = re.search(r"CPU capability usage: (\S+)", config)
    flags = open("/proc/cpuinfo", encoding="ascii", errors="replace").read() if os.path.exists("/proc/cpuinfo") else ""
    cpu = [f for f in ("avx512_bf16", "amx_bf16") if re.search(rf"\b{f}\b", flags)]
    return (f"mkldnn {mkldnn.group(1) if mkldnn and torch.backends.mkldnn.is_available() else 'none'}, "
            f"its own loops {capability.group(1) if capability else 'unknown'}; "
            f"the CPU's bf16: {' '.join(cpu) or 'none'}")


def multiplies_by():
    """Whether mkldnn takes a product of bf16, and by which code: it says so itself when asked to be verbose."""
    if not torch.backends.mkldnn.is_available():
        return "no code of mkldnn"
    sys.stdout.flush()
    keep, (reader, writer) = os.dup(1), os.pipe()
    a = torch.ones(1, 64, 64, dtype=BF16)
    try:
        os.dup2(writer, 1)
        with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
            torch.bmm(a, a)
        C.CDLL(None).fflush(None)
    finally:
        os.dup2(keep, 1)
        os.close(keep)
        os.close(writer)
    text = os.fdopen(reader).read()
    found = re.search(r"exec,cpu,(matmul|inner_product),([^,]+)", text)
    return f"mkldnn's {found.group(2)}" if found else "no code of mkldnn"


def main():
    args = race.options(__doc__, "512 queries and keys for 2048", "attention causal S=2048 d=128")
    torch.set_num_threads(1)
    router = routing.Router(args.library)
    ja.bind(router.ours.lib)
    print(f"torch {torch.__version__}, numpy {np.__version__}; {build()}; a product of bf16 is {multiplies_by()}")
    print(f"one thread, median of {args.repetitions}; ratio: torch's time / ours")
    print(f"{'what':<30} {'ours':<12} {'unit':<9} {'ours':>9} {'torch':>9} {'ratio':>8} {'spread':>7}")
    out = []
    with torch.no_grad():
        for pair in pairs(router.ours, router, args.quick, lambda name: re.search(args.filter, name)):
            for call in pair.calls.values():
                call()  # the first makes threads, tables and code
            first = {name: race.timed(call, 1) for name, call in pair.calls.items()}
            far = pair.differs()
            if all(f <= 1 for f in far.values()):
                pair.times = race.race(pair.calls, first, args)
            out += rows(pair, far)
    return race.finish(out, args.json)


if __name__ == "__main__":
    sys.exit(main())
