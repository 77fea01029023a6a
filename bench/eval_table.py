#!/usr/bin/env python3
"""Every way to be faster on the demo: the Frechet distance to real digits beside what `mar fidelity` says of it, as a table.

    build/release/mar eval --sweep bench/eval_demo_sweep.txt --num_images 2000 --out build/eval_demo
    build/release/mar eval --sweep bench/eval_demo_sweep.txt --num_images 320 --out build/eval_demo_times     # on an idle machine
    python3 bench/eval_table.py build/eval_demo/sweep.json --times build/eval_demo_times/sweep.json \\
        --out bench/results/eval_demo.json
    python3 bench/eval_table.py bench/results/eval_demo.json                                                  # only the table

Energy distances are those of bench/results/methods_demo.json (bench/methods.py: 500 images of each way).
"""

import argparse
import json
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = ["fid", "is_mean", "precision", "recall", "accuracy"]


def normal(options):
    """What two spellings of the same options have in common. The context prefix is the default."""
    return tuple(sorted(o.strip() for o in options.split("--") if o.strip() and o.strip() != "context prefix"))


def gather(sweep, times, more):
    methods = json.loads((ROOT / "bench/results/methods_demo.json").read_text())
    runs = [run["report"] | {"options": run["options"]} for run in methods["blocks"]["All methods"] if run.get("report")]
    for path in more:
        runs += json.loads(path.read_text())["runs"]
    energy = {normal(run["options"]): run["energy_image"]["distance"] for run in runs if "energy_image" in run}
    seconds = {p["name"]: p["run"]["generate_s"] / p["numbers"]["images"] for p in times["points"]}
    rows = []
    for p in sweep["points"]:
        row = {"options": p["options"], "seconds": seconds[p["name"]], "energy": energy.get(normal(p["options"]))}
        rows.append(row | {key: p["numbers"][key] for key in NUMBERS})
    first = sweep["points"][0]
    return {"images": first["numbers"]["images"], "timed_images": times["points"][0]["numbers"]["images"],
            "backend": first["run"]["backend"], "rows": rows}


def table(made):
    seeds = [r["fid"] for r in made["rows"] if r["options"].startswith("--seed")]
    print(f"{made['images']} images of each way, {made['backend']}; the reference's three seeds: "
          f"{statistics.mean(seeds):.2f} ± {statistics.stdev(seeds):.2f}\n")
    print("| options | s/image | Fréchet distance | precision | recall | digits | energy distance |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for r in made["rows"]:
        energy = "" if r["energy"] is None else f"{r['energy']:.4f}"
        print(f"| `{r['options']}` | {r['seconds']:.4f} | {r['fid']:.2f} | {r['precision']:.3f} | {r['recall']:.3f} | "
              f"{100 * r['accuracy']:.1f}% | {energy} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="sweep.json, or what --out has written")
    parser.add_argument("--times", type=Path, help="the sweep.json that seconds are taken from")
    parser.add_argument("--fidelity", type=Path, action="append", default=[],
                        help="what mar fidelity --json has printed of ways that methods_demo.json lacks")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    made = json.loads(args.sweep.read_text())
    if "rows" not in made:
        made = gather(made, json.loads((args.times or args.sweep).read_text()), args.fidelity)
    if args.out:
        args.out.write_text(json.dumps(made, indent=1) + "\n")
    table(made)


if __name__ == "__main__":
    main()
