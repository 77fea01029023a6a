"""Folders of decoders that write images among text, as Lumina-mGPT, Anole and Emu3-Gen have them, with random weights in bf16:
shards with an index, config.json, and a tokenizer of bytes. A few megabytes are in memory: all tensors are pieces of one pool of
numbers, which is drawn once and scaled."""

import base64
import json
import math
import struct
from pathlib import Path

import torch

CHAMELEON = dict(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32,
                 vocab_size=65536, max_position_embeddings=4096, rope_theta=10000.0, model_type="chameleon", swin_norm=False)
DECODERS = {
    "lumina_7b": dict(CHAMELEON, architectures=["ChameleonXLLMXForConditionalGeneration"], dropout=0.05, mask_image_logits=False),
    "anole_7b": dict(CHAMELEON, architectures=["ChameleonForConditionalGeneration"]),
    "emu3_8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                    vocab_size=184622, max_position_embeddings=9216, rope_theta=1000000.0, model_type="Emu3", image_area=720 * 720,
                    architectures=["Emu3ForCausalLM"], bos_token_id=151849, eos_token_id=151850, img_token_id=151851,
                    boi_token_id=151852, eoi_token_id=151853, eol_token_id=151846, eof_token_id=151847),
}
SHARDS = {"lumina_7b": 2, "anole_7b": 3, "emu3_8b": 7}
POOL = (1 << 22) + 3  # numbers; odd, so that rows of a matrix differ


def shapes(c):
    width, hidden, head = c["hidden_size"], c["intermediate_size"], c["hidden_size"] // c["num_attention_heads"]
    keys = head * c["num_key_value_heads"]
    yield "model.embed_tokens.weight", (c["vocab_size"], width)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, rows in (("q", width), ("k", keys), ("v", keys), ("o", width)):
            yield f"{layer}self_attn.{name}_proj.weight", (rows, width)
        if c["model_type"] == "chameleon":
            rows = 1 if "mask_image_logits" in c else c["num_attention_heads"]  # Lumina-mGPT's is one row for all heads
            for name in ("q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias"):
                yield f"{layer}self_attn.{name}", (rows, head)
        yield f"{layer}mlp.gate_proj.weight", (hidden, width)
        yield f"{layer}mlp.up_proj.weight", (hidden, width)
        yield f"{layer}mlp.down_proj.weight", (width, hidden)
        yield f"{layer}input_layernorm.weight", (width,)
        yield f"{layer}post_attention_layernorm.weight", (width,)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (c["vocab_size"], width)


class Pool:
    """Bytes of random tensors in bf16: pieces of one pool, from another place on each time."""

    def __init__(self, seed):
        self.values, self.scaled, self.at = torch.randn(POOL, generator=torch.Generator().manual_seed(seed)), {}, 0

    def write(self, file, name, shape):
        mean, scale = 0.0, 0.8 / math.sqrt(shape[-1])
        if "norm" in name or "_ln." in name:
            mean, scale = float(name.endswith("weight")), 0.05
        elif "embed_tokens" in name:
            scale = 1.0
        if (mean, scale) not in self.scaled:
            numbers = (mean + scale * self.values).bfloat16()
            self.scaled[mean, scale] = memoryview(numbers.view(torch.int16).numpy()).cast("B")
        left = 2 * math.prod(shape)
        while left:
            piece = self.scaled[mean, scale][2 * self.at:2 * self.at + left]
            file.write(piece)
            left -= len(piece)
            self.at = (self.at + len(piece) // 2) % POOL


def write_shard(path, tensors, pool):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            pool.write(file, name, shape)


def write_shards(folder, tensors, count, pool):
    """Shards of about the same size, with their index."""
    total, used, shards = sum(math.prod(shape) for _, shape in tensors), 0, [[] for _ in range(count)]
    for name, shape in tensors:
        shards[min(used * count // total, count - 1)].append((name, shape))
        used += math.prod(shape)
    index = {"metadata": {"total_size": 2 * total}, "weight_map": {}}
    for i, part in enumerate(shards):
        if part:
            name = f"model-{i + 1:05d}-of-{count:05d}.safetensors"
            write_shard(folder / name, part, pool)
            index["weight_map"] |= {tensor: name for tensor, _ in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def letters():
    """The letters of byte-level BPE, by byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(byte if byte in kept else next(moved)) for byte in range(256)]


def chameleon_vocabulary():
    """Chameleon's names of its special and image tokens with their ids, and bytes where its text begins."""
    names = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<eoss>": 8196, "<racm3:break>": 8197, "<image>": 8711}
    for number in range(8192):
        name = "IMGIMG" + "".join(chr(ord("A") + int(digit)) for digit in str(number)) + "Z"
        names[name] = 4 + number * 2731 % 8192  # in another order than the codebook
    names |= {f"<reserved{number:05d}>": number + 4 for number in range(8194, 8996) if number != 8707}
    text = {letter: 9000 + byte for byte, letter in enumerate(letters())}
    return names, text | {f"unused{i}": i for i in range(9256, CHAMELEON["vocab_size"])}  # ids have no holes


def write_chameleon_tokenizer(folder):
    names, text = chameleon_vocabulary()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [{"id": i, "content": name, **flags}
               for name, i in sorted(names.items(), key=lambda pair: pair[1]) if name.startswith("<")]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None, "pre_tokenizer": byte_level,
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": names | text, "merges": []}}, ensure_ascii=False))
    return names | text


def write_emu3_tokenizer(folder):
    (folder / "emu3.tiktoken").write_text("".join(f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256)))
    names = ["<|image token|>", "<|image start|>", "<|image end|>", *(f"<|visual token {number:06d}|>" for number in range(32768))]
    (folder / "emu3_vision_tokens.txt").write_text("".join(name + "\n" for name in names))


def write_decoder(arch, folder, depth=None, seed=0):
    folder, pool = Path(folder), Pool(seed)
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(DECODERS[arch], hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=False, torch_dtype="bfloat16")
    if depth:
        config["num_hidden_layers"] = depth
    write_shards(folder, list(shapes(config)), SHARDS[arch], pool)
    if arch == "emu3_8b":
        write_emu3_tokenizer(folder)
    else:
        config["vocabulary_map"] = write_chameleon_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False))
