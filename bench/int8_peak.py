"""The rate of matrix products in int8 and in bf16, in turns, on this machine:

    python3 bench/int8_peak.py --turns 20

Each turn measures both for a second, as `mar bench` does, one after the other; the machine's speed may change from turn
to turn. Printed are each turn's rates and ratio, and the medians.
"""

import argparse
import ctypes
import json
import statistics

from libmar import BUILT, Library


def peak(library):
    rate = ctypes.c_double()
    library.check(library.lib.mar_measure_peak(library.handle, ctypes.byref(rate)))
    return rate.value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", default=BUILT)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--out", help="a JSON file for the rates")
    args = parser.parse_args()
    libraries = {dtype: Library(args.library, dtype, args.threads) for dtype in ("bf16", "int8")}
    rates = {dtype: [] for dtype in libraries}
    for turn in range(args.turns):
        for dtype, library in libraries.items():
            rates[dtype].append(peak(library))
        bf16, int8 = rates["bf16"][-1], rates["int8"][-1]
        print(f"{turn + 1:3}: bf16 {bf16 / 1e12:.2f} TFLOP/s, int8 {int8 / 1e12:.2f}: {int8 / bf16:.2f} times")
    ratios = [int8 / bf16 for bf16, int8 in zip(rates["bf16"], rates["int8"])]
    middle = {dtype: statistics.median(values) for dtype, values in rates.items()}
    print(f"median: bf16 {middle['bf16'] / 1e12:.2f}, int8 {middle['int8'] / 1e12:.2f}; of the ratios "
          f"{statistics.median(ratios):.2f}; best of each {max(rates['int8']) / max(rates['bf16']):.2f}")
    if args.out:
        backends = {dtype: library.description() for dtype, library in libraries.items()}
        with open(args.out, "w") as file:
            json.dump({"backends": backends, "threads": args.threads, "rates": rates}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
