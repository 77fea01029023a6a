#!/usr/bin/env python3
"""Linear layers and convolutions of libmar and of oneDNN, in turns on this machine's CPU, by type and instruction set.

    apt-get install libdnnl-dev                                     # oneDNN 2.x; only this comparison needs it
    python3 bench/gemm.py --out bench/results/gemm.json             # --threads 1: processor time counts
    python3 bench/gemm.py --quick --types bf16 --sets avx2          # MAR-B, LlamaGen-L, some convolutions
    python3 bench/gemm.py --table bench/results/gemm.json           # only prints it

bench/gemm.c says what is compared; it is built first. The shapes are those of MAR-B, L and H with their heads, of
LlamaGen-L, Inception-v3 (4 images) and the image decoders KL-16 and VQ-16 (256 x 256 pixels).

The floor of a shape is the larger of two times: its operations at the processor's peak for the type and set, and the
bytes of its weights and arrays at the rate of reading memory. Products of 64 rows and more and convolutions have the
first only: their arrays are in the caches. Above 1 a ratio means that libmar is faster. Each is the median over the
turns. Without VNNI oneDNN adds pairs of int8 products in 16 bits, with saturation; libmar's sums are exact.
Several threads need an idle machine: oneDNN's wait for each other, so that a busy core doubles its time.
"""

import argparse
import ctypes.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/release/gemm_bench"
# MAR_ISA, oneDNN's name of the set, the processor's flag, and the types that do not have the next set's products
SETS = [
    ("amx", "AVX512_CORE_AMX", "amx_int8", ["bf16", "int8"]),
    ("avx512_bf16", "AVX512_CORE_BF16", "avx512_bf16", ["bf16", "int8"]),
    ("avx512_vnni", "AVX512_CORE_VNNI", "avx512_vnni", ["int8"]),
    ("avx512", "AVX512_CORE", "avx512bw", ["f32", "bf16", "int8"]),
    ("avx_vnni", "AVX2_VNNI", "avx_vnni", ["int8"]),
    ("avx2", "AVX2", "avx2", ["f32", "bf16", "int8"]),
    ("generic", "SSE41", "sse4_1", ["f32", "bf16", "int8"]),
]
TYPES = {"f32": 4, "bf16": 2, "int8": 1}  # bytes of a weight
OUT_F32, OUT_ADD, UPSAMPLE, RELU = 2, 4, 8, 16  # kernels/ops.h
LINEAR, GELU, SILU = 0, 1, 2
FEW = 64  # rows; fewer read their weights from memory


def shape(name, line, kind, flop, weights, arrays):
    """weights and arrays: numbers, those of x and y."""
    return {"name": name, "line": line, "kind": kind, "flop": flop, "weights": weights, "arrays": arrays}


def linear(name, n_in, out, rows, activation=LINEAR, flags=0):
    return shape(f"{name} {n_in}-{out} x{rows}", f"linear {flags} {activation} {n_in} {out} {rows}",
                 "few rows" if rows < FEW else "rows", 2 * n_in * out * rows, n_in * out, rows * (n_in + out))


def conv(name, n_in, out, side, kernel=(3, 3), stride=1, padded=True, images=1, flags=OUT_F32):
    h, w = kernel
    pads = (h // 2, w // 2) if padded else (0, 0)

    def taps(size, pad):  # those inside the image, of a row of results; an upsampled image's have two
        if flags & UPSAMPLE:
            return 4 * side - 2
        firsts = range(-pad, side + pad - size + 1, stride)
        return sum(min(first + size, side) - max(first, 0) for first in firsts)

    return shape(f"{name} {n_in}-{out} {h}x{w} @{side}" + (f"/{stride}" if stride > 1 else ""),
                 f"conv {flags} {n_in} {out} {h} {w} {stride} {pads[0]} {pads[1]} {side} {images}", "convolutions",
                 2 * n_in * out * taps(h, pads[0]) * taps(w, pads[1]) * images, 0, 0)


def products(quick):
    for model, d, w in [("B", 768, 1024), ("L", 1024, 1280), ("H", 1280, 1536)][:1 if quick else 3]:
        for rows in [1, 8, 64, 640] if quick else [1, 2, 8, 64, 320, 640]:
            yield linear(f"{model} qkv", d, 3 * d, rows)
            yield linear(f"{model} proj", d, d, rows, flags=OUT_F32 | OUT_ADD)
            yield linear(f"{model} fc1", d, 4 * d, rows, GELU)
            yield linear(f"{model} fc2", 4 * d, d, rows, flags=OUT_F32 | OUT_ADD)
            yield linear(f"{model} head in", 16, w, rows, flags=OUT_F32)
            yield linear(f"{model} head block", w, w, rows, SILU)
            yield linear(f"{model} head adaLN", w, 3 * w, rows)
    for rows in [1, 2, 16]:
        yield linear("GPT-L wqkv", 1024, 3072, rows)
        yield linear("GPT-L wo", 1024, 1024, rows, flags=OUT_F32 | OUT_ADD)
        yield linear("GPT-L w13", 1024, 5632, rows)
        yield linear("GPT-L w2", 2816, 1024, rows, flags=OUT_F32 | OUT_ADD)
        yield linear("GPT-L output", 1024, 16384, rows, flags=OUT_F32)


def convolutions(quick):
    def inception(n_in, out, side, kernel=(3, 3), stride=1, padded=True):
        return conv("Inception", n_in, out, side, kernel, stride, padded, 4, RELU)

    up = OUT_F32 | UPSAMPLE
    some = [
        conv("decoder", 512, 512, 16), conv("decoder", 256, 256, 64, flags=OUT_F32 | OUT_ADD),
        conv("decoder", 128, 128, 256), conv("decoder", 128, 3, 256), conv("decoder up", 256, 256, 32, flags=up),
        inception(32, 64, 147), inception(192, 192, 17, (1, 7)), inception(448, 384, 8),
    ]
    more = [
        conv("decoder in", 16, 512, 16), conv("decoder in", 256, 512, 16), conv("decoder", 512, 256, 32),
        conv("decoder", 512, 256, 32, (1, 1)), conv("decoder", 256, 256, 32), conv("decoder", 256, 128, 128),
        conv("decoder", 128, 128, 128), conv("decoder up", 512, 512, 16, flags=up),
        conv("decoder up", 256, 256, 64, flags=up), conv("decoder up", 128, 128, 128, flags=up),
        inception(3, 32, 299, stride=2, padded=False), inception(32, 32, 149, padded=False),
        inception(64, 80, 73, (1, 1)), inception(80, 192, 73, padded=False), inception(192, 64, 35, (1, 1)),
        inception(48, 64, 35, (5, 5)),
        inception(64, 96, 35), inception(96, 96, 35), inception(288, 384, 35, stride=2, padded=False),
        inception(768, 192, 17, (1, 1)), inception(768, 128, 17, (1, 1)), inception(128, 128, 17, (7, 1)),
        inception(192, 192, 17, (7, 1)), inception(192, 320, 17, stride=2, padded=False),
        inception(1280, 320, 8, (1, 1)),
        inception(384, 384, 8, (1, 3)), inception(2048, 448, 8, (1, 1)),
    ]
    return some if quick else some + more


def shapes(kind, args):
    """Those of a type: the head's input is always f32, convolutions have no int8. The same product is measured once."""
    every = list(products(args.quick)) + (list(convolutions(args.quick)) if kind != "int8" else [])
    chosen = {s["line"]: s for s in every if not (kind != "f32" and "head in" in s["name"])
              and re.search(args.shapes, s["name"])}
    return list(chosen.values())


def measure(kind, isa, theirs, args):
    """Runs gemm_bench in a process for a type and set. Returns the machine's line and the measured shapes."""
    rows = shapes(kind, args)
    environment = dict(os.environ, MAR_ISA=isa, ONEDNN_MAX_CPU_ISA=theirs, OMP_NUM_THREADS=str(args.threads),
                       GOMP_SPINCOUNT="20000")  # a fraction of a millisecond: libmar's turn has all cores
    process = subprocess.Popen([PROGRAM, kind, str(args.threads), str(args.repeat)], env=environment, text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    machine, done = None, []
    with process:
        process.stdin.write("".join(s["line"] + "\n" for s in rows))
        process.stdin.close()
        machine = json.loads(process.stdout.readline() or "null")
        for s, line in zip(rows, process.stdout):
            turns = json.loads(line)["turns"]
            ours, other = (statistics.median(t) for t in zip(*turns))
            floor = s["flop"] / machine["peak"] if machine["peak"] else 0
            if s["kind"] == "few rows":
                floor = max(floor, (s["weights"] * TYPES[kind] + s["arrays"] * 4) / machine["bandwidth"])
            done.append({"name": s["name"], "kind": s["kind"], "flop": s["flop"], "floor": floor, "ours": ours,
                         "onednn": other, "ratio": statistics.median(b / a for a, b in turns),
                         "by": json.loads(line)["by"]})
            if args.verbose:
                print(f"  {s['name']:32} {ours * 1e6:9.1f} us, oneDNN {other * 1e6:9.1f}, ratio "
                      f"{done[-1]['ratio']:.2f}, {floor / ours:.0%} of the floor", flush=True)
    if process.returncode or len(done) < len(rows):
        sys.exit(f"gemm_bench has failed: {kind}, {isa}, {rows[min(len(done), len(rows) - 1)]['name']}")
    return {"type": kind, "set": isa, "onednn_set": theirs, **machine, "shapes": done}


def print_run(run, worst):
    groups = defaultdict(list)
    for s in run["shapes"]:
        groups[s["kind"]].append(s)
    unit = 1e9
    print(f"{run['type']}, {run['set']}: {run['backend']}; peak {run['peak'] / unit:.0f} GFLOP/s, memory "
          f"{run['bandwidth'] / unit:.1f} GB/s; oneDNN {run['onednn']}, {run['onednn_set']}")
    print(f"  {'':13} {'shapes':>6} {'mean ratio':>10} {'least':>6} {'below 0.95':>10} {'of the floor: ours':>19} "
          f"{'oneDNN':>7}")
    for kind, rows in [*groups.items(), ("all", run["shapes"])]:
        ratios = [s["ratio"] for s in rows]
        mine, other = (statistics.geometric_mean([s["floor"] / s[key] or 1e-9 for s in rows])
                       for key in ("ours", "onednn"))
        print(f"  {kind:13} {len(rows):6} {math.exp(statistics.fmean(map(math.log, ratios))):10.3f} {min(ratios):6.2f} "
              f"{sum(r < 0.95 for r in ratios):10} {mine:19.1%} {other:7.1%}")
    for s in sorted(run["shapes"], key=lambda s: s["ratio"])[:worst]:
        print(f"    {s['ratio']:.2f}  {s['name']:34} {s['ours'] * 1e6:10.1f} us, {s['floor'] / s['ours']:4.0%} of the "
              f"floor; oneDNN {s['onednn'] * 1e6:.1f} us, {s['by']}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", help="instruction sets, by commas; default all that this processor has")
    parser.add_argument("--types", default="f32,bf16,int8")
    parser.add_argument("--shapes", default="", metavar="REGEX", help="only shapes whose name matches")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and turns")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, help="turns, default 9, with --quick 5")
    parser.add_argument("--worst", type=int, default=10, help="list as many of each run's slowest shapes")
    parser.add_argument("--verbose", action="store_true", help="print each shape")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    parser.add_argument("--table", type=Path, metavar="JSON", help="only print the tables of this file")
    args = parser.parse_args()
    args.repeat = args.repeat or (5 if args.quick else 9)
    if args.table:
        for run in json.loads(args.table.read_text())["runs"]:
            print_run(run, args.worst)
        return
    if not ctypes.util.find_library("dnnl"):
        sys.exit("oneDNN is missing: expected Debian's package libdnnl-dev")
    subprocess.run([ROOT / "scripts/build.sh", "release", "gemm_bench"], check=True, stdout=subprocess.DEVNULL)
    flags = set(re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M).group(1).split())
    wanted = args.sets.split(",") if args.sets else [name for name, _, flag, _ in SETS if flag in flags]
    runs = []
    for isa, theirs, flag, types in SETS:
        for kind in types:
            if isa not in wanted or kind not in args.types.split(",") or not shapes(kind, args):
                continue
            runs.append(measure(kind, isa, theirs, args))
            print_run(runs[-1], args.worst)
            if args.out:
                figures = {"threads": args.threads, "turns": args.repeat, "runs": runs}
                args.out.write_text(json.dumps(figures, indent=1) + "\n")
    if not runs:
        sys.exit(f"no type of {args.types} has products of its own on {args.sets or 'this processor'}")


if __name__ == "__main__":
    main()
