#!/usr/bin/env python3
"""What PyTorch needs for a token of LlamaGen on this machine's processor: the yardstick of `mar bench` for plain decoding.

    git clone https://github.com/FoundationVision/LlamaGen
    python3 bench/llamagen_torch.py --source LlamaGen --model L --threads 2 --json

Times the decode step of the official autoregressive/models/gpt.py with random weights: one token of one image, with guidance
(two rows) and without, and the sampling of generate.py. Configurations (--configs, comma-separated):

    f32-eager, bf16-eager        the official code, weights in that type
    f32-compile, bf16-compile    torch.compile of the decode step
    f32-freeze, bf16-freeze      the same with Inductor's freezing, which packs weights ahead of time

A configuration that fails here says why and is left out. All are timed in turns, --rounds of them; a round's time is the
median of its steps, and what is printed is the best and the median round. "bytes" are those of all weights that a step
multiplies with, so that bytes a second compare with what the machine reads.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time

import torch

SIZES = {"B": (768, 12, 12), "L": (1024, 24, 16), "XL": (1280, 36, 20), "XXL": (1536, 48, 24), "3B": (3200, 24, 32)}
CONFIGS = [f"{dtype}-{mode}" for dtype in ("f32", "bf16") for mode in ("eager", "compile", "freeze")]
POSITION = 128  # of the token that is timed; the official code attends to the whole cache at every position


def build(source, size, dtype, rows):
    sys.path.insert(0, os.path.join(source))
    from autoregressive.models.gpt import ModelArgs, Transformer  # noqa: E402
    dim, depth, heads = SIZES[size]
    torch.manual_seed(0)
    model = Transformer(ModelArgs(dim=dim, n_layer=depth, n_head=heads, vocab_size=16384, block_size=256, num_classes=1000,
                                  cls_token_num=1, model_type="c2i")).eval()
    torch.nn.init.normal_(model.output.weight, std=0.02)
    model = model.to({"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
    model.setup_caches(max_batch_size=rows, max_seq_length=257, dtype=model.tok_embeddings.weight.dtype)
    return model


def weight_bytes(model):
    return sum(m.weight.numel() * m.weight.element_size() for m in model.modules() if isinstance(m, torch.nn.Linear))


class Step:
    """One token: the transformer, guidance, top-k 2000 and the draw, as decode_one_token does them."""

    def __init__(self, source, size, config, cfg):
        dtype, mode = config.split("-")
        self.rows, self.cfg = 2 if cfg > 1 else 1, cfg
        self.model = build(source, size, dtype, self.rows)
        self.bytes = weight_bytes(self.model)
        self.token = torch.full((self.rows, 1), 5, dtype=torch.long)
        self.position = torch.tensor([POSITION])
        self.forward = self.model
        if mode != "eager":
            torch._inductor.config.freezing = mode == "freeze"
            torch._dynamo.reset()
            self.forward = torch.compile(self.model, fullgraph=True)

    @torch.no_grad()
    def __call__(self):
        logits, _ = self.forward(self.token, cond_idx=None, input_pos=self.position)
        if self.cfg > 1:
            conditional, unconditional = logits.chunk(2)
            logits = unconditional + (conditional - unconditional) * self.cfg
        logits = logits[:, -1]
        logits[logits < torch.topk(logits, 2000)[0][..., -1, None]] = -float("inf")
        return torch.multinomial(torch.softmax(logits, -1), 1)


def time_round(step, steps):
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def prepare(arguments, config, cfg):
    try:
        step = Step(arguments.source, arguments.model, config, cfg)
        for _ in range(3):
            step()
        return step
    except Exception as error:  # a compiler that is missing, a type that is not supported: the others still count
        print(f"{config}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", file=sys.stderr)
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="a checkout of LlamaGen")
    parser.add_argument("--model", choices=SIZES, default="L")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--configs", default=",".join(CONFIGS))
    parser.add_argument("--cfg", type=float, nargs="+", default=[4.0, 1.0], help="above 1: guidance")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = []
    for cfg in arguments.cfg:
        steps = {config: prepare(arguments, config, cfg) for config in arguments.configs.split(",")}
        steps = {config: step for config, step in steps.items() if step}
        rounds = {config: [] for config in steps}
        for _ in range(arguments.rounds):
            for config, step in steps.items():
                rounds[config].append(time_round(step, arguments.steps))
        for config, seconds in rounds.items():
            best = min(seconds)
            results.append({"model": arguments.model, "config": config, "cfg": cfg, "rows": steps[config].rows,
                            "threads": arguments.threads, "bytes": steps[config].bytes, "seconds": best,
                            "median_seconds": statistics.median(seconds), "tokens_per_second": 1 / best,
                            "bytes_per_second": steps[config].bytes / best})
    if arguments.json:
        print(json.dumps({"torch": torch.__version__, "results": results}, indent=1))
        return
    print(f"PyTorch {torch.__version__}, LlamaGen-{arguments.model}, {arguments.threads} threads")
    for r in results:
        print(f"cfg {r['cfg']:g}  {r['config']:13} {1e3 * r['seconds']:8.2f} ms a token (median {1e3 * r['median_seconds']:.2f}), "
              f"{r['tokens_per_second']:6.1f} tokens/s, {1e-9 * r['bytes_per_second']:5.1f} GB/s of weights")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
