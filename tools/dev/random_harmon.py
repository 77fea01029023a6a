"""Harmon and UniPic-1 with random weights in bf16, in the layouts of their releases: a folder as Hugging Face has Harmon's, with image
decoder and tokenizer; or for a name with .pth or .bin the release's file, with the folder of its tokenizer beside it. The tokenizer has
Qwen2.5's ids, but of bytes only. The language model's tensors are pieces of one pool of numbers, which is drawn once."""

import json
import math
from pathlib import Path

import torch

from pymar import write_safetensors
from random_decoder import letters

QWEN = dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_act="silu", max_position_embeddings=32768, num_key_value_heads=2,
            rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True, use_sliding_window=False, vocab_size=151936)
HALF = dict(QWEN, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14)
LARGE = dict(QWEN, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12)
HARMONS = {  # language model, type of MAR, side of the grid
    "harmon_0.5b": (HALF, "mar_base", 16),
    "harmon_1.5b": (LARGE, "mar_huge", 16),
    "unipic": (LARGE, "mar_huge", 32),
}
PIECES = 151643
SPECIAL = [*(f"<|{name}|>" for name in (
    "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end vision_start vision_end vision_pad "
    "image_pad video_pad").split()), "<tool_call>", "</tool_call>",
    *(f"<|{name}|>" for name in "fim_prefix fim_middle fim_suffix fim_pad repo_name file_sep".split())]
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
POOL = (1 << 22) + 3  # numbers; odd, so that rows of a matrix differ


def language_shapes(prefix, llm):
    """Names and shapes of a language model, but its output layer's."""
    width, hidden, head = llm["hidden_size"], llm["intermediate_size"], llm["hidden_size"] // llm["num_attention_heads"]
    keys = head * llm["num_key_value_heads"]
    yield f"{prefix}embed_tokens.weight", (llm["vocab_size"], width)
    for i in range(llm["num_hidden_layers"]):
        layer = f"{prefix}layers.{i}."
        for name, rows in (("q", width), ("k", keys), ("v", keys)):
            yield f"{layer}self_attn.{name}_proj.weight", (rows, width)
            yield f"{layer}self_attn.{name}_proj.bias", (rows,)
        yield f"{layer}self_attn.o_proj.weight", (width, width)
        yield f"{layer}mlp.gate_proj.weight", (hidden, width)
        yield f"{layer}mlp.up_proj.weight", (hidden, width)
        yield f"{layer}mlp.down_proj.weight", (width, hidden)
        yield f"{layer}input_layernorm.weight", (width,)
        yield f"{layer}post_attention_layernorm.weight", (width,)
    yield f"{prefix}norm.weight", (width,)


def shapes(llm, towers):
    """Names and shapes beside MAR's: of the language model, and of the layers between it and towers of this width."""
    width = llm["hidden_size"]
    yield from language_shapes("llm.model.", llm)
    for name, inputs, outputs in (("proj_in.0", towers, width), ("proj_in.2", width, width), ("proj_out.0", width, width),
                                  ("proj_out.2", width, towers)):
        yield f"{name}.weight", (outputs, inputs)
        yield f"{name}.bias", (outputs,)


class Pool:
    """Random tensors in bf16: pieces of one pool, from another place on each time."""

    def __init__(self, seed):
        self.values, self.at = torch.randn(POOL, generator=torch.Generator().manual_seed(seed)), 0

    def tensor(self, name, shape):
        mean, scale = 0.0, 0.05 if len(shape) == 1 else 0.8 / math.sqrt(shape[-1])
        if "norm" in name:
            mean = 1.0
        elif "embed" in name:
            scale = 1.0
        numbers, out, done = (mean + scale * self.values).bfloat16(), torch.empty(math.prod(shape), dtype=torch.bfloat16), 0
        while done < len(out):
            piece = numbers[self.at:self.at + len(out) - done]
            out[done:done + len(piece)] = piece
            done += len(piece)
            self.at = (self.at + len(piece)) % POOL
        return out.view(shape)


def write_tokenizer(folder, as_json, more=()):
    """tokenizer.json, or vocab.json, merges.txt and tokenizer_config.json, with more special tokens behind Qwen2.5's."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {letter: i for i, letter in enumerate(letters())} | {f"unused{i}": i for i in range(256, PIECES)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = {PIECES + i: {"content": name, **flags, "special": i < 14 or i >= len(SPECIAL)}
             for i, name in enumerate([*SPECIAL, *more])}
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "add_prefix_space": False, "added_tokens_decoder": added, "bos_token": None, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer"}, indent=1))
    if not as_json:
        (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False))
        (folder / "merges.txt").write_text("#version: 0.2\n")
        return
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [{"id": i, **token} for i, token in added.items()],
        "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}}, ensure_ascii=False))


def harmon_state(arch, mar, seed=0):
    """All tensors but those of the image decoder."""
    llm, _, _ = HARMONS[arch]
    pool = Pool(seed)
    state = {f"mar.{name}": tensor.bfloat16() for name, tensor in mar.state_dict().items()}
    return state | {name: pool.tensor(name, shape) for name, shape in shapes(llm, mar.config.width)}


def write_harmon(arch, out, mar, vae, seed=0):
    """Writes a model with these towers, a MAR, and this image decoder, which a release's file has not."""
    llm, kind, side = HARMONS[arch]
    state, out, c = harmon_state(arch, mar, seed), Path(out), mar.config
    if out.suffix in (".pth", ".bin"):
        state["llm.lm_head.weight"] = state["llm.model.embed_tokens.weight"]
        if arch == "unipic":
            state["siglip2.vision_model.post_layernorm.weight"] = torch.ones(1152)
            state["siglip2_proj.0.weight"] = torch.zeros(llm["hidden_size"], 1152)
        torch.save(state, out)
        write_tokenizer(out.with_name(f"{out.name.removesuffix(out.suffix)}-tokenizer"), False)
        return
    write_tokenizer(out, True)
    state |= {f"vae.{name}": tensor.bfloat16() for name, tensor in vae.state_dict().items()}
    write_safetensors(out / "model.safetensors", state, {"format": "pt"})
    towers = dict(type=kind, img_size=16 * side, vae_stride=16, patch_size=1, vae_embed_dim=c.token_dim, buffer_size=c.buffer,
                  diffloss_d=c.head_depth, diffloss_w=c.head_width, num_sampling_steps="100", class_num=c.classes)
    (out / "config.json").write_text(json.dumps({"architectures": ["HarmonModel"], "model_type": "harmon", "llm": llm, "mar": towers,
                                                 "torch_dtype": "bfloat16"}, indent=1))
