"""SphereAR (Ke and Xue 2025, arXiv 2509.24335): a causal transformer over tokens on a sphere, its flow-matching head, and the
S-VAE, with the official tensor names.

Shapes: B images, L = grid * grid tokens (row by row), C channels of a token, W width. A token has the norm sqrt(C).
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from .gpt import turn

REGISTERS = 4  # tokens in front of the image's in the S-VAE, dropped behind its layers
LAST_STEP = 0.04  # of the sampler, without noise


@dataclass(frozen=True)
class SphereConfig:
    """Official defaults: SphereAR-B at 256x256."""
    width: int = 768
    depth: int = 24
    heads: int = 12
    head_width: int = 768
    head_depth: int = 6
    head_modulations: int = 2  # adaLN layers, each shared by head_depth / head_modulations consecutive blocks
    grid: int = 16
    token_dim: int = 16
    class_tokens: int = 16
    classes: int = 1000


@dataclass(frozen=True)
class SphereVaeConfig:
    """Official defaults. `channels` are the encoder's, from the image to the grid; the decoder's are the same, reversed."""
    channels: tuple = (64, 64, 128, 256, 512)
    heads: int = 8
    encoder_depth: int = 6
    decoder_depth: int = 12
    grid: int = 16
    token_dim: int = 16

    @property
    def stride(self):
        return 2 ** (len(self.channels) - 1)


def on_sphere(x):
    """x [..,C] with the norm sqrt(C)"""
    return F.normalize(x, dim=-1) * math.sqrt(x.shape[-1])


# ------------------------------------------------------------------------------------------------------ transformer

def rotary_2d(grid, head_size, first):
    """cos and sin [first + grid * grid, head_size / 2, 2]: `first` positions that do not turn, then those of the grid, centres
    from 1.5 on. The first half of the pairs turns with x, the second with y."""
    rates = 10000.0 ** (-torch.arange(head_size // 4).float() / (head_size // 4))
    angle = torch.outer(torch.arange(grid).float() + 1.5, rates)
    image = torch.cat([angle[None].expand(grid, -1, -1), angle[:, None].expand(-1, grid, -1)], -1).flatten(0, 1)
    angle = torch.cat([torch.zeros(first, head_size // 2), image])
    return torch.stack([angle.cos(), angle.sin()], -1)


class SphereAttention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.wqkv = nn.Linear(width, 3 * width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x, rotary, past=None):
        """Positions x [B,T,W] behind those whose keys and values `past` has. Returns the output and the keys and values."""
        q, k, v = self.wqkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k, v = (y.transpose(1, 2) for y in (turn(q, *rotary.unbind(-1)), turn(k, *rotary.unbind(-1)), v))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal and q.shape[2] == k.shape[2])
        return self.wo(y.transpose(1, 2).flatten(2)), (k, v)


class SwiGlu(nn.Module):
    """w1 gives both halves."""

    def __init__(self, width, hidden, bias):
        super().__init__()
        self.w1, self.w2 = nn.Linear(width, 2 * hidden, bias=bias), nn.Linear(hidden, width, bias=bias)

    def forward(self, x):
        gate, value = self.w1(x).chunk(2, -1)
        return self.w2(F.silu(gate) * value)


class SphereLayer(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.attention = SphereAttention(width, heads, causal)
        self.feed_forward = SwiGlu(width, -(-(8 * width // 3) // 256) * 256, bias=False)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)

    def forward(self, x, rotary, past=None):
        y, past = self.attention(self.attention_norm(x), rotary, past)
        x = x + y
        return x + self.feed_forward(self.ffn_norm(x)), past


# -------------------------------------------------------------------------------------------------------------- head

class TimeEmbedding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t):
        angle = 1000 * t[:, None] * 10000.0 ** (-torch.arange(128) / 128)
        return self.mlp(torch.cat([angle.cos(), angle.sin()], 1))


class HeadBlock(SwiGlu):
    def __init__(self, width):
        super().__init__(width, width * 3 // 2, bias=True)
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x, scale, shift, gate):
        return x + gate * super().forward(self.norm(x) * (1 + scale) + shift)


class HeadOutput(nn.Module):
    def __init__(self, width, channels):
        super().__init__()
        self.norm_final = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.ada_ln_modulation, self.linear = nn.Linear(width, 2 * width), nn.Linear(width, channels)

    def forward(self, x, y):
        scale, shift = self.ada_ln_modulation(y).chunk(2, -1)
        return self.linear(self.norm_final(x) * (1 + scale) + shift)


class HeadNet(nn.Module):
    """Velocity [N,C] of the states x [N,C] at times t [N], for conditions z [N,W]."""

    def __init__(self, config):
        super().__init__()
        width = config.head_width
        self.time_embed, self.cond_embed = TimeEmbedding(width), nn.Linear(config.width, width)
        self.input_proj = nn.Linear(config.token_dim, width)
        self.res_blocks = nn.ModuleList(HeadBlock(width) for _ in range(config.head_depth))
        self.ada_ln_blocks = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(config.head_modulations))
        self.final_layer = HeadOutput(width, config.token_dim)
        for layer in (*self.ada_ln_blocks, self.final_layer.ada_ln_modulation, self.final_layer.linear):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x, t, z):
        x, y = self.input_proj(x), F.silu(self.time_embed(t) + self.cond_embed(z))
        share = len(self.res_blocks) // len(self.ada_ln_blocks)
        for i, block in enumerate(self.res_blocks):
            if i % share == 0:
                modulation = self.ada_ln_blocks[i // share](y).chunk(3, -1)
            x = block(x, *modulation)
        return self.final_layer(x, y)


class FlowHead(nn.Module):
    """A network of velocities net(x, t, z) with an `input_proj`, as HeadNet is one."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def loss(self, x1, z):
        """Mean squared error of the velocity for tokens x1 [N,C], with a time and a noise of its own for each. The official times
        are logistic-normal alone; a tenth uniform shows the head the ends of [0,1], too."""
        t, noise = torch.randn(len(x1)).sigmoid(), torch.randn_like(x1)
        t = torch.where(torch.rand(len(x1)) < 0.1, torch.rand(len(x1)), t)
        x_t = torch.lerp(noise, x1, t[:, None])
        return F.mse_loss(self.net(x_t, t, z).float(), x1 - noise)

    def sample(self, z, cfg, steps, generator=None):
        """Euler-Maruyama from pure noise at t = 0, then one Euler step. With cfg > 1 the second half of z is unconditional, and
        both halves of the result are the same; with cfg = 1 every row of z draws a token of its own."""
        branches = 2 if cfg > 1 else 1

        def velocity(x, t):
            v = self.net(x.repeat(branches, 1), torch.full((len(z),), t), z).float()
            return v if branches == 1 else torch.lerp(*v.chunk(2)[::-1], cfg)
        x, dt = torch.randn(len(z) // branches, self.net.input_proj.in_features, generator=generator), (1 - LAST_STEP) / steps
        for k in range(steps):
            t = k * dt
            noise = torch.randn(x.shape, generator=generator)
            x = x + dt * ((1 + t) * velocity(x, t) - x) + math.sqrt(2 * (1 - t) * dt) * noise
        return (x + LAST_STEP * velocity(x, 1 - LAST_STEP)).repeat(branches, 1)


# ------------------------------------------------------------------------------------------------------------- S-VAE

class PowerSpherical:
    """The power spherical distribution (De Cao and Aziz 2020) on the unit sphere: density in proportion to
    (1 + mu . x) ** kappa, for directions mu [..,C] and concentrations kappa [..]."""

    def __init__(self, mu, kappa):
        self.mu, self.half = mu, (mu.shape[-1] - 1) / 2
        self.kappa, self.alpha = kappa, kappa + self.half

    def sample(self):
        cosine = 2 * torch.distributions.Beta(self.alpha, torch.full_like(self.alpha, self.half)).rsample()[..., None] - 1
        noise = torch.randn_like(self.mu)
        across = F.normalize(noise - (noise * self.mu).sum(-1, keepdim=True) * self.mu, dim=-1)
        return cosine * self.mu + (1 - cosine.square()).clamp(min=1e-12).sqrt() * across

    def kl_to_uniform(self):
        both, dims = self.alpha + self.half, self.half * 2 + 1
        log_normaliser = both * math.log(2) + self.half * math.log(math.pi) + self.alpha.lgamma() - both.lgamma()
        mean_log = math.log(2) + self.alpha.digamma() - both.digamma()  # of 1 + mu . x
        log_area = math.log(2) + dims / 2 * math.log(math.pi) - math.lgamma(dims / 2)
        return self.kappa * mean_log - log_normaliser + log_area


def group_norm(channels):
    return nn.GroupNorm(min(32, channels // 4), channels, eps=1e-6)


def conv(inputs, outputs, stride=1):
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class DownBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.block = nn.Sequential(group_norm(inputs), nn.SiLU(), conv(inputs, outputs, 2),
                                   group_norm(outputs), nn.SiLU(), conv(outputs, outputs))
        self.shortcut = nn.Conv2d(inputs, outputs, 2, stride=2, bias=False)

    def forward(self, x):
        return self.shortcut(x) + self.block(x)


class UpBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.block = nn.Sequential(group_norm(inputs), nn.SiLU(),
                                   nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1, bias=False),
                                   group_norm(outputs), nn.SiLU(), conv(outputs, outputs))
        self.shortcut = nn.ConvTranspose2d(inputs, outputs, 2, stride=2, bias=False)
        self.block2 = nn.Sequential(group_norm(outputs), nn.SiLU(), conv(outputs, outputs),
                                    group_norm(outputs), nn.SiLU(), conv(outputs, outputs))

    def forward(self, x):
        x = self.shortcut(x) + self.block(x)
        return x + self.block2(x)


class ToTokens(nn.Module):
    def forward(self, x):
        return x.flatten(2).transpose(1, 2)


class ToGrid(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2).unflatten(2, (math.isqrt(x.shape[1]), -1))


class Resampling(nn.Module):
    """Blocks named net.0, net.1, .."""

    def __init__(self, block, channels):
        super().__init__()
        self.net = nn.Sequential(*(block(a, b) for a, b in zip(channels, channels[1:])))

    def forward(self, x):
        return self.net(x)


class Vit(nn.Module):
    """What encoder and decoder share: layers over the tokens of the grid behind the register tokens."""

    def __init__(self, config, depth):
        super().__init__()
        width = config.channels[-1]
        self.register_token = nn.Embedding(REGISTERS, width)
        self.layers = nn.ModuleList(SphereLayer(width, config.heads, causal=False) for _ in range(depth))
        self.register_buffer("freqs_cis", rotary_2d(config.grid, width // config.heads, REGISTERS))

    def run(self, x):
        x = torch.cat([self.register_token.weight.expand(len(x), -1, -1).type_as(x), x], 1)
        for layer in self.layers:
            x = layer(x, self.freqs_cis)[0]
        return x[:, REGISTERS:]


class VitEncoder(Vit):
    def __init__(self, config):
        super().__init__(config, config.encoder_depth)
        width = config.channels[-1]
        self.conv_in = conv(3, config.channels[0])
        self.patchify = nn.Sequential(Resampling(DownBlock, config.channels), ToTokens())
        self.norm, self.output = nn.RMSNorm(width, eps=1e-6), nn.Linear(width, width, bias=False)

    def forward(self, images):
        return self.output(self.norm(self.run(self.patchify(self.conv_in(images)))))


class VitDecoder(Vit):
    def __init__(self, config):
        super().__init__(config, config.decoder_depth)
        width, last = config.channels[-1], config.channels[0]
        self.conv_in = nn.Sequential(ToGrid(), conv(width, width), ToTokens())
        self.unpatchify = nn.Sequential(ToGrid(), Resampling(UpBlock, config.channels[::-1]))
        self.conv_out = nn.Sequential(nn.GroupNorm(16, last, eps=1e-6), nn.SiLU(), conv(last, 3))

    def forward(self, x):
        return self.conv_out(self.unpatchify(self.run(self.conv_in(x))))


class SphereVae(nn.Module):
    """The S-VAE; `encoder` False leaves out what only training needs."""

    def __init__(self, config=SphereVaeConfig(), encoder=True):
        super().__init__()
        self.config = config
        width = config.channels[-1]
        if encoder:
            self.encoder = VitEncoder(config)
            self.quant_proj = nn.Linear(width, config.token_dim + 1)
        self.decoder = VitDecoder(config)
        self.post_quant_proj = nn.Linear(config.token_dim, width, bias=False)
        self.apply(start_weights)

    def posterior(self, images):
        """The distribution of the tokens [B,L,C] / sqrt(C) of images [B,3,H,W] in [-1,1]"""
        mu, kappa = self.quant_proj(self.encoder(images)).float().split([self.config.token_dim, 1], -1)
        return PowerSpherical(F.normalize(mu, dim=-1), F.softplus(kappa[..., 0]) + 1)

    def decode(self, tokens):
        """Images [B,3,H,W] of tokens [B,L,C]"""
        return self.decoder(self.post_quant_proj(tokens))


# ------------------------------------------------------------------------------------------------------------- model

def start_weights(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)


class SphereAR(nn.Module):
    """The transformer and the head; the S-VAE is `vae` if a configuration of it is given."""

    def __init__(self, config=SphereConfig(), vae=None):
        super().__init__()
        self.config, width = config, config.width
        self.cls_embedding = nn.Embedding(config.classes + 1, config.class_tokens * width)  # the last row is unconditional
        self.proj_in = nn.Linear(config.token_dim, width)
        self.emb_norm = nn.RMSNorm(width, eps=1e-6)
        self.layers = nn.ModuleList(SphereLayer(width, config.heads, causal=True) for _ in range(config.depth))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.pos_for_diff = nn.Embedding(config.grid ** 2, width)
        self.apply(start_weights)
        self.head = FlowHead(HeadNet(config))
        if vae is not None:
            self.vae = SphereVae(vae, encoder=False)
        self.rotary = rotary_2d(config.grid, width // config.heads, config.class_tokens)[:-1]

    def class_tokens(self, labels):
        return self.cls_embedding(labels).unflatten(-1, (self.config.class_tokens, -1))

    def layers_from(self, x, first=0, past=None):
        x, keys = self.emb_norm(x), []
        rotary = self.rotary[first:first + x.shape[1]]
        for i, layer in enumerate(self.layers):
            x, layer_keys = layer(x, rotary, past and past[i])
            keys.append(layer_keys)
        return self.norm(x), keys

    def conditions(self, labels, tokens):
        """The head's conditions [B,L,W] for labels [B] (`classes`: none) and tokens [B,L,C]"""
        x = torch.cat([self.class_tokens(labels), self.proj_in(tokens[:, :-1])], 1)
        return self.layers_from(x)[0][:, self.config.class_tokens - 1:] + self.pos_for_diff.weight


@torch.no_grad()
def generate_sphere(model, labels, cfg=1.0, steps=100, schedule="linear", generator=None):
    """Tokens [B,L,C] for labels [B], as the official sample() draws them: where the scale is 1, both branches draw a token of
    their own, with the linear schedule so the first."""
    both = torch.cat([labels, torch.full_like(labels, model.config.classes)]) if cfg > 1 else labels
    seq_len, x, past, first, tokens = model.config.grid ** 2, model.class_tokens(both), None, 0, []
    for i in range(seq_len):
        features, past = model.layers_from(x, first, past)
        first += x.shape[1]
        scale = 1 + (cfg - 1) * (i / seq_len if schedule == "linear" else 1)
        token = on_sphere(model.head.sample(features[:, -1] + model.pos_for_diff.weight[i], scale, steps, generator))
        tokens.append(token[:len(labels)])
        x = model.proj_in(token)[:, None]
    return torch.stack(tokens, 1)
