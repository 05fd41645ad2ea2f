# SPDX-License-Identifier: Apache-2.0
"""What peers.py and peers_torch.py share: their options, and calls timed beside each other."""
import argparse
import json
import random
import statistics
import time


def options(doc, quick, names):
    """argparse's; `quick`: what --quick does; `names`: what one is that --filter looks at."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--filter", default="", help=f"regular expression on '{names}'")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="of one repetition, at least one call")
    parser.add_argument("--json", help="write the rows to this file")
    return parser.parse_args()


def timed(call, count):
    begin = time.thread_time()
    for _ in range(count):
        call()
    return (time.thread_time() - begin) / count


def race(calls, first, args):
    """Seconds of each call by name, (median, spread) of the repetitions of all, interleaved in random order. `first`:
    what one took."""
    counts = {name: max(1, round(args.seconds / max(first[name], 1e-7))) for name in calls}
    times = {name: [] for name in calls}
    order = list(calls) * args.repetitions
    random.Random(1).shuffle(order)
    for name in order:
        times[name].append(timed(calls[name], counts[name]))
    median = {name: statistics.median(t) for name, t in times.items()}
    return {name: (median[name], (max(t) - min(t)) / median[name]) for name, t in times.items()}


def finish(rows, path):
    """Writes them where asked for; the exit status: 1 if results of one differ."""
    if path:
        with open(path, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)
    return not all(r["same"] for r in rows)
