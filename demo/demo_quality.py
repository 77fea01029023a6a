#!/usr/bin/env python3
"""Measure the demo models: does a classifier of real handwritten digits recognise what they generate?

    python3 demo/demo_quality.py --mar build/release/mar      # fresh images from the built command
    python3 demo/demo_quality.py --engine pytorch             # the same figures from tests/reference/pymar
    python3 demo/demo_quality.py --roles discrete-target,discrete-draft --cfg 2    # the models of discrete tokens
    python3 demo/demo_quality.py --roles sphere,sphere-draft                       # SphereAR

Prints, for target and draft, the accuracy of a classifier trained on the real digits (and its accuracy on held-out real
ones), the Fréchet distance in the classifier's features to all real digits (lower is better; with the distance that
as many real, jittered digits have, as a floor), and the mean distance to the nearest real digit. Needs
demo/requirements.txt.
"""

import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from PIL import Image

import digits

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "reference"))

from pymar import (Schedule, generate, generate_codes, generate_sphere, load_gpt, load_mar, load_sphere,  # noqa: E402
                   load_vae, load_vq, torch_noise)

CLASSES = list(range(10))


def is_discrete(role):
    return role.startswith("discrete-")


def is_sphere(role):
    return role.startswith("sphere")


def decoder_of(role):
    """The file of a role's image decoder, a part of the target's for SphereAR."""
    return "discrete-vq" if is_discrete(role) else "sphere" if is_sphere(role) else "vae"


def from_command(args, role, folder):
    """Run `mar generate`; returns images [N,3,32,32] in [-1,1] and the classes that the files name."""
    command = [args.mar, "generate", "--model", os.path.join(args.weights, f"{role}.safetensors"),
               "--vae", os.path.join(args.weights, f"{decoder_of(role)}.safetensors"), "--class", ",".join(map(str, CLASSES)),
               "--num", str(args.num), "--seed", str(args.seed), "--cfg", str(args.cfg),
               "--temperature", str(args.temperature), "--out", folder]
    if not is_discrete(role):
        command += ["--num_sampling_steps", str(args.num_sampling_steps), "--cfg_schedule", "linear"]
    if not is_discrete(role) and not is_sphere(role):
        command += ["--num_iter", str(args.num_iter)]
    command += args.extra
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    images, labels = [], []
    for path in sorted(glob.glob(os.path.join(folder, "*.png"))):
        with Image.open(path) as image:
            labels.append(int(image.text["class"]))
            images.append(np.asarray(image.convert("RGB")))
    if len(images) != args.num * len(CLASSES):
        sys.exit(f"{folder}: {len(images)} images, expected {args.num * len(CLASSES)}")
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float()
    return pixels / 127.5 - 1, torch.tensor(labels)


def from_pytorch(args, role, folder):
    labels = torch.tensor(CLASSES).repeat_interleave(args.num)
    generator = torch.Generator().manual_seed(args.seed)
    path = os.path.join(args.weights, f"{role}.safetensors")
    if is_discrete(role):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            codes = generate_codes(load_gpt(path), labels, args.cfg, args.temperature, generator=generator)
        with torch.no_grad():
            return load_vq(os.path.join(args.weights, "discrete-vq.safetensors")).decode_codes(codes), labels
    if is_sphere(role):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            tokens = generate_sphere(load_sphere(path), labels, args.cfg, args.num_sampling_steps, generator=generator)
        with torch.no_grad():
            return load_sphere(os.path.join(args.weights, "sphere.safetensors")).vae.decode(tokens), labels
    model = load_mar(path)
    vae = load_vae(os.path.join(args.weights, "vae.safetensors"))
    orders = torch.rand(len(labels), model.config.seq_len, generator=generator).argsort(1)
    noise = torch_noise(model.config.token_dim, args.num_sampling_steps, generator)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
        tokens = generate(model, labels, args.num_iter, args.cfg, "linear", args.temperature,
                          Schedule(args.num_sampling_steps), orders, noise)
    with torch.no_grad():
        return vae.decode_tokens(tokens), labels


def real_floor(classifier, count, seed):
    """What `judge` says of `count` real digits, jittered as in training."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = digits.load_images()
    rows = torch.randperm(len(images), generator=generator)[:count]
    return digits.judge(classifier, digits.jitter(images[rows], generator), labels[rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["command", "pytorch"], default="command")
    parser.add_argument("--mar", default="build/mar", help="the built command")
    parser.add_argument("--weights", default="weights/demo")
    parser.add_argument("--roles", default="target,draft")
    parser.add_argument("--num", type=int, default=50, help="images per class")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num_iter", type=int, default=64)
    parser.add_argument("--num_sampling_steps", type=int, default=100)
    parser.add_argument("--cfg", type=float, default=2.9)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--bf16", action="store_true", help="pytorch engine: bfloat16 products")
    parser.add_argument("--grid", help="write a grid of each role's images to FILE.<role>.png")
    parser.add_argument("--json", action="store_true", help="also print one JSON line")
    parser.add_argument("extra", nargs="*", help="after --: further options of `mar generate`")
    args = parser.parse_args()

    make = from_command if args.engine == "command" else from_pytorch
    if args.engine == "command" and not os.access(args.mar, os.X_OK):
        sys.exit(f"{args.mar}: no such program; build it, name it with --mar, or use --engine pytorch")
    classifier, held_out = digits.train_classifier()
    results = {"real": {"held_out_accuracy": held_out, **real_floor(classifier, args.num * len(CLASSES), args.seed)}}
    for role in args.roles.split(","):
        with tempfile.TemporaryDirectory() as folder:
            images, labels = make(args, role, folder)
        results[role] = digits.judge(classifier, images, labels)
        if args.grid:
            order = torch.arange(len(images)).view(len(CLASSES), -1).t().flatten()  # a row: one image of each class, twice
            digits.save_grid(f"{args.grid}.{role}.png", images[order][:200], 20)
    print(f"classifier on held-out real digits: {held_out:.2%}")
    for name, result in results.items():
        print(f"{name:15s} accuracy {result['accuracy']:.2%}  Fréchet {result['frechet']:.3f}  nearest real {result['nearest']:.2f}")
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
