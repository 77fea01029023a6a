#!/usr/bin/env python3
"""Every method for discrete tokens on the demo, end to end: accepted lengths, step compression, wall time, distances, and
whether the papers' orderings of them hold there. How far relaxed methods are from the target is bench/discrete_divergence.py's.

    python3 bench/discrete.py --threads 1 --out bench/results/discrete_demo.json      # all parts
    python3 bench/discrete.py --threads 1 --only EAGLE --out bench/results/discrete_demo.json     # one anew, the others stay
    python3 bench/discrete.py --table bench/results/discrete_demo.json                # only print the tables and the verdicts

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
# of SJD-PAC: PD drafts a tree, AC goes on behind a rejection
PARTS = {"neither": " --pac_children 1 --pac_continue off", "AC": " --pac_children 1", "PD": " --pac_continue off", "both": ""}

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
        *(f"--spec sjd-pac --window {w}{part}" for w in (32, 64) for part in PARTS.values()),
        "--spec sjd-pac --window 16",
        *(f"--spec scd --window {w}{part}" for w in (16, 32, 64) for part in ("", " --pac_children 4")),
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
        *(f"{CHAIN} {m} --cool_delta 2" for m in ("uniform-rsd", "cool-sd-exp", "cool-sd-linear")),
        *(f"{CHAIN} {m} --lantern_k 10 --lantern_lambda 8" for m in ("lantern-pp", "lantern-pp-gstar")),
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
    if args.only and args.out and Path(args.out).exists():
        results = json.loads(Path(args.out).read_text())
    for part, (title, rows) in enumerate(BLOCKS.items()):
        if args.only and title not in args.only:
            continue
        num, batch = (args.num_relaxation, BATCH) if title == "Relaxation" else (args.num, 1)
        command = [args.mar, "fidelity", "--model", "demo-discrete", "--cfg", args.cfg, "--threads", args.threads, "--num", num,
                   "--batch", batch, *SAMPLING.get(title, "").split(), "--json", "--quiet",
                   "--out", args.page.format(part)]
        for i, options in enumerate(rows):
            command += ([] if i == 0 else ["--versus"]) + options.split()
        print(f"{title}: {len(rows)} runs of {num} images", flush=True)
        report = run([*command, "--against"])
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
    lines = [f"guidance {results['cfg']}"]
    for title, block in results["blocks"].items():
        lines += ["", f"**{title}**, {block['num']} images of each, {block['runs'][0]['report']['backend']}", "",
                  "| run | accepted a round | steps | speed | image | tokens | neighbours | p | digits |", "| --- " * 9 + "|"]
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


def length(report):
    """The mean accepted length, and its standard error if rounds are independent."""
    count = report["accepted_lengths"]
    rounds = sum(count)
    mean = sum(n * c for n, c in enumerate(count)) / rounds
    return mean, (sum(c * (n - mean) ** 2 for n, c in enumerate(count)) / rounds / rounds) ** 0.5


def longer(a, b):
    """Whether lengths of a are greater than those of b: by two standard errors, or undecided."""
    gap, error = a[0] - b[0], (a[1] ** 2 + b[1] ** 2) ** 0.5
    return "confirmed" if gap > 2 * error else "refuted" if gap < -2 * error else "undecided"


def orderings(results):
    """Each claim on accepted lengths with the numbers it is judged by; those whose part was not run are left out."""
    found, blocks = {}, results["blocks"]
    for window in (32, 64) if "Jacobi" in blocks else ():
        names = {"sjd": f"--spec sjd --window {window}",
                 **{name: f"--spec sjd-pac --window {window}{part}" for name, part in PARTS.items()}}
        reports = {name: find(results, "Jacobi", options)["report"] for name, options in names.items()}
        lengths = {name: length(r) for name, r in reports.items()}
        found[f"SJD-PAC, window {window}"] = {
            "accepted": lengths, "steps": {name: steps(r) for name, r in reports.items()},
            "speed": {name: r["speed"] for name, r in reports.items()},
            **{f"{a} over {b}": longer(lengths[a], lengths[b])
               for a, b in (("both", "sjd"), ("AC", "neither"), ("PD", "neither"), ("both", "PD"), ("both", "AC"))}}
    if "EAGLE" in blocks:
        tree = f"{EAGLE} --gamma 5 --tree dynamic --spec "
        lengths = {name: length(find(results, "EAGLE", tree + options)["report"]) for name, options in {
            "EAGLE-2": "vanilla", "LANTERN 0.2": "lantern --lantern_k 32 --lantern_delta 0.2",
            "LANTERN 0.4": "lantern --lantern_k 32 --lantern_delta 0.4"}.items()}
        found["LANTERN in EAGLE-2's trees"] = {
            "accepted": lengths, "LANTERN 0.2 over EAGLE-2": longer(lengths["LANTERN 0.2"], lengths["EAGLE-2"]),
            "LANTERN 0.4 over LANTERN 0.2": longer(lengths["LANTERN 0.4"], lengths["LANTERN 0.2"])}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mar", default=ROOT / "build/release/mar", help="the command [build/release/mar]")
    parser.add_argument("--num", type=int, default=100, help="images of a run")
    parser.add_argument("--num_relaxation", type=int, default=2000, help="those of the part \"Relaxation\"")
    parser.add_argument("--cfg", type=float, default=2.9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--page", default=str(ROOT / "build/discrete_{}.html"), help="where `mar fidelity` writes its pages")
    parser.add_argument("--only", choices=BLOCKS, action="append",
                        help="only this part, or those of several --only; --out keeps what it has of the others")
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
