"""Golden data for the shortcuts: what the published codes make of small random weights, in float32 on the CPU.
  python3 tests/golden/make_shortcuts.py --disa CHECKOUT --lazymar CHECKOUT
reads checkouts of github.com/Qinyu-Allen-Zhao/DiSA and github.com/feihongyan1/LazyMAR, and writes
tests/golden/data/{lazy_small,shortcuts}.safetensors."""

import argparse
import importlib
import sys
import types
from pathlib import Path

import numpy as np
import torch
from torch import nn

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "reference"), str(HERE)]

from addressed_noise import INIT, STEP, normals, random_order  # noqa: E402
from make_mar import SEED, randomise  # noqa: E402
from pymar.diffusion import Schedule, sample_chain  # noqa: E402
from pymar.io import read_safetensors, write_safetensors  # noqa: E402
from pymar.model import MAR, MarConfig  # noqa: E402

# Six blocks: LazyMAR prunes in the decoder's fourth, and treats the head's first and sixth unlike the others.
LAZY = MarConfig(width=24, depth=6, heads=3, seq_len=64, token_dim=5, buffer=4, classes=5, head_width=16, head_depth=6)


def from_checkout(root, *names):
    """Imports modules of a checkout, whose package names collide with those of others."""
    for name in [n for n in sys.modules if n.split(".")[0] in ("models", "diffusion", "diffusion_cached")]:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(root))


def addressed(purpose, images, positions, t, channels):
    return torch.from_numpy(np.stack([normals(SEED, purpose, i, p, t, channels) for i, p in zip(images, positions)]))


def step_noise(timesteps, images, positions, channels):
    """A stand-in for torch.randn_like: the addressed noise of the chain's steps, in the order they are taken."""
    left = sorted(timesteps, reverse=True)

    def randn_like(x):
        noise = addressed(STEP, images, positions, left.pop(0), channels)
        return noise if x.shape[0] == len(images) else torch.cat([noise, noise])
    return randn_like


class LogSnr:
    """DPM-Solver's view of the discrete schedule at integer timesteps; beyond the last one clean data."""

    def __init__(self, abar):
        self.abar = abar

    def marginal_log_mean_coeff(self, t):
        return 0.5 * torch.log(self.abar[t])

    def marginal_std(self, t):
        return torch.sqrt(1 - self.abar[t])

    def marginal_lambda(self, t):
        return self.marginal_log_mean_coeff(t) - torch.log(self.marginal_std(t))


def dpmpp(module, abar, eps_at, x, grid):
    """Second-order multistep DPM-Solver++ by its authors' update, from the highest timestep of the grid to the lowest,
    which is then denoised."""
    solver = module.DPM_Solver(None, LogSnr(abar), algorithm_type="dpmsolver++")
    times, data = [], []
    for i, t in enumerate(grid):
        x0 = (x - torch.sqrt(1 - abar[t]) * eps_at(x, t)) / torch.sqrt(abar[t])
        times, data = (times + [torch.tensor(t)])[-2:], (data + [x0])[-2:]
        if i + 1 == len(grid):
            return x0
        x = solver.multistep_dpm_solver_update(x, data, times, torch.tensor(grid[i + 1]), min(i + 1, 2),
                                               solver_type="dpmsolver")


@torch.no_grad()
def chains(disa, out):
    diffloss, diffusion, respace, gd, solver = from_checkout(
        disa / "MAR_DiSA", "models.diffloss", "diffusion", "diffusion.respace", "diffusion.gaussian_diffusion",
        "diffusion.dpm_solver")
    weights, _ = read_safetensors(HERE / "data/mar_small.safetensors")
    head = {k.removeprefix("diffloss.net."): v for k, v in weights.items() if k.startswith("diffloss.net.")}
    channels, width = head["input_proj.weight"].shape[1], head["input_proj.weight"].shape[0]
    net = diffloss.SimpleMLPAdaLN(channels, width, 2 * channels, head["cond_embed.weight"].shape[1], 2)
    net.load_state_dict(head)
    golden, _ = read_safetensors(HERE / "data/mar.safetensors")
    positions, images = golden["chain.position"].int().tolist(), [0, 1, 2, 3, 4, 1 << 33, 6]
    n, z = len(images), golden["head.z"]
    x_T = addressed(INIT, images, positions, 0, channels)
    guided = dict(c=z, cfg_scale=2.9)

    def record(name, sampler, plain):
        out[f"{name}.guided"] = sampler(net.forward_with_cfg, torch.cat([x_T, x_T]), guided)[:n]
        if plain:
            out[f"{name}.plain"] = sampler(net.forward, x_T, dict(c=z[:n]))

    for steps in (5, 23, 50):
        process = diffusion.create_diffusion(timestep_respacing=str(steps), noise_schedule="cosine")

        def sampler(fn, noise, kwargs):
            torch.randn_like = step_noise(process.timestep_map, images, positions, channels)
            return process.p_sample_loop(fn, noise.shape, noise, clip_denoised=False, model_kwargs=kwargs,
                                         temperature=0.9)
        record(f"annealed.{steps}", sampler, steps == 23)
        out[f"annealed.{steps}.t"] = torch.tensor(process.timestep_map).float()

    torch.randn_like = original_randn_like
    for steps in (7, 20, 50):
        grid = [round(980 / (steps - 1) * i) for i in range(steps)]
        if steps == 50:
            process = diffusion.create_diffusion("ddim50", "cosine", clip_timesteps=980)
            assert process.timestep_map == grid
        else:
            process = respace.SpacedDiffusion(
                use_timesteps=grid, betas=gd.get_named_beta_schedule("cosine", 1000), loss_type=gd.LossType.MSE,
                model_mean_type=gd.ModelMeanType.EPSILON, model_var_type=gd.ModelVarType.LEARNED_RANGE)

        def sampler(fn, noise, kwargs):
            return process.ddim_sample_loop(fn, noise.shape, noise, clip_denoised=False, model_kwargs=kwargs)
        record(f"ddim.{steps}", sampler, steps == 20)

        abar = torch.from_numpy(np.cumprod(1 - gd.get_named_beta_schedule("cosine", 1000)))

        def sampler(fn, noise, kwargs):
            def eps_at(x, t):
                return fn(x.float(), torch.full((x.shape[0],), t), **kwargs)[:, :channels].double()
            return dpmpp(solver, abar, eps_at, noise.double(), grid[::-1]).float()
        record(f"dpmpp.{steps}", sampler, steps == 20)

    annealing(diffloss, out)


def annealing(diffloss, out):
    """DiffLoss.sample itself, with diffusions that only say who they are."""
    class Named:
        def __init__(self, steps):
            self.steps = steps

        def p_sample_loop(self, *args, **kwargs):
            return self.steps

    for strategy in ("linear", "cosine", "two-stage"):
        for num_iter, upper, lower in ((64, 50, 5), (17, 23, 4), (2, 9, 9)):
            loss = diffloss.DiffLoss(4, 4, 1, 8, diff_upper_steps=upper, diff_lower_steps=upper,
                                     diff_annealing_strategy=strategy, diff_sampler="DiSA")
            loss.gen_diffusion = [Named(s) for s in range(lower, upper + 1)]
            counts = [loss.sample(torch.zeros(1, 4), step=i, ar_num_iter=num_iter) for i in range(num_iter)]
            out[f"annealing.{strategy}.{num_iter}"] = torch.tensor(counts).float()


def stub_packages():
    """What LazyMAR imports of timm and tqdm, as far as sampling needs it."""
    class Mlp(nn.Module):
        def __init__(self, in_features, hidden_features, act_layer, drop):
            super().__init__()
            self.fc1, self.act = nn.Linear(in_features, hidden_features), act_layer()
            self.fc2 = nn.Linear(hidden_features, in_features)

        def forward(self, x):
            return self.fc2(self.act(self.fc1(x)))
    layers = types.ModuleType("timm.layers")
    layers.Mlp, layers.DropPath, layers.use_fused_attn = Mlp, nn.Identity, lambda: False
    progress = types.ModuleType("tqdm")
    progress.tqdm = iter
    sys.modules.setdefault("tqdm", progress)
    sys.modules.setdefault("timm", types.ModuleType("timm"))
    sys.modules.setdefault("timm.layers", layers)


def lazy_model(lazymar, model):
    stub_packages()
    basic, = from_checkout(lazymar, "models.basic")
    source = Path(basic.__file__).read_text()
    marker = "class EncoderAttention"
    before, rest = source.split(marker)
    attention, after = rest.split("class DecoderAttention")
    attention = attention.replace("64", str(LAZY.buffer))  # the number of buffer tokens is written out there
    exec(compile(before + marker + attention + "class DecoderAttention" + after, "basic", "exec"), basic.__dict__)
    sys.path.insert(0, str(lazymar))
    mar_cache = importlib.import_module("models.mar_cache")
    c = LAZY
    lazy = mar_cache.MAR(
        img_size=8, vae_stride=1, encoder_embed_dim=c.width, encoder_depth=c.depth, encoder_num_heads=c.heads,
        decoder_embed_dim=c.width, decoder_depth=c.depth, decoder_num_heads=c.heads, vae_embed_dim=c.token_dim,
        class_num=c.classes, buffer_size=c.buffer, diffloss_d=c.head_depth, diffloss_w=c.head_width,
        norm_layer=lambda width: nn.LayerNorm(width, eps=1e-6)).eval()
    lazy.load_state_dict(model.state_dict())
    return lazy


@torch.no_grad()
def lazy(lazymar, out):
    model = MAR(LAZY).eval()
    randomise(model, torch.Generator().manual_seed(7))
    write_safetensors(HERE / "data/lazy_small.safetensors", {k: v.half() for k, v in model.state_dict().items()},
                      {"mar.heads": LAZY.heads})
    network = lazy_model(lazymar, model)
    for name, iterations, labels in (("32", 32, [3, 0]), ("48", 48, [4])):
        batch, first = len(labels), 11
        orders = torch.from_numpy(np.stack([random_order(SEED, first + i, LAZY.seq_len) for i in range(batch)]))
        schedule, z_of_steps, known = Schedule(10), [], [LAZY.seq_len]

        def sample(z, temperature, cfg, device):
            """The plain chain on addressed noise: the release's head, but for where its noise comes from."""
            count = z.shape[0] // (2 * batch)
            before, known[0] = known[0], known[0] - count
            pairs = [(first + i, int(p)) for i in range(batch) for p in sorted(orders[i, known[0]:before].tolist())]
            images, positions = zip(*pairs)
            z_of_steps.append(z.clone())
            noise = torch.stack([addressed(STEP, images, positions, t, LAZY.token_dim) for t in schedule.timesteps])
            made = sample_chain(schedule, lambda x, t: model.head.guided(x, t, z, float(cfg)),
                                addressed(INIT, images, positions, 0, LAZY.token_dim), noise, temperature)
            return torch.cat([made, made])
        network.diffloss.sample = sample
        network.sample_orders = lambda bsz, device: orders
        arguments = types.SimpleNamespace(device="cpu", lazy_mar=True)
        tokens = network.sample_tokens(batch, iterations, 2.9, "linear", torch.tensor(labels), 1.0, args=arguments)
        out[f"lazy.{name}.tokens"] = tokens.flatten(2).transpose(1, 2)
        out[f"lazy.{name}.z"] = torch.cat(z_of_steps)


@torch.no_grad()
def reuse(lazymar, out):
    """The release's head, which uses again what its blocks gave."""
    cached, respace, gd = from_checkout(lazymar, "models.diffloss_cached", "diffusion_cached.respace",
                                        "diffusion_cached.gaussian_diffusion")
    weights, _ = read_safetensors(HERE / "data/lazy_small.safetensors")
    channels, depth = LAZY.token_dim, LAZY.head_depth
    positions, images, n = [3, 63, 0, 17], [0, 1, 2, 1 << 33], 4
    z = torch.randn(2 * n, LAZY.width, generator=torch.Generator().manual_seed(3))
    x_T = addressed(INIT, images, positions, 0, channels)
    out["reuse.z"] = z
    for steps in (30, 100):
        loss = cached.CachedDiffLoss(channels, LAZY.width, depth, LAZY.head_width, str(steps))
        loss.net.load_state_dict(
            {k.removeprefix("diffloss.net."): v for k, v in weights.items() if k.startswith("diffloss.net.")})
        # From t = 950 down: from 999 random weights give numbers that only the first step matters for.
        process = respace.SpacedDiffusion(
            use_timesteps=[min(t, 950) for t in respace.space_timesteps(1000, str(steps))],
            betas=gd.get_named_beta_schedule("cosine", 1000), loss_type=gd.LossType.MSE,
            model_mean_type=gd.ModelMeanType.EPSILON, model_var_type=gd.ModelVarType.LEARNED_RANGE)
        for name, fn, noise, kwargs in (
                ("plain", loss.net.forward, x_T, dict(c=z[:n])),
                ("guided", loss.net.forward_with_cfg, torch.cat([x_T, x_T]), dict(c=z, cfg_scale=2.9))):
            torch.randn_like = step_noise(process.timestep_map, images, positions, channels)
            if name == "plain":  # the release's sampler does not pass this on, and the head only hands it down
                kwargs = dict(kwargs, use_lazy_mar=False)
            out[f"reuse.{steps}.{name}"] = process.p_sample_loop(
                fn, noise.shape, noise=noise, diffloss_d=depth, cache_type="default", clip_denoised=False,
                model_kwargs=kwargs, device="cpu", temperature=0.9, py_model=loss.net, block_cos=[], block_mse=[],
                cache_threshold=7)[:n]
    torch.randn_like = original_randn_like


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--disa", type=Path, required=True)
    parser.add_argument("--lazymar", type=Path, required=True)
    arguments = parser.parse_args()
    out = {}
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    chains(arguments.disa, out)
    lazy(arguments.lazymar, out)
    reuse(arguments.lazymar, out)
    write_safetensors(HERE / "data/shortcuts.safetensors", out, {"made_by": "tests/golden/make_shortcuts.py"})
    for name, value in out.items():
        print(name, tuple(value.shape), f"{value.abs().max():.3g}")


original_randn_like = torch.randn_like

if __name__ == "__main__":
    main()
