#!/usr/bin/env python3
"""How far relaxed methods are from the target's distribution, by the length they accept, on the discrete demo: the papers' orderings.

    cmake --build build/release --target discrete_divergence
    python3 bench/discrete_divergence.py --out bench/results/discrete_divergence.json
    python3 bench/discrete_divergence.py --table bench/results/discrete_divergence.json       # only print it

bench/discrete_divergence.c asks every method what it makes of the same blocks of drafts, which a lossless session meets on the
way through --images images: chains of 5 drafts of demo-discrete-draft, and dynamic trees as deep of demo-discrete-eagle,
guidance 2.9. It computes exactly how many drafts a method accepts in a block, and the law of each token that it takes; what is
left to chance is which blocks these are. --raw keeps what the images gave, 50 at a time; a call that was stopped goes on there.

`accepted` does not count the token that every round adds. `tv` is the total variation between the law of a token and the
target's, a mean over tokens (those of bonus tokens are 0); `kl` that of their relative entropy.

Two methods are compared at equal accepted length: each has a curve, straight between its runs, and their difference is taken
at the ends and in the middle of the lengths that both reach. Its interval has 95 % of 2000 bootstrap repetitions, which
draw the images anew, the same ones of all methods. "confirmed" or "refuted": the interval is on one side of 0 at all three;
"mixed": on either side, or on one at some; "undecided": 0 is in all.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
CHUNK, REPETITIONS = 50, 2000
DELTAS = (1.1, 1.25, 1.5, 2, 3, 4, 6)
SHAPES = ("chain", "tree")

# name: options of its runs, by rising relaxation
CURVES = {
    "vanilla": ["spec vanilla"],
    "uniform-rsd": [f"spec uniform-rsd, cool_delta {d}" for d in DELTAS],
    "cool-sd-exp": [f"spec cool-sd-exp, cool_delta {d}" for d in DELTAS],
    "cool-sd-exp, nu 0.2": [f"spec cool-sd-exp, cool_nu 0.2, cool_delta {d}" for d in DELTAS],
    "cool-sd-linear": [f"spec cool-sd-linear, cool_delta {d}" for d in DELTAS],
    **{f"{name}, k {k}": [f"spec {name}, lantern_k {k}, lantern_lambda {v}" for v in (0.5, 1, 2, 4, 8, 16)]
       for k in (10, 50) for name in ("lantern-pp", "lantern-pp-gstar")},
    **{f"{name}, k 32": [f"spec {name}, lantern_k 32, lantern_delta {v}" for v in (0.05, 0.1, 0.2, 0.4)]
       for name in ("lantern", "lantern-gstar")},
}

# the claim that the first is nearer to the target than the second at equal accepted length
CLAIMS = [
    ("cool-sd-exp", "uniform-rsd"), ("cool-sd-exp, nu 0.2", "uniform-rsd"), ("cool-sd-linear", "uniform-rsd"),
    ("cool-sd-exp", "lantern-pp, k 10"), ("cool-sd-linear", "lantern-pp, k 10"), ("uniform-rsd", "lantern-pp, k 10"),
    ("cool-sd-exp", "lantern-pp, k 50"), ("lantern-pp-gstar, k 10", "lantern-pp, k 10"),
    ("lantern-pp-gstar, k 50", "lantern-pp, k 50"), ("lantern-gstar, k 32", "lantern, k 32"),
]


# --- images ------------------------------------------------------------------------------------------------------------

def read(path):
    """{(shape, first): {options: report}} of what --raw has; the session's own numbers are under the shape."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        part = json.loads(line)
        found[part["shape"], part["first"]] = {report["options"]: report for report in part["reports"]}
    return found


def measure(args):
    methods = "".join(options + "\n" for rows in CURVES.values() for options in rows)
    for first in range(0, args.images, CHUNK):
        for shape in SHAPES:
            if (shape, first) in read(args.raw):
                continue
            print(f"{shape}: images {first} to {first + CHUNK - 1}", file=sys.stderr, flush=True)
            lines = subprocess.run([args.program, shape, str(first), str(CHUNK)], input=methods, stdout=subprocess.PIPE, text=True,
                                   check=True).stdout.splitlines()
            with open(args.raw, "a") as out:
                out.write(json.dumps({"shape": shape, "first": first, "reports": [json.loads(line) for line in lines]}) + "\n")


def joined(args):
    """{shape: {options: {name: [images]}}} of the images that all shapes have."""
    have = read(args.raw)
    chunks = [first for first in range(0, args.images, CHUNK) if all((shape, first) in have for shape in SHAPES)]
    if not chunks:
        sys.exit(f"{args.raw} has no {CHUNK} images of every shape")
    return {shape: {options: {name: np.concatenate([have[shape, first][options][name] for first in chunks])
                              for name, value in report.items() if isinstance(value, list)}
                    for options, report in have[shape, chunks[0]].items()} for shape in SHAPES}


# --- numbers -----------------------------------------------------------------------------------------------------------

def numbers(run, weight):
    """Of a run, by images with these weights [..][images]."""
    rounds, accepted = weight @ run["rounds"], weight @ run["accepted"]
    return {"accepted": accepted / rounds, **{name: weight @ run[name] / (rounds + accepted) for name in ("tv", "kl")}}


def at(length, accepted, value):
    """Values [..][runs] at accepted lengths [..], straight between runs of rising `accepted` [..][runs]."""
    i = np.clip((accepted <= length[..., None]).sum(-1) - 1, 0, accepted.shape[-1] - 2)[..., None]
    a, b, x, y = (np.take_along_axis(v, j, -1)[..., 0] for v in (accepted, value) for j in (i, i + 1))
    return x + (y - x) * (length - a) / (b - a)


def compare(samples, better, worse, name):
    """At three accepted lengths: both values, and their difference with its interval. Row 0 of the samples is the images'
    own, the others are the repetitions."""
    curve = {side: [np.stack([s[n] for s in samples[side]], -1) for n in ("accepted", name)] for side in (better, worse)}
    low = max(a[0, 0] for a, _ in curve.values())
    high = min(a[0, -1] for a, _ in curve.values())
    rows = []
    for share in (0, 0.5, 1):
        length = np.full(REPETITIONS + 1, low + share * (high - low))
        first, second = (at(length, *curve[side]) for side in (better, worse))
        gap = second - first
        rows.append({"accepted": length[0], "better": first[0], "worse": second[0], "gain": gap[0],
                     "interval": list(np.percentile(gap[1:], [2.5, 97.5]))})
    signs = [int(r["interval"][0] > 0) - int(r["interval"][1] < 0) for r in rows]
    verdict = {(1, 1): "confirmed", (-1, -1): "refuted", (0, 0): "undecided"}.get((min(signs), max(signs)), "mixed")
    return {"at": rows, "verdict": verdict}


def own(run):
    """What the session itself did, with the target's distributions there."""
    tokens = run["tokens"].sum()
    found = {"accepted": run["accepted"].sum() / run["rounds"].sum(), "entropy": run["entropy"].sum() / tokens,
             "top": run["top"].sum() / tokens}
    return {**found, "tv_draft": run["tv_draft"].sum() / run["drawn"].sum()} if run["drawn"].any() else found


def judge(args):
    runs, random = joined(args), np.random.default_rng(1)
    images = len(runs["chain"]["chain"]["rounds"])
    weight = np.concatenate([np.ones((1, images)), random.multinomial(images, np.full(images, 1 / images), REPETITIONS)])
    results = {"images": images, "shapes": {}}
    for shape in SHAPES:
        samples = {name: [numbers(runs[shape][o], weight) for o in rows] for name, rows in CURVES.items()}
        results["shapes"][shape] = {
            "session": own(runs[shape][shape]),
            "curves": {name: [
                {"options": o, **{n: v[0] for n, v in s.items()}, **{f"{n}_error": v[1:].std() for n, v in s.items()}}
                for o, s in zip(rows, samples[name])] for name, rows in CURVES.items()},
            "claims": {f"{better} nearer than {worse}": {n: compare(samples, better, worse, n) for n in ("tv", "kl")}
                       for better, worse in CLAIMS}}
    return results


def table(results):
    lines = [f"{results['images']} images"]
    for shape, part in results["shapes"].items():
        lines += ["", f"**{shape}**: {json.dumps(part['session'])}", "", "| method | accepted | tv | kl |", "| --- " * 4 + "|"]
        for rows in part["curves"].values():
            for r in rows:
                shown = (f"{r[n]:.4f} ± {r[n + '_error']:.4f}" for n in ("accepted", "tv", "kl"))
                lines.append(f"| {r['options']} | {' | '.join(shown)} |")
        for claim, by in part["claims"].items():
            for name, c in by.items():
                lines.append(f"{claim}, {name}: {c['verdict']}; " + "; ".join(
                    f"at {r['accepted']:.2f} {r['better']:.4f} and {r['worse']:.4f}, gain {r['gain']:.5f} "
                    f"({r['interval'][0]:.5f} to {r['interval'][1]:.5f})" for r in c["at"]))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/discrete_divergence"))
    parser.add_argument("--images", type=int, default=200, help=f"a multiple of {CHUNK}")
    parser.add_argument("--raw", type=Path, default=ROOT / "build/discrete_divergence.jsonl", help="what the images gave")
    parser.add_argument("--judge_only", action="store_true", help="judge what --raw has, and make no images")
    parser.add_argument("--out", help="write everything as JSON to this file")
    parser.add_argument("--table", help="only print the table of such a file")
    args = parser.parse_args()
    if args.images < CHUNK or args.images % CHUNK:
        parser.error(f"--images {args.images}: expected a multiple of {CHUNK}")
    if not args.table and not args.judge_only:
        measure(args)
    results = json.loads(Path(args.table).read_text()) if args.table else judge(args)
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=1, default=float) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
