#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Does ngauge collective find out in which order a library adds ranks up? Libraries are made up: any
order of sums of two terms or more, or a collective with other settings, in any format that can be
asked. What it gives for the buffers that `ask` wrote, `read` must explain on every element, by an
order that gives other data the same sums too.

    test_collective.py PATH/TO/ngauge [--cases N] [--seed S]

Exit status 1: something failed. Python's standard library only.
"""
import argparse
import collections
import os
import random
import shutil
import struct
import sys
import tempfile

from test_any_rule import Tool

RANKS = {"bf16": [2, 3, 4, 5, 6, 7, 8, 12, 16], "f16": [2, 3, 4, 5, 6, 8, 12, 16], "f32": [2, 3, 4, 5, 8, 12], "e5m2": [2, 3, 4]}
PRESETS = ["trn-ring", "trn-kanga-ring", "trn-mesh", "trn-rdh", "trn-single-step", "nccl-ring", "nccl-symmetric", "tree"]
OTHERS = 64  # elements of other data, in each chunk


def an_order(rng, n):
    """Ranks in any order, in sums of any shape; with a + they go round with the chunks."""
    sign = rng.choice(["", "+"])
    terms = [sign + str(r) for r in rng.sample(range(n), n)]
    while len(terms) > 2 and rng.random() < 0.9:
        k = rng.randint(2, min(4, len(terms) - 1))
        at = rng.randint(0, len(terms) - k)
        terms[at:at + k] = ["(%s)" % " ".join(terms[at:at + k])]
    return " ".join(terms)


def a_library(rng, n, window):
    """Options of `collective run`, and whether its chunks are shorter than a question is long."""
    if rng.random() < 0.5:
        options = ["--collective", "tree", "--set", "algorithm=explicit", "--order", an_order(rng, n)]
    else:
        options = ["--collective", rng.choice(PRESETS)]
        if options[1] in ("trn-mesh", "trn-rdh"):
            options += ["--set", "chip=%d" % rng.choice([c for c in (1, 2, 4) if n % c == 0])]
    for setting, chance in (("start=owner", 0.3), ("sum=pairs", 0.2), ("wire=f32", 0.2), ("received=last", 0.2)):
        if rng.random() < chance:
            options += ["--set", setting]
    if rng.random() < 0.4:
        options += ["--set", "chunk=%d" % rng.choice([window, window + 5, 2 * window, 3 * window + 1])]
    return options


def other_data(rng, path, fmt, n, elements):
    """Buffers of numbers that are no questions, as a raw file."""
    with open(path, "wb") as file:
        for _ in range(n * elements):
            sign = rng.getrandbits(1)
            if fmt == "f32":
                file.write(struct.pack("<I", sign << 31 | 0x3F000000 + rng.getrandbits(25)))
            elif fmt in ("bf16", "f16"):
                base = 0x3F00 if fmt == "bf16" else 0x3800
                file.write(struct.pack("<H", sign << 15 | base + rng.getrandbits(9 if fmt == "bf16" else 11)))
            else:
                file.write(struct.pack("<B", sign << 7 | 0x38 + rng.getrandbits(3)))
    return "%s=%s:%dx%d" % (path, fmt, n, elements)


def one(tool, rng, home, count):
    """A made-up library; what is wrong, or None."""
    fmt = rng.choice(list(RANKS))
    n = rng.choice(RANKS[fmt])
    window = n * (n - 1) // 2 * (1 if fmt == "f32" else 2)
    elements = window * n * rng.choice([1, 1, 2])
    x, d = os.path.join(home, "x.npy"), os.path.join(home, "d.npy")
    library = a_library(rng, n, window)
    what = "%d ranks, %s, %d elements: %s" % (n, fmt, elements, " ".join(library))
    done = tool.run("collective", "ask", "--ranks", str(n), "--format", fmt, "--elements", str(elements), "-o", x, "-q")
    if done.returncode:
        return "%s: ask: %s" % (what, done.stderr)
    done = tool.run("collective", "run", *library, "--x", x + "=" + fmt, "--to", fmt, "-o", d, "-q")
    if done.returncode:
        count["refused"] += 1  # kanga_ring of an odd number, and the like
        return None
    found = tool.json("collective", "read", "--x", x + "=" + fmt, "--dump", d + "=" + fmt)
    last = found["stretches"][-1]
    if found["explained"] != elements and not (last["order"] is None and elements - last["first"] < window):
        return "%s: %d explained: %s" % (what, found["explained"], found["stretches"][:4])
    count["libraries"] += 1
    count["orders"] += len(found["stretches"])
    if not found["order"] and not found["also"]:
        return None
    count["as a whole"] += 1
    # what was found is the library on other data
    by = ["--collective", "tree", "--set", "algorithm=explicit"]
    if not found["order"] or found["also"] or found["chunk"] != found["least_chunk"]:
        return None  # some elements are of either of two chunks
    by += ["--set", "chunk=%d" % found["chunk"], "--order", found["order"]]
    by += ["--set", "wire=f32"] if found["wide"] else []
    files = []
    spec = other_data(rng, os.path.join(home, "o.bin"), fmt, n, elements)
    for options in (library, by):
        files.append(os.path.join(home, "o%d.npy" % len(files)))
        done = tool.run("collective", "run", *options, "--x", spec, "--to", fmt, "-o", files[-1], "-q")
        if done.returncode:
            return "%s: other data: %s" % (what, done.stderr)
    with open(files[0], "rb") as a, open(files[1], "rb") as b:
        if a.read() != b.read():
            return "%s: other data are not as %s" % (what, " ".join(by))
    count["other data"] += 1
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, tool, count = random.Random(options.seed), Tool(options.tool), collections.Counter()
    failed = 0
    home = tempfile.mkdtemp(prefix="ngauge-collective-")
    for _ in range(options.cases):
        why = one(tool, rng, home, count)
        if why:
            failed += 1
            print("FAILED " + why, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    print("collective: %d libraries, %d orders found, %d as a whole, %d of them held against other data, %d failed" % (
        count["libraries"], count["orders"], count["as a whole"], count["other data"], failed))
    return 1 if failed or not count["other data"] else 0


if __name__ == "__main__":
    sys.exit(main())
