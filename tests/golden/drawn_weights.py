"""Weights that tests need not store: numbers drawn by a tensor's name. tests/support/tensor_files.c draws the same
ones by lists of names and shapes in tests/golden/data."""

import numpy as np
import torch

TABLES = ("pos_embed_learned", "positional_embedding", "fake_latent", "mask_token", "class_emb.weight",
          "embed_tokens.weight", "gen_pos_embed")
TAMED = ("final_layer.linear",  # so that tokens are of the size of their noise
         "image_out_projector")  # so that guided tokens do not magnify rounding errors of those before them


def mix(x):
    """splitmix64 of uint64 numbers."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def weight(name, shape):
    """The tensor of this name: uniform numbers by the name's hash (FNV-1a) and the place, scaled by its kind."""
    hashed = 0xCBF29CE484222325
    for byte in name.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 % 2 ** 64
    with np.errstate(over="ignore"):
        bits = mix(np.uint64(hashed) + np.arange(np.prod(shape), dtype=np.uint64))
    u = (bits >> np.uint64(40)).astype(np.float64) / 2 ** 23 - 1
    if len(shape) == 1:
        u = 0.3 * u + name.endswith("weight")  # of a norm
    elif not name.endswith(TABLES):
        tamed = 0.1 if any(x in name for x in TAMED) else 1
        u = u * tamed * 1.3 * np.sqrt(3 / np.prod(shape[1:]))
    return torch.from_numpy(u.astype(np.float32)).reshape(shape)


def weights(model, wanted=("",)):
    """Those of a model's tensors whose names begin so."""
    return {name: weight(name, tensor.shape) for name, tensor in model.state_dict().items() if name.startswith(wanted)}


def write_shapes(path, shapes):
    """The list of names and shapes."""
    path.write_text("".join(f"{name} {' '.join(map(str, shape))}\n" for name, shape in shapes.items()))
