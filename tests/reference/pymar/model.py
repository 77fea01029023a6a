"""MAR transformer, diffusion head and the generation loop. Tensor names are those of the official checkpoints.

Shapes: B images, L tokens (seq_len), C channels per token, W transformer width, D head width, N rows of the head.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from .diffusion import sample_chain


@dataclass(frozen=True)
class MarConfig:
    """Official defaults: MAR-B at 256x256 with KL-16."""
    width: int = 768
    depth: int = 12          # of the encoder, and of the decoder
    heads: int = 12
    seq_len: int = 256
    token_dim: int = 16
    buffer: int = 64
    classes: int = 1000
    head_width: int = 1024
    head_depth: int = 6
    dropout: float = 0.0

    def with_(self, **changes):
        return replace(self, **changes)


ARCHS = {
    "mar_base": MarConfig(),
    "mar_large": MarConfig(width=1024, depth=16, heads=16, head_width=1280, head_depth=8),
    "mar_huge": MarConfig(width=1280, depth=20, heads=16, head_width=1536, head_depth=12),
}


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0))
        return self.drop(self.proj(y.transpose(1, 2).reshape(batch, length, width)))


class Mlp(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))


class Block(nn.Module):
    """Pre-norm transformer block, [B,T,W] -> [B,T,W]."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width, dropout)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TimeEmbedding(nn.Module):
    FREQUENCIES = 256

    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(self.FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t):
        """t [N] -> [N,D]"""
        half = self.FREQUENCIES // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32, device=t.device) / half)
        angle = t[:, None].float() * rates[None]
        return self.mlp(torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.mlp[0].weight.dtype))


def _modulation(width, parts):
    return nn.Sequential(nn.SiLU(), nn.Linear(width, parts * width))


class HeadBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = _modulation(width, 3)

    def forward(self, x, y):
        shift, scale, gate = self.adaLN_modulation(y).chunk(3, dim=-1)
        return x + gate * self.mlp(self.in_ln(x) * (1 + scale) + shift)


class FinalLayer(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.norm_final = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(width, out)
        self.adaLN_modulation = _modulation(width, 2)

    def forward(self, x, y):
        shift, scale = self.adaLN_modulation(y).chunk(2, dim=-1)
        return self.linear(self.norm_final(x) * (1 + scale) + shift)


class Head(nn.Module):
    """The per-token denoising MLP: x_t [N,C], t [N], z [N,W] -> [N,2C] (eps, variance fraction)."""

    def __init__(self, channels, z_width, width, depth):
        super().__init__()
        self.channels = channels
        self.time_embed = TimeEmbedding(width)
        self.cond_embed = nn.Linear(z_width, width)
        self.input_proj = nn.Linear(channels, width)
        self.res_blocks = nn.ModuleList(HeadBlock(width) for _ in range(depth))
        self.final_layer = FinalLayer(width, 2 * channels)

    def forward(self, x, t, z):
        y = self.time_embed(t) + self.cond_embed(z)
        x = self.input_proj(x)
        for block in self.res_blocks:
            x = block(x, y)
        return self.final_layer(x, y)

    def guided(self, x, t, z, scale):
        """Classifier-free guidance on eps only; the variance stays the conditional one.

        z [2N,W]: the conditional rows, then the unconditional. x [N,C] is shared. Returns [N,2C].
        """
        out = self(torch.cat([x, x]), torch.cat([t, t]), z)
        cond, uncond = out.chunk(2)
        eps_c, v = cond.chunk(2, dim=-1)
        eps_u = uncond[:, :self.channels]
        return torch.cat([eps_u + scale * (eps_c - eps_u), v], dim=-1)


class DiffLoss(nn.Module):
    """Only there to give the head its official name, diffloss.net."""

    def __init__(self, net):
        super().__init__()
        self.net = net


class MAR(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = c = config
        self.class_emb = nn.Embedding(c.classes, c.width)
        self.fake_latent = nn.Parameter(torch.zeros(1, c.width))  # the "class" of unconditional generation
        self.z_proj = nn.Linear(c.token_dim, c.width)
        self.z_proj_ln = nn.LayerNorm(c.width, eps=1e-6)
        self.encoder_pos_embed_learned = nn.Parameter(torch.zeros(1, c.buffer + c.seq_len, c.width))
        self.encoder_blocks = nn.ModuleList(Block(c.width, c.heads, c.dropout) for _ in range(c.depth))
        self.encoder_norm = nn.LayerNorm(c.width, eps=1e-6)
        self.decoder_embed = nn.Linear(c.width, c.width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, c.width))
        self.decoder_pos_embed_learned = nn.Parameter(torch.zeros(1, c.buffer + c.seq_len, c.width))
        self.decoder_blocks = nn.ModuleList(Block(c.width, c.heads, c.dropout) for _ in range(c.depth))
        self.decoder_norm = nn.LayerNorm(c.width, eps=1e-6)
        self.diffusion_pos_embed_learned = nn.Parameter(torch.zeros(1, c.seq_len, c.width))
        self.diffloss = DiffLoss(Head(c.token_dim, c.width, c.head_width, c.head_depth))
        self.initialize()

    @property
    def head(self):
        return self.diffloss.net

    def initialize(self):
        """The usual start of training: adaLN and output layers of the head are zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for name in ("fake_latent", "mask_token", "encoder_pos_embed_learned", "decoder_pos_embed_learned",
                     "diffusion_pos_embed_learned"):
            nn.init.normal_(getattr(self, name), std=0.02)
        nn.init.normal_(self.class_emb.weight, std=0.02)
        for index in (0, 2):
            nn.init.normal_(self.head.time_embed.mlp[index].weight, std=0.02)
        for layer in [*self.head.res_blocks, self.head.final_layer]:
            nn.init.zeros_(layer.adaLN_modulation[1].weight)
        nn.init.zeros_(self.head.final_layer.linear.weight)

    def class_embedding(self, labels, drop=None):
        """labels [B] (None: unconditional, one row), drop [B] bool: rows that lose their class. Returns [B,W]."""
        if labels is None:
            return self.fake_latent
        y = self.class_emb(labels)
        return y if drop is None else torch.where(drop[:, None], self.fake_latent, y)

    def encode(self, tokens, mask, y):
        """tokens [B,L,C], mask [B,L] bool (True: unknown; the same count in every row), y [B,W] -> [B,buffer+known,W]."""
        batch, buffer = tokens.shape[0], self.config.buffer
        x = torch.cat([y[:, None].expand(-1, buffer, -1), self.z_proj(tokens)], dim=1)
        x = self.z_proj_ln(x + self.encoder_pos_embed_learned)
        x = x[self._visible(mask)].view(batch, -1, x.shape[-1])
        return self.encoder_stack(x)

    def encoder_stack(self, x):
        for block in self.encoder_blocks:
            x = block(x)
        return self.encoder_norm(x)

    def decode(self, x, mask):
        """x [B,buffer+known,W], mask [B,L] -> z [B,L,W]"""
        x = self.decoder_embed(x)
        visible = self._visible(mask)
        full = self.mask_token.to(x.dtype).expand(*visible.shape, -1).clone()
        full[visible] = x.reshape(-1, x.shape[-1])
        x = full + self.decoder_pos_embed_learned
        return self.decoder_stack(x)[:, self.config.buffer:] + self.diffusion_pos_embed_learned

    def decoder_stack(self, x):
        for block in self.decoder_blocks:
            x = block(x)
        return self.decoder_norm(x)

    def _visible(self, mask):
        return torch.cat([mask.new_ones(mask.shape[0], self.config.buffer), ~mask], dim=1)


def generation_plan(seq_len, num_iter, cfg=1.0, cfg_schedule="linear"):
    """[(tokens still masked before the step, and after it, guidance scale)] for each autoregressive step.

    The k-th step predicts the tokens order[after:before]; the last one predicts all that are left. Its `after` still
    reads 1 in the guidance formula, as in the official loop.
    """
    if cfg_schedule not in ("linear", "constant"):
        raise ValueError(f"cfg_schedule must be linear or constant, got {cfg_schedule}")
    plan, before = [], seq_len
    for step in range(num_iter):
        wanted = math.floor(seq_len * math.cos(math.pi / 2 * (step + 1) / num_iter))
        after = max(1, min(before - 1, wanted))
        scale = 1 + (cfg - 1) * (seq_len - after) / seq_len if cfg_schedule == "linear" else cfg
        plan.append((before, 0 if step == num_iter - 1 else after, scale))
        before = after
    return plan


def torch_noise(token_dim, steps, generator=None):
    """A noise_fn for generate() from PyTorch's own generator."""
    def noise_fn(step, images, positions):
        count = len(images)
        return (torch.randn(count, token_dim, generator=generator),
                torch.randn(steps, count, token_dim, generator=generator))
    return noise_fn


def sample_tokens(model, schedule, z, scale, x_T, noise, temperature):
    """The head's chain for N tokens: [N,C]. z: [N,W], or with guidance (scale not None) [2N,W], conditional rows first."""
    if scale is None:
        def head(x, t):
            return model.head(x, t, z)
    else:
        def head(x, t):
            return model.head.guided(x, t, z, scale)
    return sample_chain(schedule, head, x_T, noise, temperature)


@torch.no_grad()
def generate(model, labels, num_iter, cfg, cfg_schedule, temperature, schedule, orders, noise_fn, trace=None,
             chain=sample_tokens):
    """The official generation loop. Returns tokens [B,L,C].

    labels: [B] or None (unconditional).  orders: [B,L], a permutation per row: tokens are made from its end to its start.
    schedule: a Schedule; its steps are num_sampling_steps.
    noise_fn(step, images [N], positions [N]) -> (x_T [N,C], noise [steps,N,C]): the noise of the given tokens; rows come
    image by image, positions ascending. noise[i] belongs to step index i (i = 0 is the last, which adds none).
    trace: called per step with a dict of mask, predict [B,L], z, scale, x_T, made.  chain: replaces sample_tokens.
    """
    length, batch, guided = model.config.seq_len, orders.shape[0], cfg != 1.0

    def twice(rows):
        return torch.cat([rows, rows]) if guided else rows
    y = model.class_embedding(labels).expand(batch, -1)
    if guided:
        y = torch.cat([y, model.fake_latent.expand(batch, -1)])
    tokens = torch.zeros(batch, length, model.config.token_dim, dtype=y.dtype, device=orders.device)
    rank = orders.argsort(dim=1)  # position -> place in the order
    for step, (before, after, scale) in enumerate(generation_plan(length, num_iter, cfg, cfg_schedule)):
        if before == after:  # more steps than tokens
            continue
        mask = rank < before
        predict = mask & (rank >= after)
        z = model.decode(model.encode(twice(tokens), twice(mask), y), twice(mask))
        z = z[twice(predict)]
        x_T, noise = noise_fn(step, *predict.nonzero(as_tuple=True))
        made = chain(model, schedule, z, scale if guided else None, x_T, noise, temperature)
        tokens[predict] = made.to(tokens.dtype)
        if trace is not None:
            trace(dict(step=step, mask=mask, predict=predict, z=z, scale=scale, x_T=x_T, made=made))
    return tokens.float()
