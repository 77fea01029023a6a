#!/usr/bin/env python3
"""Write a checkpoint of MAR-B's or SphereAR-B's widths and depths that computes what a small one computes.

    python3 tools/dev/inflate_checkpoint.py --model weights/demo/target.safetensors --out demo_wide.safetensors
    python3 tools/dev/inflate_checkpoint.py --model weights/demo/sphere.safetensors --out sphere_wide.safetensors

Acceptance rates need a trained model, timings a large one; this is both. The wide model repeats every hidden unit of the
small one. This leaves layer norms unchanged; the weights that read a unit are divided by the number of copies. The
additional blocks add exactly zero at full cost. Tokens, classes and the sequence are the small model's, so a step of the
wide model draws as many tokens as one of the small model. SphereAR's image decoder stays as it is.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/reference"))

from pymar import load_mar, read_safetensors, write_safetensors  # noqa: E402


def spread(vector, size):
    """[d] -> [size]: entry i is entry i mod d."""
    return vector[torch.arange(size) % len(vector)]


def widen(weight, rows, columns, row_of=None, column_of=None):
    """[o][i] -> [rows][columns] over copies; columns share the sum."""
    row_of = torch.arange(rows) % weight.shape[0] if row_of is None else row_of
    column_of = torch.arange(columns) % weight.shape[1] if column_of is None else column_of
    return weight[row_of][:, column_of] * (weight.shape[1] / columns)


class Inflater:
    """What both families share. The wide model's tensors are `out`."""

    def __init__(self, small, width, head_width):
        self.small, self.width, self.head_width, self.out = small, width, head_width, {}

    def linear(self, name, rows, columns, to=None, **maps):
        to, row_of = to or name, maps.get("row_of")
        self.out[to + ".weight"] = widen(self.small[name + ".weight"], rows, columns, **maps)
        bias = self.small.get(name + ".bias")
        if bias is not None:
            self.out[to + ".bias"] = spread(bias, rows) if row_of is None else bias[row_of]

    def chunks(self, name, count, width, columns, to=None):
        """`count` vectors of the block's width side by side: each is widened by itself."""
        small = self.small[name + ".weight"].shape[0] // count
        row_of = torch.cat([c * small + torch.arange(width) % small for c in range(count)])
        self.linear(name, count * width, columns, to, row_of=row_of)

    def norm(self, name, width, to=None):
        for part in ("weight", "bias"):
            if f"{name}.{part}" in self.small:
                self.out[f"{to or name}.{part}"] = spread(self.small[f"{name}.{part}"], width)

    def idle_copy(self, name, to, silent):
        """A block that adds zero: the tensors of `name`, those named in `silent` zeroed."""
        for key in [k for k in self.out if k.startswith(name + ".")]:
            tensor = self.out[key]
            self.out[to + key[len(name):]] = torch.zeros_like(tensor) if any(s in key for s in silent) else tensor.clone()


class MarInflater(Inflater):
    def __init__(self, small, config, width, depth, heads, head_width, head_depth):
        super().__init__(small, width, head_width)
        self.config, self.depth, self.head_depth = config, depth, head_depth
        small_size, size = config.width // config.heads, width // heads
        unit = torch.arange(width)  # attention: copies of heads, and of the units inside a head
        self.unit = unit // size % config.heads * small_size + unit % size % small_size
        self.query_scale = (small_size / size) * (size / small_size) ** 0.5  # the dot product counts each unit size/small_size times

    def block(self, name):
        d, small = self.width, self.config.width
        rows = torch.cat([c * small + self.unit for c in range(3)])
        self.linear(name + ".attn.qkv", 3 * d, d, row_of=rows)
        for part in ("weight", "bias"):
            self.out[f"{name}.attn.qkv.{part}"][:d] *= self.query_scale
        self.linear(name + ".attn.proj", d, d, column_of=self.unit)
        self.linear(name + ".mlp.fc1", 4 * d, d)
        self.linear(name + ".mlp.fc2", d, 4 * d)
        self.norm(name + ".norm1", d)
        self.norm(name + ".norm2", d)

    def run(self):
        c, d, w = self.config, self.width, self.head_width
        for key in ("class_emb.weight", "fake_latent", "mask_token", "encoder_pos_embed_learned",
                    "decoder_pos_embed_learned", "diffusion_pos_embed_learned"):
            self.out[key] = self.small[key][..., torch.arange(d) % c.width]
        self.linear("z_proj", d, c.token_dim)
        self.linear("decoder_embed", d, d)
        for name in ("z_proj_ln", "encoder_norm", "decoder_norm"):
            self.norm(name, d)
        for part in ("encoder_blocks", "decoder_blocks"):
            for i in range(self.depth):
                if i < c.depth:
                    self.block(f"{part}.{i}")
                else:
                    self.idle_copy(f"{part}.0", f"{part}.{i}", ("attn.proj", "mlp.fc2"))
        net = "diffloss.net"
        self.linear(net + ".input_proj", w, c.token_dim)
        self.linear(net + ".cond_embed", w, d)
        self.linear(net + ".time_embed.mlp.0", w, 256)
        self.linear(net + ".time_embed.mlp.2", w, w)
        for i in range(self.head_depth):
            name = f"{net}.res_blocks.{i}"
            if i >= c.head_depth:
                self.idle_copy(f"{net}.res_blocks.0", name, ("adaLN",))
                continue
            self.norm(name + ".in_ln", w)
            self.linear(name + ".mlp.0", w, w)
            self.linear(name + ".mlp.2", w, w)
            self.chunks(name + ".adaLN_modulation.1", 3, w, w)
        self.chunks(net + ".final_layer.adaLN_modulation.1", 2, w, w)
        self.linear(net + ".final_layer.linear", 2 * c.token_dim, w)
        return self.out


class SphereInflater(Inflater):
    def __init__(self, small, small_heads, width, depth, heads, head_width, head_depth):
        super().__init__(small, width, head_width)
        self.depth, self.head_depth, self.small_width = depth, head_depth, small["proj_in.weight"].shape[0]
        self.small_depth, self.small_head_depth = (
            len({name.split(".")[part.count(".")] for name in small if name.startswith(part)})
            for part in ("layers.", "head.net.res_blocks."))
        self.modulations = len([name for name in small if name.startswith("head.net.ada_ln_blocks.") and name.endswith("weight")])
        small_size, size = self.small_width // small_heads, width // heads
        times = size // small_size
        for name, large, count in (("width", width, self.small_width), ("size of a head", size, small_size),
                                   ("number of heads", heads, small_heads),
                                   ("width of the head", head_width, small["head.net.input_proj.weight"].shape[0]),
                                   ("number of blocks of the head", head_depth, self.modulations)):
            if large % count:
                sys.exit(f"the {name} is {large}, expected a multiple of {count}")
        unit = torch.arange(width)
        first = unit // size % small_heads * small_size  # of the unit's small head
        self.value = first + unit % size % small_size
        # A pair's number sets how fast it turns, and the rates of a small head are every times-th of a large one's.
        pair, quarter = unit % size // 2, size // 4  # the first quarter of a head's units are pairs that turn with x
        self.turned = first + (pair // quarter * (small_size // 4) + pair % quarter // times) * 2 + unit % 2
        self.live = (pair % quarter % times == 0).float()[:, None]  # the others are zero in queries and keys
        self.query_scale = (size / small_size) ** 0.5

    def layer(self, name):
        d, small = self.width, self.small_width
        hidden = self.small[name + ".feed_forward.w2.weight"].shape[1] * d // small
        rows = torch.cat([self.turned, small + self.turned, 2 * small + self.value])
        self.linear(name + ".attention.wqkv", 3 * d, d, row_of=rows)
        weight = self.out[name + ".attention.wqkv.weight"]
        weight[:d] *= self.live * self.query_scale
        weight[d:2 * d] *= self.live
        self.linear(name + ".attention.wo", d, d, column_of=self.value)
        self.chunks(name + ".feed_forward.w1", 2, hidden, d)
        self.linear(name + ".feed_forward.w2", d, hidden)
        self.norm(name + ".attention_norm", d)
        self.norm(name + ".ffn_norm", d)

    def head_block(self, name, to):
        w = self.head_width
        hidden = self.small[name + ".w2.weight"].shape[1] * w // self.small[name + ".w2.weight"].shape[0]
        self.norm(name + ".norm", w, to + ".norm")
        self.chunks(name + ".w1", 2, hidden, w, to + ".w1")
        self.linear(name + ".w2", w, hidden, to + ".w2")

    def head(self):
        """A modulation serves as many more blocks as there are; those behind the small model's add zero."""
        net, w = "head.net", self.head_width
        self.linear(net + ".input_proj", w, self.small[net + ".input_proj.weight"].shape[1])
        self.linear(net + ".cond_embed", w, self.width)
        self.linear(net + ".time_embed.mlp.0", w, 256)
        self.linear(net + ".time_embed.mlp.2", w, w)
        small_share, share = self.small_head_depth // self.modulations, self.head_depth // self.modulations
        if share < small_share:
            sys.exit(f"{self.head_depth} blocks of the head, expected at least {self.small_head_depth}")
        for i in range(self.modulations):
            self.chunks(f"{net}.ada_ln_blocks.{i}", 3, w, w)
            for j in range(share):
                to = f"{net}.res_blocks.{i * share + j}"
                if j < small_share:
                    self.head_block(f"{net}.res_blocks.{i * small_share + j}", to)
                else:
                    self.idle_copy(f"{net}.res_blocks.{i * share}", to, (".w2.",))
        self.chunks(net + ".final_layer.ada_ln_modulation", 2, w, w)
        self.linear(net + ".final_layer.linear", self.small[net + ".final_layer.linear.weight"].shape[0], w)

    def run(self):
        d, small = self.width, self.small_width
        spread_units = torch.arange(d) % small
        classes = self.small["cls_embedding.weight"]
        self.out["cls_embedding.weight"] = classes.unflatten(1, (-1, small))[..., spread_units].flatten(1)
        self.out["pos_for_diff.weight"] = self.small["pos_for_diff.weight"][:, spread_units]
        self.linear("proj_in", d, self.small["proj_in.weight"].shape[1])
        for name in ("emb_norm", "norm"):
            self.norm(name, d)
        for i in range(self.depth):
            if i < self.small_depth:
                self.layer(f"layers.{i}")
            else:
                self.idle_copy("layers.0", f"layers.{i}", ("attention.wo", "feed_forward.w2"))
        self.head()
        return self.out | {name: tensor for name, tensor in self.small.items() if name.startswith("vae.")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--depth", type=int, help="blocks, MAR: of encoder and decoder, each [MAR: 12; SphereAR: 24]")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-width", type=int, help="[MAR: 1024; SphereAR: 768]")
    parser.add_argument("--head-depth", type=int, default=6)
    args = parser.parse_args()
    small, metadata = read_safetensors(args.model)
    if "pos_for_diff.weight" in small:
        inflater = SphereInflater(small, int(metadata["mar.heads"]), args.width, args.depth or 24, args.heads,
                                  args.head_width or 768, args.head_depth)
    else:
        inflater = MarInflater(small, load_mar(args.model).config, args.width, args.depth or 12, args.heads,
                               args.head_width or 1024, args.head_depth)
    write_safetensors(args.out, inflater.run(),
                      {**metadata, "mar.heads": args.heads, "mar.role": "inflated " + metadata.get("mar.role", "")})


if __name__ == "__main__":
    main()
