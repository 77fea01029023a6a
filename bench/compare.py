#!/usr/bin/env python3
"""`mar bench` and PyTorch in turn on this machine, with random models of the same full size, and the ratio of the two.

    python3 bench/compare.py                     # MAR-B, 64 x 100 steps, cfg 2.9, batch 1
    python3 bench/compare.py --configs bf16-eager,bf16-compile --out bench/results/cpu.json
    python3 bench/compare.py --num_iter 2 --num_sampling_steps 5 --configs f32-eager    # does it run? a minute
    python3 bench/compare.py --family spherear --source SphereAR --out bench/results/cpu_spherear_b.json

SphereAR's sources are a clone of github.com/guolinke/SphereAR. bench/spherear_torch.py says which parts of an image it
measures. --trained FILE also measures a trained model of that size (tools/dev/inflate_checkpoint.py): --head_spec accepts
more of its proposals than of random weights'. It has fewer tokens; its seconds are scaled to those of the random model.

Needs `scripts/build.sh release` and bench/requirements.txt. The checkpoints are written once, to build/bench (2 GB for
MAR-B, 1 GB for SphereAR-B).
"""

import argparse
import ctypes
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = "f32-eager,f32-compile,amp-eager,amp-compile,bf16-eager,bf16-compile"
MARS, SPHERES = ["mar_base", "mar_large", "mar_huge"], ["spherear_b", "spherear_l", "spherear_h"]


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


def save(args, result):
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


# --- MAR ---------------------------------------------------------------------------------------------------------------


def compare_mar(args):
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
    save(args, {"libmar": ours, "pytorch": torch})


# --- SphereAR ----------------------------------------------------------------------------------------------------------


def multiplied(arch):
    """Numbers of weights that a token multiplies with: in the transformer, in a call of the head, and in the rest of the head,
    which depends on time and condition only."""
    width, depth, blocks, modulations = {"spherear_b": (768, 24, 6, 2), "spherear_l": (1024, 32, 8, 2),
                                         "spherear_h": (1280, 40, 12, 3)}[arch]
    hidden = -(-(8 * width // 3) // 256) * 256
    # a block: width to two halves of 1.5 widths, and back; adaLN: three widths a layer and two at the end
    return (depth * (4 * width ** 2 + 3 * width * hidden) + 16 * width, (blocks * 9 * width // 2 + 2 * 16) * width,
            (3 * modulations + 2 + 1) * width ** 2)


def print_floor(args, bandwidth, peak):
    """Prints the weights and the arithmetic of a token, plain, guided, in bf16, and the seconds the machine needs for them."""
    transformer, call, rest = multiplied(args.arch)
    calls = args.num_sampling_steps + 1
    read = 2 * (transformer + call * calls + rest)  # bytes
    flop = 2 * 2 * (transformer + (call + rest) * calls)
    print(f"floor of a token, bf16: {read / 1e9:.2f} GB of weights, {2 * call / 1e6:.1f} MB for each of {calls} sequential "
          f"calls of the head; {flop / 1e9:.2f} GFLOP\n  an image: {256 * read / bandwidth:.2f} s at memory's "
          f"{bandwidth / 1e9:.1f} GB/s (caches may be faster), {256 * flop / peak:.2f} s at {peak / 1e9:.0f} GFLOP/s",
          flush=True)
    return {"bytes_per_token": read, "bytes_per_head_call": 2 * call, "flop_per_token": flop, "memory_bandwidth": bandwidth,
            "matrix_peak": peak}


def machine(threads):
    """Bytes read from memory and bf16 flop of matrix products in a second."""
    from libmar import BUILT, Library
    library, out = Library(BUILT, "bf16", threads), []
    for measure in (library.lib.mar_measure_bandwidth, library.lib.mar_measure_peak):
        rate = ctypes.c_double()
        library.check(measure(library.handle, ctypes.byref(rate)))
        out.append(rate.value)
    return out


def measure_ours(args, model, dtype, window):
    o = run([args.mar, "bench", "--model", model, "--cfg", args.cfg, "--num_sampling_steps", args.num_sampling_steps,
             "--dtype", dtype, "--head_spec", window, "--threads", args.threads, "--json"])
    return dict(o, model=model.name)


def seconds_of_tokens(o):
    """Of an image without its pixels."""
    return o["seconds_per_image"] - o["vae_seconds"]


def compare_spherear(args):
    from spherear_torch import middle, start
    model = checkpoint(args.arch, ROOT / f"build/bench/{args.arch}.pt")
    floor = print_floor(args, *machine(args.threads))
    windows = [int(window) for window in args.windows.split(",")]
    dtypes = args.dtypes.split(",")
    variants = [("random", model, dtype, window) for dtype in dtypes for window in (0, *windows)]
    if args.trained:
        variants += [("trained", Path(args.trained), dtype, window) for dtype in dtypes for window in windows]
    turns, torch_turns = {}, {}
    torch_args = argparse.Namespace(source=args.source, model=args.arch[-1].upper(), threads=args.threads, cfg=args.cfg,
                                    steps=args.num_sampling_steps, tokens=args.tokens)
    workers = start(args.configs.split(","), torch_args)
    for turn in range(args.turns):
        print(f"turn {turn + 1} of {args.turns}", file=sys.stderr, flush=True)
        for config, worker in workers.items():
            torch_turns.setdefault(config, []).append(worker.round())
        for weights, file, dtype, window in variants:
            turns.setdefault((weights, dtype, window), []).append(measure_ours(args, file, dtype, window))
    torch = {config: middle(rounds) for config, rounds in torch_turns.items()}
    best = min(torch, key=lambda config: torch[config]["total"])
    for config, r in torch.items():
        print(f"PyTorch {config:12} {r['total']:8.2f} s  transformer {r['transformer']:.2f}  head {r['head']:.2f}  decoder "
              f"{r['decoder']:.2f}  (from {args.tokens} of 256 tokens)")
    ours = {}
    for (weights, dtype, window), rounds in turns.items():
        o = sorted(rounds, key=seconds_of_tokens)[(len(rounds) - 1) // 2]
        whole = sorted(turns["random", dtype, window], key=seconds_of_tokens)[(len(rounds) - 1) // 2]
        made = o["parameters"]["num_iter"]  # tokens of an image
        seconds = seconds_of_tokens(o) * 256 / made + whole["vae_seconds"]
        ratio = torch[best]["total"] / seconds
        ours[f"{weights} {dtype} {window}"] = {
            "seconds": seconds, "times_as_fast_as_pytorch": ratio,
            "all_seconds": [r["seconds_per_image"] for r in rounds], "run": o}
        print(f"libmar {weights:7} {dtype:4} {f'--head_spec {window}' if window else 'plain':14} {seconds:8.2f} s  transformer "
              f"{o['decoder_seconds'] * 256 / made:.2f}  head {o['head_seconds'] * 256 / made:.2f}  decoder "
              f"{whole['vae_seconds']:.2f}  {o['head_calls_per_token']:.1f} calls a token  {ratio:.2f} times as fast as PyTorch's {best}")
    for worker in workers.values():
        worker.end()
    made_by = " ".join(["python3", "bench/compare.py", *sys.argv[1:]]).replace(args.source, "SphereAR")
    save(args, {"made by": made_by, "turns": args.turns, "floor": floor,
                "libmar": ours,
                "pytorch": {"torch": workers[best].torch, "extrapolated_from_tokens": args.tokens, "best": best,
                            "seconds": torch, "rounds": torch_turns}})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mar", default=ROOT / "build/release/mar", help="the command [build/release/mar]")
    parser.add_argument("--family", default="mar", choices=["mar", "spherear"])
    parser.add_argument("--arch", choices=MARS + SPHERES, help="[mar_base, spherear_b]")
    parser.add_argument("--num_sampling_steps", type=int, default=100)
    parser.add_argument("--configs", default=CONFIGS, help="of PyTorch")
    parser.add_argument("--out", help="also write everything as JSON to this file")
    mar = parser.add_argument_group("MAR")
    mar.add_argument("--num_iter", type=int, default=64)
    mar.add_argument("--repeat", type=int, default=1, help="images of ours; the best counts")
    sphere = parser.add_argument_group("SphereAR")
    sphere.add_argument("--source", help="a clone of SphereAR, bare or not")
    sphere.add_argument("--trained", help="a trained model of the same size")
    sphere.add_argument("--cfg", type=float, default=4.5)
    sphere.add_argument("--windows", default="4,8,16", help="--head_spec of ours, beside plain sampling [4,8,16]")
    sphere.add_argument("--tokens", type=int, default=8, help="measured tokens of PyTorch's image [8]")
    sphere.add_argument("--turns", type=int, default=3, help="each measures everything once; medians count [3]")
    sphere.add_argument("--threads", type=int, default=2)
    sphere.add_argument("--dtypes", default="bf16,f32", help="of ours [bf16,f32]")
    args = parser.parse_args()
    args.arch = args.arch or (MARS if args.family == "mar" else SPHERES)[0]
    if (args.arch in SPHERES) != (args.family == "spherear"):
        parser.error(f"--arch {args.arch} is not of --family {args.family}")
    if args.family == "spherear" and not args.source:
        parser.error("--family spherear needs --source, a clone of github.com/guolinke/SphereAR")
    compare_spherear(args) if args.family == "spherear" else compare_mar(args)


if __name__ == "__main__":
    main()
