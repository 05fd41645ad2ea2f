# SPDX-License-Identifier: Apache-2.0
"""The angles of ngauge run layer against docs/numerics.md 11.11 item 134, computed to 60 digits.

usage: angles.py TEST_ANGLE [--positions N]

Every pair of N positions: the first, the last, powers of two, and others at random.
"""

import argparse
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import layer  # noqa: E402
from model import RNE, encode, num  # noqa: E402

LAST = 131071


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("program")
    ap.add_argument("--positions", type=int, default=60)
    args = ap.parse_args()
    rng = random.Random(1)
    positions = [0, 1, 2, LAST - 1, LAST] + [1 << i for i in range(2, 17)]
    positions += [rng.randrange(LAST) for _ in range(args.positions - len(positions))]
    done = subprocess.run([args.program, "--print", *map(str, positions)], capture_output=True, text=True, check=True)
    phi, factor, bad = layer.frequencies(), layer.attention_factor(), 0
    want_phi = [encode("f32", num(f), RNE) for f in phi]
    for position, line in zip(positions, done.stdout.splitlines(), strict=True):
        got = [int(v, 16) for v in line.split()]
        angles = [layer.angle_codes(position, f, factor) for f in phi]
        want = want_phi + [c for c, _ in angles] + [s for _, s in angles]
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            if g != w:
                bad += 1
                print("MISMATCH position %d, %s of pair %d: %x, wanted %x" % (
                    position, ("frequency", "cosine", "sine")[i // 32], i % 32, g, w))
    print("angles: %d positions of %d pairs, %d mismatches" % (len(positions), len(phi), bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
