#!/usr/bin/env python3
"""libmar and PyTorch on this machine's GPU, side by side in one run: MAR, SphereAR and LlamaGen.

    python3 bench/gpu.py --out bench/results/gpu.json                  # all: hours for PyTorch's large batches
    python3 bench/gpu.py --archs mar_base,gpt_l --batches 1 --pytorch bf16-eager,bf16-graphs
    python3 bench/gpu.py --backend cpu --small --pytorch f32-eager     # does it run? demo models, minutes

Needs `scripts/build.sh cuda` and bench/requirements.txt. For each model, batch and number of autoregressive steps:
`mar bench --tune`, which times algorithms of products into --tuning FILE; `mar bench` of each method (METHODS), with the file
and without; and bench/pytorch_mar.py or pytorch_causal.py. Before these, of each MAR model, `mar bench --micro`, and what
gpu_model.py makes of its constants. The checkpoints are random, of the official shapes, written once to build/bench. What has
been measured is in --out after every line, so that a run that is cut off keeps it; a run with the same file goes on behind it.
"""

import argparse
import json
import sys
from pathlib import Path

import gpu_model
from peers import ROOT, NotRun, checkpoint, run

FILES = ROOT / "build/bench"
DECODERS = {"mar": "kl16", "gpt": "vq16"}  # SphereAR's is in its own file
DEMOS = {"mar": "demo", "spherear": "demo-sphere", "gpt": "demo-discrete"}
# name: options, and the families and largest batch that it is measured for
METHODS = {"plain": ([], ("mar", "spherear", "gpt"), 1 << 16),
           "head_spec 8": (["--head_spec", 8], ("mar", "spherear"), 8),
           "path": (["--spec", "path", "--gamma", 8], ("mar",), 8),
           "path, head_spec 8": (["--spec", "path", "--gamma", 8, "--head_spec", 8], ("mar",), 8),
           "sjd": (["--spec", "sjd"], ("gpt",), 8)}


def family(arch):
    return arch.split("_")[0]


def ours(args, arch, batch, num_iter, options=()):
    """The JSON of `mar bench`."""
    kind = family(arch)
    files = ["--model", DEMOS[kind]] if args.small else ["--model", checkpoint(arch, FILES / f"{arch}.pth")]
    if kind in DECODERS and not args.small:
        files += ["--vae", checkpoint(DECODERS[kind], FILES / f"{DECODERS[kind]}.ckpt")]
    steps = (["--num_iter", num_iter] if kind == "mar" else []) + (
        ["--num_sampling_steps", 4] if args.small and kind != "gpt" else [])
    return run([args.mar, "bench", "--backend", args.backend, *files, *steps, "--batch", batch, *options, "--json"])


def measure_micro(args, name, arch):
    micro = ours(args, arch, 1, 64, ["--micro"])
    if args.backend == "cuda":
        micro["model_time"] = gpu_model.model_time(micro)
    return micro


def measure_ours(args, name, arch, batch, num_iter, options):
    o = ours(args, arch, batch, num_iter, ["--repeat", args.repeat, *options])
    parts = {part: o[f"{part}_seconds"] for part in ("encoder", "decoder", "target", "head", "draft", "verification", "vae")
             if o.get(f"{part}_seconds")}
    row(name, o["seconds_per_image"], parts, "" if "flop_per_image" not in o else
        f"; {o['seconds_per_image'] / (o['flop_per_image'] / o['matrix_peak']):.2f} x arithmetic floor")
    return o


def measure_pytorch(args, name, arch, batch, num_iter, ours_seconds):
    program = ["pytorch_mar.py", "--num_iter", num_iter] if family(arch) == "mar" else ["pytorch_causal.py"]
    small = ["--steps", 4, *([] if family(arch) == "mar" else ["--small"])] if args.small else []
    torch = run([sys.executable, ROOT / "bench" / program[0], *program[1:], "--device", args.backend, "--arch", arch, "--batch",
                 batch, "--configs", args.pytorch, *small, "--json"])
    for config, seconds in torch["seconds"].items():
        total = seconds.pop("total")
        row(f"{name} {config}", total, seconds, f"; {total / ours_seconds:.2f} x libmar's plain decoding")
        seconds["total"] = total
    return torch


def row(name, seconds, parts, note):
    print(f"| {name} | {seconds:.4f} | {' '.join(f'{part} {s:.4f}' for part, s in parts.items())}{note} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mar", default=ROOT / "build/cuda/mar", help="the command [build/cuda/mar]")
    parser.add_argument("--backend", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="the demo models in a few steps, and of PyTorch tiny ones or MAR-B")
    parser.add_argument("--archs", default="mar_base,mar_large,mar_huge,spherear_b,spherear_l,gpt_b,gpt_l,gpt_xl,gpt_3b")
    parser.add_argument("--batches", default="1,8,64,256")
    parser.add_argument("--num_iters", default="64,256", help="of MAR [64,256]")
    parser.add_argument("--methods", default=",".join(name.replace(", ", "+") for name in METHODS), help="[all]")
    parser.add_argument("--pytorch", default="bf16-eager,bf16-compile,bf16-graphs", help="its configurations; '': none")
    parser.add_argument("--repeat", type=int, default=3, help="batches of ours; the best counts [3]")
    parser.add_argument("--tuning", type=Path, default=FILES / "gpu.tuning", help="file of `mar bench --tune` [build/bench/gpu.tuning]")
    parser.add_argument("--out", type=Path, help="JSON file of all results")
    args = parser.parse_args()
    results = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}

    def once(name, measure, *arguments):
        if name in results:
            return
        try:
            results[name] = measure(args, name, *arguments)
        except NotRun as why:  # out of memory, say
            print(f"| {name} | not run: {why} | |", flush=True)
            return
        if args.out:
            args.out.write_text(json.dumps(results, indent=1) + "\n")

    print("| | seconds per image | |\n| --- | --- | --- |")
    for arch in args.archs.split(","):
        if family(arch) == "mar":
            once(f"libmar {arch}, parts", measure_micro, arch)
        for batch in map(int, args.batches.split(",")):
            for num_iter in map(int, args.num_iters.split(",") if family(arch) == "mar" else [256]):
                where = f"{arch} batch {batch}" + (f", {num_iter} steps" if family(arch) == "mar" else "")
                for method in args.methods.split(","):
                    options, families, most = METHODS[method.replace("+", ", ")]
                    if family(arch) not in families or batch > most:
                        continue
                    name = f"libmar {where}, {method}"
                    once(name, measure_ours, arch, batch, num_iter, options)
                    if args.backend == "cuda":
                        tuned = [*options, "--tuning", args.tuning]
                        once(f"{name}, tuning", measure_ours, arch, batch, num_iter, [*tuned, "--tune"])
                        once(f"{name}, tuned", measure_ours, arch, batch, num_iter, tuned)
                plain = results.get(f"libmar {where}, plain")
                if args.pytorch and plain:
                    once(f"PyTorch {where}", measure_pytorch, arch, batch, num_iter, plain["seconds_per_image"])


if __name__ == "__main__":
    main()
