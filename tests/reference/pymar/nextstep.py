"""The network of NextStep-1's flow head (stepfun-ai/NextStep-1), with the official tensor names; spherear.FlowHead draws with it."""

import torch
import torch.nn.functional as F
from torch import nn


class TimeEmbedding(nn.Module):
    """Of the time in [0,1] itself, where SphereAR's is of a thousand times it."""

    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t):
        angle = t[:, None] * 10000.0 ** (-torch.arange(128) / 128)
        return self.mlp(torch.cat([angle.cos(), angle.sin()], 1))


def modulation(width, parts):
    layer = nn.Linear(width, parts * width)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.SiLU(), layer)


class HeadBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = modulation(width, 3)

    def forward(self, x, y):
        shift, scale, gate = self.adaLN_modulation(y).chunk(3, -1)
        return x + gate * self.mlp(self.in_ln(x) * (1 + scale) + shift)


class FinalLayer(nn.Module):
    def __init__(self, width, token_dim):
        super().__init__()
        self.linear, self.adaLN_modulation = nn.Linear(width, token_dim), modulation(width, 2)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x, y):
        shift, scale = self.adaLN_modulation(y).chunk(2, -1)
        return self.linear(F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift)


class NextStepNet(nn.Module):
    """Velocity [N,token_dim] of the states x [N,token_dim] at times t [N], for conditions c [N,condition]."""

    def __init__(self, width, depth, token_dim, condition):
        super().__init__()
        self.time_embed, self.cond_embed = TimeEmbedding(width), nn.Linear(condition, width)
        self.input_proj = nn.Linear(token_dim, width)
        self.res_blocks = nn.ModuleList(HeadBlock(width) for _ in range(depth))
        self.final_layer = FinalLayer(width, token_dim)

    def forward(self, x, t, c):
        x, y = self.input_proj(x), self.time_embed(t) + self.cond_embed(c)
        for block in self.res_blocks:
            x = block(x, y)
        return self.final_layer(x, y)
