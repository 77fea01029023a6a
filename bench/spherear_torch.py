#!/usr/bin/env python3
"""What PyTorch needs for an image of SphereAR on this machine's processor: the yardstick of `mar bench`.

    git clone https://github.com/guolinke/SphereAR
    python3 bench/spherear_torch.py --source SphereAR --threads 2 --json

Runs the official code with random weights, batch 1, with guidance: class tokens, then proj_in, forward_model and
head_sample for --tokens tokens from the middle of the image on, then the image decoder. The seconds of an image are
those of the class tokens, of the decoder, and of a measured token times the number of tokens: tokens cost more at the
end than at the beginning, since attention reads the cache up to them. FlashAttention is replaced by PyTorch's attention.
Configurations (--configs, comma-separated):

    f32-eager, f32-compile     float32; compile: the official torch.compile decorators
    amp-eager, amp-compile     bfloat16 autocast around the whole image, as the official sample_ddp.py
    bf16-eager, bf16-compile   weights converted to bfloat16 once; states of the chain stay float32

Every configuration has a process of its own. They are timed in turns, --rounds of them, and the median round counts.
Compilation happens before them.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import types
import warnings
from pathlib import Path

CONFIGS = [f"{precision}-{mode}" for precision in ("f32", "amp", "bf16") for mode in ("eager", "compile")]
FILES = ("__init__", "diff_head", "layers", "model", "psd", "sampling", "vae")
PARTS = ("total", "transformer", "head", "decoder")
LABEL = 207

# --- a configuration, in its own process -------------------------------------------------------------------------------


def official(source, folder):
    """The module SphereAR.model of a clone, bare or not, by way of copies in `folder`."""
    import torch.nn.functional as F
    (folder / "SphereAR").mkdir()
    for name in FILES:
        file = f"SphereAR/{name}.py"
        text = (Path(source, file).read_bytes() if Path(source, file).exists() else
                subprocess.run(["git", "-C", source, "show", f"HEAD:{file}"], check=True, stdout=subprocess.PIPE).stdout)
        (folder / file).write_bytes(text)
    flash = types.ModuleType("flash_attn")
    flash.flash_attn_func = lambda q, k, v, causal, dropout_p: F.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal).transpose(1, 2)
    sys.modules["flash_attn"] = flash
    sys.path.insert(0, str(folder))
    import SphereAR.model
    return SphereAR.model


def build(module, size, precision):
    import torch
    torch.manual_seed(0)
    model = module.SphereAR_models[f"SphereAR-{size}"](resolution=256, patch_size=16, latent_dim=16, diff_batch_mul=1).eval()
    for name, p in model.named_parameters():  # also the layers that the official initialisation leaves at zero
        p.normal_()
        if p.dim() == 1:
            p.mul_(0.05).add_(1.0 if name.endswith("weight") else 0.0)
        elif "embedding" not in name and "pos_for_diff" not in name:
            p.mul_(0.7 / p[0].numel() ** 0.5)
    model = model.to(memory_format=torch.channels_last)
    if precision == "bf16":
        tables = {name: table.clone() for name, table in model.named_buffers()}
        model.bfloat16()
        for name, table in model.named_buffers():
            table.data = tables[name]
        net = model.head.net
        for layer in (model.proj_in, net.input_proj, net.time_embed.mlp, model.vae.post_quant_proj):
            layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].bfloat16(),))
    return model


class Image:
    """The parts of model.sample, each timed."""

    def __init__(self, model, cfg, steps):
        import torch
        self.torch, self.model, self.cfg, self.steps = torch, model, cfg, steps
        self.tokens, self.prefix = model.h * model.w, model.cls_token_num
        model.enable_kv_cache(2)
        for layer in model.layers:
            layer.attention.k_cache.normal_()
            layer.attention.v_cache.normal_()

    def class_tokens(self):
        label = self.torch.tensor([LABEL, self.model.num_classes])
        start = time.perf_counter()
        x = self.model.forward_model(self.model.cls_embedding(label).view(2, self.prefix, -1), 0, self.prefix)
        return time.perf_counter() - start, x[:, -1:]

    def token(self, i, last):
        """Seconds of the transformer and of the head for token i, and the token."""
        start, at = time.perf_counter(), i + self.prefix - 1
        x = self.model.forward_model(self.model.proj_in(last), at, at + 1)
        middle = time.perf_counter()
        token = self.model.head_sample(x[:, -1:], i, self.steps, self.cfg)
        return middle - start, time.perf_counter() - middle, token

    def decoder(self):
        x = self.model.vae.normalize(self.torch.randn(1, self.tokens, self.model.latent_dim))
        start = time.perf_counter()
        pixels = self.model.vae.decode(x)
        if not self.torch.isfinite(pixels).all():
            sys.exit("the image is not finite")
        return time.perf_counter() - start

    def round(self, measured):
        """Seconds of an image, by part, from `measured` tokens of it."""
        prefix, x = self.class_tokens()
        last = self.model.head_sample(x, 0, 1, self.cfg)
        transformer, head = 0.0, 0.0
        first = (self.tokens - measured) // 2
        for i in range(first, first + measured):
            a, b, last = self.token(i, last)
            transformer, head = transformer + a, head + b
        share = self.tokens / measured
        parts = {"transformer": prefix + transformer * share, "head": head * share, "decoder": self.decoder()}
        return {"total": sum(parts.values()), **parts}


def serve(args):
    """Measures a round for each line of standard input and prints it as a line of JSON. The first answer is for the
    warm-up."""
    import torch
    warnings.filterwarnings("ignore", "Mismatch dtype between input and weight|Dynamo detected a call to a")
    torch.set_num_threads(args.threads)
    precision = args.serve.split("-")[0]
    autocast = torch.autocast("cpu", torch.bfloat16) if precision == "amp" else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder:
        module = official(args.source, Path(folder))
        with torch.no_grad(), autocast:
            image = Image(build(module, args.model, precision), args.cfg, args.steps)
            image.round(3)
            print(json.dumps({"torch": torch.__version__}), flush=True)
            for _ in sys.stdin:
                print(json.dumps(image.round(args.tokens)), flush=True)


# --- all of them -------------------------------------------------------------------------------------------------------


class Worker:
    """The process of a configuration; `torch` is PyTorch's version, None if the configuration failed."""

    def __init__(self, config, args):
        command = [sys.executable, __file__, "--serve", config, "--source", args.source, "--model", args.model, "--threads",
                   args.threads, "--cfg", args.cfg, "--steps", args.steps, "--tokens", args.tokens]
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "TORCHDYNAMO_DISABLE": "0" if config.endswith("compile") else "1"})
        started = self.read()
        self.torch = started and started["torch"]
        if not started:
            print(f"{config}: failed, left out", file=sys.stderr)

    def read(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read() or sys.exit("a configuration failed while it was measured")

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def start(configs, args):
    """Workers by configuration, warm; args: source, model, threads, cfg, steps, tokens."""
    for config in configs:
        if config not in CONFIGS:
            sys.exit(f"unknown configuration {config}; known: {', '.join(CONFIGS)}")
    workers = {config: Worker(config, args) for config in configs}
    return {config: worker for config, worker in workers.items() if worker.torch} or sys.exit("no configuration ran")


def middle(rounds):
    """The median round by total seconds, of an even number the faster one of both."""
    return sorted(rounds, key=lambda r: r["total"])[(len(rounds) - 1) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="a clone of SphereAR, bare or not")
    parser.add_argument("--model", choices=["B", "L", "H"], default="B")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--configs", default=",".join(CONFIGS))
    parser.add_argument("--cfg", type=float, default=4.5, help="above 1: this benchmark is of guided images [4.5]")
    parser.add_argument("--steps", type=int, default=100, help="Euler-Maruyama steps of a token; one Euler step follows [100]")
    parser.add_argument("--tokens", type=int, default=8, help="measured tokens of a round [8]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="also print one JSON line")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args)
    if not math.isfinite(args.cfg) or args.cfg <= 1:
        parser.error(f"--cfg {args.cfg}: expected a number above 1")
    if not 1 <= args.tokens <= 128:
        parser.error(f"--tokens {args.tokens}: expected 1 to 128")
    workers = start(args.configs.split(","), args)
    rounds = {config: [] for config in workers}
    for _ in range(args.rounds):
        for config, worker in workers.items():
            rounds[config].append(worker.round())
    version = next(iter(workers.values())).torch
    print(f"PyTorch {version}, SphereAR-{args.model}, {args.threads} threads, cfg {args.cfg:g}, {args.steps} + 1 steps of the head, "
          f"batch 1; extrapolated from {args.tokens} of 256 tokens, median of {args.rounds} rounds")
    print(f"{'seconds per image':17s} " + " ".join(f"{part:>11s}" for part in PARTS))
    seconds = {}
    for config, worker in workers.items():
        worker.end()
        seconds[config] = middle(rounds[config])
        print(f"{config:17s} " + " ".join(f"{seconds[config][part]:11.3f}" for part in PARTS), flush=True)
    if args.json:
        print(json.dumps({"torch": version, "model": f"SphereAR-{args.model}", "threads": args.threads, "cfg": args.cfg,
                          "steps": args.steps, "extrapolated_from_tokens": args.tokens, "seconds": seconds,
                          "rounds": rounds}))


if __name__ == "__main__":
    main()
