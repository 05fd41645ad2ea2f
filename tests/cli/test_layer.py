# SPDX-License-Identifier: Apache-2.0
"""ngauge run layer from the outside.

    test_layer.py PATH/TO/ngauge [--large | --print]

 * Weights made up are those of docs/numerics.md 11.11 item 137: every element of every tensor, by
   philox written down again here.
 * The layer is the model's: its output is that of a plain layer in Python's doubles, written from
   gpt_oss/torch/model.py's structure, within what the roundings can do; and a layer that is wired
   in another way (halves of gate_up swapped, no sinks, ...) is far outside of that.
 * Digests of every stage are the published ones, and the same for every ISA and thread count.

--large: the published digests of the real preset only, some seconds and 2 GiB each. --print: the
rows of src/cli/layers.inc, the small ones and those of one token by the reference (minutes).
Exit status 1: something failed.
"""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

NGAUGE = ""
CHECKS, FAILED = [0], []

HIDDEN, INNER, HEADS, KV_HEADS, DIM, EXPERTS, TOP, WINDOW, TOKENS = 160, 96, 4, 2, 64, 8, 4, 4, 9
QUERIES, KEYS, BLOCK = HEADS * DIM, KV_HEADS * DIM, 32

# Name, dtype, shape, how it is made up: in the order that numbers the tensors.
TENSORS = [
    ("input_layernorm.weight", "BF16", [HIDDEN], "gain"),
    ("self_attn.q_proj.weight", "BF16", [QUERIES, HIDDEN], "matrix"),
    ("self_attn.q_proj.bias", "BF16", [QUERIES], "bias"),
    ("self_attn.k_proj.weight", "BF16", [KEYS, HIDDEN], "matrix"),
    ("self_attn.k_proj.bias", "BF16", [KEYS], "bias"),
    ("self_attn.v_proj.weight", "BF16", [KEYS, HIDDEN], "matrix"),
    ("self_attn.v_proj.bias", "BF16", [KEYS], "bias"),
    ("self_attn.sinks", "BF16", [HEADS], "sink"),
    ("self_attn.o_proj.weight", "BF16", [HIDDEN, QUERIES], "matrix"),
    ("self_attn.o_proj.bias", "BF16", [HIDDEN], "bias"),
    ("post_attention_layernorm.weight", "BF16", [HIDDEN], "gain"),
    ("mlp.router.weight", "BF16", [EXPERTS, HIDDEN], "matrix"),
    ("mlp.router.bias", "BF16", [EXPERTS], "bias"),
    ("mlp.experts.gate_up_proj_blocks", "U8", [EXPERTS, 2 * INNER, HIDDEN // BLOCK, 16], "codes"),
    ("mlp.experts.gate_up_proj_scales", "U8", [EXPERTS, 2 * INNER, HIDDEN // BLOCK], "scales"),
    ("mlp.experts.gate_up_proj_bias", "BF16", [EXPERTS, 2 * INNER], "bias"),
    ("mlp.experts.down_proj_blocks", "U8", [EXPERTS, HIDDEN, INNER // BLOCK, 16], "codes"),
    ("mlp.experts.down_proj_scales", "U8", [EXPERTS, HIDDEN, INNER // BLOCK], "scales"),
    ("mlp.experts.down_proj_bias", "BF16", [EXPERTS, HIDDEN], "bias"),
]

# What layers.inc publishes: preset, profile, schedule, layer, tokens.
SMALL = [("gpt-oss-tiny", "trn3", "trn-prefill", 0, 16), ("gpt-oss-tiny", "trn3", "trn-prefill", 1, 16),
         ("gpt-oss-tiny", "trn2", "trn-prefill", 0, 16), ("gpt-oss-tiny", "fma-f32", "flash", 1, 16)]
LARGE = [("gpt-oss-20b", "trn3", "trn-prefill", 0, 1), ("gpt-oss-20b", "trn3", "trn-prefill", 0, 4),
         ("gpt-oss-20b", "trn2", "trn-prefill", 1, 4), ("gpt-oss-20b", "trn3", "trn-prefill", 0, 160)]


def check(ok, what):
    CHECKS[0] += 1
    if not ok:
        FAILED.append(what)
        print("FAIL " + what)
    return ok


def run(*arguments, env=None):
    return subprocess.run([NGAUGE, "run", "layer", *arguments], capture_output=True, text=True, env=env)


# ---- Files. ----

def number(bits):
    """A bf16 code as a double."""
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def bf16(x):
    """The bf16 code nearest to a double, ties to even: x has at most 24 significant bits."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def read_safetensors(path):
    """Name: (dtype, shape, integers)."""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        begin, end = (8 + n + v for v in t["data_offsets"])
        raw = data[begin:end]
        out[name] = t["dtype"], t["shape"], raw if t["dtype"] == "U8" else \
            struct.unpack("<%dH" % (len(raw) // 2), raw)
    return out


def read_npy(path):
    with open(path, "rb") as f:
        data = f.read()
    begin = 10 + struct.unpack("<H", data[8:10])[0]
    return struct.unpack("<%dH" % ((len(data) - begin) // 2), data[begin:])


# ---- Weights: item 137. ----

def philox(key, block):
    """One block of philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011)."""
    c, k = [block & 0xFFFFFFFF, block >> 32, 0, 0], list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def words(seed, layer, tensor, n):
    """The first n of a tensor; they begin with a block."""
    key, first = (seed & 0xFFFFFFFF, seed >> 32), (32 * layer + tensor) << 40
    return [w for b in range((n + 3) // 4) for w in philox(key, first // 4 + b)][:n]


def ceil_log4(numerator, denominator=1):
    e = 0
    while 4 ** e * denominator < numerator:
        e += 1
    return e


def made_up(seed, layer, tensor, shape, kind):
    n = math.prod(shape)
    if kind in ("codes", "scales"):
        drawn = [w >> s & 255 for w in words(seed, layer, tensor, (n + 3) // 4) for s in (0, 8, 16, 24)][:n]
        if kind == "codes":
            return drawn
        scale = 127 - ceil_log4(137 * shape[2] * BLOCK, 16)
        return [scale + (b & 1) + (b >> 1 & 1) - 1 for b in drawn]
    e = {"matrix": -ceil_log4(21845 * shape[-1]), "bias": -13, "sink": -7, "input": -7, "gain": -11}[kind]
    sums = [sum(w.to_bytes(4, "little")) - 510 for w in words(seed, layer, tensor, n)]
    return [bf16((kind == "gain") + u * 2.0 ** e) for u in sums]


def check_weights(path, seed, layer):
    tensors = read_safetensors(path)
    prefix = "model.layers.%d." % layer
    check(sorted(tensors) == sorted(prefix + t[0] for t in TENSORS), "names: %s" % sorted(tensors))
    for i, (name, dtype, shape, kind) in enumerate(TENSORS):
        got = tensors.get(prefix + name)
        if check(got and got[:2] == (dtype, shape), "%s is %s" % (name, got and got[:2])):
            check(list(got[2]) == made_up(seed, layer, i, shape, kind), "elements of " + name)
    return {name: tensors[prefix + name][2] for name, _, _, _ in TENSORS}


# ---- The layer in doubles. ----

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def matrix(codes, columns):
    values = [number(c) for c in codes]
    return [values[i:i + columns] for i in range(0, len(values), columns)]


def mxfp4(blocks, scales, columns):
    rows = []
    for i in range(0, len(blocks), columns // 2):
        row = []
        for k, byte in enumerate(blocks[i:i + columns // 2]):
            s = 2.0 ** (scales[(i + k) // 16] - 127)
            row += [math.copysign(s, -(c >> 3)) * E2M1[c & 7] for c in (byte & 15, byte >> 4)]
        rows.append(row)
    return rows


def times(m, x, bias):
    return [sum(map(float.__mul__, row, x)) + b for row, b in zip(m, bias)]


def rms(x, gain):
    r = 1 / math.sqrt(sum(v * v for v in x) / len(x) + 1e-5)
    return [v * r * g for v, g in zip(x, gain)]


def frequencies():
    low, high = (DIM / 2 * math.log(4096 / (2 * math.pi * b)) / math.log(150000) for b in (32, 1))
    f = [150000 ** (-2 * e / DIM) for e in range(DIM // 2)]
    w = [1 - min(1, max(0, (e - low) / (high - low))) for e in range(DIM // 2)]
    return [a * b + a * (1 - b) / 32 for a, b in zip(f, w)]


def turn(x, position, pairs):
    out = list(x)
    for head in range(0, len(x), DIM):
        for e, f in enumerate(frequencies()):
            i, k = (head + e, head + e + DIM // 2) if pairs == "halves" else (head + 2 * e, head + 2 * e + 1)
            m = 1 + math.log(32) / 10
            c, s = m * math.cos(position * f), m * math.sin(position * f)
            out[i], out[k] = x[i] * c - x[k] * s, x[k] * c + x[i] * s
    return out


def attend(q, k, v, sinks, window, how):
    out = []
    for t in range(len(q)):
        row = []
        for h in range(HEADS):
            head = h * DIM
            kv = (h * KV_HEADS // HEADS if how != "heads in turn" else h % KV_HEADS) * DIM
            seen = range(max(0, t - window + 1) if window else 0, t + 1)
            s = [sum(q[t][head + e] * k[j][kv + e] for e in range(DIM)) / 8 for j in seen]
            most = max(s + [sinks[h]])
            p = [math.exp(x - most) for x in s]
            total = sum(p) + (0 if how == "no sinks" else math.exp(sinks[h] - most))
            row += [sum(a * v[j][kv + e] for a, j in zip(p, seen)) / total for e in range(DIM)]
        out.append(row)
    return out


def expert(w, e, x, how):
    rows = times(w["gate_up"][e], x, w["gate_up_bias"][e])
    g, u = (rows[::2], rows[1::2]) if how != "up first" else (rows[1::2], rows[::2])
    if how == "halves of gate_up":
        g, u = rows[:INNER], rows[INNER:]
    g, u = [min(v, 7) for v in g], [max(-7, min(v, 7)) for v in u]
    m = [a / (1 + math.exp(-1.702 * a)) * (b + 1) for a, b in zip(g, u)]
    return times(w["down"][e], m, w["down_bias"][e])


def experts_of(w, x, how):
    logits = times(w["router"], x, w["router_bias"])
    best = sorted(range(EXPERTS), key=lambda e: -logits[e])[:TOP]
    share = [math.exp(logits[e] - logits[best[0]]) for e in best]
    total = sum(share) if how != "softmax of all" else sum(math.exp(v - logits[best[0]]) for v in logits)
    out = [0.0] * HIDDEN
    for e, s in zip(best, share):
        out = [o + s / total * v for o, v in zip(out, expert(w, e, x, how))]
    return out


def unpacked(tensors):
    def rows(name, columns):
        return matrix(tensors[name], columns)

    def stacked(name, columns, n):
        m = mxfp4(tensors[name + "_blocks"], tensors[name + "_scales"], columns)
        return [m[e * n:(e + 1) * n] for e in range(EXPERTS)]

    experts = "mlp.experts."
    w = {p: (rows("self_attn.%s_proj.weight" % p, QUERIES if p == "o" else HIDDEN),
             rows("self_attn.%s_proj.bias" % p, HIDDEN if p == "o" else QUERIES if p == "q" else KEYS)[0])
         for p in "qkvo"}
    w["sinks"] = rows("self_attn.sinks", HEADS)[0]
    w["norm"] = [rows(n + ".weight", HIDDEN)[0] for n in ("input_layernorm", "post_attention_layernorm")]
    w["router"], w["router_bias"] = rows("mlp.router.weight", HIDDEN), rows("mlp.router.bias", EXPERTS)[0]
    w["gate_up"], w["down"] = stacked(experts + "gate_up_proj", HIDDEN, 2 * INNER), stacked(
        experts + "down_proj", INNER, HIDDEN)
    w["gate_up_bias"], w["down_bias"] = rows(experts + "gate_up_proj_bias", 2 * INNER), rows(
        experts + "down_proj_bias", HIDDEN)
    return w


def plain_layer(w, x, window, how=None):
    """What the layer adds to x. `how`: one way to wire it wrongly."""
    n = [rms(t, w["norm"][how == "norms swapped"]) for t in x]
    q, k, v = ([times(w[p][0], t, w[p][1]) for t in n] for p in "qkv")
    pairs = "adjacent" if how == "adjacent pairs" else "halves"
    if how != "no rope":
        q, k = [turn(t, i, pairs) for i, t in enumerate(q)], [turn(t, i, pairs) for i, t in enumerate(k)]
    a = attend(q, k, v, w["sinks"], window if how != "another window" else 0 if window else WINDOW, how)
    o = [times(w["o"][0], t, w["o"][1]) for t in a]
    r = [[s + t for s, t in zip(xs, os)] for xs, os in zip(x, o)]
    n = [rms(t, w["norm"][how != "norms swapped"]) for t in r]
    y = [experts_of(w, t, how) for t in n]
    return [s + t for os, ys in zip(o, y) for s, t in zip(os, ys)]


def apart(a, b):
    """The root of the mean square of a - b, over that of b."""
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b))


WRONG = ["norms swapped", "adjacent pairs", "no rope", "another window", "heads in turn", "no sinks", "up first",
         "halves of gate_up", "softmax of all"]


def check_wiring(home):
    seed = 5 + (7 << 32)
    for layer, profile, limit in ((0, "trn2", 0.01), (1, "trn2", 0.01), (0, "trn3", 0.05)):
        weights, out = os.path.join(home, "w.safetensors"), os.path.join(home, "y.npy")
        common = ("--preset", "gpt-oss-tiny", "--layer", str(layer), "--tokens", str(TOKENS), "--profile", profile,
                  "--seed", str(seed))
        made = run(*common, "--write-weights", weights, "-o", out)
        if not check(made.returncode == 0, "run layer: " + made.stderr):
            return
        tensors = check_weights(weights, seed, layer)
        got = [number(c) for c in read_npy(out)]
        # the same from the file as a checkpoint
        read = run(*common, "--weights", weights, "-o", os.path.join(home, "z.npy"))
        check(read.returncode == 0 and read_npy(os.path.join(home, "z.npy")) == read_npy(out), "--weights")
        codes = made_up(seed, layer, 19, [TOKENS, HIDDEN], "input")
        x = matrix(codes, HIDDEN)
        added = [g - v for g, v in zip(got, (v for row in x for v in row))]
        w, window = unpacked(tensors), 0 if layer % 2 else WINDOW
        error = apart(added, plain_layer(w, x, window))
        check(error < limit, "layer %d on %s is %.4f away from doubles" % (layer, profile, error))
        print("layer %d on %s: %.4f away from doubles" % (layer, profile, error))
        for how in WRONG if profile == "trn2" and window else []:
            error = apart(added, plain_layer(w, x, window, how))
            check(error > 3 * limit, "'%s' is only %.4f away: not noticed" % (how, error))


# ---- Digests. ----

def options(case, *more):
    preset, profile, schedule, layer, tokens = case
    return ("--preset", preset, "--profile", profile, "--schedule", schedule, "--layer", str(layer), "--tokens",
            str(tokens), *more)


def digests(done):
    return [s["digest"] for s in json.loads(done.stdout)["stages"]] if done.returncode in (0, 1) else done.stderr


def check_digests(cases, ways):
    for case in cases:
        seen = set()
        for way in ways:
            done = run(*options(case, "--check", "--json", *way))
            check(done.returncode == 0, "%s %s: exit %d %s" % (case, way, done.returncode, done.stderr))
            seen.add(str(digests(done)))
        check(len(seen) == 1, "%s: %s" % (case, seen))


def print_rows():
    for case in SMALL + LARGE:
        done = run(*options(case, "--json", "--threads", "0", *(("--isa", "ref") if case in SMALL or case[4] == 1 else ())))
        preset, profile, schedule, layer, tokens = case
        print('{ "%s",\n  "%s",\n  "%s",\n  %d,\n  %d,\n  0,\n  { %s } },' % (
            preset, profile, schedule, layer, tokens, ",\n    ".join('"%s"' % d for d in digests(done))))


def main():
    global NGAUGE
    NGAUGE = sys.argv[1]
    if "--print" in sys.argv:
        print_rows()
        return 0
    if "--large" in sys.argv:
        check_digests(LARGE, [("--threads", "0")])
    else:
        isas = [line.split()[0] for line in subprocess.run([NGAUGE, "kernels"], capture_output=True, text=True).stdout
                .splitlines() if line[:1].isalpha() and "not on this CPU" not in line]
        isas = [i for i in isas if i in ("avx2", "avx512", "avx512bf16")]
        check_digests(SMALL, [("--isa", "ref"), ("--isa", "ref", "--threads", "2"), ("--threads", "2"), ()] +
                      [("--isa", i) for i in isas])
        # another seed has other digests, and none are published
        check(digests(run(*options(SMALL[0], "--json"))) != digests(run(*options(SMALL[0], "--seed", "1", "--json"))),
              "seed 1 has the digests of seed 0")
        with tempfile.TemporaryDirectory() as home:
            check_wiring(home)
    print("layer: %d checks, %d failed" % (CHECKS[0], len(FAILED)))
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
