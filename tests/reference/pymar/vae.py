"""KL autoencoder of latent diffusion (KL-16 in MAR), with the official tensor names.

Shapes: images [B,3,H,W] in [-1,1]; latent [B,Z,h,w]; MAR's tokens are the latent times TOKEN_SCALE, row by row.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

TOKEN_SCALE = 0.2325


@dataclass(frozen=True)
class VaeConfig:
    """Official defaults: KL-16."""
    ch: int = 128
    ch_mult: tuple = (1, 1, 2, 2, 4)
    num_res_blocks: int = 2
    z_channels: int = 16
    encoder_attention: bool = True  # also at the encoder's lowest level; official: wherever that is 16 x 16

    @property
    def stride(self):
        return 2 ** (len(self.ch_mult) - 1)


KL16 = VaeConfig()


def _norm(channels):
    return nn.GroupNorm(32, channels, eps=1e-6)


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1 = _norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2 = _norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        if inputs != outputs:
            self.nin_shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x) + h


class SpatialAttention(nn.Module):
    """One head over all pixels."""

    def __init__(self, channels):
        super().__init__()
        self.norm = _norm(channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (conv(h).flatten(2).transpose(1, 2) for conv in (self.q, self.k, self.v))  # [B,hw,C]
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj_out(y.transpose(1, 2).reshape(x.shape))


class Resample(nn.Module):
    """Holds the convolution that halves or doubles the resolution."""

    def __init__(self, channels, up):
        super().__init__()
        self.up = up
        self.conv = nn.Conv2d(channels, channels, 3, padding=1 if up else 0, stride=1 if up else 2)

    def forward(self, x):
        if self.up:
            return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.conv(F.pad(x, (0, 1, 0, 1)))  # the official padding: right and bottom only


def _level(inputs, outputs, blocks, attention):
    level = nn.Module()
    widths = [inputs] + [outputs] * blocks
    level.block = nn.ModuleList(ResBlock(a, b) for a, b in zip(widths, widths[1:]))
    level.attn = nn.ModuleList(SpatialAttention(outputs) for _ in range(blocks if attention else 0))
    return level


def _run_level(level, x):
    for index, block in enumerate(level.block):
        x = block(x)
        if len(level.attn):
            x = level.attn[index](x)
    return x


def _middle(channels):
    mid = nn.Module()
    mid.block_1 = ResBlock(channels, channels)
    mid.attn_1 = SpatialAttention(channels)
    mid.block_2 = ResBlock(channels, channels)
    return mid


def _run_middle(mid, x):
    return mid.block_2(mid.attn_1(mid.block_1(x)))


class Encoder(nn.Module):
    """[B,3,H,W] -> [B,2Z,h,w]"""

    def __init__(self, config):
        super().__init__()
        widths = [config.ch * m for m in (1, *config.ch_mult)]
        last = len(config.ch_mult) - 1
        self.conv_in = nn.Conv2d(3, config.ch, 3, padding=1)
        self.down = nn.ModuleList()
        for i in range(last + 1):
            level = _level(widths[i], widths[i + 1], config.num_res_blocks, config.encoder_attention and i == last)
            if i != last:
                level.downsample = Resample(widths[i + 1], up=False)
            self.down.append(level)
        self.mid = _middle(widths[-1])
        self.norm_out = _norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], 2 * config.z_channels, 3, padding=1)

    def forward(self, x):
        x = self.conv_in(x)
        for level in self.down:
            x = _run_level(level, x)
            if hasattr(level, "downsample"):
                x = level.downsample(x)
        return self.conv_out(F.silu(self.norm_out(_run_middle(self.mid, x))))


class Decoder(nn.Module):
    """[B,Z,h,w] -> [B,3,H,W]"""

    def __init__(self, config):
        super().__init__()
        widths = [config.ch * m for m in config.ch_mult]
        self.conv_in = nn.Conv2d(config.z_channels, widths[-1], 3, padding=1)
        self.mid = _middle(widths[-1])
        levels = []
        for i, width in enumerate(widths):  # up[0] runs last
            level = _level(widths[min(i + 1, len(widths) - 1)], width, config.num_res_blocks + 1, False)
            if i != 0:
                level.upsample = Resample(width, up=True)
            levels.append(level)
        self.up = nn.ModuleList(levels)
        self.norm_out = _norm(widths[0])
        self.conv_out = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, latent):
        x = _run_middle(self.mid, self.conv_in(latent))
        for level in reversed(self.up):
            x = _run_level(level, x)
            if hasattr(level, "upsample"):
                x = level.upsample(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class VAE(nn.Module):
    def __init__(self, config=KL16):
        super().__init__()
        self.config = config
        z = config.z_channels
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.quant_conv = nn.Conv2d(2 * z, 2 * z, 1)
        self.post_quant_conv = nn.Conv2d(z, z, 1)

    def moments(self, images):
        """Mean and log variance of the latent, [B,Z,h,w] each."""
        mean, log_var = self.quant_conv(self.encoder(images)).chunk(2, dim=1)
        return mean, log_var.clamp(-30.0, 20.0)

    def decode(self, latent):
        return self.decoder(self.post_quant_conv(latent))

    def decode_tokens(self, tokens):
        """tokens [B,L,Z] of a square grid -> images [B,3,H,W], not clamped."""
        batch, length, z = tokens.shape
        side = round(length ** 0.5)
        latent = tokens.transpose(1, 2).reshape(batch, z, side, side) / TOKEN_SCALE
        return self.decode(latent)
