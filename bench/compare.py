#!/usr/bin/env python3
"""`mar bench` and PyTorch in turn on this machine, with the same random full-size model, and the ratio of the two.

    python3 bench/compare.py                     # MAR-B, 64 x 100 steps, cfg 2.9, batch 1
    python3 bench/compare.py --configs bf16-eager,bf16-compile --out bench/results/cpu.json
    python3 bench/compare.py --num_iter 2 --num_sampling_steps 5 --configs f32-eager    # does it run? a minute

Needs `scripts/build.sh release` and bench/requirements.txt. The checkpoints are written once, to build/bench (about 2 GB
for MAR-B).
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def checkpoint(arch, path):
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, ROOT / "tools/dev/random_checkpoint.py", "--arch", arch, "--out", path], check=True)
    return path


def run(command):
    """The JSON on the last line, or all of, a command's standard output; what it prints meanwhile is shown."""
    output = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout
    try:
        return json.loads(output)
    except json.JSONDecodeError:
        lines = output.strip().splitlines()
        print("\n".join(lines[:-1]), flush=True)
        return json.loads(lines[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mar", default=ROOT / "build/release/mar", help="the command [build/release/mar]")
    parser.add_argument("--arch", default="mar_base", choices=["mar_base", "mar_large", "mar_huge"])
    parser.add_argument("--num_iter", type=int, default=64)
    parser.add_argument("--num_sampling_steps", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=1, help="images of ours; the best counts")
    parser.add_argument("--configs", default="f32-eager,f32-compile,amp-eager,amp-compile,bf16-eager,bf16-compile")
    parser.add_argument("--out", help="also write everything as JSON to this file")
    args = parser.parse_args()
    folder = ROOT / "build/bench"
    model, vae = checkpoint(args.arch, folder / f"{args.arch}.pth"), checkpoint("kl16", folder / "kl16.ckpt")

    ours = {}
    for dtype in ("bf16", "f32"):
        ours[dtype] = run([args.mar, "bench", "--model", model, "--vae", vae, "--num_iter", args.num_iter,
                           "--num_sampling_steps", args.num_sampling_steps, "--repeat", args.repeat, "--dtype", dtype,
                           "--json"])
        o = ours[dtype]
        o["model"] = model.name
        print(f"libmar {dtype:5} {o['seconds_per_image']:8.3f} s  encoder {o['encoder_seconds']:.3f}  decoder "
              f"{o['decoder_seconds']:.3f}  head {o['head_seconds']:.3f}  VAE {o['vae_seconds']:.3f}  "
              f"{100 * o['fraction_of_peak']:.1f} % of {o['matrix_peak'] / 1e9:.0f} GFLOP/s", flush=True)
    torch = run([sys.executable, ROOT / "bench/pytorch_mar.py", "--arch", args.arch, "--num_iter", args.num_iter,
                 "--steps", args.num_sampling_steps, "--configs", args.configs, "--json"])
    best = min(torch["seconds"], key=lambda name: torch["seconds"][name]["total"])
    seconds = torch["seconds"][best]["total"]
    fastest = min(ours.values(), key=lambda o: o["seconds_per_image"])
    print(f"libmar {fastest['seconds_per_image']:.3f} s, best PyTorch ({best}) {seconds:.3f} s: "
          f"{seconds / fastest['seconds_per_image']:.2f} times as fast")
    if args.out:
        Path(args.out).write_text(json.dumps({"libmar": ours, "pytorch": torch}, indent=1) + "\n")


if __name__ == "__main__":
    main()
