"""Writes tests/weights/data: small checkpoints as PyTorch and safetensors write them, and what PyTorch says is in them.

    python tests/weights/make_files.py          (needs tests/requirements.txt)

NAME.expected.safetensors holds, for NAME, the float32 values that every tensor must read as.
"""

import argparse
import collections
import datetime
import io
import os
import pathlib
import sys
import zipfile

import numpy as np
import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "data")
sys.path.insert(0, os.path.join(HERE, "..", "reference"))

from pymar.model import MAR, MarConfig  # noqa: E402
from pymar.spherear import SphereAR, SphereConfig  # noqa: E402
from pymar.vae import VAE, VaeConfig  # noqa: E402


def path(name):
    return os.path.join(DATA, name)


def expect(name, tensors):
    """The values as f32, each in its own memory."""
    save_file({k: v.detach().to(torch.float32).contiguous().clone() for k, v in tensors.items()},
              path(f"{name}.expected.safetensors"))


class Shift:
    """Stands for a class that the reader does not know."""

    def __init__(self):
        self.field = 1


class Evil:
    """Runs a command when it is unpickled by Python."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def official_mar():
    """The dict that the official training saves: model, model_ema, optimizer, epoch, scaler, args."""
    model = MAR(MarConfig(width=16, depth=2, heads=2, seq_len=16, token_dim=4, buffer=2, classes=5, head_width=8,
                          head_depth=2))
    ema = {name: value.detach().clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        sum((p ** 2).sum() for p in model.parameters()).backward()
        optimizer.step()
        for name, value in model.state_dict().items():
            ema[name].mul_(0.9).add_(value, alpha=0.1)
    for name in ("fake_latent", "z_proj.weight"):  # the official EMA entries are Parameters
        ema[name] = torch.nn.Parameter(ema[name])
    keep = {k: v for k, v in list(optimizer.state_dict()["state"].items())[:4]}
    args = argparse.Namespace(model="mar_tiny", img_size=64, lr=1e-3, betas=(0.9, 0.95), resume=None,
                              device=torch.device("cpu"), dtype=torch.float32, seed=np.int64(1), ratio=np.float64(0.7))
    scaler = {"scale": 65536.0, "growth_factor": 2.0, "growth_interval": 2000, "_growth_tracker": 2 ** 70}
    return {"model": model.state_dict(), "model_ema": collections.OrderedDict(ema),
            "optimizer": {"state": keep, "param_groups": [{"lr": 1e-3, "params": list(range(4))}]},
            "epoch": 400, "scaler": scaler, "args": args}


def legacy_files(base, views):
    """The format before PyTorch 1.6, in which the published weights of Inception-v3 are."""
    def save(value, name, **options):
        torch.save(value, path(name), _use_new_zipfile_serialization=False, **options)
    save({"w": base}, "legacy.pt")
    save(collections.OrderedDict(views), "legacy_views.pt")  # the values of views.pt
    layer = torch.nn.Sequential(collections.OrderedDict(conv=torch.nn.Conv2d(3, 4, (1, 3), bias=False),
                                                        bn=torch.nn.BatchNorm2d(4, eps=0.001)))
    layer(torch.randn(2, 3, 5, 5))
    ema = {name: value * 0.5 if value.is_floating_point() else value for name, value in layer.state_dict().items()}
    ema["half"] = torch.randn(7).half()
    save({"epoch": 3, "model": layer.state_dict(), "model_ema": collections.OrderedDict(ema), "optimizer": [torch.randn(9)]},
         "legacy_model.pt")
    expect("legacy_model.pt", {name: value for name, value in ema.items() if value.is_floating_point()})
    save({"state_dict": {"a": torch.nn.Parameter(base), "empty": torch.zeros(0, 2)}}, "legacy4.pt", pickle_protocol=4)
    with open(path("legacy.pt"), "rb") as file:
        whole = file.read()
    with open(path("legacy_big.pt"), "wb") as file:  # little_endian: False
        at = whole.index(b"little_endian")
        true = whole.index(b"\x88", at)
        file.write(whole[:true] + b"\x89" + whole[true + 1:])


def entry_files():
    """Entries that no model needs, each of a type that is not read, beside fp8; and scaled fp8 of each convention."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    fp8 = {"e4m3": codes.view(torch.float8_e4m3fn), "e5m2": codes.view(torch.float8_e5m2),
           "transposed": codes.view(torch.float8_e4m3fn).reshape(16, 16).t(), "w": torch.arange(6.0).reshape(2, 3)}
    tagged = torch.arange(4.0)
    tagged.note = "a tensor with an attribute"
    odd = {"freqs_cis": torch.ones(2, dtype=torch.complex64), "block._extra_state": io.BytesIO(b"state"),
           "attn._extra_state": None, "bytes": b"bytes", "version": 3, "name": "x", "u16": torch.zeros(2, dtype=torch.uint16),
           "fnuz": torch.zeros(2).to(torch.float8_e4m3fnuz), "sparse": torch.eye(2).to_sparse(),
           "meta": torch.empty(2, 3, device="meta"), "conj": torch.ones(2, dtype=torch.complex64).conj(),
           "negated": torch.ones(2, dtype=torch.complex64).conj().imag, 7: "a key that is no name"}
    torch.save({"model": {**odd, **fp8, "tagged": tagged}}, path("entries.pt"))
    torch.save({"model": {**odd, **fp8, "tagged": tagged}}, path("entries_legacy.pt"), _use_new_zipfile_serialization=False)
    save_file({**{k: v.contiguous().clone() for k, v in fp8.items()}, "tagged": tagged, "u16": odd["u16"],
               "freqs_cis": odd["freqs_cis"], "e8m0": torch.zeros(2).to(torch.float8_e8m0fnu)}, path("entries.safetensors"))
    expect("entries", {**fp8, "tagged": tagged})

    def quantised(shape, scale):
        values = torch.randn(shape)
        return (values / scale).to(torch.float8_e4m3fn)
    rows = torch.rand(5, 1) + 0.01
    blocks = torch.rand(2, 2) / 7
    whole = torch.tensor(0.013)
    files = {"one.weight": quantised((5, 7), whole), "one.weight_scale": whole, "one.input_scale": torch.tensor(2.0),
             "rows.weight": quantised((5, 7), rows), "rows.weight_scale": rows.bfloat16(),
             "flat.weight": quantised((5, 7), rows), "flat.weight_scale": rows.clone().flatten(),
             "comfy.weight": quantised((5, 7), whole).view(torch.uint8).view(torch.float8_e5m2),
             "comfy.scale_weight": whole.clone().reshape(1), "comfy.scale_input": torch.tensor([2.0]),
             "block.weight": torch.randn(130, 130).to(torch.float8_e4m3fn), "block.weight_scale_inv": blocks,
             "scaled_fp8": torch.zeros(0).to(torch.float8_e4m3fn)}
    save_file(files, path("fp8_scaled.safetensors"))
    spread = blocks.repeat_interleave(128, 0)[:130].repeat_interleave(128, 1)[:, :130]
    f32 = {k: v.float() for k, v in files.items()}
    expect("fp8_scaled", {"one.weight": f32["one.weight"] * whole,
                          "rows.weight": f32["rows.weight"] * f32["rows.weight_scale"],
                          "flat.weight": f32["flat.weight"] * rows, "comfy.weight": f32["comfy.weight"] * whole,
                          "block.weight": f32["block.weight"] * spread})


def in_halves(state, count):
    """The tensors of a state dict in half precision, random, as views into one storage: a small file"""
    pool = torch.randn(count).half()
    return {name: pool[i:i + value.numel()].view(value.shape) for i, (name, value) in enumerate(state.items())}


def official_spherear():
    """What SphereAR's training saves; `model` is not what its sampling loads."""
    state = SphereAR(SphereConfig(width=8, depth=1, heads=2, head_width=8, head_depth=2, head_modulations=1, grid=2,
                                  token_dim=4, class_tokens=2, classes=3)).state_dict()
    return {"model": in_halves(state, 4400), "optimizer": {"state": {0: {"exp_avg": torch.zeros(8)}}},
            "ema": in_halves(state, 4400), "steps": 7}


def small_llamagen():
    """The weights of a LlamaGen of 16 codes, 3 classes, width 16 and one layer: zeros."""
    rows = {"cls_embedding.embedding_table": (4, 16), "tok_embeddings": (16, 16), "output": (16, 16),
            "layers.0.attention.wqkv": (48, 16), "layers.0.attention.wo": (16, 16), "layers.0.feed_forward.w1": (32, 16),
            "layers.0.feed_forward.w3": (32, 16), "layers.0.feed_forward.w2": (16, 32)}
    norms = ("norm", "layers.0.attention_norm", "layers.0.ffn_norm")
    return {**{f"{name}.weight": torch.zeros(shape, dtype=torch.float16) for name, shape in rows.items()},
            **{f"{name}.weight": torch.ones(16, dtype=torch.float16) for name in norms}}


def main():
    os.makedirs(DATA, exist_ok=True)
    torch.manual_seed(1)

    checkpoint = official_mar()
    torch.save(checkpoint, path("mar.pth"))
    expect("mar.pth", checkpoint["model_ema"])

    vae = VAE(VaeConfig(ch=32, ch_mult=(1, 1), num_res_blocks=1, z_channels=4, encoder_attention=True)).state_dict()
    torch.save({"model": in_halves(vae, 10240)}, path("vae.ckpt"))
    torch.save(official_spherear(), path("spherear.pt"))

    # Every dtype, with values at the edges of each.
    edge = torch.tensor([0.0, -0.0, 1.0, -2.5, 6.1e-5, 5.97e-8, -1e-7, 65504.0, 1 / 3])
    dtypes = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    floats = {name: edge.double().to(dtype) for name, dtype in dtypes.items()}
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), 3.0])
    floats["f16_special"], floats["bf16_special"] = special.half(), special.bfloat16()
    floats["f16_all"] = torch.arange(-32768, 32768, 13, dtype=torch.int32).to(torch.int16).view(torch.float16)
    integers = {"i64": torch.tensor([-1, 2 ** 40]), "i32": torch.tensor([-5], dtype=torch.int32),
                "i16": torch.tensor([300], dtype=torch.int16), "i8": torch.tensor([-7], dtype=torch.int8),
                "u8": torch.tensor([255], dtype=torch.uint8), "bool": torch.tensor([True, False]),
                "scalar": torch.tensor(3.5), "empty": torch.zeros(0, 3)}
    torch.save({**floats, **integers}, path("dtypes.pt"))
    save_file({**floats, **integers}, path("dtypes.safetensors"), metadata={"mar.heads": "2", "note": "\u00e9 \"x\""})
    expect("dtypes", floats)

    # One storage seen from several sides.
    base = torch.arange(60, dtype=torch.float32).reshape(5, 12)
    views = {"base": base, "rows": base[2:4], "flat": base.view(-1)[7:19], "transposed": base.t(),
             "columns": base[:, 3:5], "every_third": base[:, ::3], "cube": base.view(5, 3, 4).permute(2, 0, 1),
             "one_row": base[3:4].t().t(), "repeated": torch.tensor([4.0, 5.0]).unsqueeze(1).expand(2, 6)}
    torch.save(collections.OrderedDict(views), path("views.pt"))
    expect("views.pt", views)

    torch.save({"model_ema": None, "model": {"a": base}, "optimizer": None}, path("no_ema.pt"))
    torch.save({"a": base, "epoch": 3, 4: base, "b": [base]}, path("top_level.pt"))

    # Later protocols: frames, MEMOIZE, SHORT_BINUNICODE, STACK_GLOBAL.
    for protocol in (3, 4, 5):
        torch.save({"state_dict": {"a": base, "b": base.half()}, "hyper": {"x": {1, 2}, "y": frozenset({3}),
                    "z": b"bytes", "big": -2 ** 80, "w": [1, (2, 3), -70000]}}, path(f"protocol{protocol}.pt"),
                   pickle_protocol=protocol)

    # As DeepSpeed wraps a model, with what a training run keeps beside it; and options beside bare tensors.
    args = argparse.Namespace(gpt_model="GPT-B", betas=(0.9, 0.95), image_size=256, results=pathlib.PosixPath("a/b"),
                              started=datetime.datetime(2024, 6, 1))
    torch.save({"module": {"w": base}, "optimizer": {"state": {0: {"exp_avg": -base}}}, "steps": 7, "args": args,
                "ema": {"w": base + 1}}, path("module.pt"))
    torch.save({"w": base, "args": args, "steps": 7}, path("options_beside.pt"))

    # As LlamaGen's train_c2i.py saves a run: 384 pixels, 24 x 24 tokens; and with an image size that is no number.
    for name, size in ("llamagen_384.pt", 384), ("llamagen_odd.pt", "384"):
        options = argparse.Namespace(gpt_model="GPT-B", gpt_type="c2i", ema=True, gpt_ckpt=None, vocab_size=16,
                                     image_size=size, downsample_size=16, num_classes=3, lr=1e-4)
        torch.save({"model": small_llamagen(), "optimizer": {"state": {}, "param_groups": []}, "steps": 7, "args": options,
                    "ema": small_llamagen()}, path(name))
    torch.save({"model": small_llamagen(), "args": {"image_size": 384, "downsample_size": 16}}, path("llamagen_dict.pt"))

    # Code beside the tensors is never run; code in place of a tensor is refused.
    torch.save({"model": {"w": base}, "payload": Evil("touch executed")}, path("evil_beside.pt"))
    torch.save({"model": {"w": Evil("touch executed")}}, path("evil_tensor.pt"))
    torch.save({"model": {"w": base, "n": Shift()}}, path("unknown_class.pt"))
    torch.save({"model": {"w": base.numpy()}}, path("numpy_tensor.pt"))
    torch.save({"epoch": 3, "args": {"lr": 1.0}}, path("no_tensors.pt"))
    torch.save([base], path("list.pt"))
    legacy_files(base, views)
    entry_files()

    # The same archive with compression, and big-endian.
    source = zipfile.ZipFile(path("protocol3.pt"))
    for name, method, order in (("compressed.pt", zipfile.ZIP_DEFLATED, b"little"), ("big.pt", zipfile.ZIP_STORED, b"big")):
        with zipfile.ZipFile(path(name), "w", method) as target:
            for entry in source.namelist():
                target.writestr(entry, order if entry.endswith("byteorder") else source.read(entry))


if __name__ == "__main__":
    main()
