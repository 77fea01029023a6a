#!/usr/bin/env python3
r"""Train the discrete demo bundle: a small VQ tokenizer and two LlamaGen transformers, target and draft, on handwritten
digits.

Data: as demo/train_demo.py. The architectures are LlamaGen's (Sun et al. 2024) at a small size, so the files exercise every
code path of the real checkpoints.

    python3 demo/train_discrete.py --out weights/demo --work build/demo-discrete

Stages: vq, codes (of jittered copies of all digits, codes.npz), target, draft; then demo/train_eagle.py trains the EAGLE
drafter, and `report` judges what target and draft generate. Seeds are fixed; the result depends on the PyTorch build only.
"""

import argparse
import os
import subprocess
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

import digits
from training import Ema, keep_freed_memory, logger, optimise, save, set_lr, transformer_optimizers

from pymar import GPT, VQ, GptConfig, VqConfig, generate_codes, load_gpt, load_vq

VQ_CONFIG = VqConfig(ch=32, ch_mult=(1, 1, 2), num_res_blocks=1, z_channels=32, codebook=256)
VQ_STEPS, VQ_BATCH = 800, 32
COPIES = 16  # jittered copies of the data set that the transformers see
SHARED = dict(vocabulary=256, seq_len=64, classes=10, dropout=0.1)
ROLES = {
    "target": GptConfig(width=128, depth=6, heads=4, hidden=256, **SHARED),
    "draft": GptConfig(width=64, depth=2, heads=2, hidden=128, **SHARED),
}
TRAINING = {"target": (700, 64, 1e-2), "draft": (600, 64, 1e-2)}  # steps, images a step, peak learning rate
WARMUP = 50  # steps
CLASS_DROPOUT = 0.1


# ------------------------------------------------------------------------------------------------------ tokenizer

@torch.no_grad()
def restart(quantize, used, z, distance):
    """Puts rows of the codebook that no encoding has used in a while where encodings are that the codebook misses."""
    dead = (used < 0.5).nonzero()[:, 0]
    if len(dead) == 0:
        return 0
    rows = torch.multinomial(distance + 1e-8, len(dead))
    quantize.embedding.weight[dead] = z[rows]
    used[dead] = 2.0
    return len(dead)


def train_vq(path, decoder_path, log):
    """Writes the whole tokenizer at `path`, and what generation needs, decoder and codebook, at decoder_path."""
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    images, _, held, labels = digits.split(*digits.load_images())
    vq = VQ(VQ_CONFIG)
    optimizer = torch.optim.AdamW(vq.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01)
    ema, start, used = Ema(vq, 0.99), time.time(), torch.zeros(VQ_CONFIG.codebook)
    for step in range(VQ_STEPS):
        set_lr(optimizer, step, VQ_STEPS, 2e-3, 100)
        batch = digits.jitter(images[torch.randint(len(images), (VQ_BATCH,), generator=generator)], generator, 10, 0.08, 0.1)
        batch = batch.expand(-1, 3, -1, -1)
        with torch.autocast("cpu", torch.bfloat16):
            h = vq.quant_conv(vq.encoder(batch)).float()
        codes, rows, z = vq.quantize(h)
        with torch.autocast("cpu", torch.bfloat16):
            decoded = vq.decode(z + (rows - z).detach()).float()
        distance = (rows.detach() - z).square().sum(-1)
        codebook_loss = F.mse_loss(rows, z.detach()) + 0.25 * F.mse_loss(z, rows.detach())
        mse = F.mse_loss(decoded, batch)
        optimise([optimizer], vq, mse + 0.2 * F.l1_loss(decoded, batch) + codebook_loss)
        ema.update(vq)
        used.mul_(0.98).add_(torch.bincount(codes.flatten(), minlength=len(used)))
        if step % 20 == 19 and step < VQ_STEPS // 2:
            restart(vq.quantize, used, z.detach().flatten(0, 1), distance.detach().flatten())
            ema.model.quantize.load_state_dict(vq.quantize.state_dict())
        if step % 100 == 0 or step == VQ_STEPS - 1:
            log(f"vq {step} mse {mse:.5f} code distance {distance.mean():.4f} codes in the batch {codes.unique().numel()} "
                f"{time.time() - start:.0f}s")
    vq = ema.model
    vq.quantize.embedding.weight.copy_(vq.quantize.codebook())
    metadata = {"mar.kind": "vq", "mar.vae_stride": VQ_CONFIG.stride}
    save(path, vq.state_dict(), metadata, torch.float32)
    decoder = {name: tensor for name, tensor in vq.state_dict().items() if not name.startswith(("encoder.", "quant_conv."))}
    save(decoder_path, decoder, metadata)
    judge_vq(vq, held, labels, path.replace(".safetensors", ".png"), log)


def judge_vq(vq, images, labels, grid, log):
    """Logs how well images that it was not trained on come back, and shows some, above their reconstructions, in `grid`."""
    classifier, real = digits.train_classifier()
    with torch.no_grad():
        codes, rows, _ = vq.encode(images.expand(-1, 3, -1, -1))
        decoded = vq.decode(rows).mean(1, keepdim=True)
        recognised = (classifier(decoded.clamp(-1, 1)).argmax(1) == labels).float().mean()
    share = torch.bincount(codes.flatten(), minlength=VQ_CONFIG.codebook) / codes.numel()
    perplexity = torch.exp(-(share * (share + 1e-12).log()).sum())
    log(f"vq held-out mse {F.mse_loss(decoded, images):.5f}, codes used {(share > 0).sum()} of {VQ_CONFIG.codebook}, perplexity "
        f"{perplexity:.0f}, decoded held-out digits recognised {recognised:.4f} (real {real:.4f})")
    digits.save_grid(grid, torch.cat([images[:60], decoded[:60]]), 20)


@torch.no_grad()
def extract_codes(vq, path, log):
    """Writes codes [COPIES * 1797, 64] and labels of jittered copies of all digits; the first copy is the digits themselves."""
    generator, start = torch.Generator().manual_seed(2), time.time()
    images, labels = digits.load_images()
    codes = []
    for copy_index in range(COPIES):
        batch = images if copy_index == 0 else digits.jitter(images, generator, 4, 0.03, 0.04)
        codes += [vq.encode(part.expand(-1, 3, -1, -1))[0] for part in batch.split(128)]
    codes = torch.cat(codes)
    np.savez_compressed(path, codes=codes.numpy().astype(np.uint16), labels=labels.repeat(COPIES).numpy().astype(np.uint16))
    log(f"codes {list(codes.shape)}, {codes.unique().numel()} of {VQ_CONFIG.codebook} used, {time.time() - start:.0f}s")


# --------------------------------------------------------------------------------------------------- transformers

def train_gpt(role, codes_path, path, log):
    config, (steps, batch, peak_lr) = ROLES[role], TRAINING[role]
    torch.manual_seed(3)
    data = np.load(codes_path)
    codes, labels = (torch.from_numpy(data[name].astype(np.int64)) for name in ("codes", "labels"))
    model = GPT(config)
    optimizers = transformer_optimizers(model, 0.05)
    ema, start, mean = Ema(model, 0.99), time.time(), 0.0
    log(f"{role} parameters {sum(p.numel() for p in model.parameters())}")
    for step in range(steps):
        for optimizer in optimizers:
            set_lr(optimizer, step, steps, peak_lr, WARMUP)
        rows = torch.randint(len(codes), (batch,))
        y = torch.where(torch.rand(batch) < CLASS_DROPOUT, config.classes, labels[rows])
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(y, codes[rows, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), codes[rows].flatten())
        optimise(optimizers, model, loss)
        ema.update(model)
        mean += (loss.item() - mean) * (0.02 if step else 1)
        if step % 100 == 0 or step == steps - 1:
            log(f"{role} {step} loss {mean:.4f} {time.time() - start:.0f}s")
    metadata = {"mar.kind": "llamagen", "mar.role": role, "mar.heads": config.heads, "mar.seq_len": config.seq_len,
                "mar.vae_stride": VQ_CONFIG.stride}
    save(path, ema.model.state_dict(), metadata, torch.bfloat16)


@torch.no_grad()
def evaluate(path, vq, classifier, work, per_class, cfg, seed=5):
    """Sample quality of a saved transformer: a dict, and a grid in `work`."""
    labels = torch.arange(10).repeat(per_class)
    codes = generate_codes(load_gpt(path), labels, cfg, generator=torch.Generator().manual_seed(seed))
    images = vq.decode_codes(codes)
    name = os.path.basename(path).replace(".safetensors", f".cfg{cfg:g}.png")
    digits.save_grid(os.path.join(work, name), images[:200], 20)
    return digits.judge(classifier, images, labels)


def report(out, vq, work, log, per_class, scales):
    classifier, real_accuracy = digits.train_classifier()
    log(f"classifier on held-out digits {real_accuracy:.4f}")
    for role in ROLES:
        for cfg in scales:
            start = time.time()
            result = evaluate(os.path.join(out, f"discrete-{role}.safetensors"), vq, classifier, work, per_class, cfg)
            log(f"{role} cfg {cfg:g} {result} {time.time() - start:.0f}s")


# ----------------------------------------------------------------------------------------------------------- main

def run_all(args):
    """Every stage in a process of its own; the draft is trained beside the target."""
    def run(*command):
        return subprocess.Popen([sys.executable, *command])
    def stage(name):
        return run(__file__, "--out", args.out, "--work", args.work, "--stage", name, "--per_class", str(args.per_class))
    eagle = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_eagle.py"),
             "--target", os.path.join(args.out, "discrete-target.safetensors"), "--codes", os.path.join(args.work, "codes.npz"),
             "--out", os.path.join(args.out, "discrete-eagle.safetensors")]
    for processes in (lambda: [stage("vq")], lambda: [stage("codes")], lambda: [stage("target"), stage("draft")],
                      lambda: [run(*eagle)], lambda: [stage("report")]):
        if any([process.wait() for process in processes()]):
            sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=["all", "vq", "codes", *ROLES, "report"], default="all")
    parser.add_argument("--out", default="weights/demo")
    parser.add_argument("--work", default="build/demo-discrete", help="the whole tokenizer, codes, logs and sample grids")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--per_class", type=int, default=50, help="images per class of the report")
    parser.add_argument("--cfg", default="1.5,2,3,4", help="guidance scales of the report")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    os.makedirs(args.out, exist_ok=True)
    vq_path, codes_path = (os.path.join(args.work, name) for name in ("vq.safetensors", "codes.npz"))
    log = logger(args.work, args.stage)
    if args.stage == "all":
        run_all(args)
    elif args.stage == "vq":
        train_vq(vq_path, os.path.join(args.out, "discrete-vq.safetensors"), log)
    elif args.stage == "codes":
        extract_codes(load_vq(vq_path), codes_path, log)
    elif args.stage == "report":
        report(args.out, load_vq(vq_path), args.work, log, args.per_class, [float(cfg) for cfg in args.cfg.split(",")])
    else:
        train_gpt(args.stage, codes_path, os.path.join(args.out, f"discrete-{args.stage}.safetensors"), log)


if __name__ == "__main__":
    main()
