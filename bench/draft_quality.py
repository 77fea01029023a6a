#!/usr/bin/env python3
"""How good a draft model must be: drafts of less training and of other sizes, and how often `--spec path` accepts them.

    python3 bench/draft_quality.py build/drafts/*.safetensors --out bench/results/draft_quality.json
    python3 bench/draft_quality.py build/drafts/*.safetensors --times bench/results/draft_quality.json  # single images
    python3 bench/draft_quality.py --table bench/results/draft_quality.json  # only print the table

demo/train_demo.py says how the drafts are trained; demo-draft itself comes first. Acceptance is that of --num images of
each class for each seed, and its error the binomial one. In context full these runs have gamma 2: acceptance does not
depend on gamma there, since each token is verified in its own context, and less is drafted in vain. `conditional` is the
share that the one-step criterion accepts, of the images of the first seed. Passes, calls and arithmetic are those of an
image made alone with gamma 8, the mean of five. Its seconds are over those of plain sampling, which is timed before each
of them with the same --dtype.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = [(context, cfg) for context in ("prefix", "full") for cfg in (2.9, 1)]
VERIFIED = 64  # tokens of an image
KEPT = ("acceptance_rate", "accepted_shift", "passes_in_sequence", "head_calls_in_sequence", "draft_calls_in_sequence",
        "residual_tries", "contexts_per_image", "flop_per_image", "seconds_per_image", "images")


def run(command):
    return json.loads(subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout)


def generate(args, classes, num, batch, seed, cfg, *options):
    """The kept numbers of a run that makes `num` images of each of these classes."""
    with tempfile.TemporaryDirectory() as folder:
        record = run([args.mar, "generate", "--class", classes, "--num", num, "--batch", batch, "--seed", seed, "--cfg", cfg,
                      "--dtype", args.dtype, "--threads", args.threads, *options, "--json", "--quiet",
                      "--out", Path(folder) / "images.png"])
    return {"backend": record["backend"], "verified": VERIFIED, **{key: record.get(key) for key in KEPT}}


def describe(args, draft):
    """Sizes and training of a draft."""
    report = run([args.mar, "inspect", draft, "--json"])
    config, key = report["config"], "metadata: mar.training = "
    training = [fact[len(key):] for fact in report["facts"] if fact.startswith(key)]
    return {"draft": Path(draft).stem, "training": training[0] if training else "1",
            **{name: config[name] for name in ("parameters", "width", "encoder_depth", "head_width", "head_depth")}}


def time(args, row, draft):
    """Plain sampling and speculation of single images, one after the other."""
    options = ["--draft", draft, "--context", row["context"], "--spec", "path"]
    row["plain"] = generate(args, "0-4", 1, 1, 0, row["cfg"])
    row["alone"] = generate(args, "0-4", 1, 1, 0, row["cfg"], *options)


def measure(args, about, draft, context, cfg):
    """A row of the table."""
    options = ["--draft", draft, "--context", context, *(["--gamma", 2] if context == "full" else []), "--spec"]
    row = {**about, "context": context, "cfg": cfg}
    time(args, row, draft)
    row["path"] = [generate(args, "all", args.num, 10 * args.num, seed, cfg, *options, "path") for seed in range(args.seeds)]
    row["conditional"] = generate(args, "all", args.num, 10 * args.num, 0, cfg, *options, "conditional")
    print(f"{about['draft']}, context {context}, cfg {cfg:g}: {acceptance(row)[0]:.3f} ± {acceptance(row)[1]:.3f}", flush=True)
    return row


def acceptance(row):
    """The share of tokens accepted, and its standard error. The first results left the first four steps without drafts."""
    tokens = [r["images"] * r.get("verified", 60) for r in row["path"]]
    rate = sum(r["acceptance_rate"] * n for r, n in zip(row["path"], tokens)) / sum(tokens)
    return rate, (rate * (1 - rate) / sum(tokens)) ** 0.5


def table(results):
    rows = results["rows"]
    images = sorted({sum(r["images"] for r in row["path"]) for row in rows})
    lines = [f"{rows[0]['path'][0]['backend']}; acceptance of {' or '.join(map(str, images))} images. Plain sampling: 64 passes, "
             "6400 calls.", "",
             "| draft | parameters | transformer | head | training | context | guidance | accepted | conditional "
             "| passes | calls | draft's calls | candidates | GFLOP | s / plain s |", "|" + " --- |" * 15]
    for row in rows:
        (rate, error), alone = acceptance(row), row["alone"]
        each = {key: alone[key] / alone["images"] for key in
                ("passes_in_sequence", "head_calls_in_sequence", "draft_calls_in_sequence", "residual_tries")}
        lines.append(f"| {row['draft']} | {row['parameters']} | {row['width']} x {row['encoder_depth']} | "
                     f"{row['head_width']} x {row['head_depth']} | {row['training']} | {row['context']} | {row['cfg']:g} | "
                     f"{rate:.3f} ± {error:.3f} | {row['conditional']['acceptance_rate']:.4f} | " +
                     " | ".join(f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in each.values()) +
                     f" | {alone['flop_per_image'] / 1e9:.1f} | "
                     f"{alone['seconds_per_image'] / row['plain']['seconds_per_image']:.1f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafts", nargs="*", help="files of demo/train_demo.py --stage draft --save")
    parser.add_argument("--mar", default=ROOT / "build/release/mar", help="the command [build/release/mar]")
    parser.add_argument("--dtype", default="f32", choices=["f32", "bf16"], help="of the head's products [f32]")
    parser.add_argument("--threads", type=int, default=0, help="0: one per core [0]")
    parser.add_argument("--num", type=int, default=2, help="images of each class and seed [2]")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", help="write everything as JSON to this file")
    parser.add_argument("--times", help="only make the single images of such a file again")
    parser.add_argument("--table", help="only print the table of such a file")
    args = parser.parse_args()
    if args.table:
        return print(table(json.loads(Path(args.table).read_text())))
    drafts = ["demo-draft", *args.drafts]
    if args.times:
        results = json.loads(Path(args.times).read_text())
        for row in results["rows"]:
            time(args, row, next(draft for draft in drafts if Path(draft).stem == row["draft"]))
    else:
        results = {"rows": [measure(args, describe(args, draft), draft, *case) for draft in drafts for case in CASES]}
    if args.times or args.out:
        Path(args.times or args.out).write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
