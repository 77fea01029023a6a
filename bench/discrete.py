#!/usr/bin/env python3
"""Every method for discrete tokens on the demo, end to end: accepted lengths, step compression, wall time, distances, and
whether the papers' orderings hold there.

    python3 bench/discrete.py --out bench/results/discrete_demo.json      # all parts
    python3 bench/discrete.py --only EAGLE --out build/eagle.json         # one of them
    python3 bench/discrete.py --table bench/results/discrete_demo.json    # only print the tables and the verdicts

All of it comes from `mar fidelity`: --num images of each run, one at a time (those of "Relaxation", which are not timed, 50
at a time), with the seed of the plain sampling that they are compared with. Steps: tokens of an image for each pass of the target,
1 of plain sampling. Speed: seconds of plain sampling over a run's, the median over turns in which all runs make the same images.
A mean accepted length does not count the token that every round adds.

Image distance: energy distance of pixels; token and neighbour distances: total variation of how often tokens, and pairs of
neighbouring tokens, occur. Under each table stands what 95 % of runs of plain sampling with another seed stay below.
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DRAFT, EAGLE = "--draft demo-discrete-draft", "--draft demo-discrete-eagle"
CHAIN = f"{DRAFT} --gamma 5 --spec"
DELTAS = (1.1, 1.25, 1.5, 2, 3, 4)
LAMBDAS = (0.5, 1, 2, 8)

BLOCKS = {
    "A smaller model drafts": [
        *(f"{DRAFT} --gamma {g} --spec vanilla" for g in (2, 3, 5, 8)),
        *(f"{CHAIN} uniform-rsd --cool_delta {d}" for d in (1.1, 2)),
        *(f"{CHAIN} cool-sd-exp --cool_delta {d}" for d in (1.1, 2)),
        *(f"{CHAIN} cool-sd-linear --cool_delta {d}" for d in (1.1, 2)),
        *(f"{CHAIN} lantern --lantern_k 32 --lantern_delta {d}" for d in (0.2, 0.4)),
        f"{CHAIN} lantern-gstar --lantern_k 32 --lantern_delta 0.2",
        f"{CHAIN} lantern-pp --lantern_k 10",
        f"{CHAIN} lantern-pp --lantern_k 10 --lantern_metric cosine",
        f"{CHAIN} lantern-pp-gstar --lantern_k 10",
        f"{DRAFT} --tree static --spec vanilla",
        f"{DRAFT} --tree static --spec lantern-pp --lantern_k 10",
        f"{DRAFT} --tree static --spec lantern-pp-gstar --lantern_k 10",
        f"{DRAFT} --gamma 5 --tree dynamic --spec vanilla",
        "--model demo-discrete-draft",
    ],
    "Jacobi": [
        *(f"--spec sjd --window {w}" for w in (16, 32, 64)),
        *(f"--spec sjd --window 16 --first {f}" for f in ("left", "above")),
        "--spec sjd-pac --pac_children 1 --pac_continue off",
        "--spec sjd-pac --pac_children 1",
        "--spec sjd-pac --pac_continue off",
        "--spec sjd-pac",
        "--spec sjd-pac --window 16",
    ],
    "EAGLE": [
        *(f"{EAGLE} --gamma {g} --spec vanilla" for g in (3, 5)),
        f"{EAGLE} --tree static --spec vanilla",
        *(f"{EAGLE} --gamma 5 --tree dynamic --spec {m}" for m in (
            "vanilla", "lantern --lantern_k 32 --lantern_delta 0.2", "lantern --lantern_k 32 --lantern_delta 0.4",
            "lantern-gstar --lantern_k 32 --lantern_delta 0.2", "lantern-pp --lantern_k 10",
            "lantern-pp-gstar --lantern_k 10")),
    ],
    "Relaxation": [
        *(f"{CHAIN} {m} --cool_delta {d}" for m in ("uniform-rsd", "cool-sd-exp") for d in DELTAS),
        *(f"{CHAIN} {m} --lantern_k {k} --lantern_lambda {v}" for m in ("lantern-pp", "lantern-pp-gstar")
          for k in (10, 50) for v in LAMBDAS),
    ],
    "Greedy": [
        f"{DRAFT} --gamma 5 --spec vanilla",
        f"{EAGLE} --gamma 5 --tree dynamic --spec vanilla",
        "--spec sjd",
        "--spec sjd-pac",
    ],
}
SAMPLING = {"Greedy": "--temperature 0"}  # of all runs of a part
BATCH = 50
PLAIN = "plain sampling"
DISTANCES = {"image": ("energy_image", "distance"), "tokens": ("places", "total_variation"),
             "neighbours": ("neighbours", "total_variation")}


def run(command):
    return json.loads(subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure(args):
    results = {"cfg": args.cfg, "blocks": {}}
    for title, rows in BLOCKS.items():
        if args.only and title not in args.only:
            continue
        num, batch = (args.num_relaxation, BATCH) if title == "Relaxation" else (args.num, 1)
        command = [args.mar, "fidelity", "--model", "demo-discrete", "--cfg", args.cfg, "--threads", args.threads, "--num", num,
                   "--batch", batch, *SAMPLING.get(title, "").split(), "--json", "--quiet",
                   "--out", args.page.format(len(results["blocks"]))]
        for i, options in enumerate(rows):
            command += ([] if i == 0 else ["--versus"]) + options.split()
        print(f"{title}: {len(rows)} runs of {num} images", flush=True)
        report = run([*command, "--against"])
        results["backend"] = report["reference"]["backend"]
        results["blocks"][title] = {"num": num, "floor": report["floor"], "runs": [
            {"options": options, "report": keep(r)} for options, r in zip([PLAIN, *rows], [report["reference"], *report["runs"]])]}
    return results


def keep(report):
    """What the tables and a reader need."""
    return {name: value for name, value in report.items() if name not in (
        "parameters", "acceptance_per_step", "acceptance_per_lateness", "turn_seconds")}


def distance(report, name):
    test, field = DISTANCES[name]
    return report[test][field] if test in report else None


def steps(report):
    """Tokens for each pass of the target."""
    return report["mean_round_steps"] or 1.0


def number(value, form):
    return "" if value is None else format(value, form)


def table(results):
    lines = [f"guidance {results['cfg']}, {results['backend']}"]
    for title, block in results["blocks"].items():
        lines += ["", f"**{title}**, {block['num']} images of each", "", "| run | accepted a round | steps | speed | image | tokens | neighbours | p | digits |",
                  "| --- " * 9 + "|"]
        for row in block["runs"]:
            r = row["report"]
            p = "identical" if r.get("identical") else number(r.get("p"), ".3f")
            lines.append(f"| {row['options']} | {number(r['mean_accepted_length'], '.2f')} | {steps(r):.2f} | "
                         f"{'' if title == 'Relaxation' else number(r['speed'], '.2f')} | "
                         + "".join(f"{number(distance(r, name), '.4f')} | " for name in DISTANCES)
                         + f"{p} | {number(r['classifier_accuracy'], '.1%')} |")
        lines.append(f"another seed: {json.dumps(block['floor'])}")
    return "\n".join(lines)


# --- the papers' orderings ------------------------------------------------------------------------------------------------

def find(results, title, options):
    return next(row for row in results["blocks"][title]["runs"] if row["options"] == options)


def curve(results, start, name):
    """(accepted length, distance) of all runs whose options begin so, by length."""
    rows = [row["report"] for row in results["blocks"]["Relaxation"]["runs"] if row["options"].startswith(start)]
    return sorted((r["mean_accepted_length"], distance(r, name)) for r in rows)


def at(points, length):
    """The distance at a length between those of the points, by a straight line; None outside."""
    for (a, x), (b, y) in zip(points, points[1:]):
        if a <= length <= b:
            return x if a == b else x + (y - x) * (length - a) / (b - a)
    return None


def compare_curves(results, better, worse):
    """Distances at the longest accepted length that both reach. By the image distance it is confirmed, or refuted, if they differ
    by more than runs of plain sampling with other seeds do from one another. Runs have their random numbers in common with the
    reference, so the other two distances also tell how alike the draws are, and are only shown."""
    curves = {name: [curve(results, f"{CHAIN} {method} ", name) for method in (better, worse)] for name in DISTANCES}
    length = min(points[-1][0] for points in curves["image"])
    found = {"accepted": length, **{name: [at(points, length) for points in pair] for name, pair in curves.items()},
             "floor_image": results["blocks"]["Relaxation"]["floor"]["image_95"]}
    gain = found["image"][1] - found["image"][0]
    found["verdict"] = "undecided" if abs(gain) <= found["floor_image"] else "confirmed" if gain > 0 else "refuted"
    return found


def verdict(holds):
    return "confirmed" if holds else "refuted"


def orderings(results):
    """Each claim with the numbers it is judged by; those whose part was not run are left out."""
    found, blocks = {}, results["blocks"]
    if "Jacobi" in blocks:
        names = {"sjd": "--spec sjd --window 64", "neither": "--spec sjd-pac --pac_children 1 --pac_continue off",
                 "continuation": "--spec sjd-pac --pac_children 1", "drafting": "--spec sjd-pac --pac_continue off",
                 "both": "--spec sjd-pac"}
        reports = {name: find(results, "Jacobi", options)["report"] for name, options in names.items()}
        for what, numbers in (("steps", {name: steps(r) for name, r in reports.items()}),
                              ("speed", {name: r["speed"] for name, r in reports.items()})):
            found[f"SJD-PAC over SJD; AC and PD each help ({what})"] = {
                **numbers, "verdict": verdict(numbers["both"] > max(numbers["continuation"], numbers["drafting"])
                                              and min(numbers["continuation"], numbers["drafting"]) > numbers["sjd"])}
    if "Relaxation" in blocks:
        for better, worse in (("cool-sd-exp", "uniform-rsd"), ("cool-sd-exp", "lantern-pp"), ("lantern-pp-gstar", "lantern-pp")):
            found[f"{better} nearer than {worse} at equal accepted length"] = compare_curves(results, better, worse)
    if "EAGLE" in blocks:
        tree = f"{EAGLE} --gamma 5 --tree dynamic --spec "
        lengths = {name: find(results, "EAGLE", tree + options)["report"]["mean_accepted_length"] for name, options in {
            "EAGLE-2": "vanilla", "LANTERN 0.2": "lantern --lantern_k 32 --lantern_delta 0.2",
            "LANTERN 0.4": "lantern --lantern_k 32 --lantern_delta 0.4"}.items()}
        found["LANTERN raises EAGLE-2's accepted length"] = {
            **lengths, "verdict": verdict(lengths["EAGLE-2"] < lengths["LANTERN 0.2"] < lengths["LANTERN 0.4"])}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mar", default=ROOT / "build/release/mar", help="the command [build/release/mar]")
    parser.add_argument("--num", type=int, default=1000, help="images of a run")
    parser.add_argument("--num_relaxation", type=int, default=4000, help="those of the part whose distances are compared")
    parser.add_argument("--cfg", type=float, default=2.9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--page", default=str(ROOT / "build/discrete_{}.html"), help="where `mar fidelity` writes its pages")
    parser.add_argument("--only", choices=BLOCKS, action="append", help="only this part; may be there several times")
    parser.add_argument("--out", help="write everything as JSON to this file")
    parser.add_argument("--table", help="only print the tables of such a file")
    args = parser.parse_args()
    results = json.loads(Path(args.table).read_text()) if args.table else measure(args)
    results["orderings"] = orderings(results)
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    for claim, numbers in results["orderings"].items():
        print(f"{claim}: {json.dumps(numbers)}")


if __name__ == "__main__":
    main()
