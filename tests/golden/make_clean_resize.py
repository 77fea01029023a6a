"""Golden data for clean-fid's resize: features of pictures of several sizes, with their mean and covariance.

    python3 tests/golden/make_clean_resize.py    ->  tests/golden/data/clean_resize.safetensors     (needs clean-fid, torch-fidelity)

The network is tests/golden/data/inception_tiny.pth, the pictures are those of make_inception.py. clean-fid's own code resizes, and
its get_folder_features' last lines give mean and covariance.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from cleanfid.resize import build_resizer

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

from make_inception import ROOT, SINGLE, forward, image, write_safetensors  # noqa: E402


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    network = torch.load(HERE / "data/inception_tiny.pth", weights_only=True)
    resize = build_resizer("clean")
    pictures = [torch.from_numpy(resize(image(i, *size)))[None] for i, size in enumerate(SINGLE)]
    features = torch.cat([forward(network, picture)[0] for picture in pictures])
    x = features.double().numpy()
    tensors = {"features": features}
    for name, value in (("mu", np.mean(x, axis=0)), ("sigma", np.cov(x, rowvar=False))):
        value = torch.from_numpy(value)
        tensors |= {name: value.float(), f"{name}.rest": (value - value.float().double()).float()}
    write_safetensors(ROOT / "tests/golden/data/clean_resize.safetensors", tensors, {})


main()
