"""A folder as Hugging Face writes flan-t5-xl's, with random weights: the encoder's tensors and a few of the decoder's, in
shards. One tensor at a time is in memory."""

import json
import math
import struct
from pathlib import Path

import torch

T5S = {  # width, head size, hidden, layers, heads
    "flan_t5_base": (768, 64, 2048, 12, 12),
    "flan_t5_xl": (2048, 64, 5120, 24, 32),
}
VOCABULARY, BUCKETS, SHARD_BYTES = 32128, 32, 3 << 30


def shapes(arch):
    width, head, hidden, layers, heads = T5S[arch]
    inner = head * heads
    yield "shared.weight", (VOCABULARY, width)
    for i in range(layers):
        block = f"encoder.block.{i}.layer"
        for name in "qkv":
            yield f"{block}.0.SelfAttention.{name}.weight", (inner, width)
        yield f"{block}.0.SelfAttention.o.weight", (width, inner)
        if i == 0:
            yield f"{block}.0.SelfAttention.relative_attention_bias.weight", (BUCKETS, heads)
        yield f"{block}.0.layer_norm.weight", (width,)
        for name in ("wi_0", "wi_1"):
            yield f"{block}.1.DenseReluDense.{name}.weight", (hidden, width)
        yield f"{block}.1.DenseReluDense.wo.weight", (width, hidden)
        yield f"{block}.1.layer_norm.weight", (width,)
    yield "encoder.final_layer_norm.weight", (width,)
    yield "decoder.block.0.layer.0.SelfAttention.q.weight", (inner, width)
    yield "decoder.final_layer_norm.weight", (width,)


def values(name, shape, head, generator):
    """Hidden states keep their size: T5 divides no scores, so its queries are small."""
    x = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return 1 + 0.05 * x
    if "relative" in name or name == "shared.weight":
        return x
    scale = 0.8 / math.sqrt(shape[1])
    return x * (scale / math.sqrt(head) if ".q." in name else scale)


def write_shard(path, tensors, dtype, head, generator):
    """Writes safetensors piece by piece."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    size = torch.empty((), dtype=dtype).element_size()
    for name, shape in tensors:
        n = math.prod(shape) * size
        header[name] = {"dtype": "F32" if size == 4 else "BF16", "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            x = values(name, shape, head, generator).to(dtype)
            file.write(x.view(torch.uint8 if size == 1 else torch.int32 if size == 4 else torch.int16).numpy().tobytes())


def write_t5(arch, folder, dtype, seed=0):
    folder, generator = Path(folder), torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    width, head, hidden, layers, heads = T5S[arch]
    shards, used = [[]], 0
    for name, shape in shapes(arch):
        n = 4 * math.prod(shape)
        if used + n > SHARD_BYTES:
            shards, used = [*shards, []], 0
        shards[-1].append((name, shape))
        used += n
    index = {"metadata": {}, "weight_map": {}}
    for i, tensors in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        write_shard(folder / name, tensors, dtype, head, generator)
        index["weight_map"] |= {tensor: name for tensor, _ in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": VOCABULARY, "d_model": width,
        "d_kv": head, "d_ff": hidden, "num_layers": layers, "num_heads": heads, "relative_attention_num_buckets": BUCKETS,
        "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6, "feed_forward_proj": "gated-gelu"}, indent=1))
