"""Golden data for the MAR tests: a small model with random weights (nothing left at the zero initialisation) and what
PyTorch makes of it, in float32.  python3 tests/golden/make_mar.py  ->  tests/golden/data/{mar_small,mar}.safetensors"""

import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "reference"), str(HERE)]

from addressed_noise import INIT, STEP, normals, philox, random_order  # noqa: E402
from pymar.diffusion import Schedule, sample_chain  # noqa: E402
from pymar.io import write_safetensors  # noqa: E402
from pymar.model import MAR, MarConfig, generate, sample_tokens  # noqa: E402

SEED = 0x1234567890ABCDEF
# Odd sizes on purpose: 6 channels are not a multiple of the noise block, 24+16 positions not of a tile.
CONFIG = MarConfig(width=96, depth=2, heads=3, seq_len=16, token_dim=6, buffer=8, classes=5, head_width=80, head_depth=2)


def randomise(model, generator):
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if p.dim() == 2 and "class_emb" not in name and "fake_latent" not in name:
            p.data = noise / p.shape[1] ** 0.5
        elif name.endswith("weight") and p.dim() == 1:
            p.data = 1 + 0.2 * noise
        else:
            p.data = 0.3 * noise
        p.data = p.data.half().float()  # exact in the half precision it is stored in


def schedules(out):
    for steps in (2, 10, 100, 250, 1000):
        s = Schedule(steps)
        out[f"schedule{steps}.t"] = s.t.float()
        out[f"schedule{steps}.coef"] = torch.stack(
            [s.x0_from_x, s.x0_from_eps, s.mean_from_x0, s.mean_from_x, s.log_var_min, s.log_var_max], dim=1)


def noise_of(steps, positions, images, channels):
    t = Schedule(steps).timesteps
    x_T = np.stack([normals(SEED, INIT, i, p, 0, channels) for i, p in zip(images, positions)])
    eps = np.stack([[normals(SEED, STEP, i, p, tt, channels) for i, p in zip(images, positions)] for tt in t])
    return torch.from_numpy(x_T), torch.from_numpy(eps)


def addresses(out):
    words = [philox(SEED, np.array(c, np.uint32)) for c in ([0, 0, 0, 0], [1, 2, 3, 4], [0xFFFFFFFF] * 4)]
    # As 16-bit halves, which float32 holds exactly.
    out["philox"] = torch.tensor(np.array([[w >> 16, w & 0xFFFF] for w in np.stack(words)]).astype(np.float32))
    out["normals"] = torch.from_numpy(normals(SEED, STEP, (7 << 32) | 5, 250, 999, 10))
    out["order"] = torch.tensor(np.stack([random_order(SEED, i, 256) for i in (0, 1)]).astype(np.float32))


@torch.no_grad()
def head(model, out, generator):
    n, z = 7, torch.randn(14, CONFIG.width, generator=generator)
    x, t = torch.randn(n, CONFIG.token_dim, generator=generator), torch.tensor([0, 1, 10, 101, 500, 989, 999])
    out["head.x"], out["head.t"], out["head.z"] = x, t.float(), z
    out["head.plain"] = model.head(x, t, z[:n])
    out["head.guided"] = model.head.guided(x, t, z, 2.9)
    positions, images = [3, 250, 0, 77, 12, 5, 9], [0, 1, 2, 3, 4, 1 << 33, 6]
    out["chain.position"] = torch.tensor(positions).float()
    for steps, first in ((100, 99), (100, 60), (25, 24)):
        x_T, eps = noise_of(steps, positions, images, CONFIG.token_dim)
        schedule = Schedule(steps)
        for name, scale in (("plain", None), ("guided", 2.9)):
            zz = z[:n] if scale is None else z
            if first == steps - 1:
                y = sample_tokens(model, schedule, zz, scale, x_T, eps, 0.9)
            else:  # the same from a lower index: the first indices multiply errors by 2e4
                schedule.steps = first + 1
                fn = (lambda a, b: model.head(a, b, zz)) if scale is None else (
                    lambda a, b: model.head.guided(a, b, zz, scale))
                y = sample_chain(schedule, fn, x_T, eps, 0.9)
                schedule.steps = steps
            out[f"chain.{steps}.{first}.{name}"] = y


@torch.no_grad()
def transformer(model, out):
    """One step in the middle, with the first 9 places of the order still masked."""
    order = torch.from_numpy(np.stack([random_order(SEED, i, 16) for i in range(2)]))
    mask = order.argsort(dim=1) < 9
    tokens = torch.randn(2, 16, CONFIG.token_dim, generator=torch.Generator().manual_seed(5))
    y = model.class_embedding(torch.tensor([3, 1]))
    x = model.encode(tokens, mask, y)
    out["pass.order"], out["pass.tokens"] = order.float(), tokens
    # rows of the known tokens come by ascending position here
    out["pass.encoded"] = x
    out["pass.z"] = model.decode(x, mask)


def images(model, out):
    """The full loop on addressed noise. A random head lets the chain explode at the first indices (its eps is far from
    x_t, and 1/sqrt(abar) is 2e4): the values are large, and compared relatively."""
    for name, steps, iterations, cfg, schedule, temperature, labels in (
            ("linear", 100, 8, 2.9, "linear", 1.0, [3, 0, 4]), ("constant", 20, 16, 1.5, "constant", 0.8, [1, 2]),
            ("plain", 50, 1, 1.0, "linear", 1.0, [2]), ("unconditional", 10, 5, 1.0, "linear", 1.0, None)):
        batch = len(labels) if labels else 1
        first = 40
        orders = torch.from_numpy(np.stack([random_order(SEED, first + i, 16) for i in range(batch)]))

        def noise_fn(step, rows, positions):
            return noise_of(steps, positions.tolist(), [first + i for i in rows.tolist()], CONFIG.token_dim)
        out[f"images.{name}"] = generate(model, torch.tensor(labels) if labels else None, iterations, cfg, schedule,
                                         temperature, Schedule(steps), orders, noise_fn)


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2024)
    model = MAR(CONFIG).eval()
    randomise(model, generator)
    out = {}
    schedules(out)
    addresses(out)
    head(model, out, generator)
    transformer(model, out)
    images(model, out)
    data = HERE / "data"
    data.mkdir(exist_ok=True)
    write_safetensors(data / "mar_small.safetensors", {k: v.half() for k, v in model.state_dict().items()}, {"mar.heads": CONFIG.heads})
    write_safetensors(data / "mar.safetensors", out, {"made_by": "tests/golden/make_mar.py"})
    for name, value in out.items():
        print(name, tuple(value.shape), f"{value.abs().max():.3g}")


if __name__ == "__main__":
    main()
