"""Golden data for the operations of convolutional networks: layers of Inception's shapes, pools, and TensorFlow's resize.
Inputs and weights are hashes of their index, so that only results are stored, and of the large ones some.
python3 tests/golden/make_conv.py  ->  tests/golden/data/conv.safetensors (needs torch-fidelity)"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "reference"))

from pymar.io import write_safetensors  # noqa: E402

SAMPLES = 1009  # of a result that has more values
RELU, ADD, F32 = 16, 4, 2  # KERN_RELU, KERN_OUT_ADD, KERN_OUT_F32

# out, in, kernel_h, kernel_w, stride, pad_h, pad_w, height, width, images, flags, y_stride
CONVOLUTIONS = [
    (32, 3, 3, 3, 2, 0, 0, 61, 47, 2, RELU, 0),  # the first: three channels
    (32, 3, 3, 3, 2, 0, 0, 7, 8, 1, RELU, 0),
    (5, 1, 3, 3, 1, 1, 1, 6, 5, 1, 0, 0),
    (32, 32, 3, 3, 1, 0, 0, 33, 29, 1, RELU, 0),
    (64, 32, 3, 3, 1, 1, 1, 31, 27, 1, RELU, 0),
    (80, 64, 1, 1, 1, 0, 0, 19, 23, 2, RELU, 0),
    (192, 80, 3, 3, 1, 0, 0, 13, 21, 1, RELU, 0),
    (64, 192, 1, 1, 1, 0, 0, 35, 35, 1, RELU, 256),
    (48, 192, 1, 1, 1, 0, 0, 9, 35, 2, RELU, 0),
    (64, 48, 5, 5, 1, 2, 2, 35, 35, 1, RELU, 256),
    (96, 64, 3, 3, 1, 1, 1, 11, 35, 1, RELU, 0),
    (32, 288, 1, 1, 1, 0, 0, 5, 7, 3, RELU, 288),
    (384, 96, 3, 3, 2, 0, 0, 35, 35, 1, RELU, 768),
    (96, 96, 3, 3, 2, 0, 0, 35, 34, 2, RELU, 100),
    (128, 768, 1, 1, 1, 0, 0, 17, 17, 1, RELU, 0),
    (128, 128, 1, 7, 1, 0, 3, 17, 17, 1, RELU, 0),
    (192, 128, 7, 1, 1, 3, 0, 17, 17, 2, RELU, 768),
    (160, 160, 7, 1, 1, 3, 0, 17, 17, 1, RELU, 0),
    (192, 160, 1, 7, 1, 0, 3, 3, 2, 2, RELU, 0),  # the window is larger than the image
    (24, 16, 7, 1, 1, 3, 0, 1, 5, 1, RELU, 0),
    (320, 192, 3, 3, 2, 0, 0, 17, 17, 2, RELU, 1280),
    (384, 448, 3, 3, 1, 1, 1, 8, 8, 1, RELU, 0),
    (384, 384, 1, 3, 1, 0, 1, 8, 8, 3, RELU, 2048),
    (384, 384, 3, 1, 1, 1, 0, 8, 8, 1, RELU, 2048),
    (320, 1280, 1, 1, 1, 0, 0, 8, 8, 1, RELU, 2048),
    (192, 2048, 1, 1, 1, 0, 0, 8, 8, 2, RELU, 2048),
    (37, 19, 3, 5, 2, 2, 1, 10, 13, 2, RELU, 41),  # nothing even
    (40, 24, 3, 3, 2, 1, 1, 12, 9, 2, F32, 47),
    (24, 17, 5, 3, 1, 4, 2, 9, 6, 2, F32 | ADD, 0),
    (33, 20, 1, 7, 2, 0, 6, 5, 9, 2, F32 | ADD, 40),
    (21, 34, 2, 4, 1, 1, 3, 6, 7, 1, 0, 0),
]

# kind (0: max, 1: mean), window, stride, pad, images, height, width, channels, y_stride
POOLS = [
    (0, 3, 2, 0, 2, 29, 31, 64, 64),
    (0, 3, 2, 0, 1, 8, 7, 192, 192),
    (0, 3, 2, 0, 2, 17, 17, 96, 160),
    (0, 3, 1, 1, 1, 8, 8, 200, 320),
    (1, 3, 1, 1, 2, 7, 9, 192, 192),
    (1, 3, 1, 1, 1, 1, 1, 5, 6),
    (1, 3, 1, 1, 1, 2, 5, 67, 80),
    (0, 2, 2, 1, 2, 5, 6, 3, 3),
    (1, 8, 3, 7, 1, 9, 4, 65, 66),
]

# images, pixels, channels
MEANS = [(3, 64, 200), (1, 1, 3), (2, 289, 70)]

# images, height, width, side
RESIZES = [(2, 256, 256, 299), (1, 32, 32, 299), (2, 17, 64, 299), (1, 401, 333, 299), (1, 299, 299, 299), (2, 1, 1, 5),
           (1, 5, 3, 7), (1, 64, 2, 64)]


def hashed(seed, shape):
    """splitmix64 of seed * 2**32 + index."""
    n = int(np.prod(shape))
    with np.errstate(over="ignore"):
        z = (np.uint64(seed << 32) + np.arange(n, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return z.reshape(shape)


def uniform(seed, shape):
    """Floats in [-1, 1)."""
    high = (hashed(seed, shape) >> np.uint64(32)).astype(np.uint32).view(np.int32)
    return torch.from_numpy(high.astype(np.float32) / np.float32(2**31))


def sampled(y):
    """The values that are stored of y, in the order of its memory."""
    flat = y.reshape(-1)
    step = 1 if len(flat) <= SAMPLES else len(flat) // SAMPLES
    return flat[::step].float().contiguous()


def planes(x):
    return x.permute(0, 3, 1, 2)


def pixels(x):
    return x.permute(0, 2, 3, 1)


def rounded(x, half):
    return x.bfloat16().double() if half else x.double()


def convolution(out, channels, kernel_h, kernel_w, stride, pad_h, pad_w, height, width, images, flags, _, half, seed):
    x = rounded(uniform(seed, (images, height, width, channels)), half)
    weight = rounded(uniform(seed + 1, (out, channels, kernel_h, kernel_w)), half)
    bias = uniform(seed + 2, (out,)).double()
    y = pixels(functional.conv2d(planes(x), weight, bias, stride, (pad_h, pad_w)))
    if flags & ADD:
        y = y + uniform(seed + 3, y.shape).double()
    return y.relu() if flags & RELU else y


def pool(kind, window, stride, pad, images, height, width, channels, _, half, seed):
    x = planes(rounded(uniform(seed, (images, height, width, channels)), half))
    if kind == 0:  # PyTorch has no larger padding than half a window
        return pixels(functional.max_pool2d(functional.pad(x, [pad] * 4, value=-np.inf), window, stride))
    ones = functional.pad(torch.ones_like(x), [pad] * 4)
    padded = functional.pad(x, [pad] * 4)
    return pixels(functional.avg_pool2d(padded, window, stride) / functional.avg_pool2d(ones, window, stride))


def resize(images, height, width, side, seed):
    rgb = (hashed(seed, (images, height, width, 3)) >> np.uint64(56)).astype(np.float32)
    y = interpolate_bilinear_2d_like_tensorflow1x(planes(torch.from_numpy(rgb)), (side, side), align_corners=False)
    return pixels((y - 128) / 128)


def main():
    out = {}
    for i, case in enumerate(CONVOLUTIONS):
        out[f"conv.{i}"] = torch.tensor(case, dtype=torch.float32)
        for half, name in enumerate(["f32", "bf16"]):
            out[f"conv.{i}.{name}"] = sampled(convolution(*case, half, 100 + 4 * i))
    for i, case in enumerate(POOLS):
        out[f"pool.{i}"] = torch.tensor(case, dtype=torch.float32)
        for half, name in enumerate(["f32", "bf16"]):
            out[f"pool.{i}.{name}"] = sampled(pool(*case, half, 500 + i))
    for i, case in enumerate(MEANS):
        out[f"mean.{i}"] = torch.tensor(case, dtype=torch.float32)
        for half, name in enumerate(["f32", "bf16"]):
            out[f"mean.{i}.{name}"] = sampled(rounded(uniform(600 + i, case), half).mean(1))
    for i, case in enumerate(RESIZES):
        out[f"resize.{i}"] = torch.tensor(case, dtype=torch.float32)
        out[f"resize.{i}.f32"] = sampled(resize(*case, 700 + i))
    write_safetensors(HERE / "data/conv.safetensors", out, {})


if __name__ == "__main__":
    main()
