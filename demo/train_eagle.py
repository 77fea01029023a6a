#!/usr/bin/env python3
"""Train an EAGLE drafter (Li et al. 2024) for a class-conditional LlamaGen model: one layer that predicts the model's next
feature, what its output layer is given, from its last feature and the token drawn from that.

    python3 demo/train_eagle.py --target c2i_B_256.pt --codes imagenet256_codes --out eagle_B_256.safetensors --device cuda
    python3 demo/train_eagle.py --target weights/demo/discrete-target.safetensors --codes build/demo-discrete/codes.npz \\
        --out weights/demo/discrete-eagle.safetensors

Inputs:
  --target  a checkpoint of LlamaGen (.pt), or safetensors with its tensor names. --heads and --seq_len where neither the file's
            metadata (mar.heads, mar.seq_len) nor the official sizes say.
  --codes   images as the model's tokens. FILE.npz with `codes` integer [N, seq_len] and `labels` integer [N]. Or a folder as
            LlamaGen's extract_codes_c2i.py writes them: NAME_codes with 0.npy, 1.npy, ... of [1, augmentations, seq_len], and
            beside it NAME_labels with files of the same names, of [1].

Output, --out: safetensors with, for D the model's width and H its hidden size,
  eagle.fc.weight [D, 2D]                                      applied to (token's embedding, feature of the position before)
  eagle.layers.0.attention_norm.weight [D]                     RMSNorm of what fc gives, as in the model's own layers
  eagle.layers.0.attention.{wqkv [3D, D], wo [D, D]}.weight    causal; a position has its token's rotary turn
  eagle.layers.0.ffn_norm.weight [D]
  eagle.layers.0.feed_forward.{w1 [H, D], w3 [H, D], w2 [D, H]}.weight
The layer's output stands for the feature of the token's own position: the model's output layer makes logits of it. Embeddings
and output layer are the model's. EAGLE's own layer has no first norm; this one is a layer of LlamaGen as it is.

The loss is EAGLE's: smooth L1 between predicted and true features, plus 0.1 times the cross entropy between the laws that the
output layer makes of both; uniform noise is added to the features it is given. In --unconditional of the images the class is
dropped, since guidance drafts under both conditions. One image in 20 is held out; of these the log gives the acceptance of
the first draft and of the second and third, for which the drafter is given what it predicted itself.
"""

import argparse
import glob
import os
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

from training import Ema, keep_freed_memory, logger, optimise, save, set_lr, transformer_optimizers

from pymar import Eagle, load_gpt

HELD_OUT = 20  # every twentieth image


class FolderCodes:
    """LlamaGen's folders: an image's codes are read when it is drawn, with one of its augmentations."""

    def __init__(self, folder):
        folder = folder.rstrip("/")
        if not folder.endswith("_codes"):
            sys.exit(f"{folder}: expected a folder NAME_codes with NAME_labels beside it, or a file .npz")
        self.files = sorted(glob.glob(os.path.join(folder, "*.npy")))
        self.labels = folder[:-len("codes")] + "labels"
        if not self.files:
            sys.exit(f"{folder}: no .npy files")

    def __len__(self):
        return len(self.files)

    def __getitem__(self, rows):
        codes, labels = [], []
        for row in rows.tolist():
            stored = np.load(self.files[row]).astype(np.int64)
            stored = stored.reshape(-1, stored.shape[-1])
            codes.append(torch.from_numpy(stored[torch.randint(len(stored), (1,)).item()]))
            label = np.load(os.path.join(self.labels, os.path.basename(self.files[row])))
            labels.append(int(label.reshape(-1)[0]))
        return torch.stack(codes), torch.tensor(labels)


class ArrayCodes:
    """A .npz of codes [N,L] and labels [N]."""

    def __init__(self, path):
        with np.load(path) as data:
            if "codes" not in data or "labels" not in data:
                sys.exit(f"{path}: expected arrays codes and labels, found {', '.join(data)}")
            self.codes, self.labels = (torch.from_numpy(data[name].astype(np.int64)) for name in ("codes", "labels"))

    def __len__(self):
        return len(self.codes)

    def __getitem__(self, rows):
        return self.codes[rows], self.labels[rows]


def eagle_loss(target, eagle, labels, codes, args):
    """The loss of predicting features 1..L-1 from tokens 0..L-2 and features 0..L-2, of both kinds."""
    with torch.no_grad():
        features = target.features(labels, codes[:, :-1])
        law = target.output(features[:, 1:]).float().softmax(-1)
    noise = (torch.rand_like(features) * 2 - 1) * args.noise
    predicted, _ = eagle(target.tok_embeddings(codes[:, :-1]), (features + noise)[:, :-1])
    feature_loss = F.smooth_l1_loss(predicted.float(), features[:, 1:].float())
    token_loss = -(law * target.output(predicted).float().log_softmax(-1)).sum(-1).mean()
    return feature_loss, token_loss


@torch.no_grad()
def acceptance(target, eagle, labels, codes, depth=3):
    """1 - TV between the target's distribution and the drafter's, for the first `depth` drafts behind every prefix."""
    features = target.features(labels, codes[:, :-1])
    embedded, law = target.tok_embeddings(codes[:, :-1]), target.output(features).float().softmax(-1)
    given, result = features[:, :-1], []
    for level in range(depth):
        # A draft at this depth sees the drafter's own features of the last `level` positions. To have all prefixes in one
        # pass they are taken from a pass whose earlier positions are as deep, which is a little harder than drafting.
        predicted, _ = eagle(embedded, given)
        drafted = target.output(predicted).float().softmax(-1)
        result.append(torch.minimum(drafted, law[:, 1:])[:, level:].sum(-1).mean().item())
        given = torch.cat([features[:, :1], predicted[:, :-1]], 1)
    return result


def train(target, data, args, log):
    torch.manual_seed(args.seed)
    device, config = torch.device(args.device), target.config
    target = target.to(device).requires_grad_(False)
    target.rotary = tuple(table.to(device) for table in target.rotary)
    eagle = Eagle(config).to(device)
    eagle.rotary = target.rotary
    held = torch.arange(len(data)) % HELD_OUT == 0
    rows, held = (~held).nonzero()[:, 0], held.nonzero()[:256, 0]
    held_codes, held_labels = (part.to(device) for part in data[held])
    optimizers = transformer_optimizers(eagle, 0.01)
    ema, start = Ema(eagle, 0.99), time.time()
    for step in range(args.steps):
        for optimizer in optimizers:
            set_lr(optimizer, step, args.steps, args.lr, min(args.warmup, max(1, args.steps // 2)))
        codes, labels = (part.to(device) for part in data[rows[torch.randint(len(rows), (args.batch,))]])
        labels = torch.where(torch.rand(args.batch, device=device) < args.unconditional, config.classes, labels)
        with torch.autocast(device.type, torch.bfloat16):
            feature_loss, token_loss = eagle_loss(target, eagle, labels, codes, args)
        optimise(optimizers, eagle, args.feature_weight * feature_loss + args.token_weight * token_loss)
        ema.update(eagle)
        if step % 200 == 0 or step == args.steps - 1:
            rates = ", ".join(f"{rate:.3f}" for rate in acceptance(target, ema.model, held_labels, held_codes))
            log(f"eagle {step} features {feature_loss.item():.4f} tokens {token_loss.item():.4f} acceptance held-out {rates} "
                f"{time.time() - start:.0f}s")
    return ema.model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--codes", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--heads", type=int, help="attention heads of the target, where its file does not say")
    parser.add_argument("--seq_len", type=int, help="tokens of an image, where the target's file does not say [256]")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--warmup", type=int, default=50, help="steps")
    parser.add_argument("--noise", type=float, default=0.1, help="half the width of the noise on features")
    parser.add_argument("--feature_weight", type=float, default=1.0)
    parser.add_argument("--token_weight", type=float, default=0.1)
    parser.add_argument("--unconditional", type=float, default=0.3, help="share of images whose class is dropped")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--work", default="build/demo-discrete", help="the log")
    args = parser.parse_args()
    if not args.out.endswith(".safetensors"):
        parser.error(f"--out must name a .safetensors file, got {args.out}")
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    target = load_gpt(args.target, heads=args.heads, seq_len=args.seq_len)
    data = ArrayCodes(args.codes) if args.codes.endswith(".npz") else FolderCodes(args.codes)
    codes, labels = data[torch.arange(min(len(data), 64))]
    config = target.config
    if codes.shape[1] != config.seq_len or codes.max() >= config.vocabulary or labels.max() >= config.classes:
        sys.exit(f"{args.codes}: codes of {codes.shape[1]} tokens up to {codes.max()} and labels up to {labels.max()} do not fit "
                 f"{args.target}, which has {config.seq_len} tokens of {config.vocabulary} and {config.classes} classes")
    eagle = train(target, data, args, logger(args.work, "eagle"))
    metadata = {"mar.kind": "eagle", "mar.heads": config.heads, "mar.seq_len": config.seq_len}
    tensors = {f"eagle.{name}": tensor for name, tensor in eagle.state_dict().items()}
    save(args.out, tensors, metadata, torch.bfloat16)


if __name__ == "__main__":
    main()
