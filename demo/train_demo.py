#!/usr/bin/env python3
r"""Train the demo bundle: a small KL autoencoder, a target MAR and a cheaper draft MAR on handwritten digits.

Data: UCI "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak), CC BY 4.0, as shipped with scikit-learn.
The architecture is the official one at a small size, so the files exercise every code path of the real checkpoints.

    python3 demo/train_demo.py --stage all --out weights/demo --work build/demo

Stages: vae, then target and draft (`all` runs these two side by side, one thread each), and the classifier that judges
generated digits. Seeds are fixed; the result depends on the PyTorch build only.

Drafts of other training or size, compared in bench/LAB.md (a minute to five each on one thread):

    for share in 1/8 1/4 1/2; do
        python3 demo/train_demo.py --stage draft --share $share --save build/drafts/draft-${share/\//_}.safetensors
    done
    python3 demo/train_demo.py --stage draft --draft_size 48,1,2,96,1 --save build/drafts/draft-48-96.safetensors
    python3 demo/train_demo.py --stage draft --draft_size 64,1,2,128,1 --save build/drafts/draft-64-128.safetensors

The same with the official number of latent channels (not shipped; bench/LAB.md):

    python3 demo/train_demo.py --channels 16 --out build/demo16 --work build/demo16

The cosine schedule starts at abar = 2.4e-9, where an error of eps is multiplied by 2e4 and 1.5 % of that survives into the
next state. The head must be right there to 1e-3, so training draws t = 999 and high t often, weighs them by what an
error costs, and ends with a phase that trains the head alone.
"""

import argparse
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction

import torch
import torch.nn.functional as F
from scipy.stats import truncnorm
from torch.nn.attention import SDPBackend, sdpa_kernel

import digits
import training
from training import Ema, keep_freed_memory, set_lr

from pymar import (MAR, TOKEN_SCALE, VAE, MarConfig, Schedule, VaeConfig, generate, generation_plan, hybrid_loss, load_mar,
                   load_vae, q_sample, torch_noise)

OUT, CHANNELS = "weights/demo", 8
VAE_CONFIG = VaeConfig(ch=32, ch_mult=(1, 1, 2), num_res_blocks=1, z_channels=CHANNELS, encoder_attention=False)
SHARED = dict(seq_len=64, token_dim=CHANNELS, buffer=16, classes=10)
ROLES = {
    "target": MarConfig(width=64, depth=2, heads=2, head_width=128, head_depth=2, **SHARED),
    "draft": MarConfig(width=32, depth=1, heads=1, head_width=48, head_depth=1, **SHARED),
}
VAE_STEPS = 1800
# Phases: what learns, steps, images a step, peak learning rate (warm-up, then cosine decay to 0; the next phase starts
# from the averaged weights).
PHASES = {
    "target": [("all", 7000, 48, 2e-3), ("head", 4000, 48, 1e-3)],
    "draft": [("all", 2500, 48, 2e-3), ("head", 2500, 48, 1e-3)],
}
WARMUP = 300  # steps
HEAD_ROWS = 1600
MASK_RATIO = truncnorm((0.7 - 1.0) / 0.25, 0, loc=1.0, scale=0.25)  # the official one
AUGMENTED = 4  # jittered copies of the data set that the MARs see


# ---------------------------------------------------------------------------------------------------- autoencoder

def whiten(vae, mean, std):
    """Fold per-channel whitening into the 1x1 convolutions: tokens = latent * TOKEN_SCALE get mean 0, std 1."""
    z = len(mean)
    scale = std * TOKEN_SCALE  # raw latent = latent * scale + mean
    with torch.no_grad():
        quant, post = vae.quant_conv, vae.post_quant_conv
        quant.weight[:z] /= scale[:, None, None, None]
        quant.bias[:z] = (quant.bias[:z] - mean) / scale
        quant.bias[z:] -= 2 * scale.log()
        post.bias += post.weight[:, :, 0, 0] @ mean
        post.weight *= scale[None, :, None, None]


def train_vae(out, channels, log):
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    images, _, held, _ = digits.split(*digits.load_images())
    vae = VAE(replace(VAE_CONFIG, z_channels=channels)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01)
    ema, total, start = Ema(vae, 0.995), VAE_STEPS, time.time()
    for step in range(total):
        set_lr(optimizer, step, total, 2e-3, 100)
        batch = digits.jitter(images[torch.randint(len(images), (32,), generator=generator)], generator, 10, 0.08, 0.1)
        batch = batch.expand(-1, 3, -1, -1)
        mean, log_var = vae.moments(batch)
        latent = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        decoded = vae.decode(latent)
        mse = F.mse_loss(decoded, batch)
        kl = 0.5 * (mean ** 2 + log_var.exp() - 1 - log_var).mean()
        loss = mse + F.l1_loss(decoded, batch) * 0.2 + 2e-3 * kl
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        ema.update(vae)
        if step % 100 == 0 or step == total - 1:
            log(f"vae {step} mse {mse:.5f} kl {kl:.3f} {time.time() - start:.0f}s")
    vae = ema.model
    with torch.no_grad():
        mean, log_var = vae.moments(images.expand(-1, 3, -1, -1))
        std = (mean.var(dim=(0, 2, 3)) + log_var.exp().mean(dim=(0, 2, 3))).sqrt()
        log(f"vae noise/std per channel {(log_var.exp().mean(dim=(0, 2, 3)).sqrt() / std).tolist()}")
        whiten(vae, mean.mean(dim=(0, 2, 3)), std)
        held = held.expand(-1, 3, -1, -1)
        mean, log_var = vae.moments(held)
        sampled = (mean + (0.5 * log_var).exp() * torch.randn_like(mean)) * TOKEN_SCALE
        decoded = vae.decode(mean)
    log(f"vae held-out mse {F.mse_loss(decoded, held):.5f}, tokens mean {sampled.mean():.3f} std {sampled.std():.3f}")
    save(out, "vae", vae, {"mar.kind": "vae", "mar.vae_stride": VAE_CONFIG.stride})


def stem(path):
    return os.path.splitext(os.path.basename(path))[0]


def save(out, name, model, metadata):
    training.save(os.path.join(out, f"{name}.safetensors"), model.state_dict(), metadata)


# ------------------------------------------------------------------------------------------------------------ MAR

@torch.no_grad()
def token_moments(vae):
    """Token mean and std over jittered copies of all digits: [AUGMENTED, 1797, 64, channels] each, and labels [1797]."""
    generator = torch.Generator().manual_seed(2)
    images, labels = digits.load_images()
    means, stds = [], []
    for copy_index in range(AUGMENTED):
        batch = images if copy_index == 0 else digits.jitter(images, generator, 4, 0.03, 0.04)
        mean, log_var = vae.moments(batch.expand(-1, 3, -1, -1))
        means.append(mean.flatten(2).transpose(1, 2) * TOKEN_SCALE)
        stds.append((0.5 * log_var).exp().flatten(2).transpose(1, 2) * TOKEN_SCALE)
    return torch.stack(means), torch.stack(stds), labels


def draw_steps(count, high, first):
    """Training step indices [count]: a share of high noise, a share exactly the start of the chain, the rest uniform."""
    i = torch.randint(0, 1000, (count,))
    kind = torch.rand(count)
    i = torch.where(kind < first + high, 880 + (i * 120) // 1000, i)
    return torch.where(kind < first, torch.full_like(i, 999), i)


def head_loss(schedule, head, x0, z, head_only):
    """x0 [N,C], z [N,W]. Returns the scalar loss and the eps error (rms) at t = 999."""
    if head_only:  # as many rows from a batch with one masked token an image as from any other
        pick = torch.randint(len(x0), (HEAD_ROWS,))
        x0, z = x0[pick], z[pick]
    i = draw_steps(len(x0), 0.3 if head_only else 0.15, 0.1 if head_only else 0.03)
    # Inflated noise teaches the head to stay linear when the first step threw a state outside its usual range.
    wide = (i >= 940) & (i < 999) & (torch.rand(len(x0)) < 0.3)
    noise = torch.randn_like(x0) * torch.where(wide, 1 + 7 * torch.rand(len(x0)) ** 2, 1.0)[:, None]
    x_t = q_sample(schedule, x0, i, noise)
    mse, vb = hybrid_loss(schedule, head(x_t, schedule.t[i], z).float(), x0, x_t, i, noise)
    first = i == 999
    abar = torch.from_numpy(schedule.abar).float()[i]
    weight = (0.05 / abar).clamp(1, 20 if head_only else 4) * ~first
    at_first = (mse * first).sum() / first.sum().clamp(min=1)  # a small batch may have none
    # The logarithm keeps the pull of t = 999 while its error falls by six orders of magnitude; the square attends to the
    # worst rows. Its gradient grows meanwhile, so as long as the transformer learns too, a constant weight.
    worst = (mse ** 2 * first).sum() / first.sum().clamp(min=1)
    pull = 0.025 * torch.log(worst + 1e-16) if head_only else at_first
    loss = (weight * mse).mean() + (vb * (~wide)).mean() + pull
    return loss, at_first.detach().sqrt()


def train_mar(role, config, share, vae_path, path, work, log):
    """Train a MAR of `config` with `share` of the role's steps (the warm-up scaled with them) and save it at `path`."""
    phases = [(what, max(1, round(steps * share)), batch, peak_lr) for what, steps, batch, peak_lr in PHASES[role]]
    metadata = {"mar.kind": "mar", "mar.role": role, "mar.heads": config.heads, "mar.vae_stride": VAE_CONFIG.stride}
    if share != 1:
        metadata["mar.training"] = share
    torch.manual_seed(3)
    vae = load_vae(vae_path)
    data = token_moments(vae)
    classifier, real_accuracy = digits.train_classifier()
    model = MAR(config)
    log(f"{role} parameters {sum(p.numel() for p in model.parameters())}, classifier on held-out digits {real_accuracy:.4f}")
    state_path = os.path.join(work, stem(path) + ".state")
    ema = Ema(model, 0.9995)
    for phase, (what, total, batch, peak_lr) in enumerate(phases):
        head_only = what == "head"
        if phase > 0:
            model.load_state_dict(ema.model.state_dict())
            ema = Ema(model, 0.999 if head_only else 0.9995)
        if head_only:
            model.requires_grad_(False)
            model.head.requires_grad_(True)
        run = Run(phase, total, model, ema, head_only)
        if os.path.exists(state_path) and not run.resume(state_path):
            continue
        start, first_step, error = time.time(), run.step, 0.0
        while run.step < total:
            set_lr(run.optimizer, run.step, total, peak_lr, WARMUP * float(share))
            error += (run.train_step(data, batch) - error) * (0.02 if run.step > first_step + 1 else 1)
            if run.step % 200 == 0:
                log(f"{role} {phase} {what} {run.step} loss {run.loss:.4f} eps error at 999 {error:.5f} {time.time() - start:.0f}s")
            if run.step % 500 == 0 or run.step == total:
                run.save(state_path)
            if run.step in (500, 1000) or run.step % 2000 == 0 or run.step == total:
                save(os.path.dirname(path), stem(path), ema.model, metadata)
                result = evaluate(path, vae, classifier, work, 4, num_iter=16)
                log(f"{role} {phase} {what} {run.step} {result}")


class Run:
    """One phase of a MAR's training, with all that is needed to go on after an interruption."""

    def __init__(self, phase, total, model, ema, head_only):
        self.phase, self.total, self.model, self.ema, self.head_only = phase, total, model, ema, head_only
        self.schedule, self.step, self.loss = Schedule(1000), 0, 0.0
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, betas=(0.9, 0.98 if head_only else 0.95),
                                           weight_decay=0.0 if head_only else 0.02)

    def train_step(self, data, batch):
        """One step; returns the eps error at t = 999."""
        x0, z = make_batch(self.model, *data, batch, self.head_only)
        with torch.autocast("cpu", torch.bfloat16, enabled=not self.head_only):  # the head ends in full precision
            loss, error = head_loss(self.schedule, self.model.head, x0, z, self.head_only)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.ema.update(self.model)
        self.step, self.loss = self.step + 1, loss.item()
        return error.item()

    def save(self, path):
        torch.save({"phase": self.phase, "total": self.total, "step": self.step, "model": self.model.state_dict(), "ema_step": self.ema.step,
                    "ema": self.ema.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "random": torch.get_rng_state()}, path + ".part")
        os.replace(path + ".part", path)

    def resume(self, path):
        """Take up a saved state, if it is of this phase. False: it is of a later one, and only the averages are taken."""
        state = torch.load(path)
        if state["phase"] > self.phase:
            self.ema.model.load_state_dict(state["ema"])
            return False
        if state["phase"] == self.phase:
            if state["total"] != self.total:
                sys.exit(f"{path} is of a training of {state['total']} steps, not {self.total}; remove it to start anew")
            self.step, self.ema.step = state["step"], state["ema_step"]
            self.model.load_state_dict(state["model"])
            self.ema.model.load_state_dict(state["ema"])
            self.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"])
        return True


def make_batch(model, means, stds, labels, batch, head_only):
    """The masked tokens [N,C] of `batch` random images under one random mask ratio, and their z [N,W].

    When the head learns alone it also meets the low mask ratios of generation's last steps, and the unconditional z more
    often: guidance amplifies the errors of both.
    """
    length = model.config.seq_len
    rows, copies = torch.randint(len(labels), (batch,)), torch.randint(len(means), (batch,))
    x = means[copies, rows]
    x = x + stds[copies, rows] * torch.randn_like(x)
    ratio = MASK_RATIO.ppf(torch.rand(1).item())
    if head_only and torch.rand(1).item() < 0.5:
        ratio = torch.rand(1).item()
    masked = math.ceil(length * max(ratio, 1e-3))
    mask = torch.rand(batch, length).argsort(1) < masked
    y = model.class_embedding(labels[rows], drop=torch.rand(batch) < (0.3 if head_only else 0.1))
    with torch.autocast("cpu", torch.bfloat16):
        z = model.decode(model.encode(x, mask, y), mask)
    return x[mask], z[mask].float()


@torch.no_grad()
def evaluate(path, vae, classifier, work, per_class, num_iter=32, autocast=False):
    """Sample quality of a saved MAR: a dict, and a grid in `work`."""
    model, labels = load_mar(path), torch.arange(10).repeat(per_class)
    generator = torch.Generator().manual_seed(5)
    orders = torch.rand(len(labels), model.config.seq_len, generator=generator).argsort(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        tokens = generate(model, labels, num_iter, 2.9, "linear", 1.0, Schedule(100), orders,
                          torch_noise(model.config.token_dim, 100, generator))
    images = vae.decode_tokens(tokens)
    name = os.path.basename(path).replace(".safetensors", ".bf16.png" if autocast else ".png")
    digits.save_grid(os.path.join(work, name), images[:200], 20)
    return {**digits.judge(classifier, images, labels), "token_std": tokens.std().item(), "token_max": tokens.abs().max().item()}


# ----------------------------------------------------------------------------------------------------------- main

def flops_per_image(config, num_iter=64, steps=100):
    """Multiply-adds times two of one guided image, transformer and head, computed as the official loop does."""
    c, total = config, 0
    for before, after, _ in generation_plan(c.seq_len, num_iter, 2.9):
        visible, length = c.buffer + c.seq_len - before, c.buffer + c.seq_len
        for tokens in (visible, length):
            total += 2 * c.depth * (24 * c.width ** 2 * tokens + 4 * tokens ** 2 * c.width)
        row = 2 * (3 * c.token_dim * c.head_width + (5 * c.head_depth + 3) * c.head_width ** 2 + c.width * c.head_width)
        total += 2 * (before - after) * steps * row
    return total


def train_classifier(out, log):
    model, accuracy = digits.train_classifier()
    log(f"classifier on held-out digits {accuracy:.4f}")
    training.save(os.path.join(out, "classifier.safetensors"), digits.folded(model), {"mar.kind": "classifier"})


def report(out, channels, work, log, per_class):
    vae = load_vae(os.path.join(out, "vae.safetensors"))
    classifier, real_accuracy = digits.train_classifier()
    log(f"classifier on held-out digits {real_accuracy:.4f}")
    flops = [flops_per_image(config.with_(token_dim=channels)) for config in ROLES.values()]
    log(f"GFLOP per image: target {flops[0] / 1e9:.1f}, draft {flops[1] / 1e9:.1f}, ratio {flops[0] / flops[1]:.2f}")
    for role in ROLES:
        for autocast in (False, True):
            result = evaluate(os.path.join(out, role + ".safetensors"), vae, classifier, work, per_class, 64, autocast)
            log(f"{role} {'bfloat16' if autocast else 'float32'} {result}")


def draft_size(text):
    """A draft's configuration from "width,depth,heads,head width,head depth"."""
    sizes = [int(part) for part in text.split(",")]
    if len(sizes) != 5 or min(sizes) < 1 or sizes[0] % sizes[2]:
        raise argparse.ArgumentTypeError(f"expected five positive numbers, the width a multiple of the heads, got {text}")
    return ROLES["draft"].with_(**dict(zip(("width", "depth", "heads", "head_width", "head_depth"), sizes)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=["all", "vae", *ROLES, "classifier", "report"], default="all")
    parser.add_argument("--out", default=OUT)
    parser.add_argument("--share", type=Fraction, default=Fraction(1), help="share of a MAR's training steps, as 1/8 [1]")
    parser.add_argument("--channels", type=int, default=CHANNELS,
                        help=f"latent channels; other than {CHANNELS} need an --out of their own [{CHANNELS}]")
    parser.add_argument("--draft_size", type=draft_size, metavar="W,D,H,HW,HD", default=ROLES["draft"],
                        help="the draft's width, depth, heads, head width and head depth [32,1,1,48,1]")
    parser.add_argument("--save", help="the file of a MAR, .safetensors [target or draft in --out]")
    parser.add_argument("--work", default="build/demo", help="logs and sample grids")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--per_class", type=int, default=50, help="images per class of the report")
    args = parser.parse_args()
    other = args.share != 1 or args.draft_size != ROLES["draft"]
    if args.share <= 0:
        parser.error(f"--share must be above 0, got {args.share}")
    if args.channels < 1:
        parser.error(f"--channels must be 1 or more, got {args.channels}")
    if args.channels != CHANNELS and args.out == OUT:
        parser.error(f"models of {args.channels} channels need a folder of their own: give --out FOLDER")
    if (other or args.save) and args.stage not in ROLES:
        parser.error("--share, --draft_size and --save belong to one MAR: give --stage target or --stage draft")
    if args.draft_size != ROLES["draft"] and args.stage != "draft":
        parser.error("--draft_size belongs to --stage draft")
    if other and not args.save:
        parser.error("a MAR of another share or size needs a file of its own: give --save FILE")
    if args.save and not args.save.endswith(".safetensors"):
        parser.error(f"--save must name a .safetensors file, got {args.save}")
    path = args.save or os.path.join(args.out, f"{args.stage}.safetensors")
    torch.set_num_threads(args.threads)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    os.makedirs(args.work, exist_ok=True)

    def log(line):
        with open(os.path.join(args.work, stem(path) + ".log"), "a") as file:
            print(line, file=file)
        print(line, flush=True)

    if args.stage == "all":
        def run(*extra):
            return subprocess.Popen([sys.executable, __file__, "--out", args.out, "--work", args.work,
                                     "--channels", str(args.channels), *extra])
        if run("--stage", "vae", "--threads", "2").wait():
            sys.exit(1)
        if any([process.wait() for process in [run("--stage", role) for role in ROLES]]):
            sys.exit(1)
        train_classifier(args.out, log)
        report(args.out, args.channels, args.work, log, args.per_class)
    elif args.stage == "vae":
        train_vae(args.out, args.channels, log)
    elif args.stage == "classifier":
        train_classifier(args.out, log)
    elif args.stage == "report":
        report(args.out, args.channels, args.work, log, args.per_class)
    else:
        keep_freed_memory()
        with sdpa_kernel([SDPBackend.MATH]):  # the fused attention's backward pass is slow on a CPU in bfloat16
            config = args.draft_size if args.stage == "draft" else ROLES[args.stage]
            train_mar(args.stage, config.with_(token_dim=args.channels), args.share, os.path.join(args.out, "vae.safetensors"), path, args.work, log)


if __name__ == "__main__":
    main()
