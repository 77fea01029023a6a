#!/usr/bin/env python3
"""libmar and PyTorch on this machine's GPU, side by side in one run.

    python3 bench/gpu.py --out bench/results/gpu.json                  # all sizes: hours for PyTorch's large batches
    python3 bench/gpu.py --archs mar_base --batches 1 --pytorch bf16-eager,bf16-graphs

Needs `scripts/build.sh cuda` and bench/requirements.txt. For each model, batch and number of autoregressive steps:
`mar bench --backend cuda`, plain and with --head_spec at the small batches, then bench/pytorch_mar.py. Before these, of each
model, `mar bench --micro`, and what gpu_model.py makes of its constants. The checkpoints are random, of the
official shapes, written once to build/bench. What has been measured is in --out after every line, so that a run that is
cut off keeps it; a run with the same file goes on behind it.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import gpu_model
from compare import ROOT, checkpoint, run


def ours(args, arch, batch, num_iter, head_spec):
    folder = ROOT / "build/bench"
    command = [args.mar, "bench", "--backend", "cuda", "--model", checkpoint(arch, folder / f"{arch}.pth"), "--vae",
               checkpoint("kl16", folder / "kl16.ckpt"), "--num_iter", num_iter, "--batch", batch, "--repeat",
               args.repeat, "--json"]
    return run(command + (["--head_spec", head_spec] if head_spec else []))


def measure_micro(args, name, arch):
    folder = ROOT / "build/bench"
    micro = run([args.mar, "bench", "--micro", "--backend", "cuda", "--model", checkpoint(arch, folder / f"{arch}.pth"),
                 "--vae", checkpoint("kl16", folder / "kl16.ckpt"), "--json"])
    micro["model_time"] = gpu_model.model_time(micro)
    return micro


def pytorch(args, arch, batch, num_iter):
    return run([sys.executable, ROOT / "bench/pytorch_mar.py", "--device", "cuda", "--arch", arch, "--batch", batch,
                "--num_iter", num_iter, "--configs", args.pytorch, "--json"])


def row(name, seconds, note=""):
    print(f"| {name} | {seconds:.4f} | {note} |", flush=True)


def measure_ours(args, name, arch, batch, num_iter, head_spec):
    o = ours(args, arch, batch, num_iter, head_spec)
    floor = o["flop_per_image"] / o["matrix_peak"]
    row(name, o["seconds_per_image"], f"{o['seconds_per_image'] / floor:.2f} x arithmetic floor {floor:.4f}; encoder "
        f"{o['encoder_seconds']:.4f} decoder {o['decoder_seconds']:.4f} head {o['head_seconds']:.4f} VAE "
        f"{o['vae_seconds']:.4f}; {o['head_calls_per_token']:.1f} calls a token")
    return o


def measure_pytorch(args, name, arch, batch, num_iter, ours_seconds):
    torch = pytorch(args, arch, batch, num_iter)
    for config, seconds in torch["seconds"].items():
        row(f"{name} {config}", seconds["total"], f"encoder {seconds['encoder']:.4f} decoder {seconds['decoder']:.4f} "
            f"head {seconds['head']:.4f} VAE {seconds['vae']:.4f}; {seconds['total'] / ours_seconds:.2f} x libmar's plain "
            "chain")
    return torch


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mar", default=ROOT / "build/cuda/mar", help="the command [build/cuda/mar]")
    parser.add_argument("--archs", default="mar_base,mar_large,mar_huge")
    parser.add_argument("--batches", default="1,8,64,256")
    parser.add_argument("--num_iters", default="64,256")
    parser.add_argument("--head_spec", type=int, default=8, help="window, measured at batches 1 and 8 [8]; 0: not")
    parser.add_argument("--pytorch", default="bf16-eager,bf16-compile,bf16-graphs", help="its configurations; '': none")
    parser.add_argument("--repeat", type=int, default=3, help="batches of ours; the best counts [3]")
    parser.add_argument("--out", type=Path, help="JSON file of all results")
    args = parser.parse_args()
    results = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}

    def once(name, measure, *arguments):
        if name in results:
            return
        try:
            results[name] = measure(args, name, *arguments)
        except subprocess.CalledProcessError as error:  # out of memory, say: the command has said why
            print(f"| {name} | failed, exit status {error.returncode} | |", flush=True)
            return
        if args.out:
            args.out.write_text(json.dumps(results, indent=1) + "\n")

    print("| | seconds per image | |\n| --- | --- | --- |")
    for arch in args.archs.split(","):
        once(f"libmar {arch}, parts", measure_micro, arch)
        for batch in map(int, args.batches.split(",")):
            for num_iter in map(int, args.num_iters.split(",")):
                where = f"{arch} batch {batch}, {num_iter} steps"
                plain = f"libmar {where}"
                once(plain, measure_ours, arch, batch, num_iter, 0)
                if args.head_spec and batch <= 8:
                    once(f"libmar {where}, head_spec {args.head_spec}", measure_ours, arch, batch, num_iter,
                         args.head_spec)
                if args.pytorch and plain in results:
                    once(f"PyTorch {where}", measure_pytorch, arch, batch, num_iter,
                         results[plain]["seconds_per_image"])


if __name__ == "__main__":
    main()
