#!/usr/bin/env python3
"""The demo with the official number of latent channels, 16, beside the one that is shipped, with 8.

    train="python3 demo/train_demo.py --channels 16 --out build/demo16 --work build/demo16"
    $train --stage vae --threads 2 && $train --stage draft
    $train --stage target --share 1/3 --save build/demo16/target.safetensors
    python3 bench/channels.py --folder build/demo16 --out bench/results/channels.json

Of both: the calls of the head that `--head_spec` makes for a token, and how many of its proposals are accepted; the share of a draft
model's tokens that `--spec path` accepts; how far bf16 and int8 are from f32, as bench/int8_demo.py measures it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import int8_demo
from libmar import BUILT

WINDOWS = (2, 4, 8, 16)
DTYPES = ("bf16", "int8")


def run(args, command, *options):
    done = subprocess.run([args.mar, command, "--threads", str(args.threads), "--json", *options], stdout=subprocess.PIPE, text=True,
                          check=True)
    return json.loads(done.stdout)


def fidelity(args, *options):
    with tempfile.TemporaryDirectory() as folder:
        return run(args, "fidelity", "--num", str(args.images), "--out", f"{folder}/page.html", *options)


def measure(args, name, channels, model, draft, vae):
    files = ["--model", model, "--vae", vae]
    windows = []
    for window in WINDOWS:
        windows += ["--versus", "--head_spec", str(window)]
    spec = fidelity(args, *files, "--dtype", "f32", *windows[1:], "--against", "--dtype", "f32")
    found = {"name": name, "channels": channels, "digits": spec["reference"]["classifier_accuracy"], "head_spec": [
        {"window": w, **{k: r[k] for k in ("head_calls_per_token", "head_evaluations_per_token", "proposal_acceptance_rate", "verdict")}}
        for w, r in zip(WINDOWS, spec["runs"])]}
    path = fidelity(args, *files, "--dtype", "f32", "--draft", draft, "--spec", "path", "--context", "prefix", "--head_spec", "8",
                    "--against", "--dtype", "f32")["runs"][0]
    found["path"] = {k: path[k] for k in ("acceptance_rate", "mean_accepted_length", "passes_in_sequence", "verdict")}
    laws = fidelity(args, *files, "--dtype", "bf16", "--versus", "--dtype", "int8", "--against", "--dtype", "f32")
    found["floor"] = laws["floor"]
    reference, found["backend"] = int8_demo.make(args, model=model, channels=channels)
    for dtype, law in zip(DTYPES, laws["runs"]):
        made, _ = int8_demo.make(args, dtype=dtype, model=model, channels=channels)
        found[dtype] = {**int8_demo.difference(made, reference), "energy_image": law["energy_image"], "p": law["p"],
                        "digits": law["classifier_accuracy"]}
    other, _ = int8_demo.make(args, seed=1, model=model, channels=channels)
    found["another seed"] = int8_demo.difference(other, reference)
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def table(result):
    rows = result["models"]
    print("| | " + " | ".join(r["name"] for r in rows) + " |\n| --- |" + " --- |" * len(rows))

    def line(what, numbers):
        print(f"| {what} | " + " | ".join(numbers) + " |")

    line("digits recognised, f32", [f"{r['digits']:.1%}" for r in rows])
    for i, window in enumerate(WINDOWS):
        line(f"`--head_spec {window}`: calls a token; proposals accepted",
             [f"{r['head_spec'][i]['head_calls_per_token']:.1f}; {r['head_spec'][i]['proposal_acceptance_rate']:.3f}" for r in rows])
    line("`--spec path`: drafts accepted", [f"{r['path']['acceptance_rate']:.3f}" for r in rows])
    for dtype in DTYPES:
        line(f"{dtype}: token difference from f32, rms; 99.9 %", [f"{r[dtype]['rms']:.4f}; {r[dtype]['q999']:.3f}" for r in rows])
        line(f"{dtype}: energy distance of images; digits",
             [f"{r[dtype]['energy_image']['distance']:.2g}; {r[dtype]['digits']:.1%}" for r in rows])
    line("another seed: rms; energy distance below, in 95 of 100", [f"{r['another seed']['rms']:.2f}; {r['floor']['image_95']:.2g}" for r in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="target, draft and vae .safetensors of 16 channels")
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
    if not args.folder:
        parser.error("give --folder, or --table")
    shipped = measure(args, "8 channels, shipped", 8, "demo", "demo-draft", "demo")
    wide = measure(args, "16 channels", 16, *(str(args.folder / f"{name}.safetensors") for name in ("target", "draft", "vae")))
    result = {"images": args.images, **int8_demo.PARAMETERS, "models": [shipped, wide]}
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    table(result)


if __name__ == "__main__":
    main()
