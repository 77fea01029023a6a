#!/usr/bin/env python3
"""Every way to be faster on the demo pair, in one table: time, sequential head calls, acceptance and what it does to the law.

    python3 bench/methods.py --out bench/results/methods_demo.json    # about half an hour on two cores
    python3 bench/methods.py --times bench/results/methods_demo.json  # only the seconds, again
    python3 bench/methods.py --table bench/results/methods_demo.json  # only print the table
    python3 bench/methods.py --only "Whole paths" --out bench/results/methods_paths.json     # one of its parts

Distances, acceptance and recognised digits come from `mar fidelity` (the same --num images of each run, batches of 16),
seconds, and sequential calls per image of the target's head + the draft's, from `mar bench` at batch 1.
"""

import argparse
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DRAFT = "--draft demo-draft"
PATH = "--spec path"

BLOCKS = {
    "All methods": [
        *(f"--num_iter {n}" for n in (32, 16)),
        *(f"--head_spec {w}" for w in (2, 4, 8, 16, 32)),
        f"--head_spec 8 {DRAFT}",
        f"{DRAFT} --spec conditional --context prefix",
        f"{DRAFT} --spec conditional --context full",
        f"{DRAFT} --spec paper",
        f"{DRAFT} --spec cspd",
        f"{DRAFT} --spec cspd --inner_temperature 1",
        "--model demo-draft",
        *(f"--diff_annealing {a}" for a in ("linear", "cosine", "two-stage")),
        "--lazy",
        "--lazy --lazy_head",
        "--gtr",
        "--num_sampling_steps 25",
        *(f"--sampler {s} --num_sampling_steps {n}" for s in ("ddim", "dpmpp") for n in (25, 10)),
        "--head_spec 16 --diff_annealing linear",
        "--head_spec 16 --num_iter 32",
        "--lazy --diff_annealing linear",
        "--gtr --sampler dpmpp --num_sampling_steps 10",
        "--num_iter 16 --sampler dpmpp --num_sampling_steps 10",
    ],
    "Whole paths": [
        *(f"--head_spec {w}" for w in (8, 16)),
        f"{PATH} --gamma 8",
        *(f"{PATH} --head_spec 8 --gamma {g}" for g in (2, 4, 8, 16, "auto")),
        f"{PATH} --head_spec 16 --gamma 16",
        f"{PATH} --head_spec 8 --num_iter 32 --gamma 8",
        f"{PATH} --head_spec 8 --num_iter 16 --gamma 4",
        f"{PATH} --head_spec 8 --num_sampling_steps 25 --gamma 8",
        f"{PATH} --head_spec 8 --diff_annealing linear --gamma 8",
        f"{DRAFT} {PATH} --head_spec 8 --context prefix",
        f"{DRAFT} {PATH} --head_spec 8 --context full --gamma 8",
        f"{DRAFT} {PATH} --head_spec 8 --context full --gamma 2",
    ],
    "Alignment, prefill and draft length": [
        *(f"{DRAFT} --spec {m} --align off" for m in ("conditional", "paper", "cspd")),
        *(f"{DRAFT} --spec cspd --prefill {p}" for p in (0, 0.15)),
        *(f"{DRAFT} --spec conditional --prefill {p}" for p in (0, 0.15)),
        *(f"{DRAFT} --spec cspd --gamma {g}" for g in (4, 16, 32)),
        *(f"{DRAFT} --spec conditional --gamma {g}" for g in (4, 16, 32)),
        *(f"{DRAFT} --spec conditional --context full --gamma {g}" for g in (4, 16)),
    ],
}


def run(command):
    return json.loads(subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure(args):
    results = {"num": args.num, "blocks": {}}
    for title, rows in BLOCKS.items():
        if args.only not in (None, title):
            continue
        command = [args.mar, "fidelity", "--num", args.num, "--json", "--quiet", "--out", args.page.format(len(results["blocks"]))]
        for i, options in enumerate(rows):
            command += ([] if i == 0 else ["--versus"]) + options.split()
        print(f"{title}: {len(rows)} runs of {args.num} images", flush=True)
        report = run([*command, "--against"])
        for key in ("backend", "floor"):
            results[key] = report[key]
        results["blocks"][title] = [{"options": "plain sampling", "report": report["reference"]}] + [
            {"options": options, "report": r} for options, r in zip(rows, report["runs"])]
    return results


def time(args, results):
    """Batch 1, the best of several images."""
    for rows in results["blocks"].values():
        for row in rows:
            options = "" if row["options"] == "plain sampling" else row["options"]
            row["bench"] = run([args.mar, "bench", *options.split(), "--repeat", args.repeat, "--json"])


def number(value, form):
    return "" if value is None else format(value, form)


def calls_of_draft(bench):
    return f" + {bench['draft_calls_in_sequence']:.0f}" if bench["draft_calls_in_sequence"] else ""


def passes(bench):
    """In sequence, an image; results from before they were counted have none."""
    return number(bench.get("passes_in_sequence"), ".1f")


def table(results):
    lines = [f"{results['num']} images of each, {results['backend']}; another seed: image distance up to "
             f"{results['floor']['image_95']:.4f}, token {results['floor']['token_95']:.5f}."]
    for title, rows in results["blocks"].items():
        counted = any(passes(row["bench"]) for row in rows)  # not in older results
        lines += ["", f"**{title}**", "", f"| run | s/image | speed |{' passes |' * counted} calls/token | calls/image | accepted | "
                  "image distance | token distance | p | digits |", "| --- " * (10 + counted) + "|"]
        plain = rows[0]["bench"]["seconds_per_image"]
        for row in rows:
            r, time = row["report"], row["bench"]["seconds_per_image"]
            accepted = r["acceptance_rate"] if r["acceptance_rate"] is not None else r["proposal_acceptance_rate"]
            image, token = r.get("energy_image"), r.get("energy_token")
            p = "identical" if r.get("identical") else number(r.get("p"), ".3f")
            lines.append(f"| {row['options']} | {time:.4f} | {plain / time:.2f} | "
                         f"{(passes(row['bench']) + ' | ') * counted}{r['head_calls_per_token']:.1f} | "
                         f"{row['bench']['head_calls_in_sequence']:.0f}{calls_of_draft(row['bench'])} | "
                         f"{number(accepted, '.1%')} | {number(image and image['distance'], '.4f')} | "
                         f"{number(token and token['distance'], '.5f')} | {p} | {number(r['classifier_accuracy'], '.1%')} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mar", default=ROOT / "build/release/mar", help="the command [build/release/mar]")
    parser.add_argument("--num", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--page", default=str(ROOT / "build/methods_{}.html"), help="where `mar fidelity` writes its pages")
    parser.add_argument("--only", choices=BLOCKS, help="only this part")
    parser.add_argument("--out", help="write everything as JSON to this file")
    parser.add_argument("--times", help="only measure the seconds of such a file again")
    parser.add_argument("--table", help="only print the table of such a file")
    args = parser.parse_args()
    if args.table:
        return print(table(json.loads(Path(args.table).read_text())))
    results = json.loads(Path(args.times).read_text()) if args.times else measure(args)
    time(args, results)
    if args.times or args.out:
        Path(args.times or args.out).write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
