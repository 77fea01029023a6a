#!/usr/bin/env python3
"""Time a T5 encoder: loading it, and one prompt of 120 tokens, beside two floors.

    python3 tools/dev/random_checkpoint.py --arch flan_t5_xl --out flan-t5-xl
    cp weights/demo/t5/spiece.model flan-t5-xl/
    MAR_LIBRARY=build/release/libmar.so PYTHONPATH=python python3 bench/text.py flan-t5-xl

The floors: the weights' bytes over the memory's measured bandwidth, and the products' operations over the measured peak of
the same arithmetic (mar_measure_bandwidth, mar_measure_peak). Each dtype runs in a process of its own. Peak memory is
VmHWM after loading, without what the process had before; the encoder's size is its matrices in their type, and the
embedding in f32.
"""

import argparse
import ctypes as c
import json
import os
import statistics
import subprocess
import sys
import time

TEXT = "seven bold corgis in the snow look at an old red barn by the sea, " * 20


def resident(field):
    return int(next(line for line in open("/proc/self/status") if line.startswith(field)).split()[1]) * 1024


def measure(folder, dtype, threads, tokens, runs):
    import mar
    from mar import _lib
    lib, path = _lib.lib, os.fspath(folder)
    lib.mar_measure_peak.argtypes = lib.mar_measure_bandwidth.argtypes = [c.c_void_p, c.POINTER(c.c_double)]
    before, start = resident("VmRSS"), time.monotonic()
    text = mar.Text(path, dtype=dtype, threads=threads)
    load, peak, kept = time.monotonic() - start, resident("VmHWM") - before, resident("VmRSS") - before
    config = json.load(open(os.path.join(path, "config.json")))
    matrices = config["num_layers"] * (4 * config["d_model"] * config["d_kv"] * config["num_heads"] +
                                       3 * config["d_model"] * config["d_ff"])
    size = {"int8": 1, "bf16": 2, "f32": 4}[dtype] * matrices
    seconds = []
    for _ in range(runs):
        start = time.monotonic()
        _, mask, _ = text.encode(TEXT, tokens=tokens, clean=False)
        seconds.append(time.monotonic() - start)
    if mask.sum() != tokens:
        sys.exit(f"the prompt has {mask.sum()} tokens, expected {tokens}")
    flops, bandwidth = c.c_double(), c.c_double()
    text._library.check(lib.mar_measure_peak(text._library.pointer, c.byref(flops)))
    text._library.check(lib.mar_measure_bandwidth(text._library.pointer, c.byref(bandwidth)))
    read, products = size / bandwidth.value, 2 * matrices * tokens / flops.value
    best, floor = min(seconds[1:]), max(read, products)
    encoder = size + 4 * config["vocab_size"] * config["d_model"]
    print(f"{dtype}: load {load:.1f} s, peak {peak / 1e9:.2f} GB, then {kept / 1e9:.2f} GB, the encoder's size {encoder / 1e9:.2f} GB"
          f" ({100 * (peak / encoder - 1):+.0f} %)")
    print(f"{dtype}: {tokens} tokens in {statistics.median(seconds[1:]):.3f} s (least {best:.3f}); reading the weights {read:.3f} s"
          f" ({size / 1e9:.2f} GB at {bandwidth.value / 1e9:.1f} GB/s), products {products:.3f} s"
          f" ({2e-12 * matrices * tokens:.2f} Tflop at {flops.value / 1e9:.0f} Gflop/s); {best / floor:.2f} x the larger, "
          f"{best / read:.2f} x reading")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--dtype", action="append", choices=["int8", "bf16", "f32"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--runs", type=int, default=6, help="the first is not counted")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        measure(args.folder, args.dtype[0], args.threads, args.tokens, args.runs)
        return
    for dtype in args.dtype or ["int8", "bf16", "f32"]:
        subprocess.run([sys.executable, __file__, args.folder, "--alone", "--dtype", dtype, "--threads", str(args.threads),
                        "--tokens", str(args.tokens), "--runs", str(args.runs)], check=True)


if __name__ == "__main__":
    main()
