#!/usr/bin/env python3
"""Write an Inception-v3 with random weights, for trying evaluation without the real ones.

    python3 tools/dev/random_inception.py --out inception.pth
    python3 tools/dev/random_inception.py --width 1 --out inception.safetensors      # as large as the published one

Tensors have the names of the published file (weights-inception-2015-12-05-6726825d.pth). --width multiplies the numbers of
channels; the pixels stay, so the time falls with its square. The features have no meaning but differ between images.
Distances between sets of images behave: 0 for equal sets, larger for sets that differ more.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/reference"))

from pymar import write_safetensors  # noqa: E402

CLASSES = 1008
STEM = [("Conv2d_1a_3x3", 32, 3, 3), ("Conv2d_2a_3x3", 32, 3, 3), ("Conv2d_2b_3x3", 64, 3, 3), ("Conv2d_3b_1x1", 80, 1, 1),
        ("Conv2d_4a_3x3", 192, 3, 3)]


def branches_a(pool):
    return [[("1x1", 64, 1, 1)], [("5x5_1", 48, 1, 1), ("5x5_2", 64, 5, 5)],
            [("3x3dbl_1", 64, 1, 1), ("3x3dbl_2", 96, 3, 3), ("3x3dbl_3", 96, 3, 3)], [("_pool", pool, 1, 1)]]


def branches_c(c):
    return [[("1x1", 192, 1, 1)], [("7x7_1", c, 1, 1), ("7x7_2", c, 1, 7), ("7x7_3", 192, 7, 1)],
            [("7x7dbl_1", c, 1, 1), ("7x7dbl_2", c, 7, 1), ("7x7dbl_3", c, 1, 7), ("7x7dbl_4", c, 7, 1), ("7x7dbl_5", 192, 1, 7)],
            [("_pool", 192, 1, 1)]]


# A branch is a list of convolutions, each of what the one before made; "=" marks one that has the input of the one before,
# and whose result stands beside that. PASSED stands for the block's input, pooled.
PASSED = "passed"
BRANCHES_B = [[("3x3", 384, 3, 3)], [("3x3dbl_1", 64, 1, 1), ("3x3dbl_2", 96, 3, 3), ("3x3dbl_3", 96, 3, 3)], PASSED]
BRANCHES_D = [[("3x3_1", 192, 1, 1), ("3x3_2", 320, 3, 3)],
              [("7x7x3_1", 192, 1, 1), ("7x7x3_2", 192, 1, 7), ("7x7x3_3", 192, 7, 1), ("7x7x3_4", 192, 3, 3)], PASSED]
BRANCHES_E = [[("1x1", 320, 1, 1)], [("3x3_1", 384, 1, 1), ("3x3_2a", 384, 1, 3), ("=3x3_2b", 384, 3, 1)],
              [("3x3dbl_1", 448, 1, 1), ("3x3dbl_2", 384, 3, 3), ("3x3dbl_3a", 384, 1, 3), ("=3x3dbl_3b", 384, 3, 1)],
              [("_pool", 192, 1, 1)]]
BLOCKS = [("5b", branches_a(32)), ("5c", branches_a(64)), ("5d", branches_a(64)), ("6a", BRANCHES_B), ("6b", branches_c(128)),
          ("6c", branches_c(160)), ("6d", branches_c(160)), ("6e", branches_c(192)), ("7a", BRANCHES_D), ("7b", BRANCHES_E),
          ("7c", BRANCHES_E)]


def layers(width, classes=CLASSES, last_width=None):
    """(name, shape) of every convolution, [out, in, height, width], and of fc, [classes, features], in the order of use.
    last_width is that of the last block, whose channels are the features."""
    def scaled(n, block=""):
        return max(1, round(n * (last_width if last_width and block == "7c" else width)))
    made, channels = [], 3
    for name, out, height, wide in STEM:
        made.append((name, (scaled(out), channels, height, wide)))
        channels = scaled(out)
    for block, branches in BLOCKS:
        total = 0
        for branch in branches:
            if branch is PASSED:
                total += channels
                continue
            inputs, outputs = channels, channels
            for name, out, height, wide in branch:
                beside = name.startswith("=")
                total += outputs if beside else 0
                inputs = inputs if beside else outputs
                outputs = scaled(out, block)
                made.append((f"Mixed_{block}.branch{name.lstrip('=')}", (outputs, inputs, height, wide)))
            total += outputs
        channels = total
    return made + [("fc", (classes, channels))]


def random_tensors(width, seed, last_width=None):
    """Filters without a mean, so that images do not become alike on their way; batch norms near the identity."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(n):
        return torch.rand(n, generator=generator) - 0.5
    tensors = {}
    for name, shape in layers(width, last_width=last_width):
        weight = torch.randn(shape, generator=generator)
        if name == "fc":
            tensors |= {"fc.weight": weight / shape[1] ** 0.5 * 8, "fc.bias": uniform(shape[0])}
            continue
        if shape[1] > 3:
            weight -= weight.mean((1, 2, 3), keepdim=True)
        tensors[f"{name}.conv.weight"] = weight * (2 / weight[0].numel()) ** 0.5
        tensors |= {f"{name}.bn.weight": 1.2 + 0.4 * uniform(shape[0]), f"{name}.bn.bias": 0.2 * uniform(shape[0]),
                    f"{name}.bn.running_mean": 0.2 * uniform(shape[0]), f"{name}.bn.running_var": 1 + 0.4 * uniform(shape[0])}
    return tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="a .safetensors, else a file of torch.save")
    parser.add_argument("--width", type=float, default=0.125, help="of the published numbers of channels (default: 0.125)")
    parser.add_argument("--last_width", type=float, help="of the last block, which makes the features (default: as --width)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not 0 < args.width <= 1:
        sys.exit(f"--width {args.width}: expected more than 0, at most 1")
    if args.last_width is not None and not 0 < args.last_width <= 1:
        sys.exit(f"--last_width {args.last_width}: expected more than 0, at most 1")
    tensors = random_tensors(args.width, args.seed, args.last_width)
    if args.out.endswith(".safetensors"):
        write_safetensors(args.out, tensors, {"format": "pt"})
    else:
        torch.save(tensors, args.out)


if __name__ == "__main__":
    main()
