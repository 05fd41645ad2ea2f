# SPDX-License-Identifier: Apache-2.0
"""Outputs captured on real GPUs against the oracle, and what those outputs can tell apart.

    captures.py PATH/TO/ngauge CAPTURES_DIR

1. Every row of every capture must equal the oracle on every bit.
2. Teeth: for each capture, how many rows would notice each wrong parameter. MUST lists where a
   wrong parameter has to be noticed, NEVER what no capture reaches; both are checked.
3. Blame: the oracle is given a wrong parameter by a user's profile; the explanation of the real
   chip's output must be the edit that undoes it.

Exit status 1: something failed; 77: skipped, because the captures are not there.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

EXPECTED = (19, 30, 90000)  # folders, cases, rows of the published set

failures = []


def fail(text):
    failures.append(text)
    print("FAILED:", text)


# ---- 1. Every bit of every row. ----

class Case:
    """One case of a folder's report, with what the checks below ask of it."""

    def __init__(self, folder, number, source, report):
        self.folder, self.number, self.source, self.report = folder, number, source, report
        self.label = f"{folder}/{number}"
        self.device = folder.split("-")[0]
        tensors = source["tensors"]
        self.inputs = tensors["a"]["format"]
        self.output = tensors["d"]["format"]
        self.has_c = "c" in tensors
        self.k = int(re.search(r"\[\d+, (\d+)\]", report["what"]).group(1))
        line = report["profile_line"]
        self.profile, self.rule = re.match(r"([^/]+)/(\w+):", line).groups()
        self.rule_values = dict(re.findall(r"(\w+)=(\S+)", line))
        self.notice = report["sensitivity"]["notice"]

    def number_of(self, key):
        return int(self.rule_values[key])

    @property
    def fp8(self):
        return self.inputs in ("e4m3fn", "e5m2")

    @property
    def emulated(self):
        """FP8 products on the FP16 unit: 16 of them in permuted order, C added afterwards."""
        return self.rule_values["k_perm"] == "mod4"


def verify(ngauge, *arguments):
    run = subprocess.run([ngauge, "verify", *arguments, "--json"], capture_output=True, text=True)
    if run.returncode not in (0, 1):
        fail(f"verify {arguments[0]}: exit {run.returncode}: {run.stderr.strip()}")
        return None
    return json.loads(run.stdout)


def read_captures(ngauge, root):
    cases, rows, mismatches = [], 0, 0
    folders = sorted(f for f in os.listdir(root) if os.path.exists(f"{root}/{f}/case.json"))
    begin = time.monotonic()
    print(f"{'capture':<14}{'case':<8}{'profile':<16}{'rows':>7}{'mismatches':>12}{'seconds':>9}")
    for folder in folders:
        report = verify(ngauge, f"{root}/{folder}", "--sensitivity", "--no-explain")
        if not report:
            continue
        with open(f"{root}/{folder}/case.json", encoding="utf-8") as file:
            sources = json.load(file)["cases"]
        for i, (source, one) in enumerate(zip(sources, report["cases"], strict=True)):
            case = Case(folder, i, source, one)
            cases.append(case)
            n, differ = one["elements"]["elements"], one["elements"]["differ"]
            rows += n
            mismatches += differ
            print(f"{folder:<14}{'-> ' + case.output:<8}{case.profile:<16}{n:>7}{differ:>12}"
                  f"{one['seconds']:>9.3f}")
            if differ:
                fail(f"{case.label}: {differ} of {n} rows differ from the device")
            if not one["sensitivity"]["all"] or one["sensitivity"]["elements"] != n:
                fail(f"{case.label}: the sensitivity is of a sample, not of all rows")
    print(f"captures: {len(folders)} folders, {len(cases)} cases, {rows} rows, "
          f"{mismatches} mismatches, {time.monotonic() - begin:.1f} s")
    if (len(folders), len(cases), rows) != EXPECTED:
        fail(f"wanted: {EXPECTED[0]} folders, {EXPECTED[1]} cases, {EXPECTED[2]} rows")
    return cases


# ---- 2. Teeth. ----
#
# A row of the table: the wrong parameter's name here, its label in the report (from the case), and
# where it must be noticed. A case outside that predicate may notice too; the table shows it.

def unit_f32(c):
    """The unit's own arithmetic seen through an FP32 result."""
    return c.output == "f32" and not c.emulated


def step(key, delta):
    return lambda c: f"{key}={c.number_of(key) + delta}"


def scaled(key, up, down):
    return lambda c: f"{key}={c.number_of(key) * up // down}"


def always(text):
    return lambda c: text


def other_place(c):
    return "c_place=in" if c.rule_values["c_place"] == "after" else "c_place=after"


def other_order(c):
    return "k_perm=linear" if c.rule_values["k_perm"] == "mod4" else "k_perm=mod4"


def other_f16(c):
    return "out_f16=rtz" if c.rule_values["out_f16"] == "rne" else "out_f16=rne"


MUST = [
    ("F-1", step("frac", -1), unit_f32),
    ("F+1", step("frac", +1), unit_f32),
    # The FP16 result hides all but the coarse adders: FP8 on Ada adds with 13 fraction bits.
    ("F-1, f16", step("frac", -1), lambda c: c.device == "ada" and c.fp8 and c.output == "f16"),
    ("F+1, f16", step("frac", +1), lambda c: c.device == "ada" and c.fp8 and c.output == "f16"),
    # Half a group: only where K fills more than half a group. The tool refuses other groups for
    # permuted products.
    ("L/2", scaled("group", 1, 2), lambda c: c.k > c.number_of("group") // 2 and not c.emulated),
    ("2L", scaled("group", 2, 1), lambda c: c.k > c.number_of("group") and not c.emulated),
    ("sum=exact", always("sum=exact"), unit_f32),
    ("sum=pairwise", always("sum=pairwise"), unit_f32),
    ("align=rne", always("align_round=rne"), unit_f32),
    ("align=rdn", always("align_round=rdn"), unit_f32),
    ("norm=renorm", always("product_norm=renorm"), unit_f32),
    ("out_bits-1", step("out_bits", -1), unit_f32),
    ("out_bits+1", step("out_bits", +1), lambda c: unit_f32(c) and c.number_of("out_bits") < 23),
    ("out=rne", always("out_round=rne"), unit_f32),
    ("out=rup", always("out_round=rup"), unit_f32),
    ("out=rdn", always("out_round=rdn"), unit_f32),
    ("out_f16=rtz", other_f16, lambda c: c.output == "f16"),
    # Two roundings instead of one into FP16 need an accumulator with coarser bits to show.
    ("acc=f32", always("accumulate=f32"), lambda c: c.output == "f16" and c.fp8),
    ("c_place", other_place, lambda c: c.has_c),
    ("no C", always("c ignored"), lambda c: c.has_c),
    # The other order needs two steps and a rule that can be permuted at all.
    ("k_perm", other_order, lambda c: (c.emulated and c.output == "f16") or c.device in ("a100", "ada")),
    ("flush_in", always("flush_in=zero"), lambda c: c.inputs == "e4m3fn"),
]

# What no row of any capture reaches, and why: their parameters rest on other evidence.
NEVER = {
    "zero_exp=emin": "no row has its largest product below a zero operand's exponent",
    "product_inf=yes": "no product passes the FP32 range",
    "flush_out=zero": "no result is subnormal",
    "flush_out=signed": "no result is subnormal",
    "out round=rtz": "the accumulator already has the output's format",
    "out overflow=sat": "no result overflows",
    "out nan_sign=keep": "no result is NaN",
    "tf32_in=rne": "the operands' low 13 bits are zero",
}

# Must-be-seen parameters that these captures cannot see, for the reader of the table.
UNDETECTABLE = [
    "tf32 on h100 and b200: K = 4 fills half a group, so no half group shows",
    "tf32, f16, bf16: K is at most one group, so no doubled group shows",
    "f16 results of f16 inputs: 11 bits hide F and the unit's final rounding",
    "b200 FP8: 16 products of e4m3fn or e5m2 fit the FP16 unit's adder but for a few rows",
    "h100 FP8 -> f32: captured without C, so its place is not seen",
    "b200 FP8 -> f32: the order of an instruction's two steps shows in f16 results only",
]


def show_teeth(cases):
    names = [row[0] for row in MUST]
    print("\nteeth: rows that notice a wrong parameter; in parentheses: not required to; -: no such "
          "neighbour of this rule")
    for at in range(0, len(names), 11):
        print(f"{'':<14}" + "".join(f"{n:>13}" for n in names[at:at + 11]))
        for c in cases:
            cells = []
            for name, label, where in MUST[at:at + 11]:
                count = c.notice.get(label(c))
                text = "-" if count is None else str(count)
                cells.append(f"{text if where(c) else '(' + text + ')':>13}")
            print(f"{c.folder + ' ' + c.output:<18}"[:18] + "".join(cells)[4:])


def check_teeth(cases):
    begin = len(failures)
    for name, label, where in MUST:
        asked = [c for c in cases if where(c)]
        if not asked:
            fail(f"teeth: no capture asks for {name}")
        for c in asked:
            if not c.notice.get(label(c)):
                fail(f"teeth: no row of {c.folder} -> {c.output} notices {label(c)}")
    for label, why in NEVER.items():
        for c in cases:
            if c.notice.get(label):
                fail(f"teeth: {c.folder} -> {c.output} has {c.notice[label]} rows that notice "
                     f"{label}; documented: {why}")
    pairs = sum(1 for _, _, where in MUST for c in cases if where(c))
    print(f"teeth: {len(MUST)} wrong parameters, {pairs} pairs with a capture must be noticed, "
          f"{len(failures) - begin} failed")
    print("noticed by no row of any capture:")
    for label, why in NEVER.items():
        print(f"  {label:<20} {why}")
    print("cannot be noticed in some captures:")
    for text in UNDETECTABLE:
        print("  " + text)


# ---- 3. Blame. ----

BLAME = [  # capture, case in it, profile, rule, parameter, wrong value
    ("a100-f16", 0, "nv-ampere", "f16", "frac", "23"),
    ("a100-f16", 0, "nv-ampere", "f16", "frac", "25"),
    ("a100-f16", 0, "nv-ampere", "f16", "group", "4"),
    ("a100-f16", 0, "nv-ampere", "f16", "align_round", "rne"),
    ("a100-f16", 0, "nv-ampere", "f16", "align_round", "rdn"),
    ("a100-f16", 0, "nv-ampere", "f16", "product_norm", "renorm"),
    ("a100-f16", 0, "nv-ampere", "f16", "out_bits", "22"),
    ("a100-f16", 0, "nv-ampere", "f16", "out_round", "rne"),
    ("a100-f16", 0, "nv-ampere", "f16", "c_place", "after"),
    ("a100-f16", 0, "nv-ampere", "f16", "k_perm", "mod4"),
    ("a100-f16", 0, "nv-ampere", "f16", "sum", "pairwise"),
    ("a100-f16", 1, "nv-ampere", "f16", "out_f16", "rtz"),
    ("a100-bf16", 0, "nv-ampere", "bf16", "frac", "23"),
    ("a100-tf32", 0, "nv-ampere", "tf32", "group", "2"),
]


def wrong_profile(text, rule, key, value):
    """The profile with one value of one rule changed; its true value."""
    head, tail = re.split(rf"(?m)^(?=rule {rule} )", text, maxsplit=1)
    found = re.search(rf"(?m)^(  {key} += )(\S+)", tail)
    changed = tail[:found.start(2)] + value + tail[found.end(2):]
    return head + changed, found.group(2)


def blame_one(ngauge, root, folder, number, shown, rule, key, value):
    text, true = wrong_profile(shown, rule, key, value)
    with open(f"{root}/{folder}/case.json", encoding="utf-8") as file:
        case = json.load(file)["cases"][number]
    for tensor in case["tensors"].values():
        tensor["file"] = os.path.abspath(f"{root}/{folder}/{tensor['file']}")
    case["profile"] = {"file": "my.profile"}
    what = f"{folder}/{number}: {key}={value} (true: {true})"
    with tempfile.TemporaryDirectory() as home:
        with open(f"{home}/my.profile", "w", encoding="utf-8") as file:
            file.write(text)
        with open(f"{home}/case.json", "w", encoding="utf-8") as file:
            json.dump({"schema": "ng.case/1", "cases": [case]}, file)
        report = verify(ngauge, home)
    if not report:
        return
    one = report["cases"][0]
    differ = one["elements"]["differ"]
    if not differ:
        fail(f"blame {what}: no row differs")
        return
    explain = one["explain"]
    certain = [f["rule"] for f in explain["findings"][:explain["certain"]]]
    print(f"  {what:<52} {differ:>5} rows differ; {', '.join(certain) or 'nothing'} explains them")
    if not explain["all"]:
        fail(f"blame {what}: the explanation looked at a sample only")
    if len(set(certain)) < len(certain):
        fail(f"blame {what}: the same rule is named twice")
    if f"{key}={true}" not in certain:
        fail(f"blame {what}: {key}={true} is not among the rules that explain every difference")


def check_blame(ngauge, root):
    print("\nblame: a wrong value in a user's profile, and the edit that explains the chip")
    profiles = {}
    for folder, number, profile, rule, key, value in BLAME:
        if profile not in profiles:
            profiles[profile] = subprocess.run([ngauge, "profile", "show", profile], check=True,
                                               capture_output=True, text=True).stdout
        blame_one(ngauge, root, folder, number, profiles[profile], rule, key, value)


def main():
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    ngauge, root = sys.argv[1:]
    if not os.path.isdir(root):
        print(f"skipped: no folder {root}")
        return 77
    cases = read_captures(ngauge, root)
    show_teeth(cases)
    check_teeth(cases)
    check_blame(ngauge, root)
    print(f"captures: {len(failures)} failed" if failures else "captures: all passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
