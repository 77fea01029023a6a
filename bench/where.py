#!/usr/bin/env python3
"""Where the time of an image goes on a CPU with AVX2, beside the least time of each part.

    MAR_ISA=avx2 python3 bench/where.py --clock 3.7 -- --model build/bench/mar_base.pth --vae build/bench/kl16.ckpt --dtype int8

First table: the operations of the middle step (`mar bench --micro`) times the steps, and the image decoder. An operation's floor is the
larger of its arithmetic at the measured rate of its type and its bytes at memory's measured rate. Second table: the functions where a
thread is (`perf record -e cpu-clock` of `mar generate`, without loading). The floor of a function other than the tiles' is its numbers
by the instructions of eight of them (CYCLES) at --clock GHz. Both run on one thread.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

MAR = str(Path(__file__).resolve().parent.parent / "build/release/mar")
PARTS = [  # of operations: name, pattern; the first that fits
    ("products, GELU", r"linear.*gelu"),
    ("products, added to x", r"linear.*added"),
    ("products, other", r"linear"),
    ("attention", r"attention"),
    ("norms", r"norm \d"),
    ("SwiGLU, gates", r"SwiGLU|gated"),
    ("head: modulation", r"modulation"),
    ("head: calls", r"chain|head"),
    ("noise, copies, embeddings", r""),
]
FUNCTIONS = [
    ("tiles", r"^(tall|flat)_\d+$|^run_tile|^run_(few|panel|tall|column)"),
    ("epilogues", r"^gemm_(product|finish)|^finish_|^store_"),
    ("softmax", r"softmax"),
    ("packing of keys and values", r"pack|make_words|transpose"),
    ("quantising of rows", r"quantise|greatest|fill_operand"),
    ("norms, modulation of rows", r"norm$|modulate|moments"),
    ("SwiGLU, gates, SiLU", r"gated|gate_add|silu"),
    ("chain: noise and steps", r"step_body|row_noise|normal|philox|random_words|^__?(log|sin|cos|exp)|chain"),
    ("image decoder: group norm, terms", r"affine|channel_sums|add_terms|group|to_bytes|multiply_(spans|pixels|rows)"),
    ("waiting", r"thread_pool|wait_for|run_parts?$|parallel"),
    ("copies, system", r""),
]
# Cycles of eight numbers in AVX2: two multiplications, additions or loads, or a store, a cycle; a division takes five.
CYCLES = {"epilogues": 1.5, "gelu": 9.5, "silu": 6, "softmax": 7, "quantising of rows": 1.5, "norms, modulation of rows": 3,
          "packing of keys and values": 2}


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip() or f"{command[0]}: exit status {done.returncode}")
    return done.stdout


def micro(options):
    return json.loads(run([MAR, "bench", *options, "--threads", "1", "--micro", "--json"]))


def name_of(text, rows):
    return next(name for name, pattern in rows if re.search(pattern, text))


def numbers(m):
    """Yields kinds of work of an operation and their numbers."""
    rows, sizes = m["rows"] * m["count"], [int(n) for n in re.findall(r"\d+", m["name"])]
    if found := re.match(r"linear (\d+) x (\d+)", m["name"]):
        out, into = map(int, found.groups())
        yield "epilogues", rows * out
        if "gelu" in m["name"]:
            yield "gelu", rows * out
        if "silu" in m["name"]:
            yield "silu", rows * out
        if "int8" in m["name"]:
            yield "quantising of rows", rows * into
    elif "norm" in m["name"]:
        yield "norms, modulation of rows", rows * sizes[0]
    elif found := re.match(r"attention (\d+) x (\d+), (\d+) keys", m["name"]):
        heads, dim, keys = map(int, found.groups())
        yield "softmax", rows * heads * keys
        yield "epilogues", rows * heads * dim
        yield "packing of keys and values", 2 * rows * heads * dim
    elif m["name"].startswith("modulation"):
        yield "epilogues", m["flop"] / 2 / sizes[1] * m["count"]
    elif m["name"].startswith("chain"):
        depth, width, steps = sizes
        for kind, times in ("epilogues", 2), ("silu", 1), ("norms, modulation of rows", 1), ("quantising of rows", 2):
            yield kind, rows * steps * depth * width * times


def print_rows(head, rows):
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def cells(name, seconds, total, floor):
    share = [f"{floor:.2f}", f"{100 * floor / seconds:.0f} %"] if floor else ["", ""]
    return [name, f"{seconds:.2f}", f"{100 * seconds / total:.1f} %", *share]


def operations(options):
    """Prints the first table. Returns the numbers of each kind of work in an image."""
    record = micro(options)
    low = " int8" in record["backend"]
    f32 = micro(["--model", "demo", "--dtype", "f32"]) if low else record
    rate = {"int8": record["constants"]["flop_per_second"], "f32": f32["constants"]["flop_per_second"]}
    memory, steps = record["constants"]["memory_bytes_per_second"], record["parameters"].get("num_iter", 0)
    work, parts = defaultdict(float), defaultdict(lambda: [0.0, 0.0, 0.0])
    for m in record["measurements"]:
        if m["group"] not in ("operation", "image decoder"):
            continue
        times = m["count"] * (steps if m["group"] == "operation" else 1)
        name = name_of(m["name"], PARTS) if m["group"] == "operation" else \
            "image decoder: convolutions" if "convolution" in m["name"] else "image decoder: rest"
        kind = "int8" if low and ("int8" in m["name"] or name.startswith("head")) else "f32"
        part = parts[name]
        part[0] += times * m["seconds"]
        part[1] += times * max(m["flop"] / rate[kind], m["bytes"] / memory)
        part[2] += times * m["flop"]
        for what, n in numbers(m) if m["group"] == "operation" else ():
            work[what] += steps * n
    total, floor, flop = (sum(part[i] for part in parts.values()) for i in range(3))
    print(f"{record['backend']}: {rate['int8' if low else 'f32'] / 1e9:.0f} GFLOP/s measured, f32 {rate['f32'] / 1e9:.0f}, memory {memory / 1e9:.1f} GB/s; "
          f"{steps} steps as the middle one, {flop / 1e12:.2f} TFLOP: {100 * flop / total / rate['int8' if low else 'f32']:.1f} % of the rate\n")
    print_rows(["operations", "s an image", "share", "floor, s", "reached"],
               [cells(name, *part[:1], total, part[1]) for name, part in sorted(parts.items(), key=lambda p: -p[1][0])] +
               [cells("all", total, total, floor)])
    return work


def functions(options, work, clock):
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/perf.data"
        done = json.loads(run(["perf", "record", "-q", "-e", "cpu-clock", "-F", "999", "-o", data, MAR, "generate", *options, "--threads", "1",
                               "--num", "1", "--json", "--out", f"{folder}/image.png"]))
        lines = run(["perf", "script", "-i", data, "-F", "time,ip,sym"]).splitlines()
    samples = [(float(t), symbol) for t, symbol in re.findall(r"^\s*([\d.]+):\s+\w+ (\S+)", "\n".join(lines), re.M)]
    begin = samples[-1][0] - done["seconds"]
    count = defaultdict(int)
    for at, symbol in samples:
        if at >= begin:
            count[name_of(symbol, FUNCTIONS)] += 1
    total, seconds = sum(count.values()), done["seconds_per_image"]
    rows = []
    for name, n in sorted(count.items(), key=lambda c: -c[1]):
        least = work[name] * CYCLES.get(name, 0)
        if name == "epilogues":
            least += work["gelu"] * CYCLES["gelu"] + work["silu"] * CYCLES["silu"]
        rows.append(cells(name, seconds * n / total, seconds, least / 8 / clock / 1e9))
    print_rows(["functions", "s an image", "share", "floor, s", "reached"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=float, help="GHz of the processor at work; without it there is no second table")
    parser.add_argument("options", nargs="+", help="of mar bench and mar generate, behind --")
    args = parser.parse_args()
    work = operations(args.options)
    if args.clock:
        functions(args.options, work, args.clock)


if __name__ == "__main__":
    main()
