#!/usr/bin/env python3
"""Compare two builds at reading a checkpoint: loading it, inspecting it, converting it. In turns, with the file in the
page cache.

    python3 bench/loading.py --before old/build/release --after build/release --model mar_large.safetensors

Each line has the median, least and most of the seconds, the processor's seconds, and the largest resident memory, of
which pages of a mapped file are a part.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def load(library, model):
    """Runs in a process of its own: prints seconds, the processor's seconds and the peak of resident memory in MB."""
    lib = ctypes.CDLL(library)
    lib.mar_error.restype = ctypes.c_char_p
    handle, loaded = ctypes.c_void_p(), ctypes.c_void_p()
    if lib.mar_open(None, ctypes.byref(handle)) != 0:
        sys.exit(lib.mar_error(handle).decode())
    start, busy = time.monotonic(), time.process_time()
    if lib.mar_model_load(handle, model.encode(), 0, ctypes.byref(loaded)) != 0:
        sys.exit(lib.mar_error(handle).decode())
    seconds, busy = time.monotonic() - start, time.process_time() - busy
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
    print(seconds, busy, int(peak) / 1e3)


def run_load(build, model):
    command = [sys.executable, __file__, "--library", str(build / "libmar.so"), "--model", model]
    return [float(x) for x in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]


def run_command(build, *arguments):
    start = time.monotonic()
    process = subprocess.Popen([build / "mar", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"mar {' '.join(arguments)}: status {status}")
    return [time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3]


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a build folder")
    parser.add_argument("--after", type=Path, help="a build folder")
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.library:
        return load(args.library, args.model)
    with tempfile.TemporaryDirectory(dir=Path(args.model).resolve().parent) as folder:
        half, out = f"{folder}/bf16.safetensors", f"{folder}/out.safetensors"
        run_command(args.after, "convert", args.model, half, "--dtype", "bf16")
        work = {
            "load": lambda build: run_load(build, args.model),
            "load, bf16 file": lambda build: run_load(build, half),
            "inspect": lambda build: run_command(build, "inspect", args.model),
            "convert to bf16": lambda build: (Path(out).unlink(missing_ok=True),
                                              run_command(build, "convert", args.model, out, "--dtype", "bf16"))[1],
        }
        builds = {"before": args.before, "after": args.after}
        seen = {(name, build): [] for name in work for build in builds}
        for _ in range(args.rounds):
            for name, run in work.items():
                for build, path in builds.items():
                    seen[name, build].append(run(path))
    print("| | seconds | of the processor | peak memory |\n| --- | --- | --- | --- |")
    for name, build in seen:
        seconds, busy, peak = zip(*seen[name, build])
        print(f"| {name}, {build} | {spread(seconds, 2)} | {spread(busy, 2)} | {statistics.median(peak):.0f} MB |")


if __name__ == "__main__":
    main()
