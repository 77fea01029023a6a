#!/usr/bin/env python3
"""What the loops of the CPU backend would take on more cores than this machine has: a simulation, by bench/scaling.c.

    python3 bench/scaling.py --out bench/results/scaling_mar_base.json -- --model build/bench/mar_base.pth --vae build/bench/kl16.ckpt --num_iter 4
    python3 bench/scaling.py -- --num_iter 8          # does it run? the demo

Runs `mar generate` once for each number of threads, on one core. Prints seconds of the steps (no loading, no image decoder), or
with --part trunk of a causal trunk's passes: the work outside of loops, the loops on N cores, and their dispatch: what an empty
loop takes on two threads here, and for each further thread as much again as --atomic. Memory is not simulated; --bytes, those
that the steps read from memory, and --bandwidth give the floor that N cores share. `own` is the share of the loops' work that
the thread does whose part it is, and whose node has the weights. For the most threads it lists the loops that lose most time to
uneven chunks.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent.parent / "build/release/scaling"


def names():
    """Functions by their distance from dispatch_seconds, which scaling.c counts from."""
    places = {}
    for line in subprocess.run(["nm", PROGRAM], check=True, capture_output=True, text=True).stdout.splitlines():
        if place := re.match(r"([0-9a-f]+) [tT] (\w+)$", line):
            places[place[2]] = int(place[1], 16)
    return {at - places["dispatch_seconds"]: name for name, at in places.items()}


def measure(threads, part, options):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([PROGRAM, "generate", *options, "--num", "1", "--threads", "1", "--out", f"{folder}/image.png"],
                              capture_output=True, text=True, env={**os.environ, "SCALING_THREADS": str(threads), "SCALING_PART": part})
    lines = [line.split() for line in done.stderr.splitlines() if line.startswith(("scaling ", "kind "))]
    if not lines:
        sys.exit(done.stderr.strip())
    _, _, outside, loops, span, own, count, dispatch = lines[0]
    kinds = [{"place": int(k[1]), "items": int(k[2]), "loops": int(k[3]), "sum": float(k[4]), "span": float(k[5])} for k in lines[1:]]
    return {"threads": threads, "outside": float(outside), "even": float(loops) / threads, "span": float(span),
            "own": float(own) / float(loops), "loops": int(count), "dispatch": float(dispatch)}, kinds


def add_total(run, atomic, floor):
    n = run["threads"]
    run["dispatch"] = run["loops"] * (run["dispatch"] + (n - 2) * atomic if n > 1 else 0)
    run["seconds"] = max(run["outside"] + run["span"] + run["dispatch"], floor)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2,4,8,16,32,64")
    parser.add_argument("--part", default="steps", choices=["steps", "trunk"])
    parser.add_argument("--atomic", type=float, default=1e-7, help="seconds a loop for each thread above two [1e-7]")
    parser.add_argument("--bytes", type=float, default=0, help="read from memory in these steps")
    parser.add_argument("--bandwidth", type=float, default=2e11, help="bytes a second of the simulated machine [2e11]")
    parser.add_argument("--worst", type=int, default=8, help="loops to list")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    parser.add_argument("options", nargs="*", help="of mar generate, behind --")
    args = parser.parse_args()
    measured = [measure(int(n), args.part, args.options) for n in args.threads.split(",")]
    runs, floor = [run for run, _ in measured], args.bytes / args.bandwidth
    print("| threads | seconds | speed | outside of loops | loops | even loops | dispatch | loops, number | own |\n" + "| --- " * 9 + "|")
    for run in runs:
        add_total(run, args.atomic, floor)
        print(f"| {run['threads']} | {run['seconds']:.3f} | {runs[0]['seconds'] / run['seconds']:.2f} | {run['outside']:.4f} | {run['span']:.4f} | "
              f"{run['even']:.4f} | {run['dispatch']:.4f} | {run['loops']} | {run['own']:.2f} |")
    by_name, lost = names(), defaultdict(lambda: [0.0, 0, 0.0])
    for k in measured[-1][1]:
        row = lost[by_name.get(k["place"], "?"), k["items"]]
        row[0], row[1], row[2] = row[0] + k["span"] - k["sum"] / runs[-1]["threads"], row[1] + k["loops"], row[2] + k["span"]
    print(f"\nLost to uneven chunks with {runs[-1]['threads']} threads: seconds, of a loop's seconds, loops, items, function")
    for (name, items), (seconds, count, span) in sorted(lost.items(), key=lambda row: -row[1][0])[:args.worst]:
        print(f"  {seconds:8.4f}  {span:8.4f}  {count:6}  {items:6}  {name}")
    if args.out:
        rounded = [{name: round(x, 6) for name, x in run.items()} for run in runs]
        head = {"options": [Path(o).name for o in args.options], "part": args.part, "atomic": args.atomic, "floor": floor}
        rows = ",\n".join("  " + json.dumps(run) for run in rounded)
        args.out.write_text(json.dumps(head)[:-1] + f', "runs": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
