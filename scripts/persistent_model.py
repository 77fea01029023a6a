#!/usr/bin/env python3
"""Counts what an evaluation of the head by a persistent kernel does, and estimates its time: docs/persistent.md.

"warps" is the cut before: each block has all channels, its warps divide them. "cluster" is the cut of
kernels/cuda/persistent_layout.cuh, with clusters of 8. The times are sums of counts over assumed rates, for comparing the
two; nothing here was measured. What both cuts do alike (input and final layer, the chain's step, latencies of loads) is
left out of them. bench/gpu_model.py is the model of a whole image: it has the same counts and constants of the second cut,
and besides 650 cycles after every barrier, a guess, and the copying of streamed weights.
"""
MULTIPROCESSORS, CLOCK = 132, 1.9e9
GRID_BARRIER, CLUSTER_BARRIER, L2 = 1.2e-6, 0.3e-6, 5.5e12  # assumed
# Instructions of machine code (sm_90a) a normalised element of a thread, and those that merge a row's moments: counts.
CLUSTER_NORM, CLUSTER_MERGE = 218 / 16, 123
WARPS_NORM = 20  # of the cut before: an estimate, not a count
CYCLES = 2  # assumed of an instruction


def warps(width, depth, rows):
    blocks = -(-width // 8 // -(-width // 8 // MULTIPROCESSORS))
    tiles = -(-width // 8 // MULTIPROCESSORS)
    cluster = 2 if width > 1024 else 1
    divided = rows > 16
    normalised = 0 if divided else min(rows, 8) if cluster == 2 else rows
    elements = width * (normalised if not divided else -(-rows // blocks)) / 256
    fc1 = 4 * width * rows if divided else 0  # u is written, then read by all
    reads = blocks * ((2 * width * rows if divided else 4 * width * normalised) + 2 * width * rows) + fc1
    mma = -(-rows // 16) * tiles * 2 * -(-width // 256)
    return {
        "grid barriers": 2 * depth + 2 + (depth if divided else 0),
        "cluster barriers": depth if cluster == 2 and 8 < rows <= 16 else 0,
        "L2 reads": depth * reads,
        "elements": elements,
        "norm": elements * WARPS_NORM * 2 / CLOCK,  # two warps a scheduler
        "mma": mma,
        "blocks": blocks,
    }


def cluster(width, depth, rows, most=16):
    tiles = -(-width // 8 // most)
    clusters = -(-width // 8 // tiles)
    blocks = 8 * clusters
    pairs = -(-width // 256)
    each = -(-rows // 32) * 4 * pairs  # 32 rows at a time, 8 threads have a row's part
    kept = 32 * (4 if pairs <= 2 else 2 if pairs <= 4 else 1)  # rows that registers keep; others are loaded twice
    units = -(-(-(-rows // 16) * tiles) // 8)
    return {
        "grid barriers": 2 * depth + 2,
        "cluster barriers": 3 * depth,
        "L2 reads": depth * clusters * width * (rows * 6 + max(rows - kept, 0) * 8),
        "elements": each,
        "norm": (each * CLUSTER_NORM + CLUSTER_MERGE) * CYCLES / CLOCK,
        "mma": units * 2 * -(-width // 256),
        "blocks": blocks,
    }


def main():
    print("| head, rows | cut | blocks | grid barriers | cluster barriers | L2 reads, MB | elements a thread | mma a warp |"
          " estimate, us | ratio |\n|" + " --- |" * 10)
    for name, width, depth in (("MAR-B", 1024, 6), ("MAR-L", 1280, 8), ("MAR-H", 1536, 12)):
        for rows in (8, 16, 64):
            times = []
            for cut in (warps, cluster):
                c = cut(width, depth, rows)
                times.append(c["grid barriers"] * GRID_BARRIER + c["cluster barriers"] * CLUSTER_BARRIER +
                             c["L2 reads"] / L2 + depth * c["norm"])
                ratio = f"{times[0] / times[1]:.2f}" if len(times) == 2 else ""
                print(f"| {name}, {rows} | {cut.__name__} | {c['blocks']} | {c['grid barriers']} | {c['cluster barriers']} |"
                      f" {c['L2 reads'] / 1e6:.1f} | {c['elements']:.0f} | {c['mma']} | {times[-1] * 1e6:.0f} | {ratio} |")


main()
