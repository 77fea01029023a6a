"""LlamaGen's transformer (Sun et al. 2024, autoregressive/models/gpt.py and generate.py), of classes or of captions, with
the official tensor names, and an EAGLE drafter over it (Li et al. 2024) with the names that libmar reads.

Shapes: B images, L tokens (seq_len, row by row of a square), W width, P positions before the tokens: 1 for a class, a
caption's number of features else; T = P + L positions.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class GptConfig:
    """Official defaults: GPT-B at 256x256."""
    width: int = 768
    depth: int = 12
    heads: int = 12
    hidden: int = 2048  # of the SwiGLU
    vocabulary: int = 16384
    seq_len: int = 256
    classes: int = 1000
    dropout: float = 0.0  # of the embedded tokens
    caption_tokens: int = 0  # text-to-image: features of a caption
    caption_dim: int = 0

    @property
    def prefix(self):
        return self.caption_tokens or 1


def rotary_table(seq_len, head_size, prefix=1):
    """cos and sin [prefix + seq_len, head_size / 2] of every position's pairs: the first half turns with the row, the second
    with the column. At the prefix both are 0, so that its queries and keys are."""
    side, pairs = math.isqrt(seq_len), head_size // 4
    rates = 1.0 / 10000 ** (torch.arange(pairs).float() / pairs)
    angle = torch.outer(torch.arange(side).float(), rates)
    grid = torch.cat([angle[:, None].expand(-1, side, -1), angle[None].expand(side, -1, -1)], -1).flatten(0, 1)
    none = torch.zeros(prefix, 2 * pairs)
    return torch.cat([none, grid.cos()]), torch.cat([none, grid.sin()])


def turn(x, cos, sin):
    """x [B,T,heads,head size], its pairs interleaved, turned by the angles of their positions"""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).type_as(x)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class CausalAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.wqkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.wo = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x, cos, sin, past=None, hidden=None):
        """Positions x [B,T,W] behind those whose keys and values `past` has. hidden [B,1,1,n]: the first n positions, where it
        is true, are seen by themselves only. Returns the output and the keys and values."""
        q, k, v = self.wqkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k, v = turn(q, cos, sin).transpose(1, 2), turn(k, cos, sin).transpose(1, 2), v.transpose(1, 2)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
        if hidden is not None:
            others = ~torch.eye(k.shape[2], dtype=torch.bool)[k.shape[2] - q.shape[2]:]
            later = later | F.pad(hidden, (0, k.shape[2] - hidden.shape[-1])) & others
        weight = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(later, -math.inf).softmax(-1)
        return self.wo((weight.type_as(v) @ v).transpose(1, 2).flatten(2)), (k, v)


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.w1 = nn.Linear(config.width, config.hidden, bias=False)
        self.w3 = nn.Linear(config.width, config.hidden, bias=False)
        self.w2 = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class GptBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention, self.feed_forward = CausalAttention(config), FeedForward(config)
        self.attention_norm, self.ffn_norm = RmsNorm(config.width), RmsNorm(config.width)

    def forward(self, x, cos, sin, past=None, hidden=None):
        y, past = self.attention(self.attention_norm(x), cos, sin, past, hidden)
        x = x + y
        return x + self.feed_forward(self.ffn_norm(x)), past


class ClassTable(nn.Module):
    """The last row is the unconditional class."""

    def __init__(self, config):
        super().__init__()
        self.embedding_table = nn.Embedding(config.classes + 1, config.width)

    def forward(self, labels):
        """labels [B] (`classes`: none) -> [B,1,W]"""
        return self.embedding_table(labels)[:, None]


class CaptionTable(nn.Module):
    """Two layers over a caption's features; uncond_embedding takes the place of the features of no caption."""

    def __init__(self, config):
        super().__init__()
        self.cap_proj = nn.Module()
        self.cap_proj.fc1 = nn.Linear(config.caption_dim, config.width, bias=False)
        self.cap_proj.fc2 = nn.Linear(config.width, config.width, bias=False)
        self.uncond_embedding = nn.Parameter(torch.randn(config.caption_tokens, config.caption_dim) / config.caption_dim ** 0.5)

    def forward(self, features, without=None):
        """features [B,P,caption_dim] -> [B,P,W]; without [B]: images without caption"""
        if without is not None:
            features = torch.where(without[:, None, None], self.uncond_embedding.type_as(features), features)
        return self.cap_proj.fc2(F.gelu(self.cap_proj.fc1(features), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, config=GptConfig()):
        super().__init__()
        self.config = config
        self.cls_embedding = CaptionTable(config) if config.caption_tokens else ClassTable(config)
        self.tok_embeddings = nn.Embedding(config.vocabulary, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(GptBlock(config) for _ in range(config.depth))
        self.norm = RmsNorm(config.width)
        self.output = nn.Linear(config.width, config.vocabulary, bias=False)
        self.rotary = rotary_table(config.seq_len, config.width // config.heads, config.prefix)
        self.apply(start_weights)
        nn.init.zeros_(self.output.weight)

    def features(self, labels, codes):
        """What the output layer sees [B,1+n,W], for labels [B] (`classes`: none) and the first codes [B,n]."""
        return self.layers_from(torch.cat([self.cls_embedding(labels), self.tok_embeddings(codes)], 1))[0]

    def caption_logits(self, features, mask, codes, without=None):
        """Logits [B,1+n,vocabulary] of captions with features [B,P,caption_dim] and mask [B,P] and the first codes [B,n]."""
        x = torch.cat([self.cls_embedding(features, without), self.tok_embeddings(codes)], 1)
        x = self.layers_from(x, hidden=~mask.bool()[:, None, None])[0]
        return self.output(x[:, self.config.prefix - 1:]).float()

    def layers_from(self, x, first=0, past=None, hidden=None):
        x, keys = self.drop(x), []
        cos, sin = (table[first:first + x.shape[1]] for table in self.rotary)
        for i, layer in enumerate(self.layers):
            x, layer_keys = layer(x, cos, sin, past and past[i], hidden)
            keys.append(layer_keys)
        return self.norm(x), keys

    def forward(self, labels, codes):
        """Logits [B,1+n,vocabulary]; those at position i are of token i."""
        return self.output(self.features(labels, codes)).float()


def start_weights(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)


def filter_logits(logits, top_k=0, top_p=1.0):
    """Official top-k (ties with the k-th stay), then top-p (the first token that passes p stays)."""
    if top_k > 0:
        least = logits.topk(min(top_k, logits.shape[-1])).values[..., -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if top_p < 1.0:
        ordered, order = logits.sort(descending=True)
        out = ordered.softmax(-1).cumsum(-1) > top_p
        out = torch.cat([torch.zeros_like(out[..., :1]), out[..., :-1]], -1)
        logits = logits.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -math.inf)
    return logits


def prefix_of(model, condition, cfg):
    """The embedded positions before the tokens, of both branches, and which of them are hidden: of labels [B], or of
    captions (features, mask)."""
    if not model.config.caption_tokens:
        both = torch.cat([condition, torch.full_like(condition, model.config.classes)]) if cfg > 1 else condition
        return model.cls_embedding(both), None
    features, mask = condition
    if cfg > 1:
        features, mask = torch.cat([features, model.cls_embedding.uncond_embedding.expand_as(features)]), torch.cat([mask, mask])
    return model.cls_embedding(features), ~mask.bool()[:, None, None]


@torch.no_grad()
def generate_codes(model, condition, cfg=1.0, temperature=1.0, top_k=0, top_p=1.0, cfg_interval=-1, generator=None):
    """Codes [B,L] for labels [B] or captions (features, mask), drawn one after the other as the official generate() does;
    temperature 0: greedy."""
    (x, hidden), past, codes, first = prefix_of(model, condition, cfg), None, [], 0
    for i in range(model.config.seq_len):
        length = x.shape[1]
        x, past = model.layers_from(x, first, past, hidden)
        first += length
        logits = model.output(x[:, -1]).float()
        if cfg > 1:
            logits, without = logits.chunk(2)
            if cfg_interval < 0 or i - 1 <= cfg_interval:
                logits = without + (logits - without) * cfg
        probs = filter_logits(logits / max(temperature, 1e-5), top_k, top_p).softmax(-1)
        code = torch.multinomial(probs, 1, generator=generator)[:, 0] if temperature > 0 else probs.argmax(-1)
        codes.append(code)
        x = model.tok_embeddings(torch.cat([code, code]) if cfg > 1 else code)[:, None]
    return torch.stack(codes, 1)


class Eagle(nn.Module):
    """Predicts a model's next feature from its last feature and the token that came after it.

    Position i is token i, as the transformer embeds it, with the feature of the position before, from which that token was
    drawn; it has token i's rotary turn. What comes out stands for the feature of token i's position, so that
    the model's output layer makes of it the distribution of token i + 1."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.width, config.width, bias=False)
        self.layers = nn.ModuleList([GptBlock(config)])
        self.rotary = rotary_table(config.seq_len, config.width // config.heads)
        self.apply(start_weights)

    def forward(self, embedded, features, first=0, past=None):
        """Embeddings [B,n,W] of tokens first..first+n-1, and the features [B,n,W] of the positions before them."""
        x = self.fc(torch.cat([embedded, features], -1))
        cos, sin = (table[1 + first:1 + first + x.shape[1]] for table in self.rotary)
        return self.layers[0](x, cos, sin, past)
