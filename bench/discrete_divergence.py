#!/usr/bin/env python3
"""How far relaxed methods are from the target's law, by the length they accept, on the discrete demo: the papers' orderings.

    cmake --build build/release --target discrete_divergence
    python3 bench/discrete_divergence.py --images 500 --out bench/results/discrete_divergence.json
    python3 bench/discrete_divergence.py --table bench/results/discrete_divergence.json       # only print it

bench/discrete_divergence.c computes the divergences exactly behind each prefix of the images that a method makes; what is
left to chance is which images these are. All runs have the same seed and labels, guidance 2.9, and blocks that are chains of
--gamma drafts of demo-discrete-draft, or dynamic trees as deep of demo-discrete-eagle. --raw keeps what each image gave, 50 images of all runs at a time: a call that was
stopped goes on there.

A mean accepted length does not count the token that every round adds. `tv` is the total variation between the law of a
token, given those before it, and the target's, the mean over tokens; `kl` that of their relative entropy, whose sum over an
image's 64 tokens is that of the images' laws. `*_best` is what they would be behind the same prefixes with the resampler G*, and `resampler` the
total variation between a token's law with either.

Two methods are compared at equal accepted length: each has a curve, straight between its runs, and their difference is taken
at the ends and in the middle of the lengths that both reach. Its interval has 95 % of 2000 bootstrap repetitions, which
draw the images anew, the same ones of all runs. "confirmed" or "refuted": the interval is on one side of 0 at all three.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
CHUNK, TOKENS, REPETITIONS = 50, 64, 2000
DELTAS = (1.1, 1.25, 1.5, 2, 3, 4, 6)
BOUNDS = (0.05, 0.1, 0.2, 0.4)
LAMBDAS = (0.5, 1, 2, 4, 8, 16)

TREE = "draft demo-discrete-eagle, tree dynamic"
PER_TOKEN = ("tv", "kl", "tv_places", "tv_best", "kl_best", "resampler", "entropy", "tv_draft", "top")

# name: options of its runs, by rising relaxation
CURVES = {
    "vanilla": ["spec vanilla"],
    "uniform-rsd": ["spec vanilla"] + [f"spec uniform-rsd, cool_delta {d}" for d in DELTAS],
    "cool-sd-exp": [f"spec cool-sd-exp, cool_delta {d}" for d in DELTAS],
    "lantern-pp, k 10": ["spec vanilla"] + [f"spec lantern-pp, lantern_k 10, lantern_lambda {v}" for v in LAMBDAS],
    "cool-sd-linear": [f"spec cool-sd-linear, cool_delta {d}" for d in (1.1, 1.5, 2, 3, 4)],
    "lantern-pp-gstar, k 10": ["spec vanilla"] + [f"spec lantern-pp-gstar, lantern_k 10, lantern_lambda {v}" for v in LAMBDAS],
    "cool-sd-exp, nu 0.2": [f"spec cool-sd-exp, cool_nu 0.2, cool_delta {d}" for d in (1.1, 1.5, 2, 3, 4)],
    "lantern, k 32": ["spec vanilla"] + [f"spec lantern, lantern_k 32, lantern_delta {v}" for v in BOUNDS],
    **{f"{name}, k {k}, tree": [f"{TREE}, spec vanilla"] + [f"{TREE}, spec {name}, lantern_k {k}, {bound} {v}" for v in values]
       for k, bound, values in ((10, "lantern_lambda", LAMBDAS[:5]), (32, "lantern_delta", BOUNDS))
       for name in (("lantern-pp", "lantern-pp-gstar") if k == 10 else ("lantern", "lantern-gstar"))},
    "lantern-pp, k 50": ["spec vanilla"] + [f"spec lantern-pp, lantern_k 50, lantern_lambda {v}" for v in (0.5, 2, 8)],
}

# the claim that the first is nearer to the target than the second at equal accepted length
CLAIMS = [
    ("cool-sd-exp", "uniform-rsd"), ("cool-sd-linear", "uniform-rsd"), ("cool-sd-exp, nu 0.2", "uniform-rsd"),
    ("cool-sd-exp", "lantern-pp, k 10"), ("cool-sd-exp", "lantern-pp, k 50"), ("cool-sd-linear", "lantern-pp, k 10"),
    ("uniform-rsd", "lantern-pp, k 10"), ("uniform-rsd", "lantern, k 32"), ("lantern-pp-gstar, k 10", "lantern-pp, k 10"),
    ("lantern-pp-gstar, k 10, tree", "lantern-pp, k 10, tree"), ("lantern-gstar, k 32, tree", "lantern, k 32, tree"),
]


# --- images ------------------------------------------------------------------------------------------------------------

def options_of(args):
    return {name: [f"{o}, gamma {args.gamma}, cfg 2.9" for o in rows] for name, rows in CURVES.items()}


def runs_of(args):
    """Every run once."""
    return list(dict.fromkeys(o for rows in options_of(args).values() for o in rows))


def read(path):
    """{options: {first: report}}; a line that a call left unfinished is left out."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            report = json.loads(line)
        except json.JSONDecodeError:
            continue
        found.setdefault(report["options"], {})[report["first"]] = report
    return found


def measure(args):
    wanted = runs_of(args)
    for first in range(0, args.images, CHUNK):
        have = read(args.raw)
        left = [o for o in wanted if first not in have.get(o, {})]
        if not left:
            continue
        print(f"images {first} to {first + CHUNK - 1}: {len(left)} runs", file=sys.stderr, flush=True)
        with open(args.raw, "a") as out:
            subprocess.run([args.program, str(first), str(CHUNK)], input="\n".join(left) + "\n", stdout=out, text=True, check=True)


def joined(args):
    """{options: {name: [images]}} of the images that all runs have."""
    have, wanted = read(args.raw), runs_of(args)
    chunks = [first for first in range(0, args.images, CHUNK) if all(first in have.get(o, {}) for o in wanted)]
    if not chunks:
        sys.exit(f"{args.raw} has no {CHUNK} images of every run")
    return {o: {name: np.concatenate([have[o][first][name] for first in chunks])
                for name, value in have[o][chunks[0]].items() if isinstance(value, list)} for o in wanted}


# --- numbers -----------------------------------------------------------------------------------------------------------

def numbers(run, weight):
    """What a table shows, by images with these weights [..][images]."""
    count = weight.sum(-1)
    names = PER_TOKEN if run["entropy"].any() else ("tv", "kl")  # of trees there is no more
    per_token = {name: weight @ run[name] / count / TOKENS for name in names}
    return {"accepted": TOKENS * count / (weight @ run["rounds_expected"]) - 1,
            "accepted_counted": TOKENS * count / (weight @ run["rounds"]) - 1, **per_token}


def at(length, accepted, value):
    """Values [..][runs] at accepted lengths [..], straight between runs of rising `accepted` [..][runs]."""
    i = np.clip((accepted <= length[..., None]).sum(-1) - 1, 0, accepted.shape[-1] - 2)[..., None]
    a, b, x, y = (np.take_along_axis(v, j, -1)[..., 0] for v in (accepted, value) for j in (i, i + 1))
    return x + (y - x) * (length - a) / (b - a)


def compare(samples, better, worse, name):
    """At three accepted lengths: both values, and their difference with its interval. Row 0 of the samples is the images'
    own, the others are the repetitions."""
    curve = {side: [np.stack([s[n] for s in samples[side]], -1) for n in ("accepted", name)] for side in (better, worse)}
    low = max(a[0].min() for a, _ in curve.values())
    high = min(a[0].max() for a, _ in curve.values())
    rows = []
    for share in (0, 0.5, 1):
        length = np.full(len(curve[better][0]), low + share * (high - low))
        first, second = (at(length, *curve[side]) for side in (better, worse))
        gap = second - first
        rows.append({"accepted": length[0], "better": first[0], "worse": second[0], "gain": gap[0],
                     "interval": list(np.percentile(gap[1:], [2.5, 97.5]))})
    signs = {1 if r["interval"][0] > 0 else -1 if r["interval"][1] < 0 else 0 for r in rows}
    return {"at": rows, "verdict": {1: "confirmed", -1: "refuted"}.get(signs.pop(), "undecided") if len(signs) == 1 else "mixed"}


def judge(args):
    runs, random = joined(args), np.random.default_rng(1)
    images = len(next(iter(runs.values()))["tv"])
    weight = np.concatenate([np.ones((1, images)), random.multinomial(images, np.full(images, 1 / images), REPETITIONS)])
    samples = {name: [numbers(runs[o], weight) for o in rows] for name, rows in options_of(args).items()}
    results = {"images": images, "gamma": args.gamma, "curves": {}, "claims": {}}
    for name, rows in options_of(args).items():
        results["curves"][name] = [
            {"options": o, **{n: v[0] for n, v in s.items()}, **{f"{n}_error": v[1:].std() for n, v in s.items()},
             "z_surprise": runs[o]["surprise"].sum() / runs[o]["surprise_variance"].sum() ** 0.5}
            for o, s in zip(rows, samples[name])]
    for better, worse in CLAIMS:
        results["claims"][f"{better} nearer than {worse}"] = {n: compare(samples, better, worse, n) for n in ("tv", "kl")}
    return results


def table(results):
    lines = [f"{results['images']} images a run, chains of {results['gamma']}", "",
             "| run | accepted | by the law | tv | kl | tv, G* | kl, G* | resamplers | z |", "| --- " * 9 + "|"]
    for name, rows in results["curves"].items():
        for r in rows[name != "vanilla" and rows[0]["options"].startswith("spec vanilla"):]:
            pairs = " | ".join(f"{r[n]:.4f} ± {r[n + '_error']:.4f}" for n in ("tv", "kl"))
            lines.append(f"| {r['options']} | {r['accepted_counted']:.3f} | {r['accepted']:.3f} ± {r['accepted_error']:.3f} | {pairs} | "
                         + "".join(f"{r[n]:.4f} | " if n in r else " | " for n in ("tv_best", "kl_best", "resampler"))
                         + f"{r['z_surprise']:.2f} |")
    plain = results["curves"]["vanilla"][0]
    lines.append(f"target: entropy {plain['entropy']:.3f} nats, largest p {plain['top']:.3f}; TV(p, q) {plain['tv_draft']:.3f}")
    for claim, by in results["claims"].items():
        for name, c in by.items():
            lines.append(f"{claim}, {name}: {c['verdict']}; " + "; ".join(
                f"at {r['accepted']:.2f} {r['better']:.4f} and {r['worse']:.4f}, gain {r['gain']:.4f} "
                f"({r['interval'][0]:.4f} to {r['interval'][1]:.4f})" for r in c["at"]))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/discrete_divergence"))
    parser.add_argument("--images", type=int, default=500, help=f"of each run, a multiple of {CHUNK}")
    parser.add_argument("--gamma", type=int, default=5)
    parser.add_argument("--raw", type=Path, default=ROOT / "build/discrete_divergence.jsonl", help="what each image gave")
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
