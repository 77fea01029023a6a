#!/usr/bin/env python3
"""What PyTorch needs for images of full-size MAR on this machine: the yardstick of `mar bench`.

    python3 bench/pytorch_mar.py --arch mar_base --threads 16 --json
    python3 bench/pytorch_mar.py --arch mar_base --device cuda --batch 8 --configs bf16-eager,bf16-compile,bf16-graphs
    python3 bench/pytorch_mar.py --source mar --configs f32-official,amp-official

Runs the official generation loop (64 autoregressive steps, 100 diffusion steps, guidance 2.9, KL-16 decoder) with random
weights, made as tools/dev/random_checkpoint.py makes them, and prints seconds per image, split into encoder, decoder, head
and VAE. Configurations (--configs, comma-separated):

    f32-eager, f32-compile     float32
    amp-eager, amp-compile     bfloat16 autocast with its weight cache on for a whole image
    bf16-eager, bf16-compile   weights converted to bfloat16 once; states of the chain stay float32
    f32-graphs, bf16-graphs    compiled, and the stacks and the whole chain recorded as CUDA graphs, one for each shape
    f32-official, amp-official the code of --source, a clone of github.com/LTH14/mar, as it is (needs timm and scipy)

Compiled: the transformer stacks, and the head together with its chain step as one function. Compilation and recording
happen in warm-up batches, which are not counted.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path[:0] = [os.path.join(ROOT, "tests/reference"), os.path.join(ROOT, "tools/dev")]

import torch  # noqa: E402

from pymar import ARCHS, Schedule, generate  # noqa: E402
from random_checkpoint import random_mar, random_vae  # noqa: E402

CONFIGS = [f"{precision}-{mode}" for precision in ("f32", "amp", "bf16") for mode in ("eager", "compile")]
GRAPHS = ["f32-graphs", "bf16-graphs"]
OFFICIAL = ["f32-official", "amp-official"]
OFFICIAL_HEADS = {"mar_base": {"diffloss_d": 6, "diffloss_w": 1024}, "mar_large": {"diffloss_d": 8, "diffloss_w": 1280},
                  "mar_huge": {"diffloss_d": 12, "diffloss_w": 1536}}  # README of the official code


class Graphed:
    """A function of tensors recorded as a CUDA graph for each set of shapes."""

    pool = None  # all graphs share their memory: what one returns is copied before the next one runs

    def __init__(self, function):
        self.function, self.recorded = function, {}

    def record(self, arguments):
        inputs = [a.clone() for a in arguments]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.function(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        Graphed.pool = Graphed.pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=Graphed.pool):
            output = self.function(*inputs)
        return graph, inputs, output

    def __call__(self, *arguments):
        key = tuple(tuple(a.shape) for a in arguments)
        if key not in self.recorded:
            self.recorded[key] = self.record(arguments)
        graph, inputs, output = self.recorded[key]
        for kept, given in zip(inputs, arguments):
            kept.copy_(given)
        graph.replay()
        return output.clone()


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


def make_chain(step, dtype, model, schedule, graphs):
    """A replacement of pymar.sample_tokens around `step` (eager or compiled)."""
    tables = torch.stack([schedule.x0_from_x, schedule.x0_from_eps, schedule.mean_from_x0, schedule.mean_from_x,
                          schedule.log_var_max, schedule.log_var_min], dim=1)

    def steps(z, scale, x, noise):
        for i in reversed(range(schedule.steps)):
            x = step(model.head, x, schedule.t[i].expand(len(x)), z, scale, tables[i], noise[i], dtype)
        return x
    run = Graphed(steps) if graphs else steps

    def chain(_model, _schedule, z, scale, x_T, noise, temperature):
        noise = noise * temperature
        noise[0] = 0  # the last step adds none
        return run(z, torch.tensor(scale, device=z.device, dtype=dtype), x_T, noise)
    return chain


def autocast(config, args):
    return torch.autocast(args.device, torch.bfloat16) if config.startswith("amp") else contextlib.nullcontext()


def official(config, args):
    """The same of the code of --source, which moves its tensors to CUDA itself: on a CPU, .cuda() is made to leave them there."""
    sys.path.insert(0, args.source)
    from models import mar as models  # noqa: E402
    from models.vae import AutoencoderKL  # noqa: E402
    if args.device == "cpu":
        torch.Tensor.cuda = lambda tensor, *_: tensor
    torch.manual_seed(0)
    mar = getattr(models, args.arch)(num_sampling_steps=str(args.steps), **OFFICIAL_HEADS[args.arch])
    vae, watch = AutoencoderKL(embed_dim=16, ch_mult=(1, 1, 2, 2, 4)), Stopwatch(args.device)
    for model in (mar, vae):
        model.to(args.device).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
    mar.forward_mae_encoder = watch.wrap("encoder", mar.forward_mae_encoder)
    mar.forward_mae_decoder = watch.wrap("decoder", mar.forward_mae_decoder)
    mar.diffloss.sample, decode = watch.wrap("head", mar.diffloss.sample), watch.wrap("vae", vae.decode)

    def images(_seed, num_iter):
        with torch.no_grad(), autocast(config, args):
            label = torch.full((args.batch,), 207, device=args.device)
            decode(mar.sample_tokens(args.batch, num_iter, args.cfg, "linear", label) / 0.2325)
    return medians(config, images, watch, args.warmup > 0, args)


def medians(config, images, watch, short, args):
    """Seconds per image, {"total", and the watch's}, medians over the batches. short: warm-up batches have few steps."""
    runs = []
    for index in range(args.warmup + args.images):
        watch.seconds.clear()
        start = watch.now()
        images(index, min(args.num_iter, 4) if index < args.warmup and short else args.num_iter)
        runs.append({"total": watch.now() - start, **watch.seconds})
        print(f"{config} batch {index}{' (warm-up)' if index < args.warmup else ''}: {runs[-1]['total']:.3f} s", file=sys.stderr)
    return {part: statistics.median(run[part] for run in runs[args.warmup:]) / args.batch for part in runs[0]}


def measure(config, mar, vae, args):
    """Seconds per image of one configuration: {"total", "encoder", "decoder", "head", "vae"}, medians over the batches."""
    precision, mode = config.split("-")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    mar, vae = mar.to(dtype), vae.to(dtype)
    schedule = Schedule(args.steps, device=args.device)
    watch = Stopwatch(args.device)
    step, vae_decode = chain_step, vae.decode_tokens
    if mode != "eager":
        torch._dynamo.reset()
        mar.encoder_stack = torch.compile(type(mar).encoder_stack.__get__(mar), dynamic=True)
        mar.decoder_stack = torch.compile(type(mar).decoder_stack.__get__(mar))
        step = torch.compile(chain_step, dynamic=True)
        vae_decode = torch.compile(vae_decode)
    if mode == "graphs":
        mar.encoder_stack, mar.decoder_stack = Graphed(mar.encoder_stack), Graphed(mar.decoder_stack)
        vae_decode = Graphed(vae_decode)
    mar.encode = watch.wrap("encoder", type(mar).encode.__get__(mar))
    mar.decode = watch.wrap("decoder", type(mar).decode.__get__(mar))
    chain = watch.wrap("head", make_chain(step, dtype, mar, schedule, mode == "graphs"))
    vae_decode = watch.wrap("vae", vae_decode)

    def images(seed, num_iter):
        # As in the official loop, the noise is drawn on the device, inside the clock.
        generator = torch.Generator(device=args.device).manual_seed(seed)
        length = mar.config.seq_len
        order = torch.rand(args.batch, length, device=args.device, generator=generator).argsort(1)

        def noise_fn(_step, rows, _positions):
            shape = (len(rows), mar.config.token_dim)
            return (torch.randn(shape, device=args.device, generator=generator),
                    torch.randn((args.steps, *shape), device=args.device, generator=generator))
        with torch.no_grad(), autocast(config, args):
            label = torch.full((args.batch,), 207, device=args.device)
            tokens = generate(mar, label, num_iter, args.cfg, "linear", 1.0, schedule, order, noise_fn, chain=chain)
            pixels = vae_decode(tokens.to(dtype))
        if not torch.isfinite(pixels).all():
            sys.exit(f"{config}: the image is not finite")

    result = medians(config, images, watch, mode == "eager", args)  # eager has nothing to compile
    for name in ("encode", "decode", "encoder_stack", "decoder_stack"):
        mar.__dict__.pop(name, None)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=list(ARCHS), default="mar_base")
    parser.add_argument("--num_iter", type=int, default=64)
    parser.add_argument("--steps", "--num_sampling_steps", type=int, default=100)
    parser.add_argument("--cfg", type=float, default=2.9)
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's choice")
    parser.add_argument("--configs", default=",".join(CONFIGS))
    parser.add_argument("--source", help="a clone of github.com/LTH14/mar")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=1, help="images at a time")
    parser.add_argument("--images", type=int, default=1, help="measured batches per configuration; the median is printed")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="also print one JSON line")
    args = parser.parse_args()
    configs = args.configs.split(",")
    for config in configs:
        if config not in CONFIGS + GRAPHS + OFFICIAL:
            parser.error(f"unknown configuration {config}; known: {', '.join(CONFIGS + GRAPHS + OFFICIAL)}")
        if config in OFFICIAL and not args.source:
            parser.error(f"{config}: needs --source")
        if config in GRAPHS and args.device != "cuda":
            parser.error(f"{config}: expected --device cuda")
    if args.cfg == 1.0:
        parser.error("this benchmark is of guided generation: --cfg must not be 1")
    if args.threads:
        torch.set_num_threads(args.threads)

    print(f"PyTorch {torch.__version__}, {args.device}, {torch.get_num_threads()} threads, {args.arch}, "
          f"{args.num_iter} AR steps, {args.steps} diffusion steps, cfg {args.cfg}, batch {args.batch}")
    print(f"{'seconds per image':17s} {'total':>9s} {'encoder':>9s} {'decoder':>9s} {'head':>9s} {'vae':>9s}")
    results = {}
    for config in configs:
        if config in OFFICIAL:
            r = official(config, args)
        else:
            r = measure(config, random_mar(args.arch).to(args.device), random_vae().to(args.device), args)  # anew: bf16 rounds them
        results[config] = r
        print(f"{config:17s} " + " ".join(f"{r[part]:9.3f}" for part in ("total", "encoder", "decoder", "head", "vae")), flush=True)
    if args.json:
        print(json.dumps({"torch": torch.__version__, "device": args.device, "threads": torch.get_num_threads(),
                          "arch": args.arch, "num_iter": args.num_iter, "steps": args.steps, "cfg": args.cfg,
                          "batch": args.batch, "seconds": results}))


if __name__ == "__main__":
    main()
