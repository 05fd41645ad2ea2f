# SPDX-License-Identifier: Apache-2.0
"""Compare attention of the shared library with attention.py, bit by bit.

usage: judge_attention.py [LIBRARY] [--seed N] [--cases SCALE] [--long]

Random schedules (a preset with settings changed), options, shapes, formats and data; whole
presets at their own sizes. Ends with "attention: N cases, M elements, X mismatches"; exit status
1 on a mismatch, 77 when there is no library to judge.
"""

import argparse
import collections
import ctypes as C
import math
import random
import struct
import sys
from fractions import Fraction

import attention as at
import judge as jd
import model as m
from model import FORMATS

KEYS = """arithmetic q_format q_block kv_format score_format scale_place score_order cap_argument mask
max_init key_tile section section_from skip_queries skip_keys exp_base p_format p_block mx_rule mx_input
sum_source sum_order pv_keys update o_format sink_place normalise exp tanh reciprocal statistics""".split()
NUMBERS = "q_block mask max_init key_tile section section_from skip_queries skip_keys p_block pv_keys".split()


class CSchedule(C.Structure):
    _fields_ = [("name", C.c_char_p), ("about", C.c_char_p), ("set", jd.CSetting * len(KEYS))]


class CAttention(C.Structure):
    _fields_ = [("size", C.c_size_t), ("profile", C.POINTER(jd.CProfile)),
                ("schedule", C.POINTER(CSchedule)), ("scale", C.c_uint32), ("softcap", C.c_uint32),
                ("causal", C.c_bool), ("align", C.c_int), ("window", C.c_int64),
                ("masked_rows", C.c_int), ("sink", C.POINTER(jd.CTensor)), ("kv_length", C.c_void_p),
                ("page_table", C.c_void_p), ("pages", C.c_int64), ("out", jd.CCast),
                ("exp_table", C.c_void_p), ("tanh_table", C.c_void_p), ("reciprocal_table", C.c_void_p)]


class CGradients(C.Structure):
    _fields_ = [("q", C.POINTER(jd.CTensor)), ("k", C.POINTER(jd.CTensor)), ("v", C.POINTER(jd.CTensor)),
                ("sink", C.POINTER(jd.CTensor))]


class CSaved(C.Structure):
    _fields_ = [("lse", C.POINTER(jd.CTensor)), ("max", C.POINTER(jd.CTensor)),
                ("sum", C.POINTER(jd.CTensor))]


def bind(lib):
    P, T = C.POINTER, C.POINTER(jd.CTensor)
    vp, i, s = C.c_void_p, C.c_int, C.c_char_p
    for name, res, args in (
        ("ng_attention_find", P(CSchedule), [s]),
        ("ng_attention_set", i, [P(CSchedule), s, s]),
        ("ng_attention_schedule_check", i, [P(CSchedule), s, C.c_size_t]),
        ("ng_attention_param_key", s, [i]),
        ("ng_attention_param_print", C.c_size_t, [i, C.c_int32, s, C.c_size_t]),
        ("ng_attention_backward", i, [vp, P(CAttention), T, T, T, T, P(CSaved), T, P(CGradients)]),
        ("ng_attention", i, [vp, P(CAttention), T, T, T, T, P(CSaved)]),
    ):
        f = getattr(lib.c, name)
        f.restype, f.argtypes = res, args
    keys = [lib.c.ng_attention_param_key(j).decode() for j in range(len(KEYS))]
    assert keys == KEYS, "attention.def has changed: %s" % keys


def texts(lib, schedule):
    out = {}
    for j, key in enumerate(KEYS):
        buf = C.create_string_buffer(64)
        lib.c.ng_attention_param_print(j, schedule.set[j].value, buf, 64)
        out[key] = int(buf.value, 0) if key in NUMBERS else buf.value.decode()
    return out


def real(rng, fmt, spread):
    return m.encode(fmt, m.num(Fraction(rng.gauss(0, spread))), m.SAT)


class Judge:
    def __init__(self, lib, rng, show):
        self.lib, self.rng, self.show = lib, rng, show
        self.cases = self.elements = self.mismatches = 0
        self.refused = 0
        self.cover = collections.defaultdict(collections.Counter)
        self.rules = {}

    # -- a schedule ------------------------------------------------------------------------------

    def settings(self):
        """Changes that keep a small shape interesting, and anything else by chance."""
        rng = self.rng
        mx = rng.random() < 0.25
        unit = 32 if mx else rng.choice([1, 2, 3, 5, 8])
        tile = unit * rng.randint(1, 3)
        out = {
            "key_tile": tile,
            "section": rng.choice([0, tile, tile, 2 * tile, 3 * tile]),
            "section_from": rng.choice([0, 0, 4, 9]),
            "skip_queries": rng.choice([0, 1, 2, 3]),
            "skip_keys": rng.choice([0, unit, unit, 2 * unit]),
            "pv_keys": rng.choice([0, unit, 2 * unit]),
        }
        if rng.random() < 0.3:  # cuts that meet nowhere; with blocks of P they are multiples of 32
            step = 32 if mx else 1
            tile = step * rng.randint(1, 2 if mx else 12)
            out.update(key_tile=tile, section=tile * rng.randint(0, 3), skip_queries=rng.randint(0, 5),
                       skip_keys=step * rng.randint(0, 2 if mx else 9), pv_keys=step * rng.randint(0, 3 if mx else 9))
        free = {
            "score_format": ["f32", "bf16"],
            "scale_place": ["q", "scores", "exp"],
            "score_order": ["mask_scale", "scale_mask"],
            "cap_argument": ["divide", "reciprocal"],
            "mask": ["0xFF7FFFFF", "0xFF800000", "0xC77FE000", "0xC0233333"],
            "max_init": ["0xFF7FFFFF", "0xFE967699", "0xFF800000", "0xC0A00000"],
            "exp_base": ["e", "2"],
            "mx_rule": ["floor", "floor_up1", "ceil", "even", "rceil"],
            "mx_input": ["f32", "bf16"],
            "sum_source": ["exp", "p"],
            "sum_order": ["sequential", "tree", "ones"],
            "update": ["two", "fma", "accumulator"],
            "o_format": ["f32", "q"],
            "sink_place": ["first", "last"],
            "normalise": ["reciprocal", "divide"],
            "exp": ["cr", "cr", "table"],
            "tanh": ["cr", "cr", "table"],
            "reciprocal": ["cr", "cr", "table"],
        }
        for key, values in free.items():
            if rng.random() < 0.35:
                out[key] = rng.choice(values)
        for key in ("mask", "max_init"):  # any negative number, or one as large as scores
            if rng.random() < 0.1:
                out[key] = "0x%08X" % rng.choice([rng.randint(0x80000001, 0xFF800000), rng.randint(0xBE000000, 0xC2FFFFFF)])
        if rng.random() < 0.2:  # a fill that bf16 rounds, near the scores
            out.update(score_format="bf16", mask="0xC0233333")
        if mx:
            out.update(p_block=32, p_format=rng.choice(["e4m3fn", "e5m2"]), q_block=32,
                       q_format=rng.choice(["e4m3fn", "e5m2"]), kv_format="given")
        else:
            out.update(p_block=0, q_block=0)
            out["p_format"] = rng.choice(["bf16", "bf16", "f16", "e4m3", "e5m2", "f32", "e4m3fn"])
            out["q_format"] = rng.choice(["given", "bf16", "bf16", "e4m3", "f32"])
            out["kv_format"] = rng.choice(["given", "bf16", "bf16", "f16"])
        if out.get("update") == "accumulator":
            out["pv_keys"] = 0
        return out, mx

    def schedule(self, base, changes):
        """The preset with changes: the struct and the texts, or None if it is refused."""
        lib = self.lib
        s = CSchedule.from_buffer_copy(lib.c.ng_attention_find(base.encode()).contents)
        for key, value in changes.items():
            st = lib.c.ng_attention_set(C.byref(s), key.encode(), str(value).encode())
            assert st == jd.OK, (key, value)
        why = C.create_string_buffer(300)
        if lib.c.ng_attention_schedule_check(C.byref(s), why, 300) != jd.OK:
            return None
        return s, texts(lib, s)

    # -- data --------------------------------------------------------------------------------------

    def codes(self, fmt, n, style):
        rng = self.rng
        if style == "usual":
            return [real(rng, fmt, 1) for _ in range(n)]
        if style == "large":
            return [real(rng, fmt, 8) for _ in range(n)]
        if style == "special":
            out = [real(rng, fmt, 1) for _ in range(n)]
            for c in jd.codes_of(rng, fmt, 3, "special"):
                out[rng.randrange(n)] = c
            return out
        if style == "same":
            return [real(rng, fmt, 1)] * n
        if style == "tie":  # f32: half way between two bf16 numbers, and here and there a neighbour
            tie = real(rng, "bf16", 1) << 16 | 0x8000
            return [tie + rng.choice([0, 0, 0, 0, 0, 0, -1, 1, -0x9000, 0x9000]) for _ in range(n)]
        if style == "positive":
            return [m.encode(fmt, m.num(Fraction(rng.randint(8, 63), 16)), m.RNE) for _ in range(n)]
        if style == "few":  # integers whose means are often half way between two numbers of o
            return [m.encode(fmt, m.num(Fraction(rng.randint(1, 7) if fmt == "e5m2" else rng.randint(128, 255))), m.RNE)
                    for _ in range(n)]
        return jd.codes_of(rng, fmt, n, rng.choice(["zeros", "tiny", "huge", "ones", "edge"]))

    def tensor(self, fmt, dims, mx_axis=None, style=None):
        """Memory, and codes[...] nested; blocks of 32 along mx_axis."""
        rng = self.rng
        n = dims[0] * dims[1] * dims[2] * dims[3]
        style = style or rng.choices(["usual", "large", "special", "same", "odd"], [6, 2, 1, 1, 1])[0]
        codes = self.codes(fmt, n, style)
        mem = jd.Memory(rng, fmt, dims, codes)
        t = mem.tensor()
        scale_at = None
        if mx_axis is not None:
            sd = list(dims)
            sd[mx_axis] = -(-dims[mx_axis] // 32)
            count = sd[0] * sd[1] * sd[2] * sd[3]
            raw = bytes(rng.randint(124, 129) if rng.random() < 0.99 else rng.choice([0, 254, 255])
                        for _ in range(count))
            mem.scale = C.create_string_buffer(raw, count)
            t.scale, t.scale_format = C.addressof(mem.scale), jd.FORMAT_CODE["e8m0"]
            t.block, t.block_axis = 32, mx_axis

            def scale_at(ix):  # noqa: F811
                ix = list(ix)
                ix[mx_axis] //= 32
                return raw[((ix[0] * sd[1] + ix[1]) * sd[2] + ix[2]) * sd[3] + ix[3]]

        def code_at(ix):
            return codes[((ix[0] * dims[1] + ix[1]) * dims[2] + ix[2]) * dims[3] + ix[3]]

        return mem, t, code_at, scale_at

    def rows(self, fmt, code_at, scale_at, where, width):
        """An at.Tensor of the rows that `where` lists, each a prefix of three indices."""
        return at.Tensor(fmt, [[code_at(w + (e,)) for e in range(width)] for w in where],
                         [[scale_at(w + (e,)) for e in range(width)] for w in where] if scale_at else None)

    def multiplier(self, prof, kinds):
        """multiply(which, a, b, c) of item 64, or None where the profile has no rule."""
        lib, rules = self.lib, {}
        for which, (a, b, mode) in kinds.items():
            key = (C.addressof(prof.contents), a, b, mode)
            if key not in self.rules:
                why = C.create_string_buffer(400)
                r = lib.c.ng_profile_rule(prof, jd.FORMAT_CODE[a], jd.FORMAT_CODE[b], jd.MODES.index(mode), why, 400)
                self.rules[key] = lib.rule_params(r) if r else None
            p = self.rules[key]
            if p is None:
                return None
            rules[which] = m.Array(p) if p["family"] == "array" else m.Fused(p, "f32")

        def multiply(which, a, b, c):
            cf = None if c is None else m.to_fixed(c)
            v = m.to_fraction(rules[which].element(a, b, cf))
            return m.NOT_A_NUMBER if v.kind == m.NAN else v

        return multiply

    def table(self, f):
        """A bf16 table of about a function, with errors, as a device's would have."""
        out = []
        for c in range(1 << 16):
            x = struct.unpack("<f", struct.pack("<I", c << 16))[0]
            if not x or not abs(x) < 80:  # any function does
                out.append(0 if c >> 15 else 0x7F80)
                continue
            y = min(max(f(x), -1e38), 1e38)
            out.append(struct.unpack("<I", struct.pack("<f", y))[0] >> 16 ^ (c % 7 == 0))
        return (C.c_uint16 * 65536)(*out)

    # -- a case ---------------------------------------------------------------------------------------

    def case(self, prof_name, base, changes, shape, options, formats, mx):
        rng, lib = self.rng, self.lib
        made = self.schedule(base, changes)
        self.cases += 1
        if made is None:
            self.refused += 1
            return
        sched, s = made
        B, Hq, Hkv, Sq, Skv, d, dv = shape
        fq, fk, fv, fo = formats
        if s["o_format"] == "q" and fq not in ("f32", "bf16", "f16"):
            self.refused += 1
            return
        pages = options.get("pages")
        kdims = [pages[0], Hkv, pages[1], d] if pages else [B, Hkv, Skv, d]
        qm, qt, qa, qs = self.tensor(fq, [B, Hq, Sq, d], 3 if mx and s["arithmetic"] == "real" else None, options.get("qk_style"))
        km, kt, ka, ks = self.tensor(fk, kdims, 3 if mx else None, options.get("qk_style"))
        vm, vt, va, vs = self.tensor(fv, kdims[:3] + [dv], 2 if mx else None, options.get("v_style"))
        prof = lib.c.ng_profile_find(prof_name.encode())
        mode = "mx" if mx else "plain"
        in_q = fq if s["q_format"] == "given" else s["q_format"]
        in_k = fk if s["kv_format"] == "given" or mx else s["kv_format"]
        in_v = fv if s["kv_format"] == "given" or mx else s["kv_format"]
        kinds = {"scores": (in_q, in_k, mode), "pv": (s["p_format"], in_v, mode)}
        if s["sum_order"] == "ones":
            kinds["ones"] = (s["p_format"], s["p_format"], mode)
        real_one = s["arithmetic"] == "real"
        multiply = None if real_one else self.multiplier(prof, kinds)

        op = CAttention(size=C.sizeof(CAttention), profile=prof, schedule=C.pointer(sched))
        op.scale, op.softcap = options["scale"], options["softcap"]
        op.causal, op.align, op.window = options["causal"], options["align"] == "top_left", options["window"]
        op.masked_rows = options["masked_rows"] == "zero"
        cast = options["cast"]
        words = [rng.getrandbits(32) for _ in range(B * Hq * Sq * dv)]
        wa = jd.words_array(words)
        op.out = jd.c_cast(cast, wa if cast.round == "sr" else None)
        keep = []
        sinks = self.sinks(op, Hq, keep) if options["sink"] else None
        lengths = options["lengths"]
        if lengths:
            arr = (C.c_int64 * B)(*lengths)
            keep.append(arr)
            op.kv_length = C.addressof(arr)
        if pages:
            arr = (C.c_int64 * len(options["table"]))(*options["table"])
            keep.append(arr)
            op.page_table, op.pages = C.addressof(arr), len(options["table"]) // B
        tables = {}
        for key, f in (("exp", math.exp), ("tanh", math.tanh), ("reciprocal", lambda x: 1 / x)):
            if s[key] == "table":
                t = self.tables(key, f)
                tables[key + "_table"] = t
                setattr(op, key + "_table", C.addressof(t))

        O = jd.Memory(rng, fo, [B, Hq, Sq, dv])
        stats = [jd.Memory(rng, "f32", [B, Hq, Sq]) for _ in range(3)]
        to, ts = O.tensor(), [x.tensor() for x in stats]
        saved = CSaved(*[C.pointer(t) for t in ts])
        name = rng.choice(list(lib.ctx))
        status = lib.c.ng_attention(lib.ctx[name], C.byref(op), C.byref(qt), C.byref(kt), C.byref(vt), C.byref(to), C.byref(saved))
        what = "%s on %s %s\n shape %s formats %s options %s ctx %s seed case %d" % (
            base, prof_name, s, shape, formats, options, name, self.cases)
        if status != jd.OK:
            place = s["scale_place"]
            known = not real_one and (multiply is None or (place == "exp" and (sinks or options["softcap"])))
            self.refused += 1
            if not known or O.buf.raw != O.before:
                self.fail(what, "status %s: %s" % (jd.STATUS[status], lib.message(lib.ctx[name])))
            return
        for key in KEYS:
            self.cover[key][s[key]] += 1
        want_o, want_stats = [], [[], [], []]
        for b in range(B):
            T = lengths[b] if lengths else Skv
            for h in range(Hq):
                where = []
                for j in range(T):
                    if pages:
                        per = len(options["table"]) // B
                        where.append((options["table"][b * per + j // pages[1]], h // (Hq // Hkv), j % pages[1]))
                    else:
                        where.append((b, h // (Hq // Hkv), j))
                o = dict(options, keys=Skv, dv=dv, sink=sinks[h] if sinks else None, **tables)
                o["scale"] = m.decode("f32", options["scale"]) if options["scale"] else None
                o["softcap"] = m.decode("f32", options["softcap"]) if options["softcap"] else None
                operands = (self.rows(fq, qa, qs, [(b, h, i) for i in range(Sq)], d),
                            self.rows(fk, ka, ks, where, d), self.rows(fv, va, vs, where, dv))
                head = at.Exact(s, o, *operands) if s["arithmetic"] == "real" else at.Head(s, o, *operands, multiply)
                for i in range(Sq):
                    out, *st3 = head.row(i)
                    for v in out:
                        want_o.append(m.encode(fo, m.NOT_A_NUMBER if v.kind == m.NAN else v, cast, words[len(want_o)]))
                    for x, v in zip(want_stats, st3):
                        x.append(m.encode("f32", m.NOT_A_NUMBER if v.kind == m.NAN else v, m.RNE))
        self.compare(what + "\n o", O, want_o)
        for x, w, n in zip(stats, want_stats, ("lse", "max", "sum")):
            self.compare(what + "\n " + n, x, w)

    made_tables = {}

    def tables(self, key, f):
        if key not in self.made_tables:
            self.made_tables[key] = self.table(f)
        return self.made_tables[key]

    def compare(self, what, mem, want):
        got = mem.get()
        self.elements += len(want)
        if got != want:
            x = next(i for i in range(len(want)) if got[i] != want[i])
            n = sum(g != w for g, w in zip(got, want))
            self.fail(what, "element %d: want %x got %x (%d of %d differ)" % (x, want[x], got[x], n, len(want)))
        elif not mem.untouched():
            self.fail(what, "wrote outside the tensor")

    def fail(self, what, why):
        self.mismatches += 1
        if self.mismatches <= self.show:
            print("MISMATCH %s\n  %s" % (what, why), flush=True)

    def options(self, B, Sq, Skv):
        rng = self.rng
        cast = m.Cast(rng.choice(["rne"] * 5 + ["sr", "rtz"]), rng.choice(["inf", "sat"]))
        return {
            "scale": rng.choice([0, 0x3E000000, 0x3E3504F3, 0x3F800000, 0x40400000]),
            "softcap": rng.choice([0, 0, 0, 0x41F00000, 0x3FC00000]),
            "causal": rng.random() < 0.4,
            "align": rng.choice(["bottom_right", "bottom_right", "top_left"]),
            "window": rng.choice([0, 0, 0, 1, 2, 5, 9]),
            "masked_rows": rng.choice(["schedule", "zero"]),
            "sink": rng.random() < 0.3,
            "lengths": [rng.randint(0, Skv) for _ in range(B)] if rng.random() < 0.3 else None,
            "cast": cast,
        }

    def random_case(self):
        rng = self.rng
        changes, mx = self.settings()
        base = rng.choice(["trn-prefill", "trn-decode", "trn-mx-decode", "flash"])
        if mx and rng.random() < 0.6:  # the slow ones
            changes, mx = self.settings()
        B, Hkv = rng.choice([1, 1, 2]), rng.choice([1, 1, 2])
        Hq = Hkv * rng.choice([1, 1, 2, 3])
        Sq = rng.choice([1, 1, 2, 3, 4, 5])
        Skv = rng.randint(1, 80 if mx else 24)
        if rng.random() < 0.2:
            changes["section_from"] = Skv - rng.choice([0, 1])
        d = rng.choice([32, 40, 64] if mx else [1, 2, 3, 7, 8, 16])
        dv = rng.choice([1, 2, 3])
        options = self.options(B, Sq, Skv)
        if changes.get("scale_place") == "exp" and rng.random() < 0.9:
            options.update(sink=False, softcap=0, scale=options["scale"] or 0x3E000000)
        if rng.random() < 0.2:
            rows = 32 if mx else rng.choice([1, 2, 4])
            per = -(-Skv // rows)
            Skv = per * rows
            blocks = per * B + rng.randint(0, 2)
            options["pages"] = (blocks, rows)
            options["table"] = [rng.randrange(blocks) for _ in range(per * B)]
            if options["lengths"]:  # pages behind the length are not looked at
                for b, T in enumerate(options["lengths"]):
                    for p in range(-(-T // rows), per):
                        options["table"][b * per + p] = -7
        if mx:
            prof = rng.choice(["trn3", "ocp-mx", "nv-blackwell-tcgen05"])
            fk, fv = rng.choice(["e4m3fn", "e5m2"]), rng.choice(["e4m3fn", "e5m2"])
            fq = rng.choice(["bf16", "f32"])
        else:
            prof = rng.choice(["trn2", "trn3", "fma-f32", "nv-hopper", "trn1"])
            fq = rng.choice(["bf16", "bf16", "f32", "f16"])
            if rng.random() < 0.8:  # f32 and e4m3 beside e4m3fn meet only their like
                changes["q_format"] = rng.choice(["bf16", "f16", "e5m2"])
                changes["p_format"] = rng.choice(["bf16", "bf16", "f16", "e5m2"])
                changes["kv_format"] = rng.choice(["bf16", "f16"])
            if rng.random() < 0.9 and changes.get("sum_order") == "ones":
                changes["sum_source"] = "p"
            fk, fv = rng.choice(["bf16", "bf16", "f16", "e4m3"]), rng.choice(["bf16", "bf16", "f32", "e5m2"])
        self.case(prof, base, changes,
                  (B, Hq, Hkv, Sq, Skv, d, dv), options, (fq, fk, fv, rng.choice(["bf16", "f32", "f32", "f16", "e4m3"])), mx)

    def exact_case(self):
        """The schedule exact: shapes of a few keys, for the model is slow."""
        rng = self.rng
        mx = rng.random() < 0.2
        B, Hq, Sq, Skv, d = 1, rng.choice([1, 2]), rng.choice([1, 2, 3]), rng.randint(1, 9), rng.choice([1, 2, 5])
        o = self.options(B, Sq, Skv)
        fk = rng.choice(["e4m3fn", "e5m2"]) if mx else rng.choice(["bf16", "f32", "f16", "e4m3"])
        if not mx and rng.random() < 0.4:  # a weight beyond all digits decides a tie
            o.update(v_style="tie", scale=0x45FA0000, softcap=0, sink=False)
            self.case("trn3", "exact", {}, (B, Hq, 1, Sq, Skv, d, 2), o, ("f32", "f32", "f32", "bf16"), mx)
            return
        if not mx and rng.random() < 0.3:  # a cap that is reached: what it lacks decides a tie
            o.update(qk_style="positive", v_style="few", causal=False, sink=False, lengths=None,
                     softcap=0x3FC00000, scale=rng.choice([0x43C80000, 0x45FA0000]))
            fk, fo = rng.choice([("e5m2", "e4m3"), ("bf16", "bf16")])
            self.case("trn3", "exact", {}, (B, Hq, 1, Sq, rng.choice([2, 4, 8]), d, 3), o, ("bf16", fk, fk, fo), mx)
            return
        self.case("trn3", "exact", {}, (B, Hq, 1, Sq, Skv, d, rng.choice([1, 2])), o,
                  (fk if mx else rng.choice(["bf16", "f32", "f16"]), fk, fk, rng.choice(["bf16", "f32", "f16", "e4m3"])), mx)

    def sinks(self, op, Hq, keep):
        """Logits of sinks for op; their memory goes to keep."""
        rng = self.rng
        f = rng.choice(["f32", "bf16"])
        codes = [real(rng, f, 3) if rng.random() < 0.8 else m.encode(f, rng.choice([
            m.infinity(True), m.num(Fraction(-10**30)), m.num(Fraction(50)), m.NOT_A_NUMBER]), m.RNE) for _ in range(Hq)]
        memory = jd.Memory(rng, f, [Hq], codes)
        view = memory.tensor()
        keep += [memory, view]
        op.sink = C.pointer(view)
        return [m.decode(f, c) for c in codes]

    def back_case(self):
        """ng_attention_backward after ng_attention."""
        rng, lib = self.rng, self.lib
        changes, _ = self.settings()
        fmt = lambda: rng.choice(["bf16", "bf16", "f16", "e5m2"])  # noqa: E731
        changes.update(scale_place=rng.choice(["q", "scores", "exp"]), statistics=rng.choice(["lse", "max_sum"]), q_block=0,
                       p_block=0, q_format=rng.choice(["given", fmt()]), kv_format=rng.choice(["given", fmt()]), p_format=fmt())
        made = self.schedule(rng.choice(["trn-prefill", "flash"]), changes)
        B, Hkv, Sq, Skv = rng.choice([1, 1, 2]), rng.choice([1, 2]), rng.randint(1, 6), rng.randint(1, 14)
        Hq, d, dv = Hkv * rng.choice([1, 2]), rng.choice([1, 3, 8]), rng.choice([1, 2, 4])
        o = self.options(B, Sq, Skv)
        o.update(cast=m.Cast("rne", o["cast"].overflow))
        if changes["scale_place"] == "exp":
            o.update(sink=False, softcap=0)
        self.cases += 1
        if made is None:
            self.refused += 1
            return
        sched, s = made
        fq, fk, fv, fo, fd = fmt(), fmt(), fmt(), rng.choice(["bf16", "f32"]), fmt()
        if s["o_format"] == "q" and fq == "e5m2":
            fq = "bf16"
        prof = lib.c.ng_profile_find(rng.choice([b"trn2", b"fma-f32", b"trn3"]))
        pick = lambda key, given: given if s[key] == "given" else s[key]  # noqa: E731
        q_, k_, v_, d_, p_ = pick("q_format", fq), pick("kv_format", fk), pick("kv_format", fv), pick("q_format", fd), s["p_format"]
        multiply = self.multiplier(prof, {k: (a, b, "plain") for k, (a, b) in {
            "scores": (q_, k_), "pv": (p_, v_), "ones": (p_, p_), "dp": (d_, v_), "dq": (p_, k_), "dk": (p_, q_), "dv": (p_, d_)}.items()})
        assert multiply
        (qm, qt, qa, _), (km, kt, ka, _), (vm, vt, va, _) = (
            self.tensor(fq, [B, Hq, Sq, d]), self.tensor(fk, [B, Hkv, Skv, d]), self.tensor(fv, [B, Hkv, Skv, dv]))
        dm, dt, da, _ = self.tensor(fd, [B, Hq, Sq, dv])
        op = CAttention(size=C.sizeof(CAttention), profile=prof, schedule=C.pointer(sched))
        op.scale, op.softcap, op.causal, op.window = o["scale"], o["softcap"], o["causal"], o["window"]
        op.align, op.masked_rows, op.out = o["align"] == "top_left", o["masked_rows"] == "zero", jd.c_cast(o["cast"])
        tables = {}
        for key, f in (("exp", math.exp), ("tanh", math.tanh), ("reciprocal", lambda x: 1 / x)):
            if s[key] == "table":
                tables[key + "_table"] = self.tables(key, f)
                setattr(op, key + "_table", C.addressof(tables[key + "_table"]))
        keep = []
        sinks = self.sinks(op, Hq, keep) if o["sink"] else None
        if o["lengths"]:
            lengths = (C.c_int64 * B)(*o["lengths"])
            op.kv_length = C.addressof(lengths)
        O = jd.Memory(rng, fo, [B, Hq, Sq, dv])
        stats = [jd.Memory(rng, "f32", [B, Hq, Sq]) for _ in range(3)]
        to, ts = O.tensor(), [x.tensor() for x in stats]
        saved = CSaved(*[C.pointer(t) for t in ts])
        name = rng.choice(list(lib.ctx))
        ctx = lib.ctx[name]
        what = "backward %s\n shape %s formats %s options %s ctx %s case %d" % (
            s, (B, Hq, Hkv, Sq, Skv, d, dv), (fq, fk, fv, fo, fd), o, name, self.cases)
        st = lib.c.ng_attention(ctx, C.byref(op), C.byref(qt), C.byref(kt), C.byref(vt), C.byref(to), C.byref(saved))
        if st != jd.OK:
            return self.fail(what, "forward: %s %s" % (jd.STATUS[st], lib.message(ctx)))
        grads = [jd.Memory(rng, rng.choice(["bf16", "f32"]), dims) for dims in ([B, Hq, Sq, d], [B, Hkv, Skv, d], [B, Hkv, Skv, dv])]
        if sinks:
            grads.append(jd.Memory(rng, rng.choice(["bf16", "f32"]), [Hq]))
        gt = [g.tensor() for g in grads]
        grad = CGradients(*[C.pointer(t) for t in gt])
        st = lib.c.ng_attention_backward(ctx, C.byref(op), C.byref(qt), C.byref(kt), C.byref(vt), C.byref(to), C.byref(saved),
                                         C.byref(dt), C.byref(grad))
        if st != jd.OK:
            return self.fail(what, "%s %s" % (jd.STATUS[st], lib.message(ctx)))
        o_codes, st_codes = O.get(), [x.get() for x in stats]
        want, terms = [[], [], [], []], [[] for _ in range(Hq)]
        ho = dict(o, keys=Skv, dv=dv, sink=None, **tables)
        ho["scale"] = m.decode("f32", o["scale"]) if o["scale"] else None
        ho["softcap"] = m.decode("f32", o["softcap"]) if o["softcap"] else None
        G = Hq // Hkv
        for b in range(B):
            T = o["lengths"][b] if o["lengths"] else Skv
            backs = []
            for g in range(Hkv):
                hs = range(g * G, (g + 1) * G)
                heads = [at.Head(s, dict(ho, sink=sinks[h] if sinks else None), self.rows(fq, qa, None, [(b, h, i) for i in range(Sq)], d),
                                 self.rows(fk, ka, None, [(b, g, j) for j in range(T)], d),
                                 self.rows(fv, va, None, [(b, g, j) for j in range(T)], dv), multiply) for h in hs]
                at_row = lambda h, i: (b * Hq + h) * Sq + i  # noqa: E731
                backs.append(at.Back(
                    heads, fo, [[o_codes[at_row(h, i) * dv:][:dv] for i in range(Sq)] for h in hs],
                    fd, [[[da((b, h, i, c)) for c in range(dv)] for i in range(Sq)] for h in hs],
                    [[[m.decode("f32", x[at_row(h, i)]) for x in st_codes] for i in range(Sq)] for h in hs]))
            for h in range(Hq):
                terms[h] += backs[h // G].sink_terms[h % G]
                for i in range(Sq):
                    want[0] += backs[h // G].dq(h % G, i) or [at.ZERO] * d
            for g in range(Hkv):
                for j in range(Skv):
                    dk, dvs = backs[g].dkv(j) if j < T else ([at.ZERO] * d, [at.ZERO] * dv)
                    want[1] += dk
                    want[2] += dvs
        want[3] = [backs[0].first.in_order(t) if t else at.ZERO for t in terms]
        for n, (mem, values) in enumerate(zip(grads, want)):
            self.compare(what + "\n d" + "qkvs"[n], mem, [
                m.encode(mem.fmt, m.NOT_A_NUMBER if v.kind == m.NAN else v, o["cast"]) for v in values])

    def preset_case(self, base, Sq, Skv, d, causal):
        rng = self.rng
        mx = base == "trn-mx-decode"
        o = self.options(1, Sq, Skv)
        o.update(causal=causal, lengths=None, softcap=0, window=0, scale=0x3E000000, cast=m.RNE)
        fk = "e4m3fn" if mx else "bf16"
        self.case("trn3", base, {}, (1, 1, 1, Sq, Skv, d, 1), o, ("bf16", fk, fk, "bf16"), mx)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("library", nargs="?", default="libnarrowgauge.so")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--cases", type=float, default=1.0, help="multiply the number of cases")
    ap.add_argument("--long", action="store_true", help="ten times the cases, presets at full size")
    ap.add_argument("--show", type=int, default=3, help="mismatches printed")
    ap.add_argument("--cover", action="store_true", help="print how often each value was run")
    args = ap.parse_args()
    try:
        lib = jd.Library(args.library)
        bind(lib)
    except (OSError, AttributeError) as e:
        print("skipped: %s" % e)
        return 77
    j = Judge(lib, random.Random("%d attention" % args.seed), args.show)
    for _ in range(int(args.cases * (2500 if args.long else 120))):
        j.random_case()
    for _ in range(int(args.cases * (1000 if args.long else 40))):
        j.exact_case()
    for _ in range(int(args.cases * (1000 if args.long else 50))):
        j.back_case()
    for base in ("trn-prefill", "trn-decode", "trn-mx-decode", "flash"):
        j.preset_case(base, 2, 700, 4, True)
        if args.long:
            j.preset_case(base, 1, 10241, 2, False)
            j.preset_case(base, 1, 2100, 64, False)
    if args.cover:
        for key in KEYS:
            print("  %-13s %s" % (key, " ".join("%s:%d" % kv for kv in sorted(j.cover[key].items(), key=str))))
    print("attention: %d cases (%d refused), %d elements, %d mismatches" % (
        j.cases, j.refused, j.elements, j.mismatches))
    return 1 if j.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
