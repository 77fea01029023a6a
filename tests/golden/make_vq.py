"""Golden data for LlamaGen's image tokenizer: a small one with random weights, tokens, and the images that the official code makes
of them.

    git clone https://github.com/FoundationVision/LlamaGen
    python3 tests/golden/make_vq.py LlamaGen/tokenizer/tokenizer_image/vq_model.py

-> tests/golden/data/vq.pth, vq.safetensors. The checkpoint is a training file of the official layout. Its weights are windows of two
pools of random numbers, which PyTorch saves once each, so that it stays small."""

import argparse
import runpy
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "reference"))

from pymar.io import write_safetensors  # noqa: E402

CODEBOOK, CHANNELS, LATENT, WIDTH, LEVELS = 50, 4, 32, 32, (1, 1, 2)
GRIDS = [(6, 6, 3), (4, 4, 2), (3, 5, 1)]  # rows, columns, images


class Pool:
    """Random numbers, exact in half precision, in which they are stored. A window begins where none has begun."""

    def __init__(self, size, std):
        self.numbers, self.next = (torch.randn(size) * std).half(), 0

    def window(self, shape):
        count = int(torch.tensor(shape).prod())
        self.next = (self.next + 7919) % (self.numbers.numel() - count)
        return self.numbers[self.next:self.next + count].view(shape)


def randomise(state):
    large, small = Pool(64 * 64 * 9 + 8000, 1 / 20), Pool(64 * 64 + 4000, 1 / 7)
    out = {}
    for name, tensor in state.items():
        if name == "quantize.codebook_used":
            out[name] = torch.arange(9.0).half()  # any number of them: nothing needs it
        elif name == "quantize.embedding.weight":
            out[name] = (torch.randn(tensor.shape) * torch.rand(tensor.shape[0], 1) * 3).half()  # lengths differ
            out[name][7] = 0
        elif "norm" in name:
            out[name] = (torch.randn(tensor.shape) * 0.3 + (1.0 if name.endswith("weight") else 0.0)).half()
        elif tensor.dim() == 4 and tensor.shape[2] == 3:
            out[name] = large.window(tensor.shape)
        else:
            out[name] = small.window(tensor.shape)
    for part in ("q", "k"):  # an attention that is far from uniform
        for name in [name for name in out if name.endswith(f".{part}.weight")]:
            out[name] = out[name] if "encoder" in name else (out[name].float() * 1.5).half()
    return out


def build(official):
    """VQModel of another width and depth than the class makes it."""
    model = official["VQModel"](official["ModelArgs"](
        codebook_size=CODEBOOK, codebook_embed_dim=CHANNELS, encoder_ch_mult=[1], decoder_ch_mult=[1], z_channels=LATENT))
    shape = {"ch": WIDTH, "ch_mult": LEVELS, "num_res_blocks": 1, "z_channels": LATENT}
    model.encoder, model.decoder = official["Encoder"](**shape), official["Decoder"](**shape)
    model.quantize.codebook_used = torch.zeros(9)
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vq_model")
    torch.manual_seed(21)
    torch.set_num_threads(1)
    with torch.no_grad():
        model = build(runpy.run_path(parser.parse_args().vq_model))
        weights = randomise(model.state_dict())
        torch.save({"model": weights, "optimizer": {"state": {}, "param_groups": [{"lr": 1e-4}]}, "steps": 12,
                    "args": argparse.Namespace(vq_model="VQ-16", codebook_size=CODEBOOK)}, HERE / "data/vq.pth")
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        out = {}
        for height, width, images in GRIDS:
            name = f"{height}x{width}"
            tokens = torch.randint(CODEBOOK, (images, height * width))
            tokens[0, :3] = torch.tensor([7, 0, CODEBOOK - 1])
            shape = (images, CHANNELS, height, width)
            # float64, rounded once: the reference's own rounding is out of the comparison
            image = model.double().decode_code(tokens, shape).float()
            model.float()
            print(f"{name}: mean {image.mean():.3f}, std {image.std():.3f}, "
                  f"float32 is off by {((model.decode_code(tokens, shape) - image).norm() / image.norm()):.2g}")
            out[f"golden.tokens_{name}"] = tokens.float()
            out[f"golden.image_{name}"] = image.permute(0, 2, 3, 1)
            # as autoregressive/sample/sample_c2i_ddp.py makes them, of these pixels
            out[f"golden.bytes_{name}"] = torch.clamp(127.5 * image + 128.0, 0, 255).permute(0, 2, 3, 1).to(torch.uint8).float()
    write_safetensors(HERE / "data/vq.safetensors", out, {})


if __name__ == "__main__":
    main()
