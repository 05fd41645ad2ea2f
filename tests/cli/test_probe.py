#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Does ngauge probe find out how a unit multiplies? Units are made up: a rule of any profile with one
to four other values. What the unit gives for the operands that `probe make` wrote, `probe read` must
explain on every element; and a value that it calls decided must be the unit's.

    test_probe.py PATH/TO/ngauge [--cases N] [--seed S]
        test_probe.py PATH/TO/ngauge --captures DIR [--some]


The second reads outputs of real GPUs (of every third folder), begun at a profile that is none of theirs: what is found must
not contradict the device's own. Exit status 1: something failed; 77: skipped, because the captures
are not there. Python's standard library only.
"""
import collections
import json
import os
import random
import shutil
import sys
import tempfile

from test_any_rule import Tool, rules_of, take_numbers

# Values of a unit that differ from the profile's; of parameters that are text: any.
NUMBERS = {
    "rows": [32, 64, 128], "chain_rows": [0, 1, 4, 8, 16, 32, 64, 128], "acc_bits": [11, 16, 20, 22, 25, 26, 28],
    "group": [1, 2, 4, 8, 16, 32], "frac": [10, 13, 20, 23, 24, 26, 27, 30], "out_bits": [10, 13, 20, 22],
    "floor_f32": ["none", -126, -130, -132, -136], "promote_every": [0, 1, 2, 4], "sum_frac": [24, 28, 30, 33],
    "c_frac": [22, 23, 26], "c_drop": [0, 24, 27], "subgroups": [1, 2], "pieces": [1, 2], "piece_adds": [2, 4],
    "nan_f32": ["0x7FC00000", "0x7FFFFFFF", "0xFFC00000", "0x7F800001"],
}
# What the device is, what the case says, what describes an instruction.
FIXED = {"family", "psum", "psum_round", "lanes", "k_instr", "exact_group", "nan_f16", "floor_f16"}
# Parameters that each captured folder decides. b200-e4m3fn: a chain of FMAs gives all of its rows as well.
DECIDED = {"a100-bf16": 9, "a100-f16": 9, "a100-tf32": 9, "ada-bf16": 7, "ada-e4m3fn": 11, "ada-e5m2": 10, "ada-f16": 9,
           "ada-tf32": 9, "b200-bf16": 8, "b200-e4m3fn": 0, "b200-e5m2": 3, "b200-f16": 9, "b200-tf32": 8, "h100-bf16": 8,
           "h100-e4m3fn": 8, "h100-e5m2": 7, "h100-f16": 9, "h100-tf32": 8, "v100-f16": 8}
SIZE = ["--rows", "96", "--columns", "12", "--rounds", "0"]


def draw(rng, rules, values):
    """A rule, the options of its probe, and the unit's values."""
    r = rng.choice(rules)
    a, b = rng.choice(r["a"]), rng.choice(r["b"])
    if r["same"] and a in r["b"]:
        b = a
    options = ["--profile", r["profile"], "--a", a, "--b", b]
    if r["mode"] in ("mx", "nv"):
        options += ["--scales", "e8m0" if r["mode"] == "mx" else "ue4m3"]
    if r["mode"] == "double_row":
        options += ["--double-row"]
    if rng.random() < 0.3:
        options += ["--c", "f32"]
    unit = {}
    for key in rng.sample(sorted(r["set"]), len(r["set"])):
        other = NUMBERS[key] if key in NUMBERS else [] if key in FIXED else values[key].split()
        if key == "operand_exp" and a in ("bf16", "tf32"):
            continue  # no unit's: such an operand reaches below f16's exponents
        other = [str(v) for v in other if str(v) != r["set"][key]]
        if other and len(unit) < 4 and (not unit or rng.random() < 0.75):
            unit[key] = rng.choice(other)
    return r, options, unit


def agree_elsewhere(tool, home, options, told, found):
    """Do the unit and the profile that was found agree on other operands? Then other values say the same."""
    folder, made = os.path.join(home, "other"), []
    shutil.rmtree(folder, ignore_errors=True)
    tool.run("probe", "make", *options, *SIZE, "--seed", "77", folder, "-q")
    path = os.path.join(folder, "case.json")
    with open(path, encoding="utf-8") as file:
        case = json.load(file)
    for i, profile in enumerate((None, {"file": found})):
        if profile:
            case["cases"][0]["profile"] = profile
            with open(path, "w", encoding="utf-8") as file:
                json.dump(case, file)
        name = os.path.join(folder, f"d{i}.bin")
        done = tool.run("run", folder, *([] if profile else told), "-o", name)
        if done.returncode:
            return False
        with open(name, "rb") as file:
            made.append(file.read())
    return made[0] == made[1]


def contradicts(own, parameters):
    """Values that were called decided, or contradicted, against those of `own`: (key, own, found)."""
    wrong = []
    for p in parameters:
        value = own.get(p["key"], p["value"])
        if value != p["value"] and (value in [o["value"] for o in p["contradicted"]] or not p["open"]):
            wrong.append((p["key"], value, p["value"]))
    return wrong


def judge(tool, home, drawn):
    """What became of it, and what is wrong, or None."""
    r, options, unit = drawn
    folder = os.path.join(home, "probe")
    shutil.rmtree(folder, ignore_errors=True)
    done = tool.run("probe", "make", *options, *SIZE, folder, "-q")
    if done.returncode:
        known = "apart" in done.stderr or "no rule" in done.stderr or "K" in done.stderr
        return "refused", None if known else f"make: {done.returncode}: {done.stderr[:200]}"
    told = [w for key, v in unit.items() for w in ("--set", f"{r['rule']}.{key}={v}")]
    d = os.path.join(folder, "d.npy")
    done = tool.run("run", folder, *told, "-o", d)
    if done.returncode:
        known = "inconsistent" in done.stderr or "never lets" in done.stderr
        return "refused", None if known else f"run: {done.returncode}: {done.stderr[:200]}"
    os.remove(d + ".json")
    found = os.path.join(home, "found.profile")
    done = tool.run("probe", "read", folder, "--json", "-o", found, "--source", "made up")
    if done.returncode not in (0, 1):
        return "failed", f"read: {done.returncode}: {done.stderr[:200]}"
    case = json.loads(done.stdout)["cases"][0]
    changed = {c["key"]: c["to"] for c in case["changes"]}
    if case["explained"] != case["elements"]:
        return "failed", f"{case['explained']} of {case['elements']} explained from {case['from']} by {changed}"
    wrong = contradicts({**r["set"], **unit}, case["parameters"])
    open_ones = sum(1 for p in case["parameters"] if p["open"])
    if wrong and not agree_elsewhere(tool, home, options, told, found):
        return "failed", f"decided otherwise than the unit (key, unit's, found): {wrong}, from {case['from']}"
    return "found" if changed else "as it stands", None if open_ones < len(case["parameters"]) else "nothing decided"


def read_captures(tool, captures, some):
    """Each folder's first case, as if nobody knew the device."""
    if not os.path.isdir(captures):
        print(f"skipped: no captured outputs in {captures}")
        return 77
    rules = {(r["profile"], r["rule"]): r["set"] for r in rules_of(tool)}
    home, failed, decided = tempfile.mkdtemp(prefix="ng-probe."), 0, 0
    folders = [f for f in sorted(os.listdir(captures)) if os.path.exists(os.path.join(captures, f, "case.json"))]
    folders = folders[::3] if some else folders
    for folder in folders:
        with open(os.path.join(captures, folder, "case.json"), encoding="utf-8") as file:
            case = json.load(file)["cases"][0]
        own = case["profile"]
        case["profile"] = "fma-f32"
        for t in case["tensors"].values():
            t["file"] = os.path.abspath(os.path.join(captures, folder, t["file"]))
        path = os.path.join(home, "case.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"schema": "ng.case/1", "cases": [case]}, file)
        done = tool.run("probe", "read", path, "--json")
        found = json.loads(done.stdout)["cases"][0] if done.returncode in (0, 1) else None
        own_too = found and own in (found["from"], *found["also"])
        rule = found["rule"].split("/")[1].split(":")[0] if found else ""
        wrong = contradicts(rules[own, rule], found["parameters"]) if (own, rule) in rules else []
        if done.returncode or wrong or not own_too:
            failed += 1
            print(f"FAILED {folder}: exit {done.returncode}, {wrong}, the device's own gives it: {own_too} {done.stderr}")
        these = sum(p["decided"] for p in found["parameters"]) if found else 0
        print(f"  {folder}: {these} decided, from {found and found['from']}")
        if these != DECIDED.get(folder):
            failed += 1
            print(f"FAILED {folder}: {these} parameters decided, wanted {DECIDED.get(folder)}")
        decided += these
    shutil.rmtree(home, ignore_errors=True)
    print(f"probe: {len(folders)} devices and formats, {decided} parameters decided, {failed} failed")
    return 1 if failed or not folders else 0


def main():
    arguments = sys.argv[1:]
    options = {"--cases": 20, "--seed": 1}
    some = "--some" in arguments
    arguments = [a for a in arguments if a != "--some"]
    if len(arguments) == 3 and arguments[1] == "--captures":
        return read_captures(Tool(arguments[0]), arguments[2], some)
    take_numbers(arguments, options)
    if len(arguments) != 1:
        print(__doc__)
        return 2
    tool = Tool(arguments[0])
    rules = rules_of(tool)
    values = {k["key"]: k["values"] for k in tool.json("profile", "keys")}
    count, failed = collections.Counter(), 0
    home = tempfile.mkdtemp(prefix="ng-probe.")
    for i in range(options["--cases"]):
        drawn = draw(random.Random(options["--seed"] * 1000003 + i), rules, values)
        what, wrong = judge(tool, home, drawn)
        count[what] += 1
        if wrong:
            failed += 1
            r, words, unit = drawn
            print(f"FAILED seed {options['--seed']}, case {i}: {' '.join(words)} rule {r['rule']} unit {unit}: {wrong}",
                  flush=True)
    shutil.rmtree(home, ignore_errors=True)
    if count["found"] < options["--cases"] // 3:
        failed += 1
        print("FAILED: hardly any unit differed")
    print(f"probe: {dict(count)}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
