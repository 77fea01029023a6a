"""What the trainings of the demo models share: schedule, averages, files, logs, and prompts of language models."""

import copy
import ctypes
import json
import math
import os
import shutil
import subprocess
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


def write_json(path, content):
    with open(path, "w") as file:
        file.write(json.dumps(content, indent=2) + "\n")


# ---------------------------------------------------------------------------------- prompts of a model of Qwen2's kind

QWEN2_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                 r"|\s+(?!\S)|\s+")


def train_bpe(texts, special):
    """A byte-level BPE with Qwen2's normaliser, pattern and order: bytes and merges first, then the special tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=10 ** 4, min_frequency=20, show_progress=False,
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return tokenizer


class Prompts:
    """Ids of prompts in the frame that `frame` puts around one (None: the unconditional one), by a tokenizer.json."""

    def __init__(self, path, frame):
        from tokenizers import Tokenizer
        self.tokenizer, self.frame = Tokenizer.from_file(path), frame
        self.vocabulary = self.tokenizer.get_vocab_size()
        self.pad = self.tokenizer.token_to_id("<|endoftext|>")

    def ids(self, prompts):
        """Ids [B, n] of prompts, padded in front, and which of them are not padding. Positions count from the first id, so
        padding in front computes the same as none."""
        rows = [encoding.ids for encoding in self.tokenizer.encode_batch([self.frame(prompt) for prompt in prompts])]
        longest = max(map(len, rows))
        padded = torch.tensor([[self.pad] * (longest - len(row)) + row for row in rows])
        counts = torch.tensor([len(row) for row in rows])
        return padded, torch.arange(longest) >= longest - counts[:, None]


def causal_rows(model, rows, given):
    """The last hidden rows that a model of transformers makes of `rows` [B,n,W], the first of them padding where `given` is not
    set. The rows behind `given` [B, up to n] all are given."""
    given = torch.cat([given, given.new_ones(len(rows), rows.shape[1] - given.shape[1])], 1)
    length = given.shape[1]
    # Rows of padding see themselves, or their softmax were of nothing.
    square = torch.ones(length, length, dtype=torch.bool)
    mask = (given[:, None, :] & square.tril()) | torch.eye(length, dtype=torch.bool)
    return model(inputs_embeds=rows, attention_mask=mask[:, None], use_cache=False,
                 position_ids=(given.cumsum(1) - 1).clamp(min=0)).last_hidden_state


def publish_tokenizer(work, folder, pad, longest):
    """Writes WORK/tokenizer.json and what transformers wants beside it."""
    write_json(os.path.join(folder, "tokenizer_config.json"),
               {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": pad, "model_max_length": longest})
    with open(os.path.join(work, "tokenizer.json")) as file, open(os.path.join(folder, "tokenizer.json"), "w") as out:
        out.write(json.dumps(json.load(file), ensure_ascii=False) + "\n")


def draw_with_mar(args, model, texts, options):
    """Images [B,3,H,W] of `mar generate`, args.mar, one a prompt."""
    import numpy as np
    from PIL import Image
    folder = os.path.join(args.work, "pictures")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([args.mar, "generate", "--model", model, "--prompts", "-", "--out", folder, "--seed", str(args.seed), "--quiet",
                    *map(str, options)], input="\n".join(texts), text=True, check=True)
    pixels = [np.asarray(Image.open(os.path.join(folder, f"{i:06}.png"))) for i in range(len(texts))]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 127.5 - 1
