"""Golden data for the operations of causal transformers: RMS norm, SwiGLU, rotated positions, attention with a mask.
python3 tests/golden/make_causal.py  ->  tests/golden/data/causal.safetensors"""

import sys
from pathlib import Path

import torch
from torch.nn import functional

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "reference"))

from pymar.io import write_safetensors  # noqa: E402

ROWS, DIM, HIDDEN = 5, 100, 75
POSITIONS, QUERIES, SLOTS, HEADS = 7, 6, 11, 2


def norm(tensors):
    x = torch.randn(ROWS, DIM) * 3 + 1
    weight = torch.randn(DIM)
    tensors |= {"norm.x": x, "norm.weight": weight, "norm.y": functional.rms_norm(x, (DIM,), weight, 1e-5)}


def gated(tensors):
    x = torch.randn(ROWS, 2 * HIDDEN) * 3
    tensors |= {"swiglu.x": x, "swiglu.y": functional.silu(x[:, :HIDDEN]) * x[:, HIDDEN:]}


def rotated(tensors, size):
    """Pairs as complex numbers. The first position's factors are all 0, as a class token's are."""
    angle = torch.rand(POSITIONS, size // 2) * 20
    turn = torch.stack([angle.cos(), angle.sin()], -1)
    turn[0] = 0
    position = torch.tensor([3, 0, 6, 6, 1])
    qkv = torch.randn(ROWS, 3, HEADS, size)
    pairs = torch.view_as_complex(qkv[:, :2].reshape(ROWS, 2, HEADS, -1, 2).contiguous())
    factors = torch.view_as_complex(turn)[position].reshape(ROWS, 1, 1, -1)
    turned = torch.view_as_real(pairs * factors).flatten(3)
    tensors |= {f"rotate{size}.turn": turn.flatten(1), f"rotate{size}.position": position.float(),
                f"rotate{size}.qkv": qkv.flatten(1), f"rotate{size}.q": turned[:, 0].flatten(1),
                f"rotate{size}.k": turned[:, 1].flatten(1), f"rotate{size}.v": qkv[:, 2].flatten(1)}


def attention(tensors, size):
    q, k, v = (torch.randn(HEADS, n, size) * s for n, s in ((QUERIES, 2), (SLOTS, 1), (SLOTS, 1)))
    known = torch.rand(QUERIES, SLOTS) < 0.5
    known[:, 4] = True
    known[0] = False
    known[0, 7] = True
    y = functional.scaled_dot_product_attention(q, k, v, attn_mask=known)
    rows = {"q": q, "k": k, "v": v, "y": y}
    tensors |= {f"attention{size}.{name}": t.transpose(0, 1).flatten(1) for name, t in rows.items()}
    tensors[f"attention{size}.known"] = known.float()


def main():
    torch.manual_seed(15)
    tensors = {}
    norm(tensors)
    gated(tensors)
    for size in (64, 100):
        rotated(tensors, size)
        attention(tensors, size)
    write_safetensors(HERE / "data/causal.safetensors", tensors, {"made_by": "tests/golden/make_causal.py"})


if __name__ == "__main__":
    main()
