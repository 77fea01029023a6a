"""Golden data for eval/resize.c: what Pillow makes of small pictures.

    python3 tests/golden/make_resize.py    ->  tests/golden/data/resize.safetensors     (needs Pillow before 13)

N.picture is a picture, N.size its new width and height; N.FILTER has its bytes. N.clean is clean-fid's: bicubic in mode "F", channel by
channel, clipped. N.square is what CLIP's processor makes of it: bicubic, then the middle. Pillow 13 resizes the columns of some
tall pictures first, which changes some bytes by 1.
"""

import sys
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/reference")]

from pymar.io import write_safetensors  # noqa: E402

CASES = [((23, 37), (11, 9)), ((13, 7), (31, 40)), ((19, 1), (5, 8)), ((1, 12), (7, 3)), ((1, 1), (4, 5)), ((20, 30), (20, 7)),
         ((9, 33), (6, 33)), ((50, 21), (1, 1)), ((8, 8), (8, 8)), ((37, 44), (12, 11))]
SIDE = 6


def square(picture):
    width, height = picture.size
    short = min(width, height)
    size = (SIDE, SIDE * height // short) if width <= height else (SIDE * width // short, SIDE)
    picture = picture.resize(size, Image.BICUBIC)
    left, top = (size[0] - SIDE) // 2, (size[1] - SIDE) // 2
    return picture.crop((left, top, left + SIDE, top + SIDE))


def main():
    assert int(PIL.__version__.split(".")[0]) < 13, PIL.__version__
    random = np.random.RandomState(7)
    tensors = {}
    for n, ((height, width), (to_height, to_width)) in enumerate(CASES):
        noise = random.randint(0, 256, (height, width, 3))
        edges = 255 * (random.rand(height, width, 3) > 0.5)
        x = np.where(random.rand(height, width, 1) > 0.4, noise, edges).astype(np.uint8)
        picture = Image.fromarray(x)
        size = (to_width, to_height)
        made = {name: np.asarray(picture.resize(size, which))
                for name, which in (("bilinear", Image.BILINEAR), ("bicubic", Image.BICUBIC), ("lanczos", Image.LANCZOS))}
        channels = [Image.fromarray(x[:, :, c].astype(np.float32), mode="F").resize(size, Image.BICUBIC) for c in range(3)]
        made["clean"] = np.stack([np.asarray(c).clip(0, 255) for c in channels], 2)
        made["square"] = np.asarray(square(picture))
        made["picture"] = x
        made["size"] = np.array([width, height, to_width, to_height])
        tensors |= {f"{n}.{name}": torch.from_numpy(value.astype(np.float32 if name == "clean" else np.float16))
                    for name, value in made.items()}
    write_safetensors(ROOT / "tests/golden/data/resize.safetensors", tensors, {})


main()
