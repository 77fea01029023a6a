"""A full-size model through the built command and through PyTorch, on the same addressed noise: how far apart are the images?
Not part of the test suite (it needs PyTorch and gigabytes).

    python3 tools/dev/random_checkpoint.py --arch mar_base --out mar_base.pth
    python3 tools/dev/random_checkpoint.py --arch kl16 --out kl16.ckpt
    python3 tests/golden/full_size.py --model mar_base.pth --vae kl16.ckpt
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "tests/reference"), str(HERE)]

from addressed_noise import INIT, STEP, normals, random_order  # noqa: E402
from pymar.diffusion import Schedule  # noqa: E402
from pymar.io import load_mar, load_vae  # noqa: E402
from pymar.model import generate  # noqa: E402

SEED, LABEL, ITERATIONS, STEPS, CFG = 5, 207, 3, 10, 2.9


@torch.no_grad()
def reference(model_path, vae_path):
    """What PyTorch makes, as 8-bit values: float [H,W,3]."""
    model, vae, schedule = load_mar(model_path), load_vae(vae_path), Schedule(STEPS)
    channels = model.config.token_dim

    def noise_fn(step, images, positions):
        pairs = list(zip(images.tolist(), positions.tolist()))
        x_T = np.stack([normals(SEED, INIT, i, p, 0, channels) for i, p in pairs])
        eps = np.stack([[normals(SEED, STEP, i, p, t, channels) for i, p in pairs] for t in schedule.timesteps])
        return torch.from_numpy(x_T), torch.from_numpy(eps)

    order = torch.from_numpy(random_order(SEED, 0, model.config.seq_len)[None])
    tokens = generate(model, torch.tensor([LABEL]), ITERATIONS, CFG, "linear", 1.0, schedule, order, noise_fn)
    pixels = vae.decode_tokens(tokens)[0].permute(1, 2, 0).numpy()
    return np.round(np.clip((pixels + 1) / 2 * 255, 0, 255))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mar", default=ROOT / "build/release/mar")
    parser.add_argument("--model", required=True)
    parser.add_argument("--vae", required=True)
    args = parser.parse_args()
    expected = reference(args.model, args.vae)
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("f32", "bf16"):
            path = Path(folder) / f"{dtype}.png"
            subprocess.run([args.mar, "generate", "--model", args.model, "--vae", args.vae, "--class", str(LABEL), "--num_iter",
                            str(ITERATIONS), "--num_sampling_steps", str(STEPS), "--cfg", str(CFG), "--seed", str(SEED),
                            "--dtype", dtype, "--out", path, "--quiet"], check=True)
            difference = np.abs(np.asarray(Image.open(path)).astype(float) - expected)
            print(f"{dtype}: at most {difference.max():.0f} grey levels apart, {difference.mean():.4f} on average")


if __name__ == "__main__":
    main()
