"""VQ tokenizer of LlamaGen (Sun et al. 2024, tokenizer_image/vq_model.py), with the official tensor names.

Shapes: images [B,3,H,W] in [-1,1]; codes [B,L], a token's row in the codebook, row by row of the h x w grid.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from .vae import Resample, ResBlock, SpatialAttention, _norm


@dataclass(frozen=True)
class VqConfig:
    """Official defaults: VQ-16."""
    ch: int = 128
    ch_mult: tuple = (1, 1, 2, 2, 4)
    num_res_blocks: int = 2
    z_channels: int = 256
    codebook: int = 16384
    code_dim: int = 8

    @property
    def stride(self):
        return 2 ** (len(self.ch_mult) - 1)


def _level(inputs, outputs, blocks, attention):
    level = nn.Module()
    widths = [inputs] + [outputs] * blocks
    level.res = nn.ModuleList(ResBlock(a, b) for a, b in zip(widths, widths[1:]))
    level.attn = nn.ModuleList(SpatialAttention(outputs) for _ in range(blocks if attention else 0))
    return level


def _run_level(level, x):
    for index, block in enumerate(level.res):
        x = block(x)
        if len(level.attn):
            x = level.attn[index](x)
    return x


def _middle(channels):
    return nn.ModuleList([ResBlock(channels, channels), SpatialAttention(channels), ResBlock(channels, channels)])


class VqEncoder(nn.Module):
    """[B,3,H,W] -> [B,Z,h,w]"""

    def __init__(self, config):
        super().__init__()
        widths = [config.ch * m for m in (1, *config.ch_mult)]
        last = len(config.ch_mult) - 1
        self.conv_in = nn.Conv2d(3, config.ch, 3, padding=1)
        self.conv_blocks = nn.ModuleList()
        for i in range(last + 1):
            level = _level(widths[i], widths[i + 1], config.num_res_blocks, i == last)
            if i != last:
                level.downsample = Resample(widths[i + 1], up=False)
            self.conv_blocks.append(level)
        self.mid = _middle(widths[-1])
        self.norm_out = _norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], config.z_channels, 3, padding=1)

    def forward(self, x):
        x = self.conv_in(x)
        for level in self.conv_blocks:
            x = _run_level(level, x)
            if hasattr(level, "downsample"):
                x = level.downsample(x)
        for layer in self.mid:
            x = layer(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class VqDecoder(nn.Module):
    """[B,Z,h,w] -> [B,3,H,W]; conv_blocks[0] is the lowest resolution and runs first."""

    def __init__(self, config):
        super().__init__()
        widths = [config.ch * m for m in config.ch_mult]
        last = len(widths) - 1
        self.conv_in = nn.Conv2d(config.z_channels, widths[-1], 3, padding=1)
        self.mid = _middle(widths[-1])
        self.conv_blocks = nn.ModuleList()
        for i in range(last, -1, -1):
            level = _level(widths[min(i + 1, last)], widths[i], config.num_res_blocks + 1, i == last)
            if i != 0:
                level.upsample = Resample(widths[i], up=True)
            self.conv_blocks.append(level)
        self.norm_out = _norm(widths[0])
        self.conv_out = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x):
        x = self.conv_in(x)
        for layer in self.mid:
            x = layer(x)
        for level in self.conv_blocks:
            x = _run_level(level, x)
            if hasattr(level, "upsample"):
                x = level.upsample(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class Quantizer(nn.Module):
    """The codebook: rows and encodings count by their direction, each divided by its length."""

    def __init__(self, codes, dim):
        super().__init__()
        self.embedding = nn.Embedding(codes, dim)
        with torch.no_grad():
            self.embedding.weight.copy_(F.normalize(torch.randn(codes, dim), dim=-1))

    def codebook(self):
        return F.normalize(self.embedding.weight, dim=-1)

    def forward(self, h):
        """h [B,D,h,w] -> (codes [B,L], their rows and the encodings, each of length 1, [B,L,D])"""
        z = F.normalize(h.flatten(2).transpose(1, 2), dim=-1)
        codes = (z @ self.codebook().t()).argmax(-1)
        return codes, self.codebook()[codes], z


class VQ(nn.Module):
    def __init__(self, config=VqConfig()):
        super().__init__()
        self.config = config
        self.encoder = VqEncoder(config)
        self.decoder = VqDecoder(config)
        self.quantize = Quantizer(config.codebook, config.code_dim)
        self.quant_conv = nn.Conv2d(config.z_channels, config.code_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.code_dim, config.z_channels, 1)

    def encode(self, images):
        return self.quantize(self.quant_conv(self.encoder(images)))

    def decode(self, rows):
        """rows of the codebook [B,L,D] of a square grid -> images [B,3,H,W], not clamped"""
        batch, length, dim = rows.shape
        side = round(length ** 0.5)
        return self.decoder(self.post_quant_conv(rows.transpose(1, 2).reshape(batch, dim, side, side)))

    def decode_codes(self, codes):
        return self.decode(self.quantize.codebook()[codes])
