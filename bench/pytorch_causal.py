#!/usr/bin/env python3
"""What PyTorch needs for images of LlamaGen or SphereAR: the yardstick of `mar bench` on a GPU, as pytorch_mar.py is for MAR.

    python3 bench/pytorch_causal.py --arch gpt_l --device cuda --configs bf16-eager,bf16-compile,bf16-graphs --json
    python3 bench/pytorch_causal.py --arch gpt_b --small --configs f32-eager          # does it run? seconds

The models are those of tests/reference/pymar with random weights, decoded token by token with guidance and a cache of fixed
size, as a step that is compiled or recorded needs it; the official codes cache the same. Prints seconds an image: transformer,
head (of LlamaGen guidance and the draw from the 2000 likeliest, of SphereAR the chain of the flow) and image decoder (vae).
Configurations are those of pytorch_mar.py without amp. Compiled: the step of the transformer, and of SphereAR a call of the
head. Recorded as CUDA graphs: the step, and a token's whole chain.
"""

import argparse
import json
import statistics
import sys

import pytorch_mar
import torch
import torch.nn.functional as F
from pymar import GPT, GptConfig, SphereAR, SphereConfig, SphereVaeConfig
from pymar.gpt import turn
from pymar.spherear import LAST_STEP, on_sphere
from random_checkpoint import GPTS, SPHERES, random_gpt, random_spherear, random_vq, randomise

SMALL = {"gpt": GptConfig(width=64, depth=2, heads=2, hidden=128, vocabulary=16384, seq_len=16),
         "sphere": SphereConfig(width=64, depth=2, heads=2, head_width=64, head_depth=2, head_modulations=1, grid=4),
         "vae": SphereVaeConfig(channels=(16, 64), heads=2, decoder_depth=1, grid=4)}


def build(args):
    """The model and its image decoder, a function of all tokens."""
    if args.arch in GPTS:
        model, vq = GPT(SMALL["gpt"]) if args.small else random_gpt(args.arch, 256), random_vq()
        return (randomise(model, 0) or model), vq, vq.decode_codes
    model = SphereAR(SMALL["sphere"], SMALL["vae"]) if args.small else random_spherear(args.arch)
    return (randomise(model, 0) or model), model.vae, model.vae.decode


class Transformer:
    """model.layers_from for positions [n] behind those in a cache of fixed size."""

    def __init__(self, model, rows, device, dtype):
        self.model = model
        rotary = model.rotary.unbind(-1) if torch.is_tensor(model.rotary) else model.rotary
        self.cos, self.sin = (table.to(device) for table in rotary)
        heads = model.layers[0].attention.heads
        shape = (len(model.layers), 2, rows, heads, len(self.cos), model.config.width // heads)
        self.cache = torch.zeros(shape, device=device, dtype=dtype)

    def step(self, x, at):
        cos, sin = self.cos[at], self.sin[at]
        seen = torch.arange(len(self.cos), device=x.device)[None] <= at[:, None]
        x = self.model.emb_norm(x) if hasattr(self.model, "emb_norm") else x
        for layer, cache in zip(self.model.layers, self.cache):
            q, k, v = layer.attention.wqkv(layer.attention_norm(x)).unflatten(-1, (3, layer.attention.heads, -1)).unbind(2)
            cache[0].index_copy_(2, at, turn(k, cos, sin).transpose(1, 2))
            cache[1].index_copy_(2, at, v.transpose(1, 2))
            y = F.scaled_dot_product_attention(turn(q, cos, sin).transpose(1, 2), *cache, attn_mask=seen)
            x = x + layer.attention.wo(y.transpose(1, 2).flatten(2))
            x = x + layer.feed_forward(layer.ffn_norm(x))
        return self.model.norm(x)[:, -1]


def draw(model, x, cfg):
    """A code of each image from the features [2N,W]: guidance, the 2000 likeliest, the draw."""
    conditional, unconditional = model.output(x).float().chunk(2)
    logits = torch.lerp(unconditional, conditional, cfg)
    likeliest, codes = logits.topk(2000)
    return codes.gather(1, torch.multinomial(likeliest.softmax(-1), 1))


def velocity(net, x, t, z, cfg):
    v = net(x.to(z.dtype).repeat(2, 1), t.expand(2 * len(x)).to(z.dtype), z).float()
    return torch.lerp(*v.chunk(2)[::-1], cfg)


def chain(call, net, z, noise, cfg, times):
    """A token [N,C] of each image from the conditions z [2N,W]; noise [1 + steps,N,C], times [steps + 1]. cfg is a tensor."""
    x, dt = noise[0], (1 - LAST_STEP) / (len(times) - 1)
    for k in range(len(times) - 1):
        t = times[k]
        x = x + dt * ((1 + t) * call(net, x, t, z, cfg) - x) + (2 * (1 - t) * dt).sqrt() * noise[1 + k]
    return on_sphere(x + LAST_STEP * call(net, x, times[-1], z, cfg))


def measure(config, args):
    precision, mode = config.split("-")
    dtype, device = torch.bfloat16 if precision == "bf16" else torch.float32, args.device
    model, vae, decode = build(args)
    is_sphere = args.arch in SPHERES
    model, vae = model.eval().to(device, dtype), vae.eval().to(device, dtype)
    length = model.config.grid ** 2 if is_sphere else model.config.seq_len
    transformer, watch = Transformer(model, 2 * args.batch, device, dtype), pytorch_mar.Stopwatch(device)
    labels = torch.tensor([207] * args.batch + [model.config.classes] * args.batch, device=device)
    times = torch.linspace(0, 1 - LAST_STEP, args.steps + 1, device=device)
    call, step = velocity, transformer.step
    if mode != "eager":
        torch._dynamo.reset()
        call, step, decode = torch.compile(velocity), torch.compile(transformer.step), torch.compile(decode)

    def head(x, cfg, *noise):
        return chain(call, model.head.net, x, *noise, cfg, times) if is_sphere else draw(model, x, cfg)
    if mode == "graphs":
        step, head = pytorch_mar.Graphed(step), pytorch_mar.Graphed(head)
    first, step, head = (watch.wrap(name, f) for name, f in (("transformer", transformer.step), ("transformer", step),
                                                             ("head", head)))
    decode = watch.wrap("vae", decode)

    @torch.no_grad()
    def images(count):
        x = model.class_tokens(labels) if is_sphere else model.cls_embedding(labels)
        at, tokens = torch.arange(x.shape[1], device=device), []
        features, step_at = first(x, at), at[-1:]
        for i in range(count):
            if is_sphere:
                cfg = torch.tensor(1 + (args.cfg - 1) * i / length, device=device)
                noise = torch.randn(args.steps + 1, args.batch, model.config.token_dim, device=device)
                token = head(features + model.pos_for_diff.weight[i], cfg, noise)
                x = model.proj_in(token.to(dtype)).repeat(2, 1)[:, None]
            else:
                token = head(features, torch.tensor(args.cfg, device=device))
                x = model.tok_embeddings(token).repeat(2, 1, 1)
            tokens.append(token)
            step_at = step_at + 1
            if i + 1 < count:
                features = step(x, step_at)
        tokens = tokens * (length // count)  # a warm-up has few
        if not torch.isfinite(decode(torch.stack(tokens, 1).to(dtype) if is_sphere else torch.cat(tokens, 1))).all():
            sys.exit(f"{config}: the image is not finite")

    runs = []
    for index in range(args.warmup + args.images):
        watch.seconds.clear()
        start = watch.now()
        images(length if index >= args.warmup else 4)
        runs.append({"total": watch.now() - start, **watch.seconds})
    return {part: statistics.median(run[part] for run in runs[args.warmup:]) / args.batch for part in runs[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=[*GPTS, *SPHERES], default="gpt_l")
    parser.add_argument("--small", action="store_true", help="tiny models of the family, to try the program")
    parser.add_argument("--steps", "--num_sampling_steps", type=int, default=100, help="SphereAR: of a token [100]")
    parser.add_argument("--cfg", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's choice")
    parser.add_argument("--configs", default="bf16-eager,bf16-compile")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=1, help="images at a time")
    parser.add_argument("--images", type=int, default=1, help="measured batches per configuration; the median is printed")
    parser.add_argument("--warmup", type=int, default=1, help="batches of 4 tokens; compilation and recording happen there")
    parser.add_argument("--json", action="store_true", help="also print one JSON line")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    seconds = {}
    for config in args.configs.split(","):
        seconds[config] = measure(config, args)
        print(f"{config:13} " + "  ".join(f"{part} {s:.4f}" for part, s in seconds[config].items()), flush=True)
    if args.json:
        print(json.dumps({"torch": torch.__version__, **vars(args), "seconds": seconds}))


if __name__ == "__main__":
    main()
