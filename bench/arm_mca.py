#!/usr/bin/env python3
"""Prints what llvm-mca predicts for the inner loops of the products on ARM64, as a table.

    apt-get install llvm-19                  # the models of Neoverse processors are younger than Debian's LLVM 14
    python3 bench/arm_mca.py build/aarch64   # a build for ARM64 (CONTRIBUTING.md)

A loop is one word of a tile of rows x vectors, 2 for many rows and 4 for few. Its peak is its multiplications over those
that the processor begins in a cycle. llvm-mca predicts that loads hit L1. Of int4 it prints the bytes of weights and scales
that a core multiplies in a cycle, for few rows: a group of 32 inputs, 4 vectors of columns.
"""

import re
import subprocess
import sys

KERNELS = [  # type, set, its multiplication, rows of a tall and of a flat tile
    ("f32", "generic", "fmla", 14, 6),
    ("bf16", "generic", "fmla", 12, 4),
    ("bf16", "bf16", "bfdot", 14, 6),
    ("int8", "generic", "smull", 12, 6),
    ("int8", "dotprod", "sdot", 14, 6),
]
INT4_BYTES = 16 * (32 // 2 + 2)  # of 16 columns and 32 inputs
PROCESSORS = {  # multiplications of 128 bits that begin in a cycle, by LLVM's models
    "neoverse-n1": {"fmla": 2, "smull": 1, "sdot": 2},
    "neoverse-v1": {"fmla": 4, "smull": 2, "sdot": 4, "bfdot": 4},
}


def inner_loops(path, function):
    """Yields the instructions of each loop that has no loop inside."""
    text = subprocess.run(["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", f"--disassemble={function}", path],
                          check=True, capture_output=True, text=True).stdout
    code = [(int(address, 16), line.split("//")[0]) for address, line in re.findall(r"^ +(\w+):\t(.*)$", text, re.M)]
    place = {address: i for i, (address, _) in enumerate(code)}
    loops = []
    for end, (_, line) in enumerate(code):
        target = re.match(r"[bct].*?\b([0-9a-f]+) <", line)
        first = place.get(int(target[1], 16)) if target else None
        if first is not None and first <= end:
            loops.append((first, end))
    for first, last in loops:
        if not any(first <= a and b <= last for a, b in loops if (a, b) != (first, last)):
            yield [re.sub(r"[0-9a-f]+ <.*", "loop", line) for _, line in code[first:last + 1]]


def cycles(loop, processor):
    text = subprocess.run(["llvm-mca-19", "-mtriple=aarch64", f"-mcpu={processor}", "-iterations=1000"], check=True,
                          input="loop:\n" + "\n".join(loop), capture_output=True, text=True).stdout
    return int(re.search(r"Total Cycles: +(\d+)", text)[1]) / 1000


def main():
    print("| product | rows x vectors | instructions | on the stack | multiplications | " +
          " | ".join(f"{p}: cycles, peak" for p in PROCESSORS) + " |")
    print("| --- | --- | --- | --- | --- |" + " --- |" * len(PROCESSORS))
    for kind, isa, name, tall, flat in KERNELS:
        path = f"{sys.argv[1]}/CMakeFiles/mar_gemm_{kind}_{isa}.dir/kernels/cpu/gemm/kernel.c.o"
        for tile, rows, vectors in ("tall", tall, 2), ("flat", flat, 4):
            loop = max(inner_loops(path, f"{tile}_{rows}"), key=lambda lines: sum(name in line for line in lines))
            n = sum(name in line for line in loop)
            cells = []
            for processor, begun in PROCESSORS.items():
                took = cycles(loop, processor) if name in begun else 0
                cells.append(f"{took:.1f}, {100 * n / begun[name] / took:.0f} %" if took else "-")
            print(f"| {kind} {isa} | {rows} x {vectors} | {len(loop)} | {sum('[sp' in line for line in loop)} | {n} {name} | " +
                  " | ".join(cells) + " |")
    print("\n| int4 | rows | bytes a cycle: " + " | ".join(PROCESSORS) + " |")
    print("| --- | --- |" + " --- |" * len(PROCESSORS))
    for isa in "generic", "dotprod":
        path = f"{sys.argv[1]}/CMakeFiles/mar_gemm_int4_{isa}.dir/kernels/cpu/gemm/int4.c.o"
        for rows in 1, 2, 4:
            loop = max(inner_loops(path, f"tile_{rows}"), key=len)
            cells = [f"{INT4_BYTES / cycles(loop, processor):.1f}" for processor in PROCESSORS]
            print(f"| {isa} | {rows} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
