#!/usr/bin/env python3
"""Write a checkpoint of MAR-B's widths and depths that computes what a small one computes.

    python3 tools/dev/inflate_checkpoint.py --model weights/demo/target.safetensors --out demo_wide.safetensors

Acceptance rates need a trained model, timings a large one; this is both. The wide model repeats every hidden unit of the
small one. This leaves layer norms unchanged; the weights that read a unit are divided by the number of copies. The
additional blocks add exactly zero at full cost. Tokens, classes and the sequence are the small model's, so a step of the
wide model draws as many tokens as one of the small model.
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
    def __init__(self, small, config, width, depth, heads, head_width, head_depth):
        self.small, self.config, self.out = small, config, {}
        self.width, self.depth, self.heads, self.head_width, self.head_depth = width, depth, heads, head_width, head_depth
        small_size, size = config.width // config.heads, width // heads
        unit = torch.arange(width)  # attention: copies of heads, and of the units inside a head
        self.unit = unit // size % config.heads * small_size + unit % size % small_size
        self.query_scale = (small_size / size) * (size / small_size) ** 0.5  # the dot product counts each unit size/small_size times

    def linear(self, name, rows, columns, to=None, **maps):
        self.out[(to or name) + ".weight"] = widen(self.small[name + ".weight"], rows, columns, **maps)
        bias = self.small[name + ".bias"]
        row_of = maps.get("row_of")
        self.out[(to or name) + ".bias"] = spread(bias, rows) if row_of is None else bias[row_of]

    def chunks(self, name, count, width, columns):
        """`count` vectors of the block's width side by side: each is widened by itself."""
        small = self.small[name + ".bias"].shape[0] // count
        row_of = torch.cat([c * small + torch.arange(width) % small for c in range(count)])
        self.linear(name, count * width, columns, row_of=row_of)

    def norm(self, name, width):
        for part in ("weight", "bias"):
            self.out[f"{name}.{part}"] = spread(self.small[f"{name}.{part}"], width)

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

    def idle_copy(self, name, to, silent):
        """A block that adds zero: the tensors of `name`, those named in `silent` zeroed."""
        for key in [k for k in self.out if k.startswith(name + ".")]:
            tensor = self.out[key]
            self.out[to + key[len(name):]] = torch.zeros_like(tensor) if any(s in key for s in silent) else tensor.clone()

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--depth", type=int, default=12, help="blocks of encoder and decoder, each")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-width", type=int, default=1024)
    parser.add_argument("--head-depth", type=int, default=6)
    args = parser.parse_args()
    small, metadata = read_safetensors(args.model)
    config = load_mar(args.model).config
    wide = Inflater(small, config, args.width, args.depth, args.heads, args.head_width, args.head_depth).run()
    write_safetensors(args.out, wide, {**metadata, "mar.heads": args.heads, "mar.role": "inflated " + metadata.get("mar.role", "")})


if __name__ == "__main__":
    main()
