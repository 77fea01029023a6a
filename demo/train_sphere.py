#!/usr/bin/env python3
r"""Train the demo bundle of SphereAR: a small S-VAE, a target and a cheaper draft on handwritten digits.

Data: as demo/train_demo.py. The architectures are SphereAR's (Ke and Xue 2025) at a small size, so the files exercise every
code path of the real checkpoints.

    python3 demo/train_sphere.py --out weights/demo --work build/demo-sphere

Stages: vae, posteriors (of jittered copies of all digits), then target and draft, and `report` judges what they generate.
The S-VAE's decoder is in the target's file, as in the official ones. Seeds are fixed; the result depends on the PyTorch build
only. PyTorch compiles the models, for which it needs a C++ compiler.
"""

import argparse
import os
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

import digits
from training import Ema, keep_freed_memory, logger, optimise, save, set_lr, transformer_optimizers

from pymar import (PowerSpherical, SphereAR, SphereConfig, SphereVae, SphereVaeConfig, generate_sphere, load_sphere, on_sphere,
                   read_safetensors, write_safetensors)

VAE_CONFIG = SphereVaeConfig(channels=(32, 64, 96), heads=3, encoder_depth=2, decoder_depth=3, grid=8)
VAE_STEPS, VAE_BATCH = 1500, 32
KL_WEIGHT = 2e-4  # of a token's divergence in nats, beside the mean squared error of a pixel
COPIES = 16  # jittered copies of the data set that the transformers see
SHARED = dict(grid=8, class_tokens=4, classes=10)
ROLES = {
    "target": SphereConfig(width=96, depth=5, heads=3, head_width=128, head_depth=4, head_modulations=2, **SHARED),
    "draft": SphereConfig(width=48, depth=2, heads=2, head_width=64, head_depth=2, head_modulations=1, **SHARED),
}
FILES = {"target": "sphere", "draft": "sphere-draft"}
TRAINING = {"target": (2700, 32, 3e-3), "draft": (2500, 32, 4e-3)}  # steps, images a step, peak learning rate
HEAD_REPEATS = 4  # times and noises that the head sees of a token in a step
WARMUP = 100  # steps
CLASS_DROPOUT = 0.1


# ----------------------------------------------------------------------------------------------------------- S-VAE

def train_vae(path, log):
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    images, _, held, labels = digits.split(*digits.load_images())
    vae = SphereVae(VAE_CONFIG).to(memory_format=torch.channels_last)
    optimizers = transformer_optimizers(vae, 0.01)
    ema, start = Ema(vae, 0.995), time.time()
    for step in range(VAE_STEPS):
        for optimizer in optimizers:
            set_lr(optimizer, step, VAE_STEPS, 3e-3, 100)
        batch = digits.jitter(images[torch.randint(len(images), (VAE_BATCH,), generator=generator)], generator, 10, 0.08, 0.1)
        batch = batch.expand(-1, 3, -1, -1)
        with torch.autocast("cpu", torch.bfloat16):
            posterior = vae.posterior(batch)
            decoded = vae.decode(on_sphere(posterior.sample())).float()
        mse, kl = F.mse_loss(decoded, batch), posterior.kl_to_uniform().mean()
        optimise(optimizers, vae, mse + 0.2 * F.l1_loss(decoded, batch) + KL_WEIGHT * kl)
        ema.update(vae)
        if step % 50 == 0 or step == VAE_STEPS - 1:
            log(f"vae {step} mse {mse:.5f} kl {kl:.3f} kappa {posterior.kappa.mean():.1f} {time.time() - start:.0f}s")
    vae = ema.model
    write_safetensors(path, vae.state_dict(), {"mar.kind": "sphere-vae"})
    judge_vae(vae, held, labels, path.replace(".safetensors", ".png"), log)


def judge_vae(vae, images, labels, grid, log):
    """Logs how well images that it was not trained on come back from drawn tokens, and shows some, above their
    reconstructions, in `grid`."""
    classifier, real = digits.train_classifier()
    with torch.no_grad():
        tokens = on_sphere(vae.posterior(images.expand(-1, 3, -1, -1)).sample())
        decoded = vae.decode(tokens).mean(1, keepdim=True)
    recognised = (classifier(decoded.clamp(-1, 1)).argmax(1) == labels).float().mean()
    log(f"vae held-out mse {F.mse_loss(decoded, images):.5f}, decoded held-out digits recognised {recognised:.4f} "
        f"(real {real:.4f}), variance along the tokens' principal directions "
        + " ".join(f"{v:.2f}" for v in torch.linalg.svdvals(tokens.flatten(0, 1)).square() / (len(tokens) * tokens.shape[1])))
    digits.save_grid(grid, torch.cat([images[:60], decoded[:60]]), 20)


def load_vae(path):
    vae = SphereVae(VAE_CONFIG)
    vae.load_state_dict(read_safetensors(path)[0])
    return vae.eval()


@torch.no_grad()
def extract_posteriors(vae, path, log):
    """Writes directions mu [COPIES * 1797, 64, 16], concentrations kappa [COPIES * 1797, 64] and labels of jittered copies of
    all digits; the first copy is the digits themselves."""
    generator, start = torch.Generator().manual_seed(2), time.time()
    images, labels = digits.load_images()
    mu, kappa = [], []
    for copy_index in range(COPIES):
        batch = images if copy_index == 0 else digits.jitter(images, generator, 4, 0.03, 0.04)
        for part in batch.split(128):
            posterior = vae.posterior(part.expand(-1, 3, -1, -1))
            mu.append(posterior.mu)
            kappa.append(posterior.kappa)
    write_safetensors(path, {"mu": torch.cat(mu), "kappa": torch.cat(kappa), "labels": labels.repeat(COPIES)}, {})
    log(f"posteriors {sum(map(len, mu))}, {time.time() - start:.0f}s")


# --------------------------------------------------------------------------------------------- transformer and head

def train_model(role, vae_path, data_path, path, work, log):
    config, (steps, batch, peak_lr) = ROLES[role], TRAINING[role]
    torch.manual_seed(3)
    data, vae = read_safetensors(data_path)[0], load_vae(vae_path)
    labels, classifier = data["labels"].long(), digits.train_classifier()[0]
    model = SphereAR(config)
    optimizers = transformer_optimizers(model, 0.05)
    ema, start, mean = Ema(model, 0.999), time.time(), 0.0
    conditions = torch.compile(model.conditions)  # a third less time than eager, as for the head
    model.head.net.compile()
    log(f"{role} parameters {sum(p.numel() for p in model.parameters())}")
    for step in range(steps):
        for optimizer in optimizers:
            set_lr(optimizer, step, steps, peak_lr, WARMUP)
        rows = torch.randint(len(labels), (batch,))
        y = torch.where(torch.rand(batch) < CLASS_DROPOUT, config.classes, labels[rows])
        tokens = on_sphere(PowerSpherical(data["mu"][rows], data["kappa"][rows]).sample())
        with torch.autocast("cpu", torch.bfloat16):
            z = conditions(y, tokens).flatten(0, 1)
            loss = model.head.loss(tokens.flatten(0, 1).repeat(HEAD_REPEATS, 1), z.repeat(HEAD_REPEATS, 1))
        optimise(optimizers, model, loss)
        ema.update(model)
        mean += (loss.item() - mean) * (0.02 if step else 1)
        if step % 100 == 0 or step == steps - 1:
            log(f"{role} {step} loss {mean:.4f} {time.time() - start:.0f}s")
        if (step + 1) % 1000 == 0 or step == steps - 1:
            save_model(path, role, ema.model, vae)
            log(f"{role} {step} {evaluate(path, vae, classifier, work, 10, 2.9, 25)}")


def save_model(path, role, model, vae):
    """Writes a model, the target with the S-VAE's decoder."""
    tensors = dict(model.state_dict())
    metadata = {"mar.kind": "spherear", "mar.role": role, "mar.heads": model.config.heads}
    if role == "target":
        kept = ("decoder.", "post_quant_proj.")
        tensors |= {f"vae.{name}": tensor for name, tensor in vae.state_dict().items() if name.startswith(kept)}
        metadata |= {"mar.vae_heads": VAE_CONFIG.heads, "mar.vae_stride": VAE_CONFIG.stride}
    save(path, tensors, metadata, unchanged=["vae.decoder.freqs_cis"])  # a table, float32 in official files


@torch.no_grad()
def evaluate(path, vae, classifier, work, per_class, cfg, steps, seed=5):
    """Sample quality of a saved model: a dict, and a grid in `work`."""
    labels = torch.arange(10).repeat(per_class)
    tokens = generate_sphere(load_sphere(path), labels, cfg, steps, generator=torch.Generator().manual_seed(seed))
    images = vae.decode(tokens)
    name = os.path.basename(path).replace(".safetensors", f".cfg{cfg:g}.png")
    digits.save_grid(os.path.join(work, name), images[:200], 20)
    return digits.judge(classifier, images, labels)


def report(out, vae, work, log, per_class, scales):
    classifier, real_accuracy = digits.train_classifier()
    log(f"classifier on held-out digits {real_accuracy:.4f}")
    for role in ROLES:
        for cfg in scales:
            start = time.time()
            result = evaluate(os.path.join(out, f"{FILES[role]}.safetensors"), vae, classifier, work, per_class, cfg, 100)
            log(f"{role} cfg {cfg:g} {result} {time.time() - start:.0f}s")


# ------------------------------------------------------------------------------------------------------------ main

def run_all(args):
    """Every stage in a process of its own; the draft is trained beside the target."""
    def stage(name):
        return subprocess.Popen([sys.executable, __file__, "--out", args.out, "--work", args.work, "--stage", name,
                                 "--threads", str(args.threads), "--per_class", str(args.per_class), "--cfg", args.cfg])
    for names in (["vae"], ["posteriors"], ["target", "draft"], ["report"]):
        if any([process.wait() for process in [stage(name) for name in names]]):
            sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=["all", "vae", "posteriors", *ROLES, "report"], default="all")
    parser.add_argument("--out", default="weights/demo")
    parser.add_argument("--work", default="build/demo-sphere", help="the whole S-VAE, posteriors, logs and sample grids")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--per_class", type=int, default=50, help="images per class of the report")
    parser.add_argument("--cfg", default="1,2,2.9,4", help="guidance scales of the report")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    os.makedirs(args.out, exist_ok=True)
    vae_path, data_path = (os.path.join(args.work, f"{name}.safetensors") for name in ("vae", "posteriors"))
    log = logger(args.work, args.stage)
    if args.stage == "all":
        run_all(args)
    elif args.stage == "vae":
        train_vae(vae_path, log)
    elif args.stage == "posteriors":
        extract_posteriors(load_vae(vae_path), data_path, log)
    elif args.stage == "report":
        report(args.out, load_vae(vae_path), args.work, log, args.per_class, [float(cfg) for cfg in args.cfg.split(",")])
    else:
        path = os.path.join(args.out, f"{FILES[args.stage]}.safetensors")
        train_model(args.stage, vae_path, data_path, path, args.work, log)


if __name__ == "__main__":
    main()
