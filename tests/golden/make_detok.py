"""Golden data for MAR on l-DeTok: a small MAR and a small tokenizer with random weights, and what DeTok's own code
makes of them, with the project's addressed noise.

    git clone https://github.com/Jiawei-Yang/DeTok
    python3 tests/golden/make_detok.py DeTok

-> tests/golden/data/detok{,_mar}.safetensors, and in tests/golden/data/detok stats.pkl as the release has it, and names
and shapes of the tensors, of which tests/support/detok.c makes the release's other files (drawn_weights.py)."""

import argparse
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "reference"), str(HERE)]

from addressed_noise import INIT, STEP, normals, random_order  # noqa: E402
from drawn_weights import weights, write_shapes  # noqa: E402
from pymar.io import write_safetensors  # noqa: E402

FOLDER = HERE / "data/detok"
SEED, FIRST_IMAGE = 0x1234567890ABCDEF, 40
GRID, PATCH, CHANNELS, IMAGES = 4, 4, 6, 2
MAR_SHAPE = {"width": 96, "layers": 2, "heads": 3}
SIDES = {"tiny_encoder": {"width": 64, "layers": 1, "heads": 1}, "tiny_decoder": {"width": 128, "layers": 2, "heads": 2}}


def load_official(repository):
    """The modules models.detok, models.mar and diffusion, without the others of their packages."""
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    sys.path.insert(0, repository)
    package = types.ModuleType("models")
    package.__path__ = [str(Path(repository) / "models")]
    sys.modules["models"] = package
    for name, parts in (("diffusers", []), ("diffusers.models", ["AutoencoderKL"]), ("torchdiffeq", ["odeint"])):
        sys.modules[name] = types.ModuleType(name)  # of other tokenizers and heads
        sys.modules[name].__dict__.update({part: None for part in parts})
    import diffusion
    import models.detok
    import models.mar
    models.mar.MAR_SIZE_DICT["tiny"] = MAR_SHAPE
    models.detok.SIZE_DICT.update(SIDES)
    return models.detok, models.mar, diffusion


def fill(model, name):
    drawn = weights(model)
    FOLDER.mkdir(exist_ok=True)
    write_shapes(FOLDER / f"{name}_tensors.txt", {key: tuple(tensor.shape) for key, tensor in drawn.items()})
    model.load_state_dict(drawn)


# --- tokenizer ---------------------------------------------------------------------------------------------------------


def statistics(generator):
    """Of the latents, then of the logarithms of their variances."""
    return torch.randn(2 * CHANNELS, generator=generator), 0.5 + torch.rand(2 * CHANNELS, generator=generator)


def tokenizer(detok, out, generator):
    model = detok.DeTok(img_size=GRID * PATCH, patch_size=PATCH, vit_enc_model_size="tiny_encoder",
                        vit_dec_model_size="tiny_decoder", token_channels=CHANNELS, mask_ratio=0.7, gamma=3.0).eval()
    fill(model, "tokenizer")
    entries = {name: {"single": (torch.tensor(0.1), torch.tensor(1.3)), "channel": statistics(generator)}
               for name in ("vitok-tiny", "detok-tiny")}
    (FOLDER / "stats.pkl").write_bytes(pickle.dumps(entries))
    mean, std = (x[:CHANNELS] for x in entries["detok-tiny"]["channel"])
    model.double().reset_stats(mean.double(), std.double())

    tokens = torch.randn(IMAGES, GRID * GRID, CHANNELS, generator=generator)
    latent = tokens.double().transpose(1, 2).reshape(IMAGES, CHANNELS, GRID, GRID)
    image = model.decoder(model.denormalize_z(tokens.double()))
    out["tokens"], out["image"] = tokens, image.float().permute(0, 2, 3, 1)
    out["bytes"] = (model.detokenize(latent).float() * 255.0).permute(0, 2, 3, 1).to(torch.uint8).float()  # to_uint8_numpy
    rgb = torch.randint(0, 256, (GRID * PATCH, GRID * PATCH, 3), generator=generator)
    encoded = model.tokenize((rgb.double() / 255 - 0.5).div(0.5).permute(2, 0, 1)[None])
    out["rgb"], out["encoded"] = rgb.float(), encoded.float()[0].permute(1, 2, 0).reshape(-1, CHANNELS)
    print(f"image: mean {image.mean():.3f}, std {image.std():.3f}; tokens of an image: std {encoded.std():.3f}")


# --- model -------------------------------------------------------------------------------------------------------------


class Noise:
    """Takes the places of the order of tokens, and of torch.randn and torch.randn_like in the head's chain. Rows of
    unconditional branches have any noise: the chain drops their states."""

    def __init__(self, model, mar, diffusion, batch, iterations):
        self.mask_by_order, self.iterations, self.iteration = mar.mask_by_order, iterations, 0
        self.masked = torch.ones(batch, model.seq_len, dtype=torch.bool)
        self.orders = torch.from_numpy(np.stack([random_order(SEED, FIRST_IMAGE + i, model.seq_len) for i in range(batch)]))
        model.sample_orders = lambda _: self.orders
        mar.mask_by_order = self.next_mask
        torch.randn, torch.randn_like = self.first, self.step
        p_sample = diffusion.p_sample

        def with_time(function, x, t, **arguments):
            self.t = diffusion.timestep_map[int(t[0])]
            return p_sample(function, x, t, **arguments)
        diffusion.p_sample = with_time

    def next_mask(self, mask_len, *arguments):
        masked = self.mask_by_order(mask_len, *arguments)
        self.iteration += 1
        now = self.masked if self.iteration == self.iterations else self.masked ^ masked
        self.rows, self.masked = now.nonzero().tolist(), masked
        return masked

    def draw(self, purpose, count, channels, step):
        rows = [normals(SEED, purpose, FIRST_IMAGE + image, position, step, channels) for image, position in self.rows]
        return torch.from_numpy(np.stack((rows + rows)[:count]))

    def first(self, count, channels):
        return self.draw(INIT, count, channels, 0)

    def step(self, x):
        return self.draw(STEP, x.shape[0], x.shape[1], self.t)


def one_pass(model, out):
    """One step in the middle, with the first 9 places of the order still masked."""
    order = torch.from_numpy(np.stack([random_order(SEED, i, model.seq_len) for i in range(2)]))
    mask = (order.argsort(dim=1) < 9).float()
    tokens = torch.randn(2, model.seq_len, CHANNELS, generator=torch.Generator().manual_seed(5))
    encoded = model.forward_mae_encoder(tokens, mask, model.class_emb(torch.tensor([3, 1])))
    out["pass.order"], out["pass.tokens"], out["pass.encoded"] = order.float(), tokens, encoded
    out["pass.z"] = model.forward_mae_decoder(encoded, mask)


def images(model, mar, diffusion, out):
    kept = mar.mask_by_order, torch.randn, torch.randn_like
    for name, steps, iterations, cfg, schedule, temperature, labels in (
            ("linear", 100, 8, 2.9, "linear", 1.0, [3, 0, 4]), ("constant", 20, 16, 1.5, "constant", 0.8, [1, 2]),
            ("plain", 50, 1, 1.0, "linear", 1.0, [2]), ("unconditional", 10, 5, 1.0, "linear", 1.0, None)):
        batch = len(labels) if labels else 1
        model.diffloss.gen_diffusion = diffusion.create_diffusion(str(steps), noise_schedule="cosine")
        Noise(model, mar, model.diffloss.gen_diffusion, batch, iterations)
        tokens = model.sample_tokens(batch, iterations, cfg, schedule, torch.tensor(labels) if labels else None, temperature)
        out[f"images.{name}"] = tokens.permute(0, 2, 3, 1).reshape(batch, model.seq_len, CHANNELS)
        mar.mask_by_order, torch.randn, torch.randn_like = kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository")
    torch.manual_seed(41)
    torch.set_num_threads(1)
    detok, mar, diffusion = load_official(parser.parse_args().repository)
    out, of_mar = {}, {}
    with torch.no_grad():
        tokenizer(detok, out, torch.Generator().manual_seed(7))
        model = mar.MAR(img_size=GRID * PATCH, model_size="tiny", tokenizer_patch_size=PATCH, token_channels=CHANNELS,
                        num_classes=5, buffer_size=8, diffloss_d=2, diffloss_w=80, no_dropout_in_mlp=True).eval()
        fill(model, "mar")
        one_pass(model, of_mar)
        images(model, mar, diffusion, of_mar)
    write_safetensors(HERE / "data/detok.safetensors", out, {"made_by": "tests/golden/make_detok.py"})
    write_safetensors(HERE / "data/detok_mar.safetensors", of_mar, {"made_by": "tests/golden/make_detok.py"})
    for name, value in (out | of_mar).items():
        print(name, tuple(value.shape), f"{value.abs().max():.3g}")


if __name__ == "__main__":
    main()
