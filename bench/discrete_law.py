#!/usr/bin/env python3
"""Whether images of discrete tokens have the law of plain decoding, by every method: makes images, counts their tokens.

    cmake --build build/release --target all token_counts
    python3 bench/discrete_law.py --out bench/results/discrete_law.json         # 10^4 images a run on the discrete demo
    python3 bench/discrete_law.py --images 1000 --only sjd --out sjd.json       # only runs whose name has "sjd"

Each run makes --images images, as many of each class, by way of libmar, and is compared with plain decoding of the same
options and another seed: `tokens` counts each token, `places` each token at each place, `neighbours` each ordered pair of
tokens beside, or below, one another (eval/counts.h). `chi2` is the sum of (A - B)^2 / (A + B); its `p` is its rank among
`permutations` that swap images of one class between the runs, which is exact because the runs are independent.
`total_variation` stands beside what permutations stay below in 95 of 100. `least_p` is the least of the three p,
corrected for their number.

A lossless run passes with least_p above `level`, which it fails with that probability at most: with n lossless runs and
without any error one fails with probability n * level. The control "plain" is plain decoding of a third seed. Runs with
`exact` false have another law; `detected` says whether that is seen, and shows the power: a relaxation of delta 4 must
be, one of delta 1.1 need not.

`mar fidelity` makes the same comparison, with one seed for all runs. Runs of one seed are nearly independent, too: random
numbers have the address (seed, image, position, round), and a run that drafts has other rounds at all positions but the
first few.
"""

import argparse
import ctypes
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from libmar import BUILT, Library

CLASSES, SIDE = 10, 8
BATCH = 50
DRAFT = {"draft": "demo-discrete-draft"}
EAGLE = {"draft": "demo-discrete-eagle"}
PLAIN = {"cfg": "1"}
FILTERED = {"cfg": "1", "top_k": "30", "top_p": "0.8", "temperature": "0.9"}
GUIDED = {"cfg": "2.9"}

# name, options that plain decoding has, too, those of the method, and whether it is lossless
RUNS = [
    ("plain", PLAIN, {}, True),
    ("vanilla, chain of 4", PLAIN, {**DRAFT, "gamma": "4"}, True),
    ("sjd, window 8", PLAIN, {"spec": "sjd", "window": "8"}, True),
    ("sjd-pac, window 8, 2 children", PLAIN, {"spec": "sjd-pac", "window": "8", "pac_children": "2"}, True),
    ("vanilla, EAGLE, dynamic tree", PLAIN, {**EAGLE, "tree": "dynamic", "gamma": "3", "tree_top": "2", "tree_total": "5"}, True),
    ("uniform-rsd, delta 1.5", PLAIN, {**DRAFT, "gamma": "4", "spec": "uniform-rsd", "cool_delta": "1.5"}, False),
    ("cool-sd-exp, delta 1.1", PLAIN, {**DRAFT, "gamma": "4", "spec": "cool-sd-exp", "cool_delta": "1.1"}, False),
    ("lantern-pp", PLAIN, {**DRAFT, "gamma": "4", "spec": "lantern-pp"}, False),
    ("vanilla, static tree 3,2", PLAIN, {**DRAFT, "tree": "3,2"}, True),
    ("sjd-pac, window 8, without tree", PLAIN, {"spec": "sjd-pac", "window": "8", "pac_depth": "0"}, True),
    ("sjd-pac, window 8, 2 children, stops", PLAIN,
     {"spec": "sjd-pac", "window": "8", "pac_children": "2", "pac_continue": "off"}, True),
    ("vanilla, chain of 4, guided", GUIDED, {**DRAFT, "gamma": "4"}, True),
    ("vanilla, chain of 4, filtered", FILTERED, {**DRAFT, "gamma": "4"}, True),
    ("uniform-rsd, delta 4", PLAIN, {**DRAFT, "gamma": "4", "spec": "uniform-rsd", "cool_delta": "4"}, False),
]


# --- images ------------------------------------------------------------------------------------------------------------


def make(library, vae, options, seed, images):
    """float [images][64] of a run, and its seconds."""
    session, start = library.session("demo-discrete", vae, {**options, "seed": str(seed)}, BATCH), time.time()
    tokens = np.zeros((images, SIDE * SIDE), np.float32)
    for first in range(0, images, BATCH):
        labels = [(first + i) % CLASSES for i in range(BATCH)]
        library.tokens(session, first, labels, tokens[first:first + BATCH])
    library.lib.mar_session_free(session)
    return tokens, time.time() - start


# --- statistics ----------------------------------------------------------------------------------------------------------


class Pairs(ctypes.Structure):
    _fields_ = [("images", ctypes.c_int), ("width", ctypes.c_int), ("height", ctypes.c_int), ("a", ctypes.c_void_p), ("b", ctypes.c_void_p)]


class Test(ctypes.Structure):
    _fields_ = [("cells", ctypes.c_long), ("chi2", ctypes.c_double), ("p", ctypes.c_double), ("tv", ctypes.c_double),
                ("tv_95", ctypes.c_double)]


def compare(counts, a, b, permutations):
    pairs, tests = Pairs(len(a), SIDE, SIDE, a.ctypes.data, b.ctypes.data), [Test(), Test(), Test()]
    if counts.token_counts(ctypes.byref(pairs), permutations, *map(ctypes.byref, tests)):
        sys.exit("out of memory for the counts")
    out = {name: {"cells": t.cells, "chi2": t.chi2, "p": t.p, "total_variation": t.tv, "total_variation_95": t.tv_95}
           for name, t in zip(("tokens", "places", "neighbours"), tests)}
    return {**out, "least_p": min(1.0, 3 * min(t.p for t in tests))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10000, help=f"of each run, a multiple of {BATCH}")
    parser.add_argument("--permutations", type=int, default=999)
    parser.add_argument("--level", type=float, default=0.004)
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0: one per core")
    parser.add_argument("--only", action="append",
                        help="only the runs whose name has this, or another --only; --out keeps what it has of the others")
    parser.add_argument("--library", default=BUILT)
    parser.add_argument("--counts", default=str(Path(BUILT).with_name("libtoken_counts.so")),
                        help="bench/token_counts.c, built [build/release/libtoken_counts.so]")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if args.images < BATCH or args.images % BATCH:
        sys.exit(f"--images {args.images}: expected a multiple of {BATCH}")
    library, references, waiting = Library(args.library, "auto", args.threads), {}, []
    vae = library.vae("demo-discrete")
    kept = json.loads(Path(args.out).read_text()) if args.only and Path(args.out).exists() else {"runs": []}
    if kept["runs"] and kept["images"] != args.images:
        sys.exit(f"{args.out} has runs of {kept['images']} images, expected {args.images}")
    done = {run["name"]: run for run in kept["runs"]}
    counts = ctypes.CDLL(args.counts)

    def finish(run, tokens, reference):
        run.update(compare(counts, tokens, reference, args.permutations))
        run["passes" if run["exact"] else "detected"] = (run["least_p"] > args.level) == run["exact"]
        print(f"{run['name']:38} " + "  ".join(
            f"{k} p {run[k]['p']:.3f} tv {run[k]['total_variation']:.4f} ({run[k]['total_variation_95']:.4f})"
            for k in ("tokens", "places", "neighbours")) + f"  least p {run['least_p']:.3f}", flush=True)
        done[run["name"]] = run
        runs = [done[name] for name, *_ in RUNS if name in done]
        exact = sum(r["exact"] for r in runs)
        Path(args.out).write_text(json.dumps({
            "images": args.images, "permutations": args.permutations, "level": args.level, "lossless_runs": exact,
            "false_positive_rate": exact * args.level, "runs": runs}, indent=1) + "\n")

    with ThreadPoolExecutor(1) as counting:  # while the next run is made
        for i, (name, shared, method, exact) in enumerate(RUNS):
            if not any(part in name for part in args.only or [""]):
                continue
            key = json.dumps(shared)
            if key not in references:
                seed = 1000 + [PLAIN, GUIDED, FILTERED].index(shared)
                references[key] = make(library, vae, shared, seed, args.images)
            tokens, seconds = make(library, vae, {**shared, **method}, i, args.images)
            print(f"{name}: {seconds:.0f} s", file=sys.stderr, flush=True)
            run = {"name": name, "options": {**shared, **method}, "exact": exact, "seed": i, "seconds": seconds,
                   "seconds_of_reference": references[key][1]}
            waiting.append(counting.submit(finish, run, tokens, references[key][0]))
    for result in waiting:
        result.result()  # an error is raised here
    return not all(run["passes"] for run in done.values() if run["exact"])


if __name__ == "__main__":
    sys.exit(main())
