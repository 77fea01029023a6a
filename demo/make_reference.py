#!/usr/bin/env python3
"""Statistics of the real digits in the 64 features of the demo's classifier, which `mar eval --stats demo` compares with.

    python3 demo/make_reference.py  ->  weights/demo/reference.npz

Mean and covariance are those of all 1797 digits as 8-bit images; their features are stored as float16, for precision and
recall."""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/reference"))

import digits  # noqa: E402
from pymar.io import read_safetensors  # noqa: E402


def to_bytes(images):
    """[B,1,32,32] in [-1,1] -> uint8 [B,32,32,3], as the library rounds pixels."""
    return ((images + 1) * 127.5).round().byte().expand(-1, 3, -1, -1).permute(0, 2, 3, 1)


def features(weights, rgb):
    """uint8 [B,32,32,3] -> [B,64], the classifier's numbers before the last ReLU."""
    x = (rgb.double().mean(3) / 127.5 - 1)[:, None]
    for i in range(3):
        weight, bias = weights[f"conv{i}.weight"].double(), weights[f"conv{i}.bias"].double()
        x = F.max_pool2d(F.relu(F.conv2d(x, weight, bias, padding=1)), 2)
    return F.linear(x.flatten(1), weights["features.weight"].double(), weights["features.bias"].double())


@torch.no_grad()
def main():
    weights, _ = read_safetensors(ROOT / "weights/demo/classifier.safetensors")
    images, _ = digits.load_images()
    x = features(weights, to_bytes(images)).numpy()
    path = ROOT / "weights/demo/reference.npz"
    np.savez_compressed(path, mu=x.mean(0), sigma=np.cov(x, rowvar=False), features=x.astype(np.float16),
                        num_images=np.int64(len(x)))
    print(f"{path}: {len(x)} digits, {path.stat().st_size} bytes, trace of sigma {np.cov(x, rowvar=False).trace():.6g}")


if __name__ == "__main__":
    main()
