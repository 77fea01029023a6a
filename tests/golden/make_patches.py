"""Writes tests/golden/data/patches.safetensors: the tokens of tests/golden/data/vae.safetensors in patches, as MAR with
patch_size 2 or 4 has them.  python3 tests/golden/make_patches.py"""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

DATA = Path(__file__).parent / "data"


def patchify(x, p):
    """models/mar.py of the official code; x [batch, channels, height, width]."""
    bsz, c, h, w = x.shape
    h_, w_ = h // p, w // p
    x = x.reshape(bsz, c, h_, p, w_, p)
    x = np.einsum("nchpwq->nhwcpq", x)
    return x.reshape(bsz, h_ * w_, c * p ** 2)


def main():
    golden, out = load_file(DATA / "vae.safetensors"), {}
    for height, width, patch in ((4, 4, 2), (4, 4, 4), (8, 6, 2)):
        tokens = golden[f"golden.tokens_{height}x{width}"]  # [height * width, channels]
        latent = tokens.T.reshape(1, -1, height, width)
        out[f"tokens_{height}x{width}_{patch}"] = np.ascontiguousarray(patchify(latent, patch)[0])
    save_file(out, DATA / "patches.safetensors", metadata={"made_by": "tests/golden/make_patches.py"})


if __name__ == "__main__":
    main()
