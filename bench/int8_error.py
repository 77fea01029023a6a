#!/usr/bin/env python3
"""Errors of int8 products on the shapes of the official models, with outliers planted as trained transformers have them.

    python3 bench/int8_error.py --out bench/results/int8_error.json
    python3 bench/int8_error.py --table bench/results/int8_error.json        # only print it

No official weights are used: layers are random, of the shapes of MAR-B and MAR-L. `--tokens` tokens go through a layer norm,
then qkv or fc1; the values of qkv, mixed by a random attention, through proj; GELU of fc1 through fc2. The head's blocks have
their own. An error is ||y - y_f32|| / ||y_f32 - its mean over tokens||, the mean left out because a constant says nothing.
Quantisation is that of libmar: operands in bf16, then by row, weights by output channel (kernels/int8.h); sums are f32's.

Plantings:
  none       gains of the norms near 1; weights normal, each of a size of its own (log-normal, sigma 0.4), so some are large
  gain       8 channels of the norm with a gain 20 to 100 times as large, the same weights: SmoothQuant's outlier channels
             (Xiao et al., 2023)
  balanced   the same, and weights as much smaller in these columns: all channels say equally much
  stream     8 channels of the residual stream 20 to 100 times as large, gains as much smaller there
  massive    4 tokens with 2 numbers 1000 times as large (Sun et al., 2024: ViTs without registers), in the residual stream and
             among the hidden units of the MLP

Ways, for what follows a norm with gain g and bias b, whose normalised values are n, x = g n + b:
  plain      x and W as they are
  smoothed   x / s and W s, s_j = max|x_j|^0.5 / max|W_j|^0.5 of other tokens, within 0.01 .. 100 (SmoothQuant, calibrated)
  data-free  the same with |g_j| in place of max|x_j|: needs no tokens
  folded     the same with s a power of two in 1 .. 128: what libmar does (kernels/int8.h)
  gain       n and W g, W b added to the layer's bias: the norm's gain goes into the weights
  half gain  s_j = |g_j|^0.5
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

SHAPES = {"MAR-B": (768, 12, 1024), "MAR-L": (1024, 16, 1280)}  # width, heads, head's width
PLANTINGS = ("none", "gain", "balanced", "stream", "massive")
WAYS = ("plain", "smoothed", "data-free", "folded", "gain", "half gain")
CHANNELS, TOKENS, NUMBERS = 8, 4, 2  # outlier channels; massive tokens, and numbers of each


# --- arithmetic ------------------------------------------------------------------------------------------------------------

def quantise(x):
    """Integers and scales by row."""
    scale = x.abs().amax(1, keepdim=True) / 127
    return torch.round(x / scale.clamp_min(1e-30)), scale


def bf16(x):
    return x.bfloat16().float()


def int8_product(x, w):
    (a, a_scale), (b, b_scale) = quantise(bf16(x)), quantise(w)
    return a @ b.T * a_scale * b_scale.T


def error(y, exact):
    return float(((y - exact).norm() / (exact - exact.mean(0)).norm()))


def errors(x, w):
    """Of a product without a norm in front."""
    exact = x @ w.T
    return {"bf16": error(bf16(x) @ bf16(w).T, exact), "plain": error(int8_product(x, w), exact)}


# --- layers ----------------------------------------------------------------------------------------------------------------

class Random:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.generator)

    def weight(self, out, width):
        """Of variance 1 / width."""
        return self.normal(out, width) * torch.exp(0.4 * self.normal(out, width) - 0.16) / width**0.5

    def some(self, n, k):
        return torch.randperm(n, generator=self.generator)[:k]

    def large(self, k):
        """Factors of 20 to 100, evenly by their logarithms."""
        return 20 * 5 ** torch.rand(k, generator=self.generator)


def plant(random, width, planting):
    """Gain, bias, columns of the weights behind the norm, sizes of the stream's channels, and the numbers of massive tokens."""
    gain = torch.exp(0.3 * random.normal(width))
    columns, stream = torch.ones(width), torch.exp(0.3 * random.normal(width))
    channels, large = random.some(width, CHANNELS), random.large(CHANNELS)
    if planting in ("gain", "balanced"):
        gain[channels] *= large
    if planting == "balanced":
        columns[channels] /= large
    if planting == "stream":
        stream[channels] *= large
        gain[channels] /= large
    return gain, 0.1 * random.normal(width), columns, stream, random.some(width, NUMBERS)


def normalised(random, tokens, stream, massive):
    """Normalised rows of the residual stream; massive: channels that the first tokens have very large, or None."""
    x = random.normal(tokens, len(stream)) * stream
    if massive is not None:
        x[:TOKENS, massive] = 1000 * torch.sign(random.normal(TOKENS, len(massive)))
    return torch.nn.functional.layer_norm(x, (len(stream),))


def folded(gain, columns):
    """kern_int8_smooth."""
    ratio = torch.log2(gain.abs() / columns)
    return torch.round((ratio - ratio.mean()) / 2).clamp(0, 7).exp2()


def norm_errors(n, calibration, gain, bias, w):
    x, seen = n * gain + bias, calibration * gain + bias
    exact = x @ w.T
    columns = w.abs().amax(0)

    def divided(s):
        return error(int8_product(x / s, w * s), exact)

    def near_one(s):
        return (s / s.median()).clamp(0.01, 100)

    return {"bf16": error(bf16(x) @ bf16(w).T, exact), "plain": error(int8_product(x, w), exact),
            "smoothed": divided(near_one((seen.abs().amax(0) / columns).sqrt())),
            "data-free": divided(near_one((gain.abs() / columns).sqrt())),
            "folded": divided(folded(gain, columns)),
            "gain": error(int8_product(n, w * gain) + bias @ w.T, exact),
            "half gain": divided(near_one(gain.abs().sqrt()))}


def attend(random, values, heads):
    """Each token's values mixed by a softmax over random scores, by head."""
    tokens, width = values.shape
    parts = values.view(tokens, heads, width // heads).transpose(0, 1)
    return (torch.softmax(3 * random.normal(heads, tokens, tokens), -1) @ parts).transpose(0, 1).reshape(tokens, width)


def block_errors(random, width, heads, planting, tokens):
    found = {}
    gain, bias, columns, stream, massive = plant(random, width, planting)
    massive = massive if planting == "massive" else None
    for name, out in (("qkv", 3 * width), ("fc1", 4 * width)):
        w = random.weight(out, width) * columns
        n, calibration = (normalised(random, tokens, stream, massive) for _ in range(2))
        found[name] = norm_errors(n, calibration, gain, bias, w)
        y = (n * gain + bias) @ w.T
        if name == "qkv":
            found["proj"] = errors(attend(random, y[:, 2 * width:], heads), random.weight(width, width))
            continue
        hidden = torch.nn.functional.gelu(y)
        if massive is not None:
            hidden[:TOKENS, random.some(4 * width, NUMBERS)] = 1000 * hidden.std()
        found["fc2"] = errors(hidden, random.weight(width, 4 * width))
    return found


def head_errors(random, width, planting, tokens):
    """The norm's gain and bias are in the modulation, which depends on the token and its step (kernels/adaln.h)."""
    gain, bias, columns, stream, massive = plant(random, width, planting)
    massive = massive if planting == "massive" else None
    condition = torch.nn.functional.silu(random.normal(tokens, width))
    modulation = errors(condition, random.weight(3 * width, width))
    shift, scale = (0.5 * random.normal(tokens, width) for _ in range(2))
    w = random.weight(width, width) * columns
    u = (normalised(random, tokens, stream, massive) * gain + bias) * (1 + scale) + shift
    return {"head fc1": errors(u, w), "head fc2": errors(torch.nn.functional.silu(u @ w.T), random.weight(width, width)),
            "head modulation": modulation}


# --- results ---------------------------------------------------------------------------------------------------------------

def measure(args):
    found = {}
    for model, (width, heads, head) in SHAPES.items():
        for planting in PLANTINGS:
            each = []
            for seed in range(args.repeat):
                random = Random(seed)
                each.append({**block_errors(random, width, heads, planting, args.tokens),
                             **head_errors(random, head, planting, args.tokens)})
            found.setdefault(model, {})[planting] = {
                kind: {way: float(np.mean([e[kind][way] for e in each])) for way in ways} for kind, ways in each[0].items()}
    return found


def table(result):
    for model, plantings in result["errors"].items():
        print(f"\n{model}, int8:\n\n| layer | " + " | ".join(plantings) + " |\n| --- |" + " --- |" * len(plantings))
        kinds = next(iter(plantings.values()))
        rows = [(kind, way) for way in WAYS for kind in kinds if way in kinds[kind]]
        for kind, way in rows + [(kind, "bf16") for kind in kinds]:
            numbers = [plantings[planting][kind][way] for planting in plantings]
            print(f"| {kind}{'' if way == 'plain' else ', ' + way} | " + " | ".join(f"{100 * e:.2f} %" for e in numbers) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=320)
    parser.add_argument("--repeat", type=int, default=3, help="random layers that a number is the mean of")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE", help="print what FILE has, and measure nothing")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.table:
        result = json.loads(args.table.read_text())
    else:
        result = {"tokens": args.tokens, "repeat": args.repeat, "errors": measure(args)}
    if args.out and not args.table:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    table(result)


if __name__ == "__main__":
    main()
