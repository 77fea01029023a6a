#!/usr/bin/env python3
"""Prints what llvm-mca predicts for the inner loops of the products on ARM64, as tables.

    apt-get install llvm-19                  # the models of Neoverse processors are younger than Debian's LLVM 14
    python3 bench/arm_mca.py build/aarch64   # a build for ARM64 (CONTRIBUTING.md)

A loop is one word of a tile of rows x vectors, 2 for many rows and 4 for few. Its floor is the time of its
multiplications alone, begun as fast as the processor can. For few rows a second table has the bytes of weights, and of
int4's scales, that a core multiplies in a cycle. llvm-mca predicts that loads hit L1.
"""

import re
import subprocess
import sys

KERNELS = [  # type, set, its multiplication, rows of the largest tall tile, of the largest flat one; int4 has others
    ("f32", "generic", "fmla", 14, 6),
    ("bf16", "generic", "fmla", 12, 4),
    ("bf16", "bf16", "bfdot", 14, 6),
    ("int8", "generic", "smull", 12, 6),
    ("int8", "dotprod", "sdot", 14, 6),
    ("int4", "generic", "smull", 0, 0),
    ("int4", "dotprod", "sdot", 0, 0),
]
MULTIPLICATIONS = {
    "fmla": "fmla v{}.4s, v30.4s, v31.s[0]",
    "smull": "smull v{}.8h, v30.8b, v31.8b",
    "sdot": "sdot v{}.4s, v30.16b, v31.4b[0]",
    "bfdot": "bfdot v{}.4s, v30.8h, v31.2h[0]",
}
WORD_BYTES = 4 * 16  # of a flat tile
INT4_BYTES = 16 * (32 // 2 + 2)  # of 16 columns and 32 inputs
PROCESSORS = ["neoverse-n1", "neoverse-v1", "neoverse-v2"]


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
    """Returns the cycles of a loop, or 0 if the processor lacks an instruction of it."""
    run = subprocess.run(["llvm-mca-19", "-mtriple=aarch64", f"-mcpu={processor}", "-iterations=1000"],
                         input="loop:\n" + "\n".join(loop), capture_output=True, text=True)
    found = re.search(r"Total Cycles: +(\d+)", run.stdout)
    if not found and "instruction requires" not in run.stderr:
        sys.exit(run.stderr)
    return int(found[1]) / 1000 if found else 0


def floor(name, count, processor):
    """Returns the least cycles of so many multiplications."""
    independent = [MULTIPLICATIONS[name].format(i) for i in range(28)]
    return count * cycles(independent, processor) / len(independent)


def multiplications(name, loop):
    return sum(line.startswith(name) for line in loop)


def tile_loop(kind, isa, name, tile, rows):
    """Returns the loop of a tile with most vectors, of those the one without prefetching."""
    source = "int4" if kind == "int4" else "kernel"
    path = f"{sys.argv[1]}/CMakeFiles/mar_gemm_{kind}_{isa}.dir/kernels/cpu/gemm/{source}.c.o"
    return max(inner_loops(path, f"{tile}_{rows}"), key=lambda loop: (multiplications(name, loop), -len(loop)))


def print_header(names):
    print("\n| " + " | ".join(names) + " |\n|" + " --- |" * len(names))


def print_tiles():
    print_header(["product, set", "rows x vectors", "instructions", "on the stack", "multiplications"] +
                 [f"{p}: cycles, floor's share" for p in PROCESSORS])
    for kind, isa, name, tall, flat in KERNELS:
        for tile, rows, vectors in (("tall", tall, 2), ("flat", flat, 4)) if tall else ():
            loop = tile_loop(kind, isa, name, tile, rows)
            n = multiplications(name, loop)
            cells = []
            for processor in PROCESSORS:
                took = cycles(loop, processor)
                cells.append(f"{took:.1f}, {100 * floor(name, n, processor) / took:.0f} %" if took else "-")
            on_stack = sum("[sp" in line for line in loop)
            print(f"| {kind}, {isa} | {rows} x {vectors} | {len(loop)} | {on_stack} | {n} {name} | " +
                  " | ".join(cells) + " |")


def print_few_rows():
    print_header(["product, set", "rows"] + [f"{p}: bytes a cycle" for p in PROCESSORS])
    for kind, isa, name, *_ in KERNELS:
        tile, size = ("tile", INT4_BYTES) if kind == "int4" else ("flat", WORD_BYTES)
        for rows in 1, 2, 4:
            loop = tile_loop(kind, isa, name, tile, rows)
            took = [cycles(loop, processor) for processor in PROCESSORS]
            print(f"| {kind}, {isa} | {rows} | " + " | ".join(f"{size / t:.1f}" if t else "-" for t in took) + " |")


if __name__ == "__main__":
    print_tiles()
    print_few_rows()
