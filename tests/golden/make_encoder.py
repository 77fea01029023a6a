"""Golden data for the image encoders: pictures of random bytes and the tokens that PyTorch makes of them.
python3 tests/golden/make_encoder.py

-> tests/golden/data/encoder.pth, encoder.safetensors. The checkpoint is a KL autoencoder of the official layout with
attention at the coarsest level of its encoder, as KL-16 has it. Its weights are windows of pools of random numbers,
which PyTorch saves once each. The other encoders are those of weights/demo/vae.safetensors and tests/golden/data/vq.pth."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "reference"))

from pymar.io import load_vae, write_safetensors  # noqa: E402
from pymar.vae import TOKEN_SCALE, VAE, VaeConfig  # noqa: E402
from pymar.vq import VQ, VqConfig  # noqa: E402

CONFIG = VaeConfig(ch=32, ch_mult=(1, 2), num_res_blocks=2, z_channels=4)


class Pool:
    """Random numbers, exact in half precision, in which they are stored. Windows begin at different places."""

    def __init__(self, size, mean, std):
        self.numbers, self.next = (torch.randn(size) * std + mean).half(), 0

    def window(self, shape):
        count = int(torch.tensor(shape).prod())
        self.next = (self.next + 7919) % (self.numbers.numel() - count)
        return self.numbers[self.next:self.next + count].view(shape)


def random_state(state):
    large, small = Pool(64 * 64 * 9 + 1500, 0, 1 / 20), Pool(64 * 64 + 500, 0, 1 / 7)
    norm, shift = Pool(300, 1, 0.3), Pool(300, 0, 0.3)

    def pool(name, tensor):
        if "norm" in name:
            return norm if name.endswith("weight") else shift
        return large if tensor.dim() == 4 and tensor.shape[2] == 3 else small
    return {name: pool(name, tensor).window(tensor.shape) for name, tensor in state.items()}


def floats(pixels):
    """As the official code reads images: ToTensor, Normalize(0.5, 0.5). pixels [H,W,3] bytes; [1,3,H,W] float64."""
    return ((pixels.double() / 255 - 0.5) / 0.5).permute(2, 0, 1)[None]


def kl_tokens(vae, pixels):
    mean, _ = vae.double().moments(floats(pixels))
    return (mean[0].flatten(1).T * TOKEN_SCALE).float()


def vq_tokens(vq, pixels):
    """The official argmin of squared distances, and by how much the second nearest row is farther at least."""
    z = vq.quant_conv(vq.encoder(floats(pixels)))[0].flatten(1).T
    rows = vq.quantize.codebook()
    z = F.normalize(z, dim=-1)
    distance = (z ** 2).sum(1, keepdim=True) + (rows ** 2).sum(1) - 2 * z @ rows.T
    nearest = distance.topk(2, largest=False).values
    return distance.argmin(1).float(), (nearest[:, 1] - nearest[:, 0]).min().item()


def main():
    torch.manual_seed(30)
    torch.set_num_threads(1)
    out = {}

    def picture(name, height, width):
        out[f"golden.pixels_{name}"] = pixels = torch.randint(256, (height, width, 3)).half()  # exact
        return pixels
    with torch.no_grad():
        vae = VAE(CONFIG).eval()
        state = random_state(vae.state_dict())
        torch.save({"model": state}, HERE / "data/encoder.pth")
        vae.load_state_dict({name: tensor.float() for name, tensor in state.items()})
        for height, width in ((4, 4), (6, 10)):  # rows, columns of the latent
            name = f"kl_{height}x{width}"
            out[f"golden.tokens_{name}"] = tokens = kl_tokens(vae, picture(name, 2 * height, 2 * width))
            print(f"{name}: tokens mean {tokens.mean():.3f}, std {tokens.std():.3f}")
        demo = load_vae(HERE.parent.parent / "weights/demo/vae.safetensors")
        out["golden.tokens_demo"] = tokens = kl_tokens(demo, picture("demo", 32, 32))
        print(f"demo: tokens mean {tokens.mean():.3f}, std {tokens.std():.3f}")
        vq = VQ(VqConfig(ch=32, ch_mult=(1, 1, 2), num_res_blocks=1, z_channels=32, codebook=50, code_dim=4)).eval()
        state = torch.load(HERE / "data/vq.pth", weights_only=False)["model"]
        state.pop("quantize.codebook_used")
        vq.load_state_dict({name: tensor.float() for name, tensor in state.items()})
        out["golden.tokens_vq"], margin = vq_tokens(vq.double(), picture("vq", 24, 16))
        print(f"vq: {len(set(out['golden.tokens_vq'].tolist()))} rows of the codebook, margin {margin:.3g}")
    write_safetensors(HERE / "data/encoder.safetensors", out, {"config": CONFIG})


if __name__ == "__main__":
    main()
