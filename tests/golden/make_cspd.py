"""Golden data for speculation across tokens: one block of the demo pair in PyTorch on addressed noise, and what the
released code of continuous speculative decoding makes of it.
python3 tests/golden/make_cspd.py CSPD_CHECKOUT  ->  tests/golden/data/cspd.safetensors; to be run again when the demo
weights change. https://github.com/MarkXCloud/CSpD"""

import sys
import types
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "tests/reference"), str(HERE)]

from addressed_noise import INIT, STEP, normals, random_order  # noqa: E402
from pymar.diffusion import Schedule  # noqa: E402
from pymar.io import load_mar, write_safetensors  # noqa: E402
from pymar.model import generation_plan  # noqa: E402

SEED, LABEL, ITERATIONS, STEPS, CFG, GAMMA = 11, 3, 8, 25, 2.9, 4


def released_processor(checkout):
    sys.path.insert(0, checkout)
    for name in ("models", "models.mar", "tqdm"):  # what the criterion does without
        sys.modules[name] = types.ModuleType(name)
    sys.modules["models.mar"].MAR = sys.modules["tqdm"].tqdm = object
    from spec_decode.spec_decode_runner import DistributionProcessor
    return DistributionProcessor


def conditions(model, tokens, mask):
    """z [2,L,W] of one image, class and no class."""
    y = torch.cat([model.class_embedding(torch.tensor([LABEL])), model.fake_latent])
    mask = mask.expand(2, -1)
    return model.decode(model.encode(tokens.expand(2, -1, -1), mask, y), mask)


def run_chain(model, schedule, z, scales, positions):
    """The chain of tokens [N]: mean and log standard deviation at the last index, and the sum of the latter over the
    indices above, [N,C] each."""
    x = torch.from_numpy(np.stack([normals(SEED, INIT, 0, p, 0, model.config.token_dim)
                                   for p in positions.tolist()]))
    path = torch.zeros_like(x)
    for i in reversed(range(schedule.steps)):
        t = schedule.t[i].expand(len(positions))
        eps, v = model.head.guided(x, t, z.reshape(-1, z.shape[-1]), scales[:, None]).chunk(2, dim=-1)
        mean, log_var, _ = schedule.posterior(eps, v, x, i)
        if i == 0:
            return mean, 0.5 * log_var, path
        path += 0.5 * log_var
        noise = np.stack([normals(SEED, STEP, 0, p, schedule.timesteps[i], x.shape[1]) for p in positions.tolist()])
        x = mean + torch.exp(0.5 * log_var) * torch.from_numpy(noise)


@torch.no_grad()
def main():
    processor = released_processor(sys.argv[1])
    target, draft = (load_mar(ROOT / f"weights/demo/{name}.safetensors") for name in ("target", "draft"))
    schedule, length, channels = Schedule(STEPS), target.config.seq_len, target.config.token_dim
    rank = torch.from_numpy(random_order(SEED, 0, length)).argsort()
    plan = generation_plan(length, ITERATIONS, CFG, "linear")[:GAMMA]

    tokens, q, scale_of = torch.zeros(1, length, channels), torch.zeros(3, length, channels), torch.zeros(length)
    for before, after, scale in plan:
        positions = ((rank < before) & (rank >= after)).nonzero()[:, 0]
        scale_of[positions] = scale
        z = conditions(draft, tokens, (rank < before)[None])[:, positions]
        q[:, positions] = torch.stack(run_chain(draft, schedule, z, scale_of[positions], positions))
        tokens[0, positions] = q[0, positions]

    block = (rank >= plan[-1][1]).nonzero()[:, 0]
    z = conditions(target, torch.zeros_like(tokens), torch.ones(1, length, dtype=bool))[:, block]
    p = torch.stack(run_chain(target, schedule, z, scale_of[block], block)).double()
    q = q[:, block].double()

    def released(draft, temperature):
        return processor(draft[0], draft[1].exp(), draft[2], p[0], p[1].exp(), p[2], channels, temperature)

    near = p + 0.03 * (q - p)  # a draft that agrees well, for the residual
    candidates = p[0] + p[1].exp() * torch.randn(p[0].shape, generator=torch.Generator().manual_seed(1))
    tensors = {"position": block, "mean_p": p[0], "log_std_p": p[1], "path_p": p[2].sum(-1), "candidates": candidates,
               "near_keep": released(near, 42).subtracted_distribution_unormalize(candidates)}
    for name, law, x, temperatures in (("far", q, q[0], (42, 10)), ("near", near, candidates, (42, 1))):
        tensors |= {f"{name}_mean": law[0], f"{name}_log_std": law[1], f"{name}_path": law[2].sum(-1)}
        for temperature in temperatures:
            tensors[f"{name}_accept_{temperature}"] = released(law, temperature).judge_accept(x).clamp(max=1)
    for name in sorted(tensors):
        print(name, tuple(tensors[name].shape), tensors[name].float().mean().item())
    write_safetensors(HERE / "data/cspd.safetensors", {name: tensor.float() for name, tensor in tensors.items()},
                      {"made_by": "tests/golden/make_cspd.py"})


if __name__ == "__main__":
    main()
