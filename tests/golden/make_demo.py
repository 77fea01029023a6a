"""Golden data for the demo models: what PyTorch generates from the weights that ship, on addressed noise.
python3 tests/golden/make_demo.py  ->  tests/golden/data/demo.safetensors; to be run again when the weights change."""

import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "tests/reference"), str(HERE)]

from addressed_noise import INIT, STEP, normals, random_order  # noqa: E402
from pymar.diffusion import Schedule  # noqa: E402
from pymar.io import load_mar, load_vae, write_safetensors  # noqa: E402
from pymar.model import generate  # noqa: E402

SEED, LABELS, ITERATIONS, STEPS, CFG = 5, [3, 7, 0], 16, 50, 2.9


@torch.no_grad()
def main():
    model, vae = load_mar(ROOT / "weights/demo/target.safetensors"), load_vae(ROOT / "weights/demo/vae.safetensors")
    schedule, channels = Schedule(STEPS), model.config.token_dim

    def noise_fn(step, images, positions):
        pairs = list(zip(images.tolist(), positions.tolist()))
        x_T = np.stack([normals(SEED, INIT, i, p, 0, channels) for i, p in pairs])
        eps = np.stack([[normals(SEED, STEP, i, p, t, channels) for i, p in pairs] for t in schedule.timesteps])
        return torch.from_numpy(x_T), torch.from_numpy(eps)

    orders = torch.from_numpy(np.stack([random_order(SEED, i, model.config.seq_len) for i in range(len(LABELS))]))
    tokens = generate(model, torch.tensor(LABELS), ITERATIONS, CFG, "linear", 1.0, schedule, orders, noise_fn)
    pixels = vae.decode_tokens(tokens).permute(0, 2, 3, 1)
    print("tokens: std", tokens.std().item(), " pixels:", tuple(pixels.shape), pixels.min().item(), pixels.max().item())
    write_safetensors(HERE / "data/demo.safetensors", {"tokens": tokens, "pixels": pixels},
                      {"made_by": "tests/golden/make_demo.py"})


if __name__ == "__main__":
    main()
