#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Does ngauge verify name whatever rule was changed? Multiplies of any profile, format and size,
computed under one other value of one parameter and read under the profile's own: where a bit
differs, the changed parameter must be among what explains every difference and breaks nothing.

    test_any_rule.py PATH/TO/ngauge [--cases N] [--seed S]

Exit status 1: something failed. Python's standard library only.
"""
import collections
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

# What explain does not try: see is_no_question() and add_near() of src/cli/neighbours.c.
NOT_TRIED = {"family", "psum", "psum_round", "nan_f32", "nan_f16", "k_instr", "exact_group", "lanes"}
NUMBERS = {
    "chain_rows": lambda v: [8, 16, 32, 64, 128], "rows": lambda v: [32, 64, 128],
    "acc_bits": lambda v: [v - 2, v - 1, v + 1, v + 2, 10, 12, 14],
    "frac": lambda v: [v - 2, v - 1, v + 1, v + 2, 10, 13, 24],
    "out_bits": lambda v: [v - 2, v - 1, v + 1, v + 2, 10, 13], "group": lambda v: [1, 2, 4, 8, 16, 32],
    "piece_adds": lambda v: [2, 4], "pieces": lambda v: [1, 2], "subgroups": lambda v: [1, 2],
    "sum_frac": lambda v: [v - 1, v + 1], "c_frac": lambda v: [v - 1, v + 1], "c_drop": lambda v: [0, 25],
    "promote_every": lambda v: [0, 4, 8], "floor_f32": lambda v: [-133, -132], "floor_f16": lambda v: [-21, -20],
}
# Codes of at most 8 bits that are about 1.
ABOUT_ONE = {"e4m3": (0x20, 0x58), "e4m3fn": (0x20, 0x58), "e5m2": (0x28, 0x58), "e3m4": (0x10, 0x70),
             "e4m3fnuz": (0x28, 0x60), "e5m2fnuz": (0x2C, 0x5C), "e2m3": (0, 0x20), "e3m2": (0, 0x20)}


class Tool:
    def __init__(self, path):
        self.path = os.path.abspath(path)

    def run(self, *arguments):
        return subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=300, check=False)

    def json(self, *arguments):
        return json.loads(self.run(*arguments, "--json").stdout)


def rules_of(tool):
    """Every rule of every built-in profile: formats from its text, values from its JSON."""
    rules = []
    for name in [p["name"] for p in tool.json("profile", "list")]:
        head = {}
        for line in tool.run("profile", "show", name).stdout.splitlines():
            if line.startswith("rule "):
                words = line.split()
                head[words[1]] = dict(w.split("=", 1) for w in words[2:])
        for r in tool.json("profile", "show", name)["rules"]:
            h = head[r["rule"]]
            rules.append({"profile": name, "rule": r["rule"], "mode": h["mode"], "block": int(h.get("block", 0)),
                          "a": h["a"].split(","), "b": h["b"].split(","), "same": h.get("same") == "yes",
                          "set": {k: v["value"] for k, v in r["parameters"].items()}})
    return rules


def codes(rng, fmt, n, spread):
    if fmt == "e2m1":
        return bytes(rng.randrange(256) for _ in range(n // 2))
    if fmt == "mxint8":
        return bytes(rng.randrange(256) for _ in range(n))
    if fmt in ABOUT_ONE:
        sign = 0x20 if fmt in ("e2m3", "e3m2") else 0x80
        return bytes(rng.randrange(*ABOUT_ONE[fmt]) | rng.choice((0, sign)) for _ in range(n))
    out = []
    for _ in range(n):
        x = rng.gauss(0, 1) * 2.0 ** rng.randint(-spread, spread)
        if fmt == "f16":
            out.append(struct.pack("<e", x))
            continue
        word = struct.unpack("<I", struct.pack("<f", x))[0]
        out.append(struct.pack("<H", word >> 16) if fmt == "bf16" else
                   struct.pack("<I", word & 0xFFFFE000 if fmt == "tf32" else word))
    return b"".join(out)


def draw(rng, rules, values, home):
    """A case, and one other value of one parameter of its rule; None where there is none."""
    r = rng.choice(rules)
    key = rng.choice([k for k in r["set"] if k not in NOT_TRIED])
    now = r["set"][key]
    if key in NUMBERS:
        other = NUMBERS[key](int(now) if now != "none" else 0)
    else:
        other = values[key].split()
    other = [str(v) for v in other if str(v) != now]
    a, b = rng.choice(r["a"]), rng.choice(r["b"])
    if r["same"] and a in r["b"]:
        b = a
    m, n = rng.choice([(8, 8), (16, 12), (4, 20)])
    k, spread = rng.choice([32, 64, 96, 128, 256, 384]), rng.choice([0, 1, 4])
    tensors = {}

    def put(name, fmt, rows, columns, data):
        with open(os.path.join(home, name), "wb") as file:
            file.write(data)
        tensors[name] = {"file": name, "format": fmt, "shape": [rows, columns]}
    put("a", a, m, k, codes(rng, a, m * k, spread))
    put("b", b, k, n, codes(rng, b, k * n, spread))
    if r["mode"] in ("mx", "nv"):
        block, fmt = r["block"] or 32, "e8m0" if r["mode"] == "mx" else "ue4m3"
        about = (122, 132) if fmt == "e8m0" else (0x28, 0x48)
        for name, lines, axis in (("a", m, 1), ("b", n, 0)):
            with open(os.path.join(home, name + "_scale"), "wb") as file:
                file.write(bytes(rng.randrange(*about) for _ in range(lines * k // block)))
            tensors[name]["scale"] = {"file": name + "_scale", "format": fmt, "block": block, "axis": axis}
    has_f16 = r["set"]["family"] == "fused" and r["set"].get("out_f16", "none") != "none"
    d = "f16" if has_f16 and rng.random() < 0.2 else "bf16" if rng.random() < 0.15 else "f32"
    if rng.random() < 0.4:
        c = "f16" if d == "f16" else "f32"
        put("c", c, m, n, codes(rng, c, m * n, 2))
    tensors["d"] = {"file": "d", "format": d, "shape": [m, n]}
    case = {"op": "gemm", "profile": r["profile"], "tensors": tensors}
    if r["mode"] == "double_row":
        case["double_row"] = True
    return (r, key, rng.choice(other), case) if other else None


def write(home, name, case):
    path = os.path.join(home, name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"schema": "ng.case/1", "cases": [case]}, file)
    return path


def judge(tool, home, drawn):
    """What became of it, and what is wrong, or None."""
    r, key, value, case = drawn
    told = {"name": r["profile"], "set": {f"{r['rule']}.{key}": value}}
    done = tool.run("run", write(home, "made.json", {**case, "profile": told}), "-o", os.path.join(home, "d"))
    if done.returncode:
        known = "inconsistent" in done.stderr or "never lets" in done.stderr
        return "refused", None if known else f"run: {done.returncode}: {done.stderr[:200]}"
    done = tool.run("verify", write(home, "read.json", case), "--json")
    if done.returncode == 0:
        return "equal", None
    if done.returncode != 1:
        return "differs", f"verify: {done.returncode}: {done.stderr[:200]}"
    found = json.loads(done.stdout)["cases"][0]["explain"]["findings"]
    certain = [f["rule"] for f in found if f["explains"] == f["of"] > 0 and not f["breaks"]]
    if any(c == f"{key}={value}" or c.startswith(f"{key}={value} ") for c in certain):
        return "differs", None
    best = [(f["rule"], f["explains"], f["of"], f["breaks"]) for f in found[:3]]
    return "differs", f"not named; certain: {certain[:4]}, best: {best}"


def take_numbers(arguments, options):
    """`--name N` of the command line into options; they are taken out of the arguments."""
    for name in options:
        if name in arguments:
            at = arguments.index(name)
            options[name] = int(arguments[at + 1])
            del arguments[at:at + 2]


def main():
    arguments = sys.argv[1:]
    options = {"--cases": 300, "--seed": 1}
    take_numbers(arguments, options)
    if len(arguments) != 1:
        print(__doc__)
        return 2
    tool = Tool(arguments[0])
    rules = rules_of(tool)
    values = {k["key"]: k["values"] for k in tool.json("profile", "keys")}
    count, failed = collections.Counter(), 0
    home = tempfile.mkdtemp(prefix="ng-any-rule.")
    for i in range(options["--cases"]):
        seed = options["--seed"] * 1000003 + i
        drawn = draw(random.Random(seed), rules, values, home)
        if not drawn:
            continue
        what, wrong = judge(tool, home, drawn)
        count[what] += 1
        if wrong:
            failed += 1
            r, key, value, case = drawn
            print(f"FAILED seed {options['--seed']}, case {i}: {r['profile']}/{r['rule']} {key} {r['set'][key]} -> {value}: "
                  f"{wrong}\n  {json.dumps(case)}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    if count["differs"] < options["--cases"] // 10:
        failed += 1
        print("FAILED: hardly any change was seen")
    print(f"any rule: {dict(count)}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
