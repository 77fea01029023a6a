"""Writes tests/golden/data/flux_vae.safetensors: what the KL autoencoder of NextStep-1's release makes of tokens and of
pictures, a small one whose tensors are in flux_vae_tensors.txt (drawn_weights.py).

    git clone https://github.com/stepfun-ai/NextStep-1      # of 2025: git checkout 6e49bae
    python3 tests/golden/make_flux_vae.py NextStep-1"""

import argparse
import sys
import types
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "reference"), str(HERE)]

from drawn_weights import weights, write_shapes  # noqa: E402
from pymar.io import write_safetensors  # noqa: E402

SHAPE = {"ch": 32, "ch_mult": [1, 2, 2], "num_res_blocks": 1, "z_channels": 4, "resolution": 16}
SCALE, SHIFT = 0.3611, 0.1159
GRIDS = [(4, 4), (3, 5)]  # rows, columns of the latent
NORMS = {"plain": {}, "normed": {"encoder_norm": True}, "patches": {"encoder_norm": True, "psz": 2}}
PICTURE = (4, 6)


class Posterior:
    """In the place of diffusers', of which only the mean is needed."""

    def __init__(self, moments, deterministic):
        self.mean = moments.chunk(2, dim=1)[0]


def load_official(repository):
    """The modules of the autoencoder and of its pictures, without the packages that these do not need."""
    def identity(*_, **__):
        return lambda function: function
    stubs = {"diffusers.models.autoencoders.vae": {"DecoderOutput": types.SimpleNamespace, "DiagonalGaussianDistribution": Posterior},
             "diffusers.models.modeling_outputs": {"AutoencoderKLOutput": types.SimpleNamespace},
             "diffusers.utils.torch_utils": {"randn_tensor": None}, "tabulate": {"tabulate": None}, "megfile": {}, "requests": {},
             "nextstep.utils.compile_utils": {"smart_compile": identity}, "nextstep.utils.loguru": {"logger": None},
             "nextstep.utils.misc": {"LargeInt": None, "retry": identity}}
    for name, parts in stubs.items():
        for package in [name.rsplit(".", i)[0] for i in range(name.count("."), -1, -1)]:
            module = sys.modules.setdefault(package, types.ModuleType(package))
            module.__path__ = [str(Path(repository) / package.replace(".", "/"))]
        sys.modules[name].__dict__.update(parts)
    torch._dynamo = types.SimpleNamespace(config=types.SimpleNamespace())
    import nextstep.models.modeling_flux_vae as vae
    from nextstep.utils.image_utils import to_dataformat
    return vae, to_dataformat


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository")
    vae, to_dataformat = load_official(parser.parse_args().repository)
    torch.manual_seed(52)
    torch.set_num_threads(1)
    out = {}
    with torch.no_grad():
        # float64, rounded once: the reference's own rounding is out of the comparison
        models = {name: vae.AutoencoderKL(vae.AutoEncoderParams(**SHAPE, **norm)).eval() for name, norm in NORMS.items()}
        drawn = weights(models["plain"])
        write_shapes(HERE / "data/flux_vae_tensors.txt", {name: tuple(tensor.shape) for name, tensor in drawn.items()})
        for model in models.values():
            model.load_state_dict(drawn)
            model.double()
        for height, width in GRIDS:
            tokens = torch.randn(height * width, SHAPE["z_channels"])
            latent = tokens.T.reshape(1, SHAPE["z_channels"], height, width).double() / SCALE + SHIFT
            image = models["plain"].decode(latent).sample.float()[0]
            name = f"{height}x{width}"
            out[f"tokens_{name}"], out[f"image_{name}"] = tokens, image.permute(1, 2, 0).contiguous()
            out[f"bytes_{name}"] = to_dataformat(image, image_mode="11", mode="255").permute(1, 2, 0).float().contiguous()
            print(f"{name}: image mean {image.mean():.3f}, std {image.std():.3f}")
        stride = 2 ** (len(SHAPE["ch_mult"]) - 1)
        picture = torch.randint(256, (PICTURE[0] * stride, PICTURE[1] * stride, 3))
        out["picture"] = picture.float()
        for name, model in models.items():
            mean = model.encode((picture.permute(2, 0, 1)[None].double() / 255 - 0.5) / 0.5).latent_dist.mean
            tokens = ((mean - SHIFT) * SCALE)[0].permute(1, 2, 0).float()
            out[f"encoded_{name}"] = tokens.reshape(-1, SHAPE["z_channels"]).contiguous()
            print(f"{name}: tokens' std {tokens.std():.3f}")
    write_safetensors(HERE / "data/flux_vae.safetensors", out, {"made_by": "tests/golden/make_flux_vae.py"})


if __name__ == "__main__":
    main()
