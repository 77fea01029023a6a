#!/usr/bin/env python3
"""`mar bench` and the official code of Harmon or UniPic-1 in turn on this machine's processor, with the same weights.

    python3 tools/dev/random_checkpoint.py --arch harmon_0.5b --out Harmon-0_5B
    python3 bench/harmon_torch.py --source Harmon --model Harmon-0_5B --out bench/results/cpu_harmon.json

SOURCE is a checkout of github.com/wusize/Harmon, or the folder UniPic-1 of SkyworkAI/UniPic.
tests/golden/harmon_official.py says what is replaced in it: FlashAttention by PyTorch's attention. Configurations of
the official code (--configs, comma-separated): f32 and bf16, whose weights are all converted, as the release's;
-compile: the head, called 100 times for each set of tokens, by torch.compile. --attention eager is transformers' other
form.

Of the official code's image --sets sets are measured, at equal distances: encoder, language model, decoder and head of
each, with the tokens known and drawn as in a whole image. Their seconds are multiplied, and those of the prompt and of
the image decoder added. Ours (--ours, options separated by semicolons) makes whole images. Every measurement has a
process of its own, and the median turn counts."""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ["f32", "bf16", "f32-compile", "bf16-compile"]
PARTS = ("total", "prompt", "sets", "encoder", "llm", "decoder", "head", "vae")  # encoder to head are in sets
PROMPT = "a corgi in the snow, a red scarf around its neck, wide angle, late afternoon"


# --- the official code, in its own process ----------------------------------------------------------------------------


def load(args, precision):
    """The model with a folder's weights, and its configuration."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoTokenizer
    sys.path[:0] = [str(ROOT / "tests/golden"), str(ROOT / "tests/reference")]
    from harmon_official import build, official
    from pymar import KL16, VAE
    config = json.loads((Path(args.model) / "config.json").read_text())
    towers = dict(config["mar"])
    width, depth, heads = {"mar_base": (768, 12, 12), "mar_large": (1024, 16, 16),
                           "mar_huge": (1280, 20, 16)}[towers.pop("type")]
    vae = VAE(KL16)
    vae.embed_dim = KL16.z_channels
    with torch.device("meta"):
        model = build(official(args.source), config["llm"], towers, heads, width, depth, None,
                      AutoTokenizer.from_pretrained(args.model), args.attention)
    model.to_empty(device="cpu")
    model.llm.model.rotary_emb = type(model.llm.model.rotary_emb)(model.llm.config)
    model.vae = vae
    missing, unexpected = model.load_state_dict(load_file(Path(args.model) / "model.safetensors"), strict=False)
    model.llm.tie_weights()
    assert not unexpected and set(missing) <= {"llm.lm_head.weight"}, (missing, unexpected)
    return model.to(torch.bfloat16 if precision == "bf16" else torch.float32).eval()


class Clock:
    """Adds up the seconds of functions, by name."""

    def __init__(self):
        self.seconds = dict.fromkeys(PARTS[1:], 0.0)

    def wrap(self, name, function):
        def timed(*arguments, **named):
            start = time.perf_counter()
            result = function(*arguments, **named)
            self.seconds[name] += time.perf_counter() - start
            return result
        return timed


def masked_counts(length, sets):
    """Tokens that are not known before each set, and 0 at the end."""
    left = [length]
    for i in range(sets - 1):
        left.append(max(1, min(left[-1] - 1, math.floor(length * math.cos(math.pi / 2 * (i + 1) / sets)))))
    return left + [0]


def measure(args, config):
    """Seconds of an image, by part."""
    import torch
    precision, *compiled = config.split("-")
    torch.set_num_threads(args.threads)
    model, clock = load(args, precision), Clock()
    net = model.mar.diffloss.net
    if compiled:
        net.forward = torch.compile(net.forward, dynamic=True)
    h, w = args.height // 16, args.width // 16
    left = masked_counts(h * w, args.num_iter)
    given = model.prepare_text_conditions(f"Generate an image: {PROMPT}")

    def prompt():
        return model.llm_model(input_ids=given["input_ids"], use_cache=True).past_key_values

    def one(i, cache):
        order = torch.randperm(h * w)
        mask = torch.ones(2, h * w, dtype=model.dtype)
        mask[:, order[left[i]:]] = 0
        tokens = torch.randn(1, h, w, model.token_embed_dim, dtype=model.dtype).repeat(2, 1, 1, 1)
        x = model.forward_mae_encoder(tokens, mask, past_key_values=cache, attention_mask=given["attention_mask"])
        model.curtail_cache(cache, given["input_ids"].shape[1])
        z = model.mar.forward_mae_decoder(x, mask, image_shape=(h, w))
        drawn = z[:, order[left[i + 1]:left[i]]].flatten(0, 1)
        return model.mar.diffloss.sample(drawn, 1.0, 3.0)

    with torch.no_grad():
        cache = prompt()
        model.curtail_cache(cache, given["input_ids"].shape[1])
        for i in (0, 1) if not compiled else (0, args.num_iter // 2, args.num_iter - 1):
            one(i, cache)  # warm-up
        model.mar.forward_mae_encoder = clock.wrap("encoder", model.mar.forward_mae_encoder)
        model.mar.forward_mae_decoder = clock.wrap("decoder", model.mar.forward_mae_decoder)
        model.mar.diffloss.sample = clock.wrap("head", model.mar.diffloss.sample)
        clock.wrap("prompt", prompt)()
        model.llm.model.forward = clock.wrap("llm", model.llm.model.forward)
        timed = clock.wrap("sets", one)
        for k in range(args.sets):
            timed(int((k + 0.5) * args.num_iter / args.sets), cache)
        tokens = torch.randn(1, h, w, model.token_embed_dim, dtype=model.dtype)
        assert torch.isfinite(clock.wrap("vae", model.decode)(tokens)).all()
    scale = {name: 1 if name in ("prompt", "vae") else args.num_iter / args.sets for name in clock.seconds}
    seconds = {name: scale[name] * s for name, s in clock.seconds.items()}
    return {"torch": torch.__version__,
            "seconds": {"total": seconds["prompt"] + seconds["sets"] + seconds["vae"], **seconds}}


# --- both in turns ----------------------------------------------------------------------------------------------------


def run(command):
    """The JSON on the last line, or all of, a command's standard output."""
    text = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return json.loads(text.splitlines()[-1])


def run_ours(args, options):
    return run([args.mar, "bench", "--model", args.model, "--prompt", PROMPT, "--cfg", 3, "--cfg_schedule", "constant",
                "--num_iter", args.num_iter, "--size", f"{args.width}x{args.height}", "--threads", args.threads,
                "--json", *options.split()])


def run_official(args, config):
    return run([sys.executable, "-W", "ignore", __file__, "--measure", config, "--source", args.source,
                "--model", args.model, "--threads", args.threads, "--sets", args.sets, "--num_iter", args.num_iter,
                "--size", f"{args.width}x{args.height}", "--attention", args.attention])


def middle(values, key):
    return sorted(values, key=key)[(len(values) - 1) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--model", required=True, help="a folder of tools/dev/random_checkpoint.py, or Hugging Face's")
    parser.add_argument("--mar", default=ROOT / "build/release/mar", help="the command [build/release/mar]")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--configs", default="f32,bf16", help="of the official code [f32,bf16]")
    parser.add_argument("--ours", default="--dtype f32;--dtype bf16;--dtype bf16 --head_spec 16",
                        help="'' for the official code alone")
    parser.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
    parser.add_argument("--size", default="512x512", help="WxH [512x512]")
    parser.add_argument("--num_iter", type=int, default=64)
    parser.add_argument("--sets", type=int, default=8, help="measured sets of the official code [8]")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--out", help="also write everything as JSON to this file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.width, args.height = map(int, args.size.split("x"))
    if args.measure:
        print(json.dumps(measure(args, args.measure)))
        return
    configs = args.configs.split(",")
    if unknown := set(configs) - set(CONFIGS):
        parser.error(f"unknown configuration {', '.join(unknown)}; known: {', '.join(CONFIGS)}")
    if not 1 <= args.sets <= args.num_iter:
        parser.error(f"--sets {args.sets}: expected 1 to {args.num_iter}")
    ours, official = {}, {}
    for _ in range(args.turns):
        for config in configs:
            official.setdefault(config, []).append(run_official(args, config))
            seconds = official[config][-1]["seconds"]
            print(f"official {config:24s} " + "  ".join(f"{part} {seconds[part]:.1f}" for part in PARTS), flush=True)
        for options in filter(None, args.ours.split(";")):
            ours.setdefault(options, []).append(run_ours(args, options))
            print(f"libmar   {options:24s} total {ours[options][-1]['seconds_per_image']:.1f}", flush=True)
    whole = {config: middle([r["seconds"]["total"] for r in rounds], float) for config, rounds in official.items()}
    best = min(whole, key=whole.get)
    for options, rounds in ours.items():
        seconds = middle([r["seconds_per_image"] for r in rounds], float)
        print(f"{options}: {seconds:.1f} s, {whole[best] / seconds:.2f} times as fast as the official code's {best}, "
              f"{whole[best]:.1f} s")
    if args.out:
        Path(args.out).write_text(json.dumps({"official": official, "libmar": ours, "best": best}, indent=1) + "\n")


if __name__ == "__main__":
    main()
