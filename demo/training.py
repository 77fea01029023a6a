"""What the trainings of the demo models share: schedule, averages, files and logs."""

import copy
import ctypes
import math
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "reference"))

from pymar import write_safetensors  # noqa: E402

DATA = "UCI handwritten digits, CC BY 4.0"


def keep_freed_memory():
    """With glibc's defaults every large tensor is a fresh mapping, and page faults take a quarter of the time."""
    libc, mmap_max, trim_threshold = ctypes.CDLL(None), -4, -1
    if hasattr(libc, "mallopt"):
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2 ** 31 - 1)


def set_lr(optimizer, step, total, peak, warmup):
    lr = peak * min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / total))
    for group in optimizer.param_groups:
        group["lr"] = lr


class Ema:
    """Averaged copy of a model; the horizon grows with the step up to 1 / (1 - decay)."""

    def __init__(self, model, decay):
        self.model, self.decay, self.step = copy.deepcopy(model).eval().requires_grad_(False), decay, 0

    @torch.no_grad()
    def update(self, model):
        self.step += 1
        rate = 1 - min(self.decay, self.step / (self.step + 20))
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), rate)


def transformer_optimizers(model, weight_decay):
    """Muon for the matrices of layers and of a head's blocks, which halves the steps, and AdamW for embeddings, norms and the
    output layer."""
    matrices = {name for name, p in model.named_parameters()
                if p.dim() == 2 and ("layers" in name.split(".") or "res_blocks" in name.split("."))}
    muon, adam = ([p for name, p in model.named_parameters() if (name in matrices) == wanted] for wanted in (True, False))
    return [torch.optim.Muon(muon, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(adam, betas=(0.9, 0.95), weight_decay=0.0)]


def optimise(optimizers, model, loss):
    model.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()


def save(path, tensors, metadata, dtype=torch.float16, unchanged=()):
    """The tensors {name: tensor} as `dtype`, float16 unless said otherwise: its rounding is far below bfloat16's, which
    the fast paths use anyway. Tensors named in `unchanged` keep their type."""
    metadata = {"format": "pt", "mar.data": DATA, **metadata}
    write_safetensors(path, {name: tensor if name in unchanged else tensor.to(dtype) for name, tensor in tensors.items()}, metadata)


def logger(work, name):
    """A function that prints a line and adds it to work/name.log."""
    os.makedirs(work, exist_ok=True)

    def log(line):
        with open(os.path.join(work, f"{name}.log"), "a") as file:
            print(line, file=file)
        print(line, flush=True)
    return log
