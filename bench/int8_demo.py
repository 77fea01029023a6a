#!/usr/bin/env python3
"""How far int8 on a CPU is from f32, on the demo models.

    cmake --build build/release --target all
    python3 bench/int8_demo.py --out bench/results/int8_demo.json
    python3 bench/int8_demo.py --table bench/results/int8_demo.json        # only print it

`tokens`: --images images of the demo by libmar in f32, and the same images, with the same noise, in each arithmetic of RUNS.
The differences of their numbers are given in standard deviations of a number of a token: root mean square, median, 99.9 %
quantile, greatest. `another seed` is f32 of another seed, the greatest distance that says nothing.

`fidelity`: what `mar fidelity` finds between the laws of each arithmetic and f32, of the same seed: the energy distance of
images, beside that which 95 of 100 other seeds stay below, and the digits that a classifier recognises. Of discrete tokens,
whose images are other ones as soon as one token is, it has the chi-square and total variation of how often tokens occur, at
each place, and beside one another.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from libmar import BUILT, Library

BATCH = 50
PARAMETERS = {"num_iter": "64", "num_sampling_steps": "100", "cfg": "2.9"}
RUNS = {
    "bf16": {"dtype": "bf16"},
    "int8, head bf16": {"dtype": "int8", "head_dtype": "bf16"},
    "int8, int8_below 900": {"dtype": "int8", "int8_below": 900},
    "int8": {"dtype": "int8"},
    "int8, int8_below 990": {"dtype": "int8", "int8_below": 990},
    "int8, int8_below 1000": {"dtype": "int8", "int8_below": 1000},
}
COMPARED = [("demo", "--dtype bf16"), ("demo", "--dtype int8"), ("demo", "--dtype int8 --int8_below 1000"),
            ("demo-discrete", "--dtype bf16"), ("demo-discrete", "--dtype int8")]


# --- tokens --------------------------------------------------------------------------------------------------------------

def make(args, seed=0, dtype="f32", model="demo", channels=8, **options):
    """Tokens of images 0 .. args.images - 1, image i of class i modulo 10, and what they were made with. The model has 64 tokens
    of `channels` numbers."""
    library = Library(args.library, dtype, args.threads, **options)
    session = library.session(model, None, {**PARAMETERS, "seed": str(seed)}, BATCH)
    made = np.empty((args.images, 64 * channels), np.float32)
    for first in range(0, args.images, BATCH):
        n = min(BATCH, args.images - first)
        library.tokens(session, first, [i % 10 for i in range(first, first + n)], made[first:first + n])
    library.lib.mar_session_free(session)
    return made, library.description()


def difference(made, reference):
    gap = np.abs(made.astype(np.float64) - reference) / reference.std(dtype=np.float64)
    return {"rms": float(np.sqrt(np.mean(gap**2))), "median": float(np.median(gap)),
            "q999": float(np.quantile(gap, 0.999)), "max": float(gap.max())}


def compare_tokens(args):
    reference, backend = make(args)
    found = {"f32": {"backend": backend}}
    for name, options in {**RUNS, "another seed": {"seed": 1}}.items():
        made, backend = make(args, **options)
        found[name] = {"backend": backend, **difference(made, reference)}
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    return found


# --- laws ----------------------------------------------------------------------------------------------------------------

def compare_laws(args):
    found = []
    for model, options in COMPARED:
        with tempfile.TemporaryDirectory() as folder:
            command = [args.mar, "fidelity", "--model", model, "--num", str(args.images), *options.split(), "--threads",
                       str(args.threads), "--out", f"{folder}/page.html", "--json", "--against", "--dtype", "f32"]
            report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        run, reference = report["runs"][0], report["reference"]
        names = ("energy_image", "energy_token", "tokens", "places", "neighbours", "classifier_accuracy", "p", "verdict", "backend")
        found.append({"model": model, "options": options, "floor": report["floor"],
                      "reference_accuracy": reference["classifier_accuracy"], **{name: run[name] for name in names if name in run}})
        print(found[-1], file=sys.stderr, flush=True)
    return found


# --- tables --------------------------------------------------------------------------------------------------------------

def table(result):
    print("| tokens of the demo | root mean square | median | 99.9 % | greatest |\n| --- | --- | --- | --- | --- |")
    for name, row in result["tokens"].items():
        if "rms" in row:
            print(f"| {name} | {row['rms']:.4f} | {row['median']:.4f} | {row['q999']:.3f} | {row['max']:.2f} |")
    print("\n| demo | energy distance of images | 95 of 100 other seeds stay below | digits recognised, in f32 |\n"
          "| --- | --- | --- | --- |")
    rows = result["fidelity"]
    for row in (r for r in rows if r["model"] == "demo"):
        print(f"| {row['options']} | {row['energy_image']['distance']:.2g} | {row['floor']['image_95']:.2g} | "
              f"{row['classifier_accuracy']:.1%}, {row['reference_accuracy']:.1%} |")
    print("\n| demo-discrete | chi-square of tokens, places, neighbours: p | total variation of tokens, 95 % of permutations below "
          "| digits recognised, in f32 |\n| --- | --- | --- | --- |")
    for row in (r for r in rows if r["model"] != "demo"):
        counts = [row[name]["p"] for name in ("tokens", "places", "neighbours")]
        print(f"| {row['options']} | {', '.join(f'{p:.2f}' for p in counts)} | {row['tokens']['total_variation']:.4f}, "
              f"{row['tokens']['total_variation_95']:.4f} | {row['classifier_accuracy']:.1%}, {row['reference_accuracy']:.1%} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--library", default=BUILT)
    parser.add_argument("--mar", default=str(Path(BUILT).parent / "mar"), help="the command")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE", help="print what FILE has, and measure nothing")
    args = parser.parse_args()
    if args.table:
        table(json.loads(args.table.read_text()))
        return
    result = {"images": args.images, **PARAMETERS, "tokens": compare_tokens(args), "fidelity": compare_laws(args)}
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    table(result)


if __name__ == "__main__":
    main()
