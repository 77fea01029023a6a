"""Golden data for the tests of SphereAR: a small model with random weights, and what SphereAR's own code makes of it in
float32, with the project's addressed noise.

    python3 tests/golden/make_sphere.py SPHEREAR  ->  tests/golden/data/sphere{,_model}.safetensors

SPHEREAR is a clone of github.com/guolinke/SphereAR, bare or not."""

import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import addressed_noise

HERE = Path(__file__).parent
SIDE, CHANNELS, LABELS, IMAGES, SEED, STEPS = 4, 8, (1, 3), (5, 6), 77, 12


def official(repository):
    """The module SphereAR.model. FlashAttention's place is taken by PyTorch's attention."""
    folder = Path(tempfile.mkdtemp())
    (folder / "SphereAR").mkdir()
    for name in ("__init__", "diff_head", "layers", "model", "psd", "sampling", "vae"):
        (folder / "SphereAR" / f"{name}.py").write_bytes(
            subprocess.run(["git", "-C", repository, "show", f"HEAD:SphereAR/{name}.py"], check=True,
                           capture_output=True).stdout)
    flash = types.ModuleType("flash_attn")
    flash.flash_attn_func = lambda q, k, v, causal, dropout_p: F.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal).transpose(1, 2)
    sys.modules["flash_attn"] = flash
    sys.path.insert(0, str(folder))
    import SphereAR.model as model
    return model


def randomise(model, generator):
    """Nothing stays at an initialisation; all values are exact in the half precision they are stored in."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if p.dim() == 1 and name.endswith("weight"):
            value = 1 + 0.2 * noise
        elif p.dim() == 1:
            value = 0.2 * noise
        elif "embedding" in name or "pos_for_diff" in name:
            value = noise
        else:
            value = 0.7 * noise / np.prod(p.shape[1:]) ** 0.5  # larger ones make chains that magnify rounding errors
        p.copy_(value.half().float())


def make(module, generator):
    plain = module.VAE
    module.VAE = lambda **arguments: plain(z_channels=64, cnn_chs=[16, 32, 64], encoder_vit_layers=1,
                                           decoder_vit_layers=2, **arguments)
    model = module.SphereAR(dim=48, n_layer=2, n_head=3, diff_layers=4, diff_dim=32, diff_adanln_layers=2,
                            latent_dim=CHANNELS, patch_size=4, resolution=4 * SIDE, diff_batch_mul=1, cls_token_num=3,
                            num_classes=5).eval()
    randomise(model, generator)
    return model


class Noise:
    """Takes the place of torch.randn and torch.randn_like in euler_maruyama. Rows of unconditional branches have noise
    of their own, with a position behind the image's."""

    def __init__(self):
        self.position = -1

    def rows(self, purpose, n, step):
        out = []
        for row in range(n):
            apart = row >= len(IMAGES)
            position = SIDE * SIDE if apart else self.position
            out.append(addressed_noise.normals(SEED, purpose, IMAGES[row % len(IMAGES)], position, step, CHANNELS))
        return torch.from_numpy(np.stack(out))

    def randn(self, shape, device=None):
        self.position += 1
        self.step = STEPS
        return self.rows(addressed_noise.INIT, shape[0], 0)

    def randn_like(self, x):
        self.step -= 1
        return self.rows(addressed_noise.STEP, x.shape[0], self.step + 1)


def sample(model, cfg, schedule):
    """Tokens of model.sample for LABELS: its decoder is replaced by the identity."""
    noise, plain, decode = Noise(), (torch.randn, torch.randn_like), model.vae.decode
    torch.randn, torch.randn_like, model.vae.decode = noise.randn, noise.randn_like, lambda x: x
    for layer in model.layers:
        layer.attention.kv_cache_size = None
    tokens = model.sample(torch.tensor(LABELS), sample_steps=STEPS, cfg_scale=cfg, cfg_schedule=schedule)
    (torch.randn, torch.randn_like), model.vae.decode = plain, decode
    return tokens


def sample_forced(model, cfg, schedule, known, mask):
    """The same with known tokens in place of drawn ones in both branches, where the mask is 1."""
    plain = model.head_sample

    def head_sample(x, position, *more):
        drawn, rows = plain(x, position, *more), range(x.shape[0])
        given = torch.stack([known[i % len(IMAGES), position] for i in rows])[:, None]
        where = torch.tensor([bool(mask[i % len(IMAGES), position]) for i in rows])
        return torch.where(where[:, None, None], given, drawn)

    model.head_sample = head_sample
    tokens = sample(model, cfg, schedule)
    del model.head_sample
    return tokens


def features(model, tokens):
    """Conditions of the head for these tokens [B][n][C], as in model.sample."""
    n = SIDE * SIDE
    for layer in model.layers:
        layer.attention.kv_cache_size = None
    model.enable_kv_cache(len(LABELS))
    out = [model.forward_model(model.cls_embedding(torch.tensor(LABELS)).view(len(LABELS), 3, -1), 0, 3)[:, -1:]]
    for i in range(1, n):
        out.append(model.forward_model(model.proj_in(tokens[:, i - 1:i]), i + 2, i + 3))
    return torch.cat(out, 1) + model.pos_for_diff.weight


@torch.no_grad()
def main():
    module = official(sys.argv[1])
    generator = torch.Generator().manual_seed(31)
    model = make(module, generator)
    state = {k: v.half().contiguous() if v.is_floating_point() and "freqs_cis" not in k else v.contiguous()
             for k, v in model.state_dict().items() if not k.startswith(("vae.encoder.", "vae.quant_proj."))}
    save_file(state, HERE / "data" / "sphere_model.safetensors", metadata={"mar.heads": "3"})

    golden = {}
    x, c = torch.randn(6, CHANNELS, generator=generator), torch.randn(6, 48, generator=generator)
    t = torch.tensor([0.0, 0.0096, 0.25, 0.5, 0.9504, 0.96])
    golden["head.x"], golden["head.z"], golden["head.time"] = x, c, 1000 * t
    golden["head.velocity"] = model.head.net(x, t, c)
    tokens = F.normalize(torch.randn(2, SIDE * SIDE, CHANNELS, generator=generator), dim=-1) * CHANNELS ** 0.5
    golden["tokens"], golden["z"] = tokens, features(model, tokens)
    for name, cfg, schedule in (("plain", 1.0, "linear"), ("linear", 3.0, "linear"), ("constant", 2.0, "constant")):
        golden[f"sample.{name}"] = sample(model, cfg, schedule)
    mask = torch.tensor([[0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1], [1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0]])
    golden["known.mask"], golden["sample.forced"] = mask.float(), sample_forced(model, 3.0, "linear", tokens, mask)
    pictures = model.vae.decode(golden["sample.linear"])
    golden["pictures"] = torch.clamp(127.5 * pictures + 128.0, 0, 255).permute(0, 2, 3, 1).to(torch.uint8)
    save_file({k: v.contiguous() for k, v in golden.items()}, HERE / "data" / "sphere.safetensors")


main()
