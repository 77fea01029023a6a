"""Golden data for SphereAR's autoencoder: a small one with random weights, tokens and the images that the official code makes of them,
pictures and the directions on the sphere that it makes of those.

    git clone https://github.com/guolinke/SphereAR
    python3 tests/golden/make_vit.py SphereAR

-> tests/golden/data/vit.pt, vit.safetensors. The checkpoint is a training file of the official layout. Its weights are windows of two pools of random numbers, which PyTorch saves once each, so that it stays small. flash_attn is not
needed: PyTorch's attention takes its place."""

import argparse
import os
import sys
import types
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch  # noqa: E402

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "reference"))
sys.path.insert(0, str(HERE))

from make_vq import Pool  # noqa: E402
from pymar.io import write_safetensors  # noqa: E402

LATENT, WIDTH, HEADS, LAYERS, CHANNELS, GRID, IMAGES = 4, 64, 2, 2, [64, 32, 16], 5, 2
ENCODED = [64, 32, 64]  # channels of the encoder, whose first convolution always has 64
SIZE = {"image_size": GRID * 2**(len(CHANNELS) - 1), "patch_size": 2**(len(CHANNELS) - 1)}


def attention(q, k, v, causal, dropout_p):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def load_official(repository):
    sys.modules["flash_attn"] = types.ModuleType("flash_attn")
    sys.modules["flash_attn"].flash_attn_func = attention
    sys.path.insert(0, repository)
    from SphereAR import psd, vae
    return vae, psd


def build(vae):
    """VAE with a decoder of another number of heads than the class makes it."""
    model = vae.VAE(latent_dim=LATENT, z_channels=WIDTH, cnn_chs=ENCODED, encoder_vit_layers=1, **SIZE)
    model.decoder = vae.ViTDecoder(n_layers=LAYERS, n_heads=HEADS, d_model=WIDTH, cnn_chs=CHANNELS, **SIZE)
    return model.eval()


def randomise(state):
    large, small = Pool(WIDTH * WIDTH * 9 + 8000, 1 / 20), Pool(3 * WIDTH * WIDTH + 4000, 1 / 6)
    out = {}
    for name, tensor in state.items():
        if name.endswith("freqs_cis"):
            out[name] = tensor
        elif tensor.dim() == 1:
            out[name] = (torch.randn(tensor.shape) * 0.3 + (1.0 if name.endswith("weight") else 0.0)).half()
        elif tensor.dim() == 4 or tensor.numel() > 3 * WIDTH * WIDTH:
            out[name] = large.window(tensor.shape)
        else:
            out[name] = small.window(tensor.shape)
    return out


def encode(model, pixels):
    """VAE.encode without the draw around the mean's direction."""
    return model.normalize(model.quant_proj(model.encoder(pixels))[..., :-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository")
    torch.manual_seed(31)
    torch.set_num_threads(1)
    with torch.no_grad():
        vae, psd = load_official(parser.parse_args().repository)
        model = build(vae)
        weights = randomise(model.state_dict())
        torch.save({"model": {f"vae.{name}": tensor for name, tensor in weights.items()}, "epochs": 3,
                    "optimizer": {"state": {}, "param_groups": [{"lr": 1e-4}]}, "args": argparse.Namespace(vae_only=True)},
                   HERE / "data/vit.pt")
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        tokens = psd.l2_norm(torch.randn(IMAGES, GRID * GRID, LATENT)) * LATENT**0.5
        # float64, rounded once: the reference's own rounding is out of the comparison, but for its rotary positions
        image = model.double().decode(tokens.double()).float()
        picture = torch.randint(256, (IMAGES, SIZE["image_size"], SIZE["image_size"], 3), generator=torch.Generator().manual_seed(3))
        pixels = (picture.permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
        encoded = encode(model, pixels.double()).float()
        single = model.float().decode(tokens)
        half = model.bfloat16().decode(tokens.bfloat16()).float()
        print(f"mean {image.mean():.3f}, std {image.std():.3f}, float32 is off by "
              f"{((single - image).norm() / image.norm()):.2g}, bfloat16 by {((half - image).norm() / image.norm()):.2g}")
    image = image.permute(0, 2, 3, 1)
    out = {"golden.tokens": tokens, "golden.image": image,  # bytes as in sample_ddp.py
           "golden.bytes": torch.clamp(127.5 * image + 128.0, 0, 255).to(torch.uint8).float(),
           "golden.picture": picture.float(), "golden.encoded": encoded}
    write_safetensors(HERE / "data/vit.safetensors", out, {})


if __name__ == "__main__":
    main()
