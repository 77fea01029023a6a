#!/usr/bin/env python3
"""What PyTorch needs for one image of full-size MAR on this machine: the yardstick of `mar bench`.

    python3 bench/pytorch_mar.py --arch mar_base --threads 16 --json

Runs the official generation loop (64 autoregressive steps, 100 diffusion steps, guidance 2.9, KL-16 decoder) with random
weights, made as tools/random_checkpoint.py makes them, and prints seconds per image, split into encoder, decoder, head
and VAE. Configurations (--configs, comma-separated):

    f32-eager, f32-compile     float32
    amp-eager, amp-compile     bfloat16 autocast with its weight cache on for a whole image
    bf16-eager, bf16-compile   weights converted to bfloat16 once; states of the chain stay float32

Compiled: the transformer stacks, and the head together with its chain step as one function. Compilation happens in
warm-up images, which are not counted.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))

import torch  # noqa: E402

from pymar import ARCHS, Schedule, generate, torch_noise  # noqa: E402
from random_checkpoint import random_mar, random_vae  # noqa: E402

CONFIGS = [f"{precision}-{mode}" for precision in ("f32", "amp", "bf16") for mode in ("eager", "compile")]


class Stopwatch:
    """Wraps functions and adds up the time spent in them, by name."""

    def __init__(self, device):
        self.seconds, self.device = {}, device

    def now(self):
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    def wrap(self, name, function):
        def timed(*args, **kwargs):
            start = self.now()
            result = function(*args, **kwargs)
            self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - start
            return result
        return timed


def chain_step(head, x, t, z, scale, table, noise, dtype):
    """One step of the chain with guidance. x, noise [N,C]; t [N]; z [2N,W]; scale []; table [6]: the step's constants."""
    eps, v = head.guided(x.to(dtype), t, z, scale).float().chunk(2, dim=-1)
    x0 = table[0] * x - table[1] * eps
    fraction = (v + 1) / 2
    log_var = fraction * table[4] + (1 - fraction) * table[5]
    return table[2] * x0 + table[3] * x + torch.exp(0.5 * log_var) * noise


def make_chain(step, dtype):
    """A replacement of pymar.sample_tokens around `step` (eager or compiled)."""
    def chain(model, schedule, z, scale, x_T, noise, temperature):
        tables = torch.stack([schedule.x0_from_x, schedule.x0_from_eps, schedule.mean_from_x0, schedule.mean_from_x,
                              schedule.log_var_max, schedule.log_var_min], dim=1)
        noise = noise * temperature
        noise[0] = 0  # the last step adds none
        scale, x = torch.tensor(scale, device=z.device, dtype=dtype), x_T
        for i in reversed(range(schedule.steps)):
            x = step(model.head, x, schedule.t[i].expand(len(x)), z, scale, tables[i], noise[i], dtype)
        return x
    return chain


def measure(config, mar, vae, args):
    """Seconds per image of one configuration: {"total", "encoder", "decoder", "head", "vae"}, medians over args.images."""
    precision, mode = config.split("-")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    mar, vae = mar.to(dtype), vae.to(dtype)
    schedule = Schedule(args.steps, device=args.device)
    watch = Stopwatch(args.device)
    step, vae_decode = chain_step, vae.decode_tokens
    if mode == "compile":
        torch._dynamo.reset()
        mar.encoder_stack = torch.compile(type(mar).encoder_stack.__get__(mar), dynamic=True)
        mar.decoder_stack = torch.compile(type(mar).decoder_stack.__get__(mar))
        step = torch.compile(chain_step, dynamic=True)
        vae_decode = torch.compile(vae_decode)
    mar.encode = watch.wrap("encoder", type(mar).encode.__get__(mar))
    mar.decode = watch.wrap("decoder", type(mar).decode.__get__(mar))
    chain = watch.wrap("head", make_chain(step, dtype))
    vae_decode = watch.wrap("vae", vae_decode)

    def image(seed, num_iter):
        # The noise and the order are drawn on the CPU, outside the clock.
        generator = torch.Generator().manual_seed(seed)
        length = mar.config.seq_len
        order = torch.rand(1, length, generator=generator).argsort(1).to(args.device)
        draw = torch_noise(mar.config.token_dim, args.steps, generator)

        def noise_fn(*where):
            return tuple(part.to(args.device) for part in draw(*where))
        autocast = torch.autocast(args.device, torch.bfloat16) if precision == "amp" else contextlib.nullcontext()
        with torch.no_grad(), autocast:
            label = torch.tensor([207], device=args.device)
            tokens = generate(mar, label, num_iter, args.cfg, "linear", 1.0, schedule, order, noise_fn, chain=chain)
            pixels = vae_decode(tokens.to(dtype))
        if not torch.isfinite(pixels).all():
            sys.exit(f"{config}: the image is not finite")

    runs = []
    for index in range(args.warmup + args.images):
        watch.seconds.clear()
        start = watch.now()
        warming = index < args.warmup and mode == "eager"  # nothing to compile: a short one will do
        image(index, min(args.num_iter, 4) if warming else args.num_iter)
        runs.append({"total": watch.now() - start, **watch.seconds})
        print(f"{config} image {index}{' (warm-up)' if index < args.warmup else ''}: {runs[-1]['total']:.3f} s", file=sys.stderr)
    for name in ("encode", "decode", "encoder_stack", "decoder_stack"):
        mar.__dict__.pop(name, None)
    return {part: statistics.median(run[part] for run in runs[args.warmup:]) for part in runs[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=list(ARCHS), default="mar_base")
    parser.add_argument("--num_iter", type=int, default=64)
    parser.add_argument("--steps", "--num_sampling_steps", type=int, default=100)
    parser.add_argument("--cfg", type=float, default=2.9)
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's choice")
    parser.add_argument("--configs", default=",".join(CONFIGS))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--images", type=int, default=1, help="measured images per configuration; the median is printed")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="also print one JSON line")
    args = parser.parse_args()
    configs = args.configs.split(",")
    for config in configs:
        if config not in CONFIGS:
            parser.error(f"unknown configuration {config}; known: {', '.join(CONFIGS)}")
    if args.cfg == 1.0:
        parser.error("this benchmark is of guided generation: --cfg must not be 1")
    if args.threads:
        torch.set_num_threads(args.threads)

    print(f"PyTorch {torch.__version__}, {args.device}, {torch.get_num_threads()} threads, {args.arch}, "
          f"{args.num_iter} AR steps, {args.steps} diffusion steps, cfg {args.cfg}")
    print(f"{'seconds per image':17s} {'total':>9s} {'encoder':>9s} {'decoder':>9s} {'head':>9s} {'vae':>9s}")
    results = {}
    for config in configs:
        mar, vae = random_mar(args.arch).to(args.device), random_vae().to(args.device)  # anew: bf16 rounds them
        results[config] = r = measure(config, mar, vae, args)
        print(f"{config:17s} " + " ".join(f"{r[part]:9.3f}" for part in ("total", "encoder", "decoder", "head", "vae")), flush=True)
    if args.json:
        print(json.dumps({"torch": torch.__version__, "device": args.device, "threads": torch.get_num_threads(),
                          "arch": args.arch, "num_iter": args.num_iter, "steps": args.steps, "cfg": args.cfg, "seconds": results}))


if __name__ == "__main__":
    main()
