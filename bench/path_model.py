#!/usr/bin/env python3
"""What is expected of --spec path on a GPU, one image at a time: the tables of bench/results/path_model.md.

    python3 bench/path_model.py >bench/results/path_model.md
    python3 bench/path_model.py --constants gpu_micro.json      # with what `mar bench --micro --json` measured

All numbers are those of bench/gpu_model.py.
"""

import argparse
import json
from pathlib import Path

import gpu_model

POWERS = (0.5, 1, 2, 4)

HEAD = """# Expected of `--spec path` on a GPU: an estimate

    {command}

**All times on this page are estimates**, by a model of time from {constants} (`python3 bench/gpu_model.py` lists them).
An H200 took 0.385 s for plain sampling of MAR-B in 64 steps, and 0.223 s with `--head_spec 8`: assumed constants make the head with few
rows nearly twice too fast (docs/persistent.md). The model is for one image of 256 tokens at a time, 100 diffusion steps, guidance, and drafts from the model's own last conditions.

- A round is one pass over gamma contexts, a chain of the head that draws the next drafts and the first candidates, calls that judge
  drafts and candidates, and the host's waits for both verdicts. Products are arithmetic over the matrix rate, plus the bytes they move,
  plus so much a kernel. What contexts share of a first block is left out.
- How many rounds an image has follows from how often a path is accepted. That is known of the demo only. Assumed is that a draft which is
  late by a part of an image is accepted as often as in the demo, to a power: 2 if a token of 16 channels is twice as hard as the demo's of
  8. A step of n tokens is kept only if all n are accepted, independently. For the demo itself this gives 19.0, 12.4 and 10.4 passes at
  gamma 4, 8 and 16, where `bench/path_figures.py` (commit 4cbc1a71) counted 18.8, 12.3 and 10.1.
- On a GPU the head of `--spec path` is in f16 (`--head_dtype auto`), as for every other method. Beside it stands one in f32: no persistent
  kernel, and {f32:.0f} TFLOP/s. On the demo f16 accepts 0.86 of the paths, f32 0.88, bf16 0.64 (bench/RESULTS.md): the transition from t = 999
  has 350 times the error of eps. Both stand here with f32's acceptance; f16's is its power of 1.2.
- `--head_spec W` alone is the best of W = 8, 16 and 32, and `--spec path` the best of gamma = 2, 4, 8, 16 and 32, with or without
  such a W.
"""

WHAT_NOW = """
**What it says.** {says} Candidates and dropped drafts make it two to three paths a token, so where a step has several tokens its head
takes longer than that of `--head_spec` alone, and few steps have little transformer to save. A context is not free: a pass is
arithmetic from few contexts on.

**What to measure first**, in this order, since each can turn the result:

1. Acceptance by lateness on a trained MAR (`mar fidelity --spec path --json`), with the head in f32 and in f16: the table of powers spans
   a factor of 8 in it.
2. An evaluation of the head by products at 256 to 1024 rows, in a recording (`mar bench --micro` stops at 64). More than 16 tokens a chain
   go there at W = 8, and starts and ends of MAR-B's 27 kernels are {call_floor:.0f} us of each call by these constants. If that is what
   is measured, the persistent kernel should take more rows.
3. A pass over 2, 4, 8 and 16 contexts against one of 1: a MAR-B pass of one context is {one:.2f} ms here, of which {pass_floor:.2f} are
   starts and ends of kernels, and each further context adds {context:.2f} ms. That decides gamma, and what `--gamma auto` takes a
   context for.
4. The host's wait for a verdict, with what it launches next: assumed {wait:.0f} us, twice a round and more.
"""


def model_time(args, power):
    """The model's rows with acceptance to a power."""
    record = json.loads(args.constants.read_text()) if args.constants else {}
    return gpu_model.model_time({**record, "constants": {**record.get("constants", {}), "acceptance_power": power}})


def best(rows, **where):
    """The fastest of the rows with these values; a tuple: one of them."""
    fits = [r for r in rows if all(r[k] in v if isinstance(v, tuple) else r[k] == v for k, v in where.items())]
    return min(fits, key=lambda r: r["total_seconds"])


def of_image(rows, model, steps):
    """The rows of an image: plain, the best --head_spec alone, the best --spec path with a head in f32 and in f16."""
    image, gammas = {"model": model, "num_iter": steps}, (2, 4, 8, 16, 32)
    return (best(rows, **image, gamma=0, head_spec=0), best(rows, **image, gamma=0, head_spec=(8, 16, 32)),
            best(rows, **image, gamma=gammas, head_dtype="f32"), best(rows, **image, gamma=gammas, head_dtype="f16"))


def settings(row):
    return f"gamma {row['gamma']}, W {row['head_spec'] or 'none'}"


def table_of_best(rows, models, steps):
    lines = ["| model, steps | plain, s | `--head_spec W`, s | `--spec path`, head f32 | head_spec / path | `--spec path`, head f16 | "
             "passes, calls | head_spec / path |", "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for model in models:
        for n in steps:
            plain, alone, f32, f16 = of_image(rows, model, n)
            seconds = alone["total_seconds"]
            lines.append(f"| {model}, {n} | {plain['total_seconds']:.3f} | {seconds:.3f} (W {alone['head_spec']}) | "
                         f"{f32['total_seconds']:.3f} ({settings(f32)}) | {seconds / f32['total_seconds']:.2f} | "
                         f"{f16['total_seconds']:.3f} ({settings(f16)}) | {f16['passes_in_sequence']:.0f}, "
                         f"{f16['head_calls_in_sequence']:.0f} | {seconds / f16['total_seconds']:.2f} |")
    return lines


def table_of_powers(by_power, models, steps):
    lines = ["| model, steps | " + " | ".join(f"power {p}" for p in by_power) + " |",
             "| --- |" + " --- |" * len(by_power)]
    for model in models:
        for n in steps:
            cells = []
            for rows in by_power.values():
                _, alone, _, path = of_image(rows, model, n)
                cells.append(f"{alone['total_seconds'] / path['total_seconds']:.2f} (gamma {path['gamma']}, "
                             f"{path['passes_in_sequence']:.0f} passes)")
            lines.append(f"| {model}, {n} | " + " | ".join(cells) + " |")
    return lines


def table_of_gammas(rows, model, steps, windows):
    lines = ["| gamma | passes | " + " | ".join(f"W = {w}" if w else "no W" for w in windows) + " |",
             "| --- | --- |" + " --- |" * len(windows)]
    for gamma in sorted({r["gamma"] for r in rows} - {0}):
        cells = [best(rows, model=model, num_iter=steps, gamma=gamma, head_spec=w, head_dtype="f16") for w in windows]
        lines.append(f"| {gamma} | {cells[0]['passes_in_sequence']:.0f} | " +
                     " | ".join(f"{r['total_seconds']:.3f}" for r in cells) + " |")
    return lines


def table_of_parts(rows, models, steps):
    names = ("transformer", "modulation_and_vae", "head", "judging", "waiting", "total")
    lines = ["| | " + " | ".join(n.replace("_and_vae", " + VAE") for n in names) + " |", "| --- |" + " --- |" * len(names)]
    for model in models:
        ways = ("plain", "`--head_spec`", "`--spec path`, head f32", "`--spec path`, head f16")
        for way, row in zip(ways, of_image(rows, model, steps)):
            lines.append(f"| {model}, {way} | " + " | ".join(f"{row[n + '_seconds']:.3f}" for n in names) + " |")
    return lines


def verdict(rows, models, steps):
    """A sentence for each number of steps."""
    says = []
    for n in steps:
        f32, f16 = [sorted(of_image(rows, m, n)[1]["total_seconds"] / of_image(rows, m, n)[kind]["total_seconds"] for m in models)
                     for kind in (2, 3)]
        says.append(f"In {n} steps it is {f32[0]:.2f} to {f32[-1]:.2f} times as fast as `--head_spec` alone with the head in f32, "
                    f"{f16[0]:.2f} to {f16[-1]:.2f} times in f16.")
    return " ".join(says)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constants", type=Path, help="what `mar bench --micro --json` wrote")
    args = parser.parse_args()
    runs = {power: model_time(args, power) for power in POWERS}
    by_power = {power: run["paths"] for power, run in runs.items()}
    rows, constants = by_power[1], runs[1]["constants"]
    models, steps = list(dict.fromkeys(r["model"] for r in rows)), sorted({r["num_iter"] for r in rows})
    measured = len(runs[1]["measured"]) - 1  # the power is ours
    print(HEAD.format(command="python3 bench/path_model.py" + (" --constants FILE" if args.constants else ""),
                      constants=f"{measured} measured constants and assumed ones" if measured else "assumed constants",
                      f32=1e-12 * constants["f32_flop_per_second"]))
    print("\n".join(table_of_best(rows, models, steps)))
    print("\n**If another model accepts more or less**: how many times as fast as `--head_spec` alone, head in f16, with the demo's "
          "acceptance to a power\n")
    print("\n".join(table_of_powers(by_power, models, steps)))
    print(f"\n**By gamma and W**, seconds an image of {models[0]} in {steps[-1]} steps, head in f16\n")
    print("\n".join(table_of_gammas(rows, models[0], steps[-1], (0, 8, 16, 32))))
    print(f"\n**Where the time goes**, seconds an image in {steps[-1]} steps\n")
    print("\n".join(table_of_parts(rows, models, steps[-1])))
    print(WHAT_NOW.format(says=verdict(rows, models, steps), **floors(rows, constants)).rstrip())


def floors(rows, constants):
    """What starts and ends of kernels are, of a call of MAR-B's head by products and of its pass; and what a context is."""
    kernel = constants["launch_seconds"] + constants["ramp_seconds"]
    plain = best(rows, model="MAR-B", num_iter=256, gamma=0, head_spec=0)
    path = best(rows, model="MAR-B", num_iter=256, gamma=8, head_dtype="f16")
    one = plain["transformer_seconds"] / 256
    many = path["transformer_seconds"] / path["passes_in_sequence"]
    return {"call_floor": 1e6 * (4 * 6 + 3) * kernel, "one": 1e3 * one, "pass_floor": 1e3 * 7 * 24 * kernel,
            "context": 1e3 * (many - one) / 7, "wait": 1e6 * constants["wait_seconds"]}


if __name__ == "__main__":
    main()
