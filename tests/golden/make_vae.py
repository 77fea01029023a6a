"""Writes tests/golden/data/vae.safetensors: tokens, and the images PyTorch makes of them with a small decoder, whose
tensors are in vae_tensors.txt (drawn_weights.py).  python3 tests/golden/make_vae.py"""

import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "reference"), str(HERE)]

from drawn_weights import weights, write_shapes  # noqa: E402
from pymar.io import write_safetensors  # noqa: E402
from pymar.vae import TOKEN_SCALE, VAE, VaeConfig  # noqa: E402

CONFIG = VaeConfig(ch=32, ch_mult=(1, 1, 2), num_res_blocks=1, z_channels=8)
GRIDS = [(4, 4), (8, 6), (5, 7)]  # rows, columns of the latent


def main():
    torch.manual_seed(20)
    torch.set_num_threads(1)
    with torch.no_grad():
        vae = VAE(CONFIG).eval()
        drawn, out = weights(vae, ("decoder.", "post_quant_conv.")), {}
        write_shapes(HERE / "data/vae_tensors.txt", {name: tuple(tensor.shape) for name, tensor in drawn.items()})
        vae.load_state_dict(drawn, strict=False)
        for height, width in GRIDS:
            tokens = torch.randn(height * width, CONFIG.z_channels) * 0.4
            latent = tokens.T.reshape(1, CONFIG.z_channels, height, width) / TOKEN_SCALE
            out[f"golden.tokens_{height}x{width}"] = tokens
            # float64, rounded once: the reference's own rounding is out of the comparison
            image = vae.double().decode(latent.double())[0].permute(1, 2, 0).float()
            out[f"golden.image_{height}x{width}"] = image
            print(f"{height}x{width}: image mean {image.mean():.3f}, std {image.std():.3f}")
            vae.float()
    write_safetensors(HERE / "data/vae.safetensors", out, {"config": CONFIG})


if __name__ == "__main__":
    main()
