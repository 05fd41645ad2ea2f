# SPDX-License-Identifier: Apache-2.0
"""The tool ngauge from the outside: every command, every exit code, every kind of bad input, and
whether the explanation of a wrong output names the rule that made it wrong.

    test_cli.py PATH/TO/ngauge [--filter TEXT] [--list]

Exit status 1: something failed. Python's standard library only; the expected values come from
exact fractions here, never from the tool, except where a wrong chip is wanted: then the tool
computes under another rule.
"""
import concurrent.futures
import copy
import hashlib
import itertools
import json
import math
import os
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from fractions import Fraction

NGAUGE = ""
TIMEOUT = 60
JOBS = 2

# Exit codes, as ngauge --help says.
EQUAL, DIFFERS, USAGE, FILE, REFUSED = 0, 1, 2, 3, 4

# ---------------------------------------------------------------------------------------------
# Tests are functions of a Unit; a name says what each is about, --filter picks by it.

UNITS = []


class Unit:
    """What a test has to work with: a folder of its own, the tool, and its verdicts."""

    def __init__(self, name):
        self.name, self.checks, self.failed = name, 0, []
        self.home = tempfile.mkdtemp(prefix="ngauge-cli-")
        self.seconds = 0.0

    def check(self, ok, what):
        self.checks += 1
        if not ok:
            self.failed.append(what)
        return bool(ok)

    def path(self, name):
        return os.path.join(self.home, name)

    def run(self, *arguments, code=None, env=None):
        """Run ngauge; whatever it is given, it must not crash, and must end in time."""
        shown = " ".join(a.replace(self.home + "/", "") for a in arguments)
        begin = time.monotonic()
        try:
            done = subprocess.run([NGAUGE, *arguments], capture_output=True, text=True,
                                  timeout=TIMEOUT, cwd=self.home, env=env, errors="replace")
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess(arguments, -99, "", "timeout")
        self.seconds += time.monotonic() - begin
        crashed = done.returncode < 0 or done.returncode > 5 or "runtime error" in done.stderr or \
            "Sanitizer" in done.stderr
        self.check(not crashed, f"{shown}: crashed or hung ({done.returncode}): "
                                f"{done.stderr[-400:]}")
        if code is not None:
            self.check(done.returncode == code, f"{shown}: exit {done.returncode}, wanted {code}: "
                                                f"{(done.stderr or done.stdout)[-300:].strip()}")
        return done

    def json(self, *arguments, code=None):
        done = self.run(*arguments, "--json", code=code)
        try:
            return json.loads(done.stdout)
        except ValueError as why:
            self.check(False, f"{' '.join(arguments)} --json: no JSON: {why}")
            return {}

    def refuses(self, what, arguments, code, words=()):
        """Exit `code`, no report on stdout, one sentence on stderr that says the given words."""
        done = self.run(*arguments)
        lines = done.stderr.strip().split("\n")
        self.check(done.returncode == code, f"{what}: exit {done.returncode}, wanted {code}: "
                                            f"{done.stderr.strip()[-300:]}")
        self.check(len(lines) == 1 and lines[0].startswith("ngauge: "),
                   f"{what}: wanted one line on stderr, got: {done.stderr.strip()[-300:]!r}")
        self.check(done.stdout.count("\n") <= (arguments[0] == "verify" and code == REFUSED),
                   f"{what}: wrote to stdout: {done.stdout[:100]!r}")
        for word in words:
            self.check(word in done.stderr, f"{what}: the message does not say '{word}': "
                                            f"{done.stderr.strip()[-300:]}")
        return done


def unit(name):
    def add(function):
        UNITS.append((name, function))
        return function
    return add


def add_unit(name, function, *arguments):
    UNITS.append((name, lambda u: function(u, *arguments)))


# ---------------------------------------------------------------------------------------------
# Formats, written down again from docs/numerics.md section 1: kind is ieee, fn (no Inf, NaN all
# ones), fnuz, finite.

class Format:
    def __init__(self, name, bits, exp, man, bias, kind, max_code):
        self.name, self.bits, self.exp, self.man, self.bias = name, bits, exp, man, bias
        self.kind, self.max_code = kind, max_code
        self.sign = 1 << (bits - 1)
        self.low = bits - 1 - exp - man  # tf32: the low bits that are always zero

    def decode(self, code):
        """A Fraction, or 'nan', 'inf', '-inf'; -0 is Fraction(0)."""
        neg, mag = code & self.sign, code & (self.sign - 1)
        if self.kind == "fnuz" and code == self.sign:
            return "nan"
        e, m = mag >> (self.man + self.low), mag & ((1 << (self.man + self.low)) - 1)
        if self.kind == "ieee" and e == (1 << self.exp) - 1:
            return "nan" if m else "-inf" if neg else "inf"
        if self.kind == "fn" and mag == self.sign - 1:
            return "nan"
        frac = Fraction(m, 1 << (self.man + self.low))
        value = frac * Fraction(2) ** (1 - self.bias) if e == 0 else \
            (1 + frac) * Fraction(2) ** (e - self.bias)
        return -value if neg else value

    def max(self):
        return self.decode(self.max_code)

    def encode(self, value, neg, mode="rne", overflow="inf"):
        """The code of a Fraction's magnitude `value` with sign `neg`; None: refused."""
        sign = self.sign if neg else 0
        emin = 1 - self.bias
        if value == 0:
            return 0 if self.kind == "fnuz" else sign
        e = max(floor_log2(value), emin)
        unit_ = Fraction(2) ** (e - self.man)
        whole, rest = divmod(value / unit_, 1)
        whole = int(whole)
        up = {"rtz": False, "rdn": neg and rest, "rup": not neg and rest,
              "rne": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2),
              "rna": rest >= Fraction(1, 2),
              "rto": rest and whole % 2 == 0}[mode]
        rounded = (whole + bool(up)) * unit_
        if rounded > self.max():
            toward_zero = mode in ("rtz", "rto") or (mode == "rup" and neg) or \
                (mode == "rdn" and not neg)
            if overflow in ("sat", "sat_keep_inf") or toward_zero and overflow == "inf":
                return sign | self.max_code if overflow != "inf" or self.kind != "finite" else None
            return self.infinity(sign)
        return self.code_of(rounded, sign)

    def infinity(self, sign):
        if self.kind == "finite":
            return None
        if self.kind == "ieee":
            return sign | ((1 << self.exp) - 1) << (self.man + self.low)
        return self.sign if self.kind == "fnuz" else self.sign - 1  # NaN, its sign clear

    def code_of(self, value, sign):
        """The code of a value on the grid."""
        if value == 0:
            return 0 if self.kind == "fnuz" else sign
        emin = 1 - self.bias
        e = max(floor_log2(value), emin)
        m = int(value / (Fraction(2) ** (e - self.man)))
        biased = e - emin + 1 if m >> self.man else 0
        return sign | (biased << self.man | m & ((1 << self.man) - 1)) << self.low


def floor_log2(value):
    e = value.numerator.bit_length() - value.denominator.bit_length()
    return e if Fraction(2) ** e <= value else e - 1


FORMATS = {f.name: f for f in (
    Format("f32", 32, 8, 23, 127, "ieee", 0x7F7FFFFF),
    Format("tf32", 32, 8, 10, 127, "ieee", 0x7F7FE000),
    Format("bf16", 16, 8, 7, 127, "ieee", 0x7F7F), Format("f16", 16, 5, 10, 15, "ieee", 0x7BFF),
    Format("e5m2", 8, 5, 2, 15, "ieee", 0x7B), Format("e4m3fn", 8, 4, 3, 7, "fn", 0x7E),
    Format("e4m3", 8, 4, 3, 7, "ieee", 0x77), Format("e3m4", 8, 3, 4, 3, "ieee", 0x6F),
    Format("e4m3fnuz", 8, 4, 3, 8, "fnuz", 0x7F), Format("e5m2fnuz", 8, 5, 2, 16, "fnuz", 0x7F),
    Format("e3m2", 6, 3, 2, 3, "finite", 0x1F), Format("e2m3", 6, 2, 3, 1, "finite", 0x1F),
    Format("e2m1", 4, 2, 1, 1, "finite", 0x7))}

ITEM = {"f32": 4, "tf32": 4, "bf16": 2, "f16": 2, "u16": 2, "u32": 4}  # bytes of an item; others 1


def f32_value(code):
    return struct.unpack("<f", struct.pack("<I", code))[0]


def f32_code(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


# ---------------------------------------------------------------------------------------------
# Files.

def pack(fmt, codes):
    if fmt == "e2m1":  # rows are even here
        return bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2))
    return struct.pack(f"<{len(codes)}{ {1: 'B', 2: 'H', 4: 'I'}[ITEM.get(fmt, 1)] }", *codes)


def unpack(fmt, data):
    if fmt == "e2m1":
        return [n for b in data for n in (b & 15, b >> 4)]
    size = ITEM.get(fmt, 1)
    return list(struct.unpack(f"<{len(data) // size}{ {1: 'B', 2: 'H', 4: 'I'}[size] }", data))


def write_npy(path, fmt, shape, codes):
    size = ITEM.get(fmt, 1)
    dims = list(shape)
    if fmt == "e2m1":
        dims[-1] //= 2
    header = (f"{{'descr': '{'|' if size == 1 else '<'}u{size}', 'fortran_order': False, "
              f"'shape': ({', '.join(map(str, dims))}{',' if len(dims) == 1 else ''}), }}")
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                   pack(fmt, codes))


def read_npy(path, fmt):
    with open(path, "rb") as file:
        data = file.read()
    start = 10 + struct.unpack("<H", data[8:10])[0]
    shape = [int(n) for n in re.findall(r"\d+", data[:start].decode("latin1").split("'shape'")[1])]
    return shape, unpack(fmt, data[start:])


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    meta = head.pop("__metadata__", {})
    return meta, {k: (v, data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
                  for k, v in head.items()}


def write_safetensors(path, tensors, meta=None):
    """tensors: name -> (dtype, shape, bytes)."""
    head, at = ({"__metadata__": meta} if meta else {}), 0
    for name, (dtype, shape, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def write_text(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def read_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


# ---------------------------------------------------------------------------------------------
# Data.

class Draw:
    """Random codes, the same on every run of a test."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def codes(self, fmt, n, low=-6, high=6):
        """Finite numbers with exponents from low to high, of either sign, all mantissas."""
        f = FORMATS[fmt]
        out = []
        for _ in range(n):
            e = min(max(self.random.randint(low, high) + f.bias, 0), (f.max_code >> f.man + f.low))
            code = (e << f.man | self.random.getrandbits(f.man)) << f.low
            out.append(min(code, f.max_code) | self.random.getrandbits(1) * f.sign)
        if f.kind == "fnuz":
            out = [0 if c == f.sign else c for c in out]
        return out

    def scales(self, n, low=121, high=133):
        return [self.random.randint(low, high) for _ in range(n)]


def count(shape):
    n = 1
    for d in shape:
        n *= d
    return n


class Case:
    """A case in the making: tensors as files of a folder, the JSON as a dictionary."""

    def __init__(self, u, op, **keys):
        self.u = u
        self.draw = Draw(u.name.split(" <- ")[0])
        self.json = {"op": op, **keys, "tensors": {}}

    def tensor(self, name, fmt, shape, codes=None, **options):
        if codes is None:
            codes = self.draw.codes(fmt, count(shape), **options)
        write_npy(self.u.path(f"{name}.npy"), fmt, shape, codes)
        self.json["tensors"][name] = {"file": f"{name}.npy", "format": fmt}
        return self

    def scale(self, name, shape, axis, block=32, fmt="e8m0", codes=None, layout="linear"):
        blocks = [-(-d // block) if i == axis else d for i, d in enumerate(shape)]
        codes = codes or self.draw.scales(count(blocks))
        write_npy(self.u.path(f"{name}_scale.npy"), fmt, blocks, codes)
        self.json["tensors"][name]["scale"] = {"file": f"{name}_scale.npy", "format": fmt,
                                               "block": block, "axis": axis, "layout": layout}
        return self

    def output(self, fmt, name=None, **keys):
        name = name or ("d" if self.json["op"] in ("dot", "gemm") else "dst")
        self.json["tensors"][name] = {"format": fmt, **keys}
        return self


def write_case(u, name, *cases):
    write_text(u.path(name), json.dumps({"schema": "ng.case/1", "cases": list(cases)}))
    return u.path(name)


def edit_profile(u, name, rule, **changes):
    """The text of a built-in profile with some values of one rule changed."""
    text = u.run("profile", "show", name, code=EQUAL).stdout
    head, tail = re.split(rf"(?m)^(?=rule {rule} )", text, maxsplit=1)
    for key, value in changes.items():
        tail, n = re.subn(rf"(?m)^(  {key} += )\S+", rf"\g<1>{value}", tail, count=1)
        assert n == 1, key
    return {"text": head + tail}


# ---------------------------------------------------------------------------------------------
# The command line itself.

COMMANDS = ["verify", "run", "convert", "function", "info", "profile", "example", "selftest", "sweep", "kernels", "bench",
            "rng", "route", "attention", "collective", "sparsify", "quantize", "dequantize", "probe", "version"]


@unit("usage: help of every command, and none without reason")
def test_help(u):
    out = u.run("--help", code=EQUAL).stdout
    for c in COMMANDS:
        u.check(c in out, f"--help does not name {c}")
        text = u.run(c, "--help", code=EQUAL)
        u.check("usage: ngauge " + c in text.stdout, f"{c} --help has no usage line")
        u.check(not text.stderr, f"{c} --help writes to stderr")
    for code in range(6):
        u.check(f"{code} " in out, f"--help does not say what exit code {code} means")
    u.run(code=USAGE)
    u.refuses("unknown command", ["frobnicate"], USAGE, ["frobnicate"])


@unit("usage: wrong options")
def test_wrong_options(u):
    for c in [*COMMANDS, "run layer"]:
        help_line = f"see ngauge {c} --help"
        for words, wanted in ((["--no-such-option"], "'--no-such-option' is no option"),
                              (["--no-such=1"], "'--no-such=1' is no option"),
                              (["-qZ", "x"], "'-Z' is no option"), (["--seed"], "--seed wants a value")):
            u.refuses(f"{c} {words}", [*c.split(), *words], USAGE, [f"ngauge: {c}: {wanted}", help_line])
        u.refuses(f"{c} --json=1", [*c.split(), "--json=1"], USAGE,
                  [f"{c}: --json takes no value, but here is '--json=1'"])
    u.refuses("an option that is several", ["verify", "--se"], USAGE,
              ["'--se' may be --seed or --sensitivity or --set"])
    u.refuses("a letter without its value", ["run", "-o"], USAGE, ["run: -o wants a value"])


@unit("usage: wrong words")
def test_wrong_words(u):
    for words, wanted in (
            ("run", "run wants one operation or CASE, not 0 words"),
            ("run a b", "run wants one operation or CASE, not 2 words"),
            ("run layer x", "run layer takes no 'x'; see ngauge run layer --help"),
            ("convert one", "convert wants two files, IN and OUT, not 1 word;"),
            ("quantize a b c", "quantize wants two files, IN and OUT, not 3 words"),
            ("example", "example wants one OUT, not 0 words"),
            ("example a b", "example wants one OUT, not 2 words"),
            ("info a b", "info wants one format, not 2 words"),
            ("info --vs bf16", "info wants one format beside --vs, not 0 words"),
            ("profile", "profile wants list, show, diff, check or keys, not ''"),
            ("profile trn2", "profile wants list, show, diff, check or keys, not 'trn2'"),
            ("profile show", "profile show wants one profile"),
            ("profile diff trn2", "profile diff wants two profiles, not 1 word;"),
            ("profile keys all", "profile keys takes no 'all'"),
            ("probe ask", "probe wants make or read, not 'ask'"),
            ("probe make", "probe make wants one OUT, not 0 words"),
            ("probe read a b", "probe read wants one CASE, not 2 words"),
            ("sparsify squeeze a b", "sparsify wants prune, compress, expand, check or tags, not 'squeeze'"),
            ("sparsify prune a", "sparsify prune wants IN and OUT, not 1 word;"),
            ("sparsify check a b", "sparsify check wants one IN, not 2 words"),
            ("sparsify prune --slots 4 a b", "--slots says nothing to sparsify prune"),
            ("attention", "attention wants run, verify, show or keys, not ''"),
            ("attention show a b", "attention show wants one SCHEDULE or none, not 2 words"),
            ("attention run a", "attention run takes its files by options, not 'a'"),
            ("collective show a b", "collective show wants one COLLECTIVE or none, not 2 words"),
            ("collective order a", "collective order takes no 'a'"),
            ("kernels trn2", "kernels takes no 'trn2'; a case follows --explain"),
            ("selftest all", "selftest takes no 'all'"),
            ("version 1", "version takes no '1'"),
            ("rng philox", "rng takes no 'philox'"),
            ("rng --source philox --poly 3", "--poly says nothing to rng --source philox"),
            ("rng --source xorwow --key 1,2", "--key says nothing to rng --source xorwow"),
            ("route", "route wants one file of logits, or --x and --router, not 0 words"),
            ("function exp", "function wants NAME IN OUT"),
            ("verify", "verify wants a CASE"),
            ("verify --dumps one", "wants two files, GOT and WANT, not 1")):
        u.refuses(words, words.split(), USAGE, [wanted])


@unit("usage: wrong values of options")
def test_wrong_values(u):
    u.refuses("info of no format", ["info", "e4m5"], USAGE, ["e4m5"])
    u.refuses("info --vs no format", ["info", "e4m3", "--vs", "e9m9"], USAGE, ["e9m9"])
    u.refuses("info of formats of other widths", ["info", "e4m3", "--vs", "bf16"], USAGE,
              ["8 bits", "16"])
    u.refuses("no fault", ["example", "--fault", "gremlin", u.path("x")], USAGE, ["gremlin"])
    u.refuses("threads", ["info", "--threads", "many"], USAGE, ["many"])
    u.refuses("too many threads", ["info", "--threads", "100000"], USAGE, ["100000"])
    u.refuses("isa", ["info", "--isa", "mmx"], USAGE, ["mmx"])
    u.refuses("seed", ["info", "--seed", "-1"], USAGE, ["-1"])
    u.refuses("max-report", ["info", "--max-report", "1e3"], USAGE, ["1e3"])
    u.refuses("verify --as", ["verify", "--dumps", "--as", "f33", "a", "b"], USAGE, ["f33"])
    u.refuses("no profile", ["profile", "show", "trn9"], USAGE, ["trn9"])
    bad = u.run("info", env={**os.environ, "NG_ISA": "mmx"})
    u.check(bad.returncode in (EQUAL, USAGE), "NG_ISA=mmx")


@unit("usage: names that are no UTF-8")
def test_not_utf8(u):
    """An operand whose name JSON cannot hold must not be left out."""
    draw = Draw("utf8")
    for name, shape in (("a", [4, 32]), ("b", [32, 4])):
        write_npy(u.path(f"{name}.npy"), "bf16", shape, draw.codes("bf16", 128))
    with open(os.fsencode(u.path("c")) + b"\xff.npy", "wb") as file:
        file.write(read_bytes(u.path("a.npy")))
    u.refuses("c", ["run", "gemm", "--profile", "trn2", "--a", "a.npy=bf16", "--b", "b.npy=bf16", "--c",
                    os.fsdecode(b"c\xff.npy=f32"), "--to", "f32", "-o",
                    "d.npy"], USAGE, ["argument 10", "UTF-8"])
    u.check(not os.path.exists(u.path("d.npy")), "nothing is written")


@unit("usage: an output that cannot be written")
def test_full_stdout(u):
    if os.path.exists("/dev/full"):
        for arguments in (["info"], ["--help"], ["help"], ["--version"], ["convert", "--help"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([NGAUGE, *arguments], stdout=full, stderr=subprocess.PIPE,
                                      text=True, check=False)
            u.check(done.returncode == FILE and "standard output" in done.stderr,
                    f"{arguments} > /dev/full: exit {done.returncode}: {done.stderr}")


@unit("usage: a wrong value names its option and what is wanted")
def test_wrong_values(u):
    sweep_to, function = ["sweep", "--to", "e5m2"], ["function", "exp", "--of", "1"]
    for start, option, value, wanted in (
            (["info"], "--threads", "many", "0 to 4096"), (["info"], "--threads", "4097", "0 to 4096"),
            (["info"], "--seed", "-1", "2^64"), (["info"], "--max-report", "1e3", "number"),
            (["info"], "--isa", "mmx", "avx512bf16"), (["info"], "--isa", "", "ref"),
            (["sweep"], "--to", "e9m9", "format"), (sweep_to, "--round", "up", "rup"),
            (sweep_to, "--overflow", "wrap", "sat_keep_inf"), (sweep_to, "--nan-sign", "no", "clear or keep"),
            (sweep_to, "--nan-to", "inf", "max or zero"), (sweep_to, "--word", "-1", "2^32"),
            (sweep_to, "--sr", "d", "a, b or c"), (sweep_to, "--sr-bits", "33", "1 to 32"),
            (sweep_to, "--sr-take", "mid", "low or high"), (sweep_to, "--chunks", "5:3", "A:B"),
            (sweep_to, "--shard", "3/3", "I/N"), (["sweep"], "--function", "sin", "tanh"),
            (["sweep", "--function", "exp"], "--choice", "table", "cr or sleef"),
            (function, "--choice", "fast", "sleef"), (function, "--round", "sr", "rne"),
            (function, "--to", "f33", "format"), (function, "--overflow", "wrap", "inf"),
            (function, "--nan-sign", "no", "keep"), (function, "--nan-to", "inf", "error"),
            (["verify", "--dumps", "a", "b"], "--as", "f33", "format")):
        u.refuses(f"{option} {value}", [*start, option, value], USAGE,
                  [f"{option} is '{value}'", "wanted:", wanted])


@unit("usage: a raw spec that is none, a file beyond memory")
def test_raw_wrong(u):
    write_text(u.path("x.bin"), "x" * 8)
    gemm = ["run", "gemm", "--profile", "trn2", "--b", "x.bin=bf16:2x2", "--to", "f32", "-o", "o.npy"]
    for spec in ("f32:2x", "f32:", "f32:2x-1", "f32:2@x", "f33:2"):
        for arguments in (["convert", "--to", "bf16", f"x.bin={spec}", "o.npy"],
                          ["function", "exp", f"x.bin={spec}", "o.npy"],
                          [*gemm, "--a", f"x.bin={spec}"]):
            u.refuses(f"{arguments[0]} {spec}", arguments, USAGE, [spec.split(":")[0]])
    u.refuses("another size", ["convert", "--to", "bf16", "x.bin=f32:3", "o.npy"], FILE, ["x.bin", "12"])
    try:
        if read_text("/proc/sys/vm/overcommit_memory").strip() == "1":
            return  # there all memory is promised
        os.truncate(u.path("x.bin"), 1 << 43)
    except OSError:
        return  # another system, or a file system without such files
    asan = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") +
            ":allocator_may_return_null=1"}  # it warns all the same, which u.run takes for a crash
    done = subprocess.run([NGAUGE, "function", "exp", f"x.bin=f32:{1 << 41}", "o.npy"], env=asan,
                          cwd=u.home, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    u.check(done.returncode == 5 and "no memory" in done.stderr, f"8 TiB: {done.stderr}")


def contents(u):
    """Every file of the unit's folder."""
    found = {}
    for folder, _, names in os.walk(u.home):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                found[os.path.relpath(os.path.join(folder, name), u.home)] = file.read()
    return found


def leaves_all(u, what, arguments, code, words, most=None):
    """An error, and no file is written, replaced or left; `most`: bytes that a file may have."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    before = contents(u)
    done = subprocess.run([NGAUGE, *arguments], capture_output=True, text=True, timeout=TIMEOUT,
                          cwd=u.home, preexec_fn=limit if most else None, check=False)
    u.check(done.returncode == code, f"{what}: exit {done.returncode}, wanted {code}: "
                                     f"{done.stderr.strip()[-300:]}")
    for word in words:
        u.check(word in done.stderr, f"{what}: the message does not say '{word}': {done.stderr}")
    after = contents(u)
    u.check(after == before, f"{what}: other files than before: "
                             f"{sorted(n for n in after if after[n] != before.get(n))}")


@unit("files: hex text, as $readmemh takes it")
def test_hex(u):
    codes = Draw("hex").codes("e4m3fn", 12)
    write_npy(u.path("a.npy"), "e4m3fn", [3, 4], codes)
    u.run("convert", "--to", "bf16", "a.npy=e4m3fn", "w.hex", code=EQUAL)
    u.run("convert", "--to", "bf16", "a.npy=e4m3fn", "w.bin", code=EQUAL)
    lines = read_text(u.path("w.hex")).splitlines()
    with open(u.path("w.bin"), "rb") as file:
        words = [file.read(8)[::-1].hex() for _ in range(3)]
    u.check(lines[0].startswith("// bf16 [3, 4]") and lines[1:] == words, f"w.hex: {lines}, wanted {words}")
    u.run("verify", "--dumps", "w.hex=bf16:3x4", "w.bin=bf16:3x4", code=EQUAL)
    u.run("function", "exp", "w.hex=bf16:3x4", "e.hex", code=EQUAL)
    # Operands, scales and a result of a case.
    write_text(u.path("x.hex"), "// four rows of 32\n" + "\n".join("3" * 64 for _ in range(4)) + "\n")
    write_text(u.path("s.hex"), "7f 80\n7F 7e")
    case = {"op": "gemm", "profile": "trn3", "tensors": {
        "a": {"file": "x.hex", "format": "e4m3fn", "shape": [4, 32], "scale": {"file": "s.hex", "format": "e8m0"}},
        "b": {"file": "x.hex", "format": "e4m3fn", "raw": "e4m3fn:32x4", "scale": {"file": "s.hex", "format": "e8m0"}},
        "d": {"file": "d.hex", "format": "f32", "shape": [4, 4]}}}
    write_text(u.path("case.json"), json.dumps({"schema": "ng.case/1", "cases": [case]}))
    u.refuses("words too long", ["run", "case.json", "-o", "d.hex"], FILE, ["x.hex", "line 2: a word of 64 digits; wanted: 1 to 8"])
    write_text(u.path("y.hex"), "\n".join("33_33_33_33" for _ in range(32)))
    case["tensors"]["b"]["file"] = "y.hex"
    write_text(u.path("case.json"), json.dumps({"schema": "ng.case/1", "cases": [case]}))
    u.run("run", "case.json", "-o", "d.hex", code=EQUAL)
    u.run("verify", "case.json", code=EQUAL)
    u.refuses("no spec", ["convert", "--to", "f32", "w.hex", "z.npy"], USAGE, ["w.hex", "FILE=FORMAT:DIM"])
    u.refuses("an offset", ["convert", "--to", "f32", "w.hex=bf16:3x4@0", "z.npy"], FILE, ["w.hex", "offset"])
    u.refuses("unknown bits", ["convert", "--to", "f32", "x.v.hex=bf16:1", "z.npy"], FILE, ["x.v.hex"])
    write_text(u.path("x.v.hex"), "\n\n00xx\n")
    u.refuses("unknown bits", ["convert", "--to", "f32", "x.v.hex=bf16:1", "z.npy"], FILE, ["line 3", "'x'"])


@unit("files: all of a result is written, or nothing")
def test_all_or_nothing(u):
    draw = Draw("all or nothing")
    write_npy(u.path("a.npy"), "bf16", [8, 64], draw.codes("bf16", 512))
    for name, shape in (("q", [1, 1, 100, 2]), ("k", [1, 1, 4, 2]), ("v", [1, 1, 4, 1])):
        write_npy(u.path(f"{name}.npy"), "bf16", shape, draw.codes("bf16", count(shape)))
    layer = ["run", "layer", "--preset", "gpt-oss-tiny", "--write-weights", "w.st"]
    compress = ["sparsify", "compress", "--prune", "--tags"]
    attention = ["attention", "run", "--schedule", "exact", "--q", "q.npy=bf16", "--k",
                 "k.npy=bf16", "--v", "v.npy=bf16", "--to", "bf16", "-o", "o.npy", "--lse", "l.npy"]
    leaves_all(u, "tags", [*compress, "no/t.npy", "a.npy=bf16", "o.npy"], FILE, ["no/t.npy"])
    leaves_all(u, "layer's output", [*layer, "-o", "no/y.npy"], FILE, ["no/y.npy"])
    leaves_all(u, "layer refused", [*layer, "-o", "y.npy", "--profile", "nv-volta"], REFUSED,
               ["nv-volta"])
    leaves_all(u, "a file too large", ["convert", "--to", "f32", "a.npy=bf16", "o.npy"], FILE,
               ["o.npy"], most=1024)
    # o fits, lse does not
    leaves_all(u, "the second file too large", attention, FILE, ["l.npy"], most=400)
    u.run(*attention, code=EQUAL)
    leaves_all(u, "the second file too large, over old ones", [*attention, "--scale", "0.25"],
               FILE, ["l.npy"], most=400)
    leaves_all(u, "an example too large", ["example", "new"], FILE, ["new/"], most=8192)
    u.check(not os.path.exists(u.path("new")), "a folder is left")


@unit("files: two outputs in one place")
def test_written_twice(u):
    os.mkdir(u.path("sub"))
    write_npy(u.path("a.npy"), "bf16", [8, 64], Draw("twice").codes("bf16", 512))
    compress = ["sparsify", "compress", "--prune", "--tags"]
    quantize = ["quantize", "--preset", "mxfp8", "--scale-out"]
    for what, arguments in (
            ("tags", [*compress, "x.npy", "a.npy=bf16", "x.npy"]),
            ("tags where the sidecar is", [*compress, "x.npy.json", "a.npy=bf16", "x.npy"]),
            ("weights", ["run", "layer", "--preset", "gpt-oss-tiny", "-o", "w", "--write-weights",
                         "w"]),
            ("scales, named another way", [*quantize, "./q.npy", "a.npy=bf16", "q.npy"]),
            ("scales, by another folder", [*quantize, "sub/../q.npy", "a.npy=bf16", "q.npy"]),
            ("scales, from the root", [*quantize, u.path("q.npy"), "a.npy=bf16", "q.npy"]),
            ("scales where the sidecar is", [*quantize, "q.npy.json", "a.npy=bf16", "q.npy"])):
        leaves_all(u, what, arguments, USAGE, ["would be written twice"])
    u.run(*quantize, "sub/q.npy", "a.npy=bf16", "q.npy", code=EQUAL)
    u.run("convert", "--to", "f32", "a.npy=bf16", "a.npy", code=EQUAL)  # over what was read
    u.run("convert", "--to", "bf16", "a.npy", "b.npy", code=EQUAL)


@unit("JSON: of schedules, an example, words in a file")
def test_json_reports(u):
    names = [s["schedule"] for s in u.json("attention", "show", code=EQUAL)["schedules"]]
    text = u.run("attention", "show", code=EQUAL).stdout
    u.check(names == [line.split()[0] for line in text.splitlines()], f"schedules: {names}")
    for name in names:
        report = u.json("attention", "show", name, code=EQUAL)
        text = u.run("attention", "show", name, code=EQUAL).stdout
        rows = [[p["key"], p["value"], p["evidence"]] for p in report["parameters"]]
        u.check(report["schedule"] == name and
                rows == [line.split()[:3] for line in text.splitlines()[1:]],
                f"{name}: JSON and text differ")
    report = u.json("example", "--fault", "rtz", "--seed", "7", "e.safetensors", code=EQUAL)
    u.check([report[k] for k in ("fault", "to", "seed", "written")] ==
            ["rtz", "bf16", 7, "e.safetensors"], f"example: {report}")
    report = u.json("rng", "--source", "philox", "--first", "3", "--count", "5", "-o", "w.npy",
                    code=EQUAL)
    u.check([report[k] for k in ("source", "first", "count", "written")] ==
            ["philox", 3, 5, "w.npy"] and "words" not in report, f"rng: {report}")


@unit("version: text and JSON")
def test_version(u):
    u.check(re.search(r"ngauge \d+\.\d+\.\d+ .*ref", u.run("version", code=EQUAL).stdout),
            "version says version and ISAs")
    u.run("--version", code=EQUAL)
    u.run("version", "extra", code=USAGE)
    report = u.json("version", code=EQUAL)
    u.check("version" in report, "version --json has a version")


# ---------------------------------------------------------------------------------------------
# info.

@unit("info: every format, against fractions")
def test_info(u):
    listed = u.json("info", code=EQUAL)
    by_name = {f.get("format"): f for f in listed}
    text = u.run("info", code=EQUAL).stdout
    for name, f in FORMATS.items():
        u.check(name in text, f"info lists {name}")
        j = by_name.get(name, {})
        u.check((j.get("bits"), j.get("exponent_bits"), j.get("mantissa_bits"), j.get("bias")) ==
                (f.bits, f.exp, f.man, f.bias), f"info {name}: {j}")
        u.check(abs(Fraction(j.get("max", "0")) / f.max() - 1) < Fraction(1, 10 ** 5),
                f"info {name}: max {j.get('max')}")
        if f.bits > 8:
            continue
        codes = u.json("info", name, code=EQUAL).get("codes", [])
        u.check(len(codes) == 1 << f.bits, f"info {name}: {len(codes)} codes")
        for code, shown in enumerate(codes):
            want = f.decode(code)
            if isinstance(want, str):
                ok = shown.replace("+", "") == want or (want == "nan" and shown == "-nan")
            else:
                ok = abs(Fraction(shown) - want) <= abs(want) / 10 ** 5
            u.check(ok, f"info {name}: code 0x{code:02x} is {shown}, wanted {want}")


@unit("info: look-alike formats, against fractions")
def test_info_versus(u):
    for a, b in [("e4m3", "e4m3fn"), ("e4m3fn", "e4m3fnuz"), ("e5m2", "e5m2fnuz"),
                 ("e5m2", "e4m3fn"), ("e3m2", "e2m3"), ("bf16", "f16"), ("e4m3", "e4m3")]:
        f, g = FORMATS[a], FORMATS[b]
        differ = []
        for code in range(1 << f.bits):
            x, y = f.decode(code), g.decode(code)
            zero_sign = x == y == 0 and code == f.sign and "fnuz" in (f.kind, g.kind)
            if x != y or zero_sign:
                differ.append(code)
        done = u.run("info", a, "--vs", b, code=EQUAL)
        last = done.stdout.strip().split("\n")[-1]
        u.check(last.startswith(f"{len(differ)} of {1 << f.bits} "),
                f"info {a} --vs {b}: '{last}', wanted {len(differ)}")
        report = u.json("info", a, "--vs", b, code=EQUAL)
        u.check(isinstance(report, (dict, list)), f"info {a} --vs {b} --json")


# ---------------------------------------------------------------------------------------------
# profile.

PROFILES = ["trn1", "trn2", "trn3", "trn4-preview", "ocp-mx", "fma-f32", "nv-volta", "nv-turing",
            "nv-ampere", "nv-ada", "nv-hopper", "nv-hopper-wgmma", "nv-blackwell",
            "nv-blackwell-tcgen05", "amd-cdna1", "amd-cdna2", "amd-cdna3"]


@unit("profile: list, show, check, diff")
def test_profiles(u):
    text = u.run("profile", "list", code=EQUAL).stdout
    listed = {p["name"]: p for p in u.json("profile", "list", code=EQUAL)}
    u.check(sorted(listed) == sorted(PROFILES), f"profile list: {sorted(listed)}")
    for name in PROFILES:
        u.check(name in text, f"profile list shows {name}")
        shown = u.run("profile", "show", name, code=EQUAL).stdout
        path = u.path(name + ".profile")
        write_text(path, shown)
        done = u.run("profile", "check", path, code=EQUAL)
        u.check("consistent" in done.stdout and listed[name]["hash"] in done.stdout,
                f"profile check of what show {name} prints: {done.stdout[:200]}")
        u.check(u.json("profile", "check", path).get("consistent") is True, f"check {name} --json")
        again = u.run("profile", "diff", name, path, code=EQUAL).stdout
        u.check("0 differences" in again, f"profile diff {name} with itself: {again[-200:]}")
        u.check(u.json("profile", "diff", name, path, code=EQUAL) == [], f"diff {name} --json")
        report = u.json("profile", "show", name, code=EQUAL)
        u.check(report.get("hash") == listed[name]["hash"] and report.get("rules"),
                f"profile show {name} --json")
        for rule in report.get("rules", []):
            for key, p in rule["parameters"].items():
                u.check(p["evidence"] and p["source"], f"{name}/{rule['rule']}: {key} has no source")


@unit("profile: keys, and every value of each of them is one")
def test_profile_keys(u):
    text = u.run("profile", "keys", code=EQUAL).stdout
    keys = u.json("profile", "keys", code=EQUAL)
    shown = {key: p["value"] for name in PROFILES for r in u.json("profile", "show", name, code=EQUAL)["rules"]
             for key, p in r["parameters"].items()}
    u.check({k["key"] for k in keys} == set(shown), "the keys of all profiles")
    path = u.path("keys.profile")
    for k in keys:
        u.check(k["key"] in text and k["values"] in text and k["meaning"] in text, f"{k['key']} as text")
        u.check(k["family"] in ("array", "fused", "both"), f"{k['key']}: {k['family']}")
        named = not k["values"].endswith(("an integer", "as 0x7FC00000"))
        u.check(shown[k["key"]] in k["values"].split() if named else re.match(r"-?\d|none$", shown[k["key"]]),
                f"{k['key']} = {shown[k['key']]}")
        for value in k["values"].split() if named else []:
            write_text(path, f"profile x\nrevision 1\nabout x\nrule r mode=plain a=bf16 b=bf16\n {k['key']} = {value}\n")
            done = u.run("profile", "check", path)
            u.check("no value of it" not in done.stderr, f"{k['key']} = {value}: {done.stderr}")


@unit("profile: diff of trn2 and trn3, and of one changed value")
def test_profile_diff(u):
    text = u.run("profile", "diff", "trn2", "trn3", code=DIFFERS).stdout
    u.check("only in the second" in text and "mx" in text and "e4m3fn" in text,
            "profile diff trn2 trn3 names the MX rule and e4m3fn")
    report = u.json("profile", "diff", "trn2", "trn3", code=DIFFERS)
    u.check(any(d.get("rule") == "mx" and d.get("only_in") == "trn3" for d in report),
            "profile diff trn2 trn3 --json names the MX rule")
    told = int(re.search(r"(\d+) differences?\n$", text).group(1))
    u.check(told == len(report), f"profile diff: {told} differences as text, {len(report)} as JSON")
    write_text(u.path("my.profile"), edit_profile(u, "nv-ampere", "bf16", frac=23)["text"])
    text = u.run("profile", "diff", "nv-ampere", "my.profile", code=DIFFERS).stdout
    u.check("frac: 24 (measured) -> 23" in text and "1 difference\n" in text,
            f"profile diff of one value: {text}")
    report = u.json("profile", "diff", "nv-ampere", "my.profile", code=DIFFERS)
    u.check(len(report) == 1 and report[0]["key"] == "frac" and report[0]["rule"] == "bf16",
            f"profile diff of one value --json: {report}")


@unit("profile: bad files")
def test_bad_profiles(u):
    good = u.run("profile", "show", "trn2", code=EQUAL).stdout

    def refuse(what, text, *words):
        write_text(u.path("bad.profile"), text)
        u.refuses(what, ["profile", "check", u.path("bad.profile")], FILE,
                  ["bad.profile", *words])
    refuse("empty", "")
    refuse("no profile", "hello\n", "1")
    refuse("unknown key", good.replace("chain_rows ", "chain_rose ", 1), "chain_rose")
    refuse("bad value", re.sub(r"(chain_map +=) \S+", r"\1 spiral", good, count=1), "spiral",
           "wanted: block parity")
    refuse("bad number", re.sub(r"(rows +=) \S+", r"\1 12x", good, count=1), "12x")
    refuse("huge number", re.sub(r"(rows +=) \S+", r"\1 99999999999999999999", good, count=1))
    refuse("negative number", re.sub(r"(acc_bits +=) \S+", r"\1 -3", good, count=1), "acc_bits")
    refuse("acc_bits out of range", re.sub(r"(acc_bits +=) \S+", r"\1 1", good, count=1), "acc_bits")
    refuse("unknown format", good.replace("a=bf16", "a=bf17", 1), "bf17")
    refuse("unknown mode", good.replace("mode=plain", "mode=plane", 1), "plane")
    refuse("unknown evidence", good.replace("# documented", "# dreamt", 1).replace(
        "chain_rows    = 32", "chain_rows    = -1", 1))
    refuse("truncated in a rule", good[:good.index("mode=plain") + 4])
    refuse("a rule twice", good + good[good.index("rule plain"):], "plain")
    short = "profile x\nrevision 1\n"
    rule = "rule mx mode=mx block=32 a=e4m3fn b=e4m3fn\n"
    refuse("lanes", short + rule + "rows = 64\nlanes = 0\n", "line 5", "lanes is 0", "1 to 64")
    refuse("acc_bits", short + rule + "acc_bits = 1000\n" + rule, "line 4", "acc_bits is 1000")
    refuse("no NaN", short + rule + "nan_f32 = 0x3f800000\n", "line 4", "nan_f32", "NaN")
    refuse("two revisions", short + "revision 1\n" + rule, "line 3", "revision")
    refuse("two blocks", short + rule.replace("block=32", "block=32 block=16"), "line 3", "block")
    refuse("no name of a rule", short + rule.replace("mx mode", "mode"), "line 3", "name", "mode=mx")
    for verb in ("check", "show"):
        with open(u.path("latin.profile"), "wb") as file:
            file.write(b"profile x\nrevision 1\nabout caf\xe9\n" + rule.encode())
        u.refuses(f"{verb} of Latin-1", ["profile", verb, u.path("latin.profile"), "--json"], FILE,
                  ["line 3", "0xE9", "UTF-8"])
    write_text(u.path("trn2.profile"), good.replace("revision 1", "revision 9", 1))
    for path, told in (("trn2.profile", True), ("trn2", False)):
        text = u.run("profile", "check", path, code=EQUAL).stdout
        u.check(("built-in profile has this name" in text) == told, f"check {path}: {text}")
        u.check((u.json("profile", "check", path, code=EQUAL)["built_in"] is not None) == told,
                f"check {path} --json")
    u.refuses("missing file", ["profile", "check", u.path("none.profile")], FILE, ["none.profile"])
    u.refuses("a folder", ["profile", "check", u.home + "/"], FILE)
    with open(u.path("binary.profile"), "wb") as file:
        file.write(bytes(range(256)) * 16)
    u.refuses("binary", ["profile", "check", u.path("binary.profile")], FILE)


PROBE_A = "1213b4f5c5c8e80110223fdf09dfaf298b28d1181d2de75e94eb0415576585d2"
PROBE_B = "cb58ac69d742925f69789aa2d92dd67fe9d31f75f94d941d4949873ff0f6cd45"


@unit("probe: the values of a unit, by every kind of file")
def test_probe(u):
    sizes = ["--rows", "24", "--columns", "6", "--rounds", "1"]
    make = ["probe", "make", "--profile", "trn2", "--a", "e5m2", "--b", "e4m3", *sizes]
    told = u.run(*make, "p", code=EQUAL).stdout
    report = u.json(*make, "--threads", "2", "q", code=EQUAL)
    u.check(sorted(os.listdir(u.path("p"))) == ["a.npy", "a.npy.json", "b.npy", "b.npy.json", "case.json"],
            f"probe make: {os.listdir(u.path('p'))}")
    for name in ("a.npy", "b.npy", "case.json"):
        with open(u.path("p/" + name), "rb") as one, open(u.path("q/" + name), "rb") as other:
            data = one.read()
            u.check(data == other.read(), f"probe make: {name} of the same seed differs")
            # Whatever the compiler: a result that a device gave for a probe is of these operands.
            digest = {"a.npy": PROBE_A, "b.npy": PROBE_B}.get(name)
            u.check(not digest or hashlib.sha256(data).hexdigest() == digest, f"probe make: other operands in {name}")
    for key in ("chain_rows", "chain_map", "combine", "acc_bits", "acc_round"):
        p = next(p for p in report["parameters"] if p["key"] == key)
        u.check(p["contradicted"] and not p["open"], f"probe make: {key} would not be decided: {p}")
        u.check(re.search(rf"^  {key} +{p['value']} ", told, re.M), f"probe make says nothing of {key}")
    u.run(*make, "--seed", "2", "p.safetensors", "-q", code=EQUAL)
    # A unit with two other values; its result beside the operands, elsewhere, raw.
    unit = ["--set", "plain.chain_rows=64", "--set", "plain.acc_round=rna"]
    u.run("run", "p", *unit, "-o", "p/d.npy", code=EQUAL)
    u.run("run", "p.safetensors", *unit, "-o", "d.npy", code=EQUAL)
    u.run("run", "p.safetensors", *unit, "-o", "d.bin", code=EQUAL)
    os.remove(u.path("d.npy.json"))
    reads = [["p", "-o", "unit.profile", "--source", "a unit, made up", "--name", "unit"],
             ["p.safetensors", "--dump", "d.npy"], ["p.safetensors", "--dump", "d.bin=f32:24x6"]]
    for read in reads:
        case = u.json("probe", "read", *read, code=EQUAL)["cases"][0]
        u.check(sorted((c["key"], c["from"], c["to"]) for c in case["changes"]) ==
                [("acc_round", "rne", "rna"), ("chain_rows", "32", "64")], f"probe read: {case['changes']}")
        u.check(case["explained"] == case["elements"] == 24 * 6 and case["verdict"] == "explained" and
                case["from"] == "trn2", f"probe read: {case}")
    text = u.run("probe", "read", "p", code=EQUAL).stdout
    u.check("chain_rows=64 (there 32)" in text and "verdict: all 144 elements follow" in text, f"probe read: {text}")
    # What it wrote is a profile that gives the unit's results, and says what rests on them.
    shown = {p["rule"]: p["parameters"] for p in u.json("profile", "show", "./unit.profile", code=EQUAL)["rules"]}
    u.check(shown["plain"]["chain_rows"] == {"value": "64", "evidence": "measured", "source": "a unit, made up"},
            f"profile of a probe: {shown['plain']['chain_rows']}")
    u.check(shown["f32"]["chain_rows"]["evidence"] == "inferred", "profile of a probe: another rule's evidence changed")
    case = json.loads(read_text(u.path("p/case.json")))
    case["cases"][0]["profile"] = {"file": "../unit.profile"}
    write_text(u.path("p/case.json"), json.dumps(case))
    u.run("verify", "p", code=EQUAL)
    os.mkdir(u.path("run=1"))  # no type: a name
    shutil.copy(u.path("p/d.npy"), u.path("run=1/d.npy"))
    u.run("probe", "read", "p", "--dump", "run=1/d.npy", "-q", code=EQUAL)
    for name, source in (("two words", "z"), ("one", "two\nlines")):
        u.run("probe", "read", "p", "-o", "bad.profile", "--name", name, "--source", source, "-q", code=USAGE)
        u.check(not os.path.exists(u.path("bad.profile")), f"a profile that is none was written: {name}, {source}")
    # Another setting is another profile: never a built-in one's name.
    u.run(*make, "--set", "plain.chain_rows=64", "--rounds", "0", "-q", "s", code=EQUAL)
    u.check(json.loads(read_text(u.path("s/case.json")))["cases"][0]["profile"]["text"].startswith("profile trn2+set\n"),
            "probe make --set keeps the profile's name")
    # One wrong bit that no value gives.
    with open(u.path("p/d.npy"), "r+b") as file:
        file.seek(-4 * 11, os.SEEK_END)
        word = file.read(4)
        file.seek(-4 * 11, os.SEEK_END)
        file.write(bytes([word[0] ^ 1]) + word[1:])
    case = u.json("probe", "read", "p", code=DIFFERS)["cases"][0]
    u.check(case["explained"] == 143 and case["left"]["index"] == [22, 1], f"a bit: {case['left']}")
    done = u.run("probe", "read", "p", "-o", "none.profile", "--source", "x", code=DIFFERS)
    u.check("none.profile is not written: 1 elements" in done.stderr and not os.path.exists(u.path("none.profile")),
            f"a profile that does not give the data: {done.stderr}")


@unit("probe: what it refuses")
def test_probe_bad(u):
    make = ["probe", "make", "--profile", "trn3", "--a", "bf16", "--b", "bf16"]
    for what, arguments, code, words in (
            ("no profile", ["--a", "bf16", "--b", "bf16", "x"], USAGE, ["--profile"]),
            ("no formats", ["--profile", "trn3", "--a", "bf16", "x"], USAGE, ["--b FORMAT"]),
            ("no such profile", ["--profile", "trn9", "--a", "bf16", "--b", "bf16", "x"], USAGE, ["trn9"]),
            ("no such format", ["--profile", "trn3", "--a", "e9m9", "--b", "bf16", "x"], USAGE, ["e9m9"]),
            ("no rule", ["--profile", "trn3", "--a", "bf16", "--b", "f32", "x"], REFUSED, ["bf16", "f32"]),
            ("no scales", ["--profile", "trn2", "--a", "e5m2", "--b", "e5m2", "--scales", "e8m0", "x"], REFUSED, ["mode mx"]),
            ("scale format", ["--profile", "trn3", "--a", "e5m2", "--b", "e5m2", "--scales", "bf16", "x"], USAGE, ["e8m0"]),
            ("double row and scales", ["--profile", "trn3", "--a", "e5m2", "--b", "e5m2", "--double-row", "--scales",
                                       "e8m0", "x"], USAGE, ["--scales"]),
            ("odd rows of nibbles", ["--profile", "trn3", "--a", "e2m1", "--b", "e2m1", "--scales", "e8m0",
                                     "--columns", "3", "x"], REFUSED, ["--columns"]),
            ("an accumulator", [*make[2:], "--accumulate", "f16", "x"], REFUSED, ["f16"]),
            ("no number", [*make[2:], "--depth", "0", "x"], USAGE, ["--depth", "0"]),
            ("rounds", [*make[2:], "--rounds", "many", "x"], USAGE, ["many"]),
            ("a value", [*make[2:], "--set", "plain.chain_rows=many", "x"], USAGE, ["plain.chain_rows", "many", "an integer"]),
            ("a rule", [*make[2:], "--set", "plane.rows=32", "x"], USAGE, ["plane.rows", "no such rule", "plain"]),
            ("no OUT", make[2:], USAGE, ["one OUT"]), ("two", [*make[2:], "x", "y"], USAGE, ["one OUT"]),
            ("an option of read", [*make[2:], "--source", "z", "x"], USAGE, ["--source says nothing to probe make"]),
            ("OUT as an option", [*make[2:], "-o", "x"], USAGE, ["probe make wants one OUT"]),
            ("OUT twice", [*make[2:], "-o", "y", "x"], USAGE, ["-o says nothing to probe make"])):
        u.refuses(what, ["probe", "make", *arguments], code, words)
        u.check(not os.path.exists(u.path("x")), f"{what}: wrote x")
    u.run("probe", code=USAGE)
    u.run("probe", "ask", code=USAGE)
    u.run(*make, "--rows", "4", "--columns", "4", "--rounds", "0", "-q", "x", code=EQUAL)
    write_npy(u.path("short.npy"), "f32", [4, 3], [0] * 12)
    write_npy(u.path("half.npy"), "bf16", [4, 4], [0] * 16)
    for name in ("short.npy", "half.npy"):
        if os.path.exists(u.path(name + ".json")):
            os.remove(u.path(name + ".json"))
    u.run("quantize", "--preset", "mxfp8", "half.npy=bf16", "q.safetensors", code=EQUAL)
    for what, arguments, code, words in (
            ("no result", ["x"], FILE, ["d.npy"]), ("no case", ["nix"], FILE, ["nix"]),
            ("another shape", ["x", "--dump", "short.npy"], REFUSED, ["[4, 3]", "[4, 4]"]),
            ("another format", ["x", "--dump", "half.npy=bf16"], REFUSED, ["bf16", "f32"]),
            ("a missing dump", ["x", "--dump", "none.npy"], FILE, ["none.npy"]),
            ("-o without a source", ["x", "-o", "p.profile"], USAGE, ["--source"]),
            ("a name of nothing", ["x", "--name", "p"], USAGE, ["--name"]),
            ("a name that is taken", ["x", "-o", "p.profile", "--source", "z", "--name", "trn2"], USAGE, ["trn2", "built-in"]),
            ("operands", ["x", "--a", "bf16"], USAGE, ["--a says nothing to probe read"]),
            ("a conversion", ["q.safetensors"], REFUSED, ["quantize"]), ("two cases", ["x", "x"], USAGE, ["one CASE"])):
        u.refuses(what, ["probe", "read", *arguments], code, words)


# ---------------------------------------------------------------------------------------------
# example, selftest.

FAULTS = {"none": None, "rtz": "out round=rtz", "lanes": "lane_sum=chain",
          "adder": "acc_round=rtz", "psum": "accumulate=bf16",
          "swap": "scales of a and b swapped", "bit": None}


def test_example(u, fault, suffix):
    out = u.path("ex" + suffix)
    u.run("example", "--fault", fault, out, code=EQUAL)
    # Small cases explain these faults below: 48 x 48 x 1024 takes long.
    slow = ["--no-explain"] if fault in ("lanes", "adder", "rtz") else []
    report = u.json("verify", out, *slow, code=EQUAL if fault == "none" else DIFFERS)
    if not report:
        return
    one = report["cases"][0]
    u.check(report["schema"] == "ng.report/1" and one["op"] == "gemm" and one["profile"] == "trn3",
            f"example {fault}: report")
    if fault == "none":
        u.check(report["verdict"] == "equal" and report["differ"] == 0, "example: equal")
    elif fault == "bit":
        u.check(one["elements"]["differ"] == 1 and one["mismatches"][0]["index"] == [17, 5],
                f"example bit: {one['mismatches']}")
        u.check(one["explain"]["certain"] == 0 and not one["explain"]["findings"],
                "example bit: nothing explains one flipped bit")
    elif not slow:
        explained(u, one, [FAULTS[fault]])


for FAULT in FAULTS:
    add_unit(f"example: fault {FAULT}", test_example, FAULT,
             ".safetensors" if FAULT in ("none", "psum") else "")


@unit("selftest: passes, and --print, and JSON")
def test_selftest(u):
    done = u.run("selftest", "--isa", "ref", code=EQUAL)
    u.check("0 failed" in done.stdout, f"selftest: {done.stdout[-200:]}")
    report = u.json("selftest", "--isa", "ref")
    u.check(report, "selftest --json")


# ---------------------------------------------------------------------------------------------
# sweep. A chunk is 2^20 patterns, so chunk c begins at the pattern c << 20: 1000 is 0.25, 1016 is 1.0.

def sweep(u, *options, code=EQUAL):
    report = u.json("sweep", *options, code=code)
    rows = report.get("sweeps", [])
    u.check(len(rows) == 1, f"sweep {' '.join(options)}: {len(rows)} cases")
    return rows[0] if rows else {}


def state_chunks(path):
    """The chunks of a state, and its two first lines."""
    lines = read_text(path).split("\n")
    return {int(x.split()[0]): x.split()[1] for x in lines[2:-1]}, lines[:2]


@unit("sweep: shards, merged, are the whole; threads and ISA change nothing")
def test_sweep_shards(u):
    case = ["--to", "e2m1", "--chunks", "1010:1017"]
    whole = sweep(u, *case, "--state", u.path("whole"))
    u.check(whole.get("chunks") == [1010, 1017] and whole.get("published", 0) is None,
            f"sweep: {whole}")
    for i in range(3):
        sweep(u, *case, "--shard", f"{i}/3", "--state", u.path(f"part{i}"))
    parts = [u.path(f"part{i}") for i in (2, 0, 1)]
    for i, path in zip((2, 0, 1), parts):
        first, last = 1010 + 7 * i // 3, 1010 + 7 * (i + 1) // 3
        u.check(sorted(state_chunks(path)[0]) == list(range(first, last)), f"shard {i}/3")
    merged = sweep(u, "--merge", *parts, "--chunks", "1010:1017")
    u.check(merged.get("digest") == whole.get("digest") is not None, "merged is not the whole")
    again = sweep(u, "--merge", *parts, u.path("whole"), "--chunks", "1010:1017")
    u.check(again.get("digest") == whole.get("digest"), "chunks that are in two states")
    u.refuses("a chunk is missing", ["sweep", "--merge", *parts[:2], "--chunks", "1010:1017"], FILE,
              ["chunk 1012"])
    u.refuses("the rest is missing", ["sweep", "--merge", *parts], FILE, ["chunk 0"])
    for options in (["--threads", "3"], ["--isa", "ref"], ["--both"]):
        one = sweep(u, *case, *options)
        u.check(one.get("digest") == whole.get("digest"), f"{options} changes the digest")
    u.check(one.get("compared_with") == "ref", "--both says with what")
    other = sweep(u, "--to", "e2m1", "--chunks", "1011:1017")
    u.check(other.get("digest") != whole.get("digest"), "other chunks, the same digest")


@unit("sweep: the digests of related rules")
def test_sweep_rules(u):
    def digest(fmt, *options, chunks="1014:1016"):
        return sweep(u, "--to", fmt, "--chunks", chunks, *options).get("digest")

    near = {r: digest("e4m3fn", "--round", r) for r in ("rne", "rtz", "rup", "rdn", "rto")}
    u.check(near["rtz"] == near["rdn"] and len(set(near.values())) == 4,
            f"positive inputs: {near}")
    # Variant a adds the word to 32 fraction bits: 0 truncates, all ones rounds any fraction up.
    u.check(digest("e4m3fn", "--round", "sr", "--word", "0") == near["rtz"], "sr with word 0")
    u.check(digest("e4m3fn", "--round", "sr", "--word", "0xffffffff") == near["rup"], "sr, all ones")
    u.check(digest("e4m3fn", "--round", "sr", "--word", "1", "--sr-bits", "1", "--sr", "a") ==
            digest("e4m3fn", "--round", "sr", "--word", "0x80000000", "--sr-bits", "1",
                   "--sr-take", "high"), "sr_take")
    nans = "4089:4090"  # negative NaNs only
    u.check(digest("bf16", chunks=nans) == digest("bf16", chunks="2041:2042"), "nan_sign=clear")
    u.check(digest("bf16", "--nan-sign", "keep", chunks=nans) != digest("bf16", chunks=nans),
            "nan_sign=keep")
    u.check(digest("e2m1", "--nan-to", "zero", chunks=nans) == digest("e2m1", chunks="0:1"),
            "nan_to=zero")
    rows = u.json("sweep", "--to", "all", "--chunks", "2040:2041", code=EQUAL).get("sweeps", [])
    u.check(len(rows) == 15 and len({r["case"] for r in rows}) == 15, f"all formats: {len(rows)} cases")
    rows = u.json("sweep", "--to", "all", "--overflow", "inf", "--chunks", "0:1", code=EQUAL).get("sweeps", [])
    u.check(len(rows) == 11, f"four formats refuse inf: {len(rows)} cases")


@unit("sweep: killed, it goes on where it was")
def test_sweep_resume(u):
    case = ["--to", "f16", "--chunks", "1010:1026"]
    state = u.path("state")
    child = subprocess.Popen([NGAUGE, "sweep", *case, "--state", state], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    limit = time.monotonic() + TIMEOUT
    while time.monotonic() < limit and child.poll() is None:
        if os.path.exists(state) and read_text(state).count("\n") > 5:
            break
        time.sleep(0.005)
    child.kill()
    child.wait()
    kept = state_chunks(state)[0]
    u.check(4 <= len(kept), f"{len(kept)} chunks were kept")
    with open(state, "a", encoding="utf-8") as f:
        f.write("1025 0123")  # as if the last write had been cut
    done = sweep(u, *case, "--state", state)
    u.check(done.get("resumed") == len(kept), f"resumed {done.get('resumed')} of {len(kept)}")
    chunks = state_chunks(state)[0]
    u.check(sorted(chunks) == list(range(1010, 1026)), "the state does not hold all chunks")
    u.check(all(chunks[c] == kept[c] for c in kept), "a kept chunk has changed")
    fresh = sweep(u, *case, "--threads", "2")
    u.check(fresh.get("digest") == done.get("digest"), "not the digest of one that was not killed")
    u.check(sweep(u, *case, "--state", state).get("resumed") == 16, "a finished one is not swept again")
    many = ["sweep", "--to", "e5m2", "--overflow", "all", "--chunks", "0:1", "--state", state]
    u.run(*many, code=EQUAL)
    for o in ("inf", "sat", "sat_keep_inf"):
        u.check(os.path.exists(f"{state}.e5m2-rne-{o}"), f"several cases: no state for {o}")


@unit("sweep: states that are of something else")
def test_sweep_states(u):
    case = ["sweep", "--to", "e5m2", "--chunks", "1016:1018"]
    good = u.path("good")
    u.run(*case, "--state", good, code=EQUAL)
    text = read_text(good)
    head, by, first, second = text.split("\n")[:4]

    def refuse(what, new, code, *words):
        path = u.path("bad")
        write_text(path, new)
        u.refuses(what, case + ["--state", path], code, words)
        u.check(read_text(path) == new, f"{what}: the state was written to")
        if "by" not in what:
            u.refuses(what + ", merged", ["sweep", "--merge", path, good, "--chunks", "1016:1018"], code,
                      [] if "another case" in what else words[:1])

    refuse("another case", text.replace("to=e5m2", "to=e4m3"), FILE, "to=e4m3", "to=e5m2")
    refuse("another rounding", text.replace("round=rne", "round=rtz") + "", FILE, "round=")
    refuse("another version", head.replace("version=", "version=9") + text[len(head):], FILE, "version=9")
    refuse("computed by others", text.replace(by, "by abacus"), FILE, "abacus")
    refuse("no state", "hello\n" + text, FILE, "is no state")
    refuse("only half a line", head[:20], FILE, "is no state")
    refuse("without its second line", head + "\n", FILE, "by whom")
    refuse("a chunk past the end", text + "4096" + first[4:] + "\n", FILE, "line 5", "4096")
    refuse("no digest", text + "1018 " + "x" * 32 + "\n", FILE, "line 5")
    refuse("a digest too long", text + first + "0\n", FILE, "line 5")
    refuse("a negative chunk", text + "-1" + first[4:] + "\n", FILE, "line 5")
    flipped = first[:-1] + ("0" if first[-1] != "0" else "1")
    refuse("two digests of a chunk", text + flipped + "\n", DIFFERS, "chunk 1016", "line 5")
    write_text(u.path("empty"), "")
    done = u.json(*case, "--state", u.path("empty"), code=EQUAL)
    u.check(read_text(u.path("empty")) == text and done["sweeps"][0]["resumed"] == 0,
            "an empty state is a new one")
    write_text(u.path("empty"), "")
    u.refuses("merging nothing", ["sweep", "--merge", u.path("empty")], FILE, ["is empty"])
    u.refuses("merging no file", ["sweep", "--merge", u.path("none")], FILE, ["none"])
    u.refuses("a state that is a folder", case + ["--state", u.home], FILE, [u.home])
    os.mkfifo(u.path("pipe"))
    for arguments in (case + ["--state", u.path("pipe")], ["sweep", "--merge", u.path("pipe")]):
        u.refuses("a state that is a pipe", arguments, FILE, ["is a pipe", "regular file"])
    done = subprocess.run([NGAUGE, *case, "--state", u.path("short")], stderr=subprocess.PIPE,
                          text=True, check=False, timeout=TIMEOUT, preexec_fn=lambda:
                          resource.setrlimit(resource.RLIMIT_FSIZE, (120, 120)))
    u.check(done.returncode == FILE and "short" in done.stderr,
            f"a state without room: exit {done.returncode}: {done.stderr}")


@unit("sweep: --check against the published digests")
def test_sweep_check(u):
    # A chunk in which the code of e2m1 is constant has the digest of any other with that code. Its
    # thresholds 0.25 to 5 begin chunks: sweep those, one after each, and one of each special kind.
    edges = [0, 1000, 1012, 1018, 1022, 1026, 1030, 1034, 2040, 2048]
    chunks, head = {}, None
    for sign in (0, 2048):
        for first, end in zip(edges, edges[1:]):
            path = u.path(f"{sign + first}")
            u.run("sweep", "--to", "e2m1", "--chunks", f"{sign + first}:{sign + first + 2}", "--state",
                  path, code=EQUAL)
            part, head = state_chunks(path)
            chunks[sign + first] = part[sign + first]
            chunks.update((sign + c, part[sign + first + 1]) for c in range(first + 1, end))
    state = u.path("all")
    text = "\n".join(head) + "\n" + "".join(f"{c} {chunks[c]}\n" for c in range(4096))
    write_text(state, text)
    listed = u.json("sweep", "--list")
    published = {(p["to"], p["round"], p["overflow"]): p["digest"] for p in listed if "to" in p}
    u.check(len(published) == 246, f"{len(published)} digests are published")
    u.check(len({(p["function"], p["choice"]) for p in listed if "function" in p}) == 14, "digests of functions")
    row = sweep(u, "--to", "e2m1", "--check", "--state", state)
    want = published["e2m1", "rne", "sat"]
    u.check(row.get("digest") == want == row.get("published") and row.get("same") is True, f"{row}")
    u.check("as published" in u.run("sweep", "--merge", state, "--check", code=EQUAL).stdout, "merged")
    write_text(state, text.replace(chunks[1020], chunks[1030]))
    row = sweep(u, "--merge", state, "--check", code=DIFFERS)
    u.check(row.get("same") is False and row.get("published") == want, f"one chunk is wrong: {row}")
    done = u.run("sweep", "--to", "e2m1", "--check", "--state", state, code=DIFFERS)
    u.check("DIFFERS" in done.stdout and want in done.stdout, f"text: {done.stdout}")
    write_text(state, text.replace("nan_sign=clear", "nan_sign=keep"))
    u.refuses("not published", ["sweep", "--merge", state, "--check"], USAGE, ["nan_sign=keep", "--list"])


@unit("sweep: wrong options")
def test_sweep_options(u):
    e5m2 = ["sweep", "--to", "e5m2"]
    for what, options, words in (
            ("no format", ["sweep"], ["--to"]),
            ("an unknown format", ["sweep", "--to", "e4m4"], ["e4m4"]),
            ("an unknown rounding", e5m2 + ["--round", "up"], ["up"]),
            ("an unknown overflow", e5m2 + ["--overflow", "wrap"], ["wrap"]),
            ("an argument", e5m2 + ["x"], ["--merge"]),
            ("sr without its word", e5m2 + ["--round", "sr"], ["--word"]),
            ("a word without sr", e5m2 + ["--word", "1"], ["sr"]),
            ("a variant without sr", e5m2 + ["--sr", "b"], ["sr"]),
            ("no variant", e5m2 + ["--round", "sr", "--word", "1", "--sr", "d"], ["'d'"]),
            ("too many bits", e5m2 + ["--round", "sr", "--word", "1", "--sr-bits", "33"], ["33"]),
            ("a word of 33 bits", e5m2 + ["--round", "sr", "--word", "0x100000000"], ["0x1"]),
            ("no chunks", e5m2 + ["--chunks", "5:5"], ["5:5"]),
            ("chunks past the end", e5m2 + ["--chunks", "4000:4097"], ["4097"]),
            ("half a range", e5m2 + ["--chunks", "7"], ["7"]),
            ("no such shard", e5m2 + ["--shard", "2/2"], ["2/2"]),
            ("more shards than chunks", e5m2 + ["--chunks", "0:2", "--shard", "0/3"], ["3 shards"]),
            ("checking a part", e5m2 + ["--check", "--chunks", "0:9"], ["--check"]),
            ("checking a shard", e5m2 + ["--check", "--shard", "0/2"], ["--check"]),
            ("merging nothing", ["sweep", "--merge"], ["--merge"]),
            ("merging a case", e5m2 + ["--merge", "x"], ["--merge"])):
        u.refuses(what, options, USAGE, words)
    u.refuses("not published", e5m2 + ["--check", "--nan-sign", "keep"], USAGE, ["--list"])
    u.refuses("f32 is not published", ["sweep", "--to", "f32", "--check"], USAGE, ["--list"])
    u.refuses("what the library refuses", ["sweep", "--to", "e2m1", "--overflow", "inf"], REFUSED,
              ["e2m1"])


@unit("kernels: those of this build, and which this CPU has")
def test_kernels(u):
    report = u.json("kernels", code=EQUAL)
    isas = report.get("isas", [])
    here = [i["isa"] for i in isas if i["here"]]
    u.check(sorted(here) == sorted(u.json("version")["isas"]), f"kernels: {here} are here")
    u.check(isas and isas[-1] == {"isa": "ref", "here": True,
                                  "kernels": [{"kernel": "ref", "does": "everything"}]},
            "the reference is last")
    text = u.run("kernels", code=EQUAL).stdout
    for i in isas:
        if i["isa"] == "avx2":
            u.check({k["does"] for k in i["kernels"]} >= {"multiply", "convert", "sparse", "random", "elementary",
                                                          "attention", "moe"}, f"every sort: {i}")
        for name in (k["kernel"] for k in i["kernels"]):
            u.check(name in text, f"the text does not name {name}")
            u.check(name == "ref" or name.endswith("__" + i["isa"]), f"{name} in {i['isa']}")
    u.check(u.json("kernels", "--isa", "ref").get("isas") == isas, "--isa changes the list")
    u.refuses("kernels of a case without --explain", ["kernels", "x.json"], USAGE, ["--explain"])


def explain_kernels(u, path, *options):
    """One case's report, looked at for what holds of every case."""
    done = u.json("kernels", "--explain", path, *options, code=EQUAL)
    one = done.get("cases", [{}])[0]
    kernels, tiles = one.get("kernels", []), one.get("tiles", {})
    here = u.json("version")["isas"]
    chosen = [k["kernel"] for k in kernels if k["chosen"]]
    u.check(chosen == [one.get("kernel")] or not kernels, f"{path}: {chosen} and {one.get('kernel')}")
    u.check(set(tiles) == {"fast", "exact", "reference"} and sum(tiles.values()) > 0,
            f"{path}: tiles {tiles}")
    for k in kernels:
        u.check(bool(k["why_not"]) != k["chosen"], f"{path}: {k}")
        u.check((k["why_not"] == "not on this CPU") == (k["isa"] not in here), f"{path}: {k}")
    return one


@unit("kernels: --explain names the one that runs, and why not the others")
def test_kernels_explain(u):
    u.run("example", u.path("mx.safetensors"))
    paths = [u.path("mx.safetensors")]
    for name in ("bf16", "double_row", "sparse", "c", "ada fp8"):
        c = MULTIPLIES[name](u)
        os.mkdir(u.path(name))
        for file in [f for f in os.listdir(u.home) if f.endswith(".npy")]:
            os.rename(u.path(file), os.path.join(u.path(name), file))
        paths.append(write_case(u, os.path.join(name, "case.json"), c.json))
    for path in paths:
        one = explain_kernels(u, path)
        ran = u.json("run", path, "-o", "out.npy")
        u.check(ran.get("kernel") == one.get("kernel"), f"{path}: run says {ran.get('kernel')}")
        text = u.run("kernels", "--explain", path, code=EQUAL).stdout
        u.check(f"> {one['kernel']} " in text and one["kernels"][0]["kernel"] in text,
                f"{path}: {text}")
        ref = explain_kernels(u, path, "--isa", "ref")
        u.check(ref["kernel"] == "ref" and ref["tiles"]["fast"] == ref["tiles"]["exact"] == 0,
                f"{path}: {ref['tiles']}")
        for k in ref["kernels"]:
            u.check(k["chosen"] or k["why_not"] in ("not on this CPU", "excluded by isa_mask"), k)
    mx = explain_kernels(u, paths[0], "--isa", "ref")
    u.check(mx["tiles"]["reference"] == 48 * 48, f"elements of the reference: {mx['tiles']}")


@unit("kernels: --explain of a dot, of few products, of other operations")
def test_kernels_explain_others(u):
    here = {i["isa"] for i in u.json("kernels", code=EQUAL)["isas"] if i["here"]}
    c = Case(u, "dot", profile="trn2").tensor("a", "bf16", [5, 40]).tensor("b", "bf16", [5, 40])
    path = write_case(u, "dot.json", c.output("f32").json)
    one = explain_kernels(u, path)
    u.check([k["kernel"] for k in one["kernels"] if k["chosen"]] == [one["kernel"]], f"dot: {one}")
    u.check("avx2" not in here or one["tiles"]["fast"] == 1, f"dot: a tile: {one}")
    u.check(f"> {one['kernel']} " in u.run("kernels", "--explain", path, code=EQUAL).stdout, "dot: text")
    for op, shapes in (("dot", ([3, 8], [3, 8])), ("gemm", ([2, 4], [4, 2]))):
        c = Case(u, op, profile="trn2").tensor("a", "bf16", shapes[0]).tensor("b", "bf16", shapes[1])
        one = explain_kernels(u, write_case(u, f"few_{op}.json", c.output("f32").json))
        u.check(one["kernel"] == "ref", f"{op} of few products: {one['kernel']}")
        u.check("avx2" not in here or "too few products" in [k["why_not"] for k in one["kernels"]],
                f"{op} of few products: {one['kernels']}")
    other = Case(u, "convert").tensor("src", "f32", [64, 64]).output("bf16")
    path = write_case(u, "convert.json", other.json)
    attention_files(u, "kernels of attention", queries=8, keys=40)
    for path in (path, write_case(u, "attention.json", attention_case())):
        for isa in ([], ["--isa", "ref"]):
            report = u.json("kernels", "--explain", path, *isa, code=EQUAL)["cases"][0]
            chosen = [k for k in report["kernels"] if k["chosen"]]
            u.check([k["kernel"] for k in chosen] == [report["kernel"]] and chosen[0]["why_not"] is None,
                    f"{path}: {report['kernels']}")
            u.check(all(k["why_not"] for k in report["kernels"] if not k["chosen"]), f"{path}: why not")
            text = u.run("kernels", "--explain", path, *isa, code=EQUAL).stdout
            u.check(f"> {report['kernel']} " in text, f"{path}: {text}")
            u.check(not isa or report["kernel"] == "ref", f"{path}: {report['kernel']}")
        best = u.json("kernels", "--explain", path, code=EQUAL)["cases"][0]["kernel"]
        u.check("avx2" not in here or best != "ref", f"{path}: a kernel takes it: {best}")
    u.refuses("kernels of no file", ["kernels", "--explain", u.path("nowhere.json")], FILE,
              ["nowhere.json"])
    bad = Case(u, "gemm", profile="trn2").tensor("a", "bf16", [4, 8]).tensor("b", "bf16", [9, 4])
    u.refuses("kernels of operands that do not fit",
              ["kernels", "--explain", write_case(u, "bad.json", bad.output("f32").json)], REFUSED,
              ["8", "9"])


def stages_of(u, path, *options):
    """A case's stages, looked at for what holds of all; (stage, does) -> (times, chosen)."""
    one = u.json("kernels", "--explain", path, *options, code=EQUAL)["cases"][0]
    here = u.json("version")["isas"]
    text = u.run("kernels", "--explain", path, *options, code=EQUAL).stdout
    known = {i["isa"]: [k for k in i["kernels"]] for i in u.json("kernels")["isas"]}
    got = {}
    for s in one["stages"]:
        chosen = [k["kernel"] for k in s["kernels"] if k["chosen"]]
        u.check(len(chosen) == 1 and s["kernels"][-1]["kernel"] == "ref", f"{path}: {s}")
        u.check(len(s["kernels"]) == 1 + sum(k["does"] == s["does"] for ks in known.values() for k in ks),
                f"{path}: all of the sort were asked: {s}")
        for k in s["kernels"]:
            u.check(bool(k["why_not"]) != k["chosen"] and
                    (k["why_not"] == "not on this CPU") == (k["isa"] not in here), f"{path}: {s['stage']}: {k}")
        times = f", {s['times']} times" if s["times"] > 1 else ""
        u.check(f"  {s['stage']}: {s['does']}{times}\n" in text and f"> {chosen[0]} " in text, f"{path}: {text}")
        got.setdefault((s["stage"], s["does"]), []).append((s["times"], chosen[0]))
    return got


@unit("kernels: --explain names who takes each stage")
def test_kernels_stages(u):
    kernels = "avx2" in u.json("version")["isas"]
    attention_files(u, "kernels of stages", queries=8, keys=40)
    path = write_case(u, "attention.json", attention_case())
    got = stages_of(u, path)
    u.check(list(got) == [("rows", "attention"), ("q k^T", "multiply"), ("p v", "multiply"), ("o", "convert")] or
            not kernels, f"attention: {got}")
    u.check(not kernels or all(c != "ref" for all_ in got.values() for _, c in all_), f"kernels take them: {got}")
    ones = stages_of(u, write_case(u, "ones.json", attention_case(set={"sum_order": "ones", "sum_source": "p", "p_format": "f16"})))
    u.check(not kernels or ("p 1", "multiply") in ones and ("p", "convert") in ones, f"more stages: {ones}")
    u.check(list(stages_of(u, path, "--isa", "ref")) == [("rows", "attention")], "by the reference")
    # why a kernel that refuses nothing does not take it
    real = attention_case(set={"arithmetic": "real"})
    report = u.json("kernels", "--explain", write_case(u, "real.json", real), code=EQUAL)["cases"][0]
    u.check(report["kernel"] == "ref" and all(k["why_not"] in ("arithmetic is real", "not on this CPU", None)
                                              for k in report["kernels"]), f"real: {report['kernels']}")
    draw = Draw("dout")
    write_npy(u.path("do.npy"), "bf16", [1, 2, 8, 6], draw.codes("bf16", 96, -4, 0))
    u.run("attention", "run", "--schedule", "flash", *ATTENTION, "--to", "bf16", "-o", "o.npy", "--lse", "lse.npy",
          code=EQUAL)
    back = attention_case("attention_backward")
    back["tensors"].update(o=bf16_file("o.npy"), dout=bf16_file("do.npy"), lse={"file": "lse.npy", "format": "f32"},
                           dq={"format": "f32"}, dv={"format": "bf16"})
    got = stages_of(u, write_case(u, "back.json", back))
    u.check(list(got) == [("rows", "attention"), ("q k^T", "multiply"), ("do v^T", "multiply"), ("ds k", "multiply"),
                          ("p^T do", "multiply"), ("dq", "convert"), ("dv", "convert")] or not kernels,
            f"gradients: {got}")
    # a mixture: each stage as often as experts have rows
    got = stages_of(u, write_case(u, "moe.json", moe_case(u, "kernels of a mixture")))
    u.check({("logits", "multiply"), ("logits", "convert"), ("route", "moe"), ("gate", "multiply"), ("gate", "moe"),
             ("up", "multiply"), ("up", "moe"), ("activation", "moe"), ("middle", "convert"), ("down", "multiply"),
             ("down", "moe"), ("combine", "moe")} <= set(got), f"a mixture: {sorted(got)}")
    experts = sum(n for n, _ in got["gate", "multiply"])
    u.check(1 <= experts <= 4 and all(sum(n for n, _ in got[name, "multiply"]) == experts for name in ("up", "down")) and
            sum(n for n, _ in got["logits", "multiply"]) == 1, f"how often: {got}")
    ref = stages_of(u, u.path("moe.json"), "--isa", "ref")
    u.check(all(c == "ref" for all_ in ref.values() for _, c in all_), f"a mixture by the reference: {ref}")
    # tokens that are quantised, and told experts
    told = moe_case(u, "kernels mx", width=64, middle=32, profile="trn3", mlp={"weights_as": "bf16"},
                    x={"how": "mx", "format": "e4m3fn", "rule": "floor_up1"})
    del told["x"], told["tensors"]["router"], told["router"]
    write_npy(u.path("e.npy"), "u32", [9, 2], [0, 1] * 9)
    told["tensors"]["experts"] = {"file": "e.npy"}
    got = stages_of(u, write_case(u, "told.json", told))
    u.check(sum(n for n, _ in got["gate", "multiply"]) == 2 and ("route", "moe") not in got and
            sum(n for n, _ in got["gate", "convert"]) == 2, f"told its experts: {got}")
    route = {"op": "route", "router": {"k": 2}, "tensors": {"logits": bf16_file("x.npy"), "experts": {}}}
    got = stages_of(u, write_case(u, "route.json", route))
    u.check(("route", "moe") in got and not any(does == "multiply" for _, does in got), f"a route: {got}")
    # a conversion: what each kernel itself says
    c = Case(u, "quantize", rule="floor").tensor("src", "f32", [64, 64]).output("e4m3fn", scale={"block": 32, "axis": 1})
    got = stages_of(u, write_case(u, "quantize.json", c.json))
    u.check(list(got) == [("quantize", "convert")], f"quantize: {got}")
    report = u.json("kernels", "--explain", u.path("quantize.json"), code=EQUAL)["cases"][0]
    u.check(report["kernels"] == report["stages"][0]["kernels"] and
            not any(k["why_not"] == "does not take this case" for k in report["kernels"]), f"reasons: {report['kernels']}")


@unit("bench: names, rows, rates")
def test_bench(u):
    names = [x["name"] for x in u.json("bench", "--list", code=EQUAL)]
    text = u.run("bench", "--list", code=EQUAL).stdout
    u.check(len(set(names)) == len(names) > 5 and all(n in text for n in names), f"{names}")
    u.refuses("no such benchmark", ["bench", "bf16", "frobnicate"], USAGE, ["frobnicate", "--list"])
    one = u.json("bench", "bf16", code=EQUAL)["rows"]
    u.check([r["name"] for r in one] == ["bf16"] and one[0]["wrong"] is None and
            one[0]["rate"] > 0, f"bench bf16: {one}")
    some = ["double-row", "mxfp8", "sparse"]
    rows = u.json("bench", *reversed(some), "--isa", "ref", code=EQUAL)["rows"]
    u.check([r["name"] for r in rows] == some, "rows in the order of the list")
    for r in rows:
        u.check(r["kernel"] == "ref" and r["packed_rate"] is None and
                r["rate"] == r["reference_rate"] > 0 and r["tiles"]["reference"] == r["m"] * r["n"],
                f"bench --isa ref: {r}")
    text = u.run("bench", "sparse", "--isa", "ref", "--threads", "2", code=EQUAL).stdout
    u.check(re.search(r"^sparse +trn2 .* ref ", text, re.M) and "not measured" in text,
            f"bench: {text}")


# ---------------------------------------------------------------------------------------------
# convert.

def convert(u, src, codes, dst, *options, code=EQUAL):
    write_npy(u.path("in.npy"), src, [len(codes)], codes)
    done = u.run("convert", "--to", dst, *options, f"in.npy={src}", "out.npy", code=code)
    if done.returncode:
        return []
    return read_npy(u.path("out.npy"), dst)[1]


@unit("convert: known values")
def test_known_values(u):
    def ask(dst, pairs, *options):
        values = [p[0] for p in pairs]
        if len(values) % 2:
            values.append(0.0)
        got = convert(u, "f32", [f32_code(v) for v in values], dst, *options)
        for (value, want), code in zip(pairs, got):
            u.check(code == want, f"{value} -> {dst} {' '.join(options)}: 0x{code:x}, "
                                  f"wanted 0x{want:x}")
    inf = float("inf")
    ask("e4m3fn", [(448.0, 0x7E), (464.0, 0x7E), (464.00003, 0x7F), (465.0, 0x7F), (inf, 0x7F),
                   (-465.0, 0x7F), (-464.0, 0xFE), (-0.0, 0x80), (2.0 ** -10, 0), (2.0 ** -9, 1),
                   (3 * 2.0 ** -10, 2)])
    ask("e4m3fn", [(465.0, 0x7E), (-1e30, 0xFE), (inf, 0x7E)], "--overflow", "sat")
    ask("e4m3fn", [(465.0, 0x7E), (inf, 0x7F)], "--overflow", "sat_keep_inf")
    ask("e4m3", [(240.0, 0x77), (247.9, 0x77), (248.0, 0x78), (-248.0, 0xF8), (inf, 0x78)])
    ask("e3m4", [(15.5, 0x6F), (15.74, 0x6F), (15.75, 0x70)])
    ask("e5m2", [(57344.0, 0x7B), (61439.0, 0x7B), (61440.0, 0x7C), (-61440.0, 0xFC)])
    ask("f16", [(65504.0, 0x7BFF), (65519.0, 0x7BFF), (65520.0, 0x7C00), (2.0 ** -25, 0),
                (2.0 ** -25 * 1.001, 1)])
    ask("e2m1", [(.25, 0), (.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6),
                 (5.01, 7), (-.25, 8), (100.0, 7)], "--overflow", "sat")
    ask("bf16", [(1.00390625, 0x3F80), (1.01171875, 0x3F82), (3.4e38, 0x7F80)])
    ask("tf32", [(1.0 + 2 ** -11, 0x3F800000), (1.0 + 3 * 2 ** -11, 0x3F804000)])
    ask("e8m0", [(1.5, 128), (3.0, 129), (0.0, 0), (2.0 ** 127, 254)])
    ask("f32", [(1.5, 0x3FC00000)])
    nan = convert(u, "f32", [0x7FC00000, 0xFFC00001, 0x7F800001], "f16")
    u.check(nan == [0x7E00] * 3, f"NaN -> f16: {nan}")
    nan = convert(u, "f32", [0x7FC00000, 0xFFC00001], "bf16", "--nan-sign", "keep")
    u.check(nan == [0x7FC0, 0xFFC0], f"NaN -> bf16 --nan-sign keep: {nan}")
    nan = convert(u, "f32", [0x7FC00000, 0xFFC00001], "e2m1", "--overflow", "sat")
    u.check(nan == [7, 7], f"NaN -> e2m1: {nan}")
    nan = convert(u, "f32", [0xFFC00001] * 2, "e2m1", "--overflow", "sat", "--nan-to", "zero")
    u.check(nan == [0, 0], f"NaN -> e2m1 --nan-to zero: {nan}")


def test_convert_random(u, dst):
    """Every mode and overflow rule against fractions, on values near everything that matters."""
    f = FORMATS[dst]
    draw = Draw("convert " + dst)
    codes = draw.codes("f32", 150, -f.bias - f.man - 2, 2 - f.bias + (1 << f.exp))
    for c in draw.random.sample(range(f.max_code + 1), min(40, f.max_code)):
        for delta in (0, 1, -1):  # the middle between two codes, and its neighbours
            low, high = f.decode(c & ~((1 << f.low) - 1)), f.decode(min(c + (1 << f.low), f.max_code))
            if not isinstance(low, str) and not isinstance(high, str):
                middle = FORMATS["f32"].encode((low + high) / 2, draw.random.getrandbits(1))
                codes.append(middle + delta if middle & 0x7FFFFFFF > 1 else middle)
    codes += codes[:len(codes) % 2]
    for mode, overflow in itertools.product(("rne", "rna", "rtz", "rdn", "rup", "rto"),
                                            ("inf", "sat", "sat_keep_inf")):
        if f.kind == "finite" and overflow == "inf":
            continue
        got = convert(u, "f32", codes, dst, "--round", mode, "--overflow", overflow)
        bad = []
        for c, g in zip(codes, got):
            value = FORMATS["f32"].decode(c)
            if isinstance(value, str):
                continue
            want = f.encode(abs(value), c >> 31, mode, overflow)
            if g != want:
                bad.append(f"0x{c:08x} -> 0x{g:x}, wanted {want if want is None else hex(want)}")
        u.check(got and not bad, f"{mode} {overflow}: {len(bad)} of {len(codes)}: {bad[:3]}")


for NAME in FORMATS:
    if NAME not in ("f32",):
        add_unit(f"convert: f32 to {NAME} in every mode", test_convert_random, NAME)


@unit("convert: files in, files out")
def test_convert_files(u):
    codes = Draw("files").codes("f32", 48)
    want = [FORMATS["bf16"].encode(abs(FORMATS["f32"].decode(c)), c >> 31) for c in codes]
    write_npy(u.path("x.npy"), "f32", [4, 12], codes)
    with open(u.path("x.bin"), "wb") as file:
        file.write(b"head" * 4 + pack("f32", codes) + b"tail")
    write_safetensors(u.path("x.safetensors"), {"x": ("F32", [4, 12], pack("f32", codes))})
    u.run("convert", "--to", "bf16", "x.npy=f32", "y.npy", code=EQUAL)
    u.run("convert", "--to", "bf16", "x.bin=f32:4x12@16", "y.bin", code=EQUAL)
    u.run("convert", "--to", "bf16", "x.safetensors", "y.safetensors", code=EQUAL)
    u.check(read_npy(u.path("y.npy"), "bf16") == ([4, 12], want), "convert to .npy")
    with open(u.path("y.bin"), "rb") as file:
        u.check(unpack("bf16", file.read()) == want, "convert to raw")
    _, tensors = read_safetensors(u.path("y.safetensors"))
    (head, data), = tensors.values()
    u.check(head["dtype"] == "BF16" and head["shape"] == [4, 12] and unpack("bf16", data) == want,
            f"convert to safetensors: {head}")
    # The sidecar of what convert wrote types it.
    u.run("convert", "--to", "e4m3", "y.npy", "z.npy", code=EQUAL)
    u.run("convert", "--to", "f32", "z.npy", "w.npy", code=EQUAL)
    u.refuses("typed otherwise than the sidecar", ["convert", "--to", "f32", "z.npy=e4m3fn", "v.npy"],
              FILE, ["e4m3"])
    u.refuses("no type", ["convert", "--to", "f32", "x.npy", "v.npy"], FILE, ["x.npy", "format"])
    u.refuses("missing", ["convert", "--to", "f32", "none.npy=f32", "v.npy"], FILE, ["none.npy"])
    u.refuses("no --to", ["convert", "x.npy=f32", "v.npy"], USAGE, ["--to"])
    u.refuses("bad --to", ["convert", "--to", "f99", "x.npy=f32", "v.npy"], USAGE, ["f99"])
    u.refuses("bad type", ["convert", "--to", "f32", "x.npy=f99", "v.npy"], USAGE, ["f99"])
    u.refuses("bad mode", ["convert", "--to", "f32", "--round", "up", "x.npy=f32", "v.npy"], USAGE,
              ["up"])
    u.refuses("raw too short", ["convert", "--to", "f32", "x.bin=f32:4x13@16", "v.npy"], FILE,
              ["x.bin", "bytes"])
    u.refuses("raw too long", ["convert", "--to", "f32", "x.bin=f32:4x12", "v.npy"], FILE,
              ["x.bin", "bytes"])
    u.refuses("raw without a shape", ["convert", "--to", "f32", "x.bin=f32", "v.npy"], USAGE)
    u.refuses("raw of size 0", ["convert", "--to", "f32", "x.bin=f32:0x4", "v.npy"], USAGE, ["0"])
    u.refuses("raw beyond 63 bits",
              ["convert", "--to", "f32", "x.bin=f32:9000000000000000000x9", "v.npy"], USAGE)
    u.refuses("sr without words", ["convert", "--to", "bf16", "--round", "sr", "x.npy=f32", "v.npy"],
              REFUSED, ["random"])
    u.refuses("Inf where there is none", ["convert", "--to", "e2m1", "x.npy=f32", "v.npy"], REFUSED,
              ["e2m1"])
    u.refuses("no folder", ["convert", "--to", "bf16", "x.npy=f32", u.path("no/v.npy")], FILE,
              ["v.npy"])
    u.refuses("a folder", ["convert", "--to", "bf16", "x.npy=f32", u.home], FILE)
    u.check(not os.path.exists(u.path("v.npy")), "a refused convert wrote an output")
    left = [f for f in os.listdir(u.home) if "tmp" in f]
    u.check(not left, f"temporary files left: {left}")


@unit("convert: stochastic rounding with the chip's words")
def test_convert_words(u):
    draw = Draw("words")
    codes = draw.codes("f32", 64)
    words = [draw.random.getrandbits(32) for _ in codes]
    write_npy(u.path("w.npy"), "u32", [64], words)
    got = convert(u, "f32", codes, "bf16", "--round", "sr", "--words", "w.npy")
    want = [(c + (w >> 16)) >> 16 for c, w in zip(codes, words)]  # 16 bits are dropped
    u.check(got == want, "sr to bf16 adds the upper half of the word to the dropped half")
    write_npy(u.path("w.npy"), "u32", [63], words[:63])
    u.refuses("too few words", ["convert", "--to", "bf16", "--round", "sr", "--words", "w.npy",
                                "in.npy=f32", "no.npy"], REFUSED, ["63", "64"])
    write_npy(u.path("w.npy"), "u16", [64], [w & 0xFFFF for w in words])
    u.refuses("16-bit words", ["convert", "--to", "bf16", "--round", "sr", "--words", "w.npy",
                               "in.npy=f32", "no.npy"], FILE, ["16"])
    u.check(not os.path.exists(u.path("no.npy")), "a refused convert wrote an output")


# ---------------------------------------------------------------------------------------------
# run.

@unit("run: dot and gemm from options, three kinds of files, replayed")
def test_run_multiply(u):
    draw = Draw("run")
    m, k, n = 5, 12, 4
    a, b = draw.codes("bf16", m * k, -3, 3), draw.codes("bf16", k * n, -3, 3)
    write_npy(u.path("a.npy"), "bf16", [m, k], a)
    write_npy(u.path("b.npy"), "bf16", [k, n], b)
    with open(u.path("a.bin"), "wb") as file:
        file.write(b"\0" * 7 + pack("bf16", a))
    write_safetensors(u.path("b.safetensors"), {"weights": ("BF16", [k, n], pack("bf16", b))})
    # fma-f32 is one chain of fused multiply-adds in FP32: fractions can do it.
    want = []
    f32, bf16 = FORMATS["f32"], FORMATS["bf16"]
    for i, j in itertools.product(range(m), range(n)):
        acc = Fraction(0)
        for p in range(k):
            acc += bf16.decode(a[i * k + p]) * bf16.decode(b[p * n + j])
            acc = f32.decode(f32.encode(abs(acc), acc < 0))
        want.append(f32.encode(abs(acc), acc < 0))
    common = ["--profile", "fma-f32", "--to", "f32"]
    u.run("run", "gemm", *common, "--a", "a.npy=bf16", "--b", "b.npy=bf16", "-o", "d.npy", code=EQUAL)
    u.check(read_npy(u.path("d.npy"), "f32") == ([m, n], want), "gemm on fma-f32")
    u.run("run", "gemm", *common, "--a", f"a.bin=bf16:{m}x{k}@7", "--b", "b.npy=bf16", "-o", "d.bin",
          code=EQUAL)
    with open(u.path("d.bin"), "rb") as file:
        u.check(unpack("f32", file.read()) == want, "gemm from raw to raw")
    report = u.json("run", "gemm", *common, "--a", "a.npy=bf16", "--b", "b.npy=bf16", "-o",
                    "d.safetensors", code=EQUAL)
    u.check(report.get("written", "").endswith("d.safetensors"), "run --json says what was written")
    meta, tensors = read_safetensors(u.path("d.safetensors"))
    u.check(unpack("f32", tensors["d"][1]) == want and meta["ng.op"] == "gemm" and
            meta["ng.profile"].startswith("fma-f32/"), "gemm to safetensors")
    u.check("EQUAL: 1 case" in u.run("verify", "d.safetensors", code=EQUAL).stdout, "it replays")
    # A safetensors operand without a name: one tensor, so there is no doubt which.
    u.run("run", "gemm", *common, "--a", "a.npy=bf16", "--b", "b.safetensors=bf16", "-o", "e.npy",
          code=EQUAL)
    # dot: rows of a with rows of b.
    bt = [b[p * n + j % n] for j in range(m) for p in range(k)]
    write_npy(u.path("bt.npy"), "bf16", [m, k], bt)
    u.run("run", "dot", *common, "--a", "a.npy=bf16", "--b", "bt.npy=bf16", "-o", "dot.npy",
          code=EQUAL)
    u.check(read_npy(u.path("dot.npy"), "f32") == ([m], [want[i * n + i % n] for i in range(m)]),
            "dot on fma-f32")
    # A batch of two, and C.
    write_npy(u.path("a3.npy"), "bf16", [2, m, k], a + a)
    write_npy(u.path("b3.npy"), "bf16", [2, k, n], b + b)
    u.run("run", "gemm", *common, "--a", "a3.npy=bf16", "--b", "b3.npy=bf16", "-o", "d3.npy",
          code=EQUAL)
    u.check(read_npy(u.path("d3.npy"), "f32") == ([2, m, n], want + want), "batched gemm")
    write_npy(u.path("c.npy"), "f32", [m, n], [0] * (m * n))
    u.run("run", "gemm", *common, "--a", "a.npy=bf16", "--b", "b.npy=bf16", "--c", "c.npy=f32", "-o",
          "dc.npy", code=EQUAL)
    u.check(read_npy(u.path("dc.npy"), "f32")[1] == want, "gemm with C = 0")


@unit("run: quantize and dequantize from options, replayed")
def test_run_quantize(u):
    draw = Draw("quantize")
    codes = draw.codes("f32", 4 * 64, -3, 3)
    write_npy(u.path("x.npy"), "f32", [4, 64], codes)
    u.run("run", "quantize", "--src", "x.npy=f32", "--to", "e4m3fn", "--rule", "floor", "-o", "q.npy",
          "--scale-out", "s.npy", code=EQUAL)
    shape, q = read_npy(u.path("q.npy"), "e4m3fn")
    sshape, s = read_npy(u.path("s.npy"), "e8m0")
    u.check(shape == [4, 64] and sshape == [4, 2], f"quantize: shapes {shape} {sshape}")
    f, g = FORMATS["f32"], FORMATS["e4m3fn"]
    for i, line in enumerate(codes[at:at + 32] for at in range(0, 256, 32)):
        values = [f.decode(c) for c in line]
        e = floor_log2(max(abs(v) for v in values)) - 8
        want = [g.encode(abs(v) / Fraction(2) ** e, c >> 31, "rne", "sat")
                for v, c in zip(values, line)]
        u.check(s[i] == e + 127 and q[32 * i:32 * i + 32] == want, f"quantize: block {i}")
    u.run("run", "dequantize", "--src", "q.npy=e4m3fn", "--src-scale", "s.npy", "--to", "f32", "-o",
          "y.npy", code=EQUAL)
    want = [FORMATS["f32"].encode(abs(g.decode(c)) * Fraction(2) ** (s[i // 32] - 127), c >> 7)
            for i, c in enumerate(q)]
    u.check(read_npy(u.path("y.npy"), "f32")[1] == want, "dequantize")
    for rule, fmt, more in [("rceil", "e4m3fn", []), ("floor_up1", "e5m2", []), ("even", "e2m1", []),
                            ("ceil", "e2m1", []),
                            ("nvfp4_te", "e2m1", ["--scale-format", "ue4m3", "--block", "16"]),
                            ("nvfp4_exact", "e2m1", ["--scale-format", "ue4m3", "--block", "16"])]:
        u.run("run", "quantize", "--src", "x.npy=f32", "--to", fmt, "--rule", rule, *more, "-o",
              "case.safetensors", code=EQUAL)
        done = u.run("verify", "case.safetensors", code=EQUAL)
        u.check("EQUAL" in done.stdout, f"quantize {rule} {fmt}: replay: {done.stdout[-300:]}")
    u.run("run", "dequantize", "--src", "q.npy=e4m3fn", "--src-scale", "s.npy", "--to", "bf16",
          "--round", "rtz", "-o", "dq.safetensors", code=EQUAL)
    u.run("verify", "dq.safetensors", code=EQUAL)
    u.run("run", "convert", "--src", "x.npy=f32", "--to", "e5m2", "--overflow", "sat", "-o",
          "cv.safetensors", code=EQUAL)
    u.run("verify", "cv.safetensors", code=EQUAL)
    # Scales along another dimension.
    u.run("run", "quantize", "--src", "x.npy=f32", "--to", "e4m3fn", "--rule", "floor", "--axis", "0",
          "--block", "32", "-o", "q0.npy", "--scale-out", "s0.npy", code=EQUAL)
    u.check(read_npy(u.path("s0.npy"), "e8m0")[0] == [1, 64], "quantize along dimension 0")


@unit("run: everything that a multiply can have replays")
def test_run_replay(u):
    def replay(what, c):
        path = write_case(u, "case.json", c.json)
        if u.run("run", path, "-o", u.path("out.safetensors"), code=EQUAL).returncode == 0:
            done = u.run("verify", "out.safetensors", code=EQUAL)
            u.check("EQUAL" in done.stdout, f"{what} replays: {done.stdout[-200:]}")
            meta, _ = read_safetensors(u.path("out.safetensors"))
            u.check("ng.case" in meta and "ng.profile_hash" in meta, f"{what}: metadata")
    for name, make in MULTIPLIES.items():
        replay(name, make(u))
    c = MULTIPLIES["mx"](u)
    c.json["profile"] = edit_profile(u, "trn3", "mx", lane_sum="tree")
    replay("own profile", c)
    c = MULTIPLIES["bf16"](u).output("bf16")
    c.json["out_scale"] = "0x3f19999a"
    replay("out_scale", c)
    write_npy(u.path("w.npy"), "u32", [16 * 12], [c.draw.random.getrandbits(32) for _ in range(192)])
    c.json["out"] = {"round": "sr", "words": {"file": "w.npy"}, "sr": "b", "sr_bits": 17,
                     "sr_take": "high"}
    replay("stochastic rounding", c)


@unit("run: the output's file need not be there yet")
def test_run_new_output(u):
    c = Case(u, "convert").tensor("src", "f32", [4, 8]).output("bf16", file="y.npy")
    path = write_case(u, "case.json", c.json)
    u.run("run", path, "-o", "y.npy", code=EQUAL)
    if os.path.exists(u.path("y.npy")):
        u.run("verify", path, code=EQUAL)
    report = u.json("run", "convert", "--src", "src.npy=f32", "--to", "bf16", "-o", "z.npy", "-q",
                    code=EQUAL)
    u.check("written" in report, "run --json -q prints its JSON")


@unit("fp4_map: what the codes of e2m1 stand for")
def test_fp4_map(u):
    """A table of twice the values is an output scale of 2: products and sums of e2m1 scale exactly."""
    values = [(abs(FORMATS["e2m1"].decode(c & 7)), c >> 3) for c in range(16)]
    same = [FORMATS["e4m3fn"].encode(v, s) for v, s in values]
    twice = [FORMATS["e4m3fn"].encode(2 * v, s) for v, s in values]
    c = make_mx(u, "e2m1", "e5m2").json

    def codes(name, key=None, **more):
        case = {**c, **more}
        if key:
            case["fp4_map"] = {"format": "e4m3fn", "codes": [f"0x{v:02x}" for v in key]}
        u.run("run", write_case(u, "case.json", case), "-o", f"{name}.npy", code=EQUAL)
        return read_npy(u.path(f"{name}.npy"), "f32")[1]

    plain = codes("plain")
    u.check(codes("same", same) == plain, "a table of the same values")
    doubled = codes("doubled", twice)
    u.check(doubled == codes("scaled", out_scale="0x40000000") != plain, "a table of twice the values")
    option = "e4m3fn:" + ",".join(f"0x{v:02x}" for v in twice)
    whole = {**c, "fp4_map": {"format": "e4m3fn", "codes": [f"0x{v:02x}" for v in twice]}}
    u.run("run", write_case(u, "case.json", whole), "-o", "w.safetensors", code=EQUAL)
    text = u.run("verify", "w.safetensors", code=EQUAL).stdout
    u.check(f"fp4_map e4m3fn {' '.join(f'{v:02x}' for v in twice)}" in text, f"the report says it: {text}")
    # a chip that kept its own table
    whole["tensors"]["d"] = {"file": "plain.npy", "format": "f32"}
    report = u.json("verify", write_case(u, "other.json", whole), code=DIFFERS)
    best = findings(report)[0]
    u.check(best["rule"] == "fp4_map ignored" and best["explains"] == best["of"] and not best["breaks"],
            f"its own table: {findings(report)}")
    # by options
    given = ["run", "gemm", "--profile", "trn3", "--a", "a.npy=e2m1", "--b", "b.npy=e5m2", "--a-scale", "a_scale.npy",
             "--b-scale", "b_scale.npy", "--to", "f32"]
    u.run(*given, "--fp4-map", option, "-o", "option.npy", code=EQUAL)
    u.check(read_npy(u.path("option.npy"), "f32")[1] == doubled, "--fp4-map")
    for value, words in (("e4m3fn", ["FORMAT:CODE"]), ("e4m3fn:0x00", ["1 codes"]), ("e9:0x00", ["e9"])):
        u.refuses(f"--fp4-map {value}", [*given, "--fp4-map", value, "-o", "z.npy"], USAGE, words)
    for what, key, code, words in (
            ("no format", {"codes": ["0x00"] * 16}, FILE, ["fp4_map", "(absent)", "e4m3fn or e5m2"]),
            ("another format", {"format": "bf16", "codes": ["0x00"] * 16}, FILE, ["'bf16'", "e4m3fn or e5m2"]),
            ("15 codes", {"format": "e5m2", "codes": ["0x00"] * 15}, FILE, ["15 codes", "16"]),
            ("no codes", {"format": "e5m2"}, FILE, ["0 codes", "16"]),
            ("a number", {"format": "e5m2", "codes": [0] * 16}, FILE, ["code 0", "0xff"]),
            ("nine bits", {"format": "e5m2", "codes": ["0x00"] * 15 + ["0x100"]}, FILE, ["code 15", "0x100"]),
            ("unknown key", {"format": "e5m2", "code": []}, FILE, ["'code'"]),
            ("fused", None, REFUSED, ["FP4 table"])):
        bad = {**c, "fp4_map": key} if key else {**make_nv(u).json, "fp4_map": whole["fp4_map"]}
        u.refuses(what, ["run", write_case(u, "bad.json", bad), "-o", "z.npy"], code, words)
    u.refuses("of a convert", ["run", "convert", "--src", "a.npy=e2m1", "--to", "f32", "--fp4-map", option, "-o",
                               "z.npy"], USAGE, ["--fp4-map", "convert"])


@unit("fp4_map: of a mixture's weights")
def test_fp4_map_moe(u):
    """A table of twice the values is every scale one higher."""
    values = [(abs(FORMATS["e2m1"].decode(c & 7)), c >> 3) for c in range(16)]
    tables = [[f"0x{FORMATS['e4m3fn'].encode(k * v, s):02x}" for v, s in values] for k in (1, 2)]
    case = moe_case(u, "moe fp4", width=64, middle=32, profile="trn3",
                    x={"how": "mx", "format": "e4m3fn", "rule": "floor_up1"},
                    inner={"how": "mx", "format": "e4m3fn", "rule": "floor_up1"})
    for name, to in (("g", "gate"), ("u", "up"), ("d", "down")):
        u.run("quantize", "--preset", "mxfp4", "--axis", "1", "--scale-out", f"{name}s.npy", f"{name}.npy=bf16",
              f"{name}4.npy", code=EQUAL)
        case["tensors"][to] = {"file": f"{name}4.npy", "format": "e2m1", "scale": {"file": f"{name}s.npy"}}

    def codes(name, **mlp):
        u.run("run", write_case(u, "case.json", {**case, "mlp": mlp}), "-o", f"{name}.npy", code=EQUAL)
        return read_npy(u.path(f"{name}.npy"), "f32")[1]

    plain = codes("plain")
    u.check(codes("same", fp4_map={"format": "e4m3fn", "codes": tables[0]}) == plain, "a table of the same values")
    doubled = {"format": "e4m3fn", "codes": tables[1]}
    got = codes("doubled", fp4_map=doubled)
    report = u.run("run", u.path("case.json"), "-o", "w.safetensors", code=EQUAL).stdout
    said = "e4m3fn:" + ",".join(c[2:] for c in tables[1])
    u.check(f"mlp.fp4_map={said}(assumed)" in report, f"the report says it: {report}")
    u.run("verify", "w.safetensors", code=EQUAL)
    for name in "gud":
        shape, scale = read_npy(u.path(f"{name}s.npy"), "e8m0")
        write_npy(u.path(f"{name}s.npy"), "e8m0", shape, [x + 1 for x in scale])
    u.check(codes("scaled") == got != plain, "a table of twice the values")
    u.refuses("15 codes", ["run", write_case(u, "bad.json", {**case, "mlp": {"fp4_map": {"format": "e5m2", "codes": []}}}),
                           "-o", "z.npy"], FILE, ["0 codes", "16"])
    u.refuses("of a route", ["run", write_case(u, "bad.json", {"op": "route", "fp4_map": doubled, "tensors": {}}), "-o",
                             "z.npy"], FILE, ["'fp4_map'"])


@unit("run: wrong options")
def test_run_wrong(u):
    write_npy(u.path("a.npy"), "bf16", [4, 8], [0x3F80] * 32)
    write_npy(u.path("b.npy"), "bf16", [8, 4], [0x3F80] * 32)
    write_npy(u.path("x.npy"), "f32", [4, 8], [0x3F800000] * 32)
    ab = ["--a", "a.npy=bf16", "--b", "b.npy=bf16"]
    out = ["-o", u.path("out.npy")]

    def refuse(what, arguments, code, *words):
        u.refuses(what, ["run", *arguments, *out], code, words)
        if os.path.exists(u.path("out.npy")):
            u.check(False, f"{what}: wrote an output")
            os.remove(u.path("out.npy"))
    u.refuses("no -o", ["run", "gemm", "--profile", "trn2", *ab, "--to", "f32"], USAGE, ["-o"])
    refuse("no --to", ["gemm", "--profile", "trn2", *ab], USAGE, "--to")
    refuse("no profile", ["gemm", *ab, "--to", "f32"], USAGE, "profile")
    refuse("unknown profile", ["gemm", "--profile", "trn9", *ab, "--to", "f32"], USAGE, "trn9",
           "profile list")
    refuse("no a", ["gemm", "--profile", "trn2", "--b", "b.npy=bf16", "--to", "f32"], USAGE, "a")
    refuse("untyped", ["gemm", "--profile", "trn2", "--a", "a.npy", "--b", "b.npy=bf16", "--to",
                       "f32"], USAGE, "a.npy")
    refuse("an option of another operation", ["gemm", "--profile", "trn2", *ab, "--to", "f32",
                                              "--rule", "floor"], USAGE, "rule")
    refuse("an operand of another operation", ["gemm", "--profile", "trn2", *ab, "--to", "f32",
                                               "--src", "x.npy=f32"], USAGE, "src")
    refuse("double_row of a convert", ["convert", "--src", "x.npy=f32", "--to", "bf16",
                                       "--double-row"], USAGE, "double")
    refuse("no rule", ["quantize", "--src", "x.npy=f32", "--to", "e4m3fn"], USAGE, "rule")
    refuse("bad rule", ["quantize", "--src", "x.npy=f32", "--to", "e4m3fn", "--rule", "flor"], USAGE,
           "flor")
    refuse("scales that go nowhere", ["quantize", "--src", "x.npy=f32", "--to", "e4m3fn", "--rule",
                                      "floor"], USAGE, "scale-out")
    refuse("block of 0", ["quantize", "--src", "x.npy=f32", "--to", "e4m3fn", "--rule", "floor",
                          "--block", "0", "--scale-out", "s.npy"], USAGE, "block")
    refuse("axis beyond rank", ["quantize", "--src", "x.npy=f32", "--to", "e4m3fn", "--rule", "floor",
                                "--axis", "2", "--scale-out", "s.npy"], REFUSED, "2")
    refuse("out_scale of zero", ["gemm", "--profile", "trn2", *ab, "--to", "f32", "--out-scale", "0x0"],
           USAGE, "out_scale is 0 in FP32; wanted: another number, or no out_scale")
    refuse("bad out_scale", ["gemm", "--profile", "trn2", *ab, "--to", "f32", "--out-scale", "1.5"],
           USAGE, "1.5")
    refuse("bad accumulate", ["gemm", "--profile", "trn2", *ab, "--to", "f32", "--accumulate", "f12"],
           USAGE, "f12")
    refuse("missing file", ["gemm", "--profile", "trn2", "--a", "no.npy=bf16", "--b", "b.npy=bf16",
                            "--to", "f32"], FILE, "no.npy")
    refuse("missing case", [u.path("no.json")], FILE, "no.json")
    refuse("shapes", ["gemm", "--profile", "trn2", "--a", "a.npy=bf16", "--b", "a.npy=bf16", "--to",
                      "f32"], REFUSED, "8", "4")
    refuse("formats", ["gemm", "--profile", "trn2", "--a", "a.npy=bf16", "--b", "a.npy=f16", "--to",
                       "e2m1"], REFUSED)
    refuse("scales of what is not there", ["gemm", "--profile", "trn3", "--a", "a.npy=bf16", "--b",
                                           "b.npy=bf16", "--src-scale", "a.npy", "--to", "f32"],
           USAGE, "src")
    case = Case(u, "convert").tensor("src", "f32", [2, 2]).output("bf16")
    two = write_case(u, "two.json", case.json, case.json)
    refuse("two cases", [two], USAGE, "2")
    one = write_case(u, "one.json", case.json)
    refuse("options beside a case", [one, "--round", "rtz"], USAGE, "round")
    refuse("another output format beside a case", [one, "--to", "f16"], USAGE, "to")
    # A block-scaled batch: the blocks of B run along K, the last dimension but one.
    c = Case(u, "gemm").tensor("a", "e4m3fn", [2, 4, 64]).scale("a", [2, 4, 64], 2)
    c.tensor("b", "e4m3fn", [2, 64, 4]).scale("b", [2, 64, 4], 1)
    u.run("run", "gemm", "--profile", "trn3", "--a", "a.npy=e4m3fn", "--b", "b.npy=e4m3fn",
          "--a-scale", "a_scale.npy", "--b-scale", "b_scale.npy", "--to", "f32", "-o", "batch.npy",
          code=EQUAL)


# ---------------------------------------------------------------------------------------------
# verify: reports, dumps, and cases that are wrong.

@unit("verify: text and JSON of a right and a wrong dump")
def test_reports(u):
    for name, fault in (("right", lambda u, c: None), ("wrong", key("out", {"round": "rtz"}))):
        c = MULTIPLIES["mx bf16"](u).json
        chip_output(u, c, fault)
        c["name"], c["tensors"]["d"]["file"] = "made by a test", "d.npy"
        os.mkdir(u.path(name))
        write_case(u, name + "/case.json", c)
        for file in ("a", "b", "a_scale", "b_scale", "d"):
            shutil.copy(u.path(file + ".npy"), u.path(f"{name}/{file}.npy"))
        os.remove(u.path("d.npy"))
    text = u.run("verify", "right", code=EQUAL).stdout
    u.check(text.strip().split("\n")[-1].startswith("EQUAL: 1 case, 256 elements, 0 differ"),
            "the verdict of a right dump")
    u.check("evidence" in text and "trn3/mx" in text, "the rule and what it rests on")
    u.check("made by a test" in text, "the name of the case")
    u.check("trn3" not in u.run("verify", "-q", "right", code=EQUAL).stdout, "-q")
    text = u.run("verify", "wrong", "--max-report", "2", code=DIFFERS).stdout
    u.check(text.count(" got ") == 2 and "more" in text, "--max-report 2")
    u.check("verdict: out round=rtz explains every difference" in text, "the verdict")
    u.check("DIFFERS: 1 case" in text.strip().split("\n")[-1], "the last line")
    report = u.json("verify", "wrong", "--max-report", "3", code=DIFFERS)
    one = report["cases"][0]
    u.check(set(report) >= {"schema", "version", "cases", "n_cases", "elements", "differ", "seconds",
                            "verdict"}, f"keys: {sorted(report)}")
    u.check(set(one) >= {"op", "what", "profile", "profile_line", "profile_hash", "evidence",
                         "elements", "mismatches", "explain"}, f"keys of a case: {sorted(one)}")
    u.check(any(k in one for k in ("path", "file", "case")) and "name" in one,
            "a case of the report says which file and case it is")
    u.check(len(one["mismatches"]) == 3, "--max-report 3 in JSON")
    for m in one["mismatches"]:
        u.check(set(m) >= {"index", "got", "want", "class", "codes", "exact", "a", "b"},
                f"keys of a mismatch: {sorted(m)}")
        got, want = int(m["got"]["code"], 16), int(m["want"]["code"], 16)
        u.check(m["codes"] == 1 and want - got == 1, f"truncation is one code lower: {m}")
    u.check(sum(one["elements"]["classes"].values()) == one["elements"]["differ"] == report["differ"],
            "classes add up")
    report = u.json("verify", "right", "wrong", "right", "--no-explain", code=DIFFERS)
    u.check(report["n_cases"] == 3 and report["elements"] == 3 * 256 and "explain" not in
            report["cases"][1], "three folders at once")
    text = u.run("verify", "right", "--sensitivity", code=EQUAL).stdout
    u.check("sensitivity" in text and "acc_round=rtz" in text, "--sensitivity as text")
    u.refuses("a missing folder", ["verify", u.path("none")], FILE, ["none"])
    u.refuses("no case", ["verify", u.home], FILE, ["case.json"])


@unit("verify: two dumps")
def test_dumps(u):
    draw = Draw("dumps")
    codes = draw.codes("bf16", 60)
    write_npy(u.path("x.npy"), "bf16", [6, 10], codes)
    other = list(codes)
    other[37] ^= 1
    other[11] ^= 0x8000
    write_npy(u.path("y.npy"), "bf16", [6, 10], other)
    u.check("EQUAL" in u.run("verify", "--dumps", "--as", "bf16", "x.npy", "x.npy", code=EQUAL).stdout,
            "a dump equals itself")
    text = u.run("verify", "--dumps", "--as", "bf16", "y.npy", "x.npy", code=DIFFERS).stdout
    u.check("[3, 7]" in text and "[1, 1]" in text and "2 differ" in text, f"two dumps: {text}")
    report = u.json("verify", "--dumps", "--as", "bf16", "y.npy", "x.npy", code=DIFFERS)
    u.check(report["differ"] == 2 and report["verdict"] == "differs", "two dumps --json")
    found = {tuple(m["index"]): m for m in report["tensors"][0]["mismatches"]}
    u.check(found.get((3, 7), {}).get("got", {}).get("code") == f"0x{other[37]:04x}" and
            found.get((1, 1), {}).get("class") == "sign", f"two dumps: {found}")
    u.refuses("dumps without a format", ["verify", "--dumps", "x.npy", "y.npy"], FILE, ["x.npy"])
    write_npy(u.path("z.npy"), "bf16", [10, 6], codes)
    u.refuses("other shapes", ["verify", "--dumps", "--as", "bf16", "x.npy", "z.npy"], REFUSED,
              ["[6, 10]", "[10, 6]"])
    u.refuses("no file", ["verify", "--dumps", "--as", "bf16", "x.npy", "no.npy"], FILE, ["no.npy"])
    t = {"p": ("BF16", [6, 10], pack("bf16", codes)), "i": ("I32", [2], b"\1\0\0\0\2\0\0\0")}
    write_safetensors(u.path("x.safetensors"), t)
    u.run("verify", "--dumps", "x.safetensors", "x.safetensors", code=EQUAL)
    t["i"] = ("I32", [2], b"\1\0\0\0\3\0\0\0")
    write_safetensors(u.path("y.safetensors"), t)
    done = u.run("verify", "--dumps", "x.safetensors", "y.safetensors", code=DIFFERS)
    u.check("i: plain integers that differ, 1 of 2\n  [1]          got 2  want 3\n" in done.stdout,
            f"integers that differ: {done.stdout}")
    report = u.json("verify", "--dumps", "x.safetensors", "y.safetensors", code=DIFFERS)
    u.check([r for r in report["tensors"] if r.get("name") == "i"] ==
            [{"name": "i", "plain_integers_equal": False, "elements": 2, "differ": 1,
              "mismatches": [{"index": [1], "got": 2, "want": 3}]}],
            f"the report of two dumps names the integers that differ: {report['tensors']}")
    write_safetensors(u.path("z.safetensors"), {**t, "r": t["p"]})
    u.refuses("one tensor less", ["verify", "--dumps", "x.safetensors", "z.safetensors"], REFUSED,
              ["2", "3"])
    write_safetensors(u.path("z.safetensors"), {**t, "flag": ("BOOL", [1], b"\1")})
    u.refuses("a tensor of others", ["verify", "--dumps", "z.safetensors", "z.safetensors"], FILE, ["'flag'", "BOOL"])
    del t["i"]
    t["i"] = ("U64", [2], b"\1" + b"\0" * 7 + b"\2" + b"\0" * 7)
    write_safetensors(u.path("w.safetensors"), t)
    u.refuses("integers of other widths", ["verify", "--dumps", "x.safetensors", "w.safetensors"],
              REFUSED, ["i ", "u32", "u64"])
    write_safetensors(u.path("v.safetensors"), {"q": t["p"], "i": t["i"]})
    u.refuses("another name", ["verify", "--dumps", "w.safetensors", "v.safetensors"], REFUSED,
              ["'q'"])
    u.refuses("dumps without --dumps", ["verify", u.path("x.npy"), u.path("x.npy")], USAGE, ["--dumps"])


def small_case(u):
    """A small right case that the wrong ones are made from."""
    c = Case(u, "gemm", profile="trn3")
    c.tensor("a", "e4m3fn", [4, 64]).scale("a", [4, 64], 1)
    c.tensor("b", "e4m3fn", [64, 2]).scale("b", [64, 2], 0)
    c.tensor("d", "f32", [4, 2], [0] * 8)
    write_npy(u.path("words.npy"), "u32", [8], [0] * 8)
    return c.json


def set_at(*where):
    """A change of the JSON: the last of `where` is the value, the others the way to it."""
    def change(j):
        at = j
        for key in where[:-2]:
            at = at[key]
        at[where[-2]] = where[-1]
    return change


def drop(*where):
    def change(j):
        at = j
        for key in where[:-1]:
            at = at[key]
        del at[where[-1]]
    return change


NO_FILE_OF_D = drop("tensors", "d", "file")

# What is changed; the exit code; words of the message.
BAD_CASES = {
    "unknown key": (set_at("profil", "trn2"), FILE, ["profil"]),
    "unknown key of a tensor": (set_at("tensors", "a", "formt", "f32"), FILE, ["formt", "a"]),
    "unknown key of a scale": (set_at("tensors", "a", "scale", "blok", 3), FILE, ["blok"]),
    "unknown tensor": (set_at("tensors", "e", {}), FILE, ["'e'"]),
    "tensors of another operation": (set_at("tensors", "src", {}), FILE, ["src"]),
    "unknown key of out": (set_at("out", {"rond": "rne"}), FILE, ["rond"]),
    "key of another operation: cast": (set_at("cast", {"round": "rtz"}), FILE, ["cast"]),
    "key of another operation: rule": (set_at("rule", "floor"), FILE, ["rule"]),
    "key of another operation: special": (set_at("special", "element"), FILE, ["special"]),
    "key of another operation: tensor_amax": (set_at("tensor_amax", "0x0"), FILE, ["tensor_amax"]),
    "no op": (drop("op"), FILE, ["op"]),
    "unknown op": (set_at("op", "gemv"), FILE, ["gemv"]),
    "op is a number": (set_at("op", 3), FILE, ["op"]),
    "name is a number": (set_at("name", 3), FILE, ["name"]),
    "no tensors": (drop("tensors"), FILE, ["tensors"]),
    "tensors is a list": (set_at("tensors", []), FILE, ["tensors"]),
    "no a": (drop("tensors", "a"), FILE, ['"a"']),
    "no d": (drop("tensors", "d"), FILE, ['"d"']),
    "a is a string": (set_at("tensors", "a", "a.npy"), FILE, ["a "]),
    "no format": (drop("tensors", "a", "format"), FILE, ["a", "format"]),
    "unknown format": (set_at("tensors", "a", "format", "e4m9"), FILE, ["e4m9"]),
    "format is a number": (set_at("tensors", "a", "format", 8), FILE, ["format"]),
    "no file": (drop("tensors", "a", "file"), FILE, ["a", "file"]),
    "no file of d": (NO_FILE_OF_D, FILE, ["d", "file"]),
    "missing file": (set_at("tensors", "a", "file", "gone.npy"), FILE, ["gone.npy"]),
    "file is a number": (set_at("tensors", "a", "file", 1), FILE, ["file"]),
    "file is a folder": (set_at("tensors", "a", "file", "."), FILE, ["."]),
    "empty file name": (set_at("tensors", "a", "file", ""), FILE, []),
    "tensor without safetensors": (set_at("tensors", "a", {"tensor": "x", "format": "f32"}), FILE,
                                   ["a", "file"]),
    "wrong width": (set_at("tensors", "a", "format", "bf16"), FILE, ["a.npy", "bf16"]),
    "no profile": (drop("profile"), FILE, ["profile"]),
    "unknown profile": (set_at("profile", "trn9"), FILE, ["trn9", "profile list"]),
    "profile is a number": (set_at("profile", 3), FILE, ["profile"]),
    "profile file missing": (set_at("profile", {"file": "my.profile"}), FILE, ["my.profile"]),
    "profile text wrong": (set_at("profile", {"text": "rule x\n"}), FILE, ["profile"]),
    "profile without either": (set_at("profile", {}), FILE, ["profile"]),
    "profile with both": (set_at("profile", {"text": "x", "file": "y"}), FILE, ["profile"]),
    "unknown key of profile": (set_at("profile", {"txt": "x"}), FILE, ["txt"]),
    "accumulate unknown": (set_at("accumulate", "f31"), FILE, ["f31"]),
    "accumulate refused": (set_at("accumulate", "e4m3fn"), REFUSED, ["e4m3fn"]),
    "double_row is a string": (set_at("double_row", "yes"), FILE, ["double_row"]),
    "double_row with scales": (set_at("double_row", True), REFUSED, ["double_row", "scales"]),
    "out_scale is a number": (set_at("out_scale", 1.5), FILE, ["out_scale"]),
    "out_scale without 0x": (set_at("out_scale", "1"), FILE, ["out_scale", "'1'"]),
    "out_scale too wide": (set_at("out_scale", "0x100000000"), FILE, ["out_scale"]),
    "out_scale of no digits": (set_at("out_scale", "0x"), FILE, ["out_scale"]),
    "round unknown": (set_at("out", {"round": "up"}), FILE, ["up"]),
    "unknown key of words": (set_at("out", {"round": "sr", "words": {"file": "words.npy", "at": 1}}),
                             FILE, ["'at'"]),
    "round is null": (set_at("out", {"round": None}), FILE, ["round"]),
    "overflow unknown": (set_at("out", {"overflow": "wrap"}), FILE, ["wrap"]),
    "nan_sign unknown": (set_at("out", {"nan_sign": "flip"}), FILE, ["flip"]),
    "sr_bits 0": (set_at("out", {"sr_bits": 0}), FILE, ["sr_bits", "1", "32"]),
    "sr_bits huge": (set_at("out", {"sr_bits": 2 ** 40}), FILE, ["sr_bits"]),
    "sr without words": (set_at("out", {"round": "sr"}), REFUSED, ["random"]),
    "out is a list": (set_at("out", []), FILE, ["out"]),
    "words missing": (set_at("out", {"round": "sr", "words": {"file": "w.npy"}}), FILE, ["w.npy"]),
    "block 0": (set_at("tensors", "a", "scale", "block", 0), FILE, ["block", "1"]),
    "block 1.5": (set_at("tensors", "a", "scale", "block", 1.5), FILE, ["block"]),
    "block huge": (set_at("tensors", "a", "scale", "block", 2 ** 62), FILE, ["block"]),
    "block negative": (set_at("tensors", "a", "scale", "block", -32), FILE, ["block"]),
    "block of 16": (set_at("tensors", "a", "scale", "block", 16), FILE, ["a", "16", "8"]),
    "axis beyond": (set_at("tensors", "a", "scale", "axis", 2), FILE, ["a", "2"]),
    "axis huge": (set_at("tensors", "a", "scale", "axis", 99), FILE, ["axis"]),
    "axis wrong": (set_at("tensors", "b", "scale", "axis", 1), FILE, ["b"]),
    "layout unknown": (set_at("tensors", "a", "scale", "layout", "zigzag"), FILE, ["zigzag"]),
    "layouts that differ": (set_at("tensors", "a", "scale", "layout", "trn_wrap"), REFUSED,
                            ["layout"]),
    "scale format unknown": (set_at("tensors", "a", "scale", "format", "e9m0"), FILE, ["e9m0"]),
    "scale format of elements": (set_at("tensors", "a", "scale", "format", "bf16"), FILE,
                                 ["scale format of a is bf16", "e8m0", "ue4m3"]),
    "scale of a wrong format": (set_at("tensors", "a", "scale", "format", "ue4m3"), REFUSED, []),
    "scale without file": (drop("tensors", "a", "scale", "file"), FILE, ["scale", "a"]),
    "scale is a string": (set_at("tensors", "a", "scale", "a_scale.npy"), FILE, ["scale"]),
    "scales of b only": (drop("tensors", "a", "scale"), REFUSED, []),
    "scales that are the elements": (set_at("tensors", "a", "scale", "file", "a.npy"), FILE,
                                     ["8", "256"]),
    "tensor_scale is a number": (set_at("tensors", "a", "tensor_scale", 1), FILE, ["tensor_scale"]),
    "tags missing": (set_at("tensors", "a", "sparse", {"kept": 2, "group": 4}), FILE, ["tags"]),
    "tags of a wrong size": (set_at("tensors", "a", "sparse", {"tags": "a_scale.npy"}), FILE, ["tags"]),
    "kept 0": (set_at("tensors", "a", "sparse", {"tags": "a.npy", "kept": 0}), FILE, ["kept"]),
    "store unknown": (set_at("tensors", "a", "sparse", {"tags": "a.npy", "store": "amd"}), FILE,
                      ["amd"]),
    "shape that does not fit": (set_at("tensors", "a", "shape", [4, 65]), FILE, ["[4, 65]", "a"]),
    "shape of a string": (set_at("tensors", "a", "shape", "4x64"), FILE, []),
    "shape negative": (set_at("tensors", "a", "shape", [-4, -64]), FILE, ["-4"]),
    "shape of fractions": (set_at("tensors", "a", "shape", [4.0, 64]), FILE, []),
    "shape of zero": (set_at("tensors", "a", "shape", [0, 64]), FILE, ["0"]),
    "shape that overflows": (set_at("tensors", "a", "shape", [2 ** 62, 2 ** 62]), FILE, []),
    "shape of nine dimensions": (set_at("tensors", "a", "shape", [4, 64, 1, 1, 1, 1, 1, 1, 1]), FILE,
                                 []),
    "another shape of a": (set_at("tensors", "a", "shape", [2, 128]), REFUSED, ["128", "64"]),
    "K that differs": (set_at("tensors", "b", {"file": "b.npy", "format": "e4m3fn",
                                               "shape": [2, 64]}), REFUSED, []),
    "d of a wrong shape": (set_at("tensors", "d", "shape", [2, 4]), REFUSED, ["d"]),
    "d of rank 1": (set_at("tensors", "d", "shape", [8]), REFUSED, ["d"]),
    "MX on trn2": (set_at("profile", "trn2"), REFUSED, ["trn2"]),
    "MX on trn1": (set_at("profile", "trn1"), REFUSED, ["trn1"]),
    "MX on nv-ampere": (set_at("profile", "nv-ampere"), REFUSED, ["nv-ampere"]),
}


def test_bad_case(u, change, code, words):
    case = small_case(u)
    change(case)
    path = write_case(u, "case.json", case)
    u.refuses("verify", ["verify", path], code, [*words, "case.json"] if code == REFUSED else words)
    if change is NO_FILE_OF_D or words == ["d"]:
        return  # run makes d: it reads neither its file nor its shape
    for out in ("out.npy", "out.safetensors"):
        u.run("run", path, "-o", u.path(out), code=code)
        u.check(not os.path.exists(u.path(out)), f"run wrote {out} all the same")


for NAME, (CHANGE, CODE, WORDS) in BAD_CASES.items():
    add_unit(f"bad case: {NAME}", test_bad_case, CHANGE, CODE, WORDS)


@unit("bad case: formats that a device does not take")
def test_bad_formats(u):
    def refuse(what, profile, a, b, *words, **keys):
        c = Case(u, "gemm", profile=profile, **keys).tensor("a", a, [4, 8]).tensor("b", b, [8, 4])
        c.output("f32")
        path = write_case(u, "case.json", c.json)
        u.refuses(what, ["run", path, "-o", u.path("out.npy")], REFUSED, [profile, *words])
        u.check(not os.path.exists(u.path("out.npy")), f"{what}: wrote an output")
    refuse("e4m3 with e4m3fn on trn3", "trn3", "e4m3", "e4m3fn", "e4m3fn")
    refuse("e4m3fn with e4m3 on trn3", "trn3", "e4m3fn", "e4m3", "e4m3fn")
    refuse("e4m3fn on trn2", "trn2", "e4m3fn", "e4m3fn", "e4m3fn")
    refuse("f32 with bf16 on trn2", "trn2", "f32", "bf16", "f32", "bf16")
    refuse("f32 with tf32 on trn3", "trn3", "f32", "tf32", "f32", "tf32")
    refuse("f32 on nv-ampere", "nv-ampere", "f32", "f32", "f32")
    refuse("f16 with bf16 on nv-ada", "nv-ada", "f16", "bf16", "f16", "bf16")
    refuse("fp8 on nv-ampere", "nv-ampere", "e4m3fn", "e4m3fn", "e4m3fn")
    refuse("double_row of bf16", "trn2", "bf16", "bf16", "bf16", double_row=True)
    refuse("double_row on trn1", "trn1", "e4m3", "e4m3", "double_row", double_row=True)
    refuse("bf16 accumulator on trn2", "trn2", "bf16", "bf16", "bf16", accumulate="bf16")
    refuse("e2m1 without scales on trn3", "trn3", "e2m1", "e2m1", "e2m1")


@unit("bad case: files that are no JSON, or another")
def test_bad_json(u):
    good = json.dumps({"schema": "ng.case/1", "cases": [small_case(u)]})

    def refuse(what, text, *words):
        with open(u.path("case.json"), "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        u.refuses(what, ["verify", u.home], FILE, ["case.json", *words])
    refuse("empty", "")
    refuse("half", good[:len(good) // 2])
    refuse("every", "null")
    refuse("a list", "[]")
    refuse("a string", '"ng.case/1"')
    refuse("more after it", good + "x")
    refuse("not UTF-8", good.replace("gemm", "g\u00e9mm").encode("latin1"))
    refuse("NUL", good.replace("gemm", "ge\\u0000mm"))
    refuse("no schema", '{"cases": []}', "schema")
    refuse("another schema", good.replace("ng.case/1", "ng.case/2"), "ng.case/2")
    refuse("no cases", '{"schema": "ng.case/1"}', "cases")
    refuse("empty cases", '{"schema": "ng.case/1", "cases": []}', "cases")
    refuse("cases is an object", '{"schema": "ng.case/1", "cases": {}}', "cases")
    refuse("a case is a number", '{"schema": "ng.case/1", "cases": [3]}', "case 1")
    refuse("a key twice", good.replace('"op"', '"op": "dot", "op"', 1), "op")
    refuse("deep", "[" * 100000)
    refuse("a long number", good.replace('"block": 32', '"block": ' + "9" * 400, 1))
    refuse("the second case", '{"schema": "ng.case/1", "cases": [' + json.dumps(small_case(u)) +
           ', {"op": "x"}]}', "case 2")
    refuse("a long key", '{"schema": "ng.case/1", "' + "k" * 5000 + '": 1}', "kkk")


@unit("bad case: truncated and damaged files")
def test_damaged(u):
    case = small_case(u)
    path = write_case(u, "case.json", case)
    with open(u.path("a.npy"), "rb") as file:
        good = file.read()
    for n in (0, 5, 9, 60, 127, 128, 200, len(good) - 1):
        with open(u.path("a.npy"), "wb") as file:
            file.write(good[:n])
        u.refuses(f"a.npy cut at {n}", ["verify", path], FILE, ["a.npy"])
    with open(u.path("a.npy"), "wb") as file:
        file.write(good + b"x")
    u.refuses("a.npy with a byte more", ["verify", path], FILE, ["a.npy"])
    for old, new in ((b"(4, 64)", b"(4, 99)"), (b"'|u1'", b"'>f8'"), (b"'|u1'", b"'|O1'"),
                     (b"(4, 64)", b"(4, -4)"), (b"NUMPY", b"NUMPI"), (b"False", b"Maybe")):
        with open(u.path("a.npy"), "wb") as file:
            file.write(good.replace(old, new))
        u.refuses(f"a.npy with {new!r}", ["verify", path], FILE, ["a.npy"])
    with open(u.path("a.npy"), "wb") as file:
        file.write(good)
    u.run("run", path, "-o", "whole.safetensors", code=EQUAL)
    u.run("verify", "whole.safetensors", code=EQUAL)
    with open(u.path("whole.safetensors"), "rb") as file:
        whole = file.read()
    for n in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        with open(u.path("cut.safetensors"), "wb") as file:
            file.write(whole[:n])
        u.refuses(f"safetensors cut at {n}", ["verify", u.path("cut.safetensors")], FILE,
                  ["cut.safetensors"])
    with open(u.path("cut.safetensors"), "wb") as file:
        file.write(b"\xff" * 8 + whole[8:])
    u.refuses("safetensors with a huge header", ["verify", u.path("cut.safetensors")], FILE)
    write_safetensors(u.path("plain.safetensors"), {"x": ("F32", [1], b"\0\0\0\0")})
    u.refuses("safetensors that is no case", ["verify", u.path("plain.safetensors")], FILE,
              ["ng.case", "--dumps"])
    write_safetensors(u.path("plain.safetensors"), {"x": ("F32", [1], b"\0\0\0\0")},
                      {"ng.case": "{"})
    u.refuses("metadata that is no JSON", ["verify", u.path("plain.safetensors")], FILE)
    text = json.dumps({"schema": "ng.case/1", "cases": [
        {"op": "convert", "tensors": {"src": {"tensor": "y", "format": "f32"},
                                      "dst": {"tensor": "x", "format": "f32"}}}]})
    write_safetensors(u.path("plain.safetensors"), {"x": ("F32", [1], b"\0\0\0\0")}, {"ng.case": text})
    u.refuses("metadata that names no tensor", ["verify", u.path("plain.safetensors")], FILE, ["'y'"])


@unit("bad case: too few tags for the b of a dot")
def test_dot_tags(u):
    c = Case(u, "dot", profile="trn2").tensor("a", "bf16", [4, 12]).tensor("b", "bf16", [4, 6])
    write_npy(u.path("tags.npy"), "e8m0", [12], [0x10] * 12)
    c.json["tensors"]["b"]["sparse"] = {"tags": "tags.npy", "kept": 2, "group": 4}
    path = write_case(u, "case.json", c.output("f32").json)
    u.refuses("12 bytes of tags for 4 lines of 6", ["run", path, "-o", "d.npy"], FILE,
              ["tags of b", "4 lines of 4 bytes", "12"])
    write_npy(u.path("tags.npy"), "e8m0", [16], [0x10] * 16)
    u.run("run", path, "-o", "d.npy", code=EQUAL)


@unit("bad case: text of a file does not reach the terminal as it is")
def test_control_characters(u):
    case = small_case(u)
    case["na\x1b[31mme"] = 1
    done = u.refuses("escape in a key", ["verify", write_case(u, "case.json", case)], FILE)
    u.check("\x1b" not in done.stderr, "an escape sequence of the file reaches the terminal")
    case = small_case(u)
    case["op"] = "\x1b[2J"
    done = u.refuses("escape in op", ["verify", write_case(u, "case.json", case)], FILE)
    u.check("\x1b" not in done.stderr, "an escape sequence of the file reaches the terminal")


@unit("verify: a sample of the elements")
def test_sample(u):
    """--sample looks at so many elements, says so, and explains from them; a seed repeats it."""
    u.run("example", "--fault", "lanes", u.path("faulty.safetensors"))
    one = u.run("verify", u.path("faulty.safetensors"), "--sample", "200", "--seed", "3", "--json",
                code=DIFFERS).stdout
    two = u.run("verify", u.path("faulty.safetensors"), "--sample", "200", "--seed", "3", "--json",
                "--threads", "2", code=DIFFERS).stdout
    case, again = (json.loads(x)["cases"][0] for x in (one, two))
    u.check(case["elements"]["elements"] == 200 and case["elements"]["sample"] is True,
            f"sample: {case['elements']}")
    u.check(case["mismatches"] == again["mismatches"], "a seed does not repeat its sample")
    best = case["explain"]["findings"][0]
    u.check(best["rule"] == "lane_sum=chain" and best["breaks"] == 0 and
            best["explains"] == best["of"] == case["elements"]["differ"], f"sample: {best}")
    u.run("example", u.path("right.safetensors"))
    text = u.run("verify", u.path("right.safetensors"), "--sample", "50").stdout
    u.check("50 elements (a sample), 50 equal" in text, f"sample: {text}")
    whole = u.run("verify", u.path("right.safetensors"), "--sample", "100000").stdout
    u.check("2304 elements, 2304 equal" in whole, f"a sample of everything: {whole}")
    u.run("verify", u.path("right.safetensors"), "--sample", "0", code=USAGE)


@unit("verify: what is called exact is exact")
def test_exact(u):
    """1 + 2^-50 + 2^-60 is no double: the report must say that there is more to it."""
    c = Case(u, "dot", profile="trn2")
    c.tensor("a", "bf16", [1, 3], [127 << 7, 77 << 7, 77 << 7])
    c.tensor("b", "bf16", [1, 3], [127 << 7, 127 << 7, 117 << 7])
    c.tensor("d", "f32", [1], [0x3F800001])
    text = u.run("verify", write_case(u, "case.json", c.json), "--no-explain", code=DIFFERS).stdout
    line = next((x for x in text.split("\n") if "exact result" in x), "")
    u.check("0x1.000000000000401p+0" in line,
            f"1 + 2^-50 + 2^-60: '{line.strip()}'")


@unit("verify: two tf32 words that differ below the format")
def test_tf32_low_bits(u):
    c = Case(u, "convert").tensor("src", "f32", [2, 1], [0x3F800000] * 2)
    c.tensor("dst", "tf32", [2, 1], [0x3F800001, 0x3F800000])
    text = u.run("verify", write_case(u, "case.json", c.json), code=DIFFERS).stdout
    u.check("2 to 16" not in text, "a tf32 word with low bits is '0 codes (2 to 16 codes)' off")


@unit("bad case: conversions and quantize")
def test_bad_conversions(u):
    def refuse(what, c, code, *words):
        path = write_case(u, "case.json", c.json)
        u.refuses(what, ["verify", path], code, words)
    base = Case(u, "convert").tensor("src", "f32", [4, 32]).tensor("dst", "bf16", [4, 32])

    def changed(**keys):
        c = copy.deepcopy(base)
        c.json.update(keys)
        return c
    refuse("rule for a convert", changed(rule="floor"), FILE, "rule")
    refuse("profile for a convert", changed(profile="trn2"), FILE, "profile")
    refuse("out for a convert", changed(out={"round": "rtz"}), FILE, "out")
    refuse("accumulate for a convert", changed(accumulate="f32"), FILE, "accumulate")
    refuse("quantize without a rule", changed(op="quantize"), FILE, "rule")
    refuse("quantize without scales", changed(op="quantize", rule="floor"), FILE, "scale")
    refuse("dequantize without scales", changed(op="dequantize"), REFUSED, "scale")
    c = copy.deepcopy(base).tensor("dst", "bf16", [2, 64])
    refuse("shapes", c, REFUSED, "src", "4", "dst", "2")
    q = Case(u, "quantize", rule="floor").tensor("src", "f32", [4, 32])
    q.tensor("dst", "e4m3fn", [4, 32]).scale("dst", [4, 32], 1)
    refuse("wrong rule", with_key(q, rule="flor"), FILE, "flor")
    refuse("wrong special", with_key(q, special="ignore"), FILE, "ignore")
    refuse("nvfp4 with e8m0", with_key(q, rule="nvfp4_te"), REFUSED, "e8m0", "ue4m3")
    refuse("from_exponent for nvfp4", with_key(q, rule="nvfp4_te", special="from_exponent"), REFUSED)
    refuse("tensor_amax is a number", with_key(q, tensor_amax=1.0), FILE, "tensor_amax")
    wide = Case(u, "quantize", rule="floor").tensor("src", "f32", [4, 32])
    wide.tensor("dst", "bf16", [4, 32]).scale("dst", [4, 32], 1)
    refuse("quantize to bf16", wide, REFUSED, "bf16")


def with_key(c, **keys):
    other = copy.deepcopy(c)
    other.json.update(keys)
    return other


@unit("verify: the tensor scale of NVFP4 is compared and told")
def test_tensor_scale(u):
    c = Case(u, "quantize", rule="nvfp4_exact").tensor("src", "f32", [2, 32], low=-3, high=3)
    c.output("e2m1", scale={"format": "ue4m3", "block": 16, "axis": 1})
    path = write_case(u, "case.json", c.json)
    u.run("run", path, "-o", "q.safetensors", code=EQUAL)
    meta, tensors = read_safetensors(u.path("q.safetensors"))
    case = json.loads(meta["ng.case"])
    scale = int(case["cases"][0]["tensors"]["dst"]["tensor_scale"], 16)
    amax = max(abs(FORMATS["f32"].decode(x)) for x in read_npy(u.path("src.npy"), "f32")[1])
    u.check(scale == FORMATS["f32"].encode(amax / 2688, 0), f"tensor scale 0x{scale:08x}")
    case["cases"][0]["tensors"]["dst"]["tensor_scale"] = f"0x{scale + 1:08x}"
    meta["ng.case"] = json.dumps(case)
    write_safetensors(u.path("w.safetensors"), {n: (h["dtype"], h["shape"], d)
                                               for n, (h, d) in tensors.items()}, meta)
    done = u.run("verify", "w.safetensors", code=DIFFERS)
    u.check("tensor scale" in done.stdout, "the text says that the tensor scale differs")
    report = u.json("verify", "w.safetensors", code=DIFFERS)
    u.check("tensor_scale" in json.dumps(report["cases"]), "the JSON says that the tensor scale differs")


# ---------------------------------------------------------------------------------------------
# Explanations. A multiply of each kind; a fault is a change of it, and the label that must be named.

M, N = 16, 12


def multiply(u, profile, a, b, k, out="f32", m=M, n=N, **options):
    c = Case(u, "gemm", profile=profile)
    c.tensor("a", a, [m, k], **options).tensor("b", b, [k, n], **options)
    return c.output(out)


def make_mx(u, a="e4m3fn", b="e4m3fn", k=256, profile="trn3", out="f32", layout_="linear", m=M):
    c = Case(u, "gemm", profile=profile)
    c.tensor("a", a, [m, k], low=-9, high=8).scale("a", [m, k], 1, layout=layout_)
    c.tensor("b", b, [k, m], low=-9, high=8).scale("b", [k, m], 0, layout=layout_)
    return c.output(out)


def make_nv(u):
    c = Case(u, "gemm", profile="nv-blackwell-tcgen05")
    for name, shape, axis in (("a", [M, 128], 1), ("b", [128, N], 0)):
        c.tensor(name, "e2m1", shape, low=-1, high=3)
        n = count(shape) // 16
        c.scale(name, shape, axis, 16, "ue4m3", [c.draw.random.randint(8, 110) for _ in range(n)])
    return c.output("f32")


def make_sparse(u, profile="trn2"):
    c = Case(u, "gemm", profile=profile)
    slots, k = 32, 64
    c.tensor("a", "bf16", [M, slots]).tensor("b", "bf16", [k, N]).output("f32")
    tags = []
    for _ in range(M):
        line = []
        for _ in range(slots // 2):
            line += sorted(c.draw.random.sample(range(4), 2))
        tags += [line[i] | line[i + 1] << 4 | line[i + 2] << 8 | line[i + 3] << 12
                 for i in range(0, slots, 4)]
    write_npy(u.path("tags.npy"), "u16", [M, slots // 4], tags)
    c.json["tensors"]["a"]["sparse"] = {"tags": "tags.npy", "kept": 2, "group": 4, "store": "trn"}
    return c


def make_double_row(u):
    c = multiply(u, "trn2", "e4m3", "e4m3", 512)
    c.json["double_row"] = True
    return c


def make_c(u):
    return multiply(u, "trn3", "bf16", "bf16", 160).tensor("c", "f32", [M, N], low=2, high=8)


def make_bf16_c(u):
    return multiply(u, "trn3", "bf16", "bf16", 160).tensor("c", "bf16", [M, N], low=2, high=8)


def make_fused_c(u, profile="nv-ada", fmt="e4m3fn", k=96, low=-6):
    c = multiply(u, profile, fmt, fmt, k, low=low)
    return c.tensor("c", "f32", [M, N], low=-2, high=6)


def make_subnormal_a(u):
    """CDNA2 with subnormal bf16 numbers in A and large ones in B."""
    c = Case(u, "gemm", profile="amd-cdna2").tensor("a", "bf16", [M, 40], low=-129, high=-122)
    return c.tensor("b", "bf16", [40, N], low=115, high=122).output("f32")


def make_integers(u):
    """Small integers: exact sums, many of them in the middle between two bf16 numbers."""
    c = Case(u, "gemm", profile="trn2")
    for name, shape in (("a", [32, 4]), ("b", [4, 32])):
        numbers = [c.draw.random.randint(-31, 31) for _ in range(count(shape))]
        c.tensor(name, "bf16", shape, [FORMATS["bf16"].encode(Fraction(abs(n)), n < 0)
                                       for n in numbers])
    return c.output("bf16")


def make_large(u, out, k=16, low=-2, high=2, m=64):
    """Many outputs, for rare events."""
    c = Case(u, "gemm", profile="trn3").tensor("a", "bf16", [m, k], low=low, high=high)
    return c.tensor("b", "bf16", [k, m], low=low, high=high).output(out)


def make_fp8(u):
    return multiply(u, "trn3", "e4m3fn", "e4m3fn", 128, low=-6, high=8)


MULTIPLIES = {
    "bf16": lambda u: multiply(u, "trn2", "bf16", "bf16", 300),
    "to bf16": lambda u: multiply(u, "trn2", "bf16", "bf16", 300, "bf16"),
    "to f16": lambda u: multiply(u, "trn2", "bf16", "bf16", 100, "f16", low=1, high=7),
    "to e4m3fn": lambda u: make_large(u, "e4m3fn"),
    "beyond e4m3fn": lambda u: make_large(u, "e4m3fn", low=2, high=3, m=16),
    "integers": make_integers,
    "to small e5m2": lambda u: multiply(u, "trn3", "bf16", "bf16", 32, "e5m2", low=-10, high=-7),
    "tiny": lambda u: multiply(u, "trn2", "bf16", "bf16", 160, low=-76, high=-60),
    "f32": lambda u: multiply(u, "trn2", "f32", "f32", 140, m=8, n=8),
    "tf32": lambda u: make_tf32(u),
    "double_row": make_double_row,
    "mx": make_mx,
    "mx bf16": lambda u: make_mx(u, out="bf16"),
    "mx wrap": lambda u: make_mx(u, k=1024, layout_="trn_wrap", m=6),
    "mx deep": lambda u: make_mx(u, k=1024, m=6),
    "fp8": make_fp8,
    "mxfp4": lambda u: make_mx(u, "e2m1", "e5m2"),
    "sparse": make_sparse,
    "sparse hopper": lambda u: make_sparse(u, "nv-hopper"),
    "c": make_c,
    "c bf16": make_bf16_c,
    "ada fp8": make_fused_c,
    "ada fp8 subnormal": lambda u: make_fused_c(u, low=-9),
    "ada f16": lambda u: make_fused_c(u, fmt="f16", k=40),
    "hopper": lambda u: make_fused_c(u, "nv-hopper", "bf16", 64),
    "hopper c": lambda u: make_fused_c(u, "nv-hopper", "bf16", 64),
    "hopper c bf16": lambda u: multiply(u, "nv-hopper", "bf16", "bf16", 64, "bf16").tensor("c", "f32", [M, N], low=-2, high=6),
    "hopper deep": lambda u: make_fused_c(u, "nv-hopper-wgmma", "bf16", 704),
    "wgmma": lambda u: make_fused_c(u, "nv-hopper-wgmma", "e4m3fn", 160),
    "tcgen05 mx": lambda u: make_mx(u, profile="nv-blackwell-tcgen05"),
    "nvf4": make_nv,
    "cdna1": lambda u: make_fused_c(u, "amd-cdna1", "f16", 40),
    "cdna2": lambda u: make_fused_c(u, "amd-cdna2", "bf16", 40),
    "cdna2 subnormal": make_subnormal_a,
    "cdna3": lambda u: make_fused_c(u, "amd-cdna3", "f16", 64),
    "cdna3 fp8": lambda u: make_fused_c(u, "amd-cdna3", "e4m3fnuz", 64),
    "fma": lambda u: multiply(u, "fma-f32", "bf16", "bf16", 70),
}


def make_tf32(u):
    """FP32 patterns with all bits, as a tf32 operand: the low 13 bits are the chip's to drop."""
    c = Case(u, "gemm", profile="trn2")
    for name, shape in (("a", [M, 100]), ("b", [100, N])):
        codes = c.draw.codes("f32", count(shape), -4, 4)
        codes[::5] = [x & ~0x1FFF | 0x1000 for x in codes[::5]]  # the middle between two
        c.tensor(name, "tf32", shape, codes)
    return c.output("f32")


def explained(u, one, labels, exactly=False):
    """The explanation finds all of `labels` together, explains everything and breaks nothing."""
    e = one.get("explain")
    if not u.check(e is not None and one["elements"]["differ"] + one.get("scales", {}).get(
            "differ", 0) > 0, f"nothing differs under {labels}"):
        return
    certain = e["findings"][:e["certain"]]
    names = [f["rule"] for f in certain]
    wanted = {", ".join(p) for p in itertools.permutations(labels)}
    best = e["findings"][0] if e["findings"] else None
    shown = f"best: {best['rule']} explains {best['explains']}/{best['of']} breaks " \
            f"{best['breaks']}/{best['against']}" if best else "no finding"
    u.check(wanted & set(names), f"{' and '.join(labels)} is not named; certain: {names}; {shown}; "
                                 f"{one['elements']['differ']} differ")
    u.check(len({frozenset(n.split(", ")) for n in names}) == len(names), f"a rule is named twice: {names}")
    u.check(not exactly or len(names) == 1, f"tied with {names}")
    for f in certain:
        u.check(f["explains"] == f["of"] and f["breaks"] == 0, f"certain, but {f}")


def rule(name, **values):
    """A change of parameters of the profile's rule."""
    def change(u, c):
        c["profile"] = edit_profile(u, c["profile"], name, **values)
    return change


def key(name, value):
    def change(u, c):
        c[name] = value
    return change


def no_key(name):
    def change(u, c):
        del c[name]
    return change


def no_c(u, c):
    del c["tensors"]["c"]


def read_as(name, fmt):
    def change(u, c):
        c["tensors"][name]["format"] = fmt
    return change


def swap_scales(u, c):
    """b's scales [K/32, M] lie as a's [M, K/32] would: the bytes are exchanged as they are."""
    t = c["tensors"]
    for name, other in (("a", "b"), ("b", "a")):
        with open(u.path(f"{other}_scale.npy"), "rb") as file:
            data = file.read()
        shape, codes = read_npy(u.path(f"{name}_scale.npy"), "e8m0")
        write_npy(u.path(f"{name}_swapped.npy"), "e8m0", shape, list(data[-len(codes):]))
        t[name]["scale"]["file"] = f"{name}_swapped.npy"


def map_codes(name, part, fmt, function):
    """The chip took another code for every one of a tensor (part "") or its scales ("_scale")."""
    def change(u, c):
        shape, codes = read_npy(u.path(f"{name}{part}.npy"), fmt)
        if fmt == "e2m1":
            shape[-1] *= 2
        write_npy(u.path(f"{name}{part}_x.npy"), fmt, shape, function(codes))
        t = c["tensors"][name]
        (t["scale"] if part else t)["file"] = f"{name}{part}_x.npy"
    return change


def by_columns(rows, columns):
    """The codes of a matrix that lies column by column in memory, row by row; back: the reverse."""
    def move(codes, back=False):
        out = list(codes)
        for r, c in itertools.product(range(rows), range(columns)):
            here, there = r * columns + c, c * rows + r
            out[there if back else here] = codes[here if back else there]
        return out
    return move


def nibbles(codes):
    return [codes[i ^ 1] for i in range(len(codes))]


def to_bf16(codes):
    return [FORMATS["bf16"].encode(abs(FORMATS["f32"].decode(c)), c >> 31) << 16 for c in codes]


def flush(fmt):
    f = FORMATS[fmt]
    return lambda codes: [c & f.sign if (c & ~f.sign) >> f.man == 0 else c for c in codes]


def layout(name):
    def change(u, c):
        for t in c["tensors"].values():
            if "scale" in t:
                t["scale"]["layout"] = name
    return change


def both(*changes):
    def change(u, c):
        for f in changes:
            f(u, c)
    return change


# The multiply, the fault, the label(s) that must explain it.
MULTIPLY_FAULTS = [
    ("bf16", rule("plain", chain_rows=64), "chain_rows=64"),
    ("bf16", rule("plain", chain_rows=16), "chain_rows=16"),
    ("bf16", rule("plain", chain_map="parity"), "chain_map=parity"),
    ("bf16", rule("plain", chain_map="interleave"), "chain_map=interleave"),
    ("bf16", rule("plain", combine="sequential"), "combine=sequential"),
    ("bf16", rule("plain", acc_bits=23), "acc_bits=23"),
    ("bf16", rule("plain", acc_bits=25), "acc_bits=25"),
    ("bf16", rule("plain", acc_round="rtz"), "acc_round=rtz"),
    ("bf16", rule("plain", psum_add="rtz"), "psum_add=rtz"),
    ("bf16", rule("plain", rows=64), "rows=64"),
    ("bf16", map_codes("a", "", "bf16", lambda c: c), None),
    ("bf16", read_as("a", "f16"), "a read as f16"),
    ("bf16", read_as("b", "f16"), "b read as f16"),
    ("tiny", rule("plain", acc_range="f32_ftz"), "acc_range=f32_ftz"),
    ("tiny", rule("plain", acc_range="f32"), "acc_range=f32"),
    ("f32", rule("f32", piece_order="hi_first"), "piece_order=hi_first"),
    ("f32", rule("f32", piece_split="rne"), "piece_split=rne"),
    ("f32", rule("f32", piece_adds=4), "piece_adds=4"),
    ("f32", rule("f32", piece_outer="b"), "piece_outer=b"),
    ("f32", rule("f32", pieces=1), "pieces=1"),
    ("tf32", rule("tf32", tf32_in="rtz"), "tf32_in=rtz"),
    ("tf32", rule("tf32", tf32_in="rna"), "tf32_in=rna"),
    ("double_row", rule("double_row", k_map="interleave"), "k_map=interleave"),
    ("double_row", rule("double_row", lane_sum="chain"), "lane_sum=chain"),
    ("double_row", rule("double_row", lane_sum="presum"), "lane_sum=presum"),
    ("double_row", no_key("double_row"), "double_row=no"),
    ("mx", rule("mx", lane_sum="tree"), "lane_sum=tree"),
    ("mx", rule("mx", lane_sum="presum"), "lane_sum=presum"),
    ("mx", rule("mx", acc_round="rtz"), "acc_round=rtz"),
    ("mx", rule("mx", chain_rows=16), "chain_rows=16"),
    ("mx", rule("mx", chain_map="parity"), "chain_map=parity"),
    ("mx", layout("trn_wrap"), "block layout=trn_wrap"),
    ("mx", swap_scales, "scales of a and b swapped"),
    ("mx", both(map_codes("a", "_scale", "e8m0", lambda c: [127] * len(c)),
                map_codes("b", "_scale", "e8m0", lambda c: [127] * len(c))), "scales ignored"),
    ("mx", map_codes("a", "_scale", "e8m0", lambda c: [x + 1 for x in c]), "scale bias off by +1"),
    ("mx", map_codes("b", "_scale", "e8m0", lambda c: [x - 1 for x in c]), "scale bias off by -1"),
    ("mx", read_as("a", "e5m2"), "a read as e5m2"),
    ("mx", key("accumulate", "bf16"), "accumulate=bf16"),
    ("mx", map_codes("b", "", "e4m3fn", flush("e4m3fn")), "b subnormals flushed"),
    ("mx bf16", key("out", {"round": "rtz"}), "out round=rtz"),
    ("mx wrap", layout("linear"), "block layout=linear"),
    ("mxfp4", map_codes("a", "", "e2m1", nibbles), "a nibbles swapped"),
    ("mxfp4", read_as("b", "e4m3fn"), "b read as e4m3fn"),
    ("sparse", rule("plain", acc_round="rtz"), "acc_round=rtz"),
    ("sparse", rule("plain", chain_rows=16), "chain_rows=16"),
    ("c", no_c, "c ignored"),
    ("c bf16", key("accumulate", "bf16"), "accumulate=bf16"),
    ("c", rule("plain", psum_add="rtz"), "psum_add=rtz"),
    ("c", ("c last", None), "c added last"),
    ("hopper c", ("c last", None), "c added last"),
    ("hopper c bf16", ("c rounded", None), "c added to the rounded sum"),
    ("bf16", ("columns", None), "d is column-major"),
    ("to bf16", ("columns", None), "d is column-major"),
    ("bf16", map_codes("a", "", "bf16", by_columns(M, 300)), "a is column-major"),
    ("bf16", map_codes("b", "", "bf16", by_columns(300, N)), "b is column-major"),
    ("fp8", map_codes("b", "", "e4m3fn", by_columns(128, N)), "b is column-major"),
    ("to bf16", key("out", {"round": "rtz"}), "out round=rtz"),
    ("integers", key("out", {"round": "rna"}), "out round=rna"),
    ("integers", key("out", {"round": "rup"}), "out round=rup"),
    ("to f16", key("out", {"overflow": "sat"}), "out overflow=sat"),
    ("beyond e4m3fn", key("out", {"overflow": "sat"}), "out overflow=sat"),
    ("to e4m3fn", ("via", "f16"), "out via=f16"),
    ("to e4m3fn", ("via", "bf16"), "out via=bf16"),
    ("to small e5m2", ("flush", None), "out flush_subnormals"),
    ("ada fp8", rule("fp8", frac=14), "frac=14"),
    ("ada fp8", rule("fp8", frac=12), "frac=12"),
    ("ada fp8", rule("fp8", group=8), "group=8"),
    ("ada fp8", rule("fp8", group=32), "group=32"),
    ("ada fp8", rule("fp8", promote_every=4), "promote_every=4"),
    ("ada fp8", rule("fp8", out_bits=14), "out_bits=14"),
    ("ada fp8", rule("fp8", out_round="rne"), "out_round=rne"),
    ("ada fp8", rule("fp8", align_round="rdn"), "align_round=rdn"),
    ("ada fp8 subnormal", rule("fp8", flush_in="zero"), "flush_in=zero"),
    ("ada fp8", no_c, "c ignored"),
    ("ada fp8", read_as("a", "e5m2"), "a read as e5m2"),
    ("ada f16", rule("f16", c_place="after"), "c_place=after"),
    ("ada f16", rule("f16", product_norm="renorm"), "product_norm=renorm"),
    ("ada f16", rule("f16", sum="pairwise"), "sum=pairwise"),
    ("ada f16", rule("f16", sum="exact"), "sum=exact"),
    ("hopper", rule("bf16", frac=24), "frac=24"),
    ("hopper", rule("bf16", group=8), "group=8"),
    ("wgmma", rule("fp8", frac=14), "frac=14"),
    # K in three parts of 256, in two of 384 (the last ones shorter): as libraries split it
    ("hopper deep", rule("bf16", promote_every=16), "promote_every=16 (K in 3 parts)"),
    ("hopper deep", rule("bf16", promote_every=24), "promote_every=24 (K in 2 parts)"),
    ("sparse hopper", rule("bf16", sparse_k="dense"), "sparse_k=dense"),
    ("wgmma", rule("fp8", promote_every=4), "promote_every=4"),
    ("tcgen05 mx", rule("mxf8f6f4", frac=24), "frac=24"),
    ("tcgen05 mx", rule("mxf8f6f4", group=16), "group=16"),
    ("tcgen05 mx", rule("mxf8f6f4", out_round="rne"), "out_round=rne"),
    ("nvf4", rule("nvf4", out_round="rne"), "out_round=rne"),
    ("cdna1", rule("f16", sum="align"), "sum=align"),
    ("cdna1", rule("f16", group=2), "group=2"),
    ("cdna2 subnormal", rule("bf16", flush_in="none"), "flush_in=none"),
    ("cdna3", rule("f16", c_frac=25), "c_frac=25"),
    ("cdna3", rule("f16", c_place="in"), "c_place=in"),
    ("cdna3", rule("f16", group=4), "group=4"),
    ("cdna3 fp8", rule("fp8", subgroups=1), "subgroups=1"),
    ("fma", rule("plain", acc_round="rtz"), "acc_round=rtz"),
    # Two at once.
    ("to bf16", both(rule("plain", acc_bits=12), key("out", {"round": "rtz"})),
     ["acc_bits=12", "out round=rtz"]),
    ("mx bf16", both(swap_scales, key("out", {"round": "rtz"})),
     ["scales of a and b swapped", "out round=rtz"]),
    ("mx deep", both(key("accumulate", "bf16"), swap_scales),
     ["accumulate=bf16", "scales of a and b swapped"]),
    # Both operands of another format: neither alone is a multiply that trn3 does.
    ("fp8", both(read_as("a", "e4m3"), read_as("b", "e4m3")), ["a read as e4m3", "b read as e4m3"]),
    # What compilers do unasked: FP32 operands rounded to bf16.
    ("f32", both(map_codes("a", "", "f32", to_bf16), map_codes("b", "", "f32", to_bf16)),
     ["a rounded to bf16", "b rounded to bf16"]),
    ("mx", both(rule("mx", acc_round="rtz", lane_sum="chain")), ["acc_round=rtz", "lane_sum=chain"]),
    ("bf16", both(rule("plain", chain_rows=64, acc_round="rtz")), ["chain_rows=64", "acc_round=rtz"]),
    ("f32", both(rule("f32", piece_order="hi_first", piece_outer="b")),
     ["piece_order=hi_first", "piece_outer=b"]),
    ("ada fp8", both(rule("fp8", frac=14, out_round="rne")), ["frac=14", "out_round=rne"]),
    ("ada f16", both(rule("f16", frac=25, group=4)), ["frac=25", "group=4"]),
    ("c", both(no_c, rule("plain", chain_map="parity")), ["c ignored", "chain_map=parity"]),
]


def chip_output(u, right, fault):
    """The wrong chip's d.npy, by the tool under the fault's rule."""
    wrong = copy.deepcopy(right)
    steps = None
    if isinstance(fault, tuple):
        steps = fault
        if steps[0] in ("c last", "c rounded"):
            no_c(u, wrong)
    else:
        fault(u, wrong)
    out = next(t for n, t in right["tensors"].items() if n in ("d", "dst"))
    if steps and steps[0] == "via":
        next(t for n, t in wrong["tensors"].items() if n in ("d", "dst"))["format"] = steps[1]
    path = write_case(u, "wrong.json", wrong)
    if u.run("run", path, "-o", u.path("made.npy"), "--scale-out", u.path("made_scale.npy"),
             code=EQUAL).returncode:
        return False
    if steps and steps[0] == "via":
        u.run("convert", "--to", out["format"], "made.npy", "d.npy", code=EQUAL)
    elif steps and steps[0] == "columns":
        shape, codes = read_npy(u.path("made.npy"), out["format"])
        write_npy(u.path("d.npy"), out["format"], shape, by_columns(*shape)(codes, back=True))
    elif steps and steps[0] == "c last":
        shape, codes = read_npy(u.path("made.npy"), "f32")
        addends = read_npy(u.path("c.npy"), "f32")[1]
        write_npy(u.path("d.npy"), "f32", shape, [f32_code(f32_value(x) + f32_value(y)) for x, y in zip(codes, addends)])
    elif steps and steps[0] == "c rounded":
        f = FORMATS["bf16"]
        shape, codes = read_npy(u.path("made.npy"), "bf16")
        addends = read_npy(u.path("c.npy"), "f32")[1]
        sums = [f32_value(f32_code(f32_value(x << 16) + f32_value(y))) for x, y in zip(codes, addends)]
        write_npy(u.path("d.npy"), "bf16", shape, [f.encode(Fraction(abs(x)), x < 0) for x in sums])
    elif steps and steps[0] == "flush":
        shape, codes = read_npy(u.path("made.npy"), out["format"])
        write_npy(u.path("d.npy"), out["format"], shape, flush(out["format"])(codes))
    else:
        shutil.copy(u.path("made.npy"), u.path("d.npy"))
        if os.path.exists(u.path("made.npy.json")):
            shutil.copy(u.path("made.npy.json"), u.path("d.npy.json"))
    return True


def test_multiply_fault(u, name, fault, label):
    right = MULTIPLIES[name](u).json
    if not chip_output(u, right, fault):
        return
    right["tensors"]["d"]["file"] = "d.npy"
    path = write_case(u, "case.json", right)
    report = u.json("verify", path, code=EQUAL if label is None else DIFFERS)
    if not report or label is None:
        return
    explained(u, report["cases"][0], [label] if isinstance(label, str) else label)


for NAME, FAULT, LABEL in MULTIPLY_FAULTS:
    add_unit(f"explain {NAME} <- {LABEL if isinstance(LABEL, str) else ' + '.join(LABEL or ['none'])}",
             test_multiply_fault, NAME, FAULT, LABEL)


# Quantize, dequantize, convert.

def make_quantize(u, fmt="e4m3fn", rule_="floor", shape=(8, 256), block=32, scale="e8m0", special=None,
                  codes=None, layout_="linear"):
    c = Case(u, "quantize", rule=rule_)
    if codes == "special":
        codes = c.draw.codes("f32", count(shape), -6, 6)
        for at in c.draw.random.sample(range(len(codes)), 12):
            codes[at] = c.draw.random.choice([0x7F800000, 0xFF800000, 0x7FC00000])
    if codes == "ties":  # four mantissa bits: one more than e4m3fn has
        codes = [x & ~0x7FFFF for x in c.draw.codes("f32", count(shape), -6, 6)]
    if codes is None:  # every third block has a power of two as its largest
        codes = c.draw.codes("f32", count(shape), -6, 6)
        for at in range(0, len(codes), 3 * block):
            codes[at + 5] = f32_code(128.0)
    c.tensor("src", "f32", list(shape), codes)
    if special:
        c.json["special"] = special
    return c.output(fmt, scale={"format": scale, "block": block, "axis": 1, "layout": layout_})


def make_nvfp4(u, rule_):
    """Blocks whose largest number puts the scale in the middle between two ue4m3 numbers, give or
    take one FP32 step: only there the roundings of TransformerEngine's way show."""
    c = Case(u, "quantize", rule=rule_)
    f, g = FORMATS["f32"], FORMATS["e4m3fn"]
    top = Fraction(5003, 7)
    scale = f.decode(f.encode(f.decode(f.encode(top, 0)) / 2688, 0))
    codes = c.draw.codes("f32", 64 * 64, -20, -10)
    codes[0] = f.encode(top, 0)
    for at in range(16, len(codes), 16):
        code = c.draw.random.randint(8, 100)
        middle = (g.decode(code) + g.decode(code + 1)) / 2
        codes[at] = f.encode(6 * scale * middle, 0) + c.draw.random.randint(-1, 1)
    c.tensor("src", "f32", [64, 64], codes)
    return c.output("e2m1", scale={"format": "ue4m3", "block": 16, "axis": 1})


RULES = ["floor", "floor_up1", "ceil", "even", "rceil"]


def cast_key(name, value):
    return key("cast", {name: value})


def quantize_layout(u, c):
    c["tensors"]["dst"]["scale"]["layout"] = "trn_wrap"


QUANTIZE_FAULTS = [(f"{a}", lambda u, a=a: make_quantize(u, rule_=a), key("rule", b), f"scale_rule={b}")
                   for a in RULES for b in RULES if a != b]
QUANTIZE_FAULTS += [
    ("e2m1", lambda u: make_quantize(u, "e2m1", "even"), key("rule", "floor"), "scale_rule=floor"),
    ("e5m2", lambda u: make_quantize(u, "e5m2", "floor"), cast_key("round", "rtz"), "round=rtz"),
    ("e4m3fn", lambda u: make_quantize(u, codes="ties"), cast_key("round", "rna"), "round=rna"),
    ("e4m3fn wrap", lambda u: make_quantize(u, shape=(4, 512)), quantize_layout,
     "block layout=trn_wrap"),
    ("special", lambda u: make_quantize(u, codes="special", special="element"),
     key("special", "nan_block"), "special=nan_block"),
    ("special", lambda u: make_quantize(u, codes="special", special="nan_block"),
     key("special", "element"), "special=element"),
    ("special", lambda u: make_quantize(u, codes="special", special="element"),
     key("special", "from_exponent"), "special=from_exponent"),
    ("nvfp4", lambda u: make_nvfp4(u, "nvfp4_te"),
     key("rule", "nvfp4_exact"), "scale_rule=nvfp4_exact"),
    ("nvfp4 back", lambda u: make_nvfp4(u, "nvfp4_exact"),
     key("rule", "nvfp4_te"), "scale_rule=nvfp4_te"),
    ("two", lambda u: make_quantize(u, rule_="floor"), both(key("rule", "rceil"),
     cast_key("round", "rtz")), ["scale_rule=rceil", "round=rtz"]),
    ("via bf16", lambda u: make_quantize(u), map_codes("src", "", "f32", to_bf16), "via=bf16"),
]


def test_quantize_fault(u, make, fault, label):
    right = make(u).json
    if not chip_output(u, right, fault):
        return
    dst = right["tensors"]["dst"]
    dst["file"], dst["scale"]["file"] = "d.npy", "made_scale.npy"
    if "nvfp4" in right["rule"]:
        # The case claims the right tensor scale: it is the same under both rules, or is not told.
        dst.pop("tensor_scale", None)
    report = u.json("verify", write_case(u, "case.json", right), code=DIFFERS)
    if report:
        explained(u, report["cases"][0], [label] if isinstance(label, str) else label)


for NAME, MAKE, FAULT, LABEL in QUANTIZE_FAULTS:
    add_unit(f"explain quantize {NAME} <- {LABEL if isinstance(LABEL, str) else ' + '.join(LABEL)}",
             test_quantize_fault, MAKE, FAULT, LABEL)


def make_convert(u, src="f32", dst="bf16", low=-8, high=8, n=512, codes=None, **cast):
    c = Case(u, "convert")
    c.tensor("src", src, [n // 32, 32], codes(c.draw) if codes else None,
             **({} if codes else {"low": low, "high": high}))
    if cast:
        c.json["cast"] = cast
    return c.output(dst)


def make_dequantize(u, fmt="e4m3fn", dst="bf16", layout_="linear"):
    c = Case(u, "dequantize")
    c.tensor("src", fmt, [4, 512], low=-6, high=8)
    c.scale("src", [4, 512], 1, layout=layout_)
    return c.output(dst)


def ties(dst):
    """FP32 patterns in the middle between two codes, and near it."""
    def codes(draw):
        f, out = FORMATS[dst], []
        while len(out) < 512:
            c = draw.codes(dst, 1, -4, 4)[0] & (f.sign - 1)
            low, high = f.decode(c), f.decode(min(c + 1, f.max_code))
            middle = FORMATS["f32"].encode((low + high) / 2, draw.random.getrandbits(1))
            out.append(middle + draw.random.randint(-1, 1) if middle & 0x7FFFFFFF else middle)
        return out
    return codes


def every_code(_):
    return list(range(256)) * 2


def with_nans(draw):
    codes = draw.codes("f32", 512, -8, 8)
    for at in range(0, 512, 17):
        codes[at] = draw.random.choice([0x7FC00000, 0xFFC00000, 0xFFC12345, 0x7F800001])
    return codes


CONVERT_FAULTS = [(f"bf16 {r}", lambda u: make_convert(u, codes=ties("bf16")), cast_key("round", r),
                   f"round={r}") for r in ("rna", "rtz", "rdn", "rup", "rto")]
CONVERT_FAULTS += [
    ("overflow", lambda u: make_convert(u, dst="e4m3fn", low=4, high=12),
     cast_key("overflow", "sat"), "overflow=sat"),
    ("overflow back", lambda u: make_convert(u, dst="e4m3fn", low=4, high=12, overflow="sat"),
     cast_key("overflow", "inf"), "overflow=inf"),
    ("via f16", lambda u: make_convert(u, dst="e4m3fn", codes=ties("e4m3fn")), ("via", "f16"),
     "via=f16"),
    ("via bf16", lambda u: make_convert(u, dst="e4m3fn", codes=ties("e4m3fn")), ("via", "bf16"),
     "via=bf16"),
    ("flush out", lambda u: make_convert(u, dst="e5m2", low=-17, high=-12), ("flush", None),
     "flush_subnormals"),
    ("flush in", lambda u: make_convert(u, "e5m2", "f32", low=-17, high=-12),
     map_codes("src", "", "e5m2", flush("e5m2")), "src subnormals flushed"),
    ("nan sign", lambda u: make_convert(u, codes=with_nans), cast_key("nan_sign", "keep"),
     "nan_sign=keep"),
    ("nan code", lambda u: make_convert(u, codes=with_nans), ("nan", 0x7FFF), "NaN code=0x7fff"),
    ("nan to", lambda u: make_convert(u, dst="e2m1", codes=with_nans, overflow="sat"),
     key("cast", {"overflow": "sat", "nan_to": "zero"}), "nan_to=zero"),
    ("read as", lambda u: make_convert(u, "e4m3", "f32", codes=every_code), read_as("src", "e4m3fn"),
     "src read as e4m3fn"),
    ("read as fnuz", lambda u: make_convert(u, "e4m3fn", "f32"), read_as("src", "e4m3fnuz"),
     "src read as e4m3fnuz"),
    ("read as f16", lambda u: make_convert(u, "bf16", "f32"), read_as("src", "f16"),
     "src read as f16"),
    ("nibbles", lambda u: make_convert(u, "e2m1", "f32"), map_codes("src", "", "e2m1", nibbles),
     "src nibbles swapped"),
    ("two", lambda u: make_convert(u, dst="e4m3fn", low=4, high=12),
     key("cast", {"round": "rup", "overflow": "sat"}), ["round=rup", "overflow=sat"]),
    ("dequantize +1", make_dequantize, map_codes("src", "_scale", "e8m0", lambda c: [x + 1 for x in c]),
     "scale bias off by +1"),
    ("dequantize -1", make_dequantize, map_codes("src", "_scale", "e8m0", lambda c: [x - 1 for x in c]),
     "scale bias off by -1"),
    ("dequantize ignored", make_dequantize, map_codes("src", "_scale", "e8m0",
                                                      lambda c: [127] * len(c)), "scales ignored"),
    ("dequantize layout", make_dequantize, layout("trn_wrap"), "block layout=trn_wrap"),
    ("dequantize nibbles", lambda u: make_dequantize(u, "e2m1"), map_codes("src", "", "e2m1", nibbles),
     "src nibbles swapped"),
    ("dequantize rtz", lambda u: make_dequantize(u, dst="e5m2"), cast_key("round", "rtz"), "round=rtz"),
    ("dequantize read as", make_dequantize, read_as("src", "e5m2"), "src read as e5m2"),
]


def test_convert_fault(u, make, fault, label):
    right = make(u).json
    if isinstance(fault, tuple) and fault[0] == "nan":
        if not chip_output(u, right, lambda u, c: None):
            return
        shape, codes = read_npy(u.path("d.npy"), "bf16")
        write_npy(u.path("d.npy"), "bf16", shape,
                  [fault[1] if c & 0x7FFF > 0x7F80 else c for c in codes])
    elif not chip_output(u, right, fault):
        return
    right["tensors"]["dst"]["file"] = "d.npy"
    report = u.json("verify", write_case(u, "case.json", right), code=DIFFERS)
    if report:
        explained(u, report["cases"][0], [label] if isinstance(label, str) else label)


for NAME, MAKE, FAULT, LABEL in CONVERT_FAULTS:
    add_unit(f"explain convert {NAME} <- {LABEL if isinstance(LABEL, str) else ' + '.join(LABEL)}",
             test_convert_fault, MAKE, FAULT, LABEL)


@unit("explain: noise is not explained")
def test_noise(u):
    """Random outputs, and single flipped bits: no rule may claim them."""
    for name in ("bf16", "ada fp8"):
        right = MULTIPLIES[name](u).json
        if not chip_output(u, right, lambda u, c: None):
            return
        shape, codes = read_npy(u.path("d.npy"), "f32")
        draw = Draw("noise")
        for what, noisy in (("flips", [c ^ (1 << draw.random.randint(0, 22))
                                       if i % 29 == 3 else c for i, c in enumerate(codes)]),
                            ("noise", draw.codes("f32", len(codes)))):
            write_npy(u.path("e.npy"), "f32", shape, noisy)
            right["tensors"]["d"]["file"] = "e.npy"
            report = u.json("verify", write_case(u, "case.json", right), code=DIFFERS)
            if report:
                e = report["cases"][0]["explain"]
                u.check(e["certain"] == 0, f"{name} {what}: {e['findings'][:1]} is called certain")
            text = u.run("verify", "case.json", code=DIFFERS).stdout
            u.check("no rule tried explains" in text, f"{name} {what}: {text[-300:]}")


@unit("explain: what a rule leaves is seen, though a sample is looked at")
def test_two_causes(u):
    """A rounding rule explains all but one element: no verdict may say that it explains everything."""
    u.run("example", "-q", "--fault", "rtz", "r", code=EQUAL)
    path = u.path("r/d.npy")
    shape, codes = read_npy(path, "bf16")
    right = list(codes)
    place = 1010
    codes[place] ^= 0x4000
    write_npy(path, "bf16", shape, codes)
    one = u.json("verify", "r", code=DIFFERS)["cases"][0]
    e, best = one["explain"], one["explain"]["findings"][0]
    u.check(e["all"] is False and e["certain"] == 0, f"{e['certain']} rules are called certain")
    u.check(best["rule"] == "out round=rtz" and best["all"] is True and best["of"] == one["elements"]["differ"] and
            best["explains"] == best["of"] - 1 and not best["breaks"] and
            best["against"] == one["elements"]["elements"] - best["of"], f"the best: {best}")
    u.check(best["left"].startswith(f"[{place // shape[1]}, {place % shape[1]}] got "), f"what it leaves: {best}")
    text = u.run("verify", "r", code=DIFFERS).stdout
    u.check("(of all)" in text and "first that out round=rtz leaves: [" in text and
            "no rule tried explains everything; the best is out round=rtz" in text, f"the text: {text[-500:]}")
    write_npy(path, "bf16", shape, right)
    text = u.run("verify", "r", code=DIFFERS).stdout
    u.check("verdict: out round=rtz explains every difference and breaks nothing" in text, f"none: {text[-300:]}")
    # of a report on a sample all elements of the sample
    one = u.json("verify", "r", "--sample", "2000", code=DIFFERS)["cases"][0]
    best = one["explain"]["findings"][0]
    u.check(one["explain"]["certain"] == 1 and best["of"] == one["elements"]["differ"] and
            best["of"] + best["against"] == 2000, f"a sample: {best}")


@unit("explain: another profile, scales of one operand, a rule that hits by chance")
def test_other_causes(u):
    right = MULTIPLIES["bf16"](u).json
    made = {**right, "profile": "fma-f32"}
    u.run("run", write_case(u, "made.json", made), "-o", "d.npy", code=EQUAL)
    right["tensors"]["d"]["file"] = "d.npy"
    e = u.json("verify", write_case(u, "case.json", right), code=DIFFERS)["cases"][0]["explain"]
    u.check(e["certain"] and any("profile=fma-f32" in f["rule"] for f in e["findings"]), f"a profile: {e['findings'][:3]}")
    right = MULTIPLIES["mx"](u).json
    made = json.loads(json.dumps(right))
    shape, codes = read_npy(u.path("b_scale.npy"), "e8m0")
    write_npy(u.path("one.npy"), "e8m0", shape, [127] * len(codes))
    made["tensors"]["b"]["scale"]["file"] = "one.npy"
    u.run("run", write_case(u, "made.json", made), "-o", "d.npy", code=EQUAL)
    right["tensors"]["d"]["file"] = "d.npy"
    e = u.json("verify", write_case(u, "case.json", right), code=DIFFERS)["cases"][0]["explain"]
    u.check(e["certain"] == 1 and e["findings"][0]["rule"] == "scales of b ignored", f"scales: {e['findings'][:3]}")
    # every element three times as large: what a few codes have in common with a rule is no explanation
    right = MULTIPLIES["bf16"](u).json
    u.run("run", write_case(u, "made.json", right), "-o", "d.npy", code=EQUAL)
    fmt = right["tensors"]["d"]["format"]
    shape, codes = read_npy(u.path("d.npy"), fmt)
    write_npy(u.path("d.npy"), fmt, shape, codes[1:] + codes[:1])
    right["tensors"]["d"]["file"] = "d.npy"
    text = u.run("verify", write_case(u, "case.json", right), code=DIFFERS).stdout
    u.check("verdict: no rule tried explains the difference" in text and "first difference under" not in text,
            f"shifted: {text[-400:]}")


@unit("threads and ISAs change nothing")
def test_threads(u):
    c = MULTIPLIES["ada fp8"](u).json
    chip_output(u, c, rule("fp8", frac=14))
    c["tensors"]["d"]["file"] = "d.npy"
    path = write_case(u, "ada.json", c)
    right = MULTIPLIES["bf16"](u).json
    chip_output(u, right, lambda u, c: None)
    right["tensors"]["d"]["file"] = "d.npy"
    same = write_case(u, "same.json", right)
    isas = re.search(r"ISAs: (.*)", u.run("version").stdout).group(1).split()

    def outputs(*options):
        return [re.sub(r"oracle [\d.]+ s", "", u.run("verify", p, *options).stdout)
                for p in (path, same)]
    want = outputs()
    for options in [["--threads", "2"], ["--threads", "0"]] + [["--isa", i] for i in isas] + [
            ["--isa", ",".join(isas), "--threads", "3"]]:
        u.check(outputs(*options) == want, f"{' '.join(options)} changes the report")
    for options in ([], ["--threads", "2"], ["--isa", "ref"]):
        u.run("run", same, "-o", "t.npy", *options, code=EQUAL)
        u.check(read_npy(u.path("t.npy"), "f32") == read_npy(u.path("d.npy"), "f32"), f"run {options}")
    isa = u.run("verify", same, env={**os.environ, "NG_ISA": "ref"})
    u.check(isa.returncode == EQUAL, "NG_ISA=ref")
    isa = u.run("verify", same, env={**os.environ, "NG_ISA": "mmx"})
    u.check(isa.returncode == USAGE and "NG_ISA" in isa.stderr, "NG_ISA=mmx is refused")


# ---------------------------------------------------------------------------------------------
# sparsify

def keep_of(codes, kept):
    """Offsets that stay of a group of bf16 codes: largest magnitude, NaN alike, then lowest."""
    weight = [min(c & 0x7FFF, 0x7F81) for c in codes]
    return sorted(sorted(range(len(codes)), key=lambda i: (-weight[i], i))[:kept])


def sparse_want(shape, codes, kept, group, axis, store):
    """Pruned codes, slots, and lines of tags as bytes, of a matrix."""
    rows, cols = shape
    pruned = [0] * len(codes)
    slots, tags = {}, []
    for line in range(rows if axis == 1 else cols):
        at = [line * cols + k for k in range(cols)] if axis == 1 else \
            [k * cols + line for k in range(rows)]
        line_tags = []
        for g in range(0, len(at), group):
            chosen = keep_of([codes[i] for i in at[g:g + group]], kept)
            for n, t in enumerate(chosen):
                code = codes[at[g + t]]
                code = code if code & 0x7FFF else 0
                pruned[at[g + t]] = code
                slots[(line, g // group * kept + n)] = code
            line_tags += chosen
        line_tags += [0] * (-len(line_tags) % 4)
        width, per = (4, 4) if store == "trn" else (2, 4)
        words = [sum(t << (width * i) for i, t in enumerate(line_tags[j:j + per]))
                 for j in range(0, len(line_tags), per)]
        tags.append(b"".join(struct.pack("<H" if store == "trn" else "<B", w) for w in words))
    n = len(slots) // len(tags)
    order = [slots[(r, s)] for r in range(rows) for s in range(n)] if axis == 1 else \
        [slots[(c, s)] for s in range(n) for c in range(cols)]
    return pruned, order, b"".join(tags)


def plain_bytes(path):
    with open(path, "rb") as file:
        data = file.read()
    return data[10 + struct.unpack("<H", data[8:10])[0]:]


def test_sparsify(u, kept, group, axis, store):
    pattern, options = f"{kept}:{group}", ["--axis", str(axis)]
    draw = Draw(f"sparsify {pattern} {axis} {store}")
    shape = [5, 6 * group] if axis == 1 else [6 * group, 5]
    codes = [draw.random.choice([0, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFFC1, 0x7FFF,
                                 draw.random.randrange(65536)]) for _ in range(30 * group)]
    pruned, slots, tags = sparse_want(shape, codes, kept, group, axis, store)
    write_npy(u.path("x.npy"), "bf16", shape, codes)
    common = ["--pattern", pattern, *options]
    u.run("sparsify", "prune", *common, "x.npy=bf16", "p.npy", code=EQUAL)
    u.check(read_npy(u.path("p.npy"), "bf16") == (shape, pruned), "pruned codes")
    done = u.run("sparsify", "compress", *common, "--store", store, "--prune", "--tags", "t.npy",
                 "x.npy=bf16", "c.npy", code=EQUAL)
    u.check("t.npy" in done.stdout, "it says where the tags are")
    u.check(read_npy(u.path("c.npy"), "bf16")[1] == slots, "slots")
    u.check(plain_bytes(u.path("t.npy")) == tags, "tags")
    # Without --prune: the pruned one gives the same, files of other kinds too.
    u.run("sparsify", "compress", *common, "--store", store, "--tags", "t2.safetensors", "p.npy",
          "c2.safetensors", code=EQUAL)
    _, found = read_safetensors(u.path("t2.safetensors"))
    u.check([data for _, data in found.values()] == [tags], "tags in safetensors")
    u.run("sparsify", "expand", *common, "--store", store, "--tags", "t2.safetensors",
          "c2.safetensors=bf16", "e.npy", code=EQUAL)
    u.check(read_npy(u.path("e.npy"), "bf16") == (shape, pruned), "expanded codes")
    report = u.json("sparsify", "check", *common, "p.npy", code=EQUAL)
    u.check(report.get("verdict") == "holds" and report.get("first", 0) is None and
            report.get("groups") == 30, f"check of the pruned: {report}")
    # The first group that does not hold.
    lines = [[codes[r * shape[1] + k] for k in range(shape[1])] for r in range(shape[0])]
    lines = lines if axis == 1 else [list(c) for c in zip(*lines)]
    broken = [(i, g // group, n) for i, line in enumerate(lines)
              for g in range(0, len(line), group)
              for n in [sum(1 for c in line[g:g + group] if c & 0x7FFF)] if n > kept]
    report = u.json("sparsify", "check", *common, "x.npy=bf16", code=DIFFERS)
    first = {"matrix": 0, "line": broken[0][0], "group": broken[0][1], "nonzeros": broken[0][2]}
    u.check(report.get("first") == first and report.get("broken") == len(broken),
            f"first broken group: {report}, wanted {first}")
    u.refuses("compress of what does not hold",
              ["sparsify", "compress", *common, "--store", store, "--tags", "no.npy",
               "x.npy=bf16", "no2.npy"], REFUSED,
              [f"group {broken[0][1]} of line {broken[0][0]} of matrix 0", pattern])
    u.check(not os.path.exists(u.path("no.npy")) and not os.path.exists(u.path("no2.npy")),
            "nothing was written")


for KEPT, GROUP, AXIS, STORE in [(2, 4, 1, "trn"), (2, 4, 0, "nv24"), (1, 2, 1, "nv24"),
                                 (4, 12, 0, "trn"), (4, 16, 1, "trn")]:
    add_unit(f"sparsify {KEPT}:{GROUP} axis {AXIS} {STORE}", test_sparsify, KEPT, GROUP, AXIS, STORE)


@unit("sparsify: tags, and a multiply of what it made")
def test_sparsify_tags(u):
    draw = Draw("sparsify tags")
    write_npy(u.path("w.npy"), "bf16", [32, 6], draw.codes("bf16", 192))
    write_npy(u.path("x.npy"), "bf16", [7, 32], draw.codes("bf16", 224))
    u.run("sparsify", "compress", "--axis", "0", "--prune", "--tags", "t.npy", "w.npy=bf16",
          "c.npy", code=EQUAL)
    u.run("sparsify", "prune", "--axis", "0", "w.npy=bf16", "p.npy", code=EQUAL)
    report = u.json("sparsify", "tags", "t.npy", code=EQUAL)
    u.check(report.get("ascend") is True and report.get("lines") == 6 and
            report.get("slots") == 16, f"tags: {report}")
    u.run("sparsify", "tags", "t.npy", "n.npy", "--to", "nv24", code=EQUAL)
    u.run("sparsify", "tags", "n.npy", "back.npy", "--store", "nv24", "--to", "trn", code=EQUAL)
    u.check(plain_bytes(u.path("back.npy")) == plain_bytes(u.path("t.npy")), "there and back")
    outputs = []
    for b in ({"file": "p.npy", "format": "bf16"},
              {"file": "c.npy", "format": "bf16", "sparse": {"tags": "t.npy"}},
              {"file": "c.npy", "format": "bf16", "sparse": {"tags": "n.npy", "store": "nv24"}}):
        case = {"op": "gemm", "profile": "fma-f32",
                "tensors": {"a": {"file": "x.npy", "format": "bf16"}, "b": b,
                            "d": {"format": "f32"}}}
        u.run("run", write_case(u, "case.json", case), "-o", "d.npy", code=EQUAL)
        outputs.append(read_npy(u.path("d.npy"), "f32"))
    u.check(outputs[0] == outputs[1] == outputs[2], "compressed multiplies as the pruned one")


@unit("sparsify: bad input")
def test_sparsify_bad(u):
    write_npy(u.path("x.npy"), "bf16", [2, 10], [0x3F80] * 20)
    write_npy(u.path("s.npy"), "e8m0", [2, 8], [127] * 16)
    write_text(u.path("t.bin"), "x" * 7)
    ok = ["sparsify", "prune"]
    for what, arguments, code, words in [
            ("no pattern", [*ok, "--pattern", "24", "x.npy=bf16", "o.npy"], USAGE, ["24", "M:N"]),
            ("pattern of text", [*ok, "--pattern", "2:x", "x.npy=bf16", "o.npy"], USAGE, ["2:x"]),
            ("pattern too wide", [*ok, "--pattern", "2:17", "x.npy=bf16", "o.npy"], REFUSED, ["2:17"]),
            ("none kept", [*ok, "--pattern", "0:4", "x.npy=bf16", "o.npy"], REFUSED, ["0:4"]),
            ("no groups", ["sparsify", "compress", "--pattern", "2:0", "--tags", "t.npy", "x.npy=bf16",
                           "o.npy"], REFUSED, ["2:0"]),
            ("length", [*ok, "x.npy=bf16", "o.npy"], REFUSED, ["10", "2:4", "multiple of 4"]),
            ("axis", [*ok, "--axis", "2", "x.npy=bf16", "o.npy"], REFUSED, ["axis", "2"]),
            ("axis of text", [*ok, "--axis", "K", "x.npy=bf16", "o.npy"], USAGE, ["--axis", "K"]),
            ("a scale", [*ok, "s.npy=e8m0", "o.npy"], REFUSED, ["e8m0", "scale"]),
            ("no format", [*ok, "x.npy", "o.npy"], FILE, ["x.npy"]),
            ("unknown format", [*ok, "x.npy=bf17", "o.npy"], USAGE, ["bf17"]),
            ("no file", [*ok, "y.npy=bf16", "o.npy"], FILE, ["y.npy"]),
            ("raw without a shape", [*ok, "t.bin=bf16", "o.npy"], USAGE, ["t.bin"]),
            ("raw of another size", [*ok, "t.bin=bf16:1x4", "o.npy"], FILE, ["t.bin"]),
            ("store", ["sparsify", "compress", "--store", "nv", "--tags", "t.npy", "x.npy=bf16", "o.npy"],
             USAGE, ["nv24", "'nv'"]),
            ("tags of 8 in nv24", ["sparsify", "compress", "--pattern", "1:5", "--store", "nv24",
                                   "--prune", "--tags", "t.npy", "x.npy=bf16", "o.npy"], REFUSED,
             ["nv24", "groups of 5"]),
            ("no tags", ["sparsify", "compress", "x.npy=bf16", "o.npy"], USAGE, ["--tags"]),
            ("option of another verb", [*ok, "--store", "trn", "x.npy=bf16", "o.npy"], USAGE, ["prune"]),
            ("tags of another size", ["sparsify", "expand", "--tags", "t.bin=u8:7", "x.npy=bf16", "o.npy"],
             REFUSED, ["2 lines of 6 bytes", "7"]),
            ("OUT without --to", ["sparsify", "tags", "t.bin=u8:7", "o.npy"], USAGE, ["--to"])]:
        u.refuses(what, arguments, code, words)
    u.run("sparsify", code=USAGE)
    u.run("sparsify", "squeeze", "x.npy=bf16", "o.npy", code=USAGE)
    u.check("compress" in u.run("sparsify", "--help", code=EQUAL).stdout, "--help")
    u.check(not os.path.exists(u.path("o.npy")), "nothing was written")


# Random sources: a model of its own, word by word.

def xorwow_rows(state, lanes, states, columns, count):
    """Words of a stream whose lanes' states are lists x y z w v d; they are walked on."""
    out = []
    for i in range(count):
        row, column = divmod(i, columns)
        s = state[row % lanes * states + column % states]
        t = s[0] ^ s[0] >> 2
        v = (s[4] ^ s[4] << 4 ^ t ^ t << 1) & 0xFFFFFFFF
        s[:] = s[1:5] + [v, (s[5] + 362437) & 0xFFFFFFFF]
        out.append(v + s[5] & 0xFFFFFFFF)
    return out


def philox_words(key, first, count):
    def block(n):
        c, k = [n & 0xFFFFFFFF, n >> 32, 0, 0], list(key)
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [q >> 32 ^ c[1] ^ k[0], q & 0xFFFFFFFF, p >> 32 ^ c[3] ^ k[1], p & 0xFFFFFFFF]
            k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
        return c
    return [block(i // 4)[i % 4] for i in range(first, first + count)]


@unit("function: tensors and single numbers against Python's doubles")
def test_function(u):
    draw = Draw("function").random
    functions = {"exp": math.exp, "exp2": lambda x: 2.0 ** x, "log": math.log, "tanh": math.tanh,
                 "sigmoid": lambda x: 1 / (1 + math.exp(-x)), "reciprocal": lambda x: 1 / x,
                 "rsqrt": lambda x: 1 / math.sqrt(x)}

    def f32(x):
        return struct.unpack("<I", struct.pack("<f", x))[0]
    values = [struct.unpack("<f", struct.pack("<f", draw.uniform(0.01, 20)))[0] for _ in range(500)]
    with open(u.path("x.bin"), "wb") as f:
        f.write(struct.pack("<500f", *values))
    source = u.path("x.bin") + "=f32:500"
    for name, of in functions.items():
        # a double is within 2^-50 here: where its neighbours round alike, it decides
        want = [{f32(of(x) * (1 + e)) for e in (-2e-15, 2e-15)} for x in values]
        u.run("function", name, source, "y.npy", code=EQUAL)
        got = read_npy(u.path("y.npy"), "f32")[1]
        u.check(all(g in w for g, w in zip(got, want)), f"function {name}")
        one = u.json("function", name, "--of", repr(values[0]), code=EQUAL)
        u.check(one.get("result", "").startswith(f"0x{got[0]:08x} ") and
                one.get("below", "").startswith(f"0x{got[0] - 1:08x} ") and
                one.get("above", "").startswith(f"0x{got[0] + 1:08x} ") and
                one.get("evidence") == "assumed", f"function {name} --of: {one}")
    u.run("function", "exp", source, "e.npy", "--to", "e4m3fn", "--overflow", "sat", code=EQUAL)
    report = u.json("function", "exp", source, "s.npy", "--choice", "sleef", code=EQUAL)
    u.check(report.get("choice") == "sleef" and report.get("to") == "f32", f"function --json: {report}")
    table = [(i * 40503 + 7) % 0x7F80 for i in range(65536)]
    with open(u.path("t.bin"), "wb") as f:
        f.write(struct.pack("<65536H", *table))
    u.run("function", "exp", source, "t.npy", "--choice", "table", "--table", u.path("t.bin") + "=bf16:65536", code=EQUAL)

    def bf16(x):
        p = f32(x)
        return (p + 0x7FFF + (p >> 16 & 1)) >> 16
    u.check(read_npy(u.path("t.npy"), "f32")[1] == [table[bf16(x)] << 16 for x in values], "function --table")
    u.refuses("no function", ["function", "exp3", source, "z.npy"], USAGE, ["exp3"])
    u.refuses("a table is missing", ["function", "exp", source, "z.npy", "--choice", "table"], USAGE, ["--table"])
    u.refuses("a short table", ["function", "exp", source, "z.npy", "--choice", "table", "--table",
                                u.path("x.bin") + "=f32:500"], FILE, ["65536"])
    u.refuses("no number", ["function", "exp", "--of", "one"], USAGE, ["'one'"])
    u.refuses("no output", ["function", "exp", source], USAGE, ["NAME IN OUT"])


@unit("sweep: functions")
def test_sweep_functions(u):
    case = ["--function", "rsqrt", "--chunks", "1016:1018"]
    whole = sweep(u, *case)
    ref = sweep(u, "--function", "rsqrt", "--chunks", "1016:1017", "--isa", "ref")
    first = sweep(u, "--function", "rsqrt", "--chunks", "1016:1017")
    u.check(ref["digest"] == first["digest"] != whole["digest"], "sweep --function: the reference's digest")
    sleef = sweep(u, *case, "--choice", "sleef")
    u.check(sleef["case"] == "function=rsqrt choice=sleef" and sleef["digest"] != whole["digest"],
            f"sweep --choice sleef: {sleef}")
    u.refuses("two cases", ["sweep", "--function", "exp", "--to", "bf16"], USAGE, ["--function"])
    u.refuses("a choice of nothing", ["sweep", "--to", "bf16", "--choice", "sleef"], USAGE, ["--choice"])


@unit("rng: words against a model")
def test_rng(u):
    def words(*options):
        return [int(x, 16) for x in u.run("rng", *options, code=EQUAL).stdout.split()]
    draw = Draw("rng").random
    got = words("--source", "philox", "--key", "0x12345678,0x9abcdef0", "--first", "8589934593",
                "--count", "11")
    u.check(got == philox_words([0x12345678, 0x9ABCDEF0], 8589934593, 11), "philox")
    for states in (1, 4):
        state = [[draw.getrandbits(32) for _ in range(6)] for _ in range(3 * states)]
        write_npy(u.path("s.npy"), "u32", [3, states, 6], sum(state, []))
        want = xorwow_rows(state, 3, states, 7, 60)
        options = ["--source", "xorwow", "--state", "s.npy", "--lanes", "3", "--states",
                   str(states), "--columns", "7"]
        u.check(words(*options, "--count", "60") == want, f"xorwow, {states} states")
        u.check(words(*options, "--first", "33", "--count", "9") == want[33:42],
                f"xorwow, {states} states, from word 33")
    report = u.json("rng", *options, "--count", "5", code=EQUAL)
    u.check(report.get("words") == [f"0x{w:08x}" for w in want[:5]], "rng --json")
    u.run("rng", *options, "--count", "60", "-o", "w.npy", code=EQUAL)
    u.check(read_npy(u.path("w.npy"), "u32") == ([60], want), "rng -o w.npy")
    done = u.run("rng", *options, "--count", "60", "--uniform", code=EQUAL)
    u.check([float(x) for x in done.stdout.split()] ==
            [float(f"{(w >> 9) / 2**23:.9g}") for w in want], "rng --uniform")
    lfsr = words("--source", "lfsr32", "--poly", "0x80200003", "--seed", "3", "--steps", "1",
                 "--lanes", "1", "--count", "100")
    u.check(all(b == (a >> 1 ^ (0x80200003 if a & 1 else 0)) for a, b in zip(lfsr, lfsr[1:])),
            "lfsr32, a shift a word")


@unit("route: experts, weights, and what explains a dump")
def test_route(u):
    # Token 0: equal logits. Token 1: saturated sigmoids, so that scores tie where logits do not.
    logits = [[0.0] * 6, [30.0, 20.0, 40.0, -3.0, 25.0, -4.0]]
    write_npy(u.path("l.npy"), "f32", [2, 6], [f32_code(x) for row in logits for x in row])
    sigmoid = ["route", "--k", "4", "--act", "sigmoid", "l.npy=f32"]
    by_logit, by_score = [0, 1, 2, 3, 2, 0, 4, 1], [0, 1, 2, 3, 0, 1, 2, 4]
    u.check(u.json(*sigmoid, code=EQUAL).get("experts") == by_logit, "by logits")
    other = [*sigmoid, "--order", "act_then_topk"]
    u.check(u.json(*other, code=EQUAL).get("experts") == by_score, "by scores")
    u.run("route", "--k", "4", "l.npy=f32", "-o", "w.npy", "--experts-out", "e.npy", code=EQUAL)
    u.check(read_npy(u.path("e.npy"), "u32") == ([2, 4], by_logit), "--experts-out")
    u.check(read_npy(u.path("w.npy"), "f32")[1][:4] == [0x3E800000] * 4, "-o: a quarter each")
    u.run("route", "--k", "4", "l.npy=f32", "--experts", "e.npy", "--weights", "w.npy=f32", code=EQUAL)
    # a dump made by the other order, and one that no rule makes
    write_npy(u.path("x.npy"), "u32", [2, 4], by_score)
    done = u.run(*sigmoid, "--experts", "x.npy", code=DIFFERS)
    u.check("8 elements of experts, 4 equal, 4 differ" in done.stdout, "counts")
    u.check("router.order=act_then_topk" in done.stdout, "the order")
    for said in ("router.order=topk_then_act(backed)", "router.act=sigmoid(assumed)", "router.k=4(assumed)",
                 'ties="lower index first"(documented)'):
        u.check(said in done.stdout, f"the parameters with their evidence: {said}")
    report = u.json(*sigmoid, "--experts", "x.npy", code=DIFFERS)
    u.check(findings(report)[0]["rule"] in ("router.order=act_then_topk", "router.order=act_all") and
            findings(report)[0]["explains"] == 4, f"--json: {findings(report)}")
    write_npy(u.path("y.npy"), "u32", [2, 4], [3, 2, 1, 0] + by_score[4:])
    done = u.run(*sigmoid, "--experts", "y.npy", code=DIFFERS)
    u.check("verdict: no rule tried" in done.stdout, "no rule")
    # ties to the higher index: token 0's equal logits, and nothing else
    write_npy(u.path("z.npy"), "u32", [2, 4], [5, 4, 3, 2] + by_logit[4:])
    done = u.run(*sigmoid, "--experts", "z.npy", code=DIFFERS)
    u.check('verdict: ties="higher index first" explains every difference' in done.stdout, "ties")
    # a bf16 router's weights
    low = ["route", "--k", "4", "--score", "bf16", "l.npy=f32"]
    u.run(*low, "-o", "b.npy", code=EQUAL)
    done = u.run("route", "--k", "4", "l.npy=f32", "--weights", "b.npy=f32", code=DIFFERS)
    u.check("verdict: router.score=bf16 explains every difference" in done.stdout, "bf16 scores")
    u.refuses("no k", ["route", "l.npy=f32"], USAGE, ["--k"])
    u.refuses("no such preset", ["route", "--preset", "gpt", "l.npy=f32"], USAGE, ["gpt"])
    u.refuses("no such rule", [*sigmoid, "--order", "any"], USAGE, ["any", "order"])
    u.refuses("more than there are", ["route", "--k", "7", "l.npy=f32"], REFUSED, ["7", "6"])
    u.refuses("another shape", ["route", "--k", "3", "l.npy=f32", "--experts", "e.npy"], REFUSED, ["[2, 4]"])


# ---------------------------------------------------------------------------------------------
# A layer: what it computes is test_layer.py's; here what it refuses, and what it says.

LAYER = ["run", "layer", "--preset", "gpt-oss-tiny", "--tokens", "2"]


def split_safetensors(data):
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + n]), data[8 + n:]


def join_safetensors(header, buffer):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + buffer


@unit("layer: a checkpoint that is not one")
def _(u):
    u.run(*LAYER, "--write-weights", "w.safetensors", code=EQUAL)
    with open(u.path("w.safetensors"), "rb") as f:
        data = f.read()
    header, buffer = split_safetensors(data)

    def refuses(what, bytes_, words, *more):
        with open(u.path("bad.safetensors"), "wb") as f:
            f.write(bytes_)
        u.refuses(what, [*LAYER, "--weights", "bad.safetensors", "-o", "y.npy", *more], FILE, words)
        u.check(not os.path.exists(u.path("y.npy")), f"{what}: wrote its output")

    def changed(name, **fields):
        h = copy.deepcopy(header)
        h[name].update(fields)
        return join_safetensors(h, buffer)

    sinks, blocks = "model.layers.0.self_attn.sinks", "model.layers.0.mlp.experts.gate_up_proj_blocks"
    renamed = {("x" if k == sinks else k): v for k, v in header.items()}
    refuses("a tensor missing", join_safetensors(renamed, buffer), ["bad.safetensors has no tensor", f"'{sinks}'"])
    refuses("another layer", data, ["no tensor 'model.layers.1.input_layernorm.weight'"], "--layer", "1")
    refuses("another shape", changed(sinks, shape=[2, 2]), [f"'{sinks}'", "it is BF16 [2, 2]; wanted: BF16 [4]"])
    refuses("another type", changed(sinks, dtype="F16"), ["it is F16 [4]; wanted: BF16 [4]"])
    refuses("blocks of another length", changed(blocks, shape=[8, 192, 10, 8]),
            ["it is U8 [8, 192, 10, 8]; wanted: U8 [8, 192, 5, 16]"])
    refuses("cut", data[:-1], ["data_offsets", "end after the buffer"])
    refuses("cut in the header", data[:40], ["the header claims", "follow"])
    refuses("cut before the header", data[:5], ["5 bytes long"])
    refuses("no JSON", struct.pack("<Q", 2) + b"{[", ["the header"])
    u.refuses("no file", [*LAYER, "--weights", "none.safetensors"], FILE, ["none.safetensors"])
    u.refuses("the real preset's tensors", ["run", "layer", "--preset", "gpt-oss-20b", "--weights", "w.safetensors"],
              FILE, ["it is BF16 [160]; wanted: BF16 [2880]"])
    # a layer in two files, in either order
    def part(file, names):
        h, b = {}, b""
        for k in names:
            begin, end = header[k]["data_offsets"]
            h[k] = dict(header[k], data_offsets=[len(b), len(b) + end - begin])
            b += buffer[begin:end]
        with open(u.path(file), "wb") as f:
            f.write(join_safetensors(h, b))

    names = list(header)
    part("1.safetensors", names[:7])
    part("2.safetensors", names[7:])
    one, two = ["--weights", "1.safetensors"], ["--weights", "2.safetensors"]
    whole, parts, turned = (
        [s["digest"] for s in u.json(*LAYER, *w, code=EQUAL)["stages"]]
        for w in (["--weights", "w.safetensors"], one + two, two + one))
    u.check(whole == parts == turned, "a layer in two files")
    u.refuses("half a layer", [*LAYER, *one], FILE, ["1.safetensors has no tensor"])
    u.refuses("half a layer twice", [*LAYER, *two, *two], FILE, ["the other files of --weights have no tensor"])
    u.refuses("many files", [*LAYER, *one * 9], USAGE, ["more than 8"])
    # what else is in the file is not looked at
    more = dict(header, other={"dtype": "U8", "shape": [3], "data_offsets": [len(buffer), len(buffer) + 3]})
    with open(u.path("more.safetensors"), "wb") as f:
        f.write(join_safetensors(more, buffer + b"abc"))
    alone, among = (u.json(*LAYER, "--weights", name, code=EQUAL) for name in ("w.safetensors", "more.safetensors"))
    u.check([s["digest"] for s in alone["stages"]] == [s["digest"] for s in among["stages"]], "a file with more in it")


@unit("layer: options")
def _(u):
    u.run("run", "layer", "--help", code=EQUAL)
    u.refuses("no preset", ["run", "layer"], USAGE, ["--preset"])
    u.refuses("no such preset", ["run", "layer", "--preset", "gpt"], USAGE, ["'gpt'", "gpt-oss-20b"])
    u.refuses("no such layer", [*LAYER, "--layer", "2"], USAGE, ["--layer is 2", "0 to 1"])
    u.refuses("no tokens", [*LAYER, "--tokens", "0"], USAGE, ["--tokens is '0'"])
    u.refuses("too many tokens", [*LAYER, "--tokens", "131073"], USAGE, ["131073 tokens", "131072"])
    u.refuses("no such profile", [*LAYER, "--profile", "trn9"], USAGE, ["trn9"])
    u.refuses("no such schedule", [*LAYER, "--schedule", "x"], USAGE, ["'x'"])
    u.refuses("both ways", [*LAYER, "--weights", "a", "--write-weights", "b"], USAGE, ["--write-weights"])
    u.refuses("nothing published", [*LAYER, "--check"], USAGE, ["published"])
    tiny = ["run", "layer", "--preset", "gpt-oss-tiny"]
    u.run(*tiny, "--write-weights", "w.safetensors", code=EQUAL)
    for name, given in (("weights", "w.safetensors"), ("input", "x.npy=bf16")):
        u.refuses(f"--check of {name}", [*tiny, "--check", f"--{name}", given], USAGE, ["made up", f"--{name}"])
    for name in ("trn2", "trn3"):  # a file is taken by what it says, not by its name
        text = u.run("profile", "show", name, code=EQUAL).stdout
        write_text(u.path(f"{name}.profile"), text)
        a, b = (u.json(*LAYER, "--profile", p, code=EQUAL) for p in (name, f"{name}.profile"))
        u.check([s["digest"] for s in a["stages"]] == [s["digest"] for s in b["stages"]], f"{name} as a file")
    u.run(*tiny, "--check", "--profile", "trn3.profile", code=EQUAL)
    write_text(u.path("other.profile"), text.replace("revision 1", "revision 7", 1))
    u.refuses("another of this name", [*tiny, "--check", "--profile", "other.profile"], USAGE, ["published"])
    u.refuses("no such file", [*tiny, "--profile", "no.profile"], FILE, ["no.profile"])
    u.refuses("no profile", [*tiny, "--profile", "x.npy"], FILE, ["x.npy"])
    u.refuses("a profile without bf16", [*LAYER, "--profile", "ocp-mx"], REFUSED, ["ocp-mx"])
    write_npy(u.path("x.npy"), "bf16", [2, 159], [0] * 318)
    u.refuses("a narrow input", ["run", "layer", "--preset", "gpt-oss-tiny", "--input", "x.npy=bf16"], FILE,
              ["bf16 [2, 159]", "[tokens, 160]"])
    u.refuses("tokens twice", [*LAYER, "--input", "x.npy=bf16"], USAGE, ["--tokens"])
    write_npy(u.path("x.npy"), "bf16", [3, 160], [0x3F80] * 480)
    got = u.json("run", "layer", "--preset", "gpt-oss-tiny", "--input", "x.npy=bf16", "-o", "y.npy", code=EQUAL)
    u.check(got["tokens"] == 3 and os.path.exists(u.path("y.npy")), "an input of its own")
    u.check([s["name"] for s in got["stages"]] == ["norm 1", "qkv", "rope", "attention", "o_proj", "residual 1",
                                                   "norm 2", "router", "experts", "residual 2"], "stages")
    for key in ("parameters", "experts", "attention"):
        u.check("(backed)" in got[key] and "(assumed)" in got[key], f"evidence of {key}")
    done = u.run(*LAYER, code=EQUAL)
    u.check("layer 0 of gpt-oss-tiny: 2 tokens of 160" in done.stdout and "a window of 4" in done.stdout, done.stdout)
    u.check("all keys" in u.run(*LAYER, "--layer", "1", code=EQUAL).stdout, "the odd layer has no window")


@unit("rng: refused")
def test_rng_wrong(u):
    write_npy(u.path("zero.npy"), "u32", [2, 6], [1] * 6 + [0] * 5 + [9])
    write_npy(u.path("short.npy"), "u32", [11], [1] * 11)
    rng = ["rng", "--source"]
    u.refuses("no source", ["rng"], USAGE, ["--source"])
    u.refuses("unknown source", [*rng, "mt19937"], USAGE, ["mt19937"])
    u.refuses("no key", [*rng, "philox", "--key", "1"], USAGE, ["key"])
    u.refuses("idle option", [*rng, "philox", "--lanes", "4"], USAGE, ["philox"])
    u.refuses("no poly", [*rng, "lfsr32"], USAGE, ["--poly", "lfsr32"])
    for option, source in (("steps", "lfsr32"), ("poly", "lfsr32"), ("lanes", "xorwow"),
                           ("states", "xorwow"), ("columns", "philox")):
        u.refuses(f"--{option} 0", [*rng, source, f"--{option}", "0"], USAGE,
                  [f"--{option} is '0'", "1 to"])
    u.refuses("states", [*rng, "xorwow", "--states", "3"], USAGE, ["3"])
    u.refuses("zero state", [*rng, "xorwow", "--state", "zero.npy", "--lanes", "2"], REFUSED,
              ["lane 1"])
    u.refuses("short state", [*rng, "xorwow", "--state", "short.npy", "--lanes", "2"], FILE,
              ["short.npy", "lanes"])
    u.refuses("count", [*rng, "philox", "--count", "0"], REFUSED, ["count"])
    u.refuses("end", [*rng, "philox", "--first", "9223372036854775807"], REFUSED, ["2^63"])


@unit("convert and run: words by a generator")
def test_generated_words(u):
    draw = Draw("generated")
    codes = draw.codes("f32", 64)
    sr = ["--round", "sr", "--words"]
    words = philox_words([5, 6], 100, 64)
    got = convert(u, "f32", codes, "bf16", *sr,
                  '{"philox": {"key": ["0x5", "0x6"], "first": 100}}')
    u.check(got == [(c + (w >> 16)) >> 16 for c, w in zip(codes, words)], "philox")
    state = [[draw.random.getrandbits(32) for _ in range(6)] for _ in range(8)]
    write_npy(u.path("s.npy"), "u32", [2, 4, 6], sum(state, []))
    generator = {"xorwow": {"state": "s.npy", "lanes": 2, "states": 4}}
    words = xorwow_rows([list(s) for s in state], 2, 4, 64, 64)
    got = convert(u, "f32", codes, "bf16", *sr, json.dumps(generator))
    u.check(got == [(c + (w >> 16)) >> 16 for c, w in zip(codes, words)], "xorwow")
    for name, key in (("xorwow", generator),
                      ("lfsr32", {"lfsr32": {"state": {"file": "l.npy"}, "poly": "0x80200003"}})):
        write_npy(u.path("l.npy"), "u32", [128], list(range(1, 129)))
        c = MULTIPLIES["bf16"](u).output("bf16")
        c.json["out"] = {"round": "sr", "words": key}
        u.run("run", write_case(u, "case.json", c.json), "-o", "out.safetensors", code=EQUAL)
        u.check("EQUAL" in u.run("verify", "out.safetensors", code=EQUAL).stdout,
                f"{name}: the written case replays")
    def refuse(what, text, code, *said):
        u.refuses(what, ["convert", "--to", "bf16", *sr, text, "in.npy=f32", "no.npy"], code, said)
    refuse("no JSON", "{philox", USAGE, "JSON")
    refuse("unknown generator", '{"mt": {}}', USAGE, "mt")
    refuse("unknown key", '{"philox": {"seed": 1}}', USAGE, "seed")
    refuse("bad key", '{"philox": {"key": ["0x1"]}}', USAGE, "key")
    refuse("no state", '{"xorwow": {}}', USAGE, "state")
    refuse("other size", '{"xorwow": {"state": "s.npy"}}', FILE, "lanes")
    refuse("states", '{"xorwow": {"state": "s.npy", "lanes": 4, "states": 2}}', REFUSED, "2 states")
    refuse("first", '{"philox": {"first": -1}}', USAGE, "first")

# ---------------------------------------------------------------------------------------------
# quantize, dequantize

EMAX = {"e4m3fn": 8, "e5m2": 15, "e3m2": 4, "e2m3": 2, "e2m1": 2, "mxint8": 0}
TOP = {"floor": 0, "floor_up1": 1}  # what a rule adds to floor(log2 a) - Emax


def element(fmt, value, neg):
    if fmt != "mxint8":
        return FORMATS[fmt].encode(abs(value), neg, "rne", "sat")
    whole, rest = divmod(abs(value) * 64, 1)
    whole = min(int(whole) + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2)), 127)
    return -whole & 0xFF if neg else int(whole)


def mx_want(shape, codes, fmt, rule="floor", axis=1, block=32):
    """Element codes, and scales as a row-major array, of an FP32 matrix without zero blocks."""
    rows, cols = shape
    f = FORMATS["f32"]
    elements = [0] * len(codes)
    n = [-(-d // block) if i == axis else d for i, d in enumerate(shape)]
    scales = [0] * (n[0] * n[1])
    for i, j in itertools.product(range(n[0]), range(n[1])):
        at = [i * cols + k for k in range(j * block, min(j * block + block, cols))] if axis == 1 else \
            [k * cols + j for k in range(i * block, min(i * block + block, rows))]
        values = [f.decode(codes[k]) for k in at]
        e = floor_log2(max(abs(v) for v in values)) - EMAX[fmt] + TOP[rule]
        scales[i * n[1] + j] = e + 127
        for k, v in zip(at, values):
            elements[k] = element(fmt, v / Fraction(2) ** e, codes[k] >> 31)
    return elements, n, scales


def stored(store, lines, blocks, scale, rows=128, offset=0):
    """docs/numerics.md 11.5, item 35; scale(line, block) is a byte."""
    groups = rows // 8
    if store == "trn_sbuf":
        out = bytearray(-(-blocks // groups) * 128 * lines)
    else:
        out = bytearray(-(-lines // 128) * -(-blocks // 4) * 512)
    for r, c in itertools.product(range(lines), range(blocks)):
        if store == "trn_sbuf":
            t, g = divmod(c, groups)
            at = (t * 128 + 32 * (g // 4) + offset + g % 4) * lines + r
        else:
            at = (r // 128 * -(-blocks // 4) + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
        out[at] = scale(r, c)
    return bytes(out)


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def quantize_source(u, shape):
    """x.npy with numbers of any size, every block's largest somewhere else."""
    codes = Draw(u.name).codes("f32", count(shape), -9, 9)
    write_npy(u.path("x.npy"), "f32", shape, codes)
    return codes


PRESETS = [("mxfp8", None, "e4m3fn", "floor"), ("mxfp8", "e5m2", "e5m2", "floor"),
           ("mxfp6", "e3m2", "e3m2", "floor"), ("mxfp6", "e2m3", "e2m3", "floor"),
           ("mxfp4", None, "e2m1", "floor"), ("mxint8", None, "mxint8", "floor"),
           ("trn3", None, "e4m3fn", "floor_up1"), ("trn3", "e5m2", "e5m2", "floor_up1")]


@unit("quantize: presets against fractions, and the same by single options")
def test_quantize_presets(u):
    shape = [3, 80]
    codes = quantize_source(u, shape)
    for preset, to, fmt, rule_ in PRESETS:
        what = f"{preset} {to}"
        report = u.json("quantize", "--preset", preset, *(["--to", to] if to else []), "--scale-out",
                        "s.npy", "x.npy=f32", "q.npy", code=EQUAL)
        q, n, s = mx_want(shape, codes, fmt, rule_)
        u.check(read_npy(u.path("q.npy"), fmt)[1] == q, f"{what}: elements")
        u.check(read_npy(u.path("s.npy"), "e8m0") == (n, s), f"{what}: scales")
        u.check(report.get("op") == "quantize" and report.get("rule") == rule_ and
                report.get("special") == "element" and report.get("tensor_scale") == 0 and
                report.get("kernel") and "seconds" in report and report.get("written") == "q.npy" and
                report.get("scales") == {"format": "e8m0", "block": 32, "axis": 1, "layout": "linear",
                                         "store": "linear", "written": "s.npy"} and
                "transpose" not in report, f"{what}: report {report}")
        u.run("quantize", "--to", fmt, "--rule", rule_, "--scale-out", "s.bin", "x.npy=f32", "q.bin",
              code=EQUAL)
        u.check(read_bytes(u.path("q.bin")) == pack(fmt, q) and
                read_bytes(u.path("s.bin")) == bytes(s), f"{what}: by options, raw")
        # Back: every product of a scale and an element is an FP32 number.
        u.run("dequantize", "--to", "f32", "--scale", "s.bin", f"q.bin={fmt}:3x80", "y.npy", code=EQUAL)
        f = FORMATS["f32"]
        back = []
        for i, c in enumerate(q):
            v = Fraction(c - 256 if c > 127 else c, 64) if fmt == "mxint8" else FORMATS[fmt].decode(c)
            neg = v < 0 if fmt == "mxint8" else c & FORMATS[fmt].sign
            back.append(f.encode(abs(v) * Fraction(2) ** (s[i // 80 * 3 + i % 80 // 32] - 127), neg))
        u.check(read_npy(u.path("y.npy"), "f32")[1] == back, f"{what}: dequantised")


@unit("quantize: NVFP4, its tensor scale, and back")
def test_quantize_nvfp4(u):
    shape = [4, 48]
    codes = quantize_source(u, shape)
    f, g, e = FORMATS["f32"], FORMATS["e4m3fn"], FORMATS["e2m1"]
    # nvfp4_exact can be said in fractions: docs/numerics.md 11.5, item 33.
    for amax in (None, 0x45000000):
        top = f.decode(amax) if amax else max(abs(f.decode(c)) for c in codes)
        tensor = f.encode(top / 2688, 0)
        scales, q = [], []
        for at in range(0, len(codes), 16):
            line = codes[at:at + 16]
            a = max(abs(f.decode(c)) for c in line)
            scale = g.encode(a / (6 * f.decode(tensor)), 0, "rne", "sat")
            scales.append(scale)
            unit_ = g.decode(scale) * f.decode(tensor)
            q += [e.encode(abs(f.decode(c)) / unit_ if unit_ else Fraction(0), c >> 31, "rne", "sat")
                  for c in line]
        report = u.json("quantize", "--to", "e2m1", "--rule", "nvfp4_exact", "--block", "16",
                        "--scale-format", "ue4m3", *(["--tensor-amax", hex(amax)] if amax else []),
                        "--scale-out", "s.npy", "x.npy=f32", "q.npy", code=EQUAL)
        u.check(report.get("tensor_scale") == tensor, f"tensor scale {report.get('tensor_scale')}, "
                                                      f"wanted {tensor}")
        u.check(read_npy(u.path("q.npy"), "e2m1")[1] == q, f"nvfp4_exact {amax}: elements")
        u.check(read_npy(u.path("s.npy"), "ue4m3")[1] == scales, f"nvfp4_exact {amax}: scales")
        u.run("dequantize", "--to", "f32", "--scale", "s.npy", "--scale-format", "ue4m3", "--block",
              "16", "--tensor-scale", f"0x{tensor:08x}", "q.npy=e2m1", "y.npy", code=EQUAL)
        back = [f.encode(abs(e.decode(c)) * g.decode(scales[i // 16]) * f.decode(tensor), c >> 3)
                for i, c in enumerate(q)]
        u.check(read_npy(u.path("y.npy"), "f32")[1] == back, f"nvfp4_exact {amax}: dequantised")
    # The preset is nvfp4_te; the case carries the tensor scale to dequantize.
    report = u.json("quantize", "--preset", "nvfp4", "x.npy=f32", "c.safetensors", code=EQUAL)
    u.check(report.get("rule") == "nvfp4_te" and report.get("scales", {}).get("format") == "ue4m3" and
            report["scales"]["block"] == 16 and "written" not in report["scales"], f"nvfp4: {report}")
    u.run("verify", "c.safetensors", code=EQUAL)
    u.run("dequantize", "--to", "f32", "c.safetensors", "y1.npy", code=EQUAL)
    text = u.run("quantize", "--preset", "nvfp4", "--scale-out", "s.npy", "x.npy=f32", "q.npy",
                 code=EQUAL).stdout
    found = re.search(r"tensor scale (0x[0-9a-f]{8})", text)
    u.check(found and int(found[1], 16) == report.get("tensor_scale"), f"it is printed: {text}")
    u.run("dequantize", "--to", "f32", "--scale", "s.npy", "--scale-format", "ue4m3", "--block", "16",
          "--tensor-scale", found[1] if found else "0x0", "q.npy=e2m1", "y2.npy", code=EQUAL)
    u.check(read_npy(u.path("y1.npy"), "f32") == read_npy(u.path("y2.npy"), "f32"),
            "from the case as from the files")


def test_quantize_store(u, store, axis, shape, options, suffix):
    """Scales in a device's order: where each byte lies, and there and back."""
    codes = quantize_source(u, shape)
    q, n, s = mx_want(shape, codes, "e4m3fn", "floor", axis)
    lines, blocks = (n[0], n[1]) if axis == 1 else (n[1], n[0])
    want = stored(store, lines, blocks,
                  lambda r, c: s[r * n[1] + c] if axis == 1 else s[c * n[1] + r],
                  *[int(v) for v in options[1::2]])
    place = ["--scale-store", store, *options, "--axis", str(axis)]
    name = "s" + suffix
    report = u.json("quantize", "--preset", "mxfp8", *place, "--scale-out", name, "x.npy=f32", "q.npy",
                    code=EQUAL)
    u.check(report.get("scales", {}).get("store") == store, f"the report says the store: {report}")
    u.check(read_npy(u.path("q.npy"), "e4m3fn")[1] == q, "elements")
    data = read_bytes(u.path(name)) if suffix == ".bin" else plain_bytes(u.path(name)) \
        if suffix == ".npy" else read_safetensors(u.path(name))[1]["scale"][1]
    u.check(data == want, f"{len(data)} bytes where they should be, wanted {len(want)}")
    u.run("dequantize", "--to", "f32", *place, "--scale", name, "q.npy", "y.npy", code=EQUAL)
    u.run("quantize", "--preset", "mxfp8", "--axis", str(axis), "--scale-out", "l.npy", "x.npy=f32",
          "q.npy", code=EQUAL)
    u.run("dequantize", "--to", "f32", "--axis", str(axis), "--scale", "l.npy", "q.npy", "w.npy",
          code=EQUAL)
    u.check(read_npy(u.path("y.npy"), "f32") == read_npy(u.path("w.npy"), "f32"), "there and back")
    # A case names the store of its files: verify compares what they hold.
    scale = {"file": name, "block": 32, "axis": axis, "store": store}
    for option, value in zip(options[::2], options[1::2]):
        scale[option[2:].replace("-", "_")] = int(value)
    case = {"op": "quantize", "rule": "floor",
            "tensors": {"src": {"file": "x.npy", "format": "f32"},
                        "dst": {"file": "q.npy", "format": "e4m3fn", "scale": scale}}}
    u.run("verify", write_case(u, "case.json", case), code=EQUAL)
    if suffix == ".bin":
        wrong = bytearray(data)
        wrong[next(i for i, b in enumerate(data) if b)] ^= 1
        with open(u.path(name), "wb") as file:
            file.write(wrong)
        u.run("verify", "case.json", code=DIFFERS)


for STORE, AXIS, SHAPE, MORE, SUFFIX in [
        ("swizzle_128x4", 1, [130, 160], [], ".bin"), ("swizzle_128x4", 0, [80, 6], [], ".npy"),
        ("swizzle_128x4", 1, [1, 32], [], ".safetensors"), ("trn_sbuf", 1, [6, 640], [], ".npy"),
        ("trn_sbuf", 0, [544, 4], ["--tile-rows", "64", "--offset", "4"], ".bin"),
        ("trn_sbuf", 1, [3, 96], ["--tile-rows", "16", "--offset", "12"], ".safetensors")]:
    add_unit(f"quantize: scales in {STORE} {SHAPE} axis {AXIS} {SUFFIX}", test_quantize_store, STORE,
             AXIS, SHAPE, MORE, SUFFIX)


@unit("quantize: blocks along the last dimension, whatever the rank")
def test_quantize_last(u):
    draw = Draw("last")
    for shape in ([64], [2, 40], [2, 3, 64], [2, 2, 3, 40]):
        codes = draw.codes("f32", count(shape), -6, 6)
        write_npy(u.path("x.npy"), "f32", shape, codes)
        for verb in ("quantize", "run"):
            first = ["quantize", "--preset", "mxfp8"] if verb == "quantize" else \
                ["run", "quantize", "--to", "e4m3fn", "--rule", "floor"]
            src = ["x.npy=f32", "q.npy"] if verb == "quantize" else ["--src", "x.npy=f32", "-o", "q.npy"]
            report = u.json(*first, "--scale-out", "s.npy", *src, code=EQUAL)
            u.check(report["scales"]["axis"] == len(shape) - 1, f"{verb} {shape}: {report['scales']}")
            rows = count(shape[:-1])
            q, n, s = mx_want([rows, shape[-1]], codes, "e4m3fn", "floor", 1)
            u.check(read_npy(u.path("q.npy"), "e4m3fn")[1] == q, f"{verb} {shape}: elements")
            u.check(read_npy(u.path("s.npy"), "e8m0") == (shape[:-1] + [n[1]], s), f"{verb} {shape}: scales")


@unit("quantize: a matrix and its transpose")
def test_quantize_transpose(u):
    shape = [64, 96]
    codes = quantize_source(u, shape)
    turned = [codes[i * 96 + j] for j in range(96) for i in range(64)]
    write_npy(u.path("xt.npy"), "f32", [96, 64], turned)
    write_npy(u.path("w.npy"), "u32", [96, 64], Draw("transpose words").random.choices(
        range(1 << 32), k=96 * 64))
    for options in (["--preset", "mxfp8"], ["--preset", "trn3", "--layout", "trn_wrap"],
                    ["--preset", "mxfp4", "--axis", "0"], ["--preset", "nvfp4"],
                    ["--preset", "mxfp8", "--round", "sr", "--words", "w.npy"],
                    ["--preset", "mxfp8", "--scale-store", "swizzle_128x4"]):
        what = " ".join(options)
        both = u.json("quantize", *options, "--scale-out", "s.bin", "--transpose", "t.npy",
                      "--transpose-scale-out", "ts.bin", "x.npy=f32", "q.npy", code=EQUAL)
        u.check(both.get("transpose") == {"written": "t.npy", "scales_written": "ts.bin"},
                f"{what}: report: {both}")
        one = u.json("quantize", *options, "--scale-out", "s1.bin", "x.npy=f32", "q1.npy", code=EQUAL)
        u.json("quantize", *options, "--scale-out", "ts1.bin", "xt.npy=f32", "t1.npy", code=EQUAL)
        u.check(both.get("tensor_scale") == one.get("tensor_scale"), f"{what}: tensor scale")
        for got, want in (("q", "q1"), ("t", "t1")):
            u.check(plain_bytes(u.path(got + ".npy")) == plain_bytes(u.path(want + ".npy")) and
                    read_text(u.path(got + ".npy.json")) == read_text(u.path(want + ".npy.json")),
                    f"{what}: {got}")
        for got, want in (("s", "s1"), ("ts", "ts1")):
            u.check(read_bytes(u.path(got + ".bin")) == read_bytes(u.path(want + ".bin")),
                    f"{what}: {got}")
    q, n, s = mx_want([96, 64], turned, "e4m3fn")
    u.run("quantize", "--preset", "mxfp8", "--transpose", "t.npy", "--transpose-scale-out", "ts.npy",
          "x.npy=f32", "c.safetensors", code=EQUAL)
    u.check(read_npy(u.path("t.npy"), "e4m3fn") == ([96, 64], q) and
            read_npy(u.path("ts.npy"), "e8m0") == (n, s), "the transpose against fractions")
    u.run("verify", "c.safetensors", code=EQUAL)


@unit("quantize: as run quantize; cases, sidecars, threads")
def test_quantize_forms(u):
    codes = quantize_source(u, [8, 64])
    u.run("quantize", "--preset", "mxfp8", "x.npy=f32", "a.safetensors", code=EQUAL)
    u.run("run", "quantize", "--src", "x.npy=f32", "--to", "e4m3fn", "--rule", "floor", "-o",
          "b.safetensors", code=EQUAL)
    u.check(read_bytes(u.path("a.safetensors")) == read_bytes(u.path("b.safetensors")), "the same case")
    u.run("quantize", "--preset", "mxfp8", "--threads", "2", "--isa", "ref", "--scale-store",
          "swizzle_128x4", "--scale-out", "s.bin", "x.npy=f32", "a.safetensors", code=EQUAL)
    u.check(read_bytes(u.path("a.safetensors")) == read_bytes(u.path("b.safetensors")),
            "threads and ISA change nothing, the case stays linear")
    _, _, s = mx_want([8, 64], codes, "e4m3fn")
    u.check(read_bytes(u.path("s.bin")) == stored("swizzle_128x4", 8, 2, lambda r, c: s[2 * r + c]),
            "scales beside a case")
    u.run("dequantize", "--to", "bf16", "--round", "rtz", "a.safetensors", "y.safetensors", code=EQUAL)
    u.run("verify", "y.safetensors", code=EQUAL)
    u.run("quantize", "--preset", "mxfp8", "--scale-out", "s.npy", "x.npy=f32", "q.npy", code=EQUAL)
    report = u.json("dequantize", "--to", "bf16", "--round", "rtz", "--scale", "s.npy", "q.npy", "z.npy",
                    code=EQUAL)
    u.check(report.get("op") == "dequantize" and report.get("written") == "z.npy" and
            report.get("scales", {}).get("store") == "linear" and report.get("kernel") and
            "rule" not in report, f"dequantize --json: {report}")
    _, tensors = read_safetensors(u.path("y.safetensors"))
    u.check(tensors["dst"][1] == plain_bytes(u.path("z.npy")), "from the case as from files")
    text = u.run("quantize", "--preset", "trn3", "--scale-out", "s.npy", "x.npy=f32", "q.npy",
                 code=EQUAL).stdout
    for word in ("floor_up1", "blocks of 32 along dimension 1", "q.npy", "s.npy", "e4m3fn+e8m0"):
        u.check(word in text, f"the text says {word}: {text}")


@unit("quantize: a multiply reads scales in a device's order")
def test_quantize_multiply(u):
    draw = Draw("stored multiply")
    m, k, n = 5, 640, 6
    for name, axis, shape in (("a", 1, [m, k]), ("b", 0, [k, n])):
        write_npy(u.path("x.npy"), "f32", shape, draw.codes("f32", m * k if axis else k * n))
        for store in ("linear", "trn_sbuf", "swizzle_128x4"):
            u.run("quantize", "--preset", "mxfp8", "--axis", str(axis), "--scale-store", store,
                  "--scale-out", f"{name}_{store}.bin", "x.npy=f32", f"{name}.npy", code=EQUAL)
    outputs = []
    for a, b in (("linear", "linear"), ("trn_sbuf", "swizzle_128x4"), ("swizzle_128x4", "trn_sbuf")):
        case = {"op": "gemm", "profile": "trn3", "tensors": {
            "a": {"file": "a.npy", "format": "e4m3fn", "scale": {"file": f"a_{a}.bin", "store": a}},
            "b": {"file": "b.npy", "format": "e4m3fn", "scale": {"file": f"b_{b}.bin", "store": b}},
            "d": {"format": "f32"}}}
        u.run("run", write_case(u, "case.json", case), "-o", "d.npy", code=EQUAL)
        outputs.append(read_npy(u.path("d.npy"), "f32"))
    u.check(outputs[0] == outputs[1] == outputs[2] and any(outputs[0][1]), "every store multiplies alike")
    # A result's store: run writes it too.
    case = {"op": "quantize", "rule": "floor", "tensors": {
        "src": {"file": "x.npy", "format": "f32"},
        "dst": {"format": "e4m3fn", "scale": {"axis": 0, "store": "trn_sbuf"}}}}
    u.run("run", write_case(u, "case.json", case), "--scale-out", "s.bin", "-o", "q.npy", code=EQUAL)
    u.check(read_bytes(u.path("s.bin")) == read_bytes(u.path("b_trn_sbuf.bin")), "run writes the store")


@unit("quantize: bad input")
def test_quantize_bad(u):
    write_npy(u.path("x.npy"), "f32", [4, 64], [0x3F800000] * 256)
    write_npy(u.path("x3.npy"), "f32", [2, 2, 32], [0x3F800000] * 128)
    write_npy(u.path("q.npy"), "e4m3fn", [4, 64], [0x38] * 256)
    write_npy(u.path("s.npy"), "e8m0", [4, 2], [127] * 8)
    write_npy(u.path("s16.npy"), "u16", [256], [0] * 256)
    write_text(u.path("s.bin"), "x" * 7)
    os.mkdir(u.path("folder"))
    before = set(os.listdir(u.home))
    ok = ["quantize", "--preset", "mxfp8", "--scale-out", "os.npy"]
    end = ["x.npy=f32", "o.npy"]
    back = ["dequantize", "--to", "f32"]
    ends = ["q.npy=e4m3fn", "o.npy"]
    for what, arguments, code, words in [
            ("no format", ["quantize", "--rule", "floor", "--scale-out", "os.npy", *end], USAGE,
             ["--to", "--preset"]),
            ("no rule", ["quantize", "--to", "e5m2", "--scale-out", "os.npy", *end], USAGE, ["rule"]),
            ("no such preset", ["quantize", "--preset", "mxfp7", *end], USAGE, ["mxfp7", "mxfp8"]),
            ("a preset of two", ["quantize", "--preset", "mxfp6", "--scale-out", "os.npy", *end], USAGE,
             ["e3m2 or e2m3"]),
            ("another element", [*ok, "--to", "e2m1", *end], USAGE, ["e4m3fn or e5m2", "e2m1"]),
            ("another rule", [*ok, "--rule", "even", *end], USAGE, ["--rule floor", "even"]),
            ("another block", [*ok, "--block", "16", *end], USAGE, ["--block 32", "16"]),
            ("another scale", [*ok, "--scale-format", "ue4m3", *end], USAGE,
             ["--scale-format e8m0", "ue4m3"]),
            ("no scales", ["quantize", "--preset", "mxfp8", *end], USAGE, ["--scale-out"]),
            ("store of no file", ["quantize", "--preset", "mxfp8", "--scale-store", "trn_sbuf",
                                  "x.npy=f32", "o.safetensors"], USAGE, ["--scale-out"]),
            ("no such layout", [*ok, "--layout", "rows", *end], USAGE, ["layout", "rows", "trn_wrap"]),
            ("no such store", [*ok, "--scale-store", "rows", *end], USAGE, ["rows", "trn_sbuf"]),
            ("tile rows", [*ok, "--scale-store", "trn_sbuf", "--tile-rows", "20", *end], USAGE,
             ["tile_rows", "20", "multiple of 8"]),
            ("too many tile rows", [*ok, "--scale-store", "trn_sbuf", "--tile-rows", "136", *end],
             USAGE, ["tile_rows", "128"]),
            ("tile rows of text", [*ok, "--tile-rows", "P", *end], USAGE, ["--tile-rows", "P"]),
            ("offset", [*ok, "--scale-store", "trn_sbuf", "--offset", "6", *end], USAGE,
             ["offset", "6", "0, 4, 8 or 12"]),
            ("offset of another store", [*ok, "--offset", "4", *end], USAGE, ["offset", "linear"]),
            ("store of a batch", [*ok, "--scale-store", "swizzle_128x4", "x3.npy=f32", "o.npy"],
             REFUSED, ["swizzle_128x4", "rank 3"]),
            ("amax of zero", ["quantize", "--preset", "nvfp4", "--tensor-amax", "0x0",
                              "--scale-out", "os.npy", *end], USAGE, ["tensor_amax is 0 in FP32", "it is found"]),
            ("amax of text", [*ok, "--tensor-amax", "1.5", *end], USAGE, ["tensor_amax", "1.5"]),
            ("amax of an MX rule", [*ok, "--tensor-amax", "0x3f800000", *end], USAGE,
             ["--tensor-amax", "floor"]),
            ("amax of Inf", ["quantize", "--preset", "nvfp4", "--tensor-amax", "0x7f800000",
                             "--scale-out", "os.npy", *end], REFUSED, ["7F800000"]),
            ("transpose without scales", [*ok, "--transpose", "t.npy", *end], USAGE,
             ["--transpose-scale-out"]),
            ("scales without transpose", [*ok, "--transpose-scale-out", "t.npy", *end], USAGE,
             ["--transpose FILE"]),
            ("transpose of a batch", [*ok, "--transpose", "t.npy", "--transpose-scale-out", "ts.npy",
                                      "x3.npy=f32", "o.npy"], REFUSED, ["rank 3", "matrix"]),
            ("wrapped blocks that do not fit the transpose",
             [*ok, "--layout", "trn_wrap", "--transpose", "t.npy", "--transpose-scale-out", "ts.npy",
              *end], REFUSED, ["dst_t"]),
            ("one file for two", ["quantize", "--preset", "mxfp8", "--scale-out", "o.npy", *end], USAGE,
             ["o.npy", "twice"]),
            *((f"scales of {f}", [*of, "--to", "e4m3fn", "--rule", "floor", "--scale-format", f,
                                  "--scale-out", "os.npy"], USAGE,
               ["--scale-format", f, "e8m0", "ue4m3"])
              for f in ("f32", "bf16", "tf32", "e4m3fn", "e2m1", "mxint8")
              for of in (["quantize", *end],
                         ["run", "quantize", "--src", "x.npy=f32", "-o", "o.npy"])),
            ("scales that cannot be written", ["quantize", "--preset", "mxfp8", "--scale-out",
                                               "no/os.npy", *end], FILE, ["os.npy"]),
            ("a transpose that cannot be written", [*ok, "--transpose", "t.npy",
                                                    "--transpose-scale-out", "folder", *end], FILE,
             ["folder"]),
            ("axis", [*ok, "--axis", "2", *end], REFUSED, ["dimension 2", "rank 2"]),
            ("untyped", [*ok, "x.npy", "o.npy"], FILE, ["x.npy"]),
            ("no file", [*ok, "y.npy=f32", "o.npy"], FILE, ["y.npy"]),
            ("sr without words", [*ok, "--round", "sr", *end], REFUSED, ["random"]),
            ("no --to", ["dequantize", "--scale", "s.npy", *ends], USAGE, ["--to"]),
            ("no --scale", [*back, *ends], USAGE, ["--scale"]),
            ("scales of another size", [*back, "--axis", "0", "--scale", "s.npy", *ends], FILE,
             ["64 scales", "8"]),
            ("raw scales of another size", [*back, "--scale", "s.bin", *ends], FILE, ["s.bin", "7", "8"]),
            ("stored scales of another size", [*back, "--scale-store", "swizzle_128x4", "--scale",
                                               "s.npy", *ends], FILE, ["512", "8", "swizzle_128x4"]),
            ("raw stored scales of another size", [*back, "--scale-store", "trn_sbuf", "--scale",
                                                   "s.bin", *ends], FILE, ["s.bin", "7", "512"]),
            ("scales of 16 bits", [*back, "--scale-store", "swizzle_128x4", "--scale", "s16.npy",
                                   *ends], FILE, ["u16", "bytes"]),
            ("scales not there", [*back, "--scale", "none.npy", *ends], FILE, ["none.npy"]),
            ("axis of scales", [*back, "--axis", "3", "--scale", "s.npy", *ends], USAGE,
             ["dimension 3", "rank 2"]),
            ("no tensor scale", [*back, "--tensor-scale", "0x0", "--scale", "s.npy", *ends], USAGE,
             ["tensor_scale is 0"]),
            ("tensor scale", [*back, "--tensor-scale", "2", "--scale", "s.npy", *ends], USAGE,
             ["tensor_scale", "2"])]:
        u.refuses(what, arguments, code, words)
        left = sorted(set(os.listdir(u.home)) - before)
        u.check(not left, f"{what}: wrote {left}")
    u.run("quantize", "x.npy=f32", code=USAGE)
    u.run("dequantize", "q.npy", code=USAGE)
    u.run("quantize", "--preset", "mxfp8", "x.npy=f32", "c.safetensors", code=EQUAL)
    u.refuses("options that a case says", [*back, "--axis", "1", "c.safetensors", "o.npy"], USAGE,
              ["c.safetensors", "case"])
    case = {"op": "dequantize", "tensors": {
        "src": {"file": "q.npy", "format": "e4m3fn",
                "scale": {"file": "s.bin", "store": "trn_sbuf", "tile_rows": 12}},
        "dst": {"format": "f32"}}}
    u.refuses("tile_rows of a case", ["run", write_case(u, "case.json", case), "-o", "o.npy"], FILE,
              ["case.json", "tile_rows", "12"])
    u.check(not os.path.exists(u.path("o.npy")), "nothing was written")



# ---------------------------------------------------------------------------------------------
# Attention: a dump made under another schedule, and the parameter that verify names.

ATTENTION = ["--profile", "trn2", "--q", "q.npy=bf16", "--k", "k.npy=bf16", "--v", "v.npy=bf16"]


def findings(report):
    """What a report's only case is explained by, best first."""
    return report["cases"][0].get("explain", {}).get("findings", [])


def attention_files(u, seed, queries=3, keys=300, d=16, dv=6):
    draw = Draw(seed)
    write_npy(u.path("q.npy"), "bf16", [1, 2, queries, d], draw.codes("bf16", 2 * queries * d, -4, 0))
    write_npy(u.path("k.npy"), "bf16", [1, 1, keys, d], draw.codes("bf16", keys * d, -4, 0))
    write_npy(u.path("v.npy"), "bf16", [1, 1, keys, dv], draw.codes("bf16", keys * dv, -6, 0))


def test_attention_fault(u, schedule, fault, options):
    attention_files(u, f"attention {schedule} {fault}")
    given = [*ATTENTION, *options]
    u.run("attention", "run", "--schedule", schedule, *given, "--set", fault, "--to", "f32",
          "-o", "o.npy", code=EQUAL)
    u.run("attention", "verify", "--schedule", schedule, *given, "--set", fault,
          "--dump", "o.npy=f32", code=EQUAL)
    report = u.json("attention", "verify", "--schedule", schedule, *given, "--dump", "o.npy=f32",
                    "--threads", "2", code=DIFFERS)
    found = findings(report)
    certain = [f["rule"] for f in found if f["explains"] == f["of"] > 0 and f["breaks"] == 0]
    u.check(fault in certain, f"{fault} is among what explains all: {found}")
    text = u.run("attention", "verify", "--schedule", schedule, *given, "--dump", "o.npy=f32",
                 code=DIFFERS).stdout
    u.check("breaks 0/" in text and f"{fault} " in text, "the text says so too")
    u.check(f"verdict: {fault} explains every" in text if len(certain) == 1 else
            "this data does not tell them apart" in text, f"verdict: {text[-200:]}")


for _schedule, _fault, _options in (
        ("trn-prefill", "sum_source=p", []),
        ("trn-prefill", "scale_place=q", ["--scale", "0.3"]),
        ("trn-prefill", "sum_order=tree", ["--causal"]),
        ("trn-prefill", "p_format=f16", []),
        ("trn-prefill", "cap_argument=divide", ["--softcap", "1.7"]),
        ("trn-decode", "sum_source=exp", ["--set", "sum_order=sequential"]),
        ("trn-decode", "normalise=divide", []),
        ("flash", "section=256", ["--causal"]),
        ("flash", "p_format=e5m2", []),
        ("flash", "update=fma", ["--window", "200"])):
    add_unit(f"attention: {_fault} under {_schedule}", test_attention_fault, _schedule, _fault, _options)


@unit("attention: wrong options of a dump, and none at all")
def test_attention_options(u):
    attention_files(u, "attention options", queries=4, keys=9)
    common = ["--schedule", "flash", *ATTENTION]
    for made, label in ((["--causal"], "causal the other way"), (["--scale", "none"], "no scale")):
        u.run("attention", "run", *common, *made, "--to", "bf16", "-o", "o.npy", code=EQUAL)
        report = u.json("attention", "verify", *common, "--dump", "o.npy=bf16", code=DIFFERS)
        best = (findings(report) or [{}])[0]
        u.check(best.get("rule") == label and best.get("explains") == best.get("of"),
                f"{label}: {findings(report)}")
    u.run("attention", "run", *common, "--to", "bf16", "-o", "o.npy", "--lse", "lse.npy", code=EQUAL)
    u.check(read_npy(u.path("lse.npy"), "f32")[0] == [1, 2, 4], "lse [B, Hq, Sq]")
    report = u.json("attention", "verify", *common, "--dump", "o.npy=bf16", code=EQUAL)
    u.check(report.get("verdict") == "equal" and report.get("elements") == 48 and
            "sum_source=exp(assumed)" in report["cases"][0].get("parameters", ""), f"equal: {report}")
    told, quiet = (u.run("attention", "verify", *common, "--dump", "o.npy=bf16", *q, code=EQUAL).stdout
                   for q in ([], ["-q"]))
    u.check("sum_source=exp" in told and "weakest evidence" in told and "48 elements of o" in quiet and
            "sum_source" not in quiet and "weakest" not in quiet, f"attention verify -q: {quiet}")
    # Noise is nobody's rule.
    shape, codes = read_npy(u.path("o.npy"), "bf16")
    write_npy(u.path("o2.npy"), "bf16", shape, [c ^ (1 if n % 5 == 0 else 0) for n, c in enumerate(codes)])
    text = u.run("attention", "verify", *common, "--dump", "o2.npy=bf16", code=DIFFERS).stdout
    u.check("verdict: no rule tried" in text, "noise is explained by nothing")
    for threads in ("1", "2"):
        u.run("attention", "run", *common, "--to", "bf16", "-o", f"t{threads}.npy", "--threads", threads,
              code=EQUAL)
    u.check(read_npy(u.path("t1.npy"), "bf16") == read_npy(u.path("t2.npy"), "bf16"), "threads")


@unit("attention: the exact schedule, by hand")
def test_attention_exact(u):
    one, two = 0x3F80, 0x4000
    write_npy(u.path("q.npy"), "bf16", [1, 1, 1, 1], [0])
    write_npy(u.path("k.npy"), "bf16", [1, 1, 4, 1], [one, two, one, two])
    write_npy(u.path("v.npy"), "bf16", [1, 1, 4, 1], [one, one, two, two])
    u.run("attention", "run", "--schedule", "exact", *ATTENTION[2:], "--to", "f32", "-o", "o.npy",
          code=EQUAL)
    u.check(read_npy(u.path("o.npy"), "f32") == ([1, 1, 1, 1], [0x3FC00000]), "the mean is 1.5")


@unit("attention: bad input")
def test_attention_bad(u):
    attention_files(u, "attention bad", queries=2, keys=5)
    ok = ["attention", "run", "--schedule", "flash", *ATTENTION, "--to", "bf16", "-o", "o.npy"]
    for what, arguments, code, words in [
            ("no schedule", ["attention", "run", *ATTENTION, "--to", "bf16", "-o", "o.npy"], USAGE, ["schedule"]),
            ("unknown schedule", [*ok, "--schedule", "trn-train"], USAGE, ["trn-train"]),
            ("attention by run", ["run", "attention", "-o", "o.npy"], USAGE, ["--to"]),
            ("unknown profile", [*ok, "--profile", "trn9"], USAGE, ["trn9"]),
            ("unknown key", [*ok, "--set", "denominator=p"], USAGE, ["'denominator'", "attention keys"]),
            ("unknown value", [*ok, "--set", "sum_source=q"], USAGE, ["sum_source=q", "exp p"]),
            ("no pair", [*ok, "--set", "sum_source"], USAGE, ["KEY=VALUE"]),
            ("bad scale", [*ok, "--scale", "fast"], USAGE, ["--scale", "fast"]),
            ("infinite scale", [*ok, "--scale", "0x7F800000"], REFUSED, ["op.scale", "0x7F800000"]),
            ("bad window", [*ok, "--window", "-3"], USAGE, ["-3"]),
            ("bad lengths", [*ok, "--kv-length", "3,4"], USAGE, ["kv_length has 2 numbers; wanted: 1"]),
            ("no scale by zero", [*ok, "--scale", "0"], USAGE, ["scale is 0 in FP32", "none"]),
            ("a scale of nothing", [*ok, "--scale", "1e-60"], USAGE, ["scale is 0 in FP32", "none"]),
            ("no cap by zero", [*ok, "--softcap", "0"], USAGE, ["softcap is 0 in FP32"]),
            ("too long", [*ok, "--kv-length", "6"], REFUSED, ["kv_length[0] is 6", "0 to 5"]),
            ("inconsistent", [*ok, "--set", "section=100"], REFUSED, ["section is 100", "key_tile"]),
            ("no rule", [*ok, "--set", "p_format=f32"], REFUSED, ["p v"]),
            ("no format", ok[:-4] + ["-o", "o.npy"], USAGE, ["--to"]),
            ("no file", [*ok, "--k", "none.npy=bf16"], FILE, ["none.npy"]),
            ("other shape", [*ok, "--v", "q.npy=bf16"], REFUSED, ["Hkv is 1 in k but 2 in v"]),
            ("dump of other shape", ["attention", "verify", "--schedule", "flash", *ATTENTION, "--dump",
                                     "q.npy=bf16"], REFUSED, ["[1, 2, 2, 16]", "[1, 2, 2, 6]"]),
            ("no value", [*ok, "--set", "scale_place=here"], USAGE, ["here", "wanted: q scores exp"]),
            ("no number", [*ok, "--set", "section=many"], USAGE, ["many", "wanted: an integer"]),
            ("no format of p", [*ok, "--set", "p_format=fp8"], USAGE, ["fp8", "wanted: given, or a format"]),
            ("no parameter", [*ok, "--set", "sections=1"], USAGE, ["sections", "attention keys"]),
            ("keys of nothing", ["attention", "keys", "flash"], USAGE, ["keys"]),
            ("show of nothing", ["attention", "show", "trn-train"], USAGE, ["trn-train"])]:
        u.refuses(what, arguments, code, words)
        u.check(not os.path.exists(u.path("o.npy")), f"{what}: nothing is written")
    u.check("sum_source" in u.run("attention", "show", "trn-prefill", code=EQUAL).stdout, "show")
    u.check("trn-mx-decode" in u.run("attention", "show", code=EQUAL).stdout, "show all")
    text = u.run("attention", "keys", code=EQUAL).stdout
    shown = {p["key"]: p["value"] for p in u.json("attention", "show", "flash", code=EQUAL)["parameters"]}
    keys = u.json("attention", "keys", code=EQUAL)
    u.check([k["key"] for k in keys] == list(shown), "the keys of a schedule")
    for k in keys:
        named = not k["values"].endswith(("an integer", "as 0xFF800000", "or a format"))
        u.check(k["values"] in text and k["meaning"] in text, f"{k['key']} as text")
        u.check(not named or shown[k["key"]] in k["values"].split(), f"{k['key']}: {k['values']}")
    u.check("--logits F" in u.run("route", "--help", code=EQUAL).stdout, "route --help: --logits")


# ---------------------------------------------------------------------------------------------
# Attention, routing and experts as cases.

def bf16_file(name):
    return {"file": name, "format": "bf16"}


def attention_case(op="attention", **more):
    case = {"op": op, "schedule": "flash", "profile": "trn2",
            "tensors": {"q": bf16_file("q.npy"), "k": bf16_file("k.npy"), "v": bf16_file("v.npy")}}
    if op == "attention":
        case["tensors"]["o"] = {"format": "f32"}
    case.update(more)
    return case


def safetensor_codes(path, name, fmt):
    _, tensors = read_safetensors(path)
    return unpack(fmt, tensors[name][1])


@unit("attention: a case, its results, and the command's")
def test_attention_case(u):
    attention_files(u, "attention case", queries=4, keys=20)
    case = attention_case(causal=True, scale=0.3, softcap="0x3fd9999a", set={"key_tile": 64, "section": 64})
    for name in ("lse", "max", "sum"):
        case["tensors"][name] = {"format": "f32"}
    path = write_case(u, "case.json", case)
    u.refuses("one file for four results", ["run", path, "-o", "o.npy"], USAGE, ["4 results", ".safetensors"])
    u.run("run", path, "-o", "w.safetensors", code=EQUAL)
    report = u.json("verify", "w.safetensors", code=EQUAL)
    u.check(report["elements"] == 48 + 3 * 8 and list(report["cases"][0]["results"]) == ["o", "lse", "max", "sum"],
            f"four results: {report}")
    u.check("key_tile=64(assumed)" in report["cases"][0]["parameters"], "the parameters that were set")
    command = ["attention", "run", "--schedule", "flash", *ATTENTION, "--causal", "--scale", "0.3", "--softcap",
               "0x3fd9999a", "--set", "key_tile=64", "--set", "section=64", "--to", "f32"]
    for again in (command, ["run", *command[0:1], *command[2:]]):
        u.run(*again, "-o", "o.npy", "--lse", "lse.npy", "--max", "m.npy", "--sum", "l.npy", code=EQUAL)
        for name, file in (("o", "o.npy"), ("lse", "lse.npy"), ("max", "m.npy"), ("sum", "l.npy")):
            u.check(read_npy(u.path(file), "f32")[1] == safetensor_codes(u.path("w.safetensors"), name, "f32"),
                    f"the command's {name}")
    u.run("attention", "verify", *command[2:-2], "--dump", "o.npy=f32", "--sum", "l.npy=f32", code=EQUAL)
    # a statistic that differs alone
    shape, codes = read_npy(u.path("l.npy"), "f32")
    write_npy(u.path("l2.npy"), "f32", shape, [c ^ 1 for c in codes])
    text = u.run("attention", "verify", *command[2:-2], "--dump", "o.npy=f32", "--sum", "l2.npy=f32",
                 code=DIFFERS).stdout
    u.check("elements of o, 48 equal" in text and "8 elements of sum, 0 equal" in text, f"the sum alone: {text}")


@unit("attention: pages, lengths, tables and random words of a case")
def test_attention_operands(u):
    attention_files(u, "attention pages", queries=4, keys=12)
    _, k = read_npy(u.path("k.npy"), "bf16")
    _, v = read_npy(u.path("v.npy"), "bf16")
    plain = attention_case(kv_length=[10])
    u.run("run", write_case(u, "plain.json", plain), "-o", "plain.npy", code=EQUAL)
    # blocks of 4 rows, in the order 2 0 1, and one that nobody names
    order = [2, 0, 1]
    for name, codes, width in (("k", k, 16), ("v", v, 6)):
        blocks = [[0x7FC0] * 4 * width for _ in range(4)]
        for page, block in enumerate(order):
            blocks[block] = codes[page * 4 * width:(page + 1) * 4 * width]
        write_npy(u.path(f"p{name}.npy"), "bf16", [4, 1, 4, width], sum(blocks, []))
    write_npy(u.path("pages.npy"), "u32", [1, 3], order)
    paged = attention_case(kv_length=[10])
    paged["tensors"].update(k=bf16_file("pk.npy"), v=bf16_file("pv.npy"), page_table={"file": "pages.npy"})
    u.run("run", write_case(u, "paged.json", paged), "-o", "paged.npy", code=EQUAL)
    u.check(read_npy(u.path("plain.npy"), "f32") == read_npy(u.path("paged.npy"), "f32"), "pages are a gather")
    u.run("attention", "run", "--schedule", "flash", "--profile", "trn2", "--q", "q.npy=bf16", "--k", "pk.npy=bf16",
          "--v", "pv.npy=bf16", "--page-table", "pages.npy", "--kv-length", "10", "--to", "f32", "-o", "c.npy",
          code=EQUAL)
    u.check(read_npy(u.path("plain.npy"), "f32") == read_npy(u.path("c.npy"), "f32"), "--page-table")
    u.run("run", u.path("paged.json"), "-o", "paged.safetensors", code=EQUAL)
    u.run("verify", "paged.safetensors", code=EQUAL)
    # a dump without the lengths
    longer = attention_case()
    u.run("run", write_case(u, "longer.json", longer), "-o", "longer.npy", code=EQUAL)
    plain["tensors"]["o"] = {"file": "longer.npy", "format": "f32"}
    report = u.json("verify", write_case(u, "plain.json", plain), code=DIFFERS)
    u.check(findings(report)[0]["rule"] == "no lengths", f"no lengths: {findings(report)}")
    # an exponential that is 1 everywhere: means
    write_npy(u.path("one.npy"), "bf16", [65536], [0x3F80] * 65536)
    table = attention_case(set={"exp": "table", "normalise": "divide"})
    table["tensors"]["exp_table"] = bf16_file("one.npy")
    u.run("run", write_case(u, "table.json", table), "-o", "mean.safetensors", code=EQUAL)
    got = [struct.unpack("<f", struct.pack("<I", c))[0] for c in
           safetensor_codes(u.path("mean.safetensors"), "o", "f32")]
    values = [struct.unpack("<f", struct.pack("<I", c << 16))[0] for c in v]
    want = [sum(values[r * 6 + c] for r in range(12)) / 12 for c in range(6)]
    u.check(all(abs(g - want[i % 6]) < 1e-3 for i, g in enumerate(got)), "a table of ones: the mean")
    table["tensors"]["exp_table"]["shape"] = [256, 256]
    u.run("run", write_case(u, "table.json", table), "-o", "no.npy", code=EQUAL)
    del table["tensors"]["exp_table"]
    u.refuses("no table", ["run", write_case(u, "table.json", table), "-o", "z.npy"], REFUSED, ["exp"])
    # stochastic rounding: words are truncation where they are 0, and another source is noticed
    random = attention_case(out={"round": "sr", "words": {"philox": {"key": ["0x1", "0x2"]}}})
    random["tensors"]["o"] = {"format": "bf16"}
    u.run("run", write_case(u, "sr.json", random), "-o", "sr.safetensors", code=EQUAL)
    u.run("verify", "sr.safetensors", code=EQUAL)
    words = philox_words([1, 2], 0, 48)
    write_npy(u.path("words.npy"), "u32", [48], words)
    random["out"]["words"] = {"file": "words.npy"}
    u.run("run", write_case(u, "sr2.json", random), "-o", "sr2.safetensors", code=EQUAL)
    u.run("verify", "sr2.safetensors", code=EQUAL)
    exact = read_npy(u.path("longer.npy"), "f32")[1]
    got = safetensor_codes(u.path("sr.safetensors"), "o", "bf16")
    u.check(got == [(c + (w >> 16)) >> 16 for c, w in zip(exact, words)], "each element its word")
    u.check(got == safetensor_codes(u.path("sr2.safetensors"), "o", "bf16"), "a generator or its words")


@unit("attention: gradients of a case")
def test_attention_gradients(u):
    attention_files(u, "attention gradients", queries=4, keys=12)
    draw = Draw("dout")
    write_npy(u.path("do.npy"), "bf16", [1, 2, 4, 6], draw.codes("bf16", 48, -4, 0))
    u.run("attention", "run", "--schedule", "flash", *ATTENTION, "--causal", "--to", "bf16", "-o", "o.npy", "--lse",
          "lse.npy", code=EQUAL)
    back = ["--schedule", "flash", *ATTENTION, "--causal", "--dout", "do.npy=bf16", "--o", "o.npy=bf16", "--lse",
            "lse.npy=f32"]
    case = attention_case("attention_backward", causal=True)
    case["tensors"].update(o=bf16_file("o.npy"), dout=bf16_file("do.npy"),
                           lse={"file": "lse.npy", "format": "f32"},
                           **{name: {"format": "f32"} for name in ("dq", "dk", "dv")})
    u.run("run", write_case(u, "back.json", case), "-o", "back.safetensors", code=EQUAL)
    u.run("verify", "back.safetensors", code=EQUAL)
    u.run("attention", "run", *back, "--to", "f32", "--dq", "dq.npy", "--dk", "dk.npy", "--dv", "dv.npy", code=EQUAL)
    for name in ("dq", "dk", "dv"):
        u.check(read_npy(u.path(f"{name}.npy"), "f32")[1] ==
                safetensor_codes(u.path("back.safetensors"), name, "f32"), f"the command's {name}")
    u.check(any(read_npy(u.path("dv.npy"), "f32")[1]), "gradients that are not all zero")
    write_npy(u.path("s.npy"), "f32", [2], [0x3F000000, 0xBF800000])
    sink = [*back, "--sink", "s.npy=f32"]
    u.run("attention", "run", *sink[:sink.index("--dout")], "--sink", "s.npy=f32", "--to", "bf16", "-o", "o.npy",
          "--lse", "lse.npy", code=EQUAL)
    u.run("attention", "run", *sink, "--to", "f32", "--dsink", "ds.npy", code=EQUAL)
    shape, ds = read_npy(u.path("ds.npy"), "f32")
    u.check(shape == [2] and all(ds), f"a gradient for each sink: {ds}")
    u.run("attention", "verify", *sink, "--dsink", "ds.npy=f32", code=EQUAL)
    u.refuses("no sink", ["attention", "verify", *back, "--dsink", "ds.npy=f32"], REFUSED, ["dsink", "no sink"])
    u.run("attention", "run", *back[:back.index("--dout")], "--to", "bf16", "-o", "o.npy", "--lse", "lse.npy",
          code=EQUAL)
    u.run("attention", "verify", *back, "--dv", "dv.npy=f32", code=EQUAL)
    u.run("attention", "run", *back, "--set", "p_format=f16", "--to", "f32", "--dq", "dq.npy", "--dk", "dk.npy",
          code=EQUAL)
    report = u.json("attention", "verify", *back, "--dq", "dq.npy=f32", "--dk", "dk.npy=f32", code=DIFFERS)
    best = findings(report)[0]
    u.check(best["rule"] == "p_format=f16" and best["explains"] == best["of"] and not best["breaks"],
            f"the format of P: {findings(report)}")
    inside = ["--set", "scale_place=exp", "--set", "exp_base=2"]
    u.run("attention", "run", *back, "--to", "f32", "--dq", "dq.npy", "--dk", "dk.npy", code=EQUAL)
    u.run("attention", "run", *back[:back.index("--dout")], *inside, "--to", "bf16", "-o", "o.npy", "--lse", "lse.npy",
          code=EQUAL)
    u.run("attention", "run", *back, *inside, "--to", "f32", "--dq", "dq2.npy", "--dk", "dk2.npy", code=EQUAL)
    u.run("attention", "verify", *back, *inside, "--dq", "dq2.npy=f32", "--dk", "dk2.npy=f32", code=EQUAL)
    for name in ("dq", "dk"):
        one, two = ([struct.unpack("<f", struct.pack("<I", c))[0] for c in read_npy(u.path(f), "f32")[1]]
                    for f in (f"{name}.npy", f"{name}2.npy"))
        most = max(map(abs, one))
        u.check(most > 0 and all(abs(x - y) < most / 50 for x, y in zip(one, two)),
                f"{name}: the scale inside the exponential is the same scale: {one} {two}")
    u.refuses("nothing asked for", ["attention", "verify", *back], USAGE, ["dq, dk, dv, dsink"])
    u.refuses("gradients without dout", ["attention", "run", "--schedule", "flash", *ATTENTION, "--to", "f32", "-o",
                                         "z.npy", "--dq", "z2.npy"], USAGE, ["--dq", "--dout"])
    del case["tensors"]["lse"]
    u.refuses("no statistics", ["run", write_case(u, "back.json", case), "-o", "z.safetensors"], REFUSED, ["lse"])


@unit("attention: bad cases")
def test_attention_bad_case(u):
    attention_files(u, "attention bad case", queries=2, keys=5)

    def bad(what, code, words, tensors=None, **more):
        case = attention_case(**more)
        case["tensors"].update(tensors or {})
        for key in [key for key, value in case.items() if value is None]:
            del case[key]
        u.refuses(what, ["run", write_case(u, "bad.json", case), "-o", "z.npy"], code, ["bad.json" if code == FILE
                                                                                         else "", *words])
        u.check(not os.path.exists(u.path("z.npy")), f"{what}: nothing is written")
    bad("no schedule", FILE, ["schedule", "(absent)", "trn-prefill"], schedule=None)
    bad("unknown schedule", FILE, ["'trn-train'", "trn-prefill", "flash"], schedule="trn-train")
    bad("unknown parameter", FILE, ["set", "'denominator'"], set={"denominator": "p"})
    bad("unknown value", FILE, ["sum_source=q", "exp p"], set={"sum_source": "q"})
    bad("a value that is no string", FILE, ["key_tile"], set={"key_tile": [1]})
    bad("no such key", FILE, ["'causality'", "attention"], causality=True)
    bad("no such tensor", FILE, ["'query'", "tensors"], {"query": bf16_file("q.npy")})
    bad("a tensor is missing", FILE, ["k has no"], {"k": {"format": "bf16"}})
    bad("causal", FILE, ["causal"], causal="yes")
    bad("align", FILE, ["align", "'left'", "top_left"], align="left")
    bad("masked_rows", FILE, ["masked_rows", "'none'", "zero"], masked_rows="none")
    bad("window", FILE, ["window"], window=-1)
    bad("scale", FILE, ["scale", "'fast'"], scale="fast")
    bad("lengths", FILE, ["kv_length has 2 numbers; wanted: 1"], kv_length=[5, 5])
    bad("no list of lengths", FILE, ["kv_length is not a list", "1 numbers"], kv_length=5)
    bad("a length of text", FILE, ["number 0 of kv_length"], kv_length=["5"])
    bad("no scale by zero", FILE, ["scale is 0 in FP32", "none"], scale="0x00000000")
    bad("no profile", REFUSED, ["profile"], profile=None)
    write_npy(u.path("t.npy"), "bf16", [4], [0] * 4)
    write_npy(u.path("pages.npy"), "u32", [2, 1], [0, 0])
    write_npy(u.path("far.npy"), "u32", [1, 1], [7])
    bad("a short table", FILE, ["exp_table", "65536"], {"exp_table": bf16_file("t.npy")})
    bad("pages of another batch", FILE, ["page_table", "[2, 1]", "[1, pages]"], {"page_table": {"file": "pages.npy"}})
    bad("a page out of range", REFUSED, ["page_table", "7"], {"page_table": {"file": "far.npy"}})


def moe_case(u, seed, tokens=9, width=16, middle=8, experts=4, **more):
    draw = Draw(seed)
    for name, shape, low in (("x", [tokens, width], -3), ("w", [width, experts], -3), ("c", [tokens, width], -3),
                             ("g", [experts, width, middle], -4), ("u", [experts, width, middle], -4),
                             ("d", [experts, middle, width], -4), ("gb", [experts, middle], -3),
                             ("db", [experts, width], -3)):
        write_npy(u.path(f"{name}.npy"), "bf16", shape, draw.codes("bf16", math.prod(shape), low, 0))
    case = {"op": "moe", "profile": "trn2", "router": {"k": 2},
            "tensors": {"x": bf16_file("x.npy"), "router": bf16_file("w.npy"), "gate": bf16_file("g.npy"),
                        "up": bf16_file("u.npy"), "down": bf16_file("d.npy"), "gate_bias": bf16_file("gb.npy"),
                        "down_bias": bf16_file("db.npy"), "y": {"format": "f32"}}}
    for key, value in more.items():
        case[key] = {**case.get(key, {}), **value} if isinstance(value, dict) else value
    return case


def moe_explains(u, what, made, read, rule, among=()):
    """A dump made by one case and read as another: `rule` is among what explains all of it."""
    u.run("run", write_case(u, "made.json", made), "-o", "y.npy", code=EQUAL)
    other = json.loads(json.dumps(read))
    other["tensors"]["y"] = {"file": "y.npy", "format": "f32"}
    report = u.json("verify", write_case(u, "read.json", other), code=DIFFERS)
    certain = [f["rule"] for f in findings(report) if f["explains"] == f["of"] > 0 and not f["breaks"]]
    u.check(rule in certain and set(certain) <= {rule, *among}, f"{what}: {certain} of {findings(report)[:4]}")


@unit("moe: a case, replayed, and told its experts")
def test_moe_case(u):
    case = moe_case(u, "moe case")
    path = write_case(u, "case.json", case)
    u.run("run", path, "-o", "y.npy", code=EQUAL)
    done = u.run("run", path, "-o", "w.safetensors", code=EQUAL)
    for said in ("router.order=topk_then_act(backed)", "mlp.middle=bf16(backed)", "combine.fused=no(assumed)",
                 'ties="lower index first"(documented)', "weakest evidence: assumed", "profile trn2"):
        u.check(said in done.stdout, f"the parameters with their evidence: {said}")
    report = u.json("verify", "w.safetensors", "--threads", "2", code=EQUAL)
    u.check(report["elements"] == 144 and report["cases"][0]["op"] == "moe", f"verify: {report}")
    # routing alone gives the experts and weights that the mixture may be told
    route = {"op": "route", "profile": "trn2", "router": {"k": 2},
             "tensors": {"x": bf16_file("x.npy"), "router": bf16_file("w.npy"), "experts": {},
                         "weights": {"format": "f32"}, "logits_out": {"format": "f32"}}}
    u.run("run", write_case(u, "route.json", route), "-o", "r.safetensors", code=EQUAL)
    u.run("verify", "r.safetensors", code=EQUAL)
    told = moe_case(u, "moe case")
    del told["tensors"]["router"], told["router"]
    told["tensors"].update(experts={"file": "r.safetensors", "tensor": "experts"},
                           weights={"file": "r.safetensors", "tensor": "weights", "format": "f32"})
    u.run("run", write_case(u, "told.json", told), "-o", "t.npy", code=EQUAL)
    u.check(read_npy(u.path("y.npy"), "f32") == read_npy(u.path("t.npy"), "f32"), "told its experts: the same")
    # and the same from the logits
    _, tensors = read_safetensors(u.path("r.safetensors"))
    write_npy(u.path("l.npy"), "f32", [9, 4], unpack("f32", tensors["logits_out"][1]))
    write_npy(u.path("e.npy"), "u32", [9, 2], unpack("u32", tensors["experts"][1]))
    u.run("route", "--k", "2", "l.npy=f32", "--experts", "e.npy", code=EQUAL)
    u.run("run", "route", "--k", "2", "--x", "x.npy=bf16", "--router", "w.npy=bf16", "--profile", "trn2",
          "--experts", "e.npy", code=EQUAL)
    # capacity, ranks: a rank has half of the experts and a part of y
    for rank in (0, 1):
        half = moe_case(u, "moe case", dispatch={"ranks": 2, "rank": rank})
        for name in ("g", "u", "d", "gb", "db"):
            shape, codes = read_npy(u.path(f"{name}.npy"), "bf16")
            part = len(codes) // 2
            write_npy(u.path(f"{name}.npy"), "bf16", [2, *shape[1:]], codes[rank * part:(rank + 1) * part])
        u.run("run", write_case(u, "half.json", half), "-o", f"y{rank}.npy", code=EQUAL)
    values = [[struct.unpack("<f", struct.pack("<I", c))[0] for c in read_npy(u.path(name), "f32")[1]]
              for name in ("y0.npy", "y1.npy", "y.npy")]
    u.check(all(abs(a + b - y) < 1e-2 for a, b, y in zip(*values)), "the ranks' parts add up")
    few = moe_case(u, "moe case", dispatch={"mode": "capacity", "capacity": 2})
    u.run("run", write_case(u, "few.json", few), "-o", "few.safetensors", code=EQUAL)
    u.run("verify", "few.safetensors", code=EQUAL)
    u.check(safetensor_codes(u.path("few.safetensors"), "y", "f32") != read_npy(u.path("y.npy"), "f32")[1],
            "a capacity drops tokens")
    # MXFP8 weights and quantised tokens
    mx = moe_case(u, "moe mx", width=64, middle=32, profile="trn3",
                  x={"how": "mx", "format": "e4m3fn", "rule": "floor_up1"},
                  inner={"how": "mx", "format": "e4m3fn", "rule": "floor_up1"})
    for name, to in (("g", "gate"), ("u", "up"), ("d", "down")):
        u.run("quantize", "--preset", "trn3", "--axis", "1", "--scale-out", f"{name}s.npy", f"{name}.npy=bf16",
              f"{name}8.npy", code=EQUAL)
        mx["tensors"][to] = {"file": f"{name}8.npy", "format": "e4m3fn", "scale": {"file": f"{name}s.npy"}}
    mx["tensors"]["router"]["file"] = "w.npy"
    u.run("run", write_case(u, "mx.json", mx), "-o", "mx.safetensors", code=EQUAL)
    u.run("verify", "mx.safetensors", code=EQUAL)
    # beside them a scale an expert: both are in the file
    write_npy(u.path("es.npy"), "f32", [4], [f32_code(v) for v in (2, 0.5, 1, 4)])
    mx["tensors"]["gate_scale"] = {"file": "es.npy", "format": "f32"}
    u.run("run", write_case(u, "mx2.json", mx), "-o", "mx2.safetensors", code=EQUAL)
    u.run("verify", "mx2.safetensors", code=EQUAL)
    u.check(safetensor_codes(u.path("mx2.safetensors"), "y", "f32") !=
            safetensor_codes(u.path("mx.safetensors"), "y", "f32"), "the scales of experts are read")


@unit("moe: a scale for every 128 x 128 of the weights")
def test_moe_blocks(u):
    # 448 and 112 in two blocks of 128 through an identity: the block scales 0.5 and 0.25 of gate, 2 of down; swiglu of
    # 224 and 28 is the number itself
    write_npy(u.path("x.npy"), "bf16", [1, 256], [0x43E0] * 128 + [0x42E0] * 128)
    write_npy(u.path("w.npy"), "e4m3fn", [1, 256, 256], [0x38 * (i // 256 == i % 256) for i in range(256 * 256)])
    write_npy(u.path("half.npy"), "f32", [1, 2, 2], [f32_code(v) for v in (0.5, 2, 8, 0.25)])
    write_npy(u.path("two.npy"), "f32", [1, 2, 2], [f32_code(2)] * 4)
    write_npy(u.path("e.npy"), "u32", [1, 1], [0])
    fp8 = {"how": "fp8_block", "format": "e4m3fn"}
    weights = {"file": "w.npy", "format": "e4m3fn"}
    case = {"op": "moe", "profile": "nv-hopper-wgmma", "x": fp8, "inner": fp8,
            "tensors": {"x": bf16_file("x.npy"), "experts": {"file": "e.npy"}, "gate": weights, "down": weights,
                        "gate_scale": {"file": "half.npy", "format": "f32"},
                        "down_scale": {"file": "two.npy", "format": "f32"}, "y": {"format": "bf16"}}}
    u.run("run", write_case(u, "hand.json", case), "-o", "y.npy", code=EQUAL)
    u.check(read_npy(u.path("y.npy"), "bf16")[1] == [0x43E0] * 128 + [0x4260] * 128, "by hand: 448 and 56")
    wrong = copy.deepcopy(case)
    wrong["tensors"]["gate_scale"]["file"] = "one.npy"
    write_npy(u.path("one.npy"), "f32", [1, 2], [f32_code(2)] * 2)
    u.refuses("scales of columns", ["run", write_case(u, "bad.json", wrong), "-o", "z.npy"], REFUSED,
              ["gate.scale has rank 2", "3"])
    # real numbers: each key is read, reported as it is and found by what it did
    draw = Draw("moe blocks")
    made = moe_case(u, "moe blocks", tokens=4, width=132, middle=130, profile="nv-hopper-wgmma", x=fp8, inner=fp8,
                    mlp={"middle": "f32", "expert_out": "f32"})
    for to, shape in (("gate", [4, 132, 130]), ("up", [4, 132, 130]), ("down", [4, 130, 132])):
        write_npy(u.path(f"{to}.npy"), "e4m3fn", shape, draw.codes("e4m3fn", math.prod(shape), -4, 1))
        write_npy(u.path(f"{to}s.npy"), "f32", [4, 2, 2], draw.codes("f32", 16, -5, -3))
        made["tensors"][to] = {"file": f"{to}.npy", "format": "e4m3fn"}
        made["tensors"][f"{to}_scale"] = {"file": f"{to}s.npy", "format": "f32"}
    text = u.run("run", write_case(u, "made.json", made), "-o", "m.safetensors", code=EQUAL).stdout
    for said in ("x.how=fp8_block(assumed)", "x.by=reciprocal(backed)", "inner.by=reciprocal(backed)",
                 "blocks.order=in_turn(backed)", "blocks.fused=no(assumed)"):
        u.check(said in text, f"the values: {said}: {text}")
    u.check("in_turn product" not in text and "quant.by" not in text, f"no list of choices: {text}")
    u.run("verify", "m.safetensors", code=EQUAL)
    got = stages_of(u, u.path("made.json"))
    u.check(sum(n for n, _ in got["gate", "multiply"]) > 4 and sum(n for n, _ in got["gate", "moe"]) > 4,
            f"a multiply for every 128 of K: {got}")
    for change, rule, among in (
            ({"blocks": {"order": "product"}}, "blocks.order=product", ()),
            ({"blocks": {"fused": True}}, "blocks.fused=yes", ()),
            ({"inner": {"by": "division"}}, "inner.by=division", ()),
            ({"x": {"by": "division"}}, "x.by=division", ())):
        other = {**made, **{key: {**made.get(key, {}), **value} for key, value in change.items()}}
        moe_explains(u, rule, other, made, rule, among)


def sampled(u, path, n, rows, name, code=EQUAL):
    """verify --sample of a case whose result `name` has so many rows; its report, checked against the whole's."""
    whole = u.json("verify", path, "--no-explain", "--max-report", "100000", code=code)["cases"][0]
    report = u.json("verify", path, "--sample", str(n), "--seed", "5", "--max-report", "100000", code=code)
    again = u.json("verify", path, "--sample", str(n), "--seed", "5", "--max-report", "100000", "--threads", "2",
                   code=code)
    case = report["cases"][0]
    of, all_ = case["results"][name], whole["results"][name]
    u.check(of["sample"] is True and of["elements"] == n * all_["elements"] // rows and "no_sample" not in case,
            f"{name}: {n} of {rows} rows: {of}")
    known = [json.dumps(m) for m in all_["mismatches"]]
    u.check(all(json.dumps(m) in known for m in of["mismatches"]), f"{name}: the whole's differences")
    u.check(case["results"] == again["cases"][0]["results"], "a seed repeats its sample, threads change nothing")
    return report


@unit("verify: samples of attention, routes and experts")
def test_block_sample(u):
    attention_files(u, "block sample", queries=40, keys=20)
    case = attention_case(causal=True)
    case["tensors"]["lse"] = {"format": "f32"}
    u.run("run", write_case(u, "case.json", case), "-o", "w.safetensors", code=EQUAL)
    sampled(u, "w.safetensors", 7, 80, "o")
    sampled(u, "w.safetensors", 79, 80, "lse")
    text = u.run("verify", "w.safetensors", "--sample", "7", code=EQUAL).stdout
    u.check("42 elements of o (a sample), 42 equal" in text and "7 elements of lse (a sample), 7 equal" in text,
            f"the text: {text}")
    text = u.run("verify", "w.safetensors", "--sample", "80", code=EQUAL).stdout
    u.check("480 elements of o, 480 equal" in text, f"a sample of everything: {text}")
    # another rule, found from the sample; a dump that is wrong in every row
    case["set"] = {"sum_source": "p"}
    u.run("run", write_case(u, "case.json", case), "-o", "w.safetensors", code=EQUAL)
    other = json.loads(json.dumps(case))
    del other["set"]
    for name in ("o", "lse"):
        other["tensors"][name] = {"file": "w.safetensors", "tensor": name, "format": "f32"}
    path = write_case(u, "other.json", other)
    best = findings(sampled(u, path, 9, 80, "o", DIFFERS))[0]
    u.check(best["rule"] == "sum_source=p" and best["explains"] == best["of"] > 0 and not best["breaks"],
            f"from a sample: {best}")
    # what only a whole call knows
    other["tensors"]["sum"] = {"format": "f32"}
    u.run("run", write_case(u, "sum.json", other), "-o", "s.safetensors", code=EQUAL)
    report = u.json("verify", "s.safetensors", "--sample", "3", code=EQUAL)["cases"][0]
    u.check("max and sum" in report["no_sample"] and report["results"]["o"]["sample"] is False and
            report["results"]["o"]["elements"] == 480, f"a whole call: {report}")
    text = u.run("verify", "s.safetensors", "--sample", "3", code=EQUAL).stdout
    u.check("no sample, all was computed: max and sum" in text, f"and the text: {text}")
    # tokens
    made = moe_case(u, "sample moe", tokens=30)
    u.run("run", write_case(u, "moe.json", made), "-o", "m.safetensors", code=EQUAL)
    sampled(u, "m.safetensors", 4, 30, "y")
    made["combine"] = {"sum": "bf16"}
    made["tensors"]["c"] = bf16_file("c.npy")
    u.run("run", write_case(u, "moe.json", made), "-o", "y.npy", code=EQUAL)
    del made["combine"]
    made["tensors"]["y"] = {"file": "y.npy", "format": "f32"}
    found = findings(sampled(u, write_case(u, "moe.json", made), 11, 30, "y", DIFFERS))
    u.check(found[0]["rule"] == "combine.sum=bf16" and found[0]["explains"] == found[0]["of"], f"tokens: {found[:3]}")
    few = moe_case(u, "sample moe", tokens=30, dispatch={"mode": "capacity", "capacity": 2})
    u.run("run", write_case(u, "few.json", few), "-o", "few.safetensors", code=EQUAL)
    report = u.json("verify", "few.safetensors", "--sample", "3", "--sensitivity", code=EQUAL)["cases"][0]
    u.check("capacity" in report["no_sample"] and report["sensitivity"]["elements"] == 480, f"a capacity: {report}")
    route = {"op": "route", "profile": "trn2", "router": {"k": 2},
             "tensors": {"x": bf16_file("x.npy"), "router": bf16_file("w.npy"), "experts": {},
                         "weights": {"format": "f32"}, "logits_out": {"format": "bf16"}}}
    u.run("run", write_case(u, "route.json", route), "-o", "r.safetensors", code=EQUAL)
    sampled(u, "r.safetensors", 6, 30, "experts")
    sampled(u, "r.safetensors", 6, 30, "logits_out")
    # operands that do not go together are refused as without a sample
    write_npy(u.path("e.npy"), "u32", [30, 2], [0, 1] * 30)
    told = moe_case(u, "sample moe", tokens=30)
    del told["tensors"]["router"], told["router"]
    told["tensors"].update(experts={"file": "e.npy"}, y={"file": "y.npy", "format": "f32"}, weights=bf16_file("db.npy"))
    for options in ([], ["--sample", "20"]):
        u.refuses("weights of other tokens", ["verify", *options, write_case(u, "told.json", told)], REFUSED,
                  ["weights is 4", "30"])


@unit("explain: every result of attention counts, and options that kernels get wrong")
def test_block_results(u):
    attention_files(u, "block results", queries=3, keys=60)
    read = attention_case(causal=True, window=20)
    read["tensors"]["lse"] = {"format": "f32"}
    u.run("run", write_case(u, "made.json", {**read, "set": {"sum_source": "p"}}), "-o", "w.safetensors", code=EQUAL)
    write_npy(u.path("lse.npy"), "f32", [1, 2, 3], [f32_code(1.0)] * 6)
    read["tensors"]["o"].update(file="w.safetensors", tensor="o")
    read["tensors"]["lse"].update(file="w.safetensors", tensor="lse")
    e = u.json("verify", write_case(u, "read.json", read), code=DIFFERS)["cases"][0]["explain"]
    u.check("sum_source=p" in [f["rule"] for f in e["findings"][:e["certain"]]], f"both results: {e['findings'][:2]}")
    read["tensors"]["lse"] = {"file": "lse.npy", "format": "f32"}
    e = u.json("verify", write_case(u, "read.json", read), code=DIFFERS)["cases"][0]["explain"]
    best = e["findings"][0]
    u.check(e["certain"] == 0 and best["rule"] == "sum_source=p" and best["of"] - best["explains"] == 6 and
            best["left"].startswith("lse [0, 0, 0] got "), f"a wrong lse: {best}")
    for what, change in (("no window", {"window": None}), ("a window one key narrower", {"window": 19}),
                         ("scale=1/d", {"scale": 1 / 16}), ("out round=rtz", {"out": {"round": "rtz"}})):
        read = attention_case(causal=True, window=20)
        read["tensors"]["o"]["format"] = "bf16"
        made = {k: v for k, v in {**read, **change}.items() if v is not None}
        u.run("run", write_case(u, "made.json", made), "-o", "o.npy", code=EQUAL)
        read["tensors"]["o"]["file"] = "o.npy"
        e = u.json("verify", write_case(u, "read.json", read), code=DIFFERS)["cases"][0]["explain"]
        u.check(what in [f["rule"] for f in e["findings"][:e["certain"]]], f"{what}: {e['findings'][:2]}")
    # more rules than are listed
    attention_files(u, "block results", queries=16, keys=2)
    u.run("attention", "run", "--schedule", "flash", *ATTENTION, "--to", "f32", "-o", "o.npy", "--set", "section=0",
          code=EQUAL)
    options = ["attention", "verify", "--schedule", "flash", *ATTENTION, "--set", "key_tile=1", "--set", "section=1",
               "--set", "o_format=q", "--dump", "o.npy=f32"]
    e = u.json(*options, code=DIFFERS)["cases"][0]["explain"]
    u.check(e["certain"] > len(e["findings"]) == 12, f"all are counted: {e['certain']}")
    u.check(f"verdict: {e['certain']} rules explain" in u.run(*options, code=DIFFERS).stdout, "and in the text")


def idle_parameters(u, path):
    """Parameters of the weakest evidence, and those of as weak a one that are left out there."""
    report = u.json("verify", path, "--sensitivity", code=EQUAL)["cases"][0]
    worst, named = re.fullmatch(r"weakest evidence: (\w+) \((.*)\)", report["evidence"]).groups()
    there = re.findall(r"(\S+)=\S*\(" + worst + r"\)", report["parameters"])
    idle = [name for name in there if name not in named.split()]
    for rule, n in report["sensitivity"]["notice"].items():
        u.check(rule.split("=")[0] not in idle or not n, f"{rule} is left out, but {n} elements notice it")
    return named.split(), idle


@unit("attention: what --o and --dump are, each where it is read")
def test_attention_roles(u):
    attention_files(u, "roles", queries=2, keys=20)
    base = ["--schedule", "flash", *ATTENTION]
    u.run("attention", "run", *base, "--to", "bf16", "-o", "good.npy", code=EQUAL)
    u.run("attention", "run", *base, "--causal", "--to", "bf16", "-o", "bad.npy", code=EQUAL)
    u.run("attention", "verify", *base, "--dump", "bad.npy=bf16", code=DIFFERS)
    for what, arguments, words in (
            ("o beside a dump", ["verify", *base, "--dump", "bad.npy=bf16", "--o", "good.npy=bf16"], ["--o ", "--dout"]),
            ("o alone", ["verify", *base, "--o", "good.npy=bf16"], ["--o ", "--dump"]),
            ("o of run", ["run", *base, "--o", "good.npy=bf16", "--to", "bf16", "-o", "z.npy"], ["--o ", "--dout"]),
            ("dump of run", ["run", *base, "--dump", "bad.npy=bf16", "--to", "bf16", "-o", "z.npy"], ["--dump", "verify"]),
            ("dump of gradients", ["verify", *base, "--dout", "bad.npy=bf16", "--dump", "bad.npy=bf16"], ["--dump"]),
            ("format of a dump", ["verify", *base, "--dump", "bad.npy=bf16", "--to", "f32"], ["--to", "dump"])):
        u.refuses(what, ["attention", *arguments], USAGE, words)


@unit("attention: how far dump, oracle and truth lie apart")
def test_attention_truth(u):
    attention_files(u, "truth", queries=2, keys=20)
    base = [*ATTENTION, "--causal"]
    u.run("attention", "run", "--schedule", "flash", *base, "--to", "bf16", "-o", "o.npy", code=EQUAL)
    u.run("attention", "run", "--schedule", "exact", *base[2:], "--to", "f32", "-o", "e.npy", code=EQUAL)
    shape, codes = read_npy(u.path("o.npy"), "bf16")
    places = [0, 7, len(codes) - 1]
    for p in places:
        codes[p] ^= 4
    write_npy(u.path("o.npy"), "bf16", shape, codes)
    exact, f = read_npy(u.path("e.npy"), "f32")[1], FORMATS["f32"]
    found = u.json("attention", "verify", "--schedule", "flash", *base, "--dump", "o.npy=bf16",
                   code=DIFFERS)["cases"][0]["results"]["o"]["mismatches"]
    u.check(len(found) == len(places) and all(m["codes"] == 4 for m in found), f"distances: {found}")
    for m, p in zip(found, places):
        u.check(float.fromhex(m["exact"].split("(")[1].rstrip(")")) == f.decode(exact[p]), f"{p}: {m['exact']}, wanted {f.decode(exact[p])}")
    text = u.run("attention", "verify", "--schedule", "flash", *base, "--dump", "o.npy=bf16", code=DIFFERS).stdout
    u.check(text.count("exact result ") == 3 and text.count("4 codes apart") == 3, f"the text: {text}")


@unit("verify: the evidence of conversions")
def test_conversion_evidence(u):
    quantize_source(u, [4, 64])
    for options, line in ((["--preset", "trn3"], "rule=floor_up1(documented) special=element(assumed) round=rne"),
                          (["--to", "e4m3fn", "--rule", "even", "--special", "from_exponent", "--round", "rtz"],
                           "rule=even(backed) special=from_exponent(backed) round=rtz")):
        text = u.run("quantize", *options, "x.npy=f32", "q.safetensors", code=EQUAL).stdout
        u.check(line in text, f"quantize: {text}")
        u.check(line in u.run("verify", "q.safetensors", code=EQUAL).stdout, "verify's text")
        u.check(u.json("verify", "q.safetensors", code=EQUAL)["cases"][0]["parameters"] == line, "and JSON")
    write_npy(u.path("w.npy"), "u32", [4, 64], list(range(256)))
    text = u.run("convert", "--to", "e5m2", "--round", "sr", "--words", "w.npy", "x.npy=f32", "y.npy", code=EQUAL).stdout
    u.check("round=sr sr=a(assumed) sr_bits=32(assumed) overflow=" in text, f"convert: {text}")


@unit("profiles: a case, or the command line, sets parameters")
def test_set(u):
    right = MULTIPLIES["wgmma"](u).json
    chip_output(u, right, rule("fp8", promote_every=4))
    right["tensors"]["d"]["file"] = "d.npy"
    path = write_case(u, "case.json", right)
    u.run("verify", path, code=DIFFERS)
    one = u.json("verify", path, "--set", "fp8.promote_every=4", code=EQUAL)["cases"][0]
    u.check(one["profile"] == "nv-hopper-wgmma+set" and "promote_every=4" in one["profile_line"] and
            one["evidence"] == "weakest evidence: assumed (promote_every)", f"{one['profile_line']} {one['evidence']}")
    for value in (4, "4"):
        made = {**right, "profile": {"name": "nv-hopper-wgmma", "set": {"fp8.promote_every": value}}}
        u.run("verify", write_case(u, "said.json", made), code=EQUAL)
    u.run("verify", path, "--set", "fp8.promote_every=2", "--set", "fp8.promote_every=4", code=EQUAL)
    u.run("run", path, "--set", "fp8.promote_every=4", "-o", "o.safetensors", code=EQUAL)
    u.run("verify", "o.safetensors", code=EQUAL)
    u.run("run", "gemm", "--profile", "nv-hopper-wgmma", "--set", "fp8.promote_every=4", "--a", "a.npy=e4m3fn", "--b",
          "b.npy=e4m3fn", "--c", "c.npy=f32", "--to", "f32", "-o", "o.npy", code=EQUAL)
    u.check(read_npy(u.path("o.npy"), "f32") == read_npy(u.path("d.npy"), "f32"), "run gemm --set")
    for bad, words in (("fp9.frac=3", "no such rule; wanted: f16 bf16 tf32 fp8"), ("fp8.fracs=3", "'fracs' is no parameter"),
                       ("fp8.frac=x", "'x' is no value of it; wanted: an integer"),
                       ("fp8.sum=x", "'x' is no value of it; wanted: align exact pairwise"),
                       ("fp8.floor_f32=x", "wanted: none, or an integer"), ("fp8.nan_f32=x", "as 0x7FC00000"), ("fp8.frac=99", "frac is 99; wanted: 1 to 54")):
        text = u.run("verify", path, "--set", bad, code=FILE).stderr
        u.check(words in text, f"{bad}: {text}")
    for bad in ("frac=3", "fp8.frac", ""):
        u.check("wanted: RULE.KEY=VALUE" in u.run("verify", path, "--set", bad, code=USAGE).stderr, bad)
    text = u.run("verify", "--dumps", "--set", "fp8.frac=3", "d.npy=f32", "d.npy=f32", code=USAGE).stderr
    u.check("--set says nothing to --dumps" in text, text)
    text = u.run("run", "convert", "--src", "c.npy=f32", "--to", "bf16", "--set", "a.b=1", "-o", "o.npy", code=USAGE).stderr
    u.check("--set says nothing to run convert" in text, text)
    for bad, words in (({"set": {"fp8.frac": 12}}, "none of"), ({"name": "nv-hopper", "text": "x"}, "several of"),
                       ({"name": "nv-hoppe"}, "no built-in profile"), ({"name": "nv-hopper", "set": [1]}, "no object"),
                       ({"name": "nv-hopper", "set": {"fp8.frac": 1.5}}, "neither a string nor an integer")):
        text = u.run("verify", write_case(u, "bad.json", {**right, "profile": bad}), code=FILE).stderr
        u.check(words in text, f"{bad}: {text}")


@unit("case files: what stands outside of the cases")
def test_case_file_keys(u):
    made = make_sparse(u).json
    with open(u.path("flat.json"), "w", encoding="utf-8") as file:
        json.dump({"schema": "ng.case/1", **made}, file)
    text = u.run("verify", u.path("flat.json"), code=3).stderr
    u.check("no key of the case file; wanted: schema cases comment" in text and "case 0" not in text, text)


@unit("verify: the evidence of sparse operands, and of f16 results")
def test_sparse_evidence(u):
    made = make_sparse(u).json
    made["profile"] = "nv-ampere"
    for t in ("a", "b"):
        shape, codes = read_npy(u.path(f"{t}.npy"), made["tensors"][t]["format"])
        write_npy(u.path(f"{t}16.npy"), "f16", shape, [c & 0x3FFF for c in codes])
        made["tensors"][t].update(file=f"{t}16.npy", format="f16")
    for what, words in (("sparse", "out_zero sparse_k)"), ("dense", "out_zero)")):
        if what == "dense":
            made["tensors"]["a"] = {"file": "b16.npy", "format": "f16"}
            made["tensors"]["b"] = {"file": "t.npy", "format": "f16"}
            shape, codes = read_npy(u.path("b16.npy"), "f16")
            write_npy(u.path("t.npy"), "f16", shape[::-1], codes)
        u.run("run", write_case(u, "case.json", made), "-o", "o.safetensors", code=EQUAL)
        evidence = u.json("verify", "o.safetensors", code=EQUAL)["cases"][0]["evidence"]
        u.check(words in evidence and "f16" not in evidence, f"{what}: {evidence}")


@unit("moe: evidence is of the value, not of the key")
def test_moe_evidence(u):
    made = moe_case(u, "evidence")

    def line(**more):
        return u.json("run", write_case(u, "case.json", {**made, **more}), "-o", "o.npy", code=EQUAL)["parameters"]
    for text, more in (("combine.sum=f32(assumed)", {}), ("combine.sum=bf16(backed)", {"combine": {"sum": "bf16"}}),
                       ("mlp.accumulate=f32(backed)", {}), ("activation.biased=f32(assumed)", {}),
                       ("activation.biased=bf16(backed)", {"activation": {"biased": "bf16"}})):
        u.check(f" {text} " in f" {line(**more)} ", f"{text}: {line(**more)}")


@unit("verify: the weakest evidence is of what can change the case")
def test_weakest(u):
    attention_files(u, "weakest", queries=2, keys=140)

    def of(what, case, named, idle):
        u.run("run", write_case(u, "case.json", case), "-o", "w.safetensors", code=EQUAL)
        got = idle_parameters(u, "w.safetensors")
        u.check(set(named) <= set(got[0]) and set(idle) <= set(got[1]), f"{what}: {got}")
    plain = {"schedule": "trn-prefill", "profile": "trn2"}
    of("attention", attention_case(**plain), ["exp", "reciprocal"], ["cap_argument", "tanh", "update"])
    of("a cap", attention_case(**plain, softcap=5), ["cap_argument", "tanh"], ["update"])
    of("flash", attention_case(), ["update", "o_format"], ["mask", "skip_keys", "statistics", "mx_rule", "sink_place"])
    of("causal", attention_case(causal=True), ["mask", "skip_keys"], ["statistics"])
    case = moe_case(u, "weakest")
    of("experts", case, ["router.exp", "combine.product"],
       ["activation.tanh", "router.sigmoid", "mlp.double_row", "dispatch.rank"])
    text = u.run("run", u.path("case.json"), "-o", "z.npy", code=EQUAL).stdout
    u.check("backward" not in text, f"a forward call has no backward: {text}")
    case = moe_case(u, "weakest", activation={"act": "gelu"}, combine={"fused": True},
                    router={"act": "sigmoid", "normalise": True, "normalise_by": "division"})
    of("other choices", case, ["activation.tanh", "router.sigmoid"],
       ["router.exp", "router.reciprocal", "activation.sigmoid", "combine.product"])


@unit("verify: what attention, routes and experts would notice")
def test_block_sensitivity(u):
    attention_files(u, "block sensitivity", queries=2, keys=140)
    case = attention_case(causal=True)
    u.run("run", write_case(u, "case.json", case), "-o", "w.safetensors", code=EQUAL)
    notice = u.json("verify", "w.safetensors", "--sensitivity", code=EQUAL)["cases"][0]["sensitivity"]
    u.check(notice["elements"] == 24 and notice["all"] is True, f"of all: {notice}")
    u.check(notice["notice"]["no scale"] > 20 and notice["notice"]["rows that see nothing the other way"] == 0 and
            notice["notice"]["sum_source=p"] > 0, f"the counts: {notice}")
    text = u.run("verify", "w.safetensors", "--sensitivity", code=EQUAL).stdout
    u.check("sensitivity: elements of 24 that would notice a wrong rule" in text and
            re.search(r"(?m)^  no scale +\d+$", text), f"the text: {text}")
    # each count is what the rule changes, computed apart
    right = safetensor_codes(u.path("w.safetensors"), "o", "f32")
    for fault in ("sum_source=p", "p_format=f16", "normalise=divide", "section=256"):
        key, value = fault.split("=")
        u.run("run", write_case(u, "wrong.json", {**case, "set": {key: value}}), "-o", "o.npy", code=EQUAL)
        wrong = read_npy(u.path("o.npy"), "f32")[1]
        u.check(notice["notice"].get(fault, -1 if right != wrong else 0) == sum(a != b for a, b in zip(right, wrong)),
                f"{fault}: {notice['notice'].get(fault)}")
    notice = u.json("verify", "w.safetensors", "--sensitivity", "--sample", "3", code=EQUAL)["cases"][0]["sensitivity"]
    u.check(notice["elements"] == 18 and notice["all"] is False, f"of a sample: {notice}")
    # a wrong dump changes nothing of it; nor does what a sample of a multiply finds
    u.run("example", "--fault", "lanes", u.path("faulty.safetensors"))
    u.run("example", u.path("right.safetensors"))
    both_ = [u.json("verify", u.path(name), "--sensitivity", "--no-explain", "--sample", "300")["cases"][0]
             for name in ("faulty.safetensors", "right.safetensors")]
    u.check(0 < both_[0]["elements"]["differ"] < 300 and
            both_[0]["sensitivity"]["elements"] == 300 - both_[0]["elements"]["differ"] and
            all(n <= both_[1]["sensitivity"]["notice"][r] for r, n in both_[0]["sensitivity"]["notice"].items()),
            "of a multiply's sample the differing elements stay out")
    made = moe_case(u, "block sensitivity")
    u.run("run", write_case(u, "moe.json", made), "-o", "m.safetensors", code=EQUAL)
    notice = u.json("verify", "m.safetensors", "--sensitivity", code=EQUAL)["cases"][0]["sensitivity"]
    u.check(notice["elements"] == 144 and notice["all"] is True and notice["notice"]["activation.act=gelu"] > 100 and
            notice["notice"]["combine.order=rank"] == 0 and notice["notice"]["no down_bias"] > 100,
            f"of a mixture: {notice}")
    # gradients: the whole
    draw = Draw("dout")
    write_npy(u.path("do.npy"), "bf16", [1, 2, 2, 6], draw.codes("bf16", 24, -4, 0))
    u.run("attention", "run", "--schedule", "flash", *ATTENTION, "--causal", "--to", "bf16", "-o", "o.npy", "--lse",
          "lse.npy", code=EQUAL)
    back = attention_case("attention_backward", causal=True)
    back["tensors"].update(o=bf16_file("o.npy"), dout=bf16_file("do.npy"), lse={"file": "lse.npy", "format": "f32"},
                           dq={"format": "f32"})
    u.run("run", write_case(u, "back.json", back), "-o", "b.safetensors", code=EQUAL)
    report = u.json("verify", "b.safetensors", "--sensitivity", "--sample", "2", code=EQUAL)["cases"][0]
    u.check("gradient" in report["no_sample"] and report["sensitivity"]["all"] is True and
            report["sensitivity"]["notice"]["no scale"] > 50, f"gradients: {report}")


def pair_explains(u, what, made, read, result, rules):
    """A dump under two other rules: both together are all that explains everything."""
    u.run("run", write_case(u, "made.json", made), "-o", "pair.npy", code=EQUAL)
    other = json.loads(json.dumps(read))
    other["tensors"][result] = {"file": "pair.npy", "format": made["tensors"][result]["format"]}
    path = write_case(u, "read.json", other)
    found = findings(u.json("verify", path, code=DIFFERS))
    certain = [set(f["rule"].split(", ")) for f in found if f["explains"] == f["of"] > 0 and not f["breaks"]]
    u.check(set(rules) in certain and all(len(c) == 2 for c in certain), f"{what}: {found[:4]}")
    u.check(len({frozenset(c) for c in certain}) == len(certain), f"{what}: each pair once: {certain}")
    text = u.run("verify", path, code=DIFFERS).stdout
    u.check("breaks 0/" in text and ("explains every difference and breaks nothing" in text or
                                     "does not tell them apart" in text), f"{what}: {text[-300:]}")


@unit("explain: two rules at once of attention, routes and experts")
def test_block_pairs(u):
    attention_files(u, "block pairs", queries=3, keys=50)
    read = attention_case(causal=True)
    pair_explains(u, "two parameters", {**read, "set": {"sum_source": "p", "normalise": "divide"}}, read, "o",
                  ["sum_source=p", "normalise=divide"])
    pair_explains(u, "an option and a parameter", {**attention_case(), "set": {"sum_source": "p"}}, read, "o",
                  ["causal the other way", "sum_source=p"])
    pair_explains(u, "no single rule explains anything", {**read, "scale": "none", "set": {"p_format": "f16"}}, read,
                  "o", ["no scale", "p_format=f16"])
    made = moe_case(u, "moe pairs", router={"k": 3})
    pair_explains(u, "two of a mixture", {**made, "combine": {"sum": "bf16"}, "mlp": {"expert_out": "f32"}}, made, "y",
                  ["combine.sum=bf16", "mlp.expert_out=f32"])
    no_bias = json.loads(json.dumps(made))
    del no_bias["tensors"]["down_bias"]
    pair_explains(u, "a bias and a rule", {**no_bias, "combine": {"product": "bf16"}}, made, "y",
                  ["no down_bias", "combine.product=bf16"])
    route = {"op": "route", "profile": "trn2", "router": {"k": 3, "order": "act_then_topk", "normalise": True},
             "tensors": {"x": bf16_file("x.npy"), "router": bf16_file("w.npy"), "weights": {"format": "f32"}}}
    pair_explains(u, "two of a route", {**route, "router": {**route["router"], "score": "bf16",
                                                            "normalise_by": "division"}}, route, "weights",
                  ["router.score=bf16", "router.normalise_by=division"])
    # gradients, which are computed whole
    draw = Draw("dout")
    write_npy(u.path("do.npy"), "bf16", [1, 2, 3, 6], draw.codes("bf16", 36, -4, 0))
    u.run("attention", "run", "--schedule", "flash", *ATTENTION, "--to", "bf16", "-o", "o.npy", "--lse", "lse.npy",
          code=EQUAL)
    back = attention_case("attention_backward")
    back["tensors"].update(o=bf16_file("o.npy"), dout=bf16_file("do.npy"), lse={"file": "lse.npy", "format": "f32"},
                           dq={"format": "f32"})
    pair_explains(u, "gradients", {**back, "causal": True, "set": {"score_format": "bf16"}}, back, "dq",
                  ["causal the other way", "score_format=bf16"])


@unit("moe: what explains a dump")
def test_moe_explain(u):
    act_all = ["router.order=act_all"]
    read = moe_case(u, "moe explain")
    for what, change, rule, among in (
            ("top-k after the activation", {"router": {"order": "act_then_topk"}}, "router.order=act_then_topk",
             act_all),
            ("a bf16 combine", {"combine": {"sum": "bf16"}}, "combine.sum=bf16", ()),
            ("a bf16 product", {"combine": {"product": "bf16"}}, "combine.product=bf16", ()),
            ("bf16 from gate and up", {"mlp": {"hidden": "bf16"}}, "mlp.hidden=bf16", ["mlp.accumulate=bf16"]),
            ("bf16 scores", {"router": {"score": "bf16"}}, "router.score=bf16", ["router.weights=bf16"]),
            ("f32 from experts", {"mlp": {"expert_out": "f32"}}, "mlp.expert_out=f32", ()),
            ("affinity inside", {"mlp": {"affinity": "inside"}}, "mlp.affinity=inside", ()),
            ("gelu", {"activation": {"act": "gelu"}}, "activation.act=gelu", ())):
        moe_explains(u, what, moe_case(u, "moe explain", **change), read, rule, among)
    three = {"k": 3}  # of two terms the order does not matter
    moe_explains(u, "the other order of the sum", moe_case(u, "moe explain", router=three,
                                                           combine={"order": "rank"}),
                 moe_case(u, "moe explain", router=three), "combine.order=rank")
    made = moe_case(u, "moe explain")
    made["tensors"]["gate"], made["tensors"]["up"] = made["tensors"]["up"], made["tensors"]["gate"]
    del made["tensors"]["gate_bias"]
    made["tensors"]["up_bias"] = bf16_file("gb.npy")
    moe_explains(u, "exchanged", made, read, "gate and up exchanged")
    del read["tensors"]["down_bias"]
    moe_explains(u, "no bias", read, moe_case(u, "moe explain"), "no down_bias")
    # ties: experts 0 and 3 have the same column, so the same logits
    for order in ("topk_then_act", "act_then_topk"):
        read = moe_case(u, "moe ties", router={"k": 1, "order": order})
        shape, w = read_npy(u.path("w.npy"), "bf16")
        w = [w[i - 3] if i % 4 == 3 else w[i] for i in range(len(w))]
        write_npy(u.path("w.npy"), "bf16", shape, w)
        route = {"op": "route", "profile": "trn2", "router": {"k": 1, "order": order},
                 "tensors": {"x": bf16_file("x.npy"), "router": bf16_file("w.npy"), "experts": {},
                             "weights": {"format": "f32"}}}
        u.run("run", write_case(u, "route.json", route), "-o", "r.safetensors", code=EQUAL)
        _, tensors = read_safetensors(u.path("r.safetensors"))
        chosen = unpack("u32", tensors["experts"][1])
        u.check(0 in chosen and 3 not in chosen, "there are ties")
        write_npy(u.path("e.npy"), "u32", [9, 1], [3 if e == 0 else e for e in chosen])
        route["tensors"]["experts"] = {"file": "e.npy"}
        route["tensors"]["weights"] = {"file": "r.safetensors", "tensor": "weights", "format": "f32"}
        text = u.run("verify", write_case(u, "route.json", route), code=DIFFERS).stdout
        u.check('ties="higher index first"' in text.split("explain:")[1] and "breaks 0/" in text, f"ties: {text}")
        told = json.loads(json.dumps(read))
        del told["tensors"]["router"], told["router"]
        told["tensors"].update(experts={"file": "e.npy"}, weights=route["tensors"]["weights"])
        moe_explains(u, f"ties of {order}", told, read, 'ties="higher index first"')


@unit("moe: bad cases")
def test_moe_bad(u):
    def bad(what, code, words, **more):
        drop = more.pop("drop", ())
        tensors = more.pop("tensors", {})
        beside = more.pop("beside", None)
        case = moe_case(u, "moe bad", **more)
        case["tensors"].update(tensors)
        for name in drop:
            case["tensors"].pop(name, None)
            case.pop(name, None) if name != "router" else None
        if "router" in drop and "experts" in tensors:
            del case["router"]
        if "k" in drop:
            del case["router"]["k"]
        if beside:
            case["router"] = beside
        u.refuses(what, ["run", write_case(u, "bad.json", case), "-o", "z.npy"], code, words)
        u.check(not os.path.exists(u.path("z.npy")), f"{what}: nothing is written")
    bad("k of zero", FILE, ["router.k is 0; wanted: at least 1"], router={"k": 0})
    bad("no k", FILE, ["k", "preset"], drop=["k"])
    bad("unknown order", FILE, ["order", "'any'", "act_then_topk"], router={"order": "any"})
    bad("unknown key", FILE, ["'top'", "router"], router={"top": 2})
    bad("unknown object", FILE, ["'gemm'", "moe"], gemm={"accumulate": "f32"})
    bad("unknown preset", FILE, ["'gpt'", "mixtral-8x7b"], preset="gpt")
    bad("no such format", FILE, ["middle", "'f8'", "bf16"], mlp={"middle": "f8"})
    bad("eps", FILE, ["eps"], router={"eps": "small"})
    bad("normalise", FILE, ["normalise"], router={"normalise": "yes"})
    bad("neither router nor experts", FILE, ["neither"], drop=["router"])
    bad("no gate", FILE, ["\"gate\""], drop=["gate"])
    bad("no x", FILE, ["x is missing"], drop=["x"])
    bad("no profile", FILE, ["profile"], drop=["profile"])
    bad("more than there are", REFUSED, ["5", "4"], router={"k": 5})
    write_npy(u.path("e.npy"), "u32", [9, 2], [0, 1] * 8 + [0, 9])
    bad("an expert out of range", REFUSED, ["9"], drop=["router"], tensors={"experts": {"file": "e.npy"}})
    bad("both", FILE, ["both"], tensors={"experts": {"file": "e.npy"}})
    write_npy(u.path("e.npy"), "u32", [4, 2], [0, 1] * 4)
    bad("experts of other tokens", FILE, ["4 rows", "9"], drop=["router"], tensors={"experts": {"file": "e.npy"}})
    write_npy(u.path("e.npy"), "u32", [9, 2], [0, 1] * 8 + [0, 9])
    # what would not be read
    table = {"file": "table.npy", "format": "bf16"}
    write_npy(u.path("table.npy"), "bf16", [65536], [0] * 65536)
    told = {"drop": ["router"], "tensors": {"experts": {"file": "e.npy"}}}
    for what, words, beside in (("k beside experts", ["\"router\" is not read beside experts"], {"k": 2}),
                                ("normalise beside experts", ["router"], {"normalise": True})):
        bad(what, FILE, words, **copy.deepcopy(told), beside=beside)
    for name, file in (("router_bias", "gb.npy"), ("correction", "gb.npy"), ("exp_table", "table.npy"),
                       ("reciprocal_table", "table.npy"), ("sigmoid_table", "table.npy")):
        case = copy.deepcopy(told)
        case["tensors"][name] = bf16_file(file)
        bad(f"{name} beside experts", FILE, [f"{name} is not read"], **case)
    bad("weights beside a router", FILE, ["weights is not read beside a router"], tensors={"weights": bf16_file("x.npy")})
    for name, key in (("exp_table", "router.exp"), ("sigmoid_table", "activation.sigmoid"),
                      ("reciprocal_table", "router.reciprocal"), ("tanh_table", "activation.tanh")):
        bad(f"{name} of no table", FILE, [f"{name} is not read; it wants", f"{key} table"], tensors={name: table})
    for name in ("up_bias", "up_scale"):
        bad(f"{name} without up", FILE, [f"{name} is given but up is not"], drop=["up"], tensors={name: bf16_file("gb.npy")})
    for what, words, more in (
            ("a capacity without the mode", ["dispatch.capacity is not read", "mode capacity"],
             {"dispatch": {"capacity": 2}}),
            ("a factor without the mode", ["dispatch.factor is not read", "mode capacity"], {"dispatch": {"factor": 1.5}}),
            ("both of a capacity", ["dispatch.factor is not read", "no capacity"],
             {"dispatch": {"mode": "capacity", "capacity": 2, "factor": 1.5}}),
            ("a block of a capacity", ["dispatch.block is not read", "mode dropless"],
             {"dispatch": {"mode": "capacity", "capacity": 2, "block": 16}}),
            ("a rule of no blocks", ["x.rule is not read", "how mx"],
             {"x": {"how": "fp8_row", "format": "e4m3fn", "rule": "floor"}}),
            ("division of nothing", ["inner.by is not read", "fp8_row or fp8_block"], {"inner": {"by": "division"}}),
            ("blocks of none", ["blocks.order is not read", "fp8_block"], {"blocks": {"order": "product"}}),
            ("a limit of zero", ["activation.limit is 0 in FP32", "none for 7"], {"activation": {"limit": 0}}),
            ("an alpha of nothing", ["activation.alpha is 0 in FP32", "1.702"], {"activation": {"alpha": 1e-60}}),
            ("a factor of zero", ["router.scale is 0 in FP32"], {"router": {"scale": 0}}),
            ("ranks of zero", ["dispatch.ranks is 0; wanted: another number"], {"dispatch": {"ranks": 0}}),
            ("a capacity of zero", ["dispatch.capacity is 0"], {"dispatch": {"mode": "capacity", "capacity": 0}}),
            ("experts of one rank", ["router has 4 columns; wanted: 8", "2 ranks"], {"dispatch": {"ranks": 2}})):
        bad(what, FILE, words, **more)
    u.run("run", write_case(u, "zero.json", moe_case(u, "moe bad", router={"normalise": True, "eps": 0, "groups": 0})), "-o",
          "z.npy", code=EQUAL)
    os.remove(u.path("z.npy"))
    bad("rank of weights", FILE, ["down", "[experts, K, N]"], tensors={"down": bf16_file("x.npy")})
    route = {"op": "route", "router": {"k": 2}, "tensors": {"logits": bf16_file("x.npy"), "experts": {}}}
    for what, change, words in (
            ("no results", {"tensors": {"logits": bf16_file("x.npy")}}, ["neither experts nor weights"]),
            ("no logits", {"tensors": {"experts": {}}}, ["x is missing", "router"]),
            ("keys of a moe", {"mlp": {}}, ["'mlp'", "route"]),
            ("a multiply of none", {"router": {"k": 2, "accumulate": "bf16"}}, ["router.accumulate is not read"]),
            ("a table of no function", {"tensors": {**route["tensors"], "exp_table": table}},
             ["exp_table is not read; it wants router.exp table"])):
        u.refuses(what, ["run", write_case(u, "route.json", {**route, **change}), "-o", "z.npy"], FILE, words)
    u.run("run", write_case(u, "route.json", route), "-o", "z.npy", code=EQUAL)
    u.check(read_npy(u.path("z.npy"), "u32")[0] == [9, 2], "experts alone")


# ---------------------------------------------------------------------------------------------
# Names of files.

@unit("files: long names, and '=' in a name")
def test_file_names(u):
    deep = "/".join(["d" * 200] * 6)
    os.makedirs(u.path(deep))
    os.makedirs(u.path("layer=1"))
    write_npy(u.path("s.npy"), "bf16", [2, 2], [0x3F80, 0x4000, 0x4040, 0x4080])
    for name in (deep + "/s.npy", "layer=1/s.npy", "s=1.npy"):
        u.run("convert", "--to", "bf16", "s.npy=bf16", name, code=EQUAL)
        for at in (name, name + "=bf16"):  # the sidecar says it, or the command line
            u.run("convert", "--to", "f32", at, "w.npy", code=EQUAL)
            u.run("function", "exp", at, "w.npy", code=EQUAL)
            u.run("route", "--k", "1", at, code=EQUAL)
        u.run("run", "convert", "--src", name + "=bf16", "--to", "f32", "-o", "w.npy", code=EQUAL)
        u.run("attention", "run", "--schedule", "exact", "--q", name, "--k", name, "--v", name, "--to", "f32",
              "-o", "w.npy", code=REFUSED)  # read, but of rank 2
    u.run("example", u.path("right"), code=EQUAL)
    shutil.move(u.path("right"), u.path(deep + "/right"))
    u.run("verify", deep + "/right", code=EQUAL)
    u.refuses("a long name of nothing", ["verify", deep + "/wrong"], FILE, ["wrong/case.json"])
    u.run("route", "--k", "1", "layer=1/s.npy", "--experts-out", "layer=1/e.npy", code=EQUAL)
    u.run("route", "--k", "1", "layer=1/s.npy", "--experts", "layer=1/e.npy", code=EQUAL)
    u.refuses("no format", ["convert", "--to", "f32", "s.npy=bf17", "w.npy"], USAGE, ["bf17"])


@unit("files: a raw spec is of raw files")
def test_idle_spec(u):
    write_npy(u.path("a.npy"), "bf16", [4, 4], [0x3F80] * 16)
    write_npy(u.path("q.npy"), "bf16", [1, 1, 2, 4], [0x3F80] * 8)
    write_npy(u.path("e8.npy"), "e8m0", [4, 1], [127] * 4)
    write_npy(u.path("words.npy"), "u32", [4, 1], [0] * 4)
    write_safetensors(u.path("a.safetensors"), {"x": ("BF16", [4, 4], bytes(32))})
    quantize = ["--rule", "floor", "--scale-out", "s.bin"]
    attention = ["--schedule", "exact", "--q", "q.npy=bf16", "--k", "q.npy=bf16", "--v"]
    for file in ("a.npy", "a.safetensors"):
        for spec in ("bf16:9x9@4", "bf16:4x4", "bf16:junk"):
            name = f"{file}={spec}"
            for what, arguments in (
                    ("convert", ["convert", "--to", "f32", name, "z.npy"]),
                    ("run convert", ["run", "convert", "--src", name, "--to", "f32", "-o", "z.npy"]),
                    ("run gemm", ["run", "gemm", "--profile", "trn2", "--a", "a.npy=bf16", "--b", name, "--to", "f32",
                                  "-o", "z.npy"]),
                    ("quantize", ["quantize", "--to", "e4m3fn", *quantize, name, "z.npy"]),
                    ("dequantize", ["dequantize", "--to", "f32", "--scale", "e8.npy", name, "z.npy"]),
                    ("attention", ["attention", "run", *attention, name, "--to", "f32", "-o", "z.npy"]),
                    ("a dump of attention", ["attention", "verify", *attention, "q.npy=bf16", "--dump", name]),
                    ("route", ["route", "--k", "2", name]),
                    ("experts", ["route", "--k", "2", "a.npy=bf16", "--experts", name]),
                    ("function", ["function", "exp", name, "z.npy"]),
                    ("sparsify", ["sparsify", "prune", name, "z.npy"]),
                    ("a layer", ["run", "layer", "--preset", "gpt-oss-tiny", "--input", name])):
                u.refuses(f"{what} of {name}", arguments, USAGE, [file, spec, "its own shape"])
    u.refuses("scales of a multiply", ["attention", "run", *attention, "q.npy=bf16", "--q-scale", "e8.npy=e8m0:junk",
                                       "--to", "f32", "-o", "z.npy"], USAGE, ["e8.npy", "e8m0:junk"])
    u.refuses("a name of a tensor", ["function", "exp", "--tensor", "zz", "a.npy=bf16", "z.npy"], USAGE,
              ["--tensor zz", "a.npy", ".safetensors"])
    u.refuses("a raw file of no shape", ["convert", "--to", "f32", "a.npz=bf16", "z.npy"], USAGE,
              ["a.npz", "raw spec", "bf16:DIMxDIM"])
    u.refuses("integers of another width", ["sparsify", "tags", "words.npy=u16"], FILE, ["words.npy", "u32", "u16"])
    u.check(not os.path.exists(u.path("z.npy")), "something was written")

    def case(**keys):
        return write_case(u, "c.json", {"op": "convert", "tensors": {"src": {"format": "bf16", **keys},
                                                                     "dst": {"format": "f32"}}})
    with open(u.path("a.bin"), "wb") as file:
        file.write(bytes(32))
    for what, keys, words in (
            ("junk", {"file": "a.npy", "raw": "junk"}, ["a.npy", "junk", "its own shape"]),
            ("another shape", {"file": "a.npy", "raw": "bf16:4x64"}, ["a.npy", "bf16:4x64"]),
            ("a spec of safetensors", {"file": "a.safetensors", "raw": "bf16:4x4"}, ["a.safetensors", "bf16:4x4"]),
            ("a tensor of a .npy", {"file": "a.npy", "tensor": "x"}, ["'x'", "a.npy", ".safetensors"]),
            ("a tensor of a raw file", {"file": "a.bin", "tensor": "x", "raw": "bf16:4x4"}, ["'x'", "a.bin"]),
            ("a shape beside it", {"file": "a.bin", "raw": "bf16:4x4", "shape": [2, 8]}, ["shape", "bf16:4x4"])):
        u.refuses(what, ["run", case(**keys), "-o", "z.npy"], FILE, ["src", *words])
    u.run("run", case(file="a.bin", raw="bf16:4x4"), "-o", "z.npy", code=EQUAL)
    u.run("run", case(file="a.npy", shape=[2, 8]), "-o", "z.npy", code=EQUAL)
    u.refuses("a raw spec of another kind", ["route", "--k", "2", "a.npy=bf16", "--experts", "a.bin=bf16:4x4"], USAGE,
              ["experts", "integers", "bf16:4x4"])


# ---------------------------------------------------------------------------------------------
# What would have no effect is an error that names it.

@unit("idle: options")
def test_idle_options(u):
    draw = Draw("idle")
    write_npy(u.path("a.npy"), "bf16", [4, 4], draw.codes("bf16", 16))
    write_npy(u.path("a8.npy"), "e4m3fn", [4, 64], draw.codes("e4m3fn", 256))
    write_npy(u.path("b8.npy"), "e4m3fn", [64, 4], draw.codes("e4m3fn", 256))
    write_npy(u.path("words.npy"), "u32", [4, 4], [0] * 16)
    write_npy(u.path("e.npy"), "u32", [4, 2], [0, 1] * 4)
    write_npy(u.path("q.npy"), "bf16", [1, 1, 2, 4], draw.codes("bf16", 8))
    write_npy(u.path("row.npy"), "bf16", [4], [0] * 4)
    write_npy(u.path("table.npy"), "bf16", [65536], [0x3F80] * 65536)
    u.run("example", "right.safetensors", code=EQUAL)
    gemm = ["run", "gemm", "--profile", "trn3", "--a", "a8.npy=e4m3fn", "--b", "b8.npy=e4m3fn", "--to", "f32", "-o",
            "z.npy"]
    attention = ["--schedule", "flash", "--profile", "nv-ada", "--q", "q.npy=bf16", "--k", "q.npy=bf16",
                 "--v", "q.npy=bf16"]
    forward = ["attention", "run", *attention, "--to", "bf16", "-o", "z.npy"]
    route = ["route", "--k", "2", "a.npy=bf16"]
    fp4 = "e4m3fn:" + ",".join(["0x00"] * 16)
    for what, arguments, words in (
            ("words", ["convert", "--to", "e5m2", "--words", "words.npy", "a.npy=bf16", "z.npy"], ["--words", "sr"]),
            ("words of a multiply", [*gemm, "--words", "words.npy"], ["--words", "rne", "sr"]),
            ("words of a quantize", ["run", "quantize", "--src", "a.npy=bf16", "--to", "e5m2", "--rule", "floor",
                                     "--round", "rtz", "--words", "words.npy", "--scale-out", "s.npy", "-o", "z.npy"],
             ["--words", "rtz", "sr"]),
            ("overflow of a quantize", ["run", "quantize", "--src", "a.npy=bf16", "--to", "e5m2", "--rule", "floor",
                                        "--overflow", "inf", "--scale-out", "s.npy", "-o", "z.npy"], ["--overflow"]),
            ("block", [*gemm, "--block", "16"], ["--block", "--a-scale"]),
            ("axis", [*gemm, "--axis", "0"], ["--axis", "--a-scale"]),
            ("layout", [*gemm, "--layout", "trn_wrap"], ["--layout", "--a-scale"]),
            ("scale format", [*gemm, "--scale-format", "e8m0"], ["--scale-format", "--a-scale"]),
            ("fp4 map", [*gemm, "--fp4-map", fp4], ["--fp4-map", "e4m3fn", "e2m1"]),
            ("router bias", [*route, "--router-bias", "row.npy=bf16"], ["--router-bias", "logits"]),
            ("router", [*route, "--router", "a.npy=bf16"], ["--router ", "logits"]),
            ("profile", [*route, "--profile", "trn2"], ["--profile", "logits"]),
            ("accumulate", [*route, "--accumulate", "bf16"], ["--accumulate", "x and router"]),
            ("format of logits", [*route, "--logits", "bf16"], ["--logits", "x and router"]),
            ("top groups", [*route, "--top-groups", "1"], ["--top-groups", "groups"]),
            ("values of a group", [*route, "--group-top", "1"], ["--group-top", "groups"]),
            ("mask", [*route, "--mask", "zero"], ["--mask", "groups"]),
            ("eps", [*route, "--eps", "1e-6"], ["--eps", "normalise"]),
            ("how eps", [*route, "--normalise", "yes", "--eps-how", "floor"], ["--eps-how", "eps"]),
            ("softmax by", [*route, "--act", "sigmoid", "--softmax-by", "division"], ["--softmax-by", "act"]),
            ("a table of route", [*route, "--exp-table", "table.npy=bf16"], ["--exp-table", "exp", "table"]),
            ("another", [*route, "--sigmoid-table", "table.npy=bf16"], ["--sigmoid-table", "sigmoid table"]),
            ("a third", [*route, "--reciprocal-table", "table.npy=bf16"], ["--reciprocal-table", "reciprocal"]),
            ("exp table", [*forward, "--exp-table", "table.npy=bf16"], ["--exp-table", "--set exp=table"]),
            ("tanh table", [*forward, "--tanh-table", "table.npy=bf16"], ["--tanh-table", "--set tanh=table"]),
            ("reciprocal table", [*forward, "--reciprocal-table", "table.npy=bf16"],
             ["--reciprocal-table", "--set reciprocal=table"]),
            ("alignment", [*forward, "--top-left"], ["--top-left", "causal", "window"]),
            ("a dump of run", [*forward, "--dump", "q.npy=bf16"], ["--dump", "verify"]),
            ("--as of a case", ["verify", "--as", "bf16", "right.safetensors"], ["--as", "--dumps"]),
            ("sensitivity of dumps", ["verify", "--dumps", "--sensitivity", "a.npy", "a.npy"], ["--sensitivity"]),
            ("sample of dumps", ["verify", "--dumps", "--sample", "3", "a.npy", "a.npy"], ["--sample", "--dumps"]),
            ("no explanation of dumps", ["verify", "--dumps", "--no-explain", "a.npy", "a.npy"], ["--no-explain"]),
            ("a format of one number", ["function", "exp", "--of", "1", "--to", "bf16"], ["--to", "--of"]),
            ("a rounding of one number", ["function", "exp", "--round", "rtz", "--of", "1"], ["--round", "--of"]),
            ("choice of a format", ["sweep", "--to", "e5m2", "--choice", "cr"], ["--choice", "--function"]),
            ("a name beside --list", ["sweep", "--list", "foo"], ["--list", "foo"]),
            ("and of bench", ["bench", "--list", "foo"], ["--list", "foo"]),
            ("a format of integers", [*route, "--experts", "e.npy=f32"], ["experts", "integers", "f32", "e.npy"])):
        u.refuses(what, arguments, USAGE, words)
    u.check(not os.path.exists(u.path("z.npy")), "something was written")
    # and with what they belong to
    for arguments in (
            ["convert", "--to", "e5m2", "--round", "sr", "--words", "words.npy", "a.npy=bf16", "z.npy"],
            [*route, "--groups", "2", "--top-groups", "1", "--group-top", "1", "--mask", "zero"],
            [*route, "--normalise", "yes", "--eps", "1e-6", "--eps-how", "floor"],
            [*route, "--exp", "table", "--exp-table", "table.npy=bf16"],
            [*forward, "--set", "exp=table", "--exp-table", "table.npy=bf16"],
            [*forward, "--causal", "--top-left"],
            [*forward, "--window", "2", "--top-left"]):
        u.run(*arguments, code=EQUAL)


@unit("idle: keys of a case")
def test_idle_keys(u):
    draw = Draw("idle")
    for name, fmt, shape in (("a", "bf16", [4, 64]), ("b", "bf16", [64, 4]), ("s", "f32", [4, 32])):
        write_npy(u.path(name + ".npy"), fmt, shape, draw.codes(fmt, count(shape)))
    write_npy(u.path("w.npy"), "u32", [4, 32], [0] * 128)
    file = {name: {"file": name + ".npy", "format": "f32" if name == "s" else "bf16"} for name in "abs"}
    gemm = {"op": "gemm", "profile": "trn2", "tensors": {"a": file["a"], "b": file["b"], "d": {"format": "f32"}}}
    change = {"op": "convert", "tensors": {"src": file["s"], "dst": {"format": "e5m2"}}}
    blocks = {"op": "quantize", "rule": "floor", "tensors": {
        "src": file["s"], "dst": {"format": "e5m2", "scale": {"format": "e8m0"}}}}

    def tensors(one, **parts):
        return {"tensors": {k: {**v, **parts.get(k, {})} for k, v in one["tensors"].items()}}
    for what, one, keys, words in (
            ("words", change, {"cast": {"words": {"file": "w.npy"}}}, ["words", "rne", "cast", "sr"]),
            ("a generator", change, {"cast": {"round": "rtz", "words": {"philox": {}}}}, ["words", "rtz"]),
            ("sr", change, {"cast": {"sr": "a"}}, ["sr ", "rne"]),
            ("sr_bits", gemm, {"out": {"sr_bits": 8}}, ["sr_bits", "rne", "out"]),
            ("sr_take", gemm, {"out": {"sr_take": "high"}}, ["sr_take", "rne", "out"]),
            ("overflow", blocks, {"cast": {"overflow": "sat_keep_inf"}}, ["overflow", "sat_keep_inf", "quantize"]),
            ("psum", gemm, {"psum": {"round": "rne"}}, ["psum", "f32", "bf16"]),
            ("an FP4 table", gemm, {"fp4_map": {"format": "e5m2", "codes": ["0x00"] * 16}}, ["fp4_map", "bf16", "e2m1"]),
            ("a tensor scale of d", gemm, tensors(gemm, d={"tensor_scale": "0x3f800000"}), ["tensor_scale", "d"]),
            ("of src", change, tensors(change, src={"tensor_scale": "0x3f800000"}), ["tensor_scale", "src"]),
            ("scales of a result", {"op": "route", "router": {"k": 2}, "tensors": {
                "logits": file["s"], "weights": {"format": "f32", "scale": {"format": "e8m0"}}}}, {}, ["scale", "weights"]),
            ("two profiles", gemm, {"profile": {"file": "nosuch", "text": "x"}}, ["profile", "file", "text"])):
        u.refuses(what, ["run", write_case(u, "c.json", {**one, **keys}), "-o", "z.safetensors"], FILE, words)
    for one, keys in ((gemm, {"profile": "trn3", "accumulate": "bf16", "psum": {"round": "rne"}}), (gemm, {}),
                      (blocks, {"cast": {"overflow": "sat"}}),
                      (change, {"cast": {"round": "sr", "words": {"file": "w.npy"}, "sr": "a"}})):
        u.run("run", write_case(u, "c.json", {**one, **keys}), "-o", "z.safetensors", code=EQUAL)
        u.run("verify", "z.safetensors", code=EQUAL)


@unit("route: a case by itself")
def test_route_case(u):
    draw = Draw("route case")
    write_npy(u.path("l.npy"), "bf16", [5, 16], draw.codes("bf16", 80, -3, 3))
    write_npy(u.path("x.npy"), "bf16", [5, 32], draw.codes("bf16", 160, -3, 3))
    write_npy(u.path("r.npy"), "bf16", [32, 16], draw.codes("bf16", 512, -3, 3))
    for operands in (["l.npy=bf16"], ["--x", "x.npy=bf16", "--router", "r.npy=bf16", "--profile", "trn2"]):
        for command in (["route"], ["run", "route"]):
            u.run(*command, "--k", "4", *operands, "-o", "w.npy", "--experts-out", "e.npy", code=EQUAL)
            report = u.json(*command, "--k", "4", *operands, "-o", "g.safetensors", "--experts-out", "e2.npy", code=EQUAL)
            u.check(report.get("written") == {"case": "g.safetensors", "experts": "e2.npy"}, f"written: {report}")
            meta, tensors = read_safetensors(u.path("g.safetensors"))
            u.check(meta.get("ng.op") == "route" and "ng.case" in meta, "metadata")
            u.check(unpack("f32", tensors["weights"][1]) == read_npy(u.path("w.npy"), "f32")[1], "weights")
            u.check(list(struct.unpack("<20I", tensors["experts"][1])) == read_npy(u.path("e.npy"), "u32")[1], "experts")
            os.remove(u.path("w.npy"))
            u.check("EQUAL: 1 case, 40 elements" in u.run("verify", "g.safetensors", code=EQUAL).stdout, "verify")
            u.run("run", "g.safetensors", "-o", "h.safetensors", code=EQUAL)
            with open(u.path("g.safetensors"), "rb") as g, open(u.path("h.safetensors"), "rb") as h:
                u.check(g.read() == h.read(), "the same file again")


OTHERS = {"flag": ("BOOL", [3], bytes(3)), "wide": ("F64", [2], bytes(16)), "none": ("BF16", [0, 4], b""),
          "deep": ("F32", [1, 1, 1, 1, 2], bytes(8)), "new": ("F99", [5], bytes(7))}


@unit("files: tensors of a safetensors file that is not all ours")
def test_other_tensors(u):
    codes = Draw("others").codes("f32", 8)
    mine = {"w": ("F32", [2, 4], pack("f32", codes)), "n": ("I64", [2], bytes(16))}
    write_safetensors(u.path("m.safetensors"), {**mine, **OTHERS})
    write_safetensors(u.path("two.safetensors"), {**mine, "v": ("F32", [2, 4], pack("f32", codes))})
    write_safetensors(u.path("none.safetensors"), OTHERS)
    for name in ("m.safetensors", "m.safetensors=f32", "m.safetensors:w", "m.safetensors:w=f32",
                 "two.safetensors:w=f32"):
        for what in (["convert", "--to", "f32", name, "z.npy"],
                     ["sparsify", "prune", name, "z.npy"], ["function", "exp", name, "z.npy"],
                     ["quantize", "--to", "e5m2", "--rule", "floor", "--scale-out", "s.npy", name, "z.npy"],
                     ["route", "--k", "2", name, "-o", "z.npy"]):
            u.run(*what, code=EQUAL)
        u.run("convert", "--to", "f32", name, "z.npy", code=EQUAL)
        u.check(read_npy(u.path("z.npy"), "f32") == ([2, 4], codes), f"{name}: its elements")
    for typed in ("two.safetensors", "two.safetensors=f32"):
        u.run("convert", "--to", "f32", "--tensor", "v", typed, "z.npy", code=EQUAL)
        u.run("quantize", "--to", "e5m2", "--rule", "floor", "--scale-out", "s.npy", "--tensor", "v", typed, "e.npy",
              code=EQUAL)
    u.run("run", "convert", "--src", "m.safetensors:w=f32", "--to", "bf16", "-o", "z.npy", code=EQUAL)
    # a golden's elements and scales, by their names
    u.run("quantize", "--preset", "mxfp8", "two.safetensors:v", "g.safetensors", code=EQUAL)
    by_name = ["dequantize", "--to", "f32", "--scale", "g.safetensors:dst_scale"]
    u.run(*by_name, "g.safetensors:dst=e4m3fn", "z1.npy", code=EQUAL)
    u.run(*by_name, "--tensor", "dst", "g.safetensors", "z2.npy", code=EQUAL)
    u.run("dequantize", "--to", "f32", "g.safetensors", "z3.npy", code=EQUAL)
    u.check(read_npy(u.path("z1.npy"), "f32") == read_npy(u.path("z2.npy"), "f32") == read_npy(u.path("z3.npy"), "f32"),
            "the same values")
    multiply = ["run", "gemm", "--profile", "fma-f32", "--b", "w.npy=f32", "--to", "f32", "-o", "d.npy"]
    write_npy(u.path("w.npy"), "f32", [4, 2], codes)
    u.run(*multiply, "--a", "two.safetensors:v=f32", code=EQUAL)
    for what, arguments, code, words in (
            ("a choice", ["convert", "--to", "f32", "two.safetensors", "z.npy"], FILE,
             ["two.safetensors", "3 tensors", "w", "v", "--tensor"]),
            ("a choice of an operand", [*multiply, "--a", "two.safetensors=f32"], USAGE,
             ["a is", "3 tensors", "two.safetensors", "w", "v", "FILE.safetensors:NAME"]),
            ("no such tensor", [*multiply, "--a", "two.safetensors:x=f32"], USAGE, ["two.safetensors", "'x'", "a"]),
            ("integers", ["convert", "--to", "f32", "m.safetensors:n", "z.npy"], FILE, ["m.safetensors", "u64"]),
            ("nothing of ours", ["convert", "--to", "f32", "none.safetensors", "z.npy"], FILE, ["no tensor", "BOOL"]),
            ("a tensor of a .npy", ["convert", "--to", "f32", "--tensor", "w", "w.npy=f32", "z.npy"], USAGE,
             ["'w'", "w.npy"]),
            ("two names", ["convert", "--to", "f32", "--tensor", "w", "two.safetensors:v", "z.npy"], USAGE,
             ["--tensor w", "two.safetensors:v"]),
            *((f"dtype {name}", ["convert", "--to", "f32", "m.safetensors:" + name, "z.npy"], FILE, [f"'{name}'", said])
              for name, said in (("flag", "'BOOL'"), ("wide", "'F64'"), ("none", "dimension 0"), ("deep", "5 dimensions"),
                                 ("new", "'F99'")))):
        u.refuses(what, arguments, code, words)
    case = {"op": "convert", "tensors": {"src": {"file": "m.safetensors", "format": "f32"}, "dst": {"format": "f32"}}}
    u.run("run", write_case(u, "c.json", case), "-o", "z.npy", code=EQUAL)
    case["tensors"]["src"]["tensor"] = "flag"
    u.refuses("of a case", ["run", write_case(u, "c.json", case), "-o", "z.npy"], FILE, ["'flag'", "src", "'BOOL'"])
    case["tensors"]["src"]["file"] = "two.safetensors"
    del case["tensors"]["src"]["tensor"]
    u.refuses("a choice of a case", ["run", write_case(u, "c.json", case), "-o", "z.npy"], FILE,
              ["src", "two.safetensors", '"tensor"'])


@unit("layer: a checkpoint with tensors of others")
def test_layer_others(u):
    u.run(*LAYER, "--write-weights", "w.safetensors", code=EQUAL)
    _, tensors = read_safetensors(u.path("w.safetensors"))
    ours = {name: (v["dtype"], v["shape"], data) for name, (v, data) in tensors.items()}
    write_safetensors(u.path("x.safetensors"), {**ours, **OTHERS})
    u.run(*LAYER, "--weights", "x.safetensors", code=EQUAL)
    name = sorted(ours)[0]
    write_safetensors(u.path("x.safetensors"), {**ours, name: ("BOOL", [len(ours[name][2])], ours[name][2])})
    u.refuses("one of ours", [*LAYER, "--weights", "x.safetensors"], FILE, [name[:40], "'BOOL'"])


@unit("verify: two dumps of any kind of file")
def test_dumps_of_files(u):
    draw = Draw("dumps of files")
    a, b = draw.codes("bf16", 64), draw.codes("bf16", 64)
    write_npy(u.path("a.npy"), "bf16", [4, 16], a)
    write_npy(u.path("b.npy"), "bf16", [16, 4], b)
    gemm = ["run", "gemm", "--profile", "trn2", "--a", "a.npy=bf16", "--b", "b.npy=bf16", "--to", "bf16", "-o"]
    for out in ("g.safetensors", "d.npy", "d.bin"):
        u.run(*gemm, out, code=EQUAL)
    u.run("convert", "--to", "bf16", "d.npy", "one.safetensors", code=EQUAL)
    _, codes = read_npy(u.path("d.npy"), "bf16")
    codes[6] ^= 1
    write_npy(u.path("wrong.npy"), "bf16", [4, 4], codes)
    with open(u.path("wrong.bin"), "wb") as file:
        file.write(bytes(64) + pack("bf16", codes))
    right = ["g.safetensors", "g.safetensors:d", "d.npy", "d.npy=bf16", "d.bin=bf16:4x4", "one.safetensors"]
    for got, want in itertools.permutations(right, 2):
        u.check("EQUAL" in u.run("verify", "--dumps", got, want, code=EQUAL).stdout, f"{got} and {want}")
    for got in ("wrong.npy=bf16", "wrong.bin=bf16:4x4@64"):
        for want in right:
            text = u.run("verify", "--dumps", got, want, code=DIFFERS).stdout
            u.check("[1, 2]" in text and "1 differ" in text, f"{got} and {want}: {text}")
    u.run("verify", "--dumps", "--as", "bf16", "wrong.npy", "g.safetensors", code=DIFFERS)
    write_safetensors(u.path("b.safetensors"), {"b": ("BF16", [16, 4], pack("bf16", b))})
    u.run("verify", "--dumps", "b.safetensors", "g.safetensors", code=EQUAL)  # the one of that name
    u.run("route", "--k", "2", "a.npy=bf16", "-o", "r.safetensors", "--experts-out", "e.npy", code=EQUAL)
    _, experts = read_npy(u.path("e.npy"), "u32")
    with open(u.path("e.bin"), "wb") as file:
        file.write(pack("u32", [7] + experts[1:]))
    u.run("verify", "--dumps", "e.npy", "r.safetensors:experts", code=EQUAL)  # its sidecar says u32
    text = u.run("verify", "--dumps", "e.bin=u32:4x2", "r.safetensors:experts", code=DIFFERS).stdout
    u.check(f"1 of 8\n  [0, 0]       got 7  want {experts[0]}\n" in text, f"integers: {text}")
    for what, arguments, code, words in (
            ("a choice", ["d.npy", "r.safetensors"], REFUSED, ["d.npy", "r.safetensors", "3", "experts", "FILE.safetensors:NAME"]),
            ("raw without a spec", ["d.bin", "d.npy"], USAGE, ["d.bin", "raw"]),
            ("another type", ["--as", "f32", "d.npy=bf16", "d.npy"], USAGE, ["--as f32", "d.npy=bf16"]),
            ("another shape", ["d.bin=bf16:2x8", "g.safetensors"], REFUSED, ["[2, 8]", "[4, 4]"]),
            ("a sidecar of elements", ["d.npy=u16", "d.npy"], FILE, ["bf16", "integers"])):
        u.refuses(what, ["verify", "--dumps", *arguments], code, words)


@unit("reports: an index is a list")
def test_index_lists(u):
    write_npy(u.path("q.npy"), "bf16", [1, 1, 4, 4], Draw("index").codes("bf16", 16))
    u.run("attention", "run", "--schedule", "exact", "--q", "q.npy=bf16", "--k", "q.npy=bf16", "--v", "q.npy=bf16",
          "--to", "bf16", "-o", "o.npy", code=EQUAL)
    _, codes = read_npy(u.path("o.npy"), "bf16")
    codes[6] ^= 0x4000
    write_npy(u.path("w.npy"), "bf16", [1, 1, 4, 4], codes)
    report = u.json("attention", "verify", "--schedule", "exact", "--q", "q.npy=bf16", "--k", "q.npy=bf16",
                    "--v", "q.npy=bf16", "--dump", "w.npy=bf16", code=DIFFERS)
    u.check(report["cases"][0]["results"]["o"]["mismatches"][0]["index"] == [0, 0, 1, 2], "of attention")
    write_npy(u.path("l.npy"), "f32", [2, 4], [f32_code(x) for x in range(8)])
    write_npy(u.path("e.npy"), "u32", [2, 2], [3, 2, 3, 1])
    report = u.json("route", "--k", "2", "l.npy=f32", "--experts", "e.npy", code=DIFFERS)
    u.check(report["cases"][0]["results"]["experts"]["mismatches"] == [{"index": [1, 1], "got": 1, "want": 2}],
            "of integers")
    u.run("quantize", "--preset", "mxfp8", "l.npy=f32", "g.safetensors", code=EQUAL)
    meta, tensors = read_safetensors(u.path("g.safetensors"))
    tensors = {name: (v["dtype"], v["shape"], data) for name, (v, data) in tensors.items()}
    dtype, shape, data = tensors["dst_scale"]
    tensors["dst_scale"] = (dtype, shape, data[:1] + bytes([data[1] ^ 1]))
    write_safetensors(u.path("g.safetensors"), tensors, meta)
    report = u.json("verify", "g.safetensors", code=DIFFERS)
    u.check(report["cases"][0]["scale_mismatches"][0]["index"] == [1, 0], "of scales")


@unit("route, moe: experts in 64 bits")
def test_wide_experts(u):
    def wide(name, values, descr="<i8"):
        header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (4, 2), }}"
        header += " " * (-(len(header) + 11) % 64) + "\n"
        with open(u.path(name), "wb") as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                       struct.pack(f"<{len(values)}{'q' if descr == '<i8' else 'Q' if descr == '<u8' else 'i'}", *values))
    write_npy(u.path("l.npy"), "f32", [4, 6], Draw("wide").codes("f32", 24))
    route = ["route", "--k", "2", "l.npy=f32", "--experts"]
    u.run("route", "--k", "2", "l.npy=f32", "--experts-out", "e.npy", code=EQUAL)
    experts = read_npy(u.path("e.npy"), "u32")[1]
    for descr in ("<i8", "<u8", "<i4"):
        wide("w.npy", experts, descr)
        u.run(*route, "w.npy", code=EQUAL)
    data = struct.pack("<8q", *experts)
    write_safetensors(u.path("w.safetensors"), {"e": ("I64", [4, 2], data)})
    u.run(*route, "w.safetensors", code=EQUAL)
    with open(u.path("w.bin"), "wb") as file:
        file.write(data)
    u.run(*route, "w.bin=u64:4x2", code=EQUAL)
    wide("w.npy", [-1 if i == 5 else e for i, e in enumerate(experts)])
    text = u.run(*route, "w.npy", code=DIFFERS).stdout
    u.check(f"[2, 1]         got -1  want {experts[5]}" in text, f"-1 is compared: {text}")
    for value in (5000000000, -5000000000):
        wide("w.npy", [value if i == 5 else e for i, e in enumerate(experts)])
        u.refuses("a value of more bits", [*route, "w.npy"], FILE, ["experts[2, 1]", str(value), "32 bits"])
    # a mixture that is told its experts
    told = moe_case(u, "wide experts", tokens=4)
    del told["tensors"]["router"], told["router"]
    write_npy(u.path("r.npy"), "u32", [4, 2], [0, 1, 2, 3, 1, 0, 3, 2])
    write_npy(u.path("weights.npy"), "f32", [4, 2], [f32_code(0.5)] * 8)
    told["tensors"]["weights"] = {"file": "weights.npy", "format": "f32"}
    wide("w.npy", [0, 1, 2, 3, 1, 0, 3, 2])
    for name in ("r", "w"):
        told["tensors"]["experts"] = {"file": name + ".npy"}
        u.run("run", write_case(u, "told.json", told), "-o", name + ".safetensors", code=EQUAL)
        u.run("verify", name + ".safetensors", code=EQUAL)
    u.run("verify", "--dumps", "r.safetensors", "w.safetensors", code=EQUAL)


@unit("usage: what is missing, in the words of the command line")
def test_messages(u):
    draw = Draw("messages")
    write_npy(u.path("q.npy"), "bf16", [1, 1, 4, 4], draw.codes("bf16", 16))
    write_npy(u.path("a.npy"), "bf16", [4, 16], draw.codes("bf16", 64))
    write_npy(u.path("b.npy"), "bf16", [16, 4], draw.codes("bf16", 64))
    write_npy(u.path("lse.npy"), "f32", [1, 1, 4], [0] * 4)
    attention = ["attention", "run", "--profile", "trn2", "--q", "q.npy=bf16", "--k", "q.npy=bf16", "--v", "q.npy=bf16",
                 "--to", "bf16"]
    gemm = {"op": "gemm", "profile": "trn3", "accumulate": "bf16", "psum": {"round": "rtz"},
            "tensors": {"a": {"file": "a.npy", "format": "bf16"}, "b": {"file": "b.npy", "format": "bf16"},
                        "d": {"format": "f32"}}}
    for what, arguments, code, words in (
            ("no operation", ["run", "-o", "z.npy"], USAGE, ["run wants", "CASE", "not 0"]),
            ("two operations", ["run", "gemm", "dot", "-o", "z.npy"], USAGE, ["run wants", "not 2"]),
            ("no such operation", ["run", "foo", "-o", "z.npy"], USAGE, ["'foo'", "neither", "gemm", "case"]),
            ("no such case", ["run", "foo.json", "-o", "z.npy"], FILE, ["foo.json", "cannot be opened"]),
            ("one file", ["convert", "--to", "f32", "a.npy=bf16"], USAGE, ["convert wants", "IN and OUT", "not 1"]),
            ("one file of quantize", ["quantize", "--preset", "mxfp8", "a.npy=bf16"], USAGE, ["quantize wants", "OUT"]),
            ("three files", ["dequantize", "--to", "f32", "a", "b", "c"], USAGE, ["dequantize wants", "not 3"]),
            ("no case", ["verify"], USAGE, ["verify wants", "CASE"]),
            ("one dump", ["verify", "--dumps", "a.npy"], USAGE, ["GOT and WANT", "not 1"]),
            ("no verb", ["attention"], USAGE, ["run, verify, show"]),
            ("a file of attention", [*attention, "x.npy"], USAGE, ["by options", "'x.npy'"]),
            ("a maximum", [*attention, "--schedule", "flash", "--set", "statistics=max_sum", "--dout", "q.npy=bf16", "--o",
                           "q.npy=bf16", "--dq", "z.npy"], REFUSED, ["max (--max): ", "saved.max is NULL"]),
            ("a table", [*attention, "--schedule", "flash", "--set", "exp=table", "-o", "z.npy"], REFUSED,
             ["exp_table (--exp-table): ", "op.exp_table is NULL"]),
            ("rounding of psum", ["run", write_case(u, "psum.json", gemm), "-o", "z.npy"], REFUSED,
             ["psum: ", "op.psum.round is 2"])):
        u.refuses(what, arguments, code, words)
    gemm["tensors"]["a"]["sparse"] = {"tags": "t.npy"}
    write_npy(u.path("t.npy"), "u16", [1, 8], [0] * 8)
    u.refuses("tags", ["run", write_case(u, "tags.json", gemm), "-o", "z.npy"], FILE,
              ["tags of a are 16 bytes; wanted: 32, 4 lines of 8 bytes"])


@unit("verify: a report of the cases before one that fails")
def test_stopped_report(u):
    u.run("example", "right.safetensors", code=EQUAL)
    u.run("example", "--fault", "adder", "wrong.safetensors", code=EQUAL)
    report = u.json("verify", "--no-explain", "right.safetensors", "wrong.safetensors", "no.json", "right.safetensors",
                    code=FILE)
    u.check([c["case"] for c in report["cases"]] == ["right.safetensors", "wrong.safetensors"] and
            report["n_cases"] == 2 and report["differ"] > 0, f"the cases before: {report.get('cases')}")
    u.check(report["verdict"] == "error" and report["error"] == {"case": "no.json", "exit_code": FILE},
            f"the error: {report.get('error')}")


# ---------------------------------------------------------------------------------------------
# Reductions over ranks. What finds the order of an unknown library: test_collective.py.

def bf16_sum(codes):
    """One sum of all, in FP32, rounded once: what trn-single-step is. Numbers near 1."""
    total = Fraction(0)
    for c in codes:
        total = round_to("f32", total + FORMATS["bf16"].decode(c))
    return FORMATS["bf16"].encode(abs(total), total < 0)


def round_to(fmt, value):
    f = FORMATS[fmt]
    return f.decode(f.encode(abs(value), value < 0))


def ranks_file(u, ranks, elements, fmt="bf16", name="x.npy"):
    codes = Draw(u.name).codes(fmt, ranks * elements, low=-3, high=3)
    write_npy(u.path(name), fmt, [ranks, elements], codes)
    return codes


def collective(verb, preset, *options, dump=None, to="bf16", x="x.npy=bf16"):
    return ["collective", verb, "--collective", preset, "--x", x, *options,
            *(["--dump", dump] if dump else ["--to", to])]


@unit("collective: a sum by hand, a case, its replay")
def test_collective_run(u):
    codes = ranks_file(u, 5, 12)
    u.run(*collective("run", "trn-single-step"), "-o", "d.npy", code=EQUAL)
    want = [bf16_sum(codes[e::12]) for e in range(12)]
    u.check(read_npy(u.path("d.npy"), "bf16") == ([12], want), f"a sum by hand: {want}")
    report = u.json(*collective("verify", "trn-single-step", dump="d.npy=bf16"), code=EQUAL)
    u.check(report["elements"] == 12 and report["differ"] == 0, f"verify: {report}")
    u.check("algorithm=single_step(documented)" in report["cases"][0]["parameters"] and
            "sum=once(inferred)" in report["cases"][0]["parameters"], f"parameters: {report}")
    u.run(*collective("run", "trn-ring", "--set", "chunk=5", "--reduction", "max", "--round", "rtz"), "-o",
          "w.safetensors", code=EQUAL)
    u.run("verify", "w.safetensors", code=EQUAL)
    case = {"op": "all_reduce", "collective": "trn-ring", "set": {"chunk": 5}, "reduction": "max", "out": {"round": "rtz"},
            "tensors": {"x": {"file": "x.npy", "format": "bf16"}, "d": {"format": "bf16"}}}
    path = write_case(u, "case.json", case)
    u.run("run", path, "-o", "e.npy", code=EQUAL)
    whole = unpack("bf16", read_safetensors(u.path("w.safetensors"))[1]["d"][1])
    u.check(read_npy(u.path("e.npy"), "bf16")[1] == whole and
            whole == [max(codes[e::12], key=lambda c: FORMATS["bf16"].decode(c)) for e in range(12)], "the same by a case")
    for isa in ([], ["--isa", "ref"]):
        told = u.json("kernels", "--explain", path, *isa, code=EQUAL)["cases"][0]
        u.check([k["kernel"] for k in told["kernels"] if k["chosen"]] == [told["kernel"]] and
                re.match("ref$" if isa else "reduce__|ref$", told["kernel"]) and
                [s["stage"] for s in told["stages"]] == ["sums"], f"kernels --explain: {told}")
    u.run("kernels", "--explain", path, code=EQUAL)
    u.check(u.json("verify", "--sensitivity", "w.safetensors", code=EQUAL)["cases"], "sensitivity")


@unit("collective: what explains a dump")
def test_collective_explain(u):
    ranks_file(u, 16, 600)
    cases = [("trn-ring", ["--set", "wire=f32"], "trn-ring", "wire=f32"),
             ("trn-kanga-ring", [], "trn-ring", "algorithm=kanga_ring"),
             ("trn-mesh", ["--set", "chip=8"], "trn-mesh", "chip=8"),
             ("trn-rdh", ["--set", "halving=far"], "trn-rdh", "halving=far"),
             ("trn-ring", ["--set", "node=4", "--set", "between=mesh"], "trn-ring", "node=4 between=mesh"),
             ("trn-ring", ["--set", "chunk=128"], "trn-ring", "chunk=128"),
             ("trn-mesh", ["--set", "sum=pairs"], "trn-ring", "algorithm=mesh, sum=pairs"),
             ("trn-kanga-ring", ["--set", "chunk=64"], "trn-ring", "algorithm=kanga_ring, chunk=64"),
             ("trn-ring", ["--reduction", "min"], "trn-ring", "reduction=min"),
             ("trn-ring", ["--round", "rtz", "--set", "wire=f32"], "trn-ring", "wire=f32, out round=rtz"),
             ("trn-ring", ["--set", "algorithm=explicit", "--order",
                           "((((((((((((((+15 +14) +13) +12) +11) +10) +9) +8) +7) +6) +5) +4) +3) +2) +1) +0"],
              "trn-ring", "the ring the other way round")]
    for preset, options, thought, rule in cases:
        u.run(*collective("run", preset, *options), "-o", "d.npy", code=EQUAL)
        report = u.json(*collective("verify", thought, dump="d.npy=bf16"), code=DIFFERS)
        rules = {f["rule"]: f for f in report["cases"][0]["explain"]["findings"]}
        found = rules.get(rule, {"of": -1})
        u.check(found.get("explains") == found["of"] and found.get("breaks") == 0,
                f"{preset} {options}: wanted {rule}: {json.dumps(rules)[:700]}")
    # a rank whose buffer did not come
    codes = read_npy(u.path("x.npy"), "bf16")[1]
    codes[3 * 600:4 * 600] = [0] * 600
    write_npy(u.path("lost.npy"), "bf16", [16, 600], codes)
    u.run(*collective("run", "trn-ring", x="lost.npy=bf16"), "-o", "d.npy", code=EQUAL)
    text = u.run(*collective("verify", "trn-ring", dump="d.npy=bf16"), code=DIFFERS).stdout
    u.check("verdict: rank 3 brings zeros explains every difference" in text and "exact result" in text, f"rank 3: {text}")
    u.check(re.search(r"\n    sum \d+ of 15, where rank 3 comes in \(\d+ ranks in it\): ", text), f"where: {text}")
    case = {"op": "all_reduce", "collective": "trn-ring",
            "tensors": {"x": {"file": "x.npy", "format": "bf16"}, "d": {"file": "d.npy", "format": "bf16"}}}
    report = u.json("verify", write_case(u, "case.json", case), "--sample", "50", code=DIFFERS)["cases"][0]
    u.check(report["results"]["d"]["elements"] == 50 and
            report["explain"]["findings"][0]["rule"] == "rank 3 brings zeros", f"a sample: {json.dumps(report)[:700]}")


@unit("collective: orders, presets, keys")
def test_collective_show(u):
    text = u.run("collective", "order", "--collective", "trn-kanga-ring", "--ranks", "6", code=EQUAL).stdout
    u.check(text.splitlines()[0].split(None, 2) == ["chunk", "0", "((2 3) 4 5) 0 1"] and text.count("chunk ") == 6,
            f"order: {text}")
    text = u.run("collective", "order", "--collective", "trn-mesh", "--ranks", "8", code=EQUAL).stdout
    u.check("(0 1 2 3) (4 5 6 7)" in text and "every other chunk the same" in text, f"order of a mesh: {text}")
    one = u.json("collective", "order", "--collective", "trn-ring", "--ranks", "4", "--chunk", "2", code=EQUAL)
    u.check(one["orders"] == [{"chunk": 2, "order": "((3 0) 1) 2"}] and not one["same_for_all_chunks"], f"one: {one}")
    names = [c["collective"] for c in u.json("collective", "show", code=EQUAL)["collectives"]]
    u.check("trn-ring" in names and "exact" in names and len(names) == 9, f"names: {names}")
    for name in names:
        shown = u.json("collective", "show", name, code=EQUAL)
        u.check(len(shown["parameters"]) == 13 and all(p["evidence"] and p["meaning"] for p in shown["parameters"]),
                f"show {name}: {shown}")
        u.check(f"{name}:" in u.run("collective", "show", name, code=EQUAL).stdout, name)
    keys = u.run("collective", "keys", code=EQUAL).stdout
    u.check("halving" in keys and "near far" in keys, f"keys: {keys}")


@unit("collective: bad options and operands")
def test_collective_bad(u):
    ranks_file(u, 3, 8)
    write_npy(u.path("flat.npy"), "bf16", [24], [0] * 24)
    run = collective("run", "trn-ring")
    u.run(*run, "-o", "d.npy", code=EQUAL)
    write_npy(u.path("short.npy"), "bf16", [7], [0] * 7)
    u.run("collective", "ask", "--ranks", "3", "--format", "bf16", "--elements", "12", "-o", "ask.npy", code=EQUAL)
    with open(u.path("six.bin"), "wb") as file:
        file.write(bytes(12))
    bad = [(["collective"], USAGE, ["run, verify, order"]), (["collective", "reduce"], USAGE, ["not 'reduce'"]),
           (["collective", "show", "x"], USAGE, ["'x' is no collective"]),
           (["collective", "keys", "x"], USAGE, ["'x'"]),
           (collective("run", "ring") + ["-o", "e.npy"], USAGE, ["collective is 'ring'", "trn-ring"]),
           (run, USAGE, ["-o OUT"]), (run[:-2] + ["-o", "e.npy"], USAGE, ["--to"]),
           (run + ["-o", "e.npy", "--ranks", "3"], USAGE, ["--ranks says nothing"]),
           (run + ["-o", "e.npy", "--dump", "d.npy"], USAGE, ["--dump says nothing"]),
           (run + ["-o", "e.npy", "--rank", "1"], USAGE, ["rank says nothing", "start=own"]),
           (run + ["-o", "e.npy", "--order", "0 1 2"], USAGE, ["order says nothing", "explicit"]),
           (run + ["-o", "e.npy", "--set", "wire=x"], USAGE, ["wire=x", "given, or a format"]),
           (run + ["-o", "e.npy", "--set", "speed=1"], USAGE, ["'speed' is no parameter", "collective keys"]),
           (run + ["-o", "e.npy", "--set", "chip"], USAGE, ["no KEY=VALUE"]),
           (run + ["-o", "e.npy", "--reduction", "mean"], USAGE, ["reduction is 'mean'", "sum min max"]),
           (run + ["-o", "e.npy", "--rank", "x"], USAGE, ["--rank is 'x'"]),
           (run + ["-o", "e.npy", "--set", "node=2"], REFUSED, ["3 ranks are no whole nodes of 2"]),
           (run + ["-o", "e.npy", "--set", "algorithm=explicit"], REFUSED, ["every sum"]),
           (run + ["-o", "e.npy", "--set", "algorithm=explicit", "--order", "0 1 1"], REFUSED, ["every rank once"]),
           (collective("run", "trn-kanga-ring") + ["-o", "e.npy"], REFUSED, ["is 3", "an even number"]),
           (collective("run", "trn-ring", x="flat.npy=bf16") + ["-o", "e.npy"], REFUSED, ["x has rank 1"]),
           (collective("verify", "trn-ring", dump="short.npy=bf16"), REFUSED, ["d has shape [7]", "[8]"]),
           (collective("verify", "trn-ring", dump="d.npy=bf16") + ["--to", "bf16"], USAGE, ["--to is of collective run"]),
           (collective("verify", "trn-ring", dump="d.npy=bf16") + ["-o", "e.npy"], USAGE, ["-o says nothing"]),
           (["collective", "verify", "--collective", "trn-ring", "--x", "x.npy=bf16"], USAGE, ["--dump"]),
           (["collective", "run", "--collective", "trn-ring", "--to", "f32", "-o", "e.npy"], USAGE, ["--x"]),
           (["collective", "order", "--collective", "trn-ring"], USAGE, ["--ranks"]),
           (["collective", "order", "--collective", "exact", "--ranks", "4"], REFUSED, ["algorithm is real"]),
           (["collective", "order", "--collective", "trn-ring", "--ranks", "4", "--chunk", "4"], REFUSED, ["chunk is 4"]),
           (["collective", "order", "--collective", "trn-ring", "--ranks", "9999"], USAGE, ["9999", "1024"]),
           (["collective", "ask", "--ranks", "4", "--format", "bf16"], USAGE, ["-o OUT"]),
           (["collective", "ask", "--ranks", "1", "--format", "bf16", "-o", "q.npy"], USAGE, ["1 ranks"]),
           (["collective", "ask", "--ranks", "4", "--format", "bf16", "--elements", "11", "-o", "q.npy"], USAGE, ["at least 12"]),
           (["collective", "ask", "--ranks", "4", "--format", "e4m3fn", "-o", "q.npy"], REFUSED, ["e4m3fn", "swallows"]),
           (["collective", "ask", "--ranks", "300", "--format", "bf16", "-o", "q.npy"], REFUSED, ["does not count to 300"]),
           (["collective", "ask", "--ranks", "4", "--format", "fp8", "-o", "q.npy"], USAGE, ["--format is 'fp8'"]),
           (["collective", "read", "--x", "x.npy=bf16", "--dump", "d.npy=bf16"], REFUSED, ["element 0 asks nothing"]),
           (["collective", "read", "--x", "x.npy=bf16", "--dump", "short.npy=bf16"], REFUSED, ["[ranks, elements]"]),
           (["collective", "read", "--x", "ask.npy=bf16", "--dump", "six.bin=e3m2:12"], REFUSED, ["e3m2", "Inf or NaN"])]
    for arguments, code, words in bad:
        u.refuses(" ".join(arguments), arguments, code, words)
    u.check(not os.path.exists(u.path("e.npy")) and not os.path.exists(u.path("q.npy")), "nothing was written")
    for keys, words in (({"collective": "trn-ring", "rows": 1}, ["rows"]), ({}, ["collective is '(absent)'"]),
                        ({"collective": "trn-ring", "set": 3}, ["set is not an object"]),
                        ({"collective": "trn-ring", "order": "0"}, ["order says nothing"]),
                        ({"collective": "trn-ring", "profile": "trn2"}, ["profile"])):
        case = {"op": "all_reduce", "tensors": {"x": {"file": "x.npy", "format": "bf16"},
                                                "d": {"file": "d.npy", "format": "bf16"}}, **keys}
        u.refuses(str(keys), ["verify", write_case(u, "bad.json", case)], FILE, words)


# ---------------------------------------------------------------------------------------------

def run_unit(item):
    name, function = item
    u = Unit(name)
    begin = time.monotonic()
    try:
        function(u)
    except Exception as why:  # a test that cannot go on has failed; the others run
        where = why.__traceback__
        while where.tb_next:
            where = where.tb_next
        u.check(False, f"the test itself stopped at line {where.tb_lineno}: "
                       f"{type(why).__name__}: {why}")
    u.seconds = time.monotonic() - begin
    shutil.rmtree(u.home, ignore_errors=True)
    return u


def main():
    global NGAUGE
    arguments = sys.argv[1:]
    text = ""
    if "--filter" in arguments:
        at = arguments.index("--filter")
        text = arguments[at + 1]
        del arguments[at:at + 2]
    chosen = [x for x in UNITS if text in x[0]]
    if "--list" in arguments:
        print("\n".join(name for name, _ in chosen))
        return 0
    if len(arguments) != 1:
        print(__doc__)
        return 2
    NGAUGE = os.path.abspath(arguments[0])
    begin = time.monotonic()
    checks = failed = 0
    slow = []
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for u in pool.map(run_unit, chosen):
            checks += u.checks
            failed += len(u.failed)
            slow.append((u.seconds, u.name))
            for what in u.failed:
                print(f"FAILED {u.name}: {what}", flush=True)
    for seconds, name in sorted(slow, reverse=True)[:3]:
        print(f"slow: {seconds:5.1f} s {name}")
    print(f"cli: {checks} checks, {failed} failed ({len(chosen)} tests, "
          f"{time.monotonic() - begin:.0f} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
