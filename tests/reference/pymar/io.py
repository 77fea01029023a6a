"""Reading and writing checkpoints: safetensors with metadata, and the official .pth/.ckpt layout."""

import argparse
import json
import math
import os
import struct

import torch
from safetensors.torch import load_file, save_file

from .gpt import GPT, Eagle, GptConfig
from .model import MAR, MarConfig
from .spherear import SphereAR, SphereConfig, SphereVaeConfig
from .vae import VAE, VaeConfig
from .vq import VQ, VqConfig


def write_safetensors(path, tensors, metadata):
    """Write beside, then rename. All metadata values become strings."""
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    partial = f"{path}.part"
    save_file(tensors, partial, metadata={key: str(value) for key, value in metadata.items()})
    os.chmod(partial, 0o644)  # the library writes files that only the owner can read
    os.replace(partial, path)


def read_safetensors(path):
    """Returns ({name: float32 tensor}, {metadata})."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        metadata = json.loads(file.read(length)).get("__metadata__", {})
    return {name: tensor.float() for name, tensor in load_file(path).items()}, metadata


def mar_config(tensors, heads):
    """The configuration that the shapes imply; the number of heads is the one thing they do not tell."""
    def count(prefix):
        return len({name.split(".")[prefix.count(".")] for name in tensors if name.startswith(prefix)})
    width, token_dim = tensors["z_proj.weight"].shape
    seq_len = tensors["diffusion_pos_embed_learned"].shape[1]
    return MarConfig(
        width=width, depth=count("encoder_blocks."), heads=heads, seq_len=seq_len, token_dim=token_dim,
        buffer=tensors["encoder_pos_embed_learned"].shape[1] - seq_len, classes=tensors["class_emb.weight"].shape[0],
        head_width=tensors["diffloss.net.input_proj.weight"].shape[0], head_depth=count("diffloss.net.res_blocks."))


def vae_config(tensors):
    levels = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("encoder.down."))
    ch = tensors["encoder.conv_in.weight"].shape[0]
    mult = tuple(tensors[f"encoder.down.{i}.block.0.conv2.weight"].shape[0] // ch for i in range(levels))
    blocks = 1 + max(int(name.split(".")[4]) for name in tensors if name.startswith("encoder.down.0.block."))
    attention = f"encoder.down.{levels - 1}.attn.0.q.weight" in tensors
    return VaeConfig(ch=ch, ch_mult=mult, num_res_blocks=blocks, z_channels=tensors["post_quant_conv.weight"].shape[0],
                     encoder_attention=attention)


def load_mar(path, heads=None):
    """A MAR in eval mode from safetensors (metadata mar.heads) or an official .pth (EMA weights, heads of 64 or 80)."""
    if str(path).endswith((".pth", ".pt", ".ckpt")):
        checkpoint = torch.load(path, map_location="cpu", weights_only=False)
        tensors, metadata = checkpoint.get("model_ema", checkpoint.get("model")), {}
    else:
        tensors, metadata = read_safetensors(path)
    width = tensors["z_proj.weight"].shape[0]
    heads = heads or int(metadata.get("mar.heads", {768: 12, 1024: 16, 1280: 16}.get(width, width // 64)))
    model = MAR(mar_config(tensors, heads))
    model.load_state_dict(tensors)
    return model.eval()


def load_vae(path):
    """A VAE in eval mode from safetensors or an official kl16.ckpt."""
    if str(path).endswith((".pth", ".pt", ".ckpt")):
        tensors = torch.load(path, map_location="cpu", weights_only=False)["model"]
        tensors = {k: v for k, v in tensors.items() if not k.startswith("loss.")}
    else:
        tensors, _ = read_safetensors(path)
    model = VAE(vae_config(tensors))
    model.load_state_dict(tensors)
    return model.eval()


def save_official_mar(path, state, ema_state, **args):
    """The layout of the official checkpoint-last.pth. The optimizer entry is a small stand-in."""
    optimizer = {"state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(4)}}, "param_groups": [{"lr": 1e-4, "params": [0]}]}
    torch.save({"model": state, "model_ema": ema_state, "optimizer": optimizer, "epoch": 400, "scaler": {},
                "args": argparse.Namespace(**args)}, path)


def save_official_vae(path, state):
    torch.save({"model": state}, path)


def vq_config(tensors):
    """The configuration that the shapes of a VQ tokenizer's decoder imply."""
    levels = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("decoder.conv_blocks."))
    widths = [tensors[f"decoder.conv_blocks.{levels - 1 - i}.res.0.conv2.weight"].shape[0] for i in range(levels)]
    blocks = max(int(name.split(".")[4]) for name in tensors if name.startswith("decoder.conv_blocks.0.res."))
    codebook, code_dim = tensors["quantize.embedding.weight"].shape
    ch = tensors["encoder.conv_in.weight"].shape[0] if "encoder.conv_in.weight" in tensors else widths[0]
    return VqConfig(ch=ch, ch_mult=tuple(width // ch for width in widths), num_res_blocks=blocks,
                    z_channels=tensors["decoder.conv_in.weight"].shape[1], codebook=codebook, code_dim=code_dim)


def load_vq(path):
    """A VQ in eval mode from safetensors or an official vq_ds16_c2i.pt; a file without encoder only decodes."""
    if str(path).endswith((".pth", ".pt", ".ckpt")):
        tensors = torch.load(path, map_location="cpu", weights_only=True)["model"]
    else:
        tensors, _ = read_safetensors(path)
    tensors = {name: tensor for name, tensor in tensors.items() if name != "quantize.codebook_used"}
    model = VQ(vq_config(tensors))
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    wrong = [name for name in missing if not name.startswith(("encoder.", "quant_conv."))] + unexpected
    if wrong:
        raise ValueError(f"{path}: tensors missing or not known: {', '.join(wrong)}")
    return model.eval()


def gpt_config(tensors, metadata):
    """The configuration that the shapes imply; heads and tokens of an image are not among them."""
    vocabulary, width = tensors["tok_embeddings.weight"].shape
    heads = int(metadata.get("mar.heads", {768: 12, 1024: 16, 1280: 20, 1536: 24, 3200: 32}.get(width, width // 64)))
    classes = tensors.get("cls_embedding.embedding_table.weight")
    tokens, dim = tensors.get("cls_embedding.uncond_embedding", torch.empty(0, 0)).shape
    return GptConfig(width=width, depth=1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("layers.")),
                     heads=heads, hidden=tensors["layers.0.feed_forward.w1.weight"].shape[0], vocabulary=vocabulary,
                     seq_len=int(metadata.get("mar.seq_len", 256)),
                     classes=0 if classes is None else classes.shape[0] - 1, caption_tokens=tokens, caption_dim=dim)


def load_gpt(path, **known):
    """A GPT of classes or captions in eval mode from safetensors (metadata mar.heads, mar.seq_len) or an official .pt. `known`:
    heads and seq_len where the file does not say."""
    metadata = {}
    if str(path).endswith((".pth", ".pt", ".ckpt")):
        tensors = torch.load(path, map_location="cpu", weights_only=False)
        for key in ("model", "module", "state_dict"):
            tensors = tensors.get(key, tensors)
        tensors = {name: tensor.float() for name, tensor in tensors.items() if name != "freqs_cis"}
    else:
        tensors, metadata = read_safetensors(path)
    model = GPT(gpt_config(tensors, {**metadata, **{f"mar.{name}": value for name, value in known.items() if value}}))
    model.load_state_dict(tensors)
    return model.eval()


def load_eagle(path, config):
    """An EAGLE drafter in eval mode for a GPT of this configuration."""
    model = Eagle(config)
    model.load_state_dict({name.removeprefix("eagle."): tensor for name, tensor in read_safetensors(path)[0].items()})
    return model.eval()


def sphere_config(tensors, heads):
    """The configurations of the model and of its S-VAE (None without one) that the shapes imply. `heads`: of the transformer and
    of the S-VAE, None where each has the official size of 64."""
    def count(prefix):
        return len({name[len(prefix):].split(".")[0] for name in tensors if name.startswith(prefix)})
    seq_len, width = tensors["pos_for_diff.weight"].shape
    classes, class_width = tensors["cls_embedding.weight"].shape
    head_width, token_dim = tensors["head.net.input_proj.weight"].shape
    shared = dict(grid=math.isqrt(seq_len), token_dim=token_dim)
    config = SphereConfig(width=width, depth=count("layers."), heads=heads[0] or width // 64, head_width=head_width,
                          head_depth=count("head.net.res_blocks."), head_modulations=count("head.net.ada_ln_blocks."),
                          class_tokens=class_width // width, classes=classes - 1, **shared)
    blocks = count("vae.decoder.unpatchify.1.net.")
    if not blocks:
        return config, None
    shortcuts = [tensors[f"vae.decoder.unpatchify.1.net.{i}.shortcut.weight"].shape for i in range(blocks)]
    channels = (*(outputs for _, outputs, *_ in shortcuts[::-1]), shortcuts[0][0])
    return config, SphereVaeConfig(channels=channels, heads=heads[1] or channels[-1] // 64,
                                   decoder_depth=count("vae.decoder.layers."), **shared)


def load_sphere(path):
    """A SphereAR in eval mode, with its S-VAE's decoder if the file has it, from safetensors (metadata mar.heads and
    mar.vae_heads) or an official .pt (`ema` if it is there)."""
    if str(path).endswith((".pth", ".pt", ".ckpt")):
        checkpoint = torch.load(path, map_location="cpu", weights_only=False)
        tensors, metadata = checkpoint.get("ema", checkpoint["model"]), {}
    else:
        tensors, metadata = read_safetensors(path)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(("vae.encoder.", "vae.quant_proj."))}
    config, vae = sphere_config(tensors, [int(metadata.get(key, 0)) for key in ("mar.heads", "mar.vae_heads")])
    model = SphereAR(config, vae)
    model.load_state_dict(tensors)
    return model.eval()
